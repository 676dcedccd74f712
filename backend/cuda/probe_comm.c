/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL takes and does with one process per GPU, as a run has it: processes are started from
 * this one, join through the same transport that a run uses, do what a run does, and tell what they
 * saw through shared memory. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, usleep */
#include "backend/cuda/probe.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/comm/ops.h"
#include "core/checked.h"
#include "core/log.h"

#define MIB (1ull << 20)
#define CALL_S 25.0 /* of one collective */
#define MAX_GPUS STW_CUDA_PROBE_MOST_GPUS
#define PIECE_BYTES (32 * MIB)   /* the largest broadcast of a run */
#define LARGE_BYTES (1024 * MIB) /* for the rate of the links */
#define PAIRS_BYTES (64 * MIB)   /* of messages between pairs: a round of a weight sync */
#define REPEATS 5
#define TELLS (16 + STW_CUDA_PROBE_COLLECTIVES)

/* What one process tells. It may be ended at any time: `ok` comes once all before `samples` is
 * there, and a sample counts once n_samples says so. */
typedef struct told {
    atomic_bool ok;
    uint64_t comm_bytes, process_bytes;
    double broadcast_bps, message_bps;
    stw_error error;
    atomic_uint n_samples;
    stw_sample samples[TELLS];
} told;

typedef struct shared {
    uint32_t world;
    bool full, small;    /* small: a test's, with STOWAGE_PROBE_BYTES */
    double deadline_s;   /* of all processes together, as stw_process_now_s */
    int count;           /* of visible GPUs */
    atomic_int id_round; /* how many ids rank 0 has given so far */
    unsigned char id[256];
    told ranks[MAX_GPUS];
} shared;

typedef struct child {
    shared *common;
    uint32_t rank;
    int id_round; /* ids that this process has given or taken */
} child;

/* Rank 0's bytes reach the others through the memory that they share. */
static stw_status share(void *state, void *data, uint32_t bytes, stw_error *err) {
    child *c = state;
    shared *s = c->common;
    if (bytes > sizeof s->id) return stw_fail(err, STW_STATUS_BUG, "probe", "a large id");
    c->id_round++; /* collectives lie between two rounds: nobody still reads the id before */
    if (c->rank == 0) {
        memcpy(s->id, data, bytes);
        atomic_store(&s->id_round, c->id_round);
        return STW_STATUS_OK;
    }
    for (double end = stw_process_now_s() + CALL_S; atomic_load(&s->id_round) < c->id_round;) {
        if (stw_process_now_s() > end)
            return stw_fail(err, STW_STATUS_DEVICE, "probe", "rank 0 gave no unique id");
        (void)usleep(200);
    }
    memcpy(data, s->id, bytes);
    return STW_STATUS_OK;
}

static void tell(told *out, const stw_sample *sample) {
    unsigned n = atomic_load(&out->n_samples);
    if (n >= TELLS) return;
    out->samples[n] = *sample;
    atomic_store(&out->n_samples, n + 1);
}

static void tell_bytes(told *out, const char *detail, uint64_t bytes) {
    stw_sample sample = stw_sample_make("NCCL communicator", detail, "B");
    stw_sample_add(&sample, (double)bytes);
    tell(out, &sample);
}

/* A transport with what its calls need. */
typedef struct talk {
    const stw_comm_ops *ops;
    void *comm;
    stw_device *device;
    uint64_t used_before; /* bytes of the GPU in use before the communicator was made */
    child *me;
    told *out;
} talk;

static uint64_t grown_bytes(const talk *t) {
    stw_device_info info;
    stw_backend_cuda_find()->info(t->device, &info);
    return info.used_now > t->used_before ? info.used_now - t->used_before : 0;
}

/* A load's and a step's collectives, and the growth that they cause. */
static stw_status first_use(talk *t, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t counters[STW_NORM_COUNTERS] = {0};
    unsigned char mine[64] = {0}, all[64 * MAX_GPUS];
    tell_bytes(t->out, "of a run, before its first use", grown_bytes(t));
    STW_TRY(t->ops->barrier(t->comm, err));
    STW_TRY(t->ops->gather(t->comm, mine, all, sizeof mine, err));
    STW_TRY(t->ops->sum_u64(t->comm, counters, STW_NORM_COUNTERS, err));
    for (int i = 0; i < REPEATS; i++)
        STW_TRY(
            t->ops->broadcast(t->comm, STW_TIER_GPU, STW_COMM_SCRATCH_BYTES, PIECE_BYTES, 0, err));
    STW_TRY(t->ops->wait(t->comm, "broadcasts", err));
    STW_TRY(t->ops->barrier(t->comm, err));
    t->out->comm_bytes = grown_bytes(t);
    t->out->process_bytes = stw_process_resident_bytes();
    tell_bytes(t->out, "of a run, after its first use", t->out->comm_bytes);
out:
    return status;
}

/* Broadcasts of one size from rank 0. *bps is the median. */
static stw_status broadcasts(talk *t, uint64_t bytes, double *bps, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char detail[64];
    const int repeats = bytes < 64 * MIB ? 20 : REPEATS;
    snprintf(detail, sizeof detail, "%llu MiB, %u GPUs", (unsigned long long)(bytes / MIB),
             t->me->common->world);
    stw_sample sample = stw_sample_make("NCCL broadcast", detail, "B/s");
    for (int run = 0; run < 5; run++) {
        STW_TRY(t->ops->barrier(t->comm, err));
        double start = stw_process_now_s();
        for (int i = 0; i < repeats; i++)
            STW_TRY(
                t->ops->broadcast(t->comm, STW_TIER_GPU, STW_COMM_SCRATCH_BYTES, bytes, 0, err));
        STW_TRY(t->ops->wait(t->comm, "broadcasts", err));
        stw_sample_add(&sample, repeats * (double)bytes / (stw_process_now_s() - start));
    }
    tell(t->out, &sample);
    *bps = stw_sample_median(&sample);
out:
    return status;
}

/* Every rank sends to every other one at the same time, PAIRS_BYTES in all. */
static stw_status pairs(talk *t, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t world = t->me->common->world, me = t->me->rank;
    const uint64_t part = (t->me->common->small ? PIECE_BYTES / 4 : PAIRS_BYTES) / (world - 1);
    stw_comm_message messages[2 * MAX_GPUS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < 2 * world; i++) { /* of two ranks in one order on both */
        const uint32_t peer = i / 2;
        const bool sends = (i % 2 == 0) == (me < peer);
        if (peer == me) continue;
        const uint64_t place = (peer < me ? peer : peer - 1) + (sends ? 0 : world - 1);
        messages[n++] =
            (stw_comm_message){peer, sends, STW_COMM_SCRATCH_BYTES + place * part, part};
    }
    stw_sample sample = stw_sample_make("NCCL messages", "of each GPU to all others", "B/s");
    for (int run = 0; run < 6; run++) {
        STW_TRY(t->ops->barrier(t->comm, err));
        double start = stw_process_now_s();
        for (int i = 0; i < REPEATS; i++)
            STW_TRY(t->ops->messages(t->comm, STW_TIER_GPU, messages, n, err));
        STW_TRY(t->ops->wait(t->comm, "messages", err));
        if (run > 0) /* the first connects the ranks */
            stw_sample_add(&sample, REPEATS * (double)(world - 1) * (double)part /
                                        (stw_process_now_s() - start));
    }
    tell(t->out, &sample);
    t->out->message_bps = stw_sample_median(&sample);
out:
    return status;
}

/* The global norm's sum over ranks: counters from and to the host, and those in GPU memory. */
static stw_status small_sums(talk *t, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const int repeats = 20;
    uint64_t counters[STW_NORM_COUNTERS] = {0};
    stw_sample host = stw_sample_make("NCCL sum", "74 counters from host memory", "s");
    stw_sample gpu = stw_sample_make("NCCL sum", "74 counters in GPU memory", "s");
    uint64_t *in_gpu =
        stw_backend_cuda_find()->device_address(t->device, STW_COMM_SCRATCH_BYTES, sizeof counters);
    for (int run = 0; run < 5; run++) {
        STW_TRY(t->ops->barrier(t->comm, err));
        double start = stw_process_now_s();
        for (int i = 0; i < repeats; i++)
            STW_TRY(t->ops->sum_u64(t->comm, counters, STW_NORM_COUNTERS, err));
        stw_sample_add(&host, (stw_process_now_s() - start) / repeats);
        if (t->ops->sum_counters == NULL || in_gpu == NULL) continue;
        STW_TRY(t->ops->barrier(t->comm, err));
        start = stw_process_now_s();
        for (int i = 0; i < repeats; i++) {
            STW_TRY(t->ops->sum_counters(t->comm, in_gpu, STW_NORM_COUNTERS, err));
            STW_TRY(t->ops->wait(t->comm, "a sum of counters", err));
        }
        stw_sample_add(&gpu, (stw_process_now_s() - start) / repeats);
    }
    tell(t->out, &host);
    tell(t->out, &gpu);
out:
    return status;
}

static stw_status talk_to_peers(talk *t, stw_error *err) {
    static const uint64_t quick[] = {1 * MIB, PIECE_BYTES, LARGE_BYTES};
    static const uint64_t full[] = {1 * MIB,  4 * MIB,   16 * MIB,   PIECE_BYTES,
                                    64 * MIB, 256 * MIB, LARGE_BYTES};
    const shared *s = t->me->common;
    const uint64_t *sizes = s->full ? full : quick;
    size_t n = s->full ? sizeof full / sizeof full[0] : sizeof quick / sizeof quick[0];
    stw_status status = STW_STATUS_OK;
    STW_TRY(first_use(t, err));
    for (size_t i = 0; i < n; i++) {
        double bps = 0;
        if (s->small && sizes[i] > PIECE_BYTES) continue;
        STW_TRY(broadcasts(t, sizes[i], &bps, err));
        t->out->broadcast_bps = bps; /* the largest comes last */
    }
    STW_TRY(pairs(t, err));
    STW_TRY(small_sums(t, err));
    STW_TRY(t->ops->barrier(t->comm, err));
out:
    return status;
}

/* After what plans need: its failures and even its end cost nothing but samples. */
static void talk_otherwise(talk *t) {
    const stw_backend *backend = stw_backend_cuda_find();
    stw_error error = STW_ERROR_INIT;
    stw_sample samples[STW_CUDA_PROBE_COLLECTIVES];
    char text[1200];
    const stw_cuda_probe_peers peers = {
        .rank = t->me->rank,
        .world = t->me->common->world,
        .share = share,
        .share_state = t->me,
        .memory = backend->device_address(t->device, STW_COMM_SCRATCH_BYTES, LARGE_BYTES),
        .bytes = LARGE_BYTES,
        .stream = backend->native_stream(t->device, STW_STREAM_COMPUTE)};
    uint32_t n = stw_cuda_probe_collectives(&peers, samples, &error);
    for (uint32_t i = 0; i < n; i++) tell(t->out, &samples[i]);
    if (error.status == STW_STATUS_OK) return;
    stw_error_format(&error, text, sizeof text);
    stw_log(STW_LOG_WARN, "rank %u: not all collectives were measured: %s", t->me->rank, text);
}

static stw_status join_and_talk(child *c, told *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_backend *backend = stw_backend_cuda_find();
    stw_device_info info;
    const uint64_t arena = STW_COMM_SCRATCH_BYTES + LARGE_BYTES;
    const stw_device_config config = {.arena_bytes = {[STW_TIER_GPU] = arena},
                                      .capacity_bytes = {[STW_TIER_GPU] = arena},
                                      .local_rank = c->rank,
                                      .local_world = c->common->world,
                                      .n_events = 64,
                                      .types = {STW_ELEMENT_F32, STW_ELEMENT_F32, STW_ELEMENT_NONE,
                                                STW_ELEMENT_F32, STW_ELEMENT_F32},
                                      .threads = 1};
    stw_ranks ranks = {.rank = c->rank,
                       .world = c->common->world,
                       .local_rank = c->rank,
                       .local_world = c->common->world,
                       .launcher = "probe"};
    talk t = {.ops = stw_comm_nccl_ops(), .me = c, .out = out};
    if (t.ops == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, "NCCL", "this program is built without it"));
    STW_TRY(backend->open(&config, &t.device, err));
    backend->info(t.device, &info);
    t.used_before = info.used_now;
    const stw_comm_config join = {&ranks, backend, t.device, 0, CALL_S, share, c, NULL};
    STW_TRY(t.ops->open(&join, &t.comm, err));
    STW_TRY(talk_to_peers(&t, err));
    atomic_store(&out->ok, true);
    if (c->common->full) talk_otherwise(&t);
out:
    if (t.comm != NULL) {
        if (status != STW_STATUS_OK) t.ops->abort(t.comm);
        t.ops->close(t.comm);
    }
    backend->close(t.device);
    return status;
}

static void run_rank(child *c) {
    told *mine = &c->common->ranks[c->rank];
    mine->error = (stw_error)STW_ERROR_INIT;
    (void)join_and_talk(c, mine, &mine->error);
}

static void run_count(child *c) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    c->common->count = count;
}

/* Run `work` in n processes of their own until the deadline; false where one did not end well.
 * Only processes that were started here are ended here. @param probe for the progress line; or NULL
 */
static bool run_children(const stw_probe *probe, shared *s, uint32_t n, void (*work)(child *c)) {
    pid_t pids[MAX_GPUS];
    uint32_t started = 0, left = 0;
    bool ok = true;
    double begin = stw_process_now_s();
    for (; started < n; started++) {
        pids[started] = fork();
        if (pids[started] < 0) break;
        if (pids[started] == 0) {
            child c = {s, started, 0};
            work(&c);
            _exit(0);
        }
    }
    left = started;
    bool all = started == n;
    while (left > 0) {
        double now = stw_process_now_s();
        bool late = !all || now > begin + s->deadline_s;
        for (uint32_t i = 0; i < started; i++) {
            int code = 0;
            if (pids[i] <= 0) continue;
            if (late) (void)kill(pids[i], SIGKILL);
            pid_t ended = waitpid(pids[i], &code, late ? 0 : WNOHANG);
            if (ended == 0) continue;
            ok = ok && ended == pids[i] && WIFEXITED(code) && WEXITSTATUS(code) == 0;
            pids[i] = -1;
            left--;
        }
        if (left > 0) (void)usleep(2000);
        double done = (now - begin) / stw_probe_pick(probe, 6, 16);
        if (s->world > 1)
            stw_probe_progress(probe, STW_PROBE_PART_NCCL, done < 1 ? done : 1, "NCCL among GPUs");
    }
    return ok && all;
}

static shared *new_shared(void) {
    void *memory =
        mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

int stw_cuda_probe_count(void) {
    const stw_probe quiet = {.depth = STW_PROBE_QUICK};
    shared *s = new_shared();
    if (s == NULL) return -1;
    s->count = -1;
    s->deadline_s = 60; /* many GPUs without persistence mode take their time */
    bool ok = run_children(&quiet, s, 1, run_count);
    int count = ok ? s->count : -1;
    (void)munmap(s, sizeof *s);
    return count;
}

/* The slowest rank's rate, the largest rank's bytes. @return false and *why where one failed */
static bool gather_told(const shared *s, stw_cluster *out, const stw_error **why) {
    uint64_t comm_bytes = 0, process_bytes = 0;
    double bps = 0, messages = 0;
    *why = NULL;
    for (uint32_t r = 0; r < s->world; r++) {
        const told *t = &s->ranks[r];
        if (!atomic_load(&t->ok)) {
            if (*why == NULL || (*why)->status == STW_STATUS_OK) *why = &t->error;
            continue;
        }
        comm_bytes = stw_max_u64(comm_bytes, t->comm_bytes);
        process_bytes = stw_max_u64(process_bytes, t->process_bytes);
        if (bps <= 0 || t->broadcast_bps < bps) bps = t->broadcast_bps;
        if (messages <= 0 || t->message_bps < messages) messages = t->message_bps;
    }
    if (*why != NULL) return false;
    out->gpu.comm_bytes = comm_bytes;
    out->host.process_comm_bytes = process_bytes; /* all of it: the caller subtracts the base */
    out->nvlink_bps = bps;
    out->messages_bps = messages;
    return true;
}

void stw_cuda_probe_comm(const stw_probe *probe, stw_cluster *out) {
    const stw_error *why = NULL;
    char text[1200] = "a process ended early";
    shared *s = new_shared();
    if (s == NULL) return;
    s->world = out->gpus < MAX_GPUS ? out->gpus : MAX_GPUS;
    s->full = probe->depth == STW_PROBE_FULL;
    s->small = probe->most_bytes < LARGE_BYTES;
    s->deadline_s = stw_probe_pick(probe, 30, 60);
    bool ended_well = run_children(probe, s, s->world, run_rank);
    if (gather_told(s, out, &why)) {
        stw_sample process = stw_sample_make("process", "resident with CUDA and NCCL", "B");
        stw_sample_add(&process, (double)out->host.process_comm_bytes);
        (void)stw_probe_keep(probe, &process);
        unsigned n = atomic_load(&s->ranks[0].n_samples);
        for (unsigned i = 0; i < n && i < TELLS; i++)
            (void)stw_probe_keep(probe, &s->ranks[0].samples[i]);
        if (!ended_well)
            stw_log(STW_LOG_WARN, "a process of the calibration of NCCL did not end by itself; "
                                  "what it had measured is used");
    } else {
        if (why->status != STW_STATUS_OK) stw_error_format(why, text, sizeof text);
        stw_log(STW_LOG_WARN, "NCCL could not be measured, tables stand in for it: %s", text);
    }
    (void)munmap(s, sizeof *s);
}

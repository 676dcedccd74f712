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

#include "backend/comm_ops.h"
#include "backend/cuda/device.h"
#include "core/log.h"

#define MIB (1ull << 20)
#define DEADLINE_S 60.0
#define CALL_S 30.0 /* of one collective */
#define MAX_GPUS 16
#define PIECE_BYTES (32 * MIB)   /* the largest broadcast of a run */
#define LARGE_BYTES (1024 * MIB) /* for the rate of the links */
#define REPEATS 5

/* What one process tells. */
typedef struct told {
    bool ok;
    uint64_t comm_bytes, process_bytes;
    double broadcast_bps;
    stw_error error;
} told;

typedef struct shared {
    uint32_t world;
    int count;           /* of visible GPUs */
    atomic_int id_ready; /* bytes of the unique id that are there */
    unsigned char id[256];
    told ranks[MAX_GPUS];
} shared;

typedef struct child {
    shared *common;
    uint32_t rank;
} child;

/* Rank 0's bytes reach the others through the memory that they share. */
static stw_status share(void *state, void *data, uint32_t bytes, stw_error *err) {
    child *c = state;
    shared *s = c->common;
    if (bytes > sizeof s->id) return stw_fail(err, STW_STATUS_BUG, "probe", "a large id");
    if (c->rank == 0) {
        memcpy(s->id, data, bytes);
        atomic_store(&s->id_ready, (int)bytes);
        return STW_STATUS_OK;
    }
    for (double end = stw_probe_now_s() + CALL_S; atomic_load(&s->id_ready) != (int)bytes;) {
        if (stw_probe_now_s() > end)
            return stw_fail(err, STW_STATUS_DEVICE, "probe", "rank 0 gave no unique id");
        (void)usleep(200);
    }
    memcpy(data, s->id, bytes);
    return STW_STATUS_OK;
}

/* A load and a step's collectives, then the growth they caused; then the rate of large ones. */
static stw_status talk(const stw_comm_ops *ops, void *comm, stw_device *device, uint64_t before,
                       told *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_backend *backend = stw_backend_cuda_find();
    stw_device_info info;
    uint64_t counters[80] = {0};
    unsigned char mine[64] = {0}, all[64 * MAX_GPUS];
    STW_TRY(ops->barrier(comm, err));
    STW_TRY(ops->gather(comm, mine, all, sizeof mine, err));
    STW_TRY(ops->sum_u64(comm, counters, 80, err));
    for (int i = 0; i < REPEATS; i++)
        STW_TRY(ops->broadcast(comm, STW_TIER_GPU, STW_COMM_SCRATCH_BYTES, PIECE_BYTES, 0, err));
    STW_TRY(ops->wait(comm, "broadcasts", err));
    STW_TRY(ops->barrier(comm, err));
    backend->info(device, &info);
    out->comm_bytes = info.used_now > before ? info.used_now - before : 0;
    out->process_bytes = stw_probe_resident_bytes();
    for (int run = 0; run < 2; run++) {
        STW_TRY(ops->barrier(comm, err));
        double start = stw_probe_now_s();
        for (int i = 0; i < REPEATS; i++)
            STW_TRY(
                ops->broadcast(comm, STW_TIER_GPU, STW_COMM_SCRATCH_BYTES, LARGE_BYTES, 0, err));
        STW_TRY(ops->wait(comm, "large broadcasts", err));
        out->broadcast_bps = REPEATS * (double)LARGE_BYTES / (stw_probe_now_s() - start);
    }
    STW_TRY(ops->barrier(comm, err));
out:
    return status;
}

static stw_status join_and_talk(child *c, told *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_backend *backend = stw_backend_cuda_find();
    const stw_comm_ops *ops = stw_comm_nccl_ops();
    stw_device *device = NULL;
    void *comm = NULL;
    stw_device_info info;
    const uint64_t arena = STW_COMM_SCRATCH_BYTES + LARGE_BYTES;
    const stw_device_config config = {.arena_bytes = {[STW_TIER_GPU] = arena},
                                      .capacity_bytes = {[STW_TIER_GPU] = arena},
                                      .local_rank = c->rank,
                                      .n_events = 64,
                                      .threads = 1};
    stw_ranks ranks = {.rank = c->rank,
                       .world = c->common->world,
                       .local_rank = c->rank,
                       .local_world = c->common->world,
                       .launcher = "probe"};
    if (ops == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, "NCCL", "this program is built without it"));
    STW_TRY(backend->open(&config, &device, err));
    backend->info(device, &info);
    const stw_comm_config join = {&ranks, backend, device, 0, CALL_S, share, c};
    STW_TRY(ops->open(&join, &comm, err));
    STW_TRY(talk(ops, comm, device, info.used_now, out, err));
    out->ok = true;
out:
    if (comm != NULL) {
        if (status != STW_STATUS_OK) ops->abort(comm);
        ops->close(comm);
    }
    backend->close(device);
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

/* Run `work` in n processes of their own, at most DEADLINE_S; false where one did not end well.
 * Only processes that were started here are ended here. */
static bool run_children(shared *s, uint32_t n, void (*work)(child *c)) {
    pid_t pids[MAX_GPUS];
    uint32_t started = 0, left = 0;
    bool ok = true;
    for (; started < n; started++) {
        pids[started] = fork();
        if (pids[started] < 0) break;
        if (pids[started] == 0) {
            child c = {s, started};
            work(&c);
            _exit(0);
        }
    }
    left = started;
    ok = started == n;
    for (double end = stw_probe_now_s() + DEADLINE_S; left > 0;) {
        bool late = !ok || stw_probe_now_s() > end;
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
    }
    return ok;
}

static shared *new_shared(void) {
    void *memory =
        mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

int stw_cuda_probe_count(void) {
    shared *s = new_shared();
    if (s == NULL) return -1;
    s->count = -1;
    bool ok = run_children(s, 1, run_count);
    int count = ok ? s->count : -1;
    (void)munmap(s, sizeof *s);
    return count;
}

void stw_cuda_probe_comm(stw_cluster *out) {
    shared *s = new_shared();
    if (s == NULL) return;
    s->world = out->gpus < MAX_GPUS ? out->gpus : MAX_GPUS;
    stw_progress("calibrating NCCL", 0, 1);
    bool ok = run_children(s, s->world, run_rank);
    stw_progress("calibrating NCCL", 1, 1);
    uint64_t comm_bytes = 0, process_bytes = 0;
    double bps = 0;
    char text[1200] = "a process ended early";
    for (uint32_t r = 0; r < s->world; r++) {
        const told *t = &s->ranks[r];
        if (!t->ok && t->error.status != STW_STATUS_OK)
            stw_error_format(&t->error, text, sizeof text);
        ok = ok && t->ok;
        if (t->comm_bytes > comm_bytes) comm_bytes = t->comm_bytes;
        if (t->process_bytes > process_bytes) process_bytes = t->process_bytes;
        if (bps <= 0 || t->broadcast_bps < bps) bps = t->broadcast_bps;
    }
    if (ok) {
        out->gpu.comm_bytes = comm_bytes;
        out->host.process_bytes = process_bytes;
        out->nvlink_bps = bps;
    } else {
        stw_log(STW_LOG_WARN, "NCCL could not be measured, tables stand in for it: %s", text);
    }
    (void)munmap(s, sizeof *s);
}

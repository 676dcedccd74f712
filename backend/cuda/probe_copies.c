/* SPDX-License-Identifier: Apache-2.0 */
/* How fast memory moves: one GPU's link in each direction and both, the start-up cost of a copy,
 * all GPUs at once, alone and beside the CPU. One thread per GPU, as many copies in flight as keep
 * the link busy, over page-locked memory much larger than the CPU's caches that lies near its GPU.
 * A rate is the median of several runs: a plan counts on it for hours.
 *
 * Known gap: one process drives all GPUs, where a run has one process each. */
#include "backend/cuda/probe.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/log.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define PIECE_BYTES (32 * MIB)    /* of the copies that rates are made of: a step's bucket */
#define LARGEST_BYTES (256 * MIB) /* of any copy, where there is room */
/* Per direction between two looks at the clock, one copy at least: one direction may end before the
 * other by two batches. */
#define BATCH_BYTES (64 * MIB)
#define MAX_GPUS STW_CUDA_PROBE_MOST_GPUS

typedef enum way { WAY_UP = 1, WAY_DOWN = 2, WAY_BOTH = 3 } way;

static const char *const way_names[] = {"", "h2d", "d2h", "h2d + d2h"};

/* ---- one GPU's buffers ---- */

/* Page-locks memory near the GPU. @param lock a value is added: bytes per second */
static stw_status lock_memory(stw_cuda_probe_gpu *g, uint32_t cores, stw_sample *lock,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    static const stw_cpus none;
    stw_cpus cpus = none;
    stw_threads *threads = NULL;
    char bus_id[32] = "";
    STW_CUDA_TRY(cudaDeviceGetPCIBusId(bus_id, (int)sizeof bus_id, g->ordinal),
                 "asking for the GPU's address");
    stw_cpus_allowed(&cpus);
    stw_cpus_near_pci(&cpus, bus_id, NULL);
    STW_TRY(stw_threads_new_on(cpus.n < cores ? cpus.n : cores, &cpus, &threads, err));
    double start = stw_process_now_s();
    STW_TRY(stw_cuda_pinned_new_on(&g->host, 2 * g->host_bytes, threads, &cpus, err));
    stw_sample_add(lock, (double)(2 * g->host_bytes) / (stw_process_now_s() - start));
out:
    stw_threads_free(threads);
    return status;
}

static stw_status gpu_open(stw_cuda_probe_gpu *g, int ordinal, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *memory = NULL;
    int value = 0;
    g->ordinal = ordinal;
    STW_CUDA_TRY(cudaSetDevice(ordinal), "choosing a GPU");
    STW_CUDA_TRY(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, ordinal),
                 "counting multiprocessors");
    g->sms = value < 1 ? 1 : (uint32_t)value;
    STW_CUDA_TRY(
        cudaDeviceGetAttribute(&value, cudaDevAttrCanUseHostPointerForRegisteredMem, ordinal),
        "asking how kernels see host memory");
    g->host_on_device = value == 1;
    size_t bytes = (size_t)(2 * STW_CUDA_PROBE_SLOTS * g->largest);
    STW_CUDA_TRY(cudaMalloc(&memory, bytes), "allocating buffers for a calibration");
    g->memory = memory;
    STW_CUDA_TRY(cudaMemset(memory, 0x3A, bytes), "filling buffers for a calibration");
    for (int s = 0; s < 2; s++)
        STW_CUDA_TRY(cudaStreamCreateWithFlags(&g->streams[s], cudaStreamNonBlocking),
                     "making a stream");
    for (int e = 0; e < 4; e++)
        STW_CUDA_TRY(cudaEventCreateWithFlags(&g->batch[e / 2][e % 2],
                                              cudaEventDisableTiming | cudaEventBlockingSync),
                     "making an event");
    STW_CUDA_TRY(cudaEventCreate(&g->start), "making an event");
    STW_CUDA_TRY(cudaEventCreate(&g->stop), "making an event");
    STW_CUDA_TRY(cudaDeviceSynchronize(), "waiting for buffers");
out:
    return status;
}

static void gpu_close(stw_cuda_probe_gpu *g) {
    if (cudaSetDevice(g->ordinal) != cudaSuccess) (void)cudaGetLastError();
    for (int s = 0; s < 2; s++)
        if (g->streams[s] != NULL) (void)cudaStreamSynchronize(g->streams[s]);
    if (g->memory != NULL) (void)cudaFree(g->memory);
    stw_cuda_pinned_free(&g->host);
    for (int s = 0; s < 2; s++)
        if (g->streams[s] != NULL) (void)cudaStreamDestroy(g->streams[s]);
    for (int e = 0; e < 4; e++)
        if (g->batch[e / 2][e % 2] != NULL) (void)cudaEventDestroy(g->batch[e / 2][e % 2]);
    if (g->start != NULL) (void)cudaEventDestroy(g->start);
    if (g->stop != NULL) (void)cudaEventDestroy(g->stop);
    (void)cudaGetLastError();
}

/* ---- copies ---- */

/* Queue copies [first, first + n) of a walk over the host buffers in the directions asked for. */
static stw_status queue_copies(stw_cuda_probe_gpu *g, way ways, uint64_t first, uint64_t n,
                               uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t area = STW_CUDA_PROBE_SLOTS * g->largest;
    for (uint64_t i = first; i < first + n; i++) {
        uint64_t piece = i * bytes % g->host_bytes, slot = i * bytes % area;
        if ((ways & WAY_UP) != 0)
            STW_CUDA_TRY(cudaMemcpyAsync(g->memory + slot, g->host.data + piece, (size_t)bytes,
                                         cudaMemcpyHostToDevice, g->streams[0]),
                         "copying to the GPU");
        if ((ways & WAY_DOWN) != 0)
            STW_CUDA_TRY(cudaMemcpyAsync(g->host.data + g->host_bytes + piece,
                                         g->memory + area + slot, (size_t)bytes,
                                         cudaMemcpyDeviceToHost, g->streams[1]),
                         "copying from the GPU");
    }
out:
    return status;
}

static stw_status wait_copies(stw_cuda_probe_gpu *g, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int s = 0; s < 2; s++)
        STW_CUDA_TRY(cudaStreamSynchronize(g->streams[s]), "waiting for copies");
out:
    return status;
}

/* A batch, once the one before the last is done: two are under way, and neither direction runs
 * further ahead than that. */
static stw_status queue_batch(stw_cuda_probe_gpu *g, way ways, uint64_t k, uint64_t n,
                              uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int s = 0; s < 2 && k >= 2; s++)
        STW_CUDA_TRY(cudaEventSynchronize(g->batch[s][k % 2]), "waiting for copies");
    STW_TRY(queue_copies(g, ways, k * n, n, bytes, err));
    for (int s = 0; s < 2; s++)
        STW_CUDA_TRY(cudaEventRecord(g->batch[s][k % 2], g->streams[s]), "recording an event");
out:
    return status;
}

/* ---- one or several GPUs at once ---- */

/* What they all do. */
typedef struct shape {
    way ways;
    uint64_t bytes;         /* of one copy */
    double seconds;         /* at least; */
    stw_probe_teams *teams; /* or as long as the CPU's AdamW beside them takes; or NULL */
} shape;

typedef struct crowd {
    shape shape;
    atomic_int go; /* 1: start; -1: not all could be started, give up */
    atomic_bool cpu_done;
} crowd;

typedef struct member {
    crowd *crowd;
    stw_cuda_probe_gpu *gpu;
    uint64_t moved; /* bytes, both directions */
    double spent_s;
    stw_status status;
    stw_error error;
} member;

static stw_status run_copies(member *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const shape *what = &m->crowd->shape;
    uint64_t n = stw_max_u64(1, BATCH_BYTES / what->bytes), k = 0;
    double start = stw_process_now_s();
    bool enough = false;
    while (!enough) {
        STW_TRY(queue_batch(m->gpu, what->ways, k++, n, what->bytes, err));
        enough = what->teams != NULL ? atomic_load(&m->crowd->cpu_done)
                                     : stw_process_now_s() - start > what->seconds;
    }
    STW_TRY(wait_copies(m->gpu, err));
    m->spent_s = stw_process_now_s() - start;
    m->moved = (what->ways == WAY_BOTH ? 2 : 1) * k * n * what->bytes;
out:
    return status;
}

static void *run_member(void *arg) {
    member *m = arg;
    m->status = STW_STATUS_OK;
    if (cudaSetDevice(m->gpu->ordinal) != cudaSuccess)
        m->status = stw_fail(&m->error, STW_STATUS_DEVICE, "cudaSetDevice", "choosing GPU %d",
                             m->gpu->ordinal);
    while (atomic_load(&m->crowd->go) == 0) (void)sched_yield();
    if (atomic_load(&m->crowd->go) > 0 && m->status == STW_STATUS_OK)
        m->status = run_copies(m, &m->error);
    return NULL;
}

/* Bytes per second of all GPUs together, all directions. @param pps of the CPU beside them, where
 * the shape has teams */
static stw_status run_crowd(stw_cuda_probe_gpu *gpus, uint32_t n, const shape *what, double *bps,
                            double *pps, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    member members[MAX_GPUS];
    pthread_t threads[MAX_GPUS];
    uint32_t started = 0;
    crowd c = {.shape = *what};
    *bps = 0;
    for (; started < n; started++) {
        members[started] = (member){.crowd = &c, .gpu = &gpus[started], .error = STW_ERROR_INIT};
        if (pthread_create(&threads[started], NULL, run_member, &members[started]) != 0) break;
    }
    if (started < n)
        status = stw_fail(err, STW_STATUS_NO_RESOURCES, "probe", "only %u of %u threads started",
                          started, n);
    atomic_store(&c.go, started < n ? -1 : 1);
    if (what->teams != NULL && status == STW_STATUS_OK)
        *pps = stw_probe_teams_run(what->teams, STW_PROBE_ADAMW, what->seconds);
    atomic_store(&c.cpu_done, true);
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
        if (members[i].status != STW_STATUS_OK && status == STW_STATUS_OK) {
            status = members[i].status;
            if (err != NULL) *err = members[i].error;
        }
        if (members[i].spent_s > 0) *bps += (double)members[i].moved / members[i].spent_s;
    }
    return status;
}

/* Several runs of one kind of copies, kept as a sample. @param bps their median, all directions
 * together */
static stw_status measure_copies(const stw_probe *probe, stw_cuda_probe_gpu *gpus, uint32_t n,
                                 const shape *what, int runs, double *bps, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char detail[64];
    snprintf(detail, sizeof detail, "%llu MiB, %u %s", (unsigned long long)(what->bytes / MIB), n,
             n == 1 ? "GPU" : "GPUs at once");
    stw_sample sample = stw_sample_make(way_names[what->ways], detail, "B/s");
    shape warm_up = *what;
    double rate = 0, unused = 0;
    warm_up.seconds = 0;
    STW_TRY(run_crowd(gpus, n, &warm_up, &rate, &unused, err));
    for (int i = 0; i < runs; i++) {
        STW_TRY(run_crowd(gpus, n, what, &rate, &unused, err));
        stw_sample_add(&sample, rate);
    }
    *bps = stw_probe_keep_rate(probe, &sample);
out:
    return status;
}

/* The three rates of n GPUs, all directions together. */
static stw_status measure_ways(const stw_probe *probe, stw_cuda_probe_gpu *gpus, uint32_t n,
                               stw_probe_part part, double up_down_both[3], stw_error *err) {
    static const way ways[3] = {WAY_UP, WAY_DOWN, WAY_BOTH};
    stw_status status = STW_STATUS_OK;
    const int runs = (int)stw_probe_pick(probe, 3, 5);
    for (int i = 0; i < 3; i++) {
        /* steps depend most on both ways of all GPUs, which vary most from sample to sample */
        const double quick_s = n == 1 ? 0.12 : ways[i] == WAY_BOTH ? 0.6 : 0.2;
        const shape what = {ways[i], PIECE_BYTES, stw_probe_seconds(probe, quick_s, 0.5), NULL};
        stw_probe_progress(probe, part, i / 4.0,
                           n == 1 ? "copies of one GPU" : "copies of all GPUs at once");
        STW_TRY(measure_copies(probe, gpus, n, &what, runs, &up_down_both[i], err));
    }
out:
    return status;
}

/* The same by size of a copy, for people: plans use the size of a bucket. */
static stw_status measure_sizes(const stw_probe *probe, stw_cuda_probe_gpu *gpus, uint32_t n,
                                stw_error *err) {
    static const uint64_t quick[] = {1 * MIB, 256 * MIB};
    static const uint64_t full[] = {1 * MIB,  2 * MIB,  4 * MIB,   8 * MIB,
                                    16 * MIB, 64 * MIB, 128 * MIB, 256 * MIB};
    const bool is_full = probe->depth == STW_PROBE_FULL;
    const uint64_t *sizes = is_full ? full : quick;
    const size_t n_sizes = is_full ? sizeof full / sizeof full[0] : sizeof quick / sizeof quick[0];
    stw_status status = STW_STATUS_OK;
    const uint32_t rounds = n > 1 && is_full ? 2 : 1; /* one GPU, then all */
    for (size_t cell = 0; cell < rounds * n_sizes * 3; cell++) {
        uint64_t bytes = sizes[cell / 3 % n_sizes];
        const shape what = {(way)(cell % 3 + 1), bytes, stw_probe_seconds(probe, 0.06, 0.1), NULL};
        double unused = 0;
        if (bytes > gpus[0].largest || !stw_probe_has_time(probe)) continue;
        stw_probe_progress(probe, STW_PROBE_PART_SIZES,
                           (double)cell / (double)(rounds * n_sizes * 3), "copies by size");
        STW_TRY(measure_copies(probe, gpus, cell < n_sizes * 3 ? 1 : n, &what, 3, &unused, err));
    }
out:
    return status;
}

/* Start-up cost of a copy: what is left of the time of small copies once their bytes are paid for
 * at the rate that larger ones show. */
static stw_status measure_latency(const stw_probe *probe, stw_cuda_probe_gpu *g, double *latency_s,
                                  stw_error *err) {
    static const uint64_t sizes[2] = {64 << 10, 4 * MIB};
    const uint64_t n = 256;
    stw_status status = STW_STATUS_OK;
    stw_sample sample = stw_sample_make("start-up of a copy", "64 KiB against 4 MiB", "s");
    STW_CUDA_TRY(cudaSetDevice(g->ordinal), "choosing a GPU");
    for (int run = 0; run < 6; run++) {
        double each_s[2] = {0, 0};
        for (int i = 0; i < 2; i++) {
            double start = stw_process_now_s();
            STW_TRY(queue_copies(g, WAY_UP, 0, n, sizes[i], err));
            STW_TRY(wait_copies(g, err));
            each_s[i] = (stw_process_now_s() - start) / (double)n;
        }
        double per_byte_s = (each_s[1] - each_s[0]) / (double)(sizes[1] - sizes[0]);
        double cost_s = each_s[0] - per_byte_s * (double)sizes[0];
        if (run > 0) stw_sample_add(&sample, cost_s > 5e-7 ? cost_s : 5e-7);
    }
    *latency_s = stw_probe_keep(probe, &sample);
out:
    return status;
}

/* AdamW on the CPU beside all GPUs' copies: what host memory gives both together. */
static stw_status measure_beside_cpu(const stw_probe *probe, stw_cuda_probe_gpu *gpus, uint32_t n,
                                     stw_cluster *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_probe_teams *teams = calloc(1, sizeof *teams);
    stw_sample both = stw_sample_make("host memory, CPU and GPUs", "AdamW beside copies", "B/s");
    stw_sample cpu = stw_sample_make("cpu_adamw", "beside copies of all GPUs", "param/s");
    stw_sample dma = stw_sample_make("host memory, GPUs", "beside AdamW on the CPU", "B/s");
    stw_probe_progress(probe, STW_PROBE_PART_TOGETHER, 0.8, "CPU and GPUs at once");
    if (teams == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "host", "out of memory"));
    STW_TRY(stw_probe_teams_open(out->host.cores, n, stw_probe_cpu_bytes(probe, out->host.cores, 4),
                                 teams, err));
    const shape what = {WAY_BOTH, PIECE_BYTES, stw_probe_seconds(probe, 0.2, 0.7), teams};
    for (int run = 0; run < (int)stw_probe_pick(probe, 3, 5); run++) {
        double bps = 0, pps = 0;
        STW_TRY(run_crowd(gpus, n, &what, &bps, &pps, err));
        if (!(pps > 0)) continue;
        stw_sample_add(&dma, bps);
        stw_sample_add(&cpu, pps);
        stw_sample_add(&both, bps + STW_PROBE_ADAMW_BYTES * pps);
    }
    out->host.dma_beside_bps = stw_probe_keep_rate(probe, &dma);
    (void)stw_probe_keep(probe, &cpu);
    out->host.bandwidth_bps = stw_probe_keep_rate(probe, &both);
    STW_TRY(stw_cuda_probe_ring(probe, gpus, n, teams, out, err));
out:
    if (teams != NULL) stw_probe_teams_close(teams);
    free(teams);
    return status;
}

/* ---- page-locking ---- */

/* What cudaHostAlloc takes for as much, for comparison. */
static void measure_host_alloc(const stw_probe *probe) {
    uint64_t bytes = stw_min_u64(stw_min_u64(2 * GIB, probe->room_bytes / 4), probe->most_bytes);
    void *memory = NULL;
    if (probe->depth != STW_PROBE_FULL || bytes < MIB) return;
    stw_sample sample = stw_sample_make("page-locking", "cudaHostAlloc", "B/s");
    double start = stw_process_now_s();
    if (cudaHostAlloc(&memory, (size_t)bytes, cudaHostAllocPortable) == cudaSuccess) {
        stw_sample_add(&sample, (double)bytes / (stw_process_now_s() - start));
        (void)cudaFreeHost(memory);
    }
    (void)cudaGetLastError();
    (void)stw_probe_keep(probe, &sample);
}

/* Sizes of the buffers of each of n GPUs: three quarters of the room, the rest is the CPU's. All
 * together are many times what caches hold, which would answer in place of memory. */
static stw_status choose_sizes(const stw_probe *probe, const stw_cluster *out, uint32_t n,
                               stw_cuda_probe_gpu *gpus, stw_error *err) {
    uint64_t room = stw_min_u64(probe->room_bytes / 4 * 3, out->host.page_lock_limit_bytes / 2);
    uint64_t bytes = probe->depth == STW_PROBE_FULL ? 4 * GIB : 2 * GIB / n;
    bytes = stw_min_u64(stw_min_u64(bytes, room / n / 2), probe->most_bytes / 2);
    uint64_t largest = bytes >= LARGEST_BYTES ? LARGEST_BYTES : PIECE_BYTES;
    bytes = bytes / largest * largest;
    if (bytes < PIECE_BYTES)
        return stw_fail(err, STW_STATUS_NO_RESOURCES, "host",
                        "a calibration page-locks at least %llu MiB per GPU, the limits leave no "
                        "room for that",
                        (unsigned long long)(2 * PIECE_BYTES / MIB));
    for (uint32_t i = 0; i < n; i++) {
        gpus[i].host_bytes = bytes;
        gpus[i].largest = largest;
    }
    return STW_STATUS_OK;
}

static stw_status open_all(const stw_probe *probe, stw_cluster *out, uint32_t n,
                           stw_cuda_probe_gpu *gpus, uint32_t *opened, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(choose_sizes(probe, out, n, gpus, err));
    stw_sample lock = stw_sample_make("page-locking", "mapped, touched, registered", "B/s");
    while (*opened < n) {
        stw_cuda_probe_gpu *g = &gpus[*opened];
        stw_probe_progress(probe, STW_PROBE_PART_PAGE_LOCK, (double)*opened / n, "page-locking");
        (*opened)++; /* half open is to be closed too */
        STW_TRY(gpu_open(g, (int)*opened - 1, err));
        STW_TRY(lock_memory(g, out->host.cores, &lock, err));
    }
    out->host.page_lock_bps = stw_probe_keep(probe, &lock);
    measure_host_alloc(probe);
out:
    return status;
}

/* ---- together ---- */

/* What all GPUs reach together varies within seconds: seen again some seconds later, it counts
 * half.
 */
static stw_status measure_again(const stw_probe *probe, stw_cuda_probe_gpu *gpus, uint32_t n,
                                stw_cluster *out, stw_error *err) {
    double later[3],
        *rates[3] = {&out->host.dma_up_bps, &out->host.dma_down_bps, &out->host.dma_bps};
    stw_status status = measure_ways(probe, gpus, n, STW_PROBE_PART_TOGETHER, later, err);
    for (int i = 0; status == STW_STATUS_OK && i < 3; i++) *rates[i] = (*rates[i] + later[i]) / 2;
    return status;
}

static stw_status measure_all(const stw_probe *probe, stw_cuda_probe_gpu *gpus, uint32_t n,
                              stw_cluster *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_error error = STW_ERROR_INIT;
    double one[3], all[3];
    char text[1200];
    STW_TRY(measure_ways(probe, gpus, 1, STW_PROBE_PART_LINKS, one, err));
    out->pcie.h2d_bps = one[0];
    out->pcie.d2h_bps = one[1];
    out->pcie.both_bps = one[2] / 2; /* each direction */
    STW_TRY(measure_latency(probe, &gpus[0], &out->pcie.latency_s, err));
    stw_cuda_probe_work(probe, &gpus[0], out);
    if (n > 1)
        STW_TRY(measure_ways(probe, gpus, n, STW_PROBE_PART_TOGETHER, all, err));
    else
        memcpy(all, one, sizeof all); /* its link is the limit: one figure */
    stw_sample dma = stw_sample_make("host memory, GPUs", "both ways, CPU idle", "B/s");
    stw_sample_add(&dma, all[2]);
    (void)stw_probe_keep(probe, &dma);
    out->host.dma_up_bps = all[0];
    out->host.dma_down_bps = all[1];
    out->host.dma_bps = all[2];
    if (measure_beside_cpu(probe, gpus, n, out, &error) != STW_STATUS_OK) {
        stw_error_format(&error, text, sizeof text);
        stw_log(STW_LOG_WARN, "CPU and GPUs were not measured together: %s", text);
    }
    if (n > 1) STW_TRY(measure_again(probe, gpus, n, out, err));
    STW_TRY(measure_sizes(probe, gpus, n, err));
out:
    return status;
}

stw_status stw_cuda_probe_copies(const stw_probe *probe, stw_cluster *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cuda_probe_gpu gpus[MAX_GPUS];
    uint32_t n = out->gpus < MAX_GPUS ? out->gpus : MAX_GPUS, opened = 0;
    memset(gpus, 0, sizeof gpus);
    STW_TRY(open_all(probe, out, n, gpus, &opened, err));
    STW_TRY(measure_all(probe, gpus, n, out, err));
out:
    for (uint32_t i = 0; i < opened; i++) gpu_close(&gpus[i]);
    return status;
}

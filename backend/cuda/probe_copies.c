/* SPDX-License-Identifier: Apache-2.0 */
/* How fast memory moves: one GPU's link in each direction and both, the start-up cost of a copy,
 * the GPU's own memory, and all GPUs at once, alone and beside the CPU. One thread per GPU; buffers
 * of page-locked memory larger than the CPU's caches; the best of a few runs, since what disturbs a
 * run makes it slower. */
#include "backend/cuda/probe.h"

#include <sched.h>
#include <string.h>

#include "backend/cuda/device.h"
#include "core/checked.h"
#include "core/log.h"

#define MIB (1ull << 20)
#define PIECE_BYTES (32 * MIB) /* of one copy: the size of a step's bucket */
#define HOST_PIECES 32         /* 1 GiB per direction, less where memory is short */
#define SLOTS 4                /* of GPU memory per direction, used in turn */
#define RUN_S 0.35             /* of one measurement */
#define RUNS 2
#define EXPECTED_BPS 50e9 /* how many copies make a run */
#define HBM_BYTES (1024 * MIB)
#define MAX_GPUS 16

typedef enum way { WAY_UP = 1, WAY_DOWN = 2, WAY_BOTH = 3 } way;

/* One GPU's buffers and streams. */
typedef struct gpu {
    int ordinal;
    uint32_t host_pieces;  /* per direction */
    stw_cuda_pinned host;  /* up pieces, then down pieces */
    unsigned char *memory; /* SLOTS pieces up, SLOTS down */
    cudaStream_t streams[2];
    cudaEvent_t start, stop;
} gpu;

static stw_status gpu_open(gpu *g, int ordinal, uint32_t host_pieces, stw_threads *threads,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *memory = NULL;
    memset(g, 0, sizeof *g);
    g->ordinal = ordinal;
    g->host_pieces = host_pieces;
    STW_CUDA_TRY(cudaSetDevice(ordinal), "choosing a GPU");
    STW_CUDA_TRY(cudaMalloc(&memory, (size_t)(2 * SLOTS * PIECE_BYTES)),
                 "allocating buffers for a calibration");
    g->memory = memory;
    for (int s = 0; s < 2; s++)
        STW_CUDA_TRY(cudaStreamCreateWithFlags(&g->streams[s], cudaStreamNonBlocking),
                     "making a stream");
    STW_CUDA_TRY(cudaEventCreate(&g->start), "making an event");
    STW_CUDA_TRY(cudaEventCreate(&g->stop), "making an event");
    STW_TRY(stw_cuda_pinned_new(&g->host, 2 * host_pieces * PIECE_BYTES, threads, err));
out:
    return status;
}

static void gpu_close(gpu *g) {
    if (cudaSetDevice(g->ordinal) != cudaSuccess) (void)cudaGetLastError();
    if (g->memory != NULL) (void)cudaFree(g->memory);
    stw_cuda_pinned_free(&g->host);
    for (int s = 0; s < 2; s++)
        if (g->streams[s] != NULL) (void)cudaStreamDestroy(g->streams[s]);
    if (g->start != NULL) (void)cudaEventDestroy(g->start);
    if (g->stop != NULL) (void)cudaEventDestroy(g->stop);
    (void)cudaGetLastError();
}

/* Queue n copies in each of the directions asked for, in turns, and wait for them. */
static stw_status copies(gpu *g, way ways, uint64_t n, uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unsigned char *down = g->host.data + g->host_pieces * PIECE_BYTES;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t piece = i % g->host_pieces * PIECE_BYTES, slot = i % SLOTS * PIECE_BYTES;
        if ((ways & WAY_UP) != 0)
            STW_CUDA_TRY(cudaMemcpyAsync(g->memory + slot, g->host.data + piece, bytes,
                                         cudaMemcpyHostToDevice, g->streams[0]),
                         "copying to the GPU");
        if ((ways & WAY_DOWN) != 0)
            STW_CUDA_TRY(cudaMemcpyAsync(down + piece, g->memory + SLOTS * PIECE_BYTES + slot,
                                         bytes, cudaMemcpyDeviceToHost, g->streams[1]),
                         "copying from the GPU");
    }
    for (int s = 0; s < 2; s++)
        STW_CUDA_TRY(cudaStreamSynchronize(g->streams[s]), "waiting for copies");
out:
    return status;
}

/* Bytes per second of each direction: both take the time of the slower one. */
static stw_status measure_link(gpu *g, way ways, double *bps, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t n = (uint64_t)(RUN_S * EXPECTED_BPS / (double)PIECE_BYTES);
    *bps = 0;
    STW_TRY(copies(g, ways, 4, PIECE_BYTES, err));
    for (int run = 0; run < RUNS; run++) {
        double start = stw_probe_now_s();
        STW_TRY(copies(g, ways, n, PIECE_BYTES, err));
        double rate = (double)(n * PIECE_BYTES) / (stw_probe_now_s() - start);
        if (rate > *bps) *bps = rate;
    }
out:
    return status;
}

/* Start-up cost of a copy: what is left of the time of small copies once their bytes are paid for
 * at the rate that larger ones show. */
static stw_status measure_latency(gpu *g, double *latency_s, stw_error *err) {
    static const uint64_t sizes[2] = {64 << 10, 4 * MIB};
    const uint64_t n = 256;
    double each_s[2] = {0, 0};
    stw_status status = STW_STATUS_OK;
    for (int i = 0; i < 2; i++) {
        for (int run = 0; run < 3; run++) {
            double start = stw_probe_now_s();
            STW_TRY(copies(g, WAY_UP, n, sizes[i], err));
            double spent = (stw_probe_now_s() - start) / (double)n;
            if (run == 0 || spent < each_s[i]) each_s[i] = spent;
        }
    }
    double per_byte_s = (each_s[1] - each_s[0]) / (double)(sizes[1] - sizes[0]);
    double cost = each_s[0] - per_byte_s * (double)sizes[0];
    *latency_s = cost > 5e-7 ? cost : 5e-7;
out:
    return status;
}

/* Read and written bytes per second of a copy inside the GPU. */
static stw_status measure_hbm(gpu *g, double *bps, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *memory = NULL;
    const int n = 20;
    float milliseconds = 0;
    *bps = 0;
    STW_CUDA_TRY(cudaMalloc(&memory, (size_t)(2 * HBM_BYTES)), "allocating buffers");
    unsigned char *at = memory;
    for (int run = 0; run < 3; run++) {
        STW_CUDA_TRY(cudaEventRecord(g->start, g->streams[0]), "recording an event");
        for (int i = 0; i < n; i++)
            STW_CUDA_TRY(cudaMemcpyAsync(at, at + HBM_BYTES, (size_t)HBM_BYTES,
                                         cudaMemcpyDeviceToDevice, g->streams[0]),
                         "copying inside the GPU");
        STW_CUDA_TRY(cudaEventRecord(g->stop, g->streams[0]), "recording an event");
        STW_CUDA_TRY(cudaEventSynchronize(g->stop), "waiting for copies");
        STW_CUDA_TRY(cudaEventElapsedTime(&milliseconds, g->start, g->stop), "timing copies");
        double rate = 2.0 * n * (double)HBM_BYTES / (1e-3 * (double)milliseconds);
        if (milliseconds > 0 && rate > *bps) *bps = rate;
    }
out:
    if (memory != NULL) (void)cudaFree(memory);
    return status;
}

/* ---- all GPUs at once ---- */

typedef struct crowd {
    atomic_int go;        /* 1: start; -1: not all could be started, give up */
    atomic_bool cpu_done; /* together with the CPU: copy until it is done */
    bool until_cpu_done;
    uint64_t n; /* copies per direction otherwise */
} crowd;

typedef struct member {
    crowd *crowd;
    gpu *gpu;
    uint64_t moved; /* bytes, both directions */
    double spent_s;
    stw_status status;
    stw_error error;
} member;

static void *run_member(void *arg) {
    member *m = arg;
    gpu *g = m->gpu;
    m->status = STW_STATUS_OK;
    if (cudaSetDevice(g->ordinal) != cudaSuccess)
        m->status =
            stw_fail(&m->error, STW_STATUS_DEVICE, "cudaSetDevice", "choosing GPU %d", g->ordinal);
    while (atomic_load(&m->crowd->go) == 0) (void)sched_yield();
    if (atomic_load(&m->crowd->go) < 0) return NULL;
    double start = stw_probe_now_s();
    uint64_t batch = m->crowd->until_cpu_done ? 8 : m->crowd->n;
    while (m->status == STW_STATUS_OK) {
        m->status = copies(g, WAY_BOTH, batch, PIECE_BYTES, &m->error);
        m->moved += 2 * batch * PIECE_BYTES;
        if (!m->crowd->until_cpu_done || atomic_load(&m->crowd->cpu_done)) break;
    }
    m->spent_s = stw_probe_now_s() - start;
    return NULL;
}

/* Copies by the CPU's threads, which run beside the GPUs'. */
typedef struct cpu_part {
    stw_threads *threads;
    unsigned char *to, *from;
    uint64_t bytes; /* of each */
} cpu_part;

/* Bytes per second of all GPUs together, both ways; with `cpu` (or NULL) its bytes count too. */
static stw_status measure_crowd(gpu *gpus, uint32_t n_gpus, const cpu_part *cpu, double *bps,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    member members[MAX_GPUS];
    pthread_t threads[MAX_GPUS];
    uint32_t started = 0;
    double sum_bps = 0;
    crowd c = {.until_cpu_done = cpu != NULL,
               .n = (uint64_t)(RUN_S * EXPECTED_BPS / (double)PIECE_BYTES)};
    for (; started < n_gpus; started++) {
        members[started] = (member){.crowd = &c, .gpu = &gpus[started], .error = STW_ERROR_INIT};
        if (pthread_create(&threads[started], NULL, run_member, &members[started]) != 0) break;
    }
    if (started < n_gpus)
        status = stw_fail(err, STW_STATUS_NO_RESOURCES, "probe", "only %u of %u threads started",
                          started, n_gpus);
    atomic_store(&c.go, started < n_gpus ? -1 : 1);
    if (cpu != NULL && status == STW_STATUS_OK)
        sum_bps += stw_probe_copy_bps(cpu->threads, cpu->to, cpu->from, cpu->bytes, 0.6);
    atomic_store(&c.cpu_done, true);
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
        if (members[i].status != STW_STATUS_OK && status == STW_STATUS_OK) {
            status = members[i].status;
            if (err != NULL && err->status == STW_STATUS_OK) *err = members[i].error;
        }
        if (members[i].spent_s > 0) sum_bps += (double)members[i].moved / members[i].spent_s;
    }
    if (status == STW_STATUS_OK) *bps = sum_bps;
    return status;
}

/* ---- together ---- */

#define TICKS 6

static stw_status measure_one(gpu *g, stw_cluster *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_CUDA_TRY(cudaSetDevice(g->ordinal), "choosing a GPU");
    STW_TRY(measure_link(g, WAY_UP, &out->pcie.h2d_bps, err));
    stw_progress("calibrating the GPU", 1, TICKS);
    STW_TRY(measure_link(g, WAY_DOWN, &out->pcie.d2h_bps, err));
    stw_progress("calibrating the GPU", 2, TICKS);
    STW_TRY(measure_link(g, WAY_BOTH, &out->pcie.both_bps, err));
    stw_progress("calibrating the GPU", 3, TICKS);
    STW_TRY(measure_latency(g, &out->pcie.latency_s, err));
    STW_TRY(measure_hbm(g, &out->gpu.hbm_bps, err));
    stw_progress("calibrating the GPU", 4, TICKS);
out:
    return status;
}

stw_status stw_cuda_probe_copies(stw_cluster *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    gpu gpus[MAX_GPUS] = {{0}};
    stw_threads *threads = NULL;
    cpu_part cpu = {NULL, NULL, NULL, 0};
    uint32_t n = out->gpus < MAX_GPUS ? out->gpus : MAX_GPUS, opened = 0;
    uint64_t room = stw_min_u64(out->host.limit_bytes, out->host.page_lock_limit_bytes) / 8 / n;
    uint64_t pieces = stw_min_u64(room / (2 * PIECE_BYTES), HOST_PIECES);
    stw_progress("calibrating the GPU", 0, TICKS);
    if (pieces < 2)
        STW_TRY(stw_fail(err, STW_STATUS_NO_RESOURCES, "host",
                         "a calibration page-locks at least %llu MiB per GPU, the limits leave no "
                         "room for that",
                         (unsigned long long)(4 * PIECE_BYTES / MIB)));
    STW_TRY(stw_threads_new(out->host.cores, &threads, err));
    for (; opened < n; opened++) {
        status = gpu_open(&gpus[opened], (int)opened, (uint32_t)pieces, threads, err);
        if (status != STW_STATUS_OK) {
            opened++; /* half open is to be closed too */
            goto out;
        }
    }
    STW_TRY(measure_one(&gpus[0], out, err));
    STW_TRY(measure_crowd(gpus, n, NULL, &out->host.dma_bps, err));
    if (n == 1) out->host.dma_bps = 2 * out->pcie.both_bps; /* its link is the limit: one figure */
    stw_progress("calibrating the GPU", 5, TICKS);
    cpu.threads = threads;
    cpu.bytes = stw_min_u64(room, 512 * MIB) / (2 * MIB) * (2 * MIB);
    cpu.to = stw_probe_map(threads, cpu.bytes);
    cpu.from = stw_probe_map(threads, cpu.bytes);
    if (cpu.to != NULL && cpu.from != NULL)
        STW_TRY(measure_crowd(gpus, n, &cpu, &out->host.bandwidth_bps, err));
    stw_progress("calibrating the GPU", TICKS, TICKS);
out:
    stw_probe_unmap(cpu.to, cpu.bytes);
    stw_probe_unmap(cpu.from, cpu.bytes);
    for (uint32_t i = 0; i < opened; i++) gpu_close(&gpus[i]);
    stw_threads_free(threads);
    return status;
}

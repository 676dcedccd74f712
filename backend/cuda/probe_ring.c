/* SPDX-License-Identifier: Apache-2.0 */
/* CPU updates in a ring, as a step does them: while the CPU works on one bucket, the GPU's copies
 * bring gradients and parameters of the next ones and take parameters of those before. Whether the
 * CPU's caches hold what the copies write depends on the machine, so it is measured. */
#include <string.h>

#include "backend/cuda/probe.h"
#include "core/checked.h"
#include "core/log.h"

#define MAX_GPUS STW_CUDA_PROBE_MOST_GPUS
/* A step takes about so long, and ends with its slowest rank. Which rank is slow changes from
 * moment to moment: shorter samples have a slower slowest one. */
#define STEP_S 0.4

/* The ring of one rank. */
typedef struct rank_ring {
    stw_cuda_probe_gpu *gpu;
    uint64_t bytes;                           /* of a bucket's parameters */
    bool is_fetched;                          /* by a kernel, not by a copy engine, as in runs */
    cudaEvent_t filled[STW_PROBE_RING_SLOTS]; /* a bucket is in its slot */
    cudaEvent_t taken[STW_PROBE_RING_SLOTS];  /* its parameters are back on the GPU */
    bool failed;
} rank_ring;

static float *slot_of(const rank_ring *r, uint32_t slot) {
    return (float *)(void *)(r->gpu->host.data + 2 * slot * r->bytes);
}

/* The next bucket into a slot. */
static cudaError_t fill(rank_ring *r, uint32_t slot) {
    cudaStream_t down = r->gpu->streams[1];
    const unsigned char *there = r->gpu->memory + 2 * slot * r->bytes;
    cudaError_t code =
        cudaMemcpyAsync(slot_of(r, slot), there, (size_t)r->bytes, cudaMemcpyDeviceToHost, down);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync((unsigned char *)slot_of(r, slot) + r->bytes, there + r->bytes,
                               (size_t)r->bytes, cudaMemcpyDeviceToHost, down);
    return code == cudaSuccess ? cudaEventRecord(r->filled[slot], down) : code;
}

static float *begin_bucket(void *user, uint32_t team, uint32_t slot) {
    rank_ring *r = &((rank_ring *)user)[team];
    if (cudaSetDevice(r->gpu->ordinal) != cudaSuccess ||
        cudaEventSynchronize(r->filled[slot]) != cudaSuccess)
        r->failed = true;
    return slot_of(r, slot);
}

/* Parameters of a slot back to the GPU. */
static cudaError_t take(rank_ring *r, uint32_t slot, unsigned char *there, cudaStream_t up) {
    if (r->is_fetched) return stw_cuda_fetch(up, there, slot_of(r, slot), r->bytes);
    return cudaMemcpyAsync(there, slot_of(r, slot), (size_t)r->bytes, cudaMemcpyHostToDevice, up);
}

static void end_bucket(void *user, uint32_t team, uint32_t slot) {
    rank_ring *r = &((rank_ring *)user)[team];
    cudaStream_t up = r->gpu->streams[0];
    unsigned char *there = r->gpu->memory + 2 * slot * r->bytes;
    bool ok = take(r, slot, there, up) == cudaSuccess &&
              cudaEventRecord(r->taken[slot], up) == cudaSuccess &&
              cudaStreamWaitEvent(r->gpu->streams[1], r->taken[slot], 0) == cudaSuccess &&
              fill(r, slot) == cudaSuccess;
    if (!ok) r->failed = true;
}

static stw_status open_ring(rank_ring *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_CUDA_TRY(cudaSetDevice(r->gpu->ordinal), "choosing a GPU");
    for (uint32_t s = 0; s < STW_PROBE_RING_SLOTS; s++) {
        STW_CUDA_TRY(cudaEventCreateWithFlags(&r->filled[s], cudaEventDisableTiming),
                     "making an event");
        STW_CUDA_TRY(cudaEventCreateWithFlags(&r->taken[s], cudaEventDisableTiming),
                     "making an event");
    }
    STW_CUDA_TRY(cudaMemset(r->gpu->memory, 0x3A, (size_t)(2 * STW_PROBE_RING_SLOTS * r->bytes)),
                 "filling buffers for a calibration");
    STW_CUDA_TRY(cudaDeviceSynchronize(), "waiting for buffers");
    for (uint32_t s = 0; s < STW_PROBE_RING_SLOTS; s++)
        STW_CUDA_TRY(fill(r, s), "copying from the GPU");
out:
    return status;
}

static void close_ring(rank_ring *r) {
    (void)cudaSetDevice(r->gpu->ordinal);
    (void)cudaDeviceSynchronize();
    for (uint32_t s = 0; s < STW_PROBE_RING_SLOTS; s++) {
        if (r->filled[s] != NULL) (void)cudaEventDestroy(r->filled[s]);
        if (r->taken[s] != NULL) (void)cudaEventDestroy(r->taken[s]);
    }
    (void)cudaGetLastError();
}

stw_status stw_cuda_probe_ring(const stw_probe *probe, stw_cuda_probe_gpu *gpus, uint32_t n,
                               stw_probe_teams *teams, stw_cluster *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    rank_ring rings[MAX_GPUS];
    const stw_probe_ring ring = {rings, begin_bucket, end_bucket};
    stw_sample sample = stw_sample_make("cpu_adamw_ring", "beside the ring's copies", "param/s");
    uint64_t bucket = stw_probe_ring_bucket(out, teams), bytes = bucket * sizeof(float);
    memset(rings, 0, sizeof rings);
    for (uint32_t i = 0; i < n; i++) {
        rings[i] = (rank_ring){.gpu = &gpus[i], .bytes = bytes};
        rings[i].is_fetched = stw_cuda_fetches(n) && gpus[i].host_on_device;
    }
    uint64_t room = stw_min_u64(2 * gpus[0].host_bytes, 2 * STW_CUDA_PROBE_SLOTS * gpus[0].largest);
    if (teams->n != n || bucket == 0 || 2 * STW_PROBE_RING_SLOTS * bytes > room) return status;
    for (uint32_t i = 0; i < n; i++) STW_TRY(open_ring(&rings[i], err));
    teams->bucket = bucket;
    teams->ring = &ring;
    for (int run = 0; run < (int)stw_probe_pick(probe, 5, 7); run++) {
        double pps =
            stw_probe_teams_run(teams, STW_PROBE_RING, stw_probe_seconds(probe, STEP_S, STEP_S));
        if (pps > 0) stw_sample_add(&sample, pps);
    }
    for (uint32_t i = 0; i < n; i++)
        if (rings[i].failed)
            STW_TRY(stw_fail(err, STW_STATUS_DEVICE, "ring", "copies of GPU %u failed", i));
    if (sample.n > 0) out->cpu_adamw_ring_pps = stw_probe_keep_rate(probe, &sample);
out:
    teams->ring = NULL;
    for (uint32_t i = 0; i < n; i++) close_ring(&rings[i]);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What one GPU's kernels do: copies inside its memory, the exact norm, AdamW with everything in GPU
 * memory, and AdamW whose moments stay in page-locked host memory. Each is timed by events around
 * several launches, several times. */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/boxes.h"
#include "backend/cuda/probe.h"
#include "core/checked.h"
#include "core/log.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define BUFFER_BYTES (2 * GIB) /* of GPU memory: far beyond its caches */
#define SMALL_BYTES (64 * MIB) /* in tests */
#define PARAM_BYTES 16         /* fp32 parameter, gradient and two moments */
#define MOST_PARAMS (64 * MIB) /* of a launch: a resident bucket */
#define MOMENT_BYTES 8         /* both moments of a parameter, each way */

typedef struct work {
    stw_cuda_probe_gpu *gpu;
    unsigned char *memory; /* BUFFER_BYTES of GPU memory, floats of about 7e-4 */
    uint64_t bytes;
    stw_norm_bins *bins; /* of GPU memory */
    stw_box_copy *box;   /* in GPU memory: half of each row of the first half, to the second one */
    uint32_t box_tiles;
    stw_span *span;    /* of GPU memory: the only one, of all elements */
    uint64_t direct_n; /* parameters whose moments fit in the page-locked buffers */
} work;

#define ROW_BYTES 24576u /* of a row-parallel layer, 12,288 elements of bf16, in two slices */

static stw_box_copy half_rows(uint64_t bytes) {
    return (stw_box_copy){.from_stride = {0, 0, ROW_BYTES, 2},
                          .to_stride = {0, 0, ROW_BYTES / 2, 2},
                          .count = {1, 1, (uint32_t)(bytes / ROW_BYTES), ROW_BYTES / 4},
                          .from_base = STW_BOX_FROM_BUFFER,
                          .to_base = STW_BOX_TO_BUFFER,
                          .from_type = STW_BOX_BF16,
                          .to_type = STW_BOX_BF16};
}

static stw_status work_open(const stw_probe *probe, work *w, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *memory = NULL;
    w->bytes = probe->most_bytes < BUFFER_BYTES ? SMALL_BYTES : BUFFER_BYTES;
    STW_CUDA_TRY(cudaSetDevice(w->gpu->ordinal), "choosing a GPU");
    STW_CUDA_TRY(cudaMalloc(&memory, (size_t)w->bytes), "allocating buffers for a calibration");
    w->memory = memory;
    STW_CUDA_TRY(cudaMalloc(&memory, sizeof *w->bins), "allocating small buffers");
    w->bins = memory;
    STW_CUDA_TRY(cudaMalloc(&memory, sizeof *w->span), "allocating small buffers");
    w->span = memory;
    STW_CUDA_TRY(cudaMalloc(&memory, sizeof *w->box), "allocating small buffers");
    w->box = memory;
    const stw_box_copy box = half_rows(w->bytes / 2);
    w->box_tiles = stw_box_tiles(&box);
    STW_CUDA_TRY(cudaMemcpy(w->box, &box, sizeof box, cudaMemcpyHostToDevice),
                 "copying a table to the GPU");
    const stw_span all = {.first = 0, .n = w->bytes};
    STW_CUDA_TRY(cudaMemset(w->memory, 0x3A, (size_t)w->bytes), "filling buffers");
    STW_CUDA_TRY(cudaMemset(w->bins, 0, sizeof *w->bins), "zeroing small buffers");
    STW_CUDA_TRY(cudaMemcpy(w->span, &all, sizeof all, cudaMemcpyHostToDevice),
                 "copying a table to the GPU");
    /* Parameters and gradients share the buffer, both moments the page-locked memory. */
    w->direct_n = stw_min_u64(w->bytes / 8, 2 * w->gpu->host_bytes / MOMENT_BYTES);
    STW_CUDA_TRY(cudaDeviceSynchronize(), "waiting for buffers");
out:
    return status;
}

static void work_close(work *w) {
    if (w->memory != NULL) (void)cudaFree(w->memory);
    if (w->bins != NULL) (void)cudaFree(w->bins);
    if (w->span != NULL) (void)cudaFree(w->span);
    if (w->box != NULL) (void)cudaFree(w->box);
    (void)cudaGetLastError();
}

/* ---- one launch of each ---- */

static cudaError_t launch_copy(const work *w) {
    return cudaMemcpyAsync(w->memory, w->memory + w->bytes / 2, (size_t)(w->bytes / 2),
                           cudaMemcpyDeviceToDevice, w->gpu->streams[0]);
}

static cudaError_t launch_boxes(const work *w) {
    const stw_cuda_launch launch = {w->gpu->streams[0], w->gpu->sms};
    const stw_cuda_boxes boxes = {.copies = w->box,
                                  .n = 1,
                                  .tiles = w->box_tiles,
                                  .buffers = {.from = w->memory, .to = w->memory + w->bytes / 2}};
    return stw_cuda_boxes_run(launch, &boxes);
}

static cudaError_t launch_norm(const work *w) {
    const stw_cuda_launch launch = {w->gpu->streams[0], w->gpu->sms};
    return stw_cuda_norm_add(launch, STW_ELEMENT_F32, w->memory, w->bytes / sizeof(float), w->bins);
}

static cudaError_t launch_norm_bf16(const work *w) {
    const stw_cuda_launch launch = {w->gpu->streams[0], w->gpu->sms};
    return stw_cuda_norm_add(launch, STW_ELEMENT_BF16, w->memory, w->bytes / 2, w->bins);
}

static cudaError_t launch_adamw(const work *w, uint64_t n, void *exp_avg, void *exp_avg_sq,
                                bool direct) {
    static const stw_element_types types = {STW_ELEMENT_F32, STW_ELEMENT_F32, STW_ELEMENT_NONE,
                                            STW_ELEMENT_F32, STW_ELEMENT_F32};
    const stw_cuda_launch launch = {w->gpu->streams[0], w->gpu->sms};
    const stw_adamw adamw = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.01, 1, 0);
    const stw_cuda_bucket bucket = {.n = n,
                                    .spans = w->span,
                                    .n_spans = direct ? 1 : 0, /* resident buckets have one group */
                                    .direct = direct,
                                    .params = w->memory,
                                    .grads = w->memory + n * sizeof(float),
                                    .exp_avg = exp_avg,
                                    .exp_avg_sq = exp_avg_sq};
    return stw_cuda_adamw(launch, &adamw, NULL, &types, &bucket);
}

static cudaError_t launch_resident(const work *w) {
    uint64_t n = stw_min_u64(w->bytes / PARAM_BYTES, MOST_PARAMS);
    unsigned char *moments = w->memory + 2 * n * sizeof(float);
    return launch_adamw(w, n, moments, moments + n * sizeof(float), false);
}

static cudaError_t launch_direct(const work *w) {
    unsigned char *moments = w->gpu->host.data;
    return launch_adamw(w, w->direct_n, moments, moments + w->direct_n * sizeof(float), true);
}

/* ---- timing ---- */

/* Something to launch and time. */
typedef struct job {
    cudaError_t (*launch)(const work *w);
    const char *purpose;
    double units; /* of one launch */
    int launches; /* timed together */
    int runs;     /* values to take */
} job;

/* Values of units per second, after one launch that does not count. */
static stw_status measure(const work *w, const job *j, stw_sample *sample, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cuda_probe_gpu *g = w->gpu;
    float milliseconds = 0;
    STW_CUDA_TRY(j->launch(w), j->purpose);
    for (int run = 0; run < j->runs; run++) {
        STW_CUDA_TRY(cudaEventRecord(g->start, g->streams[0]), "recording an event");
        for (int i = 0; i < j->launches; i++) STW_CUDA_TRY(j->launch(w), j->purpose);
        STW_CUDA_TRY(cudaEventRecord(g->stop, g->streams[0]), "recording an event");
        STW_CUDA_TRY(cudaEventSynchronize(g->stop), j->purpose);
        STW_CUDA_TRY(cudaEventElapsedTime(&milliseconds, g->start, g->stop), "reading a time");
        if (milliseconds > 0)
            stw_sample_add(sample, j->launches * j->units / (1e-3 * (double)milliseconds));
    }
out:
    return status;
}

static stw_status measure_all(const stw_probe *probe, const work *w, stw_cluster *out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const int runs = (int)stw_probe_pick(probe, 5, 9);
    double bps = 0;
    stw_sample copy = stw_sample_make("hbm", "copy, read and written", "B/s");
    STW_TRY(measure(w, &(job){launch_copy, "copying inside the GPU", (double)w->bytes, 20, runs},
                    &copy, err));
    if ((bps = stw_probe_keep(probe, &copy)) > 0) out->gpu.hbm_bps = bps;

    stw_sample boxes = stw_sample_make("boxes", "half rows of 24 KiB, read and written", "B/s");
    const double half = (double)(w->bytes / 2 / ROW_BYTES * ROW_BYTES);
    STW_TRY(measure(w, &(job){launch_boxes, "copying slices inside the GPU", half, 20, runs},
                    &boxes, err));
    out->gpu.boxes_bps = stw_probe_keep(probe, &boxes);

    stw_sample norm = stw_sample_make("gpu norm", "fp32 gradients read", "B/s");
    STW_TRY(
        measure(w, &(job){launch_norm, "the exact norm", (double)w->bytes, 20, runs}, &norm, err));
    out->gpu.norm_bps = stw_probe_keep(probe, &norm);

    stw_sample norm_bf16 = stw_sample_make("gpu norm", "bf16 gradients read", "B/s");
    STW_TRY(measure(w, &(job){launch_norm_bf16, "the exact norm", (double)w->bytes, 20, runs},
                    &norm_bf16, err));
    out->gpu.norm_bf16_bps = stw_probe_keep(probe, &norm_bf16);

    stw_sample resident = stw_sample_make("resident AdamW", "fp32, 28 B per parameter", "B/s");
    double n = (double)stw_min_u64(w->bytes / PARAM_BYTES, MOST_PARAMS);
    STW_TRY(measure(w,
                    &(job){launch_resident, "resident AdamW", STW_PROBE_ADAMW_BYTES * n, 20, runs},
                    &resident, err));
    out->gpu.update_bps = stw_probe_keep(probe, &resident);

    stw_sample direct =
        stw_sample_make("direct AdamW", "moments in host memory, each way, 1 GPU", "B/s");
    if (w->gpu->host_on_device) {
        const int launches = probe->depth == STW_PROBE_FULL ? 4 : 1;
        STW_TRY(measure(w,
                        &(job){launch_direct, "AdamW on host memory",
                               MOMENT_BYTES * (double)w->direct_n, launches, runs},
                        &direct, err));
        out->pcie.direct_bps = stw_probe_keep(probe, &direct);
    }
out:
    return status;
}

void stw_cuda_probe_work(const stw_probe *probe, stw_cuda_probe_gpu *gpu, stw_cluster *out) {
    stw_status status = STW_STATUS_OK;
    stw_error error = STW_ERROR_INIT, *err = &error;
    work w = {.gpu = gpu};
    char text[1200];
    stw_probe_progress(probe, STW_PROBE_PART_GPU_WORK, 0, "kernels on the GPU");
    STW_TRY(work_open(probe, &w, err));
    STW_TRY(measure_all(probe, &w, out, err));
out:
    (void)cudaStreamSynchronize(gpu->streams[0]); /* nothing may still use what is freed */
    if (status != STW_STATUS_OK) {
        stw_error_format(&error, text, sizeof text);
        stw_log(STW_LOG_WARN, "not all of the GPU's kernels were measured: %s", text);
    }
    work_close(&w);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the CUDA backend's arenas: conversion of load pieces, seeded gradients, zeros, digests.
 * But for conversion all of them wait for the streams that carry a step's work, and block. */
#include "backend/cuda/device.h"
#include "backend/host/kernels.h"
#include "core/checked.h"

/* ---- conversion ---- */

static bool source_of(stw_dtype dtype, stw_cuda_source *out) {
    switch (dtype) {
    case STW_DTYPE_F64:
        *out = STW_CUDA_SOURCE_F64;
        return true;
    case STW_DTYPE_F32:
        *out = STW_CUDA_SOURCE_F32;
        return true;
    case STW_DTYPE_F16:
        *out = STW_CUDA_SOURCE_F16;
        return true;
    case STW_DTYPE_BF16:
        *out = STW_CUDA_SOURCE_BF16;
        return true;
    case STW_DTYPE_F8_E4M3:
        *out = STW_CUDA_SOURCE_F8_E4M3;
        return true;
    case STW_DTYPE_F8_E5M2:
        *out = STW_CUDA_SOURCE_F8_E5M2;
        return true;
    default:
        return false;
    }
}

/* A kernel reads and writes page-locked host memory itself where one side lies there. */
static stw_status convert_on_gpu(stw_device *device, stw_stream stream, float *target,
                                 const void *source, stw_cuda_source kind, uint64_t n,
                                 bool touches_host, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool blocks = !stw_stream_is_gpu(stream);
    stw_cuda_launch launch = {blocks ? device->side : device->streams[stream], device->sms};
    if (touches_host && !device->host_on_device)
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, "convert",
                         "this GPU does not reach registered host memory by its host address"));
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(stw_cuda_convert(launch, target, source, kind, n),
                 "starting the conversion kernel");
    if (blocks) STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for a conversion");
out:
    return status;
}

stw_status stw_cuda_device_convert(stw_device *device, stw_stream stream, stw_tier to,
                                   uint64_t to_offset, stw_tier from, uint64_t from_offset,
                                   stw_dtype from_dtype, uint64_t n, stw_error *err) {
    float *target = NULL;
    unsigned char *source = NULL;
    uint64_t bytes = 0;
    stw_cuda_source kind = STW_CUDA_N_SOURCES;
    stw_status status = STW_STATUS_OK;
    if (!source_of(from_dtype, &kind))
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_dtype_name(from_dtype),
                         "weights of this dtype are not converted to fp32"));
    unsigned element_bytes = stw_dtype_bits(from_dtype) / 8;
    if (from_offset % element_bytes != 0)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "convert", "offset %llu is not that of a %s",
                         (unsigned long long)from_offset, stw_dtype_name(from_dtype)));
    STW_TRY(stw_cuda_float_range(device, to, to_offset, n, &target, err));
    STW_TRY(stw_mul_u64(n, element_bytes, &bytes, "elements to convert", err));
    STW_TRY(stw_cuda_range(device, from, from_offset, bytes, &source, err));
    if (n == 0) goto out;
    bool on_host = to == STW_TIER_HOST && from == STW_TIER_HOST;
    if (on_host && !stw_stream_is_gpu(stream))
        stw_host_convert(device->threads, target, source, from_dtype, n);
    else
        STW_TRY(convert_on_gpu(device, stream, target, source, kind, n,
                               to == STW_TIER_HOST || from == STW_TIER_HOST, err));
out:
    return status;
}

/* ---- making and looking at values; NVMe ranges go through the bounce buffer in pieces ---- */

typedef struct piece {
    stw_threads *threads;
    float *data;
    uint64_t n, element; /* of this piece */
    uint64_t seed, step;
    uint64_t sum;
} piece;

static void seed_piece(piece *p) {
    stw_host_seed_grads(p->threads, p->data, p->n, p->element, p->seed, p->step);
}
static void zero_piece(piece *p) { stw_host_zero(p->threads, p->data, p->n * sizeof(float)); }
static void digest_piece(piece *p) {
    p->sum += stw_host_digest(p->threads, p->data, p->n, p->element);
}

/* Call fn on the elements of an NVMe range that begins with element p->element. */
static stw_status visit_nvme(stw_device *device, uint64_t offset, uint64_t bytes, bool writes,
                             void (*fn)(piece *p), piece *p, stw_error *err) {
    stw_status status = stw_cuda_check_range(device, STW_TIER_NVME, offset, bytes, err);
    if (status != STW_STATUS_OK) return status;
    pthread_mutex_lock(&device->mutex);
    p->threads = device->threads;
    p->data = (float *)(void *)device->bounce;
    for (uint64_t done = 0; done < bytes; done += STW_CUDA_BOUNCE_BYTES) {
        uint64_t part = stw_min_u64(bytes - done, STW_CUDA_BOUNCE_BYTES);
        p->n = stw_div_up_u64(part, sizeof(float));
        if (!writes) STW_TRY(stw_nvme_read(device->nvme, offset + done, p->data, part, err));
        fn(p);
        if (writes) STW_TRY(stw_nvme_write(device->nvme, offset + done, p->data, part, err));
        p->element += p->n;
    }
out:
    pthread_mutex_unlock(&device->mutex);
    return status;
}

stw_status stw_cuda_device_seed_grads(stw_device *device, stw_tier tier, uint64_t offset,
                                      uint64_t n, uint64_t element, uint64_t seed, uint64_t step,
                                      stw_error *err) {
    float *target = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_mul_u64(n, sizeof(float), &bytes, "elements", err));
    if (tier == STW_TIER_NVME) {
        piece p = {.element = element, .seed = seed, .step = step};
        return visit_nvme(device, offset, bytes, true, seed_piece, &p, err);
    }
    STW_TRY(stw_cuda_float_range(device, tier, offset, n, &target, err));
    if (n == 0) goto out;
    STW_TRY(stw_cuda_quiesce(device, err));
    if (tier == STW_TIER_HOST) {
        stw_host_seed_grads(device->threads, target, n, element, seed, step);
        goto out;
    }
    stw_cuda_launch launch = {device->streams[STW_STREAM_COMPUTE], device->sms};
    STW_CUDA_TRY(stw_cuda_seed_grads(launch, target, n, element, seed, step),
                 "starting the gradients' kernel");
    STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for gradients");
out:
    return status;
}

stw_status stw_cuda_device_zero(stw_device *device, stw_tier tier, uint64_t offset, uint64_t bytes,
                                stw_error *err) {
    unsigned char *target = NULL;
    stw_status status = STW_STATUS_OK;
    if (tier == STW_TIER_NVME) {
        piece p = {.element = 0};
        return visit_nvme(device, offset, bytes, true, zero_piece, &p, err);
    }
    STW_TRY(stw_cuda_range(device, tier, offset, bytes, &target, err));
    if (bytes == 0) goto out;
    STW_TRY(stw_cuda_quiesce(device, err));
    if (tier == STW_TIER_HOST) {
        stw_host_zero(device->threads, target, bytes);
        goto out;
    }
    cudaStream_t stream = device->streams[STW_STREAM_COMPUTE];
    STW_CUDA_TRY(cudaMemsetAsync(target, 0, (size_t)bytes, stream), "zeroing GPU memory");
    STW_CUDA_TRY(cudaStreamSynchronize(stream), "waiting for zeroed GPU memory");
out:
    return status;
}

static stw_status digest_gpu(stw_device *device, const float *values, uint64_t n, uint64_t element,
                             uint64_t *sum, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cuda_launch launch = {device->side, device->sms};
    status = stw_cuda_quiesce(device, err);
    if (status != STW_STATUS_OK) return status;
    pthread_mutex_lock(&device->mutex);
    uint64_t *at = &device->scalars->digest;
    STW_CUDA_TRY(cudaMemsetAsync(at, 0, sizeof *at, launch.stream), "zeroing a digest");
    STW_CUDA_TRY(stw_cuda_digest(launch, values, n, element, at), "starting the digest kernel");
    STW_CUDA_TRY(cudaMemcpyAsync(&device->staged->digest, at, sizeof *at, cudaMemcpyDeviceToHost,
                                 launch.stream),
                 "reading a digest");
    STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for a digest");
    *sum += device->staged->digest;
out:
    pthread_mutex_unlock(&device->mutex);
    return status;
}

stw_status stw_cuda_device_digest(stw_device *device, stw_tier tier, uint64_t offset, uint64_t n,
                                  uint64_t element, uint64_t *sum, stw_error *err) {
    float *values = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_mul_u64(n, sizeof(float), &bytes, "elements", err));
    if (tier == STW_TIER_NVME) {
        piece p = {.element = element};
        STW_TRY(visit_nvme(device, offset, bytes, false, digest_piece, &p, err));
        *sum += p.sum;
        goto out;
    }
    STW_TRY(stw_cuda_float_range(device, tier, offset, n, &values, err));
    if (n == 0) goto out;
    if (tier == STW_TIER_GPU) return digest_gpu(device, values, n, element, sum, err);
    STW_TRY(stw_cuda_quiesce(device, err));
    *sum += stw_host_digest(device->threads, values, n, element);
out:
    return status;
}

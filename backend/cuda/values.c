/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the CUDA backend's arenas: conversion of load pieces and of master weights, seeded
 * gradients, zeros, digests. But for conversion all of them wait for the streams that carry a
 * step's work, and block.
 *
 * An NVMe arena of two copies is written in one and read in the other: zeros, gradients and
 * conversions go to the copy that the next commit makes count, and a digest sees the committed one.
 */
#define _DEFAULT_SOURCE /* madvise */
#include <sys/mman.h>

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

typedef struct conversion {
    stw_stream stream;
    stw_element to_type;
    stw_dtype from_dtype;
    stw_cuda_source source;
    uint64_t to_bytes, from_bytes; /* of one element */
    bool touches_host;             /* a kernel would */
} conversion;

/* A kernel reads and writes page-locked host memory itself where one side lies there. */
static stw_status convert_on_gpu(stw_device *device, const conversion *c, void *target,
                                 const void *source, uint64_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool blocks = !stw_stream_is_gpu(c->stream);
    stw_cuda_launch launch = {blocks ? device->side : device->streams[c->stream], device->sms};
    if (c->touches_host && !device->host_on_device)
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, "convert",
                         "this GPU does not reach registered host memory by its host address"));
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(stw_cuda_convert(launch, c->to_type, target, source, c->source, n),
                 "starting the conversion kernel");
    if (blocks) STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for a conversion");
out:
    return status;
}

/* The bounce buffer lasts, its pages do not: steps need none of them. */
static void leave_bounce(stw_device *device) {
    (void)madvise(device->bounce, 2 * STW_CUDA_BOUNCE_BYTES, MADV_DONTNEED);
}

/* Piece by piece through the bounce buffer, on the CPU: what comes from the GPU is copied to its
 * second half first. What the stream was given before is done by then. */
static stw_status convert_to_nvme(stw_device *device, const conversion *c, uint64_t to_offset,
                                  stw_tier from, const unsigned char *source, uint64_t n,
                                  stw_error *err) {
    stw_status status = STW_STATUS_OK;
    cudaStream_t stream = stw_stream_is_gpu(c->stream) ? device->streams[c->stream] : device->side;
    unsigned char *staged = device->bounce + STW_CUDA_BOUNCE_BYTES;
    const uint64_t piece = STW_CUDA_BOUNCE_BYTES / stw_max_u64(c->to_bytes, c->from_bytes);
    pthread_mutex_lock(&device->mutex);
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaStreamSynchronize(stream), "waiting for what is to be converted");
    for (uint64_t done = 0; done < n; done += piece) {
        uint64_t part = stw_min_u64(n - done, piece);
        const unsigned char *at = source + done * c->from_bytes;
        if (from == STW_TIER_GPU) {
            STW_CUDA_TRY(
                cudaMemcpyAsync(staged, at, part * c->from_bytes, cudaMemcpyDeviceToHost, stream),
                "copying from the GPU to the host");
            STW_CUDA_TRY(cudaStreamSynchronize(stream), "waiting for a copy");
            at = staged;
        }
        stw_host_convert(device->threads, device->bounce, c->to_type, at, c->from_dtype, part);
        STW_TRY(stw_nvme_write(device->nvme, to_offset + done * c->to_bytes, device->bounce,
                               part * c->to_bytes, err));
    }
out:
    leave_bounce(device);
    pthread_mutex_unlock(&device->mutex);
    return status;
}

stw_status stw_cuda_device_convert(stw_device *device, stw_stream stream, stw_tier to,
                                   uint64_t to_offset, stw_element to_type, stw_tier from,
                                   uint64_t from_offset, stw_dtype from_dtype, uint64_t n,
                                   stw_error *err) {
    unsigned char *target = NULL, *source = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    conversion c = {.stream = stream, .to_type = to_type, .from_dtype = from_dtype};
    if (!source_of(from_dtype, &c.source))
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_dtype_name(from_dtype),
                         "weights of this dtype are not converted"));
    c.from_bytes = stw_dtype_bits(from_dtype) / 8;
    c.to_bytes = stw_element_bytes(to_type);
    c.touches_host = to == STW_TIER_HOST || from == STW_TIER_HOST;
    if (from_offset % c.from_bytes != 0)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "convert", "offset %llu is not that of a %s",
                         (unsigned long long)from_offset, stw_dtype_name(from_dtype)));
    STW_TRY(stw_mul_u64(n, c.from_bytes, &bytes, "elements to convert", err));
    STW_TRY(stw_cuda_range(device, from, from_offset, bytes, &source, err));
    if (to == STW_TIER_NVME) {
        STW_TRY(stw_cuda_element_bytes(to, to_offset, to_type, n, &bytes, err));
        STW_TRY(stw_cuda_check_range(device, to, to_offset, bytes, err));
        if (n > 0) STW_TRY(convert_to_nvme(device, &c, to_offset, from, source, n, err));
        goto out;
    }
    STW_TRY(stw_cuda_element_range(device, to, to_offset, to_type, n, &target, err));
    if (n == 0) goto out;
    if (to == STW_TIER_HOST && from == STW_TIER_HOST && !stw_stream_is_gpu(stream))
        stw_host_convert(device->threads, target, to_type, source, from_dtype, n);
    else
        STW_TRY(convert_on_gpu(device, &c, target, source, n, err));
out:
    return status;
}

/* ---- making and looking at values; NVMe ranges go through the bounce buffer in pieces ---- */

typedef struct piece {
    stw_threads *threads;
    unsigned char *data;
    stw_element type;
    uint64_t bytes, n, element; /* of this piece */
    uint64_t seed, step;
    uint64_t sum;
} piece;

static void seed_piece(piece *p) {
    stw_host_seed_grads(p->threads, p->data, p->type, p->n, p->element, p->seed, p->step);
}
static void zero_piece(piece *p) { stw_host_zero(p->threads, p->data, p->bytes); }
static void digest_piece(piece *p) {
    p->sum += stw_host_digest(p->threads, p->data, p->type, p->n, p->element);
}

/* Call fn on the elements of an NVMe range that begins with element p->element of type p->type. */
static stw_status visit_nvme(stw_device *device, uint64_t offset, uint64_t bytes, bool writes,
                             void (*fn)(piece *p), piece *p, stw_error *err) {
    stw_status status = stw_cuda_check_range(device, STW_TIER_NVME, offset, bytes, err);
    if (status != STW_STATUS_OK || bytes == 0) return status;
    pthread_mutex_lock(&device->mutex);
    p->threads = device->threads;
    p->data = device->bounce;
    for (uint64_t done = 0; done < bytes; done += p->bytes) {
        p->bytes = stw_min_u64(bytes - done, STW_CUDA_BOUNCE_BYTES);
        if (p->type != STW_ELEMENT_NONE) p->n = p->bytes / stw_element_bytes(p->type);
        if (!writes) STW_TRY(stw_nvme_read(device->nvme, offset + done, p->data, p->bytes, err));
        fn(p);
        if (writes) STW_TRY(stw_nvme_write(device->nvme, offset + done, p->data, p->bytes, err));
        p->element += p->n;
    }
out:
    leave_bounce(device);
    pthread_mutex_unlock(&device->mutex);
    return status;
}

stw_status stw_cuda_device_seed_grads(stw_device *device, stw_tier tier, uint64_t offset,
                                      uint64_t n, uint64_t element, uint64_t seed, uint64_t step,
                                      stw_error *err) {
    unsigned char *target = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    stw_element type = device->config.types.grads;
    STW_TRY(stw_cuda_element_bytes(tier, offset, type, n, &bytes, err));
    if (tier == STW_TIER_NVME) {
        piece p = {.type = type, .element = element, .seed = seed, .step = step};
        return visit_nvme(device, offset, bytes, true, seed_piece, &p, err);
    }
    STW_TRY(stw_cuda_range(device, tier, offset, bytes, &target, err));
    if (n == 0) goto out;
    STW_TRY(stw_cuda_quiesce(device, err));
    if (tier == STW_TIER_HOST) {
        stw_host_seed_grads(device->threads, target, type, n, element, seed, step);
        goto out;
    }
    stw_cuda_launch launch = {device->streams[STW_STREAM_COMPUTE], device->sms};
    STW_CUDA_TRY(stw_cuda_seed_grads(launch, type, target, n, element, seed, step),
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
        piece p = {.type = STW_ELEMENT_NONE};
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

static stw_status digest_gpu(stw_device *device, stw_element type, const void *values, uint64_t n,
                             uint64_t element, uint64_t *sum, stw_error *err) {
    stw_cuda_launch launch = {device->side, device->sms};
    stw_status status = stw_cuda_quiesce(device, err);
    if (status != STW_STATUS_OK) return status;
    pthread_mutex_lock(&device->mutex);
    uint64_t *at = &device->scalars->digest;
    STW_CUDA_TRY(cudaMemsetAsync(at, 0, sizeof *at, launch.stream), "zeroing a digest");
    STW_CUDA_TRY(stw_cuda_digest(launch, type, values, n, element, at),
                 "starting the digest kernel");
    STW_CUDA_TRY(cudaMemcpyAsync(&device->staged->digest, at, sizeof *at, cudaMemcpyDeviceToHost,
                                 launch.stream),
                 "reading a digest");
    STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for a digest");
    *sum += device->staged->digest;
out:
    pthread_mutex_unlock(&device->mutex);
    return status;
}

stw_status stw_cuda_device_digest(stw_device *device, stw_tier tier, uint64_t offset,
                                  stw_element type, uint64_t n, uint64_t element, uint64_t *sum,
                                  stw_error *err) {
    unsigned char *values = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cuda_element_bytes(tier, offset, type, n, &bytes, err));
    if (tier == STW_TIER_NVME) {
        piece p = {.type = type, .element = element};
        STW_TRY(visit_nvme(device, offset, bytes, false, digest_piece, &p, err));
        *sum += p.sum;
        goto out;
    }
    STW_TRY(stw_cuda_range(device, tier, offset, bytes, &values, err));
    if (n == 0) goto out;
    if (tier == STW_TIER_GPU) return digest_gpu(device, type, values, n, element, sum, err);
    STW_TRY(stw_cuda_quiesce(device, err));
    *sum += stw_host_digest(device->threads, values, type, n, element);
out:
    return status;
}

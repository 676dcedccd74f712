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
    stw_typed_range to;
    stw_location from;
    stw_dtype from_dtype;
    stw_cuda_source source;
    const unsigned char *from_at; /* address of `from` */
} conversion;

/* A kernel reads and writes page-locked host memory itself where one side lies there. */
static stw_status convert_on_gpu(stw_device *device, const conversion *c, void *target,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool blocks = !stw_stream_is_gpu(c->stream);
    bool touches_host = c->to.tier == STW_TIER_HOST || c->from.tier == STW_TIER_HOST;
    stw_cuda_launch launch = {blocks ? device->side : device->streams[c->stream], device->sms};
    if (touches_host && !device->host_on_device)
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, "convert",
                         "this GPU does not reach registered host memory by its host address"));
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(stw_cuda_convert(launch, c->to.type, target, c->from_at, c->source, c->to.n),
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
static stw_status convert_to_nvme(stw_device *device, const conversion *c, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    cudaStream_t stream = stw_stream_is_gpu(c->stream) ? device->streams[c->stream] : device->side;
    unsigned char *staged = device->bounce + STW_CUDA_BOUNCE_BYTES;
    const uint64_t to_each = stw_element_bytes(c->to.type);
    const uint64_t from_each = stw_dtype_bits(c->from_dtype) / 8;
    const uint64_t piece = STW_CUDA_BOUNCE_BYTES / stw_max_u64(to_each, from_each);
    pthread_mutex_lock(&device->mutex);
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaStreamSynchronize(stream), "waiting for what is to be converted");
    for (uint64_t done = 0; done < c->to.n; done += piece) {
        uint64_t part = stw_min_u64(c->to.n - done, piece);
        const unsigned char *at = c->from_at + done * from_each;
        if (c->from.tier == STW_TIER_GPU) {
            STW_CUDA_TRY(
                cudaMemcpyAsync(staged, at, part * from_each, cudaMemcpyDeviceToHost, stream),
                "copying from the GPU to the host");
            STW_CUDA_TRY(cudaStreamSynchronize(stream), "waiting for a copy");
            at = staged;
        }
        stw_host_convert(device->threads, device->bounce, c->to.type, at, c->from_dtype, part);
        STW_TRY(stw_nvme_write(device->nvme, c->to.offset + done * to_each, device->bounce,
                               part * to_each, err));
    }
out:
    leave_bounce(device);
    pthread_mutex_unlock(&device->mutex);
    return status;
}

/* Everything about a conversion but its target's address. */
static stw_status find_source(stw_device *device, conversion *c, stw_error *err) {
    unsigned char *source = NULL;
    uint64_t bytes = 0, each = stw_dtype_bits(c->from_dtype) / 8;
    stw_status status = STW_STATUS_OK;
    if (!source_of(c->from_dtype, &c->source))
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_dtype_name(c->from_dtype),
                         "weights of this dtype are not converted"));
    if (c->from.offset % each != 0)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "convert", "offset %llu is not that of a %s",
                         (unsigned long long)c->from.offset, stw_dtype_name(c->from_dtype)));
    STW_TRY(stw_mul_u64(c->to.n, each, &bytes, "elements to convert", err));
    STW_TRY(stw_cuda_range(device, c->from, bytes, &source, err));
    c->from_at = source;
out:
    return status;
}

stw_status stw_cuda_device_convert(stw_device *device, stw_stream stream, stw_typed_range to,
                                   stw_location from, stw_dtype from_dtype, stw_error *err) {
    unsigned char *target = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    conversion c = {.stream = stream, .to = to, .from = from, .from_dtype = from_dtype};
    STW_TRY(find_source(device, &c, err));
    if (to.tier == STW_TIER_NVME) {
        STW_TRY(stw_cuda_element_bytes(to, &bytes, err));
        STW_TRY(stw_cuda_check_range(device, stw_at(to.tier, to.offset), bytes, err));
        if (to.n > 0) STW_TRY(convert_to_nvme(device, &c, err));
        goto out;
    }
    STW_TRY(stw_cuda_element_range(device, to, &target, err));
    if (to.n == 0) goto out;
    if (to.tier == STW_TIER_HOST && from.tier == STW_TIER_HOST && !stw_stream_is_gpu(stream))
        stw_host_convert(device->threads, target, to.type, c.from_at, from_dtype, to.n);
    else
        STW_TRY(convert_on_gpu(device, &c, target, err));
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
    stw_status status = stw_cuda_check_range(device, stw_at(STW_TIER_NVME, offset), bytes, err);
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

stw_status stw_cuda_device_seed_grads(stw_device *device, stw_typed_range to, uint64_t element,
                                      uint64_t seed, uint64_t step, stw_error *err) {
    unsigned char *target = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cuda_element_bytes(to, &bytes, err));
    if (to.tier == STW_TIER_NVME) {
        piece p = {.type = to.type, .element = element, .seed = seed, .step = step};
        return visit_nvme(device, to.offset, bytes, true, seed_piece, &p, err);
    }
    STW_TRY(stw_cuda_range(device, stw_at(to.tier, to.offset), bytes, &target, err));
    if (to.n == 0) goto out;
    STW_TRY(stw_cuda_quiesce(device, err));
    if (to.tier == STW_TIER_HOST) {
        stw_host_seed_grads(device->threads, target, to.type, to.n, element, seed, step);
        goto out;
    }
    stw_cuda_launch launch = {device->streams[STW_STREAM_COMPUTE], device->sms};
    STW_CUDA_TRY(stw_cuda_seed_grads(launch, to.type, target, to.n, element, seed, step),
                 "starting the gradients' kernel");
    STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for gradients");
out:
    return status;
}

stw_status stw_cuda_device_zero(stw_device *device, stw_location to, uint64_t bytes,
                                stw_error *err) {
    unsigned char *target = NULL;
    stw_status status = STW_STATUS_OK;
    if (to.tier == STW_TIER_NVME) {
        piece p = {.type = STW_ELEMENT_NONE};
        return visit_nvme(device, to.offset, bytes, true, zero_piece, &p, err);
    }
    STW_TRY(stw_cuda_range(device, to, bytes, &target, err));
    if (bytes == 0) goto out;
    STW_TRY(stw_cuda_quiesce(device, err));
    if (to.tier == STW_TIER_HOST) {
        stw_host_zero(device->threads, target, bytes);
        goto out;
    }
    cudaStream_t stream = device->streams[STW_STREAM_COMPUTE];
    STW_CUDA_TRY(cudaMemsetAsync(target, 0, (size_t)bytes, stream), "zeroing GPU memory");
    STW_CUDA_TRY(cudaStreamSynchronize(stream), "waiting for zeroed GPU memory");
out:
    return status;
}

static stw_status digest_gpu(stw_device *device, stw_typed_range values, const void *at,
                             uint64_t element, uint64_t *sum, stw_error *err) {
    stw_cuda_launch launch = {device->side, device->sms};
    stw_status status = stw_cuda_quiesce(device, err);
    if (status != STW_STATUS_OK) return status;
    pthread_mutex_lock(&device->mutex);
    uint64_t *digest = &device->scalars->digest;
    STW_CUDA_TRY(cudaMemsetAsync(digest, 0, sizeof *digest, launch.stream), "zeroing a digest");
    STW_CUDA_TRY(stw_cuda_digest(launch, values.type, at, values.n, element, digest),
                 "starting the digest kernel");
    STW_CUDA_TRY(cudaMemcpyAsync(&device->staged->digest, digest, sizeof *digest,
                                 cudaMemcpyDeviceToHost, launch.stream),
                 "reading a digest");
    STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for a digest");
    *sum += device->staged->digest;
out:
    pthread_mutex_unlock(&device->mutex);
    return status;
}

stw_status stw_cuda_device_digest(stw_device *device, stw_typed_range values, uint64_t element,
                                  uint64_t *sum, stw_error *err) {
    unsigned char *at = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cuda_element_bytes(values, &bytes, err));
    if (values.tier == STW_TIER_NVME) {
        piece p = {.type = values.type, .element = element};
        STW_TRY(visit_nvme(device, values.offset, bytes, false, digest_piece, &p, err));
        *sum += p.sum;
        goto out;
    }
    STW_TRY(stw_cuda_range(device, stw_at(values.tier, values.offset), bytes, &at, err));
    if (values.n == 0) goto out;
    if (values.tier == STW_TIER_GPU) return digest_gpu(device, values, at, element, sum, err);
    STW_TRY(stw_cuda_quiesce(device, err));
    *sum += stw_host_digest(device->threads, at, values.type, values.n, element);
out:
    return status;
}

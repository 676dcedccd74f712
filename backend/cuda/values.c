/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the CUDA backend's arenas: conversion of load pieces and of master weights, seeded
 * gradients, zeros, digests. What the GPU holds is worked on by kernels, the rest by the CPU
 * (backend/tiers.h). But for conversion all of them wait for the streams that carry a step's work,
 * and block. */
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

/* Where elements of one dtype come from. */
typedef struct source {
    const unsigned char *at;
    stw_dtype dtype;
    stw_cuda_source kind;
    uint64_t each; /* bytes */
} source;

/* A kernel reads and writes page-locked host memory itself where one side lies there. */
static stw_status convert_on_gpu(stw_device *device, stw_stream stream, stw_typed_range to,
                                 const source *from, bool touches_host, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unsigned char *target = NULL;
    bool blocks = !stw_stream_is_gpu(stream);
    stw_cuda_launch launch = {blocks ? device->side : device->streams[stream], device->sms};
    STW_TRY(stw_arenas_values(&device->tiers.arenas, to, &target, err));
    if (to.n == 0) goto out;
    if (touches_host && !device->host_on_device)
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, "convert",
                         "this GPU does not reach registered host memory by its host address"));
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(stw_cuda_convert(launch, to.type, target, from->at, from->kind, to.n),
                 "starting the conversion kernel");
    if (blocks) STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for a conversion");
out:
    return status;
}

/* On its way from the GPU to NVMe. */
typedef struct descent {
    stw_device *device;
    cudaStream_t stream;
    source from;
    stw_element to_type;
} descent;

static stw_status descend(const stw_tiers_piece *p, void *arg, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const descent *d = arg;
    const uint64_t to_each = stw_element_bytes(d->to_type), n = p->bytes / to_each;
    const unsigned char *at = d->from.at + p->done / to_each * d->from.each;
    STW_CUDA_TRY(cudaMemcpyAsync(d->device->from_gpu, at, (size_t)(n * d->from.each),
                                 cudaMemcpyDeviceToHost, d->stream),
                 "copying from the GPU to the host");
    STW_CUDA_TRY(cudaStreamSynchronize(d->stream), "waiting for a copy");
    stw_host_convert(d->device->tiers.threads, p->memory, d->to_type, d->device->from_gpu,
                     d->from.dtype, n);
out:
    return status;
}

/* Piece by piece on the CPU. What the stream was given before is done by then. */
static stw_status convert_to_nvme(stw_device *device, stw_stream stream, stw_typed_range to,
                                  stw_location from, const source *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t to_each = stw_element_bytes(to.type);
    uint64_t bytes = 0;
    descent d = {.device = device,
                 .stream = stw_stream_is_gpu(stream) ? device->streams[stream] : device->side,
                 .from = *s,
                 .to_type = to.type};
    STW_TRY(stw_arenas_check_values(&device->tiers.arenas, to, &bytes, err));
    if (to.n == 0) goto out;
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaStreamSynchronize(d.stream), "waiting for what is to be converted");
    if (from.tier != STW_TIER_GPU)
        return stw_tiers_convert(&device->tiers, to, from, s->dtype, err);
    const stw_visitor visitor = {.fn = descend,
                                 .arg = &d,
                                 .writes = true,
                                 .most_bytes =
                                     STW_BOUNCE_BYTES / stw_max_u64(to_each, s->each) * to_each};
    pthread_mutex_lock(&device->mutex);
    status = stw_tiers_visit(&device->tiers, stw_at(to.tier, to.offset), bytes, &visitor, err);
    (void)madvise(device->from_gpu, STW_BOUNCE_BYTES, MADV_DONTNEED); /* steps need no page of it */
    pthread_mutex_unlock(&device->mutex);
out:
    return status;
}

stw_status stw_cuda_device_convert(stw_device *device, stw_stream stream, stw_typed_range to,
                                   stw_location from, stw_dtype from_dtype, stw_error *err) {
    unsigned char *at = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    source s = {.dtype = from_dtype, .each = stw_dtype_bits(from_dtype) / 8};
    if (!source_of(from_dtype, &s.kind))
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_dtype_name(from_dtype),
                         "weights of this dtype are not converted"));
    if (from.offset % s.each != 0)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "convert", "offset %llu is not that of a %s",
                         (unsigned long long)from.offset, stw_dtype_name(from_dtype)));
    STW_TRY(stw_mul_u64(to.n, s.each, &bytes, "elements to convert", err));
    STW_TRY(stw_arenas_address(&device->tiers.arenas, from, bytes, &at, err));
    s.at = at;
    bool to_host = to.tier == STW_TIER_HOST, from_host = from.tier == STW_TIER_HOST;
    if (to.tier == STW_TIER_NVME)
        STW_TRY(convert_to_nvme(device, stream, to, from, &s, err));
    else if (to_host && from_host && !stw_stream_is_gpu(stream))
        STW_TRY(stw_tiers_convert(&device->tiers, to, from, from_dtype, err));
    else
        STW_TRY(convert_on_gpu(device, stream, to, &s, to_host || from_host, err));
out:
    return status;
}

stw_status stw_cuda_device_convert_from(stw_device *device, stw_stream stream, stw_typed_range to,
                                        const void *from, stw_dtype from_dtype, stw_error *err) {
    source s = {.at = from, .dtype = from_dtype, .each = stw_dtype_bits(from_dtype) / 8};
    if (!source_of(from_dtype, &s.kind) || !stw_stream_is_gpu(stream) || to.tier == STW_TIER_NVME)
        return stw_fail(err, STW_STATUS_BUG, "convert", "%s to tier %s on stream %s",
                        stw_dtype_name(from_dtype), stw_tier_name(to.tier),
                        stw_stream_name(stream));
    return convert_on_gpu(device, stream, to, &s, to.tier == STW_TIER_HOST, err);
}

/* ---- making and looking at values ---- */

stw_status stw_cuda_device_seed_grads(stw_device *device, stw_typed_range to, uint64_t element,
                                      uint64_t seed, uint64_t step, stw_error *err) {
    unsigned char *target = NULL;
    stw_status status = STW_STATUS_OK;
    if (to.tier != STW_TIER_NVME) STW_TRY(stw_cuda_quiesce(device, err));
    if (to.tier != STW_TIER_GPU)
        return stw_tiers_seed_grads(&device->tiers, to, element, seed, step, err);
    STW_TRY(stw_arenas_values(&device->tiers.arenas, to, &target, err));
    if (to.n == 0) goto out;
    stw_cuda_launch launch = {device->streams[STW_STREAM_COMPUTE], device->sms};
    STW_CUDA_TRY(stw_cuda_seed_grads(launch, to.type, target, to.n, element, seed, step),
                 "starting the gradients' kernel");
    STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for gradients");
out:
    return status;
}

stw_status stw_cuda_device_put(stw_device *device, stw_location to, const void *from,
                               uint64_t bytes, stw_error *err) {
    unsigned char *target = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cuda_quiesce(device, err));
    STW_TRY(stw_arenas_address(&device->tiers.arenas, to, bytes, &target, err));
    if (bytes == 0) goto out;
    cudaStream_t stream = device->streams[STW_STREAM_COMPUTE];
    STW_CUDA_TRY(cudaMemcpyAsync(target, from, (size_t)bytes, cudaMemcpyDefault, stream),
                 "writing to an arena");
    STW_CUDA_TRY(cudaStreamSynchronize(stream), "waiting for a write to an arena");
out:
    return status;
}

stw_status stw_cuda_device_get(stw_device *device, void *to, stw_location from, uint64_t bytes,
                               stw_error *err) {
    unsigned char *at = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cuda_quiesce(device, err));
    STW_TRY(stw_arenas_address(&device->tiers.arenas, from, bytes, &at, err));
    if (bytes == 0) goto out;
    cudaStream_t stream = device->streams[STW_STREAM_COMPUTE];
    STW_CUDA_TRY(cudaMemcpyAsync(to, at, (size_t)bytes, cudaMemcpyDefault, stream),
                 "reading from an arena");
    STW_CUDA_TRY(cudaStreamSynchronize(stream), "waiting for a read from an arena");
out:
    return status;
}

stw_status stw_cuda_device_page_lock(stw_device *device, void *address, uint64_t bytes, bool lock,
                                     stw_error *err) {
    stw_status status = STW_STATUS_OK;
    (void)device; /* page-locked for all devices */
    if (lock)
        STW_CUDA_TRY(cudaHostRegister(address, (size_t)bytes, cudaHostRegisterPortable),
                     "page-locking memory of the caller's");
    else
        STW_CUDA_TRY(cudaHostUnregister(address), "giving back page-locked memory");
out:
    return status;
}

stw_status stw_cuda_device_zero(stw_device *device, stw_location to, uint64_t bytes,
                                stw_error *err) {
    unsigned char *target = NULL;
    stw_status status = STW_STATUS_OK;
    if (to.tier != STW_TIER_NVME) STW_TRY(stw_cuda_quiesce(device, err));
    if (to.tier != STW_TIER_GPU) return stw_tiers_zero(&device->tiers, to, bytes, err);
    STW_TRY(stw_arenas_address(&device->tiers.arenas, to, bytes, &target, err));
    if (bytes == 0) goto out;
    cudaStream_t stream = device->streams[STW_STREAM_COMPUTE];
    STW_CUDA_TRY(cudaMemsetAsync(target, 0, (size_t)bytes, stream), "zeroing GPU memory");
    STW_CUDA_TRY(cudaStreamSynchronize(stream), "waiting for zeroed GPU memory");
out:
    return status;
}

static stw_status digest_on_gpu(stw_device *device, stw_typed_range values, const void *at,
                                uint64_t element, uint64_t *sum, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cuda_launch launch = {device->side, device->sms};
    uint64_t *digest = &device->scalars->digest;
    pthread_mutex_lock(&device->mutex);
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
    stw_status status = STW_STATUS_OK;
    if (values.tier != STW_TIER_NVME) STW_TRY(stw_cuda_quiesce(device, err));
    if (values.tier != STW_TIER_GPU)
        return stw_tiers_digest(&device->tiers, values, element, sum, err);
    STW_TRY(stw_arenas_values(&device->tiers.arenas, values, &at, err));
    if (values.n > 0) STW_TRY(digest_on_gpu(device, values, at, element, sum, err));
out:
    return status;
}

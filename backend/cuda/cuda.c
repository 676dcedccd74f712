/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend's table. Streams h2d, compute, d2h and comm are CUDA streams; cpu and disk are
 * the threads that call, and their work is done by the host kernels when the call returns. */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/device.h"
#include "backend/host/kernels.h"
#include "backend/norm.h"
#include "core/checked.h"

static bool available(char *why, size_t why_size) {
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (why != NULL && why_size > 0) why[0] = '\0';
    if (code == cudaSuccess && count > 0) return true;
    if (why != NULL)
        snprintf(why, why_size, "%s",
                 code != cudaSuccess ? cudaGetErrorString(code) : "no GPU is visible");
    (void)cudaGetLastError();
    return false;
}

static void info(stw_device *device, stw_device_info *out) {
    size_t unused = 0, total = 0;
    *out = device->info;
    if (cudaSetDevice(device->ordinal) == cudaSuccess &&
        cudaMemGetInfo(&unused, &total) == cudaSuccess)
        out->used_now = total - unused;
    else
        (void)cudaGetLastError();
}

static void *host_address(stw_device *device, uint64_t offset, uint64_t bytes) {
    unsigned char *address = NULL;
    return stw_cuda_range(device, STW_TIER_HOST, offset, bytes, &address, NULL) == STW_STATUS_OK
               ? address
               : NULL;
}

static void *device_address(stw_device *device, uint64_t offset, uint64_t bytes) {
    unsigned char *address = NULL;
    return stw_cuda_range(device, STW_TIER_GPU, offset, bytes, &address, NULL) == STW_STATUS_OK
               ? address
               : NULL;
}

static void *native_stream(stw_device *device, stw_stream stream) {
    return device->streams[stream];
}

/* ---- helpers ---- */

/* A GPU stream where the operation runs in GPU memory, a host stream where it runs on the host. */
static stw_status check_stream(const char *what, stw_tier tier, stw_stream stream, stw_error *err) {
    if (stw_stream_is_gpu(stream) == (tier == STW_TIER_GPU)) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, what, "in tier %s on stream %s", stw_tier_name(tier),
                    stw_stream_name(stream));
}

/* ---- copies ---- */

static stw_status copy_nvme(stw_device *device, stw_tier to, uint64_t to_offset, stw_tier from,
                            uint64_t from_offset, uint64_t bytes, stw_error *err) {
    unsigned char *memory = NULL;
    stw_status status = STW_STATUS_OK;
    bool reads = from == STW_TIER_NVME;
    if ((reads ? to : from) != STW_TIER_HOST)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "copy", "from %s to %s: NVMe goes through the host",
                         stw_tier_name(from), stw_tier_name(to)));
    STW_TRY(stw_cuda_range(device, STW_TIER_HOST, reads ? to_offset : from_offset, bytes, &memory,
                           err));
    STW_TRY(
        stw_cuda_check_range(device, STW_TIER_NVME, reads ? from_offset : to_offset, bytes, err));
    if (bytes == 0) goto out;
    if (reads)
        STW_TRY(stw_nvme_read(device->nvme, from_offset, memory, bytes, err));
    else
        STW_TRY(stw_nvme_write(device->nvme, to_offset, memory, bytes, err));
out:
    return status;
}

/* Bytes from host arena offset `at` to the end of its page-locked piece: one CUDA copy must not
 * cross into the next. */
static uint64_t to_piece_end(uint64_t at) {
    return STW_CUDA_REGISTER_BYTES - at % STW_CUDA_REGISTER_BYTES;
}

static stw_status copy_async(stw_device *device, cudaStream_t stream, stw_tier to,
                             uint64_t to_offset, unsigned char *target, stw_tier from,
                             uint64_t from_offset, const unsigned char *source, uint64_t bytes,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    enum cudaMemcpyKind kind = to != STW_TIER_GPU     ? cudaMemcpyDeviceToHost
                               : from != STW_TIER_GPU ? cudaMemcpyHostToDevice
                                                      : cudaMemcpyDeviceToDevice;
    STW_TRY(stw_cuda_device_use(device, err));
    for (uint64_t done = 0; done < bytes;) {
        uint64_t part = bytes - done;
        if (to == STW_TIER_HOST) part = stw_min_u64(part, to_piece_end(to_offset + done));
        if (from == STW_TIER_HOST) part = stw_min_u64(part, to_piece_end(from_offset + done));
        STW_CUDA_TRY(cudaMemcpyAsync(target + done, source + done, (size_t)part, kind, stream),
                     kind == cudaMemcpyHostToDevice   ? "copying from the host to the GPU"
                     : kind == cudaMemcpyDeviceToHost ? "copying from the GPU to the host"
                                                      : "copying inside the GPU");
        done += part;
    }
out:
    return status;
}

static stw_status copy(stw_device *device, stw_stream stream, stw_tier to, uint64_t to_offset,
                       stw_tier from, uint64_t from_offset, uint64_t bytes, stw_error *err) {
    unsigned char *target = NULL, *source = NULL;
    stw_status status = STW_STATUS_OK;
    bool on_gpu = stw_stream_is_gpu(stream);
    if (to == STW_TIER_NVME || from == STW_TIER_NVME)
        return copy_nvme(device, to, to_offset, from, from_offset, bytes, err);
    STW_TRY(stw_cuda_range(device, to, to_offset, bytes, &target, err));
    STW_TRY(stw_cuda_range(device, from, from_offset, bytes, &source, err));
    if (bytes == 0) goto out;
    if (to == from && to_offset < from_offset + bytes && from_offset < to_offset + bytes)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "copy", "source and target overlap in tier %s",
                         stw_tier_name(to)));
    if (to == STW_TIER_HOST && from == STW_TIER_HOST) {
        if (on_gpu) {
            STW_TRY(stw_cuda_device_use(device, err));
            STW_CUDA_TRY(cudaStreamSynchronize(device->streams[stream]), "waiting for a stream");
        }
        stw_host_copy(device->threads, target, source, bytes);
        goto out;
    }
    cudaStream_t cuda_stream = on_gpu ? device->streams[stream] : device->side;
    STW_TRY(copy_async(device, cuda_stream, to, to_offset, target, from, from_offset, source, bytes,
                       err));
    if (!on_gpu) STW_CUDA_TRY(cudaStreamSynchronize(cuda_stream), "waiting for a copy");
out:
    return status;
}

static stw_status read_nvme(stw_device *device, uint64_t host_offset, uint64_t nvme_offset,
                            uint64_t bytes, stw_error *err) {
    return copy_nvme(device, STW_TIER_HOST, host_offset, STW_TIER_NVME, nvme_offset, bytes, err);
}

static stw_status write_nvme(stw_device *device, uint64_t nvme_offset, uint64_t host_offset,
                             uint64_t bytes, stw_error *err) {
    return copy_nvme(device, STW_TIER_NVME, nvme_offset, STW_TIER_HOST, host_offset, bytes, err);
}

/* ---- updates and norms ---- */

static stw_status update(stw_device *device, stw_stream stream, const stw_adamw *adamw,
                         const stw_operands *operands, stw_error *err) {
    float *params = NULL, *grads = NULL, *exp_avg = NULL, *exp_avg_sq = NULL;
    stw_status status = STW_STATUS_OK;
    stw_tier tier = operands->tier;
    uint64_t n = operands->n;
    STW_TRY(check_stream("update", tier, stream, err));
    STW_TRY(stw_cuda_float_range(device, tier, operands->params, n, &params, err));
    STW_TRY(stw_cuda_float_range(device, tier, operands->grads, n, &grads, err));
    STW_TRY(stw_cuda_float_range(device, tier, operands->exp_avg, n, &exp_avg, err));
    STW_TRY(stw_cuda_float_range(device, tier, operands->exp_avg_sq, n, &exp_avg_sq, err));
    if (n == 0) goto out;
    if (tier == STW_TIER_GPU) {
        stw_cuda_launch launch = {device->streams[stream], device->sms};
        STW_TRY(stw_cuda_device_use(device, err));
        STW_CUDA_TRY(stw_cuda_adamw(launch, adamw, params, grads, exp_avg, exp_avg_sq, n),
                     "starting the update kernel");
    } else {
        stw_host_adamw(device->threads, adamw, params, grads, exp_avg, exp_avg_sq, n);
    }
out:
    return status;
}

static stw_status norm_add(stw_device *device, stw_stream stream, const stw_operands *operands,
                           stw_error *err) {
    float *grads = NULL;
    stw_status status = STW_STATUS_OK;
    stw_tier tier = operands->tier;
    STW_TRY(check_stream("norm", tier, stream, err));
    STW_TRY(stw_cuda_float_range(device, tier, operands->grads, operands->n, &grads, err));
    if (operands->n == 0) goto out;
    if (tier == STW_TIER_GPU) {
        stw_cuda_launch launch = {device->streams[stream], device->sms};
        STW_TRY(stw_cuda_device_use(device, err));
        STW_CUDA_TRY(stw_cuda_norm_add(launch, grads, operands->n, &device->scalars->bins),
                     "starting the norm kernel");
        atomic_fetch_or(&device->norm_streams, 1u << stream);
    } else {
        stw_norm_bins mine = {.not_finite = 0};
        stw_host_norm_add(device->threads, grads, operands->n, &mine);
        pthread_mutex_lock(&device->mutex);
        stw_norm_merge(&device->host_bins, &mine);
        pthread_mutex_unlock(&device->mutex);
    }
out:
    return status;
}

/* Both tiers' bins; those of the GPU in the order of the stream, of compute for a host stream. */
static stw_status norm_reset(stw_device *device, stw_stream stream, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (!stw_stream_is_gpu(stream)) stream = STW_STREAM_COMPUTE;
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaMemsetAsync(&device->scalars->bins, 0, sizeof device->scalars->bins,
                                 device->streams[stream]),
                 "zeroing the norm's bins");
    atomic_store(&device->norm_streams, 1u << stream);
    pthread_mutex_lock(&device->mutex);
    memset(&device->host_bins, 0, sizeof device->host_bins);
    pthread_mutex_unlock(&device->mutex);
out:
    return status;
}

static stw_status norm_read(stw_device *device, stw_norm_bins *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unsigned streams = atomic_load(&device->norm_streams);
    pthread_mutex_lock(&device->mutex);
    STW_TRY(stw_cuda_device_use(device, err));
    for (int s = 0; s < STW_N_STREAMS; s++)
        if ((streams >> s & 1u) != 0)
            STW_CUDA_TRY(cudaStreamSynchronize(device->streams[s]), "waiting for the norm");
    STW_CUDA_TRY(cudaMemcpyAsync(&device->staged->bins, &device->scalars->bins,
                                 sizeof device->staged->bins, cudaMemcpyDeviceToHost, device->side),
                 "reading the norm's bins");
    STW_CUDA_TRY(cudaStreamSynchronize(device->side), "waiting for the norm's bins");
    *out = device->staged->bins;
    stw_norm_merge(out, &device->host_bins);
out:
    pthread_mutex_unlock(&device->mutex);
    return status;
}

/* ---- order between streams ---- */

static stw_status check_event(const stw_device *device, uint32_t event, stw_error *err) {
    if (event < device->n_events) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "event", "event %u of %u", event, device->n_events);
}

static stw_status record(stw_device *device, stw_stream stream, uint32_t event, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_event(device, event, err));
    if (!stw_stream_is_gpu(stream)) { /* work of host streams is done when its call returns */
        atomic_store(&device->event_state[event], STW_CUDA_EVENT_DONE);
        goto out;
    }
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaEventRecord(device->events[event], device->streams[stream]),
                 "recording an event");
    atomic_store(&device->event_state[event], STW_CUDA_EVENT_ON_GPU);
out:
    return status;
}

/* What is there to wait for? An event that was never recorded would let work run too early. */
static stw_status look_at_event(stw_device *device, uint32_t event, bool *on_gpu, stw_error *err) {
    *on_gpu = false;
    stw_status status = check_event(device, event, err);
    if (status != STW_STATUS_OK) return status;
    unsigned state = atomic_load(&device->event_state[event]);
    if (state == STW_CUDA_EVENT_NEVER)
        return stw_fail(err, STW_STATUS_BUG, "event",
                        "event %u is waited for before it was recorded", event);
    *on_gpu = state == STW_CUDA_EVENT_ON_GPU;
    return STW_STATUS_OK;
}

static stw_status wait_host(stw_device *device, uint32_t event, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool on_gpu = false;
    STW_TRY(look_at_event(device, event, &on_gpu, err));
    if (!on_gpu) goto out;
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaEventSynchronize(device->events[event]), "waiting for an event");
out:
    return status;
}

static stw_status wait_stream(stw_device *device, stw_stream stream, uint32_t event,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool on_gpu = false;
    if (!stw_stream_is_gpu(stream)) return wait_host(device, event, err);
    STW_TRY(look_at_event(device, event, &on_gpu, err));
    if (!on_gpu) goto out;
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaStreamWaitEvent(device->streams[stream], device->events[event], 0),
                 "making a stream wait");
out:
    return status;
}

static stw_status synchronize(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cuda_quiesce(device, err));
    STW_CUDA_TRY(cudaStreamSynchronize(device->side), "waiting for a stream");
    STW_CUDA_TRY(cudaStreamSynchronize(device->streams[STW_STREAM_COMM]),
                 "waiting for the communication stream");
out:
    return status;
}

static const stw_backend backend_cuda = {
    .name = "cuda",
    .gpu = true,
    .available = available,
    .open = stw_cuda_device_open,
    .close = stw_cuda_device_close,
    .info = info,
    .host_address = host_address,
    .copy = copy,
    .update = update,
    .norm_add = norm_add,
    .norm_reset = norm_reset,
    .norm_read = norm_read,
    .read = read_nvme,
    .write = write_nvme,
    .convert = stw_cuda_device_convert,
    .seed_grads = stw_cuda_device_seed_grads,
    .zero = stw_cuda_device_zero,
    .digest = stw_cuda_device_digest,
    .record = record,
    .wait = wait_stream,
    .wait_host = wait_host,
    .synchronize = synchronize,
    .device_address = device_address,
    .native_stream = native_stream,
};

const stw_backend *stw_backend_cuda_find(void) { return &backend_cuda; }

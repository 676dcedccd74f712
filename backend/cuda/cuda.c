/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend's table. Streams h2d, compute, d2h and comm are CUDA streams; cpu and the disks
 * are the threads that call, and their work is done by the host kernels when the call returns. */
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
    out->link_bytes = stw_cuda_link_host_bytes(device->link);
    if (cudaSetDevice(device->ordinal) == cudaSuccess &&
        cudaMemGetInfo(&unused, &total) == cudaSuccess)
        out->used_now = total - unused - stw_cuda_link_gpu_bytes(device->link);
    else
        (void)cudaGetLastError();
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

/* A copy that touches GPU memory, and its addresses. */
typedef struct transfer {
    stw_location to, from;
    unsigned char *target, *source;
    uint64_t bytes;
} transfer;

static stw_status copy_async(const stw_device *device, cudaStream_t stream, const transfer *t,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    enum cudaMemcpyKind kind = t->to.tier != STW_TIER_GPU     ? cudaMemcpyDeviceToHost
                               : t->from.tier != STW_TIER_GPU ? cudaMemcpyHostToDevice
                                                              : cudaMemcpyDeviceToDevice;
    STW_TRY(stw_cuda_device_use(device, err));
    for (uint64_t done = 0; done < t->bytes;) {
        uint64_t part = t->bytes - done;
        if (t->to.tier == STW_TIER_HOST)
            part = stw_min_u64(part, stw_cuda_to_piece_end(t->to.offset + done));
        if (t->from.tier == STW_TIER_HOST)
            part = stw_min_u64(part, stw_cuda_to_piece_end(t->from.offset + done));
        STW_CUDA_TRY(
            cudaMemcpyAsync(t->target + done, t->source + done, (size_t)part, kind, stream),
            kind == cudaMemcpyHostToDevice   ? "copying from the host to the GPU"
            : kind == cudaMemcpyDeviceToHost ? "copying from the GPU to the host"
                                             : "copying inside the GPU");
        done += part;
    }
out:
    return status;
}

/* Parameters of CPU buckets return beside the copies of streamed ones. */
static bool is_fetched(const stw_device *device, stw_stream stream, const transfer *t) {
    return stream == STW_STREAM_FROM_CPU && t->to.tier == STW_TIER_GPU &&
           t->from.tier == STW_TIER_HOST && device->fetches && device->host_on_device &&
           ((uintptr_t)t->target | (uintptr_t)t->source) % STW_CUDA_FETCH_ALIGN == 0;
}

static stw_status copy(stw_device *device, stw_stream stream, stw_location to, stw_location from,
                       uint64_t bytes, stw_error *err) {
    transfer t = {.to = to, .from = from, .bytes = bytes};
    stw_status status = STW_STATUS_OK;
    bool on_gpu = stw_stream_is_gpu(stream);
    if (to.tier == STW_TIER_NVME || from.tier == STW_TIER_NVME)
        return stw_tiers_copy_nvme(&device->tiers, to, from, bytes, err);
    STW_TRY(stw_arenas_address(&device->tiers.arenas, to, bytes, &t.target, err));
    STW_TRY(stw_arenas_address(&device->tiers.arenas, from, bytes, &t.source, err));
    if (bytes == 0) goto out;
    STW_TRY(stw_arenas_check_apart(to, bytes, from, bytes, err));
    if (to.tier == STW_TIER_HOST && from.tier == STW_TIER_HOST) {
        if (on_gpu) {
            STW_TRY(stw_cuda_device_use(device, err));
            STW_CUDA_TRY(cudaStreamSynchronize(device->streams[stream]), "waiting for a stream");
        }
        stw_host_copy(device->tiers.threads, t.target, t.source, bytes);
        goto out;
    }
    if (is_fetched(device, stream, &t)) {
        STW_TRY(stw_cuda_device_use(device, err));
        STW_CUDA_TRY(stw_cuda_fetch(device->streams[stream], t.target, t.source, bytes),
                     "starting a copy from the host");
        goto out;
    }
    cudaStream_t cuda_stream = on_gpu ? device->streams[stream] : device->side;
    STW_TRY(copy_async(device, cuda_stream, &t, err));
    if (!on_gpu) STW_CUDA_TRY(cudaStreamSynchronize(cuda_stream), "waiting for a copy");
out:
    return status;
}

/* ---- updates ---- */

static stw_status set_spans(stw_device *device, const stw_span *spans, uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tiers *tiers = &device->tiers;
    tiers->n_spans = 0;
    STW_TRY(stw_tiers_check_spans(tiers, spans, n, err));
    if (n == 0) goto out;
    STW_TRY(stw_cuda_quiesce(device, err)); /* nothing may read the old table any more */
    memcpy(tiers->spans, spans, n * sizeof *spans);
    STW_CUDA_TRY(cudaMemcpyAsync(device->spans_on_gpu, tiers->spans, n * sizeof *spans,
                                 cudaMemcpyHostToDevice, device->side),
                 "copying the table of spans to the GPU");
    STW_CUDA_TRY(cudaStreamSynchronize(device->side), "waiting for the table of spans");
    tiers->n_spans = n;
out:
    return status;
}

/* A bucket inside one span, the usual one, needs no table: the kernel starts faster without. */
static void leave_spans(const stw_device *device, const stw_bucket_operands *bucket,
                        stw_cuda_bucket *operands) {
    const stw_element_types *types = &device->config.types;
    if (bucket->n_spans != 1) return;
    const stw_span *span = &device->tiers.spans[bucket->first_span];
    uint64_t skipped = bucket->first - span->first;
    if (operands->params_in_spans)
        operands->params = (void *)((uintptr_t)operands->params + span->params +
                                    skipped * stw_element_bytes(types->params));
    if (operands->grads_in_spans)
        operands->grads = (const void *)((uintptr_t)operands->grads + span->grads +
                                         skipped * stw_element_bytes(types->grads));
    operands->params_in_spans = operands->grads_in_spans = false;
    operands->param_group = span->group;
    operands->n_spans = 0;
}

static stw_status update_on_gpu(stw_device *device, stw_stream stream, const stw_adamw *adamw,
                                const stw_bucket_operands *bucket, const stw_bucket_addresses *at,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cuda_launch launch = {device->streams[stream], device->sms};
    stw_cuda_bucket operands = {.first = bucket->first,
                                .n = bucket->n,
                                .spans = device->spans_on_gpu + bucket->first_span,
                                .n_spans = bucket->n_spans,
                                .params_in_spans = bucket->params.in_spans,
                                .grads_in_spans = bucket->grads.in_spans,
                                .direct = at->on_host,
                                .params = at->params,
                                .grads = at->grads,
                                .master = at->master,
                                .exp_avg = at->exp_avg,
                                .exp_avg_sq = at->exp_avg_sq};
    leave_spans(device, bucket, &operands);
    if (at->on_host && !device->host_on_device)
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, "update",
                         "this GPU does not reach registered host memory by its host address"));
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(stw_cuda_adamw(launch, adamw, &device->scalars->clip.factor, &device->config.types,
                                &operands),
                 "starting the update kernel");
out:
    return status;
}

static stw_status update(stw_device *device, stw_stream stream, const stw_adamw *adamw,
                         const stw_bucket_operands *bucket, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_bucket_addresses at;
    if (bucket->n == 0) goto out;
    if (adamw->clip && !atomic_load(&device->has_factor))
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "update", "clips before any norm_factor"));
    STW_TRY(stw_tiers_resolve(&device->tiers, stream, bucket, &at, err));
    if (stw_stream_is_gpu(stream))
        STW_TRY(update_on_gpu(device, stream, adamw, bucket, &at, err));
    else
        stw_tiers_update(&device->tiers, adamw, device->staged->clip.factor, bucket, &at);
out:
    return status;
}

/* ---- the global norm ---- */

/* Both tiers' bins; those of the GPU in the order of the stream, of compute for a host stream. */
static stw_status norm_reset(stw_device *device, stw_stream stream, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (!stw_stream_is_gpu(stream)) stream = STW_STREAM_COMPUTE;
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaMemsetAsync(&device->scalars->bins, 0, sizeof device->scalars->bins,
                                 device->streams[stream]),
                 "zeroing the norm's bins");
    pthread_mutex_lock(&device->mutex);
    memset(&device->host_bins, 0, sizeof device->host_bins);
    pthread_mutex_unlock(&device->mutex);
out:
    return status;
}

static stw_status norm_add(stw_device *device, stw_stream stream, stw_typed_range grads,
                           stw_error *err) {
    unsigned char *at = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_stream("norm", grads.tier, stream, err));
    STW_TRY(stw_arenas_values(&device->tiers.arenas, grads, &at, err));
    if (grads.n == 0) goto out;
    if (grads.tier == STW_TIER_GPU) {
        stw_cuda_launch launch = {device->streams[stream], device->sms};
        STW_TRY(stw_cuda_device_use(device, err));
        STW_CUDA_TRY(stw_cuda_norm_add(launch, grads.type, at, grads.n, &device->scalars->bins),
                     "starting the norm kernel");
    } else {
        stw_norm_bins mine = {.not_finite = 0};
        stw_host_norm_add(device->tiers.threads, at, grads.type, grads.n, &mine);
        pthread_mutex_lock(&device->mutex);
        stw_norm_merge(&device->host_bins, &mine);
        pthread_mutex_unlock(&device->mutex);
    }
out:
    return status;
}

/* The host's bins go through page-locked memory, which the kernel reads by itself. Its slot was
 * last used two calls ago: in practice the wait for its event is none. GPU memory (bins, counters,
 * clip) is used again by the next step; steps are ordered by whoever runs them. */
static stw_status norm_counters(stw_device *device, stw_stream stream, bool counts,
                                uint64_t **counters, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *counters = NULL;
    if (!stw_stream_is_gpu(stream))
        return stw_fail(err, STW_STATUS_BUG, "norm", "counters on stream %s",
                        stw_stream_name(stream));
    stw_cuda_launch launch = {device->streams[stream], device->sms};
    pthread_mutex_lock(&device->mutex);
    uint64_t slot = device->n_counted++ % STW_CUDA_BINS_SLOTS;
    stw_norm_bins *host_bins = &device->staged->host_bins[slot];
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaEventSynchronize(device->bins_read[slot]), "waiting for earlier norms");
    *host_bins = device->host_bins;
    STW_CUDA_TRY(stw_cuda_norm_counters(launch, &device->scalars->bins, host_bins, counts,
                                        device->scalars->counters),
                 "starting the norm's counters");
    STW_CUDA_TRY(cudaEventRecord(device->bins_read[slot], launch.stream), "recording an event");
    *counters = device->scalars->counters;
out:
    pthread_mutex_unlock(&device->mutex);
    return status;
}

static stw_status norm_factor(stw_device *device, stw_stream stream, double clip_norm,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cuda_clip *clip = &device->scalars->clip;
    if (!stw_stream_is_gpu(stream))
        STW_TRY(
            stw_fail(err, STW_STATUS_BUG, "norm", "factor on stream %s", stw_stream_name(stream)));
    stw_cuda_launch launch = {device->streams[stream], device->sms};
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(stw_cuda_norm_factor(launch, device->scalars->counters, clip_norm, &clip->norm,
                                      &clip->factor),
                 "starting the clip factor");
    STW_CUDA_TRY(cudaMemcpyAsync(&device->staged->clip, clip, sizeof *clip, cudaMemcpyDeviceToHost,
                                 launch.stream),
                 "reading the clip factor");
    atomic_store(&device->has_factor, true);
out:
    return status;
}

static void norm_result(stw_device *device, double *norm, float *factor) {
    *norm = device->staged->clip.norm;
    *factor = device->staged->clip.factor;
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

static stw_status reached(stw_device *device, uint32_t event, bool *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool on_gpu = false;
    *out = true;
    STW_TRY(look_at_event(device, event, &on_gpu, err));
    if (!on_gpu) goto out;
    STW_TRY(stw_cuda_device_use(device, err));
    cudaError_t code = STW_CUDA_CALL(cudaEventQuery(device->events[event]));
    *out = code != cudaErrorNotReady;
    if (!*out)
        (void)cudaGetLastError(); /* it is none, and the next launch would report it */
    else if (code != cudaSuccess)
        status = stw_cuda_fail(err, code, "cudaEventQuery", "looking at an event");
out:
    return status;
}

static stw_status native_wait(stw_device *device, void *native, uint32_t event, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool on_gpu = false;
    STW_TRY(look_at_event(device, event, &on_gpu, err));
    if (!on_gpu) goto out;
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaStreamWaitEvent(native, device->events[event], 0),
                 "making a stream of the caller wait");
out:
    return status;
}

static stw_status check_mark(const stw_device *device, uint32_t mark, stw_error *err) {
    if (mark < device->n_marks) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "mark", "mark %u of %u", mark, device->n_marks);
}

static stw_status mark(stw_device *device, stw_stream stream, uint32_t number, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_mark(device, number, err));
    if (!stw_stream_is_gpu(stream))
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "mark", "on stream %s", stw_stream_name(stream)));
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaEventRecord(device->marks[number], device->streams[stream]),
                 "taking the time");
out:
    return status;
}

static stw_status mark_seconds(stw_device *device, uint32_t from, uint32_t to, double *seconds,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    float ms = 0;
    STW_TRY(check_mark(device, from, err));
    STW_TRY(check_mark(device, to, err));
    STW_CUDA_TRY(cudaEventElapsedTime(&ms, device->marks[from], device->marks[to]),
                 "reading the time");
    *seconds = 1e-3 * (double)ms;
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

static void enter(stw_device *device, stw_stream stream) {
    if (stream == STW_STREAM_CPU)
        stw_threads_keep_caller(device->tiers.threads);
    else
        stw_cpus_keep(&device->cpus);
}

static const stw_backend backend_cuda = {
    .name = "cuda",
    .gpu = true,
    .available = available,
    .open = stw_cuda_device_open,
    .close = stw_cuda_device_close,
    .info = info,
    .enter = enter,
    .host_address = stw_tiers_host_address,
    .copy = copy,
    .set_spans = set_spans,
    .queue_spans = stw_cuda_device_queue_spans,
    .update = update,
    .norm_reset = norm_reset,
    .norm_add = norm_add,
    .norm_add_spans = stw_cuda_device_norm_add_spans,
    .norm_counters = norm_counters,
    .norm_factor = norm_factor,
    .norm_result = norm_result,
    .read = stw_tiers_read,
    .write = stw_tiers_write,
    .commit = stw_tiers_commit,
    .nvme = stw_tiers_nvme,
    .convert = stw_cuda_device_convert,
    .convert_from = stw_cuda_device_convert_from,
    .seed_grads = stw_cuda_device_seed_grads,
    .put = stw_cuda_device_put,
    .get = stw_cuda_device_get,
    .page_lock = stw_cuda_device_page_lock,
    .zero = stw_cuda_device_zero,
    .digest = stw_cuda_device_digest,
    .link_seconds = stw_cuda_device_link_seconds,
    .record = record,
    .wait = wait_stream,
    .wait_host = wait_host,
    .reached = reached,
    .follow_native = stw_cuda_device_follow_native,
    .native_wait = native_wait,
    .mark = mark,
    .mark_seconds = mark_seconds,
    .synchronize = synchronize,
    .device_address = stw_tiers_device_address,
    .native_stream = native_stream,
};

const stw_backend *stw_backend_cuda_find(void) { return &backend_cuda; }

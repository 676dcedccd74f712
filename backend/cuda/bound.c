/* SPDX-License-Identifier: Apache-2.0 */
/* What steps on tensors of the caller's need besides: tables of spans that change while the GPU
 * works, gradients that lie apart, and order between streams of the caller's and the device's. */
#include <string.h>

#include "backend/cuda/device.h"
#include "core/checked.h"

stw_status stw_cuda_device_queue_spans(stw_device *device, stw_stream stream, const stw_span *spans,
                                       uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tiers *tiers = &device->tiers;
    const uint64_t slot = device->n_queued++ % STW_CUDA_SPANS_SLOTS;
    STW_TRY(stw_tiers_check_spans(tiers, spans, n, err));
    if (!stw_stream_is_gpu(stream) || device->span_slots[slot] == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "spans", "queued on stream %s of a device without",
                         stw_stream_name(stream)));
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaEventSynchronize(device->spans_read[slot]), "waiting for earlier spans");
    const uint64_t bytes = stw_times(n, sizeof *spans);
    memcpy(device->span_slots[slot], spans, (size_t)bytes);
    STW_CUDA_TRY(cudaMemcpyAsync(device->spans_on_gpu, device->span_slots[slot], (size_t)bytes,
                                 cudaMemcpyHostToDevice, device->streams[stream]),
                 "copying the table of spans to the GPU");
    STW_CUDA_TRY(cudaEventRecord(device->spans_read[slot], device->streams[stream]),
                 "recording an event");
    tiers->spans = device->span_slots[slot];
    tiers->n_spans = n;
out:
    return status;
}

stw_status stw_cuda_device_norm_add_spans(stw_device *device, stw_stream stream, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_tiers *tiers = &device->tiers;
    if (tiers->n_spans == 0) return STW_STATUS_OK;
    if (!stw_stream_is_gpu(stream))
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "norm", "of spans on stream %s",
                         stw_stream_name(stream)));
    const stw_span *last = &tiers->spans[tiers->n_spans - 1];
    const stw_cuda_grads grads = {.base = tiers->arenas.base[STW_TIER_GPU],
                                  .spans = device->spans_on_gpu,
                                  .n_spans = tiers->n_spans,
                                  .n = last->first + last->n};
    const stw_cuda_launch launch = {device->streams[stream], device->sms};
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(
        stw_cuda_norm_add_spans(launch, tiers->types.grads, &grads, &device->scalars->bins),
        "starting the norm kernel");
out:
    return status;
}

stw_status stw_cuda_device_follow_native(stw_device *device, stw_stream stream, void *native,
                                         stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (!stw_stream_is_gpu(stream))
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "stream", "%s follows a native one",
                         stw_stream_name(stream)));
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaEventRecord(device->join, native),
                 "recording an event on a stream of the caller, which must be of the same GPU");
    STW_CUDA_TRY(cudaStreamWaitEvent(device->streams[stream], device->join, 0),
                 "making a stream wait");
out:
    return status;
}

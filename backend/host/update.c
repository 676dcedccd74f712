/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of the host backend: from operands, which are offsets and spans, to addresses. */
#include "backend/host/device.h"
#include "backend/host/kernels.h"
#include "core/checked.h"

stw_status stw_host_set_spans(stw_device *device, const stw_span *spans, uint32_t n,
                              stw_error *err) {
    if (n > device->config.n_spans)
        return stw_fail(err, STW_STATUS_BUG, "spans", "%u spans, room for %u", n,
                        device->config.n_spans);
    for (uint32_t i = 0; i < n; i++) {
        if (spans[i].n == 0 || spans[i].group >= STW_MAX_PARAM_GROUPS)
            return stw_fail(err, STW_STATUS_BUG, "spans",
                            "span %u has %llu elements of group %u; at least 1 and a group below "
                            "%d are expected",
                            i, (unsigned long long)spans[i].n, spans[i].group,
                            STW_MAX_PARAM_GROUPS);
        if (i > 0 && spans[i].first != spans[i - 1].first + spans[i - 1].n)
            return stw_fail(err, STW_STATUS_BUG, "spans",
                            "span %u begins at element %llu, the one before ends at %llu", i,
                            (unsigned long long)spans[i].first,
                            (unsigned long long)(spans[i - 1].first + spans[i - 1].n));
    }
    if (n > 0) memcpy(device->spans, spans, n * sizeof *spans);
    device->n_spans = n;
    return STW_STATUS_OK;
}

/* A bucket's spans must cover it. */
static stw_status check_spans(const stw_device *device, const stw_bucket_operands *bucket,
                              stw_error *err) {
    uint32_t first = bucket->first_span, n = bucket->n_spans;
    if (n > 0 && first < device->n_spans && n <= device->n_spans - first) {
        const stw_span *head = &device->spans[first], *tail = &device->spans[first + n - 1];
        if (bucket->first >= head->first && bucket->first - head->first < head->n &&
            bucket->n <= tail->first + tail->n - bucket->first)
            return STW_STATUS_OK;
    }
    return stw_fail(err, STW_STATUS_BUG, "update",
                    "%u spans from %u (of %u) do not cover %llu elements at %llu", n, first,
                    device->n_spans, (unsigned long long)bucket->n,
                    (unsigned long long)bucket->first);
}

/* Which offset of a span says where a component lies. */
typedef enum span_place { PLACE_PARAMS, PLACE_GRADS, PLACE_NONE } span_place;

/* All parts of a component whose places the spans say must lie in its arena. */
static stw_status check_span_parts(const stw_device *device, const stw_bucket_operands *bucket,
                                   stw_tier tier, span_place place, stw_element type,
                                   stw_error *err) {
    for (uint32_t i = 0; i < bucket->n_spans; i++) {
        const stw_span *span = &device->spans[bucket->first_span + i];
        uint64_t first = stw_max_u64(span->first, bucket->first);
        uint64_t end = stw_min_u64(span->first + span->n, bucket->first + bucket->n);
        uint64_t base = place == PLACE_GRADS ? span->grads : span->params;
        unsigned char *part = NULL;
        if (first >= end) continue;
        stw_typed_range values = {tier, base + (first - span->first) * stw_element_bytes(type),
                                  type, end - first};
        stw_status status = stw_host_value_range(device, values, &part, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

/* One component of an update. */
typedef struct component {
    const stw_operand *operand;
    span_place place;
    stw_element type;
} component;

/* Its address as stw_host_bucket wants it. */
static stw_status resolve(const stw_device *device, stw_stream stream,
                          const stw_bucket_operands *bucket, component c, unsigned char **out,
                          stw_error *err) {
    const stw_operand *o = c.operand;
    *out = NULL;
    if (c.type == STW_ELEMENT_NONE) return STW_STATUS_OK;
    if (o->tier == STW_TIER_NVME || (o->tier == STW_TIER_GPU && !stw_stream_is_gpu(stream)))
        return stw_fail(err, STW_STATUS_BUG, "update", "stream %s cannot reach tier %s",
                        stw_stream_name(stream), stw_tier_name(o->tier));
    if (!o->in_spans)
        return stw_host_value_range(device, stw_typed(o->tier, o->offset, c.type, bucket->n), out,
                                    err);
    if (c.place == PLACE_NONE)
        return stw_fail(err, STW_STATUS_BUG, "update", "spans place params and grads alone");
    *out = device->arena[o->tier];
    return check_span_parts(device, bucket, o->tier, c.place, c.type, err);
}

stw_status stw_host_update(stw_device *device, stw_stream stream, const stw_adamw *adamw,
                           const stw_bucket_operands *bucket, stw_error *err) {
    const stw_element_types *types = &device->config.types;
    const component components[STW_N_STATE] = {
        {&bucket->params, PLACE_PARAMS, types->params},
        {&bucket->grads, PLACE_GRADS, types->grads},
        {&bucket->master, PLACE_NONE, types->master},
        {&bucket->exp_avg, PLACE_NONE, types->exp_avg},
        {&bucket->exp_avg_sq, PLACE_NONE, types->exp_avg_sq}};
    unsigned char *at[STW_N_STATE] = {NULL};
    float factor = 1.0f;
    stw_status status = STW_STATUS_OK;
    if (bucket->n == 0) goto out;
    STW_TRY(check_spans(device, bucket, err));
    for (int i = 0; i < STW_N_STATE; i++)
        STW_TRY(resolve(device, stream, bucket, components[i], &at[i], err));
    stw_host_bucket work = {.first = bucket->first,
                            .n = bucket->n,
                            .spans = device->spans + bucket->first_span,
                            .n_spans = bucket->n_spans,
                            .params_in_spans = bucket->params.in_spans,
                            .grads_in_spans = bucket->grads.in_spans,
                            .params = at[0],
                            .grads = at[1],
                            .master = (float *)(void *)at[2],
                            .exp_avg = at[3],
                            .exp_avg_sq = at[4]};
    pthread_mutex_lock(&device->mutex);
    factor = device->factor;
    pthread_mutex_unlock(&device->mutex);
    stw_host_adamw(device->threads, adamw, factor, types, &work);
out:
    return status;
}

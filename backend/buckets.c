/* SPDX-License-Identifier: Apache-2.0 */
/* Updates: from operands, which are offsets and spans, to addresses. */
#include "backend/host/kernels.h"
#include "backend/tiers.h"
#include "core/checked.h"

stw_status stw_tiers_check_spans(const stw_tiers *tiers, const stw_span *spans, uint32_t n,
                                 stw_error *err) {
    if (n > tiers->span_room)
        return stw_fail(err, STW_STATUS_BUG, "spans", "%u spans, room for %u", n, tiers->span_room);
    for (uint32_t i = 0; i < n; i++) {
        if (spans[i].n == 0 || spans[i].n > UINT64_MAX - spans[i].first ||
            spans[i].group >= STW_MAX_PARAM_GROUPS)
            return stw_fail(err, STW_STATUS_BUG, "spans",
                            "span %u has %llu elements of parameter group %u; at least 1 and a "
                            "group below %d are expected",
                            i, (unsigned long long)spans[i].n, spans[i].group,
                            STW_MAX_PARAM_GROUPS);
        if (i > 0 && spans[i].first != spans[i - 1].first + spans[i - 1].n)
            return stw_fail(err, STW_STATUS_BUG, "spans",
                            "span %u begins at element %llu, the one before ends at %llu", i,
                            (unsigned long long)spans[i].first,
                            (unsigned long long)(spans[i - 1].first + spans[i - 1].n));
    }
    return STW_STATUS_OK;
}

/* A bucket's spans must cover it; the table has no gaps. */
static stw_status check_covered(const stw_tiers *tiers, const stw_bucket_operands *bucket,
                                stw_error *err) {
    uint32_t first = bucket->first_span, n = bucket->n_spans;
    if (bucket->n <= UINT64_MAX - bucket->first && n > 0 && first < tiers->n_spans &&
        n <= tiers->n_spans - first) {
        const stw_span *head = &tiers->spans[first], *tail = &tiers->spans[first + n - 1];
        if (head->first <= bucket->first && bucket->first - head->first < head->n &&
            tail->first < bucket->first + bucket->n &&
            bucket->first + bucket->n - tail->first <= tail->n)
            return STW_STATUS_OK;
    }
    return stw_fail(err, STW_STATUS_BUG, "update",
                    "%u spans from %u (of %u) do not cover %llu elements at %llu", n, first,
                    tiers->n_spans, (unsigned long long)bucket->n,
                    (unsigned long long)bucket->first);
}

/* Which offset of a span says where a component lies. */
typedef enum span_place { PLACE_PARAMS, PLACE_GRADS, PLACE_NONE } span_place;

typedef struct component {
    const char *name;
    const stw_operand *operand;
    span_place place;
    stw_element type;
} component;

/* All parts of a component whose places the spans say must lie in its arena. */
static stw_status check_span_parts(const stw_tiers *tiers, const stw_bucket_operands *bucket,
                                   const component *c, stw_error *err) {
    const uint64_t each = stw_element_bytes(c->type);
    for (uint32_t i = 0; i < bucket->n_spans; i++) {
        const stw_span *span = &tiers->spans[bucket->first_span + i];
        uint64_t first = stw_max_u64(span->first, bucket->first), bytes = 0;
        uint64_t end = stw_min_u64(span->first + span->n, bucket->first + bucket->n);
        uint64_t offset = c->place == PLACE_GRADS ? span->grads : span->params;
        offset += (first - span->first) * each; /* modulo 2^64 */
        if (tiers->spans_outside && offset % each == 0 &&
            offset >= tiers->arenas.reach[c->operand->tier])
            continue;
        stw_status status = stw_arenas_check_values(
            &tiers->arenas, stw_typed(c->operand->tier, offset, c->type, end - first), &bytes, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

static stw_status resolve(const stw_tiers *tiers, stw_stream stream,
                          const stw_bucket_operands *bucket, const component *c,
                          unsigned char **out, stw_error *err) {
    const stw_operand *o = c->operand;
    if (c->type == STW_ELEMENT_NONE) return STW_STATUS_OK;
    if (o->tier == STW_TIER_NVME || (o->tier == STW_TIER_GPU && !stw_stream_is_gpu(stream)))
        return stw_fail(err, STW_STATUS_BUG, c->name, "stream %s cannot reach tier %s",
                        stw_stream_name(stream), stw_tier_name(o->tier));
    if (!o->in_spans)
        return stw_arenas_values(&tiers->arenas, stw_typed(o->tier, o->offset, c->type, bucket->n),
                                 out, err);
    if (c->place == PLACE_NONE)
        return stw_fail(err, STW_STATUS_BUG, c->name, "spans place params and grads alone");
    *out = tiers->arenas.base[o->tier];
    return check_span_parts(tiers, bucket, c, err);
}

stw_status stw_tiers_resolve(const stw_tiers *tiers, stw_stream stream,
                             const stw_bucket_operands *bucket, stw_bucket_addresses *out,
                             stw_error *err) {
    const stw_element_types *types = &tiers->types;
    const component components[STW_N_STATE] = {
        {"params", &bucket->params, PLACE_PARAMS, types->params},
        {"grads", &bucket->grads, PLACE_GRADS, types->grads},
        {"master", &bucket->master, PLACE_NONE, types->master},
        {"exp_avg", &bucket->exp_avg, PLACE_NONE, types->exp_avg},
        {"exp_avg_sq", &bucket->exp_avg_sq, PLACE_NONE, types->exp_avg_sq}};
    unsigned char *at[STW_N_STATE] = {NULL};
    bool on_host = false;
    stw_status status = STW_STATUS_OK;
    if (!stw_stream_is_gpu(stream) && stream != STW_STREAM_CPU)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "update", "stream %s does no updates",
                         stw_stream_name(stream)));
    STW_TRY(check_covered(tiers, bucket, err));
    for (int i = 0; i < STW_N_STATE; i++) {
        STW_TRY(resolve(tiers, stream, bucket, &components[i], &at[i], err));
        if (at[i] != NULL && components[i].operand->tier == STW_TIER_HOST) on_host = true;
    }
    *out = (stw_bucket_addresses){at[0], at[1], at[2], at[3], at[4], on_host};
out:
    return status;
}

void stw_tiers_update(const stw_tiers *tiers, const stw_adamw *adamw, float factor,
                      const stw_bucket_operands *bucket, const stw_bucket_addresses *at) {
    const stw_host_bucket work = {.first = bucket->first,
                                  .n = bucket->n,
                                  .spans = tiers->spans + bucket->first_span,
                                  .n_spans = bucket->n_spans,
                                  .params_in_spans = bucket->params.in_spans,
                                  .grads_in_spans = bucket->grads.in_spans,
                                  .params = at->params,
                                  .grads = at->grads,
                                  .master = at->master,
                                  .exp_avg = at->exp_avg,
                                  .exp_avg_sq = at->exp_avg_sq};
    stw_host_adamw(tiers->threads, adamw, factor, &tiers->types, &work);
}

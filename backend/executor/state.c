/* SPDX-License-Identifier: Apache-2.0 */
/* How the state of a rank is stored and cut up for updates: element types, and spans, the runs of
 * elements that share a tensor's parameter group and lie together. */
#include "backend/executor/run.h"
#include "core/checked.h"

/* ---- element types ---- */

static stw_status element_of(const char *key, stw_dtype dtype, stw_element *out, stw_error *err) {
    *out = dtype == STW_DTYPE_F32    ? STW_ELEMENT_F32
           : dtype == STW_DTYPE_BF16 ? STW_ELEMENT_BF16
                                     : STW_ELEMENT_NONE;
    if (*out != STW_ELEMENT_NONE) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, key,
                    "found %s; this executor steps state in fp32 and bf16", stw_dtype_name(dtype));
}

stw_status stw_run_types(const stw_run_spec *spec, stw_element_types *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(element_of("precision.params", spec->precision.params, &out->params, err));
    STW_TRY(element_of("precision.grads", spec->precision.grads, &out->grads, err));
    STW_TRY(element_of("precision.exp_avg", spec->precision.exp_avg, &out->exp_avg, err));
    STW_TRY(element_of("precision.exp_avg_sq", spec->precision.exp_avg_sq, &out->exp_avg_sq, err));
    out->master = spec->precision.has_master ? STW_ELEMENT_F32 : STW_ELEMENT_NONE;
    if (out->master != STW_ELEMENT_NONE && out->params == STW_ELEMENT_F32)
        status = stw_fail(err, STW_STATUS_NOT_BUILT_IN, "precision.master",
                          "found fp32 beside fp32 params, which are their own master; use "
                          "precision.params: bf16, or precision.master: none");
out:
    return status;
}

stw_element stw_run_type(const stw_element_types *types, stw_component component) {
    switch (component) {
    case STW_COMPONENT_PARAMS:
        return types->params;
    case STW_COMPONENT_GRADS:
        return types->grads;
    case STW_COMPONENT_MASTER:
        return types->master;
    case STW_COMPONENT_EXP_AVG:
        return types->exp_avg;
    case STW_COMPONENT_EXP_AVG_SQ:
        return types->exp_avg_sq;
    default:
        return STW_ELEMENT_NONE;
    }
}

/* ---- spans ---- */

static const stw_region *region_at(const stw_layout *layout, stw_component component,
                                   uint64_t param) {
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        if (r->component == component && param >= r->first_param &&
            param - r->first_param < r->params)
            return r;
    }
    return NULL;
}

/* The span goes on where the last one ends: same group, neighbours in both regions. */
static bool joins(const stw_rank_run *run, const stw_span *last, const stw_span *next) {
    return last->group == next->group &&
           last->params + last->n * stw_element_bytes(run->types.params) == next->params &&
           last->grads + last->n * stw_element_bytes(run->types.grads) == next->grads;
}

static stw_status add_span(stw_rank_run *run, const stw_segment *s, uint64_t *done,
                           stw_error *err) {
    uint64_t first = s->flat_first + *done;
    const stw_region *p = region_at(run->layout, STW_COMPONENT_PARAMS, first);
    const stw_region *g = region_at(run->layout, STW_COMPONENT_GRADS, first);
    if (p == NULL || g == NULL)
        return stw_fail(err, STW_STATUS_BUG, "spans", "element %llu has no region",
                        (unsigned long long)first);
    uint64_t end = stw_min_u64(s->flat_first + s->params, p->first_param + p->params);
    end = stw_min_u64(end, g->first_param + g->params);
    stw_span span = {
        .first = first,
        .n = end - first,
        .params = p->offset_bytes + (first - p->first_param) * stw_element_bytes(run->types.params),
        .grads = g->offset_bytes + (first - g->first_param) * stw_element_bytes(run->types.grads),
        .group = stw_job_param_group(run->job, s->tensor),
    };
    *done += span.n;
    stw_span *last = run->n_spans > 0 ? &run->spans[run->n_spans - 1] : NULL;
    if (last != NULL &&
        p->decision == region_at(run->layout, STW_COMPONENT_PARAMS, last->first)->decision &&
        joins(run, last, &span))
        last->n += span.n;
    else
        run->spans[run->n_spans++] = span;
    return STW_STATUS_OK;
}

/* Spans that meet each bucket; both are ascending. */
static void match_buckets(stw_rank_run *run) {
    for (uint32_t b = 0; b < run->layout->n_buckets; b++) {
        const stw_bucket *bucket = &run->layout->buckets[b];
        uint32_t low = 0, high = run->n_spans;
        while (low + 1 < high) {
            uint32_t middle = low + (high - low) / 2;
            if (run->spans[middle].first <= bucket->first_param)
                low = middle;
            else
                high = middle;
        }
        uint32_t end = low;
        while (end < run->n_spans && run->spans[end].first < bucket->first_param + bucket->params)
            end++;
        run->bucket_spans[b] = (stw_span_range){low, end - low};
    }
}

stw_status stw_run_make_spans(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    /* A segment is cut at most where one decision ends and the next begins. */
    uint64_t most = (uint64_t)run->n_segments + STW_MAX_PLACES;
    run->spans = stw_pool_array(run->pool, (size_t)most, sizeof *run->spans);
    run->bucket_spans =
        stw_pool_array(run->pool, run->layout->n_buckets, sizeof *run->bucket_spans);
    if (run->spans == NULL || run->bucket_spans == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "spans", "out of memory");
    for (uint32_t i = 0; i < run->n_segments; i++)
        for (uint64_t done = 0; done < run->segments[i].params;)
            STW_TRY(add_span(run, &run->segments[i], &done, err));
    match_buckets(run);
out:
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How the state of a rank is stored and cut up for updates: element types, where the components of
 * a bucket lie, and spans, the runs of elements that share a tensor's parameter group and lie
 * together. */
#include "backend/executor/run.h"

#include <stdlib.h>

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

stw_status stw_exec_types(const stw_run_spec *spec, stw_element_types *out, stw_error *err) {
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

stw_element stw_exec_type(const stw_element_types *types, stw_component component) {
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

/* ---- operands ---- */

/* In the ring that a component moves through, or at home. */
static stw_operand operand(const stw_plan *plan, const stw_layout *layout, const stw_bucket *bucket,
                           stw_component component) {
    const stw_place *place = &plan->decisions.state[bucket->decision].place;
    stw_operand out = {.tier = stw_place_tier(place, component)};
    if (stw_job_element_bytes(plan->job, component) == 0) return out;
    if (stw_place_moves_up(plan->job, place, component) ||
        stw_place_moves_down(plan->job, place, component)) {
        bool cpu = place->update == STW_UPDATE_CPU;
        const stw_ring *ring = &layout->rings[cpu ? STW_RING_HOST_CPU : STW_RING_GPU];
        out.tier = cpu ? STW_TIER_HOST : STW_TIER_GPU;
        out.offset = ring->offset_bytes + stw_times(bucket->slot, ring->slot_bytes) +
                     stw_slot_offset(plan->job, place, component, bucket->params);
        return out;
    }
    out.in_spans = component == STW_COMPONENT_PARAMS || component == STW_COMPONENT_GRADS;
    out.offset = stw_layout_address(plan->job, layout, component, bucket->first_param);
    return out;
}

void stw_exec_operands(const stw_plan *plan, const stw_layout *layout, uint32_t index,
                       stw_bucket_operands *out) {
    const stw_bucket *bucket = &layout->buckets[index];
    *out = (stw_bucket_operands){
        .first = bucket->first_param,
        .n = bucket->params,
        .params = operand(plan, layout, bucket, STW_COMPONENT_PARAMS),
        .grads = operand(plan, layout, bucket, STW_COMPONENT_GRADS),
        .master = operand(plan, layout, bucket, STW_COMPONENT_MASTER),
        .exp_avg = operand(plan, layout, bucket, STW_COMPONENT_EXP_AVG),
        .exp_avg_sq = operand(plan, layout, bucket, STW_COMPONENT_EXP_AVG_SQ),
    };
}

/* ---- spans ---- */

/* A run of the optimizer space whose params (or grads) lie together. */
typedef struct home {
    uint64_t first, n; /* elements of the optimizer space */
    uint64_t offset;   /* bytes in the region's tier */
    uint32_t region, tensor;
} home;

typedef struct homes {
    home *list;
    size_t n, room;
} homes;

static int by_first(const void *a, const void *b) {
    uint64_t x = ((const home *)a)->first, y = ((const home *)b)->first;
    return (x > y) - (x < y);
}

/* Where the component of every element of the optimizer space lies: params and grads may be cut
 * otherwise, and then a rank updates only some of those that it holds. */
static stw_status find_homes(stw_rank_run *run, stw_component component, homes *out,
                             stw_error *err) {
    uint64_t size = stw_element_bytes(stw_exec_type(&run->types, component));
    const stw_view updated = stw_space_whole(&run->spaces[STW_SPACE_OPTIMIZER]);
    stw_overlap part;
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *r = &run->layout->regions[i];
        if (r->component != component) continue;
        stw_meet meet = stw_meet_begin(stw_region_view(r, &run->spaces[r->space]), updated);
        while (stw_meet_next(&meet, &part)) {
            out->list = stw_pool_grow(run->pool, out->list, out->n, out->n + 1, &out->room,
                                      sizeof *out->list);
            if (out->list == NULL)
                return stw_fail(err, STW_STATUS_NO_MEMORY, "spans", "out of memory");
            out->list[out->n++] =
                (home){part.b_first, part.n,
                       r->offset_bytes + (part.a_first - r->first_param) * size, i, part.tensor};
        }
    }
    qsort(out->list, out->n, sizeof *out->list, by_first);
    return STW_STATUS_OK;
}

/* The span goes on where the last one ends: same region, same parameter group, neighbours in both.
 */
static bool joins(const stw_rank_run *run, const stw_span *last, const stw_span *next) {
    return last->group == next->group && last->first + last->n == next->first &&
           last->params + stw_times(last->n, stw_element_bytes(run->types.params)) ==
               next->params &&
           last->grads + stw_times(last->n, stw_element_bytes(run->types.grads)) == next->grads;
}

/* Elements that have both homes, cut where either ends. */
static stw_status cut_spans(stw_rank_run *run, const homes *params, const homes *grads,
                            stw_error *err) {
    uint32_t region = UINT32_MAX;
    size_t i = 0, j = 0;
    uint64_t covered = 0;
    while (i < params->n && j < grads->n) {
        const home *p = &params->list[i], *g = &grads->list[j];
        uint64_t first = stw_max_u64(p->first, g->first);
        uint64_t end = stw_min_u64(p->first + p->n, g->first + g->n);
        if (p->first + p->n <= end) i++;
        if (g->first + g->n <= end) j++;
        if (first >= end) continue;
        stw_span span = {
            .first = first,
            .n = end - first,
            .params = p->offset + stw_times(first - p->first, stw_element_bytes(run->types.params)),
            .grads = g->offset + stw_times(first - g->first, stw_element_bytes(run->types.grads)),
            .group = stw_job_param_group(run->job, p->tensor),
        };
        covered += span.n;
        stw_span *last = run->n_spans > 0 ? &run->spans[run->n_spans - 1] : NULL;
        if (last != NULL && region == p->region && joins(run, last, &span))
            last->n += span.n;
        else
            run->spans[run->n_spans++] = span;
        region = p->region;
    }
    if (covered == run->spaces[STW_SPACE_OPTIMIZER].n) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "spans",
                    "this rank has params and grads of %llu of the %llu elements that it updates",
                    (unsigned long long)covered,
                    (unsigned long long)run->spaces[STW_SPACE_OPTIMIZER].n);
}

void stw_exec_match_spans(const stw_layout *layout, const stw_span *spans, uint32_t n,
                          stw_span_range *out) {
    for (uint32_t b = 0; b < layout->n_buckets; b++) {
        const stw_bucket *bucket = &layout->buckets[b];
        uint32_t low = 0, high = n;
        while (low + 1 < high) {
            uint32_t middle = low + (high - low) / 2;
            if (spans[middle].first <= bucket->first_param)
                low = middle;
            else
                high = middle;
        }
        uint32_t end = low;
        while (end < n && spans[end].first < bucket->first_param + bucket->params) end++;
        out[b] = (stw_span_range){low, end - low};
    }
}

stw_status stw_exec_make_spans(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    homes params = {NULL, 0, 0}, grads = {NULL, 0, 0};
    STW_TRY(find_homes(run, STW_COMPONENT_PARAMS, &params, err));
    STW_TRY(find_homes(run, STW_COMPONENT_GRADS, &grads, err));
    run->spans = stw_pool_array(run->pool, params.n + grads.n, sizeof *run->spans);
    run->bucket_spans =
        stw_pool_array(run->pool, run->layout->n_buckets, sizeof *run->bucket_spans);
    if (run->spans == NULL || run->bucket_spans == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "spans", "out of memory");
    STW_TRY(cut_spans(run, &params, &grads, err));
    stw_exec_match_spans(run->layout, run->spans, run->n_spans, run->bucket_spans);
out:
    return status;
}

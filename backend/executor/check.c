/* SPDX-License-Identifier: Apache-2.0 */
/* What surrounds the steps: gradients that stand for a backward's, digests of the state, and a
 * replay of a sample of elements from load to last step with the scalar element functions, whose
 * bits the arenas must hold. */
#include "backend/executor/run.h"

#include <stdlib.h>

#include "backend/host/kernels.h"
#include "core/checked.h"
#include "core/log.h"

/* Elements of one tensor that lie together in a region. */
typedef struct extent {
    uint32_t tensor;
    uint64_t tensor_first, global_first, n;
    uint64_t offset; /* in the region's tier */
} extent;

/* A walk over the extents of a region, or of those of its elements that a view of the model has. */
typedef struct extents {
    const stw_rank_run *run;
    const stw_region *region;
    stw_meet meet;
} extents;

static extents extents_of(const stw_rank_run *run, const stw_region *region, stw_view of_model) {
    return (extents){
        run, region,
        stw_meet_begin(of_model, stw_region_view(region, &run->spaces[region->space]))};
}

static extents extents_of_all(const stw_rank_run *run, const stw_region *region) {
    return extents_of(run, region, stw_space_whole(&run->job->files));
}

static bool next_extent(extents *walk, extent *out) {
    stw_overlap part;
    if (!stw_meet_next(&walk->meet, &part)) return false;
    uint64_t size = stw_element_bytes(stw_exec_type(&walk->run->types, walk->region->component));
    *out = (extent){part.tensor, part.tensor_first, part.global_first, part.n,
                    walk->region->offset_bytes + (part.b_first - walk->region->first_param) * size};
    return true;
}

stw_status stw_exec_zero_moments(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component == STW_COMPONENT_EXP_AVG ||
            region->component == STW_COMPONENT_EXP_AVG_SQ)
            STW_TRY(run->backend->zero(run->device, stw_at(region->tier, region->offset_bytes),
                                       region->bytes, err));
    }
out:
    return status;
}

stw_status stw_exec_seed_grads(stw_rank_run *run, uint64_t step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_exec_progress_grads(run, step);
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != STW_COMPONENT_GRADS) continue;
        extents walk = extents_of_all(run, region);
        extent e;
        while (next_extent(&walk, &e)) {
            STW_TRY(run->backend->seed_grads(
                run->device, stw_typed(region->tier, e.offset, run->types.grads, e.n),
                e.global_first, run->options->seed, step, err));
            stw_exec_progress_add(run, e.n);
        }
    }
out:
    return status;
}

/* Index into digests of a component, -1 where it has none. */
static int digest_index(stw_component component) {
    switch (component) {
    case STW_COMPONENT_PARAMS:
        return 0;
    case STW_COMPONENT_EXP_AVG:
        return 1;
    case STW_COMPONENT_EXP_AVG_SQ:
        return 2;
    case STW_COMPONENT_MASTER:
        return 3;
    default:
        return -1;
    }
}

stw_status stw_exec_digest(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t sums[STW_N_DIGESTS] = {0};
    stw_exec_progress_digest(run);
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        int d = digest_index(region->component);
        if (d < 0 || !stw_job_counts(run->job, region->space, run->ranks.rank)) continue;
        extents walk = extents_of_all(run, region);
        extent e;
        while (next_extent(&walk, &e)) {
            STW_TRY(
                run->backend->digest(run->device,
                                     stw_typed(region->tier, e.offset,
                                               stw_exec_type(&run->types, region->component), e.n),
                                     e.global_first, &sums[d], err));
            stw_exec_progress_add(run, e.n);
        }
    }
    stw_comm_about(run->comm, "digests");
    STW_TRY(stw_comm_sum_u64(run->comm, sums, STW_N_DIGESTS, err));
    memcpy(run->digest, sums, sizeof run->digest);
out:
    return status;
}

/* ---- replay ---- */

#define SAMPLE 4096u /* elements of a rank, about */
#define RUN 16u      /* neighbours that are looked at together */

typedef struct replayed {
    uint64_t n;
    float values[STW_N_DIGESTS][RUN]; /* params, exp_avg, exp_avg_sq, master; as stored */
} replayed;

/* A value as an element of a type keeps it. */
static float stored(stw_element type, float value) {
    return type == STW_ELEMENT_BF16 ? stw_float_from_bf16(stw_bf16_from_float(value)) : value;
}

static uint32_t stored_bits(stw_element type, float value) {
    return type == STW_ELEMENT_BF16 ? stw_bf16_from_float(value) : stw_bits_from_float(value);
}

/* The weights as they were loaded. */
static stw_status first_values(stw_rank_run *run, stw_weights *weights, const extent *e,
                               replayed *out, stw_error *err) {
    double raw[RUN]; /* room for the widest dtype */
    stw_status status = stw_weights_read(weights, e->tensor, e->tensor_first, e->n, raw, err);
    if (status != STW_STATUS_OK) return status;
    stw_host_convert(NULL, out->values[0], STW_ELEMENT_F32, raw,
                     stw_weights_dtype(weights, e->tensor), e->n);
    for (uint64_t i = 0; i < e->n; i++)
        out->values[3][i] = out->values[0][i] = stored(run->types.params, out->values[0][i]);
    return status;
}

/* One step of one element. */
static void replay_step(const stw_rank_run *run, const stw_adamw *adamw, stw_adamw_group group,
                        float factor, float grad, uint64_t i, replayed *r) {
    const stw_element_types *t = &run->types;
    bool master = t->master != STW_ELEMENT_NONE;
    float *work = master ? &r->values[3][i] : &r->values[0][i];
    stw_adamw_element(adamw, group, factor, work, stored(t->grads, grad), &r->values[1][i],
                      &r->values[2][i]);
    r->values[0][i] = stored(t->params, *work);
    r->values[1][i] = stored(t->exp_avg, r->values[1][i]);
    r->values[2][i] = stored(t->exp_avg_sq, r->values[2][i]);
}

static stw_status replay(stw_rank_run *run, stw_weights *weights, const extent *e, replayed *out,
                         stw_error *err) {
    memset(out, 0, sizeof *out);
    out->n = e->n;
    stw_status status = first_values(run, weights, e, out, err);
    uint32_t group = stw_job_param_group(run->job, e->tensor);
    for (uint64_t step = 1; status == STW_STATUS_OK && step <= run->options->steps; step++) {
        stw_adamw adamw = stw_exec_adamw(run, step);
        for (uint64_t i = 0; i < e->n; i++)
            replay_step(run, &adamw, adamw.groups[group], run->factors[step - 1],
                        stw_seeded_grad(run->options->seed, step, e->global_first + i), i, out);
    }
    return status;
}

/* Compare one component of replayed elements with what its region holds. A digest stands for the
 * bits, since it can be asked of every tier. */
static stw_status compare(stw_rank_run *run, const stw_region *region, const extent *e,
                          const float *expected, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_element type = stw_exec_type(&run->types, region->component);
    uint64_t whole = 0, all = 0;
    STW_TRY(run->backend->digest(run->device, stw_typed(region->tier, e->offset, type, e->n),
                                 e->global_first, &whole, err));
    run->checked += e->n;
    for (uint64_t i = 0; i < e->n; i++)
        all += stw_digest_element(e->global_first + i, stored_bits(type, expected[i]));
    if (whole == all) goto out;
    for (uint64_t i = 0; i < e->n; i++) {
        uint64_t one = 0;
        STW_TRY(run->backend->digest(
            run->device,
            stw_typed(region->tier, e->offset + stw_times(i, stw_element_bytes(type)), type, 1),
            e->global_first + i, &one, err));
        if (one == stw_digest_element(e->global_first + i, stored_bits(type, expected[i])))
            continue;
        if (run->mismatched++ == 0)
            stw_log(STW_LOG_ERROR,
                    "%s of element %llu of %s differs from its replay (rank %u, tier %s)",
                    stw_component_name(region->component),
                    (unsigned long long)(e->tensor_first + i),
                    run->job->model->tensors[e->tensor].name, run->ranks.rank,
                    stw_tier_name(region->tier));
    }
out:
    return status;
}

/* RUN elements of the model, `skip` elements inside an extent of the parameters; every component of
 * them that this rank holds. */
static stw_status verify_at(stw_rank_run *run, stw_weights *weights, const extent *where,
                            uint64_t skip, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    extent e = *where, part;
    replayed r;
    e.tensor_first += skip;
    e.global_first += skip;
    e.n = stw_min_u64(where->n - skip, RUN);
    STW_TRY(replay(run, weights, &e, &r, err));
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        int d = digest_index(region->component);
        if (d < 0) continue;
        extents walk = extents_of(run, region, (stw_view){&run->job->files, e.global_first, e.n});
        while (next_extent(&walk, &part))
            STW_TRY(compare(run, region, &part, r.values[d] + (part.global_first - e.global_first),
                            err));
    }
out:
    return status;
}

/* Both ends of an extent, where neighbours meet, and evenly between. */
static stw_status verify_extent(stw_rank_run *run, stw_weights *weights, const extent *e,
                                uint64_t looks, stw_error *err) {
    uint64_t last = e->n > RUN ? e->n - RUN : 0, next = 0;
    stw_status status = STW_STATUS_OK;
    for (uint64_t k = 0; k < looks; k++) {
        uint64_t at = stw_max_u64(k * last / (looks - 1), next); /* no element is counted twice */
        if (at >= e->n) break;
        next = at + RUN;
        STW_TRY(verify_at(run, weights, e, at, err));
    }
out:
    return status;
}

/* Weights to replay from: a rank that read none may still find the files. */
static stw_weights *weights_for_replay(stw_rank_run *run, stw_weights **opened) {
    stw_error error = STW_ERROR_INIT;
    *opened = NULL;
    if (run->weights != NULL) return run->weights;
    if (stw_weights_open(run->job->model, run->weights_path, run->options->seed, opened, &error) !=
        STW_STATUS_OK)
        stw_log(STW_LOG_WARN, "rank %u does not see the weights and checks none of its elements",
                run->ranks.rank);
    return *opened;
}

stw_status stw_exec_verify(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_weights *opened = NULL, *weights = weights_for_replay(run, &opened);
    uint32_t n = 0, seen = 0;
    extent e;
    for (int pass = 0; pass < 2 && weights != NULL; pass++) {
        stw_exec_progress(run, "verification", STW_PROGRESS_SHARE, n);
        for (uint32_t i = 0; i < run->layout->n_regions; i++) {
            const stw_region *region = &run->layout->regions[i];
            if (region->component != STW_COMPONENT_PARAMS) continue;
            extents walk = extents_of_all(run, region);
            while (next_extent(&walk, &e)) {
                if (pass == 0) {
                    n++;
                    continue;
                }
                stw_exec_progress_add(run, 1);
                if (seen++ % (n / (SAMPLE / RUN) + 1) != 0) continue;
                STW_TRY(verify_extent(run, weights, &e, stw_max_u64(2, SAMPLE / RUN / n), err));
            }
        }
    }
out:
    stw_weights_close(opened);
    return status;
}

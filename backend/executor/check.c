/* SPDX-License-Identifier: Apache-2.0 */
/* What surrounds the steps: gradients that stand for a backward's, digests of the state, and a
 * replay of a sample of elements from load to last step by the reference (backend/reference.h),
 * whose bits the arenas must hold. Clip factors alone are those of the run; ranks compare them. */
#include "backend/executor/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/reference.h"
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

bool stw_exec_has_digest(const stw_rank_run *run, int digest) {
    for (uint32_t k = 0; k < run->job->n_kinds; k++)
        for (uint32_t i = 0; i < run->plan->layouts[k]->n_regions; i++)
            if (digest_index(run->plan->layouts[k]->regions[i].component) == digest) return true;
    return false;
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
    return type == STW_ELEMENT_BF16 ? stw_reference_from_bf16(stw_reference_bf16(value)) : value;
}

static uint32_t stored_bits(stw_element type, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == STW_ELEMENT_BF16) return stw_reference_bf16(value);
    return isnan(value) ? 0x7FFFFFFFu : bits; /* the one NaN of what was updated */
}

/* The weights as they were loaded. */
static stw_status first_values(stw_rank_run *run, stw_weights *weights, const extent *e,
                               replayed *out, stw_error *err) {
    double raw[RUN]; /* room for the widest dtype */
    const bool seeded = run->weights_path == NULL;
    stw_status status = STW_STATUS_OK;
    if (!seeded) status = stw_weights_read(weights, e->tensor, e->tensor_first, e->n, raw, err);
    for (uint64_t i = 0; i < e->n && status == STW_STATUS_OK; i++) {
        const float value =
            seeded ? stw_reference_seeded_weight(run->options->seed, e->global_first + i)
                   : stw_reference_weight(raw, stw_weights_dtype(weights, e->tensor), i);
        out->values[3][i] = out->values[0][i] = stored(run->types.params, value);
    }
    return status;
}

/* One step of one element. */
static void replay_step(const stw_rank_run *run, const stw_reference_step *step, float grad,
                        uint64_t i, replayed *r) {
    const stw_element_types *t = &run->types;
    bool master = t->master != STW_ELEMENT_NONE;
    float *work = master ? &r->values[3][i] : &r->values[0][i];
    stw_reference_state state = {*work, r->values[1][i], r->values[2][i]};
    stw_reference_adamw(step, stored(t->grads, grad), &state);
    *work = state.weight;
    r->values[0][i] = stored(t->params, state.weight);
    r->values[1][i] = stored(t->exp_avg, state.exp_avg);
    r->values[2][i] = stored(t->exp_avg_sq, state.exp_avg_sq);
}

/* The settings of a tensor's parameter group. */
static stw_reference_settings settings_of(const stw_rank_run *run, uint32_t tensor) {
    const stw_run_spec *spec = &run->plan->run;
    stw_reference_settings out = {.beta1 = spec->optimizer.beta1,
                                  .beta2 = spec->optimizer.beta2,
                                  .eps = spec->optimizer.eps,
                                  .clip = spec->optimizer.clip_norm > 0.0};
    stw_exec_rates(run, stw_job_param_group(run->job, tensor), &out.lr, &out.weight_decay);
    return out;
}

static float gradient(const stw_rank_run *run, uint64_t step, uint64_t element) {
    const stw_other_grad *other = &run->options->other_grad;
    return step == other->step && element == other->element
               ? other->value
               : stw_reference_seeded_grad(run->options->seed, step, element);
}

static stw_status replay(stw_rank_run *run, stw_weights *weights, const extent *e, replayed *out,
                         stw_error *err) {
    memset(out, 0, sizeof *out);
    out->n = e->n;
    stw_status status = first_values(run, weights, e, out, err);
    const stw_reference_settings settings = settings_of(run, e->tensor);
    for (uint64_t step = 1; status == STW_STATUS_OK && step <= run->options->steps; step++) {
        const stw_reference_step s = stw_reference_begin(&settings, step, run->factors[step - 1]);
        for (uint64_t i = 0; i < e->n; i++)
            replay_step(run, &s, gradient(run, step, e->global_first + i), i, out);
    }
    return status;
}

/* One element that may differ. @param digest of what is there */
static void judge(stw_rank_run *run, const stw_region *region, const extent *e, uint64_t i,
                  uint64_t digest, float expected) {
    const stw_element type = stw_exec_type(&run->types, region->component);
    const uint32_t wanted = stored_bits(type, expected);
    const uint64_t found = stw_reference_bits_of(e->global_first + i, digest);
    const int digits = type == STW_ELEMENT_BF16 ? 4 : 8;
    if (found == wanted) return;
    if (run->mismatched++ == 0)
        stw_log(STW_LOG_ERROR,
                "%s of element %llu of %s differs from its replay: found 0x%0*llx, expected "
                "0x%0*llx (rank %u, tier %s)",
                stw_component_name(region->component), (unsigned long long)(e->tensor_first + i),
                run->job->model->tensors[e->tensor].name, digits, (unsigned long long)found, digits,
                (unsigned long long)wanted, run->ranks.rank, stw_tier_name(region->tier));
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
        all += stw_reference_digest(e->global_first + i, stored_bits(type, expected[i]));
    if (whole == all) goto out;
    for (uint64_t i = 0; i < e->n; i++) {
        uint64_t one = 0;
        STW_TRY(run->backend->digest(
            run->device,
            stw_typed(region->tier, e->offset + stw_times(i, stw_element_bytes(type)), type, 1),
            e->global_first + i, &one, err));
        judge(run, region, e, i, one, expected[i]);
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

/* Gradients are multiplied by the same factors everywhere. Rank 0 counts ranks that differ from it.
 * Collective. */
static stw_status verify_factors(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t world = run->ranks.world;
    uint64_t mine = 0, *all = NULL;
    if (world == 1 || !(run->plan->run.optimizer.clip_norm > 0.0)) return STW_STATUS_OK;
    for (uint32_t i = 0; i < run->options->steps; i++) {
        const float factor = run->factors[i];
        const uint32_t bits = isnan(factor) ? UINT32_MAX : stored_bits(STW_ELEMENT_F32, factor);
        mine = stw_reference_digest(mine, bits);
    }
    all = calloc(world, sizeof *all);
    if (all == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "verify", "out of memory");
    stw_comm_about(run->comm, "clip factors");
    STW_TRY(stw_exec_gather(run, &mine, all, sizeof mine, err));
    for (uint32_t r = 1; r < world && run->ranks.rank == 0; r++)
        if (all[r] != all[0] && run->mismatched++ == 0)
            stw_log(STW_LOG_ERROR,
                    "the clip factors of the steps on rank %u are not those on rank 0", r);
out:
    free(all);
    return status;
}

stw_status stw_exec_verify(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_weights *opened = NULL, *weights = run->no_replay ? NULL : weights_for_replay(run, &opened);
    uint32_t n = 0, seen = 0;
    extent e;
    STW_TRY(verify_factors(run, err));
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are not finite: refusing a step that has one, telling of a norm that was not
 * finite, and replacing one seeded gradient to try both. A refused step was not begun: everything
 * is as the step before left it. */
#include <math.h>
#include <stdio.h>

#include "backend/executor/run.h"
#include "backend/norm.h"
#include "core/checked.h"
#include "core/log.h"

static bool clips(const stw_rank_run *run) {
    return run->adamw.clip && stw_movement_has(run->program, run->movement, STW_OP_UPDATE);
}

void stw_exec_note_norm(stw_rank_run *run, double *norm, float *factor) {
    if (!clips(run)) return;
    run->backend->norm_result(run->device, norm, factor);
    if (isfinite(*norm)) return;
    if (run->nonfinite_steps++ > 0) return;
    run->first_nonfinite_step = run->step;
    if (run->ranks.rank != 0) return;
    stw_log_always(STW_LOG_WARN,
                   "step %llu: the gradient norm is %s, as with torch's clip_grad_norm_; "
                   "--error-if-nonfinite (in the library error_if_nonfinite) refuses such a step",
                   (unsigned long long)run->step,
                   isnan(*norm)
                       ? "NaN: so are the clip factor and everything that the step updates"
                       : "infinite: the clip factor is 0, gradients become 0, infinite ones NaN");
}

/* ---- one other gradient ---- */

stw_status stw_exec_check_other_grad(const stw_rank_run *run, stw_error *err) {
    const stw_other_grad *other = &run->options->other_grad;
    const uint64_t elements = run->job->files.n;
    if (other->step > run->options->steps)
        return stw_fail(err, STW_STATUS_USAGE, "--set-gradient", "found step %llu, the run has %u",
                        (unsigned long long)other->step, run->options->steps);
    if (other->step > 0 && other->element >= elements)
        return stw_fail(err, STW_STATUS_USAGE, "--set-gradient",
                        "found element %llu, the model has %llu",
                        (unsigned long long)other->element, (unsigned long long)elements);
    return STW_STATUS_OK;
}

stw_status stw_exec_put_other_grad(stw_rank_run *run, uint64_t step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_other_grad *other = &run->options->other_grad;
    const uint64_t size = stw_element_bytes(run->types.grads);
    const uint16_t half = stw_bf16_from_float(other->value);
    const void *bytes = run->types.grads == STW_ELEMENT_BF16 ? (const void *)&half : &other->value;
    stw_overlap part;
    if (step != other->step) return status;
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != STW_COMPONENT_GRADS) continue;
        stw_meet meet = stw_meet_begin((stw_view){&run->job->files, other->element, 1},
                                       stw_region_view(region, &run->spaces[region->space]));
        while (stw_meet_next(&meet, &part))
            STW_TRY(run->backend->put(
                run->device,
                stw_at(region->tier,
                       region->offset_bytes + stw_times(part.b_first - region->first_param, size)),
                bytes, size, err));
    }
out:
    return status;
}

/* ---- refusing a step ---- */

static stw_status add(stw_rank_run *run, const stw_region *region, uint64_t first, uint64_t n,
                      stw_error *err) {
    const uint64_t offset = region->offset_bytes + stw_times(first - region->first_param,
                                                             stw_element_bytes(run->types.grads));
    return run->backend->norm_add(
        run->device, region->tier == STW_TIER_GPU ? STW_STREAM_COMPUTE : STW_STREAM_CPU,
        stw_typed(region->tier, offset, run->types.grads, n), err);
}

/* The norm of what was added; over all ranks if `sums`. */
static stw_status norm_of(stw_rank_run *run, bool sums, double *norm, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t *counters = NULL;
    float factor;
    const bool counts = !sums || stw_job_counts(run->job, STW_SPACE_GRADS, run->ranks.rank);
    STW_TRY(run->backend->synchronize(run->device, err));
    STW_TRY(run->backend->norm_counters(run->device, STW_STREAM_COMM, counts, &counters, err));
    if (sums && run->ranks.world > 1) {
        stw_comm_about(run->comm, "check of the gradients");
        STW_TRY(stw_comm_sum_counters(run->comm, counters, STW_NORM_COUNTERS, err));
        STW_TRY(stw_comm_wait(run->comm, "check of the gradients", err));
    }
    STW_TRY(run->backend->norm_factor(run->device, STW_STREAM_COMM, 1.0, err));
    STW_TRY(run->backend->synchronize(run->device, err));
    run->backend->norm_result(run->device, norm, &factor);
    STW_TRY(run->backend->norm_reset(run->device, STW_STREAM_COMPUTE, err));
    STW_TRY(run->backend->synchronize(run->device, err));
out:
    return status;
}

static stw_status norm_here(stw_rank_run *run, const stw_region *region, uint64_t first, uint64_t n,
                            double *norm, stw_error *err) {
    stw_status status = add(run, region, first, n, err);
    return status == STW_STATUS_OK ? norm_of(run, false, norm, err) : status;
}

/* The first gradient of this rank, in the model's order, that is not finite. */
typedef struct culprit {
    bool found, is_nan;
    uint32_t tensor;
    uint64_t tensor_element, element;
} culprit;

/* In a part of a region that has one. */
static stw_status find_in(stw_rank_run *run, const stw_region *region, const stw_overlap *part,
                          culprit *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t skip = 0, n = part->n;
    double norm = 0;
    while (n > 1) {
        double half;
        STW_TRY(norm_here(run, region, part->b_first + skip, n / 2, &half, err));
        if (isfinite(half)) {
            skip += n / 2;
            n -= n / 2;
        } else {
            n /= 2;
        }
    }
    STW_TRY(norm_here(run, region, part->b_first + skip, 1, &norm, err));
    *out = (culprit){true, isnan(norm) != 0, part->tensor, part->tensor_first + skip,
                     part->global_first + skip};
out:
    return status;
}

static stw_status find(stw_rank_run *run, culprit *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double norm;
    stw_overlap part;
    *out = (culprit){.found = false};
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != STW_COMPONENT_GRADS) continue;
        STW_TRY(norm_here(run, region, region->first_param, region->params, &norm, err));
        if (isfinite(norm)) continue;
        stw_meet meet = stw_meet_begin(stw_space_whole(&run->job->files),
                                       stw_region_view(region, &run->spaces[region->space]));
        while (stw_meet_next(&meet, &part)) {
            if (out->found && part.global_first >= out->element) break;
            STW_TRY(norm_here(run, region, part.b_first, part.n, &norm, err));
            if (isfinite(norm)) continue;
            STW_TRY(find_in(run, region, &part, out, err));
            break;
        }
    }
out:
    return status;
}

/* ", bucket 3 (first tensor to last tensor)" */
static void put_bucket(const stw_rank_run *run, const culprit *c, char *out, size_t out_size) {
    stw_overlap part;
    out[0] = '\0';
    for (uint32_t b = 0; b < run->layout->n_buckets; b++) {
        const stw_bucket *bucket = &run->layout->buckets[b];
        stw_meet meet = stw_meet_begin(
            (stw_view){&run->job->files, c->element, 1},
            (stw_view){&run->spaces[STW_SPACE_OPTIMIZER], bucket->first_param, bucket->params});
        if (!stw_meet_next(&meet, &part)) continue;
        char words[256];
        stw_exec_bucket_words(run, b, words, sizeof words);
        snprintf(out, out_size, ", %s", words);
        return;
    }
}

static stw_status name(const stw_rank_run *run, const culprit *c, stw_error *err) {
    char bucket[300];
    put_bucket(run, c, bucket, sizeof bucket);
    return stw_fail(err, STW_STATUS_BAD_INPUT, "gradients",
                    "step %llu: the gradient of element %llu of %.100s is %s (parameter group "
                    "%u%s). The step was not begun: the state is that of step %llu",
                    (unsigned long long)run->step, (unsigned long long)c->tensor_element,
                    run->job->model->tensors[c->tensor].name, c->is_nan ? "NaN" : "infinite",
                    stw_job_param_group(run->job, c->tensor), bucket,
                    (unsigned long long)(run->step - 1));
}

stw_status stw_exec_refuse_nonfinite(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double norm = 0;
    culprit c;
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component == STW_COMPONENT_GRADS)
            STW_TRY(add(run, region, region->first_param, region->params, err));
    }
    STW_TRY(norm_of(run, true, &norm, err));
    if (isfinite(norm)) goto out;
    status = find(run, &c, err);
    if (status == STW_STATUS_OK && c.found) status = name(run, &c, err);
    status = stw_exec_agree_status(run, status, err);
    if (status == STW_STATUS_OK)
        status = stw_fail(err, STW_STATUS_BUG, "gradients",
                          "their norm is %g, and no rank has one that is not finite", norm);
    run->refused = status == STW_STATUS_BAD_INPUT;
    /* Where every rank has one, no rank is named: the first is 0. */
    if (run->refused && err != NULL && err->rank < 0 && run->ranks.world > 1) err->rank = 0;
out:
    return status;
}

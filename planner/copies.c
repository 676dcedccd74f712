/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/copies.h"

#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "engines/save_plan.h"
#include "plan/checkpoint/buckets.h"
#include "plan/files/verdict.h"
#include "plan/spec/registry.h"
#include "planner/turns.h"

/* Less than this share of a stall is not worth memory. */
#define WORTH 0.01

/* An iteration, and what of it a save stops, by simulation; the plan's seconds stay. */
static stw_status measure(stw_plan *plan, stw_planner_simulate simulate, double *iteration_s,
                          double *stall_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double estimated[STW_N_PHASES];
    memcpy(estimated, plan->time_s, sizeof estimated);
    STW_TRY(stw_planner_time(plan, simulate, err));
    *iteration_s = stw_plan_iteration_s(plan);
    *stall_s = plan->time_s[STW_PHASE_CHECKPOINT];
    memcpy(plan->time_s, estimated, sizeof estimated);
out:
    return status;
}

/* What the disk writes for a rank in these seconds: as much waits on the host instead. */
static uint64_t needed_bytes(const stw_plan *plan, double seconds) {
    const uint64_t ranks = stw_max_u64(plan->job->ranks_per_node, 1);
    const double bytes = seconds * plan->cluster.nvme.write_bps / (double)ranks;
    const double buckets = ceil(bytes / (double)STW_SAVE_BUCKET_BYTES) + 1;
    return stw_times((uint64_t)buckets, STW_SAVE_BUCKET_BYTES);
}

/* What each rank of a node may have beside what is there, without a risk. */
static uint64_t room_bytes(const stw_plan *plan) {
    const uint64_t ranks = stw_max_u64(plan->job->ranks_per_node, 1);
    const uint64_t host = stw_plan_safe_bytes(plan, STW_TIER_HOST, false);
    const uint64_t locked = stw_plan_safe_bytes(plan, STW_TIER_HOST, true);
    uint64_t left = UINT64_MAX;
    for (uint32_t n = 0; n < plan->job->n_node_kinds; n++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            const stw_peak *peak = &plan->node_peaks[n].phase[p][STW_TIER_HOST];
            left = stw_min_u64(left, host - stw_min_u64(peak->total, host));
            left = stw_min_u64(left, locked - stw_min_u64(peak->page_locked, locked));
        }
    return left / ranks / STW_SAVE_BUCKET_BYTES * STW_SAVE_BUCKET_BYTES;
}

static stw_status set_copies(stw_plan *plan, uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = plan->run;
    run.checkpoint.copies_bytes = bytes;
    STW_TRY(stw_plan_rerun(plan, &run, err));
    STW_TRY(stw_plan_derive(plan, err));
    stw_plan_judge(plan);
out:
    return status;
}

/* Add the setting to those that the planner has set. */
static stw_status note(stw_plan *plan, uint64_t bytes, double before_s, stw_error *err) {
    const bool first = plan->turned == NULL;
    plan->turned =
        stw_pool_printf(plan->pool, "%s%scheckpoint.copies=%lluMiB", first ? "" : plan->turned,
                        first ? "" : " ", (unsigned long long)(bytes >> 20));
    if (first) plan->unturned_s = before_s;
    return plan->turned != NULL ? STW_STATUS_OK : stw_planner_no_memory(err);
}

static bool is_planned(const stw_plan *plan) {
    return (plan->outcome == STW_OUTCOME_OPTIMAL || plan->outcome == STW_OUTCOME_FEASIBLE) &&
           plan->verdict == STW_VERDICT_FITS;
}

/* The stall if the host had room for everything: the GPU's link, and a disk that does not write a
 * save before the next one begins. */
static stw_status measure_least(stw_plan *plan, stw_planner_simulate simulate, double *stall_s,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_save_plan *saves = NULL;
    uint64_t most = 0;
    double iteration_s;
    STW_TRY(stw_save_plan_of(plan->job, &saves, err));
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        most = stw_max_u64(most, saves->kinds[k].bytes);
    STW_TRY(set_copies(plan, most, err));
    STW_TRY(measure(plan, simulate, &iteration_s, stall_s, err));
out:
    return status;
}

stw_status stw_planner_choose_copies(stw_plan *plan, const stw_planner_options *options,
                                     stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double before_s = NAN, stall_s = NAN, least_s = NAN;
    if (plan->run.checkpoint.copies_bytes != STW_AUTO_BYTES) return STW_STATUS_OK;
    plan->run.checkpoint.copies_bytes = 0; /* as programs have it so far */
    if (!stw_run_spec_saves_own(&plan->run) || options->simulate == NULL || !is_planned(plan))
        return STW_STATUS_OK;
    STW_TRY(measure(plan, options->simulate, &before_s, &stall_s, err));
    if (!(stall_s > 0)) goto out; /* also where it is not known */
    const uint64_t room = room_bytes(plan);
    STW_TRY(measure_least(plan, options->simulate, &least_s, err));
    const bool helps = stall_s > least_s + WORTH * stall_s;
    const uint64_t bytes = helps ? stw_min_u64(needed_bytes(plan, stall_s - least_s), room) : 0;
    STW_TRY(set_copies(plan, bytes, err));
    if (bytes == 0) goto out;
    if (is_planned(plan))
        STW_TRY(note(plan, bytes, before_s, err));
    else
        STW_TRY(set_copies(plan, 0, err));
out:
    return status;
}

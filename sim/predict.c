/* SPDX-License-Identifier: Apache-2.0 */
/* From time lines to the seconds of a plan. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sim/timeline.h"

/* Compilers may round differently. */
static const double SAME_SECONDS = 1e-6;

bool stw_sim_predicts(const stw_plan *plan, const stw_movement *movement) {
    if (plan->verdict == STW_VERDICT_DOES_NOT_FIT) return false;
    return movement->by_stowage || stw_cluster_has_gpus(&plan->cluster);
}

/* A phase takes as long as its slowest kind of rank. */
static void note_seconds(stw_plan *plan, const stw_program *program, const stw_sim *sim) {
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        if (movement->role_number != 0 || !stw_sim_predicts(plan, movement)) continue;
        double *time_s = &plan->time_s[movement->phase];
        *time_s = fmax(*time_s, stw_sim_phase_seconds(sim, movement->phase));
        if (movement->phase == STW_PHASE_CHECKPOINT)
            plan->save_s = fmax(plan->save_s, sim->phase_s[STW_PHASE_CHECKPOINT]);
    }
}

stw_status stw_sim_plan(stw_plan *plan, stw_sim **sims, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int p = 0; p < STW_N_PHASES; p++) plan->time_s[p] = (double)NAN;
    plan->save_s = (double)NAN;
    bool unseen = sims == NULL && plan->verdict == STW_VERDICT_DOES_NOT_FIT;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        stw_sim *sim = NULL;
        if (unseen) { /* no seconds are told of it; the walk has its bytes */
            stw_program_walk(plan->programs[k], &plan->peaks[k]);
            stw_plan_show_peaks(plan, k);
            continue;
        }
        STW_TRY(stw_sim_run(plan->job, plan->programs[k], &sim, err));
        status = stw_sim_check_bytes(sim, err);
        if (status != STW_STATUS_OK) {
            stw_sim_free(sim);
            return status;
        }
        plan->peaks[k] = sim->peaks;
        stw_plan_show_peaks(plan, k);
        note_seconds(plan, plan->programs[k], sim);
        if (sims != NULL)
            sims[k] = sim;
        else
            stw_sim_free(sim);
    }
out:
    return status;
}

static bool same(double a, double b) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    return fabs(a - b) <= SAME_SECONDS * fabs(b);
}

static const char *describe(double seconds, char *out, size_t out_size) {
    if (isnan(seconds))
        snprintf(out, out_size, "null");
    else
        snprintf(out, out_size, "%.9g s", seconds);
    return out;
}

stw_status stw_sim_check(stw_plan *plan, const char *file, stw_sim **sims, stw_error *err) {
    double stated_s[STW_N_PHASES];
    const double stated_save_s = plan->save_s;
    char found[40], follows[40];
    memcpy(stated_s, plan->time_s, sizeof stated_s);
    stw_status status = stw_sim_plan(plan, sims, err);
    for (int p = 0; p < STW_N_PHASES && status == STW_STATUS_OK; p++)
        if (!same(stated_s[p], plan->time_s[p]))
            status = stw_fail(
                err, STW_STATUS_BAD_INPUT, file, "time_s.%s: found %s, the simulation gives %s",
                stw_phase_name((stw_phase)p), describe(stated_s[p], found, sizeof found),
                describe(plan->time_s[p], follows, sizeof follows));
    if (status == STW_STATUS_OK && !same(stated_save_s, plan->save_s))
        status = stw_fail(err, STW_STATUS_BAD_INPUT, file,
                          "time_s.save: found %s, the simulation gives %s",
                          describe(stated_save_s, found, sizeof found),
                          describe(plan->save_s, follows, sizeof follows));
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include "planner/point.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "plan/program/demand.h"
#include "plan/program/effect.h"

bool stw_point_refuses(stw_status status) {
    return status == STW_STATUS_BAD_INPUT || status == STW_STATUS_USAGE ||
           status == STW_STATUS_NOT_BUILT_IN;
}

/* All settings, those of the base first; what follows from them comes last, as in a plan. */
static stw_status read_specs(const stw_point_base *base, const char *const *all, size_t n_all,
                             stw_cluster *cluster, stw_run_spec *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (base->import != NULL) STW_TRY(stw_import_run(base->import, run, err));
    if (base->run != NULL) STW_TRY(stw_run_spec_from_node(base->run, base->run->root, run, err));
    STW_TRY(stw_specs_set_all(cluster, run, all, n_all, "--set", err));
    if (base->import != NULL) {
        STW_TRY(stw_import_batch(base->import, cluster, run, err));
        STW_TRY(stw_specs_set_all(cluster, run, all, n_all, "--set", err));
    }
    STW_TRY(stw_cluster_check(cluster, "--set", err));
    STW_TRY(stw_run_spec_check(run, "--set", err));
out:
    return status;
}

static stw_status make_plan(const stw_point_base *base, const char *const *all, size_t n_all,
                            const stw_point_options *options, stw_plan **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = *base->cluster;
    stw_run_spec run = {0};
    stw_plan *plan = NULL;
    const stw_planner_options planner = {.time_limit_s = options->time_limit_s,
                                         .no_fixes = true,
                                         .no_prices = true,
                                         .no_reasons = true,
                                         .only_stage1 = options->fits_only,
                                         .simulate = base->simulate};
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(read_specs(base, all, n_all, &cluster, &run, err));
    STW_TRY(stw_plan_new_sharing(base->model, &cluster, &run, &plan, err));
    for (size_t i = 0; i < n_all; i++)
        STW_TRY(stw_job_check_setting(plan->job, all[i], "--set", err));
    STW_TRY(stw_planner_solve(plan, &planner, err));
    if (!options->fits_only) STW_TRY(base->finish(plan, err));
    *out = plan;
    plan = NULL;
out:
    stw_plan_free(plan);
    stw_run_spec_free(&run);
    return status;
}

stw_status stw_point_plan(const stw_point_base *base, const char *const *settings,
                          size_t n_settings, const stw_point_options *options, stw_plan **out,
                          stw_error *err) {
    const size_t n = base->n_settings + n_settings;
    stw_pool *pool = stw_pool_new();
    const char **all = pool != NULL ? stw_pool_array(pool, n + 1, sizeof *all) : NULL;
    stw_status status = STW_STATUS_NO_MEMORY;
    if (all == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, status, "planner", "out of memory");
    }
    for (size_t i = 0; i < n; i++)
        all[i] = i < base->n_settings ? base->settings[i] : settings[i - base->n_settings];
    double before = stw_deadline_set(stw_now_s() + options->time_limit_s);
    status = make_plan(base, all, n, options, out, err);
    (void)stw_deadline_set(before);
    stw_pool_free(pool);
    return status;
}

stw_status stw_point_inputs_hash(const stw_point_base *base, stw_pool *pool, const char **out,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = {0};
    stw_text text = STW_TEXT_INIT;
    stw_json *json = NULL;
    STW_TRY(stw_run_spec_init(&run, err));
    if (base->import != NULL) STW_TRY(stw_import_run(base->import, &run, err));
    if (base->run != NULL) STW_TRY(stw_run_spec_from_node(base->run, base->run->root, &run, err));
    json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_cluster_write_json(base->cluster, json, "cluster");
    stw_run_spec_write_json(&run, json, "run");
    stw_json_u64(json, "global_batch", base->import != NULL ? base->import->global_batch : 0);
    stw_json_end(json);
    STW_TRY(stw_json_finish(json, &text, err));
    *out = stw_pool_printf(pool, "%016" PRIx64, (uint64_t)XXH3_64bits(text.data, text.length));
    if (*out == NULL) status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "out of memory");
out:
    stw_text_free(&text);
    stw_run_spec_free(&run);
    return status;
}

/* ---- what a plan says ---- */

static void find_excess(const stw_plan *plan, stw_point_bound *out) {
    static const char *const resources[] = {"gpu memory", "host memory", "page-locked memory",
                                            "nvme"};
    for (size_t r = 0; r < sizeof resources / sizeof resources[0]; r++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            uint64_t over = stw_plan_over_bytes(plan, resources[r], (stw_phase)p);
            if (over <= out->over_bytes) continue;
            *out = (stw_point_bound){resources[r], (stw_phase)p, over};
        }
}

static void find_busiest(const stw_plan *plan, stw_phase phase, stw_point_bound *out) {
    double most = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        const stw_movement *movement = stw_program_movement(plan->programs[k], phase);
        double busy[STW_N_RESOURCES] = {0};
        if (movement == NULL) continue;
        stw_demand_add_movement(plan->job, plan->programs[k], movement, busy);
        for (unsigned r = 0; r < STW_N_RESOURCES; r++) {
            if (busy[r] <= most) continue;
            most = busy[r];
            *out = (stw_point_bound){stw_resource_name((stw_resource)r), phase, 0};
        }
    }
}

void stw_point_find_bound(const stw_plan *plan, stw_point_bound *out) {
    stw_phase longest = STW_N_PHASES;
    double most = 0;
    *out = (stw_point_bound){NULL, STW_N_PHASES, 0};
    if (plan->verdict == STW_VERDICT_DOES_NOT_FIT) {
        find_excess(plan, out);
        return;
    }
    for (int p = 0; p < STW_N_PHASES; p++) {
        double seconds = (double)stw_plan_passes(plan, (stw_phase)p) * plan->time_s[p];
        if (!(seconds > most)) continue;
        most = seconds;
        longest = (stw_phase)p;
    }
    if (longest < STW_N_PHASES) find_busiest(plan, longest, out);
}

uint64_t stw_point_peak(const stw_plan *plan, stw_tier tier) {
    const bool gpu = tier == STW_TIER_GPU;
    const stw_peaks *peaks = gpu ? plan->peaks : plan->node_peaks;
    uint64_t most = 0;
    for (uint32_t i = 0; i < (gpu ? plan->job->n_kinds : plan->job->n_node_kinds); i++)
        for (int p = 0; p < STW_N_PHASES; p++)
            if (peaks[i].has[p]) most = stw_max_u64(most, peaks[i].phase[p][tier].total);
    return most;
}

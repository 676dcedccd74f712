/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/point_bound.h"

#include "core/checked.h"
#include "plan/files/verdict.h"
#include "plan/program/demand.h"

bool stw_point_refuses(stw_status status) {
    return status == STW_STATUS_BAD_INPUT || status == STW_STATUS_USAGE ||
           status == STW_STATUS_NOT_BUILT_IN;
}

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

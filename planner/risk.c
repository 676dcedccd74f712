/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/risk.h"

#include <string.h>

#include "core/checked.h"
#include "plan/files/verdict.h"

stw_risk_level stw_risk_first(const stw_run_spec *run) {
    return stw_verdict_accepts_risk(run) ? STW_RISK_ANY : STW_RISK_NONE;
}

/* Does torch's allocator hold more than the walk says? */
static bool reserves(const stw_plan *plan) { return !plan->job->engine->spec.own_process; }

bool stw_risk_differs(const stw_plan *plan, stw_risk_level level) {
    return level != STW_RISK_AVOIDABLE ||
           (reserves(plan) && !plan->run.allocator.expandable_segments);
}

bool stw_risk_is_judged(const stw_plan *plan, stw_risk_level level) {
    return level != STW_RISK_ANY && reserves(plan);
}

/* ---- limits ---- */

static bool moves(const stw_cost *cost, const stw_byte_row *row) {
    bool any = false;
    for (uint32_t p = 0; p < cost->n_places; p++) any = any || row->unit_bytes[p] > 0;
    for (uint32_t i = 0; i < cost->n_uses * cost->n_rings; i++) any = any || row->ring_bytes[i] > 0;
    for (uint32_t a = 0; a < cost->n_acts; a++) any = any || row->act_bytes[a] > 0;
    for (uint32_t l = 0; l < cost->n_loads; l++) any = any || row->load_bytes[l] > 0;
    return any;
}

static uint64_t node_limit(const stw_plan *plan, const stw_byte_row *row) {
    return row->tier == STW_TIER_NVME ? plan->cluster.nvme.capacity_bytes
           : row->page_locked         ? plan->cluster.host.page_lock_limit_bytes
                                      : stw_plan_host_capacity(plan);
}

void stw_risk_limit_nodes(const stw_plan *plan, stw_risk_level level, stw_cost *cost) {
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        stw_byte_row *row = &cost->byte_rows[r];
        if (row->tier == STW_TIER_GPU) continue;
        row->limit_bytes = node_limit(plan, row);
        if (level != STW_RISK_ANY && moves(cost, row))
            row->limit_bytes = stw_min_u64(row->limit_bytes,
                                           stw_plan_safe_bytes(plan, row->tier, row->page_locked));
    }
}

uint64_t stw_risk_gpu_limit(const stw_plan *plan, stw_risk_level level) {
    const double memory = (double)plan->cluster.gpu.memory_bytes;
    const uint64_t filled = (uint64_t)(memory * plan->run.placement.gpu_fill);
    if (level == STW_RISK_ANY) return filled;
    return stw_min_u64(filled, stw_plan_safe_bytes(plan, STW_TIER_GPU, false));
}

/* ---- judging ---- */

static void drop(stw_plan *plan) {
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        if (plan->layouts != NULL) stw_layout_free(plan->layouts[k]);
        if (plan->programs != NULL) stw_program_free(plan->programs[k]);
    }
    stw_pool_free(plan->pool);
}

/* @param judged whose choice and level are set */
static stw_status note_replay(const stw_plan *plan, const stw_cost *cost, stw_judged *judged,
                              stw_error *err) {
    const uint32_t n = plan->job->n_kinds;
    if (judged->replayed == NULL)
        judged->replayed = stw_pool_array(cost->pool, n, sizeof *judged->replayed);
    if (judged->replayed == NULL) return stw_planner_no_memory(err);
    memcpy(judged->replayed, plan->replayed, n * sizeof *judged->replayed);
    judged->known = true;
    return STW_STATUS_OK;
}

stw_status stw_risk_judge(const stw_plan *plan, const stw_cost *cost, const stw_choice *choice,
                          stw_risk_level level, stw_judged *judged, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (judged->known && judged->level == level &&
        stw_choice_is_same(cost, &judged->choice, choice))
        return STW_STATUS_OK;
    judged->known = false;
    judged->level = level;
    judged->excess_bytes = 0;
    stw_choice_copy(cost, &judged->choice, choice);
    if (!stw_risk_is_judged(plan, level)) return STW_STATUS_OK;
    stw_plan other = {.model = plan->model,
                      .cluster = plan->cluster,
                      .run = plan->run,
                      .job = plan->job,
                      .pool = stw_pool_new(),
                      .walk_alone = true};
    if (other.pool == NULL) return stw_planner_no_memory(err);
    if (level == STW_RISK_AVOIDABLE) other.run.allocator.expandable_segments = true;
    STW_TRY(stw_cost_decide(cost, choice, other.pool, &other.decisions, err));
    STW_TRY(stw_plan_derive_bytes(&other, err));
    STW_TRY(stw_plan_gpu_excess(&other, &judged->excess_bytes, err));
    STW_TRY(note_replay(&other, cost, judged, err));
out:
    drop(&other);
    return status;
}

bool stw_risk_has_replay(const stw_plan *plan, const stw_cost *cost, const stw_choice *choice,
                         const stw_judged *judged) {
    return judged->known && judged->level == STW_RISK_NONE && judged->excess_bytes == 0 &&
           !plan->walk_alone && stw_choice_is_same(cost, &judged->choice, choice);
}

void stw_risk_give_replay(const stw_judged *judged, stw_plan *plan) {
    const uint32_t n = plan->job->n_kinds;
    memcpy(plan->replayed, judged->replayed, n * sizeof *plan->replayed);
    for (uint32_t k = 0; k < n; k++) stw_plan_show_peaks(plan, k);
}

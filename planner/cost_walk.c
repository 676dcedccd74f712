/* SPDX-License-Identifier: Apache-2.0 */
/* Rows promise never to lie below the walk of the program; every plan is held to that. */
#include "core/checked.h"
#include "planner/cost.h"

/* Rows name the steady step; the first one is held to the same row. */
static bool same_phase(stw_phase row, stw_phase walked) {
    return row == walked ||
           (row == STW_PHASE_OPTIMIZER_STEP && walked == STW_PHASE_FIRST_OPTIMIZER_STEP);
}

/* The largest row of a resource in a phase; false where the problem has none. */
static bool largest_row(const stw_cost *cost, const stw_choice *choice, stw_tier tier,
                        uint32_t node_kind, stw_phase phase, uint64_t *bytes) {
    bool found = false;
    *bytes = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        if (row->tier != tier || row->page_locked) continue;
        /* what lies on NVMe lies there in every phase */
        if (tier != STW_TIER_NVME && !same_phase(row->phase, phase)) continue;
        if (tier != STW_TIER_GPU && row->node_kind != node_kind) continue;
        found = true;
        *bytes = stw_max_u64(*bytes, stw_cost_row_bytes(cost, row, choice));
    }
    return found;
}

static stw_status compare(const stw_cost *cost, const stw_choice *choice, stw_tier tier,
                          uint32_t node_kind, stw_phase phase, uint64_t walked, stw_error *err) {
    uint64_t bytes;
    if (walked == 0) return STW_STATUS_OK;
    if (largest_row(cost, choice, tier, node_kind, phase, &bytes) && bytes >= walked)
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "planner",
                    "the walk reaches %llu bytes of %s in %s, the planner's rows only %llu",
                    (unsigned long long)walked, stw_tier_name(tier), stw_phase_name(phase),
                    (unsigned long long)bytes);
}

stw_status stw_cost_check_walk(const stw_cost *cost, const stw_choice *choice,
                               const stw_peaks *peaks, const stw_peaks *node_peaks,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int p = 0; p < STW_N_PHASES; p++) {
        for (uint32_t k = 0; k < cost->job->n_kinds; k++)
            if (peaks[k].has[p])
                STW_TRY(compare(cost, choice, STW_TIER_GPU, 0, (stw_phase)p,
                                peaks[k].phase[p][STW_TIER_GPU].total, err));
        for (uint32_t n = 0; n < cost->job->n_node_kinds; n++)
            for (int t = STW_TIER_HOST; t < STW_N_TIERS && node_peaks[n].has[p]; t++)
                STW_TRY(compare(cost, choice, (stw_tier)t, n, (stw_phase)p,
                                node_peaks[n].phase[p][t].total, err));
    }
out:
    return status;
}

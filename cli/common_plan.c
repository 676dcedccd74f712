/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/common_plan.h"

#include <stdio.h>

#include "core/log.h"
#include "core/units.h"
#include "plan/files/verdict.h"

/* The phase whose peak is the most over the limit of the resource. */
static uint64_t worst(const stw_plan *plan, const char *resource, stw_phase *phase) {
    uint64_t most = 0;
    for (int p = 0; p < STW_N_PHASES; p++) {
        uint64_t over = stw_plan_over_bytes(plan, resource, (stw_phase)p);
        if (over <= most) continue;
        most = over;
        *phase = (stw_phase)p;
    }
    return most;
}

void stw_warn_of_excess(const stw_plan *plan, const char *name) {
    static const char *const resources[] = {"gpu memory", "host memory", "page-locked memory",
                                            "nvme"};
    if (plan->verdict != STW_VERDICT_DOES_NOT_FIT) return;
    for (size_t r = 0; r < sizeof resources / sizeof resources[0]; r++) {
        stw_phase phase = STW_PHASE_LOAD;
        uint64_t over = worst(plan, resources[r], &phase);
        char bytes[32];
        if (over == 0) continue;
        stw_bytes_format(over, bytes, sizeof bytes);
        stw_log(STW_LOG_WARN, "%s: the plan does not fit: %s of %s is over its limit by %s", name,
                resources[r], stw_phase_name(phase), bytes);
    }
    stw_log(STW_LOG_WARN,
            "%s: a run executes the load and the optimizer steps, not forward_backward: it does "
            "not show that the plan fits",
            name);
}

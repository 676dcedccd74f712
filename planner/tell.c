/* SPDX-License-Identifier: Apache-2.0 */
/* One choice against another in a few words. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "planner/candidates.h"

static void append(char *out, size_t out_size, const char *format, ...) STW_PRINTF(3, 4);

static void append(char *out, size_t out_size, const char *format, ...) {
    size_t used = strlen(out);
    va_list arguments;
    if (used > 0 && used + 3 < out_size) {
        memcpy(out + used, ", ", 3);
        used += 2;
    }
    va_start(arguments, format);
    vsnprintf(out + used, out_size - used, format, arguments);
    va_end(arguments);
}

/* Blocks of all groups under a policy. */
static uint32_t blocks_of(const stw_cost *cost, const stw_choice *choice, stw_act act) {
    uint32_t blocks = 0;
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (cost->acts[a].act == act) blocks += choice->acts[a] * cost->acts[a].each;
    return blocks;
}

static void tell_blocks(const stw_cost *cost, const stw_choice *choice, const stw_choice *here,
                        char *out, size_t out_size) {
    static const char *const words[STW_N_ACTS] = {[STW_ACT_KEEP] = "kept",
                                                  [STW_ACT_RECOMPUTE] = "recomputed",
                                                  [STW_ACT_OFFLOAD] = "offloaded"};
    bool differ = false;
    for (uint32_t a = 0; a < cost->n_acts; a++) differ |= choice->acts[a] != here->acts[a];
    for (int act = 0; act < STW_N_ACTS && differ; act++) {
        uint32_t blocks = blocks_of(cost, choice, (stw_act)act);
        if (blocks > 0)
            append(out, out_size, "%u block%s %s", blocks, blocks == 1 ? "" : "s", words[act]);
    }
}

void stw_choice_tell_more(const stw_cost *cost, const stw_choice *choice, const stw_choice *here,
                          char *out, size_t out_size) {
    out[0] = '\0';
    bool differ = false;
    for (uint32_t p = 0; p < cost->n_places; p++) differ |= choice->units[p] != here->units[p];
    for (int u = 0; u < STW_N_UPDATES && differ; u++) {
        uint32_t units = stw_choice_update_units(cost, choice, (stw_update)u);
        double share = 100.0 * units / cost->n_units;
        if (units > 0) append(out, out_size, "%.3g%% %s", share, stw_update_name((stw_update)u));
    }
    tell_blocks(cost, choice, here, out, out_size);
    if (out[0] == '\0') append(out, out_size, "another prefetch ring");
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/fsdp2/keys.h"

#include "plan/spec/spec_rows.h"

#define AT(member) IN(stw_fsdp_settings, member)
_Static_assert(sizeof(stw_fsdp_settings) <= STW_SECTION_BYTES, "the settings fit");

static const stw_spec_row rows[] = {
    {BOOL("fsdp.reshard_after_forward"), AT(reshard_after_forward), .also = "reshard zero_stage",
     .fallback = "true", .needs = NEEDS(FORWARD) | NEEDS(GATHERS)},
    {BOOL("fsdp.reshard_after_backward"), AT(reshard_after_backward), .fallback = "true",
     .note = "false: parameters stay gathered between micro batches (two of them are counted as "
             "three or more)",
     .needs = NEEDS(FORWARD) | NEEDS(GATHERS) | NEEDS(ACCUMULATES)},
    {BOOL("fsdp.offload_policy"), AT(offload_policy), .also = "offload cpu_offload",
     .fallback = "false", .note = "params, grads and moments on the host together"},
    {BOOL("fsdp.wrap_embeddings"), AT(wrap_embeddings), .also = "wrap_policy", .fallback = "false",
     .needs = NEEDS(FORWARD) | NEEDS(UNTIED)},
    {BOOL("fsdp.sync_each_micro_batch"), AT(sync_each_micro_batch),
     .also = "no_sync requires_gradient_sync", .fallback = "true",
     .note = "false: gradients stay unsharded until the last one, which reduces them",
     .needs = NEEDS(FORWARD) | NEEDS(SHARDS) | NEEDS(ACCUMULATES)},
};

/* torch's CPUOffloadPolicy keeps params, grads and moments on the host, all of them, and steps
 * there. */
static stw_status check(const stw_run_spec *run, const char *origin, stw_error *err) {
    const struct {
        const char *placement_key, *park_key;
        uint32_t placement;
        bool parked;
    } states[] = {
        {"placement.params", "park.params", run->placement.params, run->park.params},
        {"placement.grads", "park.grads", run->placement.grads, run->park.grads},
        {"placement.moments", "park.moments", run->placement.moments, run->park.moments},
    };
    if (!stw_fsdp_settings_of(run).offload_policy) return STW_STATUS_OK;
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        const uint32_t tier = states[i].placement;
        if (tier != STW_AUTO && tier != STW_TIER_HOST)
            return stw_run_spec_refuse(origin, err, states[i].placement_key,
                                       stw_tier_name((stw_tier)tier),
                                       "host or auto, because fsdp.offload_policy is true");
        if (states[i].parked)
            return stw_run_spec_refuse(
                origin, err, states[i].park_key, "host",
                "none, because fsdp.offload_policy keeps this state on the host");
    }
    if (!stw_run_spec_engine(run)->executes &&
        run->optimizer.implementation == STW_OPTIMIZER_STREAMED)
        return stw_run_spec_refuse(
            origin, err, "optimizer.implementation", "streamed",
            "another value, because fsdp.offload_policy updates on the host");
    return STW_STATUS_OK;
}

const stw_spec_section stw_fsdp_section = {.name = "fsdp",
                                           .rows = rows,
                                           .n_rows = sizeof rows / sizeof rows[0],
                                           .size = sizeof(stw_fsdp_settings),
                                           .check = check};

stw_fsdp_settings stw_fsdp_settings_of(const stw_run_spec *run) {
    stw_fsdp_settings settings;
    stw_run_spec_settings(run, &stw_fsdp_section, &settings);
    return settings;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/verl_optimizer.h"

#include <string.h>

#define ACTOR "actor_rollout_ref.actor."

static const char *value(stw_reading *r, const char *name, const char *fallback) {
    return stw_reading_value(r, stw_reading_named(r, name), fallback);
}

static bool is_stowages(stw_reading *r) {
    return strcmp(value(r, ACTOR "optim.optimizer_impl", "torch.optim"), "stowage.torch") == 0;
}

void stw_verl_set_optimizer(stw_reading *r) {
    const char *fused = stw_reading_named(r, ACTOR "optim.override_optimizer_config.fused");
    if (!is_stowages(r)) { /* torch's default is foreach */
        stw_reading_set(r, "optimizer.implementation",
                        stw_reading_is_on(r, fused, false) ? "fused" : "foreach");
        return;
    }
    const char *type = value(r, ACTOR "fsdp_config.model_dtype", "fp32");
    stw_reading_set(r, "optimizer.implementation", "stowage");
    stw_reading_set(r, "precision.exp_avg", "fp32");
    stw_reading_set(r, "precision.exp_avg_sq", "fp32");
    if (strcmp(type, "fp32") != 0 && strcmp(type, "float32") != 0)
        stw_reading_set(r, "precision.master", "fp32");
}

/* Offloading moves tensors of optimizer.state, where stowage.torch.AdamW has none. */
bool stw_verl_parks_moments(stw_reading *r) {
    const char *flag = stw_reading_named(r, ACTOR "fsdp_config.optimizer_offload");
    const bool parks = stw_reading_is_on(r, flag, false);
    if (parks && is_stowages(r))
        stw_reading_assume(r, "fsdp_config.optimizer_offload", "true",
                           "stowage.torch.AdamW places its state itself: nothing is moved");
    return parks && !is_stowages(r);
}

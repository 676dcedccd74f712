/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/deepspeed/state_tensors.h"

#include "core/checked.h"
#include "plan/program/tensors.h"

static void take(stw_zero *z, uint64_t bytes) { (void)stw_tensor_take(z->b, 0, bytes); }

void stw_zero_params_tensors(stw_zero *z, uint32_t first_op) {
    const stw_model *model = z->job->model;
    uint64_t shards = 0;
    if (!z->traced) return;
    stw_tensors_instead(z->b, first_op);
    z->param_tensors = stw_tensor_numbers(z->b, model->n_tensors);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        shards = stw_plus(shards, stw_times(stw_zero_shard(z, t), z->element));
        if (z->set.zero_stage < 3)
            stw_tensor_take_as(z->b, z->param_tensors + t, 0,
                               stw_times(model->tensors[t].numel, z->element));
    }
    if (z->set.zero_stage == 3 && z->set.offload_param == STW_OFFLOAD_NONE) take(z, shards);
}

void stw_zero_flat_tensors(stw_zero *z, uint32_t first_op, uint32_t group) {
    const stw_model *model = z->job->model;
    if (!z->traced) return;
    stw_tensors_instead(z->b, first_op);
    stw_tensors_empty_cache(z->b);
    take(z, stw_times(z->group_trained[group], z->element));
    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (stw_job_trains(z->job, t) && stw_job_param_group(z->job, t) == group)
            stw_tensor_drop(z->b, z->param_tensors + t);
}

void stw_zero_state_tensors(stw_zero *z, uint32_t first_op, uint32_t n) {
    const bool third = z->set.zero_stage == 3;
    const uint64_t *params = third ? z->sub_groups : z->group_placed;
    const uint32_t parts = third ? z->on_gpu : STW_ZERO_GROUPS;
    if (!z->traced) return;
    stw_tensors_instead(z->b, first_op);
    for (uint32_t i = 0; i < parts; i++)
        for (uint32_t k = 0; k < n; k++) take(z, stw_times(4, params[i]));
}

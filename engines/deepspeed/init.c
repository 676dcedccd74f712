/* SPDX-License-Identifier: Apache-2.0 */
/* From the weights to a model that can be trained: the movement of the load. */
#include "core/checked.h"
#include "engines/deepspeed/host.h"
#include "engines/deepspeed/parts.h"
#include "engines/deepspeed/state_tensors.h"
#include "engines/movements.h"
#include "plan/program/tensors.h"

static stw_extent alloc(stw_zero *z, uint64_t bytes) {
    return stw_alloc(z->b, STW_COMPONENT_STAGE, STW_TIER_GPU, bytes);
}

static void drop(stw_zero *z, stw_extent extent) {
    stw_free(z->b, STW_COMPONENT_STAGE, STW_TIER_GPU, extent);
}

static bool is_params_on_gpu(const stw_region *r) {
    return r->component == STW_COMPONENT_PARAMS && r->tier == STW_TIER_GPU;
}

static bool is_master_on_gpu(const stw_region *r) {
    return r->component == STW_COMPONENT_MASTER && r->tier == STW_TIER_GPU;
}

static void build_masters(stw_zero *z) {
    const uint32_t from = stw_tensors_begin(z->b);
    stw_build_regions(z->b, true, is_master_on_gpu);
    if (!z->set.offload_optimizer) stw_zero_state_tensors(z, from, 1);
}

/* The model and a flat copy of a group. Where there is no room for the copy, the group goes to the
 * host first, and both are there at once (stage_1_and_2.py, __init__: flatten_on_accelerator). */
static void flatten(stw_zero *z, uint32_t group) {
    const uint64_t params = z->group_trained[group];
    const uint32_t from = stw_tensors_begin(z->b);
    const stw_cluster *cluster = z->job->cluster;
    const uint64_t model = stw_times(z->job->model->params, z->element);
    const uint64_t flat = stw_times(params, z->element);
    const uint64_t used =
        STW_SUM(model, cluster->gpu.context_bytes, z->job->world > 1 ? cluster->gpu.comm_bytes : 0);
    if (stw_plus(used, flat) <= cluster->gpu.memory_bytes) {
        drop(z, alloc(z, flat));
        stw_zero_flat_tensors(z, from, group);
        return;
    }
    z->b->pageable = true;
    stw_extent copies = stw_alloc(z->b, STW_COMPONENT_STAGE, STW_TIER_HOST, stw_times(2, flat));
    z->b->pageable = false;
    stw_free(z->b, STW_COMPONENT_STAGE, STW_TIER_HOST, copies);
}

/* Then the fp32 copy of the rank's part and a gradient of that part, which is made and dropped
 * (initialize_optimizer_states). What the casts of gradients pass through stays on the GPU where
 * the optimizer does not. */
static void begin_flat(stw_zero *z) {
    uint64_t copied = 0;
    for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++) {
        if (z->group_trained[g] > 0) flatten(z, g);
        copied = stw_max_u64(copied, z->group_placed[g]);
    }
    stw_extent copy = alloc(z, stw_times(copied, z->element));
    build_masters(z);
    drop(z, copy);
    if (z->set.offload_optimizer)
        (void)alloc(z, stw_times(z->largest, z->element));
    else
        drop(z, alloc(z, stw_times(4, z->placed)));
}

/* BF16_Optimizer's fp32 gradients of the whole model (bf16_optimizer.py,
 * _setup_for_real_optimizer). */
static void begin_bf16(stw_zero *z) {
    drop(z, alloc(z, stw_times(z->trained, z->element)));
    build_masters(z);
    (void)stw_alloc(z->b, STW_COMPONENT_GRADS, STW_TIER_GPU, stw_times(4, z->trained));
}

/* Shards of a sub-group are cast and the cast is copied; sub-groups before it are there. */
static void cast_sub_groups(stw_zero *z) {
    uint64_t largest = 0, all = 0;
    for (uint32_t i = 0; i < z->on_gpu; i++) {
        const uint64_t last = stw_times(4, z->sub_groups[i]);
        largest = stw_max_u64(largest, last);
        all = stw_plus(all, last);
        drop(z, alloc(z, stw_plus(all, last)));
    }
    build_masters(z);
    if (z->set.offload_optimizer) { /* gradients in fp32 stay */
        (void)stw_alloc(z->b, STW_COMPONENT_MASTER, STW_TIER_GPU, all);
        (void)stw_alloc(z->b, STW_COMPONENT_GRADS, STW_TIER_GPU, all);
        return;
    }
    drop(z, alloc(z, largest)); /* initialize_optimizer_states: a gradient of the largest */
}

/* The bucket and the gradients of all shards stay; then every tensor is gathered once to hook its
 * gradient (stage3.py, _setup_for_real_optimizer, create_reduce_and_remove_grad_hooks). Small
 * tensors stay whole. */
static void begin_shards(stw_zero *z) {
    uint64_t shard = 0, small = 0;
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) {
        uint64_t numel = z->job->model->tensors[t].numel;
        if (stw_job_trains(z->job, t)) shard = stw_max_u64(shard, stw_zero_shard(z, t));
        if (numel <= z->set.persistence_threshold) small = stw_plus(small, numel);
    }
    cast_sub_groups(z);
    (void)stw_alloc(z->b, STW_COMPONENT_REDUCE, STW_TIER_GPU,
                    stw_times(z->set.reduce_bucket, z->element));
    if (!z->set.offload_optimizer)
        (void)stw_alloc(z->b, STW_COMPONENT_GRADS, STW_TIER_GPU,
                        stw_times(z->placed, z->fp32_grads ? 4 : z->element));
    uint64_t whole = stw_times(shard, z->ranks);
    if (z->set.offload_param) whole = stw_plus(whole, shard);
    if (z->ranks > 1 || z->set.offload_param) {
        drop(z, alloc(z, stw_times(whole, z->element)));
        (void)stw_alloc(z->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, stw_times(small, z->element));
    }
}

void stw_zero_build_load(stw_zero *z) {
    stw_builder *b = z->b;
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_LOAD,
                                         .repeat = STW_REPEAT_ONCE,
                                         .transfer = stw_load_transfer(b)});
    stw_build_externals(b);
    const uint32_t from = stw_tensors_begin(b);
    stw_build_regions(b, true, is_params_on_gpu);
    stw_zero_params_tensors(z, from);
    stw_build_load(b);
    if (z->set.zero_stage == 3)
        begin_shards(z);
    else if (z->bf16_optimizer)
        begin_bf16(z);
    else
        begin_flat(z);
    stw_host_begin(z);
    stw_end_movement(b);
}

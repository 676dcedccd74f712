/* SPDX-License-Identifier: Apache-2.0 */
/* accelerator.pin_memory is torch's tensor.pin_memory (accelerator/abstract_accelerator.py): a copy
 * in a block of torch's caching host allocator, of the next power of two, made beside the pageable
 * original. A block that has been given back serves later requests of the same size. */
#include "engines/deepspeed/host.h"

#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/deepspeed/swap.h"

static void alloc(stw_zero *z, stw_component component, uint64_t bytes) {
    stw_alloc_at(z->b, component, STW_TIER_HOST, STW_OFFSET_EXTERNAL, bytes);
}

static void drop(stw_zero *z, stw_component component, uint64_t bytes) {
    stw_free_at(z->b, component, STW_TIER_HOST, STW_OFFSET_EXTERNAL, bytes);
}

static void drop_pageable(stw_zero *z, stw_component component, uint64_t bytes) {
    z->b->pageable = true;
    drop(z, component, bytes);
    z->b->pageable = false;
}

/* ---- buffers ---- */

typedef struct buffers {
    stw_zero *z;
    uint32_t given_back[64]; /* page-locked blocks by the power of two of their size */
} buffers;

static unsigned power_of(uint64_t bytes) {
    unsigned power = 0;
    while (power < 63 && (1ull << power) < bytes) power++;
    return power;
}

/* A buffer that stays. It is filled first and copied into page-locked memory then. */
static void add(buffers *of, stw_component component, uint64_t bytes, bool locked) {
    stw_zero *z = of->z;
    if (bytes == 0) return;
    if (!locked) {
        z->b->pageable = true;
        alloc(z, component, bytes);
        z->b->pageable = false;
        return;
    }
    z->b->pageable = true;
    stw_extent original = stw_alloc(z->b, component, STW_TIER_HOST, bytes);
    z->b->pageable = false;
    if (of->given_back[power_of(bytes)] > 0) {
        of->given_back[power_of(bytes)]--;
        drop(z, STW_COMPONENT_PAGE_LOCK_CACHE, 1ull << power_of(bytes));
    }
    alloc(z, component, bytes);
    alloc(z, STW_COMPONENT_PAGE_LOCK_ROUNDING, stw_page_lock_rounding_bytes(bytes));
    stw_free(z->b, component, STW_TIER_HOST, original);
}

/* A page-locked buffer that is not used any more: torch's allocator keeps its block. */
static void give_back(buffers *of, stw_component component, uint64_t bytes) {
    stw_zero *z = of->z;
    of->given_back[power_of(bytes)]++;
    drop(z, component, bytes);
    drop(z, STW_COMPONENT_PAGE_LOCK_ROUNDING, stw_page_lock_rounding_bytes(bytes));
    alloc(z, STW_COMPONENT_PAGE_LOCK_CACHE, 1ull << power_of(bytes));
}

static void region_at(stw_zero *z, const stw_region *r, bool locked) {
    z->b->pageable = !locked;
    stw_alloc_at(z->b, r->component, r->tier, r->offset_bytes, r->bytes);
    z->b->pageable = false;
}

void stw_host_region(stw_zero *z, const stw_region *r, bool locked) {
    region_at(z, r, locked);
    if (locked) alloc(z, STW_COMPONENT_PAGE_LOCK_ROUNDING, stw_page_lock_rounding_bytes(r->bytes));
}

static const stw_region *region_of(const stw_zero *z, stw_component component) {
    return stw_layout_region(z->b->layout, component, 0);
}

/* ---- stages 1 and 2 (stage_1_and_2.py, __init__ and initialize_optimizer_states) ---- */

/* Whole tensors of which the rank owns a part, where gradients of several micro batches are added
 * up (async_accumulate_grad_in_cpu_via_gpu). */
static void add_accumulators(buffers *of) {
    const stw_zero *z = of->z;
    const stw_space *own = &z->job->kinds[z->b->layout->kind].spaces[STW_SPACE_OPTIMIZER];
    if (z->job->run->batch.grad_accumulation == 1 || z->fp32_grads) return;
    for (uint32_t i = 0; i < own->n_segments; i++)
        add(of, STW_COMPONENT_GRADS,
            stw_times(z->job->model->tensors[own->segments[i].tensor].numel, z->element),
            z->set.pin_memory);
}

/* Each group has a buffer of its own, which torch's allocator rounds. */
static void masters(stw_zero *z, const stw_region *r, bool locked) {
    region_at(z, r, locked);
    for (uint32_t g = 0; g < STW_ZERO_GROUPS && locked; g++)
        alloc(z, STW_COMPONENT_PAGE_LOCK_ROUNDING,
              stw_page_lock_rounding_bytes(stw_times(4, z->group_placed[g])));
}

static void begin_flat(buffers *of) {
    stw_zero *z = of->z;
    const bool locked = z->set.pin_memory;
    const stw_region *master = region_of(z, STW_COMPONENT_MASTER);
    if (master != NULL) masters(z, master, locked);
    for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++)
        add(of, STW_COMPONENT_STAGE, stw_times(z->group_placed[g], z->element), locked);
    add(of, STW_COMPONENT_STAGE, stw_times(z->largest, z->element), locked);
    for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++)
        add(of, STW_COMPONENT_GRADS, stw_times(z->group_placed[g], 4), locked);
    add_accumulators(of);
}

/* ---- stage 3 ---- */

/* A shard that zero.Init puts on the host: small tensors stay on the GPU. A head that is tied later
 * is a tensor of its own then. */
static uint64_t shard_on_host(const stw_zero *z, uint32_t tensor) {
    const bool small = z->job->model->tensors[tensor].numel <= z->set.persistence_threshold;
    return small ? 0 : stw_times(stw_zero_shard(z, tensor), z->element);
}

/* zero.Init page-locks every shard by itself; the blocks of trained ones stay with the allocator
 * when the shards have moved to one buffer (partition_parameters.py, _partition_param; stage3.py,
 * _create_param_groups_fp16_flat_cpu_memory and _move_to_flat_buffer). Frozen ones stay where they
 * are. */
static void with_shards(buffers *of, void (*change)(buffers *of, uint64_t bytes)) {
    const stw_zero *z = of->z;
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) {
        const uint64_t bytes = shard_on_host(z, t);
        uint32_t n = (stw_job_trains(z->job, t) ? 1u : 0) + (t == stw_zero_embedding(z) ? 1u : 0);
        if (bytes == 0) continue;
        for (uint32_t i = 0; i < n; i++) change(of, bytes);
    }
}

static void lock_shard(buffers *of, uint64_t bytes) { add(of, STW_COMPONENT_PARAMS, bytes, true); }
static void leave_shard(buffers *of, uint64_t bytes) { give_back(of, STW_COMPONENT_PARAMS, bytes); }

/* The buffer of trained shards is page-locked in any case. */
static void begin_shards(buffers *of) {
    stw_zero *z = of->z;
    const stw_region *params = region_of(z, STW_COMPONENT_PARAMS);
    uint64_t frozen = 0;
    if (!z->set.offload_param || params == NULL) return;
    if (z->set.pin_memory) with_shards(of, lock_shard);
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) {
        const uint64_t bytes = stw_job_trains(z->job, t) ? 0 : shard_on_host(z, t);
        frozen = stw_plus(frozen, bytes);
        if (z->set.pin_memory)
            alloc(z, STW_COMPONENT_PAGE_LOCK_ROUNDING, stw_page_lock_rounding_bytes(bytes));
    }
    frozen = stw_min_u64(frozen, params->bytes);
    const uint64_t flat = params->bytes - frozen;
    stw_alloc_at(z->b, params->component, params->tier, params->offset_bytes, flat);
    alloc(z, STW_COMPONENT_PAGE_LOCK_ROUNDING, stw_page_lock_rounding_bytes(flat));
    z->b->pageable = !z->set.pin_memory;
    alloc(z, STW_COMPONENT_PARAMS, frozen);
    z->b->pageable = false;
    if (z->set.pin_memory) with_shards(of, leave_shard);
}

/* With parameters on NVMe: what is too small for a file is on the host, one by one, until it moves
 * into the buffer of its parameter group; files are read into that buffer, and stay. */
static void begin_swapped_shards(buffers *of) {
    stw_zero *z = of->z;
    z->b->from_what = "param_buffer_count buffers of param_buffer_size elements, for shards";
    alloc(z, STW_COMPONENT_STAGE, stw_swap_param_buffers(z));
    z->b->from_what = NULL;
    stw_swap_load_params(z);
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++)
        if (stw_swap_param_file(z, t) == 0)
            add(of, STW_COMPONENT_PARAMS, shard_on_host(z, t), z->set.pin_memory);
    for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++) {
        const uint64_t bytes = stw_times(z->host_params[g], z->element);
        alloc(z, STW_COMPONENT_PARAMS, bytes);
        alloc(z, STW_COMPONENT_PAGE_LOCK_ROUNDING, stw_page_lock_rounding_bytes(bytes));
    }
    z->b->from_what = "updated shards of the largest sub-group, before they are written";
    alloc(z, STW_COMPONENT_STAGE, stw_swap_written_buffer(z));
    z->b->from_what = NULL;
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) {
        const uint64_t bytes = stw_swap_param_file(z, t) == 0 ? shard_on_host(z, t) : 0;
        if (bytes == 0 || !stw_job_trains(z->job, t) || z->sub_group_of[t] >= z->host_sub_groups)
            continue;
        if (z->set.pin_memory)
            give_back(of, STW_COMPONENT_PARAMS, bytes);
        else
            drop_pageable(z, STW_COMPONENT_PARAMS, bytes);
    }
}

/* What sub-groups on the GPU and on NVMe do not take of a region of fp32 state. */
static void host_part(stw_zero *z, const stw_region *r) {
    const uint64_t gone = stw_times(4, stw_plus(z->on_gpu_params, z->swapped_params));
    if (r->bytes <= gone) return;
    z->b->pageable = true;
    stw_alloc_at(z->b, r->component, STW_TIER_HOST,
                 r->tier == STW_TIER_HOST ? r->offset_bytes : STW_OFFSET_EXTERNAL, r->bytes - gone);
    z->b->pageable = false;
}

/* Master weights are pageable: a cast, and a copy of it. Gradients of every sub-group follow,
 * beside a buffer of the largest one, then the shards of all gradients in the dtype in which they
 * are collected (stage3.py, _create_fp32_partitions, initialize_optimizer_states and
 * _setup_for_real_optimizer). Buffers of sub-groups whose state is on the GPU are copied there and
 * given back. */
static void begin_sub_groups(buffers *of) {
    stw_zero *z = of->z;
    const stw_region *master = region_of(z, STW_COMPONENT_MASTER);
    const bool locked = z->set.pin_memory;
    uint64_t largest = 0;
    for (uint32_t i = 0; i < z->n_sub_groups; i++)
        largest = stw_max_u64(largest, stw_times(4, z->sub_groups[i]));
    z->b->from_what = "optimizer_buffer_count buffers of the largest sub-group, for its files";
    alloc(z, STW_COMPONENT_STAGE, stw_swap_optimizer_buffers(z));
    z->b->from_what = NULL;
    z->b->pageable = true;
    stw_extent beside = stw_alloc(z->b, STW_COMPONENT_STAGE, STW_TIER_HOST, largest);
    if (master != NULL) host_part(z, master);
    stw_swap_load_masters(z);
    for (uint32_t i = 0; i < z->n_sub_groups; i++) {
        const uint64_t bytes = stw_times(4, z->sub_groups[i]);
        if (z->swapped[i]) continue;
        if (i >= z->on_gpu || locked) add(of, STW_COMPONENT_GRADS, bytes, locked);
        if (i < z->on_gpu && locked) give_back(of, STW_COMPONENT_GRADS, bytes);
    }
    stw_free(z->b, STW_COMPONENT_STAGE, STW_TIER_HOST, beside);
    add(of, STW_COMPONENT_GRADS, stw_times(z->placed, z->fp32_grads ? 4 : z->element), locked);
}

void stw_host_moments(stw_zero *z) {
    static const stw_component moments[] = {STW_COMPONENT_EXP_AVG, STW_COMPONENT_EXP_AVG_SQ};
    for (int i = 0; i < 2; i++) {
        const stw_region *r = region_of(z, moments[i]);
        if (r != NULL) host_part(z, r);
        (void)stw_alloc(z->b, moments[i], STW_TIER_GPU, stw_times(4, z->on_gpu_params));
    }
}

void stw_host_begin(stw_zero *z) {
    buffers of = {.z = z};
    if (!z->set.offload_optimizer) return;
    if (z->set.zero_stage < 3) {
        begin_flat(&of);
        return;
    }
    if (z->set.offload_param == STW_OFFLOAD_NVME)
        begin_swapped_shards(&of);
    else
        begin_shards(&of);
    begin_sub_groups(&of);
}

/* ---- the step ---- */

stw_extent stw_host_cast(stw_zero *z, uint64_t params) {
    const bool through = z->set.zero_stage < 3 || z->set.offload_param;
    z->b->pageable = true;
    stw_extent cast = stw_alloc(z->b, STW_COMPONENT_STAGE, STW_TIER_HOST,
                                through ? 0 : stw_times(params, z->element));
    z->b->pageable = false;
    return cast;
}

void stw_host_cast_done(stw_zero *z, stw_extent cast, uint32_t after) {
    stw_free_after(z->b, STW_COMPONENT_STAGE, STW_TIER_HOST, cast, after);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (transformers 5.17, models/qwen2_5_vl/modeling_qwen2_5_vl.py, models/qwen3_vl/
 * modeling_qwen3_vl.py):
 * - The tower's blocks are layers of their own for checkpoints and for FSDP's units; embedding and
 *   mergers (blocks/tower.h) are not.
 * - A convolution whose stride is its kernel saves the patches.
 * Without a gradient above it autograd saves nothing of a module (LLaMA-Factory 0.9.5,
 * model_utils/checkpointing.py, recomputes layers that are trained, too, alone). */
#include "engines/vision.h"

#include <string.h>

#include "blocks/tower.h"
#include "core/checked.h"

static const stw_block_group *group_of(const stw_job *job, uint32_t tensor) {
    return &job->model->groups[job->model->blocks[job->model->tensors[tensor].block].group];
}

static bool is_merger(const stw_job *job, uint32_t tensor) {
    const stw_block_group *group = group_of(job, tensor);
    return group->facts.vision && !group->facts.transformer &&
           strcmp(group->name, "vision_embed") != 0;
}

bool stw_vision_is_reached(const stw_job *job) {
    for (uint32_t t = 0; t < job->model->n_tensors; t++)
        if (group_of(job, t)->facts.vision && !is_merger(job, t) && stw_job_trains(job, t))
            return true;
    return false;
}

static uint64_t compute_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->precision.compute) / 8;
}

static uint64_t merger_bytes(const stw_job *job, uint32_t block) {
    stw_calls calls;
    uint64_t saved[STW_N_PARTS];
    if (!stw_tower_has_merger(job, block)) return 0;
    stw_tower_calls_of_merger(job, block, &calls);
    stw_calls_saved(&calls, saved);
    return stw_plus(saved[STW_PART_NORMS], saved[STW_PART_MLP]);
}

/* Of what makes vectors of patches: pixels. */
static uint64_t pixel_bytes(const stw_job *job, const stw_tensor *patch) {
    return stw_times(stw_job_patches(job),
                     stw_times(compute_bytes(job), patch->numel / patch->shape[0]));
}

uint64_t stw_vision_saved_bytes(const stw_job *job) {
    const stw_model *model = job->model;
    bool reached = stw_vision_is_reached(job);
    uint64_t sum = 0;
    if (stw_job_patches(job) == 0) return 0;
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        const stw_block *block = &model->blocks[b];
        const stw_block_facts *f = &model->groups[block->group].facts;
        const stw_tensor *first = &model->tensors[block->first_tensor];
        if (!f->vision || f->transformer || block->n_tensors == 0) continue;
        for (uint32_t t = block->first_tensor; t < block->first_tensor + block->n_tensors; t++)
            reached = reached || stw_job_trains(job, t);
        if (!reached) continue;
        const bool embeds = first->rank > 2 && first->shape[0] > 0;
        sum = stw_plus(sum, embeds ? pixel_bytes(job, first) : merger_bytes(job, b));
    }
    return sum;
}

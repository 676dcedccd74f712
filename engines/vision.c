/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (transformers 5.17, models/qwen2_5_vl/modeling_qwen2_5_vl.py, models/qwen3_vl/
 * modeling_qwen3_vl.py):
 * - The tower's blocks are layers of their own for checkpoints and for FSDP's units; embedding and
 *   mergers are not.
 * - Qwen2.5-VL's norms are RMSNorm (fp32 copy of the input, fp32 root, normalised input in the
 *   compute dtype); Qwen3-VL's are LayerNorm, which has a bias and saves its input as it is, and an
 *   fp32 mean and root (aten/src/ATen/native/cuda/layer_norm_kernel.cu).
 * - A merger: input and output of its norm, input and output of its GELU.
 * - A convolution whose stride is its kernel saves the patches.
 * Without a gradient above it autograd saves nothing of a module (LLaMA-Factory 0.9.5,
 * model_utils/checkpointing.py, recomputes layers that are trained, too, alone). */
#include "engines/vision.h"

#include <string.h>

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

/* Has a norm of this block a bias? */
static bool has_layer_norm(const stw_job *job, const stw_block *block) {
    for (uint32_t t = block->first_tensor; t < block->first_tensor + block->n_tensors; t++) {
        const stw_weight_use use = job->model->tensors[t].use;
        if (use.bias && use.weight == STW_WEIGHT_NORM) return true;
    }
    return false;
}

static uint64_t norm_row(const stw_job *job, const stw_block *block, bool trained) {
    const uint64_t c = compute_bytes(job), width = job->model->groups[block->group].facts.hidden;
    if (has_layer_norm(job, block)) return stw_plus(stw_times(c, width), 8);
    return stw_plus(stw_times(width, 4 + (trained ? c : 0)), 4);
}

uint64_t stw_vision_norm_bytes(const stw_job *job, uint32_t group, bool trained) {
    uint32_t b = 0;
    while (b + 1 < job->model->n_blocks && job->model->blocks[b].group != group) b++;
    return norm_row(job, &job->model->blocks[b], trained);
}

uint64_t stw_vision_saved_bytes(const stw_job *job) {
    const stw_model *model = job->model;
    const uint64_t patches = stw_job_patches(job), c = compute_bytes(job);
    bool reached = stw_vision_is_reached(job);
    uint64_t sum = 0;
    for (uint32_t b = 0; b < model->n_blocks && patches > 0; b++) {
        const stw_block *block = &model->blocks[b];
        const stw_block_facts *f = &model->groups[block->group].facts;
        const stw_tensor *first = &model->tensors[block->first_tensor];
        if (!f->vision || f->transformer || block->n_tensors == 0) continue;
        for (uint32_t t = block->first_tensor; t < block->first_tensor + block->n_tensors; t++)
            reached = reached || stw_job_trains(job, t);
        if (!reached) continue;
        const uint64_t merger =
            stw_plus(norm_row(job, block, true), stw_times(stw_times(3, c), f->hidden));
        const bool embeds = first->rank > 2 && first->shape[0] > 0;
        const uint64_t row = embeds ? stw_times(c, first->numel / first->shape[0]) : merger;
        sum = stw_plus(sum, stw_times(patches, row));
    }
    return sum;
}

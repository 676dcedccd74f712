/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a step: roots that foreach makes, and what the streamed step (AReaL,
 * areal/engine/fsdp_utils/optimizer.py at 4121871, PerLayerGPUOptimizerStep) brings up on a stream
 * of its own, one tensor at a time; it empties the allocator's cache when it ends. */
#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/fsdp2/tensors.h"

/* Tensors of the step, by segment of the optimizer space. */
enum { ROOT, EXP_AVG, EXP_AVG_SQ, PARAM, GRAD, N_STEP_TENSORS };

/* The wrapped block that is a group of the streamed step: groups are numbered as wrapped blocks
 * are. @return n_blocks: the last group, which is all the others, or all of them */
static uint32_t wrapped_block(const stw_job *job, uint32_t group) {
    uint32_t before = 0, i = 0;
    for (; i < job->model->n_blocks && group != STW_TORCH_ALL; i++)
        if (!stw_job_in_root(job, i) && before++ == group) return i;
    return job->model->n_blocks;
}

/* Take or drop one tensor per segment of a group. */
static void step_tensors(stw_builder *b, uint32_t group, bool alloc, uint32_t stream,
                         const uint64_t element_bytes[N_STEP_TENSORS]) {
    const stw_job *job = b->job;
    const stw_space *space = &job->kinds[b->layout->kind].spaces[STW_SPACE_OPTIMIZER];
    uint32_t block = UINT32_MAX;
    bool in = false;
    if (b->step_tensors == 0)
        b->step_tensors = stw_tensor_numbers(b, space->n_segments * N_STEP_TENSORS);
    if (b->step_tensors == STW_NO_TENSOR) return;
    const uint32_t wrapped = wrapped_block(job, group);
    for (uint32_t i = 0; i < space->n_segments; i++) {
        const stw_segment *segment = &space->segments[i];
        const uint32_t at = job->model->tensors[segment->tensor].block;
        if (at != block && wrapped < job->model->n_blocks)
            in = at == wrapped;
        else if (at != block)
            in = group == STW_TORCH_ALL || stw_job_in_root(job, at);
        block = at;
        for (uint32_t t = 0; in && t < N_STEP_TENSORS; t++) {
            const uint32_t tensor = b->step_tensors + i * N_STEP_TENSORS + t;
            const uint64_t bytes = stw_times(segment->n, element_bytes[t]);
            if (alloc)
                stw_tensor_take_as(b, tensor, stream, bytes);
            else if (bytes > 0)
                stw_tensor_drop(b, tensor);
        }
    }
}

void stw_torch_roots(stw_builder *b, uint32_t first_op, uint32_t group, bool alloc) {
    const uint64_t bytes[N_STEP_TENSORS] = {
        [ROOT] = stw_job_element_bytes(b->job, STW_COMPONENT_EXP_AVG_SQ)};
    if (!stw_torch_is_known(b)) return;
    stw_tensors_instead(b, first_op);
    step_tensors(b, group, alloc, STW_TORCH_COMPUTE_POOL, bytes);
}

void stw_torch_window(stw_builder *b, uint32_t first_op, uint32_t group, bool alloc) {
    const stw_job *job = b->job;
    const bool all = b->decisions->state[0].place.params == STW_TIER_HOST;
    const uint64_t bytes[N_STEP_TENSORS] = {
        [EXP_AVG] = stw_job_element_bytes(job, STW_COMPONENT_EXP_AVG),
        [EXP_AVG_SQ] = stw_job_element_bytes(job, STW_COMPONENT_EXP_AVG_SQ),
        [PARAM] = all ? stw_job_element_bytes(job, STW_COMPONENT_PARAMS) : 0,
        [GRAD] = all ? stw_job_element_bytes(job, STW_COMPONENT_GRADS) : 0};
    if (!stw_torch_is_known(b)) return;
    stw_tensors_instead(b, first_op);
    step_tensors(b, group, alloc, STW_TORCH_UP_POOL, bytes);
}

void stw_torch_end_streamed(stw_builder *b) {
    if (!stw_torch_is_known(b)) return;
    stw_tensors_instead(b, stw_tensors_begin(b));
    stw_tensors_empty_cache(b);
}

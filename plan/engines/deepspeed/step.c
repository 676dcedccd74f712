/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step. On the GPU it is FusedAdam's, which needs nothing besides its operands; on
 * the host DeepSpeedCPUAdam's. */
#include "core/checked.h"
#include "plan/engines/bytes.h"
#include "plan/engines/deepspeed/grads.h"
#include "plan/engines/deepspeed/host.h"
#include "plan/engines/deepspeed/parts.h"
#include "plan/engines/fsdp2/cpu_step.h"

static stw_extent alloc(stw_zero *z, uint64_t bytes) {
    return stw_alloc(z->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, bytes);
}

static void drop(stw_zero *z, stw_extent extent) {
    stw_free(z->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, extent);
}

/* Gradients are scaled where they are clipped; counted like another norm (unscale_and_clip_grads).
 */
static uint32_t scale(stw_zero *z, uint64_t params) {
    const bool cpu = z->set.offload_optimizer > 0;
    if (!(z->job->run->optimizer.clip_norm > 0)) return STW_OP_NONE;
    stw_op op = stw_op_make(STW_OP_NORM, cpu ? STW_STREAM_CPU : STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = STW_COMPONENT_GRADS;
    op.from = op.to = cpu ? STW_TIER_HOST : STW_TIER_GPU;
    op.params = params;
    op.after[0] = z->normed;
    return stw_append(z->b, op);
}

static uint32_t adam(stw_zero *z, uint64_t params, uint32_t after) {
    const bool cpu = z->set.offload_optimizer > 0;
    stw_op op = stw_op_make(STW_OP_UPDATE, cpu ? STW_STREAM_CPU : STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = STW_COMPONENT_PARAMS;
    op.update = cpu ? STW_UPDATE_CPU : STW_UPDATE_RESIDENT;
    op.from = op.to = cpu ? STW_TIER_HOST : STW_TIER_GPU;
    op.params = params;
    op.after[0] = after;
    return stw_append(z->b, op);
}

/* Updated weights of an optimizer on the host go to where the parameters lie. */
static uint32_t return_params(stw_zero *z, uint64_t params, uint32_t after) {
    if (!z->set.offload_optimizer || z->set.offload_param) return after;
    stw_extent cast = stw_host_cast(z, params);
    uint32_t up = stw_copy(z->b, &(stw_transport){.kind = STW_OP_COPY,
                                                  .stream = STW_STREAM_H2D,
                                                  .component = STW_COMPONENT_PARAMS,
                                                  .unit = STW_OP_NONE,
                                                  .from = {STW_TIER_HOST, 0},
                                                  .to = {STW_TIER_GPU, 0},
                                                  .bytes = stw_times(params, z->element),
                                                  .after = {after, STW_OP_NONE}});
    stw_host_cast_done(z, cast, up);
    return up;
}

static void all_gather(stw_zero *z, uint64_t bytes, uint32_t after) {
    if (z->ranks == 1 || bytes == 0) return;
    stw_op op = stw_op_make(STW_OP_ALL_GATHER, STW_STREAM_COMM, STW_OP_NONE);
    op.group = STW_RANK_GROUP_SHARD;
    op.component = STW_COMPONENT_PARAMS;
    op.from = op.to = STW_TIER_GPU;
    op.bytes = bytes;
    op.after[0] = after;
    (void)stw_append(z->b, op);
}

/* The most elements of a tensor of which this rank has the reduced gradient. */
static uint64_t largest_grad(const stw_zero *z) {
    uint64_t most = 0;
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++)
        most =
            stw_max_u64(most, z->set.zero_stage == 3 ? stw_zero_shard(z, t) : stw_zero_owned(z, t));
    return most;
}

/* The squares of all gradients and their sum over ranks: a copy of one tensor after the other in
 * fp64 (zero/utils.py, get_norm_dtype; get_grad_norm_direct). Those of gradients on the host were
 * made in backward, BF16_Optimizer's are fp32 without a copy. */
static void norm(stw_zero *z) {
    const bool copies = !z->set.offload_optimizer && !z->bf16_optimizer;
    stw_extent squares = alloc(z, copies ? stw_times(8, largest_grad(z)) : 0);
    stw_op sum = stw_op_make(STW_OP_NORM_SUM, STW_STREAM_COMM, STW_OP_NONE);
    stw_op op = stw_op_make(STW_OP_NORM, STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = STW_COMPONENT_GRADS;
    op.from = op.to = STW_TIER_GPU;
    op.params = z->bf16_optimizer ? z->job->model->params : z->placed;
    sum.after[0] = stw_append(z->b, op);
    drop(z, squares);
    sum.component = STW_COMPONENT_COMM;
    sum.to = z->set.offload_optimizer ? STW_TIER_HOST : STW_TIER_GPU;
    sum.bytes = sizeof(float);
    z->normed = stw_append(z->b, sum);
}

static bool is_moment(const stw_region *r) {
    return r->component == STW_COMPONENT_EXP_AVG || r->component == STW_COMPONENT_EXP_AVG_SQ;
}

/* Adam makes its moments at its first step; on the host they are pageable. */
static void make_moments(stw_zero *z, bool first) {
    if (!first) return;
    z->b->pageable = z->set.offload_optimizer > 0;
    stw_build_regions(z->b, true, is_moment);
    z->b->pageable = false;
}

/* Gradients of `params` elements as Adam takes them: made flat, then cast to fp32; those in fp32
 * that are flat already serve as they are. */
static stw_extent cast_grads(stw_zero *z, uint64_t params, bool flat) {
    if (z->set.offload_optimizer || z->bf16_optimizer || (flat && z->fp32_grads))
        return STW_NO_EXTENT;
    stw_extent joined =
        flat ? STW_NO_EXTENT : alloc(z, stw_times(params, z->fp32_grads ? 4 : z->element));
    if (z->fp32_grads) return joined;
    stw_extent cast = alloc(z, stw_times(4, params));
    drop(z, joined);
    return cast;
}

/* Stages 1 and 2: one part, then everyone's (stage_1_and_2.py and bf16_optimizer.py, step). */
static void step_flat(stw_zero *z, bool first) {
    stw_extent cast = cast_grads(z, z->placed, z->fp32_grads);
    if (!z->bf16_optimizer && !z->fp32_grads) stw_grads_go(z);
    make_moments(z, first);
    uint32_t done = return_params(z, z->placed, adam(z, z->placed, scale(z, z->placed)));
    drop(z, cast);
    stw_grads_go(z);
    all_gather(z, stw_times(z->job->model->params, z->element), done);
}

/* Stage 3: one sub-group after the other, then the tensors that stay whole (stage3.py, step and
 * _post_step). */
static void step_sub_groups(stw_zero *z, bool first) {
    uint64_t small = 0;
    uint32_t done = STW_OP_NONE;
    for (uint32_t i = 0; i < z->n_sub_groups; i++) {
        const uint64_t params = z->sub_groups[i];
        stw_extent cast = cast_grads(z, params, false);
        make_moments(z, first && i == 0);
        done = return_params(z, params, adam(z, params, scale(z, params)));
        drop(z, cast);
    }
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++)
        if (z->job->model->tensors[t].numel <= z->set.persistence_threshold)
            small = stw_plus(small, z->job->model->tensors[t].numel);
    all_gather(z, stw_times(small, z->element), done);
}

/* DeepSpeedCPUAdam reads parameter, gradient and both moments in fp32 and writes all but the
 * gradient in one pass (csrc/includes/cpu_adam.h); parameters are then cast to 16 bits. Scaling
 * reads and writes gradients. */
double stw_zero_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes) {
    *bytes = (double)params * (norm ? 2 * 4.0 : 7 * 4.0 + 4.0 + 2.0);
    return stw_fsdp2_cpu_pass_s(job, *bytes, 1);
}

void stw_zero_build_step(stw_zero *z, bool first) {
    stw_begin_movement(z->b, (stw_movement){.phase = first ? STW_PHASE_FIRST_OPTIMIZER_STEP
                                                           : STW_PHASE_OPTIMIZER_STEP,
                                            .repeat = first ? STW_REPEAT_FIRST : STW_REPEAT_LATER});
    /* cuBLAS's work areas stay from the first forward on */
    if (first)
        (void)stw_alloc(z->b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_workspace_bytes(z->job));
    if (first || !z->job->model->facts_known) stw_grads_appear(z);
    stw_grads_reduce_once(z);
    norm(z);
    if (z->set.zero_stage == 3)
        step_sub_groups(z, first);
    else
        step_flat(z, first);
    stw_end_movement(z->b);
}

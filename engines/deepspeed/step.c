/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step. On the GPU it is FusedAdam's, which needs nothing besides its operands, or
 * with optimizer.implementation: foreach torch's AdamW; on the host DeepSpeedCPUAdam's.
 *
 * Besides the update there are passes over whole arrays (norm, flat copy, cast, scale, copy back)
 * and calls from Python. A call is counted where it launches a kernel, allocates, or records a
 * stream; views and attributes are not counted. The GPU works while a loop of calls goes on, up to
 * the next place at which the process waits for it. */
#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/cpu_step.h"
#include "engines/deepspeed/calls.h"
#include "engines/deepspeed/grads.h"
#include "engines/deepspeed/host.h"
#include "engines/deepspeed/parts.h"
#include "engines/deepspeed/save.h"
#include "engines/deepspeed/state_tensors.h"
#include "engines/deepspeed/swap.h"
#include "plan/program/tensors.h"

static stw_extent alloc(stw_zero *z, uint64_t bytes) {
    return stw_alloc(z->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, bytes);
}

static void drop(stw_zero *z, stw_extent extent) {
    stw_free(z->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, extent);
}

/* What FusedAdam launches at once: 320 blocks of 65,536 elements (multi_tensor_apply.cuh). */
static uint64_t launches(uint64_t params) { return stw_div_up_u64(params, 320 * 65536); }

/* ---- the update ---- */

/* mul_ reads and writes gradients in fp32 (unscale_and_clip_grads). Stages 1 and 2 leave it out
 * where nothing is clipped, stage 3 does not. */
static uint32_t scale(stw_zero *z, uint64_t params, bool cpu) {
    const stw_tier tier = cpu ? STW_TIER_HOST : STW_TIER_GPU;
    if (!(z->job->run->optimizer.clip_norm > 0) && z->set.zero_stage < 3) return z->normed;
    return stw_zero_pass(z, tier, params, 4 + 4, z->normed);
}

static uint32_t adam(stw_zero *z, uint64_t params, bool cpu, uint32_t after) {
    stw_op op = stw_op_make(STW_OP_UPDATE, cpu ? STW_STREAM_CPU : STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = STW_COMPONENT_PARAMS;
    op.update = cpu ? STW_UPDATE_CPU : STW_UPDATE_RESIDENT;
    op.from = op.to = cpu ? STW_TIER_HOST : STW_TIER_GPU;
    op.params = params;
    op.after[0] = after;
    return stw_append(z->b, op);
}

/* torch's AdamW on the GPU: the roots of exp_avg_sq are a tensor of their own (torch/optim/adam.py,
 * _multi_tensor_adam), and 20 elements are read or written for each (cpu_step.c of engine fsdp2
 * counts them), of which the update counts 7. */
static uint32_t torch_adam(stw_zero *z, uint64_t params, uint32_t after) {
    stw_extent roots = alloc(z, stw_times(4, params));
    (void)stw_zero_pass(z, STW_TIER_GPU, params, (20 - 7) * 4, after);
    const uint32_t done = adam(z, params, false, after);
    drop(z, roots);
    return done;
}

static uint32_t update(stw_zero *z, uint64_t params, bool cpu, uint32_t after) {
    if (!cpu && z->job->run->optimizer.implementation == STW_OPTIMIZER_FOREACH)
        return torch_adam(z, params, after);
    return adam(z, params, cpu, after);
}

/* The cast on the CPU reads 4 bytes of an element, writes 2 and reads the lines of these first.
 * Where it makes a new array, the kernel clears its pages besides. */
static uint64_t cast_bytes(const stw_zero *z) {
    const uint64_t into = 4 + z->element + z->element;
    return z->set.zero_stage == 3 && !z->set.offload_param ? into + z->element : into;
}

/* Updated weights of an optimizer on the host are cast there and go to where the parameters lie.
 * The cast of stage 3 is pageable; stages 1 and 2 have a buffer for it. On the GPU the copy casts;
 * the update has counted what is written. */
static uint32_t return_params(stw_zero *z, uint64_t params, uint32_t after) {
    if (!z->set.offload_optimizer)
        return stw_zero_pass(z, STW_TIER_GPU, params, z->fp32_grads ? 4 : 4 + 2, after);
    stw_extent cast = stw_host_cast(z, params);
    after = stw_zero_pass(z, STW_TIER_HOST, params, cast_bytes(z), after);
    uint32_t up = after;
    if (!z->set.offload_param) {
        up = stw_copy(z->b, &(stw_transport){.kind = STW_OP_COPY,
                                             .stream = STW_STREAM_H2D,
                                             .component = STW_COMPONENT_PARAMS,
                                             .unit = STW_OP_NONE,
                                             .from = {STW_TIER_HOST, 0},
                                             .to = {STW_TIER_GPU, 0},
                                             .bytes = stw_times(params, z->element),
                                             .after = {after, STW_OP_NONE}});
        if (up != STW_OP_NONE)
            z->b->program->ops[up].pageable = z->set.zero_stage == 3 || !z->set.pin_memory;
    }
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

/* ---- the norm ---- */

/* The most elements of a tensor of which this rank has the reduced gradient. */
static uint64_t largest_grad(const stw_zero *z) {
    uint64_t most = 0;
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++)
        most = stw_max_u64(most, !stw_job_trains(z->job, t) ? 0
                                 : z->set.zero_stage == 3   ? stw_zero_shard(z, t)
                                                            : stw_zero_owned(z, t));
    return most;
}

static uint32_t norm_sum(stw_zero *z, uint32_t squares, uint32_t called) {
    stw_op sum = stw_op_make(STW_OP_NORM_SUM, STW_STREAM_COMM, STW_OP_NONE);
    sum.after[0] = squares;
    sum.after[1] = called;
    sum.component = STW_COMPONENT_COMM;
    sum.to = z->set.offload_optimizer ? STW_TIER_HOST : STW_TIER_GPU;
    sum.bytes = sizeof(float);
    return stw_append(z->b, sum);
}

static uint32_t squares_of(stw_zero *z, uint64_t params) {
    stw_op op = stw_op_make(STW_OP_NORM, STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = STW_COMPONENT_GRADS;
    op.from = op.to = STW_TIER_GPU;
    op.params = params;
    return stw_append(z->b, op);
}

/* ---- overflow ---- */

/* runtime/utils.py, has_inf_or_nan of a tensor: amax and amin, isfinite of both (torch: ==, abs,
 * !=,
 * *), and, not; the result is added to a sum. */
enum { FINITE_CALLS = 2 + 2 * 4 + 2 + 1 };

/* Stage 3 with fp16: isinf (abs, which is a tensor, and ==) and isnan of all gradients at once, of
 * which any() is taken (stage3.py, has_overflow). */
static uint32_t check_at_once(stw_zero *z) {
    const bool host = z->set.offload_optimizer > 0;
    const stw_tier tier = host ? STW_TIER_HOST : STW_TIER_GPU;
    const uint64_t element = z->fp32_grads ? 4 : z->element;
    z->b->pageable = host;
    stw_extent made =
        stw_alloc(z->b, STW_COMPONENT_REDUCE, tier, stw_times(z->placed, element + 1));
    z->b->pageable = false;
    const uint32_t done =
        stw_zero_pass(z, tier, z->placed, stw_times(4, stw_plus(element, 1)), STW_OP_NONE);
    stw_free(z->b, STW_COMPONENT_REDUCE, tier, made);
    return done;
}

/* Stages 1 and 2 look for overflow with bf16, too (precision_config.py, check_grad_overflow), but
 * BF16_Optimizer does not; gradients on the host were looked at in backward. All ranks agree on a
 * flag, for which the process waits (has_overflow). @return when it goes on */
static uint32_t check_overflow(stw_zero *z) {
    const bool third = z->set.zero_stage == 3;
    const uint64_t element = z->fp32_grads ? 4 : z->element;
    uint64_t calls = 0;
    uint32_t done = STW_OP_NONE;
    if (third ? z->job->run->precision.params != STW_DTYPE_F16 : z->bf16_optimizer)
        return STW_OP_NONE;
    if (third) {
        done = check_at_once(z);
    } else if (!z->set.offload_optimizer) {
        for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++)
            calls = stw_plus(calls, stw_times(FINITE_CALLS, z->group_tensors[g]));
        done = stw_zero_pass(z, STW_TIER_GPU, z->placed, stw_times(2, element), STW_OP_NONE);
    }
    const bool on_cpu = third && z->set.offload_optimizer; /* the pass is the process's own */
    const uint32_t called = stw_zero_call(z, calls, STW_OP_NONE);
    return stw_zero_call(z, 1, norm_sum(z, on_cpu ? STW_OP_NONE : done, on_cpu ? done : called));
}

/* ---- the norm of them all ---- */

/* Of `params` gradients in `tensors` tensors on the GPU: each is copied to fp64, and the copy is
 * read (zero/utils.py, get_norm_dtype; get_grad_norm_direct): two launches of each. Those of
 * gradients on the host were made in backward; the step adds them up, in Python
 * (complete_grad_norm_calculation_for_cpu_offload). */
static void norm_of(stw_zero *z, uint64_t params, uint64_t tensors, uint32_t after) {
    uint32_t called = stw_zero_call(z, stw_times(2, tensors), after), squares = STW_OP_NONE;
    if (!z->set.offload_optimizer) {
        (void)stw_zero_pass(z, STW_TIER_GPU, params, 8 + 8, after);
        squares = squares_of(z, params);
    }
    z->normed = norm_sum(z, squares, called);
}

/* BF16_Optimizer's are fp32 and whole on every rank: no copy, no sum over ranks
 * (get_global_norm_of_tensors without a model-parallel group). The process waits for the norm and
 * scales the gradients of all tensors one by one (clip_tensors_by_global_norm; a norm above the
 * limit is assumed). */
static void norm_bf16(stw_zero *z) {
    const uint64_t n = z->n_trained, params = z->trained;
    (void)stw_zero_call(z, n, STW_OP_NONE);
    z->normed = squares_of(z, params);
    if (!(z->job->run->optimizer.clip_norm > 0)) return;
    (void)stw_zero_call(z, n, z->normed);
    z->normed = stw_zero_pass(z, STW_TIER_GPU, params, 4 + 4, z->normed);
}

static bool is_small(const stw_zero *z, uint32_t tensor) {
    return z->job->model->tensors[tensor].numel <= z->set.persistence_threshold;
}

static uint64_t small_tensors(const stw_zero *z) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) n += is_small(z, t);
    return n;
}

/* Stage 3 has a norm and a sum for every sub-group. Tensors that stay whole are let go first:
 * record_stream and an empty tensor for each (release_and_reset_all, free_param). */
static void norm(stw_zero *z) {
    const bool copies = !z->set.offload_optimizer && !z->bf16_optimizer;
    const uint32_t checked = check_overflow(z);
    stw_extent squares = alloc(z, copies ? stw_times(8, largest_grad(z)) : 0);
    if (z->set.zero_stage == 3) {
        (void)stw_zero_call(z, z->ranks > 1 ? 2 * small_tensors(z) : 0, STW_OP_NONE);
        for (uint32_t i = 0; i < z->n_sub_groups; i++)
            norm_of(z, z->sub_groups[i], z->sub_group_tensors[i], checked);
    } else if (z->bf16_optimizer) {
        norm_bf16(z);
    } else {
        for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++)
            if (z->group_trained[g] > 0)
                norm_of(z, z->group_placed[g], z->group_tensors[g], checked);
    }
    drop(z, squares);
}

static bool is_moment(const stw_region *r) {
    return r->component == STW_COMPONENT_EXP_AVG || r->component == STW_COMPONENT_EXP_AVG_SQ;
}

/* Adam makes its moments at its first step; on the host they are pageable. */
static void make_moments(stw_zero *z, bool first) {
    const uint32_t from = stw_tensors_begin(z->b);
    if (!first) return;
    if (z->set.offload_optimizer)
        stw_host_moments(z);
    else
        stw_build_regions(z->b, true, is_moment);
    if (!z->set.offload_optimizer) stw_zero_state_tensors(z, from, 2);
}

/* ---- steps ---- */

/* Gradients of `params` elements as Adam takes them: made flat, then cast to fp32; those in fp32
 * that are flat already serve as they are. */
static stw_extent cast_grads(stw_zero *z, uint64_t params, bool flat) {
    const uint64_t element = z->fp32_grads ? 4 : z->element;
    if (z->set.offload_optimizer || z->bf16_optimizer || (flat && z->fp32_grads))
        return STW_NO_EXTENT;
    stw_extent joined = flat ? STW_NO_EXTENT : alloc(z, stw_times(params, element));
    if (!flat) (void)stw_zero_pass(z, STW_TIER_GPU, params, element + element, z->normed);
    if (z->fp32_grads) return joined;
    stw_extent cast = alloc(z, stw_times(4, params));
    (void)stw_zero_pass(z, STW_TIER_GPU, params, element + 4, z->normed);
    drop(z, joined);
    return cast;
}

/* Scaling takes four launches (the factor, then the gradients), a cast one, a copy one. */
enum { STEP_CALLS = 4 + 1 + 1 };

/* One parameter group of stages 1 and 2: this rank's part. @return when its weights are there */
static uint32_t step_group(stw_zero *z, uint32_t group, bool first) {
    const uint64_t params = z->group_placed[group];
    stw_extent cast = cast_grads(z, params, z->fp32_grads);
    if (!z->bf16_optimizer && !z->fp32_grads) stw_grads_keep(z, group + 1);
    make_moments(z, first);
    (void)stw_zero_call(z, STEP_CALLS + launches(params), z->normed);
    const bool cpu = z->set.offload_optimizer > 0;
    uint32_t scaled = z->bf16_optimizer ? z->normed : scale(z, params, cpu);
    uint32_t done = return_params(z, params, update(z, params, cpu, scaled));
    drop(z, cast);
    if (!z->bf16_optimizer && z->fp32_grads) stw_grads_keep(z, group + 1);
    return done;
}

/* Stages 1 and 2: one group after the other, then everyone's parts, a gather for each group
 * (stage_1_and_2.py and bf16_optimizer.py, step; all_gather_into_tensor_dp_groups). */
static void step_flat(stw_zero *z, bool first) {
    uint32_t done = z->normed;
    for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++) {
        if (z->group_placed[g] == 0) continue;
        done = step_group(z, g, first);
        first = false;
    }
    /* clear_hp_grads and clear_lp_grads write zeros */
    if (z->bf16_optimizer) (void)stw_zero_pass(z, STW_TIER_GPU, z->trained, 4 + z->element, done);
    stw_grads_go(z);
    for (uint32_t g = 0; g < STW_ZERO_GROUPS; g++)
        all_gather(z, stw_times(z->group_trained[g], z->element), done);
}

/* A sub-group whose optimizer is torch's AdamW on the GPU beside DeepSpeedCPUAdam. */
static uint32_t step_twin(stw_zero *z, uint64_t params) {
    uint32_t done = torch_adam(z, params, scale(z, params, false));
    stw_extent cast = alloc(z, z->set.offload_param ? stw_times(params, z->element) : 0);
    done = stw_zero_pass(z, STW_TIER_GPU, params, z->fp32_grads ? 4 : 4 + 2, done);
    if (z->set.offload_param)
        done = stw_copy(z->b, &(stw_transport){.kind = STW_OP_COPY,
                                               .stream = STW_STREAM_D2H,
                                               .component = STW_COMPONENT_PARAMS,
                                               .unit = STW_OP_NONE,
                                               .from = {STW_TIER_GPU, 0},
                                               .to = {STW_TIER_HOST, 0},
                                               .bytes = stw_times(params, z->element),
                                               .after = {done, STW_OP_NONE}});
    stw_free_after(z->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, cast, done);
    return done;
}

/* Stage 3: one sub-group after the other, then the tensors that stay whole, each by a gather of its
 * own into a new tensor (stage3.py, step and _post_step; _allgather_params_coalesced). Gradients
 * on the GPU are recorded on its stream one by one (_prepare_fp32_grad_for_sub_group). */
static void step_sub_groups(stw_zero *z, bool first) {
    const bool offloads = z->set.offload_optimizer > 0;
    uint32_t done = z->normed;
    stw_swap_step swap;
    stw_swap_step_begin(z, &swap, first);
    for (uint32_t i = 0; i < z->n_sub_groups; i++) {
        const uint64_t params = z->sub_groups[i], grads = offloads ? 0 : z->sub_group_tensors[i];
        stw_extent cast = cast_grads(z, params, false);
        make_moments(z, first && i == 0);
        if (z->swapped[i]) done = stw_swap_in(z, &swap, i);
        (void)stw_zero_call(z, grads + STEP_CALLS + launches(params), offloads ? done : z->normed);
        if (offloads && i < z->on_gpu)
            done = step_twin(z, params);
        else
            done =
                return_params(z, params, update(z, params, offloads, scale(z, params, offloads)));
        done = stw_swap_write_params(z, i, done);
        if (z->swapped[i]) done = stw_swap_out(z, &swap, i, done);
        drop(z, cast);
    }
    stw_swap_step_end(z, &swap);
    if (z->ranks == 1) return;
    (void)stw_zero_call(z, 2 * small_tensors(z), offloads ? done : STW_OP_NONE);
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++)
        if (is_small(z, t))
            all_gather(z, stw_times(z->job->model->tensors[t].numel, z->element), done);
}

/* DeepSpeedCPUAdam reads parameter, gradient and both moments in fp32 and writes all but the
 * gradient in one pass (csrc/includes/cpu_adam.h). */
double stw_zero_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes) {
    *bytes = (double)params * (norm ? 2 * 4.0 : 7 * 4.0);
    if (norm) return stw_cpu_pass_s(job, *bytes, 1);
    return stw_cpu_update_s(job,
                            &(stw_cpu_update){stw_zero_cpu_rate(job), params, *bytes, 7 * 4, 1});
}

const stw_cpu_rate *stw_zero_cpu_rate(const stw_job *job) { return &job->cluster->torch.cpu_adam; }

double stw_zero_cpu_pass(const stw_job *job, double bytes) { return stw_cpu_pass_s(job, bytes, 1); }

void stw_zero_build_step(stw_zero *z, bool first) {
    stw_begin_movement(z->b, (stw_movement){.phase = first ? STW_PHASE_FIRST_OPTIMIZER_STEP
                                                           : STW_PHASE_OPTIMIZER_STEP,
                                            .repeat = first ? STW_REPEAT_FIRST : STW_REPEAT_LATER});
    /* cuBLAS's work areas stay from the first forward on */
    const uint32_t from = stw_tensors_begin(z->b);
    if (first)
        (void)stw_alloc(z->b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_workspace_bytes(z->job));
    if (first && z->traced) stw_tensors_instead(z->b, from);
    if (first || !z->job->model->facts_known) stw_grads_appear(z);
    if (first || !z->job->model->facts_known) stw_swap_grads_appear(z);
    stw_grads_reduce_once(z);
    norm(z);
    if (z->set.zero_stage == 3)
        step_sub_groups(z, first);
    else
        step_flat(z, first);
    const stw_save save = stw_zero_save(z);
    if (first) stw_build_checkpoint_staging(z->b, &save);
    stw_end_movement(z->b);
}

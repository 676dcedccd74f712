/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP2 as torch runs it: optimizer state is made lazily at the first step, gradients by the
 * backward. The optimizer is torch's (fused or foreach), CPUOffloadPolicy's on the CPU, or the
 * per-layer streamed wrapper (AReaL pull request 983, areal/engine/fsdp_utils/optimizer.py; verl
 * pull request 5364). All of a rank's state is placed alike; Stowage predicts it and executes none
 * of it. */
#include <string.h>

#include "blocks/calls.h"
#include "core/checked.h"
#include "engines/bucket_places.h"
#include "engines/built_in.h"
#include "engines/bytes.h"
#include "engines/decoder.h"
#include "engines/fsdp2/cpu_step.h"
#include "engines/fsdp2/inside.h"
#include "engines/fsdp2/layouts.h"
#include "engines/fsdp2/save.h"
#include "engines/fsdp2/tensors.h"
#include "engines/fsdp_keys.h"
#include "engines/movements.h"
#include "engines/own_save.h"
#include "engines/park.h"
#include "engines/partition.h"
#include "engines/tensor_parallel.h"
#include "engines/weight_sync.h"

static bool wants(uint32_t wish, stw_tier tier) {
    return wish == STW_AUTO || wish == (uint32_t)tier;
}

static bool place_allowed(const stw_job *job, const stw_place *p) {
    const stw_run_spec *run = job->run;
    stw_optimizer_implementation how = run->optimizer.implementation;
    const bool offload_policy = stw_fsdp_settings_of(run).offload_policy;
    if (offload_policy && p->params != STW_TIER_HOST) return false;
    if (!offload_policy && p->params == STW_TIER_HOST && run->placement.params != STW_TIER_HOST &&
        how != STW_OPTIMIZER_CPU)
        return false;
    if (!wants(run->placement.params, p->params) || !wants(run->placement.grads, p->grads) ||
        !wants(run->placement.moments, p->moments) || !wants(run->placement.master, p->moments))
        return false;
    if (offload_policy && p->update != STW_UPDATE_CPU) return false; /* torch steps there */
    if (run->park.moments && p->update != STW_UPDATE_RESIDENT) return false;
    if (run->park.params && p->params != STW_TIER_GPU) return false;
    if (how == STW_OPTIMIZER_STREAMED) return p->update == STW_UPDATE_STREAM;
    if (how == STW_OPTIMIZER_CPU) return p->update == STW_UPDATE_CPU;
    if (how != STW_OPTIMIZER_AUTO) return p->update != STW_UPDATE_STREAM;
    return true;
}

static const stw_place fsdp2_places[] = {
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_GPU, STW_UPDATE_RESIDENT},
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_STREAM},
    {STW_TIER_HOST, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_STREAM},
    {STW_TIER_HOST, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_CPU},
};

/* Products whose outputs torchtitan's policy counts: of seven matrices without a bias, or six. */
static bool counts_products(const stw_job *job) {
    const stw_model *model = job->model;
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        const stw_block *block = &model->blocks[b];
        const stw_block_facts *f = &model->groups[block->group].facts;
        uint32_t matrices = 0;
        if (!f->transformer || block->instance > 0) continue;
        for (uint32_t t = block->first_tensor; t < block->first_tensor + block->n_tensors; t++) {
            if (model->tensors[t].use.bias) return false;
            matrices += model->tensors[t].rank == 2;
        }
        if (!stw_group_is_known(job, block->group) || f->experts > 0 || f->shared_ffn > 0 ||
            matrices != (f->gated ? 7 : 6))
            return false;
    }
    return true;
}

/* What depends on the job's sizes; false: refused. */
static bool is_cut_right(const stw_job *job, stw_error *err) {
    if (stw_tp_check(job, err) != STW_STATUS_OK) return false;
    if (stw_fsdp_settings_of(job->run).reshard_to_node &&
        (job->group <= job->ranks_per_node || job->group % job->ranks_per_node != 0)) {
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "fsdp.reshard_to_node",
                       "found true, expected shards over several whole nodes of %u GPUs: state is "
                       "sharded over %u ranks",
                       job->ranks_per_node, job->group);
        return false;
    }
    if (stw_fsdp_settings_of(job->run).reshard_to_node && job->expert_cut > 1) {
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "fsdp.reshard_to_node",
                       "found true, expected false: it is not implemented with experts cut by "
                       "parallel.ep %u x etp %u",
                       job->run->parallel.ep, job->run->parallel.etp);
        return false;
    }
    if (job->run->recompute.granularity == 2 && stw_fsdp_modules_of(job->run).ops &&
        job->model->facts_known && (job->frozen != NULL || !counts_products(job))) {
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "recompute.modules",
                       "found ops, expected some of mlp, self_attn, layernorm: which products are "
                       "kept is known of layers with seven matrices without a bias that are all "
                       "trained");
        return false;
    }
    return true;
}

static uint32_t places(const stw_job *job, stw_place *out, stw_error *err) {
    uint32_t n = 0;
    if (!is_cut_right(job, err)) return 0;
    if (stw_engine_steps_inside(&job->engine->spec)) return stw_stowage_places(job, out, err);
    for (size_t i = 0; i < sizeof fsdp2_places / sizeof fsdp2_places[0]; i++)
        if (place_allowed(job, &fsdp2_places[i])) out[n++] = fsdp2_places[i];
    if (n == 0)
        (void)stw_fail(
            err, STW_STATUS_BAD_INPUT, "placement",
            "FSDP2 cannot execute this placement: params and grads go to the host together "
            "(fsdp.offload_policy), moments alone only with optimizer.implementation streamed");
    return n;
}

/* ---- groups of the streamed wrapper: every wrapped block, then one group of all the rest ---- */

static uint32_t prefetch_groups(const stw_job *job) {
    uint32_t n = 1;
    for (uint32_t i = 0; i < job->model->n_blocks; i++) n += !stw_job_in_root(job, i);
    return n;
}

static uint64_t group_params(const stw_job *job, uint32_t kind, uint32_t group) {
    uint64_t rest = 0;
    uint32_t seen = 0;
    for (uint32_t i = 0; i < job->model->n_blocks; i++) {
        if (stw_job_in_root(job, i))
            rest += job->kinds[kind].block_grads[i];
        else if (seen++ == group)
            return job->kinds[kind].block_grads[i];
    }
    return rest;
}

/* What a streamed group brings to the GPU. */
static uint64_t up_bytes(const stw_job *job, const stw_place *place, uint64_t params) {
    uint64_t element = stw_job_optimizer_bytes(job);
    if (place->params == STW_TIER_HOST)
        element += stw_job_element_bytes(job, STW_COMPONENT_PARAMS) +
                   stw_job_element_bytes(job, STW_COMPONENT_GRADS);
    return stw_times(params, element);
}

static uint64_t largest_segment(const stw_job *job, uint32_t kind) {
    const stw_space *space = &job->kinds[kind].spaces[STW_SPACE_OPTIMIZER];
    uint64_t most = 0;
    for (uint32_t i = 0; i < space->n_segments; i++) most = stw_max_u64(most, space->segments[i].n);
    return most;
}

/* Roots of exp_avg_sq, which lie where the step is executed (torch/optim/adam.py at v2.11). foreach
 * makes all at once (_multi_tensor_adam: _foreach_sqrt). The loop makes those of one tensor, and
 * divides them into a second temporary (_single_tensor_adam: denom). Fused kernels keep them in
 * registers.
 */
static uint64_t temporary_bytes(const stw_builder *b, bool cpu, uint64_t params) {
    const stw_job *job = b->job;
    const uint64_t element = stw_job_element_bytes(job, STW_COMPONENT_EXP_AVG_SQ);
    switch (stw_fsdp2_implementation(job, cpu)) {
    case STW_OPTIMIZER_LOOP:
        return stw_times(stw_times(2, element), largest_segment(job, b->layout->kind));
    case STW_OPTIMIZER_FUSED:
        return 0;
    default:
        return stw_times(params, element);
    }
}

/* ---- the step ---- */

/* clip_grad_norm_: the norm of the rank's gradients, their sum over ranks, and the scaling, which
 * is counted with the norm. The norms of all tensors are stacked, in the dtype of the gradients,
 * and summed over the shard group by one all-reduce (torch/nn/utils/clip_grad.py, _get_total_norm;
 * torch/distributed/tensor/_ops/_tensor_ops.py, stack_strategy keeps partial norms), and by one
 * more over the ranks of tensor parallelism, the other dimension of the mesh. Those of experts that
 * ep cuts are on a mesh of their own: they have a sum of theirs, over one dimension of it after the
 * other (torchtitan/distributed/utils.py, _clip_grad_norm_with_ep). STW_OP_NONE without clipping.
 */
static uint32_t norm_sum(stw_builder *b, stw_tier tier, stw_rank_group group, uint64_t norms,
                         uint32_t after) {
    uint32_t ranks, on_node;
    stw_op sum = stw_op_make(STW_OP_NORM_SUM, STW_STREAM_COMM, STW_OP_NONE);
    stw_job_group_size(b->job, group, &ranks, &on_node);
    if (norms == 0 || (ranks <= 1 && group != STW_RANK_GROUP_SHARD)) return after;
    sum.component = STW_COMPONENT_COMM;
    sum.from = sum.to = tier;
    sum.group = group;
    sum.bytes = stw_times(norms, stw_job_element_bytes(b->job, STW_COMPONENT_GRADS));
    sum.after[0] = after;
    return stw_append(b, sum);
}

static uint32_t clip(stw_builder *b, const stw_place *place, uint64_t params) {
    const bool cpu = place->grads == STW_TIER_HOST;
    uint64_t dense = 0, experts = 0;
    if (!(b->job->run->optimizer.clip_norm > 0) || params == 0) return STW_OP_NONE;
    for (uint32_t t = 0; t < b->job->model->n_tensors; t++) {
        const bool apart = b->job->model->tensors[t].expert && b->job->expert_cut > 1;
        *(apart ? &experts : &dense) += stw_job_trains(b->job, t);
    }
    stw_op norm = stw_op_make(STW_OP_NORM, cpu ? STW_STREAM_CPU : STW_STREAM_COMPUTE, STW_OP_NONE);
    norm.component = STW_COMPONENT_GRADS;
    norm.from = norm.to = place->grads;
    norm.params = params;
    uint32_t done = norm_sum(b, place->grads, STW_RANK_GROUP_SHARD, dense, stw_append(b, norm));
    done = norm_sum(b, place->grads, STW_RANK_GROUP_TP, dense, done);
    done = norm_sum(b, place->grads, STW_RANK_GROUP_EXPERT_DP, experts, done);
    return norm_sum(b, place->grads, STW_RANK_GROUP_EP, experts, done);
}

/* @param after two operations, or STW_OP_NONE */
static uint32_t adam(stw_builder *b, stw_update update, uint32_t unit, uint64_t params,
                     const uint32_t after[2]) {
    bool cpu = update == STW_UPDATE_CPU;
    stw_op op = stw_op_make(STW_OP_UPDATE, cpu ? STW_STREAM_CPU : STW_STREAM_COMPUTE, unit);
    op.component = STW_COMPONENT_PARAMS;
    op.update = update;
    op.from = op.to = cpu ? STW_TIER_HOST : STW_TIER_GPU;
    op.params = params;
    op.after[0] = after[0];
    op.after[1] = after[1];
    return stw_append(b, op);
}

typedef struct streamed {
    stw_extent *window; /* [groups] */
    uint32_t *up;       /* [groups] the copy that brings a group */
    uint32_t down;      /* the copy that took the last one away */
} streamed;

static void fetch_group(stw_builder *b, const stw_place *place, streamed *s, uint32_t group) {
    const stw_job *job = b->job;
    uint64_t bytes = up_bytes(job, place, group_params(job, b->layout->kind, group));
    uint32_t from = stw_tensors_begin(b);
    s->window[group] = stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, bytes);
    stw_torch_window(b, from, group, true);
    s->up[group] = stw_copy(b, &(stw_transport){.kind = STW_OP_COPY,
                                                .stream = STW_STREAM_H2D,
                                                .component = STW_COMPONENT_EXP_AVG,
                                                .unit = group,
                                                .from = {STW_TIER_HOST, 0},
                                                .to = {STW_TIER_GPU, s->window[group].offset},
                                                .bytes = bytes,
                                                .after = {s->window[group].alloc, STW_OP_NONE}});
}

static void drop_group(stw_builder *b, streamed *s, uint32_t group) {
    uint32_t from = stw_tensors_begin(b);
    stw_free_after(b, STW_COMPONENT_STAGE, STW_TIER_GPU, s->window[group], s->down);
    stw_torch_window(b, from, group, false);
}

/* PerLayerOptimWrapper.step (AReaL pull request 983): depth + 1 groups are fetched before the first
 * update, one more after every update; a group's tensors stay referenced (cur_states_offload) until
 * the next group is offloaded, so that up to depth + 3 groups are there at once. As first published
 * (verl pull request 5364; AReaL at 4121871, PerLayerGPUOptimizerStep.step) nothing but the list
 * refers to them, and depth + 2 groups are there. */
static void streamed_step(stw_builder *b, const stw_place *place, uint32_t clipped) {
    const stw_job *job = b->job;
    uint32_t groups = prefetch_groups(job), depth = b->decisions->prefetch.depth, fetched = 0;
    const bool at_once = stw_fsdp_settings_of(job->run).streamed_frees_at_once;
    streamed s = {.window = stw_pool_array(b->program->pool, groups, sizeof *s.window),
                  .up = stw_pool_array(b->program->pool, groups, sizeof *s.up),
                  .down = STW_OP_NONE};
    if (s.window == NULL || s.up == NULL) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return;
    }
    for (; fetched < groups && fetched <= depth; fetched++) fetch_group(b, place, &s, fetched);
    for (uint32_t g = 0; g < groups; g++) {
        uint64_t params = group_params(job, b->layout->kind, g);
        uint32_t from = stw_tensors_begin(b);
        stw_extent temporary =
            stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, temporary_bytes(b, false, params));
        stw_torch_roots(b, from, g, true);
        const uint32_t after[2] = {s.up[g], clipped};
        uint32_t done = adam(b, STW_UPDATE_STREAM, g, params, after);
        from = stw_tensors_begin(b);
        stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, temporary);
        stw_torch_roots(b, from, g, false);
        if (fetched < groups) fetch_group(b, place, &s, fetched++);
        if (g > 0 && !at_once) drop_group(b, &s, g - 1);
        uint64_t element = stw_job_optimizer_bytes(job);
        if (place->params == STW_TIER_HOST)
            element += stw_job_element_bytes(job, STW_COMPONENT_PARAMS);
        s.down = stw_copy(b, &(stw_transport){.kind = STW_OP_COPY,
                                              .stream = STW_STREAM_D2H,
                                              .component = STW_COMPONENT_EXP_AVG,
                                              .unit = g,
                                              .from = {STW_TIER_GPU, s.window[g].offset},
                                              .to = {STW_TIER_HOST, 0},
                                              .bytes = stw_times(params, element),
                                              .after = {done, STW_OP_NONE}});
        if (at_once) drop_group(b, &s, g);
    }
    if (groups > 0 && !at_once) drop_group(b, &s, groups - 1);
    stw_torch_end_streamed(b);
}

static bool is_moment(const stw_region *r) {
    return r->component == STW_COMPONENT_EXP_AVG || r->component == STW_COMPONENT_EXP_AVG_SQ ||
           r->component == STW_COMPONENT_MASTER;
}

static bool is_params(const stw_region *r) { return r->component == STW_COMPONENT_PARAMS; }

/* The last update, where it is one operation. */
static uint32_t step_body(stw_builder *b, const stw_place *place) {
    const stw_job *job = b->job;
    uint64_t params = stw_job_placed_params(job, b->layout->kind);
    uint32_t done = STW_OP_NONE, from = stw_tensors_begin(b);
    stw_extent workspace =
        stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_workspace_bytes(job));
    stw_torch_workspace(b, from);
    const uint32_t clipped = clip(b, place, params);
    if (place->update == STW_UPDATE_STREAM) {
        streamed_step(b, place, clipped);
    } else {
        bool cpu = place->update == STW_UPDATE_CPU;
        stw_tier tier = cpu ? STW_TIER_HOST : STW_TIER_GPU;
        from = stw_tensors_begin(b);
        b->pageable = cpu;
        stw_extent temporary =
            stw_alloc(b, STW_COMPONENT_STAGE, tier, temporary_bytes(b, cpu, params));
        b->pageable = false;
        const bool roots = !cpu && stw_fsdp2_implementation(job, cpu) == STW_OPTIMIZER_FOREACH;
        if (roots) stw_torch_roots(b, from, STW_TORCH_ALL, true);
        const uint32_t before[2] = {STW_OP_NONE, clipped};
        done = adam(b, place->update, STW_OP_NONE, params, before);
        from = stw_tensors_begin(b);
        stw_free(b, STW_COMPONENT_STAGE, tier, temporary);
        if (roots) stw_torch_roots(b, from, STW_TORCH_ALL, false);
    }
    from = stw_tensors_begin(b);
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, workspace);
    stw_torch_workspace(b, from);
    return done;
}

/* Page-locked memory is torch's caching host allocator's, which rounds every tensor to a power of
 * two and keeps what is freed. */
static void round_up(stw_builder *b, stw_component component) {
    stw_alloc_at(b, STW_COMPONENT_PAGE_LOCK_ROUNDING, STW_TIER_HOST, STW_OFFSET_EXTERNAL,
                 stw_state_rounding_bytes(b->job, b->layout->kind, component));
}

/* Optimizer state appears where the parameters lie (torch/optim/adam.py, zeros_like), so that it is
 * pageable if torch steps on the CPU; the streamed wrapper page-locks it. */
static void make_moments(stw_builder *b, const stw_place *place) {
    b->pageable = place->update == STW_UPDATE_CPU;
    stw_build_regions(b, true, is_moment);
    b->pageable = false;
    if (place->update != STW_UPDATE_STREAM) return;
    round_up(b, STW_COMPONENT_EXP_AVG);
    round_up(b, STW_COMPONENT_EXP_AVG_SQ);
}

/* What is on the host between updates (verl/utils/fsdp_utils.py at v0.5, offload_fsdp2_model_to_cpu
 * and offload_fsdp_optimizer): model.cpu() copies parameters into pageable memory; moments go by
 * to("cpu", non_blocking=True), of which torch makes page-locked tensors (aten/src/ATen/native/
 * TensorConversions.cpp, _to_copy). */
static void look_at_parking(stw_builder *b, const stw_place *place, stw_park *park) {
    const stw_run_spec *run = b->job->run;
    if (run->park.params && place->params == STW_TIER_GPU)
        stw_park_add_regions(b, park, STW_PARKING_PAGEABLE, is_params);
    if (run->park.moments && place->update == STW_UPDATE_RESIDENT)
        stw_park_add_regions(b, park, STW_PARKING_KEPT, is_moment);
    b->park = park;
}

static void build_load(stw_builder *b, const stw_place *place) {
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_LOAD,
                                         .repeat = STW_REPEAT_ONCE,
                                         .transfer = stw_load_transfer(b)});
    stw_build_externals(b);
    stw_build_regions(b, true, is_params);
    if (place->params == STW_TIER_HOST) round_up(b, STW_COMPONENT_PARAMS);
    stw_build_load(b);
    stw_park_leave(b, b->park, STW_PARKED_PARAMS, STW_OP_NONE);
    stw_end_movement(b);
}

/* The step of a job whose optimizer is torch's or a wrapper's, or Stowage's. */
static uint32_t step_of(stw_builder *b, const stw_place *place) {
    return stw_engine_steps_inside(&b->job->engine->spec) ? stw_fsdp2_step_inside(b)
                                                          : step_body(b, place);
}

static void begin_step(stw_builder *b, stw_phase phase, stw_repeat repeat) {
    const bool inside = stw_engine_steps_inside(&b->job->engine->spec);
    stw_begin_movement(
        b,
        (stw_movement){.phase = phase, .repeat = repeat, .by_stowage = inside, .inside = inside});
}

static void build_first_step(stw_builder *b, const stw_place *place, const stw_save *save) {
    begin_step(b, STW_PHASE_FIRST_OPTIMIZER_STEP, STW_REPEAT_FIRST);
    stw_park_before_step(b, true);
    stw_build_shard_grads(b, true);
    if (place->grads == STW_TIER_HOST) round_up(b, STW_COMPONENT_GRADS);
    if (stw_engine_steps_inside(&b->job->engine->spec))
        stw_fsdp2_open_inside(b);
    else
        make_moments(b, place);
    const uint32_t updated = step_of(b, place);
    stw_build_shard_grads(b, false);
    stw_park_after_step(b, updated);
    stw_build_checkpoint_staging(b, save);
    stw_build_own_staging(b);
    stw_end_movement(b);
}

static void build_later_step(stw_builder *b, const stw_place *place) {
    begin_step(b, STW_PHASE_OPTIMIZER_STEP, STW_REPEAT_LATER);
    if (!b->job->model->facts_known) stw_build_shard_grads(b, true);
    stw_park_before_step(b, false);
    const uint32_t updated = step_of(b, place);
    stw_park_after_step(b, updated);
    stw_build_shard_grads(b, false);
    stw_end_movement(b);
}

static stw_status build(const stw_job *job, const stw_decisions *decisions,
                        const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_builder b;
    stw_park park = {.n = 0};
    stw_builder_init(&b, job, decisions, layout, program, err);
    const stw_place *place = &decisions->state[0].place;
    look_at_parking(&b, place, &park);
    const stw_save save = stw_fsdp2_save(&b, place);
    build_load(&b, place);
    build_first_step(&b, place, &save);
    stw_build_log_prob(&b);
    if (job->model->facts_known) stw_build_forward_backward(&b, true);
    build_later_step(&b, place);
    const stw_sync_source source = stw_sync_of_chunks(job);
    stw_build_weight_sync(&b, &source);
    stw_build_checkpoint(&b, &save);
    stw_build_own_save(&b);
    return stw_builder_finish(&b);
}

/* With torch's optimizer or a wrapper of it, and with Stowage's: what both have, and their own. */
#define KEYS_OF_BOTH                                                                               \
    "optimizer.clip_norm", "batch.log_prob_micro_batch", "recompute.modules",                      \
        "trainable.lora.rank", "trainable.lora.targets", "trainable.freeze",                       \
        "fsdp.reshard_after_forward", "fsdp.reshard_to_node", "fsdp.reshard_after_backward",       \
        "fsdp.wrap_embeddings", "fsdp.sync_each_micro_batch", "fsdp.loss_parallel", "parallel.tp", \
        "loss.checkpoint", "parallel.sequence_parallel", "park.params", "checkpoint.",             \
        "weight_sync."
static const char *const keys[] = {
    KEYS_OF_BOTH,   "fsdp.offload_policy", "fsdp.streamed_frees_at_once",
    "park.moments", "park.moments_back",   NULL};
static const char *const keys_inside[] = {KEYS_OF_BOTH,
                                          "optimizer.overlap",
                                          "optimizer.groups",
                                          "update.resident",
                                          "update.stream",
                                          "prefetch.bucket",
                                          NULL};

#define REFUSED_BY_BOTH                                                                            \
    {"checkpoint.format", "torch_dist"}, {"placement.params", "nvme"}, { "placement.grads", "nvme" }
static const stw_engine_refusal refuses[] = {REFUSED_BY_BOTH,
                                             {"placement.master", "nvme"},
                                             {"placement.moments", "nvme"},
                                             {"optimizer.implementation", "direct"},
                                             {"checkpoint.format", "stowage"},
                                             {NULL, NULL}};
static const stw_engine_refusal refuses_inside[] = {
    REFUSED_BY_BOTH, {"placement.params", "host"}, {"placement.grads", "host"}, {NULL, NULL}};

/* A fix that the optimizer refuses is left out when it is tried. */
static const stw_engine_fix fixes[] = {
    {"fsdp.reshard_after_forward", "true", "frees gathered params after forward", NULL},
    {"fsdp.offload_policy", "true", "keeps params, grads and moments on the host", NULL},
    {"load.method", "sharded_read", "no rank holds the whole model", NULL},
    {"placement.activations", "offload",
     "activations wait on the host (verl: enable_activation_offload)", NULL},
    {"engine", "stowage",
     "another engine, which executes no forward pass: streams state in small buckets", NULL},
    {NULL, NULL, NULL, NULL}};

static const stw_engine_fix risk_fixes[] = {
    {"optimizer.implementation", "stowage",
     "stowage.torch.AdamW, which streams moments that wait on the host", NULL},
    {NULL, NULL, NULL, NULL}};

/* torch/utils/checkpoint.py (create_selective_checkpoint_contexts) and
 * torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py are called by the program;
 * set_reshard_after_backward and set_requires_gradient_sync are methods of FSDPModule
 * (torch/distributed/fsdp/_fully_shard/_fully_shard.py). */
static const char by_program[] = "the program wraps modules or operations of each layer itself";
static const stw_engine_turn turns[] = {
    {"recompute.granularity=selective recompute.modules=[ops]", NULL, NULL, by_program},
    {"recompute.granularity=selective recompute.modules=[mlp]", NULL, NULL, by_program},
    {"recompute.granularity=selective recompute.modules=[self_attn]", NULL, NULL, by_program},
    {"recompute.granularity=selective recompute.modules=[layernorm]", NULL, NULL, by_program},
    {"recompute.granularity=selective recompute.modules=[mlp,layernorm]", NULL, NULL, by_program},
    {"fsdp.reshard_after_forward=false", NULL, NULL, NULL},
    {"fsdp.reshard_after_backward=false", NULL, NULL, NULL},
    {"fsdp.sync_each_micro_batch=false", NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL}};

static const uint32_t fsdp2_depths[] = {1, 2, 4, 0};

/* GPU: Qwen3-30B-A3B with experts in a loop (bench/results/2026-11-22-engines, offload_q30_l3).
 * Reserved: tests/measured/fsdp2.csv, q3-4b_fp32_1x4096_ac_streamed. Host: parked moments of
 * Qwen3-4B (tests/measured/fsdp2_host.csv). */
static stw_margins margins(const stw_job *job) {
    return stw_decoder_margins(job, (stw_margins){.gpu = 0.014, .reserved = 0.040, .host = 0.063});
}

/* verl/workers/fsdp_workers.py at 03b0081 (get_init_weight_context_manager); torch's own way, too:
 * set_model_state_dict with broadcast_from_rank0 (torch/distributed/checkpoint/state_dict.py). */
static stw_load usual_load(const stw_run_spec *run) {
    (void)run;
    return STW_LOAD_RANK0_BROADCAST;
}

static const char load_note[] =
    "verl and AReaL's memory_efficient_load do so. Scripts that load the model on every "
    "rank need more: plan them with --set load.method=all_ranks, or all_ranks_gpu "
    "where they make it on the GPU, as AReaL does by default.";

/* Of this engine with any optimizer.
 * The load: transformers' from_pretrained; verl/workers/fsdp_workers.py at 03b0081
 * (get_init_weight_context_manager); AReaL pull request 1182 (memory_efficient_load) */
#define SPEC_OF_BOTH                                                                               \
    .name = "fsdp2", .section = &stw_fsdp_section, .check = stw_fsdp2_check, .casts_inputs = true
#define TRAINS_WITH_FSDP2                                                                          \
    .sync_calls = true, .save_metadata = stw_fsdp2_save_metadata, .usual_load = usual_load,        \
    .load_note = load_note, .margins = margins, .fixes = fixes, .risk_fixes = risk_fixes,          \
    .turns = turns, .layouts = &stw_fsdp2_layouts, .one_cut = true, .part = stw_tp_part,           \
    .batch_bytes = stw_batch_bytes, .representative = stw_chunks_representative,                   \
    .parts = stw_chunks_parts, .cut = stw_chunks_cut, .counts = stw_chunks_count,                  \
    .places = places, .build = build

/* State of any kind of quantum lies with the parameters of the blocks that it is of: ascending, so
 * that a bucket is of few blocks, whose forward waits for it. */
static const stw_engine fsdp2_inside = {
    .spec = {SPEC_OF_BOTH, .with = "optimizer.implementation: stowage", .keys = keys_inside,
             .refuses = refuses_inside,
             .updates = 1u << STW_UPDATE_RESIDENT | 1u << STW_UPDATE_STREAM, .own_step = true},
    TRAINS_WITH_FSDP2,
};

const stw_engine stw_engine_fsdp2 = {
    .spec = {SPEC_OF_BOTH, .keys = keys, .refuses = refuses,
             .updates = 1u << STW_UPDATE_RESIDENT | 1u << STW_UPDATE_STREAM | 1u << STW_UPDATE_CPU,
             .stepped = &fsdp2_inside.spec},
    TRAINS_WITH_FSDP2,
    .known_failure = stw_fsdp2_known_failure,
    /* torch's own default is foreach on GPUs */
    .assumed_optimizer = "AdamW(fused=True). With AdamW(foreach=True), set it to foreach: the step "
                         "needs a temporary as large as exp_avg_sq. On the CPU it is taken as "
                         "torch's default, a loop over tensors",
    .streamed_note =
        "It needs a streamed optimizer step (optimizer.implementation: streamed), "
        "which torch's AdamW does not have; AReaL does, and stowage.torch.AdamW has one of "
        "its own (optimizer.implementation: stowage).",
    .cpu_step = stw_fsdp2_cpu_step,
    .cpu_advice = stw_fsdp2_cpu_advice,
    .cpu_rate = stw_fsdp2_cpu_rate,
    .whole = true,
    .prefetch_by_group = true,
    .depths = fsdp2_depths,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core at d98e8a6):
 * - The model is made in 16 bits, then distributed/param_and_grad_buffer.py makes the buffers of
 * one model chunk after the other, dense parameters before those of experts. With the distributed
 *   optimizer parameters move into a buffer of their own: both copies are there until then.
 * - optimizer/distrib_optimizer.py, _build_model_and_main_param_groups: fp32 main parameters of the
 *   rank's range; each passes through a 16-bit clone. Without it (optimizer.py,
 *   Float16OptimizerWithFloat16Params): of all parameters.
 * - optimizer/cpu_offloading/hybrid_optimizer.py: the optimizer is made once for whole parameters
 *   and, beside it, again for the rank's ranges. A parameter that the CPU updates is copied into
 *   page-locked memory in 16 bits, then as fp32; gradients are copied into page-locked fp32
 * tensors, moments are pageable. Without the precision-aware optimizer the ranges are fp32 main
 * parameters that stay on the GPU.
 * - torch's CachingHostAllocator rounds blocks to powers of two and keeps freed ones for requests
 * of the same size.
 * - optimizer/clip_grads.py without Apex and TransformerEngine: gradients are scaled tensor by
 *   tensor through a temporary.
 * - Main gradients in 16 bits are copied to fp32 for the step, except by the precision-aware
 *   optimizer.
 * - torch/optim/adam.py, _multi_tensor_adam: foreach makes the roots of all exp_avg_sq at once. */
#include "engines/megatron/state.h"

#include "blocks/optimizer.h"
#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/cpu_step.h"
#include "engines/host_pool.h"
#include "engines/megatron/acts.h"
#include "engines/megatron/deepep.h"
#include "engines/megatron/fp8.h"
#include "engines/megatron/fsdp_pass.h"
#include "engines/megatron/matrices.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/parking.h"
#include "engines/megatron/pass_tensors.h"
#include "engines/megatron/save.h"
#include "engines/megatron/state_tensors.h"
#include "engines/movements.h"
#include "engines/park.h"
#include "plan/program/tensors.h"

static uint64_t element(const stw_job *job, stw_component component) {
    return stw_job_element_bytes(job, component);
}

void stw_megatron_look_at_state(stw_builder *b, stw_megatron_state *out) {
    const stw_job *job = b->job;
    *out = (stw_megatron_state){.workspace = STW_NO_EXTENT};
    if (b->status != STW_STATUS_OK) return;
    b->status = stw_megatron_params_of(job, job->kinds[b->layout->kind].stage, b->program->pool,
                                       &out->params, b->err);
    if (b->status == STW_STATUS_OK)
        b->status = stw_megatron_shard_of(job, &out->params, b->program->pool, &out->shard, b->err);
    if (b->status == STW_STATUS_OK)
        b->status = stw_megatron_fsdp_of(job, &out->params, b->program->pool, &out->shard,
                                         &out->fsdp, b->err);
    out->share = stw_plus(stw_megatron_dense_share(job, &out->params),
                          stw_megatron_expert_share(job, &out->params));
    for (uint32_t i = 0; i < out->shard.n && stw_optimizer_divides(job->run); i++)
        if (out->shard.list[i].matrix)
            out->matrices = stw_plus(out->matrices, out->shard.list[i].numel);
    if (stw_megatron_offloads(job))
        out->offloaded = stw_plus(stw_megatron_offloaded(job, &out->shard, false),
                                  stw_megatron_offloaded(job, &out->shard, true));
}

/* Without the precision-aware optimizer, main parameters of offloaded state stay on the GPU. */
static bool keeps_main_params(const stw_job *job) {
    return stw_megatron_offloads(job) && !stw_megatron_settings_of(job->run).precision_aware;
}

stw_status stw_megatron_regions(const stw_job *job, stw_layout *layout, stw_error *err) {
    static const stw_component state[] = {STW_COMPONENT_MASTER, STW_COMPONENT_EXP_AVG,
                                          STW_COMPONENT_EXP_AVG_SQ};
    stw_status status = STW_STATUS_OK;
    uint64_t n = job->kinds[layout->kind].spaces[STW_MEGATRON_SPACE_RESIDENT].n;
    for (int i = 0; i < 3 && n > 0; i++)
        if (!stw_optimizer_divides(job->run) || stw_optimizer_keeps(job->run, true, state[i]))
            STW_TRY(stw_layout_add_region(layout, state[i], STW_MEGATRON_SPACE_RESIDENT,
                                          STW_TIER_GPU, n, element(job, state[i]), err));
out:
    return status;
}

static bool is_weights(const stw_region *r) { return r->component == STW_COMPONENT_PARAMS; }
static bool is_grads(const stw_region *r) { return r->component == STW_COMPONENT_GRADS; }
static bool is_master(const stw_region *r) { return r->component == STW_COMPONENT_MASTER; }
static bool is_moment(const stw_region *r) {
    return r->component == STW_COMPONENT_EXP_AVG || r->component == STW_COMPONENT_EXP_AVG_SQ;
}

/* Bytes of a component beyond its space: rows that pad the vocabulary, ends of buckets. */
static void add_padding(stw_builder *b, stw_component component, uint64_t elements, uint64_t in) {
    if (elements <= in) return;
    const stw_extent extent =
        stw_alloc(b, component, STW_TIER_GPU, stw_times(elements - in, element(b->job, component)));
    stw_megatron_park_padding(b, component, extent);
}

static uint64_t space_of(const stw_builder *b, uint32_t space) {
    return b->job->kinds[b->layout->kind].spaces[space].n;
}

/* ---- page-locked memory ---- */

/* Parameters of a list that the CPU updates. @param held_bytes of each element while its fp32 copy
 * is made, 0: it is that copy */
static void lock_list(stw_host_pool *pool, const stw_job *job, const stw_megatron_params *list,
                      bool expert, bool reversed, uint64_t clone_bytes, bool back) {
    double all = (double)(expert ? list->expert : list->dense), taken = 0;
    double threshold = all * stw_megatron_settings_of(job->run).optimizer_offload_fraction;
    for (uint32_t k = 0; k < list->n; k++) {
        const stw_megatron_param *p = &list->list[reversed ? list->n - 1 - k : k];
        if (p->expert != expert || !(taken < threshold)) continue;
        taken += (double)p->numel;
        if (back) {
            stw_host_pool_drop(pool, stw_times(p->numel, 4));
            continue;
        }
        stw_host_pool_take(pool, stw_times(p->numel, clone_bytes));
        stw_host_pool_drop(pool, stw_times(p->numel, clone_bytes));
        stw_host_pool_take(pool, stw_times(p->numel, 4));
    }
}

/* Page-locked blocks after the optimizer was made, and after the first step. */
static void locked_blocks(const stw_builder *b, const stw_megatron_state *s, stw_host_pool *made,
                          stw_host_pool *stepped) {
    const stw_job *job = b->job;
    const uint64_t half = element(job, STW_COMPONENT_PARAMS);
    const bool offloads = stw_megatron_offloads(job);
    stw_host_pool pool = {.bytes = 0};
    const bool twice = !stw_megatron_is_fsdp(job->run); /* whole parameters first */
    for (int e = 0; e < 2 && offloads; e++) {
        if (twice) lock_list(&pool, job, &s->params, e == 1, false, half, false);
        lock_list(&pool, job, &s->shard, e == 1, true, keeps_main_params(job) ? 0 : half, false);
        if (twice) lock_list(&pool, job, &s->params, e == 1, false, half, true);
    }
    for (uint32_t i = 0; i < job->run->park.backups; i++)
        for (uint32_t k = 0; k < s->params.n; k++)
            stw_host_pool_take(&pool, stw_times(s->params.list[k].numel, half));
    *made = pool;
    for (int e = 0; e < 2 && offloads; e++)
        lock_list(&pool, job, &s->shard, e == 1, true, 0, false); /* gradients */
    *stepped = pool;
}

/* ---- load ---- */

/* What is page-locked when the optimizer is made, and copies of the parameters that the trainer
 * keeps for other models which it takes turns with. */
static void lock_copies(stw_builder *b, const stw_megatron_state *s) {
    const stw_job *job = b->job;
    const bool offloads = stw_megatron_offloads(job);
    const uint64_t backups =
        stw_times(job->run->park.backups, stw_times(stw_plus(s->params.dense, s->params.expert),
                                                    element(job, STW_COMPONENT_PARAMS)));
    stw_host_pool made, stepped;
    locked_blocks(b, s, &made, &stepped);
    const uint64_t master = offloads ? stw_times(4, space_of(b, STW_SPACE_OPTIMIZER)) : 0;
    b->from_what = "park.backups: copies of the parameters for models that take turns";
    stw_alloc_at(b, STW_COMPONENT_PARAMS, STW_TIER_HOST, STW_OFFSET_EXTERNAL, backups);
    b->from_what = "copies of whole parameters while the optimizer was made; their blocks stay";
    stw_alloc_at(b, STW_COMPONENT_PAGE_LOCK_CACHE, STW_TIER_HOST, STW_OFFSET_EXTERNAL, made.kept);
    b->from_what = NULL;
    const uint64_t used = stw_plus(made.kept, stw_plus(master, backups));
    stw_alloc_at(b, STW_COMPONENT_PAGE_LOCK_ROUNDING, STW_TIER_HOST, STW_OFFSET_EXTERNAL,
                 made.bytes - stw_min_u64(made.bytes, used));
}

/* How much more there is at once than parameters and gradients, while the buffers are made. */
static uint64_t moving_bytes(const stw_job *job, const stw_megatron_state *s) {
    const uint64_t p = element(job, STW_COMPONENT_PARAMS), g = element(job, STW_COMPONENT_GRADS);
    uint64_t all = stw_times(stw_plus(s->params.dense_padded, s->params.expert_padded), g);
    uint64_t grads = 0, most = 0;
    if (!stw_megatron_settings_of(job->run).distributed_optimizer) return 0;
    if (stw_megatron_is_fsdp(job->run)) return 0;
    for (uint32_t chunk = 0; chunk < job->run->parallel.vpp; chunk++) {
        for (int e = 0; e < 2; e++) {
            uint64_t part = stw_megatron_part_of_chunk(&s->params, chunk, e == 1);
            grads = stw_plus(grads, stw_times(part, g));
            most = stw_max_u64(most, stw_plus(grads, stw_times(part, p)));
        }
    }
    return most > all ? most - all : 0;
}

/* Main parameters are made one after the other, each through a clone in 16 bits: how much more than
 * all of them there is at once. */
static uint64_t clone_bytes(const stw_job *job, const stw_megatron_state *s) {
    const uint64_t half = element(job, STW_COMPONENT_PARAMS);
    uint64_t later = 0, most = 0;
    for (uint32_t turn = STW_MEGATRON_TURNS; turn-- > 0;) /* from behind */
        for (uint32_t i = 0; i < s->shard.n; i++) {
            const stw_megatron_param *p = &s->shard.list[i];
            uint64_t clone = stw_times(p->numel, half);
            if (stw_megatron_turn(job, p) != turn) continue;
            if (clone > later) most = stw_max_u64(most, clone - later);
            later = stw_plus(later, stw_times(p->numel, 4));
        }
    return most;
}

/* fp32 copies of whole parameters that the first HybridDeviceOptimizer makes on the GPU. */
static uint64_t first_copies_bytes(const stw_job *job, const stw_megatron_state *s) {
    double rest = 1 - stw_megatron_settings_of(job->run).optimizer_offload_fraction;
    if (!stw_megatron_is_hybrid(job) || stw_megatron_is_fsdp(job->run)) return 0;
    uint64_t all = stw_max_u64(s->params.dense, s->params.expert);
    return stw_times(4, stw_scaled(all, rest));
}

/* Bytes beside the weights while Megatron-FSDP makes its buffers. */
static void make_fsdp_buffers(stw_builder *b, const stw_megatron_state *s, uint64_t weights) {
    uint64_t most = stw_megatron_fsdp_init_bytes(b->job, &s->params, &s->fsdp);
    stw_extent more =
        stw_alloc(b, STW_COMPONENT_PARAMS, STW_TIER_GPU, most > weights ? most - weights : 0);
    stw_free(b, STW_COMPONENT_PARAMS, STW_TIER_GPU, more);
}

void stw_megatron_build_load(stw_builder *b, stw_megatron_state *s) {
    const stw_job *job = b->job;
    const stw_tier gpu = STW_TIER_GPU;
    const uint64_t elements = stw_plus(s->params.dense, s->params.expert);
    const uint64_t padded = stw_plus(s->params.dense_padded, s->params.expert_padded);
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_LOAD,
                                         .repeat = STW_REPEAT_ONCE,
                                         .transfer = stw_load_transfer(b)});
    stw_build_externals(b);
    stw_megatron_lasting_tensors(b, s);
    s->workspace = stw_alloc(b, STW_COMPONENT_STAGE, gpu, stw_workspace_bytes(job) / 2);
    const uint32_t from = b->program->n_ops;
    stw_build_regions(b, true, is_weights);
    const uint64_t weights = stw_megatron_cuts_params(job->run)
                                 ? s->share
                                 : stw_plus(s->params.frozen, stw_max_u64(elements, padded));
    if (job->model->facts_known)
        add_padding(b, STW_COMPONENT_PARAMS, weights, space_of(b, STW_SPACE_PARAMS));
    stw_build_load(b);
    make_fsdp_buffers(b, s, stw_times(weights, element(job, STW_COMPONENT_PARAMS)));
    stw_build_regions(b, true, is_grads);
    if (job->model->facts_known)
        add_padding(b, STW_COMPONENT_GRADS, stw_megatron_cuts_grads(job->run) ? s->share : padded,
                    space_of(b, STW_SPACE_GRADS));
    stw_extent moving = stw_alloc(b, STW_COMPONENT_PARAMS, gpu, moving_bytes(job, s));
    stw_free(b, STW_COMPONENT_PARAMS, gpu, moving);
    stw_extent copies = stw_alloc(b, STW_COMPONENT_MASTER, gpu, first_copies_bytes(job, s));
    stw_build_regions(b, true, is_master);
    const uint64_t in =
        stw_plus(space_of(b, STW_SPACE_OPTIMIZER),
                 job->n_spaces > STW_N_STATE_SPACES ? space_of(b, STW_MEGATRON_SPACE_RESIDENT) : 0);
    if (job->model->facts_known && !stw_megatron_offloads(job))
        add_padding(b, STW_COMPONENT_MASTER, s->share, in);
    if (keeps_main_params(job))
        (void)stw_alloc(b, STW_COMPONENT_MASTER, gpu, stw_times(4, s->offloaded));
    const bool clones = !stw_megatron_offloads(job) && !stw_megatron_is_fsdp(job->run);
    uint64_t clone = clones ? clone_bytes(job, s) : 0;
    stw_extent cloned = stw_alloc(b, STW_COMPONENT_PARAMS, gpu, clone);
    stw_free(b, STW_COMPONENT_PARAMS, gpu, cloned);
    stw_free(b, STW_COMPONENT_MASTER, gpu, copies);
    stw_megatron_load_tensors(b, s, from);
    lock_copies(b, s);
    stw_megatron_look_at_parking(b, s);
    stw_end_movement(b);
}

/* ---- step ---- */

static void exchange(stw_builder *b, const stw_op *like, stw_rank_group group, uint64_t elements) {
    uint32_t ranks, on_node;
    stw_job_group_size(b->job, group, &ranks, &on_node);
    if (ranks <= 1 || elements == 0) return;
    stw_op op = *like;
    op.group = group;
    op.bytes = stw_times(elements, element(b->job, op.component));
    (void)stw_append(b, op);
}

void stw_megatron_exchange(stw_builder *b, const stw_megatron_state *s, bool gathers,
                           uint64_t parts, uint32_t after) {
    const stw_megatron_settings set = stw_megatron_settings_of(b->job->run);
    const bool shards = set.distributed_optimizer, several = set.optimizer_instances > 1;
    if (gathers && !shards) return;
    stw_op op = stw_op_make(gathers  ? STW_OP_ALL_GATHER
                            : shards ? STW_OP_REDUCE_SCATTER
                                     : STW_OP_ALL_REDUCE,
                            STW_STREAM_COMM, STW_OP_NONE);
    op.component = gathers ? STW_COMPONENT_PARAMS : STW_COMPONENT_GRADS;
    op.from = op.to = STW_TIER_GPU;
    op.once_in = (uint32_t)parts;
    op.after[0] = after;
    /* One optimizer has the dense parameters, another one the experts, and each of them gathers
     * those of the whole model after its step (distrib_optimizer.py, step_with_ready_grads); where
     * matrices are dealt, its own ones (start_param_sync_for_bucket_group_subset). */
    const bool twice = gathers && parts == 1 && s->params.dense > 0 && s->params.expert > 0 &&
                       !stw_megatron_is_fsdp(b->job->run) && !stw_optimizer_divides(b->job->run);
    uint64_t less[2] = {0, 0};
    for (int e = 0; e < 2 && gathers; e++)
        less[e] = stw_megatron_fp8_gathered_less(b->job, &s->params, e == 1);
    for (int i = 0; i <= twice; i++) {
        exchange(b, &op, several ? STW_RANK_GROUP_SHARD : STW_RANK_GROUP_DP,
                 s->params.dense_padded - less[0]);
        exchange(b, &op, STW_RANK_GROUP_EXPERT_DP, s->params.expert_padded - less[1]);
    }
    if (gathers || !several) return;
    op.kind = STW_OP_ALL_REDUCE; /* of the shard, among instances */
    exchange(b, &op, STW_RANK_GROUP_REPLICATE, s->share);
}

/* Gradients that ranks of other groups share: with sequence parallelism those of parameters that
 * every tensor-parallel rank has whole, and those of an embedding that several stages have
 * (distributed/finalize_model_grads.py). */
static void finalize(stw_builder *b, const stw_megatron_state *s) {
    const stw_parallel *way = &b->job->run->parallel;
    stw_op op = stw_op_make(STW_OP_ALL_REDUCE, STW_STREAM_COMM, STW_OP_NONE);
    op.component = STW_COMPONENT_GRADS;
    op.from = op.to = STW_TIER_GPU;
    uint64_t whole = 0, tied = 0;
    for (uint32_t i = 0; i < s->params.n; i++) {
        const stw_megatron_param *p = &s->params.list[i];
        if (p->whole) whole = stw_plus(whole, p->numel);
        if (p->bucket) tied = stw_max_u64(tied, p->numel);
    }
    if (stw_megatron_is_fsdp(b->job->run)) whole /= b->job->group;
    if (way->sequence_parallel) exchange(b, &op, STW_RANK_GROUP_TP, whole);
    exchange(b, &op, STW_RANK_GROUP_EMBEDDING, tied);
}

static uint32_t update(stw_builder *b, stw_update how, uint64_t params, uint32_t after) {
    const bool cpu = how == STW_UPDATE_CPU;
    stw_op op = stw_op_make(STW_OP_UPDATE, cpu ? STW_STREAM_CPU : STW_STREAM_COMPUTE, STW_OP_NONE);
    if (params == 0) return STW_OP_NONE;
    op.component = STW_COMPONENT_PARAMS;
    op.update = how;
    op.from = op.to = cpu ? STW_TIER_HOST : STW_TIER_GPU;
    op.params = params;
    op.after[0] = after;
    return stw_append(b, op);
}

static uint32_t carry(stw_builder *b, bool down, uint64_t bytes, uint32_t after) {
    const stw_place_at gpu = {STW_TIER_GPU, 0}, host = {STW_TIER_HOST, 0};
    return stw_copy(b,
                    &(stw_transport){.kind = STW_OP_COPY,
                                     .stream = down ? STW_STREAM_D2H : STW_STREAM_H2D,
                                     .component = down ? STW_COMPONENT_GRADS : STW_COMPONENT_PARAMS,
                                     .unit = STW_OP_NONE,
                                     .from = down ? gpu : host,
                                     .to = down ? host : gpu,
                                     .bytes = bytes,
                                     .after = {after, STW_OP_NONE}});
}

/* The part that the CPU updates: gradients come down in fp32, parameters go up in fp32. Without
 * overlap the copies down end before the first update, the copies up begin after the last one; with
 * it they run beside the updates, parameter by parameter: in pieces here. */
static void update_on_cpu(stw_builder *b, const stw_megatron_state *s) {
    const bool overlaps = stw_megatron_settings_of(b->job->run).overlap_d2h_h2d;
    const uint32_t pieces = overlaps ? 8 : 1;
    for (uint32_t i = 0; i < pieces; i++) {
        uint64_t params = s->offloaded / pieces + (i == 0 ? s->offloaded % pieces : 0);
        uint32_t down = carry(b, true, stw_times(4, params), STW_OP_NONE);
        uint32_t done = update(b, STW_UPDATE_CPU, params, down);
        (void)carry(b, false, stw_times(4, params), done);
    }
}

const stw_cpu_rate *stw_megatron_cpu_rate(const stw_job *job) { return &job->cluster->torch.fused; }

/* HybridDeviceOptimizer's is torch's fused AdamW on fp32 tensors (optimizer/__init__.py,
 * _get_megatron_optimizer_based_on_param_groups): one pass that reads parameter, gradient and both
 * moments and writes all but the gradient. */
double stw_megatron_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes) {
    const double avg = (double)element(job, STW_COMPONENT_EXP_AVG);
    const double sq = (double)element(job, STW_COMPONENT_EXP_AVG_SQ);
    *bytes = (double)params * (norm ? 3.0 * 4 : 2 * 4 + 4 + 2 * avg + 2 * sq);
    if (norm) return stw_cpu_pass_s(job, *bytes, 1);
    return stw_cpu_update_s(
        job, &(stw_cpu_update){stw_megatron_cpu_rate(job), params, *bytes, 7 * 4, 1});
}

/* The norm of the main gradients; the scaling reads and writes them once more. */
static void clip(stw_builder *b, const stw_megatron_state *s) {
    stw_op op = stw_op_make(STW_OP_NORM, STW_STREAM_COMPUTE, STW_OP_NONE);
    if (!(b->job->run->optimizer.clip_norm > 0)) return;
    op.component = STW_COMPONENT_GRADS;
    op.from = op.to = STW_TIER_GPU;
    op.params = stw_times(3, s->share);
    stw_op sum = stw_op_make(STW_OP_ALL_REDUCE, STW_STREAM_COMM, STW_OP_NONE);
    sum.component = STW_COMPONENT_MASTER; /* one fp32 number */
    sum.from = sum.to = STW_TIER_GPU;
    sum.after[0] = stw_append(b, op);
    const bool shards = stw_megatron_settings_of(b->job->run).distributed_optimizer;
    exchange(b, &sum, shards ? STW_RANK_GROUP_WORLD : STW_RANK_GROUP_TP, 1);
}

static uint64_t scaled_bytes(const stw_megatron_state *s) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->shard.n; i++) most = stw_max_u64(most, s->shard.list[i].numel);
    return stw_times(4, most);
}

/* Gradients of the CPU optimizer take blocks that are free, and new ones. */
static void lock_grads(stw_builder *b, const stw_megatron_state *s) {
    const uint64_t at = STW_OFFSET_EXTERNAL;
    stw_host_pool made, stepped;
    locked_blocks(b, s, &made, &stepped);
    const uint64_t grads = stepped.asked - made.asked, taken = made.kept - stepped.kept;
    b->from_what = "copies of whole parameters while the optimizer was made; their blocks stay";
    stw_free_at(b, STW_COMPONENT_PAGE_LOCK_CACHE, STW_TIER_HOST, at, made.kept);
    stw_alloc_at(b, STW_COMPONENT_PAGE_LOCK_CACHE, STW_TIER_HOST, at, stepped.kept);
    b->from_what = "gradients of the CPU optimizer, page-locked";
    stw_alloc_at(b, STW_COMPONENT_GRADS, STW_TIER_HOST, at, grads);
    b->from_what = NULL;
    stw_alloc_at(b, STW_COMPONENT_PAGE_LOCK_ROUNDING, STW_TIER_HOST, at,
                 stepped.bytes - made.bytes + taken - grads);
}

static void make_moments(stw_builder *b, const stw_megatron_state *s) {
    const stw_job *job = b->job;
    const uint32_t from = b->program->n_ops;
    b->pageable = true; /* torch's CPU optimizer makes them */
    stw_build_regions(b, true, is_moment);
    b->pageable = false;
    if (stw_megatron_offloads(job)) {
        lock_grads(b, s);
        return;
    }
    stw_megatron_park_moments(b, s);
    if (!job->model->facts_known) return;
    /* the vocabulary's, which no matrix has */
    const uint64_t rest = s->share - s->matrices;
    add_padding(b, STW_COMPONENT_EXP_AVG, rest, space_of(b, STW_SPACE_OPTIMIZER));
    add_padding(b, STW_COMPONENT_EXP_AVG_SQ, rest, space_of(b, STW_SPACE_OPTIMIZER));
    stw_megatron_moment_tensors(b, s, from);
}

void stw_megatron_build_step(stw_builder *b, const stw_megatron_state *s, bool first,
                             const stw_extent *left) {
    const stw_job *job = b->job;
    const stw_megatron_settings set = stw_megatron_settings_of(job->run);
    const stw_tier gpu = STW_TIER_GPU;
    stw_begin_movement(b, (stw_movement){.phase = first ? STW_PHASE_FIRST_OPTIMIZER_STEP
                                                        : STW_PHASE_OPTIMIZER_STEP,
                                         .repeat = first ? STW_REPEAT_FIRST : STW_REPEAT_LATER});
    stw_park_before_step(b, first);
    if (first && job->model->facts_known) /* made by the forward before the step */
        (void)stw_alloc(b, STW_COMPONENT_PARAMS, gpu,
                        stw_megatron_fp8_cached_bytes(job, &s->params));
    if (first) { /* so are they */
        const uint64_t at = STW_OFFSET_EXTERNAL;
        stw_alloc_at(b, STW_COMPONENT_COMM, gpu, at, stw_megatron_deepep_bytes(job));
        stw_alloc_at(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_HOST, at, s->host_acts);
        stw_alloc_at(b, STW_COMPONENT_PAGE_LOCK_ROUNDING, STW_TIER_HOST, at, s->host_acts_rounding);
    }
    const uint32_t from = stw_tensors_begin(b);
    stw_extent workspace =
        stw_alloc(b, STW_COMPONENT_STAGE, gpu, stw_megatron_work_areas(job, &s->params));
    stw_extent gathered = stw_alloc(b, STW_COMPONENT_STAGE, gpu, stw_megatron_buffer_bytes(job));
    if (s->traced) stw_tensors_instead(b, from); /* they stay from the forward on */
    stw_extent pools =
        stw_alloc(b, STW_COMPONENT_UNSHARD, gpu, stw_megatron_flow_pool_bytes(job, &s->fsdp));
    if (!set.overlap_grad_reduce && !stw_megatron_cuts_grads(job->run))
        stw_megatron_exchange(b, s, false, 1, STW_OP_NONE);
    finalize(b, s);
    const bool copies = stw_megatron_copies_grads(job->run);
    stw_extent main_grads =
        stw_alloc(b, STW_COMPONENT_GRADS, gpu, copies ? stw_times(4, s->share) : 0);
    stw_extent scaled = stw_alloc(b, STW_COMPONENT_STAGE, gpu,
                                  job->run->optimizer.clip_norm > 0 ? scaled_bytes(s) : 0);
    clip(b, s);
    stw_free(b, STW_COMPONENT_STAGE, gpu, scaled);
    if (first) make_moments(b, s);
    stw_megatron_update_matrices(b, s, first);
    const uint64_t resident = s->share - stw_min_u64(s->offloaded, s->share) - s->matrices;
    bool foreach = job->run->optimizer.implementation == STW_OPTIMIZER_FOREACH;
    stw_extent roots = stw_alloc(b, STW_COMPONENT_STAGE, gpu, foreach ? stw_times(4, resident) : 0);
    uint32_t done = update(b, STW_UPDATE_RESIDENT, resident, STW_OP_NONE);
    stw_free(b, STW_COMPONENT_STAGE, gpu, roots);
    if (s->offloaded > 0) update_on_cpu(b, s);
    stw_free(b, STW_COMPONENT_GRADS, gpu, main_grads);
    if (!set.overlap_param_gather && !stw_megatron_cuts_params(job->run))
        stw_megatron_exchange(b, s, true, 1, done);
    stw_free(b, STW_COMPONENT_UNSHARD, gpu, pools);
    for (uint32_t i = 0; left != NULL && i < job->model->n_blocks; i++)
        stw_free(b, STW_COMPONENT_ACTIVATIONS, gpu, left[i]);
    stw_free(b, STW_COMPONENT_STAGE, gpu, gathered);
    stw_free(b, STW_COMPONENT_STAGE, gpu, workspace);
    stw_park_after_step(b, b->program->n_ops > 0 ? b->program->n_ops - 1 : STW_OP_NONE);
    const stw_save save = stw_megatron_save(b, s);
    if (first) stw_build_checkpoint_staging(b, &save);
    stw_end_movement(b);
}

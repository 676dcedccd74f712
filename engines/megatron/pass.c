/* SPDX-License-Identifier: Apache-2.0 */
/* One micro batch of 1F1B or of the interleaved schedule (pipeline_parallel/schedules.py). The peak
 * of a stage is where its first backward begins: as many chunk passes have run forward as are in
 * flight. Checkpointed blocks keep their input (tensor_parallel/random.py, CheckpointFunction);
 * which ones those are: transformer_block.py, _checkpointed_forward. */
#include "engines/megatron/pass.h"

#include <string.h>

#include "core/checked.h"
#include "engines/block_work.h"
#include "engines/bytes.h"
#include "engines/host_pool.h"
#include "engines/megatron/acts.h"
#include "engines/megatron/deepep.h"
#include "engines/megatron/fp8.h"
#include "engines/megatron/fsdp_pass.h"
#include "engines/megatron/lora.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/moe.h"
#include "engines/megatron/offload.h"
#include "engines/megatron/params.h"
#include "engines/megatron/pass_tensors.h"
#include "engines/megatron/vision.h"
#include "engines/park.h"
#include "plan/program/blocks.h"

/* Hidden states that a stage's schedule keeps beside the activations: the gradient that came, the
 * one that went (first stage: none), those on their way with several chunks. */
enum { SENT_BY_CHUNKS = 4 };

typedef struct layer_state {
    uint32_t block, chunk;
    stw_megatron_layer bytes;
    bool recompute, heads_segment; /* the first block of those that are recomputed together */
    uint64_t kept;
    uint64_t times; /* chunk passes in flight */
    bool decodes;   /* a block of a decoder beside an encoder */
    bool fp8;
    stw_megatron_offload off;
    uint32_t carried, back; /* the copy of that to the host, and back */
    stw_extent own, again;
    stw_extent *others; /* [times - 1] of the other passes */
} layer_state;

typedef struct pass {
    stw_builder *b;
    const stw_job *job;
    uint32_t stage, n;
    layer_state *layers;    /* [n] of this stage, in the order of forward */
    layer_state *others;    /* [model.n_blocks] for those of other stages */
    stw_extent norm, norms; /* input of the final norm before multi-token prediction */
    stw_extent head_grad;   /* of a tied embedding, until its own backward */
    stw_extent *left;
    stw_extent ahead; /* what the last block has on the host otherwise */
    stw_megatron_tower tower;
    stw_extent tower_own, tower_others;
    stw_megatron_flow flow;
    uint32_t ready; /* what the next computation waits for beside that: gathered parameters */
    uint32_t worked, sent; /* last computation, last operation of communication */
    double busy_s;         /* of the computations of the whole pass */
    double *known_s;       /* [4 n_groups] of layers of other stages; 0: not known */
} pass;

/* ---- which blocks are recomputed ---- */

/* Of the blocks of a group in one chunk. */
static uint64_t recomputed_in_chunk(const pass *p, uint32_t group, uint32_t in_chunk) {
    uint64_t recomputed = 0;
    for (uint32_t i = 0; i < p->b->decisions->n_blocks; i++) {
        const stw_block_decision *d = &p->b->decisions->blocks[i];
        if (d->group == group && d->act == STW_ACT_RECOMPUTE) recomputed += d->count;
    }
    return stw_blocks_recomputed_in_chunk(recomputed, in_chunk, p->job->model->groups[group].count);
}

/* Of the layers [first, end) of one chunk. Layers of multi-token prediction are not recomputed by
 * the block method (multi_token_prediction.py, _checkpointed_forward). */
static void choose_recomputed(pass *p, uint32_t first, uint32_t end) {
    const stw_run_spec *run = p->job->run;
    const bool fixed = run->recompute.granularity == 1;
    const uint32_t together = fixed && run->recompute.method == 1 && run->recompute.num_layers > 0
                                  ? run->recompute.num_layers
                                  : 1;
    uint32_t stack = first; /* the first block of those that are counted together */
    for (uint32_t i = first; i < end; i++) {
        layer_state *s = &p->layers[i];
        uint32_t group = p->job->model->blocks[s->block].group, before = 0, all = 0;
        for (uint32_t k = first; k < end; k++) {
            bool same = p->job->model->blocks[p->layers[k].block].group == group;
            before += same && k < i;
            all += same;
        }
        s->recompute = before < recomputed_in_chunk(p, group, all);
        bool decodes = p->job->model->groups[group].facts.decoder;
        if (i > first && decodes && !p->layers[i - 1].decodes) stack = i; /* after an encoder */
        s->decodes = decodes;
        if (fixed && run->recompute.method == 2)
            s->recompute =
                i - stack < run->recompute.num_layers && !stw_megatron_is_mtp(p->job, s->block);
        s->heads_segment = (i - stack) % together == 0;
        s->kept = s->recompute ? (s->heads_segment ? s->bytes.input : 0) : s->bytes.kept;
    }
}

/* Chunk passes of chunk `chunk` of this stage among the first ones in flight: micro batches come in
 * groups as large as the pipeline (schedules.py, get_schedule_table). */
static uint64_t times_of(const pass *p, uint32_t chunk) {
    const stw_parallel *way = &p->job->run->parallel;
    uint64_t in_flight = stw_megatron_in_flight(p->job, p->stage), times = 0;
    if (way->vpp == 1) return in_flight;
    const uint64_t group = stw_megatron_group_of_micro_batches(p->job);
    for (uint64_t i = 0; i < in_flight; i++) times += i / group % way->vpp == chunk;
    return stw_max_u64(times, 1);
}

/* The layers of a stage by chunk. */
static void place_layers(pass *p) {
    const stw_parallel *way = &p->job->run->parallel;
    p->n = 0;
    for (uint32_t chunk = p->stage; chunk < way->pp * way->vpp; chunk += way->pp)
        for (uint32_t b = 0; b < p->job->model->n_blocks; b++)
            if (stw_megatron_chunk_of(p->job, b) == chunk &&
                (stw_megatron_is_layer(p->job, b) || stw_megatron_is_mtp(p->job, b)))
                p->layers[p->n++] = (layer_state){.block = b, .chunk = chunk};
}

static void choose_in_chunks(pass *p) {
    for (uint32_t first = 0, end = 0; first < p->n; first = end) {
        while (end < p->n && p->layers[end].chunk == p->layers[first].chunk) end++;
        choose_recomputed(p, first, end);
    }
}

static bool look_at_layers(pass *p) {
    const stw_model *model = p->job->model;
    stw_pool *pool = p->b->program->pool;
    stw_megatron_layer *of = stw_pool_array(pool, 2ull * model->n_groups, sizeof *of);
    p->layers = stw_pool_array(pool, model->n_blocks, sizeof *p->layers);
    p->others = stw_pool_array(pool, model->n_blocks, sizeof *p->others);
    p->known_s = stw_pool_array(pool, 4ull * model->n_groups, sizeof *p->known_s);
    if (p->layers == NULL || p->others == NULL || p->known_s == NULL || of == NULL) {
        p->b->status = stw_fail(p->b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return false;
    }
    place_layers(p);
    for (uint32_t i = 0; i < p->n; i++) {
        layer_state *s = &p->layers[i];
        const uint32_t g = model->blocks[s->block].group;
        const bool mtp = stw_megatron_is_mtp(p->job, s->block);
        s->fp8 = stw_megatron_is_fp8(p->job, s->block);
        stw_megatron_layer *bytes = &of[2 * g + s->fp8];
        if (bytes->whole == 0)
            *bytes = mtp ? stw_megatron_mtp_of(p->job, g, s->fp8)
                         : stw_megatron_layer_of(p->job, g, s->fp8);
        s->bytes = *bytes;
        s->off = stw_megatron_offload_of(p->job, g);
        s->off.gpu = stw_min_u64(s->off.gpu, s->bytes.kept);
        s->carried = s->back = STW_OP_NONE;
        s->times = times_of(p, s->chunk / p->job->run->parallel.pp);
        s->others = stw_pool_array(pool, s->times, sizeof *s->others);
        if (s->others == NULL) {
            p->b->status = stw_fail(p->b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
            return false;
        }
    }
    choose_in_chunks(p);
    return true;
}

/* ---- work ---- */

static uint32_t compute(pass *p, stw_op_kind kind, uint32_t block, const stw_work *work) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, block);
    op.component = STW_COMPONENT_ACTIVATIONS;
    op.from = op.to = STW_TIER_GPU;
    stw_op_set_work(p->b, &op, work);
    op.after[0] = p->sent;
    op.after[1] = p->ready;
    p->ready = STW_OP_NONE;
    p->busy_s += stw_work_seconds(p->job->cluster, work->items, work->n);
    return p->worked = stw_append(p->b, op);
}

/* Parameters and gradients of a block, where data-parallel ranks share them: before and after its
 * computation. */
static void use(pass *p, uint32_t block, bool backward) {
    p->ready = stw_megatron_flow_before(&p->flow, block, backward);
}

static void used(pass *p, uint32_t block, bool backward) {
    stw_megatron_flow_after(&p->flow, block, backward, p->worked);
}

/* The same of blocks [first, end), whose computation is not told apart. */
static void use_all(pass *p, uint32_t first, uint32_t end, bool backward) {
    for (uint32_t i = 0; i < end - first; i++) {
        uint32_t block = backward ? end - 1 - i : first + i;
        use(p, block, backward);
        used(p, block, backward);
    }
}

/* Blocks up to the token embedding, and from the final norm on. */
static uint32_t first_layer(const pass *p) {
    return p->n > 0 ? p->layers[0].block : p->job->model->n_blocks;
}

static uint32_t last_layer(const pass *p) {
    return p->n > 0 ? p->layers[p->n - 1].block : p->job->model->n_blocks - 1;
}

/* Collectives that the next computation waits for: `calls` of them, and their bytes together. */
static void communicate(pass *p, stw_op_kind kind, stw_rank_group group, uint32_t block,
                        uint64_t bytes, uint64_t calls) {
    uint32_t ranks, on_node;
    stw_job_group_size(p->job, group, &ranks, &on_node);
    if (ranks <= 1 || bytes == 0) return;
    stw_op op = stw_op_make(kind, STW_STREAM_COMM, block);
    op.component = STW_COMPONENT_ACTIVATIONS;
    op.group = group;
    op.from = op.to = STW_TIER_GPU;
    op.bytes = bytes;
    op.calls = (uint32_t)calls;
    op.after[0] = p->worked;
    p->sent = stw_append(p->b, op);
}

/* Hidden states of rows of a tensor-parallel group: gathered before a product and reduced after
 * one, or summed where every rank has all of them (tensor_parallel/mappings.py, layers.py). */
static uint64_t rows_bytes(const pass *p, uint64_t rows) {
    const uint64_t c = stw_dtype_bits(p->job->run->precision.compute) / 8;
    return stw_times(stw_times(rows, p->job->model->hidden), c);
}

static void gather_rows(pass *p, uint32_t block, uint64_t rows, uint64_t calls) {
    if (p->job->run->parallel.sequence_parallel)
        communicate(p, STW_OP_ALL_GATHER, STW_RANK_GROUP_TP, block, rows_bytes(p, rows), calls);
}

/* Inputs of a block's products, and gradients of their outputs: in 8 bits if the products are. */
static void gather_inputs(pass *p, const layer_state *s, uint64_t rows, uint64_t calls) {
    const uint64_t elements = stw_times(rows, p->job->model->hidden);
    if (!s->fp8)
        gather_rows(p, s->block, rows, calls);
    else if (p->job->run->parallel.sequence_parallel)
        communicate(p, STW_OP_ALL_GATHER, STW_RANK_GROUP_TP, s->block,
                    stw_megatron_fp8_kept(p->job, elements), calls);
}

static void reduce_rows(pass *p, uint32_t block, uint64_t rows, uint64_t calls) {
    communicate(p,
                p->job->run->parallel.sequence_parallel ? STW_OP_REDUCE_SCATTER : STW_OP_ALL_REDUCE,
                STW_RANK_GROUP_TP, block, rows_bytes(p, rows), calls);
}

/* Of the embedding: those of both sequences where there are two. */
static uint64_t embedded_rows(const pass *p) {
    return stw_plus(p->job->tokens, stw_job_has_encoder(p->job) ? p->job->decoder_tokens : 0);
}

static uint64_t sequences(const pass *p) { return stw_job_has_encoder(p->job) ? 2 : 1; }

/* Rows and their probabilities go to the experts, rows come back, and so do their gradients
 * (token_dispatcher.py). Gathered rows are summed in fp32 on their way back; their gradients are
 * gathered in it. */
static void dispatch(pass *p, uint32_t block, uint32_t group, bool backward) {
    const stw_parallel *way = &p->job->run->parallel;
    const stw_block_facts *f = &p->job->model->groups[group].facts;
    const stw_megatron_moe moe = stw_megatron_moe_of(p->job, group);
    const uint64_t c = stw_dtype_bits(p->job->run->precision.compute) / 8;
    const uint64_t sent = stw_times(stw_times(moe.sent, f->hidden), c);
    if (moe.gathered > 0) {
        const stw_rank_group ranks = way->ep > 1 ? STW_RANK_GROUP_EP : STW_RANK_GROUP_ETP;
        const uint64_t elements = stw_times(moe.gathered, f->hidden);
        const uint64_t routes =
            backward ? 0 : stw_times(stw_times(moe.gathered, f->experts), 4 + 1);
        communicate(p, STW_OP_ALL_GATHER, ranks, block,
                    stw_plus(stw_times(elements, backward ? 4 : c), routes), backward ? 1 : 3);
        communicate(p, STW_OP_REDUCE_SCATTER, ranks, block, stw_times(elements, backward ? c : 4),
                    1);
        return;
    }
    if (stw_megatron_uses_deepep(p->job)) { /* and probabilities, with 64-bit indices in forward */
        const uint64_t routes =
            stw_times(stw_times(moe.sent, f->experts_per_token), backward ? 4 : 12);
        communicate(p, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_EP, block,
                    stw_plus(stw_times(sent, 2), routes), 2);
        return;
    }
    if (!backward) /* int64 counts of rows by expert */
        communicate(p, STW_OP_ALL_GATHER, STW_RANK_GROUP_EP, block,
                    stw_times(stw_times(way->ep, f->experts), 8), 1);
    communicate(p, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_EP, block,
                stw_plus(stw_times(sent, 2), stw_times(moe.sent, c)), 3);
    communicate(p, STW_OP_ALL_GATHER, STW_RANK_GROUP_ETP, block,
                stw_times(sent, stw_times(2, way->etp)), 2);
}

/* Tensor parallelism: before and after the attention, before and after the MLP; a decoder's
 * attention to the encoder's output has two inputs. Context parallelism: keys and values of all
 * ranks pass every rank. Experts: see dispatch().
 * @param gathers how often rows are gathered for each product that needs them all: once in
 * forward, twice in backward */
static void exchange(pass *p, const layer_state *s, uint64_t gathers) {
    const uint32_t group = p->job->model->blocks[s->block].group, cp = p->job->run->parallel.cp;
    const bool decoder = p->job->model->groups[group].facts.decoder;
    uint64_t out = stw_times(stw_job_group_tokens(p->job, group), decoder ? 3 : 2);
    uint64_t in = stw_plus(out, decoder ? p->job->tokens : 0);
    const uint64_t outs = decoder ? 3 : 2, ins = decoder ? 4 : 2;
    gather_inputs(p, s, stw_times(in, gathers), ins * gathers);
    reduce_rows(p, s->block, gathers > 1 ? in : out, gathers > 1 ? ins : outs);
    if (stw_megatron_is_mtp(p->job, s->block)) { /* embedding, projection and its output */
        reduce_rows(p, s->block, p->job->tokens, 1);
        gather_rows(p, s->block, stw_times(p->job->tokens, 2 * gathers), 2 * gathers);
        communicate(p, STW_OP_ALL_GATHER, STW_RANK_GROUP_TP, s->block,
                    rows_bytes(p, p->job->tokens), 1);
    }
    uint64_t ring = stw_times(stw_megatron_key_value_bytes(p->job, group), cp);
    communicate(p, STW_OP_ALL_GATHER, STW_RANK_GROUP_CP, s->block, stw_times(ring, gathers),
                gathers);
    communicate(p, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_CP, s->block,
                stw_megatron_heads_sent_bytes(p->job, group), 2);
    if (p->job->model->groups[group].facts.experts > 0) dispatch(p, s->block, group, gathers == 2);
}

/* Hidden states that this stage hands on: from a stage of multi-token prediction alone on, those of
 * every prediction (p2p_communication.py, mtp_standalone). */
static uint64_t handed_on_bytes(const pass *p) {
    const stw_parallel *way = &p->job->run->parallel;
    const uint32_t chunk = stw_megatron_mtp_chunk(p->job);
    uint64_t states = 1;
    if (chunk > 0 && chunk + 1 < way->pp * way->vpp && p->stage >= chunk % way->pp)
        states = stw_megatron_hidden_states(p->job);
    return stw_times(states, stw_megatron_hidden_bytes(p->job));
}

/* Hidden states or their gradients of all chunks of this stage, to or from a neighbouring stage.
 * The input of the first chunk and the output of the last one are no neighbour's; between the
 * others the last stage is the neighbour of the first one.
 * @param end the stage whose first or last chunk that is */
static void pass_on(pass *p, uint32_t end) {
    const uint64_t chunks = p->job->run->parallel.vpp - (p->stage == end ? 1u : 0u);
    communicate(p, STW_OP_SEND, STW_RANK_GROUP_PP, STW_OP_NONE,
                stw_times(handed_on_bytes(p), chunks), chunks);
}

static void pass_in(pass *p) { pass_on(p, 0); }

static void pass_out(pass *p) { pass_on(p, p->job->run->parallel.pp - 1); }

static stw_work_style style_of(const pass *p, const layer_state *s) {
    return (stw_work_style){.tp = p->job->run->parallel.tp,
                            .fused = true,
                            .fp8 = s != NULL && stw_megatron_is_fp8(p->job, s->block)};
}

/* Append the work of a block's forward that selective recomputation does again. */
static void again_work(const pass *p, const layer_state *s, stw_work *out) {
    const uint32_t group = p->job->model->blocks[s->block].group;
    const stw_block_facts *f = &p->job->model->groups[group].facts;
    const stw_work_style style = style_of(p, s);
    if (p->job->run->recompute.granularity != 2) return;
    const stw_megatron_modules m = stw_megatron_modules_of(p->job->run);
    const stw_block_parts parts = {.attention = m.core_attn, .mlp = f->experts > 0 ? m.moe : m.mlp};
    stw_block_append_parts_work(p->job, group, &style, &parts, out);
}

/* ---- forward ---- */

static uint32_t vision_blocks(const pass *p) {
    const stw_model *model = p->job->model;
    uint32_t n = 0;
    while (n < model->n_blocks && model->groups[model->blocks[n].group].facts.vision) n++;
    return n;
}

/* So many forwards of the tower. */
static void tower_work(const stw_megatron_tower *t, double times, stw_work *out) {
    out->n = 0;
    if (t->rows > 0 && t->columns > 0)
        stw_work_product(out, false, t->rows, t->flops / (2 * t->rows * t->columns), t->columns,
                         times, 0);
}

/* The vision tower of the first stage: forward, or backward. Its first block stands for all. */
static void run_tower(pass *p, bool backward) {
    const stw_megatron_tower *t = &p->tower;
    if (p->stage > 0 || t->kept == 0) return;
    uint64_t more = backward ? stw_plus(t->again, t->backward) : t->again;
    communicate(p, STW_OP_ALL_REDUCE, STW_RANK_GROUP_TP, STW_OP_NONE, t->reduced,
                2ull * vision_blocks(p));
    if (!backward) {
        uint64_t others = stw_times(t->kept, times_of(p, 0) - 1);
        p->tower_others = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, others);
        p->tower_own = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, t->kept);
    }
    stw_extent widest = stw_alloc(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, more);
    use_all(p, 0, vision_blocks(p), backward);
    stw_work work;
    tower_work(t, backward ? (t->again > 0 ? 3.0 : 2.0) : 1.0, &work);
    (void)compute(p, backward ? STW_OP_BACKWARD : STW_OP_FORWARD, 0, &work);
    stw_free(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, widest);
    if (!backward) return;
    stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, p->tower_own);
    stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, p->tower_others);
}

/* Is this the last layer of the chunk with the final norm, which multi-token prediction follows? */
static bool norm_follows(const pass *p, uint32_t i) {
    const layer_state *s = &p->layers[i];
    const bool last = i + 1 == p->n || p->layers[i + 1].chunk != s->chunk ||
                      stw_megatron_is_mtp(p->job, p->layers[i + 1].block);
    return last && !stw_megatron_is_mtp(p->job, s->block) && stw_megatron_mtp_layers(p->job) > 0 &&
           s->chunk == stw_megatron_norm_chunk(p->job);
}

static void keep_norm(pass *p, const layer_state *s) {
    const uint64_t bytes = stw_megatron_hidden_bytes(p->job);
    p->norms =
        stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, stw_times(bytes, s->times - 1));
    p->norm = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, bytes);
}

/* Copies run beside the computation: down after the block, up while the backward of the block
 * after it runs. Their bytes on the GPU are those of the block alone
 * (fine_grained_activation_offload.py, on_group_start_backward: one block ahead, module by module).
 */
static uint32_t carry(pass *p, bool down, const layer_state *s) {
    const stw_place_at gpu = {STW_TIER_GPU, 0}, host = {STW_TIER_HOST, 0};
    if (s->off.host == 0) return STW_OP_NONE;
    return stw_copy(p->b, &(stw_transport){.kind = STW_OP_COPY,
                                           .stream = down ? STW_STREAM_D2H : STW_STREAM_H2D,
                                           .component = STW_COMPONENT_ACTIVATIONS,
                                           .unit = STW_OP_NONE,
                                           .from = down ? gpu : host,
                                           .to = down ? host : gpu,
                                           .bytes = s->off.host,
                                           .after = {p->worked, s->carried}});
}

/* The last block of the pass whose backward comes next: that of a single pass stays, of another
 * one it is there again before the forward that precedes (bulk_reload, pre_reload_last_layer). */
static void look_ahead(pass *p) {
    if (p->n > 0 && stw_megatron_in_flight(p->job, p->stage) > 1)
        p->ahead =
            stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, p->layers[p->n - 1].off.host);
}

static void forward(pass *p) {
    run_tower(p, false);
    pass_in(p);
    if (p->stage == 0) /* every rank has a part of the vocabulary */
        reduce_rows(p, STW_OP_NONE, embedded_rows(p), sequences(p));
    use_all(p, vision_blocks(p), first_layer(p), false);
    look_ahead(p);
    for (uint32_t i = 0; i < p->n; i++) {
        layer_state *s = &p->layers[i];
        for (uint64_t k = 0; k + 1 < s->times; k++)
            s->others[k] =
                stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->kept - s->off.gpu);
        s->own = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->kept - s->off.gpu);
        stw_extent off = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->off.gpu);
        uint64_t more = s->bytes.forward;
        if (s->recompute) more = stw_plus(more, s->bytes.whole - s->kept);
        exchange(p, s, 1);
        use(p, s->block, false);
        stw_extent widest = stw_alloc(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, more);
        const stw_work_style style = style_of(p, s);
        stw_work work;
        stw_block_forward_work(p->job, s->block, &style, &work);
        (void)compute(p, STW_OP_FORWARD, s->block, &work);
        stw_free(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, widest);
        used(p, s->block, false);
        if (i + 1 == p->n && p->ahead.alloc == STW_OP_NONE) {
            p->ahead = off;
        } else {
            stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, off);
            s->carried = carry(p, true, s);
        }
        if (norm_follows(p, i)) keep_norm(p, s);
    }
}

/* The head's block; a tied head is the embedding. */
static uint32_t head_block(const pass *p) {
    uint32_t head = 0;
    for (uint32_t b = 0; b < p->job->model->n_blocks; b++)
        if (stw_megatron_is_head(p->job, b) ||
            (p->job->model->tied_embeddings && stw_megatron_is_embedding(p->job, b)))
            head = b;
    return head;
}

/* Products of the head, with those of multi-token prediction. */
static uint64_t head_rows(const pass *p) {
    return stw_times(p->job->decoder_tokens, stw_megatron_hidden_states(p->job));
}

static void head_work(const pass *p, bool backward, stw_work *out) {
    const stw_work_style style = style_of(p, NULL);
    if (backward)
        stw_head_backward_work(p->job, &style, (double)head_rows(p),
                               stw_head_backward_share(p->job), out);
    else
        stw_head_forward_work(p->job, &style, (double)head_rows(p), out);
}

/* Of a matrix over the vocabulary, in the compute dtype. */
static uint64_t vocabulary_bytes(const pass *p) {
    return rows_bytes(p, stw_megatron_vocab(p->job));
}

static void loss(pass *p) {
    const stw_job *job = p->job;
    pass_out(p); /* the output goes, its gradient comes */
    pass_out(p);
    if (p->stage + 1 < job->run->parallel.pp) return;
    const stw_megatron_loss bytes = stw_megatron_loss_of(job);
    stw_work work;
    const uint32_t head = head_block(p);
    const uint64_t heads = stw_megatron_hidden_states(job);
    stw_extent kept = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, bytes.kept);
    stw_extent before = stw_alloc(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, bytes.predictions);
    stw_extent softmax = stw_alloc(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, bytes.logits);
    stw_extent more = stw_alloc(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, bytes.forward);
    gather_rows(p, head, head_rows(p), heads);
    use_all(p, last_layer(p) + 1, job->model->n_blocks, false);
    head_work(p, false, &work);
    (void)compute(p, STW_OP_LOSS, head, &work);
    /* fp32 maximum, logit of the target and sum (tensor_parallel/cross_entropy.py) */
    communicate(p, STW_OP_ALL_REDUCE, STW_RANK_GROUP_TP, head, stw_times(head_rows(p), 3 * 4),
                stw_times(3, heads));
    stw_free(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more);
    more = stw_alloc(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, bytes.backward);
    gather_rows(p, head, head_rows(p), heads);
    head_work(p, true, &work);
    (void)compute(p, STW_OP_LOSS, head, &work);
    reduce_rows(p, head, head_rows(p), heads);
    stw_free(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more);
    stw_free(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, softmax);
    stw_megatron_flow_turn(&p->flow);
    use_all(p, last_layer(p) + 1, job->model->n_blocks, true);
    more = stw_alloc(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, bytes.head);
    stw_free(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more);
    stw_free(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, before);
    /* Autograd adds up both gradients of a tied embedding before it hands them on (InputBuffer). */
    if (job->model->tied_embeddings && job->run->parallel.pp == 1 && job->frozen == NULL)
        p->head_grad = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, vocabulary_bytes(p));
    stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, kept);
}

/* ---- backward ---- */

/* Blocks that were checkpointed together run forward again up to block i. */
static void run_again(pass *p, uint32_t i) {
    if (!p->layers[i].recompute || p->layers[i].again.alloc != STW_OP_NONE) return;
    uint32_t first = i;
    while (!p->layers[first].heads_segment) first--;
    for (uint32_t k = first; k <= i; k++) {
        layer_state *s = &p->layers[k];
        s->again = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU,
                             s->bytes.whole - stw_min_u64(s->kept, s->bytes.whole));
    }
}

/* Under recomputation the token dispatcher keeps the graph of its last forward, and with it the
 * checkpoint's detached input and that input's gradient, until the block runs forward again
 * (token_dispatcher.py: probs is an attribute; random.py, CheckpointFunction.backward). */
static bool leaves_graph(const pass *p, const layer_state *s) {
    if (!s->bytes.router) return false;
    if (s->recompute) return true;
    return p->job->run->recompute.granularity == 2 && stw_megatron_modules_of(p->job->run).moe;
}

/* The weight gradient of an embedding. */
static void embedding_grad(pass *p) {
    if (p->job->frozen != NULL) return;
    stw_extent grad = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, vocabulary_bytes(p));
    stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, grad);
}

/* Backward of a block, with the forward before it where the block is recomputed. */
static void backward_work(const pass *p, const layer_state *s, stw_work *out) {
    const stw_work_style style = style_of(p, s);
    stw_block_backward_work(p->job, s->block, &style, out);
    if (s->recompute)
        stw_block_append_forward_work(p->job, s->block, &style, out);
    else
        again_work(p, s, out);
}

/* What block i had on the host, and the copy of what the block before it has there. */
static stw_extent come_back(pass *p, uint32_t i) {
    layer_state *s = &p->layers[i];
    if (i > 0) p->layers[i - 1].back = carry(p, false, &p->layers[i - 1]);
    if (i + 1 == p->n) return p->ahead;
    if (s->back != STW_OP_NONE) p->ready = s->back;
    return stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->off.host);
}

static void backward(pass *p) {
    for (uint32_t i = p->n; i-- > 0;) {
        layer_state *s = &p->layers[i];
        if (norm_follows(p, i)) stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, p->norm);
        run_again(p, i);
        uint64_t more = stw_plus(s->bytes.backward, s->recompute ? 0 : s->bytes.again);
        if (s->recompute) exchange(p, s, 1);
        exchange(p, s, 2);
        use(p, s->block, true);
        stw_extent off = come_back(p, i);
        stw_extent widest = stw_alloc(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, more);
        stw_work work;
        backward_work(p, s, &work);
        (void)compute(p, STW_OP_BACKWARD, s->block, &work);
        stw_free(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, widest);
        stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->again);
        stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, off);
        stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->own);
        used(p, s->block, true);
        if (leaves_graph(p, s))
            p->left[s->block] = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU,
                                          stw_times(2, stw_megatron_hidden_bytes(p->job)));
        if (stw_megatron_is_mtp(p->job, s->block)) embedding_grad(p);
    }
    use_all(p, vision_blocks(p), first_layer(p), true);
    run_tower(p, true);
    pass_in(p);
    if (p->stage > 0) return;
    gather_rows(p, STW_OP_NONE, embedded_rows(p), sequences(p));
    embedding_grad(p);
    stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, p->head_grad);
}

/* ---- all of it ---- */

static double seconds_of(const pass *p, const stw_work *work) {
    return stw_work_seconds(p->job->cluster, work->items, work->n);
}

/* Forward and backward of a layer; those of a group that are alike take as long. */
static double layer_seconds(const pass *p, const layer_state *s) {
    const stw_work_style style = style_of(p, s);
    double *known = &p->known_s[4 * p->job->model->blocks[s->block].group + 2 * style.fp8 +
                                (s->recompute ? 1u : 0u)];
    stw_work work;
    if (*known > 0) return *known;
    stw_block_forward_work(p->job, s->block, &style, &work);
    *known = seconds_of(p, &work);
    backward_work(p, s, &work);
    return *known += seconds_of(p, &work);
}

/* Seconds of the computations of a micro batch on a stage. */
static double stage_seconds(const pass *p, uint32_t stage) {
    pass other = *p;
    double seconds = 0;
    stw_work work;
    if (stage == p->stage) return p->busy_s;
    other.stage = stage;
    other.layers = p->others;
    place_layers(&other);
    choose_in_chunks(&other);
    for (uint32_t i = 0; i < other.n; i++) seconds += layer_seconds(p, &other.layers[i]);
    for (int way = 0; way < 2 && stage + 1 == p->job->run->parallel.pp; way++) {
        head_work(p, way == 1, &work);
        seconds += seconds_of(p, &work);
    }
    tower_work(&p->tower, p->tower.again > 0 ? 4.0 : 3.0, &work);
    return seconds + (stage == 0 ? seconds_of(p, &work) : 0);
}

/* Micro batches follow each other at the pace of the slowest stage; the first one passes all
 * stages, chunk by chunk (arXiv 2104.04473, section 2.2: where stages are equal, a stage waits
 * (pp - 1) / vpp passes in every iteration). */
static void wait_for_others(pass *p) {
    const stw_parallel *way = &p->job->run->parallel;
    double passes = (double)p->job->run->batch.grad_accumulation, slowest = 0, all = 0;
    if (way->pp == 1 || !stw_program_is_full(p->b->program, STW_PHASE_FORWARD_BACKWARD)) return;
    for (uint32_t stage = 0; stage < way->pp; stage++) {
        double seconds = stage_seconds(p, stage);
        slowest = seconds > slowest ? seconds : slowest;
        all += seconds;
    }
    stw_op op = stw_op_make(STW_OP_IDLE, STW_STREAM_COMPUTE, STW_OP_NONE);
    op.wait_s = slowest - p->busy_s + (all - slowest) / (double)way->vpp / passes;
    op.after[0] = p->sent;
    (void)stw_append(p->b, op);
}

static uint64_t sent_bytes(const pass *p) {
    const stw_parallel *way = &p->job->run->parallel;
    if (way->pp == 1) return 0;
    uint64_t n = p->stage == 0 ? 1 : 2;
    if (way->vpp > 1) n += SENT_BY_CHUNKS;
    return stw_times(n, handed_on_bytes(p));
}

/* In the first iteration every module of every pass in flight goes to the host; its tensors stay.
 */
void stw_megatron_look_at_offload(stw_builder *b, stw_megatron_state *state) {
    pass p = {.b = b, .job = b->job, .stage = b->job->kinds[b->layout->kind].stage};
    stw_host_pool pool = {.bytes = 0};
    if (b->status != STW_STATUS_OK || !b->job->model->facts_known) return;
    if (stw_megatron_settings_of(b->job->run).offload_modules.n == 0 || !look_at_layers(&p)) return;
    for (uint32_t i = 0; i < p.n; i++)
        for (uint32_t k = 0; k < p.layers[i].off.n; k++)
            for (uint64_t t = 0; t < p.layers[i].times; t++)
                stw_host_pool_take(&pool, p.layers[i].off.tensors[k]);
    state->host_acts = pool.asked;
    state->host_acts_rounding = pool.bytes - pool.asked;
}

static void trace(const pass *p, const stw_megatron_state *state, uint32_t first_op) {
    if (!state->traced || p->b->status != STW_STATUS_OK) return;
    stw_traced_layer *layers = stw_pool_array(p->b->program->pool, p->n, sizeof *layers);
    for (uint32_t i = 0; i < p->n && layers != NULL; i++)
        layers[i] = (stw_traced_layer){p->layers[i].block, p->layers[i].recompute,
                                       p->layers[i].heads_segment};
    stw_megatron_pass_tensors(p->b, state, first_op, layers, layers == NULL ? 0 : p->n);
}

/* All-gathers that overlap the first micro batch's forward, and reductions that overlap the last
 * one's backward, have their share in every micro batch. */
void stw_megatron_build_pass(stw_builder *b, const stw_megatron_state *state, stw_extent *left) {
    const stw_megatron_settings set = stw_megatron_settings_of(b->job->run);
    const uint64_t parts = b->job->run->batch.grad_accumulation;
    pass p = {.b = b,
              .job = b->job,
              .stage = b->job->kinds[b->layout->kind].stage,
              .left = left,
              .tower = stw_megatron_tower_of(b->job),
              .norm = STW_NO_EXTENT,
              .norms = STW_NO_EXTENT,
              .head_grad = STW_NO_EXTENT,
              .ahead = STW_NO_EXTENT,
              .worked = STW_OP_NONE,
              .sent = STW_OP_NONE,
              .ready = STW_OP_NONE};
    if (b->status != STW_STATUS_OK || !look_at_layers(&p)) return;
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_FORWARD_BACKWARD,
                                         .repeat = STW_REPEAT_EVERY_ITERATION});
    stw_park_before_forward(b);
    const uint32_t from = b->program->n_ops;
    for (uint32_t i = 0; i < p.n; i++) p.layers[i].again = STW_NO_EXTENT;
    stw_extent workspace = stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU,
                                     stw_megatron_work_areas(b->job, &state->params));
    stw_extent gathered =
        stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_megatron_buffer_bytes(b->job));
    stw_extent sent = stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, sent_bytes(&p));
    stw_extent deferred = stw_alloc(
        b, STW_COMPONENT_LOGITS, STW_TIER_GPU,
        p.stage + 1 == b->job->run->parallel.pp ? stw_megatron_deferred_bytes(b->job) : 0);
    stw_extent outer = stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU,
                                 p.stage == 0 ? stw_megatron_outer_bytes(b->job) : 0);
    if (set.overlap_param_gather) stw_megatron_exchange(b, state, true, parts, STW_OP_NONE);
    stw_megatron_flow_begin(&p.flow, b, &state->fsdp);
    forward(&p);
    loss(&p);
    backward(&p);
    stw_megatron_flow_end(&p.flow);
    for (uint32_t i = 0; i < p.n; i++)
        for (uint64_t k = 0; k + 1 < p.layers[i].times; k++)
            stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, p.layers[i].others[k]);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, p.norms);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, outer);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, deferred);
    if (set.overlap_grad_reduce && !stw_megatron_cuts_grads(b->job->run))
        stw_megatron_exchange(b, state, false, parts, STW_OP_NONE);
    wait_for_others(&p);
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, sent);
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, gathered);
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, workspace);
    trace(&p, state, from);
    stw_end_movement(b);
}

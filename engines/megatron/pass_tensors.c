/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_parallel/schedules.py, forward_backward_pipelining_without_interleaving; p2p tensors are
 * made before what was sent goes (p2p_communication.py). A checkpoint keeps its input and runs its
 * layers again as a whole (tensor_parallel/random.py, CheckpointFunction). */
#include "engines/megatron/pass_tensors.h"

#include <string.h>

#include "blocks/trace.h"
#include "core/checked.h"
#include "engines/megatron/acts.h"
#include "engines/megatron/blocks.h"
#include "engines/megatron/calls.h"
#include "engines/megatron/functions.h"
#include "engines/megatron/megatron.h"
#include "plan/program/tensors.h"

/* Micro batches that bring nothing new follow those that fill the pipeline. */
enum { STEADY = 3 };

/* Numbers of lasting tensors; one for each block comes after them. */
enum { WORKSPACE, BUFFER, GRAPHS };

typedef struct schedule {
    stw_builder *b;
    const stw_job *job;
    const stw_megatron_state *state;
    const stw_traced_layer *layers;
    uint32_t n, passes; /* layers; micro batches in flight */
    bool first, last;
    stw_calls **calls; /* [n_groups] */
    stw_kept *kept;    /* [passes][n] */
    uint32_t *inputs;  /* [passes][n] of checkpoints */
    stw_calls tail;
    stw_kept tail_kept;
    uint32_t head, head_grad;
    bool worked; /* a product of the backward has run */
} schedule;

/* ---- what is known ---- */

bool stw_megatron_is_traced(const stw_builder *b) {
    const stw_job *job = b->job;
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    if (!stw_tensors_wanted(b) || !job->model->facts_known || job->run->parallel.vpp > 1 ||
        stw_megatron_mtp_layers(job) > 0 || stw_job_has_encoder(job) || job->frozen != NULL ||
        stw_megatron_is_fsdp(job->run) || s.offload_modules.n > 0 || s.defer_embedding_wgrad ||
        s.cross_entropy_impl == 1)
        return false;
    for (uint32_t g = 0; g < job->model->n_groups; g++)
        if (job->model->groups[g].facts.transformer && !stw_local_is_known(job, g)) return false;
    return true;
}

void stw_megatron_lasting_tensors(stw_builder *b, stw_megatron_state *state) {
    state->traced = stw_megatron_is_traced(b);
    if (state->traced) state->lasting = stw_tensor_numbers(b, GRAPHS + b->job->model->n_blocks);
}

/* ---- tensors ---- */

static uint32_t take(schedule *s, uint64_t bytes) { return stw_tensor_take(s->b, 0, bytes); }

static void drop(schedule *s, uint32_t *tensor) {
    stw_tensor_drop(s->b, *tensor);
    *tensor = STW_NO_TENSOR;
}

static uint32_t take_hidden(schedule *s) { return take(s, stw_megatron_hidden_bytes(s->job)); }

static bool begin(schedule *s) {
    const stw_model *model = s->job->model;
    stw_pool *pool = s->b->program->pool;
    const size_t n = (size_t)s->passes * s->n + 1;
    s->calls = stw_pool_array(pool, model->n_groups, sizeof(stw_calls *));
    s->kept = stw_pool_array(pool, n, sizeof *s->kept);
    s->inputs = stw_pool_array(pool, n, sizeof *s->inputs);
    bool made = s->calls != NULL && s->kept != NULL && s->inputs != NULL;
    if (made) memset(s->inputs, 0xff, n * sizeof *s->inputs);
    for (uint32_t i = 0; made && i < s->n * s->passes; i++) {
        stw_calls **calls = &s->calls[model->blocks[s->layers[i % s->n].block].group];
        if (*calls == NULL) {
            *calls = stw_pool_alloc(pool, sizeof **calls);
            if (*calls != NULL)
                stw_local_calls(s->job, model->blocks[s->layers[i % s->n].block].group, *calls);
        }
        made = *calls != NULL && stw_kept_new(pool, *calls, &s->kept[i]);
    }
    stw_local_loss_calls(s->job, &s->tail, &s->head);
    made = made && stw_kept_new(pool, &s->tail, &s->tail_kept);
    if (!made)
        s->b->status =
            stw_fail(s->b->err, STW_STATUS_NO_MEMORY, "program", "out of memory for tensors");
    return made;
}

static stw_trace trace_of(schedule *s, uint32_t pass, uint32_t layer) {
    const uint32_t group = s->job->model->blocks[s->layers[layer].block].group;
    return (stw_trace){
        .b = s->b, .job = s->job, .calls = s->calls[group], .kept = &s->kept[pass * s->n + layer]};
}

/* Under recomputation the token dispatcher keeps the graph of its last forward (see pass.c,
 * leaves_graph). */
static uint32_t graph_of(const schedule *s, uint32_t layer) {
    const uint32_t block = s->layers[layer].block;
    const uint32_t group = s->job->model->blocks[block].group;
    return s->job->model->groups[group].facts.experts > 0 ? s->state->lasting + GRAPHS + block
                                                          : STW_NO_TENSOR;
}

/* ---- forward ---- */

static uint32_t forward_layer(schedule *s, uint32_t pass, uint32_t layer, uint32_t in, bool keeps) {
    stw_trace trace = trace_of(s, pass, layer);
    if (keeps) trace.kept->values[STW_VALUE_INPUT] = in;
    return stw_trace_forward(&trace, keeps ? STW_TRACE_KEEP : STW_TRACE_FORGET);
}

/* The embedding's output, of which tokens become the first dimension: a copy with several
 * sequences. */
static uint32_t embed(schedule *s) {
    uint32_t hidden = take_hidden(s);
    if (s->job->run->batch.micro_batch == 1) return hidden;
    const uint32_t turned = take_hidden(s);
    drop(s, &hidden);
    return turned;
}

static uint32_t forward(schedule *s, uint32_t pass, uint32_t in) {
    uint32_t hidden = in;
    for (uint32_t i = 0; i < s->n; i++) {
        const bool recompute = s->layers[i].recompute;
        const bool is_kept = !recompute || s->layers[i].heads_segment;
        const uint32_t before = hidden;
        if (recompute && s->layers[i].heads_segment) s->inputs[pass * s->n + i] = hidden;
        hidden = forward_layer(s, pass, i, before, !recompute);
        if (!is_kept) stw_tensor_drop(s->b, before);
    }
    return hidden;
}

/* ---- loss ---- */

/* cuBLAS has a workspace for each thread that calls it: that of the backward is taken by its first
 * product. */
static void take_workspace(schedule *s) {
    if (!s->worked)
        stw_tensor_take_as(s->b, s->state->lasting + WORKSPACE, 0,
                           stw_megatron_work_areas(s->job, &s->state->params));
    s->worked = true;
}

static void enter_tail(void *owner, const stw_trace *trace, uint32_t call, bool backward) {
    schedule *s = owner;
    (void)trace;
    if (backward && call == s->head) take_workspace(s);
}

static void leave_tail(void *owner, const stw_trace *trace, uint32_t call, bool backward) {
    (void)owner, (void)trace, (void)call, (void)backward;
}

/* @return the gradient of the last layer's output */
static uint32_t loss(schedule *s, uint32_t hidden) {
    const stw_trace_hooks hooks = {.owner = s, .enter = enter_tail, .leave = leave_tail};
    stw_trace trace = {
        .b = s->b, .job = s->job, .calls = &s->tail, .kept = &s->tail_kept, .hooks = &hooks};
    s->tail_kept.values[STW_VALUE_INPUT] = hidden;
    const uint32_t grad = stw_trace_forward(&trace, STW_TRACE_KEEP);
    const uint32_t back = stw_trace_backward(&trace, grad, false);
    uint32_t *weight = &s->tail_kept.slots[s->head][STW_SLOT_FREE + 2];
    if (s->job->model->tied_embeddings && s->first) s->head_grad = *weight;
    *weight = STW_NO_TENSOR;
    return back;
}

/* ---- backward ---- */

/* Layers that were checkpointed together run again up to this one. */
static void run_again(schedule *s, uint32_t pass, uint32_t layer) {
    uint32_t first = layer;
    while (!s->layers[first].heads_segment) first--;
    uint32_t hidden = s->inputs[pass * s->n + first];
    s->inputs[pass * s->n + first] = STW_NO_TENSOR;
    for (uint32_t i = first; i <= layer; i++) {
        stw_tensor_drop(s->b, graph_of(s, i));
        hidden = forward_layer(s, pass, i, hidden, true);
    }
    stw_tensor_drop(s->b, hidden);
}

static uint32_t backward(schedule *s, uint32_t pass, uint32_t grad) {
    bool again = false; /* the segment's layers have run */
    take_workspace(s);
    for (uint32_t i = s->n; i-- > 0;) {
        stw_trace trace = trace_of(s, pass, i);
        if (s->layers[i].recompute && !again) run_again(s, pass, i);
        again = s->layers[i].recompute && !s->layers[i].heads_segment;
        grad = stw_trace_backward(&trace, grad, false);
        if (s->layers[i].recompute && graph_of(s, i) != STW_NO_TENSOR)
            stw_tensor_take_as(s->b, graph_of(s, i), 0,
                               stw_times(2, stw_megatron_hidden_bytes(s->job)));
    }
    return grad;
}

/* The weight gradient of the embedding; that of a tied head is added to it. */
static void embedding_backward(schedule *s, uint32_t *grad) {
    const uint64_t element = stw_dtype_bits(s->job->run->precision.compute) / 8;
    uint32_t weight =
        take(s, stw_times(stw_times(stw_megatron_vocab(s->job), element), s->job->model->hidden));
    drop(s, grad);
    drop(s, &s->head_grad);
    drop(s, &weight);
}

/* ---- the schedule ---- */

static uint32_t forward_of(schedule *s, uint32_t batch, uint32_t received) {
    const uint32_t in = s->first ? embed(s) : received;
    return forward(s, batch % s->passes, in);
}

/* @return the input of the next micro batch, if one comes */
static uint32_t backward_of(schedule *s, uint32_t batch, uint32_t grad, bool comes) {
    uint32_t back = backward(s, batch % s->passes, grad);
    if (s->first) {
        embedding_backward(s, &back);
        return STW_NO_TENSOR;
    }
    const uint32_t next = comes ? take_hidden(s) : STW_NO_TENSOR;
    drop(s, &back);
    return next;
}

/* The last stage goes from the loss straight to the backward. */
static uint32_t turn(schedule *s, uint32_t out) {
    if (s->last) return loss(s, out);
    const uint32_t grad = take_hidden(s);
    stw_tensor_drop(s->b, out);
    return grad;
}

static void run(schedule *s) {
    const uint64_t all = s->job->run->batch.grad_accumulation;
    const uint32_t n = (uint32_t)stw_min_u64(all, s->passes + STEADY - 1), ahead = s->passes - 1;
    uint32_t in = s->first ? STW_NO_TENSOR : take_hidden(s);
    for (uint32_t i = 0; i < ahead; i++) {
        const uint32_t out = forward_of(s, i, in);
        in = s->first ? STW_NO_TENSOR : take_hidden(s);
        stw_tensor_drop(s->b, out);
    }
    for (uint32_t i = ahead; i < n; i++) {
        const uint32_t out = forward_of(s, i, in);
        in = backward_of(s, i - ahead, turn(s, out), i + 1 < n);
    }
    for (uint32_t i = n - ahead; i < n; i++) (void)backward_of(s, i, take_hidden(s), false);
}

void stw_megatron_pass_tensors(stw_builder *b, const stw_megatron_state *state, uint32_t first_op,
                               const stw_traced_layer *layers, uint32_t n) {
    const uint32_t stage = b->job->kinds[b->layout->kind].stage;
    schedule s = {.b = b,
                  .job = b->job,
                  .state = state,
                  .layers = layers,
                  .n = n,
                  .passes = (uint32_t)stw_megatron_in_flight(b->job, stage),
                  .first = stage == 0,
                  .last = stage + 1 == b->job->run->parallel.pp,
                  .head_grad = STW_NO_TENSOR};
    if (!state->traced || b->status != STW_STATUS_OK || !begin(&s)) return;
    stw_tensors_instead(b, first_op);
    stw_tensor_take_as(b, state->lasting + BUFFER, 0, stw_megatron_buffer_bytes(b->job));
    run(&s);
}

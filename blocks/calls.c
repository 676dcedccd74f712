/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept follows from the functions (eager.c): every matrix product keeps its input for the
 * gradient of its weight, every element-wise product both factors (after the scheme of Korthikanti
 * et al., arXiv 2205.05198, section 4.1; tools/autograd/derivatives.yaml: a factor is saved if the
 * other's gradient is wanted, so frozen products and norms save less). Products of one input save
 * it once. The residual itself is not saved.
 * - Mixture of experts: each token keeps experts_per_token copies of the expert terms (Megatron-LM
 *   pull request 6782).
 * - Tensor parallelism (torchtitan/models/llama3/infra/parallelize.py at 018740b, apply_tp;
 *   torch/distributed/tensor/parallel/style.py at v2.11): products save rows of all tokens, which
 *   PrepareModuleInput gathers once for all that read them, and the rank's part of what lies
 *   between products; with sequence parallelism norms and residuals have the rank's tokens.
 *   Without it every rank has all of them (NVIDIA-NeMo/Automodel, optimized_tp_plans.py, with
 *   sequence_parallel false). */
#include "blocks/calls.h"

#include <string.h>

#include "blocks/latent.h"
#include "blocks/linear.h"
#include "blocks/tower.h"
#include "core/checked.h"

/* Is a weight of attention (but not its last product or a norm), or one of routed experts and
 * their router, trained? */
static bool trains_any(const stw_adding *a, bool attention) {
    for (uint32_t t = 0; t < a->block->n_tensors; t++) {
        const stw_tensor *tensor = stw_adding_tensor(a, t);
        const stw_weight w = tensor->use.weight;
        const bool is_norm =
            w == STW_WEIGHT_NORM || w == STW_WEIGHT_Q_NORM || w == STW_WEIGHT_K_NORM;
        const bool is = attention ? !tensor->expert && !stw_module_is_mlp(tensor->use.module) &&
                                        !is_norm && w != STW_WEIGHT_O
                                  : tensor->expert || w == STW_WEIGHT_ROUTER;
        if (is && stw_adding_trains(a, t)) return true;
    }
    return false;
}

/* ---- norms ---- */

/* Are there norms of what attention and the MLP return? No block with latent attention has them. */
static bool has_post_norms(const stw_adding *a) {
    return a->facts->norms >= 4 && a->facts->kv_rank == 0;
}

/* The first or the last norm beside the residual, or the one after attention or the MLP. A block
 * with four has them in the order of their calls (models/gemma3/modeling_gemma3.py). */
static uint32_t norm_weight(const stw_adding *a, bool last, bool after) {
    uint32_t skipped = (last ? 2u : 0u) + (after ? 1u : 0u);
    if (!has_post_norms(a)) return stw_adding_weight(a, STW_WEIGHT_NORM, last);
    for (uint32_t t = 0; t < a->block->n_tensors; t++)
        if (stw_adding_tensor(a, t)->use.weight == STW_WEIGHT_NORM &&
            !stw_adding_tensor(a, t)->use.bias && skipped-- == 0)
            return t;
    return STW_NO_WEIGHT;
}

/* Of the residual. Its output is gathered where a rank has a part of the rows. */
static uint8_t residual_norm(stw_adding *a, uint8_t in, bool last) {
    const uint64_t hidden = a->facts->hidden;
    a->part = STW_PART_NORMS;
    const uint32_t weight = norm_weight(a, last, false);
    uint8_t out = stw_add_norm(a, in, a->own_rows, hidden, 1, weight);
    a->part = STW_PART_INPUTS;
    a->out->values[out].part = (uint8_t)a->part;
    if (a->own_rows == a->rows) return out;
    const uint8_t gathered =
        stw_add_resized(a, STW_FUNCTION_GATHER, out, stw_adding_column(a, hidden),
                        a->out->bytes[a->out->values[out].size]);
    stw_add_end(a, out);
    return gathered;
}

/* A norm of what attention or the MLP returns. */
static uint8_t post_norm(stw_adding *a, uint8_t in) {
    const stw_part part = a->part;
    if (!has_post_norms(a)) return in;
    a->part = STW_PART_NORMS;
    const uint8_t out = stw_add_norm(a, in, a->own_rows, a->facts->hidden, 1,
                                     norm_weight(a, part == STW_PART_MLP, true));
    stw_add_end(a, in);
    return out;
}

/* ---- attention ---- */

static uint8_t rotary(stw_adding *a, uint8_t in, uint64_t n) {
    const uint64_t dim = a->facts->qk_dim, part = a->facts->rotary_dim;
    stw_call *c = stw_add_call(a, part > 0 ? STW_FUNCTION_PARTIAL_ROTARY : STW_FUNCTION_ROTARY, in,
                               STW_N_ROTARY_SIZES, STW_ROTARY_OUT);
    a->bytes[STW_ROTARY_OUT] = stw_adding_column(a, stw_times(n, dim));
    a->bytes[STW_ROTARY_HALF] = stw_adding_column(a, stw_times(n, part > 0 ? part : dim) / 2);
    a->bytes[STW_ROTARY_PART] = stw_adding_column(a, stw_times(n, part));
    return c->out;
}

/* Does the product of queries make a gate of every head, too (models/qwen3_next,
 * Qwen3NextAttention)? */
static bool has_gate(const stw_adding *a) {
    const uint32_t q = stw_adding_weight(a, STW_WEIGHT_Q, false);
    const uint64_t queries = stw_times(a->facts->q_heads, a->facts->qk_dim);
    return q != STW_NO_WEIGHT && stw_adding_tensor(a, q)->shape[0] == stw_times(2, queries);
}

/* Queries or keys. Heads are transposed: a gradient is copied into rows of tokens before the
 * product's backward, unless it is put together of two.
 * @param gate out: the gate, if there is one; NULL: there is none */
static uint8_t heads(stw_adding *a, uint8_t in, bool queries, uint64_t n, uint8_t *gate) {
    const uint64_t width = stw_times(n, a->facts->qk_dim);
    const uint32_t weight = stw_adding_weight(a, queries ? STW_WEIGHT_Q : STW_WEIGHT_K, false);
    const uint32_t own =
        stw_adding_weight(a, queries ? STW_WEIGHT_Q_NORM : STW_WEIGHT_K_NORM, false);
    const bool halved = gate != NULL && has_gate(a) && own != STW_NO_WEIGHT;
    const uint8_t out =
        stw_add_product(a, in, weight, halved ? stw_times(2, width) : width, a->facts->hidden);
    if (halved) {
        *gate =
            stw_add_element(a, STW_FUNCTION_COPY, out, STW_NO_VALUE, stw_adding_column(a, width));
        a->out->list[a->out->n - 1].parts = 1;
    } else {
        a->out->list[a->out->n - 1].conditions |= STW_IF_HEADS;
    }
    if (own == STW_NO_WEIGHT) return out;
    const uint8_t normed = stw_add_norm(a, out, a->rows, width, n, own);
    if (halved) a->out->list[a->out->n - 1].parts = 1;
    stw_add_end(a, out);
    return normed;
}

/* Has a weight a call of its own? */
static bool is_called(stw_weight w) {
    return (w >= STW_WEIGHT_Q && w <= STW_WEIGHT_O) || w == STW_WEIGHT_GATE || w == STW_WEIGHT_UP ||
           w == STW_WEIGHT_GATE_UP || w == STW_WEIGHT_DOWN || w == STW_WEIGHT_LINEAR_IN;
}

/* Elements per token of adapters that no other call saves. */
static uint64_t other_elements(const stw_adding *a) {
    uint64_t sum = 0;
    for (uint32_t t = 0; t < a->block->n_tensors; t++)
        if (stw_adding_tensor(a, t)->use.adapter == STW_ADAPTER_B &&
            !is_called(stw_adding_tensor(a, t)->use.weight))
            sum = stw_plus(sum, stw_adding_tensor(a, t)->shape[1]);
    return sum;
}

/* Has latent attention an indexer? What it saves is not known. */
static bool is_indexed(const stw_adding *a) {
    for (uint32_t t = 0; t < a->block->n_tensors && a->facts->kv_rank > 0; t++)
        if (stw_module_is_attention(stw_adding_tensor(a, t)->use.module) &&
            stw_adding_tensor(a, t)->use.weight == STW_WEIGHT_OTHER)
            return true;
    return false;
}

/* Times the sigmoid of the gate. */
static uint8_t gated_attention(stw_adding *a, uint8_t gate, uint8_t attended, uint64_t bytes) {
    const uint8_t open = stw_add_element(a, STW_FUNCTION_SIGMOID, gate, STW_NO_VALUE, bytes);
    const uint8_t out = stw_add_element(a, STW_FUNCTION_GATE, attended, open, bytes);
    stw_add_end(a, attended);
    stw_add_end(a, open);
    return out;
}

/* Queries that are put together of parts have rows of heads, and so has the kernel's output. */
static uint8_t in_rows(stw_adding *a, uint8_t attended, uint64_t bytes) {
    const uint8_t out = stw_add_element(a, STW_FUNCTION_COPY, attended, STW_NO_VALUE, bytes);
    stw_add_end(a, attended);
    return out;
}

/* The output of the attention's last product. */
static uint8_t attention(stw_adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const uint64_t q_heads = f->q_heads / a->tp, kv_heads = f->kv_heads / a->tp;
    const uint64_t others = stw_adding_column(a, other_elements(a)),
                   o_width = stw_times(q_heads, f->v_dim);
    uint32_t v_weight = stw_adding_weight(a, STW_WEIGHT_V, false);
    uint8_t attended = in, locals[] = {in, in, in}, gate = STW_NO_VALUE;
    if (stw_add_is_linear(a)) return stw_add_linear_attention(a, in);
    a->part = STW_PART_ATTENTION;
    if (v_weight == STW_NO_WEIGHT) v_weight = stw_adding_weight(a, STW_WEIGHT_QKV, false);
    if (v_weight == STW_NO_WEIGHT) v_weight = stw_adding_weight(a, STW_WEIGHT_KV, false);
    if (others > 0 || is_indexed(a)) {
        stw_call *c = stw_add_call(a, STW_FUNCTION_OTHER_ATTENTION, in, 2, STW_ELEMENTS_IN);
        a->bytes[STW_ELEMENTS_OUT] = others;
        c->conditions = trains_any(a, true) ? STW_IF_TRAINED : STW_IF_UNREAD;
        attended = c->out;
    }
    if (f->kv_rank > 0) return stw_add_latent_attention(a, in);
    if (q_heads > 0) {
        const uint8_t q = heads(a, in, true, q_heads, &gate),
                      k = heads(a, in, false, kv_heads, NULL);
        const uint8_t v =
            stw_add_product(a, in, v_weight, stw_times(kv_heads, f->v_dim), f->hidden);
        const uint8_t turned_q = rotary(a, q, q_heads), turned_k = rotary(a, k, kv_heads);
        stw_add_end(a, q);
        stw_add_end(a, k);
        memcpy(locals, (uint8_t[]){turned_q, turned_k, v}, sizeof locals);
        attended = stw_add_kernel(a, locals, q_heads, kv_heads, f->v_dim);
    }
    const uint64_t o_bytes = stw_adding_column(a, o_width);
    if (q_heads > 0 && f->rotary_dim > 0) attended = in_rows(a, attended, o_bytes);
    if (gate != STW_NO_VALUE) attended = gated_attention(a, gate, attended, o_bytes);
    const uint8_t out =
        stw_add_product(a, attended, stw_adding_weight(a, STW_WEIGHT_O, false), f->hidden, o_width);
    stw_add_end(a, attended);
    for (size_t i = 0; i < sizeof locals; i++) stw_add_end(a, locals[i]);
    if (gate != STW_NO_VALUE) stw_add_end(a, gate);
    stw_add_end(a, in);
    return out;
}

/* ---- MLP and experts ---- */

/* Of the MLP, or its shared experts: the output of the last product. */
static uint8_t mlp(stw_adding *a, uint8_t in, uint64_t width) {
    const uint64_t hidden = a->facts->hidden, bytes = stw_adding_column(a, width);
    const uint32_t gate = stw_adding_weight(a, STW_WEIGHT_GATE, true);
    uint32_t up = stw_adding_weight(a, STW_WEIGHT_UP, true);
    uint8_t inner;
    if (up == STW_NO_WEIGHT) up = stw_adding_weight(a, STW_WEIGHT_GATE_UP, true);
    if (a->facts->gated) {
        const uint8_t gated = stw_add_product(a, in, gate, width, hidden);
        const uint8_t active =
            stw_add_element(a, STW_FUNCTION_ACTIVATION, gated, STW_NO_VALUE, bytes);
        stw_add_end(a, gated);
        const uint8_t raised = stw_add_product(a, in, up, width, hidden);
        inner = stw_add_element(a, STW_FUNCTION_GATE, active, raised, bytes);
        stw_add_end(a, active);
        stw_add_end(a, raised);
    } else {
        const uint8_t raised = stw_add_product(a, in, up, width, hidden);
        inner = stw_add_element(a, STW_FUNCTION_ACTIVATION, raised, STW_NO_VALUE, bytes);
        stw_add_end(a, raised);
    }
    const uint8_t out =
        stw_add_product(a, inner, stw_adding_weight(a, STW_WEIGHT_DOWN, true), hidden, width);
    stw_add_end(a, inner);
    return out;
}

static uint64_t routed_rows(const stw_adding *a) {
    return stw_scaled(stw_times(a->rows, a->facts->experts_per_token), a->job->run->moe.imbalance);
}

static uint8_t experts(stw_adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const uint64_t c_bytes = a->element, scores = stw_adding_column(a, f->experts);
    const uint64_t copies = routed_rows(a);
    stw_call *c =
        stw_add_call(a, STW_FUNCTION_EXPERTS, in, STW_EXPERTS_HIDDEN + 1, STW_EXPERTS_HIDDEN);
    a->bytes[STW_EXPERTS_SCORES] = scores;
    a->bytes[STW_EXPERTS_WIDE] = stw_times(scores, 2);
    a->bytes[STW_EXPERTS_PROBS] = stw_times(stw_times(a->rows, 4), f->experts);
    a->bytes[STW_EXPERTS_INDEX] = stw_times(copies, 8);
    a->bytes[STW_EXPERTS_COPIES] = stw_times(stw_times(copies, f->hidden), c_bytes);
    a->bytes[STW_EXPERTS_INNER] = stw_times(stw_times(copies, f->expert_ffn), c_bytes);
    a->bytes[STW_EXPERTS_ACTIVE] = f->gated ? a->bytes[STW_EXPERTS_INNER] : 0;
    a->bytes[STW_EXPERTS_BOTH] = stw_times(a->bytes[STW_EXPERTS_INNER], f->gated ? 2 : 1);
    a->bytes[STW_EXPERTS_HIDDEN] = stw_adding_column(a, f->hidden);
    c->conditions = trains_any(a, false) ? STW_IF_TRAINED : STW_IF_UNREAD;
    return c->out;
}

/* The router's product and the scores of experts, in fp32.
 * @param logits out: there until the experts return */
static uint8_t wide_scores(stw_adding *a, uint8_t in, uint8_t *logits) {
    const stw_block_facts *f = a->facts;
    const uint32_t router = stw_adding_weight(a, STW_WEIGHT_ROUTER, false);
    const uint64_t rows = stw_times(a->rows, 4), chosen = stw_times(a->rows, f->experts_per_token);
    const uint8_t wide = stw_add_resized(a, STW_FUNCTION_RESIZE, in, stw_times(rows, f->hidden),
                                         stw_adding_column(a, f->hidden));
    stw_call *c = stw_add_call(a, STW_FUNCTION_WIDE_PRODUCT, wide, 3, STW_WIDE_PRODUCT_OUT);
    c->weight[0] = (uint16_t)router;
    c->conditions = stw_adding_trains(a, router) ? STW_IF_TRAINED : STW_IF_UNREAD;
    a->bytes[STW_WIDE_PRODUCT_OUT] = stw_times(rows, f->experts);
    a->bytes[STW_WIDE_PRODUCT_IN] = stw_times(rows, f->hidden);
    a->bytes[STW_WIDE_PRODUCT_WEIGHT] = stw_times(stw_times(f->experts, 4), f->hidden);
    *logits = c->out;
    stw_add_end(a, wide);
    c = stw_add_call(a,
                     f->sigmoid_scores ? STW_FUNCTION_SIGMOID_SCORES : STW_FUNCTION_SOFTMAX_SCORES,
                     *logits, 4, STW_SCORES_CHOSEN);
    a->bytes[STW_SCORES_ALL] = stw_times(rows, f->experts);
    a->bytes[STW_SCORES_FLAGS] = stw_times(a->rows, f->experts);
    a->bytes[STW_SCORES_CHOSEN] = stw_times(chosen, 4);
    a->bytes[STW_SCORES_INDEX] = stw_times(chosen, 8);
    return c->out;
}

/* The last one, if each expert has its own. */
static uint32_t expert_weight(const stw_adding *a, stw_weight weight) {
    uint32_t t = a->block->n_tensors;
    while (t-- > 0)
        if (stw_adding_tensor(a, t)->expert && stw_adding_tensor(a, t)->use.weight == weight)
            return t;
    return STW_NO_WEIGHT;
}

static uint8_t wide_experts(stw_adding *a, uint8_t in, uint8_t scores) {
    const stw_block_facts *f = a->facts;
    const uint64_t c_bytes = a->element, copies = routed_rows(a),
                   elements = stw_times(copies, f->hidden);
    stw_call *c = stw_add_call(a, STW_FUNCTION_WIDE_EXPERTS, in, STW_N_WIDE_EXPERTS_SIZES,
                               STW_WIDE_EXPERTS_HIDDEN);
    c->in[1] = scores;
    c->weight[0] = (uint16_t)expert_weight(a, STW_WEIGHT_DOWN);
    c->weight[1] = (uint16_t)expert_weight(a, STW_WEIGHT_GATE_UP);
    c->conditions = stw_adding_trains(a, c->weight[0]) && stw_adding_trains(a, c->weight[1])
                        ? STW_IF_TRAINED
                        : STW_IF_UNREAD;
    a->bytes[STW_WIDE_EXPERTS_INDEX] = stw_times(copies, 8);
    a->bytes[STW_WIDE_EXPERTS_SCORE] = stw_times(copies, 4);
    a->bytes[STW_WIDE_EXPERTS_FLAG] = copies;
    a->bytes[STW_WIDE_EXPERTS_COPIES] = stw_times(elements, c_bytes);
    a->bytes[STW_WIDE_EXPERTS_WEIGHED] = stw_times(elements, 4);
    a->bytes[STW_WIDE_EXPERTS_INNER] = stw_times(stw_times(copies, f->expert_ffn), c_bytes);
    a->bytes[STW_WIDE_EXPERTS_BOTH] = stw_times(a->bytes[STW_WIDE_EXPERTS_INNER], 2);
    a->bytes[STW_WIDE_EXPERTS_HIDDEN] = stw_adding_column(a, f->hidden);
    a->bytes[STW_WIDE_EXPERTS_SUM] = stw_times(stw_times(a->rows, 4), f->hidden);
    return c->out;
}

/* Routed experts, then shared ones, and their sum (DeepseekV2Moe).
 * @param shared width of those; 0: none */
static uint8_t wide_moe(stw_adding *a, uint8_t in, uint64_t shared) {
    uint8_t logits;
    const uint8_t scores = wide_scores(a, in, &logits);
    uint8_t out = wide_experts(a, in, scores);
    if (shared > 0) {
        const uint8_t routed = out, more = mlp(a, in, shared);
        out = stw_add_element(a, STW_FUNCTION_SUM, routed, more,
                              stw_adding_column(a, a->facts->hidden));
        stw_add_end(a, more);
        stw_add_end(a, routed);
    }
    stw_add_end(a, logits);
    stw_add_end(a, scores);
    return out;
}

/* ---- blocks ---- */

void stw_calls_of_block(const stw_job *job, uint32_t block, bool constant, stw_calls *out) {
    if (stw_tower_has_block(job, job->model->blocks[block].group)) {
        stw_tower_calls_of_block(job, block, constant, out);
        return;
    }
    stw_adding a = stw_add_begin(job, block, out);
    const uint64_t dense = stw_plus(a.facts->ffn / a.tp, a.facts->shared_ffn);
    const uint64_t input = out->bytes[0];
    stw_add_call(&a, STW_FUNCTION_REST_ATTENTION, STW_VALUE_INPUT, 0, 0);
    const uint8_t first = residual_norm(&a, STW_VALUE_INPUT, false);
    out->to_attention = first;
    const uint8_t attended = post_norm(&a, attention(&a, first));
    a.part = STW_PART_NORMS;
    const uint8_t residual =
        stw_add_element(&a, STW_FUNCTION_SUM, STW_VALUE_INPUT, attended, input);
    stw_add_end(&a, attended);
    stw_add_call(&a, STW_FUNCTION_REST, residual, 0, 0);
    const uint8_t second = residual_norm(&a, residual, true);
    uint8_t last = second;
    out->to_mlp = second;
    a.part = STW_PART_MLP;
    if (a.facts->wide_scores && a.facts->experts > 0) {
        last = wide_moe(&a, second, dense);
    } else {
        if (a.facts->experts > 0) last = experts(&a, second);
        if (dense > 0) {
            const uint8_t routed = last;
            last = mlp(&a, second, dense);
            stw_add_end(&a, routed);
        }
    }
    stw_add_end(&a, second);
    last = post_norm(&a, last);
    out->out = stw_add_element(&a, STW_FUNCTION_SUM, residual, last, input);
    stw_add_end(&a, last);
    stw_add_end(&a, residual);
    stw_calls_finish(out, constant);
}

void stw_calls_of_group(const stw_job *job, uint32_t group, stw_calls *out) {
    uint32_t b = 0;
    while (b + 1 < job->model->n_blocks && job->model->blocks[b].group != group) b++;
    stw_calls_of_block(job, b, false, out);
}

uint32_t stw_calls_of_norm(const stw_job *job, stw_calls *out) {
    const stw_model *model = job->model;
    uint32_t block = model->n_blocks - 1;
    for (uint32_t b = 0; b < model->n_blocks; b++)
        if (strcmp(model->groups[model->blocks[b].group].name, "norm") == 0) block = b;
    stw_adding a = stw_add_begin(job, block, out);
    /* like those of the first block of the language model */
    for (uint32_t g = model->n_groups; g-- > 0;)
        if (model->groups[g].facts.transformer && !model->groups[g].facts.vision)
            a.facts = &model->groups[g].facts;
    out->out = stw_add_norm(&a, STW_VALUE_INPUT, a.own_rows, model->hidden, 1,
                            stw_adding_weight(&a, STW_WEIGHT_NORM, false));
    a.bytes[STW_NORM_WEIGHT] = 0; /* measured: test_engine_trainable */
    stw_calls_finish(out, false);
    return block;
}

/* ---- what is known of them ---- */

bool stw_group_is_known(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    stw_calls calls;
    if (f->vision) return stw_tower_has_block(job, group);
    if (!f->transformer || (!f->gated && f->experts > 0)) return false;
    if (f->q_heads + f->linear_v_heads == 0) return false;
    if (f->shared_ffn > 0 && (f->linear_v_heads > 0 || f->rotary_dim > 0)) return false;
    bool has_rule = f->linear_v_heads == 0;
    stw_calls_of_group(job, group, &calls);
    for (uint32_t i = 0; i < calls.n; i++) {
        const uint8_t kind = calls.list[i].function;
        if (stw_function_of(&calls, &calls.list[i])->backward == NULL) return false;
        if (kind == STW_FUNCTION_DELTA_RULE || kind == STW_FUNCTION_REPEATED_DELTA_RULE)
            has_rule = true;
    }
    return has_rule;
}

void stw_group_saved(const stw_job *job, uint32_t group, uint64_t bytes[STW_N_PARTS]) {
    stw_calls calls;
    stw_calls_of_group(job, group, &calls);
    stw_calls_saved(&calls, bytes);
}

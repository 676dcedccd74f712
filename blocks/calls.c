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

#include "blocks/tower.h"
#include "core/checked.h"
#include "plan/job/images.h"

typedef struct adding {
    const stw_job *job;
    const stw_block *block;
    const stw_block_facts *facts;
    uint64_t rows, own_rows; /* tokens or patches; those that the rank has between products */
    uint32_t tp;
    stw_part part; /* of calls from now on */
    stw_calls *out;
    uint64_t *bytes; /* sizes of the last call */
} adding;

static uint64_t compute_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->precision.compute) / 8;
}

static uint64_t column(const adding *a, uint64_t width) {
    return stw_times(stw_times(a->rows, compute_bytes(a->job)), width);
}

/* ---- weights ---- */

static const stw_tensor *tensor_of(const adding *a, uint32_t weight) {
    return &a->job->model->tensors[a->block->first_tensor + weight];
}

/* The block's weight, of several the first or the last one; no routed expert's. */
static uint32_t weight_of(const adding *a, stw_weight weight, bool last) {
    uint32_t found = STW_NO_WEIGHT;
    for (uint32_t t = 0; t < a->block->n_tensors; t++) {
        const stw_weight_use use = tensor_of(a, t)->use;
        if (use.weight != weight || use.bias || use.adapter != STW_ADAPTER_NONE ||
            tensor_of(a, t)->expert || (found != STW_NO_WEIGHT && !last))
            continue;
        found = t;
    }
    return found;
}

/* The bias of a weight, or a matrix of its adapter. */
static uint32_t beside(const adding *a, uint32_t weight, bool bias, stw_adapter adapter) {
    for (uint32_t t = 0; t < a->block->n_tensors && weight != STW_NO_WEIGHT; t++) {
        const stw_weight_use use = tensor_of(a, t)->use, of = tensor_of(a, weight)->use;
        if (use.weight == of.weight && use.module == of.module && use.bias == bias &&
            use.adapter == adapter)
            return t;
    }
    return STW_NO_WEIGHT;
}

static bool is_trained(const adding *a, uint32_t weight) {
    return weight != STW_NO_WEIGHT && stw_job_trains(a->job, a->block->first_tensor + weight);
}

/* Is a weight of attention (but not its last product or a norm), or one of routed experts and
 * their router, trained? */
static bool trains_any(const adding *a, bool attention) {
    for (uint32_t t = 0; t < a->block->n_tensors; t++) {
        const stw_tensor *tensor = tensor_of(a, t);
        const stw_weight w = tensor->use.weight;
        const bool is_norm =
            w == STW_WEIGHT_NORM || w == STW_WEIGHT_Q_NORM || w == STW_WEIGHT_K_NORM;
        const bool is = attention ? !tensor->expert && !stw_module_is_mlp(tensor->use.module) &&
                                        !is_norm && w != STW_WEIGHT_O
                                  : tensor->expert || w == STW_WEIGHT_ROUTER;
        if (is && is_trained(a, t)) return true;
    }
    return false;
}

/* ---- calls ---- */

static stw_call *call(adding *a, stw_function_kind kind, uint8_t in, int n, int size) {
    stw_call *c = stw_calls_add(a->out, (uint8_t)kind, in, n, size, &a->bytes);
    c->part = a->out->values[c->out].part = (uint8_t)a->part;
    return c;
}

static void ends(adding *a, uint8_t value) { stw_calls_end_value(a->out, value); }

static uint8_t element(adding *a, stw_function_kind kind, uint8_t in, uint8_t second,
                       uint64_t bytes) {
    stw_call *c = call(a, kind, in, 2, STW_ELEMENTS_OUT);
    c->in[1] = second;
    a->bytes[STW_ELEMENTS_OUT] = bytes;
    return c->out;
}

/* @param tokens that are normalised, each in so many rows of together `width` elements */
static uint8_t norm(adding *a, uint8_t in, uint64_t tokens, uint64_t width, uint64_t rows,
                    uint32_t weight) {
    const uint64_t elements = stw_times(tokens, width), c_bytes = compute_bytes(a->job);
    const bool is_layer_norm =
        a->facts->vision && beside(a, weight, true, STW_ADAPTER_NONE) != STW_NO_WEIGHT;
    const stw_function_kind kind = is_layer_norm          ? STW_FUNCTION_LAYER_NORM
                                   : a->facts->wide_norms ? STW_FUNCTION_WIDE_NORM
                                                          : STW_FUNCTION_NORM;
    stw_call *c = call(a, kind, in, 4, STW_NORM_NARROW);
    c->weight[0] = (uint16_t)weight;
    a->bytes[STW_NORM_WIDE] = stw_times(elements, 4);
    a->bytes[STW_NORM_NARROW] = stw_times(elements, c_bytes);
    a->bytes[STW_NORM_ROW] = stw_times(stw_times(tokens, rows), 4);
    if (rows == 1) a->bytes[STW_NORM_WEIGHT] = stw_times(width, 4);
    if (is_trained(a, weight)) c->conditions = STW_IF_TRAINED;
    return c->out;
}

/* The first or the last norm beside the residual, or the one after attention or the MLP. A block
 * with four has them in the order of their calls (models/gemma3/modeling_gemma3.py). */
static uint32_t norm_weight(const adding *a, bool last, bool after) {
    uint32_t skipped = (last ? 2u : 0u) + (after ? 1u : 0u);
    if (a->facts->norms < 4) return weight_of(a, STW_WEIGHT_NORM, last);
    for (uint32_t t = 0; t < a->block->n_tensors; t++)
        if (tensor_of(a, t)->use.weight == STW_WEIGHT_NORM && !tensor_of(a, t)->use.bias &&
            skipped-- == 0)
            return t;
    return STW_NO_WEIGHT;
}

/* Of the residual. Its output is gathered where a rank has a part of the rows. */
static uint8_t residual_norm(adding *a, uint8_t in, bool last) {
    const uint64_t hidden = a->facts->hidden;
    a->part = STW_PART_NORMS;
    const uint32_t weight = norm_weight(a, last, false);
    uint8_t out = norm(a, in, a->own_rows, hidden, 1, weight);
    a->part = STW_PART_INPUTS;
    a->out->values[out].part = (uint8_t)a->part;
    if (a->own_rows == a->rows) return out;
    const uint8_t gathered = element(a, STW_FUNCTION_GATHER, out, STW_NO_VALUE, column(a, hidden));
    a->bytes[STW_ELEMENTS_IN] = a->out->bytes[a->out->values[out].size];
    ends(a, out);
    return gathered;
}

/* A norm of what attention or the MLP returns. */
static uint8_t post_norm(adding *a, uint8_t in) {
    const stw_part part = a->part;
    if (a->facts->norms < 4) return in;
    a->part = STW_PART_NORMS;
    const uint8_t out =
        norm(a, in, a->own_rows, a->facts->hidden, 1, norm_weight(a, part == STW_PART_MLP, true));
    ends(a, in);
    return out;
}

/* A product whose weight has no name is a part of another one, whose input is kept. */
static uint8_t product(adding *a, uint8_t in, uint32_t weight, uint64_t width, uint64_t inputs) {
    const uint32_t lora_a = beside(a, weight, false, STW_ADAPTER_A);
    const uint32_t bias = beside(a, weight, true, STW_ADAPTER_NONE);
    const bool adapted = lora_a != STW_NO_WEIGHT, trained = is_trained(a, weight);
    stw_call *c = call(a, adapted ? STW_FUNCTION_ADAPTED_PRODUCT : STW_FUNCTION_PRODUCT, in, 3,
                       STW_PRODUCT_OUT);
    c->weight[0] = (uint16_t)weight;
    c->weight[1] = (uint16_t)(adapted ? lora_a : bias);
    if (adapted) c->weight[2] = (uint16_t)beside(a, weight, false, STW_ADAPTER_B);
    a->bytes[STW_PRODUCT_OUT] = column(a, width);
    a->bytes[STW_PRODUCT_IN] = column(a, inputs);
    a->bytes[STW_PRODUCT_RANK] = column(a, a->job->run->trainable.lora_rank);
    if (trained) c->conditions |= STW_IF_TRAINED;
    if (trained && !adapted && is_trained(a, bias)) c->conditions |= STW_IF_BIASED;
    if (!trained && !adapted && (weight != STW_NO_WEIGHT || a->job->frozen != NULL))
        c->conditions |= STW_IF_UNREAD;
    return c->out;
}

/* ---- attention ---- */

static uint8_t rotary(adding *a, uint8_t in, uint64_t n) {
    const uint64_t dim = a->facts->qk_dim, part = a->facts->rotary_dim;
    stw_call *c = call(a, part > 0 ? STW_FUNCTION_PARTIAL_ROTARY : STW_FUNCTION_ROTARY, in,
                       STW_N_ROTARY_SIZES, STW_ROTARY_OUT);
    a->bytes[STW_ROTARY_OUT] = column(a, stw_times(n, dim));
    a->bytes[STW_ROTARY_HALF] = column(a, stw_times(n, part > 0 ? part : dim) / 2);
    a->bytes[STW_ROTARY_PART] = column(a, stw_times(n, part));
    return c->out;
}

/* Does the product of queries make a gate of every head, too (models/qwen3_next,
 * Qwen3NextAttention)? */
static bool has_gate(const adding *a) {
    const uint32_t q = weight_of(a, STW_WEIGHT_Q, false);
    const uint64_t queries = stw_times(a->facts->q_heads, a->facts->qk_dim);
    return q != STW_NO_WEIGHT && tensor_of(a, q)->shape[0] == stw_times(2, queries);
}

/* Queries or keys. Heads are transposed: a gradient is copied into rows of tokens before the
 * product's backward, unless it is put together of two.
 * @param gate out: the gate, if there is one; NULL: there is none */
static uint8_t heads(adding *a, uint8_t in, bool queries, uint64_t n, uint8_t *gate) {
    const uint64_t width = stw_times(n, a->facts->qk_dim);
    const uint32_t weight = weight_of(a, queries ? STW_WEIGHT_Q : STW_WEIGHT_K, false);
    const uint32_t own = weight_of(a, queries ? STW_WEIGHT_Q_NORM : STW_WEIGHT_K_NORM, false);
    const bool halved = gate != NULL && has_gate(a) && own != STW_NO_WEIGHT;
    const uint8_t out =
        product(a, in, weight, halved ? stw_times(2, width) : width, a->facts->hidden);
    if (halved) {
        *gate = element(a, STW_FUNCTION_COPY, out, STW_NO_VALUE, column(a, width));
        a->out->list[a->out->n - 1].parts = 1;
    } else {
        a->out->list[a->out->n - 1].conditions |= STW_IF_HEADS;
    }
    if (own == STW_NO_WEIGHT) return out;
    const uint8_t normed = norm(a, out, a->rows, width, n, own);
    if (halved) a->out->list[a->out->n - 1].parts = 1;
    ends(a, out);
    return normed;
}

/* Has a weight a call of its own? */
static bool is_called(stw_weight w) {
    return w == STW_WEIGHT_Q || w == STW_WEIGHT_K || w == STW_WEIGHT_V || w == STW_WEIGHT_KV ||
           w == STW_WEIGHT_QKV || w == STW_WEIGHT_O || w == STW_WEIGHT_GATE || w == STW_WEIGHT_UP ||
           w == STW_WEIGHT_GATE_UP || w == STW_WEIGHT_DOWN || w == STW_WEIGHT_LINEAR_IN;
}

/* Elements per token of latent attention, and of adapters, that no other call saves. */
static uint64_t other_elements(const adding *a) {
    const stw_block_facts *f = a->facts;
    uint64_t sum = stw_plus(f->q_rank, f->kv_rank);
    for (uint32_t t = 0; t < a->block->n_tensors; t++)
        if (tensor_of(a, t)->use.adapter == STW_ADAPTER_B &&
            !is_called(tensor_of(a, t)->use.weight))
            sum = stw_plus(sum, tensor_of(a, t)->shape[1]);
    return sum;
}

/* Patches see all of an image, and of a window. */
static uint64_t seen_rows(const adding *a) {
    if (!a->facts->vision) return a->job->run->batch.seq_len;
    const uint64_t seen = stw_job_seen_patches(a->job), window = a->facts->window;
    return window > 0 ? stw_min_u64(seen, window) : seen;
}

/* transformers' sdpa_attention.py and masking_utils.py: a window that is shorter than the sequence
 * is a mask, of each sequence and all of its pairs of tokens; FlashAttention has windows. */
uint64_t stw_mask_bytes(const stw_job *job, const stw_block_facts *f, uint64_t element_bytes) {
    const uint64_t seen = job->run->batch.seq_len;
    if (f->vision || f->window == 0 || f->window >= seen ||
        job->run->attention != STW_ATTENTION_SDPA)
        return 0;
    return stw_times(stw_times(job->tokens, seen), element_bytes);
}

static uint8_t kernel(adding *a, const uint8_t in[3], uint64_t q_heads, uint64_t kv_heads) {
    const stw_block_facts *f = a->facts;
    const bool eager = a->job->run->attention == STW_ATTENTION_EAGER;
    const uint64_t mask = stw_mask_bytes(a->job, f, compute_bytes(a->job));
    const stw_function_kind kind = eager      ? STW_FUNCTION_EAGER_ATTENTION
                                   : mask > 0 ? STW_FUNCTION_MASKED_ATTENTION
                                              : STW_FUNCTION_ATTENTION;
    stw_call *c = call(a, kind, in[0], mask > 0 ? STW_N_MASKED_SIZES : STW_N_ATTENTION_SIZES,
                       STW_ATTENTION_OUT);
    memcpy(c->in, in, sizeof c->in);
    if (eager) {
        const uint64_t scores = stw_times(seen_rows(a), q_heads);
        const uint64_t more = q_heads > kv_heads ? q_heads - kv_heads : 0;
        a->bytes[STW_EAGER_COPIES] = column(a, stw_times(more, stw_plus(f->qk_dim, f->v_dim)));
        a->bytes[STW_EAGER_CAPPED] = f->capped_scores ? column(a, scores) : 0;
        a->bytes[STW_EAGER_WIDE] = stw_times(stw_times(a->rows, 4), scores);
        a->bytes[STW_EAGER_CAST] = column(a, scores);
        a->bytes[STW_EAGER_OUT] = column(a, stw_times(q_heads, f->v_dim));
        return c->out;
    }
    stw_attention_shape shape = {a->rows, compute_bytes(a->job), q_heads, kv_heads, f->qk_dim,
                                 f->v_dim};
    if (mask > 0) {
        shape.kv_heads = q_heads;
        stw_calls_attention_bytes(&shape, a->bytes);
        a->bytes[STW_ATTENTION_BIAS] = mask;
        a->bytes[STW_ATTENTION_ALL_K] = kv_heads < q_heads ? a->bytes[STW_ATTENTION_K] : 0;
        a->bytes[STW_ATTENTION_ALL_V] = kv_heads < q_heads ? a->bytes[STW_ATTENTION_V] : 0;
        a->bytes[STW_ATTENTION_K] = column(a, stw_times(kv_heads, f->qk_dim));
        a->bytes[STW_ATTENTION_V] = column(a, stw_times(kv_heads, f->v_dim));
        return c->out;
    }
    stw_calls_attention_bytes(&shape, a->bytes);
    return c->out;
}

/* Times the sigmoid of the gate. */
static uint8_t gated_attention(adding *a, uint8_t gate, uint8_t attended, uint64_t bytes) {
    const uint8_t open = element(a, STW_FUNCTION_SIGMOID, gate, STW_NO_VALUE, bytes);
    const uint8_t out = element(a, STW_FUNCTION_GATE, attended, open, bytes);
    ends(a, attended);
    ends(a, open);
    return out;
}

/* Queries that are put together of parts have rows of heads, and so has the kernel's output. */
static uint8_t in_rows(adding *a, uint8_t attended, uint64_t bytes) {
    const uint8_t out = element(a, STW_FUNCTION_COPY, attended, STW_NO_VALUE, bytes);
    ends(a, attended);
    return out;
}

/* ---- linear attention ---- */

/* The n-th weight of linear attention that is one of these. */
static uint32_t linear_weight(const adding *a, stw_weight weight, uint32_t n) {
    for (uint32_t t = 0; t < a->block->n_tensors; t++) {
        const stw_weight_use use = tensor_of(a, t)->use;
        if (use.module == STW_MODULE_LINEAR_ATTENTION && use.weight == weight &&
            use.adapter == STW_ADAPTER_NONE && n-- == 0)
            return t;
    }
    return STW_NO_WEIGHT;
}

/* Has it linear attention, with all of its weights? */
static bool is_linear(const adding *a) {
    return a->facts->linear_v_heads > 0 &&
           linear_weight(a, STW_WEIGHT_LINEAR_IN, 1) != STW_NO_WEIGHT &&
           linear_weight(a, STW_WEIGHT_CONVOLUTION, 0) != STW_NO_WEIGHT &&
           linear_weight(a, STW_WEIGHT_LINEAR_STATE, 1) != STW_NO_WEIGHT &&
           linear_weight(a, STW_WEIGHT_NORM, 0) != STW_NO_WEIGHT;
}

static uint8_t linear_product(adding *a, uint8_t in, uint32_t n) {
    const uint32_t weight = linear_weight(a, STW_WEIGHT_LINEAR_IN, n);
    return product(a, in, weight, tensor_of(a, weight)->shape[0], a->facts->hidden);
}

/* A part of a product. */
static uint8_t part_of(adding *a, uint8_t in, uint64_t width) {
    return element(a, STW_FUNCTION_PART, in, STW_NO_VALUE, column(a, width));
}

/* What linear attention makes of its input. models/qwen3_5 has a product for each;
 * models/qwen3_next has two, whose parts are copied, in an order of its own. */
typedef struct linear_inputs {
    uint8_t mixed, gate, step, decay; /* query, key and value in one; the norm's gate */
} linear_inputs;

static bool has_products(const adding *a) {
    return linear_weight(a, STW_WEIGHT_LINEAR_IN, 3) != STW_NO_WEIGHT;
}

static linear_inputs linear_in(adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const uint64_t value = stw_times(f->linear_v_heads, f->linear_v_dim);
    const uint8_t first = linear_product(a, in, 0), second = linear_product(a, in, 1);
    linear_inputs out = {first, second, in, in};
    if (has_products(a)) {
        out.step = linear_product(a, in, 2);
        out.decay = linear_product(a, in, 3);
        return out;
    }
    out.mixed = part_of(
        a, first, stw_plus(value, stw_times(2, stw_times(f->linear_k_heads, f->linear_k_dim))));
    out.gate = part_of(a, first, value);
    out.step = part_of(a, second, f->linear_v_heads);
    out.decay = part_of(a, second, f->linear_v_heads);
    ends(a, first);
    ends(a, second);
    return out;
}

static uint8_t convolution(adding *a, uint8_t in) {
    const uint32_t weight = linear_weight(a, STW_WEIGHT_CONVOLUTION, 0);
    const stw_tensor *of = tensor_of(a, weight);
    const uint64_t channels = of->shape[0], kernel_size = of->numel / stw_max_u64(channels, 1);
    const uint64_t sequences = stw_div_up_u64(a->rows, stw_max_u64(a->job->run->batch.seq_len, 1));
    stw_call *c =
        call(a, STW_FUNCTION_CONVOLUTION, in, STW_N_CONVOLUTION_SIZES, STW_CONVOLUTION_OUT);
    c->weight[0] = (uint16_t)weight;
    if (is_trained(a, weight)) c->conditions = STW_IF_TRAINED;
    a->bytes[STW_CONVOLUTION_OUT] = column(a, channels);
    a->bytes[STW_CONVOLUTION_PADDED] =
        stw_plus(column(a, channels), stw_times(stw_times(sequences, kernel_size - 1),
                                                stw_times(channels, compute_bytes(a->job))));
    return c->out;
}

/* Of query, key and value in one, and what decay and step width are made of. */
static uint8_t delta_rule(adding *a, const uint8_t in[3]) {
    enum { CHUNK = 64 }; /* tokens: fla/ops/gated_delta_rule/chunk.py, chunk_size */
    const stw_block_facts *f = a->facts;
    const uint64_t heads = f->linear_v_heads, value = stw_times(heads, f->linear_v_dim);
    const uint32_t log = linear_weight(a, STW_WEIGHT_LINEAR_STATE, 0),
                   shift = linear_weight(a, STW_WEIGHT_LINEAR_STATE, 1);
    stw_call *c = call(
        a, f->linear_k_heads < heads ? STW_FUNCTION_REPEATED_DELTA_RULE : STW_FUNCTION_DELTA_RULE,
        in[0], STW_N_RULE_SIZES, STW_RULE_VALUE);
    memcpy(c->in, in, sizeof c->in);
    c->weight[0] = (uint16_t)log;
    c->weight[1] = (uint16_t)shift;
    if (is_trained(a, log)) c->conditions |= STW_IF_TRAINED;
    if (is_trained(a, shift)) c->conditions |= STW_IF_BIASED;
    a->bytes[STW_RULE_QUERY] = column(a, stw_times(heads, f->linear_k_dim));
    a->bytes[STW_RULE_KEY] = column(a, stw_times(f->linear_k_heads, f->linear_k_dim));
    a->bytes[STW_RULE_VALUE] = column(a, value);
    a->bytes[STW_RULE_ROW] = stw_times(stw_times(a->rows, heads), 4);
    a->bytes[STW_RULE_STEP] = column(a, heads);
    a->bytes[STW_RULE_TRIANGLE] = column(a, stw_times(heads, CHUNK));
    a->bytes[STW_RULE_STATES] =
        stw_times(stw_div_up_u64(a->rows, CHUNK),
                  stw_times(stw_times(value, f->linear_k_dim), compute_bytes(a->job)));
    a->bytes[STW_RULE_ALL] =
        stw_plus(stw_times(2, a->bytes[STW_RULE_KEY]), a->bytes[STW_RULE_VALUE]);
    return c->out;
}

static uint8_t gated_norm(adding *a, uint8_t in, uint8_t gate) {
    const stw_block_facts *f = a->facts;
    const uint32_t weight = linear_weight(a, STW_WEIGHT_NORM, 0);
    const uint64_t width = stw_times(f->linear_v_heads, f->linear_v_dim);
    stw_call *c = call(a, STW_FUNCTION_GATED_NORM, in, 4, STW_NORM_NARROW);
    c->in[1] = gate;
    c->weight[0] = (uint16_t)weight;
    if (is_trained(a, weight)) c->conditions = STW_IF_TRAINED;
    a->bytes[STW_NORM_WIDE] = stw_times(stw_times(a->rows, width), 4);
    a->bytes[STW_NORM_NARROW] = column(a, width);
    a->bytes[STW_NORM_ROW] = stw_times(stw_times(a->rows, f->linear_v_heads), 4);
    return c->out;
}

static uint8_t linear_attention(adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    a->part = STW_PART_ATTENTION;
    const linear_inputs of = linear_in(a, in);
    const uint8_t convolved = convolution(a, of.mixed);
    ends(a, of.mixed);
    const uint8_t attended = delta_rule(a, (uint8_t[]){convolved, of.decay, of.step});
    const uint8_t normed = gated_norm(a, attended, of.gate);
    ends(a, attended);
    const uint8_t out = product(a, normed, weight_of(a, STW_WEIGHT_O, false), f->hidden,
                                stw_times(f->linear_v_heads, f->linear_v_dim));
    const uint8_t locals[] = {of.gate, of.step, of.decay, convolved, normed, in};
    for (size_t i = 0; i < sizeof locals; i++) ends(a, locals[i]);
    return out;
}

/* ---- attention of both kinds ---- */

/* The output of the attention's last product. */
static uint8_t attention(adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const uint64_t q_heads = f->q_heads / a->tp, kv_heads = f->kv_heads / a->tp;
    const uint64_t others = column(a, other_elements(a)), o_width = stw_times(q_heads, f->v_dim);
    uint32_t v_weight = weight_of(a, STW_WEIGHT_V, false);
    uint8_t attended = in, locals[] = {in, in, in}, gate = STW_NO_VALUE;
    if (is_linear(a)) return linear_attention(a, in);
    a->part = STW_PART_ATTENTION;
    if (v_weight == STW_NO_WEIGHT) v_weight = weight_of(a, STW_WEIGHT_QKV, false);
    if (v_weight == STW_NO_WEIGHT) v_weight = weight_of(a, STW_WEIGHT_KV, false);
    if (others > 0) {
        stw_call *c = call(a, STW_FUNCTION_OTHER_ATTENTION, in, 2, STW_ELEMENTS_IN);
        a->bytes[STW_ELEMENTS_OUT] = others;
        c->conditions = trains_any(a, true) ? STW_IF_TRAINED : STW_IF_UNREAD;
        attended = c->out;
    }
    if (q_heads > 0) {
        const uint8_t q = heads(a, in, true, q_heads, &gate),
                      k = heads(a, in, false, kv_heads, NULL);
        const uint8_t v = product(a, in, v_weight, stw_times(kv_heads, f->v_dim), f->hidden);
        const uint8_t turned_q = rotary(a, q, q_heads), turned_k = rotary(a, k, kv_heads);
        ends(a, q);
        ends(a, k);
        memcpy(locals, (uint8_t[]){turned_q, turned_k, v}, sizeof locals);
        attended = kernel(a, locals, q_heads, kv_heads);
    }
    if (q_heads > 0 && f->rotary_dim > 0) attended = in_rows(a, attended, column(a, o_width));
    if (gate != STW_NO_VALUE) attended = gated_attention(a, gate, attended, column(a, o_width));
    const uint8_t out = product(a, attended, weight_of(a, STW_WEIGHT_O, false), f->hidden, o_width);
    ends(a, attended);
    for (size_t i = 0; i < sizeof locals; i++) ends(a, locals[i]);
    if (gate != STW_NO_VALUE) ends(a, gate);
    ends(a, in);
    return out;
}

/* ---- MLP and experts ---- */

/* Of the MLP, or its shared experts: the output of the last product. */
static uint8_t mlp(adding *a, uint8_t in, uint64_t width) {
    const uint64_t hidden = a->facts->hidden, bytes = column(a, width);
    const uint32_t gate = weight_of(a, STW_WEIGHT_GATE, true);
    uint32_t up = weight_of(a, STW_WEIGHT_UP, true);
    uint8_t inner;
    if (up == STW_NO_WEIGHT) up = weight_of(a, STW_WEIGHT_GATE_UP, true);
    if (a->facts->gated) {
        const uint8_t gated = product(a, in, gate, width, hidden);
        const uint8_t active = element(a, STW_FUNCTION_ACTIVATION, gated, STW_NO_VALUE, bytes);
        ends(a, gated);
        const uint8_t raised = product(a, in, up, width, hidden);
        inner = element(a, STW_FUNCTION_GATE, active, raised, bytes);
        ends(a, active);
        ends(a, raised);
    } else {
        const uint8_t raised = product(a, in, up, width, hidden);
        inner = element(a, STW_FUNCTION_ACTIVATION, raised, STW_NO_VALUE, bytes);
        ends(a, raised);
    }
    const uint8_t out = product(a, inner, weight_of(a, STW_WEIGHT_DOWN, true), hidden, width);
    ends(a, inner);
    return out;
}

static uint8_t experts(adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const uint64_t c_bytes = compute_bytes(a->job), scores = column(a, f->experts);
    const uint64_t copies =
        stw_scaled(stw_times(a->rows, f->experts_per_token), a->job->run->moe.imbalance);
    stw_call *c = call(a, STW_FUNCTION_EXPERTS, in, STW_EXPERTS_HIDDEN + 1, STW_EXPERTS_HIDDEN);
    a->bytes[STW_EXPERTS_SCORES] = scores;
    a->bytes[STW_EXPERTS_WIDE] = stw_times(scores, 2);
    a->bytes[STW_EXPERTS_PROBS] = stw_times(stw_times(a->rows, 4), f->experts);
    a->bytes[STW_EXPERTS_INDEX] = stw_times(copies, 8);
    a->bytes[STW_EXPERTS_COPIES] = stw_times(stw_times(copies, f->hidden), c_bytes);
    a->bytes[STW_EXPERTS_INNER] = stw_times(stw_times(copies, f->expert_ffn), c_bytes);
    a->bytes[STW_EXPERTS_ACTIVE] = f->gated ? a->bytes[STW_EXPERTS_INNER] : 0;
    a->bytes[STW_EXPERTS_BOTH] = stw_times(a->bytes[STW_EXPERTS_INNER], f->gated ? 2 : 1);
    a->bytes[STW_EXPERTS_HIDDEN] = column(a, f->hidden);
    c->conditions = trains_any(a, false) ? STW_IF_TRAINED : STW_IF_UNREAD;
    return c->out;
}

/* ---- blocks ---- */

static adding begin(const stw_job *job, uint32_t block, stw_calls *out) {
    const stw_block *blk = &job->model->blocks[block];
    const stw_block_facts *f = &job->model->groups[blk->group].facts;
    adding a = {.job = job, .block = blk, .facts = f, .tp = stw_job_tp(job), .out = out};
    a.rows = f->vision ? stw_job_patches(job) : job->tokens;
    a.own_rows = f->vision ? a.rows : stw_job_own_tokens(job);
    stw_calls_begin(out, stw_functions_eager,
                    stw_times(stw_times(a.own_rows, compute_bytes(job)), f->hidden));
    return a;
}

void stw_calls_of_block(const stw_job *job, uint32_t block, bool constant, stw_calls *out) {
    if (stw_tower_has_block(job, job->model->blocks[block].group)) {
        stw_tower_calls_of_block(job, block, constant, out);
        return;
    }
    adding a = begin(job, block, out);
    const uint64_t dense = stw_plus(a.facts->ffn / a.tp, a.facts->shared_ffn);
    const uint64_t input = out->bytes[0];
    call(&a, STW_FUNCTION_REST_ATTENTION, STW_VALUE_INPUT, 0, 0);
    const uint8_t first = residual_norm(&a, STW_VALUE_INPUT, false);
    out->to_attention = first;
    const uint8_t attended = post_norm(&a, attention(&a, first));
    a.part = STW_PART_NORMS;
    const uint8_t residual = element(&a, STW_FUNCTION_SUM, STW_VALUE_INPUT, attended, input);
    ends(&a, attended);
    call(&a, STW_FUNCTION_REST, residual, 0, 0);
    const uint8_t second = residual_norm(&a, residual, true);
    uint8_t last = second;
    out->to_mlp = second;
    a.part = STW_PART_MLP;
    if (a.facts->experts > 0) last = experts(&a, second);
    if (dense > 0) {
        const uint8_t routed = last;
        last = mlp(&a, second, dense);
        ends(&a, routed);
    }
    ends(&a, second);
    last = post_norm(&a, last);
    out->out = element(&a, STW_FUNCTION_SUM, residual, last, input);
    ends(&a, last);
    ends(&a, residual);
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
    adding a = begin(job, block, out);
    /* like those of the first block of the language model */
    for (uint32_t g = model->n_groups; g-- > 0;)
        if (model->groups[g].facts.transformer && !model->groups[g].facts.vision)
            a.facts = &model->groups[g].facts;
    out->out = norm(&a, STW_VALUE_INPUT, a.own_rows, model->hidden, 1,
                    weight_of(&a, STW_WEIGHT_NORM, false));
    a.bytes[STW_NORM_WEIGHT] = 0; /* measured: test_engine_trainable */
    stw_calls_finish(out, false);
    return block;
}

/* ---- what is known of blocks ---- */

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

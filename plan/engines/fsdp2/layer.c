/* SPDX-License-Identifier: Apache-2.0 */
/* The order is that of transformers' eager decoder (5.23, models/qwen3/modeling_qwen3.py and
 * models/qwen3_moe, integrations/moe.py: grouped_mm) and of autograd's backward of it, operation by
 * operation: a tensor is taken when the operation that makes it runs, and dropped when the last
 * reference to it goes, which for a local variable of forward is the end of its function.
 * Attention is the flash kernel (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp,
 * mha_fwd and mha_bwd). torch/utils/checkpoint.py recomputes up to the last tensor that is saved.
 */
#include "plan/engines/fsdp2/layer.h"

#include <string.h>

#include "core/checked.h"

static uint64_t compute_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->precision.compute) / 8;
}

static uint32_t take(stw_builder *b, uint64_t bytes) { return stw_tensor_take(b, 0, bytes); }

static void drop(stw_builder *b, uint32_t *tensor) {
    stw_tensor_drop(b, *tensor);
    *tensor = STW_NO_TENSOR;
}

/* The first goes when the second is there. */
static void become(stw_builder *b, uint32_t *tensor, uint32_t other) {
    stw_tensor_drop(b, *tensor);
    *tensor = other;
}

static uint64_t column(const stw_torch_layer *l, uint64_t width) {
    return stw_times(stw_times(l->job->tokens, compute_bytes(l->job)), width);
}

bool stw_torch_layer_is_known(const stw_job *job, const stw_block_facts *f) {
    return f->transformer && !f->vision && f->q_heads > 0 && f->linear_v_heads == 0 &&
           !f->wide_norms && !f->capped_scores && (f->norms == 0 || f->norms == 2) &&
           f->kv_rank == 0 && f->q_rank == 0 && job->run->attention != STW_ATTENTION_EAGER &&
           (f->gated || f->experts == 0);
}

/* ---- norms ---- */

stw_torch_norm stw_torch_norm_forward(stw_builder *b, const stw_job *job,
                                      const stw_torch_shape *shape, bool keep, uint32_t *out) {
    const uint64_t elements = stw_times(job->tokens, shape->width);
    const uint64_t wide = stw_times(elements, 4), narrow = stw_times(elements, compute_bytes(job));
    const uint64_t row = stw_times(stw_times(job->tokens, 4), shape->rows);
    stw_torch_norm norm = {.wide = take(b, wide), .with = STW_NO_TENSOR};
    uint32_t squares = take(b, wide), mean = take(b, row);
    drop(b, &squares);
    uint32_t sum = take(b, row);
    norm.root = take(b, row);
    drop(b, &sum);
    uint32_t product = take(b, wide);
    if (!keep) drop(b, &norm.root);
    if (!keep) drop(b, &norm.wide);
    norm.normed = take(b, narrow);
    *out = take(b, narrow);
    if (!keep || shape->frozen) drop(b, &norm.normed);
    drop(b, &product);
    drop(b, &mean);
    return norm;
}

/* What a node of the graph saved goes with what came into it: a node drops its input first, and
 * what it saved when it has run (torch/csrc/autograd/engine.cpp, evaluate_function;
 * release_variables). Under torch's checkpoint it holds nothing itself, and what it unpacked goes
 * as it returns (torch/utils/checkpoint.py, _checkpoint_hook). */
static void drop_saved(stw_builder *b, bool again, uint32_t *input, uint32_t *saved) {
    if (again) drop(b, saved);
    drop(b, input);
    if (!again) drop(b, saved);
}

/* Sum over rows of a matrix: a partial sum per block of threads and column in global memory
 * (aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig and ReduceConfig::global_memory_size): 512
 * threads in vectors of 4 columns, blocks as wide as a warp, at least 16 rows per thread. At most
 * so many blocks as run at once, which few sums reach: 132 multiprocessors, of H100 and H200. */
static void sum_rows(stw_builder *b, uint64_t rows, uint64_t columns) {
    enum { VECTOR = 4, THREADS = 512 / VECTOR, WARP = 32, SMS = 132, SM_THREADS = 2048 };
    enum { FEW_VALUES = 16, MANY_VALUES = 256, BLOCKS = SMS * (SM_THREADS / THREADS) };
    uint64_t width = 1, height = 1;
    while (width < WARP && width <= columns / VECTOR / 2) width += width;
    while (height < THREADS / width && height <= rows / 2) height += height;
    const uint64_t each = stw_div_up_u64(rows, height);
    const uint64_t grid = stw_div_up_u64(stw_div_up_u64(columns, VECTOR), width);
    const bool many = each >= MANY_VALUES || each / FEW_VALUES >= height;
    if (columns < THREADS || !many || grid > BLOCKS) return;
    const uint64_t most =
        stw_min_u64(stw_div_up_u64(BLOCKS, grid), stw_div_up_u64(each, FEW_VALUES));
    const uint64_t blocks = stw_max_u64(most, stw_div_up_u64(each, MANY_VALUES));
    if (blocks < 2) return;
    const uint64_t sums = stw_times(stw_times(columns, blocks), stw_times(width, VECTOR));
    uint32_t partial = take(b, stw_times(sums, 4)), semaphores = take(b, stw_times(grid, 4));
    drop(b, &semaphores);
    drop(b, &partial);
}

uint32_t stw_torch_norm_backward(stw_builder *b, const stw_job *job, const stw_torch_shape *shape,
                                 stw_torch_norm *norm, uint32_t grad, uint32_t *weight) {
    const uint64_t elements = stw_times(job->tokens, shape->width);
    const uint64_t wide = stw_times(elements, 4), narrow = stw_times(elements, compute_bytes(job));
    const uint64_t rows = stw_times(job->tokens, shape->rows), row = stw_times(rows, 4);
    const bool again = shape->again;
    uint32_t normed = take(b, narrow), weighted = STW_NO_TENSOR;
    if (weight != NULL) weighted = take(b, narrow);
    if (again) drop(b, &norm->normed);
    if (weight != NULL) {
        *weight = take(b, stw_times(shape->width / shape->rows, compute_bytes(job)));
        sum_rows(b, rows, shape->width / shape->rows);
    }
    drop(b, &weighted);
    drop(b, &grad);
    drop(b, &norm->normed);
    uint32_t up = take(b, wide);
    drop(b, &normed);
    uint32_t to_root = take(b, wide), direct = take(b, wide), sum = take(b, row);
    drop(b, &to_root);
    drop(b, &up);
    uint32_t cube = take(b, row), half = take(b, row), rest = take(b, row);
    drop(b, &half);
    drop(b, &cube);
    drop_saved(b, again, &sum, &norm->root);
    uint32_t mean = take(b, wide);
    drop(b, &rest);
    uint32_t power = take(b, wide), twice = take(b, wide), through = take(b, wide);
    drop(b, &twice);
    drop(b, &power);
    drop_saved(b, again, &mean, &norm->wide);
    drop(b, &norm->with);
    drop(b, &through); /* added to the other in place (input_buffer.cpp, accumulate) */
    uint32_t out = take(b, narrow);
    drop(b, &direct);
    return out;
}

/* ---- gradients of weights ---- */

static bool is_mlp(const stw_tensor *tensor) {
    return tensor->expert || stw_module_is_mlp(tensor->use.module);
}

/* The next matrix of the MLP or of the attention in the order of backward, or all that are left. */
static void weight_grads(stw_torch_layer *l, bool mlp, bool matrices, uint32_t most) {
    for (uint32_t i = l->n_tensors; i-- > 0 && most > 0;) {
        const stw_tensor *tensor = &l->job->model->tensors[l->tensors[i]];
        uint64_t numel = tensor->expert ? tensor->numel / l->job->expert_cut : tensor->numel;
        if (l->grads[i] != STW_NO_TENSOR || is_mlp(tensor) != mlp) continue;
        if ((matrices && tensor->rank < 2) || !stw_job_trains(l->job, l->tensors[i])) continue;
        l->grads[i] = take(l->b, stw_times(numel, compute_bytes(l->job)));
        most--;
    }
}

/* The gradient of a norm's weight: of several the first or the last one. NULL: there is none. */
static uint32_t *norm_grad(const stw_torch_layer *l, stw_weight norm, bool last) {
    uint32_t *found = NULL;
    for (uint32_t i = 0; i < l->n_tensors; i++) {
        const stw_tensor *tensor = &l->job->model->tensors[l->tensors[i]];
        if (tensor->use.weight != norm || !stw_job_trains(l->job, l->tensors[i])) continue;
        if (found == NULL || last) found = &l->grads[i];
    }
    return found;
}

/* ---- products ---- */

static bool is_adapter(const stw_tensor *tensor) { return tensor->use.adapter != STW_ADAPTER_NONE; }

/* The weight of a product of the MLP or the attention, by its place from the end. n_tensors: there
 * is none, as one product makes queries, keys and values. */
static uint32_t weight_at(const stw_torch_layer *l, stw_torch_product which) {
    uint32_t n = which % STW_TORCH_MLP;
    for (uint32_t i = l->n_tensors; i-- > 0;) {
        const stw_tensor *tensor = &l->job->model->tensors[l->tensors[i]];
        if (tensor->rank == 2 && !tensor->expert && !is_adapter(tensor) &&
            is_mlp(tensor) == (which >= STW_TORCH_MLP) && n-- == 0)
            return i;
    }
    return l->n_tensors;
}

/* LoRA's two tensors follow the weight (plan/job/trainable.c). */
static bool is_adapted(const stw_torch_layer *l, uint32_t weight) {
    return weight + 2 < l->n_tensors && is_adapter(&l->job->model->tensors[l->tensors[weight + 1]]);
}

static bool is_trained(const stw_torch_layer *l, uint32_t i) {
    return i < l->n_tensors && stw_job_trains(l->job, l->tensors[i]);
}

static uint64_t rank_bytes(const stw_torch_layer *l) {
    return column(l, l->job->run->trainable.lora_rank);
}

/* Does backward read the input of a product? */
static bool reads_input(const stw_torch_layer *l, stw_torch_product which) {
    const uint32_t weight = weight_at(l, which);
    return weight == l->n_tensors || is_trained(l, weight) || is_adapted(l, weight);
}

bool stw_torch_is_adapted(const stw_torch_layer *l, stw_torch_product which) {
    return is_adapted(l, weight_at(l, which));
}

/* A product, and what LoRA adds to it: base(x) + B(A(x)) * scale (peft/tuners/lora/layer.py,
 * Linear.forward). Backward reads A(x). */
static uint32_t multiply(stw_torch_layer *l, stw_torch_product which, uint64_t bytes, bool keep,
                         stw_torch_saved *s) {
    stw_builder *b = l->b;
    uint32_t out = take(b, bytes), *low = &s->low[which];
    if (!stw_torch_is_adapted(l, which)) return out;
    *low = take(b, rank_bytes(l));
    uint32_t high = take(b, bytes);
    if (!keep) drop(b, low);
    uint32_t scaled = take(b, bytes);
    drop(b, &high);
    uint32_t sum = take(b, bytes);
    drop(b, &out);
    drop(b, &scaled);
    return sum;
}

/* Gradients of one tensor add up: the first sum is a new one, as both are views; later ones are
 * made in place (torch/csrc/autograd/input_buffer.cpp, accumulate). */
typedef struct total {
    uint64_t bytes;
    uint32_t tensor;
    bool owned;
} total;

static void add(stw_torch_layer *l, total *t, uint32_t more) {
    stw_builder *b = l->b;
    if (t->tensor == STW_NO_TENSOR) {
        t->tensor = more;
        return;
    }
    if (!t->owned) {
        uint32_t both = take(b, t->bytes);
        become(b, &t->tensor, both);
        t->owned = true;
    }
    drop(b, &more);
}

static uint32_t weight_grad(stw_torch_layer *l, uint32_t i) {
    const stw_tensor *tensor = &l->job->model->tensors[l->tensors[i]];
    return take(l->b, stw_times(tensor->numel, compute_bytes(l->job)));
}

/* The bias of a weight, n_tensors: none. */
static uint32_t bias_of(const stw_torch_layer *l, uint32_t weight) {
    const stw_tensor *tensors = l->job->model->tensors;
    const stw_weight_use of = tensors[l->tensors[weight]].use;
    for (uint32_t i = 0; i < l->n_tensors; i++) {
        const stw_weight_use use = tensors[l->tensors[i]].use;
        if (use.bias && use.weight == of.weight && use.module == of.module) return i;
    }
    return l->n_tensors;
}

typedef struct product_backward {
    stw_torch_product which;
    uint64_t bytes;         /* of its output */
    uint32_t *grad, *input; /* these go when they have been read; NULL: they stay */
    bool constant;          /* its input has no gradient */
} product_backward;

/* The part of LoRA. */
static void adapter_backward(stw_torch_layer *l, const product_backward *p, uint32_t weight,
                             stw_torch_saved *s, total *dx) {
    stw_builder *b = l->b;
    uint32_t none = STW_NO_TENSOR, more = STW_NO_TENSOR, scaled = l->scaled;
    if (scaled == STW_NO_TENSOR) scaled = take(b, p->bytes);
    l->scaled = STW_NO_TENSOR;
    if (p->constant && p->grad != NULL) drop(b, p->grad);
    l->grads[weight + 2] = weight_grad(l, weight + 2);
    uint32_t low = take(b, rank_bytes(l));
    drop_saved(b, l->again, &scaled, &s->low[p->which]);
    l->grads[weight + 1] = weight_grad(l, weight + 1);
    if (!p->constant) more = take(b, dx->bytes);
    drop_saved(b, l->again, &low, p->input != NULL ? p->input : &none);
    if (!p->constant) add(l, dx, more);
}

/* A product's gradients: of its weight and its input. With a bias the input's comes first
 * (AddmmBackward0 against MmBackward0), and the bias has one too. */
static void multiply_backward(stw_torch_layer *l, const product_backward *p, stw_torch_saved *s,
                              total *dx) {
    stw_builder *b = l->b;
    const uint32_t weight = weight_at(l, p->which);
    uint32_t none = STW_NO_TENSOR, more = STW_NO_TENSOR;
    uint32_t *grad = p->grad != NULL ? p->grad : &none, *input = p->input;
    if (is_adapted(l, weight)) adapter_backward(l, p, weight, s, dx);
    if (input == NULL) input = &none;
    const uint32_t bias = is_trained(l, weight) ? bias_of(l, weight) : l->n_tensors;
    if (bias < l->n_tensors && !p->constant) more = take(b, dx->bytes);
    if (is_trained(l, weight)) l->grads[weight] = weight_grad(l, weight);
    if (bias == l->n_tensors && !p->constant) more = take(b, dx->bytes);
    if (is_trained(l, bias)) {
        l->grads[bias] = weight_grad(l, bias);
        sum_rows(b, l->job->tokens, l->job->model->tensors[l->tensors[bias]].numel);
    }
    drop_saved(b, l->again, grad, input);
    if (!p->constant) add(l, dx, more);
}

/* ---- attention ---- */

static void rotate(stw_torch_layer *l, uint64_t width, uint32_t *in_place) {
    stw_builder *b = l->b;
    uint32_t straight = take(b, column(l, width)), negative = take(b, column(l, width / 2));
    uint32_t turned = take(b, column(l, width));
    drop(b, &negative);
    uint32_t sines = take(b, column(l, width));
    drop(b, &turned);
    *in_place = take(b, column(l, width));
    drop(b, &straight);
    drop(b, &sines);
}

static void rotate_backward(stw_torch_layer *l, uint64_t width, uint32_t *grad) {
    stw_builder *b = l->b;
    uint32_t sines = take(b, column(l, width)), negative = take(b, column(l, width / 2));
    uint32_t low = take(b, column(l, width));
    drop(b, &negative);
    uint32_t high = take(b, column(l, width));
    drop(b, &sines);
    drop(b, &high); /* added to the other half in place */
    uint32_t straight = take(b, column(l, width));
    drop(b, grad);
    drop(b, &straight);
    *grad = low;
}

static uint64_t q_width(const stw_block_facts *f) { return stw_times(f->q_heads, f->qk_dim); }
static uint64_t k_width(const stw_block_facts *f) { return stw_times(f->kv_heads, f->qk_dim); }
static uint64_t v_width(const stw_block_facts *f) { return stw_times(f->kv_heads, f->v_dim); }
static uint64_t o_width(const stw_block_facts *f) { return stw_times(f->q_heads, f->v_dim); }

static stw_torch_shape shape_of(const stw_torch_layer *l, uint64_t width, uint64_t rows,
                                bool last) {
    const stw_weight own = last ? STW_WEIGHT_K_NORM : STW_WEIGHT_Q_NORM;
    const stw_weight norm = rows == 1 ? STW_WEIGHT_NORM : own;
    return (stw_torch_shape){.width = width,
                             .rows = rows,
                             .frozen = norm_grad(l, norm, last) == NULL,
                             .again = l->again};
}

/* The output of the attention's last product. */
static uint32_t attend(stw_torch_layer *l, bool keep, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const stw_block_facts *f = l->facts;
    const stw_torch_shape q_shape = shape_of(l, q_width(f), f->q_heads, false),
                          k_shape = shape_of(l, k_width(f), f->kv_heads, true);
    uint32_t q = multiply(l, STW_TORCH_Q, column(l, q_width(f)), keep, s), k, normed;
    if (l->qk_norm) {
        s->q_norm = stw_torch_norm_forward(b, l->job, &q_shape, keep, &normed);
        become(b, &q, normed);
    }
    k = multiply(l, STW_TORCH_K, column(l, k_width(f)), keep, s);
    if (l->qk_norm) {
        s->k_norm = stw_torch_norm_forward(b, l->job, &k_shape, keep, &normed);
        become(b, &k, normed);
    }
    s->v = multiply(l, STW_TORCH_V, column(l, v_width(f)), keep, s);
    rotate(l, q_width(f), &s->q);
    rotate(l, k_width(f), &s->k);
    drop(b, &q);
    drop(b, &k);
    s->attended = take(b, column(l, o_width(f)));
    s->lse = take(b, stw_times(stw_times(l->job->tokens, 4), f->q_heads));
    if (!keep) drop(b, &s->lse);
    uint32_t out = multiply(l, STW_TORCH_O, column(l, f->hidden), keep, s);
    if (!keep) drop(b, &s->attended);
    if (!keep) drop(b, &s->q);
    if (!keep) drop(b, &s->k);
    if (!keep) drop(b, &s->v);
    if (!keep || !(reads_input(l, STW_TORCH_Q) || reads_input(l, STW_TORCH_K) ||
                   reads_input(l, STW_TORCH_V)))
        drop(b, &s->normed_first);
    return out;
}

/* Heads are transposed: a gradient is copied into rows of tokens before the product's backward. */
static uint32_t in_rows(stw_torch_layer *l, uint32_t grad, uint64_t width) {
    uint32_t copy = take(l->b, column(l, width));
    drop(l->b, &grad);
    return copy;
}

/* The kernel's backward (aten/src/ATen/native/cudnn/MHA.cpp, run_cudnn_SDP_bprop; flash_api.cpp,
 * mha_bwd has the same in parts): dq, dk, dv, and room for the sums of rows, dq in fp32, and dk and
 * dv of all query heads where there are fewer key heads. `out` is the gradient of its output. */
static void kernel_backward(stw_torch_layer *l, stw_torch_saved *s, uint32_t *out, uint32_t d[3]) {
    stw_builder *b = l->b;
    const stw_block_facts *f = l->facts;
    const uint64_t rows = stw_times(stw_times(l->job->tokens, 4), f->q_heads);
    uint64_t room = stw_plus(rows, stw_times(rows, f->qk_dim));
    if (f->kv_heads != f->q_heads)
        room = stw_plus(room, stw_plus(column(l, q_width(f)), column(l, o_width(f))));
    d[0] = take(b, column(l, q_width(f)));
    d[1] = take(b, column(l, k_width(f)));
    d[2] = take(b, column(l, v_width(f)));
    uint32_t work = take(b, room);
    drop(b, &work);
    uint32_t *kept[] = {out, &s->k, &s->q, &s->v, &s->lse, &s->attended};
    uint32_t *again[] = {&s->attended, &s->lse, &s->v, &s->q, &s->k, out};
    for (int i = 0; i < 6; i++) drop(b, l->again ? again[i] : kept[i]);
}

/* From the gradient of the attention's output to that of its input. */
static uint32_t attend_backward(stw_torch_layer *l, uint32_t *grad, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const stw_block_facts *f = l->facts;
    const stw_torch_shape q = shape_of(l, q_width(f), f->q_heads, false),
                          k = shape_of(l, k_width(f), f->kv_heads, true);
    total out = {.bytes = column(l, o_width(f)), .tensor = STW_NO_TENSOR};
    total dx = {.bytes = column(l, f->hidden), .tensor = STW_NO_TENSOR};
    uint32_t d[3];
    product_backward p = {.which = STW_TORCH_O, .bytes = dx.bytes};
    if (l->constant) p.grad = grad;
    multiply_backward(l, &p, s, &out);
    kernel_backward(l, s, &out.tensor, d);
    rotate_backward(l, k_width(f), &d[1]);
    rotate_backward(l, q_width(f), &d[0]);
    p = (product_backward){.which = STW_TORCH_V,
                           .bytes = column(l, v_width(f)),
                           .grad = &d[2],
                           .constant = l->constant};
    multiply_backward(l, &p, s, &dx);
    if (l->qk_norm)
        d[1] = stw_torch_norm_backward(b, l->job, &k, &s->k_norm, d[1],
                                       norm_grad(l, STW_WEIGHT_K_NORM, false));
    d[1] = in_rows(l, d[1], k_width(f));
    p.which = STW_TORCH_K;
    p.bytes = column(l, k_width(f));
    p.grad = &d[1];
    multiply_backward(l, &p, s, &dx);
    if (l->qk_norm)
        d[0] = stw_torch_norm_backward(b, l->job, &q, &s->q_norm, d[0],
                                       norm_grad(l, STW_WEIGHT_Q_NORM, false));
    d[0] = in_rows(l, d[0], q_width(f));
    p.which = STW_TORCH_Q;
    p.bytes = column(l, q_width(f));
    p.grad = &d[0];
    p.input = &s->normed_first;
    multiply_backward(l, &p, s, &dx);
    return dx.tensor;
}

/* ---- the MLP ---- */

static uint64_t mlp_column(const stw_torch_layer *l) {
    return column(l, stw_plus(l->facts->ffn, l->facts->shared_ffn));
}

/* Up to the input of the last product. */
static void mlp(stw_torch_layer *l, bool keep, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const uint64_t bytes = mlp_column(l);
    if (bytes == 0) return;
    if (!l->facts->gated) {
        s->gate = multiply(l, STW_TORCH_UP, bytes, keep, s);
        s->product = take(b, bytes);
        if (!keep) drop(b, &s->gate);
        return;
    }
    s->gate = multiply(l, STW_TORCH_GATE, bytes, keep, s);
    s->active = take(b, bytes);
    if (!keep) drop(b, &s->gate);
    s->up = multiply(l, STW_TORCH_UP, bytes, keep, s);
    s->product = take(b, bytes);
    if (keep) return;
    drop(b, &s->active);
    drop(b, &s->up);
}

static uint32_t mlp_backward(stw_torch_layer *l, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const uint64_t bytes = mlp_column(l), x = column(l, l->facts->hidden);
    uint32_t none = STW_NO_TENSOR, *input = l->facts->experts > 0 ? &none : &s->normed_second;
    uint32_t up, active, gate;
    total product = {.bytes = bytes, .tensor = STW_NO_TENSOR};
    total dx = {.bytes = x, .tensor = STW_NO_TENSOR};
    product_backward p = {.which = STW_TORCH_DOWN, .bytes = x, .input = &s->product};
    multiply_backward(l, &p, s, &product);
    up = take(b, bytes);
    p = (product_backward){.which = STW_TORCH_UP, .bytes = bytes, .grad = &up};
    if (!l->facts->gated) {
        drop_saved(b, l->again, &product.tensor, &s->gate);
        p.input = input;
        multiply_backward(l, &p, s, &dx);
        return dx.tensor;
    }
    active = take(b, bytes);
    if (l->again) drop(b, &s->active);
    if (l->again) drop(b, &s->up);
    drop(b, &product.tensor);
    drop(b, &s->up);
    drop(b, &s->active);
    multiply_backward(l, &p, s, &dx);
    gate = take(b, bytes);
    drop_saved(b, l->again, &active, &s->gate);
    p = (product_backward){.which = STW_TORCH_GATE, .bytes = bytes, .grad = &gate, .input = input};
    multiply_backward(l, &p, s, &dx);
    return dx.tensor;
}

/* ---- routed experts, as grouped products over copies of the tokens ---- */

static uint64_t copies_column(const stw_torch_layer *l, uint64_t width) {
    uint64_t copies = stw_times(l->job->tokens, l->facts->experts_per_token);
    return stw_times(stw_times(stw_scaled(copies, l->job->run->moe.imbalance), width),
                     compute_bytes(l->job));
}

static uint32_t experts(stw_torch_layer *l, bool keep, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const stw_block_facts *f = l->facts;
    const uint64_t x = copies_column(l, f->hidden), inner = copies_column(l, f->expert_ffn);
    const uint64_t index = stw_times(copies_column(l, 1) / compute_bytes(l->job), 8);
    uint32_t scores = take(b, column(l, f->experts)),
             wide = take(b, stw_times(column(l, f->experts), 2));
    s->probs = take(b, stw_times(stw_times(l->job->tokens, 4), f->experts));
    drop(b, &wide);
    for (int i = 0; i < 3; i++) s->order[i] = take(b, index);
    s->copies = take(b, x);
    s->e_gate = take(b, stw_times(inner, 2));
    if (!keep) drop(b, &s->copies);
    s->e_active = take(b, inner);
    s->e_product = take(b, inner);
    if (!keep) drop(b, &s->e_gate);
    if (!keep) drop(b, &s->e_active);
    s->e_down = take(b, x);
    if (!keep) drop(b, &s->e_product);
    uint32_t weighted = take(b, x);
    if (!keep) drop(b, &s->e_down);
    uint32_t ordered = take(b, x);
    drop(b, &weighted);
    uint32_t out = take(b, column(l, f->hidden));
    drop(b, &ordered);
    drop(b, &scores);
    for (int i = 0; i < 3 && !keep; i++) drop(b, &s->order[i]);
    if (!keep) drop(b, &s->probs);
    return out;
}

static uint32_t experts_backward(stw_torch_layer *l, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const stw_block_facts *f = l->facts;
    const uint64_t x = copies_column(l, f->hidden), inner = copies_column(l, f->expert_ffn);
    uint32_t spread = take(b, x), zeros = take(b, x), back = take(b, x);
    drop(b, &zeros);
    drop(b, &spread);
    uint32_t to_weights = take(b, x), down = take(b, x);
    drop(b, &to_weights);
    drop(b, &s->e_down);
    drop(b, &back);
    weight_grads(l, true, true, 1); /* down projections */
    uint32_t product = take(b, inner);
    drop(b, &s->e_product);
    drop(b, &down);
    uint32_t up = take(b, inner), active = take(b, inner);
    drop(b, &s->e_active);
    drop(b, &product);
    uint32_t gate = take(b, inner);
    drop(b, &active);
    uint32_t both = take(b, stw_times(inner, 2));
    drop(b, &s->e_gate);
    drop(b, &up);
    drop(b, &gate);
    weight_grads(l, true, true, 1); /* gate and up projections */
    uint32_t dx = take(b, x);
    drop(b, &s->copies);
    drop(b, &both);
    zeros = take(b, column(l, f->hidden));
    uint32_t out = take(b, column(l, f->hidden));
    drop(b, &zeros);
    drop(b, &dx);
    for (int i = 0; i < 3; i++) drop(b, &s->order[i]);
    drop(b, &s->probs);
    weight_grads(l, true, true, UINT32_MAX); /* the router and the rest */
    uint32_t router = take(b, column(l, f->hidden)), sum = take(b, column(l, f->hidden));
    drop(b, &out);
    drop(b, &router);
    return sum;
}

/* ---- the layer ---- */

/* What checkpoint recomputes ends with the last tensor that is saved: the input of the last
 * product, or of LoRA's second one. */
static void stop_early(stw_torch_layer *l, bool dense, stw_torch_saved *s, uint32_t *residual) {
    stw_builder *b = l->b;
    uint32_t down = STW_NO_TENSOR;
    if (dense && stw_torch_is_adapted(l, STW_TORCH_DOWN)) {
        down = take(b, column(l, l->facts->hidden));
        s->low[STW_TORCH_DOWN] = take(b, rank_bytes(l));
    }
    drop(b, &down);
    drop(b, residual);
}

uint32_t stw_torch_layer_forward(stw_torch_layer *l, bool keep, bool again, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const uint64_t x = column(l, l->facts->hidden);
    const stw_torch_shape first = shape_of(l, l->facts->hidden, 1, false),
                          second = shape_of(l, l->facts->hidden, 1, true);
    const bool dense = mlp_column(l) > 0;
    uint32_t out = STW_NO_TENSOR;
    s->first = stw_torch_norm_forward(b, l->job, &first, keep && !l->constant, &s->normed_first);
    uint32_t attention = attend(l, keep, s), residual = take(b, x);
    drop(b, &attention);
    s->second = stw_torch_norm_forward(b, l->job, &second, keep, &s->normed_second);
    uint32_t routed = l->facts->experts > 0 ? experts(l, keep, s) : STW_NO_TENSOR;
    if (dense) mlp(l, keep, s);
    if (again) {
        stop_early(l, dense, s, &residual);
        drop(b, &routed);
        return STW_NO_TENSOR;
    }
    if (dense) {
        uint32_t down = multiply(l, STW_TORCH_DOWN, x, keep, s);
        if (!keep || !reads_input(l, STW_TORCH_DOWN)) drop(b, &s->product);
        become(b, &routed, down);
    }
    if (!keep || (dense && !reads_input(l, STW_TORCH_UP) && !reads_input(l, STW_TORCH_GATE)))
        drop(b, &s->normed_second);
    out = take(b, x);
    drop(b, &routed);
    drop(b, &residual);
    return out;
}

uint32_t stw_torch_layer_backward(stw_torch_layer *l, uint32_t grad, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const stw_torch_shape first = shape_of(l, l->facts->hidden, 1, false),
                          second = shape_of(l, l->facts->hidden, 1, true);
    uint32_t dx = STW_NO_TENSOR;
    if (mlp_column(l) > 0) dx = mlp_backward(l, s);
    if (l->facts->experts > 0) become(b, &dx, experts_backward(l, s));
    drop(b, &s->normed_second);
    dx = stw_torch_norm_backward(b, l->job, &second, &s->second, dx,
                                 norm_grad(l, STW_WEIGHT_NORM, true));
    drop(b, &dx); /* added to the residual's gradient in place */
    weight_grads(l, true, false, UINT32_MAX);
    dx = attend_backward(l, &grad, s);
    if (l->constant) return STW_NO_TENSOR;
    s->first.with = s->hidden; /* the checkpoint's arguments go with the last tensor that it made */
    dx = stw_torch_norm_backward(b, l->job, &first, &s->first, dx,
                                 norm_grad(l, STW_WEIGHT_NORM, false));
    s->hidden = STW_NO_TENSOR;
    drop(b, &dx);
    weight_grads(l, false, false, UINT32_MAX);
    return grad;
}

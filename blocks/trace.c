/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks/trace.h"

#include <string.h>

#include "core/checked.h"

/* Gradients of one value add up: a first sum with a view is a new tensor, others are made in place
 * (torch/csrc/autograd/input_buffer.cpp, accumulate). */
typedef struct total {
    uint64_t bytes; /* of a view */
    uint32_t tensor, parts[STW_MOST_INPUTS];
    uint8_t n_parts;
    bool is_view;
} total;

typedef struct run {
    stw_trace *t;
    stw_builder *b;
    uint8_t conditions;
    uint8_t stop; /* the call with which a recomputation ends */
    bool stopped;
    uint8_t left[STW_MOST_VALUES]; /* reads to come */
    total grads[STW_MOST_VALUES];
} run;

static void drop(stw_builder *b, uint32_t *tensor) {
    stw_tensor_drop(b, *tensor);
    *tensor = STW_NO_TENSOR;
}

static uint32_t take(run *r, uint64_t bytes) {
    return r->stopped ? STW_NO_TENSOR : stw_tensor_take(r->b, 0, bytes);
}

bool stw_kept_new(stw_pool *pool, const stw_calls *calls, stw_kept *out) {
    out->slots = stw_pool_array(pool, calls->n, sizeof *out->slots);
    out->values = stw_pool_array(pool, calls->n_values, sizeof *out->values);
    if (out->slots == NULL || out->values == NULL) return false;
    memset(out->slots, 0xff, calls->n * sizeof *out->slots);
    memset(out->values, 0xff, calls->n_values * sizeof *out->values);
    return true;
}

/* ---- gradients of weights ---- */

/* Sum over rows of a matrix: a partial sum per block of threads and column in global memory
 * (aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig and ReduceConfig::global_memory_size): 512
 * threads in vectors of 4 columns, blocks as wide as a warp, at least 16 rows per thread. At most
 * so many blocks as run at once, which few sums reach: 132 multiprocessors, of H100 and H200. */
void stw_trace_sum_rows(stw_builder *b, uint64_t rows, uint64_t columns) {
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
    uint32_t partial = stw_tensor_take(b, 0, stw_times(sums, 4)),
             semaphores = stw_tensor_take(b, 0, stw_times(grid, 4));
    drop(b, &semaphores);
    drop(b, &partial);
}

/* What a hook appends are operations: another range begins after them. */
static void after_hook(stw_builder *b) { stw_tensors_instead(b, stw_tensors_begin(b)); }

void stw_trace_grad(stw_builder *b, const stw_trace_hooks *hooks, uint32_t *grads, uint32_t tensor,
                    uint64_t bytes) {
    if (hooks == NULL) {
        grads[tensor] = stw_tensor_take(b, 0, bytes);
        return;
    }
    hooks->grad(hooks->owner, tensor);
    grads[tensor] = STW_GRAD_HOOKED;
    after_hook(b);
}

static void take_grad(run *r, uint32_t tensor) {
    const stw_trace *t = r->t;
    const stw_tensor *of = &t->job->model->tensors[tensor];
    const uint64_t numel = of->expert ? of->numel / t->job->expert_cut : of->numel;
    if (r->stopped) return;
    stw_trace_grad(t->b, t->hooks, t->grads, tensor,
                   stw_times(numel, stw_dtype_bits(t->job->run->precision.compute) / 8));
}

/* Those of the MLP or of all else that have none, from the last one on. */
static void grads_left(run *r, bool mlp, bool matrices, uint32_t most) {
    for (uint32_t i = r->t->n_tensors; i-- > 0 && most > 0;) {
        const stw_tensor *tensor = &r->t->job->model->tensors[r->t->tensors[i]];
        const bool is_mlp = tensor->expert || stw_module_is_mlp(tensor->use.module);
        if (r->t->grads[r->t->tensors[i]] != STW_NO_TENSOR || is_mlp != mlp) continue;
        if ((matrices && tensor->rank < 2) || !stw_job_trains(r->t->job, r->t->tensors[i]))
            continue;
        take_grad(r, r->t->tensors[i]);
        most--;
    }
}

/* ---- gradients of values ---- */

static void add(run *r, uint8_t value, uint32_t *more, bool is_view, uint64_t bytes) {
    total *sum = &r->grads[value];
    if (sum->tensor == STW_NO_TENSOR) {
        *sum = (total){.tensor = *more, .is_view = is_view, .bytes = bytes};
        *more = STW_NO_TENSOR;
        return;
    }
    if (sum->is_view) {
        const uint32_t both = take(r, sum->bytes);
        drop(r->b, &sum->tensor);
        *sum = (total){.tensor = both};
    }
    drop(r->b, more);
}

static void add_to(run *r, const stw_call *c, uint8_t input, uint32_t *more, bool is_view) {
    const uint8_t value = c->in[input];
    total *sum = &r->grads[value];
    const uint64_t bytes = is_view ? r->t->calls->bytes[c->sizes + STW_PRODUCT_IN] : 0;
    if (*more == STW_NO_TENSOR) return;
    if (r->t->calls->values[value].constant) {
        drop(r->b, more);
        return;
    }
    if ((c->parts >> input & 1u) == 0) {
        add(r, value, more, is_view, bytes);
        return;
    }
    sum->parts[sum->n_parts++] = *more;
    *more = STW_NO_TENSOR;
}

/* The gradient of a value, of which all parts are there. */
static uint32_t grad_of(run *r, uint8_t value) {
    total *sum = &r->grads[value];
    if (sum->n_parts == 0) return sum->tensor;
    sum->tensor = take(r, r->t->calls->bytes[r->t->calls->values[value].size]);
    while (sum->n_parts > 0) drop(r->b, &sum->parts[--sum->n_parts]);
    return sum->tensor;
}

static void pass(run *r, const stw_call *c, uint32_t *grad) {
    const uint8_t to = r->t->calls->values[c->in[0]].constant ? c->in[1] : c->in[0];
    r->grads[to] = (total){.tensor = *grad};
    *grad = STW_NO_TENSOR;
}

static void release(run *r, uint8_t value) {
    if (r->left[value] > 0 && --r->left[value] == 0) drop(r->b, &r->t->kept->values[value]);
}

/* ---- steps ---- */

static uint64_t size_of(const run *r, const stw_call *c, uint8_t size) {
    return r->t->calls->bytes[c->sizes + size];
}

static uint64_t rows_of(const run *r) {
    return r->t->calls->rows > 0 ? r->t->calls->rows : r->t->job->tokens;
}

static void do_step(run *r, const stw_call *c, const stw_call_step *step, uint32_t *slots) {
    uint32_t *slot = &slots[step->slot];
    switch ((stw_call_act)step->act) {
    case STW_STEP_NEED:
        if (*slot == STW_NO_TENSOR) *slot = take(r, size_of(r, c, step->size));
        break;
    case STW_STEP_TAKE:
        *slot = take(r, size_of(r, c, step->size));
        break;
    case STW_STEP_DROP:
        drop(r->b, slot);
        break;
    case STW_STEP_RELEASE:
        release(r, c->in[step->slot]);
        break;
    case STW_STEP_RELEASE_OUT:
        release(r, c->out);
        break;
    case STW_STEP_GRAD:
        take_grad(r, r->t->first_tensor + c->weight[step->slot]);
        break;
    case STW_STEP_SUM:
        stw_trace_sum_rows(
            r->b, step->size == 0 ? rows_of(r) : size_of(r, c, step->size) / 4,
            r->t->job->model->tensors[r->t->first_tensor + c->weight[step->slot]].numel);
        break;
    case STW_STEP_NEXT:
        grads_left(r, true, true, 1);
        break;
    case STW_STEP_REST:
        grads_left(r, step->slot == 0, false, UINT32_MAX);
        break;
    case STW_STEP_ADD:
        add_to(r, c, step->size, slot, false);
        break;
    case STW_STEP_ADD_VIEW:
        add_to(r, c, step->size, slot, true);
        break;
    case STW_STEP_PASS:
        pass(r, c, &slots[STW_SLOT_GRAD]);
        break;
    case STW_STEP_STOP:
        r->stopped = (r->conditions & STW_IF_REPEATED) != 0 && c == &r->t->calls->list[r->stop];
        break;
    case STW_STEP_END:
        break;
    }
}

static void hook(const stw_trace *t, uint32_t call, bool backward, bool ended) {
    const stw_trace_hooks *hooks = t->hooks;
    if (hooks == NULL) return;
    (ended ? hooks->leave : hooks->enter)(hooks->owner, t, call, backward);
    after_hook(t->b);
}

static void do_steps(run *r, const stw_call *c, const stw_call_step *steps, uint32_t *slots) {
    uint8_t holds = r->conditions | c->conditions;
    if ((holds & STW_IF_IDLE) != 0) holds &= (uint8_t)~STW_IF_KEPT;
    for (const stw_call_step *s = steps; s->act != STW_STEP_END; s++)
        if ((holds & s->with) == s->with && (holds & s->without) == 0) do_step(r, c, s, slots);
}

/* The region of a call; NULL: none. */
static const stw_call_region *region_of(const stw_calls *calls, uint32_t call) {
    for (uint32_t i = 0; i < calls->n_regions; i++)
        if (calls->regions[i].first <= call && call <= calls->regions[i].last)
            return &calls->regions[i];
    return NULL;
}

/* Is a value made and dropped in a region? */
static bool is_inner(const stw_calls *calls, const stw_call_region *region, uint8_t value) {
    for (uint32_t i = region->first; i <= region->last; i++)
        if (calls->list[i].out == value) return calls->values[value].ends <= region->last;
    return false;
}

/* Values that forward has no reference to after a call.
 * @param region whose inner values are not kept; NULL: none */
static void end_values(run *r, uint32_t call, bool keeps, const stw_call_region *region) {
    const stw_calls *calls = r->t->calls;
    for (uint32_t k = 0; k < calls->n_ended; k++) {
        const uint8_t v = calls->ended[k];
        const stw_value *value = &calls->values[v];
        const bool kept = keeps && !(region != NULL && is_inner(calls, region, v));
        if ((value->ends == call || r->stopped) && (!kept || value->reads == 0))
            drop(r->b, &r->t->kept->values[v]);
    }
}

static void call_forward(run *r, uint32_t i, bool keeps, const stw_call_region *region) {
    const stw_calls *calls = r->t->calls;
    const stw_call *c = &calls->list[i];
    uint32_t *slots = r->t->kept->slots[i];
    do_steps(r, c, stw_function_of(calls, c)->forward, slots);
    r->t->kept->values[c->out] = slots[STW_SLOT_OUT];
    slots[STW_SLOT_OUT] = STW_NO_TENSOR;
    end_values(r, i, keeps, region);
}

uint32_t stw_trace_forward(stw_trace *t, stw_trace_kind kind) {
    const stw_calls *calls = t->calls;
    const bool keeps = kind != STW_TRACE_FORGET, again = kind == STW_TRACE_AGAIN;
    const uint8_t conditions = (uint8_t)((keeps ? STW_IF_KEPT : 0) | (again ? STW_IF_REPEATED : 0));
    run r = {.t = t, .b = t->b, .stop = calls->stop};
    uint32_t *values = t->kept->values;
    for (uint32_t i = 0; i < calls->n && (!r.stopped || t->hooks != NULL); i++) {
        const stw_call_region *region = kind == STW_TRACE_KEEP ? region_of(calls, i) : NULL;
        r.conditions = region != NULL ? 0 : conditions;
        hook(t, i, false, false);
        if (!r.stopped) call_forward(&r, i, keeps, region);
        hook(t, i, false, true);
    }
    const uint32_t out = values[calls->out];
    values[calls->out] = STW_NO_TENSOR;
    return out;
}

/* What needs nothing of forward comes before it is done again. */
static void scale(stw_trace *t, uint32_t stop) {
    const stw_call *last = &t->calls->list[stop];
    uint64_t bytes = 0;
    if (last->function == STW_FUNCTION_ADAPTED_PRODUCT)
        bytes = t->calls->bytes[last->sizes + STW_PRODUCT_OUT];
    if (last->function == STW_FUNCTION_WIDE_NORM)
        bytes = t->calls->bytes[last->sizes + STW_NORM_WIDE];
    t->kept->slots[stop][STW_SLOT_KNOWN] = stw_tensor_take(t->b, 0, bytes);
}

static void region_again(stw_trace *t, const stw_call_region *region) {
    run r = {.t = t, .b = t->b, .conditions = STW_IF_KEPT | STW_IF_REPEATED, .stop = region->stop};
    scale(t, region->stop);
    for (uint32_t i = region->first; i <= region->last && !r.stopped; i++)
        call_forward(&r, i, true, NULL);
}

uint32_t stw_trace_backward(stw_trace *t, uint32_t grad, bool again) {
    const stw_calls *calls = t->calls;
    run r = {.t = t, .b = t->b};
    for (uint32_t v = 0; v < calls->n_values; v++) {
        r.left[v] = calls->values[v].reads;
        r.grads[v] = (total){.tensor = STW_NO_TENSOR};
    }
    if (again) r.left[STW_VALUE_INPUT] = 1;
    r.grads[calls->out].tensor = grad;
    for (uint32_t i = calls->n; i-- > 0;) {
        const stw_call *c = &calls->list[i];
        const stw_call_region *region = again ? NULL : region_of(calls, i);
        if (region != NULL && region->last == i) region_again(t, region);
        r.conditions = again || region != NULL ? STW_IF_REPEATED : 0;
        hook(t, i, true, false);
        if ((c->conditions & STW_IF_IDLE) == 0) {
            t->kept->slots[i][STW_SLOT_GRAD] = grad_of(&r, c->out);
            do_steps(&r, c, stw_function_of(calls, c)->backward, t->kept->slots[i]);
        }
        hook(t, i, true, true);
    }
    return r.grads[STW_VALUE_INPUT].tensor;
}

void stw_trace_scale(stw_trace *t) { scale(t, t->calls->stop); }

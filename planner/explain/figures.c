/* SPDX-License-Identifier: Apache-2.0 */
/* What the plan has for the moment of the failure, and what a size of the plan says of a request
 * whose stack does not. */
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "planner/explain/parts.h"

/* Texts have two decimals. */
static const double SAME = 0.005;

static bool has(const stw_plan *plan, bool host, int phase) {
    const uint32_t n = host ? plan->job->n_node_kinds : plan->job->n_kinds;
    const stw_peaks *peaks = host ? plan->node_peaks : plan->peaks;
    for (uint32_t k = 0; k < n && peaks != NULL; k++)
        if (peaks[k].has[phase]) return true;
    return false;
}

/* The kind of rank or node that holds most in a phase. */
static uint32_t worst_of(const stw_plan *plan, bool host, int phase, uint64_t *bytes) {
    const uint32_t n = host ? plan->job->n_node_kinds : plan->job->n_kinds;
    const stw_peaks *peaks = host ? plan->node_peaks : plan->peaks;
    uint32_t worst = 0;
    *bytes = 0;
    for (uint32_t k = 0; k < n && peaks != NULL; k++) {
        if (!peaks[k].has[phase]) continue;
        const uint64_t here = peaks[k].phase[phase][host ? STW_TIER_HOST : STW_TIER_GPU].total;
        if (here <= *bytes) continue;
        *bytes = here;
        worst = k;
    }
    return worst;
}

/* The phase that the plan is asked for: that of the failure, a step that it has, or the highest. */
static int phase_in_plan(const stw_explanation *e) {
    static const int steps[] = {STW_PHASE_FIRST_OPTIMIZER_STEP, STW_PHASE_OPTIMIZER_STEP};
    const stw_plan *plan = e->plan;
    int highest = STW_N_PHASES;
    uint64_t most = 0, bytes;
    if (e->phase != STW_N_PHASES && has(plan, e->on_host, e->phase)) return e->phase;
    for (int i = 0; i < 2; i++)
        if ((e->phase == steps[0] || e->phase == steps[1]) && has(plan, e->on_host, steps[i]))
            return steps[i];
    for (int p = 0; p < STW_N_PHASES; p++) {
        (void)worst_of(plan, e->on_host, p, &bytes);
        if (bytes <= most) continue;
        most = bytes;
        highest = p;
    }
    return highest;
}

/* Frameworks make state where they start that the plan has in a later phase: moments above all.
 * @param phase of the failure, as the plan has it
 * @return the phase; of a load without the component, the first phase that has it */
static int phase_with_component(const stw_explanation *e, int phase) {
    /* the step that makes moments; phases before it have them in later iterations */
    static const int first[] = {STW_PHASE_LOAD, STW_PHASE_FIRST_OPTIMIZER_STEP};
    const stw_tier tier = e->on_host ? STW_TIER_HOST : STW_TIER_GPU;
    const stw_peaks *peaks = e->on_host ? e->plan->node_peaks : e->plan->peaks;
    uint64_t bytes;
    if (phase != STW_PHASE_LOAD || e->phase != phase || e->component == STW_N_COMPONENTS)
        return phase;
    for (int i = 0; i < 2 + STW_N_PHASES; i++) {
        const int p = i < 2 ? first[i] : i - 2;
        const uint32_t kind = worst_of(e->plan, e->on_host, p, &bytes);
        if (bytes > 0 && peaks[kind].phase[p][tier].components[e->component] > 0) return p;
    }
    return phase;
}

static void add_part(stw_explanation *e, stw_component component, uint64_t planned) {
    for (uint32_t i = 0; i < e->n_parts; i++)
        if (e->parts[i].component == component) {
            e->parts[i].planned = planned;
            return;
        }
    if (planned > 0)
        e->parts[e->n_parts++] = (stw_explained_part){component, STW_NOT_SAID, planned};
}

/* Largest first, by what was held or else planned. */
static uint64_t size_of(const stw_explained_part *p) {
    const uint64_t held = p->held == STW_NOT_SAID ? 0 : p->held;
    return stw_max_u64(held, p->planned == STW_NOT_SAID ? 0 : p->planned);
}

static void sort_parts(stw_explanation *e) {
    for (uint32_t i = 1; i < e->n_parts; i++)
        for (uint32_t k = i; k > 0 && size_of(&e->parts[k]) > size_of(&e->parts[k - 1]); k--) {
            const stw_explained_part swapped = e->parts[k];
            e->parts[k] = e->parts[k - 1];
            e->parts[k - 1] = swapped;
        }
}

/* ---- sizes ---- */

static bool same(uint64_t asked, uint64_t bytes) {
    return bytes > 0 && fabs((double)asked - (double)bytes) <= SAME * (double)bytes;
}

/* Is the vocabulary as wide as something else than an embedding and a head? */
static bool is_common_width(const stw_model *model) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        n += model->tensors[t].rank > 0 && model->tensors[t].shape[0] == model->vocab;
    return n > 2;
}

static bool are_words(const stw_explanation *e, uint64_t tokens, unsigned *width) {
    const uint64_t elements = stw_times(tokens, e->plan->model->vocab);
    for (*width = 4; *width >= 2; *width -= 2)
        if (same(e->failure->asked, stw_times(elements, *width))) return true;
    return false;
}

/* Evaluation has a batch of its own: a power of two.
 * @param tokens out */
static bool is_logits(const stw_explanation *e, uint64_t *tokens, unsigned *width) {
    enum { FEWEST = 256, MOST = 1 << 20 };
    const bool evaluates = e->part != NULL && strcmp(e->part, "evaluation") == 0;
    *tokens = e->plan->job->tokens;
    if (is_common_width(e->plan->model)) return false;
    if (are_words(e, *tokens, width)) return true;
    for (*tokens = FEWEST; evaluates && *tokens <= MOST; *tokens = *tokens + *tokens)
        if (are_words(e, *tokens, width)) return true;
    return false;
}

static const stw_tensor *tensor_like(const stw_explanation *e, unsigned *width) {
    const stw_model *model = e->plan->model;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        for (*width = 2; *width <= 4; *width += 2)
            if (same(e->failure->asked, stw_times(model->tensors[t].numel, *width)))
                return &model->tensors[t];
    return NULL;
}

/* A request of the size of all logits is for these, whatever the module that makes them. */
static void take_sizes(stw_explanation *e) {
    uint64_t tokens = 0;
    unsigned width = 0;
    if (e->failure == NULL || e->failure->asked == STW_NOT_SAID || e->failure->asked < 1 << 20)
        return;
    const bool passes = e->phase == STW_PHASE_FORWARD_BACKWARD || e->phase == STW_PHASE_LOG_PROB;
    const bool open = e->component == STW_N_COMPONENTS ||
                      (e->component == STW_COMPONENT_ACTIVATIONS && e->phase_from != NULL);
    if (!passes || !open) return;
    if (is_logits(e, &tokens, &width)) {
        e->component = STW_COMPONENT_LOGITS;
        e->component_from = stw_pool_printf(
            e->pool, "the request is %llu tokens x %llu words x %u bytes",
            (unsigned long long)tokens, (unsigned long long)e->plan->model->vocab, width);
        return;
    }
    const bool makes_grads = e->part != NULL && strcmp(e->part, "backward") == 0;
    const bool unknown = e->component == STW_N_COMPONENTS && makes_grads;
    const stw_tensor *t = unknown ? tensor_like(e, &width) : NULL;
    if (t == NULL) return;
    e->component = STW_COMPONENT_GRADS;
    e->component_from = stw_pool_printf(e->pool,
                                        "the request is as large as the gradient of %s, %u "
                                        "bytes an element",
                                        t->name, width);
}

void stw_explain_figures(stw_explanation *e) {
    const stw_plan *plan = e->plan;
    if (plan == NULL || plan->peaks == NULL) return;
    take_sizes(e);
    const int asked = phase_in_plan(e), phase = phase_with_component(e, asked);
    if (phase == STW_N_PHASES) return;
    e->planned_later = phase != asked;
    const uint32_t kind = worst_of(plan, e->on_host, phase, &e->planned_bytes);
    const stw_peak *peak = &(e->on_host ? plan->node_peaks : plan->peaks)[kind]
                                .phase[phase][e->on_host ? STW_TIER_HOST : STW_TIER_GPU];
    e->planned_phase = (stw_phase)phase;
    e->planned_limit = e->on_host ? stw_plan_host_capacity(plan) : stw_plan_gpu_capacity(plan);
    if (!e->on_host) {
        e->planned_allocated = stw_peak_allocated(peak);
        if (plan->shown != NULL)
            e->planned_reserved = stw_peak_reserved(&plan->shown[kind].phase[phase][STW_TIER_GPU]);
    }
    if (e->component != STW_N_COMPONENTS) e->planned_component = peak->components[e->component];
    for (unsigned c = 0; c < STW_N_COMPONENTS; c++)
        if (c != STW_COMPONENT_SLACK) add_part(e, (stw_component)c, peak->components[c]);
    sort_parts(e);
}

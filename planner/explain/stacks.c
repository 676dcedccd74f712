/* SPDX-License-Identifier: Apache-2.0 */
/* Phase and component by the stack of the failure, else by how far the log has come. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "planner/explain/parts.h"
#include "planner/frameworks/frames.h"

static void add(stw_explanation *e, const char **list, uint32_t *n, const char *text) {
    const char *kept = *n < STW_MOST_EXPLAINED ? stw_pool_string(e->pool, text) : NULL;
    if (kept != NULL) list[(*n)++] = kept;
}

void stw_explain_advise(stw_explanation *e, const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    add(e, e->advice, &e->n_advice, text);
}

void stw_explain_unknown(stw_explanation *e, const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    add(e, e->unknown, &e->n_unknown, text);
}

/* "torch/optim/adamw.py:148 in step" */
static const char *name_frame(stw_explanation *e, const stw_frame *f) {
    if (f->line > 0)
        return stw_pool_printf(e->pool, "%s:%llu in %s", f->file, (unsigned long long)f->line,
                               f->function);
    return stw_pool_printf(e->pool, "%s in %s", f->file, f->function);
}

static void take_progress(stw_explanation *e, bool *first_step) {
    const stw_failure *f = e->failure;
    size_t length = strlen(e->found->text);
    if (f != NULL && f->offset < length) length = f->offset;
    const stw_log_progress p = stw_log_progress_of(e->found->text, length);
    e->iterations = p.iterations;
    e->of_iterations = p.of;
    *first_step = p.iterations == 0;
    if (e->phase != STW_N_PHASES || e->phase_from != NULL || p.mark == NULL) return;
    e->phase = (int)p.phase;
    e->phase_from =
        stw_pool_printf(e->pool, "the log's last mark is \"%s\"", p.mark + strspn(p.mark, "* "));
}

/* CUDA's own words are of any call, an earlier one, too. */
static bool is_of_cuda(const stw_failure *f) {
    return f->kind == STW_FAILURE_DEVICE &&
           (strcmp(f->who, "CUDA") == 0 || strcmp(f->who, "HIP") == 0);
}

static bool is_of_library(const stw_failure *f) {
    return f->kind == STW_FAILURE_DEVICE && !is_of_cuda(f) && strcmp(f->who, "vLLM") != 0;
}

/* Phases that kinds of failures are in by themselves. */
static void take_kind(stw_explanation *e) {
    const stw_failure *f = e->failure;
    const bool cache = f->kind == STW_FAILURE_CACHE_NONE || f->kind == STW_FAILURE_CACHE_SHORT;
    if (e->phase == STW_N_PHASES && (cache || f->kind == STW_FAILURE_START)) {
        e->phase = STW_PHASE_ROLLOUT;
        e->part = "start of the inference engine";
        e->phase_from = "the message is of an inference engine that starts";
    }
    if (cache) {
        e->component = STW_COMPONENT_KV_CACHE;
        e->component_from = "the message speaks of the KV cache";
    } else if (f->kind == STW_FAILURE_DEVICE && strcmp(f->who, "NCCL") == 0) {
        e->component = STW_COMPONENT_COMM;
        e->component_from = "buffers of NCCL, beside torch's allocator";
    } else if (is_of_library(f) && e->component == STW_N_COMPONENTS) {
        e->component = STW_COMPONENT_CONTEXT;
        e->component_from = "handles and workspaces of CUDA, beside torch's allocator";
    } else if (f->kind == STW_FAILURE_SHARED_MEMORY) {
        e->component = STW_COMPONENT_DATA_LOADERS;
        e->component_from = "batches of data loaders are in /dev/shm";
    }
}

/* What a phase allocates where no frame says more; backward makes gradients and temporaries, and
 * evaluation keeps nothing for it. */
static stw_component usual_component(int phase, const char *part) {
    switch (phase) {
    case STW_PHASE_LOAD:
        return STW_COMPONENT_PARAMS;
    case STW_PHASE_FIRST_OPTIMIZER_STEP:
        return STW_COMPONENT_EXP_AVG;
    case STW_PHASE_OPTIMIZER_STEP:
        return STW_COMPONENT_STAGE;
    case STW_PHASE_LOG_PROB:
        return STW_COMPONENT_ACTIVATIONS;
    case STW_PHASE_FORWARD_BACKWARD:
        if (part != NULL && strcmp(part, "forward") == 0) return STW_COMPONENT_ACTIVATIONS;
        return STW_N_COMPONENTS;
    default:
        return STW_N_COMPONENTS;
    }
}

/* ---- what was held ---- */

static stw_component component_of(const stw_live_stack *h) {
    const stw_stack_component c = stw_stack_component_of(h->frames, h->n_frames);
    const stw_stack_phase p = stw_stack_phase_of(h->frames, h->n_frames);
    /* what a reduction has made and is still alive are the sharded gradients */
    if (c.component == STW_COMPONENT_REDUCE) return STW_COMPONENT_GRADS;
    if (c.component != STW_N_COMPONENTS && c.component != STW_COMPONENT_STAGE) return c.component;
    if (p.phase == STW_PHASE_FORWARD_BACKWARD && p.part != NULL && strcmp(p.part, "backward") == 0)
        return STW_COMPONENT_GRADS;
    return usual_component((int)p.phase, p.part);
}

static stw_explained_part *part_of(stw_explanation *e, stw_component component) {
    for (uint32_t i = 0; i < e->n_parts; i++)
        if (e->parts[i].component == component) return &e->parts[i];
    stw_explained_part *made = &e->parts[e->n_parts++];
    *made = (stw_explained_part){component, STW_NOT_SAID, STW_NOT_SAID};
    return made;
}

static void sum_held(stw_explanation *e) {
    for (size_t i = 0; i < e->found->n_held; i++) {
        const stw_live_stack *h = &e->found->held[i];
        const stw_component c = component_of(h);
        if (c == STW_N_COMPONENTS) {
            e->held_unknown = stw_plus(e->held_unknown, h->bytes);
            continue;
        }
        stw_explained_part *part = part_of(e, c);
        part->held = stw_plus(part->held == STW_NOT_SAID ? 0 : part->held, h->bytes);
    }
}

/* ---- all ---- */

/* Why no component is known of a failure that has a stack. */
static void say_no_component(stw_explanation *e) {
    if (is_of_cuda(e->failure))
        stw_explain_unknown(e, "the component: CUDA does not say for what it was asked");
    else if (e->component_from != NULL)
        stw_explain_unknown(e, "the component: %s allocates more than one", e->component_from);
    else if (e->part != NULL && strcmp(e->part, "backward") == 0)
        stw_explain_unknown(e, "the component: backward runs in C++, where gradients and "
                               "temporaries have one stack");
    else
        stw_explain_unknown(e, "the component: no frame says what the allocation is for");
    e->component_from = NULL;
}

void stw_explain_untold(stw_explanation *e) {
    const stw_failure *f = e->failure;
    if (f == NULL) return;
    if (e->phase == STW_N_PHASES && e->phase_from != NULL)
        stw_explain_unknown(e, "the phase: several call %s", e->phase_from);
    else if (e->phase == STW_N_PHASES)
        stw_explain_unknown(e, "the phase: %s",
                            f->n_frames > 0 ? "no frame of the stack belongs to a known one"
                                            : "the text has no stack, and its lines do not say");
    if (e->phase == STW_N_PHASES) e->phase_from = NULL;
    if (e->component == STW_N_COMPONENTS && f->n_frames > 0)
        say_no_component(e);
    else if (e->component == STW_N_COMPONENTS && e->phase != STW_N_PHASES)
        stw_explain_unknown(e, "the component: the text has no stack");
    if (is_of_cuda(f) && f->n_frames > 0)
        stw_explain_unknown(e,
                            "whether the stack is of the call that failed: CUDA may report an "
                            "error at a later call (CUDA_LAUNCH_BLOCKING=1 shows the right one)");
}

void stw_explain_stacks(stw_explanation *e) {
    const stw_failure *f = e->failure;
    bool first_step = false;
    if (f != NULL) {
        const stw_stack_phase p = stw_stack_phase_of(f->frames, f->n_frames);
        const stw_stack_component c = stw_stack_component_of(f->frames, f->n_frames);
        e->phase = (int)p.phase;
        e->part = p.part;
        if (p.frame != NULL) e->phase_from = name_frame(e, p.frame);
        if (c.frame != NULL) e->component_from = name_frame(e, c.frame);
        e->component = (int)c.component;
    }
    take_progress(e, &first_step);
    if (e->phase == STW_PHASE_OPTIMIZER_STEP && first_step)
        e->phase = STW_PHASE_FIRST_OPTIMIZER_STEP;
    if (f == NULL) return;
    take_kind(e);
    if (e->component == STW_N_COMPONENTS && e->component_from == NULL && f->n_frames > 0 &&
        (f->kind == STW_FAILURE_ALLOCATOR || f->kind == STW_FAILURE_HOST_ALLOC)) {
        e->component = (int)usual_component(e->phase, e->part);
        if (e->component != STW_N_COMPONENTS) e->component_from = "what this phase allocates";
    }
    sum_held(e);
    if (e->phase == STW_PHASE_OPTIMIZER_STEP && e->iterations == STW_NOT_SAID)
        stw_explain_unknown(e, "whether it was the first step: no line counts iterations");
}

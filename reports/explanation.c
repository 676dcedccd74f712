/* SPDX-License-Identifier: Apache-2.0 */
/* Why memory ended, for a terminal, Markdown, CSV and JSON (stowage.explanation/1). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "plan/measured/explanation.h"
#include "reports/facts.h"
#include "reports/plan_sections.h"
#include "reports/reports.h"
#include "reports/table.h"

/* What a screen has of each, the most first: as much as fits into its lines is shown. */
static const struct room {
    uint32_t parts, changes, unknown;
    bool settings;
} rooms[] = {{5, 3, 3, true}, {5, 2, 3, true},  {3, 2, 3, true}, {0, 2, 3, true},
             {0, 1, 3, true}, {0, 1, 2, false}, {0, 1, 1, false}};
enum { N_ROOMS = sizeof rooms / sizeof rooms[0], SCREEN = 24 };

typedef struct writing {
    const stw_explanation *e;
    stw_format format;
    bool all;
    struct room room;
    stw_pool *pool;
    stw_text *out;
} writing;

static bool said(uint64_t value) { return value != STW_NOT_SAID; }

#define SAY(w, ...) stw_doc_line((w)->out, (w)->format, __VA_ARGS__)

static void put_where(const writing *w) {
    const stw_explanation *e = w->e;
    const stw_failure *f = e->failure;
    char who[160] = "", line[48] = "";
    if (f == NULL) return;
    if (said(f->rank)) snprintf(who, sizeof who, ", rank %" PRIu64, f->rank);
    if (said(f->device))
        snprintf(who + strlen(who), sizeof who - strlen(who), ", GPU %" PRIu64, f->device);
    if (f->alike > 0)
        snprintf(who + strlen(who), sizeof who - strlen(who), ", and %zu more like it", f->alike);
    if (f->line > 0) snprintf(line, sizeof line, " in line %zu", f->line);
    SAY(w, "Said by %s%s%s.", f->who, line, who);
    if (w->all) SAY(w, "It says: %s", f->text);
}

static void put_phase(const writing *w) {
    const stw_explanation *e = w->e;
    char done[96] = "";
    if (e->failure == NULL) return;
    if (said(e->iterations) && said(e->of_iterations))
        snprintf(done, sizeof done, " after iteration %" PRIu64 " of %" PRIu64, e->iterations,
                 e->of_iterations);
    else if (said(e->iterations))
        snprintf(done, sizeof done, " after iteration %" PRIu64, e->iterations);
    if (e->phase != STW_N_PHASES)
        SAY(w, "Phase: %s%s%s%s%s (%s).", stw_phase_name((stw_phase)e->phase),
            e->part != NULL ? ", " : "", e->part != NULL ? e->part : "", done[0] != '\0' ? "," : "",
            done, e->phase_from != NULL ? e->phase_from : "");
    else if (done[0] != '\0')
        SAY(w, "Phase: unknown,%s.", done);
    if (e->component != STW_N_COMPONENTS)
        SAY(w, "Component: %s (%s).", stw_component_name((stw_component)e->component),
            e->component_from != NULL ? e->component_from : "");
}

static void put_bytes(const writing *w) {
    const stw_explanation *e = w->e;
    const stw_failure *f = e->failure;
    const bool cache = f != NULL && f->kind == STW_FAILURE_CACHE_SHORT;
    stw_text line = STW_TEXT_INIT;
    const struct {
        const char *before, *after;
        uint64_t bytes;
    } figures[] = {
        {cache ? "one sequence needs " : "asked for ", "", f != NULL ? f->asked : STW_NOT_SAID},
        {"", " allocated", f != NULL ? f->allocated : STW_NOT_SAID},
        {"", " reserved and unused", f != NULL ? f->unused : STW_NOT_SAID},
        {"largest piece of it ", "", f != NULL ? f->largest_unused : STW_NOT_SAID},
        {"", cache ? " left for the KV cache" : " free on the GPU",
         f != NULL ? f->free : STW_NOT_SAID},
        {"", " may be taken", f != NULL ? f->allowed : STW_NOT_SAID},
        {"GPU ", "", f != NULL ? f->capacity : STW_NOT_SAID}};
    if (f == NULL || e->on_host) return;
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        if (said(figures[i].bytes))
            stw_text_printf(&line, "%s%s%s%s", line.length > 0 ? ", " : "", figures[i].before,
                            stw_word_size(figures[i].bytes).text, figures[i].after);
    if (line.length > 0) SAY(w, "Bytes: %s.", line.data);
    if (line.failed) w->out->failed = true;
    stw_text_free(&line);
}

static void put_plan(const writing *w) {
    const stw_explanation *e = w->e;
    char more[160] = "", which[64] = "";
    if (!said(e->planned_bytes)) return;
    if (said(e->planned_reserved) && said(e->planned_allocated))
        snprintf(more, sizeof more, " (%s allocated, %s reserved)",
                 stw_word_gib(e->planned_allocated).text, stw_word_gib(e->planned_reserved).text);
    if (e->planned_later)
        snprintf(which, sizeof which, ", which makes %s",
                 stw_component_name((stw_component)e->component));
    else if ((int)e->planned_phase != e->phase)
        snprintf(which, sizeof which, ", its highest phase");
    SAY(w, "The plan has %s%s per %s in %s%s, of %s.", stw_word_gib(e->planned_bytes).text, more,
        e->on_host ? "node" : "GPU", stw_phase_name(e->planned_phase), which,
        stw_word_gib(e->planned_limit).text);
    if (said(e->planned_component) && e->component != STW_N_COMPONENTS)
        SAY(w, "Of these %s are %s.", stw_word_gib(e->planned_component).text,
            stw_component_name((stw_component)e->component));
    if (e->beyond > 0)
        SAY(w, "The run needed at least %s beyond the plan at this moment.",
            stw_word_size(e->beyond).text);
}

static void put_parts(const writing *w) {
    static const char *const heads[] = {"component", ">at the failure", ">in the plan"};
    const stw_explanation *e = w->e;
    stw_table t;
    if (e->n_parts == 0 || (!w->all && w->room.parts == 0)) return;
    stw_table_begin(&t, w->pool, heads, 3);
    for (uint32_t i = 0; i < e->n_parts && (w->all || i < w->room.parts); i++) {
        const stw_explained_part *p = &e->parts[i];
        stw_table_cell(&t, "%s", stw_component_name(p->component));
        stw_table_cell(&t, "%s", said(p->held) ? stw_word_gib(p->held).text : "");
        stw_table_cell(&t, "%s", said(p->planned) ? stw_word_gib(p->planned).text : "");
    }
    if (e->held_unknown > 0) {
        stw_table_cell(&t, "not known");
        stw_table_cell(&t, "%s", stw_word_gib(e->held_unknown).text);
        stw_table_cell(&t, "%s", "");
    }
    if (w->format == STW_FORMAT_TERMINAL) stw_text_printf(w->out, "\n");
    stw_table_write(&t, w->format, w->out);
    if (w->format == STW_FORMAT_TERMINAL) stw_text_printf(w->out, "\n");
}

static void put_gpus(const writing *w) {
    const stw_failures *found = w->e->found;
    for (size_t i = 0; i < found->n_gpus && (w->all || i < 4); i++) {
        const stw_gpu_use *g = &found->gpus[i];
        SAY(w, "GPU %" PRIu64 ": %s%s%s used%s (%s).", g->device, stw_word_gib(g->used).text,
            said(g->capacity) ? " of " : "",
            said(g->capacity) ? stw_word_gib(g->capacity).text : "", g->lines > 1 ? " at most" : "",
            g->from);
    }
    for (size_t i = 0; i < found->n_processes && (w->all || i < 4); i++) {
        const stw_gpu_process *p = &found->processes[i];
        SAY(w, "Process %" PRIu64 " (%s) on GPU %" PRIu64 ": %s.", p->pid, p->name, p->device,
            said(p->bytes) ? stw_word_gib(p->bytes).text : "not shown");
    }
    if (w->e->failure == NULL && said(found->logged_reserved))
        SAY(w, "The log says at most %s reserved.", stw_word_gib(found->logged_reserved).text);
}

static void put_change(const writing *w, const stw_explained_change *c, bool first) {
    char keys[512], effect[200], peak[64] = "";
    stw_fix_options(c->set, c->n, keys, sizeof keys);
    if (!w->e->on_host)
        snprintf(peak, sizeof peak, "peak %s per GPU", stw_word_gib(c->gpu_bytes).text);
    else
        snprintf(peak, sizeof peak, "peak %s per node", stw_word_gib(c->host_bytes).text);
    snprintf(effect, sizeof effect, "%s%s%s%s", peak, isfinite(c->iteration_s) ? ", " : "",
             isfinite(c->iteration_s) ? stw_word_seconds(c->iteration_s).text : "",
             isfinite(c->iteration_s) ? " per iteration" : "");
    stw_doc_item(w->out, w->format, "%s: %s; %s%s", keys, c->why, effect,
                 c->at_risk ? "; at risk" : "");
    if (!first || c->settings == NULL || !(w->all || w->room.settings)) return;
    for (const char *at = c->settings; *at != '\0';) {
        const size_t n = strcspn(at, "\n");
        SAY(w, "    %.*s", (int)n, at);
        at += n + (at[n] == '\n');
    }
}

/* The message itself names the inference engine. */
static bool is_of_inference(const stw_failure *f) {
    return f->kind == STW_FAILURE_START || f->kind == STW_FAILURE_CACHE_NONE ||
           f->kind == STW_FAILURE_CACHE_SHORT;
}

static void put_changes(const writing *w) {
    const stw_explanation *e = w->e;
    if (e->n_changes > 0)
        SAY(w, "What to change (planned within %s%s):", stw_word_gib(e->planned_within).text,
            e->beyond > 0 ? ", less what the run needed beyond the plan" : "");
    for (uint32_t i = 0; i < e->n_changes && (w->all || i < w->room.changes); i++)
        put_change(w, &e->changes[i], i == 0);
    if (e->n_changes == 0 && e->n_advice > 0) SAY(w, "What to change:");
    for (uint32_t i = 0; i < e->n_advice; i++) stw_doc_item(w->out, w->format, "%s.", e->advice[i]);
    if (e->plan_command == NULL || e->failure == NULL) return;
    SAY(w, "A plan says by how much each change helps: %s%s, then stowage explain %s plan.json",
        e->plan_command,
        e->program == NULL && !is_of_inference(e->failure) ? " (no known framework is in the stack)"
                                                           : "",
        e->found->file);
}

static void put_unknown(const writing *w) {
    const stw_explanation *e = w->e;
    for (uint32_t i = 0; i < e->n_unknown && (w->all || i < w->room.unknown); i++)
        SAY(w, "Unknown: %s.", e->unknown[i]);
}

static void put_frames(const writing *w) {
    const stw_failure *f = w->e->failure;
    if (f == NULL || f->n_frames == 0 || !w->all) return;
    stw_doc_heading(w->out, w->format, "Stack");
    for (size_t i = 0; i < f->n_frames; i++)
        SAY(w, "%s:%" PRIu64 " in %s", f->frames[i].file, f->frames[i].line, f->frames[i].function);
}

static void put_all(const writing *w) {
    SAY(w, "%s", w->e->cause_text);
    put_where(w);
    put_phase(w);
    put_bytes(w);
    put_plan(w);
    put_parts(w);
    put_gpus(w);
    put_changes(w);
    put_unknown(w);
    put_frames(w);
}

/* ---- JSON ---- */

/* Absent figures are null. */
static void put_u64(stw_json *j, const char *key, uint64_t value) {
    if (said(value))
        stw_json_u64(j, key, value);
    else
        stw_json_null(j, key);
}

static void put_failure(stw_json *j, const stw_failure *f) {
    stw_json_begin_object(j, "failure");
    stw_json_string(j, "kind", stw_failure_name(f->kind));
    stw_json_string(j, "who", f->who);
    stw_json_string(j, "text", f->text);
    const struct {
        const char *key;
        uint64_t value;
    } figures[] = {{"line", f->line > 0 ? f->line : STW_NOT_SAID},
                   {"alike", f->alike},
                   {"rank", f->rank},
                   {"device", f->device},
                   {"pid", f->pid},
                   {"asked_bytes", f->asked},
                   {"capacity_bytes", f->capacity},
                   {"free_bytes", f->free},
                   {"process_bytes", f->used_by_process},
                   {"allowed_bytes", f->allowed},
                   {"allocated_bytes", f->allocated},
                   {"unused_bytes", f->unused},
                   {"largest_unused_bytes", f->largest_unused},
                   {"other_processes_bytes", f->other_processes},
                   {"host_used_bytes", f->used},
                   {"host_limit_bytes", f->limit},
                   {"wanted_tokens", f->wanted_tokens},
                   {"cache_tokens", f->cache_tokens}};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        put_u64(j, figures[i].key, figures[i].value);
    stw_json_double(j, "gpu_share", f->share);
    stw_json_string(j, "process", f->process);
    stw_json_begin_array(j, "frames");
    for (size_t i = 0; i < f->n_frames; i++) {
        stw_json_begin_object(j, NULL);
        stw_json_string(j, "file", f->frames[i].file);
        stw_json_u64(j, "line", f->frames[i].line);
        stw_json_string(j, "function", f->frames[i].function);
        stw_json_string(j, "code", f->frames[i].code);
        stw_json_end(j);
    }
    stw_json_end(j);
    stw_json_end(j);
}

static void put_json_gpus(stw_json *j, const stw_failures *found) {
    stw_json_begin_array(j, "gpus");
    for (size_t i = 0; i < found->n_gpus; i++) {
        stw_json_begin_object(j, NULL);
        stw_json_u64(j, "device", found->gpus[i].device);
        put_u64(j, "used_bytes", found->gpus[i].used);
        put_u64(j, "capacity_bytes", found->gpus[i].capacity);
        stw_json_string(j, "from", found->gpus[i].from);
        stw_json_end(j);
    }
    stw_json_end(j);
    stw_json_begin_array(j, "processes");
    for (size_t i = 0; i < found->n_processes; i++) {
        stw_json_begin_object(j, NULL);
        put_u64(j, "device", found->processes[i].device);
        put_u64(j, "pid", found->processes[i].pid);
        stw_json_string(j, "name", found->processes[i].name);
        put_u64(j, "bytes", found->processes[i].bytes);
        stw_json_end(j);
    }
    stw_json_end(j);
}

static void put_json_plan(stw_json *j, const stw_explanation *e) {
    stw_json_begin_object(j, "plan");
    stw_json_string(j, "phase",
                    (int)e->planned_phase == STW_N_PHASES ? NULL
                                                          : stw_phase_name(e->planned_phase));
    put_u64(j, "bytes", e->planned_bytes);
    put_u64(j, "allocated_bytes", e->planned_allocated);
    put_u64(j, "reserved_bytes", e->planned_reserved);
    put_u64(j, "limit_bytes", e->planned_limit);
    put_u64(j, "component_bytes", e->planned_component);
    put_u64(j, "available_bytes", e->available);
    put_u64(j, "beyond_bytes", e->beyond);
    put_u64(j, "planned_within_bytes", e->planned_within);
    stw_json_end(j);
    stw_json_begin_array(j, "components");
    for (uint32_t i = 0; i < e->n_parts; i++) {
        stw_json_begin_object(j, NULL);
        stw_json_string(j, "component", stw_component_name(e->parts[i].component));
        put_u64(j, "held_bytes", e->parts[i].held);
        put_u64(j, "planned_bytes", e->parts[i].planned);
        stw_json_end(j);
    }
    stw_json_end(j);
    stw_json_u64(j, "held_unknown_bytes", e->held_unknown);
}

static void put_json_changes(stw_json *j, const stw_explanation *e) {
    stw_json_begin_array(j, "changes");
    for (uint32_t i = 0; i < e->n_changes; i++) {
        const stw_explained_change *c = &e->changes[i];
        stw_json_begin_object(j, NULL);
        stw_json_begin_array(j, "set");
        for (uint32_t k = 0; k < c->n; k++) {
            stw_json_begin_object(j, NULL);
            stw_json_string(j, "key", c->set[k].set);
            stw_json_string(j, "value", c->set[k].value);
            stw_json_end(j);
        }
        stw_json_end(j);
        stw_json_string(j, "why", c->why);
        stw_json_string(j, "settings", c->settings);
        stw_json_bool(j, "at_risk", c->at_risk);
        put_u64(j, "gpu_bytes", c->gpu_bytes);
        put_u64(j, "host_bytes", c->host_bytes);
        stw_json_double(j, "iteration_s", c->iteration_s);
        stw_json_end(j);
    }
    stw_json_end(j);
}

static void put_list(stw_json *j, const char *key, const char *const *list, uint32_t n) {
    stw_json_begin_array(j, key);
    for (uint32_t i = 0; i < n; i++) stw_json_string(j, NULL, list[i]);
    stw_json_end(j);
}

static stw_status to_json(const stw_explanation *e, stw_text *out, stw_error *err) {
    stw_json *j = stw_json_new();
    stw_json_begin_object(j, NULL);
    stw_json_string(j, "schema", "stowage.explanation/1");
    stw_json_string(j, "file", e->found->file);
    stw_json_bool(j, "snapshot", e->found->snapshot);
    stw_json_string(j, "cause", stw_cause_name(e->cause));
    stw_json_string(j, "cause_text", e->cause_text);
    stw_json_string(j, "phase",
                    e->phase != STW_N_PHASES ? stw_phase_name((stw_phase)e->phase) : NULL);
    stw_json_string(j, "part", e->part);
    stw_json_string(j, "phase_from", e->phase_from);
    stw_json_string(
        j, "component",
        e->component != STW_N_COMPONENTS ? stw_component_name((stw_component)e->component) : NULL);
    stw_json_string(j, "component_from", e->component_from);
    stw_json_string(j, "program", e->program);
    put_u64(j, "iterations", e->iterations);
    put_u64(j, "of_iterations", e->of_iterations);
    if (e->failure != NULL)
        put_failure(j, e->failure);
    else
        stw_json_null(j, "failure");
    put_json_gpus(j, e->found);
    put_u64(j, "logged_allocated_bytes", e->found->logged_allocated);
    put_u64(j, "logged_reserved_bytes", e->found->logged_reserved);
    put_json_plan(j, e);
    put_json_changes(j, e);
    put_list(j, "advice", e->advice, e->n_advice);
    put_list(j, "unknown", e->unknown, e->n_unknown);
    stw_json_string(j, "plan_command", e->plan_command);
    stw_json_end(j);
    return stw_json_finish(j, out, err);
}

/* ---- all ---- */

static void to_csv(const stw_explanation *e, stw_text *out) {
    stw_csv_row(out, (const char *const[]){"component", "held_bytes", "planned_bytes"}, 3);
    for (uint32_t i = 0; i < e->n_parts; i++) {
        char held[24] = "", planned[24] = "";
        if (said(e->parts[i].held)) snprintf(held, sizeof held, "%" PRIu64, e->parts[i].held);
        if (said(e->parts[i].planned))
            snprintf(planned, sizeof planned, "%" PRIu64, e->parts[i].planned);
        stw_csv_row(out,
                    (const char *const[]){stw_component_name(e->parts[i].component), held, planned},
                    3);
    }
}

static size_t lines_of(const stw_text *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->length; i++) n += text->data[i] == '\n';
    return n;
}

static void put_screen(writing *w) {
    stw_text *out = w->out, text = STW_TEXT_INIT;
    w->out = &text;
    for (size_t r = 0; r < N_ROOMS; r++) {
        w->room = rooms[r];
        text.length = 0;
        put_all(w);
        if (lines_of(&text) <= SCREEN) break;
    }
    w->out = out;
    if (text.failed) out->failed = true;
    if (text.length > 0) stw_text_append(out, text.data, text.length);
    stw_text_free(&text);
}

stw_status stw_report_explanation(const stw_explanation *explanation, bool all, stw_format format,
                                  stw_text *out, stw_error *err) {
    writing w = {.e = explanation,
                 .format = format,
                 .all = all || format == STW_FORMAT_MARKDOWN,
                 .pool = stw_pool_new(),
                 .out = out};
    if (w.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    stw_status status = STW_STATUS_OK;
    if (format == STW_FORMAT_JSON)
        status = to_json(explanation, out, err);
    else if (format == STW_FORMAT_CSV)
        to_csv(explanation, out);
    else if (w.all)
        put_all(&w);
    else
        put_screen(&w);
    stw_pool_free(w.pool);
    return status == STW_STATUS_OK ? stw_text_status(out, err) : status;
}

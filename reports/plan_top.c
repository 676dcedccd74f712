/* SPDX-License-Identifier: Apache-2.0 */
/* The top of every report of a plan: the verdict with what stays free, a table of peaks with one
 * row for each phase, and bars of what is held against what is there. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "engines/bytes.h"
#include "reports/plan_sections.h"
#include "reports/verdict.h"

static const char *per_gpu(const stw_plan *plan) {
    return stw_cluster_has_gpus(&plan->cluster) ? "per GPU" : "per emulated GPU";
}

/* What runs out: the allocator's reserve, where there is one. */
static uint64_t gpu_held(const stw_plan_facts *f) {
    return stw_max_u64(f->gpu_peak, f->gpu_reserved);
}

/* "; 1.63 GiB per GPU and 1834.24 GiB per node stay free": of what may be used */
static void put_free(const stw_section *s, stw_text *out) {
    const stw_plan_facts *f = s->facts;
    const uint64_t held = gpu_held(f);
    if (held > f->gpu_capacity || f->host_peak > f->host_capacity) return;
    stw_text_printf(out, "; %s %s and %s per node stay free",
                    stw_word_gib(f->gpu_capacity - held).text, per_gpu(s->plan),
                    stw_word_gib(f->host_capacity - f->host_peak).text);
}

/* ": GPU memory is over by 5.37 GiB in forward_backward, host memory by 43.52 GiB in load" */
static void put_over(const stw_section *s, stw_text *out) {
    for (uint32_t i = 0; i < s->facts->n_excesses; i++) {
        const stw_excess *e = &s->facts->excesses[i];
        char resource[64];
        stw_resource_name_words(e->resource, resource, sizeof resource);
        stw_text_printf(out, "%s%s%s by %s in %s", i > 0 ? ", " : ": ", resource,
                        i > 0 ? "" : " is over", stw_word_gib(e->bytes).text,
                        stw_phase_name(e->phase));
    }
}

void stw_section_answer(const stw_section *s) {
    const stw_plan *plan = s->plan;
    char machine[192];
    stw_text line = STW_TEXT_INIT;
    stw_section_machine(&plan->cluster, machine, sizeof machine);
    stw_verdict_headline(plan, machine, &line);
    if (line.length > 0 && line.data[line.length - 1] == '.') line.length--;
    if (plan->verdict == STW_VERDICT_DOES_NOT_FIT)
        put_over(s, &line);
    else if (s->facts->gpu_phase != STW_N_PHASES && plan->verdict != STW_VERDICT_UNKNOWN)
        put_free(s, &line);
    stw_text_printf(&line, ".");
    if (line.failed) s->out->failed = true;
    if (line.data != NULL) stw_doc_line(s->out, s->format, "%s", line.data);
    stw_text_free(&line);
}

/* ---- peaks ---- */

/* Does a phase repeat what the step says: bytes and seconds? */
static bool is_repeated(const stw_plan_facts *f, unsigned p) {
    const stw_phase_facts *first = &f->phases[p], *step = &f->phases[STW_PHASE_OPTIMIZER_STEP];
    return p == STW_PHASE_FIRST_OPTIMIZER_STEP && step->present &&
           first->gpu_bytes == step->gpu_bytes && first->host_bytes == step->host_bytes &&
           first->nvme_bytes == step->nvme_bytes &&
           (first->time_s == step->time_s || isnan(first->time_s));
}

static uint64_t reserved_in(const stw_plan *plan, unsigned p) {
    uint64_t most = 0;
    for (uint32_t k = 0; plan->shown != NULL && k < plan->job->n_kinds; k++)
        if (plan->shown[k].has[p])
            most = stw_max_u64(most, plan->shown[k].phase[p][STW_TIER_GPU].total);
    return most;
}

static void put_phase(const stw_section *s, unsigned p, bool reserved, stw_table *t) {
    const stw_phase_facts *f = &s->facts->phases[p];
    const bool known = s->plan->verdict != STW_VERDICT_DOES_NOT_FIT && isfinite(f->time_s);
    stw_table_cell(t, "%s", stw_phase_name((stw_phase)p));
    stw_table_cell(t, "%s", stw_word_gib(f->gpu_bytes).text);
    stw_table_cell(t, "%s", reserved ? stw_word_gib(reserved_in(s->plan, p)).text : "");
    stw_table_cell(t, "%s", stw_word_gib(f->host_bytes).text);
    stw_table_cell(t, "%s", f->nvme_bytes > 0 ? stw_word_gib(f->nvme_bytes).text : "");
    stw_table_cell(t, "%s", known ? stw_word_seconds(f->time_s).text : "");
    stw_table_cell(t, "%s", known && f->is_bound ? stw_resource_words(f->binds) : "");
}

void stw_section_phases(const stw_section *s) {
    static const char *const heads[] = {"phase",     ">worst GPU", ">reserved", ">worst node",
                                        ">its NVMe", ">seconds",   "bottleneck"};
    const stw_plan_facts *f = s->facts;
    const bool reserved = f->gpu_reserved > f->gpu_peak;
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 7);
    t.spare = 1; /* the full report has it */
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (f->phases[p].present && !is_repeated(f, p)) put_phase(s, p, reserved, &t);
    if (s->format == STW_FORMAT_TERMINAL && t.n_cells > 0) stw_text_printf(s->out, "\n");
    stw_table_write(&t, s->format, s->out);
}

void stw_section_unexecuted(const stw_section *s) {
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (s->facts->phases[p].present && stw_plan_is_unexecuted(s->plan, (stw_phase)p))
            stw_doc_line(s->out, s->format, "%s is planned, not executed by this build.",
                         stw_phase_name((stw_phase)p));
}

/* ---- bars ---- */

typedef struct bar {
    const char *name, *per;
    uint64_t used, held; /* held: with an allocator's reserve */
    uint64_t limit, whole;
    const char *note;
} bar;

static const double GIB = 1ull << 30;

enum { LEAST_CELLS = 16, MOST_CELLS = 60, TEXT_BESIDE = 64 };

/* Wider where the terminal is. */
static unsigned cells_of_bars(void) {
    const size_t width = stw_report_width();
    if (width < LEAST_CELLS + TEXT_BESIDE) return LEAST_CELLS;
    return width - TEXT_BESIDE < MOST_CELLS ? (unsigned)(width - TEXT_BESIDE) : MOST_CELLS;
}

/* What is there takes a cell, and so does what is free. */
static unsigned cell_of(uint64_t bytes, uint64_t whole, unsigned cells) {
    const unsigned cell = (unsigned)((double)bytes / (double)whole * cells + 0.5);
    if (bytes < whole && cell == cells) return cells - 1;
    return bytes > 0 && cell == 0 ? 1 : cell;
}

/* "[######===......|..]": used, reserved beside it, free, the limit where it is below the whole. */
static void draw(const bar *b, stw_text *out) {
    const uint64_t whole = stw_max_u64(b->held, stw_max_u64(b->limit, b->whole));
    const unsigned cells = cells_of_bars(), used = cell_of(b->used, whole, cells),
                   held = cell_of(b->held, whole, cells), limit = cell_of(b->limit, whole, cells);
    stw_text_printf(out, "[");
    for (unsigned i = 0; i < cells; i++)
        stw_text_printf(out, "%s",
                        i + 1 == limit && limit < cells ? "|"
                        : i < used                      ? "#"
                        : i < held                      ? "="
                                                        : ".");
    stw_text_printf(out, "]");
}

/* "GPU   [####....] 77.97 GiB of 79.60 GiB per GPU (97.9%)" */
static void put_bar(const stw_section *s, const bar *b) {
    stw_text line = STW_TEXT_INIT;
    stw_text_printf(&line, "%-5s", b->name);
    draw(b, &line);
    stw_text_printf(&line, " %.2f%s", (double)b->used / GIB, b->held > b->used ? " used, " : "");
    if (b->held > b->used) stw_text_printf(&line, "%.2f reserved", (double)b->held / GIB);
    stw_text_printf(&line, " of %s %s (%s)%s%s", stw_word_gib(b->limit).text, b->per,
                    stw_word_share((double)b->held, (double)b->limit).text,
                    b->held > b->limit ? " OVER" : "", b->note);
    if (line.failed) s->out->failed = true;
    if (line.data == NULL) return;
    if (s->format == STW_FORMAT_MARKDOWN)
        stw_text_printf(s->out, "%s\n", line.data);
    else
        stw_doc_line(s->out, s->format, "%s", line.data);
    stw_text_free(&line);
}

/* A limit that is all but the memory of the node is not drawn. */
static uint64_t shown_host(const stw_cluster *c) {
    const bool less =
        c->host.kill_share < 1 || (double)c->host.limit_bytes < 0.9 * (double)c->host.memory_bytes;
    return less ? c->host.memory_bytes : 0;
}

/* What the limits are, where they are not all that the machine has. */
static void put_limits(const stw_section *s) {
    const stw_cluster *c = &s->plan->cluster;
    const uint64_t whole = stw_min_u64(c->host.limit_bytes, c->host.memory_bytes);
    if (c->host.kill_share < 1)
        stw_doc_line(s->out, s->format,
                     "The scheduler kills at %g%% of the %s of a node (node.host.kill_share).",
                     100 * c->host.kill_share, stw_word_gib(whole).text);
    else if (shown_host(c) > 0)
        stw_doc_line(s->out, s->format, "|: the cgroup limit (node.host.limit); the node has %s.",
                     stw_word_gib(c->host.memory_bytes).text);
}

void stw_section_bars(const stw_section *s) {
    const stw_plan_facts *f = s->facts;
    const stw_cluster *c = &s->plan->cluster;
    const char *copies = "";
    if (s->plan->job->engine->nvme_commits && f->state_bytes[STW_TIER_NVME] > 0)
        copies = stw_nvme_copies(s->plan->job) > 1 ? ", two copies of the state"
                                                   : ", one copy of the state";
    const bar bars[] = {
        {"GPU", "each", f->gpu_peak, gpu_held(f), f->gpu_capacity, f->gpu_capacity, ""},
        {"host", "per node", f->host_peak, f->host_peak, f->host_capacity, shown_host(c), ""},
        {"NVMe", "per node", f->nvme_peak, f->nvme_peak, f->nvme_capacity, 0, copies}};
    if (f->gpu_phase == STW_N_PHASES) return;
    if (s->format == STW_FORMAT_MARKDOWN) {
        stw_doc_gap(s->out, s->format);
        stw_text_printf(s->out, "```text\n");
    } else {
        stw_text_printf(s->out, "\n");
    }
    for (int i = 0; i < 3; i++)
        if (i < 2 || f->nvme_peak > 0) put_bar(s, &bars[i]);
    stw_text_printf(s->out, s->format == STW_FORMAT_MARKDOWN ? "```\n\n" : "");
    put_limits(s);
    if (s->format == STW_FORMAT_TERMINAL && !s->brief) stw_text_printf(s->out, "\n");
}

void stw_section_pictures(const stw_section *s) {
    const stw_plan_facts *f = s->facts;
    if (s->pictures == NULL || s->format != STW_FORMAT_MARKDOWN) return;
    stw_doc_gap(s->out, s->format);
    if (s->plan->programs != NULL && f->gpu_phase != STW_N_PHASES)
        stw_text_printf(s->out,
                        "![Memory over time, by component: GPU peak %s in %s, host peak %s in "
                        "%s](%s-memory.svg)\n\n",
                        stw_word_gib(f->gpu_peak).text, stw_phase_name(f->gpu_phase),
                        stw_word_gib(f->host_peak).text, stw_phase_name(f->host_phase),
                        s->pictures);
    stw_text_printf(s->out,
                    "![Where parameters, gradients, moments and activations are](%s-tiers.svg)\n\n",
                    s->pictures);
}

/* ---- what fills it ---- */

enum { MOST_NAMED = 5 };

/* "GPU memory in forward_backward: params 15.26 GiB, ..., others 10.34 GiB." */
static void put_contents(const stw_section *s, const char *what, stw_phase phase,
                         const stw_peak *peak) {
    bool named[STW_N_COMPONENTS] = {false};
    uint64_t others = peak->total;
    stw_text line = STW_TEXT_INIT;
    stw_text_printf(&line, "%s in %s:", what, stw_phase_name(phase));
    for (int i = 0; i < MOST_NAMED; i++) {
        unsigned best = STW_N_COMPONENTS;
        for (unsigned c = 0; c < STW_N_COMPONENTS; c++)
            if (!named[c] && peak->components[c] > 0 &&
                (best == STW_N_COMPONENTS || peak->components[c] > peak->components[best]))
                best = c;
        if (best == STW_N_COMPONENTS) break;
        named[best] = true;
        others -= stw_min_u64(others, peak->components[best]);
        stw_text_printf(&line, "%s %s %s", i > 0 ? "," : "",
                        stw_component_name((stw_component)best),
                        stw_word_gib(peak->components[best]).text);
    }
    if (others > 0) stw_text_printf(&line, ", others %s", stw_word_gib(others).text);
    stw_text_printf(&line, ".");
    if (line.failed) s->out->failed = true;
    if (line.data != NULL) stw_doc_line(s->out, s->format, "%s", line.data);
    stw_text_free(&line);
}

void stw_section_contents(const stw_section *s) {
    static const double HALF = 0.5;
    const stw_plan *plan = s->plan;
    const stw_plan_facts *f = s->facts;
    if (f->gpu_phase == STW_N_PHASES || plan->node_peaks == NULL) return;
    const stw_peaks *gpu = &plan->peaks[f->phases[f->gpu_phase].gpu_kind],
                    *host = &plan->node_peaks[f->phases[f->host_phase].host_kind];
    put_contents(s, "GPU memory", f->gpu_phase, &gpu->phase[f->gpu_phase][STW_TIER_GPU]);
    if ((double)f->host_peak > HALF * (double)f->host_capacity)
        put_contents(s, "Host memory of a node", f->host_phase,
                     &host->phase[f->host_phase][STW_TIER_HOST]);
}

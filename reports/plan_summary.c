/* SPDX-License-Identifier: Apache-2.0 */
/* The short summary of a plan: what fits, what binds, what it costs, what to change. It has so many
 * lines as a terminal shows: the least important parts are left out where there are more. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/engines/bytes.h"
#include "reports/plan_sections.h"

enum { MOST_FIXES = 3, FIX_LINES = 12, FIX_COLUMNS = 70 };

static void put_text(const stw_section *s, stw_text *line) {
    if (line->failed) s->out->failed = true;
    if (line->length > 0) stw_doc_line(s->out, s->format, "%s", line->data);
    stw_text_free(line);
}

/* ---- where everything is ---- */

/* A part of the state: parameters, gradients or moments. */
typedef struct kept {
    stw_tier tier;
    bool parked; /* on the GPU only while it is used */
} kept;

static const char *place_words(kept k) {
    static const char *const words[STW_N_TIERS] = {"on the GPU", "on the host", "on NVMe"};
    return k.parked ? "parked on the host but while they are used" : words[k.tier];
}

static bool same(kept a, kept b) { return a.tier == b.tier && a.parked == b.parked; }

/* What files hold beside the moments: "moments, master weights and fp32 gradients" */
static const char *names_on_nvme(const stw_plan *plan, const stw_place *place) {
    bool master = false, grads = false;
    for (unsigned p = 0; plan->peaks != NULL && p < STW_N_PHASES; p++) {
        const uint64_t *of = plan->peaks[plan->job->largest].phase[p][STW_TIER_NVME].components;
        master |= of[STW_COMPONENT_MASTER] > 0;
        grads |= of[STW_COMPONENT_GRADS] > 0 && place->grads != STW_TIER_NVME;
    }
    return master && grads ? "moments, master weights and fp32 gradients"
           : master        ? "moments and master weights"
           : grads         ? "moments and fp32 gradients"
                           : "moments";
}

/* "parameters and gradients on the GPU, moments on the host" */
static void name_tiers(const stw_section *s, const stw_place *place, stw_text *out) {
    const char *const names[] = {"parameters", "gradients",
                                 place->moments == STW_TIER_NVME ? names_on_nvme(s->plan, place)
                                                                 : "moments"};
    const kept of[] = {
        {place->params, place->params == STW_TIER_GPU && s->plan->run.park.params},
        {place->grads, place->grads == STW_TIER_GPU && s->plan->run.park.grads},
        {place->moments, place->moments == STW_TIER_GPU && s->plan->run.park.moments}};
    const bool parked = of[0].parked || of[1].parked || of[2].parked;
    bool done[3] = {false};
    if (same(of[0], of[1]) && same(of[1], of[2]))
        stw_text_printf(out, "all %s", place_words(of[0]));
    else
        for (int i = 0, n = 0; i < 3; i++) {
            if (done[i]) continue;
            stw_text_printf(out, "%s%s", n++ > 0 ? ", " : "", names[i]);
            for (int j = i + 1; j < 3; j++) {
                if (done[j] || !same(of[i], of[j])) continue;
                done[j] = true;
                stw_text_printf(out, " and %s", names[j]);
            }
            stw_text_printf(out, " %s", place_words(of[i]));
        }
    if (!parked || place->update != STW_UPDATE_RESIDENT)
        stw_text_printf(out, " (%s)", stw_update_name(place->update));
}

static void put_state(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const stw_plan_facts *f = s->facts;
    stw_text line = STW_TEXT_INIT;
    uint64_t all = f->frozen_params;
    uint32_t n = 0;
    const uint32_t n_state =
        plan->decisions.n_state < STW_MAX_PLACES ? plan->decisions.n_state : STW_MAX_PLACES;
    for (uint32_t i = 0; i < n_state; i++) all += f->place_params[i];
    for (uint32_t i = 0; i < n_state; i++) {
        const stw_state_decision *d = &plan->decisions.state[i];
        if (d->units == 0) continue;
        stw_text_printf(&line, "%s", n++ > 0 ? "; " : "State: ");
        if (f->place_params[i] < all)
            stw_text_printf(&line,
                            "%s: ", stw_word_share((double)f->place_params[i], (double)all).text);
        name_tiers(s, &d->place, &line);
    }
    if (f->frozen_params > 0)
        stw_text_printf(&line, "%s%s: frozen", n > 0 ? "; " : "State: ",
                        stw_word_share((double)f->frozen_params, (double)all).text);
    for (unsigned tier = 0, first = 1; tier < STW_N_TIERS && line.length > 0; tier++) {
        static const char *const where[STW_N_TIERS] = {"on the GPU", "on the host", "on NVMe"};
        if (f->state_bytes[tier] == 0) continue;
        stw_text_printf(&line, "%s%s %s", first ? ". Per rank: " : ", ",
                        stw_word_gib(f->state_bytes[tier]).text, where[tier]);
        first = 0;
    }
    if (line.length > 0) stw_text_printf(&line, ".");
    put_text(s, &line);
}

static void put_activations(const stw_section *s) {
    const stw_decisions *d = &s->plan->decisions;
    stw_text line = STW_TEXT_INIT;
    uint64_t counts[STW_N_ACTS] = {0};
    for (uint32_t i = 0; i < d->n_blocks; i++) /* not of a frozen vision tower, which saves none */
        if (stw_activation_bytes(s->plan->job, d->blocks[i].group, STW_ACT_KEEP) > 0)
            counts[d->blocks[i].act] += d->blocks[i].count;
    for (unsigned a = 0; a < STW_N_ACTS; a++)
        if (counts[a] > 0)
            stw_text_printf(&line, "%s%s %s", line.length > 0 ? ", " : "Activations, by blocks: ",
                            stw_word_count(counts[a]).text, stw_act_name((stw_act)a));
    if (line.length > 0) stw_text_printf(&line, ".");
    put_text(s, &line);
}

/* ---- what to change ---- */

/* How many of the first MOST_FIXES are so short that a screen has room for them; one at least. */
static uint32_t fixes_told(const stw_plan *plan) {
    char changes[512], effect[512];
    size_t lines = 0;
    uint32_t n = 0;
    for (; n < plan->n_fixes && n < MOST_FIXES; n++) {
        stw_fix_options(plan->fixes[n].changes, plan->fixes[n].n_changes, changes, sizeof changes);
        stw_fix_effect(&plan->fixes[n], effect, sizeof effect);
        lines += (strlen(changes) + strlen(effect)) / FIX_COLUMNS + 1;
        if (lines > FIX_LINES && n > 0) break;
    }
    return n;
}

/* Of the first `told` those that leave a plan at risk, or those that do not:
 * "--set nodes=2: halves the state". */
static void put_fixes_of(const stw_section *s, uint32_t told, bool at_risk) {
    const stw_plan *plan = s->plan;
    char changes[512], effect[512];
    uint32_t n = 0;
    for (uint32_t i = 0; i < told; i++) {
        const stw_fix *fix = &plan->fixes[i];
        if (fix->at_risk != at_risk) continue;
        if (n++ == 0)
            stw_doc_line(s->out, s->format, "%s (smallest first; each was planned):",
                         at_risk ? "Within limits, but at risk, with" : "It fits with");
        stw_fix_options(fix->changes, fix->n_changes, changes, sizeof changes);
        stw_fix_effect(fix, effect, sizeof effect);
        stw_doc_item(s->out, s->format, "%s%s%s", changes, effect[0] != '\0' ? ": " : "", effect);
    }
}

/* A limit with which it would fit, unless a change above raises the same one. */
static void put_limit(const stw_section *s) {
    const stw_plan *plan = s->plan;
    char changes[512];
    for (uint32_t i = 0; i < plan->n_bindings; i++) {
        const stw_binding *b = &plan->bindings[i];
        const bool another = stw_binding_is_elsewhere(plan, b);
        bool said = b->n_changes == 0;
        for (uint32_t f = 0; f < plan->n_fixes && !said && !another; f++)
            said = strcmp(plan->fixes[f].changes[0].set, b->changes[0].set) == 0;
        if (said) continue;
        stw_fix_options(b->changes, b->n_changes, changes, sizeof changes);
        stw_doc_line(s->out, s->format, "It would %s with %s%s.",
                     another ? "fit" : "be within limits", changes,
                     another ? ", that is, on another machine" : ": the node has the memory");
        return;
    }
}

static void put_fixes(const stw_section *s) {
    const stw_plan *plan = s->plan;
    if (plan->verdict != STW_VERDICT_DOES_NOT_FIT) return;
    const uint32_t told = fixes_told(plan);
    put_fixes_of(s, told, false);
    put_fixes_of(s, told, true);
    if (plan->n_fixes > told) stw_doc_item(s->out, s->format, "and %u more", plan->n_fixes - told);
    if (plan->n_bindings > 0 && plan->n_fixes == 0)
        stw_doc_line(s->out, s->format, "No change that was tried makes it fit on this cluster.");
    put_limit(s);
}

/* "Over the limit: GPU memory by 5.37 GiB, host memory by 43.52 GiB." */
static void put_over(const stw_section *s) {
    stw_text line = STW_TEXT_INIT;
    for (uint32_t i = 0; i < s->facts->n_excesses; i++) {
        const stw_excess *e = &s->facts->excesses[i];
        char resource[64];
        stw_resource_name_words(e->resource, resource, sizeof resource);
        stw_text_printf(&line, "%s%s by %s", i > 0 ? ", " : "Over the limit: ", resource,
                        stw_word_gib(e->bytes).text);
    }
    if (line.length > 0) stw_text_printf(&line, ".");
    put_text(s, &line);
}

/* The layout that a search of layouts chose, and how much slower the run's own is. */
static void put_layout(const stw_section *s) {
    const stw_layout_search *l = &s->plan->layout_search;
    if (l->searched == NULL || l->n_rows == 0) return;
    const stw_layout_row *chosen = &l->rows[0], *own = NULL;
    stw_text line = STW_TEXT_INIT;
    for (uint32_t i = 0; i < l->n_rows; i++)
        if (l->rows[i].settings[0] == '\0') own = &l->rows[i];
    stw_text_printf(&line, "Layout: %s; the best of %s that were planned",
                    chosen->settings[0] != '\0' ? chosen->settings : "the run's own",
                    stw_word_count(l->planned).text);
    if (own != NULL && own != chosen && isfinite(own->iteration_s) && chosen->iteration_s > 0)
        stw_text_printf(&line, " (the run's own takes %.3g times as long)",
                        own->iteration_s / chosen->iteration_s);
    else if (own != NULL && own != chosen)
        stw_text_printf(&line, " (the run's own does not fit)");
    stw_text_printf(&line, ".");
    put_text(s, &line);
}

static void put_excluded(const stw_section *s) { stw_section_alternatives(s, true); }
static void put_passed_over(const stw_section *s) { stw_section_alternatives(s, false); }
static void put_warnings(const stw_section *s) { stw_section_remarks(s, false); }
static void put_notes(const stw_section *s) { stw_section_remarks(s, true); }

/* ---- the summary ---- */

typedef struct part {
    unsigned rank; /* 0: always there; the highest goes first */
    void (*put)(const stw_section *s);
} part;

static const part parts[] = {
    {0, stw_section_headline},
    {0, stw_section_uses},
    {0, put_over},
    {2, stw_section_risks},
    {0, put_fixes},
    {3, put_warnings},
    {0, stw_section_costs},
    {1, stw_section_bottleneck},
    {1, put_layout},
    {2, put_state},

    {4, put_activations},
    {3, stw_section_turned},
    {3, stw_section_role_lines},
    {7, stw_section_load_method},
    {5, put_notes},
    {6, stw_section_turns},
    {6, put_excluded},
    {8, put_passed_over},
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

static size_t lines_of(const stw_text *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->length; i++) n += text->data[i] == '\n';
    return n;
}

/* Leave out the least important parts until there are at most so many lines. */
static void shorten(stw_text *texts, size_t most) {
    for (;;) {
        size_t lines = 0;
        unsigned worst = N_PARTS;
        for (unsigned i = 0; i < N_PARTS; i++) {
            lines += lines_of(&texts[i]);
            if (texts[i].length > 0 && parts[i].rank > 0 &&
                (worst == N_PARTS || parts[i].rank >= parts[worst].rank))
                worst = i;
        }
        if (lines <= most || worst == N_PARTS) return;
        texts[worst].length = 0;
    }
}

static stw_status begin(const stw_plan *plan, stw_plan_facts *facts, stw_remarks *remarks,
                        stw_section *section, stw_text *out, stw_error *err) {
    stw_plan_facts_get(plan, facts);
    stw_plan_remarks_get(plan, facts, remarks);
    *section = (stw_section){plan, facts, remarks, STW_FORMAT_TERMINAL, stw_pool_new(), out};
    if (section->pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (remarks->failed) out->failed = true;
    return STW_STATUS_OK;
}

static void put_parts(stw_section *section, size_t most) {
    stw_text texts[N_PARTS] = {STW_TEXT_INIT}, *out = section->out;
    for (unsigned i = 0; i < N_PARTS; i++) {
        section->out = &texts[i];
        parts[i].put(section);
    }
    shorten(texts, most);
    for (unsigned i = 0; i < N_PARTS; i++) {
        if (texts[i].failed) out->failed = true;
        if (texts[i].length > 0) stw_text_append(out, texts[i].data, texts[i].length);
        stw_text_free(&texts[i]);
    }
    section->out = out;
}

stw_status stw_report_plan_summary(const stw_plan *plan, uint32_t lines, stw_text *out,
                                   stw_error *err) {
    stw_plan_facts facts;
    stw_remarks remarks;
    stw_section section;
    stw_status status = begin(plan, &facts, &remarks, &section, out, err);
    if (status != STW_STATUS_OK) return status;
    put_parts(&section, lines);
    stw_pool_free(section.pool);
    return stw_text_status(out, err);
}

stw_status stw_report_plan_verdict(const stw_plan *plan, stw_text *out, stw_error *err) {
    stw_plan_facts facts;
    stw_remarks remarks;
    stw_section section;
    stw_status status = begin(plan, &facts, &remarks, &section, out, err);
    if (status != STW_STATUS_OK) return status;
    stw_section_headline(&section);
    stw_section_uses(&section);
    put_over(&section);
    stw_section_risks(&section);
    if (plan->verdict != STW_VERDICT_DOES_NOT_FIT) stw_section_iteration(&section);
    stw_pool_free(section.pool);
    return stw_text_status(out, err);
}

/* Seconds and peaks of every phase. */
static void put_phases(const stw_section *s) {
    static const char *const heads[] = {"phase",     ">seconds",   ">times",
                                        ">GPU peak", ">host peak", "bottleneck"};
    const bool timed = s->plan->verdict != STW_VERDICT_DOES_NOT_FIT;
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 6);
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        const stw_phase_facts *f = &s->facts->phases[p];
        const uint64_t passes = stw_plan_passes(s->plan, (stw_phase)p);
        const bool known = timed && isfinite(f->time_s);
        if (!f->present) continue;
        stw_table_cell(&t, "%s", stw_phase_name((stw_phase)p));
        stw_table_cell(&t, "%s", known ? stw_word_seconds(f->time_s).text : "");
        stw_table_cell(&t, "%s", passes > 0 ? stw_word_count(passes).text : "");
        stw_table_cell(&t, "%s", stw_word_gib(f->gpu_bytes).text);
        stw_table_cell(&t, "%s", stw_word_gib(f->host_bytes).text);
        stw_table_cell(&t, "%s", known && f->is_bound ? stw_resource_words(f->binds) : "");
    }
    stw_text_printf(s->out, "\n");
    stw_table_write(&t, s->format, s->out);
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (s->facts->phases[p].present && stw_plan_is_unexecuted(s->plan, (stw_phase)p))
            stw_doc_line(s->out, s->format, "%s is planned, not executed by this build.",
                         stw_phase_name((stw_phase)p));
}

stw_status stw_report_simulation(const stw_plan *plan, uint32_t lines, stw_text *out,
                                 stw_error *err) {
    stw_plan_facts facts;
    stw_remarks remarks;
    stw_section section;
    stw_text phases = STW_TEXT_INIT;
    stw_status status = begin(plan, &facts, &remarks, &section, out, err);
    if (status != STW_STATUS_OK) return status;
    section.out = &phases;
    put_phases(&section);
    const size_t taken = lines_of(&phases);
    section.out = out;
    put_parts(&section, lines > taken ? lines - taken : 0);
    if (phases.failed) out->failed = true;
    if (phases.length > 0) stw_text_append(out, phases.data, phases.length);
    stw_text_free(&phases);
    stw_pool_free(section.pool);
    return stw_text_status(out, err);
}

/* One line of times: "load 12.1 s, forward_backward 1.20 s, ..." */
static void put_times(const stw_section *s) {
    stw_text line = STW_TEXT_INIT;
    if (s->plan->verdict == STW_VERDICT_DOES_NOT_FIT) return;
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        const stw_phase_facts *f = &s->facts->phases[p];
        if (!f->present || !isfinite(f->time_s)) continue;
        stw_text_printf(&line, "%s%s %s",
                        line.length > 0 ? ", " : "Phase times: ", stw_phase_name((stw_phase)p),
                        stw_word_seconds(f->time_s).text);
        if (stw_plan_is_unexecuted(s->plan, (stw_phase)p))
            stw_text_printf(&line, " (planned, not executed)");
    }
    if (line.length > 0) stw_text_printf(&line, ".");
    put_text(s, &line);
}

stw_status stw_report_plan_details(const stw_plan *plan, stw_text *out, stw_error *err) {
    stw_plan_facts facts;
    stw_remarks remarks;
    stw_section section;
    stw_status status = begin(plan, &facts, &remarks, &section, out, err);
    if (status != STW_STATUS_OK) return status;
    stw_section_verdict(&section);
    put_times(&section);
    stw_section_solver(&section);
    stw_section_layouts(&section);
    stw_section_roles(&section);
    stw_doc_heading(out, section.format, "State placement");
    stw_section_decisions(&section);
    if (plan->decisions.n_blocks > 0) {
        stw_doc_heading(out, section.format, "Activations");
        stw_section_activations(&section);
    }
    stw_text_printf(out, "\n");
    stw_section_ring(&section);
    stw_section_infeasible(&section);
    stw_pool_free(section.pool);
    return stw_text_status(out, err);
}

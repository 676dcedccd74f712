/* SPDX-License-Identifier: Apache-2.0 */
/* The short summary of a plan: what fits, what binds, what it costs, what to change. It has so many
 * lines as a terminal shows: the least important parts are left out where there are more. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engines/bytes.h"
#include "reports/plan_sections.h"

enum { MOST_FIXES = 3, FIX_LINES = 12, BRIEF_LINES = 5, FIX_COLUMNS = 70 };

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
    return k.parked ? "parked on the host between uses" : words[k.tier];
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
static uint32_t fixes_told(const stw_plan *plan, size_t most_lines) {
    char changes[512], effect[512];
    size_t lines = 0;
    uint32_t n = 0;
    for (; n < plan->n_fixes && n < MOST_FIXES; n++) {
        stw_fix_options(plan->fixes[n].changes, plan->fixes[n].n_changes, changes, sizeof changes);
        stw_fix_effect(&plan->fixes[n], effect, sizeof effect);
        lines += (strlen(changes) + strlen(effect)) / FIX_COLUMNS + 1;
        if (lines > most_lines && n > 0) break;
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
            stw_doc_line(s->out, s->format, "%s first; each was planned):",
                         at_risk ? "Within limits, but at risk, with (smallest"
                         : plan->verdict == STW_VERDICT_AT_RISK
                             ? "It fits without risk with (fastest"
                             : "It fits with (smallest");
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
    if (plan->verdict != STW_VERDICT_DOES_NOT_FIT && plan->n_fixes == 0) return;
    const uint32_t told = fixes_told(plan, s->brief ? BRIEF_LINES : FIX_LINES);
    put_fixes_of(s, told, false);
    put_fixes_of(s, told, true);
    if (plan->n_fixes > told) stw_doc_item(s->out, s->format, "and %u more", plan->n_fixes - told);
    if (plan->n_bindings > 0 && plan->n_fixes == 0)
        stw_doc_line(s->out, s->format, "No change that was tried makes it fit on this cluster.");
    put_limit(s);
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
    if (l->late > 0)
        stw_text_printf(&line,
                        " The time was over before %s more were looked at: raise --time-limit.",
                        stw_word_count(l->late).text);
    else if (l->unfinished > 0)
        stw_text_printf(
            &line, " The time was over while the best ones were compared: raise --time-limit.");
    put_text(s, &line);
}

/* The keys of what is priced (planner/prices.c). */
static const char *keys_of(const char *resource) {
    static const char *const keys[][2] = {
        {"gpu memory", " (node.gpu.memory)"},
        {"host memory", " (node.host.memory, node.host.limit)"},
        {"pcie", " (node.pcie.h2d, d2h, both)"},
        {"host bandwidth", " (node.host.bandwidth, node.host.dma)"},
        {"nvme", " (node.nvme.read, node.nvme.write)"},
        {"network", " (network.nic)"}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i][0], resource) == 0) return keys[i][1];
    return "";
}

/* "With 8 GiB more GPU memory (node.gpu.memory): 45.1 ms less per iteration (1.9%)." */
static void put_best_price(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const double iteration_s = stw_plan_iteration_s(plan);
    const stw_price *best = NULL;
    char resource[64];
    for (uint32_t i = 0; i < plan->n_prices; i++)
        if (plan->prices[i].seconds < 0 &&
            (best == NULL || plan->prices[i].seconds < best->seconds))
            best = &plan->prices[i];
    if (best == NULL || !isfinite(iteration_s)) return;
    stw_resource_name_words(best->resource, resource, sizeof resource);
    stw_doc_line(s->out, s->format, "With %s %s more %s%s: %s less per iteration (%s).",
                 stw_word_number(best->amount).text, best->unit, resource, keys_of(best->resource),
                 stw_word_seconds(-best->seconds).text,
                 stw_word_share(-best->seconds, iteration_s).text);
}

/* Said where nothing else is: a reader looks for a change. */
static void put_no_change(const stw_section *s) {
    const stw_plan *plan = s->plan;
    bool any =
        plan->verdict == STW_VERDICT_DOES_NOT_FIT || plan->turned != NULL || plan->n_fixes > 0;
    for (uint32_t i = 0; i < plan->n_alternatives; i++)
        any |= strcmp(plan->alternatives[i].rule, "plainness") != 0;
    for (uint32_t i = 0; i < plan->n_prices; i++) any |= plan->prices[i].seconds < 0;
    for (uint32_t i = 0; i < s->remarks->n; i++) any |= s->remarks->items[i].advice;
    if (any) return;
    stw_doc_line(s->out, s->format, "Nothing that was planned beside it is faster.");
}

static void put_excluded(const stw_section *s) { stw_section_alternatives(s, true); }
static void put_passed_over(const stw_section *s) { stw_section_alternatives(s, false); }
static void put_warnings(const stw_section *s) { stw_section_remarks(s, false); }
static void put_of_time(const stw_section *s, bool advice) {
    for (uint32_t i = 0; i < s->remarks->n; i++)
        if (s->remarks->items[i].of_time && s->remarks->items[i].advice == advice)
            stw_doc_line(s->out, s->format, "%s", s->remarks->items[i].text);
}
static void put_notes(const stw_section *s) { put_of_time(s, false); }
static void put_advice(const stw_section *s) { put_of_time(s, true); }
/* Seconds of a plan that does not fit are those of no run. */
static void put_iteration(const stw_section *s) {
    if (s->plan->verdict != STW_VERDICT_DOES_NOT_FIT) stw_section_iteration(s);
}
static void put_spent(const stw_section *s) {
    if (s->plan->verdict != STW_VERDICT_DOES_NOT_FIT) stw_section_spent(s);
}
static void put_bottleneck(const stw_section *s) {
    if (s->plan->verdict != STW_VERDICT_DOES_NOT_FIT) stw_section_bottleneck(s);
}
static void put_threads(const stw_section *s) {
    if (s->plan->verdict != STW_VERDICT_DOES_NOT_FIT) stw_section_threads(s);
}
static void put_phases(const stw_section *s) {
    stw_section_phases(s);
    stw_section_unexecuted(s);
}

/* ---- the summary ---- */

/* Parts follow each other from what is asked first to what explains it. A report has a heading
 * above the parts of one group, a summary has none. */
typedef enum group { ANSWER, BINDS, CHANGE, PLACEMENT, ASSUMED, N_GROUPS } group;
static const char *const headings[N_GROUPS] = {NULL, "What binds", "What to change",
                                               "Where everything is", "What is assumed"};

typedef struct part {
    group of;
    unsigned rank; /* 0: always there; the highest goes first */
    void (*put)(const stw_section *s);
} part;

static const part parts[] = {
    {ANSWER, 0, stw_section_answer},
    {ANSWER, 0, put_phases},
    {ANSWER, 0, stw_section_bars},
    {ANSWER, 1, stw_section_streamed},
    {ANSWER, 1, stw_section_risks},
    {ANSWER, 0, put_iteration},
    {ANSWER, 2, put_spent},
    {ANSWER, 1, put_warnings},
    {ANSWER, 0, stw_section_pictures},
    {BINDS, 9, stw_section_excesses},
    {BINDS, 5, stw_section_contents},
    {BINDS, 3, put_bottleneck},
    {BINDS, 2, put_threads},
    {CHANGE, 0, put_fixes},
    {CHANGE, 4, put_advice},
    {CHANGE, 6, stw_section_turns},
    {CHANGE, 3, stw_section_turned},
    {CHANGE, 6, put_excluded},
    {CHANGE, 7, put_best_price},
    {CHANGE, 10, put_no_change},
    {PLACEMENT, 1, put_layout},
    {PLACEMENT, 2, put_state},
    {PLACEMENT, 5, put_activations},
    {PLACEMENT, 3, stw_section_role_lines},
    {PLACEMENT, 8, stw_section_load_method},
    {ASSUMED, 6, put_notes},
    {ASSUMED, 9, put_passed_over},
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
    *section = (stw_section){plan,           facts, remarks,      STW_FORMAT_TERMINAL,
                             stw_pool_new(), out,   .brief = true};
    if (section->pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (remarks->failed) out->failed = true;
    return STW_STATUS_OK;
}

static void append(stw_text *out, stw_text *text) {
    if (text->failed) out->failed = true;
    if (text->length > 0) stw_text_append(out, text->data, text->length);
    stw_text_free(text);
}

stw_status stw_report_plan_summary(const stw_plan *plan, uint32_t lines, stw_text *out,
                                   stw_error *err) {
    stw_plan_facts facts;
    stw_remarks remarks;
    stw_section section;
    stw_text texts[N_PARTS] = {STW_TEXT_INIT};
    stw_status status = begin(plan, &facts, &remarks, &section, out, err);
    if (status != STW_STATUS_OK) return status;
    for (unsigned i = 0; i < N_PARTS; i++) {
        section.out = &texts[i];
        if (parts[i].put != put_no_change) parts[i].put(&section);
    }
    shorten(texts, lines);
    for (unsigned i = 0; i < N_PARTS; i++) append(out, &texts[i]);
    stw_pool_free(section.pool);
    return stw_text_status(out, err);
}

void stw_section_summary(const stw_section *section, bool placement) {
    stw_section s = *section;
    for (unsigned g = 0; g < N_GROUPS; g++) {
        stw_text text = STW_TEXT_INIT;
        if (g == PLACEMENT && !placement) continue;
        s.out = &text;
        for (unsigned i = 0; i < N_PARTS; i++)
            if (parts[i].of == g) parts[i].put(&s);
        const bool gap = text.length > 1 && strcmp(text.data + text.length - 2, "\n\n") == 0;
        if (gap && section->format == STW_FORMAT_TERMINAL) text.length--; /* a heading makes one */
        if (text.length > 0 && headings[g] != NULL)
            stw_doc_heading(section->out, section->format, headings[g]);
        append(section->out, &text);
    }
}

stw_status stw_report_plan_verdict(const stw_plan *plan, stw_text *out, stw_error *err) {
    stw_plan_facts facts;
    stw_remarks remarks;
    stw_section section;
    stw_status status = begin(plan, &facts, &remarks, &section, out, err);
    if (status != STW_STATUS_OK) return status;
    stw_section_answer(&section);
    stw_section_bars(&section);
    stw_section_streamed(&section);
    stw_section_risks(&section);
    if (plan->verdict != STW_VERDICT_DOES_NOT_FIT) stw_section_iteration(&section);
    stw_pool_free(section.pool);
    return stw_text_status(out, err);
}

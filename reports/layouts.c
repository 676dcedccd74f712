/* SPDX-License-Identifier: Apache-2.0 */
/* How the layout of ranks was found: what was searched, and the runner-ups. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reports/plan_sections.h"
#include "reports/verdict.h"

/* "180 planned, 64 left out, because bounds say ..." */
static void put_counts(const stw_section *s) {
    const stw_layout_search *l = &s->plan->layout_search;
    const struct {
        uint64_t n;
        const char *what;
    } counts[] = {
        {l->too_slow, "left out, because bounds say that they are slower than the best plan"},
        {l->too_big, "left out, because they need more memory than there is whatever is decided"},
        {l->refused, "refused by the engine's checks"},
        {l->left, "not looked at: the search went on around the best ones of a coarse grid"},
        {l->late, "not looked at, because the time was over (--time-limit)"},
        {l->unfinished,
         "of the planned ones not compared to the end, because the time was over (--time-limit)"},
    };
    char text[512];
    int used = snprintf(text, sizeof text, "%s planned", stw_word_count(l->planned).text);
    if (l->unfit > 0)
        used += snprintf(text + used, sizeof text - (size_t)used, " (%s do not fit)",
                         stw_word_count(l->unfit).text);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].n > 0 && used > 0 && (size_t)used < sizeof text)
            used += snprintf(text + used, sizeof text - (size_t)used, "; %s %s",
                             stw_word_count(counts[i].n).text, counts[i].what);
    stw_doc_line(s->out, s->format, "Layout: searched %s. Of %s admissible layouts: %s (%s).",
                 l->searched, stw_word_count(l->admitted).text, text,
                 stw_word_seconds(l->seconds).text);
}

/* What the choice is, and what it costs against the fastest and against the run's own layout. */
static void put_choice(const stw_section *s) {
    const stw_layout_search *l = &s->plan->layout_search;
    const stw_layout_row *chosen = &l->rows[0];
    const bool all = l->left + l->late + l->unfinished == 0, solved = all && l->too_slow == 0;
    if (chosen->verdict == STW_VERDICT_DOES_NOT_FIT) {
        stw_doc_line(s->out, s->format, "None of the layouts that were planned fits.");
        return;
    }
    stw_doc_line(s->out, s->format, "%s: %s; %s compared once more by the simulator.",
                 solved ? "Optimal: all admissible layouts were solved"
                 : all  ? "Best of all admissible layouts"
                        : "Best of those that were planned",
                 chosen->settings[0] != '\0' ? chosen->settings : "the run's own layout",
                 stw_word_count(l->compared).text);
    for (uint32_t i = 1; i < l->n_rows; i++) {
        const stw_layout_row *row = &l->rows[i];
        const double share = 1 - row->iteration_s / chosen->iteration_s;
        const bool own = row->settings[0] == '\0';
        if (share > 0 && chosen->verdict == row->verdict)
            stw_doc_line(s->out, s->format, "%s is %.1f%% faster; the plainer layout is preferred.",
                         own ? "The run's own layout" : row->settings, 100 * share);
        else if (share > 0 && row->verdict == STW_VERDICT_AT_RISK)
            stw_doc_line(s->out, s->format, "%s is %.1f%% faster, but at risk.",
                         own ? "The run's own layout" : row->settings, 100 * share);
        else if (own && row->verdict == STW_VERDICT_DOES_NOT_FIT)
            stw_doc_line(s->out, s->format, "The run's own layout does not fit.");
        else if (own && isfinite(row->iteration_s))
            stw_doc_line(s->out, s->format, "The run's own layout takes %.3g times as long.",
                         row->iteration_s / chosen->iteration_s);
    }
}

/* What the simulator does not know of experts: which layouts win by little rests on it. */
static void put_ideals(const stw_section *s) {
    const stw_model *model = s->plan->model;
    bool experts = false;
    for (uint32_t g = 0; g < model->n_groups; g++)
        experts = experts || model->groups[g].facts.experts > 0;
    if (!experts || s->plan->layout_search.rows[0].verdict == STW_VERDICT_DOES_NOT_FIT) return;
    stw_doc_line(s->out, s->format,
                 "Seconds take tokens as spread evenly over experts (moe.imbalance counts in bytes "
                 "alone), and products of experts as fast as dense ones, however few rows they "
                 "have. Measure before a layout of experts is changed for a small gain.");
}

void stw_section_layouts(const stw_section *s) {
    const stw_layout_search *l = &s->plan->layout_search;
    static const char *const heads[] = {"layout", "verdict", ">iteration", ">GPU peak",
                                        ">host peak"};
    stw_table t;
    if (l->searched == NULL || l->n_rows == 0) return;
    stw_doc_heading(s->out, s->format, "Layouts");
    put_counts(s);
    put_choice(s);
    put_ideals(s);
    stw_table_begin(&t, s->pool, heads, 5);
    for (uint32_t i = 0; i < l->n_rows; i++) {
        const stw_layout_row *row = &l->rows[i];
        stw_table_cell(&t, "%s", row->settings[0] != '\0' ? row->settings : "the run's own");
        stw_table_cell(&t, "%s", stw_word_verdict(row->verdict));
        stw_table_cell(&t, "%s",
                       isfinite(row->iteration_s) ? stw_word_seconds(row->iteration_s).text : "");
        stw_table_cell(&t, "%s",
                       row->gpu_peak_bytes > 0 ? stw_word_gib(row->gpu_peak_bytes).text : "");
        stw_table_cell(&t, "%s",
                       row->host_peak_bytes > 0 ? stw_word_gib(row->host_peak_bytes).text : "");
    }
    stw_table_write(&t, s->format, s->out);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reports/table.h"
#include "reports/verdict.h"

/* Components that are named in a sentence, and settings. */
enum { MOST_NAMED = 3, MOST_SETTINGS = 4 };

/* Of a summary, without the lines around a table; and rows for which one is begun. */
enum { SCREEN_LINES = 17, FEWEST_ROWS = 2 };

typedef struct writing {
    const stw_diff *diff;
    stw_format format;
    stw_pool *pool;
    stw_text *out;
} writing;

static stw_word signed_size(uint64_t before, uint64_t after) {
    stw_word w;
    const bool grows = after >= before;
    snprintf(w.text, sizeof w.text, "%c%.40s", grows ? '+' : '-',
             stw_word_size(grows ? after - before : before - after).text);
    return w;
}

static stw_word signed_seconds(double before, double after) {
    stw_word w = {""};
    if (isfinite(before) && isfinite(after))
        snprintf(w.text, sizeof w.text, "%c%.40s", after >= before ? '+' : '-',
                 stw_word_seconds(fabs(after - before)).text);
    return w;
}

static stw_word signed_share(double before, double after) {
    stw_word w = {""};
    if (before > 0 && isfinite(after))
        snprintf(w.text, sizeof w.text, "%+.1f%%", 100 * (after / before - 1));
    return w;
}

/* " (+12.3%)"; "" of what was nothing before */
static stw_word share_in_brackets(double before, double after) {
    stw_word w = {""};
    const stw_word share = signed_share(before, after);
    if (share.text[0] != '\0') snprintf(w.text, sizeof w.text, " (%.40s)", share.text);
    return w;
}

/* ---- sentences ---- */

static void put_verdict(const writing *w) {
    const stw_plan *const *plans = w->diff->plans;
    const char *before = stw_word_verdict(plans[0]->verdict),
               *after = stw_word_verdict(plans[1]->verdict);
    if (plans[0]->verdict == plans[1]->verdict)
        stw_doc_line(w->out, w->format, "Verdict: %s, in both plans.", before);
    else
        stw_doc_line(w->out, w->format, "Verdict: %s before, %s after.", before, after);
}

/* "mostly activations (+9.41 GiB) and logits (+1.02 GiB)": the largest parts of the change. */
static void name_components(const uint64_t *before, const uint64_t *after, bool grows, char *out,
                            size_t out_size) {
    bool used[STW_N_COMPONENTS] = {false};
    size_t length = 0;
    out[0] = '\0';
    for (int n = 0; n < MOST_NAMED; n++) {
        int most = -1;
        uint64_t most_bytes = 0;
        for (int c = 0; c < STW_N_COMPONENTS; c++) {
            uint64_t from = grows ? before[c] : after[c], to = grows ? after[c] : before[c];
            if (used[c] || to <= from || to - from <= most_bytes) continue;
            most = c;
            most_bytes = to - from;
        }
        if (most < 0 || length >= out_size) return;
        used[most] = true;
        int n_written = snprintf(out + length, out_size - length, "%s%s (%s)", n == 0 ? ": " : ", ",
                                 stw_component_name((stw_component)most),
                                 signed_size(before[most], after[most]).text);
        length += n_written > 0 ? (size_t)n_written : 0;
    }
}

static void put_peak(const writing *w, stw_tier tier, const char *what) {
    const stw_diff_peak *before = &w->diff->peaks[0][tier], *after = &w->diff->peaks[1][tier];
    char components[256] = "";
    if (before->components == NULL || after->components == NULL) return;
    if (before->bytes == 0 && after->bytes == 0) return;
    if (before->bytes == after->bytes) {
        stw_doc_line(w->out, w->format, "%s: the peak is unchanged, %s.", what,
                     stw_word_gib(after->bytes).text);
        return;
    }
    bool grows = after->bytes > before->bytes;
    name_components(before->components, after->components, grows, components, sizeof components);
    stw_doc_line(
        w->out, w->format, "%s: the peak %s by %s%s, from %s in %s to %s in %s%s.", what,
        grows ? "grows" : "falls",
        stw_word_size(grows ? after->bytes - before->bytes : before->bytes - after->bytes).text,
        share_in_brackets((double)before->bytes, (double)after->bytes).text,
        stw_word_gib(before->bytes).text, stw_phase_name(before->phase),
        stw_word_gib(after->bytes).text, stw_phase_name(after->phase), components);
}

/* "(4 x forward_backward +38.2 ms, optimizer_step +1.10 ms)" */
static void name_phases(const writing *w, char *out, size_t out_size) {
    size_t length = 0;
    out[0] = '\0';
    for (unsigned p = 0; p < STW_N_PHASES && length < out_size; p++) {
        uint64_t before_n = stw_plan_passes(w->diff->plans[0], (stw_phase)p);
        uint64_t after_n = stw_plan_passes(w->diff->plans[1], (stw_phase)p);
        if (before_n == 0 || after_n == 0) continue;
        double before = (double)before_n * w->diff->plans[0]->time_s[p];
        double after = (double)after_n * w->diff->plans[1]->time_s[p];
        if (!isfinite(before) || !isfinite(after) || stw_diff_same_seconds(before, after)) continue;
        int n = snprintf(out + length, out_size - length, "%s%s %s", length == 0 ? " (" : ", ",
                         stw_phase_name((stw_phase)p), signed_seconds(before, after).text);
        length += n > 0 ? (size_t)n : 0;
    }
    if (length > 0 && length + 2 < out_size) snprintf(out + length, out_size - length, ")");
}

/* Nobody sees a difference. */
static bool is_shown_equal(stw_word a, stw_word b) { return strcmp(a.text, b.text) == 0; }

static stw_word tokens(double per_s) { return stw_word_count((uint64_t)(per_s + 0.5)); }

static void put_times(const writing *w) {
    const stw_plan *const *plans = w->diff->plans;
    double before = stw_plan_iteration_s(plans[0]), after = stw_plan_iteration_s(plans[1]);
    char phases[256];
    if (!isfinite(before) || !isfinite(after)) {
        stw_doc_line(w->out, w->format,
                     "Times are not compared: %s predicted time of an iteration.",
                     !isfinite(before) && !isfinite(after) ? "neither plan has a"
                     : isfinite(before)                    ? "the second plan has no"
                                                           : "the first plan has no");
        return;
    }
    name_phases(w, phases, sizeof phases);
    if (stw_diff_same_seconds(before, after) ||
        is_shown_equal(stw_word_seconds(before), stw_word_seconds(after)))
        stw_doc_line(w->out, w->format, "Iteration time: unchanged, %s.",
                     stw_word_seconds(after).text);
    else
        stw_doc_line(w->out, w->format, "Iteration time: %s instead of %s, %s%s.",
                     stw_word_seconds(after).text, stw_word_seconds(before).text,
                     signed_share(before, after).text, phases);
    double fast_before = stw_plan_tokens_per_s(plans[0]);
    double fast_after = stw_plan_tokens_per_s(plans[1]);
    double each_before = fast_before / plans[0]->job->ranks;
    double each_after = fast_after / plans[1]->job->ranks;
    if (is_shown_equal(tokens(fast_before), tokens(fast_after)) &&
        is_shown_equal(tokens(each_before), tokens(each_after)))
        return;
    stw_doc_line(w->out, w->format,
                 "Throughput: %s instead of %s tokens/s%s, per GPU %s instead of %s%s.",
                 tokens(fast_after).text, tokens(fast_before).text,
                 share_in_brackets(fast_before, fast_after).text, tokens(each_after).text,
                 tokens(each_before).text, share_in_brackets(each_before, each_after).text);
}

static void put_settings(const writing *w) {
    const stw_diff *d = w->diff;
    stw_text line = STW_TEXT_INIT;
    if (d->n_settings == 0) {
        stw_doc_line(w->out, w->format, "Settings: the same in both plans.");
        return;
    }
    for (uint32_t i = 0; i < d->n_settings && i < MOST_SETTINGS; i++)
        stw_text_printf(&line, "%s%s: %s instead of %s", i > 0 ? "; " : "", d->settings[i].what,
                        d->settings[i].after != NULL ? d->settings[i].after : "absent",
                        d->settings[i].before != NULL ? d->settings[i].before : "absent");
    if (d->n_settings > MOST_SETTINGS)
        stw_text_printf(&line, "; and %u more", d->n_settings - MOST_SETTINGS);
    if (line.failed) w->out->failed = true;
    if (line.data != NULL) stw_doc_line(w->out, w->format, "Settings: %s.", line.data);
    stw_text_free(&line);
}

static void put_sentences(const writing *w) {
    const stw_diff *d = w->diff;
    stw_doc_title(w->out, w->format, "What changed from %s to %s", d->names[0], d->names[1]);
    put_verdict(w);
    if (d->n_settings + d->n_decisions + d->n_bytes + d->n_seconds == 0) {
        stw_doc_line(w->out, w->format,
                     "The plans are the same: settings, decisions, bytes and seconds.");
        return;
    }
    put_peak(w, STW_TIER_GPU, "GPU memory");
    put_peak(w, STW_TIER_HOST, "Host memory");
    put_peak(w, STW_TIER_NVME, "NVMe");
    put_times(w);
    put_settings(w);
}

/* ---- tables ---- */

/* @param most rows; more are counted below */
static void put_words(const writing *w, const char *heading, const char *head,
                      const stw_diff_words *list, uint32_t all, uint32_t most) {
    const char *const heads[] = {head, "before", "after"};
    const uint32_t n = all < most ? all : most;
    stw_table t;
    if (n == 0) return;
    stw_doc_heading(w->out, w->format, heading);
    stw_table_begin(&t, w->pool, heads, 3);
    for (uint32_t i = 0; i < n; i++) {
        stw_table_cell(&t, "%s", list[i].what);
        stw_table_cell(&t, "%s", list[i].before != NULL ? list[i].before : "");
        stw_table_cell(&t, "%s", list[i].after != NULL ? list[i].after : "");
    }
    stw_table_write(&t, w->format, w->out);
    if (all > n) stw_doc_line(w->out, w->format, "and %u more", all - n);
}

static void put_bytes(const writing *w) {
    static const char *const heads[] = {"phase",   "tier",   "component",
                                        ">before", ">after", ">change"};
    stw_table t;
    if (w->diff->n_bytes == 0) return;
    stw_doc_heading(w->out, w->format, "Peak memory, of the worst rank and node");
    stw_table_begin(&t, w->pool, heads, 6);
    for (uint32_t i = 0; i < w->diff->n_bytes; i++) {
        const stw_diff_bytes *line = &w->diff->bytes[i];
        stw_table_cell(&t, "%s", stw_phase_name(line->phase));
        stw_table_cell(&t, "%s", stw_tier_name(line->tier));
        stw_table_cell(&t, "%s", line->what);
        stw_table_cell(&t, "%s", stw_word_size(line->before).text);
        stw_table_cell(&t, "%s", stw_word_size(line->after).text);
        stw_table_cell(&t, "%s", signed_size(line->before, line->after).text);
    }
    stw_table_write(&t, w->format, w->out);
}

static bool is_shown(const stw_diff_seconds *line) {
    return !is_shown_equal(stw_word_seconds(line->before), stw_word_seconds(line->after));
}

static void put_seconds(const writing *w) {
    static const char *const heads[] = {"phase", ">before", ">after", ">change", ">share"};
    stw_table t;
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->diff->n_seconds; i++) n += is_shown(&w->diff->seconds[i]);
    if (n == 0) return;
    stw_doc_heading(w->out, w->format, "Seconds");
    stw_table_begin(&t, w->pool, heads, 5);
    for (uint32_t i = 0; i < w->diff->n_seconds; i++) {
        const stw_diff_seconds *line = &w->diff->seconds[i];
        if (!is_shown(line)) continue;
        stw_table_cell(&t, "%s", line->phase);
        stw_table_cell(&t, "%s", stw_word_seconds(line->before).text);
        stw_table_cell(&t, "%s", stw_word_seconds(line->after).text);
        stw_table_cell(&t, "%s", signed_seconds(line->before, line->after).text);
        stw_table_cell(&t, "%s", signed_share(line->before, line->after).text);
    }
    stw_table_write(&t, w->format, w->out);
}

/* Rows section,of,what,before,after,unit. */
static void put_csv(const writing *w) {
    static const char *const heads[] = {"section", "phase", "tier", "what",
                                        "before",  "after", "unit"};
    const stw_diff *d = w->diff;
    stw_csv_row(w->out, heads, 7);
    const stw_diff_words verdict = {"verdict", stw_verdict_name(d->plans[0]->verdict),
                                    stw_verdict_name(d->plans[1]->verdict)};
    const struct {
        const char *section;
        const stw_diff_words *list;
        uint32_t n;
    } lists[] = {{"headline", &verdict, 1},
                 {"setting", d->settings, d->n_settings},
                 {"decision", d->decisions, d->n_decisions}};
    for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++)
        for (uint32_t i = 0; i < lists[l].n; i++) {
            const stw_diff_words *x = &lists[l].list[i];
            const char *cells[] = {lists[l].section,
                                   "",
                                   "",
                                   x->what,
                                   x->before != NULL ? x->before : "",
                                   x->after != NULL ? x->after : "",
                                   ""};
            stw_csv_row(w->out, cells, 7);
        }
    for (uint32_t i = 0; i < d->n_bytes; i++) {
        const stw_diff_bytes *x = &d->bytes[i];
        char before[24], after[24];
        snprintf(before, sizeof before, "%llu", (unsigned long long)x->before);
        snprintf(after, sizeof after, "%llu", (unsigned long long)x->after);
        const char *cells[] = {
            "bytes", stw_phase_name(x->phase), stw_tier_name(x->tier), x->what, before, after, "B"};
        stw_csv_row(w->out, cells, 7);
    }
    for (uint32_t i = 0; i < d->n_seconds; i++) {
        const stw_word before = stw_word_plain_double(d->seconds[i].before);
        const stw_word after = stw_word_plain_double(d->seconds[i].after);
        const char *cells[] = {"seconds",   d->seconds[i].phase, "", "time",
                               before.text, after.text,          "s"};
        stw_csv_row(w->out, cells, 7);
    }
}

stw_status stw_report_diff_summary(const stw_diff *diff, stw_text *out, stw_error *err) {
    const writing w = {diff, STW_FORMAT_TERMINAL, stw_pool_new(), out};
    uint32_t lines = 0;
    if (w.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    put_sentences(&w);
    for (size_t i = 0; i < out->length; i++) lines += out->data[i] == '\n';
    if (lines + FEWEST_ROWS <= SCREEN_LINES)
        put_words(&w, "Decisions", "decision", diff->decisions, diff->n_decisions,
                  SCREEN_LINES - lines);
    stw_doc_line(out, w.format, "More: --full (settings, decisions, bytes and seconds by phase)");
    stw_pool_free(w.pool);
    return stw_text_status(out, err);
}

stw_status stw_report_diff(const stw_diff *diff, stw_format format, stw_text *out, stw_error *err) {
    if (format == STW_FORMAT_JSON) return stw_diff_to_json(diff, out, err);
    const writing w = {diff, format, stw_pool_new(), out};
    if (w.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (format == STW_FORMAT_CSV) {
        put_csv(&w);
    } else {
        put_sentences(&w);
        put_words(&w, "Settings", "key", diff->settings, diff->n_settings, UINT32_MAX);
        put_words(&w, "Decisions", "decision", diff->decisions, diff->n_decisions, UINT32_MAX);
        put_bytes(&w);
        put_seconds(&w);
    }
    stw_pool_free(w.pool);
    return stw_text_status(out, err);
}

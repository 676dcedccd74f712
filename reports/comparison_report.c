/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reports/table.h"
#include "reports/verdict.h"

static const char *verdict_word(stw_line_verdict verdict) {
    static const char *const words[] = {[STW_LINE_WITHIN] = "within",
                                        [STW_LINE_OUTSIDE] = "OUTSIDE",
                                        [STW_LINE_NOT_MEASURED] = "not measured",
                                        [STW_LINE_NOT_JUDGED] = "not judged"};
    return (unsigned)verdict < sizeof words / sizeof words[0] ? words[verdict] : "?";
}

static stw_word figure(const stw_compare_line *l, double value) {
    if (l->is_time) return stw_word_seconds(value);
    stw_word w = {"unknown"};
    if (isfinite(value) && value >= 0) w = stw_word_size((uint64_t)value);
    return w;
}

/* "GPU total" of "gpu device" */
static stw_word quantity(const char *what) {
    stw_word w;
    if (strcmp(what, "gpu device") == 0) what = "gpu total";
    if (strcmp(what, "gpu device peak") == 0) what = "gpu total peak";
    snprintf(w.text, sizeof w.text, "%s", what);
    if (strncmp(w.text, "gpu ", 4) == 0) memcpy(w.text, "GPU", 3);
    return w;
}

static void put_csv_line(stw_table *t, const stw_compare_line *l) {
    bool measured = l->verdict != STW_LINE_NOT_MEASURED;
    stw_table_cell(t, "%s", stw_phase_name(l->phase));
    stw_table_cell(t, "%s", l->what);
    stw_table_cell(t, "%s", l->kind);
    stw_table_cell(t, "%u", l->rank);
    stw_table_cell(t, "%s", l->is_time ? "s" : "B");
    stw_table_cell(t, "%s", stw_word_plain_double(l->predicted).text);
    stw_table_cell(t, "%s", measured ? stw_word_plain_double(l->measured).text : "");
    stw_table_cell(t, "%s", measured ? stw_word_plain_double(l->error).text : "");
    stw_table_cell(t, "%s", verdict_word(l->verdict));
    stw_table_cell(t, "%s", l->note != NULL ? l->note : "");
    stw_table_cell(t, "%s", l->from != NULL ? l->from : "");
}

/* From the quantity on. @param whole with the note and where the value stands */
static void put_cells(stw_table *t, const stw_compare_line *l, bool whole) {
    const bool measured = l->verdict != STW_LINE_NOT_MEASURED && isfinite(l->measured);
    const char *note = whole && l->note != NULL ? l->note : "";
    stw_table_cell(t, "%s", l->who != NULL ? l->who : l->kind);
    stw_table_cell(t, "%s",
                   isfinite(l->predicted) ? figure(l, l->predicted).text : "not predicted");
    stw_table_cell(t, "%s", measured ? figure(l, l->measured).text : "");
    if (measured && isfinite(l->error) && l->verdict != STW_LINE_NOT_JUDGED)
        stw_table_cell(t, "%+.2f%%", 100 * l->error);
    else
        stw_table_cell(t, "%s", "");
    stw_table_cell(t, "%s%s%s", verdict_word(l->verdict), note[0] != '\0' ? ": " : "", note);
    if (whole) stw_table_cell(t, "%s", l->from != NULL ? l->from : "");
}

static void write_csv(const stw_comparison *comparison, stw_pool *pool, stw_text *out) {
    static const char *const heads[] = {"phase",    "what",  "kind",    "rank", "unit", "predicted",
                                        "measured", "error", "verdict", "note", "from"};
    stw_table t;
    stw_table_begin(&t, pool, heads, 11);
    for (uint32_t i = 0; i < comparison->n_lines; i++) put_csv_line(&t, &comparison->lines[i]);
    stw_table_write(&t, STW_FORMAT_CSV, out);
}

static void write_table(const stw_comparison *comparison, stw_format format, stw_pool *pool,
                        stw_text *out) {
    static const char *const heads[] = {"phase",     "quantity", "rank",    ">predicted",
                                        ">measured", ">error",   "verdict", "read from"};
    const bool whole = format != STW_FORMAT_TERMINAL;
    stw_table t;
    stw_table_begin(&t, pool, heads, whole ? 8 : 7);
    for (uint32_t i = 0; i < comparison->n_lines; i++) {
        stw_table_cell(&t, "%s", stw_phase_name(comparison->lines[i].phase));
        stw_table_cell(&t, "%s", quantity(comparison->lines[i].what).text);
        put_cells(&t, &comparison->lines[i], whole);
    }
    stw_table_write(&t, format, out);
}

/* A terminal that is narrower has no room for a column of phases. */
enum { GROUPED_BELOW = 100 };

/* Phases stand above their lines. */
static void write_grouped(const stw_comparison *comparison, stw_pool *pool, stw_text *out) {
    static const char *const heads[] = {"phase, quantity", "rank",   ">predicted",
                                        ">measured",       ">error", "verdict"};
    stw_table t;
    stw_table_begin(&t, pool, heads, 6);
    for (uint32_t i = 0; i < comparison->n_lines; i++) {
        const stw_compare_line *l = &comparison->lines[i];
        if (i == 0 || l->phase != l[-1].phase) {
            stw_table_cell(&t, "%s", stw_phase_name(l->phase));
            for (int empty = 1; empty < 6; empty++) stw_table_cell(&t, "%s", "");
        }
        stw_table_cell(&t, "- %s", quantity(l->what).text);
        put_cells(&t, l, false);
    }
    stw_table_write(&t, STW_FORMAT_TERMINAL, out);
}

/* "time of load", "GPU total peak" */
static void name_line(const stw_compare_line *l, char *out, size_t out_size) {
    if (strcmp(l->what, "time") == 0)
        snprintf(out, out_size, "time of %s", stw_phase_name(l->phase));
    else
        snprintf(out, out_size, "%s", quantity(l->what).text);
}

static bool same_reason(const stw_compare_line *a, const stw_compare_line *b) {
    return a->verdict == STW_LINE_NOT_JUDGED && b->verdict == STW_LINE_NOT_JUDGED &&
           a->note != NULL && b->note != NULL && strcmp(a->note, b->note) == 0;
}

/* Why lines are not judged: each reason once, with what it is of. */
static void put_reasons(const stw_comparison *c, stw_format format, stw_text *out) {
    for (uint32_t i = 0; i < c->n_lines; i++) {
        char names[600] = "", name[80], listed[604];
        bool first = same_reason(&c->lines[i], &c->lines[i]);
        for (uint32_t j = 0; j < i && first; j++) first = !same_reason(&c->lines[i], &c->lines[j]);
        for (uint32_t j = i; j < c->n_lines && first; j++) {
            if (!same_reason(&c->lines[i], &c->lines[j])) continue;
            const size_t n = strlen(names);
            name_line(&c->lines[j], name, sizeof name);
            snprintf(listed, sizeof listed, "%s, ", names);
            const char *before = strstr(listed, name);
            while (before != NULL &&
                   (before[strlen(name)] != ',' || (before > listed && before[-1] != ' ')))
                before = strstr(before + 1, name);
            if (before == NULL && n + strlen(name) + 3 < sizeof names)
                snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? ", " : "", name);
        }
        if (first) stw_doc_line(out, format, "Not judged: %s: %s.", names, c->lines[i].note);
    }
}

/* Where measured values stand in their file. */
static void put_sources(const stw_comparison *c, stw_format format, stw_text *out) {
    for (uint32_t i = 0; i < c->n_lines; i++) {
        const stw_compare_line *l = &c->lines[i];
        char name[80];
        name_line(l, name, sizeof name);
        if (l->from != NULL)
            stw_doc_line(out, format, "Read from: %s, %s: %s", name,
                         l->who != NULL ? l->who : l->kind, l->from);
    }
}

/* Up to this much a process holds for modules that the plan does not know. */
#define MODULES_BYTES (2.0 * 1073741824.0)

static bool lacks_modules(const stw_compare_line *line) {
    return line->processes > 0 && line->measured > line->predicted &&
           line->measured - line->predicted <= (double)line->processes * MODULES_BYTES;
}

/* What a user can do about lines that are outside. */
static void put_advice(const stw_comparison *comparison, stw_format format, stw_text *out) {
    bool times = false, gpu_more = false, host_more = false, host = false, modules = false;
    for (uint32_t i = 0; i < comparison->n_lines; i++) {
        const stw_compare_line *line = &comparison->lines[i];
        if (line->verdict != STW_LINE_OUTSIDE) continue;
        times = times || line->is_time;
        const bool more = !line->is_time && line->measured > line->predicted;
        const bool of_host = strncmp(line->what, "host", 4) == 0;
        gpu_more = gpu_more || (more && !of_host);
        host_more = host_more || (more && of_host);
        host = host || line->processes > 0;
        modules = modules || lacks_modules(line);
    }
    if (times)
        stw_doc_line(out, format,
                     "Times: check that nothing else ran on this machine, measure it again "
                     "(stowage calibrate -o FILE), and plan with --cluster FILE.");
    if (gpu_more || host_more)
        stw_doc_line(
            out, format,
            "Memory: a plan that is near a limit may not fit on this machine; lower %s%s%s "
            "by the difference and plan again.",
            gpu_more ? "node.gpu.memory" : "", gpu_more && host_more ? " and " : "",
            host_more ? "node.host.limit" : "");
    if (host && comparison->external && comparison->lessons == NULL)
        stw_doc_line(out, format,
                     "Host: %s--learn cluster.yaml takes what processes hold from the recording; "
                     "plan again with --cluster cluster.yaml.",
                     modules ? "processes hold more than planned, most likely modules of the "
                               "script or the framework that the plan does not know. "
                             : "");
}

enum { MOST_OOMS = 3 };

/* Allocations that failed, of the first ranks. */
static void put_ooms(const stw_comparison *comparison, stw_format format, stw_text *out) {
    for (uint32_t i = 0; i < comparison->n_ooms && i < MOST_OOMS; i++) {
        const stw_run_oom *oom = &comparison->ooms[i];
        char more[64] = "", free[80] = "";
        if (oom->count > 1) snprintf(more, sizeof more, "; the first of %zu", oom->count);
        if (oom->free != UINT64_MAX)
            snprintf(free, sizeof free, " and %s of the GPU free", stw_word_size(oom->free).text);
        stw_doc_line(out, format,
                     "Rank %u ran out of memory%s%s: it asked for %s with %s allocated%s (%s%s).",
                     oom->rank, oom->when[0] != '\0' ? " at " : "", oom->when,
                     stw_word_size(oom->asked).text, stw_word_size(oom->allocated).text, free,
                     oom->from, more);
    }
    if (comparison->n_ooms > MOST_OOMS)
        stw_doc_line(out, format, "%u more ranks ran out of memory.",
                     comparison->n_ooms - MOST_OOMS);
}

static void put_summary(const stw_comparison *comparison, stw_format format, stw_text *out) {
    if (comparison->n_runs > 1)
        stw_doc_line(out, format,
                     "Memory and times are those of %s. Of the other runs only verification and "
                     "digests are compared.",
                     comparison->runs[0].name);
    if (comparison->judged == 0)
        stw_doc_line(out, format, "%s",
                     comparison->shown > 0 ? "No line can be judged; the reasons are below."
                                           : "The run measured nothing that the plan predicts.");
    else if (comparison->judged == 1 && comparison->outside == 0)
        stw_doc_line(out, format,
                     "Prediction and measurement agree: the one judged line is within tolerance.");
    else if (comparison->outside == 0)
        stw_doc_line(out, format,
                     "Prediction and measurement agree: all %u judged lines are within tolerance.",
                     comparison->judged);
    else
        stw_doc_line(out, format,
                     "Prediction and measurement DISAGREE: %u of %u judged lines are outside "
                     "tolerance.",
                     comparison->outside, comparison->judged);
    put_ooms(comparison, format, out);
    put_advice(comparison, format, out);
    if (comparison->plan_verdict == STW_VERDICT_UNKNOWN)
        stw_doc_line(out, format,
                     "The plan is one of the state alone: forward and backward are unknown, and "
                     "are not compared.");
    else if (comparison->plan_verdict != STW_VERDICT_FITS)
        stw_doc_line(out, format, "The verdict of the plan: %s.",
                     stw_word_verdict(comparison->plan_verdict));
    if (!comparison->time_judged)
        stw_doc_line(out, format, "Time is not judged%s%s.",
                     comparison->time_note != NULL ? ": " : "",
                     comparison->time_note != NULL ? comparison->time_note : "");
}

/* How many of the runs have digests that differ from the others'. */
static void put_differences(const stw_comparison *comparison, stw_format format, stw_text *out) {
    for (uint32_t i = 0; i < comparison->n_runs; i++)
        for (int d = 0; d < STW_N_DIGESTS; d++)
            if (comparison->runs[i].differs[d])
                stw_doc_line(out, format, "The digest of %s of %s DIFFERS from that of %s.",
                             stw_digest_name(d), comparison->runs[i].name,
                             comparison->n_runs > 2 ? "most runs" : comparison->runs[0].name);
}

static void put_verify(const stw_comparison *comparison, stw_format format, stw_text *out) {
    for (uint32_t i = 0; i < comparison->n_runs; i++) {
        const stw_compare_run *run = &comparison->runs[i];
        char of[200] = "";
        if (comparison->n_runs > 1) snprintf(of, sizeof of, " of %.180s", run->name);
        if (run->mismatched > 0)
            stw_doc_line(out, format, "Verification%s FAILED: %s of %s checked elements differ.",
                         of, stw_word_count(run->mismatched).text,
                         stw_word_count(run->checked).text);
        else if (run->checked > 0)
            stw_doc_line(out, format, "Verification%s: %s elements checked, none differs.", of,
                         stw_word_count(run->checked).text);
        else
            stw_doc_line(out, format, "Verification%s: no element was checked.", of);
    }
    put_differences(comparison, format, out);
    if (comparison->n_runs > 1 && comparison->differing == 0)
        stw_doc_line(out, format, "The digests of all %u runs are equal.", comparison->n_runs);
}

static void put_learned(const stw_lessons *lessons, stw_format format, stw_pool *pool,
                        stw_text *out) {
    static const char *const heads[] = {"key", ">before", ">learned", "phase", ">samples"};
    stw_table t;
    stw_table_begin(&t, pool, heads, 5);
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++) {
        const stw_lesson *lesson = &lessons->items[w];
        char before[48], value[48];
        if (!lesson->learned) continue;
        stw_learned_format((stw_learnable)w, lesson->before, before, sizeof before);
        stw_learned_format((stw_learnable)w, lesson->entry.value, value, sizeof value);
        stw_table_cell(&t, "%s", stw_learned_key((stw_learnable)w));
        if (lesson->before_from != NULL)
            stw_table_cell(&t, "%s (%s)", before, lesson->before_from);
        else
            stw_table_cell(&t, "%s", before);
        stw_table_cell(&t, "%s", value);
        stw_table_cell(&t, "%s", lesson->entry.phase);
        stw_table_cell(&t, "%u", lesson->entry.samples);
    }
    stw_table_write(&t, format, out);
}

static void put_lessons(const stw_lessons *lessons, stw_format format, stw_pool *pool,
                        stw_text *out) {
    stw_doc_heading(out, format, "Learned from the recording");
    if (lessons->changed)
        stw_doc_line(out, format,
                     "Written to %s. Plans with --cluster %s use these values and name them.",
                     lessons->path, lessons->path);
    else
        stw_doc_line(out, format, "%s has these values already; it is not changed.", lessons->path);
    put_learned(lessons, format, pool, out);
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++)
        if (!lessons->items[w].learned)
            stw_doc_line(out, format, "%s is not learned: %s.", stw_learned_key((stw_learnable)w),
                         lessons->items[w].why);
}

/* ---- the summary ---- */

/* Rows of a screen, and what it has besides. */
enum { MOST_ROWS = 12, FEWEST_ROWS = 3, SCREEN_LINES = 20 };

/* Totals, which everybody looks for: "gpu allocated", "host", "time", peaks. */
static bool is_total(const stw_compare_line *l) {
    static const char *const parts[] = {"gpu allocated", "gpu reserved", "gpu device", "time"};
    if (l->verdict == STW_LINE_NOT_MEASURED || !isfinite(l->measured)) return false;
    if (strcmp(l->what, "host") == 0) return true;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strncmp(l->what, parts[i], strlen(parts[i])) == 0) return true;
    return false;
}

static void put_short_row(const stw_compare_line *l, stw_table *t) {
    const bool judged = isfinite(l->error) && l->verdict != STW_LINE_NOT_JUDGED;
    char error[32] = "";
    if (judged) snprintf(error, sizeof error, "%+.1f%%", 100 * l->error);
    stw_table_cell(t, "%s", stw_phase_name(l->phase));
    stw_table_cell(t, "%s", quantity(l->what).text);
    stw_table_cell(t, "%s",
                   isfinite(l->predicted) ? figure(l, l->predicted).text : "not predicted");
    stw_table_cell(t, "%s", isfinite(l->measured) ? figure(l, l->measured).text : "");
    stw_table_cell(t, "%s", error);
    stw_table_cell(t, "%s", verdict_word(l->verdict));
}

/* Without a judged line, everything that was measured is shown. */
static bool is_shown(const stw_comparison *c, const stw_compare_line *l) {
    if (l->verdict == STW_LINE_OUTSIDE) return false; /* shown before */
    if (c->judged == 0 && l->verdict == STW_LINE_NOT_JUDGED && isfinite(l->measured)) return true;
    return is_total(l);
}

/* What is outside, then totals, as many as there is room for. @return rows */
static uint32_t put_short_table(const stw_comparison *c, uint32_t most, stw_pool *pool,
                                stw_text *out) {
    static const char *const heads[] = {"phase",     "quantity", ">predicted",
                                        ">measured", ">error",   "verdict"};
    uint32_t rows = 0;
    stw_table t;
    stw_table_begin(&t, pool, heads, 6);
    for (uint32_t i = 0; i < c->n_lines && rows < most; i++) {
        if (c->lines[i].verdict != STW_LINE_OUTSIDE) continue;
        put_short_row(&c->lines[i], &t);
        rows++;
    }
    for (uint32_t i = 0; i < c->n_lines && rows < most; i++) {
        if (!is_shown(c, &c->lines[i])) continue;
        put_short_row(&c->lines[i], &t);
        rows++;
    }
    stw_table_write(&t, STW_FORMAT_TERMINAL, out);
    return rows;
}

stw_status stw_report_comparison_summary(const stw_comparison *comparison, stw_text *out,
                                         stw_error *err) {
    stw_pool *pool = stw_pool_new();
    stw_text learned = STW_TEXT_INIT;
    uint32_t lines = 0;
    if (pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    put_summary(comparison, STW_FORMAT_TERMINAL, out);
    put_verify(comparison, STW_FORMAT_TERMINAL, out);
    if (comparison->lessons != NULL)
        put_lessons(comparison->lessons, STW_FORMAT_TERMINAL, pool, &learned);
    for (size_t i = 0; i < out->length; i++) lines += out->data[i] == '\n';
    for (size_t i = 0; i < learned.length; i++) lines += learned.data[i] == '\n';
    const uint32_t room = lines + FEWEST_ROWS < SCREEN_LINES ? SCREEN_LINES - lines : FEWEST_ROWS;
    stw_text_printf(out, "\n");
    const uint32_t rows =
        put_short_table(comparison, room < MOST_ROWS ? room : MOST_ROWS, pool, out);
    if (comparison->judged == 0) put_reasons(comparison, STW_FORMAT_TERMINAL, out);
    if (learned.failed) out->failed = true;
    if (learned.length > 0) stw_text_append(out, learned.data, learned.length);
    stw_doc_line(out, STW_FORMAT_TERMINAL,
                 "%u of %u lines. All of them, by rank and with reasons: --full", rows,
                 comparison->n_lines);
    stw_text_free(&learned);
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

/* ---- the report ---- */

stw_status stw_report_comparison(const stw_comparison *comparison, stw_format format, stw_text *out,
                                 stw_error *err) {
    if (format == STW_FORMAT_JSON) return stw_comparison_to_json(comparison, out, err);
    stw_pool *pool = stw_pool_new();
    if (pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (format == STW_FORMAT_CSV) {
        write_csv(comparison, pool, out);
    } else {
        put_summary(comparison, format, out);
        put_verify(comparison, format, out);
        if (format == STW_FORMAT_TERMINAL) stw_text_printf(out, "\n");
        if (format == STW_FORMAT_TERMINAL && stw_report_width() > 0 &&
            stw_report_width() < GROUPED_BELOW)
            write_grouped(comparison, pool, out);
        else
            write_table(comparison, format, pool, out);
        if (format == STW_FORMAT_TERMINAL) {
            put_reasons(comparison, format, out);
            put_sources(comparison, format, out);
        }
        if (comparison->lessons != NULL) put_lessons(comparison->lessons, format, pool, out);
    }
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

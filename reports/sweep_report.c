/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reports/book.h"
#include "reports/facts.h"
#include "reports/table.h"
#include "reports/verdict.h"

/* Rows that a screen has room for. */
enum { MOST_ROWS = 14, LEAST_ROWS = 2, BOOK_LINES = 7 };

static void put_number(stw_table *t, double value) {
    if (isfinite(value))
        stw_table_cell(t, "%s", stw_word_count((uint64_t)(value + 0.5)).text);
    else
        stw_table_cell(t, "%s", "");
}

static bool has_prices(const stw_sweep *sweep) {
    for (uint32_t i = 0; i < sweep->n_points; i++)
        if (sweep->rows[i].usd_per_gpu_hour > 0) return true;
    return false;
}

static void put_row(const stw_sweep *sweep, uint32_t i, bool prices, stw_table *t) {
    const stw_sweep_row *row = &sweep->rows[i];
    char bound[160];
    stw_bound_words(row->binds, bound, sizeof bound);
    for (uint32_t a = 0; a < sweep->n_axes; a++)
        stw_table_cell(t, "%s", stw_sweep_value(sweep, i, a));
    stw_table_cell(t, "%s%s", stw_word_sweep_verdict(row->verdict), row->front ? " *" : "");
    bool planned = row->gpus > 0;
    stw_table_cell(t, "%s", planned ? stw_word_count(row->gpus).text : "");
    stw_table_cell(t, "%s", planned ? stw_word_gib(row->gpu_peak_bytes).text : "");
    stw_table_cell(t, "%s", planned ? stw_word_gib(row->host_peak_bytes).text : "");
    stw_table_cell(t, "%s",
                   isfinite(row->iteration_s) ? stw_word_seconds(row->iteration_s).text : "");
    put_number(t, row->tokens_per_s);
    put_number(t, stw_sweep_tokens_per_gpu(row));
    double hours = stw_sweep_gpu_hours(row);
    stw_table_cell(t, "%s", isfinite(hours) ? stw_word_number(hours).text : "");
    const double usd = stw_sweep_usd(row);
    if (prices) stw_table_cell(t, "%s", isfinite(usd) ? stw_word_number(usd).text : "");
    stw_table_cell(t, "%s", row->reason != NULL ? row->reason : bound);
}

static void put_rows(const stw_sweep *sweep, bool front_only, stw_format format, stw_pool *pool,
                     stw_text *out) {
    static const char *const figures[] = {">GPUs",
                                          ">GPU peak",
                                          ">host peak",
                                          ">iteration",
                                          ">tokens/s",
                                          ">per GPU",
                                          ">GPU-hours per 1e9 tokens",
                                          ">USD per 1e9 tokens",
                                          "binds"};
    enum { N_FIGURES = sizeof figures / sizeof figures[0], USD = N_FIGURES - 2 };
    const bool prices = has_prices(sweep);
    const char *heads[STW_SWEEP_MOST_AXES + 1 + N_FIGURES];
    uint32_t n = 0;
    stw_table t;
    for (uint32_t a = 0; a < sweep->n_axes; a++) heads[n++] = sweep->axes[a].key;
    heads[n++] = "verdict";
    for (int i = 0; i < N_FIGURES; i++)
        if (prices || i != USD) heads[n++] = figures[i];
    stw_table_begin(&t, pool, heads, n);
    for (uint32_t i = 0; i < sweep->n_points; i++)
        if (!front_only || sweep->rows[i].front) put_row(sweep, i, prices, &t);
    stw_table_write(&t, format, out);
}

static void put_csv(const stw_sweep *sweep, stw_text *out) {
    static const char *const figures[] = {"verdict",
                                          "gpus",
                                          "gpu_peak_bytes",
                                          "host_peak_bytes",
                                          "iteration_s",
                                          "tokens_per_s",
                                          "tokens_per_s_per_gpu",
                                          "gpu_hours_per_1e9_tokens",
                                          "binds",
                                          "front",
                                          "reason",
                                          "usd_per_1e9_tokens"};
    const char *cells[STW_SWEEP_MOST_AXES + 12];
    const uint32_t n = sweep->n_axes + 12;
    for (uint32_t a = 0; a < sweep->n_axes; a++) cells[a] = sweep->axes[a].key;
    memcpy(cells + sweep->n_axes, figures, sizeof figures);
    stw_csv_row(out, cells, n);
    for (uint32_t i = 0; i < sweep->n_points; i++) {
        const stw_sweep_row *row = &sweep->rows[i];
        char whole[3][24] = {"", "", ""};
        stw_word reals[] = {stw_word_plain_double(row->iteration_s),
                            stw_word_plain_double(row->tokens_per_s),
                            stw_word_plain_double(stw_sweep_tokens_per_gpu(row)),
                            stw_word_plain_double(stw_sweep_gpu_hours(row)),
                            stw_word_plain_double(stw_sweep_usd(row))};
        const uint64_t values[] = {row->gpus, row->gpu_peak_bytes, row->host_peak_bytes};
        for (int v = 0; v < 3 && row->gpus > 0; v++)
            snprintf(whole[v], sizeof whole[v], "%llu", (unsigned long long)values[v]);
        const char **at = cells + sweep->n_axes;
        for (uint32_t a = 0; a < sweep->n_axes; a++) cells[a] = stw_sweep_value(sweep, i, a);
        *at++ = stw_sweep_verdict_name(row->verdict);
        for (int v = 0; v < 3; v++) *at++ = whole[v];
        for (int v = 0; v < 4; v++) *at++ = reals[v].text;
        *at++ = row->binds != NULL ? row->binds : "";
        *at++ = row->front ? "true" : "false";
        *at++ = row->reason != NULL ? row->reason : "";
        *at++ = reals[4].text;
        stw_csv_row(out, cells, n);
    }
}

/* What decides, in a row of a screen. */
static void put_short_row(const stw_sweep *sweep, uint32_t i, stw_table *t) {
    const stw_sweep_row *row = &sweep->rows[i];
    const char *in = row->binds != NULL ? strstr(row->binds, " in ") : NULL;
    char name[64] = "", words[96] = "";
    if (in != NULL) snprintf(name, sizeof name, "%.*s", (int)(in - row->binds), row->binds);
    if (in != NULL) stw_resource_name_words(name, words, sizeof words);
    for (uint32_t a = 0; a < sweep->n_axes; a++)
        stw_table_cell(t, "%s", stw_sweep_value(sweep, i, a));
    stw_table_cell(t, "%s%s", stw_word_sweep_verdict(row->verdict), row->front ? " *" : "");
    stw_table_cell(t, "%s", row->gpus > 0 ? stw_word_count(row->gpus).text : "");
    stw_table_cell(t, "%s", row->gpus > 0 ? stw_word_gib(row->gpu_peak_bytes).text : "");
    put_number(t, row->tokens_per_s);
    put_number(t, stw_sweep_tokens_per_gpu(row));
    stw_table_cell(t, "%s", words);
}

/* Why rows were refused, or ended by the time limit: the first reason stands for the others. */
static void put_reason(const stw_sweep *sweep, stw_sweep_verdict verdict, const char *words,
                       stw_text *out) {
    for (uint32_t i = 0; i < sweep->n_points; i++) {
        if (sweep->rows[i].verdict != verdict || sweep->rows[i].reason == NULL) continue;
        stw_doc_line(out, STW_FORMAT_TERMINAL, "%s, for example: %s", words, sweep->rows[i].reason);
        return;
    }
}

/* The front, and the first of the other rows. */
static void put_short(const stw_sweep *sweep, uint32_t front, uint32_t most, stw_pool *pool,
                      stw_text *out) {
    static const char *const figures[] = {"verdict",   ">GPUs",    ">GPU peak",
                                          ">tokens/s", ">per GPU", "binds"};
    const char *heads[STW_SWEEP_MOST_AXES + 6];
    uint32_t n = 0, rows = 0;
    stw_table t;
    for (uint32_t a = 0; a < sweep->n_axes; a++) heads[n++] = sweep->axes[a].key;
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) heads[n++] = figures[i];
    put_reason(sweep, STW_SWEEP_REFUSED, "Refused", out);
    put_reason(sweep, STW_SWEEP_TIME_LIMIT, "Time limit", out);
    stw_text_printf(out, "\n");
    stw_table_begin(&t, pool, heads, n);
    t.spare = 2;
    uint32_t others = front < most ? most - front : 0;
    for (uint32_t i = 0; i < sweep->n_points && rows < most; i++) {
        if (!sweep->rows[i].front && others == 0) continue;
        if (!sweep->rows[i].front) others--;
        put_short_row(sweep, i, &t);
        rows++;
    }
    stw_table_write(&t, STW_FORMAT_TERMINAL, out);
    if (front > 0)
        stw_doc_line(out, STW_FORMAT_TERMINAL,
                     "*: no other row has as few GPUs and as many tokens per second and GPU.");
    if (sweep->n_points > rows)
        stw_doc_line(out, STW_FORMAT_TERMINAL, "%u more rows: --full, or -o FILE.html",
                     sweep->n_points - rows);
    else
        stw_doc_line(out, STW_FORMAT_TERMINAL, "More: --full, or -o FILE.html");
}

static void put_counts(const stw_sweep *sweep, stw_format format, stw_text *out) {
    stw_text line = STW_TEXT_INIT;
    uint32_t n = 0;
    for (int v = 0; v < STW_SWEEP_N_VERDICTS; v++) {
        uint32_t count = stw_sweep_count(sweep, (stw_sweep_verdict)v);
        if (count == 0) continue;
        stw_text_printf(&line, "%s%u %s", n++ > 0 ? ", " : "", count,
                        stw_word_sweep_verdict((stw_sweep_verdict)v));
    }
    if (line.failed) out->failed = true;
    if (line.data != NULL)
        stw_doc_line(out, format, "%u combinations: %s.", sweep->n_points, line.data);
    stw_text_free(&line);
}

/* Rows train on other batches, unless a key keeps them: that is said beside what compares them. */
static void put_tokens(const stw_sweep *sweep, stw_format format, stw_text *out) {
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; i < sweep->n_points; i++) {
        const double tokens = sweep->rows[i].iteration_s * sweep->rows[i].tokens_per_s;
        if (!(tokens >= 1) || !(tokens < 1e18)) continue;
        const uint64_t n = (uint64_t)(tokens + 0.5);
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    if (most > least)
        stw_doc_line(out, format,
                     "An iteration has %s to %s tokens: batch.tokens_per_step with "
                     "batch.grad_accumulation: auto keeps those of a step.",
                     stw_word_count(least).text, stw_word_count(most).text);
}

stw_status stw_report_sweep(const stw_sweep *sweep, bool all_rows, stw_format format, stw_text *out,
                            stw_error *err) {
    if (format == STW_FORMAT_JSON) return stw_sweep_to_json(sweep, out, err);
    stw_pool *pool = stw_pool_new();
    uint32_t front = 0;
    if (pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (format == STW_FORMAT_CSV) {
        put_csv(sweep, out);
        stw_pool_free(pool);
        return stw_text_status(out, err);
    }
    stw_doc_title(out, format, "Sweep: %s on %s", sweep->arguments.model, sweep->arguments.cluster);
    const uint32_t booked = stw_book_put(sweep, format, pool, out);
    put_counts(sweep, format, out);
    for (uint32_t i = 0; i < sweep->n_points; i++) front += sweep->rows[i].front;
    put_tokens(sweep, format, out);
    if (!all_rows && format == STW_FORMAT_TERMINAL) {
        const uint32_t taken = booked > 0 ? booked + BOOK_LINES : 0;
        put_short(sweep, front, taken < MOST_ROWS - LEAST_ROWS ? MOST_ROWS - taken : LEAST_ROWS,
                  pool, out);
        stw_pool_free(pool);
        return stw_text_status(out, err);
    }
    stw_doc_line(out, format,
                 front > 0
                     ? "Rows with * are the Pareto front: no other row has as few GPUs and as many "
                       "tokens per second and GPU."
                     : "No row fits, so there is no Pareto front.");
    if (front > 0) {
        stw_doc_heading(out, format, "Pareto front: GPUs against tokens per second and GPU");
        put_rows(sweep, true, format, pool, out);
    }
    stw_doc_heading(out, format, "All combinations");
    put_rows(sweep, false, format, pool, out);
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

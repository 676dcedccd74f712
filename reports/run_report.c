/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/median.h"
#include "core/units.h"
#include "reports/table.h"

static const char *const digest_names[STW_N_DIGESTS] = {"params", "exp_avg", "exp_avg_sq",
                                                        "master"};

/* The seconds of the steps after the first, which are those behind time_s: the first is a phase of
 * its own. The caller may sort the copy. @param failed out: memory is out */
static double *copy_later_steps(const stw_run_result *run, stw_pool *pool, uint32_t *n,
                                bool *failed) {
    *n = 0;
    *failed = false;
    for (uint32_t m = 0; m < run->n_movements; m++) {
        const stw_run_movement *movement = &run->movements[m];
        if (movement->phase != STW_PHASE_OPTIMIZER_STEP || movement->n_samples == 0) continue;
        double *copy = stw_pool_array(pool, movement->n_samples, sizeof *copy);
        *failed = copy == NULL;
        if (copy == NULL) return NULL;
        memcpy(copy, movement->samples_s, movement->n_samples * sizeof *copy);
        *n = movement->n_samples;
        return copy;
    }
    return NULL;
}

static void put_steps(const stw_run_result *run, stw_format format, stw_pool *pool, stw_text *out) {
    const double first_s = run->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP];
    uint32_t n;
    bool failed;
    double *steps_s = copy_later_steps(run, pool, &n, &failed);
    if (failed) out->failed = true;
    if (isfinite(first_s))
        stw_doc_line(out, format, "First optimizer step: %s.", stw_word_seconds(first_s).text);
    if (steps_s == NULL) return;
    double median_s = stw_median(steps_s, n);
    stw_doc_line(out, format, "Optimizer step: median %s of %u step%s%s (%s to %s).",
                 stw_word_seconds(median_s).text, n, n > 1 ? "s" : "",
                 run->first_step > 1 ? "" : " after the first", stw_word_seconds(steps_s[0]).text,
                 stw_word_seconds(steps_s[n - 1]).text);
}

static void put_rates(const stw_run_result *run, stw_format format, stw_text *out) {
    stw_word params, up, down;
    if (!(run->params_per_s > 0)) return;
    stw_quantity_format(run->params_per_s, STW_UNIT_PPS, params.text, sizeof params.text);
    stw_quantity_format(isfinite(run->up_bps) ? run->up_bps : 0, STW_UNIT_BPS, up.text,
                        sizeof up.text);
    stw_quantity_format(isfinite(run->down_bps) ? run->down_bps : 0, STW_UNIT_BPS, down.text,
                        sizeof down.text);
    if (run->up_bps > 0 || run->down_bps > 0)
        stw_doc_line(out, format, "Optimizer step per rank: %s, %s host to GPU, %s GPU to host.",
                     params.text, up.text, down.text);
    else
        stw_doc_line(out, format, "Optimizer step per rank: %s.", params.text);
}

/* The step's copies alone and raw copies, if the run measured them. */
static void put_links(const stw_run_result *run, stw_format format, stw_text *out) {
    if (isfinite(run->copies_s))
        stw_doc_line(out, format, "The copies of an optimizer step alone: %s.",
                     stw_word_seconds(run->copies_s).text);
    for (uint32_t i = 0; i < run->n_links; i++) {
        char bytes[32], rate[32];
        stw_bytes_format(run->links[i].bytes, bytes, sizeof bytes);
        stw_quantity_format(run->links[i].bps, STW_UNIT_BPS, rate, sizeof rate);
        if (run->links[i].ring > 0)
            stw_doc_line(out, format, "Raw copies of %s, up and back through %u slots: %s.", bytes,
                         run->links[i].ring, rate);
        else
            stw_doc_line(out, format, "Raw copies of %s, %u stream(s) each way: %s.", bytes,
                         run->links[i].streams, rate);
    }
    if (isfinite(run->link_share))
        stw_doc_line(out, format, "The optimizer step reaches %.1f%% of the fastest raw copies.",
                     100 * run->link_share);
}

static void put_checks(const stw_run_result *run, stw_format format, stw_text *out) {
    if (run->checked > 0)
        stw_doc_line(out, format, "Verification: %s%s%s elements checked, %s mismatches.",
                     stw_word_count(run->checked).text, run->elements > 0 ? " of " : "",
                     run->elements > 0 ? stw_word_count(run->elements).text : "",
                     stw_word_count(run->mismatched).text);
    char master[32] = "";
    if (run->digest[3] != 0)
        snprintf(master, sizeof master, ", master %016" PRIx64, run->digest[3]);
    if ((run->digest[0] | run->digest[1] | run->digest[2]) != 0)
        stw_doc_line(out, format,
                     "Digests: params %016" PRIx64 ", exp_avg %016" PRIx64
                     ", exp_avg_sq %016" PRIx64 "%s.",
                     run->digest[0], run->digest[1], run->digest[2], master);
    if (isfinite(run->gpu_growth_bytes) && isfinite(run->host_growth_bytes))
        stw_doc_line(
            out, format,
            "Memory growth after the first 10%% of the steps: GPU %.0f bytes, host %.0f bytes.",
            run->gpu_growth_bytes, run->host_growth_bytes);
    if (isfinite(run->grad_norm))
        stw_doc_line(out, format, "Gradient norm of the last step: %.9g.", run->grad_norm);
    else if (run->clips)
        stw_doc_line(out, format, "Gradient norm of the last step: %s.",
                     isnan(run->grad_norm) ? "NaN" : "infinite");
    if (run->nonfinite_steps > 0)
        stw_doc_line(out, format,
                     "Gradient norms that are not finite: of %s of %u steps, the first is step %s.",
                     stw_word_count(run->nonfinite_steps).text, run->steps,
                     stw_word_count(run->first_nonfinite_step).text);
}

static bool measured_anywhere(const stw_run_result *run, unsigned phase) {
    for (uint32_t i = 0; i < run->n_ranks; i++)
        if (run->ranks[i].phases[phase].known) return true;
    return isfinite(run->time_s[phase]);
}

static void put_times(const stw_run_result *run, stw_format format, stw_pool *pool, stw_text *out) {
    static const char *const heads[] = {"phase", ">time"};
    stw_table t;
    stw_table_begin(&t, pool, heads, 2);
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        if (!measured_anywhere(run, p) && !run->not_run[p]) continue;
        stw_table_cell(&t, "%s", stw_phase_name((stw_phase)p));
        stw_table_cell(&t, "%s",
                       run->not_run[p] ? "not executed" : stw_word_seconds(run->time_s[p]).text);
    }
    stw_table_write(&t, format, out);
}

static const char *gib_or_nothing(stw_word *word, uint64_t bytes) {
    *word = stw_word_gib(bytes);
    return bytes > 0 ? word->text : "";
}

static void put_ranks(const stw_run_result *run, stw_format format, stw_pool *pool, stw_text *out) {
    static const char *const heads[] = {"rank",       "phase", ">GPU allocated",
                                        ">GPU total", ">host", ">page-locked"};
    stw_word word;
    stw_table t;
    stw_table_begin(&t, pool, heads, 6);
    for (uint32_t i = 0; i < run->n_ranks; i++) {
        const stw_run_rank *rank = &run->ranks[i];
        for (unsigned p = 0; p < STW_N_PHASES; p++) {
            const stw_measured *m = &rank->phases[p];
            if (!m->known) continue;
            stw_table_cell(&t, "%u", rank->rank);
            stw_table_cell(&t, "%s", stw_phase_name((stw_phase)p));
            stw_table_cell(&t, "%s", gib_or_nothing(&word, m->allocated));
            stw_table_cell(&t, "%s", gib_or_nothing(&word, m->device));
            stw_table_cell(&t, "%s", gib_or_nothing(&word, m->host));
            stw_table_cell(&t, "%s", gib_or_nothing(&word, m->page_locked));
        }
    }
    if (format == STW_FORMAT_TERMINAL) stw_text_printf(out, "\n");
    stw_table_write(&t, format, out);
}

static void csv_row(stw_text *out, const char *of, const char *phase, const char *what,
                    const char *value, const char *unit) {
    const char *const cells[] = {of, phase, what, value, unit};
    stw_csv_row(out, cells, 5);
}

static void csv_u64(stw_text *out, const char *of, const char *phase, const char *what,
                    uint64_t value, const char *unit) {
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    csv_row(out, of, phase, what, digits, unit);
}

static void csv_double(stw_text *out, const char *of, const char *phase, const char *what,
                       double value, const char *unit) {
    csv_row(out, of, phase, what, stw_word_plain_double(value).text, unit);
}

static void csv_measured(stw_text *out, const char *of, unsigned p, const stw_measured *m) {
    const char *phase = stw_phase_name((stw_phase)p);
    char what[48];
    csv_u64(out, of, phase, "gpu_allocated", m->allocated, "B");
    csv_u64(out, of, phase, "gpu_reserved", m->reserved, "B");
    csv_u64(out, of, phase, "gpu_device", m->device, "B");
    csv_u64(out, of, phase, "host", m->host, "B");
    csv_u64(out, of, phase, "page_locked", m->page_locked, "B");
    for (unsigned c = 0; c < STW_N_COMPONENTS; c++) {
        const char *name = stw_component_name((stw_component)c);
        snprintf(what, sizeof what, "gpu %s", name);
        if (m->gpu_components[c] > 0) csv_u64(out, of, phase, what, m->gpu_components[c], "B");
        snprintf(what, sizeof what, "host %s", name);
        if (m->host_components[c] > 0) csv_u64(out, of, phase, what, m->host_components[c], "B");
    }
}

static void write_csv(const stw_run_result *run, stw_text *out) {
    char of[32], digits[24];
    csv_row(out, "of", "phase", "what", "value", "unit");
    csv_row(out, "job", "", "source", run->source, "");
    csv_row(out, "job", "", "backend", run->backend, "");
    csv_row(out, "job", "", "device", run->device, "");
    csv_u64(out, "job", "", "ranks", run->world, "count");
    csv_u64(out, "job", "", "steps", run->steps, "count");
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (isfinite(run->time_s[p]))
            csv_double(out, "job", stw_phase_name((stw_phase)p), "time", run->time_s[p], "s");
    for (uint32_t i = 0; i < run->n_step_all; i++)
        csv_double(out, "job", "optimizer_step", "sample", run->step_all_s[i], "s");
    csv_double(out, "job", "optimizer_step", "params_per_s", run->params_per_s, "param/s");
    csv_double(out, "job", "optimizer_step", "bytes_per_s_up", run->up_bps, "B/s");
    csv_double(out, "job", "optimizer_step", "bytes_per_s_down", run->down_bps, "B/s");
    csv_u64(out, "job", "", "checked", run->checked, "count");
    csv_u64(out, "job", "", "mismatched", run->mismatched, "count");
    for (uint32_t i = 0; i < run->n_links; i++) {
        snprintf(of, sizeof of, "link %llu B x %u%s", (unsigned long long)run->links[i].bytes,
                 run->links[i].ring > 0 ? run->links[i].ring : run->links[i].streams,
                 run->links[i].ring > 0 ? " slots" : "");
        csv_double(out, "job", "optimizer_step", of, run->links[i].bps, "B/s");
    }
    for (unsigned i = 0; i < STW_N_DIGESTS; i++) {
        if (i == 3 && run->digest[i] == 0) continue;
        snprintf(of, sizeof of, "digest %s", digest_names[i]);
        snprintf(digits, sizeof digits, "%016" PRIx64, run->digest[i]);
        csv_row(out, "job", "", of, digits, "");
    }
    for (uint32_t i = 0; i < run->n_ranks; i++) {
        snprintf(of, sizeof of, "rank %u", run->ranks[i].rank);
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            if (run->ranks[i].phases[p].known) csv_measured(out, of, p, &run->ranks[i].phases[p]);
    }
}

static bool is_known(const char *text) { return text != NULL && *text != '\0'; }

/* "stowage on NVIDIA H200 (cuda): 4 ranks, 10 optimizer steps, seed 1." of a run, "Recorded by
 * another program: 8 ranks, ..." of what others measured, as far as their files say. */
static void put_origin(const stw_run_result *run, stw_format format, stw_text *out) {
    const bool external = is_known(run->source) && strcmp(run->source, "external") == 0;
    const uint32_t ranks = run->n_ranks > run->world ? run->n_ranks : run->world;
    stw_text line = STW_TEXT_INIT;
    stw_text_printf(&line, "%s",
                    external                ? "Measured by another program"
                    : is_known(run->source) ? run->source
                                            : "run");
    if (is_known(run->device)) stw_text_printf(&line, " on %s", run->device);
    if (is_known(run->backend)) stw_text_printf(&line, " (%s)", run->backend);
    stw_text_printf(&line, ": ");
    if (ranks > 0)
        stw_text_printf(&line, "%u rank%s", ranks, ranks > 1 ? "s" : "");
    else
        stw_text_printf(&line, "ranks unknown");
    if (run->first_step > 1)
        stw_text_printf(&line, ", resumed after optimizer step %u of %u", run->first_step - 1,
                        run->steps);
    else if (run->steps > 0 || !external)
        stw_text_printf(&line, ", %u optimizer step%s", run->steps, run->steps == 1 ? "" : "s");
    if (!external) stw_text_printf(&line, ", seed %" PRIu64, run->seed);
    if (line.failed || line.data == NULL)
        out->failed = true;
    else
        stw_doc_line(out, format, "%s.", line.data);
    stw_text_free(&line);
}

static void write_for_people(const stw_run_result *run, stw_format format, stw_pool *pool,
                             stw_text *out) {
    put_origin(run, format, out);
    put_steps(run, format, pool, out);
    put_rates(run, format, out);
    put_links(run, format, out);
    put_checks(run, format, out);
    if (format == STW_FORMAT_TERMINAL) stw_text_printf(out, "\n");
    put_times(run, format, pool, out);
    if (format == STW_FORMAT_MARKDOWN) stw_text_printf(out, "\n");
    put_ranks(run, format, pool, out);
}

stw_status stw_report_run(const stw_run_result *run, stw_format format, stw_text *out,
                          stw_error *err) {
    if (format == STW_FORMAT_JSON) return stw_run_result_to_json(run, out, err);
    stw_pool *pool = stw_pool_new();
    if (pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (format == STW_FORMAT_CSV)
        write_csv(run, out);
    else
        write_for_people(run, format, pool, out);
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reports/cost.h"
#include "reports/facts.h"
#include "reports/table.h"
#include "reports/verdict.h"

/* "3 x 8 GPUs", "2 GPUs" */
static stw_word size_words(const stw_cluster *c) {
    stw_word w;
    if (c->nodes > 1)
        snprintf(w.text, sizeof w.text, "%" PRIu32 " nodes x %" PRIu32, c->nodes, c->gpus);
    else
        snprintf(w.text, sizeof w.text, "%" PRIu32 " GPU%s", c->gpus, c->gpus == 1 ? "" : "s");
    return w;
}

typedef struct layout_line {
    char text[280];
} layout_line;

/** A row of the tables: the smallest, or the cheapest. */
typedef struct part {
    const stw_size_answer *of;
    const char *name;
    const stw_cluster *cluster;
    const stw_sweep_row *row;
    const stw_size_setup *setup;
    uint32_t n_settings;
    const char *const *settings;
    const char *command;
} part;

static part smallest_of(const stw_size_answer *a) {
    return (part){a,         "smallest",    &a->cluster, &a->row,
                  &a->setup, a->n_settings, a->settings, a->command};
}

static part cheapest_of(const stw_size_answer *a) {
    return (part){a,
                  "cheapest",
                  &a->cheapest,
                  &a->cheapest_row,
                  &a->cheapest_setup,
                  a->n_cheapest_settings,
                  a->cheapest_settings,
                  a->cheapest_command};
}

static bool has_cheapest(const stw_size_answer *a) {
    return a->fits && a->cheapest.nodes > 0 && isfinite(stw_sweep_gpu_hours(&a->cheapest_row));
}

/* Keys of parallel without it; the engine has a column. */
static void layout_words(const part *p, char *out, size_t out_size) {
    static const char section[] = "parallel.", engine[] = "engine=";
    const size_t skipped = sizeof section - 1;
    size_t length = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < p->n_settings && length < out_size; i++) {
        const char *setting = p->settings[i];
        if (strncmp(setting, engine, sizeof engine - 1) == 0) continue;
        const bool skips = strncmp(setting, section, skipped) == 0;
        int n = snprintf(out + length, out_size - length, "%s%s", length > 0 ? " " : "",
                         skips ? setting + skipped : setting);
        length += n > 0 ? (size_t)n : 0;
    }
}

/* "bf16/fp32/fp32/fp32": params, grads, master and moments. */
static stw_word precision_words(const stw_size_setup *setup) {
    stw_word w = {""};
    if (setup->engine == NULL) return w;
    snprintf(w.text, sizeof w.text, "%.10s/%.10s/%s/%.10s", stw_word_dtype(setup->params).text,
             stw_word_dtype(setup->grads).text, setup->has_master ? "fp32" : "none",
             stw_word_dtype(setup->exp_avg).text);
    return w;
}

/* The share of a GPU's memory that its plan leaves free; NaN: there is none, or it is over it. */
static double margin_of(const part *p) {
    const double memory = (double)p->cluster->gpu.memory_bytes;
    if (p->row->gpus == 0 || !(memory > 0)) return (double)NAN;
    return 1 - (double)p->row->gpu_peak_bytes / memory;
}

static stw_word margin_words(const part *p) {
    stw_word w = {""};
    const double margin = margin_of(p);
    if (isfinite(margin) && margin >= 0) snprintf(w.text, sizeof w.text, "%.1f%%", 100 * margin);
    return w;
}

static bool is_of_several(const stw_size_answer *answers, uint32_t n) {
    return n > 0 && answers[n - 1].model != answers[0].model;
}

/* Nothing where it is not known. */
static stw_word known(uint64_t count) { return count > 0 ? stw_word_count(count) : (stw_word){""}; }

/* The longest sequence, or another most of a row: it is at risk where the row is. */
static void put_most(stw_table *t, const stw_size_answer *a, uint64_t most) {
    const bool risky = most > 0 && a->row.verdict == STW_SWEEP_AT_RISK;
    stw_table_cell(t, "%s%s", known(most).text, risky ? " at risk" : "");
}

/* Not where it is at risk or a part is unknown. */
static bool shown_to_fit(const stw_size_answer *a) {
    return a->fits && a->row.verdict == STW_SWEEP_FITS;
}

static void put_row(const part *p, bool several, bool prices, stw_table *t) {
    const stw_size_answer *a = p->of;
    const stw_sweep_row *row = p->row;
    const bool smallest = p->row == &a->row, planned = row->gpus > 0;
    const double hours = stw_sweep_gpu_hours(row), usd = stw_sweep_usd(row);
    char layout[240], bound[160];
    layout_words(p, layout, sizeof layout);
    stw_bound_words(row->binds, bound, sizeof bound);
    if (several) stw_table_cell(t, "%s", a->model->name);
    stw_table_cell(t, "%s", a->name);
    stw_table_cell(t, "%s", p->name);
    if (a->fits)
        stw_table_cell(t, "%s", size_words(p->cluster).text);
    else
        stw_table_cell(t, "none up to %" PRIu32 " nodes", p->cluster->nodes);
    stw_table_cell(t, "%s", stw_word_sweep_verdict(row->verdict));
    stw_table_cell(t, "%s", p->setup->engine != NULL ? p->setup->engine : "");
    stw_table_cell(t, "%s", precision_words(p->setup).text);
    stw_table_cell(t, "%s", layout);
    stw_table_cell(t, "%s", planned ? stw_word_gib(row->gpu_peak_bytes).text : "");
    stw_table_cell(t, "%s", margin_words(p).text);
    stw_table_cell(t, "%s", planned ? stw_word_gib(row->host_peak_bytes).text : "");
    stw_table_cell(t, "%s",
                   row->tokens_per_s > 0 ? stw_word_count((uint64_t)(row->tokens_per_s + 0.5)).text
                                         : "");
    stw_table_cell(t, "%s", isfinite(hours) ? stw_word_number(hours).text : "");
    if (prices) stw_table_cell(t, "%s", isfinite(usd) ? stw_word_number(usd).text : "");
    stw_table_cell(t, "%s", row->reason != NULL ? row->reason : bound);
    put_most(t, a, smallest ? a->longest_seq_len : 0);
    put_most(t, a, smallest ? a->largest_micro_batch : 0);
}

static bool has_prices(const stw_size_answer *answers, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (answers[i].cheapest_row.usd_per_gpu_hour > 0) return true;
    return false;
}

static void put_table(const stw_size_answer *answers, uint32_t n, stw_format format, stw_pool *pool,
                      stw_text *out) {
    static const char *const all[] = {"model",
                                      "kind",
                                      "",
                                      "GPUs",
                                      "verdict",
                                      "engine",
                                      "params/grads/master/moments",
                                      "layout",
                                      ">GPU peak",
                                      ">free",
                                      ">host memory per node",
                                      ">tokens/s",
                                      ">GPU-hours per 1e9 tokens",
                                      ">USD per 1e9 tokens",
                                      "binds",
                                      ">longest sequence",
                                      ">largest micro batch"};
    const bool prices = has_prices(answers, n), several = is_of_several(answers, n);
    const char *heads[sizeof all / sizeof all[0]];
    uint32_t n_heads = 0;
    for (size_t i = several ? 0 : 1; i < sizeof all / sizeof all[0]; i++)
        if (prices || strncmp(all[i], ">USD", 4) != 0) heads[n_heads++] = all[i];
    stw_table t;
    stw_table_begin(&t, pool, heads, n_heads);
    for (uint32_t i = 0; i < n; i++) {
        const part smallest = smallest_of(&answers[i]), cheapest = cheapest_of(&answers[i]);
        put_row(&smallest, several, prices, &t);
        if (has_cheapest(&answers[i])) put_row(&cheapest, several, prices, &t);
    }
    stw_table_write(&t, format, out);
}

static void put_heading(const stw_size_answer *answers, uint32_t n, stw_format format,
                        stw_text *out) {
    uint32_t models = n > 0;
    for (uint32_t i = 1; i < n; i++) models += answers[i].model != answers[i - 1].model;
    if (models > 1)
        stw_doc_title(out, format, "The smallest clusters on which %" PRIu32 " models fit", models);
    else
        stw_doc_title(out, format, "The smallest clusters on which %s%s fits",
                      answers[0].model->facts_known ? "" : "the state of ", answers[0].model->name);
}

/* What was planned: engine, precision and the tokens of a step. */
static void put_setup(const stw_size_answer *answers, uint32_t n, stw_format format,
                      stw_text *out) {
    const stw_size_setup *first = NULL;
    bool same = true;
    uint64_t least = UINT64_MAX, most = 0;
    char tokens[120] = "";
    for (uint32_t i = 0; i < n; i++) {
        const stw_size_setup *setup = &answers[i].setup;
        if (setup->engine == NULL) continue;
        if (first == NULL) first = setup;
        same = same && setup->engine == first->engine &&
               strcmp(precision_words(setup).text, precision_words(first).text) == 0;
        if (!answers[i].fits || setup->step_tokens == 0) continue;
        least = setup->step_tokens < least ? setup->step_tokens : least;
        most = setup->step_tokens > most ? setup->step_tokens : most;
    }
    if (first == NULL) return;
    if (most > 0)
        snprintf(tokens, sizeof tokens, " A step has %s%s%s tokens.",
                 least < most ? stw_word_count(least).text : "", least < most ? " to " : "",
                 stw_word_count(most).text);
    stw_doc_line(out, format, "Engine %s; params/grads/master/moments %s%s.%s", first->engine,
                 precision_words(first).text, same ? "" : ", others where said", tokens);
}

/* What a row at risk means, and how many are enough. */
static void put_risk(const stw_size_answer *a, bool brief, stw_format format, stw_text *out) {
    const char *why =
        brief ? "."
              : ": a run may be over a limit that the plan keeps (`stowage plan` says which).";
    const char *layout = a->safe_layout != NULL ? a->safe_layout : "";
    char safe[400];
    if (a->safe.nodes > 0)
        snprintf(safe, sizeof safe, "Without risk: %s%s%s%s.", size_words(&a->safe).text,
                 layout[0] != '\0' ? " (" : "", layout, layout[0] != '\0' ? ")" : "");
    else
        snprintf(safe, sizeof safe, "Nothing without risk was found up to %" PRIu32 " nodes.",
                 stw_size_bound(a->cluster.nodes));
    stw_doc_line(out, format, "%s on %s of %s is at risk%s %s", a->model->name,
                 size_words(&a->cluster).text, a->name, why, safe);
}

/* What the time limit leaves open where something was found. */
static void put_late(const stw_size_answer *answers, uint32_t n, stw_format format, stw_text *out) {
    uint64_t late = 0, planned = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!answers[i].fits) continue;
        late += answers[i].late;
        planned += answers[i].planned;
    }
    if (late > 0)
        stw_doc_line(out, format,
                     "The time limit ended %s of %s searches and plans: less may be enough, and "
                     "longer sequences may fit; raise --time-limit.",
                     stw_word_count(late).text, stw_word_count(planned).text);
}

/* ---- the summary ---- */

/* Rows that a screen has room for, and remarks below them. */
enum { MOST_ROWS = 10, MOST_REMARKS = 2 };

static void put_short_row(const stw_size_answer *a, bool several, bool prices, stw_table *t) {
    const stw_sweep_row *row = &a->row;
    const part smallest = smallest_of(a), cheapest = cheapest_of(a);
    const bool known_hours = has_cheapest(a);
    const double hours = stw_sweep_gpu_hours(&a->cheapest_row),
                 usd = stw_sweep_usd(&a->cheapest_row);
    if (several) stw_table_cell(t, "%s", a->model->name);
    stw_table_cell(t, "%s", a->name);
    if (a->fits)
        stw_table_cell(t, "%s", size_words(&a->cluster).text);
    else
        stw_table_cell(t, "none up to %" PRIu32 " nodes", a->cluster.nodes);
    stw_table_cell(t, "%s", stw_word_sweep_verdict(row->verdict));
    stw_table_cell(t, "%s", margin_words(&smallest).text);
    stw_table_cell(t, "%s",
                   row->tokens_per_s > 0 ? stw_word_count((uint64_t)(row->tokens_per_s + 0.5)).text
                                         : "");
    const bool other = known_hours && cheapest.setup->engine != smallest.setup->engine;
    stw_table_cell(t, "%s%s%s", known_hours ? size_words(&a->cheapest).text : "", other ? ", " : "",
                   other ? cheapest.setup->engine : "");
    stw_table_cell(t, "%s", known_hours ? stw_word_number(hours).text : "");
    if (prices)
        stw_table_cell(t, "%s", known_hours && isfinite(usd) ? stw_word_number(usd).text : "");
    put_most(t, a, a->longest_seq_len);
    stw_table_cell(t, "%s", known_hours ? cheapest.setup->engine : "");
    stw_table_cell(t, "%s", known_hours ? precision_words(cheapest.setup).text : "");
    stw_table_cell(t, "%s", known_hours ? margin_words(&cheapest).text : "");
}

/* A layout, behind engine and precision where these are not those of the first row. */
static layout_line below_words(const part *p, const stw_size_setup *first) {
    layout_line w;
    char layout[200];
    const bool same = p->setup->engine == first->engine || p->setup->engine == NULL;
    layout_words(p, layout, sizeof layout);
    snprintf(w.text, sizeof w.text, "%s%s%s%s%s", same ? "" : p->setup->engine, same ? "" : " ",
             same ? "" : precision_words(p->setup).text, same || layout[0] == '\0' ? "" : ", ",
             layout);
    return w;
}

/* Layouts stand below the table, which has no room for them; the rows of one share a line. */
static void put_layouts(const stw_size_answer *answers, uint32_t n, bool several, stw_text *out) {
    for (uint32_t i = 0; i < 2 * n; i++) {
        const part mine = i % 2 > 0 ? cheapest_of(&answers[i / 2]) : smallest_of(&answers[i / 2]);
        const layout_line layout = below_words(&mine, &answers[0].setup);
        stw_text rows = STW_TEXT_INIT;
        bool said = false;
        for (uint32_t k = 0; k < n && layout.text[0] != '\0'; k++) {
            const part all[] = {smallest_of(&answers[k]), cheapest_of(&answers[k])};
            bool is[2];
            for (uint32_t j = 0; j < 2; j++) {
                const layout_line other = below_words(&all[j], &answers[0].setup);
                is[j] = strcmp(other.text, layout.text) == 0;
                said = said || (is[j] && 2 * k + j < i);
            }
            if (!is[0] && !is[1]) continue;
            stw_text_printf(&rows, "%s%s%s%s%s", rows.length > 0 ? ", " : "",
                            several ? all[0].of->model->name : "", several ? " on " : "",
                            all[0].of->name,
                            is[0] && is[1] ? ""
                            : is[0]        ? " (smallest)"
                                           : " (cheapest)");
        }
        if (rows.length > 0 && !said)
            stw_doc_line(out, STW_FORMAT_TERMINAL, "Layout of %s: %s", rows.data, layout.text);
        if (rows.failed) out->failed = true;
        stw_text_free(&rows);
    }
}

/* On what a plan depends: once for all rows. */
static void put_needs(const stw_size_answer *answers, uint32_t n, stw_text *out) {
    for (uint32_t i = 0; i < n; i++)
        if (answers[i].fits && answers[i].needs != NULL) {
            stw_doc_line(out, STW_FORMAT_TERMINAL, "%s", answers[i].needs);
            return;
        }
}

/* The first rows at risk. */
static void put_risks(const stw_size_answer *answers, uint32_t n, stw_text *out) {
    uint32_t named = 0;
    for (uint32_t i = 0; i < n && named < MOST_REMARKS; i++) {
        if (!answers[i].fits || answers[i].row.verdict != STW_SWEEP_AT_RISK) continue;
        put_risk(&answers[i], true, STW_FORMAT_TERMINAL, out);
        named++;
    }
}

/* What would help on the first kinds on which it does not fit, or is not known to. */
static void put_unfit(const stw_size_answer *answers, uint32_t n, stw_text *out) {
    uint32_t named = 0;
    for (uint32_t i = 0; i < n; i++) {
        const stw_size_answer *a = &answers[i];
        const bool unknown = a->row.verdict == STW_SWEEP_UNKNOWN;
        if ((a->fits && !unknown) || named++ >= MOST_REMARKS) continue;
        if (a->row.reason != NULL) {
            stw_doc_line(out, STW_FORMAT_TERMINAL, "%s on %s: %s", a->model->name, a->name,
                         a->row.reason);
            continue;
        }
        if (unknown) {
            stw_doc_line(out, STW_FORMAT_TERMINAL,
                         "%s on %s: the state fits; forward and backward are unknown.",
                         a->model->name, a->name);
            continue;
        }
        stw_doc_line(out, STW_FORMAT_TERMINAL, "%s on %s does not fit. %s%s.", a->model->name,
                     a->name,
                     a->help != NULL ? "It fits with "
                                     : "Neither lower precision nor another engine is enough",
                     a->help != NULL ? a->help : "");
    }
}

stw_status stw_report_size_summary(const stw_size_answer *answers, uint32_t n, stw_text *out,
                                   stw_error *err) {
    const bool several = is_of_several(answers, n), prices = has_prices(answers, n);
    const char *heads[16];
    uint32_t n_heads = 0;
    if (several) heads[n_heads++] = "model";
    heads[n_heads++] = "kind";
    heads[n_heads++] = "smallest";
    heads[n_heads++] = "verdict";
    heads[n_heads++] = ">free";
    heads[n_heads++] = ">tokens/s";
    heads[n_heads++] = "cheapest";
    heads[n_heads++] = ">GPU-h per 1e9";
    if (prices) heads[n_heads++] = ">USD per 1e9";
    heads[n_heads++] = ">longest seq";
    heads[n_heads++] = "engine there";
    heads[n_heads++] = "precision there";
    heads[n_heads++] = ">free there";
    stw_table t;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    put_heading(answers, n, STW_FORMAT_TERMINAL, out);
    stw_size_recommend(answers, n, STW_FORMAT_TERMINAL, out);
    put_setup(answers, n, STW_FORMAT_TERMINAL, out);
    stw_table_begin(&t, pool, heads, n_heads);
    t.spare = 4;
    const uint32_t shown = n < MOST_ROWS ? n : MOST_ROWS;
    for (uint32_t i = 0; i < shown; i++) put_short_row(&answers[i], several, prices, &t);
    stw_table_write(&t, STW_FORMAT_TERMINAL, out);
    if (n > MOST_ROWS)
        stw_doc_line(out, STW_FORMAT_TERMINAL, "%" PRIu32 " more rows: --full.", n - MOST_ROWS);
    put_layouts(answers, shown, several, out);
    put_needs(answers, n, out);
    put_risks(answers, n, out);
    put_late(answers, n, STW_FORMAT_TERMINAL, out);
    put_unfit(answers, n, out);
    bool timed = false;
    for (uint32_t i = 0; i < shown; i++) timed = timed || has_cheapest(&answers[i]);
    stw_doc_line(out, STW_FORMAT_TERMINAL, "%sMore: --full, or -o FILE",
                 timed
                     ? "Free: share of GPU memory. Cheapest: fewest GPU-hours for 10^9 tokens, up "
                       "to 16 nodes or 4 times the smallest. "
                     : "");
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

/* ---- the report ---- */

/* What the figures are without, and on what a row depends. */
static void put_remarks(const stw_size_answer *answers, uint32_t n, stw_format format,
                        stw_text *out) {
    bool of_trainer = false;
    for (uint32_t i = 0; i < n; i++) of_trainer = of_trainer || answers[i].of_trainer;
    if (of_trainer)
        stw_doc_line(out, format,
                     "The seconds of the roles beside the trainer are not predicted: tokens/s and "
                     "GPU-hours are without them.");
    for (uint32_t i = 0; i < n; i++) {
        const stw_size_answer *a = &answers[i];
        if (!a->fits) continue;
        if (a->row.verdict == STW_SWEEP_AT_RISK) put_risk(a, false, format, out);
        if (a->row.verdict == STW_SWEEP_UNKNOWN)
            stw_doc_line(out, format,
                         "%s on %s of %s: the state fits; forward and backward are unknown.",
                         a->model->name, size_words(&a->cluster).text, a->name);
        if (a->needs != NULL)
            stw_doc_line(out, format,
                         "%s on %s of %s: %s Without it: --set optimizer.implementation=fused.",
                         a->model->name, size_words(&a->cluster).text, a->name, a->needs);
    }
    put_late(answers, n, format, out);
    stw_doc_part(out, format, "answer");
    stw_size_recommend(answers, n, format, out);
    stw_doc_part(out, format, "rest");
}

static void put_commands(const stw_size_answer *answers, uint32_t n, stw_format format,
                         stw_text *out) {
    for (uint32_t i = 0; i < 2 * n; i++) {
        const stw_size_answer *a = &answers[i / 2];
        const part p = i % 2 > 0 ? cheapest_of(a) : smallest_of(a);
        if (p.command != NULL)
            stw_doc_line(out, format, "%s on %s, %s: %s", a->model->name, a->name, p.name,
                         p.command);
    }
}

/* What would help where it does not fit. */
static void put_helps(const stw_size_answer *answers, uint32_t n, stw_format format,
                      stw_text *out) {
    for (uint32_t i = 0; i < n; i++) {
        const stw_size_answer *a = &answers[i];
        if (a->fits || a->row.reason != NULL) continue;
        const uint64_t limit = a->cluster.gpu.memory_bytes;
        char over[240] = "";
        if (a->row.gpu_peak_bytes > limit)
            snprintf(over, sizeof over, ": a GPU needs %s of %s at least, whatever the nodes",
                     stw_word_gib(a->row.gpu_peak_bytes).text, stw_word_gib(limit).text);
        stw_doc_line(out, format, "%s on %s does not fit%s. %s%s.", a->model->name, a->name, over,
                     a->help != NULL ? "It fits with "
                                     : "Neither lower precision nor another engine is enough",
                     a->help != NULL ? a->help : "");
    }
}

static void put_csv(const stw_size_answer *answers, uint32_t n, stw_text *out) {
    static const char *const heads[] = {"kind",
                                        "fits",
                                        "nodes",
                                        "gpus_per_node",
                                        "layout",
                                        "gpu_peak_bytes",
                                        "host_peak_bytes",
                                        "iteration_s",
                                        "tokens_per_s",
                                        "gpu_hours_per_1e9_tokens",
                                        "binds",
                                        "longest_seq_len",
                                        "largest_micro_batch",
                                        "model",
                                        "cheapest_nodes",
                                        "cheapest_gpus_per_node",
                                        "cheapest_gpu_hours_per_1e9_tokens",
                                        "help",
                                        "needs",
                                        "verdict",
                                        "price_per_gpu_hour",
                                        "cheapest_usd_per_1e9_tokens",
                                        "safe_nodes",
                                        "safe_gpus_per_node",
                                        "safe_layout",
                                        "engine",
                                        "precision",
                                        "free_share",
                                        "command",
                                        "cheapest_engine",
                                        "cheapest_precision",
                                        "cheapest_layout",
                                        "cheapest_verdict",
                                        "cheapest_free_share",
                                        "cheapest_command",
                                        "compute_gpu_hours_per_1e9_tokens"};
    stw_csv_row(out, heads, sizeof heads / sizeof heads[0]);
    for (uint32_t i = 0; i < n; i++) {
        const stw_size_answer *a = &answers[i];
        const part smallest = smallest_of(a), cheapest = cheapest_of(a);
        const uint64_t values[] = {a->cluster.nodes,      a->cluster.gpus,
                                   a->row.gpu_peak_bytes, a->row.host_peak_bytes,
                                   a->longest_seq_len,    a->largest_micro_batch,
                                   a->cheapest.nodes,     a->cheapest.gpus,
                                   a->safe.nodes,         a->safe.gpus};
        enum { N_VALUES = sizeof values / sizeof values[0] };
        const double hours = a->fits ? stw_sweep_gpu_hours(&a->cheapest_row) : (double)NAN;
        const double usd = a->fits ? stw_sweep_usd(&a->cheapest_row) : (double)NAN;
        const double price = a->cluster.usd_per_gpu_hour;
        const stw_word reals[] = {
            stw_word_plain_double(a->row.iteration_s),
            stw_word_plain_double(a->row.tokens_per_s),
            stw_word_plain_double(stw_sweep_gpu_hours(&a->row)),
            stw_word_plain_double(hours),
            stw_word_plain_double(price > 0 ? price : (double)NAN),
            stw_word_plain_double(usd),
            stw_word_plain_double(margin_of(&smallest)),
            stw_word_plain_double(margin_of(&cheapest)),
            stw_word_plain_double(a->bound_hours > 0 ? a->bound_hours : (double)NAN)};
        char whole[N_VALUES][24], layout[240], there[240];
        layout_words(&smallest, layout, sizeof layout);
        layout_words(&cheapest, there, sizeof there);
        for (int v = 0; v < N_VALUES; v++)
            snprintf(whole[v], sizeof whole[v], "%" PRIu64, values[v]);
        for (int v = 4; v < N_VALUES; v++)
            if (values[v] == 0) whole[v][0] = '\0'; /* not known */
        const char *const cells[] = {
            a->name,
            shown_to_fit(a) ? "true" : "false",
            whole[0],
            whole[1],
            layout,
            whole[2],
            whole[3],
            reals[0].text,
            reals[1].text,
            reals[2].text,
            a->row.binds != NULL ? a->row.binds : "",
            whole[4],
            whole[5],
            a->model->name,
            whole[6],
            whole[7],
            reals[3].text,
            a->help != NULL ? a->help : "",
            a->needs != NULL ? a->needs : "",
            stw_sweep_verdict_name(a->row.verdict),
            reals[4].text,
            reals[5].text,
            whole[8],
            whole[9],
            a->safe_layout != NULL ? a->safe_layout : "",
            a->setup.engine != NULL ? a->setup.engine : "",
            precision_words(&a->setup).text,
            reals[6].text,
            a->command != NULL ? a->command : "",
            has_cheapest(a) ? a->cheapest_setup.engine : "",
            precision_words(&a->cheapest_setup).text,
            there,
            has_cheapest(a) ? stw_sweep_verdict_name(a->cheapest_row.verdict) : "",
            reals[7].text,
            a->cheapest_command != NULL ? a->cheapest_command : "",
            reals[8].text};
        stw_csv_row(out, cells, sizeof cells / sizeof cells[0]);
    }
}

static void write_known(stw_json *json, const char *key, uint64_t count) {
    if (count > 0)
        stw_json_u64(json, key, count);
    else
        stw_json_null(json, key);
}

static void write_settings(const part *p, const char *key, stw_json *json) {
    stw_json_begin_array(json, key);
    for (uint32_t i = 0; i < p->n_settings; i++) stw_json_string(json, NULL, p->settings[i]);
    stw_json_end(json);
}

/* What was planned, and where. */
static void write_part(const part *p, stw_json *json) {
    const stw_sweep_row *row = p->row;
    stw_json_string(json, "verdict", stw_sweep_verdict_name(row->verdict));
    stw_json_u64(json, "nodes", p->cluster->nodes);
    stw_json_u64(json, "gpus_per_node", p->cluster->gpus);
    stw_json_u64(json, "gpus", row->gpus);
    stw_json_string(json, "engine", p->setup->engine);
    stw_json_string(json, "precision",
                    p->setup->engine != NULL ? precision_words(p->setup).text : NULL);
    write_settings(p, "layout", json);
    stw_json_u64(json, "gpu_peak_bytes", row->gpu_peak_bytes);
    stw_json_double(json, "free_share", margin_of(p));
    stw_json_u64(json, "host_peak_bytes", row->host_peak_bytes);
    stw_json_double(json, "iteration_s", row->iteration_s);
    stw_json_double(json, "tokens_per_s", row->tokens_per_s);
    stw_json_double(json, "tokens_per_s_per_gpu", stw_sweep_tokens_per_gpu(row));
    stw_json_double(json, "gpu_hours_per_1e9_tokens", stw_sweep_gpu_hours(row));
    if (row->usd_per_gpu_hour > 0) stw_json_double(json, "usd_per_1e9_tokens", stw_sweep_usd(row));
    stw_json_string(json, "binds", row->binds);
    stw_json_string(json, "command", p->command);
}

static void write_answer(const stw_size_answer *a, bool cheapest, stw_json *json) {
    const part smallest = smallest_of(a), there = cheapest_of(a);
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "kind", a->name);
    stw_json_bool(json, "fits", shown_to_fit(a));
    write_part(&smallest, json);
    stw_json_string(json, "reason", a->row.reason);
    write_known(json, "longest_seq_len", a->longest_seq_len);
    write_known(json, "largest_micro_batch", a->largest_micro_batch);
    if (has_cheapest(a)) {
        stw_json_begin_object(json, "cheapest");
        write_part(&there, json);
        stw_json_double(json, "compute_gpu_hours_per_1e9_tokens", a->bound_hours);
        stw_json_bool(json, "of_all_kinds", cheapest);
        stw_json_end(json);
    }
    if (a->safe.nodes > 0) {
        stw_json_begin_object(json, "without_risk");
        stw_json_u64(json, "nodes", a->safe.nodes);
        stw_json_u64(json, "gpus_per_node", a->safe.gpus);
        stw_json_string(json, "layout", a->safe_layout);
        stw_json_end(json);
    }
    stw_json_string(json, "needs", a->needs);
    stw_json_string(json, "fits_with", a->help);
    stw_json_u64(json, "planned_points", a->planned);
    stw_json_double(json, "planning_s", a->seconds);
    stw_cluster_write_json(&a->cluster, json, "cluster");
    stw_json_end(json);
}

/* The answers of one model, from `first` on. @return how many */
static uint32_t write_model(const stw_size_answer *answers, uint32_t n, uint32_t first,
                            stw_json *json) {
    const stw_model *model = answers[first].model;
    uint32_t i = first;
    stw_json_string(json, "model", model->name);
    stw_json_string(json, "model_digest", model->digest);
    stw_json_begin_array(json, "kinds");
    for (; i < n && answers[i].model == model; i++)
        write_answer(&answers[i], stw_size_is_cheapest(answers, n, &answers[i]), json);
    stw_json_end(json);
    return i - first;
}

/* Of one model at the top, of several in a list. */
static stw_status write_json(const stw_size_answer *answers, uint32_t n, stw_text *out,
                             stw_error *err) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.size/1");
    if (!is_of_several(answers, n)) {
        (void)write_model(answers, n, 0, json);
    } else {
        stw_json_begin_array(json, "models");
        for (uint32_t i = 0; i < n;) {
            stw_json_begin_object(json, NULL);
            i += write_model(answers, n, i, json);
            stw_json_end(json);
        }
        stw_json_end(json);
    }
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

static void put_title(const stw_size_answer *answers, uint32_t n, stw_format format,
                      stw_text *out) {
    put_heading(answers, n, format, out);
    put_setup(answers, n, format, out);
    stw_doc_line(
        out, format,
        "Part of a node (KIND:N): its memory, cores and bandwidths in proportion to its GPUs. Host "
        "memory is what the plan of this row uses at its peak; free is the share of GPU memory "
        "that it leaves. The longest sequence and the largest micro batch are of the same "
        "machines, layout and number of micro batches. The cheapest has the fewest GPU-hours per "
        "token, up to 16 nodes or 4 times those of the smallest; of what costs the same to 1%% the "
        "fewest GPUs. An optimizer step grows with the GPUs, unless batch.tokens_per_step or a "
        "file of --from gives its tokens.");
    if (format == STW_FORMAT_TERMINAL) stw_text_printf(out, "\n");
}

stw_status stw_report_sizes(const stw_size_answer *answers, uint32_t n, stw_format format,
                            stw_text *out, stw_error *err) {
    if (format == STW_FORMAT_JSON) return write_json(answers, n, out, err);
    stw_pool *pool = stw_pool_new();
    if (pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (format != STW_FORMAT_CSV) {
        put_title(answers, n, format, out);
        put_table(answers, n, format, pool, out);
        put_commands(answers, n, format, out);
        put_remarks(answers, n, format, out);
        put_helps(answers, n, format, out);
    } else {
        put_csv(answers, n, out);
    }
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Writers for plans, runs, comparisons and models: terminal, Markdown, CSV and JSON. Each appends
 * to a stw_text that the caller owns and changes nothing else. Any thread may call; one text
 * belongs to one thread at a time. */
#ifndef STW_REPORTS_REPORTS_H
#define STW_REPORTS_REPORTS_H

#include "core/text.h"
#include "plan/files/diff.h"
#include "plan/files/plan.h"
#include "plan/files/size.h"
#include "plan/files/sweep.h"
#include "plan/measured/compare.h"
#include "plan/measured/explanation.h"
#include "plan/spec/presets.h"

typedef enum stw_format {
    STW_FORMAT_TERMINAL,
    STW_FORMAT_MARKDOWN,
    STW_FORMAT_CSV,
    STW_FORMAT_JSON,
    STW_FORMAT_OPENMETRICS, /* of plans alone */
    STW_FORMAT_HTML,        /* a page: stw_report_page makes it, the other writers do not take it */
    STW_FORMAT_BLOCKS       /* what a page holds (reports/blocks.h) */
} stw_format;

/** Columns of the terminal to which sentences and tables of STW_FORMAT_TERMINAL are wrapped; 0, the
 * default, for no limit. Set it before starting threads. */
void stw_report_width_set(unsigned columns);

/** A model as printed by `stowage inspect`: totals and tensor groups (JSON: stowage.model/1). */
STW_MUST_USE stw_status stw_report_model(const stw_model *model, stw_format format, stw_text *out,
                                         stw_error *err);
/** Models of the zoo, one a line (JSON: stowage.models/1). */
STW_MUST_USE stw_status stw_report_models(const stw_model *const *models, size_t n,
                                          stw_format format, stw_text *out, stw_error *err);
/** Clusters, one a line (JSON: stowage.clusters/1, with all keys). */
STW_MUST_USE stw_status stw_report_clusters(const stw_listed_cluster *clusters, size_t n,
                                            stw_format format, stw_text *out, stw_error *err);
/** A key of a spec: its file ("run.yaml"), its dotted name, and its row. */
typedef struct stw_listed_key {
    const char *file, *key;
    const struct stw_spec_row *row;
} stw_listed_key;
/** Keys with values, default, meaning and what leaves them without effect. Terminal: of more than
 * twelve keys names and defaults alone (JSON: stowage.keys/1). */
STW_MUST_USE stw_status stw_report_keys(const stw_listed_key *keys, size_t n, stw_format format,
                                        stw_text *out, stw_error *err);
/** Names alone, those that begin alike together, on a screen of 25 lines: for terminals.
 * @param picked by a pattern: these are not all */
STW_MUST_USE stw_status stw_report_model_names(const char *const *names, size_t n, bool picked,
                                               stw_text *out, stw_error *err);
STW_MUST_USE stw_status stw_report_cluster_names(const stw_listed_cluster *clusters, size_t n,
                                                 bool picked, stw_text *out, stw_error *err);
/** The summary of a plan that `stowage plan` and `simulate` print: verdict, peaks of every phase,
 * bars, what it costs, what binds, what to change, where everything is.
 * @param lines above which the less important parts are left out */
STW_MUST_USE stw_status stw_report_plan_summary(const stw_plan *plan, uint32_t lines, stw_text *out,
                                                stw_error *err);
/** Of it the verdict, the bars, what is at risk, and the seconds of an iteration. */
STW_MUST_USE stw_status stw_report_plan_verdict(const stw_plan *plan, stw_text *out,
                                                stw_error *err);
/** The whole summary for a terminal, with headings: the report without its long tables.
 * @param run, comparison: what was measured outside tolerance is added; both may be NULL */
STW_MUST_USE stw_status stw_report_plan_short(const stw_plan *plan, const stw_run_result *run,
                                              const stw_comparison *comparison, stw_text *out,
                                              stw_error *err);
/** Capacity report of a plan: verdict, state placement, peak memory by phase and component, limits,
 * phase times, bottlenecks, value of more resources, changes that make it fit. `run` and
 * `comparison` add measured values; both may be NULL. */
STW_MUST_USE stw_status stw_report_plan(const stw_plan *plan, const stw_run_result *run,
                                        const stw_comparison *comparison, stw_format format,
                                        stw_text *out, stw_error *err);
/** The same as CSV, for one file with several plans. Rows `plan,section,of,phase,what,value,unit`;
 * bytes, seconds and counts are in base units, an unknown value is empty.
 * @param name in the column `plan`; @param heads begin with the row of heads */
STW_MUST_USE stw_status stw_report_plan_csv(const stw_plan *plan, const stw_run_result *run,
                                            const stw_comparison *comparison, const char *name,
                                            bool heads, stw_text *out, stw_error *err);
/** Several plans beside each other, for the terminal and Markdown: how many fit, the cheapest of
 * each model, one row for each. @param names [n] of their files */
STW_MUST_USE stw_status stw_report_plans(const stw_plan *const *plans, const char *const *names,
                                         size_t n, stw_format format, stw_text *out,
                                         stw_error *err);
/** Gauges of some plans as OpenMetrics 1.0 text: bytes, seconds, counts and shares by section,
 * phase and component, with the names of the CSV, and verdicts.
 * @param names of the plans, in the label `plan` */
STW_MUST_USE stw_status stw_report_plans_openmetrics(const stw_plan *const *plans,
                                                     const char *const *names, size_t n,
                                                     stw_text *out, stw_error *err);
/** Report of one run file. */
STW_MUST_USE stw_status stw_report_run(const stw_run_result *run, stw_format format, stw_text *out,
                                       stw_error *err);
/** Predicted and measured values, line by line. */
STW_MUST_USE stw_status stw_report_comparison(const stw_comparison *comparison, stw_format format,
                                              stw_text *out, stw_error *err);

/** The same for a screen of 25 lines: what is outside, then totals. */
STW_MUST_USE stw_status stw_report_comparison_summary(const stw_comparison *comparison,
                                                      stw_text *out, stw_error *err);

/** What differs between two plans: sentences first, then tables. */
STW_MUST_USE stw_status stw_report_diff(const stw_diff *diff, stw_format format, stw_text *out,
                                        stw_error *err);

/** The same for a screen of 25 lines: the sentences, and decisions as far as there is room. */
STW_MUST_USE stw_status stw_report_diff_summary(const stw_diff *diff, stw_text *out,
                                                stw_error *err);

/** Rows of a sweep, the Pareto front first.
 * @param all_rows false: a terminal gets
 * a screen of 25 lines, with the columns that decide */
STW_MUST_USE stw_status stw_report_sweep(const stw_sweep *sweep, bool all_rows, stw_format format,
                                         stw_text *out, stw_error *err);

/** The smallest clusters on which runs fit, one row for each model and kind of node; answers of one
 * model follow each other (JSON: stowage.size/1). */
STW_MUST_USE stw_status stw_report_sizes(const stw_size_answer *answers, uint32_t n,
                                         stw_format format, stw_text *out, stw_error *err);

/** The same for a screen of 25 lines: the columns that decide, and at most ten rows. */
STW_MUST_USE stw_status stw_report_size_summary(const stw_size_answer *answers, uint32_t n,
                                                stw_text *out, stw_error *err);

/** Why memory ended (JSON: stowage.explanation/1; CSV: its components).
 * @param all false: a terminal gets a screen of 25 lines */
STW_MUST_USE stw_status stw_report_explanation(const stw_explanation *explanation, bool all,
                                               stw_format format, stw_text *out, stw_error *err);

/* ---- traces: the same events for simulated and real runs ---- */
typedef struct stw_trace_event {
    stw_phase phase;
    const stw_op *op;
    double start_s, end_s;
} stw_trace_event;

/** Chrome trace JSON (opens in Perfetto): one process per kind of rank, one track per stream, one
 * slice per operation that takes time, counters of bytes per tier and component from the allocs and
 * frees.
 * @param names [n_tracks] process names; @param events [n_tracks] arrays of n_events[i] in list
 * order */
STW_MUST_USE stw_status stw_trace_to_json(uint32_t n_tracks, const char *const *names,
                                          const stw_trace_event *const *events,
                                          const uint32_t *n_events, stw_text *out, stw_error *err);
/** "copy exp_avg 3": what an operation is called in a trace. 96 bytes suffice. */
void stw_trace_op_name(const stw_op *op, char *out, size_t out_size);

/* ---- the HTML page ---- */
/** When an operation runs. */
typedef struct stw_op_span {
    double start_s, end_s;
} stw_op_span;
/** The GPU memory of a program as a pickle that torch's viewer opens
 * (https://pytorch.org/memory_viz): its peak is that of the walk.
 * @param ops [program->n_ops]; NULL: no times are known, operations are counted */
STW_MUST_USE stw_status stw_snapshot_of_program(const stw_program *program, const stw_op_span *ops,
                                                stw_text *out, stw_error *err);
/** The simulated time line of one kind of rank. */
typedef struct stw_page_track {
    const stw_op_span *ops; /* [program->n_ops] */
    const bool *predicted;  /* [program->n_movements]: the seconds are a prediction */
} stw_page_track;
/** What one file or command contributes: a plan (with its run, or without), a run, a sweep, sizes
 * or a difference. All of it is borrowed. */
typedef struct stw_page_item {
    const char *name; /* of the file; "" */
    const stw_plan *plan;
    const stw_page_track *tracks; /* [plan->job->n_kinds]; NULL: no time line */
    const stw_run_result *run;
    const stw_comparison *comparison;
    const stw_sweep *sweep;
    const stw_diff *diff;
    const stw_size_answer *sizes;
    uint32_t n_sizes;
} stw_page_item;
/** The Markdown report of a plan, with links to the pictures of reports/pictures.h.
 * @param pictures how these links begin, as in a URL: "report" for report-memory.svg and
 * report-tiers.svg beside it */
STW_MUST_USE stw_status stw_report_plan_pictured(const stw_page_item *item, const char *pictures,
                                                 stw_text *out, stw_error *err);
/** A report as one HTML file that needs nothing else. Its data is one JSON document in it
 * (stowage.page/1), which the script reports/html/report.js draws. Equal input gives equal bytes.
 * @param command that makes the page again */
STW_MUST_USE stw_status stw_report_page(const stw_page_item *items, size_t n, const char *command,
                                        stw_text *out, stw_error *err);

#endif

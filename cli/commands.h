/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `stowage`, one file each, and the inputs of a plan, which several of them
 * share. Everything is called from the main thread. */
#ifndef STW_CLI_COMMANDS_H
#define STW_CLI_COMMANDS_H

#include <string.h>

#include "cli/common.h"
#include "plan/files/plan.h"
#include "plan/spec/presets.h"
#include "planner/point.h"
#include "reports/reports.h"
#include "sim/sim.h"

/* argv[0] is the name of the command. Returns the exit code of the process. */
int stw_cmd_models(int argc, char **argv);
int stw_cmd_clusters(int argc, char **argv);
int stw_cmd_keys(int argc, char **argv);
int stw_cmd_inspect(int argc, char **argv);
int stw_cmd_plan(int argc, char **argv);
int stw_cmd_simulate(int argc, char **argv);
int stw_cmd_run(int argc, char **argv);
int stw_cmd_calibrate(int argc, char **argv);
int stw_cmd_record(int argc, char **argv);
int stw_cmd_validate(int argc, char **argv);
int stw_cmd_report(int argc, char **argv);
int stw_cmd_diff(int argc, char **argv);
int stw_cmd_explain(int argc, char **argv);
int stw_cmd_sweep(int argc, char **argv);
int stw_cmd_size(int argc, char **argv);
int stw_cmd_state(int argc, char **argv);
int stw_cmd_convert(int argc, char **argv);

/** Options that describe the job to plan. */
typedef struct stw_inputs {
    const char *model, *from, *cluster, *run;
    stw_values set;
    const char *write_lp, *time_limit, *gap, *accept;
    bool tells_turns; /* as in stw_planner_options; always where there is `from` */
} stw_inputs;

/* clang-format off */
#define STW_SPEC_OPTIONS(in)                                                                       \
    {"--model", "-m", "MODEL", "zoo name, config.json, safetensors or CSV tensor list",            \
     STW_OPTION_ONCE, &(in).model},                                                                \
    {"--from", NULL, "FRAMEWORK:FILE", "model and run from a framework's arguments",               \
     STW_OPTION_ONCE, &(in).from},                                                                 \
    {"--cluster", "-c", "CLUSTER",                                                                 \
     "name, N x NAME, NAME:N (part of a node) or cluster.yaml; default: this machine",             \
     STW_OPTION_ONCE, &(in).cluster},                                                              \
    {"--run", "-r", "FILE", "run.yaml; default: all defaults",                                     \
     STW_OPTION_ONCE, &(in).run},                                                                  \
    {"--set", NULL, "KEY=VALUE", "set a key of cluster.yaml or run.yaml; repeatable",              \
     STW_OPTION_LIST, &(in).set}
#define STW_ACCEPT_OPTION(in)                                                                      \
    {"--accept", NULL, "VERDICT",                                                                  \
     "at_risk: plan to the limits themselves; default: fits, and at risk only where nothing fits", \
     STW_OPTION_ONCE, &(in).accept}
#define STW_INPUT_OPTIONS(in)                                                                      \
    STW_ACCEPT_OPTION(in),                                                                         \
    STW_SPEC_OPTIONS(in),                                                                          \
    {"--write-lp", NULL, "FILE", "write the whole integer program (CPLEX LP)",                     \
     STW_OPTION_VALUE, &(in).write_lp},                                                            \
    {"--time-limit", NULL, "SECONDS", "limit of everything, the search included; default 30", \
     STW_OPTION_VALUE, &(in).time_limit},                                                          \
    {"--gap", NULL, "SHARE",                                                                       \
     "relative gap at which the solver may stop, 0.01 or 1%; default 1e-4",                        \
     STW_OPTION_VALUE, &(in).gap}
/* clang-format on */

/** Files among these options. */
#define STW_INPUT_PATHS(in)                                                                        \
    {"--model", (in).model}, {"--from", stw_import_path((in).from)}, {"--cluster", (in).cluster},  \
    {                                                                                              \
        "--run", (in).run                                                                          \
    }
/** The file in FRAMEWORK:FILE; NULL where there is none. */
static inline const char *stw_import_path(const char *from) {
    const char *colon = from != NULL ? strchr(from, ':') : NULL;
    return colon != NULL ? colon + 1 : NULL;
}

/** Read CLUSTER as given on the command line (plan/spec/presets.h). */
STW_MUST_USE stw_status stw_inputs_cluster(const char *what, stw_cluster *out, stw_error *err);

/** Keys of the specs that look like options: "--nodes 2" is --set nodes=2. For stw_usage.hint. */
bool stw_inputs_hint(const char *word, char *out, size_t out_size);
/** Make a setting of --accept, the first of all. Once, after the options are parsed. */
STW_MUST_USE stw_status stw_inputs_accept(stw_inputs *in, stw_error *err);
/** Read the inputs, solve and simulate. An infeasible plan is an outcome, not an error. The caller
 * frees *out. */
STW_MUST_USE stw_status stw_inputs_plan(const stw_inputs *in, stw_plan **out, stw_error *err);
/** The inputs of many plans: read once, planned with further settings each (planner/point.h). The
 * base points into the rest and into `in`. */
typedef struct stw_opened {
    stw_model *model;
    stw_import import;
    stw_cluster cluster;
    stw_tree *run;
    stw_point_base base;
} stw_opened;
/** Warn of what a GPU cannot compute, and of one that can only be planned for. @param bf16 it is to
 * compute in bf16 */
void stw_warn_of_gpu(const char *gpu, bool bf16);
STW_MUST_USE stw_status stw_inputs_open(const stw_inputs *in, stw_opened *out, stw_error *err);
void stw_opened_free(stw_opened *opened);
/** Warn of what an import leaves out or assumes: with -v line by line, else the names by kind. What
 * --set or --run give is not assumed. (cmd_import_notes.c) */
void stw_warn_of_flags(const stw_inputs *in, const stw_import *import);
/** Two lines on the settings that were imported, for a summary. */
void stw_import_tell(const char *from, stw_text *out);
/** What became of the settings: how many of each kind, and those that were left out or assumed.
 * @param from as on the command line */
void stw_import_write_short(const stw_import *import, const char *from, stw_text *out);
/** Read a plan file and hold all that it states to what follows from its decisions, seconds
 * included. The caller frees *out. */
STW_MUST_USE stw_status stw_plan_open(const char *path, stw_plan **out, stw_error *err);
/** The same of a plan that was parsed. @param name of its file, for errors */
STW_MUST_USE stw_status stw_plan_hold(stw_plan *plan, const char *name, stw_error *err);
/** Exit code of a plan's verdict: 0, 4 (nothing fits) or 9 (at risk, or a part is unknown). */
int stw_plan_exit_code(const stw_plan *plan);
/** Format of a report by --json and the suffix of -o FILE; USAGE if there is no such format. Tables
 * on stdout get the width of the terminal. */
STW_MUST_USE stw_status stw_report_format(const stw_general *general, stw_format *out,
                                          stw_error *err);
/** The same of a command that also writes pages (.html).
 * @param of_plans it also writes OpenMetrics (.om, .prom) */
STW_MUST_USE stw_status stw_page_format(const stw_general *general, bool of_plans, stw_format *out,
                                        stw_error *err);
/** Simulate the plans of a page (their time lines lie in their pools) and write it. */
STW_MUST_USE stw_status stw_page_emit(const stw_general *general, stw_page_item *items, size_t n,
                                      stw_error *err);
/** Simulate the plan of an item, if it has one that fits: its time lines lie in the plan's pool. */
STW_MUST_USE stw_status stw_page_tracks(stw_page_item *item, stw_error *err);
/** Write the pictures of a plan beside a Markdown report: "x.md" has x-memory.svg and x-tiers.svg.
 * @param number of the plan among several, which is a part of the names; 0: it is alone
 * @param link how links to them begin (stw_report_plan_pictured) */
STW_MUST_USE stw_status stw_pictures_write(stw_page_item *item, const char *report, size_t number,
                                           stw_text *link, stw_error *err);
/** Show a file in the user's browser, or warn. */
void stw_page_open(const char *path);
/** Rows of a list on a screen; of longer ones -v prints all. */
#define STW_MOST_LISTED 20
/** Lines of a summary: a screen of 25 less those of the hints below it, and of warnings and words
 * on settings that were imported. */
uint32_t stw_summary_lines(bool imported);
/** All tables are asked for: --full, or -v. */
bool stw_wants_all(const stw_general *general);
#define STW_FULL_OPTION(general)                                                                   \
    { "--full", NULL, NULL, "all tables, not the summary alone", STW_OPTION_FLAG, &(general).full }
/** Does a report go to the terminal, and nobody asked for all of it? */
bool stw_is_summary(const stw_general *general, stw_format format);
/** The last line of a summary. @param file where the whole is; NULL: nowhere */
void stw_tell_details(const char *file, stw_text *out);
/** USAGE if more than one of the paths is "-". */
STW_MUST_USE stw_status stw_stdin_once(const char *const *paths, size_t n, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `stowage`, one file each, and the inputs of a plan that several of them take.
 */
#ifndef STW_CLI_COMMANDS_H
#define STW_CLI_COMMANDS_H

#include "cli/common.h"
#include "plan/files/plan.h"
#include "sim/sim.h"

/* Each gets its own argv (argv[0] is the command's name) and returns an exit code. */
int stw_cmd_inspect(int argc, char **argv);
int stw_cmd_plan(int argc, char **argv);
int stw_cmd_simulate(int argc, char **argv);
int stw_cmd_run(int argc, char **argv);
int stw_cmd_calibrate(int argc, char **argv);
int stw_cmd_validate(int argc, char **argv);
int stw_cmd_report(int argc, char **argv);

/** Options that describe what is to be planned. */
typedef struct stw_inputs {
    const char *model, *cluster, *run;
    stw_values set;
    const char *write_lp, *time_limit, *gap;
} stw_inputs;

#define STW_INPUT_OPTIONS(in)                                                                      \
    {                                                                                              \
        "--model",        "-m",                                                                    \
        "MODEL",          "zoo name, config.json, safetensors or CSV tensor list",                 \
        STW_OPTION_VALUE, &(in).model},                                                            \
        {"--cluster",      "-c",         "FILE", "cluster.yaml; default: this machine",            \
         STW_OPTION_VALUE, &(in).cluster},                                                         \
        {"--run",          "-r",     "FILE", "run.yaml; default: every key's default",             \
         STW_OPTION_VALUE, &(in).run},                                                             \
        {"--set",         NULL,     "KEY=VALUE", "over any key of the cluster or run; repeatable", \
         STW_OPTION_LIST, &(in).set},                                                              \
        {"--write-lp",     NULL,          "FILE", "write the stage-1 problem in CPLEX LP format",  \
         STW_OPTION_VALUE, &(in).write_lp},                                                        \
        {"--time-limit",  NULL, "SECONDS", "for the solver; default 30", STW_OPTION_VALUE,         \
         &(in).time_limit},                                                                        \
    {                                                                                              \
        "--gap", NULL, "SHARE", "relative gap at which stage 1 may stop; default 1e-4, 0 proves",  \
            STW_OPTION_VALUE, &(in).gap                                                            \
    }

/** Read the inputs and solve. The plan's outcome may be infeasible: that is no error of the call.
 */
STW_MUST_USE stw_status stw_inputs_plan(const stw_inputs *in, stw_plan **out, stw_error *err);
/** Simulate every kind of rank: the plan's seconds and peaks become the simulator's, which knows
 * the order of operations where the planner's rows know sums.
 * @param sims [job->n_kinds] out, all NULL before, each freed by the caller; NULL: not wanted */
STW_MUST_USE stw_status stw_inputs_simulate(stw_plan *plan, stw_sim **sims, stw_error *err);
/** Exit code of a plan's outcome: 0, 4 (nothing fits) or 5 (time limit). */
int stw_plan_exit_code(const stw_plan *plan);
/** Format that a file name asks for: .md, .csv, .json, else terminal. */
int stw_format_of(const char *path);

#endif

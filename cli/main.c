/* SPDX-License-Identifier: Apache-2.0 */
/* stowage: plans, simulates, validates and reports; `run` and `calibrate` hand over to stowage-run.
 */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "core/tree.h"
#include "stw_config.h"

typedef struct command {
    const char *name, *arguments, *summary;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    {"inspect", "MODEL", "what the model is: tensors, groups, parameters", stw_cmd_inspect},
    {"calibrate", "[-o cluster.yaml] [--quick] [--nvme FOLDER]", "measure this machine",
     stw_cmd_calibrate},
    {"plan", "--model M ...", "decide placement, prefetch depth, load method; write the plan",
     stw_cmd_plan},
    {"simulate", "PLAN", "replay it: peaks by phase and component, time line", stw_cmd_simulate},
    {"run", "PLAN", "do it here", stw_cmd_run},
    {"validate", "PLAN RUN", "predicted against measured, line by line", stw_cmd_validate},
    {"report", "PLAN|RUN...", "capacity report for people", stw_cmd_report},
};
static const size_t n_commands = sizeof commands / sizeof commands[0];

static void print_help(void) {
    printf("Usage: stowage COMMAND [arguments]\n\n"
           "Plans where every byte of a large-model training run lies, proves that it fits, "
           "predicts how\n"
           "long it takes, and runs the plan's loads and optimizer steps for real.\n\nCommands:\n");
    for (size_t i = 0; i < n_commands; i++)
        printf("  %-10s %-18s %s\n", commands[i].name, commands[i].arguments, commands[i].summary);
    printf("\n`stowage COMMAND --help` explains a command. A first try: stowage plan --model "
           "Qwen3-0.6B\n\n"
           "Exit codes: 0 ok; 1 no resources or solver failure; 2 usage; 3 bad input; 4 nothing "
           "fits;\n"
           "5 time limit without a plan; 6 device or communicator error; 7 not built in or not "
           "executable;\n"
           "8 prediction and measurement disagree; 70 a bug.\n");
}

static void print_version(void) {
    printf("stowage %s\n%s\nsolver: GLPK\n", STW_VERSION, STW_LICENCE_NOTE_STOWAGE);
    printf("execution (stowage-run): CUDA %s, NCCL %s, MPI %s\n",
           STW_WITH_CUDA ? STW_CUDA_VERSION : "not built in",
           STW_WITH_NCCL ? "yes" : "not built in", STW_WITH_MPI ? "yes" : "not built in");
}

int main(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    const char *names[sizeof commands / sizeof commands[0]];
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help();
        return argc < 2 ? 2 : 0;
    }
    if (strcmp(argv[1], "--version") == 0) return print_version(), 0;
    for (size_t i = 0; i < n_commands; i++) {
        names[i] = commands[i].name;
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "record") == 0 || strcmp(argv[1], "sweep") == 0)
        return stw_exit(
            stw_fail(&err, STW_STATUS_NOT_BUILT_IN, argv[1], "this version does not have it yet"),
            &err);
    const char *near = stw_nearest(argv[1], names, n_commands);
    (void)stw_fail(&err, STW_STATUS_USAGE, argv[1], "unknown command%s%s",
                   near != NULL ? ", nearest: " : "", near != NULL ? near : "; --help lists them");
    return stw_exit(STW_STATUS_USAGE, &err);
}

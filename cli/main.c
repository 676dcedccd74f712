/* SPDX-License-Identifier: Apache-2.0 */
/* The program `stowage`: table of commands, help and version. `run` and `calibrate` replace this
 * process with stowage-run. */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/common_version.h"
#include "core/tree.h"
#include "stw_config.h"

typedef struct command {
    const char *name, *arguments, *summary;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    {"models", "[PATTERN]", "list the models of the zoo", stw_cmd_models},
    {"clusters", "[PATTERN]", "list the clusters that have a name", stw_cmd_clusters},
    {"keys", "[PATTERN]", "list the keys of run.yaml and cluster.yaml", stw_cmd_keys},
    {"inspect", "MODEL", "list tensors, tensor groups and parameters", stw_cmd_inspect},
    {"calibrate", "-o cluster.yaml", "measure this machine", stw_cmd_calibrate},
    {"plan", "--model MODEL", "decide placement and load; write the plan", stw_cmd_plan},
    {"simulate", "PLAN", "predict peak memory and the time line", stw_cmd_simulate},
    {"run", "PLAN", "execute the plan on this machine", stw_cmd_run},
    {"record", "-- COMMAND", "sample what somebody else's job holds", stw_cmd_record},
    {"validate", "PLAN RUN...", "compare predicted and measured values", stw_cmd_validate},
    {"report", "PLAN|RUN|SWEEP...", "write a capacity report", stw_cmd_report},
    {"size", "--model MODEL", "find the smallest cluster on which it fits", stw_cmd_size},
    {"sweep", "--model MODEL", "plan all combinations of some settings", stw_cmd_sweep},
    {"diff", "PLAN PLAN", "say what changed between two plans", stw_cmd_diff},
    {"explain", "FILE [PLAN]", "say why it ran out of memory, and what to change", stw_cmd_explain},
    {"state", "list|verify|remove", "handle checkpoints, and state on NVMe", stw_cmd_state},
    {"convert", "CHECKPOINT", "write a checkpoint's model as a plain folder", stw_cmd_convert},
};
static const size_t n_commands = sizeof commands / sizeof commands[0];

static const char what[] =
    "Stowage decides where every byte of a large-model training run is stored, shows\n"
    "that it fits, predicts how long it takes, and executes the plan's loads and\n"
    "optimizer steps.\n";

static const struct {
    int code;
    const char *meaning;
} codes[] = {{0, "ok"},
             {1, "not enough resources, or solver failure"},
             {2, "wrong usage"},
             {3, "bad input"},
             {4, "nothing fits; the plan with the smallest excess is still written"},
             {5, "time limit reached without a plan"},
             {6, "device or communicator error"},
             {7, "not built in, not implemented or not executable"},
             {8, "prediction and measurement disagree, or verification failed"},
             {9, "at risk: it may run out of memory; or a part of it is unknown"},
             {70, "bug in stowage"}};
static const size_t n_codes = sizeof codes / sizeof codes[0];

static void print_help_text(void) {
    printf("Usage: stowage COMMAND [arguments]\n\n%s\nCommands:\n", what);
    for (size_t i = 0; i < n_commands; i++)
        printf("  %-10s %-18s %s\n", commands[i].name, commands[i].arguments, commands[i].summary);
    printf("  %-10s %-18s %s\n", "help", "[COMMAND]",
           "print this help, or the options of a command");
    printf("\nExample: stowage plan --model Qwen3-0.6B\n\nExit codes:\n");
    for (size_t i = 0; i < n_codes; i++) printf("  %2d  %s\n", codes[i].code, codes[i].meaning);
}

static void print_help_man(void) {
    stw_print_roff_head("stowage", "plan, simulate and execute the memory of large-model training");
    printf(".SH SYNOPSIS\n.B stowage\nCOMMAND [arguments]\n.SH DESCRIPTION\n");
    stw_print_roff(what);
    printf(".SH COMMANDS\n");
    for (size_t i = 0; i < n_commands; i++) {
        printf(".TP\n\\fB%s\\fR ", commands[i].name);
        stw_print_roff(commands[i].arguments);
        printf("\n");
        stw_print_roff(commands[i].summary);
        printf(": see\n.BR stowage\\-%s (1)\n", commands[i].name);
    }
    printf(".SH EXIT STATUS\n");
    for (size_t i = 0; i < n_codes; i++) {
        printf(".TP\n%d\n", codes[i].code);
        stw_print_roff(codes[i].meaning);
        printf("\n");
    }
}

static void print_help(void) {
    if (stw_help_form_asked() == STW_HELP_MAN) {
        print_help_man();
    } else if (stw_help_form_asked() == STW_HELP_WORDS) {
        for (size_t i = 0; i < n_commands; i++)
            printf("command\t%s\t%s\n", commands[i].name, commands[i].summary);
    } else {
        print_help_text();
    }
}

/* `stowage --version [--json]` */
static int print_version(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    const bool json = argc == 3 && strcmp(argv[2], "--json") == 0;
    stw_status status = STW_STATUS_OK;
    if (argc > 2 && !json)
        status = stw_fail(&err, STW_STATUS_USAGE, argv[2], "unexpected argument, expected --json");
    else
        status = stw_version_print("stowage", STW_LICENCE_NOTE_STOWAGE, "GLPK", json, &err);
    return stw_exit(status, &err);
}

static int unknown_command(const char *name) {
    stw_error err = STW_ERROR_INIT;
    const char *names[sizeof commands / sizeof commands[0]];
    for (size_t i = 0; i < n_commands; i++) names[i] = commands[i].name;
    const char *near = stw_nearest(name, names, n_commands);
    (void)stw_fail(&err, STW_STATUS_USAGE, name, "unknown command; %s%s%s",
                   near != NULL ? "did you mean " : "", near != NULL ? near : "see stowage --help",
                   near != NULL ? "?" : "");
    return stw_exit(STW_STATUS_USAGE, &err);
}

static int command_line(int argc, char **argv) {
    static char help[] = "--help";
    if (argc < 2) return print_help(), 2;
    if (strncmp(argv[1], "--help=", 7) == 0 && stw_help_form_take(argv[1] + 7))
        return print_help(), 0;
    bool asks = strcmp(argv[1], "help") == 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (asks && argc == 2))
        return print_help(), 0;
    if (strcmp(argv[1], "--version") == 0) return print_version(argc, argv);
    char **words = argv + (asks ? 2 : 1);
    if (asks && (strcmp(*words, "help") == 0 || strcmp(*words, "--help") == 0))
        return print_help(), 0;
    char *of_command[] = {*words, help, NULL};
    for (size_t i = 0; i < n_commands; i++) {
        if (strcmp(*words, commands[i].name) != 0) continue;
        return asks ? commands[i].run(2, of_command) : commands[i].run(argc - 1, words);
    }
    return unknown_command(*words);
}

int main(int argc, char **argv) {
    stw_process_begin();
    return stw_process_end(command_line(argc, argv));
}

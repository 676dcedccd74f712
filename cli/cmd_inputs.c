/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* fork, pipe, waitpid */
/* Makes a solved plan from --model, --cluster, --run and --set. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/commands.h"
#include "core/log.h"
#include "planner/planner.h"
#include "reports/reports.h"

/* Run `stowage-run --probe` and read the cluster.yaml that it prints. Only stowage-run links CUDA.
 */
static stw_status probe_text(stw_text *out, stw_error *err) {
    char program[4096], buffer[4096];
    int pipe_ends[2];
    stw_status status = stw_sibling("stowage-run", program, sizeof program, err);
    if (status != STW_STATUS_OK) return status;
    if (pipe(pipe_ends) != 0)
        return stw_fail_native(err, STW_STATUS_NO_RESOURCES, errno, "pipe", "%s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(pipe_ends[1], STDOUT_FILENO);
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        execl(program, program, "--probe", (char *)NULL);
        _exit(127);
    }
    close(pipe_ends[1]);
    for (ssize_t n; child > 0 && (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;)
        stw_text_append(out, buffer, (size_t)n);
    close(pipe_ends[0]);
    int code = -1;
    if (child < 0 || waitpid(child, &code, 0) < 0 || !WIFEXITED(code) || WEXITSTATUS(code) != 0)
        return stw_fail(err, STW_STATUS_DEVICE, program,
                        "cannot detect this machine; use --cluster FILE");
    return stw_text_status(out, err);
}

static stw_status read_cluster(const char *path, stw_cluster *cluster, stw_error *err) {
    if (path != NULL) return stw_cluster_read(path, cluster, err);
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_tree *tree = NULL;
    stw_cluster_defaults(cluster);
    STW_TRY(probe_text(&text, err));
    STW_TRY(stw_tree_parse_yaml("this machine", text.data, text.length, &tree, err));
    STW_TRY(stw_cluster_from_node(tree, tree->root, cluster, err));
out:
    stw_tree_free(tree);
    stw_text_free(&text);
    return status;
}

stw_status stw_inputs_plan(const stw_inputs *in, stw_plan **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char data[4096];
    stw_model *model = NULL;
    stw_cluster cluster;
    stw_run_spec run = {0};
    stw_plan *plan = NULL;
    stw_planner_options options = {.write_lp = in->write_lp};
    if (in->model == NULL)
        return stw_fail(err, STW_STATUS_USAGE, "--model",
                        "required: a zoo name, config.json, safetensors or CSV");
    STW_TRY(stw_option_double("--time-limit", in->time_limit, &options.time_limit_s, err));
    STW_TRY(stw_option_double("--gap", in->gap, &options.gap, err));
    options.gap_is_set = in->gap != NULL;
    STW_TRY(stw_data_folder(data, sizeof data, err));
    STW_TRY(stw_model_open(in->model, data, &model, err));
    STW_TRY(read_cluster(in->cluster, &cluster, err));
    STW_TRY(stw_run_spec_init(&run, err));
    if (in->run != NULL) STW_TRY(stw_run_spec_read(in->run, &run, err));
    for (size_t i = 0; i < in->set.n; i++)
        STW_TRY(stw_specs_set(&cluster, &run, in->set.items[i], "--set", err));
    STW_TRY(stw_cluster_check(&cluster, in->cluster != NULL ? in->cluster : "this machine", err));
    STW_TRY(stw_run_spec_check(&run, in->run != NULL ? in->run : "--set", err));
    status = stw_plan_new(model, &cluster, &run, &plan, err);
    model = NULL; /* taken over, also on failure */
    if (status != STW_STATUS_OK) goto out;
    STW_TRY(stw_planner_solve(plan, &options, err));
    STW_TRY(stw_sim_plan(plan, NULL, err));
    STW_TRY(stw_plan_check(plan, true, err));
    *out = plan;
    plan = NULL;
out:
    stw_plan_free(plan);
    stw_model_free(model);
    stw_run_spec_free(&run);
    return status;
}

int stw_plan_exit_code(const stw_plan *plan) {
    if (plan->outcome == STW_OUTCOME_INFEASIBLE)
        return stw_status_exit_code(STW_STATUS_NOTHING_FITS);
    return 0;
}

int stw_format_of(const char *path) {
    const char *dot = path != NULL ? strrchr(path, '.') : NULL;
    if (dot != NULL && strcmp(dot, ".md") == 0) return STW_FORMAT_MARKDOWN;
    if (dot != NULL && strcmp(dot, ".csv") == 0) return STW_FORMAT_CSV;
    if (dot != NULL && strcmp(dot, ".json") == 0) return STW_FORMAT_JSON;
    return STW_FORMAT_TERMINAL;
}

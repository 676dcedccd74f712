/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* fork, pipe, waitpid */
/* Makes a solved plan from --model, --cluster, --run and --set. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/commands.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/progress.h"
#include "plan/files/verdict.h"
#include "plan/job/effect.h"
#include "plan/spec/gpu_sheets.h"
#include "plan/spec/spec_keys.h"
#include "planner/frameworks/emit/emit.h"
#include "planner/frameworks/import/import.h"
#include "planner/layouts.h"
#include "planner/planner.h"
#include "sim/sim.h"

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
        if (dup2(pipe_ends[1], STDOUT_FILENO) < 0) _exit(127);
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        execl(program, program, "--probe", (char *)NULL);
        _exit(127);
    }
    close(pipe_ends[1]);
    ssize_t n = child > 0 ? 1 : -1;
    while (n > 0 || (n < 0 && child > 0 && errno == EINTR)) {
        n = read(pipe_ends[0], buffer, sizeof buffer);
        if (n > 0) stw_text_append(out, buffer, (size_t)n);
    }
    close(pipe_ends[0]);
    int code = -1;
    pid_t ended = -1;
    while (child > 0 && (ended = waitpid(child, &code, 0)) < 0 && errno == EINTR) continue;
    if (n < 0 || ended < 0 || !WIFEXITED(code) || WEXITSTATUS(code) != 0)
        return stw_fail(err, STW_STATUS_DEVICE, program,
                        "cannot detect this machine; use --cluster FILE");
    return stw_text_status(out, err);
}

stw_status stw_inputs_cluster(const char *what, stw_cluster *out, stw_error *err) {
    char data[4096] = "";
    if (!stw_cluster_is_file(what)) {
        stw_status status = stw_data_folder(data, sizeof data, err);
        if (status != STW_STATUS_OK) return status;
    }
    return stw_cluster_open(what, data, out, err);
}

static stw_status read_cluster(const char *path, stw_cluster *cluster, stw_error *err) {
    if (path != NULL) return stw_inputs_cluster(path, cluster, err);
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_tree *tree = NULL;
    STW_TRY(stw_cluster_defaults(cluster, err));
    STW_TRY(probe_text(&text, err));
    STW_TRY(stw_tree_parse_yaml("this machine", text.data, text.length, &tree, err));
    STW_TRY(stw_cluster_from_node(tree, tree->root, cluster, err));
out:
    stw_tree_free(tree);
    stw_text_free(&text);
    return status;
}

/* The setting of --set whose key begins the text of an error, NULL if there is none. */
static const char *setting_of(const stw_inputs *in, const char *text) {
    for (size_t i = in->set.n; i-- > 0;) {
        size_t length = strcspn(in->set.items[i], "=");
        if (strncmp(text, in->set.items[i], length) == 0 && text[length] == ':')
            return in->set.items[i];
    }
    return NULL;
}

/* Checks find contradictions when all is read; name the setting that the key was given by. */
static stw_status named(const stw_inputs *in, stw_status status, stw_error *err) {
    const char *setting = status != STW_STATUS_OK && err != NULL ? setting_of(in, err->text) : NULL;
    if (setting != NULL) snprintf(err->where, sizeof err->where, "--set %s", setting);
    return status;
}

/* Name the import where no other input can have given the key. */
static stw_status imported(const stw_inputs *in, const stw_import *import, stw_status status,
                           stw_error *err) {
    const bool other = err == NULL || in->run != NULL || setting_of(in, err->text) != NULL;
    return in->from == NULL || other ? status : stw_error_in(status, import->path, err);
}

static stw_status check_settings(const stw_inputs *in, const stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < in->set.n && status == STW_STATUS_OK; i++)
        status = stw_job_check_setting(job, in->set.items[i], "--set", err);
    return status;
}

static void warn_of_positions(const stw_job *job) {
    if (stw_job_exceeds_positions(job))
        stw_log(STW_LOG_WARN,
                "batch.seq_len: %llu tokens exceed the %llu positions of %s "
                "(max_position_embeddings); the plan is computed all the same",
                (unsigned long long)job->run->batch.seq_len,
                (unsigned long long)job->model->max_positions, job->model->name);
}

void stw_warn_of_gpu(const char *gpu, bool bf16) {
    if (bf16 && stw_gpu_lacks(gpu, STW_DTYPE_BF16))
        stw_log(STW_LOG_WARN,
                "%s has products of fp16 and none of bf16: the seconds of bf16 are fp16's, and "
                "torch emulates bf16 more slowly; set precision.compute=fp16",
                gpu);
    if (stw_gpu_is_target(gpu))
        stw_log(STW_LOG_WARN, "%s is a planning target: stowage-run has no backend for it", gpu);
}

/* Of several plans: unless fp16 is set for all of them. */
static bool sets_fp16(const stw_inputs *in) {
    for (size_t i = 0; i < in->set.n; i++)
        if (strcmp(in->set.items[i], "precision.compute=fp16") == 0) return true;
    return false;
}

static stw_status set_all(const stw_inputs *in, stw_cluster *cluster, stw_run_spec *run,
                          stw_error *err) {
    return stw_specs_set_all(cluster, run, in->set.items, in->set.n, "--set", err);
}

static bool sets(const stw_inputs *in, const char *key) {
    const size_t length = strlen(key);
    for (size_t i = 0; i < in->set.n; i++)
        if (strncmp(in->set.items[i], key, length) == 0 && in->set.items[i][length] == '=')
            return true;
    return false;
}

/* A cluster that names a node alone has as many of them as the launch. */
static stw_status open_cluster(const stw_inputs *in, const stw_import *import, stw_cluster *cluster,
                               stw_error *err) {
    stw_status status = read_cluster(in->cluster, cluster, err);
    if (status != STW_STATUS_OK || in->from == NULL) return status;
    const uint32_t nodes = stw_import_nodes(import, cluster->gpus);
    if (nodes > 1 && import->nodes > 1 && in->cluster != NULL && stw_cluster_is_node(in->cluster) &&
        !sets(in, "nodes") && !sets(in, "node.gpus")) {
        char what[256];
        snprintf(what, sizeof what, "%u x %.200s", nodes, in->cluster);
        status = read_cluster(what, cluster, err);
        char gpus[48] = "";
        if (import->gpus > 0)
            snprintf(gpus, sizeof gpus, ", %llu GPUs", (unsigned long long)import->gpus);
        stw_log(STW_LOG_INFO, "%s: %s%s: planned on %s", import->path,
                import->nodes_name != NULL ? import->nodes_name : "its launch", gpus, what);
    }
    if (status == STW_STATUS_OK) status = stw_import_cluster(import, cluster, err);
    return status;
}

/* A launch on other GPUs than the cluster's. What the command line says counts. */
static void warn_of_gpus(const stw_import *import, const stw_cluster *cluster) {
    const uint64_t gpus = (uint64_t)cluster->nodes * cluster->gpus;
    const uint32_t nodes = stw_import_nodes(import, cluster->gpus);
    char more[96] = "";
    if (import->gpus == 0 || import->gpus == gpus) return;
    if (nodes > 0)
        snprintf(more, sizeof more, "; to plan the launch: %u node%s (\"%u x NAME\")", nodes,
                 nodes > 1 ? "s" : "", nodes);
    else if (import->gpus < cluster->gpus)
        snprintf(more, sizeof more, "; to plan the launch: --set node.gpus=%u",
                 (unsigned)import->gpus);
    stw_log(STW_LOG_WARN,
            "%s: a launch on %llu GPU%s%s%s%s is planned on the cluster's %llu (%u x %u)%s%s",
            import->path, (unsigned long long)import->gpus, import->gpus > 1 ? "s" : "",
            import->nodes_name != NULL ? " (" : "",
            import->nodes_name != NULL ? import->nodes_name : "",
            import->nodes_name != NULL ? ")" : "", (unsigned long long)gpus, cluster->nodes,
            cluster->gpus,
            import->global_batch > 0 || import->step_sequences > 0
                ? ""
                : " with as many micro batches per GPU, so that a step has other tokens than the "
                  "launch's",
            more);
}

/* The specs after --cluster, --from, --run and --set. What --from makes of a global batch depends
 * on all of them, and --set comes last. */
static stw_status read_specs(const stw_inputs *in, const stw_import *import, stw_cluster *cluster,
                             stw_run_spec *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *paths[] = {in->cluster != NULL ? in->cluster : "", in->run != NULL ? in->run : "",
                           in->from != NULL ? import->path : ""};
    STW_TRY(stw_stdin_once(paths, 3, err));
    STW_TRY(open_cluster(in, import, cluster, err));
    if (in->from != NULL) STW_TRY(stw_import_run(import, run, err));
    if (in->run != NULL) STW_TRY(stw_run_spec_read(in->run, run, err));
    STW_TRY(set_all(in, cluster, run, err));
    if (in->from != NULL) {
        warn_of_gpus(import, cluster);
        STW_TRY(stw_import_batch(import, cluster, run, err));
        STW_TRY(set_all(in, cluster, run, err));
    }
    const char *machine = in->cluster != NULL ? in->cluster : "this machine";
    STW_TRY(named(in, stw_cluster_check(cluster, machine, err), err));
    const char *origin = in->run != NULL ? in->run : in->from != NULL ? import->path : "--set";
    STW_TRY(named(in, stw_run_spec_check(run, origin, err), err));
out:
    return status;
}

bool stw_inputs_hint(const char *word, char *out, size_t out_size) {
    const char *near[STW_SPEC_MOST_NEAR], *name = word + strspn(word, "-");
    char key[96];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(name, "="), name);
    size_t n = strlen(key) > 1 ? stw_spec_meant_keys(key, near, STW_SPEC_MOST_NEAR) : 0;
    stw_spec_hint("--set ", near, n, out, out_size);
    return n > 0;
}

static stw_status finish(stw_plan *plan, stw_error *err) {
    stw_status status = stw_sim_plan(plan, NULL, err);
    return status == STW_STATUS_OK ? stw_plan_check(plan, true, err) : status;
}

static stw_status solve(stw_plan *plan, const stw_planner_options *options, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double start_s = stw_now_s();
    stw_log(STW_LOG_DEBUG, "model %s: %llu parameters in %u tensors; cluster %s: %u x %u GPUs",
            plan->model->name, (unsigned long long)plan->model->params, plan->model->n_tensors,
            plan->cluster.name, plan->cluster.nodes, plan->cluster.gpus);
    STW_TRY(stw_planner_solve(plan, options, err));
    double solved_s = stw_now_s();
    stw_log(STW_LOG_DEBUG, "solve: %.3f s, %s", solved_s - start_s,
            stw_outcome_name(plan->outcome));
    STW_TRY(finish(plan, err));
    stw_log(STW_LOG_DEBUG, "simulate and check: %.3f s", stw_now_s() - solved_s);
out:
    return status;
}

static stw_status open_model(const stw_inputs *in, stw_import *import, stw_model **out,
                             stw_error *err) {
    char data[4096];
    stw_status status = stw_data_folder(data, sizeof data, err);
    if (status != STW_STATUS_OK) return status;
    if (in->from == NULL) return stw_model_open(in->model, data, out, err);
    status = stw_import_model(import, in->model, data, out, err);
    stw_warn_of_flags(in, import); /* with what follows from the model */
    return status;
}

/* Half of the time is left for the plan of the layout that was chosen. */
static stw_status choose_layout(const stw_model *model, const stw_cluster *cluster,
                                const stw_planner_options *options, stw_run_spec *run,
                                stw_layout_search *out, stw_error *err) {
    const stw_layouts_options layouts = {.time_limit_s = options->time_limit_s / 2,
                                         .tells_turns = options->tells_turns,
                                         .simulate = stw_sim_seconds,
                                         .finish = finish};
    return stw_layouts_choose(model, cluster, run, &layouts, run->pool, out, err);
}

/* Within the thread's deadline. */
static stw_status make_plan(const stw_inputs *in, stw_planner_options options, stw_plan **out,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_model *model = NULL;
    stw_cluster cluster;
    stw_import import = {.pool = NULL};
    stw_run_spec run = {0};
    stw_plan *plan = NULL;
    stw_layout_search layouts = {.searched = NULL};
    if (in->from != NULL) STW_TRY(stw_import_read(in->from, &import, err));
    STW_TRY(open_model(in, &import, &model, err));
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(read_specs(in, &import, &cluster, &run, err));
    status = choose_layout(model, &cluster, &options, &run, &layouts, err);
    STW_TRY(imported(in, &import, named(in, status, err), err));
    status = stw_plan_new(model, &cluster, &run, &plan, err);
    model = NULL; /* taken over, also on failure */
    STW_TRY(imported(in, &import, named(in, status, err), err));
    plan->layout_search = layouts;
    STW_TRY(named(in, check_settings(in, plan->job, err), err));
    warn_of_positions(plan->job);
    stw_warn_of_gpu(plan->cluster.gpu.name, plan->run.precision.compute == STW_DTYPE_BF16);
    STW_TRY(solve(plan, &options, err));
    STW_TRY(stw_layouts_settle(&layouts, plan->verdict, options.time_limit_s, err));
    if (in->from != NULL) STW_TRY(stw_emit_order_fixes(in->from, &import, plan, err));
    *out = plan;
    plan = NULL;
out:
    stw_plan_free(plan);
    stw_model_free(model);
    stw_run_spec_free(&run);
    stw_import_free(&import);
    return status;
}

static stw_status check_model(const stw_inputs *in, stw_error *err) {
    if (in->model == NULL && in->from == NULL)
        return stw_fail(err, STW_STATUS_USAGE, "--model",
                        "required: a zoo name (`stowage models`), config.json, safetensors or CSV");
    return STW_STATUS_OK;
}

stw_status stw_inputs_open(const stw_inputs *in, stw_opened *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *paths[] = {in->cluster != NULL ? in->cluster : "", in->run != NULL ? in->run : "",
                           in->from != NULL ? stw_import_path(in->from) : ""};
    STW_TRY(check_model(in, err));
    STW_TRY(stw_stdin_once(paths, 3, err));
    if (in->from != NULL) STW_TRY(stw_import_read(in->from, &out->import, err));
    STW_TRY(open_model(in, &out->import, &out->model, err));
    STW_TRY(open_cluster(in, &out->import, &out->cluster, err));
    stw_warn_of_gpu(out->cluster.gpu.name, !sets_fp16(in));
    if (in->run != NULL) STW_TRY(stw_tree_read_yaml(in->run, &out->run, err));
    out->base = (stw_point_base){.model = out->model,
                                 .import = in->from != NULL ? &out->import : NULL,
                                 .cluster = &out->cluster,
                                 .run = out->run,
                                 .settings = in->set.items,
                                 .n_settings = in->set.n,
                                 .simulate = stw_sim_seconds,
                                 .finish = finish};
out:
    return status;
}

void stw_opened_free(stw_opened *opened) {
    stw_tree_free(opened->run);
    stw_model_free(opened->model);
    stw_import_free(&opened->import);
}

stw_status stw_inputs_accept(stw_inputs *in, stw_error *err) {
    static const char *const settings[] = {"placement.accept=fits", "placement.accept=at_risk"};
    const size_t most = sizeof in->set.items / sizeof in->set.items[0];
    if (in->accept == NULL) return STW_STATUS_OK;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (strcmp(strchr(settings[i], '=') + 1, in->accept) != 0) continue;
        if (in->set.n == most)
            return stw_fail(err, STW_STATUS_USAGE, "--accept", "too many settings beside it");
        memmove(&in->set.items[1], &in->set.items[0], in->set.n++ * sizeof in->set.items[0]);
        in->set.items[0] = settings[i];
        return STW_STATUS_OK;
    }
    return stw_fail(err, STW_STATUS_USAGE, "--accept", "found \"%.40s\", expected at_risk or fits",
                    in->accept);
}

stw_status stw_inputs_plan(const stw_inputs *in, stw_plan **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_planner_options options = {.write_lp = in->write_lp,
                                   .tells_turns = in->tells_turns || in->from != NULL,
                                   .simulate = stw_sim_seconds};
    STW_TRY(check_model(in, err));
    STW_TRY(stw_option_double("--time-limit", in->time_limit, &options.time_limit_s, err));
    STW_TRY(stw_option_share("--gap", in->gap, &options.gap, err));
    options.gap_is_set = in->gap != NULL;
    if (!(options.time_limit_s > 0)) options.time_limit_s = STW_PLANNER_TIME_LIMIT_S;
    (void)stw_deadline_set(stw_now_s() + options.time_limit_s);
    stw_progress_phase("planning", STW_PROGRESS_SECONDS, 0);
    status = make_plan(in, options, out, err);
    stw_progress_end();
out:
    (void)stw_deadline_set((double)INFINITY);
    return status;
}

stw_status stw_plan_hold(stw_plan *plan, const char *name, stw_error *err) {
    stw_status status = stw_plan_check(plan, false, err);
    return status == STW_STATUS_OK ? stw_sim_check(plan, name, NULL, err) : status;
}

stw_status stw_plan_open(const char *path, stw_plan **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    STW_TRY(stw_plan_read(path, &plan, err));
    STW_TRY(stw_plan_hold(plan, path, err));
    *out = plan;
    plan = NULL;
out:
    stw_plan_free(plan);
    return status;
}

int stw_plan_exit_code(const stw_plan *plan) {
    if (plan->outcome == STW_OUTCOME_INFEASIBLE)
        return stw_status_exit_code(STW_STATUS_NOTHING_FITS);
    return stw_status_exit_code(stw_verdict_status(plan->verdict));
}

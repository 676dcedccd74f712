/* SPDX-License-Identifier: Apache-2.0 */
/* The program `stowage-run`: executes plans, and describes or measures this machine. It is never
 * linked with the solver: GPU nodes do not need one. */
#define _POSIX_C_SOURCE 200809L /* unsetenv */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backend/executor/executor.h"
#include "backend/probe/probe.h"
#include "cli/common.h"
#include "cli/common_plan.h"
#include "cli/common_version.h"
#include "cli/run_state.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"
#include "plan/spec/cluster_learned.h"
#include "reports/reports.h"
#include "stw_config.h"

typedef struct request {
    const char *plan, *backend, *steps, *seed, *weights, *nvme, *timeout, *trace, *gradient;
    const char *sync_to;
    const char *checkpoint, *every, *keep, *resume;
    bool probe, calibrate, quick, version, no_digest, compare_weights, keep_state, allow_tmpfs,
        finite;
} request;

/* A calibration over a file that has learned from recorded jobs keeps that. */
static stw_status keep_learned(const char *path, stw_cluster *cluster, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text words = STW_TEXT_INIT;
    stw_cluster before;
    stw_error why = STW_ERROR_INIT;
    if (path == NULL || strcmp(path, "-") == 0 || !stw_file_exists(path)) return STW_STATUS_OK;
    if (stw_cluster_read(path, &before, &why) != STW_STATUS_OK) {
        stw_log(STW_LOG_WARN, "%s is replaced; it was no cluster: %s", path, why.text);
        return STW_STATUS_OK;
    }
    const uint32_t had = stw_cluster_learned_words(&before, &words);
    STW_TRY(stw_text_status(&words, err));
    if (had > 0 && stw_cluster_keep_learned(&before, cluster) == 0)
        stw_log(STW_LOG_WARN, "%s: the GPUs are others or keys were changed; not kept: %s", path,
                words.data);
    else if (had > 0)
        stw_log(STW_LOG_INFO, "%s: kept %s; remove the map `learned` to calibrate these keys too",
                path, words.data);
out:
    stw_text_free(&words);
    return status;
}

/* --probe writes sizes only; --calibrate adds measured rates with raw samples. */
static stw_status describe_machine(const request *r, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster;
    stw_samples samples = STW_SAMPLES_INIT;
    stw_text text = STW_TEXT_INIT;
    STW_TRY(stw_check_suffix(general->output, "a cluster", general->json ? ".json" : ".yaml .yml",
                             err));
    char data[4096];
    const bool has_data = stw_data_folder(data, sizeof data, NULL) == STW_STATUS_OK;
    const stw_probe_options options = {.data_folder = has_data ? data : NULL,
                                       .depth = !r->calibrate ? STW_PROBE_SIZES
                                                : r->quick    ? STW_PROBE_QUICK
                                                              : STW_PROBE_FULL,
                                       .nvme_folder = r->nvme};
    STW_TRY(stw_machine_probe(&options, &cluster, &samples, err));
    STW_TRY(keep_learned(general->output, &cluster, err));
    if (general->json) {
        stw_json *json = stw_json_new();
        if (r->calibrate)
            stw_cluster_write_measured_json(&cluster, &samples, json, NULL);
        else
            stw_cluster_write_json(&cluster, json, NULL);
        STW_TRY(stw_json_finish(json, &text, err));
    } else if (r->calibrate) {
        stw_cluster_write_measured_yaml(&cluster, &samples, &text);
    } else {
        stw_cluster_write_yaml(&cluster, &text);
    }
    STW_TRY(stw_emit(general, &text, err));
out:
    stw_samples_free(&samples);
    stw_text_free(&text);
    return status;
}

static void summarize(const stw_run_result *run) {
    char step[32], rate[32], up[32], down[32];
    bool repeated = isfinite(run->time_s[STW_PHASE_OPTIMIZER_STEP]); /* more than one step */
    double step_s =
        run->time_s[repeated ? STW_PHASE_OPTIMIZER_STEP : STW_PHASE_FIRST_OPTIMIZER_STEP];
    stw_quantity_format(step_s, STW_UNIT_SECONDS, step, sizeof step);
    stw_quantity_format(run->params_per_s, STW_UNIT_PPS, rate, sizeof rate);
    stw_quantity_format(run->up_bps, STW_UNIT_BPS, up, sizeof up);
    stw_quantity_format(run->down_bps, STW_UNIT_BPS, down, sizeof down);
    printf("%s backend, %s: %u rank%s, %u step%s", run->backend, run->device, run->world,
           run->world > 1 ? "s" : "", run->steps, run->steps > 1 ? "s" : "");
    if (run->first_step > 1) printf(", of which %u are the checkpoint's", run->first_step - 1);
    printf("\n");
    if (isfinite(step_s)) {
        printf("optimizer step: %s %s; per rank %s", repeated ? "median" : "first and only", step,
               rate);
        if (run->up_bps > 0 || run->down_bps > 0)
            printf(", %s host to GPU, %s GPU to host", up, down);
        printf("\n");
    }
    printf("verification: %llu of %llu elements checked, %llu mismatches\n",
           (unsigned long long)run->checked, (unsigned long long)run->elements,
           (unsigned long long)run->mismatched);
    if (run->weights_read_bytes > 0) {
        char read[32], compared[32];
        stw_bytes_format(run->weights_read_bytes, read, sizeof read);
        stw_bytes_format(run->weights_compared_bytes, compared, sizeof compared);
        if (run->weights_compared_bytes == run->weights_read_bytes)
            printf("weights: ranks read %s and compared all of it\n", read);
        else
            printf("weights: ranks read %s and compared %s of it; what one rank reads alone is "
                   "compared by a sample\n",
                   read, compared);
    }
    if (run->synced.version > 0) {
        char sync[32], sent[32];
        stw_quantity_format(run->time_s[STW_PHASE_WEIGHT_SYNC], STW_UNIT_SECONDS, sync,
                            sizeof sync);
        stw_bytes_format(run->synced.sent_bytes, sent, sizeof sent);
        printf("weight sync: median %s; ranks sent %s in all; version %llu compared\n", sync, sent,
               (unsigned long long)run->synced.version);
    }
    if (run->synced.folder != NULL) {
        char took[32], bytes[32];
        stw_quantity_format(run->synced.folder_s, STW_UNIT_SECONDS, took, sizeof took);
        stw_bytes_format(run->synced.folder_bytes, bytes, sizeof bytes);
        printf("folder %s: step %llu, %s, median %s\n", run->synced.folder,
               (unsigned long long)run->synced.folder_version, bytes, took);
    }
    printf("digests: params %016llx, exp_avg %016llx,\n  exp_avg_sq %016llx",
           (unsigned long long)run->digest[0], (unsigned long long)run->digest[1],
           (unsigned long long)run->digest[2]);
    if (run->digest[3] != 0) printf(", master %016llx", (unsigned long long)run->digest[3]);
    printf("\n");
    if (run->nonfinite_steps > 0)
        printf("gradient norm: not finite in %llu of %u steps, first in step %llu\n",
               (unsigned long long)run->nonfinite_steps, run->steps,
               (unsigned long long)run->first_nonfinite_step);
    if (isfinite(run->gpu_growth_bytes))
        printf("memory growth after the first 10%% of the steps: GPU %.0f bytes, host %.0f bytes\n",
               run->gpu_growth_bytes, run->host_growth_bytes);
}

static stw_status write_trace(const stw_plan *plan, const stw_run_result *run,
                              const stw_timeline *timeline, const char *path, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    const stw_program *program = plan->programs[stw_job_kind_of(plan->job, 0)];
    stw_trace_event *events = calloc((size_t)timeline->n_ops + 1, sizeof *events);
    char name[160];
    uint32_t n = 0;
    if (events == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory for the trace"));
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++)
            if (isfinite(timeline->start_s[i]) && isfinite(timeline->end_s[i]))
                events[n++] = (stw_trace_event){movement->phase, &program->ops[i],
                                                timeline->start_s[i], timeline->end_s[i]};
    }
    snprintf(name, sizeof name, "rank 0 of %u, %s", run->world, run->device);
    const char *names[] = {name};
    const stw_trace_event *all[] = {events};
    STW_TRY(stw_trace_to_json(1, names, all, &n, &text, err));
    STW_TRY(stw_text_status(&text, err));
    STW_TRY(stw_file_write(path, text.data, text.length, err));
out:
    free(events);
    stw_text_free(&text);
    return status;
}

/* STEP:ELEMENT=VALUE */
static stw_status read_gradient(const char *text, stw_other_grad *out, stw_error *err) {
    char *end = NULL;
    if (text == NULL) return STW_STATUS_OK;
    errno = 0;
    out->step = strtoull(text, &end, 10);
    bool right = text[0] >= '1' && text[0] <= '9' && *end == ':' && end[1] >= '0' && end[1] <= '9';
    if (right) out->element = strtoull(end + 1, &end, 10);
    right = right && errno == 0 && *end == '=';
    const char *value = right ? end + 1 : "";
    double number = 0;
    if (strcasecmp(value, "nan") == 0)
        out->value = (float)NAN;
    else if (strcasecmp(value, "inf") == 0 || strcasecmp(value, "-inf") == 0)
        out->value = value[0] == '-' ? -(float)INFINITY : (float)INFINITY;
    else if (stw_quantity_parse(value, STW_UNIT_RATIO, &number, "--set-gradient", NULL) ==
             STW_STATUS_OK)
        out->value = (float)number;
    else
        right = false;
    if (right) return STW_STATUS_OK;
    return stw_fail(
        err, STW_STATUS_USAGE, "--set-gradient",
        "found \"%.60s\", expected STEP:ELEMENT=VALUE, where VALUE is NaN, Inf, -Inf or "
        "a number, such as 3:1000=NaN",
        text);
}

/* Checkpoints: how often, and how many stay, is the plan's to say unless an option does. */
static stw_status read_checkpoints(const request *r, const stw_plan *plan,
                                   stw_executor_options *options, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t keep = plan->run.checkpoint.keep;
    if (r->checkpoint == NULL && (r->every != NULL || r->keep != NULL))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, r->every != NULL ? "--every" : "--keep",
                         "has no effect without --checkpoint DIR"));
    options->checkpoint = r->checkpoint;
    options->resume = r->resume;
    options->checkpoint_every = plan->run.checkpoint.every;
    STW_TRY(stw_option_u64("--every", r->every, 1, &options->checkpoint_every, err));
    STW_TRY(stw_option_u64("--keep", r->keep, 0, &keep, err));
    if (keep > UINT32_MAX)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "--keep", "found %s, expected a number below 2^32",
                         r->keep));
    options->checkpoint_keep = (uint32_t)keep;
out:
    return status;
}

/* The model's config.json: beside the weights, else that of the zoo; "" if neither is there. */
static void find_config(const stw_plan *plan, const char *weights, char *out, size_t out_size) {
    char data[4096];
    const char *of = weights != NULL ? weights : plan->run.load.weights;
    out[0] = '\0';
    if (of != NULL) {
        const char *slash = strrchr(of, '/');
        if (stw_file_is_folder(of))
            snprintf(out, out_size, "%s/config.json", of);
        else
            snprintf(out, out_size, "%.*sconfig.json", slash != NULL ? (int)(slash - of) + 1 : 0,
                     of);
        if (stw_file_exists(out)) return;
    }
    if (stw_data_folder(data, sizeof data, NULL) == STW_STATUS_OK &&
        strchr(plan->job->model->name, '/') == NULL)
        snprintf(out, out_size, "%s/zoo/%s.json", data, plan->job->model->name);
    if (!stw_file_exists(out)) out[0] = '\0';
}

/* What the program is asked for, and the plan; `options` has what the ranks need to speak. */
static stw_status read_request(const request *r, const stw_general *general,
                               stw_executor_options *options, stw_plan **plan,
                               stw_plan_terms *terms, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t steps = 5;
    options->seed = 1;
    const stw_named_path inputs[] = {{"PLAN", r->plan}, {"--weights", r->weights}};
    const stw_named_path outputs[] = {{"-o", general->output}, {"--trace", r->trace}};
    STW_TRY(stw_check_suffix(general->output, "a run", ".json", err));
    STW_TRY(stw_check_outputs(outputs, 2, inputs, 2, err));
    STW_TRY(stw_option_u64("--steps", r->steps, 1, &steps, err));
    STW_TRY(stw_option_u64("--seed", r->seed, 0, &options->seed, err));
    STW_TRY(stw_option_double("--timeout", r->timeout, &options->timeout_s, err));
    if (steps > UINT32_MAX)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "--steps", "found %s, expected a number below 2^32",
                         r->steps));
    options->steps = (uint32_t)steps;
    STW_TRY(read_gradient(r->gradient, &options->other_grad, err));
    STW_TRY(stw_plan_read(r->plan, plan, err));
    STW_TRY(stw_plan_check(*plan, false, err));
    STW_TRY(read_checkpoints(r, *plan, options, err));
    if (stw_run_is_told()) stw_warn_of_excess(*plan, r->plan);
    if (r->keep_state) STW_TRY(stw_run_keep_state(*plan, terms, err));
out:
    return status;
}

static stw_status judge(const stw_run_result *result, stw_error *err) {
    if (result->mismatched == 0) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DISAGREE, "verify",
                    "%llu of %llu checked elements differ from the reference",
                    (unsigned long long)result->mismatched, (unsigned long long)result->checked);
}

/* Rank 0 shows and writes the result; the trace last, whose failure then costs nothing else. */
static stw_status give_result(const request *r, const stw_general *general, const stw_plan *plan,
                              const stw_run_result *result, const stw_timeline *timeline,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    if (general->output != NULL) STW_TRY(stw_run_result_write(result, general->output, err));
    if (general->json && (general->output == NULL || !stw_file_is_stdout(general->output))) {
        STW_TRY(stw_run_result_to_json(result, &text, err));
        STW_TRY(stw_emit(&(stw_general){.json = true}, &text, err));
    } else if (!general->json && (general->output == NULL ||
                                  (!general->quiet && strcmp(general->output, "-") != 0))) {
        summarize(result);
    }
    if (r->trace != NULL) {
        status = write_trace(plan, result, timeline, r->trace, err);
        if (status != STW_STATUS_OK && result->mismatched > 0) (void)stw_exit(status, err);
    }
    if (status == STW_STATUS_OK || result->mismatched > 0) {
        stw_status judged = judge(result, err);
        if (judged != STW_STATUS_OK) status = judged;
    }
out:
    stw_text_free(&text);
    return status;
}

static stw_status execute(const request *r, const stw_general *general, stw_error *err) {
    stw_plan *plan = NULL;
    stw_run_result *result = NULL;
    stw_timeline timeline = {0};
    stw_plan_terms terms = STW_PLAN_TERMS_INIT;
    char config[4096 + 512];
    stw_executor_options options = {.backend = r->backend != NULL ? r->backend : "auto",
                                    .weights = r->weights,
                                    .nvme_folder = r->nvme,
                                    .nvme_in_memory = r->allow_tmpfs,
                                    .output = general->output,
                                    .trace = r->trace,
                                    .sync_to = r->sync_to,
                                    .no_digest = r->no_digest,
                                    .compare_weights = r->compare_weights,
                                    .error_if_nonfinite = r->finite,
                                    .failed = stw_run_failed,
                                    .timeline = r->trace != NULL ? &timeline : NULL};
    stw_status status = read_request(r, general, &options, &plan, &terms, err);
    stw_run_catch_signals();
    if (status != STW_STATUS_OK) {
        status = stw_execute_refuse(&options, status, err);
        stw_run_failed(NULL, err, false);
    } else {
        find_config(plan, r->weights, config, sizeof config);
        if (config[0] != '\0') options.checkpoint_config = config;
        status = stw_execute(plan, &options, &result, err);
    }
    if (result != NULL && r->keep_state) {
        result->plan_hash = terms.hash;
        result->plan_terms = terms.lines.data;
    }
    if (status == STW_STATUS_OK && result != NULL) /* rank 0 */
        status = give_result(r, general, plan, result, &timeline, err);
    stw_timeline_free(&timeline);
    stw_run_result_free(result);
    stw_text_free(&terms.lines);
    stw_plan_free(plan);
    return status;
}

static int command_line(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    request r = {0};
    const char *plan[1] = {NULL};
    size_t n = 0;
    const stw_option options[] = {
        {"--backend", "-b", "NAME", "cuda, host or auto (default)", STW_OPTION_VALUE, &r.backend},
        {"--steps", "-n", "N", "number of optimizer steps; default 5", STW_OPTION_VALUE, &r.steps},
        {"--seed", "-s", "N", "random seed of weights and gradients; default 1", STW_OPTION_VALUE,
         &r.seed},
        {"--weights", "-w", "PATH",
         "safetensors file, index or folder; default: random weights. Ranks compare a sample of "
         "the files (names, sizes, headers and up to 17 blocks of 64 KiB each), and everything "
         "that two of them read",
         STW_OPTION_VALUE, &r.weights},
        {"--compare-weights", NULL, NULL,
         "load.method=sharded_read: after the load each rank reads once more what another rank "
         "has read, and compares it; reading takes twice as long",
         STW_OPTION_FLAG, &r.compare_weights},
        {"--sync-to", NULL, "FOLDER",
         "after each step write the parameters to a folder of safetensors with published names, "
         "which replaces the old one whole",
         STW_OPTION_VALUE, &r.sync_to},
        {"--nvme", NULL, "FOLDER",
         "folder of NVMe state, or disk to calibrate; default $TMPDIR or /tmp", STW_OPTION_VALUE,
         &r.nvme},
        {"--keep-state", NULL, NULL,
         "two copies of the state on NVMe, as --set placement.nvme_copies=2 plans them: after a "
         "crash or a signal the last whole step is kept for `stowage state`",
         STW_OPTION_FLAG, &r.keep_state},
        {"--checkpoint", NULL, "DIR",
         "save model and optimizer into DIR/step-00000100 and so on, beside the next steps: "
         "sharded "
         "safetensors with published names. A save that fails is a warning",
         STW_OPTION_VALUE, &r.checkpoint},
        {"--every", NULL, "N",
         "save after every Nth step, not only after the last one; default: checkpoint.every of the "
         "plan",
         STW_OPTION_VALUE, &r.every},
        {"--keep", NULL, "N",
         "once a checkpoint is complete, remove older ones beyond the newest N; 0: keep all; "
         "default: checkpoint.keep of the plan",
         STW_OPTION_VALUE, &r.keep},
        {"--resume", NULL, "DIR",
         "go on from a checkpoint, or from the newest complete one of DIR, verified. World, "
         "placement "
         "and precision may be others; --steps counts from the very first step",
         STW_OPTION_VALUE, &r.resume},
        {"--allow-tmpfs", NULL, NULL, "state on NVMe may be in memory (tmpfs)", STW_OPTION_FLAG,
         &r.allow_tmpfs},
        {"--timeout", NULL, "SECONDS", "time limit of a collective; default 120", STW_OPTION_VALUE,
         &r.timeout},
        {"--no-digest", NULL, NULL, "do not compute digests of the final state", STW_OPTION_FLAG,
         &r.no_digest},
        {"--error-if-nonfinite", NULL, NULL,
         "end the run, with exit code 3, before a step that has a gradient which is NaN or "
         "infinite; "
         "the error names step, rank, tensor, parameter group and bucket. Reads all gradients once "
         "more per step. Without it the step is taken, as torch takes it: with clipping a NaN "
         "makes "
         "everything NaN",
         STW_OPTION_FLAG, &r.finite},
        {"--set-gradient", NULL, "STEP:ELEMENT=VALUE",
         "a number, NaN or Inf instead of one random gradient, to try what a run does with it; "
         "ELEMENT counts the model's elements from 0",
         STW_OPTION_VALUE, &r.gradient},
        {"--trace", "-t", "FILE",
         "write a Chrome trace (for Perfetto): load, first and last step, rank 0", STW_OPTION_VALUE,
         &r.trace},
        {"--probe", NULL, NULL, "write cluster.yaml for this machine without measuring rates",
         STW_OPTION_FLAG, &r.probe},
        {"--calibrate", NULL, NULL, "measure this machine and write cluster.yaml", STW_OPTION_FLAG,
         &r.calibrate},
        {"--quick", NULL, NULL, "calibrate in less than 20 s instead of less than 3 minutes",
         STW_OPTION_FLAG, &r.quick},
        {"--version", NULL, NULL, "print version, identity of the build and built-in features",
         STW_OPTION_FLAG, &r.version},
    };
    enum { OF_THE_MACHINE = 4 }; /* the last options do not belong to `stowage run` */
    bool as_run = argc > 0 && strcmp(argv[0], "stowage run") == 0;
    stw_usage usage = {as_run ? "stowage" : "stowage-run",
                       as_run ? "run" : NULL,
                       "PLAN",
                       "Execute the parts of a plan that Stowage performs: load, optimizer "
                       "steps, weight syncs and checkpoints. Each rank is one process; start "
                       "several with mpirun, srun or "
                       "torchrun. The result (stowage.run/1) is written to -o FILE.",
                       options,
                       sizeof options / sizeof options[0],
                       0,
                       1,
                       NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, plan, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) {
        if (as_run) usage.n_options -= OF_THE_MACHINE;
        return stw_usage_print(&usage), 0;
    }
    if (r.version)
        return stw_exit(
            stw_version_print("stowage-run", STW_LICENCE_NOTE_RUN, NULL, general.json, &err), &err);
    stw_general_apply(&general);
    /* Some training scripts export 1. All streams then share one hardware queue and wait for each
     * other. */
    (void)unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (r.probe || r.calibrate) return stw_exit(describe_machine(&r, &general, &err), &err);
    if (n == 0)
        return stw_exit(stw_fail(&err, STW_STATUS_USAGE, as_run ? "run" : "stowage-run",
                                 "expected PLAN; see --help"),
                        &err);
    r.plan = plan[0];
    return stw_exit(execute(&r, &general, &err), &err);
}

int main(int argc, char **argv) {
    stw_process_begin();
    return stw_process_end(command_line(argc, argv));
}

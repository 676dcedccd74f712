/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/commands.h"
#include "core/file.h"
#include "core/log.h"
#include "reports/reports.h"
#include "sim/sim.h"

typedef struct request {
    const char *plan, *trace, *snapshot;
    stw_inputs in;
} request;

/* The operations of the movements whose times are predictions. What follows one that is not moves
 * up to its start. */
static uint32_t list_events(const stw_plan *plan, const stw_program *program, const stw_sim *sim,
                            stw_trace_event *list) {
    uint32_t n = 0;
    double left_out_s = 0.0;
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        if (!stw_sim_predicts(plan, movement)) {
            left_out_s += stw_sim_phase_seconds(sim, movement->phase);
            continue;
        }
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++)
            list[n++] =
                (stw_trace_event){movement->phase, &program->ops[i],
                                  sim->ops[i].start_s - left_out_s, sim->ops[i].end_s - left_out_s};
    }
    return n;
}

static stw_status write_trace(const stw_plan *plan, stw_sim *const *sims, const char *path,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = plan->job->n_kinds;
    char who[128];
    stw_pool *pool = stw_pool_new();
    stw_text text = STW_TEXT_INIT;
    const char **names = pool != NULL ? stw_pool_array(pool, n, sizeof *names) : NULL;
    const stw_trace_event **events = pool != NULL ? stw_pool_array(pool, n, sizeof *events) : NULL;
    uint32_t *n_events = pool != NULL ? stw_pool_array(pool, n, sizeof *n_events) : NULL;
    if (names == NULL || events == NULL || n_events == NULL) goto no_memory;
    for (uint32_t k = 0; k < n; k++) {
        const stw_program *program = plan->programs[k];
        stw_trace_event *list = stw_pool_array(pool, program->n_ops, sizeof *list);
        if (list == NULL) goto no_memory;
        stw_job_kind_words(plan->job, k, who, sizeof who);
        names[k] = stw_pool_string(pool, who);
        events[k] = list;
        n_events[k] = list_events(plan, program, sims[k], list);
    }
    STW_TRY(stw_trace_to_json(n, names, events, n_events, &text, err));
    STW_TRY(stw_text_status(&text, err));
    STW_TRY(stw_file_write(path, text.data, text.length, err));
out:
    stw_text_free(&text);
    stw_pool_free(pool);
    return status;
no_memory:
    stw_pool_free(pool);
    return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
}

/* The kind of rank that has the plan's peak of GPU memory. */
static uint32_t fullest_kind(const stw_plan *plan) {
    uint32_t fullest = plan->job->largest;
    uint64_t most = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            const uint64_t bytes = plan->peaks[k].phase[p][STW_TIER_GPU].total;
            if (bytes < most || (bytes == most && k != plan->job->largest)) continue;
            most = bytes;
            fullest = k;
        }
    return fullest;
}

/* Plans that do not fit have programs without times. */
static stw_status write_snapshot(const stw_plan *plan, stw_sim *const *sims, const char *path,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t kind = fullest_kind(plan);
    const stw_program *program = plan->programs[kind];
    const bool timed = plan->verdict != STW_VERDICT_DOES_NOT_FIT;
    stw_text text = STW_TEXT_INIT;
    stw_op_span *ops = stw_pool_array(plan->pool, program->n_ops, sizeof *ops);
    if (ops == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const stw_sim_op at = sims[kind]->ops[i];
        ops[i] = (stw_op_span){at.start_s, at.end_s};
    }
    STW_TRY(stw_snapshot_of_program(program, timed ? ops : NULL, &text, err));
    STW_TRY(stw_file_write(path, text.data, text.length, err));
out:
    stw_text_free(&text);
    return status;
}

static stw_status simulate(request *r, const stw_general *general, int *code, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    stw_sim **sims = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    STW_TRY(stw_page_format(general, false, &format, err));
    if (r->plan == NULL && r->in.model == NULL) {
        status = stw_fail(err, STW_STATUS_USAGE, "simulate", "expected PLAN or --model MODEL");
        goto out;
    }
    const stw_named_path outputs[] = {{"-o", general->output},
                                      {"--trace", r->trace},
                                      {"--snapshot", r->snapshot},
                                      {"--write-lp", r->in.write_lp}};
    const stw_named_path inputs[] = {{"PLAN", r->plan}, STW_INPUT_PATHS(r->in)};
    STW_TRY(stw_check_outputs(outputs, 4, inputs, sizeof inputs / sizeof inputs[0], err));
    if (r->plan != NULL)
        STW_TRY(stw_plan_open(r->plan, &plan, err));
    else
        STW_TRY(stw_inputs_plan(&r->in, &plan, err));
    *code = stw_plan_exit_code(plan);
    sims = stw_pool_array(plan->pool, plan->job->n_kinds, sizeof *sims);
    if (sims == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "simulate", "out of memory");
        goto out;
    }
    STW_TRY(stw_sim_plan(plan, sims, err));
    if (r->trace != NULL && plan->verdict == STW_VERDICT_DOES_NOT_FIT)
        stw_log(STW_LOG_WARN, "%s is not written: the plan does not fit", r->trace);
    else if (r->trace != NULL)
        STW_TRY(write_trace(plan, sims, r->trace, err));
    if (r->snapshot != NULL) STW_TRY(write_snapshot(plan, sims, r->snapshot, err));
    if (format == STW_FORMAT_HTML) {
        const char *name = r->plan != NULL ? r->plan : "";
        STW_TRY(stw_page_emit(general, &(stw_page_item){.name = name, .plan = plan}, 1, err));
        goto out;
    }
    if (general->json)
        STW_TRY(stw_plan_to_json(plan, &text, err));
    else if (stw_is_summary(general, format))
        STW_TRY(stw_report_plan_summary(plan, stw_summary_lines(r->in.from != NULL), &text, err));
    else
        STW_TRY(stw_report_plan(plan, NULL, NULL, format, &text, err));
    if (stw_is_summary(general, format)) stw_tell_details(r->plan, &text);
    STW_TRY(stw_emit(general, &text, err));
out:
    for (uint32_t k = 0; sims != NULL && k < plan->job->n_kinds; k++) stw_sim_free(sims[k]);
    stw_text_free(&text);
    stw_plan_free(plan);
    return status;
}

int stw_cmd_simulate(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    request r = {0};
    size_t n = 0;
    int code = 0;
    const char *plan[1] = {NULL};
    const stw_option options[] = {
        {"--trace", "-t", "FILE", "write the time line as a Chrome trace (for Perfetto)",
         STW_OPTION_VALUE, &r.trace},
        {"--snapshot", NULL, "FILE",
         "write the GPU memory of the rank with the peak as a snapshot for "
         "pytorch.org/memory_viz",
         STW_OPTION_VALUE, &r.snapshot},
        STW_INPUT_OPTIONS(r.in),
        STW_FULL_OPTION(general)};
    const stw_usage usage = {
        "stowage",
        "simulate",
        "PLAN | --model MODEL",
        "Simulate a plan: its operations share links, memory bandwidth and CPUs. Prints peaks and "
        "seconds by phase; --full and -o FILE give the whole capacity report. Exit code 4: the "
        "plan "
        "does not fit; 9: it is at risk, or a part is unknown.",
        options,
        sizeof options / sizeof options[0],
        0,
        1,
        stw_inputs_hint};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, plan, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    status = stw_inputs_accept(&r.in, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    r.plan = n > 0 ? plan[0] : NULL;
    status = simulate(&r, &general, &code, &err);
    return status != STW_STATUS_OK ? stw_exit(status, &err) : code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How near does the optimizer step come to what the links allow?
 *
 *     ceiling PLAN [options]      executes a plan like stowage-run
 *
 * After every step it measures the copies of the step alone, without updates, norms and NVMe
 * writes, and the link by itself: copies both ways at once in several shapes, on all ranks at the
 * same time. Half of the shapes do not order the directions; the others return through a ring of
 * slots to where they came from, which keeps the directions in step. The slowest rank counts. The
 * result (stowage.run/1) has copies_s, link and link_share besides what stowage-run writes. */
#define _POSIX_C_SOURCE 200809L /* unsetenv */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/executor/run.h"
#include "cli/common.h"
#include "core/checked.h"
#include "core/median.h"
#include "reports/reports.h"

#define MIB (1ull << 20)
#define MOST_BYTES (4ull << 30) /* each way; longer copies show the same rates */
#define N_SHAPES 12

static const stw_link_shape shapes[N_SHAPES] = {
    {8 * MIB, 1, 0},  {16 * MIB, 1, 0}, {32 * MIB, 1, 0}, {64 * MIB, 1, 0},
    {16 * MIB, 2, 0}, {32 * MIB, 2, 0}, {8 * MIB, 1, 8},  {16 * MIB, 1, 4},
    {16 * MIB, 1, 6}, {32 * MIB, 1, 3}, {32 * MIB, 1, 6}, {64 * MIB, 1, 4},
};

typedef struct ceiling {
    stw_pool *pool;
    uint32_t steps;
    stw_program program;    /* the plan's; of the step movement only the copies do anything */
    stw_schedule *schedule; /* NULL: this plan has no optimizer step */
    bool stale;             /* copies alone leave wrong parameters until the next step */
    uint64_t bytes;         /* each way, of one measurement of the link; 0: not measured */
    uint32_t n_copies, n_links;
    double *copies_s;         /* [steps], slowest rank */
    double *link_s[N_SHAPES]; /* [steps] each, slowest rank */
} ceiling;

/* ---- what is measured ---- */

/* With master weights, parameters that are not at home where they are updated are only written:
 * without the update, what lies in the staging slot comes home. The next step writes them again. */
static bool leaves_stale_params(const stw_plan *plan) {
    bool stale = false;
    for (uint32_t i = 0; plan->run.precision.has_master && i < plan->decisions.n_state; i++)
        stale = stale || stw_place_moves_down(plan->job, &plan->decisions.state[i].place,
                                              STW_COMPONENT_PARAMS);
    return stale;
}

/* Everything but copies becomes an allocation outside the arenas, for which the executor does
 * nothing: the order of the copies stays the step's. */
static void keep_copies(stw_op *ops, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        stw_op *op = &ops[i];
        if (stw_op_is(op, STW_OP_CLASS_MOVE) && op->kind != STW_OP_NVME_WRITE) continue;
        op->kind = STW_OP_ALLOC;
        op->offset_bytes = STW_OFFSET_EXTERNAL;
        op->bytes = 0;
    }
}

static stw_status prepare(ceiling *c, stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_movement *step = stw_exec_step_movement(run);
    if (step == NULL) goto out;
    c->program = *run->program;
    c->program.ops = stw_pool_array(c->pool, run->program->n_ops, sizeof(stw_op));
    c->copies_s = stw_pool_array(c->pool, c->steps, sizeof(double));
    if (c->program.ops == NULL || c->copies_s == NULL) goto no_memory;
    for (int s = 0; s < N_SHAPES; s++) {
        c->link_s[s] = stw_pool_array(c->pool, c->steps, sizeof(double));
        if (c->link_s[s] == NULL) goto no_memory;
    }
    memcpy(c->program.ops, run->program->ops, run->program->n_ops * sizeof(stw_op));
    keep_copies(c->program.ops + step->first_op, step->n_ops);
    c->stale = leaves_stale_params(run->plan);
    double bytes = (double)stw_max_u64(stw_exec_link_bytes(run, step, true),
                                       stw_exec_link_bytes(run, step, false));
    STW_TRY(stw_exec_slowest(run, &bytes, 1, err)); /* the most bytes of any rank */
    c->bytes = stw_min_u64(stw_round_up_u64((uint64_t)bytes, 128 * MIB), MOST_BYTES);
    if (run->backend->link_seconds == NULL) c->bytes = 0;
    STW_TRY(stw_schedule_new(&c->program, step, c->pool, &c->schedule, err));
out:
    return status;
no_memory:
    return stw_fail(err, STW_STATUS_NO_MEMORY, "ceiling", "out of memory");
}

static stw_status measure_copies(ceiling *c, stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_program *program = run->program;
    double *seconds = &c->copies_s[c->n_copies++];
    STW_TRY(stw_comm_barrier(run->comm, err));
    run->program = &c->program;
    status = stw_exec_schedule(run, c->schedule, seconds, err);
    run->program = program;
    if (status == STW_STATUS_OK) status = stw_exec_slowest(run, seconds, 1, err);
out:
    return status;
}

static stw_status measure_links(ceiling *c, stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t at = c->n_links++;
    for (int s = 0; s < N_SHAPES; s++) {
        double *seconds = &c->link_s[s][at];
        STW_TRY(stw_comm_barrier(run->comm, err));
        STW_TRY(run->backend->link_seconds(run->device, &shapes[s], c->bytes, seconds, err));
        STW_TRY(stw_exec_slowest(run, seconds, 1, err));
    }
out:
    return status;
}

static stw_status after_iteration(void *state, stw_rank_run *run, uint32_t iteration,
                                  stw_error *err) {
    stw_status status = STW_STATUS_OK;
    ceiling *c = state;
    if (iteration == 0) STW_TRY(prepare(c, run, err));
    if (c->schedule == NULL) goto out;
    if (!c->stale || iteration + 1 < c->steps) STW_TRY(measure_copies(c, run, err));
    if (c->bytes > 0) STW_TRY(measure_links(c, run, err));
out:
    return status;
}

/* ---- what is written ---- */

static stw_status fill_link(const ceiling *c, int shape, stw_run_result *result, stw_error *err) {
    stw_run_link *link = &result->links[shape];
    uint32_t n = c->n_links;
    link->all_bps = stw_pool_array(result->pool, n, sizeof(double));
    double *sorted = stw_pool_array(c->pool, n, sizeof(double));
    if (link->all_bps == NULL || sorted == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "ceiling", "out of memory");
    link->bytes = shapes[shape].bytes;
    link->streams = shapes[shape].streams;
    link->ring = shapes[shape].ring;
    link->n_all = n;
    for (uint32_t i = 0; i < n; i++)
        link->all_bps[i] = sorted[i] = (double)c->bytes / c->link_s[shape][i];
    link->bps = stw_median(sorted, n);
    return STW_STATUS_OK;
}

static stw_status fill(const ceiling *c, stw_run_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double best = 0;
    if (c->n_copies > 0) result->copies_s = stw_median(c->copies_s, c->n_copies);
    if (c->n_links == 0) goto out;
    result->links = stw_pool_array(result->pool, N_SHAPES, sizeof *result->links);
    if (result->links == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "ceiling", "out of memory"));
    result->n_links = N_SHAPES;
    for (int s = 0; s < N_SHAPES; s++) {
        STW_TRY(fill_link(c, s, result, err));
        best = fmax(best, result->links[s].bps);
    }
    result->link_share = fmax(result->up_bps, result->down_bps) / best;
out:
    return status;
}

static stw_status report(const stw_run_result *result, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    const stw_general to_stdout = {0};
    if (general->output != NULL) STW_TRY(stw_run_result_write(result, general->output, err));
    if (general->output != NULL && (general->json || strcmp(general->output, "-") == 0)) goto out;
    STW_TRY(
        stw_report_run(result, general->json ? STW_FORMAT_JSON : STW_FORMAT_TERMINAL, &text, err));
    STW_TRY(stw_emit(&to_stdout, &text, err));
out:
    stw_text_free(&text);
    return status;
}

/* ---- the program ---- */

typedef struct request {
    const char *plan, *backend, *steps, *seed, *weights, *nvme, *timeout;
    bool allow_tmpfs;
} request;

static stw_status execute(const request *r, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    stw_run_result *result = NULL;
    ceiling c = {.pool = stw_pool_new()};
    uint64_t steps = 5, seed = 1;
    stw_executor_options options = {.backend = r->backend != NULL ? r->backend : "auto",
                                    .weights = r->weights,
                                    .nvme_folder = r->nvme,
                                    .nvme_in_memory = r->allow_tmpfs,
                                    .after_iteration = after_iteration,
                                    .after_state = &c};
    if (c.pool == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "ceiling", "out of memory"));
    STW_TRY(stw_option_u64("--steps", r->steps, 1, &steps, err));
    STW_TRY(stw_option_u64("--seed", r->seed, 0, &seed, err));
    STW_TRY(stw_option_double("--timeout", r->timeout, &options.timeout_s, err));
    if (steps > UINT32_MAX)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "--steps", "found %s, expected a number below 2^32",
                         r->steps));
    options.steps = c.steps = (uint32_t)steps;
    options.seed = seed;
    STW_TRY(stw_plan_read(r->plan, &plan, err));
    STW_TRY(stw_plan_check(plan, false, err));
    STW_TRY(stw_execute(plan, &options, &result, err));
    if (result == NULL) goto out; /* not rank 0 */
    STW_TRY(fill(&c, result, err));
    STW_TRY(report(result, general, err));
    if (result->mismatched > 0)
        status =
            stw_fail(err, STW_STATUS_DISAGREE, "verify",
                     "%llu of %llu checked elements differ from the reference",
                     (unsigned long long)result->mismatched, (unsigned long long)result->checked);
out:
    stw_run_result_free(result);
    stw_plan_free(plan);
    stw_pool_free(c.pool);
    return status;
}

int main(int argc, char **argv) {
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
        {"--weights", "-w", "PATH", "safetensors file, index or folder; default: random weights",
         STW_OPTION_VALUE, &r.weights},
        {"--nvme", NULL, "FOLDER", "folder of NVMe state; default $TMPDIR or /tmp",
         STW_OPTION_VALUE, &r.nvme},
        {"--allow-tmpfs", NULL, NULL, "state on NVMe may be in memory (tmpfs)", STW_OPTION_FLAG,
         &r.allow_tmpfs},
        {"--timeout", NULL, "SECONDS", "time limit of a collective; default 120", STW_OPTION_VALUE,
         &r.timeout},
    };
    const stw_usage usage = {"ceiling",
                             NULL,
                             "PLAN",
                             "Execute a plan like stowage-run. After every optimizer step, measure "
                             "its copies alone and\n"
                             "the link by itself, on all ranks at the same time.",
                             options,
                             sizeof options / sizeof options[0],
                             1,
                             1,
                             NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, plan, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    (void)unsetenv("CUDA_DEVICE_MAX_CONNECTIONS"); /* as stowage-run does */
    r.plan = plan[0];
    return stw_exit(execute(&r, &general, &err), &err);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A movement that exists only here: after every step parameters go to a second space, which is cut
 * otherwise, their own memory is freed, and they come back. Whatever the plan, the bits are those
 * of engine: stowage. Freed memory is poisoned, so that a way back that is missing shows. */
#define _GNU_SOURCE
#include "backend/executor/session.h"
#include "core/checked.h"
#include "engines/built_in.h"
#include "engines/movements.h"
#include "planner/planner.h"
#include "sim/sim.h"
#include "tests/unit/fixture.h"
#include "tests/unit/ranks.h"
#include "tests/unit/testing.h"

/* ---- the movement, on top of the stowage engine ---- */

#define SECOND STW_N_STATE_SPACES

/* One contiguous range of the model per rank, the last rank first. */
static stw_status cut(const stw_job *job, uint32_t space, uint32_t rank, stw_space *out,
                      stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (space != SECOND) return stw_engine_stowage.cut(job, space, rank, out, err);
    uint64_t each = stw_div_up_u64(job->model->params, job->world), global = 0;
    uint64_t first = (job->world - 1 - rank) * each;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        uint64_t numel = job->model->tensors[t].numel;
        uint64_t from = stw_max_u64(first, global), to = stw_min_u64(first + each, global + numel);
        if (from < to) STW_TRY(stw_space_add(out, t, global, from - global, to - from, err));
        global += numel;
    }
out:
    return status;
}

static uint32_t itself(const stw_job *job, uint32_t rank) {
    (void)job;
    return rank;
}

static bool counts(const stw_job *job, uint32_t space, uint32_t rank) {
    return space == SECOND || stw_engine_stowage.counts(job, space, rank);
}

static stw_status second_region(const stw_job *job, stw_layout *layout, stw_error *err) {
    return stw_layout_add_region(layout, STW_COMPONENT_ROLLOUT_WEIGHTS, SECOND, STW_TIER_HOST,
                                 job->kinds[layout->kind].spaces[SECOND].n,
                                 stw_job_element_bytes(job, STW_COMPONENT_PARAMS), err);
}

static bool is_params(const stw_region *region) {
    return region->component == STW_COMPONENT_PARAMS;
}

static void move(stw_builder *b, bool out) {
    stw_transfer_ends ends = {STW_SPACE_PARAMS, SECOND, STW_COMPONENT_PARAMS,
                              STW_COMPONENT_ROLLOUT_WEIGHTS,
                              stw_job_element_bytes(b->job, STW_COMPONENT_PARAMS)};
    if (!out)
        ends = (stw_transfer_ends){SECOND, STW_SPACE_PARAMS, STW_COMPONENT_ROLLOUT_WEIGHTS,
                                   STW_COMPONENT_PARAMS, ends.element_bytes};
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_WEIGHT_SYNC,
                                         .role = out ? "there" : "back",
                                         .by_stowage = true,
                                         .executable = true,
                                         .repeat = STW_REPEAT_EVERY_ITERATION,
                                         .threading = STW_THREADING_PER_STREAM,
                                         .barrier = true,
                                         .transfer = stw_space_transfer(b, &ends)});
    if (!out) stw_build_regions(b, true, is_params);
    stw_build_transfer(b);
    if (out) stw_build_regions(b, false, is_params);
    stw_end_movement(b);
}

static bool comes_back = true;

static stw_status build(const stw_job *job, const stw_decisions *decisions,
                        const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_builder b;
    stw_status status = stw_engine_stowage.build(job, decisions, layout, program, err);
    if (status != STW_STATUS_OK) return status;
    stw_builder_init(&b, job, decisions, layout, program, err);
    move(&b, true);
    if (comes_back) move(&b, false);
    return stw_builder_finish(&b);
}

static stw_engine travelling; /* the stowage engine's table with the above in it */

static stw_status register_engine(void) {
    travelling = stw_engine_stowage;
    travelling.spec.name = "travelling";
    travelling.n_more_spaces = 1;
    travelling.representative = itself;
    travelling.cut = cut;
    travelling.counts = counts;
    travelling.more_regions = second_region;
    travelling.build = build;
    return stw_engine_register(&travelling, NULL);
}

/* ---- plans ---- */

static const fixture_size size = {2, 64, 136, 515};

static stw_plan *planned(const char *name) {
    static const char *const plain[] = {"optimizer.clip_norm=0.5", "load.method=rank0_broadcast",
                                        NULL};
    static const char *const mixed[] = {"optimizer.clip_norm=0.5", "load.method=rank0_broadcast",
                                        "engine=travelling",       "update.cpu=0.3",
                                        "update.stream=0.3",       NULL};
    stw_error error = STW_ERROR_INIT;
    stw_cluster cluster = fixture_cluster(4);
    comes_back = strcmp(name, "one-way") != 0;
    stw_plan *plan = fixture_plan(size, &cluster, strcmp(name, "stowage") == 0 ? plain : mixed);
    stw_planner_options options = {.no_prices = true};
    if (stw_planner_solve(plan, &options, &error) != STW_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", error.where, error.text);
        exit(70);
    }
    return plan;
}

static int be_rank(const char *name, const char *path) {
    stw_error err = STW_ERROR_INIT;
    stw_run_result *result = NULL;
    stw_plan *plan = planned(name);
    stw_executor_options options = {
        .backend = "host", .steps = 3, .seed = 5, .timeout_s = 30.0, .poison_freed = true};
    stw_status status = stw_execute(plan, &options, &result, &err);
    if (status != STW_STATUS_OK) {
        fprintf(stderr, "[%d] %s: %s\n", err.rank, err.where, err.text);
        _exit(stw_status_exit_code(status));
    }
    if (result != NULL) {
        FILE *file = fopen(path, "w");
        for (int i = 0; i < STW_N_DIGESTS; i++)
            fprintf(file, "%016llx ", (unsigned long long)result->digest[i]);
        fprintf(file, "\n");
        for (uint32_t m = 0; m < result->n_movements; m++)
            if (result->movements[m].phase == STW_PHASE_WEIGHT_SYNC)
                fprintf(file, "%s %u\n", result->movements[m].role, result->movements[m].n_samples);
        fclose(file);
    }
    stw_run_result_free(result);
    stw_plan_free(plan);
    return 0;
}

/* ---- tests ---- */

static void it_is_planned_and_simulated(void) {
    stw_plan *plan = planned("travelling");
    stw_sim *sim = NULL;
    CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_OPTIMAL);
    CHECK_OK(stw_plan_check(plan, true, err));
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        const stw_peak *host = &plan->peaks[k].phase[STW_PHASE_WEIGHT_SYNC][STW_TIER_HOST];
        CU_ASSERT_EQUAL(host->components[STW_COMPONENT_ROLLOUT_WEIGHTS],
                        4 * plan->job->kinds[k].spaces[SECOND].n);
    }
    CHECK_OK(stw_sim_run(plan->job, plan->programs[0], &sim, err));
    CU_ASSERT_TRUE(stw_sim_phase_seconds(sim, STW_PHASE_WEIGHT_SYNC) > 0);
    stw_sim_free(sim);
    stw_plan_free(plan);
}

static void parameters_come_back_unchanged(void) {
    char expected[300], found[300];
    CU_ASSERT_EQUAL(ranks_start(4, "stowage", "stowage"), 0);
    ranks_read("stowage", expected, sizeof expected);
    CU_ASSERT_TRUE(strlen(expected) > 17 * STW_N_DIGESTS);
    CU_ASSERT_EQUAL(ranks_start(4, "travelling", "travelling"), 0);
    ranks_read("travelling", found, sizeof found);
    CU_ASSERT_EQUAL(strncmp(found, expected, 17 * STW_N_DIGESTS), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(found, "there 3\nback 3\n"));
    CU_ASSERT_EQUAL(ranks_start(4, "one-way", "one-way"), 0);
    ranks_read("one-way", found, sizeof found);
    CU_ASSERT_NOT_EQUAL(strncmp(found, expected, 17), 0);
}

/* A caller may issue it at any time after the load, as step 0: it updates nothing. */
static void a_session_issues_it_between_steps(void) {
    static const char *const settings[] = {"engine=travelling", NULL};
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, 1, &(stw_place)FIXTURE_STREAM, &(uint32_t){UINT32_MAX});
    comes_back = true;
    CHECK_OK(stw_plan_derive(plan, err));
    const stw_executor_options options = {.backend = "host", .seed = 5, .poison_freed = true};
    stw_session *session = NULL;
    stw_session_sample sample;
    uint64_t before[STW_N_DIGESTS], digest[STW_N_DIGESTS];
    CHECK_OK(stw_session_open(plan, &options, &session, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(session);
    CHECK_FAILS(stw_session_issue(session, STW_PHASE_WEIGHT_SYNC, 0, &sample, err),
                STW_STATUS_USAGE, "weight_sync: the session has no parameters yet");
    CHECK_OK(stw_session_issue(session, STW_PHASE_LOAD, 0, &sample, err));
    CHECK_OK(stw_session_digest(session, before, err));
    CHECK_OK(stw_session_issue(session, STW_PHASE_WEIGHT_SYNC, 0, &sample, err));
    CHECK_OK(stw_session_digest(session, digest, err));
    CU_ASSERT_EQUAL(memcmp(before, digest, sizeof digest), 0);
    CHECK_FAILS(stw_session_issue(session, STW_PHASE_FIRST_OPTIMIZER_STEP, 0, &sample, err),
                STW_STATUS_USAGE, "step: found 0, expected at least 1");
    stw_session_close(session);
    stw_plan_free(plan);
}

int main(int argc, char **argv) {
    static const stw_test tests[] = {
        {"a session issues it between steps", a_session_issues_it_between_steps},
        {"it is planned and simulated", it_is_planned_and_simulated},
        {"parameters come back unchanged", parameters_come_back_unchanged},
    };
    if (register_engine() != STW_STATUS_OK) return 2;
    if (argc == 4 && strcmp(argv[1], "rank") == 0) return be_rank(argv[2], argv[3]);
    if (!ranks_prepare()) {
        printf("no mpirun or no plugin: skipped\n");
        return 77;
    }
    return stw_test_run_all("engine movement", tests, sizeof tests / sizeof tests[0]);
}

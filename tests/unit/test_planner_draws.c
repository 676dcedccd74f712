/* SPDX-License-Identifier: Apache-2.0 */
/* Random runs of every engine (draws.h): no row of the planner lies below the walk of a choice,
 * the commands agree on a run, and no verdict gets worse with more of anything. bench/draws does
 * more of them. What was found once is a case here. */
#include "tests/unit/draws.h"
#include "tests/unit/draws_verdicts.h"
#include "tests/unit/testing.h"

enum { RUNS = 250, CHOICES = 8, VERDICTS = 8 };

static draws_zoo zoo;

/* How many blocks keep their activations; the others recompute. */
static void keep(const stw_cost *cost, uint32_t blocks, stw_choice *choice) {
    choice->units[0] = cost->n_units;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const bool last = a + 1 == cost->n_acts || cost->acts[a + 1].group != cost->acts[a].group;
        const bool only = last && (a == 0 || cost->acts[a - 1].group != cost->acts[a].group);
        const uint32_t all = cost->acts[a].blocks, kept = blocks < all ? blocks : all;
        choice->acts[a] = only ? all : last ? kept : all - kept;
    }
}

/* Every number of blocks that keep their activations. */
static void check_mixtures(const char *model, const char *cluster, const char *const *settings) {
    draws_run run = {.model = model, .cluster = cluster};
    stw_plan *plan = NULL;
    stw_cost *cost = NULL;
    for (; *settings != NULL; settings++) draws_set(&run, *settings);
    CHECK_OK(draws_plan(&zoo, &run, &plan, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    CHECK_OK(stw_cost_new_bytes(plan->job, &cost, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(cost);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    for (uint32_t blocks = 0; blocks <= plan->model->n_blocks; blocks++) {
        keep(cost, blocks, &choice);
        CHECK_OK(draws_check(plan, cost, &choice, cost->pool, err));
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

/* Stage 3 gathers in the order of all uses: mixtures of recomputed and kept blocks held more than
 * rows of one policy said. */
static void mixtures_of_stage_3(void) {
    static const struct {
        const char *model, *cluster, *settings[8];
    } cases[] = {
        {"gpt-oss-120b", "h200-x1", {NULL}},
        {"Mistral-7B-v0.3", "a100-80g-x4", {NULL}},
        {"Mistral-7B-v0.3", "a100-80g-x1", {"nodes=8", "batch.micro_batch=5"}},
        {"Qwen3-30B-A3B", "a100-80g-x8", {"batch.seq_len=32768"}},
        {"Qwen3-30B-A3B", "a100-80g-x8", {"batch.seq_len=2048"}},
        {"Qwen3-8B",
         "h100-80g-x8",
         {"deepspeed.offload_optimizer=cpu", "deepspeed.offload_param=cpu",
          "deepspeed.prefetch_bucket=1000000", "batch.micro_batch=11"}},
        {"Phi-3-mini", "h200-x2", {"batch.micro_batch=3", "deepspeed.max_reuse_distance=1e7"}},
        /* a tower that keeps everything beside groups with a choice */
        {"Qwen3.5-0.8B", "h200-x8", {"deepspeed.prefetch_bucket=1e7"}},
        /* the trainer's peak beside a rollout engine */
        {"Mistral-7B-v0.3",
         "mi300x-x8",
         {"nodes=3", "roles=[{name: a}]", "deepspeed.persistence_threshold=0"}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *settings[10] = {"engine=deepspeed"};
        for (size_t k = 0; k < 8; k++) settings[k + 1] = cases[i].settings[k];
        check_mixtures(cases[i].model, cases[i].cluster, settings);
    }
}

static void rows_hold(void) {
    uint64_t runs = 0;
    for (uint64_t number = 0; number < RUNS; number++) {
        draws_run run = {.model = NULL};
        uint64_t rest;
        stw_cost *cost = NULL;
        stw_error why = STW_ERROR_INIT;
        stw_plan *plan = draws_make(&zoo, 20261123, number, DRAWS_ANY, &run, &rest);
        stw_status status =
            plan != NULL ? stw_cost_new_bytes(plan->job, &cost, &why) : STW_STATUS_BAD_INPUT;
        bool everywhere = false, too_much = false;
        if (status == STW_STATUS_OK)
            too_much = stw_cost_state_over_share(plan->job, &everywhere) > 0 || everywhere;
        for (int i = 0; status == STW_STATUS_OK && i < CHOICES; i++) {
            stw_choice choice = stw_choice_new(cost, cost->pool);
            stw_evaluation e;
            draws_choice(cost, &rest, &choice);
            stw_cost_evaluate(cost, &choice, &e);
            CU_ASSERT_FALSE(too_much && e.fits);
            status = draws_check(plan, cost, &choice, cost->pool, &why);
            runs++;
        }
        CU_ASSERT(status == STW_STATUS_OK || status == STW_STATUS_BAD_INPUT);
        if (status != STW_STATUS_OK && status != STW_STATUS_BAD_INPUT) {
            fprintf(stderr, "%s\n  ", why.text);
            draws_show(&run, stderr);
        }
        stw_cost_free(cost);
        stw_plan_free(plan);
    }
    printf("%llu choices\n", (unsigned long long)runs);
    CU_ASSERT(runs > RUNS * CHOICES / 2);
}

/* @return false: they differ */
static bool commands_agree(const draws_question *q, draws_answer *fits) {
    draws_answer plan = DRAWS_UNKNOWN, row = DRAWS_UNKNOWN;
    uint64_t of_plan[2] = {0}, of_row[2] = {0};
    CHECK_OK(draws_command_answer(&zoo, q, &plan, of_plan, err));
    CHECK_OK(draws_plan_answer(q, &row, of_row, err));
    CHECK_OK(draws_fit_answer(q, fits, err));
    if (plan == DRAWS_UNKNOWN || row == DRAWS_UNKNOWN || *fits == DRAWS_UNKNOWN) return true;
    return plan == row && row == *fits && of_plan[0] == of_row[0] && of_plan[1] == of_row[1];
}

/* A question to plan, sweep and size about a run. @return false: it is refused */
static bool question_about(stw_plan *plan, const draws_run *run, draws_question *out) {
    if (plan == NULL) return false;
    *out = (draws_question){.model = draws_model(&zoo, run->model),
                            .run = run,
                            .cluster = *draws_cluster(&zoo, run->cluster),
                            .time_limit_s = 100,
                            .nodes = plan->cluster.nodes,
                            .alone = plan->job->world == 1};
    stw_plan_free(plan);
    return true;
}

static bool question_of(uint64_t seed, uint64_t number, draws_run *run, draws_question *out) {
    uint64_t rest;
    return question_about(draws_make(&zoo, seed, number, DRAWS_ANY, run, &rest), run, out);
}

/* A row of the host in load can be a terabyte above what the load holds: size asks no less. */
static void a_load_that_fits_is_found(void) {
    const draws_run run = {.model = "Llama-3.1-70B",
                           .cluster = "b200-x8",
                           .engine = 3,
                           .n = 6,
                           .text = {"engine=deepspeed", "node.gpus=7", "batch.seq_len=1000",
                                    "batch.micro_batch=2", "deepspeed.zero_stage=2",
                                    "deepspeed.offload_optimizer=cpu"}};
    draws_question q;
    draws_answer fits = DRAWS_UNKNOWN;
    stw_plan *plan = NULL;
    CHECK_OK(draws_plan(&zoo, &run, &plan, err));
    CU_ASSERT_TRUE_FATAL(question_about(plan, &run, &q));
    CU_ASSERT_TRUE(commands_agree(&q, &fits));
    CU_ASSERT_EQUAL(fits, DRAWS_FITS);
}

static void verdicts_hold(void) {
    for (uint64_t number = 0; number < VERDICTS; number++) {
        draws_run run = {.model = draws_models[number]}; /* small ones */
        draws_answer fits = DRAWS_UNKNOWN;
        draws_question q;
        if (!question_of(27, number, &run, &q)) continue;
        bool holds = commands_agree(&q, &fits);
        for (int m = 0; m < DRAWS_TIME; m++) {
            char text[48];
            draws_answer now = DRAWS_UNKNOWN;
            const draws_question larger = draws_enlarge(&q, (draws_more)m, 1.1, text);
            CHECK_OK(draws_fit_answer(&larger, &now, err));
            holds = holds && (!draws_only_helps(&q, (draws_more)m) || !draws_worse(fits, now));
        }
        CU_ASSERT_TRUE(holds);
        if (!holds) draws_show(&run, stderr);
    }
    draws_zoo_free(&zoo);
}

STW_TEST_MAIN("planner draws", {"mixtures of stage 3", mixtures_of_stage_3},
              {"rows hold", rows_hold}, {"a load that fits is found", a_load_that_fits_is_found},
              {"verdicts hold", verdicts_hold})

/* SPDX-License-Identifier: Apache-2.0 */
/* Plans with roles: rows hold what roles hold, in every phase and on every node. */
#include "planner/planner.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define HYBRID                                                                                     \
    "{name: a, parallel: {tp: 2}, gpu_memory_utilization: 0.4, max_model_len: 8k, "                \
    "sleep_level: 1}"
#define JUDGES "{name: d, kind: reference}, {name: e, kind: critic}, {name: f, kind: reward}"
#define BUCKET "{name: a, max_model_len: 8k, parallel: {tp: 2}, update_bucket: 200 GiB}"
#define APART "{name: g, kind: reward, with: none, nodes: 1, placement: {params: gpu}}"
#define ALONE "{name: b, with: none, nodes: 1, parallel: {tp: 8}, gpu_memory_utilization: 0.8}"
#define AWAKE                                                                                      \
    "{name: c, engine: sglang, parallel: {tp: 4}, gpu_memory_utilization: 0.3, "                   \
    "max_model_len: 8k, free_cache_engine: false}"
#define STORE "node.host.object_store=64 GiB" /* of each node, also of a role's own */

static stw_verdict solve(const char *const *settings) {
    const stw_planner_options options = {.time_limit_s = 20,
                                         .gap = 0.01,
                                         .gap_is_set = true,
                                         .no_fixes = true,
                                         .no_prices = true,
                                         .only_stage1 = true};
    stw_plan *plan = case_zoo("Qwen3-8B", settings);
    CHECK_OK(stw_planner_solve(plan, &options, err)); /* BUG where rows lie below the walk */
    CHECK_OK(stw_sim_plan(plan, NULL, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    const stw_verdict verdict = plan->verdict;
    stw_text text = STW_TEXT_INIT;
    stw_plan *again = NULL;
    CHECK_OK(stw_plan_to_json(plan, &text, err));
    CHECK_OK(stw_plan_parse("plan", text.data, text.length, &again, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(again);
    CU_ASSERT_EQUAL(again->job->n_roles, plan->job->n_roles);
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        for (int p = 0; p < STW_N_PHASES; p++)
            CU_ASSERT_EQUAL(again->peaks[k].phase[p][STW_TIER_GPU].total,
                            plan->peaks[k].phase[p][STW_TIER_GPU].total);
    stw_text_free(&text);
    stw_plan_free(again);
    stw_plan_free(plan);
    return verdict;
}

static void rows_hold_with_every_engine(void) {
    static const char *const engines[][4] = {
        {"engine=stowage"},
        {"engine=fsdp2"},
        {"engine=megatron", "precision.params=bf16", "precision.master=fp32", "parallel.tp=2"},
        {"engine=deepspeed", "precision.params=bf16", "precision.grads=bf16",
         "precision.master=fp32"}};
    static const char *const roles[] = {"roles=[" HYBRID "]", "roles=[" ALONE "]",
                                        "roles=[" AWAKE "]", "roles=[" HYBRID ", " ALONE "]"};
    for (size_t e = 0; e < 4; e++)
        for (size_t r = 0; r < 4; r++) {
            const char *settings[16] = {"nodes=2", "node.host.page_lock_limit=400 GiB", STORE,
                                        roles[r]};
            size_t n = 4;
            for (size_t i = 0; i < 4 && engines[e][i] != NULL; i++) settings[n++] = engines[e][i];
            if (e == 3) settings[n++] = "precision.reduce=bf16";
            if (e < 3 || r != 3) CU_ASSERT_NOT_EQUAL(solve(settings), STW_VERDICT_DOES_NOT_FIT);
        }
}

/* Models beside the trainer's: on its nodes, on those of a rollout, on their own. */
static void rows_hold_with_models(void) {
    static const char *const roles[] = {
        "roles=[" JUDGES "]", "roles=[" HYBRID ", " JUDGES "]", "roles=[" JUDGES ", " APART "]",
        "roles=[{name: b, with: none, nodes: 1, parallel: {tp: 8}, gpu_memory_utilization: 0.6}, "
        "{name: h, kind: reward, with: b}]"};
    static const char *const engines[] = {"engine=stowage", "engine=fsdp2"};
    static const char *const parks[][5] = {{"park.params=host", "park.moments=host"},
                                           {"load.method=all_ranks", "precision.params=bf16",
                                            "precision.grads=bf16", "precision.exp_avg=bf16",
                                            "precision.exp_avg_sq=bf16"}};
    for (size_t e = 0; e < 2; e++)
        for (size_t r = 0; r < 4; r++)
            for (size_t p = e == 0 ? 1 : 0; p < 2; p++) {
                const char *settings[] = {"nodes=2",   STORE,       engines[e],  roles[r],
                                          parks[p][0], parks[p][1], parks[p][2], parks[p][3],
                                          parks[p][4], NULL};

                CU_ASSERT_NOT_EQUAL(solve(settings), STW_VERDICT_DOES_NOT_FIT);
            }
}

/* A critic keeps what the trainer offloads or has no room for. */
static void rows_hold_with_a_critic_that_keeps(void) {
    const char *settings[] = {"nodes=2",
                              "engine=fsdp2",
                              "recompute.granularity=none",
                              "batch.grad_accumulation=2",
                              "batch.seq_len=4096",
                              "placement.activations=offload",
                              "roles=[" HYBRID ", {name: c, kind: critic}]",
                              NULL};
    (void)solve(settings);
}

/* References and rewards of Megatron-LM, on stages that differ. */
static void rows_hold_with_megatrons_models(void) {
    static const char *const roles[] = {
        "roles=[" HYBRID ", {name: d, kind: reference}, {name: f, kind: reward}]",
        "roles=[{name: d, kind: reference, placement: {params: gpu}}]", "roles=[" APART "]"};
    for (size_t r = 0; r < 3; r++) {
        const char *settings[] = {"nodes=2",
                                  "engine=megatron",
                                  "precision.params=bf16",
                                  "precision.master=fp32",
                                  "parallel.tp=2",
                                  "parallel.pp=2",
                                  "batch.grad_accumulation=2",
                                  "park.params=host",
                                  "park.moments=host",
                                  roles[r],
                                  NULL};
        CU_ASSERT_NOT_EQUAL(solve(settings), STW_VERDICT_DOES_NOT_FIT);
    }
}

/* What a role holds while it is awake bounds the trainer, on its own node or the trainer's. */
static void roles_can_be_too_large(void) {
    static const char *const awake[] = {
        "engine=fsdp2", "nodes=1",
        "roles=[{name: a, parallel: {tp: 2}, gpu_memory_utilization: 0.9, "
        "free_cache_engine: false}]",
        NULL};
    static const char *const asleep[] = {
        "engine=fsdp2",
        "nodes=1",
        "placement.params=gpu",
        "placement.moments=gpu",
        "roles=[{name: a, parallel: {tp: 2}, gpu_memory_utilization: 0.7}]",
        NULL};
    static const char *const alone[] = {
        "engine=fsdp2", "nodes=2",
        "roles=[{name: a, with: none, nodes: 1, parallel: {tp: 2}, gpu_memory_utilization: 0.95, "
        "builds_trainer_model: true}]",
        NULL};
    CU_ASSERT_EQUAL(solve(awake), STW_VERDICT_DOES_NOT_FIT);
    CU_ASSERT_NOT_EQUAL(solve(asleep), STW_VERDICT_DOES_NOT_FIT);
    CU_ASSERT_EQUAL(solve(alone), STW_VERDICT_DOES_NOT_FIT);
    case_use_fixture();
    (void)case_units;
    (void)case_cost;
    (void)case_choice;
}

/* What a node lacks is answered with what its role can do without. */
static void changes_of_roles_are_found(void) {
    const char *const settings[] = {
        "engine=fsdp2", "nodes=2", "node.gpu.memory=24 GiB",
        "roles=[{name: a, with: none, nodes: 1, parallel: {tp: 8}, gpu_memory_utilization: 0.85, "
        "update_bucket: 128 MiB, builds_trainer_model: true}]",
        NULL};
    const stw_planner_options options = {
        .time_limit_s = 60, .gap = 0.01, .gap_is_set = true, .no_prices = true};
    stw_plan *plan = case_zoo("Qwen3-8B", settings);
    bool lean = false, smaller = false;
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_INFEASIBLE);
    for (uint32_t i = 0; i < plan->n_fixes; i++) {
        const stw_fix *fix = &plan->fixes[i];
        for (uint32_t k = 0; k < fix->n_changes; k++) {
            const char *key = fix->changes[k].set;
            lean = lean || strcmp(key, "roles.0.builds_trainer_model") == 0;
            smaller = smaller || strcmp(key, "roles.0.gpu_memory_utilization") == 0;
            CU_ASSERT_EQUAL(strcmp(key, "loss.fused") == 0, false); /* of no help there */
        }
    }
    CU_ASSERT_TRUE(lean);
    CU_ASSERT_TRUE(smaller);
    CU_ASSERT_TRUE(plan->run.roles[0].builds_trainer_model); /* trials change copies */
    stw_plan_free(plan);
}

/* What a trainer can move aside while a rollout uses its GPUs comes first, as far as is needed. */
static void parks_come_first(void) {
    static const char *const memory[] = {"node.gpu.memory=60 GiB", "node.gpu.memory=44 GiB"};
    for (int m = 0; m < 2; m++) {
        const char *const settings[] = {"engine=fsdp2",
                                        "placement.params=gpu",
                                        "placement.moments=gpu",
                                        "recompute.granularity=full",
                                        "optimizer.implementation=fused",
                                        memory[m],
                                        "roles=[{name: a, parallel: {tp: 2}, "
                                        "gpu_memory_utilization: 0.85, max_model_len: 4k}]",
                                        NULL};
        const stw_planner_options options = {
            .time_limit_s = 60, .gap = 0.01, .gap_is_set = true, .no_prices = true};
        stw_plan *plan = case_zoo("Qwen3-8B", settings);
        uint32_t parks = 0, shares = 0;
        CHECK_OK(stw_planner_solve(plan, &options, err));
        CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_INFEASIBLE);
        CU_ASSERT_TRUE_FATAL(plan->n_fixes > 0);
        const stw_fix *first = &plan->fixes[0];
        CU_ASSERT_EQUAL(first->n_changes, m == 0 ? 2 : 3);
        CU_ASSERT_STRING_EQUAL(first->changes[0].set, "park.moments");
        CU_ASSERT_STRING_EQUAL(first->changes[1].set, "park.moments_back");
        CU_ASSERT_STRING_EQUAL(first->changes[1].value, "forward_backward");
        if (m == 1) CU_ASSERT_STRING_EQUAL(first->changes[2].set, "park.params");
        for (uint32_t i = 0; i < plan->n_fixes; i++) {
            const char *key = plan->fixes[i].changes[0].set;
            parks += plan->fixes[i].n_changes == 1 && strcmp(key, "park.moments") == 0;
            shares += strcmp(key, "roles.0.gpu_memory_utilization") == 0;
        }
        CU_ASSERT_EQUAL(parks, 0);   /* the same with less is enough */
        CU_ASSERT_TRUE(shares <= 1); /* the largest share that fits */
        stw_plan_free(plan);
    }
}

static bool is_found(const char *const *settings, const char *key, const char *value) {
    const stw_planner_options options = {
        .time_limit_s = 60, .gap = 0.01, .gap_is_set = true, .no_prices = true};
    stw_plan *plan = case_zoo("Qwen3-8B", settings);
    bool found = false;
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_INFEASIBLE);
    for (uint32_t i = 0; i < plan->n_fixes; i++) {
        const stw_fix_change *c = &plan->fixes[i].changes[0];
        found = found || (plan->fixes[i].n_changes == 1 && strcmp(c->set, key) == 0 &&
                          strcmp(c->value, value) == 0);
    }
    stw_plan_free(plan);
    return found;
}

/* A bucket of a sync that fills the GPU, and weights that wait on a host without room. */
static void changes_of_synced_rollouts_are_found(void) {
    static const char *const bucket[] = {"engine=fsdp2", "nodes=1", "roles=[" BUCKET "]", NULL};
    static const char *const host[] = {"engine=fsdp2",
                                       "nodes=1",
                                       "roles=[{name: a, max_model_len: 8k, parallel: {tp: 2}}]",
                                       "node.host.memory=100 GiB",
                                       "node.host.limit=100 GiB",
                                       NULL};
    CU_ASSERT_TRUE(is_found(bucket, "roles.0.update_bucket", "1GiB"));
    CU_ASSERT_TRUE(is_found(host, "roles.0.sleep_level", "2"));
}

STW_TEST_MAIN("planner roles", {"rows hold with every engine", rows_hold_with_every_engine},
              {"rows hold with models", rows_hold_with_models},
              {"rows hold with a critic that keeps", rows_hold_with_a_critic_that_keeps},
              {"rows hold with Megatron's models", rows_hold_with_megatrons_models},
              {"roles can be too large", roles_can_be_too_large},
              {"changes of roles are found", changes_of_roles_are_found},
              {"parks come first", parks_come_first},
              {"changes of synced rollouts are found", changes_of_synced_rollouts_are_found})

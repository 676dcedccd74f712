/* SPDX-License-Identifier: Apache-2.0 */
/* An iteration is one step of the trainer: batch.mini_batches x batch.epochs optimizer steps, one
 * pass for log-probabilities, one weight sync. Counts are worked out by hand. */
#include "planner/point.h"
#include "sim/sim.h"
#include "tests/unit/import_case.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static stw_status finish(stw_plan *plan, stw_error *e) { return stw_sim_plan(plan, NULL, e); }

static stw_plan *plan_of(const char *const *more) {
    const char *settings[32] = {"engine=fsdp2",
                                "placement.params=gpu",
                                "placement.grads=gpu",
                                "placement.moments=gpu",
                                "recompute.granularity=full",
                                "batch.seq_len=1024",
                                "batch.micro_batch=2",
                                "batch.grad_accumulation=3",
                                "batch.log_prob_micro_batch=4",
                                "checkpoint.every=5",
                                "roles.0.name=rollout",
                                "roles.0.kind=rollout",
                                "roles.0.gpu_memory_utilization=0.3"};
    size_t n = 13;
    stw_plan *plan = NULL;
    stw_model *model = NULL;
    stw_cluster cluster = fixture_cluster(8);
    for (; *more != NULL; more++) settings[n++] = *more;
    CHECK_OK(stw_cluster_set(&cluster, "node.gpu.memory", "80 GiB", "test", err));
    CHECK_OK(stw_cluster_set(&cluster, "node.host.memory", "1 TiB", "test", err));
    CHECK_OK(stw_model_open("Qwen3-0.6B", STW_SOURCE_MODELS, &model, err));
    const stw_point_base base = {
        .model = model, .cluster = &cluster, .simulate = stw_sim_seconds, .finish = finish};
    const stw_point_options options = {.time_limit_s = 60};
    CHECK_OK(stw_point_plan(&base, settings, n, &options, &plan, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    stw_model_free(model);
    return plan;
}

static void passes(void) {
    const char *one[] = {NULL}, *four[] = {"batch.mini_batches=4", "batch.epochs=2", NULL};
    stw_plan *a = plan_of(one), *b = plan_of(four);
    const uint64_t step = 8 * 2 * 3 * 1024;
    CU_ASSERT_EQUAL(stw_plan_passes(a, STW_PHASE_FORWARD_BACKWARD), 3);
    CU_ASSERT_EQUAL(stw_plan_passes(a, STW_PHASE_OPTIMIZER_STEP), 1);
    CU_ASSERT_EQUAL(stw_plan_passes(a, STW_PHASE_LOG_PROB), 2); /* 6 sequences, 4 at a time */
    CU_ASSERT_EQUAL(stw_plan_passes(b, STW_PHASE_FORWARD_BACKWARD), 3 * 8);
    CU_ASSERT_EQUAL(stw_plan_passes(b, STW_PHASE_OPTIMIZER_STEP), 8);
    CU_ASSERT_EQUAL(stw_plan_passes(b, STW_PHASE_LOG_PROB), 6); /* 24 sequences, once */
    CU_ASSERT_EQUAL(stw_plan_passes(b, STW_PHASE_WEIGHT_SYNC), 1);
    CU_ASSERT_EQUAL((uint64_t)stw_plan_iteration_tokens(a), step);
    CU_ASSERT_EQUAL((uint64_t)stw_plan_iteration_tokens(b), 8 * step);
    const double *s = b->time_s;
    CU_ASSERT_DOUBLE_EQUAL(stw_plan_iteration_s(b),
                           6 * s[STW_PHASE_LOG_PROB] + 24 * s[STW_PHASE_FORWARD_BACKWARD] +
                               8 * s[STW_PHASE_OPTIMIZER_STEP] + s[STW_PHASE_WEIGHT_SYNC] +
                               s[STW_PHASE_CHECKPOINT] / 5,
                           1e-9 * stw_plan_iteration_s(b));
    /* the program has each movement once: what is held is the same */
    CU_ASSERT_EQUAL(a->programs[0]->n_ops, b->programs[0]->n_ops);
    for (int p = 0; p < STW_N_PHASES; p++)
        for (uint32_t m = 0; m < 3; m++)
            CU_ASSERT_EQUAL(stw_peaks_bytes(&a->shown[0], (unsigned)p, m),
                            stw_peaks_bytes(&b->shown[0], (unsigned)p, m));
    stw_plan_free(a);
    stw_plan_free(b);
}

/* In how many passes a movement does a copy to a tier once; all alike. */
static uint32_t copied_once_in(const stw_plan *plan, stw_phase phase, stw_component component,
                               stw_tier to) {
    const stw_program *program = plan->programs[0];
    const stw_movement *m = stw_program_movement(program, phase);
    uint32_t once_in = UINT32_MAX;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if (op->kind != STW_OP_COPY || op->component != component || op->to != to) continue;
        CU_ASSERT_TRUE(once_in == UINT32_MAX || once_in == op->once_in);
        once_in = op->once_in;
    }
    return once_in;
}

/* Parked state comes and goes once in an iteration, moments that come for a step with each. */
static void parking(void) {
    const char *all[] = {"park.params=host", "park.moments=host",
                         "park.moments_back=forward_backward", "batch.mini_batches=4", NULL};
    const char *steps[] = {"park.params=host", "park.moments=host", "batch.mini_batches=4", NULL};
    stw_plan *plan = plan_of(all);
    const stw_phase forward = STW_PHASE_FORWARD_BACKWARD, step = STW_PHASE_OPTIMIZER_STEP;
    CU_ASSERT_EQUAL(copied_once_in(plan, forward, STW_COMPONENT_PARAMS, STW_TIER_GPU), 12);
    CU_ASSERT_EQUAL(copied_once_in(plan, forward, STW_COMPONENT_EXP_AVG, STW_TIER_GPU), 12);
    CU_ASSERT_EQUAL(copied_once_in(plan, step, STW_COMPONENT_PARAMS, STW_TIER_HOST), 4);
    CU_ASSERT_EQUAL(copied_once_in(plan, step, STW_COMPONENT_EXP_AVG, STW_TIER_HOST), 4);
    stw_plan_free(plan);
    plan = plan_of(steps);
    CU_ASSERT_EQUAL(copied_once_in(plan, step, STW_COMPONENT_PARAMS, STW_TIER_HOST), 4);
    CU_ASSERT_EQUAL(copied_once_in(plan, step, STW_COMPONENT_EXP_AVG, STW_TIER_GPU), 0);
    CU_ASSERT_EQUAL(copied_once_in(plan, step, STW_COMPONENT_EXP_AVG, STW_TIER_HOST), 0);
    stw_plan_free(plan);
}

/* ---- imports ---- */

#define A "actor_rollout_ref.actor."
#define PPO(program)                                                                               \
    "python3 -m " program " actor_rollout_ref.model.path=Qwen/Qwen2.5-7B "                         \
    "algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 " A "ppo_micro_batch_size_per_gpu=1 "

static stw_status parse(const char *framework, const char *text, stw_import *out, stw_error *err) {
    return stw_import_parse(framework, "x", text, strlen(text), out, err);
}

static void steps_of_verl(void) {
    stw_import import;
    CHECK_OK(parse("verl",
                   PPO("verl.trainer.main_ppo") A
                   "ppo_mini_batch_size=32 data.train_batch_size=128 " A
                   "ppo_epochs=3 actor_rollout_ref.rollout.n=8 trainer.save_freq=20 " A
                   "checkpoint.save_contents=['model','extra']\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "batch.mini_batches=4"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.epochs=3"));
    CU_ASSERT_TRUE(has_setting(&import, "checkpoint.every=20"));
    CU_ASSERT_TRUE(has_setting(&import, "checkpoint.contents=[model]"));
    CU_ASSERT_EQUAL(import.step_sequences, 32 * 8);
    stw_import_free(&import);
    /* 1024 of 256 by default; no checkpoints */
    CHECK_OK(parse("verl", PPO("verl.trainer.main_ppo") "trainer.save_freq=-1\n", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "batch.mini_batches=4"));
    for (size_t i = 0; i < import.n_settings; i++)
        CU_ASSERT_PTR_NULL(strstr(import.settings[i], "checkpoint"));
    stw_import_free(&import);
    CHECK_OK(
        parse("verl", PPO("verl.trainer.main_ppo") "data.train_batch_size=300\n", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "batch.mini_batches=2"));
    CU_ASSERT_EQUAL(use_of(&import, "data.train_batch_size"), STW_IMPORT_NOT_MODELLED);
    stw_import_free(&import);
    CHECK_FAILS(
        parse("verl", PPO("verl.trainer.main_ppo") "data.train_batch_size=128\n", &import, err),
        STW_STATUS_BAD_INPUT, "data.train_batch_size: found 128, expected at least 256");
    stw_import_free(&import);
    /* updates between two weight syncs */
    CHECK_OK(parse(
        "verl",
        PPO("verl.experimental.fully_async_policy.fully_async_main") "actor_rollout_ref.hybrid_"
                                                                     "engine=False "
                                                                     "rollout.nnodes=1 "
                                                                     "data.train_batch_size=0 "
                                                                     "async_training.require_"
                                                                     "batches=2 "
                                                                     "async_training.trigger_"
                                                                     "parameter_sync_step=3\n",
        &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "batch.mini_batches=6"));
    stw_import_free(&import);
}

STW_TEST_MAIN("plan iteration", {"passes", passes}, {"parking", parking},
              {"steps of verl", steps_of_verl})

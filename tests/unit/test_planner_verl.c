/* SPDX-License-Identifier: Apache-2.0 */
/* Import of verl's settings: where rollouts have nodes of their own, how its engine is chosen, and
 * its trainer of SFT. Expected counts are worked out by hand. */
#include "planner/frameworks/import/import.h"
#include "tests/unit/import_case.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define A "actor_rollout_ref.actor."
#define PPO                                                                                        \
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 \\\n"                            \
    "  data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\\n"   \
    "  trainer.n_gpus_per_node=8 trainer.nnodes=1 algorithm.adv_estimator=grpo "

static stw_status parse(const char *framework, const char *text, stw_import *out, stw_error *err) {
    return stw_import_parse(framework, "x", text, strlen(text), out, err);
}

/* Rollouts on other nodes than the trainer's (one_step_off_policy, fully_async_policy). */
static void own_nodes_of_verl(void) {
    stw_import import;
#define ASYNC                                                                                      \
    "python -m recipe.fully_async_policy.fully_async_main " A "ppo_micro_batch_size_per_gpu=1 "    \
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B algorithm.adv_estimator=grpo "                   \
    "actor_rollout_ref.hybrid_engine=False trainer.nnodes=4 trainer.n_gpus_per_node=8 "            \
    "async_training.staleness_threshold=0.5 "
    CHECK_OK(parse("verl", ASYNC "rollout.nnodes=2 rollout.n_gpus_per_node=8\n", &import, err));
    CU_ASSERT_EQUAL(import.gpus, 48);
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.with=none"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.nodes=2"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.log_prob_micro_batch=1"));
    for (size_t i = 0; i < import.n_settings; i++) /* they do not sleep */
        CU_ASSERT_PTR_NULL(strstr(import.settings[i], "sleep_level"));
    CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_UNKNOWN), 0);
    stw_import_free(&import);
    /* the rollout's log-probabilities are the old ones */
    CHECK_OK(parse("verl", ASYNC "rollout.nnodes=2 async_training.use_rollout_log_probs=True\n",
                   &import, err));
    for (size_t i = 0; i < import.n_settings; i++)
        CU_ASSERT_PTR_NULL(strstr(import.settings[i], "log_prob"));
    stw_import_free(&import);
    /* 6 GPUs train and 2 generate on one node */
    CHECK_OK(parse("verl", ASYNC "rollout.nnodes=1 rollout.n_gpus_per_node=2\n", &import, err));
    CU_ASSERT_EQUAL(import.gpus, 32);
    CU_ASSERT_EQUAL(use_of(&import, "rollout"), STW_IMPORT_NOT_MODELLED);
    for (size_t i = 0; i < import.n_settings; i++)
        CU_ASSERT_PTR_NULL(strstr(import.settings[i], "roles."));
    stw_import_free(&import);
}

/* A group of Hydra names the engine (verl 0.7 and later). */
static void engines_of_verl(void) {
    stw_import import;
    CHECK_OK(parse("verl",
                   PPO A "ppo_micro_batch_size_per_gpu=1 model_engine=megatron " A
                         "megatron.tensor_model_parallel_size=2 " A
                         "megatron.override_transformer_config.fp8=e4m3 " A
                         "megatron.override_transformer_config.fp8_recipe=blockwise\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "engine=megatron"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.tp=2"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8=e4m3"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8_recipe=blockwise"));
    CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_UNKNOWN), 0);
    stw_import_free(&import);
    /* its workers do not read what FSDP's do */
    CHECK_OK(parse("verl",
                   PPO A "ppo_micro_batch_size_per_gpu=1 model_engine=megatron "
                         "actor_rollout_ref.model.enable_gradient_checkpointing=True\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.granularity=none"));
    CU_ASSERT_EQUAL(use_of(&import, "actor_rollout_ref.model.enable_gradient_checkpointing"),
                    STW_IMPORT_NOT_MODELLED);
    stw_import_free(&import);
    CHECK_OK(parse("verl", PPO A "ppo_micro_batch_size_per_gpu=1 model_engine=dp\n", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "engine=fsdp2"));
    stw_import_free(&import);
}

/* sft_trainer has the actor's engine under names of its own, and neither rollout nor critic. */
static void tuning_of_verl(void) {
#define SFT                                                                                        \
    "torchrun --nnodes=2 --nproc-per-node 4 -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-8B " \
    "data.train_batch_size=64 trainer.n_gpus_per_node=1 "
    stw_import import;
    CHECK_OK(parse("verl",
                   SFT
                   "data.max_length=4096 data.max_token_len_per_gpu=16384 engine.strategy=fsdp2 "
                   "engine.optimizer_offload=True engine.ulysses_sequence_parallel_size=2 "
                   "optim.clip_grad=none optim.lr=1e-5\n",
                   &import, err));
    CU_ASSERT_EQUAL(import.gpus, 8);
    CU_ASSERT_TRUE(has_setting(&import, "engine=fsdp2"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.cp=2"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=4096"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.max_tokens_per_gpu=16384"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=2")); /* 16 of 4096 by 2 x 16384 */
    CU_ASSERT_TRUE(has_setting(&import, "park.moments=host"));
    for (size_t i = 0; i < import.n_settings; i++) {
        CU_ASSERT_PTR_NULL(strstr(import.settings[i], "roles."));
        CU_ASSERT_PTR_NULL(strstr(import.settings[i], "log_prob"));
    }
    CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_UNKNOWN), 0);
    CU_ASSERT_EQUAL(use_of(&import, "optim.lr"), STW_IMPORT_NO_EFFECT);
    stw_import_free(&import);
    CHECK_OK(parse("verl",
                   SFT "engine=megatron optim=megatron engine.tensor_model_parallel_size=2 "
                       "data.use_dynamic_bsz=False data.micro_batch_size_per_gpu=2 "
                       "+engine.override_transformer_config.recompute_granularity=full "
                       "+engine.override_transformer_config.recompute_method=uniform\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "engine=megatron"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.tp=2"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.micro_batch=2"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=8"));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.granularity=full"));
    CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_UNKNOWN), 0);
    stw_import_free(&import);
    CHECK_FAILS(parse("verl", SFT "engine.model_dtype=fp8\n", &import, err),
                STW_STATUS_NOT_BUILT_IN, "engine.model_dtype fp8");
    stw_import_free(&import);
    CHECK_FAILS(parse("verl", SFT "engine=veomni\n", &import, err), STW_STATUS_NOT_BUILT_IN,
                "use fsdp or megatron");
    stw_import_free(&import);
    /* the first failure gives the status, too */
    CHECK_FAILS(parse("verl", SFT "\npython3 -m verl.trainer.sft x=1\n", &import, err),
                STW_STATUS_BAD_INPUT, "found 2 commands that train");
    stw_import_free(&import);
    CHECK_FAILS(parse("verl", "python3 -m verl.trainer.sft x=1\n", &import, err),
                STW_STATUS_NOT_BUILT_IN, "main_ppo or sft_trainer");
    stw_import_free(&import);
}

/* tp 4 x pp 3 does not divide 5 nodes of 8 GPUs, but the 3 that are the trainer's. */
static void nodes_of_the_trainer(void) {
    stw_import import;
    stw_run_spec run;
    const stw_cluster five = {.nodes = 5, .gpus = 8}, six = {.nodes = 6, .gpus = 8};
    CHECK_OK(parse("verl",
                   ASYNC "rollout.nnodes=2 model_engine=megatron " A
                         "megatron.tensor_model_parallel_size=4 " A
                         "megatron.pipeline_model_parallel_size=3\n",
                   &import, err));
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_import_run(&import, &run, err));
    CHECK_OK(stw_import_batch(&import, &five, &run, err));
    CHECK_FAILS(stw_import_batch(&import, &six, &run, err), STW_STATUS_BAD_INPUT,
                "the 32 GPUs that the cluster has for the trainer");
    stw_run_spec_free(&run);
    stw_import_free(&import);
}

STW_TEST_MAIN("planner verl", {"own nodes of verl", own_nodes_of_verl},
              {"engines of verl", engines_of_verl}, {"tuning of verl", tuning_of_verl},
              {"nodes of the trainer", nodes_of_the_trainer})

/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in launch scripts: what changes is what was asked, where it stands. */
#include <stdio.h>
#include <string.h>

#include "planner/frameworks/emit/commands.h"
#include "planner/frameworks/emit/emit.h"
#include "planner/point.h"
#include "sim/sim.h"
#include "tests/unit/testing.h"

#define MODELS STW_SOURCE_DIR "/models"
#define SIZES                                                                                      \
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 "                  \
    "--max-position-embeddings 1024 --bf16"
#define BATCH "--micro-batch-size 2 --global-batch-size 64"
#define NEW_BATCH "--micro-batch-size 4 --global-batch-size 64"
#define SWIFT                                                                                      \
    "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-0.6B --tuner_type full --torch_dtype bfloat16 " \
    "--deepspeed zero3 --max_length 1024 --per_device_train_batch_size "
#define VERL                                                                                       \
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 "    \
    "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm "            \
    "trainer.n_gpus_per_node=8 trainer.nnodes=1 actor_rollout_ref.actor.strategy=fsdp2 "           \
    "algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_mini_batch_size=64 "                 \
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "                               \
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu="

enum { MOST_SETTINGS = 2 };

typedef struct emit_case {
    const char *framework, *text;
    const char *settings[MOST_SETTINGS];
    const char *expected; /* NULL: refused */
    const char *says;     /* in the notes, or in the error; NULL: anything */
} emit_case;

static const emit_case cases[] = {
    /* a launch in a variable; an echo with the same text stays */
    {"megatron",
     "LAUNCH=\"torchrun --nproc_per_node=4 --nnodes=1\"\n"
     "$LAUNCH pretrain_gpt.py " SIZES " " BATCH "\n"
     "echo \"was --nproc_per_node=4 --nnodes=1 run\"\n",
     {"batch.micro_batch=4"},
     "LAUNCH=\"torchrun --nproc_per_node=8 --nnodes=1\"\n"
     "$LAUNCH pretrain_gpt.py " SIZES " " NEW_BATCH "\n"
     "echo \"was --nproc_per_node=4 --nnodes=1 run\"\n",
     "- --nproc_per_node 4\n+ --nproc_per_node 8\n"},
    {"megatron",
     "N=4\necho $N\ntorchrun --nproc_per_node $N train.py " SIZES " " BATCH "\n",
     {"batch.micro_batch=4"},
     "N=4\necho $N\ntorchrun --nproc_per_node 8 train.py " SIZES " " NEW_BATCH "\n",
     NULL},
    /* another program with the same arguments, in front and behind */
    {"megatron",
     "COMMON=(\n  " SIZES " " BATCH "  # keep\n)\n"
     "torchrun --nproc_per_node 8 tools/check_data.py \"${COMMON[@]}\"   # must pass first\n"
     "python pretrain_gpt.py \"${COMMON[@]}\" --save x\n"
     "python tools/eval.py \"${COMMON[@]}\" --load x\n",
     {"batch.micro_batch=4", "parallel.sequence_parallel=false"},
     "COMMON=(\n  " SIZES " " NEW_BATCH "  # keep\n)\n"
     "torchrun --nproc_per_node 8 tools/check_data.py \"${COMMON[@]}\"   # must pass first\n"
     "python pretrain_gpt.py \"${COMMON[@]}\" --save x\n"
     "python tools/eval.py \"${COMMON[@]}\" --load x\n",
     "Line 6 (python tools/eval.py) has the changed arguments, too\n"},
    /* what is set where the script starts stays, between arguments and behind a value */
    {"megatron",
     "EXTRA=${EXTRA:-}\ntorchrun --nproc_per_node=8 train.py " SIZES
     " --micro-batch-size 2 $EXTRA --global-batch-size 64\n",
     {"batch.micro_batch=4"},
     "EXTRA=${EXTRA:-}\ntorchrun --nproc_per_node=8 train.py " SIZES
     " --micro-batch-size 4 $EXTRA --global-batch-size 64\n",
     NULL},
    {"megatron",
     "torchrun --nproc_per_node=4 train.py " SIZES " " BATCH " \"$@\" ${1:-}\n",
     {"batch.micro_batch=4", "recompute.granularity=selective"},
     "torchrun --nproc_per_node=8 train.py " SIZES " " NEW_BATCH
     " --recompute-granularity selective \"$@\" ${1:-}\n",
     NULL},
    {"megatron",
     "torchrun --nproc_per_node=8 train.py " SIZES
     " --micro-batch-size ${MBS:-2} --global-batch-size \"64\"\n",
     {"batch.micro_batch=4", "batch.grad_accumulation=1"},
     "torchrun --nproc_per_node=8 train.py " SIZES
     " --micro-batch-size 4 --global-batch-size \"32\"\n",
     NULL},
    {"ms-swift",
     "EXTRA=${EXTRA:-}\n" SWIFT "2 $EXTRA --gradient_accumulation_steps 4\n",
     {"batch.micro_batch=4"},
     "EXTRA=${EXTRA:-}\n" SWIFT "4 $EXTRA --gradient_accumulation_steps 4\n",
     NULL},
    {"verl",
     "HOOK=${HOOK:-}\n" VERL "4$HOOK $HOOK\n",
     {"batch.micro_batch=2", "recompute.granularity=full"},
     "HOOK=${HOOK:-}\n" VERL "2$HOOK $HOOK\n",
     NULL},
    /* arguments are added at the command, not in a text that a branch or others have */
    {"megatron",
     "ARGS=\"" SIZES " " BATCH
     " --lr 1\"\nif [ -n \"$PROFILE\" ]; then\n  ARGS=\"$ARGS --profile\"\nfi\n"
     "torchrun --nproc_per_node 8 train.py $ARGS\npython tools/report.py $ARGS\n",
     {"recompute.granularity=selective"},
     "ARGS=\"" SIZES " " BATCH
     " --lr 1\"\nif [ -n \"$PROFILE\" ]; then\n  ARGS=\"$ARGS --profile\"\nfi\n"
     "torchrun --nproc_per_node 8 train.py $ARGS --recompute-granularity selective\n"
     "python tools/report.py $ARGS\n",
     NULL},
    {"megatron",
     "CMD=\"torchrun --nproc_per_node 8 train.py " SIZES " " BATCH
     "\"\nif true; then eval \"$CMD\"; fi\n",
     {"batch.micro_batch=4", "recompute.granularity=selective"},
     "CMD=\"torchrun --nproc_per_node 8 train.py " SIZES " " NEW_BATCH
     " --recompute-granularity selective\"\nif true; then eval \"$CMD\"; fi\n",
     NULL},
    {"megatron",
     "bash -c \"torchrun --nproc_per_node 8 train.py " SIZES " " BATCH " --swiglu --profile\"\n",
     {"batch.micro_batch=4", "recompute.granularity=selective"},
     "bash -c \"torchrun --nproc_per_node 8 train.py " SIZES " " NEW_BATCH
     " --swiglu --profile --recompute-granularity selective\"\n",
     NULL},
    /* an argument that goes away leaves the others */
    {"megatron",
     "A=(" SIZES " " BATCH "\n  '--use-distributed-optimizer'\n  --swiglu \\\n)\n"
     "torchrun --nproc_per_node 8 train.py \"${A[@]}\"\n",
     {"megatron.distributed_optimizer=false"},
     "A=(" SIZES " " BATCH "\n  --swiglu \\\n)\n"
     "torchrun --nproc_per_node 8 train.py \"${A[@]}\"\n",
     NULL},
    /* a command that is written anew has no place for it */
    {"megatron",
     "EXTRA=${EXTRA:-}\ntorchrun --nproc_per_node=4 --nnodes 2 train.py " SIZES
     " \\\n --micro-batch-size 2 $EXTRA --global-batch-size 64\n",
     {"batch.micro_batch=4"},
     NULL,
     "text that only a running shell knows between its arguments; nothing is written"},
    /* the number of GPUs comes from another place */
    {"megatron",
     "srun python train.py " SIZES " " BATCH "\n",
     {"batch.micro_batch=4"},
     "srun python train.py " SIZES " " NEW_BATCH "\n",
     "does not say on how many GPUs it runs; the plan has 8\n"},
};

static void check_case(const emit_case *c) {
    stw_import import;
    stw_model *model = NULL;
    stw_cluster cluster;
    stw_plan *plan = NULL;
    stw_error why = STW_ERROR_INIT;
    stw_text text = STW_TEXT_INIT, notes = STW_TEXT_INIT;
    size_t n = 0;
    while (n < MOST_SETTINGS && c->settings[n] != NULL) n++;
    CHECK_OK(stw_import_parse(c->framework, "file", c->text, strlen(c->text), &import, err));
    CHECK_OK(stw_import_model(&import, NULL, MODELS, &model, err));
    CHECK_OK(stw_cluster_defaults(&cluster, err));
    CHECK_OK(stw_cluster_read(MODELS "/examples/h100-80g-x8.yaml", &cluster, err));
    CHECK_OK(stw_cluster_set(&cluster, "nodes", "1", "test", err));
    const stw_point_base base = {
        .model = model, .import = &import, .cluster = &cluster, .simulate = stw_sim_seconds};
    const stw_point_options options = {.time_limit_s = 20, .fits_only = true};
    CHECK_OK(stw_point_plan(&base, c->settings, n, &options, &plan, err));
    const stw_emit_options from = {.from = c->framework,
                                   .import = &import,
                                   .data_folder = MODELS,
                                   .simulate = stw_sim_seconds};
    const stw_status status = stw_emit_plan(c->framework, plan, &from, &text, &notes, &why);
    const char *found = text.data != NULL ? text.data : "";
    const char *said = c->expected == NULL ? why.text : notes.data != NULL ? notes.data : "";
    bool good = c->expected == NULL ? status == STW_STATUS_NOT_BUILT_IN && text.length == 0
                                    : status == STW_STATUS_OK && strcmp(found, c->expected) == 0;
    good = good && (c->says == NULL || strstr(said, c->says) != NULL);
    CU_ASSERT_TRUE(good);
    if (!good)
        fprintf(stderr, "%s: found\n%s\n%s %s\nexpected\n%s\n", c->text, found,
                notes.data != NULL ? notes.data : "", why.text,
                c->expected != NULL ? c->expected : "a refusal");
    stw_text_free(&text);
    stw_text_free(&notes);
    stw_plan_free(plan);
    stw_model_free(model);
    stw_import_free(&import);
}

static void changes(void) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_case(&cases[i]);
}

/* ---- every command ---- */

#define TRAIN "torchrun --nproc_per_node 4 train.py " SIZES

static const struct {
    const char *before, *now;
    int line; /* of the command that differs; 0: only what was meant; -1: other commands */
} pairs[] = {
    {"echo a\n" TRAIN " " BATCH "\n", "echo a\n" TRAIN " " NEW_BATCH "\n", 0},
    {TRAIN " " BATCH "\necho --micro-batch-size 2\n",
     TRAIN " " NEW_BATCH "\necho --micro-batch-size 2\n", 0},
    {TRAIN " " BATCH "\n", TRAIN " " NEW_BATCH " --swiglu\n", 0},
    {TRAIN " " BATCH "\n", TRAIN " " NEW_BATCH " --rope\n", 1},
    {TRAIN " " BATCH "\n", "torchrun --nproc_per_node 8 train.py " SIZES " " NEW_BATCH "\n", 1},
    {"echo x\n" TRAIN " " BATCH "\n", "echo y\n" TRAIN " " NEW_BATCH "\n", 1},
    {"echo x\n" TRAIN " " BATCH "\n", "echo x --swiglu\n" TRAIN " " NEW_BATCH "\n", 1},
    {"python a.py --x 1\n" TRAIN " " BATCH "\n", "python --x 1\n" TRAIN " " NEW_BATCH "\n", 1},
    {TRAIN " --micro-batch-size 2 ${E:-} --swiglu\n", TRAIN " --micro-batch-size 4 --swiglu\n", 1},
    {TRAIN " --micro-batch-size 2${E:-}\n", TRAIN " --micro-batch-size 4\n", 1},
    {TRAIN " --micro-batch-size 2${E:-}\n", TRAIN " --micro-batch-size 4${E:-}\n", 0},
    {"cat <<X\n$A\nX\n" TRAIN "\n", "A=1\ncat <<X\n$A\nX\n" TRAIN "\n", 1},
    {TRAIN " " BATCH "\n", "echo\n" TRAIN " " BATCH "\n", -1},
};

static void commands(void) {
    const stw_commands_change change[] = {{{"micro-batch-size", NULL}, "2", "4"},
                                          {{"swiglu", NULL}, NULL, ""}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        stw_import before, now;
        stw_text others = STW_TEXT_INIT;
        int line = 0;
        CHECK_OK(stw_import_parse("megatron", "a", pairs[i].before, strlen(pairs[i].before),
                                  &before, err));
        CHECK_OK(stw_import_parse("megatron", "b", pairs[i].now, strlen(pairs[i].now), &now, err));
        const stw_commands of = {before.shell, now.shell, true, 2, change};
        const bool same = stw_commands_same(&of, &others, &line);
        const int found = same ? 0 : line > 0 ? line : -1;
        CU_ASSERT_EQUAL(found, pairs[i].line);
        if (found != pairs[i].line)
            fprintf(stderr, "line %d, expected %d:\n%s", found, pairs[i].line, pairs[i].now);
        stw_text_free(&others);
        stw_import_free(&before);
        stw_import_free(&now);
    }
}

STW_TEST_MAIN("planner emit places", {"changes", changes}, {"every command", commands})

/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints in the files of trainers: how often, what of, how many stay, and what cannot be
 * converted. */
#include <string.h>

#include "planner/frameworks/import/import.h"
#include "tests/unit/testing.h"

typedef struct saves_case {
    const char *framework, *text;
    const char *settings; /* checkpoint.* in order, with spaces between */
    const char *line;     /* a flag that is a line of what is not modelled; NULL: none of them */
} saves_case;

#define LF                                                                                         \
    "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nbf16: true\ncutoff_len: 1024\n"              \
    "deepspeed: examples/deepspeed/ds_z3_config.json\nper_device_train_batch_size: 1\n"
#define FULL LF "finetuning_type: full\n"
#define SWIFT                                                                                      \
    "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-0.6B --torch_dtype bfloat16 --deepspeed "       \
    "zero3 --max_length 1024 --tuner_type full "
#define MEGATRON_SWIFT                                                                             \
    "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-0.6B --max_length 1024 --packing true "
#define MEGATRON                                                                                   \
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --bf16 "           \
    "--micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer "                     \
    "--max-position-embeddings 4096 "
#define AREAL                                                                                      \
    "allocation_mode: sglang:d4t2+fsdp:d8\ncluster: {n_nodes: 2, n_gpus_per_node: 8}\n"            \
    "gconfig: {n_samples: 4, max_new_tokens: 512}\n"                                               \
    "train_dataset: {batch_size: 64, max_length: 512, path: x}\n"                                  \
    "actor: {path: Qwen/Qwen3-0.6B, mb_spec: {max_tokens_per_mb: 4096}}\n"
#define VERL                                                                                       \
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 "    \
    "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm "            \
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
#define ACTOR "actor_rollout_ref.actor."

static const saves_case cases[] = {
    /* transformers' trainer */
    {"llamafactory", FULL, "", NULL},
    {"llamafactory", FULL "save_steps: 500\nsave_total_limit: 3\n",
     "checkpoint.every=500 checkpoint.keep=3", "save_steps"},
    {"llamafactory", FULL "save_strategy: steps\n", "checkpoint.every=500", "save_steps"},
    {"llamafactory", FULL "save_strategy: 'no'\nsave_steps: 100\n", "", NULL},
    {"llamafactory", FULL "save_strategy: epoch\n", "", "save_strategy"},
    {"llamafactory", FULL "save_steps: 0.1\n", "", "save_steps"},
    {"llamafactory", FULL "save_steps: 0.1\nmax_steps: 2000\n", "checkpoint.every=200",
     "save_steps"},
    {"llamafactory", FULL "save_steps: 50\nsave_only_model: true\n",
     "checkpoint.every=50 checkpoint.format=hf checkpoint.contents=[model]", NULL},
    {"llamafactory", LF "finetuning_type: lora\nsave_steps: 50\n",
     "checkpoint.every=50 checkpoint.contents=[optimizer]", "save_steps"},
    {"llamafactory", LF "finetuning_type: lora\nsave_steps: 50\nsave_only_model: true\n", "", NULL},
    /* ms-swift */
    {"ms-swift", SWIFT "--save_steps 40 --save_total_limit 2\n",
     "checkpoint.every=40 checkpoint.keep=2", "save-steps"},
    {"ms-swift", SWIFT "--save_strategy epoch\n", "", "save-strategy"},
    {"ms-swift", MEGATRON_SWIFT "--save_steps 40 --no_save_optim true\n",
     "checkpoint.every=40 checkpoint.contents=[model]", NULL},
    {"ms-swift", MEGATRON_SWIFT "--save_interval 30 --async_save true\n",
     "checkpoint.every=30 checkpoint.async=true", NULL},
    {"ms-swift", MEGATRON_SWIFT "--save_steps 40 --tuner_type lora\n", "", "save-steps"},
    /* Megatron-LM */
    {"megatron",
     MEGATRON "--save x --save-interval 9 --async-save --use-persistent-ckpt-worker "
              "--ckpt-format torch_dist\n",
     "checkpoint.every=9 checkpoint.async=true", NULL},
    {"megatron", MEGATRON "--save x --save-interval 9 --async-save --ckpt-format torch_dist\n",
     "checkpoint.every=9", "async-save"},                   /* Megatron-LM switches it off */
    {"megatron", MEGATRON "--save-interval 9\n", "", NULL}, /* without a folder it saves nothing */
    {"megatron", MEGATRON "--save x --save-interval 9 --ckpt-format torch\n", "checkpoint.every=9",
     "ckpt-format"},
    {"megatron", MEGATRON "--save x --save-interval 9 --no-ckpt-fully-parallel-save\n",
     "checkpoint.every=9", "no-ckpt-fully-parallel-save"},
    /* AReaL */
    {"areal", AREAL "saver: {freq_epochs: 1}\n", "", "saver.freq_epochs"},
    {"areal", AREAL "saver: {freq_steps: 20}\n",
     "checkpoint.every=20 checkpoint.contents=[model] checkpoint.format=hf", NULL},
    {"areal", AREAL "recover: {mode: auto, freq_steps: 10}\nsaver: {freq_steps: 20}\n",
     "checkpoint.every=10 checkpoint.keep=1", "saver.freq_steps"},
    {"areal", AREAL "recover: {mode: disabled, freq_steps: 10}\n", "", NULL},
    {"areal", AREAL "recover: {mode: 'on', freq_secs: 600}\n", "", "recover.freq_secs"},
    {"areal", AREAL "recover: {mode: 'on', freq_steps: 5, no_save_optim: true}\n",
     "checkpoint.every=5 checkpoint.contents=[model] checkpoint.keep=1", NULL},
    /* verl */
    {"verl", VERL "trainer.save_freq=20 trainer.max_actor_ckpt_to_keep=2\n",
     "checkpoint.every=20 checkpoint.keep=2", NULL},
    {"verl", VERL "trainer.save_freq=20 " ACTOR "checkpoint.save_contents=['model','hf_model']\n",
     "checkpoint.every=20 checkpoint.contents=[model]", ACTOR "checkpoint.save_contents"},
    {"verl", VERL "trainer.save_freq=-1\n", "", NULL},
    {"verl", VERL "trainer.save_freq=after_each_epoch\n", "", "trainer.save_freq"},
};

static bool is_save(const char *name) {
    return strstr(name, "save") != NULL || strstr(name, "ckpt") != NULL ||
           strstr(name, "recover") != NULL;
}

static void saves_are_read(void) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const saves_case *c = &cases[i];
        stw_import import;
        char found[256] = "";
        bool lined = false, other = false;
        CHECK_OK(stw_import_parse(c->framework, "file", c->text, strlen(c->text), &import, err));
        for (size_t s = 0; s < import.n_settings; s++) {
            if (strncmp(import.settings[s], "checkpoint.", strlen("checkpoint.")) != 0) continue;
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s%s",
                     found[0] != '\0' ? " " : "", import.settings[s]);
        }
        for (size_t l = 0; l < import.n_lines; l++) {
            const stw_import_line *line = &import.lines[l];
            if (line->use != STW_IMPORT_NOT_MODELLED || !is_save(line->flag)) continue;
            if (c->line != NULL && strcmp(line->flag, c->line) == 0)
                lined = true;
            else
                other = true;
        }
        CU_ASSERT_STRING_EQUAL(found, c->settings);
        CU_ASSERT_EQUAL(lined, c->line != NULL);
        CU_ASSERT_FALSE(other);
        if (strcmp(found, c->settings) != 0 || lined != (c->line != NULL) || other)
            fprintf(stderr, "%s, case %zu: found \"%s\", expected \"%s\", line %d, other %d\n",
                    c->framework, i, found, c->settings, lined, other);
        stw_import_free(&import);
    }
}

STW_TEST_MAIN("planner saves", {"saves are read", saves_are_read})

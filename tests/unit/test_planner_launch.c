/* SPDX-License-Identifier: Apache-2.0 */
/* Launch scripts of Megatron-LM: arrays, variables, branches, launchers and environments. The
 * scripts are short transcriptions of facts from NVIDIA/Megatron-LM at d98e8a6 (examples/gpt3,
 * llama, mixtral, t5, bert, megatron_fsdp, mamba, multimodal, post_training/modelopt) and of forms
 * that users write. */
#include "planner/frameworks/import/import.h"
#include "tests/unit/import_case.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif
#define MODELS STW_SOURCE_DIR "/models"
#define SIZES "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
#define RUN "torchrun --nproc_per_node 8 pretrain_gpt.py " SIZES

enum { MOST = 8 };

typedef struct script {
    const char *text;
    uint64_t gpus;
    const char *settings[MOST]; /* NULL at the end */
    const char *config[MOST];   /* of the model, parts of its JSON */
} script;

static stw_status parse(const char *text, stw_import *out, stw_error *err) {
    return stw_import_parse("megatron", "s.sh", text, strlen(text), out, err);
}

static const script scripts[] = {
    /* gpt3: arguments of the script, arrays, tabs, an array's comment */
    {"#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\nGPUS_PER_NODE=8\nNUM_NODES=1\n"
     "CHECKPOINT_PATH=$1 #<Specify path>\nVOCAB_FILE=$3\n"
     "DISTRIBUTED_ARGS=(\n    --nproc_per_node $GPUS_PER_NODE \n    --nnodes $NUM_NODES\n)\n"
     "GPT_MODEL_ARGS=(\n    --num-layers 96 \n    --hidden-size 12288 \n"
     "    --num-attention-heads 96\n    --attention-backend auto # Can use (flash/fused)\n"
     "    --seq-length 2048\n)\nMODEL_PARALLEL_ARGS=(\n\t--tensor-model-parallel-size 8\n"
     "\t--pipeline-model-parallel-size 16\n)\nTRAINING_ARGS=(\n --micro-batch-size 1\n --fp16\n"
     " --global-batch-size 1536\n --vocab-file $VOCAB_FILE\n --save $CHECKPOINT_PATH\n"
     " --save-interval 10000\n)\ntorchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\\n"
     "    ${GPT_MODEL_ARGS[@]} \\\n    ${TRAINING_ARGS[@]} \\\n    ${MODEL_PARALLEL_ARGS[@]}\n",
     8,
     {"parallel.tp=8", "parallel.pp=16", "precision.params=fp16", "checkpoint.every=10000", NULL},
     {"\"num_layers\": 96", "\"hidden_size\": 12288", NULL}},
    /* llama: defaults of arguments, a test of a variable, +=, flags with values in one word */
    {"TOKENIZER_ARG=${3:-\"MOCK\"} # Path to tokenizer model, or \"MOCK\"\nDTYPE=\"fp8\"\nTP=2\n"
     "NODES=${NODES:-2}\nPRETRAIN_SCRIPT_PATH=\"pretrain_gpt.py\"\nDTYPE_ARGS=()\n"
     "if [[ \"$DTYPE\" == \"fp8\" ]]; then\n  DTYPE_ARGS+=(\n    \"--fp8-format hybrid\"\n"
     "    \"--fp8-amax-history-len 1024\"\n  )\nfi\nDATA=()\n"
     "if [[ \"$TOKENIZER_ARG\" == \"MOCK\" ]] || [[ -z \"$TOKENIZER_ARG\" ]]; then\n"
     "  DATA+=(\"--tokenizer-type NullTokenizer\" \"--vocab-size 128256\" \"--split '99,1,0'\")\n"
     "else\n  DATA+=(\"--tokenizer-type GPT2BPETokenizer\")\nfi\n"
     "ARGS=(" SIZES "--bf16 --swiglu --tensor-model-parallel-size $TP)\n"
     "ARGS+=(--sequence-parallel)\nif [ ! -f \"$PRETRAIN_SCRIPT_PATH\" ]; then\n  exit 1\nfi\n"
     "torchrun --nproc_per_node 8 --nnodes $NODES \"$PRETRAIN_SCRIPT_PATH\" ${ARGS[@]} \\\n"
     "  ${DTYPE_ARGS[@]} ${DATA[@]}\nset +x",
     16,
     {"parallel.tp=2", "parallel.sequence_parallel=true", "megatron.fp8=hybrid",
      "megatron.fp8_amax_history=1024", NULL},
     {"\"vocab_size\": 128257", NULL}},
    /* mixtral: an open test that adds names of logs alone, blanks at the end of lines */
    {"NNODES=${SLURM_NNODES:-\"1\"}\nTOKENIZER_MODEL=$2\nMOE_ARGS=(\n    --num-experts 8\n"
     "    --moe-router-topk 2\n    --moe-token-dispatcher-type alltoall\n)\n"
     "LOGGING_ARGS=(\n    --log-interval 1 \\\n    --save-interval 10000 \\\n"
     "    --tensorboard-dir \"${CHECKPOINT_PATH}/tensorboard\"\n)\n"
     "if [ -n \"${WANDB_API_KEY}\" ]; then\n    LOGGING_ARGS+=(\n"
     "        --wandb-project ${WANDB_PROJECT:-\"Mixtral\"}\n    )\nfi\n\n"
     "torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py \\\n  " SIZES
     "\\\n  ${MOE_ARGS[@]} --tokenizer-type Llama2Tokenizer \\\n"
     "  --tokenizer-model ${TOKENIZER_MODEL} --expert-model-parallel-size 8 --swiglu \\\n"
     "  ${LOGGING_ARGS[@]}\n",
     8,
     {"parallel.ep=8", NULL},
     {"\"num_experts\": 8", "\"vocab_size\": 32000", NULL}},
    /* t5: a text of arguments, continued lines within quotes */
    {"T5_ARGS=\"\n    --encoder-num-layers 2 \\\n    --decoder-num-layers 3 \\\n"
     "    --hidden-size 64 \\\n    --num-attention-heads 4 \\\n    --encoder-seq-length 64 \\\n"
     "    --decoder-seq-length 16 \\\n    --max-position-embeddings 64 \\\n    --bf16\n\"\n"
     "torchrun --nproc_per_node=4 pretrain_t5.py \\\n    $T5_ARGS\n",
     4,
     {"batch.seq_len=64", "batch.decoder_seq_len=16", NULL},
     {"\"encoder_layers\": 2", "\"num_layers\": 3", NULL}},
    /* megatron_fsdp: the environment, sums, a save, its own format */
    {"unset CUDA_DEVICE_MAX_CONNECTIONS\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
     "GPUS=8\nDP=$((GPUS * 2))\nFSDP_ARGS=(--use-megatron-fsdp\n"
     "  --data-parallel-sharding-strategy optim_grads_params\n  --ckpt-format fsdp_dtensor)\n"
     "torchrun --nproc-per-node $GPUS --nnodes=2 pretrain_gpt.py " SIZES
     "--bf16 --global-batch-size $DP --micro-batch-size 1 --save x --save-interval 500 \\\n"
     " --async-save \"${FSDP_ARGS[@]}\"\n",
     16,
     {"megatron.fsdp=optim_grads_params", "allocator.expandable_segments=true",
      "checkpoint.every=500", NULL},
     {NULL}},
    /* mamba, sbatch of deepseek: the command is a text that another command gets */
    {"options=\" \\\n       --tensor-model-parallel-size 4 \\\n       " SIZES
     "\\\n       --bf16\"\n"
     "case \"${MODEL_SCALE:-8B}\" in\n    \"800M\") HEADS=1 ;;\n    8B|70B)\n        KV=2\n"
     "        ;;\n    *) exit 1 ;;\nesac\n"
     "run_cmd=\"cd $DIR && python -u ${DIR}/pretrain_gpt.py ${options} --num-query-groups $KV\"\n"
     "srun -l --output=${DIR}/%x.log sh -c \"${run_cmd}\"\n",
     0,
     {"parallel.tp=4", NULL},
     {"\"num_query_groups\": 2", NULL}},
    {"PRETRAIN_ARGS=(" SIZES "--pipeline-model-parallel-size 2)\nTRAINING_CMD=\"\n"
     "cd ${MEGATRON_PATH};\npython ${MEGATRON_PATH}/pretrain_gpt.py ${PRETRAIN_ARGS[@]}\"\n"
     "sbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=2\nsrun bash -x -c \"${TRAINING_CMD}\"\nEOF\n",
     0,
     {"parallel.pp=2", NULL},
     {NULL}},
    /* eval of a text, else and elif, a length of an array */
    {"TP=4\nAC=full\nif [ $AC = sel ]; then\n AC_OPTIONS=\" --recompute-activations\"\n"
     "elif [ $AC = full ]; then\n AC_OPTIONS=\" --recompute-granularity full "
     "--recompute-method uniform --recompute-num-layers 1\"\nelse\n AC_OPTIONS=\"\"\nfi\n"
     "STAGES=(a b)\nrun_cmd=\"torchrun --nproc_per_node 8 pretrain_qwen.py " SIZES
     " --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${#STAGES[@]} "
     "${AC_OPTIONS}\"\necho ${run_cmd}\neval ${run_cmd}\nset +x\n",
     8,
     {"parallel.tp=4", "parallel.pp=2", "recompute.granularity=full", NULL},
     {NULL}},
    /* modelopt: rope by an older flag, a padded vocabulary, python -m */
    {"if [ -z ${HF_MODEL_CKPT} ]; then\n  TOKENIZER=Qwen/Qwen2.5-7B\nelse\n"
     "  TOKENIZER=${HF_MODEL_CKPT}\nfi\nMODEL_ARGS=\" \\\n --use-rotary-position-embeddings \\\n"
     " --no-position-embedding --tokenizer-type HuggingFaceTokenizer --tokenizer-model $TOKENIZER "
     "\\\n --padded-vocab-size 152064 \\\n\"\n"
     "python -m torch.distributed.run --nproc_per_node 8 finetune.py ${MODEL_ARGS} " SIZES "\n",
     8,
     {"megatron.vocab_multiple=1", NULL},
     {"\"position_embedding_type\": \"rope\"", "\"vocab_size\": 152064", NULL}},
    /* loops that never run without arguments, && and ||, a variable of one command */
    {"TP=1\nwhile [[ $# -gt 0 ]]; do\n case $1 in\n  --tp) TP=\"$2\"; shift 2 ;;\n esac\ndone\n"
     "PP=2\n[[ $TP -eq 1 && $PP -ge 2 ]] && PP=4\n[ $TP = 1 ] || TP=8\n"
     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python prepare.py\n"
     "PYTORCH_ALLOC_CONF=max_split_size_mb:512,roundup_power2_divisions:8 " RUN
     "--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \\\n"
     " 2>&1 | tee log.txt\n",
     8,
     {"parallel.tp=1", "parallel.pp=4", "allocator.max_split_size=512 MiB",
      "allocator.roundup_power2_divisions=8", NULL},
     {NULL}},
    /* bert-like launchers: a declared array, ${name:+...} */
    {"declare -a ARGS=(" SIZES ")\nreadonly EXTRA=1\n"
     "srun torchrun --nproc_per_node=8 --nnodes=4 --rdzv_endpoint=$HOST:29500 pretrain_gpt.py \\\n"
     " \"${ARGS[@]}\" ${EXTRA:+--bf16} ${UNUSED_X:-}\n",
     32,
     {"precision.params=bf16", NULL},
     {NULL}},
    /* no script any more, behind the end */
    {RUN "--bf16\n[ $# -gt 0 ] || exit\n)\n", 8, {"precision.params=bf16", NULL}, {NULL}},
};

static void scripts_are_read(void) {
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        const script *s = &scripts[i];
        stw_import import;
        stw_error why = STW_ERROR_INIT;
        if (parse(s->text, &import, &why) != STW_STATUS_OK) {
            fprintf(stderr, "script %zu: %s:%d: %s\n", i, why.where, why.line, why.text);
            CU_FAIL("a script is refused");
        } else {
            CU_ASSERT_EQUAL(import.gpus, s->gpus);
            for (size_t k = 0; k < MOST && s->settings[k] != NULL; k++)
                CU_ASSERT_TRUE(has_setting(&import, s->settings[k]));
            for (size_t k = 0; k < MOST && s->config[k] != NULL; k++)
                CU_ASSERT_PTR_NOT_NULL(strstr(import.config, s->config[k]));
        }
        stw_import_free(&import);
    }
    stw_import import;
    CHECK_OK(parse(scripts[9].text, &import, err));
    CU_ASSERT_FALSE(has_setting(&import, "allocator.expandable_segments=true"));
    stw_import_free(&import);
}

/* What a script does not say is refused with its line. */
static void open_scripts_are_refused(void) {
    static const struct {
        const char *text;
        int line;
        const char *words;
    } cases[] = {
        {"torchrun pretrain_gpt.py \\\n ${GPT_MODEL_ARGS[@]}\n", 2, "${GPT_MODEL_ARGS[@]}"},
        {RUN "--bf16 $EXTRA_ARGS\n", 1, "$EXTRA_ARGS"},
        {"TP=$1\n" RUN "\\\n --tensor-model-parallel-size $TP\n", 3, "$1"},
        {RUN "--pipeline-model-parallel-size $PP\n", 1, "does not set"},
        {"if [ -n \"$X\" ]; then\n TP=2\nfi\n" RUN "--tensor-model-parallel-size $TP\n", 2,
         "depends on"},
        {"A=()\nif nvidia-smi | grep H100; then\n A+=(--fp8-format hybrid)\nfi\n" RUN "${A[@]}\n",
         3, "--fp8-format hybrid"},
        {"for TP in 1 2; do\n " RUN "--tensor-model-parallel-size $TP\ndone\n", 2, "$TP"},
        {RUN "# sizes\n --bf16\n", 2, "backslash"},
        {RUN "# sizes\n --bf16${}\n", 2, "${ }"}, /* such a line, and it is not read */
        {RUN "# sizes\n --bf16${}\n)\n", 2, "${ }"},
        {RUN "''\n --size $((0@))\n", 2, "arithmetic"},
        {RUN "--chunked-optimizer-state-offload\n", 1, "may move bytes"},
        {RUN "\\\n --activation-buffer-count 3\n", 2, "may move bytes"},
        {"python tools/preprocess_data.py --input x\n", 0, "found no command that trains"},
        {SIZES "\\\n --bf16 \\\n --state-offload\n", 3, "may move bytes"}, /* arguments alone */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_import import;
        stw_error why = STW_ERROR_INIT;
        CU_ASSERT_NOT_EQUAL(parse(cases[i].text, &import, &why), STW_STATUS_OK);
        CU_ASSERT_EQUAL(why.line, cases[i].line);
        CU_ASSERT_PTR_NOT_NULL(strstr(why.text, cases[i].words));
        if (why.line != cases[i].line || strstr(why.text, cases[i].words) == NULL)
            fprintf(stderr, "case %zu: line %d: %s\n", i, why.line, why.text);
        stw_import_free(&import);
    }
}

static void open_settings_of_verl_are_refused(void) {
    static const char before[] =
        "if [ -n \"$FAST\" ]; then\n  A+=(%s)\nfi\n"
        "python3 -m verl.trainer.main_ppo trainer.nnodes=1 \\\n"
        " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 ${A[@]}\n";
    static const char *const items[] = {"trainer.project_name=x",
                                        "actor_rollout_ref.actor.fsdp_config.param_offload=True"};
    for (size_t i = 0; i < 2; i++) {
        char text[512];
        stw_import import;
        stw_error why = STW_ERROR_INIT;
        snprintf(text, sizeof text, before, items[i]);
        const stw_status status = stw_import_parse("verl", "x", text, strlen(text), &import, &why);
        CU_ASSERT_EQUAL(status, i == 0 ? STW_STATUS_OK : STW_STATUS_BAD_INPUT);
        CU_ASSERT_EQUAL(why.line, i == 0 ? 0 : 2);
        stw_import_free(&import);
    }
}

static void open_flags_of_swift_are_refused(void) {
    const char *text = "if [ $1 = big ]; then\n  A=(--deepspeed zero3)\nfi\n"
                       "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-0.6B ${A[@]}\n";
    stw_import import;
    stw_error why = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_import_parse("ms-swift", "x", text, strlen(text), &import, &why),
                    STW_STATUS_BAD_INPUT);
    CU_ASSERT_EQUAL(why.line, 2);
    stw_import_free(&import);
}

/* Commands see what is exported; what may be exported is refused. */
static void processes_of_the_environment(void) {
    static const char *const starts[] = {"NPROC_PER_NODE=8\n", "export NPROC_PER_NODE=8\n",
                                         "if [ -n \"$X\" ]; then\n export NPROC_PER_NODE=8\nfi\n"};
    for (size_t i = 0; i < 3; i++) {
        char text[256];
        stw_import import;
        stw_error why = STW_ERROR_INIT;
        snprintf(text, sizeof text, "%sswift sft --model Qwen/Qwen3-0.6B --deepspeed zero3\n",
                 starts[i]);
        const stw_status status =
            stw_import_parse("ms-swift", "x", text, strlen(text), &import, &why);
        CU_ASSERT_EQUAL(status, i < 2 ? STW_STATUS_OK : STW_STATUS_BAD_INPUT);
        if (i < 2) CU_ASSERT_EQUAL(import.gpus, i == 0 ? 1 : 8);
        CU_ASSERT_EQUAL(why.line, i < 2 ? 0 : 2);
        stw_import_free(&import);
    }
    static const char *const several = "if [ -n \"$X\" ]; then\n" RUN "\nelse\n" RUN "--bf16\nfi\n";
    stw_import import;
    CHECK_FAILS(parse(several, &import, err), STW_STATUS_BAD_INPUT, "in lines 2");
    stw_import_free(&import);
}

/* Of a name that speaks of no bytes, or a value that switches off, a warning is enough. */
static void unknown_flags_are_told(void) {
    stw_import import;
    CHECK_OK(parse(RUN "--made-up 3 --other-offload false --trust-remote-code\n", &import, err));
    CU_ASSERT_EQUAL(use_of(&import, "made-up"), STW_IMPORT_UNKNOWN);
    CU_ASSERT_EQUAL(use_of(&import, "other-offload"), STW_IMPORT_UNKNOWN);
    CU_ASSERT_EQUAL(use_of(&import, "trust-remote-code"), STW_IMPORT_NO_EFFECT);
    stw_import_free(&import);
}

static void environments(void) {
    static const struct {
        const char *before;
        bool expandable;
    } cases[] = {
        {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n", false}, /* not exported */
        {"X=expandable_segments:True\nexport PYTORCH_CUDA_ALLOC_CONF=$X\n", true},
        {"PYTORCH_ALLOC_CONF=expandable_segments:True\nexport PYTORCH_ALLOC_CONF\n", true},
        {"export PYTORCH_CUDA_ALLOC_CONF=\"expandable_segments:False\"\n", false},
        {"export PYTORCH_ALLOC_CONF=expandable_segments:True\nunset PYTORCH_ALLOC_CONF\n", false},
        {"env PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8,"
         "expandable_segments:True \\\n",
         true},
        {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python x.py\n", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        stw_import import;
        snprintf(text, sizeof text, "%s%s\n", cases[i].before, RUN);
        CHECK_OK(parse(text, &import, err));
        bool on = false;
        for (size_t k = 0; k < import.n_settings; k++)
            on = on || strcmp(import.settings[k], "allocator.expandable_segments=true") == 0;
        CU_ASSERT_EQUAL(on, cases[i].expandable);
        stw_import_free(&import);
    }
    stw_import import;
    const char *yaml = "ENV_VARS:\n  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True\n"
                       "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 64\n"
                       "  --num-attention-heads: 4\n";
    CHECK_OK(parse(yaml, &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "allocator.expandable_segments=true"));
    stw_import_free(&import);
    const char *verl =
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen3-0.6B \\\n"
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1\n";
    CHECK_OK(stw_import_parse("verl", "x", verl, strlen(verl), &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "allocator.expandable_segments=true"));
    stw_import_free(&import);
}

/* Two spellings of one flag, and two paths to one key, are duplicates, too. */
static void duplicates_are_refused(void) {
    static const char *const yaml =
        "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 64\n  --num_layers: 3\n";
    static const char *const json =
        "{\"zero_optimization\": {\"stage\": 3},\n\"zero_optimization.stage\": 2}";
    stw_import import;
    CHECK_FAILS(parse(yaml, &import, err), STW_STATUS_BAD_INPUT, "(first in line 2)");
    stw_import_free(&import);
    CHECK_FAILS(stw_import_parse("deepspeed", "x", json, strlen(json), &import, err),
                STW_STATUS_BAD_INPUT, "zero_optimization.stage again");
    stw_import_free(&import);
}

/* ---- several commands ---- */

#define TRAINS                                                                                     \
    "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "    \
    "--max-position-embeddings 128 --micro-batch-size 1 --vocab-size 512 "

static void one_of_several_is_named(void) {
    const char *text = "if [ ! -f done ]; then\n  torchrun " TRAINS "--save a\nfi\n"
                       "torchrun " TRAINS "--load a --micro-batch-size 2\n"
                       "python tools/report.py --num-layers 2\n";
    stw_import import;
    CHECK_FAILS(stw_import_parse("megatron", "a/s.sh", text, strlen(text), &import, err),
                STW_STATUS_BAD_INPUT,
                "lines 2 (torchrun pretrain_gpt.py), 4 (torchrun pretrain_gpt.py)");
    stw_import_free(&import);
    CHECK_OK(stw_import_parse("megatron", "a/s.sh:2", text, strlen(text), &import, err));
    CU_ASSERT_STRING_EQUAL(import.path, "a/s.sh");
    CU_ASSERT_STRING_EQUAL(stw_import_place(&import), "a/s.sh:2");
    CU_ASSERT_PTR_NOT_NULL(stw_flags_find(&import.flags, "save"));
    stw_import_free(&import);
    CHECK_FAILS(stw_import_parse("megatron", "a/s.sh:3", text, strlen(text), &import, err),
                STW_STATUS_BAD_INPUT, "no command that trains");
    stw_import_free(&import);
    text = "for i in 1 2; do torchrun " TRAINS "|| continue; done\ntorchrun " TRAINS "\n";
    CHECK_OK(stw_import_parse("megatron", "s.sh", text, strlen(text), &import, err));
    stw_import_free(&import);
    text = "torchrun " TRAINS "; torchrun " TRAINS "--bf16\n";
    CHECK_FAILS(stw_import_parse("megatron", "s.sh", text, strlen(text), &import, err),
                STW_STATUS_BAD_INPUT, "2 commands that train");
    stw_import_free(&import);
    text = "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2}, \"bf16\": "
           "{\"enabled\": true}}";
    CHECK_FAILS(stw_import_parse("deepspeed", "ds.json:1", text, strlen(text), &import, err),
                STW_STATUS_USAGE, "no script");
    stw_import_free(&import);
}

STW_TEST_MAIN("planner launch", {"one of several is named", one_of_several_is_named},
              {"scripts are read", scripts_are_read},
              {"open scripts are refused", open_scripts_are_refused},
              {"open settings of verl are refused", open_settings_of_verl_are_refused},
              {"open flags of swift are refused", open_flags_of_swift_are_refused},
              {"processes of the environment", processes_of_the_environment},
              {"unknown flags are told", unknown_flags_are_told}, {"environments", environments},
              {"duplicates are refused", duplicates_are_refused})

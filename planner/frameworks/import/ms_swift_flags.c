/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of ms-swift and what they are to a plan. The first row that matches counts. */
#include "planner/frameworks/import/ms_swift.h"

#define ROW(name, use, type, key, harmless, note)                                                  \
    { name, STW_FLAG_##use, STW_FLAG_##type, key, harmless, note }
#define READ(name) ROW(name, READ, TEXT, NULL, NULL, NULL)
#define IDLE(name) ROW(name, IDLE, TEXT, NULL, NULL, NULL)
#define LISTED(name, harmless, note) ROW(name, LISTED, TEXT, NULL, harmless, note)
#define REFUSED(name, harmless, note) ROW(name, REFUSED, TEXT, NULL, harmless, note)

/* Files, data, logs, schedules of rates: both programs have them. */
#define COMMON                                                                                     \
    READ("model"), READ("train-type"), READ("tuner-type"), READ("sft-type"), READ("torch-dtype"),  \
        READ("max-length"), READ("packing"), READ("padding-free"), READ("lora-rank"),              \
        READ("target-modules"), READ("attn-impl"), READ("sequence-parallel-size"),                 \
        READ("freeze-llm"), READ("freeze-vit"), READ("freeze-aligner"),                            \
        REFUSED("freeze-parameters*", "", "use trainable.freeze of a run file"),                   \
        REFUSED("trainable-parameters*", "", "use trainable.freeze of a run file"),                \
        REFUSED("modules-to-save", "", "use target_modules alone"),                                \
        REFUSED("target-regex", NULL, "use target_modules"),                                       \
        REFUSED("target-parameters", NULL, "use target_modules"),                                  \
        REFUSED("use-dora", "false", "use plain LoRA"),                                            \
        REFUSED("quant-*", NULL, "use weights in 16 bits"),                                        \
        REFUSED("bnb-*", NULL, "use weights in 16 bits"),                                          \
        REFUSED("task-type", "causal_lm", "only causal language models are planned"),              \
        REFUSED("num-labels", NULL, "only causal language models are planned"),                    \
        LISTED("adapters", NULL, "planned with new adapters"), IDLE("lora-alpha"),                 \
        LISTED("lora-dropout", "0", "planned without its masks"),                                  \
        LISTED("lora-bias", "none", "planned without biases"),                                     \
        LISTED("lora-dtype", NULL, "adapters are planned in the dtype of parameters"),             \
        IDLE("use-rslora"), IDLE("init-weights"), IDLE("lorap-lr-ratio"), IDLE("dataset*"),        \
        IDLE("val-dataset*"), IDLE("cached-*"), IDLE("split-dataset-ratio"), IDLE("columns"),      \
        IDLE("data-seed"), IDLE("streaming"), IDLE("shuffle-buffer-size"),                         \
        IDLE("load-from-cache-file"), IDLE("lazy-tokenize"), IDLE("strict"),                       \
        IDLE("truncation-strategy"), READ("max-pixels"), IDLE("system"), IDLE("template*"),        \
        IDLE("agent-template"), READ("loss-scale"), IDLE("loss-type"), IDLE("custom-*"),           \
        IDLE("external-plugins"), IDLE("interleave-prob"), IDLE("packing-num-proc"),               \
        IDLE("packing-length"), IDLE("packing-cache"), IDLE("model-author"), IDLE("model-name"),   \
        IDLE("model-type"), IDLE("model-revision"), IDLE("use-hf"), IDLE("hub-*"),                 \
        IDLE("push-to-hub*"), IDLE("output-dir"), IDLE("add-version"), READ("save-strategy"),      \
        READ("save-steps"), READ("save-only-model"), READ("save-total-limit"),                     \
        READ("save-interval"), IDLE("save-*"), IDLE("logging-*"), IDLE("report-to"),               \
        IDLE("swanlab-*"), IDLE("wandb-*"), IDLE("eval-*"), IDLE("do-eval"), IDLE("seed"),         \
        IDLE("weight-decay"), IDLE("dataloader-*"), IDLE("num-train-epochs"), IDLE("max-epochs"),  \
        READ("max-steps"), IDLE("train-dataloader-*"), IDLE("resume-*"), IDLE("ignore-data-skip"), \
        IDLE("create-checkpoint-symlink"), IDLE("ddp-timeout"), IDLE("ddp-backend"),               \
        IDLE("check-model"), IDLE("load-args"), IDLE("metric*"), IDLE("greater-is-better"),        \
        IDLE("acc-*"), IDLE("enable-thinking"), IDLE("add-non-thinking-prefix"),                   \
        IDLE("response-prefix"), IDLE("stop-words"), IDLE("group-by-length"),                      \
        IDLE("enable-channel-loss"), IDLE("enable-dft-loss"), IDLE("callbacks"),                   \
        IDLE("use-chat-template"), IDLE("merge-lora"), IDLE("ignore-args-error")

static const stw_flag_row swift_rows[] = {
    COMMON,
    READ("per-device-train-batch-size"),
    READ("gradient-accumulation-steps"),
    READ("gradient-checkpointing"),
    READ("use-liger-kernel"),
    READ("deepspeed"),
    READ("fsdp"),
    READ("max-grad-norm"),
    READ("bf16"),
    READ("fp16"),
    READ("optim"),
    /* AdamW with several learning rates; others keep other state */
    {"optimizer", STW_FLAG_REFUSED, STW_FLAG_TEXT, "lorap", "multimodal", "omit it for AdamW"},
    IDLE("optim-args"), /* AdamW reads none (trainer.py at 4.57, get_optimizer_cls_and_kwargs) */
    IDLE("learning-rate"),
    IDLE("lr-*"),
    IDLE("warmup-*"),
    IDLE("adam-*"),
    IDLE("per-device-eval-batch-size"),
    IDLE("predict-with-generate"),
    IDLE("gradient-checkpointing-kwargs"),
    IDLE("vit-lr"),
    IDLE("aligner-lr"),
    IDLE("remove-unused-columns"),
    IDLE("include-num-input-tokens-seen"),
    IDLE("disable-tqdm"),
    IDLE("average-tokens-across-devices"),
    IDLE("ddp-find-unused-parameters"),
    IDLE("max-new-tokens"),
    IDLE("temperature"),
    IDLE("top-*"),
    IDLE("repetition-penalty"),
    IDLE("num-beams"),
    LISTED("vit-gradient-checkpointing", NULL, "the tower is recomputed as the language model is"),
    LISTED("use-logits-to-keep", "false", "planned with the logits of all tokens"),
    LISTED("neftune-noise-alpha", "0", "planned without noise"),
    LISTED("torch-compile*", "false", "planned eager"),
    LISTED("zero-hpz-partition-size", "1", "planned without a second partition"),
    LISTED("rope-scaling", NULL, "it changes no shape"),
    LISTED("router-aux-loss-coef", "0", "planned without router logits"),
    REFUSED("device-map", NULL, "use deepspeed or fsdp"),
    REFUSED("deepspeed-autotp-size", "1", "use `megatron sft`"),
    REFUSED("use-galore", "false", "use AdamW"),
    REFUSED("lisa-*", "0", "use tuner_type full or lora"),
    REFUSED("rlhf-type", NULL, "only sft and pt are planned; use roles of a run file"),
};

/* megatron_args.py; what is not here is Megatron-LM's. */
static const stw_flag_row megatron_rows[] = {
    READ("lora-dropout"),
    READ("no-save-optim"),
    READ("async-save"),
    COMMON,
    READ("mcore-model"),
    READ("load"),
    READ("ref-load"),
    IDLE("load-safetensors"),
    IDLE("save-safetensors"),
    IDLE("no-save-*"),
    IDLE("mcore-adapter"),
    IDLE("num-workers"),
    IDLE("max-shard-size"),
    IDLE("bridge-backend"),
    IDLE("report-*"),
    IDLE("save"),
    IDLE("hf-*"),
    LISTED("vit-*", NULL, "the tower is recomputed as the language model is"),
    LISTED("mlp-padding-free", "false", "planned with padding"),
    READ("virtual-pipeline-model-parallel-size"),
    READ("microbatch-group-size-per-vp-stage"),
    LISTED("moe-permute-fusion", "false", "planned without it"),
    REFUSED("rlhf-type", NULL, "only sft and pt are planned; use roles of a run file"),
};

const stw_flag_table stw_ms_swift_flags = {swift_rows, sizeof swift_rows / sizeof swift_rows[0]};
const stw_flag_table stw_ms_swift_megatron_flags = {megatron_rows,
                                                    sizeof megatron_rows / sizeof megatron_rows[0]};

/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults are those of src/llamafactory/hparams/ at 0.9.5 and of transformers' TrainingArguments;
 * files that deepspeed names are those of examples/deepspeed/ there. */
#include "planner/frameworks/import/llamafactory.h"

#include <string.h>

#include "planner/frameworks/import/deepspeed.h"

/* examples/deepspeed/ds_z*.json: what they have in common, then by stage. */
static const stw_flag_pair zero[] = {{"bf16.enabled", "auto"},
                                     {"fp16.enabled", "auto"},
                                     {"zero_optimization.overlap_comm", "false"},
                                     {"zero_optimization.contiguous_gradients", "true"},
                                     {"zero_optimization.offload_optimizer.pin_memory", "true"},
                                     {"zero_optimization.offload_param.pin_memory", "true"},
                                     {"gradient_clipping", "auto"},
                                     {"gradient_accumulation_steps", "auto"},
                                     {"train_micro_batch_size_per_gpu", "auto"},
                                     {NULL, NULL}};
static const stw_flag_pair second_stage[] = {{"zero_optimization.reduce_bucket_size", "5e8"},
                                             {"zero_optimization.round_robin_gradients", "true"},
                                             {NULL, NULL}};
static const stw_flag_pair third_stage[] = {
    {"zero_optimization.reduce_bucket_size", "auto"},
    {"zero_optimization.sub_group_size", "1e9"},
    {"zero_optimization.stage3_prefetch_bucket_size", "auto"},
    {"zero_optimization.stage3_param_persistence_threshold", "auto"},
    {"zero_optimization.stage3_max_live_parameters", "1e9"},
    {"zero_optimization.stage3_max_reuse_distance", "1e9"},
    {NULL, NULL}};

static void use_deepspeed(stw_reading *r, const char *dtype) {
    static const char *const names[] = {"ds_z2_config.json", "ds_z2_offload_config.json",
                                        "ds_z3_config.json", "ds_z3_offload_config.json"};
    const char *path = stw_reading_text(r, "deepspeed", ""), *base = strrchr(path, '/');
    const stw_trainer_arguments trainer = {
        .micro_batch = stw_reading_text(r, "per_device_train_batch_size", "8"),
        .accumulation = stw_reading_text(r, "gradient_accumulation_steps", "1"),
        .clip_norm = stw_reading_text(r, "max_grad_norm", "1.0"),
        .dtype = dtype,
        .given = true,
        .optim = stw_reading_text(r, "optim", "adamw_torch"),
    };
    size_t i = 0;
    base = base != NULL ? base + 1 : path;
    while (i < 4 && strcmp(names[i], base) != 0) i++;
    if (i == 4) {
        stw_reading_refuse(r, "deepspeed",
                           "use ds_z2_config.json, ds_z3_config.json or one of them with _offload; "
                           "a config of one's own is read by --from deepspeed:FILE");
        return;
    }
    const char *const offload = i % 2 == 1 ? "cpu" : "none";
    const stw_flag_pair own[] = {
        {"zero_optimization.stage", i < 2 ? "2" : "3"},
        {"zero_optimization.offload_optimizer.device", offload},
        {"zero_optimization.offload_param.device", i < 2 ? "none" : offload},
        {NULL, NULL}};
    stw_reading zeros = {.out = r->out, .err = r->err, .status = r->status};
    zeros.flags.path = r->flags.path;
    zeros.flags.dashes = "";
    stw_reading_add_pairs(&zeros, zero);
    stw_reading_add_pairs(&zeros, own);
    stw_reading_add_pairs(&zeros, i < 2 ? second_stage : third_stage);
    if (zeros.status == STW_STATUS_OK) stw_deepspeed_read(&zeros, &trainer);
    stw_reading_fail(r, zeros.status);
}

/* @return bf16 or fp16 */
static const char *dtype_of(stw_reading *r) {
    if (stw_reading_is_set(r, "fp16")) return "fp16";
    if (!stw_reading_is_set(r, "bf16"))
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                                     "training in fp32: not implemented: use bf16: true"));
    return "bf16";
}

/* "all", or names separated by commas. */
static void set_lora(stw_reading *r) {
    const char *targets = stw_reading_text(r, "lora_target", "all");
    stw_reading_set_count(r, "trainable.lora.rank", stw_reading_count(r, "lora_rank", 8));
    r->out->derived.all_linear = strcmp(targets, "all") == 0;
    if (r->out->derived.all_linear) return;
    char *list = stw_pool_printf(r->out->pool, "[%s]", targets), *to = list;
    for (char *c = list; c != NULL && *c != '\0'; c++)
        if (*c != ' ') *to++ = *c;
    if (to != NULL) *to = '\0';
    stw_reading_set(r, "trainable.lora.targets", list != NULL ? list : "[]");
}

/* model_utils/attention.py: auto leaves the choice to transformers, which takes sdpa. */
static void set_attention(stw_reading *r) {
    const char *text = stw_reading_text(r, "flash_attn", "auto");
    const char *kind = strcmp(text, "disabled") == 0 ? "eager" : "sdpa";
    if (strncmp(text, "fa", 2) == 0) kind = "flash";
    if (strcmp(kind, "sdpa") == 0 && strcmp(text, "auto") != 0 && strcmp(text, "sdpa") != 0)
        stw_reading_refuse(r, "flash_attn", "use auto, disabled, sdpa, fa2 or fa3");
    stw_reading_set(r, "attention", kind);
}

static void set_length(stw_reading *r) {
    const uint64_t length = stw_reading_count(r, "cutoff_len", 2048);
    const uint64_t micro = stw_reading_count(r, "per_device_train_batch_size", 8);
    stw_reading_set_count(r, "batch.seq_len", length);
    if (!stw_reading_is_set(r, "packing") && !stw_reading_is_set(r, "neat_packing") &&
        strcmp(stw_reading_text(r, "stage", "sft"), "pt") != 0)
        stw_reading_assume(r, "length of sequences", "cutoff_len",
                           "without packing they are as long as the data; an upper bound");
    if (!stw_reading_is_set(r, "enable_liger_kernel")) return;
    stw_reading_set(r, "loss.fused", "true");
    r->out->derived.loss_tokens = length * micro;
    stw_reading_assume(r, "liger's norms and SwiGLU", "torch's", "they keep less for backward");
}

static void read_all(stw_reading *r) {
    const char *stage = stw_reading_text(r, "stage", "sft");
    const char *tuner = stw_reading_text(r, "finetuning_type", "lora");
    if (strcmp(stage, "sft") != 0 && strcmp(stage, "pt") != 0)
        stw_reading_refuse(r, "stage", "only sft and pt are planned; use roles of a run file");
    if (strcmp(tuner, "full") != 0 && strcmp(tuner, "lora") != 0)
        stw_reading_refuse(r, "finetuning_type", "use full or lora");
    if (strncmp(stw_reading_text(r, "optim", "adamw_torch"), "adamw_torch", 11) != 0)
        stw_reading_refuse(r, "optim", "use adamw_torch");
    if (stw_reading_denies(stw_reading_text(r, "deepspeed", "none")))
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                                     "training without deepspeed: not implemented: state is "
                                     "replicated, or sharded by accelerate's file; use deepspeed: "
                                     "examples/deepspeed/ds_z2_config.json, or a run file"));
    /* refusals before what the dtype says: fp8, pure_bf16, quantization_bit */
    for (size_t i = 0; i < r->flags.n && r->status == STW_STATUS_OK; i++)
        if (strcmp(r->flags.items[i].value, "null") != 0)
            stw_reading_sort(r, &r->flags.items[i],
                             stw_flag_row_named(&stw_llamafactory_flags, r->flags.items[i].name));
    const char *dtype = r->status == STW_STATUS_OK ? dtype_of(r) : "bf16";
    if (r->status == STW_STATUS_OK) use_deepspeed(r, dtype);
    if (strcmp(tuner, "lora") == 0) set_lora(r);
    stw_reading_set(r, "recompute.granularity",
                    stw_reading_is_set(r, "disable_gradient_checkpointing") ? "none" : "full");
    set_attention(r);
    set_length(r);
}

stw_status stw_llamafactory_import(const char *text, size_t length, stw_import *out,
                                   stw_error *err) {
    stw_reading r = {.out = out, .err = err, .status = STW_STATUS_OK};
    out->dashes = "";
    stw_status status = stw_flags_parse_paths(out->path, text, length, out->pool, &r.flags, err);
    if (status != STW_STATUS_OK) return status;
    out->derived.text_only = true;
    out->model = stw_reading_text(&r, "model_name_or_path", NULL);
    read_all(&r);
    out->flags = r.flags;
    return r.status;
}

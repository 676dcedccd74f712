/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults are those of swift/arguments/, swift/trainers/arguments.py and
 * swift/megatron/arguments/megatron_args.py at 4.0.0; values of --deepspeed and --fsdp those of
 * swift/config/ there. All are the same at 4.6.0, which adds use_megatron_fsdp. */
#include "planner/frameworks/import/ms_swift.h"

#include <string.h>

#include "core/checked.h"
#include "planner/frameworks/import/deepspeed.h"
#include "planner/frameworks/import/deepspeed_file.h"
#include "planner/frameworks/import/launch.h"
#include "planner/frameworks/import/megatron.h"
#include "planner/frameworks/import/saves.h"
#include "planner/frameworks/import/torch.h"

/* ---- the command ---- */

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool is_stage(const char *text) {
    return strcmp(text, "sft") == 0 || strcmp(text, "pt") == 0 || strcmp(text, "rlhf") == 0;
}

/* @return index of the word after which flags begin; 0: no such command */
static size_t flags_begin(const stw_shell_word *words, size_t n, bool *megatron) {
    for (size_t i = 0; i < n; i++) {
        const char *text = words[i].text, *base = strrchr(text, '/');
        base = base != NULL ? base + 1 : text;
        *megatron = strcmp(base, "megatron") == 0;
        if (i + 1 < n && is_stage(words[i + 1].text) && (*megatron || strcmp(base, "swift") == 0))
            return i + 2;
        *megatron = strstr(text, "cli/_megatron/") != NULL;
        if (ends_with(text, "cli/sft.py") || ends_with(text, "cli/pt.py") ||
            ends_with(text, "cli/rlhf.py") || (*megatron && ends_with(text, ".py")))
            return i + 1;
    }
    return 0;
}

static bool is_wanted(const stw_shell_word *words, size_t n) {
    bool megatron;
    return flags_begin(words, n, &megatron) > 0;
}

/* ---- what both programs have ---- */

static const char *alias(stw_reading *r, const char *name, const char *older,
                         const char *fallback) {
    return stw_reading_text(r, name, stw_reading_text(r, older, fallback));
}

/* NPROC_PER_NODE (1 by default), NNODES; swift/cli/main.py. */
static void count_gpus(stw_reading *r, const stw_shell *shell) {
    static const char *const names[] = {"NPROC_PER_NODE", "NNODES"};
    uint64_t gpus = 1;
    for (size_t i = 0; i < 2; i++) {
        const char *text = stw_launch_value(r, shell, names[i], NULL);
        uint64_t n = 1;
        if (text == NULL) continue;
        if (!stw_reading_parse_count(text, &n) || n == 0 || n > 65536) {
            stw_reading_line(r, STW_IMPORT_NOT_MODELLED, names[i], text,
                             "no whole number; GPUs are the cluster's");
            return;
        }
        gpus *= n;
        if (i == 1) r->out->nodes = n;
        if (i == 1)
            r->out->nodes_name =
                stw_pool_printf(r->out->pool, "NNODES %llu", (unsigned long long)n);
        stw_reading_line(r, STW_IMPORT_TAKEN, names[i], text, "GPUs are the cluster's");
    }
    r->out->gpus = gpus;
}

/* qwen_vl_utils (vision_process.py): frames of a video, 768 at most unless told, are taken two by
 * two. */
static void set_video(stw_reading *r, const stw_shell *shell) {
    const char *pixels = stw_launch_value(r, shell, "VIDEO_MAX_PIXELS", NULL);
    const char *most = stw_launch_value(r, shell, "FPS_MAX_FRAMES", NULL);
    uint64_t each = 0, frames = 768;
    if (pixels == NULL || !stw_reading_parse_count(pixels, &each) || each == 0) return;
    if (most != NULL && !stw_reading_parse_count(most, &frames)) frames = 768;
    r->out->derived.pixels = stw_times(each, stw_div_up_u64(frames, 2));
    r->out->derived.pixels_name = "a video of VIDEO_MAX_PIXELS and FPS_MAX_FRAMES";
    stw_reading_line(r, STW_IMPORT_TAKEN, "VIDEO_MAX_PIXELS", pixels, "batch.image_tokens");
    if (most != NULL)
        stw_reading_line(r, STW_IMPORT_TAKEN, "FPS_MAX_FRAMES", most, "batch.image_tokens");
}

/* swift/model/models/qwen.py, compat_qwen_vl_utils: MAX_PIXELS becomes IMAGE_MAX_TOKEN_NUM, whose
 * default is qwen_vl_utils' (vision_process.py). Tower and merger are frozen unless told
 * (swift/arguments/tuner_args.py). */
static void set_images(stw_reading *r, const stw_shell *shell) {
    static const char *const names[] = {"IMAGE_MAX_TOKEN_NUM", "MAX_PIXELS"};
    stw_import_derived *derived = &r->out->derived;
    uint64_t *const values[] = {&derived->image_tokens, &derived->pixels};
    derived->sees = true;
    derived->freeze_vision = stw_reading_is_on(r, "freeze-vit", true);
    derived->freeze_projector = stw_reading_is_on(r, "freeze-aligner", true);
    derived->freeze_language = stw_reading_is_on(r, "freeze-llm", false);
    for (size_t i = 0; i < 2 && derived->pixels_name == NULL; i++) {
        const char *text = stw_launch_value(r, shell, names[i], NULL);
        uint64_t n = 0;
        if (text == NULL) continue;
        const bool known = stw_reading_parse_count(text, &n) && n > 0;
        if (known) *values[i] = n;
        if (known) derived->pixels_name = names[i];
        stw_reading_line(r, known ? STW_IMPORT_TAKEN : STW_IMPORT_NOT_MODELLED, names[i], text,
                         known ? "batch.image_tokens" : "no whole number; the default is planned");
    }
    if (derived->pixels_name == NULL) set_video(r, shell);
    const uint64_t pixels = stw_reading_count(r, "max-pixels", 0);
    if (pixels > 0 && (derived->pixels == 0 || pixels < derived->pixels) &&
        derived->image_tokens == 0) {
        derived->pixels = pixels;
        derived->pixels_name = "max_pixels";
    }
    if (derived->pixels_name != NULL) return;
    derived->image_tokens = 16384;
    derived->pixels_name = "the default of IMAGE_MAX_TOKEN_NUM, 16384,";
}

static void set_length(stw_reading *r) {
    const uint64_t length = stw_reading_count(r, "max-length", 0);
    if (length > 0) stw_reading_set_count(r, "batch.seq_len", length);
    if (!stw_reading_is_set(r, "packing") && length > 0)
        stw_reading_assume(r, "length of sequences", "max_length",
                           "without packing they are as long as the data; an upper bound");
    if (length == 0)
        stw_reading_assume_key(r, "max_length", "batch.seq_len",
                               "not in the file: as many as the model's positions; set it",
                               "batch.seq_len");
}

/* model_args.py, _init_mixed_precision: weights in fp32 are trained in fp16. @return bf16 or fp16
 */
static const char *dtype_of(stw_reading *r) {
    const char *text = stw_reading_text(r, "torch-dtype", NULL);
    if (text == NULL && stw_reading_is_set(r, "fp16")) return "fp16";
    if (text == NULL && !stw_reading_is_set(r, "bf16"))
        stw_reading_assume(r, "torch_dtype", "bfloat16", "the config's, as of most models");
    if (text == NULL || strcmp(text, "bfloat16") == 0) return "bf16";
    if (strcmp(text, "float32") == 0 && stw_reading_is_set(r, "bf16")) return "bf16";
    if (strcmp(text, "float16") == 0 || strcmp(text, "float32") == 0) return "fp16";
    stw_reading_refuse(r, "torch-dtype", "use bfloat16, float16 or float32");
    return "bf16";
}

static void set_lora(stw_reading *r) {
    const char *targets = stw_reading_text(r, "target-modules", "all-linear");
    stw_reading_set_count(r, "trainable.lora.rank", stw_reading_count(r, "lora-rank", 8));
    r->out->derived.all_linear = strcmp(targets, "all-linear") == 0;
    if (r->out->derived.all_linear) return;
    char *list = stw_pool_printf(r->out->pool, "[%s]", targets);
    for (char *c = list; c != NULL && *c != '\0'; c++)
        if (*c == ' ') *c = ',';
    stw_reading_set(r, "trainable.lora.targets", list != NULL ? list : "[]");
}

/* ---- swift ---- */

/* swift/config/zero*.json: what they have in common, then by stage. */
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
static const stw_flag_pair first_stages[] = {{"zero_optimization.reduce_bucket_size", "2e8"},
                                             {NULL, NULL}};
static const stw_flag_pair third_stage[] = {
    {"zero_optimization.reduce_bucket_size", "auto"},
    {"zero_optimization.sub_group_size", "1e9"},
    {"zero_optimization.stage3_prefetch_bucket_size", "auto"},
    {"zero_optimization.stage3_param_persistence_threshold", "auto"},
    {"zero_optimization.stage3_max_live_parameters", "1e9"},
    {"zero_optimization.stage3_max_reuse_distance", "1e9"},
    {NULL, NULL}};

/* transformers' default before torch 2.8; its step needs more than that of adamw_torch_fused, which
 * is the default since then (training_args.py at 4.57, default_optim). */
static const char *optimizer_of(const stw_reading *r) {
    return stw_reading_text(r, "optim", "adamw_torch");
}

static void set_implementation(stw_reading *r) {
    const bool fused = strcmp(optimizer_of(r), "adamw_torch_fused") == 0;
    stw_reading_set(r, "optimizer.implementation", fused ? "fused" : "foreach");
}

static void note_optimizer(stw_reading *r) {
    if (stw_flags_find(&r->flags, "optim") == NULL)
        stw_reading_assume(r, "optim", "adamw_torch",
                           "transformers' default before torch 2.8; since then it is "
                           "adamw_torch_fused, whose step needs no temporaries");
}

/* transformers (training_args.py): 16 sequences of an iteration in swift unless steps are given. */
static stw_trainer_arguments trainer_of(stw_reading *r, const char *dtype) {
    stw_trainer_arguments t = {
        .micro_batch = stw_reading_text(r, "per-device-train-batch-size", "1"),
        .accumulation = stw_reading_text(r, "gradient-accumulation-steps", NULL),
        .clip_norm = stw_reading_text(r, "max-grad-norm", "1.0"),
        .dtype = dtype,
        .given = true,
        .optim = optimizer_of(r),
    };
    const uint64_t micro = stw_reading_count(r, "per-device-train-batch-size", 1);
    (void)stw_reading_count(r, "gradient-accumulation-steps", 1);
    if (t.accumulation == NULL) {
        const uint64_t once = micro * (r->out->gpus > 0 ? r->out->gpus : 1);
        const uint64_t steps = once > 0 && once < 16 ? (16 + once - 1) / once : 1;
        t.accumulation = stw_pool_printf(r->out->pool, "%llu", (unsigned long long)steps);
        if (t.accumulation == NULL) t.accumulation = "1";
    }
    return t;
}

static void use_deepspeed(stw_reading *r, const char *name, const char *dtype) {
    static const char *const names[] = {"zero1", "zero2", "zero3", "zero2_offload",
                                        "zero3_offload"};
    stw_reading zeros = {.out = r->out, .err = r->err, .status = r->status};
    const stw_trainer_arguments trainer = trainer_of(r, dtype);
    bool known = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        known = known || strcmp(name, names[i]) == 0;
    const char *found = known ? NULL : stw_deepspeed_find(r->out, name);
    if (!known && found == NULL) {
        stw_reading_refuse(r, "deepspeed",
                           "use zero1, zero2, zero3, zero2_offload, zero3_offload, or the path of "
                           "a config; there is no such file beside this one or in its parents");
        return;
    }
    if (found != NULL) {
        stw_deepspeed_open(r, found, &zeros);
        if (r->status == STW_STATUS_OK) stw_deepspeed_read(&zeros, &trainer);
        stw_reading_fail(r, zeros.status);
        return;
    }
    const char *const offload = strstr(name, "_offload") != NULL ? "cpu" : "none";
    const char stage[2] = {name[4], '\0'};
    const stw_flag_pair own[] = {
        {"zero_optimization.stage", stw_pool_string(r->out->pool, stage)},
        {"zero_optimization.offload_optimizer.device", offload},
        {"zero_optimization.offload_param.device", stage[0] == '3' ? offload : "none"},
        {NULL, NULL}};
    zeros.flags.path = r->flags.path;
    zeros.flags.dashes = "";
    stw_reading_add_pairs(&zeros, zero);
    stw_reading_add_pairs(&zeros, own);
    stw_reading_add_pairs(&zeros, stage[0] == '3' ? third_stage : first_stages);
    if (zeros.status == STW_STATUS_OK) stw_deepspeed_read(&zeros, &trainer);
    stw_reading_fail(r, zeros.status);
}

/* swift/config/fsdp2.json; accelerate (utils/fsdp_utils.py, fsdp2_prepare_model) keeps parameters
 * in fp32, and computes and reduces in the mixed-precision dtype. */
static void use_fsdp(stw_reading *r, const char *name, const char *dtype) {
    const stw_trainer_arguments trainer = trainer_of(r, dtype);
    if (strcmp(name, "fsdp2") != 0) {
        stw_reading_refuse(r, "fsdp", "use fsdp2");
        return;
    }
    stw_reading_set(r, "engine", "fsdp2");
    stw_reading_set(r, "precision.params", "fp32");
    stw_reading_set(r, "precision.compute", dtype);
    stw_reading_set(r, "precision.reduce", dtype);
    stw_reading_set(r, "precision.grads", "fp32");
    stw_reading_set(r, "fsdp.reshard_after_forward", "true");
    stw_reading_set(r, "load.method", "rank0_broadcast");
    set_implementation(r);
    stw_reading_set(r, "batch.micro_batch", trainer.micro_batch);
    stw_reading_set(r, "batch.grad_accumulation", trainer.accumulation);
    stw_reading_set(r, "optimizer.clip_norm", trainer.clip_norm);
}

/* GPUs of CUDA_VISIBLE_DEVICES; 0: it does not name them one by one. */
static uint64_t visible_gpus(stw_reading *r, const stw_shell *shell) {
    bool known;
    const char *text = stw_launch_value(r, shell, "CUDA_VISIBLE_DEVICES", &known);
    uint64_t n = known && *text != '\0';
    for (; n > 0 && *text != '\0'; text++) n += *text == ',';
    return n;
}

/* One process with several GPUs gives each some of the layers (swift/model/register.py,
 * get_default_device_map: auto). */
static void refuse_device_map(stw_reading *r, uint64_t visible) {
    stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                                 "%llu GPUs of one process: not implemented: layers on several "
                                 "GPUs in turn; set NPROC_PER_NODE=%llu, or one GPU in "
                                 "CUDA_VISIBLE_DEVICES",
                                 (unsigned long long)visible, (unsigned long long)visible));
}

/* transformers' Trainer without a sharding engine. */
static void use_torch(stw_reading *r, const char *dtype, bool lora, uint64_t visible) {
    const stw_trainer_arguments trainer = trainer_of(r, dtype);
    const stw_plain_torch torch = {.trainer = &trainer,
                                   .lora = lora,
                                   .fused = strcmp(optimizer_of(r), "adamw_torch_fused") == 0,
                                   .gpus = r->out->gpus > 0 ? r->out->gpus : 1,
                                   .off = "deepspeed, fsdp"};
    const char *text = stw_reading_text(r, "torch-dtype", NULL);
    if (torch.gpus == 1 && visible > 1) refuse_device_map(r, visible);
    if (strcmp(dtype, "bf16") != 0 || (text != NULL && strcmp(text, "bfloat16") != 0))
        stw_reading_refuse(r, text != NULL ? "torch-dtype" : "fp16",
                           "use bfloat16 without --deepspeed and --fsdp");
    stw_torch_read(r, &torch);
}

static void set_attention(stw_reading *r) {
    const char *text = stw_reading_text(r, "attn-impl", "sdpa");
    const bool flash = strncmp(text, "flash", 5) == 0;
    if (!flash && strcmp(text, "sdpa") != 0 && strcmp(text, "eager") != 0)
        stw_reading_refuse(r, "attn-impl", "use flash_attn, sdpa or eager");
    stw_reading_set(r, "attention", flash ? "flash" : text);
}

/* Weights of tokens beside 0 and 1 (swift/loss_scale/mapping.py), with which the trainer makes the
 * loss of whole logits (trainers/seq2seq_trainer.py, compute_loss). */
static bool has_weights(const stw_reading *r) {
    static const char *const weights[] = {"react", "hermes", "qwen", "agentflan", "alpha_umi"};
    const char *text = stw_reading_text(r, "loss-scale", "default");
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        if (strstr(text, weights[i]) != NULL) return true;
    return false;
}

/* Liger's kernel takes the head's product and the loss together; its norms and SwiGLU keep less
 * than torch's, as which they are planned. */
static void set_loss(stw_reading *r) {
    if (!stw_reading_is_set(r, "use-liger-kernel")) return;
    if (has_weights(r)) {
        stw_reading_assume(r, "liger's loss", "torch's", "it knows no weights of loss_scale");
        return;
    }
    stw_reading_set(r, "loss.fused", "true");
    r->out->derived.loss_tokens = stw_reading_count(r, "per-device-train-batch-size", 1) *
                                  stw_reading_count(r, "max-length", 0);
    stw_reading_assume(r, "liger's norms and SwiGLU", "torch's", "they keep less for backward");
}

static void read_swift(stw_reading *r, uint64_t visible) {
    const char *tuner = alias(r, "tuner-type", "train-type", "lora");
    const char *deepspeed = stw_reading_text(r, "deepspeed", NULL);
    const char *fsdp = stw_reading_text(r, "fsdp", NULL), *dtype = dtype_of(r);
    const bool lora = strcmp(tuner, "lora") == 0;
    const char *optimizer = optimizer_of(r);
    note_optimizer(r);
    if (deepspeed != NULL)
        use_deepspeed(r, deepspeed, dtype);
    else if (fsdp != NULL)
        use_fsdp(r, fsdp, dtype);
    else
        use_torch(r, dtype, lora, visible);
    if (strcmp(optimizer, "adamw_torch") != 0 && strcmp(optimizer, "adamw_torch_fused") != 0)
        stw_reading_refuse(r, "optim", "use adamw_torch or adamw_torch_fused");
    if (!lora && strcmp(tuner, "full") != 0)
        stw_reading_refuse(r, stw_flags_find(&r->flags, "tuner-type") ? "tuner-type" : "train-type",
                           "use full or lora");
    if (stw_reading_count(r, "sequence-parallel-size", 1) > 1)
        stw_reading_refuse(r, "sequence-parallel-size", "use 1, or `megatron sft`");
    if (lora) set_lora(r);
    /* fsdp2.json has activation_checkpointing, whatever --gradient_checkpointing says */
    stw_reading_set(r, "recompute.granularity",
                    (deepspeed == NULL && fsdp != NULL) ||
                            stw_flags_find(&r->flags, "gradient-checkpointing") == NULL ||
                            stw_reading_is_set(r, "gradient-checkpointing")
                        ? "full"
                        : "none");
    set_attention(r);
    set_loss(r);
    stw_hf_set_saves(r, true,
                     deepspeed != NULL ? STW_HF_DEEPSPEED
                     : fsdp != NULL    ? STW_HF_FSDP
                                       : STW_HF_TORCH,
                     lora);
    for (size_t i = 0; i < r->flags.n && r->status == STW_STATUS_OK; i++)
        stw_reading_sort(r, &r->flags.items[i],
                         stw_flag_row_named(&stw_ms_swift_flags, r->flags.items[i].name));
}

/* ---- megatron ---- */

static void rename_flag(stw_reading *r, const char *from, const char *to) {
    for (size_t i = 0; i < r->flags.n; i++)
        if (strcmp(r->flags.items[i].name, from) == 0) r->flags.items[i].name = to;
}

static void turn_off(stw_reading *r, const char *name) {
    for (size_t i = 0; i < r->flags.n; i++)
        if (strcmp(r->flags.items[i].name, name) == 0) r->flags.items[i].value = "false";
}

/* megatron_args.py, where it differs from Megatron-LM; "seq-length" is what a packed sequence has.
 */
static void add_defaults(stw_reading *r, const char *dtype) {
    const stw_flag_pair defaults[] = {{strcmp(dtype, "fp16") == 0 ? "fp16" : "bf16", "true"},
                                      {"micro-batch-size", "1"},
                                      {"global-batch-size", "16"},
                                      {"recompute-granularity", "selective"},
                                      {"attention-backend", "flash"},
                                      {"cross-entropy-loss-fusion", "true"},
                                      {"use-distributed-optimizer", "true"},
                                      {"expert-tensor-parallel-size", "1"},
                                      {"moe-token-dispatcher-type", "alltoall"},
                                      {"moe-grouped-gemm", "true"},
                                      {"data-parallel-sharding-strategy", "optim_grads_params"},
                                      {"hidden-dropout", "0"},
                                      {"attention-dropout", "0"},
                                      {"transformer-impl", "transformer_engine"},
                                      {"seq-length", stw_reading_text(r, "max-length", NULL)}};
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        if (defaults[i].value != NULL && stw_flags_find(&r->flags, defaults[i].name) == NULL)
            stw_reading_fail(r, stw_flags_add(&r->flags, r->out->pool, defaults[i].name,
                                              defaults[i].value, 0, r->err));
}

/* Weights are given as a model (mcore_bridge), or as a converted checkpoint named after it. */
static void name_model(stw_reading *r) {
    static const char *const names[] = {"model", "mcore-model", "load"};
    for (size_t i = 0; i < 3 && r->out->model == NULL; i++)
        r->out->model = stw_reading_text(r, names[i], NULL);
}

/* megatron_args.py; swift/megatron/utils/utils.py, get_target_modules. */
static void set_products(stw_reading *r) {
    char *list =
        stw_pool_printf(r->out->pool, "%s", stw_reading_text(r, "target-modules", "all-linear"));
    for (char *c = list; c != NULL && *c != '\0'; c++)
        if (*c == ' ') *c = ',';
    if (list != NULL && (strstr(list, "all-router") != NULL || strstr(list, "all-embedding")))
        stw_reading_refuse(r, "target-modules", "use all-linear or names as linear_qkv");
    r->out->derived.products = list;
    stw_reading_set_count(r, "trainable.lora.rank", stw_reading_count(r, "lora-rank", 8));
    stw_reading_set(r, "megatron.lora_dropout", stw_reading_text(r, "lora-dropout", "0.05"));
}

static void read_megatron(stw_reading *r) {
    const char *tuner = alias(r, "tuner-type", "train-type", "full"), *dtype = dtype_of(r);
    const bool lora = strcmp(tuner, "lora") == 0;
    if (!lora && strcmp(tuner, "full") != 0)
        stw_reading_refuse(r, stw_flags_find(&r->flags, "tuner-type") ? "tuner-type" : "train-type",
                           "use full or lora");
    if (lora) set_products(r);
    if (lora && stw_reading_is_on(r, "moe-shared-expert-overlap", false)) {
        turn_off(r, "moe-shared-expert-overlap");
        stw_reading_assume(r, "moe_shared_expert_overlap", "false",
                           "shared experts with adapters are planned one after the others");
    }
    r->out->derived.grouped_gemm = stw_reading_is_on(r, "moe-grouped-gemm", true);
    rename_flag(r, "microbatch-group-size-per-vp-stage",
                "microbatch-group-size-per-virtual-pipeline-stage");
    rename_flag(r, "virtual-pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank");
    add_defaults(r, dtype);
    if (r->status == STW_STATUS_OK) stw_megatron_read(r, &stw_ms_swift_megatron_flags);
    if (r->status == STW_STATUS_OK) stw_ms_swift_megatron_set_saves(r, lora);
}

stw_status stw_ms_swift_import(const char *text, size_t length, stw_import *out, stw_error *err) {
    stw_reading r = {.out = out, .err = err, .status = STW_STATUS_OK};
    stw_shell shell;
    bool megatron;
    stw_status status = stw_launch_find(out, text, length, is_wanted, &shell, err);
    if (status != STW_STATUS_OK) return status;
    if (shell.n_found == 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, out->path,
                        "found no command `swift sft|pt` or `megatron sft|pt` with its flags");
    r.flags.path = out->path;
    const size_t begin = flags_begin(shell.words, shell.n_words, &megatron);
    stw_launch_read_flags(&r, &shell, begin, megatron ? &stw_megatron_flags : &stw_ms_swift_flags,
                          false);
    stw_launch_check_found(&r, &shell);
    if (strstr(shell.words[begin - 1].text, "rlhf") != NULL && r.status == STW_STATUS_OK)
        return stw_fail_at(err, STW_STATUS_NOT_BUILT_IN, out->path, shell.words[begin - 1].line, 1,
                           "rlhf: not implemented: only sft and pt are planned; use roles of a run "
                           "file");
    count_gpus(&r, &shell);
    stw_launch_read_allocator(&r, &shell);
    stw_launch_keep_environment(&r, &shell);
    set_length(&r);
    set_images(&r, &shell);
    name_model(&r);
    if (megatron)
        read_megatron(&r);
    else if (r.status == STW_STATUS_OK)
        read_swift(&r, visible_gpus(&r, &shell));
    out->flags = r.flags;
    return r.status;
}

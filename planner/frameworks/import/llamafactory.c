/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults are those of src/llamafactory/hparams/ at 0.9.5 and of transformers' TrainingArguments;
 * files that deepspeed names are those of examples/deepspeed/ there. */
#include "planner/frameworks/import/llamafactory.h"

#include <string.h>

#include "planner/frameworks/import/deepspeed_file.h"
#include "planner/frameworks/import/ray.h"
#include "planner/frameworks/import/saves.h"
#include "planner/frameworks/import/torch.h"

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

/* transformers (training_args.py). */
static stw_trainer_arguments trainer_of(stw_reading *r, const char *dtype) {
    return (stw_trainer_arguments){
        .micro_batch = stw_reading_text(r, "per_device_train_batch_size", "8"),
        .accumulation = stw_reading_text(r, "gradient_accumulation_steps", "1"),
        .clip_norm = stw_reading_text(r, "max_grad_norm", "1.0"),
        .dtype = dtype,
        .given = true,
        .optim = stw_reading_text(r, "optim", "adamw_torch"),
    };
}

/* A config that LLaMA-Factory ships: its stage, 0: it is none that is known here. */
static uint64_t shipped(const char *path, bool *offload) {
    static const char *const names[] = {
        "ds_z2",         "ds_z2_config",         "ds_z3",         "ds_z3_config",
        "ds_z2_offload", "ds_z2_offload_config", "ds_z3_offload", "ds_z3_offload_config"};
    const char *base = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    const size_t length = strlen(base);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t n = strlen(names[i]);
        if (length != n + 5 || strncmp(base, names[i], n) != 0 || strcmp(base + n, ".json") != 0)
            continue;
        *offload = strstr(base, "offload") != NULL;
        return base[4] == '2' ? 2 : 3;
    }
    return 0;
}

static void add_shipped(stw_reading *zeros, uint64_t stage, bool offload) {
    const char *const device = offload ? "cpu" : "none";
    const stw_flag_pair own[] = {
        {"zero_optimization.stage", stage == 2 ? "2" : "3"},
        {"zero_optimization.offload_optimizer.device", device},
        {"zero_optimization.offload_param.device", stage == 2 ? "none" : device},
        {NULL, NULL}};
    zeros->flags.dashes = "";
    stw_reading_add_pairs(zeros, zero);
    stw_reading_add_pairs(zeros, own);
    stw_reading_add_pairs(zeros, stage == 2 ? second_stage : third_stage);
}

/* Paths are relative to the folder in which the trainer is started, often the repository's. */
static void use_deepspeed(stw_reading *r, const char *dtype) {
    const char *path = stw_reading_text(r, "deepspeed", "");
    const char *found = stw_deepspeed_find(r->out, path);
    const stw_trainer_arguments trainer = trainer_of(r, dtype);
    stw_reading zeros = {.out = r->out, .err = r->err, .status = r->status};
    bool offload = false;
    const uint64_t stage = found == NULL ? shipped(path, &offload) : 0;
    zeros.flags.path = r->flags.path;
    if (found == NULL && stage == 0) {
        stw_reading_refuse(r, "deepspeed",
                           "no such file beside this one, in its parents or here; name one, or one "
                           "of LLaMA-Factory's (ds_z2_config.json, ds_z3_config.json, with "
                           "_offload)");
        return;
    }
    if (found != NULL) {
        stw_deepspeed_open(r, found, &zeros);
    } else {
        add_shipped(&zeros, stage, offload);
        stw_reading_assume(r, "contents of deepspeed", path,
                           "no such file here; as LLaMA-Factory ships the one of this name");
    }
    if (r->status == STW_STATUS_OK && zeros.status == STW_STATUS_OK)
        stw_deepspeed_read(&zeros, &trainer);
    stw_reading_fail(r, zeros.status);
}

/* adapter.py, init_adapter: what is trained is in fp32 unless pure_bf16 says otherwise. */
static void use_torch(stw_reading *r, const char *dtype, bool lora) {
    const stw_trainer_arguments trainer = trainer_of(r, dtype);
    const stw_plain_torch torch = {.trainer = &trainer,
                                   .lora = lora,
                                   .wide = !stw_reading_is_set(r, "pure_bf16"),
                                   .fused = strcmp(trainer.optim, "adamw_torch_fused") == 0,
                                   .off = "deepspeed"};
    if (strcmp(dtype, "bf16") != 0) stw_reading_refuse(r, "fp16", "use bf16 without deepspeed");
    stw_torch_read(r, &torch);
}

/* @return bf16 or fp16 */
static const char *dtype_of(stw_reading *r) {
    if (stw_reading_is_set(r, "fp16")) return "fp16";
    if (!stw_reading_is_set(r, "bf16") && !stw_reading_is_set(r, "pure_bf16"))
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                                     "training in fp32: not implemented: use bf16: true"));
    return "bf16";
}

/* "all", or names separated by commas. */
static void set_lora(stw_reading *r) {
    const char *targets = stw_reading_text(r, "lora_target", "all");
    stw_reading_set_count(r, "trainable.lora.rank", stw_reading_count(r, "lora_rank", 8));
    r->out->derived.all_linear = strcmp(targets, "all") == 0 || strcmp(targets, "all-linear") == 0;
    if (r->out->derived.all_linear) return;
    char *list = stw_pool_printf(r->out->pool, "[%s]", targets), *to = list;
    for (char *c = list; c != NULL && *c != '\0'; c++)
        if (*c != ' ') *to++ = *c;
    if (to != NULL) *to = '\0';
    stw_reading_set(r, "trainable.lora.targets", list != NULL ? list : "[]");
}

/* hparams/model_args.py and finetuning_args.py: an image has at most 768 x 768 pixels, tower and
 * projector are frozen. */
static void set_images(stw_reading *r) {
    stw_import_derived *derived = &r->out->derived;
    derived->sees = true;
    derived->pixels = stw_reading_count(r, "image_max_pixels", 768 * 768);
    derived->pixels_name = "image_max_pixels";
    derived->freeze_vision = stw_reading_is_on(r, "freeze_vision_tower", true);
    derived->freeze_projector = stw_reading_is_on(r, "freeze_multi_modal_projector", true);
    derived->freeze_language = stw_reading_is_on(r, "freeze_language_model", false);
}

/* model_utils/attention.py: auto leaves the choice to transformers, which takes sdpa. */
static void set_attention(stw_reading *r) {
    const char *text = stw_reading_text(r, "flash_attn", "auto");
    const char *kind = strcmp(text, "disabled") == 0 ? "eager" : "sdpa";
    if (strncmp(text, "fa", 2) == 0) kind = strcmp(text, "fa3") == 0 ? "flash3" : "flash";
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

/* train/tuner.py, _ray_training: as many GPUs as workers; USE_RAY in the environment chooses it. */
static void use_ray(stw_reading *r) {
    const uint64_t workers = stw_reading_count(r, "ray_num_workers", 0);
    if (workers == 0) return;
    r->out->gpus = workers;
    if (r->out->scheduler != NULL) return;
    stw_reading_assume(r, "USE_RAY", "1", "the file says how many workers Ray has");
    stw_reading_ray(r, NULL);
}

static void read_all(stw_reading *r) {
    const bool trains = stw_reading_is_on(r, "do_train", true);
    if (!trains || (stw_flags_find(&r->flags, "do_train") == NULL &&
                    stw_reading_is_on(r, "do_predict", false)))
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                                     "do_train false: not implemented: only training is planned"));
    const char *stage = stw_reading_text(r, "stage", "sft");
    const char *tuner = stw_reading_text(r, "finetuning_type", "lora");
    if (strcmp(stage, "sft") != 0 && strcmp(stage, "pt") != 0)
        stw_reading_refuse(r, "stage", "only sft and pt are planned; use roles of a run file");
    if (strcmp(tuner, "full") != 0 && strcmp(tuner, "lora") != 0)
        stw_reading_refuse(r, "finetuning_type", "use full or lora");
    const char *optim = stw_reading_text(r, "optim", "adamw_torch");
    if (strcmp(optim, "adamw_torch") != 0 && strcmp(optim, "adamw_torch_fused") != 0)
        stw_reading_refuse(r, "optim", "use adamw_torch or adamw_torch_fused");
    const bool sharded = !stw_reading_denies(stw_reading_text(r, "deepspeed", "none"));
    if (sharded && stw_reading_is_set(r, "pure_bf16"))
        stw_reading_refuse(r, "pure_bf16", "use bf16");
    /* refusals before what the dtype says: fp8, pure_bf16, quantization_bit */
    for (size_t i = 0; i < r->flags.n && r->status == STW_STATUS_OK; i++)
        if (strcmp(r->flags.items[i].value, "null") != 0)
            stw_reading_sort(r, &r->flags.items[i],
                             stw_flag_row_named(&stw_llamafactory_flags, r->flags.items[i].name));
    const char *dtype = r->status == STW_STATUS_OK ? dtype_of(r) : "bf16";
    if (r->status == STW_STATUS_OK && sharded) use_deepspeed(r, dtype);
    if (r->status == STW_STATUS_OK && !sharded) use_torch(r, dtype, strcmp(tuner, "lora") == 0);
    if (strcmp(tuner, "lora") == 0) set_lora(r);
    if (r->status == STW_STATUS_OK) set_images(r);
    stw_reading_set(r, "recompute.granularity",
                    stw_reading_is_set(r, "disable_gradient_checkpointing") ? "none" : "full");
    set_attention(r);
    set_length(r);
    stw_hf_set_saves(r, false, sharded ? STW_HF_DEEPSPEED : STW_HF_TORCH,
                     strcmp(tuner, "lora") == 0);
}

stw_status stw_llamafactory_import(const char *text, size_t length, stw_import *out,
                                   stw_error *err) {
    stw_reading r = {.out = out, .err = err, .status = STW_STATUS_OK};
    out->dashes = "";
    if (stw_llamafactory_is_script(out->path))
        stw_llamafactory_read_script(&r, text, length);
    else
        r.status = stw_flags_parse_paths(out->path, text, length, out->pool, &r.flags, err);
    if (r.status != STW_STATUS_OK) return r.status;
    use_ray(&r);
    out->model = stw_reading_text(&r, "model_name_or_path", NULL);
    read_all(&r);
    out->flags = r.flags;
    return r.status;
}

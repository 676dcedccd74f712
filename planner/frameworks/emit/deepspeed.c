/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's config, and scripts and files that name one: the inverse of deepspeed.c, ms_swift.c
 * and llamafactory.c. */
#include <string.h>

#include "core/checked.h"
#include "plan/spec/registry.h"
#include "planner/frameworks/emit/emission.h"

#define ZERO "zero_optimization."

static const char *clip(stw_emission *e) {
    const char *text = stw_emit_text(e, "optimizer.clip_norm");
    return text != NULL ? text : "0";
}

static bool has_engine(const stw_emission *e, const char *name) {
    return strcmp(stw_run_spec_engine(&e->plan->run)->name, name) == 0;
}

static void put_third_stage(stw_emission *e, bool third) {
    static const char *const sizes[][2] = {
        {ZERO "sub_group_size", "deepspeed.sub_group_size"},
        {ZERO "stage3_prefetch_bucket_size", "deepspeed.prefetch_bucket"},
        {ZERO "stage3_param_persistence_threshold", "deepspeed.persistence_threshold"},
        {ZERO "stage3_max_live_parameters", "deepspeed.max_live_parameters"},
        {ZERO "stage3_max_reuse_distance", "deepspeed.max_reuse_distance"},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        stw_emit_put(e, sizes[i][0], third ? stw_emit_text(e, sizes[i][1]) : NULL);
}

/* A device and where it writes; the path of a file stays. @return is it NVMe? */
static bool put_device(stw_emission *e, const char *key, const char *device, const char *path) {
    const char *name = stw_emit_text(e, key);
    const bool nvme = name != NULL && strcmp(name, "nvme") == 0;
    const stw_emit_flag *own = stw_emit_find(e, path);
    stw_emit_put(e, device, name != NULL ? name : "none");
    if (!nvme) {
        stw_emit_put(e, path, NULL);
    } else if (own == NULL || own->value == NULL) {
        stw_emit_put(e, path, "/local_nvme");
        stw_text_printf(&e->notes, "%s: /local_nvme is assumed; set the folder on NVMe\n", path);
    }
    return nvme;
}

/* Sizes and switches of what lies on NVMe; without NVMe there are none. */
static void put_nvme(stw_emission *e, bool optimizer, bool params) {
    const struct {
        const char *name, *key;
        bool used;
    } keys[] = {
        {ZERO "offload_optimizer.buffer_count", "deepspeed.optimizer_buffer_count", optimizer},
        {ZERO "offload_optimizer.pipeline_read", "deepspeed.pipeline_read", optimizer},
        {ZERO "offload_optimizer.pipeline_write", "deepspeed.pipeline_write", optimizer},
        {ZERO "offload_param.buffer_count", "deepspeed.param_buffer_count", params},
        {ZERO "offload_param.buffer_size", "deepspeed.param_buffer_size", params},
        {ZERO "offload_param.max_in_cpu", "deepspeed.max_in_cpu", params},
        {"aio.intra_op_parallelism", "deepspeed.aio_intra_op_parallelism", optimizer || params}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        stw_emit_put(e, keys[i].name, keys[i].used ? stw_emit_text(e, keys[i].key) : NULL);
    if (optimizer || params)
        stw_emit_put_count(e, "aio.block_size", stw_emit_count(e, "deepspeed.aio_block_size"));
    else
        stw_emit_put(e, "aio.block_size", NULL);
}

static void put_offload(stw_emission *e, bool third) {
    static const char optimizer[] = ZERO "offload_optimizer.device";
    static const char params[] = ZERO "offload_param.device";
    const bool pinned = stw_emit_on(e, "deepspeed.pin_memory");
    const char *ratio = stw_emit_text(e, "deepspeed.ratio");
    const bool all = ratio == NULL || strcmp(ratio, "1") == 0;
    const bool of_optimizer =
        put_device(e, "deepspeed.offload_optimizer", optimizer, ZERO "offload_optimizer.nvme_path");
    bool of_params = false;
    stw_emit_put_switch(e, ZERO "offload_optimizer.pin_memory", pinned);
    stw_emit_put(e, ZERO "offload_optimizer.ratio", all ? NULL : ratio);
    if (third) {
        of_params =
            put_device(e, "deepspeed.offload_param", params, ZERO "offload_param.nvme_path");
        stw_emit_put_switch(e, ZERO "offload_param.pin_memory", pinned);
    } else {
        stw_emit_put(e, params, NULL);
        stw_emit_put(e, ZERO "offload_param.nvme_path", NULL);
        stw_emit_put(e, ZERO "offload_param.pin_memory", NULL);
    }
    put_nvme(e, of_optimizer, of_params);
}

/* runtime/config.py, _batch_assertion: all three agree. DeepSpeed makes train_batch_size of the
 * others where a file has none. */
static void put_batch(stw_emission *e) {
    const stw_run_spec *run = &e->plan->run;
    const stw_emit_flag *own = stw_emit_find(e, "train_batch_size");
    if (own != NULL && own->value != NULL)
        stw_emit_put_count(
            e, own->name,
            stw_times(stw_times(run->batch.micro_batch, run->batch.grad_accumulation),
                      stw_emit_ranks(e)));
    stw_emit_put_count(e, "train_micro_batch_size_per_gpu", run->batch.micro_batch);
    stw_emit_put_count(e, "gradient_accumulation_steps", run->batch.grad_accumulation);
}

void stw_emit_deepspeed(stw_emission *e) {
    const bool third = stw_emit_count(e, "deepspeed.zero_stage") == 3;
    const char *type = stw_emit_text(e, "precision.params");
    const char *grads = stw_emit_text(e, "precision.grads");
    const char *reduce = stw_emit_text(e, "precision.reduce");
    stw_emit_put_count(e, ZERO "stage", stw_emit_count(e, "deepspeed.zero_stage"));
    put_offload(e, third);
    if (!third)
        stw_emit_put_switch(e, ZERO "overlap_comm", stw_emit_on(e, "deepspeed.overlap_comm"));
    stw_emit_put(e, ZERO "reduce_bucket_size", stw_emit_text(e, "deepspeed.reduce_bucket"));
    put_third_stage(e, third);
    stw_emit_put_switch(e, "bf16.enabled", type != NULL && strcmp(type, "bf16") == 0);
    stw_emit_put_switch(e, "fp16.enabled", type != NULL && strcmp(type, "fp16") == 0);
    stw_emit_put(e, "bfloat16.enabled", NULL);
    const bool same = type != NULL && grads != NULL && strcmp(type, grads) == 0;
    stw_emit_put(e, "data_types.grad_accum_dtype", same ? NULL : grads);
    stw_emit_put(e, "communication_data_type",
                 type != NULL && reduce != NULL && strcmp(type, reduce) == 0 ? NULL : reduce);
    stw_emit_put(e, "gradient_clipping", clip(e));
    put_batch(e);
}

/* ---- ms-swift ---- */

static const char *zero_name(stw_emission *e) {
    static const char *const names[][2] = {
        {"zero1", "zero1_offload"}, {"zero2", "zero2_offload"}, {"zero3", "zero3_offload"}};
    const uint64_t stage = stw_emit_count(e, "deepspeed.zero_stage");
    const bool offload = stw_emit_has(e, "deepspeed.offload_optimizer", "cpu");
    return names[stage > 0 && stage <= 3 ? stage - 1 : 2][offload && stage > 1];
}

static void put_tuner(stw_emission *e, const char *type, const char *rank, const char *targets,
                      const char *between) {
    const uint64_t r = e->plan->run.trainable.lora_rank;
    const char *list = stw_emit_list(e, stw_emit_text(e, "trainable.lora.targets"), between);
    stw_emit_put(e, type, r > 0 ? "lora" : "full");
    stw_emit_put(e, rank, NULL);
    if (r > 0) stw_emit_put_count(e, rank, r);
    stw_emit_put(e, targets, r > 0 ? list : NULL);
}

/* torch without a sharding engine: ms_swift.c, use_torch. */
static bool is_plain_torch(const stw_emission *e) {
    return has_engine(e, "fsdp2") && e->plan->run.parallel.dp_shard == 1 &&
           e->plan->run.precision.params != STW_DTYPE_F32;
}

static void put_swift(stw_emission *e) {
    const bool deepspeed = has_engine(e, "deepspeed"), plain = is_plain_torch(e);
    const bool foreach = stw_emit_has(e, "optimizer.implementation", "foreach");
    const char *recompute = stw_emit_recompute(e), *attention = stw_emit_text(e, "attention");
    stw_emit_put(e, "sft-type", NULL);
    stw_emit_put(e, "train-type", NULL);
    put_tuner(e, "tuner-type", "lora-rank", "target-modules", " ");
    stw_emit_put_pixels(e, "max-pixels", 16384, 0);
    stw_emit_put(e, "deepspeed", deepspeed ? zero_name(e) : NULL);
    stw_emit_put(e, "fsdp", deepspeed || plain ? NULL : "fsdp2");
    if (!stw_emit_has(e, "deepspeed.offload_optimizer", "cpu"))
        stw_emit_put(e, "optim", foreach ? "adamw_torch" : "adamw_torch_fused");
    stw_emit_put(e, "bf16", NULL);
    stw_emit_put(e, "fp16", NULL);
    stw_emit_put(e, "torch-dtype",
                 stw_emit_has(e, "precision.compute", "fp16") ? "float16" : "bfloat16");
    stw_emit_put_count(e, "per-device-train-batch-size", e->plan->run.batch.micro_batch);
    stw_emit_put_count(e, "gradient-accumulation-steps", e->plan->run.batch.grad_accumulation);
    stw_emit_put(e, "max-grad-norm", clip(e));
    stw_emit_put_switch(e, "gradient-checkpointing", strcmp(recompute, "none") != 0);
    if (attention != NULL)
        stw_emit_put(e, "attn-impl", strcmp(attention, "flash") == 0 ? "flash_attn" : attention);
    stw_emit_put_switch(e, "use-liger-kernel", stw_emit_on(e, "loss.fused"));
    stw_emit_put_hf_saves(e, true);
}

void stw_emit_ms_swift(stw_emission *e) {
    e->allocator = stw_emit_allocator(e);
    if (e->import == NULL) stw_emit_put(e, "model", e->plan->model->name);
    stw_emit_put_count(e, "max-length", e->plan->run.batch.seq_len);
    if (!has_engine(e, "megatron")) {
        put_swift(e);
        return;
    }
    const uint64_t rank = e->plan->run.trainable.lora_rank;
    stw_emit_megatron(e);
    stw_emit_put(e, "seq-length", NULL);
    stw_emit_put(e, "sft-type", NULL);
    stw_emit_put(e, "train-type", NULL);
    stw_emit_put(e, "tuner-type", rank > 0 ? "lora" : "full");
    stw_emit_put(e, "lora-rank", NULL);
    if (rank > 0) stw_emit_put_count(e, "lora-rank", rank);
    stw_emit_put(e, "lora-dropout", rank > 0 ? stw_emit_text(e, "megatron.lora_dropout") : NULL);
    stw_emit_put(e, "torch-dtype",
                 stw_emit_has(e, "precision.params", "fp16") ? "float16" : "bfloat16");
    static const char *const fixed[] = {"bf16", "fp16", "transformer-impl", "hidden-dropout",
                                        "attention-dropout"};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) stw_emit_put(e, fixed[i], NULL);
    if (strcmp(stw_emit_recompute(e), "none") == 0)
        stw_emit_put(e, "recompute-granularity", "none"); /* selective by default */
    stw_emit_put_megatron_swift_saves(e);
}

/* ---- LLaMA-Factory ---- */

static bool all_linear(stw_emission *e) {
    const stw_strings *targets = &e->plan->run.trainable.lora_targets;
    return targets->n == 1 && strcmp(targets->items[0], "all-linear") == 0;
}

void stw_emit_llamafactory(stw_emission *e) {
    const bool third = stw_emit_count(e, "deepspeed.zero_stage") == 3;
    const bool offload = stw_emit_has(e, "deepspeed.offload_optimizer", "cpu");
    const char *attention = stw_emit_text(e, "attention");
    const char *file =
        third ? "examples/deepspeed/ds_z3_config.json" : "examples/deepspeed/ds_z2_config.json";
    if (offload)
        file = third ? "examples/deepspeed/ds_z3_offload_config.json"
                     : "examples/deepspeed/ds_z2_offload_config.json";
    if (e->import == NULL) stw_emit_put(e, "model_name_or_path", e->plan->model->name);
    if (e->import == NULL) stw_emit_put(e, "stage", "sft");
    const bool sharded = has_engine(e, "deepspeed");
    const bool narrow = !sharded && stw_emit_has(e, "precision.grads", "bf16");
    if (!sharded && e->plan->run.parallel.dp_shard != 1) {
        e->status = stw_fail(e->err, STW_STATUS_USAGE, "--emit",
                             "llamafactory has no settings for FSDP2's shards, which accelerate's "
                             "files have; use --set engine=deepspeed");
        return;
    }
    put_tuner(e, "finetuning_type", "lora_rank", "lora_target", ",");
    stw_emit_put_pixels(e, "image_max_pixels", 0, 768 * 768);
    if (all_linear(e)) stw_emit_put(e, "lora_target", "all");
    stw_emit_put(e, "deepspeed", sharded ? file : NULL);
    if (!offload)
        stw_emit_put(e, "optim",
                     stw_emit_has(e, "optimizer.implementation", "foreach") ? "adamw_torch"
                                                                            : "adamw_torch_fused");
    stw_emit_put_count(e, "cutoff_len", e->plan->run.batch.seq_len);
    stw_emit_put_count(e, "per_device_train_batch_size", e->plan->run.batch.micro_batch);
    stw_emit_put_count(e, "gradient_accumulation_steps", e->plan->run.batch.grad_accumulation);
    stw_emit_put(e, "max_grad_norm", clip(e));
    stw_emit_put_switch(e, "bf16", !narrow && stw_emit_has(e, "precision.compute", "bf16"));
    stw_emit_put_switch(e, "fp16", stw_emit_has(e, "precision.compute", "fp16"));
    stw_emit_put(e, "pure_bf16", narrow ? "true" : NULL);
    stw_emit_put_switch(e, "disable_gradient_checkpointing",
                        strcmp(stw_emit_recompute(e), "none") == 0);
    stw_emit_put_switch(e, "enable_liger_kernel", stw_emit_on(e, "loss.fused"));
    stw_emit_put_hf_saves(e, false);
    if (attention == NULL) return;
    if (strcmp(attention, "flash") == 0) attention = "fa2";
    if (strcmp(attention, "flash3") == 0) attention = "fa3";
    stw_emit_put(e, "flash_attn", strcmp(attention, "eager") == 0 ? "disabled" : attention);
}

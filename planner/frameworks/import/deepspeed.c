/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/deepspeed.h"

#include <stdlib.h>
#include <string.h>

#define ROW(name, use, type, key, harmless, note)                                                  \
    { name, STW_FLAG_##use, STW_FLAG_##type, key, harmless, note }
#define READ(name) ROW(name, READ, TEXT, NULL, NULL, NULL)
#define IDLE(name) ROW(name, IDLE, TEXT, NULL, NULL, NULL)
#define LISTED(name, harmless, note) ROW(name, LISTED, TEXT, NULL, harmless, note)
#define REFUSED(name, harmless, note) ROW(name, REFUSED, TEXT, NULL, harmless, note)
#define ZERO "zero_optimization."

static const stw_flag_row rows[] = {
    READ(ZERO "stage"),
    READ(ZERO "offload_optimizer.device"),
    READ(ZERO "offload_optimizer.pin_memory"),
    READ(ZERO "offload_optimizer.ratio"),
    READ(ZERO "offload_optimizer.buffer_count"),
    READ(ZERO "offload_optimizer.pipeline_read"),
    READ(ZERO "offload_optimizer.pipeline_write"),
    REFUSED(ZERO "offload_optimizer.super_offload", "false", "omit it"),
    IDLE(ZERO "offload_optimizer.*"), /* fast_init is of initialization */
    READ(ZERO "offload_param.device"),
    READ(ZERO "offload_param.pin_memory"),
    READ(ZERO "offload_param.buffer_count"),
    READ(ZERO "offload_param.buffer_size"),
    READ(ZERO "offload_param.max_in_cpu"),
    IDLE(ZERO "offload_param.*"),
    REFUSED(ZERO "cpu_offload*", "false", "use offload_optimizer, offload_param"),
    READ(ZERO "overlap_comm"),
    READ(ZERO "reduce_bucket_size"),
    IDLE(ZERO "allgather_partitions"),
    IDLE(ZERO "allgather_bucket_size"), /* gathered in place */
    IDLE(ZERO "reduce_scatter"),
    LISTED(ZERO "contiguous_gradients", "true", "planned contiguous"),
    READ(ZERO "sub_group_size"),
    READ(ZERO "stage3_prefetch_bucket_size"),
    READ(ZERO "stage3_param_persistence_threshold"),
    READ(ZERO "stage3_max_live_parameters"),
    READ(ZERO "stage3_max_reuse_distance"),
    LISTED(ZERO "stage3_model_persistence_threshold", NULL, "planned without a limit"),
    IDLE(ZERO "stage3_gather_16bit_weights_on_model_save"),
    IDLE(ZERO "stage3_gather_fp16_weights_on_model_save"),
    IDLE(ZERO "gather_16bit_weights_on_model_save"),
    IDLE(ZERO "ignore_unused_parameters"),
    IDLE(ZERO "legacy_stage1"),
    IDLE(ZERO "elastic_checkpoint"),
    IDLE(ZERO "load_from_fp32_weights"),
    IDLE(ZERO "log_trace_cache_warnings"),
    IDLE(ZERO "use_multi_rank_bucket_allreduce"),
    LISTED(ZERO "round_robin_gradients", "false", "planned in order"),
    LISTED(ZERO "zero_quantized_*", "false", "planned in 16 bits"),
    LISTED(ZERO "zero_hpz_partition_size", "1", "planned without a second partition"),
    LISTED(ZERO "mics_shard_size", "-1", "planned with shards over all ranks"),
    LISTED(ZERO "mics_hierarchical_params_gather", "false", "planned with one gather"),
    LISTED(ZERO "memory_efficient_linear", "true", "planned with it"),
    LISTED(ZERO "*", NULL, "not planned"),
    READ("bf16.enabled"),
    READ("bfloat16.enabled"),
    LISTED("bf16.immediate_grad_update", NULL, "not planned"),
    LISTED("bf16.check_grad_overflow", "true", "planned with the check"),
    LISTED("bf16.*", NULL, "not planned"),
    READ("fp16.enabled"),
    REFUSED("fp16.fp16_master_weights_and_grads", "false",
            "use fp32 master weights, or a run file"),
    IDLE("fp16.*"), /* of the loss scale */
    REFUSED("amp.enabled", "false", "use bf16 or fp16"),
    READ("gradient_clipping"),
    READ("gradient_accumulation_steps"),
    READ("train_batch_size"),
    READ("train_micro_batch_size_per_gpu"),
    READ("optimizer.type"),
    REFUSED("optimizer.params.amsgrad", "false", "use false; a third moment is not planned"),
    REFUSED("optimizer.params.fp32_optimizer_states", "true",
            "use true; moments in the parameters' dtype are not planned"),
    READ("optimizer.params.torch_adam"),
    READ("optimizer.params.fused"),
    IDLE("optimizer.params.*"),
    IDLE("optimizer.legacy_fusion"),
    IDLE("scheduler.*"),
    READ("communication_data_type"),
    READ("data_types.grad_accum_dtype"),
    IDLE("steps_per_print"),
    IDLE("wall_clock_breakdown"),
    IDLE("memory_breakdown"),
    IDLE("dump_state"),
    IDLE("prescale_gradients"),
    IDLE("gradient_predivide_factor"),
    IDLE("zero_allow_untested_optimizer"),
    IDLE("zero_force_ds_cpu_optimizer"),
    IDLE("flops_profiler.*"),
    IDLE("comms_logger.*"),
    IDLE("tensorboard.*"),
    IDLE("wandb.*"),
    IDLE("csv_monitor.*"),
    IDLE("checkpoint.*"),
    READ("aio.block_size"),
    READ("aio.intra_op_parallelism"),
    REFUSED("aio.use_gds", "false", "use false: its buffers are on the GPU"),
    LISTED("aio.queue_depth", "8", "seconds follow from node.nvme.read and node.nvme.write"),
    LISTED("aio.single_submit", "false", "seconds follow from node.nvme.read and node.nvme.write"),
    LISTED("aio.overlap_events", "true", "seconds follow from node.nvme.read and node.nvme.write"),
    IDLE("aio.thread_count"), /* of releases before intra_op_parallelism */
    LISTED("aio.*", NULL, "not planned"),
    IDLE("elasticity.*"),
    IDLE("seed"),
    LISTED("sparse_gradients", "false", "planned dense"),
    LISTED("activation_checkpointing.*", "false",
           "set recompute.granularity: full where the "
           "model uses it"),
    LISTED("torch_autocast.*", "false", "planned without it"),
    LISTED("compile.*", "false", "planned eager"),
    REFUSED("tensor_parallel.*", NULL, "use ZeRO, or engine megatron"),
    REFUSED("pipeline.*", NULL, "use ZeRO, or engine megatron"),
    REFUSED("compression_training.*", NULL, "omit it"),
    REFUSED("sequence_parallel_size", "1", "use 1"),
};
static const stw_flag_table table = {rows, sizeof rows / sizeof rows[0]};

static bool is_auto(const char *text) { return strcmp(text, "auto") == 0; }

/* transformers/integrations/deepspeed.py, trainer_config_process: a value that is not auto
 * has to be that of TrainingArguments. */
static void check_match(stw_reading *r, const char *name, const char *argument) {
    static const char *const names[][2] = {
        {"train_micro_batch_size_per_gpu", "per_device_train_batch_size"},
        {"gradient_accumulation_steps", "gradient_accumulation_steps"},
        {"gradient_clipping", "max_grad_norm"}};
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    if (flag == NULL || stw_reading_same(flag->value, argument)) return;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i][0]) != 0) continue;
        const char *expected =
            stw_pool_printf(r->out->pool, "auto, or %s, %s of %s (transformers refuses others)",
                            argument, names[i][1], r->out->path);
        stw_reading_fail(
            r, stw_flag_fail(&r->flags, flag, expected != NULL ? expected : "auto", r->err));
    }
}

/* A value, or what transformers puts in place of "auto". */
static const char *resolved(stw_reading *r, const char *name, const char *otherwise,
                            const stw_trainer_arguments *trainer, const char *automatic,
                            const char *key) {
    const char *text = stw_reading_text(r, name, otherwise);
    if (!is_auto(text)) {
        if (trainer->given) check_match(r, name, automatic);
        return text;
    }
    if (!trainer->given)
        stw_reading_assume_key(r, name, automatic, "auto: transformers' default", key);
    return automatic;
}

/* A size in elements; YAML and JSON write it as 5e8, too. */
static bool set_size(stw_reading *r, const char *name, const char *key, bool reads) {
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    char *end;
    if (flag == NULL || !reads) return false;
    if (is_auto(flag->value)) return true;
    const double size = strtod(flag->value, &end);
    if (*end != '\0' || !(size >= 0 && size <= 1e15))
        stw_reading_fail(r, stw_flag_fail(&r->flags, flag, "a number of elements or auto", r->err));
    else
        stw_reading_set_count(r, key, (uint64_t)size);
    return false;
}

/* zero/offload_config.py: devices none, cpu and nvme; pin_memory is false by default.
 * @return NULL: none */
static const char *device_of(stw_reading *r, const char *block) {
    const char *name = stw_pool_printf(r->out->pool, ZERO "%s.device", block);
    const char *device = name != NULL ? stw_reading_text(r, name, "none") : "none";
    return strcmp(device, "cpu") == 0 || strcmp(device, "nvme") == 0 ? device : NULL;
}

static bool is_nvme(const char *device) { return device != NULL && strcmp(device, "nvme") == 0; }

static void set_nvme(stw_reading *r, bool optimizer, bool param) {
    static const char *const switches[] = {"pipeline_read", "pipeline_write"};
    if (optimizer)
        (void)set_size(r, ZERO "offload_optimizer.buffer_count", "deepspeed.optimizer_buffer_count",
                       true);
    for (int i = 0; i < 2 && optimizer; i++)
        stw_reading_set_switch(
            r, stw_pool_printf(r->out->pool, "deepspeed.%s", switches[i]),
            stw_reading_is_set(
                r, stw_pool_printf(r->out->pool, ZERO "offload_optimizer.%s", switches[i])));
    if (param) {
        (void)set_size(r, ZERO "offload_param.buffer_count", "deepspeed.param_buffer_count", true);
        (void)set_size(r, ZERO "offload_param.buffer_size", "deepspeed.param_buffer_size", true);
        (void)set_size(r, ZERO "offload_param.max_in_cpu", "deepspeed.max_in_cpu", true);
    }
    const char *block = stw_reading_text(r, "aio.block_size", NULL);
    if (block != NULL && (optimizer || param))
        stw_reading_set(r, "deepspeed.aio_block_size",
                        stw_pool_printf(r->out->pool, "%s B", block));
    (void)set_size(r, "aio.intra_op_parallelism", "deepspeed.aio_intra_op_parallelism",
                   optimizer || param);
}

static void set_offload(stw_reading *r, uint64_t stage) {
    const char *optimizer = device_of(r, "offload_optimizer");
    const char *param = device_of(r, "offload_param");
    if (is_nvme(optimizer) && stage < 3) optimizer = "cpu"; /* it is the same there */
    set_nvme(r, is_nvme(optimizer), is_nvme(param));
    if (optimizer) {
        stw_reading_set(r, "deepspeed.offload_optimizer", optimizer);
        stw_reading_set_switch(r, "deepspeed.pin_memory",
                               stw_reading_is_set(r, ZERO "offload_optimizer.pin_memory"));
        const char *ratio = stw_reading_text(r, ZERO "offload_optimizer.ratio", "1");
        if (strtod(ratio, NULL) < 1 && is_nvme(optimizer))
            stw_reading_refuse(r, ZERO "offload_optimizer.ratio", "use 1, or device: cpu");
        else if (strtod(ratio, NULL) < 1 && stage == 3) /* other stages do not read it */
            stw_reading_set(r, "deepspeed.ratio", ratio);
    }
    if (param && stage < 3) stw_reading_refuse(r, ZERO "offload_param.device", "it needs stage 3");
    if (param && !optimizer)
        stw_reading_refuse(r, ZERO "offload_param.device", "use it with offload_optimizer: cpu");
    if (param) stw_reading_set(r, "deepspeed.offload_param", param);
    if (param && stw_reading_is_set(r, ZERO "offload_optimizer.pin_memory") !=
                     stw_reading_is_set(r, ZERO "offload_param.pin_memory"))
        stw_reading_refuse(r, ZERO "offload_param.pin_memory",
                           "use the same as of offload_optimizer");
}

static void set_zero(stw_reading *r) {
    const uint64_t stage = stw_reading_count(r, ZERO "stage", 0);
    stw_import_derived *derived = &r->out->derived;
    if (stage == 0 || stage > 3) {
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                                     "zero_optimization.stage %llu: not implemented: use 1, 2 or 3",
                                     (unsigned long long)stage));
        return;
    }
    stw_reading_set_count(r, "deepspeed.zero_stage", stage);
    set_offload(r, stage);
    derived->reduce_bucket =
        set_size(r, ZERO "reduce_bucket_size", "deepspeed.reduce_bucket", true);
    derived->prefetch_bucket =
        set_size(r, ZERO "stage3_prefetch_bucket_size", "deepspeed.prefetch_bucket", stage == 3);
    derived->persistence = set_size(r, ZERO "stage3_param_persistence_threshold",
                                    "deepspeed.persistence_threshold", stage == 3);
    (void)set_size(r, ZERO "sub_group_size", "deepspeed.sub_group_size", stage == 3);
    (void)set_size(r, ZERO "stage3_max_live_parameters", "deepspeed.max_live_parameters",
                   stage == 3);
    (void)set_size(r, ZERO "stage3_max_reuse_distance", "deepspeed.max_reuse_distance", stage == 3);
    if (stage < 3)
        stw_reading_set_switch(r, "deepspeed.overlap_comm",
                               stw_reading_is_set(r, ZERO "overlap_comm"));
}

/* @return the dtype of parameters */
static const char *set_precision(stw_reading *r, const stw_trainer_arguments *trainer) {
    const char *half = trainer->dtype, *type = NULL;
    const char *bf16 =
        stw_reading_text(r, "bf16.enabled", stw_reading_text(r, "bfloat16.enabled", "false"));
    const char *fp16 = stw_reading_text(r, "fp16.enabled", "false");
    if (strcmp(bf16, "true") == 0)
        type = "bf16";
    else if (strcmp(fp16, "true") == 0)
        type = "fp16";
    else if (is_auto(bf16) || is_auto(fp16))
        type = half;
    if (type == NULL) {
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                                     "bf16.enabled false: not implemented: training in fp32; use "
                                     "bf16 or fp16"));
        return "bf16";
    }
    if (!trainer->given && strcmp(bf16, "true") != 0 && strcmp(fp16, "true") != 0)
        stw_reading_assume(r, "bf16.enabled", "true",
                           "auto: transformers' --bf16 is taken as given");
    const char *grads = stw_reading_text(r, "data_types.grad_accum_dtype", type);
    const char *reduce = stw_reading_text(r, "communication_data_type", type);
    stw_reading_set(r, "precision.params", type);
    stw_reading_set(r, "precision.compute", type);
    stw_reading_set(r, "precision.grads", strcmp(grads, "None") == 0 ? type : grads);
    stw_reading_set(r, "precision.reduce", reduce);
    stw_reading_set(r, "precision.master", "fp32");
    return type;
}

/* A count of the file; 0: it has none, or auto. */
static uint64_t fixed(stw_reading *r, const char *name) {
    const char *text = stw_reading_text(r, name, "auto");
    if (is_auto(text)) return 0;
    const uint64_t n = stw_reading_count(r, name, 0);
    if (n == 0 && r->status == STW_STATUS_OK)
        stw_reading_fail(r, stw_flag_fail(&r->flags, stw_flags_find(&r->flags, name),
                                          "a number above 0", r->err));
    return n;
}

/* runtime/config.py, _set_batch_related_parameters: beside train_batch_size, what is left out
 * follows from the ranks (stw_import_batch). Auto is left out, too: its values are not known here.
 */
static void set_batch(stw_reading *r, const stw_trainer_arguments *trainer) {
    static const char micro[] = "train_micro_batch_size_per_gpu";
    static const char steps[] = "gradient_accumulation_steps";
    stw_import *out = r->out;
    out->global_batch = fixed(r, "train_batch_size");
    out->micro = fixed(r, micro);
    out->accumulation = fixed(r, steps);
    out->triple = out->global_batch > 0;
    if (trainer->given || out->micro > 0 || !out->triple) {
        const char *text =
            resolved(r, micro, "auto", trainer, trainer->micro_batch, "batch.micro_batch");
        stw_reading_set(r, "batch.micro_batch", text);
        (void)stw_reading_parse_count(text, &out->micro);
    }
    if (trainer->given || out->accumulation > 0 || !out->triple) {
        const char *text =
            resolved(r, steps, "auto", trainer, trainer->accumulation, "batch.grad_accumulation");
        stw_reading_set(r, "batch.grad_accumulation", text);
        (void)stw_reading_parse_count(text, &out->accumulation);
    }
}

static void set_optimizer(stw_reading *r, const stw_trainer_arguments *trainer) {
    static const char *const adams[] = {"AdamW", "Adam", "adam", "adamw", "FusedAdam", "auto"};
    const char *type = stw_reading_text(r, "optimizer.type", "AdamW");
    bool known = false;
    for (size_t i = 0; i < sizeof adams / sizeof adams[0]; i++)
        known = known || strcmp(type, adams[i]) == 0;
    if (!known) stw_reading_refuse(r, "optimizer.type", "use AdamW");
    const bool on_gpu =
        stw_reading_denies(stw_reading_text(r, ZERO "offload_optimizer.device", "none"));
    /* runtime/engine.py at 0.18, _configure_basic_optimizer: torch_adam comes before the offload's
     */
    if (stw_reading_is_set(r, "optimizer.params.torch_adam")) {
        if (!on_gpu)
            stw_reading_refuse(r, "optimizer.params.torch_adam",
                               "use false; on the host DeepSpeedCPUAdam is planned");
        stw_reading_set(r, "optimizer.implementation",
                        stw_reading_is_set(r, "optimizer.params.fused") ? "fused" : "foreach");
    }
    /* accelerate (accelerator.py at 1.10, _prepare_deepspeed) hands over torch's AdamW, and makes
     * DeepSpeedCPUAdam of it where state is offloaded */
    if (stw_flags_find(&r->flags, "optimizer.type") == NULL && trainer->optim != NULL &&
        strcmp(trainer->optim, "adamw_torch") == 0 && on_gpu)
        stw_reading_set(r, "optimizer.implementation", "foreach");
    const char *clip =
        resolved(r, "gradient_clipping", "0", trainer, trainer->clip_norm, "optimizer.clip_norm");
    stw_reading_set(r, "optimizer.clip_norm", strtod(clip, NULL) > 0 ? clip : "none");
}

/* What "auto" becomes (transformers/integrations/deepspeed.py, trainer_config_finalize; derived.c).
 */
static const char *rule_of(const char *name, const char *otherwise) {
    static const char *const rules[][2] = {
        {ZERO "reduce_bucket_size", "hidden size squared: deepspeed.reduce_bucket"},
        {ZERO "stage3_prefetch_bucket_size",
         "0.9 x hidden size squared: deepspeed.prefetch_bucket"},
        {ZERO "stage3_param_persistence_threshold",
         "10 x hidden size: deepspeed.persistence_threshold"}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strcmp(name, rules[i][0]) == 0) return rules[i][1];
    return otherwise;
}

void stw_deepspeed_read(stw_reading *r, const stw_trainer_arguments *trainer) {
    stw_reading_set(r, "engine", "deepspeed");
    set_zero(r);
    (void)set_precision(r, trainer);
    set_batch(r, trainer);
    set_optimizer(r, trainer);
    const bool third = stw_reading_count(r, ZERO "stage", 0) == 3;
    for (size_t i = 0; i < r->flags.n && r->status == STW_STATUS_OK; i++) {
        const stw_flag *flag = &r->flags.items[i];
        const bool of_third = strstr(flag->name, ".stage3_") != NULL ||
                              strcmp(flag->name, ZERO "sub_group_size") == 0;
        if ((of_third && !third) || (third && strcmp(flag->name, ZERO "overlap_comm") == 0)) {
            if (flag->line > 0) /* stage 3 reduces on a stream of its own either way */
                stw_reading_line(r, STW_IMPORT_NO_EFFECT, flag->name, flag->value, "");
        } else {
            const size_t before = r->out->n_lines;
            stw_reading_sort(r, flag, stw_flag_row_named(&table, flag->name));
            if (r->out->n_lines > before && is_auto(flag->value))
                r->out->lines[before].note = rule_of(flag->name, r->out->lines[before].note);
        }
    }
}

stw_status stw_deepspeed_import(const char *text, size_t length, stw_import *out, stw_error *err) {
    static const stw_trainer_arguments defaults = {"8", "1", "1", "bf16", false, NULL};
    stw_reading r = {.out = out, .err = err, .status = STW_STATUS_OK};
    out->dashes = "";
    stw_status status = stw_flags_parse_paths(out->path, text, length, out->pool, &r.flags, err);
    if (status != STW_STATUS_OK) return status;
    stw_deepspeed_read(&r, &defaults);
    out->flags = r.flags;
    if (r.status == STW_STATUS_OK)
        stw_reading_assume_key(&r, "sequence length", "4,096 tokens",
                               "fewer where the model has fewer positions; not in a DeepSpeed "
                               "config: --set batch.seq_len=...",
                               "batch.seq_len");
    if (r.status == STW_STATUS_OK)
        stw_reading_assume_key(&r, "gradient checkpointing", "what the planner chooses",
                               "not in a DeepSpeed config: --set recompute.granularity=full or "
                               "none",
                               "recompute.granularity");
    return r.status;
}

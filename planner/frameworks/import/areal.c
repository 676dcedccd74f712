/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults are those of areal/api/cli_args.py at 1.0.4; what it does with them is in
 * areal/engine/fsdp_engine.py, areal/engine/megatron_engine.py and areal/trainer/rl_trainer.py. */
#include "planner/frameworks/import/areal.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "planner/frameworks/import/allocation.h"
#include "planner/frameworks/import/megatron.h"
#include "planner/frameworks/import/names.h"
#include "planner/frameworks/import/ray.h"
#include "planner/frameworks/import/saves.h"

#define MCORE "actor.megatron."
enum { MOST_ALLOCATIONS = 8, POSITIONS = 32768 /* gconfig.max_tokens, context_length */ };

typedef struct layout {
    stw_allocation train, rollout;
    bool has_rollout, shared;
    uint64_t nodes, per_node, seq_len, tokens; /* tokens: of a micro batch; 0: not limited */
} layout;

static const char *value(stw_reading *r, const char *name, const char *fallback) {
    return stw_reading_value(r, name, fallback);
}

static bool is_on(stw_reading *r, const char *name, bool fallback) {
    return stw_reading_is_on(r, name, fallback);
}

static uint64_t count(stw_reading *r, const char *name, uint64_t fallback) {
    return stw_reading_number(r, name, fallback);
}

static bool starts_with(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* "sglang" and "sglang.context_length": is there a key below? A section that is null is none. */
static bool has_section(const stw_reading *r, const char *section) {
    const size_t n = strlen(section);
    for (size_t i = 0; i < r->flags.n; i++)
        if (strncmp(r->flags.items[i].name, section, n) == 0 && r->flags.items[i].name[n] == '.')
            return true;
    return false;
}

/* ---- who runs where ---- */

static bool is_rollout(const stw_allocation *a) {
    return strcmp(a->backend, "sglang") == 0 || strcmp(a->backend, "vllm") == 0;
}

static void read_allocation(stw_reading *r, const char *name, layout *l, bool *trains) {
    stw_allocation found[MOST_ALLOCATIONS];
    const char *text = value(r, name, NULL);
    if (text == NULL) return;
    const bool bare = strcmp(text, "fsdp") == 0 || strcmp(text, "megatron") == 0;
    if (bare && *trains) { /* beside allocation_mode, at 0.3 */
        l->train.backend = text;
        return;
    }
    const size_t n = stw_allocation_read(text, r->out->pool, found, MOST_ALLOCATIONS);
    if (n == 0)
        stw_reading_refuse(r, name,
                           "use trainers and rollouts with their sizes, as sglang:d4t2+fsdp:d8");
    for (size_t i = 0; i < n; i++) {
        if (is_rollout(&found[i])) {
            l->rollout = found[i];
            l->has_rollout = true;
        } else if (!*trains || strcmp(found[i].name, "actor") == 0) {
            l->train = found[i];
            *trains = true;
        }
        l->shared = l->shared || found[i].shared;
    }
}

/* Longest sequences: prompts of train_dataset.max_length tokens and their responses, or samples. */
static uint64_t length_of(stw_reading *r) {
    const uint64_t prompt = count(r, "train_dataset.max_length", 0);
    if (!has_section(r, "gconfig")) {
        if (prompt == 0)
            stw_reading_assume_key(r, "train_dataset.max_length", "batch.seq_len",
                                   "not in the file; set it", "batch.seq_len");
        return prompt;
    }
    if (prompt == 0)
        stw_reading_assume_key(r, "train_dataset.max_length", "0",
                               "not in the file: prompts are not counted; set batch.seq_len",
                               "batch.seq_len");
    return stw_min_u64(stw_plus(prompt, count(r, "gconfig.max_new_tokens", 16384)),
                       count(r, "gconfig.max_tokens", POSITIONS));
}

/* A trainer without a backend had fsdp, or megatron where it has stages or experts (0.3). */
static layout layout_of(stw_reading *r) {
    layout l = {.rollout.backend = "",
                .train.backend = "",
                .nodes = count(r, "cluster.n_nodes", 32),
                .per_node = count(r, "cluster.n_gpus_per_node", 8),
                .seq_len = length_of(r)};
    bool trains = false;
    read_allocation(r, "allocation_mode", &l, &trains);
    read_allocation(r, "actor.backend", &l, &trains);
    read_allocation(r, "rollout.backend", &l, &trains);
    static const char *const strategies[] = {"actor.scheduling_strategy.type",
                                             "rollout.scheduling_strategy.type"};
    for (size_t i = 0; i < 2; i++)
        l.shared = l.shared || strcmp(value(r, strategies[i], "separation"), "colocation") == 0;
    if (r->status == STW_STATUS_OK && !trains)
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                                     has_section(r, "model")
                                         ? "keys of a section `model`: not implemented: name it "
                                           "actor, with actor.backend, as fsdp:d8"
                                         : "a file without a trainer: not implemented: add "
                                           "actor.backend or allocation_mode, as fsdp:d8"));
    if (trains && *l.train.backend == '\0')
        l.train.backend = l.train.p > 1 || l.train.e > 1 ? "megatron" : "fsdp";
    const bool over = trains && l.has_rollout && !l.shared &&
                      stw_plus(stw_allocation_gpus(&l.train), stw_allocation_gpus(&l.rollout)) >
                          stw_times(l.nodes, l.per_node);
    if (l.has_rollout && over)
        stw_reading_fail(
            r,
            stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                     "trainer and rollout take %llu GPUs, the cluster has %llu: a rollout on the "
                     "trainer's GPUs is not implemented; raise cluster.n_nodes, or use a run "
                     "file with park.* and roles",
                     (unsigned long long)stw_plus(stw_allocation_gpus(&l.train),
                                                  stw_allocation_gpus(&l.rollout)),
                     (unsigned long long)stw_times(l.nodes, l.per_node)));
    if (l.has_rollout && l.shared)
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path,
                                     "a rollout on the trainer's GPUs: not implemented: "
                                     "torch_memory_saver moves whole pools; use a run file with "
                                     "park.* and roles"));
    /* megatron_engine.py pads sequences so that ranks of tp and cp get equal parts */
    if (trains && strcmp(l.train.backend, "megatron") == 0)
        l.seq_len = stw_round_up_u64(
            l.seq_len, stw_times(stw_times(l.train.t, l.train.c), l.train.c > 1 ? 2 : 1));
    const uint64_t limit = count(r, "actor.mb_spec.max_tokens_per_mb", 0);
    if (limit > 0 && trains) l.tokens = stw_div_up_u64(stw_max_u64(limit, l.seq_len), l.train.c);
    return l;
}

/* ---- the update ---- */

/* Sequences of an optimizer step. trainer/ppo/actor.py, ppo_update: those of an iteration in
 * ppo_n_minibatches parts. */
static uint64_t step_sequences(stw_reading *r) {
    uint64_t sequences = count(r, "train_dataset.batch_size", 1);
    const uint64_t parts = stw_max_u64(count(r, "actor.ppo_n_minibatches", 4), 1);
    if (!has_section(r, "gconfig")) { /* an item is a chosen and a rejected sequence */
        const char *type = value(r, "train_dataset.type", "");
        const bool pairs = strcmp(type, "rw") == 0 || strcmp(type, "dpo") == 0;
        return stw_max_u64(pairs ? stw_times(sequences, 2) : sequences, 1);
    }
    sequences = stw_times(sequences, count(r, "gconfig.n_samples", 1));
    if (sequences % parts != 0)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "actor.ppo_n_minibatches",
                         value(r, "actor.ppo_n_minibatches", "4"),
                         "does not divide the sequences of an iteration: all mini batches are "
                         "planned like the largest");
    stw_reading_set_count(r, "batch.mini_batches", parts);
    return stw_max_u64(stw_div_up_u64(sequences, parts), 1);
}

/* Each mini batch is cut into micro batches. */
static void set_batch(stw_reading *r, const layout *l) {
    const uint64_t sequences = step_sequences(r);
    const uint64_t each = stw_div_up_u64(sequences, l->train.d);
    uint64_t steps = stw_max_u64(count(r, "actor.mb_spec.n_mbs", 1), 1);
    if (l->seq_len > 0) stw_reading_set_count(r, "batch.seq_len", l->seq_len);
    r->out->step_sequences = sequences;
    if (l->tokens > 0) {
        const uint64_t shared = stw_times(stw_times(l->train.d, l->train.c), l->tokens);
        stw_reading_set_count(r, "batch.max_tokens_per_gpu", l->tokens);
        steps = stw_div_up_u64(stw_times(sequences, l->seq_len), shared);
    } else {
        const uint64_t micro = stw_div_up_u64(each, steps);
        stw_reading_set_count(r, "batch.micro_batch", micro);
        r->out->step_sequences = stw_times(stw_times(micro, steps), l->train.d);
        if (r->out->step_sequences != sequences)
            stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "actor.mb_spec.n_mbs",
                             value(r, "actor.mb_spec.n_mbs", "1"),
                             "the sequences of a step are no multiple of ranks and micro batches: "
                             "all are planned like the largest");
    }
    stw_reading_set_count(r, "batch.grad_accumulation", stw_max_u64(stw_min_u64(steps, 65536), 1));
    stw_reading_assume(r, "length of sequences", "the longest that the file allows",
                       "the data may be shorter; an upper bound");
}

/* trainer/ppo/actor.py: log-probabilities of the old policy are computed anew for the loss, 1,024
 * tokens at a time (utils/functional/vocab_parallel.py). */
static void set_log_prob(stw_reading *r, const layout *l) {
    const char *method = value(r, "actor.prox_logp_method", "recompute");
    const bool decoupled =
        is_on(r, "actor.use_decoupled_loss", false) && strcmp(method, "recompute") == 0;
    if (!has_section(r, "gconfig") || (!is_on(r, "actor.recompute_logprob", false) && !decoupled))
        return;
    uint64_t micro = 1;
    if (l->tokens > 0 && l->seq_len > 0) micro = stw_times(l->tokens, l->train.c) / l->seq_len;
    stw_reading_set_count(r, "batch.log_prob_micro_batch", stw_max_u64(micro, 1));
    stw_reading_set(r, "batch.log_prob_method", "chunked");
}

static const char *short_dtype(stw_reading *r, const char *name, const char *fallback) {
    static const char *const known[][2] = {{"bfloat16", "bf16"}, {"float16", "fp16"},
                                           {"float32", "fp32"},  {"bf16", "bf16"},
                                           {"fp16", "fp16"},     {"fp32", "fp32"}};
    const char *text = value(r, name, fallback);
    for (size_t i = 0; i < 6; i++)
        if (strcmp(known[i][0], text) == 0) return known[i][1];
    stw_reading_refuse(r, name, "use bfloat16, float16 or float32");
    return "bf16";
}

static void set_lora(stw_reading *r) {
    if (!is_on(r, "actor.use_lora", false)) return;
    const char *targets = value(r, "actor.target_modules", "all-linear");
    stw_reading_set_count(r, "trainable.lora.rank", count(r, "actor.lora_rank", 32));
    r->out->derived.all_linear = strcmp(targets, "all-linear") == 0;
    if (r->out->derived.all_linear) return;
    char *list = stw_pool_printf(r->out->pool, "[%s]", targets);
    for (char *c = list; c != NULL && *c != '\0'; c++)
        if (*c == ' ') *c = ',';
    stw_reading_set(r, "trainable.lora.targets", list != NULL ? list : "[]");
}

static void set_clip(stw_reading *r) {
    const char *type = value(r, "actor.optimizer.type", "adam");
    if (strcmp(type, "adam") != 0)
        stw_reading_refuse(r, "actor.optimizer.type", "use adam; adam_bf16 keeps compensations");
    const char *clip = value(r, "actor.optimizer.gradient_clipping", "1.0");
    stw_reading_set(r, "optimizer.clip_norm", strtod(clip, NULL) > 0 ? clip : "none");
}

/* fsdp_utils/optimizer.py, PerLayerOptimWrapper: moments are page-locked, whatever
 * offload_params says. The text of the pull request names the key optimizer_step_prefetch_layers.
 */
static void set_step(stw_reading *r, bool offloads) {
    static const char *const keys[] = {"actor.fsdp.optim_step_prefetch_layers",
                                       "actor.fsdp.optimizer_step_prefetch_layers"};
    const char *key = keys[value(r, keys[0], NULL) == NULL && value(r, keys[1], NULL) != NULL];
    if (!is_on(r, "actor.fsdp.per_layer_optim_step", false)) {
        if (!offloads) stw_reading_set(r, "optimizer.implementation", "fused");
        return;
    }
    if (offloads)
        stw_reading_refuse(r, "actor.fsdp.per_layer_optim_step",
                           "use it with actor.fsdp.offload_params: false; parameters and gradients "
                           "that are streamed, too, are not planned");
    const uint64_t ahead = count(r, key, 1);
    if (ahead == 0) stw_reading_refuse(r, key, "use 1 or more");
    stw_reading_set(r, "optimizer.implementation", "streamed");
    stw_reading_set(r, "placement.moments", "host");
    stw_reading_set_count(r, "prefetch.depth", ahead > 0 ? ahead : 1);
}

/* fsdp_utils/parallel.py, parallelize_model: stored in optimizer_dtype, computed in dtype. */
static void use_fsdp(stw_reading *r, const layout *l) {
    static const char *const stored[] = {"precision.params", "precision.grads", "precision.exp_avg",
                                         "precision.exp_avg_sq"};
    const char *state = short_dtype(r, "actor.optimizer_dtype", "float32");
    const bool offloads = is_on(r, "actor.fsdp.offload_params", false);
    stw_reading_set(r, "engine", "fsdp2");
    for (size_t i = 0; i < 4; i++) stw_reading_set(r, stored[i], state);
    stw_reading_set(r, "precision.compute", short_dtype(r, "actor.dtype", "bfloat16"));
    stw_reading_set(r, "precision.reduce", short_dtype(r, "actor.grad_reduce_dtype", "float32"));
    if (l->train.t > 1) stw_reading_set_count(r, "parallel.tp", l->train.t);
    if (l->train.c > 1) {
        stw_reading_set_count(r, "parallel.cp", l->train.c);
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "context parallelism", "ulysses",
                         "planned as ring attention");
    }
    set_batch(r, l);
    set_log_prob(r, l);
    set_lora(r);
    set_clip(r);
    stw_reading_set(r, "recompute.granularity",
                    is_on(r, "actor.gradient_checkpointing", false) ? "full" : "none");
    stw_reading_set_switch(r, "fsdp.offload_policy", offloads);
    set_step(r, offloads);
    stw_reading_set(r, "fsdp.reshard_after_forward", "true");
    r->out->derived.wrap_embeddings = true;
    /* fsdp_engine.py, _create_device_model: without it every rank makes the model on its GPU */
    stw_reading_set(r, "load.method",
                    is_on(r, "actor.fsdp.memory_efficient_load", false) ? "rank0_broadcast"
                                                                        : "all_ranks_gpu");
    /* fsdp_engine.py, is_llm_cpu_load */
    r->out->derived.each_loads = is_on(r, "actor.fsdp.memory_efficient_load", false);
    if (starts_with(value(r, "actor.attn_impl", "flash_attention_2"), "flash_attention_3"))
        stw_reading_set(r, "attention", "flash3");
    else if (!starts_with(value(r, "actor.attn_impl", "flash_attention_2"), "flash"))
        stw_reading_set(r, "attention", value(r, "actor.attn_impl", "sdpa"));
}

static void pass(stw_reading *r, stw_reading *to, const char *flag, const char *text) {
    if (text != NULL)
        stw_reading_fail(r, stw_flags_add(&to->flags, r->out->pool, flag, text, 0, r->err));
}

static void pass_count(stw_reading *r, stw_reading *to, const char *flag, uint64_t n) {
    pass(r, to, flag, stw_pool_printf(r->out->pool, "%llu", (unsigned long long)n));
}

/* megatron_engine.py, _check_and_apply_fp8_config: fields of TransformerConfig. Its parameters are
 * in 8 bits where DDP gathers them so. */
static void pass_fp8(stw_reading *r, stw_reading *to) {
    static const char *const pairs[][3] = {
        {MCORE "fp8_config.mode", "fp8-format", "e4m3"},
        {MCORE "fp8_config.recipe", "fp8-recipe", "delayed"},
        {MCORE "fp8_config.amax_history_len", "fp8-amax-history-len", "1"},
        {MCORE "fp8_config.first_last_layers_bf16", "first-last-layers-bf16", "false"},
        {MCORE "fp8_config.num_layers_at_start_in_bf16", "num-layers-at-start-in-bf16", "1"},
        {MCORE "fp8_config.num_layers_at_end_in_bf16", "num-layers-at-end-in-bf16", "1"}};
    if (!has_section(r, MCORE "fp8_config")) return;
    for (size_t i = 0; i < 6; i++) pass(r, to, pairs[i][1], value(r, pairs[i][0], pairs[i][2]));
    const bool params = is_on(r, MCORE "fp8_config.param", false);
    const bool gathered = is_on(r, MCORE "ddp.fp8_param_gather", false);
    pass(r, to, "fp8-param-gather", params && gathered ? "true" : "false");
    if (params != gathered)
        stw_reading_refuse(r, params ? MCORE "fp8_config.param" : MCORE "ddp.fp8_param_gather",
                           "set fp8_config.param and ddp.fp8_param_gather alike");
}

static void pass_settings(stw_reading *r, stw_reading *to, const layout *l) {
    static const char *const fixed[][2] = {{"bf16", "true"},
                                           {"attention-backend", "flash"},
                                           {"hidden-dropout", "0"},
                                           {"attention-dropout", "0"},
                                           {"moe-grouped-gemm", "true"},
                                           /* mbridge/core/llm_bridge.py leaves it off */
                                           {"no-gradient-accumulation-fusion", "true"},
                                           {"transformer-impl", "transformer_engine"}};
    static const char *const pairs[][3] = {
        {MCORE "ddp.use_distributed_optimizer", "use-distributed-optimizer", "true"},
        {MCORE "ddp.overlap_grad_reduce", "overlap-grad-reduce", "false"},
        {MCORE "ddp.overlap_param_gather", "overlap-param-gather", "false"},
        {MCORE "use_precision_aware_optimizer", "use-precision-aware-optimizer", "false"},
        {MCORE "cross_entropy_loss_fusion", "cross-entropy-loss-fusion", "false"},
        {MCORE "moe_token_dispatcher_type", "moe-token-dispatcher-type", "alltoall"},
        {MCORE "moe_shared_expert_overlap", "moe-shared-expert-overlap", "false"}};
    static const char *const recompute[][3] = {
        {MCORE "recompute_granularity", "recompute-granularity", "full"},
        {MCORE "recompute_method", "recompute-method", "uniform"},
        {MCORE "recompute_num_layers", "recompute-num-layers", "1"},
        {MCORE "recompute_modules", "recompute-modules", NULL}};
    for (size_t i = 0; i < 6; i++) pass(r, to, fixed[i][0], fixed[i][1]);
    for (size_t i = 0; i < 7; i++) pass(r, to, pairs[i][1], value(r, pairs[i][0], pairs[i][2]));
    for (size_t i = 0; i < 4 && is_on(r, "actor.gradient_checkpointing", false); i++)
        pass(r, to, recompute[i][1], value(r, recompute[i][0], recompute[i][2]));
    if (!is_on(r, MCORE "ddp.grad_reduce_in_fp32", true))
        pass(r, to, "grad-reduce-in-bf16", "true");
    else
        pass(r, to, "main-grads-dtype", short_dtype(r, MCORE "main_grads_dtype", "float32"));
    pass_fp8(r, to);
    pass(r, to, "exp-avg-dtype", short_dtype(r, MCORE "exp_avg_dtype", "float32"));
    pass(r, to, "exp-avg-sq-dtype", short_dtype(r, MCORE "exp_avg_sq_dtype", "float32"));
    pass_count(r, to, "tensor-model-parallel-size", l->train.t);
    pass_count(r, to, "pipeline-model-parallel-size", l->train.p);
    pass_count(r, to, "context-parallel-size", l->train.c);
    pass_count(r, to, "expert-model-parallel-size", l->train.e);
    pass_count(r, to, "expert-tensor-parallel-size", l->train.etp);
    pass(r, to, "sequence-parallel", l->train.t > 1 ? "true" : "false");
    if (l->train.p > 1)
        pass_count(r, to, "num-virtual-stages-per-pipeline-rank",
                   count(r, MCORE "virtual_pipeline_parallel_size", 1));
}

static void use_megatron(stw_reading *r, const layout *l) {
    stw_reading to = {.out = r->out, .err = r->err, .status = STW_STATUS_OK};
    to.flags.path = r->flags.path;
    if (is_on(r, "actor.use_lora", false))
        stw_reading_refuse(r, "actor.use_lora",
                           "adapters of its Megatron engine are not planned; use fsdp");
    if (strcmp(short_dtype(r, "actor.dtype", "bfloat16"), "bf16") != 0)
        stw_reading_refuse(r, "actor.dtype", "use bfloat16");
    pass_settings(r, &to, l);
    if (r->status == STW_STATUS_OK) stw_megatron_read(&to, NULL);
    stw_reading_fail(r, to.status);
    set_batch(r, l);
    set_clip(r);
    if (l->train.e > 1 || l->train.etp > 1) {
        stw_reading_set(r, "megatron.grouped_gemm", "true");
        stw_reading_set_count(r, "parallel.etp", l->train.etp);
    }
    r->out->global_batch = 0;
    const uint64_t stages =
        stw_times(l->train.p, count(r, MCORE "virtual_pipeline_parallel_size", 1));
    r->out->derived.stages = stages < 4096 ? (uint32_t)stages : 0;
    r->out->derived.experts_ranks = (uint32_t)l->train.e;
}

/* ---- the roles ---- */

static const char *role_key(stw_reading *r, unsigned index, const char *key) {
    const char *text = stw_pool_printf(r->out->pool, "roles.%u.%s", index, key);
    return text != NULL ? text : "roles.0.name";
}

static void set_rollout(stw_reading *r, unsigned index, const layout *l) {
    const bool vllm = strcmp(l->rollout.backend, "vllm") == 0;
    const uint64_t most =
        vllm ? count(r, "vllm.max_num_seqs", 256) : count(r, "sglang.max_running_requests", 256);
    stw_reading_set(r, role_key(r, index, "name"), "rollout");
    stw_reading_set(r, role_key(r, index, "kind"), "rollout");
    stw_reading_set(r, role_key(r, index, "engine"), l->rollout.backend);
    stw_reading_set(r, role_key(r, index, "with"), "none");
    stw_reading_set_count(r, role_key(r, index, "nodes"),
                          stw_allocation_gpus(&l->rollout) / l->per_node);
    stw_reading_set_count(r, role_key(r, index, "parallel.tp"), l->rollout.t);
    if (l->rollout.p > 1) stw_reading_set_count(r, role_key(r, index, "parallel.pp"), l->rollout.p);
    stw_reading_set(
        r, role_key(r, index, "gpu_memory_utilization"),
        value(r, vllm ? "vllm.gpu_memory_utilization" : "sglang.mem_fraction_static", "0.9"));
    stw_reading_set_count(r, role_key(r, index, "max_num_seqs"), most);
    stw_reading_set_count(
        r, role_key(r, index, "max_model_len"),
        count(r, vllm ? "vllm.max_model_len" : "sglang.context_length", POSITIONS));
    stw_reading_set_switch(
        r, role_key(r, index, "enforce_eager"),
        is_on(r, vllm ? "vllm.enforce_eager" : "sglang.disable_cuda_graph", false));
    if (!vllm)
        stw_reading_set_count(r, role_key(r, index, "max_num_batched_tokens"),
                              count(r, "sglang.max_prefill_tokens", POSITIONS));
}

/* rl_trainer.py: a reference model where kl_ctl is above 0, beside the actor, in its dtype. */
static void set_roles(stw_reading *r, const layout *l, bool megatron) {
    const uint64_t rollout = l->has_rollout ? stw_allocation_gpus(&l->rollout) : 0;
    const uint64_t train = stw_allocation_gpus(&l->train);
    const bool whole = l->per_node > 0 && rollout % l->per_node == 0 && train % l->per_node == 0;
    unsigned n = 0;
    r->out->gpus = train + (whole ? rollout : 0);
    r->out->nodes = l->per_node > 0 ? r->out->gpus / l->per_node : 0;
    r->out->nodes_name = "its backends";
    if (rollout > 0 && whole)
        set_rollout(r, n++, l);
    else if (rollout > 0)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "rollout", l->rollout.backend,
                         "part of a node: the trainer's GPUs are planned without it");
    if (has_section(r, "ref") && strtod(value(r, "actor.kl_ctl", "0.1"), NULL) > 0) {
        stw_reading_set(r, role_key(r, n, "name"), "reference");
        stw_reading_set(r, role_key(r, n, "kind"), "reference");
        if (!megatron)
            stw_reading_set(r, role_key(r, n, "dtype"),
                            short_dtype(r, "ref.optimizer_dtype", "float32"));
        stw_reading_set(r, role_key(r, n++, "placement.params"),
                        is_on(r, "ref.offload", false) ? "host" : "gpu");
    }
    if (has_section(r, "critic")) {
        stw_reading_set(r, role_key(r, n, "name"), "critic");
        stw_reading_set(r, role_key(r, n, "kind"), "critic");
    }
}

/* ---- all ---- */

/* Keys of ref and critic are the actor's. Those that say the same change nothing. */
static void sort_model(stw_reading *r, const stw_flag *flag, const char *section) {
    const char *key = flag->name + strlen(section);
    const char *name = stw_pool_printf(r->out->pool, "actor.%s", key);
    if (name == NULL) return;
    const stw_flag_row *row = stw_flag_row_named(&stw_areal_flags, name);
    const char *own = value(r, flag->name, NULL), *actor = value(r, name, NULL);
    const bool trains = strcmp(section, "critic.") == 0;
    const bool alike = own == NULL || (actor != NULL && strcmp(own, actor) == 0);
    if (row == NULL)
        stw_reading_line(r, STW_IMPORT_UNKNOWN, flag->name, flag->value, "");
    else if (strcmp(key, "path") == 0 && own != NULL && actor != NULL &&
             !stw_names_same(own, actor))
        stw_reading_refuse(r, flag->name,
                           trains ? "one model per run; plan the critic apart"
                                  : "one model per run; plan the reference apart");
    else if (trains && strcmp(key, "is_critic") == 0)
        stw_reading_line(r, STW_IMPORT_NO_EFFECT, flag->name, flag->value, "");
    else if (strcmp(key, "offload") == 0 || strcmp(key, "optimizer_dtype") == 0)
        stw_reading_line(r, STW_IMPORT_TAKEN, flag->name, flag->value, "");
    else if (row->use == STW_FLAG_IDLE || alike || (!trains && starts_with(key, "optimizer")) ||
             strcmp(key, "scheduling_strategy.type") == 0 ||
             strcmp(key, "gradient_checkpointing") == 0)
        stw_reading_line(r, STW_IMPORT_NO_EFFECT, flag->name, flag->value, "");
    else
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, flag->name, flag->value,
                         "planned as the actor's");
}

/* Of a backend that the file does not use. */
static bool is_unused(const stw_flag *flag, const layout *l) {
    const bool megatron = strcmp(l->train.backend, "megatron") == 0;
    const char *other = strcmp(l->rollout.backend, "vllm") == 0 ? "sglang." : "vllm.";
    return starts_with(flag->name, megatron ? "actor.fsdp." : MCORE) ||
           starts_with(flag->name, other) ||
           (!l->has_rollout && starts_with(flag->name, "sglang."));
}

static void sort_all(stw_reading *r, const layout *l) {
    for (size_t i = 0; i < r->flags.n && r->status == STW_STATUS_OK; i++) {
        stw_flag resolved = r->flags.items[i];
        const stw_flag *flag = &resolved;
        resolved.value = value(r, flag->name, resolved.value);
        const stw_flag_row *row = stw_flag_row_named(&stw_areal_flags, flag->name);
        const bool listed = row != NULL && row->use != STW_FLAG_READ;
        const bool unset = value(r, flag->name, NULL) == NULL;
        if (strcmp(flag->name, "defaults") == 0 && strcmp(flag->value, "_self_") != 0)
            stw_reading_line(r, STW_IMPORT_NOT_MODELLED, flag->name, flag->value,
                             "other files are not read");
        else if (starts_with(flag->name, "ref.") || starts_with(flag->name, "critic."))
            sort_model(r, flag, *flag->name == 'r' ? "ref." : "critic.");
        else if (row != NULL && ((listed && unset) || is_unused(flag, l)))
            stw_reading_line(r, STW_IMPORT_NO_EFFECT, flag->name, flag->value, "");
        else if (unset && (strcmp(flag->name, "ref") == 0 || strcmp(flag->name, "critic") == 0))
            stw_reading_line(r, STW_IMPORT_NO_EFFECT, flag->name, flag->value, "");
        else
            stw_reading_sort(r, flag, row);
    }
}

stw_status stw_areal_import(const char *text, size_t length, stw_import *out, stw_error *err) {
    stw_reading r = {.out = out, .err = err, .status = STW_STATUS_OK};
    out->dashes = "";
    stw_status status = stw_flags_parse_paths(out->path, text, length, out->pool, &r.flags, err);
    if (status != STW_STATUS_OK) return status;
    const layout l = layout_of(&r);
    if (strcmp(value(&r, "scheduler.type", "local"), "ray") == 0) stw_reading_ray(&r, NULL);
    out->derived.sees = true;
    out->model = value(&r, "actor.path", NULL);
    if (r.status != STW_STATUS_OK) return r.status;
    const bool megatron = strcmp(l.train.backend, "megatron") == 0;
    if (strcmp(l.train.backend, "archon") == 0)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, out->path,
                        "backend archon: not implemented: use fsdp or megatron");
    if (!megatron && (l.train.p > 1 || l.train.e > 1))
        return stw_fail(err, STW_STATUS_BAD_INPUT, out->path,
                        "fsdp: found stages or experts' ranks, expected sizes d, t and c");
    if (megatron)
        use_megatron(&r, &l);
    else
        use_fsdp(&r, &l);
    if (r.status == STW_STATUS_OK) set_roles(&r, &l, megatron);
    if (r.status == STW_STATUS_OK) stw_areal_set_saves(&r, !megatron && l.train.t <= 1);
    sort_all(&r, &l);
    out->flags = r.flags;
    return r.status;
}

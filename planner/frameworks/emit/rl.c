/* SPDX-License-Identifier: Apache-2.0 */
/* verl's and AReaL's settings: the inverse of verl.c and areal.c. */
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/spec/registry.h"
#include "planner/frameworks/emit/emission.h"
#include "planner/frameworks/import/reading.h"

#define ACTOR "actor_rollout_ref.actor."
#define MODEL "actor_rollout_ref.model."
#define ROLLOUT "actor_rollout_ref.rollout."
#define REF "actor_rollout_ref.ref."
#define FSDP ACTOR "fsdp_config."
#define MCORE ACTOR "megatron."

/* ---- what both have ---- */

static bool is_megatron(const stw_emission *e) {
    return strcmp(stw_run_spec_engine(&e->plan->run)->name, "megatron") == 0;
}

/* @return the first role of a kind, or n_roles */
static uint32_t role_of(const stw_emission *e, stw_role_kind kind) {
    uint32_t i = 0;
    while (i < e->plan->run.n_roles && e->plan->run.roles[i].kind != kind) i++;
    return i;
}

static bool has_role(const stw_emission *e, stw_role_kind kind) {
    return role_of(e, kind) < e->plan->run.n_roles;
}

/* A number that the file has, or another. */
static uint64_t number(stw_emission *e, const char *name, uint64_t fallback) {
    const stw_emit_flag *flag = stw_emit_find(e, name);
    char *end;
    if (flag == NULL || flag->value == NULL) return fallback;
    const unsigned long long n = strtoull(flag->value, &end, 10);
    return *end == '\0' && end != flag->value ? n : fallback;
}

static const char *dtype(stw_emission *e, const char *key) {
    const char *text = stw_emit_text(e, key);
    if (text == NULL || strcmp(text, "fp32") == 0) return "float32";
    return strcmp(text, "fp16") == 0 ? "float16" : "bfloat16";
}

static const char *clip(stw_emission *e) {
    const char *text = stw_emit_text(e, "optimizer.clip_norm");
    return text != NULL ? text : "0.0";
}

/* Sequences of an optimizer step, of which `each` belong to one prompt; 0 after a failure. */
static uint64_t prompts_of(stw_emission *e, const char *name, uint64_t each) {
    const uint64_t tokens = stw_job_step_tokens(e->plan->job);
    const uint64_t length = stw_max_u64(e->plan->run.batch.seq_len, 1);
    if (e->status == STW_STATUS_OK && tokens % length != 0)
        e->status = stw_fail(e->err, STW_STATUS_BAD_INPUT, "--emit",
                             "a step of %llu tokens is no whole number of sequences of %llu; set "
                             "batch.tokens_per_step to a multiple of batch.seq_len",
                             (unsigned long long)tokens, (unsigned long long)length);
    else if (e->status == STW_STATUS_OK && tokens / length % each != 0)
        e->status = stw_fail(e->err, STW_STATUS_BAD_INPUT, "--emit",
                             "a step of %llu sequences is no multiple of %s, %llu; change "
                             "batch.tokens_per_step or batch.grad_accumulation",
                             (unsigned long long)(tokens / length), name, (unsigned long long)each);
    return e->status == STW_STATUS_OK ? tokens / length / each : 0;
}

/* Prompt and response make a sequence; the prompt stays where it can. */
static void put_length(stw_emission *e, const char *prompt, const char *response) {
    const uint64_t length = e->plan->run.batch.seq_len;
    uint64_t first = number(e, prompt, length / 2);
    if (first >= length) first = length / 2;
    stw_emit_put_count(e, prompt, first);
    stw_emit_put_count(e, response, length - first);
}

/* ---- verl ---- */

/* As import/verl.c reads it: prompts of an iteration, or updates between two weight syncs where
 * rollouts generate all the time. A last mini batch may be smaller in the file. */
static void put_verl_iteration(stw_emission *e, uint64_t mini) {
    const uint64_t mini_batches = e->plan->run.batch.mini_batches;
    const uint64_t before = stw_max_u64(number(e, ACTOR "ppo_mini_batch_size", 256), 1);
    const uint64_t all = number(e, "data.train_batch_size", 1024);
    const char *program = e->import != NULL ? e->import->program : NULL;
    if (all == 0 || (program != NULL && strstr(program, "fully_async") != NULL)) {
        const uint64_t each = stw_max_u64(number(e, "async_training.require_batches", 1), 1);
        const bool whole = mini_batches % each == 0;
        if (!whole) stw_emit_put(e, "async_training.require_batches", "1");
        stw_emit_put_count(e, "async_training.trigger_parameter_sync_step",
                           whole ? mini_batches / each : mini_batches);
    } else if (mini != before || stw_div_up_u64(all, before) != mini_batches) {
        stw_emit_put_count(e, "data.train_batch_size", stw_times(mini, mini_batches));
    } else {
        stw_emit_put_count(e, "data.train_batch_size", all);
    }
}

static void put_verl_batch(stw_emission *e) {
    const stw_run_spec *run = &e->plan->run;
    const uint64_t n = stw_max_u64(number(e, ROLLOUT "n", 1), 1);
    const uint64_t mini = prompts_of(e, ROLLOUT "n", n);
    const bool dynamic = run->batch.max_tokens_per_gpu > 0;
    put_length(e, "data.max_prompt_length", "data.max_response_length");
    stw_emit_put(e, ACTOR "ppo_micro_batch_size", NULL);
    stw_emit_put_switch(e, ACTOR "use_dynamic_bsz", dynamic);
    if (dynamic)
        stw_emit_put_count(e, ACTOR "ppo_max_token_len_per_gpu", run->batch.max_tokens_per_gpu);
    else
        stw_emit_put_count(e, ACTOR "ppo_micro_batch_size_per_gpu", run->batch.micro_batch);
    put_verl_iteration(e, mini); /* by the file's mini batch */
    stw_emit_put_count(e, ACTOR "ppo_mini_batch_size", mini);
    stw_emit_put_count(e, ACTOR "ppo_epochs", run->batch.epochs);
    stw_emit_put_verl_saves(e, is_megatron(e));
}

static void put_verl_rollout(stw_emission *e) {
    static const char *const pairs[][2] = {
        {ROLLOUT "name", "engine"},
        {ROLLOUT "tensor_model_parallel_size", "parallel.tp"},
        {ROLLOUT "gpu_memory_utilization", "gpu_memory_utilization"},
        {ROLLOUT "max_num_seqs", "max_num_seqs"},
        {ROLLOUT "max_num_batched_tokens", "max_num_batched_tokens"},
        {ROLLOUT "max_model_len", "max_model_len"},
        {ROLLOUT "enforce_eager", "enforce_eager"}};
    const uint32_t role = role_of(e, STW_ROLE_ROLLOUT);
    if (role >= e->plan->run.n_roles) return;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const char *text = stw_emit_role_text(e, role, pairs[i][1]);
        if (text == NULL && i == 0) text = "vllm";
        if (text != NULL) stw_emit_put(e, pairs[i][0], text);
    }
    const uint64_t longest = e->plan->run.roles[role].max_model_len;
    if (longest > 0 && longest < e->plan->run.batch.seq_len)
        stw_text_printf(&e->notes,
                        ROLLOUT "max_model_len: %llu is less than max_prompt_length + "
                                "max_response_length, %llu: answers end there\n",
                        (unsigned long long)longest,
                        (unsigned long long)e->plan->run.batch.seq_len);
    const char *sleeps = stw_emit_role_text(e, role, "free_cache_engine");
    const char *level = stw_emit_role_text(e, role, "sleep_level");
    stw_emit_put(e, ROLLOUT "free_cache_engine", sleeps != NULL ? sleeps : "true");
    const bool keeps =
        level != NULL && strcmp(level, "1") == 0 && e->plan->run.trainable.lora_rank == 0;
    stw_emit_put(e, ROLLOUT "layered_summon", keeps ? "true" : NULL);
    stw_emit_put(e, ROLLOUT "update_weights_bucket_megabytes", NULL);
    stw_emit_put_count(e, ROLLOUT "checkpoint_engine.update_weights_bucket_megabytes",
                       e->plan->run.roles[role].update_bucket_bytes >> 20);
}

static bool is_on(stw_emission *e, const char *name) {
    const stw_emit_flag *flag = stw_emit_find(e, name);
    return flag != NULL && flag->value != NULL && stw_reading_same(flag->value, "true");
}

static bool own_is_on(const stw_emission *e, const char *name) {
    const stw_flag *own = stw_flags_find(&e->import->flags, name);
    return own != NULL && stw_reading_same(own->value, "true");
}

bool stw_emit_verl_lacks(const stw_emission *e, bool reference) {
    if (e->import == NULL || own_is_on(e, ACTOR "use_dynamic_bsz")) return false;
    return !reference || own_is_on(e, ACTOR "use_kl_loss") ||
           own_is_on(e, "algorithm.use_kl_in_reward");
}

/* utils/config.py, validate_config: without use_dynamic_bsz the rollout and, where there is a KL
 * term, the reference have sequences of a pass for log-probabilities, by either key. */
static void put_verl_log_prob(stw_emission *e) {
    static const char *const keys[][2] = {
        {ROLLOUT "log_prob_micro_batch_size_per_gpu", ROLLOUT "log_prob_micro_batch_size"},
        {REF "log_prob_micro_batch_size_per_gpu", REF "log_prob_micro_batch_size"}};
    const stw_run_spec *run = &e->plan->run;
    const bool kl = is_on(e, ACTOR "use_kl_loss") || is_on(e, "algorithm.use_kl_in_reward");
    uint64_t micro = run->batch.log_prob_micro_batch;
    if (micro == 0) micro = stw_max_u64(run->batch.micro_batch, 1);
    for (size_t i = 0; i < (kl ? 2 : 1) && run->batch.max_tokens_per_gpu == 0; i++) {
        if (number(e, keys[i][0], 0) > 0 || number(e, keys[i][1], 0) > 0) continue;
        stw_emit_put_count(e, keys[i][0], micro);
        if (stw_emit_verl_lacks(e, i == 1))
            stw_text_printf(&e->notes, "%s: the file lacks it, and verl does not start without\n",
                            keys[i][0]);
    }
}

static void put_verl_roles(stw_emission *e) {
    const bool critic = has_role(e, STW_ROLE_CRITIC);
    const uint32_t ref = role_of(e, STW_ROLE_REFERENCE);
    const bool lora = e->plan->run.trainable.lora_rank > 0;
    put_verl_rollout(e);
    stw_emit_put_switch(e, "critic.enable", critic);
    if (stw_emit_find(e, "algorithm.adv_estimator") == NULL)
        stw_emit_put(e, "algorithm.adv_estimator", critic ? "gae" : "grpo");
    if (lora && ref == e->plan->run.n_roles) return; /* the actor without its adapters */
    stw_emit_put_switch(e, ACTOR "use_kl_loss", ref < e->plan->run.n_roles);
    stw_emit_put(e, "algorithm.use_kl_in_reward", "false");
    if (ref == e->plan->run.n_roles || !is_megatron(e)) return;
    stw_emit_put_switch(e, REF "megatron.param_offload",
                        e->plan->run.roles[ref].params != STW_TIER_GPU);
}

/* verl's default strategy is FSDP1, whose embeddings are no unit of their own; a file that has it
 * keeps it, unless the plan needs what FSDP2 alone has. */
static void put_verl_strategy(stw_emission *e) {
    const stw_emit_flag *own = stw_emit_find(e, ACTOR "strategy");
    if (own == NULL) own = stw_emit_find(e, FSDP "strategy");
    const char *given = own != NULL && own->value != NULL ? own->value : "fsdp";
    const bool needs =
        stw_emit_on(e, "fsdp.offload_policy") || stw_emit_on(e, "fsdp.wrap_embeddings");
    if (e->import != NULL && !needs && strcmp(given, "fsdp") == 0) return;
    stw_emit_put(e, ACTOR "strategy", "fsdp2");
    stw_emit_put(e, FSDP "strategy", NULL);
}

static void put_verl_fsdp(stw_emission *e) {
    const stw_run_spec *run = &e->plan->run;
    const uint64_t rank = run->trainable.lora_rank;
    const bool half = stw_emit_has(e, "precision.params", "bf16");
    put_verl_strategy(e);
    stw_emit_put(e, FSDP "model_dtype", half ? "bfloat16" : "fp32");
    stw_emit_put_switch(e, FSDP "param_offload", run->park.params);
    stw_emit_put_switch(e, FSDP "optimizer_offload", run->park.moments);
    stw_emit_put_switch(e, FSDP "offload_policy", stw_emit_on(e, "fsdp.offload_policy"));
    stw_emit_put_switch(e, FSDP "reshard_after_forward",
                        stw_emit_on(e, "fsdp.reshard_after_forward"));
    stw_emit_put(e, FSDP "ulysses_sequence_parallel_size", NULL);
    stw_emit_put_count(e, ACTOR "ulysses_sequence_parallel_size", run->parallel.cp);
    if (run->parallel.dp_replicate > 1 && run->parallel.dp_shard != STW_AUTO)
        stw_emit_put_count(e, FSDP "fsdp_size",
                           stw_times(run->parallel.dp_shard, run->parallel.cp));
    else
        stw_emit_put(e, FSDP "fsdp_size", "-1");
    stw_emit_put_switch(e, MODEL "enable_gradient_checkpointing",
                        strcmp(stw_emit_recompute(e), "none") != 0);
    stw_emit_put_count(e, MODEL "lora_rank", rank);
    stw_emit_put(e, MODEL "target_modules",
                 rank > 0 ? stw_emit_text(e, "trainable.lora.targets") : NULL);
    stw_emit_put(e, ACTOR "optim.clip_grad", NULL);
    stw_emit_put(e, ACTOR "grad_clip", clip(e));
    stw_emit_put(e, ACTOR "use_fused_kernels", NULL);
    stw_emit_put_switch(e, MODEL "use_fused_kernels", stw_emit_on(e, "loss.fused"));
    if (run->batch.log_prob_micro_batch == 0) return;
    stw_emit_put_switch(e, ROLLOUT "log_prob_use_dynamic_bsz", false);
    stw_emit_put_count(e, ROLLOUT "log_prob_micro_batch_size_per_gpu",
                       run->batch.log_prob_micro_batch);
}

/* Flags of Megatron-LM that verl has keys for; others are overrides. NULL: verl sets it. */
static const char *verl_name(stw_emission *e, const char *flag) {
    static const char *const renamed[][2] = {
        {"tensor-model-parallel-size", MCORE "tensor_model_parallel_size"},
        {"pipeline-model-parallel-size", MCORE "pipeline_model_parallel_size"},
        {"context-parallel-size", MCORE "context_parallel_size"},
        {"expert-model-parallel-size", MCORE "expert_model_parallel_size"},
        {"expert-tensor-parallel-size", MCORE "expert_tensor_parallel_size"},
        {"num-virtual-stages-per-pipeline-rank", MCORE "virtual_pipeline_model_parallel_size"},
        {"sequence-parallel", MCORE "sequence_parallel"},
        {"use-distributed-optimizer", MCORE "use_distributed_optimizer"},
        {"use-megatron-fsdp", MCORE "use_megatron_fsdp"},
        {"clip-grad", ACTOR "optim.clip_grad"},
        {"use-precision-aware-optimizer", ACTOR "optim.use_precision_aware_optimizer"},
        {"main-grads-dtype", ACTOR "optim.main_grads_dtype"},
        {"exp-avg-dtype", ACTOR "optim.exp_avg_dtype"},
        {"exp-avg-sq-dtype", ACTOR "optim.exp_avg_sq_dtype"},
        {"decoder-first-pipeline-num-layers",
         MCORE "override_transformer_config.num_layers_in_first_pipeline_stage"},
        {"decoder-last-pipeline-num-layers",
         MCORE "override_transformer_config.num_layers_in_last_pipeline_stage"},
        {"fp8-format", MCORE "override_transformer_config.fp8"},
        {"optimizer-cpu-offload", ACTOR "optim.override_optimizer_config.optimizer_cpu_offload"},
        {"optimizer-offload-fraction",
         ACTOR "optim.override_optimizer_config.optimizer_offload_fraction"},
        {"overlap-cpu-optimizer-d2h-h2d",
         ACTOR "optim.override_optimizer_config.overlap_cpu_optimizer_d2h_h2d"},
        {"overlap-grad-reduce", MCORE "override_ddp_config.overlap_grad_reduce"},
        {"overlap-param-gather", MCORE "override_ddp_config.overlap_param_gather"}};
    static const char *const fixed[] = {"bf16",
                                        "fp16",
                                        "seq-length",
                                        "micro-batch-size",
                                        "hidden-dropout",
                                        "attention-dropout",
                                        "transformer-impl",
                                        "global-batch-size",
                                        "num-layers-per-virtual-pipeline-stage",
                                        "recompute-activations",
                                        "use-custom-fsdp"};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (strcmp(flag, fixed[i]) == 0) return NULL;
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++)
        if (strcmp(flag, renamed[i][0]) == 0) return renamed[i][1];
    char *name = stw_pool_printf(e->pool, MCORE "override_transformer_config.%s", flag);
    for (char *c = name != NULL ? name + strlen(MCORE "override_transformer_config.") : NULL;
         c != NULL && *c != '\0'; c++)
        if (*c == '-') *c = '_';
    return name;
}

static void put_verl_megatron(stw_emission *e) {
    const stw_run_spec *run = &e->plan->run;
    stw_emission flags = *e;
    flags.n = flags.capacity = 0;
    flags.flags = NULL;
    flags.import = NULL;
    stw_emit_megatron(&flags);
    e->status = flags.status;
    stw_emit_put(e, ACTOR "strategy", "megatron");
    for (size_t i = 0; i < flags.n; i++) {
        const stw_emit_flag *flag = &flags.flags[i];
        const char *name = verl_name(e, flag->name);
        const bool off = flag->value == NULL || strcmp(flag->value, "false") == 0;
        if (name == NULL || (off && stw_emit_find(e, name) == NULL && strstr(name, "override_")))
            continue;
        stw_emit_put(e, name, flag->value);
    }
    stw_emit_put_switch(e, MCORE "param_offload", run->park.params);
    stw_emit_put_switch(e, MCORE "grad_offload", run->park.grads);
    if (!stw_emit_on(e, "megatron.optimizer_cpu_offload") || run->park.moments)
        stw_emit_put_switch(e, MCORE "optimizer_offload", run->park.moments);
}

void stw_emit_verl(stw_emission *e) {
    const stw_cluster *c = &e->plan->cluster;
    e->allocator = stw_emit_allocator(e);
    if (e->import == NULL) stw_emit_put(e, MODEL "path", e->plan->model->name);
    const stw_job *job = e->plan->job;
    uint32_t own = 0; /* nodes of rollouts alone */
    for (uint32_t r = 1; r < job->n_roles; r++)
        if (stw_role_is_alone(job->roles, r)) own += job->roles[r].n_nodes;
    if (e->import != NULL && e->import->program != NULL &&
        strstr(e->import->program, "sft_trainer") != NULL)
        e->status =
            stw_fail(e->err, STW_STATUS_NOT_BUILT_IN, "--emit",
                     "settings of %s: not implemented; those of main_ppo are", e->import->program);
    stw_emit_put_count(e, "trainer.nnodes", c->nodes - own);
    stw_emit_put_count(e, "trainer.n_gpus_per_node", c->gpus);
    if (own > 0) {
        stw_emit_put(e, "actor_rollout_ref.hybrid_engine", "False");
        stw_emit_put_count(e, "rollout.nnodes", own);
        stw_emit_put_count(e, "rollout.n_gpus_per_node", c->gpus);
    }
    put_verl_batch(e);
    if (is_megatron(e))
        put_verl_megatron(e);
    else
        put_verl_fsdp(e);
    put_verl_roles(e);
    put_verl_log_prob(e);
}

/* ---- AReaL ---- */

/* "t2"; nothing where it is 1. */
static const char *dim(stw_emission *e, char letter, uint64_t size) {
    const char *text =
        size == 1 ? "" : stw_pool_printf(e->pool, "%c%llu", letter, (unsigned long long)size);
    return text != NULL ? text : "";
}

/* "fsdp:d8c2" or "megatron:(attn:d2t4|ffn:d1e8)". */
static const char *backend_of(stw_emission *e) {
    const stw_parallel *p = &e->plan->run.parallel;
    const unsigned long long d = stw_emit_ranks(e);
    const char *sizes = stw_pool_printf(e->pool, "d%llu%s%s%s", d, dim(e, 'p', p->pp),
                                        dim(e, 't', p->tp), dim(e, 'c', p->cp));
    const bool experts = p->ep > 1 || p->etp > 1;
    if (sizes == NULL || !is_megatron(e) || !experts)
        return stw_pool_printf(e->pool, "%s:%s", is_megatron(e) ? "megatron" : "fsdp",
                               sizes != NULL ? sizes : "d1");
    const unsigned long long ways = (unsigned long long)p->ep * p->etp;
    const unsigned long long all = d * p->tp * p->cp;
    return stw_pool_printf(e->pool, "megatron:(attn:%s|ffn:d%llu%s%s%s)", sizes,
                           all >= ways ? all / ways : 1, dim(e, 'p', p->pp), dim(e, 't', p->etp),
                           dim(e, 'e', p->ep));
}

static void put_areal_rollout(stw_emission *e) {
    const uint32_t role = role_of(e, STW_ROLE_ROLLOUT);
    const char *with = stw_emit_role_text(e, role, "with");
    const char *trainer = backend_of(e), *both = trainer;
    const char *rollout = NULL;
    /* one that shares the trainer's GPUs has no settings here; "none" has no text */
    if (role < e->plan->run.n_roles && with == NULL) {
        const stw_role *r = &e->plan->run.roles[role];
        const bool vllm = r->engine == NULL || strcmp(r->engine, "vllm") == 0;
        const uint64_t gpus = stw_job_role_ranks(e->plan->job, role);
        const unsigned long long d =
            gpus / stw_max_u64(stw_times(r->parallel.tp, r->parallel.pp), 1);
        rollout = stw_pool_printf(e->pool, "%s:d%llu%s%s", vllm ? "vllm" : "sglang", d > 0 ? d : 1,
                                  dim(e, 't', r->parallel.tp), dim(e, 'p', r->parallel.pp));
        both = stw_pool_printf(e->pool, "%s+%s", rollout, trainer);
        stw_emit_put(e, vllm ? "vllm.gpu_memory_utilization" : "sglang.mem_fraction_static",
                     stw_emit_role_text(e, role, "gpu_memory_utilization"));
        stw_emit_put_count(e, vllm ? "vllm.max_num_seqs" : "sglang.max_running_requests",
                           r->max_num_seqs);
        stw_emit_put_count(e, vllm ? "vllm.max_model_len" : "sglang.context_length",
                           r->max_model_len);
        stw_emit_put_switch(e, vllm ? "vllm.enforce_eager" : "sglang.disable_cuda_graph",
                            r->enforce_eager);
        if (!vllm) stw_emit_put_count(e, "sglang.max_prefill_tokens", r->max_num_batched_tokens);
    }
    if (stw_emit_find(e, "allocation_mode") != NULL) {
        const char *mode = stw_emit_find(e, "allocation_mode")->value;
        const char *plus = mode != NULL ? strchr(mode, '+') : NULL;
        if (rollout == NULL && plus != NULL) /* a rollout that was left out stays */
            both = stw_pool_printf(e->pool, "%.*s+%s", (int)(plus - mode), mode, trainer);
        stw_emit_put(e, "allocation_mode", both);
        return;
    }
    stw_emit_put(e, "actor.backend", trainer);
    if (rollout != NULL) stw_emit_put(e, "rollout.backend", rollout);
}

static void put_areal_batch(stw_emission *e) {
    const stw_run_spec *run = &e->plan->run;
    const bool generates =
        has_role(e, STW_ROLE_ROLLOUT) || stw_emit_find(e, "gconfig.max_new_tokens") != NULL;
    const uint64_t n = generates ? stw_max_u64(number(e, "gconfig.n_samples", 1), 1) : 1;
    const uint64_t parts = run->batch.mini_batches;
    /* the samples of a prompt may be in several mini batches */
    const uint64_t sequences = stw_times(prompts_of(e, "", 1), generates ? parts : 1);
    if (e->status == STW_STATUS_OK && sequences % n != 0)
        e->status = stw_fail(e->err, STW_STATUS_BAD_INPUT, "--emit",
                             "an iteration of %llu sequences is no multiple of gconfig.n_samples, "
                             "%llu; change batch.mini_batches or batch.tokens_per_step",
                             (unsigned long long)sequences, (unsigned long long)n);
    if (generates)
        put_length(e, "train_dataset.max_length", "gconfig.max_new_tokens");
    else
        stw_emit_put_count(e, "train_dataset.max_length", run->batch.seq_len);
    if (generates) stw_emit_put_count(e, "actor.ppo_n_minibatches", parts);
    stw_emit_put_count(e, "train_dataset.batch_size", sequences / n);
    if (run->batch.max_tokens_per_gpu > 0) {
        stw_emit_put_count(e, "actor.mb_spec.max_tokens_per_mb",
                           stw_times(run->batch.max_tokens_per_gpu, run->parallel.cp));
        return;
    }
    stw_emit_put(e, "actor.mb_spec.max_tokens_per_mb", NULL);
    stw_emit_put_count(e, "actor.mb_spec.n_mbs", run->batch.grad_accumulation);
}

static void put_areal_fsdp(stw_emission *e) {
    const stw_run_spec *run = &e->plan->run;
    const uint64_t rank = run->trainable.lora_rank;
    const char *attention = stw_emit_text(e, "attention");
    stw_emit_put(e, "actor.optimizer_dtype", dtype(e, "precision.params"));
    stw_emit_put(e, "actor.dtype", dtype(e, "precision.compute"));
    stw_emit_put(e, "actor.grad_reduce_dtype", dtype(e, "precision.reduce"));
    stw_emit_put_switch(e, "actor.gradient_checkpointing",
                        strcmp(stw_emit_recompute(e), "none") != 0);
    stw_emit_put_switch(e, "actor.fsdp.offload_params", stw_emit_on(e, "fsdp.offload_policy"));
    const bool streamed = stw_emit_has(e, "optimizer.implementation", "streamed");
    stw_emit_put(e, "actor.fsdp.per_layer_optim_step", streamed ? "true" : NULL);
    stw_emit_put(e, "actor.fsdp.optimizer_step_prefetch_layers", NULL);
    stw_emit_put(e, "actor.fsdp.optim_step_prefetch_layers",
                 streamed ? stw_emit_text(e, "prefetch.depth") : NULL);
    stw_emit_put_switch(e, "actor.fsdp.memory_efficient_load",
                        e->plan->decisions.load == STW_LOAD_RANK0_BROADCAST);
    stw_emit_put_switch(e, "actor.use_lora", rank > 0);
    if (rank > 0) {
        stw_emit_put_count(e, "actor.lora_rank", rank);
        stw_emit_put(e, "actor.target_modules",
                     stw_emit_list(e, stw_emit_text(e, "trainable.lora.targets"), " "));
    }
    if (attention != NULL)
        stw_emit_put(e, "actor.attn_impl",
                     strcmp(attention, "flash") == 0    ? "flash_attention_2"
                     : strcmp(attention, "flash3") == 0 ? "flash_attention_3"
                                                        : attention);
    const bool recomputed = run->batch.log_prob_micro_batch > 0;
    stw_emit_put_switch(e, "actor.recompute_logprob", recomputed);
    if (!recomputed) stw_emit_put(e, "actor.use_decoupled_loss", "false");
}

static void put_areal_megatron(stw_emission *e) {
    static const char *const switches[][2] = {
        {"actor.megatron.ddp.use_distributed_optimizer", "megatron.distributed_optimizer"},
        {"actor.megatron.ddp.overlap_grad_reduce", "megatron.overlap_grad_reduce"},
        {"actor.megatron.ddp.overlap_param_gather", "megatron.overlap_param_gather"},
        {"actor.megatron.use_precision_aware_optimizer", "megatron.precision_aware"},
        {"actor.megatron.cross_entropy_loss_fusion", "megatron.cross_entropy_fusion"},
        {"actor.megatron.moe_shared_expert_overlap", "megatron.shared_expert_overlap"}};
    static const char *const dtypes[][2] = {
        {"actor.megatron.main_grads_dtype", "precision.grads"},
        {"actor.megatron.exp_avg_dtype", "precision.exp_avg"},
        {"actor.megatron.exp_avg_sq_dtype", "precision.exp_avg_sq"}};
    const char *granularity = stw_emit_recompute(e);
    const bool recomputes = strcmp(granularity, "none") != 0;
    const bool some = strcmp(granularity, "selective") == 0;
    stw_emit_put(e, "actor.dtype", "bfloat16");
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++)
        stw_emit_put_switch(e, switches[i][0], stw_emit_on(e, switches[i][1]));
    stw_emit_put_switch(e, "actor.megatron.ddp.grad_reduce_in_fp32",
                        stw_emit_has(e, "precision.grads", "fp32"));
    for (size_t i = 0; i < 3; i++) stw_emit_put(e, dtypes[i][0], dtype(e, dtypes[i][1]));
    stw_emit_put_count(e, "actor.megatron.virtual_pipeline_parallel_size",
                       e->plan->run.parallel.vpp);
    stw_emit_put_switch(e, "actor.gradient_checkpointing", recomputes);
    if (recomputes) {
        const char *method = some ? NULL : stw_emit_recompute_method(e);
        const char *modules = stw_emit_list(e, stw_emit_text(e, "recompute.modules"), " ");
        stw_emit_put(e, "actor.megatron.recompute_granularity", granularity);
        if (method != NULL) stw_emit_put(e, "actor.megatron.recompute_method", method);
        stw_emit_put(e, "actor.megatron.recompute_num_layers",
                     some ? NULL : stw_emit_recompute_layers(e));
        if (some) stw_emit_put(e, "actor.megatron.recompute_modules", modules);
    }
    stw_emit_put(e, "actor.megatron.moe_token_dispatcher_type",
                 stw_emit_has(e, "moe.dispatcher", "allgather") ? "allgather" : "alltoall");
}

void stw_emit_areal(stw_emission *e) {
    const stw_cluster *c = &e->plan->cluster;
    const uint32_t ref = role_of(e, STW_ROLE_REFERENCE);
    if (e->import == NULL) stw_emit_put(e, "actor.path", e->plan->model->name);
    stw_emit_put_count(e, "cluster.n_nodes", c->nodes);
    stw_emit_put_count(e, "cluster.n_gpus_per_node", c->gpus);
    put_areal_rollout(e);
    put_areal_batch(e);
    stw_emit_put(e, "actor.optimizer.type", "adam");
    stw_emit_put(e, "actor.optimizer.gradient_clipping", clip(e));
    if (is_megatron(e))
        put_areal_megatron(e);
    else
        put_areal_fsdp(e);
    stw_emit_put_areal_saves(e);
    if (ref < e->plan->run.n_roles) {
        if (stw_emit_find(e, "ref.path") == NULL) stw_emit_put(e, "ref.path", "${actor.path}");
        stw_emit_put_switch(e, "ref.offload", e->plan->run.roles[ref].params != STW_TIER_GPU);
        const stw_emit_flag *weight = stw_emit_find(e, "actor.kl_ctl");
        if (weight != NULL && weight->value != NULL && !(strtod(weight->value, NULL) > 0))
            stw_emit_put(e, "actor.kl_ctl", "0.1");
    } else if (stw_emit_find(e, "ref.path") != NULL) {
        stw_emit_put(e, "actor.kl_ctl", "0.0");
    }
    if (has_role(e, STW_ROLE_CRITIC) && stw_emit_find(e, "critic.path") == NULL)
        stw_emit_put(e, "critic.path", "${actor.path}");
}

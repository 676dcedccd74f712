/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults are those of verl/trainer/config/_generated_ppo_trainer.yaml and
 * _generated_ppo_megatron_trainer.yaml at 0.9.1; what it does with them is in
 * workers/engine/fsdp/transformer_impl.py, workers/engine/megatron/transformer_impl.py and
 * workers/rollout/. Keys of 0.6 are read, too; where it had another default, 0.9.1's counts. */
#define _DEFAULT_SOURCE /* strcasecmp */
#include "planner/frameworks/import/verl.h"

#include <string.h>
#include <strings.h>

#include "core/checked.h"
#include "planner/frameworks/import/launch.h"
#include "planner/frameworks/import/megatron.h"
#include "planner/frameworks/import/names.h"
#include "planner/frameworks/import/ray.h"
#include "planner/frameworks/import/verl_iteration.h"
#include "planner/frameworks/import/verl_optimizer.h"

#define ACTOR "actor_rollout_ref.actor."
#define MODEL "actor_rollout_ref.model."
#define ROLLOUT "actor_rollout_ref.rollout."
#define REF "actor_rollout_ref.ref."
#define FSDP ACTOR "fsdp_config."
#define MCORE ACTOR "megatron."
#define OVERRIDES MCORE "override_transformer_config."
#define OPTIMIZER ACTOR "optim.override_optimizer_config."
#define DDP MCORE "override_ddp_config."

/* The trainer of sft_trainer_engine.yaml has the actor's engine: its keys are the actor's under
 * other names. */
static const char *const sft_names[][2] = {
    {ACTOR "ppo_mini_batch_size", "data.train_batch_size"},
    {ACTOR "ppo_micro_batch_size_per_gpu", "data.micro_batch_size_per_gpu"},
    {ACTOR "ppo_max_token_len_per_gpu", "data.max_token_len_per_gpu"},
    {ACTOR "use_dynamic_bsz", "data.use_dynamic_bsz"},
    {FSDP, "engine."},
    {MCORE, "engine."},
    {ACTOR "optim.", "optim."},
    {MODEL, "model."},
    {NULL, NULL}};

static bool is_sft(const stw_reading *r) { return r->names != NULL; }

/* ---- the command ---- */

static bool starts_with(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* @return index of the word after `-m verl.trainer.main_ppo` or a script main_*.py; 0: none */
static size_t arguments_begin(const stw_shell_word *words, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *text = words[i].text, *base = strrchr(text, '/');
        base = base != NULL ? base + 1 : text;
        const size_t length = strlen(base);
        const bool module = i > 0 && strcmp(words[i - 1].text, "-m") == 0 &&
                            (starts_with(text, "verl.") || starts_with(text, "recipe."));
        if (module ||
            (starts_with(base, "main_") && length > 3 && strcmp(base + length - 3, ".py") == 0))
            return i + 1;
    }
    return 0;
}

static bool is_wanted(const stw_shell_word *words, size_t n) {
    return arguments_begin(words, n) > 0;
}

static void add_argument(stw_reading *r, const char *name, const char *value,
                         const stw_shell_word *word) {
    if (name != NULL)
        stw_launch_check_open(r, word, name, value, stw_flag_row_named(&stw_verl_flags, name));
    stw_reading_fail(r, stw_flags_add(&r->flags, r->out->pool, name, value, word->line, r->err));
    if (r->status == STW_STATUS_OK) stw_flags_set_source(&r->flags, name, word->source);
}

/* a.b=c, +a.b=c, ++a.b=c, --option=c, --option c; ~a.b leaves a key out. */
static void read_arguments(stw_reading *r, const stw_shell *shell, size_t begin) {
    stw_pool *pool = r->out->pool;
    int hook = 0; /* the line of the first of them */
    for (size_t i = begin; i < shell->n_words && r->status == STW_STATUS_OK; i++) {
        const stw_shell_word *word = &shell->words[i];
        const char *text = word->text + strspn(word->text, "+-~");
        const size_t length = strcspn(text, "=");
        const char *value = text[length] == '=' ? text + length + 1 : NULL;
        const char *source = word->source;
        if (word->text[0] == '$' || *text == '\0') { /* arguments of the script */
            const char *rest = r->out->rest;
            r->out->rest = rest == NULL ? source : stw_pool_printf(pool, "%s %s", source, rest);
            if (hook == 0) hook = word->line;
            continue;
        }
        if (r->out->between == 0) r->out->between = hook;
        if (word->text[0] == '~') value = "null";
        if (value == NULL && word->text[0] == '-' && i + 1 < shell->n_words) {
            value = shell->words[++i].text;
            source = stw_pool_printf(pool, "%s %s", source, shell->words[i].source);
        }
        if (value == NULL)
            r->status = stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->flags.path, word->line, 1,
                                    "found \"%.60s\", expected key=value", word->text);
        else
            add_argument(r, stw_pool_printf(pool, "%.*s", (int)length, text), value,
                         &(stw_shell_word){.text = word->text,
                                           .line = word->line,
                                           .maybe = word->maybe,
                                           .unknown = word->unknown,
                                           .source = source});
    }
}

/* torchrun's --nproc_per_node and --nnodes. */
static void read_launcher(stw_reading *r, const stw_shell *shell, size_t end) {
    static const char *const names[] = {"nproc_per_node", "nnodes"};
    for (size_t i = 0; i < end && r->status == STW_STATUS_OK; i++) {
        char *text = stw_pool_string(r->out->pool, shell->words[i].text);
        if (text == NULL || strncmp(text, "--", 2) != 0) continue;
        char *value = text + strcspn(text, "=");
        if (*value == '=')
            *value++ = '\0';
        else
            value = i + 1 < end ? stw_pool_string(r->out->pool, shell->words[i + 1].text) : NULL;
        for (char *c = text; *c != '\0'; c++)
            if (*c == '-' && c > text + 1) *c = '_';
        for (size_t k = 0; k < 2 && value != NULL; k++)
            if (strcmp(text + 2, names[k]) == 0)
                r->status = stw_flags_add(&r->flags, r->out->pool, names[k], value, 0, r->err);
    }
}

/* ---- values ---- */

static const char *value(stw_reading *r, const char *name, const char *fallback) {
    return stw_reading_value(r, stw_reading_named(r, name), fallback);
}

static bool is_on(stw_reading *r, const char *name, bool fallback) {
    return stw_reading_is_on(r, stw_reading_named(r, name), fallback);
}

static uint64_t count(stw_reading *r, const char *name, uint64_t fallback) {
    return stw_reading_number(r, stw_reading_named(r, name), fallback);
}

static void refuse(stw_reading *r, const char *name, const char *note) {
    stw_reading_refuse(r, stw_reading_named(r, name), note);
}

/* The first of two names that is given. */
static const char *given(stw_reading *r, const char *name, const char *older) {
    return value(r, name, NULL) != NULL || value(r, older, NULL) == NULL ? name : older;
}

/* ---- what both engines have ---- */

typedef struct layout {
    uint64_t gpus, ways; /* ranks of one replica of the data: ulysses, or tp x pp x cp */
    uint64_t sequence;   /* of them, those that share the tokens of a sequence */
    uint64_t seq_len, micro, tokens;
    uint64_t all; /* sequences of a micro batch of all ranks, an older key; 0: not given */
} layout;

/* Rollouts have GPUs of their own in the recipes one_step_off_policy and fully_async_policy: in
 * `rollout.` beside trainer's, later in actor_rollout_ref.rollout. */
static bool has_own_rollout(stw_reading *r) {
    const bool own = !is_on(r, "actor_rollout_ref.hybrid_engine", true);
    static const char *const both[] = {"rollout.nnodes", ROLLOUT "nnodes"};
    for (size_t i = 0; i < 2 && !own; i++)
        if (count(r, both[i], 0) > 0)
            refuse(r, both[i],
                   "rollouts on the trainer's GPUs and on others; set "
                   "actor_rollout_ref.hybrid_engine=False for others alone");
    return own;
}

/* An update takes ppo_mini_batch_size prompts with n responses each. stw_import_batch deals them to
 * the ranks that there are. */
static void set_batch(stw_reading *r, const layout *l) {
    const uint64_t mini = count(r, ACTOR "ppo_mini_batch_size", 256);
    const uint64_t sequences = stw_times(mini, is_sft(r) ? 1 : count(r, ROLLOUT "n", 1));
    const uint64_t ranks = stw_max_u64(l->gpus / stw_max_u64(l->ways, 1), 1);
    const uint64_t micro = stw_max_u64(l->all > 0 ? l->all / ranks : l->micro, 1);
    uint64_t steps = stw_div_up_u64(sequences, stw_times(micro, ranks));
    stw_reading_set_count(r, "batch.seq_len", l->seq_len);
    if (l->tokens > 0) {
        const uint64_t shared = stw_times(ranks, stw_max_u64(l->sequence, 1));
        stw_reading_set_count(r, "batch.max_tokens_per_gpu", l->tokens);
        steps = stw_div_up_u64(stw_times(sequences, l->seq_len), stw_times(l->tokens, shared));
    } else {
        stw_reading_set_count(r, "batch.micro_batch", micro);
    }
    stw_reading_set_count(r, "batch.grad_accumulation", stw_max_u64(stw_min_u64(steps, 65536), 1));
    r->out->step_sequences = sequences;
    stw_verl_set_iteration(r, mini, is_sft(r));
    stw_reading_assume(r, "length of sequences",
                       is_sft(r) ? "data.max_length" : "max_prompt_length + max_response_length",
                       "the data may be shorter; an upper bound");
}

/* torchrun's processes; trainer's keys count where verl starts them. */
static uint64_t launched(stw_reading *r) {
    static const char *const names[] = {"nproc_per_node", "nnodes"};
    uint64_t n[] = {count(r, "trainer.n_gpus_per_node", 1), count(r, "trainer.nnodes", 1)};
    for (size_t i = 0; i < 2; i++) {
        const char *text = stw_reading_text(r, names[i], NULL);
        if (text == NULL || stw_reading_parse_count(text, &n[i])) continue;
        n[i] = i == 0 ? 8 : 1;
        stw_reading_assume(r, names[i], i == 0 ? "8" : "1", "an argument of the script");
    }
    r->out->nodes = n[1];
    if (n[1] > 0)
        r->out->nodes_name = stw_pool_printf(r->out->pool, "nnodes %llu", (unsigned long long)n[1]);
    return stw_times(n[0], n[1]);
}

static layout sft_layout_of(stw_reading *r) {
    layout l = {.ways = 1, .gpus = launched(r), .seq_len = count(r, "data.max_length", 1024)};
    l.micro = count(r, "data.micro_batch_size_per_gpu", 4);
    if (is_on(r, "data.use_dynamic_bsz", true))
        l.tokens = count(r, "data.max_token_len_per_gpu", 8192);
    r->out->gpus = l.gpus;
    return l;
}

static layout layout_of(stw_reading *r) {
    layout l = {.ways = 1};
    r->out->nodes = count(r, "trainer.nnodes", 1);
    r->out->nodes_name =
        stw_pool_printf(r->out->pool, "trainer.nnodes %llu", (unsigned long long)r->out->nodes);
    l.gpus = stw_times(r->out->nodes, count(r, "trainer.n_gpus_per_node", 8));
    l.seq_len = stw_plus(count(r, "data.max_prompt_length", 512),
                         count(r, "data.max_response_length", 512));
    const bool dynamic = is_on(r, ACTOR "use_dynamic_bsz", false);
    l.all = count(r, ACTOR "ppo_micro_batch_size", 0);
    l.micro = count(r, ACTOR "ppo_micro_batch_size_per_gpu", dynamic || l.all > 0 ? 1 : 0);
    if (dynamic) l.tokens = count(r, ACTOR "ppo_max_token_len_per_gpu", 16384);
    if (l.micro == 0)
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_BAD_INPUT, r->flags.path,
                                     ACTOR "ppo_micro_batch_size_per_gpu: required, or "
                                           "use_dynamic_bsz=True"));
    r->out->gpus = l.gpus;
    return l;
}

static bool has_reference(stw_reading *r) {
    return is_on(r, ACTOR "use_kl_loss", false) || is_on(r, "algorithm.use_kl_in_reward", false);
}

/* trainer/ppo/utils.py, need_critic. */
static bool has_critic(stw_reading *r) {
    return is_on(r, "critic.enable",
                 strcasecmp(value(r, "algorithm.adv_estimator", "gae"), "gae") == 0);
}

static const char *role_key(stw_reading *r, unsigned index, const char *key) {
    const char *text = stw_pool_printf(r->out->pool, "roles.%u.%s", index, key);
    return text != NULL ? text : "roles.0.name";
}

/* bucketed_weight_transfer.py: tensors one after the other through a bucket; sglang_rollout.py,
 * update_weights: as many tensors as fill one. 0.6 had the key beside the rollout's. */
static void set_bucket(stw_reading *r, unsigned index, const char *engine) {
    const char *name = given(r, ROLLOUT "checkpoint_engine.update_weights_bucket_megabytes",
                             ROLLOUT "update_weights_bucket_megabytes");
    const char *size =
        stw_pool_printf(r->out->pool, "%llu MiB", (unsigned long long)count(r, name, 2048));
    stw_reading_set(r, role_key(r, index, "update_bucket"), size != NULL ? size : "1 GiB");
    if (strcmp(engine, "sglang") == 0) stw_reading_set(r, "weight_sync.method", "buckets");
}

/* Servers that generate all the time do not sleep; the trainer's weights come by NCCL.
 * @return false if they are not whole nodes */
static bool set_own_nodes(stw_reading *r, unsigned index) {
    const uint64_t per_node = count(r, "trainer.n_gpus_per_node", 8);
    const uint64_t nodes =
        count(r, count(r, ROLLOUT "nnodes", 0) > 0 ? ROLLOUT "nnodes" : "rollout.nnodes", 1);
    const uint64_t gpus =
        count(r, given(r, "rollout.n_gpus_per_node", ROLLOUT "n_gpus_per_node"), per_node);
    if (gpus != per_node) {
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "rollout",
                         stw_pool_printf(r->out->pool, "%llu x %llu GPUs",
                                         (unsigned long long)nodes, (unsigned long long)gpus),
                         "not as many GPUs of a node as the trainer's: the trainer's GPUs are "
                         "planned without it");
        return false;
    }
    stw_reading_set(r, role_key(r, index, "with"), "none");
    stw_reading_set_count(r, role_key(r, index, "nodes"), nodes);
    r->out->gpus = stw_plus(r->out->gpus, stw_times(nodes, gpus));
    r->out->nodes_name = stw_pool_printf(r->out->pool, "%s and %llu nodes of rollouts",
                                         r->out->nodes_name, (unsigned long long)nodes);
    r->out->nodes = stw_plus(r->out->nodes, nodes);
    return true;
}

/* @return false if it is planned without one */
static bool set_rollout(stw_reading *r, unsigned index, const layout *l) {
    static const struct {
        const char *name, *key, *fallback;
    } copied[] = {
        {ROLLOUT "tensor_model_parallel_size", "parallel.tp", "2"},
        {ROLLOUT "gpu_memory_utilization", "gpu_memory_utilization", "0.5"},
        {ROLLOUT "max_num_seqs", "max_num_seqs", "256"},
        {ROLLOUT "max_num_batched_tokens", "max_num_batched_tokens", "8192"},
    };
    const char *engine = value(r, ROLLOUT "name", "vllm");
    const bool own = has_own_rollout(r);
    const bool sleeps = !own && is_on(r, ROLLOUT "free_cache_engine", true);
    if (strcmp(engine, "vllm") != 0 && strcmp(engine, "sglang") != 0)
        refuse(r, ROLLOUT "name", "use vllm or sglang");
    if (own && !set_own_nodes(r, index)) return false;
    stw_reading_set(r, role_key(r, index, "name"), "rollout");
    stw_reading_set(r, role_key(r, index, "kind"), "rollout");
    stw_reading_set(r, role_key(r, index, "engine"), engine);
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++)
        stw_reading_set(r, role_key(r, index, copied[i].key),
                        value(r, copied[i].name, copied[i].fallback));
    stw_reading_set_count(r, role_key(r, index, "max_model_len"),
                          count(r, ROLLOUT "max_model_len", l->seq_len));
    stw_reading_set_switch(r, role_key(r, index, "enforce_eager"),
                           is_on(r, ROLLOUT "enforce_eager", false));
    if (!own) stw_reading_set_switch(r, role_key(r, index, "free_cache_engine"), sleeps);
    /* vllm_async_server.py, _resolve_sleep_level: weights are discarded, since every update brings
     * new ones; those beside adapters are not. layered_summon: vllm_rollout_spmd.py at 0.6.1 */
    const bool keeps =
        count(r, MODEL "lora_rank", 0) > 0 || is_on(r, ROLLOUT "layered_summon", false);
    if (sleeps && strcmp(engine, "vllm") == 0)
        stw_reading_set(r, role_key(r, index, "sleep_level"), keeps ? "1" : "2");
    if (value(r, ROLLOUT "name", NULL) == NULL)
        stw_reading_assume(r, ROLLOUT "name", engine, "it has no default");
    set_bucket(r, index, engine);
    return true;
}

/* A reference model of FSDP lies on the host (fsdp_workers.py, _build_model_optimizer), one of
 * Megatron-LM between forwards, if it is offloaded; with adapters it is the actor without them. */
static void set_roles(stw_reading *r, const layout *l, bool megatron) {
    unsigned n = set_rollout(r, 0, l) ? 1 : 0;
    const bool host =
        !megatron || is_on(r, REF "megatron.param_offload", is_on(r, MCORE "param_offload", false));
    if (has_reference(r) && count(r, MODEL "lora_rank", 0) == 0) {
        stw_reading_set(r, role_key(r, n, "name"), "reference");
        stw_reading_set(r, role_key(r, n, "kind"), "reference");
        stw_reading_set(r, role_key(r, n++, "placement.params"), host ? "host" : "gpu");
    }
    if (has_critic(r)) {
        stw_reading_set(r, role_key(r, n, "name"), "critic");
        stw_reading_set(r, role_key(r, n, "kind"), "critic");
    }
}

static void set_parking(stw_reading *r, bool params, bool grads, bool moments) {
    if (params) stw_reading_set(r, "park.params", "host");
    if (grads) stw_reading_set(r, "park.grads", "host");
    if (!moments) return;
    stw_reading_set(r, "park.moments", "host");
    stw_reading_set(r, "park.moments_back", "forward_backward"); /* update_actor loads both */
}

static void set_recompute(stw_reading *r) {
    stw_reading_set(r, "recompute.granularity",
                    is_on(r, MODEL "enable_gradient_checkpointing", true) ? "full" : "none");
}

/* ---- fsdp ---- */

static void set_shards(stw_reading *r, const layout *l) {
    const uint64_t sp = l->ways;
    const char *text = value(r, FSDP "fsdp_size", "-1");
    if (sp > 1) {
        stw_reading_set_count(r, "parallel.cp", sp);
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "ulysses_sequence_parallel_size",
                         value(r, ACTOR "ulysses_sequence_parallel_size", "1"),
                         "planned as ring attention");
    }
    if (strcmp(text, "-1") == 0) return;
    const uint64_t size = count(r, FSDP "fsdp_size", l->gpus);
    r->out->shard_gpus = size;
    if (size == 0 || size >= l->gpus) return;
    stw_reading_set_count(r, "parallel.dp_shard", size >= sp ? size / sp : 1);
    stw_reading_set_count(r, "parallel.dp_replicate", l->gpus / size);
}

/* Not where the rollout's own are used, and there is no model whose others are asked for. */
static bool has_log_prob(stw_reading *r) {
    const char *own =
        given(r, "async_training.use_rollout_log_probs", ACTOR "use_rollout_log_probs");
    return !is_sft(r) && (!has_own_rollout(r) || has_reference(r) || !is_on(r, own, false));
}

/* fsdp_workers.py, compute_log_prob: the rollout's keys; its kernel reads the logits once. */
static void set_log_prob(stw_reading *r, const layout *l) {
    const uint64_t all = count(r, ROLLOUT "log_prob_micro_batch_size", 0);
    const uint64_t ranks = stw_max_u64(l->gpus / stw_max_u64(l->ways, 1), 1);
    uint64_t micro =
        count(r, ROLLOUT "log_prob_micro_batch_size_per_gpu", all > 0 ? all / ranks : l->micro);
    if (is_on(r, ROLLOUT "log_prob_use_dynamic_bsz", l->tokens > 0)) {
        const uint64_t tokens =
            count(r, ROLLOUT "log_prob_max_token_len_per_gpu", l->tokens > 0 ? l->tokens : 16384);
        micro = l->seq_len > 0 ? stw_times(tokens, l->ways) / l->seq_len : 1;
    }
    stw_reading_set_count(r, "batch.log_prob_micro_batch", micro > 0 ? micro : 1);
    stw_reading_set(r, "batch.log_prob_method", "kernel");
}

static void set_lora(stw_reading *r) {
    const uint64_t rank = count(r, MODEL "lora_rank", 0);
    const char *targets = value(r, MODEL "target_modules", "all-linear");
    if (rank == 0) return;
    stw_reading_set_count(r, "trainable.lora.rank", rank);
    r->out->derived.all_linear = strcmp(targets, "all-linear") == 0;
    if (!r->out->derived.all_linear) stw_reading_set(r, "trainable.lora.targets", targets);
}

static void set_precision(stw_reading *r) {
    const char *type = value(r, FSDP "model_dtype", "fp32");
    const bool half = strcmp(type, "bf16") == 0 || strcmp(type, "bfloat16") == 0;
    if (!half && strcmp(type, "fp32") != 0 && strcmp(type, "float32") != 0)
        refuse(r, FSDP "model_dtype", "use fp32 or bfloat16");
    static const char *const keys[] = {"precision.params", "precision.grads", "precision.exp_avg",
                                       "precision.exp_avg_sq"};
    for (size_t i = 0; i < 4; i++) stw_reading_set(r, keys[i], half ? "bf16" : "fp32");
    stw_reading_set(r, "precision.compute", "bf16");
    stw_reading_set(r, "precision.reduce", "fp32");
}

static void use_fsdp(stw_reading *r, layout *l, const char *strategy) {
    const bool policy = is_on(r, FSDP "offload_policy", false) && strcmp(strategy, "fsdp2") == 0;
    l->ways = count(
        r, given(r, ACTOR "ulysses_sequence_parallel_size", FSDP "ulysses_sequence_parallel_size"),
        1);
    l->sequence = l->ways;
    const char *named = value(r, ACTOR "strategy", value(r, FSDP "strategy", NULL));
    if (strcmp(strategy, "fsdp") == 0 && named == NULL)
        stw_reading_assume(r, is_sft(r) ? "engine.strategy" : ACTOR "strategy", "fsdp",
                           "the default, FSDP1, which is planned as FSDP2");
    else if (strcmp(strategy, "fsdp") == 0)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "strategy", "fsdp",
                         "FSDP1 is planned as FSDP2");
    stw_reading_set(r, "engine", "fsdp2");
    set_precision(r);
    set_batch(r, l);
    set_shards(r, l);
    set_recompute(r);
    set_lora(r);
    if (has_log_prob(r)) set_log_prob(r, l);
    /* the merger is a part of model.visual */
    r->out->derived.freeze_vision = r->out->derived.freeze_projector =
        is_on(r, ACTOR "freeze_vision_tower", false);
    /* with a policy verl's own offload is set aside */
    stw_reading_set_switch(r, "fsdp.offload_policy", policy);
    set_parking(r, !policy && is_on(r, FSDP "param_offload", false), false,
                !policy && stw_verl_parks_moments(r));
    stw_reading_set_switch(r, "fsdp.reshard_after_forward",
                           is_on(r, FSDP "reshard_after_forward", true));
    /* fsdp_utils.py, apply_fsdp2; 0.9.1 makes a unit of the head, too, which is planned in the
     * root's */
    r->out->derived.wrap_embeddings = strcmp(strategy, "fsdp2") == 0;
    stw_reading_set(r, "load.method", "rank0_broadcast");
    if (!policy) stw_verl_set_optimizer(r);
    stw_reading_set(r, "optimizer.clip_norm",
                    value(r, given(r, ACTOR "grad_clip", ACTOR "optim.clip_grad"), "1.0"));
    if (is_on(r, given(r, ACTOR "use_fused_kernels", MODEL "use_fused_kernels"), false))
        stw_reading_set(r, "loss.fused", "true");
    else /* logits stay in bf16; flash-attn's kernel keeps less than what is planned */
        stw_reading_set(r, "loss.upcast", "bf16");
}

/* ---- megatron ---- */

/* A setting of verl becomes a flag of Megatron-LM. */
static void pass(stw_reading *r, stw_reading *to, const char *flag, const char *text) {
    if (text != NULL)
        stw_reading_fail(r, stw_flags_add(&to->flags, r->out->pool, flag, text, 0, r->err));
}

/* Keys of override_transformer_config and override_optimizer_config are Megatron-LM's. */
static void pass_overrides(stw_reading *r, stw_reading *to, const char *asked) {
    const char *before = stw_reading_named(r, asked);
    static const char *const renamed[][2] = {
        {"num-layers-in-first-pipeline-stage", "decoder-first-pipeline-num-layers"},
        {"num-layers-in-last-pipeline-stage", "decoder-last-pipeline-num-layers"},
        {"fp8", "fp8-format"},
    };
    for (size_t i = 0; i < r->flags.n && r->status == STW_STATUS_OK; i++) {
        const stw_flag *flag = &r->flags.items[i];
        if (!starts_with(flag->name, before)) continue;
        char *name = stw_pool_string(r->out->pool, flag->name + strlen(before));
        for (char *c = name; c != NULL && *c != '\0'; c++)
            if (*c == '_') *c = '-';
        const char *text = stw_reading_value(r, flag->name, NULL), *as = name;
        for (size_t k = 0; k < sizeof renamed / sizeof renamed[0] && name != NULL; k++)
            if (strcmp(name, renamed[k][0]) == 0) as = renamed[k][1];
        if (text != NULL)
            stw_reading_fail(r,
                             stw_flags_add(&to->flags, r->out->pool, as, text, flag->line, r->err));
    }
}

/* megatron/mcore/: as verl builds its transformer config and its DDP. */
static void pass_settings(stw_reading *r, stw_reading *to) {
    static const char *const pairs[][3] = {
        {MCORE "tensor_model_parallel_size", "tensor-model-parallel-size", "1"},
        {MCORE "pipeline_model_parallel_size", "pipeline-model-parallel-size", "1"},
        {MCORE "context_parallel_size", "context-parallel-size", "1"},
        {MCORE "expert_model_parallel_size", "expert-model-parallel-size", "1"},
        {MCORE "expert_tensor_parallel_size", "expert-tensor-parallel-size", NULL},
        {MCORE "virtual_pipeline_model_parallel_size", "num-virtual-stages-per-pipeline-rank",
         NULL},
        {MCORE "sequence_parallel", "sequence-parallel", "true"},
        {MCORE "use_distributed_optimizer", "use-distributed-optimizer", "true"},
        {MCORE "use_megatron_fsdp", "use-megatron-fsdp", "false"},
        {ACTOR "optim.clip_grad", "clip-grad", "1.0"},
        {ACTOR "optim.use_precision_aware_optimizer", "use-precision-aware-optimizer", "false"},
        {ACTOR "optim.main_grads_dtype", "main-grads-dtype", NULL},
        {ACTOR "optim.exp_avg_dtype", "exp-avg-dtype", NULL},
        {ACTOR "optim.exp_avg_sq_dtype", "exp-avg-sq-dtype", NULL},
    };
    static const char *const fixed[][2] = {
        {"bf16", "true"},
        {"attention-backend", "flash"},
        {"hidden-dropout", "0"},
        {"attention-dropout", "0"},
        {"moe-grouped-gemm", "true"},
        {"moe-token-dispatcher-type", "alltoall"},
        {"transformer-impl", "transformer_engine"},
        {"no-gradient-accumulation-fusion", "true"}, /* models/mcore/config_converter.py */
    };
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        pass(r, to, fixed[i][0], fixed[i][1]);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        pass(r, to, pairs[i][1], value(r, pairs[i][0], pairs[i][2]));
    pass_overrides(r, to, OVERRIDES);
    pass_overrides(r, to, OPTIMIZER);
    pass_overrides(r, to, DDP);
}

/* Lines of overridden fields have the names that the file has. */
static void name_overrides(stw_reading *r, size_t from) {
    static const char *const sections[] = {OVERRIDES, OPTIMIZER, DDP};
    for (size_t i = from; i < r->out->n_lines; i++)
        for (size_t k = 0; k < 3; k++) {
            const char *section = stw_reading_named(r, sections[k]);
            char *name = stw_pool_printf(r->out->pool, "%s%s", section, r->out->lines[i].flag);
            for (char *c = name; c != NULL && *c != '\0'; c++)
                if (*c == '-') *c = '_';
            const stw_flag *own = name != NULL ? stw_flags_find(&r->flags, name) : NULL;
            if (own == NULL) continue;
            r->out->lines[i].flag = own->name;
            break;
        }
}

static void use_megatron(stw_reading *r, layout *l) {
    stw_reading to = {.out = r->out, .err = r->err, .status = STW_STATUS_OK};
    to.flags.path = r->flags.path;
    l->ways = stw_times(count(r, MCORE "tensor_model_parallel_size", 1),
                        stw_times(count(r, MCORE "pipeline_model_parallel_size", 1),
                                  count(r, MCORE "context_parallel_size", 1)));
    l->sequence = count(r, MCORE "context_parallel_size", 1);
    if (count(r, MODEL "lora_rank", 0) + count(r, MODEL "lora.rank", 0) > 0)
        stw_reading_refuse(
            r, value(r, MODEL "lora.rank", NULL) != NULL ? MODEL "lora.rank" : MODEL "lora_rank",
            "adapters of its Megatron actor are not planned; use strategy fsdp2");
    pass_settings(r, &to);
    const size_t before = r->out->n_lines;
    if (r->status == STW_STATUS_OK) stw_megatron_read(&to, &stw_verl_megatron_flags);
    stw_reading_fail(r, to.status);
    name_overrides(r, before);
    set_batch(r, l);
    if (!is_sft(r) && is_on(r, MODEL "enable_gradient_checkpointing", false) &&
        value(r, OVERRIDES "recompute_granularity", NULL) == NULL)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, MODEL "enable_gradient_checkpointing", "true",
                         "Megatron-LM's workers do not read it (0.6.1, 0.9.1): planned without "
                         "recomputation; that is actor.megatron.override_transformer_config."
                         "recompute_granularity=full with recompute_method=uniform and "
                         "recompute_num_layers=1");
    if (is_on(r, ACTOR "freeze_vision_tower", false))
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, ACTOR "freeze_vision_tower", "true",
                         "engine megatron is planned with all parameters trained");
    if (is_on(r, MODEL "use_fused_kernels", false))
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, MODEL "use_fused_kernels", "true",
                         "engine megatron is planned with whole logits");
    if (has_log_prob(r))
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "log-probabilities", "of the actor",
                         "engine megatron has no phase log_prob: an iteration takes longer than "
                         "planned");
    /* HybridDeviceOptimizer keeps its state on the host: nothing of it is left to park */
    const bool hybrid = is_on(r, OPTIMIZER "optimizer_cpu_offload", false);
    set_parking(r, is_on(r, MCORE "param_offload", false), is_on(r, MCORE "grad_offload", false),
                !hybrid && is_on(r, MCORE "optimizer_offload", false));
    r->out->global_batch = 0;
}

/* ---- all ---- */

/* What an actor's key is where it is not given, as it is read above, and its other name.
 */
static const char *default_of(stw_reading *r, const char *name) {
    static const char *const defaults[][3] = {
        {ACTOR "strategy", "fsdp", FSDP "strategy"},
        {ACTOR "ppo_mini_batch_size", "256"},
        {ACTOR "ppo_epochs", "1"},
        {ACTOR "use_dynamic_bsz", "false"},
        {ACTOR "ppo_max_token_len_per_gpu", "16384"},
        {ACTOR "ulysses_sequence_parallel_size", "1", FSDP "ulysses_sequence_parallel_size"},
        {ACTOR "grad_clip", "1.0", ACTOR "optim.clip_grad"},
        {FSDP "param_offload", "false"},
        {FSDP "optimizer_offload", "false"},
        {FSDP "offload_policy", "false"},
        {FSDP "reshard_after_forward", "true"},
        {FSDP "fsdp_size", "-1"},
        {FSDP "model_dtype", "fp32"},
        {MCORE "tensor_model_parallel_size", "1"},
        {MCORE "pipeline_model_parallel_size", "1"},
        {MCORE "context_parallel_size", "1"},
        {MCORE "expert_model_parallel_size", "1"},
        {MCORE "sequence_parallel", "true"},
        {MCORE "use_distributed_optimizer", "true"},
        {MCORE "param_offload", "false"},
        {MCORE "grad_offload", "false"},
        {MCORE "optimizer_offload", "false"},
        {MODEL "enable_gradient_checkpointing", "true"},
        {MODEL "use_fused_kernels", "false", ACTOR "use_fused_kernels"},
        {MODEL "lora_rank", "0"},
    };
    const stw_flag_row *row = stw_flag_row_named(&stw_verl_flags, name);
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        if (strcmp(defaults[i][0], name) == 0)
            return defaults[i][2] != NULL ? value(r, defaults[i][2], defaults[i][1])
                                          : defaults[i][1];
    return row != NULL ? row->harmless : NULL;
}

/* The actor's key that says the same of the actor, or NULL. */
static const char *actors_key(stw_reading *r, const char *name) {
    static const char *const of_actor[][2] = {{REF, ACTOR},
                                              {"critic.model.fsdp_config.", FSDP},
                                              {"critic.fsdp.", FSDP},
                                              {"critic.model.", MODEL},
                                              {"critic.", ACTOR}};
    for (size_t i = 0; i < 5; i++)
        if (starts_with(name, of_actor[i][0]))
            return stw_pool_printf(r->out->pool, "%s%s", of_actor[i][1],
                                   name + strlen(of_actor[i][0]));
    return NULL;
}

/* A key of the reference model or the critic that repeats the actor's changes nothing; nor does
 * one that changes nothing of the actor. */
static bool repeats_actor(stw_reading *r, const stw_flag *flag) {
    const char *name = actors_key(r, flag->name), *own = value(r, flag->name, NULL);
    if (name == NULL) return false;
    const stw_flag_row *row = stw_flag_row_named(&stw_verl_flags, name);
    const char *actor = value(r, name, default_of(r, name));
    return own == NULL || (row != NULL && row->use == STW_FLAG_IDLE) ||
           (actor != NULL && stw_reading_same(own, actor));
}

/* A critic is planned as the actor's model with a head of one output. @return is the key its path,
 * and the path the actor's? */
static bool has_actors_path(stw_reading *r, const stw_flag *flag) {
    const char *actor = value(r, MODEL "path", NULL), *own = value(r, flag->name, NULL);
    if (strcmp(flag->name, "critic.model.path") != 0 || own == NULL) return false;
    if (actor != NULL && stw_names_same(own, actor)) return true;
    refuse(r, flag->name,
           actor != NULL ? "one model per run; plan the critic apart"
                         : "name the actor's model, too (" MODEL
                           "path); a critic is planned with it");
    return false;
}

/* A flag of the trainer of SFT under the name that the actor's has. */
static const char *asked(stw_reading *r, const char *name, bool megatron) {
    for (size_t i = 0; r->names != NULL && r->names[i][0] != NULL; i++) {
        const bool other = strcmp(r->names[i][0], megatron ? FSDP : MCORE) == 0;
        if (other || !starts_with(name, r->names[i][1])) continue;
        const char *text =
            stw_pool_printf(r->out->pool, "%s%s", r->names[i][0], name + strlen(r->names[i][1]));
        return text != NULL ? text : name;
    }
    return name;
}

static void sort_all(stw_reading *r, bool megatron) {
    for (size_t i = 0; i < r->flags.n && r->status == STW_STATUS_OK; i++) {
        const stw_flag *flag = &r->flags.items[i];
        const char *name = asked(r, flag->name, megatron);
        const stw_flag_row *row = stw_flag_row_named(&stw_verl_flags, name);
        if (megatron && (starts_with(name, OVERRIDES) || starts_with(name, OPTIMIZER) ||
                         starts_with(name, DDP)))
            continue; /* sorted as Megatron-LM's */
        const bool transformers =
            strcmp(name, MODEL "enable_gradient_checkpointing") == 0 ||
            strcmp(flag->name, "critic.model.enable_gradient_checkpointing") == 0;
        const bool null = starts_with(flag->name, "critic.") && !has_critic(r);
        const bool listed = row != NULL && row->use == STW_FLAG_LISTED;
        const bool unset =
            stw_reading_value(r, flag->name, NULL) == NULL || stw_reading_is_reference(flag->value);
        static const char *const lengths[] = {"data.max_length", "data.max_prompt_length",
                                              "data.max_response_length"};
        bool other = false; /* the length of the other trainer's sequences */
        for (size_t k = 0; k < 3; k++)
            other = other || (is_sft(r) == (k > 0) && strcmp(name, lengths[k]) == 0);
        if (null || other || has_actors_path(r, flag) || repeats_actor(r, flag) ||
            (megatron && transformers) || (listed && unset) ||
            (starts_with(flag->name, REF) && listed && !has_reference(r)))
            stw_reading_line(r, STW_IMPORT_NO_EFFECT, flag->name, flag->value, "");
        else
            stw_reading_sort(r, flag, row);
    }
}

/* A config in place of a script. */
static bool is_document(stw_reading *r, const char *text, size_t length) {
    stw_flags flags;
    return stw_flags_parse_paths(r->out->path, text, length, r->out->pool, &flags, NULL) ==
               STW_STATUS_OK &&
           flags.n > 0;
}

static stw_status read_flags(stw_reading *r, const char *text, size_t length) {
    stw_shell shell;
    stw_error why = STW_ERROR_INIT;
    stw_status status = stw_launch_find(r->out, text, length, is_wanted, &shell, &why);
    const bool script = status == STW_STATUS_OK ? shell.n_found > 0 : !is_document(r, text, length);
    if (script && status != STW_STATUS_OK) {
        if (r->err != NULL) *r->err = why;
        return status;
    }
    if (!script) {
        stw_reading_ray(r, NULL);
        return stw_flags_parse_paths(r->out->path, text, length, r->out->pool, &r->flags, r->err);
    }
    r->flags.path = r->out->path;
    r->flags.dashes = "";
    stw_launch_check_found(r, &shell);
    const size_t begin = arguments_begin(shell.words, shell.n_words);
    const char *program = shell.words[begin - 1].text;
    const char *base = strrchr(program, '.') != NULL ? strrchr(program, '.') + 1 : program;
    const bool sft = strcmp(base, "sft_trainer") == 0;
    if (!sft && (strstr(program, "sft") != NULL || strstr(program, "generation") != NULL))
        stw_reading_fail(
            r, stw_fail_at(
                   r->err, STW_STATUS_NOT_BUILT_IN, r->out->path, shell.words[begin - 1].line, 1,
                   "%.60s: not implemented: use main_ppo or sft_trainer, or a run file", program));
    if (r->status != STW_STATUS_OK) return r->status;
    r->out->program = program;
    if (sft) r->names = sft_names;
    if (sft) read_launcher(r, &shell, begin);
    if (!sft) stw_reading_ray(r, &shell);
    stw_launch_keep_environment(r, &shell);
    read_arguments(r, &shell, begin);
    stw_launch_read_allocator(r, &shell);
    return r->status;
}

/* The group `model_engine` of ppo_trainer.yaml names the files of the actor's defaults; before 0.7
 * a file of its own did. */
static stw_status choose_engine(stw_reading *r) {
    const char *group = stw_reading_text(r, "engine", "fsdp");
    if (is_sft(r)) {
        if (strcmp(group, "fsdp") != 0 && strcmp(group, "megatron") != 0)
            refuse(r, "engine", "use fsdp or megatron");
        return r->status;
    }
    const char *config = stw_reading_text(r, "config-name", "");
    const char *engine =
        stw_reading_text(r, "model_engine", strstr(config, "megatron") != NULL ? "megatron" : "dp");
    const bool megatron = strcmp(engine, "megatron") == 0;
    if (!megatron && strcmp(engine, "dp") != 0) refuse(r, "model_engine", "use dp or megatron");
    if (r->status == STW_STATUS_OK && megatron &&
        stw_flags_find(&r->flags, ACTOR "strategy") == NULL)
        return stw_flags_add(&r->flags, r->out->pool, ACTOR "strategy", "megatron", 0, r->err);
    return r->status;
}

stw_status stw_verl_import(const char *text, size_t length, stw_import *out, stw_error *err) {
    stw_reading r = {.out = out, .err = err, .status = STW_STATUS_OK};
    out->dashes = "";
    stw_status status = read_flags(&r, text, length);
    if (status == STW_STATUS_OK) status = choose_engine(&r);
    if (status != STW_STATUS_OK) return status;
    const char *strategy = value(&r, ACTOR "strategy", value(&r, FSDP "strategy", "fsdp"));
    if (is_sft(&r) && strcmp(stw_reading_text(&r, "engine", "fsdp"), "megatron") == 0)
        strategy = "megatron";
    const bool megatron = strcmp(strategy, "megatron") == 0;
    layout l = is_sft(&r) ? sft_layout_of(&r) : layout_of(&r);
    out->derived.sees = true;
    out->model = value(&r, MODEL "path", NULL);
    if (!megatron && strcmp(strategy, "fsdp") != 0 && strcmp(strategy, "fsdp2") != 0)
        stw_reading_refuse(&r, ACTOR "strategy", "use fsdp, fsdp2 or megatron");
    if (r.status == STW_STATUS_OK && megatron) use_megatron(&r, &l);
    if (r.status == STW_STATUS_OK && !megatron) use_fsdp(&r, &l, strategy);
    if (r.status == STW_STATUS_OK && !is_sft(&r)) set_roles(&r, &l, megatron);
    sort_all(&r, megatron);
    out->flags = r.flags;
    return r.status;
}

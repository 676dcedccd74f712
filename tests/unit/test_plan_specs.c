/* SPDX-License-Identifier: Apache-2.0 */
/* Run specs: the contract's keys, errors with their places, exact round trips; and every row and
 * example file of both specs. */
#define _POSIX_C_SOURCE 200809L /* opendir */
#include <dirent.h>
#include <stdlib.h>

#include "core/file.h"
#include "engines/deepspeed/keys.h"
#include "engines/fsdp_keys.h"
#include "engines/megatron/megatron.h"
#include "plan/spec/cluster.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

static stw_status run_from_yaml(const char *text, stw_run_spec *run, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_yaml("run.yaml", text, strlen(text), &tree, err);
    if (status == STW_STATUS_OK) status = stw_run_spec_from_node(tree, tree->root, run, err);
    stw_tree_free(tree);
    return status;
}

static stw_status run_from_json(const char *text, stw_run_spec *run, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_json("plan.json", text, strlen(text), &tree, err);
    if (status == STW_STATUS_OK)
        status = stw_run_spec_from_node(tree, stw_node_get(tree->root, "run"), run, err);
    stw_tree_free(tree);
    return status;
}

static char *run_yaml(const stw_run_spec *run) {
    stw_text text = STW_TEXT_INIT;
    stw_run_spec_write_yaml(run, &text);
    CU_ASSERT_FALSE_FATAL(text.failed);
    return text.data;
}

static char *run_json(const stw_run_spec *run) {
    stw_text text = STW_TEXT_INIT;
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_run_spec_write_json(run, json, "run");
    stw_json_end(json);
    CHECK_OK(stw_json_finish(json, &text, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(text.data);
    return text.data;
}

/* The contract's run.yaml, every key at its default. */
static const char contract_run[] =
    "engine: stowage\n"
    "parallel:  {dp_shard: auto, dp_replicate: 1, tp: 1, pp: 1, vpp: 1, cp: 1, cp_kind: ring,\n"
    "            ep: 1, etp: 1, sequence_parallel: false}\n"
    "precision: {params: fp32, compute: bf16, grads: fp32, reduce: fp32, master: none,\n"
    "            exp_avg: fp32, exp_avg_sq: fp32}\n"
    "batch:     {micro_batch: 1, seq_len: auto, max_tokens_per_gpu: none,\n"
    "            grad_accumulation: 1, log_prob_micro_batch: none}\n"
    "optimizer: {kind: adamw, implementation: auto, clip_norm: 1.0, groups: []}\n"
    "update:    {resident: auto, stream: auto, direct: 0, cpu: auto}\n"
    "trainable: {lora: none, freeze: []}\n"
    "placement: {params: auto, grads: auto, master: auto, moments: auto, activations: auto,\n"
    "            gpu_fill: 0.98, nvme_copies: 1}\n"
    "park:      {params: none, grads: none, moments: none}\n"
    "prefetch:  {depth: auto, bucket: auto}\n"
    "recompute: {granularity: auto, method: none, num_layers: 0, modules: []}\n"
    "attention: flash\n"
    "loss:      {fused: false, chunk: 0, upcast: fp32}\n"
    "moe:       {dispatcher: alltoall, capacity_factor: none, imbalance: 1.0}\n"
    "fsdp:      {reshard_after_forward: true, offload_policy: false, wrap_embeddings: false}\n"
    "megatron:  {distributed_optimizer: true, fsdp: none, optimizer_offload_fraction: auto,\n"
    "            overlap_d2h_h2d: false, precision_aware: false, overlap_grad_reduce: false,\n"
    "            overlap_param_gather: false, ckpt_format: torch_dist}\n"
    "deepspeed: {zero_stage: 3, offload_optimizer: none, offload_param: none,\n"
    "            pin_memory: true, ratio: 1.0, reduce_bucket: 5e8, overlap_comm: false,\n"
    "            sub_group_size: 1e9, prefetch_bucket: 5e7, max_live_parameters: 1e9,\n"
    "            max_reuse_distance: 1e9, persistence_threshold: 1e5}\n"
    "load:      {method: auto, weights: none}\n"
    "checkpoint: {contents: [model, optimizer], every: 0}\n"
    "roles: []\n";

/* Another value for every key, roles as in the contract's comment. */
static const char changed_run[] =
    "engine: megatron\n"
    "parallel: {dp_shard: 8, dp_replicate: 2, tp: 4, pp: 3, vpp: 5, cp: 6, cp_kind: ulysses,\n"
    "           ep: 7, etp: 9, sequence_parallel: true}\n"
    "precision: {params: bf16, compute: fp16, grads: bf16, reduce: bf16, master: fp32,\n"
    "            exp_avg: bf16, exp_avg_sq: fp16}\n"
    "batch: {micro_batch: 2, seq_len: 8k, max_tokens_per_gpu: 16384, grad_accumulation: 3,\n"
    "        log_prob_micro_batch: 4}\n"
    "optimizer: {implementation: streamed, clip_norm: none, lr: 3e-5, betas: [0.8, 0.95],\n"
    "            eps: 1e-6, weight_decay: 10%, groups: [{match: [1d, '*.bias'], weight_decay: 0},\n"
    "            {match: ['*'], lr: 1e-4}]}\n"
    "update: {resident: 0.1, stream: 20%, direct: auto, cpu: 0}\n"
    "trainable: {lora: {rank: 16, targets: [q_proj, 'a, b: c']}, freeze: [vision, \"1\"]}\n"
    "placement: {params: gpu, grads: host, master: nvme, moments: host, activations: offload,\n"
    "            gpu_fill: 0.9, nvme_copies: 2}\n"
    "park: {params: host, grads: host, moments: host}\n"
    "prefetch: {depth: 2, bucket: 32 MiB}\n"
    "recompute: {granularity: selective, method: block, num_layers: 11, modules: [core_attn]}\n"
    "attention: eager\n"
    "loss: {fused: true, chunk: 1024, upcast: bf16}\n"
    "moe: {dispatcher: deepep, capacity_factor: 1.25, imbalance: 1.5}\n"
    "fsdp: {reshard_after_forward: false, offload_policy: true, wrap_embeddings: true}\n"
    "megatron: {distributed_optimizer: false, fsdp: optim, optimizer_offload_fraction: 0.5,\n"
    "           overlap_d2h_h2d: true, precision_aware: true, overlap_grad_reduce: true,\n"
    "           overlap_param_gather: true, ckpt_format: fsdp_dtensor}\n"
    "deepspeed: {zero_stage: 2, offload_optimizer: cpu, offload_param: cpu, pin_memory: false,\n"
    "            ratio: 0.3, reduce_bucket: 2e8, overlap_comm: true, sub_group_size: 2e8,\n"
    "            prefetch_bucket: 9007199254740993, max_live_parameters: 7,\n"
    "            max_reuse_distance: 8, persistence_threshold: 9}\n"
    "load: {method: node_leader, weights: /data/it's \"here\"/model}\n"
    "checkpoint: {contents: [optimizer], every: 10}\n"
    "roles:\n"
    "- {name: rollout, kind: rollout, nodes: 4, with: trainer, engine: vllm, dtype: bf16,\n"
    "   parallel: {tp: 8}, gpu_memory_utilization: 0.8, kv_dtype: auto, max_model_len: 32768,\n"
    "   max_num_seqs: 256, max_num_batched_tokens: 16384,\n"
    "   enforce_eager: true, free_cache_engine: false, sleep_level: 2,\n"
    "   update_bucket: 1 GiB, update_in_place: true, builds_trainer_model: true}\n"
    "- {name: judge, kind: reward, with: none, dtype: fp8, kv_dtype: fp8}\n";

static void terms_have_words(void) {
    stw_phase phase = STW_N_PHASES;
    stw_component component = STW_N_COMPONENTS;
    stw_tier tier = STW_N_TIERS;
    stw_update update = STW_N_UPDATES;
    stw_act act = STW_N_ACTS;
    stw_load load = STW_N_LOADS;
    for (int i = 0; i < STW_N_PHASES; i++) {
        CU_ASSERT_TRUE(stw_phase_parse(stw_phase_name((stw_phase)i), &phase));
        CU_ASSERT_EQUAL((int)phase, i);
    }
    for (int i = 0; i < STW_N_COMPONENTS; i++) {
        CU_ASSERT_TRUE(stw_component_parse(stw_component_name((stw_component)i), &component));
        CU_ASSERT_EQUAL((int)component, i);
    }
    CU_ASSERT_STRING_EQUAL(stw_component_name((stw_component)(STW_N_STATE - 1)), "exp_avg_sq");
    CU_ASSERT_TRUE(stw_tier_parse("nvme", &tier) && tier == STW_TIER_NVME);
    CU_ASSERT_TRUE(stw_update_parse("stream", &update) && update == STW_UPDATE_STREAM);
    CU_ASSERT_TRUE(stw_act_parse("offload", &act) && act == STW_ACT_OFFLOAD);
    CU_ASSERT_TRUE(stw_load_parse("sharded_read", &load) && load == STW_LOAD_SHARDED_READ);
    CU_ASSERT_STRING_EQUAL(stw_stream_name(STW_STREAM_D2H), "d2h");
    CU_ASSERT_FALSE(stw_tier_parse("GPU", &tier));
    CU_ASSERT_FALSE(stw_phase_parse("", &phase));
    CU_ASSERT_STRING_EQUAL(stw_tier_name(STW_N_TIERS), "?");
}

static void defaults_are_the_contracts(void) {
    stw_run_spec run, read;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_run_spec_init(&read, err));
    CHECK_OK(run_from_yaml(changed_run, &read, err)); /* so that every key has to be read back */
    CHECK_OK(run_from_yaml(contract_run, &read, err));
    CHECK_OK(stw_run_spec_set(&read, "optimizer.lr", "1e-3", "test", err));
    CHECK_OK(stw_run_spec_set(&read, "optimizer.betas", "[0.9, 0.999]", "test", err));
    CHECK_OK(stw_run_spec_set(&read, "optimizer.eps", "1e-8", "test", err));
    CHECK_OK(stw_run_spec_set(&read, "optimizer.weight_decay", "1%", "test", err));
    char *a = run_yaml(&run), *b = run_yaml(&read);
    CU_ASSERT_STRING_EQUAL(a, b);
    CU_ASSERT_STRING_EQUAL(stw_run_spec_engine(&run)->name, "stowage");
    CU_ASSERT_EQUAL(run.parallel.dp_shard, STW_AUTO);
    CU_ASSERT_EQUAL(run.parallel.etp, 1);
    CU_ASSERT_EQUAL(run.precision.params, STW_DTYPE_F32);
    CU_ASSERT_EQUAL(run.precision.compute, STW_DTYPE_BF16);
    CU_ASSERT_FALSE(run.precision.has_master);
    CU_ASSERT_EQUAL(run.batch.seq_len, 0); /* auto */
    CU_ASSERT_EQUAL(run.batch.max_tokens_per_gpu, 0);
    CU_ASSERT_EQUAL(run.optimizer.clip_norm, 1.0);
    CU_ASSERT_EQUAL(run.optimizer.lr, 1e-3);
    CU_ASSERT_EQUAL(run.optimizer.beta2, 0.999);
    CU_ASSERT_EQUAL(run.optimizer.n_groups, 0);
    CU_ASSERT_EQUAL(run.update.resident, STW_AUTO_NUMBER);
    CU_ASSERT_EQUAL(run.update.stream, STW_AUTO_NUMBER);
    CU_ASSERT_EQUAL(run.update.direct, 0.0);
    CU_ASSERT_EQUAL(run.update.cpu, STW_AUTO_NUMBER);
    CU_ASSERT_EQUAL(run.placement.nvme_copies, 1);
    CU_ASSERT_EQUAL(run.placement.activations, STW_AUTO);
    CU_ASSERT_EQUAL(run.prefetch.depth, STW_AUTO);
    CU_ASSERT_EQUAL(run.prefetch.bucket_bytes, STW_AUTO_BYTES);
    CU_ASSERT_EQUAL(run.recompute.granularity, STW_AUTO);
    CU_ASSERT_EQUAL(run.moe.capacity_factor, 0.0);
    CU_ASSERT_TRUE(stw_fsdp_settings_of(&run).reshard_after_forward);
    CU_ASSERT_STRING_EQUAL(stw_megatron_settings_of(&run).ckpt_format, "torch_dist");
    CU_ASSERT_EQUAL(stw_deepspeed_settings_of(&run).prefetch_bucket, 50000000);
    CU_ASSERT_EQUAL(run.load.method, STW_AUTO);
    CU_ASSERT_PTR_NULL(run.load.weights);
    CU_ASSERT_TRUE(run.checkpoint.model && run.checkpoint.optimizer);
    CU_ASSERT_EQUAL(run.n_roles, 0);
    CHECK_OK(stw_run_spec_check(&run, "run.yaml", err));
    free(a);
    free(b);
    stw_run_spec_free(&read);
    stw_run_spec_free(&run);
    stw_run_spec_free(&run); /* twice is fine */
}

static void check_changed_groups(const stw_run_spec *run) {
    CU_ASSERT_EQUAL_FATAL(run->optimizer.n_groups, 2);
    const stw_param_group *groups = run->optimizer.groups;
    CU_ASSERT_EQUAL_FATAL(groups[0].match.n, 2);
    CU_ASSERT_STRING_EQUAL(groups[0].match.items[0], "1d");
    CU_ASSERT_STRING_EQUAL(groups[0].match.items[1], "*.bias");
    CU_ASSERT_EQUAL(groups[0].weight_decay, 0.0);
    CU_ASSERT_EQUAL(groups[0].lr, STW_AUTO_NUMBER);
    CU_ASSERT_EQUAL_FATAL(groups[1].match.n, 1);
    CU_ASSERT_EQUAL(groups[1].lr, 1e-4);
    CU_ASSERT_EQUAL(groups[1].weight_decay, STW_AUTO_NUMBER);
}

static void check_changed(const stw_run_spec *run) {
    check_changed_groups(run);
    CU_ASSERT_EQUAL(run->update.resident, 0.1);
    CU_ASSERT_EQUAL(run->update.stream, 0.2);
    CU_ASSERT_EQUAL(run->update.direct, STW_AUTO_NUMBER);
    CU_ASSERT_EQUAL(run->update.cpu, 0.0);
    CU_ASSERT_EQUAL(run->placement.nvme_copies, 2);
    CU_ASSERT_STRING_EQUAL(stw_run_spec_engine(run)->name, "megatron");
    CU_ASSERT_EQUAL(run->parallel.dp_shard, 8);
    CU_ASSERT_EQUAL(run->parallel.etp, 9);
    CU_ASSERT_EQUAL(run->parallel.cp_kind, 1);
    CU_ASSERT_TRUE(run->precision.has_master);
    CU_ASSERT_EQUAL(run->precision.exp_avg_sq, STW_DTYPE_F16);
    CU_ASSERT_EQUAL(run->batch.seq_len, 8192);
    CU_ASSERT_EQUAL(run->batch.log_prob_micro_batch, 4);
    CU_ASSERT_EQUAL(run->optimizer.implementation, STW_OPTIMIZER_STREAMED);
    CU_ASSERT_EQUAL(run->optimizer.clip_norm, 0.0);
    CU_ASSERT_EQUAL(run->optimizer.lr, 3e-5);
    CU_ASSERT_EQUAL(run->optimizer.beta1, 0.8);
    CU_ASSERT_EQUAL(run->optimizer.weight_decay, 0.1);
    CU_ASSERT_EQUAL(run->trainable.lora_rank, 16);
    CU_ASSERT_EQUAL_FATAL(run->trainable.lora_targets.n, 2);
    CU_ASSERT_STRING_EQUAL(run->trainable.lora_targets.items[1], "a, b: c");
    CU_ASSERT_EQUAL_FATAL(run->trainable.freeze.n, 2);
    CU_ASSERT_STRING_EQUAL(run->trainable.freeze.items[1], "1");
    CU_ASSERT_EQUAL(run->placement.master, STW_TIER_NVME);
    CU_ASSERT_EQUAL(run->placement.activations, STW_ACT_OFFLOAD);
    CU_ASSERT_TRUE(run->park.grads);
    CU_ASSERT_EQUAL(run->prefetch.bucket_bytes, 32u << 20);
    CU_ASSERT_EQUAL(run->recompute.granularity, 2);
    CU_ASSERT_EQUAL(run->recompute.method, 2);
    CU_ASSERT_EQUAL(run->attention, STW_ATTENTION_EAGER);
    CU_ASSERT_EQUAL(run->moe.dispatcher, 2);
    CU_ASSERT_EQUAL(run->moe.capacity_factor, 1.25);
    CU_ASSERT_EQUAL(stw_megatron_settings_of(run).optimizer_offload_fraction, 0.5);
    CU_ASSERT_EQUAL(stw_deepspeed_settings_of(run).prefetch_bucket,
                    9007199254740993u); /* no double holds it */
    CU_ASSERT_EQUAL(run->load.method, STW_LOAD_NODE_LEADER);
    CU_ASSERT_STRING_EQUAL(run->load.weights, "/data/it's \"here\"/model");
    CU_ASSERT_FALSE(run->checkpoint.model);
    CU_ASSERT_TRUE(run->checkpoint.optimizer);
    CU_ASSERT_EQUAL_FATAL(run->n_roles, 2);
    const stw_role *rollout = &run->roles[0], *judge = &run->roles[1];
    CU_ASSERT_EQUAL(rollout->nodes, 4);
    CU_ASSERT_EQUAL(rollout->parallel.tp, 8);
    CU_ASSERT_EQUAL(rollout->parallel.dp_shard, STW_AUTO);
    CU_ASSERT_EQUAL(rollout->gpu_memory_utilization, 0.8);
    CU_ASSERT_EQUAL(rollout->update_bucket_bytes, 1u << 30);
    CU_ASSERT_TRUE(rollout->builds_trainer_model && rollout->enforce_eager);
    CU_ASSERT_TRUE(rollout->update_in_place);
    CU_ASSERT_STRING_EQUAL(judge->name, "judge");
    CU_ASSERT_EQUAL(judge->kind, STW_ROLE_REWARD);
    CU_ASSERT_STRING_EQUAL(judge->with, "none");
    CU_ASSERT_EQUAL(judge->dtype, STW_DTYPE_F8_E4M3);
    CU_ASSERT_EQUAL(judge->nodes, STW_AUTO);
    CU_ASSERT_EQUAL(judge->sleep_level, STW_AUTO);
    CU_ASSERT_EQUAL(judge->kv_dtype, STW_DTYPE_F8_E4M3);
    CU_ASSERT_EQUAL(rollout->free_cache_engine, false);
    CU_ASSERT_EQUAL(judge->free_cache_engine, STW_AUTO);
}

static void every_key_round_trips(void) {
    stw_run_spec run, again;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(run_from_yaml(changed_run, &run, err));
    check_changed(&run);
    char *yaml = run_yaml(&run), *json = run_json(&run);

    CHECK_OK(stw_run_spec_init(&again, err));
    CHECK_OK(run_from_yaml(yaml, &again, err));
    check_changed(&again);
    char *yaml_again = run_yaml(&again);
    CU_ASSERT_STRING_EQUAL(yaml, yaml_again);
    stw_run_spec_free(&again);

    CHECK_OK(stw_run_spec_init(&again, err));
    CHECK_OK(run_from_json(json, &again, err));
    check_changed(&again);
    char *json_again = run_json(&again);
    CU_ASSERT_STRING_EQUAL(json, json_again);
    CU_ASSERT_PTR_NOT_NULL(strstr(json, "33554432")); /* base units */
    stw_run_spec_free(&again);
    free(yaml);
    free(json);
    free(yaml_again);
    free(json_again);

    /* A later file lies over an earlier one: only what it says changes, a list as a whole. */
    CHECK_OK(run_from_yaml("trainable: {lora: none}\nroles: [{name: a}]\n", &run, err));
    CU_ASSERT_EQUAL(run.trainable.lora_rank, 0);
    CU_ASSERT_EQUAL(run.trainable.lora_targets.n, 0);
    CU_ASSERT_EQUAL(run.n_roles, 1);
    CU_ASSERT_EQUAL(run.parallel.dp_shard, 8);
    stw_run_spec_free(&run);
}

/* The keys that a wrong one may mean, with spaces between. */
static const char *meant_by(const char *wrong) {
    static char out[512];
    const char *near[STW_SPEC_MOST_NEAR];
    size_t n = stw_spec_near_keys(wrong, near, STW_SPEC_MOST_NEAR), used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(out + used, sizeof out - used, "%s%s", i > 0 ? " " : "", near[i]);
    return out;
}

static void other_names_are_understood(void) {
    static const struct {
        const char *wrong, *meant;
    } cases[] = {
        {"sequence", "batch.seq_len"},
        {"batch.seq", "batch.seq_len"},
        {"batch.max_length", "batch.seq_len"},
        {"optimizer.learning_rate", "optimizer.lr"},
        {"Gradient-Accumulation-Steps", "batch.grad_accumulation"},
        {"grad_accum_dtype", "precision.grads"},
        {"communication_data_type", "precision.reduce"},
        {"micro_batch_size", "batch.micro_batch"},
        {"tp_size", "parallel.tp"},
        {"offload", "placement.activations fsdp.offload_policy"},
        {"fsdp.offload", "fsdp.offload_policy"},
        {"placment.params", "placement.params"},
        {"prefetch_bucket", "prefetch.bucket deepspeed.prefetch_bucket"},
        {"zero_stage", "deepspeed.zero_stage parallel.dp_shard fsdp.reshard_after_forward"},
        {"gradient_checkpointing", "recompute.granularity"},
        {"world_size", "nodes node.gpus"},
        {"memory", "node.gpu.memory node.host.memory"},
        {"node.memory", "node.gpu.memory node.host.memory"},
        {"a.b.d", ""},
        {"pcie", "node.pcie.h2d node.pcie.d2h node.pcie.both node.pcie.direct"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CU_ASSERT_STRING_EQUAL(meant_by(cases[i].wrong), cases[i].meant);
}

/* What a row is called elsewhere is no key, and names nothing twice. */
static void other_names_are_no_keys(void) {
    const stw_spec_table *tables[] = {stw_run_spec_table(), stw_cluster_table()};
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < tables[t]->n_rows; i++) {
            char names[512], *next = names;
            snprintf(names, sizeof names, "%s",
                     tables[t]->rows[i].also != NULL ? tables[t]->rows[i].also : "");
            for (char *name; (name = strtok_r(next, " ", &next)) != NULL;) {
                CU_ASSERT_FALSE(stw_run_spec_has_key(name));
                CU_ASSERT_FALSE(stw_cluster_has_key(name));
                CU_ASSERT_PTR_NOT_NULL(strstr(meant_by(name), tables[t]->rows[i].key));
            }
        }
}

/* Each row by itself: its default can be written and set again, the key is known, and with a letter
 * changed it is the nearest one. */
static void every_row_is_complete(void) {
    const stw_spec_table *tables[] = {stw_run_spec_table(), stw_cluster_table()};
    for (size_t t = 0; t < 2; t++) {
        stw_run_spec run;
        stw_cluster cluster;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_cluster_defaults(&cluster, err));
        const stw_spec spec = {tables[t], t == 0 ? (void *)&run : &cluster, run.pool, NULL};
        for (size_t i = 0; i < tables[t]->n_rows; i++) {
            const stw_spec_row *row = &tables[t]->rows[i];
            stw_text value = STW_TEXT_INIT, again = STW_TEXT_INIT;
            char wrong[128];
            if (row->kind == STW_SPEC_TEXT || row->kind == STW_SPEC_STRING) continue; /* quotes */
            stw_spec_write_value(row, spec.base, &value);
            CU_ASSERT_PTR_NOT_NULL_FATAL(value.data);
            CHECK_OK(stw_spec_set(&spec, row->key, value.data, "test", err));
            stw_spec_write_value(row, spec.base, &again);
            CU_ASSERT_STRING_EQUAL(value.data, again.data);
            stw_text_free(&value);
            stw_text_free(&again);
            CU_ASSERT_TRUE(t == 0 ? stw_run_spec_has_key(row->key) : stw_cluster_has_key(row->key));
            CU_ASSERT_FALSE(t == 0 ? stw_cluster_has_key(row->key)
                                   : stw_run_spec_has_key(row->key));
            snprintf(wrong, sizeof wrong, "%sx", row->key);
            CU_ASSERT_STRING_EQUAL(meant_by(wrong), row->key);
        }
        stw_run_spec_free(&run);
    }
    CU_ASSERT_STRING_EQUAL(meant_by("seq_len"), "batch.seq_len");
    CU_ASSERT_STRING_EQUAL(meant_by("optimiser.kind"), "optimizer.kind");
    CU_ASSERT_STRING_EQUAL(meant_by("something else altogether"), "");
    CU_ASSERT_TRUE(stw_run_spec_has_key("roles.3.parallel.tp"));
    CU_ASSERT_FALSE(stw_run_spec_has_key("roles.x.name"));
    CU_ASSERT_FALSE(stw_run_spec_has_key(""));
}

static void bad_yaml_is_placed(void) {
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"optimiser:\n  kind: adamw\n",
         "run.yaml:1:1: unknown key \"optimiser\"; did you mean \"optimizer\"?"},
        {"batch:\n  seq_len: 1\n  micro_bach: 2\n",
         "run.yaml:3:3: unknown key \"batch.micro_bach\"; did you mean \"batch.micro_batch\"?"},
        {"seq_len: 1\n", "did you mean \"batch.seq_len\"?"},
        {"batch.seq_len: 1\n", "unknown key \"batch.seq_len\""},
        {"quite_different: 1\n", "known here: engine, parallel"},
        {"optimizer: {kind: sgd}\n",
         "run.yaml:1:19: optimizer.kind: found \"sgd\", expected adamw"},
        {"optimizer: adamw\n", "expected a map of keys"},
        {"- engine\n", "found an array, expected a map of keys"},
        {"batch:\n  seq_len: -1\n",
         "run.yaml:2:12: batch.seq_len: found \"-1\", which is negative"},
        {"batch: {seq_len: 1e30}\n", "2^63"},
        {"batch: {seq_len: 99999999999999999999}\n", "64 bits"},
        {"batch: {seq_len: 1.5}\n", "not whole"},
        {"batch: {seq_len: \"4096\"}\n", "found the string \"4096\", expected auto or a whole"},
        {"batch: {seq_len: true}\n", "found true, expected auto or a whole number"},
        {"batch: {seq_len: }\n", "found null"},
        {"batch: {seq_len: [1]}\n", "found an array"},
        {"batch: {seq_len: 4 GiB}\n", "unit"},
        {"prefetch: {bucket: 5 parsec}\n", "unit"},
        {"prefetch: {bucket: unlimited}\n", "expected auto or"},
        {"prefetch: {bucket: 16777216}\n",
         "found \"16777216\" without a unit, expected auto or a size such as \"80 GiB\""},
        {"batch: {seq_len: 8.0001k}\n", "which is not whole"},
        {"batch: {seq_len: 17M}\n", "expected auto or 1 to 16777216"},
        {"batch: {micro_batch: 4e9}\n", "found \"4e9\", expected 1 to 65536"},
        {"batch: {grad_accumulation: 4294967293}\n", "expected 1 to 65536"},
        {"engine: foo\n", "expected stowage | fsdp2"},
        {"prefetch: {bucket: 20 EiB}\n", "EiB"},
        {"prefetch: {bucket: 10000 PiB}\n", "2^63"},
        {"prefetch: {depth: 4294967295}\n", "below 4294967294"},
        {"parallel: {tp: some}\n", "found \"some\""},
        {"parallel: {cp_kind: auto}\n", "found \"auto\""},
        {"precision: auto\n", "expected a map of keys"},
        {"fsdp: {offload_policy: yes}\n", "expected true or false"},
        {"fsdp: {offload_policy: 1}\n", "found the number 1, expected true or false"},
        {"load: {weights: 3}\n", "expected none or a string"},
        {"optimizer: {betas: [0.9]}\n", "expected a list of two numbers"},
        {"optimizer: {betas: [0.9, high]}\n", "expected a number"},
        {"optimizer: {lr: .nan}\n", "undefined"},
        {"checkpoint: {contents: [model, optimiser]}\n", "expected model | optimizer"},
        {"checkpoint: {contents: optimiser}\n", "expected model | optimizer"},
        {"checkpoint: {contents: 3}\n", "expected a list"},
        {"trainable: {freeze: [a, {b: c}]}\n", "expected a string that is not empty"},
        {"trainable: {lora: 16}\n", "expected none or a map"},
        {"trainable: {lora: {rang: 16}}\n", "did you mean \"trainable.lora.rank\"?"},
        {"roles: {name: a}\n", "expected a list of at most 64 maps"},
        {"roles: [a]\n", "expected a map of keys"},
        {"roles:\n- {name: a}\n- {nmae: b}\n",
         "run.yaml:3:4: unknown key \"roles.1.nmae\"; did you mean \"roles.1.name\"?"},
        {"roles: [{parallel: {tp: x}}]\n", "roles.0.parallel.tp: found \"x\""},
        {"engine: [\n", "not valid YAML"},
        {"engine: stowage\nengine: fsdp2\n", "found the key \"engine\" again"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_run_spec run, untouched;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_run_spec_init(&untouched, err));
        CHECK_FAILS(run_from_yaml(cases[i].text, &run, err), STW_STATUS_BAD_INPUT, cases[i].word);
        char *a = run_yaml(&run), *b = run_yaml(&untouched);
        CU_ASSERT_STRING_EQUAL(a, b);
        free(a);
        free(b);
        stw_run_spec_free(&run);
        stw_run_spec_free(&untouched);
    }
    stw_run_spec run;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(run_from_yaml("", &run, err)); /* an empty file changes nothing */
    CHECK_FAILS(stw_run_spec_read("no/such/run.yaml", &run, err), STW_STATUS_IO, "no/such");
    CHECK_FAILS(run_from_json("{\"run\": {\"batch\": {\"seq_len\": \"4096\"}}}", &run, err),
                STW_STATUS_BAD_INPUT, "plan.json:1:");
    CHECK_FAILS(run_from_json("{\"run\": {\"prefetch\": {\"bucket\": -1}}}", &run, err),
                STW_STATUS_BAD_INPUT, "negative");
    stw_run_spec_free(&run);
}

static void set_takes_every_kind(void) {
    stw_run_spec run;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_run_spec_set(&run, "placement.moments", "host", "--set", err));
    CU_ASSERT_EQUAL(run.placement.moments, STW_TIER_HOST);
    CHECK_OK(stw_run_spec_set(&run, "prefetch.bucket", "16MiB", "--set", err));
    CU_ASSERT_EQUAL(run.prefetch.bucket_bytes, 16u << 20);
    CHECK_OK(stw_run_spec_set(&run, "load.weights", "a: #b", "--set", err)); /* no YAML here */
    CU_ASSERT_STRING_EQUAL(run.load.weights, "a: #b");
    CHECK_OK(stw_run_spec_set(&run, "load.weights", "none", "--set", err));
    CU_ASSERT_PTR_NULL(run.load.weights);
    CHECK_OK(stw_run_spec_set(&run, "trainable.freeze", "[a, b]", "--set", err));
    CU_ASSERT_EQUAL(run.trainable.freeze.n, 2);
    CHECK_OK(stw_run_spec_set(&run, "trainable.lora", "{rank: 4}", "--set", err));
    CHECK_OK(stw_run_spec_set(&run, "trainable.lora.rank", "8", "--set", err));
    CU_ASSERT_EQUAL(run.trainable.lora_rank, 8);
    CHECK_OK(stw_run_spec_set(&run, "parallel", "{cp: 2, ep: 4}", "--set", err));
    CU_ASSERT_EQUAL(run.parallel.ep, 4);
    CHECK_OK(stw_run_spec_set(&run, "roles.0.name", "rollout", "--set", err));
    CHECK_OK(stw_run_spec_set(&run, "roles.0.parallel.tp", "8", "--set", err));
    CHECK_OK(stw_run_spec_set(&run, "roles.1.name", "judge", "--set", err));
    CU_ASSERT_EQUAL_FATAL(run.n_roles, 2);
    CU_ASSERT_STRING_EQUAL(run.roles[0].name, "rollout");
    CU_ASSERT_EQUAL(run.roles[0].parallel.tp, 8);
    CU_ASSERT_EQUAL(run.roles[1].parallel.tp, 1);
    stw_run_spec copy = run; /* as planners of changes make it: of its own in what it sets */
    CHECK_OK(stw_run_spec_set(&copy, "roles.0.parallel.tp", "4", "--set", err));
    CU_ASSERT_EQUAL(copy.roles[0].parallel.tp, 4);
    CU_ASSERT_EQUAL(run.roles[0].parallel.tp, 8);
    CHECK_FAILS(stw_run_spec_set(&run, "roles.3.name", "x", "--set", err), STW_STATUS_BAD_INPUT,
                "expected 0 to 2 (2 appends an item)");
    CHECK_FAILS(stw_run_spec_set(&run, "roles.2.nam", "x", "--set", err), STW_STATUS_BAD_INPUT,
                "did you mean \"roles.2.name\"?");
    CHECK_FAILS(stw_run_spec_set(&run, "roles.2.nodes", "x", "--set", err), STW_STATUS_BAD_INPUT,
                "roles.2.nodes: found \"x\"");
    CU_ASSERT_EQUAL(run.n_roles, 2); /* a failed append appends nothing */
    CHECK_FAILS(stw_run_spec_set(&run, "batch.seqlen", "1", "--set", err), STW_STATUS_BAD_INPUT,
                "--set: unknown key \"batch.seqlen\"; did you mean \"batch.seq_len\"?");
    CHECK_FAILS(stw_run_spec_set(&run, "batch.seq_len", "", "--set", err), STW_STATUS_BAD_INPUT,
                "--set: batch.seq_len: found \"\"");
    CHECK_FAILS(stw_run_spec_set(&run, "load.weights", "\xff", "--set", err), STW_STATUS_BAD_INPUT,
                "UTF-8");
    CHECK_FAILS(stw_run_spec_set(&run, "parallel", "{tp", "--set", err), STW_STATUS_BAD_INPUT,
                "not valid YAML");
    CHECK_FAILS(stw_run_spec_set(&run, "", "1", "--set", err), STW_STATUS_BAD_INPUT, "unknown key");
    stw_run_spec_free(&run);
}

/* A cluster has a `node`, a run has none. */
static void check_example(const char *path) {
    stw_tree *tree = NULL;
    CHECK_OK(stw_tree_read_yaml(path, &tree, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    if (stw_node_get(tree->root, "node") != NULL) {
        stw_cluster cluster;
        CHECK_OK(stw_cluster_read(path, &cluster, err));
        CHECK_OK(stw_cluster_check(&cluster, path, err));
        CU_ASSERT_EQUAL(cluster.calibration.measured, strstr(path, "h200") != NULL);
    } else {
        stw_run_spec run;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_run_spec_read(path, &run, err));
        CHECK_OK(stw_run_spec_check(&run, path, err));
        stw_run_spec_free(&run);
    }
    stw_tree_free(tree);
}

static void every_example_is_read(void) {
    static const char folder[] = STW_SOURCE_MODELS "/examples";
    char *readme = NULL;
    uint64_t length = 0;
    unsigned count = 0;
    CHECK_OK(
        stw_file_read(STW_SOURCE_MODELS "/examples/README.md", 1 << 20, &readme, &length, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(readme);
    DIR *dir = opendir(folder);
    CU_ASSERT_PTR_NOT_NULL_FATAL(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[1024];
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || strcmp(dot, ".yaml") != 0) continue;
        snprintf(path, sizeof path, "%s/%.200s", folder, entry->d_name);
        check_example(path);
        CU_ASSERT_PTR_NOT_NULL(strstr(readme, entry->d_name)); /* one line per file there */
        count++;
    }
    closedir(dir);
    free(readme);
    CU_ASSERT_TRUE(count >= 17);
}

/* default.yaml is what the writer says of the defaults, behind its head of comments. */
static void default_example_is_written(void) {
    char *text = NULL;
    uint64_t length = 0;
    stw_run_spec run;
    CHECK_OK(
        stw_file_read(STW_SOURCE_MODELS "/examples/default.yaml", 1 << 20, &text, &length, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    const char *body = text;
    while (*body == '#') body = strchr(body, '\n') + 1;
    CHECK_OK(stw_run_spec_init(&run, err));
    char *yaml = run_yaml(&run);
    CU_ASSERT_STRING_EQUAL(body, yaml);
    free(yaml);
    free(text);
    stw_run_spec_free(&run);
}

/* Keys precision.* that are not set follow the engine, in whichever order and form they are set. */
static void precision_follows_the_engine(void) {
    stw_run_spec run, read;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_run_spec_set(&run, "engine", "deepspeed", "test", err));
    CU_ASSERT_EQUAL(run.precision.params, STW_DTYPE_BF16);
    CU_ASSERT_EQUAL(run.precision.grads, STW_DTYPE_BF16);
    CU_ASSERT_EQUAL(run.precision.reduce, STW_DTYPE_BF16);
    CU_ASSERT_TRUE(run.precision.has_master);
    char *written = run_json(&run);
    CHECK_OK(stw_run_spec_init(&read, err));
    CHECK_OK(run_from_json(written, &read, err));
    CU_ASSERT_EQUAL(read.precision.grads, STW_DTYPE_BF16);
    CHECK_OK(stw_run_spec_set(&read, "engine", "stowage", "test", err)); /* all are given */
    CU_ASSERT_EQUAL(read.precision.grads, STW_DTYPE_BF16);
    stw_run_spec_free(&read);
    free(written);
    CHECK_OK(stw_run_spec_set(&run, "engine", "stowage", "test", err));
    CU_ASSERT_EQUAL(run.precision.params, STW_DTYPE_F32);
    CU_ASSERT_FALSE(run.precision.has_master);
    CHECK_OK(run_from_yaml("precision: {grads: fp16}\nengine: deepspeed\n", &run, err));
    CU_ASSERT_EQUAL(run.precision.params, STW_DTYPE_BF16);
    CU_ASSERT_EQUAL(run.precision.grads, STW_DTYPE_F16);
    stw_run_spec_free(&run);
}

/* fp16 of parameters or of the computation alone is an engine's training in fp16. */
static void fp16_follows_the_engine(void) {
    static const char *const engines[] = {"megatron", "deepspeed"};
    static const char *const keys[] = {"precision.params", "precision.compute"};
    for (int i = 0; i < 4; i++) {
        stw_run_spec run;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_run_spec_set(&run, "engine", engines[i / 2], "test", err));
        CHECK_OK(stw_run_spec_set(&run, keys[i % 2], "fp16", "test", err));
        CU_ASSERT_EQUAL(run.precision.params, STW_DTYPE_F16);
        CU_ASSERT_EQUAL(run.precision.compute, STW_DTYPE_F16);
        CU_ASSERT_EQUAL(run.precision.grads, STW_DTYPE_F16);
        CU_ASSERT_EQUAL(run.precision.reduce, STW_DTYPE_F16);
        CU_ASSERT_EQUAL(run.precision.exp_avg, STW_DTYPE_F32);
        CU_ASSERT_TRUE(run.precision.has_master);
        CHECK_OK(stw_run_spec_check(&run, "test", err));
        CHECK_OK(stw_run_spec_set(&run, "precision.grads", "fp32", "test", err));
        CU_ASSERT_EQUAL(run.precision.grads, STW_DTYPE_F32); /* what is given stays */
        CHECK_OK(stw_run_spec_set(&run, keys[i % 2], "bf16", "test", err));
        CU_ASSERT_EQUAL(run.precision.compute, STW_DTYPE_BF16); /* and back */
        CU_ASSERT_EQUAL(run.precision.grads, STW_DTYPE_F32);
        stw_run_spec_free(&run);
    }
}

STW_TEST_MAIN("plan specs", {"terms have words", terms_have_words},
              {"defaults are the contract's", defaults_are_the_contracts},
              {"every key round-trips", every_key_round_trips},
              {"precision follows the engine", precision_follows_the_engine},
              {"fp16 follows the engine", fp16_follows_the_engine},
              {"every row is complete", every_row_is_complete},
              {"other names are understood", other_names_are_understood},
              {"other names are no keys", other_names_are_no_keys},
              {"bad YAML is placed", bad_yaml_is_placed},
              {"set takes every kind", set_takes_every_kind},
              {"every example is read", every_example_is_read},
              {"default example is written", default_example_is_written})

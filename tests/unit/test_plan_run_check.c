/* SPDX-License-Identifier: Apache-2.0 */
/* What a run spec may not say: contradictions, and values without an effect in this version. */
#include "plan/run_spec.h"
#include "tests/unit/testing.h"

/* Settings "key=value", NULL at the end, and what the check says of them together. */
typedef struct check_case {
    const char *set[5];
    stw_status status;
    const char *word;
} check_case;

static void run_checks(const check_case *cases, size_t n_cases) {
    for (size_t i = 0; i < n_cases; i++) {
        stw_run_spec run;
        CHECK_OK(stw_run_spec_init(&run, err));
        for (size_t s = 0; s < 5 && cases[i].set[s] != NULL; s++) {
            char key[64];
            const char *equals = strchr(cases[i].set[s], '=');
            snprintf(key, sizeof key, "%.*s", (int)(equals - cases[i].set[s]), cases[i].set[s]);
            CHECK_OK(stw_run_spec_set(&run, key, equals + 1, "test", err));
        }
        if (cases[i].status == STW_STATUS_OK)
            CHECK_OK(stw_run_spec_check(&run, "run.yaml", err));
        else
            CHECK_FAILS(stw_run_spec_check(&run, "run.yaml", err), cases[i].status, cases[i].word);
        stw_run_spec_free(&run);
    }
}

static void contradictions_are_refused(void) {
    static const check_case cases[] = {
        {{"batch.micro_batch=0"}, STW_STATUS_BAD_INPUT, "run.yaml: batch.micro_batch: found 0"},
        {{"batch.seq_len=0"}, STW_STATUS_BAD_INPUT, "batch.seq_len"},
        {{"batch.grad_accumulation=0"}, STW_STATUS_BAD_INPUT, "batch.grad_accumulation"},
        {{"parallel.dp_shard=0"}, STW_STATUS_BAD_INPUT, "parallel.dp_shard"},
        {{"parallel.tp=0"}, STW_STATUS_BAD_INPUT, "parallel.tp"},
        {{"prefetch.depth=0"},
         STW_STATUS_BAD_INPUT,
         "prefetch.depth: found 0, expected at least 1"},
        {{"prefetch.bucket=0"}, STW_STATUS_BAD_INPUT, "prefetch.bucket"},
        {{"optimizer.betas=[0.9, 1]"}, STW_STATUS_BAD_INPUT, "found [0.9, 1]"},
        {{"moe.imbalance=0.5"}, STW_STATUS_BAD_INPUT, "moe.imbalance: found 0.5"},
        {{"deepspeed.zero_stage=4"}, STW_STATUS_BAD_INPUT, "deepspeed.zero_stage"},
        {{"placement.master=host"}, STW_STATUS_BAD_INPUT, "placement.master: found host"},
        {{"placement.master=host", "precision.master=fp32"}, STW_STATUS_OK, ""},
        {{"fsdp.offload_policy=true", "placement.params=gpu"},
         STW_STATUS_BAD_INPUT,
         "placement.params: found gpu, expected host or auto"},
        {{"fsdp.offload_policy=true", "placement.grads=nvme"},
         STW_STATUS_BAD_INPUT,
         "placement.grads: found nvme"},
        {{"fsdp.offload_policy=true", "placement.moments=gpu"},
         STW_STATUS_BAD_INPUT,
         "placement.moments: found gpu"},
        {{"engine=fsdp2", "fsdp.offload_policy=true", "placement.moments=host"}, STW_STATUS_OK, ""},
        {{"engine=fsdp2", "fsdp.offload_policy=true", "park.moments=host"},
         STW_STATUS_BAD_INPUT,
         "park.moments: found host"},
        {{"engine=fsdp2", "placement.moments=host", "park.moments=host"},
         STW_STATUS_BAD_INPUT,
         "placement.moments is not gpu"},
        {{"engine=fsdp2", "fsdp.offload_policy=true", "optimizer.implementation=streamed"},
         STW_STATUS_BAD_INPUT,
         "optimizer.implementation: found streamed"},
        {{"optimizer.implementation=streamed", "placement.moments=gpu"},
         STW_STATUS_BAD_INPUT,
         "placement.moments: found gpu"},
        {{"optimizer.implementation=cpu", "placement.moments=gpu"},
         STW_STATUS_BAD_INPUT,
         "optimizer.implementation is cpu"},
        {{"recompute.granularity=full", "placement.activations=keep"},
         STW_STATUS_BAD_INPUT,
         "placement.activations: found keep"},
        {{"recompute.granularity=none", "placement.activations=recompute"},
         STW_STATUS_BAD_INPUT,
         "placement.activations: found recompute"},
        {{"megatron.fsdp=true"}, STW_STATUS_BAD_INPUT, "megatron.fsdp: found true"},
        {{"engine=fsdp2", "deepspeed.ratio=0.5"}, STW_STATUS_BAD_INPUT, "as engine is fsdp2"},
        {{"engine=megatron", "fsdp.offload_policy=true"},
         STW_STATUS_BAD_INPUT,
         "engine is megatron"},
        {{"trainable.lora.targets=[q]"}, STW_STATUS_BAD_INPUT, "trainable.lora.rank: found 0"},
        {{"roles=[{kind: rollout}]"}, STW_STATUS_BAD_INPUT, "roles.0: found \"\""},
        {{"roles=[{name: a}, {name: a}]"}, STW_STATUS_BAD_INPUT, "roles.1: found \"a\""},
        {{"roles=[{name: a, with: b}]"}, STW_STATUS_BAD_INPUT, "roles.0: found \"b\""},
        {{"roles=[{name: a, kv_dtype: fp33}]"}, STW_STATUS_BAD_INPUT, "fp33"},
        {{"roles=[{name: a, gpu_memory_utilization: 1.5}]"},
         STW_STATUS_BAD_INPUT,
         "gpu_memory_utilization"},
    };
    run_checks(cases, sizeof cases / sizeof cases[0]);
}

static void keys_without_effect_are_refused(void) {
    static const check_case cases[] = {
        {{"engine=megatron", "megatron.fsdp=true"},
         STW_STATUS_NOT_BUILT_IN,
         "engine: megatron has no effect in this version; use engine: stowage or fsdp2"},
        {{"engine=deepspeed"}, STW_STATUS_NOT_BUILT_IN, "engine: deepspeed"},
        {{"parallel.tp=2"}, STW_STATUS_NOT_BUILT_IN, "parallel.tp: 2 has no effect"},
        {{"parallel.pp=2"}, STW_STATUS_NOT_BUILT_IN, "parallel.pp"},
        {{"parallel.vpp=2"}, STW_STATUS_NOT_BUILT_IN, "parallel.vpp"},
        {{"parallel.sequence_parallel=true"}, STW_STATUS_NOT_BUILT_IN, "sequence_parallel: true"},
        {{"parallel.cp_kind=ulysses"}, STW_STATUS_NOT_BUILT_IN, "use parallel.cp_kind: ring"},
        {{"batch.max_tokens_per_gpu=1"}, STW_STATUS_NOT_BUILT_IN, "leave it at none"},
        {{"batch.log_prob_micro_batch=1"}, STW_STATUS_NOT_BUILT_IN, "log_prob_micro_batch"},
        {{"park.params=host"}, STW_STATUS_NOT_BUILT_IN, "park.params: host"},
        {{"recompute.granularity=selective"}, STW_STATUS_NOT_BUILT_IN, "selective"},
        {{"recompute.method=block"}, STW_STATUS_NOT_BUILT_IN, "recompute.method: block"},
        {{"recompute.num_layers=1"}, STW_STATUS_NOT_BUILT_IN, "recompute.num_layers"},
        {{"recompute.modules=[core_attn]"}, STW_STATUS_NOT_BUILT_IN, "[core_attn]"},
        {{"moe.dispatcher=deepep"}, STW_STATUS_NOT_BUILT_IN, "moe.dispatcher: deepep"},
        {{"moe.capacity_factor=1.25"}, STW_STATUS_NOT_BUILT_IN, "moe.capacity_factor: 1.25"},
        {{"trainable.lora={rank: 16}"}, STW_STATUS_NOT_BUILT_IN, "trainable.lora.rank: 16"},
        {{"trainable.freeze=[vision]"}, STW_STATUS_NOT_BUILT_IN, "trainable.freeze: [vision]"},
        {{"checkpoint.every=1"}, STW_STATUS_NOT_BUILT_IN, "checkpoint.every"},
        {{"checkpoint.contents=[]"}, STW_STATUS_NOT_BUILT_IN, "checkpoint.contents: []"},
        {{"roles=[{name: a}]"}, STW_STATUS_NOT_BUILT_IN, "roles: "},
        /* and what has one */
        {{"engine=fsdp2", "park.params=host", "park.grads=host", "park.moments=host"},
         STW_STATUS_OK,
         ""},
        {{"parallel.dp_shard=4", "parallel.dp_replicate=2", "parallel.cp=2", "parallel.ep=4",
          "parallel.etp=2"},
         STW_STATUS_OK,
         ""},
        {{"precision.params=bf16", "precision.master=fp32", "precision.exp_avg=bf16",
          "batch.micro_batch=4", "batch.grad_accumulation=2"},
         STW_STATUS_OK,
         ""},
        {{"optimizer.implementation=cpu", "optimizer.clip_norm=none", "optimizer.lr=0",
          "optimizer.betas=[0, 0]", "prefetch.depth=1"},
         STW_STATUS_OK,
         ""},
        {{"placement.activations=offload", "attention=eager", "loss.fused=true", "loss.chunk=64",
          "moe.imbalance=2"},
         STW_STATUS_OK,
         ""},
        {{"fsdp.reshard_after_forward=false", "fsdp.wrap_embeddings=true", "load.method=all_ranks",
          "load.weights=/x", "recompute.granularity=none"},
         STW_STATUS_OK,
         ""},
    };
    run_checks(cases, sizeof cases / sizeof cases[0]);
}

STW_TEST_MAIN("plan run check", {"contradictions are refused", contradictions_are_refused},
              {"keys without effect are refused", keys_without_effect_are_refused})

/* SPDX-License-Identifier: Apache-2.0 */
/* What a run spec may not say: contradictions, and values without an effect in this version. */
#include "plan/spec/run_spec.h"
#include "tests/unit/testing.h"

/* Settings "key=value", NULL at the end, and what the check says of them together. */
typedef struct check_case {
    const char *set[9];
    stw_status status;
    const char *word;
} check_case;

static void run_checks(const check_case *cases, size_t n_cases) {
    for (size_t i = 0; i < n_cases; i++) {
        stw_run_spec run;
        stw_error why = STW_ERROR_INIT; /* of reading or of the check */
        stw_status status = STW_STATUS_OK;
        CHECK_OK(stw_run_spec_init(&run, err));
        for (size_t s = 0; s < 8 && cases[i].set[s] != NULL; s++) {
            char key[64];
            const char *equals = strchr(cases[i].set[s], '=');
            snprintf(key, sizeof key, "%.*s", (int)(equals - cases[i].set[s]), cases[i].set[s]);
            if (status == STW_STATUS_OK)
                status = stw_run_spec_set(&run, key, equals + 1, "run.yaml", &why);
        }
        if (status == STW_STATUS_OK) status = stw_run_spec_check(&run, "run.yaml", &why);
        char text[1200];
        stw_error_format(&why, text, sizeof text);
        CU_ASSERT_EQUAL(status, cases[i].status);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, cases[i].word));
        if (status != cases[i].status || strstr(text, cases[i].word) == NULL)
            fprintf(stderr, "case %zu (%s): %s\n", i, cases[i].set[0], text);
        stw_run_spec_free(&run);
    }
}

#define ZERO_PRECISION                                                                             \
    "precision.params=bf16", "precision.grads=bf16", "precision.reduce=bf16",                      \
        "precision.master=fp32"

static void contradictions_are_refused(void) {
    static const check_case cases[] = {
        {{"batch.micro_batch=0"},
         STW_STATUS_BAD_INPUT,
         "run.yaml: batch.micro_batch: found \"0\", expected 1 to 65536"},
        {{"batch.seq_len=0"}, STW_STATUS_BAD_INPUT, "batch.seq_len"},
        {{"batch.grad_accumulation=0"}, STW_STATUS_BAD_INPUT, "batch.grad_accumulation"},
        {{"parallel.dp_shard=0"}, STW_STATUS_BAD_INPUT, "parallel.dp_shard"},
        {{"parallel.tp=0"}, STW_STATUS_BAD_INPUT, "parallel.tp"},
        {{"prefetch.depth=0"},
         STW_STATUS_BAD_INPUT,
         "prefetch.depth: found \"0\", expected auto or 1 to 1024"},
        {{"prefetch.bucket=0"}, STW_STATUS_BAD_INPUT, "prefetch.bucket"},
        {{"optimizer.betas=[0.9, 1]"}, STW_STATUS_BAD_INPUT, "found [0.9, 1]"},
        {{"moe.imbalance=0.5"},
         STW_STATUS_BAD_INPUT,
         "moe.imbalance: found \"0.5\", expected 1 to 1024"},
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
        {{"park.moments=host"},
         STW_STATUS_BAD_INPUT,
         "park.moments: found host, expected its default, because engine is stowage (it has an "
         "effect with engine fsdp2)"},
        {{"fsdp.offload_policy=true"},
         STW_STATUS_BAD_INPUT,
         "fsdp.offload_policy: found true, expected its default, because engine is stowage"},
        {{"engine=fsdp2", "prefetch.bucket=1 MiB"}, STW_STATUS_BAD_INPUT, "engine is fsdp2"},
        {{"optimizer.implementation=foreach"},
         STW_STATUS_BAD_INPUT,
         "found foreach, expected auto | fused | streamed | cpu | direct, because engine is "
         "stowage"},
        {{"placement.params=nvme"},
         STW_STATUS_BAD_INPUT,
         "placement.params: found nvme, expected auto | gpu | host, because engine is stowage"},
        {{"engine=fsdp2", "placement.moments=nvme"},
         STW_STATUS_BAD_INPUT,
         "placement.moments: found nvme, expected auto | gpu | host, because engine is fsdp2"},
        {{"engine=fsdp2", "optimizer.implementation=streamed", "placement.moments=gpu"},
         STW_STATUS_BAD_INPUT,
         "found gpu, expected auto | host, because optimizer"},
        {{"megatron.fsdp=optim"}, STW_STATUS_BAD_INPUT, "megatron.fsdp: found optim"},
        {{"engine=deepspeed"}, STW_STATUS_BAD_INPUT, "precision.params: found fp32"},
        {{"engine=deepspeed", ZERO_PRECISION, "deepspeed.zero_stage=2",
          "deepspeed.prefetch_bucket=1"},
         STW_STATUS_BAD_INPUT,
         "deepspeed.prefetch_bucket: found 1, expected the default, or deepspeed.zero_stage: 3"},
        {{"engine=deepspeed", ZERO_PRECISION, "deepspeed.overlap_comm=true"},
         STW_STATUS_BAD_INPUT,
         "deepspeed.overlap_comm: found true"},
        {{"engine=deepspeed", ZERO_PRECISION, "deepspeed.offload_param=cpu"},
         STW_STATUS_BAD_INPUT,
         "deepspeed.offload_param: found cpu, expected none, or deepspeed.offload_optimizer: cpu"},
        {{"engine=deepspeed", ZERO_PRECISION, "deepspeed.pin_memory=false"},
         STW_STATUS_BAD_INPUT,
         "deepspeed.pin_memory: found false"},
        {{"engine=deepspeed", ZERO_PRECISION, "parallel.cp=2"},
         STW_STATUS_BAD_INPUT,
         "parallel.cp: found 2, expected 1"},
        {{"engine=deepspeed", ZERO_PRECISION, "placement.activations=offload"},
         STW_STATUS_BAD_INPUT,
         "placement.activations: found offload"},
        {{"engine=deepspeed", ZERO_PRECISION, "optimizer.implementation=cpu"},
         STW_STATUS_BAD_INPUT,
         "optimizer.implementation: found cpu"},
        {{"engine=fsdp2", "deepspeed.ratio=0.5"}, STW_STATUS_BAD_INPUT, "because engine is fsdp2"},
        {{"engine=megatron", "fsdp.offload_policy=true"},
         STW_STATUS_BAD_INPUT,
         "engine is megatron"},
        {{"engine=fsdp2", "trainable.lora.targets=[q]"},
         STW_STATUS_BAD_INPUT,
         "trainable.lora.rank: found 0"},
        {{"roles=[{kind: rollout}]"}, STW_STATUS_BAD_INPUT, "roles.0.name: found \"\""},
        {{"roles=[{name: a}, {name: a}]"}, STW_STATUS_BAD_INPUT, "roles.1.name: found \"a\""},
        {{"roles=[{name: a, with: b}]"}, STW_STATUS_BAD_INPUT, "roles.0.with: found \"b\""},
        {{"roles=[{name: a, kv_dtype: fp33}]"}, STW_STATUS_BAD_INPUT, "fp33"},
        {{"roles=[{name: a, gpu_memory_utilization: 1.5}]"},
         STW_STATUS_BAD_INPUT,
         "gpu_memory_utilization"},
    };
    run_checks(cases, sizeof cases / sizeof cases[0]);
}

/* Fixed shares of update engines: their sum, and what other keys leave of them. */
static void shares_are_checked(void) {
    static const check_case cases[] = {
        {{"update.resident=0.25", "update.stream=0.25", "update.cpu=0.5"}, STW_STATUS_OK, ""},
        {{"update.resident=0.1", "update.stream=0.2", "update.direct=0.3", "update.cpu=0.4"},
         STW_STATUS_OK,
         ""},
        {{"update.resident=30%", "update.stream=40%", "update.direct=auto"}, STW_STATUS_OK, ""},
        {{"update.stream=1"}, STW_STATUS_OK, ""},
        {{"update.stream=1.5"},
         STW_STATUS_BAD_INPUT,
         "update.stream: found \"1.5\", expected auto or 0 to 1"},
        {{"update.direct=2"}, STW_STATUS_BAD_INPUT, "update.direct: found \"2\""},
        {{"update.resident=0.5", "update.cpu=0.6"},
         STW_STATUS_BAD_INPUT,
         "update.resident, update.stream, update.direct, update.cpu: found a sum of 1.1, "
         "expected a sum of at most 1"},
        {{"update.resident=0.5", "update.stream=0.3", "update.cpu=0.1"},
         STW_STATUS_BAD_INPUT,
         "a sum of 0.9, expected a sum of 1, because no share is auto"},
        {{"update.resident=0", "update.stream=0", "update.cpu=0"},
         STW_STATUS_BAD_INPUT,
         "a sum of 0"},
        {{"update.resident=0", "update.stream=0", "update.cpu=0", "update.direct=auto"},
         STW_STATUS_OK,
         ""},
        /* against placement */
        {{"update.stream=0.5", "placement.moments=gpu"},
         STW_STATUS_BAD_INPUT,
         "update.stream: found 0.5, expected auto or 0, because placement.moments is gpu"},
        {{"update.resident=0.5", "placement.moments=host"},
         STW_STATUS_BAD_INPUT,
         "update.resident: found 0.5, expected auto or 0, because placement.moments is host"},
        {{"update.direct=0.5", "placement.moments=nvme"},
         STW_STATUS_BAD_INPUT,
         "because placement.moments is nvme"},
        {{"update.direct=0.5", "placement.params=host"},
         STW_STATUS_BAD_INPUT,
         "update.direct: found 0.5, expected auto or 0, because placement.params is host"},
        {{"update.cpu=0.5", "precision.master=fp32", "placement.master=gpu"},
         STW_STATUS_BAD_INPUT,
         "because placement.master is gpu"},
        {{"update.cpu=0.5", "placement.moments=host", "placement.params=host"}, STW_STATUS_OK, ""},
        {{"update.stream=0.5", "placement.moments=nvme"}, STW_STATUS_OK, ""},
        {{"update.resident=0", "placement.moments=host"}, STW_STATUS_OK, ""},
        /* against optimizer.implementation */
        {{"update.cpu=0.5", "optimizer.implementation=streamed"},
         STW_STATUS_BAD_INPUT,
         "update.cpu: found 0.5, expected auto or 0, because optimizer.implementation is streamed"},
        {{"update.resident=0.5", "optimizer.implementation=cpu"},
         STW_STATUS_BAD_INPUT,
         "because optimizer.implementation is cpu"},
        {{"update.cpu=0.5", "optimizer.implementation=fused"},
         STW_STATUS_BAD_INPUT,
         "because optimizer.implementation is fused"},
        {{"update.stream=0.5", "optimizer.implementation=direct"},
         STW_STATUS_BAD_INPUT,
         "because optimizer.implementation is direct"},
        {{"update.resident=0.5", "optimizer.implementation=direct"}, STW_STATUS_OK, ""},
        {{"update.resident=0.5", "update.direct=0.5", "optimizer.implementation=direct"},
         STW_STATUS_OK,
         ""},
        /* of other engines */
        {{"optimizer.implementation=direct"}, STW_STATUS_OK, ""},
        {{"optimizer.implementation=direct", "placement.moments=nvme"},
         STW_STATUS_BAD_INPUT,
         "placement.moments: found nvme, expected auto | gpu | host, because "
         "optimizer.implementation is direct"},
        {{"engine=fsdp2", "optimizer.implementation=direct"},
         STW_STATUS_BAD_INPUT,
         "optimizer.implementation: found direct, expected auto | fused | foreach | loop | "
         "streamed | "
         "cpu, "
         "because engine is fsdp2"},
        {{"engine=fsdp2", "update.stream=1"},
         STW_STATUS_BAD_INPUT,
         "update.stream: found 1, expected its default, because engine is fsdp2"},
        {{"engine=fsdp2", "update.direct=auto"}, STW_STATUS_BAD_INPUT, "update.direct: found auto"},
    };
    run_checks(cases, sizeof cases / sizeof cases[0]);
}

static void groups_and_copies_are_checked(void) {
    static const check_case cases[] = {
        {{"optimizer.groups=[{match: [1d, '*.bias'], weight_decay: 0}]"}, STW_STATUS_OK, ""},
        {{"optimizer.groups=[{match: [a]}, {match: [b]}, {match: [c]}, {match: [d]}, {match: [e]},"
          " {match: [f]}, {match: [g]}]"},
         STW_STATUS_OK,
         ""},
        {{"optimizer.groups=[{match: [a]}, {match: [b]}, {match: [c]}, {match: [d]}, {match: [e]},"
          " {match: [f]}, {match: [g]}, {match: [h]}]"},
         STW_STATUS_BAD_INPUT,
         "optimizer.groups: found 8 groups, expected at most 7"},
        {{"optimizer.groups=[{match: [1d]}, {lr: 1e-4}]"},
         STW_STATUS_BAD_INPUT,
         "optimizer.groups.1: found no pattern"},
        {{"engine=fsdp2", "optimizer.groups=[{match: [1d]}]"},
         STW_STATUS_BAD_INPUT,
         "optimizer.groups"},
        {{"placement.nvme_copies=2"}, STW_STATUS_OK, ""},
        {{"placement.nvme_copies=0"},
         STW_STATUS_BAD_INPUT,
         "placement.nvme_copies: found \"0\", expected 1 to 2"},
        {{"placement.nvme_copies=3"}, STW_STATUS_BAD_INPUT, "placement.nvme_copies: found \"3\""},
        {{"engine=fsdp2", "placement.nvme_copies=2"},
         STW_STATUS_BAD_INPUT,
         "placement.nvme_copies: found 2, expected its default, because engine is fsdp2"},
    };
    run_checks(cases, sizeof cases / sizeof cases[0]);
}

#define MEGATRON "engine=megatron", "precision.params=bf16", "precision.master=fp32"

static void keys_without_effect_are_refused(void) {
    static const check_case cases[] = {
        {{MEGATRON, "megatron.fsdp=optim", "parallel.pp=2"},
         STW_STATUS_BAD_INPUT,
         "parallel.pp: found 2, expected 1 with megatron.fsdp"},
        {{"engine=deepspeed", ZERO_PRECISION, "deepspeed.ratio=0.5"},
         STW_STATUS_NOT_BUILT_IN,
         "deepspeed.ratio: 0.5 is not implemented"},
        {{"engine=deepspeed", ZERO_PRECISION, "deepspeed.offload_optimizer=nvme"},
         STW_STATUS_NOT_BUILT_IN,
         "deepspeed.offload_optimizer: nvme is not implemented"},
        {{"parallel.tp=2"},
         STW_STATUS_BAD_INPUT,
         "parallel.tp: found 2, expected its default, because engine is stowage (it has an effect "
         "with engine megatron)"},
        {{"parallel.pp=2"}, STW_STATUS_BAD_INPUT, "parallel.pp"},
        {{"parallel.vpp=2"}, STW_STATUS_BAD_INPUT, "parallel.vpp"},
        {{"parallel.sequence_parallel=true"}, STW_STATUS_BAD_INPUT, "with engine megatron"},
        {{"parallel.cp_kind=ulysses"}, STW_STATUS_NOT_BUILT_IN, "use parallel.cp_kind: ring"},
        {{"batch.max_tokens_per_gpu=8k", "batch.micro_batch=2"},
         STW_STATUS_BAD_INPUT,
         "expected 1, because batch.max_tokens_per_gpu sets the tokens"},
        {{"batch.log_prob_micro_batch=1"}, STW_STATUS_BAD_INPUT, "with engine fsdp2"},
        {{"recompute.granularity=selective"}, STW_STATUS_BAD_INPUT, "engine is stowage"},
        {{"recompute.method=block"}, STW_STATUS_BAD_INPUT, "with engine megatron"},
        {{"recompute.num_layers=1"}, STW_STATUS_BAD_INPUT, "recompute.num_layers"},
        {{"recompute.modules=[core_attn]"}, STW_STATUS_BAD_INPUT, "[core_attn]"},
        {{MEGATRON, "recompute.modules=[core_attn]"},
         STW_STATUS_BAD_INPUT,
         "expected [], or recompute.granularity: selective"},
        {{MEGATRON, "recompute.granularity=selective", "recompute.modules=[attn]"},
         STW_STATUS_BAD_INPUT,
         "of core_attn, mlp"},
        {{MEGATRON, "recompute.granularity=full", "recompute.method=block"},
         STW_STATUS_BAD_INPUT,
         "at least 1 with a recompute.method"},
        {{MEGATRON, "recompute.method=uniform"}, STW_STATUS_BAD_INPUT, "granularity: full"},
        {{"engine=megatron"}, STW_STATUS_BAD_INPUT, "bf16 or fp16, with precision.master: fp32"},
        {{"engine=megatron", "precision.params=bf16"}, STW_STATUS_BAD_INPUT, "expected fp32"},
        {{MEGATRON, "precision.exp_avg=bf16"},
         STW_STATUS_BAD_INPUT,
         "fp32, or megatron.precision_aware: true"},
        {{MEGATRON, "precision.grads=bf16"}, STW_STATUS_BAD_INPUT, "precision.reduce"},
        {{MEGATRON, "megatron.distributed_optimizer=false",
          "megatron.optimizer_offload_fraction=1"},
         STW_STATUS_BAD_INPUT,
         "true with megatron.optimizer_offload_fraction"},
        {{MEGATRON, "megatron.overlap_d2h_h2d=true"}, STW_STATUS_BAD_INPUT, "overlap_d2h_h2d"},
        {{MEGATRON, "megatron.overlap_param_gather=true"},
         STW_STATUS_BAD_INPUT,
         "megatron.overlap_grad_reduce"},
        {{MEGATRON, "parallel.dp_replicate=2"}, STW_STATUS_BAD_INPUT, "are data parallel"},
        {{MEGATRON, "parallel.sequence_parallel=true"},
         STW_STATUS_BAD_INPUT,
         "parallel.tp above 1"},
        {{MEGATRON, "loss.fused=true"}, STW_STATUS_BAD_INPUT, "megatron.cross_entropy_fusion"},
        {{MEGATRON, "prefetch.depth=2"}, STW_STATUS_BAD_INPUT, "because engine is megatron"},
        {{MEGATRON, "placement.activations=offload"}, STW_STATUS_BAD_INPUT, "engine is megatron"},
        {{MEGATRON, "moe.dispatcher=deepep"}, STW_STATUS_NOT_BUILT_IN, "moe.dispatcher: deepep"},
        {{"moe.capacity_factor=1.25"}, STW_STATUS_BAD_INPUT, "with engine megatron"},
        {{"moe.dispatcher=allgather"}, STW_STATUS_BAD_INPUT, "with engine megatron"},
        {{MEGATRON, "moe.dispatcher=allgather", "moe.capacity_factor=2"},
         STW_STATUS_BAD_INPUT,
         "none with moe.dispatcher: allgather"},
        {{MEGATRON, "megatron.pad_to_capacity=true"}, STW_STATUS_BAD_INPUT, "moe.capacity_factor"},
        {{MEGATRON, "megatron.grouped_gemm=true"}, STW_STATUS_BAD_INPUT, "transformer_engine"},
        {{MEGATRON, "megatron.shared_expert_overlap=true"},
         STW_STATUS_BAD_INPUT,
         "without parallel.sequence_parallel"},
        {{MEGATRON, "megatron.defer_embedding_wgrad=true"}, STW_STATUS_BAD_INPUT, "parallel.pp"},
        {{MEGATRON, "megatron.wgrad_deferral_limit=2"},
         STW_STATUS_BAD_INPUT,
         "megatron.defer_embedding_wgrad: true"},
        {{MEGATRON, "megatron.distributed_optimizer=false", "megatron.optimizer_instances=2"},
         STW_STATUS_BAD_INPUT,
         "megatron.distributed_optimizer"},
        {{"trainable.lora={rank: 16}"}, STW_STATUS_BAD_INPUT, "trainable.lora.rank: found 16"},
        {{"trainable.freeze=[vision]"}, STW_STATUS_BAD_INPUT, "trainable.freeze: found [vision]"},
        {{"checkpoint.every=1"},
         STW_STATUS_BAD_INPUT,
         "checkpoint.every: found 1, expected its default, because engine is stowage"},
        {{"engine=fsdp2", "checkpoint.every=1", "checkpoint.contents=[]"},
         STW_STATUS_BAD_INPUT,
         "checkpoint.contents: found [], expected model, optimizer or both"},
        {{"engine=fsdp2", "checkpoint.every=1", "checkpoint.format=hf"},
         STW_STATUS_BAD_INPUT,
         "because checkpoint.format is hf"},
        {{"engine=fsdp2", "checkpoint.every=1", "checkpoint.format=torch_dist"},
         STW_STATUS_BAD_INPUT,
         "checkpoint.format: found torch_dist"},
        {{"engine=fsdp2", "checkpoint.every=1"}, STW_STATUS_OK, ""},
        {{"roles=[{name: a}]"}, STW_STATUS_NOT_BUILT_IN, "roles: "},
        /* and what has one */
        {{MEGATRON, "parallel.tp=2", "parallel.pp=2", "parallel.sequence_parallel=true",
          "recompute.granularity=selective"},
         STW_STATUS_OK,
         ""},
        {{"engine=fsdp2", "park.moments=host"}, STW_STATUS_OK, ""},
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
              {"shares are checked", shares_are_checked},
              {"groups and copies are checked", groups_and_copies_are_checked},
              {"keys without effect are refused", keys_without_effect_are_refused})

/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of run.yaml that belong to no engine. */
#include "plan/spec/registry.h"
#include "plan/spec/spec_rows.h"

#define END                                                                                        \
    { NULL, 0, NULL }
#define X(name, text) {text, STW_TIER_##name, NULL},
static const stw_spec_word tiers[] = {{"auto", STW_AUTO, NULL}, STW_TIER_TABLE(X) END};
#undef X
#define X(name, text) {text, STW_ACT_##name, NULL},
static const stw_spec_word acts[] = {{"auto", STW_AUTO, NULL}, STW_ACT_TABLE(X) END};
#undef X
#define X(name, text) {text, STW_LOAD_##name, NULL},
static const stw_spec_word loads[] = {{"auto", STW_AUTO, NULL}, STW_LOAD_TABLE(X) END};
#undef X

static const stw_spec_word dtypes[] = {{"fp32", STW_DTYPE_F32, NULL},
                                       {"bf16", STW_DTYPE_BF16, NULL},
                                       {"fp16", STW_DTYPE_F16, NULL},
                                       END};
static const stw_spec_word load_dtypes[] = {
    {"auto", STW_AUTO, NULL},       {"stored", STW_NONE, NULL},    {"fp32", STW_DTYPE_F32, NULL},
    {"bf16", STW_DTYPE_BF16, NULL}, {"fp16", STW_DTYPE_F16, NULL}, END};
static const stw_spec_word role_dtypes[] = {
    {"fp32", STW_DTYPE_F32, NULL},    {"bf16", STW_DTYPE_BF16, NULL}, {"fp16", STW_DTYPE_F16, NULL},
    {"fp8", STW_DTYPE_F8_E4M3, NULL}, {"mxfp4", STW_DTYPE_F4, NULL},  END};
static const stw_spec_word kv_dtypes[] = {
    {"auto", STW_AUTO, NULL},      {"fp32", STW_DTYPE_F32, NULL},    {"bf16", STW_DTYPE_BF16, NULL},
    {"fp16", STW_DTYPE_F16, NULL}, {"fp8", STW_DTYPE_F8_E4M3, NULL}, END};
static const stw_spec_word role_tiers[] = {
    {"auto", STW_AUTO, NULL}, {"gpu", STW_TIER_GPU, NULL}, {"host", STW_TIER_HOST, NULL}, END};
static const stw_spec_word auto_bools[] = {
    {"auto", STW_AUTO, NULL}, {"true", true, NULL}, {"false", false, NULL}, END};
static const stw_spec_word auto_name[] = {{"auto", 0, NULL}, END};
static const stw_spec_word accepted[] = {{"fits", false, NULL}, {"at_risk", true, NULL}, END};
static const stw_spec_word masters[] = {{"none", false, NULL}, {"fp32", true, NULL}, END};
static const stw_spec_word backs[] = {
    {"optimizer_step", false, NULL}, {"forward_backward", true, NULL}, END};
static const stw_spec_word parked[] = {{"none", false, NULL}, {"host", true, NULL}, END};
static const stw_spec_word auto_count[] = {{"auto", STW_AUTO, NULL}, END};
static const stw_spec_word auto_bytes[] = {{"auto", STW_AUTO_BYTES, NULL}, END};
static const stw_spec_word auto_tokens[] = {{"auto", 0, NULL}, END};
static const stw_spec_word auto_number[] = {{"auto", STW_AUTO, NULL}, END};
static const stw_spec_word same_number[] = {{"same", STW_AUTO, NULL}, END};
static const stw_spec_word none[] = {{"none", 0, NULL}, END};
#define X(name, text) {text, STW_OPTIMIZER_KIND_##name, NULL},
static const stw_spec_word kinds[] = {STW_OPTIMIZER_TABLE(X) END};
#undef X
static const stw_spec_word implementations[] = {{"auto", STW_OPTIMIZER_AUTO, NULL},
                                                {"fused", STW_OPTIMIZER_FUSED, NULL},
                                                {"foreach", STW_OPTIMIZER_FOREACH, NULL},
                                                {"loop", STW_OPTIMIZER_LOOP, NULL},
                                                {"streamed", STW_OPTIMIZER_STREAMED, NULL},
                                                {"cpu", STW_OPTIMIZER_CPU, NULL},
                                                {"direct", STW_OPTIMIZER_DIRECT, NULL},
                                                {"stowage", STW_OPTIMIZER_STOWAGE, NULL},
                                                END};
static const stw_spec_word cp_kinds[] = {
    {"ring", 0, NULL}, {"ulysses", 1, "parallel.cp_kind: ring"}, END};
static const stw_spec_word granularities[] = {
    {"auto", STW_AUTO, NULL}, {"none", 0, NULL}, {"full", 1, NULL}, {"selective", 2, NULL}, END};
static const stw_spec_word methods[] = {
    {"none", 0, NULL}, {"uniform", 1, NULL}, {"block", 2, NULL}, END};
static const stw_spec_word log_prob_methods[] = {{"whole", STW_LOG_PROB_WHOLE, NULL},
                                                 {"chunked", STW_LOG_PROB_CHUNKED, NULL},
                                                 {"kernel", STW_LOG_PROB_KERNEL, NULL},
                                                 {"fused", STW_LOG_PROB_FUSED, NULL},
                                                 END};
static const stw_spec_word attentions[] = {
    {"flash", STW_ATTENTION_FLASH, NULL},   {"sdpa", STW_ATTENTION_SDPA, NULL},
    {"eager", STW_ATTENTION_EAGER, NULL},   {"flash_triton", STW_ATTENTION_FLASH_TRITON, NULL},
    {"flash3", STW_ATTENTION_FLASH3, NULL}, END};
static const stw_spec_word dispatchers[] = {
    {"alltoall", 0, NULL}, {"allgather", 1, NULL}, {"deepep", 2, NULL}, END};
static const stw_spec_word contents[] = {
    {"model", 0, NULL},
    {"optimizer",
     offsetof(stw_run_spec, checkpoint.optimizer) - offsetof(stw_run_spec, checkpoint.model), NULL},
    END};
static const stw_spec_word formats[] = {
    {"auto", STW_CHECKPOINT_AUTO, NULL},       {"hf", STW_CHECKPOINT_HF, NULL},
    {"dcp", STW_CHECKPOINT_DCP, NULL},         {"torch_dist", STW_CHECKPOINT_TORCH_DIST, NULL},
    {"stowage", STW_CHECKPOINT_STOWAGE, NULL}, END};
static const stw_spec_word sync_methods[] = {
    {"tensors", STW_SYNC_TENSORS, NULL}, {"buckets", STW_SYNC_BUCKETS, NULL}, END};
static const stw_spec_word role_kinds[] = {{"rollout", STW_ROLE_ROLLOUT, NULL},
                                           {"reference", STW_ROLE_REFERENCE, NULL},
                                           {"critic", STW_ROLE_CRITIC, NULL},
                                           {"reward", STW_ROLE_REWARD, NULL},
                                           END};

_Static_assert(offsetof(stw_run_spec, optimizer.beta2) ==
                   offsetof(stw_run_spec, optimizer.beta1) + sizeof(double),
               "betas are read as a pair");

#define AT(member) IN(stw_run_spec, member)
#define OF(member) IN(stw_role, member)

/* What to use instead of a key that is not implemented. */
#define MOST_WAYS 32768      /* two of them multiply within 32 bits */
#define MOST_TOKENS 16777216 /* of a sequence */
#define ROLE_INSIDE NULL     /* plan/spec/roles_check.c refuses what has no effect */

/* dp_shard excludes cp; the sharding group is dp_shard x cp. */
#define SEARCH(name) (1u << STW_SEARCH_##name)
#define PARALLEL(where, searched, other, forward, experts)                                         \
    {COUNT("parallel.dp_shard"),                                                                   \
     where(parallel.dp_shard),                                                                     \
     .words = auto_count,                                                                          \
     .also = "dp dp_size data_parallel_size data_parallel_shard_degree zero_stage",                \
     .fallback = "auto",                                                                           \
     .note = "auto: all remaining GPUs",                                                           \
     BOUNDS(1, MOST_WAYS)},                                                                        \
        {COUNT("parallel.dp_replicate"),                                                           \
         where(parallel.dp_replicate),                                                             \
         .search = (searched)*SEARCH(REPLICAS),                                                    \
         .also = "ddp hsdp replicas data_parallel_replicate_degree",                               \
         .fallback = "1",                                                                          \
         BOUNDS(1, MOST_WAYS)},                                                                    \
        {COUNT("parallel.tp"),                                                                     \
         where(parallel.tp),                                                                       \
         .search = (searched)*SEARCH(TP),                                                          \
         .also = "tensor_parallel tensor_parallel_size tensor_model_parallel_size",                \
         .fallback = "1",                                                                          \
         .instead = other,                                                                         \
         .needs = forward,                                                                         \
         BOUNDS(1, MOST_WAYS)},                                                                    \
        {COUNT("parallel.pp"),                                                                     \
         where(parallel.pp),                                                                       \
         .search = (searched)*SEARCH(PP),                                                          \
         .also = "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size",          \
         .fallback = "1",                                                                          \
         .instead = other,                                                                         \
         .needs = forward,                                                                         \
         BOUNDS(1, MOST_WAYS)},                                                                    \
        {COUNT("parallel.vpp"), where(parallel.vpp), .search = (searched)*SEARCH(VPP),             \
         .fallback = "1",       .instead = other,    .needs = forward,                             \
         BOUNDS(1, MOST_WAYS)},                                                                    \
        {COUNT("parallel.cp"),                                                                     \
         where(parallel.cp),                                                                       \
         .search = (searched)*SEARCH(CP),                                                          \
         .also = "context_parallel context_parallel_size sequence_parallel_size "                  \
                 "ulysses_sequence_parallel_size",                                                 \
         .fallback = "1",                                                                          \
         BOUNDS(1, MOST_WAYS),                                                                     \
         .needs = forward},                                                                        \
        {WORDS("parallel.cp_kind", cp_kinds), where(parallel.cp_kind), .fallback = "ring"},        \
        {COUNT("parallel.ep"),                                                                     \
         where(parallel.ep),                                                                       \
         .search = (searched)*SEARCH(EP),                                                          \
         .also = "expert_parallel expert_parallel_size expert_model_parallel_size",                \
         .fallback = "1",                                                                          \
         BOUNDS(1, MOST_WAYS),                                                                     \
         .needs = experts},                                                                        \
        {COUNT("parallel.etp"), where(parallel.etp),  .search = (searched)*SEARCH(ETP),            \
         .fallback = "1",       BOUNDS(1, MOST_WAYS), .needs = experts},                           \
    {                                                                                              \
        BOOL("parallel.sequence_parallel"), where(parallel.sequence_parallel),                     \
            .search = (searched)*SEARCH(SEQUENCE), .fallback = "false", .instead = other,          \
            .needs = forward                                                                       \
    }

static const stw_spec_word searches[] = {
    {"none", 0, NULL}, {"all", 1, NULL}, {"auto", 1, NULL}, END};

static const stw_spec_row role_rows[] = {
    {STRING("name"), OF(name), .fallback = "", .label = true},
    {WORDS("kind", role_kinds), OF(kind), .fallback = "rollout",
     .note = "rollout | reference | critic | reward"},
    {COUNT("nodes"), OF(nodes), .words = auto_count, .fallback = "auto",
     .note = "auto: an equal share of the nodes that are left", BOUNDS(1, MOST_WAYS)},
    {STRING("with"), OF(with), .fallback = "trainer",
     .note = "the role whose nodes it shares; none: own nodes"},
    {STRING("engine"), OF(engine), .words = auto_name, .fallback = "auto",
     .note = "rollout: auto (vllm) | vllm | sglang; others: the trainer's"},
    {WORDS("placement.params", role_tiers), OF(params), .fallback = "auto",
     .note = "of reference and reward: auto (host) | host | gpu"},
    {WORDS("dtype", role_dtypes), OF(dtype), .fallback = "bf16",
     .note =
         "of the weights: fp32 | bf16 | fp16 | fp8: linear layers, with a scale per 128 x 128 | "
         "mxfp4: experts, with a scale per 32"},
    PARALLEL(OF, 0u, ROLE_INSIDE, 0,
             0), /* of a rollout: tp, and ep: ranks that share the experts */
    {RATIO("gpu_memory_utilization"), OF(gpu_memory_utilization), .fallback = "0.9",
     .also = "mem_fraction_static gpu_memory_util utilization",
     .note = "share of the GPU's memory for weights, activations and KV cache; sglang: "
             "mem_fraction_static",
     BOUNDS(1e-6, 1)},
    {WORDS("kv_dtype", kv_dtypes), OF(kv_dtype), .fallback = "auto",
     .note = "auto: that of activations"},
    {TOKENS("max_model_len"), OF(max_model_len), .words = auto_tokens, .fallback = "auto",
     .also = "context_length max_context_len",
     .note = "tokens of the longest sequence; auto: the model's positions", BOUNDS(1, MOST_TOKENS)},
    {COUNT("max_num_seqs"), OF(max_num_seqs), .also = "max_running_requests", .fallback = "256",
     BOUNDS(1, 1048576)},
    {TOKENS("max_num_batched_tokens"), OF(max_num_batched_tokens), .fallback = "8192",
     .also = "chunked_prefill_size", .note = "tokens of one forward pass", BOUNDS(1, MOST_TOKENS)},
    {BOOL("enforce_eager"), OF(enforce_eager), .fallback = "false", .note = "true: no CUDA graphs"},
    {WORDS("free_cache_engine", auto_bools), OF(free_cache_engine), .fallback = "auto",
     .note = "sleeps between rollouts; auto: on shared nodes"},
    {COUNT("sleep_level"), OF(sleep_level), .words = auto_count, .fallback = "auto",
     .note = "1: weights wait in page-locked host memory | 2: they are discarded | auto: 1, sglang "
             "2",
     BOUNDS(1, 2)},
    {BYTES("update_bucket"), OF(update_bucket_bytes), .fallback = "1 GiB",
     .also = "bucket update_weights_bucket_megabytes update_weight_buffer_size",
     .note = "of the weight sync to the first rollout", BOUNDS(4096, 1099511627776.0)},
    {BOOL("update_in_place"), OF(update_in_place), .fallback = "false",
     .note = "true: the weight sync writes into the rollout's weights, not into a bucket that its "
             "process copies from"},
    {BOOL("builds_trainer_model"), OF(builds_trainer_model), .fallback = "false",
     .note = "on own nodes: holds the trainer's parameters, too"},
};
static const stw_spec_table role_table = {role_rows, sizeof role_rows / sizeof role_rows[0]};
static const stw_spec_items role_items = {&role_table, sizeof(stw_role),
                                          offsetof(stw_run_spec, n_roles)};

const stw_spec_table *stw_role_table(void) { return &role_table; }

#define OF_GROUP(member) IN(stw_param_group, member)
static const stw_spec_row group_rows[] = {
    {STRINGS("match"), OF_GROUP(match), .fallback = "[]",
     .note = "shell patterns of tensor names, or 1d: tensors of one dimension"},
    {RATIO("lr"), OF_GROUP(lr), .words = same_number, .fallback = "same", BOUNDS(0, STW_MOST_LR)},
    {RATIO("weight_decay"), OF_GROUP(weight_decay), .words = same_number, .fallback = "same",
     BOUNDS(0, 1000)},
};
static const stw_spec_table group_table = {group_rows, sizeof group_rows / sizeof group_rows[0]};
static const stw_spec_items group_items = {&group_table, sizeof(stw_param_group),
                                           offsetof(stw_run_spec, optimizer.n_groups)};

static const stw_spec_row rows_before[] = {
    {WORDS("engine", NULL), AT(engine)}, /* words and default: the registry's */
    PARALLEL(AT, 1u, NULL, NEEDS(FORWARD), NEEDS(EXPERTS)),
    {WORDS("parallel.search", searches), AT(search_all), .fallback = "none",
     .also = "layout autotune auto_parallel",
     .note = "none | all: search every key that may be auto and is not set; short: parallel: auto",
     .needs = NEEDS(FORWARD)},
    {WORDS("precision.params", dtypes), AT(precision.params),
     .also = "dtype torch_dtype param_dtype model_dtype", .fallback = "fp32"},
    {WORDS("precision.compute", dtypes), AT(precision.compute),
     .also = "bf16 fp16 amp autocast mixed_precision", .fallback = "bf16", .needs = NEEDS(FORWARD)},
    {WORDS("precision.grads", dtypes), AT(precision.grads),
     .also = "grad_dtype grad_accum_dtype grad_reduce_in_fp32", .fallback = "fp32"},
    {WORDS("precision.reduce", dtypes), AT(precision.reduce),
     .also = "reduce_dtype communication_data_type", .fallback = "fp32",
     .needs = NEEDS(FORWARD) | NEEDS(SHARDS)},
    {WORDS("precision.master", masters), AT(precision.has_master),
     .also = "master_weights master_dtype fp32_master main_params_dtype", .fallback = "none"},
    {WORDS("precision.exp_avg", dtypes), AT(precision.exp_avg), .fallback = "fp32"},
    {WORDS("precision.exp_avg_sq", dtypes), AT(precision.exp_avg_sq), .fallback = "fp32"},
    {COUNT("batch.micro_batch"), AT(batch.micro_batch), .search = SEARCH(MICRO_BATCH),
     .also = "batch_size bs mbs micro_batch_size per_device_train_batch_size "
             "train_micro_batch_size_per_gpu",
     .fallback = "1", .note = "sequences per GPU", BOUNDS(1, 65536), .needs = NEEDS(FORWARD)},
    {TOKENS("batch.seq_len"), AT(batch.seq_len), .words = auto_tokens,
     .also = "sequence sequence_length seq_length seqlen max_seq_len max_seq_length "
             "max_length context_length block_size cutoff_len",
     .fallback = "auto",
     .note = "tokens; 8k is 8192; auto: 4096, or the model's positions if fewer",
     BOUNDS(1, MOST_TOKENS), .needs = NEEDS(FORWARD)},
    {TOKENS("batch.decoder_seq_len"), AT(batch.decoder_seq_len), .words = auto_tokens,
     .also = "decoder_seq_length target_length max_target_length", .fallback = "auto",
     .note = "of a model with an encoder, whose tokens batch.seq_len counts; auto: as many",
     BOUNDS(1, MOST_TOKENS), .needs = NEEDS(FORWARD) | NEEDS(ENCODER)},
    {TOKENS("batch.image_tokens"), AT(batch.image_tokens),
     .also = "image_tokens image_max_pixels max_pixels", .fallback = "0",
     .note = "of a sequence, made by a vision tower; 0: text alone", BOUNDS(1, MOST_TOKENS),
     .zero = true, .needs = NEEDS(FORWARD) | NEEDS(VISION)},
    {TOKENS("batch.max_tokens_per_gpu"), AT(batch.max_tokens_per_gpu), .words = none,
     .also = "max_tokens max_token_len_per_gpu ppo_max_token_len_per_gpu max_tokens_per_mb",
     .fallback = "none",
     .note = "none, or tokens of a micro batch: sequences of batch.seq_len packed end to end",
     BOUNDS(1, 65536.0 * MOST_TOKENS), .needs = NEEDS(FORWARD)},
    {COUNT("batch.grad_accumulation"), AT(batch.grad_accumulation), .search = SEARCH(ACCUMULATION),
     .also = "ga grad_accum gradient_accumulation gradient_accumulation_steps "
             "accumulation_steps",
     .fallback = "1", BOUNDS(1, 65536), .needs = NEEDS(FORWARD)},
    {TOKENS("batch.tokens_per_step"), AT(batch.tokens_per_step), .words = none,
     .also = "global_batch global_batch_size train_batch_size tokens_per_batch", .fallback = "none",
     .note =
         "none, or tokens of an optimizer step, all ranks together; a search keeps them. Packed "
         "sequences need not fill the micro batches",
     BOUNDS(1, 4503599627370496.0), .needs = NEEDS(FORWARD)},
    {COUNT("batch.mini_batches"), AT(batch.mini_batches),
     .also = "steps_per_iteration mini_batch ppo_mini_batch_size ppo_n_minibatches num_minibatches",
     .fallback = "1",
     .note = "optimizer steps of an iteration, each on sequences of its own: of a trainer of RL, "
             "between two rollouts",
     BOUNDS(1, 65536), .needs = NEEDS(FORWARD)},
    {COUNT("batch.epochs"), AT(batch.epochs), .also = "ppo_epochs inner_epochs", .fallback = "1",
     .note = "how often an iteration goes through its mini batches", BOUNDS(1, 1024),
     .needs = NEEDS(FORWARD)},
    {COUNT("batch.log_prob_micro_batch"), AT(batch.log_prob_micro_batch), .words = none,
     .also = "log_prob_micro_batch_size_per_gpu logprob_batch_size compute_log_prob",
     .fallback = "none",
     .note = "none, or sequences per GPU of a forward without gradients, which each iteration does "
             "once for all of its mini batches",
     BOUNDS(1, 65536), .needs = NEEDS(FORWARD)},
    {WORDS("batch.log_prob_method", log_prob_methods), AT(batch.log_prob_method),
     .fallback = "whole",
     .note = "whole: logits are upcast at once | chunked: loss.chunk tokens at a time | kernel: "
             "logits alone | fused: no whole logits",
     .needs = NEEDS(FORWARD) | NEEDS(LOG_PROB)},
    {BOOL("batch.log_prob_entropy"), AT(batch.log_prob_entropy), .also = "calculate_entropy",
     .fallback = "false", .needs = NEEDS(FORWARD) | NEEDS(LOG_PROB)},
    {WORDS("optimizer.kind", kinds), AT(optimizer.kind), .also = "optim optimizer_type adam adamw",
     .fallback = "adamw", .needs = NEEDS(FORWARD)},
    {WORDS("optimizer.implementation", implementations), AT(optimizer.implementation),
     .also = "fused foreach", .fallback = "auto",
     .note = "auto | fused | foreach: a temporary as large as exp_avg_sq | loop: over tensors | "
             "streamed | cpu | direct | stowage: stowage.torch.AdamW"},
    {COUNT("optimizer.cpu_threads"), AT(optimizer.cpu_threads), .words = auto_count,
     .also = "omp_num_threads", .fallback = "auto",
     .note = "of a rank, where a framework updates on the CPU; auto: 1 (OMP_NUM_THREADS of "
             "torchrun), or all cores where a node has one rank",
     BOUNDS(1, 65536), .needs = NEEDS(FOREIGN) | NEEDS(CPU_STEP)},
    {RATIO("optimizer.clip_norm"), AT(optimizer.clip_norm), .words = none,
     .also = "clip_grad grad_clip clip_grad_norm max_grad_norm max_norm gradient_clipping",
     .fallback = "1", .note = "largest global norm of the gradients; none or 0: no clipping",
     BOUNDS(1e-30, 1e30), .zero = true},
    {BOOL("optimizer.overlap"), AT(optimizer.overlap), .also = "hide_step overlap_optimizer",
     .fallback = "false",
     .note =
         "of optimizer.implementation: stowage; the step goes on beside the next forward, whose "
         "modules wait for their parameters",
     .needs = NEEDS(FORWARD) | NEEDS(HIDES)},
    {RATIO("optimizer.lr"), AT(optimizer.lr), .also = "learning_rate", .fallback = "1e-3",
     .note = "torch.optim.AdamW's default, like the next three", BOUNDS(0, STW_MOST_LR),
     .needs = NEEDS(OWN)},
    {.key = "optimizer.betas",
     .kind = STW_SPEC_PAIR,
     .unit = STW_UNIT_RATIO,
     AT(optimizer.beta1),
     .also = "beta1 beta2 adam_beta1 adam_beta2",
     .fallback = "[0.9, 0.999]",
     BOUNDS(0, 1),
     .needs = NEEDS(OWN)},
    {RATIO("optimizer.eps"), AT(optimizer.eps), .also = "adam_eps adam_epsilon", .fallback = "1e-8",
     BOUNDS(0, 1), .needs = NEEDS(OWN)},
    {RATIO("optimizer.weight_decay"), AT(optimizer.weight_decay), .fallback = "1e-2",
     BOUNDS(0, 1000), .needs = NEEDS(OWN)},
    {.key = "optimizer.groups",
     .kind = STW_SPEC_ITEMS,
     AT(optimizer.groups),
     .items = &group_items,
     .fallback = "[]",
     .note = "tensors with rates of their own: {match: [1d, '*.bias'], weight_decay: 0}"},
    {RATIO("update.resident"), AT(update.resident), .words = auto_number, .fallback = "auto",
     .note = "share of the parameters updated in place on the GPU, 0 to 1", BOUNDS(0, 1)},
    {RATIO("update.stream"), AT(update.stream), .words = auto_number, .fallback = "auto",
     .note = "on the GPU, streamed through a ring of buffers", BOUNDS(0, 1)},
    {RATIO("update.direct"), AT(update.direct), .words = auto_number, .fallback = "0",
     .note = "by GPU kernels that read and write page-locked host memory", BOUNDS(0, 1)},
    {RATIO("update.cpu"), AT(update.cpu), .words = auto_number, .fallback = "auto",
     .note = "on the CPU", BOUNDS(0, 1)},
    {.key = "trainable.lora",
     .kind = STW_SPEC_MAP,
     AT(trainable.lora_rank),
     .words = none,
     .also = "peft lora_rank lora_r",
     .fallback = "none",
     .note = "none, or {rank: 16, targets: [..]}"},
    {COUNT("trainable.lora.rank"), AT(trainable.lora_rank), .fallback = "0", BOUNDS(1, 65536),
     .zero = true},
    {STRINGS("trainable.lora.targets"), AT(trainable.lora_targets), .fallback = "[]",
     .also = "target_modules lora_target lora_target_modules",
     .note = "last parts of module names, shell patterns of them, or all-linear"},
    {STRINGS("trainable.freeze"), AT(trainable.freeze), .also = "frozen freeze_vision_tower",
     .fallback = "[]", .note = "shell patterns of tensor names: no grads, no moments"},
    {WORDS("placement.params", tiers), AT(placement.params),
     .also = "param_offload offload_param offload_params", .fallback = "auto"},
    {WORDS("placement.grads", tiers), AT(placement.grads), .fallback = "auto"},
    {WORDS("placement.master", tiers), AT(placement.master), .fallback = "auto"},
    {WORDS("placement.moments", tiers), AT(placement.moments),
     .also = "optimizer_offload offload_optimizer cpu_offload", .fallback = "auto"},
    {WORDS("placement.activations", acts), AT(placement.activations),
     .also = "offload activation_offload activation_offloading enable_activation_offload",
     .fallback = "auto",
     .note =
         "auto: as recompute.granularity says; the planner's choice where that is auto, too, in "
         "which frameworks' engines keep or recompute | keep | recompute | offload",
     .needs = NEEDS(FORWARD)},
    {RATIO("placement.gpu_fill"), AT(placement.gpu_fill), .fallback = "0.98",
     .note = "share of the GPU memory that is filled if a plan with no more exists",
     BOUNDS(0.5, 1)},
    {WORDS("placement.accept", accepted), AT(placement.accept_risk), .fallback = "fits",
     .note = "fits: a plan at risk is taken only where none fits | at_risk: plan to "
             "placement.gpu_fill and the limits of nodes, as a gpu_fill above 98% does, too"},
    {COUNT("placement.nvme_copies"), AT(placement.nvme_copies), .fallback = "1",
     .note = "1: written in place; 2: the last step survives a crash (run --keep-state), at twice "
             "the space",
     BOUNDS(1, 2), .needs = NEEDS(NVME) | NEEDS(COMMITS)},
    {WORDS("park.params", parked), AT(park.params), .fallback = "none", .also = "param_offload",
     .note = "none | host: on the host between updates"},
    {WORDS("park.grads", parked), AT(park.grads), .fallback = "none",
     .note = "none | host: buffers of gradients are freed between updates; nothing is copied"},
    {WORDS("park.moments", parked), AT(park.moments), .also = "optimizer_offload",
     .fallback = "none"},
    {WORDS("park.moments_back", backs), AT(park.moments_before_forward),
     .fallback = "optimizer_step",
     .note =
         "optimizer_step: for every step | forward_backward: with the first one of an iteration",
     .needs = NEEDS(FORWARD) | NEEDS(PARKED_MOMENTS)},
    {BOOL("park.reuse_copies"), AT(park.reuse_copies), .fallback = "true",
     .note = "false: a new page-locked copy of parameters is made before the old one goes",
     .needs = NEEDS(PARKED_PARAMS)},
    {COUNT("park.backups"), AT(park.backups), .fallback = "0",
     .note = "page-locked copies of the parameters that the trainer keeps: actor, reference, ...",
     BOUNDS(1, 16), .zero = true},
    {COUNT("prefetch.depth"), AT(prefetch.depth), .words = auto_count, .fallback = "auto",
     .note = "auto, or slots ahead", BOUNDS(1, 1024), .needs = NEEDS(RINGS)},
    {BYTES("prefetch.bucket"), AT(prefetch.bucket_bytes), .words = auto_bytes, .fallback = "auto",
     .note = "auto, or a size", BOUNDS(4096, 1099511627776.0), .needs = NEEDS(RINGS)},
    {WORDS("recompute.granularity", granularities), AT(recompute.granularity),
     .also = "gradient_checkpointing enable_gradient_checkpointing "
             "activation_checkpointing recompute_granularity checkpointing",
     .fallback = "auto",
     .note =
         "auto: the planner's choice by block, of some engines also of recompute.modules | none "
         "| full | selective",
     .needs = NEEDS(FORWARD)},
    {WORDS("recompute.method", methods), AT(recompute.method), .fallback = "none",
     .note = "none | uniform: every num_layers blocks keep one input | block: the first num_layers "
             "blocks of a stage",
     .needs = NEEDS(FORWARD)},
    {COUNT("recompute.num_layers"), AT(recompute.num_layers), .fallback = "0", BOUNDS(1, MOST_WAYS),
     .zero = true, .needs = NEEDS(FORWARD)},
    {STRINGS("recompute.modules"), AT(recompute.modules), .fallback = "[]",
     .note = "of selective recomputation: core_attn, mlp, moe, moe_act, layernorm, mla_up_proj, "
             "shared_experts; or ops, or some of mlp, self_attn, layernorm",
     .needs = NEEDS(FORWARD)},
    {WORDS("attention", attentions), AT(attention),
     .note = "flash (version 2) | sdpa: the same bytes, and a mask where a window is shorter than "
             "the sequence | eager: keeps all scores | flash_triton: version 1 | flash3",
     .also = "attn attn_implementation flash_attn flash_attention use_flash_attn",
     .fallback = "flash", .needs = NEEDS(FORWARD)},
    {BOOL("loss.fused"), AT(loss.fused), .search = SEARCH(FUSED_LOSS),
     .also = "liger use_liger_kernel use_fused_kernels fused_loss fused_linear_cross_entropy "
             "cut_cross_entropy",
     .fallback = "false", .needs = NEEDS(FORWARD) | NEEDS(CHUNKS)},
    {BOOL("loss.checkpoint"), AT(loss.checkpoint),
     .also = "chunked_loss chunked_cross_entropy checkpoint_loss", .fallback = "false",
     .note =
         "head and loss of loss.chunk tokens at a time under torch's checkpoint: backward makes "
         "their logits again",
     .needs = NEEDS(FORWARD)},
    {TOKENS("loss.chunk"), AT(loss.chunk), .fallback = "0",
     .note = "with fused or checkpoint: tokens at a time; 0: 1024", BOUNDS(1, MOST_TOKENS),
     .zero = true, .needs = NEEDS(FORWARD) | NEEDS(FUSED) | NEEDS(CHUNKS)},
    {WORDS("loss.upcast", dtypes), AT(loss.upcast), .fallback = "fp32", .needs = NEEDS(FORWARD)},
    {WORDS("moe.dispatcher", dispatchers), AT(moe.dispatcher),
     .also = "token_dispatcher moe_token_dispatcher_type", .fallback = "alltoall",
     .needs = NEEDS(FORWARD) | NEEDS(EXPERTS)},
    {RATIO("moe.capacity_factor"), AT(moe.capacity_factor), .words = none, .fallback = "none",
     .note = "none, or a factor of the mean", BOUNDS(1e-3, 1024),
     .needs = NEEDS(FORWARD) | NEEDS(EXPERTS)},
    {RATIO("moe.imbalance"), AT(moe.imbalance), .fallback = "1",
     .note = "tokens of the busiest rank over the mean", BOUNDS(1, 1024),
     .needs = NEEDS(FORWARD) | NEEDS(EXPERTS)},
};

static const stw_spec_row rows_after[] = {
    {BOOL("allocator.expandable_segments"), AT(allocator.expandable_segments),
     .also = "expandable_segments pytorch_cuda_alloc_conf", .fallback = "false",
     .note = "these three as in PYTORCH_CUDA_ALLOC_CONF", .needs = NEEDS(CACHES)},
    {BYTES("allocator.max_split_size"), AT(allocator.max_split_bytes), .words = none,
     .also = "max_split_size_mb", .fallback = "none", .note = "none, or a size",
     BOUNDS(20971520, 1099511627776.0), .needs = NEEDS(CACHES)},
    {COUNT("allocator.roundup_power2_divisions"), AT(allocator.roundup_power2_divisions),
     .words = none, .also = "roundup_power2_divisions", .fallback = "none",
     .note = "none, or a power of two for all sizes", BOUNDS(2, 64), .needs = NEEDS(CACHES)},
    {WORDS("load.method", loads), AT(load.method), .also = "memory_efficient_load zero_init",
     .fallback = "auto",
     .note =
         "auto: as the framework does unless told otherwise, or the planner's choice | all_ranks: "
         "the whole model on the host of every rank | rank0_broadcast: on that of rank 0 | "
         "node_leader: of one rank of a node | sharded_read: no whole model | all_ranks_gpu: on "
         "every GPU"},
    {WORDS("load.dtype", load_dtypes), AT(load.dtype), .fallback = "auto",
     .note = "auto (precision.params) | stored | fp32 | bf16 | fp16: of whole models on the host",
     .needs = NEEDS(FOREIGN)},
    {STRING("load.weights"), AT(load.weights), .words = none,
     .also = "weights checkpoint_path model_path", .fallback = "none", .note = "none, or a path",
     .needs = NEEDS(OWN)},
    {BOOL("load.page_cached"), AT(load.page_cached), .fallback = "false",
     .note = "weights files are in the page cache, or in /dev/shm: no disk is read"},
    {.key = "checkpoint.contents",
     .kind = STW_SPEC_FLAGS,
     AT(checkpoint.model),
     .words = contents,
     .fallback = "[model, optimizer]",
     .note = "",
     .needs = NEEDS(CHECKPOINTS)},
    {COUNT("checkpoint.every"), AT(checkpoint.every), .also = "save_freq save_interval",
     .fallback = "0", .note = "iterations; 0: never", BOUNDS(1, 1e9), .zero = true},
    {WORDS("checkpoint.format", formats), AT(checkpoint.format),
     .also = "ckpt_format dist_ckpt_format", .fallback = "auto",
     .note = "auto: that of the optimizer's owner | hf: whole tensors through rank 0 | dcp | "
             "torch_dist | stowage: safetensors, written beside training without a collective",
     .needs = NEEDS(CHECKPOINTS)},
    {BOOL("checkpoint.async"), AT(checkpoint.async), .also = "async_save", .fallback = "false",
     .note = "copied to the host first, written beside the next iterations",
     .needs = NEEDS(CHECKPOINTS) | NEEDS(FOREIGN_SAVES)},
    {COUNT("checkpoint.keep"), AT(checkpoint.keep),
     .also = "save_total_limit max_actor_ckpt_to_keep", .fallback = "0",
     .note = "complete ones that stay on the node's disk, which has room for one more; 0: all, "
             "which are not held to node.nvme.capacity",
     BOUNDS(1, 1e6), .zero = true, .needs = NEEDS(CHECKPOINTS)},
    {BYTES("checkpoint.copies"), AT(checkpoint.copies_bytes), .words = auto_bytes,
     .fallback = "0 B",
     .note = "page-locked, of each rank, beside two buckets: copies of state that is not written "
             "yet, so that the next step may change it; training waits where they are full | auto: "
             "as much as spares waiting, where the host has room",
     BOUNDS(1, 1125899906842624.0), .zero = true, .needs = NEEDS(CHECKPOINTS) | NEEDS(OWN_SAVES)},
    {WORDS("weight_sync.method", sync_methods), AT(weight_sync.method), .fallback = "tensors",
     .note =
         "tensors: whole, one at a time | buckets: as many whole ones as fill roles.update_bucket",
     .needs = NEEDS(SYNCS)},
    {.key = "roles",
     .kind = STW_SPEC_ITEMS,
     AT(roles),
     .items = &role_items,
     .fallback = "[]",
     .note = "roles beside the trainer, each with these keys:"},
};

void stw_run_spec_common_rows(stw_spec_table *before, stw_spec_table *after) {
    *before = (stw_spec_table){rows_before, sizeof rows_before / sizeof rows_before[0]};
    *after = (stw_spec_table){rows_after, sizeof rows_after / sizeof rows_after[0]};
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engines/megatron/fp8.h"
#include "engines/megatron/megatron.h"
#include "plan/spec/spec_rows.h"

#define AT(member) IN(stw_megatron_settings, member)
_Static_assert(sizeof(stw_megatron_settings) <= STW_SECTION_BYTES, "the settings fit");

static const stw_spec_word impls[] = {
    {"local", 0, NULL}, {"transformer_engine", 1, NULL}, {NULL, 0, NULL}};

static const stw_spec_word follows[] = {{"auto", STW_AUTO, NULL}, {NULL, 0, NULL}};
static const stw_spec_word none[] = {{"none", 0, NULL}, {NULL, 0, NULL}};
static const stw_spec_word entropies[] = {{"native", 0, NULL}, {"te", 1, NULL}, {NULL, 0, NULL}};
static const stw_spec_word shardings[] = {
    {"none", STW_MEGATRON_FSDP_NONE, NULL},
    {"optim", STW_MEGATRON_FSDP_OPTIM, NULL},
    {"optim_grads", STW_MEGATRON_FSDP_OPTIM_GRADS, NULL},
    {"optim_grads_params", STW_MEGATRON_FSDP_OPTIM_GRADS_PARAMS, NULL},
    {NULL, 0, NULL}};

static const stw_spec_word formats[] = {
    {"none", 0, NULL}, {"e4m3", 1, NULL}, {"hybrid", 2, NULL}, {NULL, 0, NULL}};
static const stw_spec_word recipes[] = {{"delayed", STW_MEGATRON_FP8_DELAYED, NULL},
                                        {"tensorwise", STW_MEGATRON_FP8_TENSORWISE, NULL},
                                        {"blockwise", STW_MEGATRON_FP8_BLOCKWISE, NULL},
                                        {"mxfp8", STW_MEGATRON_FP8_MXFP8, NULL},
                                        {NULL, 0, NULL}};

static const stw_spec_word muon_modes[] = {{"duplicated", STW_MEGATRON_MUON_DUPLICATED, NULL},
                                           {"blockwise", STW_MEGATRON_MUON_BLOCKWISE, NULL},
                                           {"distributed", STW_MEGATRON_MUON_DISTRIBUTED, NULL},
                                           {NULL, 0, NULL}};

static const stw_spec_row rows[] = {
    {BOOL("megatron.distributed_optimizer"), AT(distributed_optimizer), .fallback = "true",
     .also = "use_distributed_optimizer", .needs = NEEDS(SHARDS)},
    {WORDS("megatron.fsdp", shardings), AT(fsdp), .fallback = "none",
     .also = "use_megatron_fsdp data_parallel_sharding_strategy",
     .note = "none | optim | optim_grads | optim_grads_params: Megatron-FSDP, ZeRO-1, 2 or 3",
     .needs = NEEDS(SHARDS)},
    {BOOL("megatron.fsdp_double_buffer"), AT(fsdp_double_buffer), .fallback = "false",
     .note = "layers with equal parameters share two buffers, which stay", .needs = NEEDS(FORWARD)},
    {BOOL("megatron.fsdp_max_pool"), AT(fsdp_max_pool), .fallback = "false",
     .also = "megatron_fsdp_max_pool_double_buffer",
     .note = "the two buffers are large enough for any layer", .needs = NEEDS(FORWARD)},
    {BOOL("megatron.fsdp_persistent"), AT(fsdp_persistent), .fallback = "false",
     .also = "fsdp_db_use_persist_buf_on_alloc_fail",
     .note = "what the two buffers are not for has buffers of its own, which stay, too",
     .needs = NEEDS(FORWARD)},
    {COUNT("megatron.fsdp_communication_unit"), AT(fsdp_communication_unit), .fallback = "0",
     .also = "suggested_communication_unit_size",
     .note =
         "elements that wait for their reduction, twice those gathered ahead; 0: 1e9 or 2 layers",
     BOUNDS(1, 1ull << 40), .zero = true, .needs = NEEDS(FORWARD)},
    {BOOL("megatron.optimizer_cpu_offload"), AT(optimizer_cpu_offload), .fallback = "false",
     .note = "HybridDeviceOptimizer, even where the fraction is 0"},
    {RATIO("megatron.optimizer_offload_fraction"), AT(optimizer_offload_fraction), .words = follows,
     .fallback = "auto",
     .note = "share of each rank's state that the CPU updates; auto: 0, with optimizer_cpu_offload "
             "the planner's choice (Megatron-LM's: 1)",
     BOUNDS(0, 1)},
    {BOOL("megatron.overlap_d2h_h2d"), AT(overlap_d2h_h2d), .also = "overlap_cpu_optimizer_d2h_h2d",
     .fallback = "false"},
    {BOOL("megatron.precision_aware"), AT(precision_aware), .also = "use_precision_aware_optimizer",
     .fallback = "false",
     .note = "with an offload fraction: no fp32 parameters of offloaded state on the GPU"},
    {BOOL("megatron.overlap_grad_reduce"), AT(overlap_grad_reduce), .fallback = "false",
     .needs = NEEDS(SHARDS)},
    {BOOL("megatron.overlap_param_gather"), AT(overlap_param_gather), .fallback = "false",
     .needs = NEEDS(SHARDS)},
    {BOOL("megatron.cross_entropy_fusion"), AT(cross_entropy_fusion),
     .also = "cross_entropy_loss_fusion", .fallback = "false", .needs = NEEDS(FORWARD)},
    {WORDS("megatron.cross_entropy_fusion_impl", entropies), AT(cross_entropy_impl),
     .fallback = "native", .note = "native | te: the gradient takes the place of the logits",
     .needs = NEEDS(FORWARD)},
    {COUNT("megatron.vocab_multiple"), AT(vocab_multiple), .also = "make_vocab_size_divisible_by",
     .fallback = "128", .note = "the vocabulary is padded to a multiple of this times tp",
     BOUNDS(1, 65536), .needs = NEEDS(FORWARD)},
    {COUNT("megatron.microbatch_group"), AT(microbatch_group),
     .also = "microbatch_group_size_per_virtual_pipeline_stage", .fallback = "0",
     .note = "micro batches that a chunk of an interleaved schedule takes in turn; 0: pp",
     BOUNDS(1, 65536), .zero = true, .needs = NEEDS(FORWARD)},
    {STRING("megatron.pipeline_layout"), AT(pipeline_layout), .words = none,
     .also = "pipeline_model_parallel_layout", .fallback = "none",
     .note = "none, or chunks between bars: E embedding, t layer, m multi-token prediction, L loss",
     .needs = NEEDS(FORWARD)},
    {COUNT("megatron.first_stage_layers"), AT(first_stage_layers), .fallback = "0",
     .also = "num_layers_in_first_pipeline_stage decoder_first_pipeline_num_layers",
     .note = "0: as many as other stages", BOUNDS(1, 65536), .zero = true, .needs = NEEDS(FORWARD)},
    {COUNT("megatron.last_stage_layers"), AT(last_stage_layers), .fallback = "0",
     .also = "num_layers_in_last_pipeline_stage decoder_last_pipeline_num_layers",
     .note = "0: as many as other stages", BOUNDS(1, 65536), .zero = true, .needs = NEEDS(FORWARD)},
    {BOOL("megatron.account_for_embedding"), AT(account_for_embedding), .fallback = "false",
     .also = "account_for_embedding_in_pipeline_split",
     .note = "the embedding counts as a layer of the first stage", .needs = NEEDS(FORWARD)},
    {BOOL("megatron.account_for_loss"), AT(account_for_loss), .fallback = "false",
     .also = "account_for_loss_in_pipeline_split",
     .note = "the loss counts as a layer of the last stage", .needs = NEEDS(FORWARD)},
    {COUNT("megatron.mtp_num_layers"), AT(mtp_num_layers), .fallback = "0",
     .also = "num_nextn_predict_layers", .note = "layers of multi-token prediction", BOUNDS(1, 64),
     .zero = true, .needs = NEEDS(FORWARD)},
    {BOOL("megatron.pad_to_capacity"), AT(pad_to_capacity), .fallback = "false",
     .also = "moe_pad_expert_input_to_capacity",
     .note = "every expert gets as many rows as moe.capacity_factor allows",
     .needs = NEEDS(FORWARD) | NEEDS(EXPERTS)},
    {BOOL("megatron.shared_expert_overlap"), AT(shared_expert_overlap), .fallback = "false",
     .also = "moe_shared_expert_overlap", .note = "shared experts keep all rows of a TP group",
     .needs = NEEDS(FORWARD) | NEEDS(EXPERTS)},
    {COUNT("megatron.optimizer_instances"), AT(optimizer_instances), .fallback = "1",
     .also = "num_distributed_optimizer_instances",
     .note = "groups of data-parallel ranks of which each has the whole optimizer state",
     BOUNDS(1, 65536), .needs = NEEDS(SHARDS)},
    {WORDS("megatron.transformer_impl", impls), AT(transformer_impl), .also = "transformer_engine",
     .fallback = "local", .needs = NEEDS(FORWARD)},
    {BOOL("megatron.grouped_gemm"), AT(grouped_gemm), .also = "moe_grouped_gemm",
     .fallback = "false",
     .note = "with transformer_engine: products of experts on streams that have workspaces",
     .needs = NEEDS(FORWARD) | NEEDS(EXPERTS)},
    {BOOL("megatron.gradient_accumulation_fusion"), AT(grad_fusion), .fallback = "true",
     .note = "with transformer_engine: products add to the main gradients, and one dummy gradient "
             "of each shape stays",
     .needs = NEEDS(FORWARD)},
    {BOOL("megatron.defer_embedding_wgrad"), AT(defer_embedding_wgrad),
     .also = "defer_embedding_wgrad_compute", .fallback = "false",
     .note = "the head's weight gradients are computed after the last micro batch",
     .needs = NEEDS(FORWARD)},
    {COUNT("megatron.wgrad_deferral_limit"), AT(wgrad_deferral_limit), .fallback = "0",
     .note = "of at most so many micro batches; 0: of all", BOUNDS(1, 65536), .zero = true,
     .needs = NEEDS(FORWARD)},
    {BOOL("megatron.softmax_fp32"), AT(softmax_fp32), .also = "attention_softmax_in_fp32",
     .fallback = "false",
     .note = "with attention: eager and local layers: softmax without fusion, in fp32",
     .needs = NEEDS(FORWARD)},
    {RATIO("megatron.hidden_dropout"), AT(hidden_dropout), .fallback = "0",
     .note = "above 0: masks are kept", BOUNDS(0, 1), .needs = NEEDS(FORWARD)},
    {RATIO("megatron.attention_dropout"), AT(attention_dropout), .fallback = "0",
     .note = "above 0, with attention: eager: masks and what is left of the scores are kept",
     BOUNDS(0, 1), .needs = NEEDS(FORWARD)},
    {RATIO("megatron.lora_dropout"), AT(lora_dropout), .fallback = "0",
     .note = "above 0, with trainable.lora: inputs of adapters are kept apart, and masks",
     BOUNDS(0, 1), .needs = NEEDS(FORWARD)},
    {WORDS("megatron.fp8", formats), AT(fp8), .fallback = "none", .also = "fp8_format",
     .note = "none | e4m3 | hybrid: 8-bit products of TransformerEngine; seconds are those of 16 "
             "bits",
     .needs = NEEDS(FORWARD)},
    {WORDS("megatron.fp8_recipe", recipes), AT(fp8_recipe), .fallback = "delayed",
     .note = "delayed | tensorwise | blockwise | mxfp8: what has a scale of its own",
     .needs = NEEDS(FORWARD)},
    {BOOL("megatron.fp8_param_gather"), AT(fp8_param_gather), .fallback = "false",
     .also = "fp8_param", .note = "weights of products are kept and gathered in 8 bits",
     .needs = NEEDS(FORWARD)},
    {BOOL("megatron.fp8_transposes"), AT(fp8_transposes), .fallback = "true",
     .note =
         "a transposed copy of each 8-bit tensor; false for delayed and tensorwise on Blackwell",
     .needs = NEEDS(FORWARD)},
    {COUNT("megatron.fp8_amax_history"), AT(fp8_amax_history), .fallback = "1",
     .also = "fp8_amax_history_len", .note = "maxima that delayed scaling keeps of each tensor",
     BOUNDS(1, 65536), .needs = NEEDS(FORWARD)},
    {COUNT("megatron.first_layers_bf16"), AT(first_layers_bf16), .fallback = "0",
     .also = "num_layers_at_start_in_bf16 first_last_layers_bf16",
     .note = "with fp8: so many layers stay in 16 bits", BOUNDS(1, 65536), .zero = true,
     .needs = NEEDS(FORWARD)},
    {COUNT("megatron.last_layers_bf16"), AT(last_layers_bf16), .fallback = "0",
     .also = "num_layers_at_end_in_bf16", .note = "the same at the end", BOUNDS(1, 65536),
     .zero = true, .needs = NEEDS(FORWARD)},
    {STRINGS("megatron.offload_modules"), AT(offload_modules), .fallback = "[]",
     .also = "fine_grained_activation_offloading",
     .note = "saved activations on the host: attn_norm, qkv_linear, core_attn, attn_proj, "
             "mlp_norm, expert_fc1, moe_act",
     .needs = NEEDS(FORWARD)},
    {COUNT("megatron.muon_ns_steps"), AT(muon_ns_steps), .fallback = "5",
     .also = "muon_num_ns_steps", .note = "Newton-Schulz steps of optimizer.kind: muon",
     BOUNDS(1, 99), .needs = NEEDS(FORWARD)},
    {BOOL("megatron.muon_nesterov"), AT(muon_nesterov), .fallback = "false",
     .note = "of optimizer.kind: muon; a copy of each gradient in fp32", .needs = NEEDS(FORWARD)},
    {BOOL("megatron.muon_whole_qkv"), AT(muon_whole_qkv), .fallback = "false",
     .also = "muon_no_split_qkv muon_split_qkv",
     .note = "of optimizer.kind: muon; q, k and v are one matrix", .needs = NEEDS(FORWARD)},
    {WORDS("megatron.muon_tp_mode", muon_modes), AT(muon_tp_mode), .fallback = "duplicated",
     .note = "of optimizer.kind: muon; duplicated: all ranks of tp work on whole matrices | "
             "blockwise: each on its part | distributed: on its part, with sums of products",
     .needs = NEEDS(FORWARD)},
    {STRING("megatron.ckpt_format"), AT(ckpt_format), .fallback = "torch_dist",
     .instead = "checkpoint files of Megatron-LM are not planned"},
};

const stw_spec_section stw_megatron_section = {.name = "megatron",
                                               .rows = rows,
                                               .n_rows = sizeof rows / sizeof rows[0],
                                               .size = sizeof(stw_megatron_settings)};

stw_megatron_settings stw_megatron_settings_of(const stw_run_spec *run) {
    stw_megatron_settings settings;
    stw_run_spec_settings(run, &stw_megatron_section, &settings);
    if (settings.optimizer_offload_fraction > 1) /* auto: arguments.py */
        settings.optimizer_offload_fraction = settings.optimizer_cpu_offload ? 1 : 0;
    return settings;
}

bool stw_megatron_is_fsdp(const stw_run_spec *run) {
    return stw_megatron_settings_of(run).fsdp != STW_MEGATRON_FSDP_NONE;
}

bool stw_megatron_cuts_grads(const stw_run_spec *run) {
    return stw_megatron_settings_of(run).fsdp >= STW_MEGATRON_FSDP_OPTIM_GRADS;
}

bool stw_megatron_cuts_params(const stw_run_spec *run) {
    return stw_megatron_settings_of(run).fsdp == STW_MEGATRON_FSDP_OPTIM_GRADS_PARAMS;
}

/* ---- recompute.modules ---- */

static bool *module_named(stw_megatron_modules *modules, const char *name) {
    if (strcmp(name, "core_attn") == 0) return &modules->core_attn;
    if (strcmp(name, "mlp") == 0) return &modules->mlp;
    if (strcmp(name, "moe") == 0) return &modules->moe;
    if (strcmp(name, "moe_act") == 0) return &modules->moe_act;
    if (strcmp(name, "layernorm") == 0) return &modules->layernorm;
    if (strcmp(name, "mla_up_proj") == 0) return &modules->mla_up_proj;
    if (strcmp(name, "shared_experts") == 0) return &modules->shared_experts;
    return NULL;
}

/* Without a list, core attention (transformer_config.py). */
stw_megatron_modules stw_megatron_modules_of(const stw_run_spec *run) {
    stw_megatron_modules modules = {.core_attn = run->recompute.modules.n == 0};
    for (uint32_t i = 0; i < run->recompute.modules.n; i++) {
        bool *module = module_named(&modules, run->recompute.modules.items[i]);
        if (module != NULL) *module = true;
    }
    return modules;
}

/* ---- checks ---- */

static stw_status check_recompute(const stw_run_spec *run, const char *origin, stw_error *err) {
    const bool full = run->recompute.granularity == 1;
    stw_megatron_modules modules = {0};
    if (run->recompute.modules.n > 0 && run->recompute.granularity != 2)
        return stw_run_spec_refuse_value(run, origin, err, "recompute.modules",
                                         "[], or recompute.granularity: selective");
    for (uint32_t i = 0; i < run->recompute.modules.n; i++)
        if (module_named(&modules, run->recompute.modules.items[i]) == NULL)
            return stw_run_spec_refuse_value(run, origin, err, "recompute.modules",
                                             "of core_attn, mlp, moe, moe_act, layernorm, "
                                             "mla_up_proj, shared_experts");
    if (stw_megatron_modules_of(run).moe_act && !stw_megatron_settings_of(run).grouped_gemm)
        return stw_run_spec_refuse_value(run, origin, err, "recompute.modules",
                                         "none that is moe_act, or megatron.grouped_gemm: true, "
                                         "without which Megatron-LM refuses it");
    if (run->recompute.method != 0 && !full)
        return stw_run_spec_refuse_value(run, origin, err, "recompute.method",
                                         "none, or recompute.granularity: full");
    if (run->recompute.num_layers > 0 && run->recompute.method == 0)
        return stw_run_spec_refuse_value(run, origin, err, "recompute.num_layers",
                                         "0, or a recompute.method");
    if (run->recompute.num_layers == 0 && run->recompute.method != 0)
        return stw_run_spec_refuse_value(run, origin, err, "recompute.num_layers",
                                         "at least 1 with a recompute.method");
    return STW_STATUS_OK;
}

/* Float16OptimizerWithFloat16Params and DistributedOptimizer (optimizer/optimizer.py,
 * distrib_optimizer.py): 16-bit parameters with fp32 main parameters. */
static stw_status check_precision(const stw_run_spec *run, const char *origin, stw_error *err) {
    const bool aware = stw_megatron_settings_of(run).precision_aware;
    if (run->precision.params == STW_DTYPE_F32)
        return stw_run_spec_refuse_value(run, origin, err, "precision.params",
                                         "bf16 or fp16, with precision.master: fp32");
    if (!run->precision.has_master)
        return stw_run_spec_refuse_value(run, origin, err, "precision.master",
                                         "fp32, because engine is megatron");
    if (run->precision.compute != run->precision.params)
        return stw_run_spec_refuse_value(run, origin, err, "precision.compute",
                                         "the same as precision.params");
    if (run->precision.reduce != run->precision.grads)
        return stw_run_spec_refuse_value(run, origin, err, "precision.reduce",
                                         "the same as precision.grads: one buffer is both");
    if (!aware && run->precision.exp_avg != STW_DTYPE_F32)
        return stw_run_spec_refuse_value(run, origin, err, "precision.exp_avg",
                                         "fp32, or megatron.precision_aware: true");
    if (!aware && run->precision.exp_avg_sq != STW_DTYPE_F32)
        return stw_run_spec_refuse_value(run, origin, err, "precision.exp_avg_sq",
                                         "fp32, or megatron.precision_aware: true");
    return STW_STATUS_OK;
}

/* What the plan's bytes of a precision-aware optimizer follow from: state of other dtypes than
 * fp32, offloaded state without fp32 parameters on the GPU, gradients without fp32 copies. */
static bool awareness_matters(const stw_run_spec *run) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    return s.optimizer_cpu_offload || s.optimizer_offload_fraction > 0 ||
           s.fsdp != STW_MEGATRON_FSDP_NONE || run->precision.grads != STW_DTYPE_F32 ||
           run->precision.exp_avg != STW_DTYPE_F32 || run->precision.exp_avg_sq != STW_DTYPE_F32;
}

/* megatron/core/transformer/dot_product_attention.py asserts it of local layers;
 * TransformerEngine's unfused attention has none either (dot_product_attention/utils.py,
 * get_attention_backend). */
static stw_status check_context(const stw_run_spec *run, const char *origin, stw_error *err) {
    if (run->parallel.cp == 1 || run->attention != STW_ATTENTION_EAGER) return STW_STATUS_OK;
    return stw_run_spec_refuse_value(
        run, origin, err, "parallel.cp",
        "1, or attention: flash with megatron.transformer_impl: transformer_engine, because "
        "Megatron-LM's context parallelism is only supported by TEDotProductAttention");
}

static stw_status check_settings(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    if (s.precision_aware && !s.distributed_optimizer) /* optimizer_config.py, __post_init__ */
        return stw_run_spec_refuse_value(run, origin, err, "megatron.distributed_optimizer",
                                         "true with megatron.precision_aware");
    if (s.optimizer_offload_fraction > 0 && !s.distributed_optimizer)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.distributed_optimizer",
                                         "true with megatron.optimizer_offload_fraction");
    if (s.optimizer_cpu_offload && !s.distributed_optimizer)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.optimizer_cpu_offload",
                                         "false, or megatron.distributed_optimizer: true");
    if (s.optimizer_instances > 1 && !s.distributed_optimizer)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.optimizer_instances",
                                         "1, or megatron.distributed_optimizer: true");
    if (s.precision_aware && !awareness_matters(run))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.precision_aware",
                                         "false, or megatron.optimizer_cpu_offload: true, or "
                                         "precision.grads, exp_avg or exp_avg_sq below fp32");
    if (s.overlap_d2h_h2d && !(s.optimizer_offload_fraction > 0))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.overlap_d2h_h2d",
                                         "false, or megatron.optimizer_offload_fraction above 0");
    if (s.cross_entropy_impl != 0 && !s.cross_entropy_fusion)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.cross_entropy_fusion_impl",
                                         "native, or megatron.cross_entropy_fusion: true");
    if (s.microbatch_group > 0 && run->parallel.vpp == 1)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.microbatch_group",
                                         "0, or parallel.vpp above 1");
    if (s.softmax_fp32 && (s.transformer_impl != 0 || run->attention != STW_ATTENTION_EAGER))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.softmax_fp32",
                                         "false, or attention: eager with "
                                         "megatron.transformer_impl: local");
    if (s.grouped_gemm && s.transformer_impl != 1)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.grouped_gemm",
                                         "false, or megatron.transformer_impl: transformer_engine");
    if (!s.grad_fusion && s.transformer_impl != 1)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.gradient_accumulation_fusion",
                                         "true, or megatron.transformer_impl: transformer_engine");
    if (!s.grad_fusion && run->trainable.lora_rank > 0)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.gradient_accumulation_fusion",
                                         "true, or no trainable.lora, which has no gradients of "
                                         "these products' weights");
    if (s.defer_embedding_wgrad && run->parallel.pp == 1) /* model_parallel_config.py */
        return stw_run_spec_refuse_value(run, origin, err, "megatron.defer_embedding_wgrad",
                                         "false, or parallel.pp above 1");
    if (s.wgrad_deferral_limit > 0 && !s.defer_embedding_wgrad)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.wgrad_deferral_limit",
                                         "0, or megatron.defer_embedding_wgrad: true");
    if (s.attention_dropout > 0 && run->attention != STW_ATTENTION_EAGER)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.attention_dropout",
                                         "0, or attention: eager: others keep no masks");
    if (s.overlap_param_gather && !(s.distributed_optimizer && s.overlap_grad_reduce))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.overlap_param_gather",
                                         "false, or megatron.distributed_optimizer and "
                                         "megatron.overlap_grad_reduce");
    return STW_STATUS_OK;
}

static stw_status check_parking(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_megatron_settings set = stw_megatron_settings_of(run);
    const bool parks = run->park.params || run->park.grads || run->park.moments;
    if (parks && stw_megatron_is_fsdp(run))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fsdp",
                                         "none, because state is parked (park.*)");
    if (run->checkpoint.async && stw_megatron_is_fsdp(run))
        return stw_run_spec_refuse_value(run, origin, err, "checkpoint.async",
                                         "false, because megatron.fsdp saves at once");
    if (run->park.params && !set.distributed_optimizer)
        return stw_run_spec_refuse(origin, err, "park.params", "host",
                                   "none, because only the distributed optimizer has buffers of "
                                   "parameters (megatron.distributed_optimizer: true)");
    if (run->park.moments && set.optimizer_offload_fraction > 0)
        return stw_run_spec_refuse(origin, err, "park.moments", "host",
                                   "none, because megatron.optimizer_offload_fraction keeps the "
                                   "optimizer's state on the host");
    return STW_STATUS_OK;
}

/* transformer_config.py, __post_init__. */
static stw_status check_stages(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    const bool counts = s.first_stage_layers > 0 || s.last_stage_layers > 0;
    const bool accounts = s.account_for_embedding || s.account_for_loss;
    const char *keys[] = {
        s.pipeline_layout != NULL ? "megatron.pipeline_layout" : NULL,
        s.first_stage_layers > 0 ? "megatron.first_stage_layers" : NULL,
        s.last_stage_layers > 0 ? "megatron.last_stage_layers" : NULL,
        s.account_for_embedding ? "megatron.account_for_embedding" : NULL,
        s.account_for_loss ? "megatron.account_for_loss" : NULL,
    };
    for (int i = 0; i < 5; i++)
        if (keys[i] != NULL && run->parallel.pp == 1)
            return stw_run_spec_refuse_value(run, origin, err, keys[i],
                                             "its default, or parallel.pp above 1");
    if (s.pipeline_layout != NULL && (counts || accounts))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.pipeline_layout",
                                         "none, or no other division into stages");
    if (counts && accounts)
        return stw_run_spec_refuse_value(run, origin, err,
                                         s.account_for_loss ? "megatron.account_for_loss"
                                                            : "megatron.account_for_embedding",
                                         "false with first_stage_layers or last_stage_layers");
    if (s.mtp_num_layers > 0 && run->recompute.method == 1 && run->recompute.num_layers > 1)
        return stw_run_spec_refuse_value(run, origin, err, "recompute.num_layers",
                                         "1 with megatron.mtp_num_layers");
    return STW_STATUS_OK;
}

/* The same. */
static stw_status check_moe(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    const stw_megatron_modules m = stw_megatron_modules_of(run);
    if (s.pad_to_capacity && !(run->moe.capacity_factor > 0))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.pad_to_capacity",
                                         "false, or a moe.capacity_factor");
    if (run->moe.dispatcher == 1 && run->moe.capacity_factor > 0)
        return stw_run_spec_refuse_value(run, origin, err, "moe.capacity_factor",
                                         "none with moe.dispatcher: allgather");
    if (s.shared_expert_overlap && run->moe.dispatcher != 0)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.shared_expert_overlap",
                                         "false, or moe.dispatcher: alltoall");
    if (s.shared_expert_overlap && !run->parallel.sequence_parallel)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.shared_expert_overlap",
                                         "false: without parallel.sequence_parallel it changes no "
                                         "bytes, and its overlap is not planned");
    if (s.shared_expert_overlap && run->recompute.granularity == 2 && m.shared_experts)
        return stw_run_spec_refuse_value(run, origin, err, "recompute.modules",
                                         "without shared_experts, or "
                                         "megatron.shared_expert_overlap: false");
    return STW_STATUS_OK;
}

/* mcore_fsdp_adapter.py, megatron_fsdp.py; training/arguments.py, validate_args. */
static stw_status check_fsdp(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    if (s.fsdp_double_buffer && !stw_megatron_cuts_params(run))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fsdp_double_buffer",
                                         "false, or megatron.fsdp: optim_grads_params");
    if (s.fsdp_max_pool && !s.fsdp_double_buffer)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fsdp_max_pool",
                                         "false, or megatron.fsdp_double_buffer: true");
    if (s.fsdp_persistent && !s.fsdp_double_buffer)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fsdp_persistent",
                                         "false, or megatron.fsdp_double_buffer: true");
    if (s.fsdp_communication_unit > 0 && !stw_megatron_cuts_grads(run))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fsdp_communication_unit",
                                         "0, or megatron.fsdp: optim_grads or optim_grads_params");
    if (s.fsdp == STW_MEGATRON_FSDP_NONE) return STW_STATUS_OK;
    if (!s.distributed_optimizer)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.distributed_optimizer",
                                         "true with megatron.fsdp");
    if (run->parallel.pp > 1)
        return stw_run_spec_refuse_value(run, origin, err, "parallel.pp", "1 with megatron.fsdp");
    if (stw_megatron_cuts_params(run) && s.overlap_param_gather)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.overlap_param_gather",
                                         "false: optim_grads_params always overlaps");
    if (s.mtp_num_layers > 0)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.mtp_num_layers",
                                         "0 with megatron.fsdp");
    if (s.optimizer_instances > 1)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.optimizer_instances",
                                         "1 with megatron.fsdp");
    if (run->n_roles > 0)
        return stw_run_spec_refuse(origin, err, "roles", "a further role",
                                   "the trainer alone with megatron.fsdp");
    if (run->park.params || run->park.grads || run->park.moments)
        return stw_run_spec_refuse(origin, err, "park", "host",
                                   "none with megatron.fsdp, whose buffers are not parked");
    if ((s.optimizer_offload_fraction > 0 || s.optimizer_cpu_offload) &&
        s.optimizer_offload_fraction < 1)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.optimizer_offload_fraction",
                                         "0 or 1 with megatron.fsdp");
    return STW_STATUS_OK;
}

/* training/arguments.py, "emerging optimizer check"; optimizer/__init__.py,
 * _get_megatron_emerging_optimizer; layer_wise_optimizer.py: all of the distributed optimizer's
 * options off. */
static stw_status check_muon(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    const struct {
        const char *key, *expected;
        bool set;
    } of_muon[] = {{"megatron.muon_ns_steps", "5, or optimizer.kind: muon", s.muon_ns_steps != 5},
                   {"megatron.muon_nesterov", "false, or optimizer.kind: muon", s.muon_nesterov},
                   {"megatron.muon_whole_qkv", "false, or optimizer.kind: muon", s.muon_whole_qkv},
                   {"megatron.muon_tp_mode", "duplicated, or optimizer.kind: muon",
                    s.muon_tp_mode != STW_MEGATRON_MUON_DUPLICATED}},
      others[] = {
          {"megatron.fsdp", "none with optimizer.kind: muon", s.fsdp != STW_MEGATRON_FSDP_NONE},
          {"megatron.optimizer_cpu_offload", "false with optimizer.kind: muon",
           s.optimizer_cpu_offload},
          {"megatron.optimizer_offload_fraction", "0 with optimizer.kind: muon",
           s.optimizer_offload_fraction > 0},
          {"precision.exp_avg", "fp32 with optimizer.kind: muon, whose momentum it is",
           run->precision.exp_avg != STW_DTYPE_F32},
          {"megatron.precision_aware", "false with optimizer.kind: muon", s.precision_aware},
          {"megatron.optimizer_instances", "1 with optimizer.kind: muon",
           s.optimizer_instances > 1},
          {"precision.params", "bf16 with optimizer.kind: muon",
           run->precision.params != STW_DTYPE_BF16},
          {"trainable.lora.rank",
           "0 with optimizer.kind: muon: its state of adapters is not planned",
           run->trainable.lora_rank > 0},
      };
    const bool muon = run->optimizer.kind == STW_OPTIMIZER_KIND_MUON;
    for (size_t i = 0; !muon && i < sizeof of_muon / sizeof of_muon[0]; i++)
        if (of_muon[i].set)
            return stw_run_spec_refuse_value(run, origin, err, of_muon[i].key, of_muon[i].expected);
    for (size_t i = 0; muon && i < sizeof others / sizeof others[0]; i++)
        if (others[i].set)
            return stw_run_spec_refuse_value(run, origin, err, others[i].key, others[i].expected);
    return STW_STATUS_OK;
}

stw_status stw_megatron_check(const stw_run_spec *run, const char *origin, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_muon(run, origin, err));
    STW_TRY(check_precision(run, origin, err));
    STW_TRY(check_settings(run, origin, err));
    STW_TRY(check_context(run, origin, err));
    STW_TRY(check_stages(run, origin, err));
    STW_TRY(check_moe(run, origin, err));
    STW_TRY(check_recompute(run, origin, err));
    STW_TRY(check_fsdp(run, origin, err));
    STW_TRY(check_parking(run, origin, err));
    if (run->parallel.dp_replicate != 1)
        return stw_run_spec_refuse_value(run, origin, err, "parallel.dp_replicate",
                                         "1: all GPUs that tp, cp and pp leave are data parallel");
    if (run->parallel.sequence_parallel && run->parallel.tp == 1)
        return stw_run_spec_refuse_value(run, origin, err, "parallel.sequence_parallel",
                                         "false, or parallel.tp above 1");
    if (run->prefetch.depth != STW_AUTO)
        return stw_run_spec_refuse_value(run, origin, err, "prefetch.depth",
                                         "auto, because engine is megatron");
    if (run->attention == STW_ATTENTION_SDPA || run->attention == STW_ATTENTION_FLASH3)
        return stw_run_spec_refuse_value(run, origin, err, "attention",
                                         "flash or eager, because engine is megatron, which "
                                         "chooses among fused kernels itself");
    if (run->loss.fused)
        return stw_run_spec_refuse_value(run, origin, err, "loss.fused",
                                         "false, or megatron.cross_entropy_fusion: true");
    if (run->loss.upcast != STW_DTYPE_F32)
        return stw_run_spec_refuse_value(run, origin, err, "loss.upcast",
                                         "fp32, because engine is megatron");
out:
    return status;
}

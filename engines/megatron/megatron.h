/* SPDX-License-Identifier: Apache-2.0 */
/* The keys megatron.* of a run spec, and what else of it only this engine reads. */
#ifndef STW_ENGINES_MEGATRON_H
#define STW_ENGINES_MEGATRON_H

#include "plan/job/engine.h"
#include "plan/spec/registry.h"

/** megatron.fsdp: data_parallel_sharding_strategy of Megatron-FSDP. */
typedef enum stw_megatron_sharding {
    STW_MEGATRON_FSDP_NONE,
    STW_MEGATRON_FSDP_OPTIM,             /* ZeRO-1 */
    STW_MEGATRON_FSDP_OPTIM_GRADS,       /* ZeRO-2 */
    STW_MEGATRON_FSDP_OPTIM_GRADS_PARAMS /* ZeRO-3 */
} stw_megatron_sharding;

/** megatron.muon_tp_mode: how ranks of tensor parallelism orthogonalise a matrix. */
typedef enum stw_megatron_muon_mode {
    STW_MEGATRON_MUON_DUPLICATED,
    STW_MEGATRON_MUON_BLOCKWISE,
    STW_MEGATRON_MUON_DISTRIBUTED
} stw_megatron_muon_mode;

typedef struct stw_megatron_settings {
    bool distributed_optimizer, fsdp_double_buffer, fsdp_max_pool;
    bool fsdp_persistent;
    uint32_t fsdp;                    /* stw_megatron_sharding */
    uint64_t fsdp_communication_unit; /* elements, 0: as Megatron-FSDP chooses */
    double optimizer_offload_fraction;
    bool overlap_d2h_h2d, precision_aware, overlap_grad_reduce, overlap_param_gather;
    bool cross_entropy_fusion, optimizer_cpu_offload;
    uint32_t cross_entropy_impl; /* 0: native, 1: TransformerEngine */
    uint32_t vocab_multiple;
    uint32_t microbatch_group;                      /* 0: as many as stages */
    const char *pipeline_layout;                    /* NULL: none */
    uint32_t first_stage_layers, last_stage_layers; /* 0: as many as other stages */
    bool account_for_embedding, account_for_loss;
    uint32_t mtp_num_layers;
    bool pad_to_capacity, shared_expert_overlap;
    uint32_t optimizer_instances;

    uint32_t transformer_impl; /* 0: local, 1: TransformerEngine */
    bool grouped_gemm, grad_fusion, defer_embedding_wgrad, softmax_fp32;
    uint32_t wgrad_deferral_limit; /* 0: all micro batches */
    double hidden_dropout, attention_dropout, lora_dropout;
    const char *ckpt_format;
    uint32_t fp8, fp8_recipe; /* 0: none; stw_megatron_recipe */
    uint32_t fp8_amax_history, first_layers_bf16, last_layers_bf16;
    bool fp8_param_gather, fp8_transposes;
    stw_strings offload_modules;
    uint32_t muon_ns_steps, muon_tp_mode; /* stw_megatron_muon_mode */
    bool muon_nesterov, muon_whole_qkv;
} stw_megatron_settings;

extern const stw_spec_section stw_megatron_section;
stw_megatron_settings stw_megatron_settings_of(const stw_run_spec *run);
bool stw_megatron_is_fsdp(const stw_run_spec *run);
/** Does Megatron-FSDP cut gradients, does it cut parameters over data-parallel ranks? */
bool stw_megatron_cuts_grads(const stw_run_spec *run);
bool stw_megatron_cuts_params(const stw_run_spec *run);
/** Modules of recompute.modules (transformer_config.py, recompute_modules). */
typedef struct stw_megatron_modules {
    bool core_attn, mlp, moe, moe_act, layernorm, mla_up_proj, shared_experts;
} stw_megatron_modules;
stw_megatron_modules stw_megatron_modules_of(const stw_run_spec *run);
/** stw_engine.layouts. (layouts.c) */
extern const stw_layout_rules stw_megatron_layouts;
/** stw_engine_spec.check. */
STW_MUST_USE stw_status stw_megatron_check(const stw_run_spec *run, const char *origin,
                                           stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/fsdp_keys.h"

#include <stdio.h>
#include <string.h>

#include "engines/bucket_places.h"
#include "plan/spec/spec_rows.h"

#define AT(member) IN(stw_fsdp_settings, member)
_Static_assert(sizeof(stw_fsdp_settings) <= STW_SECTION_BYTES, "the settings fit");

static const stw_spec_row rows[] = {
    {BOOL("fsdp.reshard_after_forward"), AT(reshard_after_forward),
     .search = 1u << STW_SEARCH_OWN_1, .also = "reshard zero_stage", .fallback = "true",
     .needs = NEEDS(FORWARD) | NEEDS(GATHERS)},
    {BOOL("fsdp.reshard_to_node"), AT(reshard_to_node), .search = 1u << STW_SEARCH_OWN_2,
     .fallback = "false",
     .note =
         "true: reshard_after_forward is the number of GPUs of a node, which then hold parameters "
         "between forward and backward",
     .needs = NEEDS(FORWARD) | NEEDS(NODES) | NEEDS(PEERS)},
    {BOOL("fsdp.reshard_after_backward"), AT(reshard_after_backward), .fallback = "true",
     .note = "false: parameters stay gathered between micro batches (two of them are counted as "
             "three or more)",
     .needs = NEEDS(FORWARD) | NEEDS(GATHERS) | NEEDS(ACCUMULATES)},
    {BOOL("fsdp.offload_policy"), AT(offload_policy), .also = "offload cpu_offload",
     .fallback = "false", .note = "params, grads and moments on the host together"},
    {BOOL("fsdp.wrap_embeddings"), AT(wrap_embeddings), .also = "wrap_policy", .fallback = "false",
     .needs = NEEDS(FORWARD) | NEEDS(UNTIED)},
    {BOOL("fsdp.sync_each_micro_batch"), AT(sync_each_micro_batch),
     .also = "no_sync requires_gradient_sync", .fallback = "true",
     .note = "false: gradients stay unsharded until the last one, which reduces them",
     .needs = NEEDS(FORWARD) | NEEDS(SHARDS) | NEEDS(ACCUMULATES)},
    {BOOL("fsdp.loss_parallel"), AT(loss_parallel), .also = "disable_loss_parallel",
     .fallback = "true",
     .note = "false: every rank of parallel.tp has the logits of the whole vocabulary",
     .needs = NEEDS(FORWARD) | NEEDS(TP)},
    {BOOL("fsdp.streamed_frees_at_once"), AT(streamed_frees_at_once), .fallback = "false",
     .note = "of optimizer.implementation: streamed; true: a group leaves the GPU when its copy "
             "back is issued (verl pull request 5364) | false: when that of the next group is "
             "(AReaL)"},
};

/* torch's CPUOffloadPolicy keeps params, grads and moments on the host, all of them, and steps
 * there. */
static stw_status check(const stw_run_spec *run, const char *origin, stw_error *err) {
    const struct {
        const char *placement_key, *park_key;
        uint32_t placement;
        bool parked;
    } states[] = {
        {"placement.params", "park.params", run->placement.params, run->park.params},
        {"placement.grads", "park.grads", run->placement.grads, run->park.grads},
        {"placement.moments", "park.moments", run->placement.moments, run->park.moments},
    };
    if (stw_fsdp_settings_of(run).reshard_to_node &&
        !stw_fsdp_settings_of(run).reshard_after_forward)
        return stw_run_spec_refuse(origin, err, "fsdp.reshard_to_node", "true",
                                   "false, because fsdp.reshard_after_forward is false");
    if (stw_fsdp_settings_of(run).reshard_to_node && run->batch.log_prob_micro_batch > 0)
        return stw_run_spec_refuse(
            origin, err, "fsdp.reshard_to_node", "true",
            "false, because batch.log_prob_micro_batch has forwards without a backward");
    if (stw_fsdp_settings_of(run).streamed_frees_at_once &&
        run->optimizer.implementation != STW_OPTIMIZER_STREAMED)
        return stw_run_spec_refuse(origin, err, "fsdp.streamed_frees_at_once", "true",
                                   "false, because optimizer.implementation is not streamed");
    if (!stw_fsdp_settings_of(run).offload_policy) return STW_STATUS_OK;
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        const uint32_t tier = states[i].placement;
        if (tier != STW_AUTO && tier != STW_TIER_HOST)
            return stw_run_spec_refuse(origin, err, states[i].placement_key,
                                       stw_tier_name((stw_tier)tier),
                                       "host or auto, because fsdp.offload_policy is true");
        if (states[i].parked)
            return stw_run_spec_refuse(
                origin, err, states[i].park_key, "host",
                "none, because fsdp.offload_policy keeps this state on the host");
    }
    if (!stw_run_spec_engine(run)->own_process &&
        run->optimizer.implementation == STW_OPTIMIZER_STREAMED)
        return stw_run_spec_refuse(
            origin, err, "optimizer.implementation", "streamed",
            "another value, because fsdp.offload_policy updates on the host");
    return STW_STATUS_OK;
}

const stw_spec_section stw_fsdp_section = {.name = "fsdp",
                                           .rows = rows,
                                           .n_rows = sizeof rows / sizeof rows[0],
                                           .size = sizeof(stw_fsdp_settings),
                                           .check = check};

stw_fsdp_settings stw_fsdp_settings_of(const stw_run_spec *run) {
    stw_fsdp_settings settings;
    stw_run_spec_settings(run, &stw_fsdp_section, &settings);
    return settings;
}

/* ---- selective recomputation ---- */

static bool *module_named(stw_fsdp_modules *modules, const char *name) {
    if (strcmp(name, "ops") == 0) return &modules->ops;
    if (strcmp(name, "mlp") == 0) return &modules->mlp;
    if (strcmp(name, "self_attn") == 0) return &modules->self_attn;
    return strcmp(name, "layernorm") == 0 ? &modules->layernorm : NULL;
}

stw_fsdp_modules stw_fsdp_modules_of(const stw_run_spec *run) {
    stw_fsdp_modules modules = {.ops = run->recompute.modules.n == 0};
    for (uint32_t i = 0; i < run->recompute.modules.n; i++) {
        bool *module = module_named(&modules, run->recompute.modules.items[i]);
        if (module != NULL) *module = true;
    }
    return modules;
}

static stw_status check_recompute(const stw_run_spec *run, const char *origin, stw_error *err) {
    const uint32_t n = run->recompute.modules.n, acts = run->placement.activations;
    stw_fsdp_modules modules = {0};
    if (n > 0 && run->recompute.granularity != 2)
        return stw_run_spec_refuse_value(run, origin, err, "recompute.modules",
                                         "[], or recompute.granularity: selective");
    for (uint32_t i = 0; i < n; i++)
        if (module_named(&modules, run->recompute.modules.items[i]) == NULL)
            return stw_run_spec_refuse_value(run, origin, err, "recompute.modules",
                                             "ops alone, or some of mlp, self_attn, layernorm");
    if (stw_fsdp_modules_of(run).ops && n > 1)
        return stw_run_spec_refuse_value(run, origin, err, "recompute.modules",
                                         "ops alone, or some of mlp, self_attn, layernorm");
    if (run->recompute.granularity == 2 && acts != STW_AUTO && acts != STW_ACT_KEEP)
        return stw_run_spec_refuse(origin, err, "placement.activations",
                                   stw_act_name((stw_act)acts),
                                   "keep or auto, because recompute.granularity is selective");
    return STW_STATUS_OK;
}

/* ---- precision ---- */

static const char *word_of(stw_dtype dtype) {
    if (dtype == STW_DTYPE_F32) return "fp32";
    return dtype == STW_DTYPE_BF16 ? "bf16" : "fp16";
}

/* A reduced gradient is cast to the dtype of its parameter (_fsdp_collectives.py, foreach_reduce:
 * orig_dtype), and moments are zeros_like(p) (torch/optim/adam.py, _init_group). No other copy of
 * parameters is kept. Adapters, which alone are trained then, may be in fp32 beside weights in 16
 * bits (peft/tuners/tuners_utils.py, cast_adapter_dtype). */
static stw_dtype trained_dtype(const stw_run_spec *run) {
    const bool wide = run->precision.grads == STW_DTYPE_F32 &&
                      run->precision.exp_avg == STW_DTYPE_F32 &&
                      run->precision.exp_avg_sq == STW_DTYPE_F32;
    return run->trainable.lora_rank > 0 && wide ? STW_DTYPE_F32 : run->precision.params;
}

static stw_status check_precision(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_dtype dtype = trained_dtype(run);
    const struct {
        const char *key;
        bool wrong;
    } keys[] = {{"precision.grads", run->precision.grads != dtype},
                {"precision.exp_avg", run->precision.exp_avg != dtype},
                {"precision.exp_avg_sq", run->precision.exp_avg_sq != dtype},
                {"precision.master", run->precision.has_master}};
    const size_t n = sizeof keys / sizeof keys[0];
    char set[192] = "", expected[400];
    const char *first = NULL;
    for (size_t i = 0; i < n; i++) {
        const size_t at = strlen(set);
        if (!keys[i].wrong) continue;
        snprintf(set + at, sizeof set - at, "%s%s=%s", first != NULL ? " " : "", keys[i].key,
                 i + 1 < n ? word_of(dtype) : "none");
        if (first == NULL) first = keys[i].key;
    }
    if (first == NULL) return STW_STATUS_OK;
    snprintf(expected, sizeof expected,
             "%s: FSDP2 gives gradients, and AdamW moments, the dtype of the parameters, which is "
             "%s; set %s",
             strcmp(first, "precision.master") == 0 ? "none" : word_of(dtype), word_of(dtype), set);
    return stw_run_spec_refuse_value(run, origin, err, first, expected);
}

/* ---- tensor parallelism ---- */

static stw_status check_tp(const stw_run_spec *run, const char *origin, stw_error *err) {
    const struct {
        const char *key, *expected;
        bool wrong;
    } keys[] = {
        {"recompute.modules", "[] or [ops], because parallel.tp is above 1",
         run->recompute.granularity == 2 && !stw_fsdp_modules_of(run).ops},
        {"loss.fused",
         "false, because parallel.tp cuts the head; fsdp.loss_parallel cuts the "
         "logits by vocabulary",
         run->loss.fused},
        {"loss.checkpoint", "false, because parallel.tp is above 1", run->loss.checkpoint},
        {"batch.log_prob_micro_batch",
         "none, because parallel.tp is above 1: such forwards are "
         "implemented without tensor parallelism",
         run->batch.log_prob_micro_batch > 0},
        {"attention", "flash or sdpa, because parallel.tp is above 1",
         run->attention == STW_ATTENTION_EAGER},
        {"trainable.lora.rank", "0, because parallel.tp is above 1", run->trainable.lora_rank > 0},
        {"trainable.freeze", "[], because parallel.tp is above 1", run->trainable.freeze.n > 0},
        {"fsdp.reshard_to_node", "false, because parallel.tp is above 1",
         stw_fsdp_settings_of(run).reshard_to_node},
        {"parallel.ep", "1, because parallel.tp is above 1; engine: megatron has both",
         run->parallel.ep * run->parallel.etp > 1},
        {"parallel.cp", "1, because parallel.tp is above 1; engine: megatron has both",
         run->parallel.cp > 1},
        {"checkpoint.format", "dcp, because parallel.tp is above 1",
         run->checkpoint.every > 0 && run->checkpoint.format == STW_CHECKPOINT_HF}};
    if (run->parallel.tp == 1 && run->parallel.sequence_parallel)
        return stw_run_spec_refuse_value(run, origin, err, "parallel.sequence_parallel",
                                         "false, because parallel.tp is 1");
    if (run->parallel.tp == 1) return STW_STATUS_OK;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].wrong)
            return stw_run_spec_refuse_value(run, origin, err, keys[i].key, keys[i].expected);
    if (run->n_roles > 0)
        return stw_run_spec_refuse_value(run, origin, err, "parallel.tp",
                                         "1, because there are roles: with engine fsdp2 they take "
                                         "parameters of whole tensors; engine: megatron has both");
    return STW_STATUS_OK;
}

/* ---- Stowage's optimizer inside ---- */

/* The gradients are torch's, of the dtype of what is trained. The optimizer has moments in fp32, or
 * both in bf16, and a master copy of parameters in bf16 (python/stowage/torch/local_plan.py). */
static stw_status check_precision_inside(const stw_run_spec *run, const char *origin,
                                         stw_error *err) {
    const bool wide = run->trainable.lora_rank > 0 && run->precision.grads == STW_DTYPE_F32;
    const stw_dtype dtype = wide ? STW_DTYPE_F32 : run->precision.params;
    const stw_dtype avg = run->precision.exp_avg, sq = run->precision.exp_avg_sq;
    const bool master = dtype != STW_DTYPE_F32;
    const struct {
        const char *key, *expected;
        bool wrong, of_trained;
    } keys[] = {
        {"precision.params", "fp32 or bf16", dtype == STW_DTYPE_F16, false},
        {"precision.grads", word_of(dtype), run->precision.grads != dtype, true},
        {"precision.exp_avg", "fp32 or bf16", avg != STW_DTYPE_F32 && avg != STW_DTYPE_BF16, false},
        {"precision.exp_avg_sq",
         avg == STW_DTYPE_BF16 ? "bf16 as precision.exp_avg" : "fp32 as precision.exp_avg",
         sq != avg, false},
        {"precision.master", master ? "fp32" : "none", run->precision.has_master != master, true}};
    char expected[192];
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (!keys[i].wrong) continue;
        snprintf(expected, sizeof expected, "%s, because optimizer.implementation is stowage%s%s",
                 keys[i].expected, keys[i].of_trained ? " and what is trained is " : "",
                 keys[i].of_trained ? word_of(dtype) : "");
        return stw_run_spec_refuse_value(run, origin, err, keys[i].key, expected);
    }
    return STW_STATUS_OK;
}

static stw_status check_roles_inside(const stw_run_spec *run, const char *origin, stw_error *err) {
    char key[32];
    for (uint32_t i = 0; i < run->n_roles; i++) {
        if (run->roles[i].kind != STW_ROLE_CRITIC) continue;
        snprintf(key, sizeof key, "roles.%u.kind", (unsigned)i);
        return stw_run_spec_refuse(origin, err, key, "critic",
                                   "another kind, because optimizer.implementation is stowage: one "
                                   "that trains beside the trainer is not implemented with it");
    }
    return STW_STATUS_OK;
}

stw_status stw_fsdp2_check(const stw_run_spec *run, const char *origin, stw_error *err) {
    const bool inside = stw_engine_steps_inside(stw_run_spec_engine(run));
    stw_status status = STW_STATUS_OK;
    STW_TRY(inside ? check_precision_inside(run, origin, err) : check_precision(run, origin, err));
    STW_TRY(check_recompute(run, origin, err));
    STW_TRY(check_tp(run, origin, err));
    if (!inside) goto out;
    STW_TRY(check_roles_inside(run, origin, err));
    status = stw_stowage_check_shares(run, origin, err);
out:
    return status;
}

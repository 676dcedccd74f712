/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses run specs that contradict themselves or ask for what is not implemented. */
#include <stdio.h>
#include <string.h>

#include "plan/spec/registry.h"

/* torch.optim.AdamW refuses the same betas. */
static stw_status check_betas(const stw_run_spec *run, const char *origin, stw_error *err) {
    if (run->optimizer.beta1 < 1 && run->optimizer.beta2 < 1) return STW_STATUS_OK;
    return stw_run_spec_refuse_value(run, origin, err, "optimizer.betas", "both below 1");
}

/* torch refuses other numbers, too (c10/core/AllocatorConfig.cpp). */
static stw_status check_allocator(const stw_run_spec *run, const char *origin, stw_error *err) {
    const uint64_t divisions = run->allocator.roundup_power2_divisions;
    if ((divisions & (divisions - 1)) == 0 || divisions == 0) return STW_STATUS_OK;
    return stw_run_spec_refuse_value(run, origin, err, "allocator.roundup_power2_divisions",
                                     "none or a power of two");
}

/* Refuse a word that another key excludes, and name those that are left. */
static stw_status refuse_word(const stw_run_spec *run, const char *origin, stw_error *err,
                              const char *key, const char *word, const char *because) {
    char accepted[160], expected[320];
    stw_run_spec_accepted(run, key, word, accepted, sizeof accepted);
    snprintf(expected, sizeof expected, "%s, because %s", accepted, because);
    return stw_run_spec_refuse(origin, err, key, word, expected);
}

/* Words that the engine does not accept. */
static stw_status check_words(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_engine_spec *engine = stw_run_spec_engine(run);
    const stw_engine_refusal *r = engine->refuses;
    for (; r != NULL && r->key != NULL; r++) {
        const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), r->key, strlen(r->key));
        const stw_spec_word *word = row != NULL ? stw_spec_word_of(row, run) : NULL;
        char because[112], words[96];
        if (word == NULL || strcmp(word->word, r->word) != 0) continue;
        stw_engine_words(engine, words, sizeof words);
        snprintf(because, sizeof because, "engine is %s", words);
        return refuse_word(run, origin, err, r->key, r->word, because);
    }
    return STW_STATUS_OK;
}

/* Placements that another key excludes. */
static stw_status check_placement(const stw_run_spec *run, const char *origin, stw_error *err) {
    const bool moments_on_gpu = run->placement.moments == STW_TIER_GPU;
    const uint32_t acts = run->placement.activations, recompute = run->recompute.granularity;
    const stw_optimizer_implementation how = run->optimizer.implementation;
    if (run->placement.master != STW_AUTO && !run->precision.has_master)
        return stw_run_spec_refuse(origin, err, "placement.master",
                                   stw_tier_name((stw_tier)run->placement.master),
                                   "auto, because precision.master is none");
    if (how == STW_OPTIMIZER_STREAMED && moments_on_gpu)
        return refuse_word(run, origin, err, "placement.moments", "gpu",
                           "optimizer.implementation is streamed");
    if (how == STW_OPTIMIZER_CPU && moments_on_gpu)
        return refuse_word(run, origin, err, "placement.moments", "gpu",
                           "optimizer.implementation is cpu");
    if (how == STW_OPTIMIZER_DIRECT && run->placement.moments == STW_TIER_NVME)
        return refuse_word(run, origin, err, "placement.moments", "nvme",
                           "optimizer.implementation is direct");
    if (acts == STW_ACT_RECOMPUTE && recompute == 0)
        return stw_run_spec_refuse(origin, err, "placement.activations", "recompute",
                                   "keep, offload or auto, because recompute.granularity is none");
    if ((acts == STW_ACT_KEEP || acts == STW_ACT_OFFLOAD) && recompute == 1)
        return stw_run_spec_refuse(origin, err, "placement.activations",
                                   stw_act_name((stw_act)acts),
                                   "recompute or auto, because recompute.granularity is full");
    return STW_STATUS_OK;
}

/* Packed sequences have no number, and no scores of all pairs of tokens. */
static stw_status check_packing(const stw_run_spec *run, const char *origin, stw_error *err) {
    if (run->batch.max_tokens_per_gpu == 0) return STW_STATUS_OK;
    if (run->batch.micro_batch != 1)
        return stw_run_spec_refuse_value(run, origin, err, "batch.micro_batch",
                                         "1, because batch.max_tokens_per_gpu sets the tokens");
    if (run->attention == STW_ATTENTION_EAGER)
        return stw_run_spec_refuse(
            origin, err, "attention", "eager",
            "flash or sdpa, because batch.max_tokens_per_gpu packs sequences");
    return STW_STATUS_OK;
}

static stw_status check_groups(const stw_run_spec *run, const char *origin, stw_error *err) {
    char key[48], found[32];
    if (run->optimizer.n_groups > STW_MAX_OWN_PARAM_GROUPS) {
        snprintf(found, sizeof found, "%u groups", run->optimizer.n_groups);
        snprintf(key, sizeof key, "at most %d", STW_MAX_OWN_PARAM_GROUPS);
        return stw_run_spec_refuse(origin, err, "optimizer.groups", found, key);
    }
    for (uint32_t i = 0; i < run->optimizer.n_groups; i++) {
        const stw_strings *match = &run->optimizer.groups[i].match;
        snprintf(key, sizeof key, "optimizer.groups.%u", i);
        if (match->n == 0)
            return stw_run_spec_refuse(origin, err, key, "no pattern",
                                       "at least one pattern in `match`");
    }
    return STW_STATUS_OK;
}

/* Only state on the GPU can be parked. */
static stw_status check_parked_tiers(const stw_run_spec *run, const char *origin, stw_error *err) {
    const struct {
        const char *placement_key, *park_key;
        uint32_t placement;
        bool parked;
    } states[] = {
        {"placement.params", "park.params", run->placement.params, run->park.params},
        {"placement.grads", "park.grads", run->placement.grads, run->park.grads},
        {"placement.moments", "park.moments", run->placement.moments, run->park.moments},
    };
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        const uint32_t tier = states[i].placement;
        char why[96];
        snprintf(why, sizeof why, "none, because %s is not gpu", states[i].placement_key);
        if (states[i].parked && tier != STW_AUTO && tier != STW_TIER_GPU)
            return stw_run_spec_refuse(origin, err, states[i].park_key, "host", why);
    }
    return STW_STATUS_OK;
}

static stw_status check_loss(const stw_run_spec *run, const char *origin, stw_error *err) {
    if (!run->loss.fused || !run->loss.checkpoint) return STW_STATUS_OK;
    return stw_run_spec_refuse(origin, err, "loss.checkpoint", "true",
                               "false, because loss.fused is true");
}

static bool has_effect(const stw_engine_spec *engine, const char *key) {
    for (const char *const *known = engine->keys; known != NULL && *known != NULL; known++)
        if (strcmp(*known, key) == 0) return true;
    return false;
}

/* The engines with which a key has an effect: "A or B". */
static void name_engines(const char *key, char *out, size_t out_size) {
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t e = 0; e < stw_engine_spec_count(); e++) {
        const stw_engine_spec *engine = stw_engine_spec_at(e);
        for (; engine != NULL && used < out_size; engine = engine->stepped) {
            char words[96];
            if (!has_effect(engine, key)) continue;
            stw_engine_words(engine, words, sizeof words);
            used += (size_t)snprintf(out + used, out_size - used, "%s%s%s", used > 0 ? " or " : "",
                                     words,
                                     engine->instead != NULL ? ", which is not implemented" : "");
            break; /* it has one with Stowage's optimizer, too, or says why not */
        }
    }
}

/* Refuse the first key of a list that an engine does not have and that is set. */
static stw_status check_keys_of(const stw_run_spec *run, const stw_run_spec *defaults,
                                const char *const *key, const char *origin, stw_error *err) {
    const stw_engine_spec *engine = stw_run_spec_engine(run);
    for (; key != NULL && *key != NULL; key++) {
        const stw_spec_row *row = NULL;
        char expected[320], engines[160], words[96];
        if (has_effect(engine, *key)) continue;
        stw_status status =
            stw_spec_first_changed(stw_run_spec_table(), *key, run, defaults, &row, err);
        if (status != STW_STATUS_OK) return status;
        name_engines(*key, engines, sizeof engines);
        stw_engine_words(engine, words, sizeof words);
        snprintf(expected, sizeof expected,
                 "its default, because engine is %s (it has an effect with engine %s)", words,
                 engines);
        if (row != NULL) return stw_run_spec_refuse_value(run, origin, err, row->key, expected);
    }
    return STW_STATUS_OK;
}

/* Keys that have an effect with other engines only. */
static stw_status check_engine_keys(const stw_run_spec *run, const stw_run_spec *defaults,
                                    const char *origin, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t e = 0; e < stw_engine_spec_count() && status == STW_STATUS_OK; e++) {
        const stw_engine_spec *engine = stw_engine_spec_at(e);
        for (; engine != NULL && status == STW_STATUS_OK; engine = engine->stepped)
            status = check_keys_of(run, defaults, engine->keys, origin, err);
    }
    return status;
}

static stw_status check_checkpoint(const stw_run_spec *run, const char *origin, stw_error *err) {
    if (!run->checkpoint.model && !run->checkpoint.optimizer)
        return stw_run_spec_refuse(origin, err, "checkpoint.contents", "[]",
                                   "model, optimizer or both");
    if (run->checkpoint.format != STW_CHECKPOINT_HF) return STW_STATUS_OK;
    if (run->checkpoint.optimizer)
        return stw_run_spec_refuse(origin, err, "checkpoint.contents", "optimizer",
                                   "[model], because checkpoint.format is hf");
    if (run->checkpoint.async)
        return stw_run_spec_refuse(origin, err, "checkpoint.async", "true",
                                   "false, because checkpoint.format is hf");
    return STW_STATUS_OK;
}

stw_status stw_run_spec_check(const stw_run_spec *run, const char *origin, stw_error *err) {
    stw_run_spec defaults;
    stw_status status = stw_run_spec_init_as(run, &defaults, err);
    if (status != STW_STATUS_OK) return status;
    STW_TRY(check_allocator(run, origin, err));
    STW_TRY(check_betas(run, origin, err));
    STW_TRY(check_words(run, origin, err));
    STW_TRY(check_placement(run, origin, err));
    STW_TRY(stw_run_spec_check_sections(run, origin, err));
    STW_TRY(check_parked_tiers(run, origin, err));
    STW_TRY(check_loss(run, origin, err));
    STW_TRY(check_engine_keys(run, &defaults, origin, err));
    if (stw_run_spec_engine(run)->check != NULL && !stw_run_spec_is_open(run))
        STW_TRY(stw_run_spec_engine(run)->check(run, origin, err));
    STW_TRY(check_checkpoint(run, origin, err));
    STW_TRY(check_groups(run, origin, err));
    STW_TRY(check_packing(run, origin, err));
    STW_TRY(stw_run_spec_check_roles(run, origin, err));
    if (run->trainable.lora_rank == 0 && run->trainable.lora_targets.n > 0) {
        status = stw_run_spec_refuse(origin, err, "trainable.lora.rank", "0",
                                     "at least 1 with lora.targets");
        goto out;
    }
    STW_TRY(stw_spec_check_effect(stw_run_spec_table(), run, &defaults, origin, err));
out:
    stw_run_spec_free(&defaults);
    return status;
}

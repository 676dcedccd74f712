/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/layouts.h"

#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/spec/registry.h"

/* A search stops there: shorter parts of a sequence lose to the start-up of their kernels. */
#define LEAST_CP_TOKENS 1024
#define LEAST_SLOW_CP_TOKENS 64 /* where memory is all that counts */
#define MOST_STAGES 64
#define MOST_CHUNKS 8
#define MOST_MICRO_BATCH 16

#define BIT(name) (1u << STW_SEARCH_##name)

uint64_t stw_layout_layers(const stw_model *model) {
    uint64_t layers = 0;
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.transformer && !model->groups[g].facts.vision)
            layers += model->groups[g].count;
    return layers;
}

static bool has_experts(const stw_model *model) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.experts > 0) return true;
    return false;
}

static bool divides_experts(const stw_model *model, uint64_t ep) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.experts % ep != 0) return false;
    return true;
}

static const stw_spec_row *row_of(const char *key) {
    return key != NULL ? stw_spec_find(stw_run_spec_table(), key, strlen(key)) : NULL;
}

static uint64_t value_of(const stw_run_spec *run, const char *key) {
    const stw_spec_row *row = row_of(key);
    return row != NULL ? stw_spec_get_u64(row, run) : 0;
}

bool stw_layout_is_truth(const stw_layout_rules *rules, stw_search key) {
    const stw_spec_row *row = row_of(stw_layout_key(rules, key));
    return row != NULL && row->kind == STW_SPEC_BOOL;
}

const char *stw_layout_key(const stw_layout_rules *rules, stw_search search) {
    static const char *const keys[] = {
#define X(name, key) key,
        STW_SEARCH_TABLE(X)
#undef X
    };
    return search < STW_SEARCH_OWN_1 ? keys[search] : rules->own[search - STW_SEARCH_OWN_1];
}

void stw_layout_of_run(const stw_layout_case *c, const stw_layout_rules *rules, uint64_t *value) {
    const stw_run_spec *run = c->run;
    const stw_parallel *p = &run->parallel;
    value[STW_SEARCH_TP] = p->tp;
    value[STW_SEARCH_PP] = p->pp;
    value[STW_SEARCH_VPP] = p->vpp;
    value[STW_SEARCH_CP] = p->cp;
    value[STW_SEARCH_EP] = p->ep;
    value[STW_SEARCH_ETP] = p->etp;
    value[STW_SEARCH_REPLICAS] = p->dp_replicate;
    value[STW_SEARCH_MICRO_BATCH] = run->batch.micro_batch;
    value[STW_SEARCH_ACCUMULATION] = run->batch.grad_accumulation;
    value[STW_SEARCH_FUSED_LOSS] = run->loss.fused;
    value[STW_SEARCH_SEQUENCE] = p->sequence_parallel;
    for (int i = 0; i < STW_SEARCH_N_OWN; i++)
        value[STW_SEARCH_OWN_1 + i] = value_of(run, rules->own[i]);
}

/* ---- values ---- */

static uint64_t most_of(const stw_layout_case *c, stw_search key) {
    switch (key) {
    case STW_SEARCH_TP:
    case STW_SEARCH_ETP:
        return c->ranks_per_node;
    case STW_SEARCH_PP:
        return stw_min_u64(stw_min_u64(stw_layout_layers(c->model), c->world), MOST_STAGES);
    case STW_SEARCH_VPP:
        return MOST_CHUNKS;
    case STW_SEARCH_CP:
        return stw_max_u64(
            c->run->batch.seq_len / (c->slow_too ? LEAST_SLOW_CP_TOKENS : LEAST_CP_TOKENS), 1);
    case STW_SEARCH_EP:
    case STW_SEARCH_REPLICAS:
        return c->world;
    case STW_SEARCH_MICRO_BATCH:
        return c->run->batch.max_tokens_per_gpu > 0 ? 1 : MOST_MICRO_BATCH;
    default:
        return 1;
    }
}

/* Does this value divide what the key cuts? */
static bool may_be(const stw_layout_case *c, stw_search key, uint64_t value) {
    switch (key) {
    case STW_SEARCH_TP:
        return c->ranks_per_node % value == 0;
    case STW_SEARCH_ETP:
        return c->ranks_per_node % value == 0 && has_experts(c->model);
    case STW_SEARCH_CP:
        return c->world % value == 0 && c->run->batch.seq_len % (2 * value) == 0;
    case STW_SEARCH_EP:
        return c->world % value == 0 && has_experts(c->model) && divides_experts(c->model, value);
    case STW_SEARCH_PP:
    case STW_SEARCH_REPLICAS:
        return c->world % value == 0;
    case STW_SEARCH_MICRO_BATCH:
        return (value & (value - 1)) == 0;
    default:
        return true;
    }
}

uint32_t stw_layout_values(const stw_layout_case *c, const stw_layout_rules *rules, stw_search key,
                           uint64_t *out) {
    const bool own = key >= STW_SEARCH_OWN_1;
    const stw_spec_row *row = own ? row_of(stw_layout_key(rules, key)) : NULL;
    uint32_t n = 0;
    if (stw_layout_is_truth(rules, key)) {
        out[n++] = 0;
        out[n++] = 1;
        return n;
    }
    const uint64_t most = row != NULL ? (uint64_t)row->most : most_of(c, key);
    for (uint64_t v = 1; v <= most && n < STW_LAYOUT_MOST_VALUES; v++)
        if (v == 1 || may_be(c, key, v)) out[n++] = v;
    return n;
}

/* ---- what engines admit ---- */

bool stw_layout_divides(const stw_layout_case *c, const uint64_t *value) {
    const uint64_t pp = value[STW_SEARCH_PP];
    const uint64_t ways = value[STW_SEARCH_TP] * pp * value[STW_SEARCH_CP];
    const uint64_t expert_ways = value[STW_SEARCH_EP] * value[STW_SEARCH_ETP];
    if (c->world % ways != 0 || c->world / pp % expert_ways != 0) return false;
    return expert_ways == 1 || has_experts(c->model);
}

bool stw_layout_has_sequence(const stw_layout_case *c, const uint64_t *value) {
    const uint64_t rows = stw_times(value[STW_SEARCH_CP], value[STW_SEARCH_TP]);
    if (value[STW_SEARCH_SEQUENCE] == 0) return true;
    if (value[STW_SEARCH_TP] == 1) return false;
    return c->run->batch.max_tokens_per_gpu > 0 || c->run->batch.seq_len % rows == 0;
}

/* Truth values of a layout that say nothing are left at the run's: resharding cannot change where
 * a rank has all parameters. */
bool stw_layout_admits_chunks(const stw_layout_case *c, const uint64_t *value) {
    const uint64_t replicas = value[STW_SEARCH_REPLICAS], cp = value[STW_SEARCH_CP];
    const bool reshards = value[STW_SEARCH_OWN_1] != 0, to_node = value[STW_SEARCH_OWN_2] != 0;
    const uint64_t whole = value[STW_SEARCH_TP] * value[STW_SEARCH_PP]; /* not searched */
    if (!stw_layout_divides(c, value) || c->world % (replicas * cp * whole) != 0) return false;
    const uint64_t group = c->world / replicas / whole,
                   experts = value[STW_SEARCH_EP] * value[STW_SEARCH_ETP];
    if (value[STW_SEARCH_ETP] > 1 && (c->searched & BIT(ETP)) != 0 && value[STW_SEARCH_EP] == 1)
        return false;
    if (group % experts != 0) return false;
    if ((c->searched & BIT(OWN_2)) != 0 && to_node &&
        (!reshards || experts > 1 || group <= c->ranks_per_node || group % c->ranks_per_node != 0))
        return false;
    return group > 1 || reshards || (c->searched & BIT(OWN_1)) == 0;
}

/* liger_kernel/ops/cross_entropy.py (liger_cross_entropy_kernel); verl/utils/experimental/
 * torch_functional.py (_fused_linear_for_ppo_fwd) */
uint32_t stw_layout_loss_settings(const stw_layout_case *c, const uint64_t *value,
                                  char out[][STW_LAYOUT_SETTING]) {
    const bool fuses = value[STW_SEARCH_FUSED_LOSS] != 0 && !c->run->loss.fused;
    if (!fuses || c->run->loss.upcast == STW_DTYPE_F32) return 0;
    snprintf(out[0], STW_LAYOUT_SETTING, "loss.upcast=fp32");
    return 1;
}

const stw_layout_rules stw_layouts_of_chunks = {
    .searches = STW_LAYOUT_KEYS_OF_CHUNKS,
    .own = {"fsdp.reshard_after_forward", "fsdp.reshard_to_node"},
    .admits = stw_layout_admits_chunks,
    .settings = stw_layout_loss_settings};

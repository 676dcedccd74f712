/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that Megatron-LM admits (parallel_state.py, transformer_config.py), as far as a search
 * goes. */
#include <stdio.h>

#include "engines/layouts.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/stages.h"

#define BIT(name) (1u << STW_SEARCH_##name)

static bool cuts_heads(const stw_model *model, uint64_t tp, uint64_t cp) {
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const stw_block_facts *f = &model->groups[g].facts;
        if (!f->transformer || f->vision) continue;
        if (f->q_heads % tp != 0 || f->kv_heads % tp != 0) return false;
        if (f->linear_k_heads % (tp * cp) != 0 || f->linear_v_heads % (tp * cp) != 0) return false;
        if (f->decoder && cp > 1) return false;
    }
    return true;
}

static bool has_experts(const stw_model *model) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.experts > 0) return true;
    return false;
}

/* The embedding and the loss count as layers. */
static uint64_t counted_besides(const stw_run_spec *run) {
    const stw_megatron_settings own = stw_megatron_settings_of(run);
    return (uint64_t)own.account_for_embedding + own.account_for_loss;
}

/* Experts are not trained with tensor parallelism and without sequence parallelism
 * (moe_layer.py, MoELayer.forward); they are cut like the rest of a block, or not at all. Micro
 * batches of an interleaved schedule come in groups of pp. */
static bool admits(const stw_layout_case *c, const uint64_t *value) {
    const uint64_t tp = value[STW_SEARCH_TP], pp = value[STW_SEARCH_PP],
                   vpp = value[STW_SEARCH_VPP], etp = value[STW_SEARCH_ETP];
    const uint64_t besides = counted_besides(c->run);
    const uint64_t layers = stw_layout_layers(c->model) + besides;
    if (!stw_layout_divides(c, value) || !stw_layout_has_sequence(c, value)) return false;
    if (tp > 1 && value[STW_SEARCH_SEQUENCE] == 0 && has_experts(c->model)) return false;
    if (!cuts_heads(c->model, tp, value[STW_SEARCH_CP])) return false;
    if (value[STW_SEARCH_CP] > 1 && c->run->attention == STW_ATTENTION_EAGER) return false;
    if ((c->searched & BIT(ETP)) != 0 && etp != 1 && etp != tp) return false;
    if ((c->searched & (BIT(VPP) | BIT(PP))) == 0) return true;
    if (pp * vpp > layers + 2) return false;
    if (stw_megatron_is_fsdp(c->run) && pp > 1) return false;
    if (besides > 0 && (pp == 1 || layers % (pp * vpp) != 0)) return false;
    if (vpp == 1) return true;
    if (pp == 1 || value[STW_SEARCH_ACCUMULATION] % pp != 0) return false;
    /* unequal chunks have a division of their own; of those, few */
    const bool proposed = (c->searched & BIT(PP)) != 0 && (vpp & (vpp - 1)) == 0;
    return layers % (pp * vpp) == 0 || proposed;
}

/* Chunks of equal length, or a division of their own. */
static uint32_t settings(const stw_layout_case *c, const uint64_t *value,
                         char out[][STW_LAYOUT_SETTING]) {
    const stw_megatron_settings own = stw_megatron_settings_of(c->run);
    const uint64_t chunks = value[STW_SEARCH_PP] * value[STW_SEARCH_VPP];
    const uint64_t layers = stw_layout_layers(c->model);
    uint32_t n = 0;
    if ((c->searched & BIT(PP)) == 0 || counted_besides(c->run) > 0) return n;
    char stages[64] = "none";
    if (layers % chunks != 0)
        stw_megatron_propose_layout(layers, chunks, own.mtp_num_layers > 0, stages, sizeof stages);
    if (layers % chunks != 0 || own.pipeline_layout != NULL)
        snprintf(out[n++], STW_LAYOUT_SETTING, "megatron.pipeline_layout=%s", stages);
    if (own.first_stage_layers > 0)
        snprintf(out[n++], STW_LAYOUT_SETTING, "megatron.first_stage_layers=0");
    if (own.last_stage_layers > 0)
        snprintf(out[n++], STW_LAYOUT_SETTING, "megatron.last_stage_layers=0");
    return n;
}

const stw_layout_rules stw_megatron_layouts = {.searches = BIT(TP) | BIT(PP) | BIT(VPP) | BIT(CP) |
                                                           BIT(EP) | BIT(ETP) | BIT(MICRO_BATCH) |
                                                           BIT(ACCUMULATION) | BIT(SEQUENCE),
                                               .admits = admits,
                                               .settings = settings};

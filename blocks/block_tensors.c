/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks/block_tensors.h"

/* Has a call this weight? Routed experts and their router are in no list. */
static bool uses(const stw_job *job, const stw_block *block, const stw_call *c, uint32_t weight) {
    const stw_tensor *tensor = &job->model->tensors[block->first_tensor + weight];
    for (int i = 0; i < STW_MOST_WEIGHTS; i++)
        if (c->weight[i] == weight) return true;
    if (c->function == STW_FUNCTION_WIDE_EXPERTS) return tensor->expert;
    return c->function == STW_FUNCTION_EXPERTS && stw_module_is_mlp(tensor->use.module) &&
           (tensor->expert || tensor->use.weight == STW_WEIGHT_ROUTER);
}

uint32_t stw_call_uses(const stw_job *job, uint32_t block, const stw_call *call,
                       uint32_t *tensors) {
    const stw_block *blk = &job->model->blocks[block];
    uint32_t n = 0;
    for (uint32_t w = 0; w < blk->n_tensors; w++) {
        if (!uses(job, blk, call, w)) continue;
        if (tensors != NULL) tensors[n] = w;
        n++;
    }
    return n;
}

enum {
    FIRST_NORMS,
    CONVOLUTIONS,
    OUT_NORMS,
    OUTPUTS,
    ATTENTION,
    HEAD_NORMS,
    STATES,
    MLP,
    NORMS,
    N_REGISTERED
};

static int registered_in_linear(stw_weight weight) {
    return weight == STW_WEIGHT_CONVOLUTION    ? CONVOLUTIONS
           : weight == STW_WEIGHT_NORM         ? OUT_NORMS
           : weight == STW_WEIGHT_O            ? OUTPUTS
           : weight == STW_WEIGHT_LINEAR_STATE ? STATES
                                               : ATTENTION;
}

static int registered_with(const stw_model *model, const stw_tensor *tensor) {
    const bool sees = model->groups[model->blocks[tensor->block].group].facts.vision;
    const stw_weight_use use = tensor->use;
    if (use.module == STW_MODULE_LINEAR_ATTENTION) return registered_in_linear(use.weight);
    if (use.weight == STW_WEIGHT_Q_NORM || use.weight == STW_WEIGHT_K_NORM) return HEAD_NORMS;
    if (stw_module_is_attention(use.module)) return ATTENTION;
    return use.weight != STW_WEIGHT_NORM ? MLP : sees ? FIRST_NORMS : NORMS;
}

/* Is `adapter` a tensor of LoRA, of this weight? */
static bool adapts(const stw_tensor *adapter, const stw_tensor *weight) {
    const stw_weight_use use = adapter->use, of = weight->use;
    return use.adapter != STW_ADAPTER_NONE && use.weight == of.weight && use.module == of.module &&
           !of.bias;
}

void stw_block_tensors(const stw_model *model, uint32_t block, uint32_t *tensors) {
    const stw_block *blk = &model->blocks[block];
    const uint32_t end = blk->first_tensor + blk->n_tensors;
    uint32_t n = 0;
    for (int part = 0; part < N_REGISTERED; part++)
        for (uint32_t i = blk->first_tensor; i < end; i++) {
            const stw_tensor *weight = &model->tensors[i];
            if (registered_with(model, weight) != part || weight->use.adapter != STW_ADAPTER_NONE)
                continue;
            tensors[n++] = i;
            for (uint32_t a = i + 1; a < end; a++)
                if (adapts(&model->tensors[a], weight)) tensors[n++] = a;
        }
}

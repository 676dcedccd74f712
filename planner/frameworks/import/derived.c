/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/derived.h"

#include <string.h>

#include "core/checked.h"
#include "engines/built_in.h"
#include "plan/job/trainable.h"
#include "planner/frameworks/import/areal_stages.h"
#include "planner/frameworks/import/derived_images.h"
#include "planner/frameworks/import/reading.h"

/* transformers/integrations/deepspeed.py (4.57), trainer_config_finalize. */
static void set_buckets(stw_reading *r, const stw_model *model) {
    const stw_import_derived *derived = &r->out->derived;
    const uint64_t square = stw_times(model->hidden, model->hidden);
    if (derived->reduce_bucket) stw_reading_set_count(r, "deepspeed.reduce_bucket", square);
    if (derived->prefetch_bucket)
        stw_reading_set_count(r, "deepspeed.prefetch_bucket", stw_times(square, 9) / 10);
    if (derived->persistence)
        stw_reading_set_count(r, "deepspeed.persistence_threshold", stw_times(10, model->hidden));
}

/* Liger's rows at a time (liger_kernel/ops/fused_linear_cross_entropy.py at 0.6.2,
 * fused_linear_cross_entropy_forward): logits take about as much as the hidden states. */
static void set_loss_chunk(stw_reading *r, const stw_model *model) {
    const uint64_t tokens = r->out->derived.loss_tokens;
    if (tokens == 0 || model->hidden == 0 || model->vocab == 0) return;
    const uint64_t parts = stw_div_up_u64(model->vocab, model->hidden);
    const uint64_t rows = stw_div_up_u64(tokens, parts);
    uint64_t chunk = 1;
    while (chunk < rows) chunk *= 2;
    stw_reading_set_count(r, "loss.chunk", chunk);
}

static bool in_list(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at++)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return true;
    return false;
}

/* What Megatron calls the product of a tensor (core/models/gpt/gpt_layer_specs.py). */
static const char *product_name(const char *name) {
    static const char *const names[][2] = {
        {"q_proj", "linear_qkv"},           {"k_proj", "linear_qkv"},
        {"v_proj", "linear_qkv"},           {"o_proj", "linear_proj"},
        {"gate_proj", "linear_fc1"},        {"up_proj", "linear_fc1"},
        {"gate_up_proj", "linear_fc1"},     {"down_proj", "linear_fc2"},
        {"q_a_proj", "linear_q_down_proj"}, {"kv_a_proj_with_mqa", "linear_kv_down_proj"},
        {"q_b_proj", "linear_q_up_proj"},   {"kv_b_proj", "linear_kv_up_proj"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i][0], name) == 0) return names[i][1];
    return name;
}

/* Is the product of a tensor among those that get adapters? Latent attention has no merged query.
 */
static bool is_wanted(const stw_import *import, const stw_tensor *tensor, const char *name,
                      bool latent) {
    const char *products = import->derived.products;
    if (stw_engine_megatron.adapted(tensor) == 0) return false;
    if (strcmp(products, "all-linear") == 0) return true;
    return in_list(products,
                   latent && strcmp(name, "q_proj") == 0 ? "linear_q_proj" : product_name(name));
}

/* Linear layers of the blocks that Megatron's products stand for. */
static void set_targets(stw_reading *r, const stw_model *model) {
    const char *list = "";
    for (uint32_t t = 0; t < model->n_tensors && list != NULL; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        const stw_block_facts *facts = &model->groups[model->blocks[tensor->block].group].facts;
        if (tensor->rank < 2 || !facts->transformer || facts->vision) continue;
        const char *end = strrchr(tensor->name, '.');
        const bool is_weight = end != NULL && strcmp(end, ".weight") == 0;
        if (!is_weight && !tensor->expert) continue;
        if (!is_weight) end = tensor->name + strlen(tensor->name);
        const char *start = end;
        while (start > tensor->name && start[-1] != '.') start--;
        const char *name = stw_pool_printf(r->out->pool, "%.*s", (int)(end - start), start);
        if (name == NULL) break;
        if (in_list(list, name) || !is_wanted(r->out, tensor, name, facts->kv_rank > 0)) continue;
        list = stw_pool_printf(r->out->pool, "%s%s%s", list, *list != '\0' ? "," : "", name);
    }
    const char *value = stw_pool_printf(r->out->pool, "[%s]", list != NULL ? list : "");
    stw_reading_set(r, "trainable.lora.targets", value != NULL ? value : "[]");
}

/* Sizes beside the name of a model change it; its tensors are those of its config. */
static stw_status check_sizes(const stw_import *import, const stw_model *model, stw_error *err) {
    uint64_t layers = 0;
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.transformer && !model->groups[g].facts.vision)
            layers += model->groups[g].count;
    const bool other = import->derived.layers > 0 && import->derived.layers != layers;
    const uint64_t found = other ? import->derived.layers : import->derived.hidden;
    if (!other && (found == 0 || found == model->hidden)) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, import->path,
                    "not implemented: %s of %llu, where %s has %llu; add --model with a "
                    "config.json of these sizes",
                    other ? "a number of layers" : "a hidden size", (unsigned long long)found,
                    model->name, (unsigned long long)(other ? layers : model->hidden));
}

static bool sets_overlap(const stw_import *import) {
    bool set = false;
    for (size_t i = 0; i < import->n_settings; i++)
        set = set || strcmp(import->settings[i], "megatron.shared_expert_overlap=true") == 0;
    return set;
}

stw_status stw_derived_add(stw_import *import, const stw_model *model, stw_error *err) {
    stw_reading r = {.out = import, .err = err, .status = STW_STATUS_OK};
    bool experts = false, shared = false;
    for (uint32_t g = 0; g < model->n_groups; g++) {
        experts = experts || model->groups[g].facts.experts > 0;
        shared = shared || model->groups[g].facts.shared_ffn > 0;
    }
    if (import->derived.all_linear && experts)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, import->path,
                        "not implemented: adapters of the experts of %s; name modules of attention "
                        "in place of all-linear",
                        model->name);
    const stw_status sizes = check_sizes(import, model, err);
    if (sizes != STW_STATUS_OK) return sizes;
    set_buckets(&r, model);
    stw_derived_images(&r, model);
    set_loss_chunk(&r, model);
    stw_areal_set_stages(&r, model, import->derived.stages, import->derived.experts_ranks);
    if (import->derived.all_linear)
        stw_reading_set(&r, "trainable.lora.targets", "[" STW_ALL_LINEAR "]");
    else if (import->derived.products != NULL)
        set_targets(&r, model);
    if (import->derived.grouped_gemm && experts)
        stw_reading_set(&r, "megatron.grouped_gemm", "true");
    if (!shared && sets_overlap(import)) /* of shared experts: there are none */
        stw_reading_set(&r, "megatron.shared_expert_overlap", "false");
    if (import->derived.wrap_embeddings && !model->tied_embeddings)
        stw_reading_set(&r, "fsdp.wrap_embeddings", "true");
    return r.status;
}

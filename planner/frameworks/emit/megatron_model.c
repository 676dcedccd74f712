/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of Megatron-LM that describe a model: sizes from its tensors and facts, numbers that
 * change no byte (bases of rotary, routers' rules) from its config.json. Flags are those of
 * megatron/training/arguments.py and TransformerConfig at d98e8a6; pairs of key and flag follow
 * examples/post_training/modelopt/conf there. */
#include <stdlib.h>
#include <string.h>

#include "core/tree.h"
#include "planner/frameworks/emit/emission.h"

typedef struct described {
    stw_emission *e;
    const stw_model *model;
    const stw_node *config;         /* of the text model, or NULL */
    const stw_block_facts *dense;   /* of a layer without experts, or NULL */
    const stw_block_facts *experts; /* of one with experts, or NULL */
    const stw_block_facts *any;
    uint64_t layers;
} described;

/* model_type of configs whose layers GPT models of Megatron Core have by flags alone. */
static bool is_gpt(const char *type) {
    static const char *const types[] = {
        "llama", "mistral",     "mixtral", "qwen2",       "qwen3",   "qwen2_moe", "qwen3_moe",
        "phi3",  "deepseek_v2", "gpt2",    "deepseek_v3", "kimi_k2", "glm4_moe"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i], type) == 0) return true;
    return false;
}

/* A number or word of the config as text, or NULL. */
static const char *value(const described *d, const char *key) {
    const stw_node *node = d->config != NULL ? stw_node_get(d->config, key) : NULL;
    if (node == NULL || node->text == NULL || node->kind == STW_NODE_NULL) return NULL;
    return stw_pool_string(d->e->pool, node->text);
}

static const char *below(const described *d, const char *map, const char *key) {
    const stw_node *node = d->config != NULL ? stw_node_get(d->config, map) : NULL;
    if (node == NULL || node->kind != STW_NODE_OBJECT) return NULL;
    const described inner = {.e = d->e, .config = node};
    return value(&inner, key);
}

/* Of attention and of experts: the last parts of names of tensors. */
static bool has_tensor(const stw_model *model, const char *ending) {
    const size_t n = strlen(ending);
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        const size_t length = strlen(model->tensors[i].name);
        if (length >= n && strcmp(model->tensors[i].name + length - n, ending) == 0) return true;
    }
    return false;
}

static void put_sizes(const described *d) {
    stw_emission *e = d->e;
    const stw_block_facts *f = d->any;
    const char *ffn = value(d, "intermediate_size");
    const bool latent = f->kv_rank > 0;
    stw_emit_put_count(e, "num-layers", d->layers);
    stw_emit_put_count(e, "hidden-size", d->model->hidden);
    if (d->dense != NULL)
        stw_emit_put_count(e, "ffn-hidden-size", d->dense->ffn);
    else if (ffn != NULL)
        stw_emit_put(e, "ffn-hidden-size", ffn);
    stw_emit_put_count(e, "num-attention-heads", f->q_heads);
    if (!latent && f->kv_heads != f->q_heads) {
        stw_emit_put_switch(e, "group-query-attention", true);
        stw_emit_put_count(e, "num-query-groups", f->kv_heads);
    }
    stw_emit_put_count(e, "kv-channels", latent ? f->v_dim : f->qk_dim);
    stw_emit_put_count(e, "max-position-embeddings",
                       d->model->max_positions > 0 ? d->model->max_positions
                                                   : e->plan->run.batch.seq_len);
}

/* Of latent attention; the part of a head with positions is the config's. */
static void put_latent(const described *d) {
    const stw_block_facts *f = d->any;
    const char *rope = value(d, "qk_rope_head_dim");
    const uint64_t positions = rope != NULL ? strtoull(rope, NULL, 10) : 64;
    if (f->kv_rank == 0) return;
    stw_emit_put_switch(d->e, "multi-latent-attention", true);
    if (f->q_rank > 0) stw_emit_put_count(d->e, "q-lora-rank", f->q_rank);
    stw_emit_put_count(d->e, "kv-lora-rank", f->kv_rank);
    stw_emit_put_count(d->e, "qk-head-dim",
                       f->qk_dim > positions ? f->qk_dim - positions : f->qk_dim);
    stw_emit_put_count(d->e, "qk-pos-emb-head-dim", positions);
    stw_emit_put_count(d->e, "v-head-dim", f->v_dim);
}

/* --rotary-base is a whole number. */
static const char *whole(const described *d, const char *text) {
    return stw_pool_printf(d->e->pool, "%.0f", strtod(text, NULL));
}

static void put_rotary(const described *d) {
    stw_emission *e = d->e;
    const char *base = value(d, "rope_theta"), *part = value(d, "partial_rotary_factor");
    const char *kind = below(d, "rope_scaling", "rope_type");
    const char *factor = below(d, "rope_scaling", "factor");
    const bool latent = d->any->kv_rank > 0;
    if (base == NULL) base = below(d, "rope_parameters", "rope_theta");
    if (part == NULL) part = below(d, "rope_parameters", "partial_rotary_factor");
    if (kind == NULL) kind = below(d, "rope_scaling", "type");
    stw_emit_put(e, "position-embedding-type", "rope");
    stw_emit_put(e, "rotary-base", whole(d, base != NULL ? base : "10000"));
    if (part != NULL) stw_emit_put(e, "rotary-percent", part);
    if (latent && (kind == NULL || strcmp(kind, "yarn") != 0)) {
        stw_emit_put(e, "rope-type", "rope"); /* yarn by default */
    } else if (latent) {
        const char *scale = below(d, "rope_scaling", "mscale");
        const char *all = below(d, "rope_scaling", "mscale_all_dim");
        stw_emit_put(e, "rotary-scaling-factor", factor);
        if (scale != NULL) stw_emit_put(e, "mscale", scale);
        if (all != NULL) stw_emit_put(e, "mscale-all-dim", all);
    } else if (kind != NULL && strcmp(kind, "llama3") == 0) {
        stw_emit_put_switch(e, "use-rope-scaling", true);
        if (factor != NULL) stw_emit_put(e, "rope-scaling-factor", factor);
    } else if (kind != NULL && strcmp(kind, "default") != 0) {
        stw_text_printf(&e->notes, "rope_scaling of type %s has no flag: it changes no byte\n",
                        kind);
    }
}

static void put_layers(const described *d) {
    static const char *const norms[] = {"q_norm.weight", "q_a_layernorm.weight",
                                        "kv_a_layernorm.weight"};
    stw_emission *e = d->e;
    const bool gpt2 = strcmp(d->model->model_type, "gpt2") == 0;
    const char *eps = value(d, gpt2 ? "layer_norm_epsilon" : "rms_norm_eps");
    bool normed = false;
    for (size_t i = 0; i < 3; i++) normed = normed || has_tensor(d->model, norms[i]);
    if (gpt2) {
        stw_emit_put(e, "position-embedding-type", "learned_absolute");
    } else {
        put_rotary(d);
        stw_emit_put(e, "normalization", "RMSNorm");
        stw_emit_put_switch(e, "disable-bias-linear", true);
        stw_emit_put_switch(e, "add-qkv-bias", has_tensor(d->model, "q_proj.bias"));
    }
    if (eps != NULL) stw_emit_put(e, "norm-epsilon", eps);
    stw_emit_put_switch(e, "swiglu", d->any->gated);
    stw_emit_put_switch(e, "qk-layernorm", normed);
    stw_emit_put_switch(e, "untie-embeddings-and-output-weights", !d->model->tied_embeddings);
}

/* "([0]*3+[1]*58)": which layers have experts; NULL: all. */
static const char *pattern(const described *d) {
    const stw_model *model = d->model;
    const char *text = NULL;
    uint32_t run = 0;
    bool last = false, mixed = false;
    for (uint32_t b = 0; b <= model->n_blocks; b++) {
        const stw_block_facts *f =
            b < model->n_blocks ? &model->groups[model->blocks[b].group].facts : NULL;
        if (f != NULL && !f->transformer) continue;
        const bool experts = f != NULL && f->experts > 0;
        if (f != NULL && (run == 0 || experts == last)) {
            last = experts;
            run++;
            continue;
        }
        if (run > 0)
            text = stw_pool_printf(d->e->pool, "%s%s[%d]*%u", text != NULL ? text : "",
                                   text != NULL ? "+" : "", last, run);
        mixed = mixed || f != NULL;
        run = 1;
        last = experts;
    }
    return mixed && text != NULL ? stw_pool_printf(d->e->pool, "(%s)", text) : NULL;
}

static void put_router(const described *d) {
    stw_emission *e = d->e;
    const char *rule = value(d, "scoring_func"), *loss = value(d, "router_aux_loss_coef");
    const char *groups = value(d, "n_group"), *few = value(d, "topk_group");
    const char *scale = value(d, "routed_scaling_factor"), *type = d->model->model_type;
    const bool sigmoid = (rule != NULL && strcmp(rule, "sigmoid") == 0) ||
                         strcmp(type, "deepseek_v3") == 0 || strcmp(type, "glm4_moe") == 0;
    const bool first = sigmoid || strcmp(type, "deepseek_v2") == 0; /* scores before the choice */
    if (loss == NULL) loss = value(d, "aux_loss_alpha");
    if (sigmoid) stw_emit_put(e, "moe-router-score-function", "sigmoid");
    stw_emit_put_switch(e, "moe-router-enable-expert-bias", d->model->n_buffers > 0);
    if (first) stw_emit_put_switch(e, "moe-router-pre-softmax", !sigmoid);
    if (groups != NULL && few != NULL && strtoull(groups, NULL, 10) > 1) {
        stw_emit_put(e, "moe-router-num-groups", groups);
        stw_emit_put(e, "moe-router-group-topk", few);
    }
    if (scale != NULL) stw_emit_put(e, "moe-router-topk-scaling-factor", scale);
    if (loss != NULL) stw_emit_put(e, "moe-aux-loss-coeff", loss);
}

static void put_experts(const described *d) {
    const stw_block_facts *f = d->experts;
    stw_emission *e = d->e;
    if (f == NULL) return;
    stw_emit_put_count(e, "num-experts", f->experts);
    stw_emit_put_count(e, "moe-ffn-hidden-size", f->expert_ffn);
    stw_emit_put_count(e, "moe-router-topk", f->experts_per_token);
    stw_emit_put(e, "moe-layer-freq", pattern(d));
    if (f->shared_ffn > 0)
        stw_emit_put_count(e, "moe-shared-expert-intermediate-size", f->shared_ffn);
    stw_emit_put_switch(e, "moe-shared-expert-gate",
                        has_tensor(d->model, "shared_expert_gate.weight"));
    put_router(d);
}

/* NullTokenizer adds one token (megatron.c, vocabulary). */
static void put_data(const described *d) {
    static const char *const defaults[][2] = {{"mock-data", "true"},
                                              {"tokenizer-type", "NullTokenizer"},
                                              {"train-iters", "100"},
                                              {"lr", "1e-5"}};
    stw_emit_put_count(d->e, "vocab-size", d->model->vocab > 0 ? d->model->vocab - 1 : 0);
    for (size_t i = 0; i < 4; i++) stw_emit_put(d->e, defaults[i][0], defaults[i][1]);
    stw_text_printf(&d->e->notes,
                    "--mock-data, NullTokenizer, --train-iters and --lr are examples; in their "
                    "place set your data, tokenizer and schedule\n");
}

/* @return what Megatron Core's GPT model does not have, or NULL */
static const char *describe(described *d) {
    const stw_model *model = d->model;
    if (model->model_type[0] == '\0') return "a list of tensors says no sizes of a model";
    if (!is_gpt(model->model_type)) return "Megatron-LM's GPT model has no flags for its layers";
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const stw_block_facts *f = &model->groups[g].facts;
        if (f->vision) return "Megatron-LM's GPT model has no vision tower";
        if (!f->transformer) continue;
        if (f->window > 0) return "attention windows are not planned with engine megatron";
        if (f->experts > 0)
            d->experts = f;
        else
            d->dense = f;
        d->any = f;
        d->layers += model->groups[g].count;
    }
    return d->any == NULL ? "it has no transformer layers" : NULL;
}

void stw_emit_megatron_model(stw_emission *e) {
    described d = {.e = e, .model = e->plan->model};
    stw_tree *tree = NULL;
    const char *why = describe(&d);
    if (e->status != STW_STATUS_OK) return;
    if (why != NULL) {
        e->status = stw_fail(e->err, STW_STATUS_NOT_BUILT_IN, "--emit megatron",
                             "model %.100s of type \"%.40s\": %s; nothing is written; use --from "
                             "megatron:FILE with its arguments, or --emit ms-swift",
                             d.model->name, d.model->model_type, why);
        return;
    }
    if (stw_tree_read_json(d.model->source, &tree, NULL) == STW_STATUS_OK &&
        tree->root->kind == STW_NODE_OBJECT)
        d.config = tree->root;
    put_sizes(&d);
    put_latent(&d);
    put_layers(&d);
    put_experts(&d);
    put_data(&d);
    stw_tree_free(tree);
}

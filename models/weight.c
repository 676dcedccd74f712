/* SPDX-License-Identifier: Apache-2.0 */
#include "models/weight.h"

#include <string.h>

/* ---- words ---- */

static const char *const words[STW_N_WEIGHTS] = {
    [STW_WEIGHT_OTHER] = "other",
    [STW_WEIGHT_EMBED] = "embed",
    [STW_WEIGHT_POSITION] = "position",
    [STW_WEIGHT_PATCH] = "patch",
    [STW_WEIGHT_HEAD] = "head",
    [STW_WEIGHT_NORM] = "norm",
    [STW_WEIGHT_Q_NORM] = "q_norm",
    [STW_WEIGHT_K_NORM] = "k_norm",
    [STW_WEIGHT_Q] = "q",
    [STW_WEIGHT_K] = "k",
    [STW_WEIGHT_V] = "v",
    [STW_WEIGHT_KV] = "kv",
    [STW_WEIGHT_QKV] = "qkv",
    [STW_WEIGHT_Q_DOWN] = "q_down",
    [STW_WEIGHT_Q_UP] = "q_up",
    [STW_WEIGHT_KV_DOWN] = "kv_down",
    [STW_WEIGHT_KV_UP] = "kv_up",
    [STW_WEIGHT_O] = "o",
    [STW_WEIGHT_SINKS] = "sinks",
    [STW_WEIGHT_LINEAR_IN] = "linear_in",
    [STW_WEIGHT_CONVOLUTION] = "convolution",
    [STW_WEIGHT_LINEAR_STATE] = "linear_state",
    [STW_WEIGHT_GATE] = "gate",
    [STW_WEIGHT_UP] = "up",
    [STW_WEIGHT_GATE_UP] = "gate_up",
    [STW_WEIGHT_DOWN] = "down",
    [STW_WEIGHT_ROUTER] = "router",
    [STW_WEIGHT_SHARED_GATE] = "shared_gate",
};

const char *stw_weight_name(stw_weight weight) { return words[weight]; }

bool stw_weight_parse(const char *word, stw_weight *out) {
    for (int w = 0; w < STW_N_WEIGHTS; w++) {
        if (strcmp(words[w], word) != 0) continue;
        *out = (stw_weight)w;
        return true;
    }
    return false;
}

/* ---- names ---- */

/* A name without its ending, and where its last component begins. */
typedef struct stem {
    const char *text;
    size_t n, last;
} stem;

static bool cut(stem *s, const char *ending) {
    const size_t n = strlen(ending);
    if (s->n <= n || memcmp(s->text + s->n - n, ending, n) != 0) return false;
    s->n -= n;
    return true;
}

/* Does the stem end in these components? */
static bool ends_in(const stem *s, const char *ending) {
    const size_t n = strlen(ending);
    if (s->n < n || memcmp(s->text + s->n - n, ending, n) != 0) return false;
    return s->n == n || s->text[s->n - n - 1] == '.';
}

static bool contains(const char *text, size_t n, const char *word) {
    const size_t m = strlen(word);
    for (size_t i = 0; i + m <= n; i++)
        if (memcmp(text + i, word, m) == 0) return true;
    return false;
}

/* Has the stem this component before its last one? */
static bool lies_in(const stem *s, const char *component) {
    const size_t m = strlen(component);
    for (size_t at = 0; at < s->last;) {
        const size_t n = strcspn(s->text + at, ".");
        if (n == m && memcmp(s->text + at, component, m) == 0) return true;
        at += n + 1;
    }
    return false;
}

static stw_module module_of(const stem *s) {
    static const char *const attention[] = {
        "self_attn", "attn", "attention", "self_attention", "cross_attention", "indexer"};
    static const char *const mlp[] = {"mlp", "feed_forward", "moe", "block_sparse_moe"};
    if (lies_in(s, "linear_attn")) return STW_MODULE_LINEAR_ATTENTION;
    for (size_t i = 0; i < sizeof attention / sizeof attention[0]; i++)
        if (lies_in(s, attention[i])) return STW_MODULE_ATTENTION;
    if (contains(s->text, s->last, "shared_expert")) return STW_MODULE_SHARED_EXPERTS;
    if (lies_in(s, "experts")) return STW_MODULE_EXPERTS;
    for (size_t i = 0; i < sizeof mlp / sizeof mlp[0]; i++)
        if (lies_in(s, mlp[i])) return STW_MODULE_MLP;
    return STW_MODULE_NONE;
}

/* Last components of names. */
static stw_weight weight_of(const stem *s) {
    static const struct {
        const char *ending;
        stw_weight weight;
    } table[] = {
        {"embed_tokens", STW_WEIGHT_EMBED},
        {"wte", STW_WEIGHT_EMBED},
        {"word_embeddings", STW_WEIGHT_EMBED},
        {"wpe", STW_WEIGHT_POSITION},
        {"pos_embed", STW_WEIGHT_POSITION},
        {"position_embedding", STW_WEIGHT_POSITION},
        {"position_embeddings", STW_WEIGHT_POSITION},
        {"positional_embedding_vlm", STW_WEIGHT_POSITION},
        {"patch_embed.proj", STW_WEIGHT_PATCH},
        {"patch_embedding", STW_WEIGHT_PATCH},
        {"patch_embedding.linear", STW_WEIGHT_PATCH},
        {"patch_embeddings.projection", STW_WEIGHT_PATCH},
        {"lm_head", STW_WEIGHT_HEAD},
        {"output_layer", STW_WEIGHT_HEAD},
        {"q_norm", STW_WEIGHT_Q_NORM},
        {"k_norm", STW_WEIGHT_K_NORM},
        {"self_attention.q_layernorm", STW_WEIGHT_Q_NORM},
        {"self_attention.k_layernorm", STW_WEIGHT_K_NORM},
        {"q_proj", STW_WEIGHT_Q},
        {"linear_q_proj", STW_WEIGHT_Q},
        {"linear_q", STW_WEIGHT_Q},
        {"k_proj", STW_WEIGHT_K},
        {"v_proj", STW_WEIGHT_V},
        {"linear_kv", STW_WEIGHT_KV},
        {"qkv", STW_WEIGHT_QKV},
        {"qkv_proj", STW_WEIGHT_QKV},
        {"c_attn", STW_WEIGHT_QKV},
        {"linear_qkv", STW_WEIGHT_QKV},
        {"q_a_proj", STW_WEIGHT_Q_DOWN},
        {"linear_q_down_proj", STW_WEIGHT_Q_DOWN},
        {"q_b_proj", STW_WEIGHT_Q_UP},
        {"linear_q_up_proj", STW_WEIGHT_Q_UP},
        {"kv_a_proj_with_mqa", STW_WEIGHT_KV_DOWN},
        {"linear_kv_down_proj", STW_WEIGHT_KV_DOWN},
        {"kv_b_proj", STW_WEIGHT_KV_UP},
        {"linear_kv_up_proj", STW_WEIGHT_KV_UP},
        {"o_proj", STW_WEIGHT_O},
        {"out_proj", STW_WEIGHT_O},
        {"attn.c_proj", STW_WEIGHT_O},
        {"attn.proj", STW_WEIGHT_O},
        {"attention.projection_layer", STW_WEIGHT_O},
        {"linear_proj", STW_WEIGHT_O},
        {"sinks", STW_WEIGHT_SINKS},
        {"in_proj_qkvz", STW_WEIGHT_LINEAR_IN},
        {"in_proj_ba", STW_WEIGHT_LINEAR_IN},
        {"in_proj_qkv", STW_WEIGHT_LINEAR_IN},
        {"in_proj_z", STW_WEIGHT_LINEAR_IN},
        {"in_proj_b", STW_WEIGHT_LINEAR_IN},
        {"in_proj_a", STW_WEIGHT_LINEAR_IN},
        {"conv1d", STW_WEIGHT_CONVOLUTION},
        {"A_log", STW_WEIGHT_LINEAR_STATE},
        {"dt_bias", STW_WEIGHT_LINEAR_STATE},
        {"gate_proj", STW_WEIGHT_GATE},
        {"w1", STW_WEIGHT_GATE},
        {"up_proj", STW_WEIGHT_UP},
        {"w3", STW_WEIGHT_UP},
        {"fc1", STW_WEIGHT_UP},
        {"c_fc", STW_WEIGHT_UP},
        {"linear_fc1", STW_WEIGHT_UP},
        {"gate_up_proj", STW_WEIGHT_GATE_UP},
        {"down_proj", STW_WEIGHT_DOWN},
        {"w2", STW_WEIGHT_DOWN},
        {"fc2", STW_WEIGHT_DOWN},
        {"mlp.c_proj", STW_WEIGHT_DOWN},
        {"linear_fc2", STW_WEIGHT_DOWN},
        {"mlp.gate", STW_WEIGHT_ROUTER},
        {"block_sparse_moe.gate", STW_WEIGHT_ROUTER},
        {"router", STW_WEIGHT_ROUTER},
        {"shared_expert_gate", STW_WEIGHT_SHARED_GATE},
        {"shared_experts.gate", STW_WEIGHT_SHARED_GATE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (ends_in(s, table[i].ending)) return table[i].weight;
    const char *last = s->text + s->last;
    const size_t n = s->n - s->last;
    const bool norm = contains(last, n, "norm") || (n > 3 && memcmp(last, "ln_", 3) == 0);
    return norm ? STW_WEIGHT_NORM : STW_WEIGHT_OTHER;
}

stw_weight_use stw_weight_of_name(const char *name) {
    stem s = {name, strlen(name), 0};
    stw_weight_use use = {.weight = STW_WEIGHT_OTHER};
    if (cut(&s, ".lora_A.weight"))
        use.adapter = STW_ADAPTER_A;
    else if (cut(&s, ".lora_B.weight"))
        use.adapter = STW_ADAPTER_B;
    else if (!ends_in(&s, "dt_bias")) {
        use.bias = cut(&s, ".bias") || cut(&s, "_bias");
        if (!use.bias && !cut(&s, ".weight")) cut(&s, "_weight");
    }
    for (size_t i = 0; i < s.n; i++)
        if (s.text[i] == '.') s.last = i + 1;
    use.module = module_of(&s);
    use.weight = weight_of(&s);
    return use;
}

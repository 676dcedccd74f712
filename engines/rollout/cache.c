/* SPDX-License-Identifier: Apache-2.0 */
/* The KV cache of a rank (vllm/v1/kv_cache_interface.py: FullAttentionSpec, MLAAttentionSpec,
 * SlidingWindowSpec, MambaSpec, page_size_bytes and max_memory_usage_bytes; v1/core/
 * kv_cache_utils.py: check_enough_kv_cache_memory; SGLang: memory_pool.py, the same cells). */
#include <string.h>

#include "core/checked.h"
#include "engines/rollout/sizes.h"

/* Recurrent states are fp32 (config: mamba_ssm_dtype); the convolution looks back 3 tokens. */
enum { STATE_BYTES = 4, CONVOLUTION_STATES = 3 };

static uint64_t kv_element(const stw_rollout_role *role) {
    return stw_dtype_bits(role->kv_dtype) / 8;
}

/* The rotary part of MLA's key, which is cached beside the compressed vector. */
static uint64_t rotary_dim(const stw_rollout_role *role, uint32_t group) {
    const stw_model *m = role->model;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        if (m->blocks[m->tensors[t].block].group == group &&
            m->tensors[t].use.weight == STW_WEIGHT_KV_DOWN)
            return m->tensors[t].shape[0] - m->groups[group].facts.kv_rank;
    }
    return 0;
}

static bool is_decoder(const stw_block_facts *f) { return f->transformer && !f->vision; }

/* One token in one layer; 0 without softmax attention. MLA's vector is whole on every rank. */
static uint64_t layer_token_bytes(const stw_rollout_role *role, uint32_t group) {
    const stw_block_facts *f = &role->model->groups[group].facts;
    if (!is_decoder(f) || f->q_heads == 0) return 0;
    if (f->kv_rank > 0)
        return stw_times(stw_plus(f->kv_rank, rotary_dim(role, group)), kv_element(role));
    const uint64_t heads = stw_max_u64(f->kv_heads / role->tp, 1);
    return stw_times(stw_times(heads, stw_plus(f->qk_dim, f->v_dim)), kv_element(role));
}

/* The state of one sequence in a layer of linear attention. */
static uint64_t layer_state_bytes(const stw_rollout_role *role, uint32_t group) {
    const stw_block_facts *f = &role->model->groups[group].facts;
    if (!is_decoder(f) || f->linear_v_heads == 0) return 0;
    const uint64_t keys = stw_times(stw_times(2, f->linear_k_heads), f->linear_k_dim);
    const uint64_t values = stw_times(f->linear_v_heads, f->linear_v_dim);
    const uint64_t mixed =
        stw_times(stw_times(stw_plus(keys, values), CONVOLUTION_STATES) / role->tp,
                  stw_dtype_bits(role->compute) / 8);
    return stw_plus(mixed, stw_times(stw_times(values / role->tp, f->linear_k_dim), STATE_BYTES));
}

uint64_t stw_rollout_token_bytes(const stw_rollout_role *role) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < role->model->n_groups; g++)
        if (role->model->groups[g].facts.window == 0)
            bytes = stw_plus(bytes,
                             stw_times(role->model->groups[g].count, layer_token_bytes(role, g)));
    return bytes;
}

bool stw_rollout_is_uniform(const stw_rollout_role *role) {
    for (uint32_t g = 0; g < role->model->n_groups; g++) {
        const stw_block_facts *f = &role->model->groups[g].facts;
        if (is_decoder(f) && (f->window > 0 || f->linear_v_heads > 0)) return false;
    }
    return true;
}

/* Tokens of a sequence that a layer keeps, in whole blocks: a window holds the tokens of a forward
 * pass, too, and one block more, since it begins inside of one. */
static uint64_t kept_tokens(const stw_rollout_role *role, const stw_block_facts *f) {
    const uint64_t block = STW_ROLLOUT_BLOCK_TOKENS;
    if (f->window == 0) return stw_round_up_u64(role->max_model_len, block);
    const uint64_t inside =
        stw_min_u64(f->window - 1 + role->spec->max_num_batched_tokens, role->max_model_len);
    return stw_plus(stw_round_up_u64(inside, block), block);
}

uint64_t stw_rollout_sequence_bytes(const stw_rollout_role *role) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < role->model->n_groups; g++) {
        const stw_block_group *group = &role->model->groups[g];
        const uint64_t tokens =
            stw_times(kept_tokens(role, &group->facts), layer_token_bytes(role, g));
        bytes =
            stw_plus(bytes, stw_times(group->count, stw_plus(tokens, layer_state_bytes(role, g))));
    }
    return bytes;
}

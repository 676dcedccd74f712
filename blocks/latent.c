/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks/latent.h"

#include "core/checked.h"

/* The norm of a latent: attention has no others. */
static uint8_t latent_norm(stw_adding *a, uint8_t in, uint64_t width, bool queries) {
    uint32_t found = STW_NO_WEIGHT;
    for (uint32_t t = 0; t < a->block->n_tensors; t++) {
        const stw_weight_use use = stw_adding_tensor(a, t)->use;
        if (use.weight == STW_WEIGHT_NORM && stw_module_is_attention(use.module) && !use.bias &&
            (found == STW_NO_WEIGHT || !queries))
            found = t;
    }
    return stw_add_norm(a, in, a->rows, width, 1, found);
}

static uint8_t latent_queries(stw_adding *a, uint8_t in, uint64_t width) {
    const stw_block_facts *f = a->facts;
    if (f->q_rank == 0)
        return stw_add_head_product(a, in, stw_adding_weight(a, STW_WEIGHT_Q, false), width,
                                    f->hidden);
    const uint8_t down = stw_add_product(a, in, stw_adding_weight(a, STW_WEIGHT_Q_DOWN, false),
                                         f->q_rank, f->hidden);
    const uint8_t normed = latent_norm(a, down, f->q_rank, true);
    stw_add_end(a, down);
    const uint8_t out = stw_add_head_product(
        a, normed, stw_adding_weight(a, STW_WEIGHT_Q_UP, false), width, f->q_rank);
    stw_add_end(a, normed);
    return out;
}

/* Elements of a head that have positions: what a product makes beside the latent. */
static uint64_t turned_dim(const stw_adding *a) {
    const uint32_t down = stw_adding_weight(a, STW_WEIGHT_KV_DOWN, false);
    const uint64_t all = down == STW_NO_WEIGHT ? 0 : stw_adding_tensor(a, down)->shape[0];
    return stw_min_u64(all - stw_min_u64(all, a->facts->kv_rank), a->facts->qk_dim);
}

uint64_t stw_rotary_dim(const stw_job *job, uint32_t block) {
    const stw_block *blk = &job->model->blocks[block];
    const stw_adding a = {.job = job, .block = blk, .facts = &job->model->groups[blk->group].facts};
    if (a.facts->kv_rank > 0) return turned_dim(&a);
    return a.facts->rotary_dim > 0 ? a.facts->rotary_dim : a.facts->qk_dim;
}

/* As complex numbers, of a part in fp32. */
static uint8_t turned_complex(stw_adding *a, uint8_t wide, uint64_t width) {
    stw_call *c = stw_add_call(a, STW_FUNCTION_TURN, wide, 3, STW_TURN_OUT);
    a->bytes[STW_TURN_OUT] = stw_adding_column(a, width);
    a->bytes[STW_TURN_WIDE] = stw_times(stw_times(a->rows, 4), width);
    a->bytes[STW_TURN_TABLE] = stw_times(stw_times(a->job->run->batch.seq_len, 4), turned_dim(a));
    return c->out;
}

static uint8_t turned_pairs(stw_adding *a, uint8_t in, uint64_t width) {
    stw_call *c = stw_add_call(a, STW_FUNCTION_TURN_PAIRS, in, 2, STW_ROTARY_OUT);
    stw_add_part(a, 0);
    a->bytes[STW_ROTARY_OUT] = stw_adding_column(a, width);
    a->bytes[STW_ROTARY_HALF] = stw_adding_column(a, width / 2);
    return c->out;
}

/* Rotary embeddings of parts.
 * @param in queries and the product beside the latent
 * @param out both parts */
static void turn(stw_adding *a, const uint8_t in[2], uint64_t heads, uint8_t out[2]) {
    const uint64_t width[] = {stw_times(heads, turned_dim(a)), turned_dim(a)};
    uint8_t wide[2];
    for (int i = 0; i < 2 && !a->facts->complex_rotary; i++)
        out[i] = turned_pairs(a, in[i], width[i]);
    if (!a->facts->complex_rotary) return;
    for (int i = 0; i < 2; i++) {
        wide[i] = stw_add_resized(a, STW_FUNCTION_RESIZE, in[i],
                                  stw_times(stw_times(a->rows, 4), width[i]),
                                  stw_adding_column(a, width[i]));
        stw_add_part(a, 0);
    }
    for (int i = 0; i < 2; i++) out[i] = turned_complex(a, wide[i], width[i]);
    for (int i = 0; i < 2; i++) stw_add_end(a, wide[i]);
}

/* Each head's part of the product of the latent, and the part with positions. */
static uint8_t latent_keys(stw_adding *a, uint8_t up, uint8_t shared, uint64_t heads) {
    const uint64_t dim = turned_dim(a), qk_dim = a->facts->qk_dim;
    stw_call *c = stw_add_call(a, STW_FUNCTION_KEYS, up, 4, STW_KEYS_OUT);
    c->in[1] = shared;
    stw_add_part(a, 0);
    a->bytes[STW_KEYS_OUT] = stw_adding_column(a, stw_times(heads, qk_dim));
    a->bytes[STW_KEYS_TURNED] = stw_adding_column(a, stw_times(heads, dim));
    a->bytes[STW_KEYS_STRAIGHT] = stw_adding_column(a, stw_times(heads, qk_dim - dim));
    a->bytes[STW_KEYS_SHARED] = stw_adding_column(a, dim);
    return c->out;
}

/* Rows of tokens. SDPA returns heads. FlashAttention returns rows, and has values as wide as keys,
 * which are padded (integrations/flash_attention.py). */
static uint8_t latent_kernel(stw_adding *a, uint8_t q, uint8_t k, uint8_t up, uint64_t heads) {
    const stw_block_facts *f = a->facts;
    const stw_attention kind = a->job->run->attention;
    const bool is_flash = kind != STW_ATTENTION_SDPA && kind != STW_ATTENTION_EAGER;
    const uint64_t wide = stw_adding_column(a, stw_times(heads, f->qk_dim)),
                   narrow = stw_adding_column(a, stw_times(heads, f->v_dim));
    uint8_t v = up, out;
    if (is_flash) {
        v = stw_add_resized(a, STW_FUNCTION_RESIZE, up, wide, narrow);
        stw_add_part(a, 0);
    }
    const uint8_t in[] = {q, k, v};
    const uint8_t attended = stw_add_kernel(a, in, heads, heads, is_flash ? f->qk_dim : f->v_dim);
    if (is_flash) {
        stw_add_end(a, v);
        out = stw_add_resized(a, STW_FUNCTION_RESIZE, attended, narrow, wide);
    } else {
        stw_add_part(a, 2);
        out = stw_add_element(a, STW_FUNCTION_COPY, attended, STW_NO_VALUE, narrow);
    }
    stw_add_end(a, attended);
    return out;
}

uint8_t stw_add_latent_attention(stw_adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const uint64_t heads = f->q_heads / a->tp, qk = stw_times(heads, f->qk_dim);
    const uint8_t q = latent_queries(a, in, qk);
    const uint8_t down = stw_add_product(a, in, stw_adding_weight(a, STW_WEIGHT_KV_DOWN, false),
                                         stw_plus(f->kv_rank, turned_dim(a)), f->hidden);
    const uint8_t latent = latent_norm(a, down, f->kv_rank, false);
    stw_add_part(a, 0);
    uint8_t parts[2];
    turn(a, (uint8_t[]){q, down}, heads, parts);
    const uint8_t query =
        stw_add_element(a, STW_FUNCTION_CONCAT, q, parts[0], stw_adding_column(a, qk));
    stw_add_part(a, 0);
    const uint8_t up = stw_add_head_product(
        a, latent, stw_adding_weight(a, STW_WEIGHT_KV_UP, false),
        stw_times(heads, stw_plus(f->qk_dim - turned_dim(a), f->v_dim)), f->kv_rank);
    const uint8_t key = latent_keys(a, up, parts[1], heads);
    const uint8_t attended = latent_kernel(a, query, key, up, heads);
    const uint8_t out = stw_add_product(a, attended, stw_adding_weight(a, STW_WEIGHT_O, false),
                                        f->hidden, stw_times(heads, f->v_dim));
    const uint8_t locals[] = {attended, q, parts[0], down, parts[1], latent, query, key, up, in};
    for (size_t i = 0; i < sizeof locals; i++) stw_add_end(a, locals[i]);
    return out;
}

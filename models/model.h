/* SPDX-License-Identifier: Apache-2.0 */
/* What a model is: its tensors in canonical order, the blocks that a sharded engine gathers one at
 * a time, groups of alike blocks, and, where the architecture is known, the facts from which
 * activations and floating-point operations follow.
 *
 * A model owns everything it points to (one pool) and is read-only once built; it may then be
 * shared between threads. Canonical order is the order of the forward pass: embeddings, blocks by
 * index, final norm, head; a vision tower first. Every parameter counts once: a tied weight is one
 * tensor, at its first use. Buffers are listed apart and never counted as parameters. */
#ifndef STW_MODELS_MODEL_H
#define STW_MODELS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pool.h"
#include "core/status.h"

#define STW_TENSOR_MAX_RANK 8

typedef enum stw_dtype {
    STW_DTYPE_F64,
    STW_DTYPE_F32,
    STW_DTYPE_F16,
    STW_DTYPE_BF16,
    STW_DTYPE_I64,
    STW_DTYPE_I32,
    STW_DTYPE_I16,
    STW_DTYPE_I8,
    STW_DTYPE_U8,
    STW_DTYPE_BOOL,
    STW_DTYPE_F8_E4M3,
    STW_DTYPE_F8_E5M2,
    STW_DTYPE_F8_E8M0,
    STW_DTYPE_F4,
    STW_N_DTYPES
} stw_dtype;

/** Bits of one element (F4 has 4). */
unsigned stw_dtype_bits(stw_dtype dtype);
/** safetensors spelling ("BF16"); stw_dtype_parse also takes torch's ("bfloat16", "torch.float32")
 * and the short ones of run specs ("bf16", "fp32"). */
const char *stw_dtype_name(stw_dtype dtype);
bool stw_dtype_parse(const char *text, stw_dtype *out);

typedef struct stw_tensor {
    const char *name; /* as in the checkpoint of the reference implementation */
    uint32_t block;   /* index into stw_model.blocks */
    uint32_t rank;    /* number of dimensions, 0 for a scalar */
    uint64_t shape[STW_TENSOR_MAX_RANK];
    uint64_t numel;
    stw_dtype dtype;  /* as stored or as the config says */
    bool expert;      /* routed expert weights: cut by ep x etp first */
    uint64_t experts; /* dim 0 counts that many experts (fused); 1 where stored one by one */
} stw_tensor;

/** One module that is gathered, computed and released as a whole (a transformer block, the
 * embedding
 * ...), in canonical order. Its tensors are neighbours in stw_model.tensors. */
typedef struct stw_block {
    uint32_t group;    /* index into stw_model.groups */
    uint32_t instance; /* 0 .. group.count - 1 */
    uint32_t first_tensor, n_tensors;
    uint64_t params;
} stw_block;

/** Facts of a kind of block for activation and FLOP formulas; all zero where unknown. Per token. */
typedef struct stw_block_facts {
    bool transformer; /* residual block: attention or linear attention, then an MLP */
    bool vision;      /* works on image patches, not on text tokens */
    uint64_t hidden;
    uint64_t q_heads, kv_heads; /* 0 where the block has no softmax attention */
    uint64_t qk_dim, v_dim;     /* per head */
    uint64_t kv_rank, q_rank;   /* MLA's low ranks, 0 otherwise */
    uint64_t window;            /* sliding window in tokens, 0: full */
    uint64_t linear_k_heads, linear_v_heads, linear_k_dim,
        linear_v_dim; /* linear attention, 0 otherwise */
    uint64_t ffn;     /* dense MLP width, 0 where the block is MoE only */
    bool gated;       /* gate and up projections (SwiGLU), two matrices into `ffn` */
    uint64_t experts, experts_per_token, expert_ffn, shared_ffn; /* MoE, 0 otherwise */
} stw_block_facts;

/** All blocks of one kind: equal shapes, equal facts. */
typedef struct stw_group {
    const char *name;       /* "embed", "layer", "moe_layer", "norm", "head", "vision_layer" */
    uint32_t count;         /* how many blocks */
    uint32_t tensors;       /* in all its blocks together */
    uint64_t params;        /* in all its blocks together */
    uint64_t active_params; /* of those, used by one token: of routed experts the top k, of all
                             * else everything, embeddings in full; params where k is unknown */
    stw_block_facts facts;
} stw_group;

typedef struct stw_model {
    stw_pool *pool;
    const char *name;                        /* zoo name, or the file's */
    const char *source;                      /* path it was read from */
    const char *model_type;                  /* "" where only tensors are known */
    bool facts_known;                        /* false: forward-backward cannot be predicted */
    uint64_t params, active_params, buffers; /* parameters once; buffer elements apart */
    uint32_t n_tensors, n_blocks, n_groups;
    stw_tensor *tensors; /* canonical order */
    stw_block *blocks;
    stw_group *groups;
    uint32_t n_buffers;
    stw_tensor *buffer_tensors;
    uint64_t vocab, hidden, layers, max_positions; /* 0 where unknown */
    bool tied_embeddings;
    char digest[33]; /* of names, shapes, dtypes, order (hex, XXH3-128) */
} stw_model;

void stw_model_free(stw_model *model); /* NULL is fine */

/** Fill totals, group sums and the digest once tensors, blocks and group facts are in place; checks
 * that blocks cover the tensors in order and that counts do not overflow. Readers call it last. */
STW_MUST_USE stw_status stw_model_finish(stw_model *model, stw_error *err);

/** Any MODEL as the command takes it: a zoo name, a config.json or a folder with one, a safetensors
 * file, sharded index or folder, or a CSV tensor list. The CSV reader must be linked in (it is in
 * `stowage`, not in libstowage).
 * @param data_folder where zoo/ and arch/ lie */
STW_MUST_USE stw_status stw_model_open(const char *what, const char *data_folder, stw_model **out,
                                       stw_error *err);

/** config.json through the template of its model_type, `<data_folder>/arch/<model_type>.csv`. */
STW_MUST_USE stw_status stw_model_read_config(const char *path, const char *data_folder,
                                              stw_model **out, stw_error *err);
/** safetensors headers (file, index or folder); blocks are found from the tensors' names. */
STW_MUST_USE stw_status stw_model_read_safetensors(const char *path, stw_model **out,
                                                   stw_error *err);
/** CSV tensor list `name,shape,dtype[,group]`. */
STW_MUST_USE stw_status stw_model_read_csv(const char *path, stw_model **out, stw_error *err);
/** The same list written: readable by stw_model_read_csv with equal digest where groups are equal.
 */
STW_MUST_USE stw_status stw_model_write_csv(const stw_model *model, const char *path,
                                            stw_error *err);

/** Put tensors (any order, `block` unset) into blocks by their names' layer numbers: shared by the
 * safetensors and CSV readers. `groups` [n_tensors] gives a group name per tensor or NULL. */
STW_MUST_USE stw_status stw_model_group_by_name(stw_model *model, const char *const *groups,
                                                stw_error *err);

#endif

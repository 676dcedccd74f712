/* SPDX-License-Identifier: Apache-2.0 */
/* A model: its tensors in canonical order, the blocks that a sharded engine gathers one at a time,
 * tensor groups (all blocks of one kind) and, if the architecture is known, the facts from which
 * activations and floating-point operations are computed.
 *
 * A model owns everything it points to, in one pool. It is read-only once built and may then be
 * shared between threads. Canonical order is the order of the forward pass: vision tower,
 * embeddings, blocks by index, final norm, head. Each parameter counts once: a tied weight is one
 * tensor, at its first use. Buffers are listed separately and are not parameters. */
#ifndef STW_MODELS_MODEL_H
#define STW_MODELS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pool.h"
#include "core/status.h"
#include "models/weight.h"

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
    stw_dtype dtype;      /* in the published files, or from the config */
    bool expert;          /* routed expert weights: cut by ep x etp first */
    uint64_t experts;     /* experts in dimension 0 (fused); 1 if each expert is a tensor */
    uint64_t scale_bytes; /* bytes of the block scales of a quantized tensor, or 0 */
    stw_weight_use use;   /* which weight it is; derived from the name unless the reader sets it */
} stw_tensor;

/** Returns the bytes of a tensor in the published files: elements (formats below one byte are
 * packed) and block scales. */
uint64_t stw_tensor_stored_bytes(const stw_tensor *tensor);
/** Returns the part of stw_tensor_stored_bytes for elements [first, first + count). The parts of a
 * tensor add up to the whole. */
uint64_t stw_tensor_run_bytes(const stw_tensor *tensor, uint64_t first, uint64_t count);

/** One module that is gathered, computed and released as a whole: a transformer block, the
 * embedding and so on. Its tensors are adjacent in stw_model.tensors. */
typedef struct stw_block {
    uint32_t group;    /* index into stw_model.groups */
    uint32_t instance; /* 0 .. group.count - 1 */
    uint32_t first_tensor, n_tensors;
    uint64_t params;
} stw_block;

/** Facts about a kind of block for activation and FLOP formulas, per token. All zero if unknown. */
typedef struct stw_block_facts {
    bool transformer; /* residual block: attention or linear attention, then an MLP */
    bool vision;      /* works on image patches, not on text tokens */
    bool decoder;     /* decoder of a model with an encoder: works on the target's tokens; its
                         transformer blocks attend to the encoder's output, too */
    uint64_t hidden;
    uint64_t q_heads, kv_heads; /* 0 without softmax attention */
    uint64_t qk_dim, v_dim;     /* per head */
    uint64_t rotary_dim;        /* of them with rotary embeddings; 0: all */
    uint64_t kv_rank, q_rank;   /* MLA's low ranks, 0 otherwise */
    uint64_t window;            /* sliding window in tokens, 0: full */
    uint64_t linear_k_heads, linear_v_heads, linear_k_dim,
        linear_v_dim; /* linear attention, 0 otherwise */
    uint64_t ffn;     /* width of the dense MLP, 0 if the block has MoE only */
    bool gated;       /* gate and up projections (SwiGLU), two matrices into `ffn` */
    uint64_t experts, experts_per_token, expert_ffn, shared_ffn; /* MoE, 0 otherwise */
    uint64_t norms;      /* norms of the residual's width; 0: two */
    bool wide_norms;     /* norms multiply by their weight in fp32 */
    bool capped_scores;  /* tanh bounds the scores of eager attention */
    bool complex_rotary; /* positions turn complex numbers, not halves of heads */
    bool wide_scores;    /* of experts: in fp32, and so is the router's product */
    bool sigmoid_scores; /* sigmoids, of groups of experts; else softmax */
    /* mergers of deepstack: the block of the tower whose output the first one reads, and how many
     * blocks the next ones are apart; 0 otherwise */
    uint64_t tap_first, tap_step;
} stw_block_facts;

/** A tensor group: all blocks of one kind, with equal shapes and facts. */
typedef struct stw_block_group {
    const char *name;       /* "embed", "layer", "moe_layer", "norm", "head", "vision_layer" */
    uint32_t count;         /* number of blocks */
    uint32_t tensors;       /* in all its blocks together */
    uint64_t params;        /* in all its blocks together */
    uint64_t active_params; /* used by one token: the top k routed experts and all other parameters,
                               embeddings in full; equals params if k is unknown */
    stw_block_facts facts;
} stw_block_group;

/** Limits of a model: ten times the largest published one, and enough tensors if every expert is
 * stored separately. */
#define STW_MODEL_MAX_PARAMS (1ull << 43)
#define STW_MODEL_MAX_TENSORS (1u << 19)

typedef struct stw_model {
    stw_pool *pool;
    const char *name;                        /* zoo name or file name */
    const char *source;                      /* path it was read from */
    const char *model_type;                  /* "" if only tensors are known */
    bool facts_known;                        /* false: forward-backward cannot be predicted */
    uint64_t params, active_params, buffers; /* elements; buffers are not in params */
    uint32_t n_tensors, n_blocks, n_groups;
    stw_tensor *tensors; /* canonical order */
    stw_block *blocks;
    stw_block_group *groups;
    uint32_t n_buffers;
    stw_tensor *buffer_tensors;
    uint32_t n_extras;
    stw_tensor *extra_tensors; /* in the published files, but not trained: layers of multi-token
                                  prediction, a copy of a tied head, masks */
    uint64_t stored_bytes;     /* bytes of the published files: tensors, buffers, extras, scales */
    uint64_t vocab, hidden, layers, max_positions; /* 0 if unknown */
    bool tied_embeddings;
    bool soft_capped; /* tanh bounds the logits */
    char digest[33];  /* hash of names, shapes, dtypes, order (hex, XXH3-128) */
} stw_model;

void stw_model_free(stw_model *model); /* NULL is fine */

/** Compute totals, group sums and the digest from tensors, blocks and group facts. Checks that the
 * blocks cover the tensors in order and that counts do not overflow. Readers call it last. */
STW_MUST_USE stw_status stw_model_finish(stw_model *model, stw_error *err);

/** Open MODEL as given on the command line: a name (`models/zoo.h`), a config.json or its folder, a
 * safetensors file, sharded index or folder, or a CSV tensor list. The CSV reader must be linked in
 * (it is in `stowage`, not in libstowage).
 * @param data_folder folder of zoo/ and arch/ */
STW_MUST_USE stw_status stw_model_open(const char *what, const char *data_folder, stw_model **out,
                                       stw_error *err);

/** Read a config.json with the template of its model_type, `<data_folder>/arch/<model_type>.csv`.
 */
STW_MUST_USE stw_status stw_model_read_config(const char *path, const char *data_folder,
                                              stw_model **out, stw_error *err);
/** Parse the text of a config.json. @param path for errors and the model's name */
STW_MUST_USE stw_status stw_model_parse_config(const char *path, const char *text, size_t length,
                                               const char *data_folder, stw_model **out,
                                               stw_error *err);
/** Read safetensors headers (file, index or folder). Blocks are derived from tensor names. */
STW_MUST_USE stw_status stw_model_read_safetensors(const char *path, stw_model **out,
                                                   stw_error *err);
/** Read a CSV tensor list `name,shape,dtype[,group]`. */
STW_MUST_USE stw_status stw_model_read_csv(const char *path, stw_model **out, stw_error *err);
/** Write the CSV tensor list that stw_model_read_csv reads. The digest stays equal if groups do. */
STW_MUST_USE stw_status stw_model_write_csv(const stw_model *model, const char *path,
                                            stw_error *err);

/** Assign tensors (any order, `block` unset) to blocks by the layer numbers in their names. Used by
 * the safetensors and CSV readers. @param groups [n_tensors] names of tensor groups, or NULL */
STW_MUST_USE stw_status stw_model_group_by_name(stw_model *model, const char *const *groups,
                                                stw_error *err);

#endif

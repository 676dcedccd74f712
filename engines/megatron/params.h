/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank of Megatron-LM holds: parameters by TP, PP, EP and ETP, and its range of the flat
 * buffers of the distributed optimizer. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_PARAMS_H
#define STW_ENGINES_MEGATRON_PARAMS_H

#include "engines/megatron/ranks.h"

/** Space of the state that HybridDeviceOptimizer leaves on the GPU; the optimizer space holds what
 * it updates on the host. Of an optimizer that divides (blocks/optimizer.h): the state of
 * matrices; the optimizer space holds the rest. Else empty: the optimizer space holds all. */
#define STW_MEGATRON_SPACE_RESIDENT STW_N_STATE_SPACES

/** One parameter as Megatron makes it: q, k and v in one matrix, gate and up in one, experts apart.
 */
typedef struct stw_megatron_param {
    uint64_t numel; /* of this rank */
    uint64_t row;   /* elements of its dimensions after the first */
    uint32_t block; /* of the model */
    uint32_t chunk; /* of the stage */
    bool expert;
    bool bucket;       /* an embedding that several stages have: in a bucket of its own */
    bool whole;        /* every tensor-parallel rank has all of it: norms, routers */
    bool product;      /* weight of a product that TransformerEngine's layers make */
    bool matrix;       /* two dimensions, neither embedding nor head */
    bool by_columns;   /* tensor parallelism cuts its second dimension */
    uint32_t owner;    /* of a matrix that is dealt (layer_wise.h): its data-parallel rank */
    uint64_t parts[3]; /* elements of q, k and v in their matrix; else 0 */
} stw_megatron_param;

typedef struct stw_megatron_params {
    uint32_t n;
    stw_megatron_param *list; /* [n] those that are trained, in the order of the model's modules */
    uint64_t dense, expert;   /* elements, padding of the vocabulary included */
    uint64_t frozen;          /* the same of those that are not trained */
    uint64_t dense_padded, expert_padded; /* of the flat buffers */
    /* Of matrices that are dealt to ranks, dense and of experts: of these, in the buffers; on the
     * rank that has most; its number. Else 0. */
    uint64_t dealt_padded[2], dealt_share[2];
    uint32_t dealt_rank[2];
} stw_megatron_params;

/** Parameters of a rank of a stage. @param out lists lie in `pool` */
STW_MUST_USE stw_status stw_megatron_params_of(const stw_job *job, uint32_t stage, stw_pool *pool,
                                               stw_megatron_params *out, stw_error *err);
/** Elements whose optimizer state the first data-parallel rank holds: of dense and of expert
 * parameters. */
uint64_t stw_megatron_dense_share(const stw_job *job, const stw_megatron_params *params);
uint64_t stw_megatron_expert_share(const stw_job *job, const stw_megatron_params *params);
/** The turn of a parameter when optimizers make main parameters (optimizer/__init__.py): dense
 * ones, then those of experts. An optimizer that divides: matrices in this order, embedding and
 * head, what has one dimension; where matrices are dealt, after these. */
enum { STW_MEGATRON_TURNS = 4 };
uint32_t stw_megatron_turn(const stw_job *job, const stw_megatron_param *param);
/** The same as a list of parts of parameters in the order of the flat buffers, which is that of the
 * backward (param_and_grad_buffer.py, _ParamAndGradBuffer). */
STW_MUST_USE stw_status stw_megatron_shard_of(const stw_job *job, const stw_megatron_params *params,
                                              stw_pool *pool, stw_megatron_params *out,
                                              stw_error *err);
/** Rows of the vocabulary on this rank (training/tokenizer, _vocab_size_with_padding: a multiple of
 * make-vocab-size-divisible-by x tp). */
uint64_t stw_megatron_vocab(const stw_job *job);
/** Does HybridDeviceOptimizer take part, does it offload, and how many elements in the order of its
 * parameters it updates on the host: whole parameters until the fraction is reached
 * (hybrid_optimizer.py, _get_sub_optimizer_param_groups). */
bool stw_megatron_is_hybrid(const stw_job *job);
bool stw_megatron_offloads(const stw_job *job);
uint64_t stw_megatron_offloaded(const stw_job *job, const stw_megatron_params *shard, bool expert);

/** Elements of the buffer of a model chunk, of dense parameters or experts; its share of all
 * padding, too. */
uint64_t stw_megatron_part_of_chunk(const stw_megatron_params *params, uint32_t chunk, bool expert);
/** Elements of TransformerEngine's dummy gradients: one for each shape of a weight whose gradient
 * its products add to the main gradient themselves; they stay (transformer_engine/pytorch/module/
 * base.py, get_dummy_wgrad). */
uint64_t stw_megatron_dummy_grads(const stw_job *job, const stw_megatron_params *params);

/** Slots of stw_engine. */
STW_MUST_USE stw_status stw_megatron_cut(const stw_job *job, uint32_t space, uint32_t rank,
                                         stw_space *out, stw_error *err);
bool stw_megatron_counts(const stw_job *job, uint32_t space, uint32_t rank);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What an inference engine holds on each rank of a rollout role. Sources are read at vLLM 35d5cda
 * and SGLang 0005834; each formula names file and function. Pure functions of the job; any thread.
 */
#ifndef STW_PLAN_ROLLOUT_SIZES_H
#define STW_PLAN_ROLLOUT_SIZES_H

#include "plan/job/job.h"
#include "plan/sync/box.h"

/** A rollout role with what follows from its keys. */
typedef struct stw_rollout_role {
    const stw_model *model;
    const stw_role *spec;
    uint32_t tp, ep;
    uint64_t max_model_len;
    stw_dtype compute, kv_dtype;
} stw_rollout_role;

/** Bytes on one rank; those that sleep levels and phases treat alike. */
typedef struct stw_rollout_figures {
    bool sleeps, keeps_on_host;      /* asleep: are weights copied to the host? */
    uint64_t weights, host_rounding; /* of the page-locked copy */
    uint64_t work;                   /* activations and sampling of the profiling run, at most */
    uint64_t graphs;                 /* private pools of captured CUDA graphs */
    uint64_t tables;                 /* which blocks of the cache a sequence has */
    uint64_t cache, cache_tokens;    /* KV cache; 0 tokens: layers differ */
    uint64_t sequence;               /* cache of one sequence of max_model_len */
    uint64_t process, host_process;  /* CUDA context and NCCL; the process's own memory */
    uint64_t node;                   /* this rank's part of what a node has once */
    uint64_t trainer_model;          /* parameters of the trainer's model that it builds */
    uint64_t received;               /* buffers and copies of a weight sync, while it goes on */
} stw_rollout_figures;

/* ---- weights.c ---- */

/** Weights of a rank as vLLM's layers cut them, with the table of rotary positions.
 * @param rounding out, may be NULL: what page-locking them block by block adds on the host */
uint64_t stw_rollout_weight_bytes(const stw_rollout_role *role, uint64_t *rounding);

/** A whole tensor as a box: dimensions from the fourth on are one. */
stw_box stw_rollout_whole(const stw_tensor *tensor);
/** Boxes of a tensor that rank `rank` of the engines holds, which are apart. @return how many */
#define STW_ROLLOUT_BOXES 3
uint32_t stw_rollout_boxes(const stw_rollout_role *role, const stw_tensor *tensor, uint32_t rank,
                           stw_box out[STW_ROLLOUT_BOXES]);
/** A rollout role with what its keys leave open. @param number of the role in the job */
stw_rollout_role stw_rollout_resolve(const stw_job *job, uint32_t number);
/** Refuse sizes by which vLLM cannot cut: BAD_INPUT. @param number of the role */
STW_MUST_USE stw_status stw_rollout_check_cuts(const stw_rollout_role *role, uint32_t number,
                                               stw_error *err);

/* ---- cache.c ---- */

/** KV cache of one token in all full-attention layers of a rank. */
uint64_t stw_rollout_token_bytes(const stw_rollout_role *role);
/** KV cache and states of one sequence of max_model_len. */
uint64_t stw_rollout_sequence_bytes(const stw_rollout_role *role);
/** Are all layers of full attention? Then the cache is counted in tokens. */
bool stw_rollout_is_uniform(const stw_rollout_role *role);
/** Tokens of a block of the cache. */
#define STW_ROLLOUT_BLOCK_TOKENS 16

/* ---- work.c ---- */

/** The most that the profiling run allocates beside the weights. */
uint64_t stw_rollout_work_bytes(const stw_rollout_role *role);
/** What captured CUDA graphs keep; a margin. */
uint64_t stw_rollout_graph_bytes(const stw_rollout_role *role, bool sglang);
/** Tables of the cache's blocks (SGLang: tokens) of max_num_seqs sequences. */
uint64_t stw_rollout_table_bytes(const stw_rollout_role *role, bool sglang);

#endif

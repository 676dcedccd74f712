/* SPDX-License-Identifier: Apache-2.0 */
/* What an inference engine holds on each rank of a rollout role. Sources are read at vLLM 35d5cda
 * and SGLang 0005834; each formula names file and function. Pure functions of the job; any thread.
 */
#ifndef STW_ENGINES_ROLLOUT_SIZES_H
#define STW_ENGINES_ROLLOUT_SIZES_H

#include "engines/rollout_weights.h"

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

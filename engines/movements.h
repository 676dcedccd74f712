/* SPDX-License-Identifier: Apache-2.0 */
/* Movements, and parts of them, that engines share. Every function appends to the builder's
 * program; the builder keeps the first failure. */
#ifndef STW_ENGINES_MOVEMENTS_H
#define STW_ENGINES_MOVEMENTS_H

#include "plan/job/engine.h"
#include "plan/program/builder.h"

/* ---- load (load.c) ---- */

/** Load by the decided method through bounded slots (all_ranks: through the whole model), within a
 * movement whose transfer stw_load_transfer made. */
void stw_build_load(stw_builder *b);
/** The transfer of a load movement: files -> params. */
stw_transfer stw_load_transfer(stw_builder *b);

/* ---- the optimizer step of buckets (stowage/step.c) ---- */

/** A whole optimizer step: rings, gradient norm, every bucket, commit of state on NVMe. */
void stw_build_step(stw_builder *b, stw_phase phase, stw_repeat repeat);

/** The same in parts, for engines that put something of their own between them. */
typedef struct stw_step {
    stw_builder *b;
    uint32_t norm;                  /* the op that makes the clip factor, STW_OP_NONE: none */
    uint32_t updated;               /* the last update */
    uint32_t *free_by[STW_N_RINGS]; /* [slots] last op that used a slot; the next waits for it */
} stw_step;
/** Begin the movement with its rings and the norm; false after a failure. */
bool stw_step_begin(stw_step *step, stw_builder *b, stw_phase phase, stw_repeat repeat);
/** The norm alone, in a movement that was begun, of which the rings are there for good. */
bool stw_step_begin_inside(stw_step *step, stw_builder *b);
/** The rings of the layout come or go. */
void stw_build_rings(stw_builder *b, bool alloc);
/** Every bucket of the layout, in its order. */
void stw_step_buckets(stw_step *step);
/** Free the rings, commit, end the movement. */
void stw_step_end(stw_step *step);

/* ---- transfers between spaces (transfer.c) ---- */

/** From one space of a role to another one, piece by piece through a few slots on the GPU: packed
 * by the rank that has the piece, sent to all, placed where the target space holds its elements. */
typedef struct stw_transfer_ends {
    uint32_t from, to;                          /* spaces */
    stw_component from_component, to_component; /* whose regions hold them */
    uint64_t element_bytes;
} stw_transfer_ends;
stw_transfer stw_space_transfer(stw_builder *b, const stw_transfer_ends *ends);
/** The operations of the transfer of the movement that was begun last. */
void stw_build_transfer(stw_builder *b);

/* ---- forward and backward (fsdp2/forward_backward.c, fsdp2/log_prob.c) ---- */

/** Gradients of the shards appear (as a backward leaves them) or go. */
void stw_build_shard_grads(stw_builder *b, bool alloc);
/** Do the gradients of a step stay until the forward of their blocks? */
bool stw_holds_grads(const stw_job *job);
/** Forward and backward as FSDP2 does them.
 * @param lazy_grads sharded gradients appear block by block (else they are regions) */
void stw_build_forward_backward(stw_builder *b, bool lazy_grads);
/** One micro batch of batch.log_prob_micro_batch: a forward without gradients, and the
 * log-probabilities of its tokens. Nothing where there are none. */
void stw_build_log_prob(stw_builder *b);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Load staging: the pieces in which weights are read, and the staging bytes that hold pieces on the
 * host and on the GPU until they are placed. Layouts reserve these bytes and engines build the load
 * from these pieces. Pure functions of their arguments; any thread. */
#ifndef STW_PLAN_STAGING_H
#define STW_PLAN_STAGING_H

#include "plan/program/decisions.h"

#define STW_LOAD_PIECE_BYTES (32ull << 20) /* bytes of one slot of load staging */
#define STW_LOAD_SLOTS 3

/** List the pieces of the whole model in canonical order, the same on every rank: ranges of
 * stw_job.files with at most STW_LOAD_PIECE_BYTES at 4 bytes an element. Stowage's pieces span
 * tensors; a framework's loader reads one tensor at a time (and half as many elements if the stored
 * dtype is wider). All load methods except sharded_read use them.
 * @param pieces lies in `pool` */
STW_MUST_USE stw_status stw_load_pieces(const stw_job *job, stw_pool *pool, stw_view **pieces,
                                        uint32_t *n_pieces, stw_error *err);
/** Returns the number of pieces of load method sharded_read: ranges of the flat space of a kind of
 * rank, which may span tensors. */
uint32_t stw_flat_pieces(const stw_job *job, uint32_t kind);
/** Give piece `i` of the flat space: STW_LOAD_PIECE_BYTES / 4 elements, fewer in the last piece. */
void stw_flat_piece(const stw_job *job, uint32_t kind, uint32_t i, uint64_t *first_param,
                    uint64_t *params);

/** Returns the bytes read for a piece (a range of the files, or of a rank's parameters): its
 * elements and its part of the tensors' block scales. The pieces of a tensor add up to its bytes in
 * the published files. If Stowage makes weights from a seed, seconds and bytes are still those of a
 * load from files. */
uint64_t stw_load_piece_bytes(const stw_job *job, stw_view piece);
/** Returns the bytes of a piece on the host and on its way to the GPUs. A framework's loader casts
 * while it reads, to load.dtype (default: the dtype of the parameters). Stowage keeps the stored
 * dtype, except for elements wider than fp32. Sources: see engines/load.c. */
uint64_t stw_load_held_bytes(const stw_job *job, stw_view piece);
/** Returns the room of a piece in whole-model staging, in whole pages: in the dtype in which a
 * framework loads, for Stowage at least 4 bytes an element. */
uint64_t stw_load_room_bytes(const stw_job *job, stw_view piece);
/** True if the ranks that read hold the whole model on the host before it is sharded: with
 * all_ranks, and in a framework with every method that reads whole tensors. */
bool stw_load_is_whole(const stw_job *job, stw_load method);
/** True if every rank builds the whole model on its GPU and shards it there. */
bool stw_load_is_whole_on_gpu(stw_load method);
/** True if host staging is pageable, as in a framework. */
bool stw_load_is_pageable(const stw_job *job);
/** Returns the bytes of load staging that a kind of rank needs in a tier with the decided method.
 * On the GPU: STW_LOAD_SLOTS slots, or with stw_load_is_whole_on_gpu the whole model less the
 * parameters that stay there. On the host, for ranks that read: the same slots, or with
 * stw_load_is_whole the whole model. */
uint64_t stw_load_staging_bytes(const stw_job *job, const stw_decisions *decisions, uint32_t kind,
                                stw_tier tier);
/** The same for any method. Callers loop over kinds and methods, so the sum over up to 10^5 tensors
 * is kept.
 * @param whole_bytes in and out, 0 before the first call: bytes of the whole model */
uint64_t stw_load_method_staging_bytes(const stw_job *job, stw_load method, uint32_t kind,
                                       stw_tier tier, uint64_t *whole_bytes);

#endif

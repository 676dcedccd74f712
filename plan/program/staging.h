/* SPDX-License-Identifier: Apache-2.0 */
/* Load staging: the pieces in which weights are read, and the bytes that hold pieces on the host
 * and on the GPU until they are placed. Layouts reserve these bytes and engines build the load
 * from these pieces. Pure functions of their arguments; any thread. */
#ifndef STW_PLAN_STAGING_H
#define STW_PLAN_STAGING_H

#include "plan/program/decisions.h"

#define STW_LOAD_PIECE_BYTES (32ull << 20) /* of one slot of load staging */
#define STW_LOAD_SLOTS 3

/** Pieces of the whole model in canonical order, the same on every rank: runs of stw_job.files of
 * at most STW_LOAD_PIECE_BYTES at 4 bytes an element. What Stowage reads spans tensors; a
 * framework's loader takes one tensor at a time (with half as many elements where the stored dtype
 * is wider). Every load method but sharded_read uses them.
 * @param pieces lies in `pool` */
STW_MUST_USE stw_status stw_load_pieces(const stw_job *job, stw_pool *pool, stw_view **pieces,
                                        uint32_t *n_pieces, stw_error *err);
/** Pieces of load method sharded_read: runs of the flat space of a kind of rank, which may span
 * tensors. @return how many */
uint32_t stw_flat_pieces(const stw_job *job, uint32_t kind);
/** Elements of piece `i` of the flat space: STW_LOAD_PIECE_BYTES / 4, fewer in the last piece. */
void stw_flat_piece(const stw_job *job, uint32_t kind, uint32_t i, uint64_t *first_param,
                    uint64_t *params);

/** Bytes of a piece (a run of the files, or of a rank's parameters) as it is read: its elements and
 * its part of the tensors' block scales. The pieces of a tensor add up to its bytes in the
 * published files, also where Stowage makes weights from a seed: seconds and bytes are those of a
 * load that reads files. */
uint64_t stw_load_piece_bytes(const stw_job *job, stw_view piece);
/** Bytes of a piece on the host and on its way to the GPUs. A framework's loader casts while it
 * reads: load.dtype, by default that of the parameters. Stowage keeps what it reads, but for
 * elements wider than fp32. Sources: see plan/engines/load.c. */
uint64_t stw_load_held_bytes(const stw_job *job, stw_view piece);
/** Room of a piece in whole-model staging: whole pages, in the dtype in which a framework loads,
 * else with room for fp32. */
uint64_t stw_load_room_bytes(const stw_job *job, stw_view piece);
/** Do the ranks that read hold the whole model on the host before anything is cut? They do with
 * all_ranks, and a framework's ranks do with every method that reads whole tensors. */
bool stw_load_is_whole(const stw_job *job, stw_load method);
/** Does every rank make the whole model on its GPU, and cut it there? */
bool stw_load_is_whole_on_gpu(stw_load method);
/** Is the staging on the host pageable? A framework's is. */
bool stw_load_is_pageable(const stw_job *job);
/** Bytes of load staging that a kind of rank needs in a tier under the decided method:
 * STW_LOAD_SLOTS slots on the GPU, or what the whole model takes
 * beside the parameters that stay there (stw_load_is_whole_on_gpu); on the host,
 * where the rank reads, as many slots or the whole model (stw_load_is_whole). */
uint64_t stw_load_staging_bytes(const stw_job *job, const stw_decisions *decisions, uint32_t kind,
                                stw_tier tier);
/** The same for a method, of many kinds and methods in turn: models have up to 10^5 tensors.
 * @param whole_bytes in and out, 0 at first: of the whole model, once it was summed up */
uint64_t stw_load_method_staging_bytes(const stw_job *job, stw_load method, uint32_t kind,
                                       stw_tier tier, uint64_t *whole_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How engines write a program: append operations, begin and end movements, find room for transient
 * bytes above the layout's regions. The first failure is kept and everything after it does nothing,
 * so that engines need not check every append. */
#ifndef STW_PLAN_ENGINES_BUILDER_H
#define STW_PLAN_ENGINES_BUILDER_H

#include "plan/program/program.h"

typedef struct stw_extent {
    uint64_t offset, bytes;
} stw_extent;

typedef struct stw_builder {
    const stw_job *job;
    const stw_decisions *decisions;
    const stw_layout *layout;
    stw_program *program;
    size_t capacity;
    stw_error *err;
    stw_status status;
    stw_extent
        *shard_grads; /* [model.n_blocks] lazily made gradients, live from backward to step */
    struct {
        stw_extent *live;
        size_t n, capacity;
    } transient[STW_N_TIERS]; /* by offset, ascending */
} stw_builder;

void stw_builder_init(stw_builder *b, const stw_job *job, const stw_decisions *decisions,
                      const stw_layout *layout, stw_program *program, stw_error *err);
/** Close the list; the first failure. */
STW_MUST_USE stw_status stw_builder_finish(stw_builder *b);

void stw_begin_movement(stw_builder *b, stw_phase phase, bool by_stowage, bool executable);
void stw_end_movement(stw_builder *b);
/** Append; the op's index (STW_OP_NONE after a failure). `after` entries that name an op of the
 * same stream are dropped: a stream is in order anyway. */
uint32_t stw_append(stw_builder *b, stw_op op);

/** Bytes at a fixed offset (regions, rings) or outside the arena (STW_OFFSET_EXTERNAL). */
void stw_alloc_at(stw_builder *b, stw_component component, stw_tier tier, uint64_t offset,
                  uint64_t bytes);
void stw_free_at(stw_builder *b, stw_component component, stw_tier tier, uint64_t offset,
                 uint64_t bytes);
/** Transient bytes: first fit above the persistent bytes of the tier. Zero bytes do nothing. */
stw_extent stw_alloc(stw_builder *b, stw_component component, stw_tier tier, uint64_t bytes);
void stw_free(stw_builder *b, stw_component component, stw_tier tier, stw_extent extent);

/** An op of a kind and stream with everything else unset. */
static inline stw_op stw_op_make(stw_op_kind kind, stw_work work, stw_stream stream,
                                 uint32_t unit) {
    stw_op op = {.kind = kind,
                 .work = work,
                 .stream = stream,
                 .unit = unit,
                 .after = {STW_OP_NONE, STW_OP_NONE}};
    return op;
}
/** A copy of `bytes` from (tier, offset) to (tier, offset), after up to two ops. */
uint32_t stw_copy(stw_builder *b, stw_stream stream, stw_component component, uint32_t unit,
                  stw_tier from, uint64_t from_offset, stw_tier to, uint64_t to_offset,
                  uint64_t bytes, uint32_t after0, uint32_t after1);

/* ---- movements that engines share ---- */

/** What lies outside the arenas for the whole run: CUDA context, NCCL, the process. */
void stw_build_externals(stw_builder *b);
/** Regions of the layout for which `which` is true, as allocs or frees. */
void stw_build_regions(stw_builder *b, bool alloc, bool (*which)(const stw_region *region));
/** Load by the decided method through bounded slots (all_ranks: through the whole model). */
void stw_build_load(stw_builder *b);
/** Gradients of the shards appear (as a backward leaves them) or go. */
void stw_build_shard_grads(stw_builder *b, bool alloc);
/** Forward and backward as FSDP2 does them.
 * @param lazy_grads sharded gradients appear block by block (else they are regions) */
void stw_build_forward_backward(stw_builder *b, bool lazy_grads);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How engines write a program: append operations, begin and end movements, find room for transient
 * bytes above the layout's regions. The first failure is kept and everything after it does nothing,
 * so that engines need not check every append. */
#ifndef STW_PLAN_ENGINES_BUILDER_H
#define STW_PLAN_ENGINES_BUILDER_H

#include "plan/program/program.h"

typedef struct stw_extent {
    uint64_t offset, bytes;
    uint32_t alloc; /* the operation from which on the bytes are there; STW_OP_NONE: no bytes */
    bool pageable;  /* see stw_builder */
} stw_extent;
/* The extent that has no bytes. */
#define STW_NO_EXTENT                                                                              \
    (stw_extent) { .alloc = STW_OP_NONE }

typedef struct stw_builder {
    const stw_job *job;
    const stw_decisions *decisions;
    const stw_layout *layout;
    stw_program *program;
    size_t capacity;
    stw_error *err;
    stw_status status;
    bool pageable; /* what is allocated or freed on the host from now on is not page-locked */
    const char *from_what; /* why host bytes are there from now on (ledger.h); NULL: as usual */
    bool skipping; /* of a movement that the program does not hold: only allocs and frees stay */
    stw_extent
        *shard_grads; /* [model.n_blocks] lazily made gradients, live from backward to step */
    uint32_t
        shard_tensors; /* tensors of shard_grads, by block, two more, and the model's (tensors.h) */
    uint32_t step_tensors;  /* of what is there during a step alone */
    uint8_t tensors_unless; /* micro batches, see stw_tensors_unless */
    struct stw_park *park;  /* what is on the host between updates (engines/park.h); NULL: none */
    struct {
        stw_extent *live;
        size_t n, capacity;
        size_t packed;        /* so many of them leave no gap */
    } transient[STW_N_TIERS]; /* by offset, ascending */
} stw_builder;

void stw_builder_init(stw_builder *b, const stw_job *job, const stw_decisions *decisions,
                      const stw_layout *layout, stw_program *program, stw_error *err);
/** Close the list; the first failure. */
STW_MUST_USE stw_status stw_builder_finish(stw_builder *b);

/** Begin a movement like `like`, whose first_op and n_ops are not looked at. */
void stw_begin_movement(stw_builder *b, stw_movement like);
void stw_end_movement(stw_builder *b);
/** Append; the op's index (STW_OP_NONE after a failure). `after` entries that name an op of the
 * same stream are dropped: a stream is in order anyway. */
uint32_t stw_append(stw_builder *b, stw_op op);

/** Bytes at a fixed offset (regions, rings) or outside the arena (STW_OFFSET_EXTERNAL). */
void stw_alloc_at(stw_builder *b, stw_component component, stw_tier tier, uint64_t offset,
                  uint64_t bytes);
void stw_free_at(stw_builder *b, stw_component component, stw_tier tier, uint64_t offset,
                 uint64_t bytes);
/** Transient bytes: first fit above the persistent bytes of the tier. Zero bytes do nothing. Memory
 * belongs to the compute stream: an operation of another stream that works on the bytes waits for
 * extent.alloc, and the free waits for the last such operation. So the bytes that are live on a
 * time line are those of the walk. */
stw_extent stw_alloc(stw_builder *b, stw_component component, stw_tier tier, uint64_t bytes);
void stw_free(stw_builder *b, stw_component component, stw_tier tier, stw_extent extent);
/** Free when an operation of another stream has ended. */
void stw_free_after(stw_builder *b, stw_component component, stw_tier tier, stw_extent extent,
                    uint32_t after);

/** Where bytes lie. */
typedef struct stw_place_at {
    stw_tier tier;
    uint64_t offset;
} stw_place_at;
/** Bytes of a component on their way, after up to two operations. */
typedef struct stw_transport {
    stw_op_kind kind; /* COPY, COPY_PIECE or COPY_BLOCK; NVMe operations follow from the tiers */
    stw_stream stream;
    stw_component component;
    uint32_t unit;
    stw_place_at from, to;
    uint64_t bytes;
    stw_op_ranks ranks;
    uint32_t after[2];
} stw_transport;
/** Append a copy, or a read from or a write to NVMe; the op's index. */
uint32_t stw_copy(stw_builder *b, const stw_transport *copy);
/** Append a commit of what the movement wrote to NVMe; nothing where no state lies there. */
void stw_build_commit(stw_builder *b);

/* ---- movements that engines share ---- */

/** What lies outside the arenas for the whole run: CUDA context, NCCL, the process. */
void stw_build_externals(stw_builder *b);
/** Resident bytes of a rank's process by itself on this cluster, without a launcher's.
 * @param key out: of the cluster, that says so, or "a default" */
uint64_t stw_build_process_base(const stw_job *job, const stw_cluster *cluster, const char **key);
/** Regions of the layout for which `which` is true, as allocs or frees. */
void stw_build_regions(stw_builder *b, bool alloc, bool (*which)(const stw_region *region));
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How engines write a program: append operations, begin and end movements, place transient bytes
 * above the layout's regions. The first failure is kept, and later calls do nothing, so that
 * engines need not check every append. */
#ifndef STW_PLAN_BUILDER_H
#define STW_PLAN_BUILDER_H

#include "plan/program/program.h"

typedef struct stw_extent {
    uint64_t offset, bytes;
    uint32_t alloc; /* the operation that allocates the bytes; STW_OP_NONE: no bytes */
    bool pageable;  /* see stw_builder */
} stw_extent;
/* An extent without bytes. */
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
    bool pageable;         /* host allocs and frees from now on are pageable */
    uint8_t pool;          /* of GPU allocs from now on: see stw_op */
    const char *from_what; /* reason of host allocs from now on (ledger.h); NULL: none */
    bool skipping;         /* the program leaves out this movement, except for allocs and frees */
    stw_extent
        *shard_grads; /* [model.n_blocks] gradients made on first use, live from backward to step */
    uint32_t shard_tensors; /* first tensor of: shard_grads by block, two more, and the model's
                               (tensors.h) */
    uint32_t step_tensors;  /* first of the tensors that live only during a step */
    uint8_t tensors_unless; /* micro batches, see stw_tensors_unless */
    struct stw_park *park;  /* state on the host between updates (engines/park.h); NULL: none */
    struct {
        stw_extent *live;
        size_t n, capacity;
        size_t packed;        /* the first `packed` ones leave no gap */
    } transient[STW_N_TIERS]; /* by offset, ascending */
} stw_builder;

void stw_builder_init(stw_builder *b, const stw_job *job, const stw_decisions *decisions,
                      const stw_layout *layout, stw_program *program, stw_error *err);
/** Close the list. Returns the first failure. */
STW_MUST_USE stw_status stw_builder_finish(stw_builder *b);

/** Begin a movement with the fields of `like`, except first_op and n_ops. */
void stw_begin_movement(stw_builder *b, stw_movement like);
void stw_end_movement(stw_builder *b);
/** Append an op. Returns its index, STW_OP_NONE after a failure. Drops `after` entries of the same
 * stream, since a stream runs in order. */
uint32_t stw_append(stw_builder *b, stw_op op);

/** Allocate or free bytes at a fixed offset (regions, rings) or outside the arena
 * (STW_OFFSET_EXTERNAL). */
void stw_alloc_at(stw_builder *b, stw_component component, stw_tier tier, uint64_t offset,
                  uint64_t bytes);
void stw_free_at(stw_builder *b, stw_component component, stw_tier tier, uint64_t offset,
                 uint64_t bytes);
/** Allocate transient bytes: first fit above the persistent bytes of the tier. Zero bytes do
 * nothing. Memory belongs to the compute stream: an operation of another stream that uses the bytes
 * waits for extent.alloc, and the free waits for the last such operation. So a time line has the
 * same live bytes as the walk. */
stw_extent stw_alloc(stw_builder *b, stw_component component, stw_tier tier, uint64_t bytes);
void stw_free(stw_builder *b, stw_component component, stw_tier tier, stw_extent extent);
/** Free after an operation of another stream has ended. */
void stw_free_after(stw_builder *b, stw_component component, stw_tier tier, stw_extent extent,
                    uint32_t after);

/** An address. */
typedef struct stw_place_at {
    stw_tier tier;
    uint64_t offset;
} stw_place_at;
/** A copy of a component's bytes, which waits for up to two operations. */
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
/** Append a copy, or a read from or a write to NVMe. Returns the op's index. */
uint32_t stw_copy(stw_builder *b, const stw_transport *copy);
/** Append a commit of the movement's writes to NVMe. Does nothing if no state lies there. */
void stw_build_commit(stw_builder *b);

/* ---- movements that engines share ---- */

/** Allocate the bytes outside the arenas that live for the whole run: CUDA context, NCCL, the
 * process. */
void stw_build_externals(stw_builder *b);
/** Returns the resident bytes of a rank's process on this cluster, without the launcher's.
 * @param key out, the cluster key that gives them, or "a default" */
uint64_t stw_build_process_base(const stw_job *job, const stw_cluster *cluster, const char **key);
/** Allocate or free the layout's regions for which `which` is true. */
void stw_build_regions(stw_builder *b, bool alloc, bool (*which)(const stw_region *region));
#endif

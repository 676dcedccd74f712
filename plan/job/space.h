/* SPDX-License-Identifier: Apache-2.0 */
/* Spaces, and the elements that two spaces share. A space is an ordered list of segments. It holds
 * the tensor elements that one rank has of one kind of state (its parameters, its gradients, its
 * optimizer state, a copy with another partition), or the elements of a file. The engine's
 * partition chooses these elements. A meet walks over the common elements of two spaces: files ->
 * params for a load, params -> rollout weights for a weight sync, optimizer -> params for the spans
 * of an update.
 *
 * A space lies in its maker's pool and is read-only once made; any thread. */
#ifndef STW_PLAN_JOB_SPACE_H
#define STW_PLAN_JOB_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pool.h"
#include "core/status.h"

/** Neighbouring elements of one tensor. */
typedef struct stw_segment {
    uint32_t tensor;
    uint64_t tensor_first; /* first element inside the tensor */
    uint64_t global_first; /* first element in the model's numbering: tensors end to end */
    uint64_t first;        /* first element inside the space */
    uint64_t n;            /* elements, > 0 */
} stw_segment;

typedef struct stw_space {
    stw_pool *pool;
    uint32_t n_segments;
    size_t capacity;
    stw_segment *segments; /* disjoint in the model's numbering; ascending unless spread */
    uint32_t *by_global;   /* [n_segments] segments in the model's order; NULL: `segments` has it */
    uint64_t n;            /* elements */
} stw_space;

/** Append elements [tensor_first, tensor_first + n) of a tensor at the end of a space.
 * @param tensor_global number of the tensor's first element in the model's numbering Does nothing
 * if `n` is 0. BUG if the segment does not come after the last one. */
STW_MUST_USE stw_status stw_space_add(stw_space *space, uint32_t tensor, uint64_t tensor_global,
                                      uint64_t tensor_first, uint64_t n, stw_error *err);

/** Reorder a space so that every range of it has about the same share of every part of the model.
 * The space is divided into stretches of `step` elements, sorted by the multiples of the golden
 * ratio (modulo 1). A shorter last stretch stays last. Does nothing to fewer than three stretches.
 * Nothing can be added afterwards. */
STW_MUST_USE stw_status stw_space_spread(stw_space *space, uint64_t step, stw_error *err);

/** Elements [first, first + n) of a space. Borrows the space. */
typedef struct stw_view {
    const stw_space *space;
    uint64_t first, n;
} stw_view;
static inline stw_view stw_space_whole(const stw_space *space) {
    return (stw_view){space, 0, space->n};
}

/** Returns the first segment with elements of the view; n_segments if there is none. */
uint32_t stw_view_first_segment(stw_view view);
/** Returns how many elements of a segment are in the view. */
uint64_t stw_view_count(stw_view view, uint32_t segment);

/** Elements that two views share and that are contiguous in both. */
typedef struct stw_overlap {
    uint32_t tensor;
    uint64_t tensor_first, global_first, n;
    uint64_t a_first, b_first; /* in the spaces of the two views, not in the views */
    uint32_t a_segment;        /* index in the first view's space */
} stw_overlap;

/** A walk over the overlaps of two views in the order of the first one. Its cost grows with the
 * segments of the first view and with the overlaps. */
typedef struct stw_meet {
    stw_view a, b;
    uint32_t i, j; /* next segment of a; next segment of b in the model's order */
} stw_meet;
stw_meet stw_meet_begin(stw_view a, stw_view b);
/** The next overlap; false at the end. */
bool stw_meet_next(stw_meet *meet, stw_overlap *out);
/** The next overlaps, merged while they are contiguous in both spaces, even across tensors. */
bool stw_meet_next_run(stw_meet *meet, stw_overlap *out);
/** Returns the number of elements that two views share. */
uint64_t stw_meet_count(stw_view a, stw_view b);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Spaces, and what two of them have in common. A space is an ordered list of segments: the elements
 * of tensors that one rank holds of one kind of state (its parameters, its gradients, its optimizer
 * state, a second copy that is cut otherwise), or that a file holds. The engine's partition says
 * which elements those are. A meet walks over what two spaces have in common: loading is files ->
 * params, a weight sync params -> rollout weights, spans of an update optimizer -> params.
 *
 * Spaces lie in the pool of whoever made them and are read-only afterwards; any thread. */
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
    uint32_t *by_global;   /* [n_segments] in the model's order; NULL: segments are */
    uint64_t n;            /* elements */
} stw_space;

/** Append elements [tensor_first, tensor_first + n) of a tensor at the end of a space.
 * @param tensor_global number of the tensor's first element in the model's numbering
 * Zero elements do nothing. BUG where the segment does not come after the last one. */
STW_MUST_USE stw_status stw_space_add(stw_space *space, uint32_t tensor, uint64_t tensor_global,
                                      uint64_t tensor_first, uint64_t n, stw_error *err);

/** Reorder a space so that every run of it has about its share of every part of the model: cut into
 * stretches of `step` elements, which come in the order of the golden ratio's multiples (modulo 1).
 * A shorter last stretch stays last. Does nothing to fewer than three stretches; nothing can be
 * added afterwards. */
STW_MUST_USE stw_status stw_space_spread(stw_space *space, uint64_t step, stw_error *err);

/** Elements [first, first + n) of a space. Borrows the space. */
typedef struct stw_view {
    const stw_space *space;
    uint64_t first, n;
} stw_view;
static inline stw_view stw_space_whole(const stw_space *space) {
    return (stw_view){space, 0, space->n};
}

/** The first segment of a view's space that has elements of the view; n_segments: none has. */
uint32_t stw_view_first_segment(stw_view view);
/** Elements of a segment of the view's space that the view has. */
uint64_t stw_view_count(stw_view view, uint32_t segment);

/** Elements that two views have in common and that are neighbours in both. */
typedef struct stw_overlap {
    uint32_t tensor;
    uint64_t tensor_first, global_first, n;
    uint64_t a_first, b_first; /* in the spaces of the two views, not in the views */
    uint32_t a_segment;        /* of the first view's space */
} stw_overlap;

/** A walk over the overlaps of two views in the order of the first one. Its cost grows with the
 * segments of the first view and with the overlaps. */
typedef struct stw_meet {
    stw_view a, b;
    uint32_t i, j; /* the segment of a, and of b in the model's order, that are looked at next */
} stw_meet;
stw_meet stw_meet_begin(stw_view a, stw_view b);
/** The next overlap; false at the end. */
bool stw_meet_next(stw_meet *meet, stw_overlap *out);
/** The next overlaps as one as long as they are neighbours in both spaces, whatever their tensors.
 */
bool stw_meet_next_run(stw_meet *meet, stw_overlap *out);
/** Elements that two views have in common. */
uint64_t stw_meet_count(stw_view a, stw_view b);

#endif

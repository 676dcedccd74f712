/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of tensors: ranges in up to four dimensions, and what they have in common. Pure functions;
 * any thread may call. Numbers are elements, of the tensor's own numbering in each dimension. */
#ifndef STW_PLAN_SYNC_BOX_H
#define STW_PLAN_SYNC_BOX_H

#include <stdbool.h>
#include <stdint.h>

#define STW_BOX_DIMS 4

/** Elements first[d] to first[d] + count[d] - 1 of each dimension. A tensor of fewer dimensions has
 * first 0 and count 1 in the others, which come last. */
typedef struct stw_box {
    uint64_t first[STW_BOX_DIMS], count[STW_BOX_DIMS];
} stw_box;

/** The most boxes that stw_box_subtract gives. */
#define STW_BOX_RESTS (2 * STW_BOX_DIMS)

/** Elements of the box, 0 if a count is 0. They must fit in 64 bits. */
uint64_t stw_box_volume(const stw_box *box);
/** What two boxes have in common. @return false, and `out` as it was, if that is nothing */
bool stw_box_meet(const stw_box *a, const stw_box *b, stw_box *out);
bool stw_box_equal(const stw_box *a, const stw_box *b);
/** Order by first elements, then by counts: less than 0, 0 or more than 0. */
int stw_box_compare(const stw_box *a, const stw_box *b);
/** Cut `part`, which lies inside `box`, out of it.
 * @param rests out, the rest: disjoint boxes
 * @return number of boxes */
unsigned stw_box_subtract(const stw_box *box, const stw_box *part, stw_box rests[STW_BOX_RESTS]);
/** Boxes that a run of elements in C order consists of, in that order.
 * @param shape of the tensor, [STW_BOX_DIMS]; the run lies inside @return how many */
#define STW_BOX_RUNS (2 * STW_BOX_DIMS - 1)
unsigned stw_box_of_run(const uint64_t *shape, uint64_t first, uint64_t count,
                        stw_box boxes[STW_BOX_RUNS]);

#endif

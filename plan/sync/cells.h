/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces of every tensor, cut into cells that are apart from each other: replicas are one cell
 * of several pieces, and pieces that meet in part are cut where they do. */
#ifndef STW_PLAN_SYNC_CELLS_H
#define STW_PLAN_SYNC_CELLS_H

#include "plan/sync/pieces.h"

typedef struct stw_sync_cell {
    stw_box box;
    uint32_t first_member, n_members; /* of stw_sync_cells.members: pieces, ascending by rank */
} stw_sync_cell;

typedef struct stw_sync_cells {
    uint32_t *first_cell; /* [n_tensors + 1] */
    stw_sync_cell *cells; /* of a tensor: ascending as stw_box_compare says */
    uint32_t *members;
    uint32_t n_cells, n_members;
} stw_sync_cells;

/** Cells of n pieces, those of a tensor in one go. Pieces without elements are in none. Time: that
 * of a sort of each tensor's pieces, unless pieces meet in part.
 * @param pool of the result */
STW_MUST_USE stw_status stw_sync_cells_make(stw_pool *pool, const stw_sync_piece *pieces,
                                            uint32_t n, uint32_t n_tensors, stw_sync_cells *out,
                                            stw_error *err);

/* ---- search ---- */

/** Disjoint boxes, ordered for finding the boxes that meet another one. */
typedef struct stw_sync_search {
    int dim;         /* along which they are ordered */
    uint32_t n;      /* boxes */
    uint32_t *order; /* [n]: by first element, then by number */
    uint64_t *end;   /* [n]: the largest end of those so far */
    size_t capacity;
} stw_sync_search;

/** Order cells. @param search zero at first; later calls use its memory again */
STW_MUST_USE stw_status stw_sync_search_make(stw_pool *pool, stw_sync_search *search,
                                             const stw_sync_cell *cells, uint32_t n,
                                             stw_error *err);
/** The first place in `order` from which on cells can meet `box`; go on while they begin before its
 * end. */
uint32_t stw_sync_search_first(const stw_sync_search *search, const stw_box *box);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What travels: lots, their grains, who sends each of them and who lacks it. */
#ifndef STW_PLAN_SYNC_LOTS_H
#define STW_PLAN_SYNC_LOTS_H

#include "plan/sync/cells.h"

typedef enum stw_sync_role {
    STW_SYNC_SENDS,
    STW_SYNC_RECEIVES,
    STW_SYNC_BUCKET, /* has targets without memory */
    STW_SYNC_N_ROLES
} stw_sync_role;

typedef struct stw_sync_lot {
    stw_box box;
    uint32_t tensor, cell; /* of targets */
    uint32_t first_grain, n_grains;
    uint32_t round; /* plan/sync/rounds.h fills it */
} stw_sync_lot;

/** Its box is the meet of its lot and its cell of sources. */
typedef struct stw_sync_grain {
    uint32_t cell;   /* of sources */
    uint32_t source; /* the piece that is sent; NONE: nobody lacks it */
    uint32_t set;    /* of ranks that lack it; NONE: nobody */
} stw_sync_grain;

/** Sets of ranks: set s is ranks[first[s]] to ranks[first[s + 1] - 1], ascending. */
typedef struct stw_sync_sets {
    uint32_t *first, *ranks;
    uint32_t n;
} stw_sync_sets;

typedef struct stw_sync_lots {
    stw_sync_cells sources, targets;
    stw_sync_lot *lots; /* in the order of tensors, then of elements */
    stw_sync_grain *grains;
    uint32_t n_lots, n_grains;
    stw_sync_sets sets;
    uint64_t *bytes[STW_SYNC_N_ROLES]; /* [world]: of buffers, of all lots, each grain aligned */
    uint64_t most; /* bytes of one lot in any buffer of a rank, each grain aligned */
} stw_sync_lots;

/** Bytes of a rank's targets without memory that a lot takes in its bucket.
 * @param members of the lot's cell, from the first one of the rank on; *next is the first of
 * another rank, or n */
uint64_t stw_sync_bucket_need(const stw_sync_job *job, const stw_sync_lot *lot,
                              const uint32_t *members, uint32_t n, uint32_t *next);
/** The box of a grain. */
stw_box stw_sync_grain_box(const stw_sync_lots *lots, const stw_sync_lot *lot,
                           const stw_sync_grain *grain);
/** Has a rank one of the pieces of a cell? @param member receives which */
bool stw_sync_cell_has(const stw_sync_cells *cells, const stw_sync_piece *pieces, uint32_t cell,
                       uint32_t rank, uint32_t *member);

/** Cut targets into lots and choose senders: the rank that has sent least so far.
 * @return BAD_INPUT with the tensor and the first element that no source has */
STW_MUST_USE stw_status stw_sync_lots_make(stw_pool *pool, const stw_sync_job *job,
                                           stw_sync_lots *out, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind stw_saved_t. Only library/checkpoint*.c include this. */
#ifndef STW_LIBRARY_SAVED_H
#define STW_LIBRARY_SAVED_H

#include "backend/checkpoint/save.h"
#include "backend/executor/bound.h"
#include "library/handles.h"
#include "plan/checkpoint/shares.h"

struct stw_saved_t {
    long pid; /* of the process that made it */
    stw_pool *pool;
    stw_model model;
    stw_dtype *dtypes; /* [n_tensors] of parameters */
    const bool *frozen;
    stw_saved_files *saved;
    stw_held *held;
    uint32_t n_held, rank, world;
    stw_shares shares;
    uint64_t bucket_bytes, copies_bytes;
    stw_save_source_t *sources; /* [n_held * STW_N_SAVED] of the last call; component NULL: none */
    /* of saves */
    stw_saver *saver; /* NULL before the first */
    bool saving, tidied;
    stw_pool *save_pool; /* of the save under way */
    stw_save_item *items;
    uint32_t n_items, n_now;
    size_t items_room;
};

/** Sort sources, or targets, by piece and kind. */
STW_MUST_USE stw_status stw_library_take_sources(stw_saved_t *saved,
                                                 const stw_save_source_t *sources, uint32_t n,
                                                 stw_error *err);
/** A box of a piece, whose elements count in C order of the piece. */
stw_saved_source stw_library_in_piece(const stw_saved_t *saved, uint32_t piece, stw_saved_kind kind,
                                      const stw_box *box);
/** Copy elements of a piece from an optimizer or by the caller's function, or with `write` to it.
 */
STW_MUST_USE stw_status stw_library_copy_elements(const stw_save_source_t *source, uint64_t first,
                                                  uint64_t n, bool write, void *memory,
                                                  stw_error *err);
static inline stw_component stw_library_component(const char *name) {
    stw_component component = STW_COMPONENT_PARAMS;
    (void)stw_component_parse(name, &component);
    return component;
}

#endif

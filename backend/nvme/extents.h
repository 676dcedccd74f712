/* SPDX-License-Identifier: Apache-2.0 */
/* A set of byte ranges: sorted, disjoint, neighbours joined. Not thread-safe. */
#ifndef STW_BACKEND_NVME_EXTENTS_H
#define STW_BACKEND_NVME_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/** Bytes [first, end). */
typedef struct stw_extent {
    uint64_t first, end;
} stw_extent;

/** All zero is the empty set; `list` is freed by its owner. */
typedef struct stw_extents {
    stw_extent *list;
    size_t n, room;
} stw_extents;

/** Add bytes [first, end). On failure (NO_MEMORY) the set is as it was. */
STW_MUST_USE stw_status stw_extents_add(stw_extents *set, uint64_t first, uint64_t end,
                                        stw_error *err);
/** The first range at or after `from` that is in `set` and not in `without`; false if none is. */
bool stw_extents_next(const stw_extents *set, const stw_extents *without, uint64_t from,
                      stw_extent *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The arenas of a device: where the offsets of each tier lead and how far they reach. Every backend
 * checks ranges, and memory that the caller owns, here. Pure functions, any thread. */
#ifndef STW_BACKEND_ARENA_H
#define STW_BACKEND_ARENA_H

#include "backend/backend.h"

#define STW_ARENA_ALIGN_BYTES 4096u /* of memory that the caller owns */

typedef struct stw_arenas {
    unsigned char *base[STW_N_TIERS]; /* of gpu and host; NULL for an empty arena, and for nvme */
    uint64_t reach[STW_N_TIERS];      /* bytes that offsets reach: of nvme one copy */
} stw_arenas;

/** What a configuration says: `reach` of all tiers, `base` of memory that the caller owns. An arena
 * above its capacity is NO_RESOURCES. Memory of the caller that is too small, not on a multiple of
 * STW_ARENA_ALIGN_BYTES, given for two arenas or meant for nvme is USAGE, and so is a stream for
 * what is no GPU stream. */
STW_MUST_USE stw_status stw_arenas_init(stw_arenas *arenas, const stw_device_config *config,
                                        stw_error *err);
/** Does the caller own the memory of this tier's arena? */
bool stw_arena_is_external(const stw_device_config *config, stw_tier tier);

/** BUG where bytes from a location on are not inside what offsets of the tier reach. */
STW_MUST_USE stw_status stw_arenas_check(const stw_arenas *arenas, stw_location at, uint64_t bytes,
                                         stw_error *err);
/** Address of a range of the gpu or host arena; NULL for an empty arena. BUG outside it and for
 * nvme. */
STW_MUST_USE stw_status stw_arenas_address(const stw_arenas *arenas, stw_location at,
                                           uint64_t bytes, unsigned char **out, stw_error *err);
/** Bytes of values; BUG for no type, for an offset that is not that of a value, or outside. */
STW_MUST_USE stw_status stw_arenas_check_values(const stw_arenas *arenas, stw_typed_range values,
                                                uint64_t *bytes, stw_error *err);
/** Address of values in the gpu or host arena; NULL for an empty arena. BUG as above and for nvme.
 */
STW_MUST_USE stw_status stw_arenas_values(const stw_arenas *arenas, stw_typed_range values,
                                          unsigned char **out, stw_error *err);
/** BUG where `bytes` from both locations on overlap. */
STW_MUST_USE stw_status stw_arenas_check_apart(stw_location to, uint64_t to_bytes,
                                               stw_location from, uint64_t from_bytes,
                                               stw_error *err);

#endif

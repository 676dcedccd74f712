/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/nvme/extents.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

/* The first range that ends at or after `at`; n if none does. */
static size_t find(const stw_extents *set, uint64_t at) {
    size_t low = 0, high = set->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->list[middle].end < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

stw_status stw_extents_add(stw_extents *set, uint64_t first, uint64_t end, stw_error *err) {
    if (first >= end) return STW_STATUS_OK;
    if (set->n == set->room) {
        size_t room = set->room > 0 ? 2 * set->room : 64;
        stw_extent *list = realloc(set->list, room * sizeof *list);
        if (list == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
        set->list = list;
        set->room = room;
    }
    size_t at = find(set, first), behind = at;
    while (behind < set->n && set->list[behind].first <= end) {
        first = stw_min_u64(first, set->list[behind].first);
        end = stw_max_u64(end, set->list[behind].end);
        behind++;
    }
    memmove(&set->list[at + 1], &set->list[behind], (set->n - behind) * sizeof *set->list);
    set->list[at] = (stw_extent){first, end};
    set->n = set->n - (behind - at) + 1;
    return STW_STATUS_OK;
}

bool stw_extents_next(const stw_extents *set, const stw_extents *without, uint64_t from,
                      stw_extent *out) {
    size_t i = find(set, from), j = find(without, from);
    while (i < set->n) {
        uint64_t first = stw_max_u64(from, set->list[i].first), end = set->list[i].end;
        while (j < without->n && without->list[j].end <= first) j++;
        if (j < without->n && without->list[j].first <= first) first = without->list[j].end;
        if (first >= end) {
            from = first;
            i++;
            continue;
        }
        while (j < without->n && without->list[j].end <= first) j++;
        if (j < without->n) end = stw_min_u64(end, without->list[j].first);
        *out = (stw_extent){first, end};
        return true;
    }
    return false;
}

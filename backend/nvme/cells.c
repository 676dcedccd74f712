/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/nvme/cells.h"

#include <stdlib.h>

#include "core/checked.h"

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorted, each once. @return how many are left */
static uint64_t tidy(uint64_t *list, uint64_t n) {
    uint64_t kept = 0;
    qsort(list, (size_t)n, sizeof *list, ascending);
    for (uint64_t i = 0; i < n; i++)
        if (kept == 0 || list[i] != list[kept - 1]) list[kept++] = list[i];
    return kept;
}

stw_status stw_nvme_cells_make(uint64_t bytes, const uint64_t *cuts, uint64_t n,
                               stw_nvme_cells *out, stw_error *err) {
    *out = (stw_nvme_cells){0};
    stw_nvme_cells c = {.cuts = calloc((size_t)n + 2, sizeof *c.cuts),
                        .before = calloc((size_t)n + 2, sizeof *c.before)};
    if (c.cuts == NULL || c.before == NULL) {
        stw_nvme_cells_free(&c);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
    }
    for (uint64_t i = 0; i < n; i++) {
        c.cuts[i] = cuts[i];
        if (cuts[i] <= bytes) continue;
        stw_nvme_cells_free(&c);
        return stw_fail(err, STW_STATUS_BUG, "nvme", "a cut at %llu of an arena of %llu bytes",
                        (unsigned long long)cuts[i], (unsigned long long)bytes);
    }
    c.cuts[n] = 0;
    c.cuts[n + 1] = bytes;
    c.n_cuts = tidy(c.cuts, n + 2) - 1;
    for (uint64_t i = 0; i < c.n_cuts; i++) {
        c.before[i] = c.n;
        c.n += stw_div_up_u64(c.cuts[i + 1] - c.cuts[i], STW_NVME_CELL_BYTES);
    }
    c.before[c.n_cuts] = c.n;
    *out = c;
    return STW_STATUS_OK;
}

void stw_nvme_cells_free(stw_nvme_cells *cells) {
    free(cells->cuts);
    free(cells->before);
    *cells = (stw_nvme_cells){0};
}

/* The last of n ascending values that is not above `value`; the first is not. */
static uint64_t find(const uint64_t *list, uint64_t n, uint64_t value) {
    uint64_t low = 0, high = n;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (list[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint64_t stw_nvme_cells_at(const stw_nvme_cells *cells, uint64_t offset) {
    uint64_t i = find(cells->cuts, cells->n_cuts, offset);
    return cells->before[i] + (offset - cells->cuts[i]) / STW_NVME_CELL_BYTES;
}

stw_nvme_cell stw_nvme_cells_get(const stw_nvme_cells *cells, uint64_t index) {
    uint64_t i = find(cells->before, cells->n_cuts, index);
    uint64_t first = cells->cuts[i] + (index - cells->before[i]) * STW_NVME_CELL_BYTES;
    return (stw_nvme_cell){first, stw_min_u64(first + STW_NVME_CELL_BYTES, cells->cuts[i + 1])};
}

uint64_t stw_nvme_cells_piece_end(const stw_nvme_cells *cells, uint64_t offset, uint64_t most) {
    uint64_t i = find(cells->cuts, cells->n_cuts, offset);
    return stw_min_u64(offset + most, cells->cuts[i + 1]);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/executor/run_parts.h"

#include <stdlib.h>

#include "core/checked.h"

stw_status stw_each_run(const stw_rank_run *run, stw_on_run fn, void *state, stw_error *err) {
    const uint64_t width = stw_element_bytes(run->types.params);
    stw_status status = STW_STATUS_OK;
    stw_overlap part;
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != STW_COMPONENT_PARAMS) continue;
        stw_meet meet = stw_meet_begin(stw_space_whole(&run->job->files),
                                       stw_region_view(region, &run->spaces[region->space]));
        while (stw_meet_next(&meet, &part))
            STW_TRY(fn(state, region, &part,
                       region->offset_bytes + stw_times(part.b_first - region->first_param, width),
                       err));
    }
out:
    return status;
}

typedef struct finding {
    stw_pool *pool;
    stw_cut_run cut;
    const void *cutter;
    stw_sync_piece *all;
    uint32_t n, memory;
    uint64_t offset; /* elements, of the run's first one in its tier */
    size_t capacity;
    stw_dtype dtype;
} finding;

static stw_status add_part(void *state, const stw_sync_piece *piece, stw_error *err) {
    finding *f = state;
    if (f->n == f->capacity) {
        f->all = stw_pool_regrow(f->pool, f->all, f->n, f->n + 1u, &f->capacity, sizeof *f->all);
        if (f->all == NULL)
            return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
    }
    stw_sync_piece *out = &f->all[f->n++];
    *out = *piece;
    out->offset += f->offset;
    out->memory = f->memory;
    out->dtype = f->dtype;
    return STW_STATUS_OK;
}

static stw_status cut_run(void *state, const stw_region *region, const stw_overlap *part,
                          uint64_t at, stw_error *err) {
    finding *f = state;
    f->memory = region->tier == STW_TIER_HOST ? 1 : 0;
    f->offset = at / stw_sync_width(f->dtype);
    return f->cut(f->cutter, part->tensor, part->tensor_first, part->n, add_part, f, err);
}

static int by_tensor(const void *a, const void *b) {
    const stw_sync_piece *x = a, *y = b;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

stw_status stw_find_parts(const stw_rank_run *run, uint32_t n_tensors, stw_cut_run cut,
                          const void *cutter, stw_pool *pool, stw_sync_places *out,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const bool wide = run->types.params == STW_ELEMENT_F32;
    finding f = {
        .pool = pool, .cut = cut, .cutter = cutter, .dtype = wide ? STW_DTYPE_F32 : STW_DTYPE_BF16};
    uint32_t *first = stw_pool_array(pool, (size_t)n_tensors + 1, sizeof *first);
    if (first == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory"));
    STW_TRY(stw_each_run(run, cut_run, &f, err));
    if (f.n > 0) qsort(f.all, f.n, sizeof *f.all, by_tensor);
    for (uint32_t i = 0; i < f.n; i++) first[f.all[i].tensor + 1]++;
    for (uint32_t t = 0; t < n_tensors; t++) first[t + 1] += first[t];
    out->first_part = first;
    out->parts = f.all;
out:
    return status;
}

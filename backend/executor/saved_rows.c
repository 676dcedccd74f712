/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/executor/saved_rows.h"

#include "core/checked.h"

/* Neighbours in a space, cut where regions end. */
static stw_status cut(const stw_rank_run *run, stw_component component, stw_located at,
                      stw_located_fn *fn, void *state, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint64_t left = at.n; left > 0; left -= at.n) {
        at.region = stw_layout_region(run->layout, component, at.param);
        if (at.region == NULL)
            return stw_fail(err, STW_STATUS_BUG, stw_component_name(component),
                            "element %llu lies in no region", (unsigned long long)at.param);
        at.n = stw_min_u64(left, at.region->first_param + at.region->params - at.param);
        STW_TRY(fn(state, &at, err));
        at.skip += at.n;
        at.param += at.n;
    }
out:
    return status;
}

stw_status stw_exec_locate(const stw_rank_run *run, const stw_saved_source *of,
                           const stw_saved_row *row, stw_located_fn *fn, void *state,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_component component = stw_saved_component(of->kind);
    const stw_space *space = &run->spaces[stw_component_space(component)];
    const uint64_t first = stw_job_tensor_first(run->job, of->tensor) + row->first;
    stw_meet meet =
        stw_meet_begin((stw_view){&run->job->files, first, row->n}, stw_space_whole(space));
    stw_overlap part;
    uint64_t found = 0;
    while (stw_meet_next(&meet, &part)) {
        const stw_located at = {
            .skip = part.global_first - first, .param = part.b_first, .n = part.n};
        STW_TRY(cut(run, component, at, fn, state, err));
        found += part.n;
    }
    if (found != row->n)
        status =
            stw_fail(err, STW_STATUS_BUG, run->job->model->tensors[of->tensor].name,
                     "this rank holds %llu of %llu elements of its %s", (unsigned long long)found,
                     (unsigned long long)row->n, stw_saved_name(of->kind));
out:
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the link does by itself, measured beside every step: copies both ways at once in several
 * shapes, on all ranks at the same time. The best shape's rate is the ceiling of a streamed step.
 */
#include "backend/executor/run.h"

#include <stdlib.h>

#include "core/checked.h"

#define MIB (1ull << 20)
#define MOST_BYTES (8ull << 30) /* each way; longer ones show the same */

static const stw_link_shape shapes[STW_N_LINK_SHAPES] = {
    {8 * MIB, 1},   {16 * MIB, 1}, {32 * MIB, 1}, {64 * MIB, 1},
    {128 * MIB, 1}, {16 * MIB, 2}, {32 * MIB, 2}, {64 * MIB, 2},
};

stw_status stw_run_measure_link(stw_rank_run *run, uint32_t step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t bytes = stw_max_u64(stw_run_step_bytes(run, true), stw_run_step_bytes(run, false));
    run->link_bytes = stw_min_u64(stw_round_up_u64(bytes, 128 * MIB), MOST_BYTES);
    if (run->backend->link_seconds == NULL || bytes == 0) goto out;
    for (uint32_t s = 0; s < STW_N_LINK_SHAPES; s++) {
        STW_TRY(stw_comm_barrier(run->comm, err));
        STW_TRY(run->backend->link_seconds(run->device, &shapes[s], run->link_bytes,
                                           &run->link_s[s * run->options->steps + step], err));
    }
out:
    return status;
}

static stw_status fill(const stw_rank_run *run, uint32_t shape, const double *seconds,
                       stw_run_result *result, stw_error *err) {
    uint32_t n = run->options->steps;
    stw_run_link *link = &result->links[shape];
    double *sorted = calloc(n, sizeof *sorted);
    link->all_bps = stw_pool_array(result->pool, n, sizeof(double));
    if (sorted == NULL || link->all_bps == NULL) {
        free(sorted);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory");
    }
    link->bytes = shapes[shape].bytes;
    link->streams = shapes[shape].streams;
    link->n_all = n;
    for (uint32_t i = 0; i < n; i++)
        link->all_bps[i] = sorted[i] = (double)run->link_bytes / seconds[i];
    link->bps = stw_run_median(sorted, n);
    free(sorted);
    return STW_STATUS_OK;
}

stw_status stw_run_collect_link(stw_rank_run *run, stw_run_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = run->options->steps;
    double best = 0, *slowest = calloc(n, sizeof *slowest);
    bool measured = run->options->ceiling && run->link_s[0] > 0;
    if (slowest == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory"));
    if (result != NULL && measured) {
        result->links = stw_pool_array(result->pool, STW_N_LINK_SHAPES, sizeof *result->links);
        if (result->links == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory"));
        result->n_links = STW_N_LINK_SHAPES;
    }
    for (uint32_t s = 0; measured && s < STW_N_LINK_SHAPES; s++) {
        STW_TRY(stw_run_slowest(run, run->link_s + s * n, n, slowest, err));
        if (result == NULL) continue;
        STW_TRY(fill(run, s, slowest, result, err));
        if (result->links[s].bps > best) best = result->links[s].bps;
    }
    if (result != NULL && measured)
        result->link_share = fmax(result->up_bps, result->down_bps) / best;
out:
    free(slowest);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/cost.h"

uint64_t stw_cost_known_gpu_bytes(const stw_cost *cost, const stw_live *live) {
    const uint64_t *gpu = live->bytes[STW_TIER_GPU];
    uint64_t bytes = gpu[STW_COMPONENT_CONTEXT] + gpu[STW_COMPONENT_COMM];
    for (int c = 0; c < STW_N_STATE; c++) bytes += gpu[c];
    return cost->job->world > 1 ? bytes + STW_COMM_SCRATCH_BYTES : bytes;
}

/* The ring is the one with the fewest buckets and the load the one with the fewest pieces, which
 * keeps the program short. */
stw_status stw_cost_reference(const stw_cost *cost, uint32_t place, stw_act act, stw_program **out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job *job = cost->job;
    stw_layout *layout = NULL;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) goto no_memory;
    const stw_cost_ring *ring = &cost->rings[cost->n_rings - 1];
    stw_decisions decisions = {.n_state = 1, .load = STW_LOAD_SHARDED_READ};
    decisions.state[0] = (stw_state_decision){cost->places[place], job->n_units};
    decisions.prefetch.by_group = cost->engine->prefetch_by_group;
    decisions.prefetch.depth = ring->depth;
    decisions.prefetch.bucket_bytes = ring->bucket_bytes;
    decisions.blocks = stw_pool_array(pool, job->model->n_groups, sizeof *decisions.blocks);
    if (decisions.blocks == NULL) goto no_memory;
    for (uint32_t g = 0; g < job->model->n_groups; g++)
        if (job->model->groups[g].facts.transformer)
            decisions.blocks[decisions.n_blocks++] =
                (stw_block_decision){g, act, job->model->groups[g].count};
    STW_TRY(stw_layout_new(job, &decisions, job->largest, &layout, err));
    STW_TRY(stw_program_new(job, &decisions, layout, out, err));
out:
    stw_layout_free(layout);
    stw_pool_free(pool);
    return status;
no_memory:
    status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for a reference program");
    goto out;
}

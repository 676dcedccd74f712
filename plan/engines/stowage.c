/* SPDX-License-Identifier: Apache-2.0 */
/* The stowage engine: fsdp2's partition, forward and backward; load and optimizer step by Stowage.
 * All state is in place from load on. A step streams buckets through rings of slots, updates
 * resident ones in place, reaches into page-locked memory from the GPU where that is asked for, and
 * lets the CPU update its share, all at once. */
#include "plan/engines/built_in.h"
#include "plan/engines/movements.h"
#include "plan/engines/partition.h"

/* ---- placements ---- */

static bool allowed(uint32_t wish, stw_tier tier) {
    return wish == STW_AUTO || wish == (uint32_t)tier;
}

static bool place_allowed(const stw_job *job, const stw_place *p) {
    const stw_run_spec *run = job->run;
    stw_optimizer_implementation how = run->optimizer.implementation;
    if (!allowed(run->placement.params, p->params) || !allowed(run->placement.grads, p->grads) ||
        !allowed(run->placement.moments, p->moments))
        return false;
    if (run->precision.has_master && !allowed(run->placement.master, p->moments)) return false;
    if (p->moments == STW_TIER_NVME && job->cluster->nvme.capacity_bytes == 0) return false;
    if (stw_run_spec_update_share(run, p->update) <= 0) return false;
    if (how == STW_OPTIMIZER_STREAMED) return p->update == STW_UPDATE_STREAM;
    if (how == STW_OPTIMIZER_CPU) return p->update == STW_UPDATE_CPU;
    if (how == STW_OPTIMIZER_DIRECT)
        return p->update == STW_UPDATE_DIRECT || p->update == STW_UPDATE_RESIDENT;
    if (how == STW_OPTIMIZER_FUSED) return p->update != STW_UPDATE_CPU;
    return true;
}

/* In canonical order. Gradients on the host with parameters on the GPU (or the reverse) cost the
 * link more than they free and are left out, as are CPU updates of state on NVMe. */
static const stw_place stowage_places[] = {
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_GPU, STW_UPDATE_RESIDENT},
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_STREAM},
    {STW_TIER_GPU, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_STREAM},
    {STW_TIER_HOST, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_STREAM},
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_DIRECT},
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_CPU},
    {STW_TIER_GPU, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_CPU},
    {STW_TIER_HOST, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_CPU},
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_NVME, STW_UPDATE_STREAM},
    {STW_TIER_GPU, STW_TIER_HOST, STW_TIER_NVME, STW_UPDATE_STREAM},
    {STW_TIER_HOST, STW_TIER_HOST, STW_TIER_NVME, STW_UPDATE_STREAM},
};

/* Every quantum needs an engine that has a place: those of fixed shares their own, the rest any
 * whose share is free. */
static bool shares_have_places(const stw_job *job, const stw_place *places, uint32_t n,
                               stw_error *err) {
    uint32_t fixed = 0;
    bool any_free = false;
    for (int u = 0; u < STW_N_UPDATES; u++) {
        uint32_t units = stw_job_update_units(job, (stw_update)u);
        bool has_place = false;
        for (uint32_t i = 0; i < n; i++) has_place = has_place || places[i].update == (stw_update)u;
        if (units == STW_AUTO) {
            any_free = any_free || has_place;
            continue;
        }
        fixed += units;
        if (units == 0 || has_place) continue;
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "update",
                       "update.%s has %u of %u quanta, and no place that placement, "
                       "optimizer.implementation and the cluster's tiers leave it",
                       stw_update_name((stw_update)u), units, job->n_units);
        return false;
    }
    if (fixed == job->n_units || (fixed < job->n_units && any_free)) return true;
    (void)stw_fail(
        err, STW_STATUS_BAD_INPUT, "update",
        "the fixed shares cover %u of %u quanta, and engines whose share is auto have no "
        "place for what is left",
        fixed, job->n_units);
    return false;
}

static uint32_t places(const stw_job *job, stw_place *out, stw_error *err) {
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof stowage_places / sizeof stowage_places[0]; i++)
        if (place_allowed(job, &stowage_places[i])) out[n++] = stowage_places[i];
    if (n == 0)
        (void)stw_fail(
            err, STW_STATUS_BAD_INPUT, "placement",
            "no way to update parameters fits placement, optimizer.implementation, the shares in "
            "update and the cluster's tiers together; leave one of them auto");
    return n > 0 && shares_have_places(job, out, n, err) ? n : 0;
}

/* What CUDA keeps on the GPU for the host arena, and further copies of state on NVMe. */
static void build_shadows(stw_builder *b) {
    const stw_layout *layout = b->layout;
    stw_alloc_at(b, STW_COMPONENT_CONTEXT, STW_TIER_GPU, STW_OFFSET_EXTERNAL,
                 stw_page_table_bytes(b->job, layout));
    for (uint64_t copy = 1; copy < stw_nvme_copies(b->job); copy++)
        for (uint32_t i = 0; i < layout->n_regions; i++) {
            const stw_region *r = &layout->regions[i];
            if (r->tier == STW_TIER_NVME)
                stw_alloc_at(b, r->component, r->tier,
                             copy * layout->persistent_bytes[STW_TIER_NVME] + r->offset_bytes,
                             r->bytes);
        }
}

static bool every_region(const stw_region *region) {
    (void)region;
    return true;
}

static stw_status build(const stw_job *job, const stw_decisions *decisions,
                        const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_builder b;
    stw_builder_init(&b, job, decisions, layout, program, err);
    bool executable = decisions->load != STW_LOAD_NODE_LEADER || job->cluster->nodes == 1;
    stw_begin_movement(&b, (stw_movement){.phase = STW_PHASE_LOAD,
                                          .by_stowage = true,
                                          .executable = executable,
                                          .repeat = STW_REPEAT_ONCE,
                                          .threading = STW_THREADING_PER_STREAM,
                                          .barrier = true,
                                          .transfer = stw_load_transfer(&b)});
    stw_build_externals(&b);
    stw_build_regions(&b, true, every_region);
    build_shadows(&b);
    if (job->world > 1)
        stw_alloc_at(&b, STW_COMPONENT_STAGE, STW_TIER_GPU, layout->comm_offset_bytes,
                     STW_COMM_SCRATCH_BYTES);
    stw_build_load(&b);
    stw_build_commit(&b);
    stw_end_movement(&b);
    if (job->model->facts_known) stw_build_forward_backward(&b, false);
    stw_build_step(&b, STW_PHASE_FIRST_OPTIMIZER_STEP, STW_REPEAT_FIRST);
    stw_build_step(&b, STW_PHASE_OPTIMIZER_STEP, STW_REPEAT_LATER);
    return stw_builder_finish(&b);
}

static const char *const keys[] = {"fsdp.", "update.", "optimizer.groups", "placement.nvme_copies",
                                   NULL};

const stw_engine stw_engine_stowage = {
    .spec = {.name = "stowage",
             .keys = keys,
             .trains_as = "fsdp2",
             .updates = (1u << STW_N_UPDATES) - 1,
             .executes = true},
    .one_cut = true,
    .representative = stw_chunks_representative,
    .cut = stw_chunks_cut,
    .counts = stw_chunks_count,
    .places = places,
    .nvme_commits = true,
    .build = build,
    .window_bytes = stw_step_window_bytes,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* The stowage engine: fsdp2's partition, forward and backward; load and optimizer step by Stowage.
 * All state is in place from load on. A step streams buckets through rings of slots, updates
 * resident ones in place, reaches into page-locked memory from the GPU where that is asked for, and
 * lets the CPU update its share, all at once. */
#include "core/checked.h"
#include "engines/bucket_places.h"
#include "engines/built_in.h"
#include "engines/bytes.h"
#include "engines/layouts.h"
#include "engines/movements.h"
#include "engines/own_save.h"
#include "engines/park.h"
#include "engines/partition.h"
#include "engines/piece_sync.h"
#include "engines/sync_plan.h"

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
                             stw_plus(stw_times(copy, layout->persistent_bytes[STW_TIER_NVME]),
                                      r->offset_bytes),
                             r->bytes);
        }
}

static bool every_region(const stw_region *region) {
    (void)region;
    return true;
}

static bool is_params(const stw_region *r) { return r->component == STW_COMPONENT_PARAMS; }
static bool is_grads(const stw_region *r) { return r->component == STW_COMPONENT_GRADS; }
static bool is_moment(const stw_region *r) {
    return (STW_PARKED_MOMENTS & 1u << r->component) != 0;
}

/* Copies have the size of what they are of: they are parts of memory that is page-locked once. */
static void look_at_parking(stw_builder *b, stw_park *park) {
    const stw_run_spec *run = b->job->run;
    if (run->park.params) stw_park_add_regions(b, park, STW_PARKING_KEPT, is_params);
    if (run->park.grads) stw_park_add_regions(b, park, STW_PARKING_DROPPED, is_grads);
    if (run->park.moments) stw_park_add_regions(b, park, STW_PARKING_KEPT, is_moment);
    for (uint32_t i = 0; i < park->n; i++) park->parcels[i].rounding_bytes = 0;
    b->park = park;
}

static stw_status build(const stw_job *job, const stw_decisions *decisions,
                        const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_builder b;
    stw_park park = {.n = 0};
    stw_builder_init(&b, job, decisions, layout, program, err);
    look_at_parking(&b, &park);
    stw_begin_movement(&b, (stw_movement){.phase = STW_PHASE_LOAD,
                                          .by_stowage = true,
                                          .executable = stw_run_spec_parks(job->run) == NULL,
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
    stw_build_own_staging(&b);
    stw_build_load(&b);
    stw_build_commit(&b);
    stw_park_leave(&b, &park, STW_PARKED_PARAMS | STW_PARKED_GRADS | STW_PARKED_MOMENTS,
                   STW_OP_NONE);
    stw_end_movement(&b);
    if (job->model->facts_known) stw_build_forward_backward(&b, false);
    stw_build_step(&b, STW_PHASE_FIRST_OPTIMIZER_STEP, STW_REPEAT_FIRST);
    stw_build_step(&b, STW_PHASE_OPTIMIZER_STEP, STW_REPEAT_LATER);
    stw_build_piece_sync(&b);
    stw_build_own_save(&b);
    return stw_builder_finish(&b);
}

static const char *const keys[] = {"fsdp.reshard_after_forward",
                                   "fsdp.wrap_embeddings",
                                   "loss.checkpoint",
                                   "update.resident",
                                   "update.stream",
                                   "update.direct",
                                   "update.cpu",
                                   "optimizer.groups",
                                   "optimizer.clip_norm",
                                   "placement.nvme_copies",
                                   "prefetch.bucket",
                                   "park.params",
                                   "park.grads",
                                   "park.moments",
                                   "park.moments_back",
                                   "checkpoint.",
                                   NULL};
static const stw_engine_refusal refuses[] = {{"recompute.granularity", "selective"},
                                             {"optimizer.implementation", "foreach"},
                                             {"optimizer.implementation", "loop"},
                                             {"optimizer.implementation", "stowage"},
                                             {"placement.params", "nvme"},
                                             {"placement.grads", "nvme"},
                                             {"load.method", "all_ranks_gpu"},
                                             {"checkpoint.format", "hf"},
                                             {"checkpoint.format", "dcp"},
                                             {"checkpoint.format", "torch_dist"},
                                             {NULL, NULL}};
static const stw_engine_fix fixes[] = {
    {"fsdp.reshard_after_forward", "true", "frees gathered params after forward", NULL},
    {NULL, NULL, NULL, NULL}};

const stw_engine stw_engine_stowage = {
    .spec = {.name = "stowage",
             .keys = keys,
             .refuses = refuses,
             .trains_as = "fsdp2",
             .updates = (1u << STW_N_UPDATES) - 1,
             .own_process = true,
             .own_step = true,
             .check = stw_stowage_check_shares},
    .fixes = fixes,
    .layouts = &stw_layouts_of_chunks,
    .batch_bytes = stw_batch_bytes,
    .one_cut = true,
    .spread = true,
    .representative = stw_chunks_representative,
    .parts = stw_chunks_parts,
    .cut = stw_chunks_cut,
    .counts = stw_chunks_count,
    .places = stw_stowage_places,
    .nvme_commits = true,
    .sync_room = stw_sync_gpu_room,
    .build = build,
};

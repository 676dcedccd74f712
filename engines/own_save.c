/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/own_save.h"

#include "core/checked.h"
#include "engines/checkpoint.h"
#include "engines/save_plan.h"
#include "plan/checkpoint/buckets.h"
#include "plan/spec/registry.h"

/* ---- what stays ---- */

static uint32_t buckets_of(const stw_builder *b) {
    return stw_save_buckets(STW_SAVE_BUCKET_BYTES, stw_run_spec_copies(b->job->run));
}

/* NULL where the builder has failed. */
static const stw_save_plan *plan_of(stw_builder *b) {
    const stw_save_plan *plan = NULL;
    if (b->status == STW_STATUS_OK) b->status = stw_save_plan_of(b->job, &plan, b->err);
    return plan;
}

void stw_build_own_staging(stw_builder *b) {
    if (!stw_run_spec_saves_own(b->job->run)) return;
    b->from_what = "checkpoint: buckets through which state leaves, and checkpoint.copies";
    stw_alloc_at(b, STW_COMPONENT_CHECKPOINT_STAGING, STW_TIER_HOST, STW_OFFSET_EXTERNAL,
                 stw_times(buckets_of(b), STW_SAVE_BUCKET_BYTES));
    b->from_what = NULL;
    if (!stw_counts_checkpoint_files(b->job)) return;
    const stw_save_plan *plan = plan_of(b);
    if (plan != NULL) stw_build_kept_files(b, plan->kinds[b->layout->kind].bytes);
}

/* ---- the movement ---- */

/* Buckets on the host, filled in turn: one is free again when it is written. */
typedef struct filling {
    stw_builder *b;
    const stw_save_kind *kind;
    uint32_t n;
    uint32_t *written; /* [n] the last write of each */
    uint32_t bucket;   /* that is filled */
    uint64_t used;
    uint32_t last; /* copy, which the next one comes after */
} filling;

/* Where a region lies now. */
static stw_tier tier_of(const stw_builder *b, stw_component component, stw_tier tier) {
    return tier == STW_TIER_GPU && stw_is_parked(b->park, component) ? STW_TIER_HOST : tier;
}

static bool saves(const filling *f, stw_saved_kind state) { return f->kind->written[state] > 0; }

/* Host memory is copied by the same thread that reads the other tiers. */
static uint32_t copy(filling *f, stw_component component, uint32_t unit, stw_place_at from,
                     uint64_t bytes) {
    if (from.tier == STW_TIER_HOST) {
        stw_op op = stw_op_make(STW_OP_PASS, STW_STREAM_CPU, unit);
        op.component = component;
        op.from = op.to = STW_TIER_HOST;
        op.bytes = stw_times(2, bytes);
        op.pageable = true;
        op.after[0] = f->written[f->bucket];
        op.after[1] = f->last;
        return stw_append(f->b, op);
    }
    return stw_copy(f->b, &(stw_transport){.kind = STW_OP_COPY,
                                           .stream = from.tier == STW_TIER_GPU ? STW_STREAM_D2H
                                                                               : STW_STREAM_DISK,
                                           .component = component,
                                           .unit = unit,
                                           .from = from,
                                           .to = {STW_TIER_HOST, STW_OFFSET_EXTERNAL},
                                           .bytes = bytes,
                                           .after = {f->written[f->bucket], f->last}});
}

static void next_bucket(filling *f, uint32_t written) {
    f->written[f->bucket] = written;
    f->bucket = (f->bucket + 1) % f->n;
    f->used = 0;
}

/* Bytes of a region, from an offset on, into the buckets and to the files. @return the last write
 */
static uint32_t pass_on(filling *f, stw_component component, uint32_t unit, stw_place_at from,
                        uint64_t bytes) {
    uint32_t written = STW_OP_NONE;
    while (bytes > 0 && f->b->status == STW_STATUS_OK) {
        const uint64_t n = stw_min_u64(bytes, STW_SAVE_BUCKET_BYTES - f->used);
        f->last = copy(f, component, unit, from, n);
        written = stw_build_file_write(f->b, component, unit, n, STW_OP_RANKS_EACH, f->last);
        f->used += n;
        from.offset += n;
        bytes -= n;
        if (f->used == STW_SAVE_BUCKET_BYTES) next_bucket(f, written);
    }
    return written;
}

/* Whole regions: those on the GPU, or those elsewhere that no bucket of the layout cuts. */
static uint32_t save_regions(filling *f, bool on_gpu) {
    const stw_layout *layout = f->b->layout;
    uint32_t written = STW_OP_NONE;
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        for (uint32_t s = 0; s < STW_N_SAVED; s++) {
            const stw_saved_kind state = (stw_saved_kind)s;
            const stw_tier tier = tier_of(f->b, r->component, r->tier);
            if (r->component != stw_saved_component(state) || !saves(f, state) ||
                (tier == STW_TIER_GPU) != on_gpu ||
                (!on_gpu && stw_layout_in_buckets(f->b->job, layout, r)))
                continue;
            written = pass_on(f, r->component, STW_OP_NONE, (stw_place_at){tier, r->offset_bytes},
                              stw_times(stw_save_written(f->kind, state, r->first_param, r->params),
                                        stw_job_element_bytes(f->b->job, r->component)));
        }
    }
    return written;
}

static void save_bucket(filling *f, uint32_t index) {
    const stw_job *job = f->b->job;
    const stw_bucket *bucket = &f->b->layout->buckets[index];
    const stw_place *place = &f->b->decisions->state[bucket->decision].place;
    for (uint32_t s = 0; s < STW_N_SAVED; s++) {
        const stw_saved_kind state = (stw_saved_kind)s;
        const stw_component component = stw_saved_component(state);
        if (!saves(f, state)) continue;
        const stw_region *r = stw_layout_region(f->b->layout, component, bucket->first_param);
        const stw_tier tier = tier_of(f->b, component, stw_place_tier(place, component));
        if (tier == STW_TIER_GPU || r == NULL || !stw_layout_in_buckets(job, f->b->layout, r))
            continue;
        const uint64_t offset =
            stw_layout_address(job, f->b->layout, component, bucket->first_param);
        (void)pass_on(
            f, component, index, (stw_place_at){tier, offset},
            stw_times(stw_save_written(f->kind, state, bucket->first_param, bucket->params),
                      stw_job_element_bytes(job, component)));
    }
}

static void save_all(filling *f, const stw_save_plan *plan) {
    const stw_layout *layout = f->b->layout;
    const uint32_t written = save_regions(f, true);
    if (f->used > 0) next_bucket(f, written); /* the run goes on */
    (void)save_regions(f, false);
    for (uint32_t i = 0; i < layout->n_buckets; i++) save_bucket(f, layout->order[i]);
    if (f->b->job->kinds[layout->kind].first)
        (void)stw_build_file_write(f->b, STW_COMPONENT_PARAMS, STW_OP_NONE, plan->header_bytes,
                                   STW_OP_RANKS_ONE, STW_OP_NONE);
}

void stw_build_own_save(stw_builder *b) {
    if (!stw_run_spec_saves_own(b->job->run)) return;
    const uint32_t kind = b->layout->kind;
    const stw_save_plan *plan = NULL;
    filling f = {.b = b, .n = buckets_of(b), .last = STW_OP_NONE};
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_CHECKPOINT,
                                         .by_stowage = true,
                                         .repeat = STW_REPEAT_AT_CHECKPOINTS,
                                         .behind = true});
    if (!b->skipping || stw_counts_checkpoint_files(b->job)) plan = plan_of(b);
    if (plan != NULL) {
        f.kind = &plan->kinds[kind];
        f.written = stw_pool_array(b->program->pool, f.n, sizeof *f.written);
        if (f.written == NULL)
            b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
        for (uint32_t i = 0; f.written != NULL && i < f.n; i++) f.written[i] = STW_OP_NONE;
        if (b->job->kinds[kind].first)
            b->program->movements[b->program->n_movements - 1].files = plan->n_files;
        stw_build_new_files(b, f.kind->bytes, true);
        if (!b->skipping && b->status == STW_STATUS_OK) save_all(&f, plan);
        stw_build_new_files(b, f.kind->bytes, false);
    }
    stw_end_movement(b);
}

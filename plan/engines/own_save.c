/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/own_save.h"

#include "core/checked.h"
#include "plan/engines/checkpoint.h"
#include "plan/spec/registry.h"

static const stw_component saved[] = {STW_COMPONENT_PARAMS, STW_COMPONENT_MASTER,
                                      STW_COMPONENT_EXP_AVG, STW_COMPONENT_EXP_AVG_SQ};
enum { N_SAVED = 4 };

/* Does the run save a component, and has it such state? */
static bool saves(const stw_job *job, stw_component component) {
    const bool wanted = component == STW_COMPONENT_PARAMS ? job->run->checkpoint.model
                                                          : job->run->checkpoint.optimizer;
    return wanted && stw_job_element_bytes(job, component) > 0;
}

/* What one of the ranks with the same bytes writes of them. */
static uint64_t share(const stw_job *job, uint64_t bytes) {
    return stw_div_up_u64(bytes, stw_max_u64(stw_job_replicas(job), 1));
}

static uint64_t rank_bytes(const stw_builder *b) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < b->layout->n_regions; i++) {
        const stw_region *r = &b->layout->regions[i];
        for (int c = 0; c < N_SAVED; c++)
            if (r->component == saved[c] && saves(b->job, saved[c]))
                bytes = stw_plus(bytes, share(b->job, r->bytes));
    }
    return bytes;
}

stw_save_buckets stw_own_save_buckets(const stw_builder *b) {
    const uint64_t bytes = stw_min_u64(rank_bytes(b), STW_OWN_SAVE_BUCKET_BYTES);
    const uint64_t copies = b->job->run->checkpoint.copies_bytes; /* auto: not decided yet */
    const uint64_t more =
        copies == STW_AUTO_BYTES ? 0 : stw_div_up_u64(copies, STW_OWN_SAVE_BUCKET_BYTES);
    return (stw_save_buckets){STW_OWN_SAVE_BUCKETS + (uint32_t)more,
                              stw_times(stw_div_up_u64(bytes, STW_ALIGN_BYTES), STW_ALIGN_BYTES)};
}

uint32_t stw_own_save_files(const stw_job *job) {
    uint32_t files = 0;
    uint64_t open = UINT64_MAX; /* bytes of the last file; none is open */
    for (int c = 0; c < N_SAVED; c++) {
        if (saved[c] == STW_COMPONENT_MASTER) open = UINT64_MAX; /* the model's files end */
        for (uint32_t t = 0; t < job->model->n_tensors && saves(job, saved[c]); t++) {
            const uint64_t bytes =
                stw_times(job->model->tensors[t].numel, stw_job_element_bytes(job, saved[c]));
            if (saved[c] != STW_COMPONENT_PARAMS && !stw_job_trains(job, t)) continue;
            if (stw_plus(open, bytes) > STW_OWN_SAVE_FILE_BYTES) {
                files++;
                open = 0;
            }
            open = stw_plus(open, bytes);
        }
    }
    return files;
}

void stw_build_own_staging(stw_builder *b) {
    if (!stw_run_spec_saves_own(b->job->run)) return;
    const stw_save_buckets buckets = stw_own_save_buckets(b);
    b->from_what = "checkpoint: buckets through which state leaves, and checkpoint.copies";
    stw_alloc_at(b, STW_COMPONENT_CHECKPOINT_STAGING, STW_TIER_HOST, STW_OFFSET_EXTERNAL,
                 stw_times(buckets.n, buckets.bytes));
    b->from_what = NULL;
    stw_build_kept_files(b, rank_bytes(b));
}

/* ---- the movement ---- */

/* Buckets on the host, taken in turn: a bucket is free again when it is written. */
typedef struct ring {
    stw_builder *b;
    stw_save_buckets buckets;
    uint32_t *written; /* [buckets.n] */
    uint32_t next;
} ring;

/* Bytes of a region, from an offset on, through buckets. */
static void through_buckets(ring *r, stw_component component, uint32_t unit, stw_place_at from,
                            uint64_t bytes) {
    while (bytes > 0 && r->b->status == STW_STATUS_OK) {
        const uint64_t n = stw_min_u64(bytes, r->buckets.bytes);
        uint32_t *written = &r->written[r->next++ % r->buckets.n];
        const uint32_t there =
            stw_copy(r->b, &(stw_transport){.kind = STW_OP_COPY,
                                            .stream = from.tier == STW_TIER_GPU ? STW_STREAM_D2H
                                                                                : STW_STREAM_DISK,
                                            .component = component,
                                            .unit = unit,
                                            .from = from,
                                            .to = {STW_TIER_HOST, STW_OFFSET_EXTERNAL},
                                            .bytes = n,
                                            .after = {*written, STW_OP_NONE}});
        *written = stw_build_file_write(r->b, component, unit, n, STW_OP_RANKS_EACH, there);
        from.offset += n;
        bytes -= n;
    }
}

/* Where a region lies now. */
static stw_tier tier_of(const stw_builder *b, stw_component component, stw_tier tier) {
    return tier == STW_TIER_GPU && stw_is_parked(b->park, component) ? STW_TIER_HOST : tier;
}

static void save_gpu(ring *r) {
    const stw_layout *layout = r->b->layout;
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *region = &layout->regions[i];
        for (int c = 0; c < N_SAVED; c++)
            if (region->component == saved[c] && saves(r->b->job, saved[c]) &&
                tier_of(r->b, saved[c], region->tier) == STW_TIER_GPU)
                through_buckets(r, saved[c], STW_OP_NONE,
                                (stw_place_at){STW_TIER_GPU, region->offset_bytes},
                                share(r->b->job, region->bytes));
    }
}

static void save_bucket(ring *r, uint32_t index) {
    const stw_job *job = r->b->job;
    const stw_bucket *bucket = &r->b->layout->buckets[index];
    const stw_place *place = &r->b->decisions->state[bucket->decision].place;
    for (int c = 0; c < N_SAVED; c++) {
        const stw_tier home = stw_place_tier(place, saved[c]);
        const stw_tier tier = tier_of(r->b, saved[c], home);
        if (tier == STW_TIER_GPU || !saves(job, saved[c])) continue;
        const uint64_t bytes =
            share(job, stw_times(bucket->params, stw_job_element_bytes(job, saved[c])));
        if (tier == STW_TIER_HOST) {
            (void)stw_build_file_write(r->b, saved[c], index, bytes, STW_OP_RANKS_EACH,
                                       STW_OP_NONE);
            continue;
        }
        const uint64_t offset =
            stw_layout_address(job, r->b->layout, saved[c], bucket->first_param);
        through_buckets(r, saved[c], index, (stw_place_at){tier, offset}, bytes);
    }
}

void stw_build_own_save(stw_builder *b) {
    if (!stw_run_spec_saves_own(b->job->run)) return;
    const bool first = b->job->kinds[b->layout->kind].first;
    ring r = {.b = b, .buckets = stw_own_save_buckets(b)};
    r.written = stw_pool_array(b->program->pool, r.buckets.n, sizeof *r.written);
    if (r.written == NULL) {
        if (b->status == STW_STATUS_OK)
            b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
        return;
    }
    for (uint32_t i = 0; i < r.buckets.n; i++) r.written[i] = STW_OP_NONE;
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_CHECKPOINT,
                                         .by_stowage = true,
                                         .repeat = STW_REPEAT_AT_CHECKPOINTS,
                                         .behind = true,
                                         .files = first ? stw_own_save_files(b->job) : 0});
    const uint64_t bytes = rank_bytes(b);
    stw_build_new_files(b, bytes, true);
    if (!b->skipping) save_gpu(&r);
    for (uint32_t i = 0; i < b->layout->n_buckets && !b->skipping; i++)
        save_bucket(&r, b->layout->order[i]);
    stw_build_new_files(b, bytes, false);
    stw_end_movement(b);
}

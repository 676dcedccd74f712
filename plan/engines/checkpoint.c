/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/checkpoint.h"

#include "core/checked.h"
#include "plan/engines/gather.h"

/* Pieces in which copies and writes follow each other. */
enum { PIECES = 8 };

void stw_save_add(stw_save *save, stw_component component, stw_tier tier, uint64_t bytes) {
    if (bytes > 0 && save->n < STW_MOST_SAVED)
        save->parts[save->n++] = (stw_saved){component, tier, bytes};
}

static bool stays(const stw_job *job, const stw_save *save) {
    return !save->pageable || (job->run->checkpoint.async && !save->gathers);
}

static void staging(stw_builder *b, const stw_save *save, bool alloc) {
    void (*const change)(stw_builder *, stw_component, stw_tier, uint64_t, uint64_t) =
        alloc ? stw_alloc_at : stw_free_at;
    b->from_what = save->gathers ? "checkpoint.format hf: the whole model on rank 0"
                   : save->pageable
                       ? "checkpoint.async: a copy of all that is saved"
                       : "checkpoint: all that is saved, page-locked, whose blocks stay";
    b->pageable = save->pageable;
    change(b, STW_COMPONENT_CHECKPOINT_STAGING, STW_TIER_HOST, STW_OFFSET_EXTERNAL,
           save->staged_bytes);
    b->pageable = false;
    change(b, STW_COMPONENT_PAGE_LOCK_ROUNDING, STW_TIER_HOST, STW_OFFSET_EXTERNAL,
           save->rounding_bytes);
    b->from_what = NULL;
}

/* What an optimizer hands out of its state. */
static void copied(stw_builder *b, const stw_save *save, bool alloc) {
    b->from_what = "checkpoint: copies of the optimizer's state in its state dict";
    b->pageable = true;
    (alloc ? stw_alloc_at : stw_free_at)(b, STW_COMPONENT_CHECKPOINT_STAGING, STW_TIER_HOST,
                                         STW_OFFSET_EXTERNAL, save->copied_bytes);
    b->pageable = false;
    b->from_what = NULL;
}

void stw_build_checkpoint_staging(stw_builder *b, const stw_save *save) {
    if (stw_saves(b->job) && stays(b->job, save)) staging(b, save, true);
}

/* ---- the movement ---- */

static uint32_t copy_down(stw_builder *b, stw_component component, uint64_t bytes, bool pageable) {
    const uint32_t done = stw_copy(b, &(stw_transport){.kind = STW_OP_COPY,
                                                       .stream = STW_STREAM_D2H,
                                                       .component = component,
                                                       .unit = STW_OP_NONE,
                                                       .from = {STW_TIER_GPU, 0},
                                                       .to = {STW_TIER_HOST, 0},
                                                       .bytes = bytes,
                                                       .after = {STW_OP_NONE, STW_OP_NONE}});
    if (done != STW_OP_NONE) b->program->ops[done].pageable = pageable;
    return done;
}

static void write(stw_builder *b, stw_component component, uint64_t bytes, stw_op_ranks ranks,
                  uint32_t after) {
    stw_op op = stw_op_make(STW_OP_FILE_WRITE, STW_STREAM_DISK_OUT, STW_OP_NONE);
    if (bytes == 0) return;
    op.component = component;
    op.from = STW_TIER_HOST;
    op.to = STW_TIER_NVME;
    op.bytes = bytes;
    op.ranks = ranks;
    op.after[0] = after;
    (void)stw_append(b, op);
}

/* Every rank writes its own part. */
static void write_parts(stw_builder *b, const stw_save *save) {
    uint32_t copied[STW_MOST_SAVED * PIECES], last = STW_OP_NONE;
    for (uint32_t i = 0; i < save->n; i++) {
        const stw_saved *s = &save->parts[i];
        for (uint32_t k = 0; k < PIECES; k++) {
            const uint64_t bytes = s->bytes / PIECES + (k == 0 ? s->bytes % PIECES : 0);
            uint32_t *done = &copied[i * PIECES + k];
            *done = s->tier == STW_TIER_GPU ? copy_down(b, s->component, bytes, save->pageable)
                                            : STW_OP_NONE;
            if (*done != STW_OP_NONE) last = *done;
            if (!save->all_first) write(b, s->component, bytes, STW_OP_RANKS_EACH, *done);
        }
    }
    for (uint32_t i = 0; i < save->n && save->all_first; i++)
        write(b, save->parts[i].component, save->parts[i].bytes, STW_OP_RANKS_EACH, last);
}

/* Whole tensors, one after the other, of which rank 0 keeps a copy. */
static void gather_and_write(stw_builder *b, const stw_save *save) {
    const bool first = b->job->kinds[b->layout->kind].first;
    uint32_t copied = STW_OP_NONE;
    for (uint32_t t = 0; t < b->job->model->n_tensors && b->status == STW_STATUS_OK; t++) {
        stw_gathered whole = stw_gather_tensor(b, t, STW_OP_NONE);
        if (first) {
            stw_transport down = {.kind = STW_OP_COPY,
                                  .stream = STW_STREAM_D2H,
                                  .component = STW_COMPONENT_PARAMS,
                                  .unit = STW_OP_NONE,
                                  .from = {STW_TIER_GPU, whole.full.offset},
                                  .to = {STW_TIER_HOST, 0},
                                  .bytes = whole.bytes,
                                  .ranks = STW_OP_RANKS_ONE,
                                  .after = {whole.ready, whole.full.alloc}};
            copied = stw_copy(b, &down);
            if (copied != STW_OP_NONE) b->program->ops[copied].pageable = true;
        }
        stw_gather_drop(b, &whole, copied);
    }
    if (first) write(b, STW_COMPONENT_PARAMS, save->file_bytes, STW_OP_RANKS_ONE, copied);
}

void stw_build_checkpoint(stw_builder *b, const stw_save *save) {
    const stw_job *job = b->job;
    if (!stw_saves(job)) return;
    const bool first = job->kinds[b->layout->kind].first;
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_CHECKPOINT,
                                         .repeat = STW_REPEAT_AT_CHECKPOINTS,
                                         .files = save->gathers && !first ? 0 : save->files});
    if (b->park != NULL) stw_park_return(b, b->park, STW_PARKED_PARAMS, true);
    if (!stays(job, save) && (!save->gathers || first)) staging(b, save, true);
    copied(b, save, true);
    if (save->gathers)
        gather_and_write(b, save);
    else
        write_parts(b, save);
    copied(b, save, false);
    if (!stays(job, save) && (!save->gathers || first)) staging(b, save, false);
    if (b->park != NULL) stw_park_leave(b, b->park, STW_PARKED_PARAMS, STW_OP_NONE);
    stw_end_movement(b);
}

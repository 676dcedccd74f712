/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/checkpoint.h"

#include "core/checked.h"
#include "engines/gather.h"

/* Pieces in which copies and writes follow each other. */
enum { PIECES = 8 };
#define WHOLE_FILE_BYTES 50000000000ull

void stw_save_add(stw_save *save, stw_component component, stw_tier tier, uint64_t bytes) {
    if (bytes > 0 && save->n < STW_MOST_SAVED)
        save->parts[save->n++] = (stw_save_part){component, tier, bytes, false};
}

void stw_save_whole(const stw_job *job, stw_save *save) {
    save->gathers = save->pageable = true;
    save->file_bytes = save->staged_bytes =
        stw_times(job->files.n, stw_job_element_bytes(job, STW_COMPONENT_PARAMS));
    save->files = (uint32_t)stw_div_up_u64(save->file_bytes, WHOLE_FILE_BYTES);
}

static bool stays(const stw_job *job, const stw_save *save) {
    return !save->pageable || (job->run->checkpoint.async && !save->gathers);
}

static void staging(stw_builder *b, const stw_save *save, bool alloc) {
    void (*const change)(stw_builder *, stw_component, stw_tier, uint64_t, uint64_t) =
        alloc ? stw_alloc_at : stw_free_at;
    b->from_what = save->gathers ? "checkpoint.format hf: the whole model on rank 0"
                   : b->job->run->checkpoint.async ? "checkpoint.async: a copy of all that is saved"
                   : save->pageable
                       ? "checkpoint: a copy of the largest storage that is written"
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

/* Bytes that a rank writes. */
static uint64_t file_bytes(const stw_builder *b, const stw_save *save) {
    uint64_t bytes = 0;
    if (save->gathers) return b->job->kinds[b->layout->kind].first ? save->file_bytes : 0;
    for (uint32_t i = 0; i < save->n; i++) bytes = stw_plus(bytes, save->parts[i].bytes);
    return bytes;
}

bool stw_counts_checkpoint_files(const stw_job *job) {
    return job->run->checkpoint.keep > 0 && job->cluster->nvme.capacity_bytes > 0;
}

void stw_build_kept_files(stw_builder *b, uint64_t bytes) {
    if (stw_counts_checkpoint_files(b->job))
        stw_alloc_at(b, STW_COMPONENT_CHECKPOINT_FILES, STW_TIER_NVME, STW_OFFSET_EXTERNAL,
                     stw_times(b->job->run->checkpoint.keep, bytes));
}

void stw_build_new_files(stw_builder *b, uint64_t bytes, bool alloc) {
    if (stw_counts_checkpoint_files(b->job))
        (alloc ? stw_alloc_at : stw_free_at)(b, STW_COMPONENT_CHECKPOINT_FILES, STW_TIER_NVME,
                                             STW_OFFSET_EXTERNAL, bytes);
}

void stw_build_checkpoint_staging(stw_builder *b, const stw_save *save) {
    if (!stw_saves(b->job)) return;
    if (stays(b->job, save)) staging(b, save, true);
    stw_build_kept_files(b, file_bytes(b, save));
}

/* ---- the movement ---- */

/* After `after`, the last one of those that ranks agree by; nothing on a rank alone. */
static uint32_t agree(stw_builder *b, const stw_agreement *what, uint32_t after) {
    stw_op op = stw_op_make(STW_OP_AGREE, STW_STREAM_COMM, STW_OP_NONE);
    uint32_t ranks, on_node;
    if (what->calls == 0) return after;
    stw_job_group_size(b->job, what->group, &ranks, &on_node);
    if (ranks <= 1) return after;
    op.component = STW_COMPONENT_COMM;
    op.from = op.to = STW_TIER_HOST;
    op.group = what->group;
    op.calls = what->calls;
    op.after[0] = after;
    return stw_append(b, op);
}

static stw_op_ranks ranks_of(const stw_save_part *part) {
    return part->alone ? STW_OP_RANKS_ONE : STW_OP_RANKS_EACH;
}

static uint32_t copy_down(stw_builder *b, const stw_save_part *part, uint64_t bytes, bool pageable,
                          uint32_t after) {
    const uint32_t done = stw_copy(b, &(stw_transport){.kind = STW_OP_COPY,
                                                       .stream = STW_STREAM_D2H,
                                                       .component = part->component,
                                                       .unit = STW_OP_NONE,
                                                       .from = {STW_TIER_GPU, 0},
                                                       .to = {STW_TIER_HOST, 0},
                                                       .bytes = bytes,
                                                       .ranks = ranks_of(part),
                                                       .after = {after, STW_OP_NONE}});
    if (done != STW_OP_NONE) b->program->ops[done].pageable = pageable;
    return done;
}

/* What lies on the host is copied, too, by the thread that issues the other copies. */
static uint32_t copy_host(stw_builder *b, stw_component component, uint64_t bytes, uint32_t after) {
    stw_op op = stw_op_make(STW_OP_PASS, STW_STREAM_D2H, STW_OP_NONE);
    op.component = component;
    op.from = op.to = STW_TIER_HOST;
    op.bytes = stw_times(2, bytes);
    op.after[0] = after;
    return stw_append(b, op);
}

uint32_t stw_build_file_write(stw_builder *b, stw_component component, uint32_t unit,
                              uint64_t bytes, stw_op_ranks ranks, uint32_t after) {
    stw_op op = stw_op_make(STW_OP_FILE_WRITE, STW_STREAM_DISK_OUT, unit);
    if (bytes == 0) return after;
    op.component = component;
    op.from = STW_TIER_HOST;
    op.to = STW_TIER_NVME;
    op.bytes = bytes;
    op.ranks = ranks;
    op.after[0] = after;
    return stw_append(b, op);
}

static uint32_t read_nvme(stw_builder *b, stw_component component, uint64_t bytes, uint32_t after) {
    return stw_copy(b, &(stw_transport){.kind = STW_OP_COPY,
                                        .stream = STW_STREAM_DISK,
                                        .component = component,
                                        .unit = STW_OP_NONE,
                                        .from = {STW_TIER_NVME, 0},
                                        .to = {STW_TIER_HOST, STW_OFFSET_EXTERNAL},
                                        .bytes = bytes,
                                        .after = {after, STW_OP_NONE}});
}

/* The copy of one piece, where the save makes one. */
static uint32_t copy_piece(stw_builder *b, const stw_save *save, const stw_save_part *part,
                           uint64_t bytes, uint32_t after) {
    if (part->tier == STW_TIER_NVME) return read_nvme(b, part->component, bytes, after);
    if (part->tier == STW_TIER_GPU) return copy_down(b, part, bytes, save->pageable, after);
    return save->all_first && save->pageable ? copy_host(b, part->component, bytes, after) : after;
}

/* Every rank writes its own part. @return the last write */
static uint32_t write_parts(stw_builder *b, const stw_save *save, uint32_t after) {
    uint32_t copied = after, written = after;
    for (uint32_t i = 0; i < save->n; i++) {
        const stw_save_part *s = &save->parts[i];
        for (uint32_t k = 0; k < PIECES; k++) {
            const uint64_t bytes = s->bytes / PIECES + (k == 0 ? s->bytes % PIECES : 0);
            const uint32_t done = copy_piece(b, save, s, bytes, after);
            if (done != after) copied = done;
            if (!save->all_first)
                written =
                    stw_build_file_write(b, s->component, STW_OP_NONE, bytes, ranks_of(s), done);
        }
    }
    for (uint32_t i = 0; i < save->n && save->all_first; i++)
        written = stw_build_file_write(b, save->parts[i].component, STW_OP_NONE,
                                       save->parts[i].bytes, ranks_of(&save->parts[i]), copied);
    return written;
}

/* Whole tensors, one after the other, of which rank 0 keeps a copy. @return the write */
static uint32_t gather_and_write(stw_builder *b, const stw_save *save) {
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
    return first ? stw_build_file_write(b, STW_COMPONENT_PARAMS, STW_OP_NONE, save->file_bytes,
                                        STW_OP_RANKS_ONE, copied)
                 : STW_OP_NONE;
}

void stw_build_checkpoint(stw_builder *b, const stw_save *save) {
    const stw_job *job = b->job;
    if (!stw_saves(job)) return;
    const bool first = job->kinds[b->layout->kind].first;
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_CHECKPOINT,
                                         .repeat = STW_REPEAT_AT_CHECKPOINTS,
                                         .behind = job->run->checkpoint.async && !save->gathers,
                                         .files = save->gathers && !first ? 0 : save->files});
    if (b->park != NULL) stw_park_return(b, b->park, STW_PARKED_PARAMS, true);
    if (!stays(job, save) && (!save->gathers || first)) staging(b, save, true);
    copied(b, save, true);
    stw_build_new_files(b, file_bytes(b, save), true);
    const uint32_t begun = agree(b, &save->before[1], agree(b, &save->before[0], STW_OP_NONE));
    const uint32_t written =
        save->gathers ? gather_and_write(b, save) : write_parts(b, save, begun);
    (void)agree(b, &save->after, written);
    stw_build_new_files(b, file_bytes(b, save), false);
    copied(b, save, false);
    if (!stays(job, save) && (!save->gathers || first)) staging(b, save, false);
    if (b->park != NULL) stw_park_leave(b, b->park, STW_PARKED_PARAMS, STW_OP_NONE);
    stw_end_movement(b);
}

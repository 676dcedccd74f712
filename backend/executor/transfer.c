/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: pieces of one space on their way to another. A piece is read from weights files or
 * packed from the regions of the rank that has it, and placed into the regions of every rank that
 * holds some of its elements. Pieces of files keep the dtype in which they are stored until they
 * are placed. */
#include "backend/executor/run_sync.h"

#include <stdlib.h>

#include "backend/host/kernels.h"
#include "backend/readers.h"
#include "core/checked.h"
#include "plan/program/staging.h"

static const stw_transfer *transfer_of(const stw_rank_run *run) { return &run->movement->transfer; }

static uint64_t stored_bytes(const stw_rank_run *run, uint32_t tensor) {
    return stw_dtype_bits(run->dtypes[tensor]) / 8;
}

/* The dtype of a tensor's elements in a slot: as stored; wider ones than fp32 are read as fp32. */
static stw_dtype staged_dtype(const stw_rank_run *run, uint32_t tensor) {
    if (!transfer_of(run)->from_files) return run->plan->run.precision.params;
    return stored_bytes(run, tensor) > sizeof(float) ? STW_DTYPE_F32 : run->dtypes[tensor];
}

static uint64_t staged_bytes(const stw_rank_run *run, uint32_t tensor) {
    return stw_dtype_bits(staged_dtype(run, tensor)) / 8;
}

/* A walk over the segments of a piece in its slot, where they lie one after the other, each at a
 * multiple of its element's size: never beyond 4 bytes for each element before it. */
typedef struct slot_walk {
    const stw_rank_run *run;
    stw_view piece;
    uint32_t segment;
    uint64_t offset; /* of the segment */
} slot_walk;

static slot_walk walk_begin(const stw_rank_run *run, stw_view piece) {
    return (slot_walk){run, piece, stw_view_first_segment(piece), 0};
}

/* On to the next segment; past the last one `offset` is the size of the piece. */
static void walk_next(slot_walk *w) {
    const stw_segment *segments = w->piece.space->segments;
    uint64_t n = stw_view_count(w->piece, w->segment);
    w->offset += stw_times(n, staged_bytes(w->run, segments[w->segment].tensor));
    w->segment++;
    if (stw_view_count(w->piece, w->segment) > 0)
        w->offset = stw_round_up_u64(w->offset, staged_bytes(w->run, segments[w->segment].tensor));
}

/* Where a part of the piece begins in its slot. Parts come in the order of the piece. */
static uint64_t staged_offset(slot_walk *w, const stw_overlap *part) {
    while (w->segment < part->a_segment) walk_next(w);
    uint64_t first = w->piece.space->segments[w->segment].first;
    uint64_t before = part->a_first - stw_max_u64(first, w->piece.first);
    return w->offset + stw_times(before, staged_bytes(w->run, part->tensor));
}

uint64_t stw_transfer_piece_bytes(const stw_rank_run *run, uint32_t index) {
    const stw_transfer *transfer = transfer_of(run);
    const stw_piece *piece = &transfer->pieces[index];
    if (!transfer->from_files) return stw_times(piece->n, staged_bytes(run, piece->tensor));
    const stw_space *space = transfer->own ? &run->spaces[transfer->from] : &run->job->files;
    slot_walk w = walk_begin(run, (stw_view){space, piece->first, piece->n});
    while (stw_view_count(w.piece, w.segment) > 0) walk_next(&w);
    return w.offset;
}

const char *stw_transfer_piece_name(const stw_rank_run *run, uint32_t index) {
    if (run->movement != NULL && stw_run_sync_is(run, run->movement))
        return stw_run_sync_tensor(run, index);
    if (run->movement == NULL || index >= transfer_of(run)->n_pieces) return "a piece";
    if (transfer_of(run)->own) return "a piece of this rank's parameters";
    return run->job->model->tensors[transfer_of(run)->pieces[index].tensor].name;
}

/* The space that a piece is a run of. Only operations of one stream ask. */
static stw_status piece_view(stw_rank_run *run, uint32_t index, stw_view *out, stw_error *err) {
    const stw_transfer *transfer = transfer_of(run);
    const stw_piece *piece = &transfer->pieces[index];
    const stw_space *space = &run->spaces[transfer->from];
    if (transfer->from_files && !transfer->own) space = &run->job->files;
    if (!transfer->from_files && piece->peer != run->ranks.rank) {
        if (run->source_rank != piece->peer || run->source_id != transfer->from) {
            stw_status status =
                stw_job_space(run->job, transfer->from, piece->peer, run->pool, &run->source, err);
            if (status != STW_STATUS_OK) return status;
            run->source_rank = piece->peer;
            run->source_id = transfer->from;
        }
        space = &run->source;
    }
    *out = (stw_view){space, piece->first, piece->n};
    return STW_STATUS_OK;
}

/* ---- reading ---- */

/* Neighbouring elements of one tensor, read by one thread. */
typedef struct read_chunk {
    stw_read_chunk what;
    unsigned char *out;
} read_chunk;

/* The beginning of a part that one call reads: up to the next multiple of what a call reads,
 * counted from the tensor's beginning, so that ranks with other pieces read the same chunks. */
static uint64_t chunk_of(uint64_t size, uint64_t first, uint64_t n) {
    const uint64_t most = STW_READ_BYTES / size;
    return stw_min_u64(n, most - first % most);
}

/* Chunks of a transposed tensor that one call reads: of a matrix with 2048 bf16 columns they take
 * runs of 2 KiB of the file, one chunk runs of 256 bytes. */
#define TURNED_CHUNKS 8u

static uint64_t call_of(const stw_rank_run *run, uint32_t tensor, uint64_t size, uint64_t first,
                        uint64_t n) {
    const uint64_t most =
        stw_weights_is_turned(run->weights, tensor) ? TURNED_CHUNKS * STW_READ_BYTES / size : 0;
    return most > 0 ? stw_min_u64(n, most - first % most) : chunk_of(size, first, n);
}

typedef struct read_work {
    stw_rank_run *run;
    read_chunk *chunks;
    size_t n_chunks, room;
    pthread_mutex_t mutex; /* of the two below */
    stw_status status;
    stw_error error;
} read_work;

/* Sums are of chunks, however many of them one call reads. */
static void add_sums(stw_rank_run *run, const stw_read_chunk *what, const void *bytes) {
    const uint64_t stored = stored_bytes(run, what->tensor);
    const uint64_t size = stw_min_u64(stored, sizeof(float));
    for (uint64_t done = 0, n = 0; done < what->n; done += n) {
        n = chunk_of(size, what->first + done, what->n - done);
        stw_read_sums_add(run, &(stw_read_chunk){what->tensor, what->first + done, n},
                          (const unsigned char *)bytes + done * stored);
    }
}

/* Elements whose dtype has no room in the slot: read apart, then rounded into it. */
static stw_status read_rounded(stw_rank_run *run, const read_chunk *c, stw_error *err) {
    const stw_read_chunk *what = &c->what;
    void *wide = malloc((size_t)stw_times(what->n, stored_bytes(run, what->tensor)));
    if (wide == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "load", "out of memory");
    stw_status status =
        stw_weights_read(run->weights, what->tensor, what->first, what->n, wide, err);
    if (status == STW_STATUS_OK) {
        add_sums(run, what, wide);
        stw_host_convert(NULL, c->out, STW_ELEMENT_F32, wide, run->dtypes[what->tensor], what->n);
    }
    free(wide);
    return status;
}

static void read_chunks(void *arg, uint64_t first, uint64_t count) {
    read_work *work = arg;
    stw_rank_run *run = work->run;
    stw_error error = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    for (uint64_t i = first; i < first + count && status == STW_STATUS_OK; i++) {
        const read_chunk *c = &work->chunks[i];
        const stw_read_chunk *what = &c->what;
        if (staged_dtype(run, what->tensor) != run->dtypes[what->tensor]) {
            status = read_rounded(run, c, &error);
            continue;
        }
        status = stw_weights_read(run->weights, what->tensor, what->first, what->n, c->out, &error);
        if (status == STW_STATUS_OK) add_sums(run, what, c->out);
    }
    if (status == STW_STATUS_OK) return;
    pthread_mutex_lock(&work->mutex);
    if (work->status == STW_STATUS_OK) {
        work->status = status;
        work->error = error;
    }
    pthread_mutex_unlock(&work->mutex);
}

static stw_status add_chunks(read_work *work, const stw_overlap *part, unsigned char *out,
                             stw_error *err) {
    const uint64_t size = staged_bytes(work->run, part->tensor);
    for (uint64_t done = 0, n = 0; done < part->n; done += n) {
        if (work->n_chunks == work->room) {
            size_t room = work->room > 0 ? 2 * work->room : 64;
            read_chunk *more = realloc(work->chunks, room * sizeof *more);
            if (more == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "load", "out of memory");
            work->chunks = more;
            work->room = room;
        }
        n = call_of(work->run, part->tensor, size, part->tensor_first + done, part->n - done);
        work->chunks[work->n_chunks++] =
            (read_chunk){{part->tensor, part->tensor_first + done, n}, out + done * size};
    }
    return STW_STATUS_OK;
}

/* A piece into memory, by several threads at once whatever tensors and files it is cut from. */
static stw_status read_piece(stw_rank_run *run, stw_view piece, unsigned char *out,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    read_work work = {.run = run, .mutex = PTHREAD_MUTEX_INITIALIZER, .error = STW_ERROR_INIT};
    slot_walk walk = walk_begin(run, piece);
    stw_overlap part;
    stw_meet meet = stw_meet_begin(piece, stw_space_whole(&run->job->files));
    while (stw_meet_next(&meet, &part))
        STW_TRY(add_chunks(&work, &part, out + staged_offset(&walk, &part), err));
    stw_threads_for(run->readers, work.n_chunks, 1, read_chunks, &work);
    status = work.status;
    if (status != STW_STATUS_OK && err != NULL && err->status == STW_STATUS_OK) *err = work.error;
out:
    pthread_mutex_destroy(&work.mutex);
    free(work.chunks);
    return status;
}

stw_status stw_transfer_read(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t bytes = stw_transfer_piece_bytes(run, op->unit);
    stw_view piece;
    if (bytes > STW_LOAD_PIECE_BYTES)
        return stw_fail(err, STW_STATUS_BUG, stw_transfer_piece_name(run, op->unit),
                        "a piece of %llu bytes, expected at most %llu", (unsigned long long)bytes,
                        (unsigned long long)STW_LOAD_PIECE_BYTES);
    unsigned char *out = run->backend->host_address(run->device, op->offset_bytes, bytes);
    if (out == NULL)
        return stw_fail(err, STW_STATUS_BUG, "load", "%llu bytes at %llu are not in the host arena",
                        (unsigned long long)bytes, (unsigned long long)op->offset_bytes);
    if (run->weights == NULL)
        return stw_fail(err, STW_STATUS_BUG, "load", "a rank without weights is to read them");
    STW_TRY(piece_view(run, op->unit, &piece, err));
    STW_TRY(read_piece(run, piece, out, err));
out:
    return status;
}

static void walk_piece(const stw_rank_run *run, stw_view piece, stw_read_chunk_fn *fn,
                       void *state) {
    stw_overlap part;
    stw_meet meet = stw_meet_begin(piece, stw_space_whole(&run->job->files));
    while (stw_meet_next(&meet, &part)) {
        const uint64_t size = stw_min_u64(stored_bytes(run, part.tensor), sizeof(float));
        for (uint64_t done = 0, n = 0; done < part.n; done += n) {
            n = chunk_of(size, part.tensor_first + done, part.n - done);
            fn(state, &(stw_read_chunk){part.tensor, part.tensor_first + done, n});
        }
    }
}

stw_status stw_transfer_walk_reads(stw_rank_run *run, uint32_t rank, stw_read_chunk_fn *fn,
                                   void *state, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_program *program = run->plan->programs[stw_job_kind_of(run->job, rank)];
    stw_pool *pool = stw_pool_new(); /* for the space of another rank */
    if (pool == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "load", "out of memory"));
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        const stw_transfer *transfer = &movement->transfer;
        stw_space own;
        if (!movement->executable || !transfer->used || !transfer->from_files) continue;
        if (transfer->own) STW_TRY(stw_job_space(run->job, transfer->from, rank, pool, &own, err));
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            if (program->ops[i].kind != STW_OP_FILE_READ) continue;
            const stw_piece *piece = &transfer->pieces[program->ops[i].unit];
            const stw_space *space = transfer->own ? &own : &run->job->files;
            walk_piece(run, (stw_view){space, piece->first, piece->n}, fn, state);
        }
    }
out:
    stw_pool_free(pool);
    return status;
}

/* ---- packing and placing ---- */

/* Where an overlap of a piece with a region lies in the region's tier. */
static uint64_t in_region(const stw_rank_run *run, const stw_region *region, uint64_t element) {
    return region->offset_bytes +
           stw_times(element - region->first_param, stw_element_bytes(run->types.params));
}

stw_status stw_transfer_pack(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t size = stw_element_bytes(run->types.params);
    stw_view piece;
    stw_overlap part;
    if (op->peer != run->ranks.rank) return STW_STATUS_OK;
    STW_TRY(piece_view(run, op->unit, &piece, err));
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != transfer_of(run)->from_component) continue;
        slot_walk walk = walk_begin(run, piece);
        stw_meet meet = stw_meet_begin(piece, stw_region_view(region, &run->spaces[region->space]));
        while (stw_meet_next_run(&meet, &part))
            STW_TRY(run->backend->copy(
                run->device, op->stream,
                stw_at(op->to, op->offset_bytes + staged_offset(&walk, &part)),
                stw_at(region->tier, in_region(run, region, part.b_first)), part.n * size, err));
    }
out:
    return status;
}

stw_status stw_transfer_place(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_view piece;
    stw_overlap part;
    STW_TRY(piece_view(run, op->unit, &piece, err));
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != transfer_of(run)->to_component) continue;
        slot_walk walk = walk_begin(run, piece);
        stw_meet meet = stw_meet_begin(piece, stw_region_view(region, &run->spaces[region->space]));
        while (stw_meet_next(&meet, &part))
            STW_TRY(run->backend->convert(
                run->device, op->stream,
                stw_typed(region->tier, in_region(run, region, part.b_first), run->types.params,
                          part.n),
                stw_at(op->from, op->from_offset_bytes + staged_offset(&walk, &part)),
                staged_dtype(run, part.tensor), err));
    }
out:
    return status;
}

/* ---- preparing ---- */

static bool reads_weights(const stw_program *program) {
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].kind == STW_OP_FILE_READ) return true;
    return false;
}

uint32_t stw_transfer_readers(const stw_rank_run *run) {
    uint32_t first = run->ranks.rank - run->ranks.local_rank, ranks = 0;
    if (!reads_weights(run->program)) return 1;
    for (uint32_t r = first; r < first + run->ranks.local_world && r < run->ranks.world; r++)
        ranks += reads_weights(run->plan->programs[stw_job_kind_of(run->job, r)]);
    return stw_reader_threads(stw_threads_cores(), ranks);
}

/* Ranks that read weights read the same files: their tensors have the same dtypes.
 * @param all [world][n_tensors + 1] dtypes, then whether the rank reads */
static stw_status compare_readers(const stw_rank_run *run, const unsigned char *all,
                                  stw_error *err) {
    const stw_model *model = run->job->model;
    uint32_t n = model->n_tensors;
    for (uint32_t r = 1; r < run->ranks.world; r++) {
        const unsigned char *other = all + (size_t)r * (n + 1u);
        for (uint32_t t = 0; other[n] != 0 && all[n] != 0 && t < n; t++)
            if (other[t] != all[t])
                return stw_fail(err, STW_STATUS_DEVICE, model->tensors[t].name,
                                "rank %u reads weights stored as %s, rank 0 as %s; do all ranks "
                                "see the same files?",
                                r, stw_dtype_name((stw_dtype)other[t]),
                                stw_dtype_name((stw_dtype)all[t]));
    }
    return STW_STATUS_OK;
}

stw_status stw_transfer_open(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_weights *seen = NULL;
    const char *path = run->weights_path;
    const bool reads = path == NULL || reads_weights(run->program);
    /* Ranks that read nothing need not see the files; those that do replay their part of them. */
    status = stw_weights_open(run->job->model, path, run->options->seed,
                              reads ? &run->weights : &seen, reads ? err : NULL);
    if (status == STW_STATUS_OK)
        status = stw_weights_sample(reads ? run->weights : seen, &run->sample, reads ? err : NULL);
    if (status == STW_STATUS_OK && run->ranks.rank == 0)
        stw_weights_warn(reads ? run->weights : seen);
    stw_weights_close(seen);
    if (status == STW_STATUS_OK || reads) return status;
    stw_text_free(&run->sample);
    return STW_STATUS_OK;
}

stw_status stw_transfer_prepare(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = run->job->model->n_tensors;
    unsigned char *mine = calloc(n + 1u, 1), *all = calloc(n + 1u, run->ranks.world);
    run->dtypes = stw_pool_array(run->pool, n, sizeof *run->dtypes);
    if (mine == NULL || all == NULL || run->dtypes == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "load", "out of memory"));
    mine[n] = run->weights != NULL;
    for (uint32_t t = 0; run->weights != NULL && t < n; t++)
        mine[t] = (unsigned char)stw_weights_dtype(run->weights, t);
    /* Ranks that read nothing need not see the files: rank 0 says what comes. */
    stw_comm_about(run->comm, "dtypes of the weights");
    STW_TRY(stw_exec_gather(run, mine, all, n + 1u, err));
    STW_TRY(compare_readers(run, all, err));
    for (uint32_t t = 0; t < n; t++) {
        run->dtypes[t] = (stw_dtype)all[t];
        if (!stw_host_can_convert(run->dtypes[t]))
            STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, run->job->model->tensors[t].name,
                             "stored as %s, which this executor does not convert to fp32",
                             stw_dtype_name(run->dtypes[t])));
    }
out:
    free(mine);
    free(all);
    return status;
}

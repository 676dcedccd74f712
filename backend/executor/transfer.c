/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: pieces of one space on their way to another. A piece is read from weights files or
 * packed from the regions of the rank that has it, and placed into the regions of every rank that
 * holds some of its elements. Pieces of files keep the dtype in which they are stored until they
 * are placed. */
#include "backend/executor/run.h"

#include <stdlib.h>

#include "backend/host/kernels.h"
#include "core/checked.h"
#include "plan/program/staging.h"

/* Elements that one reading thread takes at a time: 4 MiB of fp32, 2 of bf16. */
#define READ_GRAIN (1u << 20)

static const stw_transfer *transfer_of(const stw_rank_run *run) { return &run->movement->transfer; }

static uint64_t stored_bytes(const stw_rank_run *run, uint32_t tensor) {
    return stw_dtype_bits(run->dtypes[tensor]) / 8;
}

/* In a piece that spans tensors every element has 4 bytes of room; wider ones are read as fp32. */
static stw_dtype flat_dtype(const stw_rank_run *run, uint32_t tensor) {
    return stored_bytes(run, tensor) > sizeof(float) ? STW_DTYPE_F32 : run->dtypes[tensor];
}

static stw_dtype staged_dtype(const stw_rank_run *run, uint32_t tensor) {
    const stw_transfer *transfer = transfer_of(run);
    if (!transfer->from_files) return run->plan->run.precision.params;
    return transfer->own ? flat_dtype(run, tensor) : run->dtypes[tensor];
}

/* Bytes of room of one element of a tensor in a piece's slot. */
static uint64_t staged_bytes(const stw_rank_run *run, uint32_t tensor) {
    const stw_transfer *transfer = transfer_of(run);
    if (!transfer->from_files) return stw_dtype_bits(run->plan->run.precision.params) / 8;
    return transfer->own ? sizeof(float) : stored_bytes(run, tensor);
}

/* Where elements of a piece begin in its slot: every run of one tensor has its room, and its
 * elements lie together at the beginning of it. */
static uint64_t staged_offset(const stw_rank_run *run, stw_view piece, const stw_overlap *part) {
    const stw_segment *segment = &piece.space->segments[part->a_segment];
    uint64_t begin = stw_max_u64(segment->first, piece.first);
    return (begin - piece.first) * staged_bytes(run, part->tensor) +
           (part->a_first - begin) * (stw_dtype_bits(staged_dtype(run, part->tensor)) / 8);
}

uint64_t stw_transfer_piece_bytes(const stw_rank_run *run, uint32_t index) {
    const stw_piece *piece = &transfer_of(run)->pieces[index];
    return piece->n * staged_bytes(run, piece->tensor);
}

const char *stw_transfer_piece_name(const stw_rank_run *run, uint32_t index) {
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

typedef struct read_work {
    stw_rank_run *run;
    uint32_t tensor;
    uint64_t first; /* element of the tensor */
    unsigned char *out;
    stw_dtype out_dtype;
    pthread_mutex_t mutex; /* of the two below */
    stw_status status;
    stw_error error;
} read_work;

/* Elements whose dtype has no room in the slot: read apart, then rounded into it. */
static stw_status read_rounded(read_work *work, uint64_t first, uint64_t count, stw_error *err) {
    uint64_t size = stored_bytes(work->run, work->tensor);
    void *wide = malloc((size_t)(count * size));
    if (wide == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "load", "out of memory");
    stw_status status =
        stw_weights_read(work->run->weights, work->tensor, work->first + first, count, wide, err);
    if (status == STW_STATUS_OK)
        stw_host_convert(NULL, work->out + first * sizeof(float), STW_ELEMENT_F32, wide,
                         work->run->dtypes[work->tensor], count);
    free(wide);
    return status;
}

static void read_part(void *arg, uint64_t first, uint64_t count) {
    read_work *work = arg;
    stw_error error = STW_ERROR_INIT;
    stw_status status;
    if (work->out_dtype != work->run->dtypes[work->tensor])
        status = read_rounded(work, first, count, &error);
    else
        status =
            stw_weights_read(work->run->weights, work->tensor, work->first + first, count,
                             work->out + first * stored_bytes(work->run, work->tensor), &error);
    if (status == STW_STATUS_OK) return;
    pthread_mutex_lock(&work->mutex);
    if (work->status == STW_STATUS_OK) {
        work->status = status;
        work->error = error;
    }
    pthread_mutex_unlock(&work->mutex);
}

/* Elements [first, first + count) of a tensor into memory, by several threads. */
static stw_status read_elements(stw_rank_run *run, uint32_t tensor, uint64_t first, uint64_t count,
                                stw_dtype out_dtype, unsigned char *out, stw_error *err) {
    read_work work = {.run = run,
                      .tensor = tensor,
                      .first = first,
                      .out = out,
                      .out_dtype = out_dtype,
                      .mutex = PTHREAD_MUTEX_INITIALIZER,
                      .error = STW_ERROR_INIT};
    stw_threads_for(run->readers, count, READ_GRAIN, read_part, &work);
    pthread_mutex_destroy(&work.mutex);
    if (work.status != STW_STATUS_OK && err != NULL && err->status == STW_STATUS_OK)
        *err = work.error;
    return work.status;
}

stw_status stw_transfer_read(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t bytes = stw_transfer_piece_bytes(run, op->unit);
    stw_view piece;
    stw_overlap part;
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
    stw_meet meet = stw_meet_begin(piece, stw_space_whole(&run->job->files));
    while (stw_meet_next(&meet, &part))
        STW_TRY(read_elements(run, part.tensor, part.tensor_first, part.n,
                              staged_dtype(run, part.tensor),
                              out + staged_offset(run, piece, &part), err));
out:
    return status;
}

/* ---- packing and placing ---- */

/* Where an overlap of a piece with a region lies in the region's tier. */
static uint64_t in_region(const stw_rank_run *run, const stw_region *region, uint64_t element) {
    return region->offset_bytes +
           (element - region->first_param) * stw_element_bytes(run->types.params);
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
        stw_meet meet = stw_meet_begin(piece, stw_region_view(region, &run->spaces[region->space]));
        while (stw_meet_next_run(&meet, &part))
            STW_TRY(run->backend->copy(
                run->device, op->stream,
                stw_at(op->to, op->offset_bytes + staged_offset(run, piece, &part)),
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
        stw_meet meet = stw_meet_begin(piece, stw_region_view(region, &run->spaces[region->space]));
        while (stw_meet_next(&meet, &part))
            STW_TRY(run->backend->convert(
                run->device, op->stream,
                stw_typed(region->tier, in_region(run, region, part.b_first), run->types.params,
                          part.n),
                stw_at(op->from, op->from_offset_bytes + staged_offset(run, piece, &part)),
                staged_dtype(run, part.tensor), err));
    }
out:
    return status;
}

/* ---- preparing ---- */

static bool reads_weights(const stw_rank_run *run) {
    for (uint32_t i = 0; i < run->program->n_ops; i++)
        if (run->program->ops[i].kind == STW_OP_FILE_READ) return true;
    return false;
}

stw_status stw_transfer_prepare(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = run->job->model->n_tensors;
    const char *path = run->weights_path;
    unsigned char *mine = calloc(n + 1u, 1), *all = calloc(n + 1u, run->ranks.world);
    run->dtypes = stw_pool_array(run->pool, n, sizeof *run->dtypes);
    if (mine == NULL || all == NULL || run->dtypes == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "load", "out of memory"));
    if (path == NULL || reads_weights(run))
        STW_TRY(stw_weights_open(run->job->model, path, run->options->seed, &run->weights, err));
    for (uint32_t t = 0; run->weights != NULL && t < n; t++)
        mine[t] = (unsigned char)stw_weights_dtype(run->weights, t);
    /* Ranks that read nothing need not see the files: rank 0 says what comes. */
    STW_TRY(stw_exec_gather(run, mine, all, n, err));
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

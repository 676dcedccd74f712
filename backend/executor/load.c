/* SPDX-License-Identifier: Apache-2.0 */
/* Load pieces: read into host slots by those who read, placed into the parameters by everybody. A
 * piece is a run of one tensor's elements, or (sharded_read) of this rank's flat space. Pieces keep
 * the dtype in which the weights are stored until they are placed. */
#include "backend/executor/run.h"

#include <stdlib.h>

#include "backend/host/kernels.h"
#include "core/checked.h"

/* Elements that one reading thread takes at a time: 4 MiB of fp32, 2 of bf16. */
#define READ_GRAIN (1u << 20)

static bool is_flat(const stw_rank_run *run) { return run->pieces == NULL; }

static uint64_t element_bytes(const stw_rank_run *run, uint32_t tensor) {
    return stw_dtype_bits(run->dtypes[tensor]) / 8;
}

/* In a piece of the flat space every element has 4 bytes of room; wider ones are read as fp32. */
static stw_dtype flat_dtype(const stw_rank_run *run, uint32_t tensor) {
    return element_bytes(run, tensor) > sizeof(float) ? STW_DTYPE_F32 : run->dtypes[tensor];
}

uint64_t stw_load_piece_bytes(const stw_rank_run *run, uint32_t piece) {
    if (is_flat(run)) {
        uint64_t first = 0, params = 0;
        stw_flat_piece(run->job, run->kind, piece, &first, &params);
        return params * sizeof(float);
    }
    return run->pieces[piece].count * element_bytes(run, run->pieces[piece].tensor);
}

const char *stw_load_piece_name(const stw_rank_run *run, uint32_t piece) {
    if (is_flat(run) || piece >= run->n_pieces) return "a piece of the flat space";
    return run->job->model->tensors[run->pieces[piece].tensor].name;
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
    uint64_t size = element_bytes(work->run, work->tensor);
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
                             work->out + first * element_bytes(work->run, work->tensor), &error);
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

static stw_status read_flat(stw_rank_run *run, const stw_op *op, unsigned char *out,
                            stw_error *err) {
    uint64_t first = 0, params = 0;
    stw_status status = STW_STATUS_OK;
    stw_flat_piece(run->job, run->kind, op->unit, &first, &params);
    for (uint32_t i = 0; i < run->n_segments; i++) {
        const stw_segment *s = &run->segments[i];
        uint64_t from = stw_max_u64(first, s->flat_first);
        uint64_t end = stw_min_u64(first + params, s->flat_first + s->params);
        if (from >= end) continue;
        STW_TRY(read_elements(run, s->tensor, s->tensor_first + (from - s->flat_first), end - from,
                              flat_dtype(run, s->tensor), out + (from - first) * sizeof(float),
                              err));
    }
out:
    return status;
}

stw_status stw_load_read(stw_rank_run *run, const stw_op *op, stw_error *err) {
    uint64_t bytes = stw_load_piece_bytes(run, op->unit);
    if (bytes > STW_LOAD_PIECE_BYTES)
        return stw_fail(err, STW_STATUS_BUG, stw_load_piece_name(run, op->unit),
                        "a load piece of %llu bytes, expected at most %llu",
                        (unsigned long long)bytes, (unsigned long long)STW_LOAD_PIECE_BYTES);
    unsigned char *out = run->backend->host_address(run->device, op->offset_bytes, bytes);
    if (out == NULL)
        return stw_fail(err, STW_STATUS_BUG, "load", "%llu bytes at %llu are not in the host arena",
                        (unsigned long long)bytes, (unsigned long long)op->offset_bytes);
    if (run->weights == NULL)
        return stw_fail(err, STW_STATUS_BUG, "load", "a rank without weights is to read them");
    if (is_flat(run)) return read_flat(run, op, out, err);
    const stw_load_piece *piece = &run->pieces[op->unit];
    return read_elements(run, piece->tensor, piece->first, piece->count, run->dtypes[piece->tensor],
                         out, err);
}

/* ---- placing ---- */

/* Elements [flat, flat + count) of the flat space, which lie at `from` of the op's tier, into the
 * regions that hold these parameters. */
static stw_status place_range(stw_rank_run *run, const stw_op *op, uint64_t flat, uint64_t count,
                              uint64_t from, stw_dtype dtype, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t size = stw_dtype_bits(dtype) / 8;
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != STW_COMPONENT_PARAMS) continue;
        uint64_t first = stw_max_u64(flat, region->first_param);
        uint64_t end = stw_min_u64(flat + count, region->first_param + region->params);
        if (first >= end) continue;
        uint64_t to = region->offset_bytes +
                      (first - region->first_param) * stw_element_bytes(run->types.params);
        STW_TRY(run->backend->convert(run->device, op->stream,
                                      stw_typed(region->tier, to, run->types.params, end - first),
                                      stw_at(op->from, from + (first - flat) * size), dtype, err));
    }
out:
    return status;
}

stw_status stw_load_place(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t piece_first = 0, piece_params = 0;
    if (is_flat(run)) stw_flat_piece(run->job, run->kind, op->unit, &piece_first, &piece_params);
    for (uint32_t i = 0; i < run->n_segments; i++) {
        const stw_segment *s = &run->segments[i];
        uint64_t at = is_flat(run) ? s->flat_first : s->tensor_first;
        uint64_t size = sizeof(float);
        stw_dtype dtype = flat_dtype(run, s->tensor);
        if (!is_flat(run)) {
            const stw_load_piece *piece = &run->pieces[op->unit];
            if (s->tensor != piece->tensor) continue;
            piece_first = piece->first;
            piece_params = piece->count;
            size = element_bytes(run, s->tensor);
            dtype = run->dtypes[s->tensor];
        }
        uint64_t first = stw_max_u64(at, piece_first);
        uint64_t end = stw_min_u64(at + s->params, piece_first + piece_params);
        if (first >= end) continue;
        STW_TRY(place_range(run, op, s->flat_first + (first - at), end - first,
                            op->from_offset_bytes + (first - piece_first) * size, dtype, err));
    }
out:
    return status;
}

/* ---- preparing ---- */

static bool reads_weights(const stw_rank_run *run) {
    const stw_movement *load = stw_program_movement(run->program, STW_PHASE_LOAD);
    for (uint32_t i = 0; load != NULL && i < load->n_ops; i++)
        if (run->program->ops[load->first_op + i].kind == STW_OP_READ) return true;
    return false;
}

stw_status stw_load_prepare(stw_rank_run *run, stw_error *err) {
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
    STW_TRY(stw_run_gather(run, mine, all, n, err));
    for (uint32_t t = 0; t < n; t++) {
        run->dtypes[t] = (stw_dtype)all[t];
        if (!stw_host_can_convert(run->dtypes[t]))
            STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, run->job->model->tensors[t].name,
                             "stored as %s, which this executor does not convert to fp32",
                             stw_dtype_name(run->dtypes[t])));
    }
    if (run->plan->decisions.load != STW_LOAD_SHARDED_READ)
        STW_TRY(stw_load_pieces(run->job, run->pool, &run->pieces, &run->n_pieces, err));
out:
    free(mine);
    free(all);
    return status;
}

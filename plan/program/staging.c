/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/staging.h"

#include "core/checked.h"
#include "plan/program/layout.h"

/* ---- pieces ---- */

/* Elements of a tensor that a piece may have. */
static uint64_t piece_elements(const stw_job *job, uint32_t tensor) {
    bool wide =
        !job->engine->spec.own_process && stw_dtype_bits(job->model->tensors[tensor].dtype) > 32;
    return STW_LOAD_PIECE_BYTES / (wide ? 8 : 4);
}

/* The piece of the files that begins at an element of a segment. */
static stw_view piece_at(const stw_job *job, uint32_t segment, uint64_t first) {
    const stw_segment *s = &job->files.segments[segment];
    uint64_t end = job->engine->spec.own_process ? job->files.n : s->first + s->n;
    uint64_t most = piece_elements(job, s->tensor);
    return (stw_view){&job->files, first, stw_min_u64(most, end - first)};
}

/* @param out NULL: count only */
static uint64_t cut_files(const stw_job *job, stw_view *out) {
    uint64_t n = 0, first = 0;
    for (uint32_t i = 0; i < job->files.n_segments; i++) {
        const stw_segment *s = &job->files.segments[i];
        while (first < s->first + s->n) {
            const stw_view piece = piece_at(job, i, first);
            if (out != NULL) out[n] = piece;
            first += piece.n;
            n++;
        }
    }
    return n;
}

stw_status stw_load_pieces(const stw_job *job, stw_pool *pool, stw_view **pieces,
                           uint32_t *n_pieces, stw_error *err) {
    uint64_t n = cut_files(job, NULL);
    stw_view *list = n < UINT32_MAX ? stw_pool_array(pool, n, sizeof *list) : NULL;
    if (list == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "load pieces", "no room for %llu pieces",
                        (unsigned long long)n);
    *n_pieces = (uint32_t)cut_files(job, list);
    *pieces = list;
    return STW_STATUS_OK;
}

uint32_t stw_flat_pieces(const stw_job *job, uint32_t kind) {
    return (uint32_t)stw_div_up_u64(job->kinds[kind].params, STW_LOAD_PIECE_BYTES / 4);
}

void stw_flat_piece(const stw_job *job, uint32_t kind, uint32_t i, uint64_t *first_param,
                    uint64_t *params) {
    uint64_t step = STW_LOAD_PIECE_BYTES / 4, all = job->kinds[kind].params;
    *first_param = stw_min_u64(all, i * step);
    *params = stw_min_u64(step, all - *first_param);
}

/* ---- bytes ---- */

bool stw_load_is_whole(const stw_job *job, stw_load method) {
    const stw_engine *engine = job->engine;
    if (method == STW_LOAD_RANK0_BROADCAST && engine->loads_by_tensors != NULL &&
        engine->loads_by_tensors(job->run))
        return false;
    return method == STW_LOAD_ALL_RANKS ||
           (!job->engine->spec.own_process && method != STW_LOAD_SHARDED_READ &&
            method != STW_LOAD_ALL_RANKS_GPU);
}

bool stw_load_is_pageable(const stw_job *job) { return !job->engine->spec.own_process; }

bool stw_load_is_whole_on_gpu(stw_load method) { return method == STW_LOAD_ALL_RANKS_GPU; }

/* What one element run of a tensor takes, by one of three rules. */
typedef uint64_t (*run_rule)(const stw_job *job, uint32_t tensor, uint64_t first, uint64_t n);

static uint64_t stored(const stw_job *job, uint32_t tensor, uint64_t first, uint64_t n) {
    return stw_tensor_run_bytes(&job->model->tensors[tensor], first, n);
}

static uint64_t held(const stw_job *job, uint32_t tensor, uint64_t first, uint64_t n) {
    const uint32_t wish = job->run->load.dtype;
    bool wide = stw_dtype_bits(job->model->tensors[tensor].dtype) > 32;
    if (job->engine->spec.own_process)
        return wide ? stw_times(n, 4) : stored(job, tensor, first, n);
    if (wish == STW_NONE) return stored(job, tensor, first, n);
    stw_dtype dtype = wish == STW_AUTO ? job->run->precision.params : (stw_dtype)wish;
    return stw_times(n, stw_dtype_bits(dtype) / 8);
}

static uint64_t roomy(const stw_job *job, uint32_t tensor, uint64_t first, uint64_t n) {
    uint64_t bytes = held(job, tensor, first, n);
    return job->engine->spec.own_process ? stw_max_u64(bytes, stw_times(n, 4)) : bytes;
}

/* @param i the segment in which the piece begins */
static uint64_t sum_from(const stw_job *job, stw_view piece, run_rule rule, uint32_t i) {
    uint64_t bytes = 0, n = 0;
    for (; (n = stw_view_count(piece, i)) > 0; i++) {
        const stw_segment *s = &piece.space->segments[i];
        uint64_t skipped = piece.first > s->first ? piece.first - s->first : 0;
        bytes = stw_plus(bytes, rule(job, s->tensor, s->tensor_first + skipped, n));
    }
    return bytes;
}

static uint64_t sum_of(const stw_job *job, stw_view piece, run_rule rule) {
    return sum_from(job, piece, rule, stw_view_first_segment(piece));
}

static uint64_t room_from(const stw_job *job, stw_view piece, uint32_t i) {
    return stw_round_up_u64(sum_from(job, piece, roomy, i), STW_ALIGN_BYTES);
}

uint64_t stw_load_piece_bytes(const stw_job *job, stw_view piece) {
    return sum_of(job, piece, stored);
}

uint64_t stw_load_held_bytes(const stw_job *job, stw_view piece) {
    return sum_of(job, piece, held);
}

uint64_t stw_load_room_bytes(const stw_job *job, stw_view piece) {
    return room_from(job, piece, stw_view_first_segment(piece));
}

static uint64_t whole_model_bytes(const stw_job *job) {
    uint64_t bytes = 0, first = 0;
    for (uint32_t i = 0; i < job->files.n_segments; i++) {
        const stw_segment *s = &job->files.segments[i];
        while (first < s->first + s->n) {
            const stw_view piece = piece_at(job, i, first);
            bytes = stw_plus(bytes, room_from(job, piece, i));
            first += piece.n;
        }
    }
    return bytes;
}

/* Does every placement of the job keep parameters on the GPU? */
static bool keeps_params_on_gpu(const stw_job *job) {
    stw_place places[STW_MAX_PLACES];
    const uint32_t n = job->engine->places(job, places, NULL);
    for (uint32_t i = 0; i < n; i++)
        if (places[i].params != STW_TIER_GPU) return false;
    return n > 0;
}

/* A whole model on the GPU, of which modules are cut one after the other: a part of it is the
 * parameters that stay. */
static uint64_t beside_params(const stw_job *job, uint32_t kind, uint64_t whole_bytes) {
    const uint64_t slots = STW_LOAD_SLOTS * STW_LOAD_PIECE_BYTES;
    uint64_t own = 0;
    if (keeps_params_on_gpu(job))
        own = stw_times(job->kinds[kind].params, stw_job_element_bytes(job, STW_COMPONENT_PARAMS));
    return stw_max_u64(slots, whole_bytes - stw_min_u64(own, whole_bytes));
}

uint64_t stw_load_staging_bytes(const stw_job *job, const stw_decisions *decisions, uint32_t kind,
                                stw_tier tier) {
    uint64_t whole_bytes = 0;
    return stw_load_method_staging_bytes(job, decisions->load, kind, tier, &whole_bytes);
}

uint64_t stw_load_method_staging_bytes(const stw_job *job, stw_load method, uint32_t kind,
                                       stw_tier tier, uint64_t *whole_bytes) {
    const stw_rank_kind *k = &job->kinds[kind];
    bool reads = method == STW_LOAD_RANK0_BROADCAST ? k->first
                 : method == STW_LOAD_NODE_LEADER   ? k->leader
                                                    : true;
    if (tier == STW_TIER_NVME || (tier == STW_TIER_HOST && !reads)) return 0;
    if (tier == STW_TIER_HOST ? !stw_load_is_whole(job, method) : !stw_load_is_whole_on_gpu(method))
        return STW_LOAD_SLOTS * STW_LOAD_PIECE_BYTES;
    if (*whole_bytes == 0) *whole_bytes = whole_model_bytes(job);
    return tier == STW_TIER_GPU ? beside_params(job, kind, *whole_bytes) : *whole_bytes;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/staging.h"

#include "core/checked.h"
#include "plan/program/layout.h"

/* ---- pieces ---- */

static uint64_t piece_elements(const stw_tensor *tensor) {
    uint64_t bytes = stw_dtype_bits(tensor->dtype) > 32 ? 8 : 4;
    return STW_LOAD_PIECE_BYTES / bytes;
}

stw_status stw_load_pieces(const stw_job *job, stw_pool *pool, stw_load_piece **pieces,
                           uint32_t *n_pieces, stw_error *err) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < job->model->n_tensors; t++)
        n += stw_div_up_u64(job->model->tensors[t].numel, piece_elements(&job->model->tensors[t]));
    stw_load_piece *list = n < UINT32_MAX ? stw_pool_array(pool, n, sizeof *list) : NULL;
    if (list == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "load pieces", "no room for %llu pieces",
                        (unsigned long long)n);
    uint32_t i = 0;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        const stw_tensor *tensor = &job->model->tensors[t];
        uint64_t step = piece_elements(tensor);
        for (uint64_t first = 0; first < tensor->numel; first += step)
            list[i++] = (stw_load_piece){t, first, stw_min_u64(step, tensor->numel - first)};
    }
    *pieces = list;
    *n_pieces = i;
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
    return method == STW_LOAD_ALL_RANKS ||
           (!job->engine->spec.executes && method != STW_LOAD_SHARDED_READ);
}

/* Weights from a seed are made in fp32. */
static bool from_seed(const stw_job *job) {
    return job->engine->spec.executes && job->run->load.weights == NULL;
}

unsigned stw_load_element_bits(const stw_job *job, uint32_t tensor) {
    return from_seed(job) ? 32 : stw_dtype_bits(job->model->tensors[tensor].dtype);
}

uint64_t stw_load_piece_bytes(const stw_job *job, const stw_load_piece *piece) {
    if (from_seed(job)) return piece->count * 4;
    return stw_tensor_run_bytes(&job->model->tensors[piece->tensor], piece->first, piece->count);
}

uint64_t stw_load_held_bytes(const stw_job *job, const stw_load_piece *piece) {
    const uint32_t wish = job->run->load.dtype;
    if (job->engine->spec.executes || wish == STW_NONE) return stw_load_piece_bytes(job, piece);
    stw_dtype dtype = wish == STW_AUTO ? job->run->precision.params : (stw_dtype)wish;
    return piece->count * (stw_dtype_bits(dtype) / 8);
}

uint64_t stw_load_room_bytes(const stw_job *job, const stw_load_piece *piece) {
    uint64_t bytes = stw_load_held_bytes(job, piece);
    uint64_t element = stw_dtype_bits(job->model->tensors[piece->tensor].dtype) > 32 ? 8 : 4;
    if (job->engine->spec.executes) bytes = stw_max_u64(bytes, piece->count * element);
    return stw_round_up_u64(bytes, STW_ALIGN_BYTES);
}

static uint64_t whole_model_bytes(const stw_job *job) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        const stw_tensor *tensor = &job->model->tensors[t];
        uint64_t step = piece_elements(tensor);
        for (uint64_t first = 0; first < tensor->numel; first += step)
            bytes += stw_load_room_bytes(
                job, &(stw_load_piece){t, first, stw_min_u64(step, tensor->numel - first)});
    }
    return bytes;
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
    if (tier != STW_TIER_HOST || !stw_load_is_whole(job, method))
        return STW_LOAD_SLOTS * STW_LOAD_PIECE_BYTES;
    if (*whole_bytes == 0) *whole_bytes = whole_model_bytes(job);
    return *whole_bytes;
}

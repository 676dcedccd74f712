/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/partition.h"

#include "core/checked.h"
#include "engines/tensor_parallel.h"

/* Rows along which a tensor is cut. Only counts matter of what tensor parallelism cuts by columns:
 * a rank's part is a run of as many elements. A routed expert tensor is cut by ep x etp over
 * experts and rows first, everything else by its first dimension alone. */
void stw_chunks_range(const stw_job *job, uint32_t t, uint32_t rank, uint64_t *first,
                      uint64_t *count) {
    const stw_tensor *tensor = &job->model->tensors[t];
    const uint32_t tp = stw_job_tp(job), position = rank / tp % job->group;
    uint64_t rows = tensor->rank > 0 ? tensor->shape[0] : 1;
    uint64_t row = rows > 0 ? tensor->numel / rows : 0;
    uint64_t base = 0;
    uint32_t parts = job->group, part = position;
    if (tensor->expert && job->expert_cut > 1) {
        uint64_t mine = tensor->numel / job->expert_cut;
        base = mine * (position % job->expert_cut);
        part = position / job->expert_cut;
        parts = job->expert_group;
        rows = stw_div_up_u64(mine, row > 0 ? row : 1);
        if (rows * row !=
            mine) { /* etp cuts inside an expert: go on row by row of the next dimension */
            row = tensor->rank > 1 && tensor->shape[1] > 0 ? row / tensor->shape[1] : 1;
            rows = mine / row;
        }
    }
    if (tp > 1) {
        const uint64_t mine = stw_job_part(job, t);
        rows = stw_tp_rows(job, t, &row);
        if (mine < tensor->numel) base = mine * (rank % tp);
    }
    uint64_t chunk = stw_div_up_u64(rows, parts);
    uint64_t begin = stw_min_u64(rows, chunk * part), end = stw_min_u64(rows, begin + chunk);
    *first = base + begin * row;
    *count = (end - begin) * row;
}

static stw_status check_experts(const stw_job *job, stw_error *err) {
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        const stw_tensor *tensor = &job->model->tensors[t];
        if (tensor->expert && tensor->numel % job->expert_cut != 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.ep",
                            "ep x etp = %u does not divide the %llu elements of %s",
                            job->expert_cut, (unsigned long long)tensor->numel, tensor->name);
    }
    return STW_STATUS_OK;
}

uint32_t stw_chunks_representative(const stw_job *job, uint32_t rank) {
    const uint32_t tp = stw_job_tp(job);
    return rank / tp % job->group * tp;
}

/* Blocks of a group have equal shapes, so one of each says how all are cut. */
uint64_t stw_chunks_parts(const stw_job *job, uint32_t rank) {
    uint64_t hash = 1469598103934665603ull;
    for (uint32_t b = 0; b < job->model->n_blocks; b++) {
        const stw_block *block = &job->model->blocks[b];
        for (uint32_t i = 0; i < block->n_tensors && block->instance == 0; i++) {
            uint64_t first, count;
            stw_chunks_range(job, block->first_tensor + i, rank, &first, &count);
            hash = (hash ^ count) * 1099511628211ull;
        }
    }
    return hash;
}

stw_status stw_chunks_cut(const stw_job *job, uint32_t space, uint32_t rank, stw_space *out,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_experts(job, err));
    uint64_t global = 0;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        const stw_tensor *tensor = &job->model->tensors[t];
        uint64_t first, count;
        if (space != STW_SPACE_PARAMS && !stw_job_trains(job, t)) {
            global += tensor->numel;
            continue;
        }
        stw_chunks_range(job, t, rank, &first, &count);
        STW_TRY(stw_space_add(out, t, global, first, count, err));
        global += tensor->numel;
    }
out:
    return status;
}

/* The first replica of each shard. */
bool stw_chunks_count(const stw_job *job, uint32_t space, uint32_t rank) {
    (void)space;
    return rank < job->group * stw_job_tp(job);
}

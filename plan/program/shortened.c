/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/shortened.h"

#include "core/checked.h"
#include "plan/program/staging.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "shortened job", "out of memory");
}

stw_status stw_average_piece_of(const stw_job *job, stw_average_piece *out, stw_error *err) {
    const stw_model *model = job->model;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return no_memory(err);
    stw_view *pieces = NULL;
    uint32_t n = 0, largest = 0;
    uint64_t bytes = 0;
    stw_status status = stw_load_pieces(job, pool, &pieces, &n, err);
    for (uint32_t i = 0; status == STW_STATUS_OK && i < n; i++)
        bytes += stw_load_piece_bytes(job, pieces[i]);
    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (model->tensors[t].numel > model->tensors[largest].numel) largest = t;
    if (status == STW_STATUS_OK && n > 0)
        *out = (stw_average_piece){n, model->tensors[largest].dtype,
                                   bytes / n * 8 / stw_dtype_bits(model->tensors[largest].dtype)};
    stw_pool_free(pool);
    return status;
}

static stw_status shorten_model(const stw_model *model, uint32_t pieces,
                                const stw_average_piece *average, stw_pool *pool, stw_model **out,
                                stw_error *err) {
    stw_model *m = stw_pool_alloc(pool, sizeof *m);
    stw_tensor *tensors = stw_pool_array(pool, pieces, sizeof *tensors);
    stw_block *block = stw_pool_alloc(pool, sizeof *block);
    stw_block_group *group = stw_pool_alloc(pool, sizeof *group);
    if (m == NULL || tensors == NULL || block == NULL || group == NULL) return no_memory(err);
    for (uint32_t t = 0; t < pieces; t++)
        tensors[t] = (stw_tensor){.name = "piece",
                                  .rank = 1,
                                  .shape = {average->numel},
                                  .numel = average->numel,
                                  .dtype = average->dtype,
                                  .experts = 1};
    *m = *model;
    m->facts_known = false;
    m->params = m->active_params = stw_times(pieces, average->numel);
    m->n_tensors = pieces;
    m->n_blocks = m->n_groups = 1;
    m->tensors = tensors;
    m->blocks = block;
    m->groups = group;
    *block = (stw_block){.n_tensors = pieces, .params = m->params};
    *group = (stw_block_group){.name = "pieces",
                               .count = 1,
                               .tensors = pieces,
                               .params = m->params,
                               .active_params = m->params};
    *out = m;
    return STW_STATUS_OK;
}

/* Spaces that are cut otherwise than the optimizer's get shorter by the same share. */
static uint64_t shortened_space(const stw_job *job, uint32_t id, uint64_t params) {
    uint64_t placed = stw_job_placed_params(job, job->largest), most = 0;
    for (uint32_t k = 0; k < job->n_kinds; k++)
        most = stw_max_u64(most, job->kinds[k].spaces[id].n);
    if (most == placed || placed == 0) return params;
    return (uint64_t)((double)most / (double)placed * (double)params + 0.5);
}

stw_status stw_job_shortened(const stw_job *job, uint64_t params, uint32_t pieces,
                             const stw_average_piece *average, stw_pool *pool, stw_job **out,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_model *model = NULL;
    STW_TRY(shorten_model(job->model, pieces, average, pool, &model, err));
    stw_job *short_job = stw_pool_alloc(pool, sizeof *short_job);
    stw_rank_kind *kinds = stw_pool_array(pool, job->n_kinds, sizeof *kinds);
    uint64_t *block_params = stw_pool_array(pool, 2, sizeof *block_params);
    if (short_job == NULL || kinds == NULL || block_params == NULL) return no_memory(err);
    stw_space *spaces = stw_pool_array(pool, job->n_spaces, sizeof *spaces);
    if (spaces == NULL) return no_memory(err);
    for (uint32_t id = 0; id < job->n_spaces; id++) {
        spaces[id] = (stw_space){.pool = pool};
        STW_TRY(stw_space_add(&spaces[id], 0, 0, 0, shortened_space(job, id, params), err));
    }
    block_params[0] = spaces[STW_SPACE_PARAMS].n;
    block_params[1] = spaces[STW_SPACE_GRADS].n;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        kinds[k] = job->kinds[k];
        kinds[k].params = block_params[0];
        kinds[k].block_params = &block_params[0];
        kinds[k].block_grads = &block_params[1];
        kinds[k].spaces = spaces;
    }
    *short_job = *job;
    short_job->pool = pool;
    short_job->model = model;
    short_job->frozen = NULL;
    short_job->kinds = kinds;
    short_job->files = (stw_space){.pool = pool};
    for (uint32_t t = 0; t < pieces; t++)
        STW_TRY(stw_space_add(&short_job->files, t, stw_times(t, average->numel), 0, average->numel,
                              err));
    short_job->unit_params = params;
    short_job->n_units = 1;
    *out = short_job;
out:
    return status;
}

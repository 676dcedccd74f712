/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/job/saved_job.h"

#include "core/checked.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

stw_component stw_saved_component(stw_saved_kind kind) {
    static const stw_component components[STW_N_SAVED] = {
        STW_COMPONENT_PARAMS, STW_COMPONENT_MASTER, STW_COMPONENT_EXP_AVG,
        STW_COMPONENT_EXP_AVG_SQ};
    return components[kind];
}

typedef struct pieces {
    stw_pool *pool;
    const stw_saved *saved;
    stw_held *list;
    uint32_t n;
    size_t room;
} pieces;

/* What a space has of the tensors, as boxes. */
static stw_status add_space(pieces *p, const stw_space *space, uint32_t rank, uint32_t kinds,
                            stw_error *err) {
    stw_box boxes[STW_BOX_RUNS];
    for (uint32_t i = 0; i < space->n_segments; i++) {
        const stw_segment *s = &space->segments[i];
        const unsigned n =
            stw_box_of_run(p->saved->shapes[s->tensor], s->tensor_first, s->n, boxes);
        p->list =
            stw_pool_regrow(p->pool, p->list, p->n, (size_t)p->n + n, &p->room, sizeof *p->list);
        if (p->list == NULL) return no_memory(err);
        for (unsigned b = 0; b < n; b++)
            p->list[p->n++] = (stw_held){boxes[b], rank, s->tensor, kinds};
    }
    return STW_STATUS_OK;
}

static stw_status divide(const stw_job *job, stw_saved_job *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    pieces p = {.pool = stw_pool_new(), .saved = out->saved};
    const uint32_t state = out->saved->kinds & STW_SAVED_STATE;
    const uint32_t params = out->saved->kinds & ~STW_SAVED_STATE;
    if (p.pool == NULL) STW_TRY(no_memory(err));
    for (uint32_t r = 0; r < job->world; r++) {
        stw_space space = {.pool = p.pool}, other = {.pool = p.pool};
        if (params != 0) {
            STW_TRY(stw_job_space(job, STW_SPACE_PARAMS, r, p.pool, &space, err));
            STW_TRY(add_space(&p, &space, r, params, err));
        }
        if (state == 0) continue;
        STW_TRY(stw_job_space(job, STW_SPACE_OPTIMIZER, r, p.pool, &other, err));
        STW_TRY(add_space(&p, &other, r, state, err));
    }
    STW_TRY(stw_shares_make(out->pool, out->saved, job->world, p.list, p.n, &out->shares, err));
out:
    stw_pool_free(p.pool);
    return status;
}

stw_status stw_saved_job_new(const stw_job *job, stw_saved_job **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    stw_saved_job *own = pool != NULL ? stw_pool_alloc(pool, sizeof *own) : NULL;
    stw_saved_options options = {.frozen = job->frozen};
    const stw_run_spec *run = job->run;
    *out = NULL;
    if (own == NULL) {
        stw_pool_free(pool);
        return no_memory(err);
    }
    own->pool = pool;
    options.dtypes[STW_SAVED_PARAMS] = run->precision.params;
    options.dtypes[STW_SAVED_MASTER] = STW_DTYPE_F32;
    options.dtypes[STW_SAVED_EXP_AVG] = run->precision.exp_avg;
    options.dtypes[STW_SAVED_EXP_AVG_SQ] = run->precision.exp_avg_sq;
    for (uint32_t k = 0; k < STW_N_SAVED; k++) {
        const bool wanted =
            k == STW_SAVED_PARAMS ? run->checkpoint.model : run->checkpoint.optimizer;
        if (wanted && stw_job_element_bytes(job, stw_saved_component((stw_saved_kind)k)) > 0)
            options.kinds |= 1u << k;
    }
    STW_TRY(stw_saved_make(job->model, &options, &own->saved, err));
    STW_TRY(divide(job, own, err));
    *out = own;
    own = NULL;
out:
    stw_saved_job_free(own);
    return status;
}

void stw_saved_job_free(stw_saved_job *saved) {
    if (saved == NULL) return;
    stw_saved_free(saved->saved);
    stw_pool_free(saved->pool);
}

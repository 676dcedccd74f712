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
    const stw_saved_files *saved;
    stw_held *list;
    uint32_t n;
    size_t room;
} pieces;

/* What a space has of the tensors, as boxes. */
static stw_status add_space(pieces *p, const stw_space *space, const stw_held *like,
                            stw_error *err) {
    stw_box boxes[STW_BOX_RUNS];
    for (uint32_t i = 0; i < space->n_segments && like->kinds != 0; i++) {
        const stw_segment *s = &space->segments[i];
        const unsigned n =
            stw_box_of_run(p->saved->shapes[s->tensor], s->tensor_first, s->n, boxes);
        p->list =
            stw_pool_regrow(p->pool, p->list, p->n, (size_t)p->n + n, &p->room, sizeof *p->list);
        if (p->list == NULL) return no_memory(err);
        for (unsigned b = 0; b < n; b++) {
            stw_held *own = &p->list[p->n++];
            *own = *like;
            own->box = boxes[b];
            own->tensor = s->tensor;
        }
    }
    return STW_STATUS_OK;
}

/* What a rank holds: parameters, and optimizer state. */
typedef struct holding {
    stw_space params, state;
} holding;

static stw_status make_holding(const stw_job *job, uint32_t rank, stw_pool *pool, holding *out,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = (holding){{.pool = pool}, {.pool = pool}};
    STW_TRY(stw_job_space(job, STW_SPACE_PARAMS, rank, pool, &out->params, err));
    STW_TRY(stw_job_space(job, STW_SPACE_OPTIMIZER, rank, pool, &out->state, err));
out:
    return status;
}

static bool same_elements(const stw_space *a, const stw_space *b) {
    bool same = a->n_segments == b->n_segments;
    for (uint32_t i = 0; same && i < a->n_segments; i++)
        same = a->segments[i].global_first == b->segments[i].global_first &&
               a->segments[i].n == b->segments[i].n;
    return same;
}

/* Does a rank hold the same elements? */
static stw_status holds(const stw_job *job, uint32_t rank, const holding *what, bool *same,
                        stw_error *err) {
    holding other;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return no_memory(err);
    const stw_status status = make_holding(job, rank, pool, &other, err);
    *same = status == STW_STATUS_OK && same_elements(&what->params, &other.params) &&
            same_elements(&what->state, &other.state);
    stw_pool_free(pool);
    return status;
}

/* All that the ranks hold; neighbours that hold the same are looked at once. */
static stw_status add_ranks(const stw_job *job, pieces *p, const stw_job_shares *of,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    holding own;
    stw_held like;
    for (uint32_t i = 0; i < of->n; i += 1 + like.alike) {
        like = (stw_held){.rank = i};
        STW_TRY(make_holding(job, of->ranks[i], p->pool, &own, err));
        for (bool same = true; i + like.alike + 1 < of->n; like.alike++) {
            STW_TRY(holds(job, of->ranks[i + like.alike + 1], &own, &same, err));
            if (!same) break;
        }
        like.kinds = p->saved->kinds & ~STW_SAVED_STATE;
        STW_TRY(add_space(p, &own.params, &like, err));
        like.kinds = p->saved->kinds & STW_SAVED_STATE;
        STW_TRY(add_space(p, &own.state, &like, err));
    }
out:
    return status;
}

static stw_status find_ranks(const stw_job *job, uint32_t rank, stw_pool *pool, stw_job_shares *out,
                             stw_error *err) {
    const uint32_t like = job->engine->representative(job, rank);
    out->ranks = stw_pool_array(pool, job->world, sizeof *out->ranks);
    if (out->ranks == NULL) return no_memory(err);
    for (uint32_t r = 0; r < job->world; r++) {
        if (r == rank) out->own = out->n;
        if (job->engine->representative(job, r) == like) out->ranks[out->n++] = r;
    }
    return STW_STATUS_OK;
}

stw_status stw_job_share(const stw_job *job, const stw_saved_files *saved, uint32_t rank,
                         stw_pool *pool, stw_job_shares *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    pieces p = {.pool = stw_pool_new(), .saved = saved};
    *out = (stw_job_shares){.n = 0};
    if (p.pool == NULL) STW_TRY(no_memory(err));
    STW_TRY(find_ranks(job, rank, pool, out, err));
    STW_TRY(add_ranks(job, &p, out, err));
    STW_TRY(stw_shares_make(pool, saved, out->n, p.list, p.n, &out->shares, err));
out:
    stw_pool_free(p.pool);
    return status;
}

stw_status stw_job_saved(const stw_job *job, stw_saved_files **out, stw_error *err) {
    stw_saved_options options = {.frozen = job->frozen};
    const stw_run_spec *run = job->run;
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
    return stw_saved_make(job->model, &options, out, err);
}

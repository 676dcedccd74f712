/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/save_plan.h"

#include <string.h>

#include "core/checked.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

/* Elements that each of the ranks that divide the same state writes of each kind of it. */
typedef uint64_t elements[STW_N_SAVED];

typedef struct reading {
    const stw_job *job;
    const stw_saved_files *saved;
    stw_pool *pool; /* scratch */
    stw_save_plan *plan;
    uint32_t *place; /* [world] of a rank among those with which it divides */
    uint32_t *seen;  /* [world] ranks so far, by their representative */
    elements **of;   /* [n_kinds] by place */
} reading;

static bool same_space(const stw_space *a, const stw_space *b) {
    if (a->n_segments != b->n_segments) return false;
    for (uint32_t i = 0; i < a->n_segments; i++)
        if (a->segments[i].tensor != b->segments[i].tensor || a->segments[i].n != b->segments[i].n)
            return false;
    return true;
}

static bool same_shards(const stw_rank_kind *a, const stw_rank_kind *b) {
    return same_space(&a->spaces[STW_SPACE_PARAMS], &b->spaces[STW_SPACE_PARAMS]) &&
           same_space(&a->spaces[STW_SPACE_OPTIMIZER], &b->spaces[STW_SPACE_OPTIMIZER]);
}

static stw_status divide(reading *r, uint32_t k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_rank_kind *kind = &r->job->kinds[k];
    stw_job_shares shares;
    for (uint32_t like = 0; like < k; like++)
        if (r->of[like] != NULL && same_shards(kind, &r->job->kinds[like])) {
            r->of[k] = r->of[like];
            return STW_STATUS_OK;
        }
    STW_TRY(stw_job_share(r->job, r->saved, kind->ranks[0], r->pool, &shares, err));
    r->of[k] = stw_pool_array(r->pool, shares.n, sizeof **r->of);
    if (r->of[k] == NULL) STW_TRY(no_memory(err));
    for (uint32_t p = 0; p < shares.n; p++)
        for (uint32_t i = shares.shares.first[p]; i < shares.shares.first[p + 1]; i++)
            for (uint32_t s = 0; s < STW_N_SAVED; s++)
                if ((shares.shares.shares[i].kinds & 1u << s) != 0)
                    r->of[k][p][s] += stw_box_volume(&shares.shares.shares[i].box);
out:
    return status;
}

static void read_kind(reading *r, uint32_t k) {
    const stw_rank_kind *kind = &r->job->kinds[k];
    stw_save_kind *out = &r->plan->kinds[k];
    for (uint32_t i = 0; i < kind->n_ranks; i++) {
        const uint32_t rank = kind->ranks[i];
        const uint64_t *written = r->of[k][r->place[rank]];
        uint64_t bytes = rank == 0 ? r->plan->header_bytes : 0;
        for (uint32_t s = 0; s < STW_N_SAVED; s++)
            bytes = stw_plus(
                bytes, stw_times(written[s], stw_job_element_bytes(
                                                 r->job, stw_saved_component((stw_saved_kind)s))));
        r->plan->rank_bytes[rank] = bytes;
        if (i > 0 && bytes <= out->bytes) continue;
        out->rank = rank;
        out->bytes = bytes;
        memcpy(out->written, written, sizeof out->written);
    }
    for (uint32_t s = 0; s < STW_N_SAVED; s++)
        out->held[s] = kind->spaces[stw_component_space(stw_saved_component((stw_saved_kind)s))].n;
}

static stw_status read_kinds(reading *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job *job = r->job;
    r->place = stw_pool_array(r->pool, job->world, sizeof *r->place);
    r->seen = stw_pool_array(r->pool, job->world, sizeof *r->seen);
    r->of = stw_pool_array(r->pool, job->n_kinds, sizeof *r->of);
    if (r->place == NULL || r->seen == NULL || r->of == NULL) STW_TRY(no_memory(err));
    for (uint32_t rank = 0; rank < job->world; rank++)
        r->place[rank] = r->seen[job->engine->representative(job, rank)]++;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        if (job->kinds[k].home != 0) continue;
        STW_TRY(divide(r, k, err));
        read_kind(r, k);
    }
out:
    return status;
}

static stw_status make(const stw_job *job, stw_pool *pool, const void **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_saved_files *saved = NULL;
    stw_save_plan *plan = stw_pool_alloc(pool, sizeof *plan);
    reading r = {.job = job, .plan = plan, .pool = stw_pool_new()};
    if (plan == NULL || r.pool == NULL) STW_TRY(no_memory(err));
    plan->kinds = stw_pool_array(pool, job->n_kinds, sizeof *plan->kinds);
    plan->rank_bytes = stw_pool_array(pool, job->world, sizeof *plan->rank_bytes);
    if (plan->kinds == NULL || plan->rank_bytes == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_job_saved(job, &saved, err));
    plan->n_files = saved->n_files;
    plan->bytes = saved->bytes;
    for (uint32_t f = 0; f < saved->n_files; f++)
        plan->header_bytes += saved->files[f].header_bytes;
    r.saved = saved;
    STW_TRY(read_kinds(&r, err));
    *out = plan;
out:
    stw_saved_free(saved);
    stw_pool_free(r.pool);
    return status;
}

stw_status stw_save_plan_of(const stw_job *job, const stw_save_plan **out, stw_error *err) {
    const void *value = NULL;
    const stw_status status = stw_job_once_get(job, STW_ONCE_SAVE, make, &value, err);
    *out = value;
    return status;
}

/* Elements before one; all before the last. */
static uint64_t written_before(const stw_save_kind *kind, stw_saved_kind state, uint64_t end) {
    const uint64_t held = kind->held[state], written = kind->written[state];
    if (written == held || end >= held) return stw_min_u64(end, written);
    return (uint64_t)((double)written * ((double)end / (double)held));
}

uint64_t stw_save_written(const stw_save_kind *kind, stw_saved_kind state, uint64_t first,
                          uint64_t n) {
    return written_before(kind, state, first + n) - written_before(kind, state, first);
}

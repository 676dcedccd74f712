/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/sync/schedule.h"

#include <pthread.h>
#include <stdlib.h>

#include "plan/sync/rounds.h"

typedef struct rank_view {
    stw_pool *pool; /* NULL: not made yet */
    stw_sync_view view;
} rank_view;

struct stw_sync_schedule {
    stw_pool *pool; /* of the job, and of what follows */
    stw_sync_job job;
    stw_sync_lots lots;
    uint32_t rounds;
    uint64_t sum;
    pthread_mutex_t mutex; /* of the views */
    rank_view *views;      /* [world] */
};

/* ---- the sum ---- */

static uint64_t mix(uint64_t sum, uint64_t value) {
    sum = (sum ^ value) * 0x9E3779B97F4A7C15ull;
    return sum ^ (sum >> 32);
}

static uint64_t mix_box(uint64_t sum, const stw_box *box) {
    for (int d = 0; d < STW_BOX_DIMS; d++) sum = mix(mix(sum, box->first[d]), box->count[d]);
    return sum;
}

/* Names are left out: ranks may call tensors otherwise. */
static uint64_t sum_of(const stw_sync_schedule *schedule) {
    const stw_sync_lots *lots = &schedule->lots;
    const stw_sync_job *job = &schedule->job;
    uint64_t sum = mix(mix(job->world, job->bucket_bytes), schedule->rounds);
    for (uint32_t l = 0; l < lots->n_lots; l++) {
        const stw_sync_lot *lot = &lots->lots[l];
        sum = mix_box(mix(sum, lot->tensor), &lot->box);
        sum = mix(mix(sum, lot->round), job->tensors[lot->tensor].dtype);
        for (uint32_t k = 0; k < lot->n_grains; k++) {
            const stw_sync_grain *g = &lots->grains[lot->first_grain + k];
            const stw_box box = stw_sync_grain_box(lots, lot, g);
            sum = mix_box(mix(sum, g->set), &box);
            if (g->set != STW_SYNC_NONE) sum = mix(sum, job->sources[g->source].rank);
        }
    }
    for (uint32_t s = 0; s < lots->sets.n; s++) {
        sum = mix(sum, lots->sets.first[s]);
        for (uint32_t i = lots->sets.first[s]; i < lots->sets.first[s + 1]; i++)
            sum = mix(sum, lots->sets.ranks[i]);
    }
    return sum;
}

/* ---- making and freeing ---- */

stw_status stw_sync_schedule_new(stw_pool *pool, const stw_sync_job *job, stw_sync_schedule **out,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sync_schedule *schedule = NULL;
    *out = NULL;
    STW_TRY(stw_sync_job_check(job, err));
    schedule = stw_pool_alloc(pool, sizeof *schedule);
    if (schedule == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory"));
    schedule->pool = pool;
    schedule->job = *job;
    schedule->views = stw_pool_array(pool, job->world, sizeof *schedule->views);
    if (schedule->views == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory"));
    STW_TRY(stw_sync_lots_make(pool, job, &schedule->lots, err));
    STW_TRY(stw_sync_rounds_fill(job, &schedule->lots, &schedule->rounds, err));
    schedule->sum = sum_of(schedule);
    pthread_mutex_init(&schedule->mutex, NULL);
    *out = schedule;
    pool = NULL;
out:
    stw_pool_free(pool);
    return status;
}

void stw_sync_schedule_free(stw_sync_schedule *schedule) {
    if (schedule == NULL) return;
    for (uint32_t r = 0; r < schedule->job.world; r++) stw_pool_free(schedule->views[r].pool);
    pthread_mutex_destroy(&schedule->mutex);
    stw_pool_free(schedule->pool);
}

const stw_sync_job *stw_sync_schedule_job(const stw_sync_schedule *schedule) {
    return &schedule->job;
}

const stw_sync_lots *stw_sync_schedule_lots(const stw_sync_schedule *schedule) {
    return &schedule->lots;
}

uint32_t stw_sync_schedule_rounds(const stw_sync_schedule *schedule) { return schedule->rounds; }

uint64_t stw_sync_schedule_sum(const stw_sync_schedule *schedule) { return schedule->sum; }

const stw_box *stw_sync_schedule_lot(const stw_sync_schedule *schedule, uint32_t lot) {
    return &schedule->lots.lots[lot].box;
}

stw_status stw_sync_schedule_view(stw_sync_schedule *schedule, uint32_t rank,
                                  const stw_sync_view **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = NULL;
    *out = NULL;
    if (rank >= schedule->job.world)
        return stw_fail(err, STW_STATUS_USAGE, "rank", "found %u, expected fewer than %u", rank,
                        schedule->job.world);
    pthread_mutex_lock(&schedule->mutex);
    rank_view *mine = &schedule->views[rank];
    if (mine->pool == NULL) {
        pool = stw_pool_new();
        if (pool == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory"));
        STW_TRY(stw_sync_view_make(pool, &schedule->job, &schedule->lots, schedule->rounds, rank,
                                   &mine->view, err));
        mine->pool = pool;
        pool = NULL;
    }
    *out = &mine->view;
out:
    pthread_mutex_unlock(&schedule->mutex);
    stw_pool_free(pool);
    return status;
}

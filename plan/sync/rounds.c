/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/sync/rounds.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

#define LEAST_SHARE 8 /* of the buffers that a role has, one in so many */
/* Where a round has less room than this share of its limit nobody looks for more. */
#define FULL_SHARE 64
/* At rounds, for one lot, before it goes to one that is empty: the first ones with room, then the
 * last ones before the empty one. */
#define MOST_LOOKS 64

/* Bytes are counted in units of STW_SYNC_ALIGN, and rounds x ranks of them are kept. */
typedef struct work {
    const stw_sync_job *job;
    stw_sync_lots *lots;
    uint32_t *limit[STW_SYNC_N_ROLES]; /* [world], units of one round */
    uint32_t *open[STW_SYNC_N_ROLES];  /* [world]: the first round that is not full */
    uint32_t *end[STW_SYNC_N_ROLES];   /* [world]: the round after the last one with anything */
    uint32_t *need[STW_SYNC_N_ROLES];  /* [world]: of the lot in hand */
    uint32_t *used;                    /* [n_rounds][N_ROLES][world] */
    uint32_t n_rounds;
    size_t capacity;     /* rounds */
    uint32_t *concerned; /* [N_ROLES * world]: role * world + rank of those with a need */
    uint32_t n_concerned;
} work;

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

static void set_limits(work *w) {
    const uint64_t all = w->job->bucket_bytes / STW_SYNC_ALIGN, least = all / LEAST_SHARE;
    for (uint32_t r = 0; r < w->job->world; r++) {
        uint64_t sum = 0, roles = 0, left = 0;
        for (int role = 0; role < STW_SYNC_N_ROLES; role++) {
            const uint64_t bytes = w->lots->bytes[role][r];
            sum = stw_plus(sum, bytes);
            if (bytes > 0) roles++;
        }
        left = all - stw_times(least, roles);
        for (int role = 0; role < STW_SYNC_N_ROLES; role++) {
            const uint64_t bytes = w->lots->bytes[role][r];
            const double share = sum > 0 ? (double)bytes / (double)sum : 0;
            const uint64_t more = /* shares may add up to a little more than 1 */
                stw_min_u64(stw_scaled(all - stw_times(least, roles), share), left);
            const uint64_t units = bytes > 0 ? least + more : 0;
            left -= more;
            w->limit[role][r] = (uint32_t)stw_min_u64(units, UINT32_MAX);
        }
    }
}

static uint32_t *used_at(const work *w, uint32_t round, uint32_t concerned) {
    return &w->used[(size_t)round * STW_SYNC_N_ROLES * w->job->world + concerned];
}

static stw_status make_round(work *w, stw_error *err) {
    const size_t row = (size_t)STW_SYNC_N_ROLES * w->job->world;
    if (w->n_rounds == w->capacity) {
        const size_t capacity = w->capacity < 16 ? 16 : w->capacity * 2;
        uint32_t *used = NULL;
        if (capacity < UINT32_MAX / 2 && capacity < SIZE_MAX / sizeof *used / row)
            used = realloc(w->used, capacity * row * sizeof *used);
        if (used == NULL) return no_memory(err);
        w->used = used;
        w->capacity = capacity;
    }
    memset(w->used + w->n_rounds++ * row, 0, row * sizeof *w->used);
    return STW_STATUS_OK;
}

static void add_need(work *w, int role, uint32_t rank, uint64_t bytes) {
    uint32_t *need = &w->need[role][rank];
    if (bytes == 0) return;
    if (*need == 0) w->concerned[w->n_concerned++] = (uint32_t)role * w->job->world + rank;
    *need += (uint32_t)(stw_sync_aligned(bytes) / STW_SYNC_ALIGN);
}

static void find_needs(work *w, const stw_sync_lot *lot) {
    const stw_sync_lots *lots = w->lots;
    const stw_sync_job *job = w->job;
    const stw_sync_cell *target = &lots->targets.cells[lot->cell];
    const uint32_t *members = lots->targets.members + target->first_member;
    const uint64_t width = stw_sync_width(job->tensors[lot->tensor].dtype);
    w->n_concerned = 0;
    for (uint32_t g = 0; g < lot->n_grains; g++) {
        const stw_sync_grain *grain = &lots->grains[lot->first_grain + g];
        if (grain->set == STW_SYNC_NONE) continue;
        const stw_box box = stw_sync_grain_box(lots, lot, grain);
        const uint64_t bytes = stw_times(stw_box_volume(&box), width);
        add_need(w, STW_SYNC_SENDS, job->sources[grain->source].rank, bytes);
        for (uint32_t i = lots->sets.first[grain->set]; i < lots->sets.first[grain->set + 1]; i++)
            add_need(w, STW_SYNC_RECEIVES, lots->sets.ranks[i], bytes);
    }
    for (uint32_t i = 0, next = 0; i < target->n_members; i += next) {
        const uint32_t rank = job->targets[members[i]].rank;
        add_need(w, STW_SYNC_BUCKET, rank,
                 stw_sync_bucket_need(job, lot, members + i, target->n_members - i, &next));
    }
}

static bool has_room(const work *w, uint32_t round) {
    const uint32_t world = w->job->world;
    if (round >= w->n_rounds) return true;
    for (uint32_t i = 0; i < w->n_concerned; i++) {
        const uint32_t c = w->concerned[i], role = c / world, rank = c % world;
        if (*used_at(w, round, c) + (uint64_t)w->need[role][rank] > w->limit[role][rank])
            return false;
    }
    return true;
}

static uint32_t choose(const work *w) {
    const uint32_t world = w->job->world;
    uint32_t round = 0, empty = 0;
    for (uint32_t i = 0; i < w->n_concerned; i++) {
        const uint32_t c = w->concerned[i], role = c / world, rank = c % world;
        if (w->open[role][rank] > round) round = w->open[role][rank];
        if (w->end[role][rank] > empty) empty = w->end[role][rank];
    }
    for (uint32_t looks = 0; looks < MOST_LOOKS && round < empty; looks++, round++) {
        if (looks == MOST_LOOKS / 2 && empty - round > MOST_LOOKS / 2)
            round = empty - MOST_LOOKS / 2;
        if (has_room(w, round)) return round;
    }
    return round;
}

static stw_status put(work *w, stw_sync_lot *lot, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t world = w->job->world;
    const uint32_t round = choose(w);
    while (w->n_rounds <= round) STW_TRY(make_round(w, err));
    lot->round = round;
    for (uint32_t i = 0; i < w->n_concerned; i++) {
        const uint32_t c = w->concerned[i], role = c / world, rank = c % world;
        uint32_t *open = &w->open[role][rank];
        const uint32_t limit = w->limit[role][rank];
        *used_at(w, round, c) += w->need[role][rank];
        w->need[role][rank] = 0;
        if (w->end[role][rank] <= round) w->end[role][rank] = round + 1;
        while (*open < w->n_rounds && limit - *used_at(w, *open, c) <= limit / FULL_SHARE) ++*open;
    }
out:
    return status;
}

stw_status stw_sync_rounds_fill(const stw_sync_job *job, stw_sync_lots *lots, uint32_t *rounds,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    work w = {.job = job, .lots = lots};
    stw_pool *pool = stw_pool_new();
    const size_t world = job->world;
    w.concerned = stw_pool_array(pool, world, STW_SYNC_N_ROLES * sizeof *w.concerned);
    for (int role = 0; role < STW_SYNC_N_ROLES; role++) {
        w.limit[role] = stw_pool_array(pool, world, sizeof *w.limit[role]);
        w.open[role] = stw_pool_array(pool, world, sizeof *w.open[role]);
        w.end[role] = stw_pool_array(pool, world, sizeof *w.end[role]);
        w.need[role] = stw_pool_array(pool, world, sizeof *w.need[role]);
        if (w.limit[role] == NULL || w.open[role] == NULL || w.end[role] == NULL ||
            w.need[role] == NULL)
            STW_TRY(no_memory(err));
    }
    if (w.concerned == NULL) STW_TRY(no_memory(err));
    set_limits(&w);
    uint32_t last = 0;
    for (uint32_t i = 0; i < lots->n_lots; i++) {
        find_needs(&w, &lots->lots[i]);
        if (w.n_concerned > 0) /* what a rank copies inside its memory goes with its neighbours */
            STW_TRY(put(&w, &lots->lots[i], err));
        else
            lots->lots[i].round = last;
        last = lots->lots[i].round;
    }
    *rounds = w.n_rounds == 0 && lots->n_lots > 0 ? 1 : w.n_rounds;
out:
    free(w.used);
    stw_pool_free(pool);
    return status;
}

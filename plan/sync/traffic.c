/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/sync/traffic.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

/* Grains of a round with one sender and one set of receivers: they travel together. */
typedef struct group {
    uint32_t sender, set;
    uint64_t bytes;
} group;

typedef struct work {
    const stw_sync_job *job;
    const stw_sync_lots *lots;
    stw_pool *pool;
    uint32_t ranks_per_node;
    uint32_t *order; /* [n_lots]: by round */
    uint32_t *begin; /* [rounds + 1]: of a round in `order` */
    group *groups;   /* of one round */
    size_t n_groups, capacity;
    stw_sync_load *loads; /* [world] */
} work;

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

static stw_status sort_lots(work *w, uint32_t rounds, stw_error *err) {
    const stw_sync_lots *lots = w->lots;
    w->order = stw_pool_array(w->pool, (size_t)lots->n_lots + 1, sizeof *w->order);
    w->begin = stw_pool_array(w->pool, (size_t)rounds + 2, sizeof *w->begin);
    if (w->order == NULL || w->begin == NULL) return no_memory(err);
    for (uint32_t l = 0; l < lots->n_lots; l++) w->begin[lots->lots[l].round + 2]++;
    for (uint32_t r = 0; r < rounds; r++) w->begin[r + 1] += w->begin[r];
    for (uint32_t l = 0; l < lots->n_lots; l++) w->order[w->begin[lots->lots[l].round + 1]++] = l;
    return STW_STATUS_OK;
}

/* ---- lots ---- */

static stw_status add_group(work *w, uint32_t sender, uint32_t set, uint64_t bytes,
                            stw_error *err) {
    if (w->n_groups > 0) {
        group *last = &w->groups[w->n_groups - 1];
        if (last->sender == sender && last->set == set) {
            last->bytes += bytes;
            return STW_STATUS_OK;
        }
    }
    if (w->n_groups == w->capacity) {
        group *more = stw_pool_regrow(w->pool, w->groups, w->n_groups, w->n_groups + 1,
                                      &w->capacity, sizeof *more);
        if (more == NULL) return no_memory(err);
        w->groups = more;
    }
    w->groups[w->n_groups++] = (group){sender, set, bytes};
    return STW_STATUS_OK;
}

/* What comes to a target is not its rank's own. Members and sets ascend by rank. */
static void take_back(work *w, const stw_sync_cell *target, uint32_t set, uint64_t bytes) {
    const stw_sync_sets *sets = &w->lots->sets;
    const uint32_t *members = w->lots->targets.members + target->first_member;
    uint32_t s = sets->first[set];
    const uint32_t end = sets->first[set + 1];
    for (uint32_t i = 0; i < target->n_members && s < end; i++) {
        const uint32_t rank = w->job->targets[members[i]].rank;
        while (s < end && sets->ranks[s] < rank) s++;
        if (s < end && sets->ranks[s] == rank) w->loads[rank].own -= bytes;
    }
}

/* Bytes of a grain that go to targets of its sender. */
static uint64_t kept_bytes(const work *w, const stw_sync_cell *target, uint32_t sender,
                           uint64_t bytes) {
    const uint32_t *members = w->lots->targets.members + target->first_member;
    uint64_t kept = 0;
    for (uint32_t i = 0; i < target->n_members; i++)
        if (w->job->targets[members[i]].rank == sender) kept += bytes;
    return kept;
}

static stw_status add_lot(work *w, const stw_sync_lot *lot, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_sync_lots *lots = w->lots;
    const stw_sync_job *job = w->job;
    const uint64_t width = stw_sync_width(job->tensors[lot->tensor].dtype);
    const uint64_t all = stw_times(stw_box_volume(&lot->box), width);
    const stw_sync_cell *target = &lots->targets.cells[lot->cell];
    const uint32_t *members = lots->targets.members + target->first_member;
    for (uint32_t i = 0; i < target->n_members; i++) {
        const stw_sync_piece *piece = &job->targets[members[i]];
        stw_sync_load *load = &w->loads[piece->rank];
        load->placed += all;
        load->own += all;
        if (piece->memory == STW_SYNC_NONE) load->bucket_room += stw_sync_aligned(all);
    }
    for (uint32_t k = 0; k < lot->n_grains; k++) {
        const stw_sync_grain *grain = &lots->grains[lot->first_grain + k];
        if (grain->set == STW_SYNC_NONE) continue;
        const stw_box box = stw_sync_grain_box(lots, lot, grain);
        const uint64_t bytes = stw_times(stw_box_volume(&box), width);
        const uint32_t sender = job->sources[grain->source].rank;
        w->loads[sender].packed += bytes;
        w->loads[sender].own_sent += kept_bytes(w, target, sender, bytes);
        take_back(w, target, grain->set, bytes);
        STW_TRY(add_group(w, sender, grain->set, bytes, err));
    }
out:
    return status;
}

/* ---- groups ---- */

static int compare_groups(const void *a, const void *b) {
    const group *x = a, *y = b;
    if (x->sender != y->sender) return x->sender < y->sender ? -1 : 1;
    return x->set < y->set ? -1 : x->set > y->set;
}

static void send_group(work *w, uint32_t sender, uint32_t set, uint64_t bytes) {
    const stw_sync_sets *sets = &w->lots->sets;
    stw_sync_load *from = &w->loads[sender];
    from->send_room += stw_sync_aligned(bytes);
    for (uint32_t i = sets->first[set]; i < sets->first[set + 1]; i++) {
        stw_sync_load *to = &w->loads[sets->ranks[i]];
        const bool near = sets->ranks[i] / w->ranks_per_node == sender / w->ranks_per_node;
        to->receive_room += stw_sync_aligned(bytes);
        *(near ? &to->near_received : &to->far_received) += bytes;
        *(near ? &from->near_sent : &from->far_sent) += bytes;
        to->messages++;
        from->messages++;
        if (near) continue;
        to->far_messages++;
        from->far_messages++;
    }
}

static void send_groups(work *w) {
    if (w->n_groups == 0) return;
    qsort(w->groups, w->n_groups, sizeof *w->groups, compare_groups);
    for (size_t i = 0, next; i < w->n_groups; i = next) {
        uint64_t bytes = w->groups[i].bytes;
        for (next = i + 1;
             next < w->n_groups && compare_groups(&w->groups[i], &w->groups[next]) == 0; next++)
            bytes += w->groups[next].bytes;
        send_group(w, w->groups[i].sender, w->groups[i].set, bytes);
    }
    w->n_groups = 0;
}

stw_status stw_sync_traffic(const stw_sync_schedule *schedule, uint32_t ranks_per_node,
                            void (*take)(void *state, const stw_sync_load *loads), void *state,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t rounds = stw_sync_schedule_rounds(schedule);
    work w = {.job = stw_sync_schedule_job(schedule),
              .lots = stw_sync_schedule_lots(schedule),
              .pool = stw_pool_new(),
              .ranks_per_node = ranks_per_node > 0 ? ranks_per_node : 1};
    if (w.pool == NULL) STW_TRY(no_memory(err));
    w.loads = stw_pool_array(w.pool, w.job->world, sizeof *w.loads);
    if (w.loads == NULL) STW_TRY(no_memory(err));
    STW_TRY(sort_lots(&w, rounds, err));
    for (uint32_t r = 0; r < rounds; r++) {
        memset(w.loads, 0, w.job->world * sizeof *w.loads);
        for (uint32_t i = w.begin[r]; i < w.begin[r + 1]; i++)
            STW_TRY(add_lot(&w, &w.lots->lots[w.order[i]], err));
        send_groups(&w);
        take(state, w.loads);
    }
out:
    stw_pool_free(w.pool);
    return status;
}

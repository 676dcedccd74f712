/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/sync/lots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

/* Lots of one eighth of the buffers fill rounds well; work on one must not be too long for the 32
 * bits in which kernels count. */
#define PARTS_OF_BUCKET 8
#define MOST_BYTES (256ull << 20)

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

/* ---- lots, grains, cells ---- */

stw_box stw_sync_grain_box(const stw_sync_lots *lots, const stw_sync_lot *lot,
                           const stw_sync_grain *grain) {
    stw_box box = lot->box;
    (void)stw_box_meet(&lot->box, &lots->sources.cells[grain->cell].box, &box);
    return box;
}

bool stw_sync_cell_has(const stw_sync_cells *cells, const stw_sync_piece *pieces, uint32_t cell,
                       uint32_t rank, uint32_t *member) {
    const stw_sync_cell *c = &cells->cells[cell];
    const uint32_t *members = cells->members + c->first_member;
    uint32_t low = 0, high = c->n_members;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (pieces[members[middle]].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == c->n_members || pieces[members[low]].rank != rank) return false;
    *member = members[low];
    return true;
}

uint64_t stw_sync_bucket_need(const stw_sync_job *job, const stw_sync_lot *lot,
                              const uint32_t *members, uint32_t n, uint32_t *next) {
    const uint64_t bytes = stw_sync_aligned(
        stw_times(stw_box_volume(&lot->box), stw_sync_width(job->tensors[lot->tensor].dtype)));
    uint64_t need = 0;
    uint32_t i = 0;
    for (; i < n && job->targets[members[i]].rank == job->targets[members[0]].rank; i++)
        if (job->targets[members[i]].memory == STW_SYNC_NONE) need = stw_plus(need, bytes);
    *next = i;
    return need;
}

/* ---- sets of ranks ---- */

typedef struct work {
    stw_pool *pool;
    const stw_sync_job *job;
    stw_sync_lots *out;
    size_t lots_capacity, grains_capacity;
    /* Sets: the ranks of all, their hashes, and a table of 2^k places. */
    size_t first_capacity, ranks_capacity, hashes_capacity, table_size;
    uint64_t *hashes;
    uint32_t *table;
    uint32_t *ranks; /* [world]: a set in the making */
    uint64_t *sent;  /* [world]: bytes on the way so far */
    stw_sync_search search;
    uint32_t tensor;
    uint32_t *meeting; /* cells of sources that meet the cell of targets in hand */
    uint32_t n_meeting;
    size_t meeting_capacity;
} work;

static uint64_t hash_ranks(const uint32_t *ranks, uint32_t n) {
    uint64_t hash = 0xCBF29CE484222325ull ^ n;
    for (uint32_t i = 0; i < n; i++) {
        hash = (hash ^ ranks[i]) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 29;
    }
    return hash;
}

static bool set_is(const stw_sync_sets *sets, uint32_t set, const uint32_t *ranks, uint32_t n) {
    return sets->first[set + 1] - sets->first[set] == n &&
           memcmp(sets->ranks + sets->first[set], ranks, n * sizeof *ranks) == 0;
}

static stw_status grow_table(work *w, stw_error *err) {
    const size_t size = w->table_size == 0 ? 256 : w->table_size * 2;
    uint32_t *table = malloc(size * sizeof *table);
    if (table == NULL) return no_memory(err);
    memset(table, 0xFF, size * sizeof *table);
    for (uint32_t s = 0; s < w->out->sets.n; s++) {
        size_t at = w->hashes[s] & (size - 1);
        while (table[at] != STW_SYNC_NONE) at = (at + 1) & (size - 1);
        table[at] = s;
    }
    free(w->table);
    w->table = table;
    w->table_size = size;
    return STW_STATUS_OK;
}

static stw_status add_set(work *w, const uint32_t *ranks, uint32_t n, uint64_t hash,
                          stw_error *err) {
    stw_sync_sets *sets = &w->out->sets;
    const uint32_t begin = sets->n > 0 ? sets->first[sets->n] : 0;
    if (n > UINT32_MAX / 2 - begin) return no_memory(err);
    sets->first = stw_pool_regrow(w->pool, sets->first, sets->n > 0 ? sets->n + 1u : 0,
                                  sets->n + 2u, &w->first_capacity, sizeof *sets->first);
    sets->ranks = stw_pool_regrow(w->pool, sets->ranks, begin, (size_t)begin + n,
                                  &w->ranks_capacity, sizeof *sets->ranks);
    w->hashes = stw_pool_regrow(w->pool, w->hashes, sets->n, sets->n + 1u, &w->hashes_capacity,
                                sizeof *w->hashes);
    if (sets->first == NULL || sets->ranks == NULL || w->hashes == NULL) return no_memory(err);
    memcpy(sets->ranks + begin, ranks, n * sizeof *ranks);
    sets->first[sets->n] = begin;
    w->hashes[sets->n++] = hash;
    sets->first[sets->n] = begin + n;
    return STW_STATUS_OK;
}

/* The number of w->ranks[0 .. n - 1], which most often is that of the grain before. */
static stw_status find_set(work *w, uint32_t n, uint32_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sync_sets *sets = &w->out->sets;
    const uint32_t n_grains = w->out->n_grains;
    const uint32_t last = n_grains > 0 ? w->out->grains[n_grains - 1].set : STW_SYNC_NONE;
    *out = last;
    if (last != STW_SYNC_NONE && set_is(sets, last, w->ranks, n)) goto out;
    if (sets->n * 2u >= w->table_size) STW_TRY(grow_table(w, err));
    const uint64_t hash = hash_ranks(w->ranks, n);
    size_t at = hash & (w->table_size - 1);
    for (; w->table[at] != STW_SYNC_NONE; at = (at + 1) & (w->table_size - 1)) {
        *out = w->table[at];
        if (w->hashes[*out] == hash && set_is(sets, *out, w->ranks, n)) goto out;
    }
    *out = sets->n;
    w->table[at] = sets->n;
    STW_TRY(add_set(w, w->ranks, n, hash, err));
out:
    return status;
}

/* ---- one lot ---- */

/* Ranks of the targets that have none of the sources; both ascend. */
static uint32_t lacking(work *w, const stw_sync_cell *target, const stw_sync_cell *source) {
    const stw_sync_job *job = w->job;
    const uint32_t *to = w->out->targets.members + target->first_member;
    const uint32_t *from = w->out->sources.members + source->first_member;
    uint32_t n = 0, s = 0;
    for (uint32_t i = 0; i < target->n_members; i++) {
        const uint32_t rank = job->targets[to[i]].rank;
        if (n > 0 && w->ranks[n - 1] == rank) continue;
        while (s < source->n_members && job->sources[from[s]].rank < rank) s++;
        if (s < source->n_members && job->sources[from[s]].rank == rank) continue;
        w->ranks[n++] = rank;
    }
    return n;
}

/* The piece of the rank that has sent least; of equals the first. */
static uint32_t sender_of(const work *w, const stw_sync_cell *source) {
    const uint32_t *members = w->out->sources.members + source->first_member;
    uint32_t best = members[0];
    for (uint32_t i = 1; i < source->n_members; i++)
        if (w->sent[w->job->sources[members[i]].rank] < w->sent[w->job->sources[best].rank])
            best = members[i];
    return best;
}

static stw_status add_grain(work *w, const stw_sync_cell *target, uint32_t cell, uint64_t bytes,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sync_lots *out = w->out;
    stw_sync_grain grain = {cell, STW_SYNC_NONE, STW_SYNC_NONE};
    const stw_sync_cell *source = &out->sources.cells[cell];
    const uint32_t n = lacking(w, target, source);
    if (n > 0) {
        STW_TRY(find_set(w, n, &grain.set, err));
        grain.source = sender_of(w, source);
        const uint32_t rank = w->job->sources[grain.source].rank;
        const uint64_t padded = stw_sync_aligned(bytes);
        w->sent[rank] = stw_plus(w->sent[rank], stw_times(bytes, n));
        out->bytes[STW_SYNC_SENDS][rank] += padded;
        for (uint32_t i = 0; i < n; i++) out->bytes[STW_SYNC_RECEIVES][w->ranks[i]] += padded;
    }
    if (out->n_grains == w->grains_capacity) {
        if (out->n_grains >= UINT32_MAX / 2) STW_TRY(no_memory(err));
        out->grains = stw_pool_regrow(w->pool, out->grains, out->n_grains, out->n_grains + 1u,
                                      &w->grains_capacity, sizeof *out->grains);
        if (out->grains == NULL) STW_TRY(no_memory(err));
    }
    out->grains[out->n_grains++] = grain;
out:
    return status;
}

/* Room that a box would take in the fullest buffer, at most. */
static uint64_t room_of(const work *w, const stw_sync_lot *lot) {
    const stw_sync_cell *target = &w->out->targets.cells[lot->cell];
    const uint64_t width = stw_sync_width(w->job->tensors[lot->tensor].dtype);
    const uint32_t *members = w->out->targets.members + target->first_member;
    uint64_t room = 0, bucket = 0;
    stw_box both;
    for (uint32_t i = 0; i < w->n_meeting; i++)
        if (stw_box_meet(&lot->box, &w->out->sources.cells[w->meeting[i]].box, &both))
            room += stw_sync_aligned(stw_times(stw_box_volume(&both), width));
    for (uint32_t i = 0, next = 0; i < target->n_members; i += next) {
        bucket = stw_sync_bucket_need(w->job, lot, members + i, target->n_members - i, &next);
        room = stw_max_u64(room, bucket);
    }
    return room;
}

static stw_status add_lot(work *w, const stw_sync_lot *lot, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sync_lots *out = w->out;
    const stw_sync_cell *target = &out->targets.cells[lot->cell];
    const uint64_t width = stw_sync_width(w->job->tensors[lot->tensor].dtype);
    const uint32_t *members = out->targets.members + target->first_member;
    stw_box both;
    if (out->n_lots == w->lots_capacity) {
        if (out->n_lots >= UINT32_MAX / 2) STW_TRY(no_memory(err));
        out->lots = stw_pool_regrow(w->pool, out->lots, out->n_lots, out->n_lots + 1u,
                                    &w->lots_capacity, sizeof *out->lots);
        if (out->lots == NULL) STW_TRY(no_memory(err));
    }
    stw_sync_lot *added = &out->lots[out->n_lots++];
    *added = *lot;
    added->first_grain = out->n_grains;
    for (uint32_t i = 0; i < w->n_meeting; i++)
        if (stw_box_meet(&lot->box, &out->sources.cells[w->meeting[i]].box, &both))
            STW_TRY(
                add_grain(w, target, w->meeting[i], stw_times(stw_box_volume(&both), width), err));
    added->n_grains = out->n_grains - added->first_grain;
    for (uint32_t i = 0, next = 0; i < target->n_members; i += next) {
        const uint32_t rank = w->job->targets[members[i]].rank;
        out->bytes[STW_SYNC_BUCKET][rank] +=
            stw_sync_bucket_need(w->job, lot, members + i, target->n_members - i, &next);
    }
out:
    return status;
}

/* ---- cells of targets, cut into lots ---- */

/* The first dimension with more than one element; STW_BOX_DIMS where there is none. */
static int outermost(const stw_box *box) {
    int d = 0;
    while (d < STW_BOX_DIMS && box->count[d] <= 1) d++;
    return d;
}

/* Rows of one cut: as many as fit, whole units of STW_SYNC_ALIGN bytes where there are many. */
static uint64_t rows_at_once(uint64_t row_bytes, uint64_t most) {
    uint64_t rows = stw_max_u64(most / row_bytes, 1), unit = STW_SYNC_ALIGN;
    while (unit > 1 && stw_times(unit / 2, row_bytes) % STW_SYNC_ALIGN == 0) unit /= 2;
    return rows > unit ? rows - rows % unit : rows;
}

/* Cut by rows of the outermost dimension, those that are still too large by the next one. A box
 * whose grains are so small that their alignment makes it too large is halved. */
static stw_status cut_lots(work *w, const stw_sync_lot *lot, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t most = w->out->most;
    const uint64_t bytes =
        stw_times(stw_box_volume(&lot->box), stw_sync_width(w->job->tensors[lot->tensor].dtype));
    const int d = outermost(&lot->box);
    stw_sync_lot part = *lot;
    const bool large = bytes > most - most / 16;
    if (!large && room_of(w, lot) <= most) return add_lot(w, lot, err);
    if (d == STW_BOX_DIMS)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, w->job->tensors[lot->tensor].name,
                         "found more targets of one rank than a bucket of %llu bytes can hold",
                         (unsigned long long)w->job->bucket_bytes));
    const uint64_t count = lot->box.count[d];
    const uint64_t rows =
        large ? rows_at_once(bytes / count, most - most / 16) : stw_div_up_u64(count, 2);
    for (uint64_t done = 0; done < count; done += part.box.count[d]) {
        part.box.first[d] = lot->box.first[d] + done;
        part.box.count[d] = stw_min_u64(rows, count - done);
        STW_TRY(cut_lots(w, &part, err));
    }
out:
    return status;
}

/* Name the first element of a cell of targets that no cell of sources has. */
static stw_status fail_missing(work *w, const stw_sync_cell *target, stw_error *err) {
    const stw_sync_tensor *t = &w->job->tensors[w->tensor];
    const stw_sync_piece *piece = &w->job->targets[w->out->targets.members[target->first_member]];
    stw_box left = target->box, rests[STW_BOX_RESTS], both;
    char at[128] = "";
    size_t used = 0;
    /* Rests ascend in the dimension in which they were cut: follow the first that is not covered.
     */
    for (uint32_t i = 0; i < w->n_meeting; i++) {
        if (!stw_box_meet(&left, &w->out->sources.cells[w->meeting[i]].box, &both)) continue;
        const unsigned n = stw_box_subtract(&left, &both, rests);
        uint64_t missing = 0;
        for (unsigned r = 0; r < n && missing == 0; r++) {
            uint64_t covered = 0;
            for (uint32_t k = i + 1; k < w->n_meeting; k++)
                if (stw_box_meet(&rests[r], &w->out->sources.cells[w->meeting[k]].box, &both))
                    covered += stw_box_volume(&both);
            missing = stw_box_volume(&rests[r]) - covered;
            if (missing > 0) left = rests[r];
        }
    }
    for (uint32_t d = 0; d < t->dims; d++)
        used += (size_t)snprintf(at + used, sizeof at - used, "%s%llu", d > 0 ? ", " : "",
                                 (unsigned long long)left.first[d]);
    return stw_fail(err, STW_STATUS_BAD_INPUT, t->name,
                    "element [%s], a target of rank %u, lies on no source", at, piece->rank);
}

static stw_status add_target(work *w, uint32_t cell, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_sync_cells *sources = &w->out->sources;
    const uint32_t first = sources->first_cell[w->tensor];
    const stw_sync_cell *target = &w->out->targets.cells[cell];
    const int d = w->search.dim;
    const uint64_t end = target->box.first[d] + target->box.count[d];
    uint64_t covered = 0;
    stw_box both;
    w->n_meeting = 0;
    for (uint32_t i = stw_sync_search_first(&w->search, &target->box); i < w->search.n; i++) {
        const stw_sync_cell *source = &sources->cells[first + w->search.order[i]];
        if (source->box.first[d] >= end) break;
        if (!stw_box_meet(&target->box, &source->box, &both)) continue;
        covered += stw_box_volume(&both);
        if (w->n_meeting == w->meeting_capacity) {
            w->meeting = stw_pool_regrow(w->pool, w->meeting, w->n_meeting, w->n_meeting + 1u,
                                         &w->meeting_capacity, sizeof *w->meeting);
            if (w->meeting == NULL) STW_TRY(no_memory(err));
        }
        w->meeting[w->n_meeting++] = first + w->search.order[i];
    }
    if (covered != stw_box_volume(&target->box)) STW_TRY(fail_missing(w, target, err));
    const stw_sync_lot lot = {.box = target->box, .tensor = w->tensor, .cell = cell};
    STW_TRY(cut_lots(w, &lot, err));
out:
    return status;
}

stw_status stw_sync_lots_make(stw_pool *pool, const stw_sync_job *job, stw_sync_lots *out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    work w = {.pool = pool, .job = job, .out = out};
    memset(out, 0, sizeof *out);
    out->most = stw_min_u64(job->bucket_bytes / PARTS_OF_BUCKET, MOST_BYTES) / STW_SYNC_ALIGN *
                STW_SYNC_ALIGN;
    w.ranks = stw_pool_array(pool, job->world, sizeof *w.ranks);
    w.sent = stw_pool_array(pool, job->world, sizeof *w.sent);
    for (int role = 0; role < STW_SYNC_N_ROLES; role++) {
        out->bytes[role] = stw_pool_array(pool, job->world, sizeof *out->bytes[role]);
        if (out->bytes[role] == NULL) STW_TRY(no_memory(err));
    }
    if (w.ranks == NULL || w.sent == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_sync_cells_make(pool, job->sources, job->n_sources, job->n_tensors, &out->sources,
                                err));
    STW_TRY(stw_sync_cells_make(pool, job->targets, job->n_targets, job->n_tensors, &out->targets,
                                err));
    for (uint32_t t = 0; t < job->n_tensors; t++) {
        const uint32_t first = out->sources.first_cell[t];
        w.tensor = t;
        STW_TRY(stw_sync_search_make(pool, &w.search, out->sources.cells + first,
                                     out->sources.first_cell[t + 1] - first, err));
        for (uint32_t c = out->targets.first_cell[t]; c < out->targets.first_cell[t + 1]; c++)
            STW_TRY(add_target(&w, c, err));
    }
out:
    free(w.table);
    return status;
}

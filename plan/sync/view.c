/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/sync/view.h"

#include <stdlib.h>

#include "core/checked.h"

/* A grain that the rank sends or receives. */
typedef struct item {
    uint32_t round, sender, set;
    uint32_t alignment; /* of its bytes, up to STW_SYNC_ALIGN */
    uint32_t lot, grain;
    uint64_t bytes;
    uint64_t at; /* its place in the buffer */
} item;

typedef struct work {
    stw_pool *pool;
    const stw_sync_job *job;
    const stw_sync_lots *lots;
    stw_sync_view *out;
    uint32_t rounds, rank;
    bool *is_in;           /* [sets.n]: the rank is one of them */
    item *sent, *received; /* by round, sender, set, alignment, number */
    uint64_t *sent_at;     /* [grains]: place of one that is sent */
    uint32_t n_sent, n_received;
    uint64_t *place_of; /* [lots]: bytes of the lot's first part in the bucket of its round */
    uint64_t *still;    /* [targets]: elements that are still to come */
    uint32_t n_messages, n_parts, n_places;
} work;

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

static int compare_items(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->round != y->round) return x->round < y->round ? -1 : 1;
    if (x->sender != y->sender) return x->sender < y->sender ? -1 : 1;
    if (x->set != y->set) return x->set < y->set ? -1 : 1;
    if (x->alignment != y->alignment) return x->alignment > y->alignment ? -1 : 1;
    return x->grain < y->grain ? -1 : x->grain > y->grain;
}

static item item_of(const work *w, uint32_t lot, uint32_t grain) {
    const stw_sync_lot *l = &w->lots->lots[lot];
    const stw_sync_grain *g = &w->lots->grains[grain];
    const stw_box box = stw_sync_grain_box(w->lots, l, g);
    const uint64_t bytes =
        stw_times(stw_box_volume(&box), stw_sync_width(w->job->tensors[l->tensor].dtype));
    const uint32_t low = (uint32_t)(bytes & (0 - bytes) & (STW_SYNC_ALIGN - 1));
    return (item){.round = l->round,
                  .sender = w->job->sources[g->source].rank,
                  .set = g->set,
                  .alignment = low == 0 ? STW_SYNC_ALIGN : low,
                  .lot = lot,
                  .grain = grain,
                  .bytes = bytes};
}

static bool is_sent(const work *w, const stw_sync_grain *g) {
    return g->set != STW_SYNC_NONE && w->job->sources[g->source].rank == w->rank;
}

static bool is_received(const work *w, const stw_sync_grain *g) {
    return g->set != STW_SYNC_NONE && w->is_in[g->set];
}

/* Has the rank a target in the lot? @param first receives its first piece among the members */
static uint32_t targets_of(const work *w, const stw_sync_lot *lot, const uint32_t **first) {
    const stw_sync_cell *cell = &w->lots->targets.cells[lot->cell];
    const uint32_t *members = w->lots->targets.members + cell->first_member;
    const uint32_t *end = members + cell->n_members;
    const stw_sync_piece *targets = w->job->targets;
    uint32_t low = 0, high = cell->n_members, n = 0;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (targets[members[middle]].rank < w->rank)
            low = middle + 1;
        else
            high = middle;
    }
    *first = members + low;
    while (*first + n < end && targets[(*first)[n]].rank == w->rank) n++;
    return n;
}

/* ---- what is sent and received ---- */

static stw_status find_items(work *w, stw_error *err) {
    const stw_sync_lots *lots = w->lots;
    w->is_in = stw_pool_array(w->pool, (size_t)lots->sets.n + 1, sizeof *w->is_in);
    if (w->is_in == NULL) return no_memory(err);
    for (uint32_t s = 0; s < lots->sets.n; s++)
        for (uint32_t i = lots->sets.first[s]; i < lots->sets.first[s + 1]; i++)
            if (lots->sets.ranks[i] == w->rank) w->is_in[s] = true;
    for (uint32_t g = 0; g < lots->n_grains; g++) {
        if (is_sent(w, &lots->grains[g])) w->n_sent++;
        if (is_received(w, &lots->grains[g])) w->n_received++;
    }
    w->sent = malloc(((size_t)w->n_sent + 1) * sizeof *w->sent);
    w->received = malloc(((size_t)w->n_received + 1) * sizeof *w->received);
    if (w->sent == NULL || w->received == NULL) return no_memory(err);
    uint32_t sent = 0, received = 0;
    for (uint32_t l = 0; l < lots->n_lots; l++)
        for (uint32_t k = 0; k < lots->lots[l].n_grains; k++) {
            const uint32_t g = lots->lots[l].first_grain + k;
            if (is_sent(w, &lots->grains[g])) w->sent[sent++] = item_of(w, l, g);
            if (is_received(w, &lots->grains[g])) w->received[received++] = item_of(w, l, g);
        }
    qsort(w->sent, w->n_sent, sizeof *w->sent, compare_items);
    qsort(w->received, w->n_received, sizeof *w->received, compare_items);
    return STW_STATUS_OK;
}

/* Does item i begin a group: grains of a round that go together from one sender to one set? */
static bool begins(const item *items, uint32_t i) {
    return i == 0 || items[i].round != items[i - 1].round ||
           items[i].sender != items[i - 1].sender || items[i].set != items[i - 1].set;
}

/* Give each item its place; groups are aligned. @return the most bytes of a round */
static uint64_t place_items(item *items, uint32_t n) {
    uint64_t at = 0, most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && items[i].round != items[i - 1].round) at = 0;
        if (begins(items, i)) at = stw_sync_aligned(at);
        items[i].at = at;
        at += items[i].bytes;
        most = stw_max_u64(most, stw_sync_aligned(at));
    }
    return most;
}

static uint64_t group_bytes(const item *items, uint32_t n, uint32_t first) {
    uint64_t bytes = items[first].bytes;
    for (uint32_t i = first + 1; i < n && !begins(items, i); i++) bytes += items[i].bytes;
    return bytes;
}

/* ---- messages ---- */

/* Messages that leave: a group goes to every rank of its set. */
static void add_sends(work *w, uint32_t first) {
    const stw_sync_sets *sets = &w->lots->sets;
    const item *it = &w->sent[first];
    const uint64_t bytes = group_bytes(w->sent, w->n_sent, first);
    for (uint32_t k = sets->first[it->set]; k < sets->first[it->set + 1]; k++) {
        w->out->messages[w->n_messages++] = (stw_sync_message){
            .peer = sets->ranks[k], .sends = true, .offset = it->at, .bytes = bytes};
        w->out->sent_bytes += bytes;
    }
}

static void add_receive(work *w, uint32_t first) {
    const item *it = &w->received[first];
    const uint64_t bytes = group_bytes(w->received, w->n_received, first);
    w->out->messages[w->n_messages++] =
        (stw_sync_message){.peer = it->sender, .sends = false, .offset = it->at, .bytes = bytes};
    w->out->received_bytes += bytes;
}

/* In the order of senders, then of sets, then of receivers: of two ranks the messages of a round
 * are in the same order on both. */
static stw_status make_messages(work *w, stw_error *err) {
    const stw_sync_sets *sets = &w->lots->sets;
    size_t n = 0;
    for (uint32_t i = 0; i < w->n_sent; i++)
        if (begins(w->sent, i)) n += sets->first[w->sent[i].set + 1] - sets->first[w->sent[i].set];
    for (uint32_t i = 0; i < w->n_received; i++)
        if (begins(w->received, i)) n++;
    if (n > UINT32_MAX) return no_memory(err);
    w->out->messages = stw_pool_array(w->pool, n, sizeof *w->out->messages);
    if (w->out->messages == NULL) return no_memory(err);
    uint32_t s = 0, r = 0;
    for (uint32_t round = 0; round < w->rounds; round++) {
        w->out->first_message[round] = w->n_messages;
        for (;
             r < w->n_received && w->received[r].round == round && w->received[r].sender < w->rank;
             r++)
            if (begins(w->received, r)) add_receive(w, r);
        for (; s < w->n_sent && w->sent[s].round == round; s++)
            if (begins(w->sent, s)) add_sends(w, s);
        for (; r < w->n_received && w->received[r].round == round; r++)
            if (begins(w->received, r)) add_receive(w, r);
    }
    w->out->first_message[w->rounds] = w->n_messages;
    return STW_STATUS_OK;
}

/* ---- parts of buckets ---- */

/* The rank's lots by round. */
static stw_status sort_lots(const work *w, uint32_t **sorted, uint32_t *n, stw_error *err) {
    const stw_sync_lots *lots = w->lots;
    const uint32_t *pieces = NULL;
    uint32_t *begin = stw_pool_array(w->pool, (size_t)w->rounds + 2, sizeof *begin);
    *n = 0;
    *sorted = NULL;
    if (begin == NULL) return no_memory(err);
    for (uint32_t l = 0; l < lots->n_lots; l++)
        if (targets_of(w, &lots->lots[l], &pieces) > 0) {
            begin[lots->lots[l].round + 1]++;
            ++*n;
        }
    for (uint32_t r = 0; r < w->rounds; r++) begin[r + 1] += begin[r];
    *sorted = stw_pool_array(w->pool, *n, sizeof **sorted);
    if (*sorted == NULL) return no_memory(err);
    for (uint32_t l = 0; l < lots->n_lots; l++)
        if (targets_of(w, &lots->lots[l], &pieces) > 0) (*sorted)[begin[lots->lots[l].round]++] = l;
    return STW_STATUS_OK;
}

static void add_parts(work *w, uint32_t lot, uint64_t *at) {
    const stw_sync_lot *l = &w->lots->lots[lot];
    const uint32_t *pieces = NULL;
    const uint32_t n = targets_of(w, l, &pieces);
    const uint64_t elements = stw_box_volume(&l->box);
    w->place_of[lot] = *at;
    for (uint32_t i = 0; i < n; i++) {
        if (w->job->targets[pieces[i]].memory != STW_SYNC_NONE) continue;
        w->still[pieces[i]] -= elements;
        w->out->parts[w->n_parts++] = (stw_sync_part){.tensor = l->tensor,
                                                      .target = pieces[i],
                                                      .box = l->box,
                                                      .offset = *at,
                                                      .last = w->still[pieces[i]] == 0};
        *at +=
            stw_sync_aligned(stw_times(elements, stw_sync_width(w->job->tensors[l->tensor].dtype)));
    }
}

static stw_status make_parts(work *w, const uint32_t *sorted, uint32_t n, stw_error *err) {
    const stw_sync_piece *targets = w->job->targets;
    const uint32_t *pieces = NULL;
    size_t n_parts = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t count = targets_of(w, &w->lots->lots[sorted[i]], &pieces);
        for (uint32_t k = 0; k < count; k++)
            if (targets[pieces[k]].memory == STW_SYNC_NONE) n_parts++;
    }
    if (n_parts > UINT32_MAX) return no_memory(err);
    w->out->parts = stw_pool_array(w->pool, n_parts, sizeof *w->out->parts);
    if (w->out->parts == NULL) return no_memory(err);
    for (uint32_t t = 0; t < w->job->n_targets; t++) w->still[t] = stw_box_volume(&targets[t].box);
    uint32_t i = 0;
    for (uint32_t round = 0; round < w->rounds; round++) {
        uint64_t at = 0;
        w->out->first_part[round] = w->n_parts;
        for (; i < n && w->lots->lots[sorted[i]].round == round; i++) add_parts(w, sorted[i], &at);
        w->out->bucket_bytes = stw_max_u64(w->out->bucket_bytes, at);
    }
    w->out->first_part[w->rounds] = w->n_parts;
    return STW_STATUS_OK;
}

/* ---- copies ---- */

static stw_status make_packs(work *w, stw_error *err) {
    const stw_sync_lots *lots = w->lots;
    w->out->packs = stw_pool_array(w->pool, w->n_sent, sizeof *w->out->packs);
    if (w->out->packs == NULL) return no_memory(err);
    uint32_t i = 0;
    for (uint32_t round = 0; round < w->rounds; round++) {
        w->out->first_pack[round] = i;
        for (; i < w->n_sent && w->sent[i].round == round; i++) {
            const item *it = &w->sent[i];
            const stw_sync_grain *grain = &lots->grains[it->grain];
            w->out->packs[i] =
                (stw_sync_copy){.box = stw_sync_grain_box(lots, &lots->lots[it->lot], grain),
                                .source = grain->source,
                                .target = STW_SYNC_NONE,
                                .lot = it->lot,
                                .to = it->at};
            w->sent_at[it->grain] = it->at;
        }
    }
    w->out->first_pack[w->rounds] = i;
    return STW_STATUS_OK;
}

/* A grain goes to every piece of the rank's in its lot. */
static void add_places(work *w, const stw_sync_copy *copy) {
    const stw_sync_lot *lot = &w->lots->lots[copy->lot];
    const uint32_t *pieces = NULL;
    const uint32_t n = targets_of(w, lot, &pieces);
    const uint64_t bytes =
        stw_times(stw_box_volume(&lot->box), stw_sync_width(w->job->tensors[lot->tensor].dtype));
    uint64_t at = w->place_of[copy->lot];
    for (uint32_t i = 0; i < n; i++) {
        stw_sync_copy *added = &w->out->places[w->n_places++];
        *added = *copy;
        added->target = pieces[i];
        if (w->job->targets[pieces[i]].memory != STW_SYNC_NONE) continue;
        added->to = at;
        at += stw_sync_aligned(bytes);
    }
}

/* Grains of a lot that the rank has itself. */
static void add_own(work *w, uint32_t lot) {
    const stw_sync_lots *lots = w->lots;
    const stw_sync_lot *l = &lots->lots[lot];
    const uint64_t width = stw_sync_width(w->job->tensors[l->tensor].dtype);
    for (uint32_t k = 0; k < l->n_grains; k++) {
        const stw_sync_grain *g = &lots->grains[l->first_grain + k];
        stw_sync_copy copy = {.lot = lot};
        if (is_received(w, g) ||
            !stw_sync_cell_has(&lots->sources, w->job->sources, g->cell, w->rank, &copy.source))
            continue;
        copy.box = stw_sync_grain_box(lots, l, g);
        copy.sent = is_sent(w, g);
        if (copy.sent) {
            copy.source = STW_SYNC_NONE;
            copy.from = w->sent_at[l->first_grain + k];
        }
        const uint32_t before = w->n_places;
        add_places(w, &copy);
        w->out->own_bytes +=
            stw_times(stw_times(stw_box_volume(&copy.box), width), w->n_places - before);
    }
}

static stw_status make_places(work *w, const uint32_t *sorted, uint32_t n, stw_error *err) {
    const stw_sync_lots *lots = w->lots;
    const uint32_t *pieces = NULL;
    size_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        const stw_sync_lot *lot = &lots->lots[sorted[i]];
        most += (size_t)targets_of(w, lot, &pieces) * lot->n_grains;
    }
    if (most > UINT32_MAX) return no_memory(err);
    w->out->places = stw_pool_array(w->pool, most, sizeof *w->out->places);
    if (w->out->places == NULL) return no_memory(err);
    uint32_t i = 0, r = 0;
    for (uint32_t round = 0; round < w->rounds; round++) {
        w->out->first_place[round] = w->n_places;
        for (; r < w->n_received && w->received[r].round == round; r++) {
            const item *it = &w->received[r];
            const stw_sync_copy copy = {
                .box = stw_sync_grain_box(lots, &lots->lots[it->lot], &lots->grains[it->grain]),
                .source = STW_SYNC_NONE,
                .lot = it->lot,
                .from = it->at};
            add_places(w, &copy);
        }
        for (; i < n && lots->lots[sorted[i]].round == round; i++) add_own(w, sorted[i]);
    }
    w->out->first_place[w->rounds] = w->n_places;
    return STW_STATUS_OK;
}

stw_status stw_sync_view_make(stw_pool *pool, const stw_sync_job *job, const stw_sync_lots *lots,
                              uint32_t rounds, uint32_t rank, stw_sync_view *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    work w = {.pool = pool, .job = job, .lots = lots, .out = out, .rounds = rounds, .rank = rank};
    uint32_t **first[] = {&out->first_message, &out->first_part, &out->first_pack,
                          &out->first_place};
    uint32_t *sorted = NULL, n = 0;
    *out = (stw_sync_view){.send_bytes = 0};
    for (int i = 0; i < 4; i++) {
        *first[i] = stw_pool_array(pool, (size_t)rounds + 1, sizeof **first[i]);
        if (*first[i] == NULL) STW_TRY(no_memory(err));
    }
    w.place_of = calloc((size_t)lots->n_lots + 1, sizeof *w.place_of);
    w.still = calloc((size_t)job->n_targets + 1, sizeof *w.still);
    w.sent_at = calloc((size_t)lots->n_grains + 1, sizeof *w.sent_at);
    if (w.place_of == NULL || w.still == NULL || w.sent_at == NULL) STW_TRY(no_memory(err));
    STW_TRY(find_items(&w, err));
    out->send_bytes = place_items(w.sent, w.n_sent);
    out->receive_bytes = place_items(w.received, w.n_received);
    STW_TRY(make_messages(&w, err));
    STW_TRY(sort_lots(&w, &sorted, &n, err));
    STW_TRY(make_parts(&w, sorted, n, err));
    STW_TRY(make_packs(&w, err));
    STW_TRY(make_places(&w, sorted, n, err));
out:
    free(w.sent);
    free(w.received);
    free(w.sent_at);
    free(w.place_of);
    free(w.still);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/sync/cells.h"

#include <stdlib.h>
#include <string.h>

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

/* ---- search ---- */

/* The dimension along which boxes are the shortest part of what they span together. */
static int best_dim(const stw_sync_cell *cells, uint32_t n) {
    double least = 0;
    int best = 0;
    for (int d = 0; d < STW_BOX_DIMS; d++) {
        uint64_t first = UINT64_MAX, end = 0;
        double sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            const stw_box *box = &cells[i].box;
            if (box->first[d] < first) first = box->first[d];
            if (box->first[d] + box->count[d] > end) end = box->first[d] + box->count[d];
            sum += (double)box->count[d];
        }
        const double share = n > 0 ? sum / (double)(end - first) : 0;
        if (d == 0 || share < least) {
            least = share;
            best = d;
        }
    }
    return best;
}

typedef struct key {
    uint64_t first;
    uint32_t number;
} key;

static int compare_keys(const void *a, const void *b) {
    const key *left = a, *right = b;
    if (left->first != right->first) return left->first < right->first ? -1 : 1;
    return left->number < right->number ? -1 : left->number > right->number;
}

stw_status stw_sync_search_make(stw_pool *pool, stw_sync_search *search, const stw_sync_cell *cells,
                                uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    key *keys = NULL;
    if (search->capacity < n) {
        const size_t capacity = n < 64 ? 64 : (size_t)n + n / 2;
        search->order = stw_pool_array(pool, capacity, sizeof *search->order);
        search->end = stw_pool_array(pool, capacity, sizeof *search->end);
        if (search->order == NULL || search->end == NULL) return no_memory(err);
        search->capacity = capacity;
    }
    const int d = search->dim = n < 2 ? 0 : best_dim(cells, n);
    search->n = n;
    for (uint32_t i = 0; i < n; i++) search->order[i] = i;
    if (d != 0) { /* cells are in the order of dimension 0 already */
        keys = malloc((size_t)n * sizeof *keys);
        if (keys == NULL) STW_TRY(no_memory(err));
        for (uint32_t i = 0; i < n; i++) keys[i] = (key){cells[i].box.first[d], i};
        bool sorted = true;
        for (uint32_t i = 1; i < n && sorted; i++) sorted = keys[i - 1].first <= keys[i].first;
        if (!sorted) qsort(keys, n, sizeof *keys, compare_keys);
        for (uint32_t i = 0; i < n; i++) search->order[i] = keys[i].number;
    }
    for (uint32_t i = 0; i < n; i++) {
        const stw_box *box = &cells[search->order[i]].box;
        const uint64_t end = box->first[d] + box->count[d];
        search->end[i] = i > 0 && search->end[i - 1] > end ? search->end[i - 1] : end;
    }
out:
    free(keys);
    return status;
}

uint32_t stw_sync_search_first(const stw_sync_search *search, const stw_box *box) {
    uint32_t low = 0, high = search->n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (search->end[middle] > box->first[search->dim])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* ---- pieces of one tensor ---- */

typedef struct work {
    stw_pool *pool, *scratch;
    const stw_sync_piece *pieces;
    const stw_sync_piece **sorted; /* of one tensor */
    stw_sync_cells *out;
    size_t cells_capacity, members_capacity;
    stw_sync_search search; /* in scratch */
} work;

static int compare_pieces(const void *a, const void *b) {
    const stw_sync_piece *left = *(const stw_sync_piece *const *)a;
    const stw_sync_piece *right = *(const stw_sync_piece *const *)b;
    const int order = stw_box_compare(&left->box, &right->box);
    if (order != 0) return order;
    if (left->rank != right->rank) return left->rank < right->rank ? -1 : 1;
    return left < right ? -1 : left > right;
}

static stw_status add_cell(work *w, const stw_box *box, stw_error *err) {
    stw_sync_cells *out = w->out;
    if (out->n_cells == w->cells_capacity) {
        if (out->n_cells >= UINT32_MAX / 2) return no_memory(err);
        out->cells = stw_pool_regrow(w->pool, out->cells, out->n_cells, (size_t)out->n_cells + 1,
                                     &w->cells_capacity, sizeof *out->cells);
        if (out->cells == NULL) return no_memory(err);
    }
    out->cells[out->n_cells++] = (stw_sync_cell){.box = *box, .first_member = out->n_members};
    return STW_STATUS_OK;
}

static stw_status add_member(work *w, const stw_sync_piece *piece, stw_error *err) {
    stw_sync_cells *out = w->out;
    if (out->n_members == w->members_capacity) {
        if (out->n_members >= UINT32_MAX / 2) return no_memory(err);
        out->members =
            stw_pool_regrow(w->pool, out->members, out->n_members, (size_t)out->n_members + 1,
                            &w->members_capacity, sizeof *out->members);
        if (out->members == NULL) return no_memory(err);
    }
    out->members[out->n_members++] = (uint32_t)(piece - w->pieces);
    out->cells[out->n_cells - 1].n_members++;
    return STW_STATUS_OK;
}

/* Do any two of the cells meet? */
static stw_status find_meets(work *w, const stw_sync_cell *cells, uint32_t n, bool *meet,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_box both;
    *meet = false;
    if (n < 2) goto out;
    STW_TRY(stw_sync_search_make(w->scratch, &w->search, cells, n, err));
    const int d = w->search.dim;
    for (uint32_t i = 0; i < n && !*meet; i++) {
        const stw_box *box = &cells[w->search.order[i]].box;
        for (uint32_t k = i + 1; k < n && !*meet; k++) {
            const stw_box *other = &cells[w->search.order[k]].box;
            if (other->first[d] >= box->first[d] + box->count[d]) break;
            *meet = stw_box_meet(box, other, &both);
        }
    }
out:
    return status;
}

/* ---- pieces that meet in part ---- */

/* Groups of equal pieces that a cell belongs to. Lists share their tails. */
typedef struct member {
    uint32_t group; /* a cell of equal pieces, counted from the tensor's first */
    const struct member *next;
} member;

typedef struct draft {
    stw_box box;
    const member *members;
} draft;

typedef struct drafts {
    draft *all;
    size_t n, capacity;
} drafts;

static stw_status add_draft(work *w, drafts *to, const stw_box *box, const member *members,
                            stw_error *err) {
    if (to->n == to->capacity) {
        to->all =
            stw_pool_regrow(w->scratch, to->all, to->n, to->n + 1, &to->capacity, sizeof *to->all);
        if (to->all == NULL) return no_memory(err);
    }
    to->all[to->n++] = (draft){*box, members};
    return STW_STATUS_OK;
}

static stw_status new_member(work *w, uint32_t group, const member *next, const member **out,
                             stw_error *err) {
    member *m = stw_pool_alloc(w->scratch, sizeof *m);
    if (m == NULL) return no_memory(err);
    *m = (member){group, next};
    *out = m;
    return STW_STATUS_OK;
}

/* Cut the drafts so far where the box of one more group meets them, and add what none of them has.
 * What is left of the box waits in `rest`. */
static stw_status insert_group(work *w, drafts *have, drafts *rest, const stw_box *box,
                               uint32_t group, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_box both, cut[STW_BOX_RESTS];
    const member *alone = NULL;
    const size_t n_have = have->n;
    rest->n = 0;
    STW_TRY(new_member(w, group, NULL, &alone, err));
    STW_TRY(add_draft(w, rest, box, alone, err));
    for (size_t i = 0; i < n_have && rest->n > 0; i++) {
        const draft old = have->all[i];
        if (!stw_box_meet(&old.box, box, &both)) continue;
        unsigned n = stw_box_subtract(&old.box, &both, cut);
        have->all[i].box = both;
        STW_TRY(new_member(w, group, old.members, &have->all[i].members, err));
        for (unsigned k = 0; k < n; k++) STW_TRY(add_draft(w, have, &cut[k], old.members, err));
        const size_t n_rest = rest->n; /* those that are cut anew lie apart from `both` */
        for (size_t r = n_rest; r-- > 0;) {
            const draft left = rest->all[r];
            if (!stw_box_meet(&left.box, &old.box, &both)) continue;
            rest->all[r] = rest->all[--rest->n];
            n = stw_box_subtract(&left.box, &both, cut);
            for (unsigned k = 0; k < n; k++) STW_TRY(add_draft(w, rest, &cut[k], alone, err));
        }
    }
    for (size_t r = 0; r < rest->n; r++) STW_TRY(add_draft(w, have, &rest->all[r].box, alone, err));
out:
    return status;
}

static int compare_drafts(const void *a, const void *b) {
    return stw_box_compare(&((const draft *)a)->box, &((const draft *)b)->box);
}

static int compare_members(const void *a, const void *b, const stw_sync_piece *pieces) {
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    if (pieces[left].rank != pieces[right].rank)
        return pieces[left].rank < pieces[right].rank ? -1 : 1;
    return left < right ? -1 : left > right;
}

/* By rank, then by number. Members come in a few ascending runs: groups. */
static void sort_members(const work *w, uint32_t *members, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        const uint32_t moved = members[i];
        uint32_t k = i;
        for (; k > 0 && compare_members(&members[k - 1], &moved, w->pieces) > 0; k--)
            members[k] = members[k - 1];
        members[k] = moved;
    }
}

/* Replace a tensor's groups, the cells from `first` on, by cells that are apart. */
static stw_status cut_groups(work *w, uint32_t first, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sync_cells *out = w->out;
    const uint32_t n = out->n_cells - first, first_member = out->cells[first].first_member;
    drafts have = {NULL, 0, 0}, rest = {NULL, 0, 0};
    const uint32_t n_members = out->n_members - first_member;
    stw_sync_cell *groups = stw_pool_array(w->scratch, n, sizeof *groups);
    uint32_t *members = stw_pool_array(w->scratch, n_members, sizeof *members);
    if (groups == NULL || members == NULL) STW_TRY(no_memory(err));
    memcpy(groups, out->cells + first, n * sizeof *groups);
    memcpy(members, out->members + first_member, n_members * sizeof *members);
    for (uint32_t g = 0; g < n; g++) STW_TRY(insert_group(w, &have, &rest, &groups[g].box, g, err));
    qsort(have.all, have.n, sizeof *have.all, compare_drafts);
    out->n_cells = first;
    out->n_members = first_member;
    for (size_t i = 0; i < have.n; i++) {
        STW_TRY(add_cell(w, &have.all[i].box, err));
        for (const member *m = have.all[i].members; m != NULL; m = m->next) {
            const stw_sync_cell *group = &groups[m->group];
            const uint32_t *of = members + (group->first_member - first_member);
            for (uint32_t k = 0; k < group->n_members; k++)
                STW_TRY(add_member(w, &w->pieces[of[k]], err));
        }
        const stw_sync_cell *cell = &out->cells[out->n_cells - 1];
        sort_members(w, out->members + cell->first_member, cell->n_members);
    }
out:
    return status;
}

static stw_status add_tensor(work *w, uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t first = w->out->n_cells;
    bool sorted = true, meet = false;
    for (uint32_t i = 1; i < n && sorted; i++)
        sorted = compare_pieces(&w->sorted[i - 1], &w->sorted[i]) <= 0;
    if (!sorted) qsort(w->sorted, n, sizeof *w->sorted, compare_pieces);
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 || !stw_box_equal(&w->sorted[i - 1]->box, &w->sorted[i]->box))
            STW_TRY(add_cell(w, &w->sorted[i]->box, err));
        STW_TRY(add_member(w, w->sorted[i], err));
    }
    STW_TRY(find_meets(w, w->out->cells + first, w->out->n_cells - first, &meet, err));
    if (meet) STW_TRY(cut_groups(w, first, err));
out:
    return status;
}

stw_status stw_sync_cells_make(stw_pool *pool, const stw_sync_piece *pieces, uint32_t n,
                               uint32_t n_tensors, stw_sync_cells *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    work w = {.pool = pool, .scratch = stw_pool_new(), .pieces = pieces, .out = out};
    uint32_t *begin = calloc((size_t)n_tensors + 2, sizeof *begin);
    w.sorted = malloc(((size_t)n + 1) * sizeof *w.sorted);
    *out = (stw_sync_cells){
        .first_cell = stw_pool_array(pool, (size_t)n_tensors + 1, sizeof *out->first_cell)};
    const stw_sync_piece **all = w.sorted;
    if (w.scratch == NULL || begin == NULL || all == NULL || out->first_cell == NULL)
        STW_TRY(no_memory(err));
    for (uint32_t i = 0; i < n; i++)
        if (stw_box_volume(&pieces[i].box) > 0) begin[pieces[i].tensor + 2]++;
    for (uint32_t t = 0; t < n_tensors; t++) begin[t + 2] += begin[t + 1];
    for (uint32_t i = 0; i < n; i++)
        if (stw_box_volume(&pieces[i].box) > 0) all[begin[pieces[i].tensor + 1]++] = &pieces[i];
    for (uint32_t t = 0; t < n_tensors; t++) {
        out->first_cell[t] = out->n_cells;
        w.sorted = all + begin[t];
        STW_TRY(add_tensor(&w, begin[t + 1] - begin[t], err));
    }
    out->first_cell[n_tensors] = out->n_cells;
out:
    free(begin);
    free(all);
    stw_pool_free(w.scratch);
    return status;
}

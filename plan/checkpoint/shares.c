/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/checkpoint/shares.h"

#include <stdlib.h>

#include "core/checked.h"
#include "plan/sync/cells.h"

/* Replicas below this are written by one rank: files are not cut finer than disks like. */
#define SPLIT_BYTES (1ull << 20)

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

/* A share on its way: of which rank it is, is decided one by one. */
typedef struct draft {
    stw_share share;
    uint32_t rank;
} draft;

typedef struct divider {
    const stw_saved_files *saved;
    const stw_held *held;
    uint32_t n;
    stw_pool *scratch;
    stw_shares *out;
    draft *drafts;
    uint32_t n_drafts;
    size_t room;
    uint32_t *of; /* of the pieces of this class: which */
} divider;

static uint64_t bytes_of(const divider *d, uint32_t tensor, uint32_t kinds) {
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < STW_N_SAVED; k++)
        if ((kinds & 1u << k) != 0)
            bytes += stw_dtype_bits(stw_saved_dtype(d->saved, (stw_saved_kind)k, tensor)) / 8;
    return bytes;
}

/* To one of the ranks that hold a cell: that with the fewest bytes so far. */
static stw_status give(divider *d, const stw_box *box, const uint32_t *members, uint32_t n,
                       uint32_t kinds, stw_error *err) {
    const stw_held *best = NULL;
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n; i++) {
        const stw_held *h = &d->held[d->of[members[i]]];
        for (uint32_t r = h->rank; r <= h->rank + h->alike; r++) {
            if (best != NULL && d->out->bytes[r] >= d->out->bytes[rank]) continue;
            best = h;
            rank = r;
        }
    }
    d->drafts = stw_pool_regrow(d->scratch, d->drafts, d->n_drafts, d->n_drafts + 1u, &d->room,
                                sizeof *d->drafts);
    if (d->drafts == NULL) return no_memory(err);
    d->drafts[d->n_drafts++] =
        (draft){{*box, best->tensor, kinds, (uint32_t)(best - d->held)}, rank};
    d->out->bytes[rank] += stw_box_volume(box) * bytes_of(d, best->tensor, kinds);
    return STW_STATUS_OK;
}

/* Ranks that hold a cell. */
static uint32_t holders(const divider *d, const uint32_t *members, uint32_t n) {
    uint32_t ranks = n;
    for (uint32_t i = 0; i < n; i++) ranks += d->held[d->of[members[i]]].alike;
    return ranks;
}

/* A cell, cut along its first dimension of some length where several ranks can share the work. */
static stw_status give_cell(divider *d, const stw_sync_cell *cell, const uint32_t *members,
                            uint32_t kinds, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t tensor = d->held[d->of[members[0]]].tensor;
    const uint64_t bytes = stw_box_volume(&cell->box) * bytes_of(d, tensor, kinds);
    int dim = 0;
    while (dim < STW_BOX_DIMS - 1 && cell->box.count[dim] == 1) dim++;
    const uint64_t rows = cell->box.count[dim];
    const uint32_t ranks = holders(d, members, cell->n_members);
    const uint64_t parts = stw_min_u64(stw_min_u64(rows, ranks), 1 + bytes / SPLIT_BYTES);
    for (uint64_t p = 0, done = 0; p < parts; p++) {
        stw_box box = cell->box;
        const uint64_t end = rows * (p + 1) / parts;
        box.first[dim] += done;
        box.count[dim] = end - done;
        done = end;
        STW_TRY(give(d, &box, members, cell->n_members, kinds, err));
    }
out:
    return status;
}

static stw_status check_held(const divider *d, const stw_held *h, uint32_t index, stw_error *err) {
    const uint64_t *shape = h->tensor < d->saved->n_tensors ? d->saved->shapes[h->tensor] : NULL;
    bool right = shape != NULL && h->rank < d->out->world && h->alike < d->out->world - h->rank;
    for (int k = 0; k < STW_BOX_DIMS && right; k++)
        right = h->box.count[k] <= shape[k] && h->box.first[k] <= shape[k] - h->box.count[k];
    if (right) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT,
                    shape != NULL ? d->saved->model->tensors[h->tensor].name : "tensor",
                    "piece %u of rank %u lies outside the tensor, or the rank outside the %u ranks",
                    index, h->rank, d->out->world);
}

/* State of some kinds, which all pieces hold together or not at all. */
static stw_status divide_class(divider *d, uint32_t kinds, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sync_cells cells;
    uint32_t n = 0;
    stw_sync_piece *pieces = stw_pool_array(d->scratch, (size_t)d->n + 1, sizeof *pieces);
    d->of = stw_pool_array(d->scratch, (size_t)d->n + 1, sizeof *d->of);
    if (pieces == NULL || d->of == NULL) return no_memory(err);
    for (uint32_t i = 0; i < d->n; i++) {
        const stw_held *h = &d->held[i];
        if ((h->kinds & kinds) == 0) continue;
        d->of[n] = i;
        pieces[n++] = (stw_sync_piece){.box = h->box, .rank = h->rank, .tensor = h->tensor};
    }
    STW_TRY(stw_sync_cells_make(d->scratch, pieces, n, d->saved->n_tensors, &cells, err));
    /* First what has no choice, so that the rest makes up for it. */
    for (int shared = 0; shared < 2; shared++)
        for (uint32_t c = 0; c < cells.n_cells; c++) {
            const stw_sync_cell *cell = &cells.cells[c];
            const uint32_t *members = cells.members + cell->first_member;
            if ((holders(d, members, cell->n_members) > 1) == (shared == 1))
                STW_TRY(give_cell(d, cell, members, kinds, err));
        }
out:
    return status;
}

static int compare_drafts(const void *a, const void *b) {
    const draft *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->share.tensor != y->share.tensor) return x->share.tensor < y->share.tensor ? -1 : 1;
    if (x->share.kinds != y->share.kinds) return x->share.kinds < y->share.kinds ? -1 : 1;
    return stw_box_compare(&x->share.box, &y->share.box);
}

static stw_status hand_over(divider *d, stw_pool *pool, stw_error *err) {
    stw_shares *out = d->out;
    out->first = stw_pool_array(pool, (size_t)out->world + 1, sizeof *out->first);
    out->shares = stw_pool_array(pool, (size_t)d->n_drafts + 1, sizeof *out->shares);
    if (out->first == NULL || out->shares == NULL) return no_memory(err);
    if (d->n_drafts > 0) qsort(d->drafts, d->n_drafts, sizeof *d->drafts, compare_drafts);
    for (uint32_t i = 0; i < d->n_drafts; i++) {
        out->shares[i] = d->drafts[i].share;
        out->first[d->drafts[i].rank + 1] = i + 1;
    }
    for (uint32_t r = 0; r < out->world; r++)
        if (out->first[r + 1] < out->first[r]) out->first[r + 1] = out->first[r];
    return STW_STATUS_OK;
}

/* Kinds that the same pieces hold as kind k, k among them; 0: a lower one has k in its class. */
static uint32_t class_of(const divider *d, uint32_t k) {
    uint32_t kinds = d->saved->kinds;
    if ((kinds & 1u << k) == 0) return 0;
    for (uint32_t i = 0; i < d->n; i++) {
        const uint32_t own = d->held[i].kinds;
        kinds &= (own & 1u << k) != 0 ? own : ~own;
    }
    return (kinds & ((1u << k) - 1)) != 0 ? 0 : kinds;
}

stw_status stw_shares_make(stw_pool *pool, const stw_saved_files *saved, uint32_t world,
                           const stw_held *held, uint32_t n, stw_shares *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    divider d = {.saved = saved, .held = held, .n = n, .scratch = stw_pool_new(), .out = out};
    *out = (stw_shares){.world = world};
    out->bytes = stw_pool_array(pool, (size_t)world + 1, sizeof *out->bytes);
    if (d.scratch == NULL || out->bytes == NULL) STW_TRY(no_memory(err));
    for (uint32_t i = 0; i < n; i++)
        if (stw_box_volume(&held[i].box) > 0) STW_TRY(check_held(&d, &held[i], i, err));
    for (uint32_t k = 0; k < STW_N_SAVED; k++) {
        const uint32_t kinds = class_of(&d, k);
        if (kinds != 0) STW_TRY(divide_class(&d, kinds, err));
    }
    STW_TRY(hand_over(&d, pool, err));
out:
    stw_pool_free(d.scratch);
    return status;
}

stw_status stw_shares_check(const stw_saved_files *saved, const stw_shares *shares,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t(*found)[STW_N_SAVED] = calloc((size_t)saved->n_tensors + 1, sizeof *found);
    if (found == NULL) return no_memory(err);
    for (uint32_t i = 0; i < shares->first[shares->world]; i++) /* they are apart */
        for (uint32_t k = 0; k < STW_N_SAVED; k++)
            if ((shares->shares[i].kinds & 1u << k) != 0)
                found[shares->shares[i].tensor][k] += stw_box_volume(&shares->shares[i].box);
    for (uint32_t k = 0; k < STW_N_SAVED; k++)
        for (uint32_t t = 0; t < saved->n_tensors && (saved->kinds & 1u << k) != 0; t++) {
            const stw_tensor *tensor = &saved->model->tensors[t];
            const bool wanted = k == STW_SAVED_PARAMS || saved->trains[t];
            const uint64_t expected = wanted ? tensor->numel : 0;
            if (found[t][k] != expected)
                STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, tensor->name,
                                 "the ranks hold %llu of %llu elements of its %s",
                                 (unsigned long long)found[t][k], (unsigned long long)expected,
                                 stw_saved_name((stw_saved_kind)k)));
        }
out:
    free(found);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Random weight syncs: tensors of up to four dimensions, cut over ranks in the ways that training
 * and inference engines cut them, in memories with gaps, strides and odd alignments. */
#ifndef STW_TESTS_UNIT_SYNC_CASE_H
#define STW_TESTS_UNIT_SYNC_CASE_H

#include <stdlib.h>

#include "backend/element.h"
#include "plan/sync/schedule.h"
#include "tests/unit/testing.h"

#define SYNC_MOST_TENSORS 16
#define SYNC_MOST_PIECES 4096
#define SYNC_MOST_RANKS 8
/* Memories of a rank: one of 4-byte elements, one of 2-byte elements. */
#define SYNC_MEMORIES 2

typedef struct sync_case {
    stw_sync_job job;
    stw_pool *pool; /* of what the job points to; a schedule takes it */
    stw_sync_tensor *tensors;
    stw_sync_piece *pieces[2]; /* sources, targets */
    uint32_t n[2];
    uint64_t elements[2][SYNC_MOST_RANKS][SYNC_MEMORIES]; /* of memories */
    uint64_t state;                                       /* of random numbers */
    bool casts, buckets;
} sync_case;

static inline uint64_t sync_random(sync_case *c, uint64_t below) {
    c->state = stw_mix64(c->state);
    return below == 0 ? 0 : c->state % below;
}

/* ---- pieces ---- */

/* Lay a box into its memory: in C order, with padded rows, or with its dimensions in another order.
 */
static inline void sync_lay(sync_case *c, int target, stw_sync_piece *piece) {
    const uint32_t memory = piece->dtype == STW_DTYPE_F32 ? 0 : 1;
    uint64_t *used = &c->elements[target][piece->rank][memory];
    int order[STW_BOX_DIMS] = {3, 2, 1, 0}; /* from the innermost outwards */
    uint64_t stride = 1;
    if (sync_random(c, 6) == 0) {
        const uint64_t a = sync_random(c, STW_BOX_DIMS), b = sync_random(c, STW_BOX_DIMS);
        const int moved = order[a];
        order[a] = order[b];
        order[b] = moved;
    }
    const uint64_t pad = sync_random(c, 3) == 0 ? sync_random(c, 9) : 0;
    *used += sync_random(c, 2) == 0 ? sync_random(c, 9) : (16 - *used % 16) % 16;
    piece->memory = memory;
    piece->offset = *used;
    for (int i = 0; i < STW_BOX_DIMS; i++) {
        piece->stride[order[i]] = stride;
        stride = stride * piece->box.count[order[i]] + (piece->box.count[order[i]] > 1 ? pad : 0);
    }
    *used += stride;
}

static inline void sync_add(sync_case *c, int target, uint32_t rank, uint32_t tensor,
                            const stw_box *box, stw_dtype dtype) {
    CU_ASSERT_FATAL(c->n[target] < SYNC_MOST_PIECES);
    stw_sync_piece *piece = &c->pieces[target][c->n[target]++];
    *piece = (stw_sync_piece){.box = *box, .rank = rank, .tensor = tensor, .dtype = dtype};
    sync_lay(c, target, piece);
    if (target && c->buckets && sync_random(c, 2) == 0) piece->memory = STW_SYNC_NONE;
}

static inline stw_box sync_whole(const stw_sync_tensor *t) {
    stw_box box;
    for (int d = 0; d < STW_BOX_DIMS; d++) {
        box.first[d] = 0;
        box.count[d] = t->shape[d];
    }
    return box;
}

/* Part i of n of a dimension, as torch.chunk cuts: the last ones may be smaller, or empty. */
static inline stw_box sync_part(stw_box box, int d, uint64_t i, uint64_t n) {
    const uint64_t size = (box.count[d] + n - 1) / n;
    const uint64_t first = i * size < box.count[d] ? i * size : box.count[d];
    const uint64_t end = first + size < box.count[d] ? first + size : box.count[d];
    box.first[d] += first;
    box.count[d] = end - first;
    return box;
}

/* Elements [begin, end) of a tensor in C order, as boxes. */
static inline void sync_flat(sync_case *c, uint32_t rank, uint32_t tensor, uint64_t begin,
                             uint64_t end, stw_dtype dtype) {
    const stw_sync_tensor *t = &c->tensors[tensor];
    while (begin < end) {
        uint64_t inner = 1, at = begin;
        int d = STW_BOX_DIMS - 1; /* of the largest box that begins here: rows of dimension d */
        for (; d > 0; d--) {
            const uint64_t next = inner * t->shape[d];
            if (begin % next != 0 || end - begin < next) break;
            inner = next;
        }
        const uint64_t row = begin / inner % t->shape[d];
        uint64_t rows = (end - begin) / inner;
        if (rows > t->shape[d] - row) rows = t->shape[d] - row;
        stw_box box;
        for (int k = STW_BOX_DIMS - 1; k >= 0; k--) {
            box.first[k] = at % t->shape[k];
            at /= t->shape[k];
            box.count[k] = k > d ? t->shape[k] : 1;
        }
        box.count[d] = rows;
        sync_add(c, 0, rank, tensor, &box, dtype);
        begin += rows * inner;
    }
}

/* ---- sources and targets of a tensor ---- */

static inline void sync_sources(sync_case *c, uint32_t tensor, stw_dtype dtype) {
    const uint32_t world = c->job.world;
    const stw_box whole = sync_whole(&c->tensors[tensor]);
    const uint64_t n = stw_box_volume(&whole), kind = sync_random(c, 8);
    const uint64_t halves = world > 1 ? 2 : 1;
    for (uint32_t r = 0; r < world; r++) {
        stw_box box = whole;
        switch (kind) {
        case 0:
        case 1:
            box = sync_part(whole, (int)kind, r, world);
            break;
        case 2:
            sync_flat(c, r, tensor, n * r / world, n * (r + 1) / world, dtype);
            continue;
        case 3:
            break;
        case 4: /* a grid */
            box = sync_part(sync_part(whole, 0, r / ((world + 1) / 2), halves), 1,
                            r % ((world + 1) / 2), (world + 1) / 2);
            if (world > 1 && world % 2 == 1 &&
                r == world - 1) /* the corner that no other rank has */
                box = sync_part(whole, 0, 1, halves);
            break;
        case 5: /* shards, twice */
            box = sync_part(whole, 0, r % ((world + 1) / 2), (world + 1) / 2);
            break;
        case 6:
            if (r != tensor % world) continue;
            break;
        default: /* shards, and all of it on one rank */
            box = r == 0 ? whole : sync_part(whole, 0, r, world);
        }
        sync_add(c, 0, r, tensor, &box, dtype);
    }
}

static inline void sync_targets(sync_case *c, uint32_t tensor) {
    const uint32_t world = c->job.world;
    const stw_sync_tensor *t = &c->tensors[tensor];
    const stw_box whole = sync_whole(t);
    const uint32_t first = (uint32_t)sync_random(c, world);
    const uint64_t kind = sync_random(c, 7);
    const uint32_t tp = 1u << sync_random(c, 3);
    for (uint32_t r = first; r < world; r++) {
        stw_box box = whole;
        if (kind < 2) {
            box = sync_part(whole, (int)kind, r % tp, tp);
        } else if (kind == 3) { /* a box of its own */
            for (int d = 0; d < STW_BOX_DIMS; d++) {
                box.first[d] = sync_random(c, t->shape[d] + 1);
                box.count[d] = sync_random(c, t->shape[d] - box.first[d] + 1);
            }
        } else if (kind == 4) { /* two engines */
            box = sync_part(whole, 1, r % (r % 2 == 0 ? 2 : 4), r % 2 == 0 ? 2 : 4);
        } else if (kind == 5) {
            box = sync_part(whole, 0, r, world);
        }
        sync_add(c, 1, r, tensor, &box, t->dtype);
        if (sync_random(c, 8) == 0) sync_add(c, 1, r, tensor, &box, t->dtype);
        if (sync_random(c, 8) == 0) {
            box = sync_part(box, 0, 0, 2);
            sync_add(c, 1, r, tensor, &box, t->dtype);
        }
    }
}

static inline uint64_t sync_size(sync_case *c) {
    static const uint64_t sizes[] = {1, 2, 3, 5, 8, 13, 16, 24, 40, 64, 100};
    return sizes[sync_random(c, sizeof sizes / sizeof sizes[0])];
}

/** @param most elements of a tensor */
static inline void sync_case_make(sync_case *c, uint64_t seed, uint32_t world, uint64_t most) {
    static const stw_dtype dtypes[] = {STW_DTYPE_F32, STW_DTYPE_BF16, STW_DTYPE_F16};
    const bool casts = c->casts, buckets = c->buckets;
    memset(c, 0, sizeof *c);
    c->casts = casts;
    c->buckets = buckets;
    c->state = seed * 7919 + 1;
    c->pool = stw_pool_new();
    c->tensors = stw_pool_array(c->pool, SYNC_MOST_TENSORS, sizeof *c->tensors);
    for (int k = 0; k < 2; k++)
        c->pieces[k] = stw_pool_array(c->pool, SYNC_MOST_PIECES, sizeof *c->pieces[k]);
    CU_ASSERT_FATAL(c->tensors != NULL && c->pieces[0] != NULL && c->pieces[1] != NULL);
    c->job.world = world;
    c->job.n_tensors = 1 + (uint32_t)sync_random(c, SYNC_MOST_TENSORS);
    for (uint32_t i = 0; i < c->job.n_tensors; i++) {
        stw_sync_tensor *t = &c->tensors[i];
        uint64_t n = 1;
        t->name = stw_pool_printf(c->pool, "tensor%u", i);
        t->dtype = dtypes[sync_random(c, 3)];
        t->dims = (uint32_t)sync_random(c, STW_BOX_DIMS + 1);
        for (uint32_t d = 0; d < STW_BOX_DIMS; d++) {
            t->shape[d] = d < t->dims ? sync_size(c) : 1;
            if (n * t->shape[d] > most) t->shape[d] = 1;
            n *= t->shape[d];
        }
        if (sync_random(c, 6) == 0 && t->dims > 0) { /* a large one */
            t->shape[0] = most / n * t->shape[0];
            if (t->shape[0] == 0) t->shape[0] = 1;
        }
        sync_sources(c, i, c->casts ? dtypes[sync_random(c, 3)] : t->dtype);
        sync_targets(c, i);
    }
    c->job.tensors = c->tensors;
    c->job.sources = c->pieces[0];
    c->job.targets = c->pieces[1];
    c->job.n_sources = c->n[0];
    c->job.n_targets = c->n[1];
    c->job.bucket_bytes = STW_SYNC_LEAST_BUCKET;
}

/* ---- elements ---- */

/** Element i of a box in C order: its place in the tensor in C order ... */
static inline uint64_t sync_element(const stw_sync_tensor *t, const stw_box *box, uint64_t i) {
    uint64_t at[STW_BOX_DIMS], element = 0;
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        at[d] = box->first[d] + i % box->count[d];
        i /= box->count[d];
    }
    for (int d = 0; d < STW_BOX_DIMS; d++) element = element * t->shape[d] + at[d];
    return element;
}

/** ... the place of a tensor's element in the memory of a piece, in elements, and ... */
static inline uint64_t sync_at(const stw_sync_tensor *t, const stw_sync_piece *piece,
                               uint64_t element) {
    uint64_t place = piece->offset;
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        place += (element % t->shape[d] - piece->box.first[d]) * piece->stride[d];
        element /= t->shape[d];
    }
    return place;
}

/** ... in a box in C order. */
static inline uint64_t sync_in_box(const stw_sync_tensor *t, const stw_box *box, uint64_t element) {
    uint64_t place = 0, at[STW_BOX_DIMS];
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        at[d] = element % t->shape[d] - box->first[d];
        element /= t->shape[d];
    }
    for (int d = 0; d < STW_BOX_DIMS; d++) place = place * box->count[d] + at[d];
    return place;
}

/** Is an element of the tensor in the box? */
static inline bool sync_is_in(const stw_sync_tensor *t, const stw_box *box, uint64_t element) {
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        const uint64_t at = element % t->shape[d];
        if (at < box->first[d] || at >= box->first[d] + box->count[d]) return false;
        element /= t->shape[d];
    }
    return true;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/checkpoint/cover.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"

#define MOST_ROWS (1ull << 32) /* of a checkpoint */

/* Rows of an extent that are still to come. */
typedef struct rows {
    uint32_t file, rank;
    uint64_t next, bytes, left, stride;
} rows;

typedef struct named {
    const char *name;
    uint32_t file;
} named;

typedef struct cover {
    const stw_checkpoint *c;
    const stw_covered *files;
    uint32_t n_files;
    named *names; /* [n_files] in order */
    rows *all;    /* of all markers, by file and first byte */
    size_t n;
    rows **heap; /* extents of several rows that are under way; the first has the next row */
    size_t n_heap;
} cover;

static stw_status no_memory(const cover *v, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, v->c->path, "out of memory");
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

static int compare_rows(const void *a, const void *b) {
    const rows *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->next > y->next) - (x->next < y->next);
}

/* ---- all extents ---- */

static stw_status sort_names(cover *v, stw_error *err) {
    v->names = calloc((size_t)v->n_files + 1, sizeof *v->names);
    if (v->names == NULL) return no_memory(v, err);
    for (uint32_t f = 0; f < v->n_files; f++) v->names[f] = (named){v->files[f].name, f};
    qsort(v->names, v->n_files, sizeof *v->names, compare_names);
    for (uint32_t f = 1; f < v->n_files; f++)
        if (strcmp(v->names[f - 1].name, v->names[f].name) == 0)
            return stw_fail(err, STW_STATUS_DISAGREE, v->c->path, "lists the file %.200s twice",
                            v->names[f].name);
    return STW_STATUS_OK;
}

static stw_status add_bucket(cover *v, const stw_marker *m, const stw_marked_bucket *b,
                             uint64_t *n_rows, stw_error *err) {
    const named key = {m->files[b->file], 0};
    const named *found = bsearch(&key, v->names, v->n_files, sizeof *v->names, compare_names);
    if (found == NULL)
        return stw_fail(err, STW_STATUS_DISAGREE, v->c->path,
                        "rank %u's marker lists %.200s, which is no file of the checkpoint",
                        m->rank, key.name);
    for (uint32_t e = b->first_extent; e < b->first_extent + b->n_extents; e++) {
        const stw_marked_extent *x = &m->extents[e];
        *n_rows = stw_plus(*n_rows, x->count);
        v->all[v->n++] = (rows){found->file, m->rank, x->offset, x->bytes, x->count, x->stride};
    }
    if (*n_rows <= MOST_ROWS) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DISAGREE, v->c->path,
                    "its markers list more than %" PRIu64 " rows of bytes", (uint64_t)MOST_ROWS);
}

static stw_status collect(cover *v, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t n = 0, n_rows = 0;
    for (uint32_t r = 0; r < v->c->manifest.world; r++) n = stw_plus(n, v->c->markers[r].n_extents);
    v->all = calloc((size_t)n + 1, sizeof *v->all);
    v->heap = calloc((size_t)n + 1, sizeof *v->heap);
    if (v->all == NULL || v->heap == NULL) return no_memory(v, err);
    for (uint32_t r = 0; r < v->c->manifest.world; r++) {
        const stw_marker *m = &v->c->markers[r];
        for (uint32_t b = 0; b < m->n_buckets; b++)
            STW_TRY(add_bucket(v, m, &m->buckets[b], &n_rows, err));
    }
    qsort(v->all, v->n, sizeof *v->all, compare_rows);
out:
    return status;
}

/* ---- rows in the order of a file ---- */

static void sink(cover *v, size_t i) {
    for (;;) {
        size_t least = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < v->n_heap; child++)
            if (v->heap[child]->next < v->heap[least]->next) least = child;
        if (least == i) return;
        rows *other = v->heap[i];
        v->heap[i] = v->heap[least];
        v->heap[least] = other;
        i = least;
    }
}

static void push(cover *v, rows *x) {
    size_t i = v->n_heap++;
    for (; i > 0 && v->heap[(i - 1) / 2]->next > x->next; i = (i - 1) / 2)
        v->heap[i] = v->heap[(i - 1) / 2];
    v->heap[i] = x;
}

static stw_status check_row(const cover *v, const rows *x, uint64_t at, stw_error *err) {
    const stw_covered *file = &v->files[x->file];
    if (x->next == at && x->bytes <= file->bytes - at) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DISAGREE, v->c->path,
                    "%.200s: found %" PRIu64 " bytes of rank %u at byte %" PRIu64
                    ", expected the next ones at %" PRIu64 " of %" PRIu64,
                    file->name, x->bytes, x->rank, x->next, at, file->bytes);
}

/* Extents [*i, ...) of a file. */
static stw_status check_file(cover *v, uint32_t file, size_t *i, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t at = 0;
    v->n_heap = 0;
    for (;;) {
        const bool more = *i < v->n && v->all[*i].file == file;
        if (!more && v->n_heap == 0) break;
        if (more && (v->n_heap == 0 || v->all[*i].next < v->heap[0]->next)) {
            if (v->all[*i].left > 1) {
                push(v, &v->all[(*i)++]);
                continue;
            }
            STW_TRY(check_row(v, &v->all[*i], at, err));
            at += v->all[(*i)++].bytes;
            continue;
        }
        rows *x = v->heap[0];
        STW_TRY(check_row(v, x, at, err));
        at += x->bytes;
        x->next += x->stride; /* the reader of markers has seen that it fits */
        if (--x->left == 0) v->heap[0] = v->heap[--v->n_heap];
        sink(v, 0);
    }
    if (at != v->files[file].bytes)
        status = stw_fail(err, STW_STATUS_DISAGREE, v->c->path,
                          "%.200s: the markers list %" PRIu64 " of its %" PRIu64 " bytes",
                          v->files[file].name, at, v->files[file].bytes);
out:
    return status;
}

stw_status stw_checkpoint_cover(const stw_checkpoint *checkpoint, const stw_covered *files,
                                uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    cover v = {.c = checkpoint, .files = files, .n_files = n};
    size_t i = 0;
    STW_TRY(sort_names(&v, err));
    STW_TRY(collect(&v, err));
    for (uint32_t f = 0; f < n; f++) STW_TRY(check_file(&v, f, &i, err));
out:
    free(v.names);
    free(v.all);
    free(v.heap);
    return status;
}

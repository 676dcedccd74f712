/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/export.h"

#include <string.h>

#include "core/checked.h"
#include "engines/partition.h"
#include "engines/rollout_weights.h"

/* A part of a published tensor, in four dimensions at most. */
typedef struct part {
    uint32_t tensor;      /* of the sync */
    stw_box own, there;   /* in the model's tensor, in the published one */
    int to[STW_BOX_DIMS]; /* dimension of the published one for each of the model's; -1: one element
                           */
} part;

struct stw_export {
    const stw_job *job;
    stw_pool *pool;
    stw_names_list *list;
    uint32_t n_tensors;
    stw_sync_tensor *tensors;
    uint32_t *published;  /* [n_tensors] number in the list */
    uint32_t *first_part; /* [job.model.n_tensors + 1] */
    part *parts;
};

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "published tensors", "out of memory");
}

/* ---- parts ---- */

static stw_box whole_box(uint32_t rank, const uint64_t *shape) {
    stw_box box = {{0}, {1, 1, 1, 1}};
    for (uint32_t d = 0; d < rank; d++) {
        uint64_t *count = &box.count[d < STW_BOX_DIMS ? d : STW_BOX_DIMS - 1];
        *count = stw_times(*count, shape[d]);
    }
    return box;
}

static stw_box box_of(const stw_names_box *from) {
    stw_box box = {{0}, {1, 1, 1, 1}};
    memcpy(box.first, from->first, from->rank * sizeof box.first[0]);
    memcpy(box.count, from->count, from->rank * sizeof box.count[0]);
    return box;
}

/* Dimensions of more than one element correspond in order; transposed ones are swapped. */
static bool match_dims(part *p, uint32_t rank, bool transposed) {
    int own[STW_BOX_DIMS], there[STW_BOX_DIMS], n = 0, m = 0;
    for (int d = 0; d < STW_BOX_DIMS; d++) {
        p->to[d] = -1;
        if (p->own.count[d] > 1) own[n++] = d;
        if (p->there.count[d] > 1) there[m++] = d;
    }
    if (transposed && n >= 2 && own[n - 1] == (int)rank - 1 && own[n - 2] == (int)rank - 2) {
        own[n - 2] = (int)rank - 1;
        own[n - 1] = (int)rank - 2;
    }
    if (n != m) return false;
    for (int i = 0; i < n; i++) {
        if (p->own.count[own[i]] != p->there.count[there[i]]) return false;
        p->to[own[i]] = there[i];
    }
    return true;
}

static stw_status make_part(const stw_export *e, const stw_names_part *from, part *out,
                            stw_error *err) {
    const stw_published *published = &e->list->published[from->published];
    const stw_tensor *tensor = &e->job->model->tensors[from->tensor];
    const bool transposed = from->way == STW_NAMES_TRANSPOSED;
    stw_names_box own, there;
    if ((from->way != STW_NAMES_AS_IS && !transposed) || from->scale != STW_NAMES_NONE)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, published->name,
                        "the published files of this model are quantised; weights are written as "
                        "they are trained, so give a config.json without quantization_config");
    stw_names_boxes(e->list, from, &own, &there);
    if (own.rank <= STW_BOX_DIMS && there.rank <= STW_BOX_DIMS) {
        out->own = box_of(&own);
        out->there = box_of(&there);
    } else { /* of a vision tower: as it is */
        out->own = stw_rollout_whole(tensor);
        out->there = whole_box(published->rank, published->shape);
    }
    if (stw_box_volume(&out->own) == stw_box_volume(&out->there) &&
        match_dims(out, own.rank, transposed))
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, published->name,
                    "a part of %.200s in more than four dimensions is not written", tensor->name);
}

static stw_dtype dtype_of(stw_dtype published) {
    return published == STW_DTYPE_F32 || published == STW_DTYPE_F16 ? published : STW_DTYPE_BF16;
}

/* Published tensors without a part of a trained one (buffers, scales) are left out. */
static stw_status add_tensors(stw_export *e, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t n = e->list->n_published, n_own = e->job->model->n_tensors;
    uint32_t *number = stw_pool_array(e->pool, (size_t)n + 1, sizeof *number), used = 0;
    e->tensors = stw_pool_array(e->pool, (size_t)n + 1, sizeof *e->tensors);
    e->published = stw_pool_array(e->pool, (size_t)n + 1, sizeof *e->published);
    e->parts = stw_pool_array(e->pool, (size_t)e->list->n_parts + 1, sizeof *e->parts);
    e->first_part = stw_pool_array(e->pool, (size_t)n_own + 2, sizeof *e->first_part);
    if (number == NULL || e->tensors == NULL || e->published == NULL || e->parts == NULL ||
        e->first_part == NULL)
        return no_memory(err);
    for (uint32_t i = 0; i < e->list->n_parts; i++) {
        const stw_names_part *from = &e->list->parts[i];
        const stw_published *p = &e->list->published[from->published];
        if (from->tensor >= n_own) continue;
        if (number[from->published] == 0) {
            const stw_box whole = whole_box(p->rank, p->shape);
            stw_sync_tensor *t = &e->tensors[e->n_tensors];
            *t = (stw_sync_tensor){.name = p->name,
                                   .dtype = dtype_of(p->dtype),
                                   .dims = p->rank < STW_BOX_DIMS ? p->rank : STW_BOX_DIMS};
            memcpy(t->shape, whole.count, sizeof t->shape);
            e->published[e->n_tensors++] = from->published;
            number[from->published] = e->n_tensors;
        }
        e->parts[used].tensor = number[from->published] - 1;
        STW_TRY(make_part(e, from, &e->parts[used++], err));
        e->first_part[from->tensor + 1] = used; /* parts are in the order of tensors */
    }
    for (uint32_t t = 0; t < n_own; t++)
        if (e->first_part[t + 1] < e->first_part[t]) e->first_part[t + 1] = e->first_part[t];
out:
    return status;
}

stw_status stw_export_new(const stw_job *job, stw_export **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    stw_export *e = pool != NULL ? stw_pool_alloc(pool, sizeof *e) : NULL;
    *out = NULL;
    if (e == NULL) {
        stw_pool_free(pool);
        return no_memory(err);
    }
    e->pool = pool;
    e->job = job;
    STW_TRY(stw_names_list_make(job->model, &e->list, err));
    STW_TRY(add_tensors(e, err));
    *out = e;
    e = NULL;
out:
    stw_export_free(e);
    return status;
}

void stw_export_free(stw_export *e) {
    if (e == NULL) return;
    stw_names_list_free(e->list);
    stw_pool_free(e->pool);
}

const stw_sync_tensor *stw_export_tensors(const stw_export *e, uint32_t *n) {
    *n = e->n_tensors;
    return e->tensors;
}

const stw_published *stw_export_published(const stw_export *e, uint32_t tensor) {
    return &e->list->published[e->published[tensor]];
}

/* ---- runs ---- */

static uint64_t dot(const uint64_t *a, const uint64_t *b) {
    uint64_t sum = 0;
    for (int d = 0; d < STW_BOX_DIMS; d++) sum += stw_times(a[d], b[d]);
    return sum;
}

/* What a box of the model's tensor has of a part. @param stride of the tensor */
static bool piece_of(const part *p, const stw_box *box, const uint64_t *stride, uint64_t first,
                     stw_sync_piece *out) {
    stw_box meet;
    if (!stw_box_meet(&p->own, box, &meet)) return false;
    *out = (stw_sync_piece){.box = p->there, .tensor = p->tensor};
    out->offset = dot(meet.first, stride) - first;
    for (int d = 0; d < STW_BOX_DIMS; d++) {
        const int there = p->to[d];
        if (there < 0) continue;
        out->box.first[there] = p->there.first[there] + (meet.first[d] - p->own.first[d]);
        out->box.count[there] = meet.count[d];
        out->stride[there] = stride[d];
    }
    return true;
}

stw_status stw_export_run(const stw_export *e, uint32_t tensor, uint64_t first, uint64_t n,
                          stw_export_take take, void *state, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_box whole = stw_rollout_whole(&e->job->model->tensors[tensor]);
    uint64_t stride[STW_BOX_DIMS] = {0, 0, 0, 1};
    stw_box boxes[STW_BOX_RUNS];
    stw_sync_piece piece;
    for (int d = STW_BOX_DIMS - 1; d > 0; d--) stride[d - 1] = stw_times(stride[d], whole.count[d]);
    const unsigned n_boxes = n > 0 ? stw_box_of_run(whole.count, first, n, boxes) : 0;
    for (uint32_t i = e->first_part[tensor]; i < e->first_part[tensor + 1]; i++)
        for (unsigned b = 0; b < n_boxes; b++)
            if (piece_of(&e->parts[i], &boxes[b], stride, first, &piece))
                STW_TRY(take(state, &piece, err));
out:
    return status;
}

/* ---- the sync ---- */

typedef struct pieces {
    stw_pool *pool;
    stw_sync_piece *all;
    uint32_t n, rank;
    size_t capacity;
    stw_dtype dtype;
} pieces;

static stw_status add_source(void *state, const stw_sync_piece *piece, stw_error *err) {
    pieces *p = state;
    if (p->n == p->capacity) {
        if (p->n >= UINT32_MAX / 2) return no_memory(err);
        p->all = stw_pool_regrow(p->pool, p->all, p->n, p->n + 1u, &p->capacity, sizeof *p->all);
        if (p->all == NULL) return no_memory(err);
    }
    p->all[p->n] = *piece;
    p->all[p->n].rank = p->rank;
    p->all[p->n++].dtype = p->dtype;
    return STW_STATUS_OK;
}

static uint64_t bytes_of(const stw_sync_tensor *t) {
    uint64_t bytes = stw_sync_width(t->dtype);
    for (int d = 0; d < STW_BOX_DIMS; d++) bytes = stw_times(bytes, t->shape[d]);
    return bytes;
}

static void add_targets(const stw_export *e, uint32_t writers, stw_sync_piece *out) {
    uint64_t all = 0, done = 0;
    for (uint32_t t = 0; t < e->n_tensors; t++) all = stw_plus(all, bytes_of(&e->tensors[t]));
    const uint64_t share = stw_max_u64(stw_div_up_u64(all, writers), 1);
    for (uint32_t t = 0; t < e->n_tensors; t++) {
        out[t] = (stw_sync_piece){.rank = (uint32_t)(done / share),
                                  .tensor = t,
                                  .memory = STW_SYNC_NONE,
                                  .dtype = e->tensors[t].dtype};
        memcpy(out[t].box.count, e->tensors[t].shape, sizeof out[t].box.count);
        done += bytes_of(&e->tensors[t]);
    }
}

stw_status stw_export_job(const stw_export *e, uint64_t bucket_bytes, uint32_t writers,
                          stw_pool *pool, stw_sync_job *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job *job = e->job;
    pieces sources = {.pool = pool, .dtype = STW_DTYPE_BF16};
    stw_sync_piece *targets = stw_pool_array(pool, (size_t)e->n_tensors + 1, sizeof *targets);
    if (targets == NULL) STW_TRY(no_memory(err));
    if (stw_job_element_bytes(job, STW_COMPONENT_PARAMS) == 4) sources.dtype = STW_DTYPE_F32;
    for (uint32_t t = 0; t < job->model->n_tensors; t++)
        for (sources.rank = 0; sources.rank < job->world; sources.rank++) {
            uint64_t first = 0, n = 0;
            stw_chunks_range(job, t, sources.rank, &first, &n);
            STW_TRY(stw_export_run(e, t, first, n, add_source, &sources, err));
        }
    add_targets(e, writers, targets);
    *out = (stw_sync_job){.tensors = e->tensors,
                          .sources = sources.all,
                          .targets = targets,
                          .n_tensors = e->n_tensors,
                          .n_sources = sources.n,
                          .n_targets = e->n_tensors,
                          .world = job->world,
                          .bucket_bytes = bucket_bytes};
out:
    return status;
}

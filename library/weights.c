/* SPDX-License-Identifier: Apache-2.0 */
/* Published files of a model: their tensors, and reads of boxes. */
#include <stdlib.h>
#include <string.h>

#include "backend/executor/executor.h"
#include "core/checked.h"
#include "library/handles.h"
#include "models/names.h"

struct stw_published_list_t {
    stw_names_list *list;
};

struct stw_weights_t {
    const stw_model *model; /* borrowed */
    stw_weights *weights;
};

/* ---- lists ---- */

stw_status_t stw_list_published(const stw_model_t *model, stw_published_list_t **out,
                                stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_published_list_t *handle = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(model, "model", err));
    STW_TRY(stw_library_need(out, "out", err));
    handle = calloc(1, sizeof *handle);
    if (handle == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "list", "out of memory"));
    STW_TRY(stw_names_list_make(model->model, &handle->list, err));
    *out = handle;
    handle = NULL;
out:
    free(handle);
    return stw_library_end(status, error);
}

void stw_free_published(stw_published_list_t *list) {
    if (list == NULL) return;
    stw_names_list_free(list->list);
    free(list);
}

int stw_get_published(const stw_published_list_t *list, uint32_t i, stw_published_t *out,
                      size_t size) {
    if (list == NULL || out == NULL || i >= list->list->n_published) return 0;
    const stw_published *p = &list->list->published[i];
    stw_published_t info = {.name = p->name,
                            .dtype = stw_dtype_name(p->dtype),
                            .kind = stw_published_kind_name(p->kind),
                            .dimensions = p->rank};
    memcpy(info.shape, p->shape, p->rank * sizeof info.shape[0]);
    stw_library_copy(out, size, &info, sizeof info);
    return 1;
}

int stw_get_published_part(const stw_published_list_t *list, uint32_t i, stw_published_part_t *out,
                           size_t size) {
    if (list == NULL || out == NULL || i >= list->list->n_parts) return 0;
    const stw_model *model = list->list->model;
    const stw_names_part *part = &list->list->parts[i];
    stw_names_box own, other;
    stw_names_boxes(list->list, part, &own, &other);
    stw_published_part_t info = {.tensor_name = stw_names_tensor(model, part->tensor)->name,
                                 .tensor =
                                     part->tensor < model->n_tensors ? part->tensor : STOWAGE_NONE,
                                 .published = part->published,
                                 .scale = part->scale,
                                 .way = stw_names_way_name(part->way),
                                 .dimensions = own.rank,
                                 .published_dimensions = other.rank};
    memcpy(info.first, own.first, sizeof info.first);
    memcpy(info.count, own.count, sizeof info.count);
    memcpy(info.published_first, other.first, sizeof info.published_first);
    memcpy(info.published_count, other.count, sizeof info.published_count);
    stw_library_copy(out, size, &info, sizeof info);
    return 1;
}

/* ---- reads ---- */

stw_status_t stw_open_weights(const stw_model_t *model, const char *path, stw_weights_t **out,
                              stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_weights_t *handle = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(model, "model", err));
    STW_TRY(stw_library_need(path, "path", err));
    STW_TRY(stw_library_need(out, "out", err));
    handle = calloc(1, sizeof *handle);
    if (handle == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory"));
    handle->model = model->model;
    STW_TRY(stw_weights_open(model->model, path, 0, &handle->weights, err));
    *out = handle;
    handle = NULL;
out:
    free(handle);
    return stw_library_end(status, error);
}

void stw_free_weights(stw_weights_t *weights) {
    if (weights == NULL) return;
    stw_weights_close(weights->weights);
    free(weights);
}

const char *stw_get_weights_dtype(const stw_weights_t *weights, uint32_t tensor) {
    if (weights == NULL || tensor >= weights->model->n_tensors) return "";
    return stw_dtype_name(stw_weights_dtype(weights->weights, tensor));
}

/* A box of a tensor as runs of `run` elements: along the dimensions before `outer` it is walked. */
typedef struct box_walk {
    const stw_tensor *tensor;
    const uint64_t *first, *count;
    uint32_t outer;
    uint64_t run, runs;
    uint64_t at[STW_TENSOR_MAX_RANK];
} box_walk;

static stw_status begin_walk(const stw_tensor *t, const uint64_t *first, const uint64_t *count,
                             box_walk *out, stw_error *err) {
    *out = (box_walk){.tensor = t, .first = first, .count = count, .run = 1, .runs = 1};
    bool whole = true;
    for (uint32_t d = t->rank; d-- > 0;) {
        if (first[d] > t->shape[d] || count[d] > t->shape[d] - first[d])
            return stw_fail(err, STW_STATUS_USAGE, t->name,
                            "dimension %u: elements %llu + %llu of %llu", d,
                            (unsigned long long)first[d], (unsigned long long)count[d],
                            (unsigned long long)t->shape[d]);
        if (whole) out->outer = d;
        if (whole)
            out->run = stw_times(out->run, count[d]);
        else
            out->runs = stw_times(out->runs, count[d]);
        whole = whole && count[d] == t->shape[d];
    }
    return STW_STATUS_OK;
}

/* The first element of the run at hand, and on to the next run. */
static uint64_t next_run(box_walk *w) {
    uint64_t element = 0;
    for (uint32_t d = 0; d < w->tensor->rank; d++)
        element = stw_plus(stw_times(element, w->tensor->shape[d]), w->first[d] + w->at[d]);
    for (uint32_t d = w->outer; d-- > 0;) {
        if (++w->at[d] < w->count[d]) break;
        w->at[d] = 0;
    }
    return element;
}

stw_status_t stw_read_weights(stw_weights_t *weights, uint32_t tensor, const uint64_t *first,
                              const uint64_t *count, void *out, uint64_t bytes,
                              stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    box_walk walk;
    STW_TRY(stw_library_need(weights, "weights", err));
    if (tensor >= weights->model->n_tensors)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "tensor", "%u of %u", tensor,
                         weights->model->n_tensors));
    const stw_tensor *t = &weights->model->tensors[tensor];
    if (t->rank > 0) STW_TRY(stw_library_need(first, "first", err));
    if (t->rank > 0) STW_TRY(stw_library_need(count, "count", err));
    if (bytes > 0) STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(begin_walk(t, first, count, &walk, err));
    const uint64_t one = stw_dtype_bits(stw_weights_dtype(weights->weights, tensor)) / 8;
    const uint64_t run_bytes = stw_times(walk.run, one);
    if (bytes != stw_times(run_bytes, walk.runs))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "bytes", "found %llu, the box of %.200s has %llu",
                         (unsigned long long)bytes, t->name,
                         (unsigned long long)stw_times(run_bytes, walk.runs)));
    for (uint64_t at = 0; at < bytes; at += run_bytes)
        STW_TRY(stw_weights_read(weights->weights, tensor, next_run(&walk), walk.run,
                                 (unsigned char *)out + at, err));
out:
    return stw_library_end(status, error);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* All published tensors of a model, and the parts that map them to the model's. */
#include <string.h>

#include "core/checked.h"
#include "models/names.h"

#define MAX_NAME 1024
#define SCALE_BLOCK 128u /* of fp8, along outputs and inputs */
#define MX_BLOCK 32u     /* elements with one scale */

typedef struct maker {
    stw_names *names;
    stw_names_list *list;
    size_t published_room, parts_room;
    const stw_tensor *tensor; /* the one at hand */
    uint32_t index;
    stw_published_kind kind;
} maker;

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "models/names", "out of memory");
}

const char *stw_published_kind_name(stw_published_kind kind) {
    static const char *const names[STW_N_PUBLISHED_KINDS] = {"weight", "buffer", "scale", "extra"};
    return names[kind];
}

const stw_tensor *stw_names_tensor(const stw_model *model, uint32_t index) {
    if (index < model->n_tensors) return &model->tensors[index];
    index -= model->n_tensors;
    if (index < model->n_buffers) return &model->buffer_tensors[index];
    index -= model->n_buffers;
    return index < model->n_extras ? &model->extra_tensors[index] : NULL;
}

/* A published tensor, appended; its name is copied. */
static stw_status add(maker *m, const char *name, stw_published what, stw_error *err) {
    stw_names_list *list = m->list;
    uint64_t elements = 1, bits = 0;
    stw_status status = STW_STATUS_OK;
    if (list->n_published == STW_MODEL_MAX_TENSORS * 2)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, list->model->name, "more than %u tensors",
                         STW_MODEL_MAX_TENSORS * 2));
    stw_published *grown =
        stw_pool_regrow(list->pool, list->published, list->n_published, list->n_published + 1u,
                        &m->published_room, sizeof *grown);
    if (grown == NULL) STW_TRY(no_memory(err));
    list->published = grown;
    what.name = stw_pool_string(list->pool, name);
    if (what.name == NULL) STW_TRY(no_memory(err));
    for (uint32_t d = 0; d < what.rank; d++)
        STW_TRY(stw_mul_u64(elements, what.shape[d], &elements, name, err));
    STW_TRY(stw_mul_u64(elements, stw_dtype_bits(what.dtype), &bits, name, err));
    STW_TRY(stw_add_u64(list->bytes, stw_div_up_u64(bits, 8), &list->bytes, name, err));
    list->published[list->n_published++] = what;
out:
    return status;
}

static stw_status add_part(maker *m, stw_names_part part, stw_error *err) {
    stw_names_list *list = m->list;
    stw_names_part *grown = stw_pool_regrow(list->pool, list->parts, list->n_parts,
                                            list->n_parts + 1u, &m->parts_room, sizeof *grown);
    if (grown == NULL) return no_memory(err);
    list->parts = grown;
    part.tensor = m->index;
    list->parts[list->n_parts++] = part;
    return STW_STATUS_OK;
}

/* As stored: packed formats have other shapes. */
static stw_published stored(const maker *m, const stw_names_form *form, uint32_t rank,
                            const uint64_t *shape) {
    stw_published out = {.kind = m->kind, .dtype = m->tensor->dtype, .rank = rank};
    memcpy(out.shape, shape, rank * sizeof shape[0]);
    if (form->way == STW_NAMES_MXFP4 && rank < STW_TENSOR_MAX_RANK) {
        out.dtype = STW_DTYPE_U8;
        out.shape[rank - 1] /= MX_BLOCK;
        out.shape[out.rank++] = MX_BLOCK / 2;
    }
    if (form->way == STW_NAMES_INT4) {
        out.dtype = STW_DTYPE_I32;
        out.shape[rank - 1] /= 8;
    }
    return out;
}

static stw_published scales_of(const stw_names_form *form, uint32_t rank, const uint64_t *shape) {
    stw_published out = {.kind = STW_PUBLISHED_SCALE, .dtype = STW_DTYPE_F32, .rank = rank};
    memcpy(out.shape, shape, rank * sizeof shape[0]);
    const bool packed = form->ending != NULL;
    if (packed) out.dtype = form->way == STW_NAMES_MXFP4 ? STW_DTYPE_U8 : STW_DTYPE_BF16;
    out.shape[rank - 1] = stw_div_up_u64(shape[rank - 1], packed ? MX_BLOCK : SCALE_BLOCK);
    if (!packed) out.shape[rank - 2] = stw_div_up_u64(shape[rank - 2], SCALE_BLOCK);
    return out;
}

/* The published tensor that a part of another tensor has already named. */
static uint32_t find_shared(const stw_names_list *list, const char *name) {
    for (uint32_t p = list->n_published; p-- > 0;)
        if (strcmp(list->published[p].name, name) == 0) return p;
    return STW_NAMES_NONE;
}

/* The k-th published tensor of an expert, its scales and the part. */
static stw_status add_one(maker *m, const stw_names_form *form, uint32_t k, uint64_t expert,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_names_list *list = m->list;
    uint64_t shape[STW_TENSOR_MAX_RANK] = {0};
    uint32_t rank = 0;
    char name[MAX_NAME], scale[MAX_NAME];
    if (!stw_names_shape(form, m->tensor, &rank, shape) ||
        !stw_names_fill(form, k, expert, form->ending, name, sizeof name))
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, m->tensor->name,
                         "models/names: its shape cannot be cut as its rows say"));
    const uint64_t extent = m->tensor->rank > 0 ? m->tensor->shape[form->dim] : 1;
    const uint64_t share = form->whole > 0 ? extent : extent / form->n;
    stw_names_part part = {.published = form->whole > 0 ? find_shared(list, name) : STW_NAMES_NONE,
                           .scale = STW_NAMES_NONE,
                           .way = form->way,
                           .singly = form->singly,
                           .expert = expert,
                           .dim = form->dim,
                           .first = stw_times(k, share),
                           .count = share,
                           .published_first = form->first};
    if (part.published == STW_NAMES_NONE) {
        part.published = list->n_published;
        STW_TRY(add(m, name, stored(m, form, rank, shape), err));
    }
    if (form->ending != NULL || (m->tensor->scale_bytes > 0 && rank >= 2)) {
        const char *beside = NULL;
        if (form->ending == NULL) beside = stw_names_scale_of(m->names, name, 0, list->pool);
        if (form->ending != NULL &&
            stw_names_fill(form, k, expert, form->scales, scale, sizeof scale))
            beside = scale;
        if (beside == NULL) STW_TRY(no_memory(err));
        part.scale = list->n_published;
        STW_TRY(add(m, beside, scales_of(form, rank, shape), err));
    }
    STW_TRY(add_part(m, part, err));
out:
    return status;
}

static stw_status add_tensor(maker *m, uint32_t index, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_model *model = m->list->model;
    stw_names_form form;
    m->index = index;
    m->tensor = stw_names_tensor(model, index);
    m->kind = index < model->n_tensors                      ? STW_PUBLISHED_WEIGHT
              : index < model->n_tensors + model->n_buffers ? STW_PUBLISHED_BUFFER
                                                            : STW_PUBLISHED_EXTRA;
    STW_TRY(stw_names_form_of(m->names, m->tensor, 0, m->list->pool, &form, err));
    const uint64_t experts = form.singly && m->tensor->rank > 0 ? m->tensor->shape[0] : 1;
    for (uint64_t e = 0; e < experts; e++)
        for (uint32_t k = 0; k < form.n; k++) STW_TRY(add_one(m, &form, k, e, err));
out:
    return status;
}

stw_status stw_names_list_make(const stw_model *model, stw_names_list **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    maker m = {.names = NULL};
    *out = NULL;
    if (pool == NULL) STW_TRY(no_memory(err));
    m.list = stw_pool_alloc(pool, sizeof *m.list);
    if (m.list == NULL) STW_TRY(no_memory(err));
    m.list->pool = pool;
    m.list->model = model;
    STW_TRY(stw_names_open(model, &m.names, err));
    for (uint32_t i = 0; i < model->n_tensors + model->n_buffers + model->n_extras; i++)
        STW_TRY(add_tensor(&m, i, err));
    *out = m.list;
    pool = NULL;
out:
    stw_names_free(m.names);
    stw_pool_free(pool);
    return status;
}

void stw_names_list_free(stw_names_list *list) {
    if (list != NULL) stw_pool_free(list->pool);
}

void stw_names_boxes(const stw_names_list *list, const stw_names_part *part, stw_names_box *tensor,
                     stw_names_box *published) {
    const stw_tensor *t = stw_names_tensor(list->model, part->tensor);
    stw_names_box own = {.rank = t->rank}, other = {.rank = 0};
    memcpy(own.count, t->shape, t->rank * sizeof own.count[0]);
    if (t->rank > 0) {
        own.first[part->dim] = part->first;
        own.count[part->dim] = part->count;
    }
    if (part->singly) {
        own.first[0] = part->expert;
        own.count[0] = 1;
    }
    for (uint32_t d = part->singly ? 1 : 0; d < t->rank; d++) {
        other.first[other.rank] = d == part->dim ? part->published_first : 0;
        other.count[other.rank++] = own.count[d];
    }
    if (part->way == STW_NAMES_TRANSPOSED || part->way == STW_NAMES_MXFP4) {
        const stw_names_box swapped = other;
        for (uint32_t k = 1; k <= 2 && other.rank >= 2; k++) {
            other.first[other.rank - k] = swapped.first[other.rank - 3 + k];
            other.count[other.rank - k] = swapped.count[other.rank - 3 + k];
        }
    }
    *tensor = own;
    *published = other;
}

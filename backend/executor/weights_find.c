/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of a folder make up a tensor of the model: its own name first, then the forms that
 * models/names gives, in order, then the name of a tied copy. */
#include <stdio.h>

#include "backend/executor/weights.h"
#include "core/checked.h"
#include "core/text.h"

#define MAX_NAME 1024
#define SHAPE_TEXT 160

typedef struct finder {
    stw_weights *w;
    const char *path;
    stw_names *names;
    stw_pool *pool; /* of names, gone after the search */
} finder;

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weights", "out of memory");
}

static void format_shape(uint32_t rank, const uint64_t *shape, char *out, size_t out_size) {
    stw_text text = STW_TEXT_INIT;
    for (uint32_t i = 0; i < rank; i++)
        stw_text_printf(&text, "%s%llu", i > 0 ? ", " : "", (unsigned long long)shape[i]);
    snprintf(out, out_size, "[%s]", text.data != NULL ? text.data : "");
    stw_text_free(&text);
}

static bool has_shape(const stw_safetensors_entry *entry, uint32_t rank, const uint64_t *shape) {
    return entry->rank == rank && memcmp(entry->shape, shape, rank * sizeof shape[0]) == 0;
}

/* Expected shape, and a dtype of whole bytes. */
static stw_status check_entry(const finder *f, const stw_safetensors_entry *entry, uint32_t rank,
                              const uint64_t *shape, const stw_tensor *tensor, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t elements = 1, bytes = 0;
    const unsigned bits = stw_dtype_bits(entry->dtype);
    if (!has_shape(entry, rank, shape)) {
        char found[SHAPE_TEXT], expected[SHAPE_TEXT];
        format_shape(entry->rank, entry->shape, found, sizeof found);
        format_shape(rank, shape, expected, sizeof expected);
        if (strcmp(entry->name, tensor->name) == 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                            "tensor %.200s has shape %s, the plan's model has %s", tensor->name,
                            found, expected);
        return stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                        "tensor %.200s has shape %s, expected %s for %.200s of the plan's model",
                        entry->name, found, expected, tensor->name);
    }
    for (uint32_t d = 0; d < rank; d++)
        STW_TRY(stw_mul_u64(elements, shape[d], &elements, entry->name, err));
    STW_TRY(stw_mul_u64(elements, bits / 8, &bytes, entry->name, err));
    if (bits % 8 != 0 || bytes != entry->bytes)
        return stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                        "tensor %.200s of dtype %s has %llu bytes for %llu elements", entry->name,
                        stw_dtype_name(entry->dtype), (unsigned long long)entry->bytes,
                        (unsigned long long)elements);
out:
    return status;
}

/* ---- scales ---- */

static bool scale_dtype(stw_dtype dtype) {
    return dtype == STW_DTYPE_F32 || dtype == STW_DTYPE_BF16 || dtype == STW_DTYPE_F16;
}

/* Scales beside an fp8 tensor: none, one, or one for each block. */
static stw_status find_scale(finder *f, stw_weights_source *source, stw_error *err) {
    const stw_safetensors_entry *entry = source->entry, *scale = NULL;
    const char *name = NULL;
    if (entry->dtype != STW_DTYPE_F8_E4M3 && entry->dtype != STW_DTYPE_F8_E5M2)
        return STW_STATUS_OK;
    for (uint32_t k = 0; scale == NULL; k++) {
        name = stw_names_scale_of(f->names, entry->name, k, f->pool);
        if (name == NULL) return STW_STATUS_OK;
        scale = stw_safetensors_find(f->w->set, name);
    }
    uint64_t blocks = 1;
    for (uint32_t d = 0; d < scale->rank; d++) blocks = stw_times(blocks, scale->shape[d]);
    bool right = scale_dtype(scale->dtype) && entry->rank >= 2 &&
                 scale->bytes == stw_times(blocks, stw_dtype_bits(scale->dtype) / 8);
    if (blocks != 1) {
        right = right && scale->rank == entry->rank;
        for (uint32_t d = 0; right && d < entry->rank; d++)
            right =
                scale->shape[d] > 0 &&
                (d + 2 < entry->rank ? scale->shape[d] == entry->shape[d]
                                     : scale->shape[d] == stw_div_up_u64(entry->shape[d], 128) ||
                                           entry->shape[d] % scale->shape[d] == 0);
    }
    if (!right) {
        char found[SHAPE_TEXT], expected[SHAPE_TEXT];
        format_shape(scale->rank, scale->shape, found, sizeof found);
        format_shape(entry->rank, entry->shape, expected, sizeof expected);
        return stw_fail(
            err, STW_STATUS_BAD_INPUT, f->path,
            "tensor %.200s of dtype %s has shape %s, expected scales of blocks of %s in "
            "F32, BF16 or F16",
            name, stw_dtype_name(scale->dtype), found, expected);
    }
    source->scale = scale;
    return STW_STATUS_OK;
}

/* Elements and scales of a packed tensor, with the shape [..., outputs, inputs] before packing. */
static stw_status find_packed(finder *f, const stw_names_form *form, const stw_tensor *tensor,
                              uint32_t rank, const uint64_t *shape, stw_weights_source *source,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t blocks[STW_TENSOR_MAX_RANK] = {0};
    char name[MAX_NAME];
    if (form->way != STW_NAMES_MXFP4 || rank + 1 > STW_TENSOR_MAX_RANK || shape[rank - 1] % 32 != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                        "tensor %.200s is packed as %s, which is %s", source->entry->name,
                        stw_names_way_name(form->way),
                        form->way == STW_NAMES_MXFP4
                            ? "in blocks of 32, and the model's inputs are no multiple of it"
                            : "not expanded; load files in bf16 or fp8");
    memcpy(blocks, shape, rank * sizeof blocks[0]);
    blocks[rank - 1] /= 32;
    blocks[rank] = 16;
    STW_TRY(check_entry(f, source->entry, rank + 1, blocks, tensor, err));
    if (!stw_names_fill(form, 0, 0, form->scales, name, sizeof name)) STW_TRY(no_memory(err));
    source->scale = stw_safetensors_find(f->w->set, name);
    if (source->scale == NULL)
        return stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                        "holds no tensor %.200s, the scales of %.200s", name, tensor->name);
    STW_TRY(check_entry(f, source->scale, rank, blocks, tensor, err));
    if (stw_dtype_bits(source->entry->dtype) != 8 || stw_dtype_bits(source->scale->dtype) != 8)
        return stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                        "tensor %.200s has dtype %s, expected U8", source->entry->name,
                        stw_dtype_name(source->entry->dtype));
out:
    return status;
}

/* ---- forms ---- */

static const stw_safetensors_entry *first_of(const finder *f, const stw_names_form *form) {
    char name[MAX_NAME];
    if (!stw_names_fill(form, 0, 0, form->ending, name, sizeof name)) return NULL;
    return stw_safetensors_find(f->w->set, name);
}

static uint64_t product(const uint64_t *shape, uint32_t first, uint32_t end) {
    uint64_t n = 1; /* no more than the tensor's elements, which are counted */
    for (uint32_t d = first; d < end; d++) n = stw_times(n, shape[d]);
    return n;
}

/* The k-th source of an expert. */
static stw_status find_source(finder *f, const stw_names_form *form, const stw_tensor *tensor,
                              uint64_t expert, uint32_t k, stw_weights_source *out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t shape[STW_TENSOR_MAX_RANK] = {0};
    uint32_t rank = 0;
    char name[MAX_NAME];
    if (!stw_names_shape(form, tensor, &rank, shape) ||
        !stw_names_fill(form, k, expert, form->ending, name, sizeof name))
        return stw_fail(err, STW_STATUS_BAD_INPUT, tensor->name,
                        "models/names: its shape cannot be cut as its rows say");
    out->entry = stw_safetensors_find(f->w->set, name);
    if (out->entry == NULL)
        return stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                        "holds no tensor %.200s, a part of %.200s", name, tensor->name);
    if (form->ending != NULL) return find_packed(f, form, tensor, rank, shape, out, err);
    STW_TRY(check_entry(f, out->entry, rank, shape, tensor, err));
    STW_TRY(find_scale(f, out, err));
    if (out->scale != NULL && form->way != STW_NAMES_AS_IS)
        return stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                        "tensor %.200s is %s and has block scales, which is not read together",
                        name, stw_names_way_name(form->way));
out:
    return status;
}

static stw_status same_dtype(const finder *f, const stw_weights_source *a,
                             const stw_weights_source *b, stw_error *err) {
    if (a->entry->dtype == b->entry->dtype && (a->scale == NULL) == (b->scale == NULL))
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                    "tensor %.200s has dtype %s%s, %.200s of the same tensor of the plan's model "
                    "has %s%s",
                    b->entry->name, stw_dtype_name(b->entry->dtype),
                    b->scale != NULL ? " with scales" : "", a->entry->name,
                    stw_dtype_name(a->entry->dtype), a->scale != NULL ? " with scales" : "");
}

static stw_status take(finder *f, const stw_names_form *form, const stw_tensor *tensor,
                       stw_weights_tensor *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t rank = tensor->rank;
    out->way = form->way;
    out->experts = form->singly ? stw_max_u64(1, tensor->shape[0]) : 1;
    out->n = form->n;
    out->outer = product(tensor->shape, 0, form->dim);
    out->extent = rank > 0 ? tensor->shape[form->dim] : 1;
    out->inner = rank > 0 ? product(tensor->shape, form->dim + 1, rank) : 1;
    out->first = form->first;
    out->whole = form->whole;
    out->rows = rank >= 2 ? tensor->shape[rank - 2] : 1;
    out->columns = rank >= 1 ? tensor->shape[rank - 1] : 1;
    out->n_sources = stw_times(out->experts, out->n);
    out->sources = stw_pool_array(f->w->pool, (size_t)out->n_sources, sizeof *out->sources);
    if (out->sources == NULL) STW_TRY(no_memory(err));
    for (uint64_t e = 0; e < out->experts; e++)
        for (uint32_t k = 0; k < form->n; k++) {
            stw_weights_source *source = &out->sources[e * form->n + k];
            STW_TRY(find_source(f, form, tensor, e, k, source, err));
            STW_TRY(same_dtype(f, &out->sources[0], source, err));
        }
    out->dtype = out->sources[0].entry->dtype;
    if (out->sources[0].scale != NULL) out->dtype = STW_DTYPE_F32;
out:
    return status;
}

/* The model's own name: unless a form has the same name and another shape. */
static stw_status own_name(finder *f, const stw_tensor *tensor, const stw_safetensors_entry *entry,
                           stw_names_form *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_names_form own = {.n = 1, .names = {tensor->name}};
    const bool suits = has_shape(entry, tensor->rank, tensor->shape);
    *out = own;
    for (uint32_t e = 0; e < stw_names_editions(f->names); e++) {
        stw_names_form form;
        uint64_t shape[STW_TENSOR_MAX_RANK] = {0};
        uint32_t rank = 0;
        STW_TRY(stw_names_form_of(f->names, tensor, e, f->pool, &form, err));
        if (form.way != STW_NAMES_TRANSPOSED || strcmp(form.names[0], tensor->name) != 0 ||
            !stw_names_shape(&form, tensor, &rank, shape) || !has_shape(entry, rank, shape))
            continue;
        if (suits)
            STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, f->path,
                             "tensor %.200s is square in its last two dimensions: whether it is "
                             "transposed, as published, or not cannot be told",
                             tensor->name));
        *out = form;
        break;
    }
out:
    return status;
}

/* The first form, of an edition or of a tied copy, whose first tensor the folder holds: elements as
 * they are, else packed ones, whatever the config says. n is 0 if there is none. */
static stw_status find_form(finder *f, const stw_tensor *tensor, stw_names_form *out,
                            const char **published, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *copy = NULL;
    stw_tensor either = *tensor;
    for (uint32_t e = 0; e < 2 * stw_names_editions(f->names); e++) {
        either.dtype = e % 2 == 0 ? STW_DTYPE_BF16 : STW_DTYPE_F4;
        STW_TRY(stw_names_form_of(f->names, &either, e / 2, f->pool, out, err));
        if (e == 0) *published = out->names[0];
        if (first_of(f, out) != NULL) return status;
    }
    for (uint32_t k = 0; f->w->model->tied_embeddings; k++) {
        copy = stw_names_copy_of(f->names, tensor->name, k, f->pool);
        if (copy == NULL) break;
        *out = (stw_names_form){.n = 1, .names = {copy}};
        if (first_of(f, out) != NULL) return status;
    }
    out->n = 0;
out:
    return status;
}

static stw_status find_tensor(finder *f, const stw_tensor *tensor, stw_weights_tensor *out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *published = tensor->name;
    stw_names_form form = {.n = 0};
    const stw_safetensors_entry *entry = stw_safetensors_find(f->w->set, tensor->name);
    if (entry != NULL)
        STW_TRY(own_name(f, tensor, entry, &form, err));
    else
        STW_TRY(find_form(f, tensor, &form, &published, err));
    if (form.n == 0) {
        const bool other = published != tensor->name;
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, f->path, "holds no tensor %.200s%s%.200s%s",
                         tensor->name, other ? " (published as " : "", other ? published : "",
                         other ? ")" : ""));
    }
    STW_TRY(take(f, &form, tensor, out, err));
out:
    return status;
}

stw_status stw_weights_find(stw_weights *w, const char *path, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    finder f = {.w = w, .path = path, .pool = stw_pool_new()};
    if (f.pool == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_names_open(w->model, &f.names, err));
    for (uint32_t t = 0; t < w->model->n_tensors; t++)
        STW_TRY(find_tensor(&f, &w->model->tensors[t], &w->tensors[t], err));
out:
    stw_names_free(f.names);
    stw_pool_free(f.pool);
    return status;
}

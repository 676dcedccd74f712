/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/checkpoint/saved.h"

#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/json.h"
#include "models/names.h"

#define FILE_BYTES (5ull << 30)
#define HEADER_ALIGN 4096u /* data begin where direct I/O can */

const char *stw_saved_name(stw_saved_kind kind) {
    static const char *const names[STW_N_SAVED] = {"params", "master", "exp_avg", "exp_avg_sq"};
    return names[kind];
}

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

void stw_saved_fold(uint32_t rank, const uint64_t *shape, uint64_t out[STW_BOX_DIMS]) {
    for (uint32_t d = 0; d < STW_BOX_DIMS; d++) out[d] = d < rank ? shape[d] : 1;
    for (uint32_t d = STW_BOX_DIMS; d < rank; d++)
        out[STW_BOX_DIMS - 1] = stw_times(out[STW_BOX_DIMS - 1], shape[d]);
}

stw_dtype stw_saved_dtype(const stw_saved_files *saved, stw_saved_kind kind, uint32_t tensor) {
    return kind == STW_SAVED_PARAMS ? saved->model->tensors[tensor].dtype : saved->dtypes[kind];
}

static uint64_t width_of(stw_dtype dtype) { return stw_dtype_bits(dtype) / 8; }

/* ---- entries ---- */

typedef struct maker {
    stw_saved_files *saved;
    stw_names_list *list;
    uint32_t *entry_of; /* [list->n_published] */
    size_t entries_room, parts_room;
    uint32_t n_parts;
} maker;

static stw_status add_entry(maker *m, const stw_saved_entry *entry, stw_error *err) {
    stw_saved_files *s = m->saved;
    s->entries = stw_pool_regrow(s->pool, s->entries, s->n_entries, s->n_entries + 1u,
                                 &m->entries_room, sizeof *s->entries);
    if (s->entries == NULL || entry->name == NULL) return no_memory(err);
    stw_saved_entry *own = &s->entries[s->n_entries++];
    *own = *entry;
    own->bytes = width_of(entry->dtype);
    for (uint32_t d = 0; d < entry->rank; d++) own->bytes = stw_times(own->bytes, entry->shape[d]);
    return STW_STATUS_OK;
}

static stw_status add_part(maker *m, const stw_saved_part *part, stw_error *err) {
    stw_saved_files *s = m->saved;
    s->parts = stw_pool_regrow(s->pool, s->parts, m->n_parts, m->n_parts + 1u, &m->parts_room,
                               sizeof *s->parts);
    if (s->parts == NULL) return no_memory(err);
    s->parts[m->n_parts++] = *part;
    return STW_STATUS_OK;
}

/* A tensor as it is, under a name. */
static stw_status add_whole(maker *m, const stw_tensor *tensor, const char *name, stw_dtype dtype,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_saved_entry entry = {.name = name, .dtype = dtype, .rank = tensor->rank};
    stw_saved_part part = {.entry = m->saved->n_entries};
    uint64_t step = width_of(dtype);
    memcpy(entry.shape, tensor->shape, sizeof entry.shape);
    stw_saved_fold(tensor->rank, tensor->shape, part.box.count);
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        part.stride[d] = step;
        step = stw_times(step, part.box.count[d]);
    }
    STW_TRY(add_entry(m, &entry, err));
    STW_TRY(add_part(m, &part, err));
out:
    return status;
}

/* A part of a published tensor whose elements lie as the model's do. */
static stw_status add_published(maker *m, const stw_names_part *from, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_published *published = &m->list->published[from->published];
    const stw_tensor *tensor = &m->saved->model->tensors[from->tensor];
    uint64_t shape[STW_BOX_DIMS];
    stw_saved_part part = {.entry = m->entry_of[from->published]};
    stw_names_box own, other;
    if (part.entry == STW_NAMES_NONE) {
        stw_saved_entry entry = {.name = stw_pool_string(m->saved->pool, published->name),
                                 .dtype = tensor->dtype,
                                 .rank = published->rank};
        memcpy(entry.shape, published->shape, sizeof entry.shape);
        part.entry = m->entry_of[from->published] = m->saved->n_entries;
        STW_TRY(add_entry(m, &entry, err));
    }
    stw_names_boxes(m->list, from, &own, &other);
    stw_saved_fold(own.rank, own.count, part.box.count);
    for (uint32_t d = 0; d < own.rank && d < STW_BOX_DIMS; d++) part.box.first[d] = own.first[d];
    /* strides in the published tensor, which lacks dimension 0 of experts one by one */
    stw_saved_fold(published->rank, published->shape, shape);
    const uint32_t skip = from->singly ? 1 : 0;
    uint64_t step = width_of(tensor->dtype);
    for (uint32_t k = STW_BOX_DIMS; k-- > 0;) {
        const uint32_t d = k + skip;
        if (d < STW_BOX_DIMS) part.stride[d] = step;
        if (d < STW_BOX_DIMS && k < other.rank)
            part.first = stw_plus(part.first, stw_times(step, other.first[k]));
        step = stw_times(step, shape[k]);
    }
    STW_TRY(add_part(m, &part, err));
out:
    return status;
}

/* Names of published tensors are taken where elements lie as in the model; a tensor that publishers
 * transpose or pack keeps its own name and order. */
static stw_status add_params(maker *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_saved_files *s = m->saved;
    uint32_t p = 0;
    STW_TRY(stw_names_list_make(s->model, &m->list, err));
    m->entry_of = stw_pool_array(s->pool, m->list->n_published, sizeof *m->entry_of);
    if (m->entry_of == NULL) STW_TRY(no_memory(err));
    for (uint32_t i = 0; i < m->list->n_published; i++) m->entry_of[i] = STW_NAMES_NONE;
    for (uint32_t t = 0; t < s->n_tensors; t++) {
        bool as_is = true;
        const stw_tensor *tensor = &s->model->tensors[t];
        s->first_part[t] = m->n_parts;
        uint32_t end = p;
        for (; end < m->list->n_parts && m->list->parts[end].tensor == t; end++)
            as_is = as_is && m->list->parts[end].way == STW_NAMES_AS_IS &&
                    (m->list->parts[end].dim < STW_BOX_DIMS - 1 || tensor->rank <= STW_BOX_DIMS);
        if (!as_is) STW_TRY(add_whole(m, tensor, tensor->name, tensor->dtype, err));
        for (; p < end; p++)
            if (as_is) STW_TRY(add_published(m, &m->list->parts[p], err));
    }
    s->n_model_entries = s->n_entries;
out:
    return status;
}

/* A tensor's master and moments are neighbours, so that they are written as they are stepped. Their
 * parts are sorted by kind: each kind has one for each tensor that trains. */
static stw_status add_state(maker *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_saved_files *s = m->saved;
    for (uint32_t t = 0; t < s->n_tensors; t++)
        for (uint32_t k = 1; k < STW_N_SAVED; k++) {
            const stw_tensor *tensor = &s->model->tensors[t];
            const stw_saved_kind kind = (stw_saved_kind)k;
            if ((s->kinds & 1u << k) == 0 || !s->trains[t]) continue;
            STW_TRY(add_whole(m, tensor,
                              stw_pool_printf(s->pool, "%s.%s", stw_saved_name(kind), tensor->name),
                              s->dtypes[k], err));
        }
out:
    return status;
}

static stw_status sort_parts(maker *m, uint32_t first, stw_error *err) {
    stw_saved_files *s = m->saved;
    const uint32_t n = m->n_parts - first;
    stw_saved_part *sorted = stw_pool_array(s->pool, n, sizeof *sorted);
    uint32_t done = 0;
    if (sorted == NULL) return no_memory(err);
    for (uint32_t k = 1; k < STW_N_SAVED; k++) {
        uint32_t at = first;
        for (uint32_t t = 0; t < s->n_tensors; t++) {
            s->first_part[k * s->n_tensors + t] = first + done;
            for (uint32_t j = 1; s->trains[t] && j < STW_N_SAVED; j++) {
                if ((s->kinds & 1u << j) == 0) continue;
                if (j == k) sorted[done++] = s->parts[at];
                at++;
            }
        }
    }
    s->first_part[STW_N_SAVED * s->n_tensors] = m->n_parts;
    if (n > 0) memcpy(s->parts + first, sorted, n * sizeof *sorted);
    return STW_STATUS_OK;
}

/* ---- files ---- */

static stw_status make_header(stw_saved_files *s, stw_saved_file *file, const uint32_t *order,
                              uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT, name = STW_TEXT_INIT;
    uint64_t offset = 0;
    stw_text_append(&text, "\0\0\0\0\0\0\0\0", 8);
    stw_text_printf(&text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < n; i++) {
        stw_saved_entry *e = &s->entries[order[i]];
        stw_json *json = stw_json_new(); /* escapes the name */
        stw_json_begin_object(json, NULL);
        stw_json_begin_array(json, e->name);
        stw_json_end(json);
        stw_json_end(json);
        name.length = 0;
        STW_TRY(stw_json_finish(json, &name, err));
        const char *open = strchr(name.data, '"'), *close = strrchr(name.data, '"');
        stw_text_printf(&text, ",");
        stw_text_append(&text, open, (size_t)(close - open) + 1);
        stw_text_printf(&text, ":{\"dtype\":\"%s\",\"shape\":[", stw_dtype_name(e->dtype));
        for (uint32_t d = 0; d < e->rank; d++)
            stw_text_printf(&text, "%s%llu", d > 0 ? "," : "", (unsigned long long)e->shape[d]);
        e->offset = offset;
        offset = stw_plus(offset, e->bytes);
        stw_text_printf(&text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)e->offset,
                        (unsigned long long)offset);
    }
    stw_text_printf(&text, "}");
    while (!text.failed && text.length % HEADER_ALIGN != 0) stw_text_append(&text, " ", 1);
    STW_TRY(stw_text_status(&text, err));
    file->header_bytes = text.length;
    for (int b = 0; b < 8; b++) text.data[b] = (char)((text.length - 8) >> 8 * b);
    char *header = stw_pool_alloc(s->pool, text.length);
    if (header == NULL) STW_TRY(no_memory(err));
    memcpy(header, text.data, text.length);
    file->header = header;
    file->bytes = stw_plus(file->header_bytes, offset);
    for (uint32_t i = 0; i < n; i++) s->entries[order[i]].offset += file->header_bytes;
out:
    stw_text_free(&text);
    stw_text_free(&name);
    return status;
}

/* Entries [first, end) of a file: those with wide elements first, so that each is aligned. */
static stw_status close_file(stw_saved_files *s, uint32_t first, uint32_t end, uint32_t *order,
                             stw_error *err) {
    uint32_t n = 0;
    for (uint64_t width = 8; width > 0; width /= 2)
        for (uint32_t e = first; e < end; e++)
            if (width_of(s->entries[e].dtype) == width) order[n++] = e;
    for (uint32_t i = 0; i < n; i++) s->entries[order[i]].file = s->n_files;
    return make_header(s, &s->files[s->n_files++], order, n, err);
}

/* Entries [first, end) of the list go to files, in order. */
static stw_status make_files(stw_saved_files *s, uint32_t first, uint32_t end, uint64_t most,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t *order = stw_pool_array(s->pool, (size_t)(end - first) + 1, sizeof *order);
    const uint32_t first_file = s->n_files;
    const char *part = first_file == 0 ? "model" : "optimizer";
    uint64_t bytes = 0;
    if (order == NULL) STW_TRY(no_memory(err));
    for (uint32_t e = first, begin = first; e < end; e++) {
        bytes = stw_plus(bytes, s->entries[e].bytes);
        if (e + 1 < end && stw_plus(bytes, s->entries[e + 1].bytes) <= most) continue;
        STW_TRY(close_file(s, begin, e + 1, order, err));
        begin = e + 1;
        bytes = 0;
    }
    for (uint32_t f = first_file; f < s->n_files; f++) {
        s->files[f].name = stw_pool_printf(s->pool, "%s-%05u-of-%05u.safetensors", part,
                                           f - first_file + 1, s->n_files - first_file);
        if (s->files[f].name == NULL) STW_TRY(no_memory(err));
        s->bytes = stw_plus(s->bytes, s->files[f].bytes);
    }
out:
    return status;
}

/* The model with the dtypes of its files, and with nothing in them that is not trained. */
static const stw_model *as_saved(stw_pool *pool, const stw_model *model,
                                 const stw_saved_options *options) {
    stw_model *own = stw_pool_alloc(pool, sizeof *own);
    stw_tensor *tensors = stw_pool_array(pool, (size_t)model->n_tensors + 1, sizeof *tensors);
    if (own == NULL || tensors == NULL) return NULL;
    *own = *model;
    own->tensors = tensors;
    own->n_buffers = own->n_extras = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        tensors[t] = model->tensors[t];
        tensors[t].scale_bytes = 0;
        tensors[t].dtype =
            options->params != NULL ? options->params[t] : options->dtypes[STW_SAVED_PARAMS];
    }
    return own;
}

static stw_status fill(maker *m, const stw_saved_options *options, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_saved_files *s = m->saved;
    const uint64_t most = options->file_bytes > 0 ? options->file_bytes : FILE_BYTES;
    const size_t n = (size_t)s->n_tensors + 1;
    s->shapes = stw_pool_array(s->pool, n, sizeof *s->shapes);
    s->trains = stw_pool_array(s->pool, n, sizeof *s->trains);
    s->first_part = stw_pool_array(s->pool, STW_N_SAVED * n + 1, sizeof *s->first_part);
    if (s->shapes == NULL || s->trains == NULL || s->first_part == NULL) STW_TRY(no_memory(err));
    for (uint32_t t = 0; t < s->n_tensors; t++) {
        stw_saved_fold(s->model->tensors[t].rank, s->model->tensors[t].shape, s->shapes[t]);
        s->trains[t] = options->frozen == NULL || !options->frozen[t];
    }
    if ((s->kinds & 1u << STW_SAVED_PARAMS) != 0) STW_TRY(add_params(m, err));
    const uint32_t params_parts = m->n_parts;
    STW_TRY(add_state(m, err));
    STW_TRY(sort_parts(m, params_parts, err));
    s->files = stw_pool_array(s->pool, (size_t)s->n_entries + 1, sizeof *s->files);
    if (s->files == NULL) STW_TRY(no_memory(err));
    STW_TRY(make_files(s, 0, s->n_model_entries, most, err));
    s->n_model_files = s->n_files;
    STW_TRY(make_files(s, s->n_model_entries, s->n_entries, most, err));
out:
    return status;
}

stw_status stw_saved_make(const stw_model *model, const stw_saved_options *options,
                          stw_saved_files **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    maker m = {.saved = NULL};
    stw_pool *pool = stw_pool_new();
    *out = NULL;
    m.saved = pool != NULL ? stw_pool_alloc(pool, sizeof *m.saved) : NULL;
    if (m.saved == NULL) STW_TRY(no_memory(err));
    *m.saved =
        (stw_saved_files){.pool = pool, .n_tensors = model->n_tensors, .kinds = options->kinds};
    memcpy(m.saved->dtypes, options->dtypes, sizeof m.saved->dtypes);
    m.saved->model = as_saved(pool, model, options);
    if (m.saved->model == NULL) STW_TRY(no_memory(err));
    STW_TRY(fill(&m, options, err));
    *out = m.saved;
    pool = NULL;
out:
    stw_names_list_free(m.list);
    stw_pool_free(pool);
    return status;
}

void stw_saved_free(stw_saved_files *saved) {
    if (saved != NULL) stw_pool_free(saved->pool);
}

stw_status stw_saved_index(const stw_saved_files *s, stw_text *out, stw_error *err) {
    uint64_t bytes = 0;
    stw_json *json = stw_json_new();
    for (uint32_t e = 0; e < s->n_model_entries; e++) bytes = stw_plus(bytes, s->entries[e].bytes);
    stw_json_begin_object(json, NULL);
    stw_json_begin_object(json, "metadata");
    stw_json_u64(json, "total_size", bytes);
    stw_json_end(json);
    stw_json_begin_object(json, "weight_map");
    for (uint32_t e = 0; e < s->n_model_entries; e++)
        stw_json_string(json, s->entries[e].name, s->files[s->entries[e].file].name);
    stw_json_end(json);
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

/* ---- rows ---- */

stw_saved_source stw_saved_in_tensor(const stw_saved_files *saved, stw_saved_kind kind,
                                     uint32_t tensor, const stw_box *box) {
    stw_saved_source out = {.kind = kind, .tensor = tensor, .box = *box};
    uint64_t step = 1;
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        out.stride[d] = step;
        out.first += step * box->first[d];
        step *= saved->shapes[tensor][d];
    }
    return out;
}

typedef struct walk {
    const stw_saved_files *saved;
    const stw_saved_source *source;
    const stw_saved_part *part;
    stw_box box; /* what the two have in common */
    uint64_t width;
    stw_saved_row_fn *fn;
    void *state;
} walk;

/* Dimensions from `inner` on are one row. */
static uint64_t row_of(const walk *w, int *inner) {
    uint64_t n = 1;
    int d = STW_BOX_DIMS;
    while (d > 0) {
        const bool flat = w->box.count[d - 1] == 1;
        if (!flat &&
            (w->part->stride[d - 1] != stw_times(n, w->width) || w->source->stride[d - 1] != n))
            break;
        n *= w->box.count[--d];
    }
    *inner = d;
    return n;
}

static stw_status walk_rows(const walk *w, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    int inner;
    const uint64_t n = row_of(w, &inner), bytes = stw_times(n, w->width);
    uint64_t at[STW_BOX_DIMS] = {0}, rows = 1;
    const stw_saved_entry *entry = &w->saved->entries[w->part->entry];
    for (int d = 0; d < inner; d++) rows *= w->box.count[d];
    for (uint64_t r = 0; r < rows; r++) {
        stw_saved_row row = {w->part->entry, entry->offset + w->part->first, bytes,
                             w->source->first, n};
        for (int d = 0; d < STW_BOX_DIMS; d++) {
            const uint64_t c = w->box.first[d] + at[d];
            row.offset += (c - w->part->box.first[d]) * w->part->stride[d];
            row.first += (c - w->source->box.first[d]) * w->source->stride[d];
        }
        STW_TRY(w->fn(w->state, &row, err));
        for (int d = inner - 1; d >= 0 && ++at[d] == w->box.count[d]; d--) at[d] = 0;
    }
out:
    return status;
}

stw_status stw_saved_rows(const stw_saved_files *saved, const stw_saved_source *source,
                          stw_saved_row_fn *fn, void *state, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n;
    const stw_saved_part *parts = stw_saved_parts(saved, source->kind, source->tensor, &n);
    walk w = {.saved = saved, .source = source, .fn = fn, .state = state};
    w.width = width_of(stw_saved_dtype(saved, source->kind, source->tensor));
    for (uint32_t i = 0; i < n; i++) {
        w.part = &parts[i];
        if (stw_box_meet(&source->box, &parts[i].box, &w.box)) STW_TRY(walk_rows(&w, err));
    }
out:
    return status;
}

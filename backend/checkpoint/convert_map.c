/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/checkpoint/convert_map.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/log.h"
#include "models/names.h"
#include "plan/checkpoint/saved.h"

#define MODEL_PART "model-"
#define MASTER "master."

/* A tensor as the checkpoint has it. */
typedef struct stored {
    const stw_safetensors_entry *entry; /* NULL: it has none */
    uint32_t file;
} stored;

typedef struct mapper {
    const stw_checkpoint *c;
    const stw_model *model;
    bool from_master;
    stw_pool *pool;
    stw_convert_map *out;
    stw_safetensors **sets; /* [manifest.n_files] NULL: not read */
    bool **used;            /* [manifest.n_files][entries] the folder has it */
    stw_saved_files *saved; /* the model's parameters under published names */
    /* the tensor at hand */
    stored from;
    bool is_published; /* `from` is the published tensor, not the model's own */
    uint32_t source;
    bool is_missing; /* the checkpoint does not have a tensor of the model */
} mapper;

static stw_status no_memory(const mapper *m, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, m->c->path, "out of memory");
}

static stw_status missing(mapper *m, const char *name, stw_error *err) {
    m->is_missing = true;
    return stw_fail(err, STW_STATUS_BAD_INPUT, m->c->path,
                    "holds no tensor %.200s of the model in its shape", name);
}

static bool is_model_part(const mapper *m, uint32_t file) {
    return strncmp(m->c->manifest.files[file].name, MODEL_PART, strlen(MODEL_PART)) == 0;
}

/* ---- what the checkpoint has ---- */

static stw_status open_sets(mapper *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t n = m->c->manifest.n_files;
    bool any = false;
    m->sets = calloc((size_t)n + 1, sizeof *m->sets);
    m->used = stw_pool_array(m->pool, (size_t)n + 1, sizeof *m->used);
    if (m->sets == NULL || m->used == NULL) STW_TRY(no_memory(m, err));
    for (uint32_t f = 0; f < n; f++) {
        any = any || is_model_part(m, f);
        if (!is_model_part(m, f) && !m->from_master) continue;
        STW_TRY(stw_checkpoint_header(m->c, f, &m->sets[f], err));
        m->used[f] = stw_pool_array(m->pool, (size_t)m->sets[f]->n_entries + 1, sizeof **m->used);
        if (m->used[f] == NULL) STW_TRY(no_memory(m, err));
    }
    if (!any)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, m->c->path,
                         "holds no parameters: expected files " MODEL_PART "*.safetensors"));
out:
    return status;
}

static bool has_shape(const stw_safetensors_entry *e, uint32_t rank, const uint64_t *shape) {
    bool same = e->rank == rank;
    for (uint32_t d = 0; same && d < rank; d++) same = e->shape[d] == shape[d];
    return same;
}

/* A tensor of that name and shape; parameters are in the model part, masters are not. */
static stored find(const mapper *m, bool parameter, const char *name, uint32_t rank,
                   const uint64_t *shape) {
    stored found = {NULL, 0};
    for (uint32_t f = 0; f < m->c->manifest.n_files && found.entry == NULL; f++) {
        if (m->sets[f] == NULL || is_model_part(m, f) != parameter) continue;
        const stw_safetensors_entry *e = stw_safetensors_find(m->sets[f], name);
        if (e != NULL && has_shape(e, rank, shape)) found = (stored){e, f};
    }
    return found;
}

static stw_status find_master(const mapper *m, const char *name, uint32_t rank,
                              const uint64_t *shape, stored *out, stw_error *err) {
    *out = (stored){NULL, 0};
    if (!m->from_master) return STW_STATUS_OK;
    const char *master = stw_pool_printf(m->pool, MASTER "%s", name);
    if (master == NULL) return no_memory(m, err);
    *out = find(m, false, master, rank, shape);
    return STW_STATUS_OK;
}

/* ---- tensors, sources, needs ---- */

static stw_status add_tensor(mapper *m, const char *name, uint32_t rank, const uint64_t *shape,
                             stw_error *err) {
    stw_convert_map *out = m->out;
    out->tensors = stw_pool_regrow(m->pool, out->tensors, out->n_tensors, out->n_tensors + 1u,
                                   &out->tensors_room, sizeof *out->tensors);
    const char *own = stw_pool_string(m->pool, name);
    if (out->tensors == NULL || own == NULL) return no_memory(m, err);
    stw_converted *t = &out->tensors[out->n_tensors++];
    *t = (stw_converted){.name = own, .dtype = STW_N_DTYPES, .rank = rank};
    if (rank > 0) memcpy(t->shape, shape, rank * sizeof *shape);
    return STW_STATUS_OK;
}

static stw_status add_source(mapper *m, uint32_t tensor, bool swapped, stw_error *err) {
    stw_convert_map *out = m->out;
    const stw_safetensors_entry *e = m->from.entry;
    if (e->dtype != STW_DTYPE_F32 && e->dtype != STW_DTYPE_BF16 && e->dtype != STW_DTYPE_F16)
        return stw_fail(err, STW_STATUS_BAD_INPUT, m->c->path,
                        "tensor %.200s: found dtype %s, expected F32, BF16 or F16", e->name,
                        stw_dtype_name(e->dtype));
    out->sources = stw_pool_regrow(m->pool, out->sources, out->n_sources, out->n_sources + 1u,
                                   &out->sources_room, sizeof *out->sources);
    if (out->sources == NULL) return no_memory(m, err);
    m->used[m->from.file][e - m->sets[m->from.file]->entries] = true;
    if (out->tensors[tensor].dtype == STW_N_DTYPES) out->tensors[tensor].dtype = e->dtype;
    m->source = out->n_sources;
    out->sources[out->n_sources++] = (stw_convert_source){tensor, e->dtype, swapped};
    return STW_STATUS_OK;
}

static stw_status add_need(mapper *m, const stw_load_need *need, stw_error *err) {
    stw_convert_map *out = m->out;
    if (need->bytes == 0) return STW_STATUS_OK;
    out->needs = stw_pool_regrow(m->pool, out->needs, (size_t)out->n_needs,
                                 (size_t)out->n_needs + 1, &out->needs_room, sizeof *out->needs);
    if (out->needs == NULL) return no_memory(m, err);
    out->needs[out->n_needs++] = *need;
    return STW_STATUS_OK;
}

/* All of `from`. */
static stw_status add_all(mapper *m, stw_error *err) {
    const stw_load_need need = {.file = m->from.file,
                                .offset = m->from.entry->offset_bytes,
                                .bytes = m->from.entry->bytes,
                                .where = m->source};
    return add_need(m, &need, err);
}

/* Headers say where tensors are: they are verified like these. */
static stw_status add_headers(mapper *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t f = 0; f < m->c->manifest.n_files; f++) {
        const stw_safetensors *set = m->sets[f];
        if (set == NULL) continue;
        stw_load_need need = {.file = f, .bytes = set->file_bytes[0], .where = STW_CONVERT_HEADER};
        for (uint32_t e = 0; e < set->n_entries; e++)
            need.bytes = stw_min_u64(need.bytes, set->entries[e].offset_bytes);
        STW_TRY(add_need(m, &need, err));
    }
out:
    return status;
}

/* ---- a known model: published names ---- */

/* A row of a tensor of the model in a published one. */
static stw_status add_row(void *state, const stw_saved_row *row, stw_error *err) {
    mapper *m = state;
    const stw_safetensors_entry *e = m->from.entry;
    const uint64_t width = stw_dtype_bits(e->dtype) / 8, each = row->bytes / row->n;
    const uint64_t there = (row->offset - m->saved->entries[row->entry].offset) / each;
    const uint64_t at = m->is_published ? there : row->first;
    const stw_load_need need = {.file = m->from.file,
                                .offset = e->offset_bytes + stw_times(at, width),
                                .bytes = stw_times(row->n, width),
                                .where = m->source,
                                .at = there};
    return add_need(m, &need, err);
}

/* Elements of one part, from wherever they are. */
static stw_status add_part(mapper *m, uint32_t tensor, const stw_saved_part *part,
                           const stored *own, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_saved_entry *e = &m->saved->entries[part->entry];
    m->from = *own;
    m->is_published = own->entry == NULL;
    if (m->is_published) m->from = find(m, true, e->name, e->rank, e->shape);
    if (m->from.entry == NULL) STW_TRY(missing(m, e->name, err));
    STW_TRY(add_source(m, part->entry, false, err));
    const stw_saved_source box =
        stw_saved_in_tensor(m->saved, STW_SAVED_PARAMS, tensor, &part->box);
    STW_TRY(stw_saved_rows(m->saved, &box, add_row, m, err));
out:
    return status;
}

/* A tensor whose last two dimensions publishers swap; checkpoints keep the model's own order, and
 * jobs may have either. */
static stw_status add_swapped(mapper *m, const stw_tensor *t, const stw_saved_part *part,
                              const stored *master, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_converted *to = &m->out->tensors[part->entry];
    const stored own = find(m, true, t->name, t->rank, t->shape),
                 published = find(m, true, to->name, to->rank, to->shape);
    if (own.entry != NULL && own.entry == published.entry)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, m->c->path,
                         "tensor %.200s: publishers swap its last two dimensions, which are equal: "
                         "nobody can tell which order this is",
                         t->name));
    m->from = master->entry != NULL ? *master : own.entry != NULL ? own : published;
    if (m->from.entry == NULL) STW_TRY(missing(m, t->name, err));
    STW_TRY(add_source(m, part->entry, m->from.entry != published.entry, err));
    STW_TRY(add_all(m, err));
out:
    return status;
}

/* Parameters that nothing else is made of count as seen. */
static void mark(mapper *m, const stored *s) {
    if (s->entry != NULL) m->used[s->file][s->entry - m->sets[s->file]->entries] = true;
}

static stw_status add_model_tensor(mapper *m, uint32_t tensor, const bool *swapped,
                                   stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_tensor *t = &m->saved->model->tensors[tensor];
    uint32_t n = 0;
    stored master = {NULL, 0};
    const stw_saved_part *parts = stw_saved_parts(m->saved, STW_SAVED_PARAMS, tensor, &n);
    const stored own = find(m, true, t->name, t->rank, t->shape);
    STW_TRY(find_master(m, t->name, t->rank, t->shape, &master, err));
    m->out->n_unmastered += m->from_master && master.entry == NULL;
    for (uint32_t i = 0; i < n; i++) {
        const stw_saved_entry *e = &m->saved->entries[parts[i].entry];
        const stored published = find(m, true, e->name, e->rank, e->shape);
        if (swapped[parts[i].entry])
            STW_TRY(add_swapped(m, t, &parts[i], &master, err));
        else
            STW_TRY(add_part(m, tensor, &parts[i],
                             master.entry != NULL      ? &master
                             : published.entry != NULL ? &(stored){NULL, 0}
                                                       : &own,
                             err));
        mark(m, &published);
    }
    mark(m, &own);
out:
    return status;
}

/* The folder's name and shape of a tensor that `saved` leaves as the model has it. */
static stw_status add_published(mapper *m, const stw_names *names, uint32_t entry, bool *swapped,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_saved_entry *e = &m->saved->entries[entry];
    const stw_tensor *own = NULL;
    const char *name = e->name;
    uint32_t rank = e->rank;
    uint64_t shape[STW_TENSOR_MAX_RANK];
    stw_names_form form;
    memcpy(shape, e->shape, sizeof shape);
    for (uint32_t t = 0; t < m->saved->n_tensors && own == NULL; t++)
        if (strcmp(m->saved->model->tensors[t].name, name) == 0) own = &m->saved->model->tensors[t];
    if (own != NULL) {
        STW_TRY(stw_names_form_of(names, own, 0, m->pool, &form, err));
        *swapped = form.way == STW_NAMES_TRANSPOSED && form.n == 1 && !form.singly &&
                   stw_names_shape(&form, own, &rank, shape);
        if (*swapped) name = form.names[0];
    }
    STW_TRY(add_tensor(m, name, rank, shape, err));
out:
    return status;
}

static stw_status map_model(mapper *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_names *names = NULL;
    const stw_saved_options options = {.kinds = 1u << STW_SAVED_PARAMS, .dtypes = {STW_DTYPE_BF16}};
    STW_TRY(stw_saved_make(m->model, &options, &m->saved, err));
    STW_TRY(stw_names_open(m->saved->model, &names, err));
    bool *swapped = stw_pool_array(m->pool, (size_t)m->saved->n_entries + 1, sizeof *swapped);
    if (swapped == NULL) STW_TRY(no_memory(m, err));
    for (uint32_t e = 0; e < m->saved->n_entries; e++)
        STW_TRY(add_published(m, names, e, &swapped[e], err));
    for (uint32_t t = 0; t < m->saved->n_tensors; t++)
        STW_TRY(add_model_tensor(m, t, swapped, err));
out:
    stw_names_free(names);
    return status;
}

/* ---- what no model names: as saved ---- */

static int compare(const void *a, const void *b) {
    const stw_safetensors_entry *x = *(const stw_safetensors_entry *const *)a,
                                *y = *(const stw_safetensors_entry *const *)b;
    return (x->offset_bytes > y->offset_bytes) - (x->offset_bytes < y->offset_bytes);
}

static stw_status add_as_saved(mapper *m, const stored *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_safetensors_entry *e = s->entry;
    stored master = {NULL, 0};
    STW_TRY(find_master(m, e->name, e->rank, e->shape, &master, err));
    m->out->n_unmastered += m->from_master && master.entry == NULL;
    STW_TRY(add_tensor(m, e->name, e->rank, e->shape, err));
    m->from = master.entry != NULL ? master : *s;
    STW_TRY(add_source(m, m->out->n_tensors - 1, false, err));
    STW_TRY(add_all(m, err));
out:
    return status;
}

static stw_status map_rest(mapper *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_safetensors_entry **order = NULL;
    for (uint32_t f = 0; f < m->c->manifest.n_files; f++) {
        const stw_safetensors *set = m->sets[f];
        uint32_t n = 0;
        if (set == NULL || !is_model_part(m, f)) continue;
        free(order);
        order = calloc((size_t)set->n_entries + 1, sizeof *order);
        if (order == NULL) STW_TRY(no_memory(m, err));
        for (uint32_t e = 0; e < set->n_entries; e++)
            if (!m->used[f][e]) order[n++] = &set->entries[e];
        if (n > 1) qsort(order, n, sizeof *order, compare);
        for (uint32_t i = 0; i < n; i++) STW_TRY(add_as_saved(m, &(stored){order[i], f}, err));
    }
out:
    free(order);
    return status;
}

/* ---- all of it ---- */

static stw_status check_masters(const mapper *m, stw_error *err) {
    if (!m->from_master) return STW_STATUS_OK;
    for (uint32_t f = 0; f < m->c->manifest.n_files; f++)
        for (uint32_t e = 0; !is_model_part(m, f) && e < m->sets[f]->n_entries; e++)
            if (strncmp(m->sets[f]->entries[e].name, MASTER, strlen(MASTER)) == 0)
                return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, m->c->path,
                    "holds no master weights; its parameters are converted without --from master");
}

/* A model that is not that of the checkpoint names nothing. */
static stw_status forget(mapper *m, const stw_error *why, stw_error *err) {
    stw_log(STW_LOG_WARN, "%s: config.json describes another model, so names are as saved: %s",
            m->c->path, why->text);
    *m->out = (stw_convert_map){0};
    for (uint32_t f = 0; f < m->c->manifest.n_files; f++) {
        if (m->sets[f] == NULL) continue;
        m->used[f] = stw_pool_array(m->pool, (size_t)m->sets[f]->n_entries + 1, sizeof **m->used);
        if (m->used[f] == NULL) return no_memory(m, err);
    }
    return STW_STATUS_OK;
}

/* A master that is left over is that of a parameter with another name. */
static stw_status check_used(const mapper *m, stw_error *err) {
    const size_t length = strlen(MASTER);
    for (uint32_t f = 0; m->from_master && f < m->c->manifest.n_files; f++)
        for (uint32_t e = 0; !is_model_part(m, f) && e < m->sets[f]->n_entries; e++) {
            const char *name = m->sets[f]->entries[e].name;
            if (strncmp(name, MASTER, length) == 0 && !m->used[f][e])
                return stw_fail(err, STW_STATUS_BAD_INPUT, m->c->path,
                                "no parameter belongs to %.200s; the config.json of the model, in "
                                "the checkpoint or in --like FOLDER, says how its files name it",
                                name);
        }
    return STW_STATUS_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static stw_status check_names(const mapper *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t n = m->out->n_tensors;
    const char **names = calloc((size_t)n + 1, sizeof *names);
    if (names == NULL) return no_memory(m, err);
    for (uint32_t t = 0; t < n; t++) names[t] = m->out->tensors[t].name;
    qsort(names, n, sizeof *names, compare_names);
    for (uint32_t t = 1; t < n && status == STW_STATUS_OK; t++)
        if (strcmp(names[t - 1], names[t]) == 0)
            status = stw_fail(err, STW_STATUS_BAD_INPUT, m->c->path,
                              "two of its tensors would be %.200s", names[t]);
    free(names);
    return status;
}

static stw_status map_all(mapper *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_error why = STW_ERROR_INIT;
    STW_TRY(open_sets(m, err));
    STW_TRY(check_masters(m, err));
    if (m->model != NULL) status = map_model(m, &why);
    if (m->is_missing)
        STW_TRY(forget(m, &why, err));
    else if (status != STW_STATUS_OK && err != NULL)
        *err = why;
    if (status != STW_STATUS_OK) goto out;
    STW_TRY(map_rest(m, err));
    STW_TRY(check_used(m, err));
    STW_TRY(check_names(m, err));
    STW_TRY(add_headers(m, err));
out:
    return status;
}

stw_status stw_convert_map_make(const stw_checkpoint *checkpoint, const stw_model *model,
                                bool from_master, stw_pool *pool, stw_convert_map *out,
                                stw_error *err) {
    mapper m = {
        .c = checkpoint, .model = model, .from_master = from_master, .pool = pool, .out = out};
    *out = (stw_convert_map){0};
    const stw_status status = map_all(&m, err);
    for (uint32_t f = 0; m.sets != NULL && f < checkpoint->manifest.n_files; f++)
        stw_safetensors_free(m.sets[f]);
    free(m.sets);
    stw_saved_free(m.saved);
    return status;
}

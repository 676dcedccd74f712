/* SPDX-License-Identifier: Apache-2.0 */
#include "models/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stw_names {
    stw_pool *pool;
    const stw_model *model; /* borrowed */
    stw_names_rules rules;
};

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "models/names", "out of memory");
}

stw_status stw_names_open(const stw_model *model, stw_names **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    stw_pool *pool = stw_pool_new();
    stw_names *names = pool != NULL ? stw_pool_alloc(pool, sizeof *names) : NULL;
    if (names == NULL) STW_TRY(no_memory(err));
    names->pool = pool;
    names->model = model;
    if (model->model_type != NULL && model->model_type[0] != '\0' && model->model_type[0] != '_')
        STW_TRY(stw_names_rules_load(pool, model->model_type, &names->rules, err));
    const uint32_t editions = names->rules.editions;
    STW_TRY(stw_names_rules_load(pool, "_any", &names->rules, err));
    if (editions > 0) names->rules.editions = editions;
    *out = names;
    pool = NULL;
out:
    stw_pool_free(pool);
    return status;
}

void stw_names_free(stw_names *names) {
    if (names != NULL) stw_pool_free(names->pool);
}

uint32_t stw_names_editions(const stw_names *names) { return names->rules.editions; }

/* ---- forms ---- */

static const stw_names_row *row_at(const stw_names *names, uint32_t edition, uint32_t *i) {
    for (; *i < names->rules.n; (*i)++)
        if (names->rules.rows[*i].edition == edition) return &names->rules.rows[(*i)++];
    return NULL;
}

static bool shapes_form(const stw_names_row *row) {
    return row->kind == STW_NAMES_PART || row->kind == STW_NAMES_SWAP ||
           row->kind == STW_NAMES_SPLIT;
}

static const stw_tensor *tensor_named(const stw_names *names, const char *name) {
    const stw_model *m = names->model;
    for (uint32_t t = 0; t < m->n_tensors; t++)
        if (strcmp(m->tensors[t].name, name) == 0) return &m->tensors[t];
    return NULL;
}

/* Where a tensor lies in the published one that it shares with others. */
static stw_status place_split(const stw_names *names, const stw_names_row *own,
                              const stw_names_stars *stars, const stw_tensor *tensor,
                              stw_names_form *form, stw_error *err) {
    const stw_names_row *row = NULL;
    stw_pool *pool = stw_pool_new();
    stw_status status = STW_STATUS_OK;
    if (pool == NULL) STW_TRY(no_memory(err));
    for (uint32_t i = 0; (row = row_at(names, own->edition, &i)) != NULL;) {
        if (row->kind != STW_NAMES_SPLIT || strcmp(row->published, own->published) != 0) continue;
        const char *name = stw_names_apply(pool, row->tensor, stars);
        if (name == NULL) STW_TRY(no_memory(err));
        const stw_tensor *sibling = row == own ? tensor : tensor_named(names, name);
        if (sibling == NULL || sibling->rank != tensor->rank || own->dim >= tensor->rank)
            STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, "models/names",
                             "%.200s: %.200s is no tensor beside which it could be published",
                             tensor->name, name));
        if (row == own) form->first = form->whole;
        form->whole += sibling->shape[own->dim];
    }
out:
    stw_pool_free(pool);
    return status;
}

/* Rows with the pattern of `own`, which fits the tensor. */
static stw_status take_rows(const stw_names *names, const stw_names_row *own,
                            const stw_names_stars *stars, stw_pool *pool, stw_names_form *form,
                            stw_error *err) {
    const stw_names_row *row = NULL;
    form->n = 0;
    form->way = own->kind == STW_NAMES_SWAP ? STW_NAMES_TRANSPOSED : STW_NAMES_AS_IS;
    form->dim = own->dim;
    for (uint32_t i = 0; (row = row_at(names, own->edition, &i)) != NULL;) {
        if (row->kind != own->kind || strcmp(row->tensor, own->tensor) != 0) continue;
        if (form->n == STW_NAMES_MAX_ROWS || (form->n > 0 && own->kind != STW_NAMES_PART))
            return stw_fail(err, STW_STATUS_BAD_INPUT, "models/names", "%.200s: too many rows",
                            own->tensor);
        form->names[form->n] = stw_names_apply(pool, row->published, stars);
        if (form->names[form->n++] == NULL) return no_memory(err);
    }
    form->singly = strstr(form->names[0], "{e}") != NULL;
    if (form->singly && form->dim == 0) form->dim = 1;
    return STW_STATUS_OK;
}

/* Put `to` in place of `n` characters at `at`. */
static const char *replace(stw_pool *pool, const char *name, size_t at, size_t n, const char *to) {
    return stw_pool_printf(pool, "%.*s%s%s", (int)at, name, to, name + at + n);
}

static stw_status rename_all(const stw_names *names, uint32_t edition, stw_pool *pool,
                             stw_names_form *form, stw_error *err) {
    const stw_names_row *row = NULL;
    for (uint32_t i = 0; (row = row_at(names, edition, &i)) != NULL;)
        for (uint32_t k = 0; k < form->n; k++) {
            const size_t length = strlen(row->tensor);
            const char *name = form->names[k], *found = NULL;
            if (row->kind == STW_NAMES_PREFIX && strncmp(name, row->tensor, length) == 0)
                found = name;
            if (row->kind == STW_NAMES_RENAME) found = strstr(name, row->tensor);
            if (found == NULL) continue;
            form->names[k] = replace(pool, name, (size_t)(found - name), length, row->published);
            if (form->names[k] == NULL) return no_memory(err);
        }
    return STW_STATUS_OK;
}

static void pack(const stw_names *names, uint32_t edition, stw_names_form *form) {
    const stw_names_row *row = NULL;
    for (uint32_t i = 0; (row = row_at(names, edition, &i)) != NULL;) {
        if (row->kind != STW_NAMES_PACKED) continue;
        form->way = row->way;
        form->ending = row->published;
        form->scales = row->value;
    }
}

stw_status stw_names_form_of(const stw_names *names, const stw_tensor *tensor, uint32_t edition,
                             stw_pool *pool, stw_names_form *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_names_row *row = NULL;
    *out = (stw_names_form){.n = 1, .names = {tensor->name}};
    for (uint32_t i = 0; (row = row_at(names, edition, &i)) != NULL;) {
        stw_names_stars stars = {.n = 0};
        if (!shapes_form(row) || !stw_names_match(row->tensor, tensor->name, &stars)) continue;
        STW_TRY(take_rows(names, row, &stars, pool, out, err));
        if (row->kind == STW_NAMES_SPLIT)
            STW_TRY(place_split(names, row, &stars, tensor, out, err));
        break;
    }
    if (tensor->dtype == STW_DTYPE_F4) pack(names, edition, out);
    STW_TRY(rename_all(names, edition, pool, out, err));
out:
    return status;
}

const char *stw_names_copy_of(const stw_names *names, const char *tensor, uint32_t k,
                              stw_pool *pool) {
    for (uint32_t i = 0; i < names->rules.n; i++) {
        const stw_names_row *row = &names->rules.rows[i];
        stw_names_stars stars = {.n = 0};
        if (row->kind == STW_NAMES_COPY && stw_names_match(row->tensor, tensor, &stars) && k-- == 0)
            return stw_names_apply(pool, row->published, &stars);
    }
    return NULL;
}

const char *stw_names_scale_of(const stw_names *names, const char *published, uint32_t k,
                               stw_pool *pool) {
    for (uint32_t i = 0; i < names->rules.n; i++) {
        const stw_names_row *row = &names->rules.rows[i];
        stw_names_stars stars = {.n = 0};
        if (row->kind == STW_NAMES_SCALE && stw_names_match(row->tensor, published, &stars) &&
            k-- == 0)
            return stw_names_apply(pool, row->published, &stars);
    }
    return NULL;
}

bool stw_names_fill(const stw_names_form *form, uint32_t k, uint64_t expert, const char *ending,
                    char *out, size_t out_size) {
    const char *name = form->names[k], *at = form->singly ? strstr(name, "{e}") : NULL;
    int n;
    if (ending == NULL) ending = "";
    if (at == NULL)
        n = snprintf(out, out_size, "%s%s", name, ending);
    else
        n = snprintf(out, out_size, "%.*s%llu%s%s", (int)(at - name), name,
                     (unsigned long long)expert, at + 3, ending);
    return n >= 0 && (size_t)n < out_size;
}

bool stw_names_shape(const stw_names_form *form, const stw_tensor *tensor, uint32_t *rank,
                     uint64_t shape[STW_TENSOR_MAX_RANK]) {
    const bool swapped = form->way == STW_NAMES_TRANSPOSED || form->way == STW_NAMES_MXFP4;
    const uint32_t dropped = form->singly ? 1 : 0;
    uint64_t own[STW_TENSOR_MAX_RANK] = {0};
    memcpy(own, tensor->shape, tensor->rank * sizeof own[0]);
    if ((tensor->rank > 0 || form->n > 1 || form->whole > 0) && form->dim >= tensor->rank)
        return false;
    if (dropped > tensor->rank || tensor->rank - dropped < (swapped ? 2u : 0u)) return false;
    if (form->whole > 0) own[form->dim] = form->whole;
    if (form->n > 1 && own[form->dim] % form->n != 0) return false;
    if (form->n > 1) own[form->dim] /= form->n;
    *rank = tensor->rank - dropped;
    memcpy(shape, own + dropped, *rank * sizeof own[0]);
    if (swapped) {
        shape[*rank - 2] = own[tensor->rank - 1];
        shape[*rank - 1] = own[tensor->rank - 2];
    }
    return true;
}

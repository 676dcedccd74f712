/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/tree.h"
#include "plan/checkpoint/record.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

static void put_hex(stw_json *json, const char *key, uint64_t value) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, value);
    stw_json_string(json, key, hex);
}

static void put_groups(const stw_manifest *m, stw_json *json) {
    stw_json_begin_array(json, "groups");
    for (uint32_t g = 0; g < m->n_groups; g++) {
        stw_json_begin_object(json, NULL);
        stw_json_double(json, "lr", m->lr[g]);
        stw_json_double(json, "weight_decay", m->weight_decay[g]);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void put_files(const stw_manifest *m, stw_json *json) {
    stw_json_begin_array(json, "files");
    for (uint32_t f = 0; f < m->n_files; f++) {
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "name", m->files[f].name);
        stw_json_u64(json, "bytes", m->files[f].bytes);
        stw_json_end(json);
    }
    stw_json_end(json);
}

stw_status stw_manifest_take_terms(stw_manifest *m, const char *lines, stw_error *err) {
    size_t room = 0;
    stw_saved_term *terms = NULL;
    for (const char *l = lines; *l != '\0';) {
        const size_t length = strcspn(l, "\n");
        const char *equals = strstr(l, " = ");
        if (equals == NULL || equals >= l + length)
            return stw_fail(err, STW_STATUS_USAGE, "terms",
                            "found \"%.*s\", expected lines \"key = value\"",
                            length < 60 ? (int)length : 60, l);
        terms = stw_pool_grow(m->pool, terms, m->n_terms, m->n_terms + 1u, &room, sizeof *terms);
        if (terms == NULL) return no_memory(err);
        stw_saved_term *t = &terms[m->n_terms++];
        t->key = stw_pool_printf(m->pool, "%.*s", (int)(equals - l), l);
        t->value = stw_pool_printf(m->pool, "%.*s", (int)(l + length - equals - 3), equals + 3);
        if (t->key == NULL || t->value == NULL) return no_memory(err);
        l += length + (l[length] == '\n' ? 1 : 0);
    }
    m->terms = terms;
    return STW_STATUS_OK;
}

stw_status stw_manifest_write(const stw_manifest *m, stw_text *out, stw_error *err) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", STW_MANIFEST_SCHEMA "/1");
    put_hex(json, "save", m->save);
    stw_json_u64(json, "step", m->step);
    stw_json_u64(json, "world", m->world);
    stw_json_begin_object(json, "model");
    stw_json_string(json, "name", m->model);
    stw_json_u64(json, "tensors", m->n_tensors);
    stw_json_u64(json, "params", m->params);
    stw_json_end(json);
    stw_json_begin_object(json, "terms");
    for (uint32_t t = 0; t < m->n_terms; t++)
        stw_json_string(json, m->terms[t].key, m->terms[t].value);
    stw_json_end(json);
    put_groups(m, json);
    put_hex(json, "seed", m->seed);
    stw_json_string(json, "weights_sample", m->sample != NULL ? m->sample : "");
    stw_json_begin_array(json, "clip_factors");
    for (uint64_t i = 0; i < m->n_factors; i++)
        stw_json_double(json, NULL, m->factors[i]); /* NaN: null */
    stw_json_end(json);
    put_files(m, json);
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

/* ---- reading ---- */

static stw_status get_hex(const stw_tree *tree, const char *key, uint64_t *out, stw_error *err) {
    const char *text = NULL;
    char *end = NULL;
    stw_status status = stw_node_string(tree, tree->root, key, &text, err);
    if (status != STW_STATUS_OK) return status;
    *out = strtoull(text, &end, 16);
    if (strlen(text) == 16 && *end == '\0') return STW_STATUS_OK;
    return stw_node_fail(tree, stw_node_get(tree->root, key), "16 hexadecimal digits", err);
}

static stw_status get_u32(const stw_tree *tree, const stw_node *parent, const char *key,
                          uint32_t *out, stw_error *err) {
    uint64_t value = 0;
    stw_status status = stw_node_u64(tree, parent, key, &value, err);
    if (status == STW_STATUS_OK && value > UINT32_MAX)
        return stw_node_fail(tree, stw_node_get(parent, key), "a number below 2^32", err);
    *out = (uint32_t)value;
    return status;
}

static stw_status read_terms(const stw_tree *tree, stw_manifest *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *terms = NULL;
    STW_TRY(stw_node_object(tree, tree->root, "terms", &terms, err));
    stw_saved_term *own = stw_pool_array(m->pool, terms->n_items + 1, sizeof *own);
    if (own == NULL) STW_TRY(no_memory(err));
    for (size_t i = 0; i < terms->n_items; i++) {
        const stw_node *item = terms->items[i];
        if (item->kind != STW_NODE_STRING) STW_TRY(stw_node_fail(tree, item, "a string", err));
        own[i] = (stw_saved_term){stw_pool_string(m->pool, item->key),
                                  stw_pool_string(m->pool, item->text)};
        if (own[i].key == NULL || own[i].value == NULL) STW_TRY(no_memory(err));
    }
    m->terms = own;
    m->n_terms = (uint32_t)terms->n_items;
out:
    return status;
}

static stw_status read_groups(const stw_tree *tree, stw_manifest *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *groups = NULL;
    STW_TRY(stw_node_array(tree, tree->root, "groups", &groups, err));
    if (groups->n_items > STW_SAVED_GROUPS)
        STW_TRY(stw_node_fail(tree, groups, "at most 8 parameter groups", err));
    m->n_groups = (uint32_t)groups->n_items;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        STW_TRY(stw_node_double(tree, groups->items[g], "lr", &m->lr[g], err));
        STW_TRY(stw_node_double(tree, groups->items[g], "weight_decay", &m->weight_decay[g], err));
    }
out:
    return status;
}

static stw_status read_factors(const stw_tree *tree, stw_manifest *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *factors = NULL;
    STW_TRY(stw_node_array(tree, tree->root, "clip_factors", &factors, err));
    double *own = stw_pool_array(m->pool, factors->n_items + 1, sizeof *own);
    if (own == NULL) STW_TRY(no_memory(err));
    for (size_t i = 0; i < factors->n_items; i++) {
        const stw_node *item = factors->items[i];
        if (item->kind != STW_NODE_NULL && item->kind != STW_NODE_REAL &&
            item->kind != STW_NODE_INT)
            STW_TRY(stw_node_fail(tree, item, "a number or null", err));
        own[i] = item->kind == STW_NODE_NULL ? (double)NAN : item->real;
    }
    m->factors = own;
    m->n_factors = factors->n_items;
out:
    return status;
}

static stw_status read_files(const stw_tree *tree, stw_manifest *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *files = NULL;
    STW_TRY(stw_node_array(tree, tree->root, "files", &files, err));
    if (files->n_items > STW_SAVED_MOST_FILES)
        STW_TRY(stw_node_fail(tree, files, "at most 65536 files", err));
    m->files = stw_pool_array(m->pool, files->n_items + 1, sizeof *m->files);
    if (m->files == NULL) STW_TRY(no_memory(err));
    m->n_files = (uint32_t)files->n_items;
    for (uint32_t f = 0; f < m->n_files; f++) {
        const char *name = NULL;
        STW_TRY(stw_node_string(tree, files->items[f], "name", &name, err));
        STW_TRY(stw_node_u64(tree, files->items[f], "bytes", &m->files[f].bytes, err));
        m->files[f].name = stw_pool_string(m->pool, name);
        if (m->files[f].name == NULL) STW_TRY(no_memory(err));
        if (!stw_saved_file_name(name))
            STW_TRY(stw_node_fail(tree, files->items[f], "the name of a file of the folder", err));
    }
out:
    return status;
}

static stw_status read_all(const stw_tree *tree, stw_manifest *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *model = NULL;
    const char *text = NULL;
    STW_TRY(stw_tree_schema(tree, STW_MANIFEST_SCHEMA, 1, err));
    STW_TRY(get_hex(tree, "save", &m->save, err));
    STW_TRY(stw_node_u64(tree, tree->root, "step", &m->step, err));
    STW_TRY(get_u32(tree, tree->root, "world", &m->world, err));
    STW_TRY(stw_node_object(tree, tree->root, "model", &model, err));
    STW_TRY(stw_node_string(tree, model, "name", &text, err));
    m->model = stw_pool_string(m->pool, text);
    STW_TRY(get_u32(tree, model, "tensors", &m->n_tensors, err));
    STW_TRY(stw_node_u64(tree, model, "params", &m->params, err));
    STW_TRY(get_hex(tree, "seed", &m->seed, err));
    STW_TRY(stw_node_string(tree, tree->root, "weights_sample", &text, err));
    m->sample = stw_pool_string(m->pool, text);
    if (m->model == NULL || m->sample == NULL) STW_TRY(no_memory(err));
    STW_TRY(read_terms(tree, m, err));
    STW_TRY(read_groups(tree, m, err));
    STW_TRY(read_factors(tree, m, err));
    STW_TRY(read_files(tree, m, err));
out:
    return status;
}

stw_status stw_manifest_read(const char *file, const char *text, size_t length, stw_pool *pool,
                             stw_manifest *out, stw_error *err) {
    stw_tree *tree = NULL;
    *out = (stw_manifest){.pool = pool};
    stw_status status = stw_tree_parse_json(file, text, length, &tree, err);
    if (status == STW_STATUS_OK) status = read_all(tree, out, err);
    stw_tree_free(tree);
    return status;
}

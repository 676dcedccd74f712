/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in YAML and JSON: the user's file with other values of the keys that changed. */
#include <string.h>

#include "core/tree.h"
#include "core/tree_edit.h"
#include "planner/frameworks/emit/emission.h"
#include "planner/frameworks/import/reading.h"

/* Of Megatron-LM's recipes: the map of arguments, whose names have dashes. */
static const char SECTION[] = "MODEL_ARGS";

/* The flags of a document, as its import reads them. @param own out, of Megatron-LM's arguments */
static stw_status flags_of(const char *text, size_t length, const char *dashes, stw_pool *pool,
                           stw_flags *out) {
    stw_error ignored = STW_ERROR_INIT;
    if (*dashes == '\0')
        return stw_flags_parse_paths("settings", text, length, pool, out, &ignored);
    return stw_flags_parse("settings", text, length, SECTION, pool, out, &ignored);
}

/* A list is written [a, b], and read "a b". */
static bool same_value(const char *written, const char *read) {
    if (strcmp(written, read) == 0 || stw_reading_same(written, read)) return true;
    if (*written != '[') return false;
    for (written++; *written != '\0' && *written != ']';) {
        written += strspn(written, " ,");
        const size_t n = strcspn(written, " ,]");
        read += strspn(read, " ");
        if (strncmp(written, read, n) != 0) return false;
        written += n;
        read += n;
        written += strspn(written, " ,");
    }
    return read[strspn(read, " ")] == '\0';
}

static stw_status no_memory(const stw_emission *e) {
    return stw_fail(e->err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
}

/* Arguments beside a document may give other values: these go into it. */
static bool is_document(stw_emission *e, stw_flags *flags) {
    const stw_import *import = e->import;
    if (import == NULL || import->text == NULL || import->program != NULL) return false;
    const stw_status status =
        flags_of(import->text, import->text_length, import->dashes, e->pool, flags);
    if (status == STW_STATUS_NO_MEMORY) e->status = no_memory(e);
    if (status != STW_STATUS_OK) return false;
    for (size_t i = 0; i < flags->n; i++) {
        const stw_flag *flag = stw_flags_find(&import->flags, flags->items[i].name);
        if (flag == NULL || flag->line == 0) return false;
    }
    return true;
}

/* ---- Megatron-LM's names ---- */

static bool is_named(const char *key, const char *name) {
    key += strspn(key, "-");
    for (; *key != '\0' && *name != '\0'; key++, name++)
        if (*key != *name && !(*key == '_' && *name == '-')) return false;
    return *key == *name;
}

/* The path of a flag in a document of arguments; in the pool. */
static const char *argument_path(const stw_emission *e, const stw_node *root, const char *name) {
    const stw_node *section = stw_node_get(root, SECTION), *map = section != NULL ? section : root;
    const char *before = section != NULL ? "MODEL_ARGS." : "", *dashes = "";
    for (size_t i = 0; i < map->n_items; i++) {
        const char *key = map->items[i]->key;
        if (is_named(key, name)) return stw_pool_printf(e->pool, "%s%s", before, key);
        if (strncmp(key, "--", 2) == 0) dashes = "--";
    }
    return stw_pool_printf(e->pool, "%s%s%s", before, dashes, name);
}

/* ---- changes ---- */

static stw_status fail(const stw_emission *e, const char *name, const char *why) {
    return stw_fail(e->err, STW_STATUS_NOT_BUILT_IN, "--emit",
                    "%s: %.60s cannot be changed where it stands (%.200s); nothing is written. "
                    "Write it on a line of its own",
                    e->import->path, name, why);
}

static stw_status change(const stw_emission *e, const stw_flags *own, const stw_node *root,
                         stw_text *text) {
    for (size_t i = 0; i < e->n; i++) {
        const stw_emit_flag *flag = &e->flags[i];
        const stw_flag *before = stw_flags_find(own, flag->name);
        stw_error why = STW_ERROR_INIT;
        if (flag->value == NULL ? before == NULL
                                : before != NULL && strcmp(before->value, flag->value) == 0)
            continue;
        const bool argument = *e->import->dashes != '\0';
        const char *path = argument ? argument_path(e, root, flag->name) : flag->name;
        const stw_status status = path != NULL
                                      ? stw_tree_put(e->import->path, text, path, flag->value, &why)
                                      : STW_STATUS_NO_MEMORY;
        if (status == STW_STATUS_NO_MEMORY) return no_memory(e);
        if (status != STW_STATUS_OK) return fail(e, flag->name, why.text);
    }
    return STW_STATUS_OK;
}

/* What was written is what was meant, of each key. */
static stw_status verify(const stw_emission *e, const stw_flags *own, const stw_text *text) {
    stw_flags now;
    const char *data = text->data != NULL ? text->data : "";
    const stw_status status = flags_of(data, text->length, e->import->dashes, e->pool, &now);
    if (status == STW_STATUS_NO_MEMORY || text->failed) return no_memory(e);
    if (status != STW_STATUS_OK) return fail(e, "the file", "it is no document any more");
    for (size_t i = 0; i < e->n; i++) {
        const stw_flag *flag = stw_flags_find(&now, e->flags[i].name);
        const char *value = e->flags[i].value;
        if ((flag == NULL) != (value == NULL) || (value != NULL && !same_value(value, flag->value)))
            return fail(e, e->flags[i].name, "the new value is not read back");
    }
    for (size_t i = 0; i < own->n; i++) { /* such as a list of maps */
        bool known = false;
        for (size_t k = 0; k < e->n && !known; k++)
            known = strcmp(own->items[i].name, e->flags[k].name) == 0;
        const stw_flag *flag = known ? NULL : stw_flags_find(&now, own->items[i].name);
        if (!known && (flag == NULL || strcmp(flag->value, own->items[i].value) != 0))
            return fail(e, own->items[i].name, "it would change, too");
    }
    return STW_STATUS_OK;
}

bool stw_emit_as_document(stw_emission *e, stw_text *out) {
    stw_flags own;
    stw_tree *tree = NULL;
    stw_error ignored = STW_ERROR_INIT;
    if (e->status != STW_STATUS_OK || !is_document(e, &own)) return false;
    const char *text = e->import->text;
    const size_t length = e->import->text_length;
    const stw_status read = stw_tree_text_is_json(text, length)
                                ? stw_tree_parse_json("settings", text, length, &tree, &ignored)
                                : stw_tree_parse_yaml("settings", text, length, &tree, &ignored);
    if (read == STW_STATUS_NO_MEMORY) e->status = no_memory(e);
    if (read != STW_STATUS_OK || tree->root->kind != STW_NODE_OBJECT) { /* a command */
        stw_tree_free(tree);
        return false;
    }
    stw_text_append(out, text, length);
    for (size_t i = 0; i < own.n; i++) {
        const stw_flag *flag = stw_flags_find(&e->import->flags, own.items[i].name);
        if (strcmp(flag->value, own.items[i].value) == 0) continue;
        stw_text_printf(&e->notes, "%s is written with the arguments that the script adds to it\n",
                        e->import->path);
        break;
    }
    if (e->status == STW_STATUS_OK) e->status = change(e, &own, tree->root, out);
    if (e->status == STW_STATUS_OK) e->status = verify(e, &own, out);
    stw_tree_free(tree);
    return true;
}

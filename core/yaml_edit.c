/* SPDX-License-Identifier: Apache-2.0 */
#include "core/yaml_edit.h"

#include <limits.h>
#include <string.h>
#include <yaml.h>

/* What is put where: `length` bytes from `at` on give way to it. */
typedef struct edit {
    size_t at, length;
    stw_text put;
} edit;

typedef struct editor {
    const char *file;
    const char *text;
    size_t length;
    yaml_document_t document;
    stw_error *err;
} editor;

static stw_status refuse(const editor *e, yaml_mark_t mark, const char *what) {
    const int line = mark.line < INT_MAX ? (int)mark.line + 1 : INT_MAX,
              column = mark.column < INT_MAX ? (int)mark.column + 1 : INT_MAX;
    return stw_fail_at(e->err, STW_STATUS_BAD_INPUT, e->file, line, column, "%s", what);
}

/* Marks count characters; a byte order mark is none. */
static size_t offset_of(const editor *e, yaml_mark_t mark) {
    size_t at = e->length >= 3 && memcmp(e->text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    for (size_t n = 0; n < mark.index && at < e->length; n++) {
        at++;
        while (at < e->length && ((unsigned char)e->text[at] & 0xC0) == 0x80) at++;
    }
    return at;
}

static yaml_node_t *node_of(editor *e, yaml_node_item_t item) {
    return yaml_document_get_node(&e->document, item);
}

static yaml_node_pair_t *find(editor *e, const yaml_node_t *map, const char *key, size_t length) {
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const yaml_node_t *name = node_of(e, p->key);
        if (name != NULL && name->type == YAML_SCALAR_NODE && name->data.scalar.length == length &&
            memcmp(name->data.scalar.value, key, length) == 0)
            return p;
    }
    return NULL;
}

static bool is_flow(const yaml_node_t *map) {
    return map->data.mapping.style == YAML_FLOW_MAPPING_STYLE;
}

static bool is_null(const yaml_node_t *node) {
    return node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0 &&
           node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* End of the last scalar or flow collection in a node: block collections end anywhere after it. */
static yaml_mark_t last_mark(editor *e, const yaml_node_t *node) {
    for (;;) {
        const yaml_node_t *last = NULL;
        if (node->type == YAML_MAPPING_NODE && !is_flow(node) &&
            node->data.mapping.pairs.top > node->data.mapping.pairs.start)
            last = node_of(e, node->data.mapping.pairs.top[-1].value);
        else if (node->type == YAML_SEQUENCE_NODE &&
                 node->data.sequence.style != YAML_FLOW_SEQUENCE_STYLE &&
                 node->data.sequence.items.top > node->data.sequence.items.start)
            last = node_of(e, node->data.sequence.items.top[-1]);
        if (last == NULL) return node->end_mark;
        node = last;
    }
}

/* "a: {b: {c: value}}" of the path "a.b.c" */
static void put_flow(stw_text *out, const char *path, const char *value) {
    const char *dot = strchr(path, '.');
    if (dot == NULL) {
        stw_text_printf(out, "%s: %s", path, value);
        return;
    }
    stw_text_printf(out, "%.*s: {", (int)(dot - path), path);
    put_flow(out, dot + 1, value);
    stw_text_append(out, "}", 1);
}

/* The same as lines, each map deeper by two spaces. */
static void put_block(stw_text *out, const char *path, const char *value, size_t indent,
                      const char *line_end) {
    for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1, indent += 2)
        stw_text_printf(out, "%*s%.*s:%s", (int)indent, "", (int)(dot - path), path, line_end);
    stw_text_printf(out, "%*s%s: %s%s", (int)indent, "", path, value, line_end);
}

static const char *line_end_of(const editor *e) {
    const char *first = memchr(e->text, '\n', e->length);
    return first != NULL && first > e->text && first[-1] == '\r' ? "\r\n" : "\n";
}

/* Add the rest of a path to a map. */
static void add(editor *e, const yaml_node_t *map, const char *path, const char *value, edit *out) {
    const bool empty = map->data.mapping.pairs.top == map->data.mapping.pairs.start;
    if (is_flow(map)) {
        const yaml_node_t *last = empty ? NULL : node_of(e, map->data.mapping.pairs.top[-1].value);
        out->at = empty ? offset_of(e, map->start_mark) + 1
                        : offset_of(e, is_null(last) ? last->start_mark : last->end_mark);
        if (!empty) stw_text_printf(&out->put, "%s, ", is_null(last) ? " " : "");
        put_flow(&out->put, path, value);
        return;
    }
    const char *line_end = line_end_of(e);
    const size_t indent = node_of(e, map->data.mapping.pairs.start->key)->start_mark.column;
    size_t at = offset_of(e, last_mark(e, map));
    if (at == 0 || e->text[at - 1] != '\n') { /* a block of text ends on the next line */
        const char *end = memchr(e->text + at, '\n', e->length - at);
        at = end != NULL ? (size_t)(end - e->text) + 1 : e->length;
        if (end == NULL) stw_text_printf(&out->put, "%s", line_end);
    }
    out->at = at;
    put_block(&out->put, path, value, indent, line_end);
}

static stw_status replace(editor *e, const yaml_node_t *node, const char *value, edit *out) {
    if (node->type != YAML_SCALAR_NODE)
        return refuse(e, node->start_mark, "found a list or a map, expected a single value");
    out->at = offset_of(e, node->start_mark);
    out->length = offset_of(e, node->end_mark) - out->at;
    stw_text_printf(&out->put, "%s%s", is_null(node) ? " " : "", value);
    return STW_STATUS_OK;
}

static stw_status find_edit(editor *e, const char *path, const char *value, edit *out) {
    const yaml_node_t *node = yaml_document_get_root_node(&e->document);
    if (node == NULL || node->type != YAML_MAPPING_NODE)
        return stw_fail(e->err, STW_STATUS_BAD_INPUT, e->file, "found no map of keys");
    for (;;) {
        const char *dot = strchr(path, '.');
        const size_t length = dot != NULL ? (size_t)(dot - path) : strlen(path);
        const yaml_node_pair_t *pair = find(e, node, path, length);
        if (pair == NULL) break;
        const yaml_node_t *inner = node_of(e, pair->value);
        if (dot == NULL) return replace(e, inner, value, out);
        path = dot + 1;
        if (is_null(inner)) {
            out->at = offset_of(e, inner->start_mark);
            stw_text_printf(&out->put, " {");
            put_flow(&out->put, path, value);
            stw_text_append(&out->put, "}", 1);
            return STW_STATUS_OK;
        }
        if (inner->type != YAML_MAPPING_NODE)
            return refuse(e, inner->start_mark, "expected a map of keys");
        node = inner;
    }
    add(e, node, path, value, out);
    return STW_STATUS_OK;
}

static stw_status apply(stw_text *text, const edit *change, stw_error *err) {
    stw_text out = STW_TEXT_INIT;
    stw_status status = stw_text_status(&change->put, err);
    if (status != STW_STATUS_OK) return status;
    const size_t after = change->at + change->length;
    stw_text_append(&out, text->data, change->at);
    stw_text_append(&out, change->put.data, change->put.length);
    stw_text_append(&out, text->data + after, text->length - after);
    status = stw_text_status(&out, err);
    if (status != STW_STATUS_OK) {
        stw_text_free(&out);
        return status;
    }
    stw_text_free(text);
    *text = out;
    return STW_STATUS_OK;
}

stw_status stw_yaml_put(const char *file, stw_text *text, const char *path, const char *value,
                        stw_error *err) {
    stw_status status = STW_STATUS_OK;
    yaml_parser_t parser;
    edit change = {0};
    editor e = {.file = file, .text = text->data != NULL ? text->data : "", .err = err};
    e.length = text->length;
    if (!yaml_parser_initialize(&parser))
        return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)e.text, e.length);
    if (!yaml_parser_load(&parser, &e.document)) {
        status = parser.error == YAML_MEMORY_ERROR
                     ? stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory")
                     : stw_fail(err, STW_STATUS_BAD_INPUT, file, "not valid YAML");
    } else {
        status = find_edit(&e, path, value, &change);
        if (status == STW_STATUS_OK) status = apply(text, &change, err);
        yaml_document_delete(&e.document);
    }
    stw_text_free(&change.put);
    yaml_parser_delete(&parser);
    return status;
}

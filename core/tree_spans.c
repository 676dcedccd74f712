/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tree_spans.h"

#include <string.h>
#include <yaml.h>

#include "core/tree.h"

static stw_status no_memory(const char *file, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
}

static stw_span *add_item(stw_span *map, stw_pool *pool) {
    stw_span *grown =
        stw_pool_grow(pool, map->items, map->n, map->n + 1, &map->capacity, sizeof *grown);
    if (grown == NULL) return NULL;
    map->items = grown;
    map->items[map->n] = (stw_span){.kind = STW_SPAN_SCALAR};
    return &map->items[map->n++];
}

/* ---- JSON, which was accepted before ---- */

typedef struct scanner {
    const char *text;
    size_t at, length;
    stw_pool *pool;
    bool failed; /* no memory */
} scanner;

static void skip_blanks(scanner *s) {
    while (s->at < s->length && strchr(" \t\r\n", s->text[s->at]) != NULL && s->text[s->at] != '\0')
        s->at++;
}

static void skip_string(scanner *s) {
    for (s->at++; s->at < s->length && s->text[s->at] != '"'; s->at++)
        if (s->text[s->at] == '\\') s->at++;
    s->at++;
}

/* The characters of a string, as jansson decodes them. */
static const char *decoded(const scanner *s, size_t begin, size_t end) {
    stw_error ignored = STW_ERROR_INIT;
    stw_tree *tree = NULL;
    const char *whole = stw_pool_printf(s->pool, "[%.*s]", (int)(end - begin), s->text + begin);
    const char *out = NULL;
    if (whole != NULL &&
        stw_tree_parse_json("key", whole, strlen(whole), &tree, &ignored) == STW_STATUS_OK)
        out = stw_pool_string(s->pool, tree->root->items[0]->text);
    stw_tree_free(tree);
    return out;
}

static void scan_value(scanner *s, stw_span *out);

static void scan_members(scanner *s, stw_span *out) {
    const bool map = out->kind == STW_SPAN_MAP;
    for (s->at++; s->at < s->length && !s->failed;) {
        skip_blanks(s);
        if (s->text[s->at] == '}' || s->text[s->at] == ']') break;
        if (s->text[s->at] == ',') {
            s->at++;
            continue;
        }
        stw_span unused = {.kind = STW_SPAN_SCALAR}, *item = map ? add_item(out, s->pool) : &unused;
        if (item == NULL) {
            s->failed = true;
            return;
        }
        if (map) {
            item->key_begin = s->at;
            skip_string(s);
            item->key_end = s->at;
            item->key = decoded(s, item->key_begin, item->key_end);
            s->failed = s->failed || item->key == NULL;
            const char *line = s->text + item->key_begin;
            while (line > s->text && line[-1] != '\n') line--;
            item->column = (size_t)(s->text + item->key_begin - line);
            skip_blanks(s);
            s->at++; /* the colon */
            skip_blanks(s);
        }
        scan_value(s, item);
    }
    s->at++;
}

/* As deep as jansson allows. */
static void scan_value(scanner *s, stw_span *out) {
    const char first = s->at < s->length ? s->text[s->at] : '\0';
    out->begin = s->at;
    if (first == '{' || first == '[') {
        out->kind = first == '{' ? STW_SPAN_MAP : STW_SPAN_LIST;
        out->flow = true;
        scan_members(s, out);
    } else if (first == '"') {
        out->quoted = true;
        skip_string(s);
    } else {
        while (s->at < s->length && strchr(",]} \t\r\n", s->text[s->at]) == NULL) s->at++;
    }
    out->end = s->at;
}

/* ---- YAML ---- */

typedef struct walker {
    const char *text;
    size_t length;
    yaml_document_t document;
    size_t at, index; /* the last place: bytes and characters */
    stw_pool *pool;
    bool failed;
} walker;

/* Marks count characters; a byte order mark is none. They are asked for from first to last. */
static size_t offset_of(walker *w, yaml_mark_t mark) {
    if (mark.index < w->index || w->at == 0) {
        w->index = 0;
        w->at = w->length >= 3 && memcmp(w->text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    }
    for (; w->index < mark.index && w->at < w->length; w->index++) {
        w->at++;
        while (w->at < w->length && ((unsigned char)w->text[w->at] & 0xC0) == 0x80) w->at++;
    }
    return w->at;
}

/* @return end of the last scalar or flow collection: block collections end anywhere after it */
static size_t walk(walker *w, int id, stw_span *out);

static size_t walk_map(walker *w, const yaml_node_t *node, stw_span *out) {
    size_t last = out->begin;
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start;
         p < node->data.mapping.pairs.top && !w->failed; p++) {
        const yaml_node_t *key = yaml_document_get_node(&w->document, p->key);
        stw_span *item = add_item(out, w->pool);
        if (item == NULL || key == NULL || key->type != YAML_SCALAR_NODE) {
            w->failed = true;
            break;
        }
        item->key = stw_pool_printf(w->pool, "%.*s", (int)key->data.scalar.length,
                                    (const char *)key->data.scalar.value);
        item->key_begin = offset_of(w, key->start_mark);
        item->key_end = offset_of(w, key->end_mark);
        item->column = key->start_mark.column;
        w->failed = w->failed || item->key == NULL;
        last = walk(w, p->value, item);
    }
    return last;
}

static size_t walk(walker *w, int id, stw_span *out) {
    const yaml_node_t *node = yaml_document_get_node(&w->document, id);
    if (node == NULL) return 0;
    out->begin = offset_of(w, node->start_mark);
    size_t last = out->begin;
    if (node->type == YAML_MAPPING_NODE) {
        out->kind = STW_SPAN_MAP;
        out->flow = node->data.mapping.style == YAML_FLOW_MAPPING_STYLE;
        last = walk_map(w, node, out);
    } else if (node->type == YAML_SEQUENCE_NODE) {
        out->kind = STW_SPAN_LIST;
        out->flow = node->data.sequence.style == YAML_FLOW_SEQUENCE_STYLE;
        stw_span unused;
        for (const yaml_node_item_t *i = node->data.sequence.items.start;
             i < node->data.sequence.items.top && !w->failed; i++) {
            unused = (stw_span){.kind = STW_SPAN_SCALAR};
            last = walk(w, *i, &unused);
        }
    } else {
        out->quoted = node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    }
    if (node->type == YAML_SCALAR_NODE || out->flow) last = offset_of(w, node->end_mark);
    while (last > out->begin && (w->text[last - 1] == '\n' || w->text[last - 1] == '\r')) last--;
    out->end = last;
    return last;
}

static stw_status read_yaml(const char *file, walker *w, stw_span *root, stw_error *err) {
    yaml_parser_t parser;
    stw_status status = STW_STATUS_OK;
    if (!yaml_parser_initialize(&parser)) return no_memory(file, err);
    yaml_parser_set_input_string(&parser, (const unsigned char *)w->text, w->length);
    if (!yaml_parser_load(&parser, &w->document)) {
        status = no_memory(file, err); /* the text was accepted before */
    } else {
        if (yaml_document_get_root_node(&w->document) != NULL) (void)walk(w, 1, root);
        yaml_document_delete(&w->document);
        if (w->failed) status = no_memory(file, err);
    }
    yaml_parser_delete(&parser);
    return status;
}

stw_status stw_spans_read(const char *file, const char *text, size_t length, bool json,
                          stw_pool *pool, stw_span *root, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL; /* is it such a document, and not too deep? */
    *root = (stw_span){.kind = STW_SPAN_SCALAR};
    STW_TRY(json ? stw_tree_parse_json(file, text, length, &tree, err)
                 : stw_tree_parse_yaml(file, text, length, &tree, err));
    if (json) {
        scanner s = {.text = text, .length = length, .pool = pool};
        if (length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) s.at = 3; /* byte order mark */
        skip_blanks(&s);
        scan_value(&s, root);
        if (s.failed) status = no_memory(file, err);
    } else {
        walker w = {.text = text, .length = length, .pool = pool};
        status = read_yaml(file, &w, root, err);
    }
out:
    stw_tree_free(tree);
    return status;
}

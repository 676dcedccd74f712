/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tree_edit.h"

#include <ctype.h>
#include <string.h>

#include "core/tree.h"
#include "core/tree_spans.h"
#include "core/tree_write.h"

bool stw_tree_text_is_json(const char *text, size_t length) {
    size_t at = length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; /* byte order mark */
    while (at < length && isspace((unsigned char)text[at])) at++;
    if (at == length || text[at] != '{') return false;
    for (at++; at < length && isspace((unsigned char)text[at]);) at++;
    return at == length || text[at] == '"' || text[at] == '}'; /* {a: 1} is YAML */
}

/* ---- places ---- */

typedef struct editor {
    const char *file, *text;
    size_t length;
    bool json;
    bool raw; /* values are as they are to stand in the text, and take the place of others alone */
    /* what is put where: `length` bytes from `at` on give way to `put`; then `gap` bytes before it
     * go, too */
    size_t at, cut, gap_at, gap;
    stw_text put;
    stw_error *err;
} editor;

typedef struct place {
    stw_span *parent; /* whose value is `map`; NULL: the root */
    stw_span *map, *item;
    const char *rest; /* of the path, below `map`; without `item` */
} place;

static stw_status refuse(const editor *e, size_t at, const char *what) {
    int line = 1, column = 1;
    for (size_t i = 0; i < at && i < e->length; i++) {
        line += e->text[i] == '\n';
        column = e->text[i] == '\n' ? 1 : column + 1;
    }
    return stw_fail_at(e->err, STW_STATUS_BAD_INPUT, e->file, line, column, "%s", what);
}

/* A raw value stands in YAML. */
static bool is_json(const editor *e, const char *text, size_t length) {
    return !e->raw && stw_tree_text_is_json(text, length);
}

/* Keys may have dots of their own: a whole path is looked for. */
static bool find(stw_span *parent, stw_span *map, const char *path, place *out) {
    for (size_t i = 0; i < map->n; i++) {
        stw_span *item = &map->items[i];
        const size_t n = strlen(item->key);
        if (strncmp(path, item->key, n) != 0) continue;
        if (path[n] == '\0') {
            *out = (place){parent, map, item, ""};
            return true;
        }
        if (path[n] == '.' && item->kind == STW_SPAN_MAP && find(item, item, path + n + 1, out))
            return true;
    }
    return false;
}

/* The innermost map that is there. */
static place deepest(stw_span *root, const char *path) {
    place at = {NULL, root, NULL, path};
    for (size_t i = 0; i < at.map->n; i++) {
        stw_span *item = &at.map->items[i];
        const size_t n = strlen(item->key);
        if (strncmp(at.rest, item->key, n) != 0 || at.rest[n] != '.') continue;
        if (item->kind != STW_SPAN_MAP) {
            at.item = item;
            return at;
        }
        at = (place){item, item, NULL, at.rest + n + 1};
        i = (size_t)-1;
    }
    return at;
}

/* After the colon of a key, which may be on a later line: "? a". */
static stw_status after_colon(const editor *e, const stw_span *item, size_t *out) {
    size_t at = item->key_end;
    while (at < e->length && (e->text[at] == ' ' || e->text[at] == '\t')) at++;
    if (at >= e->length || e->text[at] != ':')
        return refuse(e, item->key_begin, "expected a colon after the key");
    *out = at + 1;
    return STW_STATUS_OK;
}

static size_t line_begin(const editor *e, size_t at) {
    while (at > 0 && e->text[at - 1] != '\n') at--;
    return at;
}

static size_t next_line(const editor *e, size_t at) {
    while (at < e->length && e->text[at] != '\n') at++;
    return at < e->length ? at + 1 : at;
}

/* That of the line before, or of the one at `at` if it is the first. */
static const char *line_end_at(const editor *e, size_t at) {
    size_t end = at;
    while (end > 0 && e->text[end - 1] != '\n') end--;
    if (end == 0) end = next_line(e, at);
    return end > 1 && e->text[end - 1] == '\n' && e->text[end - 2] == '\r' ? "\r\n" : "\n";
}

static bool begins_line(const editor *e, size_t at) {
    const size_t begin = line_begin(e, at);
    return begin > 0 && strspn(e->text + begin, " \t") >= at - begin;
}

/* Is there nothing but blanks before a key of a block? */
static stw_status check_begins(const editor *e, const stw_span *item) {
    size_t at = line_begin(e, item->key_begin);
    if (at == 0 && e->length >= 3 && memcmp(e->text, "\xEF\xBB\xBF", 3) == 0) at = 3;
    if (strspn(e->text + at, " ") >= item->key_begin - at) return STW_STATUS_OK;
    return refuse(e, item->key_begin, "expected the key at the beginning of its line");
}

/* ---- changes ---- */

static void put_value(editor *e, const char *value, bool string) {
    if (e->raw)
        stw_text_printf(&e->put, "%s", value);
    else
        stw_tree_write_value(&e->put, value, string, e->json);
}

/* {"b": {"c": value}} of the path "b.c" */
static void put_flow(editor *e, const char *path, const char *value) {
    const char *dot = strchr(path, '.');
    const size_t n = dot != NULL ? (size_t)(dot - path) : strlen(path);
    stw_tree_write_key(&e->put, path, n, e->json);
    stw_text_append(&e->put, ": ", 2);
    if (dot == NULL) {
        put_value(e, value, false);
        return;
    }
    stw_text_append(&e->put, "{", 1);
    put_flow(e, dot + 1, value);
    stw_text_append(&e->put, "}", 1);
}

/* The same as lines, each map deeper by two blanks. */
static void put_block(editor *e, const char *path, const char *value, size_t indent) {
    for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1, indent += 2) {
        stw_text_printf(&e->put, "%*s", (int)indent, "");
        stw_tree_write_key(&e->put, path, (size_t)(dot - path), false);
        stw_text_printf(&e->put, ":%s", line_end_at(e, e->at));
    }
    stw_text_printf(&e->put, "%*s", (int)indent, "");
    stw_tree_write_key(&e->put, path, strlen(path), false);
    stw_text_append(&e->put, ": ", 2);
    put_value(e, value, false);
    stw_text_printf(&e->put, "%s", line_end_at(e, e->at));
}

static void add_flow(editor *e, const stw_span *map, const char *path, const char *value) {
    const stw_span *last = map->n > 0 ? &map->items[map->n - 1] : NULL;
    e->at = last == NULL ? map->begin + 1 : last->end;
    if (last != NULL && last->end == last->begin) stw_text_append(&e->put, " ", 1);
    if (last != NULL && begins_line(e, last->key_begin)) {
        const size_t begin = line_begin(e, last->key_begin);
        stw_text_printf(&e->put, ",%s", line_end_at(e, e->at));
        stw_text_append(&e->put, e->text + begin, last->key_begin - begin);
    } else if (last != NULL) {
        stw_text_append(&e->put, ", ", 2);
    }
    put_flow(e, path, value);
}

static stw_status add_block(editor *e, const stw_span *map, const char *path, const char *value) {
    const stw_span *last = &map->items[map->n - 1];
    const stw_status status = check_begins(e, &map->items[0]);
    if (status != STW_STATUS_OK) return status;
    e->at = next_line(e, last->end);
    if (e->at == e->length && (e->length == 0 || e->text[e->length - 1] != '\n'))
        stw_text_printf(&e->put, "%s", line_end_at(e, e->at));
    put_block(e, path, value, map->items[0].column);
    return STW_STATUS_OK;
}

static stw_status add(editor *e, const place *at, const char *value) {
    if (at->item != NULL) { /* a key without a value becomes a map */
        const bool none = at->item->begin == at->item->end && at->item->kind == STW_SPAN_SCALAR;
        if (!none) return refuse(e, at->item->begin, "expected a map of keys");
        const stw_status status = after_colon(e, at->item, &e->at);
        if (status != STW_STATUS_OK) return status;
        stw_text_append(&e->put, " {", 2);
        put_flow(e, at->rest + strlen(at->item->key) + 1, value);
        stw_text_append(&e->put, "}", 1);
        return STW_STATUS_OK;
    }
    if (at->map->flow)
        add_flow(e, at->map, at->rest, value);
    else
        return at->map->n > 0 ? add_block(e, at->map, at->rest, value)
                              : refuse(e, at->map->begin, "found no map of keys");
    return STW_STATUS_OK;
}

static stw_status replace(editor *e, const stw_span *item, const char *value) {
    stw_status status = STW_STATUS_OK;
    const bool inside = item->kind == STW_SPAN_SCALAR || item->flow;
    char old[64] = "";
    if (e->raw && item->kind != STW_SPAN_SCALAR)
        return refuse(e, item->begin, "found a list or a map, expected a single value");
    e->at = item->begin;
    if (!inside || item->end <= item->begin) status = after_colon(e, item, &e->at);
    if (status != STW_STATUS_OK) return status;
    e->cut = item->end > e->at ? item->end - e->at : 0;
    if (item->quoted && item->end - item->begin < sizeof old && item->end >= item->begin + 2)
        memcpy(old, e->text + item->begin + 1, item->end - item->begin - 2);
    if (e->at != item->begin || item->end == item->begin) stw_text_append(&e->put, " ", 1);
    put_value(e, value, stw_tree_is_bare(old));
    return STW_STATUS_OK;
}

/* A member that has its line alone goes with it. */
static void remove_flow(editor *e, const place *at) {
    const stw_span *map = at->map, *item = at->item;
    const size_t i = (size_t)(item - map->items);
    const bool last = i + 1 == map->n;
    size_t end = item->end, comma = end + strspn(e->text + end, " \t\r\n");
    const bool has_comma = comma < e->length && e->text[comma] == ',';
    if (has_comma) end = comma + 1;
    const size_t rest = strspn(e->text + end, " \t\r");
    if (begins_line(e, item->key_begin) && end + rest < e->length && e->text[end + rest] == '\n') {
        e->at = line_begin(e, item->key_begin);
        e->cut = end + rest + 1 - e->at;
        if (!last || i == 0 || has_comma) return;
        const stw_span *previous = &map->items[i - 1]; /* its comma */
        e->gap_at = previous->end + strcspn(e->text + previous->end, ",");
        e->gap = e->text[e->gap_at] == ',' && e->gap_at < e->at;
    } else if (last && i > 0) {
        e->at = map->items[i - 1].end;
        e->cut = item->end - e->at;
    } else {
        e->at = item->key_begin;
        e->cut = (last ? end : map->items[i + 1].key_begin) - e->at;
    }
}

static stw_status remove_block(editor *e, const place *at) {
    size_t colon = 0;
    stw_status status = check_begins(e, at->item);
    e->at = line_begin(e, at->item->key_begin);
    e->cut = next_line(e, at->item->end) - e->at;
    if (status != STW_STATUS_OK || at->map->n > 1) return status;
    if (at->parent == NULL) return refuse(e, at->item->key_begin, "it is the only key");
    /* the map stays, empty: its key's line is above */
    status = after_colon(e, at->parent, &colon);
    if (status != STW_STATUS_OK) return status;
    stw_text_append(&e->put, " {}", 3);
    stw_text_append(&e->put, e->text + colon, e->at - colon);
    e->cut += e->at - colon;
    e->at = colon;
    return STW_STATUS_OK;
}

/* Members have mostly kept their place. */
static const stw_node *member(const stw_node *map, const char *key, size_t near) {
    for (size_t i = near > 0 ? near - 1 : 0; i < map->n_items && i <= near + 1; i++)
        if (strcmp(map->items[i]->key, key) == 0) return map->items[i];
    return stw_node_get(map, key);
}

/* Is each member of x in y, with the same value, but for the one at `path`? An empty map may be
 * none. */
static bool same_members(const stw_node *x, const stw_node *y, const char *path);

static bool same(const stw_node *a, const stw_node *b, const char *path) {
    if ((a->kind == STW_NODE_NULL && b->kind == STW_NODE_OBJECT && b->n_items == 0) ||
        (b->kind == STW_NODE_NULL && a->kind == STW_NODE_OBJECT && a->n_items == 0))
        return true;
    if (a->kind != b->kind) return false;
    if (a->kind == STW_NODE_OBJECT) return same_members(a, b, path) && same_members(b, a, path);
    if (a->kind != STW_NODE_ARRAY) return strcmp(a->text, b->text) == 0;
    bool all = a->n_items == b->n_items;
    for (size_t i = 0; i < a->n_items && all; i++) all = same(a->items[i], b->items[i], NULL);
    return all;
}

static bool same_members(const stw_node *x, const stw_node *y, const char *path) {
    for (size_t i = 0; i < x->n_items; i++) {
        const stw_node *item = x->items[i], *other = member(y, item->key, i);
        const size_t n = strlen(item->key);
        const char *below = NULL;
        if (path != NULL && strncmp(path, item->key, n) == 0 && path[n] == '.')
            below = path + n + 1;
        if (path != NULL && strcmp(path, item->key) == 0) continue;
        if (below != NULL && /* made with what is below it */
            (other == NULL || item->kind != STW_NODE_OBJECT || other->kind != STW_NODE_OBJECT))
            continue;
        if (other == NULL || !same(item, other, below)) return false;
    }
    return true;
}

/* As those who open the document read it: of a YAML map in braces, an edit may leave what begins as
 * JSON does. */
static stw_status parse(const editor *e, const char *text, size_t length, stw_tree **out) {
    return is_json(e, text, length) ? stw_tree_parse_json(e->file, text, length, out, NULL)
                                    : stw_tree_parse_yaml(e->file, text, length, out, NULL);
}

/* Values may be no text, and layouts stranger than an editor knows. */
static stw_status check_alone(const editor *e, const stw_text *text, const char *path) {
    stw_tree *before = NULL, *after = NULL;
    stw_status status = parse(e, e->text, e->length, &before);
    if (status == STW_STATUS_OK) status = parse(e, text->data, text->length, &after);
    const bool alone = status == STW_STATUS_OK && same(before->root, after->root, path);
    stw_tree_free(before);
    stw_tree_free(after);
    if (status == STW_STATUS_NO_MEMORY) return stw_fail(e->err, status, e->file, "out of memory");
    return alone ? STW_STATUS_OK : refuse(e, e->at, "a key cannot be changed in place here");
}

static stw_status apply(editor *e, const char *path, stw_text *text) {
    stw_text out = STW_TEXT_INIT;
    stw_status status = stw_text_status(&e->put, e->err);
    if (status != STW_STATUS_OK) return status;
    const size_t after = e->at + e->cut;
    if (e->gap > 0) {
        stw_text_append(&out, e->text, e->gap_at);
        stw_text_append(&out, e->text + e->gap_at + e->gap, e->at - e->gap_at - e->gap);
    } else {
        stw_text_append(&out, e->text, e->at);
    }
    if (e->put.length > 0) stw_text_append(&out, e->put.data, e->put.length);
    stw_text_append(&out, e->text + after, e->length - after);
    status = stw_text_status(&out, e->err);
    if (status == STW_STATUS_OK && out.data != NULL) status = check_alone(e, &out, path);
    if (status != STW_STATUS_OK) {
        stw_text_free(&out);
        return status;
    }
    stw_text_free(text);
    *text = out;
    return STW_STATUS_OK;
}

static stw_status put(const char *file, stw_text *text, const char *path, const char *value,
                      bool raw, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    stw_span root;
    place at = {NULL, NULL, NULL, path};
    editor e = {.file = file, .length = text->length, .raw = raw, .put = STW_TEXT_INIT, .err = err};
    e.text = text->data != NULL ? text->data : "";
    e.json = is_json(&e, e.text, e.length);
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    STW_TRY(stw_spans_read(file, e.text, e.length, e.json, pool, &root, err));
    if (root.kind != STW_SPAN_MAP)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, file, "found no map of keys"));
    const bool found = find(NULL, &root, path, &at);
    if (!found && value == NULL) goto out;
    if (!found) {
        at = deepest(&root, path);
        STW_TRY(add(&e, &at, value));
    } else if (value != NULL) {
        STW_TRY(replace(&e, at.item, value));
    } else if (at.map->flow) {
        remove_flow(&e, &at);
    } else {
        STW_TRY(remove_block(&e, &at));
    }
    STW_TRY(apply(&e, path, text));
out:
    stw_text_free(&e.put);
    stw_pool_free(pool);
    return status;
}

stw_status stw_tree_put(const char *file, stw_text *text, const char *path, const char *value,
                        stw_error *err) {
    return put(file, text, path, value, false, err);
}

stw_status stw_yaml_put(const char *file, stw_text *text, const char *path, const char *value,
                        stw_error *err) {
    return put(file, text, path, value, true, err);
}

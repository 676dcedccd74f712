/* SPDX-License-Identifier: Apache-2.0 */
/* Fill a spec: from a tree (YAML, or the JSON of a plan), from `--set`, and from the defaults. */
#include <stdio.h>
#include <string.h>

#include "plan/spec/run_spec.h"
#include "plan/spec/spec_scalar.h"

enum { LONGEST_KEY = 96, MOST_SIBLINGS = 64, LONGEST_SIBLING = 40 };

static stw_status refuse_node(const stw_spec_source *from, const char *key, const stw_node *node,
                              const char *expected, stw_error *err) {
    char found[192];
    stw_node_describe(node, found, sizeof found);
    stw_spec_source place = stw_spec_at(from, node->line, node->column);
    return stw_spec_refuse(&place, key, found, expected, err);
}

static bool is_bare_number(const char *text) {
    double value;
    return text[0] != '\0' && strspn(text, "0123456789.eE+-") == strlen(text) &&
           stw_quantity_parse(text, STW_UNIT_RATIO, &value, NULL, NULL) == STW_STATUS_OK;
}

/* Read a scalar of the row's type. A number in quotes is a string: its writer may expect a key of
 * another type. */
static stw_status read_scalar(const stw_spec_source *from, const stw_spec_row *row,
                              const stw_node *node, stw_error *err) {
    bool string = node->kind == STW_NODE_STRING;
    bool number = node->kind == STW_NODE_INT || node->kind == STW_NODE_REAL;
    const char *other = NULL;
    bool fits = string;
    switch (row->kind) {
    case STW_SPEC_BOOL:
        fits = node->kind == STW_NODE_BOOL;
        other = "true or false";
        break;
    case STW_SPEC_COUNT:
        fits = number || (string && !is_bare_number(node->text));
        other = "a whole number";
        break;
    case STW_SPEC_BYTES:
    case STW_SPEC_NUMBER:
        fits = number || (string && !is_bare_number(node->text));
        other = stw_unit_expected(row->unit);
        break;
    case STW_SPEC_MAP:
        other = "a map";
        break;
    case STW_SPEC_WORDS:
        fits = string || node->kind == STW_NODE_BOOL; /* true and false may be words */
        break;
    default:
        other = "a string";
        break;
    }
    fits = fits || (string && stw_spec_is_search(from, row, node->text));
    if (!fits) {
        char expected[320];
        stw_spec_expected(row, other, expected, sizeof expected);
        return refuse_node(from, row->key, node, expected, err);
    }
    stw_spec_source place = stw_spec_at(from, node->line, node->column);
    return stw_spec_put_scalar(&place, row, node->text, err);
}

static stw_status read_pair(const stw_spec_source *from, const stw_spec_row *row,
                            const stw_node *node, stw_error *err) {
    if (node->kind != STW_NODE_ARRAY || node->n_items != 2)
        return refuse_node(from, row->key, node, "a list of two numbers", err);
    for (size_t i = 0; i < 2; i++) {
        const stw_node *item = node->items[i];
        if (item->kind != STW_NODE_INT && item->kind != STW_NODE_REAL)
            return refuse_node(from, row->key, item, "a number", err);
        stw_spec_source place = stw_spec_at(from, item->line, item->column);
        stw_status status = stw_spec_put_number(&place, row, i, item->text, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

static stw_status read_strings(const stw_spec_source *from, const stw_spec_row *row,
                               const stw_node *node, stw_error *err) {
    const bool one = node->kind == STW_NODE_STRING && node->text[0] != '\0'; /* a list of one */
    if (!one && (node->kind != STW_NODE_ARRAY || node->n_items > UINT32_MAX))
        return refuse_node(from, row->key, node, "a list of strings", err);
    const size_t n = one ? 1 : node->n_items;
    stw_strings list = {(uint32_t)n, NULL};
    list.items = stw_pool_array(from->spec->pool, n, sizeof *list.items);
    if (list.items == NULL) return stw_spec_no_memory(from, err);
    for (size_t i = 0; i < n; i++) {
        const stw_node *item = one ? node : node->items[i];
        if (item->kind != STW_NODE_STRING || item->text[0] == '\0')
            return refuse_node(from, row->key, item, "a string that is not empty", err);
        stw_spec_source place = stw_spec_at(from, item->line, item->column);
        stw_status status = stw_spec_check_text(&place, row, item->text, err);
        if (status != STW_STATUS_OK) return status;
        list.items[i] = stw_pool_string(from->spec->pool, item->text);
        if (list.items[i] == NULL) return stw_spec_no_memory(from, err);
    }
    memcpy((char *)from->spec->base + row->offset, &list, sizeof list);
    return STW_STATUS_OK;
}

static stw_status read_flags(const stw_spec_source *from, const stw_spec_row *row,
                             const stw_node *node, stw_error *err) {
    char expected[320];
    bool *flags = (bool *)((char *)from->spec->base + row->offset);
    stw_spec_expected(row, NULL, expected, sizeof expected);
    const bool one = node->kind == STW_NODE_STRING; /* a list of one */
    if (!one && node->kind != STW_NODE_ARRAY)
        return refuse_node(from, row->key, node, "a list", err);
    for (const stw_spec_word *w = row->words; w->word != NULL; w++) flags[w->value] = false;
    for (size_t i = 0; i < (one ? 1 : node->n_items); i++) {
        const stw_node *item = one ? node : node->items[i];
        const stw_spec_word *w = row->words;
        while (w->word != NULL &&
               (item->kind != STW_NODE_STRING || strcmp(w->word, item->text) != 0))
            w++;
        if (w->word == NULL) return refuse_node(from, row->key, item, expected, err);
        flags[w->value] = true;
    }
    return STW_STATUS_OK;
}

static stw_status read_map(const stw_spec_source *from, const char *map, const stw_node *node,
                           stw_error *err);

/* A new list of items in the pool, each with its defaults. */
static stw_status make_items(const stw_spec_source *from, const stw_spec_row *row, size_t n,
                             char **out, stw_error *err) {
    *out = stw_pool_array(from->spec->pool, n, row->items->item_size);
    if (*out == NULL) return stw_spec_no_memory(from, err);
    for (size_t i = 0; i < n; i++) {
        stw_spec item = {row->items->table, *out + i * row->items->item_size, from->spec->pool,
                         NULL};
        stw_status status = stw_spec_defaults(&item, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

static void put_items(const stw_spec_source *from, const stw_spec_row *row, const void *items,
                      size_t n) {
    char *base = from->spec->base;
    uint32_t count = (uint32_t)n;
    memcpy(base + row->offset, &items, sizeof items);
    memcpy(base + row->items->count_offset, &count, sizeof count);
}

static stw_status read_items(const stw_spec_source *from, const stw_spec_row *row,
                             const stw_node *node, stw_error *err) {
    char *items = NULL;
    if (node->kind != STW_NODE_ARRAY || node->n_items > STW_SPEC_MAX_ITEMS)
        return refuse_node(from, row->key, node, "a list of at most 64 maps", err);
    stw_status status = make_items(from, row, node->n_items, &items, err);
    for (size_t i = 0; i < node->n_items && status == STW_STATUS_OK; i++) {
        char prefix[LONGEST_KEY];
        snprintf(prefix, sizeof prefix, "%s.%zu.", row->key, i);
        stw_spec item = {row->items->table, items + i * row->items->item_size, from->spec->pool,
                         NULL};
        stw_spec_source inner = *from;
        inner.spec = &item;
        inner.prefix = prefix;
        status = read_map(&inner, "", node->items[i], err);
    }
    if (status == STW_STATUS_OK) put_items(from, row, items, node->n_items);
    return status;
}

/* Rows of a switched-off map back to their defaults. */
static stw_status reset_map(const stw_spec_source *from, const stw_spec_row *map, stw_error *err);

static stw_status read_row(const stw_spec_source *from, const stw_spec_row *row,
                           const stw_node *node, stw_error *err) {
    switch (row->kind) {
    case STW_SPEC_PAIR:
        return read_pair(from, row, node, err);
    case STW_SPEC_STRINGS:
        return read_strings(from, row, node, err);
    case STW_SPEC_FLAGS:
        return read_flags(from, row, node, err);
    case STW_SPEC_ITEMS:
        return read_items(from, row, node, err);
    case STW_SPEC_MAP: {
        if (node->kind == STW_NODE_OBJECT) return read_map(from, row->key, node, err);
        stw_status status = read_scalar(from, row, node, err);
        return status == STW_STATUS_OK ? reset_map(from, row, err) : status;
    }
    default:
        return read_scalar(from, row, node, err);
    }
}

/* The known keys directly inside `map`, each once. */
static size_t siblings(const stw_spec_table *table, const char *map,
                       char names[][LONGEST_SIBLING]) {
    size_t n = 0, length = strlen(map), skip = length > 0 ? length + 1 : 0;
    for (size_t i = 0; i < table->n_rows && n < MOST_SIBLINGS; i++) {
        const char *key = table->rows[i].key;
        if (strncmp(key, map, length) != 0 || (length > 0 && key[length] != '.')) continue;
        snprintf(names[n], LONGEST_SIBLING, "%.*s", (int)strcspn(key + skip, "."), key + skip);
        if (n == 0 || strcmp(names[n], names[n - 1]) != 0) n++;
    }
    return n;
}

/* "a map of keys (granularity, method, ...)" */
static stw_status refuse_no_map(const stw_spec_source *from, const char *map, const stw_node *node,
                                stw_error *err) {
    char names[MOST_SIBLINGS][LONGEST_SIBLING], expected[320];
    size_t n = map[0] != '\0' ? siblings(from->spec->table, map, names) : 0;
    size_t used = (size_t)snprintf(expected, sizeof expected, "a map of keys");
    for (size_t i = 0; i < n && used < sizeof expected; i++)
        used += (size_t)snprintf(expected + used, sizeof expected - used, "%s%.39s%s",
                                 i == 0 ? " (" : ", ", names[i], i + 1 == n ? ")" : "");
    return refuse_node(from, map[0] != '\0' ? map : "spec", node, expected, err);
}

/* "rank:8" in braces: YAML takes it for one key without a value. */
static stw_status refuse_joined(const stw_spec_source *from, const char *key, size_t length,
                                stw_error *err) {
    char quoted[160];
    stw_text_quote(key, quoted, sizeof quoted);
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, from->file, from->line, from->column,
                       "found %s, which YAML reads as one key; write a space after the colon: "
                       "{%.*s: %.60s}",
                       quoted, (int)length, key, key + length + 1);
}

static bool is_joined(const stw_spec_source *from, const char *map, const char *key,
                      const stw_node *node) {
    char full[LONGEST_KEY];
    const size_t length = strcspn(key, ":");
    if (key[length] != ':' || key[length + 1] == '\0' || node->kind != STW_NODE_NULL) return false;
    const int n =
        snprintf(full, sizeof full, "%s%s%.*s", map, map[0] != '\0' ? "." : "", (int)length, key);
    return n > 0 && n < LONGEST_KEY &&
           (stw_spec_find(from->spec->table, full, (size_t)n) != NULL ||
            stw_spec_is_map(from->spec->table, full, (size_t)n));
}

static stw_status refuse_key(const stw_spec_source *from, const char *map, const char *key,
                             stw_error *err) {
    char names[MOST_SIBLINGS][LONGEST_SIBLING], quoted[160], full[LONGEST_KEY * 2], hint[512];
    char spelt[LONGEST_KEY * 2];
    const char *pointers[MOST_SIBLINGS], *near[STW_SPEC_MOST_NEAR];
    const char *dot = map[0] != '\0' ? "." : "";
    const stw_spec_table *table = from->spec->table;
    size_t n = siblings(table, map, names), n_near = 0;
    for (size_t i = 0; i < n; i++) pointers[i] = names[i];
    snprintf(full, sizeof full, "%s%s%s%.100s", from->prefix, map, dot, key);
    stw_text_quote(full, quoted, sizeof quoted);
    const char *sibling = stw_nearest(key, pointers, n);
    if (sibling != NULL) {
        snprintf(spelt, sizeof spelt, "%s%s%s", map, dot, sibling);
        near[n_near++] = spelt;
    } else {
        n_near = stw_spec_near(&table, 1, full + strlen(from->prefix), near, STW_SPEC_MOST_NEAR);
    }
    stw_spec_hint(from->prefix, near, n_near, hint, sizeof hint);
    for (size_t i = 0, used = 0; n_near == 0 && i < n && used < sizeof hint; i++)
        used += (size_t)snprintf(hint + used, sizeof hint - used, "%s%s",
                                 i > 0 ? ", " : "; known here: ", names[i]);
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, from->file, from->line, from->column,
                       "unknown key %s%s", quoted, hint);
}

static stw_status read_member(const stw_spec_source *from, const char *key, const stw_node *node,
                              stw_error *err) {
    const stw_spec_row *row = stw_spec_find(from->spec->table, key, strlen(key));
    if (row == NULL && node->kind == STW_NODE_STRING && strcmp(node->text, "auto") == 0) {
        char search[LONGEST_KEY];
        int length = snprintf(search, sizeof search, "%s.search", key);
        if (length > 0 && length < LONGEST_KEY)
            row = stw_spec_find(from->spec->table, search, (size_t)length);
    }
    return row != NULL ? read_row(from, row, node, err) : read_map(from, key, node, err);
}

static stw_status read_map(const stw_spec_source *from, const char *map, const stw_node *node,
                           stw_error *err) {
    const stw_spec_table *table = from->spec->table;
    if (node->kind != STW_NODE_OBJECT) return refuse_no_map(from, map, node, err);
    for (size_t i = 0; i < node->n_items; i++) {
        const stw_node *item = node->items[i];
        char key[LONGEST_KEY];
        int length = snprintf(key, sizeof key, "%s%s%s", map, map[0] != '\0' ? "." : "", item->key);
        /* A key with a dot in it could say twice what nested maps say once. */
        bool known = length > 0 && length < LONGEST_KEY && strchr(item->key, '.') == NULL &&
                     item->key[0] != '\0' &&
                     (stw_spec_find(table, key, (size_t)length) != NULL ||
                      stw_spec_is_map(table, key, (size_t)length));
        if (!known) {
            stw_spec_source place = stw_spec_at(from, item->key_line, item->key_column);
            if (is_joined(from, map, item->key, item))
                return refuse_joined(&place, item->key, strcspn(item->key, ":"), err);
            return refuse_key(&place, map, item->key, err);
        }
        stw_status status = read_member(from, key, item, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

stw_status stw_spec_read(const stw_spec *spec, const stw_tree *tree, const stw_node *node,
                         stw_error *err) {
    stw_spec_source from = {.spec = spec,
                            .file = tree->file,
                            .prefix = "",
                            .has_lines = true,
                            .base_units = tree->json};
    if (node->kind == STW_NODE_NULL && node == tree->root) return STW_STATUS_OK; /* empty file */
    return read_map(&from, "", node, err);
}

/* A value as `--set` takes it: the scalar itself, a list or a map as in YAML. */
static stw_status set_member(const stw_spec_source *from, const char *key, const char *value,
                             stw_error *err) {
    const stw_spec_row *row = stw_spec_find(from->spec->table, key, strlen(key));
    bool yaml = row == NULL || row->kind == STW_SPEC_PAIR || row->kind == STW_SPEC_STRINGS ||
                row->kind == STW_SPEC_FLAGS || row->kind == STW_SPEC_ITEMS ||
                row->kind == STW_SPEC_MAP;
    if (!yaml) return stw_spec_put_scalar(from, row, value, err);
    stw_tree *tree = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_tree_parse_yaml(from->file, value, strlen(value), &tree, err));
    status = read_member(from, key, tree->root, err);
out:
    stw_tree_free(tree);
    return status;
}

static stw_status set_default(const stw_spec_source *from, const stw_spec_row *row,
                              stw_error *err) {
    return row->fallback != NULL ? set_member(from, row->key, row->fallback, err) : STW_STATUS_OK;
}

static stw_status reset_map(const stw_spec_source *from, const stw_spec_row *map, stw_error *err) {
    const stw_spec_table *table = from->spec->table;
    size_t length = strlen(map->key);
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < table->n_rows && status == STW_STATUS_OK; i++) {
        const char *key = table->rows[i].key;
        if (strncmp(key, map->key, length) == 0 && key[length] == '.')
            status = set_default(from, &table->rows[i], err);
    }
    return status;
}

stw_status stw_spec_defaults(const stw_spec *spec, stw_error *err) {
    stw_spec_source from = {.spec = spec, .file = "default", .prefix = ""};
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < spec->table->n_rows && status == STW_STATUS_OK; i++)
        status = set_default(&from, &spec->table->rows[i], err);
    return status;
}

/* The item row that "roles.0.name" goes through, its index, and the key inside the item. */
static const stw_spec_row *item_row(const stw_spec_table *table, const char *key, size_t *index,
                                    const char **rest) {
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        size_t head = strlen(row->key);
        if (row->kind != STW_SPEC_ITEMS || strncmp(key, row->key, head) != 0 || key[head] != '.')
            continue;
        const char *digits = key + head + 1;
        size_t n = strspn(digits, "0123456789");
        if (n == 0 || n > 3 || digits[n] != '.') return NULL;
        *index = 0;
        for (size_t d = 0; d < n; d++) *index = *index * 10 + (size_t)(digits[d] - '0');
        *rest = digits + n + 1;
        return row;
    }
    return NULL;
}

static stw_status set_in_item(const stw_spec_source *from, const stw_spec_row *row, size_t index,
                              const char *rest, const char *value, stw_error *err) {
    uint32_t n = 0;
    char *items = NULL, *grown = NULL, prefix[LONGEST_KEY];
    memcpy(&n, (char *)from->spec->base + row->items->count_offset, sizeof n);
    memcpy(&items, (char *)from->spec->base + row->offset, sizeof items);
    if (index > n || index >= STW_SPEC_MAX_ITEMS) {
        char found[64], expected[96];
        snprintf(found, sizeof found, "index %zu", index);
        snprintf(expected, sizeof expected, "0 to %u (%u appends an item)", (unsigned)n,
                 (unsigned)n);
        return stw_spec_refuse(from, row->key, found, expected, err);
    }
    const uint32_t now = index == n ? n + 1u : n; /* a list of its own: copies of a spec share it */
    stw_status made = make_items(from, row, now, &grown, err);
    if (made != STW_STATUS_OK) return made;
    if (n > 0) memcpy(grown, items, n * row->items->item_size);
    items = grown;
    snprintf(prefix, sizeof prefix, "%s.%zu.", row->key, index);
    stw_spec item = {row->items->table, items + index * row->items->item_size, from->spec->pool,
                     NULL};
    stw_spec_source inner = *from;
    inner.spec = &item;
    inner.prefix = prefix;
    if (!stw_spec_has_key(item.table, rest)) return refuse_key(&inner, "", rest, err);
    stw_status status = set_member(&inner, rest, value, err);
    if (status == STW_STATUS_OK) put_items(from, row, grown, now);
    return status;
}

stw_status stw_spec_set(const stw_spec *spec, const char *key, const char *value,
                        const char *origin, stw_error *err) {
    stw_spec_source from = {.spec = spec, .file = origin, .prefix = ""};
    size_t index = 0, length = strlen(key);
    const char *rest = NULL;
    const stw_spec_row *row = item_row(spec->table, key, &index, &rest);
    if (row != NULL) return set_in_item(&from, row, index, rest, value, err);
    if (length == 0 || length >= LONGEST_KEY ||
        (stw_spec_find(spec->table, key, length) == NULL &&
         !stw_spec_is_map(spec->table, key, length)))
        return refuse_key(&from, "", key, err);
    return set_member(&from, key, value, err);
}

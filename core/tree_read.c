/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "core/tree.h"

const stw_node *stw_node_get(const stw_node *node, const char *key) {
    if (node == NULL || node->kind != STW_NODE_OBJECT) return NULL;
    for (size_t i = 0; i < node->n_items; i++)
        if (strcmp(node->items[i]->key, key) == 0) return node->items[i];
    return NULL;
}

const stw_node *stw_node_path(const stw_node *node, const char *path) {
    while (node != NULL && node->kind == STW_NODE_OBJECT) {
        size_t length = strcspn(path, ".");
        const stw_node *found = NULL;
        for (size_t i = 0; i < node->n_items && found == NULL; i++) {
            const char *key = node->items[i]->key;
            if (strncmp(key, path, length) == 0 && key[length] == '\0') found = node->items[i];
        }
        if (found == NULL || found->kind == STW_NODE_NULL) return NULL;
        if (path[length] == '\0') return found;
        path += length + 1;
        node = found;
    }
    return NULL;
}

void stw_node_describe(const stw_node *node, char *out, size_t out_size) {
    char quoted[160];
    switch (node->kind) {
    case STW_NODE_NULL:
        snprintf(out, out_size, "null");
        return;
    case STW_NODE_BOOL:
        snprintf(out, out_size, "%s", node->boolean ? "true" : "false");
        return;
    case STW_NODE_ARRAY:
        snprintf(out, out_size, "an array");
        return;
    case STW_NODE_OBJECT:
        snprintf(out, out_size, "an object");
        return;
    case STW_NODE_STRING:
        stw_text_quote(node->text, quoted, sizeof quoted);
        snprintf(out, out_size, "the string %s", quoted);
        return;
    case STW_NODE_INT:
    case STW_NODE_REAL:
        stw_text_quote(node->text, quoted, sizeof quoted); /* numbers can be long, too */
        quoted[strlen(quoted) - 1] = '\0';
        snprintf(out, out_size, "the number %s", quoted + 1);
        return;
    }
}

stw_status stw_node_fail(const stw_tree *tree, const stw_node *node, const char *expected,
                         stw_error *err) {
    char found[192], key[160] = "";
    stw_node_describe(node, found, sizeof found);
    if (node->key != NULL) stw_text_quote(node->key, key, sizeof key);
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, node->line, node->column,
                       "%s%sfound %s, expected %s", key, key[0] != '\0' ? ": " : "", found,
                       expected);
}

/* A required member. */
static stw_status require(const stw_tree *tree, const stw_node *parent, const char *key,
                          const char *expected, const stw_node **out, stw_error *err) {
    if (parent != NULL && parent->kind != STW_NODE_OBJECT) {
        char wanted[160];
        snprintf(wanted, sizeof wanted, "an object with the key \"%.80s\"", key);
        return stw_node_fail(tree, parent, wanted, err);
    }
    *out = stw_node_get(parent, key);
    if (*out != NULL) return STW_STATUS_OK;
    char inside[192] = "";
    if (parent != NULL && parent->key != NULL) {
        char quoted[160];
        stw_text_quote(parent->key, quoted, sizeof quoted);
        snprintf(inside, sizeof inside, " in %s", quoted);
    }
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, parent != NULL ? parent->line : 0,
                       parent != NULL ? parent->column : 0,
                       "the key \"%.80s\" is missing%s, expected %s", key, inside, expected);
}

static stw_status require_kind(const stw_tree *tree, const stw_node *parent, const char *key,
                               stw_node_kind kind, const char *expected, const stw_node **out,
                               stw_error *err) {
    const stw_node *node = NULL;
    stw_status status = require(tree, parent, key, expected, &node, err);
    if (status != STW_STATUS_OK) return status;
    if (node->kind != kind) return stw_node_fail(tree, node, expected, err);
    *out = node;
    return STW_STATUS_OK;
}

stw_status stw_node_object(const stw_tree *tree, const stw_node *parent, const char *key,
                           const stw_node **out, stw_error *err) {
    return require_kind(tree, parent, key, STW_NODE_OBJECT, "an object", out, err);
}

stw_status stw_node_array(const stw_tree *tree, const stw_node *parent, const char *key,
                          const stw_node **out, stw_error *err) {
    return require_kind(tree, parent, key, STW_NODE_ARRAY, "an array", out, err);
}

stw_status stw_node_string(const stw_tree *tree, const stw_node *parent, const char *key,
                           const char **out, stw_error *err) {
    const stw_node *node = NULL;
    stw_status status = require_kind(tree, parent, key, STW_NODE_STRING, "a string", &node, err);
    if (status == STW_STATUS_OK) *out = node->text;
    return status;
}

stw_status stw_node_u64(const stw_tree *tree, const stw_node *parent, const char *key,
                        uint64_t *out, stw_error *err) {
    const char *expected = "a whole number, not negative";
    const stw_node *node = NULL;
    stw_status status = require(tree, parent, key, expected, &node, err);
    if (status != STW_STATUS_OK) return status;
    if (node->kind == STW_NODE_INT && node->integer >= 0) {
        *out = (uint64_t)node->integer;
        return STW_STATUS_OK;
    }
    /* 1e9 and 4096.0 are whole numbers too; a double is exact up to 2^53 */
    if (node->kind == STW_NODE_REAL && node->real >= 0 && node->real <= 9007199254740992.0 &&
        (double)(uint64_t)node->real == node->real) {
        *out = (uint64_t)node->real;
        return STW_STATUS_OK;
    }
    return stw_node_fail(tree, node, expected, err);
}

stw_status stw_node_double(const stw_tree *tree, const stw_node *parent, const char *key,
                           double *out, stw_error *err) {
    const stw_node *node = NULL;
    stw_status status = require(tree, parent, key, "a number", &node, err);
    if (status != STW_STATUS_OK) return status;
    if (node->kind != STW_NODE_INT && node->kind != STW_NODE_REAL)
        return stw_node_fail(tree, node, "a number", err);
    *out = node->real;
    return STW_STATUS_OK;
}

stw_status stw_node_bool(const stw_tree *tree, const stw_node *parent, const char *key, bool *out,
                         stw_error *err) {
    const stw_node *node = NULL;
    stw_status status = require_kind(tree, parent, key, STW_NODE_BOOL, "true or false", &node, err);
    if (status == STW_STATUS_OK) *out = node->boolean;
    return status;
}

static stw_status fail_unknown(const stw_tree *tree, const stw_node *item, const char *const *known,
                               size_t n_known, stw_error *err) {
    char key[160], list[400] = "";
    size_t used = 0;
    for (size_t i = 0; i < n_known && used < sizeof list; i++)
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", known[i]);
    if (used >= sizeof list) memcpy(list + sizeof list - 4, "...", 4);
    stw_text_quote(item->key, key, sizeof key);
    const char *near = stw_nearest(item->key, known, n_known);
    if (near != NULL)
        return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, item->key_line, item->key_column,
                           "found the unknown key %s, did you mean \"%s\"? (known: %s)", key, near,
                           list);
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, item->key_line, item->key_column,
                       "found the unknown key %s, expected %s%s", key,
                       n_known == 0 ? "no key" : "one of ", list);
}

stw_status stw_node_known(const stw_tree *tree, const stw_node *object, const char *const *known,
                          size_t n_known, stw_error *err) {
    /* absent or empty: every key keeps its default */
    if (object == NULL || object->kind == STW_NODE_NULL) return STW_STATUS_OK;
    if (object->kind != STW_NODE_OBJECT) return stw_node_fail(tree, object, "an object", err);
    for (size_t i = 0; i < object->n_items; i++) {
        bool found = false;
        for (size_t k = 0; k < n_known && !found; k++)
            found = strcmp(object->items[i]->key, known[k]) == 0;
        if (!found) return fail_unknown(tree, object->items[i], known, n_known, err);
    }
    return STW_STATUS_OK;
}

enum { LONGEST_WORD = 63, SHORTEST_BEGINNING = 3 };

/* Edit distance of two short words, ignoring case; limit + 1 where it is above `limit`. */
static size_t edit_distance(const char *a, size_t n_a, const char *b, size_t n_b, size_t limit) {
    size_t row[LONGEST_WORD + 1];
    if (n_a > n_b + limit || n_b > n_a + limit) return limit + 1;
    for (size_t j = 0; j <= n_b; j++) row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0], least = i;
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            size_t best = diagonal + (same ? 0 : 1);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
            if (best < least) least = best;
        }
        if (least > limit) return limit + 1;
    }
    return row[n_b];
}

/* The only candidate that begins with the word, NULL if there are none or several. */
static const char *completion(const char *word, const char *const *candidates, size_t n) {
    const char *found = NULL;
    size_t n_word = strlen(word);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(candidates[i], word, n_word) != 0) continue;
        if (found != NULL) return NULL;
        found = candidates[i];
    }
    return found;
}

const char *stw_nearest(const char *word, const char *const *candidates, size_t n_candidates) {
    size_t n_word = strlen(word);
    if (n_word == 0 || n_word > LONGEST_WORD) return NULL;
    size_t limit = n_word / 3 > 2 ? n_word / 3 : 2;
    const char *best =
        n_word >= SHORTEST_BEGINNING ? completion(word, candidates, n_candidates) : NULL;
    if (best != NULL) limit = 1; /* like a word with one letter wrong */
    for (size_t i = 0; i < n_candidates; i++) {
        size_t n = strlen(candidates[i]);
        if (n > LONGEST_WORD) continue;
        size_t distance = edit_distance(word, n_word, candidates[i], n, limit);
        /* words that share no letter are not near, however short they are */
        if (distance > limit || distance >= (n > n_word ? n : n_word)) continue;
        best = candidates[i];
        if (distance == 0) break;
        limit = distance - 1; /* from here on only a nearer one */
    }
    return best;
}

stw_status stw_tree_schema(const stw_tree *tree, const char *name, int major, stw_error *err) {
    char expected[160];
    snprintf(expected, sizeof expected, "\"%s/%d\"", name, major);
    const stw_node *node = NULL;
    stw_status status =
        require_kind(tree, tree->root, "schema", STW_NODE_STRING, expected, &node, err);
    if (status != STW_STATUS_OK) return status;
    size_t length = strlen(expected) - 2; /* without the quotes */
    const char *rest = node->text + length;
    if (strncmp(node->text, expected + 1, length) != 0)
        return stw_node_fail(tree, node, expected, err);
    /* later minor versions ("/1.2") only add keys */
    bool minor =
        rest[0] == '.' && rest[1] != '\0' && rest[1 + strspn(rest + 1, "0123456789")] == '\0';
    if (rest[0] != '\0' && !minor) return stw_node_fail(tree, node, expected, err);
    return STW_STATUS_OK;
}

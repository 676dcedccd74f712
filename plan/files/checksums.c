/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include "plan/files/checksums.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "plan/files/file_parts.h"

static const char member_name[] = "checksums";
static const char whole_name[] = "whole"; /* of all members but "checksums" */

static uint64_t mix(stw_node_kind kind, const void *bytes, size_t length) {
    return XXH3_64bits_withSeed(bytes, length, (uint64_t)kind + 1);
}

/* 7, 7.0 and 7e0 are the same; a whole number beyond 2^53 has no equal among doubles. */
static uint64_t of_number(const stw_node *node) {
    const double exact = 9007199254740992.0;
    int64_t whole = node->integer;
    bool is_whole = node->kind == STW_NODE_INT;
    if (!is_whole && fabs(node->real) <= exact && node->real == floor(node->real)) {
        whole = (int64_t)node->real;
        is_whole = true;
    }
    return is_whole ? mix(STW_NODE_INT, &whole, sizeof whole)
                    : mix(STW_NODE_REAL, &node->real, sizeof node->real);
}

static uint64_t of_member(const stw_node *item);

/* Recursion is as deep as the document, which its parser limits. */
static uint64_t value_of(const stw_node *node) {
    uint64_t sum[2] = {node->n_items, 0};
    switch (node->kind) {
    case STW_NODE_NULL:
        return mix(node->kind, "", 0);
    case STW_NODE_BOOL:
        return mix(node->kind, node->boolean ? "t" : "f", 1);
    case STW_NODE_STRING:
        return mix(node->kind, node->text, strlen(node->text));
    case STW_NODE_INT:
    case STW_NODE_REAL:
        return of_number(node);
    case STW_NODE_ARRAY:
        for (size_t i = 0; i < node->n_items; i++) {
            const uint64_t step[2] = {sum[1], value_of(node->items[i])};
            sum[1] = mix(node->kind, step, sizeof step);
        }
        return mix(node->kind, sum, sizeof sum);
    default: /* an object: in any order */
        for (size_t i = 0; i < node->n_items; i++) sum[1] += of_member(node->items[i]);
        return mix(node->kind, sum, sizeof sum);
    }
}

/* Sums of these are modulo 2^64. */
static uint64_t of_member(const stw_node *item) {
    const uint64_t member[2] = {mix(STW_NODE_STRING, item->key, strlen(item->key)), value_of(item)};
    return mix(STW_NODE_OBJECT, member, sizeof member);
}

/* Members that have their own checksums may come from several files; the whole binds them. */
static uint64_t of_whole(const stw_tree *tree) {
    uint64_t sum[2] = {0, 0};
    for (size_t i = 0; i < tree->root->n_items; i++) {
        const stw_node *item = tree->root->items[i];
        if (strcmp(item->key, member_name) == 0) continue;
        sum[0]++;
        sum[1] += of_member(item);
    }
    return mix(STW_NODE_OBJECT, sum, sizeof sum);
}

stw_status stw_checksums_append(stw_text *text, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL;
    STW_TRY(stw_text_status(text, err));
    STW_TRY(stw_tree_parse_json("the plan", text->data, text->length, &tree, err));
    const size_t end = strlen("\n}\n"); /* as core/json.h writes it */
    if (tree->root->n_items == 0 || strcmp(text->data + text->length - end, "\n}\n") != 0)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, member_name, "the text is no object with members"));
    text->length -= end;
    stw_text_printf(text, ",\n  \"%s\": {", member_name);
    stw_text_printf(text, "\n    \"%s\": \"%016" PRIx64 "\"", whole_name, of_whole(tree));
    for (size_t i = 0; i < tree->root->n_items; i++) {
        const stw_node *item = tree->root->items[i];
        if (strcmp(item->key, "schema") == 0) continue; /* its readers check it */
        stw_text_printf(text, ",\n    \"%s\": \"%016" PRIx64 "\"", item->key, value_of(item));
    }
    stw_text_printf(text, "\n  }\n}\n");
    status = stw_text_status(text, err);
out:
    stw_tree_free(tree);
    return status;
}

static stw_status check_member(const stw_tree *tree, const stw_node *stated, const stw_node *node,
                               const char *again, stw_error *err) {
    const bool plans = strcmp(again, "plan again") == 0;
    char digest[24], found[160];
    snprintf(digest, sizeof digest, "%016" PRIx64, value_of(node));
    if (stated->kind != STW_NODE_STRING) return stw_node_fail(tree, stated, "a checksum", err);
    if (strcmp(stated->text, digest) == 0) return STW_STATUS_OK;
    stw_text_quote(stated->text, found, sizeof found);
    return stw_part_fail(tree, node, err,
                         "%s: was changed since the file was written (its checksum is \"%s\", the "
                         "file states %s); %s%s",
                         node->key, digest, found, again,
                         plans ? " with other inputs instead" : "");
}

/* A member without a checksum was added; with one, it or another is of another file. */
static stw_status check_whole(const stw_tree *tree, const stw_node *list, const char *again,
                              stw_error *err) {
    const stw_node *stated = stw_node_get(list, whole_name);
    char digest[24];
    snprintf(digest, sizeof digest, "%016" PRIx64, of_whole(tree));
    for (size_t i = 0; i < tree->root->n_items; i++) {
        const stw_node *item = tree->root->items[i];
        if (strcmp(item->key, "schema") == 0 || strcmp(item->key, member_name) == 0 ||
            stw_node_get(list, item->key) != NULL)
            continue;
        return stw_part_fail(tree, item, err, "%s: was added since the file was written",
                             item->key);
    }
    if (stated->kind != STW_NODE_STRING) return stw_node_fail(tree, stated, "a checksum", err);
    if (strcmp(stated->text, digest) == 0) return STW_STATUS_OK;
    return stw_part_fail(tree, stated, err,
                         "%s.%s: the members are not those that the file was written with: some "
                         "were added, removed or copied from another %s; %s",
                         member_name, whole_name, strcmp(again, "run again") == 0 ? "run" : "plan",
                         again);
}

stw_status stw_checksums_check(const stw_tree *tree, const char *const *known, size_t n_known,
                               const char *again, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL;
    if (stw_node_get(tree->root, member_name) == NULL) {
        status = stw_part_fail(tree, tree->root, err,
                               "the key \"%s\" is missing: the file was changed, or an earlier "
                               "version wrote it; %s",
                               member_name, again);
        goto out;
    }
    STW_TRY(stw_node_object(tree, tree->root, member_name, &list, err));
    if (stw_node_get(list, whole_name) == NULL) {
        status = stw_part_fail(tree, list, err,
                               "%s.%s: is missing; the file was changed, or an earlier version "
                               "wrote it: %s",
                               member_name, whole_name, again);
        goto out;
    }
    for (size_t i = 0; i < n_known; i++) {
        const stw_node *stated = NULL;
        const char *text = NULL;
        STW_TRY(stw_node_string(tree, list, known[i], &text, err));
        stated = stw_node_get(list, known[i]);
        if (stw_node_get(tree->root, known[i]) == NULL)
            return stw_node_fail(tree, stated, "no checksum of a member that is missing", err);
    }
    for (size_t i = 0; i < list->n_items; i++) {
        const stw_node *stated = list->items[i], *node = stw_node_get(tree->root, stated->key);
        if (strcmp(stated->key, whole_name) == 0) continue;
        if (node == NULL)
            return stw_node_fail(tree, stated, "no checksum of a member that is missing", err);
        STW_TRY(check_member(tree, stated, node, again, err));
    }
    STW_TRY(check_whole(tree, list, again, err));
out:
    return status;
}

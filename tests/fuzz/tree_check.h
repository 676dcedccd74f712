/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold for every tree, whatever document it was read from; a violation aborts. */
#ifndef STW_TESTS_FUZZ_TREE_CHECK_H
#define STW_TESTS_FUZZ_TREE_CHECK_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/tree.h"
#include "core/units.h"

#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: violated: %s\n", __FILE__, __LINE__, #condition);              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A quantity that parses as whole bytes is the same quantity as a double. */
static inline void fuzz_check_quantity(const char *text) {
    uint64_t whole = 0;
    double real = 0;
    stw_error err = STW_ERROR_INIT;
    if (stw_u64_parse(text, STW_UNIT_BYTES, &whole, "key", &err) != STW_STATUS_OK) {
        FUZZ_CHECK(err.status == STW_STATUS_BAD_INPUT && err.text[0] != '\0');
    } else if (whole != STW_UNLIMITED) {
        FUZZ_CHECK(stw_quantity_parse(text, STW_UNIT_BYTES, &real, "key", NULL) == STW_STATUS_OK);
        FUZZ_CHECK(fabs(real - (double)whole) <= 0.5 + 1e-15 * real);
        char exact[64];
        uint64_t again = 0;
        stw_bytes_format_exact(whole, exact, sizeof exact);
        FUZZ_CHECK(stw_u64_parse(exact, STW_UNIT_BYTES, &again, "key", NULL) == STW_STATUS_OK);
        FUZZ_CHECK(again == whole);
    }
    for (int unit = STW_UNIT_BYTES; unit <= STW_UNIT_RATIO; unit++)
        if (stw_quantity_parse(text, (stw_unit)unit, &real, "key", NULL) == STW_STATUS_OK)
            FUZZ_CHECK(isfinite(real) && real >= 0);
}

static inline void fuzz_check_node(const stw_tree *tree, const stw_node *node,
                                   const stw_node *parent) {
    char described[200];
    FUZZ_CHECK(node->line >= 1 && node->column >= 1);
    bool is_member = parent != NULL && parent->kind == STW_NODE_OBJECT;
    FUZZ_CHECK((node->key != NULL) == is_member);
    FUZZ_CHECK(parent == NULL || node->line > parent->line ||
               (node->line == parent->line && node->column >= parent->column));
    if (is_member) {
        FUZZ_CHECK(node->key_line >= 1 && node->key_line <= node->line);
        FUZZ_CHECK(parent->n_items > 100 || stw_node_get(parent, node->key) == node);
    }
    stw_node_describe(node, described, sizeof described);
    FUZZ_CHECK(strlen(described) > 0 && strlen(described) < sizeof described - 1);
    bool is_container = node->kind == STW_NODE_ARRAY || node->kind == STW_NODE_OBJECT;
    FUZZ_CHECK((node->text == NULL) == is_container);
    FUZZ_CHECK(is_container || node->n_items == 0);
    if (node->text != NULL) fuzz_check_quantity(node->text);
    for (size_t i = 0; i < node->n_items; i++) fuzz_check_node(tree, node->items[i], node);
}

/* Either a whole tree or an error with a text; and the readers of a tree take it as it is. */
static inline void fuzz_check_tree(stw_status status, stw_tree *tree, const stw_error *err) {
    static const char *const known[] = {"schema", "engine", "parallel", "memory"};
    FUZZ_CHECK((status == STW_STATUS_OK) == (tree != NULL));
    FUZZ_CHECK(status == err->status);
    if (status != STW_STATUS_OK) {
        FUZZ_CHECK(status == STW_STATUS_BAD_INPUT && err->text[0] != '\0');
        FUZZ_CHECK(err->line >= 1 && err->column >= 1);
        return;
    }
    fuzz_check_node(tree, tree->root, NULL);
    stw_error other = STW_ERROR_INIT;
    if (stw_tree_schema(tree, "stowage.plan", 1, &other) != STW_STATUS_OK)
        FUZZ_CHECK(other.status == STW_STATUS_BAD_INPUT && other.text[0] != '\0');
    if (stw_node_known(tree, tree->root, known, 4, NULL) == STW_STATUS_OK)
        FUZZ_CHECK(tree->root->n_items <= 4);
    (void)stw_node_path(tree->root, "parallel.tp.x");
    stw_tree_free(tree);
}

#endif

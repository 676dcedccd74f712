/* SPDX-License-Identifier: Apache-2.0 */
/* JSON and YAML documents as trees; each node knows its line and column.
 *
 * jansson parses JSON; a second scan of the accepted text finds the positions. libyaml parses YAML
 * (core schema for plain scalars). Duplicate keys are refused, in YAML also anchors, aliases, tags
 * and multiple documents. A tree owns its nodes and strings. It is read-only once built and may
 * then be shared between threads. */
#ifndef STW_CORE_TREE_H
#define STW_CORE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pool.h"
#include "core/status.h"

typedef enum stw_node_kind {
    STW_NODE_NULL,
    STW_NODE_BOOL,
    STW_NODE_INT,
    STW_NODE_REAL,
    STW_NODE_STRING,
    STW_NODE_ARRAY,
    STW_NODE_OBJECT
} stw_node_kind;

typedef struct stw_node {
    stw_node_kind kind;
    int line, column;         /* 1-based, of the value's first character */
    const char *key;          /* name in the parent object, else NULL */
    int key_line, key_column; /* 1-based, of the key; 0 without key */
    const char *text;         /* scalars: as written (strings: decoded); NULL for arrays, objects */
    bool boolean;
    int64_t integer; /* INT */
    double real;     /* REAL, and INT as a double */
    size_t n_items;  /* ARRAY, OBJECT */
    struct stw_node **items;
} stw_node;

typedef struct stw_tree {
    stw_pool *pool;
    const char *file; /* for errors */
    bool json;        /* else YAML */
    stw_node *root;
} stw_tree;

/** Parse text of `length` bytes, with or without NUL. `file` is only used in errors. */
STW_MUST_USE stw_status stw_tree_parse_json(const char *file, const char *text, size_t length,
                                            stw_tree **out, stw_error *err);
STW_MUST_USE stw_status stw_tree_parse_yaml(const char *file, const char *text, size_t length,
                                            stw_tree **out, stw_error *err);
/** Read and parse a file; at most 256 MiB. */
STW_MUST_USE stw_status stw_tree_read_json(const char *path, stw_tree **out, stw_error *err);
STW_MUST_USE stw_status stw_tree_read_yaml(const char *path, stw_tree **out, stw_error *err);
void stw_tree_free(stw_tree *tree);

/** Member of an object, or NULL (also if `node` is NULL or not an object). */
const stw_node *stw_node_get(const stw_node *node, const char *key);
/** Member by dotted path, "text_config.hidden_size"; a null value counts as absent. */
const stw_node *stw_node_path(const stw_node *node, const char *path);
/** Describe a node for errors: "a string \"abc\"", "an object", "the number 7". */
void stw_node_describe(const stw_node *node, char *out, size_t out_size);
/** BAD_INPUT at the node: "found ..., expected <expected>". */
stw_status stw_node_fail(const stw_tree *tree, const stw_node *node, const char *expected,
                         stw_error *err);

/* Read a required member of a given type. BAD_INPUT with file, line and key if it is absent or has
 * another type. */
STW_MUST_USE stw_status stw_node_object(const stw_tree *tree, const stw_node *parent,
                                        const char *key, const stw_node **out, stw_error *err);
STW_MUST_USE stw_status stw_node_array(const stw_tree *tree, const stw_node *parent,
                                       const char *key, const stw_node **out, stw_error *err);
STW_MUST_USE stw_status stw_node_string(const stw_tree *tree, const stw_node *parent,
                                        const char *key, const char **out, stw_error *err);
STW_MUST_USE stw_status stw_node_u64(const stw_tree *tree, const stw_node *parent, const char *key,
                                     uint64_t *out, stw_error *err);
STW_MUST_USE stw_status stw_node_double(const stw_tree *tree, const stw_node *parent,
                                        const char *key, double *out, stw_error *err);
STW_MUST_USE stw_status stw_node_bool(const stw_tree *tree, const stw_node *parent, const char *key,
                                      bool *out, stw_error *err);
/** BAD_INPUT if a member is not in `known` (n names); the error names the nearest known one. */
STW_MUST_USE stw_status stw_node_known(const stw_tree *tree, const stw_node *object,
                                       const char *const *known, size_t n_known, stw_error *err);
/** The candidate nearest to `word` by edit distance, or NULL if none is near. A word of three
 * letters or more is near to the only candidate that begins with it. */
const char *stw_nearest(const char *word, const char *const *candidates, size_t n_candidates);
/** Check "schema": `name` + "/" + major (1 accepted); BAD_INPUT otherwise. */
STW_MUST_USE stw_status stw_tree_schema(const stw_tree *tree, const char *name, int major,
                                        stw_error *err);

#endif

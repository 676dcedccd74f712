/* SPDX-License-Identifier: Apache-2.0 */
/* The expression language of the architecture templates (models/arch): whole numbers, true, false,
 * 'strings', keys of a config.json and operators. Grammar, lowest precedence first:
 *
 *     a or b    a and b    not a    < <= > >= == !=    + -    * / // %    -a    (a)
 *     a / b                       b divides a; else the config is refused
 *     key, key.inner, list[a]     a key of the config: in the scope's object, then in the root
 *     default(key, a)             the key, or a if it is absent or null
 *     if(a, b, c)                 b if a is true, else c; only that one is evaluated
 *     has(key)                    present and not null         given(key)   present, may be null
 *     len(list)                   elements, 0 if absent        in(a, list)  false if absent
 *     i                           index of the block being built
 *
 * A binding (`let` in a template) names an expression. Inside its own expression the name refers to
 * the key of the config. A key that is missing or has another type is an error at its place in the
 * config. The caller owns the environment; one thread at a time uses it. */
#ifndef STW_MODELS_EXPRESSION_H
#define STW_MODELS_EXPRESSION_H

#include "core/tree.h"

typedef enum stw_value_kind { STW_VALUE_INT, STW_VALUE_BOOL, STW_VALUE_STRING } stw_value_kind;

typedef struct stw_value {
    stw_value_kind kind;
    int64_t integer;
    bool boolean;
    const char *text; /* STRING; not terminated */
    size_t length;
    const stw_node *node; /* the value in the config; NULL for computed values */
} stw_value;

typedef struct stw_binding {
    const char *name, *text;
    const char *file; /* source of the binding, for errors */
    int line;
    const stw_node *scope; /* object in which keys are looked up; NULL: only the root */
    bool busy;
} stw_binding;

typedef struct stw_environment {
    const stw_tree *tree;  /* the config */
    const stw_node *scope; /* object that is searched before the root; may be NULL */
    stw_binding *bindings;
    size_t n_bindings;
    bool has_index; /* whether `i` is defined */
    uint64_t index;
    const char *file; /* place of the expression, for errors */
    int line;
    const stw_node *last, *suspect; /* out: key read last; last key read that is 0 or negative */
    unsigned depth;
} stw_environment;

/** Value of an expression. BAD_INPUT at the config's key or at the template's row. */
STW_MUST_USE stw_status stw_expression_value(stw_environment *env, const char *text, stw_value *out,
                                             stw_error *err);
/** true or false; an empty text is true. */
STW_MUST_USE stw_status stw_expression_bool(stw_environment *env, const char *text, bool *out,
                                            stw_error *err);
/** A whole number, not negative. */
STW_MUST_USE stw_status stw_expression_size(stw_environment *env, const char *text, uint64_t *out,
                                            stw_error *err);
/** The same; a key of the config itself must be at least 1. */
STW_MUST_USE stw_status stw_expression_count(stw_environment *env, const char *text, uint64_t *out,
                                             stw_error *err);
/** "[a, b]": a shape of at most `max` positive sizes; "[]" has none. */
STW_MUST_USE stw_status stw_expression_shape(stw_environment *env, const char *text, uint32_t max,
                                             uint64_t *sizes, uint32_t *n, stw_error *err);
/** BAD_INPUT at the most likely key (`suspect`, then `last`), else at the config. */
stw_status stw_expression_blame(const stw_environment *env, stw_error *err, const char *format, ...)
    STW_PRINTF(3, 4);

#endif

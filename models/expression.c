/* SPDX-License-Identifier: Apache-2.0 */
/* The parser evaluates while it reads. Parts that must not be evaluated (the other branch of `if`,
 * the default of a key that is present) are read with `live` false. */
#include "models/expression.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_PATH = 160 };

typedef struct parser {
    stw_environment *env;
    const char *text, *at;
    bool live;
    stw_error *err;
} parser;

/* The meaning of a key: a value of the config, a binding, or nothing. */
typedef struct reference {
    char path[MAX_PATH];
    const stw_node *node; /* may be of kind null */
    stw_binding *binding;
    bool index; /* `i` */
} reference;

static stw_status parse_or(parser *p, stw_value *out);

static stw_status syntax(parser *p, const char *expected) {
    return stw_fail_at(p->err, STW_STATUS_BAD_INPUT, p->env->file, p->env->line, 0,
                       "in \"%.200s\" at character %zu: found %s%.20s%s, expected %s", p->text,
                       (size_t)(p->at - p->text) + 1, *p->at != '\0' ? "\"" : "the end", p->at,
                       *p->at != '\0' ? "\"" : "", expected);
}

stw_status stw_expression_blame(const stw_environment *env, stw_error *err, const char *format,
                                ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const stw_node *node = env->suspect != NULL ? env->suspect : env->last;
    char found[160] = "";
    if (node != NULL) stw_node_describe(node, found, sizeof found);
    return stw_fail_at(
        err, STW_STATUS_BAD_INPUT, env->tree->file, node != NULL ? node->line : 0,
        node != NULL ? node->column : 0, "%s%.80s%s%s%s%s (%s:%d)", node != NULL ? "key \"" : "",
        node != NULL && node->key != NULL ? node->key : "", node != NULL ? "\" is " : "", found,
        node != NULL ? ": " : "", text, env->file, env->line);
}

static stw_status wrong_kind(parser *p, const stw_value *value, const char *expected) {
    if (value->node != NULL) return stw_node_fail(p->env->tree, value->node, expected, p->err);
    return stw_fail_at(p->err, STW_STATUS_BAD_INPUT, p->env->file, p->env->line, 0,
                       "in \"%.200s\": a value has the wrong type, expected %s", p->text, expected);
}

static void skip_blanks(parser *p) {
    while (*p->at == ' ' || *p->at == '\t') p->at++;
}

/* Accept an operator or bracket. */
static bool take(parser *p, const char *symbol) {
    skip_blanks(p);
    size_t n = strlen(symbol);
    if (strncmp(p->at, symbol, n) != 0) return false;
    if ((symbol[0] == '<' || symbol[0] == '>') && n == 1 && p->at[1] == '=') return false;
    p->at += n;
    return true;
}

static bool name_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Accept a whole word. */
static bool take_word(parser *p, const char *word) {
    skip_blanks(p);
    size_t n = strlen(word);
    if (strncmp(p->at, word, n) != 0 || name_char(p->at[n]) || p->at[n] == '.') return false;
    p->at += n;
    return true;
}

static stw_status expect(parser *p, const char *symbol, const char *expected) {
    return take(p, symbol) ? STW_STATUS_OK : syntax(p, expected);
}

/* ---- keys ---- */

/* The value at a dotted path, null values included. */
static const stw_node *lookup(const stw_node *node, const char *path) {
    char key[MAX_PATH];
    while (node != NULL) {
        size_t n = strcspn(path, ".");
        memcpy(key, path, n);
        key[n] = '\0';
        node = stw_node_get(node, key);
        if (path[n] == '\0') return node;
        path += n + 1;
    }
    return NULL;
}

static stw_status read_reference(parser *p, reference *out) {
    skip_blanks(p);
    size_t n = 0;
    while (name_char(p->at[n]) || p->at[n] == '.') n++;
    if (n == 0 || isdigit((unsigned char)*p->at) || *p->at == '.') return syntax(p, "a key");
    if (n >= MAX_PATH) return syntax(p, "a shorter key");
    *out = (reference){.node = NULL};
    memcpy(out->path, p->at, n);
    out->path[n] = '\0';
    p->at += n;
    if (!p->live) return STW_STATUS_OK;
    if (strcmp(out->path, "i") == 0) {
        out->index = true;
        return STW_STATUS_OK;
    }
    for (size_t k = 0; k < p->env->n_bindings; k++) {
        stw_binding *binding = &p->env->bindings[k];
        if (strcmp(binding->name, out->path) != 0) continue;
        if (!binding->busy) out->binding = binding;
        break;
    }
    if (out->binding != NULL) return STW_STATUS_OK;
    if (p->env->scope != NULL) out->node = lookup(p->env->scope, out->path);
    if (out->node == NULL) out->node = lookup(p->env->tree->root, out->path);
    return STW_STATUS_OK;
}

static bool is_known(const reference *ref) {
    return ref->index || ref->binding != NULL ||
           (ref->node != NULL && ref->node->kind != STW_NODE_NULL);
}

static stw_status missing(parser *p, const reference *ref) {
    const stw_node *root = ref->node != NULL       ? ref->node
                           : p->env->scope != NULL ? p->env->scope
                                                   : p->env->tree->root;
    return stw_fail_at(p->err, STW_STATUS_BAD_INPUT, p->env->tree->file, root->line, root->column,
                       "the key \"%s\" is %s (required by %s:%d)", ref->path,
                       ref->node != NULL ? "null" : "missing", p->env->file, p->env->line);
}

static stw_status value_of_node(parser *p, const stw_node *node, stw_value *out) {
    *out = (stw_value){.kind = STW_VALUE_INT, .node = node};
    p->env->last = node;
    switch (node->kind) {
    case STW_NODE_INT:
        out->integer = node->integer;
        if (node->integer <= 0) p->env->suspect = node;
        return STW_STATUS_OK;
    case STW_NODE_BOOL:
        out->kind = STW_VALUE_BOOL;
        out->boolean = node->boolean;
        return STW_STATUS_OK;
    case STW_NODE_STRING:
        out->kind = STW_VALUE_STRING;
        out->text = node->text;
        out->length = strlen(node->text);
        return STW_STATUS_OK;
    default:
        return stw_node_fail(p->env->tree, node, "a whole number, true, false or a string", p->err);
    }
}

/* Evaluate a binding in the scope of its definition. */
static stw_status value_of_binding(parser *p, stw_binding *binding, stw_value *out) {
    stw_environment *env = p->env;
    const stw_node *scope = env->scope;
    const char *file = env->file;
    int line = env->line;
    env->scope = binding->scope;
    env->file = binding->file;
    env->line = binding->line;
    binding->busy = true;
    stw_status status = stw_expression_value(env, binding->text, out, p->err);
    binding->busy = false;
    env->scope = scope;
    env->file = file;
    env->line = line;
    return status;
}

static stw_status element(parser *p, const reference *ref, const stw_value *at, stw_value *out) {
    if (ref->node == NULL || ref->node->kind == STW_NODE_NULL) return missing(p, ref);
    if (ref->node->kind != STW_NODE_ARRAY)
        return stw_node_fail(p->env->tree, ref->node, "a list", p->err);
    if (at->kind != STW_VALUE_INT) return wrong_kind(p, at, "a whole number as an index");
    if (at->integer < 0 || (uint64_t)at->integer >= ref->node->n_items)
        return stw_fail_at(
            p->err, STW_STATUS_BAD_INPUT, p->env->tree->file, ref->node->line, ref->node->column,
            "the list \"%s\" has %zu elements, no element %" PRId64 " (required by %s:%d)",
            ref->path, ref->node->n_items, at->integer, p->env->file, p->env->line);
    return value_of_node(p, ref->node->items[at->integer], out);
}

static stw_status value_of(parser *p, const reference *ref, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    if (take(p, "[")) {
        stw_value at = {.kind = STW_VALUE_INT};
        STW_TRY(parse_or(p, &at));
        STW_TRY(expect(p, "]", "]"));
        if (p->live) STW_TRY(element(p, ref, &at, out));
        return status;
    }
    if (!p->live) return status;
    if (ref->index) {
        if (!p->env->has_index) return syntax(p, "no i outside a repeated block");
        *out = (stw_value){.kind = STW_VALUE_INT, .integer = (int64_t)p->env->index};
        return status;
    }
    if (ref->binding != NULL) return value_of_binding(p, ref->binding, out);
    if (!is_known(ref)) return missing(p, ref);
    return value_of_node(p, ref->node, out);
out:
    return status;
}

/* ---- functions ---- */

static stw_status call_default(parser *p, stw_value *out) {
    reference ref;
    stw_status status = STW_STATUS_OK;
    bool live = p->live;
    STW_TRY(read_reference(p, &ref));
    bool known = live && is_known(&ref);
    stw_value unused;
    p->live = known;
    STW_TRY(value_of(p, &ref, out));
    STW_TRY(expect(p, ",", "a comma"));
    p->live = live && !known;
    STW_TRY(parse_or(p, p->live ? out : &unused));
out:
    p->live = live;
    return status;
}

static stw_status call_if(parser *p, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    bool live = p->live;
    stw_value which = {.kind = STW_VALUE_BOOL}, unused;
    STW_TRY(parse_or(p, &which));
    if (live && which.kind != STW_VALUE_BOOL) return wrong_kind(p, &which, "true or false");
    STW_TRY(expect(p, ",", "a comma"));
    p->live = live && which.boolean;
    STW_TRY(parse_or(p, p->live ? out : &unused));
    STW_TRY(expect(p, ",", "a comma"));
    p->live = live && !which.boolean;
    STW_TRY(parse_or(p, p->live ? out : &unused));
out:
    p->live = live;
    return status;
}

static bool same(const stw_value *a, const stw_value *b) {
    if (a->kind != b->kind) return false;
    if (a->kind == STW_VALUE_INT) return a->integer == b->integer;
    if (a->kind == STW_VALUE_BOOL) return a->boolean == b->boolean;
    return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

/* The list of a key; NULL if absent. */
static stw_status read_list(parser *p, const stw_node **list) {
    reference ref;
    *list = NULL;
    stw_status status = read_reference(p, &ref);
    if (status != STW_STATUS_OK || !p->live || !is_known(&ref)) return status;
    if (ref.node == NULL || ref.node->kind != STW_NODE_ARRAY) {
        if (ref.node != NULL) return stw_node_fail(p->env->tree, ref.node, "a list", p->err);
        return syntax(p, "a list of the config before this");
    }
    *list = ref.node;
    return status;
}

static stw_status call_in(parser *p, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL;
    stw_value wanted = {.kind = STW_VALUE_INT}, one;
    STW_TRY(parse_or(p, &wanted));
    STW_TRY(expect(p, ",", "a comma"));
    STW_TRY(read_list(p, &list));
    *out = (stw_value){.kind = STW_VALUE_BOOL};
    for (size_t k = 0; list != NULL && k < list->n_items && !out->boolean; k++) {
        STW_TRY(value_of_node(p, list->items[k], &one));
        if (one.kind != wanted.kind)
            return stw_node_fail(p->env->tree, list->items[k],
                                 wanted.kind == STW_VALUE_INT ? "a whole number" : "a string",
                                 p->err);
        out->boolean = same(&one, &wanted);
    }
out:
    return status;
}

static stw_status call_presence(parser *p, bool null_counts, stw_value *out) {
    reference ref;
    stw_status status = read_reference(p, &ref);
    if (status != STW_STATUS_OK || !p->live) return status;
    *out = (stw_value){.kind = STW_VALUE_BOOL};
    out->boolean = is_known(&ref) || (null_counts && ref.node != NULL);
    return status;
}

static stw_status call_len(parser *p, stw_value *out) {
    const stw_node *list = NULL;
    stw_status status = read_list(p, &list);
    *out = (stw_value){.kind = STW_VALUE_INT};
    if (list != NULL) out->integer = (int64_t)list->n_items;
    return status;
}

/* A function, if the text continues with "name(". */
static stw_status parse_call(parser *p, bool *called, stw_value *out) {
    static const char *const names[] = {"default(", "if(", "in(", "has(", "given(", "len("};
    stw_status status = STW_STATUS_OK;
    *called = true;
    skip_blanks(p);
    size_t which = 0;
    while (which < 6 && !take(p, names[which])) which++;
    switch (which) {
    case 0:
        status = call_default(p, out);
        break;
    case 1:
        status = call_if(p, out);
        break;
    case 2:
        status = call_in(p, out);
        break;
    case 3:
    case 4:
        status = call_presence(p, which == 4, out);
        break;
    case 5:
        status = call_len(p, out);
        break;
    default:
        *called = false;
        return status;
    }
    return status == STW_STATUS_OK ? expect(p, ")", "a closing bracket") : status;
}

/* ---- operators ---- */

static stw_status parse_number(parser *p, stw_value *out) {
    int64_t value = 0;
    for (; isdigit((unsigned char)*p->at); p->at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *p->at - '0', &value))
            return syntax(p, "a number that fits in 63 bits");
    *out = (stw_value){.kind = STW_VALUE_INT, .integer = value};
    return STW_STATUS_OK;
}

static stw_status parse_primary(parser *p, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    bool called = false;
    skip_blanks(p);
    if (isdigit((unsigned char)*p->at)) return parse_number(p, out);
    if (take(p, "(")) {
        STW_TRY(parse_or(p, out));
        return expect(p, ")", "a closing bracket");
    }
    if (*p->at == '\'') {
        const char *end = strchr(p->at + 1, '\'');
        if (end == NULL) return syntax(p, "a closing quote after this");
        *out = (stw_value){.kind = STW_VALUE_STRING, .text = p->at + 1};
        out->length = (size_t)(end - p->at - 1);
        p->at = end + 1;
        return status;
    }
    bool truth = take_word(p, "true");
    if (truth || take_word(p, "false")) {
        *out = (stw_value){.kind = STW_VALUE_BOOL, .boolean = truth};
        return status;
    }
    STW_TRY(parse_call(p, &called, out));
    if (called) return status;
    reference ref;
    STW_TRY(read_reference(p, &ref));
    STW_TRY(value_of(p, &ref, out));
out:
    return status;
}

static stw_status need_int(parser *p, const stw_value *value) {
    if (!p->live || value->kind == STW_VALUE_INT) return STW_STATUS_OK;
    return wrong_kind(p, value, "a whole number");
}

static stw_status need_bool(parser *p, const stw_value *value) {
    if (!p->live || value->kind == STW_VALUE_BOOL) return STW_STATUS_OK;
    return wrong_kind(p, value, "true or false");
}

/* a = a <symbol> b, for whole numbers. */
static stw_status arithmetic(parser *p, char symbol, stw_value *a, const stw_value *b) {
    int64_t x = a->integer, y = b->integer, result = 0;
    bool over = false;
    if (!p->live) return STW_STATUS_OK;
    const bool exact = symbol == ':'; /* a / b: without a rest */
    if (exact) symbol = '/';
    if ((symbol == '/' || symbol == '%') && y == 0)
        return stw_expression_blame(p->env, p->err, "division by zero in \"%.120s\"", p->text);
    if (symbol == '+') over = __builtin_add_overflow(x, y, &result);
    if (symbol == '-') over = __builtin_sub_overflow(x, y, &result);
    if (symbol == '*') over = __builtin_mul_overflow(x, y, &result);
    if (symbol == '/' || symbol == '%') {
        over = x == INT64_MIN && y == -1;
        if (!over) result = symbol == '/' ? x / y : x % y;
        /* towards minus infinity, as Python has it */
        if (!over && x % y != 0 && (x < 0) != (y < 0)) result += symbol == '/' ? -1 : y;
    }
    if (exact && !over && x % y != 0)
        return stw_expression_blame(p->env, p->err,
                                    "%" PRId64 " is not a multiple of %" PRId64 " in \"%.120s\"", x,
                                    y, p->text);
    if (over)
        return stw_expression_blame(
            p->env, p->err, "%" PRId64 " %s %" PRId64 " does not fit in 64 bits in \"%.120s\"", x,
            symbol == '/' ? "//" : (char[]){symbol, '\0'}, y, p->text);
    *a = (stw_value){.kind = STW_VALUE_INT, .integer = result};
    return STW_STATUS_OK;
}

static stw_status parse_unary(parser *p, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    if (++p->env->depth > MAX_DEPTH) {
        status = syntax(p, "fewer nested brackets and bindings");
        goto out;
    }
    if (take(p, "-")) {
        stw_value zero = {.kind = STW_VALUE_INT}, value = zero;
        STW_TRY(parse_unary(p, &value));
        STW_TRY(need_int(p, &value));
        STW_TRY(arithmetic(p, '-', &zero, &value));
        *out = zero;
    } else {
        STW_TRY(parse_primary(p, out));
    }
out:
    p->env->depth--;
    return status;
}

static stw_status parse_product(parser *p, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(parse_unary(p, out));
    for (;;) {
        char symbol = take(p, "*")    ? '*'
                      : take(p, "//") ? '/'
                      : take(p, "/")  ? ':'
                      : take(p, "%")  ? '%'
                                      : '\0';
        if (symbol == '\0') return status;
        stw_value right = {.kind = STW_VALUE_INT};
        STW_TRY(need_int(p, out));
        STW_TRY(parse_unary(p, &right));
        STW_TRY(need_int(p, &right));
        STW_TRY(arithmetic(p, symbol, out, &right));
    }
out:
    return status;
}

static stw_status parse_sum(parser *p, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(parse_product(p, out));
    for (;;) {
        char symbol = take(p, "+") ? '+' : take(p, "-") ? '-' : '\0';
        if (symbol == '\0') return status;
        stw_value right = {.kind = STW_VALUE_INT};
        STW_TRY(need_int(p, out));
        STW_TRY(parse_product(p, &right));
        STW_TRY(need_int(p, &right));
        STW_TRY(arithmetic(p, symbol, out, &right));
    }
out:
    return status;
}

static stw_status parse_comparison(parser *p, stw_value *out) {
    static const char *const symbols[] = {"==", "!=", "<=", ">=", "<", ">"};
    stw_status status = STW_STATUS_OK;
    stw_value left = {.kind = STW_VALUE_INT}, right = left;
    STW_TRY(parse_sum(p, &left));
    size_t which = 0;
    while (which < 6 && !take(p, symbols[which])) which++;
    if (which == 6) {
        *out = left;
        return status;
    }
    if (which >= 2) STW_TRY(need_int(p, &left));
    STW_TRY(parse_sum(p, &right));
    if (which >= 2) STW_TRY(need_int(p, &right));
    if (p->live && left.kind != right.kind)
        return wrong_kind(p, left.node != NULL ? &left : &right, "operands of the same type");
    int64_t x = left.integer, y = right.integer;
    bool equal = p->live && same(&left, &right);
    bool results[] = {equal, !equal, x <= y, x >= y, x<y, x> y};
    *out = (stw_value){.kind = STW_VALUE_BOOL, .boolean = results[which]};
out:
    return status;
}

static stw_status parse_not(parser *p, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    bool negate = false;
    while (take_word(p, "not")) negate = !negate;
    bool any = negate;
    STW_TRY(parse_comparison(p, out));
    if (any) STW_TRY(need_bool(p, out));
    if (any) *out = (stw_value){.kind = STW_VALUE_BOOL, .boolean = !out->boolean};
out:
    return status;
}

static stw_status parse_and(parser *p, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    bool live = p->live;
    STW_TRY(parse_not(p, out));
    while (take_word(p, "and")) {
        stw_value right = {.kind = STW_VALUE_BOOL};
        STW_TRY(need_bool(p, out));
        p->live = live && out->boolean;
        STW_TRY(parse_not(p, &right));
        STW_TRY(need_bool(p, &right));
        if (p->live) *out = (stw_value){.kind = STW_VALUE_BOOL, .boolean = right.boolean};
        p->live = live;
    }
out:
    p->live = live;
    return status;
}

static stw_status parse_or(parser *p, stw_value *out) {
    stw_status status = STW_STATUS_OK;
    bool live = p->live;
    STW_TRY(parse_and(p, out));
    while (take_word(p, "or")) {
        stw_value right = {.kind = STW_VALUE_BOOL};
        STW_TRY(need_bool(p, out));
        p->live = live && !out->boolean;
        STW_TRY(parse_and(p, &right));
        STW_TRY(need_bool(p, &right));
        if (p->live) *out = (stw_value){.kind = STW_VALUE_BOOL, .boolean = right.boolean};
        p->live = live;
    }
out:
    p->live = live;
    return status;
}

/* ---- entry points ---- */

stw_status stw_expression_value(stw_environment *env, const char *text, stw_value *out,
                                stw_error *err) {
    parser p = {.env = env, .text = text, .at = text, .live = true, .err = err};
    *out = (stw_value){.kind = STW_VALUE_INT};
    stw_status status = parse_or(&p, out);
    if (status != STW_STATUS_OK) return status;
    skip_blanks(&p);
    return *p.at == '\0' ? status : syntax(&p, "an operator or the end");
}

stw_status stw_expression_bool(stw_environment *env, const char *text, bool *out, stw_error *err) {
    *out = true;
    if (text == NULL || text[0] == '\0') return STW_STATUS_OK;
    parser p = {.env = env, .text = text, .at = text, .live = true, .err = err};
    stw_value value;
    env->last = env->suspect = NULL;
    stw_status status = stw_expression_value(env, text, &value, err);
    if (status == STW_STATUS_OK) status = need_bool(&p, &value);
    if (status == STW_STATUS_OK) *out = value.boolean;
    return status;
}

static stw_status size_of(parser *p, const stw_value *value, uint64_t least, uint64_t *out) {
    stw_status status = need_int(p, value);
    if (status != STW_STATUS_OK) return status;
    if (value->integer < (int64_t)least && value->node != NULL) {
        char expected[40];
        snprintf(expected, sizeof expected, "at least %" PRIu64, least);
        return stw_node_fail(p->env->tree, value->node, expected, p->err);
    }
    if (value->integer < (int64_t)least)
        return stw_expression_blame(p->env, p->err,
                                    "\"%.120s\" comes to %" PRId64 ", expected at least %" PRIu64,
                                    p->text, value->integer, least);
    *out = (uint64_t)value->integer;
    return STW_STATUS_OK;
}

stw_status stw_expression_size(stw_environment *env, const char *text, uint64_t *out,
                               stw_error *err) {
    parser p = {.env = env, .text = text, .at = text, .live = true, .err = err};
    stw_value value;
    env->last = env->suspect = NULL;
    stw_status status = stw_expression_value(env, text, &value, err);
    return status == STW_STATUS_OK ? size_of(&p, &value, 0, out) : status;
}

stw_status stw_expression_count(stw_environment *env, const char *text, uint64_t *out,
                                stw_error *err) {
    parser p = {.env = env, .text = text, .at = text, .live = true, .err = err};
    stw_value value;
    env->last = env->suspect = NULL;
    stw_status status = stw_expression_value(env, text, &value, err);
    if (status != STW_STATUS_OK) return status;
    return size_of(&p, &value, value.node != NULL ? 1 : 0, out);
}

stw_status stw_expression_shape(stw_environment *env, const char *text, uint32_t max,
                                uint64_t *sizes, uint32_t *n, stw_error *err) {
    parser p = {.env = env, .text = text, .at = text, .live = true, .err = err};
    stw_status status = STW_STATUS_OK;
    *n = 0;
    STW_TRY(expect(&p, "[", "a shape in square brackets"));
    while (!take(&p, "]")) {
        stw_value value = {.kind = STW_VALUE_INT};
        if (*n == max) return syntax(&p, "fewer dimensions");
        if (*n > 0) STW_TRY(expect(&p, ",", "a comma or a closing bracket"));
        env->last = env->suspect = NULL;
        STW_TRY(parse_or(&p, &value));
        STW_TRY(size_of(&p, &value, 1, &sizes[(*n)++]));
    }
    skip_blanks(&p);
    if (*p.at != '\0') return syntax(&p, "the end");
out:
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* jansson validates the text and provides the values, with members in the order of the text. One
 * cursor then scans the accepted text in the same order and records the position of each value. */
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>

#include "core/pool.h"
#include "core/text.h"
#include "core/tree_build.h"

typedef struct cursor {
    const char *at, *end;
    int line, column; /* of `at` */
} cursor;

static void step(cursor *c) {
    if (*c->at == '\n') {
        if (c->line < INT_MAX) c->line++;
        c->column = 1;
    } else if (((unsigned char)*c->at & 0xC0) != 0x80) {
        if (c->column < INT_MAX) c->column++;
    }
    c->at++;
}

static void skip_blanks(cursor *c) {
    while (c->at < c->end && strchr(" \t\r\n", *c->at) != NULL) step(c);
}

/* Skip blanks, then accept this character; false if there is another one. */
static bool skip_char(cursor *c, char expected) {
    skip_blanks(c);
    if (c->at == c->end || *c->at != expected) return false;
    step(c);
    return true;
}

static void skip_string(cursor *c) {
    step(c); /* the opening quote */
    while (c->at < c->end && *c->at != '"') {
        if (*c->at == '\\' && c->at + 1 < c->end) step(c);
        step(c);
    }
    if (c->at < c->end) step(c);
}

static void skip_word(cursor *c) {
    while (c->at < c->end && strchr(" \t\r\n,]}", *c->at) == NULL) step(c);
}

static stw_status lost(const stw_tree *tree, const cursor *c, stw_error *err) {
    return stw_fail_at(err, STW_STATUS_BUG, tree->file, c->line, c->column,
                       "the scan for positions and the JSON parser disagree");
}

static stw_status convert(stw_tree *tree, json_t *json, cursor *c, stw_node **out, stw_error *err);

static stw_status convert_array(stw_tree *tree, json_t *json, cursor *c, stw_node *node,
                                stw_error *err) {
    node->n_items = json_array_size(json);
    node->items = stw_pool_array(tree->pool, node->n_items, sizeof(stw_node *));
    if (node->items == NULL) return stw_tree_no_memory(tree, err);
    if (!skip_char(c, '[')) return lost(tree, c, err);
    for (size_t i = 0; i < node->n_items; i++) {
        if (i > 0 && !skip_char(c, ',')) return lost(tree, c, err);
        stw_status status = convert(tree, json_array_get(json, i), c, &node->items[i], err);
        if (status != STW_STATUS_OK) return status;
    }
    return skip_char(c, ']') ? STW_STATUS_OK : lost(tree, c, err);
}

static stw_status convert_object(stw_tree *tree, json_t *json, cursor *c, stw_node *node,
                                 stw_error *err) {
    size_t n = json_object_size(json);
    node->items = stw_pool_array(tree->pool, n, sizeof(stw_node *));
    if (node->items == NULL) return stw_tree_no_memory(tree, err);
    if (!skip_char(c, '{')) return lost(tree, c, err);
    void *iter = json_object_iter(json);
    for (; iter != NULL && node->n_items < n; iter = json_object_iter_next(json, iter)) {
        if (node->n_items > 0 && !skip_char(c, ',')) return lost(tree, c, err);
        skip_blanks(c);
        if (c->at == c->end || *c->at != '"') return lost(tree, c, err);
        int key_line = c->line, key_column = c->column;
        skip_string(c);
        if (!skip_char(c, ':')) return lost(tree, c, err);
        stw_node **item = &node->items[node->n_items];
        stw_status status = convert(tree, json_object_iter_value(iter), c, item, err);
        if (status != STW_STATUS_OK) return status;
        (*item)->key = stw_pool_string(tree->pool, json_object_iter_key(iter));
        (*item)->key_line = key_line;
        (*item)->key_column = key_column;
        if ((*item)->key == NULL) return stw_tree_no_memory(tree, err);
        node->n_items++;
    }
    return skip_char(c, '}') ? STW_STATUS_OK : lost(tree, c, err);
}

static stw_status convert_scalar(stw_tree *tree, json_t *json, cursor *c, stw_node *node,
                                 stw_error *err) {
    const char *from = c->at;
    if (json_is_string(json)) {
        skip_string(c);
        node->kind = STW_NODE_STRING;
        node->text = stw_tree_copy(tree, json_string_value(json), json_string_length(json));
    } else {
        skip_word(c);
        node->text = stw_tree_copy(tree, from, (size_t)(c->at - from));
    }
    if (node->text == NULL) return stw_tree_no_memory(tree, err);
    if (json_is_boolean(json)) {
        node->kind = STW_NODE_BOOL;
        node->boolean = json_is_true(json);
    } else if (json_is_integer(json)) {
        node->kind = STW_NODE_INT;
        node->integer = json_integer_value(json);
        node->real = (double)node->integer;
    } else if (json_is_real(json)) {
        node->kind = STW_NODE_REAL;
        node->real = json_real_value(json);
    }
    return STW_STATUS_OK;
}

/* Recursion depth is that of the document. jansson accepts at most 2048 levels. */
static stw_status convert(stw_tree *tree, json_t *json, cursor *c, stw_node **out, stw_error *err) {
    skip_blanks(c);
    if (c->at == c->end) return lost(tree, c, err);
    stw_node *node = stw_tree_node(tree, STW_NODE_NULL, c->line, c->column);
    if (node == NULL) return stw_tree_no_memory(tree, err);
    *out = node;
    if (json_is_object(json)) {
        node->kind = STW_NODE_OBJECT;
        return convert_object(tree, json, c, node, err);
    }
    if (json_is_array(json)) {
        node->kind = STW_NODE_ARRAY;
        return convert_array(tree, json, c, node, err);
    }
    return convert_scalar(tree, json, c, node, err);
}

/* ---- allocations ---- */

/* jansson takes no care of memory that runs out: it writes behind a string whose text it could not
 * keep whole (lex_scan_string), calls documents invalid, and leaves members out. While this thread
 * loads a document, jansson therefore allocates from a pool, and the first allocation that fails
 * leaves jansson for good. Other allocations go on to the functions that the process has set. */
typedef struct loading {
    stw_pool *pool; /* of all that jansson makes of the document */
    jmp_buf escape;
} loading;

static _Thread_local loading *under_way;
static json_malloc_t next_malloc;
static json_free_t next_free;

static void *take_block(size_t size) {
    if (under_way == NULL) return next_malloc(size);
    void *block = stw_pool_alloc(under_way->pool, size);
    if (block == NULL) longjmp(under_way->escape, 1);
    return block;
}

static void give_block(void *block) {
    if (under_way == NULL) next_free(block);
}

static void take_over_allocations(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    json_malloc_t present = NULL;
    json_free_t present_free = NULL;
    pthread_mutex_lock(&mutex);
    json_get_alloc_funcs(&present, &present_free);
    if (present != take_block) {
        next_malloc = present;
        next_free = present_free;
        json_set_alloc_funcs(take_block, give_block);
    }
    pthread_mutex_unlock(&mutex);
}

/* *out lives as long as the pool; NULL where the text is invalid, as `error` says.
 * @return false: out of memory */
static bool load(stw_pool *pool, const char *text, size_t length, json_t **out,
                 json_error_t *error) {
    loading here = {.pool = pool};
    if (pool == NULL) return false;
    take_over_allocations();
    under_way = &here;
    bool enough = setjmp(here.escape) == 0;
    if (enough) *out = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, error);
    under_way = NULL;
    return enough;
}

/* ---- errors ---- */

/* What was expected, if jansson's message does not contain it. */
static const char *expectation(const json_error_t *error) {
    switch (json_error_code(error)) {
    case json_error_invalid_syntax:
        if (strncmp(error->text, "unexpected token", 16) == 0) return ", expected a value";
        if (strncmp(error->text, "invalid token", 13) == 0)
            return ", expected a string, number, object, array, true, false or null";
        return "";
    case json_error_premature_end_of_input:
        return ", the document is cut short";
    case json_error_invalid_utf8:
        return ", expected UTF-8";
    default:
        return "";
    }
}

/* What is valid JSON, and refused all the same: "found %s<expected>" with jansson's token. */
static const char *refusal(const json_error_t *error) {
    switch (json_error_code(error)) {
    case json_error_numeric_overflow:
        return ", expected a number that fits in 64 bits";
    case json_error_duplicate_key:
        return " as a key a second time, expected each key once";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return ", expected text without the character \\u0000";
    default:
        return NULL;
    }
}

static stw_status fail_syntax(const stw_tree *tree, const char *text, size_t length,
                              const json_error_t *error, stw_error *err) {
    if (json_error_code(error) == json_error_out_of_memory) return stw_tree_no_memory(tree, err);
    /* jansson reports the end of the token that it quotes as near '...'; report its start */
    size_t offset = error->position > 0 ? (size_t)error->position : 0;
    if (offset > length) offset = length;
    const char *near = strstr(error->text, " near '");
    size_t token = near != NULL ? strlen(near + 7) : 0;
    if (token > 0 && token - 1 <= offset) offset -= token - 1;
    int line, column;
    stw_tree_locate(text, offset, &line, &column);
    char message[JSON_ERROR_TEXT_LENGTH];
    size_t used = 0;
    for (const char *p = error->text; *p != '\0' && used + 1 < sizeof message; p++)
        message[used++] = (unsigned char)*p < 0x20 ? '?' : *p;
    message[used] = '\0';
    const char *refused = refusal(error), *found = strstr(message, " near '");
    if (refused != NULL && found != NULL) {
        message[used - 1] = '\0'; /* the closing quote */
        return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, line, column, "found %s%s",
                           found + 7, refused);
    }
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, line, column, "not valid JSON: %s%s",
                       message, expectation(error));
}

stw_status stw_tree_parse_json(const char *file, const char *text, size_t length, stw_tree **out,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL;
    stw_pool *pool = NULL;
    json_t *json = NULL;
    json_error_t error;
    *out = NULL;
    STW_TRY(stw_tree_begin(file, text, length, &tree, err));
    tree->json = true;
    if (length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { /* a byte order mark */
        text += 3;
        length -= 3;
    }
    cursor c = {text, text + length, 1, 1};
    skip_blanks(&c);
    if (c.at == c.end) {
        status = stw_fail_at(err, STW_STATUS_BAD_INPUT, file, 1, 1,
                             "found an empty document, expected JSON");
        goto out;
    }
    pool = stw_pool_new();
    if (!load(pool, text, length, &json, &error)) {
        status = stw_tree_no_memory(tree, err);
        goto out;
    }
    if (json == NULL) {
        status = fail_syntax(tree, text, length, &error, err);
        goto out;
    }
    STW_TRY(convert(tree, json, &c, &tree->root, err));
    skip_blanks(&c);
    if (c.at != c.end) {
        status = lost(tree, &c, err);
        goto out;
    }
    *out = tree;
    tree = NULL;
out:
    stw_pool_free(pool); /* and `json` with it */
    stw_tree_free(tree);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the subset of YAML that specs require: mappings, sequences and scalars. Anchors, aliases,
 * tags and further documents are refused: the size of the file then bounds the work. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "core/text.h"
#include "core/tree_build.h"

enum { DEEPEST = 200 };

typedef struct reader {
    stw_tree *tree;
    yaml_parser_t parser;
    const char *text; /* the whole document, for positions */
    size_t length;
    stw_error *err;
} reader;

static int place(size_t zero_based) { return zero_based < INT_MAX ? (int)zero_based + 1 : INT_MAX; }

static stw_status refuse(const reader *r, yaml_mark_t mark, const char *text) {
    return stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->tree->file, place(mark.line),
                       place(mark.column), "%s", text);
}

static stw_status fail_syntax(const reader *r) {
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) return stw_tree_no_memory(r->tree, r->err);
    const char *problem = p->problem != NULL ? p->problem : "unknown problem";
    if (p->error == YAML_READER_ERROR) { /* bytes that are no text: only an offset is known */
        int line, column;
        size_t offset = p->problem_offset < r->length ? p->problem_offset : r->length;
        stw_tree_locate(r->text, offset, &line, &column);
        return stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->tree->file, line, column,
                           "not valid YAML: %s, expected UTF-8 text", problem);
    }
    const char *context = p->context != NULL ? p->context : "";
    return stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->tree->file, place(p->problem_mark.line),
                       place(p->problem_mark.column), "not valid YAML: %s%s%s", problem,
                       context[0] != '\0' ? ", " : "", context);
}

static stw_status next(reader *r, yaml_event_t *event) {
    if (yaml_parser_parse(&r->parser, event)) return STW_STATUS_OK;
    return fail_syntax(r);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static const char *skip_digits(const char *p) {
    while (is_digit(*p)) p++;
    return p;
}

/* [-+]?[0-9]+ or, as in the core schema, 0x1F and 0o17 */
static bool looks_int(const char *text, int *base) {
    *base = 10;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'o') && text[2] != '\0') {
        *base = text[1] == 'x' ? 16 : 8;
        const char *digits = *base == 16 ? "0123456789abcdefABCDEF" : "01234567";
        return text[2 + strspn(text + 2, digits)] == '\0';
    }
    const char *p = text + (*text == '-' || *text == '+');
    return is_digit(*p) && *skip_digits(p) == '\0';
}

/* [-+]? ( .[0-9]+ | [0-9]+ ( .[0-9]* )? ) ( [eE] [-+]? [0-9]+ )? */
static bool looks_real(const char *text) {
    const char *p = text + (*text == '-' || *text == '+');
    const char *whole = p;
    p = skip_digits(p);
    bool has_digits = p > whole;
    if (*p == '.') {
        const char *fraction = ++p;
        p = skip_digits(p);
        has_digits = has_digits || p > fraction;
    }
    if (!has_digits) return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '-' || *p == '+') p++;
        if (!is_digit(*p)) return false;
        p = skip_digits(p);
    }
    return *p == '\0';
}

static bool looks_infinite(const char *text) {
    static const char *const names[] = {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"};
    const char *p = text + (*text == '-' || *text == '+');
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(p, names[i]) == 0) return true;
    return false;
}

static stw_status resolve_int(const reader *r, yaml_mark_t mark, int base, stw_node *node) {
    errno = 0;
    node->integer = strtoll(node->text + (base == 10 ? 0 : 2), NULL, base);
    if (errno == ERANGE)
        return refuse(r, mark,
                      "found a whole number that does not fit in 64 bits, expected a smaller "
                      "number (or quotes for a string)");
    node->kind = STW_NODE_INT;
    node->real = (double)node->integer;
    return STW_STATUS_OK;
}

/* Type of a plain scalar. The default is a string. */
static stw_status resolve(const reader *r, yaml_mark_t mark, stw_node *node) {
    const char *text = node->text;
    int base = 10;
    node->kind = STW_NODE_STRING;
    if (text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0) {
        node->kind = STW_NODE_NULL;
    } else if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
        node->kind = STW_NODE_BOOL;
        node->boolean = text[0] == 't';
    } else if (looks_int(text, &base)) {
        return resolve_int(r, mark, base, node);
    } else if (looks_real(text)) {
        node->kind = STW_NODE_REAL;
        node->real = strtod(text, NULL);
        if (!isfinite(node->real))
            return refuse(r, mark, "found a number that is too large, expected a finite one");
    } else if (looks_infinite(text)) {
        return refuse(r, mark, "found an infinite or undefined number, expected a finite one");
    }
    return STW_STATUS_OK;
}

static stw_status check_plain_node(const reader *r, yaml_mark_t mark, const yaml_char_t *anchor,
                                   const yaml_char_t *tag) {
    if (anchor != NULL) return refuse(r, mark, "found an anchor (&name), expected a plain value");
    if (tag != NULL) return refuse(r, mark, "found a tag (!name), expected a plain value");
    return STW_STATUS_OK;
}

/* The characters of a scalar, in the pool. */
static stw_status take_text(const reader *r, const yaml_event_t *event, const char **out) {
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    stw_status status =
        check_plain_node(r, event->start_mark, event->data.scalar.anchor, event->data.scalar.tag);
    if (status != STW_STATUS_OK) return status;
    if (memchr(value, '\0', length + 1) != value + length)
        return refuse(r, event->start_mark, "found a NUL character, expected text");
    *out = stw_tree_copy(r->tree, value, length);
    return *out != NULL ? STW_STATUS_OK : stw_tree_no_memory(r->tree, r->err);
}

static stw_status build(reader *r, const yaml_event_t *event, int depth, stw_node **out);

static stw_status append(reader *r, stw_node *node, size_t *capacity, stw_node *item) {
    void *grown = stw_pool_grow(r->tree->pool, node->items, node->n_items, node->n_items + 1,
                                capacity, sizeof(stw_node *));
    if (grown == NULL) return stw_tree_no_memory(r->tree, r->err);
    node->items = grown;
    node->items[node->n_items++] = item;
    return STW_STATUS_OK;
}

static stw_status build_sequence(reader *r, int depth, stw_node *node) {
    stw_status status = STW_STATUS_OK;
    size_t capacity = 0;
    for (bool ended = false; !ended && status == STW_STATUS_OK;) {
        yaml_event_t event;
        stw_node *item = NULL;
        status = next(r, &event);
        if (status != STW_STATUS_OK) break;
        ended = event.type == YAML_SEQUENCE_END_EVENT;
        if (!ended) status = build(r, &event, depth, &item);
        yaml_event_delete(&event);
        if (!ended && status == STW_STATUS_OK) status = append(r, node, &capacity, item);
    }
    return status;
}

static int by_key_then_place(const void *a, const void *b) {
    const stw_node *x = *(stw_node *const *)a, *y = *(stw_node *const *)b;
    int order = strcmp(x->key, y->key);
    if (order == 0) order = (x->key_line > y->key_line) - (x->key_line < y->key_line);
    return order != 0 ? order : (x->key_column > y->key_column) - (x->key_column < y->key_column);
}

static stw_status check_keys(const reader *r, const stw_node *node) {
    if (node->n_items < 2) return STW_STATUS_OK;
    stw_status status = STW_STATUS_OK;
    stw_node **sorted = malloc(node->n_items * sizeof *sorted);
    if (sorted == NULL) return stw_tree_no_memory(r->tree, r->err);
    memcpy(sorted, node->items, node->n_items * sizeof *sorted);
    qsort(sorted, node->n_items, sizeof *sorted, by_key_then_place);
    for (size_t i = 1; i < node->n_items && status == STW_STATUS_OK; i++) {
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) != 0) continue;
        char key[160];
        stw_text_quote(sorted[i]->key, key, sizeof key);
        status = stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->tree->file, sorted[i]->key_line,
                             sorted[i]->key_column,
                             "found the key %s again (first in line %d), expected each key once: "
                             "a reader that takes the last one would hide the other",
                             key, sorted[i - 1]->key_line);
    }
    free(sorted);
    return status;
}

static stw_status build_member(reader *r, const yaml_event_t *key_event, int depth,
                               stw_node **out) {
    stw_status status = STW_STATUS_OK;
    const char *key = NULL;
    yaml_event_t event;
    if (key_event->type != YAML_SCALAR_EVENT)
        return refuse(r, key_event->start_mark, "found a key that is no scalar, expected a name");
    status = take_text(r, key_event, &key);
    if (status != STW_STATUS_OK) return status;
    status = next(r, &event);
    if (status != STW_STATUS_OK) return status;
    status = build(r, &event, depth, out);
    yaml_event_delete(&event);
    if (status != STW_STATUS_OK) return status;
    (*out)->key = key;
    (*out)->key_line = place(key_event->start_mark.line);
    (*out)->key_column = place(key_event->start_mark.column);
    return STW_STATUS_OK;
}

static stw_status build_mapping(reader *r, int depth, stw_node *node) {
    stw_status status = STW_STATUS_OK;
    size_t capacity = 0;
    for (bool ended = false; !ended && status == STW_STATUS_OK;) {
        yaml_event_t event;
        stw_node *item = NULL;
        status = next(r, &event);
        if (status != STW_STATUS_OK) break;
        ended = event.type == YAML_MAPPING_END_EVENT;
        if (!ended) status = build_member(r, &event, depth, &item);
        yaml_event_delete(&event);
        if (!ended && status == STW_STATUS_OK) status = append(r, node, &capacity, item);
    }
    return status == STW_STATUS_OK ? check_keys(r, node) : status;
}

/* The node that begins with `event`; recursion is limited by DEEPEST. */
static stw_status build(reader *r, const yaml_event_t *event, int depth, stw_node **out) {
    stw_status status = STW_STATUS_OK;
    yaml_mark_t mark = event->start_mark;
    if (depth == DEEPEST) return refuse(r, mark, "nested more than 200 levels deep");
    stw_node *node = stw_tree_node(r->tree, STW_NODE_STRING, place(mark.line), place(mark.column));
    if (node == NULL) return stw_tree_no_memory(r->tree, r->err);
    *out = node;
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        status = take_text(r, event, &node->text);
        if (status == STW_STATUS_OK && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
            status = resolve(r, mark, node);
        return status;
    case YAML_SEQUENCE_START_EVENT:
        node->kind = STW_NODE_ARRAY;
        status = check_plain_node(r, mark, event->data.sequence_start.anchor,
                                  event->data.sequence_start.tag);
        return status == STW_STATUS_OK ? build_sequence(r, depth + 1, node) : status;
    case YAML_MAPPING_START_EVENT:
        node->kind = STW_NODE_OBJECT;
        status = check_plain_node(r, mark, event->data.mapping_start.anchor,
                                  event->data.mapping_start.tag);
        return status == STW_STATUS_OK ? build_mapping(r, depth + 1, node) : status;
    case YAML_ALIAS_EVENT:
        return refuse(r, mark, "found an alias (*name), expected a plain value");
    default:
        return refuse(r, mark, "not valid YAML: expected a value");
    }
}

/* An empty document is null: an empty spec leaves every key at its default. */
static stw_status build_document(reader *r) {
    stw_status status = STW_STATUS_OK;
    int n_documents = 0;
    for (bool ended = false; !ended && status == STW_STATUS_OK;) {
        yaml_event_t event;
        status = next(r, &event);
        if (status != STW_STATUS_OK) break;
        switch (event.type) {
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT:
            break;
        case YAML_STREAM_END_EVENT:
            ended = true;
            break;
        case YAML_DOCUMENT_START_EVENT:
            if (++n_documents > 1)
                status = refuse(r, event.start_mark, "found a second document, expected one");
            break;
        default:
            status = build(r, &event, 0, &r->tree->root);
            break;
        }
        yaml_event_delete(&event);
    }
    if (status != STW_STATUS_OK || r->tree->root != NULL) return status;
    r->tree->root = stw_tree_node(r->tree, STW_NODE_NULL, 1, 1);
    if (r->tree->root == NULL) return stw_tree_no_memory(r->tree, r->err);
    r->tree->root->text = "";
    return STW_STATUS_OK;
}

stw_status stw_tree_parse_yaml(const char *file, const char *text, size_t length, stw_tree **out,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    reader r = {.text = text, .length = length, .err = err};
    *out = NULL;
    STW_TRY(stw_tree_begin(file, text, length, &r.tree, err));
    if (!yaml_parser_initialize(&r.parser)) {
        status = stw_tree_no_memory(r.tree, err);
        goto out;
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
    status = build_document(&r);
    yaml_parser_delete(&r.parser);
    if (status != STW_STATUS_OK) goto out;
    *out = r.tree;
    r.tree = NULL;
out:
    stw_tree_free(r.tree);
    return status;
}

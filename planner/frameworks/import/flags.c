/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/flags.h"

#include <ctype.h>
#include <string.h>

#include "core/tree.h"
#include "core/tree_edit.h"

enum { MAX_FLAGS = 4096 };

static stw_status no_memory(const char *path, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
}

const stw_flag *stw_flags_find(const stw_flags *flags, const char *name) {
    for (size_t i = 0; i < flags->n; i++)
        if (strcmp(flags->items[i].name, name) == 0) return &flags->items[i];
    return NULL;
}

const char *stw_flags_dashes(const stw_flags *flags) {
    return flags->dashes != NULL ? flags->dashes : "--";
}

stw_status stw_flag_fail(const stw_flags *flags, const stw_flag *flag, const char *expected,
                         stw_error *err) {
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, flags->path, flag->line, 1,
                       "%s%.60s: found \"%.60s\", expected %s", stw_flags_dashes(flags), flag->name,
                       flag->value, expected);
}

/* "--num_layers" and "num-layers" are the same flag. */
static char *flag_name(stw_pool *pool, const char *text, size_t length) {
    while (length > 0 && *text == '-') text++, length--;
    char *name = stw_pool_printf(pool, "%.*s", (int)length, text);
    for (char *c = name; c != NULL && *c != '\0'; c++)
        if (*c == '_') *c = '-';
    return name;
}

static bool is_quote(char c) { return c == '"' || c == '\''; }

static char *unquoted(stw_pool *pool, const char *text, size_t length) {
    while (length >= 2 && is_quote(text[0]) && text[length - 1] == text[0]) text++, length -= 2;
    return stw_pool_printf(pool, "%.*s", (int)length, text);
}

/* @param value NULL only if memory ran out */
stw_status stw_flags_add(stw_flags *flags, stw_pool *pool, const char *name, const char *value,
                         int line, stw_error *err) {
    if (name == NULL || value == NULL) return no_memory(flags->path, err);
    for (size_t i = 0; i < flags->n; i++) {
        if (strcmp(flags->items[i].name, name) != 0) continue;
        flags->items[i] = (stw_flag){name, value, line, NULL};
        return STW_STATUS_OK;
    }
    if (flags->n >= MAX_FLAGS)
        return stw_fail_at(err, STW_STATUS_BAD_INPUT, flags->path, line, 1,
                           "found more than %d flags", MAX_FLAGS);
    stw_flag *grown =
        stw_pool_grow(pool, flags->items, flags->n, flags->n + 1, &flags->capacity, sizeof *grown);
    if (grown == NULL) return no_memory(flags->path, err);
    flags->items = grown;
    flags->items[flags->n++] = (stw_flag){name, value, line, NULL};
    return STW_STATUS_OK;
}

/* ---- YAML ---- */

/* The frameworks' readers would take the last one and say nothing. */
static stw_status add_once(stw_flags *flags, stw_pool *pool, const char *name, const char *value,
                           int line, stw_error *err) {
    const stw_flag *known = name != NULL ? stw_flags_find(flags, name) : NULL;
    if (known != NULL)
        return stw_fail_at(err, STW_STATUS_BAD_INPUT, flags->path, line, 1,
                           "found %s%.60s again (first in line %d), expected each key once: a "
                           "reader that takes the last one would hide the other",
                           stw_flags_dashes(flags), name, known->line);
    return stw_flags_add(flags, pool, name, value, line, err);
}

/* A list as one text, its items separated by spaces. */
static const char *listed(const stw_node *node, stw_pool *pool) {
    const char *text = "";
    for (size_t i = 0; i < node->n_items && text != NULL; i++) {
        const char *item = node->items[i]->text;
        if (item == NULL) item = "...";
        text = stw_pool_printf(pool, "%s%s%s", text, i > 0 ? " " : "", item);
    }
    return text;
}

static stw_status read_map(const stw_tree *tree, const stw_node *map, stw_pool *pool,
                           stw_flags *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (map->kind != STW_NODE_OBJECT)
        return stw_node_fail(tree, map, "a map of flags, such as --num-layers: 12", err);
    for (size_t i = 0; i < map->n_items; i++) {
        const stw_node *node = map->items[i];
        const char *value = NULL;
        if (node->kind == STW_NODE_NULL) continue;
        if (node->kind == STW_NODE_OBJECT)
            return stw_node_fail(tree, node, "the value of a flag", err);
        if (node->kind == STW_NODE_ARRAY)
            value = listed(node, pool);
        else
            value = unquoted(pool, node->text, strlen(node->text));
        STW_TRY(add_once(out, pool, flag_name(pool, node->key, strlen(node->key)), value,
                         node->key_line, err));
    }
out:
    return status;
}

static stw_status read_yaml(const char *text, size_t length, const char *section, stw_pool *pool,
                            stw_flags *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL;
    STW_TRY(stw_tree_parse_yaml(out->path, text, length, &tree, err));
    const stw_node *map = stw_node_get(tree->root, section);
    STW_TRY(read_map(tree, map != NULL ? map : tree->root, pool, out, err));
out:
    stw_tree_free(tree);
    return status;
}

static stw_status flatten(const stw_tree *tree, const stw_node *map, const char *before,
                          stw_pool *pool, stw_flags *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < map->n_items; i++) {
        const stw_node *node = map->items[i];
        const char *name = stw_pool_printf(pool, "%s%s%s", before, *before != '\0' ? "." : "",
                                           node->key != NULL ? node->key : "");
        if (name == NULL) return no_memory(out->path, err);
        const char *colon = node->key != NULL ? strchr(node->key, ':') : NULL;
        if (node->kind == STW_NODE_NULL && colon != NULL && colon[1] != '\0')
            return stw_fail_at(err, STW_STATUS_BAD_INPUT, out->path, node->key_line,
                               node->key_column,
                               "found \"%.60s\", which YAML reads as one key; write a space after "
                               "the colon: {%.*s: %.60s}",
                               node->key, (int)(colon - node->key), node->key, colon + 1);
        if (node->kind == STW_NODE_OBJECT)
            STW_TRY(flatten(tree, node, name, pool, out, err));
        else if (node->kind == STW_NODE_ARRAY)
            STW_TRY(add_once(out, pool, name, listed(node, pool), node->key_line, err));
        else
            STW_TRY(add_once(out, pool, name,
                             stw_pool_string(pool, node->text != NULL ? node->text : "null"),
                             node->key_line, err));
    }
out:
    return status;
}

stw_status stw_flags_parse_paths(const char *path, const char *text, size_t length, stw_pool *pool,
                                 stw_flags *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL;
    *out = (stw_flags){.path = stw_pool_string(pool, path), .dashes = ""};
    if (out->path == NULL) return no_memory(path, err);
    const size_t n = strlen(path);
    const bool named = n > 5 && strcmp(path + n - 5, ".json") == 0 && length > 0 && *text == '{';
    if (named || stw_tree_text_is_json(text, length))
        STW_TRY(stw_tree_parse_json(out->path, text, length, &tree, err));
    else
        STW_TRY(stw_tree_parse_yaml(out->path, text, length, &tree, err));
    if (tree->root->kind != STW_NODE_OBJECT)
        status = stw_node_fail(tree, tree->root, "a map of settings", err);
    else
        status = flatten(tree, tree->root, "", pool, out, err);
out:
    stw_tree_free(tree);
    return status;
}

/* ---- command lines ---- */

typedef struct words {
    const char *at, *end;
    int line;
} words;

/* The next word of a shell command; quotes stay. @return its length, 0 at the end */
static size_t next_word(words *w, const char **word) {
    for (; w->at < w->end; w->at++) {
        if (*w->at == '\n') w->line++;
        if (*w->at == '#')
            while (w->at + 1 < w->end && w->at[1] != '\n') w->at++;
        else if (!isspace((unsigned char)*w->at) && *w->at != '\\')
            break;
    }
    *word = w->at;
    char quote = '\0';
    for (; w->at < w->end; w->at++) {
        if (quote != '\0' && *w->at == '\n') w->line++; /* others are skipped before a word */
        if (quote != '\0')
            quote = *w->at == quote ? '\0' : quote;
        else if (is_quote(*w->at))
            quote = *w->at;
        else if (isspace((unsigned char)*w->at))
            break;
    }
    return (size_t)(w->at - *word);
}

static bool is_flag(const char *word, size_t length) {
    return length > 2 && word[0] == '-' && word[1] == '-' && isalpha((unsigned char)word[2]);
}

static bool is_script(const char *word, size_t length) {
    return length > 3 && memcmp(word + length - 3, ".py", 3) == 0;
}

/* What stands before the script belongs to the launcher. */
static words after_script(words all, bool *found) {
    const char *word;
    words at = all, start = all;
    for (size_t n; (n = next_word(&at, &word)) > 0;) {
        if (!is_script(word, n)) continue;
        start = at;
        *found = true;
    }
    return start;
}

static stw_status read_command(words all, stw_pool *pool, stw_flags *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *word = NULL, *next = NULL;
    bool found;
    words at = after_script(all, &found);
    size_t n = next_word(&at, &word), m;
    while (n > 0) {
        int line = at.line;
        if (!is_flag(word, n))
            return stw_fail_at(err, STW_STATUS_BAD_INPUT, out->path, line, 1,
                               "found \"%.*s\", expected --flag", (int)(n < 60 ? n : 60), word);
        const char *equals = memchr(word, '=', n), *value = "true";
        size_t length = equals != NULL ? (size_t)(equals - word) : n;
        m = next_word(&at, &next);
        if (equals != NULL) {
            value = unquoted(pool, equals + 1, n - length - 1);
        } else if (m > 0 && !is_flag(next, m)) {
            value = unquoted(pool, next, m);
            m = next_word(&at, &next);
            for (; m > 0 && !is_flag(next, m) && value != NULL; m = next_word(&at, &next))
                value = stw_pool_printf(pool, "%s %.*s", value, (int)m, next); /* of a list */
        }
        STW_TRY(stw_flags_add(out, pool, flag_name(pool, word, length), value, line, err));
        word = next;
        n = m;
    }
out:
    return status;
}

/* A command has a script in it, or begins with a flag that no colon follows. */
static bool is_command(const char *text, size_t length) {
    words at = {text, text + length, 1};
    const char *word;
    bool script = false;
    (void)after_script(at, &script);
    if (script) return true;
    size_t n = next_word(&at, &word);
    return n > 0 && is_flag(word, n) && memchr(word, ':', n) == NULL;
}

stw_status stw_flags_parse(const char *path, const char *text, size_t length, const char *section,
                           stw_pool *pool, stw_flags *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = (stw_flags){.path = stw_pool_string(pool, path)};
    if (out->path == NULL) return no_memory(path, err);
    if (is_command(text, length))
        STW_TRY(read_command((words){text, text + length, 1}, pool, out, err));
    else
        STW_TRY(read_yaml(text, length, section, pool, out, err));
    if (out->n == 0)
        status = stw_fail(err, STW_STATUS_BAD_INPUT, path,
                          "found no flag, expected a YAML map of "
                          "flags or a list of arguments");
out:
    return status;
}

void stw_flags_set_source(stw_flags *flags, const char *name, const char *source) {
    for (size_t i = 0; i < flags->n; i++)
        if (strcmp(flags->items[i].name, name) == 0) flags->items[i].source = source;
}

/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include "plan/files/plan_terms.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* ---- lines ---- */

static void cut(stw_text *text, size_t length) {
    if (text->data != NULL) text->data[length] = '\0';
    text->length = length;
}

/* @param key the node's; longer again and as before when this returns */
static void flatten(const stw_node *node, stw_text *key, stw_text *out) {
    const size_t length = key->length;
    if (node->n_items == 0 || (node->kind != STW_NODE_ARRAY && node->kind != STW_NODE_OBJECT)) {
        bool list = node->kind == STW_NODE_ARRAY || node->kind == STW_NODE_OBJECT;
        if (length > 0) stw_text_append_printable(out, key->data);
        stw_text_append(out, " = ", 3);
        stw_text_append_printable(out, list ? "[]" : node->text != NULL ? node->text : "null");
        stw_text_append(out, "\n", 1);
        return;
    }
    for (size_t i = 0; i < node->n_items; i++) {
        const stw_node *item = node->items[i];
        char index[24];
        snprintf(index, sizeof index, "%zu", i);
        if (length > 0) stw_text_append(key, ".", 1);
        stw_text_append(key, item->key != NULL ? item->key : index,
                        strlen(item->key != NULL ? item->key : index));
        if (key->failed) break;
        /* The run spec's own keys are those of --set. */
        if (strcmp(key->data, "run") == 0) cut(key, 0);
        flatten(item, key, out);
        cut(key, length);
    }
    out->failed |= key->failed;
}

stw_status stw_terms_flatten(const char *json, size_t length, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text key = STW_TEXT_INIT;
    stw_tree *tree = NULL;
    STW_TRY(stw_tree_parse_json("terms", json, length, &tree, err));
    flatten(tree->root, &key, out);
    STW_TRY(stw_text_status(out, err));
out:
    stw_tree_free(tree);
    stw_text_free(&key);
    return status;
}

stw_status stw_plan_terms_of(const stw_plan *plan, stw_plan_terms *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_plan_write_terms(plan, json);
    stw_json_end(json);
    STW_TRY(stw_json_finish(json, &text, err));
    STW_TRY(stw_terms_flatten(text.data, text.length, &out->lines, err));
    snprintf(out->hash, sizeof out->hash, "%016" PRIx64,
             (uint64_t)XXH3_64bits(out->lines.data, out->lines.length));
out:
    stw_text_free(&text);
    return status;
}

/* ---- comparing ---- */

stw_term stw_term_at(const char *text) {
    const char *equals = strstr(text, " = ");
    if (equals == NULL) return (stw_term){0};
    const char *value = equals + 3;
    return (stw_term){text, value, (int)(equals - text), (int)strcspn(value, "\n")};
}

const char *stw_term_next(const stw_term *term) {
    const char *end = term->value + term->value_length;
    return *end == '\n' ? end + 1 : end;
}

bool stw_terms_have_same_key(const stw_term *a, const stw_term *b) {
    return a->key_length == b->key_length && memcmp(a->key, b->key, (size_t)a->key_length) == 0;
}

bool stw_terms_are_same(const stw_term *a, const stw_term *b) {
    return stw_terms_have_same_key(a, b) && a->value_length == b->value_length &&
           memcmp(a->value, b->value, (size_t)a->value_length) == 0;
}

/* The line with this key; most texts have the same keys, so it is looked for from `from` on first.
 */
static stw_term find(const char *text, const stw_term *wanted, const char **from) {
    for (int pass = 0; pass < 2; pass++)
        for (stw_term t = stw_term_at(pass == 0 ? *from : text); t.key_length > 0;
             t = stw_term_at(stw_term_next(&t))) {
            if (!stw_terms_have_same_key(&t, wanted)) {
                if (pass == 0) break; /* the next line alone */
                continue;
            }
            *from = stw_term_next(&t);
            return t;
        }
    return (stw_term){0};
}

stw_status stw_terms_write(const char *lines, const char *key, stw_json *json, stw_error *err) {
    stw_text text = STW_TEXT_INIT;
    if (lines[0] == '\0') return STW_STATUS_OK;
    stw_text_append(&text, lines, strlen(lines));
    stw_status status = stw_text_status(&text, err);
    char *end = status == STW_STATUS_OK ? text.data + text.length : text.data;
    stw_json_begin_object(json, key);
    for (char *name = text.data; name < end;) {
        const stw_term t = stw_term_at(name);
        if (t.key_length == 0) break;
        char *value = name + (t.value - t.key);
        name[t.key_length] = value[t.value_length] = '\0';
        stw_json_string(json, name, value);
        name = value + t.value_length + 1;
    }
    stw_json_end(json);
    stw_text_free(&text);
    return status;
}

static bool is_one_line(const stw_node *item) {
    return item->kind == STW_NODE_STRING && item->key[0] != '\0' &&
           strchr(item->key, '\n') == NULL && strstr(item->key, " = ") == NULL &&
           strchr(item->text, '\n') == NULL;
}

stw_status stw_terms_read(const stw_tree *tree, const char *key, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *member = NULL;
    if (stw_node_get(tree->root, key) == NULL) return STW_STATUS_OK;
    STW_TRY(stw_node_object(tree, tree->root, key, &member, err));
    for (size_t i = 0; i < member->n_items; i++) {
        const stw_node *item = member->items[i];
        if (!is_one_line(item))
            STW_TRY(
                stw_node_fail(tree, item, "a setting of the plan and its value, a string", err));
        stw_text_printf(out, "%s = %s\n", item->key, item->text);
    }
    STW_TRY(stw_text_status(out, err));
out:
    return status;
}

static bool follows_from_settings(const stw_term *t) {
    static const char *const parts[] = {"layout.", "program.", "decided."};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strncmp(t->key, parts[i], strlen(parts[i])) == 0) return true;
    return false;
}

typedef struct differences {
    stw_text *out;
    bool derived; /* what follows from settings is told, too */
    unsigned n, most;
} differences;

static void tell(differences *d, const stw_term *run, const stw_term *plan) {
    const stw_term *named = run->key_length > 0 ? run : plan;
    if (follows_from_settings(named) != d->derived || d->n++ >= d->most) return;
    stw_text_printf(d->out, "%s%.*s: ", d->out->length > 0 ? "; " : "",
                    named->key_length < 80 ? named->key_length : 80, named->key);
    for (int i = 0; i < 2; i++) {
        const stw_term *t = i == 0 ? run : plan;
        stw_text_printf(d->out, "%s%.*s in the %s", i == 0 ? "" : ", ",
                        t->key_length == 0     ? 4
                        : t->value_length < 40 ? t->value_length
                                               : 40,
                        t->key_length == 0 ? "none" : t->value, i == 0 ? "run" : "plan");
    }
}

static void compare(differences *d, const char *run, const char *plan) {
    static const stw_term none = {0};
    const char *from = plan;
    for (stw_term t = stw_term_at(run); t.key_length > 0; t = stw_term_at(stw_term_next(&t))) {
        const stw_term other = find(plan, &t, &from);
        if (other.key_length == 0 || !stw_terms_are_same(&t, &other)) tell(d, &t, &other);
    }
    from = run;
    for (stw_term t = stw_term_at(plan); t.key_length > 0; t = stw_term_at(stw_term_next(&t)))
        if (find(run, &t, &from).key_length == 0) tell(d, &none, &t);
}

void stw_terms_differences(const char *run, const char *plan, stw_text *out) {
    differences d = {.out = out, .most = 4};
    compare(&d, run, plan);
    if (d.n == 0) {
        d.derived = true;
        compare(&d, run, plan);
    }
    if (d.n > d.most) stw_text_printf(out, "; and %u more", d.n - d.most);
}

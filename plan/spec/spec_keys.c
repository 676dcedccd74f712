/* SPDX-License-Identifier: Apache-2.0 */
/* Find rows, maps, words and nearest keys; read the value of a row. */
#include "plan/spec/spec_keys.h"

#include <string.h>

const stw_spec_row *stw_spec_find(const stw_spec_table *table, const char *key, size_t length) {
    for (size_t i = 0; i < table->n_rows; i++) {
        const char *known = table->rows[i].key;
        if (strncmp(known, key, length) == 0 && known[length] == '\0') return &table->rows[i];
    }
    return NULL;
}

bool stw_spec_is_map(const stw_spec_table *table, const char *key, size_t length) {
    if (length == 0) return true;
    for (size_t i = 0; i < table->n_rows; i++) {
        const char *known = table->rows[i].key;
        if (strncmp(known, key, length) == 0 && known[length] == '.') return true;
    }
    return false;
}

bool stw_spec_has_key(const stw_spec_table *table, const char *key) {
    size_t length = strlen(key);
    if (length == 0) return false;
    if (stw_spec_find(table, key, length) != NULL || stw_spec_is_map(table, key, length))
        return true;
    for (size_t i = 0; i < table->n_rows; i++) { /* roles.0.name */
        const stw_spec_row *row = &table->rows[i];
        size_t head = strlen(row->key);
        if (row->kind != STW_SPEC_ITEMS || strncmp(key, row->key, head) != 0 || key[head] != '.')
            continue;
        const char *rest = key + head + 1;
        size_t digits = strspn(rest, "0123456789");
        /* This table refuses an unknown rest: it knows the nearest key. */
        if (digits > 0 && rest[digits] == '.' && rest[digits + 1] != '\0') return true;
    }
    return false;
}

/* The part of a dotted key behind its last dot. */
static const char *last_part(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot != NULL ? dot + 1 : key;
}

enum { MOST_ROWS = 128 };

const char *stw_spec_nearest(const stw_spec_table *table, const char *key) {
    const char *keys[MOST_ROWS];
    size_t n = 0;
    for (size_t i = 0; i < table->n_rows; i++) {
        const char *known = table->rows[i].key;
        /* The right name without its map, or in another one: seq_len for batch.seq_len. */
        if (strcmp(last_part(known), last_part(key)) == 0) return known;
        if (n < MOST_ROWS) keys[n++] = known;
    }
    return stw_nearest(key, keys, n);
}

uint64_t stw_spec_get_u64(const stw_spec_row *row, const void *base) {
    const char *at = (const char *)base + row->offset;
    bool truth = false;
    uint32_t narrow = 0;
    uint64_t wide = 0;
    switch (row->size) {
    case sizeof truth:
        memcpy(&truth, at, sizeof truth);
        return truth;
    case sizeof narrow:
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    case sizeof wide:
        memcpy(&wide, at, sizeof wide);
        return wide;
    default:
        return 0;
    }
}

double stw_spec_get_double(const stw_spec_row *row, const void *base) {
    double value;
    memcpy(&value, (const char *)base + row->offset, sizeof value);
    return value;
}

const stw_spec_word *stw_spec_word_of(const stw_spec_row *row, const void *base) {
    for (const stw_spec_word *w = row->words; w != NULL && w->word != NULL; w++) {
        switch (row->kind) {
        case STW_SPEC_WORDS:
        case STW_SPEC_MAP:
        case STW_SPEC_COUNT:
        case STW_SPEC_BYTES:
            if (stw_spec_get_u64(row, base) == w->value) return w;
            break;
        case STW_SPEC_NUMBER: {
            double value = stw_spec_get_double(row, base);
            if (value >= (double)w->value && value <= (double)w->value) return w;
            break;
        }
        case STW_SPEC_STRING: {
            const char *text = NULL;
            memcpy(&text, (const char *)base + row->offset, sizeof text);
            if (text == NULL) return w;
            break;
        }
        default:
            return NULL;
        }
    }
    return NULL;
}

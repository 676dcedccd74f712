/* SPDX-License-Identifier: Apache-2.0 */
/* Find rows, maps, words and nearest keys; read the value of a row. */
#include "plan/spec/spec_keys.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const stw_spec_row *stw_spec_find(const stw_spec_table *table, const char *key, size_t length) {
    for (size_t i = 0; i < table->n_rows; i++) {
        const char *known = table->rows[i].key;
        if (known[0] == key[0] && strncmp(known, key, length) == 0 && known[length] == '\0')
            return &table->rows[i];
    }
    return NULL;
}

bool stw_spec_is_map(const stw_spec_table *table, const char *key, size_t length) {
    if (length == 0) return true;
    for (size_t i = 0; i < table->n_rows; i++) {
        const char *known = table->rows[i].key;
        if (known[0] == key[0] && strncmp(known, key, length) == 0 && known[length] == '.')
            return true;
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

enum { MOST_ROWS = 512, SHORTEST_PART = 2, LONGEST_HINT = 96 };

static int plain_letter(char c) { return c == '-' || c == '.' ? '_' : tolower((unsigned char)c); }

/* Letters alike in both cases, '-' and '.' as '_'; both are `n` long at least. */
static bool same_letters(const char *a, const char *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (plain_letter(a[i]) != plain_letter(b[i])) return false;
    return true;
}

/* Is `word` one of the words of a list with this separator? */
static bool is_among(const char *list, const char *separator, const char *word) {
    size_t length = strlen(word);
    while (list != NULL && *list != '\0') {
        size_t n = strcspn(list, separator);
        if (n == length && same_letters(list, word, n)) return true;
        list += n + strspn(list + n, separator);
    }
    return false;
}

/* Does one of the two begin the other, up to an underscore: "micro_batch_size", "seq"? */
static bool begins(const char *a, const char *b) {
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > n_b) return begins(b, a);
    return n_a >= SHORTEST_PART && plain_letter(b[n_a]) == '_' && same_letters(a, b, n_a);
}

/* 0: the right name without its map, or in another one (seq_len for batch.seq_len); 1: another
 * name of it, or the map alone; 2: a longer or a shorter name. */
static int remoteness(const stw_spec_row *row, const char *key) {
    const char *word = last_part(key);
    if (is_among(last_part(row->key), ".", word) || is_among(row->key, " ", key)) return 0;
    if (is_among(row->also, " ", word) || is_among(row->also, " ", key)) return 1;
    if (is_among(row->key, ".", key)) return 1;
    return begins(last_part(row->key), word) ? 2 : 3;
}

/* The key that is spelt most alike, as a whole or in its last part. */
static const char *alike(const stw_spec_table *const *tables, size_t n_tables, const char *key,
                         bool last) {
    const char *keys[MOST_ROWS] = {NULL}, *spelt[MOST_ROWS] = {NULL};
    size_t n = 0;
    for (size_t t = 0; t < n_tables; t++)
        for (size_t i = 0; i < tables[t]->n_rows && n < MOST_ROWS; i++) {
            keys[n] = tables[t]->rows[i].key;
            spelt[n] = last ? last_part(keys[n]) : keys[n];
            n++;
        }
    const char *word = last ? last_part(key) : key;
    if (strlen(word) <= SHORTEST_PART) return NULL; /* like almost any other */
    const char *near = stw_nearest(word, spelt, n);
    for (size_t i = 0; i < n && near != NULL; i++)
        if (spelt[i] == near) return keys[i];
    return NULL;
}

/* Is the row in the map that the key names, or seems to name? */
static bool in_its_map(const stw_spec_row *row, const char *key) {
    char own[LONGEST_HINT], wanted[LONGEST_HINT];
    const char *name = own;
    int n_own = (int)(last_part(row->key) - row->key), n_key = (int)(last_part(key) - key);
    if (n_own == 0 || n_key == 0) return false;
    snprintf(own, sizeof own, "%.*s", n_own - 1, row->key);
    snprintf(wanted, sizeof wanted, "%.*s", n_key - 1, key);
    return stw_nearest(wanted, &name, 1) != NULL;
}

/* Keys of this remoteness after the `n` that were found before: those of the key's own map alone,
 * if there are some. */
static size_t add_near(const stw_spec_table *const *tables, size_t n_tables, const char *key,
                       int level, size_t n, const char **out, size_t most) {
    size_t before = n;
    for (int everywhere = strchr(key, '.') == NULL; everywhere < 2 && n == before; everywhere++)
        for (size_t t = 0; t < n_tables; t++)
            for (size_t i = 0; i < tables[t]->n_rows && n < most; i++) {
                const stw_spec_row *row = &tables[t]->rows[i];
                if (remoteness(row, key) == level && (everywhere > 0 || in_its_map(row, key)))
                    out[n++] = row->key;
            }
    return n;
}

size_t stw_spec_meant(const stw_spec_table *const *tables, size_t n_tables, const char *key,
                      const char **out, size_t most) {
    size_t n = add_near(tables, n_tables, key, 0, 0, out, most);
    bool placed = n == 1 && strchr(key, '.') != NULL; /* right but for its map */
    return placed ? n : add_near(tables, n_tables, key, 1, n, out, most);
}

size_t stw_spec_near(const stw_spec_table *const *tables, size_t n_tables, const char *key,
                     const char **out, size_t most) {
    size_t n = stw_spec_meant(tables, n_tables, key, out, most);
    if (most == 0 || n > 0) return n;
    if ((out[0] = alike(tables, n_tables, key, false)) != NULL) return 1;
    n = add_near(tables, n_tables, key, 2, 0, out, most);
    if (n == 0 && (out[0] = alike(tables, n_tables, key, true)) != NULL) n = 1;
    return n;
}

void stw_spec_hint(const char *prefix, const char *const *keys, size_t n, char *out,
                   size_t out_size) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n && used < out_size; i++) {
        const char *before = i == 0 ? "; did you mean " : i + 1 < n ? ", " : " or ";
        used += (size_t)snprintf(out + used, out_size - used, "%s\"%s%.*s\"%s", before, prefix,
                                 LONGEST_HINT, keys[i], i + 1 == n ? "?" : "");
    }
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

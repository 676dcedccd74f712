/* SPDX-License-Identifier: Apache-2.0 */
/* Write a spec: as members of a JSON document, and as YAML for people. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan/spec/run_spec.h"
#include "plan/spec/spec_keys.h"

enum { LONGEST_NAME = 40 };

/* What a format does at each step of a walk over the rows. */
typedef struct format {
    void (*open)(void *to, const char *name);
    void (*close)(void *to);
    void (*row)(void *to, const stw_spec_row *row, const char *name, const void *base);
} format;

static bool inside(const char *key, const char *map, size_t length) {
    return strncmp(key, map, length) == 0 && key[length] == '.';
}

/* Visit all rows in order; open and close the maps around them. A map that is off is one row.
 */
static void walk(const stw_spec_table *table, const void *base, const format *f, void *to) {
    const char *open = "", *off = NULL;
    size_t open_length = 0;
    for (size_t i = 0; i <= table->n_rows; i++) {
        const stw_spec_row *row = i < table->n_rows ? &table->rows[i] : NULL;
        const char *key = row != NULL ? row->key : "";
        if (row != NULL && off != NULL && inside(key, off, strlen(off))) continue;
        if (row != NULL && row->kind == STW_SPEC_MAP) {
            if (stw_spec_get_u64(row, base) != 0) continue;
            off = key;
        }
        while (open_length > 0 && !inside(key, open, open_length)) {
            f->close(to);
            while (open_length > 0 && open[--open_length] != '.') {
            }
        }
        if (row == NULL) break;
        const char *part = key + (open_length > 0 ? open_length + 1 : 0);
        for (const char *dot; (dot = strchr(part, '.')) != NULL; part = dot + 1) {
            char name[LONGEST_NAME];
            snprintf(name, sizeof name, "%.*s", (int)(dot - part), part);
            f->open(to, name);
            open = key;
            open_length = (size_t)(dot - key);
        }
        f->row(to, row, part, base);
    }
}

static const void *item_at(const stw_spec_row *row, const void *base, uint32_t index) {
    const char *items = NULL;
    memcpy(&items, (const char *)base + row->offset, sizeof items);
    return items + index * row->items->item_size;
}

static uint32_t item_count(const stw_spec_row *row, const void *base) {
    uint32_t n = 0;
    memcpy(&n, (const char *)base + row->items->count_offset, sizeof n);
    return n;
}

static const char *string_of(const stw_spec_row *row, const void *base) {
    const char *at = (const char *)base + row->offset, *text = at;
    if (row->kind == STW_SPEC_STRING) memcpy(&text, at, sizeof text);
    return text != NULL ? text : "";
}

static void strings_of(const stw_spec_row *row, const void *base, stw_strings *out) {
    memcpy(out, (const char *)base + row->offset, sizeof *out);
}

static void pair_of(const stw_spec_row *row, const void *base, double out[2]) {
    memcpy(out, (const char *)base + row->offset, 2 * sizeof out[0]);
}

static bool flag_of(const stw_spec_row *row, const void *base, const stw_spec_word *word) {
    bool set;
    memcpy(&set, (const char *)base + row->offset + word->value, sizeof set);
    return set;
}

static void json_open(void *to, const char *name) { stw_json_begin_object(to, name); }
static void json_close(void *to) { stw_json_end(to); }

static void json_list(stw_json *json, const stw_spec_row *row, const char *name, const void *base) {
    stw_json_begin_array(json, name);
    if (row->kind == STW_SPEC_PAIR) {
        double pair[2];
        pair_of(row, base, pair);
        for (int i = 0; i < 2; i++) stw_json_double(json, NULL, pair[i]);
    } else if (row->kind == STW_SPEC_STRINGS) {
        stw_strings list;
        strings_of(row, base, &list);
        for (uint32_t i = 0; i < list.n; i++) stw_json_string(json, NULL, list.items[i]);
    } else if (row->kind == STW_SPEC_FLAGS) {
        for (const stw_spec_word *w = row->words; w->word != NULL; w++)
            if (flag_of(row, base, w)) stw_json_string(json, NULL, w->word);
    } else {
        for (uint32_t i = 0; i < item_count(row, base); i++) {
            stw_json_begin_object(json, NULL);
            stw_spec_write_json(row->items->table, item_at(row, base, i), json);
            stw_json_end(json);
        }
    }
    stw_json_end(json);
}

static void json_row(void *to, const stw_spec_row *row, const char *name, const void *base) {
    const stw_spec_word *word = stw_spec_word_of(row, base);
    if (word != NULL) {
        stw_json_string(to, name, word->word);
        return;
    }
    switch (row->kind) {
    case STW_SPEC_BOOL:
        stw_json_bool(to, name, stw_spec_get_u64(row, base) != 0);
        break;
    case STW_SPEC_COUNT:
    case STW_SPEC_BYTES:
        stw_json_u64(to, name, stw_spec_get_u64(row, base));
        break;
    case STW_SPEC_NUMBER:
        stw_json_double(to, name, stw_spec_get_double(row, base));
        break;
    case STW_SPEC_TEXT:
    case STW_SPEC_STRING:
        stw_json_string(to, name, string_of(row, base));
        break;
    case STW_SPEC_WORDS:
    case STW_SPEC_MAP:
        stw_json_null(to, name);
        break; /* readers cannot set such a value */
    default:
        json_list(to, row, name, base);
        break;
    }
}

void stw_spec_write_json(const stw_spec_table *table, const void *base, stw_json *json) {
    static const format f = {json_open, json_close, json_row};
    walk(table, base, &f, json);
}

/* A size as people write it ("139.8 GiB") where few digits say it exactly, else in full. */
static void format_bytes(uint64_t bytes, char *out, size_t out_size) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"TiB", 1099511627776.0}, {"GiB", 1073741824.0}, {"MiB", 1048576.0}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        double value = (double)bytes / units[i].bytes;
        for (int digits = 0; value >= 1 && digits <= 2; digits++) {
            uint64_t back = 0;
            snprintf(out, out_size, "%.*f %s", digits, value, units[i].name);
            if (stw_u64_parse(out, STW_UNIT_BYTES, &back, NULL, NULL) == STW_STATUS_OK &&
                back == bytes)
                return;
        }
    }
    stw_bytes_format_exact(bytes, out, out_size);
}

/* Can a string stand without quotes, in a list as well, and be read as a string? */
static bool is_plain(const char *text) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    static const char rest[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                               "0123456789_./+- ";
    if (text[0] == '\0' || strchr(letters, text[0]) == NULL) return false;
    if (text[strspn(text, rest)] != '\0' || text[strlen(text) - 1] == ' ') return false;
    return strcmp(text, "true") != 0 && strcmp(text, "false") != 0 && strcmp(text, "null") != 0;
}

/* Readers accept only printable UTF-8, so only quotes and backslashes need escapes. */
static void yaml_string(stw_text *out, const char *text) {
    if (is_plain(text)) {
        stw_text_printf(out, "%s", text);
        return;
    }
    stw_text_append(out, "\"", 1);
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\') stw_text_append(out, "\\", 1);
        stw_text_append(out, p, 1);
    }
    stw_text_append(out, "\"", 1);
}

static void yaml_list(stw_text *out, const stw_spec_row *row, const void *base) {
    const char *comma = "";
    stw_text_append(out, "[", 1);
    if (row->kind == STW_SPEC_PAIR) {
        double pair[2];
        char first[32], second[32];
        pair_of(row, base, pair);
        stw_text_double(pair[0], first, sizeof first);
        stw_text_double(pair[1], second, sizeof second);
        stw_text_printf(out, "%s, %s", first, second);
    } else if (row->kind == STW_SPEC_STRINGS) {
        stw_strings list;
        strings_of(row, base, &list);
        for (uint32_t i = 0; i < list.n; i++, comma = ", ") {
            stw_text_printf(out, "%s", comma);
            yaml_string(out, list.items[i]);
        }
    } else if (row->kind == STW_SPEC_FLAGS) {
        for (const stw_spec_word *w = row->words; w->word != NULL; w++) {
            if (!flag_of(row, base, w)) continue;
            stw_text_printf(out, "%s%s", comma, w->word);
            comma = ", ";
        }
    } else if (item_count(row, base) > 0) {
        stw_text_printf(out, "%u maps", (unsigned)item_count(row, base)); /* for messages only */
    }
    stw_text_append(out, "]", 1);
}

void stw_spec_write_value(const stw_spec_row *row, const void *base, stw_text *out) {
    const stw_spec_word *word = stw_spec_word_of(row, base);
    char text[64] = "";
    if (word != NULL) {
        stw_text_printf(out, "%s", word->word);
        return;
    }
    switch (row->kind) {
    case STW_SPEC_BOOL:
        stw_text_printf(out, "%s", stw_spec_get_u64(row, base) != 0 ? "true" : "false");
        return;
    case STW_SPEC_COUNT:
        stw_text_printf(out, "%" PRIu64, stw_spec_get_u64(row, base));
        return;
    case STW_SPEC_BYTES:
        format_bytes(stw_spec_get_u64(row, base), text, sizeof text);
        break;
    case STW_SPEC_NUMBER:
        if (row->unit == STW_UNIT_RATIO)
            stw_text_double(stw_spec_get_double(row, base), text, sizeof text);
        else
            stw_quantity_format_exact(stw_spec_get_double(row, base), row->unit, text, sizeof text);
        break;
    case STW_SPEC_TEXT:
    case STW_SPEC_STRING:
        yaml_string(out, string_of(row, base));
        return;
    case STW_SPEC_WORDS:
    case STW_SPEC_MAP:
        break;
    default:
        yaml_list(out, row, base);
        return;
    }
    stw_text_printf(out, "%s", text);
}

typedef struct yaml_state {
    stw_text *out;
    int indent;   /* in spaces */
    bool dash;    /* the next line begins an item */
    bool comment; /* lines are comments */
} yaml_state;

static void yaml_name(yaml_state *y, const char *name) {
    int indent = y->dash ? y->indent - 2 : y->indent;
    stw_text_printf(y->out, "%s%*s%s%s:", y->comment ? "# " : "", indent, "", y->dash ? "- " : "",
                    name);
    y->dash = false;
}

static void yaml_open(void *to, const char *name) {
    yaml_state *y = to;
    yaml_name(y, name);
    stw_text_append(y->out, "\n", 1);
    y->indent += 2;
}

static void yaml_close(void *to) { ((yaml_state *)to)->indent -= 2; }

static void yaml_note(yaml_state *y, const stw_spec_row *row) {
    const char *before = "  # ";
    if (row->search != 0) {
        stw_text_printf(y->out, "%sauto: searched", before);
        before = row->note != NULL ? "; " : " | ";
    }
    if (row->note != NULL) {
        if (row->note[0] != '\0') stw_text_printf(y->out, "%s%s", before, row->note);
        return;
    }
    for (const stw_spec_word *w = row->words; w != NULL && w->word != NULL; w++) {
        if (w->instead != NULL) continue; /* not accepted */
        stw_text_printf(y->out, "%s%s", before, w->word);
        before = " | ";
    }
}

static void yaml_row(void *to, const stw_spec_row *row, const char *name, const void *base);

/* The keys of an empty list's items, as comments, with their defaults. */
static void yaml_item_keys(yaml_state *y, const stw_spec_row *row) {
    stw_pool *pool = stw_pool_new();
    void *item = pool == NULL ? NULL : stw_pool_alloc(pool, row->items->item_size);
    const stw_spec usual = {row->items->table, item, pool, NULL};
    static const format f = {yaml_open, yaml_close, yaml_row};
    yaml_state inside = {y->out, y->indent + 2, true, true};
    if (item == NULL || stw_spec_defaults(&usual, NULL) != STW_STATUS_OK)
        y->out->failed = true;
    else
        walk(row->items->table, item, &f, &inside);
    stw_pool_free(pool);
}

static void yaml_row(void *to, const stw_spec_row *row, const char *name, const void *base) {
    static const format f = {yaml_open, yaml_close, yaml_row};
    yaml_state *y = to;
    yaml_name(y, name);
    if (row->kind != STW_SPEC_ITEMS || item_count(row, base) == 0) {
        stw_text_append(y->out, " ", 1);
        stw_spec_write_value(row, base, y->out);
        yaml_note(y, row);
        stw_text_append(y->out, "\n", 1);
        if (row->kind == STW_SPEC_ITEMS) yaml_item_keys(y, row);
        return;
    }
    stw_text_append(y->out, "\n", 1);
    for (uint32_t i = 0; i < item_count(row, base); i++) {
        yaml_state item = {y->out, y->indent + 4, true, y->comment};
        walk(row->items->table, item_at(row, base, i), &f, &item);
    }
}

void stw_spec_write_yaml(const stw_spec_table *table, const void *base, stw_text *out) {
    static const format f = {yaml_open, yaml_close, yaml_row};
    yaml_state y = {out, 0, false, false};
    walk(table, base, &f, &y);
}

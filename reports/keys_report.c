/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of run.yaml and cluster.yaml: values, default, meaning, and where a key has no effect.
 * Everything comes from the tables with which the specs are read. */
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "plan/spec/registry.h"
#include "reports/table.h"

enum { N_COLUMNS = 5, MOST_IN_FULL = 12 };

static const char *const heads[N_COLUMNS] = {"key", "values", "default", "meaning",
                                             "no effect where"};

static const char *kind_of(const stw_spec_row *row) {
    static const char *const units[] = {
        [STW_UNIT_BYTES] = "size",    [STW_UNIT_BPS] = "bytes per second",
        [STW_UNIT_FLOPS] = "FLOP/s",  [STW_UNIT_PPS] = "parameters per second",
        [STW_UNIT_SECONDS] = "time",  [STW_UNIT_COUNT] = "number",
        [STW_UNIT_TOKENS] = "tokens", [STW_UNIT_RATIO] = "number or percent"};
    switch (row->kind) {
    case STW_SPEC_BOOL:
        return "true | false";
    case STW_SPEC_COUNT:
        return row->unit == STW_UNIT_TOKENS ? "tokens" : "whole number";
    case STW_SPEC_BYTES:
        return "size";
    case STW_SPEC_NUMBER:
        return units[row->unit];
    case STW_SPEC_PAIR:
        return "two numbers";
    case STW_SPEC_TEXT:
    case STW_SPEC_STRING:
        return "text";
    case STW_SPEC_STRINGS:
        return "list of texts";
    case STW_SPEC_FLAGS:
        return "list of words";
    case STW_SPEC_MAP:
        return "map";
    case STW_SPEC_ITEMS:
        return "list of maps";
    default:
        return "";
    }
}

static void append(stw_text *out, const char *text) {
    if (text[0] != '\0') stw_text_printf(out, "%s%s", out->length > 0 ? " | " : "", text);
}

/* "auto | none | full", "auto | whole number, 1 to 32768". Words that are refused are left out. */
static void values_of(const stw_spec_row *row, stw_text *out) {
    bool has_auto = false;
    for (const stw_spec_word *w = row->words; w != NULL && w->word != NULL; w++) {
        if (w->instead != NULL) continue;
        has_auto |= strcmp(w->word, "auto") == 0;
        append(out, w->word);
    }
    if (row->search != 0 && !has_auto) append(out, "auto");
    if (row->kind == STW_SPEC_WORDS) return;
    append(out, kind_of(row));
    if (row->kind != STW_SPEC_COUNT) return;
    if (row->most > 0)
        stw_text_printf(out, ", %.0f to %.0f", row->least, row->most);
    else if (row->least > 0)
        stw_text_printf(out, ", at least %.0f", row->least);
}

static void needs_of(const stw_spec_row *row, stw_text *out) {
#define X(name, why, instead) why,
    static const char *const whys[] = {STW_NEED_TABLE(X)};
#undef X
    for (unsigned n = 0; n < STW_N_NEEDS; n++)
        if (row->needs >> n & 1) stw_text_printf(out, "%s%s", out->length > 0 ? "; " : "", whys[n]);
}

typedef struct strings {
    stw_text values, needs;
} strings;

static strings strings_of(const stw_spec_row *row) {
    strings s = {STW_TEXT_INIT, STW_TEXT_INIT};
    values_of(row, &s.values);
    needs_of(row, &s.needs);
    return s;
}

static void strings_free(strings *s) {
    stw_text_free(&s->values);
    stw_text_free(&s->needs);
}

static const char *text_of(const stw_text *text) { return text->data != NULL ? text->data : ""; }

static stw_status keys_json(const stw_listed_key *keys, size_t n, stw_text *out, stw_error *err) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.keys/1");
    stw_json_begin_array(json, "keys");
    for (size_t i = 0; i < n; i++) {
        const stw_spec_row *row = keys[i].row;
        strings s = strings_of(row);
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "file", keys[i].file);
        stw_json_string(json, "key", keys[i].key);
        stw_json_string(json, "values", text_of(&s.values));
        stw_json_string(json, "default", row->fallback != NULL ? row->fallback : "");
        stw_json_string(json, "meaning", row->note != NULL ? row->note : "");
        stw_json_string(json, "no_effect_where", text_of(&s.needs));
        stw_json_end(json);
        strings_free(&s);
    }
    stw_json_end(json);
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

static void key_row(stw_table *t, const stw_listed_key *key) {
    strings s = strings_of(key->row);
    stw_table_cell(t, "%s", key->key);
    stw_table_cell(t, "%s", text_of(&s.values));
    stw_table_cell(t, "%s", key->row->fallback != NULL ? key->row->fallback : "");
    stw_table_cell(t, "%s", key->row->note != NULL ? key->row->note : "");
    stw_table_cell(t, "%s", text_of(&s.needs));
    strings_free(&s);
}

/* Keys of one map of one file share a table; so do the keys of a file that are in no map. */
static bool same_table(const stw_listed_key *a, const stw_listed_key *b) {
    size_t in_a = strcspn(a->key, "."), in_b = strcspn(b->key, ".");
    bool nested_a = a->key[in_a] != '\0', nested_b = b->key[in_b] != '\0';
    if (strcmp(a->file, b->file) != 0 || nested_a != nested_b) return false;
    return !nested_a || (in_a == in_b && strncmp(a->key, b->key, in_a) == 0);
}

/* Terminal: a line for the key, and its meaning below; a table would not fit into 80 columns. */
static void key_lines(const stw_listed_key *key, stw_text *out) {
    strings s = strings_of(key->row);
    const char *fallback = key->row->fallback != NULL ? key->row->fallback : "";
    stw_text_printf(out, "%s: %s\n", key->key, fallback[0] != '\0' ? fallback : "\"\"");
    stw_doc_line(out, STW_FORMAT_TERMINAL, "  values: %s", text_of(&s.values));
    if (key->row->note != NULL && key->row->note[0] != '\0')
        stw_doc_line(out, STW_FORMAT_TERMINAL, "  %s", key->row->note);
    if (s.needs.length > 0)
        stw_doc_line(out, STW_FORMAT_TERMINAL, "  no effect where: %s", text_of(&s.needs));
    strings_free(&s);
}

/* Terminal, of many keys: names and defaults alone. */
static void key_names(const stw_listed_key *keys, size_t n, stw_pool *pool, stw_text *out) {
    static const char *const heads_short[] = {"key", "default"};
    stw_table t;
    stw_table_begin(&t, pool, heads_short, 2);
    for (size_t i = 0; i < n; i++) {
        stw_table_cell(&t, "%s", keys[i].key);
        stw_table_cell(&t, "%s", keys[i].row->fallback != NULL ? keys[i].row->fallback : "");
    }
    stw_table_write(&t, STW_FORMAT_TERMINAL, out);
}

stw_status stw_report_keys(const stw_listed_key *keys, size_t n, stw_format format, stw_text *out,
                           stw_error *err) {
    if (format == STW_FORMAT_JSON) return keys_json(keys, n, out, err);
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a list");
    if (format == STW_FORMAT_TERMINAL) {
        for (size_t i = 0; n <= MOST_IN_FULL && i < n; i++) key_lines(&keys[i], out);
        if (n > MOST_IN_FULL) key_names(keys, n, pool, out);
        stw_pool_free(pool);
        return stw_text_status(out, err);
    }
    if (format == STW_FORMAT_MARKDOWN) {
        stw_doc_title(out, format, "Keys");
        stw_doc_line(out, format,
                     "Every key of run.yaml and cluster.yaml, as `stowage keys` lists them. "
                     "`--set KEY=VALUE` sets one. Sizes and rates need a unit (`16 MiB`, `50 "
                     "GB/s`), tokens may be written as `8k`. `auto` lets the planner decide. A "
                     "key that has no effect on the engine, model or cluster is refused.");
    }
    for (size_t first = 0, last; first < n; first = last) {
        stw_table t;
        last = first + 1;
        while (last < n && (format == STW_FORMAT_CSV || same_table(&keys[first], &keys[last])))
            last++;
        const char *key = keys[first].key, *dot = strchr(key, '.');
        if (format == STW_FORMAT_MARKDOWN)
            stw_doc_heading(out, format,
                            dot == NULL ? keys[first].file
                                        : stw_pool_printf(pool, "%s: %.*s", keys[first].file,
                                                          (int)(dot - key), key));
        stw_table_begin(&t, pool, heads, N_COLUMNS);
        for (size_t i = first; i < last; i++) key_row(&t, &keys[i]);
        stw_table_write(&t, format, out);
    }
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* strcasecmp */
#include "planner/frameworks/import/reading.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST = 1 << 30 };

/* ---- values ---- */

const char *stw_reading_text(const stw_reading *r, const char *name, const char *fallback) {
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    return flag != NULL ? flag->value : fallback;
}

static bool is_one_of(const char *const words[], const char *text) {
    for (; *words != NULL; words++)
        if (strcasecmp(*words, text) == 0) return true;
    return false;
}

bool stw_reading_denies(const char *value) {
    static const char *const no[] = {"false", "0", "none", "null", "no", "off", NULL};
    return is_one_of(no, value);
}

static bool affirms(const char *value) {
    static const char *const yes[] = {"true", "1", "yes", "on", NULL};
    return is_one_of(yes, value);
}

bool stw_reading_is_set(stw_reading *r, const char *name) {
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    if (flag == NULL || stw_reading_denies(flag->value)) return false;
    if (!affirms(flag->value))
        stw_reading_fail(r, stw_flag_fail(&r->flags, flag, "true or false", r->err));
    return true;
}

bool stw_reading_parse_count(const char *text, uint64_t *out) {
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    *out = strtoull(text, &end, 10);
    return *end == '\0' && *out <= MOST;
}

void stw_reading_fail(stw_reading *r, stw_status status) {
    if (r->status == STW_STATUS_OK) r->status = status;
}

/* @return `fallback` without the flag */
uint64_t stw_reading_count(stw_reading *r, const char *name, uint64_t fallback) {
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    uint64_t value = fallback;
    if (flag != NULL && strcasecmp(flag->value, "none") != 0 &&
        strcasecmp(flag->value, "null") != 0 && !stw_reading_parse_count(flag->value, &value))
        stw_reading_fail(
            r, stw_flag_fail(&r->flags, flag, "a whole number from 0 to 1073741824", r->err));
    return value;
}

const char *stw_reading_named(const stw_reading *r, const char *name) {
    for (size_t i = 0; r->names != NULL && r->names[i][0] != NULL; i++) {
        const size_t n = strlen(r->names[i][0]);
        if (strncmp(name, r->names[i][0], n) != 0) continue;
        const char *text = stw_pool_printf(r->out->pool, "%s%s", r->names[i][1], name + n);
        return text != NULL ? text : name;
    }
    return name;
}

/* ---- values with references ---- */

static bool is_null(const char *text) {
    return strcasecmp(text, "null") == 0 || strcasecmp(text, "none") == 0 ||
           strcmp(text, "???") == 0 || *text == '\0';
}

/* Not ${HOME}/models. */
bool stw_reading_is_reference(const char *text) {
    return strncmp(text, "${", 2) == 0 && text[strlen(text) - 1] == '}';
}

/* References to other keys: ${a.b}, ${oc.select:a.b,default}. Relative ones are left to defaults.
 */
const char *stw_reading_value(stw_reading *r, const char *name, const char *fallback) {
    const char *text = stw_reading_text(r, name, NULL);
    for (int depth = 0; text != NULL && stw_reading_is_reference(text) && depth < 8; depth++) {
        const char *in = text + 2;
        if (strncmp(in, "oc.select:", 10) == 0) in += strlen("oc.select:");
        const size_t length = strcspn(in, ",}");
        const char *path = stw_pool_printf(r->out->pool, "%.*s", (int)length, in);
        text = path != NULL ? stw_reading_text(r, path, NULL) : NULL;
        if (text != NULL || in[length] != ',') continue;
        const char *rest = in + length + 1; /* the default, without the bracket */
        const size_t n = strlen(rest);
        if (n > 0) text = stw_pool_printf(r->out->pool, "%.*s", (int)(n - 1), rest);
    }
    return text == NULL || is_null(text) ? fallback : text;
}

bool stw_reading_is_on(stw_reading *r, const char *name, bool fallback) {
    const char *text = stw_reading_value(r, name, NULL);
    if (text == NULL) return fallback;
    if (affirms(text)) return true;
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    if (flag != NULL && !stw_reading_denies(text) && r->status == STW_STATUS_OK) {
        const stw_flag resolved = {flag->name, text, flag->line, NULL};
        r->status = stw_flag_fail(&r->flags, &resolved, "true or false", r->err);
    }
    return false;
}

uint64_t stw_reading_number(stw_reading *r, const char *name, uint64_t fallback) {
    const char *text = stw_reading_value(r, name, NULL);
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    uint64_t n = fallback;
    if (text != NULL && flag != NULL && !stw_reading_parse_count(text, &n))
        stw_reading_fail(r, stw_flag_fail(&r->flags, flag, "a whole number", r->err));
    return n;
}

void stw_reading_add_pairs(stw_reading *r, const stw_flag_pair *pairs) {
    for (; pairs->name != NULL && r->status == STW_STATUS_OK; pairs++)
        r->status = stw_flags_add(&r->flags, r->out->pool, pairs->name, pairs->value, 0, r->err);
}

/* ---- what becomes of them ---- */

void stw_reading_line(stw_reading *r, stw_import_use use, const char *flag, const char *value,
                      const char *note) {
    stw_import *out = r->out;
    stw_import_line *grown = stw_pool_grow(out->pool, out->lines, out->n_lines, out->n_lines + 1,
                                           &out->lines_capacity, sizeof *grown);
    if (grown == NULL || flag == NULL || value == NULL || note == NULL) {
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NO_MEMORY, out->path, "out of memory"));
        return;
    }
    out->lines = grown;
    out->lines[out->n_lines++] = (stw_import_line){use, flag, value, note, NULL};
}

void stw_reading_assume(stw_reading *r, const char *what, const char *value, const char *note) {
    stw_reading_line(r, STW_IMPORT_ASSUMED, what, value, note);
}

void stw_reading_assume_key(stw_reading *r, const char *what, const char *value, const char *note,
                            const char *key) {
    const size_t before = r->out->n_lines;
    stw_reading_assume(r, what, value, note);
    if (r->out->n_lines > before) r->out->lines[before].key = key;
}

void stw_reading_set(stw_reading *r, const char *key, const char *value) {
    stw_import *out = r->out;
    const char **grown = stw_pool_grow(out->pool, out->settings, out->n_settings,
                                       out->n_settings + 1, &out->settings_capacity, sizeof *grown);
    const char *setting = stw_pool_printf(out->pool, "%s=%s", key, value);
    if (grown == NULL || setting == NULL) {
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NO_MEMORY, out->path, "out of memory"));
        return;
    }
    out->settings = grown;
    out->settings[out->n_settings++] = setting;
}

void stw_reading_set_count(stw_reading *r, const char *key, uint64_t value) {
    const char *text = stw_pool_printf(r->out->pool, "%llu", (unsigned long long)value);
    stw_reading_set(r, key, text != NULL ? text : "0");
}

void stw_reading_set_switch(stw_reading *r, const char *key, bool value) {
    stw_reading_set(r, key, value ? "true" : "false");
}

bool stw_reading_same(const char *a, const char *b) {
    char *end_a, *end_b;
    double x = strtod(a, &end_a), y = strtod(b, &end_b);
    if (*end_a == '\0' && *end_b == '\0' && *a != '\0' && *b != '\0') return !(x < y) && !(y < x);
    return strcasecmp(a, b) == 0;
}

static void take(stw_reading *r, const stw_flag_row *row, const stw_flag *flag) {
    uint64_t count = 0;
    if (row->type == STW_FLAG_COUNT) count = stw_reading_count(r, flag->name, 0);
    if (row->use == STW_FLAG_RUN) {
        if (row->type == STW_FLAG_SWITCH)
            stw_reading_set_switch(r, row->key, stw_reading_is_set(r, flag->name));
        else if (row->type == STW_FLAG_COUNT)
            stw_reading_set_count(r, row->key, count);
        else
            stw_reading_set(r, row->key, flag->value);
    } else if (row->use == STW_FLAG_MODEL) {
        if (row->type == STW_FLAG_SWITCH)
            stw_json_bool(r->json, row->key, stw_reading_is_set(r, flag->name));
        else
            stw_json_u64(r->json, row->key, count);
    }
    if (flag->line > 0)
        stw_reading_line(r, STW_IMPORT_TAKEN, flag->name, flag->value,
                         row->key != NULL ? row->key : "");
}

void stw_reading_refuse(stw_reading *r, const char *name, const char *note) {
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    if (flag == NULL || r->status != STW_STATUS_OK) return;
    stw_reading_fail(r, stw_fail_at(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path, flag->line, 1,
                                    "%s%.60s %.60s: not implemented: %s",
                                    stw_flags_dashes(&r->flags), flag->name, flag->value, note));
}

bool stw_reading_moves_bytes(const char *name) {
    static const char *const words[] = {"offload", "recompute", "buffer",    "cache",    "dtype",
                                        "shard",   "precision", "optimizer", "parallel", NULL};
    static const char *const others[] = {"path", "dir", "data", NULL}; /* of files */
    bool moves = false;
    for (size_t i = 0; words[i] != NULL; i++) moves = moves || strstr(name, words[i]) != NULL;
    for (size_t i = 0; others[i] != NULL; i++) moves = moves && strstr(name, others[i]) == NULL;
    return moves;
}

/* A flag that no table has. */
static void sort_unknown(stw_reading *r, const stw_flag *flag) {
    if (!stw_reading_moves_bytes(flag->name) || stw_reading_denies(flag->value) ||
        flag->line == 0) {
        stw_reading_line(r, STW_IMPORT_UNKNOWN, flag->name, flag->value, "");
        return;
    }
    stw_reading_fail(r, stw_fail_at(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path, flag->line, 1,
                                    "%s%.60s %.60s: not known, and by its name it may move bytes; "
                                    "remove it, and say what it does with --set (`stowage keys`)",
                                    stw_flags_dashes(&r->flags), flag->name, flag->value));
}

bool stw_flag_is_one_of(const char *values, const char *value) {
    const size_t length = strlen(value);
    for (; *values != '\0'; values += strspn(values, "|")) {
        const size_t n = strcspn(values, "|");
        if (n == length && strncmp(values, value, n) == 0) return true;
        values += n;
    }
    return false;
}

/* Does a row of RUN have the other flag that it needs? */
static bool has_needed(const stw_reading *r, const stw_flag_row *row) {
    if (row->use != STW_FLAG_RUN || row->note == NULL) return true;
    const size_t length = strcspn(row->note, "=");
    for (size_t i = 0; i < r->flags.n; i++) {
        const stw_flag *flag = &r->flags.items[i];
        if (strlen(flag->name) == length && strncmp(flag->name, row->note, length) == 0)
            return stw_flag_is_one_of(row->note + length + 1, flag->value);
    }
    return false;
}

void stw_reading_sort(stw_reading *r, const stw_flag *flag, const stw_flag_row *row) {
    if (row == NULL) {
        sort_unknown(r, flag);
        return;
    }
    /* of a default, lines tell only what it lacks */
    const bool told = flag->line > 0;
    bool harmless = row->harmless != NULL && stw_reading_same(row->harmless, flag->value);
    harmless = harmless || (row->use == STW_FLAG_REFUSED && row->key != NULL &&
                            stw_reading_same(row->key, flag->value));
    if (row->use == STW_FLAG_IDLE || harmless || !has_needed(r, row)) {
        if (told) stw_reading_line(r, STW_IMPORT_NO_EFFECT, flag->name, flag->value, "");
    } else if (row->use == STW_FLAG_LISTED && row->key != NULL &&
               strcmp(row->key, flag->value) == 0) {
        if (told) stw_reading_line(r, STW_IMPORT_TAKEN, flag->name, flag->value, "");
    } else if (row->use == STW_FLAG_LISTED) {
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, flag->name, flag->value, row->note);
    } else if (row->use == STW_FLAG_REFUSED) {
        stw_reading_refuse(r, flag->name, row->note);
    } else {
        take(r, row, flag);
    }
}

/* ---- tables ---- */

static bool matches(const char *pattern, const char *name) {
    const char *star = strchr(pattern, '*');
    if (star == NULL) return strcmp(pattern, name) == 0;
    size_t head = (size_t)(star - pattern), tail = strlen(star + 1), n = strlen(name);
    return n >= head + tail && memcmp(pattern, name, head) == 0 &&
           memcmp(name + n - tail, star + 1, tail) == 0;
}

const stw_flag_row *stw_flag_row_named(const stw_flag_table *table, const char *name) {
    for (size_t i = 0; i < table->n; i++)
        if (matches(table->rows[i].name, name)) return &table->rows[i];
    return NULL;
}

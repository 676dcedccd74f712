/* SPDX-License-Identifier: Apache-2.0 */
#include "models/names_rules.h"

#include <stdlib.h>
#include <string.h>

enum { N_COLUMNS = 4, MAX_DEPTH = 4 };

static const struct {
    const char *name, *text;
} files[] = {
#define X(name, text) {name, text},
#include "models/names.inc"
#undef X
};

static const char *const kinds[STW_N_NAMES_KINDS] = {
    "include", "part", "swap", "split", "prefix", "rename", "packed", "edition", "scale", "copy"};
static const char *const ways[STW_N_NAMES_WAYS] = {"as is", "transposed", "mxfp4", "int4"};

const char *stw_names_way_name(stw_names_way way) { return ways[way]; }

/* ---- patterns ---- */

bool stw_names_match(const char *pattern, const char *name, stw_names_stars *stars) {
    const size_t fixed = strcspn(pattern, "*");
    if (strncmp(pattern, name, fixed) != 0) return false;
    pattern += fixed;
    name += fixed;
    if (*pattern == '\0') return *name == '\0';
    if (stars->n == STW_NAMES_MAX_STARS) return false;
    const uint32_t own = stars->n++;
    for (size_t taken = 0;; taken++) {
        stars->n = own + 1;
        stars->text[own] = name;
        stars->length[own] = taken;
        if (stw_names_match(pattern + 1, name + taken, stars)) return true;
        if (name[taken] == '\0') return false;
    }
}

char *stw_names_apply(stw_pool *pool, const char *pattern, const stw_names_stars *stars) {
    size_t length = strlen(pattern), at = 0;
    uint32_t star = 0;
    for (uint32_t s = 0; s < stars->n; s++) length += stars->length[s];
    char *out = stw_pool_alloc(pool, length + 1);
    for (; out != NULL && *pattern != '\0'; pattern++) {
        if (*pattern != '*') {
            out[at++] = *pattern;
        } else if (star < stars->n) {
            memcpy(out + at, stars->text[star], stars->length[star]);
            at += stars->length[star++];
        }
    }
    return out;
}

/* ---- rows ---- */

typedef struct loader {
    stw_pool *pool;
    stw_names_rules *out;
    size_t capacity;
    uint32_t depth;
} loader;

static stw_status load_file(loader *l, const char *name, stw_error *err);

/* The fields of a line, each ended; false if there are not four. */
static bool cut(char *line, const char *fields[N_COLUMNS]) {
    for (int c = 0; c < N_COLUMNS; c++) {
        char *end = strchr(line, ',');
        fields[c] = line;
        if ((end == NULL) != (c == N_COLUMNS - 1)) return false;
        if (end == NULL) return true;
        *end = '\0';
        line = end + 1;
    }
    return false;
}

static uint32_t stars_in(const char *pattern) {
    uint32_t n = 0;
    for (; *pattern != '\0'; pattern++) n += *pattern == '*';
    return n;
}

/* Why a row is refused, or NULL. */
static const char *read_row(const char *const fields[N_COLUMNS], stw_names_row *row) {
    uint32_t kind = 0;
    char *end = NULL;
    while (kind < STW_N_NAMES_KINDS && strcmp(fields[0], kinds[kind]) != 0) kind++;
    if (kind == STW_N_NAMES_KINDS) return "unknown kind of row";
    row->kind = (stw_names_kind)kind;
    row->tensor = fields[1];
    row->published = fields[2];
    row->value = fields[3];
    if (kind == STW_NAMES_PART || kind == STW_NAMES_SPLIT) {
        row->dim = (uint32_t)strtoul(row->value, &end, 10);
        if (*end != '\0' || row->dim >= STW_TENSOR_MAX_RANK) return "expected a dimension";
    }
    if (kind == STW_NAMES_PACKED) {
        row->way =
            strcmp(row->tensor, ways[STW_NAMES_INT4]) == 0 ? STW_NAMES_INT4 : STW_NAMES_MXFP4;
        if (strcmp(row->tensor, ways[row->way]) != 0) return "expected mxfp4 or int4";
    }
    if (kind != STW_NAMES_EDITION && row->tensor[0] == '\0') return "the second field is empty";
    if (stars_in(row->tensor) > STW_NAMES_MAX_STARS ||
        stars_in(row->published) > stars_in(row->tensor))
        return "a star of the published name that the tensor's lacks";
    return NULL;
}

static stw_status add_line(loader *l, const char *file, int line, char *text, stw_error *err) {
    const char *fields[N_COLUMNS];
    stw_names_rules *out = l->out;
    stw_names_row row = {.edition = out->editions - 1};
    const char *wrong = cut(text, fields) ? read_row(fields, &row) : "expected four fields";
    if (wrong != NULL) return stw_fail_at(err, STW_STATUS_BAD_INPUT, file, line, 0, "%s", wrong);
    if (row.kind == STW_NAMES_INCLUDE) return load_file(l, row.tensor, err);
    if (row.kind == STW_NAMES_EDITION) {
        out->editions++;
        return STW_STATUS_OK;
    }
    stw_names_row *grown =
        stw_pool_grow(l->pool, out->rows, out->n, out->n + 1u, &l->capacity, sizeof *grown);
    if (grown == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    out->rows = grown;
    out->rows[out->n++] = row;
    return STW_STATUS_OK;
}

static stw_status load_text(loader *l, const char *file, const char *text, stw_error *err) {
    char *copy = stw_pool_string(l->pool, text), *next = copy;
    bool headed = false;
    if (copy == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    for (int line = 1; next != NULL && *next != '\0'; line++) {
        char *here = next, *end = strchr(here, '\n');
        next = end != NULL ? end + 1 : NULL;
        if (end != NULL) *end = '\0';
        if (*here == '#' || *here == '\0') continue;
        if (!headed) {
            if (strcmp(here, "row,tensor,published,value") != 0)
                return stw_fail_at(err, STW_STATUS_BAD_INPUT, file, line, 0,
                                   "expected the header row,tensor,published,value");
            headed = true;
            continue;
        }
        stw_status status = add_line(l, file, line, here, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

static stw_status load_file(loader *l, const char *name, stw_error *err) {
    const size_t n = sizeof files / sizeof files[0];
    size_t f = 0;
    while (f < n && strcmp(files[f].name, name) != 0) f++;
    if (f == n && l->depth == 0) return STW_STATUS_OK;
    if (f == n || l->depth == MAX_DEPTH)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "models/names", "%.60s cannot be included",
                        name);
    l->depth++;
    stw_status status = load_text(l, name, files[f].text, err);
    l->depth--;
    return status;
}

stw_status stw_names_rules_parse(stw_pool *pool, const char *file, const char *text,
                                 stw_names_rules *out, stw_error *err) {
    loader l = {.pool = pool, .out = out, .capacity = out->n, .depth = 1};
    if (out->editions == 0) out->editions = 1;
    return load_text(&l, file, text, err);
}

stw_status stw_names_rules_load(stw_pool *pool, const char *name, stw_names_rules *out,
                                stw_error *err) {
    loader l = {.pool = pool, .out = out, .capacity = out->n};
    if (out->editions == 0) out->editions = 1;
    return load_file(&l, name, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700 /* opendir */
#endif
#include "models/zoo.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/file.h"
#include "core/log.h"
#include "core/tree.h"
#include "models/table.h"

typedef struct zoo {
    stw_pool *pool;
    const char *folder;
    const char **names;
    size_t n, capacity;
    stw_table aliases; /* rows without the head; none without a file */
} zoo;

/* ---- the folder ---- */

static const char *without_json(stw_pool *pool, const char *file) {
    static const char json[] = ".json";
    const size_t n = strlen(file), m = strlen(json);
    if (n <= m || strcmp(file + n - m, json) != 0) return NULL;
    return stw_pool_printf(pool, "%.*s", (int)(n - m), file);
}

static stw_status list_folder(zoo *list, stw_error *err) {
    DIR *folder = opendir(list->folder);
    if (folder == NULL) return STW_STATUS_OK; /* no zoo: no names to offer */
    stw_status status = STW_STATUS_OK;
    errno = 0; /* what readdir sets where it fails, and leaves at the end */
    for (const struct dirent *one; (one = readdir(folder)) != NULL; errno = 0) {
        const size_t n = strlen(one->d_name);
        if (n <= 5 || strcmp(one->d_name + n - 5, ".json") != 0) continue;
        const char **grown = stw_pool_grow(list->pool, list->names, list->n, list->n + 1,
                                           &list->capacity, sizeof *grown);
        const char *name = without_json(list->pool, one->d_name);
        if (grown == NULL || name == NULL) {
            status = stw_fail(err, STW_STATUS_NO_MEMORY, list->folder, "out of memory");
            break;
        }
        list->names = grown;
        list->names[list->n++] = name;
    }
    if (errno != 0 && status == STW_STATUS_OK)
        status = stw_fail_native(err, STW_STATUS_IO, errno, list->folder, "cannot be listed: %s",
                                 strerror(errno));
    closedir(folder);
    return status;
}

/* As people sort: 4B before 30B, capitals beside small letters. */
static int by_name(const void *x, const void *y) {
    const char *a = *(const char *const *)x, *b = *(const char *const *)y;
    for (;; a++, b++) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            char *after_a, *after_b;
            double u = strtod(a, &after_a), v = strtod(b, &after_b);
            if (u != v) return u < v ? -1 : 1;
            a = after_a;
            b = after_b;
        }
        int order = tolower((unsigned char)*a) - tolower((unsigned char)*b);
        if (order != 0 || *a == '\0') return order;
    }
}

static stw_status list_names(const char *data_folder, stw_pool *pool, zoo *list, stw_error *err) {
    *list = (zoo){.pool = pool, .folder = stw_pool_printf(pool, "%s/zoo", data_folder)};
    if (list->folder == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, data_folder, "out of memory");
    stw_status status = list_folder(list, err);
    if (list->n > 0) qsort(list->names, list->n, sizeof *list->names, by_name);
    return status;
}

stw_status stw_zoo_list(const char *data_folder, stw_pool *pool, const char *const **names,
                        size_t *n, stw_error *err) {
    zoo list;
    const stw_status status = list_names(data_folder, pool, &list, err);
    *names = list.names;
    *n = list.n;
    return status;
}

/* ---- the table of aliases ---- */

enum { ROW, NAME, MODEL, POSITIONS, NOTE, N_COLUMNS };
static const char *const heads[N_COLUMNS] = {"row", "name", "model", "positions", "note"};

static bool is(const stw_table_row *row, const char *kind) {
    return strcmp(row->fields[ROW], kind) == 0;
}

static bool is_positions(const char *text) {
    return strlen(text) <= 9 && strspn(text, "0123456789") == strlen(text);
}

static stw_status check_row(const stw_table *table, const stw_table_row *row, stw_error *err) {
    if (row->n_fields != N_COLUMNS)
        return stw_table_fail(table, row, err, "found %zu columns, expected %d", row->n_fields,
                              N_COLUMNS);
    if (!is(row, "ending") && !is(row, "quantized") && !is(row, "alias") && !is(row, "other"))
        return stw_table_fail(table, row, err,
                              "row: found \"%.40s\", expected ending, quantized, alias or other",
                              row->fields[ROW]);
    if (row->fields[NAME][0] == '\0') return stw_table_fail(table, row, err, "name: is empty");
    if (is(row, "alias") != (row->fields[MODEL][0] != '\0'))
        return stw_table_fail(table, row, err, "model: an alias names one, other rows none");
    if (!is_positions(row->fields[POSITIONS]))
        return stw_table_fail(table, row, err, "positions: found \"%.40s\", expected a number",
                              row->fields[POSITIONS]);
    return STW_STATUS_OK;
}

static stw_status read_aliases(zoo *list, stw_error *err) {
    const char *path = stw_pool_printf(list->pool, "%s/aliases.csv", list->folder);
    if (path == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, list->folder, "out of memory");
    if (!stw_file_exists(path)) return STW_STATUS_OK;
    stw_table *table = &list->aliases;
    stw_status status = stw_table_read(list->pool, path, table, err);
    if (status != STW_STATUS_OK || table->n_rows == 0) return status;
    for (size_t k = 0; k < N_COLUMNS; k++)
        if (table->rows[0].n_fields != N_COLUMNS || strcmp(table->rows[0].fields[k], heads[k]) != 0)
            return stw_table_fail(table, &table->rows[0], err,
                                  "expected the columns row,name,model,positions,note");
    table->rows++;
    table->n_rows--;
    for (size_t i = 0; i < table->n_rows && status == STW_STATUS_OK; i++)
        status = check_row(table, &table->rows[i], err);
    return status;
}

/* ---- one name ---- */

/* A folder of the Hub's cache: .../models--ORG--NAME/snapshots/COMMIT. NULL: it is none. */
static char *cached(char *path) {
    static const char mark[] = "models--";
    char *found = strstr(path, mark);
    if (found == NULL || (found != path && found[-1] != '/')) return NULL;
    char *name = found + strlen(mark);
    name[strcspn(name, "/")] = '\0';
    char *after = strstr(name, "--");
    return after != NULL ? after + 2 : name;
}

/* Length of the ending at the end of the name, 0: it has another. '#' stands for a digit. */
static size_t ending_of(const char *name, const char *ending) {
    const size_t n = strlen(name), m = strlen(ending);
    if (n <= m) return 0;
    for (size_t i = 0; i < m; i++) {
        const int found = tolower((unsigned char)name[n - m + i]);
        const bool same =
            ending[i] == '#' ? isdigit(found) != 0 : found == tolower((unsigned char)ending[i]);
        if (!same) return 0;
    }
    return m;
}

/* The longest ending of a kind. */
static size_t longest(const zoo *list, const char *kind, const char *name) {
    size_t most = 0;
    for (size_t i = 0; i < list->aliases.n_rows; i++) {
        const stw_table_row *row = &list->aliases.rows[i];
        const size_t n = is(row, kind) ? ending_of(name, row->fields[NAME]) : 0;
        if (n > most) most = n;
    }
    return most;
}

static void strip(const zoo *list, const char *kind, char *name) {
    for (size_t n; (n = longest(list, kind, name)) > 0;) name[strlen(name) - n] = '\0';
}

static const char *in_folder(const zoo *list, const char *name) {
    for (size_t i = 0; i < list->n; i++)
        if (strcasecmp(list->names[i], name) == 0) return list->names[i];
    return NULL;
}

/* The zoo's model that is called so without endings ("Qwen2.5-VL-7B"). */
static const char *without_endings(const zoo *list, const char *name) {
    for (size_t i = 0; i < list->n; i++) {
        char *plain = stw_pool_string(list->pool, list->names[i]);
        if (plain == NULL) return NULL;
        strip(list, "ending", plain);
        if (strcasecmp(plain, name) == 0) return list->names[i];
    }
    return NULL;
}

static bool in_table(const zoo *list, const char *name, stw_zoo_name *out) {
    for (size_t i = 0; i < list->aliases.n_rows; i++) {
        const stw_table_row *row = &list->aliases.rows[i];
        if (strcasecmp(row->fields[NAME], name) != 0) continue;
        if (is(row, "other")) out->why = row->fields[NOTE];
        if (!is(row, "alias") && !is(row, "other")) continue;
        out->model = is(row, "alias") ? row->fields[MODEL] : NULL;
        out->positions = strtoull(row->fields[POSITIONS], NULL, 10);
        return true;
    }
    return false;
}

static stw_status find(const zoo *list, const char *name, stw_zoo_name *out, stw_error *err) {
    *out = (stw_zoo_name){.word = name};
    char *own = stw_pool_string(list->pool, name);
    if (own == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, name, "out of memory");
    for (size_t end = strlen(own); end > 0 && own[end - 1] == '/'; end--) own[end - 1] = '\0';
    char *last = cached(own);
    if (last == NULL) last = strrchr(own, '/') != NULL ? strrchr(own, '/') + 1 : own;
    out->word = stw_pool_string(list->pool, last);
    if (out->word == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, name, "out of memory");
    for (size_t n = 1; n > 0; last[strlen(last) - n] = '\0') {
        out->model = in_folder(list, last);
        if (out->model != NULL || in_table(list, last, out)) break;
        out->model = without_endings(list, last);
        if (out->model != NULL) break;
        n = longest(list, "ending", last);
        if (n == 0) break;
    }
    out->alias = out->model != NULL && strcasecmp(out->model, out->word) != 0;
    return STW_STATUS_OK;
}

stw_status stw_zoo_find(const char *data_folder, const char *name, stw_pool *pool,
                        stw_zoo_name *out, stw_error *err) {
    zoo list;
    *out = (stw_zoo_name){.word = name};
    stw_status status = list_names(data_folder, pool, &list, err);
    if (status == STW_STATUS_OK) status = read_aliases(&list, err);
    if (status == STW_STATUS_OK) status = find(&list, name, out, err);
    return status;
}

/* ---- errors ---- */

enum { SHORTEST_WORD = 3, MOST_NEAR = 5 };

/* Does the name hold the word, in any case? */
static bool holds(const char *name, const char *word) {
    size_t length = strlen(word);
    for (; strlen(name) >= length; name++)
        if (strncasecmp(name, word, length) == 0) return true;
    return false;
}

/* The name that is spelt most alike, a model's or an alias's. */
static const char *nearest(const zoo *list, const char *word) {
    const size_t n = list->n + list->aliases.n_rows;
    const char **names = stw_pool_array(list->pool, n, sizeof *names);
    if (names == NULL) return NULL;
    size_t used = list->n;
    if (used > 0) memcpy(names, list->names, used * sizeof *names);
    for (size_t i = 0; i < list->aliases.n_rows; i++)
        if (is(&list->aliases.rows[i], "alias")) names[used++] = list->aliases.rows[i].fields[NAME];
    return stw_nearest(word, names, used);
}

/* The models that hold the word, else the one that is spelt alike, endings aside. */
static void near_names(const zoo *list, const char *word, char *near, size_t size) {
    char plain[128];
    size_t used = 0, n = 0;
    near[0] = '\0';
    for (size_t i = 0; i < list->n && strlen(word) >= SHORTEST_WORD && n < MOST_NEAR; i++)
        if (holds(list->names[i], word))
            used += (size_t)snprintf(near + used, size - used, "%s%.40s", n++ > 0 ? ", " : "",
                                     list->names[i]);
    if (n > 0) return;
    snprintf(plain, sizeof plain, "%s", word);
    strip(list, "ending", plain);
    const char *alike = nearest(list, plain);
    if (alike != NULL) snprintf(near, size, "%.60s", alike);
}

static stw_status fail_unknown(const zoo *list, const char *what, const stw_zoo_name *found,
                               stw_error *err) {
    char near[256], plain[128];
    if (found->why != NULL)
        return stw_fail(err, STW_STATUS_BAD_INPUT, what,
                        "not in the zoo (`stowage models`): %.200s; give its config.json",
                        found->why);
    snprintf(plain, sizeof plain, "%s", found->word);
    const size_t n = longest(list, "quantized", plain);
    if (n > 0) {
        stw_zoo_name of = {.model = NULL};
        plain[strlen(plain) - n] = '\0';
        stw_status status = find(list, plain, &of, err);
        if (status != STW_STATUS_OK) return status;
        if (of.model != NULL)
            return stw_fail(err, STW_STATUS_BAD_INPUT, what,
                            "a quantized copy of %s, stored in other types; plan %s, or give the "
                            "copy's config.json",
                            plain, plain);
    }
    near_names(list, found->word, near, sizeof near);
    return stw_fail(err, STW_STATUS_BAD_INPUT, what,
                    "not found: no such file or folder, and none of the %zu models in %.200s%s%s%s",
                    list->n, list->folder, near[0] != '\0' ? "; did you mean " : "", near,
                    near[0] != '\0' ? "?" : "");
}

/* ---- open ---- */

/* A path, not "publisher/name". */
static bool is_path(const char *name) {
    const char *slash = strchr(name, '/');
    return slash != NULL && (strchr("./~$", name[0]) != NULL || strchr(slash + 1, '/') != NULL);
}

static void say(const char *name, const stw_zoo_name *found) {
    if (!found->alias && !is_path(name)) return;
    char context[64] = "";
    if (found->positions > 0)
        snprintf(context, sizeof context, "; context of %llu tokens",
                 (unsigned long long)found->positions);
    stw_log(STW_LOG_INFO, "%.200s is planned as %s (same shapes%s)", name, found->model, context);
}

stw_status stw_zoo_open(const char *data_folder, const char *name, stw_model **out,
                        stw_error *err) {
    stw_status status = STW_STATUS_OK;
    zoo list;
    stw_zoo_name found;
    stw_pool *pool = stw_pool_new();
    *out = NULL;
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, name, "out of memory");
    STW_TRY(list_names(data_folder, pool, &list, err));
    STW_TRY(read_aliases(&list, err));
    STW_TRY(find(&list, name, &found, err));
    if (found.model == NULL) STW_TRY(fail_unknown(&list, name, &found, err));
    const char *path = stw_pool_printf(pool, "%s/%s.json", list.folder, found.model);
    if (path == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, name, "out of memory"));
    STW_TRY(stw_model_read_config(path, data_folder, out, err));
    if (found.positions > 0) (*out)->max_positions = found.positions;
    say(name, &found);
out:
    stw_pool_free(pool);
    return status;
}

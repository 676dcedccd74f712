/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700 /* opendir */
#endif
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/tree.h"
#include "models/internal.h"

static bool ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n > m && strcmp(text + n - m, ending) == 0;
}

/* In a folder, config.json is preferred: it has more information than the weights. */
static stw_status open_folder(stw_pool *pool, const char *path, const char *data_folder,
                              stw_model **out, stw_error *err) {
    const char *config = stw_pool_printf(pool, "%s/config.json", path);
    if (config == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    if (stw_file_exists(config)) return stw_model_read_config(config, data_folder, out, err);
    return stw_model_read_safetensors(path, out, err);
}

static stw_status open_file(const char *path, const char *data_folder, stw_model **out,
                            stw_error *err) {
    if (ends_with(path, ".csv")) return stw_model_read_csv(path, out, err);
    if (ends_with(path, ".safetensors") || ends_with(path, ".index.json"))
        return stw_model_read_safetensors(path, out, err);
    if (ends_with(path, ".json")) return stw_model_read_config(path, data_folder, out, err);
    return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                    "expected a model: config.json, *.safetensors, *.safetensors.index.json, a "
                    "*.csv tensor list, a folder with one of the first three, or a zoo name");
}

typedef struct zoo {
    const char **names;
    size_t n, capacity;
} zoo;

static stw_status list_zoo(stw_pool *pool, const char *folder_path, zoo *list, stw_error *err) {
    DIR *folder = opendir(folder_path);
    if (folder == NULL) return STW_STATUS_OK; /* no zoo: no names to offer */
    stw_status status = STW_STATUS_OK;
    errno = 0; /* what readdir sets where it fails, and leaves at the end */
    for (const struct dirent *one; (one = readdir(folder)) != NULL; errno = 0) {
        if (!ends_with(one->d_name, ".json")) continue;
        const char **grown =
            stw_pool_grow(pool, list->names, list->n, list->n + 1, &list->capacity, sizeof *grown);
        char *name = stw_pool_string(pool, one->d_name);
        if (grown == NULL || name == NULL) {
            status = stw_fail(err, STW_STATUS_NO_MEMORY, folder_path, "out of memory");
            break;
        }
        name[strlen(name) - strlen(".json")] = '\0';
        list->names = grown;
        list->names[list->n++] = name;
    }
    if (errno != 0 && status == STW_STATUS_OK)
        status = stw_fail_native(err, STW_STATUS_IO, errno, folder_path, "cannot be listed: %s",
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

stw_status stw_zoo_list(const char *data_folder, stw_pool *pool, const char *const **names,
                        size_t *n, stw_error *err) {
    zoo list = {.names = NULL};
    const char *folder = stw_pool_printf(pool, "%s/zoo", data_folder);
    if (folder == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, data_folder, "out of memory");
    stw_status status = list_zoo(pool, folder, &list, err);
    if (list.n > 0) qsort(list.names, list.n, sizeof *list.names, by_name);
    *names = list.names;
    *n = list.n;
    return status;
}

enum { SHORTEST_WORD = 3, MOST_NEAR = 5 };

/* Does the name hold the word, in any case? */
static bool holds(const char *name, const char *word) {
    size_t length = strlen(word);
    for (; strlen(name) >= length; name++)
        if (strncasecmp(name, word, length) == 0) return true;
    return false;
}

/* Names the models that hold the word, else the one that is spelt alike. */
static stw_status fail_unknown(zoo *list, const char *what, const char *word, const char *folder,
                               stw_error *err) {
    char near[256] = "";
    size_t used = 0, n = 0;
    if (list->n > 0) qsort(list->names, list->n, sizeof *list->names, by_name);
    for (size_t i = 0; i < list->n && strlen(word) >= SHORTEST_WORD && n < MOST_NEAR; i++)
        if (holds(list->names[i], word))
            used += (size_t)snprintf(near + used, sizeof near - used, "%s%.40s",
                                     n++ > 0 ? ", " : "", list->names[i]);
    const char *alike = n == 0 ? stw_nearest(word, list->names, list->n) : NULL;
    if (alike != NULL) snprintf(near, sizeof near, "%.40s", alike);
    return stw_fail(err, STW_STATUS_BAD_INPUT, what,
                    "not found: no such file or folder, and none of the %zu models in %.200s%s%s%s",
                    list->n, folder, near[0] != '\0' ? "; did you mean " : "", near,
                    near[0] != '\0' ? "?" : "");
}

/* "Qwen3-4B", in any case, with or without its publisher ("Qwen/Qwen3-4B"). */
static stw_status open_zoo(stw_pool *pool, const char *what, const char *data_folder,
                           stw_model **out, stw_error *err) {
    zoo list = {.names = NULL};
    const char *slash = strrchr(what, '/');
    const char *wanted = slash != NULL ? slash + 1 : what;
    const char *folder = stw_pool_printf(pool, "%s/zoo", data_folder);
    if (folder == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, what, "out of memory");
    stw_status status = list_zoo(pool, folder, &list, err);
    if (status != STW_STATUS_OK) return status;
    for (size_t k = 0; k < list.n; k++) {
        if (strcasecmp(list.names[k], wanted) != 0) continue;
        const char *path = stw_pool_printf(pool, "%s/%s.json", folder, list.names[k]);
        if (path == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, what, "out of memory");
        return stw_model_read_config(path, data_folder, out, err);
    }
    return fail_unknown(&list, what, wanted, folder, err);
}

stw_status stw_model_open(const char *what, const char *data_folder, stw_model **out,
                          stw_error *err) {
    struct stat info;
    *out = NULL;
    if (what[0] == '\0')
        return stw_fail(err, STW_STATUS_BAD_INPUT, "\"\"", "the name of the model is empty");
    if (stat(what, &info) != 0 && (errno == ELOOP || errno == EACCES))
        return stw_fail_errno(err, what, "cannot be opened");
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, what, "out of memory");
    stw_status status;
    if (stw_file_is_folder(what))
        status = open_folder(pool, what, data_folder, out, err);
    else if (stw_file_exists(what))
        status = open_file(what, data_folder, out, err);
    else
        status = open_zoo(pool, what, data_folder, out, err);
    stw_pool_free(pool);
    return status;
}

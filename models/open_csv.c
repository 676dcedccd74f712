/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700 /* ELOOP */
#endif
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "models/internal.h"
#include "models/zoo.h"

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
        status = stw_zoo_open(data_folder, what, out, err);
    stw_pool_free(pool);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads JSON and YAML files. Separate from tree.c, because the parsers use tree.c. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/tree_build.h"

typedef stw_status (*parse_fn)(const char *file, const char *text, size_t length, stw_tree **out,
                               stw_error *err);

static stw_status read_with(parse_fn parse, const char *path, stw_tree **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char *data = NULL;
    uint64_t length = 0;
    *out = NULL;
    STW_TRY(stw_file_read(path, STW_TREE_MOST_BYTES, &data, &length, err));
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    STW_TRY(parse(name, data, (size_t)length, out, err));
out:
    free(data);
    return status;
}

stw_status stw_tree_read_json(const char *path, stw_tree **out, stw_error *err) {
    return read_with(stw_tree_parse_json, path, out, err);
}

stw_status stw_tree_read_yaml(const char *path, stw_tree **out, stw_error *err) {
    return read_with(stw_tree_parse_yaml, path, out, err);
}

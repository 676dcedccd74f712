/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* stat */
#include "planner/frameworks/import/deepspeed_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"

enum { MOST_BYTES = 1 << 20, MOST_PARENTS = 64 };

/* Not a pipe or a device. */
static bool is_regular(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

static const char *in_folder(const stw_import *import, const char *folder, const char *path) {
    const char *between = *folder == '\0' || folder[strlen(folder) - 1] == '/' ? "" : "/";
    const char *found = stw_pool_printf(import->pool, "%s%s%s", folder, between, path);
    return found != NULL && is_regular(found) ? found : NULL;
}

const char *stw_deepspeed_find(const stw_import *import, const char *path) {
    char *folder = stw_pool_string(import->pool, import->path);
    const char *found = NULL;
    if (folder == NULL || *path == '\0') return NULL;
    if (*path == '/') return in_folder(import, "", path);
    for (int i = 0; i < MOST_PARENTS && *folder != '\0' && found == NULL; i++) {
        char *slash = strrchr(folder, '/');
        const bool top = slash == NULL || slash == folder;
        if (slash == NULL)
            *folder = '\0';
        else
            slash[top ? 1 : 0] = '\0';
        found = in_folder(import, folder, path);
        if (top) break;
    }
    return found != NULL ? found : in_folder(import, "", path);
}

void stw_deepspeed_open(stw_reading *r, const char *found, stw_reading *zeros) {
    char *text = NULL;
    uint64_t length = 0;
    stw_status status = stw_file_read(found, MOST_BYTES, &text, &length, r->err);
    if (status == STW_STATUS_OK)
        status =
            stw_flags_parse_paths(found, text, (size_t)length, r->out->pool, &zeros->flags, r->err);
    free(text);
    stw_reading_fail(r, status);
}

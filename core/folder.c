/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "core/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"

stw_status stw_folder_each(const char *folder, stw_folder_name_fn fn, void *state, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    DIR *list = opendir(folder);
    if (list == NULL) return stw_fail_errno(err, folder, "cannot be opened");
    errno = 0; /* what readdir sets where it fails, and leaves at the end */
    for (const struct dirent *e; status == STW_STATUS_OK && (e = readdir(list)) != NULL; errno = 0)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            status = fn(state, folder, e->d_name, err);
    if (status == STW_STATUS_OK && errno != 0)
        status = stw_fail_errno(err, folder, "cannot be listed");
    (void)closedir(list);
    return status;
}

void stw_folder_join(char out[STW_FOLDER_PATH], const char *folder, const char *name) {
    snprintf(out, STW_FOLDER_PATH, "%s/%s", folder, name);
}

static stw_status remove_name(void *state, const char *folder, const char *name, stw_error *err) {
    char path[STW_FOLDER_PATH];
    (void)state;
    stw_folder_join(path, folder, name);
    return unlink(path) == 0 ? STW_STATUS_OK : stw_fail_errno(err, path, "cannot be removed");
}

stw_status stw_folder_empty(const char *folder, stw_error *err) {
    return stw_folder_each(folder, remove_name, NULL, err);
}

stw_status stw_folder_remove(const char *folder, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_folder_empty(folder, err));
    if (rmdir(folder) != 0) status = stw_fail_errno(err, folder, "cannot be removed");
out:
    return status;
}

stw_status stw_folder_sync(const char *folder, stw_error *err) {
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    stw_status status = STW_STATUS_OK;
    if (fd < 0) return stw_fail_errno(err, folder, "cannot be opened");
    if (fsync(fd) != 0) status = stw_fail_errno(err, folder, "cannot be flushed");
    (void)close(fd);
    return status;
}

stw_status stw_folder_sync_parent(const char *path, stw_error *err) {
    char parent[STW_FOLDER_PATH];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash == NULL)
        snprintf(parent, sizeof parent, ".");
    else
        slash[slash == parent ? 1 : 0] = '\0';
    return stw_folder_sync(parent, err);
}

bool stw_folder_is_rest(const char *name) {
    static const char *const weights[] = {
        ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        const size_t m = strlen(weights[i]);
        if (n >= m && strcmp(name + n - m, weights[i]) == 0) return false;
    }
    return true;
}

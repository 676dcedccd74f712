/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* opendir, strcasecmp */
/* Outputs of a command that are its own inputs, or each other, are refused before any work. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/common.h"

static bool same_inode(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The folder that holds `path`, and the name in it. */
static bool split(const char *path, struct stat *folder, const char **name) {
    char text[4096];
    const char *slash = strrchr(path, '/');
    *name = slash != NULL ? slash + 1 : path;
    snprintf(text, sizeof text, "%.*s", slash != NULL ? (int)(slash - path) + 1 : 1,
             slash != NULL ? path : ".");
    return stat(text, folder) == 0;
}

/* Devices and pipes may be given twice. */
static bool is_same_file(const char *a, const char *b) {
    struct stat one, two;
    const char *name_one, *name_two;
    const bool has_one = stat(a, &one) == 0, has_two = stat(b, &two) == 0;
    if (has_one && has_two) return S_ISREG(one.st_mode) && same_inode(&one, &two);
    if (has_one || has_two) return false;
    if (!split(a, &one, &name_one) || !split(b, &two, &name_two)) return false;
    return same_inode(&one, &two) && strcmp(name_one, name_two) == 0;
}

/* Files that a model's folder is read from. */
static bool is_of_model(const char *name) {
    static const char *const suffixes[] = {".json", ".safetensors"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        size_t length = strlen(name), n = strlen(suffixes[i]);
        if (length > n && strcasecmp(name + length - n, suffixes[i]) == 0) return true;
    }
    return false;
}

/* Is `output` one of the files that a model is read from in this folder? */
static bool is_in_folder(const char *output, const char *folder) {
    bool found = false;
    char path[4096];
    const struct dirent *entry;
    struct stat info;
    if (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode)) return false;
    DIR *list = opendir(folder);
    while (list != NULL && !found && (entry = readdir(list)) != NULL) {
        snprintf(path, sizeof path, "%.3000s/%.255s", folder, entry->d_name);
        found = is_of_model(entry->d_name) && is_same_file(output, path);
    }
    if (list != NULL) (void)closedir(list);
    return found;
}

static stw_status refuse(const stw_named_path *output, const stw_named_path *other,
                         const char *what, stw_error *err) {
    return stw_fail(err, STW_STATUS_USAGE, output->path, "%s %s %s", output->name, what,
                    other->name);
}

stw_status stw_check_outputs(const stw_named_path *outputs, size_t n_outputs,
                             const stw_named_path *inputs, size_t n_inputs, stw_error *err) {
    for (size_t i = 0; i < n_outputs; i++) {
        const char *path = outputs[i].path;
        if (path == NULL || strcmp(path, "-") == 0) continue;
        for (size_t k = 0; k < n_inputs; k++) {
            if (inputs[k].path == NULL || strcmp(inputs[k].path, "-") == 0) continue;
            if (is_same_file(path, inputs[k].path) || is_in_folder(path, inputs[k].path))
                return refuse(&outputs[i], &inputs[k], "is also an input:", err);
        }
        for (size_t k = 0; k < i; k++)
            if (outputs[k].path != NULL && strcmp(outputs[k].path, "-") != 0 &&
                is_same_file(path, outputs[k].path))
                return refuse(&outputs[i], &outputs[k],
                              "and another output are the same file:", err);
    }
    return STW_STATUS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds files to a fuzz target without a fuzzer, so that the corpus runs as an ordinary test: each
 * file named on the command line, and each file of a folder named there. Finding no file fails. */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t n_files;

static stw_status replay_file(const char *path, stw_error *err) {
    char *data = NULL;
    uint64_t length = 0;
    stw_status status = stw_file_read(path, 64 * 1024 * 1024, &data, &length, err);
    if (status == STW_STATUS_OK) {
        /* a copy of exactly that size lets the sanitizer see a read behind its end */
        uint8_t *exact = malloc(length > 0 ? (size_t)length : 1);
        if (exact == NULL) {
            status = stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
        } else {
            memcpy(exact, data, (size_t)length);
            fprintf(stderr, "%s\n", path);
            LLVMFuzzerTestOneInput(exact, (size_t)length);
            n_files++;
        }
        free(exact);
    }
    free(data);
    return status;
}

static stw_status replay_folder(const char *path, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text name = STW_TEXT_INIT;
    DIR *folder = opendir(path);
    if (folder == NULL) return stw_fail(err, STW_STATUS_IO, path, "cannot be listed");
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] == '.') continue;
        stw_text_free(&name);
        stw_text_printf(&name, "%s/%s", path, entry->d_name);
        STW_TRY(stw_text_status(&name, err));
        STW_TRY(replay_file(name.data, err));
    }
out:
    stw_text_free(&name);
    closedir(folder);
    return status;
}

int main(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    for (int i = 1; i < argc && status == STW_STATUS_OK; i++)
        status =
            stw_file_is_folder(argv[i]) ? replay_folder(argv[i], &err) : replay_file(argv[i], &err);
    if (status == STW_STATUS_OK && n_files == 0)
        status = stw_fail(&err, STW_STATUS_USAGE, NULL, "usage: %s FILE|FOLDER...", argv[0]);
    if (status == STW_STATUS_OK) {
        printf("%zu files\n", n_files);
        return 0;
    }
    char text[1200];
    stw_error_format(&err, text, sizeof text);
    fprintf(stderr, "%s\n", text);
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Gives a JSON file of this project, in which a test has changed something, the checksums of what
 * it has now: what readers say of its content is tested so.
 *
 * Usage: seal FILE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "plan/files/checksums.h"

int main(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    char *old = NULL;
    uint64_t length = 0;
    if (argc != 2) return fprintf(stderr, "usage: seal FILE\n"), 2;
    stw_text text = STW_TEXT_INIT;
    stw_status status = stw_file_read(argv[1], 1u << 28, &old, &length, &err);
    char *sums = status == STW_STATUS_OK ? strstr(old, ",\n  \"checksums\": {") : NULL;
    if (status == STW_STATUS_OK && sums == NULL)
        status = stw_fail(&err, STW_STATUS_BAD_INPUT, argv[1], "has no checksums");
    if (status == STW_STATUS_OK) {
        stw_text_append(&text, old, (size_t)(sums - old));
        stw_text_append(&text, "\n}\n", 3);
        status = stw_checksums_append(&text, &err);
    }
    if (status == STW_STATUS_OK) status = stw_file_write(argv[1], text.data, text.length, &err);
    if (status != STW_STATUS_OK) fprintf(stderr, "seal: %s: %s\n", err.where, err.text);
    stw_text_free(&text);
    free(old);
    return status == STW_STATUS_OK ? 0 : 1;
}

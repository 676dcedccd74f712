/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes whole files. A written file appears complete or not at all. Any thread may
 * call. */
#ifndef STW_CORE_FILE_H
#define STW_CORE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

/** Read a whole file ("-" is stdin). *data is NUL-terminated; the caller frees it with free().
 * BAD_INPUT if the file exceeds `limit_bytes`. */
STW_MUST_USE stw_status stw_file_read(const char *path, uint64_t limit_bytes, char **data,
                                      uint64_t *length, stw_error *err);
/** Write a whole file: temporary file in the same folder, fsync, rename ("-" is stdout). On failure
 * the temporary file is removed and an existing file is kept. */
STW_MUST_USE stw_status stw_file_write(const char *path, const void *data, uint64_t length,
                                       stw_error *err);
bool stw_file_exists(const char *path);
bool stw_file_is_folder(const char *path);
/** Folder of the shared library or program that holds this code, links resolved, without a final
 * slash; false if it is unknown or too long. */
bool stw_code_folder(char *out, size_t out_size);

#endif

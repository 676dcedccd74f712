/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes whole files. A written file appears complete or not at all. Only regular files
 * are read, and descriptors that are open already ("-", /dev/stdin, /dev/fd/N): to open a FIFO can
 * wait forever. Descriptors, devices, and FIFOs that have a reader are written in place. Any thread
 * may call. */
#ifndef STW_CORE_FILE_H
#define STW_CORE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

/** Read a whole file ("-" is stdin). *data is NUL-terminated; the caller frees it with free().
 * BAD_INPUT if the file exceeds `limit_bytes`. */
STW_MUST_USE stw_status stw_file_read(const char *path, uint64_t limit_bytes, char **data,
                                      uint64_t *length, stw_error *err);
/** Write a whole file ("-" is stdout): a file without a name in the same folder, fsync, link,
 * rename. Where the file system has no such files, the file has a temporary name meanwhile. On
 * failure an existing file is kept and nothing else is left. A link stays a link, also where its
 * target does not exist yet. */
STW_MUST_USE stw_status stw_file_write(const char *path, const void *data, uint64_t length,
                                       stw_error *err);
/** The same; a file that did not exist gets the permissions of `like`, if that is a file.
 * @param like may be NULL */
STW_MUST_USE stw_status stw_file_write_like(const char *path, const char *like, const void *data,
                                            uint64_t length, stw_error *err);
/** Does stw_file_write write to stdout: "-", /dev/stdout, /dev/fd/1? */
bool stw_file_is_stdout(const char *path);
/** Writes the file `path`, which exists and is empty. */
typedef stw_status (*stw_file_fill)(const char *path, void *user, stw_error *err);
/** stw_file_write for a writer that only takes a path: it gets the temporary file, or `path` itself
 * if that is a device or a pipe. Errors name `path`. */
STW_MUST_USE stw_status stw_file_make(const char *path, stw_file_fill fill, void *user,
                                      stw_error *err);
/** Remove the temporary files that exist. For handlers of signals that end the process. */
void stw_file_on_signal(void);
/** Flush stdout. An error if this or an earlier write to it failed. */
STW_MUST_USE stw_status stw_stdout_finish(stw_error *err);
/** The status of a failed call on a file: NO_MEMORY, NO_RESOURCES (the disk is full, a limit on the
 * size or number of files is reached, a standard descriptor is closed), else IO.
 * @param code errno */
stw_status stw_errno_status(int code);
/** Fill `err` with errno of a failed call on a file. @param what such as "cannot be opened" */
stw_status stw_fail_errno(stw_error *err, const char *path, const char *what);
/** Returns the suffix of a file name with its dot; "" if it has none. Suffixes have letters only.
 * @param path may be NULL */
const char *stw_path_suffix(const char *path);
bool stw_file_exists(const char *path);
bool stw_file_is_folder(const char *path);
/** Folder of the shared library or program that holds this code, links resolved, without a final
 * slash; false if it is unknown or too long. */
bool stw_code_folder(char *out, size_t out_size);

#endif

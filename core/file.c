/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* realpath, dladdr */
#endif
#include "core/file.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/text.h"

stw_status stw_errno_status(int code) {
    switch (code) {
    case ENOMEM:
        return STW_STATUS_NO_MEMORY;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case EBADF: /* a standard descriptor that is closed */
        return STW_STATUS_NO_RESOURCES;
    default:
        return STW_STATUS_IO;
    }
}

stw_status stw_fail_errno(stw_error *err, const char *path, const char *what) {
    int code = errno;
    if (strcmp(path, "-") == 0) path = "standard input";
    if (code == EBADF)
        return stw_fail_native(err, stw_errno_status(code), code, path, "%s: it is closed", what);
    return stw_fail_native(err, stw_errno_status(code), code, path, "%s: %s", what, strerror(code));
}

static void close_kept(int fd) {
    if (fd > STDERR_FILENO) close(fd);
}

/* Names of descriptors that are open already; a shell names pipes so: <(command). */
static bool is_open(const char *path) {
    return strcmp(path, "-") == 0 || strcmp(path, "/dev/stdin") == 0 ||
           strncmp(path, "/dev/fd/", 8) == 0 || strncmp(path, "/proc/self/fd/", 14) == 0;
}

static stw_status check_kind(const char *path, mode_t mode, stw_error *err) {
    if (S_ISREG(mode)) return STW_STATUS_OK;
    if (S_ISDIR(mode))
        return stw_fail_native(err, STW_STATUS_IO, EISDIR, path, "is a folder, expected a file");
    if (is_open(path)) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_IO, path, "is a %s, expected a regular file",
                    S_ISFIFO(mode) ? "FIFO" : "device");
}

static stw_status open_for_reading(const char *path, uint64_t limit_bytes, int *fd,
                                   stw_error *err) {
    if (path[0] == '\0')
        return stw_fail(err, STW_STATUS_IO, "\"\"", "the name of the file is empty");
    const int at_once = is_open(path) ? 0 : O_NONBLOCK; /* to open a FIFO would wait for a writer */
    *fd = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | at_once);
    if (*fd < 0) return stw_fail_errno(err, path, "cannot be opened");
    struct stat info;
    if (fstat(*fd, &info) != 0) return stw_fail_errno(err, path, "cannot be examined");
    stw_status status = check_kind(path, info.st_mode, err);
    if (status != STW_STATUS_OK) return status;
    if (S_ISREG(info.st_mode) && (uint64_t)info.st_size > limit_bytes)
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "has %" PRIu64 " bytes, expected at most %" PRIu64, (uint64_t)info.st_size,
                        limit_bytes);
    return STW_STATUS_OK;
}

/* Read to the end: for pipes and /proc fstat reports no size. */
static stw_status read_all(int fd, const char *path, uint64_t limit_bytes, char **data,
                           uint64_t *length, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char *buffer = NULL;
    size_t used = 0, capacity = 0;
    for (;;) {
        if (capacity - used < 2) {
            size_t wanted = capacity == 0 ? 16 * 1024 : capacity * 2;
            char *grown = wanted > capacity ? realloc(buffer, wanted) : NULL;
            if (grown == NULL) {
                status = stw_fail(err, STW_STATUS_NO_MEMORY, path,
                                  "out of memory after reading %zu bytes", used);
                goto out;
            }
            buffer = grown;
            capacity = wanted;
        }
        ssize_t got = read(fd, buffer + used, capacity - used - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            status = stw_fail_errno(err, path, "cannot be read");
            goto out;
        }
        if (got == 0) break;
        used += (size_t)got;
        if (used > limit_bytes) {
            status = stw_fail(err, STW_STATUS_BAD_INPUT, path,
                              "found more than the limit of %" PRIu64 " bytes", limit_bytes);
            goto out;
        }
    }
    buffer[used] = '\0';
    *data = buffer;
    *length = used;
    buffer = NULL;
out:
    free(buffer);
    return status;
}

stw_status stw_file_read(const char *path, uint64_t limit_bytes, char **data, uint64_t *length,
                         stw_error *err) {
    stw_status status = STW_STATUS_OK;
    int fd = -1;
    *data = NULL;
    *length = 0;
    STW_TRY(open_for_reading(path, limit_bytes, &fd, err));
    STW_TRY(read_all(fd, path, limit_bytes, data, length, err));
out:
    close_kept(fd);
    return status;
}

const char *stw_path_suffix(const char *path) {
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    const char *name = slash != NULL ? slash + 1 : path;
    const char *dot = name != NULL ? strrchr(name, '.') : NULL;
    if (dot == NULL || dot == name || dot[1] == '\0') return "";
    for (const char *at = dot + 1; *at != '\0'; at++)
        if (!isalpha((unsigned char)*at)) return ""; /* the version in "llama-3.1" is no suffix */
    return dot;
}

bool stw_file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool stw_file_is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool stw_code_folder(char *out, size_t out_size) {
    static const int here = 0; /* an address in the library or in the program */
    Dl_info info;
    char *path = NULL;
    /* A program that was found through PATH has a name without a folder. */
    if (dladdr(&here, &info) != 0 && info.dli_fname != NULL && strchr(info.dli_fname, '/') != NULL)
        path = realpath(info.dli_fname, NULL);
    if (path == NULL) path = realpath("/proc/self/exe", NULL);
    char *slash = path != NULL ? strrchr(path, '/') : NULL;
    bool fits = slash != NULL && (size_t)(slash - path) < out_size;
    if (fits) snprintf(out, out_size, "%.*s", (int)(slash - path), path);
    free(path);
    return fits;
}

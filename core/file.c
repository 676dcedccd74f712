/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* realpath, fsync, fchmod, dladdr */
#endif
#include "core/file.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
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
        return STW_STATUS_NO_RESOURCES;
    default:
        return STW_STATUS_IO;
    }
}

static stw_status fail_errno(stw_error *err, const char *path, const char *what) {
    int code = errno;
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
    const int at_once = is_open(path) ? 0 : O_NONBLOCK; /* to open a FIFO would wait for a writer */
    *fd = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | at_once);
    if (*fd < 0) return fail_errno(err, path, "cannot be opened");
    struct stat info;
    if (fstat(*fd, &info) != 0) return fail_errno(err, path, "cannot be examined");
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
            status = fail_errno(err, path, "cannot be read");
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

static stw_status write_all(int fd, const char *path, const void *data, uint64_t length,
                            stw_error *err) {
    const char *bytes = data;
    while (length > 0) {
        size_t piece = length < 64u * 1024 * 1024 ? (size_t)length : 64u * 1024 * 1024;
        ssize_t put = write(fd, bytes, piece);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_errno(err, path, "cannot be written");
        bytes += put;
        length -= (uint64_t)put;
    }
    return STW_STATUS_OK;
}

/* Devices and pipes must not be replaced by rename, which would succeed as root. */
static stw_status write_in_place(const char *path, const void *data, uint64_t length,
                                 stw_error *err) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return fail_errno(err, path, "cannot be opened for writing");
    stw_status status = write_all(fd, path, data, length, err);
    if (close(fd) != 0 && status == STW_STATUS_OK)
        status = fail_errno(err, path, "cannot be closed");
    return status;
}

/* The folder part of a path with its slash; empty for a bare name. */
static int folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? 0 : (int)(slash - path) + 1;
}

static stw_status open_temporary(const char *path, stw_text *name, int *fd, stw_error *err) {
    static atomic_uint serial;
    for (int attempt = 0; attempt < 100; attempt++) { /* names left by a process that died */
        stw_text_free(name);
        stw_text_printf(name, "%.*s.stowage-%ld-%u.tmp", folder_length(path), path, (long)getpid(),
                        atomic_fetch_add(&serial, 1u));
        stw_status status = stw_text_status(name, err);
        if (status != STW_STATUS_OK) return status;
        *fd = open(name->data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (*fd >= 0) return STW_STATUS_OK;
        if (errno != EEXIST) break;
    }
    return fail_errno(err, path, "cannot be written: no temporary file beside it");
}

/* Make the rename survive a crash. A file system without this feature is not an error. */
static void sync_folder(const char *path) {
    stw_text folder = STW_TEXT_INIT;
    int length = folder_length(path);
    stw_text_printf(&folder, "%.*s", length > 0 ? length : 1, length > 0 ? path : ".");
    int fd = folder.failed ? -1 : open(folder.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    stw_text_free(&folder);
}

/* `keep_mode`: permissions of the replaced file, 0 if there is none. */
static stw_status replace(const char *path, mode_t keep_mode, const void *data, uint64_t length,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text name = STW_TEXT_INIT;
    int fd = -1;
    bool made = false;
    STW_TRY(open_temporary(path, &name, &fd, err));
    made = true;
    STW_TRY(write_all(fd, path, data, length, err));
    if ((keep_mode != 0 && fchmod(fd, keep_mode) != 0) || fsync(fd) != 0) {
        status = fail_errno(err, path, "cannot be written");
        goto out;
    }
    int closed = close(fd);
    fd = -1;
    if (closed != 0 || rename(name.data, path) != 0) {
        status = fail_errno(err, path, "cannot be written");
        goto out;
    }
    made = false;
    sync_folder(path);
out:
    if (fd >= 0) close(fd);
    if (made) unlink(name.data);
    stw_text_free(&name);
    return status;
}

stw_status stw_file_write(const char *path, const void *data, uint64_t length, stw_error *err) {
    if (strcmp(path, "-") == 0) {
        if (fflush(stdout) != 0) return fail_errno(err, "standard output", "cannot be written");
        return write_all(STDOUT_FILENO, "standard output", data, length, err);
    }
    struct stat info;
    if (stat(path, &info) != 0) return replace(path, 0, data, length, err);
    if (S_ISDIR(info.st_mode))
        return stw_fail_native(err, STW_STATUS_IO, EISDIR, path, "is a folder, expected a file");
    if (!S_ISREG(info.st_mode)) return write_in_place(path, data, length, err);
    char *target = realpath(path, NULL); /* a link stays a link */
    if (target == NULL) return fail_errno(err, path, "cannot be resolved");
    stw_status status = replace(target, info.st_mode & 0777, data, length, err);
    free(target);
    return status;
}

static stw_status fill_in(const char *path, const char *named, stw_file_fill fill, void *user,
                          stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    stw_status status = fill(path, user, &why);
    if (status == STW_STATUS_OK) return status;
    return stw_fail_native(err, status, why.native, named, "%s", why.text);
}

stw_status stw_file_make(const char *path, stw_file_fill fill, void *user, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text name = STW_TEXT_INIT;
    struct stat info;
    int fd = -1;
    bool exists = stat(path, &info) == 0, made = false;
    if (exists && S_ISDIR(info.st_mode))
        return stw_fail_native(err, STW_STATUS_IO, EISDIR, path, "is a folder, expected a file");
    if (exists && !S_ISREG(info.st_mode)) return fill_in(path, path, fill, user, err);
    char *target = exists ? realpath(path, NULL) : strdup(path); /* a link stays a link */
    if (target == NULL) return fail_errno(err, path, "cannot be resolved");
    STW_TRY(open_temporary(target, &name, &fd, err));
    made = true;
    STW_TRY(fill_in(name.data, path, fill, user, err));
    if ((exists && fchmod(fd, info.st_mode & 0777) != 0) || fsync(fd) != 0 ||
        rename(name.data, target) != 0) {
        status = fail_errno(err, path, "cannot be written");
        goto out;
    }
    made = false;
    sync_folder(target);
out:
    if (fd >= 0) close(fd);
    if (made) unlink(name.data);
    stw_text_free(&name);
    free(target);
    return status;
}

stw_status stw_stdout_finish(stw_error *err) {
    bool failed = ferror(stdout) != 0; /* of an earlier write, whose errno is lost */
    if (fflush(stdout) != 0) return fail_errno(err, "standard output", "cannot be written");
    if (!failed) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_IO, "standard output", "cannot be written");
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

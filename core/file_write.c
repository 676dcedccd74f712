/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* O_TMPFILE */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/text.h"

static stw_status write_all(int fd, const char *path, const void *data, uint64_t length,
                            stw_error *err) {
    const char *bytes = data;
    while (length > 0) {
        size_t piece = length < 64u * 1024 * 1024 ? (size_t)length : 64u * 1024 * 1024;
        ssize_t put = write(fd, bytes, piece);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return stw_fail_errno(err, path, "cannot be written");
        bytes += put;
        length -= (uint64_t)put;
    }
    return STW_STATUS_OK;
}

typedef struct content {
    const void *data;
    uint64_t length;
} content;

/* ---- names of temporary files, which a handler of signals removes at any time ---- */

enum { MOST_NAMES = 16 };
enum { FREE, TAKEN, NAMED };

static struct {
    atomic_int state; /* TAKEN: being filled */
    pid_t owner;      /* a child after fork() removes nothing */
    char path[PATH_MAX];
} names[MOST_NAMES];

void stw_file_on_signal(void) {
    for (int i = 0; i < MOST_NAMES; i++)
        if (atomic_load(&names[i].state) == NAMED && names[i].owner == getpid())
            (void)unlink(names[i].path);
}

/* The folder part of a path with its slash; empty for a bare name. */
static int folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? 0 : (int)(slash - path) + 1;
}

/* A name beside `target`. The handler knows it before the file exists. */
static stw_status take_name(const char *target, int *index, stw_error *err) {
    static atomic_uint serial;
    int taken = -1, expected = FREE;
    for (int i = 0; taken < 0 && i < MOST_NAMES; i++, expected = FREE)
        if (atomic_compare_exchange_strong(&names[i].state, &expected, TAKEN)) taken = i;
    if (taken < 0)
        return stw_fail(err, STW_STATUS_NO_RESOURCES, target,
                        "cannot be written: %d files are being written at this time", MOST_NAMES);
    int length =
        snprintf(names[taken].path, sizeof names[taken].path, "%.*s.stowage-%ld-%u.tmp",
                 folder_length(target), target, (long)getpid(), atomic_fetch_add(&serial, 1u));
    if (length < 0 || (size_t)length >= sizeof names[taken].path) {
        atomic_store(&names[taken].state, FREE);
        errno = ENAMETOOLONG;
        return stw_fail_errno(err, target, "cannot be written");
    }
    names[taken].owner = getpid();
    atomic_store(&names[taken].state, NAMED);
    *index = taken;
    return STW_STATUS_OK;
}

static void drop_name(int index) {
    if (index >= 0) atomic_store(&names[index].state, FREE);
}

/* ---- a file that replaces another one when it is complete ---- */

typedef struct draft {
    const char *target;     /* links resolved */
    const char *told;       /* what errors name */
    mode_t keep_mode;       /* permissions of the replaced file, 0 if there is none */
    const content *content; /* or: */
    stw_file_fill fill;
    void *user;
    int fd;
    int name;      /* in `names`; -1: the file has none yet */
    char path[40]; /* of a file without a name */
} draft;

static stw_status fail_of(const draft *d, stw_error *err) {
    if (errno == ENOENT)
        return stw_fail_native(err, STW_STATUS_IO, ENOENT, d->told,
                               "cannot be written: its folder does not exist");
    return stw_fail_errno(err, d->told, "cannot be written");
}

/* Not every file system has such files, and without /proc they get no name. */
static bool open_unnamed(draft *d) {
    char folder[PATH_MAX];
    int length = folder_length(d->target);
    int used = snprintf(folder, sizeof folder, "%.*s", length > 0 ? length : 1,
                        length > 0 ? d->target : ".");
    if (used < 0 || (size_t)used >= sizeof folder) return false;
    d->fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (d->fd < 0) return false;
    snprintf(d->path, sizeof d->path, "/proc/self/fd/%d", d->fd);
    if (access(d->path, F_OK) == 0) return true;
    close(d->fd);
    d->fd = -1;
    return false;
}

static stw_status open_named(draft *d, stw_error *err) {
    for (int attempt = 0; attempt < 100; attempt++) { /* names left by a process that died */
        drop_name(d->name);
        d->name = -1;
        stw_status status = take_name(d->target, &d->name, err);
        if (status != STW_STATUS_OK) return status;
        d->fd = open(names[d->name].path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (d->fd >= 0) return STW_STATUS_OK;
        if (errno != EEXIST) break;
    }
    drop_name(d->name); /* no file of ours has it */
    d->name = -1;
    return fail_of(d, err);
}

/* Name the file: as the target where nothing has that name, else beside it.
 * @param lacks out: the file system gives such a file no name */
static stw_status name_it(draft *d, bool *done, bool *lacks, stw_error *err) {
    *done = linkat(AT_FDCWD, d->path, AT_FDCWD, d->target, AT_SYMLINK_FOLLOW) == 0;
    if (*done) return STW_STATUS_OK;
    *lacks = errno != EEXIST;
    for (int attempt = 0; !*lacks && attempt < 100; attempt++) {
        stw_status status = take_name(d->target, &d->name, err);
        if (status != STW_STATUS_OK) return status;
        if (linkat(AT_FDCWD, d->path, AT_FDCWD, names[d->name].path, AT_SYMLINK_FOLLOW) == 0)
            return STW_STATUS_OK;
        *lacks = errno != EEXIST;
        drop_name(d->name); /* no file of ours has it */
        d->name = -1;
    }
    *lacks = true;
    return STW_STATUS_OK;
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

static stw_status fill_in(const char *path, const draft *d, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    if (d->content != NULL)
        return write_all(d->fd, d->told, d->content->data, d->content->length, err);
    stw_status status = d->fill(path, d->user, &why);
    if (status == STW_STATUS_OK) return status;
    return stw_fail_native(err, status, why.native, d->told, "%s", why.text);
}

/* @param unnamed false: the file has a name while it is filled
 * @param lacks out: a file without a name is not possible here */
static stw_status put(draft *d, bool unnamed, bool *lacks, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool done = false;
    d->fd = d->name = -1;
    *lacks = unnamed && !open_unnamed(d);
    if (*lacks) goto out;
    if (!unnamed) STW_TRY(open_named(d, err));
    STW_TRY(fill_in(unnamed ? d->path : names[d->name].path, d, err));
    if ((d->keep_mode != 0 && fchmod(d->fd, d->keep_mode) != 0) || fsync(d->fd) != 0)
        STW_TRY(fail_of(d, err));
    if (unnamed) STW_TRY(name_it(d, &done, lacks, err));
    if (*lacks) goto out;
    int closed = close(d->fd);
    d->fd = -1;
    if (closed != 0 || (!done && rename(names[d->name].path, d->target) != 0))
        STW_TRY(fail_of(d, err));
    sync_folder(d->target);
out:
    if (d->fd >= 0) close(d->fd);
    if (status != STW_STATUS_OK && d->name >= 0) (void)unlink(names[d->name].path);
    drop_name(d->name);
    return status;
}

static stw_status replace(draft *d, stw_error *err) {
    bool lacks = false;
    stw_status status = put(d, true, &lacks, err);
    return lacks && status == STW_STATUS_OK ? put(d, false, &lacks, err) : status;
}

/* ---- what is written in place: descriptors that are open already, FIFOs and devices ---- */

/* The descriptor that a path names, or -1; a shell names pipes so: >(command). */
static int descriptor_of(const char *path) {
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (strcmp(path, "-") == 0 || strcmp(path, "/dev/stdout") == 0) return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0) return STDERR_FILENO;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        size_t length = strlen(folders[i]);
        if (strncmp(path, folders[i], length) != 0) continue;
        char *end = NULL;
        unsigned long number = strtoul(path + length, &end, 10);
        return end != path + length && *end == '\0' && number <= INT_MAX ? (int)number : -1;
    }
    return -1;
}

bool stw_file_is_stdout(const char *path) { return descriptor_of(path) == STDOUT_FILENO; }

/* To open a FIFO would wait for a reader, who may never come. */
static stw_status open_in_place(const char *path, int *fd, stw_error *err) {
    struct stat info;
    *fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 && errno == ENXIO && stat(path, &info) == 0 && S_ISFIFO(info.st_mode))
        return stw_fail_native(err, STW_STATUS_IO, ENXIO, path,
                               "is a FIFO that no process reads; start its reader first");
    if (*fd < 0) return stw_fail_errno(err, path, "cannot be opened for writing");
    int flags = fcntl(*fd, F_GETFL);
    if (flags >= 0 && fcntl(*fd, F_SETFL, flags & ~O_NONBLOCK) == 0) return STW_STATUS_OK;
    stw_status status = stw_fail_errno(err, path, "cannot be opened for writing");
    close(*fd);
    *fd = -1;
    return status;
}

static stw_status write_descriptor(int fd, const char *path, const void *data, uint64_t length,
                                   stw_error *err) {
    const char *told = strcmp(path, "-") == 0 ? "standard output" : path;
    if (fd == STDOUT_FILENO && fflush(stdout) != 0)
        return stw_fail_errno(err, told, "cannot be written");
    return write_all(fd, told, data, length, err);
}

static stw_status write_in_place(const char *path, const void *data, uint64_t length,
                                 stw_error *err) {
    int fd = -1;
    stw_status status = open_in_place(path, &fd, err);
    if (status != STW_STATUS_OK) return status;
    status = write_all(fd, path, data, length, err);
    if (close(fd) != 0 && status == STW_STATUS_OK)
        status = stw_fail_errno(err, path, "cannot be closed");
    return status;
}

/* ---- the file that a path means ---- */

/* Where the links end, whether or not something is there: a link stays a link. Links among the
 * folders are left to the system. *out is freed by the caller. */
static stw_status follow_links(const char *path, char **out, stw_error *err) {
    char link[PATH_MAX];
    char *at = strdup(path);
    for (int hops = 0; at != NULL; hops++) {
        ssize_t n = readlink(at, link, sizeof link);
        if (n < 0 && (errno == EINVAL || errno == ENOENT)) break;
        if (n < 0 || (size_t)n == sizeof link || hops == 40) {
            if (n >= 0) errno = hops == 40 ? ELOOP : ENAMETOOLONG;
            free(at);
            return stw_fail_errno(err, path, "cannot be resolved");
        }
        stw_text next = STW_TEXT_INIT;
        if (link[0] != '/') stw_text_append(&next, at, (size_t)folder_length(at));
        stw_text_append(&next, link, (size_t)n);
        free(at);
        at = next.data;
        if (next.failed) {
            stw_text_free(&next);
            at = NULL;
        }
    }
    *out = at;
    return at != NULL ? STW_STATUS_OK
                      : stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory for its path");
}

typedef struct place {
    bool in_place;
    mode_t keep_mode;
    char *target; /* NULL if in place; freed by the caller */
} place;

static stw_status find(const char *path, place *out, stw_error *err) {
    struct stat info;
    *out = (place){0};
    if (path[0] == '\0')
        return stw_fail(err, STW_STATUS_IO, NULL,
                        "the name of the output file is empty; it cannot be written");
    bool exists = stat(path, &info) == 0;
    if (!exists && errno != ENOENT) return stw_fail_errno(err, path, "cannot be written");
    if (exists && S_ISDIR(info.st_mode))
        return stw_fail_native(err, STW_STATUS_IO, EISDIR, path, "is a folder, expected a file");
    /* Rename would replace a device, which succeeds as root. */
    out->in_place = exists && !S_ISREG(info.st_mode);
    if (out->in_place) return STW_STATUS_OK;
    if (exists) out->keep_mode = info.st_mode & 0777;
    return follow_links(path, &out->target, err);
}

stw_status stw_file_write(const char *path, const void *data, uint64_t length, stw_error *err) {
    return stw_file_write_like(path, NULL, data, length, err);
}

stw_status stw_file_write_like(const char *path, const char *like, const void *data,
                               uint64_t length, stw_error *err) {
    const content c = {data, length};
    place to;
    int fd = descriptor_of(path);
    if (fd >= 0) return write_descriptor(fd, path, data, length, err);
    stw_status status = find(path, &to, err);
    if (status != STW_STATUS_OK) return status;
    if (to.in_place) return write_in_place(path, data, length, err);
    struct stat info;
    if (to.keep_mode == 0 && like != NULL && stat(like, &info) == 0 && S_ISREG(info.st_mode))
        to.keep_mode = info.st_mode & 0777;
    draft d = {.target = to.target, .told = path, .keep_mode = to.keep_mode, .content = &c};
    status = replace(&d, err);
    free(to.target);
    return status;
}

stw_status stw_file_make(const char *path, stw_file_fill fill, void *user, stw_error *err) {
    draft d = {.told = path, .fill = fill, .user = user};
    place to;
    int fd = -1;
    if (descriptor_of(path) == STDOUT_FILENO) {
        if (fflush(stdout) != 0) return stw_fail_errno(err, path, "cannot be written");
        return fill_in("/dev/stdout", &d, err);
    }
    if (descriptor_of(path) >= 0) return fill_in(path, &d, err);
    stw_status status = find(path, &to, err);
    if (status == STW_STATUS_OK && to.in_place) {
        status = open_in_place(path, &fd, err); /* a FIFO with a reader does not wait */
        if (status == STW_STATUS_OK) status = fill_in(path, &d, err);
        if (fd >= 0) close(fd);
    } else if (status == STW_STATUS_OK) {
        d.target = to.target;
        d.keep_mode = to.keep_mode;
        status = replace(&d, err);
        free(to.target);
    }
    return status;
}

stw_status stw_stdout_finish(stw_error *err) {
    bool failed = ferror(stdout) != 0; /* of an earlier write, whose errno is lost */
    if (fflush(stdout) != 0) return stw_fail_errno(err, "standard output", "cannot be written");
    if (!failed) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_IO, "standard output", "cannot be written");
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* flock */
#include "backend/checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/nvme/names.h"
#include "core/file.h"
#include "core/log.h"

#define CLAIM ".claim"

static stw_status no_memory(const char *path, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
}

static stw_status too_long(const char *path, stw_error *err) {
    return stw_fail(err, STW_STATUS_USAGE, path,
                    "the path is too long: expected fewer than %d bytes", STW_CHECKPOINT_PATH);
}

/* "folder/name" */
static STW_PRINTF(3, 4) bool join(const char *folder, char out[STW_CHECKPOINT_PATH],
                                  const char *format, ...) {
    const int head = snprintf(out, STW_CHECKPOINT_PATH, "%s/", folder);
    va_list list;
    if (head < 0 || head >= STW_CHECKPOINT_PATH) return false;
    va_start(list, format);
    const int tail = vsnprintf(out + head, (size_t)(STW_CHECKPOINT_PATH - head), format, list);
    va_end(list);
    return tail >= 0 && tail < STW_CHECKPOINT_PATH - head;
}

/* ---- names ---- */

/* "step-00000100", or ".step-00000100.<save>.partial" */
static bool parse_name(const char *name, uint64_t *step, bool *partial) {
    char *end = NULL;
    *partial = name[0] == '.';
    const char *digits = name + (*partial ? 1 : 0);
    if (strncmp(digits, "step-", 5) != 0 || digits[5] < '0' || digits[5] > '9') return false;
    *step = strtoull(digits + 5, &end, 10);
    if (!*partial) return *end == '\0';
    const size_t left = strlen(end);
    return *end == '.' && left > 8 && strcmp(end + left - 8, ".partial") == 0;
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Left by a removal that did not come to its end. */
static bool is_rest(const char *name) {
    const size_t length = strlen(name);
    return strncmp(name, ".step-", 6) == 0 && length > 9 &&
           strcmp(name + length - 9, ".removing") == 0;
}

/* A manifest or a marker: nobody else makes such files. */
static bool has_own_file(const char *path, bool *empty) {
    DIR *folder = opendir(path);
    bool own = false;
    *empty = folder != NULL;
    for (struct dirent *e; folder != NULL && !own && (e = readdir(folder)) != NULL;) {
        const size_t length = strlen(e->d_name);
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        *empty = false;
        own = strcmp(e->d_name, STW_MANIFEST_NAME) == 0 ||
              (strncmp(e->d_name, "rank-", 5) == 0 && length > 5 &&
               strcmp(e->d_name + length - 5, ".done") == 0);
    }
    if (folder != NULL) (void)closedir(folder);
    return own;
}

bool stw_checkpoint_is(const char *path) {
    uint64_t step;
    bool partial, empty;
    return (stw_file_is_folder(path) && parse_name(name_of(path), &step, &partial)) ||
           has_own_file(path, &empty);
}

bool stw_checkpoint_is_own(const char *path) {
    bool empty = false;
    return has_own_file(path, &empty) || empty;
}

/* ---- lists ---- */

static int compare(const void *a, const void *b) {
    const stw_checkpoint_entry *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    if (x->partial != y->partial) return x->partial ? -1 : 1;
    return strcmp(x->path, y->path);
}

static stw_status add(stw_checkpoint_list *list, const char *path, uint64_t step, bool partial,
                      stw_error *err) {
    stw_checkpoint_entry *grown = realloc(list->entries, (list->n + 1u) * sizeof *grown);
    if (grown == NULL) return no_memory(path, err);
    list->entries = grown;
    grown[list->n] = (stw_checkpoint_entry){strdup(path), step, partial};
    if (grown[list->n].path == NULL) return no_memory(path, err);
    list->n++;
    return STW_STATUS_OK;
}

void stw_checkpoint_list_free(stw_checkpoint_list *list) {
    for (uint32_t i = 0; i < list->n; i++) free(list->entries[i].path);
    free(list->entries);
    *list = (stw_checkpoint_list){0, NULL};
}

static stw_status scan_folder(const char *path, DIR *folder, stw_checkpoint_list *out,
                              stw_error *err) {
    char own[STW_CHECKPOINT_PATH];
    for (struct dirent *e = readdir(folder); e != NULL; e = readdir(folder)) {
        uint64_t step = 0;
        bool partial = false;
        if (!parse_name(e->d_name, &step, &partial)) continue;
        if (!join(path, own, "%s", e->d_name)) return too_long(path, err);
        if (!stw_file_is_folder(own)) continue;
        stw_status status = add(out, own, step, partial, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

stw_status stw_checkpoint_scan(const char *path, stw_checkpoint_list *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    DIR *folder = NULL;
    uint64_t step = 0;
    bool partial = false;
    *out = (stw_checkpoint_list){0, NULL};
    if (stw_checkpoint_is(path)) {
        if (!parse_name(name_of(path), &step, &partial)) partial = false;
        return add(out, path, step, partial, err);
    }
    folder = opendir(path);
    if (folder == NULL)
        return stw_fail_native(err, errno == ENOENT ? STW_STATUS_BAD_INPUT : STW_STATUS_IO, errno,
                               path, "cannot be opened: %s", strerror(errno));
    STW_TRY(scan_folder(path, folder, out, err));
    if (out->n > 1) qsort(out->entries, out->n, sizeof *out->entries, compare);
out:
    (void)closedir(folder);
    if (status != STW_STATUS_OK) stw_checkpoint_list_free(out);
    return status;
}

stw_status stw_checkpoint_newest(const char *path, stw_checkpoint **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_checkpoint_list list;
    stw_error first = STW_ERROR_INIT, last = STW_ERROR_INIT;
    *out = NULL;
    STW_TRY(stw_checkpoint_scan(path, &list, err));
    for (uint32_t i = list.n; i-- > 0;) {
        stw_error why = STW_ERROR_INIT;
        status = stw_checkpoint_open(list.entries[i].path, out, &why);
        if (status == STW_STATUS_OK) goto out;
        if (first.status == STW_STATUS_OK) first = why;
        last = why;
        if (status != STW_STATUS_BAD_INPUT) break; /* damage is not passed over */
        if (!list.entries[i].partial)
            stw_log(STW_LOG_WARN, "%s is not complete and is passed over: %s", why.where, why.text);
    }
    if (list.n == 0)
        status = stw_fail(err, STW_STATUS_BAD_INPUT, path,
                          "found no checkpoint, expected folders such as step-00000100");
    else if (list.n == 1)
        status = stw_fail(err, first.status, first.where, "%s", first.text);
    else if (status == STW_STATUS_BAD_INPUT)
        status = stw_fail(err, first.status, path,
                          "found %u checkpoints, none of which is complete; the newest, %.200s: "
                          "%.300s",
                          list.n, first.where, first.text);
    else
        status = stw_fail(err, last.status, last.where,
                          "%.400s; to use an older one of the %u checkpoints in %.200s, name it",
                          last.text, list.n, path);
out:
    if (status == STW_STATUS_OK || list.n > 0) stw_checkpoint_list_free(&list);
    return status;
}

/* ---- removing ---- */

/* The files of a folder, and the folder. Of a link the link alone: what it leads to is not ours. */
static stw_status remove_files(const char *path, stw_error *err) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && unlink(path) == 0) return STW_STATUS_OK;
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        if (fd >= 0) (void)close(fd);
        return stw_fail_errno(err, path, "cannot be removed");
    }
    for (struct dirent *e = readdir(folder); e != NULL; e = readdir(folder))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(fd, e->d_name, 0);
    (void)closedir(folder);
    if (rmdir(path) == 0 || errno == ENOENT) return STW_STATUS_OK;
    return stw_fail_errno(err, path, "cannot be removed");
}

/* Folder of a path, "." where it has none. */
static void parent_of(const char *path, char out[STW_CHECKPOINT_PATH], const char **name) {
    const char *slash = strrchr(path, '/');
    *name = slash != NULL ? slash + 1 : path;
    snprintf(out, STW_CHECKPOINT_PATH, "%.*s", slash != NULL ? (int)(slash - path) : 1,
             slash != NULL ? path : ".");
    if (out[0] == '\0') snprintf(out, STW_CHECKPOINT_PATH, "/");
}

stw_status stw_checkpoint_remove(const char *path, stw_error *err) {
    char folder[STW_CHECKPOINT_PATH], rest[STW_CHECKPOINT_PATH];
    const char *name;
    uint64_t step;
    bool partial;
    parent_of(path, folder, &name);
    if (!parse_name(name, &step, &partial))
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "is not removed: expected a name such as step-00000100");
    if (!join(folder, rest, "%s%s.%ld.removing", partial ? "" : ".", name, (long)getpid()))
        return too_long(path, err);
    if (rename(path, rest) != 0) return stw_fail_errno(err, path, "cannot be renamed");
    stw_nvme_folder_sync(folder);
    return remove_files(rest, err);
}

/* ---- saves ---- */

static stw_status make_folder(const char *path, stw_error *err) {
    char own[STW_CHECKPOINT_PATH];
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return STW_STATUS_OK;
    if (errno == ENOENT) { /* and those above it */
        const char *name;
        parent_of(path, own, &name);
        stw_status status = strlen(own) < strlen(path) ? make_folder(own, err) : STW_STATUS_OK;
        if (status != STW_STATUS_OK) return status;
        if (mkdir(path, 0777) == 0 || errno == EEXIST) return STW_STATUS_OK;
    }
    return stw_fail_errno(err, path, "cannot be made");
}

stw_status stw_partial_make(stw_partial *p, stw_error *err) {
    if (!join(p->folder, p->path, ".step-%08" PRIu64 ".%016" PRIx64 ".partial", p->step, p->save))
        return too_long(p->folder, err);
    return make_folder(p->path, err);
}

static bool all_markers(const stw_partial *p) {
    char file[STW_CHECKPOINT_PATH], marker[32];
    bool all = true;
    for (uint32_t r = 0; r < p->world && all; r++) {
        stw_marker_name(r, marker);
        all = join(p->path, file, "%s", marker) && stw_file_exists(file);
    }
    return all;
}

/* Only one rank may rename. The file stays in the folder for good: a rank whose open() has found
 * the folder before it was renamed must not be able to claim it afterwards. */
static bool claim(const stw_partial *p) {
    char file[STW_CHECKPOINT_PATH];
    const int fd =
        join(p->path, file, CLAIM) ? open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) (void)close(fd);
    return fd >= 0;
}

/* Whole checkpoints of lower steps, beyond those that are kept. */
static void retain(const char *folder, uint64_t step, uint32_t keep) {
    stw_checkpoint_list list;
    uint32_t kept = 1;
    if (keep == 0 || stw_checkpoint_scan(folder, &list, NULL) != STW_STATUS_OK) return;
    for (uint32_t i = list.n; i-- > 0;) {
        stw_checkpoint *one = NULL;
        stw_error why = STW_ERROR_INIT;
        if (list.entries[i].step >= step || list.entries[i].partial) continue;
        if (stw_checkpoint_open(list.entries[i].path, &one, NULL) != STW_STATUS_OK) continue;
        stw_checkpoint_close(one);
        if (kept++ < keep) continue;
        if (stw_checkpoint_remove(list.entries[i].path, &why) != STW_STATUS_OK)
            stw_log(STW_LOG_WARN, "%s: an old checkpoint stays: %s", why.where, why.text);
    }
    stw_checkpoint_list_free(&list);
}

static stw_status give_name(const stw_partial *p, stw_error *err) {
    char name[STW_CHECKPOINT_PATH];
    stw_status status = STW_STATUS_OK;
    if (!join(p->folder, name, "step-%08" PRIu64, p->step)) return too_long(p->folder, err);
    /* One of the same step, of a run that was resumed: the new one is whole already. */
    if (stw_file_exists(name) && !stw_checkpoint_is_own(name))
        STW_TRY(stw_fail(err, STW_STATUS_IO, name,
                         "found something else than a checkpoint: it stays, and the new one is %s",
                         p->path));
    if (stw_file_exists(name)) STW_TRY(stw_checkpoint_remove(name, err));
    if (rename(p->path, name) != 0) return stw_fail_errno(err, p->path, "cannot be renamed");
    stw_nvme_folder_sync(p->folder);
out:
    return status;
}

stw_status stw_partial_publish(stw_partial *p, uint32_t keep, bool *published, stw_error *err) {
    *published = false;
    if (!all_markers(p) || !claim(p)) return STW_STATUS_OK;
    stw_status status = give_name(p, err);
    *published = status == STW_STATUS_OK;
    if (*published) retain(p->folder, p->step, keep);
    return status;
}

void stw_partial_drop(const stw_partial *p) {
    stw_error why = STW_ERROR_INIT;
    if (!stw_file_is_folder(p->path)) return;
    if (stw_checkpoint_remove(p->path, &why) != STW_STATUS_OK)
        stw_log(STW_LOG_WARN, "%s: %s", why.where, why.text);
}

static void tidy_partial(const char *folder, const stw_checkpoint_entry *e, uint64_t save) {
    stw_checkpoint *whole = NULL;
    stw_partial p = {.folder = folder, .step = e->step};
    stw_error why = STW_ERROR_INIT;
    char own[64];
    snprintf(p.path, sizeof p.path, "%s", e->path);
    snprintf(own, sizeof own, ".%016" PRIx64 ".partial", save);
    if (strstr(e->path, own) != NULL) return;
    if (stw_checkpoint_open(e->path, &whole, NULL) != STW_STATUS_OK)
        stw_partial_drop(&p);
    else if (give_name(&p, &why) != STW_STATUS_OK)
        stw_log(STW_LOG_WARN, "%s: %s", why.where, why.text);
    stw_checkpoint_close(whole);
}

void stw_checkpoint_tidy(const char *path, uint64_t save) {
    stw_checkpoint_list list;
    char own[STW_CHECKPOINT_PATH];
    DIR *folder = opendir(path);
    for (struct dirent *e = folder != NULL ? readdir(folder) : NULL; e != NULL; e = readdir(folder))
        if (is_rest(e->d_name) && join(path, own, "%s", e->d_name)) (void)!remove_files(own, NULL);
    if (folder != NULL) (void)closedir(folder);
    if (folder == NULL || stw_checkpoint_scan(path, &list, NULL) != STW_STATUS_OK) return;
    for (uint32_t i = 0; i < list.n; i++)
        if (list.entries[i].partial) tidy_partial(path, &list.entries[i], save);
    stw_checkpoint_list_free(&list);
}

stw_status stw_checkpoint_lock(const char *folder, int *lock, stw_error *err) {
    char file[STW_CHECKPOINT_PATH];
    stw_status status = make_folder(folder, err);
    *lock = -1;
    if (status != STW_STATUS_OK) return status;
    if (!join(folder, file, ".lock")) return too_long(folder, err);
    const int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return stw_fail_errno(err, file, "cannot be opened");
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int code = errno;
        (void)close(fd);
        if (code != EWOULDBLOCK) return STW_STATUS_OK;
        return stw_fail(err, STW_STATUS_USAGE, folder,
                        "another run saves its checkpoints here; give each a folder of its own");
    }
    *lock = fd;
    return STW_STATUS_OK;
}

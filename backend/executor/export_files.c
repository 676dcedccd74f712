/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* renameat2 */
#include "backend/executor/export_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/json.h"

#define FILE_BYTES 5000000000ull /* as transformers cuts them */
#define COPY_BYTES (256ull << 20)
#define INDEX "model.safetensors.index.json"
#define NAME_BYTES 64

typedef struct one_file {
    char name[NAME_BYTES];
    uint32_t writer, first, n; /* tensors */
    int fd;                    /* -1: not open */
} one_file;

struct stw_export_files {
    stw_pool *pool;
    const stw_sync_tensor *tensors;
    const stw_export *plan;
    uint32_t n_tensors, n_files, rank;
    one_file *files;
    uint32_t *file_of; /* [n_tensors] */
    uint64_t *begin;   /* [n_tensors] byte of its file at which it begins; set by `begin` */
    uint64_t bytes;
    const char *path;
    char work[PATH_MAX]; /* the folder under way; "": none */
};

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "folder", "out of memory");
}

static uint64_t bytes_of(const stw_sync_tensor *t) {
    uint64_t bytes = stw_sync_width(t->dtype);
    for (int d = 0; d < STW_BOX_DIMS; d++) bytes = stw_times(bytes, t->shape[d]);
    return bytes;
}

static bool ends(const char *name, const char *with) {
    const size_t n = strlen(name), m = strlen(with);
    return n >= m && strcmp(name + n - m, with) == 0;
}

/* ---- folders ---- */

static stw_status look(void *state, const char *folder, const char *name, stw_error *err) {
    char path[STW_FOLDER_PATH];
    stw_folder_join(path, folder, name);
    if (stw_file_is_folder(path))
        return stw_fail(err, STW_STATUS_USAGE, folder, "found the folder %.100s in it", name);
    *(bool *)state |= ends(name, ".safetensors");
    return STW_STATUS_OK;
}

static stw_status check_replaceable(const char *path, stw_error *err) {
    bool weights = false;
    struct stat st;
    if (lstat(path, &st) != 0) return STW_STATUS_OK;
    if (S_ISDIR(st.st_mode) && stw_folder_each(path, look, &weights, NULL) == STW_STATUS_OK &&
        weights)
        return STW_STATUS_OK;
    return stw_fail(
        err, STW_STATUS_USAGE, path,
        "found something else than a flat folder of safetensors, which is not replaced");
}

/* ---- dealing ---- */

static stw_status deal(stw_export_files *f, const stw_sync_piece *targets, stw_error *err) {
    uint64_t size = 0;
    f->files = stw_pool_array(f->pool, (size_t)f->n_tensors + 1, sizeof *f->files);
    f->file_of = stw_pool_array(f->pool, (size_t)f->n_tensors + 1, sizeof *f->file_of);
    f->begin = stw_pool_array(f->pool, (size_t)f->n_tensors + 1, sizeof *f->begin);
    if (f->files == NULL || f->file_of == NULL || f->begin == NULL) return no_memory(err);
    for (uint32_t t = 0; t < f->n_tensors; t++) {
        const uint64_t bytes = bytes_of(&f->tensors[t]);
        one_file *last = f->n_files > 0 ? &f->files[f->n_files - 1] : NULL;
        if (last == NULL || last->writer != targets[t].rank || size + bytes > FILE_BYTES) {
            last = &f->files[f->n_files++];
            *last = (one_file){.writer = targets[t].rank, .first = t, .fd = -1};
            size = 0;
        }
        last->n++;
        size += bytes;
        f->bytes += bytes;
        f->file_of[t] = f->n_files - 1;
    }
    for (uint32_t i = 0; i < f->n_files; i++)
        if (f->n_files == 1)
            snprintf(f->files[i].name, NAME_BYTES, "model.safetensors");
        else
            snprintf(f->files[i].name, NAME_BYTES, "model-%05u-of-%05u.safetensors", i + 1,
                     f->n_files);
    return STW_STATUS_OK;
}

stw_status stw_export_files_new(const stw_export *plan, const stw_sync_piece *targets,
                                const char *path, uint32_t rank, stw_export_files **out,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    stw_export_files *f = pool != NULL ? stw_pool_alloc(pool, sizeof *f) : NULL;
    size_t n = strlen(path);
    *out = NULL;
    if (f == NULL) {
        stw_pool_free(pool);
        return no_memory(err);
    }
    f->pool = pool;
    f->plan = plan;
    f->rank = rank;
    f->tensors = stw_export_tensors(plan, &f->n_tensors);
    while (n > 1 && path[n - 1] == '/') n--;
    f->path = stw_pool_printf(pool, "%.*s", (int)n, path);
    if (f->path == NULL) STW_TRY(no_memory(err));
    if (n == 0 || n + 64 > PATH_MAX)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "--sync-to",
                         "found a path of %zu bytes, expected 1 to %d", n, PATH_MAX - 64));
    if (rank == 0) STW_TRY(check_replaceable(f->path, err));
    STW_TRY(deal(f, targets, err));
    *out = f;
    f = NULL;
out:
    stw_export_files_free(f);
    return status;
}

static void close_all(stw_export_files *f) {
    for (uint32_t i = 0; i < f->n_files; i++) {
        if (f->files[i].fd >= 0) (void)close(f->files[i].fd);
        f->files[i].fd = -1;
    }
}

void stw_export_files_free(stw_export_files *f) {
    if (f == NULL) return;
    close_all(f);
    if (f->rank == 0 && f->work[0] != '\0') (void)!stw_folder_remove(f->work, NULL);
    stw_pool_free(f->pool);
}

uint64_t stw_export_files_bytes(const stw_export_files *f) { return f->bytes; }

/* ---- writing ---- */

static stw_status write_fully(int fd, const char *name, const void *data, uint64_t bytes,
                              uint64_t at, stw_error *err) {
    const unsigned char *from = data;
    while (bytes > 0) {
        const size_t most = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        const ssize_t n = pwrite(fd, from, most, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return stw_fail_errno(err, name, "cannot be written");
        from += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return STW_STATUS_OK;
}

/* 8 bytes that give the length of the JSON, then that, up to a multiple of 8. */
static stw_status make_header(stw_export_files *f, const one_file *file, uint64_t step,
                              stw_text *out, uint64_t *size, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_json *json = stw_json_new();
    stw_text text = STW_TEXT_INIT;
    char number[24];
    uint64_t at = 0;
    snprintf(number, sizeof number, "%llu", (unsigned long long)step);
    stw_json_begin_object(json, NULL);
    stw_json_begin_object(json, "__metadata__");
    stw_json_string(json, "format", "pt");
    stw_json_string(json, "step", number);
    stw_json_end(json);
    for (uint32_t t = file->first; t < file->first + file->n; t++) {
        const stw_published *p = stw_export_published(f->plan, t);
        stw_json_begin_object(json, p->name);
        stw_json_string(json, "dtype", stw_dtype_name(f->tensors[t].dtype));
        stw_json_begin_array(json, "shape");
        for (uint32_t d = 0; d < p->rank; d++) stw_json_u64(json, NULL, p->shape[d]);
        stw_json_end(json);
        stw_json_begin_array(json, "data_offsets");
        stw_json_u64(json, NULL, at);
        f->begin[t] = at;
        at = stw_plus(at, bytes_of(&f->tensors[t]));
        stw_json_u64(json, NULL, at);
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
    STW_TRY(stw_json_finish(json, &text, err));
    const uint64_t length = stw_round_up_u64(text.length, 8);
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)(length >> (8 * i));
    stw_text_append(out, (const char *)prefix, sizeof prefix);
    stw_text_append(out, text.data, text.length);
    for (uint64_t i = text.length; i < length; i++) stw_text_append(out, " ", 1);
    for (uint32_t t = file->first; t < file->first + file->n; t++) f->begin[t] += length + 8;
    *size = stw_plus(at, length + 8);
    STW_TRY(stw_text_status(out, err));
out:
    stw_text_free(&text);
    return status;
}

static stw_status begin_file(stw_export_files *f, one_file *file, uint64_t step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text header = STW_TEXT_INIT;
    uint64_t size = 0;
    char path[STW_FOLDER_PATH];
    stw_folder_join(path, f->work, file->name);
    STW_TRY(make_header(f, file, step, &header, &size, err));
    file->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file->fd < 0) STW_TRY(stw_fail_errno(err, path, "cannot be made"));
    if (ftruncate(file->fd, (off_t)size) != 0)
        STW_TRY(stw_fail_errno(err, path, "cannot be extended"));
    STW_TRY(write_fully(file->fd, path, header.data, header.length, 0, err));
out:
    stw_text_free(&header);
    return status;
}

static void name_work(stw_export_files *f, uint64_t step) {
    snprintf(f->work, sizeof f->work, "%s.writing-%llu", f->path, (unsigned long long)step);
}

stw_status stw_export_files_make(stw_export_files *f, uint64_t step, stw_error *err) {
    struct stat st;
    name_work(f, step);
    if (lstat(f->work, &st) == 0) { /* of a run that was killed */
        const stw_status status = stw_folder_remove(f->work, err);
        if (status != STW_STATUS_OK) return status;
    }
    return mkdir(f->work, 0755) == 0 ? STW_STATUS_OK
                                     : stw_fail_errno(err, f->work, "cannot be made");
}

stw_status stw_export_files_begin(stw_export_files *f, uint64_t step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    name_work(f, step);
    for (uint32_t i = 0; i < f->n_files; i++)
        if (f->files[i].writer == f->rank) STW_TRY(begin_file(f, &f->files[i], step, err));
out:
    return status;
}

stw_status stw_export_files_write(const stw_export_files *f, uint32_t tensor, const stw_box *box,
                                  const void *data, stw_error *err) {
    const stw_sync_tensor *t = &f->tensors[tensor];
    const one_file *file = &f->files[f->file_of[tensor]];
    const uint64_t width = stw_sync_width(t->dtype);
    uint64_t run = 1, stride[STW_BOX_DIMS] = {0, 0, 0, 1}, done = 0;
    int outer = STW_BOX_DIMS; /* dimensions before it are gone through one by one */
    for (int d = STW_BOX_DIMS - 1; d > 0; d--) stride[d - 1] = stw_times(stride[d], t->shape[d]);
    do {
        outer--;
        run = stw_times(run, box->count[outer]);
    } while (outer > 0 && box->count[outer] == t->shape[outer]);
    const uint64_t all = stw_box_volume(box);
    char path[STW_FOLDER_PATH];
    stw_folder_join(path, f->work, file->name);
    for (stw_status status; done < all; done += run) {
        uint64_t rest = done / run, at = stw_times(box->first[outer], stride[outer]);
        for (int d = STW_BOX_DIMS - 1; d > outer; d--) at += stw_times(box->first[d], stride[d]);
        for (int d = outer - 1; d >= 0; d--) {
            at += stw_times(box->first[d] + rest % box->count[d], stride[d]);
            rest /= box->count[d];
        }
        status = write_fully(file->fd, path, (const unsigned char *)data + stw_times(done, width),
                             stw_times(run, width), f->begin[tensor] + stw_times(at, width), err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

stw_status stw_export_files_end(stw_export_files *f, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < f->n_files; i++) {
        one_file *file = &f->files[i];
        if (file->fd < 0) continue;
        const bool flushed = fsync(file->fd) == 0, closed = close(file->fd) == 0;
        file->fd = -1;
        if (flushed && closed) continue;
        char path[STW_FOLDER_PATH];
        stw_folder_join(path, f->work, file->name);
        STW_TRY(stw_fail_errno(err, path, "cannot be flushed"));
    }
out:
    return status;
}

/* ---- publishing ---- */

static stw_status write_index(const stw_export_files *f, uint64_t step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_json *json = stw_json_new();
    stw_text text = STW_TEXT_INIT;
    char path[STW_FOLDER_PATH];
    stw_folder_join(path, f->work, INDEX);
    stw_json_begin_object(json, NULL);
    stw_json_begin_object(json, "metadata");
    stw_json_u64(json, "total_size", f->bytes);
    stw_json_u64(json, "step", step);
    stw_json_end(json);
    stw_json_begin_object(json, "weight_map");
    for (uint32_t t = 0; t < f->n_tensors; t++)
        stw_json_string(json, f->tensors[t].name, f->files[f->file_of[t]].name);
    stw_json_end(json);
    stw_json_end(json);
    STW_TRY(stw_json_finish(json, &text, err));
    STW_TRY(stw_file_write(path, text.data, text.length, err));
out:
    stw_text_free(&text);
    return status;
}

/* config.json, tokenizer: what is no weights. */
static stw_status copy_name(void *state, const char *folder, const char *name, stw_error *err) {
    const stw_export_files *f = state;
    char from[STW_FOLDER_PATH], to[STW_FOLDER_PATH], *data = NULL;
    uint64_t length = 0;
    struct stat st;
    if (!stw_folder_is_rest(name)) return STW_STATUS_OK;
    stw_folder_join(from, folder, name);
    stw_folder_join(to, f->work, name);
    if (stat(from, &st) != 0 || !S_ISREG(st.st_mode)) return STW_STATUS_OK;
    stw_status status = stw_file_read(from, COPY_BYTES, &data, &length, err);
    if (status == STW_STATUS_OK) status = stw_file_write(to, data, length, err);
    free(data);
    return status;
}

/* The new folder takes the old one's place at once, or one after the other where the file system
 * cannot. */
static stw_status exchange(stw_export_files *f, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    struct stat st;
    if (lstat(f->path, &st) != 0) {
        if (rename(f->work, f->path) != 0)
            return stw_fail_errno(err, f->path, "cannot be made of the folder beside it");
        f->work[0] = '\0';
        return STW_STATUS_OK;
    }
    STW_TRY(check_replaceable(f->path, err));
    if (renameat2(AT_FDCWD, f->work, AT_FDCWD, f->path, RENAME_EXCHANGE) != 0) {
        char aside[PATH_MAX];
        if (errno != ENOSYS && errno != EINVAL)
            STW_TRY(stw_fail_errno(err, f->path, "cannot be exchanged"));
        snprintf(aside, sizeof aside, "%.*s.old", (int)sizeof aside - 8, f->work);
        if (rename(f->path, aside) != 0 || rename(f->work, f->path) != 0)
            STW_TRY(stw_fail_errno(err, f->path, "cannot be exchanged"));
        snprintf(f->work, sizeof f->work, "%s", aside);
    }
    STW_TRY(stw_folder_remove(f->work, err));
    f->work[0] = '\0';
out:
    return status;
}

stw_status stw_export_files_publish(stw_export_files *f, const char *like, uint64_t step,
                                    stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (like != NULL && stw_file_is_folder(like)) STW_TRY(stw_folder_each(like, copy_name, f, err));
    if (f->n_files > 1) STW_TRY(write_index(f, step, err));
    STW_TRY(stw_folder_sync(f->work, err));
    STW_TRY(exchange(f, err));
    STW_TRY(stw_folder_sync_parent(f->path, err));
out:
    return status;
}

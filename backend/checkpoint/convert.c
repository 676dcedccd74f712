/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* flock */
#include "backend/checkpoint/convert.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backend/boxes.h"
#include "backend/checkpoint/convert_map.h"
#include "backend/checkpoint/convert_texts.h"
#include "backend/element.h"
#include "backend/nvme/plain.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/progress.h"
#include "core/units.h"
#include "plan/checkpoint/saved.h"

#define INDEX "model.safetensors.index.json"
#define SCRATCH_ELEMENTS (1u << 18)

typedef struct converter {
    const stw_checkpoint *c;
    const stw_convert_options *o;
    stw_convert_result *result;
    stw_pool *pool;
    stw_convert_map map;
    stw_saved_files *saved; /* the files to be written, an entry for each tensor of the map */
    char path[PATH_MAX];    /* the folder, without a slash at its end */
    char work[PATH_MAX];    /* beside it */
    int lock;               /* a descriptor of `work`; -1: it is not there */
    stw_plain_io *io;
    stw_plain **files;      /* [saved->n_files] */
    unsigned char *scratch; /* [SCRATCH_ELEMENTS] of the widest dtype */
} converter;

static stw_status no_memory(const converter *k, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, k->o->folder, "out of memory");
}

/* ---- the folder ---- */

static stw_status found_name(void *state, const char *folder, const char *name, stw_error *err) {
    (void)state;
    return stw_fail(err, STW_STATUS_USAGE, folder,
                    "found %.100s in it, expected a folder that is empty or does not exist", name);
}

/* Nothing that exists is replaced but an empty folder. */
static stw_status check_target(const converter *k, stw_error *err) {
    struct stat info;
    if (lstat(k->path, &info) != 0) {
        if (errno == ENOENT) return STW_STATUS_OK;
        return stw_fail_errno(err, k->path, "cannot be examined");
    }
    if (!S_ISDIR(info.st_mode))
        return stw_fail(err, STW_STATUS_USAGE, k->path,
                        "found a %s, expected a folder that is empty or does not exist",
                        S_ISLNK(info.st_mode) ? "link" : "file");
    return stw_folder_each(k->path, found_name, NULL, err);
}

static stw_status name_folders(converter *k, stw_error *err) {
    size_t n = strlen(k->o->folder);
    while (n > 1 && k->o->folder[n - 1] == '/') n--;
    int head = 0;
    for (size_t i = 0; i < n; i++)
        if (k->o->folder[i] == '/') head = (int)i + 1;
    const char *name = k->o->folder + head;
    const int length = (int)n - head;
    if (n == 0 || n + 32 > PATH_MAX || length <= 0 || strncmp(name, "..", (size_t)length) == 0)
        return stw_fail(err, STW_STATUS_USAGE, "-o", "found \"%.200s\", expected a folder to make",
                        k->o->folder);
    snprintf(k->path, sizeof k->path, "%.*s", (int)n, k->o->folder);
    snprintf(k->work, sizeof k->work, "%.*s.%.*s.converting", head, k->o->folder, length, name);
    return check_target(k, err);
}

static bool is_same(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* One that was killed may have left its folder, which is emptied; one that goes on holds a lock on
 * it. */
static stw_status make_work(converter *k, stw_error *err) {
    for (int attempt = 0; attempt < 100; attempt++) {
        if (mkdir(k->work, 0777) != 0 && errno != EEXIST)
            return stw_fail_errno(err, k->work, "cannot be made");
        k->lock = open(k->work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (k->lock < 0 && errno == ENOENT) continue; /* another one has just ended */
        if (k->lock < 0) return stw_fail_errno(err, k->work, "cannot be opened");
        const bool locked = flock(k->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
        if (locked && is_same(k->lock, k->work)) return stw_folder_empty(k->work, err);
        (void)close(k->lock);
        k->lock = -1;
        if (!locked) break;
    }
    return stw_fail(err, STW_STATUS_USAGE, k->path, "another convert writes this folder");
}

/* ---- files ---- */

/* The tensors of the folder as a model of that names; its files follow from it. */
static stw_status lay_out(converter *k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t n = k->map.n_tensors;
    stw_model *model = stw_pool_alloc(k->pool, sizeof *model);
    stw_dtype *dtypes = stw_pool_array(k->pool, (size_t)n + 1, sizeof *dtypes);
    stw_tensor *tensors = stw_pool_array(k->pool, (size_t)n + 1, sizeof *tensors);
    if (model == NULL || dtypes == NULL || tensors == NULL) STW_TRY(no_memory(k, err));
    *model = (stw_model){.pool = k->pool,
                         .name = "folder",
                         .source = k->path,
                         .model_type = "",
                         .n_tensors = n,
                         .tensors = tensors};
    for (uint32_t t = 0; t < n; t++) {
        const stw_converted *from = &k->map.tensors[t];
        tensors[t] = (stw_tensor){.name = from->name, .rank = from->rank, .experts = 1};
        memcpy(tensors[t].shape, from->shape, sizeof tensors[t].shape);
        dtypes[t] = k->o->casts ? k->o->dtype : from->dtype;
    }
    const stw_saved_options options = {
        .kinds = 1u << STW_SAVED_PARAMS,
        .params = dtypes,
        .file_bytes = k->o->shard_bytes > 0 ? k->o->shard_bytes : STW_CONVERT_SHARD_BYTES};
    STW_TRY(stw_saved_make(model, &options, &k->saved, err));
    if (k->saved->n_entries != n)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, k->path, "%u tensors give %u entries", n,
                         k->saved->n_entries));
    if (k->saved->n_files == 1) k->saved->files[0].name = "model.safetensors";
out:
    return status;
}

/* Before anything is written. A file system that does not say is tried. */
static stw_status check_room(const converter *k, stw_error *err) {
    struct statvfs room;
    char found[32], expected[32];
    if (statvfs(k->work, &room) != 0) return STW_STATUS_OK;
    const uint64_t free_bytes = stw_times(room.f_bavail, room.f_frsize);
    if (free_bytes >= k->saved->bytes) return STW_STATUS_OK;
    stw_bytes_format(free_bytes, found, sizeof found);
    stw_bytes_format(k->saved->bytes, expected, sizeof expected);
    return stw_fail(err, STW_STATUS_NO_RESOURCES, k->path,
                    "found %s free on its file system, expected %s", found, expected);
}

static stw_status open_files(converter *k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char path[STW_FOLDER_PATH];
    k->files = stw_pool_array(k->pool, (size_t)k->saved->n_files + 1, sizeof *k->files);
    k->scratch = malloc(SCRATCH_ELEMENTS * sizeof(float));
    if (k->files == NULL || k->scratch == NULL) STW_TRY(no_memory(k, err));
    STW_TRY(stw_plain_io_open(&k->io, err));
    for (uint32_t f = 0; f < k->saved->n_files; f++) {
        const stw_saved_file *file = &k->saved->files[f];
        stw_folder_join(path, k->work, file->name);
        STW_TRY(stw_plain_open(k->io, path, true, &k->files[f], err));
        STW_TRY(stw_plain_extend(k->files[f], file->bytes, err));
        STW_TRY(stw_plain_write(k->files[f], 0, file->header, file->header_bytes, err));
    }
out:
    return status;
}

/* ---- elements ---- */

static float widen(const unsigned char *from, stw_dtype dtype, uint64_t i) {
    uint32_t word;
    uint16_t half;
    if (dtype == STW_DTYPE_F32) {
        memcpy(&word, from + i * sizeof word, sizeof word);
        return stw_float_from_bits(word);
    }
    memcpy(&half, from + i * sizeof half, sizeof half);
    return dtype == STW_DTYPE_BF16 ? stw_float_from_bf16(half) : stw_float_from_f16(half);
}

static void cast(converter *k, const stw_convert_source *s, const unsigned char *from, uint64_t n) {
    const stw_dtype to = k->saved->model->tensors[s->tensor].dtype;
    uint16_t *halves = (uint16_t *)(void *)k->scratch;
    for (uint64_t i = 0; i < n; i++) {
        const float x = widen(from, s->dtype, i);
        if (to == STW_DTYPE_F32) {
            ((float *)(void *)k->scratch)[i] = x;
        } else if (to == STW_DTYPE_BF16) {
            halves[i] = stw_bf16_from_float(x);
        } else {
            halves[i] = stw_f16_from_float(x);
            if ((halves[i] & 0x7FFFu) == 0x7C00u && isfinite(x) && k->result->infinite++ == 0)
                snprintf(k->result->first, sizeof k->result->first, "%s",
                         k->map.tensors[s->tensor].name);
        }
    }
}

/* Elements [first, first + n) of a tensor, as they are written. */
static stw_status write_run(converter *k, const stw_convert_source *s, uint64_t first, uint64_t n,
                            const void *from, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_saved_entry *e = &k->saved->entries[s->tensor];
    const uint64_t each = stw_dtype_bits(s->dtype) / 8, to = stw_dtype_bits(e->dtype) / 8;
    const unsigned char *bytes = from;
    if (s->dtype == e->dtype)
        return stw_plain_write(k->files[e->file], e->offset + stw_times(first, to), from,
                               stw_times(n, to), err);
    for (uint64_t done = 0, some = 0; done < n; done += some) {
        some = stw_min_u64(n - done, SCRATCH_ELEMENTS);
        cast(k, s, bytes + stw_times(done, each), some);
        STW_TRY(stw_plain_write(k->files[e->file], e->offset + stw_times(first + done, to),
                                k->scratch, stw_times(some, to), err));
    }
out:
    return status;
}

/* A tensor [.., rows, columns] gets elements that are counted as those of [.., columns, rows]:
 * whole rows of the source give short runs of each row. */
static stw_status write_swapped(converter *k, const stw_convert_source *s, uint64_t first,
                                uint64_t n, const unsigned char *from, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_converted *t = &k->map.tensors[s->tensor];
    const uint64_t rows = t->shape[t->rank - 2], columns = t->shape[t->rank - 1];
    const uint64_t each = stw_dtype_bits(s->dtype) / 8, matrix = stw_times(rows, columns);
    unsigned char *run = malloc((size_t)stw_times(n, each));
    if (run == NULL) return no_memory(k, err);
    for (uint64_t done = 0, some = 0; done < n; done += some) {
        const uint64_t at = first + done, base = at / matrix * matrix, inside = at % matrix;
        const uint64_t column = inside / rows, row = inside % rows;
        const bool whole = row == 0 && n - done >= rows;
        const uint64_t width = whole ? stw_min_u64((n - done) / rows, columns - column) : 1;
        const uint64_t height = whole ? rows : stw_min_u64(n - done, rows - row);
        for (uint64_t r = 0; r < height; r++) {
            for (uint64_t c = 0; c < width; c++)
                memcpy(run + stw_times(c, each),
                       from + stw_times(done + stw_times(c, rows) + r, each), (size_t)each);
            STW_TRY(write_run(k, s, base + stw_times(row + r, columns) + column, width, run, err));
        }
        some = stw_times(width, height);
    }
out:
    free(run);
    return status;
}

static stw_status place(void *state, const stw_load_need *need, uint64_t skip, const void *from,
                        uint64_t bytes, stw_error *err) {
    converter *k = state;
    if (k->o->stop != NULL && k->o->stop())
        return stw_fail(err, STW_STATUS_IO, k->path, "stopped before its end; nothing is left");
    if (need->where == STW_CONVERT_HEADER) return STW_STATUS_OK;
    const stw_convert_source *s = &k->map.sources[need->where];
    const uint64_t each = stw_dtype_bits(s->dtype) / 8;
    if (skip % each != 0 || bytes % each != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, k->c->path, "a bucket cuts an element of %.200s",
                        k->map.tensors[s->tensor].name);
    stw_progress_add(bytes);
    if (s->swapped) return write_swapped(k, s, need->at + skip / each, bytes / each, from, err);
    return write_run(k, s, need->at + skip / each, bytes / each, from, err);
}

/* ---- all of it ---- */

static stw_status write_tensors(converter *k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t bytes = 0;
    const stw_load_options options = {
        .needs = k->map.needs, .n_needs = k->map.n_needs, .place = place, .state = k};
    for (uint64_t i = 0; i < k->map.n_needs; i++) bytes = stw_plus(bytes, k->map.needs[i].bytes);
    stw_progress_phase("converting", STW_PROGRESS_BYTES, bytes);
    STW_TRY(stw_checkpoint_load(k->c, &options, err));
    stw_progress_phase("waiting for the disk", STW_PROGRESS_SECONDS, 0);
    for (uint32_t f = 0; f < k->saved->n_files; f++) STW_TRY(stw_plain_sync(k->files[f], err));
out:
    stw_progress_end();
    return status;
}

static stw_status write_index(const converter *k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    char path[STW_FOLDER_PATH];
    if (k->saved->n_files < 2) return status;
    stw_folder_join(path, k->work, INDEX);
    STW_TRY(stw_saved_index(k->saved, &text, err));
    STW_TRY(stw_file_write(path, text.data, text.length, err));
out:
    stw_text_free(&text);
    return status;
}

/* The dtype of all tensors, if they have one. */
static stw_dtype dtype_of_all(const converter *k) {
    const stw_saved_files *s = k->saved;
    for (uint32_t e = 1; e < s->n_entries; e++)
        if (s->entries[e].dtype != s->entries[0].dtype) return STW_N_DTYPES;
    return s->n_entries > 0 ? s->entries[0].dtype : STW_N_DTYPES;
}

static stw_status publish(converter *k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(write_index(k, err));
    STW_TRY(stw_convert_texts(k->c, k->o->like, k->work, dtype_of_all(k), err));
    STW_TRY(stw_folder_sync(k->work, err));
    STW_TRY(check_target(k, err));
    if (rename(k->work, k->path) != 0)
        STW_TRY(stw_fail_errno(err, k->path, "cannot be made of the folder beside it"));
    k->work[0] = '\0';
    STW_TRY(stw_folder_sync_parent(k->path, err));
out:
    return status;
}

static void tell(const converter *k) {
    stw_convert_result *r = k->result;
    r->n_files = k->saved->n_files;
    r->n_tensors = k->saved->n_entries;
    r->n_unmastered = k->map.n_unmastered;
    for (uint32_t e = 0; e < k->saved->n_entries; e++)
        r->bytes = stw_plus(r->bytes, k->saved->entries[e].bytes);
}

static stw_status convert(converter *k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (k->pool == NULL) return no_memory(k, err);
    STW_TRY(name_folders(k, err));
    STW_TRY(stw_convert_map_make(k->c, k->o->model, k->o->from_master, k->pool, &k->map, err));
    STW_TRY(lay_out(k, err));
    STW_TRY(make_work(k, err));
    STW_TRY(check_room(k, err));
    STW_TRY(open_files(k, err));
    STW_TRY(write_tensors(k, err));
    STW_TRY(publish(k, err));
    tell(k);
out:
    return status;
}

stw_status stw_convert(const stw_checkpoint *checkpoint, const stw_convert_options *options,
                       stw_convert_result *out, stw_error *err) {
    const double start_s = stw_process_now_s();
    *out = (stw_convert_result){0};
    converter k = {
        .c = checkpoint, .o = options, .result = out, .pool = stw_pool_new(), .lock = -1};
    const stw_status status = convert(&k, err);
    for (uint32_t f = 0; k.files != NULL && f < k.saved->n_files; f++) stw_plain_close(k.files[f]);
    stw_plain_io_close(k.io);
    if (k.lock >= 0 && k.work[0] != '\0') (void)!stw_folder_remove(k.work, NULL);
    if (k.lock >= 0) (void)close(k.lock);
    free(k.scratch);
    stw_saved_free(k.saved);
    stw_pool_free(k.pool);
    out->seconds = stw_process_now_s() - start_s;
    return status;
}

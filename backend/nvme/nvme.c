/* SPDX-License-Identifier: Apache-2.0 */
/* Between commits the copy that is not read ("the next copy") takes the writes. Where it was not
 * written it may be older than the committed copy: in exactly those cells that the commit before
 * wrote (`stale`). A commit first brings those cells over, unless they were written again. A step
 * that writes all of its state brings over nothing. */
#define _GNU_SOURCE /* O_DIRECT, O_TMPFILE, fallocate */
#include "backend/nvme/nvme.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvme/io.h"
#include "backend/nvme/kept.h"
#include "backend/nvme/names.h"
#include "backend/nvme/sum.h"
#include "core/checked.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"

#define ALIGN ((uint64_t)STW_NVME_ALIGN_BYTES)
#define MOST_NAMES 1000u /* files that stayed from earlier processes of our id */

struct stw_nvme {
    int buffered, direct; /* two descriptions of one file; direct is -1 where there is none */
    atomic_bool use_direct;
    uint64_t bytes;     /* of one copy */
    uint32_t copies;    /* 1 or 2 */
    uint32_t committed; /* the copy that is read */
    stw_nvme_places places;
    stw_nvme_cells cells;
    uint64_t *sums[2];       /* [cells.n] of each copy */
    unsigned char *written;  /* [cells.n] since the last commit, into the next copy */
    unsigned char *stale;    /* [cells.n] in the next copy, unless written */
    atomic_bool dirty;       /* a cell is written */
    atomic_bool torn;        /* a write since the last commit failed */
    bool broken;             /* a record may or may not count: the copy it names must not change */
    bool kept;               /* opened to read what stayed */
    bool released;           /* the run ended well */
    bool named;              /* `path` exists */
    pthread_mutex_t mutex;   /* of `edge` and the cells that go through it, and of becoming dirty */
    char *edge;              /* one cell, aligned: for ranges that hold a part of it */
    uint64_t sequence, step; /* of the last commit */
    uint64_t agreed;         /* the last step that all ranks have committed */
    stw_nvme_header header;
    stw_nvme_record records[STW_NVME_RECORDS]; /* as they lie in the file */
    stw_nvme_hashing hashing;
    int entry;                                  /* in the table of names */
    char folder[PATH_MAX], path[PATH_MAX + 64]; /* path: in messages also without that name */
    const stw_nvme_method_ops *ops;
    void *method;
};

static stw_status fail(const stw_nvme *nvme, int code, const char *doing, stw_error *err) {
    return stw_fail_native(err, stw_errno_status(code), code, nvme->path,
                           "%s the NVMe arena's file: %s", doing, strerror(code));
}

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
}

/* ---- opening ---- */

static stw_status choose_method(stw_nvme *nvme, stw_error *err) {
    const char *wanted = getenv("STOWAGE_NVME_IO");
    bool any = wanted == NULL || wanted[0] == '\0';
    if (any || strcmp(wanted, stw_nvme_uring.name) == 0) {
        stw_error why = STW_ERROR_INIT;
        nvme->ops = &stw_nvme_uring;
        stw_status status = nvme->ops->open(&nvme->method, any ? &why : err);
        if (status == STW_STATUS_OK || !any) return status;
        stw_log(STW_LOG_DEBUG, "NVMe I/O by threads, not by io_uring: %s", why.text);
    } else if (strcmp(wanted, stw_nvme_threads.name) != 0) {
        return stw_fail(err, STW_STATUS_USAGE, "STOWAGE_NVME_IO",
                        "'%s' was found, 'io_uring' or 'threads' was expected", wanted);
    }
    nvme->ops = &stw_nvme_threads;
    return nvme->ops->open(&nvme->method, err);
}

static stw_status check_folder(const stw_nvme *nvme, const stw_nvme_options *options,
                               stw_error *err) {
    struct statvfs room;
    if (statvfs(nvme->folder, &room) != 0)
        return stw_fail_native(err, STW_STATUS_IO, errno, nvme->folder,
                               "finding room for the NVMe arena's file: %s", strerror(errno));
    if (!stw_file_is_folder(nvme->folder))
        return stw_fail(err, STW_STATUS_BAD_INPUT, nvme->folder,
                        "it is not a folder; state on NVMe needs one: --nvme FOLDER or TMPDIR");
    if (!options->shape.in_memory && stw_nvme_folder_is_memory(nvme->folder))
        return stw_fail(err, STW_STATUS_USAGE, nvme->folder,
                        "it is memory (tmpfs) and no disk: --nvme FOLDER or TMPDIR names another "
                        "one, --allow-tmpfs allows it");
    uint64_t free_bytes = (uint64_t)room.f_bavail * room.f_frsize;
    if (nvme->places.end > 0 && nvme->places.end <= free_bytes) return STW_STATUS_OK;
    if (nvme->copies == 1 && nvme->bytes <= free_bytes) return STW_STATUS_OK;
    char need[32], have[32];
    stw_bytes_format(nvme->bytes, need, sizeof need);
    stw_bytes_format(free_bytes, have, sizeof have);
    return stw_fail(err, STW_STATUS_NO_RESOURCES, nvme->folder,
                    "the NVMe arena needs %s%s (%" PRIu64 " bytes each), the file system has %s "
                    "(%" PRIu64 " bytes) free",
                    nvme->copies == 2 ? "two copies of " : "", need, nvme->bytes, have, free_bytes);
}

/* Blocks are taken now: a write that finds the disk full in the middle of a step would be too late.
 * A file system that cannot reserve gives a file of the right size with holes. */
static stw_status reserve(stw_nvme *nvme, stw_error *err) {
    uint64_t bytes = nvme->copies == 1 ? nvme->bytes : nvme->places.end;
    if (bytes == 0) return STW_STATUS_OK;
    if (bytes > (uint64_t)INT64_MAX) return fail(nvme, EFBIG, "reserving", err);
    int code;
    do {
        code = fallocate(nvme->buffered, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
    } while (code == EINTR);
    if (code == EOPNOTSUPP || code == ENOSYS) {
        stw_log(STW_LOG_WARN,
                "%s: the file system cannot reserve blocks; a disk that fills would "
                "stop a step",
                nvme->path);
        code = ftruncate(nvme->buffered, (off_t)bytes) == 0 ? 0 : errno;
    }
    return code == 0 ? STW_STATUS_OK : fail(nvme, code, "reserving", err);
}

static void lock_file(const stw_nvme *nvme) {
    while (flock(nvme->buffered, LOCK_EX) != 0 && errno == EINTR) {
    }
}

/* The i-th name that the file may have. */
static void set_path(stw_nvme *nvme, uint32_t rank, uint32_t i) {
    char again[16] = "";
    if (i > 1) snprintf(again, sizeof again, "-%" PRIu32, i);
    snprintf(nvme->path, sizeof nvme->path, "%s/stowage-nvme-%ld-rank%" PRIu32 "%s.state",
             nvme->folder, (long)getpid(), rank, again);
}

static void own_path(const stw_nvme *nvme, char *out, size_t out_size) {
    snprintf(out, out_size, "/proc/self/fd/%d", nvme->buffered);
}

/* Without a name, which it may get later; where the file system cannot do that, with one from the
 * beginning. A file that stayed from an earlier process of the same id holds somebody's last step:
 * it is never opened here, the next free name is taken. */
static stw_status make_file(stw_nvme *nvme, uint32_t rank, stw_error *err) {
    char own[64];
    set_path(nvme, rank, 1);
    nvme->buffered = open(nvme->folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    own_path(nvme, own, sizeof own);
    if (nvme->buffered >= 0 && access(own, F_OK) == 0) return STW_STATUS_OK;
    if (nvme->buffered >= 0) close(nvme->buffered);
    int code = EEXIST;
    for (uint32_t i = 1; i <= MOST_NAMES && code == EEXIST; i++) {
        set_path(nvme, rank, i);
        nvme->entry =
            stw_nvme_names_set(nvme->entry, nvme->folder, nvme->path, 0, STW_NVME_FATE_REMOVE);
        nvme->buffered = open(nvme->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        code = nvme->buffered >= 0 ? 0 : errno;
        if (code == EEXIST) stw_nvme_names_drop(nvme->entry);
        if (code == EEXIST) nvme->entry = -1;
    }
    nvme->named = code == 0;
    return code == 0 ? STW_STATUS_OK : fail(nvme, code, "making", err);
}

static stw_nvme *nvme_new(stw_error *err) {
    stw_nvme *nvme = calloc(1, sizeof *nvme);
    if (nvme == NULL) {
        (void)no_memory(err);
        return NULL;
    }
    nvme->buffered = nvme->direct = nvme->entry = -1;
    pthread_mutex_init(&nvme->mutex, NULL);
    return nvme;
}

static void open_direct(stw_nvme *nvme, int access_mode) {
    char own[64];
    own_path(nvme, own, sizeof own);
    nvme->direct = open(own, access_mode | O_DIRECT | O_CLOEXEC);
    if (nvme->direct < 0 && nvme->named)
        nvme->direct = open(nvme->path, access_mode | O_DIRECT | O_CLOEXEC);
    atomic_store(&nvme->use_direct, nvme->direct >= 0);
    /* What is read buffered then are ends of ranges: nothing beyond them belongs in the cache. */
    if (nvme->direct >= 0) (void)posix_fadvise(nvme->buffered, 0, 0, POSIX_FADV_RANDOM);
}

static void nvme_free(stw_nvme *nvme) {
    if (nvme == NULL) return;
    if (nvme->named && !nvme->kept) unlink(nvme->path);
    stw_nvme_names_drop(nvme->entry);
    if (nvme->ops != NULL) nvme->ops->close(nvme->method);
    if (nvme->direct >= 0) close(nvme->direct);
    if (nvme->buffered >= 0) close(nvme->buffered);
    stw_nvme_cells_free(&nvme->cells);
    for (int c = 0; c < 2; c++) free(nvme->sums[c]);
    free(nvme->written);
    free(nvme->stale);
    free(nvme->edge);
    pthread_mutex_destroy(&nvme->mutex);
    free(nvme);
}

/* Cells, and the checksums of zeros, which every copy holds at first. */
static stw_status divide(stw_nvme *nvme, const stw_nvme_shape *shape, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *memory = NULL;
    STW_TRY(stw_nvme_cells_make(nvme->bytes, shape->cuts, shape->n_cuts, &nvme->cells, err));
    const size_t n = (size_t)nvme->cells.n;
    if (posix_memalign(&memory, ALIGN, STW_NVME_CELL_BYTES) != 0) return no_memory(err);
    nvme->edge = memset(memory, 0, STW_NVME_CELL_BYTES);
    for (uint32_t c = 0; c < nvme->copies; c++) {
        nvme->sums[c] = calloc(n + 1, sizeof(uint64_t));
        if (nvme->sums[c] == NULL) return no_memory(err);
    }
    nvme->written = calloc(n + 1, 1);
    nvme->stale = calloc(n + 1, 1);
    if (nvme->written == NULL || nvme->stale == NULL) return no_memory(err);
    uint64_t size = 0, sum = 0;
    for (uint64_t i = 0; i < nvme->cells.n; i++) {
        const stw_nvme_cell cell = stw_nvme_cells_get(&nvme->cells, i);
        if (cell.end - cell.first != size) {
            size = cell.end - cell.first;
            sum = stw_nvme_sum(nvme->edge, size);
        }
        for (uint32_t c = 0; c < nvme->copies; c++) nvme->sums[c][i] = sum;
    }
out:
    return status;
}

static bool move_block(const stw_nvme *nvme, bool writes, void *memory, uint64_t offset,
                       uint64_t bytes, stw_nvme_stop *stop) {
    const stw_nvme_range range = {.direct = -1,
                                  .buffered = nvme->buffered,
                                  .writes = writes,
                                  .memory = memory,
                                  .offset = offset,
                                  .bytes = bytes};
    return stw_nvme_move_here(&range, stop);
}

static stw_status write_block(const stw_nvme *nvme, const void *memory, uint64_t offset,
                              uint64_t bytes, const char *doing, stw_error *err) {
    stw_nvme_stop stop = {0};
    if (move_block(nvme, true, (void *)(uintptr_t)memory, offset, bytes, &stop))
        return STW_STATUS_OK;
    return fail(nvme, stop.code != 0 ? stop.code : EIO, doing, err);
}

static stw_status write_header(stw_nvme *nvme, stw_error *err) {
    stw_nvme_header_seal(&nvme->header);
    return write_block(nvme, &nvme->header, 0, sizeof nvme->header, "writing the header of", err);
}

static stw_status describe_file(stw_nvme *nvme, const stw_nvme_options *options, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_nvme_header *h = &nvme->header;
    const stw_nvme_shape *shape = &options->shape;
    const uint64_t cuts_bytes = (nvme->cells.n_cuts + 1) * sizeof(uint64_t);
    h->n_parts = shape->n_parts < STW_NVME_MOST_PARTS ? shape->n_parts : STW_NVME_MOST_PARTS;
    for (uint32_t i = 0; i < h->n_parts; i++) h->parts[i] = shape->parts[i];
    if (nvme->copies == 1) goto out;
    h->bytes = nvme->bytes;
    h->n_cuts = nvme->cells.n_cuts;
    h->n_cells = nvme->cells.n;
    h->cuts_hash = stw_nvme_sum(nvme->cells.cuts, cuts_bytes);
    h->rank = h->local_rank = options->rank; /* until the owner is known */
    h->world = h->local_world = options->rank + 1;
    h->pid = (int64_t)getpid();
    struct stat about;
    if (fstat(nvme->buffered, &about) == 0) h->inode = (uint64_t)about.st_ino;
    h->created_s = (int64_t)time(NULL);
    (void)gethostname(h->host, sizeof h->host - 1);
    STW_TRY(write_header(nvme, err));
    STW_TRY(write_block(nvme, nvme->cells.cuts, nvme->places.cuts, cuts_bytes,
                        "writing the header of", err));
out:
    return status;
}

stw_status stw_nvme_open(const stw_nvme_options *options, stw_nvme **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    if (options->copies != 1 && options->copies != 2)
        return stw_fail(err, STW_STATUS_BUG, "nvme", "%" PRIu32 " copies, 1 or 2 were expected",
                        options->copies);
    const char *folder = stw_nvme_folder(options->folder);
    if (strlen(folder) >= PATH_MAX)
        return stw_fail(err, STW_STATUS_USAGE, folder, "the NVMe folder's name is too long");
    stw_nvme *nvme = nvme_new(err);
    if (nvme == NULL) return STW_STATUS_NO_MEMORY;
    memcpy(nvme->folder, folder, strlen(folder) + 1);
    nvme->bytes = options->bytes;
    nvme->copies = options->copies;
    /* Twice the cells at most: every cut may add one. */
    uint64_t cells = nvme->bytes / STW_NVME_CELL_BYTES + options->shape.n_cuts + 2;
    if (nvme->copies == 2 &&
        !stw_nvme_places_of(nvme->bytes, options->shape.n_cuts + 1, cells, &nvme->places))
        nvme->places.end = UINT64_MAX;
    STW_TRY(check_folder(nvme, options, err));
    STW_TRY(divide(nvme, &options->shape, err));
    if (nvme->copies == 2 &&
        !stw_nvme_places_of(nvme->bytes, nvme->cells.n_cuts, nvme->cells.n, &nvme->places))
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "nvme", "the size of the file overflows"));
    STW_TRY(make_file(nvme, options->rank, err));
    if (nvme->copies == 2) lock_file(nvme);
    STW_TRY(reserve(nvme, err));
    STW_TRY(choose_method(nvme, err));
    open_direct(nvme, O_RDWR);
    STW_TRY(describe_file(nvme, options, err));
    if (nvme->copies == 1 && nvme->named) {
        /* Without its name the file goes with the process, however that ends. */
        unlink(nvme->path);
        nvme->named = false;
        stw_nvme_names_drop(nvme->entry);
        nvme->entry = -1;
    }
    *out = nvme;
    nvme = NULL;
out:
    nvme_free(nvme);
    return status;
}

void stw_nvme_close(stw_nvme *nvme) {
    if (nvme == NULL) return;
    const stw_nvme_cost cost = stw_nvme_checksum_cost(nvme);
    if (cost.bytes > 0)
        stw_log(STW_LOG_DEBUG,
                "checksums of NVMe state: %" PRIu64 " bytes in %.6f s, %.6f s of it delayed a "
                "transfer (%s)",
                cost.bytes, cost.seconds, cost.alone_s, nvme->ops->name);
    if (nvme->named && !nvme->kept && nvme->agreed > 0 && !nvme->released) {
        const bool holds = stw_nvme_file_holds(nvme->path, nvme->agreed);
        stw_log_always(STW_LOG_WARN,
                       "the state on NVMe of step %" PRIu64 " is %s %s; see: stowage state %s %s",
                       nvme->agreed,
                       holds ? "kept in" : "damaged: the header or the record was changed in",
                       nvme->path, holds ? "list" : "verify", nvme->folder);
        nvme->named = false;
    }
    nvme_free(nvme);
}

bool stw_nvme_is_direct(const stw_nvme *nvme) {
    return nvme != NULL && atomic_load(&((stw_nvme *)(uintptr_t)nvme)->use_direct);
}

const char *stw_nvme_method(const stw_nvme *nvme) { return nvme->ops->name; }

const char *stw_nvme_path(const stw_nvme *nvme) { return nvme->named ? nvme->path : ""; }

stw_nvme_cost stw_nvme_checksum_cost(const stw_nvme *nvme) {
    const stw_nvme_hashing *h = &nvme->hashing;
    return (stw_nvme_cost){atomic_load(&h->bytes), 1e-9 * (double)atomic_load(&h->nanoseconds),
                           1e-9 * (double)atomic_load(&h->alone_nanoseconds)};
}

/* ---- moving bytes ---- */

/* A call's range: `memory` is written to by reads alone. It is of whole cells. */
typedef struct transfer {
    bool writes;
    uint32_t copy;
    char *memory;
    uint64_t offset, bytes; /* in the arena */
} transfer;

static uint64_t copy_at(const stw_nvme *nvme, uint32_t copy) {
    return nvme->copies == 1 ? 0 : nvme->places.copies[copy];
}

/* Pieces that begin and end with blocks go direct, the others buffered; no two of them share a
 * block of which one is direct. */
static bool move(stw_nvme *nvme, transfer t, stw_nvme_stop *stop) {
    stw_nvme_range range = {.direct = atomic_load(&nvme->use_direct) ? nvme->direct : -1,
                            .buffered = nvme->buffered,
                            .writes = t.writes,
                            .memory = t.memory,
                            .offset = copy_at(nvme, t.copy) + t.offset,
                            .bytes = t.bytes,
                            .cells = &nvme->cells,
                            .first = t.offset,
                            .sums = nvme->sums[t.copy],
                            .hashing = &nvme->hashing};
    if (nvme->ops->move(nvme->method, &range, stop)) return true;
    if (stop->damaged || stop->code != EINVAL || range.direct < 0) return false;
    /* A device with stricter rules than 4096. */
    atomic_store(&nvme->use_direct, false);
    range.direct = -1;
    return nvme->ops->move(nvme->method, &range, stop);
}

static stw_status damaged(const stw_nvme *nvme, const transfer *t, const stw_nvme_stop *stop,
                          stw_error *err) {
    char range[160];
    const uint64_t at = stop->offset - copy_at(nvme, t->copy);
    const stw_nvme_cell cell =
        stw_nvme_cells_get(&nvme->cells, stw_nvme_cells_at(&nvme->cells, at));
    stw_nvme_format_range(nvme->header.parts, nvme->header.n_parts, cell.first, cell.end, range,
                          sizeof range);
    return stw_fail(err, STW_STATUS_DISAGREE, nvme->path,
                    "the state on NVMe of step %" PRIu64
                    " is damaged: %s do not have their checksum (%016" PRIx64
                    " was found, %016" PRIx64 " was expected)",
                    nvme->step, range, stop->found, stop->expected);
}

static stw_status stopped(const stw_nvme *nvme, const transfer *t, const stw_nvme_stop *stop,
                          stw_error *err) {
    if (stop->damaged) return damaged(nvme, t, stop, err);
    return stw_fail_native(err, stw_errno_status(stop->code), stop->code, nvme->path,
                           "%s %" PRIu64 " bytes at %" PRIu64
                           " of the NVMe arena stopped at byte %" PRIu64 " of its file: %s",
                           t->writes ? "writing" : "reading", t->bytes, t->offset, stop->offset,
                           stop->code != 0 ? strerror(stop->code)
                           : t->writes     ? "nothing more was taken"
                                           : "the file ends there");
}

static stw_status check_range(const stw_nvme *nvme, uint64_t offset, uint64_t bytes,
                              stw_error *err) {
    if (offset <= nvme->bytes && bytes <= nvme->bytes - offset) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "nvme",
                    "range of %" PRIu64 " bytes at %" PRIu64 " is outside the arena of %" PRIu64
                    " bytes",
                    bytes, offset, nvme->bytes);
}

/* The copy that takes writes. */
static uint32_t next_copy(const stw_nvme *nvme) {
    return nvme->copies == 1 ? 0 : 1 - nvme->committed;
}

uint64_t stw_nvme_fit(const stw_nvme *nvme, uint64_t offset, uint64_t most) {
    if (offset >= nvme->bytes || most >= nvme->bytes - offset) return most;
    uint64_t last = stw_nvme_cells_at(&nvme->cells, offset + most);
    uint64_t first = stw_nvme_cells_get(&nvme->cells, last).first;
    return first > offset ? first - offset : most;
}

/* The first bytes of a range that are whole cells, or are a part of one cell. */
static uint64_t next_part(const stw_nvme *nvme, uint64_t at, uint64_t end, uint64_t *index,
                          bool *whole) {
    *index = stw_nvme_cells_at(&nvme->cells, at);
    const stw_nvme_cell cell = stw_nvme_cells_get(&nvme->cells, *index);
    *whole = at == cell.first && cell.end <= end;
    if (!*whole) return stw_min_u64(end, cell.end) - at;
    const stw_nvme_cell last =
        stw_nvme_cells_get(&nvme->cells, stw_nvme_cells_at(&nvme->cells, end - 1));
    return (last.end <= end ? last.end : last.first) - at;
}

/* A cell of a copy into `edge`; the mutex is held. */
static stw_status load_cell(stw_nvme *nvme, uint32_t copy, uint64_t index, stw_error *err) {
    const stw_nvme_cell cell = stw_nvme_cells_get(&nvme->cells, index);
    const transfer t = {false, copy, nvme->edge, cell.first, cell.end - cell.first};
    stw_nvme_stop stop = {0};
    return move(nvme, t, &stop) ? STW_STATUS_OK : stopped(nvme, &t, &stop, err);
}

static stw_status store_cell(stw_nvme *nvme, uint32_t copy, uint64_t index, stw_error *err) {
    const stw_nvme_cell cell = stw_nvme_cells_get(&nvme->cells, index);
    const transfer t = {true, copy, nvme->edge, cell.first, cell.end - cell.first};
    stw_nvme_stop stop = {0};
    return move(nvme, t, &stop) ? STW_STATUS_OK : stopped(nvme, &t, &stop, err);
}

static stw_status read_part(stw_nvme *nvme, uint64_t index, uint64_t at, void *to, uint64_t bytes,
                            stw_error *err) {
    const uint64_t first = stw_nvme_cells_get(&nvme->cells, index).first;
    pthread_mutex_lock(&nvme->mutex);
    stw_status status = load_cell(nvme, nvme->committed, index, err);
    if (status == STW_STATUS_OK) memcpy(to, nvme->edge + (at - first), (size_t)bytes);
    pthread_mutex_unlock(&nvme->mutex);
    return status;
}

stw_status stw_nvme_read(stw_nvme *nvme, uint64_t offset, void *to, uint64_t bytes,
                         stw_error *err) {
    stw_status status = check_range(nvme, offset, bytes, err);
    uint64_t index = 0, part = 0;
    bool whole = false;
    for (uint64_t done = 0; status == STW_STATUS_OK && done < bytes; done += part) {
        part = next_part(nvme, offset + done, offset + bytes, &index, &whole);
        const transfer t = {false, nvme->committed, (char *)to + done, offset + done, part};
        stw_nvme_stop stop = {0};
        if (!whole)
            status = read_part(nvme, index, t.offset, t.memory, part, err);
        else if (!move(nvme, t, &stop))
            status = stopped(nvme, &t, &stop, err);
    }
    return status;
}

static stw_status check_writable(const stw_nvme *nvme, stw_error *err) {
    if (nvme->kept)
        return stw_fail(err, STW_STATUS_BUG, nvme->path, "the file was opened for reading alone");
    if (nvme->broken)
        return stw_fail(err, STW_STATUS_IO, nvme->path,
                        "a commit after step %" PRIu64 " failed: the file stays as it is",
                        nvme->step);
    return STW_STATUS_OK;
}

static stw_status sync_data(const stw_nvme *nvme, stw_error *err) {
    int code;
    do {
        code = fdatasync(nvme->buffered) == 0 ? 0 : errno;
    } while (code == EINTR);
    return code == 0 ? STW_STATUS_OK : fail(nvme, code, "waiting for the disk to hold", err);
}

/* The next copy will not be what this record says; the disk knows it before the copy changes. */
static stw_status forget_record(stw_nvme *nvme, uint32_t number, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_nvme_record *r = &nvme->records[number];
    memset(r, 0, sizeof *r);
    STW_TRY(write_block(nvme, r, nvme->places.records + number * sizeof *r, sizeof *r,
                        "writing a record into", err));
    STW_TRY(sync_data(nvme, err));
out:
    nvme->broken = nvme->broken || status != STW_STATUS_OK; /* as in a commit */
    return status;
}

/* Before the first write since a commit. */
static stw_status begin_writing(stw_nvme *nvme, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (nvme->copies == 1 || atomic_load(&nvme->dirty)) return status;
    pthread_mutex_lock(&nvme->mutex);
    for (uint32_t i = 0; i < STW_NVME_RECORDS && !atomic_load(&nvme->dirty); i++)
        if (nvme->records[i].sequence > 0 && nvme->records[i].copy == next_copy(nvme))
            STW_TRY(forget_record(nvme, i, err));
    atomic_store(&nvme->dirty, true);
out:
    pthread_mutex_unlock(&nvme->mutex);
    return status;
}

static stw_status write_part(stw_nvme *nvme, uint64_t index, uint64_t at, const void *from,
                             uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t first = stw_nvme_cells_get(&nvme->cells, index).first;
    pthread_mutex_lock(&nvme->mutex);
    STW_TRY(load_cell(nvme, nvme->written[index] ? next_copy(nvme) : nvme->committed, index, err));
    memcpy(nvme->edge + (at - first), from, (size_t)bytes);
    nvme->written[index] = 1;
    STW_TRY(store_cell(nvme, next_copy(nvme), index, err));
out:
    pthread_mutex_unlock(&nvme->mutex);
    return status;
}

stw_status stw_nvme_write(stw_nvme *nvme, uint64_t offset, const void *from, uint64_t bytes,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t index = 0, part = 0;
    bool whole = false;
    STW_TRY(check_range(nvme, offset, bytes, err));
    STW_TRY(check_writable(nvme, err));
    if (bytes > 0) STW_TRY(begin_writing(nvme, err));
    for (uint64_t done = 0; status == STW_STATUS_OK && done < bytes; done += part) {
        part = next_part(nvme, offset + done, offset + bytes, &index, &whole);
        const transfer t = {true, next_copy(nvme), (char *)(uintptr_t)from + done, offset + done,
                            part};
        stw_nvme_stop stop = {0};
        if (!whole) {
            status = write_part(nvme, index, t.offset, t.memory, part, err);
            continue;
        }
        uint64_t last = stw_nvme_cells_at(&nvme->cells, t.offset + part - 1);
        memset(&nvme->written[index], 1, (size_t)(last - index + 1));
        if (!move(nvme, t, &stop)) status = stopped(nvme, &t, &stop, err);
    }
    if (status != STW_STATUS_OK) atomic_store(&nvme->torn, true);
out:
    return status;
}

/* ---- commits ---- */

/* Make the next copy as new as the committed one where nothing was written. */
static stw_status bring_over(stw_nvme *nvme, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint64_t i = 0; i < nvme->cells.n; i++) {
        if (!nvme->stale[i] || nvme->written[i]) continue;
        STW_TRY(load_cell(nvme, nvme->committed, i, err));
        STW_TRY(store_cell(nvme, next_copy(nvme), i, err));
    }
out:
    return status;
}

static stw_status write_record(stw_nvme *nvme, uint32_t copy, uint64_t step, stw_error *err) {
    const uint32_t number = (uint32_t)((nvme->sequence + 1) % STW_NVME_RECORDS);
    const uint64_t sums_bytes = nvme->cells.n * sizeof(uint64_t);
    stw_nvme_record r = {.copy = copy,
                         .sequence = nvme->sequence + 1,
                         .step = step,
                         .sums_hash = stw_nvme_sum(nvme->sums[copy], sums_bytes),
                         .time_s = (int64_t)time(NULL)};
    stw_nvme_record_seal(&r, &nvme->header);
    stw_status status = write_block(nvme, &r, nvme->places.records + number * sizeof r, sizeof r,
                                    "writing a record into", err);
    nvme->records[number] = r;
    return status;
}

static stw_status commit_copy(stw_nvme *nvme, uint64_t step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const bool flips = atomic_load(&nvme->dirty); /* else the committed copy is this step's, too */
    const uint32_t copy = flips ? next_copy(nvme) : nvme->committed;
    if (flips) STW_TRY(bring_over(nvme, err));
    if (flips || nvme->sequence == 0) { /* the first one: checksums of zeros, header and cuts */
        STW_TRY(write_block(nvme, nvme->sums[copy], nvme->places.sums[copy],
                            nvme->cells.n * sizeof(uint64_t), "writing checksums into", err));
        STW_TRY(sync_data(nvme, err));
    }
    STW_TRY(write_record(nvme, copy, step, err));
    STW_TRY(sync_data(nvme, err));
    nvme->committed = copy;
    nvme->sequence++;
    if (flips) {
        unsigned char *before = nvme->stale;
        nvme->stale = nvme->written;
        nvme->written = memset(before, 0, (size_t)nvme->cells.n);
        atomic_store(&nvme->dirty, false);
    }
out:
    return status;
}

stw_status stw_nvme_commit(stw_nvme *nvme, uint64_t step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_writable(nvme, err));
    if (nvme->copies == 2 && atomic_load(&nvme->torn))
        STW_TRY(stw_fail(err, STW_STATUS_IO, nvme->path,
                         "a write after step %" PRIu64 " failed: what was written is not committed",
                         nvme->step));
    /* After a failure here nobody can say what the disk holds: a second fdatasync would succeed
     * without the pages that the first one lost, and a record may count or not. Both copies stay as
     * they are then, so that the step before is whole whichever record is read. */
    nvme->broken = true;
    if (nvme->copies == 2)
        STW_TRY(commit_copy(nvme, step, err));
    else
        STW_TRY(sync_data(nvme, err));
    nvme->broken = false;
    nvme->step = step;
out:
    return status;
}

void stw_nvme_note_step(stw_nvme *nvme, uint64_t step) {
    if (nvme->copies == 1) nvme->step = step;
}

/* ---- whose it is, and what is left of it ---- */

stw_status stw_nvme_own(stw_nvme *nvme, const stw_nvme_owner *owner, stw_error *err) {
    stw_nvme_header *h = &nvme->header;
    if (nvme->copies == 1) return STW_STATUS_OK;
    if (nvme->sequence > 0)
        return stw_fail(err, STW_STATUS_BUG, nvme->path, "the owner is named after a commit");
    h->run = owner->run != 0 ? owner->run : 1;
    h->rank = owner->rank;
    h->world = owner->world;
    h->local_rank = owner->local_rank;
    h->local_world = owner->local_world;
    snprintf(h->plan, sizeof h->plan, "%s", owner->plan != NULL ? owner->plan : "");
    return write_header(nvme, err);
}

static stw_status give_name(stw_nvme *nvme, uint64_t step, stw_error *err) {
    char own[64];
    int code = EEXIST;
    own_path(nvme, own, sizeof own);
    for (uint32_t i = 1; i <= MOST_NAMES && code == EEXIST; i++) {
        set_path(nvme, nvme->header.local_rank, i);
        if (access(nvme->path, F_OK) == 0) continue;
        nvme->entry =
            stw_nvme_names_set(nvme->entry, nvme->folder, nvme->path, step, STW_NVME_FATE_KEEP);
        code = linkat(AT_FDCWD, own, AT_FDCWD, nvme->path, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
    }
    nvme->named = code == 0;
    if (code != 0) return fail(nvme, code, "naming", err);
    stw_nvme_folder_sync(nvme->folder);
    return STW_STATUS_OK;
}

stw_status stw_nvme_agree(stw_nvme *nvme, uint64_t step, stw_error *err) {
    if (nvme->copies == 1 || nvme->header.run == 0 || step == 0 || step != nvme->step)
        return STW_STATUS_OK;
    const bool first = nvme->agreed == 0;
    nvme->agreed = step;
    if (!nvme->named) return give_name(nvme, step, err);
    if (first) stw_nvme_folder_sync(nvme->folder); /* it was made with its name */
    nvme->entry =
        stw_nvme_names_set(nvme->entry, nvme->folder, nvme->path, step, STW_NVME_FATE_KEEP);
    return STW_STATUS_OK;
}

void stw_nvme_release(stw_nvme *nvme) { nvme->released = true; }

/* The newest step of which everything verifies. */
static stw_status choose_step(const stw_kept *kept, stw_kept_step *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_kept_check check = {0};
    for (uint32_t i = 0; i < kept->n_steps; i++) {
        *out = kept->steps[i];
        STW_TRY(stw_kept_verify(kept, out, &check, err));
        if (check.damaged == 0) {
            if (i > 0 || kept->damaged > 0)
                stw_log_always(STW_LOG_WARN,
                               "%s: the newest state is damaged; step %" PRIu64 " is used",
                               kept->path, out->step);
            return status;
        }
        stw_log_always(STW_LOG_WARN, "%s: the state of step %" PRIu64 " is damaged: %s", kept->path,
                       out->step, check.first);
    }
    status = stw_fail(err, STW_STATUS_DISAGREE, kept->path,
                      "no step of it verifies: the state of step %" PRIu64 " is damaged: %s",
                      out->step, check.first);
out:
    return status;
}

static stw_status check_kept(const stw_kept *kept, stw_error *err) {
    if (kept->problem != NULL)
        return stw_fail(err, STW_STATUS_BAD_INPUT, kept->path, "it holds no committed step: %s",
                        kept->problem);
    if (kept->live)
        return stw_fail(err, STW_STATUS_USAGE, kept->path, "process %" PRId64 " uses it",
                        kept->header.pid);
    if (kept->n_steps > 0) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, kept->path, "it holds no committed step: %s",
                    kept->damaged == 0 ? "none was ever committed" : stw_kept_lacks(kept));
}

stw_status stw_nvme_open_kept(const char *path, uint64_t *bytes, uint64_t *step, stw_nvme **out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_kept *kept = NULL;
    stw_kept_step chosen = {0};
    void *memory = NULL;
    *out = NULL;
    stw_nvme *nvme = nvme_new(err);
    if (nvme == NULL) return STW_STATUS_NO_MEMORY;
    STW_TRY(stw_kept_open(path, &kept, err));
    STW_TRY(check_kept(kept, err));
    STW_TRY(choose_step(kept, &chosen, err));
    nvme->kept = nvme->named = true;
    nvme->copies = 2;
    nvme->header = kept->header;
    nvme->bytes = kept->header.bytes;
    nvme->committed = chosen.copy;
    nvme->sequence = chosen.sequence;
    nvme->step = chosen.step;
    snprintf(nvme->path, sizeof nvme->path, "%s", path);
    STW_TRY(stw_kept_sums(kept, &chosen, &nvme->cells, &nvme->sums[chosen.copy], err));
    (void)stw_nvme_places_of(nvme->bytes, nvme->cells.n_cuts, nvme->cells.n, &nvme->places);
    if (posix_memalign(&memory, ALIGN, STW_NVME_CELL_BYTES) != 0) STW_TRY(no_memory(err));
    nvme->edge = memory;
    nvme->buffered = open(path, O_RDONLY | O_CLOEXEC);
    if (nvme->buffered < 0) STW_TRY(fail(nvme, errno, "opening", err));
    STW_TRY(choose_method(nvme, err));
    open_direct(nvme, O_RDONLY);
    *bytes = nvme->bytes;
    *step = nvme->step;
    *out = nvme;
    nvme = NULL;
out:
    stw_kept_close(kept);
    nvme_free(nvme);
    return status;
}

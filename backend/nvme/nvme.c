/* SPDX-License-Identifier: Apache-2.0 */
/* The file of two copies: copy 0, copy 1, each rounded up to whole blocks, then two records. A
 * commit writes the record that is not the newest, so a record torn half-way leaves the other.
 *
 * Between commits the copy that is not read ("the next copy") takes the writes. Where it was not
 * written it may be older than the committed copy: exactly where the commit before wrote (`stale`).
 * A commit first brings those bytes over, unless they were written again. A step that writes all
 * of its state brings over nothing. */
#define _GNU_SOURCE /* O_DIRECT, fallocate */
#define XXH_INLINE_ALL
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
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "backend/nvme/extents.h"
#include "backend/nvme/io.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/units.h"

#define ALIGN ((uint64_t)STW_NVME_ALIGN_BYTES)
#define N_RECORDS 2u
#define RECORDS_BYTES (N_RECORDS * ALIGN)
#define BRING_OVER_BYTES (4ull << 20)
#define MOST_NAMES 1000u /* files that stayed from earlier processes of our id */

struct stw_nvme {
    int buffered, direct; /* two descriptions of one file; direct is -1 where there is none */
    atomic_bool use_direct;
    uint64_t bytes;           /* of one copy */
    uint64_t stride;          /* from copy 0 to copy 1; 0 with one copy */
    uint32_t copies;          /* 1 or 2 */
    uint32_t committed;       /* the copy that is read */
    uint64_t sequence;        /* commits so far; its record is number sequence % N_RECORDS */
    uint64_t step;            /* of the last commit */
    pthread_mutex_t mutex;    /* of `written` */
    stw_extents written;      /* since the last commit, into the next copy */
    stw_extents stale;        /* in the next copy, unless written */
    atomic_bool torn;         /* a write since the last commit failed */
    bool broken;              /* a record may or may not count: the copy it names must not change */
    bool kept;                /* opened to read what stayed */
    bool named;               /* `path` exists */
    char path[PATH_MAX + 64]; /* also in messages, where it is gone */
    const stw_nvme_method_ops *ops;
    void *method;
};

/* A block of the file. The hash covers all that is before it, so no part of a block can be old. */
typedef struct record {
    char magic[8];
    uint32_t version, copy;
    uint64_t sequence, step, bytes;
    unsigned char zeros[STW_NVME_ALIGN_BYTES - 48];
    uint64_t hash;
} record;
_Static_assert(sizeof(record) == STW_NVME_ALIGN_BYTES, "a record is one block");

static const char record_magic[8] = {'S', 'T', 'W', 'N', 'V', 'M', 'E', '\n'};
#define RECORD_VERSION 1u

static uint64_t record_hash(const record *r) { return XXH3_64bits(r, offsetof(record, hash)); }

static uint64_t file_bytes(const stw_nvme *nvme) {
    return nvme->copies == 1 ? nvme->bytes : 2 * nvme->stride + RECORDS_BYTES;
}

static uint64_t record_offset(const stw_nvme *nvme, uint64_t sequence) {
    return 2 * nvme->stride + sequence % N_RECORDS * ALIGN;
}

static stw_status fail(const stw_nvme *nvme, int code, const char *doing, stw_error *err) {
    bool full = code == ENOSPC || code == EDQUOT;
    return stw_fail_native(err, full ? STW_STATUS_NO_RESOURCES : STW_STATUS_IO, code, nvme->path,
                           "%s the NVMe arena's file: %s", doing, strerror(code));
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

static stw_status check_room(const stw_nvme *nvme, const char *folder, stw_error *err) {
    struct statvfs room;
    if (statvfs(folder, &room) != 0)
        return stw_fail_native(err, STW_STATUS_IO, errno, folder,
                               "finding room for the NVMe arena's file: %s", strerror(errno));
    uint64_t free_bytes = (uint64_t)room.f_bavail * room.f_frsize;
    uint64_t extra = nvme->copies == 1 ? 0 : 2 * (ALIGN - 1) + RECORDS_BYTES;
    if (nvme->bytes <= UINT64_MAX / 4 && nvme->bytes * nvme->copies + extra <= free_bytes)
        return STW_STATUS_OK;
    char need[32], have[32];
    stw_bytes_format(nvme->bytes, need, sizeof need);
    stw_bytes_format(free_bytes, have, sizeof have);
    return stw_fail(err, STW_STATUS_NO_RESOURCES, folder,
                    "the NVMe arena needs %s%s (%" PRIu64 " bytes each), the file system has %s "
                    "(%" PRIu64 " bytes) free",
                    nvme->copies == 2 ? "two copies of " : "", need, nvme->bytes, have, free_bytes);
}

/* Blocks are taken now: a write that finds the disk full in the middle of a step would be too late.
 * A file system that cannot reserve gives a file of the right size with holes. */
static stw_status reserve(stw_nvme *nvme, stw_error *err) {
    uint64_t bytes = file_bytes(nvme);
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

/* A file that stayed from an earlier process of the same id holds somebody's last step: it is never
 * opened here, the next free name is taken. */
static stw_status make_file(stw_nvme *nvme, const char *folder, uint32_t rank, stw_error *err) {
    int code = EEXIST;
    for (uint32_t i = 1; i <= MOST_NAMES && code == EEXIST; i++) {
        char again[16] = "";
        if (i > 1) snprintf(again, sizeof again, "-%" PRIu32, i);
        snprintf(nvme->path, sizeof nvme->path, "%s/stowage-nvme-%ld-rank%" PRIu32 "%s.state",
                 folder, (long)getpid(), rank, again);
        nvme->buffered = open(nvme->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        code = nvme->buffered >= 0 ? 0 : errno;
    }
    nvme->named = code == 0;
    return code == 0 ? STW_STATUS_OK : fail(nvme, code, "making", err);
}

/* The name outlives a power failure too; where a folder cannot be synced it is not worth an error.
 */
static void sync_folder(const char *folder) {
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) return;
    (void)fsync(file);
    close(file);
}

static stw_nvme *nvme_new(stw_error *err) {
    stw_nvme *nvme = calloc(1, sizeof *nvme);
    if (nvme == NULL) {
        (void)stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
        return NULL;
    }
    nvme->buffered = nvme->direct = -1;
    pthread_mutex_init(&nvme->mutex, NULL);
    return nvme;
}

static void open_direct(stw_nvme *nvme, int access) {
    nvme->direct = open(nvme->path, access | O_DIRECT | O_CLOEXEC);
    atomic_store(&nvme->use_direct, nvme->direct >= 0);
    /* What is read buffered then are ends of ranges: nothing beyond them belongs in the cache. */
    if (nvme->direct >= 0) (void)posix_fadvise(nvme->buffered, 0, 0, POSIX_FADV_RANDOM);
}

static void nvme_free(stw_nvme *nvme) {
    if (nvme == NULL) return;
    if (nvme->named) unlink(nvme->path);
    if (nvme->ops != NULL) nvme->ops->close(nvme->method);
    if (nvme->direct >= 0) close(nvme->direct);
    if (nvme->buffered >= 0) close(nvme->buffered);
    free(nvme->written.list);
    free(nvme->stale.list);
    pthread_mutex_destroy(&nvme->mutex);
    free(nvme);
}

stw_status stw_nvme_open(const stw_nvme_options *options, stw_nvme **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    if (options->copies != 1 && options->copies != 2)
        return stw_fail(err, STW_STATUS_BUG, "nvme", "%" PRIu32 " copies, 1 or 2 were expected",
                        options->copies);
    const char *folder = options->folder != NULL ? options->folder : getenv("TMPDIR");
    if (folder == NULL || folder[0] == '\0') folder = "/tmp";
    if (strlen(folder) >= PATH_MAX)
        return stw_fail(err, STW_STATUS_USAGE, folder, "the NVMe folder's name is too long");
    stw_nvme *nvme = nvme_new(err);
    if (nvme == NULL) return STW_STATUS_NO_MEMORY;
    nvme->bytes = options->bytes;
    nvme->copies = options->copies;
    STW_TRY(check_room(nvme, folder, err));
    if (nvme->copies == 2) nvme->stride = stw_round_up_u64(nvme->bytes, ALIGN);
    STW_TRY(make_file(nvme, folder, options->rank, err));
    STW_TRY(reserve(nvme, err));
    STW_TRY(choose_method(nvme, err));
    open_direct(nvme, O_RDWR);
    if (nvme->copies == 1) {
        /* Without its name the file goes with the process, however that ends. */
        unlink(nvme->path);
        nvme->named = false;
    } else {
        sync_folder(folder);
    }
    *out = nvme;
    nvme = NULL;
out:
    nvme_free(nvme);
    return status;
}

void stw_nvme_close(stw_nvme *nvme) {
    if (nvme == NULL) return;
    bool stays = nvme->named && nvme->sequence > 0 && nvme->written.n > 0;
    if (stays && !nvme->kept)
        stw_log(STW_LOG_WARN,
                "the state on NVMe of step %" PRIu64 ", the last one committed, stays "
                "in %s",
                nvme->step, nvme->path);
    if (stays || nvme->kept) nvme->named = false;
    nvme_free(nvme);
}

bool stw_nvme_is_direct(const stw_nvme *nvme) {
    return nvme != NULL && atomic_load(&((stw_nvme *)nvme)->use_direct);
}

const char *stw_nvme_method(const stw_nvme *nvme) { return nvme->ops->name; }

const char *stw_nvme_path(const stw_nvme *nvme) { return nvme->named ? nvme->path : ""; }

/* ---- moving bytes ---- */

/* A call's range: `memory` is written to by reads alone. */
typedef struct transfer {
    bool writes;
    char *memory;
    uint64_t offset, bytes; /* in the file */
} transfer;

static stw_nvme_range part_of(const stw_nvme *nvme, transfer t, bool direct, uint64_t first,
                              uint64_t bytes) {
    stw_nvme_range part = {.file = direct ? nvme->direct : nvme->buffered,
                           .direct = direct,
                           .writes = t.writes,
                           .memory = t.memory + first,
                           .offset = t.offset + first,
                           .bytes = bytes};
    return part;
}

/* The whole blocks in the middle go direct, the ends buffered, and not while the middle is under
 * way. The kernel keeps the two coherent: a direct call first writes out, then drops, the pages
 * that it passes by. */
static bool move(stw_nvme *nvme, transfer t, stw_nvme_stop *stop) {
    stw_nvme_range all = part_of(nvme, t, false, 0, t.bytes);
    uint64_t head = stw_min_u64((ALIGN - t.offset % ALIGN) % ALIGN, t.bytes);
    uint64_t middle = (t.bytes - head) / ALIGN * ALIGN;
    if (!atomic_load(&nvme->use_direct) || (uintptr_t)t.memory % ALIGN != t.offset % ALIGN ||
        middle == 0)
        return nvme->ops->move(nvme->method, &all, stop);
    stw_nvme_range first = part_of(nvme, t, false, 0, head);
    stw_nvme_range blocks = part_of(nvme, t, true, head, middle);
    stw_nvme_range last = part_of(nvme, t, false, head + middle, t.bytes - head - middle);
    if (!stw_nvme_move_here(&first, stop)) return false;
    if (!nvme->ops->move(nvme->method, &blocks, stop)) {
        if (stop->code != EINVAL) return false;
        /* A device with stricter rules than 4096. */
        atomic_store(&nvme->use_direct, false);
        blocks.file = nvme->buffered;
        blocks.direct = false;
        if (!nvme->ops->move(nvme->method, &blocks, stop)) return false;
    }
    return stw_nvme_move_here(&last, stop);
}

static stw_status stopped(const stw_nvme *nvme, const transfer *t, uint64_t offset,
                          const stw_nvme_stop *stop, stw_error *err) {
    bool full = stop->code == ENOSPC || stop->code == EDQUOT;
    return stw_fail_native(err, full ? STW_STATUS_NO_RESOURCES : STW_STATUS_IO, stop->code,
                           nvme->path,
                           "%s %" PRIu64 " bytes at %" PRIu64
                           " of the NVMe arena stopped at byte %" PRIu64 " of its file: %s",
                           t->writes ? "writing" : "reading", t->bytes, offset, stop->offset,
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

/* Shall this write fail? Writes are counted while STOWAGE_FAIL_NVME_WRITE is set. */
static bool injected_failure(void) {
    static atomic_ullong count;
    const char *text = getenv("STOWAGE_FAIL_NVME_WRITE");
    if (text == NULL) {
        atomic_store(&count, 0);
        return false;
    }
    return atomic_fetch_add(&count, 1) + 1 == strtoull(text, NULL, 10);
}

stw_status stw_nvme_read(stw_nvme *nvme, uint64_t offset, void *to, uint64_t bytes,
                         stw_error *err) {
    stw_status status = check_range(nvme, offset, bytes, err);
    if (status != STW_STATUS_OK || bytes == 0) return status;
    transfer t = {false, to, nvme->committed * nvme->stride + offset, bytes};
    stw_nvme_stop stop = {0, 0};
    return move(nvme, t, &stop) ? STW_STATUS_OK : stopped(nvme, &t, offset, &stop, err);
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

/* The copy that takes writes. */
static uint32_t next_copy(const stw_nvme *nvme) {
    return nvme->copies == 1 ? 0 : 1 - nvme->committed;
}

static stw_status note_written(stw_nvme *nvme, uint64_t offset, uint64_t bytes, stw_error *err) {
    if (nvme->copies == 1) return STW_STATUS_OK;
    pthread_mutex_lock(&nvme->mutex);
    stw_status status = stw_extents_add(&nvme->written, offset, offset + bytes, err);
    pthread_mutex_unlock(&nvme->mutex);
    return status;
}

stw_status stw_nvme_write(stw_nvme *nvme, uint64_t offset, const void *from, uint64_t bytes,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_range(nvme, offset, bytes, err));
    STW_TRY(check_writable(nvme, err));
    if (bytes == 0) return STW_STATUS_OK;
    STW_TRY(note_written(nvme, offset, bytes, err));
    transfer t = {true, (char *)from, next_copy(nvme) * nvme->stride + offset, bytes};
    stw_nvme_stop stop = {0, 0};
    bool cut = injected_failure();
    if (cut) t.bytes = bytes / 2;
    bool moved = move(nvme, t, &stop);
    if (moved && !cut) return STW_STATUS_OK;
    atomic_store(&nvme->torn, true);
    if (moved) stop = (stw_nvme_stop){ENOSPC, t.offset + t.bytes};
    t.bytes = bytes;
    return stopped(nvme, &t, offset, &stop, err);
out:
    return status;
}

/* ---- commits ---- */

static stw_status sync_data(const stw_nvme *nvme, stw_error *err) {
    int code;
    do {
        code = fdatasync(nvme->buffered) == 0 ? 0 : errno;
    } while (code == EINTR);
    return code == 0 ? STW_STATUS_OK : fail(nvme, code, "waiting for the disk to hold", err);
}

/* Make the next copy as new as the committed one where nothing was written. */
static stw_status bring_over(stw_nvme *nvme, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t from = nvme->committed * nvme->stride, to = next_copy(nvme) * nvme->stride;
    void *memory = NULL;
    stw_extent e;
    for (uint64_t at = 0; stw_extents_next(&nvme->stale, &nvme->written, at, &e); at = e.end) {
        stw_nvme_stop stop = {0, 0};
        e.end = stw_min_u64(e.end, e.first + BRING_OVER_BYTES);
        if (memory == NULL && posix_memalign(&memory, ALIGN, BRING_OVER_BYTES + ALIGN) != 0)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory"));
        char *place = (char *)memory + e.first % ALIGN; /* both ways direct */
        transfer in = {false, place, from + e.first, e.end - e.first};
        transfer out = {true, place, to + e.first, e.end - e.first};
        if (!move(nvme, in, &stop)) STW_TRY(stopped(nvme, &in, e.first, &stop, err));
        if (!move(nvme, out, &stop)) STW_TRY(stopped(nvme, &out, e.first, &stop, err));
    }
out:
    free(memory);
    return status;
}

static stw_status write_record(stw_nvme *nvme, uint32_t copy, uint64_t step, stw_error *err) {
    record r = {.version = RECORD_VERSION,
                .copy = copy,
                .sequence = nvme->sequence + 1,
                .step = step,
                .bytes = nvme->bytes};
    memcpy(r.magic, record_magic, sizeof r.magic);
    r.hash = record_hash(&r);
    stw_nvme_range range = {.file = nvme->buffered,
                            .writes = true,
                            .memory = (char *)&r,
                            .offset = record_offset(nvme, r.sequence),
                            .bytes = sizeof r};
    stw_nvme_stop stop = {0, 0};
    if (stw_nvme_move_here(&range, &stop)) return STW_STATUS_OK;
    return fail(nvme, stop.code != 0 ? stop.code : EIO, "writing a record into", err);
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
    if (nvme->copies == 2) {
        bool flips = nvme->written.n > 0; /* else the committed copy is that of this step, too */
        if (flips) STW_TRY(bring_over(nvme, err));
        if (flips) STW_TRY(sync_data(nvme, err));
        uint32_t copy = flips ? next_copy(nvme) : nvme->committed;
        STW_TRY(write_record(nvme, copy, step, err));
        STW_TRY(sync_data(nvme, err));
        nvme->committed = copy;
        nvme->sequence++;
        if (flips) {
            stw_extents before = nvme->stale;
            nvme->stale = nvme->written;
            nvme->written = (stw_extents){before.list, 0, before.room};
        }
    } else {
        STW_TRY(sync_data(nvme, err));
    }
    nvme->broken = false;
    nvme->step = step;
out:
    return status;
}

/* ---- what stayed ---- */

/* Is it a record of a file of this size? */
static bool record_holds(const record *r, uint64_t size_bytes) {
    return memcmp(r->magic, record_magic, sizeof r->magic) == 0 && r->version == RECORD_VERSION &&
           r->hash == record_hash(r) && r->copy < 2 && r->sequence > 0 && r->bytes <= size_bytes &&
           2 * stw_round_up_u64(r->bytes, ALIGN) + RECORDS_BYTES == size_bytes;
}

static bool record_blank(const record *r) {
    static const record blank;
    return memcmp(r, &blank, sizeof blank) == 0;
}

static stw_status read_records(const stw_nvme *nvme, uint64_t size_bytes, record *records,
                               stw_error *err) {
    stw_nvme_range range = {.file = nvme->buffered,
                            .memory = (char *)records,
                            .offset = size_bytes - RECORDS_BYTES,
                            .bytes = RECORDS_BYTES};
    stw_nvme_stop stop = {0, 0};
    if (stw_nvme_move_here(&range, &stop)) return STW_STATUS_OK;
    return fail(nvme, stop.code != 0 ? stop.code : EIO, "reading the records of", err);
}

/* Sets what the newest valid record says. */
static stw_status find_committed(stw_nvme *nvme, uint64_t size_bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    record *records = calloc(N_RECORDS, sizeof *records), *newest = NULL;
    if (records == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
    STW_TRY(read_records(nvme, size_bytes, records, err));
    unsigned damaged = 0;
    for (unsigned i = 0; i < N_RECORDS; i++) {
        record *r = &records[i];
        if (!record_holds(r, size_bytes))
            damaged += !record_blank(r);
        else if (newest == NULL || r->sequence > newest->sequence)
            newest = r;
    }
    if (newest == NULL) {
        status =
            stw_fail(err, STW_STATUS_BAD_INPUT, nvme->path, "it holds no committed step: %s",
                     damaged == 0 ? "none was ever committed" : "no record of a commit is whole");
        goto out;
    }
    if (damaged > 0)
        stw_log(STW_LOG_WARN, "%s: one record of a commit is damaged; step %" PRIu64 " is used",
                nvme->path, newest->step);
    nvme->bytes = newest->bytes;
    nvme->stride = stw_round_up_u64(newest->bytes, ALIGN);
    nvme->committed = newest->copy;
    nvme->sequence = newest->sequence;
    nvme->step = newest->step;
out:
    free(records);
    return status;
}

stw_status stw_nvme_open_kept(const char *path, uint64_t *bytes, uint64_t *step, stw_nvme **out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    struct stat about;
    *out = NULL;
    stw_nvme *nvme = nvme_new(err);
    if (nvme == NULL) return STW_STATUS_NO_MEMORY;
    nvme->kept = true;
    nvme->copies = 2;
    size_t length = strlen(path);
    if (length >= sizeof nvme->path) {
        status = stw_fail(err, STW_STATUS_USAGE, path, "the file's name is too long");
        goto out;
    }
    memcpy(nvme->path, path, length + 1);
    nvme->buffered = open(path, O_RDONLY | O_CLOEXEC);
    if (nvme->buffered < 0 || fstat(nvme->buffered, &about) != 0) {
        status = fail(nvme, errno, "opening", err);
        goto out;
    }
    if (!S_ISREG(about.st_mode) || (uint64_t)about.st_size < RECORDS_BYTES) {
        status = stw_fail(err, STW_STATUS_BAD_INPUT, path,
                          "it is no file of an NVMe arena with two copies");
        goto out;
    }
    STW_TRY(find_committed(nvme, (uint64_t)about.st_size, err));
    STW_TRY(choose_method(nvme, err));
    open_direct(nvme, O_RDONLY);
    nvme->named = true;
    *bytes = nvme->bytes;
    *step = nvme->step;
    *out = nvme;
    nvme = NULL;
out:
    nvme_free(nvme);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* O_DIRECT */
#include "backend/nvme/kept.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvme/io.h"
#include "backend/nvme/sum.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"

#define VERIFY_BYTES (8ull << 20) /* read at once */
#define RELEASES 250              /* how often a lock of a process that has ended is tried again */

/* ---- opening ---- */

/* Sets errno where it fails. */
static bool move(int file, bool writes, void *memory, uint64_t offset, uint64_t bytes) {
    stw_nvme_stop stop = {0};
    const stw_nvme_range range = {.direct = -1,
                                  .buffered = file,
                                  .writes = writes,
                                  .memory = memory,
                                  .offset = offset,
                                  .bytes = bytes};
    if (stw_nvme_move_here(&range, &stop)) return true;
    errno = stop.code != 0 ? stop.code : EIO;
    return false;
}

static bool is_of_this_host(const stw_nvme_header *header) {
    char host[sizeof header->host] = "";
    return header->pid > 0 && gethostname(host, sizeof host - 1) == 0 &&
           strcmp(host, header->host) == 0;
}

/* Does the process that made the file live? Asked only where locks do not work. */
static bool process_lives(const stw_nvme_header *header) {
    return is_of_this_host(header) && (kill((pid_t)header->pid, 0) == 0 || errno == EPERM);
}

/* io_uring keeps a file, and its lock, open for a moment after the process that used it was killed.
 * Such a lock is waited for. @return EWOULDBLOCK if it stays */
static int await_release(int file, const stw_nvme_header *header) {
    const struct timespec pause = {.tv_nsec = 20000000};
    int locked = EWOULDBLOCK;
    for (int i = 0; i < RELEASES && locked == EWOULDBLOCK; i++) {
        if (!is_of_this_host(header) || process_lives(header)) break;
        (void)nanosleep(&pause, NULL);
        locked = flock(file, LOCK_SH | LOCK_NB) == 0 ? 0 : errno;
    }
    return locked;
}

static void read_records(stw_kept *kept) {
    static const stw_nvme_record blank;
    stw_nvme_record r;
    for (uint32_t i = 0; i < STW_NVME_RECORDS; i++) {
        bool seen = move(kept->file, false, &r, (i + 1) * sizeof r, sizeof r);
        if (!seen || !stw_nvme_record_holds(&r, &kept->header)) {
            kept->damaged += !seen || memcmp(&r, &blank, sizeof r) != 0;
            kept->strange += seen && stw_nvme_record_is_whole(&r);
            continue;
        }
        const stw_kept_step step = {r.step, r.sequence, r.sums_hash, r.copy, r.time_s};
        bool newer = kept->n_steps > 0 && step.sequence > kept->steps[0].sequence;
        if (newer) kept->steps[kept->n_steps] = kept->steps[0];
        kept->steps[newer ? 0 : kept->n_steps] = step;
        kept->n_steps++;
    }
}

static stw_status fail(const char *path, const char *doing, stw_error *err) {
    return stw_fail_native(err, STW_STATUS_IO, errno, path, "%s: %s", doing, strerror(errno));
}

stw_status stw_kept_open(const char *path, stw_kept **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    struct stat about;
    *out = NULL;
    stw_kept *kept = calloc(1, sizeof *kept);
    if (kept == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    kept->file = -1;
    if (strlen(path) >= sizeof kept->path)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, path, "the file's name is too long"));
    memcpy(kept->path, path, strlen(path) + 1);
    kept->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (kept->file < 0 || fstat(kept->file, &about) != 0) STW_TRY(fail(path, "opening it", err));
    if (!S_ISREG(about.st_mode))
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, path, "it is no file of NVMe state"));
    kept->bytes = (uint64_t)about.st_size;
    kept->changed_s = (int64_t)about.st_mtime;
    int locked = flock(kept->file, LOCK_SH | LOCK_NB) == 0 ? 0 : errno;
    if (kept->bytes < sizeof kept->header)
        kept->problem = "it is no state of this version";
    else if (!move(kept->file, false, &kept->header, 0, sizeof kept->header))
        kept->problem = "it cannot be read";
    else
        (void)stw_nvme_header_holds(&kept->header, kept->bytes, &kept->problem);
    if (stw_nvme_header_is_of_other_version(&kept->header)) {
        snprintf(kept->version, sizeof kept->version,
                 "it is no state of this version: the file has format %" PRIu32
                 ", this program reads %u",
                 kept->header.version, STW_NVME_VERSION);
        kept->problem = kept->version;
    }
    kept->foreign = kept->problem != NULL && !stw_nvme_header_is_known(&kept->header);
    if (stw_nvme_header_holds(&kept->header, kept->bytes, NULL)) {
        kept->problem = NULL;
        read_records(kept);
    } else {
        kept->header = (stw_nvme_header){0};
    }
    kept->is_copy = kept->header.inode != 0 && kept->header.inode != (uint64_t)about.st_ino;
    if (locked == EWOULDBLOCK) locked = await_release(kept->file, &kept->header);
    kept->live =
        locked == EWOULDBLOCK || (locked != 0 && !kept->is_copy && process_lives(&kept->header));
    *out = kept;
    kept = NULL;
out:
    stw_kept_close(kept);
    return status;
}

void stw_kept_close(stw_kept *kept) {
    if (kept == NULL) return;
    if (kept->file >= 0) close(kept->file);
    free(kept);
}

/* ---- verifying ---- */

stw_status stw_kept_sums(const stw_kept *kept, const stw_kept_step *step, stw_nvme_cells *cells,
                         uint64_t **sums, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_nvme_header *h = &kept->header;
    stw_nvme_places places;
    *cells = (stw_nvme_cells){0};
    *sums = NULL;
    uint64_t *cuts = NULL, *list = NULL;
    if (!stw_nvme_places_of(h->bytes, h->n_cuts, h->n_cells, &places))
        STW_TRY(stw_fail(err, STW_STATUS_BUG, kept->path, "its header was not verified"));
    cuts = calloc((size_t)h->n_cuts + 1, sizeof *cuts);
    list = calloc((size_t)h->n_cells + 1, sizeof *list);
    if (cuts == NULL || list == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, kept->path, "out of memory"));
    if (!move(kept->file, false, cuts, places.cuts, (h->n_cuts + 1) * sizeof *cuts) ||
        !move(kept->file, false, list, places.sums[step->copy], h->n_cells * sizeof *list))
        STW_TRY(fail(kept->path, "reading its checksums", err));
    if (stw_nvme_sum(cuts, (h->n_cuts + 1) * sizeof *cuts) != h->cuts_hash ||
        stw_nvme_sum(list, h->n_cells * sizeof *list) != step->sums_hash)
        STW_TRY(stw_fail(err, STW_STATUS_DISAGREE, kept->path,
                         "the list of checksums of step %" PRIu64 " is damaged", step->step));
    STW_TRY(stw_nvme_cells_make(h->bytes, cuts, h->n_cuts + 1, cells, err));
    if (cells->n != h->n_cells)
        STW_TRY(stw_fail(err, STW_STATUS_DISAGREE, kept->path,
                         "%" PRIu64 " cells, %" PRIu64 " were expected", cells->n, h->n_cells));
    *sums = list;
    list = NULL;
out:
    if (status != STW_STATUS_OK) stw_nvme_cells_free(cells);
    free(cuts);
    free(list);
    return status;
}

/* Whole cells from `at` on that fit into the buffer. */
static uint64_t part_end(const stw_nvme_cells *cells, uint64_t at, uint64_t bytes) {
    if (bytes - at <= VERIFY_BYTES) return bytes;
    uint64_t last = stw_nvme_cells_at(cells, at + VERIFY_BYTES);
    return stw_nvme_cells_get(cells, last).first;
}

static stw_status compare(const stw_kept *kept, const stw_kept_step *step,
                          const stw_nvme_cells *cells, uint64_t *sums, stw_kept_check *out,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_nvme_header *h = &kept->header;
    stw_nvme_places places;
    void *memory = NULL;
    const int direct = open(kept->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    stw_nvme_range range = {.direct = direct, .buffered = kept->file, .cells = cells, .sums = sums};
    (void)stw_nvme_places_of(h->bytes, h->n_cuts, h->n_cells, &places);
    if (posix_memalign(&memory, STW_NVME_BLOCK_BYTES, VERIFY_BYTES) != 0)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, kept->path, "out of memory"));
    for (uint64_t at = 0; at < h->bytes;) {
        stw_nvme_stop stop = {0};
        range.memory = memory;
        range.first = at;
        range.offset = places.copies[step->copy] + at;
        range.bytes = part_end(cells, at, h->bytes) - at;
        bool same = stw_nvme_move_here(&range, &stop);
        if (!same && !stop.damaged && stop.code == EINVAL && range.direct >= 0) {
            range.direct = -1; /* a device with stricter rules */
            continue;
        }
        if (!same && !stop.damaged) {
            errno = stop.code != 0 ? stop.code : EIO;
            STW_TRY(fail(kept->path, "reading its state", err));
        }
        uint64_t done = same ? range.bytes : stop.offset - range.offset;
        out->bytes += done;
        at += done;
        stw_progress_add(done);
        if (same) continue;
        stw_nvme_cell cell = stw_nvme_cells_get(cells, stw_nvme_cells_at(cells, at));
        if (out->damaged++ == 0)
            stw_nvme_format_range(h->parts, h->n_parts, cell.first, cell.end, out->first,
                                  sizeof out->first);
        at = cell.end;
    }
out:
    if (direct >= 0) close(direct);
    free(memory);
    return status;
}

stw_status stw_kept_verify(const stw_kept *kept, const stw_kept_step *step, stw_kept_check *out,
                           stw_error *err) {
    stw_nvme_cells cells;
    uint64_t *sums = NULL;
    stw_error why = STW_ERROR_INIT;
    *out = (stw_kept_check){0};
    stw_status status = stw_kept_sums(kept, step, &cells, &sums, &why);
    if (status == STW_STATUS_DISAGREE) {
        out->damaged = 1;
        snprintf(out->first, sizeof out->first, "%.180s", why.text);
        return STW_STATUS_OK;
    }
    if (status != STW_STATUS_OK) {
        if (err != NULL && err->status == STW_STATUS_OK) *err = why;
        return status;
    }
    status = compare(kept, step, &cells, sums, out, err);
    stw_nvme_cells_free(&cells);
    free(sums);
    return status;
}

stw_status stw_kept_remove(stw_kept *kept, stw_error *err) {
    if (kept->file < 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, kept->path, "%s: it is not removed",
                        kept->problem);
    const bool live =
        kept->live || (flock(kept->file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
    if (live)
        return stw_fail(err, STW_STATUS_USAGE, kept->path,
                        "process %" PRId64 " of host %s uses it: it is not removed",
                        kept->header.pid, kept->header.host[0] != '\0' ? kept->header.host : "?");
    if (unlink(kept->path) == 0) return STW_STATUS_OK;
    return fail(kept->path, "removing it", err);
}

/* ---- folders ---- */

static bool is_state(const char *name) {
    static const char before[] = "stowage-nvme-", after[] = ".state";
    size_t length = strlen(name);
    return strncmp(name, before, sizeof before - 1) == 0 &&
           strcmp(name + length - (sizeof after - 1), after) == 0;
}

/* What has the name of state and cannot be looked at. */
static stw_status make_odd(const char *path, const stw_error *why, stw_kept **out, stw_error *err) {
    stw_kept *kept = calloc(1, sizeof *kept);
    if (kept == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    kept->file = -1;
    snprintf(kept->path, sizeof kept->path, "%s", path);
    kept->problem = why->native == ELOOP                            ? "it is a symbolic link"
                    : why->status == STW_STATUS_BAD_INPUT           ? "it is no regular file"
                    : why->native == EACCES || why->native == EPERM ? "this user may not read it"
                                                                    : "it cannot be read";
    *out = kept;
    return STW_STATUS_OK;
}

static stw_status add(const char *path, stw_kept_list *list, stw_error *err) {
    stw_kept *kept = NULL;
    stw_error why = STW_ERROR_INIT;
    stw_status status = stw_kept_open(path, &kept, &why);
    if (status == STW_STATUS_IO && why.native == ENOENT) return STW_STATUS_OK; /* it went */
    if (status == STW_STATUS_IO || status == STW_STATUS_BAD_INPUT)
        status = make_odd(path, &why, &kept, err);
    else if (status != STW_STATUS_OK && err != NULL)
        *err = why;
    if (status != STW_STATUS_OK) return status;
    stw_kept **files = realloc(list->files, (list->n + 1) * sizeof(stw_kept *));
    if (files == NULL) {
        stw_kept_close(kept);
        return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    }
    list->files = files;
    list->files[list->n++] = kept;
    return STW_STATUS_OK;
}

static int by_run(const void *a, const void *b) {
    const stw_kept *x = *(stw_kept *const *)a, *y = *(stw_kept *const *)b;
    if (x->header.created_s != y->header.created_s)
        return x->header.created_s < y->header.created_s ? -1 : 1;
    if (x->header.run != y->header.run) return x->header.run < y->header.run ? -1 : 1;
    if (x->header.rank != y->header.rank) return x->header.rank < y->header.rank ? -1 : 1;
    return strcmp(x->path, y->path);
}

stw_status stw_kept_scan(const char *path, stw_kept_list *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char name[PATH_MAX];
    *out = (stw_kept_list){0};
    DIR *folder = opendir(path);
    if (folder == NULL && errno == ENOTDIR) {
        const char *slash = strrchr(path, '/');
        if (is_state(slash != NULL ? slash + 1 : path)) return add(path, out, err);
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "expected a folder, or a file stowage-nvme-*.state");
    }
    if (folder == NULL) return fail(path, "opening the folder", err);
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(folder);
        if (e == NULL && errno != 0) status = fail(path, "reading the folder", err);
        if (e == NULL) break;
        if (!is_state(e->d_name)) continue;
        int n = snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (n < 0 || (size_t)n >= sizeof name) continue;
        status = add(name, out, err);
        if (status != STW_STATUS_OK) break;
    }
    closedir(folder);
    if (status != STW_STATUS_OK) stw_kept_list_free(out);
    if (out->n > 1) qsort(out->files, out->n, sizeof(stw_kept *), by_run);
    return status;
}

void stw_kept_list_free(stw_kept_list *list) {
    for (uint32_t i = 0; i < list->n; i++) stw_kept_close(list->files[i]);
    free(list->files);
    *list = (stw_kept_list){0};
}

/* The file of a rank of the same run: itself, else one that is no copy, else a copy. */
static const stw_kept *rank_of(const stw_kept_list *list, const stw_kept *kept, uint32_t rank) {
    const stw_kept *found = NULL;
    if (rank == kept->header.rank) return kept;
    for (uint32_t i = 0; i < list->n; i++) {
        const stw_kept *other = list->files[i];
        if (other->header.run != kept->header.run || other->header.rank != rank ||
            other->problem != NULL)
            continue;
        if (found == NULL || (found->is_copy && !other->is_copy)) found = other;
    }
    return found;
}

static bool has_step(const stw_kept *kept, uint64_t step) {
    for (uint32_t i = 0; i < kept->n_steps; i++)
        if (kept->steps[i].step == step) return true;
    return false;
}

const char *stw_kept_lacks(const stw_kept *kept) {
    if (kept->problem != NULL) return kept->problem;
    if (kept->strange > 0) return "its records are of another run or rank than its header";
    return kept->damaged > 0 ? "no record of a commit is whole" : "no step was committed";
}

int stw_kept_whole(const stw_kept_list *list, uint32_t index, char *why, size_t why_size) {
    const stw_kept *kept = list->files[index];
    const stw_nvme_header *h = &kept->header;
    const uint32_t first = h->rank - h->local_rank;
    if (why == NULL) why_size = 0;
    if (kept->problem != NULL || kept->n_steps == 0) {
        snprintf(why, why_size, "%s", stw_kept_lacks(kept));
        return -1;
    }
    for (uint32_t s = 0; s < kept->n_steps; s++) {
        bool all = true;
        for (uint32_t r = first; r - first < h->local_world && all; r++) {
            const stw_kept *other = rank_of(list, kept, r);
            all = other != NULL && has_step(other, kept->steps[s].step);
            if (all) continue;
            snprintf(why, why_size,
                     other == NULL ? "the state of rank %" PRIu32 " is missing"
                                   : "rank %" PRIu32 " has another step",
                     r);
        }
        if (all) return (int)s;
    }
    return -1;
}

void stw_kept_warn(const char *folder) {
    stw_kept_list list;
    uint64_t bytes = 0;
    uint32_t n = 0;
    const stw_kept *first = NULL;
    char size[32];
    if (stw_kept_scan(folder, &list, NULL) != STW_STATUS_OK) return;
    for (uint32_t i = 0; i < list.n; i++) {
        if (list.files[i]->live || list.files[i]->file < 0) continue;
        if (n++ == 0) first = list.files[i];
        bytes += list.files[i]->bytes;
    }
    stw_bytes_format(bytes, size, sizeof size);
    if (first != NULL)
        stw_log_always(STW_LOG_WARN,
                       "runs that ended left state on NVMe, %" PRIu32 " file%s of %s, such as %s; "
                       "see: stowage state list %s",
                       n, n > 1 ? "s" : "", size, first->path, folder);
    stw_kept_list_free(&list);
}

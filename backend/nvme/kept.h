/* SPDX-License-Identifier: Apache-2.0 */
/* NVMe state that runs have left: find, inspect, verify and remove its files. A run holds a lock
 * (flock) on its file until its process ends. On file systems without locks its process id decides.
 * One thread at a time uses a stw_kept. */
#ifndef STW_BACKEND_NVME_KEPT_H
#define STW_BACKEND_NVME_KEPT_H

#include "backend/nvme/cells.h"
#include "backend/nvme/format.h"

/** A commit that a file holds. */
typedef struct stw_kept_step {
    uint64_t step, sequence, sums_hash;
    uint32_t copy;
    int64_t time_s; /* seconds since 1970 */
} stw_kept_step;

typedef struct stw_kept {
    char path[4096];
    int file;          /* -1: could not be opened; see `problem` */
    bool live;         /* its run is still running */
    bool is_copy;      /* a copy of the run's file, or moved to another file system */
    uint64_t bytes;    /* on the disk */
    int64_t changed_s; /* seconds since 1970 */
    bool foreign; /* no header of this version: damaged, another version's, or not a state file */
    const char *problem;    /* why there is no header, NULL if there is one */
    char version[96];       /* text of `problem` for a file of another version */
    stw_nvme_header header; /* zeros if there is none */
    uint32_t n_steps;       /* 0: nothing was committed, or no valid record */
    uint32_t damaged;       /* records that are not valid */
    uint32_t strange;       /* of these: undamaged, but of another header (run or rank) */
    stw_kept_step steps[STW_NVME_RECORDS]; /* newest first */
} stw_kept;

/** Open a file and read header and records; damage in them is not an error. IO if it cannot be
 * read, BAD_INPUT if it is not a regular file. */
STW_MUST_USE stw_status stw_kept_open(const char *path, stw_kept **out, stw_error *err);
void stw_kept_close(stw_kept *kept); /* NULL is fine */

/** Read cells and checksums of a commit. DISAGREE if they are damaged.
 * @param sums out, [cells->n], the caller frees it */
STW_MUST_USE stw_status stw_kept_sums(const stw_kept *kept, const stw_kept_step *step,
                                      stw_nvme_cells *cells, uint64_t **sums, stw_error *err);

typedef struct stw_kept_check {
    uint64_t bytes;   /* verified */
    uint64_t damaged; /* cells */
    char first[192];  /* names the first damaged cell, or tells why nothing was read */
} stw_kept_check;
/** Read a commit's copy and compare all its checksums. Damage is reported in `out` and is not an
 * error; IO if the disk cannot be read. */
STW_MUST_USE stw_status stw_kept_verify(const stw_kept *kept, const stw_kept_step *step,
                                        stw_kept_check *out, stw_error *err);
/** Remove the file. USAGE, naming the process, if its run is still running; BAD_INPUT if the file
 * could not be opened. */
STW_MUST_USE stw_status stw_kept_remove(stw_kept *kept, stw_error *err);

/** Files of NVMe state, ordered by run and rank. */
typedef struct stw_kept_list {
    uint32_t n;
    stw_kept **files;
} stw_kept_list;
/** List the files in a folder, or the one file if `path` is a file. An entry with such a name that
 * cannot be opened (a folder, a FIFO, a link, another user's file) is listed with its problem. */
STW_MUST_USE stw_status stw_kept_scan(const char *path, stw_kept_list *out, stw_error *err);
void stw_kept_list_free(stw_kept_list *list); /* frees the members; zeros are fine */

/** Returns why a file has no steps; never NULL. */
const char *stw_kept_lacks(const stw_kept *kept);

/** Returns the newest step that every rank of the file's run on this node has committed, as an
 * index into the steps of file i; -1: none.
 * @param why out, a text that names what is missing; may be NULL */
int stw_kept_whole(const stw_kept_list *list, uint32_t i, char *why, size_t why_size);

/** Log a warning, which -q does not hide, if runs that have ended left state in the folder. */
void stw_kept_warn(const char *folder);

#endif

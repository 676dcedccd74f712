/* SPDX-License-Identifier: Apache-2.0 */
/* The NVMe arena of a rank: one file of an exact size, its blocks reserved when it is opened, read
 * and written directly (past the page cache) by io_uring or, where the system does not allow that,
 * by a few threads.
 *
 * Every byte that is read is verified. The arena is divided into cells (backend/nvme/cells.h), each
 * with a checksum (XXH3, 64 bits) that is computed beside the transfer. What does not have it is
 * DISAGREE, and the error names file, bytes and step. Ranges that begin and end where cells do cost
 * no more than the checksums; others read their first and last cell whole.
 *
 * With one copy a step is written in place: a full disk cannot happen (blocks are reserved), but
 * whatever stops a step leaves moments of two steps. The file has no name at any time, so it goes
 * with the process. With two copies, at twice the space, only a commit changes what can be read:
 * until then reads see the state of the last commit, and writes go to the other copy, where nobody
 * sees them. A commit makes all writes since the one before count, whoever made them, and keeps
 * every byte that was not written. Its record (backend/nvme/format.h) is written after the data has
 * reached the disk: whatever stops a step, the last committed state stays readable, in this process
 * or from the file that then remains. The file gets its name when all ranks have committed a step
 * (stw_nvme_agree): before, it is of no use and goes with the process, too.
 *
 * Reads and writes block until all of it is done; disjoint ranges from any threads, everything else
 * alone. After a commit that failed, writes and commits fail too. STOWAGE_NVME_IO=io_uring or
 * =threads in the environment asks for one method: NOT_BUILT_IN where it cannot be had.
 */
#ifndef STW_BACKEND_NVME_H
#define STW_BACKEND_NVME_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/nvme/format.h"
#include "core/status.h"

#define STW_NVME_ALIGN_BYTES 4096

typedef struct stw_nvme stw_nvme;

/** How the arena is used. */
typedef struct stw_nvme_shape {
    bool in_memory;       /* the folder may be tmpfs */
    uint64_t n_cuts;      /* where reads and writes of steps begin and end */
    const uint64_t *cuts; /* [n_cuts] in any order */
    uint32_t n_parts;     /* names for messages; those beyond STW_NVME_MOST_PARTS are not kept */
    const stw_nvme_part *parts;
} stw_nvme_shape;

typedef struct stw_nvme_options {
    const char *folder; /* NULL: $TMPDIR, else /tmp */
    uint64_t bytes;     /* of one copy: what offsets reach */
    uint32_t copies;    /* 1 or 2 */
    uint32_t rank;      /* for the file's name */
    stw_nvme_shape shape;
} stw_nvme_options;

/** Make the file. With two copies it will be stowage-nvme-<pid>-rank<rank>.state (with -2 and so on
 * before the dot where an earlier process left one of that name). Too little free space is
 * NO_RESOURCES (need and free bytes named), a folder in memory USAGE unless shape.in_memory, one
 * that cannot be written IO. The content reads as zeros. */
STW_MUST_USE stw_status stw_nvme_open(const stw_nvme_options *options, stw_nvme **out,
                                      stw_error *err);
/** Close. A file that has a name stays, and the log says where, unless it was released. */
void stw_nvme_close(stw_nvme *nvme); /* NULL is fine */
/** Is direct I/O in use where alignment allows it? (Not on every file system.) */
bool stw_nvme_is_direct(const stw_nvme *nvme);
/** "io_uring" or "threads". */
const char *stw_nvme_method(const stw_nvme *nvme);
/** Its path while it has a name, else "". */
const char *stw_nvme_path(const stw_nvme *nvme);
/** The most bytes from `offset` on that end where a cell ends, `most` or less; `most` where there
 * is none: for readers and writers who may choose. */
uint64_t stw_nvme_fit(const stw_nvme *nvme, uint64_t offset, uint64_t most);
/** Exactly `bytes` of the committed copy (of the only one); BUG beyond its end, IO for errors and
 * short reads, DISAGREE for what does not have its checksum: then nothing at `to` may be used. */
STW_MUST_USE stw_status stw_nvme_read(stw_nvme *nvme, uint64_t offset, void *to, uint64_t bytes,
                                      stw_error *err);
/** Exactly `bytes` into the copy that the next commit makes count; BUG beyond its end,
 * NO_RESOURCES for a full disk, IO for other errors and short writes. */
STW_MUST_USE stw_status stw_nvme_write(stw_nvme *nvme, uint64_t offset, const void *from,
                                       uint64_t bytes, stw_error *err);
/** Two copies: from now on reads see what was written since the last commit, and everything else as
 * it was; `step` is what the record says. Without a write since then only the record is new. Bytes
 * that the commit before wrote and that were not written since are copied here: nothing for a step
 * that writes all of its state. IO after a write that failed. With one copy: waits for the disk. */
STW_MUST_USE stw_status stw_nvme_commit(stw_nvme *nvme, uint64_t step, stw_error *err);
/** One copy: what is written from now on is of this step, for messages. */
void stw_nvme_note_step(stw_nvme *nvme, uint64_t step);

/** Whose state it is. */
typedef struct stw_nvme_owner {
    uint64_t run; /* the same on all ranks of a run, and of no other run */
    uint32_t rank, world, local_rank, local_world;
    const char *plan; /* its hash */
} stw_nvme_owner;
/** Two copies: say whose state it is. Before the first commit of a step. */
STW_MUST_USE stw_status stw_nvme_own(stw_nvme *nvme, const stw_nvme_owner *owner, stw_error *err);
/** Two copies: every rank has committed `step`. From step 1 on the file has a name. */
STW_MUST_USE stw_status stw_nvme_agree(stw_nvme *nvme, uint64_t step, stw_error *err);
/** The run ended well: the file goes when it is closed. */
void stw_nvme_release(stw_nvme *nvme);

/** What checksums cost so far, in seconds of threads; `alone_s`: what a transfer took longer
 * because nothing else of it was under way (io_uring only). */
typedef struct stw_nvme_cost {
    uint64_t bytes;
    double seconds, alone_s;
} stw_nvme_cost;
stw_nvme_cost stw_nvme_checksum_cost(const stw_nvme *nvme);

/** Open a file that stayed, for reading its last committed step that has all its checksums: all of
 * it is read here. A warning says which steps do not. BAD_INPUT where none was committed, DISAGREE
 * where none verifies, USAGE while its run goes on.
 * @param step of that commit, out */
STW_MUST_USE stw_status stw_nvme_open_kept(const char *path, uint64_t *bytes, uint64_t *step,
                                           stw_nvme **out, stw_error *err);

#endif

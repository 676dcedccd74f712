/* SPDX-License-Identifier: Apache-2.0 */
/* The NVMe arena of a rank: one file of an exact size with reserved blocks. It is read and written
 * directly (past the page cache) by io_uring or, if the system does not allow that, by a few
 * threads.
 *
 * Every byte read is verified. The arena is divided into cells (backend/nvme/cells.h), each with a
 * checksum (XXH3, 64 bits) that is computed during the transfer. A mismatch is DISAGREE; the error
 * names file, bytes and step. Ranges of whole cells cost only the checksums; other ranges also read
 * the rest of their first and last cell.
 *
 * With one copy a step is written in place. The disk cannot become full (blocks are reserved), but
 * a step that stops leaves a mixture of two steps. The file never has a name, so it disappears with
 * the process. With two copies, which need twice the space, reads see the state of the last commit;
 * writes go to the other copy and become visible with the next commit. A commit makes all writes
 * since the previous one visible, from any thread, and keeps every byte that was not written. Its
 * record (backend/nvme/format.h) is written after the data has reached the disk. So if a step
 * stops, the last committed state stays readable, in this process or from the file that remains.
 * The file gets its name when all ranks have committed a step (stw_nvme_agree); before that it is
 * useless and disappears with the process.
 *
 * Reads and writes block until they are complete. Any threads may read and write disjoint ranges;
 * other calls must be alone. After a failed commit, writes and commits fail, too.
 * STOWAGE_NVME_IO=io_uring or =threads in the environment selects a method: NOT_BUILT_IN if it is
 * not available. */
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
    uint64_t n_cuts;      /* ends of the reads and writes of steps */
    const uint64_t *cuts; /* [n_cuts] in any order */
    uint32_t n_parts;     /* names for messages; only STW_NVME_MOST_PARTS are kept */
    const stw_nvme_part *parts;
} stw_nvme_shape;

typedef struct stw_nvme_options {
    const char *folder; /* NULL: $TMPDIR, else /tmp */
    uint64_t bytes;     /* size of one copy; offsets are below it */
    uint32_t copies;    /* 1 or 2 */
    uint32_t rank;      /* used in the file's name */
    stw_nvme_shape shape;
} stw_nvme_options;

/** Make the file. With two copies its name will be stowage-nvme-<pid>-rank<rank>.state (with -2 and
 * so on before the dot if an earlier process left that name). NO_RESOURCES if free space is too
 * small (names needed and free bytes), USAGE for a folder in memory unless shape.in_memory, IO if
 * the folder cannot be written. The content reads as zeros. */
STW_MUST_USE stw_status stw_nvme_open(const stw_nvme_options *options, stw_nvme **out,
                                      stw_error *err);
/** Close. A file with a name stays, and the log names it, unless it was released. */
void stw_nvme_close(stw_nvme *nvme); /* NULL is fine */
/** True if direct I/O is used where alignment allows it (not on every file system). */
bool stw_nvme_is_direct(const stw_nvme *nvme);
/** Returns "io_uring" or "threads". */
const char *stw_nvme_method(const stw_nvme *nvme);
/** Returns the file's path while it has a name, else "". */
const char *stw_nvme_path(const stw_nvme *nvme);
/** Returns the most bytes from `offset` on, up to `most`, that end at a cell's end; `most` if there
 * is no such end. For readers and writers that can choose. */
uint64_t stw_nvme_fit(const stw_nvme *nvme, uint64_t offset, uint64_t most);
/** Read exactly `bytes` of the committed copy (or of the only one). BUG beyond its end, IO for
 * errors and short reads, DISAGREE for a wrong checksum; then nothing at `to` may be used. */
STW_MUST_USE stw_status stw_nvme_read(stw_nvme *nvme, uint64_t offset, void *to, uint64_t bytes,
                                      stw_error *err);
/** Write exactly `bytes` to the copy that the next commit makes visible (or to the only one). BUG
 * beyond its end, NO_RESOURCES for a full disk, IO for other errors and short writes. */
STW_MUST_USE stw_status stw_nvme_write(stw_nvme *nvme, uint64_t offset, const void *from,
                                       uint64_t bytes, stw_error *err);
/** Two copies: make the writes since the last commit visible to reads; all other bytes stay. The
 * record gets `step`. Without writes only the record is new. The commit copies bytes that the
 * previous commit changed and that were not written since; there are none if a step writes all of
 * its state. IO after a failed write. One copy: wait for the disk. */
STW_MUST_USE stw_status stw_nvme_commit(stw_nvme *nvme, uint64_t step, stw_error *err);
/** One copy: set the step of later writes, for messages. */
void stw_nvme_note_step(stw_nvme *nvme, uint64_t step);

/** The owner of the state. */
typedef struct stw_nvme_owner {
    uint64_t run; /* the same on all ranks of a run, and of no other run */
    uint32_t rank, world, local_rank, local_world;
    const char *plan; /* the plan's hash */
} stw_nvme_owner;
/** Two copies: set the owner of the state, before the first commit of a step. */
STW_MUST_USE stw_status stw_nvme_own(stw_nvme *nvme, const stw_nvme_owner *owner, stw_error *err);
/** Two copies: tell that every rank has committed `step`. From step 1 on the file has a name. */
STW_MUST_USE stw_status stw_nvme_agree(stw_nvme *nvme, uint64_t step, stw_error *err);
/** Tell that the run succeeded: closing removes the file. */
void stw_nvme_release(stw_nvme *nvme);

/** The cost of checksums so far, in thread seconds. `alone_s`: delay of transfers with nothing else
 * in flight (io_uring only). */
typedef struct stw_nvme_cost {
    uint64_t bytes;
    double seconds, alone_s;
} stw_nvme_cost;
stw_nvme_cost stw_nvme_checksum_cost(const stw_nvme *nvme);

/** Open a file that a run left, to read its last committed step with valid checksums; reads and
 * verifies all of it. A warning names damaged steps. BAD_INPUT if no step was committed, DISAGREE
 * if none is valid, USAGE if its run is still running.
 * @param step out, the step of that commit */
STW_MUST_USE stw_status stw_nvme_open_kept(const char *path, uint64_t *bytes, uint64_t *step,
                                           stw_nvme **out, stw_error *err);

#endif

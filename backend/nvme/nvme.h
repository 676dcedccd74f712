/* SPDX-License-Identifier: Apache-2.0 */
/* The NVMe arena of a rank: one file of an exact size, its blocks reserved when it is opened, read
 * and written directly (past the page cache) by io_uring or, where the system does not allow that,
 * by a few threads.
 *
 * With one copy a step is written in place: a full disk cannot happen (blocks are reserved), but a
 * step that stops half-way leaves moments of two steps. With two copies, at twice the space, only a
 * commit changes what can be read: until then reads see the state of the last commit, and writes go
 * to the other copy, where nobody sees them. A commit makes all writes since the one before count,
 * whoever made them, and keeps every byte that was not written. It is a checksummed record, written
 * after the data has reached the disk: whatever stops a step, the last committed state stays
 * readable, in this process or from the file that then remains.
 *
 * Reads and writes block until all of it is done; disjoint ranges from any threads, commit alone.
 * After a commit that failed, writes and commits fail too. STOWAGE_NVME_IO=io_uring or =threads in
 * the environment asks for one method: NOT_BUILT_IN where it cannot be had.
 */
#ifndef STW_BACKEND_NVME_H
#define STW_BACKEND_NVME_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#define STW_NVME_ALIGN_BYTES 4096

typedef struct stw_nvme stw_nvme;

typedef struct stw_nvme_options {
    const char *folder; /* NULL: $TMPDIR, else /tmp */
    uint64_t bytes;     /* of one copy: what offsets reach */
    uint32_t copies;    /* 1 or 2 */
    uint32_t rank;      /* for the file's name */
} stw_nvme_options;

/** Make the file, stowage-nvme-<pid>-rank<rank>.state (with -2 and so on before the dot where an
 * earlier process left one of that name). Too little free space is NO_RESOURCES (need and free
 * bytes named); a folder that cannot be written is IO. The content reads as zeros. A file of one
 * copy is unlinked at once. */
STW_MUST_USE stw_status stw_nvme_open(const stw_nvme_options *options, stw_nvme **out,
                                      stw_error *err);
/** Close. The file goes, unless it has two copies, a commit, and writes since: then something
 * stopped a step, the file stays and the log says where. NULL is fine. */
void stw_nvme_close(stw_nvme *nvme);
/** Is direct I/O in use where alignment allows it? (Not on every file system.) */
bool stw_nvme_is_direct(const stw_nvme *nvme);
/** "io_uring" or "threads". */
const char *stw_nvme_method(const stw_nvme *nvme);
/** Its path while it has a name, else "". */
const char *stw_nvme_path(const stw_nvme *nvme);
/** Exactly `bytes` of the committed copy (of the only one); BUG beyond its end, IO for errors and
 * short reads. */
STW_MUST_USE stw_status stw_nvme_read(stw_nvme *nvme, uint64_t offset, void *to, uint64_t bytes,
                                      stw_error *err);
/** Exactly `bytes` into the copy that the next commit makes count; BUG beyond its end,
 * NO_RESOURCES for a full disk, IO for other errors and short writes. With
 * STOWAGE_FAIL_NVME_WRITE=k in the environment the k-th write of the process (from 1) is cut short
 * half-way and fails; for tests. Writes of 0 bytes do not count, nor any while it is not set. */
STW_MUST_USE stw_status stw_nvme_write(stw_nvme *nvme, uint64_t offset, const void *from,
                                       uint64_t bytes, stw_error *err);
/** Two copies: from now on reads see what was written since the last commit, and everything else as
 * it was; `step` is what the record says. Without a write since then only the record is new. Bytes
 * that the commit before wrote and that were not written since are copied here: nothing for a step
 * that writes all of its state. IO after a write that failed. With one copy: waits for the disk. */
STW_MUST_USE stw_status stw_nvme_commit(stw_nvme *nvme, uint64_t step, stw_error *err);
/** Open a file that stayed, for reading its last committed step. BAD_INPUT where it holds none.
 * @param step of that commit, out */
STW_MUST_USE stw_status stw_nvme_open_kept(const char *path, uint64_t *bytes, uint64_t *step,
                                           stw_nvme **out, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The NVMe arena of a rank: one unlinked file of an exact size, its blocks reserved when it is
 * opened. Reads and writes block and are direct (past the page cache) where file offset and memory
 * address share their place in a 4096-byte block, buffered elsewhere; the two may be mixed. One
 * thread at a time for overlapping ranges; disjoint ranges from any threads. */
#ifndef STW_BACKEND_NVME_H
#define STW_BACKEND_NVME_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#define STW_NVME_ALIGN_BYTES 4096

typedef struct stw_nvme stw_nvme;

/** Make the file. @param folder NULL: $TMPDIR, else /tmp. Too little free space is NO_RESOURCES
 * (need and free bytes named); a folder that cannot be written is IO. The content reads as zeros.
 */
STW_MUST_USE stw_status stw_nvme_open(const char *folder, uint64_t bytes, stw_nvme **out,
                                      stw_error *err);
/** Close and thereby delete the file; NULL is fine. */
void stw_nvme_close(stw_nvme *nvme);
/** Is direct I/O in use where alignment allows it? (Not on every file system.) */
bool stw_nvme_is_direct(const stw_nvme *nvme);
/** Exactly `bytes` from the file; BUG beyond its end, IO for errors and short reads. */
STW_MUST_USE stw_status stw_nvme_read(stw_nvme *nvme, uint64_t offset, void *to, uint64_t bytes,
                                      stw_error *err);
/** Exactly `bytes` into the file; BUG beyond its end, IO for errors and short writes. */
STW_MUST_USE stw_status stw_nvme_write(stw_nvme *nvme, uint64_t offset, const void *from,
                                       uint64_t bytes, stw_error *err);

#endif

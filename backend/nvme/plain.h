/* SPDX-License-Identifier: Apache-2.0 */
/* Ordinary files, read and written at offsets like the NVMe arena's file: past the page cache by
 * io_uring, or by threads if the system does not allow that. Partial blocks at the ends of a range,
 * and ranges whose memory and file offsets differ modulo 4096, use the page cache. Any thread;
 * several may move ranges of one file. */
#ifndef STW_BACKEND_NVME_PLAIN_H
#define STW_BACKEND_NVME_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#define STW_PLAIN_BLOCK_BYTES 4096u

/** The method that moves files; any number of files may share it. */
typedef struct stw_plain_io stw_plain_io;
STW_MUST_USE stw_status stw_plain_io_open(stw_plain_io **out, stw_error *err);
void stw_plain_io_close(stw_plain_io *io); /* NULL is fine */

typedef struct stw_plain stw_plain;
/** Open for reading, or for writing: a missing file is made, an existing one keeps its content. The
 * path is copied.
 * @return IO, NO_RESOURCES (a full disk), native errno */
STW_MUST_USE stw_status stw_plain_open(stw_plain_io *io, const char *path, bool writes,
                                       stw_plain **out, stw_error *err);
/** Write or read exactly `bytes`. The error names path, bytes and what was found. */
STW_MUST_USE stw_status stw_plain_write(stw_plain *file, uint64_t offset, const void *from,
                                        uint64_t bytes, stw_error *err);
STW_MUST_USE stw_status stw_plain_read(stw_plain *file, uint64_t offset, void *to, uint64_t bytes,
                                       stw_error *err);
/** Make the file at least `bytes` long, because writes of several processes wait for each other
 * only if they extend the file. */
STW_MUST_USE stw_status stw_plain_extend(stw_plain *file, uint64_t bytes, stw_error *err);
/** Wait until the disk holds all writes. */
STW_MUST_USE stw_status stw_plain_sync(stw_plain *file, stw_error *err);
STW_MUST_USE stw_status stw_plain_size(stw_plain *file, uint64_t *bytes, stw_error *err);
void stw_plain_close(stw_plain *file); /* NULL is fine */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Ordinary files, read and written at offsets as the NVMe arena's file is: past the page cache by
 * io_uring, or by threads where the system does not allow that. Ends of a range that are no whole
 * blocks, and ranges whose memory does not lie as the file does (modulo 4096), go through the page
 * cache. Any thread; several may move ranges of one file. */
#ifndef STW_BACKEND_NVME_PLAIN_H
#define STW_BACKEND_NVME_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#define STW_PLAIN_BLOCK_BYTES 4096u

/** How files are moved; shared by any number of them. */
typedef struct stw_plain_io stw_plain_io;
STW_MUST_USE stw_status stw_plain_io_open(stw_plain_io **out, stw_error *err);
void stw_plain_io_close(stw_plain_io *io); /* NULL is fine */

typedef struct stw_plain stw_plain;
/** Open for reading, or for writing; then it is made if it does not exist, and kept as it is if it
 * does. The path is copied. @return IO, NO_RESOURCES (a full disk), native errno */
STW_MUST_USE stw_status stw_plain_open(stw_plain_io *io, const char *path, bool writes,
                                       stw_plain **out, stw_error *err);
/** Exactly `bytes`. The error names path, bytes and what was found. */
STW_MUST_USE stw_status stw_plain_write(stw_plain *file, uint64_t offset, const void *from,
                                        uint64_t bytes, stw_error *err);
STW_MUST_USE stw_status stw_plain_read(stw_plain *file, uint64_t offset, void *to, uint64_t bytes,
                                       stw_error *err);
/** Make the file at least so long: writes of several processes that do not make it longer need not
 * wait for each other. */
STW_MUST_USE stw_status stw_plain_extend(stw_plain *file, uint64_t bytes, stw_error *err);
/** Until the disk holds what was written. */
STW_MUST_USE stw_status stw_plain_sync(stw_plain *file, stw_error *err);
STW_MUST_USE stw_status stw_plain_size(stw_plain *file, uint64_t *bytes, stw_error *err);
void stw_plain_close(stw_plain *file); /* NULL is fine */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Do the buckets of all markers have every byte of every file once? Readers count on it: a bucket
 * ends inside its file, and what no bucket has would be read without a hash. */
#ifndef STW_BACKEND_CHECKPOINT_COVER_H
#define STW_BACKEND_CHECKPOINT_COVER_H

#include "backend/checkpoint/folder.h"

/** A file and how long it is. */
typedef struct stw_covered {
    const char *name;
    uint64_t bytes;
} stw_covered;

/** @param files n of different names
 * @return DISAGREE names a file, and the byte that no bucket or a second one has, or a marker that
 * lists another file */
STW_MUST_USE stw_status stw_checkpoint_cover(const stw_checkpoint *checkpoint,
                                             const stw_covered *files, uint32_t n, stw_error *err);

#endif

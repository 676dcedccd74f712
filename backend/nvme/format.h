/* SPDX-License-Identifier: Apache-2.0 */
/* The file of an NVMe arena with two copies, version 4. Its parts follow each other, each rounded
 * up to blocks of 4096 bytes; integers are in the byte order of the machine:
 *
 *   block 0     header: the division of the arena, and the owner of the state
 *   blocks 1, 2 records of commits; a commit writes number `sequence % 2`
 *   cuts        8 bytes each: offsets of the arena, from 0 to its end (backend/nvme/cells.h)
 *   checksums   of copy 0, then of copy 1: XXH3 (64 bits) of each cell
 *   copy 0, copy 1
 *
 * The header ends with the XXH3 of its block's other bytes; the first 512 bytes of a record end
 * with the XXH3 of the bytes before it, and the rest of a record is zeros. The header contains the
 * hash of the cuts. A record contains the hash of its copy's checksums, and run, rank and hash of
 * its header, so that a record of another run's header is never accepted. Thus all data read is
 * verified.
 *
 * Power may fail at any time: of writes without a later fdatasync, any sectors of 512 bytes may
 * have reached the disk. A record lies in one sector, so it is either complete or absent. Before
 * the first byte of a copy is overwritten, the record of that copy is set to zeros on the disk. A
 * record is written after its copy and checksums are on the disk. Therefore the copy of a valid
 * record was not overwritten since, and a reader takes the valid record with the highest sequence
 * whose copy matches its checksums (unit.backend_power). */
#ifndef STW_BACKEND_NVME_FORMAT_H
#define STW_BACKEND_NVME_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define STW_NVME_VERSION 4u
#define STW_NVME_RECORDS 2u
#define STW_NVME_MOST_PARTS 64u
#define STW_NVME_SECTOR_BYTES 512u /* a disk writes a sector completely or not at all */

/** A named range of the arena, for messages. */
typedef struct stw_nvme_part {
    char name[24]; /* a component, "exp_avg" */
    uint64_t first, bytes;
} stw_nvme_part;

typedef struct stw_nvme_header {
    char magic[8];
    uint32_t version, n_parts;
    uint64_t bytes; /* size of one copy */
    uint64_t n_cuts, n_cells, cuts_hash;
    uint64_t run; /* the same for all ranks of a run, and for no other run */
    uint32_t rank, world, local_rank, local_world;
    int64_t pid, created_s; /* seconds since 1970 */
    char host[64], plan[24];
    stw_nvme_part parts[STW_NVME_MOST_PARTS];
    uint64_t inode; /* of the run's original file: a copied file has another inode; 0: unknown */
    unsigned char zeros[4096 - 88 - 96 - STW_NVME_MOST_PARTS * sizeof(stw_nvme_part) - 8];
    uint64_t hash;
} stw_nvme_header;
_Static_assert(sizeof(stw_nvme_header) == 4096, "a header is one block");

typedef struct stw_nvme_record {
    char magic[8];
    uint32_t version, copy;
    uint64_t sequence; /* from 1 */
    uint64_t step, bytes, sums_hash;
    int64_t time_s;            /* seconds since 1970 */
    uint64_t run, header_hash; /* as in the file's header */
    uint32_t rank, world;      /* as in the header */
    unsigned char zeros[STW_NVME_SECTOR_BYTES - 80 - 8];
    uint64_t hash;                                    /* hash of all bytes before it */
    unsigned char rest[4096 - STW_NVME_SECTOR_BYTES]; /* zeros */
} stw_nvme_record;
_Static_assert(sizeof(stw_nvme_record) == 4096, "a record is one block");
_Static_assert(offsetof(stw_nvme_record, rest) == STW_NVME_SECTOR_BYTES, "and lies in one sector");

/** The offsets of the parts in the file. */
typedef struct stw_nvme_places {
    uint64_t records, cuts, sums[2], copies[2], end;
} stw_nvme_places;

/** Compute the offsets. False if the sum exceeds the largest file size. */
bool stw_nvme_places_of(uint64_t bytes, uint64_t n_cuts, uint64_t n_cells, stw_nvme_places *out);
/** Set magic, version and hash. */
void stw_nvme_header_seal(stw_nvme_header *header);
/** The same for a record; also copies the header's fields. @param header sealed */
void stw_nvme_record_seal(stw_nvme_record *record, const stw_nvme_header *header);
/** True if it begins as a header of this version; it may still be damaged. */
bool stw_nvme_header_is_known(const stw_nvme_header *header);
/** True if it begins as a header of another version. */
bool stw_nvme_header_is_of_other_version(const stw_nvme_header *header);
/** True if it is a valid header for a file of this size.
 * @param why NULL, or receives a constant text if not */
bool stw_nvme_header_holds(const stw_nvme_header *header, uint64_t file_bytes, const char **why);
/** True if it is an undamaged record of any file. */
bool stw_nvme_record_is_whole(const stw_nvme_record *record);
/** True if it is a record of the file with this header. */
bool stw_nvme_record_holds(const stw_nvme_record *record, const stw_nvme_header *header);
/** True if the file has an undamaged header and an undamaged record of this step. Does not read the
 * state. Async-signal-safe. */
bool stw_nvme_file_holds(const char *path, uint64_t step);
/** Returns the part that contains a byte of the arena; NULL: none. */
const stw_nvme_part *stw_nvme_part_at(const stw_nvme_part *parts, uint32_t n, uint64_t offset);
/** Name bytes [first, end) of the arena: "bytes 4096 to 8192 (exp_avg from its byte 0)". */
void stw_nvme_format_range(const stw_nvme_part *parts, uint32_t n, uint64_t first, uint64_t end,
                           char *out, size_t out_size);

#endif

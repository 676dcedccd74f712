/* SPDX-License-Identifier: Apache-2.0 */
/* The file of an NVMe arena with two copies, version 4. Its parts follow each other, each rounded
 * up to blocks of 4096 bytes; integers are in the byte order of the machine:
 *
 *   block 0     header: how the arena is divided, and whose state it is
 *   blocks 1, 2 records of commits; a commit writes number `sequence % 2`
 *   cuts        8 bytes each: offsets of the arena, from 0 to its end (backend/nvme/cells.h)
 *   checksums   of copy 0, then of copy 1: XXH3 (64 bits) of each cell
 *   copy 0, copy 1
 *
 * The header ends with the XXH3 of all that is before it in its block, a record's first 512 bytes
 * with that of all that is before it; the rest of a record is zeros. The header has the hash of the
 * cuts, a record that of its copy's checksums, and run, rank and hash of its header: no record
 * counts under the header of another run. So everything that is read is verified.
 *
 * Power may fail at any time: of writes that no fdatasync followed, any sectors of 512 bytes may be
 * on the disk. A record lies in one sector, so that it is there or not. Before the first byte of a
 * copy is overwritten, the record that names the copy is set to zeros, and the disk holds that; a
 * record is written once the disk holds its copy and checksums. A record that is whole therefore
 * names a copy that nobody has written to since, and a reader takes the one with the highest
 * sequence whose copy has its checksums (unit.backend_power). */
#ifndef STW_BACKEND_NVME_FORMAT_H
#define STW_BACKEND_NVME_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define STW_NVME_VERSION 4u
#define STW_NVME_RECORDS 2u
#define STW_NVME_MOST_PARTS 64u
#define STW_NVME_SECTOR_BYTES 512u /* what a disk writes whole or not at all */

/** Bytes of the arena that have a name, for messages. */
typedef struct stw_nvme_part {
    char name[24]; /* of the component, "exp_avg" */
    uint64_t first, bytes;
} stw_nvme_part;

typedef struct stw_nvme_header {
    char magic[8];
    uint32_t version, n_parts;
    uint64_t bytes; /* of one copy */
    uint64_t n_cuts, n_cells, cuts_hash;
    uint64_t run; /* the same for all ranks of a run, and for no other run */
    uint32_t rank, world, local_rank, local_world;
    int64_t pid, created_s; /* seconds since 1970 */
    char host[64], plan[24];
    stw_nvme_part parts[STW_NVME_MOST_PARTS];
    uint64_t inode; /* of the file that the run made: a copy has another; 0: not known */
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
    uint64_t run, header_hash; /* of the file's header */
    uint32_t rank, world;      /* the header's too */
    unsigned char zeros[STW_NVME_SECTOR_BYTES - 80 - 8];
    uint64_t hash;                                    /* of all before it */
    unsigned char rest[4096 - STW_NVME_SECTOR_BYTES]; /* zeros */
} stw_nvme_record;
_Static_assert(sizeof(stw_nvme_record) == 4096, "a record is one block");
_Static_assert(offsetof(stw_nvme_record, rest) == STW_NVME_SECTOR_BYTES, "and lies in one sector");

/** Where parts begin in the file. */
typedef struct stw_nvme_places {
    uint64_t records, cuts, sums[2], copies[2], end;
} stw_nvme_places;

/** False if the sum exceeds what a file can have. */
bool stw_nvme_places_of(uint64_t bytes, uint64_t n_cuts, uint64_t n_cells, stw_nvme_places *out);
/** Set magic, version and hash. */
void stw_nvme_header_seal(stw_nvme_header *header);
/** The same, and what is the header's. @param header sealed */
void stw_nvme_record_seal(stw_nvme_record *record, const stw_nvme_header *header);
/** Does it begin as headers of this version do? It may be damaged all the same. */
bool stw_nvme_header_is_known(const stw_nvme_header *header);
/** Does it begin as headers of another version do? */
bool stw_nvme_header_is_of_other_version(const stw_nvme_header *header);
/** Is it the header of a file of this size? @param why NULL, or receives a constant text if not */
bool stw_nvme_header_holds(const stw_nvme_header *header, uint64_t file_bytes, const char **why);
/** Is it a record as it was written, of whatever file? */
bool stw_nvme_record_is_whole(const stw_nvme_record *record);
/** Is it a record of the file with this header? */
bool stw_nvme_record_holds(const stw_nvme_record *record, const stw_nvme_header *header);
/** Does the file have a header and the record of this step, as they were written? The state itself
 * is not read. Async-signal-safe. */
bool stw_nvme_file_holds(const char *path, uint64_t step);
/** The part with a byte of the arena; NULL where none is. */
const stw_nvme_part *stw_nvme_part_at(const stw_nvme_part *parts, uint32_t n, uint64_t offset);
/** Name bytes [first, end) of the arena: "bytes 4096 to 8192 (exp_avg from its byte 0)". */
void stw_nvme_format_range(const stw_nvme_part *parts, uint32_t n, uint64_t first, uint64_t end,
                           char *out, size_t out_size);

#endif

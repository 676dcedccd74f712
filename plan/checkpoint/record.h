/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint says about itself. stowage.json, the manifest, says whose state it is: step,
 * settings, learning rates, files. A marker, rank-00003.done, is a rank's word that all it writes
 * has reached the disk; it lists the rank's bytes in buckets, each with its XXH3 (64 bits). Rank
 * 0's lists the manifest, too. A marker ends with the hash of its own text. A checkpoint is whole
 * when the manifest and the markers of all ranks are there, of one save, and their buckets are all
 * bytes of the files. */
#ifndef STW_PLAN_CHECKPOINT_RECORD_H
#define STW_PLAN_CHECKPOINT_RECORD_H

#include "core/text.h"
#include "plan/checkpoint/saved.h"

#define STW_MANIFEST_NAME "stowage.json"
#define STW_MANIFEST_SCHEMA "stowage.checkpoint"
#define STW_SAVED_GROUPS 8
#define STW_SAVED_MOST_RANKS (1u << 20)
#define STW_SAVED_MOST_FILES (1u << 16)
#define STW_SAVED_FILE_NAME 255 /* bytes of a file's name, as file systems have them */

/** Bytes of a file: `count` rows of `bytes`, `stride` apart. */
typedef struct stw_marked_extent {
    uint64_t offset, bytes, count, stride;
} stw_marked_extent;

/** Bytes of one file and their hash: over the extents, one after the other. */
typedef struct stw_marked_bucket {
    uint32_t file;
    uint32_t first_extent, n_extents;
    uint64_t bytes, hash;
} stw_marked_bucket;

typedef struct stw_marker {
    stw_pool *pool;
    uint64_t save, step; /* save: of this attempt, the same on all ranks, and of no other */
    uint32_t rank, world;
    uint32_t n_files, n_buckets, n_extents;
    size_t files_room, buckets_room, extents_room;
    const char **files;
    stw_marked_bucket *buckets;
    stw_marked_extent *extents;
} stw_marker;

/** An empty marker in a pool: of the caller, like all that is added. */
void stw_marker_init(stw_marker *marker, stw_pool *pool);
/** Begin a bucket of a file. */
STW_MUST_USE stw_status stw_marker_begin(stw_marker *marker, const char *file, stw_error *err);
/** Add bytes behind those of the last bucket; runs of equal rows are one extent. */
STW_MUST_USE stw_status stw_marker_add(stw_marker *marker, uint64_t offset, uint64_t bytes,
                                       stw_error *err);
/** "rank-00003.done" */
void stw_marker_name(uint32_t rank, char out[32]);
STW_MUST_USE stw_status stw_marker_write(const stw_marker *marker, stw_text *out, stw_error *err);
/** Is a name one of a file in the checkpoint's own folder, which readers may open? */
bool stw_saved_file_name(const char *name);
/** @param file for errors; @return BAD_INPUT with the line, DISAGREE where the text does not have
 * its hash */
STW_MUST_USE stw_status stw_marker_read(const char *file, const char *text, size_t length,
                                        stw_marker *out, stw_error *err);

/** A line "key = value" of what makes a state what it is. */
typedef struct stw_saved_term {
    const char *key, *value;
} stw_saved_term;

typedef struct stw_manifest {
    stw_pool *pool;
    uint64_t save, step;
    uint32_t world;
    const char *model; /* its name */
    uint32_t n_tensors;
    uint64_t params;
    uint64_t seed;      /* of a run on seeded gradients */
    const char *sample; /* hash of its weights files, "" for seeded ones */
    uint32_t n_terms;
    const stw_saved_term *terms;
    uint32_t n_groups;
    double lr[STW_SAVED_GROUPS], weight_decay[STW_SAVED_GROUPS];
    uint64_t n_factors;
    const double *factors; /* clip factors of steps 1 to `step` of a run on seeded gradients */
    uint32_t n_files;
    struct stw_manifest_file {
        const char *name;
        uint64_t bytes;
    } * files; /* safetensors */
} stw_manifest;

/** Take terms from lines "key = value", in the manifest's pool. */
STW_MUST_USE stw_status stw_manifest_take_terms(stw_manifest *manifest, const char *lines,
                                                stw_error *err);
STW_MUST_USE stw_status stw_manifest_write(const stw_manifest *manifest, stw_text *out,
                                           stw_error *err);
/** @param out everything in `pool` */
STW_MUST_USE stw_status stw_manifest_read(const char *file, const char *text, size_t length,
                                          stw_pool *pool, stw_manifest *out, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a checkpoint: every bucket of which something is needed is read once, whole, and compared
 * with its hash before any of it is handed over. */
#ifndef STW_BACKEND_CHECKPOINT_LOAD_H
#define STW_BACKEND_CHECKPOINT_LOAD_H

#include "backend/checkpoint/folder.h"
#include "models/safetensors.h"

/** Who wants bytes of a file. Those of one kind in a file are apart, or the same; those of
 * different kinds may share bytes. */
typedef enum stw_load_who {
    STW_LOAD_HERE,
    STW_LOAD_HERE_TOO, /* a second use of bytes that are read once */
    STW_LOAD_ANY_RANK, /* some rank of the job, which verifies them: nothing is placed for these */
    STW_N_LOAD_WHO
} stw_load_who;

/** Bytes of a file that are wanted. */
typedef struct stw_load_need {
    uint64_t offset, bytes;
    uint32_t file; /* of manifest.files */
    uint32_t where;
    uint64_t at; /* `where` and `at` are for whoever places them */
    stw_load_who who;
} stw_load_need;

/** Needs, as they are collected. Zeros are an empty one; the caller frees `all`. */
typedef struct stw_load_needs {
    stw_load_need *all;
    uint64_t n;
    size_t room;
} stw_load_needs;
STW_MUST_USE stw_status stw_load_needs_add(stw_load_needs *needs, const stw_load_need *need,
                                           stw_error *err);

/** Place bytes [skip, skip + bytes) of a need; one thread at a time, any of several unless
 * `one_thread` says otherwise. */
typedef stw_status stw_load_place(void *state, const stw_load_need *need, uint64_t skip,
                                  const void *from, uint64_t bytes, stw_error *err);

typedef struct stw_load_options {
    stw_load_need *needs; /* in any order. Sorted here */
    uint64_t n_needs;
    stw_load_place *place;
    void *state;
    /** Buckets of which no rank needs anything are verified as well, as one of `parts` ranks, which
     * divide them: part p those whose number modulo `parts` is p. parts 0: none are. */
    uint32_t part, parts;
    bool one_thread; /* `place` is called by the calling thread; others read ahead */
    void (*progress)(void *state, uint64_t bytes); /* NULL: none */
} stw_load_options;

/** @return DISAGREE names file, bytes, tensor and both hashes of what is damaged; BAD_INPUT a byte
 * that is needed and in no bucket */
STW_MUST_USE stw_status stw_checkpoint_load(const stw_checkpoint *checkpoint,
                                            const stw_load_options *options, stw_error *err);

/** What verifying found. */
typedef struct stw_checkpoint_damage {
    uint64_t bytes;   /* verified */
    uint64_t damaged; /* buckets */
    char first[1024]; /* names the first of them */
} stw_checkpoint_damage;
/** Compare all buckets with their hashes. Damage is in `out`, no error; IO where a file cannot be
 * read. */
STW_MUST_USE stw_status stw_checkpoint_verify(const stw_checkpoint *checkpoint,
                                              void (*progress)(void *state, uint64_t bytes),
                                              void *state, stw_checkpoint_damage *out,
                                              stw_error *err);
/** The header of one of manifest.files; the caller frees it. */
STW_MUST_USE stw_status stw_checkpoint_header(const stw_checkpoint *checkpoint, uint32_t file,
                                              stw_safetensors **out, stw_error *err);

#endif

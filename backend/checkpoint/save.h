/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's part of saves, behind whatever the rank does meanwhile. Its bytes pass through
 * buckets, part by part: one is filled from where the state lies and hashed, while the one before
 * is written. Further buckets (checkpoint.copies) let the reader get ahead of the disk by as much.
 * Bytes that may not wait (state on the GPU) are read before stw_saver_begin returns; the others by
 * a thread, in the order in which the next step will change them, and a step asks before it does.
 * No call waits for another rank. */
#ifndef STW_BACKEND_CHECKPOINT_SAVE_H
#define STW_BACKEND_CHECKPOINT_SAVE_H

#include "backend/checkpoint/folder.h"
#include "plan/checkpoint/buckets.h"
#include "plan/checkpoint/saved.h"

/** Bytes of a file that this rank writes, and where they come from. */
typedef struct stw_save_item {
    uint64_t offset, bytes;
    uint32_t file; /* of the stw_saved_files */
    uint32_t turn; /* when they change next, see stw_saver_wait */
    uint32_t where;
    uint64_t at; /* `where` and `at` are for the reader */
} stw_save_item;

/** Bytes [skip, skip + bytes) of an item, to host memory. Blocking. */
typedef stw_status stw_save_read(void *state, const stw_save_item *item, uint64_t skip, void *to,
                                 uint64_t bytes, stw_error *err);

typedef struct stw_saver_options {
    const stw_saved_files *saved; /* borrowed */
    uint32_t rank, world;
    uint64_t bucket_bytes; /* 0: STW_SAVE_BUCKET_BYTES; a multiple of 4096 */
    uint64_t copies_bytes; /* of further buckets, see stw_save_buckets */
} stw_saver_options;

typedef struct stw_saver stw_saver;
/** Takes memory for its buckets, whole pages. */
STW_MUST_USE stw_status stw_saver_new(const stw_saver_options *options, stw_saver **out,
                                      stw_error *err);
/** A save under way is finished first. NULL is fine. */
void stw_saver_free(stw_saver *saver);

/** How many buckets it has, and the memory of one, for page-locking. */
uint32_t stw_saver_buckets(const stw_saver *saver);
void *stw_saver_bucket(const stw_saver *saver, uint32_t number, uint64_t *bytes);

/** A small file that rank 0 writes beside the others. */
typedef struct stw_save_text {
    const char *name;
    const void *data;
    uint64_t bytes;
} stw_save_text;
/** A save; everything is borrowed until stw_saver_finish, but for the texts. */
typedef struct stw_save_head {
    const char *folder;
    uint32_t keep; /* checkpoints beside which older ones go; 0: keep all */
    uint64_t step, save;
    const stw_save_text *texts; /* rank 0: the manifest and others */
    uint32_t n_texts;
    const stw_save_item *items; /* the first n_now are read at once; the rest ascend by turn */
    uint32_t n_items, n_now;
    stw_save_read *read;
    void *state;
} stw_save_head;
/** Begin a save; none may be under way. What fails is told by stw_saver_finish, unless nothing was
 * begun. */
STW_MUST_USE stw_status stw_saver_begin(stw_saver *saver, const stw_save_head *head,
                                        stw_error *err);
/** Wait until all items of turns up to `turn` (UINT32_MAX: all) are read, or the save has failed.
 * Any thread. A save that is not so far in most_s seconds of waiting, all calls of it together, is
 * given up. Calls that wait at the same time count once, here and in stall_s. */
void stw_saver_wait(stw_saver *saver, uint32_t turn, double most_s);
/** Is a save under way, or not finished? Without waiting. */
bool stw_saver_is_busy(stw_saver *saver);

typedef struct stw_saver_result {
    uint64_t step, bytes;
    double seconds; /* from begin to the end of this rank's part */
    double begin_s; /* until stw_saver_begin returned */
    double stall_s; /* that stw_saver_wait waited */
    bool published; /* this rank's marker was the last one */
} stw_saver_result;
/** Wait for the end of the save. Its failure leaves earlier checkpoints as they are.
 * @return OK as well if there was none */
STW_MUST_USE stw_status stw_saver_finish(stw_saver *saver, stw_saver_result *out, stw_error *err);

/** The step and number of a save as its name, which is the same on all ranks. @param number of a
 * run, the same on all ranks and of no other run */
uint64_t stw_save_name(uint64_t number, uint64_t step);

/** Files that rank 0 writes: the manifest, and what makes the folder one that others open. */
#define STW_SAVE_TEXTS 3
/** @param config path of the model's config.json; NULL: none
 * @param pool of the texts */
STW_MUST_USE stw_status stw_save_texts(stw_pool *pool, stw_manifest *manifest,
                                       const stw_saved_files *saved, const char *config,
                                       stw_save_text texts[STW_SAVE_TEXTS], uint32_t *n,
                                       stw_error *err);

#endif

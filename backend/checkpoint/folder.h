/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of checkpoints. DIR holds step-00000100 and so on. A save is written in
 * .step-00000100.<save>.partial and renamed by the first rank that sees the markers of all; no rank
 * waits for another. Whoever reads judges: a folder is whole if the manifest and every marker are
 * there, of one save, whatever its name. What is removed gets another name first, so that no
 * checkpoint is ever seen in part. */
#ifndef STW_BACKEND_CHECKPOINT_FOLDER_H
#define STW_BACKEND_CHECKPOINT_FOLDER_H

#include "plan/checkpoint/record.h"

#define STW_CHECKPOINT_PATH 4096

/** A checkpoint, read but for its tensors. */
typedef struct stw_checkpoint {
    stw_pool *pool;
    char path[STW_CHECKPOINT_PATH];
    stw_manifest manifest;
    stw_marker *markers; /* [manifest.world] */
    uint64_t bytes;      /* of all buckets */
} stw_checkpoint;

/** Read manifest and markers, and compare them with each other and with the sizes of the files.
 * @return BAD_INPUT what is missing: it is not complete; DISAGREE what is damaged */
STW_MUST_USE stw_status stw_checkpoint_open(const char *path, stw_checkpoint **out, stw_error *err);
void stw_checkpoint_close(stw_checkpoint *checkpoint); /* NULL is fine */

/** Does a folder look like a checkpoint, whole or not? */
bool stw_checkpoint_is(const char *path);
/** Is it one of Stowage: has it a manifest or a marker, or nothing at all? Others have such names,
 * too. */
bool stw_checkpoint_is_own(const char *path);

/** A folder of a list. */
typedef struct stw_checkpoint_entry {
    char *path;
    uint64_t step;
    bool partial; /* it was not renamed */
} stw_checkpoint_entry;
typedef struct stw_checkpoint_list {
    uint32_t n;
    stw_checkpoint_entry *entries; /* ascending by step; a partial one before one that is not */
} stw_checkpoint_list;
/** Checkpoints in a folder, whole or not; or the one, if `path` is one. None is fine. */
STW_MUST_USE stw_status stw_checkpoint_scan(const char *path, stw_checkpoint_list *out,
                                            stw_error *err);
void stw_checkpoint_list_free(stw_checkpoint_list *list); /* what is in it; zeros are fine */
/** Open the newest whole checkpoint of a folder, or the one, if `path` is one.
 * @return BAD_INPUT where none is whole, with what the newest lacks */
STW_MUST_USE stw_status stw_checkpoint_newest(const char *path, stw_checkpoint **out,
                                              stw_error *err);

/** A folder of a save under way. */
typedef struct stw_partial {
    const char *folder; /* DIR */
    uint64_t step, save;
    uint32_t world;
    char path[STW_CHECKPOINT_PATH];
} stw_partial;
/** Name it, and make it and DIR where they are not there. */
STW_MUST_USE stw_status stw_partial_make(stw_partial *partial, stw_error *err);
/** This rank's marker is written: if those of all ranks are, give the folder its name and remove
 * whole checkpoints of lower steps beyond the newest `keep` (0: keep all).
 * @param published whether this rank did it */
STW_MUST_USE stw_status stw_partial_publish(stw_partial *partial, uint32_t keep, bool *published,
                                            stw_error *err);
/** Give up: the folder is removed. Other ranks notice, and give up too. */
void stw_partial_drop(const stw_partial *partial);
/** At the first save of a run: publish saves of earlier runs that are whole, and remove what is
 * left of others. @param save the one that this run begins, which stays as it is */
void stw_checkpoint_tidy(const char *folder, uint64_t save);
/** Remove a checkpoint. */
STW_MUST_USE stw_status stw_checkpoint_remove(const char *path, stw_error *err);
/** Keep other runs from saving into DIR, as long as the process lives. USAGE where one does.
 * @param lock out, a descriptor to be closed; -1: the file system has no locks */
STW_MUST_USE stw_status stw_checkpoint_lock(const char *folder, int *lock, stw_error *err);

#endif

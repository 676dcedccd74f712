/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: of sessions, and of jobs of the caller's. A part of stowage.h, which includes it and
 * has the rules for names, handles, structs, errors and threads. */
#ifndef STOWAGE_CHECKPOINT_H
#define STOWAGE_CHECKPOINT_H

#include "stowage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- of a job ------------------------------------------------------------------------------ */

/* Model and optimizer of a job in one folder: sharded safetensors with published names, master and
 * moments as exp_avg.<tensor> beside them, and stowage.json. Every rank describes what all ranks
 * hold alike, so that who writes which bytes follows without asking: no call here is collective. A
 * rank's part goes to FOLDER/.step-00000100.<save>.partial and is synced; the last rank to end
 * gives the folder its name, step-00000100. Whoever reads judges whether a checkpoint is complete,
 * and verifies every byte that it takes. `stowage state` lists, verifies and removes checkpoints.
 */

typedef struct stw_saved_t stw_saved_t;

typedef struct stw_saved_tensor_t {
    const char *name;    /* as the model names it */
    const char *dtype;   /* of the parameters: "F32", "BF16", "F16" */
    uint32_t dimensions; /* up to STOWAGE_MAX_RANK; those beyond the fourth are never cut */
    uint64_t shape[STOWAGE_MAX_RANK];
    int frozen; /* 1: it has no optimizer state */
} stw_saved_tensor_t;

/* A box of a tensor that a rank holds. Dimensions beyond the tensor's have first 0 and count 1; a
 * tensor's fifth dimension and those beyond are one with its fourth. A count of 0: empty. */
typedef struct stw_held_t {
    uint32_t rank, tensor;
    uint64_t first[STOWAGE_MAX_DIMS], count[STOWAGE_MAX_DIMS];
    int params, state; /* 1: its parameters; its master and moments */
} stw_held_t;

typedef struct stw_saved_options_t {
    const stw_saved_tensor_t *tensors;
    uint32_t n_tensors;
    const char *model_type; /* of config.json, for published names; NULL: the tensors' own */
    const stw_held_t *pieces;
    uint32_t n_pieces;
    uint32_t rank, world;
    const char *master, *exp_avg, *exp_avg_sq; /* dtypes; NULL: there is none */
    uint64_t bucket_bytes; /* of each of two buckets of host memory; 0: 32 MiB */
    uint64_t copies_bytes; /* of further buckets: by so much a save's reader, and with it the next
                              step, gets ahead of the disk (checkpoint.copies of plans) */
} stw_saved_options_t;

/** Plan the checkpoints of a rank. Nothing is borrowed. Takes the memory of its buckets when the
 * first save begins.
 * @return BAD_INPUT names a tensor of which the ranks do not hold all elements */
STW_API_CHECKED stw_status_t stw_plan_checkpoint(const stw_saved_options_t *options, size_t size,
                                                 stw_saved_t **out, stw_error_t *error);
/** A save under way is finished first. Free it before the optimizers whose state it saves. */
STW_API void stw_free_saved(stw_saved_t *saved);

typedef struct stw_saved_info_t {
    uint32_t files;
    uint64_t bytes;      /* of all files with tensors */
    uint64_t rank_bytes; /* that this rank writes of them */
    uint64_t most_bytes; /* of the rank that writes most */
    uint64_t sum;        /* equal where ranks described the same; compare it once */
} stw_saved_info_t;
STW_API void stw_get_saved_info(const stw_saved_t *saved, stw_saved_info_t *out, size_t size);

/* Where a piece's state of a component lies, in one of three ways: memory that the host reaches,
 * an optimizer, a function. Elements are those of the piece, in C order. */
typedef struct stw_save_source_t {
    uint32_t piece;        /* index in stw_saved_options_t.pieces, of this rank */
    const char *component; /* "params", "master", "exp_avg", "exp_avg_sq" */
    /* Host memory, contiguous; it stays as it is until stw_wait_read. */
    void *address;
    /* State of this optimizer's tensor `tensor` (as in stw_open_optimizer), whose elements are the
     * piece's. What lies on the host or on NVMe is read behind training: the optimizer's next step
     * waits for what it changes. What lies on the GPU is read before stw_begin_save returns. */
    stw_optimizer_t *optimizer;
    uint32_t tensor;
    /* Copies elements [first, first + elements) to `memory` (saves) or from there (loads); called
     * on the calling thread. @return 0, else the call fails */
    int (*copy)(void *user, uint64_t first, uint64_t elements, void *memory);
    void *user;
} stw_save_source_t;

typedef struct stw_save_options_t {
    const char *folder; /* made if it is not there; the same on all ranks, seen by all */
    uint64_t step;
    uint64_t number; /* of this run: the same on all ranks, and of no other run. Random */
    uint32_t keep;   /* complete checkpoints beside which older ones go; 0: keep all */
    /* Rank 0's are written. Lines "key = value", each with its line break, that make the state what
     * it is: stw_get_checkpoint_term gives them back. NULL: none. */
    const char *terms;
    const double *learning_rates, *weight_decays; /* of parameter groups */
    uint32_t n_groups;                            /* up to STOWAGE_PARAM_GROUPS */
    const char *config; /* path of the model's config.json, which is saved too; NULL: none */
} stw_save_options_t;

/** Begin a save: what is not to be waited for is read here, the rest by a thread. A save that is
 * under way is finished first, and its failure is told here.
 * @param sources every component of every piece of this rank, in any order */
STW_API_CHECKED stw_status_t stw_begin_save(stw_saved_t *saved, const stw_save_options_t *options,
                                            size_t size, const stw_save_source_t *sources,
                                            uint32_t n, stw_error_t *error);
/** Wait until all of `address` was read. */
STW_API_CHECKED stw_status_t stw_wait_read(stw_saved_t *saved, stw_error_t *error);
typedef struct stw_save_result_t {
    uint64_t bytes;       /* that this rank wrote; 0: there was no save */
    double seconds;       /* from stw_begin_save to the end of this rank's part */
    double begin_seconds; /* until stw_begin_save returned */
    double stall_seconds; /* that optimizer steps and stw_wait_read waited */
    int complete;         /* 1: this rank was the last one, and gave the folder its name */
} stw_save_result_t;
/** 1 while a save is under way, without waiting. */
STW_API int stw_is_saving(stw_saved_t *saved);
/** Wait for the end of this rank's part. After a failure (a full disk: NO_RESOURCES) the folder of
 * this save is gone, earlier checkpoints are as they were, and the next save may be begun.
 * @param out NULL: not wanted */
STW_API_CHECKED stw_status_t stw_finish_save(stw_saved_t *saved, stw_save_result_t *out,
                                             size_t size, stw_error_t *error);

typedef struct stw_checkpoint_t stw_checkpoint_t;

/** Open a checkpoint, or the newest complete one of a folder: manifest and markers, no tensors.
 * @return BAD_INPUT where none is complete, and what it lacks; DISAGREE where one is damaged */
STW_API_CHECKED stw_status_t stw_open_checkpoint(const char *path, stw_checkpoint_t **out,
                                                 stw_error_t *error);
STW_API void stw_free_checkpoint(stw_checkpoint_t *checkpoint);
typedef struct stw_checkpoint_info_t {
    const char *path;
    uint64_t step, save; /* save: of this checkpoint alone; ranks that resume compare it */
    uint64_t bytes;
    uint32_t world; /* ranks that wrote it */
    uint32_t terms, groups;
    uint32_t files;
} stw_checkpoint_info_t;
STW_API void stw_get_checkpoint_info(const stw_checkpoint_t *checkpoint, stw_checkpoint_info_t *out,
                                     size_t size);
/** Term i of stw_save_options_t.terms. */
STW_API int stw_get_checkpoint_term(const stw_checkpoint_t *checkpoint, uint32_t i,
                                    const char **key, const char **value);
/** Rates of parameter group i. */
STW_API int stw_get_checkpoint_group(const stw_checkpoint_t *checkpoint, uint32_t i,
                                     double *learning_rate, double *weight_decay);
/** File i with tensors, its bytes, and whether it is of the model (1) or of the optimizer (0). */
STW_API int stw_get_checkpoint_file(const stw_checkpoint_t *checkpoint, uint32_t i,
                                    const char **name, uint64_t *bytes, int *model);
/** Does a checkpoint have what the job needs? Reads the headers of its files alone, and the answer
 * is the same on every rank. Call it before stw_load_checkpoint, whose other failures leave targets
 * half changed.
 * @return BAD_INPUT names a tensor or a component that is missing, or another shape; NOT_BUILT_IN a
 * dtype that is not converted; DISAGREE a damaged header */
STW_API_CHECKED stw_status_t stw_check_checkpoint(const stw_checkpoint_t *checkpoint,
                                                  stw_saved_t *saved, stw_error_t *error);
/** Read what this rank holds, in whatever world and partition it was saved. Each bucket is read
 * once and verified before anything of it is handed over; the ranks of the job divide those of
 * which nobody needs anything: compare the statuses of all before any state is used. After a
 * failure targets hold a part of the state and must not be used. Values are converted to the dtypes
 * of `saved`. A master that the checkpoint lacks is made of its parameters; F32 parameters without
 * a master are those of the checkpoint's master, if it has one.
 * @param targets as the sources of stw_begin_save; all ranks may leave out the same components, or
 * everything, which verifies the checkpoint. Optimizers finish the step under way
 * @return DISAGREE names file, bytes, tensor and hashes of what is damaged; else as
 * stw_check_checkpoint */
STW_API_CHECKED stw_status_t stw_load_checkpoint(const stw_checkpoint_t *checkpoint,
                                                 stw_saved_t *saved,
                                                 const stw_save_source_t *targets, uint32_t n,
                                                 stw_error_t *error);
/** Compare everything with its hashes. @return DISAGREE names the first that is damaged */
STW_API_CHECKED stw_status_t stw_verify_checkpoint(const stw_checkpoint_t *checkpoint,
                                                   stw_error_t *error);

/* ---- of a session -------------------------------------------------------------------------- */

typedef struct stw_session_save_t {
    const char *folder; /* as in stw_save_options_t; the same at every save of a session */
    uint32_t keep;      /* complete checkpoints beside which older ones go; 0: keep all */
    const char *config; /* path of the model's config.json, which is saved too; NULL: none */
} stw_session_save_t;
/** Begin to save the state after `step`, once the movement that took it is done. What lies on the
 * GPU is read here; the rest is written beside the next step, which waits only where it catches up.
 * The first save of a session is collective (ranks agree on a number); later ones are not. What
 * fails later is a warning of the log; the next save, or freeing the session, waits for this one.
 */
STW_API_CHECKED stw_status_t stw_save_session(stw_session_t *session,
                                              const stw_session_save_t *options, size_t size,
                                              uint64_t step, stw_error_t *error);
/** In place of a load: go on from a checkpoint, or from the newest complete one of a folder, with
 * its step, state and learning rates; world, placement and precisions may be others.
 * @param step receives the checkpoint's: the next one is step + 1, an "optimizer_step"
 * @return BAD_INPUT names a key that differs (model, betas, eps, weight decay) and both values */
STW_API_CHECKED stw_status_t stw_resume_session(stw_session_t *session, const char *path,
                                                uint64_t *step, stw_error_t *error);

#ifdef __cplusplus
}
#endif

#endif

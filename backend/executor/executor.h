/* SPDX-License-Identifier: Apache-2.0 */
/* The executor issues a plan's program on real devices. It is a loop over the movements that
 * Stowage executes itself. Other movements are reported as not run; their resident bytes stay in
 * the arenas. One call per process. */
#ifndef STW_BACKEND_EXECUTOR_H
#define STW_BACKEND_EXECUTOR_H

#include "backend/comm/comm.h"
#include "core/text.h"
#include "plan/files/plan.h"
#include "plan/files/run_file.h"

/** Start and end of operations on rank 0, in seconds: the load, the first step and the last step,
 * one after the other. */
typedef struct stw_timeline {
    uint32_t n_ops;          /* operations of rank 0's program */
    double *start_s, *end_s; /* [n_ops]; NaN: not run */
    double length_s;
} stw_timeline;
/** Free the members; a zeroed timeline is fine. */
void stw_timeline_free(stw_timeline *timeline);

struct stw_rank_run;

/** One gradient that replaces the seeded one, to test how a run handles it. */
typedef struct stw_other_grad {
    uint64_t step;    /* 0: none */
    uint64_t element; /* number in the model */
    float value;
} stw_other_grad;

typedef struct stw_executor_options {
    const char *backend; /* "auto", "cuda", "host" */
    uint32_t steps;      /* optimizer steps, first included; >= 1 */
    uint64_t seed;
    const char *weights; /* safetensors file, index or folder; NULL: seeded weights */
    const char *nvme_folder;
    const char *sync_to; /* folder of safetensors for the parameters after each step; NULL: none.
                            Ranks of the first node write it */
    const char *output, *trace; /* files that the caller writes from the result, which only rank 0
                                   has; the executor only compares them between ranks. NULL: none */
    bool nvme_in_memory;        /* the folder may be tmpfs */
    double timeout_s;           /* limit of a collective; 0: 120 */
    bool no_digest;
    bool compare_weights; /* read the parts of other ranks, too, to compare them; only for load
                             method sharded_read */
    /** Check all gradients before each step, which reads them once more. A NaN or an infinity is
     * BAD_INPUT on every rank, with step, rank, tensor, parameter group and bucket; no part of the
     * step was done. As torch's error_if_nonfinite, but also without clipping. */
    bool error_if_nonfinite;
    stw_other_grad other_grad; /* used by stw_execute */
    bool poison_freed; /* host backend: regions that the program frees are filled with 0xff */
    bool one_thread;   /* host backend, one rank: no thread for each stream */
    /** Called on every rank after every iteration (from 0), between movements, for further
     * measurements of a benchmark. NULL: none. */
    stw_status (*after_iteration)(void *state, struct stw_rank_run *run, uint32_t iteration,
                                  stw_error *err);
    void *after_state;
    /** Called once if the run fails, from any thread, before anything is closed, because closing
     * may take long, or never return if a device waits for a stopped peer. May set err->told. NULL:
     * none.
     * @param broken peers may not come any more */
    void (*failed)(void *state, stw_error *err, bool broken);
    void *failed_state;
    /** The caller's memory, streams and GPU; only `external`, `streams` and `gpu` are used. NULL:
     * the executor's own. */
    const stw_device_config *caller;
    stw_timeline *timeline; /* zeroed, or from an earlier run; filled on rank 0; NULL: no marks */
    /** Folder of checkpoints. stw_execute saves after every `checkpoint_every`-th step and after
     * the last one. A save continues during the next steps; its failure is a warning. NULL:
     * none. */
    const char *checkpoint;
    uint64_t checkpoint_every;     /* 0: only after the last step */
    uint32_t checkpoint_keep;      /* complete checkpoints to keep; older ones are removed; 0: keep
                                      all */
    uint64_t checkpoint_bucket;    /* bytes; 0: STW_SAVE_BUCKET_BYTES */
    const char *checkpoint_config; /* the model's config.json, saved beside its weights; or NULL */
    /** A checkpoint to resume from instead of a load, or a folder whose newest complete one is
     * used. `steps` counts from the very first step; the steps of the checkpoint are not repeated.
     * NULL: none. */
    const char *resume;
} stw_executor_options;

/** For a rank that cannot execute (its plan file is bad): inform the other ranks, which wait for
 * it, and learn whether they refuse, too. Does nothing with one rank, or if ranks meet only by
 * NCCL.
 * @param refused the failure of this rank, with its error in `err`
 * @return always an error; the first rank's if the ranks have met */
STW_MUST_USE stw_status stw_execute_refuse(const stw_executor_options *options, stw_status refused,
                                           stw_error *err);

/** Run the plan on this rank. `result` is complete on rank 0 (all ranks gathered) and NULL
 * elsewhere. NOT_BUILT_IN, naming --set engine=stowage, if no movement of the plan is Stowage's
 * own. */
STW_MUST_USE stw_status stw_execute(const stw_plan *plan, const stw_executor_options *options,
                                    stw_run_result **result, stw_error *err);

/** The source of weights: seeded, or read from safetensors. */
typedef struct stw_weights stw_weights;
STW_MUST_USE stw_status stw_weights_open(const stw_model *model, const char *path, uint64_t seed,
                                         stw_weights **out, stw_error *err);
void stw_weights_close(stw_weights *weights);
/** Returns the dtype of a tensor's pieces: the tensor's own for files, F32 for seeded weights. */
stw_dtype stw_weights_dtype(const stw_weights *weights, uint32_t tensor);
/** Read elements [first, first + count) of a tensor as stored; blocking, any thread. */
STW_MUST_USE stw_status stw_weights_read(stw_weights *weights, uint32_t tensor, uint64_t first,
                                         uint64_t count, void *out, stw_error *err);
/** Append lines "key = value" that identify the files: names, sizes, hashes of the headers and of
 * up to 17 blocks of 64 KiB in each file. It is a sample, which ignores all other bytes. Nothing
 * for seeded weights. */
STW_MUST_USE stw_status stw_weights_sample(const stw_weights *weights, stw_text *out,
                                           stw_error *err);
/** True if a tensor is transposed in the files; long parts of it are then read faster. */
bool stw_weights_is_turned(const stw_weights *weights, uint32_t tensor);
/** Returns the name, without folder, of the file that holds a tensor; not for seeded weights. */
const char *stw_weights_file(const stw_weights *weights, uint32_t tensor);
/** Log a warning with tensor and count if the sample contains NaN or infinity. */
void stw_weights_warn(const stw_weights *weights);

#endif

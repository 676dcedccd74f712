/* SPDX-License-Identifier: Apache-2.0 */
/* The executor: issues a plan's program for real. It is a loop over the movements that Stowage
 * executes itself; bytes resident during the others stay in their arenas, and these are reported as
 * not run. One call per process. */
#ifndef STW_BACKEND_EXECUTOR_H
#define STW_BACKEND_EXECUTOR_H

#include "backend/comm/comm.h"
#include "core/text.h"
#include "plan/files/plan.h"
#include "plan/files/run_file.h"

/** When operations began and ended on rank 0: seconds, loading, the first step and the last one
 * after each other. */
typedef struct stw_timeline {
    uint32_t n_ops;          /* of the program of rank 0's kind */
    double *start_s, *end_s; /* [n_ops]; NaN: not run */
    double length_s;
} stw_timeline;
/** Frees what is in it; zeroes are fine. */
void stw_timeline_free(stw_timeline *timeline);

struct stw_rank_run;

/** One gradient of the model instead of the seeded one, to try what a run does with it. */
typedef struct stw_other_grad {
    uint64_t step;    /* 0: none */
    uint64_t element; /* of the model */
    float value;
} stw_other_grad;

typedef struct stw_executor_options {
    const char *backend; /* "auto", "cuda", "host" */
    uint32_t steps;      /* optimizer steps, first included; >= 1 */
    uint64_t seed;
    const char *weights; /* safetensors file, index or folder; NULL: seeded weights */
    const char *nvme_folder;
    const char *sync_to; /* folder of safetensors to which parameters go after each step; NULL:
                          * none. Ranks of the first node write it */
    const char *output, *trace; /* files that the caller makes of the result; only compared between
                                 * ranks, of which rank 0 alone has a result. NULL: none */
    bool nvme_in_memory;        /* the folder may be tmpfs */
    double timeout_s;           /* of a collective; 0: 120 */
    bool no_digest;
    bool compare_weights; /* read what other ranks read once more; load method sharded_read alone */
    /** Before each step look at all gradients, which reads them once more. One that is NaN or
     * infinite is BAD_INPUT on every rank, naming step, rank, tensor, parameter group and bucket:
     * nothing of the step was done. As torch's error_if_nonfinite, but also without clipping. */
    bool error_if_nonfinite;
    stw_other_grad other_grad; /* looked at by stw_execute */
    bool poison_freed; /* host backend: regions that the program frees are filled with 0xff */
    bool one_thread;   /* host backend, one rank: no thread for each stream */
    /** Called on every rank after every iteration, numbered from 0, between movements: what a
     * benchmark measures beside them. NULL: none. */
    stw_status (*after_iteration)(void *state, struct stw_rank_run *run, uint32_t iteration,
                                  stw_error *err);
    void *after_state;
    /** Called once if the run fails, from any thread, before anything is closed: closing may take
     * long, or for ever where a device waits for a peer that is stopped. May set err->told. NULL:
     * none.
     * @param broken peers may not come any more */
    void (*failed)(void *state, stw_error *err, bool broken);
    void *failed_state;
    /** Memory, streams and GPU of the caller's: `external`, `streams` and `gpu` of it are looked
     * at. NULL: the executor's own. */
    const stw_device_config *caller;
    stw_timeline *timeline; /* zeroed or of an earlier run: filled on rank 0; NULL: no marks */
    /** Checkpoints. stw_execute saves after every `checkpoint_every`th step and after the last one;
     * a save goes on beside the next steps, and its failure is a warning. NULL: none. */
    const char *checkpoint;
    uint64_t checkpoint_every;     /* 0: after the last step alone */
    uint32_t checkpoint_keep;      /* whole checkpoints beside which older ones go; 0: keep all */
    uint64_t checkpoint_bucket;    /* bytes; 0: STW_SAVE_BUCKET_BYTES */
    const char *checkpoint_config; /* the model's config.json, saved beside its weights; or NULL */
    /** Checkpoint, or folder of which the newest whole one is taken, in place of a load: `steps`
     * counts from the very first step, and those that it has are not taken again. NULL: none. */
    const char *resume;
} stw_executor_options;

/** For a rank that cannot execute (its plan file is bad): tell the others, which wait for it, and
 * hear whether they refuse as well. Nothing is done with one rank, or where ranks meet by NCCL
 * alone.
 * @param refused what this rank has met, with its error in `err`
 * @return an error always; the first rank's where the ranks have met */
STW_MUST_USE stw_status stw_execute_refuse(const stw_executor_options *options, stw_status refused,
                                           stw_error *err);

/** Run the plan on this rank. `result` is complete on rank 0 (all ranks gathered) and NULL
 * elsewhere. NOT_BUILT_IN where no movement of the plan is Stowage's own, naming --set
 * engine=stowage. */
STW_MUST_USE stw_status stw_execute(const stw_plan *plan, const stw_executor_options *options,
                                    stw_run_result **result, stw_error *err);

/** Where weights come from: seeded, or read from safetensors. */
typedef struct stw_weights stw_weights;
STW_MUST_USE stw_status stw_weights_open(const stw_model *model, const char *path, uint64_t seed,
                                         stw_weights **out, stw_error *err);
void stw_weights_close(stw_weights *weights);
/** dtype in which the pieces of a tensor come: the tensor's own for files, F32 for seeded weights.
 */
stw_dtype stw_weights_dtype(const stw_weights *weights, uint32_t tensor);
/** Elements [first, first + count) of a tensor as stored; blocking, any thread. */
STW_MUST_USE stw_status stw_weights_read(stw_weights *weights, uint32_t tensor, uint64_t first,
                                         uint64_t count, void *out, stw_error *err);
/** Append lines "key = value" that tell files of other content apart: names, sizes, hashes of the
 * headers and of up to 17 blocks of 64 KiB in each file. A sample: other bytes are not looked at.
 * Nothing for seeded weights. */
STW_MUST_USE stw_status stw_weights_sample(const stw_weights *weights, stw_text *out,
                                           stw_error *err);
/** Does a tensor lie transposed in the files? Long parts of it are then read faster. */
bool stw_weights_is_turned(const stw_weights *weights, uint32_t tensor);
/** Name, without its folder, of the file that a tensor is read from; not of seeded weights. */
const char *stw_weights_file(const stw_weights *weights, uint32_t tensor);
/** Log a warning with tensor and count where the sample holds NaN or infinity. */
void stw_weights_warn(const stw_weights *weights);

#endif

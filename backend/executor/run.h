/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's execution of a plan, shared by the parts of the executor (backend/executor/). Only
 * they and tests include this. */
#ifndef STW_BACKEND_EXECUTOR_RUN_H
#define STW_BACKEND_EXECUTOR_RUN_H

#include <pthread.h>

#include "backend/comm/ops.h"
#include "backend/executor/executor.h"
#include "backend/executor/schedule.h"
#include "backend/host/pool.h"
#include "core/progress.h"

/** stw_execute with a backend of the caller's choice (options->backend is ignored). */
STW_MUST_USE stw_status stw_execute_with(const stw_plan *plan, const stw_executor_options *options,
                                         const stw_backend *backend, stw_run_result **result,
                                         stw_error *err);

typedef struct stw_span_range {
    uint32_t first, n;
} stw_span_range;

/** The measured seconds of one movement. */
typedef struct stw_movement_samples {
    uint32_t n;
    double *seconds; /* of this rank, later of the slowest rank; NULL: not executed */
} stw_movement_samples;

/** Elements of one tensor that one call reads from a file. */
typedef struct stw_read_chunk {
    uint32_t tensor;
    uint64_t first, n;
} stw_read_chunk;

typedef struct stw_read_sums stw_read_sums;
typedef struct stw_exec_saves stw_exec_saves;
typedef struct stw_exec_resume stw_exec_resume;

typedef struct stw_rank_run {
    stw_pool *pool;
    const stw_plan *plan;
    const stw_executor_options *options;
    const stw_backend *backend;
    const char *weights_path; /* from the options, else from the plan; NULL: seeded */
    const stw_job *job;
    stw_ranks ranks;
    uint32_t kind;
    const stw_layout *layout;
    const stw_program *program;
    double timeout_s;

    stw_space *spaces; /* [job->n_spaces] of this rank */
    stw_space source;  /* the source space that PLACE and PACK operations used last */
    uint32_t source_rank, source_id;
    stw_element_types types;
    stw_span *spans; /* the table of spans for updates */
    uint32_t n_spans;
    stw_span_range *bucket_spans; /* [layout->n_buckets] */
    stw_dtype *dtypes;            /* [n_tensors] dtype of pieces of files; the same on every rank */
    stw_weights *weights;         /* NULL on ranks that read nothing */
    stw_text sample;     /* sample of the weights files; empty: seeded, or not visible to this
                            rank */
    stw_read_sums *sums; /* hashes of the bytes read from them; NULL: seeded, or one rank */
    uint64_t weights_read, weights_compared; /* bytes of all ranks */

    stw_device_config config;
    stw_device *device;
    stw_comm *comm;
    bool told;                        /* options->failed was called */
    bool agreed;                      /* all ranks know why the run ends, so that none waits for
                                         another */
    struct stw_run_export *to_folder; /* run_export.h; NULL: no --sync-to */
    struct stw_run_sync *sync;        /* run_sync.h; NULL: no weight sync is executed */
    stw_threads *readers;             /* several threads read one piece */
    stw_streams *streams;
    stw_schedule **schedules;      /* [program->n_movements]; NULL: not executed */
    const stw_movement *movement;  /* the running movement */
    stw_movement_samples *samples; /* [program->n_movements] */

    pthread_mutex_t mutex; /* protects live and peak */
    stw_live live;         /* bytes in the arenas, by operations issued so far */
    stw_peak peak[STW_N_TIERS];

    uint64_t step;                   /* 1 for the first; set between movements */
    uint64_t first_step;             /* first step of this run: 1, or the step after a checkpoint */
    stw_adamw adamw;                 /* scalars of that step */
    double lr[STW_MAX_PARAM_GROUPS]; /* replaces the plan's; NaN: the plan's */
    stw_exec_saves *saves;           /* NULL: no checkpoints are written */
    stw_exec_resume *resume;         /* the state to resume from; NULL: none */
    char resumed[64];                /* "step 100 of save 0123456789abcdef"; else "" */
    bool in_session;                 /* a caller controls the steps, in any order */
    bool no_replay;                  /* the state cannot be replayed from its first step */
    float *factors;                  /* [options->steps] clip factors */
    double norm;                     /* of the last step; NaN: no clipping, or the norm is NaN */
    uint64_t nonfinite_steps, first_nonfinite_step; /* steps whose norm was not finite; 0: none */
    bool refused; /* the last movement was not issued: stw_exec_refuse_nonfinite */
    bool sending; /* comm stream only: a send may still run */
    char sending_what[128];

    stw_measured measured[STW_N_PHASES];
    stw_timeline *timeline; /* the option's on rank 0, else NULL */
    bool timed;             /* the running movement is timed, from timed_from_s on */
    double timed_from_s;
    uint64_t gpu_base, host_base;
    uint64_t gpu_growth, host_growth; /* growth from base to the last step */
    uint64_t digest[STW_N_DIGESTS];
    uint64_t checked, mismatched;
    bool failed; /* a movement or the code around it failed */
} stw_rank_run;

/* ops.c: issues operations */
STW_MUST_USE stw_status stw_exec_issue(stw_rank_run *run, uint32_t op, stw_error *err);
STW_MUST_USE stw_status stw_exec_settle(stw_rank_run *run, uint32_t op, stw_error *err);
/** Give the rates of a parameter group: the plan's, unless run->lr replaces them. */
void stw_exec_rates(const stw_rank_run *run, uint32_t group, double *lr, double *decay);
/** Returns the scalars of a step, including those of every parameter group. */
stw_adamw stw_exec_adamw(const stw_rank_run *run, uint64_t step);

/* state.c: element types, operands, and the table of spans */
/** Give the element types of the run's state; NOT_BUILT_IN for precisions that this executor does
 * not support. */
STW_MUST_USE stw_status stw_exec_types(const stw_run_spec *spec, stw_element_types *out,
                                       stw_error *err);
/** Returns the type of one component of the state. */
stw_element stw_exec_type(const stw_element_types *types, stw_component component);
/** Give the places of a bucket's components during its update, without its spans. */
void stw_exec_operands(const stw_plan *plan, const stw_layout *layout, uint32_t bucket,
                       stw_bucket_operands *out);
STW_MUST_USE stw_status stw_exec_make_spans(stw_rank_run *run, stw_error *err);
/** Find the spans that overlap each bucket; both are ascending. @param out [layout->n_buckets] */
void stw_exec_match_spans(const stw_layout *layout, const stw_span *spans, uint32_t n,
                          stw_span_range *out);

/* disk.c: state on NVMe */
/** Add cuts and names to the shape, in a pool. */
STW_MUST_USE stw_status stw_exec_nvme_shape(const stw_layout *layout, const stw_program *program,
                                            stw_pool *pool, stw_nvme_shape *out, stw_error *err);
/** Two copies: write the owner of the state. Collective. */
STW_MUST_USE stw_status stw_exec_own_state(stw_rank_run *run, stw_error *err);
/** Two copies: agree on the committed step, after a movement that all ranks begin together.
 * Collective. */
STW_MUST_USE stw_status stw_exec_agree_state(stw_rank_run *run, stw_error *err);
/** Remove the state of a run that did not fail. */
void stw_exec_end_state(stw_rank_run *run);
/** "bucket 3 (first tensor to last tensor)" */
void stw_exec_bucket_words(const stw_rank_run *run, uint32_t bucket, char *out, size_t out_size);

/* saves.c: checkpoints, written behind the steps */
/** Prepare this rank's files and memory for saves; nothing without options->checkpoint. */
STW_MUST_USE stw_status stw_exec_saves_open(stw_rank_run *run, stw_error *err);
/** Agree on the number that identifies this run's saves; nothing without options->checkpoint.
 * Collective. */
STW_MUST_USE stw_status stw_exec_saves_agree(stw_rank_run *run, stw_error *err);
/** Begin to save the state after run->step; a running save is finished first. Not collective. A
 * failure is a warning, and the run continues. */
void stw_exec_save(stw_rank_run *run);
/** Wait until the last save is done on this rank. */
void stw_exec_saves_finish(stw_rank_run *run);
/** Before an operation that may change state: wait until the save has read that state. */
void stw_exec_saves_guard(stw_rank_run *run, const stw_op *op);
void stw_exec_saves_close(stw_rank_run *run);

/* resume.c: state from a checkpoint */
/** Read manifest and markers and compare them with the plan; nothing without options->resume. */
STW_MUST_USE stw_status stw_exec_resume_open(stw_rank_run *run, stw_error *err);
/** Instead of the load: read all state of this rank and verify each byte. Collective. */
STW_MUST_USE stw_status stw_exec_resume_load(stw_rank_run *run, stw_error *err);
void stw_exec_resume_close(stw_rank_run *run);

/* timeline.c: when operations run */
STW_MUST_USE stw_status stw_timeline_prepare(stw_rank_run *run, stw_error *err);
/** Returns the marks that the device needs for the timeline; 0: none. */
uint32_t stw_timeline_marks(const stw_rank_run *run);
STW_MUST_USE stw_status stw_timeline_begin(stw_rank_run *run, stw_error *err);
/** stw_exec_issue while `timed`. */
STW_MUST_USE stw_status stw_timeline_issue(stw_rank_run *run, uint32_t op, stw_error *err);
/** Call it when the movement is done. */
STW_MUST_USE stw_status stw_timeline_end(stw_rank_run *run, stw_error *err);

/* executor.c: a run, and its movements */
/** Do everything before the first movement: open device and communicator, set moments to zero.
 * plan, options and backend are borrowed until stw_exec_close. Collective. */
STW_MUST_USE stw_status stw_exec_open(const stw_plan *plan, const stw_executor_options *options,
                                      const stw_backend *backend, stw_rank_run **out,
                                      stw_error *err);
void stw_exec_close(stw_rank_run *run); /* NULL is fine */
/** Issue a schedule of run->program on all ranks at once; `seconds` is the time until this rank has
 * finished. Collective. */
STW_MUST_USE stw_status stw_exec_schedule(stw_rank_run *run, const stw_schedule *schedule,
                                          double *seconds, stw_error *err);

/* finite.c: gradients that are not finite */
/** Give norm and clip factor of the last movement, if it clips; logs a warning for the first norm
 * that is not finite. */
void stw_exec_note_norm(stw_rank_run *run, double *norm, float *factor);
/** BAD_INPUT on all ranks, with run->refused set, if a gradient is not finite. Call it before a
 * movement that updates. Collective. */
STW_MUST_USE stw_status stw_exec_refuse_nonfinite(stw_rank_run *run, stw_error *err);
/** USAGE if no step has options->other_grad. */
STW_MUST_USE stw_status stw_exec_check_other_grad(const stw_rank_run *run, stw_error *err);
/** Write that gradient if this rank has it, after the seeded ones. */
STW_MUST_USE stw_status stw_exec_put_other_grad(stw_rank_run *run, uint64_t step, stw_error *err);

/* transfer.c: pieces on their way from one space to another */
STW_MUST_USE stw_status stw_transfer_read(stw_rank_run *run, const stw_op *op, stw_error *err);
STW_MUST_USE stw_status stw_transfer_pack(stw_rank_run *run, const stw_op *op, stw_error *err);
STW_MUST_USE stw_status stw_transfer_place(stw_rank_run *run, const stw_op *op, stw_error *err);
/** Returns the bytes of a piece in its slot, in its incoming dtype. */
uint64_t stw_transfer_piece_bytes(const stw_rank_run *run, uint32_t piece);
const char *stw_transfer_piece_name(const stw_rank_run *run, uint32_t piece);
/** Returns the threads of this rank that read weights (backend/readers.h); 1 if it reads none. */
uint32_t stw_transfer_readers(const stw_rank_run *run);
/** Open the weights if this rank reads any; sample the files if it can see them. */
STW_MUST_USE stw_status stw_transfer_open(stw_rank_run *run, stw_error *err);
/** Agree on dtypes. Collective. */
STW_MUST_USE stw_status stw_transfer_prepare(stw_rank_run *run, stw_error *err);

/* read_sums.c: hashes of elements that another rank reads, too */
/** A load begins. */
void stw_read_sums_begin(stw_rank_run *run);
/** Add elements that were read; `bytes` has them as stored. Several threads at once. */
void stw_read_sums_add(stw_rank_run *run, const stw_read_chunk *chunk, const void *bytes);

typedef void stw_read_chunk_fn(void *state, const stw_read_chunk *chunk);
/** Call `fn` for all chunks that a rank, this one or another, reads from weights files. run->dtypes
 * must be known. */
STW_MUST_USE stw_status stw_transfer_walk_reads(stw_rank_run *run, uint32_t rank,
                                                stw_read_chunk_fn *fn, void *state, stw_error *err);

/* weights_same.c: compares the bytes of ranks that read the same elements of weights files */
/** Find ranks that read the same elements. Collective. */
STW_MUST_USE stw_status stw_same_prepare(stw_rank_run *run, stw_error *err);
/** Compare after a load. DEVICE names tensor, file and ranks. Collective. */
STW_MUST_USE stw_status stw_same_compare(stw_rank_run *run, stw_error *err);

/* agree.c: compares the settings of all ranks; does nothing with one rank */
/** Append the settings that must be equal on all ranks, as lines "key = value". */
STW_MUST_USE stw_status stw_exec_settings(const stw_rank_run *run, stw_text *out, stw_error *err);
/** Append the settings that identify a state: model, precision, optimizer, trained tensors. */
STW_MUST_USE stw_status stw_exec_state_terms(const stw_rank_run *run, stw_text *out,
                                             stw_error *err);
/** Hash the settings that determine the digests of the state (stw_run_result.digest_of). */
STW_MUST_USE stw_status stw_exec_digest_of(const stw_rank_run *run, char hex[17], stw_error *err);
/** The settings of two ranks, and their numbers. */
typedef struct stw_exec_lists {
    const char *base, *other;
    uint32_t base_rank, rank;
    uint32_t others;    /* number of ranks that differ from base_rank */
    const char *advice; /* "start all ranks with ..." */
} stw_exec_lists;
/** DEVICE names the first line in which the lists of two ranks differ. */
STW_MUST_USE stw_status stw_exec_compare_lists(const stw_exec_lists *lists, stw_error *err);
/** Compare version, build, options, plan and weights of all ranks, then adopt the first failure.
 * @param so_far this rank's status, with its error in `err`
 * @return the same on every rank; DEVICE names the first difference: key, rank, both values */
STW_MUST_USE stw_status stw_exec_agree(stw_rank_run *run, stw_status so_far, stw_error *err);
/** DEVICE if ranks have opened different checkpoints. Collective. */
STW_MUST_USE stw_status stw_exec_agree_resume(stw_rank_run *run, stw_error *err);
/** Exchange the status of all ranks; every rank returns the first failure. Collective. */
STW_MUST_USE stw_status stw_exec_agree_status(stw_rank_run *run, stw_status so_far, stw_error *err);
/** A barrier; DEVICE if ranks begin different movements or steps, or have different learning
 * rates. */
STW_MUST_USE stw_status stw_exec_begin_together(stw_rank_run *run, const stw_movement *movement,
                                                stw_error *err);

/* progress.c: the progress that rank 0 reports (core/progress.h) */
void stw_exec_progress(const stw_rank_run *run, const char *what, stw_progress_unit unit,
                       uint64_t total);
/** A movement of a run of options->steps steps begins. */
void stw_exec_progress_movement(const stw_rank_run *run, const stw_movement *movement);
/** An operation of the movement was issued. */
void stw_exec_progress_op(const stw_rank_run *run, const stw_op *op);
/** Gradients of a step, and digests: counted in elements. */
void stw_exec_progress_grads(const stw_rank_run *run, uint64_t step);
void stw_exec_progress_digest(const stw_rank_run *run);
void stw_exec_progress_add(const stw_rank_run *run, uint64_t count);

/* check.c: gradients before steps, digests and a replay after them */
STW_MUST_USE stw_status stw_exec_zero_moments(stw_rank_run *run, stw_error *err);
STW_MUST_USE stw_status stw_exec_seed_grads(stw_rank_run *run, uint64_t step, stw_error *err);
STW_MUST_USE stw_status stw_exec_digest(stw_rank_run *run, stw_error *err);
/** True if any rank holds the component with this index in stw_run_result.digest. */
bool stw_exec_has_digest(const stw_rank_run *run, int digest);
STW_MUST_USE stw_status stw_exec_verify(stw_rank_run *run, stw_error *err);

/* result.c: collects measurements */
void stw_exec_count(stw_rank_run *run, const stw_op *op);
STW_MUST_USE stw_status stw_exec_note_phase(stw_rank_run *run, stw_phase phase, stw_error *err);
/** Replace each of n values by the slowest rank's. Collective. */
STW_MUST_USE stw_status stw_exec_slowest(stw_rank_run *run, double *values, uint32_t n,
                                         stw_error *err);
/** Returns the bytes that a movement moves over the link in one direction, direct updates
 * included. */
uint64_t stw_exec_link_bytes(const stw_rank_run *run, const stw_movement *movement, bool up);
/** The movement that updates parameters in every iteration but the first; NULL: none. */
const stw_movement *stw_exec_step_movement(const stw_rank_run *run);
/** Gather the measurements of all ranks; only rank 0 makes a result. Collective. */
STW_MUST_USE stw_status stw_exec_collect(stw_rank_run *run, stw_run_result **out, stw_error *err);
/** stw_comm_gather in parts that fit a transport's scratch buffer. */
STW_MUST_USE stw_status stw_exec_gather(stw_rank_run *run, const void *mine, void *out,
                                        uint64_t bytes, stw_error *err);

#endif

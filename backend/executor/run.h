/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's execution of a plan: what the parts of the executor (backend/executor/) share. Nobody
 * else includes this, tests apart. */
#ifndef STW_BACKEND_EXECUTOR_RUN_H
#define STW_BACKEND_EXECUTOR_RUN_H

#include <pthread.h>

#include "backend/comm/ops.h"
#include "backend/executor/executor.h"
#include "backend/executor/schedule.h"
#include "backend/host/pool.h"
#include "core/progress.h"

/** stw_execute with a backend of the caller's choice (options->backend is not looked at). */
STW_MUST_USE stw_status stw_execute_with(const stw_plan *plan, const stw_executor_options *options,
                                         const stw_backend *backend, stw_run_result **result,
                                         stw_error *err);

typedef struct stw_span_range {
    uint32_t first, n;
} stw_span_range;

/** What was measured of one movement. */
typedef struct stw_movement_samples {
    uint32_t n;
    double *seconds; /* of this rank, then of the slowest; NULL: not executed */
} stw_movement_samples;

/** Elements of one tensor that are read from a file by one call. */
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
    const char *weights_path; /* the option's, else the plan's; NULL: seeded */
    const stw_job *job;
    stw_ranks ranks;
    uint32_t kind;
    const stw_layout *layout;
    const stw_program *program;
    double timeout_s;

    stw_space *spaces; /* [job->n_spaces] of this rank */
    stw_space source;  /* of the rank that PLACE and PACK operations looked at last */
    uint32_t source_rank, source_id;
    stw_element_types types;
    stw_span *spans; /* the table that updates walk over */
    uint32_t n_spans;
    stw_span_range *bucket_spans; /* [layout->n_buckets] */
    stw_dtype *dtypes;    /* [n_tensors] in which pieces of files come; the same on every rank */
    stw_weights *weights; /* NULL on ranks that read nothing */
    stw_text sample;      /* of the weights files; empty: seeded, or the rank does not see them */
    stw_read_sums *sums;  /* of what is read from them; NULL: seeded, or one rank */
    uint64_t weights_read, weights_compared; /* bytes of all ranks */

    stw_device_config config;
    stw_device *device;
    stw_comm *comm;
    bool told;                        /* options->failed was called */
    bool agreed;                      /* all ranks know why the run ends: none waits for another */
    struct stw_run_export *to_folder; /* run_export.h; NULL: no --sync-to */
    struct stw_run_sync *sync;        /* run_sync.h; NULL: no weight sync is executed */
    stw_threads *readers;             /* for reading one piece by several threads */
    stw_streams *streams;
    stw_schedule **schedules;      /* [program->n_movements]; NULL: not executed */
    const stw_movement *movement;  /* the one under way */
    stw_movement_samples *samples; /* [program->n_movements] */

    pthread_mutex_t mutex; /* of live, peak and capacity */
    stw_live live;         /* what the arenas hold, by operations issued so far */
    stw_peak peak[STW_N_TIERS];

    uint64_t step;                   /* 1 for the first; set between movements */
    uint64_t first_step;             /* that this run takes: 1, or the one after a checkpoint's */
    stw_adamw adamw;                 /* scalars of that step */
    double lr[STW_MAX_PARAM_GROUPS]; /* instead of the plan's; NaN: the plan's */
    stw_exec_saves *saves;           /* NULL: no checkpoints are written */
    stw_exec_resume *resume;         /* what it goes on from; NULL: nothing */
    char resumed[64];                /* "step 100 of save 0123456789abcdef"; else "" */
    bool in_session;                 /* a caller steps it, from any step to any */
    bool no_replay;                  /* the state cannot be replayed from its beginning */
    float *factors;                  /* [options->steps] clip factors */
    double norm; /* of the last step; NaN without clipping, or where it was NaN */
    uint64_t nonfinite_steps, first_nonfinite_step; /* with a norm that was not finite; 0: none */
    bool refused; /* the last movement was not begun: stw_exec_refuse_nonfinite */
    bool sending; /* comm stream only: a send may still run */
    char sending_what[128];

    stw_measured measured[STW_N_PHASES];
    stw_timeline *timeline; /* the option's on rank 0, else NULL */
    bool timed;             /* the movement under way, from timed_from_s on */
    double timed_from_s;
    uint64_t gpu_base, host_base;
    uint64_t gpu_growth, host_growth; /* bytes taken from base to the last step */
    uint64_t digest[STW_N_DIGESTS];
    uint64_t checked, mismatched;
    bool failed; /* a movement, or what surrounds it */
} stw_rank_run;

/* ops.c: what operations do */
STW_MUST_USE stw_status stw_exec_issue(stw_rank_run *run, uint32_t op, stw_error *err);
STW_MUST_USE stw_status stw_exec_settle(stw_rank_run *run, uint32_t op, stw_error *err);
/** Rates of a parameter group: the plan's, unless run->lr has another one. */
void stw_exec_rates(const stw_rank_run *run, uint32_t group, double *lr, double *decay);
/** Scalars of a step, every parameter group's included. */
stw_adamw stw_exec_adamw(const stw_rank_run *run, uint64_t step);

/* state.c: element types, operands, and the table of spans */
/** Types of the run's state; NOT_BUILT_IN for precisions that this executor does not step. */
STW_MUST_USE stw_status stw_exec_types(const stw_run_spec *spec, stw_element_types *out,
                                       stw_error *err);
/** Type of one component of the state. */
stw_element stw_exec_type(const stw_element_types *types, stw_component component);
/** Where the components of a bucket lie while its update runs; its spans are left out. */
void stw_exec_operands(const stw_plan *plan, const stw_layout *layout, uint32_t bucket,
                       stw_bucket_operands *out);
STW_MUST_USE stw_status stw_exec_make_spans(stw_rank_run *run, stw_error *err);
/** Spans that meet each bucket; both are ascending. @param out [layout->n_buckets] */
void stw_exec_match_spans(const stw_layout *layout, const stw_span *spans, uint32_t n,
                          stw_span_range *out);

/* disk.c: state on NVMe */
/** Add cuts and names, in a pool. */
STW_MUST_USE stw_status stw_exec_nvme_shape(const stw_layout *layout, const stw_program *program,
                                            stw_pool *pool, stw_nvme_shape *out, stw_error *err);
/** Two copies: write whose state it is. Collective. */
STW_MUST_USE stw_status stw_exec_own_state(stw_rank_run *run, stw_error *err);
/** Two copies: after a movement that all ranks begin together. Collective. */
STW_MUST_USE stw_status stw_exec_agree_state(stw_rank_run *run, stw_error *err);
/** The state of a run that did not fail goes with it. */
void stw_exec_end_state(stw_rank_run *run);
/** "bucket 3 (first tensor to last tensor)" */
void stw_exec_bucket_words(const stw_rank_run *run, uint32_t bucket, char *out, size_t out_size);

/* saves.c: checkpoints, written behind the steps */
/** What this rank writes, and memory for it; nothing without options->checkpoint. */
STW_MUST_USE stw_status stw_exec_saves_open(stw_rank_run *run, stw_error *err);
/** The number of this run's saves; nothing without options->checkpoint. Collective. */
STW_MUST_USE stw_status stw_exec_saves_agree(stw_rank_run *run, stw_error *err);
/** Begin to save the state after run->step; a save under way is finished first. It is not
 * collective. What fails is a warning, and the run goes on. */
void stw_exec_save(stw_rank_run *run);
/** Wait until the last save is done on this rank. */
void stw_exec_saves_finish(stw_rank_run *run);
/** Before an operation that may change state: wait until that is read. */
void stw_exec_saves_guard(stw_rank_run *run, const stw_op *op);
void stw_exec_saves_close(stw_rank_run *run);

/* resume.c: state from a checkpoint */
/** Read manifest and markers and compare them with the plan; nothing without options->resume. */
STW_MUST_USE stw_status stw_exec_resume_open(stw_rank_run *run, stw_error *err);
/** In place of the load: everything that this rank holds, each byte verified. Collective. */
STW_MUST_USE stw_status stw_exec_resume_load(stw_rank_run *run, stw_error *err);
void stw_exec_resume_close(stw_rank_run *run);

/* timeline.c: when operations run */
STW_MUST_USE stw_status stw_timeline_prepare(stw_rank_run *run, stw_error *err);
/** Marks that the device needs for it; 0: none. */
uint32_t stw_timeline_marks(const stw_rank_run *run);
STW_MUST_USE stw_status stw_timeline_begin(stw_rank_run *run, stw_error *err);
/** stw_exec_issue while `timed`. */
STW_MUST_USE stw_status stw_timeline_issue(stw_rank_run *run, uint32_t op, stw_error *err);
/** All of the movement is done. */
STW_MUST_USE stw_status stw_timeline_end(stw_rank_run *run, stw_error *err);

/* executor.c: a run, and its movements */
/** Everything up to the first movement: device and communicator are open, moments are zero. plan,
 * options and backend are borrowed until stw_exec_close. Collective. */
STW_MUST_USE stw_status stw_exec_open(const stw_plan *plan, const stw_executor_options *options,
                                      const stw_backend *backend, stw_rank_run **out,
                                      stw_error *err);
void stw_exec_close(stw_rank_run *run); /* NULL is fine */
/** Issue a schedule of run->program on all ranks at once; seconds until all of it is done here.
 * Collective. */
STW_MUST_USE stw_status stw_exec_schedule(stw_rank_run *run, const stw_schedule *schedule,
                                          double *seconds, stw_error *err);

/* finite.c: gradients that are not finite */
/** Norm and clip factor of the movement that was run last, if it clips; a warning for the first
 * that is not finite. */
void stw_exec_note_norm(stw_rank_run *run, double *norm, float *factor);
/** BAD_INPUT on all ranks, and run->refused, where a gradient is not finite. Before a movement that
 * updates. Collective. */
STW_MUST_USE stw_status stw_exec_refuse_nonfinite(stw_rank_run *run, stw_error *err);
/** USAGE for options->other_grad that no step has. */
STW_MUST_USE stw_status stw_exec_check_other_grad(const stw_rank_run *run, stw_error *err);
/** Write it where this rank has it, after the seeded ones. */
STW_MUST_USE stw_status stw_exec_put_other_grad(stw_rank_run *run, uint64_t step, stw_error *err);

/* transfer.c: pieces on their way from one space to another */
STW_MUST_USE stw_status stw_transfer_read(stw_rank_run *run, const stw_op *op, stw_error *err);
STW_MUST_USE stw_status stw_transfer_pack(stw_rank_run *run, const stw_op *op, stw_error *err);
STW_MUST_USE stw_status stw_transfer_place(stw_rank_run *run, const stw_op *op, stw_error *err);
/** Bytes of a piece in its slot, in the dtype in which it comes. */
uint64_t stw_transfer_piece_bytes(const stw_rank_run *run, uint32_t piece);
const char *stw_transfer_piece_name(const stw_rank_run *run, uint32_t piece);
/** Threads of this rank that read weights (backend/readers.h); 1 where it reads none. */
uint32_t stw_transfer_readers(const stw_rank_run *run);
/** Open weights where this rank reads; take a sample of the files where it sees them. */
STW_MUST_USE stw_status stw_transfer_open(stw_rank_run *run, stw_error *err);
/** Agree on dtypes. Collective. */
STW_MUST_USE stw_status stw_transfer_prepare(stw_rank_run *run, stw_error *err);

/* read_sums.c: hashes of what is read, where another rank reads the same */
/** A load begins. */
void stw_read_sums_begin(stw_rank_run *run);
/** Elements were read: as they are stored, in `bytes`. Several threads at once. */
void stw_read_sums_add(stw_rank_run *run, const stw_read_chunk *chunk, const void *bytes);

typedef void stw_read_chunk_fn(void *state, const stw_read_chunk *chunk);
/** Everything that a rank, this one or another, reads from weights files in its loads. After
 * run->dtypes are known. */
STW_MUST_USE stw_status stw_transfer_walk_reads(stw_rank_run *run, uint32_t rank,
                                                stw_read_chunk_fn *fn, void *state, stw_error *err);

/* weights_same.c: do ranks that read the same elements of weights files read the same bytes? */
/** Find out who reads the same. Collective. */
STW_MUST_USE stw_status stw_same_prepare(stw_rank_run *run, stw_error *err);
/** A load has ended. DEVICE names tensor, file and ranks. Collective. */
STW_MUST_USE stw_status stw_same_compare(stw_rank_run *run, stw_error *err);

/* agree.c: do all ranks do the same? Nothing is done with one rank. */
/** What must be the same on all ranks, one line "key = value" each. */
STW_MUST_USE stw_status stw_exec_settings(const stw_rank_run *run, stw_text *out, stw_error *err);
/** Those that make a state what it is: model, precision, optimizer, what is trained. */
STW_MUST_USE stw_status stw_exec_state_terms(const stw_rank_run *run, stw_text *out,
                                             stw_error *err);
/** Hash of those that determine the digests of the state (stw_run_result.digest_of). */
STW_MUST_USE stw_status stw_exec_digest_of(const stw_rank_run *run, char hex[17], stw_error *err);
/** The lists of two ranks, and who they are. */
typedef struct stw_exec_lists {
    const char *base, *other;
    uint32_t base_rank, rank;
    uint32_t others;    /* how many ranks differ from base_rank */
    const char *advice; /* "start all ranks with ..." */
} stw_exec_lists;
/** DEVICE names the first line in which the lists of two ranks differ. */
STW_MUST_USE stw_status stw_exec_compare_lists(const stw_exec_lists *lists, stw_error *err);
/** Compare version, build, options, plan and weights of all ranks, then adopt the first failure.
 * @param so_far what this rank has met, with its error in `err`
 * @return the same on every rank; DEVICE names the first difference: key, rank, both values */
STW_MUST_USE stw_status stw_exec_agree(stw_rank_run *run, stw_status so_far, stw_error *err);
/** DEVICE where ranks have not opened the same checkpoint. Collective. */
STW_MUST_USE stw_status stw_exec_agree_resume(stw_rank_run *run, stw_error *err);
/** Tell all ranks what this one has met: the first failure becomes everybody's. Collective. */
STW_MUST_USE stw_status stw_exec_agree_status(stw_rank_run *run, stw_status so_far, stw_error *err);
/** A barrier; DEVICE where ranks begin another movement, step, or with other learning rates. */
STW_MUST_USE stw_status stw_exec_begin_together(stw_rank_run *run, const stw_movement *movement,
                                                stw_error *err);

/* progress.c: what rank 0 tells of a run under way (core/progress.h) */
void stw_exec_progress(const stw_rank_run *run, const char *what, stw_progress_unit unit,
                       uint64_t total);
/** A movement of a run of options->steps steps begins. */
void stw_exec_progress_movement(const stw_rank_run *run, const stw_movement *movement);
/** An operation of it was issued. */
void stw_exec_progress_op(const stw_rank_run *run, const stw_op *op);
/** Gradients of a step, and digests: counted in elements. */
void stw_exec_progress_grads(const stw_rank_run *run, uint64_t step);
void stw_exec_progress_digest(const stw_rank_run *run);
void stw_exec_progress_add(const stw_rank_run *run, uint64_t count);

/* check.c: gradients before, digests and a replay after */
STW_MUST_USE stw_status stw_exec_zero_moments(stw_rank_run *run, stw_error *err);
STW_MUST_USE stw_status stw_exec_seed_grads(stw_rank_run *run, uint64_t step, stw_error *err);
STW_MUST_USE stw_status stw_exec_digest(stw_rank_run *run, stw_error *err);
/** Whether any rank holds the component of an index of stw_run_result.digest. */
bool stw_exec_has_digest(const stw_rank_run *run, int digest);
STW_MUST_USE stw_status stw_exec_verify(stw_rank_run *run, stw_error *err);

/* result.c: what was measured */
void stw_exec_count(stw_rank_run *run, const stw_op *op);
STW_MUST_USE stw_status stw_exec_note_phase(stw_rank_run *run, stw_phase phase, stw_error *err);
/** Each of n values becomes that of the slowest rank. Collective. */
STW_MUST_USE stw_status stw_exec_slowest(stw_rank_run *run, double *values, uint32_t n,
                                         stw_error *err);
/** Bytes that a movement moves over the link in one direction, those of direct updates included. */
uint64_t stw_exec_link_bytes(const stw_rank_run *run, const stw_movement *movement, bool up);
/** The movement that updates parameters in every iteration but the first; NULL: none. */
const stw_movement *stw_exec_step_movement(const stw_rank_run *run);
/** Gather to all; only rank 0 makes a result. Collective. */
STW_MUST_USE stw_status stw_exec_collect(stw_rank_run *run, stw_run_result **out, stw_error *err);
/** stw_comm_gather in parts that fit the scratch of a transport. */
STW_MUST_USE stw_status stw_exec_gather(stw_rank_run *run, const void *mine, void *out,
                                        uint64_t bytes, stw_error *err);

#endif

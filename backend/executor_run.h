/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's execution of a plan: what the parts of the executor (executor*.c) share. Nobody else
 * includes this, tests apart. */
#ifndef STW_BACKEND_EXECUTOR_RUN_H
#define STW_BACKEND_EXECUTOR_RUN_H

#include <pthread.h>

#include "backend/comm_ops.h"
#include "backend/executor.h"
#include "backend/executor_schedule.h"
#include "backend/host/pool.h"

/** stw_execute with a backend of the caller's choice (options->backend is not looked at). */
STW_MUST_USE stw_status stw_execute_with(const stw_plan *plan, const stw_executor_options *options,
                                         const stw_backend *backend, stw_run_result **result,
                                         stw_error *err);

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
    bool counts; /* this rank's replica is the one that norms, digests and checks count */

    stw_segment *segments; /* of the flat space */
    uint32_t n_segments;
    stw_load_piece *pieces; /* NULL: pieces of the flat space (sharded_read) */
    uint32_t n_pieces;
    stw_dtype *dtypes;    /* [n_tensors] in which load pieces come; the same on every rank */
    stw_weights *weights; /* NULL on ranks that read nothing */

    stw_device_config config;
    stw_device *device;
    stw_comm *comm;
    stw_threads *readers; /* for reading one piece by several threads */
    stw_streams *streams;
    stw_schedule *schedules[STW_N_PHASES]; /* NULL: not executed */

    pthread_mutex_t mutex; /* of live, peak and capacity */
    stw_live live;         /* what the arenas hold, by operations issued so far */
    stw_peak peak[STW_N_TIERS];

    uint64_t step;     /* 1 for the first; set between movements */
    float *factors;    /* [options->steps] clip factors */
    double norm;       /* of the last step; NaN without clipping */
    bool broadcasting; /* comm stream only: a broadcast may still run */
    char broadcast_of[128];

    stw_measured measured[STW_N_PHASES];
    double load_s;
    bool copies_only; /* the movement under way leaves norm and updates out */
    double *copies_s; /* [options->steps] of the copies alone */
    double *step_s;   /* [options->steps] of this rank, then of the slowest */
    uint64_t digest[3];
    uint64_t checked, mismatched;
} stw_rank_run;

/* executor_ops.c: what operations do */
STW_MUST_USE stw_status stw_run_issue(stw_rank_run *run, uint32_t op, stw_error *err);
bool stw_run_on_host(const stw_rank_run *run, uint32_t op);
/** Where a component of a bucket lies while its update runs. */
uint64_t stw_run_operand(const stw_rank_run *run, const stw_bucket *bucket,
                         stw_component component);

/* executor_load.c: pieces of weights */
STW_MUST_USE stw_status stw_load_read(stw_rank_run *run, const stw_op *op, stw_error *err);
STW_MUST_USE stw_status stw_load_place(stw_rank_run *run, const stw_op *op, stw_error *err);
/** Bytes of a piece in its slot, in the dtype in which it comes. */
uint64_t stw_load_piece_bytes(const stw_rank_run *run, uint32_t piece);
const char *stw_load_piece_name(const stw_rank_run *run, uint32_t piece);
/** Open weights where this rank reads, agree on dtypes, prepare pieces. Collective. */
STW_MUST_USE stw_status stw_load_prepare(stw_rank_run *run, stw_error *err);

/* executor_check.c: gradients before, digests and a replay after */
STW_MUST_USE stw_status stw_run_zero_moments(stw_rank_run *run, stw_error *err);
STW_MUST_USE stw_status stw_run_seed_grads(stw_rank_run *run, uint64_t step, stw_error *err);
STW_MUST_USE stw_status stw_run_digest(stw_rank_run *run, stw_error *err);
STW_MUST_USE stw_status stw_run_verify(stw_rank_run *run, stw_error *err);

/* executor_result.c: what was measured */
void stw_run_count(stw_rank_run *run, const stw_op *op);
STW_MUST_USE stw_status stw_run_note_phase(stw_rank_run *run, stw_phase phase, stw_error *err);
/** Gather to all; only rank 0 makes a result. Collective. */
STW_MUST_USE stw_status stw_run_collect(stw_rank_run *run, stw_run_result **out, stw_error *err);
/** stw_comm_gather in parts that fit the scratch of a transport. */
STW_MUST_USE stw_status stw_run_gather(stw_rank_run *run, const void *mine, void *out,
                                       uint64_t bytes, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A problem under construction: the sums of its programs, and the rows made of them. problem.c
 * fills a stw_build and calls the functions below; rows belong to the problem. */
#ifndef STW_PLANNER_ROWS_H
#define STW_PLANNER_ROWS_H

#include "planner/cost.h"
#include "planner/reading.h"
#include "planner/simulate.h"

/** Bytes that a place needs: per unit, and once if it has any unit. */
typedef struct stw_place_bytes {
    uint64_t unit[STW_N_INSTANTS][STW_N_MEMORIES], once[STW_N_INSTANTS][STW_N_MEMORIES];
} stw_place_bytes;

typedef struct stw_build {
    stw_cost *cost;
    stw_pool *pool;                   /* of what is needed only while rows are made */
    stw_program **programs;           /* [n_places][STW_N_ACTS] see stw_build_program */
    stw_place_bytes *bytes;           /* [n_kinds][n_places][n_rings] */
    stw_flow *flows;                  /* [n_places][n_rings] of the largest kind */
    stw_flow *best_flows;             /* the same, all caches left to each place */
    stw_saved_acts saved[STW_N_ACTS]; /* n 0: not read */
    uint64_t *stash_bytes;            /* [n_acts] of activations on the host, per block */
    uint64_t *staging_bytes;          /* [n_kinds][n_loads][STW_N_TIERS] of the load */
    uint64_t context_bytes, process_bytes;
    bool seconds; /* rows of seconds are made */
    bool rough;   /* counts of blocks on straight lines are not simulated */
    stw_planner_simulate simulate;
    double *step_s; /* [n_places][n_rings] simulated, if all units share one place */
    bool page_tables;
    uint32_t *instants; /* [n_kinds] see stw_byte_reading */
} stw_build;

static inline const stw_flow *stw_build_flow(const stw_build *b, uint32_t p, uint32_t r) {
    return &b->flows[p * b->cost->n_rings + r];
}
/** True if rows of seconds are simulated; else they are sums. */
static inline bool stw_build_simulates(const stw_build *b) {
    return b->seconds && b->cost->whole && b->simulate != NULL;
}
static inline const stw_place_bytes *stw_build_bytes(const stw_build *b, uint32_t kind, uint32_t p,
                                                     uint32_t r) {
    return &b->bytes[(kind * b->cost->n_places + p) * b->cost->n_rings + r];
}
/** Returns the factor from a flow's average bucket to one unit. */
static inline double stw_flow_per_unit(const stw_cost *cost, const stw_flow *flow) {
    double params = (double)flow->params;
    return params > 0 ? flow->buckets * (double)cost->job->unit_params / params : 0;
}

/* ---- rows.c ---- */

/** Build the program of all units in one place with one policy for all blocks, over the whole space
 * of the largest kind. It is kept until the problem is built. It is for forward and backward, so
 * places with params and grads in the same tiers share one program. */
STW_MUST_USE stw_status stw_build_program(stw_build *b, uint32_t place, stw_act act,
                                          const stw_program **out, stw_error *err);
/** Returns the bytes of load staging of a kind of rank. */
uint64_t stw_build_staging(const stw_build *b, uint32_t kind, uint32_t load, stw_tier tier);
/** Returns the most of all kinds. */
uint64_t stw_build_most_staging(const stw_build *b, uint32_t load, stw_tier tier);
/** Add a row; NULL: out of memory. */
stw_byte_row *stw_row_bytes(stw_cost *cost, stw_phase phase, stw_tier tier, const char *resource,
                            uint64_t limit_bytes, const char *format, ...) STW_PRINTF(6, 7);
stw_time_row *stw_row_seconds(stw_cost *cost, stw_stretch stretch, const char *format, ...)
    STW_PRINTF(3, 4);
/** Add to a row the bytes that `ranks` ranks of a kind hold at an instant in the row's tier. */
void stw_row_add_places(const stw_build *b, stw_instant at, uint32_t kind, uint64_t ranks,
                        stw_byte_row *row);
/** Add a GPU row of the largest kind with the bytes of its places at an instant, the context, and
 * the page tables of the host arena. */
stw_byte_row *stw_row_gpu(const stw_build *b, stw_phase phase, stw_instant at, const char *name);
/** The same for any kind of rank. */
stw_byte_row *stw_row_gpu_of(const stw_build *b, uint32_t kind, stw_phase phase, stw_instant at,
                             const char *name);

/* ---- called by problem.c, in this order ---- */

/** Add rows of GPU bytes of load and step, then of forward and backward. */
STW_MUST_USE stw_status stw_rows_add_gpu(const stw_build *b, stw_error *err);
STW_MUST_USE stw_status stw_rows_add_forward_bytes(stw_build *b, stw_error *err);
/** Raise the rows of forward and backward to the bytes of mixed policies, if programs with one
 * policy do not show them. (rows_mixed.c) */
STW_MUST_USE stw_status stw_rows_add_mixed(const stw_build *b, stw_error *err);
/** Add rows of forward, backward and step for every kind of rank of an engine with pipeline stages.
 * (rows_stages.c) */
STW_MUST_USE stw_status stw_rows_add_stages(stw_build *b, stw_error *err);
STW_MUST_USE stw_status stw_rows_add_nodes(const stw_build *b, stw_error *err);
/** Add rows of seconds. stw_rows_add_loads fills load_s and load_unit_s instead. */
STW_MUST_USE stw_status stw_rows_add_step(const stw_build *b, stw_error *err);
STW_MUST_USE stw_status stw_rows_add_sharing(const stw_build *b, stw_error *err);
STW_MUST_USE stw_status stw_rows_add_step_proof(const stw_build *b, stw_error *err);
STW_MUST_USE stw_status stw_rows_add_sharing_proof(const stw_build *b, stw_error *err);
STW_MUST_USE stw_status stw_rows_add_forward_seconds(stw_build *b, stw_error *err);
/** Add simulated rows of step, forward and backward if all units share one place. (rows_whole.c) */
STW_MUST_USE stw_status stw_rows_add_whole(stw_build *b, stw_error *err);
STW_MUST_USE stw_status stw_rows_add_loads(stw_build *b, stw_error *err);

/** Rows added between these two calls are proof rows. */
typedef struct stw_rows_kept {
    stw_time_row *rows;
    uint32_t n;
    size_t room;
} stw_rows_kept;
stw_rows_kept stw_proof_begin(stw_cost *cost);
void stw_proof_end(stw_cost *cost, const stw_rows_kept *kept);

/** Returns the speed of copies while both directions are busy; 1: as if alone. (rows_sharing.c) */
double stw_shared_copy_speed(const stw_job *job);
/** Returns the seconds that copies of one direction lose per second of copies in the other
 * direction, unrounded. */
double stw_copies_slowed(const stw_job *job);

#endif

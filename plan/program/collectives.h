/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of a rank's program by group, as a profiler of the framework would count them:
 * how often each is issued in one iteration (or in a load or a first step), and the bytes of its
 * full results. Pure; any thread. */
#ifndef STW_PLAN_COLLECTIVES_H
#define STW_PLAN_COLLECTIVES_H

#include "plan/program/program.h"

typedef struct stw_collectives_row {
    stw_phase phase;
    stw_rank_group group;
    uint32_t ranks; /* ranks in the group */
    stw_op_kind kind;
    stw_tier tier;  /* tier of the result */
    uint64_t count; /* collectives */
    uint64_t bytes; /* full results of all of them; reduce-scatter: whole inputs; all-to-all: what
                       one rank sends to all ranks */
} stw_collectives_row;

typedef struct stw_collectives {
    uint32_t n;
    stw_collectives_row *rows; /* by movement, in the order of first issue */
} stw_collectives;

/** List the collectives. A group of one rank issues none.
 * @param pool owns the rows */
STW_MUST_USE stw_status stw_program_collectives(const stw_job *job, const stw_program *program,
                                                stw_pool *pool, stw_collectives *out,
                                                stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank's program asks of each group of ranks, as a profiler of the framework would count it:
 * how often a collective is issued in one iteration (or in a load or a first step), and the bytes
 * of its full results. Pure; any thread. */
#ifndef STW_PLAN_COLLECTIVES_H
#define STW_PLAN_COLLECTIVES_H

#include "plan/program/program.h"

typedef struct stw_collectives_row {
    stw_phase phase;
    stw_rank_group group;
    uint32_t ranks; /* of the group */
    stw_op_kind kind;
    stw_tier tier;  /* where the result appears */
    uint64_t count; /* collectives */
    uint64_t bytes; /* of all of them: full results; of a reduce-scatter its whole input, of an
                       all-to-all what one rank has for all */
} stw_collectives_row;

typedef struct stw_collectives {
    uint32_t n;
    stw_collectives_row *rows; /* by movement, in the order in which they are first issued */
} stw_collectives;

/** Groups of one rank issue nothing.
 * @param pool owns the rows */
STW_MUST_USE stw_status stw_program_collectives(const stw_job *job, const stw_program *program,
                                                stw_pool *pool, stw_collectives *out,
                                                stw_error *err);

#endif

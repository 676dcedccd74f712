/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's problem (cost.h) as a mixed-integer linear program. Bytes are in MiB; times are in
 * microseconds, or seconds where the program is exported: solvers have absolute tolerances (GLPK's
 * presolver moves bounds by 1e-3), which are too coarse for seconds.
 *
 * With one ring option the products of units and ring option vanish. The solver works on such
 * problems, one for each option; the whole one, with all options, is what --write-lp exports. */
#ifndef STW_PLANNER_FORMULATION_H
#define STW_PLANNER_FORMULATION_H

#include "planner/cost.h"
#include "planner/milp.h"
#include "planner/solvers.h"

typedef enum stw_ilp_goal {
    STW_GOAL_SECONDS,
    STW_GOAL_OVER /* the sum over resources of what is over, as a share of the limit */
} stw_ilp_goal;

typedef struct stw_ilp_shape {
    stw_ilp_goal goal;
    uint32_t first_ring, n_rings; /* options that the problem has */
    stw_bars bars;
    bool units_split; /* units may be fractions */
    bool elastic;     /* rows of bytes may be exceeded */
    double most_over; /* elastic: at most this much over; INFINITY: any */
    double most_s;    /* > 0: of the objective in seconds */
    bool in_seconds;
} stw_ilp_shape;

/* Where the columns of a problem lie. */
typedef struct stw_ilp_map {
    uint32_t stretch_s;  /* [STW_N_STRETCHES] */
    uint32_t units;      /* [n_places] */
    uint32_t ring;       /* [n_rings] one-hot */
    uint32_t load;       /* [n_loads] one-hot */
    uint32_t acts;       /* [n_acts] */
    uint32_t acts_used;  /* [n_acts] is there any block with the policy? */
    uint32_t acts_last;  /* [n_acts] are there STW_LAST_BLOCKS? STW_NO_COLUMN: no row asks */
    uint32_t ring_units; /* [n_places][n_rings], STW_NO_COLUMN: one option, the units themselves */
    uint32_t ring_used;  /* [n_uses][n_rings] */
} stw_ilp_map;

#define STW_NO_COLUMN UINT32_MAX

typedef struct stw_ilp {
    const stw_cost *cost;
    stw_milp *milp;
    stw_ilp_map at;
    stw_ilp_shape shape;
} stw_ilp;

/** Build the program of a problem. @param ilp out; free ilp->milp with stw_milp_free, also on
 * failure */
STW_MUST_USE stw_status stw_ilp_build(const stw_cost *cost, const stw_ilp_shape *shape,
                                      stw_ilp *ilp, stw_error *err);
/** Build and solve it. A solver that fails has no answer, as one whose time is over.
 * @param choice out, rounded; untouched without a solution */
STW_MUST_USE stw_status stw_ilp_solve_shape(const stw_cost *cost, const stw_ilp_shape *shape,
                                            const stw_milp_options *options, stw_choice *choice,
                                            stw_milp_result *solved, stw_error *err);

#endif

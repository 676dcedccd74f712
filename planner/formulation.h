/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's problem (cost.h) as a mixed-integer linear program. Bytes are in MiB. Times are in
 * microseconds, because solvers have absolute tolerances (GLPK's presolver moves bounds by 1e-3)
 * that are too coarse for seconds; an exported program has seconds.
 *
 * With one ring option the products of units and ring option vanish. The solver solves one such
 * problem per option; --write-lp exports the whole problem with all options. */
#ifndef STW_PLANNER_FORMULATION_H
#define STW_PLANNER_FORMULATION_H

#include "planner/cost.h"
#include "planner/milp.h"
#include "planner/solvers.h"

typedef enum stw_ilp_goal {
    STW_GOAL_SECONDS,
    STW_GOAL_OVER /* the sum over resources of the excess as a share of the limit */
} stw_ilp_goal;

typedef struct stw_ilp_shape {
    stw_ilp_goal goal;
    uint32_t first_ring, n_rings; /* the ring options of the problem */
    stw_bars bars;
    bool units_split; /* units may be fractions */
    bool elastic;     /* rows of bytes may be exceeded */
    double most_over; /* elastic: largest excess; INFINITY: any */
    double most_s;    /* > 0: upper bound on the objective, in seconds */
    bool in_seconds;
} stw_ilp_shape;

/* The first column of each part of a problem. */
typedef struct stw_ilp_map {
    uint32_t stretch_s;  /* [STW_N_STRETCHES] */
    uint32_t units;      /* [n_places] */
    uint32_t ring;       /* [n_rings] one-hot */
    uint32_t load;       /* [n_loads] one-hot */
    uint32_t acts;       /* [n_acts] */
    uint32_t acts_used;  /* [n_acts] 1 if any block has the policy */
    uint32_t acts_last;  /* [n_acts] 1 if STW_LAST_BLOCKS blocks have it; STW_NO_COLUMN: not
                            needed */
    uint32_t ring_units; /* [n_places][n_rings], STW_NO_COLUMN: one option; then the units
                            themselves */
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
/** Build and solve it. A failure of the solver counts as its time limit: no answer.
 * @param choice out, rounded; unchanged without a solution */
STW_MUST_USE stw_status stw_ilp_solve_shape(const stw_cost *cost, const stw_ilp_shape *shape,
                                            const stw_milp_options *options, stw_choice *choice,
                                            stw_milp_result *solved, stw_error *err);

#endif

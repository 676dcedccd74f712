/* SPDX-License-Identifier: Apache-2.0 */
/* The solvers of the planner's one problem (cost.h). Each leaves its answer in a stw_choice whose
 * acts the caller made (stw_choice_new). One thread at a time for the ILP. */
#ifndef STW_PLANNER_SOLVERS_H
#define STW_PLANNER_SOLVERS_H

#include "planner/cost.h"
#include "planner/milp.h"

typedef struct stw_ilp_options {
    double time_limit_s;
    double gap;          /* 0 asks for a proof */
    bool no_solver;      /* least over: by the descents alone, as where the solver fails */
    uint32_t most_nodes; /* > 0: of each search; so that the answer depends on no clock */
    bool quick;          /* what rounding finds will do: do not ask for whole units */
    stw_bars bars;
    double most_s; /* > 0: choices that take longer are of no interest (STW_MILP_CUT_OFF) */
} stw_ilp_options;

#define STW_MAX_STAGES 4

typedef struct stw_ilp_result {
    stw_milp_outcome outcome; /* of stage 1 */
    bool by_descents;         /* the solver had no answer: the choice is no program's optimum */
    uint32_t rows, columns;   /* of the problem of one ring option */
    uint64_t nodes;           /* of all searches */
    uint32_t n_stages;
    const char *stage_names[STW_MAX_STAGES];
    stw_milp_result stages[STW_MAX_STAGES];
    double seconds;
} stw_ilp_result;

/** Least seconds. Every ring option is a problem of its own: those whose linear relaxation is no
 * better than what is known are left out, the others are solved with it as a cutoff. A solver that
 * fails counts as one whose time is over. */
STW_MUST_USE stw_status stw_ilp_solve(const stw_cost *cost, const stw_ilp_options *options,
                                      stw_choice *choice, stw_ilp_result *result, stw_error *err);
/** Write the program, with all ring options in one, in CPLEX LP format. */
STW_MUST_USE stw_status stw_ilp_write(const stw_cost *cost, const stw_bars *bars, const char *path,
                                      stw_error *err);
/** For problems in which nothing fits: the choice that is the least over. That is, in this order:
 * the smallest sum over memories (GPU, and each kind of node's host memory, page-locked memory and
 * NVMe) of the bytes by which the worst instant exceeds the limit, each as a share of that limit
 * (of 1 GiB where it is smaller); then, within 1e-4 of it, the fewest bytes in all memories; then
 * the least seconds. A choice is always found, also where the solver fails or its time is over: a
 * descent on the rows stands in. */
STW_MUST_USE stw_status stw_ilp_solve_least_over(const stw_cost *cost,
                                                 const stw_ilp_options *options, stw_choice *choice,
                                                 stw_ilp_result *result, stw_error *err);

/* ---- local.c ---- */

/** Is `a` less over the limits than `b`, as a share of them: what one memory has over may be worse
 * than as many bytes of another. Where that is equal, to a share of `same`: of choices that do not
 * fit the one with fewer bytes, else the one with fewer seconds. */
bool stw_evaluation_is_better(const stw_evaluation *a, const stw_evaluation *b, double same);

/** Units from one place to another, or blocks from one option of a group to another. */
typedef struct stw_unit_move {
    uint32_t from, to, units;
} stw_unit_move;

/** @return false, with the choice unchanged, where shares, bars or counts forbid the move */
bool stw_move_units(const stw_cost *cost, const stw_bars *bars, const stw_unit_move *move,
                    stw_choice *choice);
bool stw_move_blocks(const stw_cost *cost, const stw_bars *bars, const stw_unit_move *move,
                     stw_choice *choice);
/** Move units and blocks, at most `most` at a time, and try every load, while that makes the choice
 * better (stw_evaluation_is_better). */
void stw_choice_descend(const stw_cost *cost, const stw_bars *bars, uint32_t most,
                        stw_choice *choice, stw_evaluation *evaluation);
/** Whole units and blocks from fractions: shares and groups keep their sums.
 * @param units [n_places] @param blocks [n_acts] */
void stw_choice_round(const stw_cost *cost, const double *units, const double *blocks,
                      stw_choice *choice);

#endif

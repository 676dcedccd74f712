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
    bool no_solver;      /* least over: use descents only, as if the solver failed */
    uint32_t most_nodes; /* > 0: limit of each search, so that the answer does not depend on the
                            clock */
    bool quick;          /* accept the rounded relaxation; do not solve for whole units */
    stw_bars bars;
    double most_s; /* > 0: ignore slower choices (STW_MILP_CUT_OFF) */
} stw_ilp_options;

#define STW_MAX_STAGES 4

typedef struct stw_ilp_result {
    stw_milp_outcome outcome; /* outcome of stage 1 */
    bool by_descents;         /* the solver had no answer; the choice comes from descents */
    uint32_t rows, columns;   /* size of the problem with one ring option */
    uint64_t nodes;           /* nodes of all searches */
    uint32_t n_stages;
    const char *stage_names[STW_MAX_STAGES];
    stw_milp_result stages[STW_MAX_STAGES];
    double seconds;
} stw_ilp_result;

/** Minimise seconds. Every ring option is a problem of its own. Problems whose linear relaxation is
 * not better than the best known choice are skipped; the others are solved with that choice as a
 * cutoff. A failure of the solver counts as its time limit. */
STW_MUST_USE stw_status stw_ilp_solve(const stw_cost *cost, const stw_ilp_options *options,
                                      stw_choice *choice, stw_ilp_result *result, stw_error *err);
/** Write the program, with all ring options in one, in CPLEX LP format. */
STW_MUST_USE stw_status stw_ilp_write(const stw_cost *cost, const stw_bars *bars, const char *path,
                                      stw_error *err);
/** Find the least-over choice of a problem in which nothing fits. It has the smallest sum over
 * memories (GPU, and each kind of node's host memory, page-locked memory and NVMe) of the worst
 * instant's excess as a share of the limit (of 1 GiB if the limit is smaller); then, within 1e-4 of
 * it, the fewest bytes in all memories; then the fewest seconds. A choice is always found: if the
 * solver fails or its time is over, a descent on the rows replaces it. */
STW_MUST_USE stw_status stw_ilp_solve_least_over(const stw_cost *cost,
                                                 const stw_ilp_options *options, stw_choice *choice,
                                                 stw_ilp_result *result, stw_error *err);

/* ---- local.c ---- */

/** True if `a` exceeds the limits by a smaller share than `b`. If the shares are equal up to
 * `same`: of choices that do not fit the one with fewer bytes is better, else the one with fewer
 * seconds. */
bool stw_evaluation_is_better(const stw_evaluation *a, const stw_evaluation *b, double same);

/** A move of units from one place to another, or of blocks from one option of a group to
 * another. */
typedef struct stw_unit_move {
    uint32_t from, to, units;
} stw_unit_move;

/** Apply a move. @return false, with the choice unchanged, if shares, bars or counts forbid it */
bool stw_move_units(const stw_cost *cost, const stw_bars *bars, const stw_unit_move *move,
                    stw_choice *choice);
bool stw_move_blocks(const stw_cost *cost, const stw_bars *bars, const stw_unit_move *move,
                     stw_choice *choice);
/** Move units and blocks, at most `most` at a time, and try every load, while that makes the choice
 * better (stw_evaluation_is_better). */
void stw_choice_descend(const stw_cost *cost, const stw_bars *bars, uint32_t most,
                        stw_choice *choice, stw_evaluation *evaluation);
/** Round fractions to whole units and blocks, so that shares and groups keep their sums.
 * @param units [n_places]
 * @param blocks [n_acts] */
void stw_choice_round(const stw_cost *cost, const double *units, const double *blocks,
                      stw_choice *choice);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A mixed-integer linear program as plain data: columns, rows, terms. The planner builds one
 * without knowing a solver; glpk_solver.c, the only file that includes glpk.h, solves it. A problem
 * owns everything in its pool. Building functions return no errors: stw_milp_check and the solver
 * report them later (memory, an index out of range). One thread at a time. */
#ifndef STW_PLANNER_MILP_H
#define STW_PLANNER_MILP_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/pool.h"
#include "core/status.h"

typedef struct stw_milp_column {
    const char *name; /* valid in CPLEX LP files: a letter first, then letters, digits, '_' */
    bool integer;
    double lower, upper; /* -INFINITY and INFINITY: unbounded */
    double objective;
} stw_milp_column;

typedef struct stw_milp_row {
    const char *name;
    double lower, upper;
    size_t first_term, n_terms;
} stw_milp_row;

typedef struct stw_milp_term {
    uint32_t column;
    double value;
} stw_milp_term;

typedef struct stw_milp {
    stw_pool *pool;
    const char *name;
    uint32_t n_columns, n_rows;
    size_t n_terms;
    stw_milp_column *columns;
    stw_milp_row *rows;
    stw_milp_term *terms;
    size_t column_room, row_room, term_room;
    bool out_of_memory, misused;
} stw_milp;

/** Make an empty minimisation problem; NULL: out of memory. Free with stw_milp_free. */
stw_milp *stw_milp_new(const char *name);
void stw_milp_free(stw_milp *milp);
/** Add a column. @return its index */
uint32_t stw_milp_column_add(stw_milp *milp, bool integer, double lower, double upper,
                             double objective, const char *format, ...) STW_PRINTF(6, 7);
/** Begin a row; the terms that follow belong to it. @return its index */
uint32_t stw_milp_row_add(stw_milp *milp, double lower, double upper, const char *format, ...)
    STW_PRINTF(4, 5);
/** Add `value` x `column` to the last row; a zero is ignored. A column may occur once per row. */
void stw_milp_term_add(stw_milp *milp, uint32_t column, double value);
/** Returns OK, or the first error of building: NO_MEMORY or BUG. */
STW_MUST_USE stw_status stw_milp_check(const stw_milp *milp, stw_error *err);

typedef struct stw_milp_options {
    double time_limit_s; /* > 0 */
    double gap;          /* relative; 0 asks for a proof */
    bool relaxed;        /* solve the linear relaxation only: objective and bound are its value */
    uint32_t max_nodes;  /* > 0: after this many nodes a gap of `enough` suffices */
    double enough;
    uint32_t most_nodes; /* > 0: the search ends after this many nodes, with or without a
                            solution */
    int memory_mib; /* > 0: the solver's memory limit; beyond it the call fails with NO_MEMORY */
} stw_milp_options;

typedef enum stw_milp_outcome {
    STW_MILP_OPTIMAL,    /* within the requested gap */
    STW_MILP_FEASIBLE,   /* a solution, but the time was over */
    STW_MILP_INFEASIBLE, /* proved */
    STW_MILP_LIMIT,      /* the time was over without a solution */
    STW_MILP_CUT_OFF     /* proved: no solution is below most_s (stw_ilp_solve) */
} stw_milp_outcome;

static inline bool stw_milp_has_solution(stw_milp_outcome outcome) {
    return outcome == STW_MILP_OPTIMAL || outcome == STW_MILP_FEASIBLE;
}

typedef struct stw_milp_result {
    stw_milp_outcome outcome;
    double objective, bound, gap; /* NaN: none */
    double seconds;
    uint32_t nodes;         /* nodes whose relaxations were solved */
    uint32_t rows, columns; /* size of the problem; filled by stw_ilp_solve_shape */
} stw_milp_result;

/** Write the problem in CPLEX LP format. IO, NO_MEMORY, or SOLVER if the solver failed. */
STW_MUST_USE stw_status stw_milp_write_lp(const stw_milp *milp, const char *path, stw_error *err);
/** Solve.
 * @param values out, [n_columns], unchanged without a solution; integer columns are whole, unless
 * `relaxed`
 * @return SOLVER if the solver failed, NO_MEMORY if it ran out of memory; an infeasible problem is
 * a result, not a failure */
STW_MUST_USE stw_status stw_milp_solve(const stw_milp *milp, const stw_milp_options *options,
                                       double *values, stw_milp_result *result, stw_error *err);
/** Version of the solver behind stw_milp_solve ("5.0"); static text. */
const char *stw_milp_solver_version(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The one file that includes glpk.h. GLPK aborts on misuse unless its error hook leaves by longjmp,
 * after which its environment is inconsistent and must be freed whole (GLPK 5.0 reference manual,
 * glp_error_hook and glp_free_env). It also keeps a per-thread environment: everything here is
 * created, solved and deleted inside one call. Presolve and cuts are off by default in glp_iocp. */
#include <errno.h>
#include <float.h>
#include <glpk.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "core/deadline.h"
#include "core/file.h"
#include "planner/milp.h"

typedef struct stw_glpk_call {
    const stw_milp *milp;
    const stw_milp_options *options;
    double *values;
    stw_milp_result *result;
    stw_error *err;
    stw_pool *pool;
    bool scaled;    /* is the problem at work in the solver's units? */
    double bound;   /* best bound that the tree has proved so far */
    bool cut;       /* does the search hold the cutoff in place of a solution? */
    uint32_t nodes; /* whose relaxations were solved */
    bool stopped;   /* by max_nodes, with a gap that is good enough */
    bool out_of_memory;
    char message[200]; /* what GLPK said first: it is heard only where it fails */
    jmp_buf escape;
} stw_glpk_call;

/* GLPK prints its errors even with its output off. */
static int hear(void *info, const char *text) {
    stw_glpk_call *call = info;
    size_t length = strcspn(text, "\n");
    if (length > 0 && call->message[0] == '\0')
        snprintf(call->message, sizeof call->message, "%.*s", (int)length, text);
    return 1; /* and it is not printed */
}

/* GLPK's words for a failed allocation, its own or one that malloc refused (env/alloc.c). */
static bool tells_of_memory(const char *message) {
    return strstr(message, "no memory available") != NULL ||
           strstr(message, "memory allocation limit exceeded") != NULL;
}

static void leave_glpk(void *info) {
    stw_glpk_call *call = info;
    call->out_of_memory = tells_of_memory(call->message);
    longjmp(call->escape, 1);
}

/* Scale of a column or row, or 1 for a problem that is to be written as it stands. */
static double scale_of(bool scaled, double scale) { return scaled ? scale : 1; }

/* The cutoff in the solver's units. */
static double cutoff_of(const stw_glpk_call *call) {
    return call->options->cutoff * scale_of(call->scaled, call->milp->objective_scale);
}

/* Give the search a solution whose objective is the cutoff: GLPK drops what is not better. It does
 * not look at rows, and no value of it is ever read. */
static void hand_cutoff(glp_tree *tree, stw_glpk_call *call) {
    const stw_milp *milp = call->milp;
    double *values = stw_pool_array(call->pool, (size_t)milp->n_columns + 1, sizeof *values);
    glp_prob *problem = glp_ios_get_prob(tree);
    if (values == NULL) return;
    for (uint32_t c = 0; c < milp->n_columns; c++) {
        const stw_milp_column *column = &milp->columns[c];
        double coefficient = glp_get_obj_coef(problem, (int)c + 1);
        if (column->integer || column->upper < INFINITY || coefficient <= 0) continue;
        values[c + 1] = cutoff_of(call) / coefficient;
        call->cut = glp_ios_heur_sol(tree, values) == 0 || call->cut;
        return;
    }
}

static bool is_enough(const stw_glpk_call *call, glp_tree *tree) {
    glp_prob *problem = glp_ios_get_prob(tree);
    int mip = glp_mip_status(problem);
    if (mip != GLP_FEAS && mip != GLP_OPT) return false;
    double best = glp_mip_obj_val(problem) / scale_of(call->scaled, call->milp->objective_scale);
    return best - call->bound <= call->options->enough * (fabs(best) + DBL_EPSILON);
}

/* Called at every step of the search: keeps the bound, which is gone once the tree is. */
static void watch_tree(glp_tree *tree, void *info) {
    stw_glpk_call *call = info;
    const stw_milp_options *options = call->options;
    int node = glp_ios_best_node(tree);
    if (node == 0) return;
    double bound =
        glp_ios_node_bound(tree, node) / scale_of(call->scaled, call->milp->objective_scale);
    if (bound > call->bound && bound < DBL_MAX / 2) call->bound = bound;
    int reason = glp_ios_reason(tree);
    if (reason == GLP_IHEUR && options->has_cutoff && call->nodes == 0) hand_cutoff(tree, call);
    if (reason == GLP_IHEUR) call->nodes++;
    bool full = options->most_nodes > 0 && call->nodes >= options->most_nodes;
    bool many = options->max_nodes > 0 && call->nodes >= options->max_nodes;
    if (reason == GLP_ISELECT && (full || (many && is_enough(call, tree)))) {
        call->stopped = true;
        glp_ios_terminate(tree);
    }
}

static int bound_kind(double lower, double upper) {
    if (lower == -INFINITY) return upper == INFINITY ? GLP_FR : GLP_UP;
    if (upper == INFINITY) return GLP_LO;
    return lower == upper ? GLP_FX : GLP_DB;
}

static void load_columns(glp_prob *problem, const stw_milp *milp, bool scaled) {
    glp_set_prob_name(problem, milp->name);
    glp_set_obj_name(problem, "objective");
    glp_set_obj_dir(problem, GLP_MIN);
    if (milp->n_columns > 0) glp_add_cols(problem, (int)milp->n_columns);
    if (milp->n_rows > 0) glp_add_rows(problem, (int)milp->n_rows);
    for (uint32_t c = 0; c < milp->n_columns; c++) {
        const stw_milp_column *column = &milp->columns[c];
        int j = (int)c + 1;
        glp_set_col_name(problem, j, column->name);
        if (column->integer) glp_set_col_kind(problem, j, GLP_IV);
        double scale = scale_of(scaled, column->scale);
        glp_set_col_bnds(problem, j, bound_kind(column->lower, column->upper),
                         column->lower / scale, column->upper / scale);
        glp_set_obj_coef(problem, j,
                         column->objective * scale * scale_of(scaled, milp->objective_scale));
    }
}

/* Terms of all rows at once, in GLPK's arrays that start at 1. They lie in the call's pool, which
 * outlives an escape from GLPK. */
static stw_status load_rows(glp_prob *problem, stw_glpk_call *call, bool scaled) {
    const stw_milp *milp = call->milp;
    int *rows = stw_pool_array(call->pool, milp->n_terms + 1, sizeof *rows);
    int *columns = stw_pool_array(call->pool, milp->n_terms + 1, sizeof *columns);
    double *values = stw_pool_array(call->pool, milp->n_terms + 1, sizeof *values);
    if (rows == NULL || columns == NULL || values == NULL)
        return stw_fail(call->err, STW_STATUS_NO_MEMORY, milp->name, "no memory for the terms");
    for (uint32_t r = 0; r < milp->n_rows; r++) {
        const stw_milp_row *row = &milp->rows[r];
        int i = (int)r + 1;
        double scale = scale_of(scaled, row->scale);
        glp_set_row_name(problem, i, row->name);
        glp_set_row_bnds(problem, i, bound_kind(row->lower, row->upper), row->lower * scale,
                         row->upper * scale);
        for (size_t t = row->first_term; t < row->first_term + row->n_terms; t++) {
            rows[t + 1] = i;
            columns[t + 1] = (int)milp->terms[t].column + 1;
            values[t + 1] = milp->terms[t].value * scale *
                            scale_of(scaled, milp->columns[milp->terms[t].column].scale);
        }
    }
    glp_load_matrix(problem, (int)milp->n_terms, rows, columns, values);
    return STW_STATUS_OK;
}

/* Is what the search holds the cutoff itself? Then there is nothing below it. */
static bool is_cutoff(glp_prob *problem, const stw_glpk_call *call) {
    return call->cut && glp_mip_obj_val(problem) >= cutoff_of(call) * (1 - 1e-12);
}

static void take_cutoff(stw_glpk_call *call, bool proved) {
    stw_milp_result *result = call->result;
    double cutoff = call->options->cutoff;
    double least = proved ? cutoff - call->options->gap * fabs(cutoff) : -DBL_MAX;
    result->outcome = proved ? STW_MILP_CUT_OFF : STW_MILP_LIMIT;
    result->bound = fmin(fmax(call->bound, least), cutoff);
}

static void take_solution(glp_prob *problem, stw_glpk_call *call) {
    stw_milp_result *result = call->result;
    const stw_milp *milp = call->milp;
    result->objective = glp_mip_obj_val(problem) / scale_of(call->scaled, milp->objective_scale);
    for (uint32_t c = 0; c < milp->n_columns; c++) {
        double value =
            glp_mip_col_val(problem, (int)c + 1) * scale_of(call->scaled, milp->columns[c].scale);
        call->values[c] = milp->columns[c].integer ? round(value) : value;
    }
    if (result->outcome == STW_MILP_OPTIMAL) {
        /* The search ended within the gap asked for; the last bound seen may lag behind it. */
        double proved =
            result->objective - call->options->gap * (fabs(result->objective) + DBL_EPSILON);
        result->bound = call->bound > proved ? call->bound : proved;
    } else {
        result->bound = call->bound;
    }
    if (result->bound > result->objective) result->bound = result->objective;
    result->gap = (result->objective - result->bound) / (fabs(result->objective) + DBL_EPSILON);
}

static stw_status judge_end(glp_prob *problem, int end, stw_glpk_call *call) {
    stw_milp_result *result = call->result;
    int mip = glp_mip_status(problem);
    bool found = mip == GLP_OPT || mip == GLP_FEAS;
    if (found && is_cutoff(problem, call)) {
        bool enough = call->stopped && isfinite(call->options->enough);
        take_cutoff(call, end == 0 || end == GLP_EMIPGAP || enough);
        return STW_STATUS_OK;
    }
    if (end == GLP_ENOPFS || (end == 0 && mip == GLP_NOFEAS)) {
        result->outcome = STW_MILP_INFEASIBLE;
    } else if (end == 0 || end == GLP_EMIPGAP) {
        result->outcome = found ? STW_MILP_OPTIMAL : STW_MILP_LIMIT;
    } else if (end == GLP_ETMLIM || end == GLP_ESTOP) {
        result->outcome = found ? STW_MILP_FEASIBLE : STW_MILP_LIMIT;
        if (!found && call->bound > -DBL_MAX / 2) result->bound = call->bound;
    } else { /* the simplex gave up: as if its time were over */
        result->outcome = found ? STW_MILP_FEASIBLE : STW_MILP_LIMIT;
        if (!found && call->bound > -DBL_MAX / 2) result->bound = call->bound;
    }
    if (found) take_solution(problem, call);
    return STW_STATUS_OK;
}

static stw_status write_lp(stw_glpk_call *call) {
    stw_status status = STW_STATUS_OK;
    const char *path = call->options->write_lp;
    glp_prob *problem = glp_create_prob();
    load_columns(problem, call->milp, false);
    STW_TRY(load_rows(problem, call, false));
    errno = 0;
    if (glp_write_lp(problem, NULL, path) != 0)
        status = stw_fail_native(call->err, stw_errno_status(errno), errno, path,
                                 "the problem cannot be written: %s",
                                 errno != 0 ? strerror(errno) : "GLPK failed");
out:
    glp_delete_prob(problem);
    return status;
}

static int milliseconds(double seconds) {
    return seconds < 1e-3 ? 1 : seconds > 1e6 ? 1000000000 : (int)(seconds * 1000);
}

/* The LP relaxation by the dual simplex, on which the search without presolve stands.
 * @return as glp_intopt does */
static int relax(glp_prob *problem, double time_limit_s) {
    glp_smcp control;
    glp_init_smcp(&control);
    control.msg_lev = GLP_MSG_OFF;
    control.presolve = GLP_ON;
    control.meth = GLP_DUALP;
    control.tm_lim = milliseconds(time_limit_s);
    int end = glp_simplex(problem, &control);
    if (end == 0 && glp_get_status(problem) == GLP_NOFEAS) return GLP_ENOPFS;
    return end;
}

/* Without cuts: the planner's sums of quanta do what they would, and the simplex can cycle on rows
 * of fractional cuts. The node with the least bound is next, because a gap is asked for. */
static int search(glp_prob *problem, stw_glpk_call *call, bool presolve, double time_limit_s) {
    glp_iocp control;
    glp_init_iocp(&control);
    control.msg_lev = GLP_MSG_OFF;
    control.presolve = presolve ? GLP_ON : GLP_OFF;
    control.br_tech = GLP_BR_PCH;
    control.bt_tech = GLP_BT_BLB;
    control.mip_gap = call->options->gap;
    control.tm_lim = milliseconds(time_limit_s);
    control.cb_func = watch_tree;
    control.cb_info = call;
    return glp_intopt(problem, &control);
}

/* The root comes from the dual simplex first: the primal one, which glp_intopt uses where it
 * presolves itself, cycles on some of these problems. An attempt whose root is not solved in its
 * slice of the time is given up for the next. */
static const struct {
    bool presolve, scaled;
    double root_s;
} attempts[] = {{false, true, 2}, {true, true, 2}, {false, false, 2}, {true, false, INFINITY}};

#define N_ATTEMPTS (sizeof attempts / sizeof attempts[0])

static int run_attempt(glp_prob *problem, stw_glpk_call *call, size_t i, double left_s) {
    call->cut = call->stopped = false;
    call->nodes = 0;
    double slice_s = left_s < attempts[i].root_s ? left_s : attempts[i].root_s;
    double start_s = stw_now_s();
    int end = attempts[i].presolve ? search(problem, call, true, slice_s) : relax(problem, slice_s);
    double rest_s = left_s - (stw_now_s() - start_s);
    if (!attempts[i].presolve && end == 0) return search(problem, call, false, rest_s);
    bool bounded = call->bound > -DBL_MAX / 2;
    if (end == GLP_ETMLIM && bounded && rest_s > 0) return search(problem, call, true, rest_s);
    return end;
}

/* The value of the relaxation alone. */
static stw_status take_relaxation(glp_prob *problem, int end, stw_glpk_call *call) {
    stw_milp_result *result = call->result;
    const stw_milp *milp = call->milp;
    if (end == GLP_ENOPFS) {
        result->outcome = STW_MILP_INFEASIBLE;
    } else if (end == 0 && glp_get_status(problem) == GLP_OPT) {
        result->outcome = STW_MILP_OPTIMAL;
        result->gap = 0;
        result->objective = result->bound = call->bound =
            glp_get_obj_val(problem) / scale_of(call->scaled, milp->objective_scale);
        for (uint32_t c = 0; c < milp->n_columns; c++)
            call->values[c] = glp_get_col_prim(problem, (int)c + 1) *
                              scale_of(call->scaled, milp->columns[c].scale);
    }
    return STW_STATUS_OK;
}

/* Neither an answer nor a bound: the time was over, or the simplex gave up. */
static bool stuck(const stw_glpk_call *call, int end) {
    bool answered = end == 0 || end == GLP_EMIPGAP || end == GLP_ENOPFS;
    return !answered && call->bound <= -DBL_MAX / 2;
}

static stw_status attempt(stw_glpk_call *call, size_t i, double left_s, int *end) {
    glp_prob *problem = glp_create_prob();
    call->scaled = attempts[i].scaled;
    load_columns(problem, call->milp, call->scaled);
    stw_status status = load_rows(problem, call, call->scaled);
    if (status == STW_STATUS_OK && call->options->relaxed) {
        *end = relax(problem, fmin(left_s, attempts[i].root_s));
        status = take_relaxation(problem, *end, call);
    } else if (status == STW_STATUS_OK) {
        *end = run_attempt(problem, call, i, left_s);
        if (!stuck(call, *end) || i + 1 == N_ATTEMPTS) status = judge_end(problem, *end, call);
    }
    glp_delete_prob(problem);
    return status;
}

/* Write the LP file (`i` is LP_FILE) or make an attempt. GLPK leaves a failed assertion by a jump
 * to here, after which nothing of its environment may be used: *broke, and the next attempt starts
 * anew. Separate from its callers so that no local of theirs lives across the jump.
 *
 * GLPK makes its environment in whatever function is called first, and aborts where that fails;
 * hooks cannot be set before. glp_init_env fails with a status. */
#define LP_FILE SIZE_MAX

static stw_status guarded(stw_glpk_call *call, size_t i, double left_s, int *end, bool *broke) {
    if (glp_init_env() > 1) { /* 1: there is one */
        call->out_of_memory = *broke = true;
        snprintf(call->message, sizeof call->message, "no memory available for its environment");
        return STW_STATUS_OK;
    }
    if (setjmp(call->escape) != 0) {
        glp_free_env();
        *broke = true;
        return STW_STATUS_OK;
    }
    glp_term_out(GLP_OFF);
    if (call->options->memory_mib > 0) glp_mem_limit(call->options->memory_mib);
    glp_error_hook(leave_glpk, call);
    glp_term_hook(hear, call);
    stw_status status = i == LP_FILE ? write_lp(call) : attempt(call, i, left_s, end);
    glp_error_hook(NULL, NULL);
    glp_term_hook(NULL, NULL);
    return status;
}

static stw_status broken(const stw_glpk_call *call) {
    return stw_fail(call->err, call->out_of_memory ? STW_STATUS_NO_MEMORY : STW_STATUS_SOLVER,
                    call->milp->name, "GLPK failed: %s", call->message);
}

static stw_status solve(stw_glpk_call *call) {
    double end_s = stw_now_s() + call->options->time_limit_s;
    int end = 0;
    bool broke = false;
    stw_status status = STW_STATUS_OK;
    if (call->options->write_lp != NULL) status = guarded(call, LP_FILE, 0, &end, &broke);
    for (size_t i = 0; status == STW_STATUS_OK && !broke && i < N_ATTEMPTS; i++) {
        double left_s = end_s - stw_now_s();
        status = guarded(call, i, left_s, &end, &broke);
        bool next = i + 1 < N_ATTEMPTS && end_s > stw_now_s() && !call->out_of_memory;
        if (broke && next) {
            broke = false; /* other scaling or another simplex takes another path */
            call->message[0] = '\0';
            call->bound = -DBL_MAX;
            continue;
        }
        if (!stuck(call, end)) break;
    }
    return broke && status == STW_STATUS_OK ? broken(call) : status;
}

static stw_status write_only(stw_glpk_call *call) {
    int end;
    bool broke = false;
    stw_status status = guarded(call, LP_FILE, 0, &end, &broke);
    return broke ? broken(call) : status;
}

stw_status stw_milp_write_lp(const stw_milp *milp, const char *path, stw_error *err) {
    const stw_milp_options options = {.write_lp = path};
    stw_glpk_call call = {.milp = milp, .options = &options, .err = err};
    stw_status status = stw_milp_check(milp, err);
    if (status != STW_STATUS_OK) return status;
    call.pool = stw_pool_new();
    if (call.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, milp->name, "no memory for the solver");
    status = write_only(&call);
    stw_pool_free(call.pool);
    glp_free_env();
    return status;
}

stw_status stw_milp_solve(const stw_milp *milp, const stw_milp_options *options, double *values,
                          stw_milp_result *result, stw_error *err) {
    *result = (stw_milp_result){STW_MILP_LIMIT, NAN, NAN, NAN, 0, 0};
    stw_status status = stw_milp_check(milp, err);
    if (status != STW_STATUS_OK) return status;
    double start_s = stw_now_s();
    stw_glpk_call call = {.milp = milp,
                          .options = options,
                          .values = values,
                          .result = result,
                          .err = err,
                          .bound = -DBL_MAX};
    call.pool = stw_pool_new();
    if (call.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, milp->name, "no memory for the solver");
    status = solve(&call);
    stw_pool_free(call.pool);
    glp_free_env(); /* nothing of GLPK survives a call, not even after an error */
    result->seconds = stw_now_s() - start_s;
    result->nodes = call.nodes;
    return status;
}

const char *stw_milp_solver_version(void) { return glp_version(); }

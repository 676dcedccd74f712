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
    const char *write_lp; /* path: nothing is solved; or NULL */
    double *values;
    stw_milp_result *result;
    stw_error *err;
    stw_pool *pool;
    double bound;   /* best bound that the tree has proved so far */
    uint32_t nodes; /* whose relaxations were solved */
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

static bool is_enough(const stw_glpk_call *call, glp_tree *tree) {
    glp_prob *problem = glp_ios_get_prob(tree);
    int mip = glp_mip_status(problem);
    if (mip != GLP_FEAS && mip != GLP_OPT) return false;
    double best = glp_mip_obj_val(problem);
    return best - call->bound <= call->options->enough * (fabs(best) + DBL_EPSILON);
}

/* Called at every step of the search: keeps the bound, which is gone once the tree is. */
static void watch_tree(glp_tree *tree, void *info) {
    stw_glpk_call *call = info;
    const stw_milp_options *options = call->options;
    int node = glp_ios_best_node(tree);
    if (node == 0) return;
    double bound = glp_ios_node_bound(tree, node);
    if (bound > call->bound && bound < DBL_MAX / 2) call->bound = bound;
    int reason = glp_ios_reason(tree);
    if (reason == GLP_IHEUR) call->nodes++;
    bool full = options->most_nodes > 0 && call->nodes >= options->most_nodes;
    bool many = options->max_nodes > 0 && call->nodes >= options->max_nodes;
    if (reason == GLP_ISELECT && (full || (many && is_enough(call, tree)))) glp_ios_terminate(tree);
}

static int bound_kind(double lower, double upper) {
    if (lower == -INFINITY) return upper == INFINITY ? GLP_FR : GLP_UP;
    if (upper == INFINITY) return GLP_LO;
    return lower == upper ? GLP_FX : GLP_DB;
}

static void load_columns(glp_prob *problem, const stw_milp *milp) {
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
        glp_set_col_bnds(problem, j, bound_kind(column->lower, column->upper), column->lower,
                         column->upper);
        glp_set_obj_coef(problem, j, column->objective);
    }
}

/* Terms of all rows at once, in GLPK's arrays that start at 1. They lie in the call's pool, which
 * outlives an escape from GLPK. */
static stw_status load_rows(glp_prob *problem, stw_glpk_call *call) {
    const stw_milp *milp = call->milp;
    int *rows = stw_pool_array(call->pool, milp->n_terms + 1, sizeof *rows);
    int *columns = stw_pool_array(call->pool, milp->n_terms + 1, sizeof *columns);
    double *values = stw_pool_array(call->pool, milp->n_terms + 1, sizeof *values);
    if (rows == NULL || columns == NULL || values == NULL)
        return stw_fail(call->err, STW_STATUS_NO_MEMORY, milp->name, "no memory for the terms");
    for (uint32_t r = 0; r < milp->n_rows; r++) {
        const stw_milp_row *row = &milp->rows[r];
        int i = (int)r + 1;
        glp_set_row_name(problem, i, row->name);
        glp_set_row_bnds(problem, i, bound_kind(row->lower, row->upper), row->lower, row->upper);
        for (size_t t = row->first_term; t < row->first_term + row->n_terms; t++) {
            rows[t + 1] = i;
            columns[t + 1] = (int)milp->terms[t].column + 1;
            values[t + 1] = milp->terms[t].value;
        }
    }
    glp_load_matrix(problem, (int)milp->n_terms, rows, columns, values);
    return STW_STATUS_OK;
}

static void take_solution(glp_prob *problem, stw_glpk_call *call) {
    stw_milp_result *result = call->result;
    const stw_milp *milp = call->milp;
    result->objective = glp_mip_obj_val(problem);
    for (uint32_t c = 0; c < milp->n_columns; c++) {
        double value = glp_mip_col_val(problem, (int)c + 1);
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

/* A simplex that gave up counts as one whose time is over. */
static void judge_end(glp_prob *problem, int end, stw_glpk_call *call) {
    stw_milp_result *result = call->result;
    const int mip = glp_mip_status(problem);
    const bool found = mip == GLP_OPT || mip == GLP_FEAS, ended = end == 0 || end == GLP_EMIPGAP;
    if (end == GLP_ENOPFS || (end == 0 && mip == GLP_NOFEAS)) {
        result->outcome = STW_MILP_INFEASIBLE;
    } else if (found) {
        result->outcome = ended ? STW_MILP_OPTIMAL : STW_MILP_FEASIBLE;
        take_solution(problem, call);
    } else if (!ended && call->bound > -DBL_MAX / 2) {
        result->bound = call->bound;
    }
}

static stw_status write_lp(stw_glpk_call *call) {
    stw_status status = STW_STATUS_OK;
    const char *path = call->write_lp;
    glp_prob *problem = glp_create_prob();
    load_columns(problem, call->milp);
    STW_TRY(load_rows(problem, call));
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
    bool presolve;
    double root_s;
} attempts[] = {{false, 2}, {true, INFINITY}};

#define N_ATTEMPTS (sizeof attempts / sizeof attempts[0])

static int run_attempt(glp_prob *problem, stw_glpk_call *call, size_t i, double left_s) {
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
static void take_relaxation(glp_prob *problem, int end, stw_glpk_call *call) {
    stw_milp_result *result = call->result;
    if (end == GLP_ENOPFS) result->outcome = STW_MILP_INFEASIBLE;
    if (end != 0 || glp_get_status(problem) != GLP_OPT) return;
    result->outcome = STW_MILP_OPTIMAL;
    result->gap = 0;
    result->objective = result->bound = call->bound = glp_get_obj_val(problem);
    for (uint32_t c = 0; c < call->milp->n_columns; c++)
        call->values[c] = glp_get_col_prim(problem, (int)c + 1);
}

/* Neither an answer nor a bound: the time was over, or the simplex gave up. */
static bool stuck(const stw_glpk_call *call, int end) {
    bool answered = end == 0 || end == GLP_EMIPGAP || end == GLP_ENOPFS;
    return !answered && call->bound <= -DBL_MAX / 2;
}

static stw_status attempt(stw_glpk_call *call, size_t i, double left_s, int *end) {
    glp_prob *problem = glp_create_prob();
    load_columns(problem, call->milp);
    stw_status status = load_rows(problem, call);
    /* unscaled, a search without presolve calls some solvable problems infeasible */
    if (status == STW_STATUS_OK) glp_scale_prob(problem, GLP_SF_AUTO);
    if (status == STW_STATUS_OK && call->options->relaxed) {
        *end = relax(problem, fmin(left_s, attempts[i].root_s));
        take_relaxation(problem, *end, call);
    } else if (status == STW_STATUS_OK) {
        *end = run_attempt(problem, call, i, left_s);
        if (!stuck(call, *end) || i + 1 == N_ATTEMPTS) judge_end(problem, *end, call);
    }
    glp_delete_prob(problem);
    return status;
}

/* Write the LP file or make an attempt. GLPK leaves a failed assertion by a jump
 * to here, after which nothing of its environment may be used: *broke, and the next attempt starts
 * anew. Separate from its callers so that no local of theirs lives across the jump.
 *
 * GLPK makes its environment in whatever function is called first, and aborts where that fails;
 * hooks cannot be set before. glp_init_env fails with a status. */
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
    if (call->write_lp == NULL && call->options->memory_mib > 0)
        glp_mem_limit(call->options->memory_mib);
    glp_error_hook(leave_glpk, call);
    glp_term_hook(hear, call);
    stw_status status = call->write_lp != NULL ? write_lp(call) : attempt(call, i, left_s, end);
    glp_error_hook(NULL, NULL);
    glp_term_hook(NULL, NULL);
    return status;
}

static stw_status broken(const stw_glpk_call *call) {
    return stw_fail(call->err, call->out_of_memory ? STW_STATUS_NO_MEMORY : STW_STATUS_SOLVER,
                    call->milp->name, "GLPK failed: %s", call->message);
}

/* Where GLPK breaks, another simplex takes another path. */
static stw_status run(stw_glpk_call *call) {
    const size_t n = call->write_lp != NULL ? 1 : N_ATTEMPTS;
    double end_s = stw_now_s() + (call->write_lp != NULL ? 0 : call->options->time_limit_s);
    int end = 0;
    bool broke = false;
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; status == STW_STATUS_OK && i < n; i++) {
        broke = false;
        call->message[0] = '\0';
        call->bound = -DBL_MAX;
        status = guarded(call, i, end_s - stw_now_s(), &end, &broke);
        if (call->out_of_memory || (!broke && !stuck(call, end)) || end_s <= stw_now_s()) break;
    }
    return broke && status == STW_STATUS_OK ? broken(call) : status;
}

/* Nothing of GLPK survives a call, not even after an error. */
static stw_status run_alone(stw_glpk_call *call) {
    stw_status status = stw_milp_check(call->milp, call->err);
    if (status != STW_STATUS_OK) return status;
    call->pool = stw_pool_new();
    if (call->pool == NULL)
        return stw_fail(call->err, STW_STATUS_NO_MEMORY, call->milp->name,
                        "no memory for the solver");
    status = run(call);
    stw_pool_free(call->pool);
    glp_free_env();
    return status;
}

stw_status stw_milp_write_lp(const stw_milp *milp, const char *path, stw_error *err) {
    stw_glpk_call call = {.milp = milp, .write_lp = path, .err = err};
    return run_alone(&call);
}

stw_status stw_milp_solve(const stw_milp *milp, const stw_milp_options *options, double *values,
                          stw_milp_result *result, stw_error *err) {
    *result = (stw_milp_result){.outcome = STW_MILP_LIMIT, .objective = NAN, .bound = NAN};
    result->gap = NAN;
    double start_s = stw_now_s();
    stw_glpk_call call = {
        .milp = milp, .options = options, .values = values, .result = result, .err = err};
    stw_status status = run_alone(&call);
    result->seconds = stw_now_s() - start_s;
    result->nodes = call.nodes;
    return status;
}

const char *stw_milp_solver_version(void) { return glp_version(); }

/* SPDX-License-Identifier: Apache-2.0 */
/* The solver behind the planner, on problems whose answers are known by hand. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "planner/milp.h"
#include "tests/unit/testing.h"

static const stw_milp_options proof = {.time_limit_s = 10, .gap = 0};

/* Three kinds of crate, 20 kg of room: values 10, 7, 4 for 7, 5, 3 kg. By hand: 2 + 0 + 2 = 28. */
static stw_milp *knapsack(uint32_t *first) {
    static const double value[] = {10, 7, 4}, weight[] = {7, 5, 3};
    stw_milp *milp = stw_milp_new("knapsack");
    for (int i = 0; i < 3; i++) {
        uint32_t c = stw_milp_column_add(milp, true, 0, INFINITY, -value[i], "crates_%d", i);
        if (i == 0) *first = c;
    }
    stw_milp_row_add(milp, -INFINITY, 20, "weight");
    for (uint32_t i = 0; i < 3; i++) stw_milp_term_add(milp, *first + i, weight[i]);
    return milp;
}

static void solves_to_a_proof(void) {
    uint32_t first = 0;
    stw_milp *milp = knapsack(&first);
    double values[3] = {0};
    stw_milp_result result;
    CHECK_OK(stw_milp_solve(milp, &proof, values, &result, err));
    CU_ASSERT_EQUAL(result.outcome, STW_MILP_OPTIMAL);
    CU_ASSERT_DOUBLE_EQUAL(result.objective, -28, 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(result.bound, -28, 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(result.gap, 0, 1e-12);
    double weight = 7 * values[0] + 5 * values[1] + 3 * values[2];
    CU_ASSERT(weight <= 20);
    for (int i = 0; i < 3; i++) CU_ASSERT_EQUAL(values[i], floor(values[i]));
    stw_milp_free(milp);
}

static void mixes_whole_and_continuous(void) {
    /* max 3x + 2y, x whole: x + y <= 4.5, x - y <= 1.2. By hand: x = 2, y = 2.5 gives 11. */
    stw_milp *milp = stw_milp_new("mixed");
    uint32_t x = stw_milp_column_add(milp, true, 0, 10, -3, "x");
    uint32_t y = stw_milp_column_add(milp, false, 0, 10, -2, "y");
    stw_milp_row_add(milp, -INFINITY, 4.5, "sum");
    stw_milp_term_add(milp, x, 1);
    stw_milp_term_add(milp, y, 1);
    stw_milp_row_add(milp, -INFINITY, 1.2, "difference");
    stw_milp_term_add(milp, x, 1);
    stw_milp_term_add(milp, y, -1);
    double values[2] = {0};
    stw_milp_result result;
    CHECK_OK(stw_milp_solve(milp, &proof, values, &result, err));
    CU_ASSERT_DOUBLE_EQUAL(result.objective, -11, 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(values[x], 2, 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(values[y], 2.5, 1e-9);
    stw_milp_free(milp);
}

/* Coefficients from 1 to 1e7: of 28 blocks at most 8.58 are offloaded, the others recomputed, so t
 * = 23,560,775.9 + 20 x 239,156.2. Unscaled, GLPK 5.0 says that there is no solution. */
static void scales_what_is_large(void) {
    stw_milp *milp = stw_milp_new("large");
    uint32_t t = stw_milp_column_add(milp, false, 0, INFINITY, 2, "t");
    uint32_t offload = stw_milp_column_add(milp, true, 0, 28, 0, "offload");
    uint32_t recompute = stw_milp_column_add(milp, true, 0, 28, 0, "recompute");
    uint32_t last = stw_milp_column_add(milp, true, 0, 1, 0, "last");
    stw_milp_row_add(milp, 28, 28, "blocks");
    stw_milp_term_add(milp, offload, 1);
    stw_milp_term_add(milp, recompute, 1);
    stw_milp_row_add(milp, -INFINITY, 483582.999998093, "host");
    stw_milp_term_add(milp, offload, 56350);
    stw_milp_row_add(milp, 23477082.4728063, INFINITY, "alone");
    stw_milp_term_add(milp, t, 1);
    stw_milp_term_add(milp, offload, -130232.258198223);
    stw_milp_term_add(milp, recompute, -236434.363445603);
    stw_milp_term_add(milp, last, 10266665.4060271);
    stw_milp_row_add(milp, 23560775.8988267, INFINITY, "compute");
    stw_milp_term_add(milp, t, 1);
    stw_milp_term_add(milp, recompute, -239156.216580711);
    double values[4] = {0};
    stw_milp_result result;
    CHECK_OK(stw_milp_solve(milp, &proof, values, &result, err));
    CU_ASSERT_EQUAL(result.outcome, STW_MILP_OPTIMAL);
    CU_ASSERT_DOUBLE_EQUAL(result.objective, 2 * (23560775.8988267 + 20 * 239156.216580711), 1);
    CU_ASSERT_DOUBLE_EQUAL(values[offload], 8, 1e-9);
    stw_milp_free(milp);
}

static void says_infeasible(void) {
    stw_milp *milp = stw_milp_new("infeasible");
    uint32_t x = stw_milp_column_add(milp, true, 0, 10, 1, "x");
    stw_milp_row_add(milp, 0.2, 0.8, "between_whole_numbers");
    stw_milp_term_add(milp, x, 1);
    double values[1] = {-1};
    stw_milp_result result;
    CHECK_OK(stw_milp_solve(milp, &proof, values, &result, err));
    CU_ASSERT_EQUAL(result.outcome, STW_MILP_INFEASIBLE);
    CU_ASSERT(isnan(result.objective));
    CU_ASSERT_EQUAL(values[0], -1);
    stw_milp_free(milp);
}

/* Two columns of equal weight with an odd sum: no branching rule proves it quickly. */
static stw_milp *hard_problem(void) {
    stw_milp *milp = stw_milp_new("hard");
    stw_milp_row_add(milp, 20001, 20001, "odd_sum");
    for (int i = 0; i < 60; i++) {
        uint32_t c = stw_milp_column_add(milp, true, 0, 1, i % 7, "x_%d", i);
        stw_milp_term_add(milp, c, 1000 + 2 * ((i * 37) % 61));
    }
    return milp;
}

static void keeps_its_time_limit(void) {
    stw_milp *milp = hard_problem();
    double values[60];
    stw_milp_result result;
    stw_milp_options options = {.time_limit_s = 0.3};
    CHECK_OK(stw_milp_solve(milp, &options, values, &result, err));
    CU_ASSERT(result.outcome == STW_MILP_LIMIT || result.outcome == STW_MILP_INFEASIBLE);
    CU_ASSERT(result.seconds < 60); /* on a busy machine, too */
    stw_milp_free(milp);
}

static void refuses_misuse_without_aborting(void) {
    stw_milp *milp = stw_milp_new("twice");
    uint32_t x = stw_milp_column_add(milp, false, 0, 1, 1, "x");
    stw_milp_row_add(milp, 0, 1, "row");
    stw_milp_term_add(milp, x, 1);
    stw_milp_term_add(milp, x, 2); /* GLPK takes a column once a row, and aborts otherwise */
    double values[1];
    stw_milp_result result;
    CHECK_FAILS(stw_milp_solve(milp, &proof, values, &result, err), STW_STATUS_SOLVER, "GLPK");
    stw_milp_free(milp);

    milp = stw_milp_new("rowless");
    x = stw_milp_column_add(milp, false, 0, 1, 1, "x");
    stw_milp_term_add(milp, x, 1);
    CHECK_FAILS(stw_milp_solve(milp, &proof, values, &result, err), STW_STATUS_BUG, "row");
    stw_milp_free(milp);

    uint32_t first = 0; /* and the next call is as if nothing had happened */
    double crates[3];
    milp = knapsack(&first);
    CHECK_OK(stw_milp_solve(milp, &proof, crates, &result, err));
    CU_ASSERT_DOUBLE_EQUAL(result.objective, -28, 1e-9);
    stw_milp_free(milp);
}

/* Whatever allocation GLPK fails at, it is an error, and the next call works. */
static void running_out_of_memory_is_an_error(void) {
    stw_milp *milp = stw_milp_new("large");
    for (int i = 0; i < 4000; i++)
        (void)stw_milp_column_add(milp, true, 0, 9, i % 13 - 6, "x_%d", i);
    for (uint32_t r = 0; r < 400; r++) {
        stw_milp_row_add(milp, -INFINITY, 50 + r, "row_%u", r);
        for (uint32_t i = r % 7; i < 4000; i += 40) stw_milp_term_add(milp, i, 1 + (i + r) % 5);
    }
    double values[4000], crates[3];
    stw_milp_result result;
    stw_milp_options options = {.time_limit_s = 10, .max_nodes = 3, .enough = INFINITY};
    for (options.memory_mib = 1; options.memory_mib <= 4; options.memory_mib++) {
        stw_error why = STW_ERROR_INIT;
        stw_status status = stw_milp_solve(milp, &options, values, &result, &why);
        if (options.memory_mib == 1) CU_ASSERT_EQUAL(status, STW_STATUS_NO_MEMORY);
        if (status != STW_STATUS_OK) CU_ASSERT_PTR_NOT_NULL(strstr(why.text, "memory"));
        CU_ASSERT(status == STW_STATUS_OK || stw_status_exit_code(status) == 1);
    }
    stw_milp_free(milp);
    uint32_t first = 0;
    milp = knapsack(&first);
    CHECK_OK(stw_milp_solve(milp, &proof, crates, &result, err));
    CU_ASSERT_DOUBLE_EQUAL(result.objective, -28, 1e-9);
    stw_milp_free(milp);
}

#ifndef __SANITIZE_ADDRESS__ /* whose allocator needs more address space than a limit leaves */
#define CHUNKS 200000
static void *chunks[CHUNKS];

/* In a process whose memory is used up but for `spare` pieces: exit 0 for an error or a solution.
 */
static int solve_without_memory(uint32_t spare) {
    uint32_t first = 0, n = 0;
    double crates[3];
    stw_milp_result result;
    stw_error why = STW_ERROR_INIT;
    stw_milp *milp = knapsack(&first);
    const struct rlimit none = {1 << 20, 1 << 20}; /* the heap grows no more */
    if (setrlimit(RLIMIT_AS, &none) != 0) return 77;
    for (size_t size = 1 << 16; size >= 256; size /= 2)
        while (n < CHUNKS && (chunks[n] = malloc(size)) != NULL) n++;
    for (uint32_t i = 0; i < spare && i < n; i++) free(chunks[n - 1 - i]);
    stw_status status = stw_milp_solve(milp, &proof, crates, &result, &why);
    return status == STW_STATUS_OK ? 1 : status == STW_STATUS_NO_MEMORY ? 0 : 2;
}
#endif

/* GLPK makes its environment at its first call and aborts where there is no memory for it. */
static void no_memory_at_all_is_an_error(void) {
#ifndef __SANITIZE_ADDRESS__
    int errors = 0, solved = 0;
    for (uint32_t spare = 0; spare < 400 && solved < 3; spare += spare < 60 ? 1 : 20) {
        int code = -1;
        pid_t child = fork();
        if (child == 0) _exit(solve_without_memory(spare));
        CU_ASSERT(waitpid(child, &code, 0) == child);
        CU_ASSERT(WIFEXITED(code));
        if (!WIFEXITED(code)) {
            fprintf(stderr, " signal %d with %u pieces ", WTERMSIG(code), spare);
            return;
        }
        CU_ASSERT(WEXITSTATUS(code) != 2);
        errors += WEXITSTATUS(code) == 0;
        solved += WEXITSTATUS(code) == 1;
    }
    fprintf(stderr, " (%d errors, %d solved) ", errors, solved);
    CU_ASSERT(errors > 10);
    CU_ASSERT(solved > 0);
#endif
}

static void writes_lp_files(void) {
    char path[] = "/tmp/stw_milp_XXXXXX";
    int file = mkstemp(path);
    CU_ASSERT(file >= 0);
    if (file < 0) return;
    uint32_t first = 0;
    stw_milp *milp = knapsack(&first);
    CHECK_OK(stw_milp_write_lp(milp, path, err));
    char text[4096] = {0};
    ssize_t n = read(file, text, sizeof text - 1);
    CU_ASSERT(n > 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "crates_0"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "weight: "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "Generals"));
    close(file);
    unlink(path);
    CHECK_FAILS(stw_milp_write_lp(milp, "/nonexistent/folder/problem.lp", err), STW_STATUS_IO,
                "/nonexistent/folder");
    stw_milp_free(milp);
}

STW_TEST_MAIN("planner milp", {"solves to a proof", solves_to_a_proof},
              {"mixes whole and continuous columns", mixes_whole_and_continuous},
              {"scales what is large", scales_what_is_large}, {"says infeasible", says_infeasible},
              {"keeps its time limit", keeps_its_time_limit},
              {"refuses misuse without aborting", refuses_misuse_without_aborting},
              {"running out of memory is an error", running_out_of_memory_is_an_error},
              {"no memory at all is an error", no_memory_at_all_is_an_error},
              {"writes LP files", writes_lp_files})

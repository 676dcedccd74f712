/* SPDX-License-Identifier: Apache-2.0 */
/* The solver behind the planner, on problems whose answers are known by hand. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
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
    CU_ASSERT(result.seconds < 5);
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

static void writes_lp_files(void) {
    char path[] = "/tmp/stw_milp_XXXXXX";
    int file = mkstemp(path);
    CU_ASSERT(file >= 0);
    if (file < 0) return;
    uint32_t first = 0;
    stw_milp *milp = knapsack(&first);
    double values[3];
    stw_milp_result result;
    stw_milp_options options = {.time_limit_s = 10, .write_lp = path};
    CHECK_OK(stw_milp_solve(milp, &options, values, &result, err));
    char text[4096] = {0};
    ssize_t n = read(file, text, sizeof text - 1);
    CU_ASSERT(n > 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "crates_0"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "weight: "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "Generals"));
    close(file);
    unlink(path);
    options.write_lp = "/nonexistent/folder/problem.lp";
    CHECK_FAILS(stw_milp_solve(milp, &options, values, &result, err), STW_STATUS_IO,
                "/nonexistent/folder");
    stw_milp_free(milp);
}

STW_TEST_MAIN("planner milp", {"solves to a proof", solves_to_a_proof},
              {"mixes whole and continuous columns", mixes_whole_and_continuous},
              {"says infeasible", says_infeasible}, {"keeps its time limit", keeps_its_time_limit},
              {"refuses misuse without aborting", refuses_misuse_without_aborting},
              {"writes LP files", writes_lp_files})

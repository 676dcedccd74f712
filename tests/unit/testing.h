/* SPDX-License-Identifier: Apache-2.0 */
/* The few lines that every CUnit executable shares: a main over a table of tests, and helpers that
 * check a status together with its error text. */
#ifndef STW_TESTS_UNIT_TESTING_H
#define STW_TESTS_UNIT_TESTING_H

#include <CUnit/Basic.h>
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"

typedef struct stw_test {
    const char *name;
    void (*run)(void);
} stw_test;

/* A call that must succeed; its error is printed where it does not. */
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        stw_error check_err = STW_ERROR_INIT;                                                      \
        stw_error *err = &check_err;                                                               \
        stw_status check_status = (call);                                                          \
        if (check_status != STW_STATUS_OK) {                                                       \
            char check_text[1200];                                                                 \
            stw_error_format(&check_err, check_text, sizeof check_text);                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, check_text);                        \
        }                                                                                          \
        CU_ASSERT_EQUAL(check_status, STW_STATUS_OK);                                              \
    } while (0)

/* A call that must fail with `expected` and whose error mentions `word`. */
#define CHECK_FAILS(call, expected, word)                                                          \
    do {                                                                                           \
        stw_error check_err = STW_ERROR_INIT;                                                      \
        stw_error *err = &check_err;                                                               \
        stw_status check_status = (call);                                                          \
        char check_text[1200];                                                                     \
        stw_error_format(&check_err, check_text, sizeof check_text);                               \
        if (check_status != (expected) || check_err.status != check_status ||                      \
            strstr(check_text, (word)) == NULL)                                                    \
            fprintf(stderr, "%s:%d: status %d, error: %s\n", __FILE__, __LINE__,                   \
                    (int)check_status, check_text);                                                \
        CU_ASSERT_EQUAL(check_status, (expected));                                                 \
        CU_ASSERT_EQUAL(check_err.status, check_status);                                           \
        CU_ASSERT_PTR_NOT_NULL(strstr(check_text, (word)));                                        \
    } while (0)

static int stw_test_run_all(const char *suite_name, const stw_test *tests, size_t n_tests) {
    if (CU_initialize_registry() != CUE_SUCCESS) return 2;
    CU_pSuite suite = CU_add_suite(suite_name, NULL, NULL);
    for (size_t i = 0; suite != NULL && i < n_tests; i++)
        if (CU_add_test(suite, tests[i].name, tests[i].run) == NULL) suite = NULL;
    if (suite == NULL) return 2;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    unsigned ran = CU_get_number_of_tests_run();
    CU_cleanup_registry();
    return failures == 0 && ran == n_tests ? 0 : 1;
}

/* STW_TEST_MAIN("core units", {"parses sizes", parses_sizes}, ...) */
#define STW_TEST_MAIN(suite_name, ...)                                                             \
    int main(void) {                                                                               \
        static const stw_test tests[] = {__VA_ARGS__};                                             \
        return stw_test_run_all(suite_name, tests, sizeof tests / sizeof tests[0]);                \
    }

#endif

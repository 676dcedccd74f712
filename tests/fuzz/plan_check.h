/* SPDX-License-Identifier: Apache-2.0 */
/* Plans under a fuzzer: what is written must be read back and be written the same. */
#ifndef STW_TESTS_FUZZ_PLAN_CHECK_H
#define STW_TESTS_FUZZ_PLAN_CHECK_H

#include <stdio.h>
#include <string.h>

#include "plan/files/plan.h"
#include "tests/fuzz/tree_check.h"

static inline void fuzz_plan_round_trip(const stw_plan *plan) {
    stw_text first = STW_TEXT_INIT, second = STW_TEXT_INIT;
    stw_plan *again = NULL;
    stw_error err = STW_ERROR_INIT;
    FUZZ_CHECK(stw_plan_to_json(plan, &first, &err) == STW_STATUS_OK);
    stw_status status = stw_plan_parse("plan.json", first.data, first.length, &again, &err);
    /* Decisions of a fuzzer need not be what the run's settings admit; those are refused. */
    const bool refused =
        status == STW_STATUS_BAD_INPUT &&
        (strstr(err.text, "plan again") != NULL || strstr(err.text, "this placement") != NULL);
    if (status != STW_STATUS_OK && !refused) fprintf(stderr, "%d: %s\n", err.line, err.text);
    FUZZ_CHECK(status == STW_STATUS_OK || refused);
    if (refused) {
        stw_text_free(&first);
        return;
    }
    FUZZ_CHECK(stw_plan_to_json(again, &second, &err) == STW_STATUS_OK);
    FUZZ_CHECK(strcmp(first.data, second.data) == 0);
    stw_plan_free(again);
    stw_text_free(&first);
    stw_text_free(&second);
}

#endif

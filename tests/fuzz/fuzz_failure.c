/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a file in which memory ended: what is read is explained, and written in every
 * format. */
#include "plan/measured/failure.h"
#include "planner/explain/explain.h"
#include "reports/reports.h"
#include "tests/fuzz/tree_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const stw_failures *found) {
    static const stw_format formats[] = {STW_FORMAT_TERMINAL, STW_FORMAT_MARKDOWN, STW_FORMAT_CSV,
                                         STW_FORMAT_JSON};
    const stw_explain_options options = {.time_limit_s = 1};
    stw_explanation *e = NULL;
    stw_error err = STW_ERROR_INIT;
    FUZZ_CHECK(stw_explain(found, NULL, &options, &e, &err) == STW_STATUS_OK);
    FUZZ_CHECK((e->failure == NULL) == (found->n == 0));
    FUZZ_CHECK(e->cause_text[0] != '\0' && e->n_changes == 0);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        stw_text text = STW_TEXT_INIT;
        FUZZ_CHECK(stw_report_explanation(e, i > 0, formats[i], &text, &err) == STW_STATUS_OK);
        FUZZ_CHECK(text.length > 0);
        stw_text_free(&text);
    }
    stw_explanation_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_failures *found = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_failures_parse("failure", (const char *)data, size, &found, &err);
    FUZZ_CHECK((status == STW_STATUS_OK) == (found != NULL));
    FUZZ_CHECK(status == err.status);
    if (status == STW_STATUS_OK)
        check(found);
    else
        FUZZ_CHECK(status == STW_STATUS_BAD_INPUT && err.text[0] != '\0');
    stw_failures_free(found);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a run file. What is read can be written, and written files are read as the same
 * result. */
#include "core/text.h"
#include "plan/files/run_file.h"
#include "tests/fuzz/tree_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_same(const stw_run_result *result) {
    stw_text first = STW_TEXT_INIT, second = STW_TEXT_INIT;
    stw_run_result *again = NULL;
    stw_error err = STW_ERROR_INIT;
    FUZZ_CHECK(stw_run_result_to_json(result, &first, &err) == STW_STATUS_OK);
    stw_status status = stw_run_result_parse("run.json", first.data, first.length, &again, &err);
    if (status != STW_STATUS_OK) fprintf(stderr, "%d: %s\n", err.line, err.text);
    FUZZ_CHECK(status == STW_STATUS_OK);
    FUZZ_CHECK(stw_run_result_to_json(again, &second, &err) == STW_STATUS_OK);
    FUZZ_CHECK(strcmp(first.data, second.data) == 0);
    stw_run_result_free(again);
    stw_text_free(&first);
    stw_text_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_run_result *result = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_status status =
        stw_run_result_parse_edited("run.json", (const char *)data, size, &result, &err);
    FUZZ_CHECK((status == STW_STATUS_OK) == (result != NULL));
    FUZZ_CHECK(status == err.status);
    if (status == STW_STATUS_OK)
        check_same(result);
    else
        FUZZ_CHECK(status == STW_STATUS_BAD_INPUT && err.text[0] != '\0');
    stw_run_result_free(result);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a sweep file. What is read can be written, and written files are read as the same
 * sweep, checksums included. */
#include "plan/files/sweep.h"
#include "tests/fuzz/tree_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_same(const stw_sweep *sweep) {
    stw_text first = STW_TEXT_INIT, second = STW_TEXT_INIT;
    stw_sweep *again = NULL;
    stw_error err = STW_ERROR_INIT;
    FUZZ_CHECK(stw_sweep_to_json(sweep, &first, &err) == STW_STATUS_OK);
    stw_status status = stw_sweep_parse("sweep.json", first.data, first.length, &again, &err);
    if (status != STW_STATUS_OK) fprintf(stderr, "%d: %s\n", err.line, err.text);
    FUZZ_CHECK(status == STW_STATUS_OK);
    FUZZ_CHECK(stw_sweep_check_same(sweep, again, "sweep.json", &err) == STW_STATUS_OK);
    FUZZ_CHECK(stw_sweep_to_json(again, &second, &err) == STW_STATUS_OK);
    FUZZ_CHECK(strcmp(first.data, second.data) == 0);
    stw_sweep_free(again);
    stw_text_free(&first);
    stw_text_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_sweep *sweep = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_status status =
        stw_sweep_parse_edited("sweep.json", (const char *)data, size, &sweep, &err);
    FUZZ_CHECK((status == STW_STATUS_OK) == (sweep != NULL));
    FUZZ_CHECK(status == err.status);
    if (status == STW_STATUS_OK)
        check_same(sweep);
    else
        FUZZ_CHECK(status == STW_STATUS_BAD_INPUT && err.text[0] != '\0');
    stw_sweep_free(sweep);
    return 0;
}

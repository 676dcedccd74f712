/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a file of measurements: run file, CSV, log or memory snapshot. What is read can be
 * written as a run file. */
#include "core/text.h"
#include "plan/measured/recording.h"
#include "tests/fuzz/tree_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_run_result *run = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_measured_parse("measured", (const char *)data, size, &run, &err);
    FUZZ_CHECK((status == STW_STATUS_OK) == (run != NULL));
    FUZZ_CHECK(status == err.status);
    if (status == STW_STATUS_OK) {
        for (uint32_t i = 0; i < run->n_peaks; i++)
            FUZZ_CHECK(run->peaks[i].rank >= STW_SOME_RANK && run->peaks[i].bytes <= INT64_MAX);
        FUZZ_CHECK(stw_run_result_to_json(run, &text, &err) == STW_STATUS_OK);
    } else {
        FUZZ_CHECK(status == STW_STATUS_BAD_INPUT && err.text[0] != '\0');
    }
    stw_text_free(&text);
    stw_run_result_free(run);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a plan file. What is read can be written, and written files are read as the same
 * plan, except where figures contradict each other: those are written as they follow. */
#include <ctype.h>

#include "core/text.h"
#include "plan/files/plan.h"
#include "tests/fuzz/plan_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The largest number behind `"key":`, wherever it stands. */
static double largest(const char *text, size_t size, const char *key) {
    double most = 0;
    size_t n = strlen(key);
    for (size_t i = 0; i + n < size; i++) {
        if (text[i] != '"' || memcmp(text + i + 1, key, n - 1) != 0) continue;
        char number[32] = "";
        for (i += n; i < size && (text[i] == ':' || isspace((unsigned char)text[i]));) i++;
        memcpy(number, text + i, size - i < sizeof number - 1 ? size - i : sizeof number - 1);
        most = fmax(most, strtod(number, NULL));
    }
    return most;
}

/* Large clusters and models are valid and take their time and memory; a fuzzer has no use for
 * them. */
static bool is_small(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    double ranks = largest(text, size, "nodes\"") * largest(text, size, "gpus\"");
    return largest(text, size, "params\"") < 1e8 && ranks <= 64;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_plan *plan = NULL;
    stw_error err = STW_ERROR_INIT;
    if (!is_small(data, size)) return 0;
    stw_status status = stw_plan_parse_edited("plan.json", (const char *)data, size, &plan, &err);
    FUZZ_CHECK((status == STW_STATUS_OK) == (plan != NULL));
    FUZZ_CHECK(status == err.status);
    if (status == STW_STATUS_OK)
        fuzz_plan_round_trip(plan);
    else
        FUZZ_CHECK(err.text[0] != '\0' && status != STW_STATUS_BUG);
    stw_plan_free(plan);
    return 0;
}

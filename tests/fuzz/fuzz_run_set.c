/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of text as `--set KEY=VALUE` for a run, one after the other. What is accepted must be
 * written and read back unchanged. A fuzzer does so for one input of 8, picked by a hash, and
 * searches the hints for unknown keys of another: all keys are written, read and compared, which
 * takes as long as 100 settings. */
#include <stddef.h>
#include <stdint.h>

#include "plan/spec/spec_keys.h"
#include "tests/fuzz/spec_check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#ifdef STW_FUZZING
enum { ROUND_TRIPS = 8 };
#else
enum { ROUND_TRIPS = 1 };
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/** Sets one key. An unknown one ends the input; where `search`, its hints are searched, and one of
 * four is refused by name. @return was the key set? */
static bool set_line(char *line, stw_run_spec *run, bool search, bool *unknown) {
    char *value = strpbrk(line, "=:");
    if (value == NULL) return false;
    *value++ = '\0';
    while (*value == ' ') value++;
    stw_error err = STW_ERROR_INIT;
    const char *near[STW_SPEC_MOST_NEAR];
    *unknown = !stw_run_spec_has_key(line);
    if (*unknown && search) /* among the keys of a cluster, too */
        FUZZ_CHECK(stw_spec_near_keys(line, near, STW_SPEC_MOST_NEAR) <= STW_SPEC_MOST_NEAR);
    if (*unknown && (!search || line[0] % 4 != 1)) return false;
    stw_status status = stw_run_spec_set(run, line, value, "--set", &err);
    FUZZ_CHECK(status == err.status && status != STW_STATUS_BUG);
    return status == STW_STATUS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    stw_run_spec run = fuzz_run_spec_new();
    bool changed = false, unknown = false;
    const uint64_t pick = XXH3_64bits(data, size);
    for (size_t at = 0, end; at < size && !unknown; at = end + 1) {
        char line[256];
        for (end = at; end < size && text[end] != '\n';) end++;
        snprintf(line, sizeof line, "%.*s", (int)(end - at < 255 ? end - at : 255), text + at);
        changed |= set_line(line, &run, pick % ROUND_TRIPS == ROUND_TRIPS - 1, &unknown);
    }
    if (changed && pick % ROUND_TRIPS == 0) fuzz_run_spec_round_trip(&run, size % 2 == 0);
    stw_run_spec_free(&run);
    return 0;
}

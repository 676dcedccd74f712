/* SPDX-License-Identifier: Apache-2.0 */
/* Torch's caching allocator in a measured run: its requests, fed to the model of it, reserve the
 * same bytes at the end of every phase. */
#include "plan/program/allocator.h"
#include "tests/unit/allocator_history.h"
#include "tests/unit/testing.h"

enum { MOST = 8192 };

static void reserved_is_as_recorded(void) {
    uint32_t blocks[MOST], n = 0, phases = 0;
    history_event event;
    stw_allocator *a = NULL;
    FILE *file = fopen(STW_SOURCE_DIR "/tests/measured/allocator_history.txt", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CHECK_OK(stw_allocator_new(&(stw_allocator_settings){0}, &a, err));
    while (history_next(file, &event)) {
        switch (event.kind) {
        case '+':
            CU_ASSERT_TRUE_FATAL(n < MOST);
            CHECK_OK(stw_allocator_take(a, (uint32_t)atoi(event.text), event.value, &blocks[n++],
                                        NULL, err));
            break;
        case '-':
            CU_ASSERT_TRUE_FATAL(event.value < n);
            CHECK_OK(stw_allocator_drop(a, blocks[event.value], err));
            break;
        default:
            phases++;
            CU_ASSERT_EQUAL(stw_allocator_stats_of(a)->reserved_bytes, event.value);
        }
    }
    CU_ASSERT_EQUAL(n, 3746);
    CU_ASSERT_EQUAL(phases, 7);
    stw_allocator_free(a);
    fclose(file);
}

int main(void) {
    static const stw_test tests[] = {{"reserved bytes are as recorded", reserved_is_as_recorded}};
    return stw_test_run_all("allocator_history", tests, sizeof tests / sizeof tests[0]);
}

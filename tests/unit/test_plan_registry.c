/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that a program registers: its name, its keys, and what is refused. */
#include "plan/spec/registry.h"
#include "plan/spec/spec_rows.h"
#include "tests/unit/testing.h"

typedef struct toy_settings {
    uint32_t size;
    bool loud;
} toy_settings;

#define AT(member) IN(toy_settings, member)
static const stw_spec_row toy_rows[] = {
    {COUNT("toy.size"), AT(size), .fallback = "3"},
    {BOOL("toy.loud"), AT(loud), .fallback = "false", .note = "or not"},
};
static stw_status toy_check(const stw_run_spec *run, const char *origin, stw_error *err);
static const stw_spec_section toy_section = {
    .name = "toy", .rows = toy_rows, .n_rows = 2, .size = sizeof(toy_settings), .check = toy_check};
static const char *const toy_keys[] = {"toy.", NULL};
static const stw_engine_spec toy = {.name = "toy", .section = &toy_section, .keys = toy_keys};

static toy_settings settings_of(const stw_run_spec *run) {
    toy_settings settings;
    stw_run_spec_settings(run, &toy_section, &settings);
    return settings;
}

static stw_status toy_check(const stw_run_spec *run, const char *origin, stw_error *err) {
    if (settings_of(run).size <= 9) return STW_STATUS_OK;
    return stw_run_spec_refuse_value(run, origin, err, "toy.size", "0 to 9");
}

static void keys_of_a_registered_engine(void) {
    stw_run_spec run;
    stw_text yaml = STW_TEXT_INIT;
    CHECK_OK(stw_run_spec_init(&run, err));
    CU_ASSERT_EQUAL(settings_of(&run).size, 3);
    CHECK_OK(stw_run_spec_set(&run, "toy.loud", "true", "test", err));
    CHECK_FAILS(stw_run_spec_check(&run, "run.yaml", err), STW_STATUS_BAD_INPUT,
                "toy.loud: found true, expected its default, because engine is stowage");
    CHECK_OK(stw_run_spec_set(&run, "engine", "toy", "test", err));
    CHECK_OK(stw_run_spec_check(&run, "run.yaml", err));
    CU_ASSERT_PTR_EQUAL(stw_run_spec_engine(&run), &toy);
    CHECK_OK(stw_run_spec_set(&run, "toy.size", "10", "test", err));
    CHECK_FAILS(stw_run_spec_check(&run, "run.yaml", err), STW_STATUS_BAD_INPUT,
                "toy.size: found 10, expected 0 to 9");
    stw_run_spec_write_yaml(&run, &yaml);
    CU_ASSERT_PTR_NOT_NULL(strstr(yaml.data, "engine: toy  # stowage | "));
    const char *section =
        strstr(yaml.data, "\ntoy:\n  size: 10\n  loud: true  # or not\nallocator:\n");
    CU_ASSERT_PTR_NOT_NULL(section);
    stw_text_free(&yaml);
    stw_run_spec_free(&run);
}

static void names_are_known(void) {
    stw_run_spec run;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_FAILS(stw_run_spec_set(&run, "engine", "toyota", "test", err), STW_STATUS_BAD_INPUT,
                "| toy");
    const char *near[1];
    CU_ASSERT_EQUAL(stw_spec_near_keys("toy.lout", near, 1), 1);
    CU_ASSERT_STRING_EQUAL(near[0], "toy.loud");
    CU_ASSERT_STRING_EQUAL(stw_engine_name(0), "stowage");
    CU_ASSERT_STRING_EQUAL(stw_engine_name(stw_engine_spec_count() - 1), "toy");
    CU_ASSERT_STRING_EQUAL(stw_engine_name(stw_engine_spec_count()), "?");
    CU_ASSERT_PTR_NULL(stw_engine_spec_named("toyota"));
    stw_run_spec_free(&run);
}

static void what_cannot_be_registered(void) {
    static const stw_spec_section large = {
        .name = "large", .rows = toy_rows, .n_rows = 2, .size = STW_SECTION_BYTES + 1};
    static const stw_engine_spec too_large = {.name = "large", .section = &large};
    static const stw_engine_spec twin = {.name = "stowage"};
    static const stw_spec_section unknown = {.name = "unknown", .size = sizeof(toy_settings)};
    CHECK_FAILS(stw_engine_spec_register(&twin, err), STW_STATUS_USAGE, "its name is taken");
    CHECK_FAILS(stw_engine_spec_register(&too_large, err), STW_STATUS_USAGE, "too large");
    CU_ASSERT_PTR_NULL(stw_engine_spec_named("large"));
    stw_run_spec run;
    toy_settings zeros = {1, true};
    CHECK_OK(stw_run_spec_init(&run, err));
    stw_run_spec_settings(&run, &unknown, &zeros);
    CU_ASSERT_TRUE(zeros.size == 0 && !zeros.loud);
    stw_run_spec_free(&run);
}

int main(void) {
    static const stw_test tests[] = {
        {"keys of a registered engine", keys_of_a_registered_engine},
        {"names are known", names_are_known},
        {"what cannot be registered", what_cannot_be_registered},
    };
    if (stw_engine_spec_register(&toy, NULL) != STW_STATUS_OK) return 2;
    return stw_test_run_all("plan registry", tests, sizeof tests / sizeof tests[0]);
}

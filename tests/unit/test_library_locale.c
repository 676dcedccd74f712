/* SPDX-License-Identifier: Apache-2.0 */
/* libstowage in a program whose locale writes numbers with a comma: it reads and writes the same
 * files and messages, and leaves the program its locale. The locale is made here. */
#define _POSIX_C_SOURCE 200809L
#include <locale.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/library_case.h"

#define MADE "stw_COMMA"

static const char source[] =
    "comment_char %\nescape_char /\n"
    "LC_CTYPE\ncopy \"POSIX\"\nEND LC_CTYPE\nLC_COLLATE\ncopy \"POSIX\"\nEND LC_COLLATE\n"
    "LC_MONETARY\ncopy \"POSIX\"\nEND LC_MONETARY\nLC_TIME\ncopy \"POSIX\"\nEND LC_TIME\n"
    "LC_MESSAGES\ncopy \"POSIX\"\nEND LC_MESSAGES\n"
    "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";

static bool writes_commas(void) {
    char text[32];
    snprintf(text, sizeof text, "%.1f", 1.5);
    return strcmp(text, "1,5") == 0;
}

/* A locale of the system, or one that localedef makes; false where there is neither. */
static bool set_commas(void) {
    static const char *const known[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    char folder[4096];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (setlocale(LC_ALL, known[i]) != NULL && writes_commas()) return true;
    FILE *file = fopen("comma.locale", "w");
    if (file == NULL || fputs(source, file) < 0 || fclose(file) != 0) return false;
    if (system("localedef -c -i comma.locale -f ANSI_X3.4-1968 ./" MADE " >localedef.out 2>&1") ==
            -1 ||
        getcwd(folder, sizeof folder) == NULL || setenv("LOCPATH", folder, 1) != 0)
        return false;
    return setlocale(LC_NUMERIC, MADE) != NULL && writes_commas();
}

static char *read_all(const char *path) {
    FILE *file = fopen(path, "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    char *text = calloc(1, 1 << 20);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* What a plan says does not depend on the locale in which it was made: its file is the same. */
static char *plan_file(const stw_model_t *model, const char *extra) {
    stw_plan_t *plan = library_plan(model, extra), *again = NULL;
    library_ok(stw_write_plan(plan, "plan.json", error), "write the plan");
    library_ok(stw_read_plan("plan.json", &again, error), "read the plan");
    stw_free_plan(again);
    stw_free_plan(plan);
    return read_all("plan.json");
}

/* Seconds that planning took differ each time, and what sums them. */
static void drop_times(char *text) {
    static const char *const keys[] = {"\"seconds\":", "\"whole\":", "\"solver\": \""};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        for (char *at = text; (at = strstr(at, keys[k])) != NULL;) {
            char *end = at + strcspn(at, ",}\n");
            memmove(at, end, strlen(end) + 1);
        }
}

static const char *comma_name;

static void plans_the_same(void) {
    static const char *const extras[] = {NULL, "optimizer.weight_decay=0.125",
                                         "placement.moments=nvme"};
    stw_model_t *model = library_model();
    for (int i = 0; i < 3; i++) {
        (void)setlocale(LC_NUMERIC, "C");
        char *points = plan_file(model, extras[i]);
        CU_ASSERT_PTR_NOT_NULL_FATAL(setlocale(LC_NUMERIC, comma_name));
        char *commas = plan_file(model, extras[i]);
        CU_ASSERT(writes_commas());
        drop_times(points);
        drop_times(commas);
        CU_ASSERT_STRING_EQUAL(points, commas);
        free(points);
        free(commas);
    }
    stw_free_model(model);
}

/* Threads of the library are of its locale, too: their messages are the same. */
static void executes_and_writes(void) {
    stw_model_t *model = library_model();
    stw_plan_t *plan = library_plan(model, "placement.moments=host");
    const stw_run_options_t run = library_run();
    stw_result_t *result = NULL;
    library_ok(stw_execute_plan(plan, &run, sizeof run, &result, error), "execute");
    library_ok(stw_write_result(result, "run.json", error), "write the result");
    CU_ASSERT(writes_commas());
    char *text = read_all("run.json");
    for (const char *at = text; (at = strchr(at, ',')) != NULL; at++)
        CU_ASSERT(!(at > text && at[-1] >= '0' && at[-1] <= '9' && at[1] >= '0' && at[1] <= '9'));
    free(text);
    stw_free_result(result);
    stw_free_plan(plan);
    stw_free_model(model);
}

static void says_numbers_with_a_point(void) {
    stw_model_t *model = library_model();
    stw_plan_t *plan = library_plan(model, NULL);
    stw_session_options_t options = library_session();
    stw_session_t *session = NULL;
    options.timeout_s = -1.5;
    library_refused(stw_open_session(plan, &options, sizeof options, &session, error),
                    STOWAGE_USAGE, "-1.5");
    CU_ASSERT(writes_commas());
    const char *const settings[] = {"optimizer.lr=2,5"};
    const stw_plan_options_t comma = {
        .cluster = "tiny.yaml", .settings = settings, .n_settings = 1};
    stw_plan_t *none = NULL;
    library_refused(stw_make_plan(model, &comma, sizeof comma, &none, error), STOWAGE_BAD_INPUT,
                    "optimizer.lr");
    CU_ASSERT(writes_commas());
    stw_free_plan(plan);
    stw_free_model(model);
}

/* A callback is the caller's code: it has the caller's locale, and may call the library. */
static int heard, heard_with_commas, heard_seconds;

static void listen(stw_log_level_t level, const char *text, void *user) {
    stw_error_t *own = stw_new_error();
    stw_model_t *model = NULL;
    (void)level;
    (void)user;
    if (strstr(text, " s of it delayed") != NULL) {
        heard_seconds++;
        CU_ASSERT_PTR_NOT_NULL(strstr(text, " bytes in 0."));
    }
    heard++;
    heard_with_commas += writes_commas() ? 1 : 0;
    (void)!stw_open_model("tiny", &model, own);
    heard_with_commas += writes_commas() ? 0 : -1;
    stw_free_model(model);
    stw_free_error(own);
}

static void calls_back_in_the_callers_locale(void) {
    stw_model_t *model = library_model();
    stw_plan_t *plan = NULL;
    stw_set_log(listen, NULL, STOWAGE_LOG_DEBUG);
    const char *const settings[] = {"optimizer.lr=2.5e-4", "parallel=auto"};
    const stw_plan_options_t options = {
        .cluster = "tiny.yaml", .settings = settings, .n_settings = 2, .time_limit_s = 20};
    (void)!stw_make_plan(model, &options, sizeof options, &plan, error);
    stw_free_plan(plan);
    plan = library_plan(model, "placement.moments=nvme");
    const stw_run_options_t run = library_run();
    stw_result_t *result = NULL;
    library_ok(stw_execute_plan(plan, &run, sizeof run, &result, error), "execute");
    stw_session_t *session = NULL;
    const stw_session_options_t own = library_session();
    library_ok(stw_open_session(plan, &own, sizeof own, &session, error), "open a session");
    library_ok(stw_execute_movement(session, "load", 0, NULL, 0, error), "load");
    stw_free_session(session);
    stw_set_log(NULL, NULL, STOWAGE_LOG_ERROR);
    CU_ASSERT(writes_commas());
    CU_ASSERT(heard > 0);
    CU_ASSERT_EQUAL(heard_seconds, 2);
    CU_ASSERT_EQUAL(heard, heard_with_commas);
    stw_free_result(result);
    stw_free_plan(plan);
    stw_free_model(model);
}

int main(void) {
    static const stw_test tests[] = {
        {"plans the same", plans_the_same},
        {"executes and writes", executes_and_writes},
        {"says numbers with a point", says_numbers_with_a_point},
        {"calls back in the caller's locale", calls_back_in_the_callers_locale},
    };
    if (CU_initialize_registry() != CUE_SUCCESS) return 2;
    const bool made = set_commas();
    CU_cleanup_registry();
    if (!made) {
        fprintf(stderr, "no locale with a decimal comma, and localedef makes none\n");
        return 77;
    }
    comma_name = strdup(setlocale(LC_NUMERIC, NULL));
    return stw_test_run_all("library locale", tests, sizeof tests / sizeof tests[0]);
}

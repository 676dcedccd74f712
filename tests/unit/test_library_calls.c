/* SPDX-License-Identifier: Apache-2.0 */
/* What callers of libstowage may get wrong: sizes of structs, memory given twice, rates,
 * components, calls after a fork, no descriptors left. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/library_case.h"

/* ---- sizes ---- */

static void refuses_structs_that_are_too_small(void) {
    stw_model_t *model = library_model();
    stw_plan_t *plan = NULL;
    stw_result_t *result = NULL;
    stw_session_t *session = NULL;
    stw_sample_t sample;
    stw_plan_options_t options = {.cluster = "tiny.yaml"};
    const stw_run_options_t run = library_run();
    const stw_session_options_t own = library_session();
    library_refused(stw_make_plan(model, &options, 0, &plan, error), STOWAGE_USAGE, "size");
    library_refused(stw_make_plan(model, &options, sizeof(void *), &plan, error), STOWAGE_USAGE,
                    "size");
    library_refused(
        stw_make_plan(model, &options, offsetof(stw_plan_options_t, time_limit_s), &plan, error),
        STOWAGE_USAGE, "size");
    CU_ASSERT_PTR_NULL(plan);
    plan = library_plan(model, NULL);
    library_refused(stw_execute_plan(plan, &run, 8, &result, error), STOWAGE_USAGE, "size");
    library_refused(stw_open_session(plan, &own, sizeof own / 2, &session, error), STOWAGE_USAGE,
                    "size");
    CU_ASSERT_PTR_NULL(session);
    library_ok(stw_open_session(plan, &own, sizeof own, &session, error), "open a session");
    library_ok(stw_execute_movement(session, "load", 0, NULL, 0, error), "load");
    library_ok(stw_seed_gradients(session, 1, error), "seed gradients");
    /* a step that was not asked for must not be taken */
    library_refused(stw_execute_movement(session, "first_optimizer_step", 1, &sample,
                                         offsetof(stw_sample_t, clip_factor), error),
                    STOWAGE_USAGE, "size");
    library_ok(
        stw_execute_movement(session, "first_optimizer_step", 1, &sample, sizeof sample, error),
        "step");
    stw_free_session(session);
    stw_free_plan(plan);
    stw_free_model(model);
}

static void takes_structs_of_a_newer_header(void) {
    stw_model_t *model = library_model();
    struct {
        stw_plan_options_t options;
        char newer[64];
    } given = {.options = {.cluster = "tiny.yaml"}};
    stw_plan_t *plan = NULL;
    memset(given.newer, 0xff, sizeof given.newer);
    library_ok(stw_make_plan(model, &given.options, sizeof given, &plan, error), "make a plan");
    stw_free_plan(plan);
    stw_free_model(model);
}

/* ---- arenas ---- */

static char *aligned(char *memory) {
    return memory + (STOWAGE_ALIGNMENT - (uintptr_t)memory % STOWAGE_ALIGNMENT) % STOWAGE_ALIGNMENT;
}

static void refuses_arenas_that_overlap(void) {
    stw_model_t *model = library_model();
    stw_plan_t *plan = library_plan(model, "placement.moments=host");
    stw_rank_kind_t kind;
    stw_session_t *session = NULL;
    stw_session_options_t options = library_session();
    CU_ASSERT_FATAL(stw_get_rank_kind(plan, 0, &kind, sizeof kind));
    CU_ASSERT_FATAL(kind.gpu_arena_bytes > 0 && kind.host_arena_bytes > 0);
    const size_t gpu = (size_t)kind.gpu_arena_bytes, host = (size_t)kind.host_arena_bytes;
    char *all = malloc(gpu + host + 2 * STOWAGE_ALIGNMENT);
    CU_ASSERT_PTR_NOT_NULL_FATAL(all);
    char *base = aligned(all), *after = aligned(base + gpu);
    options.gpu_address = base;
    options.gpu_bytes = gpu;
    options.host_bytes = host;
    options.host_address = base;
    library_refused(stw_open_session(plan, &options, sizeof options, &session, error),
                    STOWAGE_USAGE, "overlap");
    options.host_address = after - STOWAGE_ALIGNMENT; /* the last page of the gpu arena */
    library_refused(stw_open_session(plan, &options, sizeof options, &session, error),
                    STOWAGE_USAGE, "overlap");
    options.gpu_address = aligned(base + 1);
    options.host_address = base;
    library_refused(stw_open_session(plan, &options, sizeof options, &session, error),
                    STOWAGE_USAGE, "overlap");
    CU_ASSERT_PTR_NULL(session);
    options.gpu_address = base;
    options.host_address = after;
    library_ok(stw_open_session(plan, &options, sizeof options, &session, error), "neighbours");
    stw_free_session(session);
    free(all);
    stw_free_plan(plan);
    stw_free_model(model);
}

/* ---- sessions ---- */

static void bounds_learning_rates_as_runs_do(void) {
    stw_model_t *model = library_model();
    stw_plan_t *plan = library_plan(model, NULL), *other = NULL;
    stw_session_t *session = NULL;
    const stw_session_options_t options = library_session();
    const char *const too_large[] = {"optimizer.lr=1001"};
    const stw_plan_options_t refused = {
        .cluster = "tiny.yaml", .settings = too_large, .n_settings = 1};
    library_refused(stw_make_plan(model, &refused, sizeof refused, &other, error),
                    STOWAGE_BAD_INPUT, "optimizer.lr");
    library_ok(stw_open_session(plan, &options, sizeof options, &session, error), "open");
    library_refused(stw_set_learning_rate(session, 0, 1001, error), STOWAGE_USAGE, "1000");
    library_refused(stw_set_learning_rate(session, 0, 1e300, error), STOWAGE_USAGE, "1000");
    library_refused(stw_set_learning_rate(session, 0, (double)NAN, error), STOWAGE_USAGE, "1000");
    library_refused(stw_set_learning_rate(session, 0, -1e-9, error), STOWAGE_USAGE, "1000");
    library_ok(stw_set_learning_rate(session, 0, 1000, error), "the largest");
    library_ok(stw_set_learning_rate(session, 0, 0, error), "the smallest");
    stw_free_session(session);
    stw_free_plan(plan);
    stw_free_model(model);
}

static void refuses_digests_of_absent_components(void) {
    static const char *const always[] = {"params", "exp_avg", "exp_avg_sq"};
    stw_model_t *model = library_model();
    const stw_session_options_t options = library_session();
    for (int master = 0; master < 2; master++) {
        stw_plan_t *plan =
            library_plan(model, master ? "precision.master=fp32" : "precision.master=none");
        stw_session_t *session = NULL;
        uint64_t digest = 77;
        library_ok(stw_open_session(plan, &options, sizeof options, &session, error), "open");
        library_ok(stw_execute_movement(session, "load", 0, NULL, 0, error), "load");
        if (master) {
            library_ok(stw_digest_state(session, "master", &digest, error), "digest");
        } else {
            library_refused(stw_digest_state(session, "master", &digest, error), STOWAGE_USAGE,
                            "master");
            CU_ASSERT_EQUAL(digest, 77);
        }
        for (int c = 0; c < 3; c++)
            library_ok(stw_digest_state(session, always[c], &digest, error), always[c]);
        library_refused(stw_digest_state(session, "grads", &digest, error), STOWAGE_USAGE, "grads");
        stw_free_session(session);
        stw_free_plan(plan);
    }
    stw_free_model(model);
}

/* ---- after a fork ---- */

typedef struct forked {
    stw_model_t *model;
    stw_plan_t *plan;
    stw_session_t *session;
} forked;

/* In the child. @return 0, or the number of what went wrong */
static int use_in_child(const forked *f) {
    const stw_run_options_t run = library_run();
    stw_extent_t extent;
    stw_result_t *result = NULL;
    stw_sample_t sample;
    uint64_t digest = 0;
    stw_error_t *e = stw_new_error();
    if (stw_execute_movement(f->session, "optimizer_step", 2, &sample, sizeof sample, e) !=
        STOWAGE_USAGE)
        return 1;
    if (strstr(stw_get_error_text(e), "fork") == NULL) return 2;
    if (stw_seed_gradients(f->session, 2, e) != STOWAGE_USAGE) return 3;
    if (stw_adopt_params(f->session, e) != STOWAGE_USAGE) return 4;
    if (stw_digest_state(f->session, "params", &digest, e) != STOWAGE_USAGE) return 5;
    if (stw_set_learning_rate(f->session, 0, 1e-3, e) != STOWAGE_USAGE) return 6;
    stw_free_session(f->session);
    if (!stw_find_extent(f->plan, 0, "params", 0, 0, &extent, sizeof extent)) return 7;
    if (stw_execute_plan(f->plan, &run, sizeof run, &result, e) != STOWAGE_OK) return 8;
    stw_free_result(result);
    stw_free_plan(f->plan);
    stw_free_model(f->model);
    stw_free_error(e);
    return 0;
}

/* Moments on NVMe: a child that closed the session would remove the parent's file. */
static void outlives_a_fork(void) {
    forked f = {.model = library_model()};
    stw_extent_t extent;
    uint64_t before = 0, after = 0;
    int state = 0;
    const stw_session_options_t options = library_session();
    f.plan = library_plan(f.model, "placement.moments=nvme");
    CU_ASSERT(stw_find_extent(f.plan, 0, "params", 0, 0, &extent, sizeof extent));
    library_ok(stw_open_session(f.plan, &options, sizeof options, &f.session, error), "open");
    library_ok(stw_execute_movement(f.session, "load", 0, NULL, 0, error), "load");
    library_ok(stw_seed_gradients(f.session, 1, error), "seed");
    library_ok(stw_execute_movement(f.session, "first_optimizer_step", 1, NULL, 0, error), "step");
    library_ok(stw_digest_state(f.session, "exp_avg", &before, error), "digest");
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)alarm(60); /* a child that hangs ends by it */
        _exit(use_in_child(&f));
    }
    CU_ASSERT_FATAL(child > 0);
    CU_ASSERT_EQUAL(waitpid(child, &state, 0), child);
    if (state != 0) fprintf(stderr, "the child ended with state 0x%x\n", (unsigned)state);
    CU_ASSERT_EQUAL(state, 0);
    library_ok(stw_digest_state(f.session, "exp_avg", &after, error), "digest");
    CU_ASSERT_EQUAL(before, after);
    library_ok(stw_seed_gradients(f.session, 2, error), "seed");
    library_ok(stw_execute_movement(f.session, "optimizer_step", 2, NULL, 0, error), "step");
    stw_free_session(f.session);
    stw_free_plan(f.plan);
    stw_free_model(f.model);
}

/* ---- no descriptors ---- */

typedef stw_status_t (*call)(const forked *f);

static stw_status_t plan_this_machine(const forked *f) {
    stw_plan_t *plan = NULL;
    stw_status_t status = stw_make_plan(f->model, NULL, 0, &plan, error);
    stw_free_plan(plan);
    return status;
}

static stw_status_t execute(const forked *f) {
    const stw_run_options_t run = library_run();
    stw_result_t *result = NULL;
    stw_status_t status = stw_execute_plan(f->plan, &run, sizeof run, &result, error);
    stw_free_result(result);
    return status;
}

static stw_status_t open_again(const forked *f) {
    stw_model_t *model = NULL;
    (void)f;
    stw_status_t status = stw_open_model("tiny", &model, error);
    stw_free_model(model);
    return status;
}

static rlim_t first_free(void) {
    const int fd = open("/dev/null", O_RDONLY);
    CU_ASSERT_FATAL(fd >= 0);
    close(fd);
    return (rlim_t)fd;
}

/* With 0, 1, 2 ... descriptors left, until the call succeeds: the error is of descriptors. */
static void starve(call what, const forked *f) {
    struct rlimit before, few;
    char text[512] = "";
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    stw_status_t status = STOWAGE_IO;
    int left = 0;
    for (; left < 40 && status != STOWAGE_OK; left++) {
        few = before;
        few.rlim_cur = first_free() + (rlim_t)left;
        CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &few), 0);
        status = what(f);
        snprintf(text, sizeof text, "%s", stw_get_error_text(error));
        CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (status != STOWAGE_OK && strstr(text, "Too many open files") == NULL)
            fprintf(stderr, "with %d descriptors: status %d, %s\n", left, (int)status, text);
        CU_ASSERT(status == STOWAGE_OK || strstr(text, "Too many open files") != NULL);
    }
    CU_ASSERT_EQUAL(status, STOWAGE_OK);
    CU_ASSERT(left > 1);
}

static void says_that_no_descriptor_is_left(void) {
    forked f = {.model = library_model()};
    f.plan = library_plan(f.model, "placement.moments=nvme");
    starve(open_again, &f);
    starve(plan_this_machine, &f);
    starve(execute, &f);
    stw_free_plan(f.plan);
    stw_free_model(f.model);
}

STW_TEST_MAIN("library calls",
              {"refuses structs that are too small", refuses_structs_that_are_too_small},
              {"takes structs of a newer header", takes_structs_of_a_newer_header},
              {"refuses arenas that overlap", refuses_arenas_that_overlap},
              {"bounds learning rates as runs do", bounds_learning_rates_as_runs_do},
              {"refuses digests of absent components", refuses_digests_of_absent_components},
              {"outlives a fork", outlives_a_fork},
              {"says that no descriptor is left", says_that_no_descriptor_is_left})

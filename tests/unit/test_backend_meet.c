/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other before they run and between movements: the first failure, versions,
 * builds, lists and moments, gathered in parts. Ranks are forked (forked.h); each row of a table
 * says what every rank brings and what all of them must find. */
#define _GNU_SOURCE
#include <math.h>
#include <stddef.h>

#include "backend/executor/run.h"
#include "core/build.h"
#include "core/log.h"
#include "tests/unit/fixture.h"
#include "tests/unit/forked.h"

/* A run that has met the others and can do nothing else. */
static stw_rank_run joined(void) {
    stw_rank_run run = {.backend = &stw_backend_host, .timeout_s = 15};
    CHECK_OK(stw_ranks_from_environment(&run.ranks, err));
    CHECK_OK(stw_comm_open(&run.ranks, run.backend, run.timeout_s, &run.comm, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(run.comm);
    return run;
}

static void same_words(const char *found, const char *expected) {
    CU_ASSERT_STRING_EQUAL(found, expected);
    if (strcmp(found, expected) != 0)
        fprintf(stderr, "found:    %s\nexpected: %s\n", found, expected);
}

/* ---- what has failed ---- */

typedef struct failure {
    stw_status status;
    const char *where, *text;
} failure;

typedef struct meeting {
    failure own[FORKED_RANKS]; /* what each rank has met */
    failure all;               /* what all adopt */
    int rank;
    bool told; /* by rank 0 for all */
} meeting;

#define FULL STW_STATUS_NO_RESOURCES, "gpu"
static const meeting meetings[] = {
    {.all = {STW_STATUS_OK, "", ""}, .rank = -1},
    {.own = {[2] = {STW_STATUS_IO, "file", "cannot be read"}},
     .all = {STW_STATUS_IO, "file", "cannot be read"},
     .rank = 2},
    {.own = {[1] = {FULL, "12 of 3.5 bytes"}, {FULL, "none is left"}, {FULL, "7 of 15 bytes"}},
     .all = {FULL, "12 of 3.5 bytes; 2 ranks refuse for the same reason"},
     .rank = 1},
    {.own = {{FULL, "12 bytes"}, {FULL, "3 bytes"}, {FULL, "7.5 bytes"}, {FULL, "8 bytes"}},
     .all = {FULL, "12 bytes; 4 ranks refuse for the same reason"},
     .rank = -1,
     .told = true},
    {.own = {{FULL, ""}, {FULL, ""}, {FULL, ""}, {FULL, ""}},
     .all = {FULL, "4 ranks refuse for the same reason"},
     .rank = -1,
     .told = true},
    {.own = {{FULL, "a1b"},
             {FULL, "a1c"},
             {STW_STATUS_NO_RESOURCES, "cpu", "a1b"},
             {STW_STATUS_DEVICE, "gpu", "a1b"}},
     .all = {FULL, "a1b"},
     .rank = 0},
    {.own = {{FULL, "1ab"}, {FULL, "1a"}, {FULL, "2a1b"}},
     .all = {FULL, "1ab; 2 ranks refuse for the same reason"},
     .rank = 0}};

static stw_error error_of(const failure *f) {
    stw_error error = STW_ERROR_INIT;
    if (f->status != STW_STATUS_OK) (void)stw_fail(&error, f->status, f->where, "%s", f->text);
    return error;
}

static void check_meeting(const meeting *m, const stw_rank_run *run, stw_status status,
                          const stw_error *error) {
    CU_ASSERT_EQUAL(status, m->all.status);
    CU_ASSERT_EQUAL(error->status, m->all.status);
    same_words(error->where, m->all.where);
    same_words(error->text, m->all.text);
    CU_ASSERT_EQUAL(error->rank, m->rank);
    CU_ASSERT_EQUAL(error->told, (m->told && run->ranks.rank != 0));
    CU_ASSERT_EQUAL(run->agreed, (m->all.status != STW_STATUS_OK));
}

static void tell_failures(void *unused) {
    (void)unused;
    stw_rank_run run = joined();
    for (size_t i = 0; i < sizeof meetings / sizeof meetings[0]; i++) {
        const meeting *m = &meetings[i];
        stw_error error = error_of(&m->own[forked_rank]);
        run.agreed = false;
        stw_status status = stw_exec_agree_status(&run, error.status, &error);
        check_meeting(m, &run, status, &error);
        run.agreed = false; /* the same with versions and builds, of ranks without a plan */
        error = error_of(&m->own[forked_rank]);
        status = stw_exec_agree(&run, error.status, &error);
        check_meeting(m, &run, status, &error);
        CU_ASSERT_EQUAL(stw_exec_agree_status(&run, m->own[forked_rank].status, NULL),
                        m->all.status);
    }
    stw_comm_close(run.comm);
}

static void the_first_failure_is_everybodys(void) { forked_run(4, 4, tell_failures, NULL); }

/* ---- versions, builds and lists ---- */

/* As backend/executor/agree.c sends them. */
#define AT_HASH 128u /* of settings, then bytes; then the same of weights */
#define AT_BUILD (128u + 32u + (unsigned)sizeof(stw_error))
static uint32_t odd_ranks; /* bits */
static unsigned odd_byte;
static void be_odd(unsigned n, unsigned char *message, uint32_t bytes) {
    if (n == 2 && (odd_ranks >> forked_rank & 1u) != 0 && odd_byte < bytes) message[odd_byte] ^= 1;
}

typedef struct lists {
    const char *samples[FORKED_RANKS]; /* of the weights */
    uint32_t odd_ranks;
    unsigned odd_byte;
    stw_status status;
    const char *where, *text; /* %V: the other version, %B: the other build */
} lists;

#define SAME_FILES "; give all ranks the same weights files (ranks that differ from rank "
static const lists all_lists[] = {
    {.samples = {"weights: a = 1\n", "weights: a = 1\n", "weights: a = 1\n", "weights: a = 1\n"},
     .status = STW_STATUS_OK,
     .where = "",
     .text = ""},
    {.samples = {NULL, "weights: a = 1\nweights: b = 2\n", "weights: a = 1\nweights: b = 2\n",
                 "weights: a = 1\nweights: b = 3\n"},
     .status = STW_STATUS_DEVICE,
     .where = "weights: b",
     .text = "rank 3 has 3, rank 1 has 2" SAME_FILES "1: 1)"},
    {.samples = {"weights: a = 1\n", "weights: a = 7\n", NULL, "weights: a = 12\n"},
     .status = STW_STATUS_DEVICE,
     .where = "weights: a",
     .text = "rank 1 has 7, rank 0 has 1" SAME_FILES "0: 2)"},
    {.samples = {"weights: a = 1\nweights: b = 2\n", NULL, "weights: a = 1\n", NULL},
     .status = STW_STATUS_DEVICE,
     .where = "weights: b",
     .text = "rank 2 has none, rank 0 has 2" SAME_FILES "0: 1)"},
    {.samples = {"weights: b = 2\n", NULL, NULL, "weights: a = 1\nweights: b = 2\n"},
     .status = STW_STATUS_DEVICE,
     .where = "weights: a",
     .text = "rank 3 has 1, rank 0 has none" SAME_FILES "0: 1)"},
    {.samples = {"weights: a = 1\n", "weights: a = 1\n", "weights: a = 1\n", "weights: a = 1\n"},
     .odd_ranks = 2,
     .odd_byte = AT_HASH + 16,
     .status = STW_STATUS_BUG,
     .where = "ranks",
     .text = "lists of ranks 0 and 1 have other hashes"},
    {.odd_ranks = 8,
     .odd_byte = 5,
     .status = STW_STATUS_DEVICE,
     .where = "version",
     .text = "rank 3 is %V, rank 0 is %v; all ranks must be the same version"},
    {.odd_ranks = 2 | 8,
     .odd_byte = 5,
     .status = STW_STATUS_DEVICE,
     .where = "version",
     .text = "rank 1 is %V, rank 0 is %v; all ranks must be the same version"},
    {.odd_ranks = 2 | 8,
     .odd_byte = AT_BUILD + 2,
     .status = STW_STATUS_DEVICE,
     .where = "build",
     .text = "rank 1 is build %B, rank 0 is build %b; start all ranks with programs of the same "
             "sources, compilers and flags (--version shows the build; ranks that differ from rank "
             "0: 2)"}};

/* %v and %b are the texts of this program, %V and %B those with the odd byte. */
static void expand(const lists *l, const char *version, char *out, size_t out_size) {
    size_t used = 0;
    for (const char *p = l->text; *p != '\0' && used + 200 < out_size; p++) {
        char text[200];
        if (*p != '%') {
            out[used++] = *p;
            continue;
        }
        const bool of_version = *++p == 'v' || *p == 'V';
        snprintf(text, sizeof text, "%s", of_version ? version : stw_build_identity());
        if (*p == 'V' || *p == 'B') text[l->odd_byte - (of_version ? 0 : AT_BUILD)] ^= 1;
        used += (size_t)snprintf(out + used, out_size - used, "%s", text);
    }
    out[used] = '\0';
}

/* The version that this rank has said. */
static void version_of(char out[200]) {
    snprintf(out, 200, "%.127s", (const char *)forked_shared->boxes[0]);
}

static void compare_lists(void *arg) {
    const lists *l = arg;
    stw_rank_run run = joined();
    stw_error error = STW_ERROR_INIT;
    char expected_text[900], version[200];
    forked_tamper = be_odd;
    odd_ranks = l->odd_ranks;
    odd_byte = l->odd_byte;
    if (l->samples[forked_rank] != NULL)
        stw_text_printf(&run.sample, "%s", l->samples[forked_rank]);
    const stw_status status = stw_exec_agree(&run, STW_STATUS_OK, &error);
    version_of(version);
    expand(l, version, expected_text, sizeof expected_text);
    CU_ASSERT_EQUAL(status, l->status);
    same_words(error.where, l->where);
    same_words(error.text, expected_text);
    CU_ASSERT_EQUAL(run.agreed, (l->status != STW_STATUS_OK));
    stw_text_free(&run.sample);
    stw_comm_close(run.comm);
}

static void what_differs_is_named(void) {
    for (size_t i = 0; i < sizeof all_lists / sizeof all_lists[0]; i++)
        forked_run(4, 4, compare_lists, (void *)(uintptr_t)&all_lists[i]);
}

/* ---- when a movement begins ---- */

typedef struct start {
    const char *text; /* NULL: all begin together */
    uint64_t movement, step;
    uint32_t group; /* whose scalars differ */
    float step_size, lr_wd, eps;
} start;

static const start starts[] = {
    {.text = NULL},
    {.text = "rank 2 begins movement 1, rank 0 movement 2 of the plan", .movement = 1},
    {.text = "rank 2 takes step 8, rank 0 step 7", .step = 1},
    {.text = "parameter group 3: rank 2 updates by 0.5, rank 0 by 0.25 (learning rate over bias "
             "correction); their weight decays are 0.125 and 0.125",
     .group = 3,
     .step_size = 0.25f},
    {.text = "parameter group 0: rank 2 updates by 0.25, rank 0 by 0.25 (learning rate over bias "
             "correction); their weight decays are 2.125 and 0.125",
     .lr_wd = 2},
    {.text = "the optimizer's scalars of ranks 2 and 0 differ", .eps = 1}};

static void begin_all(void *unused) {
    (void)unused;
    stw_movement movements[3] = {{.phase = STW_PHASE_LOAD},
                                 {.phase = STW_PHASE_OPTIMIZER_STEP},
                                 {.phase = STW_PHASE_OPTIMIZER_STEP}};
    stw_program program = {.n_movements = 3, .movements = movements};
    stw_rank_run run = joined();
    run.program = &program;
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        const start *s = &starts[i];
        const bool differs = forked_rank >= 2;
        stw_error error = STW_ERROR_INIT;
        run.step = 7 + (differs ? s->step : 0);
        memset(&run.adamw, 0, sizeof run.adamw);
        for (uint32_t g = 0; g < STW_MAX_PARAM_GROUPS; g++) {
            run.adamw.groups[g].step_size = 0.25f;
            run.adamw.groups[g].lr_wd = 0.125f;
        }
        if (differs) {
            run.adamw.groups[s->group].step_size += s->step_size;
            run.adamw.groups[s->group].lr_wd += s->lr_wd;
            run.adamw.eps += s->eps;
        }
        const stw_status status =
            stw_exec_begin_together(&run, &movements[differs ? 2 - s->movement : 2], &error);
        CU_ASSERT_EQUAL(status, s->text == NULL ? STW_STATUS_OK : STW_STATUS_DEVICE);
        same_words(error.text, s->text == NULL ? "" : s->text);
        same_words(error.where, s->text == NULL ? "" : "optimizer_step");
    }
    stw_comm_close(run.comm);
}

static void all_begin_the_same(void) { forked_run(4, 4, begin_all, NULL); }

/* ---- parts, and the slowest ---- */

static void gather_parts(void *unused) {
    (void)unused;
    const uint32_t world = 3, bytes = 200001, part = (1 << 20) / 4 / 3 / 16 * 16;
    stw_rank_run run = joined();
    unsigned char *mine = malloc(bytes), *all = malloc((size_t)world * bytes);
    double seconds[5] = {0, 2.5, forked_rank, 9 - 3.0 * forked_rank, forked_rank == 1 ? 8 : -1};
    uint32_t wrong = 0;
    const unsigned before = forked_shared->calls[forked_rank];
    for (uint32_t i = 0; i < bytes; i++) mine[i] = (unsigned char)(i * 7 + i / 256 + forked_rank);
    CHECK_OK(stw_exec_gather(&run, mine, all, bytes, err));
    for (uint32_t r = 0; r < world; r++)
        for (uint32_t i = 0; i < bytes; i++)
            wrong += all[r * bytes + i] != (unsigned char)(i * 7 + i / 256 + r);
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(forked_shared->calls[forked_rank] - before, (bytes + part - 1) / part);
    CHECK_OK(stw_exec_slowest(&run, seconds, 5, err));
    CU_ASSERT_TRUE(seconds[0] == 0 && seconds[1] == 2.5 && seconds[2] == 2 && seconds[3] == 9);
    CU_ASSERT_EQUAL(seconds[4], 8);
    free(mine);
    free(all);
    stw_comm_close(run.comm);
}

static void long_messages_go_in_parts(void) { forked_run(3, 3, gather_parts, NULL); }

/* ---- ranks that refuse ---- */

static stw_mpi_result cut_call(forked_call call, unsigned n) {
    (void)call;
    return forked_rank == 1 && n == odd_byte ? STW_MPI_FAILED : STW_MPI_OK;
}

static void refuse(void *arg) {
    const stw_executor_options options = {.backend = "host", .timeout_s = 15};
    const meeting *m = arg;
    stw_error error = error_of(&m->own[forked_rank]);
    const stw_status status = stw_execute_refuse(&options, error.status, &error);
    CU_ASSERT_EQUAL(status, m->all.status);
    same_words(error.text, m->all.text);
    CU_ASSERT_EQUAL(error.rank, m->rank);
    CU_ASSERT_EQUAL(forked_shared->left[forked_rank], 1);
    CU_ASSERT_EQUAL(forked_shared->interrupted[forked_rank], 0);
}

/* Where the others cannot be told, a rank keeps what it has met. */
static void refuse_alone(void *unused) {
    const stw_executor_options options = {.backend = "host", .timeout_s = 15};
    const failure own = {STW_STATUS_BAD_INPUT, "plan.json", "is bad"};
    stw_error error = error_of(&own);
    (void)unused;
    forked_result = cut_call;
    CU_ASSERT_EQUAL(stw_execute_refuse(&options, own.status, &error), own.status);
    same_words(error.where, own.where);
    same_words(error.text, own.text);
    CU_ASSERT_EQUAL(error.rank, -1);
    CU_ASSERT_EQUAL(forked_shared->left[forked_rank], 2);
}

/* One refuses, the others would run. */
static void run_or_refuse(void *unused) {
    const stw_executor_options options = {.backend = "host", .steps = 1, .timeout_s = 15};
    const failure own = {STW_STATUS_BAD_INPUT, "plan.json", "is bad"};
    stw_error error = STW_ERROR_INIT;
    stw_run_result *result = NULL;
    (void)unused;
    if (forked_rank == 1) {
        error = error_of(&own);
        CU_ASSERT_EQUAL(stw_execute_refuse(&options, own.status, &error), own.status);
    } else {
        stw_cluster cluster = fixture_cluster(2);
        stw_plan *plan = fixture_plan((fixture_size){2, 64, 128, 512}, &cluster, NULL);
        fixture_state(plan, 1, &(stw_place)FIXTURE_STREAM, &(uint32_t){UINT32_MAX});
        CHECK_OK(stw_plan_derive(plan, err));
        CU_ASSERT_EQUAL(stw_execute(plan, &options, &result, &error), own.status);
        stw_plan_free(plan);
    }
    same_words(error.where, own.where);
    same_words(error.text, own.text);
    CU_ASSERT_EQUAL(error.rank, 1);
    CU_ASSERT_EQUAL(forked_shared->left[forked_rank], 1);
}

static void who_refuses_tells_the_others(void) {
    const stw_executor_options host = {.backend = "host"}, other = {.backend = "vulkan"};
    const failure own = {STW_STATUS_BAD_INPUT, "plan.json", "is bad"};
    stw_error error = error_of(&own);
    for (size_t i = 1; i < sizeof meetings / sizeof meetings[0]; i++)
        forked_run(4, 4, refuse, (void *)(uintptr_t)&meetings[i]);
    for (odd_byte = 1; odd_byte <= 2; odd_byte++) forked_run(2, 2, refuse_alone, NULL);
    forked_run(2, 2, run_or_refuse, NULL);
    CU_ASSERT_EQUAL(stw_execute_refuse(&host, own.status, &error), own.status); /* alone */
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    CU_ASSERT_EQUAL(stw_execute_refuse(&other, own.status, &error), own.status);
    setenv("OMPI_COMM_WORLD_SIZE", "none", 1);
    CU_ASSERT_EQUAL(stw_execute_refuse(&host, own.status, &error), own.status);
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    same_words(error.text, own.text);
}

STW_TEST_MAIN("backend meet", {"the first failure is everybody's", the_first_failure_is_everybodys},
              {"what differs is named", what_differs_is_named},
              {"all begin the same", all_begin_the_same},
              {"long messages go in parts", long_messages_go_in_parts},
              {"who refuses tells the others", who_refuses_tells_the_others})

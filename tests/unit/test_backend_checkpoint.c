/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that save, forked (forked.h): a save calls the communicator not once, and a rank that does
 * not come to its save keeps nobody from ending theirs. */
#define _GNU_SOURCE
#include <glob.h>
#include <sys/stat.h>

#include "backend/checkpoint/folder.h"
#include "backend/executor/run.h"
#include "tests/unit/fixture.h"
#include "tests/unit/forked.h"

#define STEPS 5
#define WORLD 3

static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU, FIXTURE_NVME};
static const uint32_t quanta[] = {4, 4, 3, 0};
static const fixture_size size = {2, 64, 136, 515};

typedef struct job {
    const char *folder;
    uint64_t every;
    bool holds_back; /* rank 1 waits before its last save until rank 0's part is there */
} job;

static stw_plan *plan_of(void) {
    stw_cluster cluster = fixture_cluster(WORLD);
    stw_plan *plan = fixture_plan(size, &cluster, (const char *const[]){NULL});
    fixture_state(plan, 4, places, quanta);
    plan->decisions.prefetch.bucket_bytes = 1 << 16;
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static bool rank_0_is_done(const char *folder) {
    char pattern[300];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/.step-%08d.*.partial/rank-00000.done", folder, STEPS);
    const bool any = glob(pattern, 0, NULL, &found) == 0;
    if (any) globfree(&found);
    return any;
}

static stw_status hold_back(void *state, struct stw_rank_run *run, uint32_t iteration,
                            stw_error *err) {
    const job *j = state;
    (void)err;
    if (!j->holds_back || run->ranks.rank != 1 || iteration + 1 < STEPS) return STW_STATUS_OK;
    for (int i = 0; i < 500 && !rank_0_is_done(j->folder); i++) (void)usleep(20000);
    CU_ASSERT_TRUE(rank_0_is_done(j->folder));
    stw_checkpoint *none = NULL;
    char path[300];
    snprintf(path, sizeof path, "%s/step-%08d", j->folder, STEPS);
    CU_ASSERT_TRUE(stw_checkpoint_open(path, &none, NULL) != STW_STATUS_OK);
    return STW_STATUS_OK;
}

static void run_job(void *arg) {
    job *j = arg;
    stw_plan *plan = plan_of();
    stw_run_result *result = NULL;
    const stw_executor_options options = {.backend = "host",
                                          .steps = STEPS,
                                          .seed = 3,
                                          .timeout_s = 60,
                                          .nvme_in_memory = true,
                                          .nvme_folder = ".",
                                          .checkpoint = j->folder,
                                          .checkpoint_every = j->every,
                                          .checkpoint_bucket = 64 << 10,
                                          .after_iteration = hold_back,
                                          .after_state = j};
    CHECK_OK(stw_execute_with(plan, &options, &stw_backend_host, &result, err));
    if (result != NULL) CU_ASSERT_EQUAL(result->mismatched, 0);
    stw_run_result_free(result);
    stw_plan_free(plan);
}

static void remove_folder(const char *path) {
    stw_checkpoint_list list;
    if (stw_checkpoint_scan(path, &list, NULL) != STW_STATUS_OK) return;
    for (uint32_t i = 0; i < list.n; i++)
        CHECK_OK(stw_checkpoint_remove(list.entries[i].path, err));
    stw_checkpoint_list_free(&list);
}

static uint32_t complete_in(const char *folder) {
    stw_checkpoint_list list;
    uint32_t n = 0;
    CHECK_OK(stw_checkpoint_scan(folder, &list, err));
    for (uint32_t i = 0; i < list.n; i++) {
        stw_checkpoint *one = NULL;
        CHECK_OK(stw_checkpoint_open(list.entries[i].path, &one, err));
        n += one != NULL && !list.entries[i].partial;
        stw_checkpoint_close(one);
    }
    stw_checkpoint_list_free(&list);
    return n;
}

static void no_collectives(void) {
    unsigned calls[2][WORLD];
    job jobs[2] = {{"seldom", 0, false}, {"often", 1, false}};
    for (int i = 0; i < 2; i++) {
        remove_folder(jobs[i].folder);
        forked_run(WORLD, WORLD, run_job, &jobs[i]);
        for (int r = 0; r < WORLD; r++) calls[i][r] = forked_shared->calls[r];
    }
    for (int r = 0; r < WORLD; r++) {
        CU_ASSERT(calls[0][r] > 0);
        CU_ASSERT_EQUAL(calls[0][r], calls[1][r]);
    }
    CU_ASSERT_EQUAL(complete_in("seldom"), 1);
    CU_ASSERT_EQUAL(complete_in("often"), STEPS);
}

static void nobody_waits(void) {
    job j = {"held", 0, true};
    remove_folder(j.folder);
    forked_run(WORLD, WORLD, run_job, &j);
    CU_ASSERT_EQUAL(complete_in(j.folder), 1); /* rank 1 came in the end */
}

STW_TEST_MAIN("backend checkpoint", {"saves make no collective call", no_collectives},
              {"a rank that is held up keeps nobody waiting", nobody_waits})

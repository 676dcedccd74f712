/* SPDX-License-Identifier: Apache-2.0 */
/* The weight sync of a run on one rank: what arrives is compared bit by bit, so that one bit of the
 * rollout's weights, or of a folder, that is not the parameter's is found; buffers and rounds are
 * those of the plan. Several ranks are cli.sync_run's. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/executor/run_sync.h"
#include "core/log.h"
#include "engines/sync_plan.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size size = {2, 64, 128, 515};

typedef enum target { NO_ROLLOUT, BUCKETS, IN_PLACE } target;

static stw_plan *planned(stw_place place, target to) {
    static const char *const roles[][2] = {
        [NO_ROLLOUT] = {NULL},
        [BUCKETS] = {"roles=[{name: rollout, update_bucket: 1 MiB}]", NULL},
        [IN_PLACE] = {"roles=[{name: rollout, update_bucket: 1 MiB, free_cache_engine: false, "
                      "gpu_memory_utilization: 0.5, update_in_place: true}]",
                      NULL}};
    const uint32_t all = UINT32_MAX;
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, roles[to]);
    fixture_state(plan, 1, &place, &all);
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    return plan;
}

/* ---- spoiling ---- */

typedef struct spoil {
    uint32_t after;          /* iteration; UINT32_MAX: never */
    uint64_t at;             /* byte of the rollout's weights */
    const char *folder;      /* or of the last bytes of its file; NULL: none */
    uint64_t arena, planned; /* out: GPU bytes of the run, of its layout */
} spoil;

static stw_status spoil_one(void *state, struct stw_rank_run *run, uint32_t iteration,
                            stw_error *err) {
    spoil *s = state;
    char path[300];
    unsigned char byte = 0;
    (void)err;
    s->arena = run->config.arena_bytes[STW_TIER_GPU];
    s->planned = run->layout->arena_bytes[STW_TIER_GPU];
    if (iteration != s->after) return STW_STATUS_OK;
    if (s->folder == NULL) {
        unsigned char *weights =
            run->backend->device_address(run->device, run->layout->rollout_offset_bytes + s->at, 1);
        CU_ASSERT_PTR_NOT_NULL_FATAL(weights);
        *weights ^= 1;
        return STW_STATUS_OK;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", s->folder);
    const int fd = open(path, O_RDWR);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    const off_t end = lseek(fd, 0, SEEK_END) - 1 - (off_t)s->at;
    CU_ASSERT_EQUAL(pread(fd, &byte, 1, end), 1);
    byte ^= 1;
    CU_ASSERT_EQUAL(pwrite(fd, &byte, 1, end), 1);
    (void)close(fd);
    return STW_STATUS_OK;
}

static uint64_t mismatched(const stw_plan *plan, spoil *s, bool to_folder, stw_run_synced *synced) {
    const stw_executor_options options = {.backend = "host",
                                          .steps = 3,
                                          .seed = 11,
                                          .nvme_in_memory = true,
                                          .sync_to = to_folder ? s->folder : NULL,
                                          .after_iteration = spoil_one,
                                          .after_state = s};
    stw_run_result *result = NULL;
    CHECK_OK(stw_execute(plan, &options, &result, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(result);
    const uint64_t n = result->mismatched;
    *synced = result->synced;
    synced->folder = NULL; /* of the result's */
    stw_run_result_free(result);
    return n;
}

/* ---- cases ---- */

static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM_ALL, FIXTURE_CPU_ALL};
enum { N_PLACES = 3 };

static void what_the_rollout_has(void) {
    for (int p = 0; p < 2 * N_PLACES; p++) {
        stw_plan *plan = planned(places[p / 2], p % 2 == 0 ? BUCKETS : IN_PLACE);
        stw_run_synced synced;
        spoil s = {.after = UINT32_MAX};
        CU_ASSERT_EQUAL(mismatched(plan, &s, false, &synced), 0);
        CU_ASSERT_EQUAL(synced.version, 3);
        CU_ASSERT_TRUE(synced.messages == 0 && synced.sent_bytes == 0 && synced.rounds > 0);
        CU_ASSERT_EQUAL(s.arena, s.planned);
        uint64_t buffers = 0, weights = 0;
        CHECK_OK(stw_sync_gpu_room(plan->job, 0, &buffers, &weights, err));
        CU_ASSERT_EQUAL(buffers > 0, p % 2 == 0); /* one rank sends nothing: buckets alone */
        s.after = 0;                              /* the next sync makes it whole */
        CU_ASSERT_EQUAL(mismatched(plan, &s, false, &synced), 0);
        s.after = 2;
        for (s.at = 0; s.at < 2 * plan->job->model->params; s.at += plan->job->model->params - 1)
            CU_ASSERT_EQUAL(mismatched(plan, &s, false, &synced), 1);
        stw_plan_free(plan);
    }
}

static void what_a_folder_has(void) {
    char folder[] = "/tmp/stowage-run-sync-XXXXXX", path[64], file[96];
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/out", folder);
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    for (int p = 0; p < 2 * N_PLACES; p++) {
        stw_plan *plan = planned(places[p / 2], p % 2 == 1 ? BUCKETS : NO_ROLLOUT);
        stw_run_synced synced;
        spoil s = {.after = UINT32_MAX, .folder = path};
        CU_ASSERT_EQUAL(mismatched(plan, &s, true, &synced), 0);
        CU_ASSERT_TRUE(synced.folder_version == 3);
        CU_ASSERT_EQUAL(synced.folder_bytes, 2 * plan->job->model->params);
        CU_ASSERT_EQUAL(synced.version, p % 2 == 1 ? 3u : 0u);
        s.after = 1;
        CU_ASSERT_EQUAL(mismatched(plan, &s, true, &synced), 0);
        s.after = 2;
        for (s.at = 0; s.at < 2 * plan->job->model->params; s.at += plan->job->model->params - 1)
            CU_ASSERT_EQUAL(mismatched(plan, &s, true, &synced), 1);
        stw_plan_free(plan);
    }
    CU_ASSERT_EQUAL(unlink(file), 0);
    CU_ASSERT_EQUAL(rmdir(path), 0);
    CU_ASSERT_EQUAL(rmdir(folder), 0); /* nothing else is left */
}

STW_TEST_MAIN("weight sync of a run", {"what the rollout has", what_the_rollout_has},
              {"what a folder has", what_a_folder_has})

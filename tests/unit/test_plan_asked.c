/* SPDX-License-Identifier: Apache-2.0 */
/* What auto decides can be asked for; and the dtype in which a framework's loader holds a model. */
#include "core/checked.h"
#include "plan/program/staging.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

/* The placement of a plan as settings, NULL at the end. */
static void ask_for(const stw_place *place, char texts[4][64], const char **settings, size_t *n) {
    static const char *const updates[] = {[STW_UPDATE_RESIDENT] = "fused",
                                          [STW_UPDATE_STREAM] = "streamed",
                                          [STW_UPDATE_CPU] = "cpu",
                                          [STW_UPDATE_DIRECT] = "direct"};
    snprintf(texts[0], 64, "placement.params=%s", stw_tier_name(place->params));
    snprintf(texts[1], 64, "placement.grads=%s", stw_tier_name(place->grads));
    snprintf(texts[2], 64, "placement.moments=%s", stw_tier_name(place->moments));
    snprintf(texts[3], 64, "optimizer.implementation=%s", updates[place->update]);
    for (int i = 0; i < 4; i++) settings[(*n)++] = texts[i];
    settings[*n] = NULL;
}

/* Every placement that an engine offers is one that the run spec accepts. */
static void what_is_offered_can_be_asked_for(void) {
    static const char *const settings[][4] = {
        {NULL},
        {"placement.params=host", NULL},
        {"engine=fsdp2", NULL},
        {"engine=fsdp2", "fsdp.offload_policy=true", NULL},
        {"engine=fsdp2", "placement.params=host", NULL},
        {"engine=fsdp2", "park.moments=host", NULL},
        {"precision.params=bf16", "precision.master=fp32", "placement.master=host", NULL}};
    const fixture_size size = {2, 256, 512, 1000};
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        stw_cluster cluster = fixture_cluster(2);
        stw_plan *plan = fixture_plan(size, &cluster, settings[s]);
        stw_place offered[STW_MAX_PLACES];
        uint32_t n_offered = plan->job->engine->places(plan->job, offered, NULL);
        CU_ASSERT_TRUE(n_offered > 0);
        for (uint32_t i = 0; i < n_offered; i++) {
            const char *asked[16];
            char texts[4][64];
            size_t n = 0;
            stw_run_spec run;
            for (; settings[s][n] != NULL; n++) asked[n] = settings[s][n];
            ask_for(&offered[i], texts, asked, &n);
            CHECK_OK(stw_run_spec_init(&run, err));
            CHECK_OK(stw_specs_set_all(&cluster, &run, asked, n, "asked", err));
            CHECK_OK(stw_run_spec_check(&run, "asked", err));
            stw_run_spec_free(&run);
        }
        stw_plan_free(plan);
    }
}

static uint64_t held_bytes(const char *const *settings) {
    const fixture_size size = {2, 256, 512, 1000};
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < plan->model->n_tensors; t++)
        bytes += stw_load_held_bytes(plan->job, (stw_view){&plan->job->files,
                                                           stw_job_tensor_first(plan->job, t),
                                                           plan->model->tensors[t].numel});
    uint64_t staged = stw_load_staging_bytes(plan->job, &plan->decisions, 0, STW_TIER_HOST);
    CU_ASSERT_TRUE(staged >= bytes && staged < bytes + plan->model->n_tensors * 4096);
    CU_ASSERT_EQUAL(bytes % plan->model->params, 0);
    bytes /= plan->model->params;
    stw_plan_free(plan);
    return bytes; /* per element; the fixture's tensors are stored in bf16 */
}

static void loaders_cast_while_they_read(void) {
    const char *const fp32[] = {"engine=fsdp2", NULL};
    const char *const bf16[] = {"engine=fsdp2", "precision.params=bf16", NULL};
    const char *const stored[] = {"engine=fsdp2", "load.dtype=stored", NULL};
    const char *const asked[] = {"engine=fsdp2", "precision.params=bf16", "load.dtype=fp32", NULL};
    CU_ASSERT_EQUAL(held_bytes(fp32), 4);
    CU_ASSERT_EQUAL(held_bytes(bf16), 2);
    CU_ASSERT_EQUAL(held_bytes(stored), 2);
    CU_ASSERT_EQUAL(held_bytes(asked), 4);
    case_use_fixture();
}

STW_TEST_MAIN("plan asked", {"what is offered can be asked for", what_is_offered_can_be_asked_for},
              {"loaders cast while they read", loaders_cast_while_they_read})

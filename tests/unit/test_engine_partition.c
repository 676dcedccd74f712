/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one kind hold as many elements of every tensor; two kinds that are alike otherwise do
 * not. */
#include <string.h>

#include "plan/files/plan.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

typedef struct layout {
    const char *model, *engine;
    uint32_t gpus, nodes;
    const char *settings[3];
} layout;

static bool is_same(const stw_space *a, const stw_space *b) {
    if (a->n_segments != b->n_segments) return false;
    for (uint32_t i = 0; i < a->n_segments; i++)
        if (a->segments[i].tensor != b->segments[i].tensor || a->segments[i].n != b->segments[i].n)
            return false;
    return true;
}

static void check_kinds(const stw_job *job) {
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const stw_rank_kind *kind = &job->kinds[k];
        for (uint32_t i = 0; i < kind->n_ranks; i++) {
            stw_pool *pool = stw_pool_new();
            stw_space space;
            CHECK_OK(stw_job_space(job, STW_SPACE_PARAMS, kind->ranks[i], pool, &space, err));
            CU_ASSERT(is_same(&space, &kind->spaces[STW_SPACE_PARAMS]));
            stw_pool_free(pool);
        }
        for (uint32_t other = 0; other < k; other++)
            CU_ASSERT(job->kinds[other].first != kind->first ||
                      job->kinds[other].leader != kind->leader ||
                      !is_same(&job->kinds[other].spaces[STW_SPACE_PARAMS],
                               &kind->spaces[STW_SPACE_PARAMS]));
    }
}

static void kinds_hold_as_much(void) {
    static const layout layouts[] = {
        {"Qwen3-0.6B", "stowage", 8, 3, {NULL}},
        {"Qwen3-0.6B", "stowage", 7, 1, {NULL}},
        {"DeepSeek-V2-Lite", "stowage", 8, 8, {"parallel.ep=8", NULL}},
        {"DeepSeek-V2-Lite", "fsdp2", 8, 4, {"parallel.ep=4", "parallel.dp_replicate=2"}},
        {"Qwen3-1.7B", "fsdp2", 8, 12, {"parallel.tp=4", NULL}},
        {"GPT-2", "fsdp2", 8, 125, {NULL}},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const layout *l = &layouts[i];
        stw_cluster cluster = fixture_cluster(l->gpus);
        stw_model *model = NULL;
        stw_run_spec run;
        stw_plan *plan = NULL;
        cluster.nodes = l->nodes;
        CHECK_OK(stw_model_open(l->model, STW_SOURCE_MODELS, &model, err));
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_run_spec_set(&run, "engine", l->engine, "test", err));
        for (int s = 0; s < 3 && l->settings[s] != NULL; s++) {
            const char *equals = strchr(l->settings[s], '=');
            char key[64];
            snprintf(key, sizeof key, "%.*s", (int)(equals - l->settings[s]), l->settings[s]);
            CHECK_OK(stw_run_spec_set(&run, key, equals + 1, "test", err));
        }
        CHECK_OK(stw_plan_new(model, &cluster, &run, &plan, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        CU_ASSERT(plan->job->n_kinds > 1);
        check_kinds(plan->job);
        stw_plan_free(plan);
    }
}

int main(void) {
    static const stw_test tests[] = {
        {"kinds hold as much", kinds_hold_as_much},
    };
    return stw_test_run_all("engine_partition", tests, sizeof tests / sizeof tests[0]);
}

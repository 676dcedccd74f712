/* SPDX-License-Identifier: Apache-2.0 */
/* The host ledger: its lines sum to the node's peaks in every phase, and say where they come from.
 */
#include "plan/program/ledger.h"

#include <string.h>

#include "core/checked.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size size = {4, 1024, 4096, 32000};
enum { GPUS = 4 };

static stw_plan *make(const char *const *settings, uint64_t store_bytes) {
    stw_cluster cluster = fixture_cluster(GPUS);
    cluster.host.object_store_bytes = store_bytes;
    cluster.host.data_loaders_bytes = 1 << 20;
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    stw_place places[STW_MAX_PLACES];
    stw_decisions *d = &plan->decisions;
    CU_ASSERT_TRUE_FATAL(plan->job->engine->places(plan->job, places, NULL) > 0);
    d->n_state = 1;
    d->state[0] = (stw_state_decision){places[0], plan->job->n_units};
    d->prefetch.by_group = true;
    d->prefetch.depth = 1;
    d->prefetch.bucket_bytes = 0;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    return plan;
}

static const stw_ledger_line *line_from(const stw_ledger *ledger, const char *from) {
    for (uint32_t i = 0; i < ledger->n; i++)
        if (strstr(ledger->lines[i].from, from) != NULL) return &ledger->lines[i];
    return NULL;
}

static void lines_sum_to_peaks(void) {
    static const char *const cases[][6] = {
        {"engine=fsdp2", "park.params=host", "park.moments=host", "checkpoint.every=10", NULL},
        {"engine=fsdp2", "fsdp.offload_policy=true", "checkpoint.every=10", "checkpoint.async=true",
         NULL},
        {"engine=megatron", "precision.params=bf16", "precision.master=fp32", "park.backups=2",
         "checkpoint.every=10", NULL},
        {"engine=deepspeed", "precision.params=bf16", "precision.grads=bf16",
         "precision.reduce=bf16", "precision.master=fp32", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = make(cases[i], 64 << 20);
        for (int p = 0; p < STW_N_PHASES; p++) {
            const stw_peak *peak = &plan->node_peaks[0].phase[p][STW_TIER_HOST];
            stw_ledger ledger;
            uint64_t all = 0;
            if (!plan->node_peaks[0].has[p]) continue;
            CHECK_OK(stw_plan_ledger(plan, 0, (stw_phase)p, &ledger, err));
            for (uint32_t l = 0; l < ledger.n; l++) all += ledger.lines[l].bytes;
            CU_ASSERT_EQUAL(all, peak->total);
            CU_ASSERT_PTR_NULL(line_from(&ledger, "other roles"));
            const stw_ledger_line *store = line_from(&ledger, "node.host.object_store");
            CU_ASSERT_PTR_NOT_NULL_FATAL(store);
            CU_ASSERT_EQUAL(store->bytes, 64 << 20);
            CU_ASSERT_EQUAL(line_from(&ledger, "node.host.data_loaders")->bytes, 1 << 20);
        }
        stw_plan_free(plan);
    }
}

static void lines_say_why(void) {
    const char *settings[] = {"engine=fsdp2",        "park.params=host",      "park.moments=host",
                              "checkpoint.every=10", "checkpoint.async=true", NULL};
    stw_plan *plan = make(settings, 0);
    const uint64_t params = plan->job->model->params;
    stw_ledger ledger;
    CHECK_OK(stw_plan_ledger(plan, 0, STW_PHASE_OPTIMIZER_STEP, &ledger, err));
    const stw_ledger_line *moments = line_from(&ledger, "park: a page-locked copy");
    const stw_ledger_line *weights = line_from(&ledger, "park: a pageable copy");
    const stw_ledger_line *copies = line_from(&ledger, "checkpoint.async");
    CU_ASSERT_TRUE_FATAL(moments != NULL && weights != NULL && copies != NULL);
    CU_ASSERT_TRUE(moments->page_locked && !weights->page_locked && !copies->page_locked);
    CU_ASSERT_EQUAL(moments->bytes, 4 * params);
    CU_ASSERT_EQUAL(weights->bytes, 4 * params);
    CU_ASSERT_EQUAL(copies->bytes, 12 * params);
    CU_ASSERT_PTR_NULL(line_from(&ledger, "object_store"));
    stw_plan_free(plan);
}

/* A scheduler that kills earlier leaves less. */
static void kill_share(void) {
    stw_cluster cluster = fixture_cluster(GPUS);
    const uint64_t all = stw_cluster_host_capacity(&cluster);
    CU_ASSERT_EQUAL(all, 512ull << 30);
    cluster.host.kill_share = 0.95;
    CU_ASSERT_DOUBLE_EQUAL((double)stw_cluster_host_capacity(&cluster), 0.95 * (double)all, 1);
    cluster.host.limit_bytes = 100ull << 30;
    CU_ASSERT_DOUBLE_EQUAL((double)stw_cluster_host_capacity(&cluster), 95.0 * (1ull << 30), 1);
}

STW_TEST_MAIN("plan ledger", {"lines sum to peaks", lines_sum_to_peaks},
              {"lines say why", lines_say_why}, {"kill share", kill_share})

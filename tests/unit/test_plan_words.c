/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks and nodes in words: a set of kinds is named by its members, not by its number. */
#include <math.h>

#include "core/median.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size small = {3, 256, 512, 1000};

static stw_plan *over_nodes(uint32_t nodes, uint32_t gpus) {
    stw_cluster cluster = fixture_cluster(gpus);
    cluster.nodes = nodes;
    cluster.nic_bps = 50e9;
    return fixture_plan(small, &cluster, NULL);
}

static void check_ranks(const stw_job *job, uint32_t except, const char *expected) {
    char words[128];
    bool kinds[64] = {false};
    for (uint32_t k = 0; k < job->n_kinds; k++) kinds[k] = k != except;
    stw_job_ranks_words(job, kinds, words, sizeof words);
    CU_ASSERT_STRING_EQUAL(words, expected);
}

static void ranks_are_named_by_number(void) {
    char words[128];
    stw_plan *one = over_nodes(1, 1), *many = over_nodes(3, 4);
    check_ranks(one->job, UINT32_MAX, "rank 0");
    check_ranks(many->job, UINT32_MAX, "all 12 ranks");
    uint32_t first = stw_job_kind_of(many->job, 0), leader = stw_job_kind_of(many->job, 4);
    stw_job_kind_words(many->job, first, words, sizeof words);
    CU_ASSERT_STRING_EQUAL(words, "rank 0");
    stw_job_kind_words(many->job, leader, words, sizeof words);
    CU_ASSERT_STRING_EQUAL(words, "ranks 4, 8");
    check_ranks(many->job, first, "ranks 1-11");
    check_ranks(many->job, leader, "ranks 0-3, 5-7, 9-11");
    stw_plan_free(many);
    stw_plan_free(one);
}

static void long_lists_are_cut(void) {
    stw_plan *plan = over_nodes(16, 2);
    char words[128];
    stw_job_kind_words(plan->job, stw_job_kind_of(plan->job, 2), words, sizeof words);
    CU_ASSERT_STRING_EQUAL(words, "15 ranks: 2, 4, 6, ...");
    stw_plan_free(plan);
}

static void nodes_are_named_by_number(void) {
    stw_plan *plan = over_nodes(4, 2);
    const stw_job *job = plan->job;
    char words[128];
    bool kinds[64] = {false};
    CU_ASSERT_FATAL(job->n_node_kinds > 1);
    kinds[stw_job_node_kind_of(job, 0)] = true;
    stw_job_nodes_words(job, kinds, words, sizeof words);
    CU_ASSERT_STRING_EQUAL(words, "node 0");
    for (uint32_t n = 0; n < job->n_node_kinds; n++) kinds[n] = true;
    stw_job_nodes_words(job, kinds, words, sizeof words);
    CU_ASSERT_STRING_EQUAL(words, "all 4 nodes");
    stw_plan_free(plan);
}

static void a_median_is_of_all_values(void) {
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
    CU_ASSERT_EQUAL(stw_median(odd, 3), 2);
    CU_ASSERT_EQUAL(stw_median(even, 4), 2.5);
    CU_ASSERT_TRUE(isnan(stw_median(odd, 0)));
}

STW_TEST_MAIN("plan words", {"ranks are named by number", ranks_are_named_by_number},
              {"long lists are cut", long_lists_are_cut},
              {"nodes are named by number", nodes_are_named_by_number},
              {"a median is of all values", a_median_is_of_all_values})

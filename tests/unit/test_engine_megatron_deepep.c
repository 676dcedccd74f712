/* SPDX-License-Identifier: Apache-2.0 */
/* The flex dispatcher with DeepEP. */
#include "engines/megatron/deepep.h"
#include "tests/unit/megatron_case.h"

/* 8 of 128 experts, rows of 2048 */
#define MODEL "Qwen3-30B-A3B"
enum { ROWS = 4096, HIDDEN = 2048, TOP = 8 };

static uint32_t moe_group(const stw_job *job) {
    uint32_t g = 0;
    while (job->model->groups[g].facts.experts == 0) g++;
    return g;
}

/* Of 8 ranks with 16 experts each a token misses one with probability
 * (112 x 111 x ... x 105) / (128 x 127 x ... x 121). */
static void tokens_go_once_to_a_rank(void) {
    stw_plan *plan = megatron_plan(MODEL, "parallel.ep=8 moe.dispatcher=deepep");
    double missed = 1;
    for (int i = 0; i < TOP; i++) missed *= (112.0 - i) / (128.0 - i);
    const uint64_t rows = stw_megatron_deepep_rows(plan->job, moe_group(plan->job));
    CU_ASSERT_DOUBLE_EQUAL((double)rows, ROWS * 8 * (1 - missed), 2);
    const stw_megatron_moe moe = stw_megatron_moe_of(plan->job, moe_group(plan->job));
    CU_ASSERT_EQUAL(moe.rows, ROWS * TOP);
    CU_ASSERT_EQUAL(moe.sent, rows);
    CU_ASSERT_EQUAL(moe.forward, 2ull * HIDDEN * (rows + ROWS * TOP + ROWS));
    stw_plan_free(plan);
    plan = megatron_plan(MODEL, "parallel.ep=128 nodes=16 moe.dispatcher=deepep");
    CU_ASSERT_DOUBLE_EQUAL((double)stw_megatron_deepep_rows(plan->job, moe_group(plan->job)),
                           ROWS * TOP, 2);
    stw_plan_free(plan);
}

/* config.hpp with the chunks of 8 and of 16 ranks; 20 SMs are 10 channels. */
static void buffers_are_outside_of_torch(void) {
    const uint64_t row = 2 * HIDDEN + 8 + 128 * 8 + 128 * 4 + 128 * 4;
    stw_plan *plan = megatron_plan(MODEL, "parallel.ep=8 moe.dispatcher=deepep");
    const uint64_t nvl = 10ull * 8 * (2 + 3) * 4 + 10ull * 8 * 256 * row;
    CU_ASSERT_EQUAL(stw_megatron_deepep_bytes(plan->job), (nvl + 127) / 128 * 128 + (32ull << 20));
    stw_plan *other = megatron_plan(MODEL, "parallel.ep=8");
    CU_ASSERT_EQUAL(stw_megatron_deepep_bytes(other->job), 0);
    const stw_phase pass = STW_PHASE_FORWARD_BACKWARD;
    CU_ASSERT_EQUAL(
        megatron_peak(plan->job, 0, pass, STW_TIER_GPU).components[STW_COMPONENT_COMM] -
            megatron_peak(other->job, 0, pass, STW_TIER_GPU).components[STW_COMPONENT_COMM],
        stw_megatron_deepep_bytes(plan->job));
    stw_plan_free(other);
    stw_plan_free(plan);
    plan = megatron_plan(MODEL, "parallel.ep=16 nodes=2 moe.dispatcher=deepep");
    const uint64_t far = 10ull * 8 * (4 + 3) * 4 + 10ull * 8 * 288 * row;
    CU_ASSERT_EQUAL(stw_megatron_deepep_bytes(plan->job), /* RDMA: one step of NVSHMEM's heap */
                    (far + 127) / 128 * 128 + (32ull << 20) + (512ull << 20));
    stw_plan_free(plan);
}

/* Rows go and come back once, and so do their gradients. */
static void rows_are_sent_once(void) {
    stw_plan *plan = megatron_plan(MODEL, "parallel.ep=8 moe.dispatcher=deepep");
    stw_plan *other = megatron_plan(MODEL, "parallel.ep=8");
    const stw_phase pass = STW_PHASE_FORWARD_BACKWARD;
    const uint64_t rows = stw_megatron_deepep_rows(plan->job, moe_group(plan->job));
    CU_ASSERT_EQUAL(megatron_sent(plan->job, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_EP, pass),
                    48.0 * (double)rows * (4 * 2 * HIDDEN + TOP * (12 + 4)));
    CU_ASSERT_TRUE(megatron_sent(plan->job, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_EP, pass) <
                   megatron_sent(other->job, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_EP, pass));
    CU_ASSERT_EQUAL(megatron_sent(plan->job, STW_OP_ALL_GATHER, STW_RANK_GROUP_EP, pass), 0);
    stw_plan_free(other);
    stw_plan_free(plan);
}

static void contradictions_are_refused(void) {
    static const struct {
        const char *settings, *word;
    } cases[] = {
        {"moe.dispatcher=deepep", "parallel.ep"},
        {"moe.dispatcher=deepep parallel.tp=2 parallel.ep=2 parallel.etp=2", "parallel.etp"},
        {"moe.dispatcher=deepep parallel.ep=8 moe.capacity_factor=1 megatron.pad_to_capacity=true",
         "megatron.pad_to_capacity"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = NULL;
        CHECK_FAILS(megatron_new(MODEL, cases[i].settings, &plan, err), STW_STATUS_BAD_INPUT,
                    cases[i].word);
    }
}

STW_TEST_MAIN("engine megatron deepep", {"tokens go once to a rank", tokens_go_once_to_a_rank},
              {"buffers are outside of torch", buffers_are_outside_of_torch},
              {"rows are sent once", rows_are_sent_once},
              {"contradictions are refused", contradictions_are_refused})

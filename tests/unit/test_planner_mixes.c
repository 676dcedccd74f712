/* SPDX-License-Identifier: Apache-2.0 */
/* Mixes of offloaded, recomputed and a few kept blocks, by the rows alone: what is tried, and that
 * all of it fits, keeps its sums and obeys what is barred. */
#include <math.h>

#include "plan/program/blocks.h"
#include "planner/candidates.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

typedef struct mixing {
    stw_plan *plan;
    stw_cost *cost;
    stw_candidates all;
    uint32_t before; /* candidates that were there first */
} mixing;

/* A long context on one GPU: not all activations have room. */
static const char *const long_context[] = {"node.gpus=1", "node.gpu.memory=80 GiB",
                                           "batch.seq_len=32768", NULL};

static void begin(mixing *m, const char *const *settings, stw_bars bars) {
    m->plan = case_zoo("Qwen3-4B", settings);
    m->cost = case_cost(m->plan);
    m->all = (stw_candidates){.cost = m->cost,
                              .bars = bars,
                              .pool = m->cost->pool,
                              .work_left = 1000000,
                              .end_s = (double)INFINITY};
    stw_choice choice = stw_choice_new(m->cost, m->cost->pool);
    stw_ilp_result result;
    const stw_ilp_options options = {.time_limit_s = 60, .gap = 1e-3, .bars = bars};
    CHECK_OK(stw_ilp_solve(m->cost, &options, &choice, &result, err));
    CHECK_OK(stw_candidates_add(&m->all, &choice, NULL, err));
    m->before = m->all.n;
}

static void end(mixing *m) {
    stw_cost_free(m->cost);
    stw_plan_free(m->plan);
}

static uint32_t blocks_of(const mixing *m, uint32_t i, stw_act act) {
    uint32_t n = 0;
    for (uint32_t a = 0; a < m->cost->n_acts; a++)
        if (m->cost->acts[a].act == act) n += m->all.list[i].choice.acts[a];
    return n;
}

static void check_sums(const mixing *m, const stw_choice *choice) {
    const stw_cost *cost = m->cost;
    uint32_t units = 0;
    for (uint32_t p = 0; p < cost->n_places; p++) units += choice->units[p];
    CU_ASSERT_EQUAL(units, cost->n_units);
    for (uint32_t first = 0, a = 0; a <= cost->n_acts; a++) {
        if (a < cost->n_acts && cost->acts[a].group == cost->acts[first].group) continue;
        uint32_t blocks = 0;
        for (uint32_t i = first; i < a; i++) blocks += choice->acts[i];
        CU_ASSERT_EQUAL(blocks, cost->acts[first].blocks);
        first = a;
    }
    CU_ASSERT_TRUE(stw_choice_keeps_shares(cost, choice));
    CU_ASSERT_TRUE(stw_choice_keeps_bars(cost, choice, &m->all.bars));
}

static void mixes_fit_and_keep_their_sums(void) {
    mixing m;
    uint32_t offloading = 0;
    begin(&m, long_context, (stw_bars){0, 0});
    CU_ASSERT_EQUAL(m.before, 1);
    const double first_s = m.all.list[0].seconds;
    CHECK_OK(stw_candidates_try_mixes(&m.all, err));
    CU_ASSERT(m.all.n > m.before);
    for (uint32_t i = m.before; i < m.all.n; i++) {
        stw_evaluation e;
        stw_cost_evaluate(m.cost, &m.all.list[i].choice, &e);
        CU_ASSERT_TRUE(e.fits);
        CU_ASSERT_EQUAL(e.objective_s, m.all.list[i].seconds);
        check_sums(&m, &m.all.list[i].choice);
        bool mixed =
            blocks_of(&m, i, STW_ACT_OFFLOAD) > 0 && blocks_of(&m, i, STW_ACT_RECOMPUTE) > 0;
        offloading += mixed && blocks_of(&m, i, STW_ACT_KEEP) >= STW_LAST_BLOCKS;
    }
    CU_ASSERT(offloading > 0);
    CU_ASSERT(m.all.list[m.all.fastest].seconds <= first_s);
    end(&m);
}

/* Shares of offloaded blocks among those that are not kept: 0.15, 0.33 and 0.6. */
static void each_share_is_tried(void) {
    static const double shares[] = {0.15, 0.33, 0.6};
    bool found[3] = {false};
    mixing m;
    begin(&m, long_context, (stw_bars){0, 0});
    CHECK_OK(stw_candidates_try_mixes(&m.all, err));
    for (uint32_t i = m.before; i < m.all.n; i++) {
        double moved = blocks_of(&m, i, STW_ACT_OFFLOAD) + blocks_of(&m, i, STW_ACT_RECOMPUTE);
        for (int k = 0; k < 3; k++)
            found[k] = found[k] ||
                       blocks_of(&m, i, STW_ACT_OFFLOAD) == (uint32_t)(shares[k] * moved + 0.5);
    }
    CU_ASSERT(found[0] && found[1] && found[2]);
    end(&m);
}

static void without_three_policies_nothing_is_mixed(void) {
    const char *const kept[] = {"node.gpus=1", "placement.activations=keep", NULL};
    const char *const whole[] = {"recompute.granularity=full", "node.gpus=1", NULL};
    const char *const *cases[] = {kept, whole};
    for (int i = 0; i < 2; i++) {
        mixing m;
        begin(&m, cases[i], (stw_bars){0, 0});
        CHECK_OK(stw_candidates_try_mixes(&m.all, err));
        CU_ASSERT_EQUAL(m.before, 1);
        CU_ASSERT_EQUAL(m.all.n, m.before);
        end(&m);
    }
}

static void bars_and_work_are_kept(void) {
    mixing m;
    begin(&m, long_context, (stw_bars){0, 1u << STW_ACT_OFFLOAD});
    CHECK_OK(stw_candidates_try_mixes(&m.all, err));
    for (uint32_t i = 0; i < m.all.n; i++) CU_ASSERT_EQUAL(blocks_of(&m, i, STW_ACT_OFFLOAD), 0);
    end(&m);
    begin(&m, long_context, (stw_bars){0, 0});
    m.all.work_left = 0;
    CHECK_OK(stw_candidates_try_mixes(&m.all, err));
    CU_ASSERT_EQUAL(m.all.n, m.before);
    end(&m);
}

STW_TEST_MAIN("planner mixes", {"mixes fit and keep their sums", mixes_fit_and_keep_their_sums},
              {"each share is tried", each_share_is_tried},
              {"without three policies nothing is mixed", without_three_policies_nothing_is_mixed},
              {"bars and work are kept", bars_and_work_are_kept})

/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of offloaded and of kept blocks, one after the other, by the rows alone: what is tried,
 * and that all of it fits, keeps its sums and obeys what is barred; and what rows of seconds say of
 * offloaded blocks without kept ones. */
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

static void counts_fit_and_keep_their_sums(void) {
    mixing m;
    bool offloads = false, keeps = false;
    begin(&m, long_context, (stw_bars){.places = 0});
    CU_ASSERT_EQUAL(m.before, 1);
    const double first_s = m.all.list[0].seconds;
    CHECK_OK(stw_candidates_try_counts(&m.all, err));
    CU_ASSERT(m.all.n > m.before);
    for (uint32_t i = m.before; i < m.all.n; i++) {
        stw_evaluation e;
        stw_cost_evaluate(m.cost, &m.all.list[i].choice, &e);
        CU_ASSERT_TRUE(e.fits);
        CU_ASSERT_EQUAL(e.objective_s, m.all.list[i].seconds);
        check_sums(&m, &m.all.list[i].choice);
        offloads =
            offloads || blocks_of(&m, i, STW_ACT_OFFLOAD) != blocks_of(&m, 0, STW_ACT_OFFLOAD);
        keeps = keeps || blocks_of(&m, i, STW_ACT_KEEP) != blocks_of(&m, 0, STW_ACT_KEEP);
    }
    CU_ASSERT(offloads || keeps);
    CU_ASSERT(m.all.list[m.all.fastest].seconds <= first_s * (1 + 1e-3)); /* the programs' gap */
    end(&m);
}

static void a_frozen_number_is_kept(void) {
    mixing m;
    begin(&m, long_context, (stw_bars){.places = 0});
    for (uint32_t blocks = 0; blocks <= 4; blocks++) {
        const stw_bars bars = {.frozen = 1u << STW_ACT_OFFLOAD, .frozen_blocks = blocks};
        const stw_ilp_options options = {.time_limit_s = 60, .gap = 1e-3, .bars = bars};
        stw_choice choice = stw_choice_new(m.cost, m.cost->pool);
        stw_ilp_result result;
        CHECK_OK(stw_ilp_solve(m.cost, &options, &choice, &result, err));
        CU_ASSERT_FATAL(result.outcome == STW_MILP_OPTIMAL || result.outcome == STW_MILP_FEASIBLE);
        CU_ASSERT_TRUE(stw_choice_keeps_bars(m.cost, &choice, &bars));
        uint32_t offloaded = 0;
        for (uint32_t a = 0; a < m.cost->n_acts; a++)
            if (m.cost->acts[a].act == STW_ACT_OFFLOAD) offloaded += choice.acts[a];
        CU_ASSERT_EQUAL(offloaded, blocks);
        const stw_bars other = {.frozen = 1u << STW_ACT_OFFLOAD, .frozen_blocks = blocks + 1};
        CU_ASSERT_FALSE(stw_choice_keeps_bars(m.cost, &choice, &other));
    }
    end(&m);
}

static void without_a_choice_nothing_is_counted(void) {
    const char *const kept[] = {"node.gpus=1", "placement.activations=keep", NULL};
    const char *const whole[] = {"recompute.granularity=full", "node.gpus=1", NULL};
    const char *const *cases[] = {kept, whole};
    for (int i = 0; i < 2; i++) {
        mixing m;
        begin(&m, cases[i], (stw_bars){.places = 0});
        CHECK_OK(stw_candidates_try_counts(&m.all, err));
        CU_ASSERT_EQUAL(m.before, 1);
        CU_ASSERT_EQUAL(m.all.n, m.before);
        end(&m);
    }
}

static void bars_and_work_are_kept(void) {
    mixing m;
    begin(&m, long_context, (stw_bars){.acts = 1u << STW_ACT_OFFLOAD});
    CHECK_OK(stw_candidates_try_counts(&m.all, err));
    for (uint32_t i = 0; i < m.all.n; i++) CU_ASSERT_EQUAL(blocks_of(&m, i, STW_ACT_OFFLOAD), 0);
    end(&m);
    begin(&m, long_context, (stw_bars){.places = 0});
    m.all.work_left = 0;
    CHECK_OK(stw_candidates_try_counts(&m.all, err));
    CU_ASSERT_EQUAL(m.all.n, m.before);
    end(&m);
}

/* Seconds of forward and backward by the rows, with so many blocks offloaded and kept. */
static double blocks_s(const mixing *m, uint32_t offloaded, uint32_t kept) {
    stw_choice choice = stw_choice_new(m->cost, m->cost->pool);
    stw_evaluation e;
    stw_choice_copy(m->cost, &choice, &m->all.list[0].choice);
    for (uint32_t a = 0; a < m->cost->n_acts; a++)
        choice.acts[a] = m->cost->acts[a].act == STW_ACT_OFFLOAD ? offloaded
                         : m->cost->acts[a].act == STW_ACT_KEEP
                             ? kept
                             : m->cost->acts[a].blocks - offloaded - kept;
    stw_cost_evaluate(m->cost, &choice, &e);
    return e.stretch_s[STW_STRETCH_FORWARD] + e.stretch_s[STW_STRETCH_BACKWARD];
}

/* A second kept block is the room for fetches: rows of both passes are shorter by what each of the
 * offloaded blocks waited for, and no further than that with more of them. */
static void few_kept_blocks_make_offloaded_ones_wait(void) {
    const char *const slow[] = {"node.gpus=1",           "node.gpu.memory=80 GiB",
                                "batch.seq_len=32768",   "node.pcie.h2d=20 GB/s",
                                "node.pcie.d2h=20 GB/s", NULL};
    mixing m;
    begin(&m, slow, (stw_bars){.places = 0});
    const double none = blocks_s(&m, 0, 1) - blocks_s(&m, 0, 2);
    for (uint32_t n = 4; n <= 8; n *= 2) {
        const double few = blocks_s(&m, n, 1), enough = blocks_s(&m, n, STW_LAST_BLOCKS);
        CU_ASSERT(few - enough > none);
        CU_ASSERT(few > blocks_s(&m, 0, 1) * 0.99);
    }
    const double four = blocks_s(&m, 4, 1) - blocks_s(&m, 4, 2),
                 eight = blocks_s(&m, 8, 1) - blocks_s(&m, 8, 2);
    CU_ASSERT(eight - none > 1.5 * (four - none));
    end(&m);
}

STW_TEST_MAIN("planner counts", {"counts fit and keep their sums", counts_fit_and_keep_their_sums},
              {"a frozen number is kept", a_frozen_number_is_kept},
              {"without a choice nothing is counted", without_a_choice_nothing_is_counted},
              {"bars and work are kept", bars_and_work_are_kept},
              {"few kept blocks make offloaded ones wait",
               few_kept_blocks_make_offloaded_ones_wait})

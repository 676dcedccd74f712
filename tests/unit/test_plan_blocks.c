/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks are kept, recomputed and offloaded, and until when offloaded activations stay. */
#include "plan/program/blocks.h"
#include "tests/unit/testing.h"

enum { MOST = 16 };

/* A model of one group of `n` blocks, and one block of another group before and after it. */
typedef struct rows {
    stw_block blocks[MOST + 2];
    stw_block_group groups[2];
    stw_model model;
    stw_job job;
} rows;

static void rows_init(rows *r, uint32_t n) {
    memset(r, 0, sizeof *r);
    r->model.blocks = r->blocks;
    r->model.groups = r->groups;
    r->model.n_groups = 2;
    r->model.n_blocks = n + 2;
    for (uint32_t b = 1; b <= n; b++) {
        r->blocks[b].group = 1;
        r->blocks[b].instance = b - 1;
    }
    r->blocks[n + 1].instance = 1;
    r->job.model = &r->model;
}

static void decide(const rows *r, const uint32_t of[STW_N_ACTS], bool in_turn, stw_act *acts) {
    stw_block_decision blocks[STW_N_ACTS];
    stw_decisions d;
    memset(&d, 0, sizeof d);
    for (int a = 0; a < STW_N_ACTS; a++) blocks[a] = (stw_block_decision){1, (stw_act)a, of[a]};
    d.n_blocks = STW_N_ACTS;
    d.blocks = blocks;
    d.blocks_in_turn = in_turn;
    stw_block_acts(&r->job, &d, acts);
}

/* Beginnings of a group have their share of blocks that stay, and no more. */
static void check_spread(const uint32_t of[STW_N_ACTS], const stw_act *acts, uint32_t n) {
    const stw_act last = of[STW_ACT_KEEP] > 0        ? STW_ACT_KEEP
                         : of[STW_ACT_RECOMPUTE] > 0 ? STW_ACT_RECOMPUTE
                                                     : STW_ACT_OFFLOAD;
    const uint32_t at_end = of[last] < 2 ? of[last] : 2;
    uint32_t left[STW_N_ACTS], seen[STW_N_ACTS] = {0};
    for (int a = 0; a < STW_N_ACTS; a++) left[a] = of[a] - ((stw_act)a == last ? at_end : 0);
    const uint32_t rest = n - at_end, stay = left[STW_ACT_KEEP] + left[STW_ACT_RECOMPUTE];
    for (uint32_t i = 0; i < n; i++) {
        seen[acts[i]]++;
        if (i >= rest) CU_ASSERT_EQUAL(acts[i], last);
        if (i >= rest) continue;
        const uint32_t stays = seen[STW_ACT_KEEP] + seen[STW_ACT_RECOMPUTE];
        CU_ASSERT_EQUAL(stays, (i + 1) * stay / rest);
        if (stay > 0) CU_ASSERT_EQUAL(seen[STW_ACT_KEEP], stays * left[STW_ACT_KEEP] / stay);
    }
    for (int a = 0; a < STW_N_ACTS; a++) CU_ASSERT_EQUAL(seen[a], of[a]);
}

static void acts_are_spread_evenly(void) {
    for (uint32_t n = 1; n <= MOST; n++) {
        rows r;
        stw_act acts[MOST + 2];
        rows_init(&r, n);
        for (uint32_t keep = 0; keep <= n; keep++)
            for (uint32_t recompute = 0; keep + recompute <= n; recompute++) {
                const uint32_t of[STW_N_ACTS] = {[STW_ACT_KEEP] = keep,
                                                 [STW_ACT_RECOMPUTE] = recompute,
                                                 [STW_ACT_OFFLOAD] = n - keep - recompute};
                decide(&r, of, false, acts);
                check_spread(of, acts + 1, n);
                CU_ASSERT(acts[0] == STW_ACT_KEEP && acts[n + 1] == STW_ACT_KEEP);
            }
    }
}

static void acts_in_turn(void) {
    rows r;
    stw_act acts[MOST + 2];
    const uint32_t of[STW_N_ACTS] = {
        [STW_ACT_KEEP] = 4, [STW_ACT_RECOMPUTE] = 3, [STW_ACT_OFFLOAD] = 2};
    rows_init(&r, 10); /* the tenth has no decision */
    decide(&r, of, true, acts);
    for (uint32_t i = 0; i < 10; i++)
        CU_ASSERT_EQUAL(acts[1 + i], i < 2   ? STW_ACT_OFFLOAD
                                     : i < 5 ? STW_ACT_RECOMPUTE
                                             : STW_ACT_KEEP);
    decide(&r, of, false, acts);
    CU_ASSERT_EQUAL(acts[10], STW_ACT_KEEP);
}

/* Policies of a chain, "okr", the last block being of the other group; up to where the activations
 * of the block at `at` are held. */
static uint32_t held(const char *policies, uint32_t at, uint32_t ahead) {
    rows r;
    stw_act acts[MOST + 2];
    stw_decisions d;
    uint32_t chain[MOST + 2], n = (uint32_t)strlen(policies);
    rows_init(&r, n);
    memset(&d, 0, sizeof d);
    d.fetch_ahead = ahead;
    for (uint32_t i = 0; i <= n; i++) chain[i] = i + 1;
    for (uint32_t i = 0; i < n; i++)
        acts[i + 1] = policies[i] == 'o'   ? STW_ACT_OFFLOAD
                      : policies[i] == 'k' ? STW_ACT_KEEP
                                           : STW_ACT_RECOMPUTE;
    acts[0] = acts[n + 1] = STW_ACT_KEEP;
    return stw_block_held_to(&r.job, &d, acts, chain, n + 1, at);
}

static void offloaded_blocks_are_fetched_ahead(void) {
    CU_ASSERT_EQUAL(held("okkkkk", 0, 1), 1);
    CU_ASSERT_EQUAL(held("okkkkk", 0, 2), 2);
    CU_ASSERT_EQUAL(held("okkkkk", 0, 3), 3);
    CU_ASSERT_EQUAL(held("okkkkk", 0, 8), 4); /* one kept block has freed the room */
    CU_ASSERT_EQUAL(held("orrkk", 0, 8), 3);  /* a recomputed one brings two */
    CU_ASSERT_EQUAL(held("orrk", 0, 8), 1);
    CU_ASSERT_EQUAL(held("okokk", 0, 8), 2); /* up to another offloaded block */
    CU_ASSERT_EQUAL(held("okokk", 2, 8), 3);
    CU_ASSERT_EQUAL(held("kko", 2, 8), 3); /* the next one is of another group */
    CU_ASSERT_EQUAL(held("ko", 2, 8), 3);  /* the chain's last */
}

int main(void) {
    static const stw_test tests[] = {
        {"acts are spread evenly", acts_are_spread_evenly},
        {"acts in turn", acts_in_turn},
        {"offloaded blocks are fetched ahead", offloaded_blocks_are_fetched_ahead}};
    return stw_test_run_all("plan blocks", tests, sizeof tests / sizeof tests[0]);
}

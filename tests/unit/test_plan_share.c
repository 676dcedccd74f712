/* SPDX-License-Identifier: Apache-2.0 */
/* Max-min fair rates: hand-made cases, and the definition itself on random ones. */
#include <math.h>

#include "plan/program/share.h"
#include "tests/unit/testing.h"

#define CHECK_NEAR(a, b) CU_ASSERT_DOUBLE_EQUAL((a), (b), 1e-9)

static void alone_runs_at_full_rate(void) {
    stw_share_user users[2] = {0};
    users[0].weight[STW_RESOURCE_PCIE_UP] = 1;
    stw_share_rates(users, 1);
    CHECK_NEAR(users[0].rate, 1);
    /* Two that share nothing, and one that asks for nothing. */
    users[1].weight[STW_RESOURCE_PCIE_DOWN] = 1;
    stw_share_rates(users, 2);
    CHECK_NEAR(users[0].rate, 1);
    CHECK_NEAR(users[1].rate, 1);
    memset(users, 0, sizeof users);
    stw_share_rates(users, 2);
    CHECK_NEAR(users[0].rate, 1);
    stw_share_rates(users, 0);
}

static void a_full_resource_is_halved(void) {
    stw_share_user users[2] = {0};
    users[0].weight[STW_RESOURCE_HBM] = users[1].weight[STW_RESOURCE_HBM] = 1;
    stw_share_rates(users, 2);
    CHECK_NEAR(users[0].rate, 0.5);
    CHECK_NEAR(users[1].rate, 0.5);
}

/* The link of an H200: 55.4 and 55.3 GB/s alone, 50.1 each way together. */
static void both_directions_of_a_link(void) {
    stw_share_user users[2] = {0};
    users[0].weight[STW_RESOURCE_PCIE_UP] = 1;
    users[0].weight[STW_RESOURCE_PCIE] = 55.4 / 100.2;
    users[1].weight[STW_RESOURCE_PCIE_DOWN] = 1;
    users[1].weight[STW_RESOURCE_PCIE] = 55.3 / 100.2;
    stw_share_rates(users, 2);
    CHECK_NEAR(users[0].rate * 55.4 + users[1].rate * 55.3, 100.2);
    CHECK_NEAR(users[0].rate, users[1].rate);
}

/* Who is not stopped by the fullest resource takes what is left of the others: with a third of A
 * each, the third user may have two thirds of B. */
static void what_is_left_goes_to_the_others(void) {
    stw_share_user users[4] = {0};
    for (int i = 0; i < 3; i++) users[i].weight[STW_RESOURCE_HOST_MEMORY] = 1;
    users[2].weight[STW_RESOURCE_CPU] = 1;
    users[3].weight[STW_RESOURCE_CPU] = 1;
    stw_share_rates(users, 4);
    for (int i = 0; i < 3; i++) CHECK_NEAR(users[i].rate, 1.0 / 3);
    CHECK_NEAR(users[3].rate, 2.0 / 3);
}

/* The users of a light resource keep full rate beside a full one. */
static void small_shares_do_not_slow(void) {
    stw_share_user users[3] = {0};
    users[0].weight[STW_RESOURCE_DMA] = 0.25;
    users[1].weight[STW_RESOURCE_DMA] = 0.5;
    users[2].weight[STW_RESOURCE_DMA] = 0.25;
    stw_share_rates(users, 3);
    for (int i = 0; i < 3; i++) CHECK_NEAR(users[i].rate, 1);
}

static double priority_of(const stw_share_user *user) {
    return user->priority > 0 ? user->priority : 1;
}

static uint64_t state = 20261121;
static double uniform(void) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(state >> 11) / 9007199254740992.0;
}

/* Who has a priority gets as many times more of a full resource, up to its full rate. */
static void priority_multiplies_the_share(void) {
    stw_share_user users[3] = {0};
    users[0].weight[STW_RESOURCE_HOST_MEMORY] = users[1].weight[STW_RESOURCE_HOST_MEMORY] = 1;
    users[1].priority = 3;
    stw_share_rates(users, 2);
    CHECK_NEAR(users[0].rate, 0.25);
    CHECK_NEAR(users[1].rate, 0.75);
    users[1].weight[STW_RESOURCE_HOST_MEMORY] = 0.4; /* at full rate before the resource is full */
    stw_share_rates(users, 2);
    CHECK_NEAR(users[0].rate, 0.6);
    CHECK_NEAR(users[1].rate, 1);
    users[2].weight[STW_RESOURCE_PCIE_UP] = 1; /* alone there, however low its priority */
    users[2].priority = 0.1;
    stw_share_rates(users, 3);
    CHECK_NEAR(users[0].rate, 0.6);
    CHECK_NEAR(users[2].rate, 1);
}

/* A user below full rate has a full resource on which nobody is faster for its priority: that is
 * weighted max-min fairness. */
static void random_rates_are_max_min_fair(void) {
    for (int round = 0; round < 2000; round++) {
        stw_share_user users[6] = {0};
        uint32_t n = 1 + (uint32_t)(uniform() * 6);
        for (uint32_t i = 0; i < n; i++) {
            for (unsigned r = 0; r < STW_N_RESOURCES; r++)
                if (uniform() < 0.4) users[i].weight[r] = uniform();
            users[i].weight[(unsigned)(uniform() * STW_N_RESOURCES)] = 1;
            users[i].priority = round % 2 == 0 ? 0 : 0.2 + 4 * uniform();
        }
        stw_share_rates(users, n);
        double used[STW_N_RESOURCES] = {0};
        for (uint32_t i = 0; i < n; i++)
            for (unsigned r = 0; r < STW_N_RESOURCES; r++)
                used[r] += users[i].rate * users[i].weight[r];
        for (unsigned r = 0; r < STW_N_RESOURCES; r++) CU_ASSERT(used[r] < 1 + 1e-9);
        for (uint32_t i = 0; i < n; i++) {
            bool justified = users[i].rate > 1 - 1e-9;
            CU_ASSERT(users[i].rate > 0 && users[i].rate <= 1);
            for (unsigned r = 0; r < STW_N_RESOURCES && !justified; r++) {
                if (users[i].weight[r] <= 0 || used[r] < 1 - 1e-9) continue;
                bool fastest = true;
                for (uint32_t k = 0; k < n; k++)
                    if (users[k].weight[r] > 0 && users[k].rate / priority_of(&users[k]) >
                                                      users[i].rate / priority_of(&users[i]) + 1e-9)
                        fastest = false;
                justified = fastest;
            }
            CU_ASSERT(justified);
        }
    }
}

STW_TEST_MAIN("plan share", {"alone runs at full rate", alone_runs_at_full_rate},
              {"a full resource is halved", a_full_resource_is_halved},
              {"both directions of a link", both_directions_of_a_link},
              {"what is left goes to the others", what_is_left_goes_to_the_others},
              {"small shares do not slow", small_shares_do_not_slow},
              {"priority multiplies the share", priority_multiplies_the_share},
              {"random rates are max-min fair", random_rates_are_max_min_fair})

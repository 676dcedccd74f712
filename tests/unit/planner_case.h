/* SPDX-License-Identifier: Apache-2.0 */
/* Cases for the planner's tests: fixture plans with coarse quanta, so that a few of them decide,
 * and plans of models from the zoo. */
#ifndef STW_TESTS_UNIT_PLANNER_CASE_H
#define STW_TESTS_UNIT_PLANNER_CASE_H

#include "core/checked.h"
#include "engines/bytes.h"
#include "planner/problem.h"
#include "planner/solvers.h"
#include "sim/sim.h"
#include "tests/unit/fixture.h"

/* A generator of its own, so that cases are the same everywhere. */
static inline uint32_t case_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33) % below;
}

/* Cut the largest rank into `n` quanta. */
static inline void case_units(stw_plan *plan, uint32_t n) {
    stw_job *job = plan->job;
    uint64_t most = job->kinds[job->largest].params;
    job->unit_params = stw_round_up_u64(stw_div_up_u64(most, n), 2048);
    job->n_units = (uint32_t)stw_div_up_u64(most, job->unit_params);
}

static inline stw_cost *case_cost(const stw_plan *plan) {
    stw_cost *cost = NULL;
    stw_error err = STW_ERROR_INIT;
    if (stw_cost_new(plan->job, stw_sim_seconds, &cost, &err) != STW_STATUS_OK) {
        fprintf(stderr, "planner case: %s: %s\n", err.where, err.text);
        exit(2);
    }
    return cost;
}

/* A plan of a zoo model; settings are run or cluster keys, NULL-terminated. */
static inline stw_plan *case_zoo(const char *name, const char *const *settings) {
    stw_error err = STW_ERROR_INIT;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *model = NULL;
    stw_plan *plan = NULL;
    stw_status status = stw_run_spec_init(&run, &err);
    if (status == STW_STATUS_OK) status = stw_model_open(name, STW_SOURCE_MODELS, &model, &err);
    for (; status == STW_STATUS_OK && *settings != NULL; settings++) {
        char key[128];
        const char *equals = strchr(*settings, '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - *settings), *settings);
        status = stw_run_spec_has_key(key)
                     ? stw_run_spec_set(&run, key, equals + 1, "case", &err)
                     : stw_cluster_set(&cluster, key, equals + 1, "case", &err);
    }
    if (status == STW_STATUS_OK) status = stw_plan_new(model, &cluster, &run, &plan, &err);
    if (status != STW_STATUS_OK) {
        fprintf(stderr, "planner case: %s: %s\n", err.where, err.text);
        exit(2);
    }
    return plan;
}

/* A choice at random: units, blocks, ring and load all over the place. */
static inline void case_choice(const stw_cost *cost, uint64_t *seed, stw_choice *choice) {
    uint32_t left = cost->n_units;
    for (uint32_t p = 0; p < cost->n_places; p++) choice->units[p] = 0;
    uint32_t first = case_random(seed, cost->n_places);
    uint32_t places = cost->whole ? 1 : 1 + case_random(seed, cost->n_places);
    for (uint32_t i = 0; i < places; i++) {
        uint32_t take = i + 1 == places ? left : case_random(seed, left + 1);
        choice->units[(first + i) % cost->n_places] += take;
        left -= take;
    }
    for (uint32_t a = 0; a < cost->n_acts; a++) choice->acts[a] = 0;
    for (uint32_t a = 0; a < cost->n_acts;) {
        uint32_t end = a, rest = cost->acts[a].blocks;
        while (end < cost->n_acts && cost->acts[end].group == cost->acts[a].group) end++;
        for (; a < end; a++) {
            uint32_t take = a + 1 == end ? rest : case_random(seed, rest + 1);
            if (case_random(seed, 3) == 0 && a + 1 < end) take = 0;
            choice->acts[a] = take;
            rest -= take;
        }
    }
    choice->ring = case_random(seed, cost->n_rings);
    choice->load = case_random(seed, cost->n_loads);
}

/* Settings end here for tests that need no plan of their own making. */
static inline void case_use_fixture(void) {
    (void)fixture_plan;
    (void)fixture_state;
}

#endif

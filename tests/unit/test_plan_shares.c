/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of update engines as quanta, the plan's check of them, and groups of tensors with rates of
 * their own. */
#include "engines/built_in.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size small = {3, 256, 512, 1000};

static const stw_place three_places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU};

static stw_plan *plan_with(uint32_t n_units, const char *const *settings) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(small, &cluster, settings);
    if (n_units > 0) plan->job->n_units = n_units;
    return plan;
}

static void check_units(uint32_t n_units, const char *const *settings, uint32_t resident,
                        uint32_t stream, uint32_t direct, uint32_t cpu) {
    stw_plan *plan = plan_with(n_units, settings);
    CU_ASSERT_EQUAL(stw_job_update_units(plan->job, STW_UPDATE_RESIDENT), resident);
    CU_ASSERT_EQUAL(stw_job_update_units(plan->job, STW_UPDATE_STREAM), stream);
    CU_ASSERT_EQUAL(stw_job_update_units(plan->job, STW_UPDATE_DIRECT), direct);
    CU_ASSERT_EQUAL(stw_job_update_units(plan->job, STW_UPDATE_CPU), cpu);
    stw_plan_free(plan);
}

/* One share goes to the nearest quantum; several are rounded so that all of them add up. */
static void shares_become_quanta(void) {
    const char *const none[] = {NULL};
    const char *const third[] = {"update.stream=0.333", NULL};
    const char *const direct[] = {"update.direct=auto", NULL};
    const char *const all[] = {"update.resident=0.5", "update.stream=0.5", "update.cpu=0", NULL};
    const char *const tenths[] = {"update.resident=0.3", "update.stream=0.3", "update.cpu=0.3",
                                  NULL};
    const char *const four[] = {"update.resident=0.1", "update.stream=0.2", "update.direct=0.3",
                                "update.cpu=0.4", NULL};
    check_units(1000, none, STW_AUTO, STW_AUTO, 0, STW_AUTO);
    check_units(1000, third, STW_AUTO, 333, 0, STW_AUTO);
    check_units(5, third, STW_AUTO, 2, 0, STW_AUTO);
    check_units(1, third, STW_AUTO, 0, 0, STW_AUTO);
    check_units(1000, direct, STW_AUTO, STW_AUTO, STW_AUTO, STW_AUTO);
    check_units(7, all, 4, 3, 0, 0);
    check_units(1, all, 1, 0, 0, 0);
    check_units(5, tenths, 2, 1, 0, 2); /* 1.5 each: five at most, not six */
    check_units(1000, four, 100, 200, 300, 400);
    for (uint32_t n = 1; n < 50; n++) {
        stw_plan *plan = plan_with(n, four);
        uint32_t sum = 0;
        for (int u = 0; u < STW_N_UPDATES; u++)
            sum += stw_job_update_units(plan->job, (stw_update)u);
        CU_ASSERT_EQUAL(sum, n);
        stw_plan_free(plan);
    }
}

/* 0 is the default of update.direct: who asks for direct updates need not set it too. */
static void direct_is_free_where_it_is_asked_for(void) {
    const char *const plain[] = {"optimizer.implementation=direct", NULL};
    const char *const fixed[] = {"optimizer.implementation=direct", "update.direct=0.25", NULL};
    check_units(100, plain, STW_AUTO, STW_AUTO, STW_AUTO, STW_AUTO);
    check_units(100, fixed, STW_AUTO, STW_AUTO, 25, STW_AUTO);
}

/* Which updates have places under the settings: bit u. */
static uint32_t updates_of(const char *const *settings, stw_error *err) {
    stw_plan *plan = plan_with(0, settings);
    stw_place places[STW_MAX_PLACES];
    uint32_t n = stw_engine_stowage.places(plan->job, places, err), found = 0;
    for (uint32_t i = 0; i < n; i++) {
        found |= 1u << places[i].update;
        if (i > 0) CU_ASSERT_TRUE(stw_place_order(&places[i - 1]) < stw_place_order(&places[i]));
    }
    stw_plan_free(plan);
    return found;
}

#define BIT(name) (1u << STW_UPDATE_##name)

static void shares_choose_places(void) {
    stw_error err = STW_ERROR_INIT;
    const char *const none[] = {NULL};
    const char *const direct[] = {"optimizer.implementation=direct", NULL};
    const char *const some[] = {"update.direct=0.1", NULL};
    const char *const no_cpu[] = {"update.cpu=0", "update.direct=auto", NULL};
    const char *const only[] = {"update.stream=1", "update.resident=0", "update.cpu=0", NULL};
    CU_ASSERT_EQUAL(updates_of(none, &err), BIT(RESIDENT) | BIT(STREAM) | BIT(CPU));
    CU_ASSERT_EQUAL(updates_of(direct, &err), BIT(RESIDENT) | BIT(DIRECT));
    CU_ASSERT_EQUAL(updates_of(some, &err), BIT(RESIDENT) | BIT(STREAM) | BIT(DIRECT) | BIT(CPU));
    CU_ASSERT_EQUAL(updates_of(no_cpu, &err), BIT(RESIDENT) | BIT(STREAM) | BIT(DIRECT));
    CU_ASSERT_EQUAL(updates_of(only, &err), BIT(STREAM));
    /* what the specs' check would have refused first, and what only the engine can know */
    const char *const nowhere[] = {"update.resident=0.5", "placement.moments=host", NULL};
    const char *const rest[] = {"update.stream=0.5", "update.cpu=0", "placement.moments=host",
                                NULL};
    const char *const over[] = {"update.stream=0.8", "update.cpu=1", NULL};
    CU_ASSERT_EQUAL(updates_of(nowhere, &err), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "update.resident: no placement of its"));
    stw_error left = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(updates_of(rest, &left), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(left.text, "an admissible placement for the rest"));
    CU_ASSERT_EQUAL(updates_of(over, &err), 0);
}

static void the_plan_check_counts_shares(void) {
    const char *const shares[] = {"update.resident=0.25", "update.stream=0.5", "update.cpu=0.25",
                                  NULL};
    stw_plan *plan = plan_with(0, shares);
    uint32_t n = plan->job->n_units;
    uint32_t units[] = {stw_job_update_units(plan->job, STW_UPDATE_RESIDENT),
                        stw_job_update_units(plan->job, STW_UPDATE_STREAM), n};
    fixture_state(plan, 3, three_places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    units[0]++;
    fixture_state(plan, 3, three_places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_FAILS(stw_plan_check(plan, true, err), STW_STATUS_BAD_INPUT, "by update.resident");
    stw_plan_free(plan);
    /* the default of update.direct means none */
    const stw_place direct = FIXTURE_DIRECT;
    plan = plan_with(0, NULL);
    fixture_state(plan, 1, &direct, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_FAILS(stw_plan_check(plan, true, err), STW_STATUS_BAD_INPUT,
                "expected 0 by update.direct");
    stw_plan_free(plan);
}

/* ---- groups ---- */

static uint32_t group_of(const stw_plan *plan, const char *name) {
    for (uint32_t t = 0; t < plan->model->n_tensors; t++)
        if (strcmp(plan->model->tensors[t].name, name) == 0)
            return stw_job_param_group(plan->job, t);
    CU_FAIL("no such tensor");
    return UINT32_MAX;
}

static void the_first_group_that_matches_counts(void) {
    const char *const settings[] = {
        "optimizer.groups=[{match: [4.norm.weight]}, {match: [1d, '*.o.*'], weight_decay: 0}, "
        "{match: ['[12].*'], lr: 1e-4}, {match: ['*o*'], lr: 1e-5}]",
        NULL};
    stw_plan *plan = plan_with(0, settings);
    CU_ASSERT_EQUAL(group_of(plan, "4.norm.weight"), 1);  /* 1d too, but that comes later */
    CU_ASSERT_EQUAL(group_of(plan, "1.norm1.weight"), 2); /* by its dimension */
    CU_ASSERT_EQUAL(group_of(plan, "2.o.weight"), 2);     /* by its name */
    CU_ASSERT_EQUAL(group_of(plan, "1.qkv.weight"), 3);
    CU_ASSERT_EQUAL(group_of(plan, "3.down.weight"), 4);
    CU_ASSERT_EQUAL(group_of(plan, "3.qkv.weight"), 0); /* none: the optimizer's own */
    CU_ASSERT_EQUAL(group_of(plan, "0.embed.weight"), 0);
    stw_plan_free(plan);
    plan = plan_with(0, NULL);
    CU_ASSERT_EQUAL(group_of(plan, "1.norm1.weight"), 0);
    stw_plan_free(plan);
}

static void nvme_needs_a_capacity(void) {
    const char *const disk[] = {"placement.moments=nvme", NULL};
    stw_plan *plan = plan_with(0, disk);
    stw_place places[STW_MAX_PLACES];
    stw_error err = STW_ERROR_INIT;
    plan->cluster.nvme.capacity_bytes = 0;
    CU_ASSERT_EQUAL(stw_engine_stowage.places(plan->job, places, &err), 0);
    CU_ASSERT_STRING_EQUAL(err.text, "placement.moments: nvme needs node.nvme.capacity > 0");
    stw_plan_free(plan);
}

STW_TEST_MAIN("plan shares", {"shares become quanta", shares_become_quanta},
              {"direct is free where it is asked for", direct_is_free_where_it_is_asked_for},
              {"shares choose places", shares_choose_places},
              {"the plan's check counts shares", the_plan_check_counts_shares},
              {"the first group that matches counts", the_first_group_that_matches_counts},
              {"nvme needs a capacity", nvme_needs_a_capacity})

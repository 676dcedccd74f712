/* SPDX-License-Identifier: Apache-2.0 */
/* Random runs over models, clusters, engines and keys (tests/unit/draws.h): do the planner's rows
 * ever lie below the walk of a choice? */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/draws.h"

typedef struct asked {
    uint64_t seed, first, n, part, parts, choices, model;
    unsigned engines;
    bool verbose;
} asked;

typedef struct counts {
    uint64_t runs[4], none, choices[4], below[4], failed;
} counts;

static void look_at(draws_zoo *zoo, const asked *a, uint64_t number, counts *found) {
    draws_run run;
    uint64_t rest;
    stw_error why = STW_ERROR_INIT;
    stw_cost *cost = NULL;
    run.model =
        a->model < sizeof draws_models / sizeof draws_models[0] ? draws_models[a->model] : NULL;
    stw_plan *plan = draws_make(zoo, a->seed, number, a->engines, &run, &rest);
    if (plan == NULL) {
        found->none++;
        return;
    }
    if (a->verbose) draws_show(&run, stdout);
    found->runs[run.engine]++;
    stw_status status = stw_cost_new_bytes(plan->job, &cost, &why);
    for (uint64_t i = 0; status == STW_STATUS_OK && i < a->choices; i++) {
        stw_choice choice = stw_choice_new(cost, cost->pool);
        draws_choice(cost, &rest, &choice);
        status = draws_check(plan, cost, &choice, cost->pool, &why);
        found->choices[run.engine]++;
        if (status != STW_STATUS_BUG) continue;
        found->below[run.engine]++;
        printf("%" PRIu64 ": %s\n  ", number, why.text);
        draws_show(&run, stdout);
        printf(" ");
        draws_show_choice(cost, &choice, stdout);
    }
    if (status != STW_STATUS_OK && status != STW_STATUS_BUG && status != STW_STATUS_BAD_INPUT) {
        found->failed++;
        printf("%" PRIu64 ": %s: %s\n  ", number, why.where, why.text);
        draws_show(&run, stdout);
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

static bool option(const char *argument, const char *name, uint64_t *value) {
    const size_t length = strlen(name);
    if (strncmp(argument, name, length) != 0 || argument[length] != '=') return false;
    *value = strtoull(argument + length + 1, NULL, 10);
    return true;
}

int main(int argc, char **argv) {
    asked a = {
        .seed = 1, .n = 1000, .parts = 1, .choices = 4, .engines = DRAWS_ANY, .model = UINT64_MAX};
    uint64_t engines = DRAWS_ANY;
    counts found = {.none = 0};
    draws_zoo zoo = {.models = {NULL}};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0)
            a.verbose = true;
        else if (!option(argv[i], "seed", &a.seed) && !option(argv[i], "first", &a.first) &&
                 !option(argv[i], "n", &a.n) && !option(argv[i], "part", &a.part) &&
                 !option(argv[i], "parts", &a.parts) && !option(argv[i], "choices", &a.choices) &&
                 !option(argv[i], "engines", &engines) && !option(argv[i], "model", &a.model))
            return fprintf(stderr, "draws: found %s\n", argv[i]), 2;
    }
    a.engines = (unsigned)engines;
    for (uint64_t i = a.first + a.part; i < a.first + a.n; i += a.parts)
        look_at(&zoo, &a, i, &found);
    for (int e = 0; e < 4; e++)
        printf("%-10s %8" PRIu64 " runs %9" PRIu64 " choices %6" PRIu64 " below the walk\n",
               draws_engines[e], found.runs[e], found.choices[e], found.below[e]);
    printf("%" PRIu64 " no run, %" PRIu64 " failed, %.1f s\n", found.none, found.failed,
           (double)clock() / CLOCKS_PER_SEC);
    draws_zoo_free(&zoo);
    return found.below[0] + found.below[1] + found.below[2] + found.below[3] + found.failed > 0;
}

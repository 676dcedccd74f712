/* SPDX-License-Identifier: Apache-2.0 */
/* Random runs over models, clusters, engines and keys (tests/unit/draws.h). Do the planner's rows
 * ever lie below the walk of a choice? With verdicts=1: do plan, a row of sweep and what size asks
 * agree, and is a verdict ever worse with more memory, nodes or time? With verdicts=2: does a
 * search of layouts say what a plan with the layout that it found says? */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/draws.h"
#include "tests/unit/draws_verdicts.h"

typedef struct asked {
    uint64_t seed, first, n, part, parts, choices, model, verdicts;
    unsigned engines;
    bool verbose;
} asked;

typedef struct counts {
    uint64_t runs[4], none, choices[4], below[4], failed;
    uint64_t answers[4], compared, differ, worse[DRAWS_N_MORE];
} counts;

static void tell(const draws_run *run, uint64_t number, const char *format, ...) STW_PRINTF(3, 4);
static void tell(const draws_run *run, uint64_t number, const char *format, ...) {
    va_list arguments;
    printf("%" PRIu64 ": ", number);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n  ");
    draws_show(run, stdout);
    fflush(stdout);
}

/* The commands, each of which plans the same. @param fits out, what size asks */
static stw_status compare_commands(draws_zoo *zoo, const draws_question *q, uint64_t number,
                                   draws_answer *fits, counts *found, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    draws_answer plan = DRAWS_UNKNOWN, row = DRAWS_UNKNOWN;
    uint64_t of_plan[2] = {0}, of_row[2] = {0};
    STW_TRY(draws_command_answer(zoo, q, &plan, of_plan, err));
    STW_TRY(draws_plan_answer(q, &row, of_row, err));
    STW_TRY(draws_fit_answer(q, fits, err));
    found->answers[plan]++;
    if (plan == DRAWS_UNKNOWN || row == DRAWS_UNKNOWN || *fits == DRAWS_UNKNOWN) goto out;
    found->compared++;
    if (plan == row && row == *fits && of_plan[0] == of_row[0] && of_plan[1] == of_row[1]) goto out;
    found->differ++;
    tell(q->run, number,
         "plan: %s (%" PRIu64 ", %" PRIu64 "), sweep: %s (%" PRIu64 ", %" PRIu64 "), size: %s",
         draws_answer_name(plan), of_plan[0], of_plan[1], draws_answer_name(row), of_row[0],
         of_row[1], draws_answer_name(*fits));
out:
    return status;
}

/* The same question with more of each. */
static stw_status compare_more(const draws_question *q, draws_answer fits, uint64_t number,
                               uint64_t *rest, counts *found, stw_error *err) {
    static const double factors[] = {1.01, 1.1, 1.5};
    stw_status status = STW_STATUS_OK;
    for (int m = 0; m < DRAWS_N_MORE && fits == DRAWS_FITS; m++) {
        const double factor = factors[case_random(rest, 3)];
        char text[48];
        draws_answer now = DRAWS_UNKNOWN;
        const draws_question larger = draws_enlarge(q, (draws_more)m, factor, text);
        if (m == DRAWS_TIME || !draws_only_helps(q, (draws_more)m)) continue;
        STW_TRY(draws_fit_answer(&larger, &now, err));
        if (!draws_worse(fits, now)) continue;
        found->worse[m]++;
        tell(q->run, number, "fits, and with more %s (x %g) it does not",
             draws_more_name((draws_more)m), m == DRAWS_NODES ? 2 : factor);
    }
out:
    return status;
}

/* An answer in little time is the one in a lot of it. */
static stw_status compare_time(const draws_question *q, draws_answer fits, uint64_t number,
                               counts *found, stw_error *err) {
    draws_question hurried = *q;
    draws_answer now = DRAWS_UNKNOWN;
    hurried.time_limit_s = 0.03;
    stw_status status = draws_fit_answer(&hurried, &now, err);
    if (status != STW_STATUS_OK || now == DRAWS_UNKNOWN || fits == DRAWS_UNKNOWN || now == fits)
        return status;
    found->worse[DRAWS_TIME]++;
    tell(q->run, number, "in 0.03 s: %s; in %g s: %s", draws_answer_name(now), q->time_limit_s,
         draws_answer_name(fits));
    return status;
}

/* A search of layouts: the verdict of the layout that it chose is that of its plan, and of a plan
 * in which it is set. What size finds with any layout is so, too. */
static stw_status compare_search(const draws_question *q, uint64_t number, counts *found,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    draws_answer with_auto = DRAWS_UNKNOWN, fixed = DRAWS_UNKNOWN, sized = DRAWS_UNKNOWN;
    uint64_t peaks[2][2] = {{0}};
    bool said = false;
    char layout[512] = "", of_size[512] = "";
    draws_question open = *q;
    open.more = "parallel=auto";
    STW_TRY(draws_search_answer(&open, &with_auto, &said, layout, sizeof layout, peaks[0], err));
    found->answers[with_auto]++;
    if (with_auto < DRAWS_UNFIT) goto out;
    STW_TRY(draws_layout_answer(q, layout, &fixed, peaks[1], err));
    if (fixed != with_auto || said != (with_auto == DRAWS_FITS) || peaks[0][0] != peaks[1][0] ||
        peaks[0][1] != peaks[1][1]) {
        found->differ++;
        tell(q->run, number, "searched: %s (said: %d), set: %s, %" PRIu64 " and %" PRIu64 ": %s",
             draws_answer_name(with_auto), said, draws_answer_name(fixed), peaks[0][0], peaks[1][0],
             layout);
    }
    found->compared++;
    STW_TRY(draws_size_answer(q, &sized, of_size, sizeof of_size, err));
    if (sized != DRAWS_FITS) goto out;
    STW_TRY(draws_layout_answer(q, of_size, &fixed, peaks[1], err));
    if (fixed != DRAWS_UNFIT) goto out;
    found->differ++;
    tell(q->run, number, "size: fits, plan: does not: %s", of_size);
out:
    return status;
}

static void look_at_verdicts(draws_zoo *zoo, const asked *a, uint64_t number, counts *found) {
    draws_run run = {.model = NULL};
    uint64_t rest;
    stw_error why = STW_ERROR_INIT;
    draws_answer fits = DRAWS_UNKNOWN;
    stw_plan *plan = draws_make(zoo, a->seed, number, a->engines, &run, &rest);
    if (plan == NULL) {
        found->none++;
        return;
    }
    const draws_question q = {.model = draws_model(zoo, run.model),
                              .run = &run,
                              .cluster = *draws_cluster(zoo, run.cluster),
                              .time_limit_s = 60,
                              .nodes = plan->cluster.nodes,
                              .alone = plan->job->world == 1};
    stw_plan_free(plan);
    found->runs[run.engine]++;
    stw_status status = a->verdicts == 2 ? compare_search(&q, number, found, &why)
                                         : compare_commands(zoo, &q, number, &fits, found, &why);
    if (a->verdicts == 1 && status == STW_STATUS_OK)
        status = compare_more(&q, fits, number, &rest, found, &why);
    if (a->verdicts == 1 && status == STW_STATUS_OK)
        status = compare_time(&q, fits, number, found, &why);
    if (status == STW_STATUS_OK) return;
    found->failed++;
    tell(&run, number, "%s: %s", why.where, why.text);
}

static void look_at(draws_zoo *zoo, const asked *a, uint64_t number, counts *found) {
    draws_run run = {.model = NULL};
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
        tell(&run, number, "%s", why.text);
        printf(" ");
        draws_show_choice(cost, &choice, stdout);
    }
    if (status != STW_STATUS_OK && status != STW_STATUS_BUG && status != STW_STATUS_BAD_INPUT) {
        found->failed++;
        tell(&run, number, "%s: %s", why.where, why.text);
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

static void sum_up(const counts *found, bool verdicts) {
    for (int e = 0; e < 4 && !verdicts; e++)
        printf("%-10s %8" PRIu64 " runs %9" PRIu64 " choices %6" PRIu64 " below the walk\n",
               draws_engines[e], found->runs[e], found->choices[e], found->below[e]);
    for (int i = 0; i < 4 && verdicts; i++)
        printf("%-18s %8" PRIu64 " runs\n", draws_answer_name((draws_answer)i), found->answers[i]);
    if (verdicts)
        printf("%" PRIu64 " compared: %" PRIu64 " differ between commands\n", found->compared,
               found->differ);
    for (int m = 0; m < DRAWS_N_MORE && verdicts; m++)
        printf("%" PRIu64 " worse with more %s\n", found->worse[m], draws_more_name((draws_more)m));
    printf("%" PRIu64 " no run, %" PRIu64 " failed, %.1f s\n", found->none, found->failed,
           (double)clock() / CLOCKS_PER_SEC);
}

static bool is_bad(const counts *found) {
    uint64_t bad = found->failed + found->differ;
    for (int e = 0; e < 4; e++) bad += found->below[e];
    for (int m = 0; m < DRAWS_N_MORE; m++) bad += found->worse[m];
    return bad > 0;
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
                 !option(argv[i], "engines", &engines) && !option(argv[i], "model", &a.model) &&
                 !option(argv[i], "verdicts", &a.verdicts))
            return fprintf(stderr, "draws: found %s\n", argv[i]), 2;
    }
    a.engines = (unsigned)engines;
    for (uint64_t i = a.first + a.part; i < a.first + a.n; i += a.parts)
        a.verdicts ? look_at_verdicts(&zoo, &a, i, &found) : look_at(&zoo, &a, i, &found);
    sum_up(&found, a.verdicts != 0);
    draws_zoo_free(&zoo);
    return is_bad(&found);
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkstemp, fdopen */
/* Every allocation of a plan's layouts, programs, replay, checks and tables fails once: the call
 * says NO_MEMORY and who was out of it, and nothing leaks. The linker puts __wrap_ before the
 * pool's functions (tests/CMakeLists.txt). */
#include "core/pool.h"
#include "plan/program/check.h"
#include "plan/program/collectives.h"
#include "plan/program/shortened.h"
#include "plan/program/staging.h"
#include "tests/unit/golden_case.h"

/* ---- calls that fail ---- */

static uint32_t calls, fails_at; /* 0: none */

static bool fails(void) { return ++calls == fails_at; }

stw_pool *__real_stw_pool_new(void);
void *__real_stw_pool_alloc(stw_pool *pool, size_t size);
void *__real_stw_pool_array(stw_pool *pool, size_t n, size_t size);
void *__real_stw_pool_grow(stw_pool *pool, void *array, size_t used, size_t need, size_t *capacity,
                           size_t size);
void *__real_stw_pool_regrow(stw_pool *pool, void *array, size_t used, size_t need,
                             size_t *capacity, size_t size);
stw_pool *__wrap_stw_pool_new(void);
void *__wrap_stw_pool_alloc(stw_pool *pool, size_t size);
void *__wrap_stw_pool_array(stw_pool *pool, size_t n, size_t size);
void *__wrap_stw_pool_grow(stw_pool *pool, void *array, size_t used, size_t need, size_t *capacity,
                           size_t size);
void *__wrap_stw_pool_regrow(stw_pool *pool, void *array, size_t used, size_t need,
                             size_t *capacity, size_t size);

stw_pool *__wrap_stw_pool_new(void) { return fails() ? NULL : __real_stw_pool_new(); }

void *__wrap_stw_pool_alloc(stw_pool *pool, size_t size) {
    return fails() ? NULL : __real_stw_pool_alloc(pool, size);
}

void *__wrap_stw_pool_array(stw_pool *pool, size_t n, size_t size) {
    return fails() ? NULL : __real_stw_pool_array(pool, n, size);
}

/* Only where the array grows. */
void *__wrap_stw_pool_grow(stw_pool *pool, void *array, size_t used, size_t need, size_t *capacity,
                           size_t size) {
    if (need > *capacity && fails()) return NULL;
    return __real_stw_pool_grow(pool, array, used, need, capacity, size);
}

void *__wrap_stw_pool_regrow(stw_pool *pool, void *array, size_t used, size_t need,
                             size_t *capacity, size_t size) {
    if (need > *capacity && fails()) return NULL;
    return __real_stw_pool_regrow(pool, array, used, need, capacity, size);
}

/* ---- what allocates ---- */

typedef stw_status (*part)(stw_plan *plan, stw_error *err);

static stw_status derive(stw_plan *plan, stw_error *err) { return stw_plan_derive(plan, err); }

static stw_status check(stw_plan *plan, stw_error *err) {
    return stw_program_check(plan->job, plan->layouts[0], plan->programs[0], err);
}

static stw_status tables(stw_plan *plan, stw_error *err) {
    stw_collectives all;
    stw_ledger ledger;
    stw_status status =
        stw_program_collectives(plan->job, plan->programs[0], plan->pool, &all, err);
    if (status != STW_STATUS_OK) return status;
    return stw_ledger_of_node(plan->job, (const stw_program *const *)plan->programs, 0,
                              STW_PHASE_LOAD, plan->pool, &ledger, err);
}

static stw_status loads(stw_plan *plan, stw_error *err) {
    stw_view *pieces;
    uint32_t n;
    return stw_load_pieces(plan->job, plan->pool, &pieces, &n, err);
}

static stw_status shorten(stw_plan *plan, stw_error *err) {
    stw_average_piece piece;
    stw_job *job;
    stw_status status = stw_average_piece_of(plan->job, &piece, err);
    if (status != STW_STATUS_OK) return status;
    return stw_job_shortened(plan->job, 1000, 2, &piece, plan->pool, &job, err);
}

/* Let each call fail in its turn. Who was out of memory goes into `out`, up to the first number. */
static void walk(const char *name, stw_plan *plan, part run, stw_text *out) {
    uint32_t n = 0;
    const size_t begin = out->length;
    stw_text_printf(out, "%s", name);
    for (bool done = false; !done && n < 100000;) {
        stw_error error = STW_ERROR_INIT;
        char text[512];
        calls = 0;
        fails_at = ++n;
        const stw_status status = run(plan, &error);
        fails_at = 0;
        done = calls < n;
        CU_ASSERT_EQUAL(status, done ? STW_STATUS_OK : STW_STATUS_NO_MEMORY);
        CU_ASSERT_EQUAL(error.status, status);
        snprintf(text, sizeof text, ",%.100s: %.400s", error.where, error.text);
        text[strcspn(text, "0123456789")] = '\0';
        if (!done && strstr(out->data + begin, text) == NULL) stw_text_printf(out, "%s", text);
    }
    stw_text_printf(out, "\n");
}

static void decide(stw_plan *plan) {
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t seed = 1;
    case_choice(cost, &seed, &choice);
    CHECK_OK(stw_cost_decide(cost, &choice, plan->pool, &plan->decisions, err));
    stw_cost_free(cost);
}

static void each_allocation_fails(void) {
    static const char *const names[] = {"stowage-nvme", "fsdp2-parked", "megatron-stages",
                                        "deepspeed-3"};
    stw_text found = STW_TEXT_INIT;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t c = 0;
        while (strcmp(golden_jobs[c].name, names[i]) != 0) c++;
        stw_plan *plan = golden_plan(&golden_jobs[c]);
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        decide(plan);
        walk(names[i], plan, derive, &found);
        walk("check", plan, check, &found);
        walk("tables", plan, tables, &found);
        walk("loads", plan, loads, &found);
        walk("shortened", plan, shorten, &found);
        stw_plan_free(plan);
    }
    golden_check(STW_SOURCE_DIR "/tests/golden/no_memory.csv", &found);
    stw_text_free(&found);
}

STW_TEST_MAIN("plan_memory", {"each allocation of a plan fails once", each_allocation_fails})

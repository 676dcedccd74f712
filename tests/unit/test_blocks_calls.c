/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks as lists of calls, for every model of the zoo: lists stay below their limits, and what a
 * traced forward leaves is what the table says that it saves. */
#include "blocks/trace.h"
#include "models/zoo.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

enum { MOST_CALLS = 33, MOST_VALUES = 34, MOST_SIZES = 89 }; /* below those of list.h */

/* NULL: the model refuses such a run. */
static stw_plan *of_model(const char *name, const char *const *settings) {
    stw_error error = STW_ERROR_INIT;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *model = NULL;
    stw_plan *plan = NULL;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_model_open(name, STW_SOURCE_MODELS, &model, err));
    for (; *settings != NULL; settings++) {
        char key[64];
        const char *equals = strchr(*settings, '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - *settings), *settings);
        CHECK_OK(stw_run_spec_set(&run, key, equals + 1, "test", err));
    }
    return stw_plan_new(model, &cluster, &run, &plan, &error) == STW_STATUS_OK ? plan : NULL;
}

/* Bytes that are there when the forward of a block has ended: all that it took and did not drop. */
static uint64_t left_by_forward(const stw_job *job, const stw_calls *calls) {
    stw_pool *pool = stw_pool_new();
    stw_program program = {.pool = pool, .with_tensors = true, .n_movements = 1};
    stw_builder b = {.job = job, .program = &program};
    stw_kept kept;
    uint64_t live = 0;
    CU_ASSERT_TRUE_FATAL(stw_kept_new(pool, calls, &kept));
    stw_trace trace = {.b = &b, .job = job, .calls = calls, .kept = &kept};
    stw_tensors_instead(&b, 0);
    (void)stw_trace_forward(&trace, STW_TRACE_KEEP);
    uint64_t *bytes = stw_pool_array(pool, (size_t)program.n_tensors + 1, sizeof *bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bytes);
    for (uint32_t i = 0; i < program.n_events; i++) {
        const stw_tensor_event *e = &program.events[i];
        if (e->change == STW_TENSOR_TAKE) live += bytes[e->tensor] = e->bytes;
        if (e->change == STW_TENSOR_DROP) live -= bytes[e->tensor];
    }
    stw_pool_free(pool);
    return live;
}

static void check_group(const stw_job *job, uint32_t group, uint32_t *known) {
    stw_calls calls;
    uint64_t parts[STW_N_PARTS], saved = 0;
    stw_calls_of_group(job, group, &calls);
    CU_ASSERT_TRUE_FATAL(calls.n <= MOST_CALLS && calls.n_values <= MOST_VALUES);
    CU_ASSERT_TRUE_FATAL(calls.n_bytes <= MOST_SIZES && calls.n_ended < calls.n_values);
    if (!stw_group_is_known(job, group)) return;
    stw_group_saved(job, group, parts);
    for (int p = 0; p < STW_N_PARTS; p++) saved += parts[p];
    if (calls.values[STW_VALUE_INPUT].reads > 0) saved -= calls.bytes[0]; /* the trace has none */
    CU_ASSERT_EQUAL(left_by_forward(job, &calls),
                    saved + calls.bytes[calls.values[calls.out].size]);
    ++*known;
}

static void every_model(void) {
    static const char *const runs[][5] = {
        {"engine=fsdp2", NULL},
        {"engine=fsdp2", "trainable.lora.rank=16", "trainable.lora.targets=all-linear", NULL},
        {"engine=fsdp2", "batch.seq_len=1024", "batch.image_tokens=256", NULL},
        {"engine=fsdp2", "parallel.tp=2", "parallel.sequence_parallel=true", NULL}};
    stw_pool *pool = stw_pool_new();
    const char *const *names = NULL;
    size_t n = 0;
    uint32_t checked = 0, known = 0;
    CHECK_OK(stw_zoo_list(STW_SOURCE_MODELS, pool, &names, &n, err));
    for (size_t i = 0; i < n; i++) {
        for (size_t r = 0; r < sizeof runs / sizeof runs[0]; r++) {
            stw_plan *plan = of_model(names[i], runs[r]);
            if (plan == NULL) continue;
            for (uint32_t g = 0; g < plan->job->model->n_groups; g++)
                if (plan->job->model->groups[g].facts.transformer) {
                    check_group(plan->job, g, &known);
                    checked++;
                }
            stw_plan_free(plan);
        }
    }
    printf("%u groups, %u with an order ", checked, known);
    CU_ASSERT_TRUE(checked > 200 && known > 100);
    stw_pool_free(pool);
}

STW_TEST_MAIN("blocks", {"every model of the zoo", every_model})

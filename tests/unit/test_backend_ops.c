/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that do not suit their arenas are refused with operation, unit, stream and step; a
 * session issues phases in their order alone, adopts parameters, and takes learning rates. */
#define _DEFAULT_SOURCE
#include <math.h>

#include "backend/executor/session.h"
#include "core/log.h"
#include "tests/unit/fixture.h"
#include "tests/unit/lent.h"
#include "tests/unit/testing.h"

static const fixture_size size = {2, 64, 128, 512};
static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU, FIXTURE_NVME};
static const uint32_t quanta[] = {10, 12, 12, 0};

static stw_plan *plan_of(const char *const *settings) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, 4, places, quanta);
    plan->decisions.prefetch.bucket_bytes = 1 << 18;
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static stw_executor_options options_of(void) {
    return (stw_executor_options){.backend = "host",
                                  .steps = 2,
                                  .seed = 11,
                                  .nvme_in_memory = true,
                                  .nvme_folder = ".",
                                  .caller = lent_memory()};
}

static void same_words(const char *found, const char *expected, int line) {
    CU_ASSERT_STRING_EQUAL(found, expected);
    if (strcmp(found, expected) != 0)
        fprintf(stderr, "line %d: found    \"%s\"\n    expected \"%s\"\n", line, found, expected);
}
#define WORDS(found, expected) same_words(found, expected, __LINE__)

/* ---- operations that cannot be issued ---- */

#define MASTER "precision.params=bf16", "precision.master=fp32"
static const char *const with_master[] = {MASTER, NULL};

/* The first operation of a kind. */
static uint32_t find(const stw_plan *plan, stw_op_kind kind) {
    const stw_program *program = plan->programs[0];
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].kind == kind) return i;
    CU_FAIL_FATAL("no such operation");
    return 0;
}

/* "bucket 3 (first tensor to last tensor)", of a plan of one rank, whose buckets ascend. */
static void bucket_words(const stw_plan *plan, uint32_t b, char *out, size_t out_size) {
    const stw_bucket *bucket = &plan->layouts[0]->buckets[b];
    const stw_segment *segments = plan->job->kinds[0].spaces[STW_SPACE_OPTIMIZER].segments;
    uint32_t first = 0, last = 0;
    while (segments[first].first + segments[first].n <= bucket->first_param) first++;
    for (last = first;
         segments[last].first + segments[last].n < bucket->first_param + bucket->params;)
        last++;
    const char *a = plan->model->tensors[segments[first].tensor].name;
    const char *z = plan->model->tensors[segments[last].tensor].name;
    snprintf(out, out_size, a == z ? "bucket %u (%s)" : "bucket %u (%s to %s)", b, a, z);
}

/* A run ends with exactly these words, and those that say where. @param unit " of ..." */
static void ends(stw_plan *plan, uint32_t op, stw_status status, const char *where,
                 const char *text, const char *unit, uint64_t step, int line) {
    const stw_op *o = &plan->programs[0]->ops[op];
    for (int c = 0; c < 2; c++) {
        const stw_executor_options options = {.backend = "host",
                                              .steps = 2,
                                              .nvme_in_memory = true,
                                              .nvme_folder = ".",
                                              .one_thread = c == 1,
                                              .caller = lent_memory()};
        stw_run_result *result = NULL;
        stw_error error = STW_ERROR_INIT;
        char expected[800];
        snprintf(expected, sizeof expected, "%s [operation %u, %s%s, stream %s, step %llu]", text,
                 op, stw_op_kind_name(o->kind), unit, stw_stream_name(o->stream),
                 (unsigned long long)step);
        CU_ASSERT_EQUAL(stw_execute(plan, &options, &result, &error), status);
        CU_ASSERT_PTR_NULL(result);
        same_words(error.where, where, line);
        same_words(error.text, expected, line);
        CU_ASSERT_EQUAL(error.rank, -1);
    }
    stw_plan_free(plan);
}
#define ENDS(...) ends(__VA_ARGS__, __LINE__)

static void allocations_stay_in_their_arena(void) {
    static const stw_tier tiers[] = {STW_TIER_GPU, STW_TIER_HOST, STW_TIER_NVME};
    char text[300];
    for (int t = 0; t < 3; t++)
        for (int c = 0; c < 3; c++) {
            stw_plan *plan = plan_of(NULL);
            const unsigned long long arena = plan->layouts[0]->arena_bytes[tiers[t]];
            uint32_t i = find(plan, STW_OP_ALLOC);
            while (plan->programs[0]->ops[i].offset_bytes == STW_OFFSET_EXTERNAL ||
                   plan->programs[0]->ops[i].kind != STW_OP_ALLOC ||
                   plan->programs[0]->ops[i].to != tiers[t])
                i++;
            stw_op *op = &plan->programs[0]->ops[i];
            if (c == 0) op->offset_bytes = arena + 4096;
            if (c == 1) op->bytes = arena - op->offset_bytes + 1;
            if (c == 2) op->bytes = arena - op->offset_bytes; /* fits */
            snprintf(text, sizeof text, "%llu bytes at %llu lie outside the arena of %llu bytes",
                     (unsigned long long)op->bytes, (unsigned long long)op->offset_bytes, arena);
            if (c < 2) {
                ENDS(plan, i, STW_STATUS_BUG, stw_component_name(op->component), text, "", 0);
                continue;
            }
            const stw_executor_options options = options_of();
            stw_run_result *result = NULL;
            CHECK_OK(stw_execute(plan, &options, &result, err));
            stw_run_result_free(result);
            stw_plan_free(plan);
        }
}

static void the_plans_capacity_is_kept(void) {
    for (int c = 0; c < 2; c++) {
        stw_plan *plan = plan_of(NULL);
        const uint64_t arena = plan->layouts[0]->arena_bytes[STW_TIER_NVME];
        stw_program *program = plan->programs[0];
        uint64_t total = 0;
        uint32_t last = 0;
        char text[300];
        for (uint32_t i = 0; i < program->movements[0].n_ops; i++)
            if (program->ops[i].kind == STW_OP_ALLOC && program->ops[i].to == STW_TIER_NVME) {
                total += program->ops[i].bytes;
                last = i;
            }
        const uint64_t more =
            arena - total + (uint64_t)c; /* in the arena, but not beside the rest */
        CU_ASSERT_TRUE_FATAL(total <= arena && 2 * total > arena);
        plan->cluster.nvme.capacity_bytes = arena;
        stw_op *op = &program->ops[last];
        op->offset_bytes -= more;
        op->bytes += more;
        snprintf(text, sizeof text, "%llu bytes with %s, the plan's capacity is %llu",
                 (unsigned long long)arena + 1, stw_component_name(op->component),
                 (unsigned long long)arena);
        if (c == 1) {
            ENDS(plan, last, STW_STATUS_NO_RESOURCES, "nvme", text, "", 0);
            continue;
        }
        const stw_executor_options options = options_of();
        stw_run_result *result = NULL;
        CHECK_OK(stw_execute(plan, &options, &result, err));
        stw_run_result_free(result);
        stw_plan_free(plan);
    }
}

static void operations_name_their_unit(void) {
    char unit[300], text[300];
    stw_plan *plan = plan_of(NULL);
    uint32_t i = find(plan, STW_OP_FILE_READ);
    stw_op *op = &plan->programs[0]->ops[i];
    const stw_piece *piece = &plan->programs[0]->movements[0].transfer.pieces[op->unit];
    const unsigned long long bytes = piece->n * 4; /* seeded weights are fp32 */
    op->offset_bytes = plan->layouts[0]->arena_bytes[STW_TIER_HOST] - bytes + 4;
    snprintf(unit, sizeof unit, " of %s", plan->model->tensors[piece->tensor].name);
    snprintf(text, sizeof text, "%llu bytes at %llu are not in the host arena", bytes,
             (unsigned long long)op->offset_bytes);
    ENDS(plan, i, STW_STATUS_BUG, "load", text, unit, 0);

    for (int c = 0; c < 2; c++) { /* the moments of a bucket on their way up */
        plan = plan_of(NULL);
        const stw_movement *step =
            &plan->programs[0]->movements[plan->programs[0]->n_movements - 1];
        i = c == 0 ? plan->programs[0]->movements[1].first_op : step->first_op;
        while (plan->programs[0]->ops[i].kind != STW_OP_COPY ||
               plan->programs[0]->ops[i].to != STW_TIER_GPU)
            i++;
        op = &plan->programs[0]->ops[i];
        op->from_offset_bytes = plan->layouts[0]->arena_bytes[STW_TIER_HOST];
        CU_ASSERT_NOT_EQUAL(op->unit, STW_OP_NONE);
        char words[280];
        bucket_words(plan, op->unit, words, sizeof words);
        snprintf(unit, sizeof unit, " of %s", words);
        snprintf(text, sizeof text,
                 "range of %llu bytes at %llu is outside the arena of %llu bytes",
                 (unsigned long long)op->bytes, (unsigned long long)op->from_offset_bytes,
                 (unsigned long long)plan->layouts[0]->arena_bytes[STW_TIER_HOST]);
        ENDS(plan, i, STW_STATUS_BUG, "host", text, unit, c == 0 ? 1 : 2);
    }

    plan = plan_of(NULL); /* a bucket that is not there */
    i = find(plan, STW_OP_UPDATE);
    op = &plan->programs[0]->ops[i];
    op->unit = plan->layouts[0]->n_buckets;
    snprintf(text, sizeof text, "bucket %u of %u", op->unit, op->unit);
    snprintf(unit, sizeof unit, " of bucket %u", op->unit);
    ENDS(plan, i, STW_STATUS_BUG, "update", text, unit, 1);

    plan = plan_of(NULL); /* an operation of others */
    i = find(plan, STW_OP_COMMIT);
    op = &plan->programs[0]->ops[i];
    op->kind = STW_OP_PASS;
    op->component = STW_COMPONENT_GRADS;
    ENDS(plan, i, STW_STATUS_NOT_BUILT_IN, "pass",
         "this executor does not issue the operation \"pass\" on component grads", "", 0);
}

static void masters_have_their_params(void) {
    stw_plan *plan = plan_of(with_master);
    char text[300];
    const stw_region *regions = plan->layouts[0]->regions;
    uint32_t last = find(plan, STW_OP_MASTER);
    for (uint32_t i = last; i < plan->programs[0]->n_ops; i++)
        if (plan->programs[0]->ops[i].kind == STW_OP_MASTER &&
            regions[plan->programs[0]->ops[i].unit].first_param >
                regions[plan->programs[0]->ops[last].unit].first_param)
            last = i;
    const uint32_t unit = plan->programs[0]->ops[last].unit; /* no elements follow its own */
    const unsigned long long params = plan->layouts[0]->regions[unit].params++;
    snprintf(text, sizeof text, "this rank has params of %llu of the %llu elements of region %u",
             params, params + 1, unit);
    ENDS(plan, last, STW_STATUS_BUG, "master", text, "", 0);
}

/* ---- sessions ---- */

static stw_session *session_of(const stw_plan *plan, const stw_executor_options *options) {
    stw_session *session = NULL;
    CHECK_OK(stw_session_open(plan, options, &session, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(session);
    return session;
}

static void issue(stw_session *session, stw_phase phase, uint64_t step) {
    stw_session_sample sample;
    if (phase != STW_PHASE_LOAD) CHECK_OK(stw_session_seed_grads(session, step, err));
    CHECK_OK(stw_session_issue(session, phase, step, &sample, err));
    CU_ASSERT_TRUE(sample.seconds > 0);
}

static void steps_of(stw_session *session, uint64_t from, uint64_t to) {
    for (uint64_t step = from; step <= to; step++)
        issue(session, step == 1 ? STW_PHASE_FIRST_OPTIMIZER_STEP : STW_PHASE_OPTIMIZER_STEP, step);
}

static void phases_have_an_order(void) {
    static const struct {
        stw_phase phase;
        uint64_t step;
        const char *where, *text; /* NULL: it is issued */
    } calls[] = {{STW_PHASE_FORWARD_BACKWARD, 1, "forward_backward",
                  "Stowage executes no such movement of this plan"},
                 {STW_PHASE_FIRST_OPTIMIZER_STEP, 0, "step", "found 0, expected at least 1"},
                 {STW_PHASE_FIRST_OPTIMIZER_STEP, 1, "first_optimizer_step",
                  "the session has no parameters yet, expected \"load\" or stw_adopt_params first"},
                 {STW_PHASE_OPTIMIZER_STEP, 1, "optimizer_step",
                  "the session has no parameters yet, expected \"load\" or stw_adopt_params first"},
                 {STW_PHASE_LOAD, 0, NULL, NULL},
                 {STW_PHASE_OPTIMIZER_STEP, 0, "step", "found 0, expected at least 1"},
                 {STW_PHASE_OPTIMIZER_STEP, 1, "optimizer_step",
                  "the session has taken no step yet, expected \"first_optimizer_step\""},
                 {STW_PHASE_FIRST_OPTIMIZER_STEP, 1, NULL, NULL},
                 {STW_PHASE_FIRST_OPTIMIZER_STEP, 2, "first_optimizer_step",
                  "the session has taken its first step, expected \"optimizer_step\""},
                 {STW_PHASE_OPTIMIZER_STEP, 2, NULL, NULL},
                 {STW_PHASE_LOAD, 0, NULL, NULL},
                 {STW_PHASE_OPTIMIZER_STEP, 3, NULL, NULL}};
    stw_plan *plan = plan_of(NULL);
    const stw_executor_options options = options_of();
    stw_session *session = session_of(plan, &options);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        stw_session_sample sample = {1, 1, 1};
        stw_error error = STW_ERROR_INIT;
        CHECK_OK(stw_session_seed_grads(session, 1, err));
        const stw_status status =
            stw_session_issue(session, calls[i].phase, calls[i].step, &sample, &error);
        CU_ASSERT_EQUAL(status, calls[i].text == NULL ? STW_STATUS_OK : STW_STATUS_USAGE);
        WORDS(error.where, calls[i].text == NULL ? "" : calls[i].where);
        WORDS(error.text, calls[i].text == NULL ? "" : calls[i].text);
        const bool clips = calls[i].text == NULL && calls[i].phase != STW_PHASE_LOAD;
        CU_ASSERT_EQUAL(isnan(sample.grad_norm) == 0, clips);
        CU_ASSERT_TRUE(clips ? sample.clip_factor < 1 && sample.clip_factor > 0
                             : sample.clip_factor == 1);
        CU_ASSERT_EQUAL((sample.seconds > 0), (calls[i].text == NULL));
    }
    for (int d = 0; d <= STW_N_DIGESTS; d++) CU_ASSERT_EQUAL(stw_session_has(session, d), (d < 3));
    stw_session_close(session);
    stw_session_close(NULL);
    stw_plan_free(plan);
}

/* Parameters of another session, put where they lie, and masters made from them: as if loaded. */
static void adopted_parameters_are_as_loaded(void) {
    stw_plan *plan = plan_of(with_master);
    stw_device_config other = *lent_memory();
    stw_executor_options options = options_of(), without = options_of();
    uint64_t loaded[STW_N_DIGESTS], adopted[STW_N_DIGESTS];
    stw_session_sample sample;
    other.external[STW_TIER_GPU].address = other.external[STW_TIER_HOST].address = NULL;
    without.caller = NULL;
    stw_session *a = session_of(plan, &options), *b = session_of(plan, &without);
    issue(a, STW_PHASE_LOAD, 0);
    const stw_rank_run *from = stw_session_run(a), *to = stw_session_run(b);
    for (uint32_t i = 0; i < from->layout->n_regions; i++) {
        const stw_region *region = &from->layout->regions[i];
        if (region->component != STW_COMPONENT_PARAMS) continue;
        const void *bytes =
            region->tier == STW_TIER_GPU
                ? from->backend->device_address(from->device, region->offset_bytes, region->bytes)
                : from->backend->host_address(from->device, region->offset_bytes, region->bytes);
        CHECK_OK(to->backend->put(to->device, stw_at(region->tier, region->offset_bytes), bytes,
                                  region->bytes, err));
    }
    CHECK_FAILS(stw_session_issue(b, STW_PHASE_FIRST_OPTIMIZER_STEP, 1, &sample, err),
                STW_STATUS_USAGE, "has no parameters yet");
    CHECK_OK(stw_session_adopt(b, err));
    for (int round = 0; round < 2; round++) {
        CHECK_OK(stw_session_digest(a, loaded, err));
        CHECK_OK(stw_session_digest(b, adopted, err));
        for (int d = 0; d < STW_N_DIGESTS; d++) CU_ASSERT_EQUAL(loaded[d], adopted[d]);
        CU_ASSERT_TRUE(loaded[3] != 0 && stw_session_has(a, 3));
        steps_of(a, 1 + 2 * (uint64_t)round, 2 + 2 * (uint64_t)round);
        steps_of(b, 1 + 2 * (uint64_t)round, 2 + 2 * (uint64_t)round);
    }
    stw_session_close(a);
    stw_session_close(b);
    stw_plan_free(plan);
}

static const void *bytes_of(const stw_rank_run *run, const stw_region *region) {
    return region->tier == STW_TIER_GPU
               ? run->backend->device_address(run->device, region->offset_bytes, region->bytes)
               : run->backend->host_address(run->device, region->offset_bytes, region->bytes);
}

/* The last third of a region becomes a region, at the same place. */
static void cut_region(stw_plan *plan, uint32_t index) {
    stw_layout *layout = plan->layouts[0];
    stw_region *all = stw_pool_array(plan->pool, layout->n_regions + 1, sizeof *all);
    CU_ASSERT_PTR_NOT_NULL_FATAL(all);
    memcpy(all, layout->regions, layout->n_regions * sizeof *all);
    stw_region *first = &all[index], *last = &all[layout->n_regions++];
    const uint64_t kept = first->params - first->params / 3, each = first->bytes / first->params;
    *last = *first;
    last->first_param += kept;
    last->params -= kept;
    last->offset_bytes += kept * each;
    last->bytes -= kept * each;
    first->params = kept;
    first->bytes = kept * each;
    layout->regions = all;
}

/* Every master is its own parameter, widened, also in regions whose parameters lie in several. */
static void masters_of_several_pieces(void) {
    stw_plan *plan = plan_of(with_master);
    const stw_executor_options options = options_of();
    uint32_t regions = 0, pieces = 0;
    for (uint32_t i = plan->layouts[0]->n_regions; i-- > 0;)
        if (plan->layouts[0]->regions[i].component == STW_COMPONENT_PARAMS) cut_region(plan, i);
    stw_session *session = session_of(plan, &options);
    issue(session, STW_PHASE_LOAD, 0);
    const stw_rank_run *run = stw_session_run(session);
    for (uint32_t m = 0; m < run->layout->n_regions; m++) {
        const stw_region *master = &run->layout->regions[m];
        uint64_t found = 0, wrong = 0;
        stw_overlap part;
        if (master->component != STW_COMPONENT_MASTER || master->tier == STW_TIER_NVME) continue;
        const float *values = bytes_of(run, master);
        const stw_view wanted = stw_region_view(master, &run->spaces[master->space]);
        regions++;
        for (uint32_t p = 0; p < run->layout->n_regions; p++) {
            const stw_region *params = &run->layout->regions[p];
            if (params->component != STW_COMPONENT_PARAMS) continue;
            const uint16_t *stored = bytes_of(run, params);
            stw_meet meet =
                stw_meet_begin(wanted, stw_region_view(params, &run->spaces[params->space]));
            while (stw_meet_next_run(&meet, &part)) {
                const float *a = values + (part.a_first - master->first_param);
                const uint16_t *b = stored + (part.b_first - params->first_param);
                for (uint64_t i = 0; i < part.n; i++)
                    wrong += stw_bits_from_float(a[i]) != (uint32_t)b[i] << 16;
                found += part.n;
                pieces++;
            }
        }
        CU_ASSERT_EQUAL(found, master->params);
        CU_ASSERT_EQUAL(wrong, 0);
    }
    CU_ASSERT_TRUE(regions == 3 && pieces == 6);
    stw_session_close(session);
    stw_plan_free(plan);
}

/* Rates of a session from step 2 on are those of a plan that had them. */
static void a_session_takes_rates(void) {
    static const char *const groups =
        "optimizer.groups=[{match: [1d], weight_decay: 0.25}, {match: [\"*qkv*\"], lr: 0.5}, "
        "{match: [\"*down*\"], lr: 0.125, weight_decay: 0.5}]";
    const char *const before[] = {groups, "optimizer.lr=0.001", "optimizer.weight_decay=0.3", NULL};
    static const double rates[] = {0.01, 0.02, 0, 1000};
    stw_plan *plan = plan_of(before);
    const stw_executor_options options = options_of();
    stw_session *session = session_of(plan, &options), *plain = session_of(plan, &options);
    uint64_t digest[STW_N_DIGESTS], other[STW_N_DIGESTS];
    stw_error error = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(plan->run.optimizer.n_groups, 3);
    CU_ASSERT_EQUAL(stw_session_set_lr(session, 4, 0.1, &error), STW_STATUS_USAGE);
    WORDS(error.where, "learning rate");
    WORDS(error.text, "found parameter group 4, the plan has 4");
    error = (stw_error)STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_session_set_lr(session, 0, -0.5, &error), STW_STATUS_USAGE);
    WORDS(error.text, "found -0.5, expected 0 to 1000");
    CU_ASSERT_EQUAL(stw_session_set_lr(session, 0, (double)NAN, NULL), STW_STATUS_USAGE);
    CU_ASSERT_EQUAL(stw_session_set_lr(session, 0, 1000.1, NULL), STW_STATUS_USAGE);
    stw_session_close(plain);
    issue(session, STW_PHASE_LOAD, 0);
    steps_of(session, 1, 1);
    for (uint32_t g = 0; g < 4; g++) CHECK_OK(stw_session_set_lr(session, g, rates[g], err));
    steps_of(session, 2, 3);
    for (uint32_t g = 0; g < 4; g++) { /* what the step had */
        static const double decays[] = {0.3, 0.25, 0.3, 0.5};
        stw_adamw expected = stw_exec_adamw(stw_session_run(session), 3);
        stw_adamw_set_group(&expected, g, rates[g], decays[g], 3);
        CU_ASSERT_EQUAL(memcmp(&expected.groups[g], &stw_session_run(session)->adamw.groups[g],
                               sizeof expected.groups[g]),
                        0);
    }
    CHECK_OK(stw_session_digest(session, digest, err));
    stw_session_close(session);

    session = session_of(plan, &options); /* the same, with the plan's own numbers changed */
    issue(session, STW_PHASE_LOAD, 0);
    steps_of(session, 1, 1);
    plan->run.optimizer.lr = rates[0];
    for (uint32_t g = 1; g < 4; g++) plan->run.optimizer.groups[g - 1].lr = rates[g];
    steps_of(session, 2, 3);
    CHECK_OK(stw_session_digest(session, other, err));
    CU_ASSERT_EQUAL(memcmp(digest, other, sizeof digest), 0);
    stw_session_close(session);
    stw_plan_free(plan);
}

static void quiet(stw_log_level level, const char *text, void *state) {
    (void)level;
    (void)text;
    (void)state;
}

int main(void) {
    static const stw_test tests[] = {
        {"allocations stay in their arena", allocations_stay_in_their_arena},
        {"the plan's capacity is kept", the_plans_capacity_is_kept},
        {"operations name their unit", operations_name_their_unit},
        {"masters have their params", masters_have_their_params},
        {"masters of several pieces", masters_of_several_pieces},
        {"phases have an order", phases_have_an_order},
        {"adopted parameters are as loaded", adopted_parameters_are_as_loaded},
        {"a session takes rates", a_session_takes_rates}};
    stw_log_set(quiet, NULL);
    if (system("rm -f stowage-nvme-*") != 0) return 2; /* state of runs that failed */
    return stw_test_run_all("backend ops", tests, sizeof tests / sizeof tests[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the checks of decisions, layouts and programs refuse, word by word, and what they let pass;
 * what a builder does after its first failure. */
#include "plan/program/builder.h"
#include "plan/program/check.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size small = {3, 256, 512, 1000};

static stw_plan *new_plan(const stw_place *places, uint32_t n, const char *const *settings) {
    static const uint32_t units[] = {40, 40, 40};
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = fixture_plan(small, &cluster, settings);
    fixture_state(plan, n, places, units);
    return plan;
}

static void refused(stw_status status, const stw_error *err, const char *where, const char *text) {
    CU_ASSERT_NOT_EQUAL(status, STW_STATUS_OK);
    CU_ASSERT_EQUAL(err->status, status);
    CU_ASSERT_STRING_EQUAL(err->where, where);
    CU_ASSERT_STRING_EQUAL(err->text, text);
    if (strcmp(err->text, text) != 0) fprintf(stderr, "%s: %s\n", err->where, err->text);
}

/* ---- decisions ---- */

static void decisions_refused(const stw_plan *plan, const stw_decisions *d, const char *where,
                              const char *text) {
    stw_error error = STW_ERROR_INIT;
    const stw_status status = stw_decisions_check(plan->job, d, &error);
    CU_ASSERT_EQUAL(status, STW_STATUS_BAD_INPUT);
    refused(status, &error, where, text);
}

static void places_are_checked(void) {
    static const struct {
        stw_place place;
        bool sane;
    } found[] = {{{0, 0, 0, STW_UPDATE_RESIDENT}, true},  {{0, 0, 1, STW_UPDATE_RESIDENT}, false},
                 {{0, 1, 0, STW_UPDATE_RESIDENT}, false}, {{1, 0, 0, STW_UPDATE_RESIDENT}, false},
                 {{0, 0, 0, STW_UPDATE_STREAM}, false},   {{0, 0, 1, STW_UPDATE_STREAM}, true},
                 {{0, 0, 2, STW_UPDATE_STREAM}, true},    {{2, 0, 1, STW_UPDATE_STREAM}, false},
                 {{0, 2, 1, STW_UPDATE_STREAM}, false},   {{1, 1, 1, STW_UPDATE_STREAM}, true},
                 {{0, 0, 1, STW_UPDATE_CPU}, true},       {{1, 1, 1, STW_UPDATE_CPU}, true},
                 {{0, 0, 0, STW_UPDATE_CPU}, false},      {{0, 0, 2, STW_UPDATE_CPU}, false},
                 {{2, 1, 1, STW_UPDATE_CPU}, false},      {{0, 0, 1, STW_UPDATE_DIRECT}, true},
                 {{1, 0, 1, STW_UPDATE_DIRECT}, false},   {{0, 1, 1, STW_UPDATE_DIRECT}, false},
                 {{0, 0, 0, STW_UPDATE_DIRECT}, false},   {{0, 0, 2, STW_UPDATE_DIRECT}, false}};
    const stw_place resident = FIXTURE_RESIDENT;
    CU_ASSERT(STW_TIER_GPU == 0 && STW_TIER_HOST == 1 && STW_TIER_NVME == 2);
    stw_plan *plan = new_plan(&resident, 1, NULL);
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++) {
        char place[96], text[160];
        plan->decisions.state[0].place = found[i].place;
        stw_place_format(&found[i].place, place, sizeof place);
        snprintf(text, sizeof text, "no update can execute %s", place);
        if (found[i].sane)
            CHECK_OK(stw_decisions_check(plan->job, &plan->decisions, err));
        else
            decisions_refused(plan, &plan->decisions, "decisions", text);
    }
    stw_plan_free(plan);
}

static void decisions_are_checked(void) {
    const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM};
    static const char *const whole[] = {"engine=fsdp2", NULL};
    stw_plan *plan = new_plan(places, 2, NULL);
    const stw_decisions good = plan->decisions;
    stw_decisions *d = &plan->decisions;
    char text[200];
    CHECK_OK(stw_decisions_check(plan->job, d, err));
    d->n_state = STW_MAX_PLACES + 1;
    decisions_refused(plan, d, "decisions", "found 17 placements, at most 16 fit");
    *d = good;
    d->state[0] = good.state[1];
    d->state[1] = good.state[0];
    decisions_refused(plan, d, "decisions",
                      "placement 1 (params gpu, grads gpu, moments gpu: resident) is out of "
                      "canonical order");
    *d = good;
    d->state[1].place = d->state[0].place;
    decisions_refused(plan, d, "decisions",
                      "placement 1 (params gpu, grads gpu, moments gpu: resident) is out of "
                      "canonical order");
    *d = good;
    d->prefetch.depth = 0;
    decisions_refused(plan, d, "prefetch",
                      "found depth 0 and buckets of 1048576 B for params gpu, grads gpu, moments "
                      "host: stream, expected at least 1 and 65536 B");
    d->state[0].units += d->state[1].units; /* nothing streams: no ring is asked for */
    d->state[1].units = 0;
    CHECK_OK(stw_decisions_check(plan->job, d, err));
    *d = good;
    d->prefetch.depth = 1;
    d->prefetch.bucket_bytes = STW_BUCKET_MIN_BYTES;
    CHECK_OK(stw_decisions_check(plan->job, d, err));
    d->prefetch.bucket_bytes--;
    decisions_refused(plan, d, "prefetch",
                      "found depth 1 and buckets of 65535 B for params gpu, grads gpu, moments "
                      "host: stream, expected at least 1 and 65536 B");
    d->prefetch.by_group = true;
    CHECK_OK(stw_decisions_check(plan->job, d, err));
    *d = good;
    d->state[1].units--;
    snprintf(text, sizeof text, "placements cover %u quanta, the model has %u of %llu parameters",
             plan->job->n_units - 1, plan->job->n_units,
             (unsigned long long)plan->job->unit_params);
    decisions_refused(plan, d, "decisions", text);
    *d = good;
    d->blocks[0].count--;
    decisions_refused(plan, d, "decisions",
                      "activation policies cover 2 blocks of group layer, which has 3");
    d->blocks[0].count = 3;
    d->blocks[0].group = 2;
    decisions_refused(plan, d, "decisions",
                      "activation policies cover 0 blocks of group layer, which has 3");
    stw_plan_free(plan);

    plan = new_plan(places, 2, whole);
    decisions_refused(plan, &plan->decisions, "decisions",
                      "found 2 placements, engine fsdp2 holds all state in one");
    stw_plan_free(plan);
}

static void shares_are_checked(void) {
    const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM};
    static const char *const settings[] = {"update.resident=0.5", NULL};
    stw_plan *plan = new_plan(places, 2, settings);
    stw_error error = STW_ERROR_INIT;
    const uint32_t all = plan->job->n_units,
                   half = stw_job_update_units(plan->job, STW_UPDATE_RESIDENT);
    char text[200];
    snprintf(text, sizeof text,
             "found 40 of %u quanta updated by resident, expected %u by update.resident", all,
             half);
    refused(stw_decisions_check_shares(plan->job, &plan->decisions, &error), &error, "decisions",
            text);
    plan->decisions.state[0].units = half;
    plan->decisions.state[1].units = all - half;
    CHECK_OK(stw_decisions_check_shares(plan->job, &plan->decisions, err));
    stw_plan_free(plan);
}

/* ---- layouts ---- */

static void layout_refused(const stw_plan *plan, const char *where, const char *text) {
    stw_error error = STW_ERROR_INIT;
    const stw_status status =
        stw_program_check(plan->job, plan->layouts[0], plan->programs[0], &error);
    CU_ASSERT_EQUAL(status, STW_STATUS_BUG);
    refused(status, &error, where, text);
}

static void layouts_are_checked(void) {
    const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM};
    stw_plan *plan = new_plan(places, 2, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    stw_layout *layout = plan->layouts[0];
    stw_region *r = &layout->regions[1], was = *r;
    char text[200];
    const unsigned long long first = was.first_param, all = plan->job->kinds[0].params;
    CU_ASSERT_EQUAL(was.component, STW_COMPONENT_PARAMS);
    r->first_param++;
    snprintf(text, sizeof text, "region 1 starts at element %llu, expected %llu", first + 1, first);
    layout_refused(plan, "params", text);
    *r = was;
    r->bytes -= 4;
    snprintf(text, sizeof text, "region 1 starts at element %llu, expected %llu", first, first);
    layout_refused(plan, "params", text);
    *r = was;
    r->params--;
    r->bytes -= 4;
    snprintf(text, sizeof text, "regions cover %llu of %llu elements", all - 1, all);
    layout_refused(plan, "params", text);
    *r = was;
    r->space = STW_SPACE_GRADS; /* another space's region covers nothing of this one */
    snprintf(text, sizeof text, "regions cover %llu of %llu elements", first, all);
    layout_refused(plan, "params", text);
    *r = was;
    r->offset_bytes = layout->persistent_bytes[STW_TIER_GPU] - r->bytes;
    r->offset_bytes += 1;
    layout_refused(plan, "params", "region 1 ends beyond the persistent bytes of gpu");
    *r = was;
    r->offset_bytes = layout->regions[0].offset_bytes + layout->regions[0].bytes - 1;
    layout_refused(plan, "params", "region 1 overlaps region 0 in gpu");
    *r = was;
    layout->regions[0].offset_bytes = was.offset_bytes + was.bytes - 1;
    layout_refused(plan, "params", "region 1 overlaps region 0 in gpu");
    layout->regions[0].offset_bytes = 0;

    stw_bucket *last = &layout->buckets[layout->n_buckets - 1];
    const unsigned long long at = last->first_param, n = last->params;
    last->params--;
    snprintf(text, sizeof text, "buckets cover %llu of %llu elements", all - 1, all);
    layout_refused(plan, "buckets", text);
    last->params = 0;
    snprintf(text, sizeof text, "bucket %u starts at %llu, expected %llu", layout->n_buckets - 1,
             at, at);
    layout_refused(plan, "buckets", text);
    last->params = n;
    last->first_param++;
    snprintf(text, sizeof text, "bucket %u starts at %llu, expected %llu", layout->n_buckets - 1,
             at + 1, at);
    layout_refused(plan, "buckets", text);
    last->first_param--;
    CHECK_OK(stw_program_check(plan->job, layout, plan->programs[0], err));
    stw_plan_free(plan);
}

static void addresses_are_those_of_regions(void) {
    const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM};
    stw_plan *plan = new_plan(places, 2, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    const stw_layout *layout = plan->layouts[0];
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        const uint64_t last = r->first_param + r->params - 1;
        CU_ASSERT_PTR_EQUAL(stw_layout_region(layout, r->component, r->first_param), r);
        CU_ASSERT_PTR_EQUAL(stw_layout_region(layout, r->component, last), r);
        CU_ASSERT_EQUAL(stw_layout_address(plan->job, layout, r->component, r->first_param),
                        r->offset_bytes);
        CU_ASSERT_EQUAL(stw_layout_address(plan->job, layout, r->component, last),
                        r->offset_bytes + r->bytes - 4);
    }
    const uint64_t end = plan->job->kinds[0].params;
    CU_ASSERT_PTR_NULL(stw_layout_region(layout, STW_COMPONENT_PARAMS, end));
    CU_ASSERT_EQUAL(stw_layout_address(plan->job, layout, STW_COMPONENT_PARAMS, end), UINT64_MAX);
    CU_ASSERT_PTR_NULL(stw_layout_region(layout, STW_COMPONENT_MASTER, 0));
    stw_plan_free(plan);
}

/* ---- programs ---- */

static stw_op memory(stw_op_kind kind, stw_tier tier, uint64_t offset, uint64_t bytes) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, STW_OP_NONE);
    op.from = op.to = tier;
    op.offset_bytes = offset;
    op.bytes = bytes;
    return op;
}

static stw_op copy(uint64_t from, uint64_t to, uint64_t bytes) {
    stw_op op = stw_op_make(STW_OP_COPY, STW_STREAM_H2D, STW_OP_NONE);
    op.from = STW_TIER_HOST;
    op.to = STW_TIER_GPU;
    op.from_offset_bytes = from;
    op.offset_bytes = to;
    op.bytes = bytes;
    return op;
}

/* One executable movement of these operations. @param text NULL: it passes */
static void check_ops(stw_plan *plan, stw_op *ops, uint32_t n, const char *where,
                      const char *text) {
    stw_movement movement = {
        .phase = STW_PHASE_OPTIMIZER_STEP, .by_stowage = true, .executable = true, .n_ops = n};
    const stw_program program = {.n_ops = n, .ops = ops, .n_movements = 1, .movements = &movement};
    stw_error error = STW_ERROR_INIT;
    const stw_status status = stw_program_check(plan->job, plan->layouts[0], &program, &error);
    if (text == NULL) {
        CU_ASSERT_EQUAL(status, STW_STATUS_OK);
        if (status != STW_STATUS_OK) fprintf(stderr, "%s: %s\n", error.where, error.text);
        return;
    }
    CU_ASSERT_EQUAL(status, STW_STATUS_BUG);
    refused(status, &error, where, text);
}

static void memory_is_checked(void) {
    const stw_place resident = FIXTURE_RESIDENT;
    const stw_tier gpu = STW_TIER_GPU, host = STW_TIER_HOST;
    stw_plan *plan = new_plan(&resident, 1, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    stw_op apart[] = {memory(STW_OP_ALLOC, gpu, 0, 100), memory(STW_OP_ALLOC, gpu, 100, 100),
                      memory(STW_OP_ALLOC, host, 50, 100),
                      memory(STW_OP_ALLOC, gpu, STW_OFFSET_EXTERNAL, 7),
                      memory(STW_OP_ALLOC, gpu, STW_OFFSET_EXTERNAL, 8)};
    check_ops(plan, apart, 5, NULL, NULL);
    stw_op below[] = {memory(STW_OP_ALLOC, gpu, 100, 100), memory(STW_OP_ALLOC, gpu, 1, 100)};
    check_ops(plan, below, 2, "params",
              "operation 1 allocates bytes in gpu that operation 0 has allocated");
    stw_op above[] = {memory(STW_OP_ALLOC, gpu, 0, 100), memory(STW_OP_ALLOC, gpu, 99, 100)};
    check_ops(plan, above, 2, "params",
              "operation 1 allocates bytes in gpu that operation 0 has allocated");
    stw_op again[] = {memory(STW_OP_ALLOC, gpu, 0, 100), memory(STW_OP_FREE, gpu, 0, 100),
                      memory(STW_OP_ALLOC, gpu, 99, 100)};
    check_ops(plan, again, 3, NULL, NULL);
    stw_op freed[] = {memory(STW_OP_ALLOC, gpu, 0, 100), memory(STW_OP_FREE, gpu, 0, 100),
                      memory(STW_OP_FREE, gpu, 0, 100)};
    check_ops(plan, freed, 3, "params", "operation 2 frees bytes in gpu that are not allocated");
    for (int i = 0; i < 4; i++) {
        stw_op wrong[] = {memory(STW_OP_ALLOC, gpu, 0, 100), memory(STW_OP_FREE, gpu, 0, 100)};
        if (i == 0) wrong[1].to = host;
        if (i == 1) wrong[1].component = STW_COMPONENT_GRADS;
        if (i == 2) wrong[1].bytes++;
        if (i == 3) wrong[1].offset_bytes++;
        check_ops(plan, wrong, 2, i == 1 ? "grads" : "params",
                  i == 0 ? "operation 1 frees bytes in host that are not allocated"
                         : "operation 1 frees bytes in gpu that are not allocated");
    }
    stw_plan_free(plan);
}

static void moves_are_checked(void) {
    static const char lost[] = "operation 3 moves bytes between host and gpu that are not "
                               "allocated";
    static const struct {
        uint64_t from, to, bytes;
        bool held;
    } moves[] = {{0, 0, 150, true},   {0, 50, 150, true},  {1, 1, 199, true},
                 {0, 0, 201, false},  {2, 0, 199, false},  {0, 2, 199, false},
                 {300, 0, 10, false}, {0, 300, 10, false}, {100, 100, 100, true},
                 {199, 199, 1, true}};
    const stw_place resident = FIXTURE_RESIDENT;
    const stw_tier gpu = STW_TIER_GPU, host = STW_TIER_HOST;
    stw_plan *plan = new_plan(&resident, 1, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    for (size_t i = 0; i < sizeof moves / sizeof moves[0]; i++) {
        /* bytes may lie in several allocs that touch, in any order */
        stw_op ops[] = {memory(STW_OP_ALLOC, gpu, 100, 100), memory(STW_OP_ALLOC, gpu, 0, 100),
                        memory(STW_OP_ALLOC, host, 0, 200),
                        copy(moves[i].from, moves[i].to, moves[i].bytes)};
        check_ops(plan, ops, 4, "params", moves[i].held ? NULL : lost);
    }
    stw_op external[] = {memory(STW_OP_ALLOC, gpu, STW_OFFSET_EXTERNAL, 100),
                         memory(STW_OP_ALLOC, host, 0, 100), memory(STW_OP_ALLOC, host, 100, 100),
                         copy(0, 0, 10)};
    check_ops(plan, external, 4, "params", lost);
    stw_plan_free(plan);
}

static void order_is_checked(void) {
    const stw_place resident = FIXTURE_RESIDENT;
    stw_plan *plan = new_plan(&resident, 1, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    stw_op ops[] = {stw_op_make(STW_OP_NORM, STW_STREAM_COMPUTE, STW_OP_NONE),
                    stw_op_make(STW_OP_NORM, STW_STREAM_H2D, STW_OP_NONE),
                    stw_op_make(STW_OP_NORM, STW_STREAM_H2D, STW_OP_NONE)};
    for (uint32_t i = 0; i < 3; i++) ops[i].unit = 0;
    ops[1].after[0] = 0;
    ops[2].after[1] = 0;
    check_ops(plan, ops, 3, NULL, NULL);
    for (uint32_t a = 0; a < 2; a++)
        for (uint32_t on = 1; on < 4; on++) { /* of the same stream, itself, a later one */
            char text[128];
            stw_op wrong[] = {ops[0], ops[1], ops[2], ops[0]};
            wrong[2].after[a] = on;
            snprintf(text, sizeof text,
                     "operation 2 waits for %u, expected an earlier operation of another stream",
                     on);
            check_ops(plan, wrong, 4, "optimizer_step", text);
        }
    stw_plan_free(plan);
}

/* An operation may be for every unit that there is, and for no other. */
static void check_units(stw_plan *plan, stw_op_kind kind, uint32_t n, const char *name) {
    char text[128];
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, n - 1);
    CU_ASSERT(n > 0);
    check_ops(plan, &op, 1, NULL, NULL);
    op.unit = n;
    snprintf(text, sizeof text, "operation 0 is for unit %u, its movement has %u", n, n);
    check_ops(plan, &op, 1, name, text);
}

static void units_are_checked(void) {
    const stw_place resident = FIXTURE_RESIDENT;
    stw_plan *plan = new_plan(&resident, 1, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    check_units(plan, STW_OP_FORWARD, plan->model->n_blocks, "forward");
    check_units(plan, STW_OP_ALL_GATHER, plan->model->n_blocks, "all_gather");
    check_units(plan, STW_OP_UPDATE, plan->layouts[0]->n_buckets, "update");
    stw_op unknown = stw_op_make(STW_OP_NORM, STW_STREAM_COMPUTE, 0);
    unknown.kind = STW_N_OP_KINDS;
    check_ops(plan, &unknown, 1, "program", "operation 0 is of no known kind");
    stw_op all = stw_op_make(STW_OP_ALL_REDUCE, STW_STREAM_COMPUTE, 0);
    all.group = STW_RANK_GROUP_NONE;
    check_ops(plan, &all, 1, "all_reduce", "operation 0 names no group of ranks");
    stw_plan_free(plan);
}

static void commits_are_checked(void) {
    const stw_place resident = FIXTURE_RESIDENT;
    stw_plan *plan = new_plan(&resident, 1, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    static const char text[] = "the movement writes to NVMe and does not commit";
    stw_op write = copy(0, 0, 10), master = stw_op_make(STW_OP_MASTER, STW_STREAM_COMPUTE, 0);
    write.kind = STW_OP_NVME_WRITE;
    write.to = STW_TIER_NVME;
    write.stream = STW_STREAM_DISK_OUT;
    master.to = STW_TIER_NVME;
    stw_op ops[] = {memory(STW_OP_ALLOC, STW_TIER_HOST, 0, 10),
                    memory(STW_OP_ALLOC, STW_TIER_NVME, 0, 10), write,
                    stw_op_make(STW_OP_COMMIT, STW_STREAM_DISK_OUT, STW_OP_NONE), write};
    check_ops(plan, ops, 3, "optimizer_step", text);
    check_ops(plan, ops, 4, NULL, NULL);
    check_ops(plan, ops, 5, "optimizer_step", text);
    ops[2] = master;
    check_ops(plan, ops, 3, "optimizer_step", text);
    check_ops(plan, ops, 4, NULL, NULL);
    ops[2].to = STW_TIER_GPU;
    check_ops(plan, ops, 3, NULL, NULL);
    stw_plan_free(plan);
}

/* ---- builders ---- */

static void builders_stop_at_their_first_failure(void) {
    const stw_place resident = FIXTURE_RESIDENT;
    stw_plan *plan = new_plan(&resident, 1, NULL);
    stw_error error = STW_ERROR_INIT;
    stw_builder b;
    CHECK_OK(stw_plan_derive(plan, err));
    stw_program program = {.pool = plan->pool};
    stw_builder_init(&b, plan->job, &plan->decisions, plan->layouts[0], &program, &error);
    stw_begin_movement(&b, (stw_movement){.phase = STW_PHASE_LOAD, .executable = true});
    CU_ASSERT_STRING_EQUAL(program.movements[0].role, "trainer");
    CU_ASSERT_FALSE(program.movements[0].executable); /* it is not Stowage's */
    const stw_extent extent = stw_alloc(&b, STW_COMPONENT_STAGE, STW_TIER_GPU, 100);
    stw_free(&b, STW_COMPONENT_STAGE, STW_TIER_GPU, extent);
    CU_ASSERT_EQUAL(program.n_ops, 2);
    stw_free(&b, STW_COMPONENT_STAGE, STW_TIER_GPU, extent);
    refused(stw_builder_finish(&b), &error, "program", "stage freed that was not live");
    CU_ASSERT_EQUAL(b.status, STW_STATUS_BUG);
    stw_free(&b, STW_COMPONENT_STAGE, STW_TIER_GPU, extent);
    (void)stw_alloc(&b, STW_COMPONENT_STAGE, STW_TIER_GPU, 100);
    CU_ASSERT_EQUAL(b.transient[STW_TIER_GPU].n, 0);
    stw_build_commit(&b);
    stw_begin_movement(&b, (stw_movement){.phase = STW_PHASE_OPTIMIZER_STEP});
    stw_end_movement(&b);
    const stw_op pass = stw_op_make(STW_OP_PASS, STW_STREAM_COMPUTE, STW_OP_NONE);
    CU_ASSERT_EQUAL(stw_append(&b, pass), STW_OP_NONE);
    CU_ASSERT_EQUAL(program.n_ops, 2);
    CU_ASSERT_EQUAL(program.n_movements, 1);
    CU_ASSERT_EQUAL(program.movements[0].n_ops, 0); /* it has not ended */

    error = (stw_error)STW_ERROR_INIT;
    program = (stw_program){.pool = plan->pool, .n_ops = STW_MAX_OPS};
    stw_builder_init(&b, plan->job, &plan->decisions, plan->layouts[0], &program, &error);
    CU_ASSERT_EQUAL(stw_append(&b, pass), STW_OP_NONE);
    refused(stw_builder_finish(&b), &error, "program",
            "found more than 4194304 operations in the program of a rank, expected at most so "
            "many: use more ranks, larger buckets or a smaller model");
    CU_ASSERT_EQUAL(program.n_ops, STW_MAX_OPS);
    stw_plan_free(plan);
}

/* First fit above the persistent bytes, in whole pages; zero bytes are nothing. */
static void transient_bytes_fit_first(void) {
    const stw_place resident = FIXTURE_RESIDENT;
    const stw_tier host = STW_TIER_HOST;
    const stw_component stage = STW_COMPONENT_STAGE;
    stw_plan *plan = new_plan(&resident, 1, NULL);
    stw_error error = STW_ERROR_INIT;
    stw_builder b;
    CHECK_OK(stw_plan_derive(plan, err));
    stw_program program = {.pool = plan->pool};
    stw_layout layout = *plan->layouts[0];
    layout.persistent_bytes[host] = 8192;
    stw_builder_init(&b, plan->job, &plan->decisions, &layout, &program, &error);
    stw_begin_movement(&b, (stw_movement){.phase = STW_PHASE_LOAD});
    const stw_extent one = stw_alloc(&b, stage, host, 1), two = stw_alloc(&b, stage, host, 4097),
                     three = stw_alloc(&b, stage, host, 4096);
    CU_ASSERT(one.offset == 8192 && two.offset == 12288 && three.offset == 20480);
    CU_ASSERT(one.alloc == 0 && two.alloc == 1 && three.alloc == 2);
    CU_ASSERT_EQUAL(stw_alloc(&b, stage, host, 0).alloc, STW_OP_NONE);
    stw_free(&b, stage, host, two);
    const stw_extent over = stw_alloc(&b, stage, host, 8193);
    CU_ASSERT_EQUAL(over.offset, 24576);
    const stw_extent in = stw_alloc(&b, stage, host, 8192);
    CU_ASSERT_EQUAL(in.offset, 12288);
    stw_free(&b, stage, host, one);
    CU_ASSERT_EQUAL(stw_alloc(&b, stage, host, 4096).offset, 8192);
    CU_ASSERT_EQUAL(stw_alloc(&b, stage, host, 1).offset, 36864);
    stw_free_after(&b, stage, host, STW_NO_EXTENT, 0);
    CU_ASSERT_EQUAL(program.n_ops, 9);
    stw_end_movement(&b);
    CU_ASSERT_EQUAL(program.movements[0].n_ops, 9);
    CU_ASSERT_EQUAL(stw_builder_finish(&b), STW_STATUS_OK);
    stw_plan_free(plan);
}

STW_TEST_MAIN("plan_refused", {"placements", places_are_checked},
              {"decisions", decisions_are_checked}, {"shares of updates", shares_are_checked},
              {"layouts", layouts_are_checked},
              {"addresses are those of regions", addresses_are_those_of_regions},
              {"memory", memory_is_checked}, {"moves", moves_are_checked},
              {"order", order_is_checked}, {"units", units_are_checked},
              {"commits", commits_are_checked},
              {"builders stop at their first failure", builders_stop_at_their_first_failure},
              {"transient bytes fit first", transient_bytes_fit_first})

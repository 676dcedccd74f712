/* SPDX-License-Identifier: Apache-2.0 */
/* State that a trainer moves to the host between its updates: what is where in each phase, how much
 * is page-locked, and what a framework's way of copying adds. */
#include "engines/park.h"

#include "core/checked.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size size = {4, 1024, 4096, 32000};
enum { GPUS = 4 };

static stw_plan *make(const char *const *settings) {
    const stw_cluster cluster = fixture_cluster(GPUS);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    stw_place places[STW_MAX_PLACES];
    stw_decisions *d = &plan->decisions;
    CU_ASSERT_TRUE_FATAL(plan->job->engine->places(plan->job, places, NULL) > 0);
    d->n_state = 1;
    d->state[0] = (stw_state_decision){places[0], plan->job->n_units};
    d->prefetch.by_group = true;
    d->prefetch.depth = 1;
    d->prefetch.bucket_bytes = 0;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    return plan;
}

/* Live bytes of a component where a movement begins. */
static uint64_t at_begin(const stw_plan *plan, stw_phase phase, stw_tier tier,
                         stw_component component) {
    const stw_program *program = plan->programs[0];
    const stw_movement *m = stw_program_movement(program, phase);
    stw_live live = {0};
    for (uint32_t i = 0; i < m->first_op; i++) stw_live_apply(&live, &program->ops[i]);
    return live.bytes[tier][component];
}

static const stw_peak *peak_of(const stw_plan *plan, stw_phase phase, stw_tier tier) {
    return &plan->peaks[0].phase[phase][tier];
}

static double copied(const stw_plan *plan, stw_phase phase, stw_tier to, stw_component component) {
    const stw_program *program = plan->programs[0];
    const stw_movement *m = stw_program_movement(program, phase);
    double bytes = 0;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (program->ops[i].kind == STW_OP_COPY && program->ops[i].to == to &&
            program->ops[i].component == component)
            bytes += (double)program->ops[i].bytes;
    return bytes;
}

/* Parameters come back before forward and leave after the step, through pageable memory. */
static void fsdp2_parks_parameters(void) {
    const char *settings[] = {"engine=fsdp2", "park.params=host", NULL},
               *none[] = {"engine=fsdp2", NULL};
    stw_plan *plan = make(settings), *all = make(none);
    const uint64_t bytes = 4 * plan->job->kinds[0].params;
    const stw_phase fb = STW_PHASE_FORWARD_BACKWARD, step = STW_PHASE_OPTIMIZER_STEP;
    CU_ASSERT_EQUAL(at_begin(plan, fb, STW_TIER_GPU, STW_COMPONENT_PARAMS), 0);
    CU_ASSERT_EQUAL(at_begin(plan, fb, STW_TIER_HOST, STW_COMPONENT_PARAMS), bytes);
    CU_ASSERT_EQUAL(at_begin(plan, step, STW_TIER_GPU, STW_COMPONENT_PARAMS), bytes);
    CU_ASSERT_EQUAL(at_begin(plan, step, STW_TIER_HOST, STW_COMPONENT_PARAMS), 0);
    CU_ASSERT_EQUAL(copied(plan, fb, STW_TIER_GPU, STW_COMPONENT_PARAMS), (double)bytes);
    CU_ASSERT_EQUAL(copied(plan, fb, STW_TIER_HOST, STW_COMPONENT_PARAMS), 0);
    CU_ASSERT_EQUAL(copied(plan, step, STW_TIER_HOST, STW_COMPONENT_PARAMS), (double)bytes);
    CU_ASSERT_EQUAL(peak_of(plan, fb, STW_TIER_HOST)->page_locked, 0);
    CU_ASSERT_EQUAL(peak_of(plan, fb, STW_TIER_GPU)->total, peak_of(all, fb, STW_TIER_GPU)->total);
    CU_ASSERT_EQUAL(peak_of(plan, step, STW_TIER_GPU)->total,
                    peak_of(all, step, STW_TIER_GPU)->total);
    CU_ASSERT_EQUAL(peak_of(plan, step, STW_TIER_HOST)->total,
                    peak_of(all, step, STW_TIER_HOST)->total + bytes);
    stw_plan_free(plan);
    stw_plan_free(all);
}

/* Moments that come back with the parameters are there in forward and backward. */
static void moments_before_forward(void) {
    const char *late[] = {"engine=fsdp2", "park.moments=host", NULL};
    const char *early[] = {"engine=fsdp2", "park.moments=host",
                           "park.moments_back=forward_backward", NULL};
    stw_plan *a = make(late), *b = make(early);
    const uint64_t bytes = 8 * a->job->kinds[0].params;
    const stw_phase fb = STW_PHASE_FORWARD_BACKWARD, step = STW_PHASE_OPTIMIZER_STEP;
    CU_ASSERT_EQUAL(peak_of(b, fb, STW_TIER_GPU)->total,
                    peak_of(a, fb, STW_TIER_GPU)->total + bytes);
    CU_ASSERT_EQUAL(peak_of(b, step, STW_TIER_GPU)->total, peak_of(a, step, STW_TIER_GPU)->total);
    /* page-locked copies are made once and stay */
    CU_ASSERT_EQUAL(peak_of(a, step, STW_TIER_HOST)->page_locked,
                    peak_of(b, fb, STW_TIER_HOST)->page_locked);
    CU_ASSERT_TRUE(peak_of(a, step, STW_TIER_HOST)->page_locked >= bytes);
    /* the allocator's model sees the same bytes */
    CU_ASSERT_TRUE(b->replayed[0].most[fb].allocated_bytes >=
                   a->replayed[0].most[fb].allocated_bytes + bytes);
    stw_plan_free(a);
    stw_plan_free(b);
}

#define MEGATRON                                                                                   \
    "engine=megatron", "precision.params=bf16", "precision.master=fp32", "park.params=host"

/* verl pull request 6193: a page-locked copy that is made before the old one goes is held twice,
 * and a pageable one stands beside both. Gradients are freed without a copy. */
static void megatron_copies(void) {
    const char *reused[] = {MEGATRON, "park.grads=host", NULL};
    const char *fresh[] = {MEGATRON, "park.grads=host", "park.reuse_copies=false", NULL};
    stw_plan *a = make(reused), *b = make(fresh);
    const stw_phase fb = STW_PHASE_FORWARD_BACKWARD, step = STW_PHASE_OPTIMIZER_STEP;
    const uint64_t one = peak_of(a, step, STW_TIER_HOST)->page_locked;
    const uint64_t bytes = 2 * a->job->kinds[0].params;
    CU_ASSERT_TRUE(one >= bytes && one < 2 * bytes + (2 << 20) && (one & (one - 1)) == 0);
    CU_ASSERT_EQUAL(peak_of(b, step, STW_TIER_HOST)->page_locked, 2 * one);
    CU_ASSERT_TRUE(peak_of(b, step, STW_TIER_HOST)->total >= 2 * one + bytes);
    CU_ASSERT_EQUAL(at_begin(a, fb, STW_TIER_GPU, STW_COMPONENT_GRADS), 0);
    CU_ASSERT_EQUAL(at_begin(a, fb, STW_TIER_HOST, STW_COMPONENT_GRADS), 0);
    CU_ASSERT_TRUE(at_begin(a, step, STW_TIER_GPU, STW_COMPONENT_GRADS) >= 2 * bytes);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* Main parameters and moments leave with what the first step has made. */
static void megatron_moments(void) {
    const char *settings[] = {MEGATRON, "park.moments=host", NULL};
    stw_plan *plan = make(settings);
    const uint64_t share = 4 * stw_job_placed_params(plan->job, 0);
    const stw_phase fb = STW_PHASE_FORWARD_BACKWARD, step = STW_PHASE_OPTIMIZER_STEP;
    static const stw_component all[] = {STW_COMPONENT_MASTER, STW_COMPONENT_EXP_AVG,
                                        STW_COMPONENT_EXP_AVG_SQ};
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(at_begin(plan, fb, STW_TIER_GPU, all[i]), 0);
        CU_ASSERT_TRUE(at_begin(plan, fb, STW_TIER_HOST, all[i]) >= share);
        CU_ASSERT_TRUE(peak_of(plan, step, STW_TIER_GPU)->components[all[i]] >= share);
    }
    stw_plan_free(plan);
}

/* State comes back once in an iteration, not before every micro batch. */
static void state_comes_back_once(void) {
    const char *fsdp2[] = {"engine=fsdp2",
                           "park.params=host",
                           "park.moments=host",
                           "park.moments_back=forward_backward",
                           "batch.grad_accumulation=4",
                           NULL};
    const char *megatron[] = {MEGATRON,
                              "park.params=host",
                              "park.moments=host",
                              "park.moments_back=forward_backward",
                              "batch.grad_accumulation=4",
                              NULL};
    for (int e = 0; e < 2; e++) {
        stw_plan *plan = make(e == 0 ? fsdp2 : megatron);
        const stw_program *program = plan->programs[0];
        const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
        uint32_t copies = 0;
        for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            if (op->kind != STW_OP_COPY || op->to != STW_TIER_GPU) continue;
            CU_ASSERT_EQUAL(op->once_in, 4);
            copies++;
        }
        CU_ASSERT_TRUE(copies >= 3); /* parameters and both moments */
        stw_plan_free(plan);
    }
}

/* Copies for switching models: page-locked for the whole run, block by block. */
static void backups(void) {
    const char *none[] = {MEGATRON, NULL}, *two[] = {MEGATRON, "park.backups=2", NULL};
    stw_plan *a = make(none), *b = make(two);
    const uint64_t bytes = 2 * 2 * a->job->kinds[0].params;
    for (int p = 0; p < STW_N_PHASES; p++) {
        if (!a->peaks[0].has[p]) continue;
        const uint64_t more = peak_of(b, (stw_phase)p, STW_TIER_HOST)->page_locked -
                              peak_of(a, (stw_phase)p, STW_TIER_HOST)->page_locked;
        CU_ASSERT_TRUE(more >= bytes && more < 2 * bytes);
    }
    stw_plan_free(a);
    stw_plan_free(b);
}

/* Live bytes where a movement ends. */
static uint64_t at_end(const stw_plan *plan, stw_phase phase, stw_tier tier,
                       stw_component component) {
    const stw_program *program = plan->programs[0];
    const stw_movement *m = stw_program_movement(program, phase);
    stw_live live = {0};
    for (uint32_t i = 0; i < m->first_op + m->n_ops; i++) stw_live_apply(&live, &program->ops[i]);
    return live.bytes[tier][component];
}

/* Hand figures: fp32 parameters, gradients and two moments of 4 bytes each. What is page-locked on
 * the host stays there when the state is back; gradients have no copy. */
static void stowage_parks_all(void) {
    const char *settings[] = {"engine=stowage",  "placement.moments=gpu", "park.params=host",
                              "park.grads=host", "park.moments=host",     NULL};
    const char *none[] = {"engine=stowage", "placement.moments=gpu", NULL};
    stw_plan *plan = make(settings), *all = make(none);
    const uint64_t n = plan->job->kinds[0].params;
    const stw_phase load = STW_PHASE_LOAD, fb = STW_PHASE_FORWARD_BACKWARD;
    const stw_phase steps[] = {STW_PHASE_FIRST_OPTIMIZER_STEP, STW_PHASE_OPTIMIZER_STEP};
    const stw_component moved[] = {STW_COMPONENT_PARAMS, STW_COMPONENT_EXP_AVG,
                                   STW_COMPONENT_EXP_AVG_SQ};
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(at_end(plan, load, STW_TIER_GPU, moved[i]), 0);
        CU_ASSERT_EQUAL(at_end(plan, load, STW_TIER_HOST, moved[i]), 4 * n);
        CU_ASSERT_EQUAL(copied(plan, load, STW_TIER_HOST, moved[i]), 4.0 * (double)n);
        const uint64_t back = i == 0 ? 4 * n : 0; /* moments come back for the step */
        CU_ASSERT_EQUAL(at_end(plan, fb, STW_TIER_GPU, moved[i]), back);
        CU_ASSERT_EQUAL(copied(plan, fb, STW_TIER_GPU, moved[i]), (double)back);
        CU_ASSERT_EQUAL(at_end(plan, fb, STW_TIER_HOST, moved[i]), 4 * n);
        for (int s = 0; s < 2; s++) {
            CU_ASSERT_EQUAL(at_end(plan, steps[s], STW_TIER_GPU, moved[i]), 0);
            CU_ASSERT_EQUAL(at_end(plan, steps[s], STW_TIER_HOST, moved[i]), 4 * n);
            CU_ASSERT_EQUAL(copied(plan, steps[s], STW_TIER_HOST, moved[i]), 4.0 * (double)n);
            CU_ASSERT_EQUAL(copied(plan, steps[s], STW_TIER_GPU, moved[i]),
                            i == 0 ? 0.0 : 4.0 * (double)n);
        }
    }
    CU_ASSERT_EQUAL(at_end(plan, load, STW_TIER_GPU, STW_COMPONENT_GRADS), 0);
    CU_ASSERT_EQUAL(at_end(plan, fb, STW_TIER_GPU, STW_COMPONENT_GRADS), 4 * n);
    CU_ASSERT_EQUAL(at_end(plan, steps[1], STW_TIER_GPU, STW_COMPONENT_GRADS), 0);
    CU_ASSERT_EQUAL(at_end(plan, steps[1], STW_TIER_HOST, STW_COMPONENT_GRADS), 0);
    CU_ASSERT_EQUAL(copied(plan, steps[1], STW_TIER_HOST, STW_COMPONENT_GRADS), 0);
    for (int s = 0; s < 2; s++) {
        CU_ASSERT_EQUAL(peak_of(plan, steps[s], STW_TIER_GPU)->total,
                        peak_of(all, steps[s], STW_TIER_GPU)->total);
        CU_ASSERT_EQUAL(peak_of(plan, steps[s], STW_TIER_HOST)->page_locked,
                        peak_of(all, steps[s], STW_TIER_HOST)->page_locked + 12 * n);
    }
    CU_ASSERT_EQUAL(peak_of(plan, fb, STW_TIER_GPU)->total + 8 * n,
                    peak_of(all, fb, STW_TIER_GPU)->total);
    stw_plan_free(plan);
    stw_plan_free(all);
}

/* Nobody executes it, and the program says so; without parking Stowage does. */
static void parked_steps_are_planned_alone(void) {
    const char *parked[] = {"engine=stowage", "park.grads=host", NULL};
    const char *none[] = {"engine=stowage", NULL};
    stw_plan *a = make(parked), *b = make(none);
    const stw_phase phases[] = {STW_PHASE_LOAD, STW_PHASE_FIRST_OPTIMIZER_STEP,
                                STW_PHASE_OPTIMIZER_STEP};
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_FALSE(stw_program_movement(a->programs[0], phases[i])->executable);
        CU_ASSERT_TRUE(stw_program_movement(b->programs[0], phases[i])->executable);
    }
    stw_plan_free(a);
    stw_plan_free(b);
}

/* State leaves when every bucket is done: a copy to the host waits for all streams. */
static void streams_end_before_parking(void) {
    const char *settings[] = {"engine=stowage",  "placement.params=gpu", "placement.moments=host",
                              "update.stream=1", "park.params=host",     NULL};
    stw_plan *plan = make(settings);
    const stw_program *program = plan->programs[0];
    const stw_movement *m = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    uint32_t last_down = STW_OP_NONE, leaves = STW_OP_NONE;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if (op->kind != STW_OP_COPY || op->to != STW_TIER_HOST) continue;
        if (op->component == STW_COMPONENT_PARAMS && leaves == STW_OP_NONE) leaves = i;
        if (op->component == STW_COMPONENT_EXP_AVG_SQ) last_down = i;
    }
    CU_ASSERT_TRUE_FATAL(last_down != STW_OP_NONE && leaves != STW_OP_NONE && leaves > last_down);
    const uint32_t after = program->ops[leaves].after[0];
    CU_ASSERT_TRUE_FATAL(after != STW_OP_NONE && after > last_down);
    bool waits = false;
    for (uint32_t i = last_down + 1; i <= after; i++)
        waits =
            waits || (program->ops[i].kind == STW_OP_IDLE && program->ops[i].after[0] == last_down);
    CU_ASSERT_TRUE(waits);
    stw_plan_free(plan);
}

/* Only state that a placement keeps on the GPU is parked. */
static void stowage_parks_what_lies_on_gpus(void) {
    const char *settings[] = {"engine=stowage", "park.moments=host", NULL};
    const stw_cluster cluster = fixture_cluster(GPUS);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    stw_place places[STW_MAX_PLACES];
    const uint32_t n = plan->job->engine->places(plan->job, places, NULL);
    CU_ASSERT_TRUE(n > 0);
    for (uint32_t i = 0; i < n; i++) CU_ASSERT_EQUAL(places[i].moments, STW_TIER_GPU);
    stw_plan_free(plan);
}

STW_TEST_MAIN("engine park", {"FSDP2 parks parameters", fsdp2_parks_parameters},
              {"moments before forward", moments_before_forward},
              {"Megatron's copies", megatron_copies}, {"Megatron's moments", megatron_moments},
              {"state comes back once", state_comes_back_once}, {"backups", backups},
              {"Stowage parks all", stowage_parks_all},
              {"parked steps are planned alone", parked_steps_are_planned_alone},
              {"streams end before parking", streams_end_before_parking},
              {"Stowage parks what lies on GPUs", stowage_parks_what_lies_on_gpus})

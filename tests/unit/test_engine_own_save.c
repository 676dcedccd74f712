/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that Stowage writes: what each rank writes from where, through which buckets, and for
 * how long the next step waits. */
#include "engines/own_save.h"

#include <math.h>

#include "engines/save_plan.h"
#include "sim/sim.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size size = {4, 1024, 4096, 32000}; /* 95,691,776 parameters */
#define PARAMS 95691776ull
#define BUCKET (32ull << 20)
#define MIB (1ull << 20)
static const double WRITE_BPS = 2e9, COPY_BPS = 50e9, COPY_S = 10e-6; /* fixture_cluster */

#define SAVES "checkpoint.every=1000", "batch.seq_len=128"
#define FSDP2 "engine=fsdp2", "optimizer.implementation=stowage"

/* All state in the first place that the settings admit. */
static stw_plan *make(uint32_t gpus, const char *const *settings) {
    const stw_cluster cluster = fixture_cluster(gpus);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    stw_place places[STW_MAX_PLACES];
    stw_decisions *d = &plan->decisions;
    CU_ASSERT_TRUE_FATAL(plan->job->engine->places(plan->job, places, NULL) > 0);
    d->n_state = 1;
    d->state[0] = (stw_state_decision){places[0], plan->job->n_units};
    d->prefetch.depth = 2;
    d->prefetch.bucket_bytes = BUCKET;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    plan->verdict = STW_VERDICT_FITS;
    return plan;
}

/* Bytes of operations of a kind in the save of all ranks, from a tier. */
static uint64_t moved(const stw_plan *plan, stw_op_kind kind, stw_tier from) {
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        const stw_program *p = plan->programs[k];
        const stw_movement *m = stw_program_movement(p, STW_PHASE_CHECKPOINT);
        for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
            if (p->ops[i].kind == kind && p->ops[i].from == from)
                bytes += p->ops[i].bytes * plan->job->kinds[k].n_ranks;
    }
    return bytes;
}

static uint64_t written(const stw_plan *plan) {
    return moved(plan, STW_OP_FILE_WRITE, STW_TIER_HOST);
}

static const stw_save_plan *saves_of(const stw_plan *plan) {
    const stw_save_plan *saves = NULL;
    CHECK_OK(stw_save_plan_of(plan->job, &saves, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(saves);
    return saves;
}

static uint64_t staged(const stw_plan *plan, stw_phase phase) {
    return plan->peaks[0].phase[phase][STW_TIER_HOST].components[STW_COMPONENT_CHECKPOINT_STAGING];
}

/* ---- bytes ---- */

static void everything_is_written_once(void) {
    static const struct {
        const char *settings[6];
        uint64_t element; /* bytes of each parameter */
    } cases[] = {
        {{SAVES}, 12},
        {{SAVES, FSDP2}, 12},
        {{SAVES, "parallel.dp_replicate=2"}, 12},
        {{SAVES, FSDP2, "parallel.dp_replicate=2"}, 12},
        {{SAVES, "checkpoint.contents=[model]"}, 4},
        {{SAVES, "checkpoint.contents=[optimizer]"}, 8},
        {{SAVES, "precision.params=bf16", "precision.master=fp32"}, 14},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = make(4, cases[i].settings);
        const stw_program *p = plan->programs[0];
        const stw_movement *m = stw_program_movement(p, STW_PHASE_CHECKPOINT);
        const stw_save_plan *saves = saves_of(plan);
        uint64_t programs = 0;
        /* programs are those of the rank of their kind that writes the most */
        for (uint32_t k = 0; k < plan->job->n_kinds; k++)
            programs += saves->kinds[k].bytes * plan->job->kinds[k].n_ranks;
        CU_ASSERT_EQUAL(saves->bytes - saves->header_bytes, cases[i].element * PARAMS);
        CU_ASSERT_EQUAL(written(plan), programs);
        CU_ASSERT_TRUE(programs >= saves->bytes && programs < saves->bytes + saves->bytes / 16);
        CU_ASSERT_TRUE(m->by_stowage && m->behind && !m->executable);
        for (uint32_t op = m->first_op; op < m->first_op + m->n_ops; op++)
            CU_ASSERT_FALSE(stw_op_is(&p->ops[op], STW_OP_CLASS_COLLECTIVE));
        CU_ASSERT_EQUAL(m->files, cases[i].element == 12 || cases[i].element == 14 ? 2 : 1);
        stw_plan_free(plan);
    }
}

/* Whole tensors of up to 5 GiB together. Of 4 layers in fp32, in GB: the embedding 4.20, q, k and v
 * 0.54, o 0.27, gate and up 1.88, down 0.94. The first file ends with the first layer's o, the next
 * three with that of the next layer, and the fifth has what is left. Moments take eight: both of
 * a tensor follow each other. */
static void files_of_whole_tensors(void) {
    static const fixture_size large = {4, 8192, 28672, 128256};
    static const char *const all[] = {SAVES, NULL};
    static const char *const model[] = {SAVES, "checkpoint.contents=[model]", NULL};
    const stw_cluster cluster = fixture_cluster(4);
    stw_plan *a = fixture_plan(large, &cluster, all), *b = fixture_plan(large, &cluster, model);
    CU_ASSERT_EQUAL(saves_of(a)->n_files, 13);
    CU_ASSERT_EQUAL(saves_of(b)->n_files, 5);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* Buckets on the host stay; the rest of the host is as without checkpoints. */
static void two_buckets_on_the_host(void) {
    static const char *const none[] = {"batch.seq_len=128", NULL}, *const two[] = {SAVES, NULL};
    static const char *const more[] = {SAVES, "checkpoint.copies=100MiB", NULL};
    stw_plan *a = make(2, none), *b = make(2, two), *c = make(2, more);
    const stw_phase phases[] = {STW_PHASE_LOAD, STW_PHASE_FORWARD_BACKWARD,
                                STW_PHASE_OPTIMIZER_STEP};
    for (size_t i = 0; i < 3; i++) {
        const stw_peak *without = &a->peaks[0].phase[phases[i]][STW_TIER_HOST];
        const stw_peak *with = &b->peaks[0].phase[phases[i]][STW_TIER_HOST];
        CU_ASSERT_EQUAL(staged(b, phases[i]), 64 * MIB);
        CU_ASSERT_EQUAL(staged(c, phases[i]), 192 * MIB); /* whole buckets */
        if (phases[i] != STW_PHASE_LOAD) CU_ASSERT_EQUAL(with->total - without->total, 64 * MIB);
    }
    CU_ASSERT_EQUAL(staged(b, STW_PHASE_CHECKPOINT), 64 * MIB);
    stw_plan_free(a);
    stw_plan_free(b);
    stw_plan_free(c);
}

/* Nothing passes through a GPU or NVMe that does not lie there. */
static void state_is_read_where_it_lies(void) {
    static const char *const host[] = {SAVES, "placement.moments=host", NULL};
    static const char *const nvme[] = {SAVES, "placement.moments=nvme", NULL};
    stw_plan *a = make(2, host), *b = make(2, nvme);
    CU_ASSERT_EQUAL(moved(a, STW_OP_COPY, STW_TIER_GPU), 4 * PARAMS);
    CU_ASSERT_EQUAL(moved(a, STW_OP_NVME_READ, STW_TIER_NVME), 0);
    CU_ASSERT_EQUAL(moved(b, STW_OP_COPY, STW_TIER_GPU), 4 * PARAMS);
    CU_ASSERT_EQUAL(moved(a, STW_OP_PASS, STW_TIER_HOST), 2 * 8 * PARAMS); /* read and written */
    CU_ASSERT_EQUAL(moved(b, STW_OP_NVME_READ, STW_TIER_NVME), 8 * PARAMS);
    CU_ASSERT_EQUAL(moved(b, STW_OP_PASS, STW_TIER_HOST), 0);
    CU_ASSERT_EQUAL(written(a), 12 * PARAMS + saves_of(a)->header_bytes);
    CU_ASSERT_EQUAL(written(b), 12 * PARAMS + saves_of(b)->header_bytes);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* One more than are kept while one is written. */
static void files_that_are_kept(void) {
    static const char *const three[] = {SAVES, "checkpoint.keep=3", NULL};
    static const char *const all[] = {SAVES, NULL};
    stw_plan *plans[] = {make(2, three), make(2, all)};
    for (int i = 0; i < 2; i++) {
        const stw_peaks *node = plans[i]->node_peaks;
        const uint64_t files = i == 0 ? saves_of(plans[i])->bytes : 0;
        CU_ASSERT_EQUAL(node->phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_NVME].total, 3 * files);
        CU_ASSERT_EQUAL(node->phase[STW_PHASE_CHECKPOINT][STW_TIER_NVME].total, 4 * files);
        stw_plan_free(plans[i]);
    }
}

/* ---- seconds ---- */

static stw_sim *simulate(stw_plan *plan) {
    stw_sim *sim = NULL;
    CHECK_OK(stw_sim_run(plan->job, plan->programs[0], &sim, err));
    CHECK_OK(stw_sim_plan(plan, NULL, err));
    CU_ASSERT_EQUAL(plan->time_s[STW_PHASE_CHECKPOINT], sim->stall_s);
    CU_ASSERT_EQUAL(plan->save_s, sim->phase_s[STW_PHASE_CHECKPOINT]);
    return sim;
}

/* State on the GPU of one rank: three components of 382,767,104 bytes, in 34 buckets of 32 MiB and
 * one of 7,399,424 bytes. The disk is behind from the first write on. The last bucket is filled
 * when the third last one is written; the run goes on then. */
static void gpus_state_leaves_before_the_run_goes_on(void) {
    static const char *const settings[] = {SAVES, NULL};
    static const char *const roomy[] = {SAVES, "checkpoint.copies=2GiB", NULL};
    const double bucket = 32 * (double)MIB, all = 12 * (double)PARAMS, rest = all - 34 * bucket;
    stw_plan *a = make(1, settings), *b = make(1, roomy);
    stw_sim *two = simulate(a), *more = simulate(b);
    const double first_s = bucket / COPY_BPS + COPY_S, last_s = rest / COPY_BPS + COPY_S;
    const double left_s = first_s + (all - bucket - rest) / WRITE_BPS + last_s;
    const double headers_s = (double)saves_of(a)->header_bytes / WRITE_BPS;
    CU_ASSERT_DOUBLE_EQUAL(two->stall_s, left_s, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(a->save_s, first_s + all / WRITE_BPS + headers_s, 1e-6);
    /* with room for all on the host it leaves as fast as the link carries it: a copy for each
     * bucket and each component's begin */
    CU_ASSERT_DOUBLE_EQUAL(more->stall_s, all / COPY_BPS + 37 * COPY_S, 1e-6);
    CU_ASSERT_TRUE(fabs(stw_plan_iteration_s(a) -
                        (a->time_s[STW_PHASE_FORWARD_BACKWARD] +
                         a->time_s[STW_PHASE_OPTIMIZER_STEP] + two->stall_s / 1000)) < 1e-9);
    stw_sim_free(two);
    stw_sim_free(more);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* Room on the host helps one save, not the next one: the disk has to write all of every save. */
static void saves_follow_each_other(void) {
    static const char *const settings[] = {"checkpoint.every=1", "batch.seq_len=128",
                                           "checkpoint.copies=2GiB", NULL};
    stw_plan *plan = make(1, settings);
    stw_sim *sim = simulate(plan);
    const double iteration_s =
        sim->phase_s[STW_PHASE_FORWARD_BACKWARD] + sim->phase_s[STW_PHASE_OPTIMIZER_STEP];
    CU_ASSERT_DOUBLE_EQUAL(sim->stall_s, plan->save_s - iteration_s, 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(stw_plan_iteration_s(plan), plan->save_s, 1e-9);
    stw_sim_free(sim);
    stw_plan_free(plan);
}

/* Moments on the host: the step comes to buckets that are not on their way yet, and waits until all
 * but two buckets before them are written; four more save it the seconds in which those are. */
static void the_step_catches_up(void) {
    static const char *const settings[] = {SAVES, "placement.moments=host", NULL};
    static const char *const six[] = {SAVES, "placement.moments=host", "checkpoint.copies=128MiB",
                                      NULL};
    static const char *const slow[] = {SAVES, "placement.moments=host",
                                       "batch.grad_accumulation=4000", NULL};
    stw_plan *a = make(1, settings), *b = make(1, six), *c = make(1, slow);
    stw_sim *two = simulate(a), *more = simulate(b), *behind = simulate(c);
    const double all_s = 12 * (double)PARAMS / WRITE_BPS, gpu_s = 4 * (double)PARAMS / WRITE_BPS;
    const double before_s = two->phase_s[STW_PHASE_FORWARD_BACKWARD];
    const double step_s = two->phase_s[STW_PHASE_OPTIMIZER_STEP];
    const double held_s = 64 * (double)MIB / WRITE_BPS, piece_s = (double)BUCKET / WRITE_BPS;
    /* the last bucket is reached before the step ends; it has all but the buckets' bytes to wait */
    CU_ASSERT_TRUE(two->stall_s >= all_s - held_s - before_s - step_s - piece_s);
    CU_ASSERT_TRUE(two->stall_s <= all_s - held_s - before_s + piece_s);
    CU_ASSERT_DOUBLE_EQUAL(two->stall_s - more->stall_s, 2 * held_s, piece_s);
    /* a save that ends before the step begins stops nothing but the GPU */
    CU_ASSERT_TRUE(c->save_s < 4000 * c->time_s[STW_PHASE_FORWARD_BACKWARD]);
    CU_ASSERT_DOUBLE_EQUAL(behind->stall_s, gpu_s - held_s, piece_s);
    stw_sim_free(two);
    stw_sim_free(more);
    stw_sim_free(behind);
    stw_plan_free(a);
    stw_plan_free(b);
    stw_plan_free(c);
}

STW_TEST_MAIN("engine own save", {"everything is written once", everything_is_written_once},
              {"files of whole tensors", files_of_whole_tensors},
              {"two buckets on the host", two_buckets_on_the_host},
              {"state is read where it lies", state_is_read_where_it_lies},
              {"files that are kept", files_that_are_kept},
              {"the GPU's state leaves first", gpus_state_leaves_before_the_run_goes_on},
              {"saves follow each other", saves_follow_each_other},
              {"the step catches up", the_step_catches_up})

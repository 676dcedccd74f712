/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-FSDP: buckets, what a rank holds under each strategy, what is gathered and reduced, and
 * the bytes that are there for a while. */
#include "engines/megatron/fsdp_pass.h"
#include "engines/megatron/params.h"
#include "plan/program/check.h"
#include "planner/planner.h"
#include "planner/reading.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

enum { MAX_SETTINGS = 40 };

typedef struct planned {
    stw_plan *plan;
    char text[1024];
    const char *settings[MAX_SETTINGS];
} planned;

static void plan_of(planned *p, const char *model, const char *settings) {
    static const char *const always[] = {"engine=megatron", "precision.params=bf16",
                                         "precision.master=fp32", "node.gpu.memory=141 GB",
                                         "batch.seq_len=4096"};
    size_t n = 0;
    for (; n < sizeof always / sizeof always[0]; n++) p->settings[n] = always[n];
    snprintf(p->text, sizeof p->text, "%s", settings);
    for (char *at = strtok(p->text, " "); at != NULL && n + 1 < MAX_SETTINGS;
         at = strtok(NULL, " "))
        p->settings[n++] = at;
    p->settings[n] = NULL;
    p->plan = case_zoo(model, p->settings);
}

static void free_plan(planned *p) { stw_plan_free(p->plan); }

static stw_program *program_of(const stw_job *job, stw_peaks *peaks) {
    stw_place places[STW_MAX_PLACES];
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    CU_ASSERT_EQUAL_FATAL(job->engine->places(job, places, NULL), 1);
    const stw_simple simple = {.job = job,
                               .place = places[0],
                               .act = job->run->recompute.granularity == 1 ? STW_ACT_RECOMPUTE
                                                                           : STW_ACT_KEEP,
                               .load = STW_LOAD_SHARDED_READ,
                               .by_group = true,
                               .depth = 1};
    CHECK_OK(stw_simple_build(&simple, &layout, &program, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(program);
    CHECK_OK(stw_program_check(job, layout, program, err));
    stw_program_walk(program, peaks);
    stw_layout_free(layout);
    return program;
}

/* What buckets there are. */
typedef struct looked_at {
    stw_pool *pool;
    stw_megatron_params params, shard;
    stw_megatron_fsdp fsdp;
} looked_at;

static void look_at(const stw_job *job, looked_at *out) {
    out->pool = stw_pool_new();
    CHECK_OK(stw_megatron_params_of(job, 0, out->pool, &out->params, err));
    CHECK_OK(stw_megatron_fsdp_of(job, &out->params, out->pool, &out->shard, &out->fsdp, err));
}

static double moved(const stw_job *job, stw_op_kind kind, stw_rank_group group) {
    stw_peaks peaks;
    stw_program *program = program_of(job, &peaks);
    const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    double bytes = 0;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (program->ops[i].kind == kind && program->ops[i].group == group)
            bytes += (double)program->ops[i].bytes;
    stw_program_free(program);
    return bytes;
}

/* The most bytes of a component at any moment of forward and backward. */
static uint64_t most(const stw_job *job, stw_component component) {
    stw_peaks peaks;
    stw_program *program = program_of(job, &peaks);
    const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    stw_live live = {0};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->first_op + m->n_ops; i++) {
        stw_live_apply(&live, &program->ops[i]);
        if (i >= m->first_op) bytes = stw_max_u64(bytes, live.bytes[STW_TIER_GPU][component]);
    }
    stw_program_free(program);
    return bytes;
}

/* ---- buckets ---- */

/* Megatron-Bridge's pull request 5402: 16 ranks with EP 2 gather 402,653,184 elements of a layer's
 * experts from parts of 50,331,648. */
static void buckets_are_as_reported(void) {
    planned p;
    looked_at of;
    plan_of(&p, "Qwen3.5-35B-A3B",
            "node.gpus=8 nodes=2 parallel.ep=2 megatron.fsdp=optim_grads_params");
    look_at(p.plan->job, &of);
    uint32_t experts = 0;
    for (uint32_t i = 0; i < of.fsdp.n; i++) {
        const stw_megatron_bucket *b = &of.fsdp.buckets[i];
        if (!b->expert) continue;
        experts++;
        CU_ASSERT_EQUAL(b->elements, 402653184);
        CU_ASSERT_EQUAL(b->elements / b->ways, 50331648);
    }
    CU_ASSERT_EQUAL(experts, 40);
    /* 40 layers and 27 of the tower are units with a dense bucket; the rest is one */
    CU_ASSERT_EQUAL(of.fsdp.n, 40 + 40 + 27 + 1);
    CU_ASSERT_EQUAL(of.fsdp.prefetch, 500000000);
    stw_pool_free(of.pool);
    free_plan(&p);
}

/* A bucket ends at a multiple of its rows' common multiple times the ranks. Llama's layer has rows
 * of 4,096 and 14,336 elements, 28,672 together; its two norms fill a gap behind query, key and
 * value: 6,144 rows of 4,096 are 877.7 x 28,672. */
static void buckets_are_padded(void) {
    const uint64_t chunk = 28672;
    const uint64_t qkv = 878 * chunk, o = 586 * chunk; /* 4,096 x 4,096 is 585.1 of them */
    const uint64_t mlp = 3ull * 14336 * 4096;
    planned p;
    looked_at of;
    plan_of(&p, "Llama-3.1-8B", "node.gpus=8 nodes=1 megatron.fsdp=optim_grads_params");
    look_at(p.plan->job, &of);
    /* remainders of query, key and value (0.7) and of the output's product (0.1) share a chunk */
    CU_ASSERT_EQUAL(of.fsdp.buckets[1].elements,
                    stw_round_up_u64(qkv + o - chunk + mlp, 8 * chunk));
    stw_pool_free(of.pool);
    free_plan(&p);
}

/* Without overlap there is one bucket; with it they end at 40 M elements. */
static void buckets_of_no_unit(void) {
    planned one, many;
    looked_at of;
    plan_of(&one, "Qwen3-4B", "node.gpus=2 nodes=1 megatron.fsdp=optim_grads");
    look_at(one.plan->job, &of);
    CU_ASSERT_EQUAL(of.fsdp.n, 1);
    stw_pool_free(of.pool);
    plan_of(&many, "Qwen3-4B",
            "node.gpus=2 nodes=1 megatron.fsdp=optim_grads megatron.overlap_grad_reduce=true");
    look_at(many.plan->job, &of);
    CU_ASSERT_TRUE(of.fsdp.n > 30);
    for (uint32_t i = 0; i + 1 < of.fsdp.n; i++)
        CU_ASSERT_TRUE(of.fsdp.buckets[i].elements >= 40000000);
    stw_pool_free(of.pool);
    free_plan(&one);
    free_plan(&many);
}

/* ---- state ---- */

static void strategies_cut_the_state(void) {
    static const struct {
        const char *strategy;
        uint64_t cut[3]; /* params, grads, optimizer */
    } cases[] = {
        {"optim", {1, 1, 8}}, {"optim_grads", {1, 8, 8}}, {"optim_grads_params", {8, 8, 8}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        planned p;
        char settings[256];
        uint64_t elements[3] = {0};
        snprintf(settings, sizeof settings, "node.gpus=8 nodes=1 megatron.fsdp=%s",
                 cases[i].strategy);
        plan_of(&p, "Qwen3-30B-A3B", settings);
        const stw_job *job = p.plan->job;
        for (uint32_t rank = 0; rank < job->world; rank++)
            for (uint32_t id = 0; id < 3; id++) {
                stw_space space;
                stw_pool *pool = stw_pool_new();
                CHECK_OK(stw_job_space(job, id, rank, pool, &space, err));
                elements[id] += space.n;
                stw_pool_free(pool);
            }
        for (uint32_t id = 0; id < 3; id++)
            CU_ASSERT_EQUAL(elements[id] * cases[i].cut[id], 8 * job->model->params);
        free_plan(&p);
    }
}

/* ---- gathers and reductions ---- */

/* ZeRO-3 gathers each unit twice per micro batch and the rest once per iteration, and reduces all
 * of it; experts have a group of their own. The first layers are gathered a third time, ahead of
 * which the final norm runs. */
static void all_is_gathered_and_reduced(void) {
    planned p;
    looked_at of;
    double gathered[2] = {0}, reduced[2] = {0};
    plan_of(&p, "Qwen3-30B-A3B",
            "node.gpus=8 nodes=1 parallel.tp=2 parallel.sequence_parallel=true parallel.ep=4 "
            "megatron.fsdp=optim_grads_params "
            "batch.grad_accumulation=4");
    look_at(p.plan->job, &of);
    for (uint32_t i = 0; i < of.fsdp.n; i++) {
        const stw_megatron_bucket *b = &of.fsdp.buckets[i];
        CU_ASSERT_EQUAL(b->ways, b->expert ? 2 : 4);
        double elements = (double)b->elements;
        gathered[b->expert] +=
            b->unit == STW_MEGATRON_NO_UNIT ? 2 * elements / 4 : 2 * 2 * elements;
        reduced[b->expert] += 4 * elements;
    }
    for (uint64_t i = 1, ahead = 0; ahead < of.fsdp.prefetch; i++) {
        ahead += of.fsdp.buckets[i].elements;
        gathered[of.fsdp.buckets[i].expert] += 2 * (double)of.fsdp.buckets[i].elements;
    }
    static const stw_rank_group groups[] = {STW_RANK_GROUP_DP, STW_RANK_GROUP_EXPERT_DP};
    for (int e = 0; e < 2; e++) {
        CU_ASSERT_DOUBLE_EQUAL(moved(p.plan->job, STW_OP_ALL_GATHER, groups[e]), gathered[e], 1);
        CU_ASSERT_DOUBLE_EQUAL(moved(p.plan->job, STW_OP_REDUCE_SCATTER, groups[e]), reduced[e], 1);
    }
    stw_pool_free(of.pool);
    free_plan(&p);
}

/* ---- bytes for a while ---- */

/* ZeRO-2 holds the gradients of the whole model in fp32 and then the rank's part twice; ZeRO-1 has
 * them all along, and nothing beside them. */
static void zero2_needs_more_than_zero1(void) {
    planned one, two, queue;
    looked_at of;
    plan_of(&one, "Qwen3-4B", "node.gpus=2 nodes=1 megatron.fsdp=optim");
    plan_of(&two, "Qwen3-4B", "node.gpus=2 nodes=1 megatron.fsdp=optim_grads");
    look_at(two.plan->job, &of);
    const uint64_t all = 4 * of.fsdp.buckets[0].elements;
    CU_ASSERT_EQUAL(most(one.plan->job, STW_COMPONENT_REDUCE), 0);
    CU_ASSERT_EQUAL(most(two.plan->job, STW_COMPONENT_REDUCE), all + all / 2);
    CU_ASSERT_TRUE(most(one.plan->job, STW_COMPONENT_GRADS) >= all);
    stw_pool_free(of.pool);
    /* buckets that are reduced beside the backward: those that wait, and the ones that begin */
    plan_of(&queue, "Qwen3-4B",
            "node.gpus=2 nodes=1 megatron.fsdp=optim_grads megatron.overlap_grad_reduce=true "
            "megatron.fsdp_communication_unit=200000000");
    uint64_t some = most(queue.plan->job, STW_COMPONENT_REDUCE);
    CU_ASSERT_TRUE(some > 4ull * 200000000 && some < all / 2);
    free_plan(&one);
    free_plan(&two);
    free_plan(&queue);
}

/* Gathered parameters: what is in no unit, a layer, and half a unit of communication ahead. Two
 * buffers hold two layers. */
static void parameters_come_and_go(void) {
    planned free, small, pool;
    looked_at of;
    plan_of(&free, "Qwen3-4B", "node.gpus=8 nodes=1 megatron.fsdp=optim_grads_params");
    look_at(free.plan->job, &of);
    const uint64_t root = 2 * of.fsdp.buckets[0].elements, layer = 2 * of.fsdp.buckets[1].elements;
    const uint64_t ahead = 500000000 / of.fsdp.buckets[1].elements + 1;
    CU_ASSERT_EQUAL(most(free.plan->job, STW_COMPONENT_UNSHARD), root + (1 + ahead) * layer);
    plan_of(&small, "Qwen3-4B",
            "node.gpus=8 nodes=1 megatron.fsdp=optim_grads_params "
            "megatron.fsdp_communication_unit=2");
    CU_ASSERT_EQUAL(most(small.plan->job, STW_COMPONENT_UNSHARD), root + 2 * layer);
    plan_of(&pool, "Qwen3-4B",
            "node.gpus=8 nodes=1 megatron.fsdp=optim_grads_params "
            "megatron.fsdp_double_buffer=true");
    look_at(pool.plan->job, &of);
    CU_ASSERT_EQUAL(of.fsdp.pool, of.fsdp.buckets[1].elements);
    CU_ASSERT_EQUAL(most(pool.plan->job, STW_COMPONENT_UNSHARD), root + 2 * layer);
    CU_ASSERT_EQUAL(most(pool.plan->job, STW_COMPONENT_REDUCE), 2 * (root + 2 * layer));
    free_plan(&pool);
    /* buffers that stay are there during steps, too */
    plan_of(&pool, "Qwen3-4B",
            "node.gpus=8 nodes=1 megatron.fsdp=optim_grads_params megatron.fsdp_double_buffer=true "
            "megatron.fsdp_persistent=true");
    stw_peaks peaks;
    stw_program_free(program_of(pool.plan->job, &peaks));
    CU_ASSERT_EQUAL(
        peaks.phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_GPU].components[STW_COMPONENT_UNSHARD],
        3 * (root + 2 * layer));
    CU_ASSERT_EQUAL(most(pool.plan->job, STW_COMPONENT_UNSHARD), root + 2 * layer);
    stw_pool_free(of.pool);
    free_plan(&free);
    free_plan(&small);
    free_plan(&pool);
}

/* Layers of Qwen3.5 are not alike: two buffers for equal ones are for 30 of 67 units, those for the
 * largest one for all. */
static void pools_hold_layers(void) {
    static const char *const settings = "node.gpus=8 nodes=2 parallel.ep=2 "
                                        "megatron.fsdp=optim_grads_params "
                                        "megatron.fsdp_double_buffer=true";
    char text[256];
    uint32_t pooled[2] = {0};
    uint64_t elements[2];
    for (int max = 0; max < 2; max++) {
        planned p;
        looked_at of;
        snprintf(text, sizeof text, "%s megatron.fsdp_max_pool=%s", settings,
                 max ? "true" : "false");
        plan_of(&p, "Qwen3.5-35B-A3B", text);
        look_at(p.plan->job, &of);
        for (uint32_t i = 0; i < of.fsdp.n; i++)
            pooled[max] += of.fsdp.buckets[i].pooled && !of.fsdp.buckets[i].expert;
        elements[max] = of.fsdp.pool;
        stw_pool_free(of.pool);
        free_plan(&p);
    }
    CU_ASSERT_EQUAL(pooled[0], 30);
    CU_ASSERT_EQUAL(pooled[1], 67);
    CU_ASSERT_TRUE(elements[0] > 402653184 && elements[1] >= elements[0]);
}

/* The optimizer is made once, for parts: half as many kinds of page-locked blocks. */
static void offload_locks_parts_alone(void) {
    planned whole, part;
    stw_peaks a, b;
    plan_of(&whole, "Qwen3-4B", "node.gpus=8 nodes=1 megatron.optimizer_offload_fraction=1");
    plan_of(&part, "Qwen3-4B",
            "node.gpus=8 nodes=1 megatron.optimizer_offload_fraction=1 "
            "megatron.fsdp=optim_grads_params");
    stw_program_free(program_of(whole.plan->job, &a));
    stw_program_free(program_of(part.plan->job, &b));
    uint64_t locked = b.phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_HOST].page_locked;
    CU_ASSERT_TRUE(2 * locked < a.phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_HOST].page_locked);
    CU_ASSERT_TRUE(locked >= 8 * part.plan->job->model->params / 8); /* fp32 and its gradient */
    free_plan(&whole);
    free_plan(&part);
}

/* ---- plans ---- */

static void strategies_are_planned(void) {
    static const char *const settings[] = {
        "parallel.tp=2 parallel.sequence_parallel=true parallel.cp=2 parallel.ep=8 "
        "megatron.fsdp=optim",
        "parallel.tp=2 parallel.sequence_parallel=true parallel.cp=2 parallel.ep=8 "
        "megatron.fsdp=optim_grads "
        "megatron.overlap_grad_reduce=true batch.grad_accumulation=2",
        "parallel.tp=2 parallel.sequence_parallel=true parallel.cp=2 parallel.ep=8 "
        "megatron.fsdp=optim_grads_params "
        "megatron.optimizer_offload_fraction=1 megatron.precision_aware=true "
        "batch.image_tokens=1024",
        "parallel.ep=8 megatron.fsdp=optim_grads_params megatron.fsdp_double_buffer=true",
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        planned p;
        char text[512];
        snprintf(text, sizeof text, "node.gpus=8 nodes=4 %s", settings[i]);
        plan_of(&p, "Qwen3.5-35B-A3B", text);
        const stw_planner_options options = {.simulate = stw_sim_seconds};
        CHECK_OK(stw_planner_solve(p.plan, &options, err));
        CU_ASSERT_EQUAL(p.plan->verdict, STW_VERDICT_FITS);
        free_plan(&p);
    }
}

static void others_are_refused(void) {
    static const char *const cases[][2] = {
        {"parallel.pp", "2"},
        {"megatron.distributed_optimizer", "false"},
        {"megatron.optimizer_offload_fraction", "0.5"},
        {"megatron.overlap_param_gather", "true"},
        {"park.params", "host"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_run_spec run;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_run_spec_set(&run, "engine", "megatron", "test", err));
        CHECK_OK(stw_run_spec_set(&run, "precision.params", "bf16", "test", err));
        CHECK_OK(stw_run_spec_set(&run, "precision.master", "fp32", "test", err));
        CHECK_OK(stw_run_spec_set(&run, "megatron.overlap_grad_reduce", "true", "test", err));
        CHECK_OK(stw_run_spec_set(&run, "megatron.fsdp", "optim_grads_params", "test", err));
        CHECK_OK(stw_run_spec_check(&run, "test", err));
        CHECK_OK(stw_run_spec_set(&run, cases[i][0], cases[i][1], "test", err));
        CU_ASSERT_EQUAL(stw_run_spec_check(&run, "test", NULL), STW_STATUS_BAD_INPUT);
    }
}

STW_TEST_MAIN("engine megatron fsdp", {"buckets are as reported", buckets_are_as_reported},
              {"buckets are padded", buckets_are_padded},
              {"buckets of no unit", buckets_of_no_unit},
              {"strategies cut the state", strategies_cut_the_state},
              {"all is gathered and reduced", all_is_gathered_and_reduced},
              {"zero2 needs more than zero1", zero2_needs_more_than_zero1},
              {"parameters come and go", parameters_come_and_go},
              {"pools hold layers", pools_hold_layers},
              {"offload locks parts alone", offload_locks_parts_alone},
              {"strategies are planned", strategies_are_planned},
              {"others are refused", others_are_refused})

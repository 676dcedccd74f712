/* SPDX-License-Identifier: Apache-2.0 */
/* Knobs of Megatron-LM's experts and optimizer: dispatchers, capacity, shared experts, instances of
 * the distributed optimizer, deferred weight gradients of the head. */
#include "engines/megatron/acts.h"
#include "engines/megatron/moe.h"
#include "engines/megatron/params.h"
#include "planner/reading.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

enum { MOST_SETTINGS = 24, TOKENS = 4096, HIDDEN = 2048, EXPERTS = 128, TOP = 8, WIDTH = 768 };

/* ---- plans of settings "key=value key=value" ---- */

static stw_plan *plan_of(const char *model, const char *settings) {
    static char text[1024];
    static const char *list[MOST_SETTINGS];
    size_t n = 0;
    snprintf(text, sizeof text,
             "engine=megatron precision.params=bf16 precision.master=fp32 node.gpus=8 "
             "recompute.granularity=none batch.seq_len=4096 %s",
             settings);
    for (char *at = strtok(text, " "); at != NULL; at = strtok(NULL, " ")) {
        CU_ASSERT_TRUE_FATAL(n + 1 < MOST_SETTINGS);
        list[n++] = at;
    }
    list[n] = NULL;
    return case_zoo(model, list);
}

static uint32_t kind_of(const stw_job *job, uint32_t stage) {
    return stw_job_kind_of(job, job->world / job->run->parallel.pp * stage);
}

static stw_program *program_of(const stw_job *job, uint32_t stage) {
    stw_place places[STW_MAX_PLACES];
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    CU_ASSERT_EQUAL_FATAL(job->engine->places(job, places, NULL), 1);
    const stw_simple simple = {.job = job,
                               .kind = kind_of(job, stage),
                               .place = places[0],
                               .act = STW_ACT_KEEP,
                               .load = STW_LOAD_SHARDED_READ,
                               .by_group = true,
                               .depth = 1};
    CHECK_OK(stw_simple_build(&simple, &layout, &program, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(program);
    stw_layout_free(layout);
    return program;
}

static uint64_t component(const stw_job *job, uint32_t stage, stw_component c) {
    stw_peaks peaks;
    stw_program *program = program_of(job, stage);
    stw_program_walk(program, &peaks);
    stw_program_free(program);
    return peaks.phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].components[c];
}

static double sent(const stw_job *job, stw_op_kind kind, stw_rank_group group, stw_phase phase) {
    stw_program *program = program_of(job, 0);
    const stw_movement *m = stw_program_movement(program, phase);
    double bytes = 0;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (program->ops[i].kind == kind && program->ops[i].group == group)
            bytes += (double)program->ops[i].bytes;
    stw_program_free(program);
    return bytes;
}

static uint32_t moe_group(const stw_job *job) {
    uint32_t g = 0;
    while (job->model->groups[g].facts.experts == 0) g++;
    return g;
}

/* ---- experts ---- */

#define QWEN "Qwen3-30B-A3B"

static stw_megatron_moe moe_of(const char *settings) {
    stw_plan *plan = plan_of(QWEN, settings);
    stw_megatron_moe moe = stw_megatron_moe_of(plan->job, moe_group(plan->job));
    stw_plan_free(plan);
    return moe;
}

/* Rows beyond capacity are dropped; padded, as many as capacity arrive. */
static void capacity_bounds_rows(void) {
    const uint64_t mean = (uint64_t)TOKENS * TOP;
    CU_ASSERT_EQUAL(moe_of("parallel.ep=8").rows, mean);
    CU_ASSERT_EQUAL(moe_of("parallel.ep=8 moe.imbalance=1.5").rows, mean * 3 / 2);
    CU_ASSERT_EQUAL(moe_of("parallel.ep=8 moe.imbalance=1.5 moe.capacity_factor=2").rows,
                    mean * 3 / 2);
    CU_ASSERT_EQUAL(moe_of("parallel.ep=8 moe.imbalance=1.5 moe.capacity_factor=1.25").rows,
                    mean * 5 / 4);
    const stw_megatron_moe padded =
        moe_of("parallel.ep=8 moe.capacity_factor=2 megatron.pad_to_capacity=true");
    CU_ASSERT_EQUAL(padded.rows, mean * 2);
    CU_ASSERT_EQUAL(padded.sent, mean * 2);
    /* 4096 x 8 / 128 x 0.501 = 128.3 rows of each expert */
    CU_ASSERT_EQUAL(moe_of("parallel.ep=8 moe.capacity_factor=0.501").rows, 129 * EXPERTS);
    CU_ASSERT_EQUAL(moe_of("parallel.ep=2 parallel.etp=4 parallel.tp=4 "
                           "parallel.sequence_parallel=true moe.capacity_factor=0.501 "
                           "megatron.pad_to_capacity=true")
                        .rows,
                    33 * EXPERTS * 4); /* of 1,024 tokens of each rank: 32.1 */
}

/* All-gather: rows of all ranks lie in the global buffer, their sums go back in fp32. */
static void rows_may_be_gathered(void) {
    stw_plan *all = plan_of(QWEN, "parallel.ep=8");
    stw_plan *gathered = plan_of(QWEN, "parallel.ep=8 moe.dispatcher=allgather");
    const uint64_t rows = 8ull * TOKENS * HIDDEN;
    CU_ASSERT_EQUAL(stw_megatron_buffer_bytes(all->job), 0);
    CU_ASSERT_EQUAL(stw_megatron_buffer_bytes(gathered->job), rows * 2);
    const stw_phase pass = STW_PHASE_FORWARD_BACKWARD;
    CU_ASSERT_EQUAL(sent(gathered->job, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_EP, pass), 0);
    CU_ASSERT_TRUE(sent(all->job, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_EP, pass) > 0);
    CU_ASSERT_EQUAL(sent(gathered->job, STW_OP_REDUCE_SCATTER, STW_RANK_GROUP_EP, pass),
                    48.0 * (double)rows * (4 + 2));
    CU_ASSERT_EQUAL(sent(gathered->job, STW_OP_ALL_GATHER, STW_RANK_GROUP_EP, pass),
                    48.0 * ((double)rows * (2 + 4) + 8.0 * TOKENS * EXPERTS * 5));
    /* the same rows arrive, but of all ranks' tokens the masks of local experts are kept */
    const uint32_t g = moe_group(all->job);
    const stw_megatron_moe moe = stw_megatron_moe_of(gathered->job, g);
    CU_ASSERT_EQUAL(moe.rows, (uint64_t)TOKENS * TOP);
    CU_ASSERT_EQUAL(moe.router, (uint64_t)TOKENS * EXPERTS * (8 + 6) + moe.rows * (12 + 8));
    stw_plan_free(gathered);
    stw_plan_free(all);
    stw_plan *alone = plan_of(QWEN, "parallel.ep=1 moe.dispatcher=allgather");
    CU_ASSERT_EQUAL(stw_megatron_buffer_bytes(alone->job), 0);
    stw_plan_free(alone);
}

/* Without gates the activation is kept before it is multiplied by probabilities, too. */
static void activations_without_gates(void) {
    stw_plan *plan = plan_of(QWEN, "parallel.ep=8");
    stw_job *job = plan->job;
    stw_block_facts *f = &((stw_block_group *)job->model->groups)[moe_group(job)].facts;
    const uint32_t g = moe_group(job);
    const uint64_t gated = stw_megatron_layer_of(job, g, false).whole;
    f->gated = false;
    CU_ASSERT_EQUAL(stw_megatron_layer_of(job, g, false).whole,
                    gated); /* a product less, one copy more */
    stw_plan_free(plan);
}

/* With the overlap a shared expert keeps all rows instead of its rank's. */
static void shared_experts_overlap(void) {
#define V2 "parallel.tp=4 parallel.sequence_parallel=true parallel.ep=2 "
    uint64_t whole[2];
    for (int i = 0; i < 2; i++) {
        stw_plan *plan =
            plan_of("DeepSeek-V2-Lite",
                    i == 0 ? V2 "batch.micro_batch=1" : V2 "megatron.shared_expert_overlap=true");
        whole[i] = stw_megatron_layer_of(plan->job, moe_group(plan->job), false).whole;
        stw_plan_free(plan);
    }
    CU_ASSERT_EQUAL(whole[1] - whole[0], (uint64_t)TOKENS * 2048 * 2);
}

static void grouped_products_have_workspaces(void) {
#define TE "parallel.ep=8 megatron.transformer_impl=transformer_engine "
    stw_plan *one = plan_of(QWEN, TE "batch.micro_batch=1");
    stw_plan *grouped = plan_of(QWEN, TE "megatron.grouped_gemm=true");
    const stw_megatron_params none = {0};
    CU_ASSERT_EQUAL(stw_megatron_work_areas(grouped->job, &none) -
                        stw_megatron_work_areas(one->job, &none),
                    4 * (32ull << 20));
    stw_plan_free(grouped);
    stw_plan_free(one);
}

/* ---- the optimizer ---- */

/* Each instance has the whole state once; shards are reduced among instances. */
static void instances_have_all_state(void) {
#define EIGHT "nodes=1 parallel.ep=4 "
    stw_plan *one = plan_of(QWEN, EIGHT "batch.micro_batch=1");
    stw_plan *two = plan_of(QWEN, EIGHT "megatron.optimizer_instances=2");
    uint64_t all[2] = {0}, counted = 0;
    const stw_job *jobs[2] = {one->job, two->job};
    stw_pool *pool = stw_pool_new();
    for (int i = 0; i < 2; i++)
        for (uint32_t rank = 0; rank < 8; rank++) {
            stw_space space;
            CHECK_OK(stw_job_space(jobs[i], STW_SPACE_OPTIMIZER, rank, pool, &space, err));
            all[i] += space.n;
            if (i == 1 && stw_job_counts(jobs[1], STW_SPACE_OPTIMIZER, rank)) counted += space.n;
        }
    CU_ASSERT_EQUAL(all[0], one->job->model->params);
    CU_ASSERT_EQUAL(all[1], 2 * all[0]);
    CU_ASSERT_EQUAL(counted, all[0]);
    const stw_phase step = STW_PHASE_OPTIMIZER_STEP;
    CU_ASSERT_EQUAL(sent(one->job, STW_OP_ALL_REDUCE, STW_RANK_GROUP_REPLICATE, step), 0);
    CU_ASSERT_TRUE(sent(two->job, STW_OP_ALL_REDUCE, STW_RANK_GROUP_REPLICATE, step) > 0);
    uint32_t ranks, on_node;
    stw_job_group_size(two->job, STW_RANK_GROUP_SHARD, &ranks, &on_node);
    CU_ASSERT_EQUAL(ranks, 4);
    stw_job_group_size(two->job, STW_RANK_GROUP_REPLICATE, &ranks, &on_node);
    CU_ASSERT_EQUAL(ranks, 2);
    stw_pool_free(pool);
    stw_plan_free(two);
    stw_plan_free(one);
}

/* Earlier micro batches leave gradients of logits and inputs, as many as the limit admits. */
static void gradients_are_deferred(void) {
#define STAGES "nodes=1 parallel.pp=2 batch.grad_accumulation=8 "
    static const struct {
        const char *settings;
        uint64_t products;
    } cases[] = {{STAGES "batch.micro_batch=1", 0},
                 {STAGES "megatron.defer_embedding_wgrad=true", 7},
                 {STAGES "megatron.defer_embedding_wgrad=true megatron.wgrad_deferral_limit=2", 2}};
    uint64_t logits[3], first[3];
    const uint64_t each = 4096ull * (128256 + 4096) * 2;
    for (int i = 0; i < 3; i++) {
        stw_plan *plan = plan_of("Llama-3.1-8B", cases[i].settings);
        logits[i] = component(plan->job, 1, STW_COMPONENT_LOGITS);
        first[i] = component(plan->job, 0, STW_COMPONENT_LOGITS);
        CU_ASSERT_EQUAL(logits[i] - logits[0], cases[i].products * each);
        CU_ASSERT_EQUAL(first[i], 0);
        stw_plan_free(plan);
    }
}

static void check_refused(const char *name, const char *settings, const char *expected) {
    const char *list[MOST_SETTINGS];
    char text[512];
    size_t n = 0;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *model = NULL;
    stw_plan *plan = NULL;
    snprintf(text, sizeof text, "engine=megatron %s", settings);
    for (char *at = strtok(text, " "); at != NULL; at = strtok(NULL, " ")) list[n++] = at;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_model_open(name, STW_SOURCE_MODELS, &model, err));
    CHECK_OK(stw_specs_set_all(&cluster, &run, list, n, "test", err));
    CHECK_OK(stw_run_spec_check(&run, "test", err));
    CHECK_FAILS(stw_plan_new(model, &cluster, &run, &plan, err), STW_STATUS_BAD_INPUT, expected);
    stw_plan_free(plan);
}

/* What Megatron does not train, and modules that a model lacks. */
static void others_are_refused(void) {
#define SELECTIVE "recompute.granularity=selective recompute.modules="
    check_refused(QWEN, "parallel.tp=2", "--sequence-parallel");
    check_refused("Qwen3-0.6B", SELECTIVE "[moe]", "the model has no experts");
    check_refused("Qwen3-0.6B",
                  SELECTIVE "[core_attn,moe_act] megatron.grouped_gemm=true "
                            "megatron.transformer_impl=transformer_engine",
                  "the model has no experts");
    check_refused(QWEN, SELECTIVE "[shared_experts]", "no shared_experts");
    check_refused(QWEN, SELECTIVE "[mla_up_proj]", "no latent attention");
    const char *const kept[] = {SELECTIVE "[moe]", "parallel.tp=2 parallel.sequence_parallel=true"};
    for (int i = 0; i < 2; i++) stw_plan_free(plan_of(QWEN, kept[i]));
    stw_plan_free(plan_of("DeepSeek-V2-Lite", SELECTIVE "[shared_experts,mla_up_proj]"));
}

STW_TEST_MAIN("engine megatron moe", {"capacity bounds rows", capacity_bounds_rows},
              {"rows may be gathered", rows_may_be_gathered},
              {"activations without gates", activations_without_gates},
              {"shared experts overlap", shared_experts_overlap},
              {"grouped products have workspaces", grouped_products_have_workspaces},
              {"instances have all state", instances_have_all_state},
              {"gradients are deferred", gradients_are_deferred},
              {"others are refused", others_are_refused})

/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-LM with gated delta nets and vision towers: what a rank holds of them, and what they
 * send. Expected figures are sums by hand over the tensors that linear.c and vision.c name. */
#include "engines/megatron/acts.h"
#include "engines/megatron/linear.h"
#include "engines/megatron/params.h"
#include "engines/megatron/vision.h"
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
                                         "precision.master=fp32", "node.gpu.memory=141 GB"};
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

static uint32_t group_named(const stw_job *job, const char *name) {
    for (uint32_t g = 0; g < job->model->n_groups; g++)
        if (strcmp(job->model->groups[g].name, name) == 0) return g;
    CU_FAIL_FATAL("no such group");
    return 0;
}

/* The program of a kind of rank, checked. */
static stw_program *program_of(const stw_job *job, uint32_t kind, stw_peaks *peaks) {
    stw_place places[STW_MAX_PLACES];
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    CU_ASSERT_EQUAL_FATAL(job->engine->places(job, places, NULL), 1);
    const stw_simple simple = {.job = job,
                               .kind = kind,
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

static uint64_t sent(const stw_job *job, stw_op_kind kind, stw_rank_group group) {
    stw_peaks peaks;
    stw_program *program = program_of(job, 0, &peaks);
    const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    uint64_t bytes = 0;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (program->ops[i].kind == kind && program->ops[i].group == group)
            bytes += program->ops[i].bytes;
    stw_program_free(program);
    return bytes;
}

/* ---- gated delta nets ---- */

/* Qwen3-Next: 16 heads of keys and 32 of values, 128 wide. With TP 2 a rank's keys are 1,024 wide,
 * values and repeated keys 2,048. */
static void linear_attention_saves(void) {
    const uint64_t qkv = 1024 + 1024 + 2048, half = 2, tokens = 4096;
    const uint64_t saved = qkv              /* input of the convolution */
                           + 1024 + 1024    /* normalised query and key */
                           + 2048 + 2048    /* the same, repeated */
                           + 2048 + 16      /* value, beta */
                           + 16 * 64        /* the triangular matrix */
                           + 2048 + 2048    /* output of the rule, gate */
                           + 2048;          /* input of the output projection */
    const uint64_t wide = 16 + 16 + 16 + 16 /* softplus in and out, decay, root of the norm */
                          + 8 + 8;          /* roots of query and key */
    planned p;
    plan_of(&p, "Qwen3-Next-80B-A3B",
            "parallel.tp=2 parallel.sequence_parallel=true batch.seq_len=4096 parallel.ep=8");
    const uint32_t group = group_named(p.plan->job, "linear_moe_layer");
    stw_megatron_linear local = stw_megatron_linear_of(p.plan->job, group, false);
    stw_megatron_linear te = stw_megatron_linear_of(p.plan->job, group, true);
    CU_ASSERT_EQUAL(local.saved, tokens * (half * saved + 4 * wide));
    CU_ASSERT_EQUAL(te.saved - local.saved, tokens * half * 2048); /* output of the norm */
    CU_ASSERT_EQUAL(local.weight_grad, half * 2048 * (qkv + 2048 + 32));
    CU_ASSERT_EQUAL(local.sent_out + local.sent_back, 0);
    free_plan(&p);
}

/* Context parallelism: heads are exchanged for rows and back, in forward and in backward. */
static void linear_attention_exchanges_heads(void) {
    const uint64_t rows = 2048, out = 2 * 2048 + 2 * 4096 + 64, back = 4096;
    planned p, one;
    plan_of(&p, "Qwen3-Next-80B-A3B",
            "parallel.cp=2 batch.seq_len=4096 parallel.ep=8 recompute.granularity=none");
    plan_of(&one, "Qwen3-Next-80B-A3B",
            "batch.seq_len=4096 parallel.ep=8 recompute.granularity=none");
    CU_ASSERT_EQUAL(sent(p.plan->job, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_CP),
                    36 * 2 * rows * 2 * (out + back));
    CU_ASSERT_EQUAL(sent(one.plan->job, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_CP), 0);
    free_plan(&p);
    free_plan(&one);
}

/* TP cuts all of a gated delta net but its norm; the in-projections are one parameter. */
static void linear_attention_is_cut(void) {
    planned p;
    plan_of(&p, "Qwen3-Next-80B-A3B",
            "node.gpus=8 nodes=1 parallel.tp=2 parallel.sequence_parallel=true parallel.ep=8");
    stw_megatron_params params;
    stw_pool *pool = stw_pool_new();
    uint64_t in_proj = 0, small = 0;
    CHECK_OK(stw_megatron_params_of(p.plan->job, 0, pool, &params, err));
    for (uint32_t i = 0; i < params.n; i++) {
        in_proj += params.list[i].numel == (2 * 2048 + 2 * 4096 + 2 * 32) / 2 * 2048;
        small += params.list[i].numel == 32 / 2; /* A_log, dt_bias */
    }
    CU_ASSERT_EQUAL(in_proj, 36);
    CU_ASSERT_EQUAL(small, 2 * 36);
    stw_pool_free(pool);
    free_plan(&p);
}

/* The query's product makes the gate, too: 2 x 16 heads of 256 and 2 + 2 of keys and values. */
static void softmax_attention_is_gated(void) {
    planned p;
    plan_of(&p, "Qwen3-Next-80B-A3B", "batch.seq_len=4096 parallel.ep=8");
    const stw_job *job = p.plan->job;
    const uint32_t group = group_named(job, "full_moe_layer");
    const stw_model *model = job->model;
    stw_block *block = model->blocks;
    while (block->group != group) block++;
    stw_tensor *q = &model->tensors[block->first_tensor];
    while (strstr(q->name, "q_proj") == NULL) q++;
    CU_ASSERT_EQUAL(q->shape[0], 2 * 4096);
    uint64_t gated = stw_megatron_layer_of(job, group, false).whole;
    q->shape[0] = 4096;
    uint64_t plain = stw_megatron_layer_of(job, group, false).whole;
    q->shape[0] = 8192;
    CU_ASSERT_EQUAL(gated - plain, 4096ull * 2 * 3 * 4096); /* in the product, a copy, the result */
    free_plan(&p);
}

/* Every element of a hybrid model's state lies on a rank. */
static void parts_cover_the_model(void) {
    planned p;
    plan_of(&p, "Qwen3.5-35B-A3B",
            "node.gpus=8 nodes=2 parallel.tp=2 parallel.sequence_parallel=true parallel.cp=2 "
            "parallel.ep=8 parallel.pp=2");
    const stw_job *job = p.plan->job;
    uint64_t elements = 0;
    for (uint32_t rank = 0; rank < job->world; rank++) {
        stw_space space;
        stw_pool *pool = stw_pool_new();
        for (uint32_t id = STW_SPACE_OPTIMIZER; id < job->n_spaces; id++) {
            CHECK_OK(stw_job_space(job, id, rank, pool, &space, err));
            elements += space.n;
        }
        stw_pool_free(pool);
    }
    CU_ASSERT_TRUE(elements >= job->model->params);
    CU_ASSERT_TRUE((double)elements <= 1.002 * (double)job->model->params);
    free_plan(&p);
}

/* ---- vision towers ---- */

static uint64_t vision_params(const stw_job *job, uint64_t *whole) {
    uint64_t n = 0;
    *whole = 0;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        const stw_tensor *tensor = &job->model->tensors[t];
        if (!job->model->groups[job->model->blocks[tensor->block].group].facts.vision) continue;
        n += tensor->numel;
        if (stw_megatron_is_whole_vision(job, tensor)) *whole += tensor->numel;
    }
    return n;
}

/* Megatron-Bridge cuts the towers of Qwen3-VL and Qwen3.5 by TP; Qwen2.5-VL's is transformers'. */
static void towers_are_cut(void) {
    planned cut, whole;
    uint64_t part;
    plan_of(&cut, "Qwen3-VL-8B", "parallel.tp=2");
    uint64_t all = vision_params(cut.plan->job, &part);
    CU_ASSERT_TRUE(part > 0 && part < all / 50); /* patch and position embeddings */
    plan_of(&whole, "Qwen2.5-VL-7B-Instruct", "parallel.tp=2");
    all = vision_params(whole.plan->job, &part);
    CU_ASSERT_EQUAL(part, all);
    free_plan(&cut);
    free_plan(&whole);
}

/* The tower is on the first stage alone, and so are its activations. 1,024 tokens of Qwen3-VL-8B
 * are 4,096 patches, 1,152 wide. */
static void first_stage_holds_the_tower(void) {
    static const char *const text = "node.gpus=2 nodes=1 parallel.pp=2 batch.seq_len=4096 "
                                    "recompute.granularity=full batch.grad_accumulation=4";
    char settings[256];
    planned p, images;
    stw_peaks before[2], after[2];
    snprintf(settings, sizeof settings, "%s batch.image_tokens=1024", text);
    plan_of(&p, "Qwen3-VL-8B", text);
    plan_of(&images, "Qwen3-VL-8B", settings);
    for (uint32_t k = 0; k < 2; k++) {
        stw_program_free(program_of(p.plan->job, k, &before[k]));
        stw_program_free(program_of(images.plan->job, k, &after[k]));
    }
    const stw_megatron_tower tower = stw_megatron_tower_of(images.plan->job);
    const uint64_t blocks = 27 * 4096ull * 1152 * 2, patches = 4096ull * 1536 * 2;
    const uint64_t merger = 4096ull * 4 * 1152 * 2;
    CU_ASSERT_EQUAL(tower.kept, blocks + patches + 4 * merger); /* three deepstack mergers */
    for (uint32_t k = 0; k < 2; k++) {
        uint64_t was = before[k].phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].total;
        uint64_t is = after[k].phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].total;
        CU_ASSERT_EQUAL(is - was, k == 0 ? 2 * tower.kept : 0); /* two micro batches in flight */
    }
    CU_ASSERT_EQUAL(stw_megatron_layers(p.plan->job), 36); /* of the language model */
    free_plan(&p);
    free_plan(&images);
}

static stw_status status_of(const char *name, const char *setting, const char *value) {
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *model = NULL;
    stw_plan *plan = NULL;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_model_open(name, STW_SOURCE_MODELS, &model, err));
    CHECK_OK(stw_run_spec_set(&run, "engine", "megatron", "test", err));
    CHECK_OK(stw_run_spec_set(&run, "precision.params", "bf16", "test", err));
    CHECK_OK(stw_run_spec_set(&run, "precision.master", "fp32", "test", err));
    CHECK_OK(stw_run_spec_set(&run, setting, value, "test", err));
    stw_status status = stw_plan_new(model, &cluster, &run, &plan, NULL);
    stw_plan_free(plan);
    return status;
}

static void others_are_refused(void) {
    CU_ASSERT_EQUAL(status_of("Qwen3-8B", "batch.image_tokens", "64"), STW_STATUS_BAD_INPUT);
    CU_ASSERT_EQUAL(status_of("Qwen3-VL-8B", "batch.image_tokens", "1000000"),
                    STW_STATUS_BAD_INPUT);
    CU_ASSERT_EQUAL(status_of("InternVL3-8B", "batch.image_tokens", "64"), STW_STATUS_NOT_BUILT_IN);
}

/* ---- plans ---- */

/* Rows of a tower and of two kinds of blocks hold the walk. */
static void hybrids_are_planned(void) {
    static const char *const settings[] = {
        "node.gpus=8 nodes=4 parallel.tp=2 parallel.sequence_parallel=true parallel.cp=2 "
        "parallel.ep=8 batch.seq_len=4096 "
        "batch.image_tokens=1024 batch.grad_accumulation=2",
        "node.gpus=8 nodes=2 parallel.tp=2 parallel.sequence_parallel=true parallel.pp=2 "
        "parallel.ep=4 batch.seq_len=4096 "
        "batch.image_tokens=2048 batch.grad_accumulation=4",
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        planned p;
        plan_of(&p, "Qwen3.5-35B-A3B", settings[i]);
        const stw_planner_options options = {.simulate = stw_sim_seconds};
        CHECK_OK(stw_planner_solve(p.plan, &options, err));
        CU_ASSERT_EQUAL(p.plan->verdict, STW_VERDICT_FITS);
        free_plan(&p);
    }
}

STW_TEST_MAIN("engine megatron hybrid", {"linear attention saves", linear_attention_saves},
              {"linear attention exchanges heads", linear_attention_exchanges_heads},
              {"linear attention is cut", linear_attention_is_cut},
              {"softmax attention is gated", softmax_attention_is_gated},
              {"parts cover the model", parts_cover_the_model}, {"towers are cut", towers_are_cut},
              {"first stage holds the tower", first_stage_holds_the_tower},
              {"others are refused", others_are_refused},
              {"hybrids are planned", hybrids_are_planned})

/* SPDX-License-Identifier: Apache-2.0 */
/* Muon in Megatron-LM: state, temporaries and products of a step, counted by hand from Qwen3-0.6B's
 * shapes: hidden 1024, 28 layers, 16 heads and 8 of keys, 128 wide, MLP 3072, a tied embedding. */
#include "blocks/optimizer.h"
#include "engines/megatron/params.h"
#include "plan/program/check.h"
#include "planner/planner.h"
#include "planner/reading.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

enum { MAX_SETTINGS = 40, LAYERS = 28 };

/* Elements. */
#define QKV (4096ull * 1024)
#define PROJ (1024ull * 2048)
#define FC1 (6144ull * 1024)
#define FC2 (1024ull * 3072)
#define MATRICES (LAYERS * (QKV + PROJ + FC1 + FC2))
#define EMBEDDING (151936ull * 1024)
#define NORMS (LAYERS * (2 * 1024 + 2 * 128ull) + 1024)
#define SQUARE (1024ull * 1024)

static const char one_gpu[] = "nodes=1 node.gpus=1 optimizer.kind=muon optimizer.clip_norm=none "
                              "recompute.granularity=none batch.seq_len=512";
static const char two_gpus[] = "nodes=1 node.gpus=2 parallel.tp=2 optimizer.kind=muon "
                               "optimizer.clip_norm=none recompute.granularity=none "
                               "megatron.distributed_optimizer=false batch.seq_len=512";

typedef struct planned {
    stw_plan *plan;
    char text[1024];
    const char *settings[MAX_SETTINGS];
} planned;

static void plan_of(planned *p, const char *model, const char *settings, const char *more) {
    static const char *const always[] = {"engine=megatron", "precision.params=bf16",
                                         "precision.master=fp32", "node.gpu.memory=141 GB"};
    size_t n = 0;
    for (; n < sizeof always / sizeof always[0]; n++) p->settings[n] = always[n];
    snprintf(p->text, sizeof p->text, "%s %s", settings, more);
    for (char *at = strtok(p->text, " "); at != NULL && n + 1 < MAX_SETTINGS;
         at = strtok(NULL, " "))
        p->settings[n++] = at;
    p->settings[n] = NULL;
    p->plan = case_zoo(model, p->settings);
}

static stw_program *program_of(const stw_job *job, uint32_t kind, stw_peaks *peaks) {
    stw_place places[STW_MAX_PLACES];
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    CU_ASSERT_EQUAL_FATAL(job->engine->places(job, places, NULL), 1);
    const stw_simple simple = {.job = job,
                               .kind = kind,
                               .place = places[0],
                               .act = STW_ACT_KEEP,
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

/* Bytes of components at the peak of the step. */
static stw_peak step_of(const char *settings, const char *more) {
    planned p;
    stw_peaks peaks;
    plan_of(&p, "Qwen3-0.6B", settings, more);
    stw_program_free(program_of(p.plan->job, 0, &peaks));
    stw_plan_free(p.plan);
    return peaks.phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_GPU];
}

/* Beside the workspaces that a step of AdamW has, too. */
static uint64_t temporaries(const char *settings, const char *more) {
    char adamw[256];
    snprintf(adamw, sizeof adamw, "%s", settings);
    memset(strstr(adamw, "optimizer.kind=muon"), ' ', strlen("optimizer.kind=muon"));
    return step_of(settings, more).components[STW_COMPONENT_STAGE] -
           step_of(adamw, "").components[STW_COMPONENT_STAGE];
}

/* ---- bytes ---- */

static void state_of_matrices_is_momentum(void) {
    const uint64_t all = MATRICES + EMBEDDING + NORMS;
    const stw_peak peak = step_of(one_gpu, "");
    CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_PARAMS], 2 * all);
    CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_GRADS], 4 * all);
    CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_MASTER], 4 * all);
    CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_EXP_AVG], 4 * all);
    CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_EXP_AVG_SQ], 4 * (EMBEDDING + NORMS));
}

/* Each main parameter is made through a copy in 16 bits: the embedding's after those of matrices,
 * only norms follow. */
static void main_params_are_made_in_turn(void) {
    planned p;
    stw_peaks peaks;
    plan_of(&p, "Qwen3-0.6B", one_gpu, "");
    stw_program_free(program_of(p.plan->job, 0, &peaks));
    CU_ASSERT_EQUAL(peaks.phase[STW_PHASE_LOAD][STW_TIER_GPU].components[STW_COMPONENT_PARAMS],
                    2 * (MATRICES + EMBEDDING + NORMS) + 2 * EMBEDDING - 4 * NORMS);
    stw_plan_free(p.plan);
}

/* fc1 follows the projection, whose update is still there. Gathered from one rank: shards and the
 * joined matrix in fp32, then the normalised one in fp32 beside its copy in bf16. Alone: the
 * result, and two products of it with scales. */
static void temporaries_are_the_largest_matrix(void) {
    CU_ASSERT_EQUAL(temporaries(one_gpu, ""), (4 + 4 + 4 + 2) * FC1 + 4 * PROJ);
    CU_ASSERT_EQUAL(temporaries(one_gpu, "megatron.muon_tp_mode=blockwise"),
                    (4 + 4 + 4) * FC1 + 4 * PROJ);
    CU_ASSERT_EQUAL(temporaries(one_gpu, "megatron.muon_nesterov=true"),
                    (4 + 4 + 4 + 4 + 2) * FC1 + 4 * PROJ);
}

/* A rank's half, gathered: as on one rank. Blockwise: of the half. */
static void modes_of_tensor_parallelism(void) {
    CU_ASSERT_EQUAL(temporaries(two_gpus, ""), (4 + 4 + 4 + 2) * FC1 + 4 * PROJ / 2);
    CU_ASSERT_EQUAL(temporaries(two_gpus, "megatron.muon_tp_mode=blockwise"),
                    (4 + 4 + 4) * FC1 / 2 + 4 * PROJ / 2);
}

static const struct stw_update_step *muon(void) {
    stw_run_spec run;
    const struct stw_update_step *steps = NULL;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_run_spec_set(&run, "optimizer.kind", "muon", "test", err));
    CU_ASSERT_PTR_NULL(stw_optimizer_of(&run)->others.steps);
    steps = stw_optimizer_of(&run)->matrices.steps;
    stw_run_spec_free(&run);
    return steps;
}

/* Peaks that torch counted for newton_schulz_tp and the two scales (Emerging-Optimizers 0.5.0a0,
 * torch 2.11 on the CPU, one rank). */
static void peaks_are_as_counted(void) {
    const struct {
        stw_update_matrix matrix;
        uint64_t peak, left;
    } rows[] = {
        {{64, {64}, STW_UPDATE_GATHERED, 1, false, false, 5}, 65536, 16384},
        {{64, {192}, STW_UPDATE_GATHERED, 1, false, false, 5}, 172032, 49152},
        {{192, {64}, STW_UPDATE_GATHERED, 1, true, false, 5}, 172032, 49152},
        {{192, {64}, STW_UPDATE_ALONE, 1, false, false, 5}, 147456, 49152},
        {{512, {1024, 512, 512}, STW_UPDATE_GATHERED, 1, false, false, 5}, 11534336, 4194304},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const stw_update_need need = stw_update_of(muon(), &rows[i].matrix, NULL);
        CU_ASSERT_EQUAL(need.peak_bytes, rows[i].peak);
        CU_ASSERT_EQUAL(need.left_bytes, rows[i].left);
    }
}

/* ---- seconds ---- */

typedef struct sums {
    double flops;
    uint64_t gathered, summed, issued;
    uint32_t calls;
} sums;

static sums work_of(const char *settings, const char *more) {
    planned p;
    stw_peaks peaks;
    sums out = {0};
    plan_of(&p, "Qwen3-0.6B", settings, more);
    stw_program *program = program_of(p.plan->job, 0, &peaks);
    const stw_movement *m = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        out.flops += op->flops;
        if (op->kind == STW_OP_CALLS) out.issued += op->params;
        if (op->component != STW_COMPONENT_STAGE) continue;
        if (op->kind == STW_OP_ALL_GATHER) out.gathered += op->bytes;
        if (op->kind == STW_OP_ALL_REDUCE) out.summed += op->bytes;
        if (stw_op_is(op, STW_OP_CLASS_COLLECTIVE)) out.calls += op->calls;
    }
    stw_program_free(program);
    stw_plan_free(p.plan);
    return out;
}

/* A step of a matrix with s rows and l columns: X X', A A, B X. */
static double newton_schulz(double s, double l) {
    return 2 * s * s * l + 2 * s * s * s + 2 * s * s * l;
}

static void products_are_counted(void) {
    const double layer = newton_schulz(1024, 2048)       /* q: 2048 rows */
                         + 2 * newton_schulz(1024, 1024) /* k, v */
                         + newton_schulz(1024, 2048) + newton_schulz(1024, 6144) +
                         newton_schulz(1024, 3072);
    const double whole = layer - newton_schulz(1024, 2048) - 2 * newton_schulz(1024, 1024) +
                         newton_schulz(1024, 4096);
    CU_ASSERT_DOUBLE_EQUAL(work_of(one_gpu, "").flops, LAYERS * 5 * layer, 1e6);
    CU_ASSERT_DOUBLE_EQUAL(work_of(one_gpu, "megatron.muon_ns_steps=3").flops, LAYERS * 3 * layer,
                           1e6);
    CU_ASSERT_DOUBLE_EQUAL(work_of(one_gpu, "megatron.muon_whole_qkv=true").flops,
                           LAYERS * 5 * whole, 1e6);
    CU_ASSERT_EQUAL(work_of(one_gpu, "").calls, 0);
    /* of a part 15 products and 5 passes; of a matrix 4 more, of q, k and v 6 */
    CU_ASSERT_EQUAL(work_of(one_gpu, "").issued, LAYERS * (3 * 20 + 6 + 3 * (20 + 4)));
}

/* Matrices in fp32, or squares of the side that is not cut in bf16: of q, k, v and fc1 their 1,024
 * columns, of the others their 1,024 rows. */
static void ranks_exchange(void) {
    const sums all = work_of(two_gpus, "");
    const sums parts = work_of(two_gpus, "megatron.muon_tp_mode=distributed");
    const sums none = work_of(two_gpus, "megatron.muon_tp_mode=blockwise");
    CU_ASSERT_EQUAL(all.gathered, 4 * MATRICES);
    CU_ASSERT_EQUAL(all.calls, LAYERS * 6);
    CU_ASSERT_EQUAL(all.summed, 0);
    CU_ASSERT_EQUAL(parts.summed, LAYERS * 6 * 5 * 2 * SQUARE);
    CU_ASSERT_EQUAL(parts.gathered, 0);
    CU_ASSERT_EQUAL(none.calls, 0);
}

/* ---- ranks ---- */

static bool is_adamws(const stw_tensor *t) {
    return t->rank == 1 || strstr(t->name, "embed") != NULL || strstr(t->name, "lm_head") != NULL;
}

/* Of one rank's matrices, each expert's among them, the state is in a space of its own. */
static void matrices_have_a_space(void) {
    planned p;
    uint64_t adamw = 0, matrices = 0;
    plan_of(&p, "Qwen3-30B-A3B", "nodes=1 node.gpus=1", "optimizer.kind=muon");
    const stw_job *job = p.plan->job;
    for (uint32_t i = 0; i < job->model->n_tensors; i++)
        *(is_adamws(&job->model->tensors[i]) ? &adamw : &matrices) += job->model->tensors[i].numel;
    CU_ASSERT_EQUAL(job->kinds[0].spaces[STW_SPACE_OPTIMIZER].n, adamw);
    CU_ASSERT_EQUAL(job->kinds[0].spaces[STW_MEGATRON_SPACE_RESIDENT].n, matrices);
    stw_plan_free(p.plan);
}

/* Every rank of a stage holds what its parameters are. */
static void stages_hold_their_state(void) {
    planned p;
    plan_of(&p, "Qwen3-30B-A3B", "nodes=1 node.gpus=8 parallel.ep=4 parallel.pp=2",
            "optimizer.kind=muon megatron.distributed_optimizer=false batch.grad_accumulation=2");
    const stw_job *job = p.plan->job;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        stw_megatron_params params;
        stw_pool *pool = stw_pool_new();
        uint64_t matrices = 0;
        uint32_t experts = 0;
        CHECK_OK(stw_megatron_params_of(job, job->kinds[k].stage, pool, &params, err));
        for (uint32_t i = 0; i < params.n; i++) {
            if (params.list[i].matrix) matrices += params.list[i].numel;
            experts += params.list[i].matrix && params.list[i].expert;
        }
        CU_ASSERT_EQUAL(experts, 24 * 2 * 128 / 4);
        CU_ASSERT_EQUAL(job->kinds[k].spaces[STW_MEGATRON_SPACE_RESIDENT].n, matrices);
        CU_ASSERT_EQUAL(job->kinds[k].spaces[STW_SPACE_OPTIMIZER].n,
                        params.dense + params.expert - matrices);
        stw_pool_free(pool);
    }
    stw_plan_free(p.plan);
}

/* Rows hold the walk, and the simulator's peak is the walk's. */
static void muon_is_planned(void) {
    static const char *const more[] = {"", "megatron.muon_tp_mode=distributed",
                                       "checkpoint.every=10", "park.moments=host"};
    for (size_t i = 0; i < 2 * sizeof more / sizeof more[0]; i++) {
        planned p;
        plan_of(&p, "Qwen3-0.6B",
                i % 2 == 0 ? two_gpus : "nodes=1 node.gpus=3 optimizer.kind=muon batch.seq_len=512",
                more[i / 2]);
        const stw_planner_options options = {.simulate = stw_sim_seconds};
        CHECK_OK(stw_planner_solve(p.plan, &options, err));
        CU_ASSERT_EQUAL(p.plan->verdict, STW_VERDICT_FITS);
        stw_plan_free(p.plan);
    }
}

/* ---- the layer-wise distributed optimizer ---- */

/* Buffers, the rank with most and its elements, as LayerWiseDistributedOptimizer's
 * _compute_per_buffer_param_layout gives them for these shapes (Megatron-LM d98e8a6, on the CPU;
 * experts' first matrices before their second ones, as TEGroupedMLP has them). */
static void matrices_are_dealt(void) {
    static const struct {
        const char *model, *settings;
        bool expert;
        uint64_t padded, share;
        uint32_t rank;
    } rows[] = {
        {"Qwen3-0.6B", "nodes=1 node.gpus=2", false, 440401920, 220200960, 0},
        {"Qwen3-0.6B", "nodes=1 node.gpus=3", false, 443547648, 147849216, 1},
        {"Qwen3-0.6B", "nodes=1 node.gpus=8", false, 444596224, 55574528, 0},
        {"Qwen3-0.6B", "nodes=1 node.gpus=8 megatron.overlap_grad_reduce=true", false, 511705088,
         59768832, 0},
        {"Qwen3-0.6B", "nodes=1 node.gpus=5 megatron.overlap_grad_reduce=true", false, 508559360,
         93323264, 0},
        {"Qwen3-0.6B", "nodes=8 node.gpus=8 megatron.overlap_grad_reduce=true", false, 805306368,
         12582912, 0},
        {"Qwen3-30B-A3B", "nodes=2 node.gpus=8 parallel.ep=8", true, 3623878656, 1811939328, 0},
        {"Qwen3-30B-A3B", "nodes=3 node.gpus=8 parallel.ep=8 megatron.overlap_grad_reduce=true",
         true, 3859808256, 1211105280, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        planned p;
        stw_megatron_params params, shard;
        stw_pool *pool = stw_pool_new();
        uint64_t held = 0;
        plan_of(&p, rows[i].model, rows[i].settings, "optimizer.kind=muon batch.seq_len=512");
        CHECK_OK(stw_megatron_params_of(p.plan->job, 0, pool, &params, err));
        CHECK_OK(stw_megatron_shard_of(p.plan->job, &params, pool, &shard, err));
        CU_ASSERT_EQUAL(params.dealt_padded[rows[i].expert], rows[i].padded);
        CU_ASSERT_EQUAL(params.dealt_share[rows[i].expert], rows[i].share);
        CU_ASSERT_EQUAL(params.dealt_rank[rows[i].expert], rows[i].rank);
        for (uint32_t k = 0; k < shard.n; k++)
            if (shard.list[k].matrix && shard.list[k].expert == rows[i].expert)
                held += shard.list[k].numel;
        CU_ASSERT_EQUAL(held, rows[i].share);
        stw_pool_free(pool);
        stw_plan_free(p.plan);
    }
}

/* Two ranks: half of the matrices each; of the rest, AdamW's half; all gradients and parameters. */
static void ranks_hold_whole_matrices(void) {
    const uint64_t rest = EMBEDDING + NORMS;
    const stw_peak peak = step_of("nodes=1 node.gpus=2 optimizer.kind=muon batch.seq_len=512", "");
    CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_GRADS], 4 * (MATRICES + rest));
    CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_MASTER], 4 * (MATRICES + rest) / 2);
    CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_EXP_AVG], 4 * (MATRICES + rest) / 2);
    CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_EXP_AVG_SQ], 4 * rest / 2);
}

/* ---- what is refused ---- */

static stw_status checked(stw_model *model, const stw_cluster *cluster, stw_run_spec *run,
                          stw_plan **plan, stw_error *err) {
    const stw_status status = stw_run_spec_check(run, "test", err);
    return status == STW_STATUS_OK ? stw_plan_new(model, cluster, run, plan, err) : status;
}

static void refused(const char *engine, const char *settings, const char *words) {
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *model = NULL;
    stw_plan *plan = NULL;
    char text[256];
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_model_open("Qwen3-0.6B", STW_SOURCE_MODELS, &model, err));
    snprintf(text, sizeof text, "engine=%s %s", engine, settings);
    for (char *at = strtok(text, " "); at != NULL; at = strtok(NULL, " ")) {
        char *value = strchr(at, '=');
        *value = '\0';
        CHECK_OK(stw_run_spec_set(&run, at, value + 1, "test", err));
    }
    CHECK_FAILS(checked(model, &cluster, &run, &plan, err), STW_STATUS_BAD_INPUT, words);
    stw_plan_free(plan);
}

static void others_are_refused(void) {
    static const char megatron[] = "precision.params=bf16 precision.master=fp32 ";
    static const struct {
        const char *engine, *settings, *words;
    } rows[] = {
        {"stowage", "optimizer.kind=muon", "has an effect with engine megatron"},
        {"fsdp2", "optimizer.kind=muon", "has an effect with engine megatron"},
        {"deepspeed", "optimizer.kind=muon", "has an effect with engine megatron"},
        {"megatron", "megatron.muon_ns_steps=4", "5, or optimizer.kind: muon"},
        {"megatron", "megatron.muon_nesterov=true", "false, or optimizer.kind: muon"},
        {"megatron", "megatron.muon_tp_mode=blockwise", "duplicated, or optimizer.kind: muon"},
        {"megatron", "optimizer.kind=muon megatron.fsdp=optim", "none with optimizer.kind: muon"},
        {"megatron", "optimizer.kind=muon megatron.optimizer_offload_fraction=0.5",
         "0 with optimizer.kind: muon"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char settings[192];
        const bool own = strcmp(rows[i].engine, "megatron") == 0;
        snprintf(settings, sizeof settings, "%s%s", own ? megatron : "", rows[i].settings);
        refused(rows[i].engine, settings, rows[i].words);
    }
}

STW_TEST_MAIN("engine megatron muon",
              {"state of matrices is momentum", state_of_matrices_is_momentum},
              {"main params are made in turn", main_params_are_made_in_turn},
              {"temporaries are the largest matrix", temporaries_are_the_largest_matrix},
              {"modes of tensor parallelism", modes_of_tensor_parallelism},
              {"peaks are as counted", peaks_are_as_counted},
              {"products are counted", products_are_counted}, {"ranks exchange", ranks_exchange},
              {"matrices have a space", matrices_have_a_space},
              {"stages hold their state", stages_hold_their_state},
              {"matrices are dealt", matrices_are_dealt},
              {"ranks hold whole matrices", ranks_hold_whole_matrices},
              {"muon is planned", muon_is_planned}, {"others are refused", others_are_refused})

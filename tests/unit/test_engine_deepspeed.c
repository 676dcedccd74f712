/* SPDX-License-Identifier: Apache-2.0 */
/* Engine deepspeed against runs of DeepSpeed (tests/measured/deepspeed.csv): allocated bytes of
 * each phase and host bytes, page-locked ones apart; and what its programs issue. */
#define _POSIX_C_SOURCE 200809L /* strtok_r */
#include <math.h>
#include <stdlib.h>

#include "models/table.h"
#include "planner/planner.h"
#include "sim/sim.h"
#include "tests/unit/testing.h"

/* Of the measured value. */
static const double MEDIAN = 0.04, WORST = 0.10, PAGE_LOCKED = 0.05, HOST = 0.10;

enum { MOST_SETTINGS = 24, MOST_ROWS = 64 };

static stw_status try_plan(const char *name, const char *cluster_name, const char *settings,
                           stw_plan **out, stw_error *err) {
    const stw_planner_options options = {.no_fixes = true, .no_prices = true};
    char text[1024], path[256], *rest = NULL;
    const char *list[MOST_SETTINGS];
    size_t n = 0;
    stw_status status = STW_STATUS_OK;
    stw_model *model = NULL;
    stw_cluster cluster;
    stw_run_spec run;
    snprintf(text, sizeof text, "%s", settings);
    for (char *s = strtok_r(text, " ", &rest); s != NULL && n < MOST_SETTINGS;
         s = strtok_r(NULL, " ", &rest))
        list[n++] = s;
    snprintf(path, sizeof path, STW_SOURCE_MODELS "/examples/%s.yaml", cluster_name);
    *out = NULL;
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(stw_cluster_read(path, &cluster, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, list, n, "row", err));
    STW_TRY(stw_run_spec_check(&run, "row", err));
    STW_TRY(stw_model_open(name, STW_SOURCE_MODELS, &model, err));
    STW_TRY(stw_plan_new(model, &cluster, &run, out, err));
    STW_TRY(stw_planner_solve(*out, &options, err));
out:
    stw_run_spec_free(&run);
    return status;
}

/* A plan by the settings of a row, "key=value ..." */
static stw_plan *plan_of(const char *name, const char *cluster, const char *settings) {
    stw_plan *plan = NULL;
    CHECK_OK(try_plan(name, cluster, settings, &plan, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    return plan;
}

/* ---- measured rows ---- */

static double allocated(const stw_plan *plan, stw_phase phase) {
    uint64_t most = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        uint64_t bytes = stw_peak_allocated(&plan->peaks[k].phase[phase][STW_TIER_GPU]);
        most = bytes > most ? bytes : most;
    }
    return (double)most;
}

static double on_host(const stw_plan *plan, bool page_locked) {
    uint64_t most = 0;
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_peak *peak = &plan->node_peaks[0].phase[p][STW_TIER_HOST];
        uint64_t bytes = page_locked ? peak->page_locked : peak->total;
        most = bytes > most ? bytes : most;
    }
    return (double)most;
}

static double error_of(const char *row, const char *what, double predicted, double measured) {
    double error = fabs(predicted - measured) / measured;
    if (error > WORST)
        fprintf(stderr, "%s: %s: predicted %.0f, measured %.0f\n", row, what, predicted, measured);
    return error;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void rows_are_predicted(void) {
    enum { NAME, MODEL, CLUSTER, SETTINGS, LOAD, BACKWARD, STEP, LOCKED, ON_HOST };
    static const stw_phase phases[] = {STW_PHASE_LOAD, STW_PHASE_FORWARD_BACKWARD,
                                       STW_PHASE_OPTIMIZER_STEP};
    double errors[3][MOST_ROWS];
    stw_pool *pool = stw_pool_new();
    stw_table table = {.n_rows = 0};
    CHECK_OK(
        stw_table_read(pool, STW_SOURCE_MODELS "/../tests/measured/deepspeed.csv", &table, err));
    CU_ASSERT_FATAL(table.n_rows > 10 && table.n_rows <= MOST_ROWS);
    for (size_t r = 1; r < table.n_rows; r++) {
        const char **row = table.rows[r].fields;
        stw_plan *plan = plan_of(row[MODEL], row[CLUSTER], row[SETTINGS]);
        for (int p = 0; p < 3; p++) {
            errors[p][r - 1] = error_of(row[NAME], stw_phase_name(phases[p]),
                                        allocated(plan, phases[p]), strtod(row[LOAD + p], NULL));
            CU_ASSERT(errors[p][r - 1] <= WORST);
        }
        double locked = strtod(row[LOCKED], NULL);
        double predicted = on_host(plan, true) / plan->job->ranks_per_node;
        CU_ASSERT(fabs(predicted - locked) <= PAGE_LOCKED * locked);
        if (row[ON_HOST][0] != '\0')
            CU_ASSERT(error_of(row[NAME], "host", on_host(plan, false),
                               strtod(row[ON_HOST], NULL)) <= HOST);
        stw_plan_free(plan);
    }
    for (int p = 0; p < 3; p++) {
        qsort(errors[p], table.n_rows - 1, sizeof(double), ascending);
        CU_ASSERT(errors[p][(table.n_rows - 1) / 2] <= MEDIAN);
    }
    stw_pool_free(pool);
}

/* ---- collectives ---- */

#define BF16                                                                                       \
    "engine=deepspeed precision.params=bf16 precision.grads=bf16 precision.reduce=bf16 "           \
    "precision.master=fp32 recompute.granularity=full "

/* Bytes of the collectives of a kind in one phase. */
static uint64_t sent(const stw_plan *plan, stw_phase phase, stw_op_kind kind) {
    const stw_program *program = plan->programs[0];
    const stw_movement *movement = stw_program_movement(program, phase);
    uint64_t bytes = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(movement);
    for (uint32_t i = 0; i < movement->n_ops; i++) {
        const stw_op *op = &program->ops[movement->first_op + i];
        if (op->kind != kind) continue;
        CU_ASSERT_EQUAL(op->group, STW_RANK_GROUP_SHARD);
        CU_ASSERT_EQUAL(op->stream, STW_STREAM_COMM);
        bytes += op->bytes;
    }
    return bytes;
}

static void collectives_have_their_bytes(void) {
    const stw_phase backward = STW_PHASE_FORWARD_BACKWARD, step = STW_PHASE_OPTIMIZER_STEP;
    for (int stage = 1; stage <= 3; stage++) {
        char settings[256];
        snprintf(settings, sizeof settings, BF16 "deepspeed.zero_stage=%d%s", stage,
                 stage == 3 ? " deepspeed.max_live_parameters=0 deepspeed.max_reuse_distance=0"
                              " deepspeed.persistence_threshold=0"
                            : "");
        stw_plan *plan = plan_of("Qwen3-1.7B", "h200-x2", settings);
        const uint64_t all = 2 * plan->model->params;
        CU_ASSERT_EQUAL(sent(plan, backward, STW_OP_ALL_REDUCE), stage < 3 ? all : 0);
        CU_ASSERT_EQUAL(sent(plan, backward, STW_OP_REDUCE_SCATTER), stage == 3 ? all : 0);
        CU_ASSERT_EQUAL(sent(plan, step, STW_OP_ALL_GATHER), stage < 3 ? all : 0);
        /* forward, recomputation and backward of the layers, and the embedding as embedding, as
         * head (forward, backward at once) and again for its own gradient */
        const uint64_t embedding = 2 * plan->model->vocab * plan->model->hidden;
        const uint64_t norm = 2 * plan->model->hidden;
        const uint64_t layers = all - embedding - norm;
        const uint64_t gathered = sent(plan, backward, STW_OP_ALL_GATHER);
        if (stage == 3) {
            CU_ASSERT(gathered >= 2 * layers + 3 * embedding);
            CU_ASSERT(gathered <= 3 * layers + 4 * embedding + 2 * norm);
        } else {
            CU_ASSERT_EQUAL(gathered, 0);
        }
        stw_plan_free(plan);
    }
}

/* ---- what a step does ---- */

static const stw_op *op_of(const stw_plan *plan, stw_op_kind kind, uint32_t from) {
    const stw_program *program = plan->programs[0];
    const stw_movement *step = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    for (uint32_t i = 0; i < step->n_ops; i++)
        if (program->ops[step->first_op + i].kind == kind && from-- == 0)
            return &program->ops[step->first_op + i];
    return NULL;
}

static uint32_t count_of(const stw_plan *plan, stw_op_kind kind) {
    uint32_t n = 0;
    while (op_of(plan, kind, n) != NULL) n++;
    return n;
}

/* Bytes of all passes of a tier. */
static uint64_t passed(const stw_plan *plan, stw_tier tier) {
    const stw_op *op;
    uint64_t bytes = 0;
    for (uint32_t i = 0; (op = op_of(plan, STW_OP_PASS, i)) != NULL; i++)
        bytes += op->to == tier ? op->bytes : 0;
    return bytes;
}

/* stage3.py, _post_step: all_gather of the tensors of at most persistence_threshold elements, one
 * collective each (_allgather_params_coalesced); _get_norm_groups: a sum per sub-group. GPT-2:
 * 148 tensors, 98 of them vectors, and none of its matrices has at most 1e5 elements. */
static void stage_3_gathers_small_tensors_one_by_one(void) {
    stw_plan *plan = plan_of("GPT-2", "h200-x2", BF16 "deepspeed.sub_group_size=3e7");
    CU_ASSERT_EQUAL(count_of(plan, STW_OP_ALL_GATHER), 98);
    /* the rank's 62.2 M elements: the embedding's 19.3 M and on, then the rest */
    CU_ASSERT_EQUAL(count_of(plan, STW_OP_NORM_SUM), 3);
    CU_ASSERT_EQUAL(count_of(plan, STW_OP_UPDATE), 3);
    stw_plan_free(plan);
}

/* Bytes of each element of the rank's part. On the GPU: the largest and the least gradient of
 * stages 1 and 2, 2 + 2 (check_overflow); fp64 copies 8 + 8, flat copy 2 + 2, cast 2 + 4, scale 4 +
 * 4, back 4 + 2. On the host: scale 8; cast 4 + 2 and 2 for lines that are read before they are
 * written, 2 more for new pages in stage 3. Only stage 3 and buffers that are not page-locked make
 * the copy pageable (stage_1_and_2.py, step: non_blocking from a buffer; stage3.py,
 * _reassign_or_swap_out_partitioned_parameters: fp32 to 16 bits across devices). */
static void steps_pass_over_state(void) {
    static const struct {
        const char *settings;
        uint64_t gpu, host;
        bool pageable;
    } cases[] = {
        {"deepspeed.zero_stage=1", 4 + 16 + 4 + 6 + 8 + 6, 0, false},
        {"deepspeed.zero_stage=3", 16 + 4 + 6 + 8 + 6, 0, false},
        {"deepspeed.zero_stage=1 optimizer.clip_norm=0", 4 + 16 + 4 + 6 + 6, 0, false},
        {"deepspeed.zero_stage=2 deepspeed.offload_optimizer=cpu deepspeed.pin_memory=true", 0,
         8 + 8, false},
        {"deepspeed.zero_stage=2 deepspeed.offload_optimizer=cpu deepspeed.pin_memory=false", 0,
         8 + 8, true},
        {"deepspeed.zero_stage=3 deepspeed.offload_optimizer=cpu deepspeed.pin_memory=true", 0,
         8 + 10, true},
        {"deepspeed.zero_stage=3 deepspeed.offload_optimizer=cpu deepspeed.offload_param=cpu", 0,
         8 + 8, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char settings[512];
        snprintf(settings, sizeof settings, BF16 "%s", cases[i].settings);
        stw_plan *plan = plan_of("Qwen3-1.7B", "h200-x2", settings);
        const uint64_t placed = plan->job->kinds[0].spaces[STW_SPACE_OPTIMIZER].n;
        CU_ASSERT_EQUAL(passed(plan, STW_TIER_GPU), cases[i].gpu * placed);
        CU_ASSERT_EQUAL(passed(plan, STW_TIER_HOST), cases[i].host * placed);
        const stw_op *copy = op_of(plan, STW_OP_COPY, 0);
        CU_ASSERT_EQUAL(copy != NULL && copy->pageable, cases[i].pageable);
        CU_ASSERT(count_of(plan, STW_OP_CALLS) > 0);
        stw_plan_free(plan);
    }
}

/* precision_config.py, check_grad_overflow: stages 1 and 2 look for overflow with bf16, too, and
 * all ranks agree on a flag; BF16_Optimizer and stage 3 do so with fp16 alone. stage3.py,
 * has_overflow: abs and == of all gradients are tensors, on the host 3 B of each. */
static void overflow_is_checked(void) {
#define FP16                                                                                       \
    BF16 "precision.params=fp16 precision.compute=fp16 precision.grads=fp16 "                      \
         "precision.reduce=fp16 "
    static const struct {
        const char *settings;
        uint32_t sums;    /* flags and norms */
        uint64_t on_host; /* bytes of an element */
    } cases[] = {
        {BF16 "deepspeed.zero_stage=1", 2, 0},
        {BF16 "deepspeed.zero_stage=1 precision.grads=fp32", 0, 0},
        {BF16 "deepspeed.zero_stage=2 deepspeed.offload_optimizer=cpu", 2, 0},
        {BF16 "deepspeed.offload_optimizer=cpu", 1, 0},
        {FP16, 2, 0},
        {FP16 "deepspeed.offload_optimizer=cpu", 2, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        stw_plan *plan = plan_of("GPT-2", "h200-x2", cases[i].settings);
        const uint64_t placed = plan->job->kinds[0].spaces[STW_SPACE_OPTIMIZER].n;
        CU_ASSERT_EQUAL(count_of(plan, STW_OP_NORM_SUM), cases[i].sums);
        const stw_peak *step = &plan->node_peaks[0].phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_HOST];
        CU_ASSERT(step->components[STW_COMPONENT_REDUCE] <= 2 * cases[i].on_host * placed);
        stw_plan_free(plan);
    }
    stw_plan *plan = plan_of("GPT-2", "h200-x2", FP16 "deepspeed.offload_optimizer=cpu");
    CU_ASSERT_EQUAL(passed(plan, STW_TIER_HOST), (12 + 8 + 10) * 62219904ull);
    stw_plan_free(plan);
}

/* A calibration's rates of cpu_adam are those of the node: two ranks have half each; 16 threads of
 * a rank are as fast as 16 of one thread, up to that. fsdp2's loop has rates of its own. */
static void measured_rates_are_used(void) {
    static const struct {
        const char *settings;
        double pps; /* of a rank */
    } cases[] = {
        {"node.torch.cpu_adam=2 Gparam/s,node.torch.cpu_adam_one=1 Gparam/s", 1e9},
        {"node.torch.cpu_adam=2 Gparam/s,node.torch.cpu_adam_one=10 Mparam/s", 16 * 5e6},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        stw_plan *plan = plan_of("GPT-2", "h200-x2",
                                 BF16 "deepspeed.offload_optimizer=cpu optimizer.cpu_threads=16");
        stw_error error = STW_ERROR_INIT;
        stw_cluster cluster = plan->cluster;
        char text[128], *rest = NULL;
        snprintf(text, sizeof text, "%s", cases[i].settings);
        for (char *s = strtok_r(text, ",", &rest); s != NULL; s = strtok_r(NULL, ",", &rest)) {
            const char *const list[] = {s};
            CU_ASSERT_EQUAL(stw_specs_set_all(&cluster, &plan->run, list, 1, "case", &error),
                            STW_STATUS_OK);
        }
        stw_job job = *plan->job;
        double bytes;
        job.cluster = &cluster;
        const double seconds = job.engine->cpu_step(&job, false, 1000000, &bytes);
        CU_ASSERT_DOUBLE_EQUAL(seconds, 1e6 / cases[i].pps, 1e-9);
        CU_ASSERT_EQUAL(bytes, 28e6);
        stw_plan_free(plan);
    }
}

/* ---- parameter groups and frozen tensors ---- */

#define PINNED "deepspeed.offload_optimizer=cpu deepspeed.pin_memory=true "
#define NO_DECAY "optimizer.groups=[{\"match\":[\"1d\"],\"weight_decay\":0}] "
#define MI (1ull << 20)
#define KI (1ull << 10)

/* stage_1_and_2.py, __init__: a flat buffer per parameter group. GPT-2 has 121,344 elements in its
 * 98 vectors and 124,318,464 in matrices; two ranks take half of each. Page-locked are master and
 * gradients (4 B), 16-bit weights (2 B), and one buffer of the largest tensor (50257 x 768 x 2 B),
 * each rounded up to a power of two. */
static void groups_have_flat_buffers_of_their_own(void) {
    stw_plan *plan = plan_of("GPT-2", "h200-x2", BF16 PINNED NO_DECAY "deepspeed.zero_stage=2");
    const double of_matrices = 256 + 128 + 256, of_vectors = 256 + 128 + 256, temporary = 128;
    CU_ASSERT_EQUAL(on_host(plan, true) / 2, (of_matrices + temporary) * MI + of_vectors * KI);
    CU_ASSERT_EQUAL(count_of(plan, STW_OP_ALL_GATHER), 2);
    CU_ASSERT_EQUAL(op_of(plan, STW_OP_ALL_GATHER, 0)->bytes, 2 * 124318464);
    CU_ASSERT_EQUAL(op_of(plan, STW_OP_ALL_GATHER, 1)->bytes, 2 * 121344);
    CU_ASSERT_EQUAL(op_of(plan, STW_OP_UPDATE, 1)->params, 121344 / 2);
    stw_plan_free(plan);
    /* stage3.py, _create_fp16_sub_groups: sub-groups do not span groups */
    plan = plan_of("GPT-2", "h200-x2", BF16 NO_DECAY);
    CU_ASSERT_EQUAL(count_of(plan, STW_OP_UPDATE), 2);
    CU_ASSERT_EQUAL(op_of(plan, STW_OP_UPDATE, 0)->params, 124318464 / 2);
    stw_plan_free(plan);
}

#define LORA "trainable.lora.rank=8 trainable.lora.targets=[q_proj,v_proj] "

/* Qwen3-1.7B, rank 8 on q_proj (2048 x 2048) and v_proj (1024 x 2048): 3 x 16,384 + 8,192 elements
 * in each of 28 layers are trained. */
static void frozen_tensors_have_no_state(void) {
    const uint64_t trained = 28 * (3 * 16384 + 8192), whole = 1720574976 + trained;
    for (int stage = 1; stage <= 3; stage++) {
        char settings[512];
        snprintf(settings, sizeof settings, BF16 LORA "deepspeed.zero_stage=%d", stage);
        stw_plan *plan = plan_of("Qwen3-1.7B", "h200-x2", settings);
        const stw_space *spaces = plan->job->kinds[0].spaces;
        CU_ASSERT_EQUAL(spaces[STW_SPACE_OPTIMIZER].n, trained / 2);
        CU_ASSERT_EQUAL(spaces[STW_SPACE_PARAMS].n, stage == 3 ? whole / 2 : whole);
        const stw_op_kind reduction = stage == 3 ? STW_OP_REDUCE_SCATTER : STW_OP_ALL_REDUCE;
        CU_ASSERT_EQUAL(sent(plan, STW_PHASE_FORWARD_BACKWARD, reduction), 2 * trained);
        if (stage < 3) {
            CU_ASSERT_EQUAL(sent(plan, STW_PHASE_OPTIMIZER_STEP, STW_OP_ALL_GATHER), 2 * trained);
        } else { /* adapters and norms stay whole: 28 x (4 + 4) tensors and the last norm */
            CU_ASSERT_EQUAL(count_of(plan, STW_OP_ALL_GATHER), 28 * 8 + 1);
        }
        stw_plan_free(plan);
    }
    /* as above: 802,816 elements, and a buffer of the largest adapter */
    stw_plan *plan = plan_of("Qwen3-1.7B", "h200-x2", BF16 LORA PINNED "deepspeed.zero_stage=2");
    CU_ASSERT_EQUAL(on_host(plan, true) / 2, (double)((4 + 2 + 4) * MI + 32 * KI));
    stw_plan_free(plan);
    /* frozen shards are page-locked one by one: 2 matrices of 4 MiB, 2 of 2 MiB, 3 of 12 MiB that
     * take 16; the embedding of 297 MiB takes 512, once more for the head before it is tied.
     * Adapters: 16-bit shards, fp32 and 16-bit gradients. Norms (56.3 KiB of the flat region's
     * 1.6 MB) change no power of two. */
    plan = plan_of("Qwen3-1.7B", "h200-x2", BF16 LORA PINNED "deepspeed.offload_param=cpu");
    CU_ASSERT_EQUAL(on_host(plan, true) / 2,
                    (double)((28 * (2 * 4 + 2 * 2 + 3 * 16) + 2 * 512 + 2 + 4 + 2) * MI));
    stw_plan_free(plan);
}

/* With accumulation, what is reduced once in a step is the step's. */
static void reductions_of_a_step_count_once(void) {
    static const char *const overlaps[] = {"false", "true"};
    for (int i = 0; i < 2; i++) {
        char settings[256];
        snprintf(settings, sizeof settings,
                 BF16 "deepspeed.zero_stage=1 batch.grad_accumulation=4 deepspeed.overlap_comm=%s",
                 overlaps[i]);
        stw_plan *plan = plan_of("Qwen3-1.7B", "h200-x2", settings);
        CU_ASSERT_EQUAL(sent(plan, STW_PHASE_FORWARD_BACKWARD, STW_OP_ALL_REDUCE), 0);
        CU_ASSERT_EQUAL(sent(plan, STW_PHASE_OPTIMIZER_STEP, STW_OP_ALL_REDUCE),
                        2 * plan->model->params);
        stw_plan_free(plan);
    }
}

/* What earlier micro batches leave: in stage 2 their part of the gradients beside the present
 * one's, on the host one page-locked buffer for every tensor that the rank owns a part of. */
static void earlier_micro_batches_leave_gradients(void) {
    static const char *const settings[2][2] = {
        {BF16 "deepspeed.zero_stage=2 batch.seq_len=64",
         BF16 "deepspeed.zero_stage=2 batch.seq_len=64 batch.grad_accumulation=2"},
        {BF16 "deepspeed.zero_stage=2 deepspeed.offload_optimizer=cpu deepspeed.pin_memory=true",
         BF16 "deepspeed.zero_stage=2 deepspeed.offload_optimizer=cpu deepspeed.pin_memory=true "
              "batch.grad_accumulation=2"}};
    double bytes[2][2];
    uint64_t part = 0;
    for (int host = 0; host < 2; host++)
        for (int more = 0; more < 2; more++) {
            stw_plan *plan = plan_of("Qwen3-1.7B", "h200-x2", settings[host][more]);
            bytes[host][more] =
                host ? on_host(plan, true) : allocated(plan, STW_PHASE_FORWARD_BACKWARD);
            part = plan->model->params / 2;
            stw_plan_free(plan);
        }
    CU_ASSERT(bytes[0][1] - bytes[0][0] >= 2.0 * (double)part);
    /* both ranks' tensors in 16 bits, rounded up to at most twice as much */
    CU_ASSERT(bytes[1][1] - bytes[1][0] >= 4.0 * (double)part);
    CU_ASSERT(bytes[1][1] - bytes[1][0] <= 8.5 * (double)part);
}

/* ---- Twin-Flow ---- */

/* Bytes of all allocs of a component in a tier. */
static uint64_t allocs_of(const stw_plan *plan, stw_component component, stw_tier tier) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->programs[0]->n_ops; i++) {
        const stw_op *op = &plan->programs[0]->ops[i];
        if (op->kind == STW_OP_ALLOC && op->component == component && op->to == tier)
            bytes += op->bytes;
    }
    return bytes;
}

/* torch's AdamW on the GPU: roots of exp_avg_sq, in the first step and in later ones. */
static void torch_adam_makes_roots(void) {
    for (int stage = 1; stage <= 3; stage++) {
        char settings[512];
        snprintf(settings, sizeof settings, BF16 "deepspeed.zero_stage=%d", stage);
        stw_plan *fused = plan_of("Qwen3-1.7B", "h200-x2", settings);
        strcat(settings, " optimizer.implementation=foreach");
        stw_plan *foreach = plan_of("Qwen3-1.7B", "h200-x2", settings);
        const uint64_t state = foreach->job->kinds[0].spaces[STW_SPACE_OPTIMIZER].n;
        const uint64_t more = allocs_of(foreach, STW_COMPONENT_REDUCE, STW_TIER_GPU) -
                              allocs_of(fused, STW_COMPONENT_REDUCE, STW_TIER_GPU);
        CU_ASSERT_EQUAL(more, 2 * 4 * state);
        CU_ASSERT_TRUE(stage == 3 || allocated(foreach, STW_PHASE_OPTIMIZER_STEP) >=
                                         allocated(fused, STW_PHASE_OPTIMIZER_STEP));
        stw_plan_free(fused);
        stw_plan_free(foreach);
    }
}

/* stage3.py, _create_fp32_partitions: of n sub-groups the first int((1 - ratio) x n) are on the
 * GPU. A rank of two has 62,219,904 elements of GPT-2; with 3e7 the first of three sub-groups ends
 * with the matrix mlp.c_proj of layer 2: 19,298,688 + 393,216 (embeddings) + 2 x 3,543,936 (layers)
 * + 3,543,552. Its page-locked gradient buffer of 4 x 30,323,328 B, a block of 128 MiB, serves the
 * 16-bit gradients of all sub-groups (2 x 62,219,904 B) when it has been copied to the GPU. */
static void ratio_keeps_sub_groups_on_the_gpu(void) {
    static const struct {
        const char *ratio;
        uint32_t on_gpu;
    } cases[] = {{"1", 0}, {"0.5", 1}, {"0.34", 1}, {"0.3", 2}, {"0", 3}};
    const uint64_t all = 62219904, first = 30323328;
    double locked = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char settings[512];
        snprintf(settings, sizeof settings,
                 BF16 PINNED "deepspeed.sub_group_size=3e7 deepspeed.ratio=%s", cases[i].ratio);
        stw_plan *plan = plan_of("GPT-2", "h200-x2", settings);
        uint64_t on_gpu = 0;
        for (uint32_t u = 0; u < 3; u++) {
            const stw_op *update = op_of(plan, STW_OP_UPDATE, u);
            CU_ASSERT_EQUAL(update->to == STW_TIER_GPU, u < cases[i].on_gpu);
            if (u < cases[i].on_gpu) on_gpu += update->params;
        }
        if (cases[i].on_gpu == 1) CU_ASSERT_EQUAL(on_gpu, first);
        CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_MASTER, STW_TIER_GPU), 4 * on_gpu);
        CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_EXP_AVG, STW_TIER_GPU), 4 * on_gpu);
        CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_EXP_AVG_SQ, STW_TIER_HOST),
                        4 * (all - on_gpu));
        CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_MASTER, STW_TIER_HOST), 4 * (all - on_gpu));
        if (i == 0) locked = on_host(plan, true) / 2;
        if (i == 1) CU_ASSERT_EQUAL(on_host(plan, true) / 2, locked - 128.0 * MI);
        stw_plan_free(plan);
    }
}

/* ---- ZeRO-Infinity ---- */

#define NVME "node.nvme.capacity=1TB deepspeed.offload_optimizer=nvme "
#define SMALL_GROUPS "deepspeed.sub_group_size=3e7 "
/* Parameters too, none of which stays on the host; no prefetching, and nothing is kept. */
#define NVME_PARAMS                                                                                \
    NVME "deepspeed.offload_param=nvme deepspeed.max_in_cpu=0 deepspeed.max_reuse_distance=0 "     \
         "deepspeed.prefetch_bucket=0 "

/* Bytes of the operations of a kind and component in one phase. */
static uint64_t moved(const stw_plan *plan, stw_phase phase, stw_op_kind kind,
                      stw_component component) {
    const stw_program *program = plan->programs[0];
    const stw_movement *movement = stw_program_movement(program, phase);
    uint64_t bytes = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(movement);
    for (uint32_t i = 0; i < movement->n_ops; i++) {
        const stw_op *op = &program->ops[movement->first_op + i];
        if (op->kind == kind && op->component == component) bytes += op->bytes;
    }
    return bytes;
}

/* Bytes of a component on the GPU when a phase begins. */
static uint64_t at_begin(const stw_plan *plan, stw_phase phase, stw_component component) {
    const stw_program *program = plan->programs[0];
    stw_live live = {0};
    for (uint32_t i = 0; i < stw_program_movement(program, phase)->first_op; i++)
        stw_live_apply(&live, &program->ops[i]);
    return live.bytes[STW_TIER_GPU][component];
}

static uint64_t aligned(uint64_t bytes) { return (bytes + 1023) / 1024 * 1024; }

/* GPT-2 on two ranks, three sub-groups. swap_tensor/optimizer_utils.py: each sub-group has a file
 * of a multiple of 1 KiB for master weights and each moment; a shard's gradient has one if it has
 * at least 1 MiB in fp32, of whole KiB; what is smaller, and all of a shard of which a part is,
 * stays on the GPU (77,194,752 B of the embedding are 512 B too many). utils.py, SwapBufferManager:
 * four buffers of the largest sub-group, not rounded; torch's allocator rounds the 16-bit
 * gradients. */
static void optimizer_on_nvme_has_its_bytes(void) {
    const stw_phase backward = STW_PHASE_FORWARD_BACKWARD, step = STW_PHASE_OPTIMIZER_STEP;
    stw_plan *plan = plan_of("GPT-2", "h200-x2", BF16 NVME SMALL_GROUPS);
    uint64_t files = 0, largest = 0, grads = 0, left = 0;
    for (uint32_t u = 0; u < 3; u++) {
        const uint64_t bytes = aligned(4 * op_of(plan, STW_OP_UPDATE, u)->params);
        files += bytes;
        largest = bytes > largest ? bytes : largest;
    }
    for (uint32_t t = 0; t < plan->model->n_tensors; t++) {
        const uint64_t bytes = 2 * plan->model->tensors[t].numel;
        const uint64_t file = bytes < 1 * MI ? 0 : bytes / 1024 * 1024;
        grads += file;
        left += file < bytes ? bytes : 0;
    }
    CU_ASSERT(left > 77194752 && left < 78 * 1000 * 1000);
    CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_MASTER, STW_TIER_NVME), files);
    CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_EXP_AVG, STW_TIER_NVME), files);
    CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_GRADS, STW_TIER_NVME), grads);
    CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_MASTER, STW_TIER_HOST), 0);
    CU_ASSERT_EQUAL(plan->node_peaks[0].phase[step][STW_TIER_NVME].total, 2 * (3 * files + grads));
    CU_ASSERT_EQUAL(on_host(plan, true) / 2, (double)(4 * largest + 128 * MI));
    CU_ASSERT_EQUAL(moved(plan, step, STW_OP_NVME_READ, STW_COMPONENT_EXP_AVG), files);
    CU_ASSERT_EQUAL(moved(plan, step, STW_OP_NVME_WRITE, STW_COMPONENT_MASTER), files);
    CU_ASSERT_EQUAL(moved(plan, step, STW_OP_NVME_READ, STW_COMPONENT_GRADS), grads);
    /* what backward has not written is in a buffer */
    const uint64_t flushed = moved(plan, step, STW_OP_NVME_WRITE, STW_COMPONENT_GRADS);
    CU_ASSERT(flushed > 0 && flushed <= largest);
    CU_ASSERT_EQUAL(moved(plan, backward, STW_OP_NVME_WRITE, STW_COMPONENT_GRADS) + flushed, grads);
    CU_ASSERT_EQUAL(at_begin(plan, step, STW_COMPONENT_GRADS), left);
    CU_ASSERT_EQUAL(at_begin(plan, STW_PHASE_FIRST_OPTIMIZER_STEP, STW_COMPONENT_GRADS), 0);
    stw_plan_free(plan);
}

static double simulated_s(const stw_plan *plan, stw_phase phase) {
    stw_sim *sim = NULL;
    CHECK_OK(stw_sim_run(plan->job, plan->programs[0], &sim, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(sim);
    const double seconds = stw_sim_phase_seconds(sim, phase);
    stw_sim_free(sim);
    return seconds;
}

/* pipelined_optimizer_swapper.py: reads go on during the update of the sub-group before, writes
 * during that of the next one; new moments of all sub-groups stay until they are read again. */
static void pipelined_steps_overlap(void) {
    static const char *const settings[] = {
        "", "deepspeed.pipeline_read=true deepspeed.optimizer_buffer_count=8",
        "deepspeed.pipeline_write=true deepspeed.optimizer_buffer_count=8",
        "deepspeed.pipeline_read=true deepspeed.pipeline_write=true "
        "deepspeed.optimizer_buffer_count=12 node.nvme.both=4.5GB/s"};
    double seconds[4], moments[4];
    for (int i = 0; i < 4; i++) {
        char text[512];
        snprintf(text, sizeof text, BF16 NVME SMALL_GROUPS "%s", settings[i]);
        stw_plan *plan = plan_of("GPT-2", "h200-x2", text);
        const stw_peak *peak =
            &plan->node_peaks[0].phase[STW_PHASE_FIRST_OPTIMIZER_STEP][STW_TIER_HOST];
        seconds[i] = simulated_s(plan, STW_PHASE_OPTIMIZER_STEP);
        moments[i] = (double)peak->components[STW_COMPONENT_EXP_AVG] / 2;
        stw_plan_free(plan);
    }
    CU_ASSERT(seconds[1] < seconds[0] && seconds[2] < seconds[0]);
    CU_ASSERT(seconds[3] < 0.8 * seconds[0]);
    CU_ASSERT(moments[0] < 4 * 35e6);
    /* at the peak, casts of the second sub-group are beside those of the first two */
    for (int i = 1; i < 4; i++) CU_ASSERT(moments[i] > 0.98 * 4 * 62219904);
}

/* A sub-group of less than a block of the disk's requests is updated on the host as with cpu. */
static void small_sub_groups_stay_on_the_host(void) {
    stw_plan *plan =
        plan_of("GPT-2", "h200-x2", BF16 NVME SMALL_GROUPS "deepspeed.aio_block_size=100MiB");
    uint64_t host = 0, files = 0;
    for (uint32_t u = 0; u < 3; u++) {
        const uint64_t bytes = 4 * op_of(plan, STW_OP_UPDATE, u)->params;
        if (bytes < 100 * MI)
            host += bytes;
        else
            files += aligned(bytes);
    }
    CU_ASSERT(host > 0 && files > 0);
    CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_MASTER, STW_TIER_HOST), host);
    CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_MASTER, STW_TIER_NVME), files);
    CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_EXP_AVG_SQ, STW_TIER_NVME), files);
    stw_plan_free(plan);
}

/* partitioned_param_swapper.py: shards of at least 1 MiB have a file, that of the embedding twice
 * (the head is made before it is tied); a shard is read each time its tensor is gathered, and all
 * are written after the update. Matrices of a layer are used three times with recomputation, the
 * embedding four times. */
static void parameters_on_nvme_have_their_bytes(void) {
    const stw_phase backward = STW_PHASE_FORWARD_BACKWARD, step = STW_PHASE_OPTIMIZER_STEP;
    const uint64_t wte = 50257 * 768, layers = 12 * (3 + 2 * 4) * 768 * 768;
    const uint64_t layers_4 = 4 * (layers / 4); /* c_attn and both matrices of the MLP */
    stw_plan *plan = plan_of("GPT-2", "h200-x2", BF16 NVME_PARAMS SMALL_GROUPS);
    CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_PARAMS, STW_TIER_NVME),
                    2 * aligned(wte) + layers_4);
    CU_ASSERT_EQUAL(moved(plan, backward, STW_OP_NVME_READ, STW_COMPONENT_PARAMS),
                    4 * aligned(wte) + 3 * layers_4);
    CU_ASSERT_EQUAL(moved(plan, step, STW_OP_NVME_WRITE, STW_COMPONENT_PARAMS),
                    aligned(wte) + layers_4);
    /* five buffers of 1e8 elements; one of the largest sub-group's shards */
    const double locked = on_host(plan, true) / 2;
    CU_ASSERT(locked > 5 * 2e8 + 2 * 30323328.0);
    stw_plan_free(plan);
    /* all of them fit into max_in_cpu: files are written once and never read */
    plan = plan_of("GPT-2", "h200-x2", BF16 NVME "deepspeed.offload_param=nvme");
    CU_ASSERT_EQUAL(allocs_of(plan, STW_COMPONENT_PARAMS, STW_TIER_NVME),
                    2 * aligned(wte) + layers_4);
    CU_ASSERT_EQUAL(moved(plan, backward, STW_OP_NVME_READ, STW_COMPONENT_PARAMS), 0);
    CU_ASSERT_EQUAL(moved(plan, step, STW_OP_NVME_WRITE, STW_COMPONENT_PARAMS), 0);
    stw_plan_free(plan);
}

/* Assertions of DeepSpeed, with the number that is needed. */
static void runs_that_lack_buffers_are_refused(void) {
    static const struct {
        const char *settings, *word;
    } cases[] = {
        {NVME SMALL_GROUPS "deepspeed.optimizer_buffer_count=3",
         "deepspeed.optimizer_buffer_count: found 3, expected at least 4"},
        {NVME SMALL_GROUPS "deepspeed.pipeline_read=true", "found 4, expected at least 8"},
        {NVME SMALL_GROUPS "deepspeed.pipeline_read=true deepspeed.pipeline_write=true",
         "found 4, expected at least 12"},
        {NVME_PARAMS "deepspeed.param_buffer_size=1e7",
         "deepspeed.param_buffer_size: found 10000000, expected at least 19298688"},
        {NVME_PARAMS "deepspeed.persistence_threshold=2e6", "found 2000000, expected at most "},
        {NVME_PARAMS SMALL_GROUPS "deepspeed.max_reuse_distance=1e9",
         "deepspeed.param_buffer_count: found 5, expected at least "},
        {"deepspeed.offload_optimizer=nvme", "nvme needs node.nvme.capacity > 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char settings[512];
        snprintf(settings, sizeof settings, BF16 "%s", cases[i].settings);
        stw_plan *plan = NULL;
        CHECK_FAILS(try_plan("GPT-2", "h200-x2", settings, &plan, err), STW_STATUS_BAD_INPUT,
                    cases[i].word);
        stw_plan_free(plan);
    }
}

/* ---- reports from the field: models/examples/deepspeed-*.yaml ---- */

static void reports_fit_or_not(void) {
    static const struct {
        const char *model, *cluster, *settings;
        stw_verdict verdict;
    } cases[] = {
        {"Qwen3-30B-A3B", "h100-80g-x8", BF16 "deepspeed.zero_stage=2 batch.seq_len=8192",
         STW_VERDICT_DOES_NOT_FIT},
        {"Llama-3.1-70B", "h200-x2", BF16 "node.gpus=8 batch.seq_len=1024",
         STW_VERDICT_DOES_NOT_FIT},
        {"Llama-3.1-70B", "h200-x2",
         BF16 "node.gpus=8 batch.seq_len=1024 deepspeed.offload_optimizer=cpu "
              "deepspeed.offload_param=cpu node.host.memory=2048GiB node.host.limit=1998GiB",
         STW_VERDICT_FITS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = plan_of(cases[i].model, cases[i].cluster, cases[i].settings);
        CU_ASSERT_EQUAL(plan->verdict, cases[i].verdict);
        stw_plan_free(plan);
    }
}

static const stw_test tests[] = {
    {"measured rows are predicted", rows_are_predicted},
    {"collectives have their bytes", collectives_have_their_bytes},
    {"stage 3 gathers small tensors one by one", stage_3_gathers_small_tensors_one_by_one},
    {"steps pass over state", steps_pass_over_state},
    {"overflow is checked", overflow_is_checked},
    {"measured rates are used", measured_rates_are_used},
    {"groups have flat buffers of their own", groups_have_flat_buffers_of_their_own},
    {"frozen tensors have no state", frozen_tensors_have_no_state},
    {"ratio keeps sub-groups on the GPU", ratio_keeps_sub_groups_on_the_gpu},
    {"optimizer on NVMe has its bytes", optimizer_on_nvme_has_its_bytes},
    {"pipelined steps overlap", pipelined_steps_overlap},
    {"small sub-groups stay on the host", small_sub_groups_stay_on_the_host},
    {"parameters on NVMe have their bytes", parameters_on_nvme_have_their_bytes},
    {"torch's Adam makes roots", torch_adam_makes_roots},
    {"runs that lack buffers are refused", runs_that_lack_buffers_are_refused},
    {"reductions of a step count once", reductions_of_a_step_count_once},
    {"earlier micro batches leave gradients", earlier_micro_batches_leave_gradients},
    {"reports fit or do not", reports_fit_or_not},
};

int main(void) { return stw_test_run_all("engine deepspeed", tests, sizeof tests / sizeof *tests); }

/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-LM: bytes of one rank of large layouts as measured (tests/measured/megatron.csv), what
 * its ranks and stages hold, and what parallelism costs. */
#include <math.h>

#include "engines/megatron/params.h"
#include "models/table.h"
#include "plan/program/check.h"
#include "plan/program/collectives.h"
#include "planner/planner.h"
#include "planner/reading.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

enum { MAX_SETTINGS = 40, LOAD = 5, FORWARD_BACKWARD, STEP, PAGE_LOCKED, N_FIGURES = 4 };

/* ---- plans of settings "key=value key=value" ---- */

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

/* The walk of a kind of rank with one policy for all blocks. */
static stw_program *program_of(const stw_job *job, uint32_t kind, stw_peaks *peaks) {
    stw_place places[STW_MAX_PLACES];
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    CU_ASSERT_EQUAL_FATAL(job->engine->places(job, places, NULL), 1);
    bool full = job->run->recompute.granularity == 1;
    const stw_simple simple = {.job = job,
                               .kind = kind,
                               .place = places[0],
                               .act = full ? STW_ACT_RECOMPUTE : STW_ACT_KEEP,
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

/* ---- measured rows ---- */

/* Figures of the worst kind of rank of a stage. */
static void predict(const stw_job *job, uint32_t stage, uint64_t *figures) {
    static const stw_phase phases[] = {STW_PHASE_LOAD, STW_PHASE_FORWARD_BACKWARD,
                                       STW_PHASE_OPTIMIZER_STEP, STW_PHASE_FIRST_OPTIMIZER_STEP};
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        stw_peaks peaks;
        if (job->kinds[k].stage != stage) continue;
        stw_program_free(program_of(job, k, &peaks));
        for (int i = 0; i < 4; i++) {
            uint64_t *figure = &figures[i < 3 ? i : 2];
            const stw_peak *peak = &peaks.phase[phases[i]][STW_TIER_GPU];
            *figure = stw_max_u64(*figure, stw_peak_allocated(peak));
            figures[3] = stw_max_u64(figures[3], peaks.phase[phases[i]][STW_TIER_HOST].page_locked);
        }
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* In the step a gradient is scaled through a temporary if the norm is above the limit. Plans assume
 * so; some of the measured steps did not clip. */
static const double worst[N_FIGURES] = {0.01, 0.015, 0.065, 0.01};
static const double median[N_FIGURES] = {0.002, 0.002, 0.005, 0.005};

static void rows_are_as_measured(void) {
    stw_table table = {0};
    stw_pool *pool = stw_pool_new();
    double errors[N_FIGURES][64];
    size_t n[N_FIGURES] = {0};
    CHECK_OK(stw_table_read(pool, STW_SOURCE_DIR "/tests/measured/megatron.csv", &table, err));
    CU_ASSERT_TRUE_FATAL(table.n_rows > 40 && table.n_rows < 64);
    for (size_t r = 1; r < table.n_rows; r++) {
        const char *const *fields = (const char *const *)table.rows[r].fields;
        uint64_t figures[N_FIGURES] = {0};
        planned p;
        plan_of(&p, fields[1], fields[3]);
        predict(p.plan->job, (uint32_t)atoi(fields[4]), figures);
        for (int f = 0; f < N_FIGURES; f++) {
            double measured = atof(fields[LOAD + f]);
            if (measured < 1e6) continue; /* nothing of this kind */
            double off = fabs((double)figures[f] / measured - 1);
            if (off > worst[f])
                fprintf(stderr, "%s figure %d: %.3f of measured\n", fields[0], f,
                        (double)figures[f] / measured);
            CU_ASSERT_TRUE(off <= worst[f]);
            errors[f][n[f]++] = off;
        }
        free_plan(&p);
    }
    for (int f = 0; f < N_FIGURES; f++) {
        qsort(errors[f], n[f], sizeof(double), ascending);
        CU_ASSERT_TRUE_FATAL(n[f] >= 5);
        CU_ASSERT_TRUE(errors[f][n[f] / 2] <= median[f]);
    }
    stw_pool_free(pool);
}

/* ---- ranks ---- */

/* Every element of the state lies on exactly one rank of the data-parallel group, and TP, PP and EP
 * cut parameters so that each is somewhere. */
static void parts_cover_the_model(void) {
    static const char *const layouts[] = {
        "node.gpus=8 nodes=2 parallel.tp=2 parallel.sequence_parallel=true parallel.pp=4",
        "node.gpus=8 nodes=1 parallel.ep=4 parallel.etp=2 parallel.tp=2 "
        "parallel.sequence_parallel=true",
        "node.gpus=8 nodes=2 parallel.cp=2 parallel.pp=2 parallel.vpp=2 "
        "batch.grad_accumulation=2 megatron.optimizer_offload_fraction=0.3",
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        planned p;
        plan_of(&p, "Qwen3-30B-A3B", layouts[i]);
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
        /* norms, routers and the like lie on every rank of a TP group */
        CU_ASSERT_TRUE(elements >= job->model->params);
        CU_ASSERT_TRUE((double)elements <= 1.001 * (double)job->model->params);
        free_plan(&p);
    }
}

/* --optimizer-cpu-offload alone offloads all (arguments.py, --optimizer-offload-fraction). */
static void offload_follows_its_switch(void) {
    static const char *const settings[] = {
        "megatron.precision_aware=true megatron.optimizer_cpu_offload=true",
        "megatron.precision_aware=true megatron.optimizer_cpu_offload=true "
        "megatron.optimizer_offload_fraction=1",
        "megatron.precision_aware=true megatron.optimizer_cpu_offload=true "
        "megatron.optimizer_offload_fraction=0",
        "megatron.optimizer_cpu_offload=false"};
    uint64_t host[4];
    for (size_t i = 0; i < 4; i++) {
        planned p;
        stw_peaks peaks;
        plan_of(&p, "Qwen3-4B", settings[i]);
        stw_program_free(program_of(p.plan->job, 0, &peaks));
        host[i] = peaks.phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_HOST].total;
        free_plan(&p);
    }
    CU_ASSERT_EQUAL(host[0], host[1]);
    CU_ASSERT_TRUE(host[0] > host[2] + 4000000000ull);
    CU_ASSERT_TRUE(host[2] >= host[3]);
}

/* The arguments that a report gives recompute as much as the plan's own choice. */
static void recomputing_has_arguments(void) {
#define LONG                                                                                       \
    "node.gpus=8 nodes=1 node.gpu.memory=79GiB parallel.tp=2 parallel.sequence_parallel=true "
    static const struct {
        const char *settings, *expected, *arguments;
    } cases[] = {{LONG "batch.seq_len=16384", "block --recompute-num-layers ",
                  "recompute.granularity=full recompute.method=block recompute.num_layers="},
                 {LONG "batch.seq_len=32768 parallel.pp=2 batch.grad_accumulation=4",
                  "block --recompute-num-layers ",
                  "recompute.granularity=full recompute.method=block recompute.num_layers="},
                 {LONG "batch.seq_len=16384 recompute.granularity=full",
                  "uniform --recompute-num-layers ",
                  "recompute.method=uniform recompute.num_layers="},
                 {LONG "batch.seq_len=4096", NULL, NULL},
                 {LONG "batch.seq_len=4096 recompute.granularity=selective", NULL, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char note[256], settings[512];
        uint64_t peak[2] = {0};
        for (int again = 0; again < 2; again++) {
            planned p;
            const stw_planner_options options = {.simulate = stw_sim_seconds, .tells_turns = true};
            plan_of(&p, "Qwen3-8B", again ? settings : cases[i].settings);
            CHECK_OK(stw_planner_solve(p.plan, &options, err));
            for (uint32_t k = 0; k < p.plan->job->n_kinds; k++)
                peak[again] +=
                    p.plan->peaks[k].phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].total;
            if (again == 0)
                p.plan->job->engine->acts_note(p.plan->job, &p.plan->decisions, note, sizeof note);
            free_plan(&p);
            if (cases[i].expected == NULL) break;
            const char *at = strstr(note, cases[i].expected);
            CU_ASSERT_PTR_NOT_NULL_FATAL(at);
            snprintf(settings, sizeof settings, "%s %s%s", cases[i].settings, cases[i].arguments,
                     at + strlen(cases[i].expected));
        }
        if (cases[i].expected == NULL) peak[1] = note[0] == '\0' ? peak[0] : 0;
        CU_ASSERT_EQUAL(peak[0], peak[1]);
    }
}

/* Stages differ: the first holds the embedding and most micro batches, the last the head. */
static void stages_differ(void) {
    planned p;
    plan_of(&p, "Qwen3-4B",
            "node.gpus=4 nodes=1 parallel.pp=4 batch.grad_accumulation=8 batch.seq_len=4096 "
            "recompute.granularity=none");
    const stw_job *job = p.plan->job;
    uint64_t logits[4], saved[4], params[4];
    CU_ASSERT_EQUAL_FATAL(job->n_kinds, 4);
    for (uint32_t k = 0; k < 4; k++) {
        stw_peaks peaks;
        stw_program_free(program_of(job, k, &peaks));
        const stw_peak *peak = &peaks.phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU];
        logits[k] = peak->components[STW_COMPONENT_LOGITS];
        saved[k] = peak->components[STW_COMPONENT_ACTIVATIONS];
        params[k] = job->kinds[k].params;
    }
    CU_ASSERT_EQUAL(params[0], params[3] - job->model->hidden); /* tied: the head is a copy */
    CU_ASSERT_TRUE(params[0] > params[1]);
    CU_ASSERT_TRUE(logits[3] > 0 && logits[0] == 0 && logits[2] == 0);
    CU_ASSERT_TRUE(saved[0] > saved[1] && saved[1] > saved[2] && saved[2] > saved[3] / 2);
    free_plan(&p);
}

/* ---- work ---- */

static double collective_bytes(const stw_job *job, stw_rank_group group) {
    stw_peaks peaks;
    double bytes = 0;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        stw_program *program = program_of(job, k, &peaks);
        const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
        for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
            if (program->ops[i].group == group) bytes += (double)program->ops[i].bytes;
        stw_program_free(program);
    }
    return bytes;
}

/* Every way of parallelism sends bytes of its own. */
static void parallelism_costs(void) {
    static const struct {
        const char *setting;
        stw_rank_group group;
    } cases[] = {{"parallel.tp=2 parallel.sequence_parallel=true", STW_RANK_GROUP_TP},
                 {"parallel.pp=2", STW_RANK_GROUP_PP},
                 {"parallel.cp=2", STW_RANK_GROUP_CP},
                 {"parallel.ep=4", STW_RANK_GROUP_EP},
                 {"parallel.etp=2", STW_RANK_GROUP_ETP},
                 {"megatron.overlap_grad_reduce=true", STW_RANK_GROUP_DP}};
    planned one;
    plan_of(&one, "Qwen3-30B-A3B", "batch.seq_len=4096");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        planned p;
        char settings[256];
        snprintf(settings, sizeof settings, "batch.seq_len=4096 %s", cases[i].setting);
        plan_of(&p, "Qwen3-30B-A3B", settings);
        CU_ASSERT_EQUAL(collective_bytes(one.plan->job, cases[i].group), 0);
        CU_ASSERT_TRUE(collective_bytes(p.plan->job, cases[i].group) > 0);
        free_plan(&p);
    }
    free_plan(&one);
    plan_of(&one, "Qwen3-0.6B", "batch.seq_len=4096 parallel.tp=2"); /* without experts */
    CU_ASSERT_TRUE(collective_bytes(one.plan->job, STW_RANK_GROUP_TP) > 0);
    free_plan(&one);
}

/* Calls of a group and kind that a profiler counts in an iteration of a stage; each has
 * `each_bytes`. */
static uint64_t calls_of(const stw_job *job, uint32_t stage, stw_collectives_row want,
                         uint64_t each_bytes) {
    stw_peaks peaks;
    stw_collectives all;
    stw_pool *pool = stw_pool_new();
    uint64_t calls = 0;
    const uint32_t rank = job->world / job->run->parallel.pp * stage;
    stw_program *program = program_of(job, stw_job_kind_of(job, rank), &peaks);
    CHECK_OK(stw_program_collectives(job, program, pool, &all, err));
    for (uint32_t i = 0; i < all.n; i++) {
        const stw_collectives_row *row = &all.rows[i];
        if (row->group != want.group || row->kind != want.kind || row->phase != want.phase)
            continue;
        CU_ASSERT_EQUAL(row->ranks, want.ranks);
        CU_ASSERT_EQUAL(row->bytes, row->count * each_bytes);
        calls += row->count;
    }
    stw_program_free(program);
    stw_pool_free(pool);
    return calls;
}

/* schedules.py, forward_backward_pipelining_with_interleaving: the first stage gets no input for
 * its first chunk, the last one hands on no output of its last chunk; between their other chunks
 * they are neighbours. By hand, forward and backward. */
static void chunks_go_around(void) {
    const stw_collectives_row sends = {
        .phase = STW_PHASE_FORWARD_BACKWARD, .group = STW_RANK_GROUP_PP, .kind = STW_OP_SEND};
    stw_collectives_row want = sends;
    planned p;
    plan_of(&p, "Qwen3-4B",
            "nodes=1 node.gpus=8 batch.seq_len=4096 parallel.pp=4 parallel.vpp=3 "
            "batch.grad_accumulation=8 recompute.granularity=full");
    const uint64_t state = 4096ull * 2560 * 2;
    want.ranks = 4;
    for (uint32_t stage = 0; stage < 4; stage++)
        CU_ASSERT_EQUAL(calls_of(p.plan->job, stage, want, state),
                        stage == 0 || stage == 3 ? 24 + 16 + 16 + 24 : 96);
    want = (stw_collectives_row){.phase = STW_PHASE_OPTIMIZER_STEP,
                                 .group = STW_RANK_GROUP_EMBEDDING,
                                 .kind = STW_OP_ALL_REDUCE,
                                 .ranks = 2};
    CU_ASSERT_EQUAL(calls_of(p.plan->job, 0, want, 151936ull * 2560 * 4), 1);
    CU_ASSERT_EQUAL(calls_of(p.plan->job, 1, want, 0), 0);
    CU_ASSERT_EQUAL(calls_of(p.plan->job, 3, want, 151936ull * 2560 * 4), 1);
    free_plan(&p);
    plan_of(&p, "Qwen3-4B",
            "nodes=1 node.gpus=8 batch.seq_len=4096 parallel.pp=2 parallel.vpp=3 "
            "batch.grad_accumulation=4 recompute.granularity=full");
    want = sends;
    want.ranks = 2;
    for (uint32_t stage = 0; stage < 2; stage++)
        CU_ASSERT_EQUAL(calls_of(p.plan->job, stage, want, state), 40);
    free_plan(&p);
}

/* Rows are gathered before two products of a layer, again for their weight gradients, and reduced
 * after two in each direction (tensor_parallel/layers.py); the embedding and the head once. */
static void calls_are_counted(void) {
    stw_collectives_row want = {.phase = STW_PHASE_FORWARD_BACKWARD,
                                .group = STW_RANK_GROUP_TP,
                                .kind = STW_OP_ALL_GATHER,
                                .ranks = 2};
    planned p;
    plan_of(&p, "Qwen3-4B",
            "nodes=1 node.gpus=8 batch.seq_len=4096 parallel.tp=2 parallel.sequence_parallel=true "
            "batch.grad_accumulation=2 recompute.granularity=none");
    const uint64_t rows = 4096ull * 2560 * 2;
    CU_ASSERT_EQUAL(calls_of(p.plan->job, 0, want, rows), 2 * (36 * (2 + 4) + 2 + 1));
    want.kind = STW_OP_REDUCE_SCATTER;
    CU_ASSERT_EQUAL(calls_of(p.plan->job, 0, want, rows), 2 * (36 * (2 + 2) + 1 + 1));
    want.kind = STW_OP_ALL_REDUCE; /* maximum, logit of the target and sum of the loss, fp32 */
    CU_ASSERT_EQUAL(calls_of(p.plan->job, 0, want, 4096 * 4), 2 * 3);
    free_plan(&p);
}

/* The slowest stage waits for the others less where more micro batches fill the pipeline, or
 * chunks. */
static double idle_seconds(const char *settings, uint32_t stage) {
    planned p;
    stw_peaks peaks;
    double seconds = 0;
    plan_of(&p, "Llama-3.1-8B", settings);
    const stw_job *job = p.plan->job;
    const uint32_t rank = job->world / job->run->parallel.pp * stage;
    stw_program *program = program_of(job, stw_job_kind_of(job, rank), &peaks);
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].kind == STW_OP_IDLE) seconds += program->ops[i].wait_s;
    stw_program_free(program);
    free_plan(&p);
    return seconds;
}

static void stages_wait(void) {
    double few = idle_seconds("parallel.pp=4 batch.grad_accumulation=4", 3);
    double many = idle_seconds("parallel.pp=4 batch.grad_accumulation=16", 3);
    double chunks = idle_seconds("parallel.pp=4 parallel.vpp=4 batch.grad_accumulation=4", 3);
    /* the first stage waits for the last one in every micro batch: that has the head */
    double first = idle_seconds("parallel.pp=4 batch.grad_accumulation=16", 0);
    CU_ASSERT_EQUAL(idle_seconds("batch.grad_accumulation=4", 0), 0);
    /* three products of 4.3 TFLOP at 0.69 of the peak, and a pass over the logits */
    CU_ASSERT_TRUE(first > many + 18e-3 && first < many + 26e-3);
    CU_ASSERT_DOUBLE_EQUAL(few, 4 * many, 1e-6 * few);
    CU_ASSERT_DOUBLE_EQUAL(few, 4 * chunks, 1e-6 * few);
}

/* ---- plans ---- */

/* The worst stage decides how many blocks are recomputed, and its walk fits. */
static void worst_stage_decides(void) {
    planned p;
    plan_of(&p, "Llama-3.1-8B",
            "node.gpu.memory=34GB nodes=1 parallel.pp=8 batch.grad_accumulation=8 "
            "batch.seq_len=4096");
    const stw_planner_options options = {.simulate = stw_sim_seconds, .tells_turns = true};
    CHECK_OK(stw_planner_solve(p.plan, &options, err));
    uint32_t of[STW_N_ACTS] = {0};
    for (uint32_t i = 0; i < p.plan->decisions.n_blocks; i++)
        of[p.plan->decisions.blocks[i].act] += p.plan->decisions.blocks[i].count;
    CU_ASSERT_NOT_EQUAL(p.plan->verdict, STW_VERDICT_DOES_NOT_FIT);
    CU_ASSERT_TRUE(of[STW_ACT_KEEP] > 0 && of[STW_ACT_RECOMPUTE] > 0);
    CU_ASSERT_EQUAL(of[STW_ACT_RECOMPUTE] % 8, 0); /* as many on every stage */
    CU_ASSERT_EQUAL(of[STW_ACT_OFFLOAD], 0);
    uint64_t most = 0, worst_stage = 0;
    for (uint32_t k = 0; k < p.plan->job->n_kinds; k++) {
        uint64_t bytes = p.plan->peaks[k].phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].total;
        if (bytes > most) worst_stage = p.plan->job->kinds[k].stage;
        most = stw_max_u64(most, bytes);
    }
    CU_ASSERT_EQUAL(worst_stage, 0);
    CU_ASSERT_TRUE(most > 30ull * 1000 * 1000 * 1000);
    free_plan(&p);
}

STW_TEST_MAIN("engine megatron", {"rows are as measured", rows_are_as_measured},
              {"parts cover the model", parts_cover_the_model}, {"stages differ", stages_differ},
              {"parallelism costs", parallelism_costs},
              {"offload follows its switch", offload_follows_its_switch},
              {"recomputing has arguments", recomputing_has_arguments},
              {"chunks go around", chunks_go_around}, {"calls are counted", calls_are_counted},
              {"stages wait", stages_wait}, {"worst stage decides", worst_stage_decides})

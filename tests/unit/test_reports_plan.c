/* SPDX-License-Identifier: Apache-2.0 */
/* Capacity report and summary of small plans: every promised value is present, unknown times are
 * marked, and CSV has the bytes of the plan. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "plan/files/verdict.h"
#include "planner/planner.h"
#include "reports/facts.h"
#include "reports/plan_flops.h"
#include "reports/remarks.h"
#include "reports/reports.h"
#include "sim/sim.h"
#include "tests/unit/fixture.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static const fixture_size small = {4, 256, 512, 4000};

static const stw_place two_places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM};
static const uint32_t half[] = {1, UINT32_MAX};

static stw_plan *make_plan(uint32_t gpus, const stw_place *places, const uint32_t *units) {
    stw_cluster cluster = fixture_cluster(gpus);
    stw_plan *plan = fixture_plan(small, &cluster, NULL);
    fixture_state(plan, 2, places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    stw_plan_judge(plan);
    plan->time_s[STW_PHASE_LOAD] = 100;
    plan->time_s[STW_PHASE_FORWARD_BACKWARD] = 0.2;
    plan->time_s[STW_PHASE_OPTIMIZER_STEP] = 0.0123;
    plan->objective_s = 1.5;
    static stw_solver_stage stages[] = {{"seconds", 1.5, 1.5, 0, 0.1},
                                        {STW_STAGE_PROOF, 1.5, 1.35, 0.1, 0.1}};
    plan->solver = (stw_solver_report){.name = "glpk",
                                       .version = "5.0",
                                       .seconds = 0.2,
                                       .rows = 12,
                                       .columns = 34,
                                       .objective = 1.5,
                                       .bound = 1.35,
                                       .gap = 0.1,
                                       .n_stages = 2,
                                       .stages = stages};
    return plan;
}

static void check_contains(const stw_text *text, const char *word) {
    bool found = text->data != NULL && strstr(text->data, word) != NULL;
    if (!found) fprintf(stderr, "no \"%s\" in:\n%s\n", word, text->data ? text->data : "nothing");
    CU_ASSERT(found);
}

static void check_lacks(const stw_text *text, const char *word) {
    CU_ASSERT(text->data != NULL && strstr(text->data, word) == NULL);
}

/* Bytes of the state are the walk's, also where parameters are not cut like the optimizer's state.
 */
static void state_is_that_of_the_walk(void) {
    static const char *const settings[] = {"engine=deepspeed",
                                           "deepspeed.zero_stage=2",
                                           "precision.params=bf16",
                                           "precision.grads=bf16",
                                           "precision.reduce=bf16",
                                           "precision.master=fp32",
                                           NULL};
    const stw_cluster cluster = fixture_cluster(4);
    stw_plan *plan = fixture_plan(small, &cluster, settings);
    stw_place places[STW_MAX_PLACES];
    stw_plan_facts facts;
    CU_ASSERT_TRUE_FATAL(plan->job->engine->places(plan->job, places, NULL) > 0);
    plan->decisions.n_state = 1;
    plan->decisions.state[0] = (stw_state_decision){places[0], plan->job->n_units};
    plan->decisions.prefetch.by_group = true;
    plan->decisions.prefetch.depth = 1;
    plan->decisions.prefetch.bucket_bytes = 0;
    CHECK_OK(stw_plan_derive(plan, err));
    stw_plan_facts_get(plan, &facts);
    /* whole bf16 parameters, and master and moments of a quarter */
    CU_ASSERT_TRUE(facts.place_bytes[0][STW_TIER_GPU] >= 5 * plan->job->model->params);
    stw_plan_free(plan);
}

static void report_answers_the_questions(void) {
    stw_plan *plan = make_plan(2, two_places, half);
    stw_price prices[] = {{"gpu memory", "optimizer_step", 8, "GiB", -0.012},
                          {"pcie_both", NULL, 6.4, "GB/s", 0},
                          {"host memory", "", 12, "GiB", 0}};
    plan->prices = prices;
    plan->n_prices = 3;
    stw_alternative others[] = {
        {"plainness", 0.208, 0.02, "3 blocks offloaded", STW_VERDICT_FITS, NULL},
        {"placement.gpu_fill", 0.2, 0.058, "98.9% of the GPU memory", STW_VERDICT_FITS, NULL},
        {"setting", 0.19, 0.105, "a.b=1 c=[d]", STW_VERDICT_AT_RISK, "the program does it"}};
    plan->alternatives = others;
    plan->n_alternatives = 3;
    plan->turned = "e.f=2";
    plan->unturned_s = 0.3;
    stw_text out = STW_TEXT_INIT;
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "fixture fits on 1 node with 2 x");
    check_contains(&out, "Iteration time: 212 ms for 8,192 tokens.\n"); /* the rows' sum */
    check_contains(&out, "  optimizer_step     1.52 GiB    2.03 GiB  12.3 ms  DMA of all");
    check_contains(&out, "Faster with --set a.b=1 --set c=[d]: 10.5% (190 ms instead of 212 ms), "
                         "at risk; the program does it.");
    check_contains(&out, "Set by the planner: e.f=2; without it an iteration takes 300 ms (41.");
    check_contains(&out, "Throughput: 38,587 tokens/s (19,293 per GPU)");
    check_contains(&out, "1000 iterations take 3.54 min on 2 GPUs: 0.118 GPU-hours.");
    check_contains(&out, "both ranks");
    check_contains(&out, "node 0");
    check_lacks(&out, "rank0 ");
    check_contains(&out, "stream");
    check_contains(&out, "resident");
    check_contains(&out, "GPU ring for streamed state: 3 x 1.00 MiB.");
    check_contains(&out, "[#..................."); /* bars of the peaks */
    check_contains(&out, "context");
    check_contains(&out, "exp_avg_sq");
    check_contains(&out, "12.3 ms");
    check_contains(&out, "DMA of all GPUs of a node"); /* 2 x 50 GB/s, of 160 both ways */
    /* the planner's seconds stand in its own section and nowhere else */
    check_contains(&out, "Estimates before simulation, per iteration: the integer program's "
                         "optimum 1.4 s, this plan 1.4 s.");
    check_contains(&out, "no placement within its limits is more than 10% faster (glpk 5.0");
    check_contains(&out,
                   "Lower bound of forward, backward and step within the same limits: 1.25 s");
    CU_ASSERT_PTR_NULL(strstr(out.data, "1.5 s"));
    check_contains(&out, "8 GiB more GPU memory: a plan with 12 ms less per iteration (5.7%).");
    check_contains(&out, "No plan found that is more than 0.5% faster: 6.4 GB/s PCIe, both "
                         "directions, 12 GiB host memory.");
    check_lacks(&out, "Limits that cannot be kept together");
    check_contains(&out,
                   "A plan with 3 blocks offloaded takes 208 ms per iteration (2.0% less); the "
                   "simpler plan was preferred.");
    check_contains(&out,
                   "A plan with 98.9% of the GPU memory takes 200 ms per iteration (5.8% less); "
                   "placement.gpu_fill excludes it.");
    check_contains(&out,
                   "resident: updated on the GPU, in place; stream: updated on the GPU, copied in");
    check_lacks(&out, "direct: updated");
    check_contains(&out, "  second moment of AdamW\n");
    check_contains(&out, "Load method: rank0_broadcast (chosen by the planner).");
    check_lacks(&out, "nan");
    check_lacks(&out, "inf ");
    stw_text_free(&out);
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_MARKDOWN, &out, err));
    check_contains(&out, "# Capacity report: fixture on ");
    check_contains(&out, "\n## Peak memory\n\n| memory |");
    check_contains(&out, "| optimizer_step |");
    stw_text_free(&out);
    stw_plan_free(plan);
}

/* What fits, what binds, what it costs; the least important goes first where there is no room. */
static void summary_is_short(void) {
    static const uint32_t most[] = {26, 17};
    stw_plan *plan = make_plan(1, two_places, half);
    for (int i = 0; i < 2; i++) {
        stw_text out = STW_TEXT_INIT;
        size_t lines = 0;
        stw_report_width_set(80);
        CHECK_OK(stw_report_plan_summary(plan, most[i], &out, err));
        stw_report_width_set(0);
        check_contains(&out, "fixture fits on 1 node with 1 x");
        check_contains(&out, " stay free.\n");
        check_contains(&out, "\n  GPU  [");
        check_contains(&out, "Throughput: ");
        check_lacks(&out, "()");
        for (size_t c = 0; c < out.length; c++) lines += out.data[c] == '\n';
        CU_ASSERT(lines > 5 && lines <= most[i]);
        if (i == 0) check_contains(&out, "Activations, by blocks: ");
        if (i == 0) check_contains(&out, "Load method: ");
        if (i == 1) check_lacks(&out, "Load method: ");
        stw_text_free(&out);
    }
    stw_text all = STW_TEXT_INIT;
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &all, err));
    check_contains(&all, "\n  forward_backward      training script ");
    check_contains(&all, "keep");
    check_contains(&all, "State placement");
    stw_text_free(&all);
    CHECK_OK(stw_report_plan_short(plan, NULL, NULL, &all, err));
    check_contains(&all, "fixture fits on 1 node");
    check_contains(&all, "100 s");
    stw_text_free(&all);
    stw_plan_free(plan);
}

/* 6 operations a parameter and token, and attention; what is recomputed is no work of the model. */
static void utilisation_counts_the_model_alone(void) {
    static const char *const kept[] = {"engine=fsdp2", "recompute.granularity=none", NULL},
                             *const again[] = {"engine=fsdp2", "recompute.granularity=full", NULL};
    double flops[2], mfu[2];
    for (int i = 0; i < 2; i++) {
        stw_plan *plan = case_zoo("Qwen3-0.6B", i == 0 ? kept : again);
        const stw_planner_options options = {.simulate = stw_sim_seconds};
        CHECK_OK(stw_planner_solve(plan, &options, err));
        CHECK_OK(stw_sim_plan(plan, NULL, err));
        const double least = 6.0 * (double)plan->model->params * stw_plan_iteration_tokens(plan);
        flops[i] = stw_plan_model_flops(plan);
        mfu[i] = stw_plan_mfu(plan);
        CU_ASSERT(flops[i] > least && flops[i] < 2 * least);
        CU_ASSERT_DOUBLE_EQUAL(mfu[i],
                               flops[i] / stw_plan_iteration_s(plan) /
                                   (plan->cluster.gpu.bf16_flops * plan->job->world),
                               1e-12);
        CU_ASSERT(mfu[i] > 0 && mfu[i] < 1);
        stw_plan_free(plan);
    }
    CU_ASSERT_DOUBLE_EQUAL(flops[0] / flops[1], 1, 1e-12);
    CU_ASSERT(mfu[1] < mfu[0]);
}

/* State that waits on the host between its phases is not said to be on the GPU. */
static void parked_state_is_said_to_be_parked(void) {
    stw_plan *plan = make_plan(1, two_places, half);
    stw_text out = STW_TEXT_INIT;
    plan->run.park.params = plan->run.park.grads = plan->run.park.moments = true;
    plan->decisions.state[0].place =
        (stw_place){.params = STW_TIER_GPU, .grads = STW_TIER_GPU, .moments = STW_TIER_GPU};
    CHECK_OK(stw_report_plan_summary(plan, 24, &out, err));
    check_contains(&out, "all parked on the host between uses");
    check_lacks(&out, "on the GPU (resident)");
    stw_text_free(&out);
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "parked on host");
    check_lacks(&out, "resident: updated on the GPU");
    check_contains(&out, "Parked on the host between uses: parameters, gradients, moments; ");
    stw_text_free(&out);
    stw_plan_free(plan);
}

static void what_does_not_fit_is_said(void) {
    stw_plan *plan = make_plan(1, two_places, half);
    stw_binding over[] = {{.resource = "gpu memory",
                           .phase = "forward_backward",
                           .enough_bytes = 83ull << 30,
                           .n_changes = 1,
                           .changes = {{"node.gpu.memory", "83GiB"}}}};
    stw_fix fix[] = {
        {2, {{"nodes", "2"}, {"node.host.limit", "9 GiB"}}, "halves the state", false, 0, 0}};
    plan->cluster.gpu.memory_bytes = 256ull << 20; /* less than the context */
    stw_plan_judge(plan);
    plan->outcome = STW_OUTCOME_INFEASIBLE;
    plan->bindings = over;
    plan->n_bindings = 1;
    plan->tried = "nodes, parallel.cp";
    stw_text out = STW_TEXT_INIT;
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "fixture does not fit on");
    check_contains(&out, "does not fit on 1 node with 1 x NVIDIA H200: GPU memory is over by ");
    check_contains(&out, " GiB in forward_backward.\n");
    check_contains(&out, "(347.5%) OVER\n");
    check_contains(&out, "makes the plan fit: nodes, parallel.cp.");
    check_contains(&out, "Limits that cannot be kept together");
    check_contains(&out, "would make a plan fit.");
    check_contains(&out, "83.00 GiB  --set node.gpu.memory=83GiB\n");
    check_contains(&out, "Plan: infeasible; this plan has the smallest excess");
    check_contains(&out, "It would fit with --set node.gpu.memory=83GiB, that is, on another ");
    check_lacks(&out, "Iteration time");
    check_lacks(&out, "tokens/s");
    check_lacks(&out, "GPU-hours");
    check_lacks(&out, "Phase times");
    stw_text_free(&out);
    plan->fixes = fix;
    plan->n_fixes = 1;
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "--set nodes=2 --set \"node.host.limit=9 GiB\"  halves the state\n");
    check_lacks(&out, "None of the changes");
    stw_text_free(&out);
    CHECK_OK(stw_report_plan_summary(plan, 24, &out, err));
    check_contains(&out, "It fits with (smallest first; each was planned):\n");
    check_contains(&out, "  - --set nodes=2 --set \"node.host.limit=9 GiB\": halves the state\n");
    check_contains(&out, "GPU memory is over by ");
    stw_text_free(&out);
    fix[0].at_risk = true;
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "Changes within limits, but at risk, smallest first (each row was ");
    check_lacks(&out, "Changes that make the plan fit");
    stw_text_free(&out);
    CHECK_OK(stw_report_plan_summary(plan, 24, &out, err));
    check_contains(&out,
                   "  Within limits, but at risk, with (smallest first; each was planned):\n");
    check_lacks(&out, "It fits with");
    stw_text_free(&out);
    stw_plan_free(plan);
}

/* One limit is raised once, and a limit below what the node has is no other machine. */
static void remedies_do_not_contradict_each_other(void) {
    stw_plan *plan = make_plan(1, two_places, half);
    stw_binding over[] = {{.resource = "host memory",
                           .phase = "load",
                           .enough_bytes = 83ull << 30,
                           .n_changes = 1,
                           .changes = {{"node.host.limit", "83GiB"}}}};
    stw_fix fixes[] = {
        {1, {{"node.host.limit", "83GiB"}}, "the node has the memory", true, NAN, NAN},
        {1, {{"nodes", "2"}}, "halves the state", false, 12.5, 655.36}};
    stw_text out = STW_TEXT_INIT;
    plan->cluster.gpu.memory_bytes = 256ull << 20;
    plan->cluster.host.memory_bytes = 100ull << 30;
    stw_plan_judge(plan);
    plan->outcome = STW_OUTCOME_INFEASIBLE;
    plan->bindings = over;
    plan->n_bindings = 1;
    CHECK_OK(stw_report_plan_summary(plan, 24, &out, err));
    check_contains(&out, "It would be within limits with --set node.host.limit=83GiB: the node ");
    check_lacks(&out, "another machine");
    stw_text_free(&out);
    plan->fixes = fixes;
    plan->n_fixes = 2;
    CHECK_OK(stw_report_plan_summary(plan, 24, &out, err));
    check_contains(&out, "It fits with (smallest first; each was planned):\n  - --set nodes=2: "
                         "halves the state; 12.5 s per iteration, 655 tokens/s\n"
                         "  Within limits, but at risk, with (smallest first; each was planned):\n"
                         "  - --set node.host.limit=83GiB: the node has the memory\n");
    check_lacks(&out, "It would");
    stw_text_free(&out);
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "iteration  tokens/s\n");
    check_contains(&out, "--set nodes=2   halves the state     12.5 s       655\n");
    stw_text_free(&out);
    plan->cluster.host.memory_bytes = 64ull << 30;
    CHECK_OK(stw_report_plan_summary(plan, 24, &out, err));
    check_contains(&out, "It would fit with --set node.host.limit=83GiB, that is, on another");
    stw_text_free(&out);
    stw_plan_free(plan);
}

/* Systems stop jobs before the memory is full. */
static void a_full_host_is_warned_of(void) {
    stw_plan *plan = make_plan(1, two_places, half);
    uint64_t most = 0;
    for (int p = 0; p < STW_N_PHASES; p++)
        if (plan->node_peaks[0].phase[p][STW_TIER_HOST].total > most)
            most = plan->node_peaks[0].phase[p][STW_TIER_HOST].total;
    /* shares of the machine's memory and of the limit: a lower limit is the remedy */
    static const double shares[][2] = {{0.94, 0.94}, {0.97, 0.97}, {0.97, 0.999}, {0.94, 0.999}};
    for (int i = 0; i < 4; i++) {
        stw_text out = STW_TEXT_INIT;
        plan->cluster.host.memory_bytes = (uint64_t)((double)most / shares[i][0]);
        plan->cluster.host.limit_bytes = (uint64_t)((double)most / shares[i][1]);
        stw_plan_judge(plan);
        CHECK_OK(stw_report_plan_summary(plan, 24, &out, err));
        if (shares[i][0] < 0.95) check_lacks(&out, "Host memory is filled");
        if (shares[i][0] > 0.95) {
            check_contains(&out, "Host memory is filled to 97.0% of node.host.memory.");
            check_contains(&out, "--set node.host.limit=1.0GiB leaves that room.");
        }
        stw_text_free(&out);
    }
    stw_plan_free(plan);
}

/* The value of the row with this start; NaN if there is not exactly one. */
static uint32_t remarks_with(const char *const settings[], const char *word, char *out,
                             size_t out_size) {
    stw_plan *plan = case_zoo("Qwen3-0.6B", settings);
    const stw_planner_options options = {.simulate = stw_sim_seconds};
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CHECK_OK(stw_sim_plan(plan, NULL, err));
    stw_plan_facts facts;
    stw_remarks remarks;
    uint32_t n = 0;
    stw_plan_facts_get(plan, &facts);
    stw_plan_remarks_get(plan, &facts, &remarks);
    for (uint32_t i = 0; i < remarks.n; i++) {
        if (strstr(remarks.items[i].text, word) == NULL) continue;
        snprintf(out, out_size, "%s", remarks.items[i].text);
        n++;
    }
    stw_plan_free(plan);
    return n;
}

/* A loop on one thread is torch's default on the CPU; only where it takes much of the step. */
static void slow_cpu_steps_are_remarked(void) {
#define FSDP2 "engine=fsdp2", "node.gpus=8", "nodes=1", "node.host.cores=64"
#define ZERO "engine=deepspeed", "node.gpus=8", "nodes=1", "deepspeed.offload_optimizer=cpu"
    static const struct {
        const char *settings[8], *words[3];
    } cases[] = {
        {{FSDP2, "fsdp.offload_policy=true"},
         {"loops over the tensors", "optimizer.implementation=fused",
          "and --set optimizer.cpu_threads=8 (OMP_NUM_THREADS)"}},
        {{FSDP2, "fsdp.offload_policy=true", "optimizer.implementation=fused"},
         {"fused AdamW runs on 1 thread", "With --set optimizer.cpu_threads=8", "of its time"}},
        {{FSDP2, "fsdp.offload_policy=true", "optimizer.cpu_threads=8"},
         {"on 8 threads", "optimizer.implementation=fused", "(AdamW(fused=True)) the update"}},
        {{ZERO, "node.host.cores=64"},
         {"the optimizer runs on 1 thread", "With --set optimizer.cpu_threads=8", ""}},
        {{FSDP2}, {NULL}},
        {{FSDP2, "fsdp.offload_policy=true", "optimizer.implementation=fused",
          "optimizer.cpu_threads=8"},
         {NULL}},
        {{FSDP2, "fsdp.offload_policy=true", "batch.grad_accumulation=1000"}, {NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[960] = "";
        const uint32_t n = remarks_with(cases[i].settings, "The CPU is busy", text, sizeof text);
        CU_ASSERT_EQUAL(n, cases[i].words[0] != NULL);
        for (int k = 0; k < 3 && cases[i].words[k] != NULL; k++) {
            CU_ASSERT_PTR_NOT_NULL(strstr(text, cases[i].words[k]));
        }
    }
}

/* A GPU that is full in each iteration: the least memory that fits, and little more. */
static void a_full_allocator_is_remarked(void) {
    enum { FIRST = 3600, LAST = 3800, STEP = 10 }; /* hundredths of a GiB */
    uint32_t with = 0, all = 0;
    for (int m = FIRST; m <= LAST; m += STEP, all++) {
        char text[960] = "", memory[48];
        snprintf(memory, sizeof memory, "node.gpu.memory=%.2fGiB", m / 100.0);
        const char *const settings[] = {"engine=fsdp2",
                                        "nodes=1",
                                        "node.gpus=1",
                                        memory,
                                        "recompute.granularity=none",
                                        "batch.seq_len=8192",
                                        "allocator.expandable_segments=true",
                                        NULL};
        with += remarks_with(settings, "finds the GPU full 1 time and", text, sizeof text);
    }
    CU_ASSERT(with > 0 && with < all / 2);
}

static double csv_value(const stw_text *csv, const char *row) {
    char start[256];
    snprintf(start, sizeof start, "fixture,%.200s", row);
    const char *at = strstr(csv->data, start);
    if (at == NULL || (at != csv->data && at[-1] != '\n')) return NAN;
    if (strstr(at + 1, start) != NULL) return NAN;
    return strtod(at + strlen(start), NULL);
}

static void csv_states_the_plans_bytes(void) {
    static const stw_place places[] = {FIXTURE_STREAM, FIXTURE_NVME};
    stw_plan *plan = make_plan(1, places, half);
    stw_text out = STW_TEXT_INIT;
    char row[160];
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_CSV, &out, err));
    CU_ASSERT(strncmp(out.data, "plan,section,of,phase,what,value,unit\n", 38) == 0);
    for (int p = 0; p < STW_N_PHASES; p++) {
        if (!plan->peaks[0].has[p]) continue;
        const stw_peak *gpu = &plan->peaks[0].phase[p][STW_TIER_GPU];
        const char *phase = stw_phase_name((stw_phase)p);
        uint64_t sum = 0;
        snprintf(row, sizeof row, "gpu_peak,%s,%s,total,", plan->job->kinds[0].name, phase);
        CU_ASSERT_EQUAL((uint64_t)csv_value(&out, row), gpu->total);
        for (int c = 0; c < STW_N_COMPONENTS; c++) {
            if (gpu->components[c] == 0) continue;
            snprintf(row, sizeof row, "gpu_peak,%s,%s,%s,", plan->job->kinds[0].name, phase,
                     stw_component_name((stw_component)c));
            sum += (uint64_t)csv_value(&out, row);
        }
        CU_ASSERT_EQUAL(sum, gpu->total);
        snprintf(row, sizeof row, "nvme_peak,fullest node,%s,total,", phase);
        CU_ASSERT_EQUAL((uint64_t)csv_value(&out, row),
                        plan->peaks[0].phase[p][STW_TIER_NVME].total);
    }
    CU_ASSERT_DOUBLE_EQUAL(csv_value(&out, "time,,optimizer_step,predicted,"), 0.0123, 1e-15);
    check_contains(&out, "time,,forward_backward,passes_per_iteration,1,count\n");
    CU_ASSERT_DOUBLE_EQUAL(csv_value(&out, "plan,,,iteration,"), 0.2123, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(csv_value(&out, "solver,,,estimate,"), 1.4, 1e-12);
    /* Parameters of all places are those of the rank. */
    char place[96];
    uint64_t params = 0;
    for (int i = 0; i < 2; i++) {
        stw_place_format(&places[i], place, sizeof place);
        snprintf(row, sizeof row, "state,\"%s\",,params,", place);
        params += (uint64_t)csv_value(&out, row);
    }
    CU_ASSERT_EQUAL(params, plan->job->kinds[0].params);
    stw_text_free(&out);
    stw_plan_free(plan);
}

/* Direct updates and two copies on NVMe. */
static void direct_updates_and_copies_are_said(void) {
    static const stw_place places[] = {FIXTURE_DIRECT, FIXTURE_NVME};
    stw_plan *plan = make_plan(1, places, half);
    stw_text out = STW_TEXT_INIT;
    char row[200], place[96];
    uint64_t first, params;
    stw_decision_range(plan->job, &plan->decisions, 0, 1, &first, &params);
    stw_place_format(&places[1], place, sizeof place);
    snprintf(row, sizeof row, "state,\"%s\",,nvme,", place);
    plan->run.placement.nvme_copies = 2;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "parameters in host memory, without staging.");
    check_contains(&out, "State on NVMe: two copies; the last step survives a crash");
    check_contains(&out, "(read 3 GB/s, write 2 GB/s, not at the same time)");
    stw_text_free(&out);
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_CSV, &out, err));
    CU_ASSERT_EQUAL((uint64_t)csv_value(&out, row), params * 16);
    stw_text_free(&out);
    plan->run.placement.nvme_copies = 1;
    plan->cluster.nvme.both_bps = 4e9;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "State on NVMe: one copy");
    check_contains(&out, "combined 4 GB/s)");
    stw_text_free(&out);
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_CSV, &out, err));
    CU_ASSERT_EQUAL((uint64_t)csv_value(&out, row), params * 8);
    stw_text_free(&out);
    stw_plan_free(plan);
}

/* Nobody trains on a cluster without GPUs: what the executor does there is timed, the rest is not.
 */
static void forward_has_no_time_without_gpu(void) {
    stw_plan *plan = make_plan(0, two_places, half);
    plan->time_s[STW_PHASE_FORWARD_BACKWARD] = NAN;
    stw_text out = STW_TEXT_INIT;
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "The time of forward and backward is not predicted: the cluster has no");
    check_contains(&out, "not predicted");
    check_contains(&out, "12.3 ms");
    check_lacks(&out, "Iteration time");
    check_lacks(&out, "tokens/s");
    check_lacks(&out, "hours");
    check_lacks(&out, "unknown");
    stw_text_free(&out);
    stw_plan_free(plan);
}

static void measured_side_is_shown(void) {
    stw_plan *plan = make_plan(1, two_places, half);
    stw_run_result run = {.source = "stowage", .backend = "cuda", .device = "NVIDIA H200"};
    for (int p = 0; p < STW_N_PHASES; p++) run.time_s[p] = NAN;
    run.time_s[STW_PHASE_OPTIMIZER_STEP] = 0.0125;
    run.grad_norm = NAN;
    stw_compare_line line = {.phase = STW_PHASE_OPTIMIZER_STEP,
                             .what = "time",
                             .kind = "job",
                             .is_time = true,
                             .predicted = 0.0123,
                             .measured = 0.0125,
                             .error = -0.016,
                             .verdict = STW_LINE_WITHIN};
    stw_comparison comparison = {.n_lines = 1, .judged = 1, .lines = &line, .time_judged = true};
    stw_text out = STW_TEXT_INIT;
    CHECK_OK(stw_report_plan(plan, &run, &comparison, STW_FORMAT_MARKDOWN, &out, err));
    check_contains(&out, "| 12.3 ms | 12.3 ms | 12.5 ms |");
    check_contains(&out, "not measured");
    check_contains(&out, "NVIDIA H200");
    check_contains(&out, "## Predicted and measured values");
    check_contains(&out, "-1.60%");
    stw_text_free(&out);
    CHECK_OK(stw_report_plan(plan, &run, &comparison, STW_FORMAT_CSV, &out, err));
    CU_ASSERT_DOUBLE_EQUAL(csv_value(&out, "time,,optimizer_step,measured,"), 0.0125, 1e-15);
    check_contains(&out, "compare,job time,optimizer_step,error,-0.016,\n");
    stw_text_free(&out);
    stw_plan_free(plan);
}

static void check_schema(const json_t *document, const char *expected) {
    const char *schema = json_string_value(json_object_get(document, "schema"));
    CU_ASSERT_PTR_NOT_NULL(schema);
    if (schema != NULL) CU_ASSERT_STRING_EQUAL(schema, expected);
}

static void json_holds_the_plan_whole(void) {
    stw_plan *plan = make_plan(1, two_places, half);
    stw_text out = STW_TEXT_INIT;
    CHECK_OK(stw_report_plan(plan, NULL, NULL, STW_FORMAT_JSON, &out, err));
    json_t *report = json_loads(out.data, JSON_REJECT_DUPLICATES, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(report);
    const json_t *inner = json_object_get(report, "plan");
    check_schema(report, "stowage.report/1");
    check_schema(inner, "stowage.plan/1");
    CU_ASSERT(json_is_null(json_object_get(report, "run")));
    CU_ASSERT(json_is_null(json_object_get(report, "comparison")));
    json_decref(report);
    stw_text_free(&out);
    stw_plan_free(plan);
}

STW_TEST_MAIN("reports plan", {"state is that of the walk", state_is_that_of_the_walk},
              {"report answers the questions", report_answers_the_questions},
              {"summary is short", summary_is_short},
              {"utilisation counts the model alone", utilisation_counts_the_model_alone},
              {"parked state is said to be parked", parked_state_is_said_to_be_parked},
              {"what does not fit is said", what_does_not_fit_is_said},
              {"a full host is warned of", a_full_host_is_warned_of},
              {"remedies do not contradict each other", remedies_do_not_contradict_each_other},
              {"slow CPU steps are remarked", slow_cpu_steps_are_remarked},
              {"a full allocator is remarked", a_full_allocator_is_remarked},
              {"CSV states the plan's bytes", csv_states_the_plans_bytes},
              {"direct updates and copies are said", direct_updates_and_copies_are_said},
              {"forward has no time without GPU", forward_has_no_time_without_gpu},
              {"measured side is shown", measured_side_is_shown},
              {"JSON holds the plan whole", json_holds_the_plan_whole})

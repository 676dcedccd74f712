/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison: a run that measured exactly what was planned agrees; every figure that is off is
 * found and nothing else; what was not measured, or may not be judged, is said to be so. */
#include <math.h>

#include "plan/files/diff.h"
#include "plan/files/plan_terms.h"
#include "plan/measured/compare.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size large = {2, 1024, 4096, 32000};
static const stw_place mixed[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU};
static const uint32_t mixed_units[] = {200, 300, 0};

static stw_plan *planned(uint32_t nodes, uint32_t gpus, const char *const *settings) {
    stw_cluster cluster = fixture_cluster(gpus);
    cluster.nodes = nodes;
    cluster.nic_bps = 50e9;
    cluster.calibration.measured = true;
    snprintf(cluster.gpu.name, sizeof cluster.gpu.name, "NVIDIA H200");
    stw_plan *plan = fixture_plan(large, &cluster, settings);
    fixture_state(plan, 3, mixed, mixed_units);
    CHECK_OK(stw_plan_derive(plan, err));
    plan->time_s[STW_PHASE_LOAD] = 3.0;
    plan->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP] = 0.2;
    plan->time_s[STW_PHASE_OPTIMIZER_STEP] = 0.1;
    return plan;
}

static bool runs(stw_phase phase) {
    return phase == STW_PHASE_LOAD || phase == STW_PHASE_FIRST_OPTIMIZER_STEP ||
           phase == STW_PHASE_OPTIMIZER_STEP;
}

/* What an executor measures if all comes out as planned. Arenas do not know of context, NCCL and
 * process. */
static void measure(const stw_peak *peak, stw_measured *m) {
    m->known = true;
    m->allocated = m->reserved = stw_peak_allocated(&peak[STW_TIER_GPU]);
    m->device = peak[STW_TIER_GPU].total;
    m->host = peak[STW_TIER_HOST].total;
    memcpy(m->gpu_components, peak[STW_TIER_GPU].components, sizeof m->gpu_components);
    memcpy(m->host_components, peak[STW_TIER_HOST].components, sizeof m->host_components);
    m->gpu_components[STW_COMPONENT_CONTEXT] = m->gpu_components[STW_COMPONENT_COMM] = 0;
    m->host_components[STW_COMPONENT_PROCESS] = 0;
    m->page_locked = m->host - peak[STW_TIER_HOST].components[STW_COMPONENT_PROCESS];
}

/* The hash of everything that makes a plan. */
static const char *hash_of(const stw_plan *plan, stw_pool *pool) {
    stw_plan_terms terms = STW_PLAN_TERMS_INIT;
    CHECK_OK(stw_plan_terms_of(plan, &terms, err));
    stw_text_free(&terms.lines);
    return stw_pool_string(pool, terms.hash);
}

static stw_run_result *exact_run(const stw_plan *plan) {
    stw_run_result *r = NULL;
    CHECK_OK(stw_run_result_new(&r, err));
    r->backend = "cuda";
    r->device = "NVIDIA H200";
    r->plan_hash = hash_of(plan, r->pool);
    r->world = r->n_ranks = plan->job->world;
    r->not_run[STW_PHASE_FORWARD_BACKWARD] = true;
    r->ranks = stw_pool_array(r->pool, r->n_ranks, sizeof *r->ranks);
    r->n_nodes = plan->cluster.nodes;
    r->nodes = stw_pool_array(r->pool, r->n_nodes, sizeof *r->nodes);
    for (uint32_t i = 0; i < r->n_ranks; i++) {
        uint32_t kind = stw_job_kind_of(plan->job, i);
        r->ranks[i].rank = i;
        r->ranks[i].node = i / plan->job->ranks_per_node;
        r->ranks[i].kind = plan->job->kinds[kind].name;
        for (int p = 0; p < STW_N_PHASES; p++) {
            if (!runs((stw_phase)p)) continue;
            measure(plan->peaks[kind].phase[p], &r->ranks[i].phases[p]);
            stw_run_node *node = &r->nodes[r->ranks[i].node];
            node->node = r->ranks[i].node;
            node->host[p] += r->ranks[i].phases[p].host;
        }
    }
    for (int p = 0; p < STW_N_PHASES; p++) r->time_s[p] = plan->time_s[p];
    return r;
}

/* Of a run of this plan, whatever a test has changed in that. */
static stw_comparison *compared(const stw_plan *plan, stw_run_result *run) {
    stw_comparison *c = NULL;
    if (run->plan_hash[0] != '\0') run->plan_hash = hash_of(plan, run->pool);
    CHECK_OK(stw_compare(plan, run, NULL, &c, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(c);
    return c;
}

static const stw_compare_line *find(const stw_comparison *c, stw_phase phase, const char *what,
                                    const char *kind) {
    for (uint32_t i = 0; i < c->n_lines; i++)
        if (c->lines[i].phase == phase && strcmp(c->lines[i].what, what) == 0 &&
            strcmp(c->lines[i].kind, kind) == 0)
            return &c->lines[i];
    return NULL;
}

/* The verdict of a line that must be there. */
static stw_line_verdict verdict(const stw_comparison *c, stw_phase phase, const char *what,
                                const char *kind) {
    const stw_compare_line *line = find(c, phase, what, kind);
    if (line == NULL) fprintf(stderr, "no line %s %s\n", what, kind);
    CU_ASSERT_PTR_NOT_NULL(line);
    return line != NULL ? line->verdict : STW_LINE_NOT_MEASURED;
}

static void an_exact_run_agrees(void) {
    const uint32_t sizes[][2] = {{1, 1}, {1, 4}, {2, 2}};
    for (size_t s = 0; s < 3; s++) {
        stw_plan *plan = planned(sizes[s][0], sizes[s][1], NULL);
        stw_run_result *run = exact_run(plan);
        stw_comparison *c = compared(plan, run);
        CU_ASSERT_EQUAL(c->outside, 0);
        CU_ASSERT_TRUE(c->judged > 20);
        CU_ASSERT_TRUE(c->time_judged);
        uint32_t judged = 0;
        for (uint32_t i = 0; i < c->n_lines; i++) {
            judged += c->lines[i].verdict == STW_LINE_WITHIN;
            if (c->lines[i].verdict == STW_LINE_WITHIN) CU_ASSERT_EQUAL(c->lines[i].error, 0.0);
        }
        CU_ASSERT_EQUAL(judged, c->judged);
        stw_phase step = STW_PHASE_OPTIMIZER_STEP, first = STW_PHASE_FIRST_OPTIMIZER_STEP;
        CU_ASSERT_EQUAL(verdict(c, step, "gpu allocated", "rank0"), STW_LINE_WITHIN);
        CU_ASSERT_EQUAL(verdict(c, step, "gpu device", "rank0"), STW_LINE_WITHIN);
        CU_ASSERT_EQUAL(verdict(c, step, "gpu stage", "rank0"), STW_LINE_WITHIN);
        CU_ASSERT_EQUAL(verdict(c, step, "host exp_avg", "rank0"), STW_LINE_WITHIN);
        CU_ASSERT_EQUAL(verdict(c, step, "host process", "rank0"), STW_LINE_WITHIN);
        CU_ASSERT_EQUAL(verdict(c, step, "host", "node"), STW_LINE_WITHIN);
        CU_ASSERT_EQUAL(verdict(c, step, "host arenas", "node"), STW_LINE_WITHIN);
        CU_ASSERT_EQUAL(verdict(c, step, "time", "job"), STW_LINE_WITHIN);
        CU_ASSERT_EQUAL(verdict(c, first, "time", "job"), STW_LINE_NOT_JUDGED);
        CU_ASSERT_EQUAL(verdict(c, STW_PHASE_LOAD, "time", "job"), STW_LINE_NOT_JUDGED);
        CU_ASSERT_EQUAL(verdict(c, STW_PHASE_FORWARD_BACKWARD, "gpu device", "job"),
                        STW_LINE_NOT_MEASURED);
        CU_ASSERT_PTR_NULL(find(c, step, "gpu context", "rank0"));
        CU_ASSERT_PTR_NULL(find(c, step, "gpu activations", "rank0"));
        stw_comparison_free(c);
        stw_run_result_free(run);
        stw_plan_free(plan);
    }
}

/* One figure of one rank made 5% larger than planned: its line is outside, all others as before. */
static void each_figure_is_found(void) {
    stw_plan *plan = planned(1, 2, NULL);
    stw_phase p = STW_PHASE_OPTIMIZER_STEP;
    static const struct {
        const char *what, *also; /* the line, and another that contains the figure */
    } figures[] = {{"gpu allocated", ""}, {"gpu device", ""},
                   {"gpu params", ""},    {"host exp_avg_sq", "host arenas"},
                   {"host process", ""},  {"host", ""}};
    for (size_t f = 0; f < 6; f++) {
        stw_run_result *run = exact_run(plan);
        stw_measured *m = &run->ranks[1].phases[p];
        uint64_t *changed[] = {&m->allocated,
                               &m->device,
                               &m->gpu_components[STW_COMPONENT_PARAMS],
                               &m->host_components[STW_COMPONENT_EXP_AVG_SQ],
                               &m->host,
                               &run->nodes[0].host[p]};
        uint64_t more = *changed[f] / (f < 4 ? 20 : 4); /* processes are known to 64 MiB */
        *changed[f] += more;
        if (f == 3) m->host += more; /* the arenas grew, the process did not */
        stw_comparison *c = compared(plan, run);
        for (uint32_t i = 0; i < c->n_lines; i++) {
            const stw_compare_line *line = &c->lines[i];
            if (line->verdict != STW_LINE_OUTSIDE) continue;
            bool meant = line->phase == p && (strcmp(line->what, figures[f].what) == 0 ||
                                              strcmp(line->what, figures[f].also) == 0);
            if (!meant) fprintf(stderr, "%s: %s is outside\n", figures[f].what, line->what);
            CU_ASSERT_TRUE(meant);
            CU_ASSERT_TRUE(line->error < -0.02);
            if (f < 5 && strcmp(line->kind, "node") != 0) CU_ASSERT_EQUAL(line->rank, 1);
        }
        CU_ASSERT_TRUE(c->outside >= 1);
        stw_comparison_free(c);
        stw_run_result_free(run);
    }
    stw_plan_free(plan);
}

static void the_worst_rank_stands_for_its_kind(void) {
    stw_plan *plan = planned(1, 4, NULL);
    stw_run_result *run = exact_run(plan);
    stw_phase p = STW_PHASE_OPTIMIZER_STEP;
    CU_ASSERT_EQUAL(stw_job_kind_of(plan->job, 2), stw_job_kind_of(plan->job, 3));
    uint64_t device = run->ranks[1].phases[p].device;
    run->ranks[1].phases[p].device += device / 100;
    run->ranks[2].phases[p].device -= device / 10;
    run->ranks[3].phases[p].device += device / 20;
    stw_comparison *c = compared(plan, run);
    const stw_compare_line *line = find(c, p, "gpu device", run->ranks[2].kind);
    CU_ASSERT_PTR_NOT_NULL_FATAL(line);
    CU_ASSERT_EQUAL(line->rank, 2);
    CU_ASSERT_EQUAL(line->verdict, STW_LINE_OUTSIDE);
    CU_ASSERT_DOUBLE_EQUAL(line->error, 0.111, 0.001);
    CU_ASSERT_EQUAL(c->outside, 1);
    stw_comparison_free(c);
    stw_run_result_free(run);
    stw_plan_free(plan);
}

/* What the driver and NCCL take is shown where it is known, and judged as part of the device. */
static void context_is_shown(void) {
    stw_plan *plan = planned(1, 1, NULL);
    stw_run_result *run = exact_run(plan);
    stw_phase p = STW_PHASE_OPTIMIZER_STEP;
    run->ranks[0].phases[p].gpu_components[STW_COMPONENT_CONTEXT] = 1;
    stw_comparison *c = compared(plan, run);
    CU_ASSERT_EQUAL(verdict(c, p, "gpu context", "rank0"), STW_LINE_NOT_JUDGED);
    CU_ASSERT_EQUAL(c->outside, 0);
    stw_comparison_free(c);
    stw_run_result_free(run);
    stw_plan_free(plan);
}

static void tolerances_are_kept_to(void) {
    stw_plan *plan = planned(1, 1, NULL);
    stw_phase p = STW_PHASE_OPTIMIZER_STEP;
    static const struct {
        double bytes, seconds; /* measured, as a share of what is planned */
        uint64_t outside;
    } cases[] = {{1.019, 1.0, 0}, {1.021, 1.0, 1}, {0.981, 1.0, 0}, {0.979, 1.0, 1},
                 {1.0, 1.11, 0},  {1.0, 1.12, 1},  {1.0, 0.91, 0},  {1.0, 0.90, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_run_result *run = exact_run(plan);
        uint64_t *device = &run->ranks[0].phases[p].device;
        *device = (uint64_t)((double)*device * cases[i].bytes);
        run->time_s[p] *= cases[i].seconds;
        stw_comparison *c = compared(plan, run);
        CU_ASSERT_EQUAL(c->outside, cases[i].outside);
        stw_comparison_free(c);
        stw_run_result_free(run);
    }
    /* small differences pass whatever their share; other tolerances are the caller's */
    stw_run_result *run = exact_run(plan);
    stw_tolerance strict = {0.0, 0, 0, 0.0, 0.0};
    stw_comparison *c = NULL;
    run->ranks[0].phases[p].gpu_components[STW_COMPONENT_STAGE] += 2ull << 20;
    run->time_s[p] += 0.0004;
    c = compared(plan, run);
    CU_ASSERT_EQUAL(c->outside, 0);
    stw_comparison_free(c);
    c = NULL;
    CHECK_OK(stw_compare(plan, run, &strict, &c, err));
    CU_ASSERT_EQUAL(c->outside, 2);
    stw_comparison_free(c);
    stw_run_result_free(run);
    stw_plan_free(plan);
}

static void time_counts_only_where_it_was_calibrated(void) {
    stw_plan *plan = planned(1, 1, NULL);
    stw_run_result *run = exact_run(plan);
    stw_phase p = STW_PHASE_OPTIMIZER_STEP;
    run->time_s[p] *= 3;
    for (int i = 0; i < 4; i++) {
        run->backend = i == 1 ? "host" : "cuda";
        plan->cluster.calibration.measured = i != 2;
        run->device = i == 3 ? "NVIDIA A100" : "NVIDIA H200";
        static const char *const words[] = {"", "cuda", "not calibrated", "another GPU"};
        stw_comparison *c = compared(plan, run);
        CU_ASSERT_EQUAL(c->time_judged, i == 0);
        CU_ASSERT_EQUAL(verdict(c, p, "time", "job"),
                        i == 0 ? STW_LINE_OUTSIDE : STW_LINE_NOT_JUDGED);
        if (i > 0) {
            CU_ASSERT_PTR_NOT_NULL_FATAL(c->time_note);
            CU_ASSERT_PTR_NOT_NULL(strstr(c->time_note, words[i]));
            CU_ASSERT_STRING_EQUAL(find(c, p, "time", "job")->note, c->time_note);
        }
        stw_comparison_free(c);
    }
    stw_run_result_free(run);
    stw_plan_free(plan);
}

/* What a process takes is known only of calibrated machines; arenas are judged everywhere. */
static void host_processes_count_only_where_calibrated(void) {
    stw_plan *plan = planned(1, 2, NULL);
    stw_run_result *run = exact_run(plan);
    stw_phase p = STW_PHASE_OPTIMIZER_STEP;
    for (uint32_t i = 0; i < 2; i++) run->ranks[i].phases[p].host -= 900ull << 20;
    run->nodes[0].host[p] -= 1800ull << 20;
    for (int i = 0; i < 3; i++) {
        plan->cluster.calibration.measured = i != 1;
        run->backend = i == 2 ? "host" : "cuda";
        stw_line_verdict expected = i == 0 ? STW_LINE_OUTSIDE : STW_LINE_NOT_JUDGED;
        stw_comparison *c = compared(plan, run);
        CU_ASSERT_EQUAL(verdict(c, p, "host process", "rank0"), expected);
        CU_ASSERT_EQUAL(verdict(c, p, "host", "node"), expected);
        CU_ASSERT_EQUAL(verdict(c, p, "host arenas", "node"), STW_LINE_WITHIN);
        CU_ASSERT_EQUAL(find(c, p, "gpu device", "rank0") != NULL, i != 2);
        stw_comparison_free(c);
    }
    stw_run_result_free(run);
    stw_plan_free(plan);
}

/* A plan that does not fit has no seconds: a record of a job that ran nevertheless is not judged.
 */
static void what_does_not_fit_has_no_time(void) {
    stw_plan *plan = planned(1, 1, NULL);
    stw_run_result *run = exact_run(plan);
    stw_phase p = STW_PHASE_OPTIMIZER_STEP;
    plan->verdict = STW_VERDICT_DOES_NOT_FIT;
    plan->time_s[p] = NAN;
    stw_comparison *c = compared(plan, run);
    const stw_compare_line *line = find(c, p, "time", "job");
    CU_ASSERT_PTR_NOT_NULL_FATAL(line);
    CU_ASSERT_EQUAL(line->verdict, STW_LINE_NOT_JUDGED);
    CU_ASSERT_STRING_EQUAL(line->note, "the plan does not fit: no time is predicted");
    CU_ASSERT_STRING_EQUAL(line->who, "slowest rank");
    line = find(c, p, "gpu allocated", "rank0");
    CU_ASSERT_PTR_NOT_NULL_FATAL(line);
    CU_ASSERT_STRING_EQUAL(line->who, "rank 0");
    stw_comparison_free(c);
    stw_run_result_free(run);
    stw_plan_free(plan);
}

static void runs_of_other_plans_are_refused(void) {
    stw_plan *plan = planned(1, 2, NULL);
    stw_run_result *run = exact_run(plan);
    stw_comparison *c = NULL;
    run->file = "r.json"; /* errors name both files, the values, and what to do */
    plan->file = "p.json";
    run->plan_hash = "0000000000000000";
    CHECK_FAILS(stw_compare(plan, run, NULL, &c, err), STW_STATUS_BAD_INPUT,
                "r.json: plan_hash: found \"0000000000000000\", expected \"");
    CHECK_FAILS(stw_compare(plan, run, NULL, &c, err), STW_STATUS_BAD_INPUT,
                "as in p.json: the run belongs to another plan; name the plan that was executed");
    run->plan_hash = hash_of(plan, run->pool);
    run->world = 3;
    CHECK_FAILS(stw_compare(plan, run, NULL, &c, err), STW_STATUS_BAD_INPUT,
                "r.json: world: found 3 ranks, expected 2 as in p.json");
    run->world = 2;
    run->elements = 7;
    CHECK_FAILS(stw_compare(plan, run, NULL, &c, err), STW_STATUS_BAD_INPUT,
                "r.json: verify.elements: found 7, expected ");
    run->elements = 0;
    run->n_ranks = 1;
    CHECK_FAILS(stw_compare(plan, run, NULL, &c, err), STW_STATUS_BAD_INPUT, "1 entries");
    run->n_ranks = 2;
    run->ranks[1].rank = 2;
    CHECK_FAILS(stw_compare(plan, run, NULL, &c, err), STW_STATUS_BAD_INPUT, "rank 2");
    run->ranks[1].rank = 0;
    CHECK_FAILS(stw_compare(plan, run, NULL, &c, err), STW_STATUS_BAD_INPUT, "twice");
    CU_ASSERT_PTR_NULL(c);
    stw_run_result_free(run);
    stw_plan_free(plan);
}

static void records_of_others(void) {
    const char *const fsdp2[] = {"engine=fsdp2", NULL};
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = fixture_plan(large, &cluster, fsdp2);
    fixture_state(plan, 1, mixed, NULL);
    plan->decisions.prefetch.by_group = true;
    plan->decisions.prefetch.depth = 1;
    CHECK_OK(stw_plan_derive(plan, err));
    stw_phase p = STW_PHASE_FORWARD_BACKWARD;
    const stw_peak *gpu = &plan->shown[0].phase[p][STW_TIER_GPU];
    stw_run_result *run = NULL;
    CHECK_OK(stw_run_result_new(&run, err));
    run->source = "external";
    run->gpu_bytes[p] = gpu->total;
    run->gpu_peak_bytes = 2 * gpu->total;
    stw_comparison *c = compared(plan, run);
    CU_ASSERT_EQUAL(verdict(c, p, "gpu device", "job"), STW_LINE_WITHIN);
    CU_ASSERT_EQUAL(verdict(c, STW_PHASE_OPTIMIZER_STEP, "gpu device", "job"),
                    STW_LINE_NOT_MEASURED);
    CU_ASSERT_EQUAL(verdict(c, p, "gpu peak", "job"), STW_LINE_OUTSIDE);
    CU_ASSERT_EQUAL(c->judged, 2);
    stw_comparison_free(c);
    /* a rank that knows its allocator alone */
    stw_run_rank rank = {.rank = 1, .kind = "trainer"};
    rank.phases[p].known = true;
    rank.phases[p].allocated = stw_peak_allocated(gpu) * 2;
    run->n_ranks = 1;
    run->ranks = &rank;
    run->gpu_peak_bytes = 0;
    c = compared(plan, run);
    uint32_t kind = stw_job_kind_of(plan->job, 1);
    CU_ASSERT_EQUAL(verdict(c, p, "gpu allocated", plan->job->kinds[kind].name), STW_LINE_OUTSIDE);
    CU_ASSERT_EQUAL(c->judged, 1);
    CU_ASSERT_EQUAL(c->outside, 1);
    stw_comparison_free(c);
    stw_run_result_free(run);
    stw_plan_free(plan);
}

/* What a record says of a node's page-locked memory is compared with what the plan page-locks:
 * moments, each rounded to a power of two, and nothing of the processes. */
static void page_locked_of_others(void) {
    const char *const fsdp2[] = {"engine=fsdp2", "optimizer.implementation=streamed", NULL};
    static const stw_place stream[] = {FIXTURE_STREAM};
    const stw_phase p = STW_PHASE_OPTIMIZER_STEP;
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = fixture_plan(large, &cluster, fsdp2);
    fixture_state(plan, 1, stream, NULL);
    plan->decisions.prefetch.by_group = true;
    plan->decisions.prefetch.depth = 1;
    CHECK_OK(stw_plan_derive(plan, err));
    const stw_peak *host = &plan->node_peaks[0].phase[p][STW_TIER_HOST];
    CU_ASSERT_EQUAL(host->page_locked, host->components[STW_COMPONENT_EXP_AVG] +
                                           host->components[STW_COMPONENT_EXP_AVG_SQ] +
                                           host->components[STW_COMPONENT_PAGE_LOCK_ROUNDING]);
    for (int twice = 0; twice < 2; twice++) {
        stw_run_result *run = NULL;
        CHECK_OK(stw_run_result_new(&run, err));
        stw_run_node node = {.node = 0};
        node.page_locked[p] = host->page_locked << twice;
        run->source = "external";
        run->n_nodes = 1;
        run->nodes = &node;
        stw_comparison *c = compared(plan, run);
        CU_ASSERT_EQUAL(verdict(c, p, "host page-locked", "node"),
                        twice ? STW_LINE_OUTSIDE : STW_LINE_WITHIN);
        CU_ASSERT_PTR_NULL(find(c, p, "host", "node"));
        stw_comparison_free(c);
        stw_run_result_free(run);
    }
    stw_plan_free(plan);
}

/* A log knows the highest of the whole job, or what was at one moment. */
static void peaks_of_a_log(void) {
    stw_plan *plan = planned(1, 2, NULL);
    stw_run_result *run = NULL;
    CHECK_OK(stw_run_result_new(&run, err));
    run->source = "external";
    uint64_t allocated = 0, device = 0;
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_peak *peak = &plan->shown[0].phase[p][STW_TIER_GPU];
        if (stw_peak_allocated(peak) > allocated) allocated = stw_peak_allocated(peak);
        if (peak->total > device) device = peak->total;
    }
    stw_run_peak peaks[] = {
        {.rank = 0, .metric = STW_METRIC_ALLOCATED, .bytes = allocated, .from = "line 1"},
        {.rank = STW_WORST_RANK,
         .metric = STW_METRIC_DEVICE,
         .bytes = device / 2,
         .at_moment = true},
        {.rank = 0, .metric = STW_METRIC_RESERVED, .bytes = 1}, /* the executor has one arena */
    };
    run->peaks = peaks;
    run->n_peaks = 3;
    run->iteration_s = 1.0;
    stw_comparison *c = compared(plan, run);
    uint32_t within = 0, unjudged = 0, lacking = 0;
    for (uint32_t i = 0; i < c->n_lines; i++) {
        const stw_compare_line *l = &c->lines[i];
        if (strcmp(l->what, "gpu allocated peak") == 0) {
            within++;
            CU_ASSERT_EQUAL(l->verdict, STW_LINE_WITHIN);
            CU_ASSERT_EQUAL(l->error, 0.0);
            CU_ASSERT_STRING_EQUAL(l->from, "line 1");
        } else if (strcmp(l->what, "gpu device peak") == 0) {
            unjudged++;
            CU_ASSERT_EQUAL(l->verdict, STW_LINE_NOT_JUDGED);
        } else if (strcmp(l->what, "host") == 0) {
            lacking++;
            CU_ASSERT_EQUAL(l->verdict, STW_LINE_NOT_MEASURED);
        }
        CU_ASSERT_PTR_NULL(strstr(l->what, "reserved"));
    }
    CU_ASSERT_EQUAL(within, 1);
    CU_ASSERT_EQUAL(unjudged, 1);
    CU_ASSERT_EQUAL(lacking, 1);
    CU_ASSERT_EQUAL(c->judged, 1);
    stw_comparison_free(c);
    peaks[1].bytes = device + device / 2; /* one moment is enough to refute */
    c = compared(plan, run);
    CU_ASSERT_EQUAL(c->outside, 1);
    stw_comparison_free(c);
    peaks[1] =
        (stw_run_peak){.rank = STW_SOME_RANK, .metric = STW_METRIC_ALLOCATED, .bytes = allocated};
    c = compared(plan, run);
    CU_ASSERT_EQUAL(c->outside, 0);
    CU_ASSERT_EQUAL(c->judged, 2);
    stw_comparison_free(c);
    peaks[0].rank = 2;
    stw_error e = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_compare(plan, run, NULL, &c, &e), STW_STATUS_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "line 1: found rank 2, expected less than 2"));
    stw_run_result_free(run);
    stw_plan_free(plan);
}

static void json_tells_all(void) {
    stw_plan *plan = planned(1, 1, NULL);
    stw_run_result *run = exact_run(plan);
    stw_comparison *c = compared(plan, run);
    stw_text text = STW_TEXT_INIT;
    stw_tree *tree = NULL;
    CHECK_OK(stw_comparison_to_json(c, &text, err));
    CHECK_OK(stw_tree_parse_json("comparison", text.data, text.length, &tree, err));
    CHECK_OK(stw_tree_schema(tree, "stowage.comparison", 1, err));
    const stw_node *lines = stw_node_get(tree->root, "lines");
    CU_ASSERT_EQUAL(lines->n_items, c->n_lines);
    for (uint32_t i = 0; i < c->n_lines; i++) {
        CU_ASSERT_STRING_EQUAL(stw_node_get(lines->items[i], "what")->text, c->lines[i].what);
        bool known = c->lines[i].verdict != STW_LINE_NOT_MEASURED;
        CU_ASSERT_EQUAL(stw_node_get(lines->items[i], "measured")->kind,
                        known ? STW_NODE_REAL : STW_NODE_NULL);
    }
    stw_tree_free(tree);
    stw_text_free(&text);
    stw_comparison_free(c);
    stw_run_result_free(run);
    stw_plan_free(plan);
}

/* Seconds of two plans. */
static void rounding_is_no_difference(void) {
    CU_ASSERT_TRUE(stw_diff_same_seconds(0.403, 0.403 + 1.11e-16));
    CU_ASSERT_TRUE(stw_diff_same_seconds(12.0, 12.0 * (1 + 5e-10)));
    CU_ASSERT_FALSE(stw_diff_same_seconds(12.0, 12.0 * (1 + 5e-9)));
    CU_ASSERT_TRUE(stw_diff_same_seconds(0.0, 0.0));
    CU_ASSERT_TRUE(stw_diff_same_seconds((double)NAN, (double)NAN));
    CU_ASSERT_FALSE(stw_diff_same_seconds((double)NAN, 1.0));
}

STW_TEST_MAIN(
    "plan compare", {"an exact run agrees", an_exact_run_agrees},
    {"each figure is found", each_figure_is_found},
    {"the worst rank stands for its kind", the_worst_rank_stands_for_its_kind},
    {"context is shown", context_is_shown}, {"tolerances are kept to", tolerances_are_kept_to},
    {"time counts only where calibrated", time_counts_only_where_it_was_calibrated},
    {"host processes count only where calibrated", host_processes_count_only_where_calibrated},
    {"what does not fit has no time", what_does_not_fit_has_no_time},
    {"runs of other plans are refused", runs_of_other_plans_are_refused},
    {"records of others", records_of_others},
    {"page-locked memory of others", page_locked_of_others}, {"peaks of a log", peaks_of_a_log},
    {"json tells all", json_tells_all}, {"rounding is no difference", rounding_is_no_difference})

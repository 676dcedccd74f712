/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of a run and of a comparison. */
#include <math.h>

#include "reports/reports.h"
#include "tests/unit/testing.h"

#define GIB (1ull << 30)

static stw_run_rank ranks[2];
static double steps[] = {0.9, 0.3, 0.1, 0.2, 0.25}; /* the first is a phase of its own */
static stw_run_movement movement = {STW_PHASE_OPTIMIZER_STEP, "trainer", 4, steps + 1};
static stw_run_result run;

static void set_up(void) {
    memset(ranks, 0, sizeof ranks);
    memset(&run, 0, sizeof run);
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i].rank = i;
        ranks[i].kind = i == 0 ? "rank0" : "rank";
        stw_measured *m = &ranks[i].phases[STW_PHASE_OPTIMIZER_STEP];
        m->known = true;
        m->allocated = (i + 1) * GIB;
        m->device = (i + 3) * GIB;
        m->host = 8 * GIB;
        m->gpu_components[STW_COMPONENT_PARAMS] = GIB;
    }
    run.source = "stowage";
    run.backend = "cuda";
    run.device = "NVIDIA H200";
    run.world = 2;
    run.steps = 5;
    run.ranks = ranks;
    run.n_ranks = 2;
    run.step_all_s = steps;
    run.n_step_all = 5;
    run.movements = &movement;
    run.n_movements = 1;
    for (int p = 0; p < STW_N_PHASES; p++) run.time_s[p] = NAN;
    run.time_s[STW_PHASE_FIRST_OPTIMIZER_STEP] = 0.9;
    run.time_s[STW_PHASE_OPTIMIZER_STEP] = 0.225;
    run.not_run[STW_PHASE_FORWARD_BACKWARD] = true;
    run.params_per_s = 6.2e9;
    run.up_bps = run.down_bps = 49.6e9;
    run.checked = 1000;
    run.elements = 4000;
    run.digest[0] = 0xabcdef;
    run.grad_norm = NAN;
    static double rates[] = {50.5e9};
    static stw_run_link link = {32ull << 20, 2, 0, 50.5e9, 1, rates};
    run.links = &link;
    run.n_links = 1;
    run.link_share = 0.971;
    run.copies_s = 0.19;
    run.digest[3] = 0x123;
    run.gpu_growth_bytes = 0;
    run.host_growth_bytes = 4096;
}

static void check_contains(const stw_text *text, const char *word) {
    bool found = text->data != NULL && strstr(text->data, word) != NULL;
    if (!found) fprintf(stderr, "no \"%s\" in:\n%s\n", word, text->data ? text->data : "nothing");
    CU_ASSERT(found);
}

static void run_for_people(void) {
    stw_text out = STW_TEXT_INIT;
    set_up();
    CHECK_OK(stw_report_run(&run, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "stowage on NVIDIA H200 (cuda): 2 ranks, 5 optimizer steps");
    check_contains(&out, "First optimizer step: 900 ms.");
    check_contains(&out,
                   "Optimizer step: median 225 ms of 4 steps after the first (100 ms to 300 ms).");
    check_contains(&out, "6.2 Gparam/s, 49.6 GB/s host to GPU");
    check_contains(&out, "1,000 of 4,000 elements checked, 0 mismatches.");
    check_contains(&out, "params 0000000000abcdef");
    check_contains(&out, "master 0000000000000123");
    check_contains(&out, "The copies of an optimizer step alone: 190 ms.");
    check_contains(&out, "Raw copies of 32.00 MiB, 2 stream(s) each way: 50.5 GB/s");
    check_contains(&out, "reaches 97.1% of the fastest raw copies");
    check_contains(&out, "GPU 0 bytes, host 4096 bytes");
    check_contains(&out, "not executed");
    check_contains(&out, "4.00 GiB");
    CU_ASSERT_PTR_NULL(strstr(out.data, "Gradient norm"));
    CU_ASSERT_PTR_NULL(strstr(out.data, "page-locked")); /* nothing there: no column */
    CU_ASSERT_EQUAL(steps[1], 0.3);                      /* the run is not reordered */
    stw_text_free(&out);
}

/* What another program measured has no device, backend or steps that its file does not name. */
static void run_of_another_program(void) {
    stw_text out = STW_TEXT_INIT;
    set_up();
    run.source = "external";
    run.device = run.backend = "";
    run.steps = 0;
    CHECK_OK(stw_report_run(&run, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "  Measured by another program: ");
    CU_ASSERT_PTR_NULL(strstr(out.data, "()"));
    CU_ASSERT_PTR_NULL(strstr(out.data, "on  "));
    CU_ASSERT_PTR_NULL(strstr(out.data, " 0 rank"));
    stw_text_free(&out);
}

static void run_as_csv(void) {
    stw_text out = STW_TEXT_INIT;
    set_up();
    CHECK_OK(stw_report_run(&run, STW_FORMAT_CSV, &out, err));
    check_contains(&out, "of,phase,what,value,unit\n");
    check_contains(&out, "job,optimizer_step,time,0.225,s\n");
    check_contains(&out, "job,optimizer_step,link 33554432 B x 2,50500000000,B/s\n");
    check_contains(&out, "rank 1,optimizer_step,gpu_allocated,2147483648,B\n");
    check_contains(&out, "rank 1,optimizer_step,gpu params,1073741824,B\n");
    CU_ASSERT_PTR_NULL(strstr(out.data, "forward_backward,time"));
    stw_text_free(&out);
}

static stw_compare_line lines[4];
static stw_comparison comparison;

static void set_up_comparison(void) {
    memset(lines, 0, sizeof lines);
    memset(&comparison, 0, sizeof comparison);
    lines[0] = (stw_compare_line){.phase = STW_PHASE_LOAD,
                                  .what = "gpu allocated",
                                  .kind = "rank",
                                  .rank = 3,
                                  .predicted = 2.0 * GIB,
                                  .measured = 2.5 * GIB,
                                  .error = -0.2,
                                  .verdict = STW_LINE_OUTSIDE};
    lines[1] = lines[0];
    lines[1].what = "host";
    lines[1].measured = NAN;
    lines[1].error = NAN;
    lines[1].verdict = STW_LINE_NOT_MEASURED;
    lines[2] = lines[0];
    lines[2].is_time = true;
    lines[2].what = "time";
    lines[2].predicted = NAN;
    lines[2].measured = 0.5;
    lines[2].error = NAN;
    lines[2].verdict = STW_LINE_NOT_JUDGED;
    lines[2].note = "host backend";
    lines[3] = lines[0];
    lines[3].verdict = STW_LINE_WITHIN;
    lines[3].error = 0.001;
    comparison.lines = lines;
    comparison.n_lines = 4;
    comparison.judged = 2;
    comparison.outside = 1;
    comparison.time_note = "the cluster was not calibrated";
}

static void comparison_for_people(void) {
    stw_text out = STW_TEXT_INIT;
    set_up_comparison();
    CHECK_OK(stw_report_comparison(&comparison, STW_FORMAT_TERMINAL, &out, err));
    check_contains(&out, "DISAGREE: 1 of 2 judged lines are outside tolerance.");
    check_contains(&out, "Memory: a plan that is near a limit may not fit on this machine");
    CU_ASSERT_PTR_NULL(strstr(out.data, "Times: "));
    check_contains(&out, "Time is not judged: the cluster was not calibrated.");
    check_contains(&out, "2.00 GiB");
    check_contains(&out, "-20.00%  OUTSIDE");
    check_contains(&out, "not measured");
    check_contains(&out, "Not judged: time of load: host backend");
    check_contains(&out, "not predicted");
    stw_text_free(&out);
    comparison.outside = 0;
    comparison.n_lines = 0;
    CHECK_OK(stw_report_comparison(&comparison, STW_FORMAT_MARKDOWN, &out, err));
    check_contains(&out, "agree: all 2 judged lines are within tolerance.");
    stw_text_free(&out);
    comparison.judged = 0;
    CHECK_OK(stw_report_comparison(&comparison, STW_FORMAT_MARKDOWN, &out, err));
    check_contains(&out, "The run measured nothing");
    stw_text_free(&out);
}

/* Modules of the script are named where a recorded process holds somewhat more than planned. */
static void short_host(void) {
    const struct {
        bool external;
        uint32_t processes;
        double measured;
        bool said;
    } cases[] = {{true, 2, 3.0 * GIB, true},
                 {false, 2, 3.0 * GIB, false},
                 {true, 0, 3.0 * GIB, false},
                 {true, 1, 9.0 * GIB, false},
                 {true, 2, 1.0 * GIB, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_text out = STW_TEXT_INIT;
        set_up_comparison();
        comparison.external = cases[i].external;
        lines[0].what = "host";
        lines[0].processes = cases[i].processes;
        lines[0].measured = cases[i].measured;
        CHECK_OK(stw_report_comparison(&comparison, STW_FORMAT_TERMINAL, &out, err));
        CU_ASSERT_EQUAL(strstr(out.data, "modules of the script") != NULL, cases[i].said);
        stw_text_free(&out);
    }
}

static void comparison_as_csv(void) {
    stw_text out = STW_TEXT_INIT;
    set_up_comparison();
    CHECK_OK(stw_report_comparison(&comparison, STW_FORMAT_CSV, &out, err));
    CU_ASSERT_STRING_EQUAL(out.data,
                           "phase,what,kind,rank,unit,predicted,measured,error,verdict,note,from\n"
                           "load,gpu allocated,rank,3,B,2147483648,2684354560,-0.2,OUTSIDE,,\n"
                           "load,host,rank,3,B,2147483648,,,not measured,,\n"
                           "load,time,rank,3,s,,0.5,,not judged,host backend,\n"
                           "load,gpu allocated,rank,3,B,2147483648,2684354560,0.001,within,,\n");
    stw_text_free(&out);
}

STW_TEST_MAIN("reports run", {"run for people", run_for_people},
              {"run of another program", run_of_another_program}, {"run as CSV", run_as_csv},
              {"comparison for people", comparison_for_people}, {"short host", short_host},
              {"comparison as CSV", comparison_as_csv})

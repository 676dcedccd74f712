/* SPDX-License-Identifier: Apache-2.0 */
/* Learning from a recording: a run that differs from its plan in the environment alone teaches
 * exactly that; what cannot be told apart is not learned; absurd values are refused. */
#include <math.h>
#include <unistd.h>

#include "plan/measured/learn.h"
#include "plan/program/demand.h"
#include "plan/spec/cluster_edit.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

#define MIB (1ull << 20)

static const fixture_size small = {4, 256, 1024, 8000};
static const stw_learn_source source = {"run.json", "2026-11-22"};

enum { PROCESS = 2000, LAUNCHER = 500, CONTEXT = 700 }; /* MiB, of the recorded machine */

static stw_plan *planned(const char *engine) {
    static const stw_place resident[] = {
        {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_GPU, STW_UPDATE_RESIDENT}};
    static const uint32_t all[] = {0};
    stw_cluster cluster = fixture_cluster(2);
    const char *const settings[] = {engine, NULL};
    snprintf(cluster.gpu.name, sizeof cluster.gpu.name, "NVIDIA H200");
    stw_plan *plan = fixture_plan(small, &cluster, settings);
    fixture_state(plan, 1, resident, all);
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

/* The recording of a job that is as planned, in another environment. */
static stw_run_result *recording(const stw_plan *plan) {
    static const stw_phase phases[] = {STW_PHASE_FORWARD_BACKWARD, STW_PHASE_OPTIMIZER_STEP};
    stw_run_result *r = NULL;
    CHECK_OK(stw_run_result_new(&r, err));
    r->source = "external";
    r->backend = "cuda";
    r->device = "NVIDIA H200";
    r->steps = 5;
    r->n_ranks = 2;
    r->n_nodes = 1;
    r->ranks = stw_pool_array(r->pool, 2, sizeof *r->ranks);
    r->nodes = stw_pool_array(r->pool, 1, sizeof *r->nodes);
    for (uint32_t i = 0; i < 2; i++) {
        r->ranks[i] = (stw_run_rank){.rank = i, .kind = ""};
        for (size_t p = 0; p < 2; p++) {
            const stw_peak *peak = plan->shown[stw_job_kind_of(plan->job, i)].phase[phases[p]];
            stw_measured *m = &r->ranks[i].phases[phases[p]];
            m->known = true;
            m->reserved = stw_peak_reserved(&peak[STW_TIER_GPU]);
            m->device = m->reserved + CONTEXT * MIB + plan->cluster.gpu.comm_bytes;
            m->host = peak[STW_TIER_HOST].total -
                      peak[STW_TIER_HOST].components[STW_COMPONENT_PROCESS] + PROCESS * MIB;
            r->nodes[0].host[phases[p]] += m->host + LAUNCHER * MIB / 2;
        }
    }
    return r;
}

static uint64_t learned_mib(const stw_lessons *lessons, stw_learnable which) {
    CU_ASSERT_TRUE(lessons->items[which].learned);
    return lessons->items[which].entry.value.bytes / MIB;
}

static void not_learned(const stw_lessons *lessons, stw_learnable which, const char *why) {
    CU_ASSERT_FALSE(lessons->items[which].learned);
    if (strstr(lessons->items[which].why, why) == NULL)
        fprintf(stderr, "%s: \"%s\"\n", stw_learned_key(which), lessons->items[which].why);
    CU_ASSERT_PTR_NOT_NULL(strstr(lessons->items[which].why, why));
}

static void the_environment_is_learned(void) {
    stw_plan *plan = planned("engine=fsdp2");
    stw_run_result *run = recording(plan);
    stw_lessons lessons;
    stw_cluster cluster = plan->cluster;
    stw_text words = STW_TEXT_INIT;
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    CU_ASSERT_EQUAL(learned_mib(&lessons, STW_LEARN_PROCESS), PROCESS);
    CU_ASSERT_EQUAL(learned_mib(&lessons, STW_LEARN_LAUNCHER), LAUNCHER);
    CU_ASSERT_EQUAL(learned_mib(&lessons, STW_LEARN_CONTEXT), CONTEXT);
    CU_ASSERT_EQUAL(lessons.items[STW_LEARN_CONTEXT].entry.samples, 4);
    not_learned(&lessons, STW_LEARN_EFFICIENCY, "no seconds of forward_backward");
    stw_lessons_apply(&lessons, &cluster);
    CU_ASSERT_EQUAL(cluster.torch.process_bytes, PROCESS * MIB);
    CU_ASSERT_EQUAL(cluster.torch.launcher_bytes, LAUNCHER * MIB);
    CU_ASSERT_EQUAL(cluster.gpu.context_bytes, CONTEXT * MIB);
    CHECK_OK(stw_cluster_check(&cluster, "test", err));
    CU_ASSERT_EQUAL(stw_cluster_learned_words(&cluster, &words), 3);
    CU_ASSERT_STRING_EQUAL(words.data,
                           "learned from run.json (fixture, 2026-11-22): process base 1.95 GiB "
                           "(was 0 B), launcher of a node 500.00 MiB (was 0 B), CUDA context "
                           "700.00 MiB (was 512.00 MiB)");
    stw_text_free(&words);
    stw_run_result_free(run);
    stw_plan_free(plan);
}

/* The bytes of a plan on that cluster are those that were recorded. */
static void the_next_plan_is_as_recorded(void) {
    stw_plan *plan = planned("engine=fsdp2");
    stw_run_result *run = recording(plan);
    stw_lessons lessons;
    const stw_phase p = STW_PHASE_FORWARD_BACKWARD;
    const uint64_t host_before = plan->node_peaks[0].phase[p][STW_TIER_HOST].total;
    const uint64_t base_before =
        plan->node_peaks[0].phase[p][STW_TIER_HOST].components[STW_COMPONENT_PROCESS];
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    stw_lessons_apply(&lessons, &plan->cluster);
    CHECK_OK(stw_plan_derive(plan, err));
    CU_ASSERT_EQUAL(plan->shown[0].phase[p][STW_TIER_GPU].total, run->ranks[0].phases[p].device);
    CU_ASSERT_EQUAL(plan->node_peaks[0].phase[p][STW_TIER_HOST].total, run->nodes[0].host[p]);
    bool named = false;
    for (uint32_t i = 0; i < plan->programs[0]->n_ops; i++) {
        const char *from = plan->programs[0]->ops[i].from_what;
        named |= from != NULL && strcmp(from, "node.torch.process, node.torch.launcher") == 0;
    }
    CU_ASSERT_TRUE(named);
    CU_ASSERT_EQUAL(plan->node_peaks[0].phase[p][STW_TIER_HOST].total - host_before,
                    (2 * PROCESS + LAUNCHER) * MIB - base_before);
    stw_run_result_free(run);
    stw_plan_free(plan);
}

static void what_hides_other_bytes_is_not_learned(void) {
    stw_plan *plan = planned("engine=fsdp2");
    stw_run_result *run = recording(plan);
    stw_lessons lessons;
    const stw_phase p = STW_PHASE_FORWARD_BACKWARD;
    for (int i = 0; i < 2; i++) run->ranks[i].phases[p].reserved = 0;
    for (int i = 0; i < 2; i++) run->ranks[i].phases[STW_PHASE_OPTIMIZER_STEP].reserved = 0;
    run->nodes[0].host[p] = run->nodes[0].host[STW_PHASE_OPTIMIZER_STEP] = 0;
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    CU_ASSERT_EQUAL(learned_mib(&lessons, STW_LEARN_PROCESS), PROCESS);
    not_learned(&lessons, STW_LEARN_LAUNCHER, "not both");
    not_learned(&lessons, STW_LEARN_CONTEXT, "torch reserves");
    /* one rank holds what is not its process's */
    for (int q = 0; q < STW_N_PHASES; q++) run->ranks[0].phases[q].host *= 4;
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    not_learned(&lessons, STW_LEARN_PROCESS, "ranks of a node hold");
    /* a rank of the node was not sampled: its bytes would pass for a launcher */
    for (int q = 0; q < STW_N_PHASES; q++) {
        run->ranks[0].phases[q].host = 0;
        run->nodes[0].host[q] = run->ranks[1].phases[q].host * 2;
    }
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    not_learned(&lessons, STW_LEARN_PROCESS, "host bytes of 1 of the 2 ranks");
    not_learned(&lessons, STW_LEARN_LAUNCHER, "host bytes of 1 of the 2 ranks");
    /* bytes of ranks are unknown: the launcher is part of the base */
    memset(run->ranks, 0, 2 * sizeof *run->ranks);
    run->n_ranks = 0;
    run->nodes[0].host[p] = (2 * PROCESS + LAUNCHER) * MIB;
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    CU_ASSERT_EQUAL(learned_mib(&lessons, STW_LEARN_PROCESS), PROCESS + LAUNCHER / 2);
    not_learned(&lessons, STW_LEARN_LAUNCHER, "counted in node.torch.process");
    stw_run_result_free(run);
    stw_plan_free(plan);

    plan = planned("engine=fsdp2");
    run = recording(plan);
    stw_peak *host = &plan->node_peaks[0].phase[p][STW_TIER_HOST];
    for (int q = 0; q < STW_N_PHASES; q++)
        plan->node_peaks[0].phase[q][STW_TIER_HOST].total += 2000 * MIB; /* an offloaded state */
    CU_ASSERT_TRUE(host->total > 0);
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    not_learned(&lessons, STW_LEARN_PROCESS, "an error of that would pass for a process");
    stw_run_result_free(run);
    stw_plan_free(plan);
}

/* Logs know no phases: what they state of the whole job teaches the context. */
static void peaks_of_logs_teach_the_context(void) {
    stw_plan *plan = planned("engine=fsdp2");
    stw_run_result *run = recording(plan);
    stw_lessons lessons;
    const uint64_t reserved = run->ranks[0].phases[STW_PHASE_FORWARD_BACKWARD].reserved;
    stw_run_peak peaks[] = {
        {.rank = 0, .metric = STW_METRIC_DEVICE, .bytes = reserved + CONTEXT * MIB + (1ull << 30)},
        {.rank = 0, .metric = STW_METRIC_RESERVED, .bytes = reserved},
        {.rank = STW_WORST_RANK, .metric = STW_METRIC_RESERVED, .bytes = 7},
    };
    memset(run->ranks, 0, 2 * sizeof *run->ranks);
    run->n_ranks = run->n_nodes = 0;
    run->peaks = peaks;
    run->n_peaks = 3;
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    CU_ASSERT_EQUAL(learned_mib(&lessons, STW_LEARN_CONTEXT), CONTEXT);
    CU_ASSERT_STRING_EQUAL(lessons.items[STW_LEARN_CONTEXT].entry.phase, "peak");
    CU_ASSERT_EQUAL(lessons.items[STW_LEARN_CONTEXT].entry.samples, 1);
    not_learned(&lessons, STW_LEARN_PROCESS, "were not recorded");
    peaks[0].at_moment = true;
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    not_learned(&lessons, STW_LEARN_CONTEXT, "no phase has both");
    stw_run_result_free(run);
    stw_plan_free(plan);
}

static double gpu_seconds(const stw_plan *plan) {
    double busy[STW_N_RESOURCES] = {0};
    stw_demand_add_movement(plan->job, plan->programs[0],
                            stw_program_movement(plan->programs[0], STW_PHASE_FORWARD_BACKWARD),
                            busy);
    return busy[STW_RESOURCE_GPU];
}

static void seconds_are_learned_where_the_gpu_binds(void) {
    const stw_phase p = STW_PHASE_FORWARD_BACKWARD;
    stw_plan *plan = planned("engine=fsdp2");
    stw_run_result *run = recording(plan);
    stw_lessons lessons;
    plan->cluster.gpu.bf16_flops = 1e10; /* so slow that nothing else takes time */
    stw_cluster into = plan->cluster;
    into.gpu.bf16_flops = 2e10;
    plan->time_s[p] = gpu_seconds(plan);
    run->time_s[p] = 1.25 * plan->time_s[p];
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    CU_ASSERT_DOUBLE_EQUAL(lessons.items[STW_LEARN_EFFICIENCY].entry.value.number, 0.8, 1e-9);
    CU_ASSERT_EQUAL(lessons.items[STW_LEARN_EFFICIENCY].entry.samples, 5);
    CHECK_OK(stw_learn(plan, run, &source, &into, &lessons, err));
    CU_ASSERT_DOUBLE_EQUAL(lessons.items[STW_LEARN_EFFICIENCY].entry.value.number, 0.4, 1e-9);
    plan->time_s[p] *= 1.2; /* a bubble, or copies that are waited for */
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    not_learned(&lessons, STW_LEARN_EFFICIENCY, "not bound by the GPU alone");
    plan->time_s[p] = gpu_seconds(plan);
    run->time_s[p] = 0.04; /* four layers with 600 operations of 10 us each */
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    not_learned(&lessons, STW_LEARN_EFFICIENCY, "too short");
    run->time_s[p] = 1.25 * plan->time_s[p];
    run->time_s[p] = 100 * plan->time_s[p];
    CHECK_FAILS(stw_learn(plan, run, &source, &plan->cluster, &lessons, err), STW_STATUS_BAD_INPUT,
                "node.gpu.efficiency: found 0.01 in forward_backward, expected 0.1 to 3");
    run->time_s[p] = 1.25 * plan->time_s[p];
    stw_measured *m = &run->ranks[0].phases[p];
    m->allocated = stw_peak_allocated(&plan->shown[0].phase[p][STW_TIER_GPU]);
    m->allocated += m->allocated / 6;
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    not_learned(&lessons, STW_LEARN_EFFICIENCY, "14% off: the plan may be of another job");
    m->allocated = 0;
    run->device = "";
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    not_learned(&lessons, STW_LEARN_EFFICIENCY, "does not name its GPU");
    stw_run_result_free(run);
    stw_plan_free(plan);
}

static void absurd_values_are_refused(void) {
    stw_plan *plan = planned("engine=fsdp2");
    stw_run_result *run = recording(plan);
    stw_lessons lessons;
    for (int i = 0; i < 2; i++)
        for (int p = 0; p < STW_N_PHASES; p++)
            if (run->ranks[i].phases[p].device > 0) run->ranks[i].phases[p].device -= 2048 * MIB;
    CHECK_FAILS(
        stw_learn(plan, run, &source, &plan->cluster, &lessons, err), STW_STATUS_BAD_INPUT,
        "node.gpu.context: found -1.32 GiB in forward_backward, expected 16.00 MiB to 8.00");
    stw_run_result_free(run);
    run = recording(plan);
    for (int i = 0; i < 2; i++) run->ranks[i].phases[STW_PHASE_FORWARD_BACKWARD].host = 50ull << 30;
    run->nodes[0].host[STW_PHASE_FORWARD_BACKWARD] = 110ull << 30;
    CHECK_FAILS(stw_learn(plan, run, &source, &plan->cluster, &lessons, err), STW_STATUS_BAD_INPUT,
                "node.torch.process: found ");
    stw_run_result_free(run);
    run = recording(plan);
    stw_measured *m = &run->ranks[1].phases[STW_PHASE_FORWARD_BACKWARD];
    m->allocated =
        stw_peak_allocated(&plan->shown[0].phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU]);
    CHECK_OK(stw_learn(plan, run, &source, &plan->cluster, &lessons, err));
    m->allocated += m->allocated / 2;
    CHECK_FAILS(stw_learn(plan, run, &source, &plan->cluster, &lessons, err), STW_STATUS_BAD_INPUT,
                "of torch's allocator in forward_backward, expected about");
    stw_run_result_free(run);
    run = recording(plan);
    run->source = "stowage";
    CHECK_FAILS(stw_learn(plan, run, &source, &plan->cluster, &lessons, err), STW_STATUS_BAD_INPUT,
                "source: found \"stowage\"");
    run->source = "external";
    run->device = "NVIDIA A100";
    CHECK_FAILS(stw_learn(plan, run, &source, &plan->cluster, &lessons, err), STW_STATUS_BAD_INPUT,
                "device: found NVIDIA A100, expected NVIDIA H200");
    run->device = "NVIDIA H200";
    stw_cluster other = plan->cluster;
    snprintf(other.gpu.name, sizeof other.gpu.name, "NVIDIA B200");
    CHECK_FAILS(stw_learn(plan, run, &source, &other, &lessons, err), STW_STATUS_BAD_INPUT,
                "node.gpu.name: found NVIDIA B200");
    stw_run_result_free(run);
    stw_plan_free(plan);
    plan = planned("engine=stowage");
    run = recording(plan);
    CHECK_FAILS(stw_learn(plan, run, &source, &plan->cluster, &lessons, err), STW_STATUS_BAD_INPUT,
                "engine: found stowage, expected that of the recorded job");
    stw_run_result_free(run);
    stw_plan_free(plan);
}

/* ---- cluster files ---- */

static const char written[] =
    "# our machine\n"
    "name: ours\n"
    "node:\n"
    "  gpus: 2\n"
    "  gpu: {name: NVIDIA H200, memory: 80 GiB}   # as sold\n"
    "  torch:\n"
    "    process: 1 GiB  # guessed\n"
    "\n"
    "calibration:\n"
    "  date: \"2026-11-20\"\n"
    "  samples:\n"
    "  - {what: \"h2d\", detail: \"\", unit: \"B/s\", values: [1, 2]}  # raw\n";

static const char taught[] =
    "# our machine\n"
    "name: ours\n"
    "node:\n"
    "  gpus: 2\n"
    "  gpu: {name: NVIDIA H200, memory: 80 GiB}   # as sold\n"
    "  torch:\n"
    "    process: 2 GiB  # guessed\n"
    "\n"
    "calibration:\n"
    "  date: \"2026-11-20\"\n"
    "  samples:\n"
    "  - {what: \"h2d\", detail: \"\", unit: \"B/s\", values: [1, 2]}  # raw\n"
    "learned:\n"
    "  process:\n"
    "    value: 2 GiB\n"
    "    was: 1 GiB\n"
    "    from: \"a, b.json\"\n"
    "    samples: 7\n";

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    fclose(file);
}

static void check_text(const char *path, const char *expected) {
    char found[4096];
    FILE *file = fopen(path, "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    fclose(file);
    if (strcmp(found, expected) != 0) fprintf(stderr, "found:\n%s\n", found);
    CU_ASSERT_STRING_EQUAL(found, expected);
}

static void files_keep_all_else(void) {
    const char *path = "learn-test.yaml";
    stw_learned entry;
    memset(&entry, 0, sizeof entry);
    entry.value.bytes = 2ull << 30;
    entry.samples = 7;
    snprintf(entry.from, sizeof entry.from, "a, b.json");
    write_text(path, written);
    for (int again = 0; again < 2; again++) { /* the second time nothing changes */
        stw_cluster_file file = STW_CLUSTER_FILE_INIT;
        bool changed = false;
        CHECK_OK(stw_cluster_file_open(path, &file, err));
        CU_ASSERT_TRUE(file.exists);
        stw_cluster wanted = file.cluster;
        stw_cluster_learn(&wanted, STW_LEARN_PROCESS, &entry);
        CHECK_OK(stw_cluster_file_update(&file, &wanted, &changed, err));
        CU_ASSERT_EQUAL(changed, again == 0);
        stw_cluster_file_close(&file);
        check_text(path, taught);
    }
    unlink(path);
}

static void entries_hold_while_the_key_does(void) {
    stw_cluster c = fixture_cluster(2), fresh = fixture_cluster(2);
    stw_text words = STW_TEXT_INIT;
    stw_learned entry;
    memset(&entry, 0, sizeof entry);
    entry.value.bytes = 2ull << 30;
    entry.samples = 7;
    snprintf(entry.from, sizeof entry.from, "run.json");
    c.torch.process_bytes = 1ull << 30;
    stw_cluster_learn(&c, STW_LEARN_PROCESS, &entry);
    CU_ASSERT_EQUAL(c.learned[STW_LEARN_PROCESS].was.bytes, 1ull << 30);
    entry.value.bytes = 3ull << 30; /* what it was is not what was learned before */
    stw_cluster_learn(&c, STW_LEARN_PROCESS, &entry);
    CU_ASSERT_EQUAL(c.learned[STW_LEARN_PROCESS].was.bytes, 1ull << 30);
    fresh.torch.process_bytes = 5ull << 30; /* calibrated anew */
    CU_ASSERT_EQUAL(stw_cluster_keep_learned(&c, &fresh), 1);
    CU_ASSERT_EQUAL(fresh.torch.process_bytes, 3ull << 30);
    CU_ASSERT_EQUAL(fresh.learned[STW_LEARN_PROCESS].was.bytes, 5ull << 30);
    snprintf(fresh.gpu.name, sizeof fresh.gpu.name, "another");
    CU_ASSERT_EQUAL(stw_cluster_keep_learned(&c, &fresh), 0);
    CHECK_OK(stw_cluster_set(&c, "node.torch.process", "4 GiB", "test", err));
    CU_ASSERT_FALSE(stw_cluster_holds_learned(&c, STW_LEARN_PROCESS));
    CU_ASSERT_EQUAL(stw_cluster_learned_words(&c, &words), 1);
    CU_ASSERT_STRING_EQUAL(words.data, "node.torch.process was set to 4.00 GiB after 3.00 GiB was "
                                       "learned from run.json");
    stw_text_free(&words);
    c.learned[STW_LEARN_PROCESS].samples = 0;
    CHECK_FAILS(stw_cluster_check(&c, "test", err), STW_STATUS_BAD_INPUT,
                "learned.process.samples: found 0");
    c.learned[STW_LEARN_PROCESS].samples = 1;
    c.learned[STW_LEARN_PROCESS].from[0] = '\0';
    CHECK_FAILS(stw_cluster_check(&c, "test", err), STW_STATUS_BAD_INPUT,
                "learned.process.from: found nothing");
}

int main(void) {
    static const stw_test tests[] = {
        {"the environment is learned", the_environment_is_learned},
        {"the next plan is as recorded", the_next_plan_is_as_recorded},
        {"what hides other bytes is not learned", what_hides_other_bytes_is_not_learned},
        {"peaks of logs teach the context", peaks_of_logs_teach_the_context},
        {"seconds are learned where the GPU binds", seconds_are_learned_where_the_gpu_binds},
        {"absurd values and other machines are refused", absurd_values_are_refused},
        {"files keep all else", files_keep_all_else},
        {"an entry holds while its key does", entries_hold_while_the_key_does},
    };
    return stw_test_run_all("plan learn", tests, sizeof tests / sizeof tests[0]);
}

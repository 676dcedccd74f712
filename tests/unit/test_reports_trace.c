/* SPDX-License-Identifier: Apache-2.0 */
/* Chrome traces, read back with another JSON parser: names, slices that do not overlap, counters
 * that follow the bytes. */
#include <jansson.h>
#include <math.h>

#include "reports/reports.h"
#include "sim/sim.h"
#include "tests/unit/testing.h"

#define NONE STW_OP_NONE
#define MIB (1ull << 20)

enum { BUCKETS = 40, MOST_OPS = 4 * BUCKETS + 8 };

static stw_cluster cluster;
static stw_run_spec run;
static stw_job job;
static stw_program program;
static stw_movement movements[2];
static stw_op ops[MOST_OPS];
static stw_trace_event events[MOST_OPS];

static uint32_t append(stw_op_kind kind, stw_component component, stw_stream stream, stw_tier from,
                       stw_tier to, uint64_t bytes, uint32_t after) {
    ops[program.n_ops] =
        (stw_op){.kind = kind,
                 .component = component,
                 .from = from,
                 .to = to,
                 .stream = stream,
                 .unit = kind == STW_OP_ALLOC || kind == STW_OP_FREE ? NONE : program.n_ops,
                 .after = {after, NONE},
                 .bytes = bytes};
    return program.n_ops++;
}

/* Odd rates, so that times are no whole nanoseconds. */
static void build(void) {
    memset(&cluster, 0, sizeof cluster);
    cluster.gpu.efficiency = 0.5;
    memset(&run, 0, sizeof run);
    memset(&job, 0, sizeof job);
    memset(&program, 0, sizeof program);
    cluster.gpu.hbm_bps = 4293e9;
    cluster.host.bandwidth_bps = 190e9;
    cluster.host.dma_bps = 165e9;
    cluster.pcie.h2d_bps = 55.4e9;
    cluster.pcie.d2h_bps = 55.3e9;
    cluster.pcie.both_bps = 50.1e9;
    cluster.pcie.latency_s = 10.3e-6;
    job.cluster = &cluster;
    job.run = &run;
    job.world = job.group = job.ranks_per_node = 1;
    run.precision.params = run.precision.grads = STW_DTYPE_F32;
    run.precision.exp_avg = run.precision.exp_avg_sq = STW_DTYPE_F32;
    program.ops = ops;
    append(STW_OP_ALLOC, STW_COMPONENT_EXP_AVG, STW_STREAM_COMPUTE, STW_TIER_HOST, STW_TIER_HOST,
           BUCKETS * 16 * MIB, NONE);
    program.movements = movements;
    program.movements[0] = (stw_movement){.phase = STW_PHASE_LOAD, .first_op = 0, .n_ops = 1};
    append(STW_OP_ALLOC, STW_COMPONENT_STAGE, STW_STREAM_COMPUTE, STW_TIER_GPU, STW_TIER_GPU,
           48 * MIB, NONE);
    for (uint32_t i = 0; i < BUCKETS; i++) {
        uint32_t free_by = i < 3 ? NONE : program.n_ops - 7;
        uint32_t up = append(STW_OP_COPY, STW_COMPONENT_EXP_AVG, STW_STREAM_H2D, STW_TIER_HOST,
                             STW_TIER_GPU, 16 * MIB - i * 1001, free_by);
        uint32_t update = append(STW_OP_UPDATE, STW_COMPONENT_PARAMS, STW_STREAM_COMPUTE,
                                 STW_TIER_GPU, STW_TIER_GPU, 0, up);
        ops[update].params = 4 * MIB;
        append(STW_OP_COPY, STW_COMPONENT_EXP_AVG, STW_STREAM_D2H, STW_TIER_GPU, STW_TIER_HOST,
               16 * MIB - i * 1001, update);
    }
    append(STW_OP_FREE, STW_COMPONENT_STAGE, STW_STREAM_COMPUTE, STW_TIER_GPU, STW_TIER_GPU,
           48 * MIB, program.n_ops - 1);
    program.movements[1] = (stw_movement){
        .phase = STW_PHASE_OPTIMIZER_STEP, .first_op = 1, .n_ops = program.n_ops - 1};
    program.n_movements = 2;
}

/* The simulated program as a parsed trace of two processes. */
static json_t *make_trace(void) {
    static const char *const names[] = {"rank0 (1)", "rank \"b\" (3)"};
    stw_sim *sim = NULL;
    stw_text out = STW_TEXT_INIT;
    build();
    CHECK_OK(stw_sim_run(&job, &program, &sim, err));
    if (sim == NULL) return NULL;
    for (uint32_t i = 0; i < program.n_ops; i++)
        events[i] = (stw_trace_event){i == 0 ? STW_PHASE_LOAD : STW_PHASE_OPTIMIZER_STEP, &ops[i],
                                      sim->ops[i].start_s, sim->ops[i].end_s};
    const stw_trace_event *lists[] = {events, events};
    const uint32_t counts[] = {program.n_ops, program.n_ops};
    CHECK_OK(stw_trace_to_json(2, names, lists, counts, &out, err));
    json_error_t problem;
    json_t *trace = json_loads(out.data, JSON_REJECT_DUPLICATES, &problem);
    if (trace == NULL) fprintf(stderr, "line %d: %s\n", problem.line, problem.text);
    CU_ASSERT_PTR_NOT_NULL(trace);
    stw_text_free(&out);
    stw_sim_free(sim);
    return trace;
}

static const char *text_of(const json_t *event, const char *key) {
    const char *text = json_string_value(json_object_get(event, key));
    return text != NULL ? text : "";
}
static long long pid_of(const json_t *event) {
    return json_integer_value(json_object_get(event, "pid"));
}
static long long tid_of(const json_t *event) {
    return json_integer_value(json_object_get(event, "tid"));
}
/* Whole nanoseconds: what the file states exactly. */
static long long ns_of(const json_t *event, const char *key) {
    return llround(json_number_value(json_object_get(event, key)) * 1000);
}

static void tracks_are_named(void) {
    json_t *trace = make_trace(), *event;
    size_t i, processes = 0, threads = 0;
    bool quoted = false, h2d = false, disk = false;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event) {
        const char *name =
            json_string_value(json_object_get(json_object_get(event, "args"), "name"));
        if (strcmp(text_of(event, "name"), "process_name") == 0) processes++;
        if (strcmp(text_of(event, "name"), "thread_name") == 0) threads++;
        if (name == NULL) continue;
        quoted |= strcmp(name, "rank \"b\" (3)") == 0;
        h2d |= strcmp(name, "h2d") == 0;
        disk |= strcmp(name, "disk") == 0;
    }
    CU_ASSERT_EQUAL(processes, 2);
    CU_ASSERT_EQUAL(threads, 2 * 4); /* phase, h2d, compute, d2h */
    CU_ASSERT(quoted && h2d && !disk);
    json_decref(trace);
}

static void slices_of_a_track_never_overlap(void) {
    json_t *trace = make_trace(), *event;
    long long ends[3][16] = {{0}};
    size_t i, slices = 0, phases = 0, longest = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event) {
        if (strcmp(text_of(event, "ph"), "X") != 0) continue;
        long long pid = pid_of(event), tid = tid_of(event);
        CU_ASSERT_FATAL(pid >= 1 && pid <= 2 && tid >= 1 && tid < 16);
        long long ts = ns_of(event, "ts"), dur = ns_of(event, "dur");
        CU_ASSERT(ts >= ends[pid][tid]);
        CU_ASSERT(dur >= 0);
        if (ts == ends[pid][tid] && tid > 1) longest++;
        ends[pid][tid] = ts + dur;
        if (tid == 1)
            phases++;
        else
            slices++;
    }
    CU_ASSERT_EQUAL(slices, 2 * 3 * BUCKETS);
    CU_ASSERT_EQUAL(phases, 2 * 2);
    CU_ASSERT(longest > 0); /* some do touch: rounding had its chance */
    json_decref(trace);
}

static void counters_follow_the_bytes(void) {
    json_t *trace = make_trace(), *event;
    long long last = 0, stage_most = 0, stage_last = -1, host_last = -1;
    size_t i, counters = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event) {
        if (strcmp(text_of(event, "ph"), "C") != 0 || pid_of(event) != 1) continue;
        json_t *args = json_object_get(event, "args");
        counters++;
        CU_ASSERT(ns_of(event, "ts") >= last);
        last = ns_of(event, "ts");
        if (strcmp(text_of(event, "name"), "gpu bytes") == 0) {
            stage_last = json_integer_value(json_object_get(args, "stage"));
            if (stage_last > stage_most) stage_most = stage_last;
            CU_ASSERT_PTR_NULL(json_object_get(args, "exp_avg"));
        } else {
            host_last = json_integer_value(json_object_get(args, "exp_avg"));
        }
    }
    CU_ASSERT_EQUAL(counters, 3);
    CU_ASSERT_EQUAL(stage_most, (long long)(48 * MIB));
    CU_ASSERT_EQUAL(stage_last, 0);
    CU_ASSERT_EQUAL(host_last, (long long)(BUCKETS * 16 * MIB));
    json_decref(trace);
}

static void slices_say_what_they_are(void) {
    json_t *trace = make_trace(), *event;
    size_t i;
    bool copy = false, update = false;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event) {
        json_t *args = json_object_get(event, "args");
        const char *name = text_of(event, "name");
        if (strcmp(name, "copy exp_avg 2") == 0) {
            copy = true;
            CU_ASSERT_STRING_EQUAL(text_of(event, "cat"), "optimizer_step");
            CU_ASSERT_STRING_EQUAL(text_of(args, "from"), "host");
            CU_ASSERT_EQUAL(json_integer_value(json_object_get(args, "bytes")),
                            (json_int_t)(16 * MIB));
            double rate = json_number_value(json_object_get(args, "GB/s"));
            CU_ASSERT(rate > 40 && rate < 55.4);
        }
        if (strcmp(name, "update 3") == 0) {
            update = true;
            CU_ASSERT_EQUAL(json_integer_value(json_object_get(args, "params")),
                            (json_int_t)(4 * MIB));
        }
    }
    CU_ASSERT(copy && update);
    json_decref(trace);
}

/* 2^63 ns are 292 years: a trace of something slower ends there. */
static void times_end_at_the_last_one(void) {
    static const double ends_s[] = {9.0e9, 9.3e9, 1e300};
    build();
    for (size_t i = 0; i < sizeof ends_s / sizeof ends_s[0]; i++) {
        stw_text out = STW_TEXT_INIT;
        const stw_trace_event event = {STW_PHASE_OPTIMIZER_STEP, &ops[2], 1, ends_s[i]};
        const stw_trace_event *list = &event;
        const char *name = "rank0";
        const uint32_t count = 1;
        CHECK_OK(stw_trace_to_json(1, &name, &list, &count, &out, err));
        CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "\"ts\":1000000.000,\"dur\":8999999999000000.000"));
        stw_text_free(&out);
    }
}

static void an_empty_trace_is_valid(void) {
    stw_text out = STW_TEXT_INIT;
    CHECK_OK(stw_trace_to_json(0, NULL, NULL, NULL, &out, err));
    json_t *trace = json_loads(out.data, 0, NULL);
    CU_ASSERT_EQUAL(json_array_size(json_object_get(trace, "traceEvents")), 0);
    CU_ASSERT_PTR_NOT_NULL(json_object_get(trace, "traceEvents"));
    json_decref(trace);
    stw_text_free(&out);
}

STW_TEST_MAIN("reports trace", {"tracks are named", tracks_are_named},
              {"slices of a track never overlap", slices_of_a_track_never_overlap},
              {"counters follow the bytes", counters_follow_the_bytes},
              {"slices say what they are", slices_say_what_they_are},
              {"times end at the last one", times_end_at_the_last_one},
              {"an empty trace is valid", an_empty_trace_is_valid})

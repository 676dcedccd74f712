/* SPDX-License-Identifier: Apache-2.0 */
/* Files that others wrote: which bytes and seconds are read from them, and what is refused. */
#include <math.h>
#include <string.h>

#include "core/file.h"
#include "plan/measured/recording.h"
#include "plan/measured/run_join.h"
#include "tests/unit/testing.h"

#define MIB(n) ((uint64_t)((n)*1048576.0))
#define GIB(n) ((uint64_t)((n)*1073741824.0))

static stw_run_result *read_text(const char *text) {
    stw_run_result *run = NULL;
    CHECK_OK(stw_measured_parse("file", text, strlen(text), &run, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(run);
    return run;
}

static stw_run_result *read_corpus(const char *name) {
    char path[512];
    stw_run_result *run = NULL;
    snprintf(path, sizeof path, STW_SOURCE_DIR "/tests/fuzz/corpus/measured/%s", name);
    CHECK_OK(stw_measured_read(path, &run, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(run);
    CU_ASSERT_STRING_EQUAL(run->source, "external");
    return run;
}

/* The highest bytes of a rank, as a peak or (`moment`) as what was seen once; 0: not read. */
static uint64_t peak(const stw_run_result *run, int32_t rank, stw_metric metric, bool moment) {
    for (uint32_t i = 0; i < run->n_peaks; i++)
        if (run->peaks[i].rank == rank && run->peaks[i].metric == metric &&
            run->peaks[i].at_moment == moment)
            return run->peaks[i].bytes;
    return 0;
}

static void check_refused(const char *text, int line, const char *said) {
    stw_run_result *run = NULL;
    stw_error e = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_measured_parse("file", text, strlen(text), &run, &e), STW_STATUS_BAD_INPUT);
    CU_ASSERT_STRING_EQUAL(e.where, "file");
    CU_ASSERT_EQUAL(e.line, line);
    if (strstr(e.text, said) == NULL) fprintf(stderr, "%s\n", e.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, said));
    stw_run_result_free(run);
}

/* "memory (MB) |" counts MiB since the job began; what the device has is its peak only where the
 * allocator holds what it held at most. */
static void memory_reports_of_ranks(void) {
    stw_run_result *run = read_corpus("megatron.log");
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_ALLOCATED, false), MIB(301.25));
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_RESERVED, false), MIB(410));
    CU_ASSERT_EQUAL(peak(run, 1, STW_METRIC_ALLOCATED, false), MIB(310.5));
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_DEVICE, true), MIB(1033));
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_DEVICE, false), 0);
    CU_ASSERT_EQUAL(peak(run, 1, STW_METRIC_DEVICE, false), MIB(1040));
    CU_ASSERT_EQUAL(run->iteration_s, 3.2105); /* the median of three */
    CU_ASSERT_STRING_EQUAL(run->peaks[0].from, "line 3, max allocated");
    stw_run_result_free(run);
}

static void lines_of_dictionaries(void) {
    stw_run_result *run = read_corpus("swift.jsonl");
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_RESERVED, false), (uint64_t)(33.07 * GIB(1) + 0.5));
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_ALLOCATED, false), 0);
    CU_ASSERT_EQUAL(run->iteration_s, 3.6); /* a mean since the start: the last one */
    stw_run_result_free(run);
    run = read_corpus("swift_console.log");
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_RESERVED, false), (uint64_t)(33.07 * GIB(1) + 0.5));
    CU_ASSERT_EQUAL(peak(run, STW_WORST_RANK, STW_METRIC_RESERVED, false), GIB(35.5));
    CU_ASSERT_STRING_EQUAL(run->peaks[0].from, "line 2, memory(GiB)");
    stw_run_result_free(run);
    run = read_text("{'memory(GiB)': 1.5, 'train_speed(iter/s)': 0.25}\n");
    CU_ASSERT_EQUAL(run->iteration_s, 4.0);
    stw_run_result_free(run);
}

static void metrics_of_steps(void) {
    static const char *const files[] = {"verl.log", "verl.jsonl"};
    for (int i = 0; i < 2; i++) {
        bool two = i == 0;
        stw_run_result *run = read_corpus(files[i]);
        CU_ASSERT_EQUAL(peak(run, STW_SOME_RANK, STW_METRIC_ALLOCATED, false),
                        two ? GIB(26.5) : GIB(25.5));
        CU_ASSERT_EQUAL(peak(run, STW_SOME_RANK, STW_METRIC_RESERVED, false),
                        two ? GIB(31.25) : GIB(30.25));
        CU_ASSERT_EQUAL(peak(run, STW_ALL_RANKS, STW_METRIC_HOST, false), GIB(101.5));
        CU_ASSERT_EQUAL(run->time_s[STW_PHASE_ROLLOUT], two ? 21.0 : 20.0);
        CU_ASSERT_DOUBLE_EQUAL(run->time_s[STW_PHASE_LOG_PROB], two ? 3.6 : 3.5, 1e-12);
        CU_ASSERT_EQUAL(run->train_s, two ? 12.5 : 12.0);
        CU_ASSERT_EQUAL(run->iteration_s, two ? 41.0 : 40.0);
        CU_ASSERT_TRUE(isnan(run->time_s[STW_PHASE_FORWARD_BACKWARD]));
        stw_run_result_free(run);
    }
}

static void moments(void) {
    stw_run_result *run = read_corpus("areal.log");
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_ALLOCATED, true), GIB(9.5));
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_RESERVED, true), GIB(25.75));
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_DEVICE, true), GIB(34.25));
    CU_ASSERT_EQUAL(run->n_peaks, 3);
    stw_run_result_free(run);
}

/* A key is a whole word: what another role or statistic is called is not taken. */
static void only_whole_keys(void) {
    stw_run_result *run = read_text("step:1 - critic/perf/max_memory_allocated_gb:9.0 - "
                                    "perf/max_memory_reserved_gb:2.0 - timing_s/gen_max:5\n");
    CU_ASSERT_EQUAL(run->n_peaks, 1);
    CU_ASSERT_EQUAL(run->peaks[0].bytes, GIB(2));
    CU_ASSERT_TRUE(isnan(run->time_s[STW_PHASE_ROLLOUT]));
    stw_run_result_free(run);
}

static void bad_logs(void) {
    check_refused("\n\n'memory(GiB)': nan\n", 3, "memory(GiB): found \"nan");
    check_refused("'memory(GiB)': 0x10\n", 1, "expected a number");
    check_refused("'memory(GiB)': 1e400\n", 1, "expected a number");
    check_refused("'memory(GiB)': 9e99\n", 1, "expected fewer bytes");
    check_refused("'memory(GiB)': -1\n", 1, "expected a number");
    check_refused("'memory(GiB)': 1,234.5\n", 1, "expected a number");
    check_refused("'memory(GiB)': 1_000\n", 1, "expected a number");
    check_refused("'memory(GiB)': 1.2.3\n", 1, "expected a number");
    check_refused("[Rank 4294967296] memory (MB) | max allocated: 1\n", 1, "number of a rank");
    check_refused("x memory (MB) | max allocated: 1\n", 1, "[Rank N]");
    check_refused("nothing to see\n", 0, "found no measured bytes");
    check_refused("", 0, "found no measured bytes");
    check_refused("timing_s/step:3.0\n", 0, "found no measured bytes");
}

/* Torch counts blocks of 512 B; the highest is in the middle of the history. */
static void memory_snapshots(void) {
    static const char *const files[] = {"snapshot_protocol2", "snapshot_protocol3",
                                        "snapshot_protocol4"};
    for (int i = 0; i < 3; i++) {
        stw_run_result *run = read_corpus(files[i]);
        CU_ASSERT_EQUAL(run->n_peaks, 2);
        CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_ALLOCATED, false), MIB(64) + 512);
        CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_RESERVED, false), MIB(84));
        CU_ASSERT_STRING_EQUAL(run->peaks[0].from, "device 0, 9 events");
        stw_run_result_free(run);
    }
    stw_run_result *run = read_corpus("snapshot_late");
    CU_ASSERT_EQUAL(peak(run, 1, STW_METRIC_ALLOCATED, true), MIB(36));
    CU_ASSERT_EQUAL(peak(run, 1, STW_METRIC_RESERVED, true), MIB(42));
    CU_ASSERT_EQUAL(run->n_peaks, 2);
    stw_run_result_free(run);
    run = read_corpus("snapshot_no_history");
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_RESERVED, true), MIB(10));
    stw_run_result_free(run);
}

/* The highest is a lower bound once an allocation failed; the first that did is told. */
static void failed_allocations(void) {
    stw_run_result *run = read_corpus("snapshot_oom");
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_ALLOCATED, true), MIB(80));
    CU_ASSERT_EQUAL(peak(run, 0, STW_METRIC_RESERVED, true), MIB(96));
    CU_ASSERT_TRUE(run->peaks[0].cut_short);
    CU_ASSERT_EQUAL_FATAL(run->n_ooms, 1);
    CU_ASSERT_EQUAL(run->ooms[0].rank, 0);
    CU_ASSERT_EQUAL(run->ooms[0].asked, MIB(2048));
    CU_ASSERT_EQUAL(run->ooms[0].allocated, MIB(64));
    CU_ASSERT_EQUAL(run->ooms[0].free, MIB(1024));
    CU_ASSERT_EQUAL(run->ooms[0].count, 2);
    CU_ASSERT_STRING_EQUAL(run->ooms[0].when, "2023-11-14T22:13:23Z");
    CU_ASSERT_STRING_EQUAL(run->ooms[0].from, "device 0, event 3 of 7");
    stw_run_result *log = read_text("'memory(GiB)': 1.5, 'global_step/max_steps': '1/2'\n");
    const stw_run_result *const runs[] = {log, run}, *const twice[] = {run, run};
    stw_run_result *joined = NULL;
    stw_error e = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_run_results_join(twice, 2, 2, &joined, &e), STW_STATUS_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "found rank 0"));
    log->peaks[0].rank = 1;
    CHECK_OK(stw_run_results_join(runs, 2, 2, &joined, err));
    CU_ASSERT_EQUAL_FATAL(joined->n_ooms, 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(joined->ooms[0].from, "snapshot_oom, device 0, event 3 of 7"));
    stw_run_result_free(joined);
    stw_run_result_free(log);
    stw_run_result_free(run);
}

static void check_hostile(const char *name, const char *said) {
    char path[512];
    stw_run_result *run = NULL;
    stw_error e = STW_ERROR_INIT;
    snprintf(path, sizeof path, STW_SOURCE_DIR "/tests/fuzz/corpus/measured/%s", name);
    CU_ASSERT_EQUAL(stw_measured_read(path, &run, &e), STW_STATUS_BAD_INPUT);
    if (strstr(e.text, said) == NULL) fprintf(stderr, "%s: %s\n", name, e.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, said));
    stw_run_result_free(run);
}

static void hostile_snapshots(void) {
    check_hostile("hostile_call", "found the opcode STACK_GLOBAL, which imports or calls");
    check_hostile("hostile_global", "byte 2: found the opcode GLOBAL");
    check_hostile("hostile_snapshot_cut", "the file ends");
    check_hostile("hostile_segment", "segments[0]: expected whole numbers");
    check_hostile("hostile_event", "device_traces[0]: expected a whole number as \"size\"");
    check_hostile("hostile_sum", "exceeds 63 bits");
    check_hostile("hostile_loop", "segments[0]: expected a member \"device\"");
}

static void samples_of_a_table(void) {
    stw_run_result *run = read_corpus("samples.csv");
    CU_ASSERT_EQUAL(run->ranks[0].phases[STW_PHASE_LOAD].device, GIB(1));
    CU_ASSERT_EQUAL(run->ranks[0].phases[STW_PHASE_FORWARD_BACKWARD].allocated, GIB(5));
    CU_ASSERT_EQUAL(run->n_peaks, 0);
    stw_run_result_free(run);
#define HEAD "time,rank,phase,metric,bytes\n"
    check_refused(HEAD "0x10,0,load\n", 2, "time: found \"0x10\"");
    check_refused(HEAD "-1,0,load\n", 2, "time: found \"-1\"");
    check_refused(HEAD "inf,0,load\n", 2, "time: found \"inf\"");
    run = read_text(HEAD "1.5e9,0,load\n1.6e9,0,,device,7\n");
    CU_ASSERT_EQUAL(run->ranks[0].phases[STW_PHASE_LOAD].device, 7);
    stw_run_result_free(run);
}

/* Both files call their node 0; two ranks a node make rank 2 one of node 1. */
static void files_of_nodes(void) {
    stw_run_result *a = read_text(HEAD "1,0,load\n2,0,,device,7\n2,1,load,device,8\n3,,,host,100\n"
                                       "4,0,end\n");
    stw_run_result *b = read_text(HEAD "1,2,load\n2,2,,device,9\n3,,,host,200\n7,2,end\n");
    stw_run_result *log = read_text("'memory(GiB)': 1.5, 'global_step/max_steps': '1/2'\n");
    const stw_run_result *const runs[] = {a, b, log};
    stw_run_result *joined = NULL;
    CHECK_OK(stw_run_results_join(runs, 3, 2, &joined, err));
    CU_ASSERT_EQUAL(joined->n_ranks, 3); /* the log's rank 0 has no phases */
    CU_ASSERT_EQUAL(joined->n_nodes, 2);
    CU_ASSERT_EQUAL(peak(joined, 0, STW_METRIC_RESERVED, false), GIB(1.5));
    stw_run_result_free(joined);
    stw_run_result_free(log);
    CHECK_OK(stw_run_results_join(runs, 2, 2, &joined, err));
    CU_ASSERT_EQUAL_FATAL(joined->n_ranks, 3);
    CU_ASSERT_EQUAL(joined->ranks[2].rank, 2);
    CU_ASSERT_EQUAL(joined->ranks[2].node, 1);
    CU_ASSERT_EQUAL(joined->ranks[2].phases[STW_PHASE_LOAD].device, 9);
    CU_ASSERT_EQUAL_FATAL(joined->n_nodes, 2);
    CU_ASSERT_EQUAL(joined->nodes[1].node, 1);
    CU_ASSERT_EQUAL(joined->nodes[1].host[STW_PHASE_LOAD], 200);
    CU_ASSERT_EQUAL(joined->time_s[STW_PHASE_LOAD], 6.0); /* the slowest */
    stw_run_result_free(joined);
    const stw_run_result *const twice[] = {a, a};
    stw_error e = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_run_results_join(twice, 2, 2, &joined, &e), STW_STATUS_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "found rank 0, which file has too"));
    stw_run_result_free(a);
    stw_run_result_free(b);
}

/* What was sampled as rank 0 ended before rank 0 marked anything, and the node went on: the shell
 * that started it, not the rank. */
static void ended_before_its_marks(void) {
    stw_run_result *run = read_text("time,rank,phase,metric,bytes\n"
                                    "1,,,host,9000000\n1,0,,host,3000000\n1,1,,host,5000000\n"
                                    "2,0,load,,\n2,1,load,,\n"
                                    "3,,,host,90000000\n3,1,,host,50000000\n");
    CU_ASSERT_EQUAL(run->n_ranks, 2);
    CU_ASSERT_FALSE(run->ranks[0].phases[STW_PHASE_LOAD].known);
    CU_ASSERT_EQUAL(run->ranks[0].phases[STW_PHASE_LOAD].host, 0);
    CU_ASSERT_EQUAL(run->ranks[1].phases[STW_PHASE_LOAD].host, 50000000);
    CU_ASSERT_EQUAL(run->nodes[0].host[STW_PHASE_LOAD], 90000000);
    stw_run_result_free(run);
}

STW_TEST_MAIN("plan recording", {"memory reports of ranks", memory_reports_of_ranks},
              {"lines of dictionaries", lines_of_dictionaries},
              {"metrics of steps", metrics_of_steps}, {"moments", moments},
              {"only whole keys", only_whole_keys}, {"bad logs", bad_logs},
              {"memory snapshots", memory_snapshots}, {"failed allocations", failed_allocations},
              {"hostile snapshots", hostile_snapshots}, {"samples of a table", samples_of_a_table},
              {"files of nodes", files_of_nodes},
              {"a process that ended before its marks is no rank", ended_before_its_marks})

/* SPDX-License-Identifier: Apache-2.0 */
/* A calibration's arithmetic. Work takes the time that this test says, on a clock of its own: every
 * rate, sample and position is known beforehand. The linker hands the calls below to this test
 * (--wrap). */
#define _GNU_SOURCE /* CPU_SET */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backend/host/kernels.h"
#include "backend/nvme/names.h"
#include "backend/nvme/nvme.h"
#include "backend/readers.h"
#include "core/progress.h"
#include "tests/unit/probe_case.h"

/* ---- the machine: so many units per second ---- */

#define ADAMW_PPS 1.25e9
#define RING_PPS 2.5e9
#define NORM_PPS 5e9
#define MOVE_BPS 4e9 /* of a pool of threads */
#define READ_BPS 2e9 /* of the disk */
#define WRITE_BPS 1e9
#define SYNC_S 0.25

static atomic_uint updates, norms; /* calls */
static float *places[16][4];       /* of the first buckets */
static uint64_t sizes[16];
static double slow[STW_PROBE_MOST_TEAMS]; /* of a team, times as slow */
static double unsteady;                   /* times as slow with every update */
static stw_probe_teams *watched;
static uint64_t ring_n; /* parameters of a ring's bucket, 0: none */

static double slowness(const stw_threads *threads) {
    for (uint32_t t = 0; watched != NULL && t < watched->n; t++)
        if (watched->team[t].threads == threads && slow[t] > 0) return slow[t];
    return 1;
}

void __wrap_stw_host_adamw(stw_threads *threads, const stw_adamw *adamw, float factor,
                           const stw_element_types *types, const stw_host_bucket *bucket);
void __wrap_stw_host_adamw(stw_threads *threads, const stw_adamw *adamw, float factor,
                           const stw_element_types *types, const stw_host_bucket *bucket) {
    const unsigned i = atomic_fetch_add(&updates, 1);
    (void)factor;
    CU_ASSERT_EQUAL(types->params, STW_ELEMENT_F32);
    CU_ASSERT_EQUAL(adamw->clip, 0);
    if (i < 16) {
        places[i][0] = bucket->params;
        places[i][1] = (float *)(uintptr_t)bucket->grads;
        places[i][2] = bucket->exp_avg;
        places[i][3] = bucket->exp_avg_sq;
        sizes[i] = bucket->n;
    }
    clock_s += (double)bucket->n / (bucket->n == ring_n ? RING_PPS : ADAMW_PPS) *
               slowness(threads) * (1 + unsteady * i);
}

void __wrap_stw_host_norm_add(stw_threads *threads, const void *grads, stw_element type, uint64_t n,
                              stw_norm_bins *bins);
void __wrap_stw_host_norm_add(stw_threads *threads, const void *grads, stw_element type, uint64_t n,
                              stw_norm_bins *bins) {
    (void)bins;
    CU_ASSERT_EQUAL(type, STW_ELEMENT_F32);
    CU_ASSERT_NOT_EQUAL(((const float *)grads)[n - 1], 0.0f); /* it is there, and filled */
    atomic_fetch_add(&norms, 1);
    clock_s += (double)n / NORM_PPS * slowness(threads);
}

void __real_stw_threads_for(stw_threads *threads, uint64_t n, uint64_t grain, stw_threads_fn fn,
                            void *arg);
void __wrap_stw_threads_for(stw_threads *threads, uint64_t n, uint64_t grain, stw_threads_fn fn,
                            void *arg);
void __wrap_stw_threads_for(stw_threads *threads, uint64_t n, uint64_t grain, stw_threads_fn fn,
                            void *arg) {
    clock_s += (double)n / MOVE_BPS * slowness(threads);
    __real_stw_threads_for(threads, n, grain, fn, arg);
}

/* Cores 0 to 9, on the NUMA nodes that `nodes` says; NULL: as the system has them. */
static const char *const *nodes;
int __real_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set) {
    CPU_ZERO(set);
    for (unsigned i = 0; i < 10; i++) CPU_SET(i, set);
    return nodes != NULL ? 0 : __real_sched_getaffinity(pid, bytes, set);
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode) {
    unsigned node = 0;
    if (nodes == NULL || sscanf(path, "/sys/devices/system/node/node%u/cpulist", &node) != 1)
        return __real_fopen(path, mode);
    if (node > 3 || nodes[node] == NULL) return NULL;
    return fmemopen((void *)(uintptr_t)nodes[node], strlen(nodes[node]), "r");
}

static stw_probe probe_of(stw_probe_depth depth, stw_samples *samples) {
    clock_s = 0;
    return (stw_probe){.depth = depth,
                       .nvme_folder = "folder",
                       .room_bytes = 8 * GIB,
                       .most_bytes = 32 * MIB,
                       .time_scale = 1,
                       .samples = samples};
}

/* ---- time and samples ---- */

static void time_is_shared_out(void) {
    stw_probe p = probe_of(STW_PROBE_QUICK, NULL), full = probe_of(STW_PROBE_FULL, NULL);
    p.time_scale = full.time_scale = 0.5;
    CU_ASSERT_EQUAL(stw_probe_seconds(&p, 2, 8), 1);
    CU_ASSERT_EQUAL(stw_probe_seconds(&full, 2, 8), 4);
    p.start_s = full.start_s = 3;
    clock_s = 13;
    CU_ASSERT_EQUAL(stw_probe_seconds_left(&p, 1, 100), 0.5 * 6); /* of 16 s */
    CU_ASSERT_EQUAL(stw_probe_seconds_left(&p, 1, 5), 0.5 * 5);
    CU_ASSERT_EQUAL(stw_probe_seconds_left(&p, 7, 9), 0.5 * 7);
    CU_ASSERT_EQUAL(stw_probe_seconds_left(&full, 1, 1000), 0.5 * 160); /* of 170 s */
    CU_ASSERT_TRUE(stw_probe_has_time(&p));
    clock_s = 14.999;
    CU_ASSERT_TRUE(stw_probe_has_time(&p));
    clock_s = 15;
    CU_ASSERT_FALSE(stw_probe_has_time(&p));
    clock_s = 142.999;
    CU_ASSERT_TRUE(stw_probe_has_time(&full));
    clock_s = 143;
    CU_ASSERT_FALSE(stw_probe_has_time(&full));
    CU_ASSERT_EQUAL(stw_probe_three_digits(1.23456e9), 1.23e9);
    CU_ASSERT_EQUAL(stw_probe_three_digits(0), 0);
}

static char phase_text[120];
static uint64_t phase_total, phase_done;
static stw_progress_unit phase_unit;
void __wrap_stw_progress_phase(const char *what, stw_progress_unit unit, uint64_t total);
void __wrap_stw_progress_phase(const char *what, stw_progress_unit unit, uint64_t total) {
    snprintf(phase_text, sizeof phase_text, "%s", what);
    phase_unit = unit;
    phase_total = total;
}
void __wrap_stw_progress_add(uint64_t count);
static uint64_t progress[60];
static unsigned n_progress;
void __wrap_stw_progress_add(uint64_t count) {
    phase_done = count;
    if (n_progress < 60) progress[n_progress++] = count;
}

/* The shares of its part that were drawn since n_progress was 0. */
static void check_progress(const stw_probe *p, stw_probe_part part, const double *shares,
                           unsigned n) {
    unsigned wrong = n_progress != n;
    for (unsigned i = 0; i < n && wrong == 0; i++) {
        const uint64_t drawn = progress[i];
        stw_probe_progress(p, part, shares[i], "");
        wrong += phase_done != drawn;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    n_progress = 0;
}

static void progress_is_of_the_whole(void) {
    static const double quick[] = {6, 1, 1, 2, 1, 3, 1, 2, 2, 8, 0},
                        full[] = {16, 2, 8, 10, 4, 12, 16, 14, 5, 30, 60};
    for (unsigned gpus = 0; gpus < 4; gpus++)
        for (int is_full = 0; is_full < 2; is_full++) {
            const double *s = is_full ? full : quick;
            double all = 0, before = 0;
            stw_probe p = probe_of(is_full ? STW_PROBE_FULL : STW_PROBE_QUICK, NULL);
            p.gpus = gpus;
            const unsigned first = gpus == 0 ? 7 : gpus == 1 ? 1 : 0;
            for (unsigned i = first; i < STW_N_PROBE_PARTS; i++) all += s[i];
            for (unsigned i = first; i < STW_N_PROBE_PARTS; i++) {
                stw_probe_progress(&p, (stw_probe_part)i, 0.25, "work");
                CU_ASSERT_EQUAL(phase_done, (uint64_t)(1000 * (before + 0.25 * s[i]) / all));
                before += s[i];
            }
            stw_probe_progress(&p, STW_PROBE_PART_TORCH, 1, "work");
            CU_ASSERT_EQUAL(phase_done, 1000);
        }
    CU_ASSERT_STRING_EQUAL(phase_text, "calibrating, work");
    CU_ASSERT_EQUAL(phase_unit, STW_PROGRESS_SHARE);
    CU_ASSERT_EQUAL(phase_total, 1000);
}

static void rates_that_vary_are_warned_of(void) {
    stw_samples samples = STW_SAMPLES_INIT;
    stw_probe p = probe_of(STW_PROBE_QUICK, &samples);
    stw_sample s = stw_sample_make("rate", "of this", "B/s");
    const double values[] = {4321, 1000, 9000};
    for (int i = 0; i < 3; i++) stw_sample_add(&s, values[i]);
    logged[0] = '\0';
    stw_log_set(keep_log, NULL);
    CU_ASSERT_EQUAL(stw_probe_keep(&p, &s), 4320);
    CU_ASSERT_STRING_EQUAL(logged, "");
    CU_ASSERT_EQUAL(stw_probe_keep_rate(&p, &s), 4320);
    CU_ASSERT_STRING_EQUAL(logged,
                           "rate (of this) varied between 1e+03 and 9e+03 B/s: something else was "
                           "at work on this machine; calibrate again before you count on it\n");
    logged[0] = '\0';
    p.time_scale = 0.5; /* measurements that are too short for that */
    CU_ASSERT_EQUAL(stw_probe_keep_rate(&p, &s), 4320);
    p.time_scale = 1;
    s.n = 2;
    CU_ASSERT_EQUAL(stw_probe_keep_rate(&p, &s), stw_probe_three_digits((1000 + 4321) / 2.0));
    stw_log_set(NULL, NULL);
    CU_ASSERT_STRING_EQUAL(logged, "");
    CU_ASSERT_EQUAL(samples.n, 4);
    stw_samples_free(&samples);
}

/* ---- the CPU ---- */

static void memory_is_bounded(void) {
    stw_probe quick = probe_of(STW_PROBE_QUICK, NULL), full = probe_of(STW_PROBE_FULL, NULL);
    quick.room_bytes = full.room_bytes = quick.most_bytes = full.most_bytes = 1ull << 60;
    CU_ASSERT_EQUAL(stw_probe_cpu_bytes(&quick, 1, 1), 512 * MIB);
    CU_ASSERT_EQUAL(stw_probe_cpu_bytes(&quick, 3, 1), 768 * MIB);
    CU_ASSERT_EQUAL(stw_probe_cpu_bytes(&quick, 100, 1), 4 * GIB);
    CU_ASSERT_EQUAL(stw_probe_cpu_bytes(&full, 1, 1), 2 * GIB);
    CU_ASSERT_EQUAL(stw_probe_cpu_bytes(&full, 5, 1), 5 * 512 * MIB);
    CU_ASSERT_EQUAL(stw_probe_cpu_bytes(&full, 100, 1), 8 * GIB);
    full.room_bytes = 9 * MIB;
    CU_ASSERT_EQUAL(stw_probe_cpu_bytes(&full, 100, 3), 3 * MIB);
    full.most_bytes = 2 * MIB;
    CU_ASSERT_EQUAL(stw_probe_cpu_bytes(&full, 100, 3), 2 * MIB);
    stw_cluster c = {.host = {.cache_bytes = 0}};
    stw_probe_teams teams = {.n = 2, .params = 1ull << 40};
    CU_ASSERT_EQUAL(stw_probe_ring_bucket(&c, &teams), 2 * MIB);
    c.host.cache_bytes = 96 * 100000 * 2 + 5; /* a quarter in 3 slots of two fp32 arrays, twice */
    CU_ASSERT_EQUAL(stw_probe_ring_bucket(&c, &teams), 100000 / 1024 * 1024);
    teams.params = 10240 * 4; /* a slot more than the ring has */
    CU_ASSERT_EQUAL(stw_probe_ring_bucket(&c, &teams), 10240);
}

/* Cores and threads of all teams, "4: 0 1 2 3; ..." */
static const char *teams_of(uint32_t cores, uint32_t ranks) {
    static char text[400];
    stw_probe_teams *teams = calloc(1, sizeof *teams);
    size_t used = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(teams);
    CHECK_OK(stw_probe_teams_open(cores, ranks, 16 * MIB * 8, teams, err));
    CU_ASSERT_EQUAL(teams->params, 8 / teams->n * MIB);
    used += (size_t)snprintf(text, sizeof text, "%u", teams->ranks);
    for (uint32_t t = 0; t < teams->n; t++) {
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "; %u:", stw_threads_count(teams->team[t].threads));
        for (uint32_t i = 0; i < teams->team[t].cpus.n; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, " %u",
                                     teams->team[t].cpus.cpu[i]);
    }
    stw_probe_teams_close(teams);
    free(teams);
    return text;
}

static void teams_are_of_nodes_or_ranks(void) {
    static const char *const three[] = {"0-3\n", NULL, "5,4\n", "7-8,1000-1010,9"},
                             *const two[] = {"0-3\n", NULL, "6-9\n", "20-30\n"},
                             *const odd[] = {"0-x\n", "4", "", "x1\n"}, *const none[4] = {NULL};
    nodes = three;
    CU_ASSERT_STRING_EQUAL(teams_of(10, 0), "0; 4: 0 1 2 3; 2: 5 4; 3: 7 8 9");
    CU_ASSERT_STRING_EQUAL(teams_of(9, 1), "0; 4: 0 1 2 3; 2: 5 4; 3: 7 8 9");
    CU_ASSERT_STRING_EQUAL(teams_of(5, 1), "0; 2: 0 1 2 3; 1: 5 4; 1: 7 8 9"); /* a quota */
    CU_ASSERT_STRING_EQUAL(teams_of(1, 1), "0; 1: 0 1 2 3; 1: 5 4; 1: 7 8 9");
    CU_ASSERT_STRING_EQUAL(teams_of(9, 9), "0; 4: 0 1 2 3; 2: 5 4; 3: 7 8 9"); /* 2 for 3 */
    CU_ASSERT_STRING_EQUAL(teams_of(9, 6), "6; 2: 0 1; 2: 2 3; 1: 5; 1: 4; 1: 7; 1: 8");
    nodes = two;
    CU_ASSERT_STRING_EQUAL(teams_of(8, 2), "0; 4: 0 1 2 3; 4: 6 7 8 9");
    CU_ASSERT_STRING_EQUAL(teams_of(8, 3), "0; 4: 0 1 2 3; 4: 6 7 8 9");
    CU_ASSERT_STRING_EQUAL(teams_of(8, 4), "4; 2: 0 1; 2: 2 3; 2: 6 7; 2: 8 9");
    CU_ASSERT_STRING_EQUAL(teams_of(8, 8), "8; 1: 0; 1: 1; 1: 2; 1: 3; 1: 6; 1: 7; 1: 8; 1: 9");
    CU_ASSERT_STRING_EQUAL(teams_of(8, 18), "0; 4: 0 1 2 3; 4: 6 7 8 9");
    nodes = odd;
    CU_ASSERT_STRING_EQUAL(teams_of(8, 1), "0; 1: 0; 1: 4");
    nodes = none;
    CU_ASSERT_STRING_EQUAL(teams_of(10, 1), "0; 10: 0 1 2 3 4 5 6 7 8 9");
    CU_ASSERT_STRING_EQUAL(teams_of(10, 2), "2; 5: 0 1 2 3 4; 5: 5 6 7 8 9");
    nodes = NULL;
}

static stw_probe_teams *open_teams(uint32_t ranks) {
    stw_probe_teams *teams = calloc(1, sizeof *teams);
    CU_ASSERT_PTR_NOT_NULL_FATAL(teams);
    CHECK_OK(stw_probe_teams_open(4, ranks, 64 * MIB, teams, err));
    for (int t = 0; t < STW_PROBE_MOST_TEAMS; t++) slow[t] = 0;
    watched = teams;
    updates = norms = 0;
    return teams;
}

static void close_teams(stw_probe_teams *teams) {
    watched = NULL;
    stw_probe_teams_close(teams);
    free(teams);
}

static void teams_work_at_once(void) {
    static const char *const two[] = {"0-1\n", "2-3\n", NULL, NULL};
    nodes = two;
    stw_probe_teams *teams = open_teams(0);
    CU_ASSERT_EQUAL_FATAL(teams->n, 2);
    CU_ASSERT_EQUAL(teams->params, 2 * MIB);
    slow[1] = 2;
    CU_ASSERT_TRUE(near(stw_probe_teams_run(teams, STW_PROBE_ADAMW, 0), 1.5 * ADAMW_PPS));
    CU_ASSERT_EQUAL(updates, 4); /* one that does not count, one that does */
    CU_ASSERT_TRUE(near(stw_probe_teams_run(teams, STW_PROBE_NORM, 0), 1.5 * NORM_PPS));
    CU_ASSERT_EQUAL(norms, 4);
    float *first = teams->team[0].memory, *moments = stw_probe_array(&teams->team[0], 2 * MIB, 2);
    for (uint64_t i = 0; i < 4 * MIB; i++) moments[i] = (float)i;
    CU_ASSERT_TRUE(near(stw_probe_teams_run(teams, STW_PROBE_COPY, 0), 1.5 * 2 * MOVE_BPS));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < 4 * MIB; i++) wrong += first[i] != (float)i;
    CU_ASSERT_EQUAL(wrong, 0);
    updates = 0; /* passes of 2 Mi at ADAMW_PPS: so many begin within a tenth of a second */
    slow[1] = 1;
    const double pass_s = 2.0 * MIB / ADAMW_PPS;
    CU_ASSERT_TRUE(near(stw_probe_teams_run(teams, STW_PROBE_ADAMW, 0.1), 2 * ADAMW_PPS));
    CU_ASSERT_EQUAL(updates, 2 * (1 + (unsigned)ceil(0.1 / pass_s)));
    close_teams(teams);
    teams = open_teams(4); /* ranks: as slow as the slowest */
    CU_ASSERT_EQUAL_FATAL(teams->n, 4);
    slow[2] = 4;
    CU_ASSERT_TRUE(near(stw_probe_teams_run(teams, STW_PROBE_ADAMW, 0), ADAMW_PPS));
    CU_ASSERT_TRUE(near(stw_probe_teams_run(teams, STW_PROBE_COPY, 0), 3.25 * 2 * MOVE_BPS));
    close_teams(teams);
    nodes = NULL;
}

/* A ring of the caller's: slots far away, in which work takes no time of the CPU's. */
static float outside[STW_PROBE_RING_SLOTS][8];
static unsigned begun, finished;
static float *begin(void *user, uint32_t team, uint32_t slot) {
    CU_ASSERT_PTR_EQUAL(user, &begun);
    CU_ASSERT_EQUAL(team, 0);
    CU_ASSERT_EQUAL(slot, begun % STW_PROBE_RING_SLOTS);
    CU_ASSERT_EQUAL(begun, finished);
    begun++;
    clock_s += 7;
    return outside[slot];
}
static void finish(void *user, uint32_t team, uint32_t slot) {
    (void)user;
    CU_ASSERT_EQUAL(team, 0);
    CU_ASSERT_EQUAL(slot, finished % STW_PROBE_RING_SLOTS);
    finished++;
    clock_s += 7;
}

static void buckets_go_through_rings(void) {
    static const char *const one[] = {"0\n", NULL, NULL, NULL};
    const stw_probe_ring ring = {&begun, begin, finish};
    nodes = one;
    stw_probe_teams *teams = open_teams(0);
    CU_ASSERT_EQUAL_FATAL(teams->params, 4 * MIB);
    teams->bucket = ring_n = MIB - 1024;
    CU_ASSERT_TRUE(near(stw_probe_teams_run(teams, STW_PROBE_RING, 0), RING_PPS));
    CU_ASSERT_EQUAL(updates, 8); /* whole buckets alone */
    float *array[4];
    for (unsigned a = 0; a < 4; a++) array[a] = stw_probe_array(&teams->team[0], 4 * MIB, a);
    for (unsigned i = 0; i < 8; i++) {
        CU_ASSERT_EQUAL(sizes[i], ring_n);
        CU_ASSERT_PTR_EQUAL(places[i][0], array[0] + i % 3 * ring_n);
        CU_ASSERT_PTR_EQUAL(places[i][1], array[1] + i % 3 * ring_n);
        CU_ASSERT_PTR_EQUAL(places[i][2], array[2] + i % 4 * ring_n);
        CU_ASSERT_PTR_EQUAL(places[i][3], array[3] + i % 4 * ring_n);
    }
    teams->ring = &ring;
    updates = 0;
    CU_ASSERT_TRUE(near(stw_probe_teams_run(teams, STW_PROBE_RING, 0), RING_PPS));
    CU_ASSERT_EQUAL(begun, 8);
    CU_ASSERT_EQUAL(finished, 8);
    CU_ASSERT_PTR_EQUAL(places[4][0], outside[1]);
    CU_ASSERT_PTR_EQUAL(places[4][1], outside[1] + ring_n);
    CU_ASSERT_PTR_EQUAL(places[4][2], array[2]);
    teams->ring = NULL;
    updates = 0;
    teams->bucket = MIB; /* the last bucket ends where the arrays do */
    ring_n = 0;
    CU_ASSERT_TRUE(near(stw_probe_teams_run(teams, STW_PROBE_RING, 0), ADAMW_PPS));
    CU_ASSERT_EQUAL(updates, 8);
    CU_ASSERT_TRUE(stw_probe_teams_run(teams, STW_PROBE_ADAMW, 0) > 0);
    CU_ASSERT_EQUAL(sizes[8], 4 * MIB);
    for (unsigned a = 0; a < 4; a++) CU_ASSERT_PTR_EQUAL(places[8][a], array[a]);
    close_teams(teams);
    nodes = NULL;
}

static stw_cluster host_of(uint32_t cores) {
    stw_cluster c = {.host = {.cores = cores, .cache_bytes = 0}};
    return c;
}

static void the_cpu_is_measured(void) {
    static const char *const one[] = {"0-3\n", NULL, NULL, NULL};
    stw_samples samples = STW_SAMPLES_INIT;
    stw_probe p = probe_of(STW_PROBE_QUICK, &samples);
    stw_cluster c = host_of(3);
    nodes = one;
    watched = NULL;
    ring_n = MIB / 2; /* 2 Mi of parameters, a slot more than the ring has */
    logged[0] = '\0';
    stw_log_set(keep_log, NULL);
    n_progress = 0;
    stw_probe_host(&p, &c);
    const double drawn[] = {0, 0.1, 0.14, 0.1 + 0.04 * 2, 0.1 + 0.04 * 3, 0.1 + 0.04 * 4, 0.9};
    check_progress(&p, STW_PROBE_PART_CPU, drawn, 7);
    CU_ASSERT_STRING_EQUAL(logged, "");
    CU_ASSERT_STRING_EQUAL(list_of(&samples),
                           "cpu_adamw | 3 threads, 1 NUMA node | param/s | 5\n"
                           "cpu_adamw_ring | 3 threads, 1 NUMA node | param/s | 5\n"
                           "host memory, CPU | 3 threads, 1 NUMA node | B/s | 5\n"
                           "host copy, CPU | 3 threads, 1 NUMA node | B/s | 5\n"
                           "cpu_norm | 3 threads, 1 NUMA node | grad/s | 3\n");
    CU_ASSERT_TRUE(all_are(&samples, "cpu_adamw", ADAMW_PPS));
    CU_ASSERT_TRUE(all_are(&samples, "cpu_adamw_ring", RING_PPS));
    CU_ASSERT_TRUE(all_are(&samples, "host memory, CPU", 28 * ADAMW_PPS));
    CU_ASSERT_TRUE(all_are(&samples, "host copy, CPU", 2 * MOVE_BPS));
    CU_ASSERT_TRUE(all_are(&samples, "cpu_norm", NORM_PPS));
    CU_ASSERT_EQUAL(c.cpu_adamw_pps, ADAMW_PPS);
    CU_ASSERT_EQUAL(c.cpu_adamw_ring_pps, RING_PPS);
    CU_ASSERT_EQUAL(c.cpu_norm_pps, NORM_PPS);
    CU_ASSERT_EQUAL(c.host.bandwidth_bps, 28 * ADAMW_PPS); /* more than copies reach */
    CU_ASSERT_EQUAL(c.host.file_read_bps, 0);
    stw_samples_free(&samples);

    /* With threads; what GPUs have measured already stays; a ring is never slower. */
    stw_samples more = STW_SAMPLES_INIT;
    p = probe_of(STW_PROBE_FULL, &more);
    p.most_bytes = 64 * MIB;
    ring_n = MIB;
    c = host_of(4);
    c.host.bandwidth_bps = 5;
    c.gpus = 2;
    stw_probe_host(&p, &c);
    CU_ASSERT_STRING_EQUAL(list_of(&more), "cpu_adamw | 4 threads, 2 ranks | param/s | 7\n"
                                           "cpu_adamw_ring | 4 threads, 2 ranks | param/s | 7\n"
                                           "host memory, CPU | 4 threads, 2 ranks | B/s | 7\n"
                                           "host copy, CPU | 4 threads, 2 ranks | B/s | 7\n"
                                           "cpu_adamw | 1 thread of one NUMA node | param/s | 3\n"
                                           "cpu_norm | 4 threads, 2 ranks | grad/s | 5\n");
    CU_ASSERT_EQUAL(c.cpu_adamw_pps, 2 * ADAMW_PPS);
    CU_ASSERT_EQUAL(c.cpu_adamw_ring_pps, 2 * ADAMW_PPS); /* no bucket of ring_n here */
    CU_ASSERT_EQUAL(c.host.bandwidth_bps, 5);
    stw_samples_free(&more);
    stw_samples scaling = STW_SAMPLES_INIT;
    p = probe_of(STW_PROBE_FULL, &scaling);
    c = host_of(4);
    c.cpu_adamw_ring_pps = 6;
    stw_probe_host(&p, &c);
    CU_ASSERT_EQUAL(c.cpu_adamw_ring_pps, 6);
    CU_ASSERT_PTR_NOT_NULL(stw_samples_find(&scaling, "cpu_adamw", "1 thread of one NUMA node"));
    CU_ASSERT_PTR_NOT_NULL(stw_samples_find(&scaling, "cpu_adamw", "2 threads of one NUMA node"));
    CU_ASSERT_PTR_NULL(stw_samples_find(&scaling, "cpu_adamw", "4 threads of one NUMA node"));
    stw_samples_free(&scaling);

    /* Values that do not agree are taken again while there is time; and said. */
    for (int late = 0; late < 2; late++) {
        stw_samples again = STW_SAMPLES_INIT;
        p = probe_of(STW_PROBE_QUICK, &again);
        unsteady = 0.1;
        updates = 0;
        clock_s = late ? 16 : 15.9;
        c = host_of(1);
        logged[0] = '\0';
        stw_probe_host(&p, &c);
        CU_ASSERT_EQUAL(stw_samples_find(&again, "cpu_adamw", NULL)->n, late ? 5 : 10);
        stw_samples_free(&again);
    }
    unsteady = 0;
    /* No room: said, and nothing is changed. */
    stw_samples none = STW_SAMPLES_INIT;
    p = probe_of(STW_PROBE_QUICK, &none);
    p.room_bytes = 15 * MIB;
    c = host_of(3);
    logged[0] = '\0';
    stw_probe_host(&p, &c);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, "the CPU is not measured, or not completely"));
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, "takes at least 16 MiB"));
    CU_ASSERT_EQUAL(none.n, 0);
    CU_ASSERT_EQUAL(c.cpu_adamw_pps, 0);
    stw_log_set(NULL, NULL);
    nodes = NULL;
}

/* ---- files in the page cache ---- */

static atomic_ullong read_bytes, read_end;
static atomic_int reads_fail;
ssize_t __real_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset) {
    if (reads_fail) return -1;
    if (bytes > 100000) bytes = 100000; /* a call may give less than was asked for */
    atomic_fetch_add(&read_bytes, bytes);
    const uint64_t end = (uint64_t)offset + bytes;
    for (unsigned long long was = read_end; end > was;)
        if (atomic_compare_exchange_strong(&read_end, &was, end)) break;
    return __real_pread(file, to, bytes, offset);
}

static void files_are_read(void) {
    char expected[200];
    stw_samples samples = STW_SAMPLES_INIT;
    stw_probe p = probe_of(STW_PROBE_QUICK, &samples);
    stw_cluster c = host_of(4);
    const uint32_t cores = stw_threads_cores();
    p.most_bytes = 48 * MIB;
    p.time_scale = 0.1;
    watched = NULL;
    read_bytes = read_end = n_progress = 0;
    stw_probe_files(&p, &c);
    check_progress(&p, STW_PROBE_PART_FILES, &(double){0}, 1);
    snprintf(expected, sizeof expected, "file read | page-cached, 1 rank of %u threads | B/s | 3\n",
             stw_reader_threads(cores, 1));
    CU_ASSERT_STRING_EQUAL(list_of(&samples), expected);
    CU_ASSERT_TRUE(all_are(&samples, "file read", MOVE_BPS));
    CU_ASSERT_EQUAL(c.host.file_read_bps, MOVE_BPS);
    CU_ASSERT_EQUAL(c.host.file_read_rank_bps, MOVE_BPS);
    /* One piece, then three times so many as begin within 0.01 s: 16 MiB take 4 ms. */
    CU_ASSERT_EQUAL(read_bytes, (1 + 3 * 3) * 16 * MIB);
    CU_ASSERT_EQUAL(read_end, 48 * MIB); /* all of the file, and nothing else */
    stw_samples_free(&samples);

    stw_samples two = STW_SAMPLES_INIT;
    p.samples = &two;
    p.depth = STW_PROBE_FULL;
    p.most_bytes = 70 * MIB; /* two parts of 32 MiB */
    c = host_of(4);
    c.gpus = 2;
    read_end = 0;
    stw_probe_files(&p, &c);
    snprintf(expected, sizeof expected,
             "file read | page-cached, 1 rank of %u threads | B/s | 5\n"
             "file read | page-cached, 2 ranks of %u threads | B/s | 5\n",
             stw_reader_threads(cores, 1), stw_reader_threads(cores, 2));
    CU_ASSERT_STRING_EQUAL(list_of(&two), expected);
    CU_ASSERT_EQUAL(c.host.file_read_rank_bps, MOVE_BPS);
    CU_ASSERT_EQUAL(c.host.file_read_bps, 2 * MOVE_BPS);
    CU_ASSERT_EQUAL(read_end, 64 * MIB);
    stw_samples_free(&two);

    reads_fail = 1; /* no rate at all */
    stw_samples none = STW_SAMPLES_INIT;
    p.samples = &none;
    c = host_of(4);
    stw_probe_files(&p, &c);
    reads_fail = 0;
    CU_ASSERT_EQUAL(none.n, 0);
    CU_ASSERT_EQUAL(c.host.file_read_bps, 0);
}

/* ---- the disk ---- */

static struct {
    uint64_t free_bytes, bytes, at[2][200], n[2]; /* reads, writes */
    bool memory, direct, opens;
    uint64_t fails_at; /* of all writes */
    unsigned opened, closed, commits;
    uint32_t copies;
} disk;
static char fake;

int __wrap_statvfs(const char *path, struct statvfs *out);
int __wrap_statvfs(const char *path, struct statvfs *out) {
    *out = (struct statvfs){.f_frsize = 512, .f_bavail = disk.free_bytes / 512};
    return strcmp(path, "folder") == 0 ? 0 : -1;
}
bool __wrap_stw_nvme_folder_is_memory(const char *folder);
bool __wrap_stw_nvme_folder_is_memory(const char *folder) {
    CU_ASSERT_STRING_EQUAL(folder, "folder");
    return disk.memory;
}
stw_status __wrap_stw_nvme_open(const stw_nvme_options *options, stw_nvme **out, stw_error *err);
stw_status __wrap_stw_nvme_open(const stw_nvme_options *options, stw_nvme **out, stw_error *err) {
    CU_ASSERT_STRING_EQUAL(options->folder, "folder");
    CU_ASSERT_EQUAL(options->copies, 1);
    CU_ASSERT_FALSE(options->shape.in_memory);
    disk.bytes = options->bytes;
    if (!disk.opens) return stw_fail(err, STW_STATUS_IO, "folder", "it is shut");
    disk.opened++;
    *out = (stw_nvme *)(void *)&fake;
    return STW_STATUS_OK;
}
void __wrap_stw_nvme_close(stw_nvme *nvme);
void __wrap_stw_nvme_close(stw_nvme *nvme) { disk.closed += nvme != NULL; }
bool __wrap_stw_nvme_is_direct(const stw_nvme *nvme);
bool __wrap_stw_nvme_is_direct(const stw_nvme *nvme) { return nvme != NULL && disk.direct; }
const char *__wrap_stw_nvme_method(const stw_nvme *nvme);
const char *__wrap_stw_nvme_method(const stw_nvme *nvme) { return nvme != NULL ? "pen" : ""; }

static stw_status move(bool writes, uint64_t at, uint64_t bytes, stw_error *err) {
    if (bytes > 4096) {
        CU_ASSERT_EQUAL(bytes, 32 * MIB);
        if (disk.n[writes] < 200) disk.at[writes][disk.n[writes]] = at;
        disk.n[writes]++;
    }
    CU_ASSERT_TRUE(at + bytes <= disk.bytes);
    clock_s += (double)bytes / (writes ? WRITE_BPS : READ_BPS);
    if (writes && bytes > 4096 && disk.n[1] == disk.fails_at)
        return stw_fail(err, STW_STATUS_IO, "folder", "it is broken");
    return STW_STATUS_OK;
}
stw_status __wrap_stw_nvme_read(stw_nvme *nvme, uint64_t offset, void *to, uint64_t bytes,
                                stw_error *err);
stw_status __wrap_stw_nvme_read(stw_nvme *nvme, uint64_t offset, void *to, uint64_t bytes,
                                stw_error *err) {
    CU_ASSERT_FATAL(nvme != NULL && to != NULL);
    return move(false, offset, bytes, err);
}
stw_status __wrap_stw_nvme_write(stw_nvme *nvme, uint64_t offset, const void *from, uint64_t bytes,
                                 stw_error *err);
stw_status __wrap_stw_nvme_write(stw_nvme *nvme, uint64_t offset, const void *from, uint64_t bytes,
                                 stw_error *err) {
    const uint64_t *words = from;
    CU_ASSERT_PTR_NOT_NULL_FATAL(nvme);
    /* nothing that a disk could compress */
    if (bytes > 4096) CU_ASSERT_TRUE(words[0] != words[1] && words[1] != words[bytes / 8 - 1]);
    return move(true, offset, bytes, err);
}
stw_status __wrap_stw_nvme_commit(stw_nvme *nvme, uint64_t step, stw_error *err);
stw_status __wrap_stw_nvme_commit(stw_nvme *nvme, uint64_t step, stw_error *err) {
    (void)nvme;
    (void)step;
    (void)err;
    disk.commits++;
    clock_s += SYNC_S;
    return STW_STATUS_OK;
}

static double written_bps(uint64_t pieces) {
    const double bytes = 32.0 * MIB * (double)pieces;
    return bytes / (bytes / WRITE_BPS + SYNC_S);
}

static void check_disk(stw_probe_depth depth) {
    const double piece_s = 32.0 * MIB / WRITE_BPS, read_s = 32.0 * MIB / READ_BPS;
    const bool full = depth == STW_PROBE_FULL;
    char expected[400];
    stw_samples samples = STW_SAMPLES_INIT;
    stw_probe p = probe_of(depth, &samples);
    stw_cluster c = host_of(4);
    memset(&disk, 0, sizeof disk);
    disk.free_bytes = 101 * GIB + 5 * MIB;
    disk.opens = true;
    disk.direct = full;
    p.most_bytes = 10 * 32 * MIB + MIB;
    n_progress = 0;
    stw_probe_disk(&p, &c);
    const double quick_drawn[] = {0, 0.5 / 1.5},
                 full_drawn[] = {0, 0.5 / 3.5, 1.5 / 3.5, 2.5 / 3.5};
    check_progress(&p, STW_PROBE_PART_DISK, full ? full_drawn : quick_drawn, full ? 4 : 2);
    CU_ASSERT_EQUAL(c.nvme.capacity_bytes, full ? 50 * GIB : 0); /* direct writes alone */
    CU_ASSERT_EQUAL(disk.bytes, 10 * 32 * MIB);
    CU_ASSERT_EQUAL(disk.opened, 2);
    CU_ASSERT_EQUAL(disk.closed, 2);
    const char *how = full ? "direct" : "page cache";
    snprintf(expected, sizeof expected,
             "disk, first write | 32 MiB, pen, %s | B/s | 1\n"
             "disk, read | 32 MiB, pen, %s | B/s | %d\n"
             "disk, write | 32 MiB, pen, %s | B/s | %d\n"
             "disk, read and write | 32 MiB, pen, %s | B/s | %d\n",
             how, how, full ? 3 : 1, how, full ? 3 : 1, how, full ? 3 : 1);
    CU_ASSERT_STRING_EQUAL(list_of(&samples), expected);
    CU_ASSERT_TRUE(all_are(&samples, "disk, first write", written_bps(10)));
    const double seconds = full ? 2 : 0.4;
    const uint64_t alone = (uint64_t)ceil(seconds / piece_s), reads = (uint64_t)ceil(5 / read_s);
    CU_ASSERT_TRUE(all_are(&samples, "disk, write", written_bps(alone)));
    CU_ASSERT_TRUE(all_are(&samples, "disk, read", READ_BPS));
    CU_ASSERT_TRUE(all_are(&samples, "disk, read and write", 2 * written_bps(reads)));
    CU_ASSERT_EQUAL(c.nvme.read_bps, READ_BPS);
    CU_ASSERT_EQUAL(c.nvme.write_bps, stw_probe_three_digits(written_bps(alone)));
    CU_ASSERT_EQUAL(c.nvme.both_bps, stw_probe_three_digits(2 * written_bps(reads)));
    /* Once over the file, then each from its beginning; beside reads, half of the file away. */
    unsigned wrong = 0;
    for (uint64_t i = 0; i < 10; i++) wrong += disk.at[1][i] != i * 32 * MIB;
    for (uint64_t i = 0; i < alone && 10 + i < 200; i++)
        wrong += disk.at[1][10 + i] != i % 10 * 32 * MIB;
    for (uint64_t i = 10 + alone; i < 10 + alone + reads && i < 200; i++)
        wrong += disk.at[1][i] != (i - 10 - alone + 5) % 10 * 32 * MIB;
    for (uint64_t i = 0; i < (uint64_t)ceil(seconds / read_s); i++)
        wrong += disk.at[0][i] != i % 10 * 32 * MIB;
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(disk.commits, 1 + (full ? 6 : 2));
    stw_samples_free(&samples);
}

static void the_disk_is_measured(void) {
    check_disk(STW_PROBE_QUICK);
    check_disk(STW_PROBE_FULL);
}

static const char *disk_says(uint64_t free_bytes, uint64_t most_bytes, stw_cluster *c) {
    stw_samples samples = STW_SAMPLES_INIT;
    stw_probe p = probe_of(STW_PROBE_QUICK, &samples);
    disk.free_bytes = free_bytes;
    p.most_bytes = most_bytes;
    *c = host_of(4);
    c->nvme.read_bps = 1;
    logged[0] = '\0';
    stw_log_set(keep_log, NULL);
    stw_probe_disk(&p, c);
    stw_log_set(NULL, NULL);
    CU_ASSERT_EQUAL(c->nvme.read_bps, 1);
    CU_ASSERT_EQUAL(samples.n, 0);
    CU_ASSERT_EQUAL(disk.opened, disk.closed);
    stw_samples_free(&samples);
    return logged;
}

static void disks_that_are_not_measured(void) {
    stw_cluster c;
    memset(&disk, 0, sizeof disk);
    disk.opens = disk.direct = true;
    CU_ASSERT_STRING_EQUAL(disk_says(128 * MIB - 512, GIB, &c),
                           "folder has no room for a file of 32 MiB in a quarter of what is free: "
                           "the disk is not measured\n");
    CU_ASSERT_STRING_EQUAL(disk_says(100 * GIB, 32 * MIB - 1, &c),
                           "folder has no room for a file of 32 MiB in a quarter of what is free: "
                           "the disk is not measured\n");
    CU_ASSERT_EQUAL(c.nvme.capacity_bytes, 50 * GIB);
    disk.fails_at = 1;
    disk.n[1] = 0;
    CU_ASSERT_STRING_EQUAL(disk_says(100 * GIB, GIB, &c),
                           "the disk is not measured: it is broken\n");
    disk.fails_at = 0;
    disk.memory = true;
    CU_ASSERT_STRING_EQUAL(disk_says(100 * GIB, GIB, &c),
                           "folder is memory and no disk: --nvme FOLDER or TMPDIR names another "
                           "one\n");
    CU_ASSERT_EQUAL(c.nvme.capacity_bytes, 0);
    disk.memory = disk.opens = false;
    CU_ASSERT_STRING_EQUAL(disk_says(100 * GIB, GIB, &c), "the disk is not measured: it is shut\n");
    CU_ASSERT_EQUAL(c.nvme.capacity_bytes, 0);
    disk.opens = true; /* the last write fails: no rate of both, the others stay */
    stw_samples samples = STW_SAMPLES_INIT;
    stw_probe p = probe_of(STW_PROBE_QUICK, &samples);
    p.most_bytes = 16 * GIB;
    disk.free_bytes = 32 * GIB;
    disk.n[1] = 0;
    c = host_of(4);
    /* 2 s of first writes: 60 of 128 pieces, and no further than those afterwards */
    disk.fails_at = 60 + 12 + 7;
    stw_probe_disk(&p, &c);
    CU_ASSERT_EQUAL(disk.bytes, 4 * GIB);
    CU_ASSERT_EQUAL(disk.at[1][60 + 12], 30 * 32 * MIB);
    CU_ASSERT_EQUAL(disk.n[1], 60 + 12 + 7);
    CU_ASSERT_EQUAL(c.nvme.both_bps, 0);
    CU_ASSERT_EQUAL(c.nvme.read_bps, READ_BPS);
    CU_ASSERT_PTR_NULL(stw_samples_find(&samples, "disk, read and write", NULL));
    stw_samples_free(&samples);
}

STW_TEST_MAIN("backend probe rates", {"time is shared out", time_is_shared_out},
              {"progress is of the whole", progress_is_of_the_whole},
              {"rates that vary are warned of", rates_that_vary_are_warned_of},
              {"memory is bounded", memory_is_bounded},
              {"teams are of nodes or ranks", teams_are_of_nodes_or_ranks},
              {"teams work at once", teams_work_at_once},
              {"buckets go through rings", buckets_go_through_rings},
              {"the CPU is measured", the_cpu_is_measured}, {"files are read", files_are_read},
              {"the disk is measured", the_disk_is_measured},
              {"disks that are not measured", disks_that_are_not_measured})

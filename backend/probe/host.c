/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's part of a calibration. Memory lies near the cores that work on it, as a run's does:
 * every NUMA node has a team of threads with arrays of its own. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "backend/host/kernels.h"
#include "backend/probe/probe.h"
#include "core/checked.h"
#include "core/log.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define HUGE_BYTES (2 * MIB)
#define GRAIN_BYTES MIB
#define PARAM_BYTES 16        /* fp32 parameter, gradient and two moments */
#define RING_OF_CACHES 0.25   /* all slots: what plans choose, which know that less than all fits */
#define RING_PARAMS (4 * MIB) /* of a slot where no caches are known */
#define BUCKET_PARAMS 1024    /* a bucket is a multiple: kernels fetch 16-byte words */
#define CORE_BYTES (512 * MIB) /* per core where few cores are measured: beyond its caches */

/* ---- teams ---- */

/* Cores of a NUMA node, from "0-3,8,10-11"; nothing where the file is missing. */
static void node_cpus(uint32_t node, stw_cpus *out) {
    char path[80], line[4096] = "";
    out->n = 0;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%u/cpulist", node);
    FILE *file = fopen(path, "r");
    if (file == NULL) return;
    if (fgets(line, sizeof line, file) == NULL) line[0] = '\0';
    fclose(file);
    for (const char *at = line; *at >= '0' && *at <= '9';) {
        char *end = NULL;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        for (unsigned long cpu = first; cpu <= last && out->n < STW_MAX_CPUS; cpu++)
            if (cpu <= UINT16_MAX) out->cpu[out->n++] = (uint16_t)cpu;
        at = *end == ',' ? end + 1 : end;
    }
}

static void keep_common(stw_cpus *cpus, const stw_cpus *allowed) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < cpus->n; i++)
        for (uint32_t a = 0; a < allowed->n; a++)
            if (cpus->cpu[i] == allowed->cpu[a]) {
                cpus->cpu[n++] = cpus->cpu[i];
                break;
            }
    cpus->n = n;
}

/* As many teams as a node has ranks, if that cuts every NUMA node alike. */
static void cut_teams(stw_probe_teams *teams, uint32_t ranks) {
    const uint32_t nodes = teams->n, parts = ranks / nodes;
    if (parts < 2 || ranks % nodes != 0 || ranks > STW_PROBE_MOST_TEAMS) return;
    for (uint32_t i = 0; i < nodes; i++)
        if (teams->team[i].cpus.n < parts) return;
    for (uint32_t t = ranks; t-- > 0;) { /* from the end: a node's team lies before its parts */
        teams->team[t].cpus = teams->team[t / parts].cpus;
        if (t % parts == 0) continue;
        stw_cpus_share(&teams->team[t].cpus, t % parts, parts);
    }
    for (uint32_t t = 0; t < ranks; t += parts) stw_cpus_share(&teams->team[t].cpus, 0, parts);
    teams->n = teams->ranks = ranks;
}

/* One team per node with cores that this process may use; one in all where nothing is known. */
static void find_teams(stw_probe_teams *teams) {
    enum { MOST_NODES = 64 };
    static const stw_cpus none;
    stw_cpus allowed = none;
    stw_cpus_allowed(&allowed);
    teams->n = 0;
    for (uint32_t node = 0; node < MOST_NODES && teams->n < STW_PROBE_MOST_TEAMS; node++) {
        stw_cpus *cpus = &teams->team[teams->n].cpus;
        node_cpus(node, cpus);
        keep_common(cpus, &allowed);
        if (cpus->n > 0) teams->n++;
    }
    if (teams->n > 0) return;
    teams->n = 1;
    teams->team[0].cpus = allowed;
}

/* A call for one team, on a thread that stays on its cores. */
typedef struct errand {
    stw_probe_team *team;
    uint32_t index; /* of the team */
    uint64_t params, bucket;
    uint64_t buckets; /* that went through the ring */
    double busy_s;    /* at them, without waits for copies */
    const stw_probe_ring *ring;
    stw_probe_work work;
    double seconds, units_per_s;
    void (*run)(struct errand *e);
} errand;

static void *run_errand(void *arg) {
    errand *e = arg;
    stw_cpus_keep(&e->team->cpus);
    stw_threads_keep_caller(e->team->threads);
    e->run(e);
    return NULL;
}

/* All teams at once. @return the sum of what they tell, or, where teams are ranks, what it would be
 * if all were as slow as the slowest: a step ends with its last rank. 0 where a thread could not be
 * started */
static double each_team(stw_probe_teams *teams, const errand *what) {
    errand errands[STW_PROBE_MOST_TEAMS];
    pthread_t threads[STW_PROBE_MOST_TEAMS];
    uint32_t started = 0;
    double sum = 0, least = 0;
    for (; started < teams->n; started++) {
        errands[started] = *what;
        errands[started].team = &teams->team[started];
        errands[started].params = teams->params;
        errands[started].bucket = teams->bucket;
        errands[started].ring = teams->ring;
        errands[started].index = started;
        if (pthread_create(&threads[started], NULL, run_errand, &errands[started]) != 0) break;
    }
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
        double rate = errands[i].units_per_s;
        sum += rate;
        if (i == 0 || rate < least) least = rate;
    }
    if (started < teams->n) return 0;
    return teams->ranks > 1 && what->work != STW_PROBE_COPY ? least * teams->n : sum;
}

/* Floats of 0x3A3A3A3A are about 7e-4: positive, and far from denormal when squared. */
static void touch_piece(void *arg, uint64_t first, uint64_t count) {
    memset((unsigned char *)arg + first, 0x3A, count);
}

#define STAGGER_BYTES (MIB + 3 * 4096 + 192)

static uint64_t team_bytes(uint64_t params) { return params * PARAM_BYTES + 3 * STAGGER_BYTES; }

float *stw_probe_array(const stw_probe_team *team, uint64_t params, unsigned array) {
    return team->memory + array * (params + STAGGER_BYTES / sizeof(float));
}

static void map_memory(errand *e) {
    size_t bytes = (size_t)team_bytes(e->params);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    stw_threads_for(e->team->threads, bytes, HUGE_BYTES, touch_piece, memory);
    e->team->memory = memory;
}

/* What comes after has gradients of every size, as a run's are made. */
static void spread_values(errand *e) {
    stw_host_seed_grads(e->team->threads, e->team->memory, STW_ELEMENT_F32, 4 * e->params, 0, 1, 1);
}

/* Threads of a team: its cores' share of all, where a quota allows fewer than there are. */
static uint32_t team_threads(const stw_probe_teams *teams, uint32_t team, uint32_t cores) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < teams->n; i++) all += teams->team[i].cpus.n;
    uint32_t mine = teams->team[team].cpus.n;
    if (all <= cores || all == 0) return mine > 0 ? mine : 1;
    uint64_t share = (uint64_t)mine * cores / all;
    return share > 0 ? (uint32_t)share : 1;
}

uint64_t stw_probe_cpu_bytes(const stw_probe *probe, uint32_t cores, uint64_t share) {
    bool full = probe->depth == STW_PROBE_FULL;
    uint64_t bytes = cores * (full ? 512 * MIB : 256 * MIB);
    bytes = stw_max_u64(bytes, full ? 2 * GIB : 512 * MIB);
    bytes = stw_min_u64(bytes, full ? 8 * GIB : 4 * GIB);
    return stw_min_u64(stw_min_u64(bytes, probe->room_bytes / share), probe->most_bytes);
}

stw_status stw_probe_teams_open(uint32_t cores, uint32_t ranks, uint64_t bytes,
                                stw_probe_teams *teams, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const errand map = {.run = map_memory};
    memset(teams, 0, sizeof *teams);
    find_teams(teams);
    cut_teams(teams, ranks);
    /* Whole megabytes of parameters: copies without a rest. */
    teams->params = bytes / teams->n / PARAM_BYTES / MIB * MIB;
    if (teams->params == 0)
        STW_TRY(stw_fail(err, STW_STATUS_NO_RESOURCES, "host",
                         "a calibration of the CPU takes at least %u MiB, the limits leave no room "
                         "for that",
                         teams->n * PARAM_BYTES));
    for (uint32_t i = 0; i < teams->n; i++)
        STW_TRY(stw_threads_new_on(team_threads(teams, i, cores), &teams->team[i].cpus,
                                   &teams->team[i].threads, err));
    (void)each_team(teams, &map);
    for (uint32_t i = 0; i < teams->n; i++)
        if (teams->team[i].memory == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "host",
                             "out of memory for a calibration of the CPU"));
out:
    return status;
}

void stw_probe_teams_close(stw_probe_teams *teams) {
    for (uint32_t i = 0; i < teams->n; i++) {
        stw_probe_team *team = &teams->team[i];
        if (team->memory != NULL) (void)munmap(team->memory, (size_t)team_bytes(teams->params));
        stw_threads_free(team->threads);
    }
    memset(teams, 0, sizeof *teams);
}

/* ---- work ---- */

typedef struct copy_work {
    unsigned char *to;
    const unsigned char *from;
} copy_work;

/* Past the caches: the target is not read before it is written. */
static void copy_piece(void *arg, uint64_t first, uint64_t count) {
    const copy_work *work = arg;
#ifdef __SSE2__
    uint64_t i = first, end = first + count;
    for (; i + 16 <= end; i += 16)
        _mm_stream_si128((__m128i *)(void *)(work->to + i),
                         _mm_load_si128((const __m128i *)(const void *)(work->from + i)));
    _mm_sfence();
    memcpy(work->to + i, work->from + i, end - i);
#else
    memcpy(work->to + first, work->from + first, count);
#endif
}

/* Buckets as runs have them: params and grads come and go through the slots of a ring, moments lie
 * one after the other. @return parameters */
static uint64_t ring_pass(errand *e, const stw_adamw *adamw, const stw_element_types *types) {
    const stw_probe_ring *ring = e->ring;
    float *array[4];
    uint64_t n = e->params, done = 0;
    for (unsigned a = 0; a < 4; a++) array[a] = stw_probe_array(e->team, n, a);
    for (; e->bucket > 0 && done + e->bucket <= n; e->buckets++, done += e->bucket) {
        uint32_t slot = (uint32_t)(e->buckets % STW_PROBE_RING_SLOTS);
        float *outside = ring != NULL ? ring->begin(ring->user, e->index, slot) : NULL;
        const stw_host_bucket bucket = {
            .n = e->bucket,
            .params = outside != NULL ? outside : array[0] + slot * e->bucket,
            .grads = outside != NULL ? outside + e->bucket : array[1] + slot * e->bucket,
            .exp_avg = array[2] + done,
            .exp_avg_sq = array[3] + done};
        double start = stw_process_now_s();
        stw_host_adamw(e->team->threads, adamw, 1.0f, types, &bucket);
        e->busy_s += stw_process_now_s() - start;
        if (ring != NULL) ring->end(ring->user, e->index, slot);
    }
    return done;
}

/* One pass over the team's memory. @return units */
static uint64_t pass(errand *e, stw_norm_bins *bins) {
    static const stw_element_types types = {STW_ELEMENT_F32, STW_ELEMENT_F32, STW_ELEMENT_NONE,
                                            STW_ELEMENT_F32, STW_ELEMENT_F32};
    float *memory = e->team->memory;
    uint64_t n = e->params;
    const stw_adamw adamw = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.01, 1, 0);
    if (e->work == STW_PROBE_RING) return ring_pass(e, &adamw, &types);
    if (e->work == STW_PROBE_ADAMW) {
        const stw_host_bucket bucket = {.n = n,
                                        .params = memory,
                                        .grads = stw_probe_array(e->team, n, 1),
                                        .exp_avg = stw_probe_array(e->team, n, 2),
                                        .exp_avg_sq = stw_probe_array(e->team, n, 3)};
        stw_host_adamw(e->team->threads, &adamw, 1.0f, &types, &bucket);
        return n;
    }
    if (e->work == STW_PROBE_NORM) {
        /* All four arrays are gradients here: more than a cache holds. */
        stw_host_norm_add(e->team->threads, memory, STW_ELEMENT_F32, 4 * n, bins);
        return 4 * n;
    }
    copy_work work = {(unsigned char *)memory,
                      (const unsigned char *)stw_probe_array(e->team, n, 2)};
    stw_threads_for(e->team->threads, 2 * n * sizeof(float), GRAIN_BYTES, copy_piece, &work);
    return 4 * n * sizeof(float);
}

static void work_for_a_while(errand *e) {
    stw_norm_bins bins;
    memset(&bins, 0, sizeof bins);
    (void)pass(e, &bins);
    e->busy_s = 0;
    double start = stw_process_now_s(), spent = 0;
    uint64_t done = 0;
    do {
        done += pass(e, &bins);
        spent = stw_process_now_s() - start;
    } while (spent < e->seconds);
    /* waits for copies are not the CPU's time */
    if (e->ring != NULL) spent = e->busy_s;
    e->units_per_s = spent > 0 ? (double)done / spent : 0;
}

double stw_probe_teams_run(stw_probe_teams *teams, stw_probe_work work, double seconds) {
    const errand what = {.run = work_for_a_while, .work = work, .seconds = seconds};
    return each_team(teams, &what);
}

/* ---- the CPU's rates ---- */

/* @return units per second, also in the sample; 0 on failure */
static double run_once(stw_probe_teams *teams, stw_probe_work work, double seconds,
                       stw_sample *sample) {
    double rate = stw_probe_teams_run(teams, work, seconds);
    if (rate > 0) stw_sample_add(sample, rate);
    return rate;
}

static stw_sample sample_of(const stw_probe_teams *teams, const char *what, const char *unit) {
    char detail[64];
    uint32_t threads = 0;
    for (uint32_t i = 0; i < teams->n; i++) threads += stw_threads_count(teams->team[i].threads);
    snprintf(detail, sizeof detail, "%u thread%s, %u %s%s", threads, threads == 1 ? "" : "s",
             teams->n, teams->ranks > 1 ? "rank" : "NUMA node", teams->n == 1 ? "" : "s");
    return stw_sample_make(what, detail, unit);
}

/* AdamW with 1, 2, 4 ... threads, the cores of one NUMA node before those of the next. */
static stw_status measure_scaling(const stw_probe *probe, const stw_probe_teams *all,
                                  stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_probe_teams one = *all; /* borrows memory and, below, has threads of its own */
    uint32_t cores = stw_threads_count(all->team[0].threads);
    one.n = 1;
    one.team[0].threads = NULL;
    for (uint32_t k = 1; k < cores && stw_probe_has_time(probe); k *= 2) {
        char detail[64];
        STW_TRY(stw_threads_new_on(k, &all->team[0].cpus, &one.team[0].threads, err));
        one.params = stw_min_u64(all->params, k * CORE_BYTES / PARAM_BYTES);
        snprintf(detail, sizeof detail, "%u thread%s of one NUMA node", k, k == 1 ? "" : "s");
        stw_sample sample = stw_sample_make("cpu_adamw", detail, "param/s");
        for (int i = 0; i < (int)stw_probe_pick(probe, 1, 3); i++)
            stw_sample_add(&sample, stw_probe_teams_run(&one, STW_PROBE_ADAMW,
                                                        stw_probe_seconds(probe, 0.02, 0.1)));
        (void)stw_probe_keep(probe, &sample);
        stw_threads_free(one.team[0].threads);
        one.team[0].threads = NULL;
        stw_probe_progress(probe, STW_PROBE_PART_CPU, 0.5 + 0.5 * k / cores, "AdamW by threads");
    }
out:
    stw_threads_free(one.team[0].threads);
    return status;
}

uint64_t stw_probe_ring_bucket(const stw_cluster *cluster, const stw_probe_teams *teams) {
    double bytes = RING_OF_CACHES * (double)cluster->host.cache_bytes;
    uint64_t params =
        bytes > 0 ? (uint64_t)bytes / (STW_PROBE_RING_SLOTS * 2 * sizeof(float)) : RING_PARAMS;
    params = stw_min_u64(params / teams->n, teams->params / (STW_PROBE_RING_SLOTS + 1));
    return params / BUCKET_PARAMS * BUCKET_PARAMS;
}

static bool is_worth_more(const stw_probe *probe, const stw_sample *a, const stw_sample *b) {
    return stw_probe_seconds_left(probe, 0, 1) > 0 &&
           !(stw_sample_is_steady(a) && stw_sample_is_steady(b));
}

/* One of each in turn: what disturbs the machine for a moment is in few of the values of each. More
 * are taken where they do not agree. */
static void measure_rates(const stw_probe *probe, stw_probe_teams *teams, stw_cluster *out) {
    const double seconds = stw_probe_seconds(probe, teams->ranks > 1 ? 0.15 : 0.1, 0.4);
    const int runs = (int)stw_probe_pick(probe, 5, 7);
    stw_sample adamw = sample_of(teams, "cpu_adamw", "param/s");
    stw_sample seen = sample_of(teams, "host memory, CPU", "B/s");
    stw_sample ring = sample_of(teams, "cpu_adamw_ring", "param/s");
    stw_sample copy = sample_of(teams, "host copy, CPU", "B/s");
    teams->bucket = stw_probe_ring_bucket(out, teams);
    (void)stw_probe_teams_run(teams, STW_PROBE_ADAMW, 3 * seconds); /* cores get up to speed */
    for (int i = 0; i < runs || (i < STW_SAMPLE_VALUES && is_worth_more(probe, &adamw, &ring));
         i++) {
        stw_probe_progress(probe, STW_PROBE_PART_CPU, 0.1 + 0.04 * i, "AdamW on the CPU");
        double pps = run_once(teams, STW_PROBE_ADAMW, seconds, &adamw);
        if (pps > 0) stw_sample_add(&seen, STW_PROBE_ADAMW_BYTES * pps);
        (void)run_once(teams, STW_PROBE_RING, seconds, &ring);
        (void)run_once(teams, STW_PROBE_COPY, seconds / 2, &copy);
    }
    double pps = stw_probe_keep_rate(probe, &adamw), ring_pps = stw_probe_keep_rate(probe, &ring);
    double adamw_bps = stw_probe_keep(probe, &seen), copy_bps = stw_probe_keep(probe, &copy);
    if (pps > 0) out->cpu_adamw_pps = pps;
    /* GPUs measure it with the copies that fill and empty the ring. Without those it asks less of
     * memory than the other and no more of the cores. */
    if (ring_pps > 0 && !(out->cpu_adamw_ring_pps > 0))
        out->cpu_adamw_ring_pps = ring_pps > pps ? ring_pps : pps;
    if (!(out->host.bandwidth_bps > 0))
        out->host.bandwidth_bps = copy_bps > adamw_bps ? copy_bps : adamw_bps;
}

/* The norm, of all four arrays, whose values lie as far apart as gradients do: the more exponents a
 * block spans, the longer its exact sum takes. */
static void measure_norm(const stw_probe *probe, stw_probe_teams *teams, stw_cluster *out) {
    const errand spread = {.run = spread_values};
    stw_probe_progress(probe, STW_PROBE_PART_CPU, 0.9, "norm on the CPU");
    (void)each_team(teams, &spread);
    stw_sample norm = sample_of(teams, "cpu_norm", "grad/s");
    for (int i = 0; i < (int)stw_probe_pick(probe, 3, 5); i++)
        (void)run_once(teams, STW_PROBE_NORM, stw_probe_seconds(probe, 0.1, 0.25), &norm);
    double pps = stw_probe_keep(probe, &norm);
    if (pps > 0) out->cpu_norm_pps = pps;
}

void stw_probe_host(const stw_probe *probe, stw_cluster *out) {
    stw_status status = STW_STATUS_OK;
    stw_error error = STW_ERROR_INIT, *err = &error;
    char text[1200];
    stw_probe_teams *teams = calloc(1, sizeof *teams);
    stw_probe_progress(probe, STW_PROBE_PART_CPU, 0, "memory for the CPU");
    if (teams == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "host", "out of memory"));
    STW_TRY(stw_probe_teams_open(out->host.cores, out->gpus,
                                 stw_probe_cpu_bytes(probe, out->host.cores, 1), teams, err));
    measure_rates(probe, teams, out);
    if (probe->depth == STW_PROBE_FULL) STW_TRY(measure_scaling(probe, teams, err));
    measure_norm(probe, teams, out);
out:
    if (status != STW_STATUS_OK) {
        stw_error_format(&error, text, sizeof text);
        stw_log(STW_LOG_WARN, "the CPU is not measured, or not completely: %s", text);
    }
    if (teams != NULL) stw_probe_teams_close(teams);
    free(teams);
}

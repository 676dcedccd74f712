/* SPDX-License-Identifier: Apache-2.0 */
/* Constants: bench/results/constants.md. */
#include "engines/cpu_step.h"

#include <stdio.h>

/* Of the memory bandwidth of one thread, bytes per second. */
static const double THREAD_BPS = 18e9;

/* Of the node's memory bandwidth, what loops over arrays reach. */
static const double LOOP_SHARE = 0.92;

/* A rank's state is allocated by one thread and lies on one of so many NUMA nodes. */
static const double NUMA_NODES = 2;

static uint32_t ranks_on_node(const stw_job *job) {
    uint32_t ranks = job->world < job->ranks_per_node ? job->world : job->ranks_per_node;
    return ranks > 0 ? ranks : 1;
}

static uint32_t cores_of_rank(const stw_job *job) {
    const uint32_t cores = job->cluster->host.cores / ranks_on_node(job);
    return cores > 0 ? cores : 1;
}

uint32_t stw_cpu_threads(const stw_job *job) {
    uint32_t ranks = ranks_on_node(job), threads = job->run->optimizer.cpu_threads;
    const uint32_t cores = cores_of_rank(job);
    if (threads == STW_AUTO) threads = ranks > 1 ? 1 : cores;
    return threads < cores ? threads : cores; /* more of them wait for a core */
}

static double memory_s(const stw_job *job, double bytes) {
    const uint32_t ranks = ranks_on_node(job);
    double node_bps = LOOP_SHARE * job->cluster->host.bandwidth_bps;
    double rank_bps = node_bps / (ranks < NUMA_NODES ? NUMA_NODES : ranks);
    return rank_bps > 0 ? bytes / rank_bps : 0;
}

static double threads_s(const stw_job *job, double bytes, double slower) {
    return bytes * slower / (stw_cpu_threads(job) * THREAD_BPS);
}

double stw_cpu_pass_s(const stw_job *job, double bytes, double slower) {
    double by_memory_s = memory_s(job, bytes), by_threads_s = threads_s(job, bytes, slower);
    return by_memory_s > by_threads_s ? by_memory_s : by_threads_s;
}

double stw_cpu_update_s(const stw_job *job, const stw_cpu_update *update) {
    const stw_cpu_rate *rate = update->rate;
    const double measured = job->cluster->gpus > 0 ? job->cluster->gpus : 1; /* ranks */
    const double params = (double)update->params;
    double ranks = measured < NUMA_NODES ? measured : NUMA_NODES;
    double all_s = memory_s(job, update->bytes);
    double one_s = threads_s(job, update->bytes, update->slower);
    if (ranks < ranks_on_node(job)) ranks = ranks_on_node(job);
    if (rate->all_pps > 0) all_s = update->bytes / update->fp32_bytes * ranks / rate->all_pps;
    if (rate->one_pps > 0) one_s = params * measured / (rate->one_pps * stw_cpu_threads(job));
    return all_s > one_s ? all_s : one_s;
}

/* ---- advice ---- */

/* An update of other threads or by another implementation is advised if it takes less than this
 * share of the time. */
static const double MUCH_FASTER = 0.8;

static double seconds_of(const stw_job *job, const stw_run_spec *run) {
    enum { PARAMS = 1000000 };
    stw_job other = *job;
    double bytes = 0;
    other.run = run;
    return job->engine->cpu_step(&other, false, PARAMS, &bytes);
}

void stw_cpu_advice(const stw_job *job, const char *now, bool fused, char *out, size_t out_size) {
    const uint32_t threads = stw_cpu_threads(job), cores = cores_of_rank(job);
    const bool more = threads < cores;
    char how[96] = "";
    stw_run_spec run = *job->run;
    if (fused) run.optimizer.implementation = STW_OPTIMIZER_FUSED;
    if (more) run.optimizer.cpu_threads = cores;
    if (more) snprintf(how, sizeof how, "--set optimizer.cpu_threads=%u (OMP_NUM_THREADS) ", cores);
    const double now_s = seconds_of(job, job->run), then_s = seconds_of(job, &run);
    out[0] = '\0';
    if (!(then_s < MUCH_FASTER * now_s)) return;
    snprintf(out, out_size,
             "%s on %u thread%s of each rank. With %s%s%sthe "
             "update takes %.2g%% of its time.",
             now, threads, threads == 1 ? "" : "s",
             fused ? "--set optimizer.implementation=fused (AdamW(fused=True)) " : "",
             fused && more ? "and " : "", how, 100 * then_s / now_s);
}

void stw_cpu_thread_advice(const stw_job *job, char *out, size_t out_size) {
    stw_cpu_advice(job, "the optimizer runs", false, out, out_size);
}

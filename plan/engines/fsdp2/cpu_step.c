/* SPDX-License-Identifier: Apache-2.0 */
/* Memory traffic is counted off torch's code (torch/optim/adam.py at v2.11: _single_tensor_adam,
 * _multi_tensor_adam; aten/src/ATen/native/cpu/FusedAdamKernel.cpp), in elements read or written
 * per parameter:
 * - fused: one pass that reads parameter, gradient and both moments and writes all but the
 *   gradient: 7.
 * - foreach: mul_ (weight decay) 2, lerp_ 3, mul_ 2, addcmul_ 3, sqrt 2, div_ 2, add_ 2, addcdiv_
 *   4: 20. The root is a new tensor: its lines are read before they are written, and the kernel
 *   clears its pages: 22.
 * - loop: the same, but the division makes a second new tensor: 24.
 * - clip_grad_norm_ (torch/nn/utils/clip_grad.py) reads gradients for the norm, then scales them:
 *   3.
 * Constants: bench/results/constants.md. */
#include "plan/engines/fsdp2/cpu_step.h"

#include <stdio.h>

/* Of the memory bandwidth of one thread, bytes per second. */
static const double THREAD_BPS = 18e9;

/* Of the node's memory bandwidth, what loops over arrays reach. */
static const double LOOP_SHARE = 0.92;

/* A rank's state is allocated by one thread and lies on one of so many NUMA nodes. */
static const double NUMA_NODES = 2;

/* A thread updates 16-bit elements no faster than 32-bit ones: arithmetic is its limit. */
static const double THREAD_ELEMENT_BYTES = 4;

stw_optimizer_implementation stw_fsdp2_implementation(const stw_job *job, bool cpu) {
    switch (job->run->optimizer.implementation) {
    case STW_OPTIMIZER_FUSED:
        return STW_OPTIMIZER_FUSED;
    case STW_OPTIMIZER_FOREACH:
    case STW_OPTIMIZER_STREAMED:
        return STW_OPTIMIZER_FOREACH;
    case STW_OPTIMIZER_AUTO:
        return cpu ? STW_OPTIMIZER_LOOP : STW_OPTIMIZER_FUSED;
    default:
        return STW_OPTIMIZER_LOOP;
    }
}

static uint32_t ranks_on_node(const stw_job *job) {
    uint32_t ranks = job->world < job->ranks_per_node ? job->world : job->ranks_per_node;
    return ranks > 0 ? ranks : 1;
}

static uint32_t cores_of_rank(const stw_job *job) {
    const uint32_t cores = job->cluster->host.cores / ranks_on_node(job);
    return cores > 0 ? cores : 1;
}

uint32_t stw_fsdp2_cpu_threads(const stw_job *job) {
    uint32_t ranks = ranks_on_node(job), threads = job->run->optimizer.cpu_threads;
    const uint32_t cores = cores_of_rank(job);
    if (threads == STW_AUTO) threads = ranks > 1 ? 1 : cores;
    return threads < cores ? threads : cores; /* more of them wait for a core */
}

static double element_bytes(const stw_job *job, stw_component component) {
    return (double)stw_job_element_bytes(job, component);
}

/* Bytes that the update of one parameter reads and writes, by the bytes of its state. */
static double bytes_of(const stw_job *job, double params, double grads, double avg, double sq) {
    double fused = 2 * params + grads + 2 * avg + 2 * sq;
    switch (stw_fsdp2_implementation(job, true)) {
    case STW_OPTIMIZER_FUSED:
        return fused;
    case STW_OPTIMIZER_FOREACH:
        return 4 * params + 2 * grads + 3 * avg + (2 + 2 + 1) * sq + 8 * sq;
    default:
        return 4 * params + 2 * grads + 3 * avg + (2 + 2 + 1) * sq + 10 * sq;
    }
}

static double update_bytes(const stw_job *job) {
    return bytes_of(
        job, element_bytes(job, STW_COMPONENT_PARAMS), element_bytes(job, STW_COMPONENT_GRADS),
        element_bytes(job, STW_COMPONENT_EXP_AVG), element_bytes(job, STW_COMPONENT_EXP_AVG_SQ));
}

static double memory_s(const stw_job *job, double bytes) {
    const uint32_t ranks = ranks_on_node(job);
    double node_bps = LOOP_SHARE * job->cluster->host.bandwidth_bps;
    double rank_bps = node_bps / (ranks < NUMA_NODES ? NUMA_NODES : ranks);
    return rank_bps > 0 ? bytes / rank_bps : 0;
}

static double threads_s(const stw_job *job, double bytes, double slower) {
    return bytes * slower / (stw_fsdp2_cpu_threads(job) * THREAD_BPS);
}

double stw_fsdp2_cpu_pass_s(const stw_job *job, double bytes, double slower) {
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
    if (rate->one_pps > 0) one_s = params * measured / (rate->one_pps * stw_fsdp2_cpu_threads(job));
    return all_s > one_s ? all_s : one_s;
}

const stw_cpu_rate *stw_fsdp2_cpu_rate(const stw_job *job) {
    switch (stw_fsdp2_implementation(job, true)) {
    case STW_OPTIMIZER_FUSED:
        return &job->cluster->torch.fused;
    case STW_OPTIMIZER_FOREACH:
        return &job->cluster->torch.foreach;
    default:
        return &job->cluster->torch.loop;
    }
}

double stw_fsdp2_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes) {
    const double widest = element_bytes(job, STW_COMPONENT_PARAMS);
    double element = norm ? 3.0 * element_bytes(job, STW_COMPONENT_GRADS) : update_bytes(job);
    double narrow = norm || widest >= THREAD_ELEMENT_BYTES ? 1 : THREAD_ELEMENT_BYTES / widest;
    *bytes = (double)params * element;
    if (norm) return stw_fsdp2_cpu_pass_s(job, *bytes, narrow);
    return stw_cpu_update_s(job, &(stw_cpu_update){.rate = stw_fsdp2_cpu_rate(job),
                                                   .params = params,
                                                   .bytes = *bytes,
                                                   .fp32_bytes = bytes_of(job, 4, 4, 4, 4),
                                                   .slower = narrow});
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

/* @param now how the update runs @param fused may the implementation be changed? */
static void advise(const stw_job *job, const char *now, bool fused, char *out, size_t out_size) {
    const uint32_t threads = stw_fsdp2_cpu_threads(job), cores = cores_of_rank(job);
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

void stw_fsdp2_cpu_advice(const stw_job *job, char *out, size_t out_size) {
    const stw_optimizer_implementation is = stw_fsdp2_implementation(job, true);
    advise(job,
           is == STW_OPTIMIZER_FUSED ? "torch's fused AdamW runs"
           : is == STW_OPTIMIZER_FOREACH
               ? "torch's AdamW runs one operation for all tensors at once"
               : "torch's AdamW loops over the tensors, its default there,",
           is != STW_OPTIMIZER_FUSED, out, out_size);
}

void stw_cpu_thread_advice(const stw_job *job, char *out, size_t out_size) {
    advise(job, "the optimizer runs", false, out, out_size);
}

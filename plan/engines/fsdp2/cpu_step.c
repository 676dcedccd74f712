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

uint32_t stw_fsdp2_cpu_threads(const stw_job *job) {
    uint32_t ranks = ranks_on_node(job), threads = job->run->optimizer.cpu_threads;
    uint32_t cores = job->cluster->host.cores / ranks;
    if (cores == 0) cores = 1;
    if (threads == STW_AUTO) threads = ranks > 1 ? 1 : cores;
    return threads < cores ? threads : cores; /* more of them wait for a core */
}

static double element_bytes(const stw_job *job, stw_component component) {
    return (double)stw_job_element_bytes(job, component);
}

/* Bytes that the update of one parameter reads and writes. */
static double update_bytes(const stw_job *job) {
    double params = element_bytes(job, STW_COMPONENT_PARAMS),
           grads = element_bytes(job, STW_COMPONENT_GRADS),
           avg = element_bytes(job, STW_COMPONENT_EXP_AVG),
           sq = element_bytes(job, STW_COMPONENT_EXP_AVG_SQ);
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

double stw_fsdp2_cpu_pass_s(const stw_job *job, double bytes, double slower) {
    const uint32_t ranks = ranks_on_node(job), threads = stw_fsdp2_cpu_threads(job);
    double node_bps = LOOP_SHARE * job->cluster->host.bandwidth_bps;
    double rank_bps = node_bps / (ranks < NUMA_NODES ? NUMA_NODES : ranks);
    double by_memory_s = rank_bps > 0 ? bytes / rank_bps : 0;
    double by_threads_s = bytes * slower / (threads * THREAD_BPS);
    return by_memory_s > by_threads_s ? by_memory_s : by_threads_s;
}

double stw_fsdp2_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes) {
    const double widest = element_bytes(job, STW_COMPONENT_PARAMS);
    double element = norm ? 3.0 * element_bytes(job, STW_COMPONENT_GRADS) : update_bytes(job);
    double narrow = norm || widest >= THREAD_ELEMENT_BYTES ? 1 : THREAD_ELEMENT_BYTES / widest;
    *bytes = (double)params * element;
    return stw_fsdp2_cpu_pass_s(job, *bytes, narrow);
}

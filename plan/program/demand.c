/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/demand.h"

#include <string.h>

#include "plan/program/link_time.h"

/* Sources of the measured constants: bench/results/constants.md. A calibrated cluster replaces
 * those marked "default". */

/* Default. The gradient norm reaches this share of the GPU's copy bandwidth. Updates reach all of
 * it. */
static const double NORM_HBM_EFFICIENCY = 0.8;

/* Default. What kernels that copy slices of tensors reach of the GPU's copy bandwidth. */
static const double BOXES_OF_HBM = 0.55;

/* Default. CPU time of the norm per element, relative to an update. */
static const double NORM_OF_UPDATE = 0.5;

/* Fixed costs of clipping: kernel launches up to the clip factor; the copy of the factor to the
 * host, if CPU updates run; the all-reduce of the norm, with several ranks. */
static const double CLIP_S = 250e-6, CLIP_ON_HOST_S = 300e-6, CLIP_OF_RANKS_S = 300e-6;

/* Fixed cost of a step's work on the CPUs. The thread that issues copies and kernels shares the
 * cores with the threads of the norm and the updates: one of these loses a time slice, and the
 * others wait for its part of a bucket. */
static const double CPU_SLICE_S = 1e-3;

/* Default. A copy of pageable memory passes through page-locked buffers of the driver: one thread
 * reads and writes every byte. */
static const double PAGEABLE_BPS = 9e9;

/* What one thread of a framework's loader reads from the page cache and hands on: torch's
 * set_model_state_dict with broadcast_from_rank0. */
static const double LOADER_BPS = 5.8e9;

/* Default. Rate of a kernel that accesses host memory, relative to copies in both directions. An
 * estimate: kernels send smaller packets than copies. */
static const double DIRECT_OF_BOTH = 0.8;

/* The cluster's CPU rate is for fp32 state (CPU_BYTES per parameter), which is bound by memory.
 * Less traffic takes less time, down to CPU_LEAST, where arithmetic is the limit. 16-bit state adds
 * CPU_CONVERSION. The last two are estimates. */
static const double CPU_BYTES = 28, CPU_LEAST = 0.5, CPU_CONVERSION = 0.05;

/* Share of the traffic between the GPU and a ring of CPU buckets that reaches host memory. CPU
 * caches serve the rest. */
static const double CACHED_TRAFFIC = 0.25;

/* Priority of that traffic in host memory. An estimate: most requests hit the caches. */
static const double CACHED_PRIORITY = 4;

/* What passes through the L2 and L3 caches of a node while CPU buckets of all ranks go once around
 * their rings, as a share of these caches. Up to RINGS_HELD the caches hold the rings; from
 * RINGS_LOST on they hold nothing. */
static const double RINGS_HELD = 0.7, RINGS_LOST = 1.1;

/* Time between two CPU buckets of a ring: threads synchronize with each other and with the copies.
 */
static const double RING_BUCKET_S = 15e-6;

static const char *const resource_words[] = {
#define X(name, text) text,
    STW_RESOURCE_TABLE(X)
#undef X
};

const char *stw_resource_name(stw_resource resource) {
    return (unsigned)resource < STW_N_RESOURCES ? resource_words[resource] : "?";
}

/* A rate of 0 is unknown and adds no demand. Cluster specs reject 0 for required rates. */
static double seconds_of(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/* Ranks of a node that run the same operation at the same time. */
static double ranks_on_node(const stw_job *job) {
    uint32_t ranks = job->world < job->ranks_per_node ? job->world : job->ranks_per_node;
    return ranks > 0 ? (double)ranks : 1;
}

/* Copies of all GPUs of a node use the rate of their direction and the rate of both directions. */
static void add_dma(const stw_job *job, bool up, double on_node, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    stw_resource direction = up ? STW_RESOURCE_DMA_UP : STW_RESOURCE_DMA_DOWN;
    out->seconds[direction] += seconds_of(on_node, up ? c->host.dma_up_bps : c->host.dma_down_bps);
    out->seconds[STW_RESOURCE_DMA] += seconds_of(on_node, c->host.dma_bps);
    out->seconds[STW_RESOURCE_HOST_MEMORY] += seconds_of(on_node, c->host.bandwidth_bps);
}

/* What one rank's copies reach in one direction while all ranks copy in it alone. */
static double one_way_bps(const stw_job *job, bool up) {
    const stw_cluster *c = job->cluster;
    double link = up ? c->pcie.h2d_bps : c->pcie.d2h_bps;
    double all = up ? c->host.dma_up_bps : c->host.dma_down_bps;
    if (!(all > 0) || all > c->host.dma_bps) all = c->host.dma_bps;
    double share = all / ranks_on_node(job);
    return share > 0 && share < link ? share : link;
}

/* One direction of a link has its own rate. With both directions busy, their sum is limited to 2 x
 * both_bps. */
static void add_pcie(const stw_job *job, bool up, double bytes, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    double on_node = bytes * ranks_on_node(job);
    stw_resource direction = up ? STW_RESOURCE_PCIE_UP : STW_RESOURCE_PCIE_DOWN;
    out->seconds[direction] += seconds_of(bytes, up ? c->pcie.h2d_bps : c->pcie.d2h_bps);
    out->seconds[STW_RESOURCE_PCIE] += seconds_of(bytes, 2 * c->pcie.both_bps);
    add_dma(job, up, on_node, out);
    out->startup_s += c->pcie.latency_s;
    /* Both directions move equally many bytes where they meet, whatever each reaches alone. */
    double mine = one_way_bps(job, up), other = one_way_bps(job, !up);
    out->priority = mine > 0 ? (mine + other) / (2 * mine) : 1;
}

/* Reads and writes have separate rates and a common rate. If the common rate is unknown, reads and
 * writes do not overlap. */
static void add_disk(const stw_job *job, bool write, double bytes, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    double on_node = bytes * ranks_on_node(job);
    double alone_bps = write ? c->nvme.write_bps : c->nvme.read_bps;
    out->seconds[write ? STW_RESOURCE_DISK_WRITE : STW_RESOURCE_DISK_READ] +=
        seconds_of(on_node, alone_bps);
    out->seconds[STW_RESOURCE_DISK] +=
        seconds_of(on_node, c->nvme.both_bps > 0 ? c->nvme.both_bps : alone_bps);
    out->seconds[STW_RESOURCE_HOST_MEMORY] += seconds_of(on_node, c->host.bandwidth_bps);
}

/* Memory traffic of a kernel or a CPU loop in its own tier. */
static void add_traffic(const stw_job *job, stw_tier tier, double bytes, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    if (tier == STW_TIER_GPU)
        out->seconds[STW_RESOURCE_HBM] += seconds_of(bytes, c->gpu.hbm_bps);
    else
        out->seconds[STW_RESOURCE_HOST_MEMORY] +=
            seconds_of(bytes * ranks_on_node(job), c->host.bandwidth_bps);
}

void stw_demand_copy(const stw_job *job, stw_tier from, stw_tier to, uint64_t bytes,
                     stw_demand *out) {
    memset(out, 0, sizeof *out);
    if (from == to) return;
    if (from == STW_TIER_GPU || to == STW_TIER_GPU)
        add_pcie(job, to == STW_TIER_GPU, (double)bytes, out);
    if (from == STW_TIER_NVME || to == STW_TIER_NVME)
        add_disk(job, to == STW_TIER_NVME, (double)bytes, out);
}

/* Bytes of memory traffic per parameter and component in an update. Gradients are only read.
 * Parameters with a master copy are only written. All else is read and written. */
static double update_component_bytes(const stw_job *job, stw_component component) {
    bool has_master = stw_job_element_bytes(job, STW_COMPONENT_MASTER) > 0;
    bool once =
        component == STW_COMPONENT_GRADS || (component == STW_COMPONENT_PARAMS && has_master);
    return (once ? 1 : 2) * (double)stw_job_element_bytes(job, component);
}

/* Bytes of memory traffic per parameter in an update: 28 with fp32 state and no master copy. */
static double update_element_bytes(const stw_job *job) {
    double bytes = 0;
    for (unsigned c = 0; c < STW_N_STATE; c++)
        bytes += update_component_bytes(job, (stw_component)c);
    return bytes;
}

/* CPU cores keep more requests in flight than links and get more than a fair share of memory
 * bandwidth. The priority is the ratio that a calibration measured with updates (CPU_BYTES per
 * parameter) and copies at the same time. */
static double cpu_priority(const stw_job *job) {
    const stw_cluster *c = job->cluster;
    double beside = c->host.dma_beside_bps, alone = CPU_BYTES * c->cpu_adamw_pps;
    if (beside <= 0 || beside >= c->host.bandwidth_bps || alone <= 0) return 1;
    double updates = (c->host.bandwidth_bps - beside) / alone, copies = beside / c->host.dma_bps;
    return updates / copies;
}

/* Elements that all ranks of the node update in that time. */
static double on_cpus(const stw_job *job, uint64_t params) {
    return (double)params * ranks_on_node(job);
}

/* Time of a CPU update relative to fp32 state. */
static double cpu_share(const stw_job *job) {
    double share = update_element_bytes(job) / CPU_BYTES;
    if (share < CPU_LEAST) share = CPU_LEAST;
    for (unsigned c = 0; c < STW_N_STATE; c++)
        if (stw_job_element_bytes(job, (stw_component)c) == 2) return share + CPU_CONVERSION;
    return share;
}

/* As add_traffic, of an update in GPU memory. */
static void add_update_traffic(const stw_job *job, double bytes, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    double rate = c->gpu.update_bps > 0 ? c->gpu.update_bps : c->gpu.hbm_bps;
    out->seconds[STW_RESOURCE_HBM] += seconds_of(bytes, rate);
}

/* A kernel that reads and writes moments and master copy in host memory. */
static void add_direct(const stw_job *job, double params, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    double element = (double)stw_job_optimizer_bytes(job);
    double rate = c->pcie.direct_bps > 0 ? c->pcie.direct_bps : DIRECT_OF_BOTH * c->pcie.both_bps;
    double bytes = params * element, seconds = seconds_of(bytes, rate);
    out->seconds[STW_RESOURCE_PCIE_UP] += seconds;
    out->seconds[STW_RESOURCE_PCIE_DOWN] += seconds;
    out->seconds[STW_RESOURCE_PCIE] += seconds;
    add_dma(job, true, bytes * ranks_on_node(job), out);
    add_dma(job, false, bytes * ranks_on_node(job), out);
    add_update_traffic(job, params * (update_element_bytes(job) - 2 * element), out);
    out->startup_s += c->pcie.latency_s;
}

double stw_ring_missed(const stw_job *job, uint64_t ring_bytes) {
    double cache = (double)job->cluster->host.cache_bytes;
    if (cache <= 0) return 1;
    double share = ranks_on_node(job) * (double)ring_bytes / cache;
    double missed = (share - RINGS_HELD) / (RINGS_LOST - RINGS_HELD);
    return missed < 0 ? 0 : missed > 1 ? 1 : missed;
}

void stw_demand_cached_copy(const stw_job *job, stw_tier from, stw_tier to, uint64_t bytes,
                            uint64_t ring_bytes, stw_demand *out) {
    stw_demand_copy(job, from, to, bytes, out);
    double missed = stw_ring_missed(job, ring_bytes);
    out->seconds[STW_RESOURCE_HOST_MEMORY] *= CACHED_TRAFFIC + (1 - CACHED_TRAFFIC) * missed;
    out->priority *= 1 + (CACHED_PRIORITY - 1) * (1 - missed);
}

static bool has_framework_step(const stw_job *job) {
    return job->engine != NULL && job->engine->cpu_step != NULL;
}

/* A framework's threads: each rank has its own. */
static void add_framework_step(const stw_job *job, bool norm, uint64_t params, stw_demand *out) {
    double bytes = 0;
    out->seconds[STW_RESOURCE_CPU] += job->engine->cpu_step(job, norm, params, &bytes);
    add_traffic(job, STW_TIER_HOST, bytes, out);
}

/* Ring traffic that hits the caches does not use host memory bandwidth. */
static void add_cpu_update(const stw_job *job, uint64_t params, uint64_t ring_bytes,
                           stw_demand *out) {
    const stw_cluster *c = job->cluster;
    if (has_framework_step(job)) {
        add_framework_step(job, false, params, out);
        return;
    }
    double held = ring_bytes > 0 ? 1 - stw_ring_missed(job, ring_bytes) : 0;
    double ring_pps = c->cpu_adamw_ring_pps > 0 ? c->cpu_adamw_ring_pps : c->cpu_adamw_pps;
    double in_ring = update_component_bytes(job, STW_COMPONENT_PARAMS) +
                     update_component_bytes(job, STW_COMPONENT_GRADS);
    double bytes = update_element_bytes(job) - held * in_ring;
    add_traffic(job, STW_TIER_HOST, (double)params * bytes, out);
    double seconds = (1 - held) * seconds_of(on_cpus(job, params), c->cpu_adamw_pps) +
                     held * seconds_of(on_cpus(job, params), ring_pps);
    out->seconds[STW_RESOURCE_CPU] += cpu_share(job) * seconds;
    if (ring_bytes > 0) out->startup_s += RING_BUCKET_S;
    out->priority = cpu_priority(job);
}

void stw_demand_update(const stw_job *job, stw_update update, uint64_t params, uint64_t ring_bytes,
                       stw_demand *out) {
    memset(out, 0, sizeof *out);
    switch (update) {
    case STW_UPDATE_DIRECT:
        add_direct(job, (double)params, out);
        break;
    case STW_UPDATE_CPU:
        add_cpu_update(job, params, ring_bytes, out);
        break;
    default:
        add_update_traffic(job, (double)params * update_element_bytes(job), out);
        break;
    }
}

/* ---- one function per `demand` of the table of operations ---- */

static void demand_nothing(const stw_job *job, const stw_op *op, stw_demand *out) {
    (void)job;
    (void)op;
    (void)out;
}

/* What one thread copies. */
static double thread_bps(const stw_job *job) {
    const double given = job->cluster->pcie.pageable_bps;
    return given > 0 ? given : PAGEABLE_BPS;
}

/* The thread that fills the driver's buffers is slower than the link; they are read and written
 * besides. */
static void demand_pageable(const stw_job *job, const stw_op *op, stw_demand *out) {
    const bool up = op->to == STW_TIER_GPU;
    stw_demand_copy(job, op->from, op->to, op->bytes, out);
    add_traffic(job, STW_TIER_HOST, 2 * (double)op->bytes, out);
    double *link = &out->seconds[up ? STW_RESOURCE_PCIE_UP : STW_RESOURCE_PCIE_DOWN];
    double by_thread_s = seconds_of((double)op->bytes, thread_bps(job));
    if (*link < by_thread_s) *link = by_thread_s;
}

static void demand_copy(const stw_job *job, const stw_op *op, stw_demand *out) {
    if (op->pageable) {
        demand_pageable(job, op, out);
        return;
    }
    double ranks = op->ranks == STW_OP_RANKS_ONE ? ranks_on_node(job) : 1; /* that have no ring */
    if (op->ring_bytes > 0)
        stw_demand_cached_copy(job, op->from, op->to, op->bytes, op->ring_bytes / (uint64_t)ranks,
                               out);
    else
        stw_demand_copy(job, op->from, op->to, op->bytes, out);
}

static void demand_pass(const stw_job *job, const stw_op *op, stw_demand *out) {
    add_traffic(job, op->to, (double)op->bytes, out);
    if (op->pageable) { /* half is read, half is written */
        out->seconds[STW_RESOURCE_CPU] += seconds_of((double)op->bytes / 2, thread_bps(job));
        return;
    }
    if (op->to == STW_TIER_HOST && job->engine->cpu_pass != NULL)
        out->seconds[STW_RESOURCE_CPU] += job->engine->cpu_pass(job, (double)op->bytes);
}

static void demand_calls(const stw_job *job, const stw_op *op, stw_demand *out) {
    out->startup_s = (double)op->params * job->cluster->host.call_s;
}

/* Bytes of gradients in GPU memory that the norm reads per second. */
static double gpu_norm_bps(const stw_cluster *c, uint64_t element_bytes) {
    if (element_bytes == 2 && c->gpu.norm_bf16_bps > 0) return c->gpu.norm_bf16_bps;
    return c->gpu.norm_bps > 0 ? c->gpu.norm_bps : NORM_HBM_EFFICIENCY * c->gpu.hbm_bps;
}

static void demand_norm(const stw_job *job, const stw_op *op, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    uint64_t element_bytes = stw_job_element_bytes(job, STW_COMPONENT_GRADS);
    double bytes = (double)op->params * (double)element_bytes;
    if (op->to == STW_TIER_GPU) {
        out->seconds[STW_RESOURCE_HBM] += seconds_of(bytes, gpu_norm_bps(c, element_bytes));
        return;
    }
    if (has_framework_step(job)) {
        add_framework_step(job, true, op->params, out);
        return;
    }
    add_traffic(job, op->to, bytes, out);
    double rate = c->cpu_norm_pps > 0 ? c->cpu_norm_pps : c->cpu_adamw_pps / NORM_OF_UPDATE;
    out->seconds[STW_RESOURCE_CPU] += seconds_of(on_cpus(job, op->params), rate);
    if (job->cluster->gpus > 0) out->startup_s += CPU_SLICE_S;
}

/* Latency only: a message of a few hundred bytes. */
static void demand_norm_sum(const stw_job *job, const stw_op *op, stw_demand *out) {
    out->startup_s = op->to == STW_TIER_GPU ? CLIP_S : CLIP_ON_HOST_S;
    if (job->world > 1) out->startup_s += CLIP_OF_RANKS_S + job->cluster->pcie.latency_s;
}

/* The operation reads params and writes masters. A master copy on the GPU is then copied to its
 * home tier. */
static void demand_master(const stw_job *job, const stw_op *op, stw_demand *out) {
    double params = (double)op->params;
    double master = params * (double)stw_job_element_bytes(job, STW_COMPONENT_MASTER);
    add_traffic(job, op->from,
                params * (double)stw_job_element_bytes(job, STW_COMPONENT_PARAMS) + master, out);
    if (op->from == STW_TIER_GPU && op->to != STW_TIER_GPU) add_pcie(job, false, master, out);
    if (op->to == STW_TIER_NVME) add_disk(job, true, master, out);
}

/* Stowage's weight syncs pack and place slices: in GPU memory, a launch each. */
static bool copies_boxes(const stw_job *job, const stw_op *op) {
    return op->to == STW_TIER_GPU && job->engine->spec.own_process &&
           (op->component == STW_COMPONENT_STAGE || op->component == STW_COMPONENT_ROLLOUT_WEIGHTS);
}

/* Reads the stored dtype and writes the run's dtype. */
static void demand_place(const stw_job *job, const stw_op *op, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    if (!copies_boxes(job, op)) {
        add_traffic(job, op->to, 2 * (double)op->bytes, out);
        return;
    }
    const double rate = c->gpu.boxes_bps > 0 ? c->gpu.boxes_bps : BOXES_OF_HBM * c->gpu.hbm_bps;
    out->seconds[STW_RESOURCE_HBM] += seconds_of(2 * (double)op->bytes, rate);
    out->startup_s += c->pcie.latency_s;
}

/* Kernels follow each other: those that memory bounds take the GPU's time, too. */
static void demand_work(const stw_job *job, const stw_op *op, stw_demand *out) {
    out->seconds[STW_RESOURCE_GPU] += stw_work_seconds(job->cluster, op->work, op->n_work);
    out->seconds[STW_RESOURCE_HBM] += stw_work_hbm_seconds(job->cluster, op->work, op->n_work);
}

/* AdamW's passes, or what another optimizer computes. */
static void demand_update(const stw_job *job, const stw_op *op, stw_demand *out) {
    if (op->n_work > 0)
        demand_work(job, op, out);
    else
        stw_demand_update(job, op->update, op->params, op->ring_bytes, out);
}

static void demand_idle(const stw_job *job, const stw_op *op, stw_demand *out) {
    (void)job;
    out->seconds[STW_RESOURCE_GPU] += op->wait_s;
}

static void add_links(const stw_link_time *time, stw_demand *out) {
    out->startup_s = time->startup_s;
    out->seconds[STW_RESOURCE_NVLINK] = time->nvlink_s;
    out->seconds[STW_RESOURCE_NIC] = time->nic_s;
}

static double calls_of(const stw_op *op) { return op->calls > 0 ? op->calls : 1; }

static void demand_collective(const stw_job *job, const stw_op *op, stw_demand *out) {
    uint32_t ranks, on_node;
    stw_job_group_size(job, op->group, &ranks, &on_node);
    if (ranks <= 1) return;
    const stw_link_time time = stw_link_collective(job->cluster, op->kind, ranks, on_node,
                                                   (double)op->bytes, calls_of(op));
    add_links(&time, out);
}

/* Objects are pickled, and their sizes go before them: two small collectives each. */
static void demand_agree(const stw_job *job, const stw_op *op, stw_demand *out) {
    uint32_t ranks, on_node;
    stw_job_group_size(job, op->group, &ranks, &on_node);
    if (ranks > 1) out->startup_s = calls_of(op) * 2 * CLIP_OF_RANKS_S;
}

static void demand_all_to_all(const stw_job *job, const stw_op *op, stw_demand *out) {
    uint32_t ranks, on_node;
    stw_job_group_size(job, op->group, &ranks, &on_node);
    if (ranks <= 1) return;
    const stw_link_time time =
        stw_link_all_to_all(job->cluster, ranks, on_node, (double)op->bytes, calls_of(op));
    add_links(&time, out);
}

static void demand_exchange(const stw_job *job, const stw_op *op, stw_demand *out) {
    const stw_link_time time = stw_link_messages(job->cluster, (double)op->near_bytes,
                                                 (double)op->far_bytes, op->far_messages);
    add_links(&time, out);
}

double stw_demand_reader_bps(const stw_job *job) {
    return job->engine->spec.own_process ? job->cluster->host.file_read_rank_bps : LOADER_BPS;
}

/* From the page cache: the threads of one rank reach a rate of their own, those of all ranks
 * together another one. The copy reads and writes host memory. */
static void add_cached_read(const stw_job *job, const stw_op *op, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    double readers = op->ranks == STW_OP_RANKS_ONE ? 1 : ranks_on_node(job);
    double all = c->host.file_read_bps > 0 ? c->host.file_read_bps : c->host.bandwidth_bps / 2;
    double alone_s = seconds_of((double)op->bytes, stw_demand_reader_bps(job));
    double together_s = seconds_of(readers * (double)op->bytes, all);
    out->seconds[STW_RESOURCE_PAGE_CACHE] = alone_s > together_s ? alone_s : together_s;
    add_traffic(job, STW_TIER_HOST, 2 * (double)op->bytes, out);
}

/* The disk gives bytes that several ranks of a node read once; the others read the page cache. An
 * unknown disk rate costs no time. A framework's one thread is no faster than it is with the page
 * cache. Seconds are those of files also where Stowage would make weights from a seed. */
static void demand_file_read(const stw_job *job, const stw_op *op, stw_demand *out) {
    const uint64_t stored = op->stored_bytes > 0 ? op->stored_bytes : op->bytes;
    if (!job->engine->spec.own_process)
        out->seconds[STW_RESOURCE_PAGE_CACHE] = seconds_of((double)stored, LOADER_BPS);
    if (job->run->load.page_cached) {
        add_cached_read(job, op, out);
        return;
    }
    const double copies = job->node_copies > 1 ? job->node_copies : 1;
    double ranks = op->ranks == STW_OP_RANKS_SAME   ? 1
                   : op->ranks == STW_OP_RANKS_EACH ? ranks_on_node(job) / copies
                                                    : ranks_on_node(job);
    out->seconds[STW_RESOURCE_DISK] = out->seconds[STW_RESOURCE_DISK_READ] =
        seconds_of((double)stored * ranks, job->cluster->nvme.read_bps);
}

/* Files of a checkpoint. */
static void demand_file_write(const stw_job *job, const stw_op *op, stw_demand *out) {
    add_disk(job, true, (double)op->bytes, out);
}

/* What a node shares was charged for all of its ranks. */
static void charge_one_rank(const stw_job *job, stw_demand *out) {
    static const stw_resource shared[] = {
        STW_RESOURCE_DMA, STW_RESOURCE_DMA_UP, STW_RESOURCE_DMA_DOWN,  STW_RESOURCE_HOST_MEMORY,
        STW_RESOURCE_CPU, STW_RESOURCE_DISK,   STW_RESOURCE_DISK_READ, STW_RESOURCE_DISK_WRITE};
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        out->seconds[shared[i]] /= ranks_on_node(job);
}

/* The seconds of a movement are those of the average pass. */
static void charge_one_pass(const stw_op *op, stw_demand *out) {
    for (unsigned r = 0; r < STW_N_RESOURCES; r++) out->seconds[r] /= op->once_in;
    out->startup_s /= op->once_in;
}

static void (*const demands[STW_N_OP_KINDS])(const stw_job *, const stw_op *, stw_demand *) = {
#define X(name, text, class, unit, demand, check) [STW_OP_##name] = demand_##demand,
    STW_OP_TABLE(X)
#undef X
};

bool stw_op_takes_time(const stw_op *op) {
    return (unsigned)op->kind < STW_N_OP_KINDS && demands[op->kind] != demand_nothing;
}

void stw_demand_op(const stw_job *job, const stw_op *op, stw_demand *out) {
    memset(out, 0, sizeof *out);
    if ((unsigned)op->kind < STW_N_OP_KINDS) demands[op->kind](job, op, out);
    if (op->ranks == STW_OP_RANKS_ONE) charge_one_rank(job, out);
    if (op->once_in > 1) charge_one_pass(op, out);
}

double stw_demand_alone_s(const stw_demand *demand) {
    double longest = 0;
    for (unsigned r = 0; r < STW_N_RESOURCES; r++)
        if (demand->seconds[r] > longest) longest = demand->seconds[r];
    return longest + demand->startup_s;
}

void stw_demand_add_movement(const stw_job *job, const stw_program *program,
                             const stw_movement *movement, double *seconds) {
    for (uint32_t i = 0; i < movement->n_ops; i++) {
        stw_demand demand;
        stw_demand_op(job, &program->ops[movement->first_op + i], &demand);
        for (unsigned r = 0; r < STW_N_RESOURCES; r++) seconds[r] += demand.seconds[r];
    }
}

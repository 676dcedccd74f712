/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/demand.h"

#include <string.h>

/* Share of the copy bandwidth of GPU memory that the exact norm reaches: 1855 of 4197 GB/s,
 * measured on an H200, 2026-11-21. The update reaches all of it (4241 GB/s in the same run). */
static const double NORM_HBM_EFFICIENCY = 0.44;

/* Share of the data-sheet bf16 rate that whole training steps reach. Typical of published dense
 * training runs; a calibration of the model's own blocks replaces it. */
static const double MODEL_FLOP_EFFICIENCY = 0.5;

/* Work of the norm on a CPU against that of an update. Its exact accumulation in bins is bound by
 * arithmetic, 0.7 G elements/s on a core, where updates are bound by memory, 5.9 Gparam/s on 16
 * cores (both measured on EPYC machines, 2026-11-21). */
static const double NORM_OF_UPDATE = 0.5;

/* The bins of the norm come to the host, are summed over ranks, and the clip factor goes back
 * before the first update: what a clipped resident step took beyond its bytes, measured on an H200,
 * 2026-11-21. */
static const double CLIP_ROUND_TRIP_S = 0.5e-3;

static const char *const resource_words[] = {
#define X(name, text) text,
    STW_RESOURCE_TABLE(X)
#undef X
};

const char *stw_resource_name(stw_resource resource) {
    return (unsigned)resource < STW_N_RESOURCES ? resource_words[resource] : "?";
}

/* A rate that the cluster does not state (0) asks nothing: specs refuse zero where a rate counts.
 */
static double seconds_of(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/* What every rank of a node asks at once: bytes times this. */
static double ranks_on_node(const stw_job *job) {
    uint32_t ranks = job->world < job->ranks_per_node ? job->world : job->ranks_per_node;
    return ranks > 0 ? (double)ranks : 1;
}

/* A link direction alone runs at its own rate; with the other direction busy too, both sum up on
 * PCIE to twice the rate of one of them then. */
static void add_pcie(const stw_job *job, bool up, double bytes, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    double on_node = bytes * ranks_on_node(job);
    stw_resource direction = up ? STW_RESOURCE_PCIE_UP : STW_RESOURCE_PCIE_DOWN;
    out->seconds[direction] += seconds_of(bytes, up ? c->pcie.h2d_bps : c->pcie.d2h_bps);
    out->seconds[STW_RESOURCE_PCIE] += seconds_of(bytes, 2 * c->pcie.both_bps);
    out->seconds[STW_RESOURCE_DMA] += seconds_of(on_node, c->host.dma_bps);
    out->seconds[STW_RESOURCE_HOST_MEMORY] += seconds_of(on_node, c->host.bandwidth_bps);
    out->startup_s += c->pcie.latency_s;
}

static void add_disk(const stw_job *job, bool write, double bytes, stw_demand *out) {
    const stw_cluster *c = job->cluster;
    double on_node = bytes * ranks_on_node(job);
    out->seconds[STW_RESOURCE_DISK] +=
        seconds_of(on_node, write ? c->nvme.write_bps : c->nvme.read_bps);
    out->seconds[STW_RESOURCE_HOST_MEMORY] += seconds_of(on_node, c->host.bandwidth_bps);
}

/* Memory traffic of a kernel or a CPU loop in its own tier. */
static void add_traffic(const stw_job *job, stw_tier tier, double bytes, double hbm_efficiency,
                        stw_demand *out) {
    const stw_cluster *c = job->cluster;
    if (tier == STW_TIER_GPU)
        out->seconds[STW_RESOURCE_HBM] += seconds_of(bytes, hbm_efficiency * c->gpu.hbm_bps);
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

/* Bytes that an update moves per parameter: everything is read and, but for the gradient, written;
 * parameters that have a master copy are only written. 28 with fp32 throughout and no master. */
static double update_element_bytes(const stw_job *job) {
    bool has_master = stw_job_element_bytes(job, STW_COMPONENT_MASTER) > 0;
    uint64_t bytes = 0;
    for (unsigned c = 0; c < STW_N_STATE; c++) {
        uint64_t element = stw_job_element_bytes(job, (stw_component)c);
        bool once = c == STW_COMPONENT_GRADS || (c == STW_COMPONENT_PARAMS && has_master);
        bytes += once ? element : 2 * element;
    }
    return (double)bytes;
}

void stw_demand_update(const stw_job *job, stw_tier tier, uint64_t params, stw_demand *out) {
    memset(out, 0, sizeof *out);
    add_traffic(job, tier, (double)params * update_element_bytes(job), 1, out);
    if (tier != STW_TIER_GPU)
        out->seconds[STW_RESOURCE_CPU] +=
            seconds_of((double)params * ranks_on_node(job), job->cluster->cpu_adamw_pps);
}

static void demand_norm(const stw_job *job, const stw_op *op, stw_demand *out) {
    double element = (double)stw_job_element_bytes(job, STW_COMPONENT_GRADS);
    double efficiency = op->to == STW_TIER_GPU ? NORM_HBM_EFFICIENCY : 1;
    add_traffic(job, op->to, (double)op->params * element, efficiency, out);
    if (op->to != STW_TIER_GPU)
        out->seconds[STW_RESOURCE_CPU] += seconds_of(
            NORM_OF_UPDATE * (double)op->params * ranks_on_node(job), job->cluster->cpu_adamw_pps);
}

/* Making the master copy reads params and writes masters. */
static void demand_master(const stw_job *job, const stw_op *op, stw_demand *out) {
    double element = (double)(stw_job_element_bytes(job, STW_COMPONENT_PARAMS) +
                              stw_job_element_bytes(job, STW_COMPONENT_MASTER));
    double bytes = op->params > 0 ? (double)op->params * element : 2 * (double)op->bytes;
    add_traffic(job, op->to, bytes, 1, out);
}

static void demand_compute(const stw_job *job, const stw_op *op, stw_demand *out) {
    switch (op->work) {
    case STW_WORK_NORM:
        demand_norm(job, op, out);
        break;
    case STW_WORK_MASTER:
        demand_master(job, op, out);
        break;
    case STW_WORK_PLACE: /* read in the stored dtype, written in the run's */
        add_traffic(job, op->to, 2 * (double)op->bytes, 1, out);
        break;
    default:
        break;
    }
    out->seconds[STW_RESOURCE_GPU] +=
        seconds_of(op->flops, MODEL_FLOP_EFFICIENCY * job->cluster->gpu.bf16_flops);
}

/* The ranks of a collective: how many, and how many of them on one node. Sharding groups are runs
 * of neighbouring ranks; replicas of one shard lie a whole group apart. */
static void participants(const stw_job *job, stw_work work, uint32_t *ranks, uint32_t *on_node) {
    uint32_t group = job->group > 0 ? job->group : 1;
    uint32_t stride = 1;
    switch (work) {
    case STW_WORK_ALL_GATHER:
    case STW_WORK_REDUCE_SCATTER:
        *ranks = group;
        break;
    case STW_WORK_ALL_REDUCE: /* between replicas; over everybody where there are none */
        stride = job->world > group ? group : 1;
        *ranks = job->world / stride;
        break;
    default:
        *ranks = job->world;
        break;
    }
    *on_node = job->ranks_per_node / stride;
    if (*on_node < 1) *on_node = 1;
    if (*on_node > *ranks) *on_node = *ranks;
}

/* Bytes that pass a rank's link in a ring, as a share of the full result: bus bandwidth in
 * NVIDIA/nccl-tests doc/PERFORMANCE.md at 03a204a. Across nodes the ranks of a node carry one ring
 * each over their own NIC, so that a NIC sees the traffic of one ring divided by their number,
 * while every hop inside the node still passes NVLink. */
static void demand_collective(const stw_job *job, const stw_op *op, stw_demand *out) {
    uint32_t ranks, on_node;
    participants(job, op->work, &ranks, &on_node);
    if (op->work == STW_WORK_NORM_SUM) { /* a few hundred bytes */
        out->startup_s = CLIP_ROUND_TRIP_S;
        return;
    }
    if (ranks <= 1) return;
    out->startup_s = job->cluster->pcie.latency_s;
    double others = (double)(ranks - 1) / (double)ranks;
    double share = op->work == STW_WORK_BROADCAST    ? 1
                   : op->work == STW_WORK_ALL_REDUCE ? 2 * others
                                                     : others;
    double bytes = (double)op->bytes * share;
    if (on_node > 1)
        out->seconds[STW_RESOURCE_NVLINK] = seconds_of(bytes, job->cluster->nvlink_bps);
    if (ranks > on_node)
        out->seconds[STW_RESOURCE_NIC] = seconds_of(bytes, on_node * job->cluster->nic_bps);
}

/* A weights file is read once per node (ranks that read the same bytes find them in the page
 * cache), from a disk of known speed or else from where reading costs nothing. Weights that Stowage
 * makes from a seed are on no disk. */
static void demand_weights_file(const stw_job *job, const stw_op *op, stw_demand *out) {
    memset(out, 0, sizeof *out);
    if (job->run->engine == STW_ENGINE_STOWAGE && job->run->load.weights == NULL) return;
    out->seconds[STW_RESOURCE_DISK] = seconds_of((double)op->bytes, job->cluster->nvme.read_bps);
}

void stw_demand_op(const stw_job *job, const stw_op *op, stw_demand *out) {
    memset(out, 0, sizeof *out);
    switch (op->kind) {
    case STW_OP_COPY:
        stw_demand_copy(job, op->from, op->to, op->bytes, out);
        break;
    case STW_OP_UPDATE:
        stw_demand_update(job, op->to, op->params, out);
        break;
    case STW_OP_COMPUTE:
        demand_compute(job, op, out);
        break;
    case STW_OP_COLLECTIVE:
        demand_collective(job, op, out);
        break;
    case STW_OP_READ:
        if (op->component == STW_COMPONENT_LOAD_STAGING)
            demand_weights_file(job, op, out);
        else
            stw_demand_copy(job, STW_TIER_NVME, STW_TIER_HOST, op->bytes, out);
        break;
    case STW_OP_WRITE:
        stw_demand_copy(job, STW_TIER_HOST, STW_TIER_NVME, op->bytes, out);
        break;
    default:
        break;
    }
}

double stw_demand_alone_s(const stw_demand *demand) {
    double longest = 0;
    for (unsigned r = 0; r < STW_N_RESOURCES; r++)
        if (demand->seconds[r] > longest) longest = demand->seconds[r];
    return longest + demand->startup_s;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "core/units.h"
#include "plan/spec/cluster.h"

static uint64_t part_u64(uint64_t whole, double share) {
    return whole == STW_UNLIMITED ? whole : (uint64_t)((double)whole * share);
}

/* Not all GPUs of a host move bytes at once: one that does has its own link, up to half of what the
 * host moves (models/clusters/nodes.csv). */
static void lift(double *rate, double whole_bps, double link_bps) {
    *rate = fmax(*rate, fmin(link_bps, whole_bps / 2));
}

void stw_cluster_part(const stw_cluster *node, uint32_t gpus, stw_cluster *out) {
    const double share = node->gpus > 0 ? (double)gpus / node->gpus : 1;
    *out = *node;
    out->gpus = gpus;
    if (share == 1) return;
    uint64_t *const bytes[] = {&out->host.memory_bytes,          &out->host.limit_bytes,
                               &out->host.page_lock_limit_bytes, &out->host.object_store_bytes,
                               &out->host.data_loaders_bytes,    &out->host.shm_bytes,
                               &out->host.cache_bytes,           &out->nvme.capacity_bytes};
    double *const rates[] = {
        &out->host.bandwidth_bps,    &out->host.dma_bps,           &out->host.dma_beside_bps,
        &out->host.dma_up_bps,       &out->host.dma_down_bps,      &out->host.page_lock_bps,
        &out->host.file_read_bps,    &out->nvme.read_bps,          &out->nvme.write_bps,
        &out->nvme.both_bps,         &out->torch.loop.all_pps,     &out->torch.loop.one_pps,
        &out->torch.foreach.all_pps, &out->torch.foreach.one_pps,  &out->torch.fused.all_pps,
        &out->torch.fused.one_pps,   &out->torch.cpu_adam.all_pps, &out->torch.cpu_adam.one_pps,
        &out->cpu_adamw_pps,         &out->cpu_adamw_ring_pps,     &out->cpu_norm_pps};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        *bytes[i] = part_u64(*bytes[i], share);
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) *rates[i] *= share;
    lift(&out->host.dma_bps, node->host.dma_bps, 2 * node->pcie.both_bps);
    lift(&out->host.dma_up_bps, node->host.dma_up_bps, node->pcie.h2d_bps);
    lift(&out->host.dma_down_bps, node->host.dma_down_bps, node->pcie.d2h_bps);
    out->host.bandwidth_bps = fmax(out->host.bandwidth_bps, out->host.dma_bps);
    out->host.cores = (uint32_t)fmax(1, floor(out->host.cores * share));
    if (gpus == 1) out->gpu.comm_bytes = 0; /* no communicator with one rank */
}

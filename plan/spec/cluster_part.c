/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "core/units.h"
#include "plan/spec/cluster.h"
#include "plan/spec/spec_keys.h"

static uint64_t part_u64(uint64_t whole, double share) {
    return whole == STW_UNLIMITED ? whole : (uint64_t)((double)whole * share);
}

/* Not all GPUs of a host move bytes at once: one that does has its own link, up to half of what the
 * host moves (models/clusters/nodes.csv). */
static void lift(double *rate, double whole_bps, double link_bps) {
    *rate = fmax(*rate, fmin(link_bps, whole_bps / 2));
}

void stw_cluster_part(const stw_cluster *node, uint32_t gpus, stw_cluster *out) {
    const stw_spec_table *table = stw_cluster_table();
    const double share = node->gpus > 0 ? (double)gpus / node->gpus : 1;
    *out = *node;
    out->gpus = gpus;
    if (share == 1) return;
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        char *at = (char *)out + row->offset;
        if (!row->shared) continue;
        if (row->kind == STW_SPEC_BYTES)
            *(uint64_t *)at = part_u64(*(uint64_t *)at, share);
        else
            *(double *)at *= share;
    }
    lift(&out->host.dma_bps, node->host.dma_bps, 2 * node->pcie.both_bps);
    lift(&out->host.dma_up_bps, node->host.dma_up_bps, node->pcie.h2d_bps);
    lift(&out->host.dma_down_bps, node->host.dma_down_bps, node->pcie.d2h_bps);
    out->host.bandwidth_bps = fmax(out->host.bandwidth_bps, out->host.dma_bps);
    out->host.cores = (uint32_t)fmax(1, floor(out->host.cores * share));
    if (gpus == 1) out->gpu.comm_bytes = 0; /* no communicator with one rank */
}

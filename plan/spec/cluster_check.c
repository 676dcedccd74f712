/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/cluster_check.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/units.h"
#include "plan/spec/cluster_assumed.h"
#include "plan/spec/cluster_learned.h"
#include "plan/spec/gpu_rates.h"

static stw_status refuse(const char *origin, const char *key, const char *found,
                         const char *expected, stw_error *err) {
    return stw_fail(err, STW_STATUS_BAD_INPUT, origin, "%s: found %s, expected %s", key, found,
                    expected);
}

/* Rates that are divisors. */
static stw_status check_rates(const stw_cluster *c, const char *origin, stw_error *err) {
    const struct {
        const char *key;
        double value;
        bool used;
    } rates[] = {
        {"network.nic", c->nic_bps, c->nodes > 1},
        {"node.gpu.hbm", c->gpu.hbm_bps, true},
        {"node.gpu.bf16", c->gpu.bf16_flops, true},
        {"node.host.bandwidth", c->host.bandwidth_bps, true},
        {"node.host.dma", c->host.dma_bps, true},
        {"node.pcie.h2d", c->pcie.h2d_bps, true},
        {"node.pcie.d2h", c->pcie.d2h_bps, true},
        {"node.pcie.both", c->pcie.both_bps, true},
        {"node.nvlink", c->nvlink_bps, c->gpus > 1},
        {"node.nvme.read", c->nvme.read_bps, c->nvme.capacity_bytes > 0},
        {"node.nvme.write", c->nvme.write_bps, c->nvme.capacity_bytes > 0},
        {"node.cpu_adamw", c->cpu_adamw_pps, true},
    };
    if (c->gpus > 1 && !stw_cluster_has_gpus(c) && !(c->nvlink_bps > 0))
        return stw_fail(err, STW_STATUS_BAD_INPUT, origin,
                        "node.nvlink: found 0 with node.gpus %u, but there is no GPU: set "
                        "node.nvlink to link emulated ones, or leave node.gpus at 0 and set "
                        "nodes=%u",
                        c->gpus, c->gpus);
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        if (rates[i].used && !(rates[i].value > 0))
            return refuse(origin, rates[i].key, "0", "a rate above 0", err);
    return STW_STATUS_OK;
}

static stw_status check_gpu_rates(const stw_cluster *c, const char *origin, stw_error *err) {
    const char *known;
    if (stw_gpu_rates_known(c->gpu.rates, &known)) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, origin,
                    "node.gpu.rates: found \"%.15s\", expected one of %s", c->gpu.rates, known);
}

/* Rates that contain each other. An exact norm only reads, which can be faster than the copies that
 * node.gpu.hbm is measured with. */
#define AT(member) offsetof(stw_cluster, member)
#define READS_OF_COPIES 1.25
static const struct {
    const char *key;
    size_t at;
    const char *whole_key;
    size_t whole_at;
    double share; /* of the whole that the rate may have */
} parts[] = {
    {"node.pcie.both", AT(pcie.both_bps), "node.pcie.h2d", AT(pcie.h2d_bps), 1},
    {"node.pcie.both", AT(pcie.both_bps), "node.pcie.d2h", AT(pcie.d2h_bps), 1},
    {"node.pcie.direct", AT(pcie.direct_bps), "node.pcie.h2d", AT(pcie.h2d_bps), 1},
    {"node.pcie.direct", AT(pcie.direct_bps), "node.pcie.d2h", AT(pcie.d2h_bps), 1},
    {"node.host.dma", AT(host.dma_bps), "node.host.bandwidth", AT(host.bandwidth_bps), 1},
    {"node.host.dma_up", AT(host.dma_up_bps), "node.host.bandwidth", AT(host.bandwidth_bps), 1},
    {"node.host.dma_down", AT(host.dma_down_bps), "node.host.bandwidth", AT(host.bandwidth_bps), 1},
    {"node.host.dma_beside", AT(host.dma_beside_bps), "node.host.bandwidth", AT(host.bandwidth_bps),
     1},
    {"node.host.dma_beside", AT(host.dma_beside_bps), "node.host.dma", AT(host.dma_bps), 1},
    {"node.gpu.update", AT(gpu.update_bps), "node.gpu.hbm", AT(gpu.hbm_bps), READS_OF_COPIES},
    {"node.gpu.norm", AT(gpu.norm_bps), "node.gpu.hbm", AT(gpu.hbm_bps), READS_OF_COPIES},
    {"node.gpu.norm_bf16", AT(gpu.norm_bf16_bps), "node.gpu.hbm", AT(gpu.hbm_bps), READS_OF_COPIES},
    {"node.gpu.boxes", AT(gpu.boxes_bps), "node.gpu.hbm", AT(gpu.hbm_bps), READS_OF_COPIES},
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

static double rate_at(const stw_cluster *c, size_t at) {
    double rate;
    memcpy(&rate, (const char *)c + at, sizeof rate);
    return rate;
}

void stw_cluster_lower_rates(stw_cluster *cluster, const stw_cluster_given *given) {
    for (size_t i = 0; i < N_PARTS; i++) {
        double most = parts[i].share * rate_at(cluster, parts[i].whole_at);
        bool own = given != NULL && (given->has(given->context, parts[i].key) ||
                                     !given->has(given->context, parts[i].whole_key));
        if (!own && most > 0 && rate_at(cluster, parts[i].at) > most)
            memcpy((char *)cluster + parts[i].at, &most, sizeof most);
    }
    double disk = cluster->nvme.read_bps + cluster->nvme.write_bps;
    if (given == NULL && cluster->nvme.both_bps > disk) cluster->nvme.both_bps = disk;
}

/* `most`: of `whole`, in words; 0: unknown. */
static stw_status check_rate(const char *origin, const char *key, double rate, stw_unit unit,
                             const char *whole, double most, stw_error *err) {
    char found[32], limit[32], expected[160];
    if (!(rate > most) || !(most > 0)) return STW_STATUS_OK;
    stw_quantity_format(rate, unit, found, sizeof found);
    stw_quantity_format(most, unit, limit, sizeof limit);
    snprintf(expected, sizeof expected, "at most %s = %s", whole, limit);
    return refuse(origin, key, found, expected, err);
}

static stw_status check_parts(const stw_cluster *c, const char *origin, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < N_PARTS; i++) {
        char whole[64];
        double most = parts[i].share * rate_at(c, parts[i].whole_at);
        if (parts[i].share > 1)
            snprintf(whole, sizeof whole, "%g x %s", parts[i].share, parts[i].whole_key);
        else
            snprintf(whole, sizeof whole, "%s", parts[i].whole_key);
        STW_TRY(check_rate(origin, parts[i].key, rate_at(c, parts[i].at), STW_UNIT_BPS, whole, most,
                           err));
    }
    STW_TRY(check_rate(origin, "node.nvme.both", c->nvme.both_bps, STW_UNIT_BPS,
                       "node.nvme.read + node.nvme.write", c->nvme.read_bps + c->nvme.write_bps,
                       err));
out:
    return status;
}

/* `part` must be below `whole`; it may equal it if `may_equal`. */
static stw_status check_below(const char *origin, const char *key, uint64_t part,
                              const char *whole_key, uint64_t whole, bool may_equal,
                              stw_error *err) {
    char found[32], limit[32], expected[96];
    if (part < whole || (may_equal && part == whole)) return STW_STATUS_OK;
    stw_bytes_format(part, found, sizeof found);
    stw_bytes_format(whole, limit, sizeof limit);
    snprintf(expected, sizeof expected, "%s %s = %s", may_equal ? "at most" : "less than",
             whole_key, limit);
    return refuse(origin, key, found, expected, err);
}

stw_status stw_cluster_check(const stw_cluster *c, const char *origin, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (c->assumed[0])
        return refuse(origin, stw_cluster_assumable[0].word, "nothing",
                      "the memory of a GPU, such as 80 GiB", err);
    STW_TRY(check_below(origin, "node.host.limit", c->host.limit_bytes, "node.host.memory",
                        c->host.memory_bytes, true, err));
    STW_TRY(check_below(origin, "node.host.process", c->host.process_bytes, "node.host.limit",
                        c->host.limit_bytes, false, err));
    STW_TRY(check_below(origin, "node.host.process_comm", c->host.process_comm_bytes,
                        "node.host.limit - node.host.process",
                        c->host.limit_bytes - c->host.process_bytes, false, err));
    STW_TRY(check_below(origin, "node.host.object_store", c->host.object_store_bytes,
                        "node.host.shm", c->host.shm_bytes, true, err));
    STW_TRY(check_below(origin, "node.gpu.context", c->gpu.context_bytes, "node.gpu.memory",
                        c->gpu.memory_bytes, false, err));
    STW_TRY(check_below(origin, "node.gpu.comm", c->gpu.comm_bytes,
                        "node.gpu.memory - node.gpu.context",
                        c->gpu.memory_bytes - c->gpu.context_bytes, false, err));
    STW_TRY(check_rates(c, origin, err));
    STW_TRY(check_gpu_rates(c, origin, err));
    STW_TRY(check_parts(c, origin, err));
    STW_TRY(check_rate(origin, "node.gpu.best_bf16", c->gpu.best_bf16_flops, STW_UNIT_FLOPS,
                       "node.gpu.bf16", c->gpu.bf16_flops, err));
    STW_TRY(stw_cluster_check_learned(c, origin, err));
out:
    return status;
}

/* ---- keys that follow others ---- */

typedef struct settings {
    const char *const *items; /* "KEY=VALUE" */
    size_t n;
} settings;

static bool is_set(const void *context, const char *key) {
    const settings *all = context;
    size_t length = strlen(key);
    for (size_t i = 0; i < all->n; i++)
        if (strncmp(all->items[i], key, length) == 0 && all->items[i][length] == '=') return true;
    return false;
}

/* The system keeps its share of a memory that is set alone. */
static void follow_memory(const stw_cluster *before, const settings *all, stw_cluster *cluster) {
    if (is_set(all, "node.host.limit")) return;
    uint64_t memory = cluster->host.memory_bytes, was = before->host.memory_bytes;
    if (memory == was || was == 0) return;
    double share = (double)before->host.limit_bytes / (double)was;
    uint64_t limit = share < 1 ? (uint64_t)(share * (double)memory) : memory;
    cluster->host.limit_bytes = limit > 0 ? limit : memory;
}

/* The fastest product keeps its share of a peak that is set alone. */
static void follow_peak(const stw_cluster *before, const settings *all, stw_cluster *cluster) {
    const double was = before->gpu.bf16_flops, now = cluster->gpu.bf16_flops;
    if (is_set(all, "node.gpu.best_bf16") || !(was > 0) || now == was) return;
    cluster->gpu.best_bf16_flops = before->gpu.best_bf16_flops * (now / was);
}

void stw_cluster_follow(const stw_cluster *before, const char *const *items, size_t n,
                        stw_cluster *cluster) {
    const settings all = {items, n};
    follow_memory(before, &all, cluster);
    follow_peak(before, &all, cluster);
    if (is_set(&all, "node.gpu.bf16") && !is_set(&all, "node.gpu.name") && cluster->gpus > 0 &&
        !stw_cluster_has_gpus(cluster)) /* a GPU is described that this machine lacks */
        memcpy(memset(cluster->gpu.name, 0, sizeof cluster->gpu.name), "GPU", 3);
    stw_cluster_lower_rates(cluster, &(stw_cluster_given){is_set, &all});
    stw_cluster_forget_unused(cluster);
}

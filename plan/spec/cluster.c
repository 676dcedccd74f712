/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/spec/cluster_assumed.h"
#include "plan/spec/cluster_check.h"
#include "plan/spec/cluster_learned.h"
#include "plan/spec/spec_keys.h"

#define AT(member)                                                                                 \
    .offset = offsetof(stw_cluster, member), .size = sizeof(((stw_cluster *)0)->member)
#define TEXT(name, member) .key = name, .kind = STW_SPEC_TEXT, AT(member)
#define COUNT(name, member) .key = name, .kind = STW_SPEC_COUNT, .unit = STW_UNIT_COUNT, AT(member)
#define BYTES(name, member) .key = name, .kind = STW_SPEC_BYTES, .unit = STW_UNIT_BYTES, AT(member)
#define BPS(name, member) .key = name, .kind = STW_SPEC_NUMBER, .unit = STW_UNIT_BPS, AT(member)
#define IN(quantity, name, member)                                                                 \
    .key = name, .kind = STW_SPEC_NUMBER, .unit = quantity, AT(member)

#define BOUNDS(first, last) .least = first, .most = last
#define NEEDS(name) (1ull << STW_NEED_##name)
/* Bounds keep every predicted second finite and above the rounding of sums. */
#define SIZE(first) BOUNDS(first, 1152921504606846976.0) /* up to 1024 PiB */
#define RATE BOUNDS(1e6, 1e15)                           /* bytes per second */
#define RATE_OR_0 RATE, .zero = true
#define UPDATES BOUNDS(1e5, 1e13) /* parameters per second */

/* A framework's optimizer on the CPU: with all cores and with one thread a rank. */
#define TORCH(name, member, what)                                                                  \
    {IN(STW_UNIT_PPS, "node.torch." name, torch.member.all_pps),                                   \
     .shared = true,                                                                               \
     .fallback = "0",                                                                              \
     .note = what ", all ranks of the node with all cores; 0: by memory traffic",                  \
     UPDATES,                                                                                      \
     .zero = true,                                                                                 \
     .needs = NEEDS(RATE)},                                                                        \
    {                                                                                              \
        IN(STW_UNIT_PPS, "node.torch." name "_one", torch.member.one_pps),                         \
            .shared = true, .fallback = "0", .note = "the same, each rank with one thread",        \
            UPDATES, .zero = true, .needs = NEEDS(RATE)                                            \
    }

/* Where a learned value comes from. Rows of what was not learned are not written. */
#define LEARNED_TEXT(name, member)                                                                 \
    { TEXT(name, member), .fallback = "", .note = "", .label = true }
#define LEARNED(name, which, value_at, was_at, what)                                               \
    {value_at, .fallback = "0", .note = what, .label = true},                                      \
        {was_at, .fallback = "0", .note = "before", .label = true},                                \
        LEARNED_TEXT("learned." name ".from", learned[which].from),                                \
        LEARNED_TEXT("learned." name ".model", learned[which].model),                              \
        LEARNED_TEXT("learned." name ".phase", learned[which].phase),                              \
        LEARNED_TEXT("learned." name ".date", learned[which].date), {                              \
        COUNT("learned." name ".samples", learned[which].samples),                                 \
            .fallback = "0", BOUNDS(0, 4294967295.0), .label = true                                \
    }
#define LEARNED_BYTES(name, which, what)                                                           \
    LEARNED(name, which, BYTES("learned." name ".value", learned[which].value.bytes),              \
            BYTES("learned." name ".was", learned[which].was.bytes), what)
#define LEARNED_RATIO(name, which, what)                                                           \
    LEARNED(name, which,                                                                           \
            IN(STW_UNIT_RATIO, "learned." name ".value", learned[which].value.number),             \
            IN(STW_UNIT_RATIO, "learned." name ".was", learned[which].was.number), what)

static const stw_spec_word unlimited[] = {{"unlimited", STW_UNLIMITED, NULL}, {NULL, 0, NULL}};

/* The defaults are one H200 in a small host: its memory as the driver reports it, and rates below
 * those of models/examples/h200-x1.yaml, so that plans without a calibration are pessimistic. */
static const stw_spec_row rows[] = {
    {.key = "assumed",
     .kind = STW_SPEC_FLAGS,
     AT(assumed),
     .words = stw_cluster_assumable,
     .fallback = "[]",
     .note = "keys that were not given; written by Stowage",
     .label = true},
    {TEXT("name", name), .fallback = "default", .note = "", .label = true},
    {COUNT("nodes", nodes), .also = "nnodes n_nodes num_nodes world_size", .fallback = "1",
     BOUNDS(1, 65536)},
    {BPS("network.nic", nic_bps), .also = "infiniband ib roce rdma efa", .fallback = "25 GB/s",
     .note = "per GPU, between nodes", RATE_OR_0, .needs = NEEDS(NODES)},
    {COUNT("node.gpus", gpus),
     .also = "n_gpus num_gpus ngpus n_gpus_per_node gpus_per_node nproc_per_node world_size",
     .fallback = "1", .note = "0: the host backend emulates one", BOUNDS(0, 256)},
    {TEXT("node.gpu.name", gpu.name), .fallback = "NVIDIA H200", .label = true},
    {BYTES("node.gpu.memory", gpu.memory_bytes), .also = "gpu_memory vram hbm_size gpu_mem",
     .fallback = "139.8 GiB", .note = "as the driver reports it", SIZE(1048576.0)},
    {BYTES("node.gpu.context", gpu.context_bytes), .fallback = "530 MiB",
     .note = "taken by the CUDA context", SIZE(0)},
    {BYTES("node.gpu.comm", gpu.comm_bytes), .fallback = "1.2 GiB",
     .note = "taken by NCCL after first use", SIZE(0), .needs = NEEDS(RANKS)},
    {IN(STW_UNIT_BPS, "node.gpu.hbm", gpu.hbm_bps), .fallback = "4 TB/s",
     .note = "read and written together", RATE},
    {BPS("node.gpu.update", gpu.update_bps), .fallback = "0",
     .note = "AdamW with all state there, read and written; 0: as hbm", RATE_OR_0,
     .needs = NEEDS(STEP)},
    {BPS("node.gpu.norm", gpu.norm_bps), .fallback = "0",
     .note = "fp32 gradients read by the exact norm; 0: 0.8 of hbm", RATE_OR_0,
     .needs = NEEDS(STEP) | NEEDS(CLIP)},
    {BPS("node.gpu.norm_bf16", gpu.norm_bf16_bps), .fallback = "0",
     .note = "bf16 gradients; 0: as norm", RATE_OR_0,
     .needs = NEEDS(STEP) | NEEDS(CLIP) | NEEDS(BF16_GRADS)},
    {BPS("node.gpu.boxes", gpu.boxes_bps), .fallback = "0",
     .note = "copies of slices of tensors (weight syncs), read and written; 0: 0.55 of hbm",
     RATE_OR_0, .needs = NEEDS(OWN) | NEEDS(SYNCS)},
    {IN(STW_UNIT_FLOPS, "node.gpu.bf16", gpu.bf16_flops), .also = "flops tflops peak_flops",
     .fallback = "989 TFLOP/s", .note = "dense peak of the data sheet", BOUNDS(1e9, 1e20),
     .needs = NEEDS(FORWARD)},
    {IN(STW_UNIT_FLOPS, "node.gpu.best_bf16", gpu.best_bf16_flops), .fallback = "0",
     .note = "the fastest product that was measured; 0: the share of the peak that rates have",
     BOUNDS(1e9, 1e20), .zero = true, .needs = NEEDS(FORWARD)},
    {TEXT("node.gpu.rates", gpu.rates), .fallback = "hopper",
     .note = "shares of the peak by kind of work: an architecture in models/clusters/rates.csv",
     .needs = NEEDS(FORWARD)},
    {IN(STW_UNIT_RATIO, "node.gpu.efficiency", gpu.efficiency), .also = "mfu", .fallback = "1",
     .note = "of forward and backward, relative to these rates: predicted over real seconds",
     BOUNDS(0.01, 10), .needs = NEEDS(FORWARD)},
    {IN(STW_UNIT_RATIO, "node.price_per_gpu_hour", usd_per_gpu_hour),
     .also = "price cost usd gpu_price hourly_price", .fallback = "0",
     .note = "USD, of a GPU with its part of the node; 0: unknown, no costs are shown",
     BOUNDS(1e-6, 1e6), .zero = true, .label = true},
    {BYTES("node.host.memory", host.memory_bytes), .shared = true,
     .also = "ram dram cpu_memory host_memory", .fallback = "125 GiB", .note = "per node",
     SIZE(1048576.0)},
    {BYTES("node.host.limit", host.limit_bytes), .shared = true,
     .also = "memory_limit cgroup mem_limit", .fallback = "125 GiB",
     .note = "usable part of it (cgroup); default: all of it", SIZE(1048576.0)},
    {BYTES("node.host.page_lock_limit", host.page_lock_limit_bytes), .shared = true,
     .words = unlimited, .also = "memlock pinned pin_memory", .fallback = "unlimited",
     .note = "RLIMIT_MEMLOCK", SIZE(0)},
    {BYTES("node.host.process", host.process_bytes), .fallback = "1.4 GiB",
     .note = "base of one rank's process", SIZE(0)},
    {BYTES("node.host.process_comm", host.process_comm_bytes), .fallback = "0",
     .note = "more of it in jobs of several ranks: the communicator", SIZE(0),
     .needs = NEEDS(RANKS)},
    {BYTES("node.host.object_store", host.object_store_bytes), .shared = true,
     .also = "plasma ray_object_store", .fallback = "0",
     .note = "of a job's scheduler (Ray), per node, as far as it is filled", SIZE(0)},
    {BYTES("node.host.shm", host.shm_bytes), .shared = true, .words = unlimited,
     .also = "dev_shm shm_size", .fallback = "unlimited",
     .note = "size of /dev/shm, in which the object store has to fit", SIZE(0),
     .needs = NEEDS(STORE)},
    {BYTES("node.host.data_loaders", host.data_loaders_bytes), .shared = true,
     .also = "dataloader num_workers", .fallback = "0",
     .note = "processes and buffers of data loaders, per node", SIZE(0)},
    {IN(STW_UNIT_RATIO, "node.host.kill_share", host.kill_share),
     .also = "ray_memory_usage_threshold memory_usage_threshold oom_threshold", .fallback = "1",
     .note = "of memory and limit, where a scheduler kills: Ray 0.95 unless told; 1: it does not",
     BOUNDS(0.01, 1)},
    {BPS("node.host.bandwidth", host.bandwidth_bps), .shared = true, .fallback = "120 GB/s",
     .note = "CPU and DMA together, per node", RATE},
    {BPS("node.host.dma", host.dma_bps), .shared = true, .fallback = "90 GB/s",
     .note = "all GPUs' copies together, both ways, per node", RATE},
    {BPS("node.host.dma_beside", host.dma_beside_bps), .shared = true, .fallback = "0",
     .note = "the same during CPU updates; 0: a fair share", RATE_OR_0, .needs = NEEDS(OWN)},
    {BPS("node.host.dma_up", host.dma_up_bps), .shared = true, .fallback = "0",
     .note = "all GPUs, host to device only; 0: as dma", RATE_OR_0},
    {BPS("node.host.dma_down", host.dma_down_bps), .shared = true, .fallback = "0",
     .note = "all GPUs, device to host only; 0: as dma", RATE_OR_0},
    {BPS("node.host.page_lock", host.page_lock_bps), .shared = true, .fallback = "0",
     .note = "mapping, touching and page-locking; 0: unknown", RATE_OR_0, .needs = NEEDS(PLANS)},
    {BPS("node.host.file_read", host.file_read_bps), .shared = true, .fallback = "0",
     .note = "page-cached files, all ranks together; 0: half of bandwidth", RATE_OR_0,
     .needs = NEEDS(CACHED)},
    {BPS("node.host.file_read_rank", host.file_read_rank_bps), .fallback = "0",
     .note = "the same, one rank alone; 0: as all together", RATE_OR_0,
     .needs = NEEDS(OWN) | NEEDS(CACHED)},
    {BYTES("node.host.cache", host.cache_bytes), .shared = true, .fallback = "0",
     .note = "L2 and L3 caches together; 0: unknown", SIZE(0), .needs = NEEDS(OWN)},
    {COUNT("node.host.cores", host.cores), .fallback = "16", BOUNDS(1, 65536),
     .needs = NEEDS(PLANS)},
    {IN(STW_UNIT_SECONDS, "node.host.call", host.call_s), .fallback = "10 us",
     .note = "of a framework's process, to issue one small operation to the GPU", BOUNDS(1e-9, 0.1),
     .needs = NEEDS(ISSUES)},
    {BPS("node.pcie.h2d", pcie.h2d_bps), .fallback = "50 GB/s", .note = "alone, per GPU", RATE},
    {BPS("node.pcie.d2h", pcie.d2h_bps), .fallback = "50 GB/s", .note = "alone, per GPU", RATE},
    {BPS("node.pcie.both", pcie.both_bps), .fallback = "45 GB/s",
     .note = "each direction while both run, per GPU; at most h2d and d2h", RATE},
    {BPS("node.pcie.direct", pcie.direct_bps), .fallback = "0",
     .note = "each direction, kernels that access host memory; 0: 0.8 of both", RATE_OR_0,
     .needs = NEEDS(OWN) | NEEDS(DIRECT)},
    {BPS("node.pcie.pageable", pcie.pageable_bps), .fallback = "0",
     .note = "host to device, pageable memory; 0: 9 GB/s, what one thread copies", RATE_OR_0,
     .needs = NEEDS(CALLS)},
    {IN(STW_UNIT_SECONDS, "node.pcie.latency", pcie.latency_s), .fallback = "10 us",
     .note = "start-up cost of one copy", BOUNDS(0, 0.1)},
    {BPS("node.nvlink", nvlink_bps), .fallback = "300 GB/s", .note = "per GPU, inside a node",
     RATE_OR_0, .needs = NEEDS(PEERS)},
    {BPS("node.messages", messages_bps), .fallback = "0",
     .note = "of NCCL between pairs, sent while as much comes, per GPU; 0: 0.7 of nvlink",
     RATE_OR_0, .needs = NEEDS(OWN) | NEEDS(SYNCS) | NEEDS(PEERS)},
    {BYTES("node.nvme.capacity", nvme.capacity_bytes), .shared = true,
     .also = "disk ssd nvme_offload", .fallback = "0",
     .note = "per node; 0: no NVMe tier, and room for checkpoints that is not known", SIZE(0),
     .needs = NEEDS(STORES)},
    {BPS("node.nvme.read", nvme.read_bps), .shared = true, .fallback = "3 GB/s",
     .note = "alone, per node", RATE_OR_0, .needs = NEEDS(FILES)},
    {BPS("node.nvme.write", nvme.write_bps), .shared = true, .fallback = "1.5 GB/s",
     .note = "alone, per node", RATE_OR_0, .needs = NEEDS(WRITES)},
    {BPS("node.nvme.both", nvme.both_bps), .shared = true, .fallback = "0",
     .note = "reads and writes at the same time; 0: they take turns", RATE_OR_0,
     .needs = NEEDS(WRITES)},
    {BYTES("node.torch.process", torch.process_bytes), .fallback = "0",
     .note = "base of one rank's process with torch, communicator included; 0: node.host.process, "
             "and 1.4 GiB at least where that was measured without torch",
     SIZE(0), .needs = NEEDS(FOREIGN)},
    {BYTES("node.torch.launcher", torch.launcher_bytes), .also = "torchrun", .fallback = "0",
     .note = "processes of a job with torch that are no ranks (torchrun), per node", SIZE(0),
     .needs = NEEDS(FOREIGN)},
    TORCH("loop", loop, "torch's AdamW, for-loop"),
    TORCH("foreach", foreach, "torch's AdamW, foreach"),
    TORCH("fused", fused, "torch's AdamW, fused"),
    TORCH("cpu_adam", cpu_adam, "the extension cpu_adam"),
    {IN(STW_UNIT_PPS, "node.cpu_adamw", cpu_adamw_pps), .shared = true, .fallback = "3 Gparam/s",
     .note = "whole node, fp32, all operands in host memory", UPDATES,
     .needs = NEEDS(OWN_KERNELS) | NEEDS(CPU_STEP)},
    {IN(STW_UNIT_PPS, "node.cpu_adamw_ring", cpu_adamw_ring_pps), .shared = true, .fallback = "0",
     .note = "the same, parameters and gradients in rings; 0: as cpu_adamw", UPDATES, .zero = true,
     .needs = NEEDS(OWN)},
    {IN(STW_UNIT_PPS, "node.cpu_norm", cpu_norm_pps), .shared = true, .fallback = "0",
     .note = "gradients of the exact norm, whole node; 0: twice cpu_adamw", UPDATES, .zero = true,
     .needs = NEEDS(OWN) | NEEDS(CLIP)},
    LEARNED_BYTES("process", STW_LEARN_PROCESS, "of node.torch.process"),
    LEARNED_BYTES("launcher", STW_LEARN_LAUNCHER, "of node.torch.launcher"),
    LEARNED_BYTES("context", STW_LEARN_CONTEXT, "of node.gpu.context"),
    LEARNED_RATIO("efficiency", STW_LEARN_EFFICIENCY, "of node.gpu.efficiency"),
    {.key = "calibration.measured",
     .kind = STW_SPEC_BOOL,
     AT(calibration.measured),
     .fallback = "false",
     .note = "rates come from a calibration on this GPU model",
     .label = true},
    {TEXT("calibration.date", calibration.date), .fallback = "", .label = true},
    {TEXT("calibration.versions", calibration.versions), .fallback = "", .label = true},
};

static const stw_spec_table table = {rows, sizeof rows / sizeof rows[0]};

const stw_spec_table *stw_cluster_table(void) { return &table; }

stw_status stw_cluster_defaults(stw_cluster *cluster, stw_error *err) {
    memset(cluster, 0, sizeof *cluster);
    const stw_spec spec = {&table, cluster, NULL, NULL};
    return stw_spec_defaults(&spec, err);
}

/* ---- raw samples: written after the last row, accepted but not kept ---- */

#define CALIBRATION "calibration."

static bool is_samples(const stw_node *node) {
    return node->key != NULL && strcmp(node->key, "samples") == 0;
}

/* Copies of the root and of its member `calibration` without the samples. */
typedef struct without_samples {
    stw_node root, calibration;
} without_samples;

static stw_node **copy_items(const stw_node *node) {
    stw_node **items = malloc((node->n_items > 0 ? node->n_items : 1) * sizeof(stw_node *));
    if (items != NULL && node->n_items > 0)
        memcpy(items, node->items, node->n_items * sizeof(stw_node *));
    return items;
}

/* `out` is empty before. Free it with drop_copies, also on failure. */
static stw_status leave_out_samples(const stw_tree *tree, const stw_node *node,
                                    const stw_node *calibration, without_samples *out,
                                    stw_error *err) {
    out->root = *node;
    out->calibration = *calibration;
    out->root.items = copy_items(node);
    out->calibration.items = copy_items(calibration);
    if (out->root.items == NULL || out->calibration.items == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory");
    for (size_t i = 0; i < node->n_items; i++)
        if (node->items[i] == calibration) out->root.items[i] = &out->calibration;
    out->calibration.n_items = 0;
    for (size_t i = 0; i < calibration->n_items; i++) {
        stw_node *item = calibration->items[i];
        if (!is_samples(item))
            out->calibration.items[out->calibration.n_items++] = item;
        else if (item->kind != STW_NODE_ARRAY)
            return stw_node_fail(tree, item, "a list of samples", err);
    }
    return STW_STATUS_OK;
}

static void drop_copies(without_samples *copies) {
    free(copies->root.items);
    free(copies->calibration.items);
}

/* The rows of the map `calibration`, with their names inside it. */
static stw_spec_table calibration_table(stw_spec_row out[], size_t most) {
    size_t n = 0, skip = strlen(CALIBRATION);
    for (size_t i = 0; i < table.n_rows && n < most; i++) {
        if (strncmp(rows[i].key, CALIBRATION, skip) != 0) continue;
        out[n] = rows[i];
        out[n++].key += skip;
    }
    return (stw_spec_table){out, n};
}

static bool is_in_node(const void *node, const char *key) {
    return stw_node_path(node, key) != NULL;
}

stw_status stw_cluster_from_node(const stw_tree *tree, const stw_node *node, stw_cluster *out,
                                 stw_error *err) {
    stw_cluster read;
    stw_status status = STW_STATUS_OK;
    without_samples copies;
    memset(&copies, 0, sizeof copies);
    STW_TRY(stw_cluster_defaults(&read, err));
    const stw_spec spec = {&table, &read, NULL, NULL};
    const stw_node *calibration = stw_node_get(node, "calibration");
    if (stw_node_get(calibration, "samples") != NULL) {
        STW_TRY(leave_out_samples(tree, node, calibration, &copies, err));
        STW_TRY(stw_spec_read(&spec, tree, &copies.root, err));
    } else {
        STW_TRY(stw_spec_read(&spec, tree, node, err));
    }
    if (stw_node_path(node, "node.host.memory") != NULL &&
        stw_node_path(node, "node.host.limit") == NULL)
        read.host.limit_bytes = read.host.memory_bytes;
    stw_cluster_assume(&read, node);
    stw_cluster_lower_rates(&read, &(stw_cluster_given){is_in_node, node});
    *out = read;
out:
    drop_copies(&copies);
    return stw_error_in(status, tree->file, err);
}

stw_status stw_cluster_read(const char *path, stw_cluster *out, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = STW_STATUS_OK;
    const char *dot = strrchr(path, '.');
    bool json = dot != NULL && strcmp(dot, ".json") == 0;
    STW_TRY((json ? stw_tree_read_json : stw_tree_read_yaml)(path, &tree, err));
    STW_TRY(stw_cluster_from_node(tree, tree->root, out, err));
out:
    stw_tree_free(tree);
    return status;
}

stw_status stw_cluster_set(stw_cluster *cluster, const char *key, const char *value,
                           const char *origin, stw_error *err) {
    const stw_spec spec = {&table, cluster, NULL, NULL};
    stw_status status = stw_spec_set(&spec, key, value, origin, err);
    if (status == STW_STATUS_OK) stw_cluster_give(cluster, key, value);
    return status;
}

bool stw_cluster_has_key(const char *key) { return stw_spec_has_key(&table, key); }

enum { N_ROWS = sizeof rows / sizeof rows[0] };

void stw_cluster_write_json(const stw_cluster *cluster, stw_json *json, const char *key) {
    stw_spec_row room[N_ROWS];
    const stw_spec_table given = stw_learned_rows(cluster, &table, room, N_ROWS);
    stw_json_begin_object(json, key);
    stw_spec_write_json(&given, cluster, json);
    stw_json_end(json);
}

void stw_cluster_write_measured_json(const stw_cluster *cluster, const stw_samples *samples,
                                     stw_json *json, const char *key) {
    stw_spec_row map_rows[8], room[N_ROWS];
    const stw_spec_table inner = calibration_table(map_rows, sizeof map_rows / sizeof map_rows[0]);
    const stw_spec_table given = stw_learned_rows(cluster, &table, room, N_ROWS);
    const stw_spec_table outer = {room, given.n_rows - inner.n_rows}; /* the map comes last */
    stw_json_begin_object(json, key);
    stw_spec_write_json(&outer, cluster, json);
    stw_json_begin_object(json, "calibration");
    stw_spec_write_json(&inner, cluster, json);
    stw_samples_write_json(samples, json);
    stw_json_end(json);
    stw_json_end(json);
}

/* Files that give all keys do not mention those that they lack. */
void stw_cluster_write_yaml(const stw_cluster *cluster, stw_text *out) {
    stw_spec_row room[N_ROWS];
    const stw_spec_table all = stw_learned_rows(cluster, &table, room, N_ROWS),
                         given = {room + 1, all.n_rows - 1};
    bool any = false;
    for (size_t i = 0; i < STW_N_ASSUMABLE; i++) any |= cluster->assumed[i];
    stw_spec_write_yaml(any ? &all : &given, cluster, out);
}

void stw_cluster_write_measured_yaml(const stw_cluster *cluster, const stw_samples *samples,
                                     stw_text *out) {
    stw_cluster_write_yaml(cluster, out);
    stw_samples_write_yaml(samples, 2, out); /* still inside the map that comes last */
}

uint64_t stw_cluster_host_capacity(const stw_cluster *cluster) {
    uint64_t limit = cluster->host.limit_bytes, memory = cluster->host.memory_bytes;
    const uint64_t usable = limit < memory ? limit : memory;
    return cluster->host.kill_share < 1 ? stw_scaled(usable, cluster->host.kill_share) : usable;
}

uint32_t stw_cluster_assumed_words(const stw_cluster *cluster, stw_text *out) {
    uint32_t n = 0;
    for (const stw_spec_word *w = stw_cluster_assumable; w->word != NULL; w++) {
        if (!cluster->assumed[w->value]) continue;
        const stw_spec_row *row = stw_spec_find(stw_cluster_table(), w->word, strlen(w->word));
        stw_text_printf(out, "%s%s ", n++ > 0 ? ", " : "", w->word);
        if (row != NULL) stw_spec_write_value(row, cluster, out);
    }
    return n;
}

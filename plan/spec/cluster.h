/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster: identical nodes with identical GPUs, their capacities and measured rates
 * (cluster.yaml).
 *
 * Memory limits are what a process may use, not data-sheet values: gpu.memory is the total that the
 * driver reports, host.limit the smaller of cgroup limit and memory. A cluster is a plain value
 * that contains its strings. Any thread may read it. */
#ifndef STW_PLAN_CLUSTER_H
#define STW_PLAN_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/json.h"
#include "core/status.h"
#include "core/text.h"
#include "core/tree.h"
#include "plan/spec/samples.h"

/* Number of keys whose absence from a cluster file is noted (cluster_assumed.c). */
#define STW_N_ASSUMABLE 14

/** Parameters per second of a framework's optimizer on the CPUs, whole node, fp32; 0: unknown. */
typedef struct stw_cpu_rate {
    double all_pps; /* all ranks at once, each with its share of the cores */
    double one_pps; /* all ranks at once, each with one thread */
} stw_cpu_rate;

/** Constants that a recorded job can teach (stowage validate --learn). */
typedef enum stw_learnable {
    STW_LEARN_PROCESS,   /* node.torch.process */
    STW_LEARN_LAUNCHER,  /* node.torch.launcher */
    STW_LEARN_CONTEXT,   /* node.gpu.context */
    STW_LEARN_EFFICIENCY /* node.gpu.efficiency */
} stw_learnable;
#define STW_N_LEARNABLE 4

/** The value of a key: `bytes` of a size, `number` of other keys. */
typedef union stw_learned_value {
    uint64_t bytes;
    double number;
} stw_learned_value;

/** The source of a learned value. Plans use the key itself, not this entry. */
typedef struct stw_learned {
    stw_learned_value value, was; /* the learned value; the key's value before, from calibration or
                                     the default */
    char from[64], model[64];     /* the recording's file and its model */
    char phase[32], date[16];
    uint32_t samples; /* 0: not learned */
} stw_learned;

typedef struct stw_cluster {
    char name[64];
    bool assumed[STW_N_ASSUMABLE]; /* keys that the file lacks: an H200's defaults apply */
    uint32_t nodes;
    double nic_bps; /* per GPU, between nodes; 0: one node only */
    uint32_t gpus;  /* per node; 0: the host backend emulates one (stw_cluster_has_gpus) */
    struct {
        char name[64];
        uint64_t memory_bytes;  /* total per GPU */
        uint64_t context_bytes; /* taken by the CUDA context */
        uint64_t comm_bytes;    /* taken by NCCL after first use, all communicators; one rank: 0 */
        double hbm_bps;         /* read + written */
        double update_bps;      /* AdamW with all state there, read + written; 0: hbm_bps */
        double norm_bps;        /* fp32 gradients read by the exact norm; 0: a share of hbm_bps */
        double norm_bf16_bps;   /* bf16 gradients; 0: norm_bps */
        double boxes_bps;       /* copies of boxes, read + written; 0: a share of hbm_bps */
        double bf16_flops;      /* dense peak of the data sheet */
        double best_bf16_flops; /* of the fastest product; 0: the share of `rates` */
        char rates[16];         /* rows of rates.csv: what work reaches of the peak */
        double efficiency;      /* of forward and backward: predicted over real seconds */
    } gpu;
    double usd_per_gpu_hour; /* price of a GPU with its part of the node; 0: unknown */
    struct {
        uint64_t memory_bytes;           /* per node */
        uint64_t limit_bytes;            /* usable part (cgroup) */
        uint64_t page_lock_limit_bytes;  /* STW_UNLIMITED: none */
        uint64_t process_bytes;          /* base resident size of one rank's process */
        uint64_t process_comm_bytes;     /* added by a communicator; 0 with one rank */
        uint64_t object_store_bytes;     /* a scheduler's object store, per node */
        uint64_t shm_bytes;              /* size of /dev/shm; STW_UNLIMITED: unknown */
        uint64_t data_loaders_bytes;     /* per node */
        double kill_share;               /* share of memory and limit at which processes are killed;
                                            1: only when full */
        double bandwidth_bps;            /* host memory: CPU and DMA together, per node */
        double dma_bps;                  /* all GPUs' copies together, both ways, per node */
        double dma_beside_bps;           /* dma_bps during CPU updates; 0: a fair share */
        double dma_up_bps, dma_down_bps; /* dma_bps in one direction only; 0: dma_bps */
        double page_lock_bps;            /* map, touch and page-lock; 0: unknown */
        double file_read_bps;      /* page-cached files, all ranks; 0: half of the bandwidth */
        double file_read_rank_bps; /* the same, one rank by itself; 0: unknown */
        uint64_t cache_bytes;      /* L2 and L3 caches of the node together; 0: unknown */
        uint32_t cores;            /* per node */
        double call_s;             /* a framework's CPU time to issue one small operation */
    } host;
    struct {
        double h2d_bps, d2h_bps; /* one direction by itself, per GPU */
        double both_bps;         /* each direction while both run, per GPU */
        double direct_bps;       /* each direction, kernels that work in host memory; 0: unknown */
        double pageable_bps;     /* host to device, pageable memory; 0: the rate of one copying
                                    thread */
        double latency_s;        /* start-up cost of one copy */
    } pcie;
    double nvlink_bps;   /* per GPU, inside a node (collectives); 0 where a node has one GPU */
    double messages_bps; /* sent by a GPU to others of its node while as much comes; 0: a share of
                          * nvlink_bps */
    struct {
        uint64_t capacity_bytes;    /* per node; 0: none */
        double read_bps, write_bps; /* one direction by itself, per node */
        double both_bps;            /* read plus written, at once; 0: they take turns */
    } nvme;
    struct {
        stw_cpu_rate loop, foreach, fused, cpu_adam;
        uint64_t process_bytes;  /* per rank, communicator included; 0: unknown */
        uint64_t launcher_bytes; /* processes other than ranks, per node */
    } torch;
    double cpu_adamw_pps; /* parameters per second, fp32, whole node, all operands in host memory */
    double cpu_adamw_ring_pps; /* the same if the CPU caches hold the rings of params and grads; 0:
                                  as cpu_adamw_pps */
    double
        cpu_norm_pps; /* gradients per second of the exact norm, whole node; 0: 2 x cpu_adamw_pps */
    stw_learned learned[STW_N_LEARNABLE];
    struct {
        bool measured;      /* rates come from a calibration on this GPU model */
        char date[32];      /* ISO; "": not measured */
        char versions[128]; /* driver, CUDA, NCCL as text */
    } calibration;
} stw_cluster;

/** gpu.name of a machine without GPU. */
#define STW_NO_GPU "none (host backend)"
/** False if node.gpus is 0, or if the GPUs are emulated in host memory (STW_NO_GPU). Forward and
 * backward then have no predicted seconds. */
bool stw_cluster_has_gpus(const stw_cluster *cluster);
/** Defaults: one node, one GPU with the H200's data-sheet memory and conservative rates.
 * NO_MEMORY. */
STW_MUST_USE stw_status stw_cluster_defaults(stw_cluster *cluster, stw_error *err);
/** Read cluster.yaml over the defaults, and note the missing keys that decide plans. The error for
 * an unknown key names the nearest one. The list calibration.samples is accepted but not kept. */
STW_MUST_USE stw_status stw_cluster_read(const char *path, stw_cluster *out, stw_error *err);
/** The same from a parsed tree (a plan's `cluster` member, or a YAML document). */
STW_MUST_USE stw_status stw_cluster_from_node(const stw_tree *tree, const stw_node *node,
                                              stw_cluster *out, stw_error *err);
/** Set one key, as `--set node.gpus=4`. @param origin "--set" and the like, for errors */
STW_MUST_USE stw_status stw_cluster_set(stw_cluster *cluster, const char *key, const char *value,
                                        const char *origin, stw_error *err);
/** Make the part of a node with `gpus` GPUs: memory, cores, bandwidths and disks in proportion. The
 * copy rates are at least the rate of one link, but at most half of the node's rate. */
void stw_cluster_part(const stw_cluster *node, uint32_t gpus, stw_cluster *out);
/** True if this dotted key belongs to a cluster spec. */
bool stw_cluster_has_key(const char *key);
/** Check that the GPU's memory is given, and refuse contradictions such as a limit above the
 * memory. BAD_INPUT names the keys. */
STW_MUST_USE stw_status stw_cluster_check(const stw_cluster *cluster, const char *origin,
                                          stw_error *err);
/** Returns the usable host bytes of a node: the smaller of memory and limit. */
uint64_t stw_cluster_host_capacity(const stw_cluster *cluster);
/** Append the assumed keys with their values: "node.gpu.bf16 700 TFLOP/s, ...".
 * @return number of keys */
uint32_t stw_cluster_assumed_words(const stw_cluster *cluster, stw_text *out);
/** Write as member `key` of a JSON document, in base units. Reading restores the same values. */
void stw_cluster_write_json(const stw_cluster *cluster, stw_json *json, const char *key);
/** The same, with the raw values of the calibration as calibration.samples. */
void stw_cluster_write_measured_json(const stw_cluster *cluster, const stw_samples *samples,
                                     stw_json *json, const char *key);
/** Write as cluster.yaml, with units and comments. */
void stw_cluster_write_yaml(const stw_cluster *cluster, stw_text *out);
void stw_cluster_write_measured_yaml(const stw_cluster *cluster, const stw_samples *samples,
                                     stw_text *out);

#endif

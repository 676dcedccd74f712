/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes to seconds: each rule against a figure worked out by hand. Rates are round numbers, so that
 * every expected value can be read off. */
#include "engines/built_in.h"
#include "plan/program/demand.h"
#include "plan/program/share.h"
#include "tests/unit/testing.h"

#define GB 1000000000ull
#define CHECK_NEAR(a, b) CU_ASSERT_DOUBLE_EQUAL((a), (b), 1e-9)

static stw_cluster cluster;
static stw_run_spec run;
static stw_job job;

/* One node of `world` ranks unless the test says otherwise. */
static void set_up(uint32_t world, uint32_t ranks_per_node) {
    memset(&cluster, 0, sizeof cluster);
    cluster.gpu.efficiency = 0.5;
    memset(&run, 0, sizeof run);
    memset(&job, 0, sizeof job);
    cluster.gpus = ranks_per_node;
    cluster.gpu.hbm_bps = 4000e9;
    cluster.gpu.bf16_flops = 800e12;
    cluster.host.bandwidth_bps = 200e9;
    cluster.host.dma_bps = 160e9;
    cluster.pcie.h2d_bps = 50e9;
    cluster.pcie.d2h_bps = 40e9;
    cluster.pcie.both_bps = 32e9;
    cluster.pcie.latency_s = 10e-6;
    cluster.nvlink_bps = 400e9;
    cluster.nic_bps = 50e9;
    cluster.nvme.read_bps = 4e9;
    cluster.nvme.write_bps = 2e9;
    cluster.cpu_adamw_pps = 5e9;
    run.precision.params = run.precision.grads = STW_DTYPE_F32;
    run.precision.exp_avg = run.precision.exp_avg_sq = STW_DTYPE_F32;
    job.engine = &stw_engine_stowage;
    job.cluster = &cluster;
    job.run = &run;
    job.world = world;
    job.group = world;
    job.ranks_per_node = ranks_per_node;
}

static stw_op make_op(stw_op_kind kind, stw_tier tier) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, STW_OP_NONE);
    op.from = op.to = tier;
    return op;
}

static void copies_up_and_down(void) {
    stw_demand d;
    set_up(1, 1);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_GPU, 10 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_UP], 0.2);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_DOWN], 0);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE], 10.0 / 64);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA], 10.0 / 160);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 10.0 / 200);
    CHECK_NEAR(d.startup_s, 10e-6);
    CHECK_NEAR(stw_demand_alone_s(&d), 0.2 + 10e-6);
    stw_demand_copy(&job, STW_TIER_GPU, STW_TIER_HOST, 10 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_DOWN], 0.25);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_UP], 0);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE], 10.0 / 64);
}

/* Both directions with equal bytes take bytes / both_bps. */
static void both_directions_together(void) {
    stw_demand up, down;
    set_up(1, 1);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_GPU, 10 * GB, &up);
    stw_demand_copy(&job, STW_TIER_GPU, STW_TIER_HOST, 10 * GB, &down);
    CHECK_NEAR(up.seconds[STW_RESOURCE_PCIE] + down.seconds[STW_RESOURCE_PCIE], 10.0 / 32);
}

/* A thread fills the driver's buffers; the copy itself is as any other, and host memory sees the
 * bytes three times. A link that is slower than the thread stays the limit. */
static void pageable_copies_pass_a_thread(void) {
    static const struct {
        double bps, seconds[2]; /* down, up */
    } cases[] = {{0, {10 / 9.0, 10 / 9.0}}, {20e9, {0.5, 0.5}}, {45e9, {0.25, 10 / 45.0}}};
    for (int up = 0; up < 2; up++)
        for (int i = 0; i < 3; i++) {
            stw_demand d;
            set_up(1, 1);
            cluster.pcie.pageable_bps = cases[i].bps;
            stw_op op = make_op(STW_OP_COPY, up ? STW_TIER_GPU : STW_TIER_HOST);
            op.from = up ? STW_TIER_HOST : STW_TIER_GPU;
            op.bytes = 10 * GB;
            op.pageable = true;
            stw_demand_op(&job, &op, &d);
            CHECK_NEAR(d.seconds[up ? STW_RESOURCE_PCIE_UP : STW_RESOURCE_PCIE_DOWN],
                       cases[i].seconds[up]);
            CHECK_NEAR(d.seconds[up ? STW_RESOURCE_PCIE_DOWN : STW_RESOURCE_PCIE_UP], 0);
            CHECK_NEAR(d.seconds[STW_RESOURCE_DMA], 10.0 / 160);
            CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 30.0 / 200);
            CHECK_NEAR(d.startup_s, 10e-6);
        }
}

/* Four GPUs of a node at once are bound by what they share, and only ranks that exist count. */
static void ranks_of_a_node_add_up(void) {
    stw_demand d;
    set_up(4, 4);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_GPU, 10 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_UP], 0.2);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA], 0.25);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 0.2);
    CHECK_NEAR(stw_demand_alone_s(&d), 0.25 + 10e-6);
    set_up(2, 4);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_GPU, 10 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA], 0.125);
    set_up(16, 4);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_GPU, 10 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA], 0.25);
}

static void disk_is_shared_by_the_node(void) {
    stw_demand d;
    set_up(2, 2);
    stw_demand_copy(&job, STW_TIER_NVME, STW_TIER_HOST, 4 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK], 2);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK_READ], 2);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK_WRITE], 0);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 0.04);
    CHECK_NEAR(d.startup_s, 0);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_NVME, 4 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK], 4);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK_READ], 0);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK_WRITE], 4);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE], 0);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_HOST, 4 * GB, &d);
    CHECK_NEAR(stw_demand_alone_s(&d), 0);
}

/* With a rate for both at once, 5 GB/s, a read and a write of like size take less than in turns. */
static void disk_reads_and_writes_at_once(void) {
    stw_demand read, write;
    set_up(1, 1);
    cluster.nvme.both_bps = 5e9;
    stw_demand_copy(&job, STW_TIER_NVME, STW_TIER_HOST, 4 * GB, &read);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_NVME, 4 * GB, &write);
    CHECK_NEAR(read.seconds[STW_RESOURCE_DISK] + write.seconds[STW_RESOURCE_DISK], 8.0 / 5);
    CHECK_NEAR(stw_demand_alone_s(&read), 1);
    CHECK_NEAR(stw_demand_alone_s(&write), 2);
    cluster.nvme.both_bps = 0;
    stw_demand_copy(&job, STW_TIER_NVME, STW_TIER_HOST, 4 * GB, &read);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_NVME, 4 * GB, &write);
    CHECK_NEAR(read.seconds[STW_RESOURCE_DISK] + write.seconds[STW_RESOURCE_DISK], 3);
}

/* All GPUs' copies in one direction have a limit of their own where the cluster states one. */
static void one_direction_of_all_gpus(void) {
    stw_demand d;
    set_up(4, 4);
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_GPU, 10 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA_UP], 0);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA_DOWN], 0);
    cluster.host.dma_up_bps = 100e9;
    cluster.host.dma_down_bps = 80e9;
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_GPU, 10 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA_UP], 0.4);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA_DOWN], 0);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA], 0.25);
    CHECK_NEAR(stw_demand_alone_s(&d), 0.4 + 10e-6);
    stw_demand_copy(&job, STW_TIER_GPU, STW_TIER_HOST, 10 * GB, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA_DOWN], 0.5);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA_UP], 0);
}

/* 8 bytes of moments come over the link and go back; 12 bytes stay on the GPU. */
static void direct_updates_use_the_link(void) {
    stw_demand d, of_op;
    set_up(1, 1);
    stw_demand_update(&job, STW_UPDATE_DIRECT, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_UP], 8 / (0.8 * 32));
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_DOWN], 8 / (0.8 * 32));
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE], 8 / (0.8 * 32));
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA], 16.0 / 160);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 16.0 / 200);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 12.0 / 4000);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 0);
    CHECK_NEAR(stw_demand_alone_s(&d), 8 / (0.8 * 32) + 10e-6);
    cluster.pcie.direct_bps = 20e9;
    run.precision.params = run.precision.grads = STW_DTYPE_BF16;
    run.precision.has_master = true; /* 12 bytes each way; 2 read and 2 written on the GPU */
    stw_demand_update(&job, STW_UPDATE_DIRECT, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_UP], 12.0 / 20);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_DOWN], 12.0 / 20);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 4.0 / 4000);
    stw_op op = make_op(STW_OP_UPDATE, STW_TIER_GPU);
    op.params = GB;
    stw_demand_op(&job, &op, &of_op);
    CHECK_NEAR(of_op.seconds[STW_RESOURCE_PCIE_UP], 0);
    op.update = STW_UPDATE_DIRECT;
    stw_demand_op(&job, &op, &of_op);
    CU_ASSERT_EQUAL(memcmp(&d, &of_op, sizeof d), 0);
    set_up(4, 4);
    stw_demand_update(&job, STW_UPDATE_DIRECT, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DMA], 4 * 16.0 / 160);
}

/* CPU updates of smaller state take less by its bytes, but no less than half, and conversions. */
static void cpu_updates_follow_the_bytes(void) {
    stw_demand d;
    set_up(1, 1);
    run.precision.params = run.precision.grads = STW_DTYPE_BF16;
    run.precision.has_master = true;
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 1.05 / 5);
    run.precision.exp_avg = STW_DTYPE_BF16;
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], (24.0 / 28 + 0.05) / 5);
    run.precision.has_master = false;
    run.precision.exp_avg_sq = STW_DTYPE_BF16; /* 14 bytes: half of 28 */
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 0.55 / 5);
    set_up(1, 1);
    run.precision.has_master = true; /* params written only, a master beside them */
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 32.0 / 28 / 5);
}

static void updates_move_28_bytes(void) {
    stw_demand d;
    set_up(1, 1);
    stw_demand_update(&job, STW_UPDATE_RESIDENT, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 28.0 / 4000);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 0);
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 0);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 0.2);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 28.0 / 200);
    set_up(4, 4);
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 0.8);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 4 * 28.0 / 200);
}

/* bf16 params and grads with an fp32 master: grads read (2), params written (2), master and both
 * moments read and written (24). */
static void updates_follow_the_precision(void) {
    stw_demand d;
    set_up(1, 1);
    run.precision.params = run.precision.grads = STW_DTYPE_BF16;
    run.precision.has_master = true;
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 28.0 / 200);
    run.precision.exp_avg = STW_DTYPE_BF16;
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 24.0 / 200);
    run.precision.has_master = false;
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 18.0 / 200);
}

static void compute_and_norms(void) {
    stw_demand d;
    set_up(2, 2);
    stw_op op = make_op(STW_OP_IDLE, STW_TIER_GPU);
    op.wait_s = 0.01;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_GPU], 0.01);
    CHECK_NEAR(stw_demand_alone_s(&d), 0.01);
    stw_work work = {0};
    stw_work_traffic(&work, 4e9);
    op = make_op(STW_OP_FORWARD, STW_TIER_GPU);
    op.work = work.items;
    op.n_work = work.n;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_GPU], 0.001 / 0.5); /* of the efficiency */
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 0.001);
    op = make_op(STW_OP_NORM, STW_TIER_GPU);
    op.params = GB;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 0.001 / 0.8);
    op.from = op.to = STW_TIER_HOST;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 2 * 4.0 / 200);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 2 * 0.5 / 5);
    op = make_op(STW_OP_ALLOC, STW_TIER_GPU);
    op.bytes = GB;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(stw_demand_alone_s(&d), 0);
}

/* Bytes of gradients count on the GPU, their number on the CPU; stated rates go before shares. */
static void norms_follow_stated_rates(void) {
    stw_demand d;
    set_up(2, 2);
    cluster.gpu.norm_bps = 1000e9;
    cluster.gpu.norm_bf16_bps = 500e9;
    cluster.cpu_norm_pps = 8e9;
    stw_op op = make_op(STW_OP_NORM, STW_TIER_GPU);
    op.params = GB;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 4.0 / 1000);
    run.precision.grads = STW_DTYPE_BF16;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 2.0 / 500);
    cluster.gpu.norm_bf16_bps = 0;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 2.0 / 1000);
    op.from = op.to = STW_TIER_HOST;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 2 * 1.0 / 8);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 2 * 2.0 / 200);
}

/* Updates in GPU memory have a rate of their own; without one, that of copies. */
static void updates_follow_stated_rates(void) {
    stw_demand d;
    set_up(1, 1);
    stw_demand_update(&job, STW_UPDATE_RESIDENT, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 28.0 / 4000);
    cluster.gpu.update_bps = 3500e9;
    stw_demand_update(&job, STW_UPDATE_RESIDENT, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 28.0 / 3500);
    run.precision.params = run.precision.grads = STW_DTYPE_BF16;
    stw_demand_update(&job, STW_UPDATE_STREAM, GB, 0, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 22.0 / 3500);
}

/* bf16 parameters read and fp32 masters written; over the link and to the disk where those lie
 * there. */
static void masters_go_where_they_lie(void) {
    stw_demand d;
    set_up(1, 1);
    run.precision.params = STW_DTYPE_BF16;
    run.precision.has_master = true;
    stw_op op = make_op(STW_OP_MASTER, STW_TIER_GPU);
    op.params = GB;
    op.bytes = 4 * GB;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 6.0 / 4000);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_DOWN], 0);
    op.to = STW_TIER_HOST;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HBM], 6.0 / 4000);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_DOWN], 4.0 / 40);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_UP], 0);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK_WRITE], 0);
    op.to = STW_TIER_NVME;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK_WRITE], 4.0 / 2);
    op.from = op.to = STW_TIER_HOST;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_DOWN], 0);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 6.0 / 200);
}

static void collective(stw_op_kind kind, stw_rank_group group, stw_demand *d) {
    stw_op op = make_op(kind, STW_TIER_GPU);
    op.group = group;
    op.bytes = 8 * GB;
    stw_demand_op(&job, &op, d);
}

static void collectives_inside_a_node(void) {
    stw_demand d;
    set_up(4, 4);
    collective(STW_OP_ALL_GATHER, STW_RANK_GROUP_SHARD, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NVLINK], 0.75 * 8 / 400);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NIC], 0);
    CHECK_NEAR(d.startup_s, 8.4e-6 + 3 * 3.4e-6); /* three hops by NVLink */
    collective(STW_OP_SEND, STW_RANK_GROUP_WORLD, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NVLINK], 8.0 / 400);
    collective(STW_OP_ALL_REDUCE, STW_RANK_GROUP_WORLD, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NVLINK], 1.5 * 8 / 400);
    collective(STW_OP_NORM_SUM, STW_RANK_GROUP_WORLD, &d);
    CHECK_NEAR(stw_demand_alone_s(&d), 250e-6 + 300e-6 + 10e-6);
    set_up(1, 1);
    collective(STW_OP_ALL_GATHER, STW_RANK_GROUP_SHARD, &d);
    CHECK_NEAR(stw_demand_alone_s(&d), 0);
}

/* Copies to CPU buckets stay in the caches while the rings of all ranks take no more than 0.7 of
 * them, and not at all from 1.1. */
static void copies_to_cpu_buckets_are_cached(void) {
    stw_demand all, d;
    set_up(1, 1);
    cluster.host.cache_bytes = 0;
    stw_demand_copy(&job, STW_TIER_GPU, STW_TIER_HOST, 16ull << 20, &all);
    stw_demand_cached_copy(&job, STW_TIER_GPU, STW_TIER_HOST, 16ull << 20, 60ull << 20, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], all.seconds[STW_RESOURCE_HOST_MEMORY]);
    CHECK_NEAR(d.priority, all.priority);
    cluster.host.cache_bytes = 100ull << 20;
    stw_demand_cached_copy(&job, STW_TIER_GPU, STW_TIER_HOST, 16ull << 20, 60ull << 20, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 0.25 * all.seconds[STW_RESOURCE_HOST_MEMORY]);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PCIE_DOWN], all.seconds[STW_RESOURCE_PCIE_DOWN]);
    CU_ASSERT(d.priority > all.priority);
    set_up(2, 2); /* twice the rings */
    cluster.host.cache_bytes = 100ull << 20;
    CHECK_NEAR(stw_ring_missed(&job, 30ull << 20), 0);
    CHECK_NEAR(stw_ring_missed(&job, 45ull << 20), 0.5);
    CHECK_NEAR(stw_ring_missed(&job, 55ull << 20), 1);
    CHECK_NEAR(stw_ring_missed(&job, 64ull << 20), 1);
    cluster.host.cache_bytes = 0;
}

/* Of the 28 bytes 12 are of parameters and gradients; the ring has a rate of its own. */
static void updates_of_rings_read_caches(void) {
    stw_demand d;
    set_up(1, 1);
    cluster.cpu_adamw_ring_pps = 8e9;
    cluster.host.cache_bytes = 100ull << 20;
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 60ull << 20, &d);
    CHECK_NEAR(d.startup_s, 15e-6);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 1.0 / 8);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 16.0 / 200);
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 90ull << 20, &d); /* half of it */
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], (1.0 / 8 + 1.0 / 5) / 2);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 22.0 / 200);
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 110ull << 20, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 1.0 / 5);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 28.0 / 200);
    cluster.cpu_adamw_ring_pps = 0; /* not measured */
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 60ull << 20, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_CPU], 1.0 / 5);
    cluster.host.cache_bytes = 0;
}

/* 28 B x 5 G/s alone, 200 GB/s together, 60 of them copies, which alone make 160: the CPU keeps all
 * of its rate where copies keep 3/8. */
static void cores_come_before_links(void) {
    stw_demand d;
    set_up(1, 1);
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.priority, 1);
    cluster.host.dma_beside_bps = 60e9;
    stw_demand_update(&job, STW_UPDATE_CPU, GB, 0, &d);
    CHECK_NEAR(d.priority, 8.0 / 3);
    stw_demand_update(&job, STW_UPDATE_RESIDENT, GB, 0, &d);
    CHECK_NEAR(d.priority, 0);
    cluster.host.dma_beside_bps = 0;
}

/* The clip factor stays on the GPU; where the CPU updates too, the host waits for it. */
static void the_clip_factor_is_waited_for(void) {
    stw_demand d;
    set_up(1, 1);
    stw_op op = make_op(STW_OP_NORM_SUM, STW_TIER_GPU);
    op.bytes = 640;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(stw_demand_alone_s(&d), 250e-6);
    op.to = STW_TIER_HOST;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(stw_demand_alone_s(&d), 300e-6);
}

/* Four nodes of eight: a ring over 32, carried by eight NICs of each node. */
static void collectives_across_nodes(void) {
    stw_demand d;
    set_up(32, 8);
    collective(STW_OP_REDUCE_SCATTER, STW_RANK_GROUP_SHARD, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NVLINK], 31.0 / 32 * 8 / 400);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NIC], 31.0 / 32 * 8 / 400);
    /* Sharded inside a node, replicated between nodes: only the all-reduce leaves the node, and
     * every rank has its NIC for itself. */
    job.group = 8;
    collective(STW_OP_REDUCE_SCATTER, STW_RANK_GROUP_SHARD, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NIC], 0);
    collective(STW_OP_ALL_REDUCE, STW_RANK_GROUP_REPLICATE, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NIC], 2 * 0.75 * 8 / 50);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NVLINK], 0);
    /* One GPU in each node. */
    set_up(4, 1);
    collective(STW_OP_ALL_GATHER, STW_RANK_GROUP_SHARD, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NIC], 0.75 * 8 / 50);
    CHECK_NEAR(d.seconds[STW_RESOURCE_NVLINK], 0);
}

static void reads_and_writes(void) {
    stw_demand d;
    set_up(2, 2);
    stw_op op = make_op(STW_OP_NVME_READ, STW_TIER_HOST);
    op.from = STW_TIER_NVME;
    op.bytes = 4 * GB;
    op.component = STW_COMPONENT_EXP_AVG;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK], 2);
    op.kind = STW_OP_FILE_READ;
    op.component = STW_COMPONENT_LOAD_STAGING;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK], 2); /* of files, also where a run has a seed */
    run.load.weights = "weights";
    op.ranks = STW_OP_RANKS_SAME; /* the disk gives the bytes once */
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK], 1);
    op.ranks = STW_OP_RANKS_ONE;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK], 1);
    op.ranks = STW_OP_RANKS_EACH;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK], 2);
    cluster.nvme.read_bps = 0;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(stw_demand_alone_s(&d), 0);
    op.kind = STW_OP_NVME_WRITE;
    op.from = STW_TIER_HOST;
    op.to = STW_TIER_NVME;
    op.component = STW_COMPONENT_EXP_AVG;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK], 4);
}

/* The threads of one rank have a rate, those of all ranks another one; the copy reads and writes
 * host memory. Nothing comes from the disk. */
static void cached_files_are_copied(void) {
    stw_demand d;
    set_up(4, 4);
    run.load.weights = "weights";
    run.load.page_cached = true;
    stw_op op = make_op(STW_OP_FILE_READ, STW_TIER_HOST);
    op.from = STW_TIER_NVME;
    op.bytes = 4 * GB;
    stw_demand_op(&job, &op, &d); /* half of 200 GB/s */
    CHECK_NEAR(d.seconds[STW_RESOURCE_PAGE_CACHE], 4 * 4.0 / 100);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 4 * 2 * 4.0 / 200);
    CHECK_NEAR(d.seconds[STW_RESOURCE_DISK], 0);
    cluster.host.file_read_bps = 80e9;
    cluster.host.file_read_rank_bps = 40e9;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PAGE_CACHE], 4 * 4.0 / 80);
    op.ranks = STW_OP_RANKS_ONE;
    stw_demand_op(&job, &op, &d);
    CHECK_NEAR(d.seconds[STW_RESOURCE_PAGE_CACHE], 4.0 / 40);
    CHECK_NEAR(d.seconds[STW_RESOURCE_HOST_MEMORY], 2 * 4.0 / 200);
}

/* What one rank of four copies takes a quarter of what all take of the node, and as much of its
 * link. */
static void one_rank_of_a_node(void) {
    stw_demand all, one;
    set_up(4, 4);
    stw_op op = make_op(STW_OP_COPY_PIECE, STW_TIER_GPU);
    op.from = STW_TIER_HOST;
    op.bytes = GB;
    stw_demand_op(&job, &op, &all);
    op.ranks = STW_OP_RANKS_ONE;
    stw_demand_op(&job, &op, &one);
    CU_ASSERT_TRUE(one.seconds[STW_RESOURCE_PCIE_UP] > 0);
    CHECK_NEAR(one.seconds[STW_RESOURCE_PCIE_UP], all.seconds[STW_RESOURCE_PCIE_UP]);
    CHECK_NEAR(one.seconds[STW_RESOURCE_DMA], all.seconds[STW_RESOURCE_DMA] / 4);
    CHECK_NEAR(one.seconds[STW_RESOURCE_HOST_MEMORY], all.seconds[STW_RESOURCE_HOST_MEMORY] / 4);
}

/* Whatever each direction reaches alone, both move equally many bytes where they share a limit. */
static void directions_share_bytes(void) {
    stw_demand up, down;
    set_up(4, 4);
    cluster.host.dma_bps = 100e9;
    cluster.host.dma_up_bps = 160e9;
    cluster.host.dma_down_bps = 80e9;
    stw_demand_copy(&job, STW_TIER_HOST, STW_TIER_GPU, GB, &up);
    stw_demand_copy(&job, STW_TIER_GPU, STW_TIER_HOST, GB, &down);
    const stw_demand *demands[] = {&up, &down};
    stw_share_user users[2];
    for (int i = 0; i < 2; i++) {
        users[i].priority = demands[i]->priority;
        for (unsigned r = 0; r < STW_N_RESOURCES; r++)
            users[i].weight[r] = demands[i]->seconds[r] / stw_demand_alone_s(demands[i]);
    }
    stw_share_rates(users, 2);
    double up_bps = users[0].rate / stw_demand_alone_s(&up);
    double down_bps = users[1].rate / stw_demand_alone_s(&down);
    CU_ASSERT_DOUBLE_EQUAL(up_bps / down_bps, 1, 1e-3);
}

static void resources_have_names(void) {
    CU_ASSERT_STRING_EQUAL(stw_resource_name(STW_RESOURCE_PCIE), "pcie_both");
    CU_ASSERT_STRING_EQUAL(stw_resource_name(STW_RESOURCE_DISK), "disk");
    CU_ASSERT_STRING_EQUAL(stw_resource_name(STW_RESOURCE_DISK_WRITE), "disk_write");
    CU_ASSERT_STRING_EQUAL(stw_resource_name(STW_RESOURCE_DMA_UP), "host_dma_up");
    CU_ASSERT_STRING_EQUAL(stw_resource_name(STW_RESOURCE_PAGE_CACHE), "page_cache");
    CU_ASSERT_STRING_EQUAL(stw_resource_name(STW_N_RESOURCES), "?");
}

STW_TEST_MAIN("plan demand", {"copies to CPU buckets are cached", copies_to_cpu_buckets_are_cached},
              {"updates of rings read caches", updates_of_rings_read_caches},
              {"cores come before links", cores_come_before_links},
              {"copies up and down", copies_up_and_down},
              {"pageable copies pass a thread", pageable_copies_pass_a_thread},
              {"both directions together", both_directions_together},
              {"ranks of a node add up", ranks_of_a_node_add_up},
              {"disk is shared by the node", disk_is_shared_by_the_node},
              {"disk reads and writes at once", disk_reads_and_writes_at_once},
              {"one direction of all GPUs", one_direction_of_all_gpus},
              {"updates move 28 bytes", updates_move_28_bytes},
              {"direct updates use the link", direct_updates_use_the_link},
              {"CPU updates follow the bytes", cpu_updates_follow_the_bytes},
              {"norms follow stated rates", norms_follow_stated_rates},
              {"updates follow stated rates", updates_follow_stated_rates},
              {"masters go where they lie", masters_go_where_they_lie},
              {"the clip factor is waited for", the_clip_factor_is_waited_for},
              {"updates follow the precision", updates_follow_the_precision},
              {"compute and norms", compute_and_norms},
              {"collectives inside a node", collectives_inside_a_node},
              {"collectives across nodes", collectives_across_nodes},
              {"reads and writes", reads_and_writes},
              {"cached files are copied", cached_files_are_copied},
              {"directions share bytes", directions_share_bytes},
              {"one rank of a node", one_rank_of_a_node},
              {"resources have names", resources_have_names})

/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds of products, attention and passes over memory: by hand, as properties over random shapes,
 * and between GPUs. */
#include <math.h>
#include <string.h>

#include "core/units.h"
#include "plan/program/link_time.h"
#include "plan/program/work.h"
#include "plan/spec/gpu_sheets.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define MS 1e-3

static stw_cluster gpu(const char *name, const char *hbm) {
    stw_cluster c;
    const stw_gpu_sheet *sheet = stw_gpu_sheet_find(name);
    CHECK_OK(stw_cluster_defaults(&c, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(sheet);
    CHECK_OK(stw_gpu_sheet_apply(sheet, name, &c, err));
    CHECK_OK(stw_quantity_parse(hbm, STW_UNIT_BPS, &c.gpu.hbm_bps, "hbm", err));
    return c;
}

static double product(const stw_cluster *c, bool fp8, double m, double n, double k) {
    stw_work work = {0};
    stw_work_product(&work, fp8, m, n, k, 1, 1);
    return stw_work_seconds(c, work.items, work.n);
}

static double attention(const stw_cluster *c, stw_kernel kernel, bool backward, double tokens,
                        double seq, double head) {
    stw_work forward = {0}, work = {0};
    stw_work_attention(&forward, kernel, 2 * tokens * seq * 32 * head, head, seq);
    if (!backward) return stw_work_seconds(c, forward.items, forward.n);
    stw_work_add_backward(&work, &forward, 1);
    return stw_work_seconds(c, work.items, work.n);
}

/* Medians on an H100 and an H200, torch 2.11 (bench/results/2026-11-23-rates). */
static void measured_kernels(void) {
    const stw_cluster h100 = gpu("NVIDIA H100 80GB HBM3", "2948 GB/s");
    static const struct {
        double m, n, k, tflops;
    } products[] = {{65536, 8192, 8192, 739},  {16384, 4096, 14336, 716}, {16384, 1024, 1024, 659},
                    {16384, 512, 512, 416},    {4096, 1024, 1024, 520},   {65536, 2048, 2048, 706},
                    {16384, 2048, 768, 662},   {4096, 4096, 1024, 597},   {1024, 4096, 4096, 700},
                    {16384, 50304, 4096, 745}, {512, 8192, 8192, 761}};
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        double flops = 2 * products[i].m * products[i].n * products[i].k;
        double reached = flops / product(&h100, false, products[i].m, products[i].n, products[i].k);
        CU_ASSERT_TRUE(reached > 0.85e12 * products[i].tflops);
        CU_ASSERT_TRUE(reached < 1.15e12 * products[i].tflops);
    }
    static const struct {
        double seq, head, forward, backward; /* TFLOP/s */
    } flash[] = {{2048, 128, 309, 239}, {16384, 128, 329, 306}, {4096, 64, 287, 234}};
    for (size_t i = 0; i < sizeof flash / sizeof flash[0]; i++) {
        double flops = 2 * 16384 * flash[i].seq * 32 * flash[i].head;
        CU_ASSERT_DOUBLE_EQUAL(
            flops / attention(&h100, STW_KERNEL_FLASH, false, 16384, flash[i].seq, flash[i].head),
            flash[i].forward * 1e12, 0.05 * flash[i].forward * 1e12);
        CU_ASSERT_DOUBLE_EQUAL(
            2.5 * flops /
                attention(&h100, STW_KERNEL_FLASH, true, 16384, flash[i].seq, flash[i].head),
            flash[i].backward * 1e12, 0.05 * flash[i].backward * 1e12);
    }
}

static double size_of(uint64_t *seed, unsigned least, unsigned most) {
    return pow(2, least + (double)case_random(seed, 1000 * (most - least)) / 1000);
}

/* More work takes longer, a faster GPU is never slower, an H200 never slower than an H100. */
static void properties(void) {
    uint64_t seed = 20261123;
    const stw_cluster h100 = gpu("NVIDIA H100 80GB HBM3", "2948 GB/s");
    const stw_cluster h200 = gpu("NVIDIA H200", "4224 GB/s");
    const stw_cluster a100 = gpu("NVIDIA A100-SXM4-80GB", "1794 GB/s");
    CU_ASSERT_EQUAL(h100.gpu.bf16_flops, h200.gpu.bf16_flops);
    for (int i = 0; i < 3000; i++) {
        const double m = size_of(&seed, 4, 17), n = size_of(&seed, 5, 17),
                     k = size_of(&seed, 5, 17);
        const double seq = size_of(&seed, 4, 18), head = 32 + case_random(&seed, 225);
        const bool fp8 = i % 2 == 0, backward = i % 3 == 0;
        const stw_kernel kernel = (stw_kernel)(i % 3);
        stw_cluster faster = h100;
        const double one = product(&h100, fp8, m, n, k);
        CU_ASSERT_TRUE(isfinite(one) && one > 0);
        faster.gpu.bf16_flops *= 1.5;
        CU_ASSERT_TRUE(product(&faster, fp8, m, n, k) <= one);
        faster.gpu.hbm_bps *= 2;
        CU_ASSERT_TRUE(product(&faster, fp8, m, n, k) <= one);
        CU_ASSERT_TRUE(product(&h200, fp8, m, n, k) <= one);
        CU_ASSERT_TRUE(product(&a100, false, m, n, k) > product(&h100, false, m, n, k));
        CU_ASSERT_TRUE(product(&h100, fp8, 1.1 * m, n, k) > one);
        CU_ASSERT_TRUE(product(&h100, fp8, m, 1.1 * n, k) > one);
        CU_ASSERT_TRUE(product(&h100, true, m, n, k) <= product(&h100, false, m, n, k) * 1.4);
        const double score = attention(&h100, kernel, backward, 8192, seq, head);
        CU_ASSERT_TRUE(attention(&h200, kernel, backward, 8192, seq, head) <= score);
        CU_ASSERT_TRUE(attention(&h100, kernel, backward, 8192, 1.3 * seq, head) >= 0.999 * score);
        CU_ASSERT_TRUE(attention(&h100, kernel, true, 8192, seq, head) >
                       attention(&h100, kernel, false, 8192, seq, head));
    }
}

/* Every architecture has all rows; shares are continuous and lie between their neighbours. */
static void rates_have_no_gaps(void) {
    static const char *const names[] = {"hopper", "blackwell", "ampere", "ada",
                                        "volta",  "cdna2",     "cdna3",  "cdna4"};
    for (size_t r = 0; r < sizeof names / sizeof names[0]; r++) {
        CU_ASSERT_TRUE(stw_gpu_rates_known(names[r], NULL));
        for (double at = 8; at < 1 << 20; at *= 1.01) {
            for (int i = 0; i < 2; i++) {
                double a = stw_gpu_product_share(names[r], i == 1, at);
                double b = stw_gpu_product_share(names[r], i == 1, 1.01 * at);
                CU_ASSERT_TRUE(a > 0 && a < 1 && b >= a && b < 1.02 * a);
            }
            for (int kernel = 0; kernel < 3; kernel++)
                for (int backward = 0; backward < 2; backward++) {
                    double a = stw_gpu_attention_share(names[r], (stw_kernel)kernel, backward == 1,
                                                       96, at);
                    double b = stw_gpu_attention_share(names[r], (stw_kernel)kernel, backward == 1,
                                                       96, 1.01 * at);
                    CU_ASSERT_TRUE(a > 0 && a < 1 && b > 0.99 * a && b < 1.02 * a);
                }
        }
    }
    CU_ASSERT_FALSE(stw_gpu_rates_known("hoper", NULL));
    CU_ASSERT_DOUBLE_EQUAL(stw_gpu_product_share("hopper", false, 512), 0.54, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(stw_gpu_product_share("hopper", false, 512 * sqrt(2)), sqrt(0.54 * 0.65),
                           1e-9);
    CU_ASSERT_DOUBLE_EQUAL(stw_gpu_product_share("hopper", false, 128), 0.2, 1e-9);
}

static void lists_add_up(void) {
    stw_work a = {0}, b = {0}, all = {0};
    stw_work_product(&a, false, 64, 128, 256, 2, 0);
    stw_work_product(&a, false, 64, 128, 256, 1, 0);
    stw_work_attention(&a, STW_KERNEL_FLASH, 1e9, 128, 4096);
    stw_work_traffic(&a, 100);
    CU_ASSERT_EQUAL(a.n, 3);
    CU_ASSERT_DOUBLE_EQUAL(stw_work_flops(a.items, a.n), 3 * 2.0 * 64 * 128 * 256 + 1e9, 1);
    stw_work_add_backward(&b, &a, 0.5); /* inputs' gradients, half of the weights' */
    CU_ASSERT_DOUBLE_EQUAL(stw_work_flops(b.items, b.n), 4.5 * 2.0 * 64 * 128 * 256 + 2.5e9, 1);
    stw_work_add(&all, &a, 1);
    stw_work_add(&all, &a, 1);
    CU_ASSERT_EQUAL(all.n, 3);
    CU_ASSERT_DOUBLE_EQUAL(stw_work_flops(all.items, all.n), 2 * stw_work_flops(a.items, a.n), 1);
    stw_cluster c;
    CHECK_OK(stw_cluster_defaults(&c, err));
    CU_ASSERT_DOUBLE_EQUAL(stw_work_seconds(&c, all.items, all.n),
                           2 * stw_work_seconds(&c, a.items, a.n), 1e-12);
    c.gpu.efficiency = 0.5;
    CU_ASSERT_DOUBLE_EQUAL(stw_work_hbm_seconds(&c, all.items, all.n), 200 / c.gpu.hbm_bps, 1e-18);
    stw_work passes = {0}; /* traffic that came several times is one pass over all of it */
    stw_work_add(&passes, &a, 3);
    stw_work_traffic(&passes, 50);
    stw_work_add(&passes, &a, 2);
    CU_ASSERT_EQUAL(passes.n, 3);
    CU_ASSERT_DOUBLE_EQUAL(stw_work_hbm_seconds(&c, passes.items, passes.n), 550 / c.gpu.hbm_bps,
                           1e-18);
    for (uint32_t i = 0; i < 3 * STW_WORK_MOST; i++) /* more kinds than there is room for */
        stw_work_product(&all, false, 64 + i, 128, 256, 1, 0);
    CU_ASSERT_EQUAL(all.n, STW_WORK_MOST);
    /* what has no room is more of the last product; a kind that the list has none of is left out */
    stw_work full = {0};
    for (uint32_t i = 0; i < STW_WORK_MOST; i++)
        stw_work_product(&full, false, 64 + i, 128, 256, 1, 0);
    const double before = stw_work_flops(full.items, full.n);
    stw_work_product(&full, false, 1024, 128, 256, 2, 0);
    CU_ASSERT_EQUAL(full.n, STW_WORK_MOST);
    CU_ASSERT_DOUBLE_EQUAL(stw_work_flops(full.items, full.n), before + 2 * 2.0 * 1024 * 128 * 256,
                           1);
    CU_ASSERT_DOUBLE_EQUAL(full.items[STW_WORK_MOST - 2].times, 1, 1e-12);
    CU_ASSERT_TRUE(full.items[STW_WORK_MOST - 1].times > 1);
    stw_work_attention(&full, STW_KERNEL_FLASH, 1e9, 128, 4096);
    stw_work_traffic(&full, 1e9);
    CU_ASSERT_EQUAL(full.n, STW_WORK_MOST);
    CU_ASSERT_DOUBLE_EQUAL(stw_work_flops(full.items, full.n), before + 2 * 2.0 * 1024 * 128 * 256,
                           1);
}

/* More ranks take longer for the same bytes, and small messages most of all. */
static void collectives_slow_down(void) {
    static const stw_op_kind kinds[] = {STW_OP_ALL_GATHER, STW_OP_REDUCE_SCATTER,
                                        STW_OP_ALL_REDUCE};
    const stw_cluster c = gpu("NVIDIA H100 80GB HBM3", "2948 GB/s");
    for (size_t i = 0; i < 3; i++)
        for (double bytes = 1024; bytes < 2e10; bytes *= 4) {
            double before = 0;
            for (uint32_t ranks = 2; ranks <= 4096; ranks *= 2) {
                const uint32_t on_node = ranks < 8 ? ranks : 8;
                const stw_link_time t = stw_link_collective(&c, kinds[i], ranks, on_node, bytes, 1);
                const double whole = t.startup_s + fmax(t.nvlink_s, t.nic_s);
                CU_ASSERT_TRUE(whole > before);
                CU_ASSERT_TRUE(t.startup_s < 0.2);
                before = whole;
            }
        }
    /* 64 KiB among 8 and 1,024: 7 hops of 0.6 us; an all-gather's ring has 1,023 */
    stw_link_time near = stw_link_collective(&c, STW_OP_ALL_GATHER, 8, 8, 65536, 1);
    stw_link_time far = stw_link_collective(&c, STW_OP_ALL_GATHER, 1024, 8, 65536, 1);
    CU_ASSERT_DOUBLE_EQUAL(near.startup_s, 6.6e-6 + 7 * 0.6e-6, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(far.startup_s, 6.6e-6 + (1023 - 127) * 1.0e-6 + 127 * 2.7e-6, 1e-9);
    /* a tree's steps grow with the logarithm of the nodes */
    stw_link_time tree = stw_link_collective(&c, STW_OP_ALL_REDUCE, 1024, 8, 65536, 1);
    CU_ASSERT_TRUE(tree.startup_s < 150e-6);
}

STW_TEST_MAIN("plan work", {"measured kernels", measured_kernels}, {"properties", properties},
              {"rates have no gaps", rates_have_no_gaps}, {"lists add up", lists_add_up},
              {"collectives slow down", collectives_slow_down})

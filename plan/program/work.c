/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/work.h"

#include <math.h>
#include <string.h>

/* Sources: bench/results/2026-11-23-rates. */

/* Before a kernel's first and after its last tile. */
static const double KERNEL_S = 3e-6;

/* Backward of attention has five products where forward has two; recomputation inside the kernel
 * counts (arXiv 2307.08691, section 3.1). */
static const double BACKWARD_OF_ATTENTION = 2.5;

/* The largest product on an H100, of the peak; the shares of rates.csv are in terms of it
 * (stas00/ml-engineering b9e2972, compute/accelerator/README.md: 794.5 of 989 TFLOP/s). */
static const double BEST_SHARE = 0.803;

static bool is_like(const stw_work_item *a, const stw_work_item *b) {
    return a->kind == b->kind && a->fp8 == b->fp8 && a->backward == b->backward &&
           a->kernel == b->kernel && a->m == b->m && a->n == b->n && a->k == b->k &&
           a->head == b->head && a->seq == b->seq &&
           (a->kind == STW_WORK_PRODUCT || a->kind == STW_WORK_TRAFFIC || a->flops == b->flops);
}

/* Traffic is one item. What a full list has no room for is counted as more of the same kind. */
static void append(stw_work *work, const stw_work_item *item) {
    stw_work_item *same = NULL;
    if (!(item->times > 0)) return;
    for (uint32_t i = 0; i < work->n; i++) {
        stw_work_item *at = &work->items[i];
        if (is_like(at, item)) {
            if (at->kind == STW_WORK_TRAFFIC) {
                at->moved = at->moved * at->times + item->moved * item->times;
                at->times = 1;
                at->launches += item->launches;
                return;
            }
            at->times += item->times;
            at->launches += item->launches;
            return;
        }
        if (at->kind == item->kind) same = at;
    }
    if (work->n < STW_WORK_MOST)
        work->items[work->n++] = *item;
    else if (same != NULL && same->flops > 0)
        same->times += item->times * item->flops / same->flops;
}

void stw_work_product(stw_work *work, bool fp8, double m, double n, double k, double times,
                      double launches) {
    const double in = fp8 ? 1 : 2;
    if (!(m > 0) || !(n > 0) || !(k > 0)) return;
    append(work, &(stw_work_item){.kind = STW_WORK_PRODUCT,
                                  .fp8 = fp8,
                                  .times = times,
                                  .launches = launches > 0 ? launches : times,
                                  .m = m,
                                  .n = n,
                                  .k = k,
                                  .flops = 2 * m * n * k,
                                  .moved = in * (m * k + k * n) + 2 * m * n});
}

void stw_work_attention(stw_work *work, stw_kernel kernel, double flops, double head, double seq) {
    if (!(flops > 0)) return;
    append(work, &(stw_work_item){.kind = STW_WORK_ATTENTION,
                                  .kernel = kernel,
                                  .times = 1,
                                  .launches = 1,
                                  .flops = flops,
                                  .head = head,
                                  .seq = seq});
}

void stw_work_traffic(stw_work *work, double bytes) {
    if (bytes > 0)
        append(work, &(stw_work_item){.kind = STW_WORK_TRAFFIC, .times = 1, .moved = bytes});
}

void stw_work_add(stw_work *work, const stw_work *more, double times) {
    for (uint32_t i = 0; i < more->n; i++) {
        stw_work_item item = more->items[i];
        item.times *= times;
        item.launches *= times;
        append(work, &item);
    }
}

void stw_work_add_backward(stw_work *work, const stw_work *forward, double weights) {
    for (uint32_t i = 0; i < forward->n; i++) {
        const stw_work_item *f = &forward->items[i];
        if (f->kind == STW_WORK_PRODUCT) {
            stw_work_product(work, f->fp8, f->m, f->k, f->n, f->times, f->launches);
            stw_work_product(work, f->fp8, f->n, f->k, f->m, weights * f->times,
                             weights * f->launches);
        } else if (f->kind == STW_WORK_ATTENTION) {
            stw_work_item item = *f;
            item.backward = true;
            item.flops *= BACKWARD_OF_ATTENTION;
            append(work, &item);
        }
    }
}

void stw_work_scale(stw_work *work, double share) {
    for (uint32_t i = 0; i < work->n; i++) {
        work->items[i].times *= share;
        work->items[i].launches *= share;
    }
}

const stw_work_item *stw_work_keep(stw_pool *pool, const stw_work_item *items, uint32_t n) {
    stw_work_item *kept = stw_pool_array(pool, n, sizeof *kept);
    if (kept != NULL) memcpy(kept, items, n * sizeof *kept);
    return kept;
}

double stw_work_flops(const stw_work_item *items, uint32_t n) {
    double flops = 0;
    for (uint32_t i = 0; i < n; i++) flops += items[i].times * items[i].flops;
    return flops;
}

/* A rate of 0 is unknown and takes no time. */
static double per(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/* Tensor cores and memory work at the same time, and hinder each other where both are busy: the
 * fourth root of the sum of fourth powers, within 10% of most measured products. */
static double both(double a, double b) {
    double most = a > b ? a : b, ratio = most > 0 ? (a > b ? b : a) / most : 0;
    ratio *= ratio;
    return most * sqrt(sqrt(1 + ratio * ratio));
}

static double product_seconds(const stw_cluster *c, const stw_work_item *item) {
    const double share = stw_gpu_product_share(c->gpu.rates, item->fp8, item->k);
    const double best =
        c->gpu.best_bf16_flops > 0 ? c->gpu.best_bf16_flops / BEST_SHARE : c->gpu.bf16_flops;
    const double peak = item->fp8 ? 2 * best : best;
    return both(per(item->times * item->flops, share * peak),
                per(item->times * item->moved, c->gpu.hbm_bps));
}

static double item_seconds(const stw_cluster *c, const stw_work_item *item) {
    switch (item->kind) {
    case STW_WORK_PRODUCT:
        return product_seconds(c, item) + item->launches * KERNEL_S;
    case STW_WORK_ATTENTION:
        return per(item->times * item->flops,
                   c->gpu.bf16_flops * stw_gpu_attention_share(c->gpu.rates, item->kernel,
                                                               item->backward, item->head,
                                                               item->seq)) +
               item->launches * KERNEL_S;
    default:
        return per(item->times * item->moved, c->gpu.hbm_bps);
    }
}

double stw_work_seconds(const stw_cluster *c, const stw_work_item *items, uint32_t n) {
    double seconds = 0;
    for (uint32_t i = 0; i < n; i++) seconds += item_seconds(c, &items[i]);
    return per(seconds, c->gpu.efficiency);
}

double stw_work_hbm_seconds(const stw_cluster *c, const stw_work_item *items, uint32_t n) {
    double bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        if (items[i].kind == STW_WORK_TRAFFIC) bytes += items[i].times * items[i].moved;
    return per(bytes, c->gpu.hbm_bps);
}

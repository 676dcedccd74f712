/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a computation in forward or backward: matrix products, attention, and element-wise
 * passes over memory. Engines list them and demand.c computes their seconds, both for one rank and
 * one micro batch. A list is a plain value. Any thread. */
#ifndef STW_PLAN_PROGRAM_WORK_H
#define STW_PLAN_PROGRAM_WORK_H

#include "core/pool.h"
#include "plan/spec/cluster.h"
#include "plan/spec/gpu_rates.h"

typedef enum stw_work_kind {
    STW_WORK_PRODUCT,   /* (m, k) x (k, n) */
    STW_WORK_ATTENTION, /* causal, all heads of a rank */
    STW_WORK_TRAFFIC    /* bytes read and written in GPU memory */
} stw_work_kind;

typedef struct stw_work_item {
    stw_work_kind kind;
    bool fp8;          /* of a product: its factors are fp8 */
    bool backward;     /* of attention: its pass */
    stw_kernel kernel; /* of attention: its kernel */
    double times;      /* number of such items */
    double launches;   /* kernels of all of them together; grouped products are one kernel */
    double m, n, k;    /* of a product: its dimensions */
    double flops;      /* flops of one item */
    double head, seq;  /* of attention: width of a head; length of a sequence */
    double moved;      /* least bytes of one item */
} stw_work_item;

/* More than the kinds of products in the largest block, forward and backward. */
enum { STW_WORK_MOST = 94 };

typedef struct stw_work {
    uint32_t n;
    stw_work_item items[STW_WORK_MOST];
} stw_work;

/** Add products. @param launches see stw_work_item; 0: `times` */
void stw_work_product(stw_work *work, bool fp8, double m, double n, double k, double times,
                      double launches);
/** Add a forward of causal attention.
 * @param flops of the computed half of the square
 * @param head average width of a head's keys and values
 * @param seq length of a sequence */
void stw_work_attention(stw_work *work, stw_kernel kernel, double flops, double head, double seq);
void stw_work_traffic(stw_work *work, double bytes);
/** Add all items of `more`, `times` times. Equal items are merged. */
void stw_work_add(stw_work *work, const stw_work *more, double times);
/** Add the backward of a forward's products and attention: the gradients of inputs, and the share
 * `weights` of the gradients of weights. Ignores traffic. */
void stw_work_add_backward(stw_work *work, const stw_work *forward, double weights);
/** Multiply the counts by `share`. */
void stw_work_scale(stw_work *work, double share);
/** Returns a copy of the items in a pool; NULL: out of memory. */
const stw_work_item *stw_work_keep(stw_pool *pool, const stw_work_item *items, uint32_t n);
/** Returns the floating-point operations of a list's products and attention. */
double stw_work_flops(const stw_work_item *items, uint32_t n);

/** Returns the seconds that a GPU needs for a list if nothing else runs, from the cluster's rates
 * (rates.csv) and node.gpu.efficiency. */
double stw_work_seconds(const stw_cluster *cluster, const stw_work_item *items, uint32_t n);
/** Returns the least seconds of these in which GPU memory is busy. */
double stw_work_hbm_seconds(const stw_cluster *cluster, const stw_work_item *items, uint32_t n);

#endif

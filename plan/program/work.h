/* SPDX-License-Identifier: Apache-2.0 */
/* What a computation of forward or backward consists of: products, attention, and passes of
 * element-wise operations over memory. Engines write lists of it, demand.c prices them, and both
 * mean one rank and one micro batch. A list is a plain value. Any thread. */
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
    bool fp8;          /* of a product: its factors have 8 bits */
    bool backward;     /* of attention */
    stw_kernel kernel; /* of attention */
    double times;      /* so many of them */
    double launches;   /* kernels for all of them together; grouped products are one */
    double m, n, k;    /* of a product */
    double flops;      /* of one */
    double head, seq;  /* of attention: width of a head; length of a sequence */
    double moved;      /* bytes of one, at least */
} stw_work_item;

/* More than the largest block has kinds of products, forward and backward. */
enum { STW_WORK_MOST = 96 };

typedef struct stw_work {
    uint32_t n;
    stw_work_item items[STW_WORK_MOST];
} stw_work;

/** @param launches see above; 0: as many as times */
void stw_work_product(stw_work *work, bool fp8, double m, double n, double k, double times,
                      double launches);
/** Forward of causal attention: flops of the half of the square that is computed.
 * @param head average width of a head's keys and values @param seq length of a sequence */
void stw_work_attention(stw_work *work, stw_kernel kernel, double flops, double head, double seq);
void stw_work_traffic(stw_work *work, double bytes);
/** Add all of `more`, so many times. Like items are merged. */
void stw_work_add(stw_work *work, const stw_work *more, double times);
/** Add the backward of products and attention of a forward: gradients of inputs, and this share of
 * the gradients of weights. Traffic is not looked at. */
void stw_work_add_backward(stw_work *work, const stw_work *forward, double weights);
/** Multiply counts by `share`. */
void stw_work_scale(stw_work *work, double share);
/** A copy of items in a pool; NULL: out of memory. */
const stw_work_item *stw_work_keep(stw_pool *pool, const stw_work_item *items, uint32_t n);
/** Operations of a list: products and attention. */
double stw_work_flops(const stw_work_item *items, uint32_t n);

/** Seconds that a GPU takes for a list, alone, by the cluster's rates (rates.csv) and
 * node.gpu.efficiency. */
double stw_work_seconds(const stw_cluster *cluster, const stw_work_item *items, uint32_t n);
/** Of these, at least, GPU memory is busy. */
double stw_work_hbm_seconds(const stw_cluster *cluster, const stw_work_item *items, uint32_t n);

#endif

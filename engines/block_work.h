/* SPDX-License-Identifier: Apache-2.0 */
/* What forward and backward of a block, and of the head and the loss, compute on one rank for one
 * micro batch: products by their shapes, attention, and what element-wise operations move. Engines
 * put these lists into their programs. Sources: block_work.c. Pure functions of the job; any
 * thread. */
#ifndef STW_ENGINES_BLOCK_WORK_H
#define STW_ENGINES_BLOCK_WORK_H

#include "engines/bytes.h"
#include "plan/program/builder.h"
#include "plan/program/work.h"

/** How an engine's code computes. */
typedef struct stw_work_style {
    uint32_t tp; /* ranks that cut the matrices of a block */
    bool fused;  /* norm, rotary embedding, activation and loss are one kernel each, attention is
                  * the fastest for the GPU; else they are torch's operations one by one */
    bool fp8;    /* factors of products */
} stw_work_style;

/** Of transformers' modules, run operation by operation. */
stw_work_style stw_work_style_eager(const stw_job *job);

void stw_block_forward_work(const stw_job *job, uint32_t block, const stw_work_style *style,
                            stw_work *out);
/** Gradients of inputs, and of the trained part of the weights. */
void stw_block_backward_work(const stw_job *job, uint32_t block, const stw_work_style *style,
                             stw_work *out);
/** Append a block's forward to work: what recomputation adds to a backward. These two keep the list
 * that they append out of their callers' frames: threads may have small stacks. */
void stw_block_append_forward_work(const stw_job *job, uint32_t block, const stw_work_style *style,
                                   stw_work *work);
/** Parts of a block's forward: what selective recomputation adds. */
void stw_block_parts_work(const stw_job *job, uint32_t group, const stw_work_style *style,
                          const stw_block_parts *parts, stw_work *out);
void stw_block_append_parts_work(const stw_job *job, uint32_t group, const stw_work_style *style,
                                 const stw_block_parts *parts, stw_work *work);
/** Head and loss of so many tokens: forward, or backward with this many products of the forward's
 * size. */
void stw_head_forward_work(const stw_job *job, const stw_work_style *style, double tokens,
                           stw_work *out);
void stw_head_backward_work(const stw_job *job, const stw_work_style *style, double tokens,
                            double products, stw_work *out);
/** Copy a list into a program's pool, for an operation. */
void stw_op_set_work(stw_builder *b, stw_op *op, const stw_work *work);

#endif

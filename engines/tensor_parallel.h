/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors tensor parallelism cuts, and how: what engines have in common. Products that come
 * first in attention and MLP, their biases, the embedding and the head are cut by rows of the
 * weight (their outputs), products that come last by columns (their inputs); norms, biases of the
 * last products, routers and tables of positions are whole on every rank. Pure functions; any
 * thread. */
#ifndef STW_ENGINES_TENSOR_PARALLEL_H
#define STW_ENGINES_TENSOR_PARALLEL_H

#include "plan/job/job.h"

typedef enum stw_tp_cut { STW_TP_WHOLE, STW_TP_ROWS, STW_TP_COLUMNS } stw_tp_cut;

/** How a tensor is cut, by its name. */
stw_tp_cut stw_tp_cut_of(const stw_tensor *tensor);

/** Slot of stw_engine for engines that cut no experts: elements of a tensor on a rank. */
uint64_t stw_tp_part(const stw_job *job, uint32_t tensor);
/** Rows of that part, and elements of each. */
uint64_t stw_tp_rows(const stw_job *job, uint32_t tensor, uint64_t *row);
/** BAD_INPUT where the ways do not divide the heads, the width of the MLP or the vocabulary;
 * NOT_BUILT_IN where a part of the model is not softmax attention and a dense MLP. @param engine
 * that errors name */
STW_MUST_USE stw_status stw_tp_check_model(const stw_model *model, uint32_t tp, const char *engine,
                                           stw_error *err);
/** The same of a run's ways, which must divide the sequence, too. */
STW_MUST_USE stw_status stw_tp_check(const stw_job *job, stw_error *err);

#endif

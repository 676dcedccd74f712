/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the files that a job wrote on several nodes or ranks into one result. */
#ifndef STW_MEASURED_RUN_JOIN_H
#define STW_MEASURED_RUN_JOIN_H

#include "plan/files/run_file.h"

/** Join external results: the union of their ranks, nodes and peaks; the highest of values that all
 * have. A file of one node is assigned to the node of the job that has its ranks, whatever number
 * the file gives. BAD_INPUT names two files with the same rank or node, or with different GPUs. The
 * caller frees *out and the runs. */
STW_MUST_USE stw_status stw_run_results_join(const stw_run_result *const *runs, uint32_t n,
                                             uint32_t ranks_per_node, stw_run_result **out,
                                             stw_error *err);

#endif

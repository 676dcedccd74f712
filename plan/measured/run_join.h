/* SPDX-License-Identifier: Apache-2.0 */
/* One result of the files that a job wrote on several nodes or ranks. */
#ifndef STW_MEASURED_RUN_JOIN_H
#define STW_MEASURED_RUN_JOIN_H

#include "plan/files/run_file.h"

/** Join external results: their ranks, nodes and peaks together, of what they all have the highest.
 * A file of one node whose ranks are all of one node of the job is of that node, whatever it calls
 * it. BAD_INPUT names two files that have the same rank or node, or other GPUs. The caller frees
 * *out and the runs. */
STW_MUST_USE stw_status stw_run_results_join(const stw_run_result *const *runs, uint32_t n,
                                             uint32_t ranks_per_node, stw_run_result **out,
                                             stw_error *err);

#endif

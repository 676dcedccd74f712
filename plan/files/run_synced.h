/* SPDX-License-Identifier: Apache-2.0 */
/* The weight sync and the weights folder in a run file. */
#ifndef STW_PLAN_RUN_SYNCED_H
#define STW_PLAN_RUN_SYNCED_H

#include "core/json.h"
#include "core/tree.h"
#include "plan/files/run_file.h"

/** Write them; nothing if the run has neither. */
void stw_run_synced_write(const stw_run_synced *synced, stw_json *json);
/** @param pool the pool of the result */
STW_MUST_USE stw_status stw_run_synced_read(const stw_tree *tree, const stw_node *root,
                                            stw_pool *pool, stw_run_synced *out, stw_error *err);

#endif

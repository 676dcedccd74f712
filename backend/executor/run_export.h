/* SPDX-License-Identifier: Apache-2.0 */
/* stowage run --sync-to: after each step the parameters are written to a folder of safetensors
 * under published names (engines/export.h), through bounded buffers. Each rank of the first
 * node writes its own files. The new folder is made beside the old one and then replaces it, so
 * that a reader always finds a complete version. All calls are collective and from one thread. */
#ifndef STW_BACKEND_EXECUTOR_RUN_EXPORT_H
#define STW_BACKEND_EXECUTOR_RUN_EXPORT_H

#include "backend/executor/run.h"

typedef struct stw_run_export stw_run_export;

/** Make the schedule if the options name a folder; refuse a path that must not be replaced. */
STW_MUST_USE stw_status stw_run_export_prepare(stw_rank_run *run, stw_error *err);
/** Add the bytes of the buffers to the arenas of the run's configuration. */
void stw_run_export_take_room(stw_rank_run *run);
/** Call it after the device is open. */
STW_MUST_USE stw_status stw_run_export_open(stw_rank_run *run, stw_error *err);
/** Write the folder of run->step. */
STW_MUST_USE stw_status stw_run_export_step(stw_rank_run *run, stw_error *err);
/** If this rank can see the folder: read all its elements as a load does, and compare them with
 * this rank's parameters. Differing elements count in run->mismatched. */
STW_MUST_USE stw_status stw_run_export_verify(stw_rank_run *run, stw_error *err);
/** Add the folder's figures to the result of rank 0. */
STW_MUST_USE stw_status stw_run_export_note(const stw_rank_run *run, stw_run_result *out,
                                            stw_error *err);
void stw_run_export_close(stw_rank_run *run);

#endif

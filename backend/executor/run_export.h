/* SPDX-License-Identifier: Apache-2.0 */
/* stowage run --sync-to: after each step the parameters go to a folder of safetensors under
 * published names (plan/engines/export.h), through bounded buffers. Ranks of the first node write
 * files of their own; the folder is made beside the old one and takes its place, so that a reader
 * finds a whole version. All calls are collective and from one thread. */
#ifndef STW_BACKEND_EXECUTOR_RUN_EXPORT_H
#define STW_BACKEND_EXECUTOR_RUN_EXPORT_H

#include "backend/executor/run.h"

typedef struct stw_run_export stw_run_export;

/** Make the schedule, where the options name a folder; refuse a path that is not to be replaced. */
STW_MUST_USE stw_status stw_run_export_prepare(stw_rank_run *run, stw_error *err);
/** Add what buffers need to the arenas of the run's configuration. */
void stw_run_export_take_room(stw_rank_run *run);
/** Once the device is there. */
STW_MUST_USE stw_status stw_run_export_open(stw_rank_run *run, stw_error *err);
/** Write the folder of run->step. */
STW_MUST_USE stw_status stw_run_export_step(stw_rank_run *run, stw_error *err);
/** Compare every element of the folder, read as a load reads it, with the parameters that this rank
 * has, where it sees the folder; what differs counts in run->mismatched. */
STW_MUST_USE stw_status stw_run_export_verify(stw_rank_run *run, stw_error *err);
/** What the result of rank 0 says of it. */
STW_MUST_USE stw_status stw_run_export_note(const stw_rank_run *run, stw_run_result *out,
                                            stw_error *err);
void stw_run_export_close(stw_rank_run *run);

#endif

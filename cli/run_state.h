/* SPDX-License-Identifier: Apache-2.0 */
/* What `stowage run` does about state on NVMe: crash safety, and signals. */
#ifndef STW_CLI_RUN_STATE_H
#define STW_CLI_RUN_STATE_H

#include "plan/files/plan_terms.h"

/** --keep-state: give the plan two copies of its state on NVMe. USAGE where it has none there.
 * @param terms out, of the plan as its file states it: those of the run's result */
STW_MUST_USE stw_status stw_run_keep_state(stw_plan *plan, stw_plan_terms *terms, stw_error *err);

/** Is this the rank that tells what all would tell? Rank 0, or the only one. */
bool stw_run_is_told(void);

/** SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGALRM and SIGXCPU end the process as they do by default, but
 * tell where state on NVMe
 * is kept, and remove files that hold nothing of use. */
void stw_run_catch_signals(void);

/** stw_executor_options.failed of the program: print the error at once; where peers may not come,
 * end the process a few seconds later even if closing waits for them. */
void stw_run_failed(void *unused, stw_error *err, bool broken);

#endif

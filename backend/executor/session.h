/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's run, controlled by a caller. The caller may own memory and streams, issues the
 * movements one by one between its own work, and writes the gradients. A session borrows plan and
 * options, which must outlive it. One thread at a time; opening, closing and every call that takes
 * an error is collective over the ranks of the plan. */
#ifndef STW_BACKEND_EXECUTOR_SESSION_H
#define STW_BACKEND_EXECUTOR_SESSION_H

#include "backend/executor/run.h"

typedef struct stw_session stw_session;

/** Open device and communicator and set moments to zero; no movement is issued.
 * @param options `steps` is ignored */
STW_MUST_USE stw_status stw_session_open(const stw_plan *plan, const stw_executor_options *options,
                                         stw_session **out, stw_error *err);
void stw_session_close(stw_session *session); /* NULL is fine */
const stw_rank_run *stw_session_run(const stw_session *session);

/** Set the learning rate of a parameter group from the next movement on. Group 0 has the
 * optimizer's own rates, i is run.optimizer.groups[i - 1]. USAGE for a group that the plan lacks,
 * or a rate outside 0 to STW_MOST_LR. */
STW_MUST_USE stw_status stw_session_set_lr(stw_session *session, uint32_t group, double lr,
                                           stw_error *err);

typedef struct stw_session_sample {
    double seconds, grad_norm, clip_factor; /* norm NaN and factor 1: no clipping; both NaN: a
                                               gradient is NaN */
} stw_session_sample;

/** Issue the executed movements of a phase, in order, and wait until they are done. They wait for
 * work that the caller queued on its streams before. USAGE if Stowage executes none, or for a phase
 * out of order: load or adopt, then the first optimizer step once, then later steps. BAD_INPUT if
 * options->error_if_nonfinite refuses an optimizer step; the session stays usable with other
 * gradients.
 * @param step for AdamW's bias corrections, from 1 */
STW_MUST_USE stw_status stw_session_issue(stw_session *session, stw_phase phase, uint64_t step,
                                          stw_session_sample *sample, stw_error *err);
/** Instead of a load: make masters from the parameters in the arenas. */
STW_MUST_USE stw_status stw_session_adopt(stw_session *session, stw_error *err);
typedef struct stw_session_saves {
    const char *folder, *config; /* as stw_executor_options.checkpoint and checkpoint_config */
    uint32_t keep;
} stw_session_saves;
/** Begin to save the state after a step. The first call is collective. */
STW_MUST_USE stw_status stw_session_save(stw_session *session, const stw_session_saves *saves,
                                         uint64_t step, stw_error *err);
/** Instead of a load: resume from a checkpoint, or from the newest complete one of a folder. */
STW_MUST_USE stw_status stw_session_resume(stw_session *session, const char *path, uint64_t *step,
                                           stw_error *err);
/** Write the seeded gradients of a step, as stw_execute does. */
STW_MUST_USE stw_status stw_session_seed_grads(stw_session *session, uint64_t step, stw_error *err);
/** True if the plan has the component with this index in stw_run_result.digest. */
bool stw_session_has(const stw_session *session, int digest);
/** Compute the digests of the state over all ranks, in the order of stw_run_result.digest. */
STW_MUST_USE stw_status stw_session_digest(stw_session *session, uint64_t digest[STW_N_DIGESTS],
                                           stw_error *err);

#endif

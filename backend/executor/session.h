/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's run in the hands of a caller: memory and streams may be the caller's, who issues the
 * movements one by one, between work of its own, and writes the gradients. A session borrows plan
 * and options, which must outlive it. One thread at a time; opening, closing and every call that
 * takes an error is collective over the ranks of the plan. */
#ifndef STW_BACKEND_EXECUTOR_SESSION_H
#define STW_BACKEND_EXECUTOR_SESSION_H

#include "backend/executor/run.h"

typedef struct stw_session stw_session;

/** Open device and communicator and set moments to zero; no movement is issued.
 * @param options `steps` is not looked at */
STW_MUST_USE stw_status stw_session_open(const stw_plan *plan, const stw_executor_options *options,
                                         stw_session **out, stw_error *err);
void stw_session_close(stw_session *session); /* NULL is fine */
const stw_rank_run *stw_session_run(const stw_session *session);

/** Learning rate of a parameter group from the next movement on: 0 the optimizer's own, i those of
 * run.optimizer.groups[i - 1]. USAGE for a group that the plan does not have, and
 * for a rate outside 0 to STW_MOST_LR. */
STW_MUST_USE stw_status stw_session_set_lr(stw_session *session, uint32_t group, double lr,
                                           stw_error *err);

typedef struct stw_session_sample {
    double seconds, grad_norm, clip_factor; /* norm NaN and factor 1 without clipping;
                                             * both NaN: a gradient was */
} stw_session_sample;

/** Issue the executed movements of a phase, in order, and wait until they are done. Work that the
 * caller queued on its streams before is done first. USAGE where Stowage executes none, and for a
 * phase out of order: load or adopt, then the first optimizer step once, then later steps.
 * BAD_INPUT of an optimizer step where options->error_if_nonfinite refuses it: the session goes on,
 * and other gradients may be given.
 * @param step for AdamW's bias corrections, from 1 */
STW_MUST_USE stw_status stw_session_issue(stw_session *session, stw_phase phase, uint64_t step,
                                          stw_session_sample *sample, stw_error *err);
/** In place of a load: masters from the parameters that lie in the arenas. */
STW_MUST_USE stw_status stw_session_adopt(stw_session *session, stw_error *err);
typedef struct stw_session_saves {
    const char *folder, *config; /* as stw_executor_options.checkpoint and checkpoint_config */
    uint32_t keep;
} stw_session_saves;
/** Begin to save the state after a step. The first call is collective. */
STW_MUST_USE stw_status stw_session_save(stw_session *session, const stw_session_saves *saves,
                                         uint64_t step, stw_error *err);
/** In place of a load: a checkpoint, or the newest whole one of a folder. */
STW_MUST_USE stw_status stw_session_resume(stw_session *session, const char *path, uint64_t *step,
                                           stw_error *err);
/** Seeded gradients of a step, as stw_execute makes them. */
STW_MUST_USE stw_status stw_session_seed_grads(stw_session *session, uint64_t step, stw_error *err);
/** Whether the plan has the component of an index of stw_run_result.digest. */
bool stw_session_has(const stw_session *session, int digest);
/** Digests of the state over all ranks, in the order of stw_run_result.digest. */
STW_MUST_USE stw_status stw_session_digest(stw_session *session, uint64_t digest[STW_N_DIGESTS],
                                           stw_error *err);

#endif

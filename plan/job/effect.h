/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which keys have an effect on a job. The tables of keys list each key's needs (stw_need);
 * these functions test the needs against engine, model, cluster and run. A key that is set without
 * an effect is refused, never ignored. Pure functions; any thread. */
#ifndef STW_PLAN_EFFECT_H
#define STW_PLAN_EFFECT_H

#include <stdbool.h>

#include "plan/job/job.h"
#include "plan/spec/spec_keys.h"

/** Refuse keys of the run spec without an effect on this job, parameter groups that match no
 * tensor, and sequences longer than learned positions. BAD_INPUT names key, value, reason and what
 * to set instead. Keys of the cluster are checked only if they are set for one plan, because a
 * cluster describes a machine; see stw_job_check_setting. */
STW_MUST_USE stw_status stw_job_check_effect(const stw_job *job, const char *origin,
                                             stw_error *err);
/** Refuse a cluster key that was set only for this plan and has no effect on it. Accepts any key of
 * the run spec.
 * @param setting "key=value" */
STW_MUST_USE stw_status stw_job_check_setting(const stw_job *job, const char *setting,
                                              const char *origin, stw_error *err);
/** True if sequences exceed the positions that the model was trained with, but work because
 * positions are computed. With learned positions, which are a table, such sequences are refused
 * instead. */
bool stw_job_exceeds_positions(const stw_job *job);
/** Returns the tokens of a sequence if batch.seq_len is auto: 4096, or the model's positions if
 * fewer. */
uint64_t stw_default_seq_len(const stw_model *model);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys have an effect on a job. The tables of keys say what each one needs (stw_need); here
 * the needs are tested against engine, model, cluster and run. A key that is set and has no effect
 * is refused, never ignored. Pure functions; any thread. */
#ifndef STW_PLAN_EFFECT_H
#define STW_PLAN_EFFECT_H

#include <stdbool.h>

#include "plan/job/job.h"
#include "plan/spec/spec_keys.h"

/** Refuse keys of the run spec without an effect on this job, parameter groups that match no
 * tensor, and sequences longer than learned positions. BAD_INPUT names key, value, reason and what
 * to set instead. A cluster describes a machine: its keys are checked only if they are set for one
 * plan, see stw_job_check_setting. */
STW_MUST_USE stw_status stw_job_check_effect(const stw_job *job, const char *origin,
                                             stw_error *err);
/** Refuse a cluster key that was set for this plan alone and has no effect on it. A key of the run
 * spec is fine. @param setting "key=value" */
STW_MUST_USE stw_status stw_job_check_setting(const stw_job *job, const char *setting,
                                              const char *origin, stw_error *err);
/** Do sequences exceed the positions that the model was trained with (and need not fail, because
 * positions are computed)? Learned positions are a table: they are refused instead. */
bool stw_job_exceeds_positions(const stw_job *job);
/** Tokens of a sequence where batch.seq_len is auto: 4096, or the model's positions if fewer. */
uint64_t stw_default_seq_len(const stw_model *model);

#endif

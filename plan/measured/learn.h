/* SPDX-License-Identifier: Apache-2.0 */
/* What a recording of somebody else's job teaches of the environment: the base of a rank's process,
 * the launcher, the CUDA context, the share of the GPU's rate that forward and backward reach.
 * Bytes of the model are never adjusted: an error of their accounting must stay visible. A constant
 * is learned only from phases in which nothing else can hide in it. One thread at a time. */
#ifndef STW_MEASURED_LEARN_H
#define STW_MEASURED_LEARN_H

#include "plan/files/plan.h"
#include "plan/files/run_file.h"
#include "plan/spec/cluster_learned.h"

typedef struct stw_lesson {
    bool learned;
    stw_learned_value before; /* what plans take until now */
    const char *before_from;  /* where that is not of this key: of which, or "a default"; or NULL */
    stw_learned entry;        /* of what was learned */
    char why[320];            /* it was not */
} stw_lesson;

typedef struct stw_lessons {
    const char *path; /* of the cluster file that learned */
    bool changed;     /* it was written */
    uint32_t n_learned;
    stw_lesson items[STW_N_LEARNABLE]; /* by stw_learnable */
} stw_lessons;

/** The recording, for the entries. */
typedef struct stw_learn_source {
    const char *from; /* file name without folders */
    const char *date; /* ISO, where the recording has none; "": unknown */
} stw_learn_source;

/** Learn from an external run and the plan that was made for it.
 * @param into the cluster that is to learn; its NCCL bytes and its rate of the GPU are what the
 * other values are measured against
 * @return BAD_INPUT: the run is no recording of the plan's framework, the GPUs are others, or a
 * value is absurd (what was found and what was expected) */
STW_MUST_USE stw_status stw_learn(const stw_plan *plan, const stw_run_result *run,
                                  const stw_learn_source *source, const stw_cluster *into,
                                  stw_lessons *out, stw_error *err);
/** Seconds in which a framework issues the operations of forward and backward from Python: an
 * estimate. A phase that is not much longer is short: the GPU waits for Python. */
double stw_learn_issue_s(const stw_plan *plan);
bool stw_learn_is_short(const stw_plan *plan, double seconds);
/** Set the keys that were learned, and their entries. */
void stw_lessons_apply(const stw_lessons *lessons, stw_cluster *cluster);
/** As member "learn" of the object that is open. */
void stw_lessons_write_json(const stw_lessons *lessons, stw_json *json);

#endif

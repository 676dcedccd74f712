/* SPDX-License-Identifier: Apache-2.0 */
/* Learns constants of the environment from a recording of another program's job: the base of a
 * rank's process, the launcher, the CUDA context, and the share of the GPU's rate that forward and
 * backward reach. Bytes of the model are never adjusted, so that errors in their accounting stay
 * visible. A constant is learned only from phases in which it cannot contain anything else. One
 * thread at a time. */
#ifndef STW_MEASURED_LEARN_H
#define STW_MEASURED_LEARN_H

#include "plan/files/plan.h"
#include "plan/files/run_file.h"
#include "plan/spec/cluster_learned.h"

typedef struct stw_lesson {
    bool learned;
    stw_learned_value before; /* the value that plans use so far */
    const char *before_from;  /* if not from this key: the other key, or "a default"; else NULL */
    stw_learned entry;        /* the learned entry */
    char why[320];            /* reason if not learned */
} stw_lesson;

typedef struct stw_lessons {
    const char *path; /* path of the updated cluster file */
    bool changed;     /* the file was written */
    uint32_t n_learned;
    stw_lesson items[STW_N_LEARNABLE]; /* by stw_learnable */
} stw_lessons;

/** The recording, as the entries name it. */
typedef struct stw_learn_source {
    const char *from; /* file name without folders */
    const char *date; /* ISO, used if the recording has none; "": unknown */
} stw_learn_source;

/** Learn from an external run and its plan.
 * @param into the cluster to update; its NCCL bytes and its GPU rate are the reference for the
 * other values
 * @return BAD_INPUT with found and expected: the run is not a recording of the plan's framework,
 * the GPUs differ, or a value is absurd */
STW_MUST_USE stw_status stw_learn(const stw_plan *plan, const stw_run_result *run,
                                  const stw_learn_source *source, const stw_cluster *into,
                                  stw_lessons *out, stw_error *err);
/** Returns an estimate of the seconds that a framework needs to issue the operations of forward and
 * backward from Python. A phase that is not much longer is short: the GPU waits for Python. */
double stw_learn_issue_s(const stw_plan *plan);
bool stw_learn_is_short(const stw_plan *plan, double seconds);
/** Set the learned keys and their entries. */
void stw_lessons_apply(const stw_lessons *lessons, stw_cluster *cluster);
/** Write the member "learn" of the open object. */
void stw_lessons_write_json(const stw_lessons *lessons, stw_json *json);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers on the CPU: how many threads a rank has, how long they take, and what to change where
 * they are slow. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_CPU_STEP_H
#define STW_ENGINES_CPU_STEP_H

#include "plan/job/job.h"

/** Threads of one rank: optimizer.cpu_threads. auto: 1 where a node has several ranks (torchrun
 * sets OMP_NUM_THREADS=1 then: torch/distributed/run.py, config_from_args), else one per core. */
uint32_t stw_cpu_threads(const stw_job *job);

/** Seconds in which the threads of a rank read and write so many bytes of arrays; `slower` is how
 * much more a thread has to do for them than for as many bytes of fp32. */
double stw_cpu_pass_s(const stw_job *job, double bytes, double slower);

/** An update of one rank's `params` elements. */
typedef struct stw_cpu_update {
    const stw_cpu_rate *rate; /* measured in fp32; what is 0 is counted by traffic */
    uint64_t params;
    double bytes;      /* of all traffic */
    double fp32_bytes; /* of an element, if all state were fp32 */
    double slower;     /* see stw_cpu_pass_s */
} stw_cpu_update;
/** Its seconds: the rate of all cores falls with the bytes, that of a thread does not; threads add
 * up. */
double stw_cpu_update_s(const stw_job *job, const stw_cpu_update *update);

/** See stw_engine.cpu_advice. @param now how the update runs @param fused may the implementation be
 * changed? */
void stw_cpu_advice(const stw_job *job, const char *now, bool fused, char *out, size_t out_size);
/** The same of an optimizer of which only the threads can be chosen. */
void stw_cpu_thread_advice(const stw_job *job, char *out, size_t out_size);

#endif

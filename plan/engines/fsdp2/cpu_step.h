/* SPDX-License-Identifier: Apache-2.0 */
/* torch's AdamW on the CPU: which implementation runs, with how many threads, and how long it
 * takes. Pure functions of the job; any thread. */
#ifndef STW_PLAN_FSDP2_CPU_STEP_H
#define STW_PLAN_FSDP2_CPU_STEP_H

#include "plan/job/job.h"

/** FUSED, FOREACH (also of the streamed step) or LOOP. `auto` on the GPU is fused. On the CPU,
 * `auto` and `cpu` are the loop, torch's default there (torch/optim/optimizer.py at v2.11,
 * _default_to_fused_or_foreach). */
stw_optimizer_implementation stw_fsdp2_implementation(const stw_job *job, bool cpu);

/** Threads of one rank: optimizer.cpu_threads. auto: 1 where a node has several ranks (torchrun
 * sets OMP_NUM_THREADS=1 then: torch/distributed/run.py, config_from_args), else one per core. */
uint32_t stw_fsdp2_cpu_threads(const stw_job *job);

/** Seconds in which the threads of a rank read and write so many bytes of arrays; `slower` is how
 * much more a thread has to do for them than for as many bytes of fp32. */
double stw_fsdp2_cpu_pass_s(const stw_job *job, double bytes, double slower);

/** An update of one rank's `params` elements. */
typedef struct stw_cpu_update {
    const stw_cpu_rate *rate; /* measured in fp32; what is 0 is counted by traffic */
    uint64_t params;
    double bytes;      /* of all traffic */
    double fp32_bytes; /* of an element, if all state were fp32 */
    double slower;     /* see stw_fsdp2_cpu_pass_s */
} stw_cpu_update;
/** Its seconds: the rate of all cores falls with the bytes, that of a thread does not; threads add
 * up. */
double stw_cpu_update_s(const stw_job *job, const stw_cpu_update *update);

/** See stw_engine.cpu_rate. */
const stw_cpu_rate *stw_fsdp2_cpu_rate(const stw_job *job);

/** See stw_engine.cpu_step. */
double stw_fsdp2_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes);

/** See stw_engine.cpu_advice: of torch's AdamW, and of an optimizer of which only the threads can
 * be chosen. */
void stw_fsdp2_cpu_advice(const stw_job *job, char *out, size_t out_size);
void stw_cpu_thread_advice(const stw_job *job, char *out, size_t out_size);

#endif

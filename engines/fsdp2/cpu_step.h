/* SPDX-License-Identifier: Apache-2.0 */
/* torch's AdamW on the CPU: which implementation runs, and how long it takes. Pure functions of the
 * job; any thread. */
#ifndef STW_ENGINES_FSDP2_CPU_STEP_H
#define STW_ENGINES_FSDP2_CPU_STEP_H

#include "plan/job/job.h"

/** FUSED, FOREACH (also of the streamed step) or LOOP. `auto` on the GPU is fused. On the CPU,
 * `auto` and `cpu` are the loop, torch's default there (torch/optim/optimizer.py at v2.11,
 * _default_to_fused_or_foreach). */
stw_optimizer_implementation stw_fsdp2_implementation(const stw_job *job, bool cpu);

/** See stw_engine.cpu_rate. */
const stw_cpu_rate *stw_fsdp2_cpu_rate(const stw_job *job);

/** See stw_engine.cpu_step. */
double stw_fsdp2_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes);

/** See stw_engine.cpu_advice. */
void stw_fsdp2_cpu_advice(const stw_job *job, char *out, size_t out_size);

#endif

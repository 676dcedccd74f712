/* SPDX-License-Identifier: Apache-2.0 */
/* The movements of this engine. Every function appends to the builder of `z`. */
#ifndef STW_ENGINES_DEEPSPEED_PARTS_H
#define STW_ENGINES_DEEPSPEED_PARTS_H

#include "engines/deepspeed/zero.h"

void stw_zero_build_load(stw_zero *z);
/** Forward and backward of the step's last micro batch; what earlier ones have left is there. */
void stw_zero_build_forward_backward(stw_zero *z);
/** The operations of the same where z->traced. */
void stw_zero_build_traced(stw_zero *z);
/** @param first the step that makes the moments; no backward comes before it in a program */
void stw_zero_build_step(stw_zero *z, bool first);

/** See stw_engine.cpu_step. */
double stw_zero_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes);
/** See stw_engine.cpu_rate. */
const stw_cpu_rate *stw_zero_cpu_rate(const stw_job *job);
/** See stw_engine.cpu_pass. */
double stw_zero_cpu_pass(const stw_job *job, double bytes);

#endif

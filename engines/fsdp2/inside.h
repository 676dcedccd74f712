/* SPDX-License-Identifier: Apache-2.0 */
/* Stowage's optimizer in a job that torch trains with FSDP2 (stowage.torch.AdamW): parameters and
 * gradients are torch's, master weights and moments lie on the GPU or page-locked on the host in
 * quanta of the flat space, and its step is that of buckets (stowage/step.c). Buckets ascend in the
 * model. What lies on the GPU, with the slots of the ring, is one tensor of torch's allocator for
 * each component; what lies on the host is one arena, without rounding. The optimizer takes both in
 * its first step (python/stowage/torch/part.py). */
#ifndef STW_ENGINES_FSDP2_INSIDE_H
#define STW_ENGINES_FSDP2_INSIDE_H

#include "engines/movements.h"

/** The first step begins: state, ring and page tables appear and stay. */
void stw_fsdp2_open_inside(stw_builder *b);
/** The operations of a step, within its movement. @return the last update */
uint32_t stw_fsdp2_step_inside(stw_builder *b);

#endif

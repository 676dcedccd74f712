/* SPDX-License-Identifier: Apache-2.0 */
/* What the process does between the GPU's work in a step: calls and passes. */
#ifndef STW_ENGINES_DEEPSPEED_CALLS_H
#define STW_ENGINES_DEEPSPEED_CALLS_H

#include "engines/deepspeed/zero.h"

/** The process begins so many calls when the last thing that it waited for has ended. */
uint32_t stw_zero_call(stw_zero *z, uint64_t calls, uint32_t after);
/** A pass over the gradients or parameters of `params` elements, so many bytes of each. */
uint32_t stw_zero_pass(stw_zero *z, stw_tier tier, uint64_t params, uint64_t bytes, uint32_t after);
/** The last operation of a stream in this movement; STW_OP_NONE: none. */
uint32_t stw_zero_last(const stw_zero *z, stw_stream stream);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of gated linear attention (transformers 5.17, models/qwen3_5, models/qwen3_next). */
#ifndef STW_BLOCKS_LINEAR_H
#define STW_BLOCKS_LINEAR_H

#include "blocks/adding.h"

/** Has a block linear attention, with all of its weights? */
bool stw_add_is_linear(const stw_adding *a);
/** @return the output of its last product */
uint8_t stw_add_linear_attention(stw_adding *a, uint8_t in);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention (https://arxiv.org/abs/2405.04434, section 2.1) as transformers 5.17
 * has it: models/deepseek_v2, models/deepseek_v3. */
#ifndef STW_BLOCKS_LATENT_H
#define STW_BLOCKS_LATENT_H

#include "blocks/adding.h"

/** @param in normalised @return the output of the last product */
uint8_t stw_add_latent_attention(stw_adding *a, uint8_t in);

#endif

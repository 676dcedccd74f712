/* SPDX-License-Identifier: Apache-2.0 */
/* Vision towers as transformers runs them on every rank (FSDP2, ZeRO, torch alone): what their
 * blocks and mergers save. Sources: vision.c. All figures are per rank and micro batch. Pure
 * functions of the job; any thread. */
#ifndef STW_ENGINES_VISION_H
#define STW_ENGINES_VISION_H

#include "plan/job/images.h"

/** Does backward reach the blocks of the tower: is one of them trained, or the embedding of
 * patches? Pixels have no gradient. */
bool stw_vision_is_reached(const stw_job *job);
/** What embedding and mergers save from forward to backward. */
uint64_t stw_vision_saved_bytes(const stw_job *job);

#endif

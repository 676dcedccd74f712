/* SPDX-License-Identifier: Apache-2.0 */
/* The movement of a checkpoint that Stowage writes. Who writes what follows from the plan
 * (save_plan.h), so that ranks tell each other nothing: it has no collective.
 *
 * All that a rank writes passes through its buckets on the host (plan/checkpoint/buckets.h), which
 * are filled in turn and written in the same order:
 * - first what lies on the GPU; the run goes on when it has left;
 * - then, beside the run, what lies on the host or on NVMe: bucket after bucket of the layout, in
 *   the order in which the next step reaches them. Nothing of it changes until then. The step
 *   waits until what it changes is in a bucket (sim/stall.h); with more of them
 *   (checkpoint.copies) it waits for fewer writes. */
#ifndef STW_ENGINES_OWN_SAVE_H
#define STW_ENGINES_OWN_SAVE_H

#include "engines/park.h"

/** Buckets and files that stay, within the movement in which the state appears; nothing where
 * Stowage writes no checkpoints. */
void stw_build_own_staging(stw_builder *b);
/** The movement. */
void stw_build_own_save(stw_builder *b);

#endif

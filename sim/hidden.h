/* SPDX-License-Identifier: Apache-2.0 */
/* What a step that goes on beside the next forward adds to an iteration. Both are simulated, each
 * by itself. Modules wait for their parameters in the order of the forward: the root group first,
 * then block after block; without sharding, head and final norm last. Buckets are updated in that
 * order.
 *
 * A block's forward begins when its last bucket is updated and the GPU has done all that comes
 * before: the forward of earlier blocks, and the step's own kernels (norm, updates), which take the
 * GPU from the forward. So with W the seconds of these kernels, W(b) of those up to the last bucket
 * of block b, done(b) the end of that bucket's update and start(b) the start of the block in a
 * forward without a step, the step adds
 *     W + max(0, max over b of done(b) - W(b) - start(b)),
 * at least W, and at least all its seconds less those of the forward. A step of resident state adds
 * all its seconds. Not counted are copies and kernels that slow the forward's own down. */
#ifndef STW_SIM_HIDDEN_H
#define STW_SIM_HIDDEN_H

#include "sim/sim.h"

/** Fill sim->exposed_s, where the job hides steps and the program has step and forward. */
STW_MUST_USE stw_status stw_sim_hide(stw_sim *sim, stw_error *err);

#endif

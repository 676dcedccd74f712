/* SPDX-License-Identifier: Apache-2.0 */
/* The seconds that a step adds to an iteration if it overlaps the next forward. Step and forward
 * are simulated separately. Modules wait for their parameters in the order of the forward: the root
 * group first, then block after block; without sharding, head and final norm last. Buckets are
 * updated in that order.
 *
 * A block's forward begins when its last bucket is updated and the GPU has finished the work before
 * it: the forward of earlier blocks, and the step's own kernels (norm, updates), which delay the
 * forward. Let W be the seconds of these kernels, W(b) the seconds of those up to the last bucket
 * of block b, done(b) the end of that bucket's update, and start(b) the start of the block in a
 * forward without a step. The step adds
 *     W + max(0, max over b of done(b) - W(b) - start(b)),
 * which is at least W; it also adds at least its seconds minus the forward's. A step of resident
 * state adds all its seconds. The model does not count that the step's copies and kernels slow down
 * those of the forward. */
#ifndef STW_SIM_HIDDEN_H
#define STW_SIM_HIDDEN_H

#include "sim/sim.h"

/** Fill sim->exposed_s if the job hides steps and the program has step and forward. */
STW_MUST_USE stw_status stw_sim_hide(stw_sim *sim, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint that is written beside training adds to an iteration. The save, the pass
 * between two steps and the step are simulated each by itself.
 *
 * A framework's save (checkpoint.async) stops training until everything is copied. Every save stops
 * it where the one before is not complete, so that it adds at least its seconds less those of
 * checkpoint.every iterations.
 *
 * Stowage's own stops nothing when it begins. With B the seconds until the next step begins (passes
 * for log-probabilities, forward and backward, less what of a step goes on beside them), it adds
 *     max(0, last copy from the GPU - B, max over buckets of written(b) - B - reached(b)),
 * where reached(b) is when the step first changes bucket b of the state on the host or NVMe, and
 * written(b) when the save has written it, except for as much as the buckets on the host hold: so
 * much is copied there, and the step goes on. Not counted is what writes take from the training
 * beside them: host memory bandwidth, and the disk where state on NVMe is streamed. */
#ifndef STW_SIM_STALL_H
#define STW_SIM_STALL_H

#include "sim/sim.h"

/** Fill sim->stall_s, where the program has a save that is written beside training. */
STW_MUST_USE stw_status stw_sim_stall(stw_sim *sim, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The seconds that a checkpoint adds to an iteration if it is written during training. The save,
 * the pass between two steps, and the step are simulated separately.
 *
 * A framework's save (checkpoint.async) stops training until everything is copied. Training
 * also waits for a previous save that is not complete, so that a save adds at least its seconds
 * minus those of checkpoint.every iterations.
 *
 * Stowage's own save does not stop training when it begins. Let B be the seconds until the next
 * step begins (passes for log-probabilities, forward and backward, minus the hidden seconds of a
 * step). The save adds
 *     max(0, last copy from the GPU - B, max over buckets of written(b) - B - reached(b)),
 * where reached(b) is the time at which the step first changes bucket b of the state on the host or
 * NVMe, and written(b) the time at which the save has written it. The step does not wait for
 * buckets that fit in the copies on the host. The model does not count the bandwidth that writes
 * take from training: host memory, and the disk if state on NVMe is streamed. */
#ifndef STW_SIM_STALL_H
#define STW_SIM_STALL_H

#include "sim/sim.h"

/** Fill sim->stall_s if the program has a save that is written during training. */
STW_MUST_USE stw_status stw_sim_stall(stw_sim *sim, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The seconds that a checkpoint adds to an iteration if it is written during training. The save,
 * the pass between two steps, and the step are simulated separately.
 *
 * A framework's save (checkpoint.async) stops training until everything is copied. Training
 * also waits for a previous save that is not complete, so that a save adds at least its seconds
 * minus those of checkpoint.every iterations.
 *
 * Stowage's own stops it until what lies on the GPU is in buckets on the host; c are these seconds.
 * With B the seconds from then until the next step begins (passes for log-probabilities, forward
 * and backward, less what of a step goes on beside them), it adds
 *     c + max(0, max over buckets of read(b) - c - B - reached(b)),
 * where reached(b) is when the step first changes bucket b of the state on the host or NVMe, and
 * read(b) when all of it is in buckets on the host, each of which is free once what it held before
 * is written. State that no bucket of the layout cuts counts as the first to be reached. Not
 * counted is what writes take from the training beside them: host memory bandwidth, and the disk
 * where state on NVMe is streamed. */
#ifndef STW_SIM_STALL_H
#define STW_SIM_STALL_H

#include "sim/sim.h"

/** Fill sim->stall_s if the program has a save that is written during training. */
STW_MUST_USE stw_status stw_sim_stall(stw_sim *sim, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* From the bins of squared gradients (element.h) to the global norm and the clip factor. The bins
 * are one exact integer in units of 2^-298 written with too many digits: bin b counts 2^(16 b).
 * Sums of them are exact, so the norm is the same bits whatever the order, the placement and the
 * number of ranks. Pure functions, any thread. */
#ifndef STW_BACKEND_NORM_H
#define STW_BACKEND_NORM_H

#include "backend/element.h"

#define STW_NORM_UNIT_EXPONENT (-298)
/** 64-bit counters in an stw_norm_bins, as stw_comm_sum_u64 sums them. */
#define STW_NORM_COUNTERS (2u * STW_NORM_BINS + 1u)

/** Carry: the same integer with 16 bits per bin (the last bin keeps the rest) and empty high
 * limbs, so that 2^24 of them can be added counter by counter. */
void stw_norm_normalise(stw_norm_bins *bins);
/** to += from, then carried; neither needs to be normalised. */
void stw_norm_merge(stw_norm_bins *to, const stw_norm_bins *from);
/** The bins as an array of counters, for a sum over ranks, and back. */
void stw_norm_to_counters(const stw_norm_bins *bins, uint64_t *counters);
void stw_norm_from_counters(const uint64_t *counters, stw_norm_bins *bins);
/** The sum of squares, rounded once to the nearest double; infinity where a gradient was not
 * finite. */
double stw_norm_sum(const stw_norm_bins *bins);
/** sqrt of it: the global 2-norm. */
double stw_norm_value(const stw_norm_bins *bins);
/** What gradients are multiplied with: min(1, clip_norm / (norm + 1e-6)) in double, rounded to
 * float (formula: torch.nn.utils.clip_grad_norm_). 0 where the norm is infinite. */
float stw_norm_clip_factor(double norm, double clip_norm);

#endif

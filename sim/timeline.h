/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes on the simulated time line. A walk counts bytes in the order of the list, but operations of
 * other streams may run earlier or later than their place in the list. Bytes are live from their
 * alloc, or from the start of the first operation that uses them if that is earlier, to their free,
 * or to the end of the last such operation. Any thread may call. */
#ifndef STW_SIM_TIMELINE_H
#define STW_SIM_TIMELINE_H

#include "sim/sim.h"

/** Compute the peaks of every phase and tier on the time line of a simulation.
 * @param peaks out */
STW_MUST_USE stw_status stw_sim_live_peaks(const stw_sim *sim, stw_peaks *peaks, stw_error *err);
/** BUG if more bytes are live at any time than the peaks of the simulation say. */
STW_MUST_USE stw_status stw_sim_check_bytes(const stw_sim *sim, stw_error *err);

#endif

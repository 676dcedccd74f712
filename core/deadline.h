/* SPDX-License-Identifier: Apache-2.0 */
/* The deadline of what a thread does. Whoever starts long work sets it; loops whose length the
 * input decides (blocks, ranks, operations) ask now and then whether it has passed, and fail. Each
 * thread has its own; none is set at first. */
#ifndef STW_CORE_DEADLINE_H
#define STW_CORE_DEADLINE_H

#include <stdint.h>

#include "core/status.h"

/** Seconds on a clock that never goes back. */
double stw_now_s(void);

/** Work of this thread ends by `end_s` on that clock; INFINITY: no deadline.
 * @return the deadline that it replaces, to be set again afterwards */
double stw_deadline_set(double end_s);
/** INFINITY where there is none. */
double stw_deadline_end_s(void);

/** TIME_LIMIT once the deadline has passed. @param doing "building programs", for the message */
STW_MUST_USE stw_status stw_deadline_check(const char *doing, stw_error *err);

/** The same for step `i` of a loop with short steps: looks at the clock once in 1024 steps. */
STW_MUST_USE static inline stw_status stw_deadline_check_step(uint64_t i, const char *doing,
                                                              stw_error *err) {
    return (i & 1023) == 1023 ? stw_deadline_check(doing, err) : STW_STATUS_OK;
}

#endif

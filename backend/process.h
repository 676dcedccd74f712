/* SPDX-License-Identifier: Apache-2.0 */
/* What a process knows of itself: the time that passes and the memory it holds. Any thread. */
#ifndef STW_BACKEND_PROCESS_H
#define STW_BACKEND_PROCESS_H

#include <stdint.h>

/** Seconds of a clock that only goes forward. */
double stw_process_now_s(void);
/** Bytes of this process in memory (VmRSS); 0 where unknown. */
uint64_t stw_process_resident_bytes(void);

#endif

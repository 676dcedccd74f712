/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of long work, on stderr: on a terminal one line that is drawn anew, otherwise a line
 * every ten seconds. A thread of its own writes them, so that work which reports nothing for a
 * minute is seen to go on. Nothing is written if the log level is below INFO or the log has a
 * callback. One thread begins phases and ends them; any thread may add. */
#ifndef STW_CORE_PROGRESS_H
#define STW_CORE_PROGRESS_H

#include <stdint.h>

typedef enum stw_progress_unit {
    STW_PROGRESS_SECONDS, /* nothing is counted */
    STW_PROGRESS_SHARE,   /* of whatever is counted, as percent */
    STW_PROGRESS_BYTES
} stw_progress_unit;

/** A phase begins, with nothing done. The first one starts the clock.
 * @param what copied; at most 95 characters are shown @param total in the unit; 0: not known */
void stw_progress_phase(const char *what, stw_progress_unit unit, uint64_t total);
/** So many more of the phase's total are done. */
void stw_progress_add(uint64_t count);
/** Stop, and remove the line from the terminal. Nothing happens where no phase was begun. */
void stw_progress_end(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Log messages. Library code logs through one callback per process; the
 * default writes warnings and errors to stderr. Set the callback before starting threads; then any
 * thread may log. */
#ifndef STW_CORE_LOG_H
#define STW_CORE_LOG_H

#include <stdbool.h>

#include "core/status.h"

typedef enum stw_log_level {
    STW_LOG_ERROR,
    STW_LOG_WARN,
    STW_LOG_INFO,
    STW_LOG_DEBUG
} stw_log_level;

typedef void (*stw_log_fn)(stw_log_level level, const char *text, void *user);

void stw_log_set(stw_log_fn fn, void *user); /* NULL: back to the default */
void stw_log_level_set(stw_log_level most);
void stw_log(stw_log_level level, const char *format, ...) STW_PRINTF(2, 3);
/** The same whatever the level: for what a user must know later, such as a file that was left. */
void stw_log_always(stw_log_level level, const char *format, ...) STW_PRINTF(2, 3);
/** The level is DEBUG, as with -v: details are welcome. */
bool stw_log_is_verbose(void);

/* ---- for core/progress.c and for what writes to the terminal beside the log ---- */

/** The level is at least INFO and the log has no callback. */
bool stw_log_shows_progress(void);
/** Draw a line on the terminal in place of the last one that was drawn; NULL removes that. Messages
 * remove it too. */
void stw_log_draw(const char *text);
/** A drawn line stands on the terminal, with the cursor at its end. Safe in a signal handler. */
bool stw_log_line_is_open(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Log messages and progress of long work. Library code logs through one callback per process; the
 * default writes warnings and errors to stderr. Set the callback before starting threads; then any
 * thread may log. */
#ifndef STW_CORE_LOG_H
#define STW_CORE_LOG_H

#include <stdint.h>

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
/** Report progress of `what`. Drawn at most ten times a second, if stderr is a terminal, the level
 * is at least INFO and the default callback is set. done == total ends the line. */
void stw_progress(const char *what, uint64_t done, uint64_t total);
/** Draw `text` as the progress line of work without a known end, under the same conditions; NULL
 * removes the line. */
void stw_progress_line(const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/printable.h"

enum { MOST_TEXT = 2048 };

static void to_stderr(stw_log_level level, const char *text, void *user);

static stw_log_fn callback = to_stderr;
static void *callback_user;
static atomic_int most_level = STW_LOG_INFO;

static atomic_bool line_is_open; /* a progress line stands on the terminal, cursor at its end */

static void to_stderr(stw_log_level level, const char *text, void *user) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    (void)user;
    const char *clear = atomic_exchange(&line_is_open, false) ? "\r\033[K" : "";
    char line[MOST_TEXT * 2 + 64]; /* one write: other threads and ranks write, too */
    snprintf(line, sizeof line, "%sstowage: %s: %s\n", clear, names[level], text);
    fputs(line, stderr);
}

void stw_log_set(stw_log_fn fn, void *user) {
    callback = fn != NULL ? fn : to_stderr;
    callback_user = fn != NULL ? user : NULL;
}

void stw_log_level_set(stw_log_level most) { atomic_store(&most_level, (int)most); }

STW_PRINTF(2, 0)
static void log_to_callback(stw_log_level level, const char *format, va_list args) {
    char text[MOST_TEXT];
    int length = vsnprintf(text, sizeof text, format, args);
    if (length < 0) return;
    if ((size_t)length >= sizeof text) memcpy(text + sizeof text - 4, "...", 4);
    char line[2 * sizeof text];
    (void)stw_printable_copy(text, line, sizeof line);
    callback(level, line, callback_user);
}

void stw_log(stw_log_level level, const char *format, ...) {
    if ((int)level > atomic_load(&most_level)) return;
    va_list args;
    va_start(args, format);
    log_to_callback(level, format, args);
    va_end(args);
}

void stw_log_always(stw_log_level level, const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_to_callback(level, format, args);
    va_end(args);
}

bool stw_log_is_verbose(void) { return atomic_load(&most_level) >= (int)STW_LOG_DEBUG; }

bool stw_log_shows_progress(void) {
    return atomic_load(&most_level) >= (int)STW_LOG_INFO && callback == to_stderr;
}

void stw_log_draw(const char *text) {
    if (text == NULL && !atomic_load(&line_is_open)) return;
    atomic_store(&line_is_open, text != NULL);
    fprintf(stderr, "\r\033[K%s", text != NULL ? text : "");
    fflush(stderr);
}

bool stw_log_line_is_open(void) { return atomic_load(&line_is_open); }

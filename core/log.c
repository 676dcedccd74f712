/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* isatty, clock_gettime */
#endif
#include "core/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/printable.h"

static void to_stderr(stw_log_level level, const char *text, void *user);

static stw_log_fn callback = to_stderr;
static void *callback_user;
static atomic_int most_level = STW_LOG_INFO;

/* A thread skips drawing while another thread draws. */
static atomic_flag drawing = ATOMIC_FLAG_INIT;
static atomic_bool line_is_open; /* a progress line stands on the terminal, cursor at its end */
static double last_drawn_s;

static void to_stderr(stw_log_level level, const char *text, void *user) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    (void)user;
    const char *clear = atomic_exchange(&line_is_open, false) ? "\r\033[K" : "";
    fprintf(stderr, "%sstowage: %s: %s\n", clear, names[level], text);
}

void stw_log_set(stw_log_fn fn, void *user) {
    callback = fn != NULL ? fn : to_stderr;
    callback_user = fn != NULL ? user : NULL;
}

void stw_log_level_set(stw_log_level most) { atomic_store(&most_level, (int)most); }

STW_PRINTF(2, 0)
static void log_to_callback(stw_log_level level, const char *format, va_list args) {
    char text[2048];
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

static double now_s(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void draw(const char *what, uint64_t done, uint64_t total) {
    bool last = done >= total;
    double now = now_s();
    bool open = atomic_load(&line_is_open);
    if (last ? !open : now - last_drawn_s < 0.1) return; /* what ends at once needs no line */
    if (isatty(STDERR_FILENO) != 1) return;
    last_drawn_s = now;
    double percent = total == 0 ? 100.0 : 100.0 * (double)done / (double)total;
    fprintf(stderr, "\r\033[K%s: %3.0f%% (%" PRIu64 " of %" PRIu64 ")%s", what,
            percent > 100 ? 100.0 : percent, done, total, last ? "\n" : "");
    fflush(stderr);
    atomic_store(&line_is_open, !last);
}

static bool may_draw(void) {
    if (atomic_load(&most_level) < (int)STW_LOG_INFO || callback != to_stderr) return false;
    return !atomic_flag_test_and_set(&drawing);
}

void stw_progress_line(const char *text) {
    if (!may_draw()) return;
    if ((text != NULL || atomic_load(&line_is_open)) && isatty(STDERR_FILENO) == 1) {
        fprintf(stderr, "\r\033[K%s", text != NULL ? text : "");
        fflush(stderr);
        atomic_store(&line_is_open, text != NULL);
    }
    atomic_flag_clear(&drawing);
}

void stw_progress(const char *what, uint64_t done, uint64_t total) {
    if (!may_draw()) return;
    draw(what, done, total);
    atomic_flag_clear(&drawing);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* isatty, pthread_condattr_setclock */
#endif
#include "core/progress.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/locale.h"
#include "core/log.h"
#include "core/units.h"

/* Seconds to the first line and between lines. */
static const double TERMINAL_FIRST_S = 0.5, TERMINAL_EVERY_S = 0.2, FILE_EVERY_S = 10;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of the state that follows */
static pthread_cond_t ended;
static bool running, stop;
static pthread_t thread;
static char what[96];
static stw_progress_unit unit;
static uint64_t total;
static double start_s;

static atomic_uint_fast64_t done;

/* "load: 3.20 GiB of 7.49 GiB (43%), 12 s"; the mutex is held. */
static void describe(double now_s, char *out, size_t out_size) {
    uint64_t so_far = atomic_load(&done);
    char amount[96] = "";
    if (so_far > total) so_far = total;
    double percent = total > 0 ? 100.0 * (double)so_far / (double)total : 0;
    if (unit == STW_PROGRESS_BYTES && total > 0) {
        char part[32], whole[32];
        stw_bytes_format(so_far, part, sizeof part);
        stw_bytes_format(total, whole, sizeof whole);
        snprintf(amount, sizeof amount, " %s of %s (%.0f%%),", part, whole, percent);
    } else if (unit == STW_PROGRESS_SHARE && total > 0) {
        snprintf(amount, sizeof amount, " %.0f%% of it done,", percent);
    }
    snprintf(out, out_size, "%s:%s %.0f s", what, amount, now_s - start_s);
}

static struct timespec at(double s) {
    struct timespec out = {.tv_sec = (time_t)s};
    out.tv_nsec = (long)((s - (double)out.tv_sec) * 1e9);
    return out;
}

static void *tell(void *unused) {
    (void)unused;
    (void)stw_locale_enter();
    bool terminal = isatty(STDERR_FILENO) == 1;
    pthread_mutex_lock(&mutex);
    double next_s = start_s + (terminal ? TERMINAL_FIRST_S : FILE_EVERY_S);
    while (!stop) {
        char line[256];
        double now_s = stw_now_s();
        if (now_s < next_s) {
            struct timespec wake = at(next_s);
            (void)pthread_cond_timedwait(&ended, &mutex, &wake);
            continue;
        }
        describe(now_s, line, sizeof line);
        next_s = now_s + (terminal ? TERMINAL_EVERY_S : FILE_EVERY_S);
        pthread_mutex_unlock(&mutex); /* a terminal may be slow */
        if (terminal)
            stw_log_draw(line);
        else
            fprintf(stderr, "stowage: %s\n", line);
        pthread_mutex_lock(&mutex);
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* Signals are for the other threads. */
static bool start_thread(void) {
    sigset_t all, before;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, tell, NULL) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) pthread_cond_destroy(&ended);
    return started;
}

void stw_progress_phase(const char *name, stw_progress_unit counts, uint64_t of) {
    if (!stw_log_shows_progress()) return;
    pthread_mutex_lock(&mutex);
    snprintf(what, sizeof what, "%s", name);
    unit = counts;
    total = of;
    atomic_store(&done, 0);
    if (!running) {
        start_s = stw_now_s();
        stop = false;
        running = start_thread(); /* no line is no failure */
    }
    pthread_mutex_unlock(&mutex);
}

void stw_progress_add(uint64_t count) { atomic_fetch_add(&done, count); }

void stw_progress_end(void) {
    pthread_mutex_lock(&mutex);
    bool was_running = running;
    stop = true;
    running = false;
    if (was_running) pthread_cond_signal(&ended);
    pthread_mutex_unlock(&mutex);
    if (!was_running) return;
    pthread_join(thread, NULL);
    pthread_cond_destroy(&ended);
    stw_log_draw(NULL);
}

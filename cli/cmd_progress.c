/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, pthread_condattr_setclock */
#endif
/* A line on the terminal that counts the seconds of long work. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cli/commands.h"
#include "core/log.h"

struct stw_ticker {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool stop;
    const char *what;
};

double stw_clock_s(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *tick(void *argument) {
    stw_ticker *ticker = argument;
    struct timespec wake;
    double start_s = stw_clock_s();
    (void)clock_gettime(CLOCK_MONOTONIC, &wake);
    pthread_mutex_lock(&ticker->mutex);
    while (!ticker->stop) {
        wake.tv_sec++;
        while (!ticker->stop && pthread_cond_timedwait(&ticker->ended, &ticker->mutex, &wake) == 0)
            continue;
        char line[96];
        snprintf(line, sizeof line, "%s: %.0f s", ticker->what, stw_clock_s() - start_s);
        if (!ticker->stop) stw_progress_line(line);
    }
    pthread_mutex_unlock(&ticker->mutex);
    stw_progress_line(NULL);
    return NULL;
}

stw_ticker *stw_ticker_start(const char *what) {
    if (isatty(STDERR_FILENO) != 1) return NULL;
    stw_ticker *ticker = calloc(1, sizeof *ticker);
    if (ticker == NULL) return NULL; /* no line is no failure */
    pthread_condattr_t monotonic;
    ticker->what = what;
    pthread_mutex_init(&ticker->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ticker->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&ticker->thread, NULL, tick, ticker) == 0) return ticker;
    pthread_cond_destroy(&ticker->ended);
    pthread_mutex_destroy(&ticker->mutex);
    free(ticker);
    return NULL;
}

void stw_ticker_stop(stw_ticker *ticker) {
    if (ticker == NULL) return;
    pthread_mutex_lock(&ticker->mutex);
    ticker->stop = true;
    pthread_cond_signal(&ticker->ended);
    pthread_mutex_unlock(&ticker->mutex);
    pthread_join(ticker->thread, NULL);
    pthread_cond_destroy(&ticker->ended);
    pthread_mutex_destroy(&ticker->mutex);
    free(ticker);
}

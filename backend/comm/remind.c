/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "backend/comm/remind.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "core/locale.h"
#include "core/log.h"

#define AFTER_S 10.0

struct stw_remind {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool over;
    stw_watch *watch;
    double timeout_s, after_s;
};

static void *wait_and_tell(void *state) {
    stw_remind *r = state;
    char missing[700];
    struct timespec end;
    (void)stw_locale_enter();
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)end.tv_nsec + 1e9 * (r->after_s - (double)(time_t)r->after_s);
    end.tv_sec += (time_t)r->after_s + (ns >= 1e9 ? 1 : 0);
    end.tv_nsec = (long)(ns >= 1e9 ? ns - 1e9 : ns);
    pthread_mutex_lock(&r->mutex);
    int code = 0;
    while (!r->over && code == 0) code = pthread_cond_timedwait(&r->changed, &r->mutex, &end);
    bool over = r->over;
    pthread_mutex_unlock(&r->mutex);
    if (over || !stw_watch_missing(r->watch, missing, sizeof missing)) return NULL;
    stw_log(STW_LOG_WARN, "waiting for %s; the deadline is %.3g s after the start (--timeout)",
            missing, r->timeout_s);
    return NULL;
}

stw_remind *stw_remind_begin(stw_watch *watch, double timeout_s) {
    pthread_condattr_t monotonic;
    if (watch == NULL) return NULL;
    stw_remind *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->watch = watch;
    r->timeout_s = timeout_s;
    r->after_s = timeout_s < 2 * AFTER_S ? timeout_s / 2 : AFTER_S;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&r->thread, NULL, wait_and_tell, r) == 0) return r;
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    free(r);
    return NULL;
}

void stw_remind_end(stw_remind *r) {
    if (r == NULL) return;
    pthread_mutex_lock(&r->mutex);
    r->over = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of threads: every item once, whatever the sizes; many small jobs one after another and
 * from several callers at once, more of them than the pool takes; sleepers are woken. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "backend/host/pool.h"
#include "tests/unit/testing.h"

typedef struct cover {
    unsigned char seen[5000];
} cover;

static void note(void *arg, uint64_t first, uint64_t count) {
    cover *c = arg;
    for (uint64_t i = first; i < first + count; i++) c->seen[i]++;
}

static void everything_once(void) {
    static cover c;
    for (uint32_t n_threads = 0; n_threads < 5; n_threads++) {
        stw_threads *threads = NULL;
        if (n_threads > 0) CHECK_OK(stw_threads_new(n_threads, &threads, err));
        CU_ASSERT_EQUAL(stw_threads_count(threads), n_threads == 0 ? 1 : n_threads);
        for (uint64_t n = 0; n <= 5000; n += 613)
            for (uint64_t grain = 0; grain < 900; grain += 299) {
                unsigned bad = 0;
                memset(&c, 0, sizeof c);
                stw_threads_for(threads, n, grain, note, &c);
                for (uint64_t i = 0; i < 5000; i++) bad += c.seen[i] != (i < n ? 1 : 0);
                CU_ASSERT_EQUAL(bad, 0);
            }
        stw_threads_free(threads);
    }
}

/* ---- many jobs ---- */

typedef struct sum {
    atomic_uint_least64_t items, of_first; /* items, and the sum of their numbers */
} sum;

static void add(void *arg, uint64_t first, uint64_t count) {
    sum *s = arg;
    atomic_fetch_add(&s->items, count);
    atomic_fetch_add(&s->of_first, count * first + count * (count - 1) / 2);
}

typedef struct caller {
    stw_threads *threads;
    unsigned jobs, wrong, pauses;
    pthread_t thread;
} caller;

static void *call_often(void *arg) {
    caller *c = arg;
    for (unsigned j = 0; j < c->jobs; j++) {
        uint64_t n = 1 + j * 37 % 400, grain = 1 + j % 7;
        sum s = {0, 0};
        stw_threads_for(c->threads, n, grain, add, &s);
        c->wrong += atomic_load(&s.items) != n || atomic_load(&s.of_first) != n * (n - 1) / 2;
        if (c->pauses > 0 && j % (c->jobs / c->pauses) == 0) { /* workers fall asleep */
            struct timespec while_s = {0, 2000000};
            (void)nanosleep(&while_s, NULL);
        }
    }
    return NULL;
}

static void check_callers(uint32_t n_threads, unsigned n_callers, unsigned jobs, unsigned pauses) {
    stw_threads *threads = NULL;
    caller callers[12];
    CHECK_OK(stw_threads_new(n_threads, &threads, err));
    for (unsigned i = 0; i < n_callers; i++) {
        callers[i] = (caller){threads, jobs, 0, pauses, pthread_self()};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (unsigned i = 0; i < n_callers; i++) {
        CU_ASSERT_EQUAL(pthread_join(callers[i].thread, NULL), 0);
        CU_ASSERT_EQUAL(callers[i].wrong, 0);
    }
    stw_threads_free(threads);
}

static void jobs_follow_each_other(void) { check_callers(4, 1, 3000, 0); }
static void callers_share_the_pool(void) { check_callers(4, 5, 600, 0); }
static void more_callers_than_places(void) { check_callers(3, 12, 200, 0); }
static void sleepers_are_woken(void) { check_callers(4, 2, 200, 20); }

/* Several callers at once all get help: each has a job of two pieces that wait for each other. */
typedef struct meeting {
    stw_threads *threads;
    atomic_uint *present, met;
    unsigned expected;
    pthread_t thread;
} meeting;

static void meet(void *arg, uint64_t first, uint64_t count) {
    meeting *m = arg;
    (void)first;
    (void)count;
    atomic_fetch_add(m->present, 1);
    for (int ms = 0; ms < 20000 && atomic_load(m->present) < m->expected; ms++) {
        struct timespec one = {0, 1000000};
        (void)nanosleep(&one, NULL);
    }
    if (atomic_load(m->present) == m->expected) atomic_fetch_add(&m->met, 1);
}

static void *call_meeting(void *arg) {
    meeting *m = arg;
    stw_threads_for(m->threads, 2, 1, meet, m);
    return NULL;
}

static void callers_are_helped_at_once(void) {
    enum { CALLERS = 8 }; /* as many as there are places */
    atomic_uint present = 0;
    meeting meetings[CALLERS];
    stw_threads *threads = NULL;
    /* Workers for all pieces: they may take both of one job. */
    CHECK_OK(stw_threads_new(2 * CALLERS + 1, &threads, err));
    for (int i = 0; i < CALLERS; i++) {
        meetings[i] = (meeting){threads, &present, 0, 2 * CALLERS, pthread_self()};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&meetings[i].thread, NULL, call_meeting, &meetings[i]),
                              0);
    }
    for (int i = 0; i < CALLERS; i++) {
        CU_ASSERT_EQUAL(pthread_join(meetings[i].thread, NULL), 0);
        CU_ASSERT_EQUAL(meetings[i].met, 2);
    }
    stw_threads_free(threads);
}

/* Pieces of a call: the size that was asked for, the last one shorter. */
typedef struct sizes {
    uint64_t grain, n;
    atomic_uint whole, rest, wrong;
} sizes;

static void note_size(void *arg, uint64_t first, uint64_t count) {
    sizes *s = arg;
    const uint64_t left = s->n - first;
    if (first % s->grain != 0 || count != (left < s->grain ? left : s->grain)) s->wrong++;
    if (count == s->grain)
        s->whole++;
    else
        s->rest++;
}

static void pieces_are_of_the_grain(void) {
    stw_threads *threads = NULL;
    CHECK_OK(stw_threads_new(3, &threads, err));
    for (int pooled = 0; pooled < 2; pooled++)
        for (uint64_t n = 1; n < 40; n++) {
            sizes s = {.grain = 7, .n = n};
            stw_threads_for(pooled ? threads : NULL, n, 7, note_size, &s);
            CU_ASSERT_EQUAL(s.whole, n / 7);
            CU_ASSERT_EQUAL(s.rest, n % 7 != 0);
            CU_ASSERT_EQUAL(s.wrong, 0);
        }
    stw_threads_free(threads);
}

/* The linker hands this to the test (--wrap): so many threads can be started. */
static int can_start = 1000;
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
                          void *arg) {
    return can_start-- > 0 ? __real_pthread_create(thread, how, run, arg) : EAGAIN;
}

static void threads_that_cannot_be_started(void) {
    stw_threads *threads = NULL;
    can_start = 2;
    CHECK_FAILS(stw_threads_new(5, &threads, err), STW_STATUS_NO_RESOURCES,
                "thread 3 of 4 could not be started");
    CU_ASSERT_PTR_NULL(threads);
    can_start = 0;
    CHECK_OK(stw_threads_new(1, &threads, err)); /* the caller alone */
    CU_ASSERT_EQUAL(stw_threads_count(threads), 1);
    stw_threads_free(threads);
    can_start = 1000;
}

static void keeps_callers_only_with_cores(void) {
    stw_cpus cpus, before, after;
    stw_threads *threads = NULL;
    stw_cpus_allowed(&before);
    stw_threads_keep_caller(NULL);
    CHECK_OK(stw_threads_new(2, &threads, err));
    stw_threads_keep_caller(threads);
    stw_threads_free(threads);
    stw_cpus_allowed(&after);
    CU_ASSERT_EQUAL(after.n, before.n);
    cpus = before;
    CHECK_OK(stw_threads_new_on(cpus.n, &cpus, &threads, err));
    stw_threads_keep_caller(threads);
    stw_cpus_allowed(&after);
    CU_ASSERT_EQUAL(after.n, 1);
    CU_ASSERT_EQUAL(after.cpu[0], before.cpu[before.n - 1]);
    stw_threads_free(threads);
    stw_cpus_keep(&before);
    stw_cpus_allowed(&after);
    CU_ASSERT_EQUAL(after.n, before.n);
    before.n = 0;
    stw_cpus_keep(&before);
    stw_cpus_allowed(&cpus);
    CU_ASSERT_EQUAL(cpus.n, after.n);
}

STW_TEST_MAIN("backend pool", {"every item comes once", everything_once},
              {"many jobs follow each other", jobs_follow_each_other},
              {"several callers share the pool", callers_share_the_pool},
              {"more callers than places run alone", more_callers_than_places},
              {"workers that sleep are woken", sleepers_are_woken},
              {"callers are helped at once", callers_are_helped_at_once},
              {"pieces are of the grain", pieces_are_of_the_grain},
              {"threads that cannot be started", threads_that_cannot_be_started},
              {"callers are kept where workers are", keeps_callers_only_with_cores})

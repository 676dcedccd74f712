/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* sched_getaffinity, pthread_setaffinity_np */
#include "backend/host/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* One call of stw_threads_for; lives on its caller's stack. */
typedef struct job {
    stw_threads_fn fn;
    void *arg;
    uint64_t n, grain;
    uint64_t next;         /* first item that nobody has taken */
    _Atomic uint64_t done; /* items finished; written with the mutex held */
    struct job *later;
} job;

struct stw_threads {
    pthread_mutex_t mutex;
    pthread_cond_t work; /* a job came, or the end */
    pthread_cond_t done; /* some job finished a piece that was its last */
    job *first;          /* jobs with items to take, oldest first */
    bool stop;
    atomic_uint posted; /* jobs so far, for those who look without the mutex */
    uint32_t n_workers; /* threads besides the callers */
    pthread_t *workers;
};

uint32_t stw_threads_cores(void) {
    stw_cpus cpus;
    stw_cpus_allowed(&cpus);
    return cpus.n;
}

/* Take a piece of a job; the mutex is held. The job leaves the list with its last piece. */
static uint64_t take(stw_threads *threads, job *j, uint64_t *first) {
    uint64_t count = j->n - j->next < j->grain ? j->n - j->next : j->grain;
    *first = j->next;
    j->next += count;
    if (j->next == j->n) {
        job **link = &threads->first;
        while (*link != j) link = &(*link)->later;
        *link = j->later;
    }
    return count;
}

/* Run one piece; the mutex is held on entry and on return. */
static void run_piece(stw_threads *threads, job *j) {
    uint64_t first = 0, count = take(threads, j, &first);
    pthread_mutex_unlock(&threads->mutex);
    j->fn(j->arg, first, count);
    pthread_mutex_lock(&threads->mutex);
    j->done += count;
    if (j->done == j->n) pthread_cond_broadcast(&threads->done);
}

/* Work on buckets comes in quick succession, and to be woken takes as long as a tenth of one: look
 * for a moment before going to sleep. */
#define LOOKS 2000 /* some 50 us */

static void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Without the mutex: has another job come? */
static void look_for_work(stw_threads *threads, unsigned seen) {
    for (int i = 0; i < LOOKS && atomic_load(&threads->posted) == seen; i++) pause_a_little();
}

static void *worker(void *arg) {
    stw_threads *threads = arg;
    bool looked = false;
    pthread_mutex_lock(&threads->mutex);
    for (;;) {
        if (threads->first != NULL) {
            run_piece(threads, threads->first);
            looked = false;
        } else if (threads->stop) {
            break;
        } else if (!looked) {
            unsigned seen = atomic_load(&threads->posted);
            pthread_mutex_unlock(&threads->mutex);
            look_for_work(threads, seen);
            pthread_mutex_lock(&threads->mutex);
            looked = true;
        } else {
            pthread_cond_wait(&threads->work, &threads->mutex);
        }
    }
    pthread_mutex_unlock(&threads->mutex);
    return NULL;
}

/* Keep a thread on one core. Where that is not allowed (a cpuset that changed since) it stays where
 * the system puts it: slower at worst. */
static void keep_on(pthread_t thread, uint32_t cpu) {
    cpu_set_t set;
    if (cpu >= CPU_SETSIZE) return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)pthread_setaffinity_np(thread, sizeof set, &set);
}

stw_status stw_threads_new(uint32_t n, stw_threads **out, stw_error *err) {
    return stw_threads_new_on(n, NULL, out, err);
}

stw_status stw_threads_new_on(uint32_t n, const stw_cpus *cpus, stw_threads **out, stw_error *err) {
    *out = NULL;
    if (n == 0) n = stw_threads_cores();
    stw_threads *threads = calloc(1, sizeof *threads);
    if (threads == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "threads", "out of memory");
    pthread_mutex_init(&threads->mutex, NULL);
    pthread_cond_init(&threads->work, NULL);
    pthread_cond_init(&threads->done, NULL);
    threads->workers = calloc(n, sizeof *threads->workers);
    if (threads->workers == NULL) {
        stw_threads_free(threads);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "threads", "out of memory");
    }
    for (uint32_t i = 0; i + 1 < n; i++) {
        int code = pthread_create(&threads->workers[i], NULL, worker, threads);
        if (code != 0) {
            stw_threads_free(threads);
            return stw_fail_native(err, STW_STATUS_NO_RESOURCES, code, "threads",
                                   "thread %u of %u could not be started", i + 1, n - 1);
        }
        threads->n_workers++;
        if (cpus != NULL && cpus->n > 0) keep_on(threads->workers[i], cpus->cpu[i % cpus->n]);
    }
    *out = threads;
    return STW_STATUS_OK;
}

void stw_threads_free(stw_threads *threads) {
    if (threads == NULL) return;
    pthread_mutex_lock(&threads->mutex);
    threads->stop = true;
    pthread_cond_broadcast(&threads->work);
    pthread_mutex_unlock(&threads->mutex);
    for (uint32_t i = 0; i < threads->n_workers; i++) pthread_join(threads->workers[i], NULL);
    pthread_cond_destroy(&threads->done);
    pthread_cond_destroy(&threads->work);
    pthread_mutex_destroy(&threads->mutex);
    free(threads->workers);
    free(threads);
}

uint32_t stw_threads_count(const stw_threads *threads) {
    return threads == NULL ? 1 : threads->n_workers + 1;
}

void stw_threads_for(stw_threads *threads, uint64_t n, uint64_t grain, stw_threads_fn fn,
                     void *arg) {
    if (n == 0) return;
    if (grain == 0) grain = 1;
    if (threads == NULL || threads->n_workers == 0 || n <= grain) {
        for (uint64_t i = 0; i < n; i += grain) fn(arg, i, n - i < grain ? n - i : grain);
        return;
    }
    job mine = {.fn = fn, .arg = arg, .n = n, .grain = grain};
    pthread_mutex_lock(&threads->mutex);
    job **link = &threads->first;
    while (*link != NULL) link = &(*link)->later;
    *link = &mine;
    atomic_fetch_add(&threads->posted, 1);
    pthread_cond_broadcast(&threads->work);
    while (mine.next < mine.n) run_piece(threads, &mine);
    if (mine.done < mine.n) {
        pthread_mutex_unlock(&threads->mutex);
        for (int i = 0; i < LOOKS && atomic_load(&mine.done) < n; i++) pause_a_little();
        pthread_mutex_lock(&threads->mutex);
    }
    while (mine.done < mine.n) pthread_cond_wait(&threads->done, &threads->mutex);
    pthread_mutex_unlock(&threads->mutex);
}

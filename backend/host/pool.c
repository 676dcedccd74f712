/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* sched_getaffinity, pthread_setaffinity_np */
#include "backend/host/pool.h"
#include "core/locale.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* One call of stw_threads_for. Jobs outlive calls, so that a worker which comes late still looks at
 * a job. `claim` holds the call's number above and the next piece below: a piece taken is of the
 * call whose number came with it, and while it is not done that call cannot end. Between two calls
 * the claim is CLOSED under a number of its own, before anything else of the job changes: whoever
 * took no piece, or read what is not of his call, finds another number there. */
typedef struct job {
    _Alignas(128) _Atomic uint64_t claim;
    _Atomic(stw_threads_fn) fn;
    _Atomic(void *) arg;
    _Atomic uint64_t n, grain;
    _Atomic uint32_t pieces;
    _Alignas(128) _Atomic uint32_t done; /* pieces */
    atomic_bool taken;                   /* by a caller */
    atomic_bool sleeps;                  /* the caller, until the last piece is done */
} job;

#define N_JOBS 8u /* calls at once; more run on their callers alone */
#define CLOSED 0x80000000u
#define MOST_PIECES (1u << 30)

struct stw_threads {
    job jobs[N_JOBS];
    atomic_uint posted;   /* jobs so far */
    atomic_uint sleepers; /* workers that wait for one more */
    atomic_bool stop;
    pthread_mutex_t mutex; /* of sleeping and waking alone */
    pthread_cond_t work;   /* a job came, or the end */
    pthread_cond_t done;   /* the last piece of a job whose caller sleeps */
    uint32_t n_workers;    /* threads besides the callers */
    pthread_t *workers;
    bool is_kept;        /* workers, each on a core; */
    uint32_t caller_cpu; /* then: the next one */
};

uint32_t stw_threads_cores(void) {
    stw_cpus cpus;
    stw_cpus_allowed(&cpus);
    return cpus.n;
}

static uint32_t number_of(uint64_t claim) { return (uint32_t)(claim >> 32); }

/* Take a piece of a job and run it; false where there is none to take. */
static bool run_piece(stw_threads *threads, job *j) {
    if ((uint32_t)atomic_load(&j->claim) >= atomic_load(&j->pieces)) return false;
    uint64_t mine = atomic_fetch_add(&j->claim, 1);
    uint32_t piece = (uint32_t)mine, pieces = atomic_load(&j->pieces);
    stw_threads_fn fn = atomic_load(&j->fn);
    void *arg = atomic_load(&j->arg);
    uint64_t n = atomic_load(&j->n), grain = atomic_load(&j->grain);
    if (piece >= pieces || number_of(atomic_load(&j->claim)) != number_of(mine)) return false;
    uint64_t first = piece * grain;
    fn(arg, first, n - first < grain ? n - first : grain);
    if (atomic_fetch_add(&j->done, 1) + 1 == pieces && atomic_load(&j->sleeps)) {
        pthread_mutex_lock(&threads->mutex);
        pthread_cond_broadcast(&threads->done);
        pthread_mutex_unlock(&threads->mutex);
    }
    return true;
}

/* Between two looks at what another thread is to change: some 50 ns. */
static inline void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Work on buckets comes in quick succession, and to be woken takes as long as a tenth of one: look
 * for a moment before going to sleep. */
#define LOOKS 2000 /* some 50 us */

/* Until there is another job than the `seen` ones, or the end. */
static void wait_for_work(stw_threads *threads, unsigned seen) {
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load(&threads->posted) != seen) return;
        pause_core();
    }
    pthread_mutex_lock(&threads->mutex);
    atomic_fetch_add(&threads->sleepers, 1);
    while (atomic_load(&threads->posted) == seen && !atomic_load(&threads->stop))
        pthread_cond_wait(&threads->work, &threads->mutex);
    atomic_fetch_sub(&threads->sleepers, 1);
    pthread_mutex_unlock(&threads->mutex);
}

static void *worker(void *arg) {
    stw_threads *threads = arg;
    (void)stw_locale_enter();
    while (!atomic_load(&threads->stop)) {
        unsigned seen = atomic_load(&threads->posted);
        bool any = false;
        for (uint32_t i = 0; i < N_JOBS; i++)
            while (run_piece(threads, &threads->jobs[i])) any = true;
        if (!any) wait_for_work(threads, seen);
    }
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
    void *memory = NULL;
    if (posix_memalign(&memory, _Alignof(stw_threads), sizeof(stw_threads)) != 0) memory = NULL;
    stw_threads *threads = memory;
    if (threads == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "threads", "out of memory");
    memset(threads, 0, sizeof *threads);
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
    threads->is_kept = cpus != NULL && cpus->n > 0;
    if (threads->is_kept) threads->caller_cpu = cpus->cpu[(n - 1) % cpus->n];
    *out = threads;
    return STW_STATUS_OK;
}

void stw_threads_free(stw_threads *threads) {
    if (threads == NULL) return;
    pthread_mutex_lock(&threads->mutex);
    atomic_store(&threads->stop, true);
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

void stw_threads_keep_caller(const stw_threads *threads) {
    if (threads != NULL && threads->is_kept) keep_on(pthread_self(), threads->caller_cpu);
}

static job *take_job(stw_threads *threads) {
    for (uint32_t i = 0; i < N_JOBS; i++)
        if (!atomic_exchange(&threads->jobs[i].taken, true)) return &threads->jobs[i];
    return NULL;
}

/* Let the workers have it. */
static void post(stw_threads *threads, job *j, stw_threads_fn fn, void *arg, uint64_t n,
                 uint64_t grain) {
    uint64_t number = (uint64_t)number_of(atomic_load(&j->claim)) + 1;
    atomic_store(&j->claim, number << 32 | CLOSED);
    atomic_store(&j->fn, fn);
    atomic_store(&j->arg, arg);
    atomic_store(&j->n, n);
    atomic_store(&j->grain, grain);
    atomic_store(&j->pieces, (uint32_t)((n + grain - 1) / grain));
    atomic_store(&j->done, 0);
    atomic_store(&j->claim, (number + 1) << 32);
    atomic_fetch_add(&threads->posted, 1);
    if (atomic_load(&threads->sleepers) == 0) return;
    pthread_mutex_lock(&threads->mutex);
    pthread_cond_broadcast(&threads->work);
    pthread_mutex_unlock(&threads->mutex);
}

/* Until all pieces are done, the last of them by other threads. */
static void wait_done(stw_threads *threads, job *j) {
    uint32_t pieces = atomic_load(&j->pieces);
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load(&j->done) == pieces) return;
        pause_core();
    }
    pthread_mutex_lock(&threads->mutex);
    atomic_store(&j->sleeps, true);
    while (atomic_load(&j->done) != pieces) pthread_cond_wait(&threads->done, &threads->mutex);
    atomic_store(&j->sleeps, false);
    pthread_mutex_unlock(&threads->mutex);
}

void stw_threads_for(stw_threads *threads, uint64_t n, uint64_t grain, stw_threads_fn fn,
                     void *arg) {
    if (n == 0) return;
    if (grain == 0) grain = 1;
    bool alone = threads == NULL || threads->n_workers == 0 || n <= grain;
    job *mine = alone ? NULL : take_job(threads);
    if (mine == NULL) {
        for (uint64_t i = 0; i < n; i += grain) fn(arg, i, n - i < grain ? n - i : grain);
        return;
    }
    if (n / grain >= MOST_PIECES) grain *= n / grain / MOST_PIECES + 1;
    post(threads, mine, fn, arg, n, grain);
    while (run_piece(threads, mine)) {
    }
    wait_done(threads, mine);
    atomic_store(&mine->taken, false);
}

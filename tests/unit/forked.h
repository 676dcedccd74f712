/* SPDX-License-Identifier: Apache-2.0 */
/* Several ranks without a launcher: processes that this one forks, over an MPI plugin that is a
 * part of the test and keeps its messages in shared memory. A test that includes this is linked
 * with --wrap=dlopen,--wrap=dlsym (tests/CMakeLists.txt). */
#ifndef STW_TESTS_UNIT_FORKED_H
#define STW_TESTS_UNIT_FORKED_H

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/comm/ops.h"
#include "backend/mpi/stowage_mpi.h"
#include "tests/unit/testing.h"

#define FORKED_PLUGIN "forked-mpi"
#define FORKED_RANKS 4
#define FORKED_BYTES (2u << 20) /* of one rank's message; longer ones go in parts */
#define FORKED_OUT_BYTES 65536

typedef enum forked_call {
    FORKED_JOIN,
    FORKED_SUM,
    FORKED_GATHER,
    FORKED_BROADCAST,
    FORKED_MESSAGES,
    FORKED_BARRIER,
} forked_call;

/* What all processes share. */
typedef struct forked_hall {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    uint32_t world, arrived;
    uint64_t turn;
    bool broken;                                            /* a rank will not come */
    unsigned left[FORKED_RANKS], interrupted[FORKED_RANKS]; /* 1: well, 2: broken */
    unsigned calls[FORKED_RANKS];
    unsigned char boxes[FORKED_RANKS][FORKED_BYTES];
    unsigned char out[FORKED_RANKS][FORKED_OUT_BYTES]; /* for the tests */
} forked_hall;

static forked_hall *forked_shared;
static uint32_t forked_rank;
/* The result of call number `n` of this rank, from 1, in place of the call's own; OK: its own. */
static stw_mpi_result (*forked_result)(forked_call call, unsigned n);
/* Changes what this rank gathers in call number n. */
static void (*forked_tamper)(unsigned n, unsigned char *message, uint32_t bytes);

static stw_mpi_result forked_meet(double timeout_s) {
    forked_hall *h = forked_shared;
    struct timespec end;
    int code = 0;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)timeout_s + 1;
    pthread_mutex_lock(&h->mutex);
    const uint64_t turn = h->turn;
    if (!h->broken && ++h->arrived == h->world) {
        h->arrived = 0;
        h->turn++;
        pthread_cond_broadcast(&h->moved);
    }
    while (turn == h->turn && !h->broken && code == 0)
        code = pthread_cond_timedwait(&h->moved, &h->mutex, &end);
    const bool all = turn != h->turn, broken = h->broken;
    pthread_mutex_unlock(&h->mutex);
    return all ? STW_MPI_OK : broken ? STW_MPI_GIVEN_UP : STW_MPI_TIMED_OUT;
}

static void forked_break(void) {
    pthread_mutex_lock(&forked_shared->mutex);
    forked_shared->broken = true;
    pthread_cond_broadcast(&forked_shared->moved);
    pthread_mutex_unlock(&forked_shared->mutex);
}

static stw_mpi_result forked_begin(forked_call call, char *error, size_t error_size) {
    const unsigned n = ++forked_shared->calls[forked_rank];
    const stw_mpi_result result = forked_result != NULL ? forked_result(call, n) : STW_MPI_OK;
    if (result == STW_MPI_FAILED) snprintf(error, error_size, "the cable of call %u is cut", n);
    if (result != STW_MPI_OK) forked_break();
    return result;
}

static stw_mpi_result forked_join(uint32_t *rank, uint32_t *world, double timeout_s,
                                  int (*gave_up)(void *state), void *state, char *error,
                                  size_t error_size) {
    (void)gave_up;
    (void)state;
    stw_mpi_result result = forked_begin(FORKED_JOIN, error, error_size);
    if (result == STW_MPI_OK) result = forked_meet(timeout_s);
    *rank = forked_rank;
    *world = forked_shared->world;
    return result;
}

static void forked_leave(int broken) {
    forked_shared->left[forked_rank] = broken ? 2 : 1;
    if (broken) forked_break();
}

static void forked_interrupt(void) {
    forked_shared->interrupted[forked_rank]++;
    forked_break();
}

static stw_mpi_result forked_gather_all(const void *mine, uint32_t bytes, double timeout_s) {
    memcpy(forked_shared->boxes[forked_rank], mine, bytes);
    if (forked_tamper != NULL)
        forked_tamper(forked_shared->calls[forked_rank], forked_shared->boxes[forked_rank], bytes);
    return forked_meet(timeout_s);
}

static stw_mpi_result forked_sum(uint64_t *values, uint32_t n, double timeout_s, char *error,
                                 size_t error_size) {
    stw_mpi_result result = forked_begin(FORKED_SUM, error, error_size);
    if (result == STW_MPI_OK) result = forked_gather_all(values, n * 8, timeout_s);
    if (result != STW_MPI_OK) return result;
    memset(values, 0, (size_t)n * 8);
    for (uint32_t r = 0; r < forked_shared->world; r++)
        for (uint32_t i = 0; i < n; i++) {
            uint64_t value;
            memcpy(&value, forked_shared->boxes[r] + 8 * (size_t)i, 8);
            values[i] += value;
        }
    return forked_meet(timeout_s);
}

static stw_mpi_result forked_gather(const void *mine, void *out, uint32_t bytes, double timeout_s,
                                    char *error, size_t error_size) {
    stw_mpi_result result = forked_begin(FORKED_GATHER, error, error_size);
    if (result == STW_MPI_OK) result = forked_gather_all(mine, bytes, timeout_s);
    if (result != STW_MPI_OK) return result;
    for (uint32_t r = 0; r < forked_shared->world; r++)
        memcpy((unsigned char *)out + (size_t)r * bytes, forked_shared->boxes[r], bytes);
    return forked_meet(timeout_s);
}

static stw_mpi_result forked_broadcast(void *data, uint64_t bytes, uint32_t root, double timeout_s,
                                       char *error, size_t error_size) {
    stw_mpi_result result = forked_begin(FORKED_BROADCAST, error, error_size);
    for (uint64_t done = 0; done < bytes && result == STW_MPI_OK; done += FORKED_BYTES) {
        const size_t n = bytes - done < FORKED_BYTES ? (size_t)(bytes - done) : FORKED_BYTES;
        unsigned char *part = (unsigned char *)data + done;
        if (root == forked_rank) memcpy(forked_shared->boxes[root], part, n);
        result = forked_meet(timeout_s);
        if (result != STW_MPI_OK) break;
        if (root != forked_rank) memcpy(part, forked_shared->boxes[root], n);
        result = forked_meet(timeout_s);
    }
    return result;
}

/* A sender's box has its messages one after the other, each behind its peer and its bytes. */
typedef struct forked_head {
    uint64_t peer, bytes;
} forked_head;

static void forked_send_all(const stw_mpi_message *all, uint32_t n) {
    unsigned char *at = forked_shared->boxes[forked_rank], *end = at + FORKED_BYTES;
    for (uint32_t i = 0; i < n; i++) {
        const forked_head head = {all[i].peer, all[i].bytes};
        if (!all[i].sends) continue;
        CU_ASSERT_TRUE_FATAL(all[i].bytes + 2 * sizeof head <= (size_t)(end - at));
        memcpy(at, &head, sizeof head);
        memcpy(at + sizeof head, all[i].data, head.bytes);
        at += sizeof head + head.bytes;
    }
    const forked_head none = {UINT64_MAX, 0};
    memcpy(at, &none, sizeof none);
}

/* The message number `skip` of a sender to this rank. */
static void forked_receive(const stw_mpi_message *m, uint32_t skip) {
    const unsigned char *at = forked_shared->boxes[m->peer];
    forked_head head;
    for (;; at += sizeof head + head.bytes) {
        memcpy(&head, at, sizeof head);
        CU_ASSERT_TRUE_FATAL(head.peer != UINT64_MAX);
        if (head.peer == forked_rank && skip-- == 0) break;
    }
    CU_ASSERT_EQUAL(head.bytes, m->bytes);
    memcpy(m->data, at + sizeof head, head.bytes);
}

static stw_mpi_result forked_messages(const stw_mpi_message *all, uint32_t n, double timeout_s,
                                      uint32_t *waits_for, char *error, size_t error_size) {
    uint32_t before[FORKED_RANKS] = {0};
    stw_mpi_result result = forked_begin(FORKED_MESSAGES, error, error_size);
    *waits_for = 0;
    forked_send_all(all, n);
    if (result == STW_MPI_OK) result = forked_meet(timeout_s);
    if (result != STW_MPI_OK) return result;
    for (uint32_t i = 0; i < n; i++)
        if (!all[i].sends) forked_receive(&all[i], before[all[i].peer]++);
    *waits_for = n;
    return forked_meet(timeout_s);
}

static stw_mpi_result forked_barrier(double timeout_s, char *error, size_t error_size) {
    stw_mpi_result result = forked_begin(FORKED_BARRIER, error, error_size);
    return result == STW_MPI_OK ? forked_meet(timeout_s) : result;
}

static void forked_report(const char *mine, char *all, unsigned char *heard, double wait_s) {
    (void)mine;
    (void)all;
    (void)heard;
    (void)wait_s;
}

static const stw_mpi_calls *forked_calls(void) {
    static const stw_mpi_calls calls = {.version = STW_MPI_PLUGIN_VERSION,
                                        .library = "forked",
                                        .join = forked_join,
                                        .leave = forked_leave,
                                        .sum_u64 = forked_sum,
                                        .gather = forked_gather,
                                        .broadcast = forked_broadcast,
                                        .messages = forked_messages,
                                        .interrupt = forked_interrupt,
                                        .barrier = forked_barrier,
                                        .report = forked_report};
    return &calls;
}

void *__real_dlopen(const char *path, int mode);
void *__wrap_dlopen(const char *path, int mode);
void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
static int forked_library;

void *__wrap_dlopen(const char *path, int mode) {
    if (path != NULL && strcmp(path, FORKED_PLUGIN) == 0) return &forked_library;
    return __real_dlopen(path, mode);
}

void *__wrap_dlsym(void *library, const char *name) {
    const stw_mpi_calls_fn found = forked_calls;
    void *symbol = NULL;
    if (library != &forked_library) return __real_dlsym(library, name);
    if (strcmp(name, STW_MPI_PLUGIN_SYMBOL) == 0) memcpy(&symbol, &found, sizeof symbol);
    return symbol;
}

static void forked_set(const char *name, uint32_t value) {
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

/* What failed in this process, and how much of it. */
static unsigned forked_failures(unsigned before) {
    const unsigned n = CU_get_number_of_failures() - before;
    const CU_FailureRecord *f = CU_get_failure_list();
    for (unsigned i = 0; f != NULL; i++, f = f->pNext)
        if (i >= before)
            fprintf(stderr, "rank %u: line %u: %s\n", forked_rank, f->uiLineNumber,
                    f->strCondition);
    return n;
}

/* `world` processes, of which `local_world` are said to be on each node, do `body`; what fails in
 * one of them fails here. */
static void forked_run(uint32_t world, uint32_t local_world, void (*body)(void *arg), void *arg) {
    pid_t processes[FORKED_RANKS];
    if (forked_shared == NULL) {
        pthread_mutexattr_t of_mutex;
        pthread_condattr_t of_condition;
        forked_shared = mmap(NULL, sizeof *forked_shared, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CU_ASSERT_TRUE_FATAL(forked_shared != MAP_FAILED);
        pthread_mutexattr_init(&of_mutex);
        pthread_mutexattr_setpshared(&of_mutex, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&forked_shared->mutex, &of_mutex);
        pthread_condattr_init(&of_condition);
        pthread_condattr_setpshared(&of_condition, PTHREAD_PROCESS_SHARED);
        pthread_cond_init(&forked_shared->moved, &of_condition);
    }
    forked_hall *h = forked_shared;
    h->world = world;
    h->arrived = 0;
    h->broken = false;
    memset(h->left, 0, sizeof h->left);
    memset(h->interrupted, 0, sizeof h->interrupted);
    memset(h->calls, 0, sizeof h->calls);
    memset(h->out, 0, sizeof h->out);
    fflush(NULL);
    for (uint32_t r = 0; r < world; r++) {
        processes[r] = fork();
        CU_ASSERT_TRUE_FATAL(processes[r] >= 0);
        if (processes[r] != 0) continue;
        const unsigned before = CU_get_number_of_failures();
        forked_rank = r;
        setenv("STOWAGE_MPI_PLUGIN", FORKED_PLUGIN, 1);
        forked_set("OMPI_COMM_WORLD_RANK", r);
        forked_set("OMPI_COMM_WORLD_SIZE", world);
        forked_set("OMPI_COMM_WORLD_LOCAL_RANK", r % local_world);
        forked_set("OMPI_COMM_WORLD_LOCAL_SIZE", local_world);
        body(arg);
        exit(forked_failures(before) > 0 ? 1 : 0);
    }
    for (uint32_t r = 0; r < world; r++) {
        int code = -1;
        CU_ASSERT_EQUAL(waitpid(processes[r], &code, 0), processes[r]);
        CU_ASSERT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 0);
        if (!WIFEXITED(code)) fprintf(stderr, "rank %u: signal %d\n", r, WTERMSIG(code));
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "backend/mpi/stowage_mpi.h"

#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const stw_mpi_calls *stowage_mpi_calls(void);

#define PART_BYTES (1u << 30) /* MPI counts are int */

/* Every function of MPI returns a code once errors are not fatal. */
#define CHECK(call)                                                                                \
    do {                                                                                           \
        int code = (call);                                                                         \
        if (code != MPI_SUCCESS) return failed(code, error, error_size);                           \
    } while (0)

static stw_mpi_result failed(int code, char *error, size_t error_size) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    if (error != NULL) snprintf(error, error_size, "%.*s", length, text);
    return STW_MPI_FAILED;
}

#define FINALISE_S 10.0 /* how long a rank waits for the others at its end */

static bool left_broken; /* this rank failed: it does not wait for the others at its end */
static atomic_bool interrupted;
static int (*gave_up)(void *state); /* will a peer not come? Or NULL */
static void *gave_up_state;
static MPI_Comm own = MPI_COMM_NULL; /* apart from the caller's messages */
#define REPORT_TAG 1                 /* of ranks that give up */
#define MESSAGE_TAG 2

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(long nanoseconds) {
    struct timespec t = {0, nanoseconds};
    nanosleep(&t, NULL);
}

/* Poll a request: give way to other processes at first, sleep once it takes long. */
static stw_mpi_result finish(MPI_Request *request, double timeout_s, char *error,
                             size_t error_size) {
    const double patience_s = 0.002;
    double start = now_s();
    for (;;) {
        int done = 0;
        CHECK(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done) return STW_MPI_OK;
        double waited = now_s() - start;
        if (waited > timeout_s || atomic_load(&interrupted)) return STW_MPI_TIMED_OUT;
        if (waited < patience_s) {
            sched_yield();
            continue;
        }
        if (gave_up != NULL && gave_up(gave_up_state)) return STW_MPI_GIVEN_UP;
        int told = 0;
        if (own != MPI_COMM_NULL)
            CHECK(MPI_Iprobe(MPI_ANY_SOURCE, REPORT_TAG, own, &told, MPI_STATUS_IGNORE));
        if (told) return STW_MPI_GIVEN_UP;
        nap(50000);
    }
}

/* MPI cannot be initialised again, so who initialised it finalises it when the process ends, not
 * when a run does. A caller's MPI is the caller's to finalise. MPI_Finalize waits for everybody,
 * for ever: a barrier before it has a deadline. A rank that failed just goes, and its launcher
 * ends the rest; a moment later, for the others to say what they met. */
static void finalise(void) {
    int finalised = 0;
    MPI_Request request;
    if (left_broken) {
        nap(300000000);
        return;
    }
    if (MPI_Finalized(&finalised) != MPI_SUCCESS || finalised) return;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) == MPI_SUCCESS &&
        finish(&request, FINALISE_S, NULL, 0) == STW_MPI_OK)
        MPI_Finalize();
}

/* MPI_Init returns when all ranks have called it, so it gets a thread and a limit. */
static atomic_int start_code = -1;

static void *start_mpi(void *unused) {
    int provided = 0;
    (void)unused;
    atomic_store(&start_code, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided));
    return NULL;
}

static stw_mpi_result start(double timeout_s, char *error, size_t error_size) {
    pthread_t thread;
    double end = now_s() + timeout_s;
    if (pthread_create(&thread, NULL, start_mpi, NULL) != 0) {
        if (error != NULL) snprintf(error, error_size, "cannot start a thread");
        return STW_MPI_FAILED;
    }
    (void)pthread_detach(thread);
    while (atomic_load(&start_code) == -1) {
        if (now_s() > end) return STW_MPI_TIMED_OUT;
        nap(1000000);
    }
    CHECK(atomic_load(&start_code));
    (void)atexit(finalise);
    return STW_MPI_OK;
}

static stw_mpi_result join(uint32_t *rank, uint32_t *world, double timeout_s,
                           int (*asked)(void *state), void *state, char *error, size_t error_size) {
    int initialised = 0, provided = 0, my_rank = 0, size = 0;
    CHECK(MPI_Initialized(&initialised));
    if (!initialised) {
        stw_mpi_result started = start(timeout_s, error, error_size);
        if (started != STW_MPI_OK) return started;
    }
    CHECK(MPI_Query_thread(&provided));
    if (provided < MPI_THREAD_SERIALIZED) {
        if (error != NULL)
            snprintf(error, error_size, "this MPI does not allow calls from several threads");
        return STW_MPI_FAILED;
    }
    CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &my_rank));
    CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    gave_up = asked;
    gave_up_state = state;
    if (own == MPI_COMM_NULL && size > 1) {
        MPI_Request request;
        MPI_Comm made = MPI_COMM_NULL;
        CHECK(MPI_Comm_idup(MPI_COMM_WORLD, &made, &request));
        stw_mpi_result joined = finish(&request, timeout_s, error, error_size);
        if (joined != STW_MPI_OK) return joined;
        own = made;
        CHECK(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN));
    }
    *rank = (uint32_t)my_rank;
    *world = (uint32_t)size;
    return STW_MPI_OK;
}

static void leave(int broken) {
    gave_up = NULL;
    if (broken) left_broken = true;
}

static void interrupt(void) { atomic_store(&interrupted, true); }

static stw_mpi_result sum_u64(uint64_t *values, uint32_t n, double timeout_s, char *error,
                              size_t error_size) {
    MPI_Request request;
    CHECK(MPI_Iallreduce(MPI_IN_PLACE, values, (int)n, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD,
                         &request));
    return finish(&request, timeout_s, error, error_size);
}

static stw_mpi_result gather(const void *mine, void *out, uint32_t bytes, double timeout_s,
                             char *error, size_t error_size) {
    MPI_Request request;
    CHECK(MPI_Iallgather(mine, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, MPI_COMM_WORLD,
                         &request));
    return finish(&request, timeout_s, error, error_size);
}

static stw_mpi_result broadcast(void *data, uint64_t bytes, uint32_t root, double timeout_s,
                                char *error, size_t error_size) {
    for (uint64_t done = 0; done < bytes; done += PART_BYTES) {
        MPI_Request request;
        int part = bytes - done < PART_BYTES ? (int)(bytes - done) : (int)PART_BYTES;
        CHECK(MPI_Ibcast((char *)data + done, part, MPI_BYTE, (int)root, MPI_COMM_WORLD, &request));
        stw_mpi_result result = finish(&request, timeout_s, error, error_size);
        if (result != STW_MPI_OK) return result;
    }
    return STW_MPI_OK;
}

static stw_mpi_result barrier(double timeout_s, char *error, size_t error_size) {
    MPI_Request request;
    CHECK(MPI_Ibarrier(MPI_COMM_WORLD, &request));
    return finish(&request, timeout_s, error, error_size);
}

/* The requests of one message, in parts that MPI can count. @return how many */
static uint64_t parts_of(const stw_mpi_message *m) {
    return m->bytes / PART_BYTES + (m->bytes % PART_BYTES > 0);
}

static int begin_part(const stw_mpi_message *m, uint64_t part, MPI_Request *request) {
    char *data = (char *)m->data + part * PART_BYTES;
    const uint64_t left = m->bytes - part * PART_BYTES;
    const int n = (int)(left < PART_BYTES ? left : PART_BYTES);
    if (m->sends) return MPI_Isend(data, n, MPI_BYTE, (int)m->peer, MESSAGE_TAG, own, request);
    return MPI_Irecv(data, n, MPI_BYTE, (int)m->peer, MESSAGE_TAG, own, request);
}

static stw_mpi_result run_messages(const stw_mpi_message *all, MPI_Request *requests, uint32_t n,
                                   double timeout_s, uint32_t *waits_for, char *error,
                                   size_t error_size) {
    const double start = now_s();
    uint64_t used = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t part = 0; part < parts_of(&all[i]); part++)
            CHECK(begin_part(&all[i], part, &requests[used++]));
    used = 0;
    for (*waits_for = 0; *waits_for < n; ++*waits_for)
        for (uint64_t part = 0; part < parts_of(&all[*waits_for]); part++) {
            const double left_s = timeout_s - (now_s() - start);
            const stw_mpi_result result = finish(&requests[used++], left_s, error, error_size);
            if (result != STW_MPI_OK) return result;
        }
    return STW_MPI_OK;
}

static stw_mpi_result messages(const stw_mpi_message *all, uint32_t n, double timeout_s,
                               uint32_t *waits_for, char *error, size_t error_size) {
    uint64_t parts = 1;
    for (uint32_t i = 0; i < n; i++) parts += parts_of(&all[i]);
    MPI_Request *requests = calloc(parts, sizeof *requests);
    *waits_for = n;
    if (requests == NULL) {
        if (error != NULL) snprintf(error, error_size, "out of memory");
        return STW_MPI_FAILED;
    }
    const stw_mpi_result result =
        run_messages(all, requests, n, timeout_s, waits_for, error, error_size);
    free(requests);
    return result;
}

/* What is sent lives until the process ends: a peer that is stopped may never take it. */
static void report(const char *mine, char *all, unsigned char *heard, double wait_s) {
    static char sent[STW_MPI_REPORT_BYTES];
    int world = 0, rank = 0, missing;
    if (own == MPI_COMM_NULL || MPI_Comm_size(own, &world) != MPI_SUCCESS ||
        MPI_Comm_rank(own, &rank) != MPI_SUCCESS)
        return;
    missing = world - 1;
    memcpy(sent, mine, sizeof sent);
    for (int r = 0; r < world; r++) {
        MPI_Request request;
        if (r != rank) (void)MPI_Isend(sent, sizeof sent, MPI_BYTE, r, REPORT_TAG, own, &request);
    }
    for (double end = now_s() + wait_s; missing > 0 && now_s() < end; nap(1000000)) {
        int there = 1;
        MPI_Status from;
        while (there) {
            if (MPI_Iprobe(MPI_ANY_SOURCE, REPORT_TAG, own, &there, &from) != MPI_SUCCESS) return;
            if (!there) break;
            char *to = all + (size_t)from.MPI_SOURCE * STW_MPI_REPORT_BYTES;
            if (MPI_Recv(to, STW_MPI_REPORT_BYTES, MPI_BYTE, from.MPI_SOURCE, REPORT_TAG, own,
                         MPI_STATUS_IGNORE) != MPI_SUCCESS)
                return;
            missing -= !heard[from.MPI_SOURCE];
            heard[from.MPI_SOURCE] = 1;
        }
    }
}

const stw_mpi_calls *stowage_mpi_calls(void) {
    static const stw_mpi_calls calls = {
        .version = STW_MPI_PLUGIN_VERSION,
#ifdef OPEN_MPI
        .library = "Open MPI",
#else
        .library = "MPI",
#endif
        .join = join,
        .leave = leave,
        .sum_u64 = sum_u64,
        .gather = gather,
        .broadcast = broadcast,
        .messages = messages,
        .interrupt = interrupt,
        .barrier = barrier,
        .report = report,
    };
    return &calls;
}

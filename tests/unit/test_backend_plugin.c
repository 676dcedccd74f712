/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI plugin on an MPI and a clock of the test's own: what it asks MPI for, when it stops to
 * wait, and how its process ends. Every case is a process, for MPI is initialised once. */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/mpi/stowage_mpi.h"
#include "tests/unit/fake_mpi/mpi.h"
#include "tests/unit/testing.h"

const stw_mpi_calls *stowage_mpi_calls(void);

/* ---- the log, which outlives a case ---- */

static char *logged;
#define LOG_BYTES 8000
static void note(const char *format, ...) STW_PRINTF(1, 2);
static void note(const char *format, ...) {
    const size_t used = strlen(logged);
    va_list list;
    va_start(list, format);
    vsnprintf(logged + used, LOG_BYTES - used, format, list);
    va_end(list);
}

/* ---- the clock ---- */

static double clock_s = 1000;
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_sched_yield(void);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    CU_ASSERT_EQUAL(clock, CLOCK_MONOTONIC);
    out->tv_sec = (time_t)clock_s;
    out->tv_nsec = (long)((clock_s - (double)out->tv_sec) * 1e9);
    return 0;
}
static unsigned naps, yields;
static bool starting = true; /* another thread initialises MPI: no time passes here meanwhile */
static bool init_hangs;
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left) {
    naps++;
    if (starting && !init_hangs) return __real_nanosleep(time, left);
    clock_s += (double)time->tv_sec + 1e-9 * (double)time->tv_nsec;
    return 0;
}
int __wrap_sched_yield(void) {
    yields++;
    clock_s += 1e-4;
    return 0;
}

/* ---- MPI ---- */

static struct {
    int initialised, finalised, provided, rank, size;
    double done_s;        /* of every request, after it was made; INFINITY: never */
    double gave_up_s;     /* of the clock, when a peer is known to have given up */
    double told_s;        /* when a message of a report is there */
    int failing, calls;   /* the call that fails, from 1; 0: none */
    int n_messages, next; /* reports that arrive, in order */
    struct {
        int source;
        double at_s;
        const char *text;
    } messages[5];
} mpi = {.provided = MPI_THREAD_SERIALIZED,
         .rank = 1,
         .size = 3,
         .gave_up_s = (double)INFINITY,
         .told_s = (double)INFINITY};
static double made_s[200];
static int n_requests = 1;

static int called(void) { return ++mpi.calls == mpi.failing ? 13 : MPI_SUCCESS; }
static int request(MPI_Request *out) {
    made_s[n_requests] = clock_s;
    *out = n_requests++;
    return called();
}

int MPI_Error_string(int code, char *text, int *length) {
    *length = snprintf(text, MPI_MAX_ERROR_STRING, "code %d", code);
    text[*length] = '!'; /* not a part of it */
    return MPI_SUCCESS;
}
int MPI_Test(MPI_Request *r, int *done, MPI_Status *status) {
    CU_ASSERT_PTR_NULL(status);
    *done = clock_s - made_s[*r] >= mpi.done_s;
    return mpi.failing < 0 ? 13 : MPI_SUCCESS;
}
int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *there, MPI_Status *status) {
    CU_ASSERT_TRUE(source == MPI_ANY_SOURCE && tag == 1 && comm == 7);
    if (status == NULL) { /* is there anything at all? */
        *there = clock_s >= mpi.told_s;
        return MPI_SUCCESS;
    }
    *there = mpi.next < mpi.n_messages && clock_s >= mpi.messages[mpi.next].at_s;
    if (*there) status->MPI_SOURCE = mpi.messages[mpi.next].source;
    return called();
}
int MPI_Recv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
             MPI_Status *status) {
    CU_ASSERT_TRUE(n == (int)STW_MPI_REPORT_BYTES && type == MPI_BYTE && tag == 1 && comm == 7);
    CU_ASSERT_TRUE(status == NULL && from == mpi.messages[mpi.next].source);
    snprintf(data, STW_MPI_REPORT_BYTES, "%s", mpi.messages[mpi.next++].text);
    return called();
}
int MPI_Finalized(int *finalised) {
    *finalised = mpi.finalised;
    note("finalized; ");
    return called();
}
int MPI_Finalize(void) {
    note("finalize; ");
    return called();
}
int MPI_Initialized(int *initialised) {
    *initialised = mpi.initialised;
    return called();
}
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided) {
    CU_ASSERT_TRUE(argc == NULL && argv == NULL && wanted == MPI_THREAD_SERIALIZED);
    while (init_hangs) pause();
    *provided = mpi.provided;
    note("init; ");
    return called();
}
int MPI_Query_thread(int *provided) {
    starting = false;
    *provided = mpi.provided;
    return called();
}
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler) {
    CU_ASSERT_EQUAL(handler, MPI_ERRORS_RETURN);
    note("errors %d; ", comm);
    return called();
}
int MPI_Comm_rank(MPI_Comm comm, int *rank) {
    CU_ASSERT_TRUE(comm == MPI_COMM_WORLD || comm == 7);
    *rank = mpi.rank;
    return called();
}
int MPI_Comm_size(MPI_Comm comm, int *size) {
    CU_ASSERT_TRUE(comm == MPI_COMM_WORLD || comm == 7);
    *size = mpi.size;
    return called();
}
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *r) {
    CU_ASSERT_EQUAL(comm, MPI_COMM_WORLD);
    *made = 7;
    note("dup; ");
    return request(r);
}
int MPI_Ibarrier(MPI_Comm comm, MPI_Request *r) {
    CU_ASSERT_EQUAL(comm, MPI_COMM_WORLD);
    note("barrier; ");
    return request(r);
}
int MPI_Iallreduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *r) {
    CU_ASSERT_TRUE(from == MPI_IN_PLACE && type == MPI_UINT64_T && op == MPI_SUM);
    CU_ASSERT_EQUAL(comm, MPI_COMM_WORLD);
    note("sum %d of %llu; ", n, (unsigned long long)*(uint64_t *)to);
    return request(r);
}
int MPI_Iallgather(const void *from, int n, MPI_Datatype type, void *to, int to_n,
                   MPI_Datatype to_type, MPI_Comm comm, MPI_Request *r) {
    CU_ASSERT_TRUE(type == MPI_BYTE && to_type == MPI_BYTE && comm == MPI_COMM_WORLD);
    note("gather %s %d to %s %d; ", (const char *)from, n, (const char *)to, to_n);
    return request(r);
}
static const char *base;
int MPI_Ibcast(void *data, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r) {
    CU_ASSERT_TRUE(type == MPI_BYTE && comm == MPI_COMM_WORLD);
    note("bcast +%llu %d from %d; ", (unsigned long long)((uintptr_t)data - (uintptr_t)base), n,
         root);
    return request(r);
}
int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *r) {
    CU_ASSERT_TRUE(type == MPI_BYTE && comm == 7);
    if (tag == 2) {
        note("message +%llu %d to %d; ", (unsigned long long)((uintptr_t)data - (uintptr_t)base), n,
             to);
        return request(r);
    }
    CU_ASSERT_TRUE(n == (int)STW_MPI_REPORT_BYTES && tag == 1);
    note("send \"%s\" to %d; ", (const char *)data, to);
    return request(r);
}
int MPI_Irecv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *r) {
    CU_ASSERT_TRUE(type == MPI_BYTE && comm == 7 && tag == 2);
    note("message +%llu %d from %d; ", (unsigned long long)((uintptr_t)data - (uintptr_t)base), n,
         from);
    return request(r);
}

/* ---- cases ---- */

static int the_state;
static unsigned asked;
static int gave_up(void *state) {
    CU_ASSERT_PTR_EQUAL(state, &the_state);
    asked++;
    return clock_s >= mpi.gave_up_s;
}

static char error[64];
static stw_mpi_result join(void) {
    uint32_t rank = 77, world = 77;
    error[0] = '\0';
    const stw_mpi_result result =
        stowage_mpi_calls()->join(&rank, &world, 3, gave_up, &the_state, error, sizeof error);
    if (result == STW_MPI_OK) CU_ASSERT_TRUE(rank == 1 && world == (uint32_t)mpi.size);
    return result;
}

static int which;

static void one_case(void (*body)(void), const char *expected, int line) {
    logged[0] = '\0';
    fflush(NULL);
    const pid_t process = fork();
    CU_ASSERT_TRUE_FATAL(process >= 0);
    if (process == 0) {
        const unsigned before = CU_get_number_of_failures();
        body();
        const CU_FailureRecord *f = CU_get_failure_list();
        for (; f != NULL && CU_get_number_of_failures() > before; f = f->pNext)
            fprintf(stderr, "line %u: %s\n", f->uiLineNumber, f->strCondition);
        exit(CU_get_number_of_failures() > before ? 1 : 0);
    }
    int code = -1;
    CU_ASSERT_EQUAL(waitpid(process, &code, 0), process);
    CU_ASSERT_EQUAL(code, 0);
    CU_ASSERT_STRING_EQUAL(logged, expected);
    if (code != 0 || strcmp(logged, expected) != 0)
        fprintf(stderr, "line %d, %d: code %d, found\n    \"%s\", expected\n    \"%s\"\n", line,
                which, code, logged, expected);
}
#define CASE(body, expected) one_case(body, expected, __LINE__)

#define JOINED "init; errors 101; dup; errors 7; "
#define ENDED "finalized; barrier; finalize; "

static void joins(void) {
    const stw_mpi_calls *calls = stowage_mpi_calls();
    CU_ASSERT_EQUAL(calls->version, 3);
    CU_ASSERT_STRING_EQUAL(calls->library, "MPI");
    CU_ASSERT_EQUAL(join(), STW_MPI_OK);
    mpi.initialised = 1;
    CU_ASSERT_EQUAL(join(), STW_MPI_OK); /* again: only reports */
    calls->leave(0);
}
static void joins_alone(void) {
    mpi.size = 1;
    CU_ASSERT_EQUAL(join(), STW_MPI_OK);
}
static void joins_a_callers(void) {
    mpi.initialised = 1;
    CU_ASSERT_EQUAL(join(), STW_MPI_OK);
}
static void joins_what_was_finalised(void) {
    CU_ASSERT_EQUAL(join(), STW_MPI_OK);
    mpi.finalised = 1;
}
static void leaves_broken(void) {
    CU_ASSERT_EQUAL(join(), STW_MPI_OK);
    stowage_mpi_calls()->leave(1);
    stowage_mpi_calls()->leave(0); /* stays so */
}
static double end_s;
static void say_end(void) { note("%.3g s; ", clock_s - end_s); }
static void leaves_alone(void) {
    (void)atexit(say_end); /* called last */
    CU_ASSERT_EQUAL(join(), STW_MPI_OK);
    mpi.done_s = (double)INFINITY; /* the others do not come to the end */
    end_s = clock_s;
}
static void leaves_broken_slowly(void) {
    (void)atexit(say_end);
    CU_ASSERT_EQUAL(join(), STW_MPI_OK);
    stowage_mpi_calls()->leave(1);
    end_s = clock_s;
}
static void has_no_threads(void) {
    mpi.provided = MPI_THREAD_SERIALIZED - 1;
    CU_ASSERT_EQUAL(join(), STW_MPI_FAILED);
    CU_ASSERT_STRING_EQUAL(error, "this MPI does not allow calls from several threads");
    uint32_t rank, world;
    mpi.initialised = 1;
    CU_ASSERT_EQUAL(stowage_mpi_calls()->join(&rank, &world, 3, NULL, NULL, NULL, 0),
                    STW_MPI_FAILED);
    mpi.finalised = 1;
}
static void never_starts(void) {
    init_hangs = true;
    const double before = clock_s;
    CU_ASSERT_EQUAL(join(), STW_MPI_TIMED_OUT);
    CU_ASSERT_TRUE(clock_s - before >= 3 && clock_s - before < 3.01);
}
static void never_doubles(void) {
    mpi.done_s = (double)INFINITY;
    const double before = clock_s;
    CU_ASSERT_EQUAL(join(), STW_MPI_TIMED_OUT);
    CU_ASSERT_TRUE(clock_s - before >= 3 && clock_s - before < 3.01);
    mpi.done_s = 0;
    mpi.finalised = 1;
}
static void fails_in_a_call(void) {
    mpi.failing = which;
    CU_ASSERT_EQUAL(join(), STW_MPI_FAILED);
    CU_ASSERT_STRING_EQUAL(error, "code 13");
    mpi.finalised = 1;
}

static void a_process_joins_and_ends(void) {
    which = 0;
    CASE(joins, JOINED "errors 101; " ENDED);
    CASE(joins_alone, "init; errors 101; " ENDED);
    CASE(joins_a_callers, "errors 101; dup; errors 7; ");
    CASE(joins_what_was_finalised, JOINED "finalized; ");
    CASE(leaves_broken, JOINED);
    CASE(leaves_alone, JOINED "finalized; barrier; 10 s; ");
    CASE(leaves_broken_slowly, JOINED "0.3 s; ");
    CASE(has_no_threads, "init; finalized; ");
    CASE(never_starts, "");
    CASE(never_doubles, "init; errors 101; dup; finalized; ");
    /* initialized, init, query, errors, rank, size, dup, errors */
    static const char *const logs[] = {"",
                                       "init; ",
                                       "init; finalized; ",
                                       "init; errors 101; finalized; ",
                                       "init; errors 101; finalized; ",
                                       "init; errors 101; finalized; ",
                                       "init; errors 101; dup; finalized; ",
                                       JOINED "finalized; "};
    for (which = 1; which <= 8; which++) CASE(fails_in_a_call, logs[which - 1]);
}

/* ---- collectives ---- */

static const char mine[] = "mine";
static char all[16];
static uint64_t values[2];
#define N_CALLS 5
static stw_mpi_result collective(int i) {
    const stw_mpi_calls *c = stowage_mpi_calls();
    const stw_mpi_message messages[] = {{all, 3, 2, 1}, {all + 4, 4, 0, 0}};
    uint32_t waits_for = 77;
    stw_mpi_result result;
    error[0] = '\0';
    values[0] = 5;
    snprintf(all, sizeof all, "all");
    switch (i) {
    case 0:
        return c->sum_u64(values, 2, 3, error, sizeof error);
    case 1:
        return c->gather(mine, all, 4, 3, error, sizeof error);
    case 2:
        base = all;
        return c->broadcast(all, 3, 2, 3, error, sizeof error);
    case 4:
        base = all;
        result = c->messages(messages, 2, 3, &waits_for, error, sizeof error);
        CU_ASSERT_EQUAL(waits_for, result == STW_MPI_OK                          ? 2u
                                   : result == STW_MPI_FAILED && mpi.failing > 0 ? 2u
                                                                                 : 0u);
        return result;
    default:
        return c->barrier(3, error, sizeof error);
    }
}

static void begin(void) {
    CU_ASSERT_EQUAL(join(), STW_MPI_OK);
    mpi.finalised = 1;
    logged[0] = '\0';
    asked = naps = yields = 0;
}

static void in_time(void) {
    static const double seconds[] = {0, 0.001, 0.5, 2.9};
    begin();
    mpi.done_s = seconds[which % 4];
    const double before = clock_s;
    CU_ASSERT_EQUAL(collective(which / 4), STW_MPI_OK);
    const double took = clock_s - before;
    CU_ASSERT_TRUE(took >= mpi.done_s - 1e-9 && took < mpi.done_s + 0.001);
    CU_ASSERT_EQUAL((asked > 0), (mpi.done_s > 0.002)); /* a moment's patience */
    CU_ASSERT_EQUAL((naps > 0), (mpi.done_s > 0.002));
    CU_ASSERT_EQUAL((yields > 0), (mpi.done_s > 0));
    mpi.done_s = 0;
}
static void too_late(void) {
    begin();
    mpi.done_s = (double)INFINITY;
    const double before = clock_s;
    CU_ASSERT_EQUAL(collective(which), STW_MPI_TIMED_OUT);
    CU_ASSERT_TRUE(clock_s - before > 3 && clock_s - before < 3.001);
    mpi.done_s = 0;
}
static void a_peer_gives_up(void) {
    begin();
    mpi.done_s = (double)INFINITY;
    const double before = clock_s;
    mpi.gave_up_s = before + 1;
    CU_ASSERT_EQUAL(collective(which), STW_MPI_GIVEN_UP);
    CU_ASSERT_TRUE(clock_s - before >= 1 && clock_s - before < 1.001);
    stowage_mpi_calls()->leave(0);
    asked = 0;
    CU_ASSERT_EQUAL(collective(which), STW_MPI_TIMED_OUT); /* asked no more */
    CU_ASSERT_EQUAL(asked, 0);
    mpi.done_s = 0;
}
static void a_peer_reports(void) {
    begin();
    mpi.done_s = (double)INFINITY;
    const double before = clock_s;
    mpi.told_s = before + 1;
    CU_ASSERT_EQUAL(collective(which), STW_MPI_GIVEN_UP);
    CU_ASSERT_TRUE(clock_s - before >= 1 && clock_s - before < 1.001);
    mpi.done_s = 0;
}
static void is_interrupted(void) {
    begin();
    stowage_mpi_calls()->interrupt();
    CU_ASSERT_EQUAL(collective(which), STW_MPI_OK); /* it was done */
    mpi.done_s = (double)INFINITY;
    for (int i = 0; i < 2; i++) {
        const double before = clock_s;
        CU_ASSERT_EQUAL(collective(which), STW_MPI_TIMED_OUT);
        CU_ASSERT_TRUE(clock_s - before < 0.001);
    }
    mpi.done_s = 0;
}
static void fails_at_once(void) {
    begin();
    mpi.failing = mpi.calls + 1;
    CU_ASSERT_EQUAL(collective(which), STW_MPI_FAILED);
    CU_ASSERT_STRING_EQUAL(error, "code 13");
}
static void fails_later(void) {
    begin();
    mpi.failing = -1;
    CU_ASSERT_EQUAL(collective(which), STW_MPI_FAILED);
    CU_ASSERT_STRING_EQUAL(error, "code 13");
    CU_ASSERT_EQUAL(stowage_mpi_calls()->barrier(3, NULL, 0), STW_MPI_FAILED);
    mpi.failing = 0;
}

static const char *const calls[N_CALLS] = {"sum 2 of 5; ", "gather mine 4 to all 4; ",
                                           "bcast +0 3 from 2; ", "barrier; ",
                                           "message +0 3 to 2; message +4 4 from 0; "};
static void times(unsigned n, char *out, size_t out_size, const char *last) {
    out[0] = '\0';
    for (unsigned i = 0; i < n; i++)
        snprintf(out + strlen(out), out_size - strlen(out), "%s", calls[which]);
    snprintf(out + strlen(out), out_size - strlen(out), "%sfinalized; ", last);
}

static void collectives_end_in_time(void) {
    char log[400];
    for (int i = 0; i < 4 * N_CALLS; i++) {
        snprintf(log, sizeof log, "%sfinalized; ", calls[i / 4]);
        which = i;
        CASE(in_time, log);
    }
    for (which = 0; which < N_CALLS; which++) {
        times(1, log, sizeof log, "");
        CASE(too_late, log);
        CASE(a_peer_reports, log);
        CASE(fails_at_once, which == 4 ? "message +0 3 to 2; finalized; " : log);
        times(2, log, sizeof log, "");
        CASE(a_peer_gives_up, log);
        times(3, log, sizeof log, "");
        CASE(is_interrupted, log);
        times(1, log, sizeof log, "barrier; ");
        CASE(fails_later, log);
    }
}

/* Counts of MPI are ints: long broadcasts go in parts. */
static void broadcasts_in_parts(void) {
    const uint64_t gib = 1ull << 30, bytes = which == 0 ? 2 * gib : 2 * gib + 5;
    begin();
    base = NULL;
    if (which == 2) mpi.failing = mpi.calls + 2;
    CU_ASSERT_EQUAL(stowage_mpi_calls()->broadcast(NULL, bytes, 1, 3, error, sizeof error),
                    which == 2 ? STW_MPI_FAILED : STW_MPI_OK);
    CU_ASSERT_EQUAL(stowage_mpi_calls()->broadcast(NULL, 0, 1, 3, error, sizeof error), STW_MPI_OK);
    if (which != 3) return;
    mpi.done_s = (double)INFINITY;
    CU_ASSERT_EQUAL(stowage_mpi_calls()->broadcast(NULL, bytes, 1, 3, error, sizeof error),
                    STW_MPI_TIMED_OUT);
    mpi.done_s = 0;
}

#define FIRST "bcast +0 1073741824 from 1; "
#define SECOND "bcast +1073741824 1073741824 from 1; "
static void long_broadcasts_go_in_parts(void) {
    static const char *const logs[] = {
        FIRST SECOND "finalized; ", FIRST SECOND "bcast +2147483648 5 from 1; finalized; ",
        FIRST SECOND "finalized; ",
        FIRST SECOND "bcast +2147483648 5 from 1; " FIRST "finalized; "};
    for (which = 0; which < 4; which++) CASE(broadcasts_in_parts, logs[which]);
}

/* The same of messages; the one that is late is named. */
static void messages_in_parts(void) {
    const uint64_t gib = 1ull << 30;
    uint32_t waits_for = 77;
    const stw_mpi_message list[] = {
        {NULL, 0, 2, 1}, {NULL, 2 * gib + 5, 0, 0}, {(char *)64, gib, 2, 1}};
    begin();
    base = NULL;
    if (which == 1) mpi.done_s = (double)INFINITY;
    CU_ASSERT_EQUAL(stowage_mpi_calls()->messages(list, 3, 3, &waits_for, error, sizeof error),
                    which == 1 ? STW_MPI_TIMED_OUT : STW_MPI_OK);
    CU_ASSERT_EQUAL(waits_for, which == 1 ? 1u : 3u);
    mpi.done_s = 0;
    CU_ASSERT_EQUAL(stowage_mpi_calls()->messages(NULL, 0, 3, &waits_for, error, sizeof error),
                    STW_MPI_OK);
    CU_ASSERT_EQUAL(waits_for, 0);
}

static void long_messages_go_in_parts(void) {
    for (which = 0; which < 2; which++)
        CASE(messages_in_parts,
             "message +0 1073741824 from 0; message +1073741824 1073741824 from 0; "
             "message +2147483648 5 from 0; message +64 1073741824 to 2; finalized; ");
}

/* ---- reports ---- */

static void reports(void) {
    static const struct {
        double wait_s;
        int n, sources[3];
        double at_s[3];
        double took_s; /* at most; at least 10 ms less */
        int heard[4];
        int failing; /* call after the sends */
    } cases[] = {{2, 2, {2, 0}, {0.5, 1}, 1, {1, 0, 1, 0}, 0},
                 {2, 3, {2, 2, 0}, {0.5, 0.6, 1.5}, 1.5, {1, 0, 1, 0}, 0},
                 {2, 1, {0}, {0.5}, 2, {1, 0, 0, 0}, 0},
                 {2, 2, {0, 2}, {0.5, 5}, 2, {1, 0, 0, 0}, 0},
                 {0, 2, {0, 2}, {0, 0}, 0, {0, 0, 0, 0}, 0},
                 {2, 2, {0, 2}, {0, 0}, 0, {0, 0, 0, 0}, 1},
                 {2, 2, {0, 2}, {0, 0}, 0, {0, 0, 0, 0}, 2},
                 {2, 2, {0, 2}, {0, 0.5}, 0, {1, 0, 0, 0}, 3}};
    char text[STW_MPI_REPORT_BYTES] = "rank 1 is here", *got = calloc(3, STW_MPI_REPORT_BYTES);
    unsigned char heard[4] = {0};
    begin();
    mpi.n_messages = cases[which].n;
    for (int i = 0; i < mpi.n_messages; i++) {
        mpi.messages[i].source = cases[which].sources[i];
        mpi.messages[i].at_s = clock_s + cases[which].at_s[i];
        mpi.messages[i].text = i == 0 ? "first" : i == 1 ? "second" : "third";
    }
    if (cases[which].failing > 0) mpi.failing = mpi.calls + 4 + cases[which].failing;
    const double before = clock_s;
    stowage_mpi_calls()->report(text, got, heard, cases[which].wait_s);
    const double took = clock_s - before;
    CU_ASSERT_TRUE(took <= cases[which].took_s + 0.005 && took >= cases[which].took_s - 0.005);
    for (int r = 0; r < 3; r++) {
        const char *last = "";
        CU_ASSERT_EQUAL(heard[r], cases[which].heard[r]);
        for (int i = 0; i < mpi.next; i++)
            if (mpi.messages[i].source == r) last = mpi.messages[i].text;
        if (cases[which].failing != 2)
            CU_ASSERT_STRING_EQUAL(got + r * (int)STW_MPI_REPORT_BYTES, last);
    }
    free(got);
}
static void reports_before_joining(void) {
    starting = false;
    char text[STW_MPI_REPORT_BYTES] = "rank 1 is here", got[3 * STW_MPI_REPORT_BYTES] = "";
    unsigned char heard[3] = {0};
    stowage_mpi_calls()->report(text, got, heard, 2);
    CU_ASSERT_EQUAL(clock_s, 1000);
}
static void reports_to_nobody(void) {
    char text[STW_MPI_REPORT_BYTES] = "rank 1 is here", got[3 * STW_MPI_REPORT_BYTES] = "";
    unsigned char heard[3] = {0};
    begin();
    mpi.failing = mpi.calls + which; /* size or rank cannot be told */
    stowage_mpi_calls()->report(text, got, heard, 2);
    CU_ASSERT_EQUAL(mpi.calls, mpi.failing);
}

static void ranks_report_to_each_other(void) {
    for (which = 0; which < 8; which++)
        CASE(reports, "send \"rank 1 is here\" to 0; send \"rank 1 is here\" to 2; finalized; ");
    CASE(reports_before_joining, "");
    for (which = 1; which <= 2; which++) CASE(reports_to_nobody, "finalized; ");
}

int main(void) {
    static const stw_test tests[] = {{"a process joins and ends", a_process_joins_and_ends},
                                     {"collectives end in time", collectives_end_in_time},
                                     {"long broadcasts go in parts", long_broadcasts_go_in_parts},
                                     {"long messages go in parts", long_messages_go_in_parts},
                                     {"ranks report to each other", ranks_report_to_each_other}};
    logged = mmap(NULL, LOG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (logged == MAP_FAILED) return 2;
    return stw_test_run_all("backend plugin", tests, sizeof tests / sizeof tests[0]);
}

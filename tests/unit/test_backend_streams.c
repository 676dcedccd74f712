/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which streams are issued: random movements on a backend that only keeps a log. Every
 * operation is issued once, after those that it names and after its waits for their events; what
 * one failing call leaves behind does not reach the next movement. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "backend/executor/schedule.h"
#include "tests/unit/testing.h"

#define MOST_OPS 60u
#define BEFORE 3u /* operations of an earlier movement */

typedef enum what { ISSUE, SETTLE, RECORD, WAIT, WAIT_HOST, N_WHATS } what;
typedef struct entry {
    what what;
    uint32_t number; /* of an operation or event */
    stw_stream stream;
    pthread_t thread;
} entry;

static struct {
    pthread_mutex_t mutex;
    uint32_t n;
    entry entries[8 * MOST_OPS];
    unsigned entered[STW_N_STREAMS];
    what fail_what;
    uint32_t fail_at, counts[N_WHATS]; /* the call of a kind that fails, from 1; 0: none */
    unsigned failed, wrong;            /* arguments */
    stw_error error;
} seen = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static int the_state;
static stw_device *const the_device = (stw_device *)(void *)&the_state;

/* @param with the state or device that the call was given */
static stw_status note(const void *with, what w, uint32_t number, stw_stream stream,
                       stw_error *err) {
    pthread_mutex_lock(&seen.mutex);
    seen.wrong += with != &the_state;
    const bool fails = w == seen.fail_what && ++seen.counts[w] == seen.fail_at;
    if (seen.n == sizeof seen.entries / sizeof seen.entries[0]) abort();
    if (!fails) seen.entries[seen.n++] = (entry){w, number, stream, pthread_self()};
    pthread_mutex_unlock(&seen.mutex);
    return fails ? stw_fail(err, STW_STATUS_IO, "call", "%d of %u", (int)w, number) : STW_STATUS_OK;
}

static stw_status issue(void *state, uint32_t op, stw_error *err) {
    return note(state, ISSUE, op, STW_N_STREAMS, err);
}
static stw_status settle(void *state, uint32_t op, stw_error *err) {
    return note(state, SETTLE, op, STW_N_STREAMS, err);
}
static void failed(void *state, stw_error *error) {
    pthread_mutex_lock(&seen.mutex);
    seen.wrong += state != &the_state;
    pthread_mutex_unlock(&seen.mutex);
    seen.failed++;
    seen.error = *error;
}
static stw_status record(stw_device *d, stw_stream stream, uint32_t event, stw_error *err) {
    return note(d, RECORD, event, stream, err);
}
static stw_status wait(stw_device *d, stw_stream stream, uint32_t event, stw_error *err) {
    return note(d, WAIT, event, stream, err);
}
static stw_status wait_host(stw_device *d, uint32_t event, stw_error *err) {
    return note(d, WAIT_HOST, event, STW_N_STREAMS, err);
}
static void enter(stw_device *d, stw_stream stream) {
    pthread_mutex_lock(&seen.mutex);
    seen.wrong += d != the_device;
    seen.entered[stream]++;
    pthread_mutex_unlock(&seen.mutex);
}

static const stw_backend backend = {
    .name = "log", .record = record, .wait = wait, .wait_host = wait_host, .enter = enter};

/* ---- random movements ---- */

static uint64_t state;
static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

typedef struct made {
    stw_op ops[BEFORE + MOST_OPS];
    stw_movement movement;
    stw_program program;
    uint32_t event[BEFORE + MOST_OPS]; /* expected */
    uint32_t n_events;
} made;

static bool names(const stw_op *op, uint32_t other) {
    return op->after[0] == other || op->after[1] == other;
}

static void make(made *m, uint64_t seed) {
    state = seed;
    memset(m, 0, sizeof *m);
    m->movement.first_op = BEFORE;
    m->movement.n_ops = 1 + below(MOST_OPS);
    m->movement.threading = below(2) == 0 ? STW_THREADING_SHARED : STW_THREADING_PER_STREAM;
    m->program.ops = m->ops;
    m->program.n_ops = BEFORE + m->movement.n_ops;
    const uint32_t end = m->program.n_ops;
    for (uint32_t i = 0; i < end; i++) {
        m->ops[i].stream = (stw_stream)below(STW_N_STREAMS);
        for (int a = 0; a < 2; a++)
            m->ops[i].after[a] =
                i > BEFORE && below(3) > 0 ? BEFORE + below(i - BEFORE) : STW_OP_NONE;
    }
    for (uint32_t i = BEFORE; i < end; i++) {
        m->event[i] = STW_OP_NONE;
        for (uint32_t j = i + 1; j < end && m->event[i] == STW_OP_NONE; j++)
            if (names(&m->ops[j], i) && m->ops[j].stream != m->ops[i].stream &&
                stw_stream_is_gpu(m->ops[i].stream))
                m->event[i] = m->n_events++;
    }
}

static void start_log(void) {
    seen.n = 0;
    seen.fail_at = 0;
    seen.failed = 0;
    memset(seen.counts, 0, sizeof seen.counts);
}

/* Where the log says that an operation was issued, or an event recorded; its end where not. */
static uint32_t find(what w, uint32_t number) {
    uint32_t i = 0;
    while (i < seen.n && (seen.entries[i].what != w || seen.entries[i].number != number)) i++;
    return i;
}

/* The entries of one thread before entry `at`, going back; UINT32_MAX: none. */
static uint32_t before(uint32_t at) {
    for (uint32_t i = at; i-- > 0;)
        if (pthread_equal(seen.entries[i].thread, seen.entries[at].thread)) return i;
    return UINT32_MAX;
}
static uint32_t behind(uint32_t at) {
    uint32_t i = at + 1;
    while (i < seen.n && !pthread_equal(seen.entries[i].thread, seen.entries[at].thread)) i++;
    return i;
}

static bool is(uint32_t at, what w, uint32_t number) {
    return at < seen.n && seen.entries[at].what == w && seen.entries[at].number == number;
}

/* What was done for one operation, by one thread without anything between. */
static void check_op(const made *m, uint32_t op) {
    const stw_op *o = &m->ops[op];
    const uint32_t issued = find(ISSUE, op);
    uint32_t at = before(issued), next = behind(issued);
    CU_ASSERT_TRUE_FATAL(issued < seen.n);
    for (int a = 1; a >= 0; a--) {
        const uint32_t other = o->after[a];
        if (other == STW_OP_NONE) continue;
        CU_ASSERT_TRUE(find(ISSUE, other) < issued);
        if (m->ops[other].stream == o->stream || !stw_stream_is_gpu(m->ops[other].stream)) continue;
        const bool by_gpu = stw_stream_is_gpu(o->stream);
        CU_ASSERT_TRUE_FATAL(at != UINT32_MAX);
        CU_ASSERT_TRUE(is(at, by_gpu ? WAIT : WAIT_HOST, m->event[other]));
        if (by_gpu) CU_ASSERT_EQUAL(seen.entries[at].stream, o->stream);
        CU_ASSERT_TRUE(find(RECORD, m->event[other]) < at);
        at = before(at);
    }
    CU_ASSERT_TRUE(at == UINT32_MAX || seen.entries[at].what == SETTLE);
    if (m->event[op] != STW_OP_NONE) {
        CU_ASSERT_TRUE(is(next, RECORD, m->event[op]));
        CU_ASSERT_EQUAL(seen.entries[next].stream, o->stream);
        next = behind(next);
    }
    CU_ASSERT_TRUE(is(next, SETTLE, op));
}

static void check_log(const made *m) {
    uint32_t last[STW_N_STREAMS] = {0}, counts[N_WHATS] = {0};
    for (uint32_t i = 0; i < seen.n; i++) {
        const entry *e = &seen.entries[i];
        counts[e->what]++;
        if (e->what != ISSUE) continue;
        const stw_stream stream = m->ops[e->number].stream;
        CU_ASSERT_TRUE(e->number >= BEFORE && e->number + 1 > last[stream]);
        last[stream] = e->number + 1;
    }
    CU_ASSERT_EQUAL(counts[ISSUE], m->movement.n_ops);
    CU_ASSERT_EQUAL(counts[SETTLE], m->movement.n_ops);
    CU_ASSERT_EQUAL(counts[RECORD], m->n_events);
    for (uint32_t op = BEFORE; op < m->program.n_ops; op++) check_op(m, op);
}

/* Nothing that names the failed operation, itself or through others, was issued. */
static void check_failure(const made *m, const stw_error *error) {
    bool gone[BEFORE + MOST_OPS] = {false};
    CU_ASSERT_EQUAL(seen.failed, 1);
    CU_ASSERT_STRING_EQUAL(seen.error.where, "call");
    CU_ASSERT_EQUAL(memcmp(&seen.error, error, sizeof *error), 0);
    for (uint32_t op = BEFORE; op < m->program.n_ops; op++) {
        const stw_op *o = &m->ops[op];
        for (int a = 0; a < 2; a++) gone[op] |= o->after[a] != STW_OP_NONE && gone[o->after[a]];
        if (find(ISSUE, op) < seen.n) {
            CU_ASSERT_FALSE(gone[op]);
        } else {
            gone[op] = true;
        }
    }
}

static void run_all(bool one_thread) {
    const stw_streams_calls calls = {&the_state, issue, settle, failed, one_thread};
    stw_streams *streams = NULL;
    static made m;
    memset(seen.entered, 0, sizeof seen.entered);
    CHECK_OK(stw_streams_new(&backend, the_device, &calls, &streams, err));
    for (uint64_t seed = 1; seed <= 150; seed++) {
        stw_pool *pool = stw_pool_new();
        stw_schedule *schedule = NULL;
        make(&m, seed);
        CHECK_OK(stw_schedule_new(&m.program, &m.movement, pool, &schedule, err));
        CU_ASSERT_EQUAL(schedule->n_events, m.n_events);
        for (uint32_t i = 0; i < m.movement.n_ops; i++)
            CU_ASSERT_EQUAL(schedule->event[i], m.event[BEFORE + i]);
        start_log();
        CHECK_OK(stw_streams_run(streams, schedule, err));
        CU_ASSERT_TRUE(seen.failed == 0 && seen.wrong == 0);
        check_log(&m);
        for (int w = 0; w < N_WHATS; w++) { /* one call fails */
            stw_error error = STW_ERROR_INIT;
            start_log();
            seen.fail_what = (what)w;
            seen.fail_at = 1 + below(m.movement.n_ops);
            const stw_status status = stw_streams_run(streams, schedule, &error);
            if (seen.counts[w] < seen.fail_at) {
                CU_ASSERT_EQUAL(status, STW_STATUS_OK);
                continue;
            }
            CU_ASSERT_EQUAL(status, STW_STATUS_IO);
            check_failure(&m, &error);
            start_log();
            seen.fail_what = (what)w;
            seen.fail_at = 1;
            (void)stw_fail(&error, STW_STATUS_IO, "first", "and kept");
            stw_error kept = error;
            CU_ASSERT_EQUAL(stw_streams_run(streams, schedule, &kept), STW_STATUS_IO);
            CU_ASSERT_EQUAL(memcmp(&kept, &error, sizeof kept), 0);
            CU_ASSERT_EQUAL(stw_streams_run(streams, schedule, NULL), STW_STATUS_OK);
        }
        stw_pool_free(pool);
    }
    for (int t = 0; t < STW_N_STREAMS; t++) CU_ASSERT_EQUAL(seen.entered[t], one_thread ? 0 : 1);
    stw_streams_free(streams);
}

static void by_threads_of_streams(void) { run_all(false); }
static void by_the_caller(void) { run_all(true); }

/* Streams of one thread: the first that is ready goes on, in the order that each thread keeps. */
static void the_first_stream_goes_on(void) {
    static const stw_stream crews[][3] = {{STW_STREAM_H2D, STW_STREAM_D2H, STW_STREAM_COMPUTE},
                                          {STW_STREAM_FROM_CPU, STW_STREAM_TO_CPU, STW_STREAM_CPU}};
    const stw_streams_calls calls = {&the_state, issue, settle, failed, false};
    stw_streams *streams = NULL;
    static made m;
    CHECK_OK(stw_streams_new(&backend, the_device, &calls, &streams, err));
    for (uint64_t seed = 1; seed <= 100; seed++) {
        const stw_stream *crew = crews[seed % 2];
        stw_pool *pool = stw_pool_new();
        stw_schedule *schedule = NULL;
        uint32_t order[MOST_OPS], n = 0;
        bool done[BEFORE + MOST_OPS] = {false};
        make(&m, seed);
        m.movement.threading = STW_THREADING_SHARED;
        for (uint32_t i = 0; i < m.program.n_ops; i++) m.ops[i].stream = crew[below(3)];
        for (bool more = true; more;) {
            more = false;
            for (int c = 0; c < 3 && !more; c++) {
                uint32_t op = BEFORE;
                while (op < m.program.n_ops && (done[op] || m.ops[op].stream != crew[c])) op++;
                if (op == m.program.n_ops) continue;
                bool ready = true;
                for (int a = 0; a < 2; a++)
                    ready &= m.ops[op].after[a] == STW_OP_NONE || done[m.ops[op].after[a]];
                if (ready) order[n++] = op;
                if (ready) done[op] = more = true;
            }
        }
        CHECK_OK(stw_schedule_new(&m.program, &m.movement, pool, &schedule, err));
        start_log();
        CHECK_OK(stw_streams_run(streams, schedule, err));
        uint32_t found = 0, wrong = 0;
        for (uint32_t i = 0; i < seen.n; i++)
            if (seen.entries[i].what == ISSUE) wrong += seen.entries[i].number != order[found++];
        CU_ASSERT_TRUE(found == n && n == m.movement.n_ops && wrong == 0);
        stw_pool_free(pool);
    }
    stw_streams_free(streams);
    stw_streams_free(NULL);
}

static void only_earlier_operations_are_named(void) {
    static const struct {
        uint32_t after, ok;
        const char *text;
    } cases[] = {{BEFORE, true, ""},
                 {BEFORE + 1, true, ""},
                 {BEFORE + 2, false, "operation 5 waits for 5,"},
                 {BEFORE + 3, false, "operation 5 waits for 6,"},
                 {BEFORE - 1, false, "operation 5 waits for 2,"}};
    static made m;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int a = 0; a < 2; a++) {
            stw_pool *pool = stw_pool_new();
            stw_schedule *schedule = NULL;
            make(&m, 1);
            m.movement.n_ops = 4;
            for (uint32_t o = 0; o < BEFORE + 4; o++)
                m.ops[o].after[0] = m.ops[o].after[1] = STW_OP_NONE;
            m.ops[BEFORE + 2].after[a] = cases[i].after;
            if (cases[i].ok)
                CHECK_OK(stw_schedule_new(&m.program, &m.movement, pool, &schedule, err));
            else
                CHECK_FAILS(stw_schedule_new(&m.program, &m.movement, pool, &schedule, err),
                            STW_STATUS_BUG, cases[i].text);
            stw_pool_free(pool);
        }
}

STW_TEST_MAIN("backend streams", {"by threads of streams", by_threads_of_streams},
              {"by the caller", by_the_caller},
              {"the first stream goes on", the_first_stream_goes_on},
              {"only earlier operations are named", only_earlier_operations_are_named})

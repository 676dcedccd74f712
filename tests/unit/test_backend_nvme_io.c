/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of NVMe state by both methods on a disk that does less than it is asked: calls are cut
 * short, interrupted or refused, entries of io_uring come back with errors, rings cannot be made.
 * Either all bytes are there, with their checksums, or the first that are not are named. The linker
 * hands the calls below to this test (--wrap). */
#define _GNU_SOURCE /* O_DIRECT */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvme/io.h"
#include "backend/nvme/sum.h"
#include "stw_config.h"
#include "tests/unit/testing.h"
#if STW_WITH_URING
#include <liburing.h>
#endif

#define MIB (1ull << 20)
#define CELL (64ull << 10)
#define CUT (5 * MIB + 100)
#define BYTES (12 * MIB + 777)
#define OFFSET 8192u

/* ---- the disk ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool cuts_short;      /* every call */
static unsigned every_other; /* > 0: of so many plain calls one is interrupted */
static uint64_t plain_calls, slept_ms;
static int plain_code;      /* of plain calls from this offset on */
static off_t plain_code_at; /* of the file */

static uint64_t random64(void) {
    static uint64_t state = 7;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

int __real_nanosleep(const struct timespec *time, struct timespec *left);

/* At least a block where direct I/O is used, and not whole blocks. */
static size_t shorter(size_t bytes) {
    if (!cuts_short || bytes <= 8192) return bytes;
    return (size_t)(4096 + random64() % ((bytes - 4096) / 512) * 512);
}

/* With `meets` > 1 a plain call waits until so many are under way at once, or have been. */
static unsigned meets, most_at_once, at_once;
static void wait_for_others(void) {
    const struct timespec ms = {0, 1000000};
    pthread_mutex_lock(&mutex);
    if (++at_once > most_at_once) most_at_once = at_once;
    for (int i = 0; i < 20000 && most_at_once < meets; i++) {
        pthread_mutex_unlock(&mutex);
        (void)__real_nanosleep(&ms, NULL);
        pthread_mutex_lock(&mutex);
    }
    at_once--;
    pthread_mutex_unlock(&mutex);
}

/* @return bytes that are asked for; 0: the call fails, and errno says why */
static size_t plain_call(size_t bytes, off_t offset) {
    wait_for_others();
    pthread_mutex_lock(&mutex);
    const uint64_t number = ++plain_calls;
    bytes = shorter(bytes);
    pthread_mutex_unlock(&mutex);
    errno = EINTR;
    if (every_other > 0 && number % every_other == 0) return 0;
    errno = plain_code;
    return plain_code != 0 && offset >= plain_code_at ? 0 : bytes;
}

ssize_t __real_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset) {
    bytes = plain_call(bytes, offset);
    return bytes == 0 ? -1 : __real_pread(file, to, bytes, offset);
}

ssize_t __real_pwrite(int file, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset) {
    bytes = plain_call(bytes, offset);
    return bytes == 0 ? -1 : __real_pwrite(file, from, bytes, offset);
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left) {
    (void)left;
    slept_ms += (uint64_t)time->tv_sec * 1000 + (uint64_t)time->tv_nsec / 1000000;
    return 0;
}

#if STW_WITH_URING
static int init_code, submit_code; /* what these calls give back, */
static unsigned submit_times;      /* the next so many times */
static int entry_code;             /* of every third entry, which moves nothing: 1: code 0 */
static unsigned first_batch;       /* entries of the first submission */
static bool has_probe = true;

int __real_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags) {
    return init_code != 0 ? init_code : __real_io_uring_queue_init(entries, ring, flags);
}

struct io_uring_probe *__real_io_uring_get_probe_ring(struct io_uring *ring);
struct io_uring_probe *__wrap_io_uring_get_probe_ring(struct io_uring *ring);
struct io_uring_probe *__wrap_io_uring_get_probe_ring(struct io_uring *ring) {
    return has_probe ? __real_io_uring_get_probe_ring(ring) : NULL;
}

#define SPOILT (1ull << 40) /* in what an entry carries */

int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait) {
    static unsigned number;
    const struct io_uring_sq *sq = &ring->sq;
    const struct io_uring_cq *cq = &ring->cq;
    pthread_mutex_lock(&mutex);
    if (first_batch == 0) first_batch = sq->sqe_tail - sq->sqe_head;
    if (submit_times > 0) {
        submit_times--;
        pthread_mutex_unlock(&mutex);
        return submit_code;
    }
    for (unsigned i = sq->sqe_head; i != sq->sqe_tail; i++) {
        struct io_uring_sqe *entry = &sq->sqes[i & *sq->kring_mask];
        if (entry->opcode != IORING_OP_READ && entry->opcode != IORING_OP_WRITE) continue;
        entry->len = (unsigned)shorter(entry->len);
        if (entry_code == 0 || ++number % 3 != 0) continue;
        entry->opcode = IORING_OP_NOP;
        entry->len = 0;
        entry->user_data |= SPOILT;
    }
    pthread_mutex_unlock(&mutex);
    const int taken = __real_io_uring_submit_and_wait(ring, wait);
    for (unsigned i = *cq->khead; i != __atomic_load_n(cq->ktail, __ATOMIC_ACQUIRE); i++) {
        struct io_uring_cqe *done = &cq->cqes[i & *cq->kring_mask];
        if ((done->user_data & SPOILT) == 0) continue;
        done->user_data &= ~SPOILT;
        done->res = entry_code == 1 ? 0 : entry_code;
    }
    return taken;
}
#endif

/* ---- a transfer ---- */

static const stw_nvme_method_ops *ops;
static void *method;
static stw_nvme_cells cells;
static uint64_t *sums;
static char *wrote, *memory;
static int buffered, direct;

/* A file with other bytes of every round, and its range. */
static stw_nvme_range range_of(bool writes) {
    return (stw_nvme_range){.direct = direct,
                            .buffered = buffered,
                            .writes = writes,
                            .memory = writes ? wrote : memory,
                            .offset = OFFSET,
                            .bytes = BYTES,
                            .cells = &cells,
                            .sums = sums};
}

static void write_and_read(void) {
    stw_nvme_stop stop = {0};
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < BYTES / 8; i++) ((uint64_t *)(void *)wrote)[i] = random64();
    memset(sums, 0, cells.n * sizeof *sums);
    memset(memory, 0, BYTES);
    const stw_nvme_range to = range_of(true), from = range_of(false);
    CU_ASSERT_TRUE(ops->move(method, &to, &stop));
    for (uint64_t i = 0; i < cells.n; i++) {
        const stw_nvme_cell cell = stw_nvme_cells_get(&cells, i);
        wrong += sums[i] != stw_nvme_sum(wrote + cell.first, cell.end - cell.first);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_TRUE(ops->move(method, &from, &stop));
    CU_ASSERT_EQUAL(memcmp(wrote, memory, BYTES), 0);
    CU_ASSERT_EQUAL(memory[BYTES], 0x55); /* nothing behind it */
}

/* Runs a test with each method that this system has. */
static void with_each(void (*run)(void)) {
    static const stw_nvme_method_ops *const all[] = {&stw_nvme_threads, &stw_nvme_uring};
    const uint64_t cut = CUT;
    CHECK_OK(stw_nvme_cells_make(BYTES, &cut, 1, &cells, err));
    sums = calloc(cells.n, sizeof *sums);
    CU_ASSERT_FATAL(sums != NULL && posix_memalign((void **)&wrote, 4096, BYTES + 4096) == 0 &&
                    posix_memalign((void **)&memory, 4096, BYTES + 4096) == 0);
    memory[BYTES] = 0x55;
    buffered = open("nvme_io.data", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    direct = open("nvme_io.data", O_RDWR | O_DIRECT | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(buffered >= 0);
    CU_ASSERT_EQUAL(ftruncate(buffered, (off_t)(OFFSET + BYTES)), 0);
    for (int i = 0; i < 2; i++) {
        stw_error why = STW_ERROR_INIT;
        ops = all[i];
        const stw_status status = ops->open(&method, &why);
        if (status == STW_STATUS_NOT_BUILT_IN && i == 1) {
            printf(" (without io_uring: %s) ", why.text);
            continue;
        }
        CU_ASSERT_EQUAL_FATAL(status, STW_STATUS_OK);
        run();
        ops->close(method);
        ops->close(NULL);
    }
    close(buffered);
    if (direct >= 0) close(direct);
    CU_ASSERT_EQUAL(unlink("nvme_io.data"), 0);
    stw_nvme_cells_free(&cells);
    free(sums);
    free(wrote);
    free(memory);
}

static void short_calls(void) {
    cuts_short = true;
    write_and_read();
    every_other = 2;
    write_and_read();
    cuts_short = false;
    write_and_read();
    every_other = 0;
}
static void calls_are_cut_short(void) { with_each(short_calls); }

/* Four calls of each direction are in flight at once. */
static void calls_at_once(void) {
    if (ops != &stw_nvme_threads) return;
    stw_nvme_stop stop = {0};
    write_and_read();
    for (int writes = 0; writes < 2; writes++) {
        const stw_nvme_range range = range_of(writes);
        most_at_once = 0;
        meets = 4;
        CU_ASSERT_TRUE(ops->move(method, &range, &stop));
        CU_ASSERT_EQUAL(most_at_once, 4);
        meets = 0;
    }
}
static void several_calls_at_once(void) { with_each(calls_at_once); }

/* Cells that are damaged on the disk; a file that ends; a disk that fails. */
static void failures(void) {
    stw_nvme_stop stop = {0};
    char byte = 0;
    write_and_read();
    const stw_nvme_range from = range_of(false), to = range_of(true);
    const off_t at = (off_t)(OFFSET + CUT + 3 * CELL + 9);
    CU_ASSERT_EQUAL(__real_pread(buffered, &byte, 1, at), 1);
    byte ^= 1;
    CU_ASSERT_EQUAL(__real_pwrite(buffered, &byte, 1, at), 1);
    CU_ASSERT_FALSE(ops->move(method, &from, &stop));
    CU_ASSERT_TRUE(stop.damaged);
    CU_ASSERT_EQUAL(stop.offset, OFFSET + CUT + 3 * CELL);
    CU_ASSERT_EQUAL(stop.expected, stw_nvme_sum(wrote + CUT + 3 * CELL, CELL));
    CU_ASSERT_NOT_EQUAL(stop.found, stop.expected);
    CU_ASSERT_TRUE(ops->move(method, &to, &stop));
    CU_ASSERT_TRUE(ops->move(method, &from, &stop));
    CU_ASSERT_EQUAL(ftruncate(buffered, (off_t)(OFFSET + BYTES - 100)), 0);
    CU_ASSERT_FALSE(ops->move(method, &from, &stop));
    CU_ASSERT_FALSE(stop.damaged);
    CU_ASSERT_EQUAL(stop.code, 0);
    CU_ASSERT_EQUAL(stop.offset, OFFSET + BYTES - 100);
    stw_nvme_range none = range_of(false); /* no file at all */
    none.buffered = none.direct = -1;
    CU_ASSERT_FALSE(ops->move(method, &none, &stop));
    CU_ASSERT_EQUAL(stop.code, EBADF);
    none = range_of(true);
    none.buffered = none.direct = -1;
    CU_ASSERT_FALSE(ops->move(method, &none, &stop));
    CU_ASSERT_EQUAL(stop.code, EBADF);
    CU_ASSERT_EQUAL(ftruncate(buffered, (off_t)(OFFSET + BYTES)), 0);
    if (ops == &stw_nvme_threads) {
        plain_code = EIO;
        plain_code_at = (off_t)(OFFSET + CUT + 3 * MIB);
        CU_ASSERT_FALSE(ops->move(method, &from, &stop));
        CU_ASSERT_EQUAL(stop.code, EIO);
        CU_ASSERT_TRUE(stop.offset >= OFFSET + CUT + 3 * MIB);
        CU_ASSERT_FALSE(ops->move(method, &to, &stop));
        CU_ASSERT_EQUAL(stop.code, EIO);
        plain_code = 0;
    }
    write_and_read(); /* and it goes on */
}
static void failures_are_named(void) { with_each(failures); }

/* What checksums cost: one cell alone delays its transfer where io_uring waits for it. */
static void costs(void) {
    stw_nvme_hashing hashing = {0, 0, 0};
    stw_nvme_stop stop = {0};
    stw_nvme_range one = range_of(true);
    write_and_read();
    one.bytes = CELL;
    one.hashing = &hashing;
    CU_ASSERT_TRUE(ops->move(method, &one, &stop));
    CU_ASSERT_EQUAL(hashing.bytes, CELL);
    one.writes = false;
    one.memory = memory;
    CU_ASSERT_TRUE(ops->move(method, &one, &stop));
    CU_ASSERT_EQUAL(hashing.bytes, 2 * CELL);
    CU_ASSERT_TRUE(hashing.nanoseconds > 0);
    CU_ASSERT_EQUAL(hashing.alone_nanoseconds > 0, ops == &stw_nvme_uring);
    CU_ASSERT_TRUE(hashing.alone_nanoseconds < 1000000000);
    one.bytes = 0;
    CU_ASSERT_TRUE(ops->move(method, &one, &stop));
    CU_ASSERT_EQUAL(hashing.bytes, 2 * CELL);
}
static void checksums_cost_time(void) { with_each(costs); }

#if STW_WITH_URING

static void ring_submissions(void) {
    if (ops != &stw_nvme_uring) return;
    static const struct {
        int code;
        unsigned times;
        uint64_t least_ms, most_ms; /* slept; the plain way is gone beyond */
        bool plain;
    } answers[] = {{-EINTR, 5, 0, 0, false},
                   {-EAGAIN, 7, 7, 7, false},
                   {-EBUSY, 1000, 1000, 1000, false},
                   {-EAGAIN, 1001, 1000, 1001, true},
                   {-EIO, 1, 0, 0, true}};
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        stw_nvme_stop stop = {0};
        const stw_nvme_range to = range_of(true), from = range_of(false);
        for (int reads = 0; reads < 2; reads++) {
            write_and_read(); /* there is a ring */
            if (reads) memset(memory, 0, BYTES);
            submit_code = answers[i].code;
            submit_times = answers[i].times;
            slept_ms = plain_calls = 0;
            CU_ASSERT_TRUE(ops->move(method, reads ? &from : &to, &stop));
            CU_ASSERT_EQUAL(submit_times, 0);
            CU_ASSERT_TRUE(slept_ms >= answers[i].least_ms && slept_ms <= answers[i].most_ms);
            CU_ASSERT_EQUAL(plain_calls > 0, answers[i].plain);
        }
        CU_ASSERT_EQUAL(memcmp(wrote, memory, BYTES), 0);
    }
}
static void rings_are_refused_for_a_while(void) { with_each(ring_submissions); }

static void ring_entries(void) {
    if (ops != &stw_nvme_uring) return;
    stw_nvme_stop stop = {0};
    const stw_nvme_range to = range_of(true), from = range_of(false);
    first_batch = 0;
    write_and_read();
    CU_ASSERT_EQUAL(first_batch, 14); /* all pieces: of 1 MiB, up to the cut and the end */
    first_batch = 0;
    CU_ASSERT_TRUE(ops->move(method, &from, &stop));
    CU_ASSERT_EQUAL(first_batch, 16);
    const int codes[] = {-EAGAIN, -EINTR, -EIO, 1};
    for (int i = 0; i < 4; i++) { /* the first two: not now; others fail */
        entry_code = codes[i];
        plain_calls = 0;
        if (i < 2) {
            write_and_read();
            CU_ASSERT_TRUE(plain_calls >= 14 / 3 + 48 / 3);
        } else {
            for (int reads = 0; reads < 2; reads++) {
                stop = (stw_nvme_stop){.code = 77};
                CU_ASSERT_FALSE(ops->move(method, reads ? &from : &to, &stop));
                CU_ASSERT_EQUAL(stop.code, i == 2 ? EIO : 0);
                CU_ASSERT_FALSE(stop.damaged);
                CU_ASSERT_TRUE(stop.offset >= OFFSET && stop.offset < OFFSET + BYTES);
            }
            CU_ASSERT_EQUAL(plain_calls, 0);
        }
        entry_code = 0;
    }
    entry_code = -EAGAIN; /* and the plain way fails, too */
    plain_code = EIO;
    plain_code_at = 0;
    CU_ASSERT_FALSE(ops->move(method, &from, &stop));
    CU_ASSERT_EQUAL(stop.code, EIO);
    entry_code = plain_code = 0;
    write_and_read();
}
static void entries_come_back_with_errors(void) { with_each(ring_entries); }

/* Readers of the same file at once, each with memory of its own. */
static void *read_all(void *arg) {
    stw_nvme_stop stop;
    stw_nvme_range from = range_of(false);
    from.memory = arg;
    return ops->move(method, &from, &stop) ? arg : NULL;
}

static void few_rings(void) {
    if (ops != &stw_nvme_uring) return;
    pthread_t threads[4];
    void *other = NULL;
    stw_error why = STW_ERROR_INIT;
    write_and_read();
    init_code = -ENOMEM; /* the ring that there is serves all */
    for (int i = 0; i < 4; i++) {
        void *mine = NULL;
        CU_ASSERT_EQUAL_FATAL(posix_memalign(&mine, 4096, BYTES + 4096), 0);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, read_all, mine), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *mine = NULL;
        CU_ASSERT_EQUAL(pthread_join(threads[i], &mine), 0);
        CU_ASSERT_FATAL(mine != NULL);
        CU_ASSERT_EQUAL(memcmp(wrote, mine, BYTES), 0);
        free(mine);
    }
    CU_ASSERT_EQUAL(ops->open(&other, &why), STW_STATUS_NO_MEMORY);
    CU_ASSERT_EQUAL(why.native, ENOMEM);
    submit_code = -EIO; /* it breaks, and there is no other */
    submit_times = 1;
    plain_calls = 0;
    write_and_read();
    CU_ASSERT_EQUAL(submit_times, 0);
    CU_ASSERT_TRUE(plain_calls >= 14 + 48);
    init_code = -EPERM;
    CHECK_FAILS(ops->open(&other, err), STW_STATUS_NOT_BUILT_IN,
                "this system does not allow it: Operation not permitted");
    CU_ASSERT_PTR_NULL(other);
    init_code = 0;
    has_probe = false; /* a kernel without plain reads */
    CHECK_FAILS(ops->open(&other, err), STW_STATUS_NOT_BUILT_IN, "Function not implemented");
    has_probe = true;
    submit_code = -EACCES;
    submit_times = 1;
    CHECK_FAILS(ops->open(&other, err), STW_STATUS_NOT_BUILT_IN, "Permission denied");
    CU_ASSERT_EQUAL(submit_times, 0);
}
static void rings_cannot_be_made(void) { with_each(few_rings); }

#define OF_RINGS                                                                                   \
    , {"submissions are refused", rings_are_refused_for_a_while},                                  \
        {"entries come back with errors", entries_come_back_with_errors}, {                        \
        "rings cannot be made", rings_cannot_be_made                                               \
    }
#else
#define OF_RINGS
#endif

STW_TEST_MAIN("backend nvme io", {"calls are cut short", calls_are_cut_short},
              {"several calls at once", several_calls_at_once},
              {"failures are named", failures_are_named},
              {"checksums cost time", checksums_cost_time} OF_RINGS)

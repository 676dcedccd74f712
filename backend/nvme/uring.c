/* SPDX-License-Identifier: Apache-2.0 */
/* NVMe I/O by io_uring: the calling thread keeps many pieces in flight, computes checksums while
 * they are, and sleeps in between. Each call borrows a ring of its own, so readers and writers
 * never wait for each other. */
#define _GNU_SOURCE /* what liburing.h wants */
#include "backend/nvme/io.h"

#include "stw_config.h"

#if STW_WITH_URING

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEPTH 32u       /* pieces in flight, of a ring */
#define READ_DEPTH 16u  /* of a range that is read and verified */
#define N_SLOTS 96u     /* pieces in flight, or that wait for their checksums */
#define MOST_RINGS 8u   /* of an arena; further callers wait for one */
#define MOST_BUSY 1000u /* times in a row, of a millisecond, that the kernel may lack memory */

typedef struct ring {
    struct io_uring uring;
    struct ring *next;
} ring;

typedef struct rings {
    pthread_mutex_t mutex;
    pthread_cond_t freed;
    ring *idle;
    uint32_t made, most; /* rings that exist; that may exist */
} rings;

/* A piece on its way. A slot is free again once its piece was moved and checked. */
typedef struct slot {
    stw_nvme_piece whole, rest; /* rest: not moved yet */
    bool moved, checked;
} slot;

/* One range on its way. */
typedef struct flight {
    struct io_uring *uring;
    const stw_nvme_range *range;
    stw_nvme_stop *stop;
    slot slots[N_SLOTS];
    uint32_t free_slots[N_SLOTS], n_free;
    uint32_t to_check[N_SLOTS], n_to_check; /* slots whose checksums can be computed */
    uint32_t prepared, submitted; /* entries that the kernel has not taken, has not finished */
    uint64_t next;                /* bytes of the range that slots were given for */
    bool failed, broken;          /* broken: this ring cannot be used again */
    uint32_t busy;
} flight;

static void sleep_a_millisecond(void) {
    struct timespec time = {0, 1000000};
    nanosleep(&time, NULL);
}

/* ---- rings ---- */

static void ring_free(ring *r) {
    if (r == NULL) return;
    io_uring_queue_exit(&r->uring);
    free(r);
}

/* Kernels before 5.6 have io_uring without plain reads; filters of system calls may allow the setup
 * and refuse its use: only an entry that comes back proves that it works. 0 or an errno. */
static int ring_try(struct io_uring *uring) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(uring);
    bool has = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ) &&
               io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    if (!has) return ENOSYS;
    struct io_uring_sqe *entry = io_uring_get_sqe(uring);
    struct io_uring_cqe *done = NULL;
    if (entry == NULL) return ENOSYS;
    io_uring_prep_nop(entry);
    int code = io_uring_submit_and_wait(uring, 1);
    if (code < 0) return -code;
    code = io_uring_peek_cqe(uring, &done);
    if (code < 0) return -code;
    io_uring_cqe_seen(uring, done);
    return 0;
}

static int ring_new(ring **out) {
    *out = NULL;
    ring *r = calloc(1, sizeof *r);
    if (r == NULL) return ENOMEM;
    int code = -io_uring_queue_init(DEPTH, &r->uring, 0);
    if (code != 0) {
        free(r);
        return code;
    }
    code = ring_try(&r->uring);
    if (code != 0)
        ring_free(r);
    else
        *out = r;
    return code;
}

/* An idle ring or a new one; where no more can be made, the next that is given back. NULL, with
 * *code, only where there is none to wait for. */
static ring *borrow(rings *all, int *code) {
    ring *r = NULL;
    pthread_mutex_lock(&all->mutex);
    for (;;) {
        if (all->idle != NULL) {
            r = all->idle;
            all->idle = r->next;
            break;
        }
        if (all->made < all->most) {
            all->made++;
            pthread_mutex_unlock(&all->mutex);
            *code = ring_new(&r);
            pthread_mutex_lock(&all->mutex);
            if (r != NULL) break;
            all->made--;
            if (all->made == 0) break;
            all->most = all->made;
            continue;
        }
        pthread_cond_wait(&all->freed, &all->mutex);
    }
    pthread_mutex_unlock(&all->mutex);
    return r;
}

static void give_back(rings *all, ring *r, bool broken) {
    if (broken) ring_free(r);
    pthread_mutex_lock(&all->mutex);
    if (broken) {
        all->made--;
    } else {
        r->next = all->idle;
        all->idle = r;
    }
    pthread_cond_broadcast(&all->freed);
    pthread_mutex_unlock(&all->mutex);
}

static void uring_close(void *method) {
    rings *all = method;
    if (all == NULL) return;
    while (all->idle != NULL) {
        ring *r = all->idle;
        all->idle = r->next;
        ring_free(r);
    }
    pthread_cond_destroy(&all->freed);
    pthread_mutex_destroy(&all->mutex);
    free(all);
}

static stw_status uring_open(void **out, stw_error *err) {
    *out = NULL;
    rings *all = calloc(1, sizeof *all);
    if (all == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
    all->most = MOST_RINGS;
    pthread_mutex_init(&all->mutex, NULL);
    pthread_cond_init(&all->freed, NULL);
    int code = 0;
    ring *first = borrow(all, &code);
    if (first == NULL) {
        uring_close(all);
        stw_status status = code == ENOMEM ? STW_STATUS_NO_MEMORY : STW_STATUS_NOT_BUILT_IN;
        return stw_fail_native(err, status, code, "io_uring", "this system does not allow it: %s",
                               strerror(code));
    }
    give_back(all, first, false);
    *out = all;
    return STW_STATUS_OK;
}

/* ---- pieces ---- */

static void stop_at(flight *f, stw_nvme_stop why) {
    if (!f->failed) *f->stop = why;
    f->failed = true;
}

static void free_if_done(flight *f, uint32_t index) {
    if (f->slots[index].moved && f->slots[index].checked) f->free_slots[f->n_free++] = index;
}

static void prepare(flight *f, uint32_t index) {
    const slot *s = &f->slots[index];
    char *memory = f->range->memory + s->rest.done;
    const uint64_t offset = f->range->offset + s->rest.done;
    const int file =
        stw_nvme_piece_is_direct(f->range, s->rest) ? f->range->direct : f->range->buffered;
    /* Never NULL: the ring has an entry for each piece in flight. */
    struct io_uring_sqe *entry = io_uring_get_sqe(f->uring);
    if (f->range->writes)
        io_uring_prep_write(entry, file, memory, (unsigned)s->rest.bytes, offset);
    else
        io_uring_prep_read(entry, file, memory, (unsigned)s->rest.bytes, offset);
    io_uring_sqe_set_data64(entry, index);
    f->prepared++;
}

static void fill(flight *f) {
    const bool verifies = !f->range->writes && f->range->cells != NULL;
    const uint32_t depth = verifies ? READ_DEPTH : DEPTH;
    while (!f->failed && f->n_free > 0 && f->prepared + f->submitted < depth &&
           f->next < f->range->bytes) {
        uint32_t index = f->free_slots[--f->n_free];
        slot *s = &f->slots[index];
        s->whole = s->rest = stw_nvme_piece_at(f->range, f->next);
        s->moved = false;
        s->checked = f->range->cells == NULL;
        f->next += s->whole.bytes;
        prepare(f, index);
        if (f->range->writes && !s->checked) f->to_check[f->n_to_check++] = index;
    }
}

/* All of a piece was moved, or it failed. */
static void settle(flight *f, uint32_t index) {
    slot *s = &f->slots[index];
    s->moved = true;
    if (f->failed && !f->range->writes) s->checked = true; /* there is nothing to compare */
    if (!f->range->writes && !s->checked) f->to_check[f->n_to_check++] = index;
    free_if_done(f, index);
}

/* One entry came back with `result`: bytes, or minus an errno. */
static void finish(flight *f, uint32_t index, int result) {
    slot *s = &f->slots[index];
    if (result == -EAGAIN || result == -EINTR) {
        /* Not now, says the kernel: this piece the plain way. */
        stw_nvme_stop stop;
        if (!stw_nvme_move_piece(f->range, s->rest, &stop)) stop_at(f, stop);
    } else {
        const bool direct = stw_nvme_piece_is_direct(f->range, s->rest);
        uint64_t counts =
            result > 0 ? stw_nvme_progress(direct, (uint64_t)result, s->rest.bytes) : 0;
        if (counts == 0) {
            stop_at(f, (stw_nvme_stop){.code = result < 0 ? -result : 0,
                                       .offset = f->range->offset + s->rest.done});
        } else if (counts < s->rest.bytes) {
            s->rest.done += counts;
            s->rest.bytes -= counts;
            if (!f->failed) {
                prepare(f, index);
                return;
            }
        }
    }
    settle(f, index);
}

static void reap(flight *f) {
    struct io_uring_cqe *done = NULL;
    while (f->submitted > 0 && io_uring_peek_cqe(f->uring, &done) == 0) {
        uint32_t index = (uint32_t)io_uring_cqe_get_data64(done);
        int result = done->res;
        io_uring_cqe_seen(f->uring, done);
        f->submitted--;
        finish(f, index, result);
    }
}

/* Hand the prepared entries over; where there is nothing else to do, wait until one comes back. */
static void submit(flight *f) {
    const bool waits = f->n_to_check == 0;
    if (f->prepared == 0 && !(waits && f->submitted > 0)) return;
    int taken = io_uring_submit_and_wait(f->uring, waits ? 1 : 0);
    if (taken >= 0) {
        f->prepared -= (uint32_t)taken;
        f->submitted += (uint32_t)taken;
        f->busy = 0;
    } else if (taken == -EINTR) {
        return;
    } else if ((taken == -EAGAIN || taken == -EBUSY) && f->busy < MOST_BUSY) {
        f->busy++;
        sleep_a_millisecond();
    } else {
        f->broken = true;
    }
}

/* The checksums of one piece, while others are on their way. (Handing the last ones to other
 * threads costs more than it saves: a piece takes 30 us, waking a thread longer.) */
static void check(flight *f) {
    if (f->n_to_check == 0) return;
    const bool alone = f->prepared + f->submitted == 0;
    const uint64_t start = alone ? stw_nvme_now_ns() : 0;
    const uint32_t index = f->to_check[--f->n_to_check];
    slot *s = &f->slots[index];
    stw_nvme_stop stop;
    if ((!f->failed || f->range->writes) && !stw_nvme_piece_check(f->range, s->whole, &stop))
        stop_at(f, stop);
    s->checked = true;
    free_if_done(f, index);
    if (alone && f->range->hashing != NULL)
        atomic_fetch_add(&f->range->hashing->alone_nanoseconds, stw_nvme_now_ns() - start);
}

/* Memory that the kernel still reads or writes must not be given back to its owner. */
static void drain(flight *f) {
    while (f->submitted > 0) {
        sleep_a_millisecond();
        reap(f);
    }
}

static bool uring_move(void *method, const stw_nvme_range *range, stw_nvme_stop *stop) {
    rings *all = method;
    flight f = {.range = range, .stop = stop, .n_free = N_SLOTS};
    for (uint32_t i = 0; i < N_SLOTS; i++) f.free_slots[i] = i;
    int code = 0;
    ring *r = borrow(all, &code);
    if (r == NULL) return stw_nvme_move_here(range, stop);
    f.uring = &r->uring;
    for (;;) {
        fill(&f);
        if (f.prepared + f.submitted + f.n_to_check == 0) break;
        submit(&f);
        if (f.broken) break;
        reap(&f);
        check(&f);
    }
    if (f.broken) drain(&f);
    give_back(all, r, f.broken);
    if (f.broken && !f.failed) return stw_nvme_move_here(range, stop);
    return !f.failed;
}

#else /* without liburing */

static stw_status uring_open(void **out, stw_error *err) {
    *out = NULL;
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "io_uring", "this build has no liburing");
}

static void uring_close(void *method) { (void)method; }

static bool uring_move(void *method, const stw_nvme_range *range, stw_nvme_stop *stop) {
    (void)method;
    return stw_nvme_move_here(range, stop);
}

#endif

const stw_nvme_method_ops stw_nvme_uring = {"io_uring", uring_open, uring_close, uring_move};

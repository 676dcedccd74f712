/* SPDX-License-Identifier: Apache-2.0 */
/* NVMe I/O without io_uring: pread and pwrite by a few threads. Reads and writes have threads of
 * their own, so that neither waits for the other's pieces. While one of them computes a checksum,
 * the others' pieces are under way. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>

#include "backend/host/pool.h"
#include "backend/nvme/io.h"
#include "core/checked.h"

/* Calls in flight in each direction, the caller's own among them. */
#define N_THREADS 4u

typedef struct pools {
    stw_threads *reads, *writes;
} pools;

/* One range on its way: each thread takes the next piece until none is left. */
typedef struct transfer {
    const stw_nvme_range *range;
    stw_nvme_stop *stop;
    pthread_mutex_t mutex; /* of the two below and of *stop */
    uint64_t next;
    bool failed;
} transfer;

static bool move_one(const stw_nvme_range *range, stw_nvme_piece piece, stw_nvme_stop *stop) {
    if (range->writes)
        return stw_nvme_piece_check(range, piece, stop) && stw_nvme_move_piece(range, piece, stop);
    return stw_nvme_move_piece(range, piece, stop) && stw_nvme_piece_check(range, piece, stop);
}

static void take_pieces(void *arg, uint64_t first, uint64_t count) {
    transfer *t = arg;
    (void)first;
    (void)count;
    pthread_mutex_lock(&t->mutex);
    while (!t->failed && t->next < t->range->bytes) {
        const stw_nvme_piece piece = stw_nvme_piece_at(t->range, t->next);
        t->next += piece.bytes;
        pthread_mutex_unlock(&t->mutex);
        stw_nvme_stop stop;
        bool moved = move_one(t->range, piece, &stop);
        pthread_mutex_lock(&t->mutex);
        if (!moved && !t->failed) {
            t->failed = true;
            *t->stop = stop;
        }
    }
    pthread_mutex_unlock(&t->mutex);
}

static void threads_close(void *method) {
    pools *p = method;
    if (p == NULL) return;
    stw_threads_free(p->reads);
    stw_threads_free(p->writes);
    free(p);
}

static stw_status threads_open(void **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    pools *p = calloc(1, sizeof *p);
    if (p == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
    STW_TRY(stw_threads_new(N_THREADS, &p->reads, err));
    STW_TRY(stw_threads_new(N_THREADS, &p->writes, err));
    *out = p;
    p = NULL;
out:
    threads_close(p);
    return status;
}

static bool threads_move(void *method, const stw_nvme_range *range, stw_nvme_stop *stop) {
    pools *p = method;
    uint64_t pieces = stw_div_up_u64(range->bytes, STW_NVME_PIECE_BYTES); /* at least */
    if (pieces <= 1) return stw_nvme_move_here(range, stop);
    transfer t = {.range = range, .stop = stop};
    pthread_mutex_init(&t.mutex, NULL);
    /* The items are threads, not pieces: who comes late finds the pieces taken. */
    stw_threads_for(range->writes ? p->writes : p->reads, stw_min_u64(pieces, N_THREADS), 1,
                    take_pieces, &t);
    pthread_mutex_destroy(&t.mutex);
    return !t.failed;
}

const stw_nvme_method_ops stw_nvme_threads = {"threads", threads_open, threads_close, threads_move};

/* SPDX-License-Identifier: Apache-2.0 */
/* NVMe I/O without io_uring: pread and pwrite by a few threads. Reads and writes have threads of
 * their own, so that neither waits for the other's pieces. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

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

bool stw_nvme_move_here(const stw_nvme_range *range, stw_nvme_stop *stop) {
    for (uint64_t done = 0; done < range->bytes;) {
        uint64_t left = range->bytes - done;
        size_t part = (size_t)stw_min_u64(left, STW_NVME_PIECE_BYTES);
        off_t at = (off_t)(range->offset + done);
        ssize_t moved = range->writes ? pwrite(range->file, range->memory + done, part, at)
                                      : pread(range->file, range->memory + done, part, at);
        if (moved < 0 && errno == EINTR) continue;
        uint64_t counts =
            moved > 0 ? stw_nvme_progress(range->direct, (uint64_t)moved, (uint64_t)part) : 0;
        if (counts == 0) {
            *stop = (stw_nvme_stop){moved < 0 ? errno : 0, (uint64_t)at};
            return false;
        }
        done += counts;
    }
    return true;
}

static void take_pieces(void *arg, uint64_t first, uint64_t count) {
    transfer *t = arg;
    (void)first;
    (void)count;
    pthread_mutex_lock(&t->mutex);
    while (!t->failed && t->next < t->range->bytes) {
        stw_nvme_range piece = *t->range;
        piece.memory += t->next;
        piece.offset += t->next;
        piece.bytes = stw_min_u64(t->range->bytes - t->next, STW_NVME_PIECE_BYTES);
        t->next += piece.bytes;
        pthread_mutex_unlock(&t->mutex);
        stw_nvme_stop stop;
        bool moved = stw_nvme_move_here(&piece, &stop);
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
    uint64_t pieces = stw_div_up_u64(range->bytes, STW_NVME_PIECE_BYTES);
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

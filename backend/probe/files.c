/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of files in the page cache, as a load does them: threads of one rank, and of as many ranks
 * as there are GPUs at once, read parts of a file into slots of staging of their own. */
#define _GNU_SOURCE /* memfd_create */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/probe/probe.h"
#include "backend/readers.h"
#include "core/checked.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define PIECE_BYTES (16 * MIB) /* a piece of bf16 weights */
#define SLOTS 3
#define MOST_RANKS 16

typedef struct reader {
    pthread_t thread;
    stw_threads *threads;
    unsigned char *slots; /* [SLOTS x PIECE_BYTES] */
    int file;
    uint64_t first, bytes; /* of the file, its part */
    uint64_t piece;        /* under way */
    unsigned char *to;
    atomic_bool failed;
    double seconds, bps;
    const atomic_int *go;
} reader;

static bool move_all(int file, bool write, unsigned char *at, uint64_t offset, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = write ? pwrite(file, at + done, (size_t)(bytes - done), (off_t)(offset + done))
                          : pread(file, at + done, (size_t)(bytes - done), (off_t)(offset + done));
        if (n <= 0) return false;
        done += (uint64_t)n;
    }
    return true;
}

static void read_part(void *arg, uint64_t first, uint64_t count) {
    reader *r = arg;
    if (!move_all(r->file, false, r->to + first, r->piece + first, count))
        atomic_store(&r->failed, true);
}

static void write_part(void *arg, uint64_t first, uint64_t count) {
    reader *r = arg;
    if (!move_all(r->file, true, r->slots, r->first + first, count)) atomic_store(&r->failed, true);
}

static void *read_for_a_while(void *arg) {
    reader *r = arg;
    uint64_t done = 0, slot = 0;
    while (atomic_load(r->go) == 0) (void)sched_yield();
    double start = stw_process_now_s(), spent = 0;
    do {
        r->piece = r->first + done % r->bytes;
        r->to = r->slots + slot % SLOTS * PIECE_BYTES;
        stw_threads_for(r->threads, PIECE_BYTES, STW_READ_BYTES, read_part, r);
        done += PIECE_BYTES;
        slot++;
        spent = stw_process_now_s() - start;
    } while (spent < r->seconds && atomic_load(r->go) > 0);
    r->bps = spent > 0 ? (double)done / spent : 0;
    return NULL;
}

/* @return bytes per second of all together; 0 where a thread could not be started */
static double read_together(reader *readers, uint32_t n, double seconds) {
    atomic_int go = 0;
    uint32_t started = 0;
    double bps = 0;
    for (; started < n; started++) {
        readers[started].go = &go;
        readers[started].seconds = seconds;
        if (pthread_create(&readers[started].thread, NULL, read_for_a_while, &readers[started]) !=
            0)
            break;
    }
    atomic_store(&go, started < n ? -1 : 1);
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(readers[i].thread, NULL);
        bps += readers[i].bps;
        if (atomic_load(&readers[i].failed)) started = 0;
    }
    return started == n ? bps : 0;
}

static void close_readers(reader *readers, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        stw_threads_free(readers[i].threads);
        free(readers[i].slots);
    }
}

/* Threads, slots, and each reader's part of the file, written by its threads. */
static bool open_readers(reader *readers, uint32_t n, uint32_t threads, int file, uint64_t bytes) {
    for (uint32_t i = 0; i < n; i++) {
        reader *r = &readers[i];
        r->file = file;
        r->first = i * bytes;
        r->bytes = bytes;
        void *slots = NULL;
        if (posix_memalign(&slots, 2 * MIB, SLOTS * PIECE_BYTES) != 0) return false;
        r->slots = slots;
        (void)memset(r->slots, 0x3A, SLOTS * PIECE_BYTES);
        if (stw_threads_new(threads, &r->threads, NULL) != STW_STATUS_OK) return false;
        stw_threads_for(r->threads, bytes, STW_READ_BYTES, write_part, r);
        if (atomic_load(&r->failed)) return false;
    }
    return true;
}

/* @return the median of several runs, 0 on failure */
static double measure(const stw_probe *probe, reader *readers, uint32_t n, const char *detail) {
    stw_sample sample = stw_sample_make("file read", detail, "B/s");
    (void)read_together(readers, n, 0);
    for (int i = 0; i < (int)stw_probe_pick(probe, 3, 5); i++) {
        double bps = read_together(readers, n, stw_probe_seconds(probe, 0.1, 0.3));
        if (bps > 0) stw_sample_add(&sample, bps);
    }
    return sample.n > 0 ? stw_probe_keep_rate(probe, &sample) : 0;
}

/* One rank alone has more threads than one of several. */
static void measure_ranks(const stw_probe *probe, uint32_t ranks, int file, uint64_t bytes,
                          double *bps) {
    reader readers[MOST_RANKS];
    char detail[64];
    uint32_t threads = stw_reader_threads(stw_threads_cores(), ranks);
    memset(readers, 0, sizeof readers);
    snprintf(detail, sizeof detail, "page-cached, %u rank%s of %u threads", ranks,
             ranks == 1 ? "" : "s", threads);
    if (open_readers(readers, ranks, threads, file, bytes / ranks / PIECE_BYTES * PIECE_BYTES))
        *bps = measure(probe, readers, ranks, detail);
    close_readers(readers, ranks);
}

void stw_probe_files(const stw_probe *probe, stw_cluster *out) {
    uint32_t ranks = out->gpus < 1 ? 1 : out->gpus < MOST_RANKS ? out->gpus : MOST_RANKS;
    uint64_t bytes = stw_max_u64(2 * GIB, 4 * out->host.cache_bytes);
    bytes = stw_min_u64(stw_min_u64(bytes, probe->room_bytes / 2), probe->most_bytes);
    bytes = stw_max_u64(bytes, ranks * PIECE_BYTES);
    int file = memfd_create("stowage-calibrate", MFD_CLOEXEC);
    stw_probe_progress(probe, STW_PROBE_PART_FILES, 0, "reads of page-cached files");
    if (file < 0) return;
    if (ftruncate(file, (off_t)bytes) == 0) {
        measure_ranks(probe, 1, file, bytes, &out->host.file_read_rank_bps);
        if (ranks > 1)
            measure_ranks(probe, ranks, file, bytes, &out->host.file_read_bps);
        else
            out->host.file_read_bps = out->host.file_read_rank_bps;
    }
    (void)close(file);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The disk's part of a calibration: the NVMe arena as a run uses it, in pieces of a bucket's size,
 * each way alone and then both at once. Writing is timed until the disk has the data. What is
 * measured has been written before: the first writes into new blocks cost the file system more. */
#define _GNU_SOURCE /* madvise */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include "backend/element.h"
#include "backend/nvme/names.h"
#include "backend/nvme/nvme.h"
#include "backend/probe/probe.h"
#include "core/checked.h"
#include "core/log.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define PIECE_BYTES (32 * MIB)
#define RING_SLOTS 2
#define HUGE_BYTES (2 * MIB)

static uint64_t free_bytes(const char *folder) {
    struct statvfs room;
    if (statvfs(folder, &room) != 0) return 0;
    return (uint64_t)room.f_bavail * room.f_frsize;
}

/* Half of what is free, if the folder is on a disk that takes direct writes and not in memory. */
uint64_t stw_probe_disk_capacity(const char *named) {
    const char *folder = stw_nvme_folder(named);
    const stw_nvme_options options = {.folder = folder, .bytes = STW_NVME_ALIGN_BYTES, .copies = 1};
    stw_nvme *nvme = NULL;
    void *block = NULL;
    bool direct = false;
    if (stw_nvme_folder_is_memory(folder) || stw_nvme_open(&options, &nvme, NULL) != STW_STATUS_OK)
        return 0;
    if (posix_memalign(&block, STW_NVME_ALIGN_BYTES, STW_NVME_ALIGN_BYTES) == 0) {
        memset(block, 1, STW_NVME_ALIGN_BYTES);
        direct = stw_nvme_write(nvme, 0, block, STW_NVME_ALIGN_BYTES, NULL) == STW_STATUS_OK &&
                 stw_nvme_is_direct(nvme);
        free(block);
    }
    stw_nvme_close(nvme);
    return direct ? free_bytes(folder) / 2 / GIB * GIB : 0;
}

/* ---- rates ---- */

/* Turns that the slots of a step's ring would force on a reader and a writer (each has memory of
 * its own here): as many pieces are written as were read, and reading is two ahead at most. */
typedef struct ring {
    pthread_mutex_t mutex;
    pthread_cond_t turn;
    uint64_t read, written; /* pieces */
    bool ended;             /* no more are read, or one of both failed */
} ring;

/* One direction over the file, cyclically, for a while. */
typedef struct lane {
    stw_nvme *nvme;
    unsigned char *piece; /* PIECE_BYTES, aligned */
    uint64_t bytes;       /* of the file, whole pieces */
    double seconds;
    bool writes, once; /* once: no further than the end of the file */
    ring *ring;        /* both directions at once, else NULL */
    uint64_t moved;
    double spent_s;
    stw_status status;
    stw_error error;
} lane;

/* Waits for a slot. @return false when there is none to come */
static bool take_slot(const lane *l) {
    ring *r = l->ring;
    if (r == NULL) return true;
    pthread_mutex_lock(&r->mutex);
    while (!r->ended && (l->writes ? r->written == r->read : r->read == r->written + RING_SLOTS))
        pthread_cond_wait(&r->turn, &r->mutex);
    bool has_slot = l->writes ? r->written < r->read : !r->ended;
    pthread_mutex_unlock(&r->mutex);
    return has_slot;
}

static void pass_slot(const lane *l, bool ends) {
    ring *r = l->ring;
    if (r == NULL) return;
    pthread_mutex_lock(&r->mutex);
    if (l->writes)
        r->written++;
    else
        r->read++;
    if (ends) r->ended = true;
    pthread_cond_broadcast(&r->turn);
    pthread_mutex_unlock(&r->mutex);
}

/* A step's reads and writes lie in two copies of the state: apart. */
static stw_status move_piece(lane *l) {
    uint64_t at = (l->moved + (l->ring != NULL && l->writes ? l->bytes / 2 : 0)) % l->bytes;
    at = at / PIECE_BYTES * PIECE_BYTES;
    return l->writes ? stw_nvme_write(l->nvme, at, l->piece, PIECE_BYTES, &l->error)
                     : stw_nvme_read(l->nvme, at, l->piece, PIECE_BYTES, &l->error);
}

static void *run_lane(void *arg) {
    lane *l = arg;
    double start = stw_process_now_s();
    bool ends = false;
    l->moved = 0;
    l->status = STW_STATUS_OK;
    l->error = (stw_error)STW_ERROR_INIT;
    while (!ends && take_slot(l)) {
        l->status = move_piece(l);
        l->moved += PIECE_BYTES;
        l->spent_s = stw_process_now_s() - start;
        /* The writer of a ring ends when its reader has. */
        bool enough = l->spent_s >= l->seconds && (l->ring == NULL || !l->writes);
        ends = l->status != STW_STATUS_OK || enough || (l->once && l->moved >= l->bytes);
        pass_slot(l, ends);
    }
    if (l->status != STW_STATUS_OK) return NULL;
    if (l->writes) l->status = stw_nvme_commit(l->nvme, 0, &l->error); /* one copy: only waits */
    l->spent_s = stw_process_now_s() - start;
    return NULL;
}

static double bps_of(const lane *l) {
    return l->status == STW_STATUS_OK && l->spent_s > 0 ? (double)l->moved / l->spent_s : 0;
}

/* Both at once, through a ring. @return bytes read and written per second, 0 on failure */
static double run_both(lane *reader, lane *writer) {
    pthread_t thread;
    ring r = {.mutex = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER};
    reader->ring = writer->ring = &r;
    double bps = 0;
    if (pthread_create(&thread, NULL, run_lane, writer) == 0) {
        (void)run_lane(reader);
        (void)pthread_join(thread, NULL);
        if (bps_of(reader) > 0 && bps_of(writer) > 0)
            bps = (double)(reader->moved + writer->moved) / writer->spent_s;
    }
    reader->ring = writer->ring = NULL;
    return bps;
}

static stw_sample sample_of(const stw_nvme *nvme, const char *what) {
    char detail[64];
    snprintf(detail, sizeof detail, "32 MiB, %s, %s", stw_nvme_method(nvme),
             stw_nvme_is_direct(nvme) ? "direct" : "page cache");
    return stw_sample_make(what, detail, "B/s");
}

/* A failed run adds nothing. */
static void add(stw_sample *sample, double bps) {
    if (bps > 0) stw_sample_add(sample, bps);
}

/* Nothing that a disk or a file system could compress. */
static void fill(void *to, uint64_t bytes) {
    uint64_t *words = to;
    for (uint64_t i = 0; i < bytes / sizeof *words; i++) words[i] = stw_mix64(i);
}

static void measure_file(const stw_probe *probe, stw_nvme *nvme, uint64_t bytes,
                         unsigned char *pieces, stw_cluster *out) {
    lane reader = {.nvme = nvme, .piece = pieces, .bytes = bytes};
    lane writer = {.nvme = nvme, .piece = pieces + PIECE_BYTES, .bytes = bytes, .writes = true};
    int runs = (int)stw_probe_pick(probe, 1, 3);
    /* Into new blocks; and where that is slow, what follows stays inside what was written. */
    writer.once = true;
    writer.seconds = stw_probe_seconds_left(probe, 0.6, stw_probe_pick(probe, 2, 5));
    (void)run_lane(&writer);
    stw_sample first = sample_of(nvme, "disk, first write");
    add(&first, bps_of(&writer));
    (void)stw_probe_keep(probe, &first);
    if (writer.status != STW_STATUS_OK) {
        stw_log(STW_LOG_WARN, "the disk is not measured: %s", writer.error.text);
        return;
    }
    reader.bytes = writer.bytes = stw_min_u64(bytes, writer.moved);
    writer.once = false;
    stw_sample read = sample_of(nvme, "disk, read"), write = sample_of(nvme, "disk, write");
    stw_sample both = sample_of(nvme, "disk, read and write");
    for (int i = 0; i < runs; i++) {
        stw_probe_progress(probe, STW_PROBE_PART_DISK, (0.5 + i) / (runs + 0.5), "disk");
        reader.seconds = writer.seconds = stw_probe_seconds(probe, 0.4, 2);
        (void)run_lane(&writer);
        add(&write, bps_of(&writer));
        (void)run_lane(&reader);
        add(&read, bps_of(&reader));
        /* Longer, since steps do this and some disks keep their first rate for a moment only. */
        reader.seconds = writer.seconds = stw_probe_seconds_left(probe, 1, 5);
        add(&both, run_both(&reader, &writer));
    }
    double read_bps = stw_probe_keep(probe, &read), write_bps = stw_probe_keep(probe, &write);
    if (read_bps > 0) out->nvme.read_bps = read_bps;
    if (write_bps > 0) out->nvme.write_bps = write_bps;
    out->nvme.both_bps = stw_probe_keep(probe, &both);
}

void stw_probe_disk(const stw_probe *probe, stw_cluster *out) {
    const char *folder = stw_nvme_folder(probe->nvme_folder);
    stw_nvme *nvme = NULL;
    void *pieces = NULL;
    stw_error error = STW_ERROR_INIT;
    stw_probe_progress(probe, STW_PROBE_PART_DISK, 0, "disk");
    out->nvme.capacity_bytes = stw_probe_disk_capacity(probe->nvme_folder);
    uint64_t bytes = stw_min_u64(4 * GIB, free_bytes(folder) / 4);
    bytes = stw_min_u64(bytes, probe->most_bytes) / PIECE_BYTES * PIECE_BYTES;
    const stw_nvme_options options = {.folder = folder, .bytes = bytes, .copies = 1};
    if (bytes == 0) {
        stw_log(STW_LOG_WARN,
                "%s has no room for a file of 32 MiB in a quarter of what is free: "
                "the disk is not measured",
                folder);
    } else if (stw_nvme_folder_is_memory(folder)) {
        stw_log(STW_LOG_WARN, "%s is memory and no disk: --nvme FOLDER or TMPDIR names another one",
                folder);
    } else if (stw_nvme_open(&options, &nvme, &error) != STW_STATUS_OK) {
        stw_log(STW_LOG_WARN, "the disk is not measured: %s", error.text);
    } else if (posix_memalign(&pieces, HUGE_BYTES, 2 * PIECE_BYTES) == 0) {
        /* A run's memory: a disk takes whole huge pages in fewer parts. */
        (void)madvise(pieces, 2 * PIECE_BYTES, MADV_HUGEPAGE);
        fill(pieces, 2 * PIECE_BYTES);
        measure_file(probe, nvme, bytes, pieces, out);
    }
    free(pieces);
    stw_nvme_close(nvme);
}

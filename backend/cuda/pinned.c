/* SPDX-License-Identifier: Apache-2.0 */
/* Page-locked host memory: mapped here, or the caller's. */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MADV_HUGEPAGE */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cuda/device.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/units.h"

#define HUGE_BYTES (2ull << 20)
#define TOUCH_BYTES 4096u /* the smallest page there is */

static void touch(void *arg, uint64_t first, uint64_t count) {
    volatile unsigned char *data = arg;
    for (uint64_t i = first; i < first + count; i += TOUCH_BYTES) data[i] = 0;
}

/* Map `bytes` (whole pages) on a huge-page boundary and not a page more: what is not mapped cannot
 * be rounded up to a huge page. */
static bool map_exactly(stw_cuda_pinned *pinned, uint64_t bytes) {
    uint64_t room = bytes + HUGE_BYTES;
    if (room < bytes || room > SIZE_MAX) return false;
    void *mapping =
        mmap(NULL, (size_t)room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return false;
    unsigned char *first = mapping;
    uint64_t before = (HUGE_BYTES - (uintptr_t)first % HUGE_BYTES) % HUGE_BYTES;
    uint64_t after = room - before - bytes;
    if (before > 0) (void)munmap(first, (size_t)before);
    if (after > 0) (void)munmap(first + before + bytes, (size_t)after);
    pinned->mapping = first + before;
    pinned->mapping_bytes = bytes;
    return true;
}

/* Piece after piece is touched by a thread of its own with the pool's help, while the caller
 * page-locks those that are ready: the system zeroes pages on many cores, the driver locks them on
 * one, and neither waits for the other. */
typedef struct toucher {
    stw_threads *threads;
    const stw_cpus *cpus; /* NULL: anywhere */
    unsigned char *data;
    uint64_t bytes;
    atomic_bool stop;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t more;
    uint64_t touched; /* bytes from `data` on that are ready */
    double spent_s;
} toucher;

static void touch_pieces(toucher *t) {
    double start = stw_process_now_s();
    for (uint64_t at = 0; at < t->bytes && !atomic_load(&t->stop);) {
        uint64_t part = stw_min_u64(t->bytes - at, STW_CUDA_REGISTER_BYTES);
        stw_threads_for(t->threads, part, HUGE_BYTES, touch, t->data + at);
        at += part;
        pthread_mutex_lock(&t->mutex);
        t->touched = at;
        t->spent_s = stw_process_now_s() - start;
        pthread_cond_signal(&t->more);
        pthread_mutex_unlock(&t->mutex);
    }
}

static void *run_toucher(void *arg) {
    toucher *t = arg;
    if (t->cpus != NULL) stw_cpus_keep(t->cpus); /* where that fails pages only lie farther off */
    touch_pieces(t);
    return NULL;
}

static void wait_touched(toucher *t, uint64_t bytes) {
    pthread_mutex_lock(&t->mutex);
    while (t->touched < bytes) (void)pthread_cond_wait(&t->more, &t->mutex);
    pthread_mutex_unlock(&t->mutex);
}

/* Touch and page-lock all of a mapping. */
static stw_status lock_pages(stw_cuda_pinned *pinned, stw_threads *threads, const stw_cpus *cpus,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double start = stw_process_now_s(), register_s = 0;
    pthread_t thread;
    toucher t = {
        .threads = threads, .cpus = cpus, .data = pinned->mapping, .bytes = pinned->mapping_bytes};
    pthread_mutex_init(&t.mutex, NULL);
    pthread_cond_init(&t.more, NULL);
    bool started = pthread_create(&thread, NULL, run_toucher, &t) == 0;
    if (!started) touch_pieces(&t);
    while (pinned->registered < t.bytes) {
        uint64_t part = stw_min_u64(t.bytes - pinned->registered, STW_CUDA_REGISTER_BYTES);
        wait_touched(&t, pinned->registered + part);
        double before = stw_process_now_s();
        STW_CUDA_TRY(cudaHostRegister(pinned->mapping + pinned->registered, (size_t)part,
                                      cudaHostRegisterPortable | cudaHostRegisterMapped),
                     "page-locking host memory");
        pinned->registered += part;
        register_s += stw_process_now_s() - before;
    }
out:
    atomic_store(&t.stop, true);
    if (started) (void)pthread_join(thread, NULL);
    if (status == STW_STATUS_OK)
        stw_log(STW_LOG_DEBUG,
                "page-locked %llu bytes in %.3f s: touched by %u threads in %.3f s, registered in "
                "%.3f s",
                (unsigned long long)t.bytes, stw_process_now_s() - start,
                threads != NULL ? stw_threads_count(threads) : 1u, t.spent_s, register_s);
    pthread_cond_destroy(&t.more);
    pthread_mutex_destroy(&t.mutex);
    return status;
}

stw_status stw_cuda_pinned_new_on(stw_cuda_pinned *pinned, uint64_t bytes, stw_threads *threads,
                                  const stw_cpus *cpus, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    memset(pinned, 0, sizeof *pinned);
    if (bytes == 0) return STW_STATUS_OK;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t whole = 0;
    STW_TRY(stw_add_u64(bytes, page - 1, &whole, "host arena in whole pages", err));
    whole = whole / page * page;
    if (!map_exactly(pinned, whole)) {
        char need[32];
        int code = errno;
        stw_bytes_format(bytes, need, sizeof need);
        STW_TRY(stw_fail_native(err, STW_STATUS_NO_RESOURCES, code, "host",
                                "the system refuses to map %s: %s", need, strerror(code)));
    }
    (void)madvise(pinned->mapping, (size_t)whole, MADV_HUGEPAGE); /* a wish, not a need */
    pinned->data = pinned->mapping;
    pinned->bytes = bytes;
    STW_TRY(lock_pages(pinned, threads, cpus, err));
out:
    return status;
}

stw_status stw_cuda_pinned_new(stw_cuda_pinned *pinned, uint64_t bytes, stw_threads *threads,
                               stw_error *err) {
    return stw_cuda_pinned_new_on(pinned, bytes, threads, NULL, err);
}

/* ---- memory that the caller owns ---- */

static stw_status look_at(const unsigned char *at, bool *locked, bool *mapped, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    struct cudaPointerAttributes about;
    STW_CUDA_TRY(cudaPointerGetAttributes(&about, at), "looking at the caller's host memory");
    if (about.type != cudaMemoryTypeUnregistered && about.type != cudaMemoryTypeHost)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "host",
                         "found %s memory at %p, expected host memory",
                         about.type == cudaMemoryTypeDevice ? "GPU" : "managed", (const void *)at));
    *locked = about.type == cudaMemoryTypeHost;
    *mapped = about.devicePointer == at;
out:
    return status;
}

stw_status stw_cuda_pinned_look(unsigned char *address, uint64_t bytes, bool *locked, bool *mapped,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool last_locked = false, last_mapped = false;
    STW_TRY(look_at(address, locked, mapped, err));
    STW_TRY(look_at(address + bytes - 1, &last_locked, &last_mapped, err));
    if (*locked != last_locked)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "host",
                         "found the caller's memory of %llu bytes page-locked in part, expected "
                         "all of it or none",
                         (unsigned long long)bytes));
    *mapped = !*locked || (*mapped && last_mapped);
out:
    return status;
}

stw_status stw_cuda_pinned_take(stw_cuda_pinned *pinned, unsigned char *address, uint64_t bytes,
                                bool locked, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    memset(pinned, 0, sizeof *pinned);
    pinned->data = address;
    pinned->bytes = bytes;
    while (!locked && pinned->registered < bytes) {
        uint64_t part = stw_min_u64(bytes - pinned->registered, STW_CUDA_REGISTER_BYTES);
        STW_CUDA_TRY(cudaHostRegister(address + pinned->registered, (size_t)part,
                                      cudaHostRegisterPortable | cudaHostRegisterMapped),
                     "page-locking the caller's host memory");
        pinned->registered += part;
    }
out:
    return status;
}

void stw_cuda_pinned_free(stw_cuda_pinned *pinned) {
    for (uint64_t at = 0; at < pinned->registered; at += STW_CUDA_REGISTER_BYTES)
        (void)cudaHostUnregister(pinned->data + at);
    if (pinned->mapping != NULL) (void)munmap(pinned->mapping, (size_t)pinned->mapping_bytes);
    memset(pinned, 0, sizeof *pinned);
}

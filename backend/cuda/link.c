/* SPDX-License-Identifier: Apache-2.0 */
/* What the GPU's link does by itself: copies up and down at once, in a shape that the caller
 * chooses. Upwards the host arena is read from its start to its end and over again. Downwards a
 * buffer of its own is written in the same way; in a ring the copies return to where they came
 * from. Neither changes any state. Both memories are walked on from call to call and are far larger
 * than the CPU's caches, as a step's state is. Everything is made on first use and left out of what
 * `info` says. */
#include <stdlib.h>

#include "backend/cuda/device.h"
#include "backend/limits.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/log.h"

#define MIB (1ull << 20)
#define MOST_DOWN_BYTES (4096 * MIB)
#define LEAST_DOWN_BYTES (256 * MIB)
#define SLOTS 4u /* of GPU memory per direction, used in turn */
#define MAX_STREAMS 16u
#define MAX_RING (2 * SLOTS)

/* One direction. */
typedef struct direction {
    cudaStream_t streams[MAX_STREAMS];
    uint32_t n_streams;
    unsigned char *host; /* page-locked from here on, in pieces */
    uint64_t host_bytes;
    uint64_t at;          /* where the next copy begins in it */
    unsigned char *slots; /* GPU memory */
    enum cudaMemcpyKind kind;
} direction;

struct stw_cuda_link {
    direction up, down;
    stw_cuda_pinned buffer; /* what comes down */
    unsigned char *gpu;     /* slots of both directions */
    uint64_t slot_bytes;
    uint32_t n_slots;                                /* per direction */
    uint32_t n_all;                                  /* of both */
    cudaEvent_t filled[MAX_RING], emptied[MAX_RING]; /* slots of a ring; NULL: not made yet */
    uint64_t gpu_bytes;                              /* of GPU memory that all this takes */
};

uint64_t stw_cuda_link_host_bytes(const stw_cuda_link *link) {
    return link != NULL ? link->buffer.bytes : 0;
}

uint64_t stw_cuda_link_gpu_bytes(const stw_cuda_link *link) {
    return link != NULL ? link->gpu_bytes : 0;
}

static void free_direction(direction *d) {
    for (uint32_t s = 0; s < d->n_streams; s++) {
        (void)cudaStreamSynchronize(d->streams[s]);
        (void)cudaStreamDestroy(d->streams[s]);
    }
}

void stw_cuda_link_free(stw_cuda_link *link) {
    if (link == NULL) return;
    free_direction(&link->up);
    free_direction(&link->down);
    for (uint32_t i = 0; i < MAX_RING; i++) {
        if (link->filled[i] != NULL) (void)cudaEventDestroy(link->filled[i]);
        if (link->emptied[i] != NULL) (void)cudaEventDestroy(link->emptied[i]);
    }
    if (link->gpu != NULL) (void)cudaFree(link->gpu);
    stw_cuda_pinned_free(&link->buffer);
    free(link);
}

/* ---- what it needs ---- */

/* As large as the host arena up to 4 GiB, but of what the system lets this rank take besides its
 * arena a quarter at most: whatever that is, 256 MiB are tried. */
static stw_status down_bytes(const stw_device *device, uint64_t *out, stw_error *err) {
    const stw_device_config *config = &device->config;
    uint64_t own = config->arena_bytes[STW_TIER_HOST];
    uint64_t node = stw_max_u64(config->machine_host_bytes, own);
    uint64_t ranks = config->local_world > 0 ? config->local_world : 1;
    stw_limits limits;
    stw_status status = stw_limits_read("", &limits, err);
    if (status != STW_STATUS_OK) return status;
    uint64_t usable = stw_limits_usable_bytes(&limits);
    uint64_t left = (usable > node ? usable - node : 0) / ranks;
    if (limits.available_bytes > 0) left = stw_min_u64(left, limits.available_bytes / ranks);
    uint64_t locked = device->info.page_locked;
    left = stw_min_u64(left, limits.page_lock_bytes > locked ? limits.page_lock_bytes - locked : 0);
    uint64_t bytes = stw_min_u64(stw_min_u64(MOST_DOWN_BYTES, left / 4), own);
    *out = stw_max_u64(bytes / (2 * MIB) * (2 * MIB), LEAST_DOWN_BYTES);
    return STW_STATUS_OK;
}

static stw_status make_streams(direction *d, uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (; d->n_streams < n; d->n_streams++)
        STW_CUDA_TRY(cudaStreamCreateWithFlags(&d->streams[d->n_streams], cudaStreamNonBlocking),
                     "making a stream for the link");
out:
    return status;
}

static stw_status make_events(stw_cuda_link *link, uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < 2 * n; i++) {
        cudaEvent_t *event = i < n ? &link->filled[i] : &link->emptied[i - n];
        if (*event == NULL)
            STW_CUDA_TRY(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                         "making an event for the link");
    }
out:
    return status;
}

/* Where GPU memory is short, fewer slots: copies do not look at what they carry, so they may even
 * share one. */
static stw_status make_slots(stw_cuda_link *link, uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t unused = 0, total = 0, all = 0;
    void *memory = NULL;
    uint32_t n = 2 * SLOTS;
    if (link->slot_bytes >= bytes) return STW_STATUS_OK;
    STW_TRY(stw_mul_u64(bytes, n, &all, "bytes of the link's slots", err));
    if (link->gpu != NULL) (void)cudaFree(link->gpu); /* what goes wrong the next call tells */
    link->gpu = NULL;
    link->slot_bytes = 0;
    STW_TRY(stw_cuda_memory(&unused, &total, err));
    while (n > 1 && n * bytes > unused / 4 * 3) n /= 2;
    STW_CUDA_TRY(cudaMalloc(&memory, (size_t)(n * bytes)), "allocating the link's slots");
    link->gpu = memory;
    link->slot_bytes = bytes;
    link->n_all = n;
    link->n_slots = n > 1 ? n / 2 : 1;
    link->up.slots = link->gpu;
    link->down.slots = n > 1 ? link->gpu + link->n_slots * bytes : link->gpu;
out:
    return status;
}

/* @param free_before set to free GPU memory before anything was made; 0: all was there */
static stw_status prepare(stw_device *device, const stw_link_shape *shape, uint64_t *free_before,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t total = 0, bytes = 0;
    *free_before = 0;
    if (device->link == NULL) device->link = calloc(1, sizeof *device->link);
    stw_cuda_link *link = device->link;
    if (link == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "link", "out of memory");
    bool has_ring = shape->ring == 0 || link->emptied[shape->ring - 1] != NULL;
    if (link->buffer.data != NULL && link->slot_bytes >= shape->bytes && has_ring &&
        link->up.n_streams >= shape->streams && link->down.n_streams >= shape->streams)
        return STW_STATUS_OK;
    STW_TRY(stw_cuda_memory(free_before, &total, err));
    STW_TRY(make_streams(&link->up, shape->streams, err));
    STW_TRY(make_streams(&link->down, shape->streams, err));
    STW_TRY(make_events(link, shape->ring, err));
    if (link->buffer.data == NULL || link->down.host == NULL) {
        stw_cuda_pinned_free(&link->buffer); /* half made by a call that failed */
        STW_TRY(down_bytes(device, &bytes, err));
        STW_TRY(stw_cuda_pinned_new_on(&link->buffer, bytes, device->tiers.threads, &device->cpus,
                                       err));
        link->down.host = link->buffer.data;
        link->down.host_bytes = link->buffer.bytes;
        link->down.kind = cudaMemcpyDeviceToHost;
        link->up.host = device->host.data;
        link->up.host_bytes = device->config.arena_bytes[STW_TIER_HOST];
        link->up.kind = cudaMemcpyHostToDevice;
    }
    STW_TRY(make_slots(link, shape->bytes, err));
out:
    return status;
}

/* Once copies have run on all that was made: the driver may take memory on first use, too. */
static stw_status note_memory(stw_cuda_link *link, uint64_t free_before, stw_error *err) {
    uint64_t free_after = 0, total = 0;
    stw_status status = stw_cuda_memory(&free_after, &total, err);
    if (status != STW_STATUS_OK) return status;
    if (free_before > free_after)
        link->gpu_bytes += free_before - free_after;
    else
        link->gpu_bytes -= stw_min_u64(link->gpu_bytes, free_after - free_before);
    return STW_STATUS_OK;
}

/* ---- the copies ---- */

/* The i-th copy of a direction; shorter at the end of the memory, of a page-locked piece and of all
 * there is to copy. */
static stw_status issue(const stw_cuda_link *link, direction *d, const stw_link_shape *shape,
                        uint64_t i, uint64_t *left, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t part = stw_min_u64(*left, shape->bytes);
    part = stw_min_u64(part, d->host_bytes - d->at);
    part = stw_min_u64(part, stw_cuda_to_piece_end(d->at));
    unsigned char *host = d->host + d->at;
    unsigned char *slot = d->slots + i % link->n_slots * link->slot_bytes;
    bool up = d->kind == cudaMemcpyHostToDevice;
    STW_CUDA_TRY(cudaMemcpyAsync(up ? slot : host, up ? host : slot, (size_t)part, d->kind,
                                 d->streams[i % shape->streams]),
                 "copying over the link");
    *left -= part;
    d->at += part;
    if (d->at == d->host_bytes) d->at = 0;
out:
    return status;
}

static stw_status copy_both_ways(stw_cuda_link *link, const stw_link_shape *shape, uint64_t bytes,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t up = bytes, down = bytes;
    const double start = stw_process_now_s();
    double up_s = 0;
    for (uint64_t i = 0; up > 0 || down > 0; i++) {
        if (up > 0) STW_TRY(issue(link, &link->up, shape, i, &up, err));
        if (down > 0) STW_TRY(issue(link, &link->down, shape, i, &down, err));
    }
    for (uint32_t s = 0; s < shape->streams; s++)
        STW_CUDA_TRY(cudaStreamSynchronize(link->up.streams[s]), "waiting for the link");
    up_s = stw_process_now_s() - start;
    for (uint32_t s = 0; s < shape->streams; s++)
        STW_CUDA_TRY(cudaStreamSynchronize(link->down.streams[s]), "waiting for the link");
    stw_log(STW_LOG_DEBUG, "link: %llu bytes up in %.4f s, down in %.4f s or less",
            (unsigned long long)bytes, up_s, stw_process_now_s() - start);
out:
    return status;
}

/* One copy up into a slot that is empty, and down again to the same place. */
static stw_status turn_around(stw_cuda_link *link, uint32_t slot, bool is_used, uint64_t bytes,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    cudaStream_t up = link->up.streams[0], down = link->down.streams[0];
    unsigned char *host = link->up.host + link->up.at, *gpu = link->gpu + slot * link->slot_bytes;
    if (is_used)
        STW_CUDA_TRY(cudaStreamWaitEvent(up, link->emptied[slot], 0), "waiting for the link");
    STW_CUDA_TRY(cudaMemcpyAsync(gpu, host, (size_t)bytes, cudaMemcpyHostToDevice, up),
                 "copying over the link");
    STW_CUDA_TRY(cudaEventRecord(link->filled[slot], up), "recording an event");
    STW_CUDA_TRY(cudaStreamWaitEvent(down, link->filled[slot], 0), "waiting for the link");
    STW_CUDA_TRY(cudaMemcpyAsync(host, gpu, (size_t)bytes, cudaMemcpyDeviceToHost, down),
                 "copying over the link");
    STW_CUDA_TRY(cudaEventRecord(link->emptied[slot], down), "recording an event");
out:
    return status;
}

static stw_status copy_in_ring(stw_cuda_link *link, const stw_link_shape *shape, uint64_t bytes,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t slots = shape->ring < link->n_all ? shape->ring : link->n_all;
    for (uint64_t i = 0, left = bytes; left > 0; i++) {
        uint64_t part =
            stw_min_u64(stw_min_u64(left, shape->bytes), link->up.host_bytes - link->up.at);
        part = stw_min_u64(part, stw_cuda_to_piece_end(link->up.at));
        STW_TRY(turn_around(link, (uint32_t)(i % slots), i >= slots, part, err));
        left -= part;
        link->up.at += part;
        if (link->up.at == link->up.host_bytes) link->up.at = 0;
    }
    STW_CUDA_TRY(cudaStreamSynchronize(link->down.streams[0]), "waiting for the link");
out:
    return status;
}

stw_status stw_cuda_device_link_seconds(stw_device *device, const stw_link_shape *shape,
                                        uint64_t bytes, double *seconds, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t free_before = 0;
    *seconds = 0;
    if (shape->bytes == 0 || shape->streams == 0 || shape->streams > MAX_STREAMS ||
        shape->ring > MAX_RING)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "link",
                         "copies of %llu bytes on %u streams in a ring of %u",
                         (unsigned long long)shape->bytes, shape->streams, shape->ring));
    if (bytes == 0) goto out;
    if (device->config.arena_bytes[STW_TIER_HOST] == 0)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "link", "no host arena to copy from"));
    STW_TRY(stw_cuda_quiesce(device, err));
    STW_TRY(prepare(device, shape, &free_before, err));
    double start = stw_process_now_s();
    if (shape->ring > 0)
        STW_TRY(copy_in_ring(device->link, shape, bytes, err));
    else
        STW_TRY(copy_both_ways(device->link, shape, bytes, err));
    double spent_s = stw_process_now_s() - start;
    if (free_before > 0) STW_TRY(note_memory(device->link, free_before, err));
    *seconds = spent_s;
out:
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a device: limits first, then context, streams, events, kernels and small buffers, then
 * the arenas. Whatever the driver allocates for itself is there before memory is measured, so that
 * what comes after is the plan's bytes and nothing else. Nothing is allocated later. */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MADV_HUGEPAGE */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/cuda/device.h"
#include "backend/limits.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/units.h"

#define HUGE_BYTES (2ull << 20)
#define TOUCH_BYTES 4096u /* the smallest page there is */

/* ---- page-locked host memory ---- */

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

void stw_cuda_pinned_free(stw_cuda_pinned *pinned) {
    for (uint64_t at = 0; at < pinned->registered; at += STW_CUDA_REGISTER_BYTES)
        (void)cudaHostUnregister(pinned->data + at);
    if (pinned->mapping != NULL) (void)munmap(pinned->mapping, (size_t)pinned->mapping_bytes);
    memset(pinned, 0, sizeof *pinned);
}

/* ---- limits ---- */

static stw_status refuse(const char *where, const char *what, uint64_t need_bytes,
                         uint64_t have_bytes, stw_error *err) {
    char need[32], have[32];
    stw_bytes_format(need_bytes, need, sizeof need);
    stw_bytes_format(have_bytes, have, sizeof have);
    return stw_fail(err, STW_STATUS_NO_RESOURCES, where, "%s: %s needed, %s there", what, need,
                    have);
}

/* RLIMIT_MEMLOCK may be below what its hard limit allows: take what is allowed. */
static void raise_page_lock_limit(uint64_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        (uint64_t)limit.rlim_cur >= bytes || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_MEMLOCK, &limit);
}

static stw_status check_host(const stw_device_config *config, stw_error *err) {
    for (int t = 0; t < STW_N_TIERS; t++)
        if (config->arena_bytes[t] > config->capacity_bytes[t])
            return refuse(stw_tier_name((stw_tier)t), "the plan's arena in this rank's capacity",
                          config->arena_bytes[t], config->capacity_bytes[t], err);
    uint64_t bytes = config->arena_bytes[STW_TIER_HOST];
    stw_limits limits;
    stw_status status = stw_limits_read("", &limits, err);
    if (status == STW_STATUS_OK)
        status =
            stw_limits_check(&limits, stw_max_u64(bytes, config->machine_host_bytes), bytes, err);
    if (status == STW_STATUS_OK) raise_page_lock_limit(bytes);
    return status;
}

/* ---- the device ---- */

stw_status stw_cuda_device_use(const stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_CUDA_TRY(cudaSetDevice(device->ordinal), "choosing the rank's GPU");
out:
    return status;
}

static uint32_t local_world(const stw_device_config *config) {
    return config->local_world > 0 ? config->local_world : 1;
}

/* The rank's GPU among those that are visible; a launcher may show each rank its own one. */
static stw_status choose(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    int count = 0;
    STW_CUDA_TRY(cudaGetDeviceCount(&count), "looking for GPUs");
    if (count > 1 && device->config.local_rank >= (uint32_t)count)
        STW_TRY(stw_fail(err, STW_STATUS_NO_RESOURCES, "gpu",
                         "this is rank %u of its node, but only %d GPUs are visible",
                         device->config.local_rank, count));
    if (count < 1)
        STW_TRY(stw_fail(err, STW_STATUS_DEVICE, "gpu", "no GPU is visible to this process"));
    device->among_others = count > 1 || local_world(&device->config) > 1;
    device->ordinal = count == 1 ? 0 : (int)device->config.local_rank;
    STW_CUDA_TRY(cudaDeviceGetPCIBusId(device->bus_id, (int)sizeof device->bus_id, device->ordinal),
                 "asking for the GPU's address");
out:
    return status;
}

/* Which part of the cores near the GPU is this rank's: one of `of` equal ones. Where all ranks'
 * GPUs are visible those at the same cores share them; else ranks are taken to be spread evenly
 * over the NUMA nodes, neighbours together. */
static stw_status near_part(const stw_device *device, const stw_cpus *near, uint32_t *index,
                            uint32_t *of, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t world = local_world(&device->config);
    int count = 0;
    stw_cpus other;
    STW_CUDA_TRY(cudaGetDeviceCount(&count), "looking for GPUs");
    *of = (uint32_t)stw_div_up_u64(world, stw_cpus_numa_nodes(NULL));
    *index = device->config.local_rank % *of;
    if ((uint32_t)count < world) goto out;
    *index = *of = 0;
    for (int g = 0; g < (int)world; g++) {
        char bus_id[32] = "";
        STW_CUDA_TRY(cudaDeviceGetPCIBusId(bus_id, (int)sizeof bus_id, g),
                     "asking for a GPU's address");
        stw_cpus_allowed(&other);
        stw_cpus_near_pci(&other, bus_id, NULL);
        if (g != device->ordinal &&
            (other.n != near->n || memcmp(other.cpu, near->cpu, near->n * sizeof *near->cpu) != 0))
            continue;
        if (g < device->ordinal) (*index)++;
        (*of)++;
    }
    if (*of == 0) *of = 1; /* a GPU beyond the ranks' */
    *index %= *of;
out:
    return status;
}

/* The cores of this rank's threads, which also decide where its memory lies: near the GPU, in fair
 * parts. Where the threads asked for do not fit there, a part of all cores; where they do not fit
 * in that, none: they run wherever they may. */
static stw_status choose_cores(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_device_config *config = &device->config;
    stw_cpus *cpus = &device->cpus;
    uint32_t of = local_world(config), index = config->local_rank % of;
    stw_cpus_allowed(cpus);
    uint32_t allowed = cpus->n;
    stw_cpus_near_pci(cpus, device->bus_id, NULL);
    bool near = cpus->n < allowed;
    if (near) STW_TRY(near_part(device, cpus, &index, &of, err));
    stw_cpus_share(cpus, index, of);
    if (near && config->threads > cpus->n) {
        of = local_world(config);
        stw_cpus_allowed(cpus);
        stw_cpus_share(cpus, config->local_rank % of, of);
    }
    if (config->threads > cpus->n) cpus->n = 0;
out:
    return status;
}

static stw_status make_threads(stw_device *device, stw_error *err) {
    stw_status status = choose_cores(device, err);
    uint32_t n = device->config.threads;
    if (status != STW_STATUS_OK) return status;
    stw_log(STW_LOG_DEBUG, "GPU %d at %s: threads on %u cores", device->ordinal, device->bus_id,
            device->cpus.n);
    if (device->cpus.n == 0) return stw_threads_new(n, &device->threads, err);
    return stw_threads_new_on(n > 0 ? n : device->cpus.n, &device->cpus, &device->threads, err);
}

static stw_status make_context(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    int value = 0;
    (void)stw_cuda_used_without_context(device->bus_id, &device->info.used_before);
    STW_TRY(stw_cuda_device_use(device, err));
    STW_CUDA_TRY(cudaFree(NULL), "making the CUDA context");
    struct cudaDeviceProp properties;
    STW_CUDA_TRY(cudaGetDeviceProperties(&properties, device->ordinal),
                 "asking for the GPU's properties");
    snprintf(device->info.name, sizeof device->info.name, "%.95s", properties.name);
    STW_CUDA_TRY(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device->ordinal),
                 "counting multiprocessors");
    device->sms = value < 1 ? 1 : (uint32_t)value;
    STW_CUDA_TRY(cudaDeviceGetAttribute(&value, cudaDevAttrCanUseHostPointerForRegisteredMem,
                                        device->ordinal),
                 "asking how kernels see host memory");
    device->host_on_device = value == 1;
out:
    return status;
}

static stw_status make_streams(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (stw_stream_is_gpu((stw_stream)s))
            STW_CUDA_TRY(cudaStreamCreateWithFlags(&device->streams[s], cudaStreamNonBlocking),
                         "making a stream");
    STW_CUDA_TRY(cudaStreamCreateWithFlags(&device->side, cudaStreamNonBlocking),
                 "making a stream");
    uint32_t n = device->config.n_events;
    device->events = calloc(n > 0 ? n : 1, sizeof *device->events);
    device->event_state = calloc(n > 0 ? n : 1, sizeof *device->event_state);
    if (device->events == NULL || device->event_state == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "events", "out of memory for %u events", n));
    for (; device->n_events < n; device->n_events++)
        STW_CUDA_TRY(
            cudaEventCreateWithFlags(&device->events[device->n_events], cudaEventDisableTiming),
            "making an event");
    uint32_t n_marks = device->config.n_marks;
    device->marks = calloc(n_marks > 0 ? n_marks : 1, sizeof *device->marks);
    if (device->marks == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "marks", "out of memory for %u", n_marks));
    for (; device->n_marks < n_marks; device->n_marks++)
        STW_CUDA_TRY(cudaEventCreate(&device->marks[device->n_marks]), "making a mark of time");
    for (int i = 0; i < STW_CUDA_BINS_SLOTS; i++)
        STW_CUDA_TRY(cudaEventCreateWithFlags(&device->bins_read[i], cudaEventDisableTiming),
                     "making an event");
out:
    return status;
}

_Static_assert(sizeof(stw_cuda_scalars) <= STW_CUDA_SCALARS_BYTES / 2, "room to warm up in");
_Static_assert(sizeof(stw_cuda_staged) <= STW_CUDA_SCALARS_BYTES, "room for what is staged");

/* Device memory and page-locked memory for what is small. */
static stw_status make_small(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *memory = NULL;
    uint64_t bytes = (uint64_t)device->config.n_spans * sizeof(stw_span);
    STW_CUDA_TRY(cudaMalloc(&memory, STW_CUDA_SCALARS_BYTES), "allocating small device buffers");
    device->scalars = memory;
    STW_CUDA_TRY(cudaHostAlloc(&memory, STW_CUDA_SCALARS_BYTES, cudaHostAllocPortable),
                 "allocating small page-locked buffers");
    device->staged = memory;
    if (bytes == 0) goto out;
    STW_CUDA_TRY(cudaMalloc(&memory, (size_t)bytes), "allocating the table of spans");
    device->spans_on_gpu = memory;
    STW_CUDA_TRY(cudaHostAlloc(&memory, (size_t)bytes, cudaHostAllocPortable),
                 "allocating the host's table of spans");
    device->spans = memory;
out:
    return status;
}

/* Every kernel and every kind of copy once, so that nothing is loaded later. */
static stw_status warm_up(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cuda_launch launch = {device->streams[STW_STREAM_COMPUTE], device->sms};
    const size_t half = STW_CUDA_SCALARS_BYTES / 2;
    unsigned char *scratch = (unsigned char *)device->scalars;
    memset(device->staged, 0, STW_CUDA_SCALARS_BYTES);
    STW_CUDA_TRY(cudaMemsetAsync(scratch, 0, STW_CUDA_SCALARS_BYTES, launch.stream),
                 "zeroing small device buffers");
    STW_CUDA_TRY(stw_cuda_kernels_load(launch, scratch + half), "loading the kernels");
    STW_CUDA_TRY(
        cudaMemcpyAsync(scratch, scratch + half, half, cudaMemcpyDeviceToDevice, launch.stream),
        "trying a copy on the GPU");
    STW_CUDA_TRY(
        cudaMemcpyAsync(scratch, device->staged, half, cudaMemcpyHostToDevice, launch.stream),
        "trying a copy to the GPU");
    STW_CUDA_TRY(
        cudaMemcpyAsync(device->staged, scratch, half, cudaMemcpyDeviceToHost, launch.stream),
        "trying a copy from the GPU");
    STW_CUDA_TRY(cudaStreamSynchronize(launch.stream), "waiting for the first kernels");
out:
    return status;
}

stw_status stw_cuda_memory(uint64_t *free_bytes, uint64_t *total_bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    size_t unused = 0, total = 0;
    STW_CUDA_TRY(cudaMemGetInfo(&unused, &total), "measuring GPU memory");
    *free_bytes = unused;
    *total_bytes = total;
out:
    return status;
}

static stw_status make_nvme(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_device_config *config = &device->config;
    uint64_t bytes = config->arena_bytes[STW_TIER_NVME];
    uint32_t copies = config->nvme_copies > 0 ? config->nvme_copies : 1;
    void *memory = NULL;
    if (bytes == 0) goto out;
    if (bytes % copies != 0)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "nvme", "an arena of %llu bytes for %u copies",
                         (unsigned long long)bytes, copies));
    device->nvme_copy_bytes = bytes / copies;
    const stw_nvme_options options = {.folder = config->nvme_folder,
                                      .bytes = device->nvme_copy_bytes,
                                      .copies = copies,
                                      .rank = config->local_rank};
    STW_TRY(stw_nvme_open(&options, &device->nvme, err));
    if (posix_memalign(&memory, STW_NVME_ALIGN_BYTES, 2 * STW_CUDA_BOUNCE_BYTES) != 0)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory"));
    device->bounce = memory;
out:
    return status;
}

static stw_status make_arenas(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_device_config *config = &device->config;
    uint64_t gpu_bytes = config->arena_bytes[STW_TIER_GPU];
    uint64_t unused = 0, total = 0, before = 0;
    void *memory = NULL;
    STW_TRY(stw_cuda_memory(&unused, &total, err));
    before = total - unused;
    if (gpu_bytes > unused)
        STW_TRY(refuse(device->info.name, "the plan's GPU arena in free GPU memory", gpu_bytes,
                       unused, err));
    STW_TRY(make_nvme(device, err));
    STW_TRY(stw_cuda_pinned_new_on(&device->host, config->arena_bytes[STW_TIER_HOST],
                                   device->threads, &device->cpus, err));
    /* Read here, so that page tables of the page-locked memory count as the driver's. */
    STW_TRY(stw_cuda_memory(&unused, &total, err));
    device->info.used_after_context = total - unused;
    device->info.total = total;
    device->info.page_locked = device->host.registered + STW_CUDA_SCALARS_BYTES +
                               (uint64_t)config->n_spans * sizeof(stw_span);
    stw_log(STW_LOG_DEBUG, "GPU %d: %llu bytes in use before the host arena, %llu after it",
            device->ordinal, (unsigned long long)before, (unsigned long long)(total - unused));
    if (gpu_bytes > 0) {
        STW_CUDA_TRY(cudaMalloc(&memory, (size_t)gpu_bytes), "allocating the GPU arena");
        device->gpu = memory;
    }
out:
    return status;
}

stw_status stw_cuda_device_open(const stw_device_config *config, stw_device **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    stw_device *device = calloc(1, sizeof *device);
    if (device == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "cuda", "out of memory");
    device->config = *config;
    pthread_mutex_init(&device->mutex, NULL);
    STW_TRY(check_host(config, err));
    STW_TRY(choose(device, err));
    STW_TRY(make_threads(device, err));
    STW_TRY(make_context(device, err));
    STW_TRY(make_streams(device, err));
    STW_TRY(make_small(device, err));
    STW_TRY(warm_up(device, err));
    STW_TRY(make_arenas(device, err));
    device->config.nvme_folder = NULL; /* the caller's */
    *out = device;
    device = NULL;
out:
    stw_cuda_device_close(device);
    return status;
}

/* Results are of no use here: whatever failed was told, and the rest must still be given back. */
void stw_cuda_device_close(stw_device *device) {
    if (device == NULL) return;
    if (device->streams[STW_STREAM_H2D] != NULL || device->gpu != NULL)
        (void)cudaSetDevice(device->ordinal);
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (device->streams[s] != NULL) (void)cudaStreamSynchronize(device->streams[s]);
    if (device->side != NULL) (void)cudaStreamSynchronize(device->side);
    stw_cuda_link_free(device->link);
    if (device->gpu != NULL) (void)cudaFree(device->gpu);
    if (device->scalars != NULL) (void)cudaFree(device->scalars);
    if (device->spans_on_gpu != NULL) (void)cudaFree(device->spans_on_gpu);
    stw_cuda_pinned_free(&device->host);
    if (device->staged != NULL) (void)cudaFreeHost(device->staged);
    if (device->spans != NULL) (void)cudaFreeHost(device->spans);
    for (int i = 0; i < STW_CUDA_BINS_SLOTS; i++)
        if (device->bins_read[i] != NULL) (void)cudaEventDestroy(device->bins_read[i]);
    for (uint32_t e = 0; e < device->n_events; e++) (void)cudaEventDestroy(device->events[e]);
    for (uint32_t m = 0; m < device->n_marks; m++) (void)cudaEventDestroy(device->marks[m]);
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (device->streams[s] != NULL) (void)cudaStreamDestroy(device->streams[s]);
    if (device->side != NULL) (void)cudaStreamDestroy(device->side);
    (void)cudaGetLastError();
    free(device->events);
    free(device->event_state);
    free(device->marks);
    stw_nvme_close(device->nvme);
    free(device->bounce);
    stw_threads_free(device->threads);
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

stw_status stw_cuda_check_range(const stw_device *device, stw_location at, uint64_t bytes,
                                stw_error *err) {
    uint64_t size =
        at.tier == STW_TIER_NVME ? device->nvme_copy_bytes : device->config.arena_bytes[at.tier];
    if (at.offset <= size && bytes <= size - at.offset) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_tier_name(at.tier),
                    "range of %llu bytes at %llu is outside the arena of %llu bytes",
                    (unsigned long long)bytes, (unsigned long long)at.offset,
                    (unsigned long long)size);
}

stw_status stw_cuda_range(const stw_device *device, stw_location at, uint64_t bytes,
                          unsigned char **out, stw_error *err) {
    *out = NULL;
    if (at.tier == STW_TIER_NVME)
        return stw_fail(err, STW_STATUS_BUG, "nvme", "an NVMe range has no address");
    stw_status status = stw_cuda_check_range(device, at, bytes, err);
    if (status != STW_STATUS_OK) return status;
    unsigned char *base = at.tier == STW_TIER_GPU ? device->gpu : device->host.data;
    if (base != NULL) *out = base + at.offset;
    return STW_STATUS_OK;
}

const char *stw_cuda_element_name(stw_element type) {
    return type == STW_ELEMENT_F32 ? "fp32" : type == STW_ELEMENT_BF16 ? "bf16" : "no type";
}

stw_status stw_cuda_element_bytes(stw_typed_range values, uint64_t *bytes, stw_error *err) {
    uint64_t each = stw_element_bytes(values.type);
    if (each == 0 || values.offset % each != 0)
        return stw_fail(err, STW_STATUS_BUG, stw_tier_name(values.tier),
                        "offset %llu is not that of an element: %s",
                        (unsigned long long)values.offset, stw_cuda_element_name(values.type));
    return stw_mul_u64(values.n, each, bytes, "elements", err);
}

stw_status stw_cuda_element_range(const stw_device *device, stw_typed_range values,
                                  unsigned char **out, stw_error *err) {
    uint64_t bytes = 0;
    *out = NULL;
    stw_status status = stw_cuda_element_bytes(values, &bytes, err);
    if (status != STW_STATUS_OK) return status;
    return stw_cuda_range(device, stw_at(values.tier, values.offset), bytes, out, err);
}

stw_status stw_cuda_quiesce(stw_device *device, stw_error *err) {
    static const stw_stream order[] = {STW_STREAM_H2D, STW_STREAM_COMPUTE, STW_STREAM_D2H,
                                       STW_STREAM_TO_CPU, STW_STREAM_FROM_CPU};
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cuda_device_use(device, err));
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        STW_CUDA_TRY(cudaStreamSynchronize(device->streams[order[i]]), "waiting for a stream");
out:
    return status;
}

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

stw_status stw_cuda_pinned_new(stw_cuda_pinned *pinned, uint64_t bytes, stw_threads *threads,
                               stw_error *err) {
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
    stw_threads_for(threads, whole, HUGE_BYTES, touch, pinned->mapping);
    pinned->data = pinned->mapping;
    pinned->bytes = bytes;
    while (pinned->registered < whole) {
        uint64_t part = stw_min_u64(whole - pinned->registered, STW_CUDA_REGISTER_BYTES);
        STW_CUDA_TRY(cudaHostRegister(pinned->data + pinned->registered, (size_t)part,
                                      cudaHostRegisterPortable | cudaHostRegisterMapped),
                     "page-locking the host arena");
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
    device->ordinal = count == 1 ? 0 : (int)device->config.local_rank;
out:
    return status;
}

static stw_status make_context(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char bus_id[32] = "";
    int value = 0;
    STW_CUDA_TRY(cudaDeviceGetPCIBusId(bus_id, (int)sizeof bus_id, device->ordinal),
                 "asking for the GPU's address");
    (void)stw_cuda_used_without_context(bus_id, &device->info.used_before);
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
out:
    return status;
}

/* Small buffers; every kernel and every kind of copy once, so that nothing is loaded later. */
static stw_status warm_up(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *memory = NULL;
    STW_CUDA_TRY(cudaMalloc(&memory, STW_CUDA_SCALARS_BYTES), "allocating small device buffers");
    device->scalars = memory;
    STW_CUDA_TRY(cudaHostAlloc(&memory, STW_CUDA_SCALARS_BYTES, cudaHostAllocPortable),
                 "allocating small page-locked buffers");
    device->staged = memory;
    memset(memory, 0, STW_CUDA_SCALARS_BYTES);
    stw_cuda_launch launch = {device->streams[STW_STREAM_COMPUTE], device->sms};
    const size_t half = STW_CUDA_SCALARS_BYTES / 2;
    unsigned char *scratch = (unsigned char *)device->scalars;
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

static stw_status memory_info(uint64_t *free_bytes, uint64_t *total_bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    size_t unused = 0, total = 0;
    STW_CUDA_TRY(cudaMemGetInfo(&unused, &total), "measuring GPU memory");
    *free_bytes = unused;
    *total_bytes = total;
out:
    return status;
}

static stw_status make_arenas(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_device_config *config = &device->config;
    uint64_t gpu_bytes = config->arena_bytes[STW_TIER_GPU];
    uint64_t unused = 0, total = 0, before = 0;
    void *memory = NULL;
    STW_TRY(memory_info(&unused, &total, err));
    before = total - unused;
    if (gpu_bytes > unused)
        STW_TRY(refuse(device->info.name, "the plan's GPU arena in free GPU memory", gpu_bytes,
                       unused, err));
    if (config->arena_bytes[STW_TIER_NVME] > 0) {
        STW_TRY(stw_nvme_open(config->nvme_folder, config->arena_bytes[STW_TIER_NVME],
                              &device->nvme, err));
        if (posix_memalign(&memory, STW_NVME_ALIGN_BYTES, STW_CUDA_BOUNCE_BYTES) != 0)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory"));
        device->bounce = memory;
    }
    STW_TRY(stw_cuda_pinned_new(&device->host, config->arena_bytes[STW_TIER_HOST], device->threads,
                                err));
    /* Read here, so that page tables of the page-locked memory count as the driver's. */
    STW_TRY(memory_info(&unused, &total, err));
    device->info.used_after_context = total - unused;
    device->info.total = total;
    device->info.page_locked = device->host.registered + STW_CUDA_SCALARS_BYTES;
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
    STW_TRY(stw_threads_new(config->threads, &device->threads, err));
    STW_TRY(make_context(device, err));
    STW_TRY(make_streams(device, err));
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
    if (device->gpu != NULL) (void)cudaFree(device->gpu);
    if (device->scalars != NULL) (void)cudaFree(device->scalars);
    stw_cuda_pinned_free(&device->host);
    if (device->staged != NULL) (void)cudaFreeHost(device->staged);
    for (uint32_t e = 0; e < device->n_events; e++) (void)cudaEventDestroy(device->events[e]);
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (device->streams[s] != NULL) (void)cudaStreamDestroy(device->streams[s]);
    if (device->side != NULL) (void)cudaStreamDestroy(device->side);
    (void)cudaGetLastError();
    free(device->events);
    free(device->event_state);
    stw_nvme_close(device->nvme);
    free(device->bounce);
    stw_threads_free(device->threads);
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

stw_status stw_cuda_check_range(const stw_device *device, stw_tier tier, uint64_t offset,
                                uint64_t bytes, stw_error *err) {
    uint64_t size = device->config.arena_bytes[tier];
    if (offset <= size && bytes <= size - offset) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_tier_name(tier),
                    "range of %llu bytes at %llu is outside the arena of %llu bytes",
                    (unsigned long long)bytes, (unsigned long long)offset,
                    (unsigned long long)size);
}

stw_status stw_cuda_range(const stw_device *device, stw_tier tier, uint64_t offset, uint64_t bytes,
                          unsigned char **out, stw_error *err) {
    *out = NULL;
    if (tier == STW_TIER_NVME)
        return stw_fail(err, STW_STATUS_BUG, "nvme", "an NVMe range has no address");
    stw_status status = stw_cuda_check_range(device, tier, offset, bytes, err);
    if (status != STW_STATUS_OK) return status;
    unsigned char *base = tier == STW_TIER_GPU ? device->gpu : device->host.data;
    if (base != NULL) *out = base + offset;
    return STW_STATUS_OK;
}

stw_status stw_cuda_float_range(const stw_device *device, stw_tier tier, uint64_t offset,
                                uint64_t n, float **out, stw_error *err) {
    unsigned char *bytes = NULL;
    uint64_t size = 0;
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    if (offset % sizeof(float) != 0)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, stw_tier_name(tier),
                         "offset %llu is not that of a float", (unsigned long long)offset));
    STW_TRY(stw_mul_u64(n, sizeof(float), &size, "elements", err));
    STW_TRY(stw_cuda_range(device, tier, offset, size, &bytes, err));
    *out = (float *)(void *)bytes;
out:
    return status;
}

stw_status stw_cuda_quiesce(stw_device *device, stw_error *err) {
    static const stw_stream order[] = {STW_STREAM_H2D, STW_STREAM_COMPUTE, STW_STREAM_D2H};
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cuda_device_use(device, err));
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        STW_CUDA_TRY(cudaStreamSynchronize(device->streams[order[i]]), "waiting for a stream");
out:
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a device: limits first, then context, streams, events, kernels and small buffers, then
 * the arenas. Whatever the driver allocates for itself is there before memory is measured, so that
 * what comes after is the plan's bytes and nothing else. Nothing is allocated later. */
#define _DEFAULT_SOURCE /* posix_memalign */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "backend/cuda/device.h"
#include "backend/limits.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/units.h"

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

static stw_status check_page_lock(uint64_t bytes, uint64_t host_bytes, stw_error *err) {
    stw_limits limits;
    stw_status status = stw_limits_read("", &limits, err);
    if (status == STW_STATUS_OK) status = stw_limits_check(&limits, host_bytes, bytes, err);
    if (status == STW_STATUS_OK) raise_page_lock_limit(bytes);
    return status;
}

/* What the caller's memory needs is known when the context is there. */
static stw_status check_host(const stw_device_config *config, stw_error *err) {
    bool external = stw_arena_is_external(config, STW_TIER_HOST);
    uint64_t bytes = external ? 0 : config->arena_bytes[STW_TIER_HOST];
    return check_page_lock(bytes, stw_max_u64(bytes, config->machine_host_bytes), err);
}

/* ---- the device ---- */

static uint32_t local_world(const stw_device_config *config) {
    return config->local_world > 0 ? config->local_world : 1;
}

/* The rank's GPU among those that are visible; a launcher may show each rank its own one. */
static stw_status choose(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    int count = 0;
    STW_CUDA_TRY(cudaGetDeviceCount(&count), "looking for GPUs");
    if (device->config.gpu_is_given && device->config.gpu >= (uint32_t)count)
        STW_TRY(stw_fail(err, STW_STATUS_NO_RESOURCES, "gpu",
                         "GPU %u is asked for, but only %d are visible", device->config.gpu,
                         count));
    const bool by_rank = !device->config.gpu_is_given && !device->config.gpu_is_current;
    if (by_rank && count > 1 && device->config.local_rank >= (uint32_t)count)
        STW_TRY(stw_fail(err, STW_STATUS_NO_RESOURCES, "gpu",
                         "this is rank %u of its node, but only %d GPUs are visible",
                         device->config.local_rank, count));
    if (count < 1)
        STW_TRY(stw_fail(err, STW_STATUS_DEVICE, "gpu", "no GPU is visible to this process"));
    uint32_t ranks = local_world(&device->config);
    device->fetches = stw_cuda_fetches(ranks > (uint32_t)count ? ranks : (uint32_t)count);
    device->ordinal = count == 1 ? 0 : (int)device->config.local_rank;
    if (device->config.gpu_is_given)
        device->ordinal = (int)device->config.gpu;
    else if (device->config.gpu_is_current)
        STW_CUDA_TRY(cudaGetDevice(&device->ordinal), "asking for the current GPU");
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
    if (device->cpus.n == 0) return stw_threads_new(n, &device->tiers.threads, err);
    return stw_threads_new_on(n > 0 ? n : device->cpus.n, &device->cpus, &device->tiers.threads,
                              err);
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

static stw_status make_events(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = device->config.n_events, n_marks = device->config.n_marks;
    device->events = calloc(n > 0 ? n : 1, sizeof *device->events);
    device->event_state = calloc(n > 0 ? n : 1, sizeof *device->event_state);
    if (device->events == NULL || device->event_state == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "events", "out of memory for %u events", n));
    for (; device->n_events < n; device->n_events++)
        STW_CUDA_TRY(
            cudaEventCreateWithFlags(&device->events[device->n_events], cudaEventDisableTiming),
            "making an event");
    device->marks = calloc(n_marks > 0 ? n_marks : 1, sizeof *device->marks);
    if (device->marks == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "marks", "out of memory for %u", n_marks));
    for (; device->n_marks < n_marks; device->n_marks++)
        STW_CUDA_TRY(cudaEventCreate(&device->marks[device->n_marks]), "making a mark of time");
    for (int i = 0; i < STW_CUDA_BINS_SLOTS; i++)
        STW_CUDA_TRY(cudaEventCreateWithFlags(&device->bins_read[i], cudaEventDisableTiming),
                     "making an event");
    for (int i = 0; i < STW_CUDA_SPANS_SLOTS; i++)
        STW_CUDA_TRY(cudaEventCreateWithFlags(&device->spans_read[i], cudaEventDisableTiming),
                     "making an event");
    STW_CUDA_TRY(cudaEventCreateWithFlags(&device->join, cudaEventDisableTiming),
                 "making an event");
out:
    return status;
}

/* An event of this GPU can be recorded on streams of this GPU alone: that tries the caller's. */
static stw_status make_streams(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    int least = 0, greatest = 0;
    STW_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
    for (int s = 0; s < STW_N_STREAMS; s++) {
        const bool urgent = device->config.urgent && s == STW_STREAM_COMPUTE;
        const int priority = urgent ? greatest : least;
        if (!stw_stream_is_gpu((stw_stream)s)) continue;
        if (device->config.streams[s] != NULL) {
            STW_CUDA_TRY(cudaEventRecord(device->bins_read[0], device->config.streams[s]),
                         "trying a stream of the caller, which must be of the rank's GPU");
            device->streams[s] = device->config.streams[s];
        } else {
            STW_CUDA_TRY(
                cudaStreamCreateWithPriority(&device->streams[s], cudaStreamNonBlocking, priority),
                "making a stream");
        }
    }
    STW_CUDA_TRY(cudaStreamCreateWithFlags(&device->side, cudaStreamNonBlocking),
                 "making a stream");
out:
    return status;
}

_Static_assert(sizeof(stw_cuda_scalars) <= STW_CUDA_SCALARS_BYTES / 2, "room to warm up in");
_Static_assert(sizeof(stw_cuda_staged) <= STW_CUDA_SCALARS_BYTES, "room for what is staged");

/* Tables of spans outside the arenas change with every step. */
static uint32_t span_slots(const stw_device_config *config) {
    return config->spans_outside ? STW_CUDA_SPANS_SLOTS : 1;
}

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
    for (int i = 0; i < (int)span_slots(&device->config); i++) {
        STW_CUDA_TRY(cudaHostAlloc(&memory, (size_t)bytes, cudaHostAllocPortable),
                     "allocating the host's table of spans");
        device->span_slots[i] = memory;
    }
    device->tiers.spans = device->span_slots[0];
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

/* ---- arenas ---- */

static stw_status take_gpu(stw_device *device, uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unsigned char *given = device->tiers.arenas.base[STW_TIER_GPU];
    for (int end = 0; end < 2; end++) {
        struct cudaPointerAttributes about;
        unsigned char *at = end == 0 ? given : given + bytes - 1;
        STW_CUDA_TRY(cudaPointerGetAttributes(&about, at), "looking at the caller's GPU memory");
        if (about.type != cudaMemoryTypeDevice)
            STW_TRY(stw_fail(err, STW_STATUS_USAGE, "gpu",
                             "found %s memory at %p, expected device memory of GPU %d",
                             about.type == cudaMemoryTypeManaged ? "managed" : "host", (void *)at,
                             device->ordinal));
        if (about.device != device->ordinal)
            STW_TRY(stw_fail(err, STW_STATUS_USAGE, "gpu",
                             "found memory of GPU %d at %p, expected memory of GPU %d",
                             about.device, (void *)at, device->ordinal));
    }
out:
    return status;
}

static stw_status make_gpu(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t bytes = device->config.arena_bytes[STW_TIER_GPU];
    void *memory = NULL;
    if (bytes == 0) goto out;
    if (stw_arena_is_external(&device->config, STW_TIER_GPU)) return take_gpu(device, bytes, err);
    STW_CUDA_TRY(cudaMalloc(&memory, (size_t)bytes), "allocating the GPU arena");
    device->tiers.arenas.base[STW_TIER_GPU] = memory;
out:
    return status;
}

static stw_status make_host(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t bytes = device->config.arena_bytes[STW_TIER_HOST];
    unsigned char **base = &device->tiers.arenas.base[STW_TIER_HOST];
    bool locked = false, mapped = true;
    if (stw_arena_is_external(&device->config, STW_TIER_HOST)) {
        STW_TRY(stw_cuda_pinned_look(*base, bytes, &locked, &mapped, err));
        if (!locked) STW_TRY(check_page_lock(bytes, 0, err));
        STW_TRY(stw_cuda_pinned_take(&device->host, *base, bytes, locked, err));
        if (!mapped) device->host_on_device = false;
    } else {
        STW_TRY(stw_cuda_pinned_new_on(&device->host, bytes, device->tiers.threads, &device->cpus,
                                       err));
        *base = device->host.data;
    }
out:
    return status;
}

static stw_status make_arenas(stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_device_config *config = &device->config;
    uint64_t unused = 0, total = 0, before = 0;
    void *memory = NULL;
    STW_TRY(stw_cuda_memory(&unused, &total, err));
    before = total - unused;
    if (!stw_arena_is_external(config, STW_TIER_GPU) && config->arena_bytes[STW_TIER_GPU] > unused)
        STW_TRY(refuse(device->info.name, "the plan's GPU arena in free GPU memory",
                       config->arena_bytes[STW_TIER_GPU], unused, err));
    STW_TRY(stw_tiers_open_nvme(&device->tiers, config, err));
    if (device->tiers.nvme != NULL) {
        if (posix_memalign(&memory, STW_NVME_ALIGN_BYTES, STW_BOUNCE_BYTES) != 0)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory"));
        device->from_gpu = memory;
    }
    STW_TRY(make_host(device, err));
    /* Read here, so that page tables of the page-locked memory count as the driver's. */
    STW_TRY(stw_cuda_memory(&unused, &total, err));
    device->info.used_after_context = total - unused;
    device->info.total = total;
    device->info.page_locked = device->host.registered + STW_CUDA_SCALARS_BYTES +
                               (uint64_t)config->n_spans * span_slots(config) * sizeof(stw_span);
    stw_log(STW_LOG_DEBUG, "GPU %d: %llu bytes in use before the host arena, %llu after it",
            device->ordinal, (unsigned long long)before, (unsigned long long)(total - unused));
    STW_TRY(make_gpu(device, err));
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
    STW_TRY(stw_tiers_open(&device->tiers, config, err));
    STW_TRY(check_host(config, err));
    STW_TRY(choose(device, err));
    STW_TRY(make_threads(device, err));
    STW_TRY(make_context(device, err));
    STW_TRY(make_events(device, err));
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
static void close_streams(stw_device *device) {
    for (int i = 0; i < STW_CUDA_BINS_SLOTS; i++)
        if (device->bins_read[i] != NULL) (void)cudaEventDestroy(device->bins_read[i]);
    for (int i = 0; i < STW_CUDA_SPANS_SLOTS; i++)
        if (device->spans_read[i] != NULL) (void)cudaEventDestroy(device->spans_read[i]);
    if (device->join != NULL) (void)cudaEventDestroy(device->join);
    for (uint32_t e = 0; e < device->n_events; e++) (void)cudaEventDestroy(device->events[e]);
    for (uint32_t m = 0; m < device->n_marks; m++) (void)cudaEventDestroy(device->marks[m]);
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (device->streams[s] != NULL && device->config.streams[s] == NULL)
            (void)cudaStreamDestroy(device->streams[s]);
    if (device->side != NULL) (void)cudaStreamDestroy(device->side);
    free(device->events);
    free(device->event_state);
    free(device->marks);
}

void stw_cuda_device_close(stw_device *device) {
    if (device == NULL) return;
    unsigned char *gpu = device->tiers.arenas.base[STW_TIER_GPU];
    if (device->bins_read[0] != NULL) (void)cudaSetDevice(device->ordinal);
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (device->streams[s] != NULL) (void)cudaStreamSynchronize(device->streams[s]);
    if (device->side != NULL) (void)cudaStreamSynchronize(device->side);
    stw_cuda_link_free(device->link);
    if (gpu != NULL && !stw_arena_is_external(&device->config, STW_TIER_GPU)) (void)cudaFree(gpu);
    if (device->scalars != NULL) (void)cudaFree(device->scalars);
    if (device->spans_on_gpu != NULL) (void)cudaFree(device->spans_on_gpu);
    stw_cuda_pinned_free(&device->host);
    if (device->staged != NULL) (void)cudaFreeHost(device->staged);
    for (int i = 0; i < STW_CUDA_SPANS_SLOTS; i++)
        if (device->span_slots[i] != NULL) (void)cudaFreeHost(device->span_slots[i]);
    close_streams(device);
    (void)cudaGetLastError();
    stw_threads_free(device->tiers.threads);
    stw_tiers_close(&device->tiers);
    free(device->from_gpu);
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

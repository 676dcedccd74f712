/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend: the "GPU" is a second arena in host memory, streams are the threads that call,
 * and every call returns when its work is done; events and waits are therefore nothing. It
 * computes, copies and refuses to exceed limits for real; only its times mean nothing.
 *
 * An NVMe arena of two copies: write, zero, seed_grads and convert reach the copy that the next
 * commit makes count, read and digest see the committed one, so that what was made on NVMe is seen
 * after a commit only. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise */
#include "backend/host/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/host/kernels.h"
#include "backend/limits.h"
#include "core/checked.h"
#include "core/units.h"

static bool available(char *why, size_t why_size) {
    if (why != NULL && why_size > 0) why[0] = '\0';
    return true;
}

static void close_device(stw_device *device) {
    if (device == NULL) return;
    stw_threads_free(device->threads);
    for (int t = 0; t < STW_N_TIERS; t++)
        if (device->arena[t] != NULL) munmap(device->arena[t], device->config.arena_bytes[t]);
    stw_nvme_close(device->nvme);
    free(device->scratch);
    free(device->spans);
    pthread_mutex_destroy(&device->scratch_mutex);
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

static stw_status check_capacity(const stw_device_config *config, stw_error *err) {
    for (int t = 0; t < STW_N_TIERS; t++) {
        if (config->arena_bytes[t] <= config->capacity_bytes[t]) continue;
        char need[32], have[32];
        stw_bytes_format(config->arena_bytes[t], need, sizeof need);
        stw_bytes_format(config->capacity_bytes[t], have, sizeof have);
        return stw_fail(err, STW_STATUS_NO_RESOURCES, stw_tier_name((stw_tier)t),
                        "the plan's arena is %s, its capacity for this rank %s", need, have);
    }
    stw_limits limits;
    uint64_t own = 0;
    stw_status status = stw_limits_read("", &limits, err);
    if (status == STW_STATUS_OK)
        status = stw_add_u64(config->arena_bytes[STW_TIER_GPU], config->arena_bytes[STW_TIER_HOST],
                             &own, "arenas", err);
    if (status != STW_STATUS_OK) return status;
    return stw_limits_check(&limits, stw_max_u64(own, config->machine_host_bytes), 0, err);
}

static stw_status map_arena(stw_device *device, stw_tier tier, stw_error *err) {
    uint64_t bytes = device->config.arena_bytes[tier];
    if (bytes == 0) return STW_STATUS_OK;
    void *memory = bytes > SIZE_MAX ? MAP_FAILED
                                    : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        char need[32];
        stw_bytes_format(bytes, need, sizeof need);
        return stw_fail_native(err, STW_STATUS_NO_RESOURCES, errno, stw_tier_name(tier),
                               "the system refuses to map an arena of %s", need);
    }
    device->arena[tier] = memory;
    madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    /* Touched now, by all threads: a step must not meet page faults, and bytes that the process
     * holds are then known. */
    stw_host_zero(device->threads, memory, bytes);
    return STW_STATUS_OK;
}

/* Threads on cores of their own where the ranks of the node have enough of them. */
static stw_status start_threads(stw_device *device, stw_error *err) {
    const stw_device_config *config = &device->config;
    uint32_t ranks = config->local_world > 0 ? config->local_world : 1, n = config->threads;
    stw_cpus cpus;
    stw_cpus_allowed(&cpus);
    bool enough = cpus.n >= ranks && config->local_rank < ranks;
    stw_cpus_share(&cpus, config->local_rank, ranks);
    if (n == 0) n = enough ? cpus.n : 1;
    return stw_threads_new_on(n, enough && n <= cpus.n ? &cpus : NULL, &device->threads, err);
}

static stw_status open_nvme(stw_device *device, stw_error *err) {
    const stw_device_config *config = &device->config;
    uint32_t copies = config->nvme_copies > 1 ? 2 : 1;
    uint64_t one = config->arena_bytes[STW_TIER_NVME] / copies;
    device->reach[STW_TIER_NVME] = one;
    if (one == 0) return STW_STATUS_OK;
    stw_nvme_options options = {config->nvme_folder, one, copies, config->local_rank};
    stw_status status = stw_nvme_open(&options, &device->nvme, err);
    if (status != STW_STATUS_OK) return status;
    void *scratch = NULL;
    if (posix_memalign(&scratch, 4096, STW_HOST_SCRATCH_BYTES) != 0)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
    device->scratch = scratch;
    return STW_STATUS_OK;
}

static stw_status open_device(const stw_device_config *config, stw_device **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    STW_TRY(check_capacity(config, err));
    stw_device *device = calloc(1, sizeof *device);
    if (device == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "host", "out of memory");
    device->config = *config;
    device->factor = 1.0f;
    memcpy(device->reach, config->arena_bytes, sizeof device->reach);
    pthread_mutex_init(&device->mutex, NULL);
    pthread_mutex_init(&device->scratch_mutex, NULL);
    *out = device;
    device->spans = calloc((size_t)config->n_spans + 1, sizeof *device->spans);
    if (device->spans == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "spans", "out of memory"));
    STW_TRY(start_threads(device, err));
    STW_TRY(map_arena(device, STW_TIER_GPU, err));
    STW_TRY(map_arena(device, STW_TIER_HOST, err));
    STW_TRY(open_nvme(device, err));
out:
    if (status != STW_STATUS_OK) {
        close_device(*out);
        *out = NULL;
    }
    return status;
}

static void info(stw_device *device, stw_device_info *out) {
    (void)device;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, "model name", 10) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(out->name, sizeof out->name, "%.90s", colon + 2);
        break;
    }
    if (file != NULL) fclose(file);
}

/* ---- ranges ---- */

stw_status stw_host_check_range(const stw_device *device, stw_location at, uint64_t bytes,
                                stw_error *err) {
    uint64_t size = device->reach[at.tier];
    if (at.offset <= size && bytes <= size - at.offset) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_tier_name(at.tier),
                    "range of %llu bytes at %llu is outside the arena of %llu bytes",
                    (unsigned long long)bytes, (unsigned long long)at.offset,
                    (unsigned long long)size);
}

stw_status stw_host_range(const stw_device *device, stw_location at, uint64_t bytes,
                          unsigned char **out, stw_error *err) {
    *out = NULL;
    if (at.tier == STW_TIER_NVME)
        return stw_fail(err, STW_STATUS_BUG, "nvme", "an NVMe range has no address");
    stw_status status = stw_host_check_range(device, at, bytes, err);
    if (status == STW_STATUS_OK && device->arena[at.tier] != NULL)
        *out = device->arena[at.tier] + at.offset;
    return status;
}

stw_status stw_host_value_bytes(stw_typed_range values, uint64_t *bytes, stw_error *err) {
    *bytes = 0;
    if (values.type != STW_ELEMENT_F32 && values.type != STW_ELEMENT_BF16)
        return stw_fail(err, STW_STATUS_BUG, stw_tier_name(values.tier),
                        "values of element type %d; fp32 and bf16 are known", (int)values.type);
    uint64_t one = stw_element_bytes(values.type);
    if (values.offset % one != 0)
        return stw_fail(err, STW_STATUS_BUG, stw_tier_name(values.tier),
                        "offset %llu is not of a %llu-byte float",
                        (unsigned long long)values.offset, (unsigned long long)one);
    *bytes = values.n > UINT64_MAX / one ? UINT64_MAX : values.n * one; /* no arena is that large */
    return STW_STATUS_OK;
}

stw_status stw_host_value_range(const stw_device *device, stw_typed_range values,
                                unsigned char **out, stw_error *err) {
    uint64_t bytes = 0;
    *out = NULL;
    stw_status status = stw_host_value_bytes(values, &bytes, err);
    if (status != STW_STATUS_OK) return status;
    return stw_host_range(device, stw_at(values.tier, values.offset), bytes, out, err);
}

static void *host_address(stw_device *device, uint64_t offset, uint64_t bytes) {
    unsigned char *address = NULL;
    stw_status status =
        stw_host_range(device, stw_at(STW_TIER_HOST, offset), bytes, &address, NULL);
    return status == STW_STATUS_OK ? address : NULL;
}

/* ---- operations ---- */

static stw_status copy(stw_device *device, stw_stream stream, stw_location to, stw_location from,
                       uint64_t bytes, stw_error *err) {
    (void)stream;
    unsigned char *target = NULL, *source = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_host_range(device, to, bytes, &target, err));
    STW_TRY(stw_host_range(device, from, bytes, &source, err));
    if (to.tier == from.tier && target < source + bytes && source < target + bytes)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "copy", "source and target overlap"));
    if (bytes > 0) stw_host_copy(device->threads, target, source, bytes);
out:
    return status;
}

static stw_status norm_add(stw_device *device, stw_stream stream, stw_typed_range grads,
                           stw_error *err) {
    (void)stream;
    unsigned char *values = NULL;
    stw_status status = stw_host_value_range(device, grads, &values, err);
    if (status != STW_STATUS_OK) return status;
    stw_norm_bins mine = {.not_finite = 0};
    stw_host_norm_add(device->threads, values, grads.type, grads.n, &mine);
    pthread_mutex_lock(&device->mutex);
    stw_norm_merge(&device->bins, &mine);
    pthread_mutex_unlock(&device->mutex);
    return STW_STATUS_OK;
}

static stw_status norm_reset(stw_device *device, stw_stream stream, stw_error *err) {
    (void)stream;
    (void)err;
    pthread_mutex_lock(&device->mutex);
    memset(&device->bins, 0, sizeof device->bins);
    pthread_mutex_unlock(&device->mutex);
    return STW_STATUS_OK;
}

static stw_status norm_counters(stw_device *device, stw_stream stream, bool counts,
                                uint64_t **counters, stw_error *err) {
    (void)stream;
    (void)err;
    pthread_mutex_lock(&device->mutex);
    memset(device->counters, 0, sizeof device->counters);
    if (counts) {
        stw_norm_normalise(&device->bins);
        stw_norm_to_counters(&device->bins, device->counters);
    }
    pthread_mutex_unlock(&device->mutex);
    *counters = device->counters;
    return STW_STATUS_OK;
}

static stw_status norm_factor(stw_device *device, stw_stream stream, double clip_norm,
                              stw_error *err) {
    (void)stream;
    (void)err;
    stw_norm_bins bins;
    pthread_mutex_lock(&device->mutex);
    stw_norm_from_counters(device->counters, &bins);
    device->norm = stw_norm_value(&bins);
    device->factor = stw_norm_clip_factor(device->norm, clip_norm);
    pthread_mutex_unlock(&device->mutex);
    return STW_STATUS_OK;
}

static void norm_result(stw_device *device, double *norm, float *factor) {
    pthread_mutex_lock(&device->mutex);
    *norm = device->norm;
    *factor = device->factor;
    pthread_mutex_unlock(&device->mutex);
}

static stw_status read_disk(stw_device *device, uint64_t host_offset, uint64_t nvme_offset,
                            uint64_t bytes, stw_error *err) {
    unsigned char *memory = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_host_range(device, stw_at(STW_TIER_HOST, host_offset), bytes, &memory, err));
    STW_TRY(stw_host_check_range(device, stw_at(STW_TIER_NVME, nvme_offset), bytes, err));
    if (bytes > 0) STW_TRY(stw_nvme_read(device->nvme, nvme_offset, memory, bytes, err));
out:
    return status;
}

static stw_status write_disk(stw_device *device, uint64_t nvme_offset, uint64_t host_offset,
                             uint64_t bytes, stw_error *err) {
    unsigned char *memory = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_host_range(device, stw_at(STW_TIER_HOST, host_offset), bytes, &memory, err));
    STW_TRY(stw_host_check_range(device, stw_at(STW_TIER_NVME, nvme_offset), bytes, err));
    if (bytes > 0) STW_TRY(stw_nvme_write(device->nvme, nvme_offset, memory, bytes, err));
out:
    return status;
}

static stw_status commit(stw_device *device, uint64_t step, stw_error *err) {
    if (device->nvme == NULL || device->config.nvme_copies < 2) return STW_STATUS_OK;
    return stw_nvme_commit(device->nvme, step, err);
}

/* ---- order: every call above is done when it returns ---- */

static stw_status check_event(const stw_device *device, uint32_t event, stw_error *err) {
    if (event < device->config.n_events) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "event", "event %u of %u", event, device->config.n_events);
}

static stw_status record(stw_device *device, stw_stream stream, uint32_t event, stw_error *err) {
    (void)stream;
    return check_event(device, event, err);
}

static stw_status wait_stream(stw_device *device, stw_stream stream, uint32_t event,
                              stw_error *err) {
    (void)stream;
    return check_event(device, event, err);
}

static stw_status wait_host(stw_device *device, uint32_t event, stw_error *err) {
    return check_event(device, event, err);
}

static stw_status synchronize(stw_device *device, stw_error *err) {
    (void)device;
    (void)err;
    return STW_STATUS_OK;
}

static void *device_address(stw_device *device, uint64_t offset, uint64_t bytes) {
    unsigned char *address = NULL;
    return stw_host_range(device, stw_at(STW_TIER_GPU, offset), bytes, &address, NULL) ==
                   STW_STATUS_OK
               ? address
               : NULL;
}

static void *no_stream(stw_device *device, stw_stream stream) {
    (void)device;
    (void)stream;
    return NULL;
}

static void enter(stw_device *device, stw_stream stream) {
    if (stream == STW_STREAM_CPU) stw_threads_keep_caller(device->threads);
}

const stw_backend stw_backend_host = {
    .name = "host",
    .gpu = false,
    .available = available,
    .open = open_device,
    .close = close_device,
    .info = info,
    .enter = enter,
    .host_address = host_address,
    .copy = copy,
    .set_spans = stw_host_set_spans,
    .update = stw_host_update,
    .norm_reset = norm_reset,
    .norm_add = norm_add,
    .norm_counters = norm_counters,
    .norm_factor = norm_factor,
    .norm_result = norm_result,
    .read = read_disk,
    .write = write_disk,
    .commit = commit,
    .convert = stw_host_convert_range,
    .seed_grads = stw_host_seed_range,
    .zero = stw_host_zero_range,
    .digest = stw_host_digest_range,
    .record = record,
    .wait = wait_stream,
    .wait_host = wait_host,
    .synchronize = synchronize,
    .device_address = device_address,
    .native_stream = no_stream,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend: the "GPU" is a second arena in host memory, streams are the threads that call,
 * and every call returns when its work is done; events and waits are therefore nothing. It
 * computes, copies and refuses to exceed limits for real; only its times mean nothing. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise */
#include "backend/backend.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/host/kernels.h"
#include "backend/limits.h"
#include "backend/norm.h"
#include "backend/nvme.h"
#include "core/checked.h"
#include "core/units.h"

#define SCRATCH_BYTES (4ull << 20) /* through which NVMe ranges are looked at */

struct stw_device {
    stw_device_config config;
    unsigned char *arena[STW_N_TIERS]; /* GPU and host; NULL where empty */
    stw_nvme *nvme;                    /* NULL where the NVMe arena is empty */
    unsigned char *scratch;
    stw_threads *threads;
    pthread_mutex_t mutex; /* of the bins */
    stw_norm_bins bins;
};

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

static stw_status open_device(const stw_device_config *config, stw_device **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    STW_TRY(check_capacity(config, err));
    stw_device *device = calloc(1, sizeof *device);
    if (device == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "host", "out of memory");
    device->config = *config;
    pthread_mutex_init(&device->mutex, NULL);
    *out = device;
    STW_TRY(stw_threads_new(config->threads, &device->threads, err));
    STW_TRY(map_arena(device, STW_TIER_GPU, err));
    STW_TRY(map_arena(device, STW_TIER_HOST, err));
    if (config->arena_bytes[STW_TIER_NVME] > 0) {
        STW_TRY(stw_nvme_open(config->nvme_folder, config->arena_bytes[STW_TIER_NVME],
                              &device->nvme, err));
        void *scratch = NULL;
        if (posix_memalign(&scratch, 4096, SCRATCH_BYTES) != 0)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory"));
        device->scratch = scratch;
    }
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

static stw_status check_range(const stw_device *device, stw_tier tier, uint64_t offset,
                              uint64_t bytes, stw_error *err) {
    uint64_t size = device->config.arena_bytes[tier];
    if (offset <= size && bytes <= size - offset) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_tier_name(tier),
                    "range of %llu bytes at %llu is outside the arena of %llu bytes",
                    (unsigned long long)bytes, (unsigned long long)offset,
                    (unsigned long long)size);
}

/* Address of a checked range of the GPU or host arena. */
static stw_status range(const stw_device *device, stw_tier tier, uint64_t offset, uint64_t bytes,
                        unsigned char **out, stw_error *err) {
    *out = NULL;
    if (tier == STW_TIER_NVME)
        return stw_fail(err, STW_STATUS_BUG, "nvme", "an NVMe range has no address");
    stw_status status = check_range(device, tier, offset, bytes, err);
    if (status == STW_STATUS_OK && device->arena[tier] != NULL) *out = device->arena[tier] + offset;
    return status;
}

static stw_status float_range(const stw_device *device, stw_tier tier, uint64_t offset, uint64_t n,
                              float **out, stw_error *err) {
    unsigned char *bytes = NULL;
    *out = NULL;
    if (offset % sizeof(float) != 0)
        return stw_fail(err, STW_STATUS_BUG, stw_tier_name(tier), "offset %llu is not of a float",
                        (unsigned long long)offset);
    stw_status status = n > UINT64_MAX / sizeof(float)
                            ? check_range(device, tier, 0, UINT64_MAX, err)
                            : range(device, tier, offset, n * sizeof(float), &bytes, err);
    *out = (float *)(void *)bytes;
    return status;
}

static void *host_address(stw_device *device, uint64_t offset, uint64_t bytes) {
    unsigned char *address = NULL;
    return range(device, STW_TIER_HOST, offset, bytes, &address, NULL) == STW_STATUS_OK ? address
                                                                                        : NULL;
}

/* ---- operations ---- */

static stw_status copy(stw_device *device, stw_stream stream, stw_tier to, uint64_t to_offset,
                       stw_tier from, uint64_t from_offset, uint64_t bytes, stw_error *err) {
    (void)stream;
    unsigned char *target = NULL, *source = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(range(device, to, to_offset, bytes, &target, err));
    STW_TRY(range(device, from, from_offset, bytes, &source, err));
    if (to == from && target < source + bytes && source < target + bytes)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "copy", "source and target overlap"));
    if (bytes > 0) stw_host_copy(device->threads, target, source, bytes);
out:
    return status;
}

static stw_status update(stw_device *device, stw_stream stream, const stw_adamw *adamw,
                         const stw_operands *operands, stw_error *err) {
    (void)stream;
    float *params = NULL, *grads = NULL, *exp_avg = NULL, *exp_avg_sq = NULL;
    stw_status status = STW_STATUS_OK;
    stw_tier tier = operands->tier;
    STW_TRY(float_range(device, tier, operands->params, operands->n, &params, err));
    STW_TRY(float_range(device, tier, operands->grads, operands->n, &grads, err));
    STW_TRY(float_range(device, tier, operands->exp_avg, operands->n, &exp_avg, err));
    STW_TRY(float_range(device, tier, operands->exp_avg_sq, operands->n, &exp_avg_sq, err));
    stw_host_adamw(device->threads, adamw, params, grads, exp_avg, exp_avg_sq, operands->n);
out:
    return status;
}

static stw_status norm_add(stw_device *device, stw_stream stream, const stw_operands *operands,
                           stw_error *err) {
    (void)stream;
    float *grads = NULL;
    stw_status status =
        float_range(device, operands->tier, operands->grads, operands->n, &grads, err);
    if (status != STW_STATUS_OK) return status;
    stw_norm_bins mine = {.not_finite = 0};
    stw_host_norm_add(device->threads, grads, operands->n, &mine);
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

static stw_status norm_read(stw_device *device, stw_norm_bins *out, stw_error *err) {
    (void)err;
    pthread_mutex_lock(&device->mutex);
    *out = device->bins;
    pthread_mutex_unlock(&device->mutex);
    return STW_STATUS_OK;
}

static stw_status read_disk(stw_device *device, uint64_t host_offset, uint64_t nvme_offset,
                            uint64_t bytes, stw_error *err) {
    unsigned char *memory = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(range(device, STW_TIER_HOST, host_offset, bytes, &memory, err));
    STW_TRY(check_range(device, STW_TIER_NVME, nvme_offset, bytes, err));
    if (bytes > 0) STW_TRY(stw_nvme_read(device->nvme, nvme_offset, memory, bytes, err));
out:
    return status;
}

static stw_status write_disk(stw_device *device, uint64_t nvme_offset, uint64_t host_offset,
                             uint64_t bytes, stw_error *err) {
    unsigned char *memory = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(range(device, STW_TIER_HOST, host_offset, bytes, &memory, err));
    STW_TRY(check_range(device, STW_TIER_NVME, nvme_offset, bytes, err));
    if (bytes > 0) STW_TRY(stw_nvme_write(device->nvme, nvme_offset, memory, bytes, err));
out:
    return status;
}

static stw_status convert(stw_device *device, stw_stream stream, stw_tier to, uint64_t to_offset,
                          stw_tier from, uint64_t from_offset, stw_dtype from_dtype, uint64_t n,
                          stw_error *err) {
    (void)stream;
    float *target = NULL;
    unsigned char *source = NULL;
    uint64_t bytes = 0;
    stw_status status = STW_STATUS_OK;
    if (!stw_host_can_convert(from_dtype))
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_dtype_name(from_dtype),
                         "weights of this dtype are not converted to fp32"));
    STW_TRY(float_range(device, to, to_offset, n, &target, err));
    STW_TRY(stw_mul_u64(n, stw_dtype_bits(from_dtype) / 8, &bytes, "elements to convert", err));
    STW_TRY(range(device, from, from_offset, bytes, &source, err));
    if (n > 0) stw_host_convert(device->threads, target, source, from_dtype, n);
out:
    return status;
}

/* ---- making and looking at values; NVMe ranges go through the scratch in pieces ---- */

typedef stw_status (*piece_fn)(stw_device *device, unsigned char *memory, uint64_t bytes,
                               uint64_t element, void *arg, stw_error *err);

/* Call fn on [offset, offset + bytes) of a tier: as a whole, or piece by piece in the scratch,
 * which is read before or written after. */
static stw_status visit(stw_device *device, stw_tier tier, uint64_t offset, uint64_t bytes,
                        uint64_t element, bool writes, piece_fn fn, void *arg, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unsigned char *memory = NULL;
    STW_TRY(check_range(device, tier, offset, bytes, err));
    if (tier != STW_TIER_NVME) {
        STW_TRY(range(device, tier, offset, bytes, &memory, err));
        if (bytes > 0) status = fn(device, memory, bytes, element, arg, err);
        goto out;
    }
    for (uint64_t done = 0; done < bytes; done += SCRATCH_BYTES) {
        uint64_t part = stw_min_u64(bytes - done, SCRATCH_BYTES);
        if (!writes)
            STW_TRY(stw_nvme_read(device->nvme, offset + done, device->scratch, part, err));
        STW_TRY(fn(device, device->scratch, part, element + done / sizeof(float), arg, err));
        if (writes)
            STW_TRY(stw_nvme_write(device->nvme, offset + done, device->scratch, part, err));
    }
out:
    return status;
}

typedef struct seed_arg {
    uint64_t seed, step;
} seed_arg;

static stw_status seed_piece(stw_device *device, unsigned char *memory, uint64_t bytes,
                             uint64_t element, void *arg, stw_error *err) {
    (void)err;
    const seed_arg *seed = arg;
    stw_host_seed_grads(device->threads, (float *)(void *)memory, bytes / sizeof(float), element,
                        seed->seed, seed->step);
    return STW_STATUS_OK;
}

static stw_status zero_piece(stw_device *device, unsigned char *memory, uint64_t bytes,
                             uint64_t element, void *arg, stw_error *err) {
    (void)element;
    (void)arg;
    (void)err;
    stw_host_zero(device->threads, memory, bytes);
    return STW_STATUS_OK;
}

static stw_status digest_piece(stw_device *device, unsigned char *memory, uint64_t bytes,
                               uint64_t element, void *arg, stw_error *err) {
    (void)err;
    *(uint64_t *)arg += stw_host_digest(device->threads, (const float *)(void *)memory,
                                        bytes / sizeof(float), element);
    return STW_STATUS_OK;
}

/* Bytes of n floats at an offset, both fit for floats. */
static stw_status float_bytes(stw_tier tier, uint64_t offset, uint64_t n, uint64_t *bytes,
                              stw_error *err) {
    if (offset % sizeof(float) != 0)
        return stw_fail(err, STW_STATUS_BUG, stw_tier_name(tier), "offset %llu is not of a float",
                        (unsigned long long)offset);
    return stw_mul_u64(n, sizeof(float), bytes, "elements", err);
}

static stw_status seed_grads(stw_device *device, stw_tier tier, uint64_t offset, uint64_t n,
                             uint64_t element, uint64_t seed, uint64_t step, stw_error *err) {
    seed_arg arg = {seed, step};
    uint64_t bytes = 0;
    stw_status status = float_bytes(tier, offset, n, &bytes, err);
    if (status != STW_STATUS_OK) return status;
    return visit(device, tier, offset, bytes, element, true, seed_piece, &arg, err);
}

static stw_status zero(stw_device *device, stw_tier tier, uint64_t offset, uint64_t bytes,
                       stw_error *err) {
    return visit(device, tier, offset, bytes, 0, true, zero_piece, NULL, err);
}

static stw_status digest(stw_device *device, stw_tier tier, uint64_t offset, uint64_t n,
                         uint64_t element, uint64_t *sum, stw_error *err) {
    uint64_t bytes = 0;
    stw_status status = float_bytes(tier, offset, n, &bytes, err);
    if (status != STW_STATUS_OK) return status;
    return visit(device, tier, offset, bytes, element, false, digest_piece, sum, err);
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
    return range(device, STW_TIER_GPU, offset, bytes, &address, NULL) == STW_STATUS_OK ? address
                                                                                       : NULL;
}

static void *no_stream(stw_device *device, stw_stream stream) {
    (void)device;
    (void)stream;
    return NULL;
}

const stw_backend stw_backend_host = {
    .name = "host",
    .gpu = false,
    .available = available,
    .open = open_device,
    .close = close_device,
    .info = info,
    .host_address = host_address,
    .copy = copy,
    .update = update,
    .norm_add = norm_add,
    .norm_reset = norm_reset,
    .norm_read = norm_read,
    .read = read_disk,
    .write = write_disk,
    .convert = convert,
    .seed_grads = seed_grads,
    .zero = zero,
    .digest = digest,
    .record = record,
    .wait = wait_stream,
    .wait_host = wait_host,
    .synchronize = synchronize,
    .device_address = device_address,
    .native_stream = no_stream,
};

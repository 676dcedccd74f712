/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend: the "GPU" is a second arena in host memory, streams are the threads that call,
 * and every call returns when its work is done; events and waits are therefore nothing. It
 * computes, copies and refuses to exceed limits for real; only its times mean nothing. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/host/kernels.h"
#include "backend/limits.h"
#include "backend/norm.h"
#include "backend/tiers.h"
#include "core/checked.h"
#include "core/units.h"

struct stw_device {
    stw_tiers tiers; /* first: backend/tiers.h */
    stw_device_config config;
    stw_threads *threads;
    pthread_mutex_t mutex; /* of what follows */
    stw_norm_bins bins;
    uint64_t counters[STW_NORM_COUNTERS];
    double norm;
    float factor;
};

static bool available(char *why, size_t why_size) {
    if (why != NULL && why_size > 0) why[0] = '\0';
    return true;
}

static void close_device(stw_device *device) {
    if (device == NULL) return;
    stw_threads_free(device->threads);
    for (int t = 0; t < STW_N_TIERS; t++)
        if (device->tiers.arenas.base[t] != NULL &&
            !stw_arena_is_external(&device->config, (stw_tier)t))
            munmap(device->tiers.arenas.base[t], device->config.arena_bytes[t]);
    stw_tiers_close(&device->tiers);
    free(device->tiers.spans);
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

static stw_status check_machine(const stw_device_config *config, stw_error *err) {
    stw_limits limits;
    uint64_t own = 0;
    stw_status status = STW_STATUS_OK;
    for (int t = 0; t < STW_TIER_NVME && status == STW_STATUS_OK; t++)
        if (!stw_arena_is_external(config, (stw_tier)t))
            status = stw_add_u64(own, config->arena_bytes[t], &own, "arenas", err);
    if (status != STW_STATUS_OK || (own == 0 && config->machine_host_bytes == 0)) return status;
    status = stw_limits_read("", &limits, err);
    if (status != STW_STATUS_OK) return status;
    return stw_limits_check(&limits, stw_max_u64(own, config->machine_host_bytes), 0, err);
}

static stw_status map_arena(stw_device *device, stw_tier tier, stw_error *err) {
    uint64_t bytes = device->config.arena_bytes[tier];
    if (bytes == 0 || stw_arena_is_external(&device->config, tier)) return STW_STATUS_OK;
    void *memory = bytes > SIZE_MAX ? MAP_FAILED
                                    : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        char need[32];
        stw_bytes_format(bytes, need, sizeof need);
        return stw_fail_native(err, STW_STATUS_NO_RESOURCES, errno, stw_tier_name(tier),
                               "the system refuses to map an arena of %s", need);
    }
    device->tiers.arenas.base[tier] = memory;
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
    stw_status status =
        stw_threads_new_on(n, enough && n <= cpus.n ? &cpus : NULL, &device->threads, err);
    device->tiers.threads = device->threads;
    return status;
}

static stw_status check_streams(const stw_device_config *config, stw_error *err) {
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (config->streams[s] != NULL)
            return stw_fail(err, STW_STATUS_USAGE, stw_stream_name((stw_stream)s),
                            "found a native stream, expected none: the host backend has none");
    return STW_STATUS_OK;
}

static stw_status open_device(const stw_device_config *config, stw_device **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    stw_device *device = calloc(1, sizeof *device);
    if (device == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "host", "out of memory");
    device->config = *config;
    device->factor = 1.0f;
    pthread_mutex_init(&device->mutex, NULL);
    *out = device;
    STW_TRY(stw_tiers_open(&device->tiers, config, err));
    STW_TRY(check_streams(config, err));
    STW_TRY(check_machine(config, err));
    device->tiers.spans = calloc((size_t)config->n_spans + 1, sizeof *device->tiers.spans);
    if (device->tiers.spans == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "spans", "out of memory"));
    STW_TRY(start_threads(device, err));
    STW_TRY(map_arena(device, STW_TIER_GPU, err));
    STW_TRY(map_arena(device, STW_TIER_HOST, err));
    STW_TRY(stw_tiers_open_nvme(&device->tiers, config, err));
out:
    if (status != STW_STATUS_OK) {
        close_device(*out);
        *out = NULL;
    }
    return status;
}

static char cpu_name[96];
static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;

static void read_cpu_name(void) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(cpu_name, sizeof cpu_name, "CPU");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, "model name", 10) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(cpu_name, sizeof cpu_name, "%.90s", colon + 2);
        break;
    }
    if (file != NULL) fclose(file);
}

static void info(stw_device *device, stw_device_info *out) {
    (void)device;
    memset(out, 0, sizeof *out);
    (void)pthread_once(&cpu_once, read_cpu_name);
    snprintf(out->name, sizeof out->name, "%s", cpu_name);
}

/* ---- operations ---- */

static stw_status copy(stw_device *device, stw_stream stream, stw_location to, stw_location from,
                       uint64_t bytes, stw_error *err) {
    (void)stream;
    unsigned char *target = NULL, *source = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_arenas_address(&device->tiers.arenas, to, bytes, &target, err));
    STW_TRY(stw_arenas_address(&device->tiers.arenas, from, bytes, &source, err));
    STW_TRY(stw_arenas_check_apart(to, bytes, from, bytes, err));
    if (bytes > 0) stw_host_copy(device->threads, target, source, bytes);
out:
    return status;
}

static stw_status set_spans(stw_device *device, const stw_span *spans, uint32_t n, stw_error *err) {
    stw_tiers *tiers = &device->tiers;
    stw_status status = stw_tiers_check_spans(tiers, spans, n, err);
    if (status != STW_STATUS_OK) return status;
    if (n > 0) memcpy(tiers->spans, spans, n * sizeof *spans);
    tiers->n_spans = n;
    return STW_STATUS_OK;
}

static stw_status update(stw_device *device, stw_stream stream, const stw_adamw *adamw,
                         const stw_bucket_operands *bucket, stw_error *err) {
    stw_bucket_addresses at;
    if (bucket->n == 0) return STW_STATUS_OK;
    stw_status status = stw_tiers_resolve(&device->tiers, stream, bucket, &at, err);
    if (status != STW_STATUS_OK) return status;
    pthread_mutex_lock(&device->mutex);
    float factor = device->factor;
    pthread_mutex_unlock(&device->mutex);
    stw_tiers_update(&device->tiers, adamw, factor, bucket, &at);
    return STW_STATUS_OK;
}

static stw_status norm_add(stw_device *device, stw_stream stream, stw_typed_range grads,
                           stw_error *err) {
    (void)stream;
    unsigned char *values = NULL;
    stw_status status = stw_arenas_values(&device->tiers.arenas, grads, &values, err);
    if (status != STW_STATUS_OK) return status;
    stw_norm_bins mine = {.not_finite = 0};
    stw_host_norm_add(device->threads, values, grads.type, grads.n, &mine);
    pthread_mutex_lock(&device->mutex);
    stw_norm_merge(&device->bins, &mine);
    pthread_mutex_unlock(&device->mutex);
    return STW_STATUS_OK;
}

static stw_status queue_spans(stw_device *device, stw_stream stream, const stw_span *spans,
                              uint32_t n, stw_error *err) {
    (void)stream;
    return set_spans(device, spans, n, err);
}

static stw_status norm_add_spans(stw_device *device, stw_stream stream, stw_error *err) {
    const stw_tiers *tiers = &device->tiers;
    stw_norm_bins mine = {.not_finite = 0};
    (void)stream;
    (void)err;
    for (uint32_t i = 0; i < tiers->n_spans; i++) {
        const uintptr_t at = (uintptr_t)tiers->arenas.base[STW_TIER_GPU] + tiers->spans[i].grads;
        stw_host_norm_add(device->threads, (const void *)at, tiers->types.grads, tiers->spans[i].n,
                          &mine);
    }
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

/* ---- the tiers' own ---- */

static stw_status convert(stw_device *device, stw_stream stream, stw_typed_range to,
                          stw_location from, stw_dtype from_dtype, stw_error *err) {
    (void)stream;
    return stw_tiers_convert(&device->tiers, to, from, from_dtype, err);
}

static stw_status convert_from(stw_device *device, stw_stream stream, stw_typed_range to,
                               const void *from, stw_dtype from_dtype, stw_error *err) {
    unsigned char *target = NULL;
    (void)stream;
    stw_status status = stw_arenas_values(&device->tiers.arenas, to, &target, err);
    if (status == STW_STATUS_OK && to.n > 0)
        stw_host_convert(device->threads, target, to.type, from, from_dtype, to.n);
    return status;
}

static stw_status seed_grads(stw_device *device, stw_typed_range to, uint64_t element,
                             uint64_t seed, uint64_t step, stw_error *err) {
    return stw_tiers_seed_grads(&device->tiers, to, element, seed, step, err);
}

static stw_status put(stw_device *device, stw_location to, const void *from, uint64_t bytes,
                      stw_error *err) {
    unsigned char *target = NULL;
    stw_status status = stw_arenas_address(&device->tiers.arenas, to, bytes, &target, err);
    if (status == STW_STATUS_OK && bytes > 0) memcpy(target, from, (size_t)bytes);
    return status;
}

static stw_status get(stw_device *device, void *to, stw_location from, uint64_t bytes,
                      stw_error *err) {
    unsigned char *source = NULL;
    stw_status status = stw_arenas_address(&device->tiers.arenas, from, bytes, &source, err);
    if (status == STW_STATUS_OK && bytes > 0) memcpy(to, source, (size_t)bytes);
    return status;
}

static stw_status zero(stw_device *device, stw_location to, uint64_t bytes, stw_error *err) {
    return stw_tiers_zero(&device->tiers, to, bytes, err);
}

static stw_status digest(stw_device *device, stw_typed_range values, uint64_t element,
                         uint64_t *sum, stw_error *err) {
    return stw_tiers_digest(&device->tiers, values, element, sum, err);
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

static stw_status reached(stw_device *device, uint32_t event, bool *out, stw_error *err) {
    *out = true;
    return check_event(device, event, err);
}

static stw_status follow_native(stw_device *device, stw_stream stream, void *native,
                                stw_error *err) {
    (void)device;
    (void)stream;
    (void)native;
    (void)err;
    return STW_STATUS_OK;
}

static stw_status native_wait(stw_device *device, void *native, uint32_t event, stw_error *err) {
    (void)native;
    return check_event(device, event, err);
}

static stw_status synchronize(stw_device *device, stw_error *err) {
    (void)device;
    (void)err;
    return STW_STATUS_OK;
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
    .host_address = stw_tiers_host_address,
    .copy = copy,
    .set_spans = set_spans,
    .queue_spans = queue_spans,
    .update = update,
    .norm_reset = norm_reset,
    .norm_add = norm_add,
    .norm_add_spans = norm_add_spans,
    .norm_counters = norm_counters,
    .norm_factor = norm_factor,
    .norm_result = norm_result,
    .read = stw_tiers_read,
    .write = stw_tiers_write,
    .commit = stw_tiers_commit,
    .nvme = stw_tiers_nvme,
    .convert = convert,
    .convert_from = convert_from,
    .seed_grads = seed_grads,
    .put = put,
    .get = get,
    .zero = zero,
    .digest = digest,
    .record = record,
    .wait = wait_stream,
    .wait_host = wait_host,
    .reached = reached,
    .follow_native = follow_native,
    .native_wait = native_wait,
    .synchronize = synchronize,
    .device_address = stw_tiers_device_address,
    .native_stream = no_stream,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* The host's part of a calibration, and the whole of it where there is no GPU. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise, clock_gettime */
#include "backend/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "backend/host/kernels.h"
#include "backend/limits.h"
#include "backend/nvme.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/units.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define COPY_BYTES GIB              /* of each of the two buffers of a host memory copy */
#define ADAMW_PARAMS (256ull << 20) /* 4 GiB in all: far beyond any cache */
#define DISK_BYTES GIB
#define DISK_PIECE (16 * MIB)
#define DISK_S 2.5 /* a slow disk is not written and read whole */
#define TICKS 4    /* of the host's progress */

__attribute__((weak)) stw_status stw_probe_gpus(stw_cluster *out, bool measure, bool *found,
                                                stw_error *err) {
    (void)out;
    (void)measure;
    (void)err;
    *found = false;
    return STW_STATUS_OK;
}

double stw_probe_now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t stw_probe_resident_bytes(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    uint64_t bytes = 0;
    while (file != NULL && bytes == 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "VmRSS:", 6) == 0) bytes = strtoull(line + 6, NULL, 10) * 1024;
    if (file != NULL) fclose(file);
    return bytes;
}

/* ---- what there is ---- */

/* Physical memory by the zones' present pages. A balloon that gives memory back as it is wanted
 * hides the rest from MemTotal, but not from here. 0 where unknown. */
static uint64_t present_bytes(void) {
    FILE *file = fopen("/proc/zoneinfo", "r");
    char line[256];
    uint64_t pages = 0;
    unsigned long long value = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, " present %llu", &value) == 1) pages += value;
    if (file != NULL) fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static stw_status describe_host(stw_cluster *out, stw_error *err) {
    stw_limits limits;
    stw_status status = stw_limits_read("", &limits, err);
    if (status != STW_STATUS_OK) return status;
    uint64_t memory = limits.memory_bytes;
    /* Ordinarily the kernel keeps a few percent of what is present for itself. */
    uint64_t present = present_bytes() / 100 * 97;
    if (present / 10 * 9 > memory) {
        stw_log(STW_LOG_INFO, "MemTotal is %llu MiB now and grows with use: %llu MiB are present",
                (unsigned long long)(memory / MIB), (unsigned long long)(present / MIB));
        memory = present;
    }
    out->nodes = 1;
    out->host.memory_bytes = memory;
    out->host.limit_bytes = stw_min_u64(memory, limits.cgroup_bytes);
    out->host.page_lock_limit_bytes = limits.page_lock_bytes;
    out->host.cores = limits.cores;
    out->host.process_bytes = stw_max_u64(stw_probe_resident_bytes(), 64 * MIB);
    char host[64] = "";
    if (gethostname(host, sizeof host - 1) == 0 && host[0] != '\0')
        snprintf(out->name, sizeof out->name, "%s", host);
    return STW_STATUS_OK;
}

static const char *disk_folder(void) {
    const char *folder = getenv("TMPDIR");
    return folder != NULL && folder[0] != '\0' ? folder : "/tmp";
}

/* Half of what is free where temporary files go, if that is a disk and not memory. */
static uint64_t disk_capacity(void) {
    stw_nvme *nvme = NULL;
    struct statvfs room;
    struct statvfs *r = &room;
    if (stw_nvme_open(NULL, STW_NVME_ALIGN_BYTES, &nvme, NULL) != STW_STATUS_OK) return 0;
    void *block = NULL;
    bool direct = false;
    if (posix_memalign(&block, STW_NVME_ALIGN_BYTES, STW_NVME_ALIGN_BYTES) == 0) {
        memset(block, 1, STW_NVME_ALIGN_BYTES);
        direct = stw_nvme_write(nvme, 0, block, STW_NVME_ALIGN_BYTES, NULL) == STW_STATUS_OK &&
                 stw_nvme_is_direct(nvme);
        free(block);
    }
    stw_nvme_close(nvme);
    if (!direct || statvfs(disk_folder(), r) != 0) return 0;
    return (uint64_t)r->f_bavail * r->f_frsize / 2 / GIB * GIB;
}

/* ---- host memory ---- */

typedef struct copy_work {
    unsigned char *to;
    const unsigned char *from;
} copy_work;

/* Past the caches: the target is not read before it is written. */
static void copy_piece(void *arg, uint64_t first, uint64_t count) {
    const copy_work *work = arg;
#ifdef __SSE2__
    uint64_t i = first, end = first + count;
    for (; i + 16 <= end; i += 16)
        _mm_stream_si128((__m128i *)(void *)(work->to + i),
                         _mm_load_si128((const __m128i *)(const void *)(work->from + i)));
    _mm_sfence();
    memcpy(work->to + i, work->from + i, end - i);
#else
    memcpy(work->to + first, work->from + first, count);
#endif
}

/* Floats of 0x3A3A3A3A are about 7e-4: positive, and far from denormal when squared. */
static void touch_piece(void *arg, uint64_t first, uint64_t count) {
    memset((unsigned char *)arg + first, 0x3A, count);
}

unsigned char *stw_probe_map(stw_threads *threads, uint64_t bytes) {
    void *memory =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    (void)madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    stw_threads_for(threads, bytes, 2 * MIB, touch_piece, memory);
    return memory;
}

void stw_probe_unmap(unsigned char *memory, uint64_t bytes) {
    if (memory != NULL) (void)munmap(memory, (size_t)bytes);
}

double stw_probe_copy_bps(stw_threads *threads, unsigned char *to, const unsigned char *from,
                          uint64_t bytes, double seconds) {
    copy_work work = {to, from};
    stw_threads_for(threads, bytes, MIB, copy_piece, &work);
    double start = stw_probe_now_s(), spent = 0;
    uint64_t moved = 0;
    while (spent < seconds) {
        stw_threads_for(threads, bytes, MIB, copy_piece, &work);
        moved += 2 * bytes;
        spent = stw_probe_now_s() - start;
    }
    return (double)moved / spent;
}

/* Parameters per second of the host's update, every operand in host memory. */
static double measure_adamw(stw_threads *threads, uint64_t params, double seconds) {
    float *memory = (float *)(void *)stw_probe_map(threads, 4 * params * sizeof(float));
    if (memory == NULL) return 0;
    const stw_adamw adamw = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.01, 1, 0, 1.0f);
    double start = 0, spent = 0;
    uint64_t done = 0;
    for (int turn = 0; turn < 2 || spent < seconds; turn++) {
        stw_host_adamw(threads, &adamw, memory, memory + params, memory + 2 * params,
                       memory + 3 * params, params);
        if (turn == 0)
            start = stw_probe_now_s(); /* the first pass warms up */
        else
            done += params;
        spent = stw_probe_now_s() - start;
    }
    stw_probe_unmap((unsigned char *)memory, 4 * params * sizeof(float));
    return (double)done / spent;
}

/* ---- disk ---- */

/* One pass in order, until the end or for DISK_S. Bytes per second; 0 on failure. */
static double disk_pass(stw_nvme *nvme, unsigned char *piece, uint64_t bytes, bool writes) {
    double start = stw_probe_now_s(), spent = 0;
    uint64_t done = 0;
    while (done < bytes && spent < DISK_S) {
        stw_status status = writes ? stw_nvme_write(nvme, done, piece, DISK_PIECE, NULL)
                                   : stw_nvme_read(nvme, done, piece, DISK_PIECE, NULL);
        if (status != STW_STATUS_OK) return 0;
        done += DISK_PIECE;
        spent = stw_probe_now_s() - start;
    }
    return spent > 0 ? (double)done / spent : 0;
}

static void measure_disk(stw_cluster *out) {
    stw_nvme *nvme = NULL;
    void *piece = NULL;
    if (stw_nvme_open(NULL, DISK_BYTES, &nvme, NULL) == STW_STATUS_OK &&
        posix_memalign(&piece, STW_NVME_ALIGN_BYTES, DISK_PIECE) == 0) {
        memset(piece, 0x5A, DISK_PIECE);
        double write_bps = disk_pass(nvme, piece, DISK_BYTES, true);
        double read_bps = disk_pass(nvme, piece, DISK_BYTES, false);
        if (write_bps > 0) out->nvme.write_bps = write_bps;
        if (read_bps > 0) out->nvme.read_bps = read_bps;
    } else {
        stw_log(STW_LOG_WARN, "no room for a file of 1 GiB in %s: the disk is not measured",
                disk_folder());
    }
    free(piece);
    stw_nvme_close(nvme);
}

/* ---- all of it ---- */

/* Rates of the pretend GPU follow from the host's: a copy reads and writes host memory. */
static void pretend_gpu(stw_cluster *out) {
    uint64_t bytes = out->host.limit_bytes / 4 / (64 * MIB) * (64 * MIB);
    out->gpus = 0;
    snprintf(out->gpu.name, sizeof out->gpu.name, "none (host backend)");
    out->gpu.memory_bytes = stw_max_u64(bytes, 64 * MIB);
    out->gpu.context_bytes = out->gpu.comm_bytes = 0;
    out->host.page_lock_limit_bytes = STW_UNLIMITED; /* the host backend locks no pages */
    out->host.limit_bytes -= stw_min_u64(out->gpu.memory_bytes, out->host.limit_bytes / 2);
    out->gpu.hbm_bps = out->host.dma_bps = out->host.bandwidth_bps;
    out->gpu.bf16_flops = 32e9 * out->host.cores; /* a guess: nothing is computed there */
    out->pcie.h2d_bps = out->pcie.d2h_bps = out->host.bandwidth_bps / 2;
    out->pcie.both_bps = out->host.bandwidth_bps / 4;
    out->pcie.latency_s = 5e-6;
    out->nvlink_bps = 0;
}

static stw_status measure_host(stw_cluster *out, stw_error *err) {
    stw_threads *threads = NULL;
    uint64_t room = out->host.limit_bytes / 8;
    stw_progress("calibrating the host", 0, TICKS);
    stw_status status = stw_threads_new(out->host.cores, &threads, err);
    if (status != STW_STATUS_OK) return status;
    uint64_t bytes = stw_min_u64(COPY_BYTES, room / (4 * MIB) * (2 * MIB));
    unsigned char *to = stw_probe_map(threads, bytes), *from = stw_probe_map(threads, bytes);
    if (to != NULL && from != NULL)
        out->host.bandwidth_bps = stw_probe_copy_bps(threads, to, from, bytes, 0.5);
    stw_probe_unmap(to, bytes);
    stw_probe_unmap(from, bytes);
    stw_progress("calibrating the host", 1, TICKS);
    double pps = measure_adamw(threads, stw_min_u64(ADAMW_PARAMS, room / (16 * MIB) * MIB), 0.8);
    if (pps > 0) out->cpu_adamw_pps = pps;
    stw_progress("calibrating the host", 2, TICKS);
    stw_threads_free(threads);
    measure_disk(out);
    stw_progress("calibrating the host", TICKS, TICKS);
    return STW_STATUS_OK;
}

/* Without measuring: what a core does on ordinary servers, until memory is the limit. */
static void guess_host(stw_cluster *out) {
    double cores = (double)out->host.cores;
    out->host.bandwidth_bps = cores < 12 ? 10e9 * cores : 120e9;
    out->cpu_adamw_pps = cores < 12 ? 0.25e9 * cores : 3e9;
}

/* Three digits: what follows differs from run to run. */
static void round_rates(stw_cluster *out) {
    double *rates[] = {&out->gpu.hbm_bps,   &out->gpu.bf16_flops, &out->host.bandwidth_bps,
                       &out->host.dma_bps,  &out->pcie.h2d_bps,   &out->pcie.d2h_bps,
                       &out->pcie.both_bps, &out->pcie.latency_s, &out->nvlink_bps,
                       &out->nvme.read_bps, &out->nvme.write_bps, &out->cpu_adamw_pps};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.3g", *rates[i]);
        *rates[i] = strtod(text, NULL);
    }
}

static void stamp(stw_cluster *out) {
    time_t now = time(NULL);
    struct tm utc;
    out->calibration.measured = true;
    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(out->calibration.date, sizeof out->calibration.date, "%Y-%m-%d", &utc);
}

stw_status stw_machine_probe(stw_cluster *out, bool measure, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool found = false;
    stw_cluster_defaults(out);
    STW_TRY(describe_host(out, err));
    out->nvme.capacity_bytes = disk_capacity();
    guess_host(out);
    double guess_bps = out->host.bandwidth_bps;
    if (measure) out->host.bandwidth_bps = 0;
    /* GPUs first: the processes that a calibration starts must not inherit threads. */
    STW_TRY(stw_probe_gpus(out, measure, &found, err));
    if (measure) {
        double together_bps = out->host.bandwidth_bps; /* CPU and all GPUs' copies; 0: no GPU */
        STW_TRY(measure_host(out, err));
        if (together_bps > out->host.bandwidth_bps) out->host.bandwidth_bps = together_bps;
        if (!(out->host.bandwidth_bps > 0)) out->host.bandwidth_bps = guess_bps;
        stamp(out);
    }
    if (!found) pretend_gpu(out);
    if (out->host.bandwidth_bps < out->host.dma_bps) out->host.bandwidth_bps = out->host.dma_bps;
    round_rates(out);
out:
    return status;
}

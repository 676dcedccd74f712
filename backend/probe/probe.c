/* SPDX-License-Identifier: Apache-2.0 */
/* A calibration put together: what there is, then its parts, then what follows from them. */
#define _DEFAULT_SOURCE /* clock_gettime, gethostname */
#include "backend/probe/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "backend/limits.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "plan/spec/cluster_check.h"
#include "stw_config.h"

#define MIB (1ull << 20)

__attribute__((weak)) stw_status stw_probe_gpus(stw_probe *probe, stw_cluster *out, bool *found,
                                                stw_error *err) {
    (void)probe;
    (void)out;
    (void)err;
    *found = false;
    return STW_STATUS_OK;
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

/* One cache of one core, if this is the first core that has it; else 0. */
static uint64_t cache_of(long cpu, int index) {
    char path[96], size[32] = "", *unit = size;
    long first = -1;
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/cache/index%d/shared_cpu_list", cpu,
             index);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    if (fscanf(file, "%ld", &first) != 1) first = -1;
    fclose(file);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/cache/index%d/size", cpu, index);
    file = first == cpu ? fopen(path, "r") : NULL;
    if (file == NULL) return 0;
    if (fscanf(file, "%31s", size) == 1) bytes = strtoull(size, &unit, 10);
    fclose(file);
    return bytes * (*unit == 'M' ? MIB : *unit == 'K' ? 1024 : 1);
}

/* Second and third level together. 0 where the system does not say. */
static uint64_t cache_bytes(void) {
    uint64_t bytes = 0;
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    for (long cpu = 0; cpu < cpus; cpu++) bytes += cache_of(cpu, 2) + cache_of(cpu, 3);
    return bytes;
}

static uint64_t shm_bytes(void) {
    struct statvfs shm;
    if (statvfs("/dev/shm", &shm) != 0) return STW_UNLIMITED;
    return (uint64_t)shm.f_blocks * shm.f_frsize;
}

static stw_status describe_host(stw_probe *probe, stw_cluster *out, stw_error *err) {
    stw_limits limits;
    stw_status status = stw_limits_read("", &limits, err);
    if (status != STW_STATUS_OK) return status;
    (void)stw_limits_warn(&limits, getenv("OMP_NUM_THREADS"));
    uint64_t memory = limits.memory_bytes;
    /* Ordinarily the kernel keeps a few percent of what is present for itself. */
    uint64_t present = present_bytes() / 100 * 97;
    bool grows = present / 10 * 9 > memory;
    if (grows) {
        stw_log(STW_LOG_INFO, "MemTotal is %llu MiB now and grows with use: %llu MiB are present",
                (unsigned long long)(memory / MIB), (unsigned long long)(present / MIB));
        memory = present;
    }
    out->nodes = 1;
    out->host.memory_bytes = memory;
    out->host.limit_bytes = stw_min_u64(memory, limits.cgroup_bytes);
    out->host.page_lock_limit_bytes = limits.page_lock_bytes;
    out->host.cores = limits.cores;
    out->host.shm_bytes = shm_bytes();
    out->host.cache_bytes = cache_bytes();
    out->host.process_bytes = stw_max_u64(stw_process_resident_bytes(), 64 * MIB);
    char host[64] = "";
    if (gethostname(host, sizeof host - 1) == 0 && host[0] != '\0')
        snprintf(out->name, sizeof out->name, "%s", host);
    probe->room_bytes = out->host.limit_bytes / 8;
    /* Others use this machine too. */
    if (!grows && limits.available_bytes > 0)
        probe->room_bytes = stw_min_u64(probe->room_bytes, limits.available_bytes / 2);
    return STW_STATUS_OK;
}

/* STOWAGE_PROBE_BYTES: see probe.h. */
static stw_status read_environment(stw_probe *probe, stw_error *err) {
    const char *text = getenv("STOWAGE_PROBE_BYTES");
    if (text == NULL || text[0] == '\0') return STW_STATUS_OK;
    stw_status status =
        stw_u64_parse(text, STW_UNIT_BYTES, &probe->most_bytes, "STOWAGE_PROBE_BYTES", err);
    probe->time_scale = 0.02;
    return status;
}

/* Without measuring: what a core does on ordinary servers, until memory is the limit. */
static void guess_host(stw_cluster *out) {
    double cores = (double)out->host.cores;
    out->host.bandwidth_bps = cores < 12 ? 10e9 * cores : 120e9;
    out->cpu_adamw_pps = cores < 12 ? 0.25e9 * cores : 3e9;
}

/* Rates of the pretend GPU follow from the host's: a copy reads and writes host memory. */
static void pretend_gpu(stw_cluster *out) {
    uint64_t bytes = out->host.limit_bytes / 4 / (64 * MIB) * (64 * MIB);
    out->gpus = 0;
    snprintf(out->gpu.name, sizeof out->gpu.name, "%s", STW_NO_GPU);
    out->gpu.memory_bytes = stw_max_u64(bytes, 64 * MIB);
    out->gpu.context_bytes = out->gpu.comm_bytes = 0;
    out->host.page_lock_limit_bytes = STW_UNLIMITED; /* the host backend locks no pages */
    out->host.limit_bytes -= stw_min_u64(out->gpu.memory_bytes, out->host.limit_bytes / 2);
    out->gpu.hbm_bps = out->host.dma_bps = out->host.bandwidth_bps;
    out->gpu.norm_bps = 4 * out->cpu_norm_pps;    /* on the CPU too */
    out->gpu.bf16_flops = 32e9 * out->host.cores; /* a guess: nothing is computed there */
    out->pcie.h2d_bps = out->pcie.d2h_bps = out->host.bandwidth_bps / 2;
    out->pcie.both_bps = out->host.bandwidth_bps / 4;
    out->pcie.latency_s = 5e-6;
    out->nvlink_bps = 0;
}

/* Date, and what the figures depend on besides the machine; drivers come first where there are. */
static void stamp(stw_cluster *out) {
    time_t now = time(NULL);
    struct tm utc;
    struct utsname system;
    char *versions = out->calibration.versions;
    size_t used = strlen(versions), room = sizeof out->calibration.versions - used;
    snprintf(versions + used, room, "%sStowage %s%s%.40s", used > 0 ? ", " : "", STW_VERSION,
             uname(&system) == 0 ? ", Linux " : "", uname(&system) == 0 ? system.release : "");
    out->calibration.measured = true;
    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(out->calibration.date, sizeof out->calibration.date, "%Y-%m-%d", &utc);
}

/* Sums and shares of rounded rates are no round numbers. */
static void round_rates(stw_cluster *out) {
    double *rates[] = {&out->gpu.update_bps,
                       &out->gpu.norm_bf16_bps,
                       &out->gpu.hbm_bps,
                       &out->gpu.norm_bps,
                       &out->gpu.bf16_flops,
                       &out->pcie.h2d_bps,
                       &out->pcie.d2h_bps,
                       &out->host.bandwidth_bps,
                       &out->pcie.both_bps,
                       &out->host.dma_bps,
                       &out->cpu_adamw_pps,
                       &out->cpu_norm_pps,
                       &out->pcie.latency_s,
                       &out->nvlink_bps,
                       &out->nvme.read_bps,
                       &out->nvme.write_bps,
                       &out->nvme.both_bps,
                       &out->host.dma_beside_bps,
                       &out->host.dma_up_bps,
                       &out->host.dma_down_bps,
                       &out->host.page_lock_bps,
                       &out->pcie.direct_bps,
                       &out->cpu_adamw_ring_pps,
                       &out->host.file_read_bps,
                       &out->host.file_read_rank_bps,
                       &out->gpu.boxes_bps,
                       &out->messages_bps};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        *rates[i] = stw_probe_three_digits(*rates[i]);
}

static void measure(const stw_probe *probe, const char *data_folder, stw_cluster *out) {
    char script[4096];
    stw_probe_host(probe, out);
    stw_probe_files(probe, out);
    stw_probe_disk(probe, out);
    if (data_folder != NULL && snprintf(script, sizeof script, "%s/probe/torch_rates.py",
                                        data_folder) < (int)sizeof script)
        stw_probe_torch(probe, script, out);
    stamp(out);
    stw_sample spent = stw_sample_make("calibration", "whole", "s");
    stw_sample_add(&spent, stw_process_now_s() - probe->start_s);
    (void)stw_probe_keep(probe, &spent);
}

stw_status stw_machine_probe(const stw_probe_options *options, stw_cluster *out,
                             stw_samples *samples, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool found = false, measures = options->depth != STW_PROBE_SIZES;
    stw_probe probe = {.depth = options->depth,
                       .nvme_folder = options->nvme_folder,
                       .most_bytes = UINT64_MAX,
                       .time_scale = 1,
                       .start_s = stw_process_now_s(),
                       .samples = samples};
    STW_TRY(stw_cluster_defaults(out, err));
    STW_TRY(read_environment(&probe, err));
    STW_TRY(describe_host(&probe, out, err));
    guess_host(out);
    double guess_bps = out->host.bandwidth_bps;
    if (measures) {
        stw_sample base = stw_sample_make("process", "resident at the start", "B");
        stw_sample_add(&base, (double)stw_process_resident_bytes());
        (void)stw_probe_keep(&probe, &base);
        out->host.bandwidth_bps = 0;
    }
    /* GPUs first: the processes that a calibration starts must not inherit threads. */
    STW_TRY(stw_probe_gpus(&probe, out, &found, err));
    if (measures)
        measure(&probe, options->data_folder, out);
    else
        out->nvme.capacity_bytes = stw_probe_disk_capacity(probe.nvme_folder);
    if (!(out->host.bandwidth_bps > 0)) out->host.bandwidth_bps = guess_bps;
    if (!found) pretend_gpu(out);
    if (out->host.bandwidth_bps < out->host.dma_bps) out->host.bandwidth_bps = out->host.dma_bps;
    round_rates(out);
    stw_cluster_lower_rates(out, NULL);
    if (samples != NULL) STW_TRY(stw_samples_status(samples, err));
out:
    stw_progress_end();
    return status;
}

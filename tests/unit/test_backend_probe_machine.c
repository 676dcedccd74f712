/* SPDX-License-Identifier: Apache-2.0 */
/* What a calibration finds on a machine that this test makes up: its memory, caches and limits, its
 * GPUs and rates, and what a script says of torch. Every field that is set is looked at. The linker
 * hands the calls below to this test (--wrap). */
#define _GNU_SOURCE /* fmemopen */
#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "backend/limits.h"
#include "core/checked.h"
#include "core/progress.h"
#include "core/units.h"
#include "stw_config.h"
#include "tests/unit/probe_case.h"

/* ---- a machine ---- */

static struct {
    stw_limits limits;
    stw_status limits_status, gpus_status;
    const char *zones;
    long cpus;
    uint64_t resident, shm;
    bool has_host, gpus_found;
    double gpu_bps, gpu_dma_bps; /* of the host's memory, measured with GPUs */
    stw_probe probe;             /* as the first part found it */
    char calls[200], script[300];
    unsigned warned, ended;
} m;

stw_status __wrap_stw_limits_read(const char *root, stw_limits *out, stw_error *err);
stw_status __wrap_stw_limits_read(const char *root, stw_limits *out, stw_error *err) {
    CU_ASSERT_STRING_EQUAL(root, "");
    *out = m.limits;
    if (m.limits_status == STW_STATUS_OK) return STW_STATUS_OK;
    return stw_fail(err, m.limits_status, "limits", "no limits here");
}
uint32_t __wrap_stw_limits_warn(const stw_limits *limits, const char *omp_num_threads);
uint32_t __wrap_stw_limits_warn(const stw_limits *limits, const char *omp_num_threads) {
    CU_ASSERT_EQUAL(limits->cores, m.limits.cores);
    CU_ASSERT_PTR_EQUAL(omp_num_threads, getenv("OMP_NUM_THREADS"));
    return ++m.warned;
}
uint64_t __wrap_stw_process_resident_bytes(void);
uint64_t __wrap_stw_process_resident_bytes(void) { return m.resident; }

long __real_sysconf(int name);
long __wrap_sysconf(int name);
long __wrap_sysconf(int name) {
    return name == _SC_NPROCESSORS_CONF ? m.cpus : __real_sysconf(name);
}
int __wrap_statvfs(const char *path, struct statvfs *out);
int __wrap_statvfs(const char *path, struct statvfs *out) {
    *out = (struct statvfs){.f_frsize = 512, .f_blocks = m.shm / 512, .f_bavail = 1};
    return strcmp(path, "/dev/shm") == 0 && m.shm > 0 ? 0 : -1;
}
int __wrap_gethostname(char *out, size_t out_size);
int __wrap_gethostname(char *out, size_t out_size) {
    snprintf(out, out_size, "machine");
    return m.has_host ? 0 : -1;
}
int __wrap_uname(struct utsname *out);
int __wrap_uname(struct utsname *out) {
    snprintf(out->release, sizeof out->release, "6.6.6");
    return m.has_host ? 0 : -1;
}
time_t __wrap_time(time_t *out);
time_t __wrap_time(time_t *out) {
    (void)out;
    return 40 * 365 * 86400l;
}
void __wrap_stw_progress_end(void);
void __wrap_stw_progress_end(void) { m.ended++; }

/* Caches: of the second and third level, but not of the first; cores 0 and 1 share the second one.
 */
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode) {
    static const struct {
        const char *path, *text;
    } files[] = {{"cpu0/cache/index1/shared_cpu_list", "0\n"},
                 {"cpu0/cache/index1/size", "32K\n"},
                 {"cpu0/cache/index2/shared_cpu_list", "0-1\n"},
                 {"cpu0/cache/index2/size", "2048K\n"},
                 {"cpu0/cache/index3/shared_cpu_list", "0-3\n"},
                 {"cpu0/cache/index3/size", "32M\n"},
                 {"cpu1/cache/index2/shared_cpu_list", "0-1\n"},
                 {"cpu1/cache/index2/size", "2048K\n"},
                 {"cpu2/cache/index2/shared_cpu_list", "2\n"},
                 {"cpu2/cache/index2/size", "512\n"},
                 {"cpu3/cache/index2/shared_cpu_list", "none\n"},
                 {"cpu3/cache/index2/size", "8M\n"},
                 {"cpu3/cache/index3/shared_cpu_list", "3\n"},
                 {"cpu4/cache/index3/shared_cpu_list", "4\n"},
                 {"cpu4/cache/index3/size", "1M\n"}};
    static const char root[] = "/sys/devices/system/cpu/";
    const char *text = strcmp(path, "/proc/zoneinfo") == 0 ? m.zones : NULL;
    const bool cpu = strncmp(path, root, sizeof root - 1) == 0;
    if (!cpu && strcmp(path, "/proc/zoneinfo") != 0) return __real_fopen(path, mode);
    for (size_t i = 0; cpu && i < sizeof files / sizeof files[0]; i++)
        if (strcmp(path + sizeof root - 1, files[i].path) == 0) text = files[i].text;
    return text != NULL ? fmemopen((void *)(uintptr_t)text, strlen(text), "r") : NULL;
}

/* ---- the parts ---- */

#define ROUGH 1.23456e9

static void called(const char *name) { strcat(m.calls, name); }

/* The strong one: there are no GPUs in the library. */
stw_status stw_probe_gpus(stw_probe *probe, stw_cluster *out, bool *found, stw_error *err) {
    called("gpus ");
    m.probe = *probe;
    *found = m.gpus_found;
    if (m.gpus_status != STW_STATUS_OK) return stw_fail(err, m.gpus_status, "gpu", "it is off");
    if (!m.gpus_found) return STW_STATUS_OK;
    double *rates[] = {&out->gpu.update_bps,    &out->gpu.norm_bf16_bps,   &out->gpu.hbm_bps,
                       &out->gpu.norm_bps,      &out->gpu.bf16_flops,      &out->pcie.h2d_bps,
                       &out->pcie.d2h_bps,      &out->pcie.both_bps,       &out->pcie.latency_s,
                       &out->nvlink_bps,        &out->host.dma_beside_bps, &out->host.dma_up_bps,
                       &out->host.dma_down_bps, &out->host.page_lock_bps,  &out->pcie.direct_bps};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) *rates[i] = ROUGH;
    out->gpus = 2;
    snprintf(out->gpu.name, sizeof out->gpu.name, "mine");
    snprintf(out->calibration.versions, sizeof out->calibration.versions, "driver 1");
    out->host.dma_bps = m.gpu_dma_bps;
    out->host.bandwidth_bps = m.gpu_bps;
    clock_s += 2.5;
    return STW_STATUS_OK;
}
void __wrap_stw_probe_host(const stw_probe *probe, stw_cluster *out);
void __wrap_stw_probe_host(const stw_probe *probe, stw_cluster *out) {
    called("host ");
    CU_ASSERT_EQUAL(out->host.bandwidth_bps, m.gpus_found ? m.gpu_bps : 0); /* not a guess */
    CU_ASSERT_EQUAL(probe->room_bytes, m.probe.room_bytes);
    out->cpu_adamw_pps = out->cpu_adamw_ring_pps = out->cpu_norm_pps = ROUGH;
}
void __wrap_stw_probe_files(const stw_probe *probe, stw_cluster *out);
void __wrap_stw_probe_files(const stw_probe *probe, stw_cluster *out) {
    (void)probe;
    called("files ");
    out->host.file_read_bps = out->host.file_read_rank_bps = ROUGH;
}
void __wrap_stw_probe_disk(const stw_probe *probe, stw_cluster *out);
void __wrap_stw_probe_disk(const stw_probe *probe, stw_cluster *out) {
    called("disk ");
    CU_ASSERT_STRING_EQUAL(probe->nvme_folder, "my/disk");
    out->nvme.read_bps = out->nvme.write_bps = out->nvme.both_bps = ROUGH;
}
uint64_t __wrap_stw_probe_disk_capacity(const char *folder);
uint64_t __wrap_stw_probe_disk_capacity(const char *folder) {
    called("capacity ");
    CU_ASSERT_STRING_EQUAL(folder, "my/disk");
    return 77 * GIB;
}
void __real_stw_probe_torch(const stw_probe *probe, const char *path, stw_cluster *out);
void __wrap_stw_probe_torch(const stw_probe *probe, const char *path, stw_cluster *out);
void __wrap_stw_probe_torch(const stw_probe *probe, const char *path, stw_cluster *out) {
    (void)probe;
    (void)out;
    called("torch ");
    snprintf(m.script, sizeof m.script, "%s", path);
}

static void usual_machine(void) {
    memset(&m, 0, sizeof m);
    clock_s = 100;
    m.limits = (stw_limits){.memory_bytes = 100 * GIB,
                            .available_bytes = 40 * GIB,
                            .cgroup_bytes = 60 * GIB,
                            .page_lock_bytes = 5 * GIB,
                            .cores = 8};
    m.zones = "Node 0, zone DMA\n  pages free 1\n        present  10000000\n        managed  9\n"
              "Node 0, zone Normal\n        present  16738000\n";
    m.cpus = 4;
    m.resident = 70 * MIB;
    m.shm = 3 * GIB;
    m.has_host = true;
    m.gpu_bps = 90e9;
    m.gpu_dma_bps = 80e9;
}

static stw_cluster describe(void) {
    const stw_probe_options options = {.nvme_folder = "my/disk"};
    stw_cluster c;
    CHECK_OK(stw_machine_probe(&options, &c, NULL, err));
    CU_ASSERT_STRING_EQUAL(m.calls, "gpus capacity ");
    CU_ASSERT_EQUAL(m.warned, 1);
    CU_ASSERT_EQUAL(m.ended, 1);
    return c;
}

static void machines_are_described(void) {
    usual_machine();
    stw_cluster c = describe();
    CU_ASSERT_EQUAL(c.nodes, 1);
    CU_ASSERT_STRING_EQUAL(c.name, "machine");
    CU_ASSERT_EQUAL(c.host.memory_bytes, 100 * GIB);
    CU_ASSERT_EQUAL(c.host.limit_bytes, 45 * GIB); /* a quarter is the pretended GPU's */
    CU_ASSERT_EQUAL(c.host.page_lock_limit_bytes, STW_UNLIMITED);
    CU_ASSERT_EQUAL(c.host.cores, 8);
    CU_ASSERT_EQUAL(c.host.shm_bytes, 3 * GIB);
    CU_ASSERT_EQUAL(c.host.cache_bytes, 34 * MIB + 512);
    CU_ASSERT_EQUAL(c.host.process_bytes, 70 * MIB);
    CU_ASSERT_EQUAL(c.host.bandwidth_bps, 80e9);
    CU_ASSERT_EQUAL(c.cpu_adamw_pps, 2e9);
    CU_ASSERT_EQUAL(c.gpus, 0);
    CU_ASSERT_STRING_EQUAL(c.gpu.name, STW_NO_GPU);
    CU_ASSERT_EQUAL(c.gpu.memory_bytes, 15 * GIB);
    CU_ASSERT_EQUAL(c.gpu.context_bytes, 0);
    CU_ASSERT_EQUAL(c.gpu.comm_bytes, 0);
    CU_ASSERT_EQUAL(c.gpu.hbm_bps, 80e9);
    CU_ASSERT_EQUAL(c.host.dma_bps, 80e9);
    CU_ASSERT_EQUAL(c.gpu.norm_bps, 4 * c.cpu_norm_pps);
    CU_ASSERT_EQUAL(c.gpu.bf16_flops, 256e9);
    CU_ASSERT_EQUAL(c.pcie.h2d_bps, 40e9);
    CU_ASSERT_EQUAL(c.pcie.d2h_bps, 40e9);
    CU_ASSERT_EQUAL(c.pcie.both_bps, 20e9);
    CU_ASSERT_EQUAL(c.pcie.latency_s, 5e-6);
    CU_ASSERT_EQUAL(c.nvlink_bps, 0);
    CU_ASSERT_EQUAL(c.nvme.capacity_bytes, 77 * GIB);
    CU_ASSERT_FALSE(c.calibration.measured);
    CU_ASSERT_EQUAL(m.probe.room_bytes, 60 * GIB / 8);
    CU_ASSERT_EQUAL(m.probe.most_bytes, UINT64_MAX);
    CU_ASSERT_EQUAL(m.probe.time_scale, 1);
    CU_ASSERT_EQUAL(m.probe.start_s, 100);
    CU_ASSERT_EQUAL(m.probe.gpus, 0);
}

static void machines_differ(void) {
    usual_machine();
    m.limits.available_bytes = 3 * GIB;
    m.limits.cgroup_bytes = STW_UNLIMITED;
    m.limits.cores = 20;
    m.zones = NULL;
    m.cpus = 5;
    m.resident = 3;
    m.shm = 0;
    m.has_host = false;
    stw_cluster c = describe();
    CU_ASSERT_STRING_NOT_EQUAL(c.name, "machine");
    CU_ASSERT_EQUAL(c.host.limit_bytes, 75 * GIB);
    CU_ASSERT_EQUAL(c.host.bandwidth_bps, 120e9);
    CU_ASSERT_EQUAL(c.cpu_adamw_pps, 3e9);
    CU_ASSERT_EQUAL(c.host.process_bytes, 64 * MIB);
    CU_ASSERT_EQUAL(c.host.shm_bytes, STW_UNLIMITED);
    CU_ASSERT_EQUAL(c.host.cache_bytes, 35 * MIB + 512);
    CU_ASSERT_EQUAL(m.probe.room_bytes, 3 * GIB / 2);
    /* A balloon: what is present counts, and what is available says little. */
    usual_machine();
    m.limits.available_bytes = 3 * GIB;
    m.limits.cgroup_bytes = STW_UNLIMITED;
    m.zones = "  present 52428800\n"; /* 200 GiB */
    c = describe();
    CU_ASSERT_EQUAL(c.host.memory_bytes, 200 * GIB / 100 * 97);
    CU_ASSERT_EQUAL(m.probe.room_bytes, c.host.memory_bytes / 8);
    m.zones = "  present 30000000\n"; /* a little more than MemTotal: the kernel's own */
    m.calls[0] = '\0';
    m.warned = m.ended = 0;
    c = describe();
    CU_ASSERT_EQUAL(c.host.memory_bytes, 100 * GIB);
    /* Hardly any memory. */
    usual_machine();
    m.limits.cgroup_bytes = 100 * MIB;
    m.limits.available_bytes = 0;
    c = describe();
    CU_ASSERT_EQUAL(c.gpu.memory_bytes, 64 * MIB);
    CU_ASSERT_EQUAL(c.host.limit_bytes, 50 * MIB);
    CU_ASSERT_EQUAL(m.probe.room_bytes, 100 * MIB / 8);
}

static void gpus_are_as_they_were_found(void) {
    usual_machine();
    m.gpus_found = true;
    stw_cluster c = describe();
    CU_ASSERT_EQUAL(c.gpus, 2);
    CU_ASSERT_STRING_EQUAL(c.gpu.name, "mine");
    CU_ASSERT_EQUAL(c.host.limit_bytes, 60 * GIB);
    CU_ASSERT_EQUAL(c.host.page_lock_limit_bytes, 5 * GIB);
    CU_ASSERT_EQUAL(c.host.bandwidth_bps, 90e9);
    CU_ASSERT_EQUAL(c.host.dma_bps, 80e9);
}

static void measures_in_order(void) {
    stw_samples samples = STW_SAMPLES_INIT;
    const stw_probe_options options = {STW_PROBE_FULL, "my/disk", "my/data"};
    stw_cluster c;
    char versions[128];
    usual_machine();
    m.gpus_found = true;
    m.gpu_bps = 70e9; /* copies alone moved more */
    CHECK_OK(stw_machine_probe(&options, &c, &samples, err));
    CU_ASSERT_STRING_EQUAL(m.calls, "gpus host files disk torch ");
    CU_ASSERT_STRING_EQUAL(m.script, "my/data/probe/torch_rates.py");
    CU_ASSERT_EQUAL(m.probe.depth, STW_PROBE_FULL);
    CU_ASSERT_PTR_EQUAL(m.probe.samples, &samples);
    CU_ASSERT_STRING_EQUAL(list_of(&samples), "process | resident at the start | B | 1\n"
                                              "calibration | whole | s | 1\n");
    CU_ASSERT_TRUE(all_are(&samples, "process", 70 * MIB));
    CU_ASSERT_TRUE(all_are(&samples, "calibration", 2.5));
    CU_ASSERT_TRUE(c.calibration.measured);
    CU_ASSERT_STRING_EQUAL(c.calibration.date, "2009-12-22");
    snprintf(versions, sizeof versions, "driver 1, Stowage %s, Linux 6.6.6", STW_VERSION);
    CU_ASSERT_STRING_EQUAL(c.calibration.versions, versions);
    CU_ASSERT_EQUAL(c.host.bandwidth_bps, 80e9);
    const double rates[] = {c.gpu.update_bps,      c.gpu.norm_bf16_bps,      c.gpu.hbm_bps,
                            c.gpu.norm_bps,        c.gpu.bf16_flops,         c.pcie.h2d_bps,
                            c.pcie.d2h_bps,        c.pcie.both_bps,          c.cpu_adamw_pps,
                            c.cpu_norm_pps,        c.pcie.latency_s,         c.nvlink_bps,
                            c.nvme.read_bps,       c.nvme.write_bps,         c.nvme.both_bps,
                            c.host.dma_beside_bps, c.host.dma_up_bps,        c.host.dma_down_bps,
                            c.host.page_lock_bps,  c.pcie.direct_bps,        c.cpu_adamw_ring_pps,
                            c.host.file_read_bps,  c.host.file_read_rank_bps};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) CU_ASSERT_EQUAL(rates[i], 1.23e9);
    stw_samples_free(&samples);

    usual_machine(); /* nothing measured the host's memory: the guess; no script */
    stw_samples other = STW_SAMPLES_INIT;
    const stw_probe_options quick = {STW_PROBE_QUICK, "my/disk", NULL};
    m.has_host = false;
    CHECK_OK(stw_machine_probe(&quick, &c, &other, err));
    CU_ASSERT_STRING_EQUAL(m.calls, "gpus host files disk ");
    CU_ASSERT_EQUAL(c.host.bandwidth_bps, 80e9);
    CU_ASSERT_EQUAL(c.gpu.hbm_bps, 80e9);
    CU_ASSERT_EQUAL(c.gpu.norm_bps, stw_probe_three_digits(4 * ROUGH));
    snprintf(versions, sizeof versions, "Stowage %s", STW_VERSION);
    CU_ASSERT_STRING_EQUAL(c.calibration.versions, versions);
    stw_samples_free(&other);
    usual_machine();
    char *longer = malloc(4096);
    CU_ASSERT_PTR_NOT_NULL_FATAL(longer);
    memset(longer, 'x', 4095);
    longer[4095] = '\0';
    const stw_probe_options far = {STW_PROBE_QUICK, "my/disk", longer};
    CHECK_OK(stw_machine_probe(&far, &c, NULL, err));
    CU_ASSERT_STRING_EQUAL(m.calls, "gpus host files disk ");
    free(longer);
}

static void what_fails_is_said(void) {
    stw_samples samples = STW_SAMPLES_INIT;
    const stw_probe_options options = {STW_PROBE_QUICK, "my/disk", NULL};
    stw_cluster c;
    usual_machine();
    m.limits_status = STW_STATUS_IO;
    CHECK_FAILS(stw_machine_probe(&options, &c, &samples, err), STW_STATUS_IO, "no limits here");
    CU_ASSERT_STRING_EQUAL(m.calls, "");
    CU_ASSERT_EQUAL(m.ended, 1);
    usual_machine();
    m.gpus_status = STW_STATUS_DEVICE;
    CHECK_FAILS(stw_machine_probe(&options, &c, &samples, err), STW_STATUS_DEVICE, "it is off");
    CU_ASSERT_STRING_EQUAL(m.calls, "gpus ");
    usual_machine();
    samples.failed = true;
    CHECK_FAILS(stw_machine_probe(&options, &c, &samples, err), STW_STATUS_NO_MEMORY, "");
    stw_samples_free(&samples);
    usual_machine();
    CU_ASSERT_EQUAL(setenv("STOWAGE_PROBE_BYTES", "3 MiB", 1), 0);
    CHECK_OK(stw_machine_probe(&options, &c, NULL, err));
    CU_ASSERT_EQUAL(m.probe.most_bytes, 3 * MIB);
    CU_ASSERT_EQUAL(m.probe.time_scale, 0.02);
    CU_ASSERT_EQUAL(setenv("STOWAGE_PROBE_BYTES", "three", 1), 0);
    CHECK_FAILS(stw_machine_probe(&options, &c, NULL, err), STW_STATUS_BAD_INPUT,
                "STOWAGE_PROBE_BYTES");
    CU_ASSERT_EQUAL(setenv("STOWAGE_PROBE_BYTES", "", 1), 0);
    CHECK_OK(stw_machine_probe(&options, &c, NULL, err));
    CU_ASSERT_EQUAL(m.probe.most_bytes, UINT64_MAX);
    CU_ASSERT_EQUAL(unsetenv("STOWAGE_PROBE_BYTES"), 0);
}

/* ---- torch: a script in place of python ---- */

static char progress[400];
static uint64_t progress_total;
void __wrap_stw_progress_phase(const char *what, stw_progress_unit unit, uint64_t total);
void __wrap_stw_progress_phase(const char *what, stw_progress_unit unit, uint64_t total) {
    const size_t used = strlen(progress);
    (void)unit;
    progress_total = total;
    snprintf(progress + used, sizeof progress - used, "%s; ", what);
}

static double after_poll_s; /* that the first lines take */
static unsigned polls;
int __real_poll(struct pollfd *files, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *files, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *files, nfds_t n, int timeout_ms) {
    CU_ASSERT_TRUE(timeout_ms > 0 && timeout_ms <= 90001);
    if (polls++ == 0) {
        errno = EINTR;
        return -1;
    }
    const int ready = __real_poll(files, n, timeout_ms);
    clock_s += after_poll_s;
    return ready;
}

typedef struct heard {
    stw_cluster cluster;
    stw_samples samples;
} heard;

static heard hear(const char *body, stw_probe_depth depth, double time_scale) {
    heard h = {.samples = STW_SAMPLES_INIT};
    FILE *file = fopen("torch_stub", "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fprintf(file, "#!/bin/sh\nrm -f said\n%s\n", body);
    fclose(file);
    CU_ASSERT_EQUAL(chmod("torch_stub", 0700), 0);
    stw_probe p = {.depth = depth,
                   .room_bytes = 5000,
                   .most_bytes = 7000,
                   .time_scale = time_scale,
                   .samples = &h.samples};
    h.cluster.host.cores = 6;
    h.cluster.gpus = 3;
    logged[0] = progress[0] = '\0';
    polls = 0;
    clock_s = 0;
    stw_log_set(keep_log, NULL);
    __real_stw_probe_torch(&p, "the/script", &h.cluster);
    stw_log_set(NULL, NULL);
    return h;
}

static void torch_is_heard(void) {
    CU_ASSERT_EQUAL(setenv("STOWAGE_PYTHON", "./torch_stub", 1), 0);
    heard h = hear(
        "say() { printf \"$1\\tone thread\\tparam/s\\t$2\\n\"; }\n"
        "echo \"$@\" >said.txt\n"
        "echo 'to nobody' >&2\n"
        "printf 'progress\\t0.5\\tfused\\nprogress\\t0.25\\nno tab\\nother\\tfield\\n'\n"
        "say 'sample\\tloop' '1e9\\t3e9\\t2.3456e9'\n"
        "say 'sample\\tloop_one' 2e9\nsay 'sample\\tforeach' 3e9\nsay 'sample\\tforeach_one' 4e9\n"
        "say 'sample\\tfused' 5e9\nsay 'sample\\tfused_one' 6e9\nsay 'sample\\tcpu_adam' 7e9\n"
        "say 'sample\\tcpu_adam_one' 8e9\nsay 'sample\\tpageable' 9e9\nsay 'sample\\tcall' 1e-5\n"
        "say 'sample\\tprocess' 123456789\nsay 'sample\\tunknown' 5\n"
        "say 'sample\\tfused' 'x\\t-1\\t0\\t1e15\\t3x\\tnan'\n" /* none of them is a value */
        "printf 'sample\\tfused\\tdetail\\n'\n"
        "printf 'sample\\tfused'; sleep 0.05; printf '\\tlater\\tparam/s\\t1e3\\t'\n"
        "sleep 0.05; printf '7e3\\t1e5\\nsample\\tloop\\tcut off\\tparam/s\\t5'",
        STW_PROBE_FULL, 1);
    CU_ASSERT_STRING_EQUAL(logged, "");
    CU_ASSERT_STRING_EQUAL(list_of(&h.samples), "torch loop | one thread | param/s | 3\n"
                                                "torch loop_one | one thread | param/s | 1\n"
                                                "torch foreach | one thread | param/s | 1\n"
                                                "torch foreach_one | one thread | param/s | 1\n"
                                                "torch fused | one thread | param/s | 1\n"
                                                "torch fused_one | one thread | param/s | 1\n"
                                                "torch cpu_adam | one thread | param/s | 1\n"
                                                "torch cpu_adam_one | one thread | param/s | 1\n"
                                                "torch pageable | one thread | param/s | 1\n"
                                                "torch call | one thread | param/s | 1\n"
                                                "torch process | one thread | param/s | 1\n"
                                                "torch unknown | one thread | param/s | 1\n"
                                                "torch fused | later | param/s | 3\n");
    const stw_cluster *c = &h.cluster;
    const double rates[] = {c->torch.loop.all_pps,     c->torch.loop.one_pps,
                            c->torch.foreach.all_pps,  c->torch.foreach.one_pps,
                            c->torch.fused.all_pps,    c->torch.fused.one_pps,
                            c->torch.cpu_adam.all_pps, c->torch.cpu_adam.one_pps,
                            c->pcie.pageable_bps,      c->host.call_s},
                 said[] = {2.35e9, 2e9, 3e9, 4e9, 7e3, 6e9, 7e9, 8e9, 9e9, 1e-5};
    for (int i = 0; i < 10; i++) CU_ASSERT_EQUAL(rates[i], said[i]);
    CU_ASSERT_EQUAL(c->torch.process_bytes, 123000000);
    CU_ASSERT_STRING_EQUAL(progress,
                           "calibrating, torch; calibrating, fused; calibrating, torch; ");
    CU_ASSERT_EQUAL(progress_total, 1000);
    char text[200] = "";
    FILE *file = fopen("said.txt", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_PTR_NOT_NULL(fgets(text, sizeof text, file));
    fclose(file);
    CU_ASSERT_STRING_EQUAL(text, "the/script --ranks 3 --cores 6 --bytes 5000\n");
    CU_ASSERT_EQUAL(unlink("said.txt"), 0);
    stw_samples_free(&h.samples);
}

static const char sample_line[] = "printf 'sample\\tfused\\tone\\tparam/s\\t5e9\\n'\n";

/* What a script does besides: `body`, after one rate. */
static void check_said(const char *body, double time_scale, const char *expected) {
    char all[400];
    snprintf(all, sizeof all, "%s%s", sample_line, body);
    heard h = hear(all, STW_PROBE_FULL, time_scale);
    CU_ASSERT_STRING_EQUAL(logged, expected);
    CU_ASSERT_EQUAL(h.cluster.torch.fused.all_pps, 5e9);
    CU_ASSERT_EQUAL(h.samples.n, 1);
    stw_samples_free(&h.samples);
}

static void scripts_that_fail(void) {
    check_said("printf 'none\\tit has no torch\\n'", 1,
               "optimizers of torch on the CPU are not measured: it has no torch\n");
    check_said("exit 3", 1, "optimizers of torch on the CPU: the script failed after 1 rates\n");
    check_said("kill -TERM $$", 1,
               "optimizers of torch on the CPU: the script failed after 1 rates\n");
    check_said("exit 127", 1,
               "optimizers of torch on the CPU are not measured: no python3 (or set "
               "STOWAGE_PYTHON)\n");
    /* A line that is too long is nothing, and costs what comes after it nothing. */
    check_said("i=0; while [ $i -lt 600 ]; do printf '0123456789'; i=$((i + 1)); done\n"
               "printf '\\nprogress\\t1\\tend\\n'",
               1, "");
    CU_ASSERT_PTR_NOT_NULL(strstr(progress, "calibrating, end; "));
    after_poll_s = 95; /* the time is over: it is ended, with all that it started */
    check_said("sleep 300 & wait", 1,
               "optimizers of torch on the CPU: 90 s were over after 1 rates\n");
    after_poll_s = 46;
    check_said("sleep 300 & wait", 0.5,
               "optimizers of torch on the CPU: 45 s were over after 1 rates\n");
    after_poll_s = 10;
    check_said("sleep 300 & wait", 0.01,
               "optimizers of torch on the CPU: 9 s were over after 1 rates\n");
    after_poll_s = 0;
    CU_ASSERT_EQUAL(setenv("STOWAGE_PYTHON", "/no/such/python", 1), 0);
    heard h = hear("", STW_PROBE_FULL, 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, "no python3"));
    CU_ASSERT_EQUAL(setenv("STOWAGE_PYTHON", "./torch_stub", 1), 0);
    h = hear("echo >said.txt", STW_PROBE_QUICK, 1); /* not started at all */
    CU_ASSERT_STRING_EQUAL(progress, "");
    CU_ASSERT_NOT_EQUAL(access("said.txt", F_OK), 0);
    stw_probe p = {.depth = STW_PROBE_FULL, .time_scale = 1};
    __real_stw_probe_torch(&p, NULL, &h.cluster);
    CU_ASSERT_STRING_EQUAL(progress, "");
    CU_ASSERT_EQUAL(unsetenv("STOWAGE_PYTHON"), 0);
    CU_ASSERT_EQUAL(unlink("torch_stub"), 0);
}

STW_TEST_MAIN("backend probe machine", {"machines are described", machines_are_described},
              {"machines differ", machines_differ},
              {"GPUs are as they were found", gpus_are_as_they_were_found},
              {"measures in order", measures_in_order}, {"what fails is said", what_fails_is_said},
              {"torch is heard", torch_is_heard}, {"scripts that fail", scripts_that_fail})

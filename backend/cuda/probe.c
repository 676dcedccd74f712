/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of this machine: what they are, and the parts of a calibration put together. */
#include "backend/cuda/probe.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "plan/spec/gpu_sheets.h"

#define MIB (1ull << 20)

/* Defaults for what is not measured: bench/results/constants.md. */
#define COMM_BYTES (1740ull * MIB)    /* NCCL's, besides the context */
#define PROCESS_BYTES (1434ull * MIB) /* of a rank's process with CUDA and NCCL */

/* Dense bf16 operations per clock and multiprocessor, by compute capability (NVIDIA's architecture
 * white papers), times clock and multiprocessors. */
static double bf16_by_architecture(int ordinal, const struct cudaDeviceProp *p) {
    static const struct {
        int major, minor; /* minor -1: any */
        double per_clock;
    } rates[] = {{8, 0, 2048}, {8, -1, 512}, {9, -1, 4096}, {10, -1, 8192}, {12, -1, 512}};
    int clock_khz = 0;
    if (cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, ordinal) != cudaSuccess ||
        clock_khz <= 0)
        clock_khz = 1500000;
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        if (p->major == rates[i].major && (rates[i].minor < 0 || p->minor == rates[i].minor))
            return rates[i].per_clock * p->multiProcessorCount * 1e3 * clock_khz;
    return 128 * p->multiProcessorCount * 1e3 * clock_khz;
}

static stw_status describe(stw_cluster *out, int count, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    struct cudaDeviceProp p;
    STW_CUDA_TRY(cudaGetDeviceProperties(&p, 0), "asking for the GPU's properties");
    const stw_gpu_sheet *sheet = stw_gpu_sheet_find(p.name);
    out->gpus = (uint32_t)count;
    snprintf(out->gpu.name, sizeof out->gpu.name, "%.63s", p.name);
    out->gpu.memory_bytes = p.totalGlobalMem;
    out->gpu.comm_bytes = count > 1 ? COMM_BYTES : 0;
    out->gpu.bf16_flops = bf16_by_architecture(0, &p);
    out->nvlink_bps = 20e9;
    if (sheet != NULL)
        STW_TRY(stw_gpu_sheet_apply(sheet, sheet->name, out, err));
    else
        stw_log(STW_LOG_INFO, "%s has no data sheet here: bf16 follows from its clock", p.name);
    if (count < 2) out->nvlink_bps = 0;
    for (int i = 1; i < count; i++) {
        struct cudaDeviceProp other;
        STW_CUDA_TRY(cudaGetDeviceProperties(&other, i), "asking for a GPU's properties");
        if (strcmp(other.name, p.name) != 0)
            STW_TRY(stw_fail(err, STW_STATUS_DEVICE, "gpu",
                             "GPU 0 is \"%.60s\", GPU %d \"%.60s\"; a cluster has alike GPUs: set "
                             "CUDA_VISIBLE_DEVICES",
                             p.name, i, other.name));
    }
out:
    return status;
}

/* What the process of a run holds beyond that of a calibration: its plan, program and threads; and,
 * where several ranks make mpirun likely, Open MPI 4.1 (bench/results/constants.md). */
#define RUN_BYTES (3 * MIB / 2)
#define MPI_BYTES (19 * MIB / 2)

/* What a rank's process and context take before its arenas, measured as a run measures them.
 * @param out host.process_comm_bytes: of a process with a communicator, or 0; becomes its part */
static stw_status measure_context(const stw_probe *probe, stw_cluster *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_backend *backend = stw_backend_cuda_find();
    stw_device *device = NULL;
    stw_device_info info;
    const stw_device_config config = {.local_world = 1,
                                      .n_events = 64,
                                      .types = {STW_ELEMENT_F32, STW_ELEMENT_F32, STW_ELEMENT_NONE,
                                                STW_ELEMENT_F32, STW_ELEMENT_F32},
                                      .threads = 1};
    stw_sample context = stw_sample_make("CUDA context", "with streams, events, kernels", "B");
    stw_sample process = stw_sample_make("process", "resident with CUDA, without NCCL", "B");
    stw_probe_progress(probe, STW_PROBE_PART_CONTEXT, 0, "CUDA context");
    STW_TRY(backend->open(&config, &device, err));
    backend->info(device, &info);
    if (info.used_after_context > info.used_before) {
        out->gpu.context_bytes = info.used_after_context - info.used_before;
        stw_sample_add(&context, (double)out->gpu.context_bytes);
        (void)stw_probe_keep(probe, &context);
    }
    out->gpu.memory_bytes = info.total;
    uint64_t resident = stw_process_resident_bytes();
    stw_sample_add(&process, (double)resident);
    (void)stw_probe_keep(probe, &process);
    /* What ranks with a communicator hold beyond this is the communicator's part. */
    uint64_t with_comm = out->host.process_comm_bytes;
    out->host.process_bytes = resident;
    out->host.process_comm_bytes = with_comm > resident ? with_comm - resident : 0;
out:
    backend->close(device);
    return status;
}

static void note_versions(stw_cluster *out) {
    char driver[64], text[32] = "";
    int runtime = 0, nccl = stw_cuda_nccl_version();
    stw_cuda_driver_version(driver, sizeof driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (nccl > 0)
        snprintf(text, sizeof text, ", NCCL %d.%d.%d", nccl / 10000, nccl % 10000 / 100,
                 nccl % 100);
    snprintf(out->calibration.versions, sizeof out->calibration.versions,
             "driver %.40s, CUDA %d.%d%s", driver[0] != '\0' ? driver : "unknown", runtime / 1000,
             runtime % 1000 / 10, text);
}

static int count_gpus(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    (void)cudaGetLastError();
    return count;
}

static stw_status measure(stw_probe *probe, stw_cluster *out, bool *found, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster measured = *out;
    measured.gpu.comm_bytes = 0;
    int visible = stw_cuda_probe_count();
    if (visible == 0) goto out;
    if (visible > 1) {
        probe->gpus = measured.gpus = (uint32_t)visible;
        stw_cuda_probe_comm(probe, &measured);
    }
    /* From here on this process uses CUDA itself. */
    int count = count_gpus();
    if (count < 1) goto out;
    *found = true;
    probe->gpus = (uint32_t)count;
    STW_TRY(describe(out, count, err));
    if (count > 1 && measured.gpu.comm_bytes > 0) {
        out->gpu.comm_bytes = measured.gpu.comm_bytes;
        out->nvlink_bps = measured.nvlink_bps;
        out->messages_bps = measured.messages_bps;
        out->host.process_comm_bytes = measured.host.process_comm_bytes;
    }
    STW_TRY(measure_context(probe, out, err));
    out->host.process_bytes += RUN_BYTES;
    if (count > 1) out->host.process_comm_bytes += MPI_BYTES;
    STW_TRY(stw_cuda_probe_copies(probe, out, err));
    note_versions(out);
out:
    return status;
}

stw_status stw_probe_gpus(stw_probe *probe, stw_cluster *out, bool *found, stw_error *err) {
    *found = false;
    if (probe->depth != STW_PROBE_SIZES) return measure(probe, out, found, err);
    int count = count_gpus();
    if (count < 1) return STW_STATUS_OK;
    *found = true;
    out->host.process_bytes = PROCESS_BYTES;
    return describe(out, count, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The two things that only NVML tells: how much of a GPU is in use before this process makes its
 * context, and the driver's version. */
#include "backend/nvml.h"

#include <string.h>

#include "backend/cuda/device.h"

bool stw_cuda_used_without_context(const char *bus_id, uint64_t *bytes) {
    stw_nvml *nvml = stw_nvml_open();
    *bytes = 0;
    if (nvml == NULL) return false;
    stw_nvml_gpu *gpu = stw_nvml_by_bus_id(nvml, bus_id);
    bool ok = gpu != NULL && stw_nvml_used(nvml, gpu, bytes);
    stw_nvml_close(nvml);
    return ok;
}

void stw_cuda_driver_version(char *out, size_t out_size) {
    stw_nvml *nvml = stw_nvml_open();
    memset(out, 0, out_size);
    if (nvml == NULL) return;
    stw_nvml_driver(nvml, out, out_size);
    stw_nvml_close(nvml);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A device's context and streams, for whoever works with them. */
#include "backend/cuda/device.h"

stw_status stw_cuda_device_use(const stw_device *device, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_CUDA_TRY(cudaSetDevice(device->ordinal), "choosing the rank's GPU");
out:
    return status;
}

stw_status stw_cuda_memory(uint64_t *free_bytes, uint64_t *total_bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    size_t unused = 0, total = 0;
    STW_CUDA_TRY(cudaMemGetInfo(&unused, &total), "measuring GPU memory");
    *free_bytes = unused;
    *total_bytes = total;
out:
    return status;
}

stw_status stw_cuda_quiesce(stw_device *device, stw_error *err) {
    static const stw_stream order[] = {STW_STREAM_H2D, STW_STREAM_COMPUTE, STW_STREAM_D2H,
                                       STW_STREAM_TO_CPU, STW_STREAM_FROM_CPU};
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cuda_device_use(device, err));
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        STW_CUDA_TRY(cudaStreamSynchronize(device->streams[order[i]]), "waiting for a stream");
out:
    return status;
}

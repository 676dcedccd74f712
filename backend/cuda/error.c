/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "backend/cuda/device.h"

stw_status stw_cuda_fail(stw_error *err, cudaError_t code, const char *call, const char *purpose) {
    char function[64] = "";
    size_t length = strcspn(call, "(");
    if (length >= sizeof function) length = sizeof function - 1;
    memcpy(function, call, length);
    (void)cudaGetLastError(); /* told here: the next call starts clean where that is possible */
    stw_status status =
        code == cudaErrorMemoryAllocation ? STW_STATUS_NO_RESOURCES : STW_STATUS_DEVICE;
    return stw_fail_native(err, status, (long)code, function, "%s: %s (%s)", purpose,
                           cudaGetErrorName(code), cudaGetErrorString(code));
}

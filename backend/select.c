/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "backend/comm/ops.h"

/* The CUDA room defines both for real. These stand in where it is not linked; a program that is
 * linked with static libraries and wants CUDA must name stw_backend_cuda_find, or the linker finds
 * no reason to take the real ones. */
__attribute__((weak)) const stw_backend *stw_backend_cuda_find(void) { return NULL; }
__attribute__((weak)) const stw_comm_ops *stw_comm_nccl_ops(void) { return NULL; }

stw_status stw_backend_select(const char *name, const stw_backend **out, stw_error *err) {
    const stw_backend *cuda = stw_backend_cuda_find();
    char why[200] = "";
    *out = NULL;
    if (name == NULL || strcmp(name, "auto") == 0) {
        *out = cuda != NULL && cuda->available(why, sizeof why) ? cuda : &stw_backend_host;
        return STW_STATUS_OK;
    }
    if (strcmp(name, "host") == 0) {
        *out = &stw_backend_host;
        return STW_STATUS_OK;
    }
    if (strcmp(name, "cuda") != 0)
        return stw_fail(err, STW_STATUS_USAGE, "--backend",
                        "found \"%.60s\", expected auto, cuda or host", name);
    if (cuda == NULL)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "--backend",
                        "this program has no CUDA backend; it has host");
    if (!cuda->available(why, sizeof why))
        return stw_fail(err, STW_STATUS_DEVICE, "--backend",
                        "the CUDA backend finds no usable GPU: %s", why);
    *out = cuda;
    return STW_STATUS_OK;
}

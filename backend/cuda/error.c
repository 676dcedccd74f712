/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/device.h"

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static atomic_uint_least64_t calls;     /* counted so far */
static atomic_uint_least64_t fail_call; /* the one to fail; 0: none */

static void read_environment(void) {
    const char *text = getenv("STOWAGE_FAIL_CUDA_CALL");
    if (text != NULL) atomic_store(&fail_call, strtoull(text, NULL, 10));
}

bool stw_cuda_call_must_fail(void) {
    pthread_once(&environment_once, read_environment);
    uint64_t number = atomic_fetch_add(&calls, 1) + 1;
    return number == atomic_load(&fail_call);
}

void stw_cuda_fail_call(uint64_t k) {
    pthread_once(&environment_once, read_environment); /* so that it does not come later */
    atomic_store(&calls, 0);
    atomic_store(&fail_call, k);
}

uint64_t stw_cuda_calls(void) { return atomic_load(&calls); }

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

/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU's powf makes of the powers of an optimizer's betas, for test_cuda_kernels.c. Compiled
 * as frameworks compile it, with the compiler's own choice of fused multiply-adds. */
#include <cuda_runtime_api.h>
#include <stdint.h>

__global__ static void powers_kernel(float beta, const unsigned *steps, uint64_t n, float *out) {
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = powf(beta, (float)steps[i]);
}

/* out[i] = powf(beta, steps[i]), all in GPU memory. */
extern "C" cudaError_t stw_cuda_powers(cudaStream_t stream, float beta, const unsigned *steps,
                                       uint64_t n, float *out) {
    powers_kernel<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(beta, steps, n, out);
    return cudaGetLastError();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Included before every source of backend/cuda/ where tests compile it: its calls of CUDA, kernels
 * included, and of NCCL can fail. A call goes by the name that it has in the source: "cudaMalloc",
 * "stw_cuda_adamw", "n->api.all_reduce". One that fails is not made. */
#ifndef STW_TESTS_FAULTS_FAIL_CUDA_H
#define STW_TESTS_FAULTS_FAIL_CUDA_H

#include "tests/faults/faults.h"

#define STW_CUDA_CALL(call) (STW_FAULT_NOW(#call) ? cudaErrorUnknown : (call))
#define STW_NCCL_CALL(call) (STW_FAULT_NOW(#call) ? ncclSystemError : (call))

#endif

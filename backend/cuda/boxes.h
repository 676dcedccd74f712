/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the kernels behind backend/boxes.h, with the rules of backend/cuda/kernels.h. */
#ifndef STW_BACKEND_CUDA_BOXES_H
#define STW_BACKEND_CUDA_BOXES_H

#include "backend/boxes.h"
#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which casts a list has. */
typedef enum stw_cuda_casts {
    STW_CUDA_CASTS_NONE,
    STW_CUDA_CASTS_TO_BF16, /* every copy is one from fp32 to bf16 */
    STW_CUDA_CASTS_ANY
} stw_cuda_casts;

/** One list of copies. Everything that it points to is memory that the GPU reaches. */
typedef struct stw_cuda_boxes {
    const stw_box_copy *copies;
    const uint64_t *bases; /* from STW_BOX_FIRST_BASE on */
    uint32_t n, tiles;
    stw_cuda_casts casts;
    stw_box_buffers buffers;
    bool direct; /* some memory is page-locked host memory: the launch is shaped for PCIe */
} stw_cuda_boxes;

/** Run a list. */
cudaError_t stw_cuda_boxes_run(stw_cuda_launch launch, const stw_cuda_boxes *boxes);
/** Add the digest of a list (stw_box_ops.digest) to *digest, which is GPU memory. */
cudaError_t stw_cuda_boxes_digest(stw_cuda_launch launch, const stw_cuda_boxes *boxes,
                                  uint64_t *digest);
/** Add the sum of stw_box_sum_word over n bytes to *sum, which is GPU memory. */
cudaError_t stw_cuda_boxes_sum(stw_cuda_launch launch, const void *address, uint64_t bytes,
                               uint64_t *sum);

#ifdef __cplusplus
}
#endif

#endif

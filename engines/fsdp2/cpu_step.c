/* SPDX-License-Identifier: Apache-2.0 */
/* Memory traffic is counted off torch's code (torch/optim/adam.py at v2.11: _single_tensor_adam,
 * _multi_tensor_adam; aten/src/ATen/native/cpu/FusedAdamKernel.cpp), in elements read or written
 * per parameter:
 * - fused: one pass that reads parameter, gradient and both moments and writes all but the
 *   gradient: 7.
 * - foreach: mul_ (weight decay) 2, lerp_ 3, mul_ 2, addcmul_ 3, sqrt 2, div_ 2, add_ 2, addcdiv_
 *   4: 20. The root is a new tensor: its lines are read before they are written, and the kernel
 *   clears its pages: 22.
 * - loop: the same, but the division makes a second new tensor: 24.
 * - clip_grad_norm_ (torch/nn/utils/clip_grad.py) reads gradients for the norm, then scales them:
 *   3.
 * Constants: bench/results/constants.md. */
#include "engines/fsdp2/cpu_step.h"

#include "engines/cpu_step.h"

/* A thread updates 16-bit elements no faster than 32-bit ones: arithmetic is its limit. */
static const double THREAD_ELEMENT_BYTES = 4;

stw_optimizer_implementation stw_fsdp2_implementation(const stw_job *job, bool cpu) {
    switch (job->run->optimizer.implementation) {
    case STW_OPTIMIZER_FUSED:
        return STW_OPTIMIZER_FUSED;
    case STW_OPTIMIZER_FOREACH:
    case STW_OPTIMIZER_STREAMED:
        return STW_OPTIMIZER_FOREACH;
    case STW_OPTIMIZER_AUTO:
        return cpu ? STW_OPTIMIZER_LOOP : STW_OPTIMIZER_FUSED;
    default:
        return STW_OPTIMIZER_LOOP;
    }
}

static double element_bytes(const stw_job *job, stw_component component) {
    return (double)stw_job_element_bytes(job, component);
}

/* Bytes that the update of one parameter reads and writes, by the bytes of its state. */
static double bytes_of(const stw_job *job, double params, double grads, double avg, double sq) {
    double fused = 2 * params + grads + 2 * avg + 2 * sq;
    switch (stw_fsdp2_implementation(job, true)) {
    case STW_OPTIMIZER_FUSED:
        return fused;
    case STW_OPTIMIZER_FOREACH:
        return 4 * params + 2 * grads + 3 * avg + (2 + 2 + 1) * sq + 8 * sq;
    default:
        return 4 * params + 2 * grads + 3 * avg + (2 + 2 + 1) * sq + 10 * sq;
    }
}

static double update_bytes(const stw_job *job) {
    return bytes_of(
        job, element_bytes(job, STW_COMPONENT_PARAMS), element_bytes(job, STW_COMPONENT_GRADS),
        element_bytes(job, STW_COMPONENT_EXP_AVG), element_bytes(job, STW_COMPONENT_EXP_AVG_SQ));
}

const stw_cpu_rate *stw_fsdp2_cpu_rate(const stw_job *job) {
    switch (stw_fsdp2_implementation(job, true)) {
    case STW_OPTIMIZER_FUSED:
        return &job->cluster->torch.fused;
    case STW_OPTIMIZER_FOREACH:
        return &job->cluster->torch.foreach;
    default:
        return &job->cluster->torch.loop;
    }
}

double stw_fsdp2_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes) {
    const double widest = element_bytes(job, STW_COMPONENT_PARAMS);
    double element = norm ? 3.0 * element_bytes(job, STW_COMPONENT_GRADS) : update_bytes(job);
    double narrow = norm || widest >= THREAD_ELEMENT_BYTES ? 1 : THREAD_ELEMENT_BYTES / widest;
    *bytes = (double)params * element;
    if (norm) return stw_cpu_pass_s(job, *bytes, narrow);
    return stw_cpu_update_s(job, &(stw_cpu_update){.rate = stw_fsdp2_cpu_rate(job),
                                                   .params = params,
                                                   .bytes = *bytes,
                                                   .fp32_bytes = bytes_of(job, 4, 4, 4, 4),
                                                   .slower = narrow});
}

void stw_fsdp2_cpu_advice(const stw_job *job, char *out, size_t out_size) {
    const stw_optimizer_implementation is = stw_fsdp2_implementation(job, true);
    stw_cpu_advice(job,
                   is == STW_OPTIMIZER_FUSED ? "torch's fused AdamW runs"
                   : is == STW_OPTIMIZER_FOREACH
                       ? "torch's AdamW runs one operation for all tensors at once"
                       : "torch's AdamW loops over the tensors, its default there,",
                   is != STW_OPTIMIZER_FUSED, out, out_size);
}

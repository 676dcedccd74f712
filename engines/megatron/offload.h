/* SPDX-License-Identifier: Apache-2.0 */
/* Saved activations of single modules on the host (megatron.offload_modules). Sources: offload.c.
 * All figures are per micro batch and block. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_OFFLOAD_H
#define STW_ENGINES_MEGATRON_OFFLOAD_H

#include "plan/job/job.h"

enum { STW_MEGATRON_OFFLOADED_TENSORS = 16 };

typedef struct stw_megatron_offload {
    uint64_t gpu;  /* what leaves the GPU of what the block keeps */
    uint64_t host; /* what is copied and comes back: more, where recomputation drops the same
                      tensors, and where two operations keep one */
    uint32_t n;
    uint64_t tensors[STW_MEGATRON_OFFLOADED_TENSORS]; /* [n] bytes of each copy */
} stw_megatron_offload;

/** Do the modules exist, and do other keys admit them? */
STW_MUST_USE stw_status stw_megatron_check_offload(const stw_run_spec *run, const char *origin,
                                                   stw_error *err);
stw_megatron_offload stw_megatron_offload_of(const stw_job *job, uint32_t group);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The keys deepspeed.* of a run spec: those of "zero_optimization" in a DeepSpeed config, with the
 * same defaults (deepspeed/runtime/zero/config.py and offload_config.py at 0.19.8), and those of
 * "aio" (swap_tensor/constants.py). */
#ifndef STW_ENGINES_DEEPSPEED_KEYS_H
#define STW_ENGINES_DEEPSPEED_KEYS_H

#include "plan/spec/registry.h"

/** Parameter groups, the one of all other tensors included. */
#define STW_ZERO_GROUPS (STW_MAX_OWN_PARAM_GROUPS + 1)

typedef enum stw_offload_device {
    STW_OFFLOAD_NONE,
    STW_OFFLOAD_CPU,
    STW_OFFLOAD_NVME
} stw_offload_device;

typedef struct stw_deepspeed_settings {
    uint32_t zero_stage;
    uint32_t offload_optimizer, offload_param; /* stw_offload_device */
    bool pin_memory, overlap_comm, pipeline_read, pipeline_write;
    double ratio;
    uint32_t optimizer_buffer_count, param_buffer_count, aio_intra_op_parallelism;
    uint64_t aio_block_bytes;
    /* elements */
    uint64_t reduce_bucket, sub_group_size, prefetch_bucket, max_live_parameters;
    uint64_t max_reuse_distance, persistence_threshold, param_buffer_size, max_in_cpu;
} stw_deepspeed_settings;

extern const stw_spec_section stw_deepspeed_section;
stw_deepspeed_settings stw_deepspeed_settings_of(const stw_run_spec *run);
/** Refuse what a run with this engine cannot be. */
stw_status stw_deepspeed_check(const stw_run_spec *run, const char *origin, stw_error *err);

#endif

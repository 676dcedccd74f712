/* SPDX-License-Identifier: Apache-2.0 */
/* AReaL's allocation strings: `sglang:d4t2+fsdp:d8`, `megatron:(attn:d2t4|ffn:d1e8)`
 * (areal/api/alloc_mode.py at 1.0.4; a dot in place of the colon and trainers without a backend as
 * at 0.3). Everything lies in the caller's pool. */
#ifndef STW_PLANNER_IMPORT_ALLOCATION_H
#define STW_PLANNER_IMPORT_ALLOCATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pool.h"

typedef struct stw_allocation {
    const char *backend; /* sglang, vllm, fsdp, megatron, archon; "": not given */
    const char *name;    /* [actor]; "" without one */
    uint64_t d, t, p, c, e, etp;
    bool shared; /* on the GPUs of the one before it */
} stw_allocation;

/** Read a string. @param out [most] @return number of allocations; 0: it is none */
size_t stw_allocation_read(const char *text, stw_pool *pool, stw_allocation *out, size_t most);
/** GPUs of an allocation. */
uint64_t stw_allocation_gpus(const stw_allocation *a);

#endif

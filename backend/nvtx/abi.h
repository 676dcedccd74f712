/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that NVTX 3 calls in the library of NVTX_INJECTION64_PATH, from
 * nvtx3/nvtxDetail/nvtxTypes.h and nvtx3/nvToolsExt.h of CUDA 13.0. They are repeated here so that
 * the build needs no CUDA toolkit; tests/cli/nvtx.sh compares them with the header. */
#ifndef STW_NVTX_ABI_H
#define STW_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { NVTX_EXPORT_CALLBACKS = 1 };

enum { NVTX_MODULE_CORE = 1, NVTX_MODULE_CORE2 = 5 };

enum { NVTX_CORE_PUSH_EX = 8, NVTX_CORE_PUSH_A = 9, NVTX_CORE_PUSH_W = 10, NVTX_CORE_POP = 11 };

enum { NVTX_CORE2_PUSH_EX = 4, NVTX_CORE2_POP = 5, NVTX_CORE2_REGISTER_A = 10 };

typedef void (*nvtx_function)(void);

typedef struct nvtx_callbacks {
    size_t struct_size;
    /* 0 on failure. *table: pointers to the functions that the program calls. */
    int (*get_table)(int module, nvtx_function ***table, unsigned int *size);
} nvtx_callbacks;

typedef const void *(*nvtx_get_export)(uint32_t id);

enum { NVTX_MESSAGE_ASCII = 1, NVTX_MESSAGE_REGISTERED = 3 };

typedef struct nvtx_attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message; /* ASCII: a string; REGISTERED: the value that REGISTER_A returned */
} nvtx_attributes;

#endif

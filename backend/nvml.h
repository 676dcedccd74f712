/* SPDX-License-Identifier: Apache-2.0 */
/* What NVML, the library that comes with the driver, tells without making a CUDA context. It is
 * opened at run time. One thread at a time. */
#ifndef STW_BACKEND_NVML_H
#define STW_BACKEND_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct stw_nvml stw_nvml;
typedef struct stw_nvml_gpu stw_nvml_gpu; /* valid while NVML is open */

/** NULL where there is no driver, or no memory. */
stw_nvml *stw_nvml_open(void);
void stw_nvml_close(stw_nvml *nvml);
/** GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says. */
uint32_t stw_nvml_count(const stw_nvml *nvml);
/** NULL: there is none. @param bus_id "0000:3b:00.0"; @param uuid "GPU-..." or its beginning */
stw_nvml_gpu *stw_nvml_by_index(const stw_nvml *nvml, uint32_t index);
stw_nvml_gpu *stw_nvml_by_bus_id(const stw_nvml *nvml, const char *bus_id);
stw_nvml_gpu *stw_nvml_by_uuid(const stw_nvml *nvml, const char *uuid);
/** Bytes in use by everybody, without what the driver reserves; false: not known (driver < 510). */
bool stw_nvml_used(const stw_nvml *nvml, stw_nvml_gpu *gpu, uint64_t *bytes);
/** "NVIDIA H200"; "" where unknown. */
void stw_nvml_name(const stw_nvml *nvml, stw_nvml_gpu *gpu, char *out, size_t out_size);
/** "580.95.05"; "" where unknown. */
void stw_nvml_driver(const stw_nvml *nvml, char *out, size_t out_size);

#endif

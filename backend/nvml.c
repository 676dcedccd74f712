/* SPDX-License-Identifier: Apache-2.0 */
/* NVML's interface is declared here as NVIDIA documents it (NVML API reference, device queries),
 * since the toolkit need not have nvml.h. */
#include "backend/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvml_memory { /* nvmlMemory_v2_t */
    unsigned version;
    unsigned long long total, reserved, free, used; /* used: without what the driver reserves */
} nvml_memory;
#define NVML_MEMORY_VERSION ((unsigned)sizeof(nvml_memory) | 2u << 24)

struct stw_nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *out);
    int (*by_index)(unsigned index, stw_nvml_gpu **out);
    int (*by_bus_id)(const char *bus_id, stw_nvml_gpu **out);
    int (*by_uuid)(const char *uuid, stw_nvml_gpu **out);
    int (*memory)(stw_nvml_gpu *gpu, nvml_memory *out);
    int (*name)(stw_nvml_gpu *gpu, char *out, unsigned out_size);
    int (*driver)(char *out, unsigned out_size);
};

/* POSIX gives functions as object pointers; copying the bits is the way without a cast. */
static bool find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool find_all(stw_nvml *n) {
    (void)find(n->library, "nvmlDeviceGetMemoryInfo_v2", &n->memory); /* driver 510 */
    return find(n->library, "nvmlInit_v2", &n->init) &&
           find(n->library, "nvmlShutdown", &n->shutdown) &&
           find(n->library, "nvmlDeviceGetCount_v2", &n->count) &&
           find(n->library, "nvmlDeviceGetHandleByIndex_v2", &n->by_index) &&
           find(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &n->by_bus_id) &&
           find(n->library, "nvmlDeviceGetHandleByUUID", &n->by_uuid) &&
           find(n->library, "nvmlDeviceGetName", &n->name) &&
           find(n->library, "nvmlSystemGetDriverVersion", &n->driver);
}

stw_nvml *stw_nvml_open(void) {
    stw_nvml *n = calloc(1, sizeof *n);
    if (n == NULL) return NULL;
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n->library != NULL && find_all(n) && n->init() == 0) return n;
    if (n->library != NULL) dlclose(n->library);
    free(n);
    return NULL;
}

void stw_nvml_close(stw_nvml *n) {
    if (n == NULL) return;
    (void)n->shutdown();
    dlclose(n->library);
    free(n);
}

uint32_t stw_nvml_count(const stw_nvml *n) {
    unsigned count = 0;
    return n->count(&count) == 0 ? count : 0;
}

stw_nvml_gpu *stw_nvml_by_index(const stw_nvml *n, uint32_t index) {
    stw_nvml_gpu *gpu = NULL;
    return n->by_index(index, &gpu) == 0 ? gpu : NULL;
}

stw_nvml_gpu *stw_nvml_by_bus_id(const stw_nvml *n, const char *bus_id) {
    stw_nvml_gpu *gpu = NULL;
    return n->by_bus_id(bus_id, &gpu) == 0 ? gpu : NULL;
}

stw_nvml_gpu *stw_nvml_by_uuid(const stw_nvml *n, const char *uuid) {
    stw_nvml_gpu *gpu = NULL;
    return n->by_uuid(uuid, &gpu) == 0 ? gpu : NULL;
}

bool stw_nvml_used(const stw_nvml *n, stw_nvml_gpu *gpu, uint64_t *bytes) {
    nvml_memory memory = {.version = NVML_MEMORY_VERSION};
    *bytes = 0;
    if (n->memory == NULL || n->memory(gpu, &memory) != 0) return false;
    *bytes = memory.used;
    return true;
}

void stw_nvml_name(const stw_nvml *n, stw_nvml_gpu *gpu, char *out, size_t out_size) {
    memset(out, 0, out_size);
    if (n->name(gpu, out, (unsigned)out_size) != 0) out[0] = '\0';
}

void stw_nvml_driver(const stw_nvml *n, char *out, size_t out_size) {
    memset(out, 0, out_size);
    if (n->driver(out, (unsigned)out_size) != 0) out[0] = '\0';
}

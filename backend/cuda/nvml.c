/* SPDX-License-Identifier: Apache-2.0 */
/* The two things that only NVML tells: how much of a GPU is in use before this process makes its
 * context, and the driver's version. The library comes with the driver and is opened at run time;
 * its interface is declared here as NVIDIA documents it (NVML API reference, device queries), since
 * the toolkit need not have nvml.h. */
#include <dlfcn.h>
#include <string.h>

#include "backend/cuda/device.h"

typedef struct nvml_device nvml_device;
typedef struct nvml_memory { /* nvmlMemory_v2_t */
    unsigned version;
    unsigned long long total, reserved, free, used; /* used: without what the driver reserves */
} nvml_memory;
#define NVML_MEMORY_VERSION ((unsigned)sizeof(nvml_memory) | 2u << 24)

typedef struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_bus_id)(const char *bus_id, nvml_device **out);
    int (*memory)(nvml_device *device, nvml_memory *out);
    int (*driver)(char *out, unsigned out_size);
} nvml;

/* POSIX gives functions as object pointers; copying the bits is the way without a cast. */
static bool find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool nvml_open(nvml *n) {
    memset(n, 0, sizeof *n);
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL) return false;
    if (find(n->library, "nvmlInit_v2", &n->init) &&
        find(n->library, "nvmlShutdown", &n->shutdown) &&
        find(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &n->by_bus_id) &&
        find(n->library, "nvmlSystemGetDriverVersion", &n->driver) && n->init() == 0) {
        (void)find(n->library, "nvmlDeviceGetMemoryInfo_v2", &n->memory); /* driver 510 */
        return true;
    }
    dlclose(n->library);
    return false;
}

static void nvml_close(nvml *n) {
    (void)n->shutdown();
    dlclose(n->library);
}

bool stw_cuda_used_without_context(const char *bus_id, uint64_t *bytes) {
    nvml n;
    *bytes = 0;
    if (!nvml_open(&n)) return false;
    nvml_device *device = NULL;
    nvml_memory memory = {.version = NVML_MEMORY_VERSION};
    bool ok =
        n.memory != NULL && n.by_bus_id(bus_id, &device) == 0 && n.memory(device, &memory) == 0;
    if (ok) *bytes = memory.used;
    nvml_close(&n);
    return ok;
}

void stw_cuda_driver_version(char *out, size_t out_size) {
    nvml n;
    memset(out, 0, out_size);
    if (!nvml_open(&n)) return;
    if (n.driver(out, (unsigned)out_size) != 0) out[0] = '\0';
    nvml_close(&n);
}

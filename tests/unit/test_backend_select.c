/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend a name selects; what NVML is asked for, on a library of the test's own; clock and
 * resident bytes of this process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/nvml.h"
#include "backend/process.h"
#include "tests/unit/testing.h"

/* ---- backends ---- */

static bool available(char *why, size_t why_size) {
    snprintf(why, why_size, "its fan is off");
    return false;
}
static bool really_available(char *why, size_t why_size) {
    (void)why;
    (void)why_size;
    return true;
}
static stw_backend cuda = {.name = "cuda"};
static bool has_cuda;
const stw_backend *stw_backend_cuda_find(void) { return has_cuda ? &cuda : NULL; }

static void names_select_backends(void) {
    static const struct {
        const char *name;
        bool has, ready;
        stw_status status;
        const char *text; /* or "host", "cuda" */
    } cases[] = {
        {NULL, false, false, STW_STATUS_OK, "host"},
        {"auto", false, false, STW_STATUS_OK, "host"},
        {"auto", true, false, STW_STATUS_OK, "host"},
        {NULL, true, true, STW_STATUS_OK, "cuda"},
        {"auto", true, true, STW_STATUS_OK, "cuda"},
        {"host", true, true, STW_STATUS_OK, "host"},
        {"host", false, false, STW_STATUS_OK, "host"},
        {"cuda", true, true, STW_STATUS_OK, "cuda"},
        {"cuda", true, false, STW_STATUS_DEVICE,
         "the CUDA backend finds no usable GPU: its fan is off"},
        {"cuda", false, false, STW_STATUS_NOT_BUILT_IN,
         "this program has no CUDA backend; it has host"},
        {"vulkan", true, true, STW_STATUS_USAGE, "found \"vulkan\", expected auto, cuda or host"},
        {"", true, true, STW_STATUS_USAGE, "found \"\", expected auto, cuda or host"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const stw_backend *found = &cuda;
        stw_error error = STW_ERROR_INIT;
        has_cuda = cases[i].has;
        cuda.available = cases[i].ready ? really_available : available;
        CU_ASSERT_EQUAL(stw_backend_select(cases[i].name, &found, &error), cases[i].status);
        if (cases[i].status == STW_STATUS_OK) {
            CU_ASSERT_PTR_NOT_NULL_FATAL(found);
            CU_ASSERT_STRING_EQUAL(found->name, cases[i].text);
        } else {
            CU_ASSERT_PTR_NULL(found);
            CU_ASSERT_STRING_EQUAL(error.where, "--backend");
            CU_ASSERT_STRING_EQUAL(error.text, cases[i].text);
        }
    }
}

/* ---- NVML ---- */

static struct {
    bool there;
    const char *lacks; /* a function */
    int code;          /* of every call */
    unsigned opened, closed, started, stopped;
} library;
static int gpus[3];

static int start(void) {
    library.started++;
    return library.code;
}
static int stop(void) {
    library.stopped++;
    return 0;
}
static int count(unsigned *out) {
    *out = 3;
    return library.code;
}
static int by_index(unsigned index, stw_nvml_gpu **out) {
    *out = (stw_nvml_gpu *)(void *)&gpus[index];
    return library.code;
}
static int by_bus_id(const char *id, stw_nvml_gpu **out) {
    *out = (stw_nvml_gpu *)(void *)&gpus[strcmp(id, "bus") == 0 ? 1 : 2];
    return library.code;
}
static int by_uuid(const char *id, stw_nvml_gpu **out) {
    *out = (stw_nvml_gpu *)(void *)&gpus[strcmp(id, "uuid") == 0 ? 0 : 2];
    return library.code;
}
/* As NVML's documentation has nvmlMemory_v2_t. */
typedef struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;
static int memory(stw_nvml_gpu *gpu, memory_v2 *out) {
    CU_ASSERT_EQUAL(out->version, sizeof(memory_v2) + (2u << 24));
    *out = (memory_v2){0, 100, 20, 30, gpu == (stw_nvml_gpu *)(void *)&gpus[1] ? 50 : 7};
    return library.code;
}
static int name(stw_nvml_gpu *gpu, char *out, unsigned out_size) {
    CU_ASSERT_PTR_EQUAL(gpu, (stw_nvml_gpu *)(void *)&gpus[1]);
    memset(out, 'x', out_size);
    snprintf(out, out_size, "H%u", out_size);
    return library.code;
}
static int driver(char *out, unsigned out_size) {
    memset(out, 'x', out_size);
    snprintf(out, out_size, "D%u", out_size);
    return library.code;
}

void *__real_dlopen(const char *path, int mode);
void *__wrap_dlopen(const char *path, int mode);
void *__real_dlsym(void *from, const char *symbol);
void *__wrap_dlsym(void *from, const char *symbol);
int __real_dlclose(void *from);
int __wrap_dlclose(void *from);

void *__wrap_dlopen(const char *path, int mode) {
    if (path == NULL || strcmp(path, "libnvidia-ml.so.1") != 0) return __real_dlopen(path, mode);
    CU_ASSERT_EQUAL(mode, RTLD_NOW | RTLD_LOCAL);
    library.opened += library.there;
    return library.there ? &library : NULL;
}
int __wrap_dlclose(void *from) {
    if (from != &library) return __real_dlclose(from);
    library.closed++;
    return 0;
}
typedef void (*function)(void);
static const struct {
    const char *symbol;
    function function;
} symbols[] = {{"nvmlInit_v2", (function)start},
               {"nvmlShutdown", (function)stop},
               {"nvmlDeviceGetCount_v2", (function)count},
               {"nvmlDeviceGetHandleByIndex_v2", (function)by_index},
               {"nvmlDeviceGetHandleByPciBusId_v2", (function)by_bus_id},
               {"nvmlDeviceGetHandleByUUID", (function)by_uuid},
               {"nvmlDeviceGetName", (function)name},
               {"nvmlSystemGetDriverVersion", (function)driver},
               {"nvmlDeviceGetMemoryInfo_v2", (function)memory}};
#define N_SYMBOLS (sizeof symbols / sizeof symbols[0])
void *__wrap_dlsym(void *from, const char *symbol) {
    void *found = NULL;
    if (from != &library) return __real_dlsym(from, symbol);
    for (size_t i = 0; i < N_SYMBOLS; i++)
        if (strcmp(symbols[i].symbol, symbol) == 0 &&
            (library.lacks == NULL || strcmp(library.lacks, symbol) != 0))
            memcpy(&found, &symbols[i].function, sizeof found);
    return found;
}

static void nvml_is_asked(void) {
    char text[16];
    uint64_t bytes = 9;
    memset(&library, 0, sizeof library);
    CU_ASSERT_PTR_NULL(stw_nvml_open());
    library.there = true;
    stw_nvml *n = stw_nvml_open();
    CU_ASSERT_PTR_NOT_NULL_FATAL(n);
    CU_ASSERT_TRUE(library.opened == 1 && library.started == 1 && library.closed == 0);
    CU_ASSERT_EQUAL(stw_nvml_count(n), 3);
    CU_ASSERT_PTR_EQUAL(stw_nvml_by_index(n, 2), (void *)&gpus[2]);
    CU_ASSERT_PTR_EQUAL(stw_nvml_by_bus_id(n, "bus"), (void *)&gpus[1]);
    CU_ASSERT_PTR_EQUAL(stw_nvml_by_uuid(n, "uuid"), (void *)&gpus[0]);
    stw_nvml_gpu *gpu = stw_nvml_by_index(n, 1);
    CU_ASSERT_TRUE(stw_nvml_used(n, gpu, &bytes));
    CU_ASSERT_EQUAL(bytes, 50);
    stw_nvml_name(n, gpu, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "H16");
    stw_nvml_driver(n, text, sizeof text - 1);
    CU_ASSERT_STRING_EQUAL(text, "D15");
    library.code = 1; /* everything fails */
    CU_ASSERT_EQUAL(stw_nvml_count(n), 0);
    CU_ASSERT_PTR_NULL(stw_nvml_by_index(n, 1));
    CU_ASSERT_PTR_NULL(stw_nvml_by_bus_id(n, "bus"));
    CU_ASSERT_PTR_NULL(stw_nvml_by_uuid(n, "uuid"));
    CU_ASSERT_FALSE(stw_nvml_used(n, gpu, &bytes));
    CU_ASSERT_EQUAL(bytes, 0);
    stw_nvml_name(n, gpu, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "");
    stw_nvml_driver(n, text, sizeof text);
    CU_ASSERT_STRING_EQUAL(text, "");
    stw_nvml_close(n);
    stw_nvml_close(NULL);
    CU_ASSERT_TRUE(library.stopped == 1 && library.closed == 1);
    CU_ASSERT_PTR_NULL(stw_nvml_open()); /* it cannot be started */
    CU_ASSERT_TRUE(library.opened == 2 && library.closed == 2 && library.stopped == 1);
    library.code = 0;
    for (size_t i = 0; i < N_SYMBOLS; i++) {
        library.lacks = symbols[i].symbol;
        n = stw_nvml_open();
        const bool old = strcmp(library.lacks, "nvmlDeviceGetMemoryInfo_v2") == 0;
        CU_ASSERT_EQUAL((n != NULL), old); /* drivers before 510 lack this one alone */
        if (n == NULL) continue;
        bytes = 9;
        CU_ASSERT_FALSE(stw_nvml_used(n, stw_nvml_by_index(n, 1), &bytes));
        CU_ASSERT_EQUAL(bytes, 0);
        stw_nvml_close(n);
    }
    CU_ASSERT_EQUAL(library.opened, library.closed);
}

/* ---- this process ---- */

static void the_clock_and_the_memory_are_this_process_s(void) {
    struct timespec now;
    const double before = stw_process_now_s();
    CU_ASSERT_EQUAL(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    const double after = stw_process_now_s(), here = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    CU_ASSERT_TRUE(before <= here + 1e-9 && here <= after + 1e-9);
    CU_ASSERT_TRUE(after - before < 60);
    unsigned long long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CU_ASSERT_EQUAL(fscanf(file, "%llu %llu", &size, &resident), 2);
    fclose(file);
    const double bytes = (double)resident * (double)sysconf(_SC_PAGESIZE);
    CU_ASSERT_DOUBLE_EQUAL((double)stw_process_resident_bytes(), bytes, 2e6);
}

STW_TEST_MAIN("backend select", {"names select backends", names_select_backends},
              {"NVML is asked", nvml_is_asked},
              {"clock and memory", the_clock_and_the_memory_are_this_process_s})

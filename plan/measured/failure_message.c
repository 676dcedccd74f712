/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that say that memory ended. Sources: c10/cuda/CUDACachingAllocator.cpp of torch 1.0 to
 * 2.11 (malloc), aten/src/ATen/cuda/Exceptions.h, c10/core/impl/alloc_cpu.cpp;
 * vllm/v1/core/kv_cache_utils.py and vllm/v1/worker/gpu_worker.py (request_memory) of vLLM;
 * sglang/srt/model_executor/model_runner.py; src/ray/raylet/ node_manager.cc
 * (CreateOomKillMessageDetails) of Ray; mm/oom_kill.c and mm/memcontrol.c of Linux;
 * src/slurmd/slurmstepd of SLURM; src/include/alloc.h of NCCL;
 * torch/utils/data/_utils/signal_handling; csrc/cumem_allocator.cpp of vLLM;
 * torch/distributed/elastic/multiprocessing/api.py. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/printable.h"
#include "plan/measured/failure_parts.h"

enum { MOST_TEXT = 480 };

/* What stands after a phrase; NULL: the line has none. */
static const char *after(const char *line, const char *phrase) {
    const char *at = line != NULL ? strstr(line, phrase) : NULL;
    return at != NULL ? at + strlen(phrase) : NULL;
}

/* Digits with commas between, and a fraction. */
static const char *number(const char *at, double *out) {
    char digits[48];
    size_t n = 0;
    if (at == NULL) return NULL;
    while (*at == ' ' || *at == '(') at++;
    for (; n + 1 < sizeof digits && (isdigit((unsigned char)*at) || strchr(".,", *at) != NULL) &&
           *at != '\0';
         at++)
        if (*at != ',') digits[n++] = *at;
    if (n == 0 || !isdigit((unsigned char)digits[0])) return NULL;
    digits[n] = '\0';
    *out = strtod(digits, NULL);
    return at;
}

static bool count(const char *at, uint64_t *out) {
    double value;
    if (number(at, &value) == NULL || value >= 9e18) return false;
    *out = (uint64_t)value;
    return true;
}

const char *stw_failure_bytes(const char *at, uint64_t *out) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"KiB", 1024.0},          {"MiB", 1048576.0},   {"GiB", 1073741824.0},
                 {"TiB", 1099511627776.0}, {"kB", 1024.0}, /* of the kernel */
                 {"KB", 1024.0},           {"MB", 1048576.0},    {"GB", 1073741824.0},
                 {"bytes", 1.0},           {"B", 1.0},           {"Ki", 1024.0}, /* of Kubernetes */
                 {"Mi", 1048576.0},        {"Gi", 1073741824.0}, {"Ti", 1099511627776.0}};
    double value;
    at = number(at, &value);
    if (at == NULL) return NULL;
    while (*at == ' ') at++;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        const size_t n = strlen(units[i].name);
        if (strncmp(at, units[i].name, n) != 0 || value * units[i].bytes >= 9e18) continue;
        *out = (uint64_t)(value * units[i].bytes + 0.5);
        return at + n;
    }
    return NULL;
}

/* The bytes that stand before a phrase: "8.57 MiB already allocated". */
static void bytes_before(const char *line, const char *phrase, uint64_t *out) {
    const char *at = strstr(line, phrase);
    if (at == NULL) return;
    while (at > line && at[-1] != ' ') at--; /* the unit */
    while (at > line && at[-1] == ' ') at--;
    while (at > line && (isdigit((unsigned char)at[-1]) || strchr(".,", at[-1]) != NULL)) at--;
    (void)stw_failure_bytes(at, out);
}

/* A message, not the line of source that raises it. */
static const char *said(const char *line, const char *phrase) {
    const char *at = strstr(line, phrase), *raise = strstr(line, "raise ");
    if (at == NULL || (raise != NULL && raise < at && isupper((unsigned char)raise[6])))
        return NULL;
    if (at - line >= 2 && (memcmp(at - 2, "(\"", 2) == 0 || memcmp(at - 2, "(f\"", 2) == 0))
        return NULL;
    return at;
}

/* ---- torch ---- */

/* "Process 20398 has 14.52 GiB memory in use. Including non-PyTorch memory, this process has ..."
 * In a container a process does not know its own number: it is the smallest that holds what torch
 * has reserved in it. */
static void read_processes(const char *at, stw_failure *out) {
    uint64_t bytes, sum = 0, own = STW_NOT_SAID, n = 0;
    const uint64_t none = STW_NOT_SAID;
    const char *self = after(at, "this process has ");
    const uint64_t reserved =
        out->allocated != none && out->unused != none ? out->allocated + out->unused : none;
    while ((at = after(at, "Process ")) != NULL) {
        const char *has = after(at, " has ");
        if (has == NULL || has - at > 32 || stw_failure_bytes(has, &bytes) == NULL) continue;
        sum += bytes < (uint64_t)1 << 50 ? bytes : 0;
        if (reserved != none && bytes >= reserved && (own == none || bytes < own)) own = bytes;
        n++;
    }
    if (self != NULL) {
        own = none;
        if (stw_failure_bytes(self, &bytes) != NULL && bytes > 0) out->used_by_process = bytes;
        if (n > 0) out->other_processes = sum;
    } else if (own != none) {
        out->used_by_process = own;
        if (n > 1) out->other_processes = sum - own;
    }
}

static void read_new(const char *at, stw_failure *out) {
    (void)stw_failure_bytes(after(at, " of which "), &out->free);
    const char *total = after(at, "has a total capac");
    (void)stw_failure_bytes(after(total, " of "), &out->capacity);
    bytes_before(at, " allowed", &out->allowed);
    bytes_before(at, " is allocated by PyTorch", &out->allocated);
    bytes_before(at, " is reserved by PyTorch but unallocated", &out->unused);
    read_processes(at, out);
    (void)count(after(at, "GPU "), &out->device);
}

static void read_old(const char *at, stw_failure *out) {
    uint64_t reserved = STW_NOT_SAID;
    (void)count(after(at, "(GPU "), &out->device);
    bytes_before(at, " total capacity", &out->capacity);
    bytes_before(at, " already allocated", &out->allocated);
    bytes_before(at, " free;", &out->free);
    bytes_before(at, " allowed", &out->allowed);
    bytes_before(at, " reserved in total", &reserved);
    if (reserved != STW_NOT_SAID && out->allocated != STW_NOT_SAID && reserved >= out->allocated)
        out->unused = reserved - out->allocated;
    if (reserved == STW_NOT_SAID) bytes_before(at, " cached)", &out->unused); /* torch 1.0 to 1.3 */
}

/* c10/cuda/CUDAMallocAsyncAllocator.cpp; its figures are lines of their own. */
static bool is_async(const char *line, stw_failure *out) {
    const char *at = said(line, "would exceed allowed memory. (out of memory)");
    if (at == NULL) return false;
    out->kind = STW_FAILURE_ALLOCATOR;
    out->who = "torch";
    (void)count(after(line, "Allocation on device "), &out->device);
    const struct {
        const char *name;
        uint64_t *to;
    } figures[] = {{"Currently allocated", &out->allocated},
                   {"Requested", &out->asked},
                   {"Device limit", &out->capacity},
                   {"Free (according to CUDA)", &out->free},
                   {"memory fraction)", &out->allowed}};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        (void)stw_failure_bytes(after(after(at, figures[i].name), ": "), figures[i].to);
    return true;
}

/* "torch.OutOfMemoryError: CUDA out of memory": what logs keep of a message. Prose has these words,
 * too. */
static bool is_bare(const char *line) {
    static const char words[] = "CUDA out of memory";
    const char *at = said(line, words);
    if (at == NULL) return false;
    const char *end = at + strlen(words), *before = at;
    while (before > line && strchr(" \t:]|-", before[-1]) != NULL) before--;
    const bool begins = before == line;
    const bool raised = before - line >= 5 && strncasecmp(before - 5, "error", 5) == 0;
    const bool ends = *end == '.' || end[strspn(end, " \t\r")] == '\0' ||
                      strncmp(end, " occurred when ", 15) == 0; /* vLLM, warming up */
    return (begins || raised) && ends;
}

static bool is_torch(const char *line, stw_failure *out) {
    const char *at = said(line, "out of memory. Tried to allocate ");
    if (at == NULL && !is_bare(line)) return false;
    out->kind = STW_FAILURE_ALLOCATOR;
    out->who = "torch";
    if (at == NULL) return true; /* what logs keep of it */
    (void)stw_failure_bytes(after(at, "Tried to allocate "), &out->asked);
    if (strstr(at, "total capacity;") != NULL)
        read_old(at, out);
    else
        read_new(at, out);
    return true;
}

/* ---- on a GPU, beside torch's allocator ---- */

static bool is_device(const char *line, stw_failure *out) {
    static const struct {
        const char *phrase, *who;
        bool page_lock;
    } phrases[] = {
        {"CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS", false},
        {"CUDNN_STATUS_ALLOC_FAILED", "cuDNN", false},
        {"Failed to CUDA calloc", "NCCL", false},
        {"Failed to CUDA host", "NCCL", true},
        {"Failed to CUDA malloc", "NCCL", false},
        {"cudaHostAlloc", "CUDA", true},
        {"cudaHostRegister", "CUDA", true},
        {"cudaMallocHost", "CUDA", true},
        {"cuMemHostAlloc", "CUDA", true},
        {"CUDA_ERROR_OUT_OF_MEMORY", "CUDA", false},
        {"cudaErrorMemoryAllocation", "CUDA", false},
        {"CUDA error: out of memory", "CUDA", false},
        {"CUDA driver error: out of memory", "CUDA", false},
        {"CUDA Error 2, out of memory", "CUDA", false},
        {"HIP error: out of memory", "HIP", false},
    };
    const char *nccl = strstr(line, "Cuda failure"), *cumem = strstr(line, "cumem_allocator");
    if (cumem != NULL && said(line, "CUDA Error: out of memory") != NULL) {
        out->kind = STW_FAILURE_DEVICE;
        out->who = "vLLM"; /* csrc/cumem_allocator.cpp, which sleep mode uses */
        return true;
    }
    if (nccl != NULL && strstr(nccl, "'out of memory'") != NULL) {
        out->kind = STW_FAILURE_DEVICE;
        out->who = "NCCL";
        return true;
    }
    for (size_t i = 0; i < sizeof phrases / sizeof phrases[0]; i++) {
        if (said(line, phrases[i].phrase) == NULL) continue;
        /* a call may fail for another reason */
        if (phrases[i].page_lock && strcmp(phrases[i].who, "CUDA") == 0 &&
            strstr(line, "out of memory") == NULL && strstr(line, "fail") == NULL)
            continue;
        out->kind = phrases[i].page_lock ? STW_FAILURE_PAGE_LOCK : STW_FAILURE_DEVICE;
        out->who = phrases[i].who;
        if (strcmp(phrases[i].who, "NCCL") == 0)
            (void)stw_failure_bytes(after(line, "alloc "), &out->asked);
        return true;
    }
    return false;
}

/* ---- inference engines ---- */

static bool is_cache(const char *line, stw_failure *out) {
    const char *at = said(line, "larger than the maximum number of tokens that can be stored");
    if (at != NULL) {
        out->kind = STW_FAILURE_CACHE_SHORT;
        (void)count(after(line, "max seq len ("), &out->wanted_tokens);
        (void)count(after(at, "KV cache ("), &out->cache_tokens);
        return true;
    }
    at = said(line, "larger than the available KV cache memory");
    if (at != NULL) {
        out->kind = STW_FAILURE_CACHE_SHORT;
        (void)count(after(line, "max seq len ("), &out->wanted_tokens);
        (void)count(after(at, "maximum model length is "), &out->cache_tokens);
        bytes_before(line, " KV cache is needed", &out->asked);
        (void)stw_failure_bytes(after(at, "KV cache memory ("), &out->free);
        return true;
    }
    if (said(line, "No available memory for the cache blocks") == NULL) return false;
    out->kind = STW_FAILURE_CACHE_NONE;
    return true;
}

/* "(59.32/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, 71.24 GiB)" */
static bool is_start(const char *line, stw_failure *out) {
    const char *at = said(line, "is less than desired GPU memory utilization");
    const char *device = after(line, "ree memory on device");
    double first, gib = 1073741824.0;
    if (at == NULL) return false;
    out->kind = STW_FAILURE_START;
    const char *open = device != NULL ? strchr(device, '(') : NULL;
    const char *end = open != NULL ? number(open + 1, &first) : NULL;
    if (end != NULL && *end == '/' && first < 1e6) {
        out->free = (uint64_t)(first * gib);
        (void)stw_failure_bytes(end + 1, &out->capacity);
    }
    (void)count(after(device, "cuda:"), &out->device);
    end = number(after(at, "utilization ("), &first);
    if (end != NULL && *end == '\0') end = NULL;
    if (end != NULL) out->share = first;
    const char *comma = after(at, ", ");
    (void)stw_failure_bytes(comma, &out->asked);
    return true;
}

static bool is_rollout(const char *line, stw_failure *out) {
    out->who = "vLLM";
    if (is_cache(line, out) || is_start(line, out)) return true;
    if (said(line, "Please try to increase --mem-fraction-static") != NULL) {
        out->who = "SGLang";
        out->kind = STW_FAILURE_CACHE_NONE;
        return true;
    }
    return false;
}

/* ---- hosts ---- */

/* "Killed process 7899 (python) total-vm:26184840kB, anon-rss:15370088kB, ..." */
static bool is_kernel(const char *line, stw_pool *pool, stw_failure *out) {
    static const char *const sizes[] = {"anon-rss:", "file-rss:", "shmem-rss:"};
    const char *at = after(line, "Killed process ");
    uint64_t sum = 0, bytes;
    bool known = false, lost = false;
    if (at == NULL || after(at, "total-vm:") == NULL) return false;
    out->kind = STW_FAILURE_HOST_KILL;
    out->who = strstr(line, "Memory cgroup") != NULL ? "cgroup" : "kernel";
    (void)count(at, &out->pid);
    const char *name = strchr(at, '(');
    const char *end = name != NULL ? strchr(name, ')') : NULL;
    if (end != NULL && end > name + 1)
        out->process = stw_pool_printf(pool, "%.*s", (int)(end - name - 1), name + 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const char *size = after(at, sizes[i]);
        if (size == NULL) continue;
        known = stw_failure_bytes(size, &bytes) != NULL && bytes < (uint64_t)1 << 60;
        lost = lost || !known;
        sum += known ? bytes : 0;
    }
    if (known && !lost) out->used_by_process = sum;
    return true;
}

/* "... was running was 59.49GB / 62.58GB (0.950744), which exceeds the memory usage threshold" */
static bool is_ray(const char *line, stw_failure *out) {
    const char *at = after(line, " was running was ");
    double share;
    if (at == NULL || strstr(at, "exceeds the memory usage threshold") == NULL) return false;
    out->kind = STW_FAILURE_HOST_KILL;
    out->who = "Ray";
    const char *end = stw_failure_bytes(at, &out->used);
    const char *slash = end != NULL ? after(end, "/ ") : NULL;
    (void)stw_failure_bytes(slash, &out->capacity);
    const char *threshold = after(at, "usage threshold of ");
    if (number(threshold, &share) != NULL && share > 0 && share <= 1 &&
        out->capacity != STW_NOT_SAID)
        out->limit = (uint64_t)(share * (double)out->capacity);
    (void)count(after(line, "pid="), &out->pid);
    (void)stw_failure_bytes(after(line, "memory used="), &out->used_by_process);
    return true;
}

static bool is_host(const char *line, stw_pool *pool, stw_failure *out) {
    static const struct {
        const char *phrase, *beside, *who;
        stw_failure_kind kind;
    } phrases[] = {
        {"oom_kill event", NULL, "SLURM", STW_FAILURE_HOST_KILL},
        {"oom-kill event", NULL, "SLURM", STW_FAILURE_HOST_KILL},
        {": Out Of Memory", "srun", "SLURM", STW_FAILURE_HOST_KILL},
        {"killed due to memory pressure", NULL, "Ray", STW_FAILURE_HOST_KILL},
        {"killed due to the node running low on memory", NULL, "Ray", STW_FAILURE_HOST_KILL},
        {"is killed by signal: Bus error", NULL, "DataLoader", STW_FAILURE_SHARED_MEMORY},
        {"insufficient shared memory (shm)", NULL, "DataLoader", STW_FAILURE_SHARED_MEMORY},
        {"No space left on device", "/dev/shm", "kernel", STW_FAILURE_SHARED_MEMORY},
        {"is killed by signal: Killed", NULL, "DataLoader", STW_FAILURE_HOST_KILL},
        {"OOMKilled", NULL, "Kubernetes", STW_FAILURE_HOST_KILL},
        {"Signal 9 (SIGKILL) received by PID", NULL, "torchrun", STW_FAILURE_HOST_KILL},
        {"failed (exitcode: -9)", NULL, "torchrun", STW_FAILURE_HOST_KILL},
        {"DefaultCPUAllocator: ", "allocate", "torch", STW_FAILURE_HOST_ALLOC},
        {"std::bad_alloc", NULL, "C++", STW_FAILURE_HOST_ALLOC},
        {"Cannot allocate memory", NULL, "kernel", STW_FAILURE_HOST_ALLOC},
        {"MemoryError", NULL, "Python", STW_FAILURE_HOST_ALLOC},
    };
    if (is_kernel(line, pool, out) || is_ray(line, out)) return true;
    for (size_t i = 0; i < sizeof phrases / sizeof phrases[0]; i++) {
        if (said(line, phrases[i].phrase) == NULL ||
            (phrases[i].beside != NULL && strstr(line, phrases[i].beside) == NULL) ||
            strstr(line, "OutOfMemoryError") != NULL)
            continue;
        out->kind = phrases[i].kind;
        out->who = phrases[i].who;
        (void)count(after(line, "(pid "), &out->pid);
        (void)count(after(line, "(pid: "), &out->pid);
        (void)stw_failure_bytes(after(line, "tried to allocate "), &out->asked);
        (void)stw_failure_bytes(after(line, "Unable to allocate "), &out->asked);
        return true;
    }
    return false;
}

bool stw_failure_message(const char *line, stw_pool *pool, stw_failure *out) {
    char text[MOST_TEXT];
    *out = stw_failure_nothing();
    if (!is_torch(line, out) && !is_async(line, out) && !is_rollout(line, out) &&
        !is_device(line, out) && !is_host(line, pool, out))
        return false;
    (void)stw_printable_copy(line + strspn(line, " \t"), text, sizeof text);
    const char *kept = stw_pool_string(pool, text);
    out->text = kept != NULL ? kept : "";
    return true;
}

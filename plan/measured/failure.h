/* SPDX-License-Identifier: Apache-2.0 */
/* Out-of-memory failures in text files. They are messages of an allocator, an inference engine, a
 * kernel or a launcher about a failed allocation or a killed process, with the Python stack before
 * it, and lines of GPU tools about the memory of processes. These are facts as the file states
 * them; planner/explain/explain.h interprets them. One thread at a time. */
#ifndef STW_MEASURED_FAILURE_H
#define STW_MEASURED_FAILURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pool.h"
#include "core/status.h"

#define STW_NOT_SAID UINT64_MAX /* bytes or a count that the file does not state */

/* X(enum suffix, spelling in files) */
#define STW_FAILURE_TABLE(X)                                                                       \
    X(ALLOCATOR, "gpu_allocator")     /* torch's caching allocator */                              \
    X(DEVICE, "gpu_device")           /* on a GPU, outside that allocator */                       \
    X(CACHE_NONE, "kv_cache_none")    /* no memory is left for a KV cache */                       \
    X(CACHE_SHORT, "kv_cache_short")  /* the KV cache is shorter than one sequence */              \
    X(START, "gpu_share")             /* free memory is below an engine's share of the GPU */      \
    X(HOST_KILL, "host_kill")         /* a process was killed because its node ran out of          \
                                         memory */                                                 \
    X(HOST_ALLOC, "host_allocation")  /* malloc and similar calls */                               \
    X(PAGE_LOCK, "page_lock")         /* page-locked host memory */                                \
    X(SHARED_MEMORY, "shared_memory") /* /dev/shm is full */

#define X(name, text) STW_FAILURE_##name,
typedef enum stw_failure_kind { STW_FAILURE_TABLE(X) STW_N_FAILURES } stw_failure_kind;
#undef X
const char *stw_failure_name(stw_failure_kind kind);

/** One call of a stack. */
typedef struct stw_frame {
    const char *file, *function; /* "torch/optim/adamw.py", "step"; "": unknown */
    const char *code;            /* its line of source code; "": unknown */
    uint64_t line;
} stw_frame;

typedef struct stw_failure {
    stw_failure_kind kind;
    const char *who;  /* who reported it: "torch", "kernel", "cgroup", ... */
    const char *text; /* the message, one line */
    size_t line;      /* line in the file; 0: a snapshot */
    size_t offset;    /* bytes before its line */
    size_t alike;     /* similar ones in the file, of other ranks or later */
    uint64_t rank, device, pid;
    const char *process; /* name of the killed process; "" */
    /* Bytes on a GPU: */
    uint64_t asked, capacity, free;
    uint64_t used_by_process;   /* on the device, CUDA context included */
    uint64_t allowed;           /* the process's own limit */
    uint64_t allocated, unused; /* handed out by the allocator; reserved, but not handed out */
    uint64_t largest_unused;    /* the largest piece of `unused` */
    uint64_t other_processes;   /* held by other processes */
    /* Bytes on a host: used, and the limit. */
    uint64_t used, limit;
    double share;                         /* an inference engine's share of the GPU; NaN */
    uint64_t wanted_tokens, cache_tokens; /* tokens of the longest sequence; of the KV cache */
    size_t n_frames, frames_room;
    stw_frame *frames; /* outermost first */
} stw_failure;

/** A process on a GPU, as a tool lists it. */
typedef struct stw_gpu_process {
    uint64_t device, pid, bytes; /* bytes: STW_NOT_SAID if the tool shows none */
    const char *name;
} stw_gpu_process;

/** The use of a GPU in a tool's output: the highest of its lines. */
typedef struct stw_gpu_use {
    uint64_t device, used, capacity;
    size_t lines;
    const char *from; /* name of the tool */
} stw_gpu_use;

/** Bytes that were alive when an allocation failed, by the stack that made them (snapshots). */
typedef struct stw_live_stack {
    uint64_t bytes;
    size_t blocks;
    size_t n_frames;
    const stw_frame *frames; /* outermost first; none: made before the history begins */
} stw_live_stack;

typedef struct stw_failures {
    stw_pool *pool;
    const char *file;
    bool snapshot;    /* the file is a snapshot of torch */
    const char *text; /* the file, NUL-terminated; "" for a snapshot */
    size_t n, room;
    stw_failure *items; /* in the order of the file */
    size_t n_processes, processes_room;
    stw_gpu_process *processes;
    size_t n_gpus, gpus_room;
    stw_gpu_use *gpus;
    size_t n_held, held_room;
    stw_live_stack *held;                       /* of the first failure */
    uint64_t logged_allocated, logged_reserved; /* highest that a log's lines say before */
} stw_failures;

/** Read any such file; its content decides its kind. The caller frees *out. BAD_INPUT if it
 * mentions neither a memory failure nor the memory of GPUs. */
STW_MUST_USE stw_status stw_failures_read(const char *path, stw_failures **out, stw_error *err);
STW_MUST_USE stw_status stw_failures_parse(const char *file, const char *text, size_t length,
                                           stw_failures **out, stw_error *err);
void stw_failures_free(stw_failures *failures);

#endif

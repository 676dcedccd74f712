/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory ended: what the texts of an allocator, an inference engine, a kernel or a launcher
 * say of an allocation that failed or a process that was killed, with the Python stack before it,
 * and what tools for GPUs say of who holds their memory. Facts as the file states them; what they
 * mean is judged elsewhere. One thread at a time. */
#ifndef STW_MEASURED_FAILURE_H
#define STW_MEASURED_FAILURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pool.h"
#include "core/status.h"

#define STW_NOT_SAID UINT64_MAX /* of bytes and counts that the file does not state */

/* X(enum suffix, spelling in files) */
#define STW_FAILURE_TABLE(X)                                                                       \
    X(ALLOCATOR, "gpu_allocator")     /* torch's caching allocator */                              \
    X(DEVICE, "gpu_device")           /* on a GPU, beside that allocator */                        \
    X(CACHE_NONE, "kv_cache_none")    /* nothing is left for a KV cache */                         \
    X(CACHE_SHORT, "kv_cache_short")  /* it is shorter than one sequence */                        \
    X(START, "gpu_share")             /* less is free than an engine's share of the GPU */         \
    X(HOST_KILL, "host_kill")         /* a process was killed for the memory of its node */        \
    X(HOST_ALLOC, "host_allocation")  /* malloc and the like */                                    \
    X(PAGE_LOCK, "page_lock")         /* page-locked host memory */                                \
    X(SHARED_MEMORY, "shared_memory") /* /dev/shm is full */

#define X(name, text) STW_FAILURE_##name,
typedef enum stw_failure_kind { STW_FAILURE_TABLE(X) STW_N_FAILURES } stw_failure_kind;
#undef X
const char *stw_failure_name(stw_failure_kind kind);

/** One call of a stack. */
typedef struct stw_frame {
    const char *file, *function; /* "torch/optim/adamw.py", "step"; "" where unknown */
    const char *code;            /* the line of source beside it; "" where there is none */
    uint64_t line;
} stw_frame;

typedef struct stw_failure {
    stw_failure_kind kind;
    const char *who;  /* that says so: "torch", "kernel", "cgroup", ... */
    const char *text; /* what it says, one line */
    size_t line;      /* of the file; 0: a snapshot */
    size_t offset;    /* bytes before its line */
    size_t alike;     /* further ones in the file, of other ranks or later */
    uint64_t rank, device, pid;
    const char *process; /* name of the process that was killed; "" */
    /* Bytes. Of a GPU: */
    uint64_t asked, capacity, free;
    uint64_t used_by_process;   /* on the device, CUDA context included */
    uint64_t allowed;           /* that the process may take of it */
    uint64_t allocated, unused; /* handed out by the allocator; reserved and not handed out */
    uint64_t largest_unused;    /* the largest piece of `unused` */
    uint64_t other_processes;   /* what others hold of the device */
    /* Of a host: what was used, and the limit. */
    uint64_t used, limit;
    double share;                         /* of the GPU that an inference engine is to use; NaN */
    uint64_t wanted_tokens, cache_tokens; /* of the longest sequence; of the KV cache */
    size_t n_frames, frames_room;
    stw_frame *frames; /* outermost first */
} stw_failure;

/** A process on a GPU, as a tool lists it. */
typedef struct stw_gpu_process {
    uint64_t device, pid, bytes; /* bytes: STW_NOT_SAID where the tool shows none */
    const char *name;
} stw_gpu_process;

/** What a tool says of a GPU: the highest of its lines. */
typedef struct stw_gpu_use {
    uint64_t device, used, capacity;
    size_t lines;
    const char *from; /* of which tool */
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
    bool snapshot;    /* it is one of torch's */
    const char *text; /* the file, with a NUL; "" of a snapshot */
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

/** Read any such file; what it is follows from its content. The caller frees *out. BAD_INPUT where
 * nothing in it speaks of memory that ended or of memory of GPUs. */
STW_MUST_USE stw_status stw_failures_read(const char *path, stw_failures **out, stw_error *err);
STW_MUST_USE stw_status stw_failures_parse(const char *file, const char *text, size_t length,
                                           stw_failures **out, stw_error *err);
void stw_failures_free(stw_failures *failures);

#endif

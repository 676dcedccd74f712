/* SPDX-License-Identifier: Apache-2.0 */
/* Stage 3 with state on NVMe (ZeRO-Infinity). An optimizer on NVMe keeps fp32 master weights, both
 * moments and fp32 gradients of a sub-group in files; page-locked buffers take the sub-group that
 * is updated (deepspeed/runtime/swap_tensor/: optimizer_utils.py, partitioned_optimizer_swapper.py,
 * pipelined_optimizer_swapper.py, async_swapper.py). Parameters on NVMe have a file for each shard,
 * and page-locked buffers of one shard each (partitioned_param_swapper.py). Buffers are allocated
 * by posix_memalign and locked by mlock (ops/csrc/pin_memory): nothing is rounded, and to CUDA they
 * are pageable. */
#ifndef STW_ENGINES_DEEPSPEED_SWAP_H
#define STW_ENGINES_DEEPSPEED_SWAP_H

#include "engines/deepspeed/zero.h"

/** What the tensors of a sub-group have. */
typedef struct stw_swap_group {
    uint32_t first, end;  /* they are among these */
    uint64_t grad_files;  /* bytes of files of gradients */
    uint64_t grad_rest;   /* bytes of gradients that have none */
    uint64_t param_files; /* bytes of files of shards */
    uint64_t shards;      /* bytes of all shards, each as in a file */
    uint32_t in_memory;   /* tensors whose shards have no file */
} stw_swap_group;

/** What lies on NVMe. Called once the sub-groups of `z` are known. @return false after a failure,
 * and where DeepSpeed's own assertions about buffers fail */
bool stw_swap_init(stw_zero *z);

/* ---- sizes ---- */

/** Bytes of a file, or of a buffer, with so many bytes of data. */
uint64_t stw_swap_aligned(const stw_zero *z, uint64_t bytes);
/** Bytes of the file of a tensor's shard; 0: it has none. Shards that stay on the host have one,
 * too, from initialization. */
uint64_t stw_swap_param_file(const stw_zero *z, uint32_t tensor);
/** Is the shard read from its file each time it is used? */
bool stw_swap_reads_param(const stw_zero *z, uint32_t tensor);
/** Bytes of all page-locked buffers of the optimizer; of those of parameters. */
uint64_t stw_swap_optimizer_buffers(const stw_zero *z);
uint64_t stw_swap_param_buffers(const stw_zero *z);
/** Bytes of the page-locked buffer that updated 16-bit shards are written from. */
uint64_t stw_swap_written_buffer(const stw_zero *z);

/* ---- initialization ---- */

/** The files of parameters, then those of master weights: bytes, writes and reads. */
void stw_swap_load_params(stw_zero *z);
void stw_swap_load_masters(stw_zero *z);

/* ---- backward ---- */

typedef struct stw_swap_writer {
    uint64_t filled; /* bytes of the buffer that is being filled */
    uint32_t begun;  /* buffers since the last wait */
    uint32_t written, waits_for;
} stw_swap_writer;

/** fp32 gradients of a shard, at `grad` on the GPU, go to their files through the page-locked
 * buffers. @return false if they stay where they are until the step: those that are too small to
 * be swapped, and those of which a part is */
bool stw_swap_write_grad(stw_zero *z, stw_swap_writer *w, uint32_t tensor, uint64_t gpu_offset,
                         uint32_t block);
/** Gradients as a step finds them, for a step without a backward before it. */
void stw_swap_grads_appear(stw_zero *z);

/* ---- the step ---- */

typedef struct stw_swap_step {
    bool first;              /* makes moments */
    uint32_t ahead, read_by; /* the sub-group that is being read ahead, and its last operation */
    uint32_t writing;        /* the last write that nothing has waited for */
} stw_swap_step;

/** Files of moments and of gradients, if the step is the first one. */
void stw_swap_step_begin(stw_zero *z, stw_swap_step *s, bool first);
/** The sub-group's state and gradients are in the buffers when this has ended.
 * @return the operation after which the process goes on */
uint32_t stw_swap_in(stw_zero *z, stw_swap_step *s, uint32_t sub_group);
/** They are written after `after`. */
uint32_t stw_swap_out(stw_zero *z, stw_swap_step *s, uint32_t sub_group, uint32_t after);
/** Updated 16-bit shards of a sub-group that are not in one buffer on the host go where they are:
 * one by one, or to their files, for which the process waits. */
uint32_t stw_swap_write_params(stw_zero *z, uint32_t sub_group, uint32_t after);
/** Moments of a first step that stay on the host until the second one has swapped them in. */
void stw_swap_step_end(stw_zero *z, const stw_swap_step *s);

#endif

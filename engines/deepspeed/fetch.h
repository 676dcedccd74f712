/* SPDX-License-Identifier: Apache-2.0 */
/* Stage 3's parameters on the GPU: which tensors are whole there, when they are gathered ahead and
 * when they go. It does what PartitionedParameterCoordinator does once its trace is complete
 * (zero/partitioned_param_coordinator.py: fetch_sub_module, release_sub_module), tensor by tensor
 * in the order of their uses. Stages 1 and 2 have whole parameters: nothing happens. */
#ifndef STW_ENGINES_DEEPSPEED_FETCH_H
#define STW_ENGINES_DEEPSPEED_FETCH_H

#include "engines/deepspeed/zero.h"

typedef struct stw_fetch_tensor stw_fetch_tensor;
typedef struct stw_fetch_handle stw_fetch_handle;

typedef struct stw_fetch {
    stw_zero *z;
    bool active;               /* stage 3 */
    stw_fetch_tensor *tensors; /* [n_tensors] */
    stw_fetch_handle *handles; /* [n_uses] gathers, in the order of their issue */
    uint32_t *uses;            /* [n_uses] tensors; UINT32_MAX: a module without parameters */
    uint64_t *before;          /* [n_uses + 1] elements of all uses before one */
    uint32_t *next;            /* [n_uses] the next use of the same tensor; n_uses: none */
    uint32_t n_uses, n_handles;
    uint32_t step, queue; /* the next use, the next one to look at for prefetching */
    uint64_t available;   /* elements that are gathered or on their way */
    uint32_t needed;      /* the last gather that the tensors fetched so far wait for */
    uint64_t in_flight;   /* elements of gathers that nothing has waited for */
    int64_t free_buffers; /* for shards on NVMe; below 0: so many are missing */
    int64_t fewest;       /* free ones so far */
    uint32_t read_by;     /* the last read of a shard */
    uint32_t *reading;    /* [n_tensors] shards that are being read */
    uint32_t n_reading;
    uint32_t block; /* that is being worked on */
} stw_fetch;

/** How a block's tensors are used: in forward, in backward, in a recomputation before it. */
typedef enum stw_fetch_pass { STW_FETCH_FORWARD, STW_FETCH_BACKWARD } stw_fetch_pass;

/** @param acts [n_blocks] policies; the order of uses follows from them: every block forward, the
 * head, the head again, every block backward, a recomputed one forward before that
 * @return false after a failure */
bool stw_fetch_begin(stw_fetch *f, stw_zero *z, const stw_act *acts);
/** Tensors of a block in the order of a pass: number `i` of it. */
uint32_t stw_fetch_in_order(const stw_zero *z, uint32_t block, stw_fetch_pass pass, uint32_t i);
/** A module without parameters is entered. */
void stw_fetch_enter(stw_fetch *f, uint32_t block);
/** The next use: gather its tensor if it is not there, and others ahead. */
void stw_fetch_next(stw_fetch *f, uint32_t block);
/** The uses that were fetched last, so many, have ended. */
void stw_fetch_release(stw_fetch *f, uint32_t n);
/** Append a computation of a block, which waits for what was fetched so far. @return it */
uint32_t stw_fetch_compute(stw_fetch *f, stw_op_kind kind, uint32_t block, const stw_work *work);
/** Everything goes (stage3.py, step calls _partition_all_parameters). */
void stw_fetch_end(stw_fetch *f);

#endif

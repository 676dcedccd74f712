/* SPDX-License-Identifier: Apache-2.0 */
/* The program: for one kind of rank, per phase, one ordered list of operations. Walking it gives
 * every byte count, the simulator adds time, the executor issues it. Built once from decisions by
 * the engine; read-only afterwards and then free to share between threads. */
#ifndef STW_PLAN_PROGRAM_H
#define STW_PLAN_PROGRAM_H

#include "plan/program/layout.h"

#define STW_OP_NONE UINT32_MAX
#define STW_OFFSET_EXTERNAL                                                                        \
    UINT64_MAX /* bytes outside the arena: context, NCCL, process, slack                           \
                */

typedef enum stw_op_kind {
    STW_OP_ALLOC,   /* bytes of a component appear in tier `to` */
    STW_OP_FREE,    /* and go (same component, tier, offset and bytes as their alloc) */
    STW_OP_COPY,    /* between arenas, from -> to */
    STW_OP_UPDATE,  /* AdamW on bucket `unit`, in tier `to`; `from`: where moments (and master) lie
                       that it reaches by itself, else as `to` */
    STW_OP_COMPUTE, /* other work: see `work` */
    STW_OP_COLLECTIVE, /* over all ranks of the group: see `work` */
    STW_OP_READ,       /* NVMe or a weights file -> host */
    STW_OP_WRITE,      /* host -> NVMe */
    STW_N_OP_KINDS
} stw_op_kind;

typedef enum stw_work {
    STW_WORK_NONE,
    STW_WORK_FORWARD,
    STW_WORK_BACKWARD,
    STW_WORK_LOSS,     /* compute; `unit` is a block */
    STW_WORK_NORM,     /* compute: squares of the gradients that lie in tier `to` */
    STW_WORK_NORM_SUM, /* collective: exact sum over ranks, then the clip factor; `to` is host where
                          CPU updates wait for it */
    STW_WORK_PLACE,    /* compute: load piece `unit` into the shards that it meets */
    STW_WORK_MASTER,   /* compute: master of region `unit` of the layout = its params: from the
                          first one's tier and offset to the region's, NVMe included */
    STW_WORK_BROADCAST, /* collective: load piece `unit` from rank 0 (or the node's leader) */
    STW_WORK_ALL_GATHER,
    STW_WORK_REDUCE_SCATTER, /* collective; `unit` is a block */
    STW_WORK_ALL_REDUCE,
    STW_N_WORKS
} stw_work;

/** One operation of a movement. Operations of a stream run in order; `after` names operations of
 * other streams (earlier in the list) that must have finished. */
typedef struct stw_op {
    stw_op_kind kind;
    stw_work work;
    stw_component component; /* whose bytes */
    stw_tier from, to;       /* equal where nothing moves */
    stw_stream stream;
    uint32_t unit;              /* bucket, load piece or block that it serves; STW_OP_NONE */
    uint32_t after[2];          /* indices into the program, STW_OP_NONE where unused */
    uint64_t from_offset_bytes; /* copies, reads, writes: in tier `from` */
    uint64_t offset_bytes;      /* in tier `to` */
    uint64_t bytes;             /* moved, or allocated; of a collective: of its full result */
    uint64_t params;            /* elements that an update or norm works on */
    uint64_t ring_bytes; /* of the ring of CPU buckets that it works in, and of what the CPU updates
                          * elsewhere while a bucket passes through; 0: it works in none */
    double flops;        /* of compute */
} stw_op;

typedef struct stw_movement {
    stw_phase phase;
    bool by_stowage; /* executed by Stowage itself (else by the framework) */
    bool executable; /* this build's executor can do it */
    uint32_t first_op, n_ops;
} stw_movement;

typedef struct stw_program {
    stw_pool *pool;
    uint32_t kind;
    uint32_t n_ops;
    stw_op *ops;
    uint32_t n_movements;
    stw_movement
        movements[STW_N_PHASES]; /* in order: load, forward_backward, first step, step ... */
} stw_program;

/** Bytes at the moment of a tier's peak. */
typedef struct stw_peak {
    uint64_t total;                        /* everything, context and process included */
    uint64_t components[STW_N_COMPONENTS]; /* at that moment; they sum to total */
} stw_peak;

typedef struct stw_peaks {
    bool has[STW_N_PHASES];
    stw_peak phase[STW_N_PHASES][STW_N_TIERS];
} stw_peaks;

/** Build the program of one kind with the engine of the run. */
STW_MUST_USE stw_status stw_program_new(const stw_job *job, const stw_decisions *decisions,
                                        const stw_layout *layout, stw_program **out,
                                        stw_error *err);
void stw_program_free(stw_program *program);

/** Live bytes of one walk: start from zero, apply operations in program order. */
typedef struct stw_live {
    uint64_t bytes[STW_N_TIERS][STW_N_COMPONENTS];
    uint64_t total[STW_N_TIERS];
} stw_live;
/** Apply one operation; anything but alloc and free changes nothing. */
void stw_live_apply(stw_live *live, const stw_op *op);
/** Peaks of every phase and tier: one walk over the movements in order, no time. Never fails. */
void stw_program_walk(const stw_program *program, stw_peaks *peaks);
/** What the engine's allocator hands out of a GPU peak: total less context, comm and slack. */
uint64_t stw_peak_allocated(const stw_peak *peak);
/** What it holds: allocated plus slack. */
uint64_t stw_peak_reserved(const stw_peak *peak);
/** The movement of a phase, or NULL. */
const stw_movement *stw_program_movement(const stw_program *program, stw_phase phase);
/** Hash of the operations that ranks must agree on (collectives in order) of one movement. */
uint64_t stw_program_schedule_hash(const stw_program *program, const stw_movement *movement);

const char *stw_op_kind_name(stw_op_kind kind);
const char *stw_work_name(stw_work work);

#endif

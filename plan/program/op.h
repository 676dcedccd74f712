/* SPDX-License-Identifier: Apache-2.0 */
/* One operation of a program, and the one table of all operations. A row gives an operation's name,
 * its class, the meaning of `unit`, the function of demand.c that gives its demand, and the
 * function of check.c that tests it. The executor has a parallel table with the function that
 * issues each operation. Plain values; any thread. */
#ifndef STW_PLAN_PROGRAM_OP_H
#define STW_PLAN_PROGRAM_OP_H

#include "plan/job/job.h"
#include "plan/program/work.h"

/* X(enum, name, class, unit, demand, check) */
#define STW_OP_TABLE(X)                                                                            \
    /* bytes of a component appear in tier `to`, and disappear */                                  \
    X(ALLOC, "alloc", MEMORY, NOTHING, nothing, alloc)                                             \
    X(FREE, "free", MEMORY, NOTHING, nothing, free)                                                \
    /* between the arenas of two tiers */                                                          \
    X(COPY, "copy", MOVE, BUCKET, copy, move)                                                      \
    X(COPY_PIECE, "copy_piece", MOVE, PIECE, copy, move)                                           \
    X(COPY_BLOCK, "copy_block", MOVE, BLOCK, copy, move)                                           \
    /* between the host arena and NVMe; a movement that writes ends with a commit */               \
    X(NVME_READ, "nvme_read", MOVE, BUCKET, copy, move)                                            \
    X(NVME_WRITE, "nvme_write", MOVE, BUCKET, copy, move)                                          \
    /* everything written to NVMe since the last commit becomes the state that survives */         \
    X(COMMIT, "commit", ORDER, NOTHING, nothing, commit)                                           \
    /* a piece of the movement's transfer: from a file into staging, from a space into staging,    \
     * from rank `peer` to its group, from staging into the target space */                        \
    X(FILE_READ, "file_read", FILE, PIECE, file_read, staged)                                      \
    /* bytes on the host into a file of a checkpoint */                                            \
    X(FILE_WRITE, "file_write", FILE, BUCKET, file_write, staged)                                  \
    X(PACK, "pack", COMPUTE, PIECE, place, staged)                                                 \
    X(SEND, "send", COLLECTIVE, PIECE, collective, staged)                                         \
    X(PLACE, "place", COMPUTE, PIECE, place, staged)                                               \
    /* master weights of region `unit` of the layout, from its parameters */                       \
    X(MASTER, "master", COMPUTE, REGION, master, unit)                                             \
    /* squares of the gradients in tier `to`; then their exact sum over ranks and the clip         \
     * factor */                                                                                   \
    X(NORM, "norm", COMPUTE, NOTHING, norm, nothing)                                               \
    X(NORM_SUM, "norm_sum", COLLECTIVE, NOTHING, norm_sum, nothing)                                \
    /* AdamW on a bucket, in tier `to`; `from`: the tier of its moments and master. With `work`:   \
     * what another optimizer computes */                                                          \
    X(UPDATE, "update", COMPUTE, BUCKET, update, unit)                                             \
    /* a pass over arrays in tier `to`: `bytes` that it reads and writes together */               \
    X(PASS, "pass", COMPUTE, BUCKET, pass, nothing)                                                \
    /* `params` calls with which a framework's process issues work to the GPU */                   \
    X(CALLS, "calls", COMPUTE, NOTHING, calls, nothing)                                            \
    X(FORWARD, "forward", COMPUTE, BLOCK, work, unit)                                              \
    X(BACKWARD, "backward", COMPUTE, BLOCK, work, unit)                                            \
    X(LOSS, "loss", COMPUTE, BLOCK, work, unit)                                                    \
    /* the rank waits for other pipeline stages */                                                 \
    X(IDLE, "idle", COMPUTE, NOTHING, idle, nothing)                                               \
    X(ALL_GATHER, "all_gather", COLLECTIVE, BLOCK, collective, unit)                               \
    X(REDUCE_SCATTER, "reduce_scatter", COLLECTIVE, BLOCK, collective, unit)                       \
    X(ALL_REDUCE, "all_reduce", COLLECTIVE, BLOCK, collective, unit)                               \
    /* `bytes`: sent by one rank to all ranks together */                                          \
    X(ALL_TO_ALL, "all_to_all", COLLECTIVE, BLOCK, all_to_all, unit)                               \
    /* messages between pairs of ranks; `bytes`: received by this rank */                          \
    X(EXCHANGE, "exchange", COLLECTIVE, PIECE, exchange, unit)                                     \
    /* `calls` collectives by which ranks exchange data other than tensors, or wait for all */     \
    X(AGREE, "agree", COLLECTIVE, NOTHING, agree, nothing)

#define X(name, text, class, unit, demand, check) STW_OP_##name,
typedef enum stw_op_kind { STW_OP_TABLE(X) STW_N_OP_KINDS } stw_op_kind;
#undef X

typedef enum stw_op_class {
    STW_OP_CLASS_MEMORY,     /* bytes appear or disappear; no time */
    STW_OP_CLASS_MOVE,       /* bytes from tier `from` to tier `to` */
    STW_OP_CLASS_FILE,       /* bytes between a file and the host */
    STW_OP_CLASS_COMPUTE,    /* work of one rank */
    STW_OP_CLASS_COLLECTIVE, /* work of all ranks of `group` together */
    STW_OP_CLASS_ORDER       /* neither bytes nor work */
} stw_op_class;

/** The meaning of `unit`. Any operation may leave it STW_OP_NONE, which means the whole. */
typedef enum stw_op_unit {
    STW_OP_UNIT_NOTHING,
    STW_OP_UNIT_BUCKET, /* of the layout */
    STW_OP_UNIT_PIECE,  /* of the movement's transfer */
    STW_OP_UNIT_REGION, /* of the layout */
    STW_OP_UNIT_BLOCK   /* of the model */
} stw_op_unit;

/** The ranks of a node that issue an operation together. Demand counts their use of resources that
 * the node shares. */
typedef enum stw_op_ranks {
    STW_OP_RANKS_EACH, /* all ranks, each on bytes of its own */
    STW_OP_RANKS_SAME, /* all ranks, on the same bytes of a file: the disk reads them once */
    STW_OP_RANKS_ONE   /* one rank */
} stw_op_ranks;

#define STW_OP_NONE UINT32_MAX
/* Offset of bytes outside the arena: context, NCCL, process, slack. A copy with this offset on both
 * sides takes the time of a copy, but moves nothing: the kernel of the next operation reads the
 * bytes itself. */
#define STW_OFFSET_EXTERNAL UINT64_MAX

/** One operation of a movement. Operations of a stream run in order; `after` names operations of
 * other streams (earlier in the list) that must have finished. */
typedef struct stw_op {
    stw_op_kind kind;
    stw_component component; /* the component of the bytes */
    stw_update update;       /* of an update: its kind */
    stw_tier from, to;       /* equal if nothing moves */
    stw_stream stream;
    bool pageable; /* of an alloc, a free or a copy: not page-locked; of a pass: one thread's */
    uint8_t pool;  /* of an alloc on the GPU: the stream of torch's allocator that it belongs to */
    const char *from_what; /* of an alloc on the host: why it is there; NULL: its component */
    stw_op_ranks ranks;    /* of the node that do this at the same time */
    stw_rank_group group;  /* of a collective: the ranks that take part */
    uint32_t peer;         /* of a send: the rank that has the bytes */
    uint32_t unit;         /* see the table; STW_OP_NONE: the whole */
    uint32_t once_in;      /* if an iteration repeats the movement: done in one of this number of
                            * passes; 0: in every pass */
    uint32_t calls;        /* collectives that it stands for, `bytes` together; 0: one */
    uint32_t after[2];     /* indices into the program, STW_OP_NONE where unused */
    uint64_t from_offset_bytes; /* in tier `from` */
    uint64_t offset_bytes;      /* in tier `to` */
    uint64_t bytes;             /* moved or allocated; of a collective: its full result */
    uint64_t params;            /* elements that it processes */
    uint64_t stored_bytes;      /* of a read: bytes in the file; 0: `bytes` */
    uint64_t ring_bytes; /* of a CPU bucket's op: bytes that pass through the CPU's caches in one
                            turn of the ring; 0: no ring */
    double flops;        /* of compute: flops of `work` */
    uint32_t n_work;
    const stw_work_item *work; /* [n_work] of compute: its parts; in the program's pool */
    double wait_s;             /* of idle: seconds */
    uint64_t near_bytes;       /* of an exchange: bytes on the busiest NVLink, in one direction */
    uint64_t far_bytes;        /* the same for the busiest NIC */
    uint32_t far_messages;     /* of an exchange: most messages of one rank to other nodes */
} stw_op;

/** A row of the table. */
typedef struct stw_op_row {
    const char *name;
    stw_op_class class_; /* not `class`: C++ programs include tests' headers */
    stw_op_unit unit;
} stw_op_row;

const stw_op_row *stw_op_row_of(stw_op_kind kind);
const char *stw_op_kind_name(stw_op_kind kind);
static inline bool stw_op_is(const stw_op *op, stw_op_class class_) {
    return stw_op_row_of(op->kind)->class_ == class_;
}
/** Returns an operation of a kind and stream with default fields. A collective's group is WORLD. */
stw_op stw_op_make(stw_op_kind kind, stw_stream stream, uint32_t unit);
/** Mix into `hash` all fields of an operation that ranks must agree on. */
uint64_t stw_op_hash(uint64_t hash, const stw_op *op);

#endif

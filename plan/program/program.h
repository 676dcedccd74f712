/* SPDX-License-Identifier: Apache-2.0 */
/* The program: for one kind of rank, per phase, one ordered list of operations. Walking it gives
 * every byte count, the simulator adds time, the executor issues it. Built once from decisions by
 * the engine; read-only afterwards and then free to share between threads. */
#ifndef STW_PLAN_PROGRAM_H
#define STW_PLAN_PROGRAM_H

#include "plan/program/layout.h"
#include "plan/program/op.h"

/** How often an executor issues a movement. A run loads once and then executes its iterations.
 * Movements of one repetition are issued in the program's order. An iteration with several
 * optimizer steps (stw_run_spec_steps) lists forward, backward and step once; stw_job_passes gives
 * how often they are executed. */
typedef enum stw_repeat {
    STW_REPEAT_ONCE,            /* before the first iteration */
    STW_REPEAT_FIRST,           /* in the first iteration */
    STW_REPEAT_LATER,           /* in every iteration but the first */
    STW_REPEAT_EVERY_ITERATION, /* in every iteration */
    STW_REPEAT_AT_CHECKPOINTS   /* after every checkpoint.every-th iteration */
} stw_repeat;

/** How an executor serves the streams of a movement. */
typedef enum stw_threading {
    STW_THREADING_SHARED,    /* streams whose operations only queue work share a thread */
    STW_THREADING_PER_STREAM /* operations block on most streams, so each stream has a thread */
} stw_threading;

/** A piece: contiguous elements of one rank's source space, on their way to another space. */
typedef struct stw_piece {
    uint32_t peer;       /* the rank that holds it */
    uint32_t tensor;     /* tensor of its first element, for messages */
    uint64_t first, n;   /* elements of the source space of that rank */
    uint64_t room_bytes; /* bytes in the staging slot, at most */
} stw_piece;

/** The pieces that the PACK, SEND, FILE_READ and PLACE operations of a movement handle. */
typedef struct stw_transfer {
    bool used;
    bool from_files;   /* the source is stw_job.files, read by ranks that FILE_READ */
    bool own;          /* each rank's pieces lie in its own source space */
    bool whole;        /* pieces are ranges of stw_job.files; ranks pack the part that is in their
                          source space, and place the part that is in their target space */
    uint32_t from, to; /* spaces; `from` unused for files */
    stw_component from_component, to_component; /* components whose regions hold the elements */
    uint32_t n_pieces;
    stw_piece *pieces;
} stw_transfer;

typedef struct stw_movement {
    stw_phase phase;
    const char *role;     /* "trainer" */
    uint32_t role_number; /* index in stw_job.roles; 0: the trainer */
    bool by_stowage;      /* Stowage's own movement, which it executes if `executable`; else the
                             framework's */
    bool executable;      /* this build's executor supports it */
    bool inside;          /* Stowage executes it within the framework's process; stowage-run never
                             does */
    stw_repeat repeat;
    stw_threading threading;
    bool barrier;           /* ranks begin together */
    bool empties_cache;     /* a framework's torch.cuda.empty_cache() at its end */
    uint32_t micro_batches; /* how many times its tensors are allocated and freed; 0: once */
    stw_transfer transfer;
    uint32_t files; /* of a checkpoint: files that a rank writes */
    bool behind;    /* of a checkpoint: its files are written during the next iterations */
    uint32_t first_op, n_ops;
} stw_movement;

/** An event of torch's allocator (plan/program/tensors.h). */
typedef enum stw_tensor_change {
    STW_TENSOR_TAKE,
    STW_TENSOR_DROP,
    STW_TENSOR_EMPTY_CACHE
} stw_tensor_change;
/** Micro batches in which an event does not happen. A movement of several micro batches lists its
 * events once. */
enum {
    STW_TENSOR_NOT_FIRST = 1 << 0,
    STW_TENSOR_NOT_LATER = 1 << 1, /* any but the first */
    STW_TENSOR_NOT_LAST = 1 << 2,
    STW_TENSOR_NOT_EARLIER = 1 << 3 /* any but the last */
};
typedef struct stw_tensor_event {
    uint8_t change, stream; /* stw_tensor_change; stream of the allocator */
    uint32_t tensor;
    uint64_t bytes;
    uint8_t unless; /* bits STW_TENSOR_NOT_* */
} stw_tensor_event;
/** The events that replace the GPU allocs and frees of operations [first_op, end_op). */
typedef struct stw_tensor_range {
    uint32_t movement, first_op, end_op, first_event, n_events;
} stw_tensor_range;

/** The most operations of one program: 3 for each load piece of the largest model, and some
 * more. */
#define STW_MAX_OPS (1u << 22)

typedef struct stw_program {
    stw_pool *pool;
    uint32_t kind;
    uint32_t phases; /* phases whose movements have all operations, a bit for each stw_phase; 0:
                        all */
    uint32_t n_ops;
    stw_op *ops;
    uint32_t n_movements;
    size_t movement_room;
    stw_movement *movements; /* in the order of first execution; in an iteration: log_prob,
                                forward_backward, steps, weight_sync, rollout, checkpoint
                                (roles.h) */
    bool with_tensors;       /* the members below are filled; else they are empty */
    uint32_t n_tensors, n_ranges, n_events;
    uint32_t n_lone_ranges; /* ranges beside which other allocs stand for themselves */
    size_t range_room, event_room;
    stw_tensor_range *ranges; /* by operation, ascending; they do not overlap */
    stw_tensor_event *events;
} stw_program;

/** The memories in which bytes are counted: the tiers, and page-locked host memory. */
enum { STW_MEMORY_PAGE_LOCKED = STW_N_TIERS, STW_N_MEMORIES };

/** Bytes at the moment of a tier's peak. */
typedef struct stw_peak {
    uint64_t total;                        /* all bytes, context and process included */
    uint64_t components[STW_N_COMPONENTS]; /* at that moment; they add up to total */
    uint64_t page_locked;                  /* of the host: its own peak, which may be at another
                                              moment */
} stw_peak;

typedef struct stw_peaks {
    bool has[STW_N_PHASES];
    stw_peak phase[STW_N_PHASES][STW_N_TIERS];
} stw_peaks;

/** Build the program of one kind with the engine of the run. */
STW_MUST_USE stw_status stw_program_new(const stw_job *job, const stw_decisions *decisions,
                                        const stw_layout *layout, stw_program **out,
                                        stw_error *err);
/** The same with all operations of some phases only. Other phases have only allocs and frees, so
 * that a walk finds the bytes of all phases; they need no time for pieces and buckets.
 * @param phases a bit for each stw_phase; 0: all; STW_NO_PHASES: none */
STW_MUST_USE stw_status stw_program_new_phases(const stw_job *job, const stw_decisions *decisions,
                                               const stw_layout *layout, uint32_t phases,
                                               stw_program **out, stw_error *err);
#define STW_NO_PHASES (1u << STW_N_PHASES)
/** The same with allocs and frees only (STW_NO_PHASES), and with the tensors that torch allocates
 * for them. */
STW_MUST_USE stw_status stw_program_new_tensors(const stw_job *job, const stw_decisions *decisions,
                                                const stw_layout *layout, stw_program **out,
                                                stw_error *err);
void stw_program_free(stw_program *program);
/** True if a program has all operations of a phase. */
static inline bool stw_program_is_full(const stw_program *program, stw_phase phase) {
    return program->phases == 0 || (program->phases & (1u << phase)) != 0;
}

/** The peak of a phase in a tier, or of its page-locked bytes (STW_MEMORY_PAGE_LOCKED). */
static inline uint64_t stw_peaks_bytes(const stw_peaks *peaks, unsigned phase, uint32_t memory) {
    const stw_peak *peak = peaks->phase[phase];
    return memory == STW_MEMORY_PAGE_LOCKED ? peak[STW_TIER_HOST].page_locked : peak[memory].total;
}

/** Live bytes of one walk: start from zero, apply operations in program order. */
typedef struct stw_live {
    uint64_t bytes[STW_N_TIERS][STW_N_COMPONENTS];
    uint64_t total[STW_N_TIERS];
    uint64_t page_locked; /* on the host */
} stw_live;
/** Apply one operation; anything but alloc and free changes nothing. */
void stw_live_apply(stw_live *live, const stw_op *op);
/** Keep the live bytes of a tier if they are a peak; the last of equal peaks counts. */
void stw_live_note(const stw_live *live, stw_tier tier, stw_peak *peak);
/** Compute the peaks of every phase and tier in one walk over the movements, in order and without
 * time. Never fails. */
void stw_program_walk(const stw_program *program, stw_peaks *peaks);
/** The same, only over the moments at which one role executes; the bytes of all roles count. */
void stw_program_walk_while(const stw_program *program, uint32_t role, stw_peaks *peaks);
/** The peaks of one role's movements, as if there were no other role. */
void stw_program_walk_alone(const stw_program *program, uint32_t role, stw_peaks *peaks);
/** Returns the bytes of a GPU peak that the engine's allocator hands out: the total without
 * context, comm and slack, and without the bytes of inference engines, which are other
 * processes. */
uint64_t stw_peak_allocated(const stw_peak *peak);
/** Returns the bytes that the allocator holds: allocated plus slack. */
uint64_t stw_peak_reserved(const stw_peak *peak);
/** The trainer's first movement of a phase, or NULL. */
const stw_movement *stw_program_movement(const stw_program *program, stw_phase phase);
/** True if a movement has an operation of this kind. */
bool stw_movement_has(const stw_program *program, const stw_movement *movement, stw_op_kind kind);
/** Returns a hash of all operations of one movement, to compare programs that ranks built
 * separately. */
uint64_t stw_program_movement_hash(const stw_program *program, const stw_movement *movement);
/** Returns a hash of a movement's operations that ranks must agree on: its collectives, in
 * order. */
uint64_t stw_program_schedule_hash(const stw_program *program, const stw_movement *movement);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The program: for one kind of rank, per phase, one ordered list of operations. Walking it gives
 * every byte count, the simulator adds time, the executor issues it. Built once from decisions by
 * the engine; read-only afterwards and then free to share between threads. */
#ifndef STW_PLAN_PROGRAM_H
#define STW_PLAN_PROGRAM_H

#include "plan/program/layout.h"
#include "plan/program/op.h"

/** How often an executor issues a movement. A run loads once and then goes through its iterations;
 * movements of one repetition are issued in the order of the program. Of an iteration with several
 * optimizer steps (stw_run_spec_steps) forward, backward and step stand once: stw_job_passes says
 * how often they are gone through. */
typedef enum stw_repeat {
    STW_REPEAT_ONCE,            /* before the first iteration */
    STW_REPEAT_FIRST,           /* in the first iteration */
    STW_REPEAT_LATER,           /* in every iteration but the first */
    STW_REPEAT_EVERY_ITERATION, /* in every iteration */
    STW_REPEAT_AT_CHECKPOINTS   /* after one iteration of checkpoint.every */
} stw_repeat;

/** How an executor serves the streams of a movement. */
typedef enum stw_threading {
    STW_THREADING_SHARED,    /* streams whose operations only queue work share a thread */
    STW_THREADING_PER_STREAM /* operations block on most streams: each has a thread of its own */
} stw_threading;

/** Elements on their way from one space to another: a run of the source that one rank has. */
typedef struct stw_piece {
    uint32_t peer;       /* the rank that has it */
    uint32_t tensor;     /* of its first element, for messages */
    uint64_t first, n;   /* elements of the source space of that rank */
    uint64_t room_bytes; /* in the staging slot, at most */
} stw_piece;

/** What PACK, SEND, FILE_READ and PLACE operations of a movement work on. */
typedef struct stw_transfer {
    bool used;
    bool from_files;   /* the source is stw_job.files, read by ranks that FILE_READ */
    bool own;          /* every rank's pieces are of its own source space */
    bool whole;        /* pieces are runs of stw_job.files: ranks pack what of a piece their source
                        * space has, and place what of it their target space has */
    uint32_t from, to; /* spaces; `from` unused for files */
    stw_component from_component, to_component; /* whose regions hold them */
    uint32_t n_pieces;
    stw_piece *pieces;
} stw_transfer;

typedef struct stw_movement {
    stw_phase phase;
    const char *role;     /* "trainer" */
    uint32_t role_number; /* of stw_job.roles; 0: the trainer */
    bool by_stowage;      /* Stowage's own, executed by it if `executable` (else the framework's) */
    bool executable;      /* this build's executor can do it */
    bool inside;          /* Stowage's own, executed by it within the framework's process; no run of
                             stowage-run has it */
    stw_repeat repeat;
    stw_threading threading;
    bool barrier;           /* ranks begin together */
    bool empties_cache;     /* a framework's torch.cuda.empty_cache() at its end */
    uint32_t micro_batches; /* its tensors come and go so many times; 0: once */
    stw_transfer transfer;
    uint32_t files; /* that a rank writes, of a checkpoint */
    bool behind;    /* of a checkpoint: its files are written beside the iterations that follow */
    uint32_t first_op, n_ops;
} stw_movement;

/** A tensor comes or goes in torch's allocator (plan/program/tensors.h). */
typedef enum stw_tensor_change {
    STW_TENSOR_TAKE,
    STW_TENSOR_DROP,
    STW_TENSOR_EMPTY_CACHE
} stw_tensor_change;
/** Micro batches in which an event does not happen; a movement of several stands for all of them.
 */
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
    uint8_t unless; /* bits of the above */
} stw_tensor_event;
/** What stands for the GPU allocs and frees of operations [first_op, end_op). */
typedef struct stw_tensor_range {
    uint32_t movement, first_op, end_op, first_event, n_events;
} stw_tensor_range;

/** Operations of one program, at most: 3 for each of the pieces in which the largest model is read,
 * and some. */
#define STW_MAX_OPS (1u << 22)

typedef struct stw_program {
    stw_pool *pool;
    uint32_t kind;
    uint32_t phases; /* bit stw_phase: movements with all their operations; 0: all */
    uint32_t n_ops;
    stw_op *ops;
    uint32_t n_movements;
    size_t movement_room;
    stw_movement *movements; /* in the order in which they first happen; those of an iteration:
                                log_prob, forward_backward, steps, weight_sync, rollout, checkpoint
                                (roles.h) */
    bool with_tensors;       /* the rest is made; else it is empty */
    uint32_t n_tensors, n_ranges, n_events;
    uint32_t n_lone_ranges; /* of these, beside which allocs stand for themselves */
    size_t range_room, event_room;
    stw_tensor_range *ranges; /* by operation, ascending; they do not overlap */
    stw_tensor_event *events;
} stw_program;

/** What bytes are counted in: the tiers, and of the host what is page-locked. */
enum { STW_MEMORY_PAGE_LOCKED = STW_N_TIERS, STW_N_MEMORIES };

/** Bytes at the moment of a tier's peak. */
typedef struct stw_peak {
    uint64_t total;                        /* everything, context and process included */
    uint64_t components[STW_N_COMPONENTS]; /* at that moment; they sum to total */
    uint64_t page_locked;                  /* of the host: the most, at whatever moment */
} stw_peak;

typedef struct stw_peaks {
    bool has[STW_N_PHASES];
    stw_peak phase[STW_N_PHASES][STW_N_TIERS];
} stw_peaks;

/** Build the program of one kind with the engine of the run. */
STW_MUST_USE stw_status stw_program_new(const stw_job *job, const stw_decisions *decisions,
                                        const stw_layout *layout, stw_program **out,
                                        stw_error *err);
/** The same with operations of some phases only: of the others it has what is allocated and freed,
 * so that a walk finds the bytes of all. Pieces and buckets cost nothing there.
 * @param phases bit stw_phase; 0: all; STW_NO_PHASES: none */
STW_MUST_USE stw_status stw_program_new_phases(const stw_job *job, const stw_decisions *decisions,
                                               const stw_layout *layout, uint32_t phases,
                                               stw_program **out, stw_error *err);
#define STW_NO_PHASES (1u << STW_N_PHASES)
/** Allocs and frees alone (STW_NO_PHASES), with the tensors that torch allocates for them. */
STW_MUST_USE stw_status stw_program_new_tensors(const stw_job *job, const stw_decisions *decisions,
                                                const stw_layout *layout, stw_program **out,
                                                stw_error *err);
void stw_program_free(stw_program *program);
/** Does a program have all operations of a phase? */
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
    uint64_t page_locked; /* of the host */
} stw_live;
/** Apply one operation; anything but alloc and free changes nothing. */
void stw_live_apply(stw_live *live, const stw_op *op);
/** Keep the live bytes of a tier if they are a peak; of equal ones the last counts. */
void stw_live_note(const stw_live *live, stw_tier tier, stw_peak *peak);
/** Peaks of every phase and tier: one walk over the movements in order, no time. Never fails. */
void stw_program_walk(const stw_program *program, stw_peaks *peaks);
/** The peaks of all roles' bytes while one role moves. */
void stw_program_walk_while(const stw_program *program, uint32_t role, stw_peaks *peaks);
/** The peaks of one role's movements, as if there were no other. */
void stw_program_walk_alone(const stw_program *program, uint32_t role, stw_peaks *peaks);
/** What the engine's allocator hands out of a GPU peak: total less context, comm, slack, and what
 * inference engines hold, whose processes are others. */
uint64_t stw_peak_allocated(const stw_peak *peak);
/** What it holds: allocated plus slack. */
uint64_t stw_peak_reserved(const stw_peak *peak);
/** The trainer's first movement of a phase, or NULL. */
const stw_movement *stw_program_movement(const stw_program *program, stw_phase phase);
/** Does a movement have an operation of this kind? */
bool stw_movement_has(const stw_program *program, const stw_movement *movement, stw_op_kind kind);
/** Hash of all operations of one movement, for ranks that derived it apart from each other. */
uint64_t stw_program_movement_hash(const stw_program *program, const stw_movement *movement);
/** Hash of the operations that ranks must agree on (collectives in order) of one movement. */
uint64_t stw_program_schedule_hash(const stw_program *program, const stw_movement *movement);

#endif

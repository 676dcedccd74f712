/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer of bound tensors, shared by its parts (bound.c and bound_*.c). */
#ifndef STW_BACKEND_EXECUTOR_BOUND_PARTS_H
#define STW_BACKEND_EXECUTOR_BOUND_PARTS_H

#include <pthread.h>

#include "backend/executor/bound.h"
#include "backend/executor/run.h"

/** Contiguous elements of a tensor in the flat space. Each has a span with the address. */
typedef struct stw_bound_part {
    uint32_t tensor;       /* index of the bound tensor */
    uint64_t tensor_first; /* first element in the tensor */
} stw_bound_part;

/** The addresses of a tensor. */
typedef struct stw_bound_place {
    unsigned char *params;
    const unsigned char *grads;
    uint64_t elements;
    uint32_t group;
    uint32_t first_part; /* index of its first part; UINT32_MAX: none */
    uint32_t turn;       /* turn of its last update; UINT32_MAX: none */
} stw_bound_place;

typedef struct stw_bound_rates {
    double lr, weight_decay;
} stw_bound_rates;

/** The lanes that issue operations: GPU streams except copies to the host, copies to the host,
 * reads from NVMe, writes to NVMe. */
typedef enum stw_bound_lane {
    STW_BOUND_GPU,
    STW_BOUND_DOWN,
    STW_BOUND_READS,
    STW_BOUND_WRITES,
    STW_BOUND_N_LANES
} stw_bound_lane;

typedef struct stw_bound_worker {
    stw_bound *bound;
    stw_bound_lane lane;
    pthread_t thread;
    bool started;
} stw_bound_worker;

struct stw_bound {
    stw_pool *pool;
    const stw_plan *plan;
    const stw_layout *layout;
    const stw_program *program;
    const stw_movement *movement;
    const stw_backend *backend;
    stw_device *device;
    stw_element_types types;
    stw_bound_sizes sizes;
    uint64_t skipped_bytes; /* params and grads in the layout's GPU arena, which are not
                               allocated */

    stw_space space; /* the whole optimizer space */
    uint32_t n_tensors;
    const char **names; /* [n_tensors] names in the model */
    stw_bound_place *places;
    uint32_t *by_tensor; /* [tensors of the model] the bound tensor */
    uint32_t n_spans;
    stw_bound_part *parts;         /* [n_spans] */
    stw_span *spans;               /* [n_spans] */
    stw_bucket_operands *operands; /* [layout->n_buckets] */

    uint32_t n_turns;
    uint32_t *turns;   /* [n_turns] operations of the program, in the order of issue */
    uint32_t *turn_of; /* [movement->n_ops] the turn of an issued operation */
    uint32_t *events;  /* [movement->n_ops] event that an operation records; STW_OP_NONE: none */
    uint32_t norm_event, updated_event, ended_event;

    stw_bound_rates rates[STW_MAX_PARAM_GROUPS];
    stw_adamw adamw;         /* scalars of the running step */
    bool bound_grads, moved; /* bound since the last step; moved since the table of spans was
                                queued */
    bool has_norm, begun;    /* counters exist since the last step; any step was begun */
    bool clipped;
    double begin_s, seconds;

    /* Threads that issue turns; those of NVMe only if state lies there. Without a GPU there are
     * none, because the host backend's calls are complete on return. A lane passes a turn when it
     * has issued its operation. A step counts one additional turn, which is passed at its end. */
    bool has_threads;
    stw_bound_worker workers[STW_BOUND_N_LANES];
    pthread_mutex_t mutex; /* protects the members below */
    pthread_cond_t change;
    bool stop;
    uint64_t steps, number; /* steps begun; the number of the last one */
    uint64_t passed[STW_BOUND_N_LANES];
    pthread_mutex_t guard_mutex; /* protects the next two; held while the guard is called */
    stw_bound_guard_fn *guard;
    void *guard_state;
    double written_s;  /* time at which the last step's writes were done */
    stw_status status; /* the first failure of the device; nothing is issued after it */
    stw_error error;
};

/* bound_state.c */
/** Set moments to zero and masters to the parameters. Blocking. */
STW_MUST_USE stw_status stw_bound_first_values(stw_bound *bound, stw_error *err);

/** Returns the place of a bucket in the order in which a step changes state. */
static inline uint32_t stw_bound_turn_of(const stw_bound *b, uint32_t bucket) {
    uint32_t turn = 0;
    while (turn < b->layout->n_buckets && b->layout->order[turn] != bucket) turn++;
    return turn;
}

/* bound_issue.c */
/** Make the order of issue and its events, before the device is opened. */
STW_MUST_USE stw_status stw_bound_prepare_step(stw_bound *bound, uint32_t *n_events,
                                               stw_error *err);
/** Start the threads of an open device. */
STW_MUST_USE stw_status stw_bound_start(stw_bound *bound, stw_error *err);
void stw_bound_stop(stw_bound *bound); /* issues the remaining turns first */
/** Begin a step with the present settings; without threads it is done on return. */
void stw_bound_issue(stw_bound *bound, uint64_t number);
/** Wait until a lane has passed a turn of the last step (n_turns: the whole step). Returns the
 * failure if a step has failed. */
STW_MUST_USE stw_status stw_bound_await(stw_bound *bound, stw_bound_lane lane, uint32_t turn,
                                        stw_error *err);
/** Wait until all GPU work is queued. */
static inline stw_status stw_bound_settle(stw_bound *b, stw_error *err) {
    return stw_bound_await(b, STW_BOUND_GPU, b->n_turns, err);
}
/** The event that an operation of the step records; STW_OP_NONE: none. */
static inline uint32_t *stw_bound_event(const stw_bound *b, uint32_t op) {
    return &b->events[op - b->movement->first_op];
}
/** Keep the first failure of the device, which cannot be used after it, and return it to the
 * caller.
 * @param error of calls to the device only; OK: none */
stw_status stw_bound_note(stw_bound *bound, stw_status status, const stw_error *error,
                          stw_error *err);
/** True if state lies on NVMe. */
static inline bool stw_bound_uses_disk(const stw_bound *b) { return b->sizes.nvme_bytes > 0; }

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer of bound tensors, as its parts see it (bound.c and bound_*.c). */
#ifndef STW_BACKEND_EXECUTOR_BOUND_PARTS_H
#define STW_BACKEND_EXECUTOR_BOUND_PARTS_H

#include <pthread.h>

#include "backend/executor/bound.h"
#include "backend/executor/run.h"

/** A run of a tensor's elements in the flat space; the spans are these, with addresses. */
typedef struct stw_bound_part {
    uint32_t tensor;       /* as bound */
    uint64_t tensor_first; /* element of it */
} stw_bound_part;

/** Where a tensor is. */
typedef struct stw_bound_place {
    unsigned char *params;
    const unsigned char *grads;
    uint64_t elements;
    uint32_t group;
    uint32_t first_part; /* of the first of its parts; UINT32_MAX: none */
    uint32_t turn;       /* in the order of issue, of the last update of it; UINT32_MAX: none */
} stw_bound_place;

typedef struct stw_bound_rates {
    double lr, weight_decay;
} stw_bound_rates;

/** Who issues operations: copies to the host, all others of GPU streams, reads from NVMe, writes to
 * it. */
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
    uint64_t skipped_bytes; /* of the layout's GPU arena: params and grads, in nobody's */

    stw_space space; /* the optimizer's, all of it */
    uint32_t n_tensors;
    const char **names; /* [n_tensors] the model's */
    stw_bound_place *places;
    uint32_t *by_tensor; /* [tensors of the model] the bound tensor */
    uint32_t n_spans;
    stw_bound_part *parts;         /* [n_spans] */
    stw_span *spans;               /* [n_spans] */
    stw_bucket_operands *operands; /* [layout->n_buckets] */

    uint32_t n_turns;
    uint32_t *turns;   /* [n_turns] operations of the program in the order of issue */
    uint32_t *turn_of; /* [movement->n_ops] the place of an issued operation in it */
    uint32_t *events;  /* [movement->n_ops] that an operation records; STW_OP_NONE: none */
    uint32_t norm_event, updated_event, ended_event;

    stw_bound_rates rates[STW_MAX_PARAM_GROUPS];
    stw_adamw adamw;         /* of the step under way */
    bool bound_grads, moved; /* since the last step; since the table of spans was queued */
    bool has_norm, begun;    /* counters since the last step; any step */
    bool clipped;
    double begin_s, seconds;

    /* Threads that issue turns, those of NVMe where state lies there; none without a GPU: its
     * backend's calls are done when they return. A lane that has passed a turn has issued its
     * operation. A step counts one turn more than it has, which is passed at its end. */
    bool has_threads;
    stw_bound_worker workers[STW_BOUND_N_LANES];
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t change;
    bool stop;
    uint64_t steps, number; /* steps begun; the number of the last one */
    uint64_t passed[STW_BOUND_N_LANES];
    pthread_mutex_t guard_mutex; /* of the next two; held while the guard is called */
    stw_bound_guard_fn *guard;
    void *guard_state;
    double written_s;  /* when the last step's writes were done */
    stw_status status; /* the first failure of the device: nothing goes on after it */
    stw_error error;
};

/* bound_state.c */
/** Moments are zero, masters are the parameters. Blocking. */
STW_MUST_USE stw_status stw_bound_first_values(stw_bound *bound, stw_error *err);

/** Place of a bucket in the order in which a step changes state. */
static inline uint32_t stw_bound_turn_of(const stw_bound *b, uint32_t bucket) {
    uint32_t turn = 0;
    while (turn < b->layout->n_buckets && b->layout->order[turn] != bucket) turn++;
    return turn;
}

/* bound_issue.c */
/** The order of issue and its events; before the device is opened. */
STW_MUST_USE stw_status stw_bound_prepare_step(stw_bound *bound, uint32_t *n_events,
                                               stw_error *err);
/** The threads of an open device. */
STW_MUST_USE stw_status stw_bound_start(stw_bound *bound, stw_error *err);
void stw_bound_stop(stw_bound *bound); /* issues what is left */
/** Begin another step with what is set for it; without threads it is done on return. */
void stw_bound_issue(stw_bound *bound, uint64_t number);
/** Until a lane has passed a turn of the last step (n_turns: all of it), or a step has failed; that
 * failure. */
STW_MUST_USE stw_status stw_bound_await(stw_bound *bound, stw_bound_lane lane, uint32_t turn,
                                        stw_error *err);
/** Until all GPU work is queued. */
static inline stw_status stw_bound_settle(stw_bound *b, stw_error *err) {
    return stw_bound_await(b, STW_BOUND_GPU, b->n_turns, err);
}
/** Event that an operation of the step records; STW_OP_NONE: none. */
static inline uint32_t *stw_bound_event(const stw_bound *b, uint32_t op) {
    return &b->events[op - b->movement->first_op];
}
/** Keep the first failure of the device, which is of no use after it, and tell the caller.
 * @param error of calls to the device alone; OK: there was none */
stw_status stw_bound_note(stw_bound *bound, stw_status status, const stw_error *error,
                          stw_error *err);
/** Does state lie on NVMe? */
static inline bool stw_bound_uses_disk(const stw_bound *b) { return b->sizes.nvme_bytes > 0; }

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer of bound tensors, as its parts see it (bound.c, bound_step.c). */
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

/** Neighbouring streamed buckets whose state was fetched ahead, component by component. */
typedef struct stw_bound_run {
    uint32_t first, n;              /* of stw_bound.streamed */
    uint64_t first_param, params;   /* elements of the flat space */
    unsigned char *at[STW_N_STATE]; /* NULL: does not move */
    uint32_t event;                 /* after the copies */
} stw_bound_run;
#define STW_BOUND_RUNS 512 /* calls before a step; more fetch nothing */

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
    uint32_t *turns;  /* [n_turns] operations of the program in the order of issue */
    uint32_t *events; /* [movement->n_ops] that an operation records; STW_OP_NONE: none */
    uint32_t norm_event, updated_event, ended_event;

    uint32_t n_streamed;
    uint32_t *streamed;       /* [n_streamed] buckets in the order of issue */
    uint32_t *arrivals;       /* [layout->n_buckets] event of a streamed bucket's last copy up */
    uint32_t *run_of;         /* [layout->n_buckets] of `runs`; UINT32_MAX: not fetched */
    uint32_t n_runs, n_ahead; /* of the next step, or of the one that is issued */
    stw_bound_run *runs;      /* [STW_BOUND_RUNS] */

    stw_bound_rates rates[STW_MAX_PARAM_GROUPS];
    stw_adamw adamw;         /* of the step under way */
    bool bound_grads, moved; /* since the last step; since the table of spans was queued */
    bool has_norm, begun;    /* counters since the last step; any step */
    bool clipped;
    double begin_s, seconds;

    /* The thread that issues turns; none without a GPU. */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t change;
    bool working, stop;
    uint32_t issued;   /* turns of this step */
    stw_status status; /* the first failure of the device: nothing goes on after it */
    stw_error error;
};

/* bound_ahead.c */
STW_MUST_USE stw_status stw_bound_prepare_ahead(stw_bound *bound, stw_error *err);
/** stw_bound_fetch, with nothing being issued. */
STW_MUST_USE stw_status stw_bound_fetch_runs(stw_bound *bound, unsigned char *address,
                                             uint64_t bytes, void *native, uint64_t *fetched,
                                             stw_error *err);
/** The run that a bucket is in; NULL: it was not fetched. */
stw_bound_run *stw_bound_run_of(const stw_bound *bound, uint32_t bucket);
/** The operands of a bucket where its run is. */
void stw_bound_move_operands(const stw_bound *bound, const stw_bound_run *run,
                             stw_bucket_operands *operands);
/** Write runs back, after all else on its stream. */
STW_MUST_USE stw_status stw_bound_write_back(stw_bound *bound, stw_error *err);
/** What was fetched is of no use any more. */
void stw_bound_forget(stw_bound *bound);
/** Event of an operation of the step; STW_OP_NONE: it records none. */
static inline uint32_t *stw_bound_event(const stw_bound *b, uint32_t op) {
    return &b->events[op - b->movement->first_op];
}

/* bound_step.c */
/** The order of issue and its events; before the device is opened. */
STW_MUST_USE stw_status stw_bound_prepare_step(stw_bound *bound, uint32_t *n_events,
                                               stw_error *err);
/** The thread of an open device. */
STW_MUST_USE stw_status stw_bound_start(stw_bound *bound, stw_error *err);
void stw_bound_stop(stw_bound *bound); /* issues what is left */
/** Until the thread has issued all; the failure of a step, if there was one. */
STW_MUST_USE stw_status stw_bound_settle(stw_bound *bound, stw_error *err);
/** Keep the first failure of the device, which is of no use after it, and tell the caller.
 * @param error of calls to the device alone; OK: there was none */
stw_status stw_bound_note(stw_bound *bound, stw_status status, const stw_error *error,
                          stw_error *err);

#endif

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

/* bound_step.c */
/** The order of issue and its events; before the device is opened. */
STW_MUST_USE stw_status stw_bound_prepare_step(stw_bound *bound, uint32_t *n_events,
                                               stw_error *err);
/** The thread of an open device. */
STW_MUST_USE stw_status stw_bound_start(stw_bound *bound, stw_error *err);
void stw_bound_stop(stw_bound *bound); /* issues what is left */
/** Until the thread has issued all; the failure of a step, if there was one. */
STW_MUST_USE stw_status stw_bound_settle(stw_bound *bound, stw_error *err);

#endif

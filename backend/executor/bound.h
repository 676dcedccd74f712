/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW inside somebody else's job: parameters and gradients are bound where the caller has them,
 * tensor by tensor, and master and moments lie where a plan of one rank says. The parameters and
 * gradients of the plan's layout are the beginning of its GPU arena: an optimizer never takes these
 * bytes, its arena begins behind them.
 *
 * A step is issued on the backend's own streams, in the order of the model's tensors, and nobody
 * waits for it: a tensor is done with the last bucket that holds a part of it. With a GPU a thread
 * issues the buckets, a bounded number ahead of the GPU, because a driver's queues are short and
 * who fills them waits. Work is ordered with that of the caller by native streams.
 *
 * State on NVMe is read into page-locked slots by another thread and written from there by a third,
 * in one copy: a step that fails leaves state of two steps, and the optimizer is of no use then.
 * The writes of a step may go on until the next one is begun and longer; its reads wait for them.
 *
 * One thread at a time; the optimizer borrows its plan. No call allocates but stw_bound_open. */
#ifndef STW_BACKEND_EXECUTOR_BOUND_H
#define STW_BACKEND_EXECUTOR_BOUND_H

#include "backend/backend.h"
#include "plan/files/plan.h"

typedef struct stw_bound stw_bound;

typedef struct stw_bound_tensor {
    const char *name;
    stw_dtype dtype;
    void *address; /* NULL only without elements */
    uint64_t elements;
    uint32_t group; /* < STW_MAX_PARAM_GROUPS */
} stw_bound_tensor;

typedef struct stw_bound_options {
    const char *backend;    /* "auto", "cuda", "host" */
    stw_external_arena gpu; /* of the caller; address NULL: the library allocates */
    bool gpu_is_given;      /* else the one that the calling thread has set */
    uint32_t gpu_number;
    /* State on NVMe: the file's folder (NULL: $TMPDIR, else /tmp), which may be memory. */
    const char *nvme_folder;
    bool nvme_in_memory;
} stw_bound_options;

/** What an optimizer takes. */
typedef struct stw_bound_sizes {
    uint64_t gpu_bytes, host_bytes, nvme_bytes; /* its arenas */
    uint32_t buckets;
    uint64_t streamed_bytes; /* that a step copies to the GPU */
} stw_bound_sizes;

/** NOT_BUILT_IN for a plan that cannot be bound. */
STW_MUST_USE stw_status stw_bound_measure(const stw_plan *plan, stw_bound_sizes *out,
                                          stw_error *err);
/** Where streamed state takes more host memory than host_bytes, slots included, put the rest of it
 * on NVMe and derive the plan again. A plan that fails is as it was. NO_RESOURCES where slots alone
 * take more, or NVMe has no room. */
STW_MUST_USE stw_status stw_bound_spill(stw_plan *plan, uint64_t host_bytes, stw_error *err);
/** Check the tensors, take memory, set moments to zero and make masters from the parameters.
 * Blocking. BAD_INPUT names the first tensor that differs from the plan's. */
STW_MUST_USE stw_status stw_bound_open(const stw_plan *plan, const stw_bound_tensor *tensors,
                                       uint32_t n, const stw_bound_options *options,
                                       stw_bound **out, stw_error *err);
/** Waits for work under way. NULL is fine. */
void stw_bound_close(stw_bound *bound);
const stw_backend *stw_bound_backend(const stw_bound *bound);
void stw_bound_get_sizes(const stw_bound *bound, stw_bound_sizes *out);

/** Rates of a parameter group from the next step on. */
STW_MUST_USE stw_status stw_bound_set_group(stw_bound *bound, uint32_t group, double lr,
                                            double weight_decay, stw_error *err);
/** Where gradients, or parameters, lie from now on: one address per bound tensor, in the order of
 * stw_bound_open. Parameters whose address is NULL stay where they are. */
STW_MUST_USE stw_status stw_bound_set_gradients(stw_bound *bound, const void *const *addresses,
                                                uint32_t n, stw_error *err);
STW_MUST_USE stw_status stw_bound_set_params(stw_bound *bound, void *const *addresses, uint32_t n,
                                             stw_error *err);

/** Queue the exact sum of squares of the gradients after the work of a native stream; *counters are
 * ready in its order. @param counts false: zeros */
STW_MUST_USE stw_status stw_bound_begin_norm(stw_bound *bound, bool counts, void *native,
                                             uint64_t **counters, stw_error *err);

typedef struct stw_bound_step {
    uint64_t step; /* from 1 */
    double beta1, beta2, eps;
    double clip_norm; /* 0: none */
    void *native;     /* whose work is done first */
} stw_bound_step;
STW_MUST_USE stw_status stw_bound_begin_step(stw_bound *bound, const stw_bound_step *step,
                                             stw_error *err);
/** Make a native stream wait until a tensor (UINT32_MAX: every one) has its new value. */
STW_MUST_USE stw_status stw_bound_wait(stw_bound *bound, uint32_t tensor, void *native,
                                       stw_error *err);

typedef struct stw_bound_sample {
    double seconds;     /* of the last step, from its first copy or update to the end of the last */
    double norm;        /* NaN without clipping */
    double clip_factor; /* 1 without clipping */
} stw_bound_sample;
/** Wait until the step is done, state at its home included. */
STW_MUST_USE stw_status stw_bound_finish(stw_bound *bound, stw_bound_sample *out, stw_error *err);

/** Elements of one component of a tensor's state. */
typedef struct stw_bound_range {
    stw_component component; /* master, exp_avg or exp_avg_sq */
    uint32_t tensor;
    uint64_t first, n;
} stw_bound_range;
/** Copy them, as stored, to the caller's host memory or, with `write`, from it. Blocking; a step
 * under way is finished first. */
STW_MUST_USE stw_status stw_bound_copy_state(stw_bound *bound, const stw_bound_range *range,
                                             bool write, void *memory, stw_error *err);

/** Where some of them lie: neighbours of one tier. */
typedef struct stw_bound_home {
    stw_tier tier;
    const void *address; /* host */
    uint64_t offset;     /* NVMe: for stw_bound_read_disk */
    uint64_t skip, n;    /* elements of the range before them, and of them */
    uint32_t turn;       /* ascends as a step changes them */
} stw_bound_home;
typedef stw_status stw_bound_home_fn(void *state, const stw_bound_home *home, stw_error *err);
/** All of a range. */
STW_MUST_USE stw_status stw_bound_locate(stw_bound *bound, const stw_bound_range *range,
                                         stw_bound_home_fn *fn, void *state, stw_error *err);
/** Read state on NVMe, while no step writes it. Any thread. */
STW_MUST_USE stw_status stw_bound_read_disk(stw_bound *bound, uint64_t offset, void *to,
                                            uint64_t bytes, stw_error *err);
/** From the next step on: called by the threads that issue it, before state on the host or on NVMe
 * with this turn is changed; it waits as long as that must not be. NULL: nothing is. A call that is
 * under way ends first. */
typedef void stw_bound_guard_fn(void *state, uint32_t turn);
void stw_bound_set_guard(stw_bound *bound, stw_bound_guard_fn *fn, void *state);

#endif

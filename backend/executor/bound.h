/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW inside another program's job. Parameters and gradients are bound at the caller's addresses,
 * tensor by tensor; a plan of one rank places master and moments. The plan's layout has parameters
 * and gradients at the start of its GPU arena; the optimizer does not allocate these bytes, so its
 * arena begins after them.
 *
 * A step is issued on the backend's own streams, in the order of the model's tensors, and the call
 * does not wait for it. A tensor is done when the last bucket with a part of it is done. With a GPU
 * a thread issues the buckets, a bounded number ahead of the GPU, because a driver's queues are
 * short and a full queue blocks. Native streams order this work with the caller's.
 *
 * A second thread reads state on NVMe into page-locked slots, and a third writes it back. There is
 * one copy: a step that fails leaves a mixture of two steps, and the optimizer cannot be used any
 * more. The writes of a step may continue into the next step, whose reads wait for them.
 *
 * One thread at a time; the optimizer borrows its plan. Only stw_bound_open allocates. */
#ifndef STW_BACKEND_EXECUTOR_BOUND_H
#define STW_BACKEND_EXECUTOR_BOUND_H

#include "backend/backend.h"
#include "plan/files/plan.h"

typedef struct stw_bound stw_bound;

typedef struct stw_bound_tensor {
    const char *name;
    stw_dtype dtype;
    void *address; /* NULL only if there are no elements */
    uint64_t elements;
    uint32_t group; /* < STW_MAX_PARAM_GROUPS */
} stw_bound_tensor;

typedef struct stw_bound_options {
    const char *backend;    /* "auto", "cuda", "host" */
    stw_external_arena gpu; /* the caller's memory; address NULL: the library allocates */
    bool gpu_is_given;      /* else the calling thread's current GPU */
    uint32_t gpu_number;
    /* State on NVMe: the folder of its file (NULL: $TMPDIR, else /tmp), and whether it may be in
     * memory. */
    const char *nvme_folder;
    bool nvme_in_memory;
} stw_bound_options;

/** The memory of an optimizer. */
typedef struct stw_bound_sizes {
    uint64_t gpu_bytes, host_bytes, nvme_bytes; /* its arenas */
    uint32_t buckets;
    uint64_t streamed_bytes; /* copied to the GPU in a step */
} stw_bound_sizes;

/** Compute the memory of a plan's optimizer. NOT_BUILT_IN for a plan that cannot be bound. */
STW_MUST_USE stw_status stw_bound_measure(const stw_plan *plan, stw_bound_sizes *out,
                                          stw_error *err);
/** If streamed state needs more host memory than host_bytes, slots included, move the rest of it to
 * NVMe and derive the plan again. On failure the plan is unchanged. NO_RESOURCES if the slots alone
 * need more, or NVMe has too little room. */
STW_MUST_USE stw_status stw_bound_spill(stw_plan *plan, uint64_t host_bytes, stw_error *err);
/** Check the tensors, allocate memory, set moments to zero and make masters from the parameters.
 * Blocking. BAD_INPUT names the first tensor that differs from the plan's. */
STW_MUST_USE stw_status stw_bound_open(const stw_plan *plan, const stw_bound_tensor *tensors,
                                       uint32_t n, const stw_bound_options *options,
                                       stw_bound **out, stw_error *err);
/** Waits for running work. NULL is fine. */
void stw_bound_close(stw_bound *bound);
const stw_backend *stw_bound_backend(const stw_bound *bound);
void stw_bound_get_sizes(const stw_bound *bound, stw_bound_sizes *out);

/** Set the rates of a parameter group from the next step on. */
STW_MUST_USE stw_status stw_bound_set_group(stw_bound *bound, uint32_t group, double lr,
                                            double weight_decay, stw_error *err);
/** Set the addresses of gradients, or of parameters, from now on: one per bound tensor, in the
 * order of stw_bound_open. Parameters with address NULL keep theirs. */
STW_MUST_USE stw_status stw_bound_set_gradients(stw_bound *bound, const void *const *addresses,
                                                uint32_t n, stw_error *err);
STW_MUST_USE stw_status stw_bound_set_params(stw_bound *bound, void *const *addresses, uint32_t n,
                                             stw_error *err);

/** Queue the exact sum of squares of the gradients after the work of a native stream; later work of
 * that stream finds *counters complete.
 * @param counts false: zeros */
STW_MUST_USE stw_status stw_bound_begin_norm(stw_bound *bound, bool counts, void *native,
                                             uint64_t **counters, stw_error *err);

typedef struct stw_bound_step {
    uint64_t step; /* from 1 */
    double beta1, beta2, eps;
    double clip_norm; /* 0: none */
    void *native;     /* the step waits for its work */
} stw_bound_step;
STW_MUST_USE stw_status stw_bound_begin_step(stw_bound *bound, const stw_bound_step *step,
                                             stw_error *err);
/** Make a native stream wait until a tensor (UINT32_MAX: every one) has its new value. */
STW_MUST_USE stw_status stw_bound_wait(stw_bound *bound, uint32_t tensor, void *native,
                                       stw_error *err);

typedef struct stw_bound_sample {
    double seconds;     /* the last step, from the start of its first copy or update to the end of
                           its last */
    double norm;        /* NaN without clipping */
    double clip_factor; /* 1 without clipping */
} stw_bound_sample;
/** Wait until the step is done and all state is back in its place. */
STW_MUST_USE stw_status stw_bound_finish(stw_bound *bound, stw_bound_sample *out, stw_error *err);

/** Elements of one component of a tensor's state. */
typedef struct stw_bound_range {
    stw_component component; /* master, exp_avg or exp_avg_sq */
    uint32_t tensor;
    uint64_t first, n;
} stw_bound_range;
/** Copy these elements, as stored, to the caller's host memory, or with `write` from it. Blocking;
 * finishes a running step first. */
STW_MUST_USE stw_status stw_bound_copy_state(stw_bound *bound, const stw_bound_range *range,
                                             bool write, void *memory, stw_error *err);

/** The address of contiguous elements in one tier. */
typedef struct stw_bound_home {
    stw_tier tier;
    const void *address; /* host */
    uint64_t offset;     /* NVMe: for stw_bound_read_disk */
    uint64_t skip, n;    /* elements of the range before these; number of these elements */
    uint32_t turn;       /* ascending in the order in which a step changes state */
} stw_bound_home;
typedef stw_status stw_bound_home_fn(void *state, const stw_bound_home *home, stw_error *err);
/** Call `fn` for all addresses of a range. */
STW_MUST_USE stw_status stw_bound_locate(stw_bound *bound, const stw_bound_range *range,
                                         stw_bound_home_fn *fn, void *state, stw_error *err);
/** Read state on NVMe; no step may write it meanwhile. Any thread. */
STW_MUST_USE stw_status stw_bound_read_disk(stw_bound *bound, uint64_t offset, void *to,
                                            uint64_t bytes, stw_error *err);
/** A guard: threads that issue a step call it before they change state on the host or on NVMe with
 * this turn; it returns when the state may change. Set it from the next step on; NULL: none.
 * stw_bound_set_guard waits for a running call. */
typedef void stw_bound_guard_fn(void *state, uint32_t turn);
void stw_bound_set_guard(stw_bound *bound, stw_bound_guard_fn *fn, void *state);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* libstowage: open a model, make or read a plan, walk it, execute it, or attach to memory that the
 * caller owns. This header and stowage_checkpoint.h, which it includes, are all that is installed;
 * they compile as C99 and as C++.
 *
 * Names. Functions are stw_<verb>_<noun>, types end in _t, constants start with STOWAGE_. Phases,
 * components, tiers, streams and operations are text, spelled as in plan files ("optimizer_step",
 * "exp_avg", "gpu"): a new word in a later version breaks no program.
 *
 * Handles. Models, plans, results, sessions, optimizers, schedules, syncs and errors are opaque.
 * The caller frees what stw_open_, stw_make_, stw_read_, stw_execute_, stw_attach_, stw_plan_ and
 * stw_new_ functions return; NULL may be freed. A plan borrows the model that it was made for, a
 * session or an optimizer borrows its plan, a sync its schedule: free them in reverse order.
 * Strings that the library returns live as long as the handle that they came from.
 *
 * Structs. A function that takes a struct also takes its size (`sizeof info`), so that a program
 * that was compiled with an older header works with a newer library of the same major version.
 * Fields are only ever added at the end. Zeroed options are the defaults. A size beyond that of the
 * library's struct is valid: the library neither reads nor writes what lies behind its own fields.
 * Options below the size of the struct's first version are USAGE.
 *
 * NULL. An argument that must not be NULL gives USAGE and its name in the error; functions without
 * a status return 0, "", NULL or STOWAGE_NONE and zero the struct that they fill, if any.
 *
 * Loops. Functions that return `int` return 1 and fill the struct, or return 0 when the index is
 * past the end: `for (i = 0; stw_get_peak(plan, 0, i, &peak, sizeof peak); i++)`.
 *
 * Errors. A function that can fail returns a status and takes, last, an error that may be NULL. The
 * call clears the error first and fills it when it fails. The library never prints (see
 * stw_set_log) and never exits.
 *
 * Threads. Models, plans, results and schedules do not change once made; any number of threads may
 * read one. An error, a session, an optimizer and a sync belong to one thread at a time. A call
 * takes up to 48 KiB of its thread's stack, and more where a GPU's driver or a communication
 * library needs it: 64 KiB are enough without one.
 *
 * Locale. Numbers in files, settings and messages have a decimal point, whatever locale the program
 * has set. Callbacks have the program's locale.
 *
 * Fork. A child may read and free all that its parent made, and may execute plans. A session, an
 * optimizer or a sync stays its parent's: freeing it in the child changes nothing of the
 * parent's, and every other call with it is USAGE. */
#ifndef STOWAGE_H
#define STOWAGE_H

#include <stddef.h>
#include <stdint.h>

#define STOWAGE_VERSION_MAJOR 0
#define STOWAGE_VERSION_MINOR 1
#define STOWAGE_VERSION_PATCH 0
#define STOWAGE_VERSION                                                                            \
    (STOWAGE_VERSION_MAJOR * 10000 + STOWAGE_VERSION_MINOR * 100 + STOWAGE_VERSION_PATCH)

#if defined(__GNUC__)
#define STW_API __attribute__((visibility("default")))
#define STW_API_CHECKED STW_API __attribute__((warn_unused_result))
#else
#define STW_API
#define STW_API_CHECKED
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ------------------------------------------------------------------------------- */

/** STOWAGE_VERSION of the library that is linked. */
STW_API int stw_get_version(void);
/** The same as text: "0.1.0". */
STW_API const char *stw_get_version_text(void);
/** 1 if this build has the feature: "cuda", "nccl", "mpi", "uring", "solver" (the ILP). */
STW_API int stw_has_feature(const char *feature);

/* ---- errors and messages ------------------------------------------------------------------- */

typedef enum stw_status_t {
    STOWAGE_OK = 0,
    STOWAGE_NO_MEMORY = 1,
    STOWAGE_NO_RESOURCES = 2, /* the machine lacks what the plan requires */
    STOWAGE_SOLVER = 3,
    STOWAGE_USAGE = 4, /* an argument is wrong */
    STOWAGE_BAD_INPUT = 5,
    STOWAGE_IO = 6,
    STOWAGE_NOTHING_FITS = 7,
    STOWAGE_TIME_LIMIT = 8,
    STOWAGE_DEVICE = 9, /* the device or the communicator failed */
    STOWAGE_NOT_BUILT_IN = 10,
    STOWAGE_DISAGREE = 11, /* verification failed */
    STOWAGE_BUG = 12,
    STOWAGE_AT_RISK = 13 /* no call returns it; stw_get_plan_info says which plans are */
} stw_status_t;

typedef struct stw_error_t stw_error_t;

/** An empty error; NULL when memory is out. */
STW_API stw_error_t *stw_new_error(void);
STW_API void stw_free_error(stw_error_t *error);
STW_API stw_status_t stw_get_error_status(const stw_error_t *error);
/** "where:line:column: text", or "" without an error. Valid until the error is used again. */
STW_API const char *stw_get_error_text(const stw_error_t *error);
/** errno, cudaError_t or ncclResult_t behind the error; 0 if there is none. */
STW_API long stw_get_error_native(const stw_error_t *error);
/** What a status means, in a few words. */
STW_API const char *stw_get_status_text(stw_status_t status);
/** The exit code with which the programs report a status. */
STW_API int stw_get_exit_code(stw_status_t status);

typedef enum stw_log_level_t {
    STOWAGE_LOG_ERROR = 0,
    STOWAGE_LOG_WARNING = 1,
    STOWAGE_LOG_INFO = 2,
    STOWAGE_LOG_DEBUG = 3
} stw_log_level_t;
typedef void (*stw_log_callback_t)(stw_log_level_t level, const char *text, void *user);

/** Send messages up to `most` to a callback, which any thread may call. NULL drops them, which is
 * the default. One callback per process; set it before other threads call the library. */
STW_API void stw_set_log(stw_log_callback_t callback, void *user, stw_log_level_t most);

/* ---- models -------------------------------------------------------------------------------- */

typedef struct stw_model_t stw_model_t;

/** Open a model.
 * @param what a zoo name ("Qwen3-0.6B"), a config.json or its folder, a safetensors file, index or
 * folder, or a CSV tensor list. Zoo and architectures lie in share/stowage of the installation;
 * the environment variable STOWAGE_DATA names another folder. */
STW_API_CHECKED stw_status_t stw_open_model(const char *what, stw_model_t **out,
                                            stw_error_t *error);
STW_API void stw_free_model(stw_model_t *model);

typedef struct stw_model_info_t {
    const char *name, *source, *model_type; /* model_type: "" if only tensors are known */
    const char *digest;                     /* of names, shapes, dtypes and order, hexadecimal */
    uint64_t params, active_params;         /* each parameter counted once */
    uint32_t tensors;
} stw_model_info_t;
STW_API void stw_get_model_info(const stw_model_t *model, stw_model_info_t *out, size_t size);

#define STOWAGE_MAX_RANK 8
typedef struct stw_tensor_t {
    const char *name, *dtype; /* as in the checkpoint; dtype as in safetensors ("BF16") */
    const char *block;        /* group of the block that holds it ("embed", "layer" ...) */
    uint64_t elements;
    uint32_t dimensions;
    uint64_t shape[STOWAGE_MAX_RANK];
} stw_tensor_t;
/** Tensor i in the order of the forward pass. */
STW_API int stw_get_tensor(const stw_model_t *model, uint32_t i, stw_tensor_t *out, size_t size);

/* ---- published files ----------------------------------------------------------------------- */

/* Models name tensors as the reference implementation builds them, with routed experts fused over
 * dimension 0. Published files may name and cut them otherwise: experts one by one, gate and up
 * apart, matrices transposed, weights in fp8 with scales of blocks. */

typedef struct stw_published_list_t stw_published_list_t;

/** The published files of a model. The list borrows the model.
 * @return BAD_INPUT where the model's shapes cannot be cut as its model_type says */
STW_API_CHECKED stw_status_t stw_list_published(const stw_model_t *model,
                                                stw_published_list_t **out, stw_error_t *error);
STW_API void stw_free_published(stw_published_list_t *list);

typedef struct stw_published_t {
    const char *name, *dtype; /* as in the files ("BF16", "F8_E4M3") */
    const char *kind; /* "weight"; "buffer"; "scale": of the blocks of a weight; "extra": no part of
                         the model that is trained (layers of multi-token prediction, a copy of a
                         tied head, masks) */
    uint32_t dimensions;
    uint64_t shape[STOWAGE_MAX_RANK];
} stw_published_t;
/** Tensor i of the published files, in the order of the model's tensors. */
STW_API int stw_get_published(const stw_published_list_t *list, uint32_t i, stw_published_t *out,
                              size_t size);

typedef struct stw_published_part_t {
    const char *tensor_name;   /* of the model: a parameter, a buffer or an extra tensor */
    uint32_t tensor;           /* index of stw_get_tensor; UINT32_MAX unless it is a parameter */
    uint32_t published, scale; /* indices of stw_get_published; scale: UINT32_MAX without one */
    const char *way;           /* "as is"; "transposed": the last two dimensions are swapped;
                                  "mxfp4", "int4": packed */
    uint32_t dimensions, published_dimensions;
    /* Boxes of equally many elements in the tensor and in the published one (of a packed one
     * before it was packed): first element and count along each dimension. Experts one by one:
     * count[0] is 1, and the published tensor lacks that dimension. */
    uint64_t first[STOWAGE_MAX_RANK], count[STOWAGE_MAX_RANK];
    uint64_t published_first[STOWAGE_MAX_RANK], published_count[STOWAGE_MAX_RANK];
} stw_published_part_t;
/** Part i, in the order of the model's tensors. Each element of each tensor is in one part. */
STW_API int stw_get_published_part(const stw_published_list_t *list, uint32_t i,
                                   stw_published_part_t *out, size_t size);

typedef struct stw_weights_t stw_weights_t;

/** Open the weights of a model: a safetensors file, index or folder, with the model's own names or
 * published ones, also mixed. The handle borrows the model. Any number of threads may read.
 * @return BAD_INPUT names the path, the tensor, the found and the expected shape */
STW_API_CHECKED stw_status_t stw_open_weights(const stw_model_t *model, const char *path,
                                              stw_weights_t **out, stw_error_t *error);
STW_API void stw_free_weights(stw_weights_t *weights);
/** dtype in which stw_read_weights gives a tensor: the stored one, "F32" for tensors with scales,
 * which are expanded; "" past the end. */
STW_API const char *stw_get_weights_dtype(const stw_weights_t *weights, uint32_t tensor);
/** Read a box of a tensor (index of stw_get_tensor) into host memory, in C order; blocks.
 * @param first, count one number for each dimension
 * @param bytes of out: those of the box's elements, else USAGE */
STW_API_CHECKED stw_status_t stw_read_weights(stw_weights_t *weights, uint32_t tensor,
                                              const uint64_t *first, const uint64_t *count,
                                              void *out, uint64_t bytes, stw_error_t *error);

/* ---- plans --------------------------------------------------------------------------------- */

typedef struct stw_plan_t stw_plan_t;

typedef struct stw_plan_options_t {
    const char *cluster; /* path of cluster.yaml; NULL: this machine, sizes probed, not measured */
    const char *run;     /* path of run.yaml; NULL: defaults */
    const char *const *settings; /* "key=value" over both, as --set of the programs */
    size_t n_settings;
    double time_limit_s; /* of the whole call; 0: 30 */
} stw_plan_options_t;

/** Plan, and predict bytes and seconds. The library links no ILP solver: it places by a greedy
 * search that is valid but not optimal. The program `stowage plan` writes optimal plans;
 * stw_read_plan reads them. stw_get_plan_info says which solver was used.
 * @param options NULL: defaults
 * @return NOTHING_FITS if the greedy search finds no placement that fits */
STW_API_CHECKED stw_status_t stw_make_plan(const stw_model_t *model,
                                           const stw_plan_options_t *options, size_t size,
                                           stw_plan_t **out, stw_error_t *error);
/** Read a plan file (stowage.plan/1) and check it: layout, programs and peaks are derived anew. */
STW_API_CHECKED stw_status_t stw_read_plan(const char *path, stw_plan_t **out, stw_error_t *error);
STW_API_CHECKED stw_status_t stw_write_plan(const stw_plan_t *plan, const char *path,
                                            stw_error_t *error);
STW_API void stw_free_plan(stw_plan_t *plan);

typedef struct stw_plan_info_t {
    const char *verdict; /* "fits", "at_risk", "does_not_fit", "unknown": the state fits, but what
                            forward and backward take is not known */
    const char *outcome; /* "optimal", "feasible", "infeasible", "limit" */
    const char *solver;  /* "glpk", "greedy" */
    const char *engine;  /* the name in run.yaml */
    const char *hash;    /* of the layout */
    double iteration_s;  /* predicted; NaN: unknown */
    uint32_t world;      /* ranks */
    uint32_t rank_kinds; /* kinds of rank: ranks of a kind have the same program */
    uint64_t gpu_peak_bytes, gpu_capacity_bytes;   /* of the fullest GPU */
    uint64_t host_peak_bytes, host_capacity_bytes; /* of the fullest node */
    int exit_code; /* with which `stowage plan` ends for this verdict: 0 fits, 4 does not fit, 9 at
                      risk or unknown */
} stw_plan_info_t;
STW_API void stw_get_plan_info(const stw_plan_t *plan, stw_plan_info_t *out, size_t size);
/** The plan's model, which the plan keeps: do not free it. */
STW_API const stw_model_t *stw_get_plan_model(const stw_plan_t *plan);

typedef struct stw_rank_kind_t {
    const char *name; /* "rank0", "leader", "rank" */
    uint32_t ranks;   /* how many */
    uint64_t params;  /* elements that one rank holds */
    /* Arenas of one rank. Bytes from persistent_ up to arena_ are used inside movements only. */
    uint64_t gpu_arena_bytes, gpu_persistent_bytes;
    uint64_t host_arena_bytes, host_persistent_bytes;
    uint64_t nvme_arena_bytes;
} stw_rank_kind_t;
STW_API int stw_get_rank_kind(const stw_plan_t *plan, uint32_t kind, stw_rank_kind_t *out,
                              size_t size);
/** Index of a rank's kind; UINT32_MAX for a rank outside the plan. */
STW_API uint32_t stw_find_rank_kind(const stw_plan_t *plan, uint32_t rank);

typedef struct stw_movement_t {
    const char *phase;      /* "load", "forward_backward", "optimizer_step" ... */
    const char *role;       /* "trainer" */
    const char *repeat;     /* "once", then in iterations "first", "later" or "every" */
    int by_stowage;         /* 1: Stowage executes it; 0: the framework does, or nobody yet */
    uint32_t first_op, ops; /* range for stw_get_op */
    double seconds;         /* predicted; NaN: unknown */
} stw_movement_t;
STW_API int stw_get_movement(const stw_plan_t *plan, uint32_t kind, uint32_t i, stw_movement_t *out,
                             size_t size);

typedef struct stw_peak_t {
    const char *phase, *tier, *component; /* component: "total", then those that are not 0 */
    uint64_t bytes;                       /* at the moment of the tier's peak */
} stw_peak_t;
/** Row i of the table of peak bytes of one rank of a kind. */
STW_API int stw_get_peak(const stw_plan_t *plan, uint32_t kind, uint32_t i, stw_peak_t *out,
                         size_t size);

#define STOWAGE_NONE UINT32_MAX
typedef struct stw_op_t {
    const char *name;   /* "alloc", "copy", "update", "all_gather" ... */
    const char *counts; /* what unit counts: "bucket", "piece", "region", "block"; "": nothing */
    const char *stream, *component, *from, *to;
    const char *group; /* of a collective: "world", "node", "shard" ... */
    uint32_t unit;     /* STOWAGE_NONE: the operation serves the whole */
    uint32_t after[2]; /* operations of other streams that finish first; STOWAGE_NONE */
    uint64_t from_offset_bytes, to_offset_bytes, bytes; /* offset UINT64_MAX: outside the arena */
    uint64_t params;                                    /* elements that it works on */
} stw_op_t;
STW_API int stw_get_op(const stw_plan_t *plan, uint32_t kind, uint32_t i, stw_op_t *out,
                       size_t size);

typedef struct stw_region_t {
    const char *component, *tier, *update;
    uint64_t first_param, params;
    uint64_t offset_bytes, bytes; /* in the tier's arena */
} stw_region_t;
/** Persistent bytes of one component; regions of a tier do not overlap. */
STW_API int stw_get_region(const stw_plan_t *plan, uint32_t kind, uint32_t i, stw_region_t *out,
                           size_t size);

typedef struct stw_bucket_t {
    const char *update; /* "resident", "stream", "direct", "cpu" */
    uint64_t first_param, params;
} stw_bucket_t;
/** The elements that one update of the optimizer step works on. */
STW_API int stw_get_bucket(const stw_plan_t *plan, uint32_t kind, uint32_t i, stw_bucket_t *out,
                           size_t size);

typedef struct stw_extent_t {
    uint64_t element, elements; /* of the tensor, neighbours in memory too */
    const char *tier;
    uint64_t offset_bytes, bytes; /* in the tier's arena */
    const char *dtype;            /* "F32", "BF16" */
} stw_extent_t;
/** Where a rank holds a tensor's elements: the first extent that begins at or after `element`, or
 * holds it. Continue with element + elements of the extent that was found.
 * @param component "params", "grads", "master", "exp_avg", "exp_avg_sq" */
STW_API int stw_find_extent(const stw_plan_t *plan, uint32_t rank, const char *component,
                            uint32_t tensor, uint64_t element, stw_extent_t *out, size_t size);

/* ---- execution with memory of the library's own -------------------------------------------- */

typedef struct stw_run_options_t {
    const char *backend;     /* "auto" (NULL), "cuda", "host" */
    uint32_t steps;          /* optimizer steps; 0: 1 */
    uint64_t seed;           /* of gradients, and of weights if none are given */
    const char *weights;     /* safetensors file, index or folder; NULL: those of the plan */
    const char *nvme_folder; /* NULL: $TMPDIR or /tmp */
    double timeout_s;        /* of a collective; 0: 120 */
    int no_verify;           /* 1: no digests of the final state and no comparison */
    int nvme_in_memory;      /* 1: nvme_folder may be memory (tmpfs) */
    int error_if_nonfinite;  /* 1: a NaN or infinite gradient is BAD_INPUT, see below */
} stw_run_options_t;

typedef struct stw_result_t stw_result_t;

/** Load weights, then take optimizer steps on seeded gradients; verify a sample of the state. One
 * process per rank, as started by torchrun, srun or mpirun. Under CUDA the environment should not
 * set CUDA_DEVICE_MAX_CONNECTIONS=1.
 * @param out complete on rank 0, NULL on the others
 * @return DISAGREE if the state differs from its reference: *out is filled nevertheless */
STW_API_CHECKED stw_status_t stw_execute_plan(const stw_plan_t *plan,
                                              const stw_run_options_t *options, size_t size,
                                              stw_result_t **out, stw_error_t *error);
STW_API void stw_free_result(stw_result_t *result);
/** Write the result as stowage.run/1, which `stowage validate` reads. */
STW_API_CHECKED stw_status_t stw_write_result(const stw_result_t *result, const char *path,
                                              stw_error_t *error);

typedef struct stw_result_info_t {
    const char *backend, *device;
    uint32_t world, steps;
    uint64_t verified, differing; /* elements */
    double grad_norm;             /* of the last step; NaN: no clipping, or it was NaN */
    double clip_factor;           /* of the last step; NaN where the norm was, 1 without clipping */
    uint64_t nonfinite_steps, first_nonfinite_step; /* with a norm that is not finite; 0: none */
} stw_result_info_t;
STW_API void stw_get_result_info(const stw_result_t *result, stw_result_info_t *out, size_t size);

typedef struct stw_measured_t {
    const char *phase, *role;
    uint32_t samples;               /* how often it was executed */
    double seconds;                 /* of the slowest rank, the median; NaN: not measured */
    uint64_t gpu_bytes, host_bytes; /* of the worst rank, at its peak in the phase */
} stw_measured_t;
/** What was measured of executed movement i. */
STW_API int stw_get_measured(const stw_result_t *result, uint32_t i, stw_measured_t *out,
                             size_t size);
/** Seconds of one of its samples, of the slowest rank. */
STW_API int stw_get_measured_seconds(const stw_result_t *result, uint32_t i, uint32_t sample,
                                     double *seconds);
/** Digest of the final state of a component over all ranks; independent of its placement.
 * @return 0 if the run has no such component */
STW_API int stw_get_digest(const stw_result_t *result, const char *component, uint64_t *out);

/* ---- execution with memory and streams of the caller --------------------------------------- */

/* Alignment of arenas, and of every region in them. */
#define STOWAGE_ALIGNMENT 4096

typedef struct stw_session_options_t {
    const char *backend; /* "auto" (NULL), "cuda", "host" */
    /* Arenas of the caller, of gpu_arena_bytes and host_arena_bytes of this rank's kind or more,
     * aligned to STOWAGE_ALIGNMENT and apart from each other. They outlive the session. NULL: the
     * library allocates. With "host" both are host memory. With "cuda" the host arena is
     * page-locked while the session lasts, unless it is already. */
    void *gpu_address, *host_address;
    uint64_t gpu_bytes, host_bytes;
    /* With "cuda", cudaStream_t of the caller's; NULL: streams of the library's own. The default
     * stream is cudaStreamLegacy here. */
    void *compute_stream, *h2d_stream, *d2h_stream, *comm_stream;
    int gpu_is_given; /* 1: `gpu` is the device's ordinal; 0: it is the local rank */
    uint32_t gpu;
    const char *weights; /* for the load: safetensors file, index or folder; NULL: the plan's */
    uint64_t seed;       /* of weights if none are given, and of stw_seed_gradients */
    const char *nvme_folder;
    double timeout_s;   /* of a collective; 0: 120 */
    int nvme_in_memory; /* 1: nvme_folder may be memory (tmpfs) */
    /* 1: before each optimizer step all gradients are looked at. One that is NaN or infinite is
     * BAD_INPUT on every rank; the error names step, rank, tensor, parameter group and bucket.
     * Nothing of the step was done and the session goes on, with other gradients or another step.
     * 0: as torch's clip_grad_norm_ with error_if_nonfinite=False: with clipping one NaN makes
     * everything NaN that the step updates; infinite ones become NaN, and the others 0. */
    int error_if_nonfinite;
} stw_session_options_t;

typedef struct stw_session_t stw_session_t;

/** Attach to this rank's part of a plan: open device and communicator, set moments to zero. The
 * rank comes from the environment of torchrun, srun or mpirun. Every call that takes a session and
 * an error is collective: all ranks of the plan make it. */
STW_API_CHECKED stw_status_t stw_open_session(const stw_plan_t *plan,
                                              const stw_session_options_t *options, size_t size,
                                              stw_session_t **out, stw_error_t *error);
/** Detach. Memory and streams of the caller stay as they are. In a child of the process that opened
 * the session only the child's handle is freed. */
STW_API void stw_free_session(stw_session_t *session);

typedef struct stw_session_info_t {
    const char *backend;
    uint32_t rank, world, rank_kind;
    void *gpu_address, *host_address; /* of the arenas, the caller's or the library's; or NULL */
} stw_session_info_t;
STW_API void stw_get_session_info(const stw_session_t *session, stw_session_info_t *out,
                                  size_t size);

/** Learning rate of a parameter group from the next movement on: 0 the optimizer's own, i those of
 * optimizer.groups[i - 1] of the run.
 * @param learning_rate 0 to 1000, as optimizer.lr */
STW_API_CHECKED stw_status_t stw_set_learning_rate(stw_session_t *session, uint32_t group,
                                                   double learning_rate, stw_error_t *error);
/** Use the parameters that lie in the arenas instead of loading: makes their master weights. */
STW_API_CHECKED stw_status_t stw_adopt_params(stw_session_t *session, stw_error_t *error);
/** Write seeded gradients of a step into the arenas, as stw_execute_plan does, for tests. */
STW_API_CHECKED stw_status_t stw_seed_gradients(stw_session_t *session, uint64_t step,
                                                stw_error_t *error);

typedef struct stw_sample_t {
    double seconds;
    double grad_norm, clip_factor; /* NaN and 1 without clipping; NaN and NaN: a gradient was NaN;
                                    * infinite and 0: one was infinite */
} stw_sample_t;
/** Execute one movement of the plan. It begins when the work that the caller queued on its streams
 * is done, and is done on return. After a failure other than USAGE, or BAD_INPUT of an optimizer
 * step with error_if_nonfinite, the session can only be freed.
 * @param phase "load", unless stw_adopt_params was called; then "first_optimizer_step" once and
 * "optimizer_step" for all later steps, with gradients where stw_find_extent says; USAGE in any
 * other order
 * @param step number of the optimizer step, from 1, for AdamW's bias corrections
 * @param out NULL: not wanted */
STW_API_CHECKED stw_status_t stw_execute_movement(stw_session_t *session, const char *phase,
                                                  uint64_t step, stw_sample_t *out, size_t size,
                                                  stw_error_t *error);
/** Digest of a state component as it is now, over all ranks; see stw_get_digest. USAGE for one that
 * the plan does not have. */
STW_API_CHECKED stw_status_t stw_digest_state(stw_session_t *session, const char *component,
                                              uint64_t *out, stw_error_t *error);

/* ---- an optimizer inside a job of the caller's --------------------------------------------- */

/* A step of AdamW on parameters and gradients that the caller owns ("bound"), tensor by tensor.
 * Master weights and moments lie where a plan says. It is a plan of one rank, whatever the job's
 * world is: its tensors are this rank's shards, each with its shape. Set placement.params and
 * placement.grads to gpu, so that state is in the order of the tensors and the first ones are done
 * first.
 *
 * Calls queue work and return; only stw_open_optimizer, stw_free_optimizer, stw_finish_step,
 * stw_read_state and stw_write_state wait until work is done. Streams are the caller's:
 * cudaStream_t with "cuda" (NULL: the legacy default stream). With "host" they are ignored, memory
 * is host memory, and work is done when a call returns. With "cuda" calls may leave the calling
 * thread's current device at the optimizer's. No call allocates but stw_open_optimizer.
 *
 * An iteration: stw_bind_gradients; with clipping stw_begin_norm and the sum of its counters over
 * ranks; stw_begin_step; stw_wait_tensor before the next use of each parameter. After a failure of
 * the device or of a disk (DEVICE, IO, DISAGREE, NO_RESOURCES), which the next call tells, the
 * optimizer can only be freed: its state may be of two steps. */

typedef struct stw_optimizer_t stw_optimizer_t;

#define STOWAGE_PARAM_GROUPS 8
typedef struct stw_bound_t {
    const char *name;  /* every tensor of the plan's model once, in any order */
    const char *dtype; /* "F32", "BF16": the plan's precision.params */
    void *address;     /* of contiguous elements; NULL only if there are none */
    uint64_t elements;
    uint32_t group; /* parameter group, below STOWAGE_PARAM_GROUPS: rates by stw_set_group */
} stw_bound_t;

typedef struct stw_optimizer_options_t {
    const char *backend; /* "auto" (NULL), "cuda", "host" */
    /* GPU memory of the caller's for resident state and staging, as much as stw_measure_optimizer
     * says or more, aligned to STOWAGE_ALIGNMENT. NULL: the library allocates. */
    void *gpu_address;
    uint64_t gpu_bytes;
    /* Where state on NVMe goes, into a file without a name, which goes with the optimizer; NULL:
     * $TMPDIR, else /tmp. Not looked at for plans without any. */
    const char *nvme_folder;
    int nvme_in_memory; /* 1: nvme_folder may be memory (tmpfs) */
    int gpu_is_given;   /* 1: `gpu` is the device's ordinal; 0: it is the thread's current device */
    uint32_t gpu;
} stw_optimizer_options_t;

typedef struct stw_optimizer_info_t {
    const char *backend; /* "" of a plan */
    uint64_t gpu_bytes;  /* resident state and staging; neither parameters nor gradients */
    uint64_t host_bytes; /* page-locked: state, and slots of what passes from and to NVMe */
    uint64_t nvme_bytes; /* of the file */
    uint32_t buckets;
    uint64_t streamed_bytes; /* that a step copies to the GPU, and back but for gradients */
    double open_seconds;     /* of stw_open_optimizer */
} stw_optimizer_info_t;

/** What an optimizer of this plan takes; needs no device.
 * @return NOT_BUILT_IN for a plan that cannot be bound: more than one rank, parameters or gradients
 * releases than on the GPU, two copies of state on NVMe, updates other than resident and stream */
STW_API_CHECKED stw_status_t stw_measure_optimizer(const stw_plan_t *plan,
                                                   stw_optimizer_info_t *out, size_t size,
                                                   stw_error_t *error);

/** Give a plan's optimizer host_bytes of host memory, slots included: streamed state of the last
 * tensors that has no room there goes to NVMe. For plans without state on NVMe of which no
 * optimizer is open; a plan that fails is as it was.
 * @return NO_RESOURCES if slots alone take more, or node.nvme.capacity has no room */
STW_API_CHECKED stw_status_t stw_spill_state(stw_plan_t *plan, uint64_t host_bytes,
                                             stw_error_t *error);

/** Check the plan's tensors against those bound, take memory, set moments to 0 and, where the plan
 * has a master, make it of the parameters. Work that the caller has queued on the parameters must
 * be done. The plan must outlive the optimizer.
 * @return BAD_INPUT names the first tensor that is missing, unknown, or differs in elements or
 * dtype */
STW_API_CHECKED stw_status_t stw_open_optimizer(const stw_plan_t *plan, const stw_bound_t *tensors,
                                                uint32_t n, const stw_optimizer_options_t *options,
                                                size_t size, stw_optimizer_t **out,
                                                stw_error_t *error);
/** Waits for work under way. In a child of the process that opened the optimizer only the child's
 * handle is freed. */
STW_API void stw_free_optimizer(stw_optimizer_t *optimizer);
STW_API void stw_get_optimizer_info(const stw_optimizer_t *optimizer, stw_optimizer_info_t *out,
                                    size_t size);

/** Rates of a parameter group from the next step on; the plan's until then. */
STW_API_CHECKED stw_status_t stw_set_group(stw_optimizer_t *optimizer, uint32_t group,
                                           double learning_rate, double weight_decay,
                                           stw_error_t *error);

/** Where the gradients of the next step lie: one address per tensor, in the order of
 * stw_open_optimizer, of contiguous elements of the plan's precision.grads; NULL only for tensors
 * without elements. The caller keeps them until the step's updates are done: to give their memory
 * to work on a stream, make this stream wait first (stw_wait_tensor, STOWAGE_NONE). Once per step.
 * @return BAD_INPUT names the tensor whose gradient is missing or not aligned */
STW_API_CHECKED stw_status_t stw_bind_gradients(stw_optimizer_t *optimizer,
                                                const void *const *gradients, uint32_t n,
                                                stw_error_t *error);
/** Parameters moved: one address per tensor; NULL: it stayed where it was. */
STW_API_CHECKED stw_status_t stw_bind_params(stw_optimizer_t *optimizer, void *const *params,
                                             uint32_t n, stw_error_t *error);

#define STOWAGE_NORM_COUNTERS 74
/** Queue the exact sum of squared gradients after the work of `stream`.
 * @param counts 0: all counters are zero, for a replica whose gradients another rank counts
 * @param counters receives the address of STOWAGE_NORM_COUNTERS integers of 64 bits, GPU memory
 * with "cuda", ready in the order of `stream`. Ranks sum them, in place, before stw_begin_step;
 * sums of integers do not depend on their order */
STW_API_CHECKED stw_status_t stw_begin_norm(stw_optimizer_t *optimizer, int counts, void *stream,
                                            uint64_t **counters, stw_error_t *error);

typedef struct stw_step_options_t {
    uint64_t step; /* from 1, for AdamW's bias corrections */
    double beta1, beta2, eps;
    /* Above 0: gradients are multiplied by min(1, clip_norm / (norm + 1e-6)), the norm being that
     * of the counters of stw_begin_norm, which was called since gradients were bound. 0: no
     * clipping. */
    double clip_norm;
    void *stream; /* work that the caller queued here (backward, the sum of counters) comes first */
} stw_step_options_t;
/** Begin a step: everything is queued, or will be by a thread of the optimizer's. Waits only for
 * the queueing of a step before.
 * @return USAGE unless gradients were bound since the last step */
STW_API_CHECKED stw_status_t stw_begin_step(stw_optimizer_t *optimizer,
                                            const stw_step_options_t *options, size_t size,
                                            stw_error_t *error);
/** Make `stream` wait until a tensor (STOWAGE_NONE: every tensor) has its new value and its
 * gradient was read. Waits until the tensor's update is queued, which is not long before it begins;
 * never for the GPU. Tensors are updated in the order of the plan's model. Does nothing before the
 * first step.
 * @param tensor index as in stw_open_optimizer */
STW_API_CHECKED stw_status_t stw_wait_tensor(stw_optimizer_t *optimizer, uint32_t tensor,
                                             void *stream, stw_error_t *error);
/** Wait until the step is done and all state is back at its home. What failed in it is reported
 * here at the latest.
 * @param out NULL: not wanted. `seconds` from the step's first copy or update to its end */
STW_API_CHECKED stw_status_t stw_finish_step(stw_optimizer_t *optimizer, stw_sample_t *out,
                                             size_t size, stw_error_t *error);

/** Copy elements of a tensor's state, as they are stored, from where they lie to host memory of the
 * caller's. Finishes a step under way.
 * @param component "exp_avg", "exp_avg_sq", "master" */
STW_API_CHECKED stw_status_t stw_read_state(stw_optimizer_t *optimizer, const char *component,
                                            uint32_t tensor, uint64_t first, uint64_t elements,
                                            void *out, stw_error_t *error);
STW_API_CHECKED stw_status_t stw_write_state(stw_optimizer_t *optimizer, const char *component,
                                             uint32_t tensor, uint64_t first, uint64_t elements,
                                             const void *from, stw_error_t *error);

/* ---- weights that move between ranks ------------------------------------------------------- */

/* Tensors lie in pieces on ranks ("sources") and go to pieces on ranks ("targets"), the same ranks
 * or others, cut otherwise. Every rank describes all pieces of all ranks alike, so that no rank
 * asks another: the schedule is a pure function, made once and used for every sync. It cuts the way
 * into rounds. In a round each rank packs what it sends into a send buffer (cast to the dtype that
 * travels), messages go from rank to rank (the caller sends them: torch.distributed, NCCL, MPI),
 * and each rank places what came, and what it had itself, where it belongs. Buffers are bounded,
 * whatever the largest tensor is: larger ones are split. A byte travels once to each rank that
 * lacks it; of several ranks that have it one is chosen (the rank itself, else the one that has
 * sent least). */

#define STOWAGE_MAX_DIMS 4
typedef struct stw_sync_tensor_t {
    const char *name;  /* for errors; it may differ between ranks */
    const char *dtype; /* in which it travels and arrives: "F32", "BF16", "F16" */
    uint32_t dims;     /* 0 to STOWAGE_MAX_DIMS; 0: one element */
    uint64_t shape[STOWAGE_MAX_DIMS];
} stw_sync_tensor_t;

/* A box of a tensor, and where it lies. Dimensions beyond the tensor's have first 0, count 1 and
 * any stride. A box with a count of 0 is empty. */
typedef struct stw_sync_piece_t {
    uint32_t rank, tensor;
    uint64_t first[STOWAGE_MAX_DIMS], count[STOWAGE_MAX_DIMS];
    /* Element `offset` of memory `memory` is the box's first element, neighbours along dimension d
     * are stride[d] elements apart; all three are looked at on the piece's own rank alone. Numbers
     * of memories are the rank's own, from 0; addresses come with stw_open_sync. A target whose
     * memory is STOWAGE_NONE, on every rank, is handed over in the bucket of a round instead
     * (stw_get_sync_parts), in C order. */
    uint32_t memory;
    uint64_t offset, stride[STOWAGE_MAX_DIMS];
    const char *dtype; /* as it lies: sources "F32", "BF16", "F16"; targets: the tensor's dtype */
} stw_sync_piece_t;

typedef struct stw_sync_options_t {
    const stw_sync_tensor_t *tensors;
    const stw_sync_piece_t *sources, *targets;
    uint32_t n_tensors, n_sources, n_targets;
    uint32_t world;        /* ranks */
    uint64_t bucket_bytes; /* the most that send buffer, receive buffer and bucket of a rank take
                              together; at least 1 MiB */
} stw_sync_options_t;

typedef struct stw_schedule_t stw_schedule_t;
/** Make the schedule of a sync. It borrows nothing; any number of threads may read it.
 * @return BAD_INPUT with the tensor and the piece that is wrong, or an element of a target that no
 * source has */
STW_API_CHECKED stw_status_t stw_plan_sync(const stw_sync_options_t *options, size_t size,
                                           stw_schedule_t **out, stw_error_t *error);
STW_API void stw_free_schedule(stw_schedule_t *schedule);

typedef struct stw_schedule_info_t {
    uint32_t rounds;
    /* Of the buffers of this rank: the most of any round, in multiples of 16. Together at most
     * stw_sync_options_t.bucket_bytes. */
    uint64_t send_bytes, receive_bytes, bucket_bytes;
    uint64_t sent_bytes, received_bytes; /* that travel from and to this rank in a sync */
    uint64_t own_bytes;                  /* of its targets, that it has itself */
    uint64_t sum; /* of the whole schedule: equal where ranks described the same; compare it once */
} stw_schedule_info_t;
/** @return USAGE for a rank outside the world */
STW_API_CHECKED stw_status_t stw_get_schedule_info(const stw_schedule_t *schedule, uint32_t rank,
                                                   stw_schedule_info_t *out, size_t size,
                                                   stw_error_t *error);

typedef struct stw_sync_message_t {
    uint32_t peer;
    int sends; /* 1: from `offset` of the send buffer to peer; 0: from peer to the receive buffer */
    uint64_t offset, bytes; /* offset: a multiple of 16 */
} stw_sync_message_t;
/** Messages of a rank in a round. Those between two ranks are in the same order on both. Messages
 * to several ranks may share bytes of the send buffer.
 * @param out n messages, which belong to the schedule */
STW_API_CHECKED stw_status_t stw_get_sync_messages(const stw_schedule_t *schedule, uint32_t rank,
                                                   uint32_t round, const stw_sync_message_t **out,
                                                   uint32_t *n, stw_error_t *error);

/* What the bucket of a round holds: boxes of targets without memory. */
typedef struct stw_sync_part_t {
    uint32_t tensor, target; /* target: index in stw_sync_options_t.targets */
    uint64_t first[STOWAGE_MAX_DIMS], count[STOWAGE_MAX_DIMS]; /* a box of the tensor */
    uint64_t offset; /* bytes, in the bucket; a multiple of 16 */
    int last;        /* 1: the target is whole with this part */
} stw_sync_part_t;
/** @param out n parts, which belong to the schedule, by their offsets */
STW_API_CHECKED stw_status_t stw_get_sync_parts(const stw_schedule_t *schedule, uint32_t rank,
                                                uint32_t round, const stw_sync_part_t **out,
                                                uint32_t *n, stw_error_t *error);

/* A schedule on a device, of one rank. Calls queue work on the caller's stream (cudaStream_t with
 * "cuda"; NULL: the legacy default stream) and return; with "host" streams are ignored and work is
 * done when a call returns. Packing a round may overlap placing another one with other buffers; the
 * caller orders packing, sending and placing of one round. With "cuda" calls leave the calling
 * thread's current device at the sync's, and none but stw_open_sync allocates. */
typedef struct stw_sync_t stw_sync_t;

typedef struct stw_open_sync_t {
    const char *backend; /* "auto" (NULL), "cuda", "host" */
    int gpu_is_given; /* 1: `gpu` is the device's ordinal; 0: it is the thread's current device */
    uint32_t gpu;
    /* Addresses of this rank's memories, by their numbers, on multiples of their widest element;
     * NULL only for those without elements. With "cuda" GPU memory, or page-locked host memory,
     * which the GPU reads and writes by itself. Memories of sources and of targets are apart. */
    const void *const *sources;
    void *const *targets;
    uint32_t n_sources, n_targets;
} stw_open_sync_t;
/** @param schedule must outlive the sync
 * @return USAGE with the number of a memory that is missing or not aligned, or with the address of
 * one that the GPU does not reach */
STW_API_CHECKED stw_status_t stw_open_sync(const stw_schedule_t *schedule, uint32_t rank,
                                           const stw_open_sync_t *options, size_t size,
                                           stw_sync_t **out, stw_error_t *error);
/** Waits for work under way. In a child of the process that opened the sync only the child's handle
 * is freed. */
STW_API void stw_free_sync(stw_sync_t *sync);
/** Memories are releases from the next call on: all of them anew, as in stw_open_sync. If any has
 * moved, it waits for work under way. */
STW_API_CHECKED stw_status_t stw_bind_sync(stw_sync_t *sync, const void *const *sources,
                                           uint32_t n_sources, void *const *targets,
                                           uint32_t n_targets, stw_error_t *error);
/** Gather what this rank sends in a round.
 * @param send send_bytes of stw_schedule_info_t, on a multiple of 4 bytes, of 16 where it is to be
 * fast; NULL where they are 0 */
STW_API_CHECKED stw_status_t stw_pack_round(stw_sync_t *sync, uint32_t round, void *send,
                                            void *stream, stw_error_t *error);
/** Bring what came in the receive buffer, and what the rank has itself, to target memories and into
 * the bucket. What the rank sends as well comes from the send buffer: pack the round first, and
 * keep the buffer until this is done.
 * @param receive, bucket as `send` above */
STW_API_CHECKED stw_status_t stw_place_round(stw_sync_t *sync, uint32_t round, const void *receive,
                                             void *bucket, void *stream, stw_error_t *error);
/* All rounds of a sync, queued ahead of the GPU as far as two sets of buffers allow, in place of
 * stw_pack_round and stw_place_round. */
typedef struct stw_begin_sync_t {
    void *send[2], *receive[2], *bucket[2];         /* by set, as above */
    void *pack_stream, *comm_stream, *place_stream; /* apart, so that rounds overlap */
    void *take_stream; /* the caller's: what it has queued comes before the sync */
    void *comm;        /* "cuda": ncclComm_t of the schedule's ranks, which no other operation uses
                        * meanwhile; NULL: the caller sends (STOWAGE_SYNC_POST, _RECEIVE) */
    int releases;      /* 1: buckets are taken by more than take_stream (STOWAGE_SYNC_RELEASE) */
    double timeout_s;  /* of NCCL, to connect two ranks for the first time */
} stw_begin_sync_t;
/** Begin a sync. One that had not ended is given up.
 * @return NOT_BUILT_IN, or DEVICE where the process has not loaded NCCL, for `comm` */
STW_API_CHECKED stw_status_t stw_begin_sync(stw_sync_t *sync, const stw_begin_sync_t *options,
                                            size_t size, stw_error_t *error);
enum {
    STOWAGE_SYNC_DONE,    /* nothing: all rounds are placed */
    STOWAGE_SYNC_POST,    /* begin the round's messages, after the work of comm_stream */
    STOWAGE_SYNC_RECEIVE, /* wait for them, or let place_stream wait */
    STOWAGE_SYNC_RELEASE, /* let place_stream wait until the set's bucket has been taken */
    STOWAGE_SYNC_TAKE,    /* the bucket holds the round's parts, for work of take_stream */
    STOWAGE_SYNC_WAIT     /* call again: the round was still under way for 0.1 s */
};
/** Go on to what the caller has to do next: for a round and the set of its buffers. The call says
 * that the last thing is done, or queued. With an error `round` is the one that it is about. */
STW_API_CHECKED stw_status_t stw_step_sync(stw_sync_t *sync, int *action, uint32_t *round,
                                           uint32_t *set, stw_error_t *error);
/** A 64-bit sum of bytes in GPU or host memory, filled up with zeros to words of 8 bytes: equal
 * bytes have equal sums on every backend. For comparing both sides of a message. Blocks until the
 * work of `stream` is done.
 * @param address a multiple of 8 bytes */
STW_API_CHECKED stw_status_t stw_sum_bytes(stw_sync_t *sync, const void *address, uint64_t bytes,
                                           void *stream, uint64_t *out, stw_error_t *error);

#ifdef __cplusplus
}
#endif

#include "stowage_checkpoint.h"

#endif

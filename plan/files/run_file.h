/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements of a run (stowage.run/1, JSON): of Stowage's own executor, or of another
 * program's job (`source: external`). A run result owns its pool. */
#ifndef STW_PLAN_RUN_FILE_H
#define STW_PLAN_RUN_FILE_H

#include "plan/program/program.h"

typedef enum stw_metric {
    STW_METRIC_NONE,       /* a mark: the rank enters the phase */
    STW_METRIC_DEVICE,     /* GPU, everything on the device */
    STW_METRIC_ALLOCATED,  /* GPU, handed out by the framework's allocator */
    STW_METRIC_RESERVED,   /* GPU, held by the framework's allocator */
    STW_METRIC_HOST,       /* resident memory of a rank's process, or of all processes of a node */
    STW_METRIC_PAGE_LOCKED /* page-locked host memory of a rank or a node */
} stw_metric;
#define STW_N_METRICS 6

#define STW_ALL_RANKS (-1)  /* the node */
#define STW_WORST_RANK (-2) /* the rank with the most bytes; its number is unknown */
#define STW_SOME_RANK (-3)  /* one rank; its number is unknown */

/** The highest bytes since the job began, in any phase. */
typedef struct stw_run_peak {
    int32_t rank; /* or STW_ALL_RANKS, STW_WORST_RANK, STW_SOME_RANK */
    uint32_t node;
    stw_metric metric;
    uint64_t bytes;
    bool at_moment;   /* measured at one instant: the true peak may be higher */
    bool cut_short;   /* at_moment, because an allocation of this rank failed */
    const char *from; /* where it stands in the file, for reports; or NULL */
    const char *note; /* why it cannot be judged, or NULL */
} stw_run_peak;

/** The first GPU allocation of a rank that failed. */
typedef struct stw_run_oom {
    uint32_t rank;
    uint64_t asked, allocated; /* bytes requested; bytes handed out by the allocator then */
    uint64_t free;             /* free bytes of the device then; UINT64_MAX: unknown */
    size_t count;              /* failed allocations of the rank */
    const char *when;          /* ISO, UTC; "": unknown */
    const char *from;          /* where it stands in the file, for reports */
} stw_run_oom;

/* What seconds measure: a phase, or one of these. */
enum {
    STW_SPAN_TRAIN = STW_N_PHASES, /* forward, backward and optimizer steps of an iteration */
    STW_SPAN_ITERATION,            /* all phases of an iteration */
    STW_N_SPANS
};

/** Measured bytes of one rank in one phase; components as the executor's arenas counted them. */
typedef struct stw_measured {
    bool known;
    uint64_t allocated, reserved; /* GPU, by the allocator that owns them */
    uint64_t device;              /* GPU, everything on the device; 0 if the backend has no GPU */
    uint64_t host;                /* this rank: arena plus process */
    uint64_t page_locked;
    uint64_t gpu_components[STW_N_COMPONENTS], host_components[STW_N_COMPONENTS];
} stw_measured;

typedef struct stw_run_rank {
    uint32_t rank, node;
    const char *kind;
    stw_measured phases[STW_N_PHASES];
} stw_run_rank;

typedef struct stw_run_node {
    uint32_t node;
    uint64_t host[STW_N_PHASES], page_locked[STW_N_PHASES];
} stw_run_node;

/** Copies in both directions at once, without a step: the rate of the link itself. */
typedef struct stw_run_link {
    uint64_t bytes;   /* bytes of one copy */
    uint32_t streams; /* in each direction */
    uint32_t ring;    /* 0: no order between the directions; else copies return through a ring of
                         this many slots */
    double bps;       /* each direction, median; slowest rank */
    uint32_t n_all;
    double *all_bps; /* one measurement at each step */
} stw_run_link;

/** Seconds of each execution of a movement; slowest rank. */
typedef struct stw_run_movement {
    stw_phase phase;
    const char *role;
    uint32_t n_samples;
    double *samples_s;
} stw_run_movement;

#define STW_N_DIGESTS 4

/** The executed weight sync, and the folder of --sync-to. Messages and bytes are summed over all
 * ranks and all syncs of the run. */
typedef struct stw_run_synced {
    uint64_t version; /* the step whose weights arrived last; 0: no sync was executed */
    uint64_t rounds, messages, sent_bytes, received_bytes;
    const char *folder; /* NULL: none */
    uint64_t folder_version, folder_bytes;
    double folder_s; /* median on rank 0 */
} stw_run_synced;

typedef struct stw_run_result {
    stw_pool *pool;
    const char *file;             /* the file it was read from, for errors; NULL: none */
    const char *source;           /* "stowage" or "external" */
    const char *backend, *device; /* "cuda", "NVIDIA H200" */
    const char *plan_hash;        /* hash of the executed plan (plan/files/plan_terms.h) */
    const char *plan_terms;       /* the lines that identify that plan; "": unknown */
    const char *build;            /* identity of the build that executed it (core/build.h); "" */
    const char *date;             /* date of a recording, ISO; "": unknown */
    uint32_t exit_code; /* the recorded command's; also 0 if there is none or it is unknown */
    uint32_t world, steps;
    uint32_t first_step; /* of them that was executed: the others are a checkpoint's; 0: all were */
    uint64_t seed;
    bool not_run[STW_N_PHASES]; /* movements of the plan that were not executed */
    uint32_t n_ranks, n_nodes;
    stw_run_rank *ranks;
    stw_run_node *nodes;
    /* All bytes on the worst GPU and the worst node, for records without ranks; 0: unknown.
     * Stowage's own files repeat the values of ranks and nodes. */
    uint64_t gpu_bytes[STW_N_PHASES], host_bytes[STW_N_PHASES];
    uint64_t gpu_peak_bytes, host_peak_bytes; /* over all phases */
    uint32_t n_peaks;
    stw_run_peak *peaks; /* for records without phases */
    uint32_t n_ooms;
    stw_run_oom *ooms;
    double time_s[STW_N_PHASES];        /* median of the slowest rank; NaN: not measured */
    double train_s, iteration_s;        /* STW_SPAN_TRAIN, STW_SPAN_ITERATION; NaN: not measured */
    const char *time_from[STW_N_SPANS]; /* where they stand in the file, for reports; or NULL */
    uint32_t n_movements;
    stw_run_movement *movements; /* executed ones, in the order of the program */
    uint32_t n_step_all;
    double *step_all_s; /* every optimizer step, slowest rank */
    double copies_s;    /* the same step without updates, only copies; NaN: not measured */
    uint32_t n_links;   /* shapes in which the link was measured by itself, at every step */
    stw_run_link *links;
    double link_share; /* bytes per second of a step in each direction over the best link rate;
                          NaN */
    double gpu_growth_bytes, host_growth_bytes; /* over the steps after the first tenth; NaN:
                                                   unknown */
    double params_per_s, up_bps, down_bps;      /* rates of the optimizer step, per rank */
    uint64_t checked, mismatched;               /* elements verified */
    uint64_t elements;                          /* elements of the state of all ranks; 0: unknown */
    uint64_t digest[STW_N_DIGESTS];             /* params, exp_avg, exp_avg_sq, master (0: none) */
    /* Hash of the inputs that determine the digests (model, precision, optimizer, weights, seed,
     * steps). Runs with the same hash have the same digests, with any placement. "": unknown. */
    const char *digest_of;
    bool clips;         /* the run clipped gradients and measured the next two */
    double grad_norm;   /* the last step's, exact; may be NaN or infinite. In a file: a number,
                           "NaN", "Infinity", or null without clipping */
    double clip_factor; /* the last step's, written likewise; 1 without clipping */
    uint64_t nonfinite_steps, first_nonfinite_step; /* steps whose norm was not finite; 0: none */
    stw_run_synced synced;
    /* Bytes of weights files that all ranks read, and the part of them that ranks compared with
     * each other; 0: no files, or one rank. */
    uint64_t weights_read_bytes, weights_compared_bytes;
} stw_run_result;

/** An empty result: strings "", counts 0, times and rates NaN; source is "stowage". */
STW_MUST_USE stw_status stw_run_result_new(stw_run_result **out, stw_error *err);
void stw_run_result_free(stw_run_result *result);
/** "params", ... in the order of stw_run_result.digest. */
const char *stw_digest_name(int digest);
STW_MUST_USE stw_status stw_run_result_to_json(const stw_run_result *result, stw_text *out,
                                               stw_error *err);
STW_MUST_USE stw_status stw_run_result_write(const stw_run_result *result, const char *path,
                                             stw_error *err);
/** Read stowage.run/1. BAD_INPUT for members that contradict each other or differ from their
 * checksums. An external record needs only schema, source and some peak, and no checksums; missing
 * members keep the values of stw_run_result_new. */
STW_MUST_USE stw_status stw_run_result_read(const char *path, stw_run_result **out, stw_error *err);
STW_MUST_USE stw_status stw_run_result_parse(const char *file, const char *text, size_t length,
                                             stw_run_result **out, stw_error *err);
/** The same without the checksums: for tests and fuzz targets, which change texts. */
STW_MUST_USE stw_status stw_run_result_parse_edited(const char *file, const char *text,
                                                    size_t length, stw_run_result **out,
                                                    stw_error *err);

#endif

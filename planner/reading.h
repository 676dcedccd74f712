/* SPDX-License-Identifier: Apache-2.0 */
/* Reads sums off programs. The engine builds the program of a simple decision (all units in one
 * place, one policy for all blocks, one load method), and these functions add up its operations.
 * The planner knows an engine's work only by these sums.
 *
 * Programs of the optimizer step and of a load are built on a shortened space (a few buckets and
 * pieces); a bucket's figures are averages over all of them. */
#ifndef STW_PLANNER_READING_H
#define STW_PLANNER_READING_H

#include "plan/program/demand.h"
#include "plan/program/layout.h"
#include "plan/program/program.h"
#include "planner/simulate.h"

/* ---- programs ---- */

/** Returns the stream of the same copies in the other direction; the stream itself if there is
 * none. */
stw_stream stw_stream_opposite(stw_stream stream);

/* Bytes of a bucket that is never full, for short programs if the step's buckets do not matter. */
#define STW_UNCUT_BYTES (1ull << 40)

typedef struct stw_simple {
    const stw_job *job;
    uint32_t kind; /* kind of rank */
    stw_place place;
    stw_act act;
    stw_load load;
    bool by_group; /* as in stw_decisions.prefetch */
    uint32_t depth;
    uint64_t bucket_bytes;
    uint32_t phases; /* phases with operations, a bit for each stw_phase; 0: all */
} stw_simple;

/** Build layout and program of such a decision.
 * @param layout,program free with stw_layout_free and stw_program_free; program may be NULL */
STW_MUST_USE stw_status stw_simple_build(const stw_simple *simple, stw_layout **layout,
                                         stw_program **program, stw_error *err);

/* ---- seconds ---- */

/** True if the seconds of this kind of rank count: the kinds of all pipeline stages; else only the
 * largest kind. */
static inline bool stw_kind_is_timed(const stw_job *job, uint32_t kind) {
    return kind == job->largest || (job->engine->stage != NULL && job->kinds[kind].home == 0);
}
/** Simulate the trainer's first movement of a phase; 0 s if it has none. */
STW_MUST_USE stw_status stw_read_seconds(const stw_job *job, const stw_program *program,
                                         stw_phase phase, stw_planner_simulate simulate,
                                         double *seconds, stw_error *err);
/** The sums of the programs of some decisions. */
typedef struct stw_decided {
    stw_peaks peaks;
    uint64_t before_bytes;        /* GPU bytes when forward and backward begin */
    double seconds[STW_N_PHASES]; /* 0: not simulated */
    uint64_t work;                /* operations built and simulated */
} stw_decided;

/** Walk the program of a kind of rank, and simulate some of its phases.
 * @param phases to simulate, a bit for each stw_phase; 0: none */
STW_MUST_USE stw_status stw_read_decided(const stw_job *job, const stw_decisions *decisions,
                                         uint32_t kind, uint32_t phases,
                                         stw_planner_simulate simulate, stw_decided *out,
                                         stw_error *err);
/** Returns the seconds of the computations of forward and backward, each as if it ran alone. */
double stw_read_compute_s(const stw_job *job, const stw_program *program);

/* ---- bytes ---- */

typedef enum stw_instant {
    STW_AT_LOAD, /* the peak of the load, without staging */
    STW_AT_REST, /* when forward and backward begin, or the step if they are unknown */
    STW_AT_BACKWARD,
    STW_AT_STEP,     /* the peak of both steps */
    STW_AT_LOG_PROB, /* from here on: the peaks of further phases, if any */
    STW_AT_WEIGHT_SYNC,
    STW_AT_ROLLOUT,
    STW_AT_CHECKPOINT,
    STW_AT_OTHERS, /* forward and backward of roles that train beside the trainer */
    STW_N_INSTANTS
} stw_instant;

/** Bytes of a rank, without `context`, `process` and load staging, which have their own terms. */
typedef struct stw_byte_reading {
    uint64_t all[STW_N_INSTANTS][STW_N_MEMORIES];
    uint64_t state[STW_N_INSTANTS][STW_N_MEMORIES]; /* of these, components of the layout's regions;
                                                       0 for page-locked bytes */
    uint64_t context_bytes, process_bytes;          /* the context without page tables */
    uint32_t instants; /* instants of the further phases, a bit for each stw_instant */
    bool page_tables;  /* the context includes page tables of the host arena */
    uint32_t rings;    /* rings of the layout, a bit for each stw_ring_kind */
} stw_byte_reading;

/** Returns the phase whose peak an instant is; STW_N_PHASES: none. */
stw_phase stw_instant_phase(stw_instant at);

void stw_read_bytes(const stw_job *job, const stw_layout *layout, const stw_program *program,
                    stw_byte_reading *out);

/* ---- the optimizer step ---- */

/** The demand of a step's average bucket, in seconds. In and out: copies before and after the
 * update; read and write: copies from and to NVMe. */
typedef struct stw_flow {
    double buckets;
    uint64_t params; /* elements of all buckets */
    double resource_s[STW_N_RESOURCES];
    double stream_s[STW_N_STREAMS]; /* as if alone, start-up included */
    double stream_startup_s[STW_N_STREAMS];
    double read_s, in_s, update_s, out_s, write_s; /* alone */
    double startup_s;                              /* start-up of all copies; included in the sums
                                                      above */
    double read_disk_s, write_disk_s;              /* disk time, with both directions sharing it */
    double in_resource_s[STW_N_RESOURCES], out_resource_s[STW_N_RESOURCES];
    uint32_t slots[STW_N_RINGS]; /* buckets in flight, if one waits for another's slot */
    bool updates_on_cpu;         /* in a ring of cpu_ring_bytes; 0: in place */
    uint64_t cpu_ring_bytes;
    double norm_s[STW_N_RESOURCES]; /* the whole norm, before the first update */
    double norm_sum_s;
} stw_flow;

/** Read the flow of a step. @param crowded assume no cache hits if updates run outside the ring */
void stw_read_flow(const stw_job *job, const stw_program *program, bool crowded, stw_flow *out);

/* ---- the load ---- */

typedef struct stw_load_reading {
    double pieces_s;  /* seconds of the slowest stream */
    double masters_s; /* after the last piece */
} stw_load_reading;

void stw_read_load(const stw_job *job, const stw_program *program, stw_load_reading *out);

/* ---- forward and backward ---- */

/** The work of one pass. Edges are the idle seconds of a stream or resource at both ends of the
 * pass: before its first operation and after its last one. Below 0 if it begins before the pass; 0
 * if it has no work in the pass. */
typedef struct stw_pass_work {
    double stream_s[STW_N_STREAMS]; /* as if alone, start-up included */
    double startup_s[STW_N_STREAMS];
    double resource_s[STW_N_RESOURCES];
    double stream_edge_s[STW_N_STREAMS], resource_edge_s[STW_N_RESOURCES];
    double stream_lead_s[STW_N_STREAMS], resource_lead_s[STW_N_RESOURCES]; /* the first edge */
    double beside_s[STW_N_STREAMS]; /* seconds of the opposite stream between this stream's first
                                       and last operation */
    double whole_s;                 /* the whole pass with all waits, as if operations ran alone */
} stw_pass_work;

typedef struct stw_forward_reading {
    stw_pass_work pass[2];   /* forward, backward */
    stw_pass_work *group[2]; /* [n_groups] the part of each group's blocks; no edges */
} stw_forward_reading;

STW_MUST_USE stw_status stw_read_forward(const stw_job *job, const stw_program *program,
                                         stw_pool *pool, stw_forward_reading *out, stw_error *err);

/** Bytes of activations that each block keeps from its forward to its backward. */
typedef struct stw_saved_acts {
    uint32_t n;           /* blocks in the order of their forward */
    uint32_t *blocks;     /* [n] */
    uint64_t *gpu, *host; /* [n] */
} stw_saved_acts;

STW_MUST_USE stw_status stw_read_saved(const stw_job *job, const stw_program *program,
                                       stw_pool *pool, stw_saved_acts *out, stw_error *err);

#endif

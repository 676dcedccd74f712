/* SPDX-License-Identifier: Apache-2.0 */
/* What programs show. The engine builds a program of a decision that is easy to say (all units in
 * one place, one policy for all blocks, one load method); its operations are added up here. The
 * planner knows of an engine's work only what these sums say.
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

/** The stream of the same copies in the other direction; the stream itself where it has none. */
stw_stream stw_stream_opposite(stw_stream stream);

/* Of a bucket that is never full: programs are short where the step's buckets do not matter. */
#define STW_UNCUT_BYTES (1ull << 40)

typedef struct stw_simple {
    const stw_job *job;
    uint32_t kind; /* of rank */
    stw_place place;
    stw_act act;
    stw_load load;
    bool by_group; /* as in stw_decisions.prefetch */
    uint32_t depth;
    uint64_t bucket_bytes;
    uint32_t phases; /* bit stw_phase: movements with operations; 0: all */
} stw_simple;

/** @param layout,program free with stw_layout_free and stw_program_free; program may be NULL */
STW_MUST_USE stw_status stw_simple_build(const stw_simple *simple, stw_layout **layout,
                                         stw_program **program, stw_error *err);

/* ---- seconds ---- */

/** Do seconds of this kind of rank count? Pipeline stages differ; else the largest kind's do. */
static inline bool stw_kind_is_timed(const stw_job *job, uint32_t kind) {
    return kind == job->largest || (job->engine->stage != NULL && job->kinds[kind].home == 0);
}
/** Simulate the trainer's first movement of a phase; 0 s where it has none. */
STW_MUST_USE stw_status stw_read_seconds(const stw_job *job, const stw_program *program,
                                         stw_phase phase, stw_planner_simulate simulate,
                                         double *seconds, stw_error *err);
/** What the programs of some decisions show. */
typedef struct stw_decided {
    stw_peaks peaks;
    uint64_t before_bytes;        /* of the GPU, as forward and backward begin */
    double seconds[STW_N_PHASES]; /* 0 of what was not simulated */
    uint64_t work;                /* operations that were built and simulated */
} stw_decided;

/** Walk the program of a kind of rank, and simulate some phases of it.
 * @param phases bit stw_phase, to simulate; 0: none */
STW_MUST_USE stw_status stw_read_decided(const stw_job *job, const stw_decisions *decisions,
                                         uint32_t kind, uint32_t phases,
                                         stw_planner_simulate simulate, stw_decided *out,
                                         stw_error *err);
/** Computations of forward and backward, each as long as alone. */
double stw_read_compute_s(const stw_job *job, const stw_program *program);

/* ---- bytes ---- */

typedef enum stw_instant {
    STW_AT_LOAD, /* the peak of the load, its staging apart */
    STW_AT_REST, /* as forward and backward begin, or the step where they are not known */
    STW_AT_BACKWARD,
    STW_AT_STEP,     /* the peak of both steps */
    STW_AT_LOG_PROB, /* the peaks of further phases, where there are any */
    STW_AT_WEIGHT_SYNC,
    STW_AT_ROLLOUT,
    STW_AT_CHECKPOINT,
    STW_AT_OTHERS, /* forward and backward of roles that train beside the trainer */
    STW_N_INSTANTS
} stw_instant;

/** Bytes of a rank; without `context`, `process` and load staging, which have terms of their own.
 */
typedef struct stw_byte_reading {
    uint64_t all[STW_N_INSTANTS][STW_N_MEMORIES];
    uint64_t state[STW_N_INSTANTS][STW_N_MEMORIES]; /* of these, components of the layout's regions;
                                                       0 of what is page-locked */
    uint64_t context_bytes, process_bytes;          /* the context without page tables */
    uint32_t instants; /* bit stw_instant of further phases that there are */
    bool page_tables;  /* does the context hold page tables of the host arena? */
    uint32_t rings;    /* of the layout: bit stw_ring_kind */
} stw_byte_reading;

/** The phase whose peak an instant is; STW_N_PHASES: of none. */
stw_phase stw_instant_phase(stw_instant at);

void stw_read_bytes(const stw_job *job, const stw_layout *layout, const stw_program *program,
                    stw_byte_reading *out);

/* ---- the optimizer step ---- */

/** What a step's average bucket asks; seconds. In, out, read and write: copies before and after the
 * update, copies from and to NVMe. */
typedef struct stw_flow {
    double buckets;
    uint64_t params; /* of all buckets */
    double resource_s[STW_N_RESOURCES];
    double stream_s[STW_N_STREAMS]; /* alone, start-up included */
    double stream_startup_s[STW_N_STREAMS];
    double read_s, in_s, update_s, out_s, write_s; /* alone */
    double startup_s;                              /* of all copies; in the sums above */
    double read_disk_s, write_disk_s;              /* of the disk as both directions share it */
    double in_resource_s[STW_N_RESOURCES], out_resource_s[STW_N_RESOURCES];
    uint32_t slots[STW_N_RINGS]; /* buckets in flight, where one waits for another's slot */
    bool updates_on_cpu;         /* in a ring of cpu_ring_bytes; 0: where the state lies */
    uint64_t cpu_ring_bytes;
    double norm_s[STW_N_RESOURCES]; /* of the whole step, before the first update */
    double norm_sum_s;
} stw_flow;

/** @param crowded count caches as lost to updates that run outside the ring */
void stw_read_flow(const stw_job *job, const stw_program *program, bool crowded, stw_flow *out);

/* ---- the load ---- */

typedef struct stw_load_reading {
    double pieces_s;  /* of the slowest stream */
    double masters_s; /* after the last piece */
} stw_load_reading;

void stw_read_load(const stw_job *job, const stw_program *program, stw_load_reading *out);

/* ---- forward and backward ---- */

/** Edges are seconds at both ends of a pass in which a stream or resource has nothing to do: what
 * its first operation waits for, and what follows its last one. Less than 0 where it begins before
 * the pass does; 0 where it has no work in the pass. */
typedef struct stw_pass_work {
    double stream_s[STW_N_STREAMS]; /* alone, start-up included */
    double startup_s[STW_N_STREAMS];
    double resource_s[STW_N_RESOURCES];
    double stream_edge_s[STW_N_STREAMS], resource_edge_s[STW_N_RESOURCES];
    double stream_lead_s[STW_N_STREAMS], resource_lead_s[STW_N_RESOURCES]; /* the first of them */
    double beside_s[STW_N_STREAMS]; /* of the opposite stream, from the first to the last of this */
    double whole_s; /* of a whole pass, with all waits, as if operations ran alone */
} stw_pass_work;

typedef struct stw_forward_reading {
    stw_pass_work pass[2];   /* forward, backward */
    stw_pass_work *group[2]; /* [n_groups] of them, operations on blocks of a group; no edges */
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

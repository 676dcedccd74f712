/* SPDX-License-Identifier: Apache-2.0 */
/* An engine describes a training framework: its partition of the state, the placements that it can
 * execute, its transient memory, and how to build a program from decisions. Each engine is one
 * constant table in plan/engines/. Other code calls the table and does not compare engine names.
 * Functions are pure; any thread may call them. */
#ifndef STW_PLAN_JOB_ENGINE_H
#define STW_PLAN_JOB_ENGINE_H

#include "models/model.h"
#include "plan/job/space.h"
#include "plan/spec/registry.h"
#include "plan/spec/terms.h"

struct stw_job;
struct stw_place;
struct stw_decisions;
struct stw_layout;
struct stw_program;

/* X(enum, name). A named set of ranks; every collective names its group. */
#define STW_RANK_GROUP_TABLE(X)                                                                    \
    X(NONE, "none")           /* of operations of one rank */                                      \
    X(WORLD, "world")         /* all ranks */                                                      \
    X(NODE, "node")           /* the ranks of one node */                                          \
    X(SHARD, "shard")         /* dp_shard x cp: neighbouring ranks that cut dense state */         \
    X(REPLICATE, "replicate") /* ranks that hold the same shard */                                 \
    X(TP, "tp")               /* ranks that cut the matrices of a block */                         \
    X(CP, "cp")               /* ranks that cut the sequence */                                    \
    X(EP, "ep")               /* ranks that share the experts of a block */                        \
    X(ETP, "etp")             /* ranks that cut the matrices of an expert */                       \
    X(PP, "pp")               /* one rank of every pipeline stage */                               \
    X(EMBEDDING, "embedding") /* stages that have a tied embedding: the first and the last */      \
    X(DP, "dp")               /* data parallel x cp: ranks that sum dense gradients */             \
    X(EXPERT_DP, "expert_dp") /* ranks that cut, or sum the gradients of, the same experts */      \
    X(SYNC, "sync")           /* rank 0 of a trainer, and the ranks of a rollout on other nodes */

#define X(name, text) STW_RANK_GROUP_##name,
typedef enum stw_rank_group { STW_RANK_GROUP_TABLE(X) STW_N_RANK_GROUPS } stw_rank_group;
#undef X

/** Spaces that every engine has, one per kind of state with its own partition. Further spaces of an
 * engine start at STW_N_STATE_SPACES. Quanta and buckets are ranges of the optimizer
 * space. */
typedef enum stw_space_id {
    STW_SPACE_PARAMS,
    STW_SPACE_GRADS,
    STW_SPACE_OPTIMIZER, /* master, exp_avg, exp_avg_sq */
    STW_N_STATE_SPACES
} stw_space_id;

/** Purpose of a ring in a layout. */
typedef enum stw_ring_kind {
    STW_RING_GPU,       /* streamed buckets, operands of the update kernel */
    STW_RING_HOST_DISK, /* NVMe buckets, staged on the host */
    STW_RING_HOST_CPU,  /* CPU buckets with params or grads on the GPU */
    STW_N_RINGS
} stw_ring_kind;

/** A change of the run spec that the planner tries if no plan fits. */
typedef struct stw_engine_fix {
    const char *key, *value, *why;
    const char *with; /* "KEY=VALUE ...", settings that it needs; NULL: none */
} stw_engine_fix;

/** Keys that an expert turns and for which the planner's problem has no variable. A turn is planned
 * by itself where a run has the default of each key, or the turn's value. Where the first one is
 * `auto`, the planner takes what is fastest; else the launch does what the default says, and
 * reports name the turn. The training's numbers are the same with all of them, up to the order of
 * sums. */
typedef struct stw_engine_turn {
    const char *set;   /* "KEY=VALUE ..." */
    const char *when;  /* "KEY=VALUE ..." that a run must have; NULL: any run */
    const char *usual; /* what `auto` of the first key means to a launch; NULL: it has no such */
    const char *asks;  /* of the user's program, where settings do not do it; NULL: nothing */
} stw_engine_turn;

/** By how much measured bytes exceeded predicted ones at most, as a share of the predicted ones:
 * rows of tests/measured and bench/results (bench/measured.py ENGINE prints them). A plan that a
 * run may exceed by as much is at risk. */
typedef struct stw_margins {
    double gpu;      /* of what torch's allocator hands out */
    double reserved; /* of what it reserves without expandable segments: the order of allocations,
                        and so what is split up, differs from the replay's */
    double host;
} stw_margins;

#define STW_LAYOUT_SETTING 96 /* room for KEY=VALUE */
#define STW_LAYOUT_MOST_OWN 4

/** What layouts of ranks are searched for. */
typedef struct stw_layout_case {
    const stw_model *model;
    const stw_cluster *cluster;
    const stw_run_spec *run; /* seq_len is known */
    uint32_t world, ranks_per_node;
    uint32_t searched; /* bit stw_search: of the keys whose values are chosen */
    bool slow_too;     /* values that save memory alone count too */
} stw_layout_case;

/** Layouts that an engine admits. A layout is a value for each stw_search; keys that are not
 * searched have the run's. Truth values are 0 and 1. Where the ways of parallel.tp are searched,
 * parallel.sequence_parallel is, too, unless the run gives it. */
typedef struct stw_layout_rules {
    uint32_t searches; /* bit stw_search */
    const char
        *own[STW_SEARCH_N_OWN]; /* keys of OWN_1 and on: truth values or counts; NULL: none */
    /** Cheap: what it admits may still be refused as a whole. @param value [STW_N_SEARCHES] */
    bool (*admits)(const stw_layout_case *c, const uint64_t *value);
    /** Settings that go with a layout, KEY=VALUE. NULL: none. @param out [STW_LAYOUT_MOST_OWN]
     * @return how many */
    uint32_t (*settings)(const stw_layout_case *c, const uint64_t *value,
                         char out[][STW_LAYOUT_SETTING]);
} stw_layout_rules;

typedef struct stw_engine {
    stw_engine_spec spec; /* must be first; the run spec's view of the engine */
    /* What load.method: auto stands for: what the framework does unless it is told otherwise. NULL:
     * the planner chooses. */
    stw_load (*usual_load)(const stw_run_spec *run);
    /** Does the rank that loads for all hold no more than some tensors at a time? NULL: it holds
     * the whole model. */
    bool (*loads_by_tensors)(const stw_run_spec *run);
    const char *load_note; /* what reports add to such a load; NULL: nothing */
    /** What ranks tell each other to save, in the run's format: a sentence with the number of
     * collectives. NULL: the engine has no checkpoints. */
    void (*save_metadata)(const struct stw_job *job, char *out, size_t out_size);
    /** What is known to hang or to fail with this job's settings, with its source, "" if nothing.
     * NULL: nothing is. */
    void (*known_failure)(const struct stw_job *job, char *out, size_t out_size);
    /** What of this job's run the framework does not have, and what to set for what it has; "" if
     * nothing. NULL: nothing. */
    void (*lacks)(const struct stw_job *job, char *out, size_t out_size);
    /* What optimizer.implementation: auto is taken to be; NULL: as planned. */
    const char *assumed_optimizer;
    /* What a streamed step needs that the framework's own optimizers lack: the planner chooses one
     * by itself only where nothing else fits, and reports say this. NULL: nothing. */
    const char *streamed_note;
    /** The framework's arguments that recompute what the decisions do; "" if nothing is. NULL: the
     * engine has none. */
    void (*acts_note)(const struct stw_job *job, const struct stw_decisions *decisions, char *out,
                      size_t out_size);
    /** NULL: none. */
    stw_margins (*margins)(const stw_run_spec *run);
    bool encoders; /* builds models with an encoder and a decoder; else they are refused */
    const stw_engine_fix *fixes;     /* terminated by key NULL; may be NULL */
    const stw_engine_turn *turns;    /* terminated by set NULL; may be NULL */
    const stw_layout_rules *layouts; /* NULL: none is searched */

    /** The model that the framework trains: `model`, or a copy in `pool` with what the framework
     * adds to it. NULL: `model`. */
    STW_MUST_USE stw_status (*trains)(const stw_model *model, const stw_run_spec *run,
                                      stw_pool *pool, const stw_model **out, stw_error *err);
    /** The product that a tensor is in, as far as adapters go: 0: it can have none; 1: one of its
     * own; above: one that it shares with the tensors of its block of the same number. NULL: every
     * matrix has one of its own, and experts have none (PEFT). */
    uint32_t (*adapted)(const stw_tensor *tensor);

    /* ---- ranks ---- */
    /** Fill the sizes that follow from run.parallel and the cluster: dp_shard, group, expert_cut,
     * expert_group, tokens and, with pipeline stages, chunks. BAD_INPUT where they do not divide.
     * NULL: the ranks that share dense state, dp_shard x cp, lie tp apart. */
    stw_status (*sizes)(struct stw_job *job, stw_error *err);
    /** Ranks of a group, and how many of them share a node; see stw_job_group_size. NULL with
     * `sizes` NULL. */
    void (*group_size)(const struct stw_job *job, stw_rank_group group, uint32_t *ranks,
                       uint32_t *on_node);
    /** Elements of a tensor on a rank before it is sharded over the data-parallel ranks, where
     * tensor parallelism cuts it. NULL: all of it, of an expert what ep x etp leaves. Forward and
     * backward of such an engine are of its parts, too. */
    uint64_t (*part)(const struct stw_job *job, uint32_t tensor);
    /** Pipeline stage of a rank. NULL: there is one stage. An engine with stages holds different
     * bytes on each of them in forward and backward, and every stage has rows of its own. */
    uint32_t (*stage)(const struct stw_job *job, uint32_t rank);

    /* ---- partition ---- */
    bool one_cut;           /* params, grads and optimizer state share one partition */
    bool spread;            /* the order of these spaces is that of stw_space_spread, so that quanta
                               of any placement come from all blocks alike, unless the run keeps
                               params and grads on the GPU; needs one_cut */
    uint32_t n_more_spaces; /* in addition to STW_N_STATE_SPACES */
    /** A representative of all ranks that hold as many elements of every space: the same ones, or
     * others of the same sizes where nothing else is asked of them. */
    uint32_t (*representative)(const struct stw_job *job, uint32_t rank);
    /** A hash that is equal for ranks that hold as many elements of each tensor. NULL: every space
     * of each representative is made and compared. */
    uint64_t (*parts)(const struct stw_job *job, uint32_t rank);
    /** Append the elements of a space that a rank holds, in the model's order. `out` keeps its
     * pool. */
    STW_MUST_USE stw_status (*cut)(const struct stw_job *job, uint32_t space, uint32_t rank,
                                   stw_space *out, stw_error *err);
    /** True if this rank's copy counts in the gradient norm and in digests. Exactly one replica of
     * every element counts. */
    bool (*counts)(const struct stw_job *job, uint32_t space, uint32_t rank);

    /* ---- placement ---- */
    /** Placements that both the run spec and the engine allow, in canonical order.
     * @param places out, room for STW_MAX_PLACES
     * @return number of places; 0 if the spec contradicts itself (`err` holds the reason) */
    uint32_t (*places)(const struct stw_job *job, struct stw_place *places, stw_error *err);
    unsigned acts;          /* a bit for each stw_act that blocks may have; 0: all */
    bool whole;             /* all quanta of a plan have the same place */
    bool prefetch_by_group; /* prefetch depth counts groups of tensors; no bucket size */
    const uint32_t *depths; /* prefetch depths to try, terminated by 0; NULL: defaults */
    /** Does what lies around a block in forward and backward depend on the activation policies of
     * all blocks, and not on its own alone? NULL: no. */
    bool (*mixes)(const struct stw_job *job);

    /* ---- layout ---- */
    bool nvme_commits; /* supports two copies of state on NVMe, for crash consistency */
    bool nvme_swaps; /* CPU updates swap state on NVMe in and out; parameters may lie there, too */
    /** Number of slots of a ring; 0 if the ring is not used. `slot_bytes` (out) is the size of one.
     * NULL: `depth` slots of the size of the ring's largest bucket. */
    uint32_t (*ring)(const struct stw_job *job, const struct stw_decisions *decisions,
                     stw_ring_kind ring, uint64_t *slot_bytes);
    /** Add regions of the engine's own spaces, after those of the state. May be NULL. */
    STW_MUST_USE stw_status (*more_regions)(const struct stw_job *job, struct stw_layout *layout,
                                            stw_error *err);

    /** GPU memory above the regions that an executed weight sync needs: its buffers, and behind
     * them what it fills. NULL: none. */
    STW_MUST_USE stw_status (*sync_room)(const struct stw_job *job, uint32_t kind,
                                         uint64_t *buffers, uint64_t *weights, stw_error *err);

    /* ---- time ---- */
    /** What the framework's code takes on the CPU of one rank for `params` elements: an update, or
     * the norm and the scaling of gradients. NULL: Stowage's own kernels at the cluster's rates.
     * @param bytes out: of memory traffic @return seconds */
    double (*cpu_step)(const struct stw_job *job, bool norm, uint64_t params, double *bytes);
    /** The cluster's rate of the optimizer that cpu_step stands for. NULL: none is measured. */
    const struct stw_cpu_rate *(*cpu_rate)(const struct stw_job *job);
    /** How the CPU's update runs as planned, and which keys make it faster: a sentence, "" where
     * none does by much. NULL: nothing to say. */
    void (*cpu_advice)(const struct stw_job *job, char *out, size_t out_size);
    /** Seconds of one rank's CPU for a pass over so many bytes of host memory. Where it is set, the
     * program counts the calls that issue work to the GPU too (STW_OP_PASS, STW_OP_CALLS). */
    double (*cpu_pass)(const struct stw_job *job, double bytes);
    bool sync_calls; /* a weight sync has calls (STW_OP_CALLS) for every tensor */

    /* ---- program ---- */
    STW_MUST_USE stw_status (*build)(const struct stw_job *job,
                                     const struct stw_decisions *decisions,
                                     const struct stw_layout *layout, struct stw_program *program,
                                     stw_error *err);
    /** Load and log_prob of a model that is not trained, on ranks of program->kind.
     * @param on_host its parameters wait there
     * NULL: these movements are those of `build`. */
    STW_MUST_USE stw_status (*build_untrained)(const struct stw_job *job, bool on_host,
                                               struct stw_program *program, stw_error *err);
} stw_engine;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* An engine describes a training framework: its partition of the state, the placements that it can
 * execute, its transient memory, and how to build a program from decisions. Each engine is one
 * constant table in engines/. Other code calls the table and does not compare engine names.
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
    X(NONE, "none")           /* for operations of one rank */                                     \
    X(WORLD, "world")         /* all ranks */                                                      \
    X(NODE, "node")           /* the ranks of one node */                                          \
    X(SHARD, "shard")         /* dp_shard x cp: neighbouring ranks that shard dense state */       \
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

/** Spaces that every engine has: one for each kind of state with its own partition. Further spaces
 * of an engine start at STW_N_STATE_SPACES. Quanta and buckets are ranges of
 * STW_SPACE_OPTIMIZER. */
typedef enum stw_space_id {
    STW_SPACE_PARAMS,
    STW_SPACE_GRADS,
    STW_SPACE_OPTIMIZER, /* master, exp_avg, exp_avg_sq */
    STW_N_STATE_SPACES
} stw_space_id;

/** Purpose of a ring in a memory layout. */
typedef enum stw_ring_kind {
    STW_RING_GPU,       /* streamed buckets, operands of the update kernel */
    STW_RING_HOST_DISK, /* NVMe buckets, staged on the host */
    STW_RING_HOST_CPU,  /* CPU buckets with params or grads on the GPU */
    STW_N_RINGS
} stw_ring_kind;

/** A change of the run spec that the planner tries if no plan fits. */
typedef struct stw_engine_fix {
    const char *key, *value, *why;
    const char *with; /* "KEY=VALUE ...", more settings to apply; NULL: none */
} stw_engine_fix;

/** A turn: settings that experts change and for which the planner's problem has no variable. It is
 * planned separately if each of its keys has the default or the turn's value. If its first key is
 * `auto`, the planner takes the fastest plan; else the launch keeps the default, and reports name
 * the turn. A turn does not change the training's numbers, except for the order of sums. */
typedef struct stw_engine_turn {
    const char *set;   /* "KEY=VALUE ..." */
    const char *when;  /* "KEY=VALUE ..." that the run must have; NULL: any run */
    const char *usual; /* what `auto` of the first key means at launch; NULL: it has no `auto` */
    const char *asks;  /* changes that the user's program needs beside the settings; NULL: none */
} stw_engine_turn;

/** The largest excess of measured over predicted bytes, as a share of the predicted bytes (rows of
 * tests/measured and bench/results; bench/measured.py ENGINE prints them). A plan is at risk if
 * that excess would not fit. */
typedef struct stw_margins {
    double gpu;      /* of the bytes that torch's allocator hands out */
    double reserved; /* of its reserved bytes without expandable segments: the order of allocations,
                        and so the splits, differ from the replay's */
    double host;
} stw_margins;

#define STW_LAYOUT_SETTING 96 /* room for KEY=VALUE */
#define STW_LAYOUT_MOST_OWN 4

/** The input of a search for parallel layouts. */
typedef struct stw_layout_case {
    const stw_model *model;
    const stw_cluster *cluster;
    const stw_run_spec *run; /* seq_len is known */
    uint32_t world, ranks_per_node;
    uint32_t searched; /* keys whose values are chosen, a bit for each stw_search */
    bool slow_too;     /* also try values that only save memory */
} stw_layout_case;

/** The parallel layouts that an engine admits. Each is a value for each stw_search; keys that are
 * not searched keep the run's value. Truth values are 0 and 1. If parallel.tp is searched, so is
 * parallel.sequence_parallel, unless the run sets it. */
typedef struct stw_layout_rules {
    uint32_t searches;                 /* a bit for each stw_search */
    const char *own[STW_SEARCH_N_OWN]; /* OWN_1, OWN_2, ...: truth values or counts; NULL: none */
    /** A cheap test: later checks may still refuse an admitted layout.
     * @param value [STW_N_SEARCHES] */
    bool (*admits)(const stw_layout_case *c, const uint64_t *value);
    /** Write the KEY=VALUE settings that a parallel layout needs. NULL: none.
     * @param out [STW_LAYOUT_MOST_OWN]
     * @return number of settings */
    uint32_t (*settings)(const stw_layout_case *c, const uint64_t *value,
                         char out[][STW_LAYOUT_SETTING]);
} stw_layout_rules;

typedef struct stw_engine {
    stw_engine_spec spec; /* must be first; the run spec's view of the engine */
    /* The load method for load.method: auto, which is the framework's default. NULL: the planner
     * chooses. */
    stw_load (*usual_load)(const stw_run_spec *run);
    /** True if the rank that loads for all ranks holds only a few tensors at a time. NULL: it holds
     * the whole model. */
    bool (*loads_by_tensors)(const stw_run_spec *run);
    const char *load_note; /* what reports add about such a load; NULL: nothing */
    /** Describe the metadata that ranks exchange for a save in the run's format: a sentence with
     * the number of collectives. NULL: the engine has no checkpoints. */
    void (*save_metadata)(const struct stw_job *job, char *out, size_t out_size);
    /** Describe a hang or failure that is known for this job's settings, with its source; "" if
     * none is known. NULL: none. */
    void (*known_failure)(const struct stw_job *job, char *out, size_t out_size);
    /** Name the settings of this job that the framework does not support, and the settings to use
     * instead; "" if there are none. NULL: there are none. */
    void (*lacks)(const struct stw_job *job, char *out, size_t out_size);
    /* The value that stands for optimizer.implementation: auto; NULL: the planner decides. */
    const char *assumed_optimizer;
    /* What a streamed step needs and the framework's own optimizers lack. The planner then chooses
     * a streamed step only if nothing else fits, and reports print this text. NULL: nothing. */
    const char *streamed_note;
    /** Write the framework's arguments for the recomputation that the decisions contain; "" if they
     * contain none. NULL: the engine has no such arguments. */
    void (*acts_note)(const struct stw_job *job, const struct stw_decisions *decisions, char *out,
                      size_t out_size);
    /** NULL: none. */
    stw_margins (*margins)(const struct stw_job *job);
    bool encoders; /* supports models with an encoder and a decoder; else they are refused */
    const stw_engine_fix *fixes; /* terminated by key NULL; may be NULL */
    /* The same, tried only if all plans are at risk: where nothing fits, the planner takes them by
     * itself. */
    const stw_engine_fix *risk_fixes;
    const stw_engine_turn *turns;    /* terminated by set NULL; may be NULL */
    const stw_layout_rules *layouts; /* NULL: parallel layouts are not searched */

    /** Give the model that the framework trains: `model`, or a copy in `pool` with the tensors that
     * the framework adds. NULL: `model`. */
    STW_MUST_USE stw_status (*trains)(const stw_model *model, const stw_run_spec *run,
                                      stw_pool *pool, const stw_model **out, stw_error *err);
    /** How adapters treat a tensor. 0: no adapter. 1: an adapter of its own. Above 1: it shares an
     * adapter with the tensors of its block that have the same number, because the engine merges
     * them into one product. NULL: every matrix has an adapter of its own, and experts have none
     * (PEFT). */
    uint32_t (*adapted)(const stw_tensor *tensor);

    /* ---- ranks ---- */
    /** Fill the sizes that follow from run.parallel and the cluster: dp_shard, group, expert_cut,
     * expert_group, tokens and, with pipeline stages, chunks. BAD_INPUT if they do not divide.
     * NULL: the default sizes; the ranks of a dp_shard x cp group are then tp ranks apart. */
    stw_status (*sizes)(struct stw_job *job, stw_error *err);
    /** Give the number of ranks in a group, and how many of them share a node; see
     * stw_job_group_size. NULL if `sizes` is NULL. */
    void (*group_size)(const struct stw_job *job, stw_rank_group group, uint32_t *ranks,
                       uint32_t *on_node);
    /** Returns the elements of a tensor that a rank has after tensor parallelism and before
     * sharding over the data-parallel ranks. Called for tensors that are not experts; ep x etp
     * divides those. NULL: tensor parallelism does not cut tensors; else forward and backward work
     * on these parts, too. */
    uint64_t (*part)(const struct stw_job *job, uint32_t tensor);
    /** Returns the pipeline stage of a rank. NULL: there is one stage. In forward and backward each
     * stage holds different bytes, so every stage has rows of its own. */
    uint32_t (*stage)(const struct stw_job *job, uint32_t rank);

    /** Returns bytes above all that grow with the tokens of a micro batch on the ranks of a node,
     * to refuse sizes that do not fit in 64 bits (plan/job/sizes.h). The sum saturates. */
    uint64_t (*batch_bytes)(const struct stw_job *job);

    /* ---- partition ---- */
    bool one_cut;           /* params, grads and optimizer state share one partition */
    bool spread;            /* these spaces are in the order of stw_space_spread, so that every
                               placement takes quanta from all blocks alike, unless the run keeps
                               params and grads on the GPU; needs one_cut */
    uint32_t n_more_spaces; /* in addition to STW_N_STATE_SPACES */
    /** Returns the rank that represents all ranks with the same shard sizes in every space. Their
     * elements may differ if only the sizes matter. */
    uint32_t (*representative)(const struct stw_job *job, uint32_t rank);
    /** Returns a hash that is equal for ranks with the same shard size of each tensor. NULL: the
     * spaces of all representatives are built and compared. */
    uint64_t (*parts)(const struct stw_job *job, uint32_t rank);
    /** Append the elements of a space that a rank holds, in the model's order. `out` keeps its
     * pool. */
    STW_MUST_USE stw_status (*cut)(const struct stw_job *job, uint32_t space, uint32_t rank,
                                   stw_space *out, stw_error *err);
    /** True if the gradient norm and digests include this rank's copy. They include exactly one
     * replica of every element. */
    bool (*counts)(const struct stw_job *job, uint32_t space, uint32_t rank);

    /* ---- placement ---- */
    /** Placements that both the run spec and the engine allow, in canonical order.
     * @param places out, room for STW_MAX_PLACES
     * @return number of places; 0 if the run spec contradicts itself (`err` holds the reason) */
    uint32_t (*places)(const struct stw_job *job, struct stw_place *places, stw_error *err);
    unsigned acts;          /* a bit for each stw_act that a block may use; 0: all */
    bool whole;             /* all quanta of a plan have the same place */
    bool prefetch_by_group; /* prefetch depth counts groups of tensors; no bucket size */
    const uint32_t *depths; /* prefetch depths to try, terminated by 0; NULL: defaults */
    /** True if the memory around a block in forward and backward depends on the activation policies
     * of all blocks, and not only on its own. NULL: false. */
    bool (*mixes)(const struct stw_job *job);

    /* ---- layout ---- */
    bool nvme_commits; /* supports two copies of state on NVMe, for crash consistency */
    bool nvme_swaps;   /* CPU updates swap state in from NVMe and out; params may lie there, too */
    /** Number of slots of a ring; 0 if the ring is not used. `slot_bytes` (out) is the size of a
     * slot. NULL: `depth` slots, each as large as the ring's largest bucket. */
    uint32_t (*ring)(const struct stw_job *job, const struct stw_decisions *decisions,
                     stw_ring_kind ring, uint64_t *slot_bytes);
    /** Add the regions of the engine's own spaces, after the regions of the state. May be NULL. */
    STW_MUST_USE stw_status (*more_regions)(const struct stw_job *job, struct stw_layout *layout,
                                            stw_error *err);

    /** Give the GPU memory that an executed weight sync needs beyond the regions: its buffers,
     * followed by the weights that it fills. NULL: none. */
    STW_MUST_USE stw_status (*sync_room)(const struct stw_job *job, uint32_t kind,
                                         uint64_t *buffers, uint64_t *weights, stw_error *err);

    /* ---- time ---- */
    /** Returns the seconds that the framework's code needs on the CPU of one rank for `params`
     * elements: for an update, or with `norm` for the norm and the scaling of gradients. NULL:
     * Stowage's own kernels at the cluster's rates.
     * @param bytes out, memory traffic */
    double (*cpu_step)(const struct stw_job *job, bool norm, uint64_t params, double *bytes);
    /** Returns the cluster's measured rate of the optimizer behind cpu_step. NULL: none is
     * measured. */
    const struct stw_cpu_rate *(*cpu_rate)(const struct stw_job *job);
    /** Describe how the planned CPU update runs, and which keys make it faster: a sentence; "" if
     * no key helps much. NULL: nothing to say. */
    void (*cpu_advice)(const struct stw_job *job, char *out, size_t out_size);
    /** Returns the seconds that one rank's CPU needs for a pass over `bytes` of host memory. If
     * set, the program also counts the calls that issue work to the GPU (STW_OP_PASS,
     * STW_OP_CALLS). */
    double (*cpu_pass)(const struct stw_job *job, double bytes);
    bool sync_calls; /* a weight sync has calls (STW_OP_CALLS) for every tensor */

    /* ---- program ---- */
    STW_MUST_USE stw_status (*build)(const struct stw_job *job,
                                     const struct stw_decisions *decisions,
                                     const struct stw_layout *layout, struct stw_program *program,
                                     stw_error *err);
    /** Build load and log_prob of a model that is not trained, on ranks of program->kind. NULL:
     * these movements come from `build`.
     * @param on_host the parameters wait on the host */
    STW_MUST_USE stw_status (*build_untrained)(const struct stw_job *job, bool on_host,
                                               struct stw_program *program, stw_error *err);
} stw_engine;

/** Returns engine number `index` of plan/spec/registry.h; NULL if it is not built in. */
const stw_engine *stw_engine_find(uint32_t index);
/** Returns the engine of a run (stw_run_spec_engine); NULL if it is not implemented. */
const stw_engine *stw_engine_of(const stw_run_spec *run);
/** Add an engine to those that run specs can name; see stw_engine_spec_register. */
STW_MUST_USE stw_status stw_engine_register(const stw_engine *engine, stw_error *err);

#endif

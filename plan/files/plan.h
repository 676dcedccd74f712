/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: inputs, decisions, and everything derived from them. The file (stowage.plan/1, JSON)
 * holds inputs, decisions, the planner's evidence and the predicted figures. Every reader derives
 * layouts and programs again; they must have the stated hash. A plan owns everything it points
 * to. */
#ifndef STW_PLAN_PLAN_H
#define STW_PLAN_PLAN_H

#include "plan/job/engine.h"
#include "plan/program/ledger.h"
#include "plan/program/program.h"
#include "plan/program/replay.h"

typedef enum stw_outcome {
    STW_OUTCOME_OPTIMAL,
    STW_OUTCOME_FEASIBLE,
    STW_OUTCOME_INFEASIBLE,
    STW_OUTCOME_LIMIT
} stw_outcome;
/** In files as "fits", "at_risk", "does_not_fit", "unknown". plan/files/verdict.h says when. */
typedef enum stw_verdict {
    STW_VERDICT_FITS,
    STW_VERDICT_AT_RISK,
    STW_VERDICT_DOES_NOT_FIT,
    STW_VERDICT_UNKNOWN, /* the state fits; the memory of forward and backward is unknown */
    STW_N_VERDICTS
} stw_verdict;

/* The stage with a proven lower bound on the simulated seconds of all plans within the limits. */
#define STW_STAGE_PROOF "proven_bound"

typedef struct stw_solver_stage {
    const char *name;
    double objective, bound, gap, seconds;
} stw_solver_stage;
typedef struct stw_solver_report {
    const char *name, *version; /* "glpk"; "greedy": descents on the rows */
    double seconds;
    uint32_t rows, columns;
    uint32_t simulated; /* plans that the simulator compared; 0: none */
    /* The last stage that has a bound, in seconds per iteration plus a share of the load. In
     * STW_STAGE_PROOF `objective` is simulated; in other stages the rows estimate it. */
    double objective, bound, gap;
    uint32_t n_stages;
    stw_solver_stage *stages;
} stw_solver_report;

/** The gain from more of a resource: the iteration seconds of the fastest plan found with it, minus
 * those of the fastest known plan without it. */
typedef struct stw_price {
    const char *resource;
    const char *phase;
    double amount; /* amount added, in `unit` */
    const char *unit;
    double seconds; /* negative: saved; 0: no gain above STW_PLAIN_SLACK */
} stw_price;
typedef struct stw_fix_change {
    const char *set, *value;
} stw_fix_change;
#define STW_MAX_LIMIT_CHANGES 2
typedef struct stw_binding {
    const char *resource;
    const char *phase;
    uint64_t enough_bytes; /* a limit with which the job fits, other limits unchanged; 0: none */
    uint32_t n_changes;    /* changes that set this limit, verified by a new plan; 0: unknown */
    stw_fix_change changes[STW_MAX_LIMIT_CHANGES];
} stw_binding; /* one limit of a minimal set of limits that contradict each other */
#define STW_MAX_FIX_CHANGES 8
typedef struct stw_fix {
    uint32_t n_changes;
    stw_fix_change changes[STW_MAX_FIX_CHANGES];
    const char *why;
    bool at_risk;                     /* the verdict with the changes is at_risk */
    double iteration_s, tokens_per_s; /* simulated; 0 or NaN: not known */
} stw_fix;                            /* a new plan with all of these changes fits */
/** A faster plan that was not chosen, and what it needs. */
typedef struct stw_alternative {
    const char *rule;    /* why it was not chosen: "plainness", "placement.gpu_fill"; "setting": the
                            run has the default of a key */
    double seconds;      /* one simulated iteration */
    double share;        /* share of the plan's iteration that it would save */
    const char *needs;   /* "9 blocks offloaded"; for a setting: KEY=VALUE, separated by spaces */
    stw_verdict verdict; /* for a setting */
    const char *asks;    /* for a setting: other necessary changes; NULL: none */
} stw_alternative;
#define STW_MAX_ALTERNATIVES 8

/** A parallel layout that was planned. */
typedef struct stw_layout_row {
    const char *settings; /* KEY=VALUE, separated by spaces; "": the run's own parallel layout */
    stw_verdict verdict;
    double iteration_s; /* simulated; NaN: it does not fit */
    uint64_t gpu_peak_bytes, host_peak_bytes;
} stw_layout_row;
#define STW_MAX_LAYOUT_ROWS 8

/** The search for a plan's parallel layout if keys of the run are `auto`. */
typedef struct stw_layout_search {
    const char *searched; /* keys, separated by spaces; NULL: no search */
    uint64_t admitted;    /* parallel layouts that the engine admits */
    uint64_t planned;     /* planned with the integer program and the simulator */
    uint64_t compared;    /* of these, planned again with all that the planner compares */
    uint64_t unfinished;  /* of these, planned again, but the time was over before that ended */
    uint64_t refused;     /* refused by the checks of the whole run */
    uint64_t too_slow;    /* slower than the best one, by their bounds */
    uint64_t too_big;     /* far over a limit with any decisions */
    uint64_t unfit;       /* planned, but did not fit */
    uint64_t left;        /* not tried: the search continued near the best ones */
    uint64_t late;        /* not tried: the time was over */
    double seconds;
    uint32_t n_rows;
    stw_layout_row rows[STW_MAX_LAYOUT_ROWS]; /* the chosen one, the next best ones, then the
                                                 run's own if it was planned and is not among
                                                 these */
} stw_layout_search;

typedef struct stw_plan {
    stw_pool *pool;
    const char *file; /* the file it was read from, for errors; NULL: none */
    stw_model *model; /* owned, unless borrowed */
    bool borrows_model;
    stw_cluster cluster;
    stw_run_spec run; /* owned */
    stw_job *job;
    stw_decisions decisions;
    stw_outcome outcome;
    stw_verdict verdict;
    stw_solver_report solver;
    stw_layout **layouts;        /* [job->n_kinds] */
    stw_program **programs;      /* [job->n_kinds] */
    stw_peaks *peaks;            /* [job->n_kinds] */
    stw_peaks *shown;            /* [job->n_kinds] peaks with the bytes that the engine's allocator
                                    reserves, as in files and reports */
    stw_peaks *node_peaks;       /* [job->n_node_kinds], tier host; per node */
    stw_replayed *replayed;      /* [job->n_kinds] bytes that torch reserves; all 0 if the engine
                                    has one arena */
    double time_s[STW_N_PHASES]; /* one pass, simulated; NaN: no such movement, or unknown. A
                                    checkpoint: seconds for which training stops */
    double save_s; /* from the start of a checkpoint to its last file, simulated; NaN: as above */
    double objective_s; /* the rows' estimate of an iteration plus 1/STW_LOAD_SPREAD of the load;
                           reports show it without the load */
    bool walk_alone;    /* derive without a replay, to compare bytes with limits only: `shown` is
                           not made, and reserved bytes cause no risk */
    uint32_t n_prices, n_bindings, n_fixes;
    stw_price *prices;
    stw_binding *bindings;
    stw_fix *fixes;
    const char *tried; /* keys of the changes that were tried because nothing fits; NULL: none */
    uint32_t n_alternatives;
    stw_alternative *alternatives;
    stw_layout_search layout_search;
    const char *turned; /* KEY=VALUE, separated by spaces: `auto` keys of the run that the planner
                           set; NULL: none */
    double unturned_s;  /* seconds of an iteration without these settings */
} stw_plan;

#define STW_LOAD_SPREAD 1000.0

/** The planner may prefer a plainer plan that is slower than the fastest known one by at most this
 * share. */
#define STW_PLAIN_SLACK 1e-3

/** The smallest gain of a parallel layout or a price that counts, as a share of an iteration. */
#define STW_LEAST_GAIN 5e-3

/** Make a plan without decisions, and its job. Takes ownership of `model` and `run` (also on
 * failure) and copies `cluster`. */
STW_MUST_USE stw_status stw_plan_new(stw_model *model, const stw_cluster *cluster,
                                     stw_run_spec *run, stw_plan **out, stw_error *err);
/** The same with a model that other plans share, in other threads too; it must outlive the plan. */
STW_MUST_USE stw_status stw_plan_new_sharing(const stw_model *model, const stw_cluster *cluster,
                                             stw_run_spec *run, stw_plan **out, stw_error *err);
void stw_plan_free(stw_plan *plan);
/** Derive layouts, programs and peaks from plan->decisions; replaces earlier ones. */
STW_MUST_USE stw_status stw_plan_derive(stw_plan *plan, stw_error *err);
/** The same with allocs and frees only, for plans that do not fit and so are neither simulated nor
 * executed. The walk and stw_plan_check accept such programs; stw_plan_derive completes them. */
STW_MUST_USE stw_status stw_plan_derive_bytes(stw_plan *plan, stw_error *err);
/** Make plan->replayed and plan->shown: the bytes that torch's allocator reserves. The two
 * functions above call it, unless plan->walk_alone. */
STW_MUST_USE stw_status stw_plan_replay(stw_plan *plan, stw_error *err);
/** The same on GPUs without a memory limit, so that no allocation is retried.
 * @param over_bytes out, reserved bytes beyond the GPU's capacity; 0: none */
STW_MUST_USE stw_status stw_plan_replay_freely(stw_plan *plan, uint64_t *over_bytes,
                                               stw_error *err);
/** Make plan->shown of one kind from plan->peaks; replaces an earlier one. */
void stw_plan_show_peaks(stw_plan *plan, uint32_t kind);
/** Give the peaks of the trainer alone, as runs measure them. Without other roles they are the
 * plan's.
 * @param pool holds new peaks
 * @param ranks out, [n_kinds] as plan->shown
 * @param nodes out, [n_node_kinds] */
STW_MUST_USE stw_status stw_plan_trainer_peaks(const stw_plan *plan, stw_pool *pool,
                                               const stw_peaks **ranks, const stw_peaks **nodes,
                                               stw_error *err);
/** True if a fix is a remedy; false if it shortens the sequences by more than a factor of 8, which
 * is another run. */
bool stw_plan_fix_is_remedy(const stw_plan *plan, const stw_fix *fix);
/** Returns a note for reports if the planner chose a streamed step although the framework's
 * optimizers have none; else NULL. */
const char *stw_plan_streamed_note(const stw_plan *plan);
/** Returns the elements of the state that runs verify (params, moments, master), over all ranks. */
uint64_t stw_plan_state_elements(const stw_plan *plan);
/** Append an alternative; `needs` is copied, `rule` is not.
 * @param plan_seconds an iteration of the plan */
STW_MUST_USE stw_status stw_plan_add_alternative(stw_plan *plan, const char *rule, double seconds,
                                                 double plan_seconds, const char *needs,
                                                 stw_error *err);
/** The same for a setting. Copies its strings except `rule`, and computes its share. */
STW_MUST_USE stw_status stw_plan_add_turn(stw_plan *plan, const stw_alternative *other,
                                          double plan_seconds, stw_error *err);
/** Give a plan another run: makes a new job and discards everything derived.
 * @param run shares the pool of the plan's run; its values are copied */
STW_MUST_USE stw_status stw_plan_rerun(stw_plan *plan, const stw_run_spec *run, stw_error *err);
/** Bytes that a rank may use on its GPU, and a node on its host. */
uint64_t stw_plan_gpu_capacity(const stw_plan *plan);
uint64_t stw_plan_host_capacity(const stw_plan *plan);

/** Returns how often an iteration executes a phase: forward and backward once per micro batch; 0
 * for a load, a first step or a checkpoint. */
uint64_t stw_plan_passes(const stw_plan *plan, stw_phase phase);
/** True if the solver's bound is on simulated seconds. */
bool stw_plan_is_proven(const stw_plan *plan);
/** Returns an objective of the planner without its share of the load (the simulated load), to
 * compare it with iteration seconds. */
double stw_plan_estimate_s(const stw_plan *plan, double objective_s);
/** Returns the seconds of an iteration after the first: the sum of time_s over its passes. NaN if
 * the time of one of its phases is unknown, or the program has no forward and backward. */
double stw_plan_iteration_s(const stw_plan *plan);
/** True if a movement is Stowage's own and this build executes it: in a run, in a framework's
 * process, or for `run --checkpoint`. */
bool stw_plan_executes(const stw_plan *plan, const stw_movement *movement);
/** True if the trainer's movement of a phase is Stowage's own, but no executor of this build issues
 * it. Its seconds are then only planned. */
bool stw_plan_is_unexecuted(const stw_plan *plan, stw_phase phase);
/** Returns the seconds of a step after the first that the next forward hides (optimizer.overlap);
 * 0: none. time_s has only the rest of that step, but the whole first step. */
double stw_plan_hidden_s(const stw_plan *plan);
/** Returns the tokens that all ranks train in one iteration. */
double stw_plan_iteration_tokens(const stw_plan *plan);

/** Check a plan: the invariants of every layout and program (plan/program/check.h); the sums of
 * decisions equal the job's counts; with `check_peaks` the peaks equal the walk's. BUG or BAD_INPUT
 * names the first violation. */
STW_MUST_USE stw_status stw_plan_check(const stw_plan *plan, bool check_peaks, stw_error *err);

/** Write / read stowage.plan/1. Reading derives layouts, peaks and the verdict again. BAD_INPUT if
 * a region, hash, peak or verdict differs, the major version is unknown, the model digest differs
 * from the tensors, or a member differs from its checksum (inputs and the planner's evidence cannot
 * be derived). Seconds stay as stated; stw_sim_check compares them. */
STW_MUST_USE stw_status stw_plan_to_json(const stw_plan *plan, stw_text *out, stw_error *err);
STW_MUST_USE stw_status stw_plan_write(const stw_plan *plan, const char *path, stw_error *err);
STW_MUST_USE stw_status stw_plan_read(const char *path, stw_plan **out, stw_error *err);
STW_MUST_USE stw_status stw_plan_parse(const char *file, const char *text, size_t length,
                                       stw_plan **out, stw_error *err);
/** The same without the checksums: for tests and fuzz targets, which change texts. */
STW_MUST_USE stw_status stw_plan_parse_edited(const char *file, const char *text, size_t length,
                                              stw_plan **out, stw_error *err);

/** Append the members that determine what ranks do to the open object: model, run, cluster,
 * decisions, hashes of the layouts and programs. Evidence and predicted figures are not
 * included. */
void stw_plan_write_terms(const stw_plan *plan, stw_json *json);
typedef uint64_t stw_movement_hash(const stw_program *program, const stw_movement *movement);
/** Append an array with the hash of each movement; a phase may have several. */
void stw_plan_write_movement_hashes(const stw_program *program, const char *key,
                                    stw_movement_hash *hash, stw_json *json);

const char *stw_outcome_name(stw_outcome outcome);
const char *stw_verdict_name(stw_verdict verdict);

/** Make the host ledger of a kind of node in a phase (plan/program/ledger.h). Its lines lie in the
 * plan's pool. */
STW_MUST_USE stw_status stw_plan_ledger(const stw_plan *plan, uint32_t node_kind, stw_phase phase,
                                        stw_ledger *out, stw_error *err);

#endif

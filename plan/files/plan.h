/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: inputs, decisions, and what follows from them. The file (stowage.plan/1, JSON) holds
 * inputs, decisions, the planner's evidence and the predicted figures; layouts and programs are
 * derived again by every reader and must have the stated hash. A plan owns everything it points to.
 */
#ifndef STW_PLAN_PLAN_H
#define STW_PLAN_PLAN_H

#include "plan/engines/engine.h"
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
    STW_VERDICT_UNKNOWN, /* the state fits; what forward and backward take is not known */
    STW_N_VERDICTS
} stw_verdict;

/* Stage whose bound no simulated plan within the limits lies below. */
#define STW_STAGE_PROOF "proven_bound"

typedef struct stw_solver_stage {
    const char *name;
    double objective, bound, gap, seconds;
} stw_solver_stage;
typedef struct stw_solver_report {
    const char *name, *version; /* "glpk"; "greedy": descents on the rows */
    double seconds;
    uint32_t rows, columns;
    uint32_t simulated; /* plans that were compared by the simulator; 0: none */
    /* Of the last stage that has a bound, seconds per iteration with its part of the load: of the
     * proof, where `objective` is simulated, else as rows estimate them. */
    double objective, bound, gap;
    uint32_t n_stages;
    stw_solver_stage *stages;
} stw_solver_report;

/** What more of a resource would change: seconds of an iteration of the fastest plan that was found
 * with it, less those of the fastest that is known without. */
typedef struct stw_price {
    const char *resource;
    const char *phase;
    double amount; /* so much more, in units */
    const char *unit;
    double seconds; /* negative: saved; 0: nothing above what a plainer plan may cost */
} stw_price;
typedef struct stw_fix_change {
    const char *set, *value;
} stw_fix_change;
#define STW_MAX_LIMIT_CHANGES 2
typedef struct stw_binding {
    const char *resource;
    const char *phase;
    uint64_t enough_bytes; /* a limit with which everything fits, the others unchanged; 0: none */
    uint32_t n_changes;    /* that set it, planned anew; 0: not known */
    stw_fix_change changes[STW_MAX_LIMIT_CHANGES];
} stw_binding; /* of a minimal set of limits that contradict each other */
#define STW_MAX_FIX_CHANGES 8
typedef struct stw_fix {
    uint32_t n_changes;
    stw_fix_change changes[STW_MAX_FIX_CHANGES];
    const char *why;
    bool at_risk;                     /* the verdict with them is at_risk */
    double iteration_s, tokens_per_s; /* simulated; 0 or NaN: not known */
} stw_fix;                            /* planned anew with all of its changes, and fits */
/** A faster plan that was passed over, and what it would need. */
typedef struct stw_alternative {
    const char *rule;    /* that passed it over: "plainness", "placement.gpu_fill"; "setting": the
                            run has the default of a key */
    double seconds;      /* of one simulated iteration */
    double share;        /* of an iteration of the plan that it would save */
    const char *needs;   /* "9 blocks offloaded"; of a setting KEY=VALUE with spaces between */
    stw_verdict verdict; /* of a setting */
    const char *asks;    /* of a setting: what else has to change; NULL: nothing */
} stw_alternative;
#define STW_MAX_ALTERNATIVES 8

/** A layout of ranks that was planned. */
typedef struct stw_layout_row {
    const char *settings; /* KEY=VALUE with spaces between; "": the run's own layout */
    stw_verdict verdict;
    double iteration_s; /* simulated; NaN: it does not fit */
    uint64_t gpu_peak_bytes, host_peak_bytes;
} stw_layout_row;
#define STW_MAX_LAYOUT_ROWS 8

/** How the layout of a plan was found where keys of the run are `auto`. */
typedef struct stw_layout_search {
    const char *searched; /* keys with spaces between; NULL: nothing was searched */
    uint64_t admitted;    /* layouts that the engine admits */
    uint64_t planned;     /* with the integer program and the simulator */
    uint64_t compared;    /* of these, once more with all that the planner compares */
    uint64_t refused;     /* by the checks of a whole run */
    uint64_t too_slow;    /* by bounds, slower than the best one */
    uint64_t too_big;     /* whatever is decided, over a limit by far */
    uint64_t unfit;       /* of those that were planned */
    uint64_t left;        /* not looked at: the search went on around the best ones */
    uint64_t late;        /* not looked at: the time was over */
    double seconds;
    uint32_t n_rows;
    stw_layout_row rows[STW_MAX_LAYOUT_ROWS]; /* the chosen one, runner-ups, then the run's own
                                                 if it was planned and is none of these */
} stw_layout_search;

typedef struct stw_plan {
    stw_pool *pool;
    const char *file; /* that it was read from, for errors; NULL: none */
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
    stw_peaks *shown;            /* [job->n_kinds] peaks with all that the engine's allocator
                                    reserves, as files and reports show them */
    stw_peaks *node_peaks;       /* [job->n_node_kinds], tier host; per node */
    stw_replayed *replayed;      /* [job->n_kinds] what torch reserves; all 0 where the engine has
                                    one arena */
    double time_s[STW_N_PHASES]; /* one pass, simulated; NaN: no such movement, or unknown. Of a
                                    checkpoint: by which it stops training */
    double save_s; /* from the begin of a checkpoint to its last file, simulated; NaN: as above */
    double objective_s; /* the planner's estimate of an iteration by its rows, and
                           1/STW_LOAD_SPREAD of the load; reports show it without that */
    bool walk_alone;    /* derive without a replay: the question is whether bytes are over a limit.
                           Then `shown` is not made, and nothing is at risk by what is reserved */
    uint32_t n_prices, n_bindings, n_fixes;
    stw_price *prices;
    stw_binding *bindings;
    stw_fix *fixes;
    const char *tried; /* keys of the changes that were tried where nothing fits; NULL: none */
    uint32_t n_alternatives;
    stw_alternative *alternatives;
    stw_layout_search layout_search;
    const char *turned; /* KEY=VALUE with spaces between: keys of the run that were `auto` and that
                           the planner set; NULL: none */
    double unturned_s;  /* an iteration of the plan without them */
} stw_plan;

#define STW_LOAD_SPREAD 1000.0

/** Plans that take at most this share longer than the fastest known one may be preferred to it. So
 * much may more of a resource cost, where it makes a plainer plan possible. */
#define STW_PLAIN_SLACK 1e-3

/** What layouts and prices gain counts from this share of an iteration on. */
#define STW_LEAST_GAIN 5e-3

/** A plan without decisions: takes over `model` and a copy of the specs (also on failure), makes
 * the job. */
STW_MUST_USE stw_status stw_plan_new(stw_model *model, const stw_cluster *cluster,
                                     stw_run_spec *run, stw_plan **out, stw_error *err);
/** The same with a model that other plans share, in other threads too; it must outlive the plan. */
STW_MUST_USE stw_status stw_plan_new_sharing(const stw_model *model, const stw_cluster *cluster,
                                             stw_run_spec *run, stw_plan **out, stw_error *err);
void stw_plan_free(stw_plan *plan);
/** Derive layouts, programs and peaks from plan->decisions (again, if there were any). */
STW_MUST_USE stw_status stw_plan_derive(stw_plan *plan, stw_error *err);
/** The same with programs of memory operations alone: for plans that do not fit, which nobody times
 * or executes. The walk and the checks of a plan take them; stw_plan_derive makes them whole. */
STW_MUST_USE stw_status stw_plan_derive_bytes(stw_plan *plan, stw_error *err);
/** Make plan->replayed and plan->shown: what torch's allocator reserves. The two above do it,
 * unless plan->walk_alone. */
STW_MUST_USE stw_status stw_plan_replay(stw_plan *plan, stw_error *err);
/** The same on GPUs without a limit. @param over_bytes out, by which what is reserved exceeds the
 * GPU's; where it does not, no allocation is tried twice */
STW_MUST_USE stw_status stw_plan_replay_freely(stw_plan *plan, uint64_t *over_bytes,
                                               stw_error *err);
/** Make plan->shown of one kind from plan->peaks (again). */
void stw_plan_show_peaks(stw_plan *plan, uint32_t kind);
/** Peaks of the trainer alone, as runs measure them: those of the plan where it has no other role.
 * @param pool of what is made @param ranks out, [n_kinds] as plan->shown @param nodes out,
 * [n_node_kinds] */
STW_MUST_USE stw_status stw_plan_trainer_peaks(const stw_plan *plan, stw_pool *pool,
                                               const stw_peaks **ranks, const stw_peaks **nodes,
                                               stw_error *err);
/** Is a fix a remedy, or does it make the sequences so short (a cut by more than 8) that it is
 * another run? */
bool stw_plan_fix_is_remedy(const stw_plan *plan, const stw_fix *fix);
/** What to say of a streamed optimizer step that the planner chose for a framework's optimizers,
 * which have none; NULL: nothing. */
const char *stw_plan_streamed_note(const stw_plan *plan);
/** Elements of the state that runs verify (params, moments, master), on all ranks. */
uint64_t stw_plan_state_elements(const stw_plan *plan);
/** Append an alternative; `needs` is copied, `rule` is not. @param plan_seconds of the plan */
STW_MUST_USE stw_status stw_plan_add_alternative(stw_plan *plan, const char *rule, double seconds,
                                                 double plan_seconds, const char *needs,
                                                 stw_error *err);
/** The same of a setting; its strings but the rule are copied, its share is made. */
STW_MUST_USE stw_status stw_plan_add_turn(stw_plan *plan, const stw_alternative *other,
                                          double plan_seconds, stw_error *err);
/** Give a plan another run: its job is made anew, what was derived goes. @param run shares the pool
 * of the plan's; its values are taken over */
STW_MUST_USE stw_status stw_plan_rerun(stw_plan *plan, const stw_run_spec *run, stw_error *err);
/** Bytes that a rank may use on its GPU, a node on its host, page-locked, on NVMe. */
uint64_t stw_plan_gpu_capacity(const stw_plan *plan);
uint64_t stw_plan_host_capacity(const stw_plan *plan);

/** Bytes by which a phase's peak exceeds a limit; 0 if it does not. @param resource "gpu memory",
 * "host memory", "page-locked memory" or "nvme" */
uint64_t stw_plan_over_bytes(const stw_plan *plan, const char *resource, stw_phase phase);
/** How often an iteration goes through a phase: forward and backward once per micro batch; a load
 * or a first step not at all. */
uint64_t stw_plan_passes(const stw_plan *plan, stw_phase phase);
/** Is the solver's bound one of simulated seconds? */
bool stw_plan_is_proven(const stw_plan *plan);
/** An objective of the planner without its share of the load, to be compared with seconds of an
 * iteration. The load is the simulated one. */
double stw_plan_estimate_s(const stw_plan *plan, double objective_s);
/** Seconds of an iteration after the first: the sum of time_s over its passes. NaN where the time
 * of one of its phases is unknown, or forward and backward are not in the program. */
double stw_plan_iteration_s(const stw_plan *plan);
/** Is a movement Stowage's own, and does this build execute it: in a run, in a framework's process,
 * or as the checkpoints of `run --checkpoint`? */
bool stw_plan_executes(const stw_plan *plan, const stw_movement *movement);
/** Is the trainer's movement of a phase Stowage's own, and no executor of this build issues it? Its
 * seconds are those of a plan alone. */
bool stw_plan_is_unexecuted(const stw_plan *plan, stw_phase phase);
/** Seconds of a later step that go by beside the next forward (optimizer.overlap): time_s has what
 * is left of it, the first step's seconds are all of them. 0: none. */
double stw_plan_hidden_s(const stw_plan *plan);
/** Tokens that all ranks together train in one iteration. */
double stw_plan_iteration_tokens(const stw_plan *plan);

/** The invariants of a plan: those of every layout and program (plan/program/check.h); sums of
 * decisions equal the job's counts; peaks equal the walk where `check_peaks`. BUG or BAD_INPUT
 * names the first violation. */
STW_MUST_USE stw_status stw_plan_check(const stw_plan *plan, bool check_peaks, stw_error *err);

/** Write / read stowage.plan/1. Reading derives layouts and peaks again and judges them: a region,
 * hash, peak or verdict that differs, an unknown major, a model digest that differs from its
 * tensors are BAD_INPUT, and so is any member whose value differs from its checksum (inputs and the
 * planner's evidence cannot be derived again). Seconds are kept as stated; stw_sim_check compares
 * them. */
STW_MUST_USE stw_status stw_plan_to_json(const stw_plan *plan, stw_text *out, stw_error *err);
STW_MUST_USE stw_status stw_plan_write(const stw_plan *plan, const char *path, stw_error *err);
STW_MUST_USE stw_status stw_plan_read(const char *path, stw_plan **out, stw_error *err);
STW_MUST_USE stw_status stw_plan_parse(const char *file, const char *text, size_t length,
                                       stw_plan **out, stw_error *err);
/** The same without the checksums: for tests and fuzz targets, which change texts. */
STW_MUST_USE stw_status stw_plan_parse_edited(const char *file, const char *text, size_t length,
                                              stw_plan **out, stw_error *err);

/** Append what decides what ranks do, as members of the open object: model, run, cluster,
 * decisions, hashes of the layouts and programs. Evidence and predicted figures are left out. */
void stw_plan_write_terms(const stw_plan *plan, stw_json *json);
typedef uint64_t stw_movement_hash(const stw_program *program, const stw_movement *movement);
/** Append an array with the hash of each movement; a phase may have several. */
void stw_plan_write_movement_hashes(const stw_program *program, const char *key,
                                    stw_movement_hash *hash, stw_json *json);

const char *stw_outcome_name(stw_outcome outcome);
const char *stw_verdict_name(stw_verdict verdict);

/** The host ledger of a kind of node in a phase (plan/program/ledger.h). Its lines lie in the
 * plan's pool. */
STW_MUST_USE stw_status stw_plan_ledger(const stw_plan *plan, uint32_t node_kind, stw_phase phase,
                                        stw_ledger *out, stw_error *err);

#endif

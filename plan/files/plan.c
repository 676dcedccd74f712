/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/units.h"
#include "plan/job/effect.h"
#include "plan/job/sizes.h"
#include "plan/program/check.h"

/* The job of plan->run. */
static stw_status make_job(stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_engine *engine = stw_engine_of(&plan->run);
    if (stw_run_spec_is_open(&plan->run))
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, "parallel",
                         "found auto, expected values: only a planner resolves it"));
    if (engine == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, "engine", "engine %s is not built in",
                         stw_engine_name(plan->run.engine)));
    if (plan->run.batch.seq_len == 0) plan->run.batch.seq_len = stw_default_seq_len(plan->model);
    STW_TRY(stw_check_model_sizes(plan->model, &plan->cluster, err));
    STW_TRY(stw_job_new(plan->model, &plan->cluster, &plan->run, engine, &plan->job, err));
    STW_TRY(stw_check_batch_sizes(plan->job, err));
    STW_TRY(stw_job_check_effect(plan->job, "run", err));
    if (plan->job->n_units == 0)
        status =
            stw_fail(err, STW_STATUS_BAD_INPUT, plan->model->source, "the model has no parameters");
out:
    return status;
}

static stw_status make(stw_model *model, bool borrows, const stw_cluster *cluster,
                       stw_run_spec *run, stw_plan **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    stw_pool *pool = stw_pool_new();
    if (pool != NULL) plan = stw_pool_alloc(pool, sizeof *plan);
    if (plan == NULL) {
        stw_pool_free(pool);
        if (!borrows) stw_model_free(model);
        stw_run_spec_free(run);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "plan", "out of memory");
    }
    plan->pool = pool;
    plan->model = model;
    plan->borrows_model = borrows;
    plan->cluster = *cluster;
    plan->run = *run; /* takes over its pool */
    memset(run, 0, sizeof *run);
    for (int p = 0; p < STW_N_PHASES; p++) plan->time_s[p] = NAN;
    plan->save_s = NAN;
    plan->objective_s = plan->solver.objective = plan->solver.bound = NAN;
    plan->solver.gap = NAN;
    plan->solver.name = plan->solver.version = "";
    STW_TRY(make_job(plan, err));
out:
    if (status == STW_STATUS_OK)
        *out = plan;
    else
        stw_plan_free(plan);
    return status;
}

stw_status stw_plan_new(stw_model *model, const stw_cluster *cluster, stw_run_spec *run,
                        stw_plan **out, stw_error *err) {
    return make(model, false, cluster, run, out, err);
}

stw_status stw_plan_new_sharing(const stw_model *model, const stw_cluster *cluster,
                                stw_run_spec *run, stw_plan **out, stw_error *err) {
    return make((stw_model *)(uintptr_t)model, true, cluster, run, out, err);
}

static void drop_derived(stw_plan *plan) {
    for (uint32_t k = 0; plan->job != NULL && k < plan->job->n_kinds; k++) {
        if (plan->layouts != NULL) stw_layout_free(plan->layouts[k]);
        if (plan->programs != NULL) stw_program_free(plan->programs[k]);
    }
    plan->layouts = NULL;
    plan->programs = NULL;
}

stw_status stw_plan_rerun(stw_plan *plan, const stw_run_spec *run, stw_error *err) {
    drop_derived(plan);
    stw_job_free(plan->job);
    plan->job = NULL;
    plan->run = *run;
    return make_job(plan, err);
}

void stw_plan_free(stw_plan *plan) {
    if (plan == NULL) return;
    drop_derived(plan);
    stw_job_free(plan->job);
    if (!plan->borrows_model) stw_model_free(plan->model);
    stw_run_spec_free(&plan->run);
    stw_pool_free(plan->pool);
}

/* Host bytes of a node: its ranks peak together, each at its own worst moment of the phase. */
static void sum_nodes(const stw_job *job, const stw_peaks *ranks, stw_peaks *nodes) {
    for (uint32_t n = 0; n < job->n_node_kinds; n++) {
        stw_peaks *node = &nodes[n];
        memset(node, 0, sizeof *node);
        for (uint32_t k = 0; k < job->n_kinds; k++) {
            uint64_t n_ranks = job->node_kinds[n].kind_ranks[k];
            for (int p = 0; p < STW_N_PHASES && n_ranks > 0; p++) {
                node->has[p] |= ranks[k].has[p];
                for (int t = STW_TIER_HOST; t < STW_N_TIERS; t++) {
                    const stw_peak *from = &ranks[k].phase[p][t];
                    stw_peak *to = &node->phase[p][t];
                    to->total = stw_plus(to->total, stw_times(n_ranks, from->total));
                    to->page_locked =
                        stw_plus(to->page_locked, stw_times(n_ranks, from->page_locked));
                    for (int c = 0; c < STW_N_COMPONENTS; c++)
                        to->components[c] =
                            stw_plus(to->components[c], stw_times(n_ranks, from->components[c]));
                }
            }
        }
    }
}

/* What the trainer's allocator may take of the device: all but what lies outside it and what other
 * roles hold while the trainer moves, in the phases in which inference engines sleep. */
static uint64_t allocator_bytes(const stw_plan *plan, uint32_t k) {
    uint64_t others = 0;
    stw_peaks moving, own;
    stw_program_walk_while(plan->programs[k], 0, &moving);
    stw_program_walk_alone(plan->programs[k], 0, &own);
    for (int p = 0; p < STW_N_PHASES; p++) {
        if (p == STW_PHASE_ROLLOUT || p == STW_PHASE_WEIGHT_SYNC || !plan->peaks[k].has[p])
            continue;
        if (p == STW_PHASE_LOAD && plan->job->n_roles > 1) continue;
        others = stw_max_u64(others, moving.phase[p][STW_TIER_GPU].total -
                                         stw_peak_reserved(&own.phase[p][STW_TIER_GPU]));
    }
    const uint64_t capacity = stw_plan_gpu_capacity(plan);
    return capacity > others ? capacity - others : 1;
}

/* What torch's allocator reserves on a kind of rank; nothing for an engine with an arena.
 * @param device_bytes for its segments; 0: no limit */
static stw_status replay(stw_plan *plan, uint32_t k, uint64_t device_bytes, stw_error *err) {
    const stw_allocator_settings settings = {
        .device_bytes = device_bytes,
        .expandable_segments = plan->run.allocator.expandable_segments,
        .max_split_bytes = plan->run.allocator.max_split_bytes,
        .roundup_power2_divisions = (uint32_t)plan->run.allocator.roundup_power2_divisions};
    stw_program *program = NULL;
    memset(&plan->replayed[k], 0, sizeof plan->replayed[k]);
    if (plan->job->engine->spec.own_process) return STW_STATUS_OK;
    stw_status status =
        stw_program_new_tensors(plan->job, &plan->decisions, plan->layouts[k], &program, err);
    if (status == STW_STATUS_OK)
        status = stw_program_replay(plan->job, plan->layouts[k], program, &settings,
                                    &plan->replayed[k], err);
    stw_program_free(program);
    return status;
}

static void set_slack(stw_peak *peak, uint64_t slack) {
    peak->total += slack - peak->components[STW_COMPONENT_SLACK];
    peak->components[STW_COMPONENT_SLACK] = slack;
}

/* The walks of a program: of all roles; of all while the trainer moves; of the trainer alone. */
typedef struct walks {
    const stw_peaks *all, *moving, *own;
} walks;

/* With what the trainer's allocator holds in reserve: while the trainer moves, all that it takes at
 * its peak; while others do, what is left of it in the cache. */
static void show(const walks *w, const stw_replayed *replayed, stw_peaks *shown) {
    *shown = *w->all;
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_replayed_phase *phase = &replayed->most[p];
        if (!phase->has || !shown->has[p] || !w->own->has[p]) continue;
        const uint64_t allocated = stw_peak_allocated(&w->own->phase[p][STW_TIER_GPU]);
        stw_peak moving = w->moving->phase[p][STW_TIER_GPU], *peak = &shown->phase[p][STW_TIER_GPU];
        set_slack(&moving,
                  phase->reserved_bytes > allocated ? phase->reserved_bytes - allocated : 0);
        if (peak->total > w->moving->phase[p][STW_TIER_GPU].total)
            set_slack(peak, phase->cached_bytes);
        else
            *peak = moving;
        if (moving.total > peak->total) *peak = moving;
    }
}

void stw_plan_show_peaks(stw_plan *plan, uint32_t kind) {
    stw_peaks moving, own;
    const walks w = {&plan->peaks[kind], &moving, &own};
    stw_program_walk_while(plan->programs[kind], 0, &moving);
    stw_program_walk_alone(plan->programs[kind], 0, &own);
    show(&w, &plan->replayed[kind], &plan->shown[kind]);
}

stw_status stw_plan_trainer_peaks(const stw_plan *plan, stw_pool *pool, const stw_peaks **ranks,
                                  const stw_peaks **nodes, stw_error *err) {
    const stw_job *job = plan->job;
    *ranks = plan->shown;
    *nodes = plan->node_peaks;
    if (job->n_roles <= 1) return STW_STATUS_OK;
    stw_peaks *of_ranks = stw_pool_array(pool, job->n_kinds, sizeof *of_ranks);
    stw_peaks *of_nodes = stw_pool_array(pool, job->n_node_kinds, sizeof *of_nodes);
    if (of_ranks == NULL || of_nodes == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "plan", "out of memory");
    for (uint32_t k = 0; k < job->n_kinds; k++)
        stw_program_walk_alone(plan->programs[k], 0, &of_ranks[k]);
    sum_nodes(job, of_ranks, of_nodes);
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const stw_peaks walked = of_ranks[k];
        const walks w = {&walked, &walked, &walked};
        show(&w, &plan->replayed[k], &of_ranks[k]);
    }
    *ranks = of_ranks;
    *nodes = of_nodes;
    return STW_STATUS_OK;
}

/* Cuts by more than this are no remedy. */
static const uint64_t MOST_CUT = 8;

bool stw_plan_fix_is_remedy(const stw_plan *plan, const stw_fix *fix) {
    for (uint32_t i = 0; i < fix->n_changes; i++)
        if (strcmp(fix->changes[i].set, "batch.seq_len") == 0 &&
            strtoull(fix->changes[i].value, NULL, 10) < plan->run.batch.seq_len / MOST_CUT)
            return false;
    return true;
}

const char *stw_plan_streamed_note(const stw_plan *plan) {
    if (plan->run.optimizer.implementation != STW_OPTIMIZER_AUTO ||
        plan->verdict == STW_VERDICT_DOES_NOT_FIT)
        return NULL;
    for (uint32_t i = 0; i < plan->decisions.n_state; i++)
        if (plan->decisions.state[i].units > 0 &&
            plan->decisions.state[i].place.update == STW_UPDATE_STREAM)
            return plan->job->engine->streamed_note;
    return NULL;
}

stw_status stw_plan_replay(stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        STW_TRY(replay(plan, k, allocator_bytes(plan, k), err));
        stw_plan_show_peaks(plan, k);
    }
out:
    return status;
}

stw_status stw_plan_replay_freely(stw_plan *plan, uint64_t *over_bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *over_bytes = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        const uint64_t room = allocator_bytes(plan, k);
        STW_TRY(replay(plan, k, 0, err));
        stw_plan_show_peaks(plan, k);
        for (int p = 0; p < STW_N_PHASES; p++) {
            const uint64_t reserved = plan->replayed[k].most[p].reserved_bytes;
            if (reserved > room) *over_bytes = stw_max_u64(*over_bytes, reserved - room);
        }
    }
out:
    return status;
}

static stw_status derive(stw_plan *plan, uint32_t phases, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = plan->job->n_kinds;
    drop_derived(plan);
    plan->layouts = stw_pool_array(plan->pool, n, sizeof *plan->layouts);
    plan->programs = stw_pool_array(plan->pool, n, sizeof *plan->programs);
    if (plan->peaks == NULL) plan->peaks = stw_pool_array(plan->pool, n, sizeof *plan->peaks);
    if (plan->shown == NULL) plan->shown = stw_pool_array(plan->pool, n, sizeof *plan->shown);
    if (plan->replayed == NULL)
        plan->replayed = stw_pool_array(plan->pool, n, sizeof *plan->replayed);
    if (plan->node_peaks == NULL)
        plan->node_peaks =
            stw_pool_array(plan->pool, plan->job->n_node_kinds, sizeof *plan->node_peaks);
    if (plan->layouts == NULL || plan->programs == NULL || plan->peaks == NULL ||
        plan->replayed == NULL || plan->shown == NULL || plan->node_peaks == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "plan", "out of memory");
    for (uint32_t k = 0; k < n; k++) {
        STW_TRY(stw_layout_new(plan->job, &plan->decisions, k, &plan->layouts[k], err));
        STW_TRY(stw_program_new_phases(plan->job, &plan->decisions, plan->layouts[k], phases,
                                       &plan->programs[k], err));
        stw_program_walk(plan->programs[k], &plan->peaks[k]);
        memset(&plan->replayed[k], 0, sizeof plan->replayed[k]);
    }
    sum_nodes(plan->job, plan->peaks, plan->node_peaks);
    if (!plan->walk_alone) STW_TRY(stw_plan_replay(plan, err));
out:
    return status;
}

stw_status stw_plan_derive(stw_plan *plan, stw_error *err) { return derive(plan, 0, err); }

stw_status stw_plan_derive_bytes(stw_plan *plan, stw_error *err) {
    return derive(plan, STW_NO_PHASES, err);
}

uint64_t stw_plan_state_elements(const stw_plan *plan) {
    uint64_t elements = 0;
    for (uint32_t r = 0; r < plan->job->world; r++) {
        const stw_layout *layout = plan->layouts[stw_job_kind_of(plan->job, r)];
        for (uint32_t i = 0; i < layout->n_regions; i++)
            if (layout->regions[i].component != STW_COMPONENT_GRADS &&
                layout->regions[i].component < STW_N_STATE)
                elements = stw_plus(elements, layout->regions[i].params);
    }
    return elements;
}

stw_status stw_plan_add_turn(stw_plan *plan, const stw_alternative *other, double plan_seconds,
                             stw_error *err) {
    if (plan->n_alternatives == STW_MAX_ALTERNATIVES) return STW_STATUS_OK;
    if (!stw_cluster_has_gpus(&plan->cluster)) return STW_STATUS_OK; /* nothing has seconds */
    if (plan->n_alternatives == 0)
        plan->alternatives =
            stw_pool_array(plan->pool, STW_MAX_ALTERNATIVES, sizeof *plan->alternatives);
    stw_alternative copy = *other;
    copy.share = (plan_seconds - other->seconds) / plan_seconds;
    copy.needs = stw_pool_string(plan->pool, other->needs);
    if (other->asks != NULL) copy.asks = stw_pool_string(plan->pool, other->asks);
    if (plan->alternatives == NULL || copy.needs == NULL ||
        (other->asks != NULL && copy.asks == NULL))
        return stw_fail(err, STW_STATUS_NO_MEMORY, "plan", "out of memory");
    plan->alternatives[plan->n_alternatives++] = copy;
    return STW_STATUS_OK;
}

stw_status stw_plan_add_alternative(stw_plan *plan, const char *rule, double seconds,
                                    double plan_seconds, const char *needs, stw_error *err) {
    const stw_alternative other = {.rule = rule, .seconds = seconds, .needs = needs};
    return stw_plan_add_turn(plan, &other, plan_seconds, err);
}

uint64_t stw_plan_gpu_capacity(const stw_plan *plan) { return plan->cluster.gpu.memory_bytes; }

uint64_t stw_plan_host_capacity(const stw_plan *plan) {
    return stw_cluster_host_capacity(&plan->cluster);
}

static stw_status check_peaks_equal(const stw_plan *plan, uint32_t kind, stw_error *err) {
    stw_peaks walked;
    stw_program_walk(plan->programs[kind], &walked);
    for (int p = 0; p < STW_N_PHASES; p++)
        for (int t = 0; t < STW_N_TIERS; t++)
            if (walked.phase[p][t].total != plan->peaks[kind].phase[p][t].total ||
                walked.phase[p][t].page_locked != plan->peaks[kind].phase[p][t].page_locked)
                return stw_fail(err, STW_STATUS_BUG, stw_phase_name((stw_phase)p),
                                "the plan states a peak of %llu B in %s, its program gives %llu B",
                                (unsigned long long)plan->peaks[kind].phase[p][t].total,
                                stw_tier_name((stw_tier)t),
                                (unsigned long long)walked.phase[p][t].total);
    return STW_STATUS_OK;
}

stw_status stw_plan_check(const stw_plan *plan, bool check_peaks, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_decisions_check(plan->job, &plan->decisions, err));
    STW_TRY(stw_decisions_check_shares(plan->job, &plan->decisions, err));
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        STW_TRY(stw_program_check(plan->job, plan->layouts[k], plan->programs[k], err));
        if (check_peaks) STW_TRY(check_peaks_equal(plan, k, err));
    }
out:
    return status;
}

uint64_t stw_plan_passes(const stw_plan *plan, stw_phase phase) {
    const stw_program *program = plan->programs != NULL ? plan->programs[plan->job->largest] : NULL;
    const stw_movement *m = program != NULL ? stw_program_movement(program, phase) : NULL;
    if (m == NULL || m->repeat == STW_REPEAT_ONCE || m->repeat == STW_REPEAT_FIRST ||
        m->repeat == STW_REPEAT_AT_CHECKPOINTS)
        return 0;
    return stw_job_passes(plan->job, phase);
}

bool stw_plan_is_proven(const stw_plan *plan) {
    for (uint32_t i = 0; i < plan->solver.n_stages; i++)
        if (strcmp(plan->solver.stages[i].name, STW_STAGE_PROOF) == 0) return true;
    return false;
}

double stw_plan_estimate_s(const stw_plan *plan, double objective_s) {
    double load_s = plan->time_s[STW_PHASE_LOAD];
    return isfinite(load_s) ? objective_s - load_s / STW_LOAD_SPREAD : objective_s;
}

bool stw_plan_executes(const stw_plan *plan, const stw_movement *movement) {
    const bool saves =
        movement->phase == STW_PHASE_CHECKPOINT && stw_run_spec_engine(&plan->run)->own_process;
    return movement->by_stowage && (movement->inside || movement->executable || saves);
}

bool stw_plan_is_unexecuted(const stw_plan *plan, stw_phase phase) {
    for (uint32_t k = 0; plan->programs != NULL && k < plan->job->n_kinds; k++) {
        const stw_movement *m =
            plan->programs[k] != NULL ? stw_program_movement(plan->programs[k], phase) : NULL;
        if (m != NULL && m->by_stowage && !stw_plan_executes(plan, m)) return true;
    }
    return false;
}

double stw_plan_iteration_s(const stw_plan *plan) {
    double seconds = 0.0;
    if (stw_plan_passes(plan, STW_PHASE_FORWARD_BACKWARD) == 0) return (double)NAN;
    for (int p = 0; p < STW_N_PHASES; p++) {
        uint64_t passes = stw_plan_passes(plan, (stw_phase)p);
        if (passes > 0) seconds += (double)passes * plan->time_s[p];
    }
    if (plan->run.checkpoint.every > 0 && isfinite(plan->time_s[STW_PHASE_CHECKPOINT]))
        seconds += plan->time_s[STW_PHASE_CHECKPOINT] / (double)plan->run.checkpoint.every;
    return seconds;
}

double stw_plan_hidden_s(const stw_plan *plan) {
    const double all_s = plan->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP];
    const double left_s = plan->time_s[STW_PHASE_OPTIMIZER_STEP];
    return stw_job_hides_step(plan->job) && all_s > left_s ? all_s - left_s : 0;
}

double stw_plan_iteration_tokens(const stw_plan *plan) {
    return (double)stw_job_iteration_tokens(plan->job);
}

const char *stw_outcome_name(stw_outcome outcome) {
    static const char *const names[] = {"optimal", "feasible", "infeasible", "limit"};
    return (unsigned)outcome < 4 ? names[outcome] : "?";
}

const char *stw_verdict_name(stw_verdict verdict) {
    static const char *const names[] = {"fits", "at_risk", "does_not_fit", "unknown"};
    return (unsigned)verdict < STW_N_VERDICTS ? names[verdict] : "?";
}

stw_status stw_plan_ledger(const stw_plan *plan, uint32_t node_kind, stw_phase phase,
                           stw_ledger *out, stw_error *err) {
    stw_status status = stw_ledger_of_node(plan->job, (const stw_program *const *)plan->programs,
                                           node_kind, phase, plan->pool, out, err);
    if (status != STW_STATUS_OK) return status;
    return stw_ledger_add_rest(&plan->node_peaks[node_kind].phase[phase][STW_TIER_HOST], plan->pool,
                               out, err);
}

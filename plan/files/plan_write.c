/* SPDX-License-Identifier: Apache-2.0 */
/* Writes stowage.plan/1. Some members repeat others (sums, maxima, regions) for people and other
 * programs. The reader checks that they agree. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/file.h"
#include "plan/files/checksums.h"
#include "plan/files/file_parts.h"
#include "plan/files/model_json.h"
#include "plan/files/plan_file.h"
#include "plan/files/verdict.h"
#include "plan/program/collectives.h"

/* ---- evidence of the planner ---- */

/* Its seconds are the planner's estimates. Those of time_s are simulated. */
static void write_solver(const stw_plan *plan, stw_json *json) {
    const stw_solver_report *solver = &plan->solver;
    stw_json_begin_object(json, "solver");
    stw_json_string(json, "name", solver->name);
    stw_json_string(json, "version", solver->version);
    stw_json_double(json, "seconds", solver->seconds);
    stw_json_u64(json, "rows", solver->rows);
    stw_json_u64(json, "columns", solver->columns);
    stw_json_double(json, "objective", solver->objective);
    stw_json_double(json, "bound", solver->bound);
    stw_json_double(json, "gap", solver->gap);
    stw_json_u64(json, "simulated_plans", solver->simulated);
    stw_json_double(json, "plan_objective", plan->objective_s);
    stw_json_begin_array(json, "stages");
    for (uint32_t i = 0; i < solver->n_stages; i++) {
        const stw_solver_stage *stage = &solver->stages[i];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "name", stage->name);
        stw_json_double(json, "objective", stage->objective);
        stw_json_double(json, "bound", stage->bound);
        stw_json_double(json, "gap", stage->gap);
        stw_json_double(json, "seconds", stage->seconds);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
}

static void write_alternatives(const stw_plan *plan, stw_json *json) {
    stw_json_begin_array(json, "alternatives");
    for (uint32_t i = 0; i < plan->n_alternatives; i++) {
        const stw_alternative *other = &plan->alternatives[i];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "rule", other->rule);
        stw_json_double(json, "seconds", other->seconds);
        stw_json_double(json, "share", other->share);
        stw_json_string(json, "needs", other->needs);
        if (strcmp(other->rule, "setting") == 0) {
            stw_json_string(json, "verdict", stw_verdict_name(other->verdict));
            stw_json_string(json, "asks", other->asks);
        }
        stw_json_end(json);
    }
    stw_json_end(json);
}

/* Keys that the planner set; no member where there are none. */
static void write_turned(const stw_plan *plan, stw_json *json) {
    if (plan->turned == NULL) return;
    stw_json_begin_object(json, "turned");
    stw_json_string(json, "settings", plan->turned);
    stw_json_double(json, "seconds_without", plan->unturned_s);
    stw_json_end(json);
}

static void write_prices(const stw_plan *plan, stw_json *json) {
    stw_json_begin_array(json, "prices");
    for (uint32_t i = 0; i < plan->n_prices; i++) {
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "resource", plan->prices[i].resource);
        stw_json_string(json, "phase", plan->prices[i].phase);
        stw_json_double(json, "amount", plan->prices[i].amount);
        stw_json_string(json, "unit", plan->prices[i].unit);
        stw_json_double(json, "seconds", plan->prices[i].seconds);
        stw_json_end(json);
    }
    stw_json_end(json);
}

uint64_t stw_plan_binding_over(const stw_plan *plan, const stw_binding *binding) {
    stw_phase phase;
    if (binding->phase == NULL || !stw_phase_parse(binding->phase, &phase)) return 0;
    return stw_plan_over_bytes(plan, binding->resource, phase);
}

static void write_changes(const stw_fix_change *changes, uint32_t n, stw_json *json) {
    stw_json_begin_array(json, "changes");
    for (uint32_t i = 0; i < n; i++) {
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "set", changes[i].set);
        stw_json_string(json, "value", changes[i].value);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void write_infeasible(const stw_plan *plan, stw_json *json) {
    if (plan->n_bindings == 0 && plan->n_fixes == 0) {
        stw_json_null(json, "infeasible");
        return;
    }
    stw_json_begin_object(json, "infeasible");
    stw_json_begin_array(json, "binding");
    for (uint32_t i = 0; i < plan->n_bindings; i++) {
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "resource", plan->bindings[i].resource);
        stw_json_string(json, "phase", plan->bindings[i].phase);
        stw_json_u64(json, "over_bytes", stw_plan_binding_over(plan, &plan->bindings[i]));
        stw_json_u64(json, "enough_bytes", plan->bindings[i].enough_bytes);
        write_changes(plan->bindings[i].changes, plan->bindings[i].n_changes, json);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_string(json, "tried", plan->tried);
    stw_json_begin_array(json, "fixes");
    for (uint32_t i = 0; i < plan->n_fixes; i++) {
        const stw_fix *fix = &plan->fixes[i];
        stw_json_begin_object(json, NULL);
        write_changes(fix->changes, fix->n_changes, json);
        stw_json_string(json, "why", fix->why);
        stw_json_bool(json, "at_risk", fix->at_risk);
        stw_json_double(json, "iteration_s", fix->iteration_s > 0 ? fix->iteration_s : NAN);
        stw_json_double(json, "tokens_per_s", fix->tokens_per_s > 0 ? fix->tokens_per_s : NAN);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
}

/* ---- decisions ---- */

const char *stw_plan_state_group(const stw_plan *plan) {
    return stw_run_spec_engine(&plan->run)->own_step ? "flat" : "all";
}

uint64_t stw_plan_decision_count(const stw_plan *plan, uint32_t i) {
    uint64_t first, params;
    stw_decision_range(plan->job, &plan->decisions, plan->job->largest, i, &first, &params);
    return params;
}

static void write_state_row(const stw_plan *plan, uint32_t i, stw_json *json) {
    const stw_state_decision *decision = &plan->decisions.state[i];
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "group", stw_plan_state_group(plan));
    stw_json_u64(json, "count", stw_plan_decision_count(plan, i));
    for (int c = 0; c < STW_N_STATE; c++) {
        bool has = stw_job_element_bytes(plan->job, (stw_component)c) > 0;
        stw_json_string(json, stw_component_name((stw_component)c),
                        has ? stw_tier_name(stw_place_tier(&decision->place, (stw_component)c))
                            : NULL);
    }
    stw_json_string(json, "update", stw_update_name(decision->place.update));
    stw_json_null(json, "activations");
    stw_json_u64(json, "units", decision->units);
    stw_json_end(json);
}

static void write_block_row(const stw_plan *plan, uint32_t i, stw_json *json) {
    const stw_block_decision *decision = &plan->decisions.blocks[i];
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "group", plan->job->model->groups[decision->group].name);
    stw_json_u64(json, "count", decision->count);
    for (int c = 0; c < STW_N_STATE; c++) stw_json_null(json, stw_component_name((stw_component)c));
    stw_json_null(json, "update");
    stw_json_string(json, "activations", stw_act_name(decision->act));
    stw_json_null(json, "units");
    stw_json_end(json);
}

uint32_t stw_plan_prefetch_live(const stw_plan *plan) {
    uint32_t depth = plan->decisions.prefetch.depth;
    return plan->decisions.prefetch.by_group && depth < UINT32_MAX ? depth + 1 : depth;
}

bool stw_plan_streams(const stw_plan *plan) {
    for (uint32_t i = 0; i < plan->decisions.n_state; i++)
        if (plan->decisions.state[i].units > 0 &&
            stw_place_slot_element_bytes(plan->job, &plan->decisions.state[i].place) > 0)
            return true;
    return false;
}

static void write_prefetch(const stw_plan *plan, stw_json *json) {
    const stw_decisions *d = &plan->decisions;
    stw_json_begin_object(json, "prefetch");
    stw_json_string(json, "unit", d->prefetch.by_group ? "group" : "bucket");
    if (stw_plan_streams(plan)) {
        stw_json_u64(json, "live", stw_plan_prefetch_live(plan));
        stw_json_u64(json, "depth", d->prefetch.depth);
        stw_json_u64(json, "bucket_bytes", d->prefetch.bucket_bytes);
    } else {
        stw_json_null(json, "live");
        stw_json_null(json, "depth");
        stw_json_null(json, "bucket_bytes");
    }
    stw_json_end(json);
}

static void write_decisions(const stw_plan *plan, stw_json *json) {
    const stw_decisions *d = &plan->decisions;
    stw_json_begin_array(json, "decisions");
    for (uint32_t i = 0; i < d->n_state; i++) write_state_row(plan, i, json);
    for (uint32_t i = 0; i < d->n_blocks; i++) write_block_row(plan, i, json);
    stw_json_end(json);
    write_prefetch(plan, json);
    stw_json_begin_object(json, "blocks");
    stw_json_string(json, "order", d->blocks_in_turn ? "in_turn" : "spread");
    stw_json_u64(json, "fetch_ahead", d->fetch_ahead);
    stw_json_end(json);
    stw_json_begin_object(json, "load");
    stw_json_string(json, "method", stw_load_name(d->load));
    stw_json_end(json);
}

/* ---- what follows from the decisions ---- */

const char *stw_plan_movement_by(const stw_plan *plan, const stw_movement *movement) {
    if (movement->inside) return "stowage";
    if (movement->by_stowage)
        return stw_plan_executes(plan, movement) ? "stowage" : "planned, not executed";
    if (movement->role_number > 0) return plan->job->roles[movement->role_number].engine->name;
    const stw_engine_spec *engine = stw_run_spec_engine(&plan->run);
    return engine->trains_as != NULL ? engine->trains_as : engine->name;
}

void stw_plan_write_movement_hashes(const stw_program *program, const char *key,
                                    stw_movement_hash *hash, stw_json *json) {
    char hex[17];
    stw_json_begin_array(json, key);
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        snprintf(hex, sizeof hex, "%016" PRIx64, hash(program, movement));
        stw_json_begin_object(json, NULL);
        stw_json_string(json, stw_phase_name(movement->phase), hex);
        stw_json_end(json);
    }
    stw_json_end(json);
}

void stw_plan_write_terms(const stw_plan *plan, stw_json *json) {
    stw_json_begin_object(json, "model");
    stw_json_string(json, "name", plan->model->name);
    stw_json_string(json, "digest", plan->model->digest);
    stw_json_u64(json, "tensors", plan->model->n_tensors);
    stw_json_end(json);
    stw_run_spec_write_json(&plan->run, json, "run");
    stw_cluster_write_json(&plan->cluster, json, "cluster");
    stw_json_begin_object(json, "decided"); /* some are named as the keys that ask for them */
    write_decisions(plan, json);
    stw_json_end(json);
    stw_json_begin_object(json, "layout");
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        stw_json_string(json, plan->job->kinds[k].name, plan->layouts[k]->hash);
    stw_json_end(json);
    stw_json_begin_object(json, "program");
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        stw_plan_write_movement_hashes(plan->programs[k], plan->job->kinds[k].name,
                                       stw_program_movement_hash, json);
    stw_json_end(json);
}

static void write_movements(const stw_plan *plan, stw_json *json) {
    const stw_program *program = plan->programs[0];
    stw_json_begin_array(json, "movements");
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "phase", stw_phase_name(movement->phase));
        stw_json_string(json, "role", movement->role);
        stw_json_string(json, "by", stw_plan_movement_by(plan, movement));
        stw_json_bool(json, "executable", movement->executable);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void write_layout(const stw_plan *plan, stw_json *json) {
    stw_json_begin_object(json, "layout");
    stw_json_u64(json, "version", STW_LAYOUT_VERSION);
    stw_json_begin_object(json, "hash");
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        stw_json_string(json, plan->job->kinds[k].name, plan->layouts[k]->hash);
    stw_json_end(json);
    stw_json_begin_array(json, "regions");
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        for (uint32_t i = 0; i < plan->layouts[k]->n_regions; i++) {
            const stw_region *r = &plan->layouts[k]->regions[i];
            stw_json_begin_object(json, NULL);
            stw_json_string(json, "kind", plan->job->kinds[k].name);
            stw_json_string(json, "component", stw_component_name(r->component));
            stw_json_string(json, "tier", stw_tier_name(r->tier));
            stw_json_string(json, "update", stw_update_name(r->update));
            stw_json_u64(json, "first_unit", r->first_unit);
            stw_json_u64(json, "units", r->units);
            stw_json_u64(json, "offset", r->offset_bytes);
            stw_json_u64(json, "bytes", r->bytes);
            stw_json_end(json);
        }
    stw_json_end(json);
    stw_json_end(json);
}

stw_status stw_plan_kind_texts(const stw_plan *plan, uint32_t kind, stw_text *ranks,
                               stw_text *node_kinds, stw_error *err) {
    const stw_job *job = plan->job;
    stw_status status = STW_STATUS_OK;
    stw_text_free(ranks);
    stw_text_free(node_kinds);
    stw_part_format_numbers(job->kinds[kind].ranks, job->kinds[kind].n_ranks, ranks);
    for (uint32_t n = 0; n < job->n_node_kinds; n++)
        if (job->node_kinds[n].kind_ranks[kind] > 0)
            stw_text_printf(node_kinds, "%s%u", node_kinds->length > 0 ? "," : "", n);
    STW_TRY(stw_text_status(ranks, err));
    STW_TRY(stw_text_status(node_kinds, err));
out:
    return status;
}

static stw_status write_rank_map(const stw_plan *plan, stw_json *json, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text ranks = STW_TEXT_INIT, node_kinds = STW_TEXT_INIT;
    stw_json_begin_object(json, "rank_map");
    stw_json_begin_array(json, "kinds");
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        STW_TRY(stw_plan_kind_texts(plan, k, &ranks, &node_kinds, err));
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "kind", plan->job->kinds[k].name);
        stw_json_string(json, "ranks", ranks.data);
        stw_json_u64(json, "stage", plan->job->kinds[k].stage);
        stw_json_string(json, "node_kind", node_kinds.data);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
out:
    stw_text_free(&ranks);
    stw_text_free(&node_kinds);
    return status;
}

/* ---- figures ---- */

bool stw_plan_has_phase(const stw_plan *plan, stw_phase phase) {
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        if (plan->peaks[k].has[phase]) return true;
    return false;
}

uint64_t stw_plan_worst_bytes(const stw_plan *plan, stw_phase phase, stw_tier tier) {
    uint64_t most = 0;
    bool gpu = tier == STW_TIER_GPU;
    const stw_peaks *peaks = gpu ? plan->peaks : plan->node_peaks;
    uint32_t n = gpu ? plan->job->n_kinds : plan->job->n_node_kinds;
    for (uint32_t i = 0; i < n; i++) most = stw_max_u64(most, peaks[i].phase[phase][tier].total);
    return most;
}

static void write_summary(const stw_plan *plan, const char *key, stw_tier tier, stw_json *json) {
    uint64_t most = 0;
    stw_json_begin_object(json, key);
    for (int p = 0; p < STW_N_PHASES; p++) {
        if (!stw_plan_has_phase(plan, (stw_phase)p)) continue;
        uint64_t bytes = stw_plan_worst_bytes(plan, (stw_phase)p, tier);
        stw_json_u64(json, stw_phase_name((stw_phase)p), bytes);
        most = stw_max_u64(most, bytes);
    }
    stw_json_u64(json, "peak", most);
    stw_json_end(json);
}

static void write_tier(const stw_peak *peak, const char *key, stw_json *json) {
    stw_json_begin_object(json, key);
    stw_json_u64(json, "total", peak->total);
    stw_part_write_components(json, "components", peak->components);
    stw_json_end(json);
}

static void write_rank_phase(const stw_peak *peak, const char *key, stw_json *json) {
    stw_json_begin_object(json, key);
    stw_json_u64(json, "allocated", stw_peak_allocated(&peak[STW_TIER_GPU]));
    stw_json_u64(json, "reserved", stw_peak_reserved(&peak[STW_TIER_GPU]));
    stw_json_u64(json, "device", peak[STW_TIER_GPU].total);
    stw_part_write_components(json, "components", peak[STW_TIER_GPU].components);
    write_tier(&peak[STW_TIER_HOST], "host", json);
    write_tier(&peak[STW_TIER_NVME], "nvme", json);
    stw_json_end(json);
}

void stw_plan_rank_maxima(const stw_peaks *peaks, uint64_t *allocated, uint64_t *reserved,
                          uint64_t *device) {
    *allocated = *reserved = *device = 0;
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_peak *peak = &peaks->phase[p][STW_TIER_GPU];
        *allocated = stw_max_u64(*allocated, stw_peak_allocated(peak));
        *reserved = stw_max_u64(*reserved, stw_peak_reserved(peak));
        *device = stw_max_u64(*device, peak->total);
    }
}

static void write_ranks(const stw_plan *plan, stw_json *json) {
    stw_json_begin_array(json, "ranks");
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        const stw_rank_kind *kind = &plan->job->kinds[k];
        uint64_t allocated, reserved, device;
        stw_plan_rank_maxima(&plan->shown[k], &allocated, &reserved, &device);
        stw_json_begin_object(json, NULL);
        stw_json_u64(json, "rank", kind->ranks[0]);
        stw_json_u64(json, "ranks", kind->n_ranks);
        stw_json_string(json, "kind", kind->name);
        stw_json_u64(json, "stage", kind->stage);
        stw_json_u64(json, "gpu_allocated_bytes", allocated);
        stw_json_u64(json, "gpu_reserved_bytes", reserved);
        stw_json_u64(json, "gpu_bytes", device);
        stw_json_begin_object(json, "phases");
        for (int p = 0; p < STW_N_PHASES; p++)
            if (plan->peaks[k].has[p])
                write_rank_phase(plan->shown[k].phase[p], stw_phase_name((stw_phase)p), json);
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void write_nodes(const stw_plan *plan, stw_json *json) {
    stw_json_begin_array(json, "nodes");
    for (uint32_t n = 0; n < plan->job->n_node_kinds; n++) {
        stw_json_begin_object(json, NULL);
        stw_json_u64(json, "kind", n);
        stw_json_u64(json, "nodes", plan->job->node_kinds[n].n_nodes);
        stw_json_begin_object(json, "phases");
        for (int p = 0; p < STW_N_PHASES; p++) {
            const stw_peak *peak = plan->node_peaks[n].phase[p];
            if (!plan->node_peaks[n].has[p]) continue;
            stw_json_begin_object(json, stw_phase_name((stw_phase)p));
            stw_json_u64(json, "host", peak[STW_TIER_HOST].total);
            stw_json_u64(json, "page_locked", peak[STW_TIER_HOST].page_locked);
            stw_part_write_components(json, "components", peak[STW_TIER_HOST].components);
            write_tier(&peak[STW_TIER_NVME], "nvme", json);
            stw_json_end(json);
        }
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void write_times(const stw_plan *plan, stw_json *json) {
    stw_json_begin_object(json, "time_s");
    for (int p = 0; p < STW_N_PHASES; p++)
        if (stw_plan_has_phase(plan, (stw_phase)p))
            stw_json_double(json, stw_phase_name((stw_phase)p), plan->time_s[p]);
    if (stw_plan_has_phase(plan, STW_PHASE_CHECKPOINT)) stw_json_double(json, "save", plan->save_s);
    stw_json_double(json, "iteration", stw_plan_iteration_s(plan));
    stw_json_end(json);
}

/* Of programs that have them: those of plans that fit. */
static stw_status write_collectives(const stw_plan *plan, stw_json *json, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_collectives all;
    stw_json_begin_array(json, "collectives");
    for (uint32_t k = 0; k < plan->job->n_kinds && plan->verdict != STW_VERDICT_DOES_NOT_FIT; k++) {
        STW_TRY(stw_program_collectives(plan->job, plan->programs[k], plan->pool, &all, err));
        for (uint32_t i = 0; i < all.n; i++) {
            const stw_collectives_row *row = &all.rows[i];
            stw_json_begin_object(json, NULL);
            stw_json_string(json, "kind", plan->job->kinds[k].name);
            stw_json_string(json, "phase", stw_phase_name(row->phase));
            stw_json_string(json, "group", stw_rank_group_name(row->group));
            stw_json_u64(json, "ranks", row->ranks);
            stw_json_string(json, "collective", stw_op_kind_name(row->kind));
            stw_json_string(json, "tier", stw_tier_name(row->tier));
            stw_json_u64(json, "count", row->count);
            stw_json_u64(json, "bytes", row->bytes);
            stw_json_end(json);
        }
    }
out:
    stw_json_end(json);
    return status;
}

static stw_status write_ledger(const stw_plan *plan, stw_json *json, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_ledger ledger;
    stw_json_begin_array(json, "host_ledger");
    for (uint32_t n = 0; n < plan->job->n_node_kinds; n++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            if (!plan->node_peaks[n].has[p]) continue;
            STW_TRY(stw_plan_ledger(plan, n, (stw_phase)p, &ledger, err));
            for (uint32_t i = 0; i < ledger.n; i++) {
                const stw_ledger_line *line = &ledger.lines[i];
                stw_json_begin_object(json, NULL);
                stw_json_u64(json, "node_kind", n);
                stw_json_string(json, "phase", stw_phase_name((stw_phase)p));
                stw_json_string(json, "component", stw_component_name(line->component));
                stw_json_string(json, "from", line->from);
                stw_json_bool(json, "page_locked", line->page_locked);
                stw_json_u64(json, "bytes", line->bytes);
                stw_json_end(json);
            }
        }
out:
    stw_json_end(json);
    return status;
}

/* ---- the whole ---- */

stw_status stw_plan_to_json(const stw_plan *plan, stw_text *out, stw_error *err) {
    if (plan->layouts == NULL || plan->programs == NULL || plan->node_peaks == NULL)
        return stw_fail(err, STW_STATUS_BUG, "plan", "written before its layout was derived");
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.plan/1");
    stw_json_string(json, "outcome", stw_outcome_name(plan->outcome));
    stw_json_string(json, "verdict", stw_verdict_name(plan->verdict));
    write_solver(plan, json);
    stw_cluster_write_json(&plan->cluster, json, "cluster");
    stw_run_spec_write_json(&plan->run, json, "run");
    write_decisions(plan, json);
    write_movements(plan, json);
    write_layout(plan, json);
    stw_status mapped = write_rank_map(plan, json, err);
    if (mapped == STW_STATUS_OK) mapped = write_collectives(plan, json, err);
    if (mapped == STW_STATUS_OK) mapped = write_ledger(plan, json, err);
    stw_json_begin_object(json, "peaks");
    write_summary(plan, "gpu_bytes", STW_TIER_GPU, json);
    write_summary(plan, "host_bytes", STW_TIER_HOST, json);
    stw_json_end(json);
    write_ranks(plan, json);
    write_nodes(plan, json);
    if (mapped == STW_STATUS_OK) mapped = stw_plan_write_roles(plan, json, err);
    write_times(plan, json);
    write_turned(plan, json);
    write_alternatives(plan, json);
    stw_plan_write_layouts(plan, json);
    write_prices(plan, json);
    write_infeasible(plan, json);
    stw_model_write_json(plan->model, json, "model"); /* the longest */
    stw_json_end(json);
    stw_text text = STW_TEXT_INIT;
    stw_status status = stw_json_finish(json, &text, mapped == STW_STATUS_OK ? err : NULL);
    if (mapped != STW_STATUS_OK) status = mapped;
    if (status == STW_STATUS_OK) status = stw_checksums_append(&text, err);
    if (status == STW_STATUS_OK) {
        stw_text_append(out, text.data, text.length);
        status = stw_text_status(out, err);
    }
    stw_text_free(&text);
    return status;
}

stw_status stw_plan_write(const stw_plan *plan, const char *path, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    STW_TRY(stw_plan_to_json(plan, &text, err));
    STW_TRY(stw_file_write(path, text.data, text.length, err));
out:
    stw_text_free(&text);
    return status;
}

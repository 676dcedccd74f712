/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "plan/program/blocks.h"
#include "reports/page.h"
#include "reports/plan_flops.h"
#include "reports/plan_sections.h"

static void put_memory(const stw_plan_facts *f, stw_json *json) {
    const bool any = f->gpu_phase < STW_N_PHASES;
    stw_json_u64(json, "gpu_peak_bytes", f->gpu_peak);
    stw_json_u64(json, "gpu_reserved_bytes", f->gpu_reserved);
    stw_json_u64(json, "gpu_limit_bytes", f->gpu_capacity);
    stw_json_string(json, "gpu_phase",
                    any ? stw_phase_name(f->gpu_reserved > 0 ? f->reserved_phase : f->gpu_phase)
                        : NULL);
    stw_json_u64(json, "host_peak_bytes", f->host_peak);
    stw_json_u64(json, "host_limit_bytes", f->host_capacity);
    stw_json_string(json, "host_phase",
                    f->host_phase < STW_N_PHASES ? stw_phase_name(f->host_phase) : NULL);
    stw_json_u64(json, "nvme_peak_bytes", f->nvme_peak);
    stw_json_u64(json, "nvme_limit_bytes", f->nvme_capacity);
    stw_json_begin_array(json, "over");
    for (uint32_t i = 0; i < f->n_excesses; i++) {
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "resource", f->excesses[i].resource);
        stw_json_string(json, "phase", stw_phase_name(f->excesses[i].phase));
        stw_json_u64(json, "bytes", f->excesses[i].bytes);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void put_speed(const stw_plan *plan, stw_json *json) {
    const double iteration_s = stw_plan_iteration_s(plan);
    const double tokens = plan->model->facts_known ? stw_plan_iteration_tokens(plan) : (double)NAN;
    const double per_1e9 = iteration_s * plan->job->ranks / 3600 * 1e9 / tokens;
    const double usd = plan->cluster.usd_per_gpu_hour;
    const double flops = stw_plan_model_flops(plan) / iteration_s / plan->job->ranks;
    stw_json_u64(json, "gpus", plan->job->ranks);
    stw_json_double(json, "iteration_s", iteration_s);
    stw_json_double(json, "tokens_per_iteration", tokens);
    stw_json_double(json, "tokens_per_s", tokens / iteration_s);
    stw_json_double(json, "mfu", stw_plan_mfu(plan));
    stw_json_double(json, "model_flops_per_s_per_gpu", flops > 0 ? flops : (double)NAN);
    stw_json_double(json, "gpu_hours_per_1e9_tokens", per_1e9);
    stw_json_double(json, "usd_per_1e9_tokens", usd > 0 ? per_1e9 * usd : (double)NAN);
}

static void put_phases(const stw_plan *plan, const stw_plan_facts *f, stw_json *json) {
    stw_json_begin_array(json, "phases");
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        const stw_phase_facts *phase = &f->phases[p];
        if (!phase->present) continue;
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "phase", stw_phase_name((stw_phase)p));
        stw_json_double(json, "time_s", phase->time_s);
        stw_json_double(json, "whole_s", phase->whole_s);
        stw_json_u64(json, "passes", stw_plan_passes(plan, (stw_phase)p));
        stw_json_string(
            json, "binds",
            phase->is_bound && isfinite(phase->time_s) ? stw_resource_words(phase->binds) : NULL);
        stw_json_begin_object(json, "busy_s");
        for (unsigned r = 0; r < STW_N_RESOURCES && isfinite(phase->time_s); r++)
            if (phase->busy[r] > 0)
                stw_json_double(json, stw_resource_words((stw_resource)r), phase->busy[r]);
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void put_state(const stw_plan *plan, const stw_plan_facts *f, stw_json *json) {
    stw_json_begin_array(json, "state");
    for (uint32_t i = 0; i < plan->decisions.n_state && i < STW_MAX_PLACES; i++) {
        const stw_place *place = &plan->decisions.state[i].place;
        const bool by_gpu[] = {plan->run.park.params, plan->run.park.grads, plan->run.park.moments};
        const stw_tier tiers[] = {place->params, place->grads, place->moments};
        static const char *const names[] = {"params", "grads", "moments"};
        if (plan->decisions.state[i].units == 0) continue;
        stw_json_begin_object(json, NULL);
        for (int c = 0; c < 3; c++)
            stw_json_string(json, names[c],
                            by_gpu[c] && tiers[c] == STW_TIER_GPU ? "parked"
                                                                  : stw_tier_name(tiers[c]));
        stw_json_string(json, "update", stw_update_name(place->update));
        stw_json_u64(json, "parameters", f->place_params[i]);
        for (unsigned t = 0; t < STW_N_TIERS; t++) {
            static const char *const keys[STW_N_TIERS] = {"gpu_bytes", "host_bytes", "nvme_bytes"};
            stw_json_u64(json, keys[t], f->place_bytes[i][t]);
        }
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_u64(json, "frozen_parameters", f->frozen_params);
}

static bool is_decided(const stw_decisions *d, uint32_t group) {
    for (uint32_t i = 0; i < d->n_blocks; i++)
        if (d->blocks[i].group == group) return true;
    return false;
}

/* Policies of the blocks that have a choice, in their order: [GROUP, POLICY, BLOCKS], equal
 * neighbours as one. */
static void put_activations(const stw_plan *plan, stw_json *json) {
    const stw_model *model = plan->job->model;
    stw_pool *pool = stw_pool_new();
    stw_act *acts = pool != NULL ? stw_pool_array(pool, model->n_blocks, sizeof *acts) : NULL;
    stw_json_begin_array(json, "activations");
    if (acts != NULL && plan->decisions.n_blocks > 0) {
        stw_block_acts(plan->job, &plan->decisions, acts);
        for (uint32_t b = 0, n = 1; b < model->n_blocks; b += n) {
            const stw_block *block = &model->blocks[b];
            n = 1;
            if (!is_decided(&plan->decisions, block->group)) continue;
            for (; b + n < model->n_blocks && acts[b + n] == acts[b] &&
                   model->blocks[b + n].group == block->group;)
                n++;
            stw_json_begin_array(json, NULL);
            stw_json_string(json, NULL, model->groups[block->group].name);
            stw_json_string(json, NULL, stw_act_name(acts[b]));
            stw_json_u64(json, NULL, n);
            stw_json_end(json);
        }
    }
    stw_json_end(json);
    stw_pool_free(pool);
}

static void put_roles(const stw_plan *plan, stw_json *json) {
    const stw_job *job = plan->job;
    char holds[256];
    stw_json_begin_array(json, "roles");
    for (uint32_t r = 1; r < job->n_roles; r++) {
        const stw_job_role *role = &job->roles[r];
        role->engine->describe(job, r, holds, sizeof holds);
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "role", role->name);
        stw_json_string(json, "kind", stw_role_kind_name(role->spec->kind));
        stw_json_string(json, "engine", role->engine->name);
        stw_json_string(json, "with", role->home == r ? NULL : job->roles[role->home].name);
        stw_json_string(json, "holds", holds);
        stw_json_end(json);
    }
    stw_json_end(json);
}

void stw_page_figures(const stw_plan *plan, const stw_plan_facts *facts, stw_json *json) {
    char cluster[96], machine[192];
    stw_section_cluster_name(&plan->cluster, cluster, sizeof cluster);
    stw_section_machine(&plan->cluster, machine, sizeof machine);
    stw_json_begin_object(json, "figures");
    stw_json_string(json, "model", plan->model->name);
    stw_json_string(json, "cluster", cluster);
    stw_json_string(json, "machine", machine);
    stw_json_string(json, "engine", stw_engine_name(plan->run.engine));
    stw_json_string(json, "verdict", stw_verdict_name(plan->verdict));
    put_memory(facts, json);
    put_speed(plan, json);
    put_phases(plan, facts, json);
    put_state(plan, facts, json);
    put_activations(plan, json);
    put_roles(plan, json);
    stw_json_end(json);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The roles of a plan file: their nodes, and what each of their ranks holds at the peaks. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan/files/file_parts.h"
#include "plan/files/plan_file.h"
#include "plan/files/verdict.h"
#include "plan/program/roles.h"

/* The kind of rank on a role's nodes; the trainer's largest. */
static uint32_t kind_of(const stw_job *job, uint32_t role) {
    const uint32_t home = job->roles[role].home;
    uint32_t k = 0;
    if (home == 0) return job->largest;
    while (k + 1 < job->n_kinds && job->kinds[k].home != home) k++;
    return k;
}

static const char *kind_name(const stw_job *job, uint32_t role) {
    return role == 0 ? "trainer" : stw_role_kind_name(job->roles[role].spec->kind);
}

static const char *engine_name(const stw_job *job, uint32_t role) {
    return role == 0 ? job->engine->spec.name : job->roles[role].engine->name;
}

/* Of the nodes that a role is on. */
static const char *verdict_on(const stw_plan *plan, uint32_t role) {
    return stw_verdict_name(stw_plan_verdict_of(plan, plan->job->roles[role].home));
}

static size_t facts_of(const stw_job *job, uint32_t role, stw_role_fact *out) {
    const stw_role_engine *engine = job->roles[role].engine;
    return engine != NULL && engine->facts != NULL ? engine->facts(job, role, out) : 0;
}

static stw_role_peaks *peaks_of(const stw_plan *plan, uint32_t role, stw_pool *pool) {
    stw_role_peaks *all = stw_pool_array(pool, plan->job->n_roles, sizeof *all);
    if (all == NULL) return NULL;
    stw_program_walk_roles(plan->programs[kind_of(plan->job, role)], plan->job->n_roles, all);
    return &all[role];
}

/* ---- writing ---- */

static void write_role(const stw_plan *plan, uint32_t role, const stw_role_peaks *peaks,
                       stw_json *json) {
    const stw_job *job = plan->job;
    const stw_peaks *of_kind = &plan->peaks[kind_of(job, role)];
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "role", job->roles[role].name);
    stw_json_string(json, "kind", kind_name(job, role));
    stw_json_string(json, "engine", engine_name(job, role));
    stw_json_u64(json, "first_node", job->roles[role].first_node);
    stw_json_u64(json, "nodes", job->roles[role].n_nodes);
    stw_json_u64(json, "ranks", stw_job_role_ranks(job, role));
    stw_json_string(json, "verdict", verdict_on(plan, role));
    stw_role_fact facts[STW_MAX_ROLE_FACTS];
    const size_t n = facts_of(job, role, facts);
    if (n > 0) stw_json_begin_object(json, "holds");
    for (size_t i = 0; i < n; i++) stw_json_u64(json, facts[i].name, facts[i].value);
    if (n > 0) stw_json_end(json);
    stw_json_begin_object(json, "phases");
    for (int p = 0; p < STW_N_PHASES; p++) {
        if (!of_kind->has[p]) continue;
        stw_json_begin_object(json, stw_phase_name((stw_phase)p));
        stw_json_u64(json, "gpu", peaks->bytes[p][STW_TIER_GPU]);
        stw_json_u64(json, "host", peaks->bytes[p][STW_TIER_HOST]);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
}

stw_status stw_plan_write_roles(const stw_plan *plan, stw_json *json, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    stw_json_begin_array(json, "roles");
    for (uint32_t r = 0; r < plan->job->n_roles; r++) {
        const stw_role_peaks *peaks = pool == NULL ? NULL : peaks_of(plan, r, pool);
        if (peaks == NULL) {
            status = stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
            goto out;
        }
        write_role(plan, r, peaks, json);
    }
out:
    stw_json_end(json);
    stw_pool_free(pool);
    return status;
}

/* ---- reading ---- */

typedef struct reading {
    const stw_tree *tree;
    const stw_node *item;
    const char *name; /* of the role */
} reading;

static stw_status differs(const reading *r, const stw_node *item, const char *key,
                          const char *expected, stw_error *err) {
    char found[192];
    const stw_node *node = stw_node_get(item, key);
    stw_node_describe(node != NULL ? node : item, found, sizeof found);
    return stw_part_fail(r->tree, node != NULL ? node : item, err,
                         "%s of role %s: found %s, the inputs give %s; the file was changed: plan "
                         "again",
                         key, r->name, found, expected);
}

static stw_status same_text(const reading *r, const char *key, const char *expected,
                            stw_error *err) {
    const stw_node *node = stw_node_get(r->item, key);
    if (node != NULL && node->kind == STW_NODE_STRING && strcmp(node->text, expected) == 0)
        return STW_STATUS_OK;
    return differs(r, r->item, key, expected, err);
}

static stw_status same_number(const reading *r, const stw_node *item, const char *key,
                              uint64_t expected, stw_error *err) {
    const stw_node *node = stw_node_get(item, key);
    char text[32];
    if (node != NULL && node->kind == STW_NODE_INT && node->integer >= 0 &&
        (uint64_t)node->integer == expected)
        return STW_STATUS_OK;
    snprintf(text, sizeof text, "%" PRIu64, expected);
    return differs(r, item, key, text, err);
}

/* Files of before this key have none. */
static stw_status check_facts(const reading *r, const stw_job *job, uint32_t role, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_role_fact facts[STW_MAX_ROLE_FACTS];
    const size_t n = facts_of(job, role, facts);
    const stw_node *holds = NULL;
    if (n == 0 || stw_node_get(r->item, "holds") == NULL) return status;
    STW_TRY(stw_node_object(r->tree, r->item, "holds", &holds, err));
    for (size_t i = 0; i < n; i++)
        STW_TRY(same_number(r, holds, facts[i].name, facts[i].value, err));
out:
    return status;
}

static stw_status check_role(const reading *r, const stw_plan *plan, uint32_t role,
                             const stw_role_peaks *peaks, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job *job = plan->job;
    const stw_peaks *of_kind = &plan->peaks[kind_of(job, role)];
    const stw_node *phases = NULL;
    STW_TRY(same_text(r, "role", job->roles[role].name, err));
    STW_TRY(same_text(r, "kind", kind_name(job, role), err));
    STW_TRY(same_text(r, "engine", engine_name(job, role), err));
    STW_TRY(same_number(r, r->item, "first_node", job->roles[role].first_node, err));
    STW_TRY(same_number(r, r->item, "nodes", job->roles[role].n_nodes, err));
    STW_TRY(same_number(r, r->item, "ranks", stw_job_role_ranks(job, role), err));
    STW_TRY(same_text(r, "verdict", verdict_on(plan, role), err));
    STW_TRY(check_facts(r, job, role, err));
    STW_TRY(stw_node_object(r->tree, r->item, "phases", &phases, err));
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_node *phase = NULL;
        if (!of_kind->has[p]) continue;
        STW_TRY(stw_node_object(r->tree, phases, stw_phase_name((stw_phase)p), &phase, err));
        STW_TRY(same_number(r, phase, "gpu", peaks->bytes[p][STW_TIER_GPU], err));
        STW_TRY(same_number(r, phase, "host", peaks->bytes[p][STW_TIER_HOST], err));
    }
out:
    return status;
}

stw_status stw_plan_check_roles(const stw_tree *tree, const stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
    STW_TRY(stw_node_array(tree, tree->root, "roles", &list, err));
    if (list->n_items != plan->job->n_roles) {
        status = stw_part_fail(tree, list, err, "roles: found %zu, the inputs give %u",
                               list->n_items, (unsigned)plan->job->n_roles);
        goto out;
    }
    for (uint32_t r = 0; r < plan->job->n_roles; r++) {
        const stw_role_peaks *peaks = peaks_of(plan, r, pool);
        const reading at = {tree, list->items[r], plan->job->roles[r].name};
        if (peaks == NULL) {
            status = stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
            goto out;
        }
        STW_TRY(check_role(&at, plan, r, peaks, err));
    }
out:
    stw_pool_free(pool);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/job/roles.h"

#include <stdio.h>
#include <string.h>

#include "plan/spec/registry.h"

bool stw_role_is_alone(const stw_job_role *roles, uint32_t role) {
    return roles[role].home == role;
}

const char *stw_role_kind_name(stw_role_kind kind) {
    static const char *const names[] = {"rollout", "reference", "critic", "reward"};
    return (unsigned)kind < 4 ? names[kind] : "?";
}

static stw_status refuse(uint32_t role, const char *key, const char *found, const char *expected,
                         stw_error *err) {
    return stw_fail(err, STW_STATUS_BAD_INPUT, NULL, "roles.%u.%s: found %s, expected %s",
                    (unsigned)role - 1, key, found, expected);
}

/* ---- engines ---- */

/* Is this the engine that `auto` means? Models are the trainer's where there is a choice. */
static bool is_usual(const stw_run_spec *run, const stw_role_engine *engine, stw_role_kind kind) {
    const stw_engine_spec *trainer = stw_run_spec_engine(run);
    const char *name = trainer->trains_as != NULL ? trainer->trains_as : trainer->name;
    const stw_role_engine *const *all = stw_role_engines_built_in;
    if (strcmp(engine->name, name) == 0) return true;
    for (uint32_t e = 0; all[e] != NULL; e++)
        if ((all[e]->kinds & 1u << kind) != 0 && strcmp(all[e]->name, name) == 0) return false;
    return true;
}

static stw_status find_engine(const stw_run_spec *run, uint32_t number, stw_job_role *role,
                              stw_error *err) {
    const stw_role_engine *const *all = stw_role_engines_built_in;
    char found[80], names[160];
    size_t used = (size_t)snprintf(names, sizeof names, "auto");
    for (uint32_t e = 0; all[e] != NULL && role->engine == NULL; e++) {
        if ((all[e]->kinds & 1u << role->spec->kind) == 0) continue;
        if (role->spec->engine == NULL ? is_usual(run, all[e], role->spec->kind)
                                       : strcmp(role->spec->engine, all[e]->name) == 0)
            role->engine = all[e];
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, " | %s", all[e]->name);
    }
    if (role->engine != NULL) return STW_STATUS_OK;
    if (strcmp(names, "auto") == 0)
        return refuse(number, "kind", stw_role_kind_name(role->spec->kind), "rollout", err);
    stw_text_quote(role->spec->engine != NULL ? role->spec->engine : "auto", found, sizeof found);
    return refuse(number, "engine", found, names, err);
}

/* ---- nodes ---- */

/* The role on whose nodes a role is, at the end of the chain of `with`. */
static stw_status find_home(const stw_run_spec *run, uint32_t number, uint32_t *home,
                            stw_error *err) {
    uint32_t at = number;
    for (uint32_t steps = 0; steps <= run->n_roles; steps++) {
        const char *with = run->roles[at - 1].with;
        *home = strcmp(with, "trainer") == 0 ? 0 : at;
        if (*home == 0 || strcmp(with, "none") == 0) return STW_STATUS_OK;
        uint32_t next = 0;
        for (uint32_t i = 0; i < run->n_roles && next == 0; i++)
            if (strcmp(run->roles[i].name, with) == 0) next = i + 1;
        if (next == 0) break;
        at = next;
    }
    return refuse(number, "with", run->roles[number - 1].with,
                  "a role with nodes: none or trainer at the end of the chain", err);
}

/* Nodes of roles that say how many they have, and of all others equal shares of the rest. */
static stw_status share_nodes(const stw_run_spec *run, uint32_t nodes, stw_job_role *roles,
                              stw_error *err) {
    uint32_t fixed = 0, sharing = 1, last = 0;
    char found[32], expected[96];
    for (uint32_t r = 1; r <= run->n_roles; r++) {
        if (!stw_role_is_alone(roles, r)) continue;
        const uint32_t wish = roles[r].spec->nodes;
        if (wish == STW_AUTO) {
            last = r;
            sharing++;
            continue;
        }
        snprintf(found, sizeof found, "%u", (unsigned)wish);
        snprintf(expected, sizeof expected,
                 "a cluster of more than %llu nodes (it has %u), since the trainer needs one",
                 (unsigned long long)fixed + wish, (unsigned)nodes);
        if (wish >= nodes - fixed) return refuse(r, "nodes", found, expected, err);
        fixed += wish;
    }
    const uint32_t share = (nodes - fixed) / sharing;
    snprintf(expected, sizeof expected,
             "a cluster of at least %u nodes (it has %u), one of each role on its own",
             (unsigned)(fixed + sharing), (unsigned)nodes);
    if (share == 0) return refuse(last, "nodes", "auto", expected, err);
    snprintf(expected, sizeof expected, "a number: %u nodes are no equal shares of %u roles",
             (unsigned)(nodes - fixed), (unsigned)sharing);
    if (sharing > 1 && share * sharing != nodes - fixed)
        return refuse(last, "nodes", "auto", expected, err);
    for (uint32_t r = 0; r <= run->n_roles; r++)
        if (stw_role_is_alone(roles, r))
            roles[r].n_nodes =
                r == 0 || roles[r].spec->nodes == STW_AUTO ? share : roles[r].spec->nodes;
    uint32_t first = 0;
    for (uint32_t r = 0; r <= run->n_roles; r++) {
        if (!stw_role_is_alone(roles, r)) continue;
        roles[r].first_node = first;
        first += roles[r].n_nodes;
    }
    return STW_STATUS_OK;
}

/* Roles on the nodes of others. */
static stw_status follow_homes(const stw_run_spec *run, stw_job_role *roles, stw_error *err) {
    for (uint32_t r = 1; r <= run->n_roles; r++) {
        if (stw_role_is_alone(roles, r)) continue;
        const stw_job_role *home = &roles[roles[r].home];
        char found[32], expected[96];
        snprintf(found, sizeof found, "%u", (unsigned)roles[r].spec->nodes);
        snprintf(expected, sizeof expected, "auto or %u, the nodes of %.40s",
                 (unsigned)home->n_nodes, home->name);
        if (roles[r].spec->nodes != STW_AUTO && roles[r].spec->nodes != home->n_nodes)
            return refuse(r, "nodes", found, expected, err);
        roles[r].first_node = home->first_node;
        roles[r].n_nodes = home->n_nodes;
    }
    return STW_STATUS_OK;
}

stw_status stw_roles_place(const stw_run_spec *run, uint32_t nodes, stw_pool *pool,
                           stw_job_role **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_job_role *roles = stw_pool_array(pool, run->n_roles + (size_t)1, sizeof *roles);
    if (roles == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "roles", "out of memory");
    roles[0].name = "trainer";
    for (uint32_t r = 1; r <= run->n_roles; r++) {
        roles[r].spec = &run->roles[r - 1];
        roles[r].name = run->roles[r - 1].name;
        STW_TRY(find_home(run, r, &roles[r].home, err));
        STW_TRY(find_engine(run, r, &roles[r], err));
    }
    STW_TRY(share_nodes(run, nodes, roles, err));
    STW_TRY(follow_homes(run, roles, err));
    *out = roles;
out:
    return status;
}

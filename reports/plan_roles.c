/* SPDX-License-Identifier: Apache-2.0 */
/* Roles beside the trainer: who has which nodes, and what each holds at the peaks. */
#include <stdio.h>

#include "plan/program/roles.h"
#include "reports/plan_sections.h"

static void put_list(const stw_section *s) {
    static const char *const heads[] = {"role",   "kind",  "engine",        ">nodes",
                                        ">ranks", "where", "nodes' verdict"};
    static const char *const verdicts[] = {"fit", "at risk", "do not fit"};
    const stw_job *job = s->plan->job;
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 7);
    for (uint32_t r = 0; r < job->n_roles; r++) {
        const stw_job_role *role = &job->roles[r];
        char where[96];
        const uint32_t first = role->first_node, last = first + role->n_nodes - 1;
        if (r > 0 && !stw_role_is_alone(job->roles, r))
            snprintf(where, sizeof where, "with %.60s", job->roles[role->home].name);
        else if (first == last)
            snprintf(where, sizeof where, "node %u", (unsigned)first);
        else
            snprintf(where, sizeof where, "nodes %u-%u", (unsigned)first, (unsigned)last);
        stw_table_cell(&t, "%s", role->name);
        stw_table_cell(&t, "%s", r == 0 ? "trainer" : stw_role_kind_name(role->spec->kind));
        stw_table_cell(&t, "%s", r == 0 ? job->engine->spec.name : role->engine->name);
        stw_table_cell(&t, "%u", (unsigned)role->n_nodes);
        stw_table_cell(&t, "%u", (unsigned)stw_job_role_ranks(job, r));
        stw_table_cell(&t, "%s", where);
        stw_table_cell(
            &t, "%s",
            s->plan->node_peaks != NULL ? verdicts[stw_plan_verdict_of(s->plan, role->home)] : "");
    }
    stw_table_write(&t, s->format, s->out);
    for (uint32_t r = 1; r < job->n_roles; r++) {
        char holds[256];
        job->roles[r].engine->describe(job, r, holds, sizeof holds);
        stw_doc_item(s->out, s->format, "%s, per GPU: %s.", job->roles[r].name, holds);
    }
}

static void peak_cells(stw_table *t, uint64_t bytes) {
    stw_table_cell(t, "%s", bytes > 0 ? stw_word_gib(bytes).text : "");
}

/* Kinds of ranks that have several roles, or a role's own nodes; the largest stands for all of the
 * trainer's. */
static void put_kind(const stw_section *s, stw_table *t, uint32_t kind) {
    const stw_plan *plan = s->plan;
    const stw_job *job = plan->job;
    char who[128];
    stw_role_peaks *of = stw_pool_array(s->pool, job->n_roles, sizeof *of);
    bool *alike = stw_pool_array(s->pool, job->n_kinds, sizeof *alike);
    if (of == NULL || alike == NULL) {
        s->out->failed = true;
        return;
    }
    stw_program_walk_roles(plan->programs[kind], job->n_roles, of);
    for (uint32_t k = 0; k < job->n_kinds; k++)
        alike[k] = job->kinds[k].home == job->kinds[kind].home;
    stw_job_ranks_words(job, alike, who, sizeof who);
    if (job->engine->stage != NULL && job->kinds[kind].home == 0) /* stages differ */
        stw_job_kind_words(job, kind, who, sizeof who);
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        if (!plan->peaks[kind].has[p]) continue;
        for (uint32_t r = 0; r < job->n_roles; r++) {
            const uint64_t *bytes = of[r].bytes[p];
            if (bytes[STW_TIER_GPU] == 0 && bytes[STW_TIER_HOST] == 0) continue;
            stw_table_cell(t, "%s", who);
            stw_table_cell(t, "%s", stw_phase_name((stw_phase)p));
            stw_table_cell(t, "%s", job->roles[r].name);
            peak_cells(t, bytes[STW_TIER_GPU]);
            peak_cells(t, bytes[STW_TIER_HOST]);
        }
    }
}

void stw_section_roles(const stw_section *s) {
    static const char *const heads[] = {"where", "phase", "role", ">GPU", ">host"};
    const stw_job *job = s->plan->job;
    stw_table t;
    if (job->n_roles <= 1) return;
    stw_doc_heading(s->out, s->format, "Roles");
    put_list(s);
    if (s->plan->programs == NULL || s->plan->peaks == NULL) return;
    stw_doc_heading(s->out, s->format, "Peak memory by role (per rank)");
    stw_table_begin(&t, s->pool, heads, 5);
    for (uint32_t k = 0; k < job->n_kinds; k++)
        if (k == job->largest || job->kinds[k].home != 0) put_kind(s, &t, k);
    stw_table_write(&t, s->format, s->out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Roles beside the trainer: who has which nodes, and what each holds at the peaks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/files/verdict.h"
#include "plan/program/roles.h"
#include "reports/plan_sections.h"

/* The most that a kind of rank holds while a KV cache is there. A trainer that shares the GPUs with
 * an engine that never sleeps has its allocator's reserves, too. */
static uint64_t most_beside_cache(const stw_plan *plan, uint32_t kind) {
    const stw_program *program = plan->programs[kind];
    stw_live live;
    uint64_t most = 0, slack = 0;
    memset(&live, 0, sizeof live);
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        const stw_peak *shown = &plan->shown[kind].phase[movement->phase][STW_TIER_GPU];
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            stw_live_apply(&live, &program->ops[i]);
            if (live.bytes[STW_TIER_GPU][STW_COMPONENT_KV_CACHE] == 0) continue;
            most = stw_max_u64(most, live.total[STW_TIER_GPU]);
            if (movement->role_number == 0)
                slack = stw_max_u64(slack, shown->components[STW_COMPONENT_SLACK]);
        }
    }
    return stw_plus(most, slack);
}

/* How large the share of a rollout could be: its cache grows with it, and nothing else does. */
static void put_largest_share(const stw_section *s, uint32_t role) {
    const stw_plan *plan = s->plan;
    const stw_job *job = plan->job;
    const double all = (double)stw_plan_gpu_capacity(plan),
                 share = job->roles[role].spec->gpu_memory_utilization;
    uint64_t most = 0;
    if (job->roles[role].spec->kind != STW_ROLE_ROLLOUT || plan->programs == NULL ||
        plan->node_peaks == NULL ||
        stw_plan_verdict_of(plan, job->roles[role].home) != STW_VERDICT_FITS)
        return;
    for (uint32_t r = 1; r < job->n_roles; r++)
        if (r != role && job->roles[r].home == job->roles[role].home &&
            job->roles[r].spec->kind == STW_ROLE_ROLLOUT)
            return; /* two caches */
    for (uint32_t k = 0; k < job->n_kinds; k++)
        if (job->kinds[k].home == job->roles[role].home)
            most = stw_max_u64(most, most_beside_cache(plan, k));
    const double largest = share + (STW_RISK_SHARE * all - (double)most) / all;
    const double word = floor(largest * 100) / 100;
    if (word < share + 0.01) return;
    stw_doc_item(s->out, s->format,
                 "%s: gpu_memory_utilization up to %.2f takes no more than %.0f%% of the GPU.",
                 job->roles[role].name, word < 0.99 ? word : 0.99, 100 * STW_RISK_SHARE);
}

/* "with trainer", "nodes 1-2" */
static void put_where(const stw_job *job, uint32_t r, char *out, size_t out_size) {
    const stw_job_role *role = &job->roles[r];
    const uint32_t first = role->first_node, last = first + role->n_nodes - 1;
    if (r > 0 && !stw_role_is_alone(job->roles, r))
        snprintf(out, out_size, "with %.60s", job->roles[role->home].name);
    else if (first == last)
        snprintf(out, out_size, "node %u", (unsigned)first);
    else
        snprintf(out, out_size, "nodes %u-%u", (unsigned)first, (unsigned)last);
}

static void put_list(const stw_section *s) {
    static const char *const heads[] = {"role",   "kind",  "engine",        ">nodes",
                                        ">ranks", "where", "nodes' verdict"};
    static const char *const verdicts[STW_N_VERDICTS] = {"fit", "at risk", "do not fit", "unknown"};
    const stw_job *job = s->plan->job;
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 7);
    for (uint32_t r = 0; r < job->n_roles; r++) {
        const stw_job_role *role = &job->roles[r];
        char where[96];
        put_where(job, r, where, sizeof where);
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
        put_largest_share(s, r);
    }
}

void stw_section_role_lines(const stw_section *s) {
    const stw_job *job = s->plan->job;
    for (uint32_t r = 1; r < job->n_roles; r++) {
        const stw_job_role *role = &job->roles[r];
        char holds[256], where[96];
        put_where(job, r, where, sizeof where);
        role->engine->describe(job, r, holds, sizeof holds);
        stw_doc_line(s->out, s->format, "%s (%s, %s), per GPU: %s.", role->name, role->engine->name,
                     where, holds);
    }
}

static void peak_cells(stw_table *t, uint64_t bytes) {
    stw_table_cell(t, "%s", bytes > 0 ? stw_word_gib(bytes).text : "");
}

/* Kinds whose bytes differ by at most this share are shown as one. */
static const double ALIKE = 0.01;

static bool near(uint64_t a, uint64_t b) {
    const double x = (double)a, y = (double)b;
    return fabs(x - y) <= ALIKE * fmax(x, y);
}

/* Do two kinds of rank hold the same of all roles in a phase? @param a, b [n] */
static bool alike(const stw_role_peaks *a, const stw_role_peaks *b, uint32_t n, unsigned phase) {
    for (uint32_t r = 0; r < n; r++)
        for (int tier = STW_TIER_GPU; tier <= STW_TIER_HOST; tier++)
            if (!near(a[r].bytes[phase][tier], b[r].bytes[phase][tier])) return false;
    return true;
}

/* Kinds of ranks that share nodes: what they hold by roles. Stages differ; the largest rank's
 * stands for all of them. */
typedef struct home_kinds {
    const stw_job *job;
    uint32_t n_all;
    const bool *here;         /* [n_all] */
    const stw_role_peaks *of; /* [n_all][job->n_roles] */
} home_kinds;

static void put_phase(const stw_section *s, stw_table *t, const home_kinds *h, unsigned p,
                      bool *shown, bool *like) {
    const stw_job *job = h->job;
    char who[128];
    memset(shown, 0, h->n_all * sizeof *shown);
    for (uint32_t k = 0; k < h->n_all; k++) {
        const stw_role_peaks *of = h->of + (size_t)k * job->n_roles;
        if (!h->here[k] || shown[k] || !s->plan->peaks[k].has[p]) continue;
        for (uint32_t i = 0; i < h->n_all; i++) {
            const stw_role_peaks *other = h->of + (size_t)i * job->n_roles;
            like[i] = h->here[i] && !shown[i] && alike(of, other, job->n_roles, p);
            shown[i] |= like[i];
        }
        stw_job_ranks_words(job, like, who, sizeof who);
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

static void put_home(const stw_section *s, stw_table *t, uint32_t home) {
    const stw_job *job = s->plan->job;
    const bool stages = job->engine->stage != NULL && home == 0;
    stw_role_peaks *of = stw_pool_array(s->pool, (size_t)job->n_kinds * job->n_roles, sizeof *of);
    bool *flags = stw_pool_array(s->pool, 3 * (size_t)job->n_kinds, sizeof *flags);
    if (of == NULL || flags == NULL) {
        s->out->failed = true;
        return;
    }
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        flags[k] = job->kinds[k].home == home && (!stages || k == job->largest);
        if (flags[k])
            stw_program_walk_roles(s->plan->programs[k], job->n_roles,
                                   of + (size_t)k * job->n_roles);
    }
    const home_kinds here = {job, job->n_kinds, flags, of};
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        put_phase(s, t, &here, p, flags + job->n_kinds, flags + 2 * (size_t)job->n_kinds);
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
    for (uint32_t r = 0; r < job->n_roles; r++)
        if (stw_role_is_alone(job->roles, r)) put_home(s, &t, r);
    stw_table_write(&t, s->format, s->out);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/verdict.h"

#include <math.h>
#include <string.h>

static double share(uint64_t used, uint64_t capacity) {
    if (capacity == STW_UNLIMITED || used == 0) return 0.0;
    return capacity > 0 ? (double)used / (double)capacity : INFINITY;
}

stw_margins stw_plan_margins(const stw_plan *plan) {
    const stw_engine *engine = plan->job->engine;
    return engine->margins != NULL ? engine->margins(&plan->run) : (stw_margins){0, 0};
}

bool stw_plan_is_torn(const stw_plan *plan) {
    bool torn = false;
    for (uint32_t k = 0; plan->replayed != NULL && k < plan->job->n_kinds; k++)
        torn = torn || plan->replayed[k].full;
    return torn;
}

bool stw_plan_is_partial(const stw_plan *plan) { return !plan->model->facts_known; }

/* ---- the fullest that the nodes of a role are ---- */

enum { GPU, HOST, PAGE_LOCKED, NVME, N_RESOURCES };

static const char *const resources[N_RESOURCES] = {"gpu memory", "host memory",
                                                   "page-locked memory", "nvme"};

typedef struct use {
    uint64_t bytes, limit_bytes;
    stw_phase phase;
} use;

static void note(use *most, uint64_t bytes, stw_phase phase) {
    if (bytes <= most->bytes) return;
    most->bytes = bytes;
    most->phase = phase;
}

/* @param out [N_RESOURCES] the highest peak of each */
static void find_uses(const stw_plan *plan, uint32_t home, use *out) {
    const stw_job *job = plan->job;
    const uint64_t limits[N_RESOURCES] = {stw_plan_gpu_capacity(plan), stw_plan_host_capacity(plan),
                                          plan->cluster.host.page_lock_limit_bytes,
                                          plan->cluster.nvme.capacity_bytes};
    for (int r = 0; r < N_RESOURCES; r++) out[r] = (use){.limit_bytes = limits[r]};
    for (int i = 0; i < STW_N_PHASES; i++) {
        const stw_phase p = (stw_phase)i;
        for (uint32_t k = 0; k < job->n_kinds; k++)
            if (job->kinds[k].home == home)
                note(&out[GPU], plan->peaks[k].phase[p][STW_TIER_GPU].total, p);
        for (uint32_t n = 0; n < job->n_node_kinds; n++) {
            const stw_peak *node = plan->node_peaks[n].phase[p];
            const uint32_t rank = job->node_kinds[n].first_node * job->ranks_per_node;
            if (job->kinds[stw_job_kind_of(job, rank)].home != home) continue;
            note(&out[HOST], node[STW_TIER_HOST].total, p);
            note(&out[PAGE_LOCKED], node[STW_TIER_HOST].page_locked, p);
            note(&out[NVME], node[STW_TIER_NVME].total, p);
        }
    }
}

static bool is_over(const use *uses) {
    for (int r = 0; r < N_RESOURCES; r++)
        if (share(uses[r].bytes, uses[r].limit_bytes) > 1.0) return true;
    return false;
}

/* ---- risks ---- */

static void add(stw_risk *out, uint32_t *n, stw_risk risk) {
    if (*n < STW_MAX_RISKS) out[(*n)++] = risk;
}

static void find_torn(const stw_plan *plan, stw_risk *out, uint32_t *n) {
    for (uint32_t k = 0; plan->replayed != NULL && k < plan->job->n_kinds; k++) {
        const stw_replayed *r = &plan->replayed[k];
        if (!r->full) continue;
        add(out, n,
            (stw_risk){.kind = STW_RISK_TORN,
                       .resource = resources[GPU],
                       .phase = r->full_at,
                       .bytes = r->full_bytes,
                       .limit_bytes = stw_plan_gpu_capacity(plan)});
        return;
    }
}

uint32_t stw_plan_risks(const stw_plan *plan, uint32_t home, stw_risk *out) {
    const stw_margins margins = stw_plan_margins(plan);
    const double margin_of[N_RESOURCES] = {margins.gpu, margins.host, margins.host, 0};
    use uses[N_RESOURCES];
    uint32_t n = 0;
    find_uses(plan, home, uses);
    if (is_over(uses)) return 0;
    if (home == 0) find_torn(plan, out, &n);
    for (int r = 0; r < N_RESOURCES; r++) {
        const use *u = &uses[r];
        const double filled = share(u->bytes, u->limit_bytes);
        stw_risk risk = {.resource = resources[r],
                         .phase = u->phase,
                         .bytes = u->bytes,
                         .limit_bytes = u->limit_bytes};
        risk.kind = STW_RISK_MARGIN;
        risk.margin = margin_of[r];
        if (filled * (1 + risk.margin) > 1.0) add(out, &n, risk);
        risk.kind = STW_RISK_FULL;
        risk.margin = 0;
        if (filled > STW_RISK_SHARE) add(out, &n, risk);
    }
    return n;
}

/* ---- the verdict ---- */

static stw_verdict bytes_verdict_of(const stw_plan *plan, uint32_t home) {
    stw_risk risks[STW_MAX_RISKS];
    use uses[N_RESOURCES];
    find_uses(plan, home, uses);
    if (is_over(uses)) return STW_VERDICT_DOES_NOT_FIT;
    return stw_plan_risks(plan, home, risks) > 0 ? STW_VERDICT_AT_RISK : STW_VERDICT_FITS;
}

stw_verdict stw_plan_verdict_of(const stw_plan *plan, uint32_t home) {
    const stw_verdict verdict = bytes_verdict_of(plan, home);
    const bool partial = home == 0 && stw_plan_is_partial(plan);
    return partial && verdict != STW_VERDICT_DOES_NOT_FIT ? STW_VERDICT_UNKNOWN : verdict;
}

stw_verdict stw_plan_bytes_verdict(const stw_plan *plan) {
    stw_verdict worst = STW_VERDICT_FITS;
    for (uint32_t r = 0; r < plan->job->n_roles; r++) {
        if (!stw_role_is_alone(plan->job->roles, r)) continue;
        const stw_verdict verdict = bytes_verdict_of(plan, r);
        if (verdict > worst) worst = verdict;
    }
    return worst;
}

void stw_plan_judge(stw_plan *plan) {
    plan->verdict = stw_plan_bytes_verdict(plan);
    if (plan->verdict != STW_VERDICT_DOES_NOT_FIT && stw_plan_is_partial(plan))
        plan->verdict = STW_VERDICT_UNKNOWN;
}

stw_status stw_verdict_status(stw_verdict verdict) {
    switch (verdict) {
    case STW_VERDICT_AT_RISK:
    case STW_VERDICT_UNKNOWN:
        return STW_STATUS_AT_RISK;
    case STW_VERDICT_DOES_NOT_FIT:
        return STW_STATUS_NOTHING_FITS;
    default:
        return STW_STATUS_OK;
    }
}

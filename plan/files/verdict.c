/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/verdict.h"

#include <math.h>
#include <string.h>

#include "core/checked.h"

static double share(uint64_t used, uint64_t capacity) {
    if (capacity == STW_UNLIMITED || used == 0) return 0.0;
    return capacity > 0 ? (double)used / (double)capacity : INFINITY;
}

stw_margins stw_plan_margins(const stw_plan *plan) {
    const stw_engine *engine = plan->job->engine;
    return engine->margins != NULL ? engine->margins(plan->job) : (stw_margins){0, 0, 0};
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

static uint64_t excess(uint64_t bytes, uint64_t limit) { return bytes > limit ? bytes - limit : 0; }

uint64_t stw_plan_over_bytes(const stw_plan *plan, const char *resource, stw_phase phase) {
    uint64_t most = 0;
    const bool gpu = strcmp(resource, resources[GPU]) == 0,
               host = strcmp(resource, resources[HOST]) == 0;
    const bool locked = strcmp(resource, resources[PAGE_LOCKED]) == 0;
    for (uint32_t k = 0; gpu && k < plan->job->n_kinds; k++)
        most = stw_max_u64(most, excess(plan->peaks[k].phase[phase][STW_TIER_GPU].total,
                                        stw_plan_gpu_capacity(plan)));
    for (uint32_t n = 0; !gpu && n < plan->job->n_node_kinds; n++) {
        const stw_peak *node = plan->node_peaks[n].phase[phase];
        const stw_peak *used = &node[host || locked ? STW_TIER_HOST : STW_TIER_NVME];
        uint64_t limit = host     ? stw_plan_host_capacity(plan)
                         : locked ? plan->cluster.host.page_lock_limit_bytes
                                  : plan->cluster.nvme.capacity_bytes;
        most = stw_max_u64(most, excess(locked ? used->page_locked : used->total, limit));
    }
    return most;
}

/* ---- risks ---- */

typedef struct risk_list {
    stw_risk *items;
    uint32_t n;
} risk_list;

static void add(risk_list *out, stw_risk risk) {
    if (out->n < STW_MAX_RISKS) out->items[out->n++] = risk;
}

/* What the replay of the allocator says: of the trainer's ranks. */
static void find_replayed(const stw_plan *plan, risk_list *out) {
    const stw_replayed *torn = NULL, *retries = NULL;
    for (uint32_t k = 0; plan->replayed != NULL && k < plan->job->n_kinds; k++) {
        const stw_replayed *r = &plan->replayed[k];
        if (torn == NULL && r->full) torn = r;
        if (retries == NULL && r->retries > 0) retries = r;
    }
    stw_risk risk = {.resource = resources[GPU], .limit_bytes = stw_plan_gpu_capacity(plan)};
    if (torn != NULL) {
        risk.kind = STW_RISK_TORN;
        risk.phase = torn->full_at;
        risk.bytes = risk.most_bytes = torn->full_bytes;
        add(out, risk);
    } else if (retries != NULL) {
        risk.kind = STW_RISK_RETRIES;
        risk.phase = retries->retried_at;
        risk.bytes = risk.most_bytes = risk.limit_bytes;
        add(out, risk);
    }
}

/* The worst phase of a kind of rank, with a margin of the part that torch's allocator has. */
static void find_gpu_margin(const stw_plan *plan, uint32_t home, stw_risk_kind kind, double margin,
                            risk_list *out) {
    const bool reserved = kind == STW_RISK_RESERVED;
    stw_risk worst = {.kind = kind,
                      .resource = resources[GPU],
                      .margin = margin,
                      .limit_bytes = stw_plan_gpu_capacity(plan)};
    for (uint32_t k = 0; plan->replayed != NULL && k < plan->job->n_kinds; k++) {
        const stw_peaks *peaks = reserved ? &plan->shown[k] : &plan->peaks[k];
        for (int p = 0; p < STW_N_PHASES && plan->job->kinds[k].home == home; p++) {
            const stw_replayed_phase *torch = &plan->replayed[k].most[p];
            if (!torch->has || !peaks->has[p]) continue;
            const uint64_t all = peaks->phase[p][STW_TIER_GPU].total;
            const uint64_t part = reserved ? torch->reserved_bytes : torch->allocated_bytes;
            const uint64_t most = stw_plus(all, stw_scaled(part, margin));
            if (most <= worst.most_bytes) continue;
            worst.most_bytes = most;
            worst.bytes = all;
            worst.phase = (stw_phase)p;
        }
    }
    if (worst.most_bytes > worst.limit_bytes) add(out, worst);
}

/* The most of a resource without each of the risks of a limit that is all but reached, and by what
 * runs were measured to hold of the host. */
typedef struct safe_bytes {
    uint64_t alarm, full, margin;
} safe_bytes;

static uint64_t part_of(uint64_t limit, double part) {
    return limit == STW_UNLIMITED ? limit : (uint64_t)((double)limit * part);
}

static safe_bytes safe_bytes_of(const stw_plan *plan, int r, uint64_t limit_bytes,
                                double host_margin) {
    const bool alarms = r == HOST && !(plan->cluster.host.kill_share < 1);
    const bool host = r == HOST || r == PAGE_LOCKED;
    return (safe_bytes){
        .alarm = alarms ? part_of(plan->cluster.host.memory_bytes, STW_HOST_ALARM) : STW_UNLIMITED,
        .full = part_of(limit_bytes, STW_RISK_SHARE),
        .margin = host ? part_of(limit_bytes, 1 / (1 + host_margin)) : STW_UNLIMITED};
}

uint64_t stw_plan_safe_bytes(const stw_plan *plan, stw_tier tier, bool page_locked) {
    const int r = tier == STW_TIER_GPU    ? GPU
                  : tier == STW_TIER_NVME ? NVME
                  : page_locked           ? PAGE_LOCKED
                                          : HOST;
    const uint64_t limits[N_RESOURCES] = {stw_plan_gpu_capacity(plan), stw_plan_host_capacity(plan),
                                          plan->cluster.host.page_lock_limit_bytes,
                                          plan->cluster.nvme.capacity_bytes};
    const safe_bytes safe = safe_bytes_of(plan, r, limits[r], stw_plan_margins(plan).host);
    return stw_min_u64(stw_min_u64(safe.alarm, safe.full), safe.margin);
}

/* What is above these bytes. */
static void find_full(const stw_plan *plan, const use *uses, double host_margin, risk_list *out) {
    const uint64_t memory = plan->cluster.host.memory_bytes;
    for (int r = 0; r < N_RESOURCES; r++) {
        const use *u = &uses[r];
        const safe_bytes safe = safe_bytes_of(plan, r, u->limit_bytes, host_margin);
        stw_risk risk = {.kind = STW_RISK_FULL,
                         .resource = resources[r],
                         .phase = u->phase,
                         .bytes = u->bytes,
                         .most_bytes = u->bytes,
                         .limit_bytes = u->limit_bytes};
        if (u->bytes > safe.alarm) {
            risk.kind = STW_RISK_ALARM;
            risk.limit_bytes = memory;
            add(out, risk);
        } else if (u->bytes > safe.full) {
            add(out, risk);
        } else if (u->bytes > safe.margin) {
            risk.kind = STW_RISK_MARGIN;
            risk.margin = host_margin;
            risk.most_bytes = stw_plus(u->bytes, stw_scaled(u->bytes, host_margin));
            add(out, risk);
        }
    }
}

stw_status stw_plan_gpu_excess(stw_plan *plan, uint64_t *bytes, stw_error *err) {
    const stw_margins margins = stw_plan_margins(plan);
    const double reserved = plan->run.allocator.expandable_segments ? 0 : margins.reserved;
    stw_risk risks[2];
    risk_list list = {risks, 0};
    use uses[N_RESOURCES];
    stw_status status = stw_plan_replay_freely(plan, bytes, err);
    if (status != STW_STATUS_OK) return status;
    if (!plan->run.allocator.expandable_segments)
        find_gpu_margin(plan, 0, STW_RISK_RESERVED, reserved, &list);
    find_gpu_margin(plan, 0, STW_RISK_MARGIN, margins.gpu, &list);
    for (uint32_t i = 0; i < list.n; i++) /* a byte less is a margin less, too */
        *bytes =
            stw_max_u64(*bytes, (uint64_t)((double)(risks[i].most_bytes - risks[i].limit_bytes) /
                                           (1 + risks[i].margin)) +
                                    1);
    find_uses(plan, 0, uses);
    const uint64_t safe = stw_plan_safe_bytes(plan, STW_TIER_GPU, false);
    if (uses[GPU].bytes > safe) *bytes = stw_max_u64(*bytes, uses[GPU].bytes - safe);
    return STW_STATUS_OK;
}

static bool is_avoidable(const stw_risk *risk) {
    return risk->kind == STW_RISK_RETRIES || risk->kind == STW_RISK_RESERVED;
}

uint32_t stw_plan_risks(const stw_plan *plan, uint32_t home, stw_risk *out) {
    const stw_margins margins = stw_plan_margins(plan);
    risk_list list = {out, 0};
    use uses[N_RESOURCES];
    find_uses(plan, home, uses);
    if (is_over(uses)) return 0;
    if (home == 0) find_replayed(plan, &list);
    if (list.n == 0 && !plan->run.allocator.expandable_segments)
        find_gpu_margin(plan, home, STW_RISK_RESERVED, margins.reserved, &list);
    if (list.n == 0 || is_avoidable(&list.items[0]))
        find_gpu_margin(plan, home, STW_RISK_MARGIN, margins.gpu, &list);
    find_full(plan, uses, margins.host, &list);
    return list.n;
}

bool stw_plan_segments_help(const stw_plan *plan) {
    stw_plan other = *plan;
    stw_risk risks[STW_MAX_RISKS];
    const uint32_t kinds = plan->job->n_kinds;
    if (plan->run.allocator.expandable_segments || plan->replayed == NULL) return false;
    other.pool = stw_pool_new();
    if (other.pool == NULL) return false;
    other.run.allocator.expandable_segments = true;
    other.replayed = stw_pool_array(other.pool, kinds, sizeof *other.replayed);
    other.shown = stw_pool_array(other.pool, kinds, sizeof *other.shown);
    bool helps = other.replayed != NULL && other.shown != NULL &&
                 stw_plan_replay(&other, NULL) == STW_STATUS_OK;
    const uint32_t n = helps ? stw_plan_risks(&other, 0, risks) : 0;
    for (uint32_t i = 0; i < n; i++) helps = helps && risks[i].resource != resources[GPU];
    stw_pool_free(other.pool);
    return helps;
}

/* ---- the verdict ---- */

/* @param strictly count what expandable segments avoid */
static stw_verdict bytes_verdict_of(const stw_plan *plan, uint32_t home, bool strictly) {
    stw_risk risks[STW_MAX_RISKS];
    use uses[N_RESOURCES];
    find_uses(plan, home, uses);
    if (is_over(uses)) return STW_VERDICT_DOES_NOT_FIT;
    const uint32_t n = stw_plan_risks(plan, home, risks);
    for (uint32_t i = 0; i < n; i++)
        if (strictly || !is_avoidable(&risks[i])) return STW_VERDICT_AT_RISK;
    return STW_VERDICT_FITS;
}

stw_verdict stw_plan_verdict_of(const stw_plan *plan, uint32_t home) {
    const stw_verdict verdict = bytes_verdict_of(plan, home, true);
    const bool partial = home == 0 && stw_plan_is_partial(plan);
    return partial && verdict != STW_VERDICT_DOES_NOT_FIT ? STW_VERDICT_UNKNOWN : verdict;
}

static stw_verdict worst_of(const stw_plan *plan, bool strictly) {
    stw_verdict worst = STW_VERDICT_FITS;
    for (uint32_t r = 0; r < plan->job->n_roles; r++) {
        if (!stw_role_is_alone(plan->job->roles, r)) continue;
        const stw_verdict verdict = bytes_verdict_of(plan, r, strictly);
        if (verdict > worst) worst = verdict;
    }
    return worst;
}

stw_verdict stw_plan_bytes_verdict(const stw_plan *plan) { return worst_of(plan, true); }

stw_verdict stw_plan_trial_verdict(const stw_plan *plan) { return worst_of(plan, false); }

void stw_plan_judge(stw_plan *plan) {
    plan->verdict = stw_plan_bytes_verdict(plan);
    if (plan->verdict != STW_VERDICT_DOES_NOT_FIT && stw_plan_is_partial(plan))
        plan->verdict = STW_VERDICT_UNKNOWN;
}

bool stw_verdict_accepts_risk(const stw_run_spec *run) {
    return run->placement.accept_risk || run->placement.gpu_fill > STW_RISK_SHARE;
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

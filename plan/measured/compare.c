/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/measured/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/json.h"
#include "plan/files/plan_file.h"
#include "plan/files/plan_terms.h"
#include "plan/measured/compare_peaks.h"

/* Page-locked blocks in which a framework passes tables of pointers to kernels: 10 to 30 MiB of a
 * rank (torch 2.11, split_with_sizes_copy and chunk_cat). */
#define FRAMEWORK_LOCKED_BYTES (64ull << 20)

typedef stw_comparer comparer;

static bool is_external(const comparer *c) { return strcmp(c->run->source, "external") == 0; }

static const char *component_text(comparer *c, const char *tier, stw_component component) {
    char *text = stw_pool_printf(c->out->pool, "%s %s", tier, stw_component_name(component));
    if (text == NULL && c->status == STW_STATUS_OK)
        c->status = stw_fail(c->err, STW_STATUS_NO_MEMORY, "comparison", "out of memory");
    return text;
}

/* ---- one figure of one rank ---- */

typedef enum metric_kind {
    METRIC_ALLOCATED,
    METRIC_RESERVED,
    METRIC_DEVICE,
    METRIC_GPU_COMPONENT,
    METRIC_HOST_COMPONENT,
    METRIC_PROCESS
} metric_kind;

typedef struct metric {
    metric_kind kind;
    stw_component component;
} metric;

/* Bytes outside the arenas of the executor: the rest of a device or a process. */
static bool outside_arenas(stw_component component) {
    return component == STW_COMPONENT_CONTEXT || component == STW_COMPONENT_COMM ||
           component == STW_COMPONENT_SLACK || component == STW_COMPONENT_PROCESS ||
           component == STW_COMPONENT_PAGE_LOCK_ROUNDING ||
           component == STW_COMPONENT_PAGE_LOCK_CACHE;
}

static uint64_t arenas_on_host(const stw_measured *m) {
    uint64_t sum = 0;
    for (int k = 0; k < STW_N_COMPONENTS; k++)
        if (!outside_arenas((stw_component)k)) sum += m->host_components[k];
    return sum;
}

/* Predicted and measured bytes of a quantity; false if it was not measured. */
static bool figure(const comparer *c, metric which, const stw_peak *peak, const stw_measured *m,
                   double *predicted, double *measured) {
    const stw_peak *gpu = &peak[STW_TIER_GPU], *host = &peak[STW_TIER_HOST];
    uint64_t expected = 0, found = 0;
    bool external = is_external(c), known = true;
    switch (which.kind) {
    case METRIC_ALLOCATED:
        expected = stw_peak_allocated(gpu);
        found = m->allocated;
        known = !external || found > 0;
        break;
    case METRIC_RESERVED: /* of a framework's allocator: Stowage has one arena */
        expected = stw_peak_reserved(gpu);
        found = m->reserved;
        known = external && found > 0 && !c->plan->job->engine->spec.own_process;
        break;
    case METRIC_DEVICE:
        expected = gpu->total;
        found = m->device;
        known = found > 0 && strcmp(c->run->backend, "host") != 0;
        break;
    case METRIC_GPU_COMPONENT:
    case METRIC_HOST_COMPONENT:
        expected = (which.kind == METRIC_GPU_COMPONENT ? gpu : host)->components[which.component];
        found = (which.kind == METRIC_GPU_COMPONENT ? m->gpu_components
                                                    : m->host_components)[which.component];
        known = found > 0 || (!external && expected > 0 && !outside_arenas(which.component));
        break;
    case METRIC_PROCESS:
        expected = host->components[STW_COMPONENT_PROCESS];
        found = m->host - arenas_on_host(m);
        known = !external && m->host > arenas_on_host(m);
        break;
    }
    *predicted = (double)expected;
    *measured = (double)found;
    return known;
}

/* The line of a kind of rank shows the rank with the largest error. */
static void compare_metric(comparer *c, stw_phase phase, uint32_t kind, metric which) {
    stw_compare_line line = {.phase = phase, .kind = c->plan->job->kinds[kind].name};
    bool any = false;
    for (uint32_t i = 0; i < c->run->n_ranks; i++) {
        const stw_run_rank *rank = &c->run->ranks[i];
        double predicted, measured;
        if (!rank->phases[phase].known || stw_job_kind_of(c->plan->job, rank->rank) != kind)
            continue;
        if (!figure(c, which, c->ranks[kind].phase[phase], &rank->phases[phase], &predicted,
                    &measured))
            continue;
        if (any && fabs(stw_compare_error(predicted, measured)) <=
                       fabs(stw_compare_error(line.predicted, line.measured)))
            continue;
        any = true;
        line.rank = rank->rank;
        line.predicted = predicted;
        line.measured = measured;
    }
    if (!any) return;
    line.who = stw_compare_who(c, "rank", line.rank, c->plan->job->kinds[kind].n_ranks);
    switch (which.kind) {
    case METRIC_ALLOCATED:
        line.what = "gpu allocated";
        break;
    case METRIC_RESERVED:
        line.what = "gpu reserved";
        break;
    case METRIC_DEVICE:
        line.what = "gpu device";
        break;
    case METRIC_GPU_COMPONENT:
        line.what = component_text(c, "gpu", which.component);
        if (outside_arenas(which.component)) line.note = "included in gpu device";
        break;
    case METRIC_HOST_COMPONENT:
        line.what = component_text(c, "host", which.component);
        break;
    case METRIC_PROCESS:
        line.what = "host process";
        line.processes = 1;
        line.note = c->host_note;
        break;
    }
    stw_compare_add(c, line);
}

static void compare_ranks(comparer *c, stw_phase phase) {
    for (uint32_t k = 0; k < c->plan->job->n_kinds; k++) {
        compare_metric(c, phase, k, (metric){METRIC_ALLOCATED, STW_N_COMPONENTS});
        compare_metric(c, phase, k, (metric){METRIC_RESERVED, STW_N_COMPONENTS});
        compare_metric(c, phase, k, (metric){METRIC_DEVICE, STW_N_COMPONENTS});
        for (int i = 0; i < STW_N_COMPONENTS; i++)
            compare_metric(c, phase, k, (metric){METRIC_GPU_COMPONENT, (stw_component)i});
        for (int i = 0; i < STW_N_COMPONENTS; i++)
            if (i != STW_COMPONENT_PROCESS)
                compare_metric(c, phase, k, (metric){METRIC_HOST_COMPONENT, (stw_component)i});
        compare_metric(c, phase, k, (metric){METRIC_PROCESS, STW_N_COMPONENTS});
    }
}

/* ---- nodes ---- */

typedef struct node_sums {
    uint32_t ranks;                     /* measured, of this node */
    uint64_t host, page_locked, arenas; /* over its ranks */
} node_sums;

static node_sums sum_node(const comparer *c, stw_phase phase, uint32_t node) {
    node_sums sums = {0};
    for (uint32_t i = 0; i < c->run->n_ranks; i++) {
        const stw_run_rank *rank = &c->run->ranks[i];
        if (rank->rank / c->plan->job->ranks_per_node != node || !rank->phases[phase].known)
            continue;
        sums.ranks++;
        sums.host += rank->phases[phase].host;
        sums.page_locked += rank->phases[phase].page_locked;
        sums.arenas += arenas_on_host(&rank->phases[phase]);
    }
    return sums;
}

/* "host": everything on the node, processes included; "host arenas": what Stowage allocated. */
static void compare_nodes(comparer *c, stw_phase phase) {
    const stw_job *job = c->plan->job;
    stw_compare_line all = {0}, arenas = {0}, locked = {0};
    bool any_all = false, any_arenas = false, any_locked = false;
    for (uint32_t node = 0; node < c->plan->cluster.nodes; node++) {
        node_sums sums = sum_node(c, phase, node);
        uint64_t host = sums.ranks == job->ranks_per_node ? sums.host : 0;
        uint64_t page_locked = sums.ranks == job->ranks_per_node ? sums.page_locked : 0;
        for (uint32_t i = 0; i < c->run->n_nodes; i++) {
            if (c->run->nodes[i].node != node) continue;
            if (c->run->nodes[i].host[phase] > 0) host = c->run->nodes[i].host[phase];
            if (c->run->nodes[i].page_locked[phase] > 0)
                page_locked = c->run->nodes[i].page_locked[phase];
        }
        if (host == 0 && page_locked == 0 && sums.ranks == 0) continue;
        const stw_peak *peak =
            &c->nodes[stw_job_node_kind_of(job, node)].phase[phase][STW_TIER_HOST];
        stw_compare_line line = {.phase = phase, .kind = "node"};
        line.rank = node * job->ranks_per_node;
        line.what = "host";
        line.processes = job->ranks_per_node;
        line.predicted = (double)peak->total;
        line.measured = (double)host;
        line.note = c->host_note;
        if (host > 0) stw_compare_keep_worse(&all, &any_all, &line);
        line.what = "host page-locked";
        line.processes = 0;
        line.predicted = (double)peak->page_locked;
        line.measured = (double)page_locked;
        line.note = peak->page_locked == 0 &&
                            page_locked < stw_times(job->ranks_per_node, FRAMEWORK_LOCKED_BYTES)
                        ? "the framework's own small blocks"
                        : NULL;
        if (page_locked > 0 && is_external(c)) stw_compare_keep_worse(&locked, &any_locked, &line);
        line.what = "host arenas";
        line.processes = 0;
        line.predicted = (double)(peak->total - peak->components[STW_COMPONENT_PROCESS] -
                                  peak->components[STW_COMPONENT_PAGE_LOCK_ROUNDING] -
                                  peak->components[STW_COMPONENT_PAGE_LOCK_CACHE]);
        line.measured = (double)sums.arenas;
        if (sums.ranks == job->ranks_per_node && !is_external(c))
            stw_compare_keep_worse(&arenas, &any_arenas, &line);
    }
    locked.who =
        stw_compare_who(c, "node", locked.rank / job->ranks_per_node, c->plan->cluster.nodes);
    all.who = stw_compare_who(c, "node", all.rank / job->ranks_per_node, c->plan->cluster.nodes);
    arenas.who =
        stw_compare_who(c, "node", arenas.rank / job->ranks_per_node, c->plan->cluster.nodes);
    if (any_all) stw_compare_add(c, all);
    if (any_locked) stw_compare_add(c, locked);
    if (any_arenas) stw_compare_add(c, arenas);
}

/* ---- records without ranks ---- */

static void compare_total(comparer *c, stw_phase phase, const char *what, uint64_t predicted,
                          uint64_t measured, const char *note) {
    if (measured == 0) return;
    stw_compare_add(c, (stw_compare_line){.phase = phase,
                                          .what = what,
                                          .kind = "job",
                                          .who = "worst rank or node",
                                          .predicted = (double)predicted,
                                          .measured = (double)measured,
                                          .note = note});
}

static bool rank_measured(const stw_run_result *run, stw_phase phase) {
    for (uint32_t i = 0; i < run->n_ranks; i++)
        if (run->ranks[i].phases[phase].known) return true;
    return false;
}

static bool node_measured(const stw_run_result *run, stw_phase phase) {
    for (uint32_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].host[phase] > 0) return true;
    return false;
}

static bool page_locked_measured(const stw_run_result *run, stw_phase phase) {
    for (uint32_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].page_locked[phase] > 0) return true;
    return false;
}

/* The worst rank or node: of all roles, and of the trainer with what its allocator holds. */
static uint64_t worst_bytes(const comparer *c, stw_phase phase, stw_tier tier) {
    const stw_job *job = c->plan->job;
    uint64_t most = stw_plan_worst_bytes(c->plan, phase, tier);
    if (tier == STW_TIER_GPU)
        for (uint32_t k = 0; k < job->n_kinds; k++)
            most = stw_max_u64(most, c->ranks[k].phase[phase][tier].total);
    return most;
}

static void compare_totals(comparer *c, stw_phase phase) {
    if (!rank_measured(c->run, phase))
        compare_total(c, phase, "gpu device", worst_bytes(c, phase, STW_TIER_GPU),
                      c->run->gpu_bytes[phase], NULL);
    if (!rank_measured(c->run, phase) && !node_measured(c->run, phase))
        compare_total(c, phase, "host", worst_bytes(c, phase, STW_TIER_HOST),
                      c->run->host_bytes[phase], c->host_note);
}

static uint64_t measured_bytes(const stw_run_result *run, stw_phase phase, stw_tier tier) {
    const bool gpu = tier == STW_TIER_GPU;
    uint64_t most = gpu ? run->gpu_bytes[phase] : run->host_bytes[phase];
    for (uint32_t i = 0; i < run->n_ranks && gpu; i++)
        most = stw_max_u64(most, run->ranks[i].phases[phase].device);
    for (uint32_t i = 0; i < run->n_nodes && !gpu; i++)
        most = stw_max_u64(most, run->nodes[i].host[phase]);
    return most;
}

/* The highest is of phases that were sampled, and the one in which the plan has most was not: the
 * lines of those phases say all that is known. */
static bool is_of_other_phases(const comparer *c, stw_tier tier, stw_phase worst,
                               uint64_t measured) {
    uint64_t most = 0;
    for (int p = 0; p < STW_N_PHASES; p++)
        most = stw_max_u64(most, measured_bytes(c->run, (stw_phase)p, tier));
    return most >= measured && measured_bytes(c->run, worst, tier) == 0;
}

/* The peak of an external job, compared with the peak of the plan. */
static void compare_peak(comparer *c, const char *what, stw_tier tier, uint64_t measured,
                         const char *note) {
    int worst = 0;
    for (int p = 1; p < STW_N_PHASES; p++)
        if (worst_bytes(c, (stw_phase)p, tier) > worst_bytes(c, (stw_phase)worst, tier)) worst = p;
    if (is_of_other_phases(c, tier, (stw_phase)worst, measured)) return;
    compare_total(c, (stw_phase)worst, what, worst_bytes(c, (stw_phase)worst, tier), measured,
                  note);
}

/* ---- time ---- */

static void compare_time(comparer *c, stw_phase phase) {
    double predicted = c->plan->time_s[phase], measured = c->run->time_s[phase];
    if (isnan(measured)) return;
    stw_compare_line line = {.phase = phase, .what = "time", .kind = "job", .is_time = true};
    line.who = "slowest rank";
    line.from = c->run->time_from[phase];
    /* a log states the seconds of all passes of an iteration together */
    if (line.from != NULL) predicted *= (double)stw_max_u64(stw_plan_passes(c->plan, phase), 1);
    line.predicted = predicted;
    line.measured = measured;
    if (phase == STW_PHASE_FIRST_OPTIMIZER_STEP)
        line.note = "the first step includes warm-up";
    else if (phase == STW_PHASE_LOAD || phase == STW_PHASE_CHECKPOINT)
        line.note = "depends on storage and page cache";
    else if (stw_plan_is_unexecuted(c->plan, phase))
        line.note = "the plan's is planned, not executed by Stowage: another one was measured";
    else if (isnan(predicted))
        line.note = c->plan->verdict == STW_VERDICT_DOES_NOT_FIT
                        ? "the plan does not fit: no time is predicted"
                        : "no time is predicted";
    else
        line.note = c->out->time_note;
    stw_compare_add(c, line);
}

static const char *why_no_time(const comparer *c) {
    if (is_external(c) && c->run->backend[0] == '\0')
        return "the file does not name the GPU that it was measured on";
    if (strcmp(c->run->backend, "cuda") != 0) return "the backend is not cuda";
    if (!c->plan->cluster.calibration.measured) return "the cluster is not calibrated";
    if (strcmp(c->plan->cluster.gpu.name, c->run->device) != 0)
        return "the cluster is calibrated on another GPU model";
    return NULL;
}

static const char *why_no_host(const comparer *c) {
    if (strcmp(c->run->backend, "host") == 0)
        return "host backend: the process includes device memory";
    if (!c->plan->cluster.calibration.measured &&
        !stw_cluster_holds_learned(&c->plan->cluster, STW_LEARN_PROCESS))
        return "includes processes, and the cluster is not calibrated";
    return NULL;
}

/* ---- the whole ---- */

static void compare_phase(comparer *c, stw_phase phase) {
    const stw_run_result *run = c->run;
    bool bytes = rank_measured(run, phase) || node_measured(run, phase) ||
                 page_locked_measured(run, phase) || run->gpu_bytes[phase] > 0 ||
                 run->host_bytes[phase] > 0;
    if (!stw_plan_has_phase(c->plan, phase)) return;
    if (run->not_run[phase] || (!bytes && isnan(run->time_s[phase]))) {
        double predicted = (double)worst_bytes(c, phase, STW_TIER_GPU);
        stw_compare_add(c, (stw_compare_line){.phase = phase,
                                              .what = "gpu device",
                                              .kind = "job",
                                              .who = "worst rank",
                                              .predicted = predicted,
                                              .measured = NAN,
                                              .verdict = STW_LINE_NOT_MEASURED});
        return;
    }
    compare_ranks(c, phase);
    compare_nodes(c, phase);
    compare_totals(c, phase);
    compare_time(c, phase);
}

static const char *name_of(const char *file, const char *else_name) {
    return file != NULL ? file : else_name;
}

/* What both files say of themselves must be the same.
 * @param keys that differ, for people; or NULL */
static stw_status fail_other_plan(const stw_plan *plan, const stw_run_result *run, const char *what,
                                  const char *keys, stw_error *err) {
    return stw_fail(err, STW_STATUS_BAD_INPUT, name_of(run->file, "the run"),
                    "%s as in %s: the run belongs to another plan%s%s%s; name the plan that was "
                    "executed, or execute this one",
                    what, name_of(plan->file, "the plan"), keys != NULL ? " (" : "",
                    keys != NULL ? keys : "", keys != NULL ? ")" : "");
}

static stw_status check_peaks(const stw_job *job, const stw_run_result *run, stw_error *err) {
    const char *file = name_of(run->file, "the run");
    for (uint32_t i = 0; i < run->n_peaks; i++) {
        const stw_run_peak *peak = &run->peaks[i];
        const char *from = peak->from != NULL ? peak->from : "a peak";
        if (peak->rank >= 0 && (uint32_t)peak->rank >= job->world)
            return stw_fail(err, STW_STATUS_BAD_INPUT, file,
                            "%s: found rank %" PRId32 ", expected less than %" PRIu32
                            ", the number of ranks in the plan",
                            from, peak->rank, job->world);
        if (peak->node >= job->world / job->ranks_per_node)
            return stw_fail(err, STW_STATUS_BAD_INPUT, file,
                            "%s: found node %" PRIu32 ", expected less than %" PRIu32
                            ", the number of nodes in the plan",
                            from, peak->node, job->world / job->ranks_per_node);
    }
    return STW_STATUS_OK;
}

/* Each rank must be in the plan, and appear once. */
static stw_status check_ranks(const stw_job *job, const stw_run_result *run, stw_error *err) {
    const char *file = name_of(run->file, "the run");
    stw_pool *pool = stw_pool_new();
    bool *seen = stw_pool_array(pool, job->world, sizeof *seen);
    stw_status status = STW_STATUS_OK;
    if (seen == NULL) status = stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    for (uint32_t i = 0; i < run->n_ranks && status == STW_STATUS_OK; i++) {
        uint32_t rank = run->ranks[i].rank;
        if (rank >= job->world)
            status = stw_fail(err, STW_STATUS_BAD_INPUT, file,
                              "ranks: found rank %" PRIu32 ", expected less than %" PRIu32
                              ", the number of ranks in the plan",
                              rank, job->world);
        else if (seen[rank])
            status = stw_fail(err, STW_STATUS_BAD_INPUT, file,
                              "ranks: found rank %" PRIu32 " twice, expected each rank once", rank);
        else
            seen[rank] = true;
    }
    stw_pool_free(pool);
    return status;
}

/* The hash of everything that makes the plan; where it differs, the keys that do. */
static stw_status check_hash(const stw_plan *plan, const stw_run_result *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan_terms terms = STW_PLAN_TERMS_INIT;
    stw_text keys = STW_TEXT_INIT;
    char quoted[160], what[200];
    STW_TRY(stw_plan_terms_of(plan, &terms, err));
    if (strcmp(run->plan_hash, terms.hash) == 0) goto out;
    if (run->plan_terms[0] != '\0') stw_terms_differences(run->plan_terms, terms.lines.data, &keys);
    STW_TRY(stw_text_status(&keys, err));
    stw_text_quote(run->plan_hash, quoted, sizeof quoted);
    snprintf(what, sizeof what, "plan_hash: found %s, expected \"%s\"", quoted, terms.hash);
    status = fail_other_plan(plan, run, what, keys.data, err);
out:
    stw_text_free(&terms.lines);
    stw_text_free(&keys);
    return status;
}

static stw_status check_same_plan(const stw_plan *plan, const stw_run_result *run, stw_error *err) {
    const stw_job *job = plan->job;
    bool external = strcmp(run->source, "external") == 0;
    uint64_t elements = stw_plan_state_elements(plan);
    char what[320];
    if (!external || run->plan_hash[0] != '\0') {
        stw_status same = check_hash(plan, run, err);
        if (same != STW_STATUS_OK) return same;
    }
    snprintf(what, sizeof what, "world: found %" PRIu32 " ranks, expected %" PRIu32, run->world,
             job->world);
    if ((!external || run->world > 0) && run->world != job->world)
        return fail_other_plan(plan, run, what, NULL, err);
    if (!external && run->n_ranks != job->world)
        return stw_fail(err, STW_STATUS_BAD_INPUT, name_of(run->file, "the run"),
                        "ranks: found %" PRIu32 " entries, expected %" PRIu32 ", one per rank",
                        run->n_ranks, job->world);
    snprintf(what, sizeof what, "verify.elements: found %" PRIu64 ", expected %" PRIu64,
             run->elements, elements);
    if (!external && run->elements > 0 && run->elements != elements)
        return fail_other_plan(plan, run, what, NULL, err);
    stw_status status = check_peaks(job, run, err);
    return status == STW_STATUS_OK ? check_ranks(job, run, err) : status;
}

static void compare_all(comparer *c) {
    c->out->time_note = why_no_time(c);
    c->out->time_judged = c->out->time_note == NULL;
    c->host_note = why_no_host(c);
    for (int p = 0; p < STW_N_PHASES; p++) compare_phase(c, (stw_phase)p);
    c->out->external = is_external(c);
    c->out->n_ooms = c->run->n_ooms;
    c->out->ooms = c->run->ooms;
    if (is_external(c)) {
        compare_peak(c, "gpu peak", STW_TIER_GPU, c->run->gpu_peak_bytes, NULL);
        compare_peak(c, "host peak", STW_TIER_HOST, c->run->host_peak_bytes, c->host_note);
        stw_compare_run_peaks(c);
    }
}

stw_status stw_compare(const stw_plan *plan, const stw_run_result *run,
                       const stw_tolerance *tolerance, stw_comparison **out, stw_error *err) {
    static const stw_tolerance standard = STW_TOLERANCE_DEFAULT;
    if (plan->layouts == NULL || plan->node_peaks == NULL)
        return stw_fail(err, STW_STATUS_BUG, "plan", "compared before its layout was derived");
    stw_status status = check_same_plan(plan, run, err);
    if (status != STW_STATUS_OK) return status;
    stw_pool *pool = stw_pool_new();
    stw_comparison *comparison = stw_pool_alloc(pool, sizeof *comparison);
    if (comparison == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "comparison", "out of memory");
    }
    comparison->pool = pool;
    comparison->plan_verdict = plan->verdict;
    comparer c = {.plan = plan, .run = run, .out = comparison, .err = err};
    c.tolerance = tolerance != NULL ? *tolerance : standard;
    c.status = stw_plan_trainer_peaks(plan, pool, &c.ranks, &c.nodes, err);
    if (c.status == STW_STATUS_OK) compare_all(&c);
    if (c.status == STW_STATUS_OK)
        c.status = stw_compare_digests(comparison, &run, &(const char *){"run"}, 1, err);
    if (c.status == STW_STATUS_OK)
        *out = comparison;
    else
        stw_comparison_free(comparison);
    return c.status;
}

void stw_comparison_free(stw_comparison *comparison) {
    if (comparison != NULL) stw_pool_free(comparison->pool);
}

static void write_ooms(const stw_comparison *comparison, stw_json *json) {
    stw_json_begin_array(json, "out_of_memory");
    for (uint32_t i = 0; i < comparison->n_ooms; i++) {
        const stw_run_oom *oom = &comparison->ooms[i];
        stw_json_begin_object(json, NULL);
        stw_json_u64(json, "rank", oom->rank);
        stw_json_u64(json, "asked_bytes", oom->asked);
        stw_json_u64(json, "allocated_bytes", oom->allocated);
        if (oom->free != UINT64_MAX)
            stw_json_u64(json, "free_bytes", oom->free);
        else
            stw_json_double(json, "free_bytes", NAN);
        stw_json_string(json, "when", oom->when[0] != '\0' ? oom->when : NULL);
        stw_json_u64(json, "count", oom->count);
        stw_json_string(json, "from", oom->from);
        stw_json_end(json);
    }
    stw_json_end(json);
}

stw_status stw_comparison_to_json(const stw_comparison *comparison, stw_text *out, stw_error *err) {
    static const char *const verdicts[] = {[STW_LINE_WITHIN] = "within",
                                           [STW_LINE_OUTSIDE] = "outside",
                                           [STW_LINE_NOT_MEASURED] = "not_measured",
                                           [STW_LINE_NOT_JUDGED] = "not_judged"};
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.comparison/1");
    stw_json_string(json, "plan_verdict", stw_verdict_name(comparison->plan_verdict));
    stw_json_u64(json, "judged", comparison->judged);
    stw_json_u64(json, "outside", comparison->outside);
    stw_json_bool(json, "time_judged", comparison->time_judged);
    stw_json_string(json, "time_note", comparison->time_note);
    stw_comparison_write_verify(comparison, json);
    if (comparison->n_ooms > 0) write_ooms(comparison, json);
    stw_json_begin_array(json, "lines");
    for (uint32_t i = 0; i < comparison->n_lines; i++) {
        const stw_compare_line *line = &comparison->lines[i];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "phase", stw_phase_name(line->phase));
        stw_json_string(json, "what", line->what);
        stw_json_string(json, "kind", line->kind);
        stw_json_u64(json, "rank", line->rank);
        stw_json_string(json, "unit", line->is_time ? "s" : "B");
        stw_json_double(json, "predicted", line->predicted);
        stw_json_double(json, "measured", line->measured);
        stw_json_double(json, "error", line->error);
        stw_json_string(json, "verdict", verdicts[line->verdict]);
        stw_json_string(json, "note", line->note);
        stw_json_string(json, "from", line->from);
        stw_json_end(json);
    }
    stw_json_end(json);
    if (comparison->lessons != NULL) stw_lessons_write_json(comparison->lessons, json);
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

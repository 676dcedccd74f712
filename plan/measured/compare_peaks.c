/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/measured/compare_peaks.h"

#include <math.h>
#include <string.h>

#include "core/checked.h"

/* What the plan has of a metric on a kind of rank, in the phase in which it is most. */
static uint64_t planned_peak(const stw_comparer *c, stw_metric metric, uint32_t kind,
                             stw_phase *phase) {
    uint64_t most = 0;
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_peak *own = c->ranks[kind].phase[p], *all = c->plan->shown[kind].phase[p];
        uint64_t bytes = metric == STW_METRIC_ALLOCATED  ? stw_peak_allocated(&own[STW_TIER_GPU])
                         : metric == STW_METRIC_RESERVED ? stw_peak_reserved(&own[STW_TIER_GPU])
                         : metric == STW_METRIC_DEVICE   ? all[STW_TIER_GPU].total
                                                         : own[STW_TIER_HOST].total;
        if (bytes > most) *phase = (stw_phase)p;
        most = stw_max_u64(most, bytes);
    }
    return most;
}

static uint64_t planned_node_peak(const stw_comparer *c, uint32_t node, bool page_locked,
                                  stw_phase *phase) {
    const stw_peaks *peaks = &c->nodes[stw_job_node_kind_of(c->plan->job, node)];
    uint64_t most = 0;
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_peak *peak = &peaks->phase[p][STW_TIER_HOST];
        uint64_t bytes = page_locked ? peak->page_locked : peak->total;
        if (bytes > most) *phase = (stw_phase)p;
        most = stw_max_u64(most, bytes);
    }
    return most;
}

static const char *peak_name(const stw_run_peak *peak) {
    static const char *const names[STW_N_METRICS] = {
        "",          "gpu device peak",      "gpu allocated peak", "gpu reserved peak",
        "host peak", "host page-locked peak"};
    return names[peak->metric];
}

/* The worst kind of rank stands for a rank that the file does not name. */
static uint32_t worst_kind(const stw_comparer *c, stw_metric metric) {
    uint32_t worst = 0;
    stw_phase phase;
    for (uint32_t k = 1; k < c->plan->job->n_kinds; k++)
        if (planned_peak(c, metric, k, &phase) > planned_peak(c, metric, worst, &phase)) worst = k;
    return worst;
}

/* Of a rank that the file does not name: the kind that comes nearest. */
static uint32_t nearest_kind(const stw_comparer *c, const stw_run_peak *peak) {
    uint32_t nearest = 0;
    stw_phase phase;
    double off = INFINITY;
    for (uint32_t k = 0; k < c->plan->job->n_kinds; k++) {
        double bytes = (double)planned_peak(c, peak->metric, k, &phase);
        double error = fabs(bytes - (double)peak->bytes);
        if (error < off) nearest = k;
        off = fmin(off, error);
    }
    return nearest;
}

/* A node that the file does not name is node 0; ranks of one kind have one line. */
static uint32_t group_of(const stw_comparer *c, const stw_run_peak *peak) {
    if (peak->rank == STW_ALL_RANKS) return stw_job_node_kind_of(c->plan->job, peak->node);
    if (peak->rank >= 0) return stw_job_kind_of(c->plan->job, (uint32_t)peak->rank);
    return peak->rank == STW_SOME_RANK ? nearest_kind(c, peak) : worst_kind(c, peak->metric);
}

static stw_compare_line peak_line(stw_comparer *c, const stw_run_peak *peak) {
    const stw_job *job = c->plan->job;
    bool node = peak->rank == STW_ALL_RANKS;
    uint32_t group = group_of(c, peak);
    stw_compare_line line = {.what = peak_name(peak), .from = peak->from, .note = peak->note};
    line.kind = node ? "node" : peak->rank >= 0 ? job->kinds[group].name : "job";
    line.rank = node              ? peak->node * job->ranks_per_node
                : peak->rank >= 0 ? (uint32_t)peak->rank
                                  : 0;
    line.predicted =
        (double)(node ? planned_node_peak(c, peak->node, peak->metric == STW_METRIC_PAGE_LOCKED,
                                          &line.phase)
                      : planned_peak(c, peak->metric, group, &line.phase));
    line.measured = (double)peak->bytes;
    if (peak->metric == STW_METRIC_HOST) line.processes = node ? job->ranks_per_node : 1;
    if (line.note == NULL && peak->metric == STW_METRIC_HOST) line.note = c->host_note;
    if (line.note == NULL && peak->at_moment &&
        (line.predicted >= line.measured || stw_compare_within(c, &line)))
        line.note = peak->cut_short ? "the job ran out of memory: a lower bound"
                                    : "not of the whole run: its peak is not lower";
    return line;
}

/* Bytes of a framework's allocator: Stowage's own executor has one arena instead. */
static bool has_metric(const stw_comparer *c, const stw_run_peak *peak) {
    return peak->metric != STW_METRIC_RESERVED || !c->plan->job->engine->spec.own_process;
}

static bool same_line(const stw_comparer *c, const stw_run_peak *a, const stw_run_peak *b) {
    return a->metric == b->metric && a->at_moment == b->at_moment &&
           (a->rank < 0 || b->rank < 0 ? a->rank == b->rank : true) &&
           group_of(c, a) == group_of(c, b);
}

/* Of the ranks of a kind the one that is furthest off. */
static void compare_measured_peaks(stw_comparer *c) {
    const stw_run_result *run = c->run;
    for (uint32_t i = 0; i < run->n_peaks; i++) {
        const stw_run_peak *peak = &run->peaks[i];
        stw_compare_line worst = {0};
        bool any = false, done = false;
        uint32_t n = 0;
        for (uint32_t j = 0; j < run->n_peaks && !done; j++) {
            if (!same_line(c, peak, &run->peaks[j])) continue;
            done = j < i;
            n++;
            stw_compare_line line = peak_line(c, &run->peaks[j]);
            stw_compare_keep_worse(&worst, &any, &line);
        }
        if (done || !has_metric(c, peak)) continue;
        worst.who = peak->rank == STW_ALL_RANKS
                        ? stw_compare_who(c, "node", worst.rank / c->plan->job->ranks_per_node, n)
                    : peak->rank >= 0             ? stw_compare_who(c, "rank", worst.rank, n)
                    : peak->rank == STW_SOME_RANK ? "a rank"
                                                  : "worst rank";
        stw_compare_add(c, worst);
    }
}

/* What the plan predicts and no line of the file is of. */
static void add_missing(stw_comparer *c) {
    static const stw_run_peak wanted[] = {
        {.metric = STW_METRIC_ALLOCATED},
        {.metric = STW_METRIC_RESERVED},
        {.metric = STW_METRIC_DEVICE},
        {.rank = STW_ALL_RANKS, .metric = STW_METRIC_HOST},
        {.rank = STW_ALL_RANKS, .metric = STW_METRIC_PAGE_LOCKED}};
    static const char *const names[] = {"gpu allocated", "gpu reserved", "gpu device", "host",
                                        "host page-locked"};
    for (size_t w = 0; w < sizeof wanted / sizeof wanted[0]; w++) {
        stw_compare_line line = {.what = names[w], .measured = NAN};
        bool found = false, node = wanted[w].rank == STW_ALL_RANKS;
        for (uint32_t i = 0; i < c->out->n_lines; i++) {
            const stw_compare_line *l = &c->out->lines[i];
            found =
                found ||
                (l->verdict != STW_LINE_NOT_MEASURED &&
                 (strcmp(l->what, names[w]) == 0 || strcmp(l->what, peak_name(&wanted[w])) == 0 ||
                  (wanted[w].metric == STW_METRIC_DEVICE && strcmp(l->what, "gpu peak") == 0)));
        }
        uint32_t kind = worst_kind(c, wanted[w].metric);
        line.predicted =
            (double)(node ? planned_node_peak(c, 0, wanted[w].metric == STW_METRIC_PAGE_LOCKED,
                                              &line.phase)
                          : planned_peak(c, wanted[w].metric, kind, &line.phase));
        line.kind = node ? "node" : "job";
        line.who = node ? "node 0" : "worst rank";
        line.verdict = STW_LINE_NOT_MEASURED;
        if (!found && line.predicted > 0 && has_metric(c, &wanted[w])) stw_compare_add(c, line);
    }
}

/* ---- time ---- */

/* Seconds of several phases together: the highest of them names the line. */
static void compare_span(stw_comparer *c, int span, const char *what, double predicted,
                         double measured) {
    stw_compare_line line = {.phase = STW_PHASE_FORWARD_BACKWARD, .what = what, .kind = "job"};
    if (isnan(measured)) return;
    line.is_time = true;
    line.who = "job";
    line.from = c->run->time_from[span];
    line.predicted = predicted;
    line.measured = measured;
    line.note = isnan(predicted) ? "no time is predicted" : c->out->time_note;
    stw_compare_add(c, line);
}

static void compare_spans(stw_comparer *c) {
    const stw_plan *plan = c->plan;
    double train_s = 0;
    for (int p = STW_PHASE_FORWARD_BACKWARD; p <= STW_PHASE_OPTIMIZER_STEP; p++)
        if (stw_plan_passes(plan, (stw_phase)p) > 0)
            train_s += (double)stw_plan_passes(plan, (stw_phase)p) * plan->time_s[p];
    compare_span(c, STW_SPAN_TRAIN, "time of forward, backward and steps", train_s,
                 c->run->train_s);
    compare_span(c, STW_SPAN_ITERATION, "time of an iteration", stw_plan_iteration_s(plan),
                 c->run->iteration_s);
}

void stw_compare_run_peaks(stw_comparer *c) {
    compare_measured_peaks(c);
    compare_spans(c);
    if (c->status == STW_STATUS_OK) add_missing(c);
}

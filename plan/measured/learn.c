/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/measured/learn.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/median.h"
#include "core/units.h"
#include "plan/files/plan_file.h"
#include "plan/program/builder.h"
#include "plan/program/demand.h"

#define MIB 1048576.0
#define GIB 1073741824.0

/* What a constant of an environment can be. A value outside says that plan and recording are not of
 * the same job, or that something else was on the machine. */
static const struct {
    double least, most;
} bounds[STW_N_LEARNABLE] = {
    [STW_LEARN_PROCESS] = {64 * MIB, 32 * GIB},
    [STW_LEARN_LAUNCHER] = {0, 32 * GIB},
    [STW_LEARN_CONTEXT] = {16 * MIB, 8 * GIB},
    [STW_LEARN_EFFICIENCY] = {0.1, 3},
};

/* Phases whose resident bytes are the processes' own and what the plan says: loads and checkpoints
 * map files, whose pages count as resident. */
static const stw_phase steady[] = {STW_PHASE_LOG_PROB, STW_PHASE_FORWARD_BACKWARD,
                                   STW_PHASE_FIRST_OPTIMIZER_STEP, STW_PHASE_OPTIMIZER_STEP};
enum { N_STEADY = sizeof steady / sizeof steady[0] };

/* Of a node's recorded bytes, what the job itself may hold by the plan: a few per cent of error in
 * that would pass for a process. */
static const double OWN_SHARE = 0.25;
/* The rank of a node that holds most holds at most so many times what the least one holds. */
static const double ALIKE = 2;
/* Processes of a launcher below this are not told from what ranks share. */
static const double LEAST_LAUNCHER = 16 * MIB;
/* Of the predicted seconds that the GPU computes, so that its rate decides them; of those that any
 * other resource may be busy meanwhile. */
static const double GPU_SHARE = 0.9, OTHER_SHARE = 0.5;

typedef struct learner {
    const stw_plan *plan;
    const stw_run_result *run;
    const stw_learn_source *source;
    const stw_cluster *into;
    const stw_peaks *ranks, *nodes; /* of the trainer */
    stw_lessons *out;
    stw_status status; /* the first failure */
    stw_error *err;
} learner;

/* ---- lessons ---- */

static void skip(learner *l, stw_learnable which, const char *format, ...) STW_PRINTF(3, 4);
static void skip(learner *l, stw_learnable which, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(l->out->items[which].why, sizeof l->out->items[which].why, format, args);
    va_end(args);
}

static void value_words(stw_learnable which, double value, char *out, size_t out_size) {
    char size[48];
    if (!stw_learned_is_size(which)) {
        snprintf(out, out_size, "%.3g", value);
        return;
    }
    stw_bytes_format((uint64_t)fabs(value), size, sizeof size);
    snprintf(out, out_size, "%s%s", value < 0 ? "-" : "", size);
}

/* Names come from files: what is not plain text gives way to "_". */
static void copy(char *out, size_t out_size, const char *text) {
    size_t n = 0;
    for (; text[n] != '\0' && n + 1 < out_size; n++)
        out[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '_';
    out[n] = '\0';
}

/* Of a value; STW_N_PHASES: of the peak of the whole job. */
static const char *phase_words(stw_phase phase) {
    return phase < STW_N_PHASES ? stw_phase_name(phase) : "peak";
}

/* A value with its source, or the failure that it is absurd. Sizes are rounded to MiB. */
static void take(learner *l, stw_learnable which, double value, stw_phase phase, uint32_t samples) {
    stw_lesson *lesson = &l->out->items[which];
    const char *date = l->run->date[0] != '\0' ? l->run->date : l->source->date;
    if (l->status != STW_STATUS_OK) return;
    if (!(value >= bounds[which].least && value <= bounds[which].most)) {
        char found[64], least[64], most[64];
        value_words(which, value, found, sizeof found);
        value_words(which, bounds[which].least, least, sizeof least);
        value_words(which, bounds[which].most, most, sizeof most);
        l->status = stw_fail(l->err, STW_STATUS_BAD_INPUT, l->source->from,
                             "%s: found %s in %s, expected %s to %s; is the plan that of the "
                             "recorded job? Nothing is learned",
                             stw_learned_key(which), found, phase_words(phase), least, most);
        return;
    }
    if (stw_learned_is_size(which))
        lesson->entry.value.bytes = (uint64_t)(round(value / MIB) * MIB);
    else
        lesson->entry.value.number = round(value * 1000) / 1000;
    copy(lesson->entry.from, sizeof lesson->entry.from, l->source->from);
    copy(lesson->entry.model, sizeof lesson->entry.model, l->plan->model->name);
    copy(lesson->entry.phase, sizeof lesson->entry.phase, phase_words(phase));
    copy(lesson->entry.date, sizeof lesson->entry.date, date);
    lesson->entry.samples = samples;
    lesson->learned = true;
    l->out->n_learned++;
}

/* ---- the host ---- */

/* A node in a phase. */
typedef struct host_sample {
    stw_phase phase;
    uint32_t ranks;       /* of the node, that were recorded */
    bool partial;         /* some of them, not all */
    double of_ranks;      /* their bytes together, if all were */
    uint64_t least, most; /* of one of them */
    double of_node;       /* bytes of all processes; 0: unknown */
    double own;           /* of the job's ranks, by the plan: everything but processes */
    double others;        /* of the node, by the plan: object store, data loaders */
} host_sample;

/* Why nothing is learned of a node. */
#define LACKING                                                                                    \
    "the recording has host bytes of %" PRIu32 " of the %" PRIu32                                  \
    " ranks of a node in %s: what the others hold is unknown"

static double recorded(const host_sample *s) { return fmax(s->of_ranks, s->of_node); }

static host_sample sample_host(const learner *l, stw_phase phase, uint32_t node) {
    const stw_job *job = l->plan->job;
    host_sample s = {.phase = phase, .least = UINT64_MAX};
    for (uint32_t i = 0; i < l->run->n_ranks; i++) {
        const stw_run_rank *rank = &l->run->ranks[i];
        if (rank->rank / job->ranks_per_node != node || rank->phases[phase].host == 0) continue;
        s.ranks++;
        s.least = stw_min_u64(s.least, rank->phases[phase].host);
        s.most = stw_max_u64(s.most, rank->phases[phase].host);
        s.of_ranks += (double)rank->phases[phase].host;
    }
    s.partial = s.ranks > 0 && s.ranks < job->ranks_per_node;
    if (s.partial) s.of_ranks = 0;
    for (uint32_t i = 0; i < l->run->n_nodes; i++)
        if (l->run->nodes[i].node == node) s.of_node = (double)l->run->nodes[i].host[phase];
    const stw_peak *peak = &l->nodes[stw_job_node_kind_of(job, node)].phase[phase][STW_TIER_HOST];
    s.others = (double)stw_plus(peak->components[STW_COMPONENT_OBJECT_STORE],
                                peak->components[STW_COMPONENT_DATA_LOADERS]);
    s.own = (double)(peak->total - peak->components[STW_COMPONENT_PROCESS]) - s.others;
    return s;
}

/* What was recorded of nodes in steady phases. */
typedef struct host_samples {
    uint32_t n, n_light, n_launcher;
    bool partial;         /* of some ranks of a node host bytes are missing */
    host_sample lacking;  /* such a one */
    host_sample lightest; /* the least share is the job's own */
    host_sample fullest;  /* of those in which processes are nearly all of it */
    double launcher;      /* most bytes of processes that are no ranks */
    stw_phase launcher_phase;
} host_samples;

static void add_sample(host_samples *all, const host_sample *s) {
    const double launcher = s->of_node - s->of_ranks - s->others;
    if (s->partial) { /* what the others hold would pass for processes that are no ranks */
        all->partial = true;
        all->lacking = *s;
        return;
    }
    if (!(recorded(s) > 0)) return;
    if (all->n == 0 || s->own / recorded(s) < all->lightest.own / recorded(&all->lightest))
        all->lightest = *s;
    all->n++;
    if (s->of_ranks > 0 && s->of_node > 0) {
        if (all->n_launcher == 0 || launcher > all->launcher) {
            all->launcher = launcher;
            all->launcher_phase = s->phase;
        }
        all->n_launcher++;
    }
    if (s->own > OWN_SHARE * recorded(s)) return;
    if (all->n_light == 0 || recorded(s) > recorded(&all->fullest)) all->fullest = *s;
    all->n_light += s->of_ranks > 0 ? s->ranks : 1;
}

static void learn_process(learner *l, const host_samples *all) {
    const host_sample *s = &all->fullest;
    const double bytes = s->of_ranks > 0 ? s->of_ranks : s->of_node - s->others;
    char own[48], whole[48], least[48], most[48];
    stw_bytes_format(s->least, least, sizeof least);
    stw_bytes_format(s->most, most, sizeof most);
    stw_bytes_format((uint64_t)all->lightest.own, own, sizeof own);
    stw_bytes_format((uint64_t)recorded(&all->lightest), whole, sizeof whole);
    if (all->n == 0 && all->partial)
        skip(l, STW_LEARN_PROCESS, LACKING, all->lacking.ranks, l->plan->job->ranks_per_node,
             stw_phase_name(all->lacking.phase));
    else if (all->n == 0)
        skip(l, STW_LEARN_PROCESS,
             "host bytes of a node, or of all its ranks, were not recorded in log_prob, "
             "forward_backward or an optimizer step");
    else if (all->n_light == 0)
        skip(l, STW_LEARN_PROCESS,
             "the job itself holds %s of the %s on the host in %s, and at least a quarter in every "
             "other phase: an error of that would pass for a process",
             own, whole, stw_phase_name(all->lightest.phase));
    else if (s->ranks > 1 && (double)s->most > ALIKE * (double)s->least)
        skip(l, STW_LEARN_PROCESS,
             "ranks of a node hold %s to %s in %s: one of them holds more than its process", least,
             most, stw_phase_name(s->phase));
    else
        take(l, STW_LEARN_PROCESS, (bytes - s->own) / (double)l->plan->job->ranks_per_node,
             s->phase, all->n_light);
}

static void learn_launcher(learner *l, const host_samples *all) {
    if (all->n_launcher == 0 && all->partial)
        skip(l, STW_LEARN_LAUNCHER, LACKING, all->lacking.ranks, l->plan->job->ranks_per_node,
             stw_phase_name(all->lacking.phase));
    else if (all->n_launcher == 0)
        skip(l, STW_LEARN_LAUNCHER,
             "the recording has not both host bytes of all ranks and of their node%s",
             all->n_light > 0 && !(all->fullest.of_ranks > 0)
                 ? "; the launcher is counted in node.torch.process"
                 : "");
    else if (all->launcher < LEAST_LAUNCHER)
        skip(l, STW_LEARN_LAUNCHER, "a node holds no more than its ranks");
    else
        take(l, STW_LEARN_LAUNCHER, all->launcher, all->launcher_phase, all->n_launcher);
}

static void learn_host(learner *l) {
    host_samples all = {0};
    for (uint32_t node = 0; node < l->plan->cluster.nodes; node++)
        for (size_t p = 0; p < N_STEADY; p++) {
            if (!stw_plan_has_phase(l->plan, steady[p])) continue;
            const host_sample s = sample_host(l, steady[p], node);
            add_sample(&all, &s);
        }
    learn_process(l, &all);
    learn_launcher(l, &all);
}

/* ---- the GPU ---- */

/* Bytes of the device that torch's allocator does not hold, less all but the context. */
static bool sample_context(const learner *l, const stw_run_rank *rank, stw_phase phase,
                           double *out) {
    const stw_job *job = l->plan->job;
    const stw_measured *m = &rank->phases[phase];
    if (!m->known || m->device == 0 || m->reserved == 0) return false;
    const uint32_t kind = stw_job_kind_of(job, rank->rank);
    const stw_peak *peak = &l->ranks[kind].phase[phase][STW_TIER_GPU];
    const double comm = job->world > 1 ? (double)l->into->gpu.comm_bytes : 0;
    const double others = (double)(peak->total - stw_peak_reserved(peak)) -
                          (double)peak->components[STW_COMPONENT_CONTEXT] -
                          (double)peak->components[STW_COMPONENT_COMM];
    *out = (double)m->device - (double)m->reserved - others - comm;
    return true;
}

/* The highest since the job began, of records that know no phases; 0: unknown. */
static double peak_of(const stw_run_result *run, int32_t rank, stw_metric metric) {
    for (uint32_t i = 0; i < run->n_peaks; i++)
        if (run->peaks[i].rank == rank && run->peaks[i].metric == metric &&
            !run->peaks[i].at_moment && run->peaks[i].note == NULL)
            return (double)run->peaks[i].bytes;
    return 0;
}

/* The same of the peaks of a job. Only roles would hold anything else of a GPU. */
static bool sample_peak(const learner *l, const stw_run_peak *peak, double *out) {
    if (peak->rank < 0 || peak->metric != STW_METRIC_DEVICE) return false;
    const double device = peak_of(l->run, peak->rank, STW_METRIC_DEVICE),
                 reserved = peak_of(l->run, peak->rank, STW_METRIC_RESERVED);
    const double comm = l->plan->job->world > 1 ? (double)l->into->gpu.comm_bytes : 0;
    *out = device - reserved - comm;
    return device > 0 && reserved > 0;
}

static void learn_context(learner *l) {
    const size_t most = (size_t)l->run->n_ranks * N_STEADY + l->run->n_peaks;
    double *values = malloc((most > 0 ? most : 1) * sizeof *values);
    size_t n = 0;
    stw_phase first = STW_N_PHASES;
    if (values == NULL) {
        l->status = stw_fail(l->err, STW_STATUS_NO_MEMORY, l->source->from, "out of memory");
        return;
    }
    for (size_t p = 0; p < N_STEADY; p++)
        for (uint32_t i = 0; i < l->run->n_ranks; i++)
            if (stw_plan_has_phase(l->plan, steady[p]) &&
                sample_context(l, &l->run->ranks[i], steady[p], &values[n])) {
                if (n++ == 0) first = steady[p];
            }
    for (uint32_t i = 0; i < l->run->n_peaks && first == STW_N_PHASES; i++)
        if (sample_peak(l, &l->run->peaks[i], &values[n])) n++;
    if (n == 0)
        skip(l, STW_LEARN_CONTEXT,
             "no phase has both what a GPU holds (device) and what torch reserves of it "
             "(reserved), which the job can append to its marks");
    else
        take(l, STW_LEARN_CONTEXT, stw_median(values, n), first, (uint32_t)n);
    free(values);
}

/* ---- is it the same job? ---- */

/* Bytes that the framework's allocator hands out in forward and backward follow from model and
 * settings. Errors of predictions, and of what is another job. */
static const double LIKELY_ERROR = 0.05, OTHER_JOB = 0.25;

/* The furthest off of all ranks: what is predicted over what was recorded. */
static double worst_match(const learner *l, uint64_t *predicted, uint64_t *found) {
    const stw_phase phase = STW_PHASE_FORWARD_BACKWARD;
    double worst = 0;
    for (uint32_t i = 0; i < l->run->n_ranks && stw_plan_has_phase(l->plan, phase); i++) {
        const stw_measured *m = &l->run->ranks[i].phases[phase];
        const uint32_t kind = stw_job_kind_of(l->plan->job, l->run->ranks[i].rank);
        const stw_peak *peak = &l->ranks[kind].phase[phase][STW_TIER_GPU];
        const bool allocated = m->allocated > 0;
        const uint64_t held = allocated ? m->allocated : m->reserved,
                       planned = allocated ? stw_peak_allocated(peak) : stw_peak_reserved(peak);
        if (held == 0) continue;
        const double off = fabs((double)planned / (double)held - 1);
        if (off <= worst) continue;
        worst = off;
        *predicted = planned;
        *found = held;
    }
    return worst;
}

static void check_job(learner *l) {
    uint64_t predicted = 0, found = 0;
    char is[48], planned[48];
    if (worst_match(l, &predicted, &found) <= OTHER_JOB) return;
    stw_bytes_format(found, is, sizeof is);
    stw_bytes_format(predicted, planned, sizeof planned);
    l->status = stw_fail(l->err, STW_STATUS_BAD_INPUT, l->source->from,
                         "found %s of torch's allocator in forward_backward, expected about %s as "
                         "planned; is the plan that of the recorded job? Nothing is learned",
                         is, planned);
}

/* ---- seconds ---- */

/* Operations that a framework issues from Python for a block of a transformer: forward, its
 * recomputation, backward, hooks of the sharding. Runs so short that nothing else takes time spent
 * 8 to 10 ms on a block at 14 us a call (bench/results/2026-11-23-learn). */
static const double ISSUED_PER_BLOCK = 600;
/* Of the recorded seconds, what issuing may take: more of it is not hidden behind the GPU. */
static const double ISSUE_SHARE = 0.5;

double stw_learn_issue_s(const stw_plan *plan) {
    return ISSUED_PER_BLOCK * (double)plan->model->layers * plan->cluster.host.call_s;
}

bool stw_learn_is_short(const stw_plan *plan, double seconds) {
    return stw_learn_issue_s(plan) > ISSUE_SHARE * seconds;
}

/* The kind of rank that computes most. @param other_s out, of the busiest other resource */
static double gpu_seconds(const learner *l, double *other_s) {
    const stw_plan *plan = l->plan;
    double gpu_s = 0;
    *other_s = 0;
    for (uint32_t k = 0; plan->programs != NULL && k < plan->job->n_kinds; k++) {
        double busy[STW_N_RESOURCES] = {0}, other = 0;
        const stw_movement *movement =
            stw_program_movement(plan->programs[k], STW_PHASE_FORWARD_BACKWARD);
        if (movement == NULL) continue;
        stw_demand_add_movement(plan->job, plan->programs[k], movement, busy);
        for (unsigned r = 0; r < STW_N_RESOURCES; r++)
            if (r != STW_RESOURCE_GPU) other = fmax(other, busy[r]);
        if (busy[STW_RESOURCE_GPU] <= gpu_s) continue;
        gpu_s = busy[STW_RESOURCE_GPU];
        *other_s = other;
    }
    return gpu_s;
}

static void learn_efficiency(learner *l) {
    const stw_phase phase = STW_PHASE_FORWARD_BACKWARD;
    const stw_plan *plan = l->plan;
    const double measured = l->run->time_s[phase], predicted = plan->time_s[phase];
    uint64_t planned = 0, held = 0;
    const double off = worst_match(l, &planned, &held);
    double other_s, gpu_s = gpu_seconds(l, &other_s);
    const stw_learnable which = STW_LEARN_EFFICIENCY;
    if (!(measured > 0))
        skip(l, which, "the recording has no seconds of forward_backward");
    else if (!isfinite(predicted) || !(gpu_s > 0))
        skip(l, which, "the plan predicts no seconds of forward_backward");
    else if (l->run->device[0] == '\0')
        skip(l, which, "the recording does not name its GPU");
    else if (off > LIKELY_ERROR)
        skip(l, which,
             "bytes of torch's allocator are predicted %.0f%% off: the plan may be of another job",
             100 * off);
    else if (stw_plan_passes(plan, phase) > 1)
        skip(l, which,
             "an iteration has several micro batches: whether a recorded phase is one of them is "
             "unknown");
    else if (gpu_s < GPU_SHARE * predicted || other_s > OTHER_SHARE * gpu_s)
        skip(l, which,
             "forward_backward is not bound by the GPU alone: of %.3g s that are predicted it "
             "computes %.3g s, and another resource is busy for %.3g s",
             predicted, gpu_s, other_s);
    else if (stw_learn_is_short(plan, measured))
        skip(l, which,
             "forward_backward is too short (%.3g s): issuing its operations from Python takes "
             "about %.2g s; record longer sequences or larger micro batches",
             measured, stw_learn_issue_s(plan));
    else
        take(l, which,
             plan->cluster.gpu.efficiency * (predicted / measured) *
                 (plan->cluster.gpu.bf16_flops / l->into->gpu.bf16_flops),
             phase, l->run->steps);
}

/* ---- the whole ---- */

static bool differ(const char *a, const char *b) {
    return a[0] != '\0' && b[0] != '\0' && strcmp(a, "GPU") != 0 && strcmp(b, "GPU") != 0 &&
           strcmp(a, b) != 0;
}

static stw_status check_match(const stw_plan *plan, const stw_run_result *run,
                              const stw_learn_source *source, const stw_cluster *into,
                              stw_error *err) {
    const char *const gpu = plan->cluster.gpu.name;
    if (strcmp(run->source, "external") != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, source->from,
                        "source: found \"%.40s\", expected a recording of another program "
                        "(\"external\"); stowage calibrate measures Stowage's own process",
                        run->source);
    if (plan->job->engine->spec.own_process)
        return stw_fail(err, STW_STATUS_BAD_INPUT, plan->file != NULL ? plan->file : "the plan",
                        "engine: found %s, expected that of the recorded job (--set engine=...)",
                        plan->job->engine->spec.name);
    if (differ(run->device, gpu))
        return stw_fail(err, STW_STATUS_BAD_INPUT, source->from,
                        "device: found %.80s, expected %.64s as in the plan's cluster", run->device,
                        gpu);
    if (differ(into->gpu.name, gpu))
        return stw_fail(err, STW_STATUS_BAD_INPUT, into->name,
                        "node.gpu.name: found %.64s in the file that is to learn, expected %.64s "
                        "as in the plan's cluster",
                        into->gpu.name, gpu);
    return STW_STATUS_OK;
}

stw_status stw_learn(const stw_plan *plan, const stw_run_result *run,
                     const stw_learn_source *source, const stw_cluster *into, stw_lessons *out,
                     stw_error *err) {
    learner l = {.plan = plan, .run = run, .source = source, .into = into, .out = out, .err = err};
    stw_status status = check_match(plan, run, source, into, err);
    if (status != STW_STATUS_OK) return status;
    memset(out, 0, sizeof *out);
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++)
        out->items[w].before = stw_cluster_learnable(into, (stw_learnable)w);
    if (into->torch.process_bytes == 0) { /* plans take that of any process then */
        stw_lesson *process = &out->items[STW_LEARN_PROCESS];
        process->before.bytes = stw_build_process_base(plan->job, into, &process->before_from);
    }
    stw_pool *pool = stw_pool_new();
    l.status = stw_plan_trainer_peaks(plan, pool, &l.ranks, &l.nodes, err);
    if (l.status == STW_STATUS_OK) check_job(&l);
    if (l.status == STW_STATUS_OK && plan->job->n_roles > 1) {
        for (int w = STW_LEARN_PROCESS; w <= STW_LEARN_CONTEXT; w++)
            skip(&l, (stw_learnable)w,
                 "other roles share the nodes: their processes are in what was recorded");
    } else if (l.status == STW_STATUS_OK) {
        learn_host(&l);
        learn_context(&l);
    }
    if (l.status == STW_STATUS_OK) learn_efficiency(&l);
    stw_pool_free(pool);
    return l.status;
}

void stw_lessons_apply(const stw_lessons *lessons, stw_cluster *cluster) {
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++)
        if (lessons->items[w].learned)
            stw_cluster_learn(cluster, (stw_learnable)w, &lessons->items[w].entry);
}

static void write_value(stw_json *json, const char *name, stw_learnable which,
                        stw_learned_value value) {
    if (stw_learned_is_size(which))
        stw_json_u64(json, name, value.bytes);
    else
        stw_json_double(json, name, value.number);
}

void stw_lessons_write_json(const stw_lessons *lessons, stw_json *json) {
    stw_json_begin_object(json, "learn");
    stw_json_string(json, "file", lessons->path);
    stw_json_bool(json, "changed", lessons->changed);
    stw_json_begin_array(json, "learned");
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++) {
        const stw_lesson *lesson = &lessons->items[w];
        if (!lesson->learned) continue;
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "key", stw_learned_key((stw_learnable)w));
        write_value(json, "value", (stw_learnable)w, lesson->entry.value);
        write_value(json, "before", (stw_learnable)w, lesson->before);
        if (lesson->before_from != NULL) stw_json_string(json, "before_from", lesson->before_from);
        stw_json_string(json, "from", lesson->entry.from);
        stw_json_string(json, "model", lesson->entry.model);
        stw_json_string(json, "phase", lesson->entry.phase);
        stw_json_string(json, "date", lesson->entry.date);
        stw_json_u64(json, "samples", lesson->entry.samples);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_begin_array(json, "not_learned");
    for (unsigned w = 0; w < STW_N_LEARNABLE; w++) {
        if (lessons->items[w].learned) continue;
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "key", stw_learned_key((stw_learnable)w));
        stw_json_string(json, "why", lessons->items[w].why);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
}

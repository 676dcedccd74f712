/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* gmtime_r */
#include "plan/measured/recording.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/checked.h"
#include "core/median.h"

enum { MOST_RANKS = 1 << 20 };

static const char *const metric_names[STW_N_METRICS] = {"",         "device", "allocated",
                                                        "reserved", "host",   "page_locked"};

const char *stw_metric_name(stw_metric metric) {
    return (unsigned)metric < STW_N_METRICS ? metric_names[metric] : "?";
}

stw_status stw_recording_new(const char *file, stw_recording **out, stw_error *err) {
    stw_pool *pool = stw_pool_new();
    stw_recording *samples = stw_pool_alloc(pool, sizeof *samples);
    const char *name = stw_pool_string(pool, file);
    if (samples == NULL || name == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory for samples");
    }
    *samples = (stw_recording){.pool = pool, .file = name, .device = ""};
    *out = samples;
    return STW_STATUS_OK;
}

void stw_recording_free(stw_recording *samples) {
    if (samples != NULL) stw_pool_free(samples->pool);
}

stw_status stw_recording_add(stw_recording *samples, const stw_recorded *sample, stw_error *err) {
    stw_recorded *items = stw_pool_regrow(samples->pool, samples->items, samples->n, samples->n + 1,
                                          &samples->capacity, sizeof *items);
    if (items == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, samples->file, "out of memory for samples");
    samples->items = items;
    items[samples->n] = *sample;
    items[samples->n].number = samples->n;
    samples->n++;
    return STW_STATUS_OK;
}

stw_status stw_recording_add_time(stw_recording *samples, const stw_recorded_time *time,
                                  stw_error *err) {
    stw_recorded_time *times =
        stw_pool_regrow(samples->pool, samples->times, samples->n_times, samples->n_times + 1,
                        &samples->times_capacity, sizeof *times);
    if (times == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, samples->file, "out of memory for samples");
    samples->times = times;
    times[samples->n_times++] = *time;
    return STW_STATUS_OK;
}

stw_status stw_recording_add_oom(stw_recording *samples, const stw_run_oom *oom, stw_error *err) {
    stw_run_oom *ooms = stw_pool_regrow(samples->pool, samples->ooms, samples->n_ooms,
                                        samples->n_ooms + 1, &samples->ooms_capacity, sizeof *ooms);
    if (ooms == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, samples->file, "out of memory for samples");
    samples->ooms = ooms;
    ooms[samples->n_ooms++] = *oom;
    return STW_STATUS_OK;
}

/* ---- folding ---- */

/* The time that a rank spent in a phase, once. */
typedef struct visit {
    int phase;
    uint32_t rank; /* index into ranks */
    double seconds;
} visit;

typedef struct state {
    int phase; /* STW_NO_PHASE: none */
    double since;
    bool marked;                 /* phases are told by marks */
    bool stepped;                /* an optimizer step was marked */
    bool lost;                   /* its last host bytes are of a process that is gone */
    uint64_t now[STW_N_METRICS]; /* what was sampled last: it is there until the next sample */
} state;

typedef struct folder {
    const stw_recording *samples;
    stw_run_result *run;
    stw_pool *scratch;
    state *states;   /* by index of run->ranks */
    uint64_t *hosts; /* by node: resident bytes that were sampled last */
    size_t n_visits, capacity, peaks_capacity;
    visit *visits;
    stw_error *err;
} folder;

static int by_time(const void *a, const void *b) {
    const stw_recorded *x = a, *y = b;
    if (x->time_s != y->time_s) return x->time_s < y->time_s ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

static stw_status no_memory(const folder *f) {
    return stw_fail(f->err, STW_STATUS_NO_MEMORY, f->samples->file, "out of memory for samples");
}

/* Ranks in the order of their numbers, with the node that a sample of theirs names. */
static stw_status make_ranks(folder *f) {
    stw_run_result *run = f->run;
    uint32_t most = 0, nodes = 0;
    for (size_t i = 0; i < f->samples->n; i++) {
        const stw_recorded *s = &f->samples->items[i];
        if (s->rank >= MOST_RANKS || s->node >= MOST_RANKS)
            return stw_fail(f->err, STW_STATUS_BAD_INPUT, f->samples->file,
                            "rank %" PRId32 " of node %" PRIu32 ": expected less than %d", s->rank,
                            s->node, MOST_RANKS);
        if (s->rank >= 0) most = (uint32_t)stw_max_u64(most, (uint32_t)s->rank + 1);
        nodes = (uint32_t)stw_max_u64(nodes, s->node + 1);
    }
    uint32_t *at = stw_pool_array(f->scratch, most, sizeof *at);
    run->ranks = stw_pool_array(run->pool, most, sizeof *run->ranks);
    run->nodes = stw_pool_array(run->pool, nodes, sizeof *run->nodes);
    f->states = stw_pool_array(f->scratch, most, sizeof *f->states);
    f->hosts = stw_pool_array(f->scratch, nodes, sizeof *f->hosts);
    if (at == NULL || run->ranks == NULL || run->nodes == NULL || f->states == NULL ||
        f->hosts == NULL)
        return no_memory(f);
    for (size_t i = 0; i < f->samples->n; i++)
        if (f->samples->items[i].rank >= 0)
            at[f->samples->items[i].rank] = f->samples->items[i].node + 1;
    for (uint32_t r = 0; r < most; r++) {
        if (at[r] == 0) continue;
        f->states[run->n_ranks].phase = STW_NO_PHASE;
        run->ranks[run->n_ranks++] = (stw_run_rank){.rank = r, .node = at[r] - 1, .kind = ""};
    }
    run->n_nodes = nodes;
    for (uint32_t n = 0; n < nodes; n++) run->nodes[n].node = n;
    return STW_STATUS_OK;
}

static uint32_t find_rank(const stw_run_result *run, uint32_t rank) {
    uint32_t low = 0, high = run->n_ranks;
    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        if (run->ranks[middle].rank <= rank)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static stw_status leave(folder *f, uint32_t r, double now) {
    state *s = &f->states[r];
    if (s->phase == STW_NO_PHASE) return STW_STATUS_OK;
    visit *visits = stw_pool_regrow(f->scratch, f->visits, f->n_visits, f->n_visits + 1,
                                    &f->capacity, sizeof *visits);
    if (visits == NULL) return no_memory(f);
    f->visits = visits;
    visits[f->n_visits++] = (visit){s->phase, r, now - s->since};
    s->phase = STW_NO_PHASE;
    return STW_STATUS_OK;
}

static void raise_to(uint64_t *most, uint64_t bytes) { *most = stw_max_u64(*most, bytes); }

/* A phase begins with what the rank, its GPU and its node hold. */
static void carry(folder *f, uint32_t r) {
    const state *s = &f->states[r];
    stw_run_rank *rank = &f->run->ranks[r];
    if (s->phase == STW_NO_PHASE) return;
    stw_measured *m = &rank->phases[s->phase];
    const uint64_t host = s->lost ? 0 : s->now[STW_METRIC_HOST];
    m->known = m->known || s->now[STW_METRIC_DEVICE] > 0 || host > 0;
    raise_to(&m->device, s->now[STW_METRIC_DEVICE]);
    raise_to(&m->host, host);
    raise_to(&f->run->nodes[rank->node].host[s->phase], f->hosts[rank->node]);
}

static stw_status enter(folder *f, uint32_t r, const stw_recorded *mark) {
    state *s = &f->states[r];
    stw_status status = leave(f, r, mark->time_s);
    if (status != STW_STATUS_OK) return status;
    s->phase = mark->phase;
    s->since = mark->time_s;
    if (mark->phase == STW_PHASE_OPTIMIZER_STEP && !s->stepped)
        s->phase = STW_PHASE_FIRST_OPTIMIZER_STEP;
    if (mark->phase == STW_PHASE_OPTIMIZER_STEP || mark->phase == STW_PHASE_FIRST_OPTIMIZER_STEP)
        s->stepped = true;
    carry(f, r);
    return STW_STATUS_OK;
}

/* The phase of a rank's bytes: the one they name, the first step being the rank's first. */
static int phase_of(const state *s, const stw_recorded *sample) {
    bool first =
        sample->phase == STW_PHASE_OPTIMIZER_STEP && s->phase == STW_PHASE_FIRST_OPTIMIZER_STEP;
    return sample->phase == STW_NO_PHASE || first ? s->phase : sample->phase;
}

static void note_rank(folder *f, uint32_t r, const stw_recorded *sample) {
    stw_run_result *run = f->run;
    int phase = phase_of(&f->states[r], sample);
    if (sample->phase == STW_NO_PHASE) f->states[r].now[sample->metric] = sample->bytes;
    if (sample->metric == STW_METRIC_DEVICE) raise_to(&run->gpu_peak_bytes, sample->bytes);
    if (phase == STW_NO_PHASE) return;
    stw_measured *m = &run->ranks[r].phases[phase];
    uint64_t *const of[STW_N_METRICS] = {NULL,         &m->device, &m->allocated,
                                         &m->reserved, &m->host,   &m->page_locked};
    m->known = m->known || sample->bytes > 0;
    raise_to(of[sample->metric], sample->bytes);
}

static void note_node_phase(stw_run_node *node, int phase, const stw_recorded *sample) {
    if (phase == STW_NO_PHASE) return;
    if (sample->metric == STW_METRIC_HOST) raise_to(&node->host[phase], sample->bytes);
    if (sample->metric == STW_METRIC_PAGE_LOCKED)
        raise_to(&node->page_locked[phase], sample->bytes);
}

/* A node's bytes belong to the phases in which its ranks are. */
static void note_node(folder *f, const stw_recorded *sample) {
    stw_run_node *node = &f->run->nodes[sample->node];
    if (sample->metric == STW_METRIC_HOST) raise_to(&f->run->host_peak_bytes, sample->bytes);
    if (sample->phase != STW_NO_PHASE) {
        note_node_phase(node, sample->phase, sample);
        return;
    }
    if (sample->metric == STW_METRIC_HOST) f->hosts[sample->node] = sample->bytes;
    for (uint32_t r = 0; r < f->run->n_ranks; r++)
        if (f->run->ranks[r].node == sample->node)
            note_node_phase(node, f->states[r].phase, sample);
}

/* The highest of a rank or node; of equal ones the first. */
static stw_status note_peak(folder *f, const stw_recorded *s) {
    stw_run_result *run = f->run;
    stw_run_peak *known = NULL;
    for (uint32_t i = 0; i < run->n_peaks && known == NULL; i++)
        if (run->peaks[i].rank == s->rank && run->peaks[i].node == s->node &&
            run->peaks[i].metric == s->metric && run->peaks[i].at_moment == s->at_moment)
            known = &run->peaks[i];
    if (known == NULL) {
        stw_run_peak *peaks =
            stw_pool_regrow(run->pool, run->peaks, run->n_peaks, (size_t)run->n_peaks + 1,
                            &f->peaks_capacity, sizeof *peaks);
        if (peaks == NULL) return no_memory(f);
        run->peaks = peaks;
        known = &peaks[run->n_peaks++];
        *known = (stw_run_peak){.rank = s->rank, .node = s->node, .metric = s->metric};
        known->at_moment = s->at_moment;
    }
    if (s->bytes <= known->bytes && known->bytes > 0) return STW_STATUS_OK;
    known->bytes = s->bytes;
    known->cut_short = s->cut_short;
    known->from = stw_pool_string(run->pool, s->from);
    known->note = s->note;
    return s->from != NULL && known->from == NULL ? no_memory(f) : STW_STATUS_OK;
}

/* Which ranks have marks, and which were lost: the process that was sampled as a rank ended before
 * the rank marked anything, and the node was sampled on: what it held is not what the rank holds.
 * In the order of time. */
static stw_status find_lost(folder *f) {
    const stw_recorded *items = f->samples->items;
    bool all_marked = false;
    size_t *node_last = stw_pool_array(f->scratch, f->run->n_nodes, sizeof *node_last);
    size_t *marked = stw_pool_array(f->scratch, f->run->n_ranks, sizeof *marked);
    size_t *sampled = stw_pool_array(f->scratch, f->run->n_ranks, sizeof *sampled);
    if (node_last == NULL || marked == NULL || sampled == NULL) return no_memory(f);
    for (size_t i = 0; i < f->samples->n; i++) {
        const stw_recorded *s = &items[i];
        const bool mark = s->metric == STW_METRIC_NONE;
        if (!mark && (s->metric != STW_METRIC_HOST || s->phase != STW_NO_PHASE)) continue;
        all_marked = all_marked || (mark && s->rank == STW_ALL_RANKS);
        if (s->rank >= 0) {
            size_t *at = &(mark ? marked : sampled)[find_rank(f->run, (uint32_t)s->rank)];
            if (!mark || *at == 0) *at = i + 1;
        } else if (!mark) {
            node_last[s->node] = i + 1;
        }
    }
    for (uint32_t r = 0; r < f->run->n_ranks; r++) {
        f->states[r].marked = all_marked || marked[r] > 0;
        f->states[r].lost =
            marked[r] > 0 && sampled[r] < marked[r] && node_last[f->run->ranks[r].node] > marked[r];
    }
    return STW_STATUS_OK;
}

/* Bytes of a rank without a phase, where no marks tell phases: the highest of the job. What a
 * device or a node holds has the peaks of the run. */
static bool is_of_job(const state *s, const stw_recorded *sample) {
    return sample->phase == STW_NO_PHASE && !s->marked &&
           (sample->metric == STW_METRIC_ALLOCATED || sample->metric == STW_METRIC_RESERVED);
}

static stw_status fold_sample(folder *f, const stw_recorded *sample) {
    stw_status status = STW_STATUS_OK;
    bool mark = sample->metric == STW_METRIC_NONE;
    if (sample->phase == STW_EVERY_PHASE) return note_peak(f, sample);
    if (sample->rank >= 0) {
        uint32_t r = find_rank(f->run, (uint32_t)sample->rank);
        if (mark) return enter(f, r, sample);
        if (is_of_job(&f->states[r], sample)) return note_peak(f, sample);
        note_rank(f, r, sample);
    } else if (mark) {
        for (uint32_t r = 0; r < f->run->n_ranks && status == STW_STATUS_OK; r++)
            status = enter(f, r, sample);
    } else {
        note_node(f, sample);
    }
    return status;
}

/* ---- seconds ---- */

static int by_phase_and_rank(const void *a, const void *b) {
    const visit *x = a, *y = b;
    if (x->phase != y->phase) return x->phase < y->phase ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static bool is_step(int phase) {
    return phase == STW_PHASE_OPTIMIZER_STEP || phase == STW_PHASE_FIRST_OPTIMIZER_STEP;
}

/* Every optimizer step, of the rank that took longest for it. */
static stw_status fill_steps(folder *f) {
    stw_run_result *run = f->run;
    uint32_t *done = stw_pool_array(f->scratch, run->n_ranks, sizeof *done);
    run->step_all_s = stw_pool_array(run->pool, f->n_visits, sizeof(double));
    if (done == NULL || run->step_all_s == NULL) return no_memory(f);
    for (size_t i = 0; i < f->n_visits; i++) {
        const visit *v = &f->visits[i];
        if (!is_step(v->phase)) continue;
        uint32_t step = done[v->rank]++;
        run->n_step_all = (uint32_t)stw_max_u64(run->n_step_all, step + 1);
        run->step_all_s[step] = fmax(run->step_all_s[step], v->seconds);
    }
    run->steps = run->n_step_all;
    return STW_STATUS_OK;
}

static stw_status fill_seconds(folder *f) {
    double *values = stw_pool_array(f->scratch, f->n_visits, sizeof *values);
    stw_status status = fill_steps(f);
    if (values == NULL) return no_memory(f);
    if (status != STW_STATUS_OK || f->n_visits == 0) return status;
    qsort(f->visits, f->n_visits, sizeof *f->visits, by_phase_and_rank);
    for (size_t i = 0, end; i < f->n_visits; i = end) {
        const visit *v = &f->visits[i];
        for (end = i; end < f->n_visits && by_phase_and_rank(v, &f->visits[end]) == 0; end++)
            values[end - i] = f->visits[end].seconds;
        double *slowest = &f->run->time_s[v->phase], median = stw_median(values, end - i);
        *slowest = isnan(*slowest) ? median : fmax(*slowest, median);
    }
    return STW_STATUS_OK;
}

/* Seconds that were stated: the last mean, or the median. */
static stw_status fill_stated(folder *f) {
    const stw_recording *samples = f->samples;
    double *values = stw_pool_array(f->scratch, samples->n_times, sizeof *values);
    if (values == NULL) return no_memory(f);
    for (int span = 0; span < STW_N_SPANS; span++) {
        const stw_recorded_time *last = NULL;
        size_t n = 0;
        for (size_t i = 0; i < samples->n_times; i++) {
            if (samples->times[i].span != span) continue;
            last = &samples->times[i];
            if (!last->mean) values[n++] = last->seconds;
        }
        if (last == NULL) continue;
        double *out = span == STW_SPAN_TRAIN       ? &f->run->train_s
                      : span == STW_SPAN_ITERATION ? &f->run->iteration_s
                                                   : &f->run->time_s[span];
        *out = n > 0 ? stw_median(values, n) : last->seconds;
        if (last->from == NULL) continue;
        f->run->time_from[span] =
            n > 1 ? stw_pool_printf(f->run->pool, "%s, median of %zu", last->from, n)
                  : stw_pool_string(f->run->pool, last->from);
        if (f->run->time_from[span] == NULL) return no_memory(f);
    }
    return STW_STATUS_OK;
}

static bool has_bytes(const stw_recording *samples) {
    for (size_t i = 0; i < samples->n; i++)
        if (samples->items[i].metric != STW_METRIC_NONE && samples->items[i].bytes > 0) return true;
    return false;
}

/* The day of a time that counts from 1970, UTC; "" where its zero is another. */
static const char *date_of(stw_pool *pool, double time_s) {
    struct tm parts;
    char text[32] = "";
    const time_t when = time_s >= 1e9 && time_s < 1e10 ? (time_t)time_s : 0;
    if (when > 0 && gmtime_r(&when, &parts) != NULL)
        (void)strftime(text, sizeof text, "%Y-%m-%d", &parts);
    return stw_pool_string(pool, text);
}

static stw_status copy_ooms(folder *f) {
    stw_run_result *run = f->run;
    run->ooms = stw_pool_array(run->pool, f->samples->n_ooms, sizeof *run->ooms);
    if (run->ooms == NULL) return no_memory(f);
    for (size_t i = 0; i < f->samples->n_ooms; i++) {
        stw_run_oom *oom = &run->ooms[run->n_ooms++];
        *oom = f->samples->ooms[i];
        oom->when = stw_pool_string(run->pool, oom->when);
        oom->from = stw_pool_string(run->pool, oom->from);
        if (oom->when == NULL || oom->from == NULL) return no_memory(f);
    }
    return STW_STATUS_OK;
}

static stw_status fold(folder *f) {
    stw_recording const *samples = f->samples;
    if (f->scratch == NULL) return no_memory(f);
    if (!samples->may_be_empty && !has_bytes(samples))
        return stw_fail(f->err, STW_STATUS_BAD_INPUT, samples->file,
                        "found no bytes, expected a row with a metric");
    f->run->source = "external";
    f->run->backend = samples->device[0] != '\0' ? "cuda" : "";
    f->run->device = stw_pool_string(f->run->pool, samples->device);
    f->run->file = stw_pool_string(f->run->pool, samples->file);
    f->run->exit_code = samples->exit_code;
    f->run->date = date_of(f->run->pool, samples->n > 0 ? samples->items[0].time_s : 0);
    if (f->run->device == NULL || f->run->file == NULL || f->run->date == NULL) return no_memory(f);
    stw_status status = make_ranks(f);
    if (status == STW_STATUS_OK) status = find_lost(f);
    for (size_t i = 0; i < samples->n && status == STW_STATUS_OK; i++)
        status = fold_sample(f, &samples->items[i]);
    if (status == STW_STATUS_OK) status = fill_seconds(f);
    if (status == STW_STATUS_OK) status = copy_ooms(f);
    return status == STW_STATUS_OK ? fill_stated(f) : status;
}

stw_status stw_recording_fold(stw_recording *samples, stw_run_result **out, stw_error *err) {
    folder f = {.samples = samples, .err = err};
    stw_status status = stw_run_result_new(&f.run, err);
    if (status != STW_STATUS_OK) return status;
    f.scratch = stw_pool_new();
    if (samples->n > 0) qsort(samples->items, samples->n, sizeof *samples->items, by_time);
    status = fold(&f);
    stw_pool_free(f.scratch);
    if (status == STW_STATUS_OK)
        *out = f.run;
    else
        stw_run_result_free(f.run);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the Trace Event Format of Chrome (JSON object form), which Perfetto imports: "M" names
 * processes and threads, "X" is a slice, "C" a counter. Times are in microseconds. They are rounded
 * to whole nanoseconds before any subtraction. This keeps adjacent slices of a track from
 * overlapping. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reports/blocks.h"
#include "reports/reports.h"

enum { PHASE_TRACK = 1, FIRST_STREAM_TRACK = 2 };

typedef struct tracer {
    stw_text *out;
    uint32_t pid;
    bool any; /* at least one event was written */
    const stw_trace_event *events;
    uint32_t n_events;
} tracer;

/* The viewer's times end at 2^63 ns, 292 years. */
static int64_t nanoseconds(double seconds) {
    return isfinite(seconds) ? llround(fmin(fmax(seconds, 0), 9e9) * 1e9) : 0;
}

static void put_time(stw_text *out, const char *key, int64_t ns) {
    if (ns < 0) ns = 0;
    stw_text_printf(out, ",\"%s\":%" PRId64 ".%03" PRId64, key, ns / 1000, ns % 1000);
}

/* Write the common start of an event; the caller closes the object. */
static void begin_event(tracer *t, char type, uint32_t tid) {
    stw_text_printf(t->out, "%s\n{\"ph\":\"%c\",\"pid\":%u,\"tid\":%u", t->any ? "," : "", type,
                    t->pid, tid);
    t->any = true;
}

static void put_metadata(tracer *t, uint32_t tid, const char *what, const char *name) {
    begin_event(t, 'M', tid);
    stw_text_printf(t->out, ",\"name\":\"%s\",\"args\":{\"name\":", what);
    stw_block_quote(t->out, name);
    stw_text_printf(t->out, "}}");
}

/* Perfetto sorts threads by this index, not by thread number. */
static void put_sort_index(tracer *t, uint32_t tid) {
    begin_event(t, 'M', tid);
    stw_text_printf(t->out, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%u}}", tid);
}

static bool takes_time(const stw_trace_event *e) {
    return e->op->kind != STW_OP_ALLOC && e->op->kind != STW_OP_FREE &&
           nanoseconds(e->end_s) > nanoseconds(e->start_s);
}

static void put_tracks(tracer *t, const char *name) {
    bool used[STW_N_STREAMS] = {false};
    for (uint32_t i = 0; i < t->n_events; i++)
        if (takes_time(&t->events[i])) used[t->events[i].op->stream] = true;
    put_metadata(t, 0, "process_name", name);
    put_metadata(t, PHASE_TRACK, "thread_name", "phase");
    put_sort_index(t, PHASE_TRACK);
    for (unsigned s = 0; s < STW_N_STREAMS; s++) {
        if (!used[s]) continue;
        put_metadata(t, FIRST_STREAM_TRACK + s, "thread_name", stw_stream_name((stw_stream)s));
        put_sort_index(t, FIRST_STREAM_TRACK + s);
    }
}

static void put_slice_times(tracer *t, double start_s, double end_s) {
    int64_t start = nanoseconds(start_s), end = nanoseconds(end_s);
    put_time(t->out, "ts", start);
    put_time(t->out, "dur", end > start ? end - start : 0);
}

/* One slice per phase, from the start of its first operation to the end of its last. */
static void put_phases(tracer *t) {
    double start_s[STW_N_PHASES], end_s[STW_N_PHASES];
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        start_s[p] = INFINITY;
        end_s[p] = -INFINITY;
    }
    for (uint32_t i = 0; i < t->n_events; i++) {
        const stw_trace_event *e = &t->events[i];
        start_s[e->phase] = fmin(start_s[e->phase], e->start_s);
        end_s[e->phase] = fmax(end_s[e->phase], e->end_s);
    }
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        if (!isfinite(start_s[p]) || !isfinite(end_s[p])) continue;
        begin_event(t, 'X', PHASE_TRACK);
        stw_text_printf(t->out, ",\"name\":\"%s\"", stw_phase_name((stw_phase)p));
        put_slice_times(t, start_s[p], end_s[p]);
        stw_text_printf(t->out, "}");
    }
}

void stw_trace_op_name(const stw_op *op, char *out, size_t out_size) {
    const bool moves = stw_op_is(op, STW_OP_CLASS_MOVE) || stw_op_is(op, STW_OP_CLASS_FILE);
    char unit[16] = "";
    if (op->unit != STW_OP_NONE) snprintf(unit, sizeof unit, " %u", (unsigned)op->unit);
    snprintf(out, out_size, "%s%s%s%s", stw_op_kind_name(op->kind), moves ? " " : "",
             moves ? stw_component_name(op->component) : "", unit);
}

static void put_slice(tracer *t, const stw_trace_event *e) {
    const stw_op *op = e->op;
    char name[96];
    stw_trace_op_name(op, name, sizeof name);
    begin_event(t, 'X', FIRST_STREAM_TRACK + (uint32_t)op->stream);
    stw_text_printf(t->out, ",\"name\":\"%s\"", name);
    stw_text_printf(t->out, ",\"cat\":\"%s\"", stw_phase_name(e->phase));
    put_slice_times(t, e->start_s, e->end_s);
    stw_text_printf(t->out, ",\"args\":{\"component\":\"%s\",\"from\":\"%s\",\"to\":\"%s\"",
                    stw_component_name(op->component), stw_tier_name(op->from),
                    stw_tier_name(op->to));
    if (op->bytes > 0)
        stw_text_printf(t->out, ",\"bytes\":%" PRIu64 ",\"GB/s\":%.4g", op->bytes,
                        (double)op->bytes / (e->end_s - e->start_s) / 1e9);
    if (op->params > 0) stw_text_printf(t->out, ",\"params\":%" PRIu64, op->params);
    if (op->flops > 0) stw_text_printf(t->out, ",\"flops\":%.6g", op->flops);
    stw_text_printf(t->out, "}}");
}

/* Each event lists every component that the tier ever holds. The curves then have no gaps. */
static void put_counter(tracer *t, stw_tier tier, const stw_live *live,
                        const bool held[STW_N_COMPONENTS], int64_t ns) {
    const char *comma = "";
    begin_event(t, 'C', 0);
    stw_text_printf(t->out, ",\"name\":\"%s bytes\"", stw_tier_name(tier));
    put_time(t->out, "ts", ns);
    stw_text_printf(t->out, ",\"args\":{");
    for (unsigned c = 0; c < STW_N_COMPONENTS; c++) {
        if (!held[c]) continue;
        stw_text_printf(t->out, "%s\"%s\":%" PRIu64, comma, stw_component_name((stw_component)c),
                        live->bytes[tier][c]);
        comma = ",";
    }
    stw_text_printf(t->out, "}}");
}

/* Bytes are counted in list order, the order of allocation. The time of a counter is therefore at
 * least the time of every earlier event in the list. */
static void put_counters(tracer *t) {
    bool held[STW_N_TIERS][STW_N_COMPONENTS] = {{false}};
    stw_live live;
    memset(&live, 0, sizeof live);
    for (uint32_t i = 0; i < t->n_events; i++) {
        const stw_op *op = t->events[i].op;
        if (op->kind == STW_OP_ALLOC && op->bytes > 0) held[op->to][op->component] = true;
    }
    int64_t clock = 0;
    for (uint32_t i = 0; i < t->n_events; i++) {
        const stw_op *op = t->events[i].op;
        if ((op->kind != STW_OP_ALLOC && op->kind != STW_OP_FREE) || op->bytes == 0) continue;
        int64_t ns = nanoseconds(t->events[i].start_s);
        if (ns > clock) clock = ns;
        stw_live_apply(&live, op);
        put_counter(t, op->to, &live, held[op->to], clock);
    }
}

stw_status stw_trace_to_json(uint32_t n_tracks, const char *const *names,
                             const stw_trace_event *const *events, const uint32_t *n_events,
                             stw_text *out, stw_error *err) {
    tracer t = {.out = out};
    stw_text_printf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (uint32_t i = 0; i < n_tracks; i++) {
        t.pid = i + 1;
        t.events = events[i];
        t.n_events = n_events[i];
        put_tracks(&t, names[i]);
        put_phases(&t);
        for (uint32_t k = 0; k < t.n_events; k++)
            if (takes_time(&t.events[k])) put_slice(&t, &t.events[k]);
        put_counters(&t);
    }
    stw_text_printf(out, "\n]}\n");
    return stw_text_status(out, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct stretch {
    uint32_t alloc; /* operation */
    stw_phase phase;
    double begin_s, end_s;
    double used_s; /* end of the last operation on the bytes */
} stretch;

/* At one time bytes go before a movement begins, and come after that. */
typedef enum event_kind { GO, BEGIN, COME } event_kind;
typedef struct event {
    double at_s;
    event_kind kind;
    uint32_t of; /* stretch, or movement */
} event;

typedef struct timeline {
    const stw_sim *sim;
    stw_pool *pool;
    stretch *stretches; /* [n] */
    uint32_t n;
    uint32_t *live; /* [n_live] stretches whose free has not been listed */
    uint32_t n_live;
} timeline;

static const stw_op *alloc_of(const timeline *t, uint32_t index) {
    return &t->sim->program->ops[t->stretches[index].alloc];
}

static void begin(timeline *t, uint32_t op, stw_phase phase) {
    t->live[t->n_live++] = t->n;
    t->stretches[t->n++] =
        (stretch){op, phase, t->sim->ops[op].start_s, INFINITY, t->sim->ops[op].start_s};
}

static void end(timeline *t, uint32_t index) {
    const stw_op *op = &t->sim->program->ops[index];
    for (uint32_t i = t->n_live; i-- > 0;) {
        stretch *s = &t->stretches[t->live[i]];
        const stw_op *a = alloc_of(t, t->live[i]);
        if (a->to != op->to || a->offset_bytes != op->offset_bytes || a->bytes != op->bytes ||
            a->component != op->component)
            continue;
        s->end_s = fmax(t->sim->ops[index].end_s, s->used_s);
        t->live[i] = t->live[--t->n_live];
        return;
    }
}

/* An operation of another stream works on the bytes at an offset. */
static void use(timeline *t, uint32_t index, stw_tier tier, uint64_t offset) {
    for (uint32_t i = 0; i < t->n_live; i++) {
        stretch *s = &t->stretches[t->live[i]];
        const stw_op *a = alloc_of(t, t->live[i]);
        if (a->to != tier || a->offset_bytes == STW_OFFSET_EXTERNAL || offset < a->offset_bytes ||
            offset - a->offset_bytes >= a->bytes)
            continue;
        s->begin_s = fmin(s->begin_s, t->sim->ops[index].start_s);
        s->used_s = fmax(s->used_s, t->sim->ops[index].end_s);
    }
}

static void add_op(timeline *t, uint32_t index, stw_phase phase) {
    const stw_op *op = &t->sim->program->ops[index];
    if (op->kind == STW_OP_ALLOC) {
        begin(t, index, phase);
    } else if (op->kind == STW_OP_FREE) {
        end(t, index);
    } else if (op->bytes > 0 && op->stream != STW_STREAM_COMPUTE) {
        if (op->from != STW_TIER_NVME) use(t, index, op->from, op->from_offset_bytes);
        if (op->to != STW_TIER_NVME) use(t, index, op->to, op->offset_bytes);
    }
}

static int compare(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->at_s != y->at_s) return x->at_s < y->at_s ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    return (x->of > y->of) - (x->of < y->of);
}

static uint32_t list_events(const timeline *t, event *events) {
    const stw_program *program = t->sim->program;
    uint32_t n = 0;
    for (uint32_t m = 0; m < program->n_movements; m++)
        events[n++] = (event){t->sim->phase_start_s[program->movements[m].phase], BEGIN, m};
    for (uint32_t i = 0; i < t->n; i++) {
        const stretch *s = &t->stretches[i];
        if (!(s->begin_s < s->end_s)) continue;
        events[n++] = (event){s->begin_s, COME, i};
        if (isfinite(s->end_s)) events[n++] = (event){s->end_s, GO, i};
    }
    qsort(events, n, sizeof *events, compare);
    return n;
}

static void replay(const timeline *t, const event *events, uint32_t n, stw_peaks *peaks) {
    stw_live live;
    memset(&live, 0, sizeof live);
    for (uint32_t i = 0; i < n; i++) {
        if (events[i].kind == BEGIN) {
            stw_phase phase = t->sim->program->movements[events[i].of].phase;
            peaks->has[phase] = true;
            for (int tier = 0; tier < STW_N_TIERS; tier++)
                stw_live_note(&live, (stw_tier)tier, &peaks->phase[phase][tier]);
            continue;
        }
        stw_op op = *alloc_of(t, events[i].of);
        if (events[i].kind == GO) op.kind = STW_OP_FREE;
        stw_live_apply(&live, &op);
        if (events[i].kind == COME)
            stw_live_note(&live, op.to, &peaks->phase[t->stretches[events[i].of].phase][op.to]);
    }
}

stw_status stw_sim_live_peaks(const stw_sim *sim, stw_peaks *peaks, stw_error *err) {
    const stw_program *program = sim->program;
    timeline t = {.sim = sim, .pool = stw_pool_new()};
    uint32_t allocs = 0;
    memset(peaks, 0, sizeof *peaks);
    for (uint32_t i = 0; i < program->n_ops; i++) allocs += program->ops[i].kind == STW_OP_ALLOC;
    event *events = NULL;
    if (t.pool != NULL) {
        t.stretches = stw_pool_array(t.pool, allocs, sizeof *t.stretches);
        t.live = stw_pool_array(t.pool, allocs, sizeof *t.live);
        events = stw_pool_array(t.pool, 2 * (size_t)allocs + program->n_movements, sizeof *events);
    }
    if (t.stretches == NULL || t.live == NULL || events == NULL) {
        stw_pool_free(t.pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for %u allocs", allocs);
    }
    for (uint32_t m = 0; m < program->n_movements; m++)
        for (uint32_t i = 0; i < program->movements[m].n_ops; i++)
            add_op(&t, program->movements[m].first_op + i, program->movements[m].phase);
    replay(&t, events, list_events(&t, events), peaks);
    stw_pool_free(t.pool);
    return STW_STATUS_OK;
}

stw_status stw_sim_check_bytes(const stw_sim *sim, stw_error *err) {
    stw_peaks live;
    stw_status status = stw_sim_live_peaks(sim, &live, err);
    for (int p = 0; status == STW_STATUS_OK && p < STW_N_PHASES; p++)
        for (int t = 0; live.has[p] && t < STW_N_TIERS; t++)
            if (live.phase[p][t].total > sim->peaks.phase[p][t].total)
                return stw_fail(err, STW_STATUS_BUG, stw_phase_name((stw_phase)p),
                                "%llu bytes of %s are live at one time, the program states %llu",
                                (unsigned long long)live.phase[p][t].total,
                                stw_tier_name((stw_tier)t),
                                (unsigned long long)sim->peaks.phase[p][t].total);
    return status;
}

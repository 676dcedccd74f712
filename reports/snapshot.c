/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as a memory snapshot of torch, for https://pytorch.org/memory_viz: a pickle (protocol 2)
 * of the dict that torch.cuda.memory._snapshot() returns, with one allocation for each alloc of the
 * program. Frames say phase, component and role. */
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "reports/reports.h"

/* Blocks stand at addresses of their own: a later one may take the bytes of an earlier one in the
 * layout before the program frees that. */
static const uint64_t FIRST_ADDRESS = 1ull << 40;
enum { ALIGNMENT = 512 };

typedef struct block {
    const stw_op *op;
    const stw_movement *movement;
    uint64_t address;
} block;

typedef struct writer {
    stw_text *out;
    const stw_op_span *ops; /* NULL: no times, operations are counted */
    uint64_t clock_us, next_address;
    block *live; /* [n_live] */
    uint32_t n_live;
} writer;

static void put_code(stw_text *out, char code) { stw_text_append(out, &code, 1); }

static void put_number(stw_text *out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) put_code(out, (char)(value >> (8 * i) & 0xff));
}

static void put_text(stw_text *out, const char *text) {
    const size_t n = strlen(text);
    put_code(out, 'X'); /* BINUNICODE */
    put_number(out, n, 4);
    stw_text_append(out, text, n);
}

/* LONG1 of eight bytes; values are below 2^63. */
static void put_int(stw_text *out, uint64_t value) {
    put_code(out, (char)0x8a);
    put_code(out, 8);
    put_number(out, value, 8);
}

static void begin(stw_text *out, bool dict) { stw_text_append(out, dict ? "}(" : "](", 2); }
static void end(stw_text *out, bool dict) { put_code(out, dict ? 'u' : 'e'); }

static void put_key_text(stw_text *out, const char *key, const char *text) {
    put_text(out, key);
    put_text(out, text);
}

static void put_key_int(stw_text *out, const char *key, uint64_t value) {
    put_text(out, key);
    put_int(out, value);
}

static void put_frames(stw_text *out, const block *b) {
    put_text(out, "frames");
    begin(out, false);
    begin(out, true);
    put_key_text(out, "name", stw_component_name(b->op->component));
    put_key_text(out, "filename", stw_phase_name(b->movement->phase));
    put_key_int(out, "line", b->movement->role_number);
    end(out, true);
    end(out, false);
}

static void put_event(writer *w, const char *action, const block *b) {
    begin(w->out, true);
    put_key_text(w->out, "action", action);
    put_key_int(w->out, "addr", b->address);
    put_key_int(w->out, "size", b->op->bytes);
    put_key_int(w->out, "stream", 0);
    put_key_int(w->out, "time_us", w->clock_us);
    put_frames(w->out, b);
    end(w->out, true);
}

static void put_alloc(writer *w, const stw_op *op, const stw_movement *movement) {
    const block b = {op, movement, w->next_address};
    w->next_address = stw_plus(w->next_address, stw_plus(op->bytes, ALIGNMENT));
    w->next_address -= w->next_address % ALIGNMENT;
    w->live[w->n_live++] = b;
    put_event(w, "alloc", &b);
}

static void put_free(writer *w, const stw_op *op) {
    for (uint32_t i = w->n_live; i-- > 0;) {
        const block b = w->live[i];
        if (b.op->offset_bytes != op->offset_bytes || b.op->bytes != op->bytes ||
            b.op->component != op->component)
            continue;
        put_event(w, "free_requested", &b);
        put_event(w, "free_completed", &b);
        w->live[i] = w->live[--w->n_live];
        return;
    }
}

static void put_trace(writer *w, const stw_program *program) {
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            const bool gpu = op->to == STW_TIER_GPU && op->bytes > 0;
            const double at = w->ops != NULL ? w->ops[i].start_s * 1e6 : (double)i;
            if (at > (double)w->clock_us && at < 9e15) w->clock_us = (uint64_t)at;
            if (op->kind == STW_OP_ALLOC && gpu) put_alloc(w, op, movement);
            if (op->kind == STW_OP_FREE && gpu) put_free(w, op);
        }
    }
}

/* What is live at the end, a segment each. */
static void put_segment(stw_text *out, const block *b) {
    static const char *const sizes[] = {"total_size", "allocated_size", "active_size",
                                        "requested_size"};
    begin(out, true);
    put_key_int(out, "device", 0);
    put_key_int(out, "address", b->address);
    for (int i = 0; i < 4; i++) put_key_int(out, sizes[i], b->op->bytes);
    put_key_int(out, "stream", 0);
    put_key_text(out, "segment_type", "large");
    put_text(out, "blocks");
    begin(out, false);
    begin(out, true);
    put_key_int(out, "address", b->address);
    put_key_int(out, "size", b->op->bytes);
    put_key_int(out, "requested_size", b->op->bytes);
    put_key_text(out, "state", "active_allocated");
    put_frames(out, b);
    end(out, true);
    end(out, false);
    end(out, true);
}

stw_status stw_snapshot_of_program(const stw_program *program, const stw_op_span *ops,
                                   stw_text *out, stw_error *err) {
    stw_pool *pool = stw_pool_new();
    writer w = {.out = out, .ops = ops, .next_address = FIRST_ADDRESS};
    w.live = pool != NULL ? stw_pool_array(pool, program->n_ops, sizeof *w.live) : NULL;
    if (w.live == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a snapshot");
    }
    stw_text_append(out, "\x80\x02", 2);
    begin(out, true);
    put_text(out, "device_traces");
    begin(out, false);
    begin(out, false);
    put_trace(&w, program);
    end(out, false);
    end(out, false);
    put_text(out, "segments");
    begin(out, false);
    for (uint32_t i = 0; i < w.n_live; i++) put_segment(out, &w.live[i]);
    end(out, false);
    end(out, true);
    put_code(out, '.');
    stw_pool_free(pool);
    return stw_text_status(out, err);
}

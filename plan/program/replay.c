/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/replay.h"

#include <string.h>

#include "core/checked.h"

/* GPU bytes of an alloc that are there, and the blocks that hold them. */
typedef struct live_extent {
    uint64_t offset, bytes;
    stw_component component;
    bool left; /* by a movement of every iteration: a first step takes it over */
    uint32_t n_blocks;
    uint32_t *blocks;
} live_extent;

/* Where bytes lie that a program without tensors says are kept for other streams. */
enum { OTHER_STREAM = 1 };

typedef struct replay {
    const stw_job *job;
    const stw_layout *layout;
    const stw_program *program;
    stw_allocator *allocator;
    stw_pool *pool;
    uint32_t *tensors; /* [program.n_tensors] their blocks */
    live_extent *live;
    size_t n_live, live_room;
    stw_replayed *out;
    stw_phase phase;
    uint8_t micro_batch; /* what it is: STW_TENSOR_NOT_* of the events that it leaves out */
    stw_error *err;
} replay;

/* After so many micro batches of a movement nothing new happens. */
enum { MOST_MICRO_BATCHES = 4 };

static stw_status no_memory(const replay *r) {
    return stw_fail(r->err, STW_STATUS_NO_MEMORY, "allocator", "out of memory");
}

static stw_status take(replay *r, uint32_t stream, uint64_t bytes, uint32_t *block) {
    bool full = false;
    if (r->out->full) return STW_STATUS_OK;
    stw_status status = stw_allocator_take(r->allocator, stream, bytes, block, &full, r->err);
    if (status == STW_STATUS_OK && full) {
        r->out->full = true;
        r->out->full_at = r->phase;
        r->out->full_bytes = bytes;
    }
    return status;
}

/* ---- operations that no range replaces ---- */

/* The region whose bytes an alloc makes, if it is one of a state that has tensors. Stowage's
 * optimizer takes all of a component as one. */
static const stw_region *region_of(const replay *r, const stw_op *op) {
    const stw_engine *engine = r->job->engine;
    const bool inside = engine != NULL && stw_engine_steps_inside(&engine->spec);
    if (inside && op->component != STW_COMPONENT_PARAMS && op->component != STW_COMPONENT_GRADS)
        return NULL;
    for (uint32_t i = 0; i < r->layout->n_regions; i++) {
        const stw_region *region = &r->layout->regions[i];
        if (region->component == op->component && region->offset_bytes == op->offset_bytes &&
            region->bytes == op->bytes && region->params > 0)
            return region;
    }
    return NULL;
}

/* Bytes of a region, tensor by tensor of the model. */
static stw_status take_region(replay *r, const stw_region *region, live_extent *extent) {
    const stw_space *space = &r->job->kinds[r->layout->kind].spaces[region->space];
    const uint64_t element = region->bytes / region->params;
    const uint64_t end = region->first_param + region->params;
    extent->blocks = stw_pool_array(r->pool, space->n_segments, sizeof(uint32_t));
    if (extent->blocks == NULL) return no_memory(r);
    for (uint32_t i = 0; i < space->n_segments; i++) {
        const stw_segment *s = &space->segments[i];
        uint64_t from = stw_max_u64(s->first, region->first_param);
        uint64_t to = stw_min_u64(s->first + s->n, end);
        if (from >= to) continue;
        uint32_t *block = &extent->blocks[extent->n_blocks++];
        *block = STW_NO_BLOCK;
        stw_status status = take(r, 0, stw_times(to - from, element), block);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

/* Gradients that a backward left, and state that came back before its forward, are those that a
 * first step begins with. */
static bool take_over(replay *r, const stw_op *op) {
    for (size_t i = 0; i < r->n_live; i++) {
        live_extent *e = &r->live[i];
        if (!e->left || e->component != op->component || e->bytes != op->bytes) continue;
        e->left = false;
        e->offset = op->offset_bytes;
        return true;
    }
    return false;
}

static stw_status apply_alloc(replay *r, const stw_op *op, const stw_movement *movement) {
    if (movement->repeat == STW_REPEAT_FIRST && take_over(r, op)) return STW_STATUS_OK;
    live_extent *live =
        stw_pool_regrow(r->pool, r->live, r->n_live, r->n_live + 1, &r->live_room, sizeof *live);
    if (live == NULL) return no_memory(r);
    r->live = live;
    live_extent *e = &live[r->n_live++];
    *e = (live_extent){.offset = op->offset_bytes,
                       .bytes = op->bytes,
                       .component = op->component,
                       .left = movement->repeat == STW_REPEAT_EVERY_ITERATION &&
                               op->component < STW_N_STATE};
    const stw_region *region = region_of(r, op);
    if (region != NULL) return take_region(r, region, e);
    e->blocks = stw_pool_array(r->pool, 1, sizeof(uint32_t));
    if (e->blocks == NULL) return no_memory(r);
    e->n_blocks = 1;
    e->blocks[0] = STW_NO_BLOCK;
    const uint32_t stream = op->component == STW_COMPONENT_SLACK ? OTHER_STREAM : op->pool;
    return take(r, stream, op->bytes, &e->blocks[0]);
}

static stw_status apply_free(replay *r, const stw_op *op) {
    for (size_t i = r->n_live; i-- > 0;) {
        live_extent e = r->live[i];
        if (e.offset != op->offset_bytes || e.component != op->component || e.bytes != op->bytes)
            continue;
        memmove(&r->live[i], &r->live[i + 1], (r->n_live - i - 1) * sizeof e);
        r->n_live--;
        for (uint32_t n = 0; n < e.n_blocks; n++) {
            stw_status status = stw_allocator_drop(r->allocator, e.blocks[n], r->err);
            if (status != STW_STATUS_OK) return status;
        }
        return STW_STATUS_OK;
    }
    return STW_STATUS_OK; /* its alloc was replaced */
}

/* Context, collectives' buffers and the slots of a load (which stand for a reader's own, tensor by
 * tensor) are not torch's. What torch keeps for other streams is in the tensors of a program that
 * has them. */
static bool is_torchs(const stw_program *program, const stw_op *op) {
    return (op->kind == STW_OP_ALLOC || op->kind == STW_OP_FREE) && op->to == STW_TIER_GPU &&
           op->component != STW_COMPONENT_CONTEXT && op->component != STW_COMPONENT_COMM &&
           op->component != STW_COMPONENT_LOAD_STAGING &&
           (op->component != STW_COMPONENT_SLACK || program->n_ranges == program->n_lone_ranges);
}

/* ---- ranges ---- */

static stw_status apply_events(replay *r, const stw_tensor_range *range) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = range->first_event; i < range->first_event + range->n_events; i++) {
        const stw_tensor_event *event = &r->program->events[i];
        if ((event->unless & r->micro_batch) != 0) continue;
        switch ((stw_tensor_change)event->change) {
        case STW_TENSOR_TAKE:
            if (r->tensors[event->tensor] != STW_NO_BLOCK) break; /* it has stayed */
            STW_TRY(take(r, event->stream, event->bytes, &r->tensors[event->tensor]));
            break;
        case STW_TENSOR_DROP:
            STW_TRY(stw_allocator_drop(r->allocator, r->tensors[event->tensor], r->err));
            r->tensors[event->tensor] = STW_NO_BLOCK;
            break;
        case STW_TENSOR_EMPTY_CACHE:
            STW_TRY(stw_allocator_empty_cache(r->allocator, r->err));
            break;
        }
    }
out:
    return status;
}

static void note(stw_replayed_phase *phase, const stw_allocator_stats *stats) {
    phase->has = true;
    phase->allocated_bytes = stw_max_u64(phase->allocated_bytes, stats->peak_allocated_bytes);
    phase->reserved_bytes = stw_max_u64(phase->reserved_bytes, stats->peak_reserved_bytes);
    phase->cached_bytes =
        stw_max_u64(phase->cached_bytes, stats->reserved_bytes - stats->allocated_bytes);
}

/* The operations of a movement, in one of its micro batches: what no range replaces is allocated
 * in the first one and freed in the last one. */
static stw_status apply_operations(replay *r, uint32_t index) {
    stw_status status = STW_STATUS_OK;
    const stw_program *p = r->program;
    const stw_movement *movement = &p->movements[index];
    const uint32_t end = movement->first_op + movement->n_ops;
    const bool first = (r->micro_batch & STW_TENSOR_NOT_FIRST) != 0,
               last = (r->micro_batch & STW_TENSOR_NOT_LAST) != 0;
    uint32_t at = 0;
    while (at < p->n_ranges && p->ranges[at].movement != index) at++;
    for (uint32_t i = movement->first_op;; i++) {
        for (; at < p->n_ranges && p->ranges[at].movement == index && p->ranges[at].first_op == i;
             at++) {
            STW_TRY(apply_events(r, &p->ranges[at]));
            i = p->ranges[at].end_op;
        }
        if (i >= end) break;
        if (!is_torchs(p, &p->ops[i])) continue;
        if (p->ops[i].kind == STW_OP_ALLOC && first)
            STW_TRY(apply_alloc(r, &p->ops[i], movement));
        else if (p->ops[i].kind == STW_OP_FREE && last)
            STW_TRY(apply_free(r, &p->ops[i]));
    }
out:
    return status;
}

static stw_status apply_movement(replay *r, uint32_t index, uint32_t iteration) {
    stw_status status = STW_STATUS_OK;
    const stw_movement *movement = &r->program->movements[index];
    const uint32_t all = movement->micro_batches > 0 ? movement->micro_batches : 1;
    const uint32_t n = all < MOST_MICRO_BATCHES ? all : MOST_MICRO_BATCHES;
    if (r->out->full) return STW_STATUS_OK;
    r->phase = movement->phase;
    stw_allocator_reset_peaks(r->allocator);
    for (uint32_t i = 0; i < n && !r->out->full; i++) {
        r->micro_batch = (uint8_t)((i == 0 ? STW_TENSOR_NOT_FIRST : STW_TENSOR_NOT_LATER) |
                                   (i + 1 == n ? STW_TENSOR_NOT_LAST : STW_TENSOR_NOT_EARLIER));
        STW_TRY(apply_operations(r, index));
    }
    if (movement->empties_cache && !r->out->full)
        STW_TRY(stw_allocator_empty_cache(r->allocator, r->err));
    if (r->out->retries == 0 && stw_allocator_stats_of(r->allocator)->retries > 0) {
        r->out->retries = stw_allocator_stats_of(r->allocator)->retries;
        r->out->retried_at = movement->phase;
    }
    note(&r->out->iteration[iteration][movement->phase], stw_allocator_stats_of(r->allocator));
    note(&r->out->most[movement->phase], stw_allocator_stats_of(r->allocator));
out:
    return status;
}

/* Parts of an iteration in their order. A program lists the first step before what stands before
 * every step. */
enum { BEFORE_STEP, STEP, AFTER_STEP, N_TURNS, NOT_REPEATED };

static int turn_of(const stw_program *p, uint32_t index) {
    const stw_repeat repeat = p->movements[index].repeat;
    bool stepped = false;
    if (repeat == STW_REPEAT_FIRST || repeat == STW_REPEAT_LATER) return STEP;
    for (uint32_t m = 0; m < index; m++)
        stepped = stepped || p->movements[m].repeat == STW_REPEAT_LATER;
    if (repeat == STW_REPEAT_ONCE) return NOT_REPEATED;
    return stepped ? AFTER_STEP : BEFORE_STEP;
}

/* One iteration: what every one does and the step, which in the first one is a movement of its
 * own. */
static stw_status apply_iteration(replay *r, uint32_t iteration) {
    stw_status status = STW_STATUS_OK;
    const stw_program *p = r->program;
    for (int turn = 0; turn < N_TURNS; turn++)
        for (uint32_t m = 0; m < p->n_movements; m++) {
            const stw_movement *movement = &p->movements[m];
            const stw_repeat now = iteration == 0 ? STW_REPEAT_FIRST : STW_REPEAT_LATER;
            if (turn_of(p, m) != turn || (turn == STEP && movement->repeat != now)) continue;
            STW_TRY(apply_movement(r, m, iteration));
        }
out:
    return status;
}

stw_status stw_program_replay(const stw_job *job, const stw_layout *layout,
                              const stw_program *program, const stw_allocator_settings *settings,
                              stw_replayed *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    replay r = {.job = job, .layout = layout, .program = program, .out = out, .err = err};
    memset(out, 0, sizeof *out);
    r.pool = stw_pool_new();
    if (r.pool != NULL)
        r.tensors = stw_pool_array(r.pool, (size_t)program->n_tensors + 1, sizeof *r.tensors);
    if (r.tensors == NULL) STW_TRY(no_memory(&r));
    for (uint32_t i = 0; i < program->n_tensors; i++) r.tensors[i] = STW_NO_BLOCK;
    STW_TRY(stw_allocator_new(settings, &r.allocator, err));
    for (uint32_t m = 0; m < program->n_movements; m++)
        if (program->movements[m].repeat == STW_REPEAT_ONCE) STW_TRY(apply_movement(&r, m, 0));
    for (uint32_t i = 0; i < STW_REPLAY_ITERATIONS; i++) {
        const uint64_t before = stw_allocator_stats_of(r.allocator)->retries;
        STW_TRY(apply_iteration(&r, i));
        out->retries = stw_allocator_stats_of(r.allocator)->retries;
        out->last_retries = out->retries - before;
    }
out:
    stw_allocator_free(r.allocator);
    stw_pool_free(r.pool);
    return status;
}

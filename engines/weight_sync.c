/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/weight_sync.h"

#include <string.h>

#include "core/checked.h"
#include "core/units.h"
#include "engines/gather.h"

const stw_role *stw_synced_role(const stw_job *job) {
    for (uint32_t i = 0; i < job->run->n_roles; i++)
        if (job->run->roles[i].kind == STW_ROLE_ROLLOUT) return &job->run->roles[i];
    return NULL;
}

typedef struct sync {
    stw_builder *b;
    const stw_role *role;
    const stw_sync_source *source;
    uint64_t element, bucket_bytes;
    bool separate; /* the rollout has nodes of its own */
    bool buckets;  /* tensors are gathered until a bucket is full */
    stw_extent slots[2];
    uint32_t turn, sent_by[2];
    uint64_t filled;
    uint32_t placed; /* the last operation that wrote into a slot */
} sync;

static void look_at_role(sync *s) {
    s->element = stw_max_u64(stw_dtype_bits(s->role->dtype) / 8, 1);
    s->bucket_bytes = s->role->update_bucket_bytes;
    s->separate = strcmp(s->role->with, "none") == 0;
    s->buckets = s->b->job->run->weight_sync.method == STW_SYNC_BUCKETS;
    s->slots[0] = s->slots[1] = STW_NO_EXTENT;
    s->sent_by[0] = s->sent_by[1] = STW_OP_NONE;
}

/* ---- the transfer: pieces of the model's numbering, of a bucket at most ---- */

enum { MOST_PIECES = 1 << 18 }; /* listed one by one; models of 10^12 parameters with 16 MiB */

static void check_pieces(sync *s, uint64_t n) {
    const stw_job *job = s->b->job;
    char found[32], least[32];
    if (n <= MOST_PIECES || s->b->status != STW_STATUS_OK) return;
    stw_bytes_format(s->bucket_bytes, found, sizeof found);
    const uint64_t bytes = stw_times(stw_div_up_u64(job->files.n, MOST_PIECES), s->element);
    stw_bytes_format(stw_round_up_u64(bytes, 1 << 20), least, sizeof least);
    s->b->status = stw_fail(s->b->err, STW_STATUS_BAD_INPUT, NULL,
                            "roles.%u.update_bucket: found %s, expected at least %s: the model in "
                            "at most %d pieces",
                            (unsigned)(s->role - job->run->roles), found, least, MOST_PIECES);
}

static stw_transfer pieces_of(sync *s) {
    stw_builder *b = s->b;
    stw_transfer t = {.used = true,
                      .whole = true,
                      .from = STW_SPACE_PARAMS,
                      .to = STW_SPACE_PARAMS,
                      .from_component = STW_COMPONENT_PARAMS,
                      .to_component = STW_COMPONENT_ROLLOUT_WEIGHTS};
    const uint64_t most = stw_max_u64(s->bucket_bytes / stw_max_u64(s->element, 1), 1);
    const uint64_t n = stw_div_up_u64(b->job->files.n, most);
    check_pieces(s, n);
    if (b->status != STW_STATUS_OK || !stw_program_is_full(b->program, STW_PHASE_WEIGHT_SYNC))
        return t;
    t.pieces = stw_pool_array(b->program->pool, (size_t)n + 1, sizeof *t.pieces);
    if (t.pieces == NULL) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
        return t;
    }
    for (uint64_t done = 0; done < b->job->files.n; done += most) {
        const uint64_t count = stw_min_u64(most, b->job->files.n - done);
        const stw_view view = {&b->job->files, done, count};
        const stw_segment *first = &b->job->files.segments[stw_view_first_segment(view)];
        t.pieces[t.n_pieces++] = (stw_piece){.tensor = first->tensor,
                                             .first = done,
                                             .n = count,
                                             .room_bytes = stw_times(count, s->element)};
    }
    return t;
}

/* ---- buckets ---- */

/* What was filled goes to the rollout; the next tensors take the other slot. */
static void hand_over(sync *s) {
    stw_builder *b = s->b;
    const uint32_t slot = s->turn % 2;
    if (s->filled == 0) return;
    if (s->separate) {
        stw_op send = stw_op_make(STW_OP_SEND, STW_STREAM_COMM, STW_OP_NONE);
        send.group = STW_RANK_GROUP_SYNC;
        send.component = STW_COMPONENT_STAGE;
        send.from = send.to = STW_TIER_GPU;
        send.from_offset_bytes = send.offset_bytes = s->slots[slot].offset;
        send.bytes = s->filled;
        send.after[0] = s->placed;
        s->sent_by[slot] = stw_append(b, send);
    }
    s->filled = 0;
    s->turn++;
}

/* A tensor is copied into the slot that is being filled; the copy reads and writes it once. */
static void place(sync *s, uint64_t elements, uint32_t ready) {
    const uint32_t slot = s->separate ? s->turn % 2 : 0;
    stw_op op = stw_op_make(STW_OP_PLACE, STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = STW_COMPONENT_STAGE;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = op.offset_bytes = s->slots[slot].offset;
    op.bytes = stw_times(elements, s->element);
    op.params = elements;
    op.after[0] = ready;
    op.after[1] = s->sent_by[slot];
    s->placed = stw_append(s->b, op);
    s->filled = stw_plus(s->filled, op.bytes);
}

static void drop(sync *s, stw_whole_tensor *t) {
    for (int i = 0; i < 3; i++)
        stw_free_after(s->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, t->extents[i],
                       t->ready != STW_OP_NONE ? t->ready : STW_OP_NONE);
}

static void alloc_slots(sync *s) {
    const int n = s->separate ? 2 : 1;
    for (int i = 0; i < n; i++)
        s->slots[i] = stw_alloc(s->b, STW_COMPONENT_STAGE, STW_TIER_GPU, s->bucket_bytes);
}

static void free_slots(sync *s) {
    for (int i = 0; i < 2; i++)
        stw_free_after(s->b, STW_COMPONENT_STAGE, STW_TIER_GPU, s->slots[i], s->sent_by[i]);
}

/* ---- methods ---- */

static bool casts(const sync *s) {
    return s->element != stw_job_element_bytes(s->b->job, STW_COMPONENT_PARAMS);
}

/* One tensor at a time, whole and, where the rollout has another dtype, once more in that. */
static void by_tensors(sync *s) {
    alloc_slots(s);
    for (uint32_t i = 0; i < s->source->n && s->b->status == STW_STATUS_OK; i++) {
        const uint64_t bytes =
            stw_times(s->source->elements(s->source->state, s->b, i), s->element);
        if (bytes == 0) continue;
        if (stw_plus(s->filled, bytes) > s->bucket_bytes) hand_over(s);
        stw_whole_tensor t = s->source->gather(s->source->state, s->b, i);
        stw_extent cast = STW_NO_EXTENT;
        if (casts(s)) cast = stw_alloc(s->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, bytes);
        place(s, t.elements, t.ready);
        drop(s, &t);
        stw_free(s->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, cast);
    }
    hand_over(s);
    free_slots(s);
}

/* Tensors of a bucket together, then flattened. */
static void flatten(sync *s, stw_whole_tensor *held, uint32_t *n) {
    uint64_t elements = 0;
    uint32_t ready = STW_OP_NONE;
    for (uint32_t i = 0; i < *n; i++) {
        elements = stw_plus(elements, held[i].elements);
        if (held[i].ready != STW_OP_NONE) ready = held[i].ready;
    }
    if (elements == 0) return;
    s->slots[0] =
        stw_alloc(s->b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_times(elements, s->element));
    s->sent_by[0] = STW_OP_NONE;
    s->turn = 0;
    place(s, elements, ready);
    for (uint32_t i = 0; i < *n; i++) drop(s, &held[i]);
    hand_over(s);
    stw_free_after(s->b, STW_COMPONENT_STAGE, STW_TIER_GPU, s->slots[0], s->sent_by[0]);
    *n = 0;
}

static void by_buckets(sync *s) {
    stw_whole_tensor *held =
        stw_pool_array(s->b->program->pool, (size_t)s->source->n + 1, sizeof *held);
    uint64_t bytes = 0;
    uint32_t n = 0;
    if (held == NULL) {
        s->b->status = stw_fail(s->b->err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
        return;
    }
    for (uint32_t i = 0; i < s->source->n && s->b->status == STW_STATUS_OK; i++) {
        const uint64_t next = stw_times(s->source->elements(s->source->state, s->b, i), s->element);
        if (next == 0) continue;
        if (n > 0 && stw_plus(bytes, next) > s->bucket_bytes) {
            flatten(s, held, &n);
            bytes = 0;
        }
        held[n++] = s->source->gather(s->source->state, s->b, i);
        bytes = stw_plus(bytes, next);
    }
    flatten(s, held, &n);
}

void stw_build_weight_sync(stw_builder *b, const stw_sync_source *source) {
    sync s = {.b = b, .role = stw_synced_role(b->job), .source = source, .placed = STW_OP_NONE};
    if (s.role == NULL || b->status != STW_STATUS_OK) return;
    look_at_role(&s);
    const stw_transfer transfer = pieces_of(&s);
    /* verl's rollout_mode (workers/fsdp_workers.py) empties torch's cache first and last, and
     * slime's clear_memory does */
    if (b->program->n_movements > 0)
        b->program->movements[b->program->n_movements - 1].empties_cache = true;
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_WEIGHT_SYNC,
                                         .repeat = STW_REPEAT_EVERY_ITERATION,
                                         .empties_cache = true,
                                         .transfer = transfer});
    if (b->park != NULL) stw_park_return(b, b->park, STW_PARKED_PARAMS, true);
    if (s.buckets)
        by_buckets(&s);
    else
        by_tensors(&s);
    if (b->park != NULL) stw_park_leave(b, b->park, STW_PARKED_PARAMS, STW_OP_NONE);
    stw_end_movement(b);
}

/* ---- chunks of whole tensors ---- */

static uint64_t chunk_elements(const void *state, const stw_builder *b, uint32_t index) {
    (void)state;
    return b->job->model->tensors[index].numel;
}

/* Calls that DTensor.full_tensor() takes as long as, at 10 us each: 0.06 ms with one GPU and 0.23
 * ms with two, of 400 tensors of 1024 x 1024 in a row (bench/results/2026-11-22-rl, "Seconds"). */
enum { CALLS_OF_ONE = 6, CALLS_OF_SEVERAL = 23 };

static uint32_t call(stw_builder *b) {
    stw_op op = stw_op_make(STW_OP_CALLS, STW_STREAM_CPU, STW_OP_NONE);
    op.params = b->job->group > 1 ? CALLS_OF_SEVERAL : CALLS_OF_ONE;
    return stw_append(b, op);
}

static stw_whole_tensor gather_chunks(const void *state, stw_builder *b, uint32_t index) {
    const stw_gathered g = stw_gather_tensor(b, index, call(b));
    (void)state;
    return (stw_whole_tensor){.elements = b->job->model->tensors[index].numel,
                              .extents = {g.full, g.shard, STW_NO_EXTENT},
                              .ready = g.ready};
}

stw_sync_source stw_sync_of_chunks(const stw_job *job) {
    return (stw_sync_source){
        .n = job->model->n_tensors, .elements = chunk_elements, .gather = gather_chunks};
}

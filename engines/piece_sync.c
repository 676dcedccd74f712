/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/piece_sync.h"

#include "core/checked.h"
#include "core/units.h"
#include "engines/sync_plan.h"
#include "engines/weight_sync.h"

/* One set of buffers, and the last operation that reads or writes it. Offsets are those of the rank
 * that stands for its kind; others have the same set and cut it as their buffers are. */
typedef struct buffers {
    uint64_t send, receive, bucket;
    uint32_t packed, exchanged, placed;
} buffers;

typedef struct piece_sync {
    stw_builder *b;
    const stw_sync_plan *plan;
    const stw_sync_kind *kind;
    stw_extent room; /* of both sets */
    buffers sets[2];
    uint32_t exchanged; /* the last one */
    bool executed, in_place;
    stw_rank_group group;
    double on_host; /* share of this rank's parameters */
} piece_sync;

/* A default bucket of 1 GiB takes tens of rounds. */
#define MANY_ROUNDS 1000u

/* Share of this rank's parameters that lies on the host. */
static double share_on_host(const stw_builder *b) {
    const stw_layout *layout = b->layout;
    const uint64_t all = b->job->kinds[layout->kind].params;
    uint64_t found = 0;
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        if (r->component == STW_COMPONENT_PARAMS &&
            (r->tier == STW_TIER_HOST || stw_is_parked(b->park, r->component)))
            found = stw_plus(found, r->params);
    }
    return all > 0 ? (double)found / (double)all : 0;
}

/* What lies on the host is read from there by the kernel that packs or places it. */
static uint32_t read_host(piece_sync *s, uint64_t bytes, uint32_t unit, uint32_t after) {
    const uint64_t n = stw_scaled(bytes / s->plan->element, s->on_host);
    if (n == 0) return STW_OP_NONE;
    const uint64_t up = stw_times(n, stw_job_element_bytes(s->b->job, STW_COMPONENT_PARAMS));
    return stw_copy(s->b, &(stw_transport){.kind = STW_OP_COPY_PIECE,
                                           .stream = STW_STREAM_H2D,
                                           .component = STW_COMPONENT_PARAMS,
                                           .unit = unit,
                                           .from = {STW_TIER_HOST, STW_OFFSET_EXTERNAL},
                                           .to = {STW_TIER_GPU, STW_OFFSET_EXTERNAL},
                                           .bytes = up,
                                           .after = {after, STW_OP_NONE}});
}

static stw_op staged(stw_op_kind kind, stw_stream stream, uint32_t unit) {
    stw_op op = stw_op_make(kind, stream, unit);
    op.component = STW_COMPONENT_STAGE;
    op.from = op.to = STW_TIER_GPU;
    return op;
}

/* Cast to the rollout's dtype, into the send buffer. */
static void pack(piece_sync *s, uint32_t round) {
    const uint64_t bytes = s->kind->rounds[round].packed;
    buffers *set = &s->sets[round % s->plan->sets];
    stw_op op = staged(STW_OP_PACK, STW_STREAM_COMPUTE, round);
    set->packed = STW_OP_NONE;
    if (!s->kind->packs[round]) return;
    op.from_offset_bytes = op.offset_bytes = set->send;
    op.bytes = bytes;
    op.params = bytes / s->plan->element;
    op.after[0] = read_host(s, bytes, round, s->room.alloc);
    op.after[1] = set->placed != STW_OP_NONE ? set->placed : set->exchanged;
    set->packed = stw_append(s->b, op);
}

/* A round of messages takes as long as those of its busiest rank. */
static void exchange(piece_sync *s, uint32_t round) {
    const stw_sync_load *load = &s->kind->rounds[round];
    const stw_sync_busiest *busiest = &s->plan->busiest[round];
    buffers *set = &s->sets[round % s->plan->sets];
    stw_op op = staged(STW_OP_EXCHANGE, STW_STREAM_COMM, round);
    if (busiest->near_bytes == 0 && busiest->far_bytes == 0) return;
    op.group = s->group;
    op.from_offset_bytes = set->send;
    op.offset_bytes = set->receive;
    op.bytes = load->near_received + load->far_received;
    op.near_bytes = busiest->near_bytes;
    op.far_bytes = busiest->far_bytes;
    op.far_messages = busiest->far_messages;
    op.after[0] = set->packed != STW_OP_NONE ? set->packed : s->room.alloc;
    op.after[1] = set->placed;
    s->exchanged = set->exchanged = stw_append(s->b, op);
}

/* From the receive buffer, from what was packed and from the rank's other parameters into the
 * rollout's weights, or into the bucket and from there to the weights: its process copies, or the
 * run that executes the plan in its place. */
static void place(piece_sync *s, uint32_t round) {
    const stw_sync_load *load = &s->kind->rounds[round];
    buffers *set = &s->sets[round % s->plan->sets];
    stw_op op = staged(STW_OP_PLACE, STW_STREAM_COMPUTE, round);
    if (!s->kind->places[round]) return;
    op.from_offset_bytes = s->in_place ? STW_OFFSET_EXTERNAL : set->receive;
    op.offset_bytes = set->bucket;
    op.bytes = load->placed;
    op.params = load->placed / s->plan->element;
    op.after[0] = set->exchanged;
    op.after[1] = read_host(s, load->own - load->own_sent, round, s->room.alloc);
    if (!s->in_place) {
        op.after[0] = stw_append(s->b, op);
        op.after[1] = STW_OP_NONE;
        op.from_offset_bytes = set->bucket;
    }
    op.component = STW_COMPONENT_ROLLOUT_WEIGHTS;
    if (s->executed) op.offset_bytes = s->b->layout->rollout_offset_bytes;
    set->placed = stw_append(s->b, op);
}

static void make_buffers(piece_sync *s) {
    const uint64_t room = stw_sync_room(&s->plan->trainer);
    s->room = stw_alloc(s->b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_times(s->plan->sets, room));
    for (uint32_t i = 0; i < s->plan->sets; i++) {
        buffers *set = &s->sets[i];
        set->send = stw_plus(s->room.offset, stw_times(i, room));
        set->receive = stw_plus(set->send, s->kind->total.send_room);
        set->bucket = stw_plus(set->receive, s->kind->total.receive_room);
    }
}

/* A round is packed and sent while the one before it is placed. */
static void add_rounds(piece_sync *s) {
    const uint32_t n = s->plan->n_rounds;
    for (uint32_t round = 0; round <= n && s->b->status == STW_STATUS_OK; round++) {
        if (round < n) pack(s, round);
        if (round < n) exchange(s, round);
        if (round > 0) place(s, round - 1);
    }
}

/* Small buckets make long programs: the key is named where the time ends in one. */
static void name_bucket(const piece_sync *s, const stw_role *role) {
    stw_builder *b = s->b;
    char found[32];
    if (b->status != STW_STATUS_TIME_LIMIT || s->plan->n_rounds < MANY_ROUNDS) return;
    stw_bytes_format(role->update_bucket_bytes, found, sizeof found);
    if (b->err != NULL) *b->err = (stw_error)STW_ERROR_INIT;
    b->status = stw_fail(b->err, STW_STATUS_TIME_LIMIT, NULL,
                         "roles.%u.update_bucket: found %s, with which a weight sync takes %u "
                         "rounds: the time limit passed while they were listed; set a larger "
                         "bucket, or allow more (--time-limit)",
                         (unsigned)(role - b->job->run->roles), found, s->plan->n_rounds);
}

void stw_build_piece_sync(stw_builder *b) {
    const buffers none = {0, 0, 0, STW_OP_NONE, STW_OP_NONE, STW_OP_NONE};
    const stw_role *role = stw_synced_role(b->job);
    piece_sync s = {.b = b,
                    .room = STW_NO_EXTENT,
                    .sets = {none, none},
                    .exchanged = STW_OP_NONE,
                    .executed = stw_sync_is_executed(b->job),
                    .group = STW_RANK_GROUP_WORLD};
    if (role == NULL || b->status != STW_STATUS_OK) return;
    b->status = stw_sync_plan_of(b->job, &s.plan, b->err);
    if (b->status != STW_STATUS_OK) return;
    if (stw_role_is_alone(b->job->roles, (uint32_t)(role - b->job->run->roles) + 1))
        s.group = STW_RANK_GROUP_SYNC;
    s.kind = &s.plan->kinds[b->layout->kind];
    s.in_place = stw_sync_is_in_place(b->job);
    s.on_host = share_on_host(b);
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_WEIGHT_SYNC,
                                         .repeat = STW_REPEAT_EVERY_ITERATION,
                                         .threading = STW_THREADING_PER_STREAM,
                                         .barrier = s.executed,
                                         .executable = s.executed,
                                         .by_stowage = true});
    make_buffers(&s);
    if (!b->skipping) add_rounds(&s);
    name_bucket(&s, role);
    stw_free_after(b, STW_COMPONENT_STAGE, STW_TIER_GPU, s.room, s.exchanged);
    stw_end_movement(b);
}

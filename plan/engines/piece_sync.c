/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/piece_sync.h"

#include "core/checked.h"
#include "plan/engines/partition.h"
#include "plan/engines/rollout/sizes.h"
#include "plan/engines/weight_sync.h"

static uint32_t number_of(const stw_job *job) {
    return (uint32_t)(stw_sync_role(job) - job->run->roles) + 1;
}

static bool is_separate(const stw_job *job) {
    return stw_role_is_alone(job->roles, number_of(job));
}

/* ---- what receivers need and have ---- */

/* Ranks of a kind, or of the engines that receive elsewhere, and what each needs and has of it. */
typedef struct receivers {
    const stw_job *job;
    uint32_t n;
    const uint32_t *ranks; /* of the trainer; NULL: they are none */
    stw_sync_needs *each;  /* [n] `lacks` is what it has, until the end */
} receivers;

/* Blocks of a group have equal shapes, so the first one counts for all. */
static void add_tensor(const receivers *r, const stw_rollout_role *role, uint32_t t) {
    const stw_model *model = r->job->model;
    const uint64_t times = model->groups[model->blocks[model->tensors[t].block].group].count;
    const stw_rollout_cut cut = stw_rollout_cut_of(role, &model->tensors[t]);
    for (uint32_t i = 0; i < r->n; i++) {
        const uint32_t rank = r->ranks != NULL ? r->ranks[i] : i;
        uint64_t first = 0, count = 0;
        if (r->ranks != NULL) stw_chunks_range(r->job, t, rank, &first, &count);
        const uint64_t all = stw_rollout_meet(&cut, rank, 0, cut.numel);
        const uint64_t has = count > 0 ? stw_rollout_meet(&cut, rank, first, count) : 0;
        r->each[i].needs = stw_plus(r->each[i].needs, stw_times(times, all));
        r->each[i].lacks = stw_plus(r->each[i].lacks, stw_times(times, stw_min_u64(has, all)));
    }
}

stw_status stw_sync_needs_of(const stw_job *job, uint32_t kind, stw_sync_needs *out,
                             stw_error *err) {
    const stw_rollout_role role = stw_rollout_resolve(job, number_of(job));
    const stw_model *model = job->model;
    receivers r = {.job = job, .n = role.tp > role.ep ? role.tp : role.ep};
    *out = (stw_sync_needs){0};
    if (!is_separate(job)) {
        r.n = job->kinds[kind].n_ranks;
        r.ranks = job->kinds[kind].ranks;
    }
    stw_pool *pool = stw_pool_new();
    r.each = pool != NULL ? stw_pool_array(pool, (size_t)r.n + 1, sizeof *r.each) : NULL;
    if (r.each == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
    }
    for (uint32_t i = 0; i < r.n; i++) r.each[i] = (stw_sync_needs){0};
    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (model->blocks[model->tensors[t].block].instance == 0) add_tensor(&r, &role, t);
    for (uint32_t i = 0; i < r.n; i++) {
        const uint64_t lacks = r.each[i].needs - r.each[i].lacks;
        if (lacks < out->lacks || (lacks == out->lacks && r.each[i].needs < out->needs)) continue;
        *out = (stw_sync_needs){r.each[i].needs, lacks};
    }
    stw_pool_free(pool);
    return STW_STATUS_OK;
}

/* ---- rounds ---- */

typedef struct piece_sync {
    stw_builder *b;
    const stw_role *role;
    uint64_t element; /* of the rollout's dtype */
    uint64_t part;    /* elements that a rank packs in a round, at most */
    uint32_t rounds;
    bool separate, exchanges; /* the rollout has nodes of its own; ranks have parts of others */
    stw_sync_needs needs;
    uint64_t all, done;  /* elements of all ranks' rounds; of those that are over */
    uint64_t came, took; /* of `needs`, in those */
    stw_extent own[2], up, in;
    uint32_t sent_by[2], placed;
} piece_sync;

/* What a rank of a kind packs in a round. */
static uint64_t packed(const piece_sync *s, const stw_rank_kind *kind, uint32_t round) {
    const uint64_t from = stw_times(s->part, round);
    return from < kind->params ? stw_min_u64(s->part, kind->params - from) : 0;
}

/* The same of the ranks that have the model between them. */
static uint64_t packed_by_all(const piece_sync *s, uint32_t round) {
    const stw_job *job = s->b->job;
    uint64_t n = 0;
    for (uint32_t k = 0; k < job->n_kinds; k++)
        n = stw_plus(n, stw_times(job->kinds[k].n_ranks, packed(s, &job->kinds[k], round)));
    return n / stw_max_u64(stw_job_replicas(job), 1);
}

static const stw_rank_kind *own_kind(const piece_sync *s) {
    return &s->b->job->kinds[s->b->layout->kind];
}

/* Part of a sum that is due after so many of all elements; all of it at the end. */
static uint64_t due(const piece_sync *s, uint64_t sum) {
    return s->all > 0 ? stw_ratio_up(sum, s->done, s->all) : sum;
}

enum { MOST_ROUNDS = 1 << 18 }; /* listed one by one; models of 10^12 parameters with 16 MiB */

static stw_status check_rounds(const piece_sync *s, uint64_t rounds) {
    const stw_job *job = s->b->job;
    char found[32], least[32];
    if (rounds <= MOST_ROUNDS) return STW_STATUS_OK;
    stw_bytes_format(s->role->update_bucket_bytes, found, sizeof found);
    const uint64_t bytes = stw_times(stw_div_up_u64(job->files.n, MOST_ROUNDS), s->element);
    stw_bytes_format(stw_round_up_u64(bytes, 1 << 20), least, sizeof least);
    return stw_fail(s->b->err, STW_STATUS_BAD_INPUT, NULL,
                    "roles.%u.update_bucket: found %s, expected at least %s: the model in at most "
                    "%d pieces",
                    (unsigned)(s->role - job->run->roles), found, least, MOST_ROUNDS);
}

static stw_status plan_rounds(piece_sync *s) {
    const stw_job *job = s->b->job;
    uint64_t most = 0, rounds = 0;
    for (uint32_t k = 0; k < job->n_kinds; k++) most = stw_max_u64(most, job->kinds[k].params);
    const uint64_t bucket = s->role->update_bucket_bytes / s->element;
    s->part = stw_max_u64(bucket / stw_max_u64(job->group, 1), 1);
    s->part = stw_max_u64(stw_min_u64(s->part, most), 1);
    rounds = stw_div_up_u64(most, s->part);
    stw_status status = check_rounds(s, rounds);
    if (status != STW_STATUS_OK) return status;
    s->rounds = (uint32_t)rounds;
    for (uint32_t k = 0; k < job->n_kinds; k++)
        s->all = stw_plus(s->all, stw_times(job->kinds[k].n_ranks, job->kinds[k].params));
    s->all /= stw_max_u64(stw_job_replicas(job), 1);
    return stw_sync_needs_of(job, s->b->layout->kind, &s->needs, s->b->err);
}

/* The pieces of this rank: runs of its own parameters, one for each round. */
static stw_transfer pieces_of(piece_sync *s) {
    stw_builder *b = s->b;
    const stw_space *params = &own_kind(s)->spaces[STW_SPACE_PARAMS];
    stw_transfer t = {.used = true,
                      .own = true,
                      .from = STW_SPACE_PARAMS,
                      .to = STW_SPACE_PARAMS,
                      .from_component = STW_COMPONENT_PARAMS,
                      .to_component = STW_COMPONENT_ROLLOUT_WEIGHTS};
    if (b->status != STW_STATUS_OK || !stw_program_is_full(b->program, STW_PHASE_WEIGHT_SYNC))
        return t;
    t.pieces = stw_pool_array(b->program->pool, (size_t)s->rounds + 1, sizeof *t.pieces);
    if (t.pieces == NULL) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
        return t;
    }
    for (uint32_t i = 0; i < s->rounds; i++) {
        const uint64_t n = packed(s, own_kind(s), i), first = stw_times(s->part, i);
        if (n == 0) break;
        const uint32_t segment = stw_view_first_segment((stw_view){params, first, n});
        t.pieces[t.n_pieces++] = (stw_piece){.tensor = params->segments[segment].tensor,
                                             .first = first,
                                             .n = n,
                                             .room_bytes = stw_times(n, s->element)};
    }
    return t;
}

/* ---- operations of a round ---- */

/* Elements of [first, first + n) of this rank's parameters that lie on the host. */
static uint64_t on_host(const piece_sync *s, uint64_t first, uint64_t n) {
    const stw_layout *layout = s->b->layout;
    uint64_t found = 0;
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        if (r->component != STW_COMPONENT_PARAMS) continue;
        if (r->tier != STW_TIER_HOST && !stw_is_parked(s->b->park, r->component)) continue;
        const uint64_t from = stw_max_u64(first, r->first_param);
        const uint64_t to = stw_min_u64(first + n, r->first_param + r->params);
        if (to > from) found += to - from;
    }
    return found;
}

static uint64_t in_dtype(const piece_sync *s, uint64_t n) {
    return stw_times(n, stw_job_element_bytes(s->b->job, STW_COMPONENT_PARAMS));
}

/* Cast to the rollout's dtype: what lies on the host is copied up first. */
static uint32_t pack(piece_sync *s, const stw_piece *piece, uint32_t unit, uint32_t slot) {
    stw_builder *b = s->b;
    const uint64_t host = on_host(s, piece->first, piece->n);
    stw_op op = stw_op_make(STW_OP_PACK, STW_STREAM_COMPUTE, unit);
    op.component = STW_COMPONENT_STAGE;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = op.offset_bytes = s->own[slot].offset;
    op.bytes = piece->room_bytes;
    op.params = piece->n;
    op.after[1] = s->separate ? s->sent_by[slot] : s->placed;
    if (host > 0)
        op.after[0] = stw_copy(b, &(stw_transport){.kind = STW_OP_COPY_PIECE,
                                                   .stream = STW_STREAM_H2D,
                                                   .component = STW_COMPONENT_PARAMS,
                                                   .unit = unit,
                                                   .from = {STW_TIER_HOST, 0},
                                                   .to = {STW_TIER_GPU, s->up.offset},
                                                   .bytes = in_dtype(s, host),
                                                   .after = {s->placed, s->up.alloc}});
    return stw_append(b, op);
}

/* To each rank what it needs of the others' runs, by messages between pairs. `bytes` of an
 * all-to-all has the rank's own part, which stays. */
static uint32_t exchange(piece_sync *s, uint32_t ready, uint64_t comes) {
    stw_op op = stw_op_make(STW_OP_ALL_TO_ALL, STW_STREAM_COMM, STW_OP_NONE);
    uint32_t ranks = 1, on_node = 1;
    stw_job_group_size(s->b->job, STW_RANK_GROUP_SHARD, &ranks, &on_node);
    op.group = STW_RANK_GROUP_SHARD;
    op.component = STW_COMPONENT_STAGE;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = s->own[0].offset;
    op.offset_bytes = s->in.offset;
    op.bytes = stw_ratio_up(stw_times(comes, s->element), ranks, stw_max_u64(ranks, 2) - 1);
    op.after[0] = ready;
    op.after[1] = s->placed;
    return stw_append(s->b, op);
}

/* To the ranks of other nodes, all of which lack all that they need. Links are busy for what a rank
 * sends, or for what comes to one if these are fewer. */
static uint32_t send(piece_sync *s, uint32_t ready, uint32_t slot, uint64_t comes) {
    const stw_job *job = s->b->job;
    const uint64_t n = stw_job_role_ranks(job, number_of(job));
    stw_op op = stw_op_make(STW_OP_SEND, STW_STREAM_COMM, STW_OP_NONE);
    op.group = STW_RANK_GROUP_SYNC;
    op.component = STW_COMPONENT_STAGE;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = op.offset_bytes = s->own[slot].offset;
    op.bytes = stw_times(comes, s->element);
    if (n > job->world) op.bytes = stw_ratio_up(op.bytes, n, job->world);
    op.after[0] = ready;
    s->sent_by[slot] = stw_append(s->b, op);
    return s->sent_by[slot];
}

static void place(piece_sync *s, uint32_t ready, uint64_t takes) {
    stw_op op = stw_op_make(STW_OP_PLACE, STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = STW_COMPONENT_STAGE;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = op.offset_bytes = s->exchanges ? s->in.offset : s->own[0].offset;
    op.bytes = stw_times(takes, s->element);
    op.params = takes;
    op.after[0] = ready;
    s->placed = stw_append(s->b, op);
}

static void sync_round(piece_sync *s, uint32_t round) {
    const stw_transfer *t = &s->b->program->movements[s->b->program->n_movements - 1].transfer;
    const uint32_t slot = s->separate ? round % 2 : 0;
    uint32_t ready = STW_OP_NONE;
    s->done = stw_plus(s->done, packed_by_all(s, round));
    const uint64_t comes = due(s, s->needs.lacks) - s->came;
    const uint64_t takes = due(s, s->needs.needs) - s->took;
    s->came += comes;
    s->took += takes;
    if (round < t->n_pieces) ready = pack(s, &t->pieces[round], round, slot);
    if (s->separate) {
        (void)send(s, ready, slot, comes);
        return; /* the receiver places it */
    }
    if (s->exchanges) ready = exchange(s, ready, comes);
    place(s, ready, takes);
}

/* Room for the largest round, which is the first. */
static void make_room(piece_sync *s) {
    stw_builder *b = s->b;
    const uint64_t own = packed(s, own_kind(s), 0);
    for (int i = 0; i < (s->separate ? 2 : 1); i++)
        s->own[i] = stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_times(own, s->element));
    if (s->exchanges)
        s->in = stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU,
                          stw_times(packed_by_all(s, 0) - own, s->element));
    uint64_t up = 0;
    for (uint32_t i = 0; i < s->rounds; i++)
        up = stw_max_u64(up, on_host(s, stw_times(s->part, i), packed(s, own_kind(s), i)));
    s->up = stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, in_dtype(s, up));
}

void stw_build_piece_sync(stw_builder *b) {
    piece_sync s = {.b = b,
                    .role = stw_sync_role(b->job),
                    .own = {STW_NO_EXTENT, STW_NO_EXTENT},
                    .up = STW_NO_EXTENT,
                    .in = STW_NO_EXTENT,
                    .sent_by = {STW_OP_NONE, STW_OP_NONE},
                    .placed = STW_OP_NONE};
    if (s.role == NULL || b->status != STW_STATUS_OK) return;
    s.element = stw_max_u64(stw_dtype_bits(s.role->dtype) / 8, 1);
    s.separate = is_separate(b->job);
    s.exchanges = !s.separate && b->job->group > 1;
    b->status = plan_rounds(&s);
    if (b->status != STW_STATUS_OK) return;
    const stw_transfer transfer = pieces_of(&s);
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_WEIGHT_SYNC,
                                         .repeat = STW_REPEAT_EVERY_ITERATION,
                                         .by_stowage = true,
                                         .transfer = transfer});
    make_room(&s);
    for (uint32_t i = 0; !b->skipping && i < s.rounds && b->status == STW_STATUS_OK; i++)
        sync_round(&s, i);
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, s.up);
    stw_free_after(b, STW_COMPONENT_STAGE, STW_TIER_GPU, s.in, s.placed);
    for (int i = 0; i < 2; i++)
        stw_free_after(b, STW_COMPONENT_STAGE, STW_TIER_GPU, s.own[i],
                       s.separate ? s.sent_by[i] : s.placed);
    stw_end_movement(b);
}

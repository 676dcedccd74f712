/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules of weight syncs: executed in memory, element by element, every target gets its values;
 * buffers stay inside the bound, and what travels is what is lacked. */
#include <time.h>

#include "plan/sync/traffic.h"
#include "tests/unit/sync_case.h"

/* ---- boxes ---- */

static void boxes_are_cut(void) {
    uint64_t state = 1;
    for (int n = 0; n < 2000; n++) {
        stw_box boxes[2], both, rests[STW_BOX_RESTS];
        for (int b = 0; b < 2; b++)
            for (int d = 0; d < STW_BOX_DIMS; d++) {
                state = stw_mix64(state);
                boxes[b].first[d] = state % 4;
                boxes[b].count[d] = 1 + state / 64 % 4;
            }
        const bool meet = stw_box_meet(&boxes[0], &boxes[1], &both);
        const unsigned n_rests = meet ? stw_box_subtract(&boxes[0], &both, rests) : 0;
        const stw_sync_tensor t = {.shape = {8, 8, 8, 8}};
        for (uint64_t i = 0; i < 4096; i++) {
            const bool in = sync_is_in(&t, &boxes[0], i),
                       in_both = in && sync_is_in(&t, &boxes[1], i);
            unsigned found = 0;
            for (unsigned r = 0; r < n_rests; r++) found += sync_is_in(&t, &rests[r], i);
            CU_ASSERT_EQUAL(meet && sync_is_in(&t, &both, i), in_both);
            if (meet) CU_ASSERT_EQUAL(found, in && !in_both ? 1u : 0u);
        }
    }
}

/* A run of elements is boxes that follow each other. */
static void runs_are_boxes(void) {
    uint64_t state = 7;
    for (int n = 0; n < 500; n++) {
        stw_sync_tensor t = {.shape = {1, 1, 1, 1}};
        stw_box boxes[STW_BOX_RUNS];
        uint64_t all = 1;
        for (int d = 0; d < STW_BOX_DIMS; d++) {
            state = stw_mix64(state);
            all *= t.shape[d] = 1 + state % 5;
        }
        state = stw_mix64(state);
        const uint64_t first = state % all, count = state / all % (all - first + 1);
        const unsigned n_boxes = stw_box_of_run(t.shape, first, count, boxes);
        CU_ASSERT(n_boxes <= STW_BOX_RUNS);
        for (uint64_t i = 0; i < all; i++) {
            unsigned found = 0;
            for (unsigned b = 0; b < n_boxes; b++) found += sync_is_in(&t, &boxes[b], i);
            CU_ASSERT_EQUAL(found, i >= first && i - first < count ? 1u : 0u);
        }
    }
}

/* ---- schedules, executed ---- */

/* Bytes of a memory of rank r, a buffer or a bucket, by 2-byte units. */
typedef struct run {
    sync_case c;
    stw_sync_schedule *schedule;
    const stw_sync_view *views[SYNC_MOST_RANKS];
    unsigned char *memory[2][SYNC_MOST_RANKS][SYNC_MEMORIES];
    unsigned char *buffers[3][SYNC_MOST_RANKS]; /* send, receive, bucket */
    uint64_t sent_to[SYNC_MOST_RANKS];
    uint32_t *written[SYNC_MOST_RANKS]; /* unused */
} run;

static uint32_t value_of(uint32_t tensor, uint64_t element) {
    return (uint32_t)stw_mix64(element * 64 + tensor) | 1u;
}

static void put(unsigned char *at, uint64_t place, uint64_t width, uint32_t value) {
    memcpy(at + place * width, &value, width);
}

static void fill(run *x) {
    const stw_sync_job *job = &x->c.job;
    for (uint32_t i = 0; i < job->n_sources; i++) {
        const stw_sync_piece *p = &job->sources[i];
        const stw_sync_tensor *t = &job->tensors[p->tensor];
        for (uint64_t k = 0; k < stw_box_volume(&p->box); k++) {
            const uint64_t element = sync_element(t, &p->box, k);
            put(x->memory[0][p->rank][p->memory], sync_at(t, p, element), stw_sync_width(p->dtype),
                value_of(p->tensor, element));
        }
    }
}

static void start(run *x) {
    CHECK_OK(stw_sync_schedule_new(x->c.pool, &x->c.job, &x->schedule, err));
    for (uint32_t r = 0; r < x->c.job.world; r++) {
        CHECK_OK(stw_sync_schedule_view(x->schedule, r, &x->views[r], err));
        const stw_sync_view *v = x->views[r];
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < SYNC_MEMORIES; m++) {
                x->memory[k][r][m] = calloc(x->c.elements[k][r][m] + 1, m == 0 ? 4 : 2);
                CU_ASSERT_PTR_NOT_NULL_FATAL(x->memory[k][r][m]);
            }
        x->buffers[0][r] = malloc(v->send_bytes + 1);
        x->buffers[1][r] = malloc(v->receive_bytes + 1);
        x->buffers[2][r] = malloc(v->bucket_bytes + 1);
        CU_ASSERT(v->send_bytes + v->receive_bytes + v->bucket_bytes <= x->c.job.bucket_bytes);
    }
    fill(x);
}

static void end(run *x) {
    for (uint32_t r = 0; r < x->c.job.world; r++) {
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < SYNC_MEMORIES; m++) free(x->memory[k][r][m]);
        for (int k = 0; k < 3; k++) free(x->buffers[k][r]);
    }
    stw_sync_schedule_free(x->schedule);
}

/* One copy of rank r, element by element. */
static void copy(run *x, uint32_t r, const stw_sync_copy *c) {
    const stw_sync_job *job = &x->c.job;
    const stw_sync_piece *source = c->source != STW_SYNC_NONE ? &job->sources[c->source] : NULL;
    const stw_sync_piece *target = c->target != STW_SYNC_NONE ? &job->targets[c->target] : NULL;
    const uint32_t tensor = source != NULL ? source->tensor : target->tensor;
    const stw_sync_tensor *t = &job->tensors[tensor];
    const uint64_t width = stw_sync_width(t->dtype);
    CU_ASSERT(source == NULL || (source->rank == r && !c->sent));
    CU_ASSERT(target == NULL || target->rank == r);
    for (uint64_t i = 0; i < stw_box_volume(&c->box); i++) {
        const uint64_t element = sync_element(t, &c->box, i);
        unsigned char *to, *from = x->buffers[c->sent ? 0 : 1][r] + c->from + i * width;
        if (source != NULL)
            from = x->memory[0][r][source->memory] + sync_at(t, source, element) * width;
        if (target == NULL)
            to = x->buffers[0][r] + c->to + i * width;
        else if (target->memory == STW_SYNC_NONE)
            to = x->buffers[2][r] + c->to +
                 sync_in_box(t, stw_sync_schedule_lot(x->schedule, c->lot), element) * width;
        else
            to = x->memory[1][r][target->memory] + sync_at(t, target, element) * width;
        memcpy(to, from, width);
    }
}

/* What a bucket gives goes to where the target would lie. */
static void take_parts(run *x, uint32_t r, uint32_t round, uint64_t *came) {
    const stw_sync_view *v = x->views[r];
    uint64_t at = 0;
    for (uint32_t i = v->first_part[round]; i < v->first_part[round + 1]; i++) {
        const stw_sync_part *part = &v->parts[i];
        const stw_sync_piece *p = &x->c.job.targets[part->target];
        const stw_sync_tensor *t = &x->c.job.tensors[part->tensor];
        const uint64_t width = stw_sync_width(t->dtype), n = stw_box_volume(&part->box);
        CU_ASSERT(part->offset % STW_SYNC_ALIGN == 0 && part->offset >= at);
        at = part->offset + n * width;
        CU_ASSERT(at <= v->bucket_bytes);
        for (uint64_t k = 0; k < n; k++) {
            const uint64_t element = sync_element(t, &part->box, k);
            CU_ASSERT(sync_is_in(t, &p->box, element));
            memcpy(x->memory[1][r][t->dtype == STW_DTYPE_F32 ? 0 : 1] +
                       sync_at(t, p, element) * width,
                   x->buffers[2][r] + part->offset + k * width, width);
        }
        came[part->target] += n;
        CU_ASSERT_EQUAL(part->last, came[part->target] == stw_box_volume(&p->box));
    }
}

/* The n-th message between two ranks in a round is the same on both. */
static void send(run *x, uint32_t round) {
    const uint32_t world = x->c.job.world;
    uint32_t next[SYNC_MOST_RANKS][SYNC_MOST_RANKS]; /* of the receiver's list, by sender */
    for (uint32_t r = 0; r < world; r++)
        for (uint32_t s = 0; s < world; s++) next[r][s] = x->views[r]->first_message[round];
    for (uint32_t s = 0; s < world; s++) {
        const stw_sync_view *v = x->views[s];
        for (uint32_t i = v->first_message[round]; i < v->first_message[round + 1]; i++) {
            const stw_sync_message *m = &v->messages[i], *other = NULL;
            if (!m->sends) continue;
            const stw_sync_view *to = x->views[m->peer];
            uint32_t *at = &next[m->peer][s];
            for (; *at < to->first_message[round + 1] && other == NULL; ++*at)
                if (!to->messages[*at].sends && to->messages[*at].peer == s)
                    other = &to->messages[*at];
            CU_ASSERT_PTR_NOT_NULL_FATAL(other);
            CU_ASSERT_EQUAL_FATAL(other->bytes, m->bytes);
            CU_ASSERT(m->peer != s);
            CU_ASSERT(m->offset % STW_SYNC_ALIGN == 0 && other->offset % STW_SYNC_ALIGN == 0);
            CU_ASSERT_FATAL(m->offset + m->bytes <= v->send_bytes);
            CU_ASSERT_FATAL(other->offset + m->bytes <= to->receive_bytes);
            memcpy(x->buffers[1][m->peer] + other->offset, x->buffers[0][s] + m->offset, m->bytes);
            x->sent_to[m->peer] += m->bytes;
        }
    }
    for (uint32_t r = 0; r < world; r++)
        for (uint32_t s = 0; s < world; s++)
            for (; next[r][s] < x->views[r]->first_message[round + 1]; next[r][s]++) {
                const stw_sync_message *m = &x->views[r]->messages[next[r][s]];
                CU_ASSERT(m->sends || m->peer != s); /* none is left over */
            }
}

static void execute(run *x) {
    const uint32_t world = x->c.job.world, rounds = stw_sync_schedule_rounds(x->schedule);
    uint64_t *came = calloc(x->c.job.n_targets + 1, sizeof *came);
    CU_ASSERT_PTR_NOT_NULL_FATAL(came);
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t r = 0; r < world; r++) {
            const stw_sync_view *v = x->views[r];
            memset(x->buffers[0][r], 0xEE, v->send_bytes);
            memset(x->buffers[1][r], 0xEE, v->receive_bytes);
            memset(x->buffers[2][r], 0xEE, v->bucket_bytes);
            for (uint32_t i = v->first_pack[round]; i < v->first_pack[round + 1]; i++)
                copy(x, r, &v->packs[i]);
        }
        send(x, round);
        for (uint32_t r = 0; r < world; r++) {
            const stw_sync_view *v = x->views[r];
            for (uint32_t i = v->first_place[round]; i < v->first_place[round + 1]; i++)
                copy(x, r, &v->places[i]);
            take_parts(x, r, round, came);
        }
    }
    free(came);
}

/* Elements of a tensor that rank r wants, and has not: each counts once. */
static uint64_t lacked_bytes(const sync_case *c, uint32_t r, uint32_t tensor) {
    const stw_sync_tensor *t = &c->job.tensors[tensor];
    const stw_box whole = sync_whole(t);
    const uint64_t n = stw_box_volume(&whole);
    unsigned char *state = calloc(n, 1);
    uint64_t lacked = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(state);
    for (int k = 1; k >= 0; k--)
        for (uint32_t i = 0; i < c->n[k]; i++) {
            const stw_sync_piece *p = &c->pieces[k][i];
            if (p->rank != r || p->tensor != tensor) continue;
            for (uint64_t e = 0; e < stw_box_volume(&p->box); e++)
                state[sync_element(t, &p->box, e)] = k == 1;
        }
    for (uint64_t e = 0; e < n; e++) lacked += state[e];
    free(state);
    return lacked * stw_sync_width(t->dtype);
}

static void check(run *x) {
    const stw_sync_job *job = &x->c.job;
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < job->n_targets; i++) {
        const stw_sync_piece *p = &job->targets[i];
        const stw_sync_tensor *t = &job->tensors[p->tensor];
        const uint64_t width = stw_sync_width(t->dtype);
        for (uint64_t k = 0; k < stw_box_volume(&p->box); k++) {
            const uint64_t element = sync_element(t, &p->box, k);
            const uint32_t expected = value_of(p->tensor, element);
            wrong += memcmp(x->memory[1][p->rank][t->dtype == STW_DTYPE_F32 ? 0 : 1] +
                                sync_at(t, p, element) * width,
                            &expected, width) != 0;
        }
    }
    CU_ASSERT_EQUAL(wrong, 0);
    for (uint32_t r = 0; r < job->world; r++) {
        uint64_t lacked = 0;
        for (uint32_t t = 0; t < job->n_tensors; t++) lacked += lacked_bytes(&x->c, r, t);
        CU_ASSERT_EQUAL(x->sent_to[r], lacked);
        CU_ASSERT_EQUAL(x->views[r]->received_bytes, lacked);
    }
}

/* Bytes without lists are those of the lists. */
typedef struct tally {
    const run *x;
    uint32_t round;
    stw_sync_load all[SYNC_MOST_RANKS];
} tally;

static void take_loads(void *state, const stw_sync_load *loads) {
    tally *s = state;
    for (uint32_t r = 0; r < s->x->c.job.world; r++) {
        const stw_sync_view *v = s->x->views[r];
        stw_sync_load *sum = &s->all[r];
        uint64_t sent[2] = {0, 0}, received[2] = {0, 0};
        for (uint32_t i = v->first_message[s->round]; i < v->first_message[s->round + 1]; i++) {
            const stw_sync_message *m = &v->messages[i];
            (m->sends ? sent : received)[m->peer / 2 != r / 2] += m->bytes;
        }
        CU_ASSERT(loads[r].near_sent == sent[0] && loads[r].far_sent == sent[1]);
        CU_ASSERT(loads[r].near_received == received[0] && loads[r].far_received == received[1]);
        CU_ASSERT_EQUAL(loads[r].messages,
                        v->first_message[s->round + 1] - v->first_message[s->round]);
        if (loads[r].send_room > sum->send_room) sum->send_room = loads[r].send_room;
        if (loads[r].receive_room > sum->receive_room) sum->receive_room = loads[r].receive_room;
        if (loads[r].bucket_room > sum->bucket_room) sum->bucket_room = loads[r].bucket_room;
        sum->own += loads[r].own;
    }
    s->round++;
}

static void check_traffic(const run *x) {
    tally s = {.x = x};
    CHECK_OK(stw_sync_traffic(x->schedule, 2, take_loads, &s, err));
    CU_ASSERT_EQUAL(s.round, stw_sync_schedule_rounds(x->schedule));
    for (uint32_t r = 0; r < x->c.job.world; r++) {
        const stw_sync_view *v = x->views[r];
        CU_ASSERT_EQUAL(s.all[r].send_room, v->send_bytes);
        CU_ASSERT_EQUAL(s.all[r].receive_room, v->receive_bytes);
        CU_ASSERT_EQUAL(s.all[r].bucket_room, v->bucket_bytes);
        CU_ASSERT_EQUAL(s.all[r].own, v->own_bytes);
    }
}

static void random_jobs_arrive(void) {
    uint32_t rounds = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        run x = {.c = {.buckets = seed % 3 == 0}};
        sync_case_make(&x.c, seed, 1 + (uint32_t)(seed % SYNC_MOST_RANKS),
                       seed % 20 == 0 ? 1u << 20 : 1u << 12);
        start(&x);
        execute(&x);
        check(&x);
        check_traffic(&x);
        if (stw_sync_schedule_rounds(x.schedule) > rounds)
            rounds = stw_sync_schedule_rounds(x.schedule);
        end(&x);
    }
    CU_ASSERT(rounds > 4); /* some jobs have several */
}

/* Ranks that describe the same pieces get the same sum, those that do not get another. */
static void sums_tell(void) {
    uint64_t sums[3];
    for (int n = 0; n < 3; n++) {
        sync_case c = {.buckets = false};
        stw_sync_schedule *schedule = NULL;
        sync_case_make(&c, 5, 4, 1u << 12);
        if (n == 1) /* what only the rank itself knows is in no sum */
            for (uint32_t i = 0; i < c.n[0]; i++) c.pieces[0][i].offset += 7;
        if (n == 2) c.job.bucket_bytes *= 2;
        CHECK_OK(stw_sync_schedule_new(c.pool, &c.job, &schedule, err));
        sums[n] = stw_sync_schedule_sum(schedule);
        stw_sync_schedule_free(schedule);
    }
    CU_ASSERT_EQUAL(sums[0], sums[1]);
    CU_ASSERT_NOT_EQUAL(sums[0], sums[2]);
}

/* ---- single cases ---- */

static stw_sync_piece piece_of(uint32_t rank, uint64_t first, uint64_t rows, uint64_t columns) {
    return (stw_sync_piece){.box = {.first = {first, 0, 0, 0}, .count = {rows, columns, 1, 1}},
                            .stride = {columns, 1, 1, 1},
                            .rank = rank,
                            .dtype = STW_DTYPE_BF16};
}

static const stw_sync_tensor one_tensor = {
    .name = "w", .dtype = STW_DTYPE_BF16, .dims = 2, .shape = {64, 32, 1, 1}};

static stw_status plan_one(const stw_sync_piece *sources, uint32_t n_sources,
                           const stw_sync_piece *target, uint64_t bucket_bytes, stw_error *err) {
    stw_sync_schedule *schedule = NULL;
    const stw_sync_job job = {.tensors = &one_tensor,
                              .sources = sources,
                              .targets = target,
                              .n_tensors = 1,
                              .n_sources = n_sources,
                              .n_targets = 1,
                              .world = 2,
                              .bucket_bytes = bucket_bytes};
    stw_status status = stw_sync_schedule_new(stw_pool_new(), &job, &schedule, err);
    stw_sync_schedule_free(schedule);
    return status;
}

static void mistakes_are_named(void) {
    const stw_sync_piece halves[2] = {piece_of(0, 0, 32, 32), piece_of(1, 40, 24, 32)};
    stw_sync_piece target = piece_of(0, 0, 64, 32), source = piece_of(0, 0, 64, 32);
    CHECK_OK(plan_one(&source, 1, &target, 1u << 20, err));
    CHECK_FAILS(plan_one(halves, 2, &target, 1u << 20, err), STW_STATUS_BAD_INPUT,
                "w: element [32, 0]");
    CHECK_FAILS(plan_one(&source, 1, &target, 1u << 19, err), STW_STATUS_USAGE, "bucket_bytes");
    source.rank = 2;
    CHECK_FAILS(plan_one(&source, 1, &target, 1u << 20, err), STW_STATUS_BAD_INPUT, "rank 2");
    source.rank = 0;
    source.box.first[0] = 1;
    CHECK_FAILS(plan_one(&source, 1, &target, 1u << 20, err), STW_STATUS_BAD_INPUT,
                "w: source 0 of rank 0");
    source.box.first[0] = 0;
    source.memory = STW_SYNC_NONE;
    CHECK_FAILS(plan_one(&source, 1, &target, 1u << 20, err), STW_STATUS_BAD_INPUT, "memory");
    source.memory = 0;
    source.dtype = STW_DTYPE_I8;
    CHECK_FAILS(plan_one(&source, 1, &target, 1u << 20, err), STW_STATUS_BAD_INPUT, "I8");
    source.dtype = STW_DTYPE_BF16;
    target.dtype = STW_DTYPE_F32;
    CHECK_FAILS(plan_one(&source, 1, &target, 1u << 20, err), STW_STATUS_BAD_INPUT,
                "expected BF16");
}

/* Two engines with the same slices: what both lack is in the send buffer once. */
static void shared_bytes_are_packed_once(void) {
    stw_sync_piece source = piece_of(0, 0, 64, 32);
    const stw_sync_piece targets[2] = {piece_of(1, 0, 64, 32), piece_of(2, 0, 64, 32)};
    stw_sync_schedule *schedule = NULL;
    const stw_sync_view *view = NULL;
    const stw_sync_job job = {.tensors = &one_tensor,
                              .sources = &source,
                              .targets = targets,
                              .n_tensors = 1,
                              .n_sources = 1,
                              .n_targets = 2,
                              .world = 3,
                              .bucket_bytes = STW_SYNC_LEAST_BUCKET};
    CHECK_OK(stw_sync_schedule_new(stw_pool_new(), &job, &schedule, err));
    CHECK_OK(stw_sync_schedule_view(schedule, 0, &view, err));
    CU_ASSERT_EQUAL(view->send_bytes, 4096);
    CU_ASSERT_EQUAL(view->sent_bytes, 8192);
    CU_ASSERT_EQUAL(view->first_message[1], 2);
    CU_ASSERT_EQUAL(view->messages[0].offset, view->messages[1].offset);
    CHECK_FAILS(stw_sync_schedule_view(schedule, 3, &view, err), STW_STATUS_USAGE, "rank");
    stw_sync_schedule_free(schedule);
}

/* Of replicas each sends its share. */
static void replicas_take_turns(void) {
    enum { N = 100 };
    stw_sync_tensor tensors[N];
    stw_sync_piece sources[2 * N], targets[N];
    stw_sync_schedule *schedule = NULL;
    for (uint32_t t = 0; t < N; t++) {
        tensors[t] = one_tensor;
        for (uint32_t r = 0; r < 2; r++) sources[2 * t + r] = piece_of(r, 0, 64, 32);
        targets[t] = piece_of(2, 0, 64, 32);
        sources[2 * t].tensor = sources[2 * t + 1].tensor = targets[t].tensor = t;
    }
    const stw_sync_job job = {tensors, sources, targets, N, 2 * N, N, 3, STW_SYNC_LEAST_BUCKET};
    CHECK_OK(stw_sync_schedule_new(stw_pool_new(), &job, &schedule, err));
    for (uint32_t r = 0; r < 2; r++) {
        const stw_sync_view *view = NULL;
        CHECK_OK(stw_sync_schedule_view(schedule, r, &view, err));
        CU_ASSERT_EQUAL(view->sent_bytes, N / 2 * 4096);
    }
    stw_sync_schedule_free(schedule);
}

/* Tensors of one sender after those of another: both send from the first round on. */
static void late_senders_begin_at_once(void) {
    enum { N = 512 };
    stw_sync_tensor *tensors = calloc(N, sizeof *tensors);
    stw_sync_piece *sources = calloc(N, sizeof *sources);
    stw_sync_piece *targets = calloc(4 * N, sizeof *targets);
    stw_sync_schedule *schedule = NULL;
    const stw_sync_view *view = NULL;
    CU_ASSERT_FATAL(tensors != NULL && sources != NULL && targets != NULL);
    for (uint32_t t = 0; t < N; t++) {
        tensors[t] = one_tensor;
        tensors[t].shape[0] = 1024; /* 64 KiB; a quarter to each of four receivers */
        sources[t] = piece_of(t / (N / 4), 0, 1024, 32);
        sources[t].tensor = t;
        for (uint32_t k = 0; k < 4; k++) {
            targets[4 * t + k] = piece_of(4 + k, 256 * k, 256, 32);
            targets[4 * t + k].tensor = t;
        }
    }
    const stw_sync_job job = {tensors, sources, targets, N, N, 4 * N, 8, STW_SYNC_LEAST_BUCKET};
    CHECK_OK(stw_sync_schedule_new(stw_pool_new(), &job, &schedule, err));
    /* 8 MiB from each sender and to each receiver: 8 rounds where all work all the time. */
    CU_ASSERT(stw_sync_schedule_rounds(schedule) <= 11);
    for (uint32_t r = 0; r < 4; r++) {
        CHECK_OK(stw_sync_schedule_view(schedule, r, &view, err));
        CU_ASSERT(view->first_message[1] > 0);
    }
    stw_sync_schedule_free(schedule);
    free(tensors);
    free(sources);
    free(targets);
}

/* Rounds that are nearly full hide no later one that has room. */
static void buckets_are_full(void) {
    enum { N = 1600 };
    stw_sync_tensor *tensors = calloc(N, sizeof *tensors);
    stw_sync_piece *sources = calloc(N, sizeof *sources), *targets = calloc(N, sizeof *targets);
    stw_sync_schedule *schedule = NULL;
    CU_ASSERT_FATAL(tensors != NULL && sources != NULL && targets != NULL);
    for (uint32_t t = 0; t < N; t++) {
        tensors[t] = one_tensor;
        tensors[t].shape[0] = 1920; /* 120 KiB: eight in a bucket, and 64 KiB stay free */
        sources[t] = piece_of(0, 0, 1920, 32);
        targets[t] = sources[t];
        sources[t].tensor = targets[t].tensor = t;
        targets[t].memory = STW_SYNC_NONE;
    }
    const stw_sync_job job = {tensors, sources, targets, N, N, N, 1, STW_SYNC_LEAST_BUCKET};
    CHECK_OK(stw_sync_schedule_new(stw_pool_new(), &job, &schedule, err));
    CU_ASSERT(stw_sync_schedule_rounds(schedule) == N / 8);
    stw_sync_schedule_free(schedule);
    free(tensors);
    free(sources);
    free(targets);
}

/* ---- a large model ---- */

/* 36,945 tensors on 32 ranks to two engines of TP 8. */
static void large_models_are_fast(void) {
    enum { N = 36945, RANKS = 32, TP = 8, RECEIVERS = 16 };
    stw_sync_tensor *tensors = calloc(N, sizeof *tensors);
    stw_sync_piece *sources = calloc((size_t)N * RANKS, sizeof *sources);
    stw_sync_piece *targets = calloc((size_t)N * RECEIVERS, sizeof *targets);
    stw_sync_schedule *schedule = NULL;
    const stw_sync_view *view = NULL;
    CU_ASSERT_FATAL(tensors != NULL && sources != NULL && targets != NULL);
    for (uint32_t t = 0; t < N; t++) {
        const bool down = t % 3 == 2; /* its columns are cut */
        tensors[t] = one_tensor;
        tensors[t].shape[0] = down ? 4096 : 1536;
        tensors[t].shape[1] = down ? 1536 : 4096;
        const stw_box whole = sync_whole(&tensors[t]);
        for (uint32_t r = 0; r < RANKS; r++) {
            stw_sync_piece *p = &sources[(size_t)t * RANKS + r];
            *p = piece_of(r, 0, 1, 1);
            p->tensor = t;
            p->box = sync_part(whole, 0, r, RANKS);
        }
        for (uint32_t r = 0; r < RECEIVERS; r++) {
            stw_sync_piece *p = &targets[(size_t)t * RECEIVERS + r];
            *p = piece_of(RANKS + r, 0, 1, 1);
            p->tensor = t;
            p->box = sync_part(whole, down ? 1 : 0, r % TP, TP);
        }
    }
    const stw_sync_job job = {.tensors = tensors,
                              .sources = sources,
                              .targets = targets,
                              .n_tensors = N,
                              .n_sources = N * RANKS,
                              .n_targets = N * RECEIVERS,
                              .world = RANKS + RECEIVERS,
                              .bucket_bytes = 64u << 20};
    const clock_t begin = clock();
    CHECK_OK(stw_sync_schedule_new(stw_pool_new(), &job, &schedule, err));
    const clock_t made = clock();
    CHECK_OK(stw_sync_schedule_view(schedule, RANKS, &view, err));
    const clock_t viewed = clock();
    CU_ASSERT_EQUAL(view->received_bytes, (uint64_t)N * 4096 * 1536 * 2 / TP);
    printf("%u rounds, %.2f s, a rank %.2f s; %u messages ", stw_sync_schedule_rounds(schedule),
           (double)(made - begin) / CLOCKS_PER_SEC, (double)(viewed - made) / CLOCKS_PER_SEC,
           view->first_message[stw_sync_schedule_rounds(schedule)]);
    /* 58 GB to each receiver in 64 MiB. */
    CU_ASSERT(stw_sync_schedule_rounds(schedule) < 1000);
    stw_sync_schedule_free(schedule);
    free(tensors);
    free(sources);
    free(targets);
}

/* Experts on the ranks of four engines, whose slices have senders in common: the rounds of a slice
 * are filled even when those of the slices before it, with the same senders, came first. */
static void slices_share_senders(void) {
    enum { RANKS = 16, WAYS = 4, TENSORS = 160, EXPERTS = 128, ROWS = 1536, COLUMNS = 4096 };
    stw_pool *pool = stw_pool_new();
    stw_sync_tensor *tensors = stw_pool_array(pool, TENSORS, sizeof *tensors);
    stw_sync_piece *sources = stw_pool_array(pool, TENSORS * RANKS, sizeof *sources);
    stw_sync_piece *targets = stw_pool_array(pool, TENSORS * RANKS, sizeof *targets);
    stw_sync_schedule *schedule = NULL;
    const stw_sync_view *view = NULL;
    for (uint32_t t = 0; t < TENSORS; t++) {
        tensors[t] = (stw_sync_tensor){.name = "experts",
                                       .dtype = STW_DTYPE_BF16,
                                       .dims = 3,
                                       .shape = {EXPERTS, ROWS, COLUMNS, 1}};
        for (uint32_t r = 0; r < RANKS; r++) {
            const uint64_t rows = ROWS / WAYS, experts = EXPERTS / RANKS;
            sources[t * RANKS + r] =
                (stw_sync_piece){.box = {{r * experts, 0, 0, 0}, {experts, ROWS, COLUMNS, 1}},
                                 .rank = r,
                                 .tensor = t,
                                 .dtype = STW_DTYPE_BF16};
            targets[t * RANKS + r] =
                (stw_sync_piece){.box = {{0, r % WAYS * rows, 0, 0}, {EXPERTS, rows, COLUMNS, 1}},
                                 .rank = r,
                                 .tensor = t,
                                 .dtype = STW_DTYPE_BF16};
        }
    }
    const stw_sync_job job = {.tensors = tensors,
                              .sources = sources,
                              .targets = targets,
                              .n_tensors = TENSORS,
                              .n_sources = TENSORS * RANKS,
                              .n_targets = TENSORS * RANKS,
                              .world = RANKS,
                              .bucket_bytes = 1ull << 30};
    CHECK_OK(stw_sync_schedule_new(pool, &job, &schedule, err));
    CHECK_OK(stw_sync_schedule_view(schedule, 0, &view, err));
    const uint64_t least = view->received_bytes / view->receive_bytes;
    CU_ASSERT(stw_sync_schedule_rounds(schedule) <= least + least / 4 + 1);
    stw_sync_schedule_free(schedule);
}

STW_TEST_MAIN("weight sync schedules", {"boxes are cut", boxes_are_cut},
              {"runs are boxes", runs_are_boxes}, {"slices share senders", slices_share_senders},
              {"random jobs arrive", random_jobs_arrive}, {"sums tell", sums_tell},
              {"mistakes are named", mistakes_are_named},
              {"shared bytes are packed once", shared_bytes_are_packed_once},
              {"replicas take turns", replicas_take_turns},
              {"late senders begin at once", late_senders_begin_at_once},
              {"buckets are full", buckets_are_full},
              {"large models are fast", large_models_are_fast})

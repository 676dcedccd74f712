/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/sync_plan.h"

#include <stdlib.h>

#include "core/checked.h"
#include "core/units.h"
#include "engines/partition.h"
#include "engines/rollout_weights.h"
#include "engines/weight_sync.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

/* ---- pieces ---- */

typedef struct pieces {
    stw_pool *pool;
    stw_sync_piece *all;
    uint32_t n;
    size_t capacity;
} pieces;

static stw_status add_piece(pieces *p, const stw_sync_piece *piece, stw_error *err) {
    if (p->n == p->capacity) {
        if (p->n >= UINT32_MAX / 2) return no_memory(err);
        p->all = stw_pool_regrow(p->pool, p->all, p->n, p->n + 1u, &p->capacity, sizeof *p->all);
        if (p->all == NULL) return no_memory(err);
    }
    p->all[p->n++] = *piece;
    return STW_STATUS_OK;
}

static uint32_t role_number(const stw_job *job) {
    return (uint32_t)(stw_synced_role(job) - job->run->roles) + 1;
}

/* Receivers take 16 bits or more: engines quantize what they load. */
static stw_dtype dtype_of(const stw_job *job) {
    const stw_dtype dtype = stw_synced_role(job)->dtype;
    return dtype == STW_DTYPE_F32 || dtype == STW_DTYPE_F16 ? dtype : STW_DTYPE_BF16;
}

static stw_status add_sources(const stw_job *job, uint32_t t, const stw_sync_tensor *tensor,
                              pieces *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_box boxes[STW_BOX_RUNS];
    stw_sync_piece piece = {.tensor = t, .dtype = STW_DTYPE_BF16};
    if (stw_job_element_bytes(job, STW_COMPONENT_PARAMS) == 4) piece.dtype = STW_DTYPE_F32;
    for (uint32_t rank = 0; rank < job->world; rank++) {
        uint64_t first = 0, count = 0;
        stw_chunks_range(job, t, rank, &first, &count);
        const unsigned n = stw_box_of_run(tensor->shape, first, count, boxes);
        piece.rank = rank;
        for (unsigned i = 0; i < n; i++) {
            piece.box = boxes[i];
            STW_TRY(add_piece(out, &piece, err));
        }
    }
out:
    return status;
}

static stw_status add_targets(const stw_job *job, uint32_t t, stw_dtype dtype, pieces *out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t number = role_number(job);
    const stw_job_role *of = &job->roles[number];
    const stw_rollout_role role = stw_rollout_resolve(job, number);
    const bool in_place = stw_sync_is_in_place(job);
    const uint32_t first = of->first_node * job->ranks_per_node;
    stw_box boxes[STW_ROLLOUT_BOXES];
    for (uint32_t i = 0; i < stw_job_role_ranks(job, number); i++) {
        const uint32_t n = stw_rollout_boxes(&role, &job->model->tensors[t], i, boxes);
        for (uint32_t k = 0; k < n; k++) {
            const stw_sync_piece piece = {.box = boxes[k],
                                          .rank = first + i,
                                          .tensor = t,
                                          .memory = in_place ? 0 : STW_SYNC_NONE,
                                          .dtype = dtype};
            STW_TRY(add_piece(out, &piece, err));
        }
    }
out:
    return status;
}

/* Parts of an eighth of the bucket travel (plan/sync/lots.h): more of them take too long to list.
 */
enum { MOST_PARTS = 1 << 20 };

static stw_status check_bucket(const stw_job *job, uint64_t element, stw_error *err) {
    const stw_role *role = stw_synced_role(job);
    const uint64_t part = stw_div_up_u64(stw_times(job->files.n, element), MOST_PARTS);
    const uint64_t least =
        stw_round_up_u64(stw_max_u64(stw_times(part, 8), 1), STW_SYNC_LEAST_BUCKET);
    char found[32], expected[32];
    if (role->update_bucket_bytes >= least) return STW_STATUS_OK;
    stw_bytes_format(role->update_bucket_bytes, found, sizeof found);
    stw_bytes_format(least, expected, sizeof expected);
    return stw_fail(err, STW_STATUS_BAD_INPUT, NULL,
                    "roles.%u.update_bucket: found %s, expected at least %s",
                    (unsigned)role_number(job) - 1, found, expected);
}

stw_status stw_sync_job_of(const stw_job *job, stw_pool *pool, stw_sync_job *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_model *model = job->model;
    const stw_dtype dtype = dtype_of(job);
    pieces sources = {.pool = pool}, targets = {.pool = pool};
    stw_sync_tensor *tensors = stw_pool_array(pool, (size_t)model->n_tensors + 1, sizeof *tensors);
    if (tensors == NULL) STW_TRY(no_memory(err));
    STW_TRY(check_bucket(job, stw_sync_width(dtype), err));
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const stw_box whole = stw_rollout_whole(&model->tensors[t]);
        tensors[t] =
            (stw_sync_tensor){.name = model->tensors[t].name, .dtype = dtype, .dims = STW_BOX_DIMS};
        for (int d = 0; d < STW_BOX_DIMS; d++) tensors[t].shape[d] = whole.count[d];
        STW_TRY(add_sources(job, t, &tensors[t], &sources, err));
        STW_TRY(add_targets(job, t, dtype, &targets, err));
    }
    *out = (stw_sync_job){.tensors = tensors,
                          .sources = sources.all,
                          .targets = targets.all,
                          .n_tensors = model->n_tensors,
                          .n_sources = sources.n,
                          .n_targets = targets.n,
                          .world = job->ranks,
                          .bucket_bytes = stw_synced_role(job)->update_bucket_bytes};
out:
    return status;
}

/* ---- loads of ranks ---- */

typedef struct reading {
    const stw_job *job;
    stw_sync_plan *plan;
    stw_sync_load *ranks; /* [job.ranks] sums, and the most of rooms */
    uint32_t round;
} reading;

static void add_load(stw_sync_load *sum, const stw_sync_load *of) {
    sum->send_room = stw_max_u64(sum->send_room, of->send_room);
    sum->receive_room = stw_max_u64(sum->receive_room, of->receive_room);
    sum->bucket_room = stw_max_u64(sum->bucket_room, of->bucket_room);
    sum->packed += of->packed;
    sum->near_sent += of->near_sent;
    sum->near_received += of->near_received;
    sum->far_sent += of->far_sent;
    sum->far_received += of->far_received;
    sum->placed += of->placed;
    sum->own += of->own;
    sum->own_sent += of->own_sent;
    sum->messages += of->messages;
    sum->far_messages += of->far_messages;
}

static void take_sums(void *state, const stw_sync_load *loads) {
    reading *r = state;
    stw_sync_busiest *most = &r->plan->busiest[r->round++];
    for (uint32_t i = 0; i < r->job->ranks; i++) {
        const stw_sync_load *l = &loads[i];
        add_load(&r->ranks[i], l);
        most->near_bytes =
            stw_max_u64(most->near_bytes, stw_max_u64(l->near_sent, l->near_received));
        most->far_bytes = stw_max_u64(most->far_bytes, stw_max_u64(l->far_sent, l->far_received));
        if (l->far_messages > most->far_messages) most->far_messages = l->far_messages;
    }
}

static void take_rounds(void *state, const stw_sync_load *loads) {
    reading *r = state;
    for (uint32_t k = 0; k < r->job->n_kinds; k++) {
        const stw_rank_kind *kind = &r->job->kinds[k];
        stw_sync_kind *out = &r->plan->kinds[k];
        out->rounds[r->round] = loads[out->rank];
        for (uint32_t i = 0; i < kind->n_ranks; i++) {
            out->packs[r->round] |= loads[kind->ranks[i]].packed > 0;
            out->places[r->round] |= loads[kind->ranks[i]].placed > 0;
        }
    }
    r->round++;
}

/* What ranks of each kind hold once the sync is done. */
static stw_status add_weights(const stw_job *job, const stw_sync_job *sync, stw_sync_plan *plan,
                              stw_error *err) {
    uint64_t *of_rank = calloc(job->ranks, sizeof *of_rank);
    if (of_rank == NULL) return no_memory(err);
    for (uint32_t i = 0; i < sync->n_targets; i++) {
        const stw_sync_piece *p = &sync->targets[i];
        const uint64_t bytes = stw_times(stw_box_volume(&p->box), stw_sync_width(p->dtype));
        of_rank[p->rank] = stw_plus(of_rank[p->rank], stw_sync_aligned(bytes));
    }
    for (uint32_t k = 0; k < job->n_kinds; k++)
        for (uint32_t i = 0; i < job->kinds[k].n_ranks; i++)
            plan->kinds[k].weights =
                stw_max_u64(plan->kinds[k].weights, of_rank[job->kinds[k].ranks[i]]);
    free(of_rank);
    return STW_STATUS_OK;
}

static bool is_more(const stw_sync_load *a, const stw_sync_load *b) {
    const uint64_t a_comes = a->near_received + a->far_received;
    const uint64_t b_comes = b->near_received + b->far_received;
    if (a_comes != b_comes) return a_comes > b_comes;
    return a->near_sent + a->far_sent > b->near_sent + b->far_sent;
}

/* One rank may have the most from its own node, and another one from others. */
static void find_most(const reading *r) {
    stw_sync_plan *plan = r->plan;
    for (uint32_t i = 0; i < r->job->ranks; i++) {
        plan->placed = stw_max_u64(plan->placed, r->ranks[i].placed);
        plan->near_received = stw_max_u64(plan->near_received, r->ranks[i].near_received);
        plan->far_received = stw_max_u64(plan->far_received, r->ranks[i].far_received);
    }
}

static void choose_ranks(reading *r) {
    for (uint32_t k = 0; k < r->job->n_kinds; k++) {
        const stw_rank_kind *kind = &r->job->kinds[k];
        stw_sync_kind *out = &r->plan->kinds[k];
        out->rank = kind->ranks[0];
        for (uint32_t i = 0; i < kind->n_ranks; i++) {
            const stw_sync_load *load = &r->ranks[kind->ranks[i]];
            stw_sync_load *most = kind->home == 0 ? &r->plan->trainer : &r->plan->receiver;
            if (stw_sync_room(load) > stw_sync_room(most)) *most = *load;
            if (is_more(load, &r->ranks[out->rank])) out->rank = kind->ranks[i];
        }
        out->total = r->ranks[out->rank];
    }
}

static stw_status make_arrays(const stw_job *job, stw_pool *pool, stw_sync_plan *plan,
                              stw_error *err) {
    plan->busiest = stw_pool_array(pool, (size_t)plan->n_rounds + 1, sizeof *plan->busiest);
    plan->kinds = stw_pool_array(pool, job->n_kinds, sizeof *plan->kinds);
    if (plan->busiest == NULL || plan->kinds == NULL) return no_memory(err);
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        plan->kinds[k].rounds =
            stw_pool_array(pool, (size_t)plan->n_rounds + 1, sizeof *plan->kinds[k].rounds);
        plan->kinds[k].packs = stw_pool_array(pool, (size_t)plan->n_rounds + 1, sizeof(bool));
        plan->kinds[k].places = stw_pool_array(pool, (size_t)plan->n_rounds + 1, sizeof(bool));
        if (plan->kinds[k].rounds == NULL || plan->kinds[k].packs == NULL ||
            plan->kinds[k].places == NULL)
            return no_memory(err);
    }
    return STW_STATUS_OK;
}

static stw_status read_schedule(const stw_job *job, const stw_sync_schedule *schedule,
                                stw_pool *pool, stw_sync_plan **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    reading r = {.job = job, .plan = stw_pool_alloc(pool, sizeof *r.plan)};
    r.ranks = stw_pool_array(pool, job->ranks, sizeof *r.ranks);
    if (r.plan == NULL || r.ranks == NULL) STW_TRY(no_memory(err));
    r.plan->n_rounds = stw_sync_schedule_rounds(schedule);
    r.plan->sets = r.plan->n_rounds > 1 ? 2 : 1;
    r.plan->element = stw_sync_width(dtype_of(job));
    STW_TRY(make_arrays(job, pool, r.plan, err));
    STW_TRY(stw_sync_traffic(schedule, job->ranks_per_node, take_sums, &r, err));
    choose_ranks(&r);
    find_most(&r);
    r.round = 0;
    STW_TRY(stw_sync_traffic(schedule, job->ranks_per_node, take_rounds, &r, err));
    STW_TRY(add_weights(job, stw_sync_schedule_job(schedule), r.plan, err));
    *out = r.plan;
out:
    return status;
}

static stw_status make(const stw_job *job, stw_pool *pool, const void **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sync_schedule *schedule = NULL;
    stw_sync_plan *plan = NULL;
    stw_pool *of_job = stw_pool_new(); /* the schedule takes it */
    stw_sync_job sync;
    if (of_job == NULL) return no_memory(err);
    status = stw_sync_job_of(job, of_job, &sync, err);
    if (status != STW_STATUS_OK) {
        stw_pool_free(of_job);
        return status;
    }
    STW_TRY(stw_sync_schedule_new(of_job, &sync, &schedule, err));
    STW_TRY(read_schedule(job, schedule, pool, &plan, err));
    *out = plan;
out:
    stw_sync_schedule_free(schedule);
    return status;
}

stw_status stw_sync_plan_of(const stw_job *job, const stw_sync_plan **out, stw_error *err) {
    const void *value = NULL;
    const stw_status status = stw_job_once_get(job, STW_ONCE_SYNC, make, &value, err);
    *out = value;
    return status;
}

bool stw_sync_is_executed(const stw_job *job) {
    const stw_role *role = stw_synced_role(job);
    return role != NULL && stw_dtype_bits(role->dtype) >= 16 &&
           stw_run_spec_parks(job->run) == NULL && !stw_role_is_alone(job->roles, role_number(job));
}

bool stw_sync_is_in_place(const stw_job *job) {
    return stw_role_is_alone(job->roles, role_number(job)) || stw_synced_role(job)->update_in_place;
}

stw_status stw_sync_gpu_room(const stw_job *job, uint32_t kind, uint64_t *buffers,
                             uint64_t *weights, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_sync_plan *plan = NULL;
    *buffers = *weights = 0;
    if (!stw_sync_is_executed(job)) goto out;
    STW_TRY(stw_sync_plan_of(job, &plan, err));
    *buffers = stw_times(plan->sets, stw_sync_room(&plan->trainer));
    *weights = plan->kinds[kind].weights;
out:
    return status;
}

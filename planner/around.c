/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/around.h"

#include "core/checked.h"

uint64_t stw_around_saved(const stw_around *around, uint32_t i, stw_act act) {
    return around->build->saved[act].gpu[i];
}

uint64_t stw_around_group_saves(const stw_around *around, uint32_t group, stw_act act) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < around->n; i++)
        if (around->group[i] == group) most = stw_max_u64(most, stw_around_saved(around, i, act));
    return most;
}

/* ---- reading a program ---- */

/* Activations that are left when block i has finished its backward. */
static uint64_t left_before(const stw_around *around, uint32_t i, stw_act act) {
    uint64_t bytes = around->before[act][i];
    if (act == STW_ACT_OFFLOAD && i > 0) bytes += stw_around_saved(around, i - 1, STW_ACT_KEEP);
    return bytes;
}

typedef struct reading {
    const stw_around *around;
    stw_act act;
    int64_t base;
    uint32_t at;       /* the block that instants belong to */
    bool tail, ending; /* `ending`: block `at` has computed its backward */
    uint64_t before;   /* saved by blocks before `at` */
    int64_t *bytes, *tail_bytes;
} reading;

static void go_to(reading *r, uint32_t i) {
    r->at = i;
    r->ending = false;
    r->before = r->around->before[r->act][i];
}

/* One operation of forward and backward, already applied to `live`. */
static void read_op(reading *r, const stw_op *op, const stw_live *live) {
    uint64_t activations = live->bytes[STW_TIER_GPU][STW_COMPONENT_ACTIVATIONS];
    if (op->kind == STW_OP_FORWARD) {
        uint32_t i = r->around->position[op->unit];
        go_to(r, i + 1 < r->around->n ? i + 1 : i);
    } else if (op->kind == STW_OP_BACKWARD) {
        go_to(r, r->around->position[op->unit]);
        r->ending = true;
    }
    if (r->ending && op->kind == STW_OP_FREE &&
        activations <= left_before(r->around, r->at, r->act)) {
        if (r->at == 0)
            r->tail = true;
        else
            go_to(r, r->at - 1);
        r->ending = false;
    }
    if (op->kind != STW_OP_ALLOC || op->to != STW_TIER_GPU) return;
    int64_t bytes = (int64_t)live->total[STW_TIER_GPU] - r->base;
    int64_t *most = r->tail ? r->tail_bytes : &r->bytes[r->at];
    if (!r->tail) bytes -= (int64_t)r->before;
    if (bytes > *most) *most = bytes;
}

/* Walk a program. @param bytes out, [n_blocks] @param tail in and out */
static stw_status read_program(stw_around *around, uint32_t place, stw_act act, int64_t *bytes,
                               int64_t *tail, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_program *program = NULL;
    STW_TRY(stw_build_program(around->build, place, act, &program, err));
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    if (movement == NULL) goto out;
    stw_live live = {0};
    for (uint32_t i = 0; i < movement->first_op; i++) stw_live_apply(&live, &program->ops[i]);
    reading r = {.around = around, .act = act, .bytes = bytes, .tail_bytes = tail};
    r.base = (int64_t)live.total[STW_TIER_GPU];
    r.tail = around->n == 0;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        stw_live_apply(&live, &program->ops[i]);
        read_op(&r, &program->ops[i], &live);
    }
out:
    return status;
}

/* What each block saves under a policy. */
static stw_status read_saved(stw_around *around, stw_act act, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_build *b = around->build;
    const stw_program *program = NULL;
    STW_TRY(stw_build_program(b, 0, act, &program, err));
    if (b->saved[act].blocks == NULL)
        STW_TRY(stw_read_saved(b->cost->job, program, b->pool, &b->saved[act], err));
    const stw_saved_acts *saved = &b->saved[act];
    uint64_t *before = stw_pool_array(b->pool, (size_t)saved->n + 1, sizeof *before);
    if (before == NULL) return stw_planner_no_memory(err);
    for (uint32_t i = 0; i < saved->n; i++) before[i + 1] = before[i] + saved->gpu[i];
    around->before[act] = before;
out:
    return status;
}

/* Where blocks stand, and among which. */
static stw_status order_blocks(stw_around *around, stw_error *err) {
    const stw_model *model = around->cost->job->model;
    stw_pool *pool = around->build->pool;
    const stw_saved_acts *kept = &around->build->saved[STW_ACT_KEEP];
    around->n = kept->n;
    around->blocks = kept->blocks;
    around->group = stw_pool_array(pool, kept->n, sizeof *around->group);
    around->later = stw_pool_array(pool, kept->n, sizeof *around->later);
    around->position = stw_pool_array(pool, model->n_blocks, sizeof *around->position);
    uint32_t *seen = stw_pool_array(pool, model->n_groups, sizeof *seen);
    if (around->group == NULL || around->later == NULL || around->position == NULL || seen == NULL)
        return stw_planner_no_memory(err);
    for (uint32_t b = 0; b < model->n_blocks; b++) around->position[b] = kept->n;
    for (uint32_t i = kept->n; i-- > 0;) {
        around->position[kept->blocks[i]] = i;
        around->group[i] = model->blocks[kept->blocks[i]].group;
        around->later[i] = seen[around->group[i]]++;
    }
    return STW_STATUS_OK;
}

/* The first place with shards of a kind; n_places where there is none. */
static uint32_t place_with(const stw_cost *cost, unsigned host_kind) {
    uint32_t p = 0;
    while (p < cost->n_places && stw_staged_kind(&cost->places[p]) != host_kind) p++;
    return p;
}

/* @param bytes,tail with all shards on the GPU */
static stw_status read_host(stw_around *around, unsigned kind, stw_act act, const int64_t *bytes,
                            int64_t tail, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t place = place_with(around->cost, kind);
    int64_t host_tail = 0;
    if (place == around->cost->n_places) return status;
    int64_t *here =
        stw_pool_array(around->build->pool, around->cost->job->model->n_blocks, sizeof *here);
    if (here == NULL) return stw_planner_no_memory(err);
    STW_TRY(read_program(around, place, act, here, &host_tail, err));
    if (host_tail - tail > around->host_tail[kind]) around->host_tail[kind] = host_tail - tail;
    for (uint32_t i = 0; i < around->n; i++)
        if (here[i] - bytes[i] > around->host_stage[kind][i])
            around->host_stage[kind][i] = here[i] - bytes[i];
out:
    return status;
}

static stw_status read_policy(stw_around *around, stw_act act, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = around->cost;
    uint32_t place = place_with(cost, 0);
    int64_t *bytes = stw_pool_array(around->build->pool, cost->job->model->n_blocks, sizeof *bytes);
    int64_t tail = 0;
    if (bytes == NULL) return stw_planner_no_memory(err);
    bool some_on_gpu = place < cost->n_places;
    for (unsigned kind = STW_STAGED_KINDS - 1; place == cost->n_places && kind > 0; kind--)
        place = place_with(cost, kind);
    STW_TRY(read_saved(around, act, err));
    STW_TRY(read_program(around, place, act, bytes, &tail, err));
    around->has[act] = true;
    around->bytes[act] = bytes;
    if (tail > around->tail) around->tail = tail;
    for (unsigned kind = 1; some_on_gpu && kind < STW_STAGED_KINDS; kind++)
        STW_TRY(read_host(around, kind, act, bytes, tail, err));
out:
    return status;
}

/* ---- shares of blocks ---- */

/* Runs of units in the order of places: so often shards on the host begin anew. */
#define HOST_RUNS 3

/* Blocks smaller than this share of the largest are left out, and so is their staging. */
static const double SMALL_BLOCK = 0.02;

/* By how much the share that any run of the space has of a block exceeds the run's share of the
 * space, at most. 1 where that is not known. */
static stw_status find_uneven(stw_around *around, stw_error *err) {
    const stw_job *job = around->cost->job;
    const stw_rank_kind *kind = &job->kinds[job->largest];
    const stw_space *space = &kind->spaces[STW_SPACE_PARAMS];
    typedef struct ends {
        double before, most, least; /* elements so far; the block's share less the space's */
    } ends;
    ends *of = stw_pool_array(around->build->pool, job->model->n_blocks, sizeof *of);
    if (of == NULL) return stw_planner_no_memory(err);
    uint64_t largest = 0;
    double so_far = 0, most = 0;
    around->uneven = 1;
    for (uint32_t b = 0; b < job->model->n_blocks; b++)
        largest = stw_max_u64(largest, kind->block_params[b]);
    for (uint32_t i = 0; i < space->n_segments; i++) {
        const stw_segment *segment = &space->segments[i];
        uint32_t b = job->model->tensors[segment->tensor].block;
        double all = (double)kind->block_params[b], n = (double)segment->n;
        if (all <= 0) continue;
        double before = of[b].before / all - so_far / (double)space->n;
        so_far += n;
        of[b].before += n;
        double after = of[b].before / all - so_far / (double)space->n;
        of[b].least = before < of[b].least ? before : of[b].least;
        of[b].most = after > of[b].most ? after : of[b].most;
        if (all >= SMALL_BLOCK * (double)largest && of[b].most - of[b].least > most)
            most = of[b].most - of[b].least;
    }
    double uneven = HOST_RUNS * most + SMALL_BLOCK;
    if (uneven < 1 && !around->cost->whole) around->uneven = uneven;
    return STW_STATUS_OK;
}

/* ---- all of it ---- */

stw_status stw_read_around(stw_build *build, stw_around *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = build->cost;
    *out = (stw_around){.build = build, .cost = cost};
    STW_TRY(read_saved(out, STW_ACT_KEEP, err));
    STW_TRY(order_blocks(out, err));
    for (unsigned kind = 1; kind < STW_STAGED_KINDS; kind++) {
        out->host_stage[kind] =
            stw_pool_array(build->pool, cost->job->model->n_blocks, sizeof *out->host_stage[kind]);
        if (out->host_stage[kind] == NULL) return stw_planner_no_memory(err);
    }
    STW_TRY(find_uneven(out, err));
    STW_TRY(read_policy(out, STW_ACT_KEEP, err));
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (!out->has[cost->acts[a].act]) STW_TRY(read_policy(out, cost->acts[a].act, err));
out:
    return status;
}

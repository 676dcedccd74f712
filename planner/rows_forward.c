/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of GPU bytes in forward and backward, read off one program for every policy, in which all
 * blocks are alike.
 *
 * Every instant of forward and backward belongs to one block: in forward until its compute, in
 * backward from where its successor's activations have gone until its own have; the loss belongs to
 * the last block, and what comes after the first block's backward to none. At an instant of block j
 * there live: what blocks before j saved, each by its own policy; what is around block j, which its
 * own policy decides; and, where j - 1 is offloaded and j is not, the activations of j - 1 on their
 * way. Around block j is what its policy's program has live there less what the blocks before
 * saved in it.
 *
 * Within a group the order is offload, recompute, keep, so at the last block of a policy the ones
 * before are known by count. Of another group no more is left than the share of its blocks that
 * lies before this group's last one (blocks that save less come first). */
#include <stdio.h>

#include "core/checked.h"
#include "planner/rows.h"

/* What the programs show. */
typedef struct stw_around {
    stw_build *build;
    const stw_cost *cost;
    uint32_t n;       /* blocks in the order of their forward */
    uint32_t *blocks; /* [n] */
    bool has[STW_N_ACTS];
    int64_t *bytes[STW_N_ACTS]; /* [n] around each block under a policy */
    int64_t tail;               /* after the first block's backward */
    int64_t host_stage;         /* more than that where shards come from the host */
} stw_around;

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the rows");
}

static uint32_t group_of(const stw_around *around, uint32_t i) {
    return around->cost->job->model->blocks[around->blocks[i]].group;
}

static uint64_t saved_by(const stw_around *around, uint32_t i, stw_act act) {
    return around->build->saved[act].gpu[i];
}

/* Of one block of a group. */
static uint64_t group_saves(const stw_around *around, uint32_t group, stw_act act) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < around->n; i++)
        if (group_of(around, i) == group) most = stw_max_u64(most, saved_by(around, i, act));
    return most;
}

/* ---- reading a program ---- */

static uint32_t position_of(const stw_around *around, uint32_t block) {
    uint32_t i = 0;
    while (i < around->n && around->blocks[i] != block) i++;
    return i;
}

/* Activations that are left when block i has finished its backward. */
static uint64_t left_before(const stw_around *around, uint32_t i, stw_act act) {
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < i; b++) bytes += saved_by(around, b, act);
    if (act == STW_ACT_OFFLOAD && i > 0) bytes += saved_by(around, i - 1, STW_ACT_KEEP);
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
    r->before = 0;
    for (uint32_t b = 0; b < i; b++) r->before += saved_by(r->around, b, r->act);
}

/* One operation of forward and backward, already applied to `live`. */
static void read_op(reading *r, const stw_op *op, const stw_live *live) {
    uint64_t activations = live->bytes[STW_TIER_GPU][STW_COMPONENT_ACTIVATIONS];
    if (op->kind == STW_OP_FORWARD) {
        uint32_t i = position_of(r->around, op->unit);
        go_to(r, i + 1 < r->around->n ? i + 1 : i);
    } else if (op->kind == STW_OP_BACKWARD) {
        go_to(r, position_of(r->around, op->unit));
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
out:
    return status;
}

/* The first place with parameters in a tier; n_places where there is none. */
static uint32_t place_with_params(const stw_cost *cost, stw_tier tier) {
    uint32_t p = 0;
    while (p < cost->n_places && cost->places[p].params != tier) p++;
    return p;
}

static stw_status read_policy(stw_around *around, stw_act act, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = around->cost;
    uint32_t n_blocks = cost->job->model->n_blocks;
    uint32_t gpu = place_with_params(cost, STW_TIER_GPU);
    uint32_t host = place_with_params(cost, STW_TIER_HOST);
    int64_t *bytes = stw_pool_array(around->build->pool, n_blocks, sizeof *bytes);
    int64_t *host_bytes = stw_pool_array(around->build->pool, n_blocks, sizeof *host_bytes);
    if (bytes == NULL || host_bytes == NULL) return no_memory(err);
    int64_t tail = 0, host_tail = 0;
    STW_TRY(read_saved(around, act, err));
    STW_TRY(read_program(around, gpu < cost->n_places ? gpu : host, act, bytes, &tail, err));
    around->has[act] = true;
    around->bytes[act] = bytes;
    if (tail > around->tail) around->tail = tail;
    if (gpu == cost->n_places || host == cost->n_places) goto out;
    STW_TRY(read_program(around, host, act, host_bytes, &host_tail, err));
    if (host_tail - tail > around->host_stage) around->host_stage = host_tail - tail;
    for (uint32_t i = 0; i < around->n; i++)
        if (host_bytes[i] - bytes[i] > around->host_stage)
            around->host_stage = host_bytes[i] - bytes[i];
out:
    return status;
}

/* ---- rows ---- */

/* Position after the last block of a group; 0 where it has none. */
static uint32_t end_of(const stw_around *around, uint32_t group) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < around->n; i++)
        if (group_of(around, i) == group) end = i + 1;
    return end;
}

/* Blocks of a group from `first` up to `end`. */
static uint32_t count_blocks(const stw_around *around, uint32_t group, uint32_t first,
                             uint32_t end) {
    uint32_t count = 0;
    for (uint32_t i = first; i < end; i++) count += group_of(around, i) == group;
    return count;
}

/* The most around a group's blocks under a policy, less what the block itself saves (a row counts
 * that with the others). Blocks after one of the last policy have that policy too, and are done. */
static int64_t most_around(const stw_around *around, uint32_t group, stw_act act,
                           bool last_policy) {
    int64_t most = 0;
    for (uint32_t i = 0; i < around->n; i++) {
        if (group_of(around, i) != group) continue;
        uint32_t gone = 1 + (last_policy ? count_blocks(around, group, i + 1, around->n) : 0);
        int64_t bytes = around->bytes[act][i] - (int64_t)(gone * saved_by(around, i, act));
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Host-resident shards on their way. */
static void add_host_stage(const stw_around *around, stw_byte_row *row) {
    uint32_t n_rings = around->cost->n_rings;
    for (uint32_t r = 0; r < n_rings; r++)
        row->ring_bytes[STW_USE_HOST_PARAMS * n_rings + r] = (uint64_t)around->host_stage;
}

/* What blocks of other groups still hold when this group's last block is in its backward, and
 * offloaded ones right before a block of this group. */
static void add_others(const stw_around *around, uint32_t group, bool offload, stw_byte_row *row) {
    const stw_cost *cost = around->cost;
    uint32_t end = end_of(around, group);
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        if (act->group == group) continue;
        uint32_t all = count_blocks(around, act->group, 0, around->n);
        uint32_t before = count_blocks(around, act->group, 0, end);
        uint64_t saved = group_saves(around, act->group, act->act);
        if (all > 0) row->act_bytes[a] = stw_div_up_u64(saved * before, all);
        if (act->act != STW_ACT_OFFLOAD || offload) continue; /* offload: it is around already */
        for (uint32_t i = 1; i < around->n; i++)
            if (group_of(around, i) == group && group_of(around, i - 1) == act->group)
                row->act_once_bytes[a] = group_saves(around, act->group, STW_ACT_KEEP);
    }
}

/* What lies there as forward begins; what forward and backward make is around blocks. */
static stw_byte_row *state_row(const stw_around *around, const char *name) {
    stw_byte_row *row = stw_row_gpu(around->build, STW_PHASE_FORWARD_BACKWARD, STW_AT_REST, name);
    if (row != NULL) add_host_stage(around, row);
    return row;
}

/* The last block with option `a`. @param least the least around this group under any policy */
static stw_status add_policy(const stw_around *around, uint32_t a, int64_t most, int64_t least,
                             stw_error *err) {
    const stw_cost *cost = around->cost;
    const stw_cost_act *act = &cost->acts[a];
    char name[64];
    snprintf(name, sizeof name, "blocks_g%u_%s", act->group, stw_act_name(act->act));
    stw_byte_row *row = state_row(around, name);
    if (row == NULL) return no_memory(err);
    add_others(around, act->group, act->act == STW_ACT_OFFLOAD, row);
    row->constant_bytes += (uint64_t)least;
    for (uint32_t i = 0; i < cost->n_acts; i++) {
        const stw_cost_act *other = &cost->acts[i];
        if (other->group != act->group) continue;
        uint64_t saved = group_saves(around, other->group, other->act);
        if (i <= a) row->act_bytes[i] = saved;
        /* a recomputed block right after an offloaded one holds its input beside both */
        if (act->act == STW_ACT_OFFLOAD && other->act == STW_ACT_RECOMPUTE)
            row->act_once_bytes[i] = saved;
    }
    row->act_once_bytes[a] = (uint64_t)(most - least);
    return STW_STATUS_OK;
}

static stw_status add_group(const stw_around *around, uint32_t group, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = around->cost;
    int64_t most[STW_N_ACTS] = {0}, least = INT64_MAX;
    bool any = false;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        if (act->group != group) continue;
        bool last_policy = a + 1 == cost->n_acts || cost->acts[a + 1].group != group;
        most[act->act] = most_around(around, group, act->act, last_policy);
        if (most[act->act] < least) least = most[act->act];
        any = true;
    }
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (cost->acts[a].group == group)
            STW_TRY(add_policy(around, a, most[cost->acts[a].act], least, err));
    if (!any && end_of(around, group) > 0) { /* gathered by itself, but without a choice */
        char name[64];
        snprintf(name, sizeof name, "blocks_g%u", group);
        stw_byte_row *row = state_row(around, name);
        if (row == NULL) return no_memory(err);
        add_others(around, group, false, row);
        int64_t bytes = 0; /* what is fetched ahead of it differs */
        for (int act = 0; act < STW_N_ACTS; act++)
            if (around->has[act] && most_around(around, group, (stw_act)act, true) > bytes)
                bytes = most_around(around, group, (stw_act)act, true);
        row->constant_bytes += (uint64_t)bytes;
    }
out:
    return status;
}

/* Offloaded blocks wait on the host, the largest of a group for all of them. */
static void find_stashes(const stw_around *around) {
    const stw_cost *cost = around->cost;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_saved *saved = &around->build->saved[cost->acts[a].act];
        for (uint32_t i = 0; i < around->n; i++)
            if (group_of(around, i) == cost->acts[a].group)
                around->build->stash_bytes[a] =
                    stw_max_u64(around->build->stash_bytes[a], saved->host[i]);
    }
}

stw_status stw_rows_add_forward_bytes(stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = b->cost;
    stw_around around = {.build = b, .cost = cost};
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].params == STW_TIER_HOST)
            cost->place_uses[p] |= 1u << STW_USE_HOST_PARAMS;
    STW_TRY(read_saved(&around, STW_ACT_KEEP, err));
    around.n = b->saved[STW_ACT_KEEP].n;
    around.blocks = b->saved[STW_ACT_KEEP].blocks;
    STW_TRY(read_policy(&around, STW_ACT_KEEP, err));
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (!around.has[cost->acts[a].act]) STW_TRY(read_policy(&around, cost->acts[a].act, err));
    find_stashes(&around);
    for (uint32_t g = 0; g < cost->job->model->n_groups; g++) STW_TRY(add_group(&around, g, err));
    stw_byte_row *row = state_row(&around, "root");
    if (row == NULL)
        status = no_memory(err);
    else
        row->constant_bytes += (uint64_t)around.tail;
out:
    return status;
}

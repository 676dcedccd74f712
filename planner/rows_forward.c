/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of GPU bytes in forward and backward. At an instant of block j there live: what blocks
 * before j saved, each by its own policy; what is around block j, which its own policy decides
 * (around.h); and the activations of an offloaded block on their way.
 *
 * Policies are spread over a group, but the last STW_LAST_BLOCKS blocks have its last policy (keep)
 * as far as there are that many. Where there are fewer, blocks of that policy are done when the
 * others are in their backward: these have a row without them. Where there are more, the last
 * blocks have freed their activations then, and the last policy's row holds for all blocks. A
 * block's activations are fetched early only into what kept blocks have freed (stw_block_held_to).
 * Of another group no more is left than the share of its blocks that lies before this group's last
 * one (blocks that save less come first).
 *
 * Where there is more around earlier blocks than around the last ones (with replicas, sums of
 * gradients are kept until the end of backward), a part of the group has rows of its own. */
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/program/blocks.h"
#include "planner/around.h"

/* Shards of so many blocks at most are on their way at once. */
#define STAGED_BLOCKS 3

/* Where the rows of a group's blocks differ by position: so many parts. */
#define SPANS 8

/* Some blocks of a group that follow each other: positions from `first` up to `end`. */
typedef struct span {
    uint32_t group, first, end;
} span;

/* Blocks of a group from `first` up to `end`. */
static uint32_t count_blocks(const stw_around *around, uint32_t group, uint32_t first,
                             uint32_t end) {
    uint32_t count = 0;
    for (uint32_t i = first; i < end; i++) count += around->group[i] == group;
    return count;
}

/* Position after the last block of a group; 0 where it has none. */
static uint32_t end_of(const stw_around *around, uint32_t group) {
    uint32_t end = around->n;
    while (end > 0 && around->group[end - 1] != group) end--;
    return end;
}

/* Position of the group's block number `instance`. */
static uint32_t position_in(const stw_around *around, uint32_t group, uint32_t instance) {
    uint32_t i = 0;
    while (i < around->n && (around->group[i] != group || instance-- > 0)) i++;
    return i;
}

/* The most around a span's blocks under a policy, less what the block itself saves (a row counts
 * that with the others) and less what up to `at_most` later ones save, which are done.
 * @param fetching another block's activations are on their way then, and a later block is done */
static int64_t most_around(const stw_around *around, span s, stw_act act, uint32_t at_most,
                           bool fetching) {
    int64_t most = 0;
    for (uint32_t i = s.first; i < s.end; i++) {
        if (around->group[i] != s.group) continue;
        uint64_t gone = stw_min_u64(at_most, around->later[i]);
        if (fetching && gone == 0) continue;
        int64_t bytes =
            around->bytes[act][i] - (int64_t)((1 + gone) * stw_around_saved(around, i, act));
        if (fetching) bytes += (int64_t)stw_around_saved(around, i, STW_ACT_KEEP);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* The same with what the block itself saves. */
static int64_t most_at(const stw_around *around, span s, stw_act act) {
    int64_t most = 0;
    for (uint32_t i = s.first; i < s.end; i++)
        if (around->group[i] == s.group && around->bytes[act][i] > most)
            most = around->bytes[act][i];
    return most;
}

/* Shards on their way from and to the host, of each kind. */
typedef struct staging {
    int64_t bytes[STW_STAGED_KINDS];
} staging;

/* Around a group's blocks. */
static staging staging_of(const stw_around *around, uint32_t group) {
    staging most = {{0}};
    for (unsigned kind = 1; kind < STW_STAGED_KINDS; kind++)
        for (uint32_t i = 0; i < around->n; i++)
            if (around->group[i] == group && around->host_stage[kind][i] > most.bytes[kind])
                most.bytes[kind] = around->host_stage[kind][i];
    return most;
}

/* What blocks of other groups still hold when the span's last block is in its backward, and
 * offloaded ones right before a block of the span. */
static void add_others(const stw_around *around, span s, bool offload, stw_byte_row *row) {
    const stw_cost *cost = around->cost;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        if (act->group == s.group) continue;
        uint32_t all = count_blocks(around, act->group, 0, around->n);
        uint32_t before = count_blocks(around, act->group, 0, s.end);
        uint64_t saved = stw_around_group_saves(around, act->group, act->act);
        if (all > 0) row->act_bytes[a] = stw_div_up_u64(saved * before, all);
        if (act->act != STW_ACT_OFFLOAD || offload) continue; /* offload: it is around already */
        for (uint32_t i = (uint32_t)stw_max_u64(s.first, 1); i < s.end; i++)
            if (around->group[i] == s.group && around->group[i - 1] == act->group)
                row->act_once_bytes[a] = stw_around_group_saves(around, act->group, STW_ACT_KEEP);
    }
}

/* The most that shards on the host of any block beyond its fair share can add. */
static int64_t uneven_bytes(const stw_around *around, int64_t most) {
    const stw_job *job = around->cost->job;
    uint64_t params = 0, element = stw_job_element_bytes(job, STW_COMPONENT_PARAMS) +
                                   stw_job_element_bytes(job, STW_COMPONENT_GRADS);
    for (uint32_t b = 0; b < job->model->n_blocks; b++)
        params = stw_max_u64(params, job->kinds[job->largest].block_params[b]);
    double bytes = STAGED_BLOCKS * (double)stw_times(params, element) * around->uneven;
    return bytes < (double)most ? (int64_t)bytes : most;
}

/* What lies there as forward begins; what forward and backward make is around blocks. Staging is a
 * convex function of the shares that lie on the host, so that each unit brings its part of what all
 * of its kind would; blocks have a little more or less than their fair share of units. */
static stw_byte_row *state_row(const stw_around *around, const char *name, staging staged) {
    stw_byte_row *row = stw_row_gpu(around->build, STW_PHASE_FORWARD_BACKWARD, STW_AT_REST, name);
    const stw_cost *cost = around->cost;
    int64_t most = 0;
    if (row == NULL) return NULL;
    for (unsigned kind = 1; kind < STW_STAGED_KINDS; kind++)
        if (staged.bytes[kind] > most) most = staged.bytes[kind];
    int64_t once = around->uneven < 1 ? uneven_bytes(around, most) : most;
    for (uint32_t p = 0; p < cost->n_places && around->uneven < 1; p++)
        row->unit_bytes[p] += stw_div_up_u64(
            (uint64_t)staged.bytes[stw_staged_kind(&cost->places[p])], cost->n_units);
    for (uint32_t r = 0; r < cost->n_rings; r++)
        row->ring_bytes[STW_USE_HOST_PARAMS * cost->n_rings + r] = (uint64_t)once;
    return row;
}

/* What is around a group's last blocks. */
typedef struct group_around {
    span at;
    uint32_t first, n;        /* its options in cost->acts; the last of them is the last policy */
    int64_t most[STW_N_ACTS]; /* under each policy */
    int64_t least;            /* of these */
    int64_t fetching;         /* under the last policy with a block on its way */
    int64_t recomputed;       /* under recompute, of all blocks */
    int64_t room;             /* what STW_LAST_BLOCKS blocks of the last policy free */
} group_around;

static stw_act last_policy(const stw_around *around, const group_around *g) {
    return around->cost->acts[g->first + g->n - 1].act;
}

/* By how much the row of the last policy grows where any block has policy `act`: blocks of that
 * policy that are not among the last ones, and activations on their way. */
static int64_t beside_last(const stw_around *around, const group_around *g, stw_act act) {
    stw_act last = last_policy(around, g);
    int64_t most = g->most[act] - g->room, kept = g->most[last];
    if (act == STW_ACT_OFFLOAD) {
        if (g->fetching > most) most = g->fetching;
        if (last != STW_ACT_RECOMPUTE && around->has[STW_ACT_RECOMPUTE]) {
            int64_t own = g->recomputed - g->room +
                          (int64_t)stw_around_group_saves(around, g->at.group, STW_ACT_KEEP);
            if (own > most) most = own;
        }
    }
    return most > kept ? most - kept : 0;
}

/* The blocks with option `a`. */
static stw_status add_policy(const stw_around *around, const group_around *g, uint32_t a,
                             stw_error *err) {
    const stw_cost *cost = around->cost;
    const stw_cost_act *act = &cost->acts[a];
    bool is_last = a + 1 == g->first + g->n;
    char name[64];
    snprintf(name, sizeof name, "blocks_g%u_%s", act->group, stw_act_name(act->act));
    stw_byte_row *row = state_row(around, name, staging_of(around, act->group));
    if (row == NULL) return stw_planner_no_memory(err);
    add_others(around, g->at, act->act == STW_ACT_OFFLOAD, row);
    row->constant_bytes += (uint64_t)g->least;
    for (uint32_t i = g->first; i < g->first + g->n; i++) {
        bool other_is_last = i + 1 == g->first + g->n;
        if (is_last || !other_is_last)
            row->act_bytes[i] = stw_around_group_saves(around, g->at.group, cost->acts[i].act);
        if (is_last && !other_is_last)
            row->act_once_bytes[i] = (uint64_t)beside_last(around, g, cost->acts[i].act);
        /* a recomputed block right after an offloaded one holds its input beside both */
        if (!is_last && other_is_last && cost->acts[i].act == STW_ACT_RECOMPUTE)
            row->act_once_bytes[i] = stw_around_group_saves(around, g->at.group, STW_ACT_RECOMPUTE);
    }
    row->act_once_bytes[a] = (uint64_t)(g->most[act->act] - g->least);
    return STW_STATUS_OK;
}

/* What is around the blocks of a span. */
static group_around look_at(const stw_around *around, span at) {
    const stw_cost *cost = around->cost;
    const uint32_t group = at.group;
    group_around g = {.at = at, .least = INT64_MAX};
    while (g.first < cost->n_acts && cost->acts[g.first].group != group) g.first++;
    while (g.first + g.n < cost->n_acts && cost->acts[g.first + g.n].group == group) g.n++;
    if (g.n == 0) return g;
    for (uint32_t i = 0; i < g.n; i++) {
        stw_act act = cost->acts[g.first + i].act;
        uint32_t done = g.n == 1 ? UINT32_MAX : i + 1 == g.n ? STW_LAST_BLOCKS : 0;
        g.most[act] = most_around(around, g.at, act, done, false);
        if (g.most[act] < g.least) g.least = g.most[act];
    }
    stw_act last = last_policy(around, &g);
    g.fetching = most_around(around, g.at, last, STW_LAST_BLOCKS, true);
    if (around->has[STW_ACT_RECOMPUTE])
        g.recomputed = most_around(around, g.at, STW_ACT_RECOMPUTE, 0, false);
    g.room = STW_LAST_BLOCKS * (int64_t)stw_around_group_saves(around, group, last);
    return g;
}

/* Is there no more around a block than around the last ones? */
static bool is_covered(const group_around *block, const group_around *last) {
    for (int act = 0; act < STW_N_ACTS; act++)
        if (block->most[act] > last->most[act]) return false;
    return block->fetching <= last->fetching && block->recomputed <= last->recomputed;
}

/* Where there is more around earlier blocks (sums that are kept until the end of backward), these
 * have rows of their own: blocks before them hold their share of activations, blocks after them
 * nothing, apart from one whose activations are on their way. */
static stw_status add_span(const stw_around *around, const group_around *g, span s, stw_act act,
                           stw_error *err) {
    const stw_cost *cost = around->cost;
    uint32_t all = count_blocks(around, s.group, 0, around->n);
    uint32_t before = count_blocks(around, s.group, 0, s.end) - 1;
    char name[64];
    snprintf(name, sizeof name, "blocks_g%u_to%u_%s", s.group, before + 1, stw_act_name(act));
    stw_byte_row *row = state_row(around, name, staging_of(around, s.group));
    if (row == NULL) return stw_planner_no_memory(err);
    add_others(around, s, act == STW_ACT_OFFLOAD, row);
    int64_t least = most_at(around, s, act);
    for (uint32_t i = g->first; i < g->first + g->n; i++) {
        int64_t most = most_at(around, s, cost->acts[i].act);
        if (most < least) least = most;
    }
    row->constant_bytes += (uint64_t)least;
    for (uint32_t i = g->first; i < g->first + g->n; i++) {
        uint64_t saved = stw_around_group_saves(around, s.group, cost->acts[i].act);
        row->act_bytes[i] = stw_div_up_u64(saved * before, all);
        if (cost->acts[i].act == STW_ACT_OFFLOAD && act != STW_ACT_OFFLOAD)
            row->act_once_bytes[i] = stw_around_group_saves(around, s.group, STW_ACT_KEEP);
        if (cost->acts[i].act == act)
            row->act_once_bytes[i] += (uint64_t)(most_at(around, s, act) - least);
    }
    return STW_STATUS_OK;
}

static bool more_around(const stw_around *around, span a, span b) {
    for (int act = 0; act < STW_N_ACTS; act++)
        if (around->has[act] && most_at(around, a, (stw_act)act) > most_at(around, b, (stw_act)act))
            return true;
    return false;
}

/* Rows of the blocks before the last ones, from behind; those around which there is no more than
 * around later ones need none. */
static stw_status add_earlier(const stw_around *around, const group_around *g, uint32_t blocks,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    span later = {0};
    for (uint32_t k = SPANS; k-- > 0;) {
        uint32_t from = blocks * k / SPANS, to = blocks * (k + 1) / SPANS;
        if (from == to) continue;
        span s = {g->at.group, position_in(around, g->at.group, from),
                  position_in(around, g->at.group, to - 1) + 1};
        if (later.end > 0 && !more_around(around, s, later)) continue;
        for (uint32_t i = g->first; i < g->first + g->n; i++)
            STW_TRY(add_span(around, g, s, around->cost->acts[i].act, err));
        later = s;
    }
out:
    return status;
}

/* Blocks gathered by themselves, but without a choice. */
static stw_status add_fixed(const stw_around *around, span s, stw_error *err) {
    char name[64];
    snprintf(name, sizeof name, "blocks_g%u", s.group);
    stw_byte_row *row = state_row(around, name, staging_of(around, s.group));
    if (row == NULL) return stw_planner_no_memory(err);
    add_others(around, s, false, row);
    int64_t bytes = 0; /* what is fetched ahead of it differs */
    for (int act = 0; act < STW_N_ACTS; act++)
        if (around->has[act] && most_around(around, s, (stw_act)act, UINT32_MAX, false) > bytes)
            bytes = most_around(around, s, (stw_act)act, UINT32_MAX, false);
    row->constant_bytes += (uint64_t)bytes;
    return STW_STATUS_OK;
}

static stw_status add_group(const stw_around *around, uint32_t group, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t blocks = count_blocks(around, group, 0, around->n);
    if (blocks == 0) return status;
    const span whole = {group, 0, end_of(around, group)};
    group_around g = look_at(around, whole);
    if (g.n == 0) return add_fixed(around, whole, err);
    uint32_t last = g.n > 1 ? blocks - (blocks + SPANS - 1) / SPANS : 0;
    uint32_t first = position_in(around, group, last);
    g = look_at(around, (span){group, first, whole.end});
    while (last > 0) {
        uint32_t i = first - 1;
        while (around->group[i] != group) i--;
        const group_around one = look_at(around, (span){group, i, i + 1});
        if (!is_covered(&one, &g)) break;
        g.at.first = first = i;
        last--;
    }
    for (uint32_t i = 0; i < g.n; i++) STW_TRY(add_policy(around, &g, g.first + i, err));
    STW_TRY(add_earlier(around, &g, last, err));
out:
    return status;
}

/* Offloaded blocks wait on the host, the largest of a group for all of them. */
static void find_stashes(const stw_around *around) {
    const stw_cost *cost = around->cost;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_saved_acts *saved = &around->build->saved[cost->acts[a].act];
        for (uint32_t i = 0; i < around->n; i++)
            if (around->group[i] == cost->acts[a].group)
                around->build->stash_bytes[a] =
                    stw_max_u64(around->build->stash_bytes[a], saved->host[i]);
    }
}

stw_status stw_rows_add_forward_bytes(stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = b->cost;
    stw_around around;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].params == STW_TIER_HOST || cost->places[p].grads == STW_TIER_HOST)
            cost->place_uses[p] |= 1u << STW_USE_HOST_PARAMS;
    STW_TRY(stw_read_around(b, &around, err));
    find_stashes(&around);
    for (uint32_t g = 0; g < cost->job->model->n_groups; g++) STW_TRY(add_group(&around, g, err));
    staging tail = {{0}};
    memcpy(tail.bytes, around.host_tail, sizeof tail.bytes);
    stw_byte_row *row = state_row(&around, "root", tail);
    if (row == NULL)
        status = stw_planner_no_memory(err);
    else
        row->constant_bytes += (uint64_t)around.tail;
out:
    return status;
}

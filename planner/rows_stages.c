/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of GPU bytes in forward, backward and step for an engine with pipeline stages. Every kind of
 * rank has rows of its own. Where one group alone has a choice, every count of its blocks
 * that the stage's programs tell apart is walked, and rows are lines through what was found. Else
 * they are read off programs of one policy for all blocks: what a group's blocks keep is dealt to
 * all blocks of the group in the model, and what there is beside that is there as soon as any block
 * has the policy. A stage takes its part of a group's blocks, those that are recomputed rounded up,
 * so that mixtures hold no more than rows say. */
#include <stdio.h>

#include "core/checked.h"
#include "plan/program/blocks.h"
#include "planner/rows.h"

/* The programs of a kind of rank under one policy. */
typedef struct reading {
    bool has;
    stw_saved_acts saved;
    uint64_t all;      /* activations that all blocks with a policy keep */
    uint64_t backward; /* peak of forward and backward beyond what is there before it */
    uint64_t step;     /* peak of the steps */
} reading;

/* Has the block a policy? What others keep is there under any. */
static bool chooses(const stw_job *job, uint32_t block) {
    return job->model->groups[job->model->blocks[block].group].facts.transformer;
}

static uint64_t live_before(const stw_program *program, const stw_movement *movement) {
    stw_live live = {0};
    for (uint32_t i = 0; i < movement->first_op; i++) stw_live_apply(&live, &program->ops[i]);
    return live.total[STW_TIER_GPU];
}

static stw_status read(const stw_build *b, uint32_t kind, stw_act act, reading *out,
                       stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = b->cost;
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    const stw_simple simple = {.job = cost->job,
                               .kind = kind,
                               .place = cost->places[0],
                               .act = act,
                               .load = STW_LOAD_SHARDED_READ,
                               .by_group = cost->by_group,
                               .depth = cost->rings[0].depth,
                               .bucket_bytes = cost->rings[0].bucket_bytes,
                               .phases = 1u << STW_PHASE_FORWARD_BACKWARD};
    STW_TRY(stw_simple_build(&simple, &layout, &program, err));
    STW_TRY(stw_read_saved(cost->job, program, b->pool, &out->saved, err));
    stw_peaks peaks;
    stw_program_walk(program, &peaks);
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    if (movement != NULL) {
        uint64_t before = live_before(program, movement);
        uint64_t peak = peaks.phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].total;
        out->backward = peak - stw_min_u64(before, peak);
    }
    for (uint32_t i = 0; i < out->saved.n; i++)
        if (chooses(cost->job, out->saved.blocks[i]))
            out->all = stw_plus(out->all, out->saved.gpu[i]);
    out->step = stw_max_u64(peaks.phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_GPU].total,
                            peaks.phase[STW_PHASE_FIRST_OPTIMIZER_STEP][STW_TIER_GPU].total);
    out->has = true;
out:
    stw_layout_free(layout);
    stw_program_free(program);
    return status;
}

/* What the blocks of a group keep on this stage. */
static uint64_t kept_by(const stw_job *job, const reading *r, uint32_t group) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->saved.n; i++)
        if (job->model->blocks[r->saved.blocks[i]].group == group)
            bytes = stw_plus(bytes, r->saved.gpu[i]);
    return bytes;
}

/* ---- one group with a choice between two policies ---- */

/* Lines may lie so far above what was walked. */
#define NEAR_BYTES (1ll << 20)

/* More is no plan, and must not overflow: rows of single policies say so. */
#define MOST_BYTES (1ll << 50)

/* The option of the only choice that there is, its group's other one being next; n_acts: there are
 * more, or none. */
static uint32_t only_choice(const stw_cost *cost) {
    uint32_t found = cost->n_acts;
    for (uint32_t a = 0; a + 1 < cost->n_acts; a++) {
        if (cost->acts[a].group != cost->acts[a + 1].group) continue;
        if (found < cost->n_acts) return cost->n_acts;
        found = a;
    }
    return found;
}

/* Does every chunk of a stage recompute as many blocks with one more of option `a` than `count`? */
static bool is_dealt_alike(const stw_cost *cost, uint32_t stage, uint32_t a, uint32_t count) {
    const stw_job *job = cost->job;
    const stw_cost_act *act = &cost->acts[a];
    const uint32_t stages = job->run->parallel.pp, all = job->model->groups[act->group].count;
    if (job->chunks == NULL || act->act != STW_ACT_RECOMPUTE) return false;
    for (uint32_t chunk = stage; chunk < stages * job->run->parallel.vpp; chunk += stages) {
        uint64_t in_chunk = 0;
        for (uint32_t b = 0; b < job->model->n_blocks; b++)
            in_chunk += job->chunks[b] == chunk && job->model->blocks[b].group == act->group;
        const uint64_t here = (uint64_t)count * act->each, next = here + act->each;
        if (stw_blocks_recomputed_in_chunk(here, in_chunk, all) !=
            stw_blocks_recomputed_in_chunk(next, in_chunk, all))
            return false;
    }
    return true;
}

/* Bytes of forward and backward beyond what is there before. */
static stw_status walk_count(const stw_build *b, uint32_t kind, const stw_choice *choice,
                             int64_t *bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_decisions decisions;
    stw_decided here;
    STW_TRY(stw_cost_decide(b->cost, choice, b->pool, &decisions, err));
    STW_TRY(stw_read_decided(b->cost->job, &decisions, kind, 0, NULL, &here, err));
    const uint64_t peak = here.peaks.phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].total;
    *bytes = (int64_t)stw_min_u64(peak - stw_min_u64(here.before_bytes, peak), MOST_BYTES);
out:
    return status;
}

/* The farthest count to which a line from `from` has no count between below it. */
static uint32_t line_to(const int64_t *bytes, uint32_t from, uint32_t last) {
    for (uint32_t to = last; to > from + 1; to--) {
        bool above = true;
        for (uint32_t k = from + 1; k < to && above; k++) {
            const double share = (double)(k - from) / (to - from);
            const double line = (double)bytes[from] + share * (double)(bytes[to] - bytes[from]);
            above = (double)bytes[k] >= line - NEAR_BYTES;
        }
        if (above) return to;
    }
    return last > from ? from + 1 : last;
}

/* A row that holds what was walked of the counts from..to: by how much a block less of option `a`,
 * and so one more of the next, takes more. */
static stw_status add_line(const stw_build *b, uint32_t kind, uint32_t a, const int64_t *bytes,
                           uint32_t from, uint32_t to, stw_error *err) {
    const uint32_t blocks = b->cost->acts[a].blocks;
    const int64_t fall = bytes[from] - bytes[to], n = to > from ? to - from : 1;
    const int64_t each = fall > 0 ? (fall + n - 1) / n : 0;
    int64_t constant = INT64_MIN;
    char name[48];
    for (uint32_t k = from; k <= to; k++) {
        const int64_t here = bytes[k] - each * (int64_t)(blocks - k);
        if (here > constant) constant = here;
    }
    snprintf(name, sizeof name, "blocks_k%u_%u", kind, from);
    stw_byte_row *row = stw_row_gpu_of(b, kind, STW_PHASE_FORWARD_BACKWARD, STW_AT_REST, name);
    if (row == NULL) return stw_planner_no_memory(err);
    row->act_bytes[a + 1] = (uint64_t)each;
    if (constant >= 0)
        row->constant_bytes += (uint64_t)constant;
    else
        row->less_bytes = (uint64_t)-constant;
    return STW_STATUS_OK;
}

/* @param done out: false where there is too much of anything, and nothing was added */
static stw_status add_lines(const stw_build *b, uint32_t kind, uint32_t a, bool *done,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = b->cost;
    const uint32_t blocks = cost->acts[a].blocks;
    stw_choice choice = stw_choice_new(cost, b->pool);
    int64_t *bytes = stw_pool_array(b->pool, blocks + 1, sizeof *bytes);
    if (choice.acts == NULL || bytes == NULL) return stw_planner_no_memory(err);
    choice.units[0] = cost->n_units;
    for (uint32_t i = 0; i < cost->n_acts; i++) choice.acts[i] = cost->acts[i].blocks;
    for (uint32_t k = 0; k <= blocks; k++) {
        choice.acts[a] = k;
        choice.acts[a + 1] = blocks - k;
        if (k > 0 && is_dealt_alike(cost, cost->job->kinds[kind].stage, a, k - 1))
            bytes[k] = bytes[k - 1];
        else
            STW_TRY(walk_count(b, kind, &choice, &bytes[k], err));
        *done = *done && bytes[k] < MOST_BYTES;
    }
    for (uint32_t from = 0, to; *done && from < blocks; from = to) {
        to = line_to(bytes, from, blocks);
        STW_TRY(add_line(b, kind, a, bytes, from, to, err));
    }
out:
    return status;
}

/* ---- policies of all blocks ---- */

static stw_status add_blocks(const stw_build *b, uint32_t kind, const reading *of, stw_error *err) {
    const stw_cost *cost = b->cost;
    uint64_t least = UINT64_MAX;
    char name[48];
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const reading *r = &of[cost->acts[a].act];
        least = stw_min_u64(least, r->backward - stw_min_u64(r->all, r->backward));
    }
    snprintf(name, sizeof name, "blocks_k%u", kind);
    stw_byte_row *row = stw_row_gpu_of(b, kind, STW_PHASE_FORWARD_BACKWARD, STW_AT_REST, name);
    if (row == NULL) return stw_planner_no_memory(err);
    row->constant_bytes += least;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        const reading *r = &of[act->act];
        row->act_bytes[a] = stw_div_up_u64(kept_by(cost->job, r, act->group), act->blocks);
        row->act_once_bytes[a] = r->backward - stw_min_u64(r->all, r->backward) - least;
    }
    return STW_STATUS_OK;
}

/* What a pass leaves for the step. */
static stw_status add_left(const stw_build *b, uint32_t kind, const reading *of, stw_error *err) {
    const stw_cost *cost = b->cost;
    char name[48];
    snprintf(name, sizeof name, "left_k%u", kind);
    stw_byte_row *row = stw_row_gpu_of(b, kind, STW_PHASE_OPTIMIZER_STEP, STW_AT_STEP, name);
    if (row == NULL) return stw_planner_no_memory(err);
    for (uint32_t a = 0; a < cost->n_acts; a++)
        row->act_once_bytes[a] =
            stw_max_u64(of[cost->acts[a].act].step, of[STW_ACT_KEEP].step) - of[STW_ACT_KEEP].step;
    return STW_STATUS_OK;
}

stw_status stw_rows_add_stages(stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = b->cost;
    const uint32_t choice = only_choice(cost);
    for (uint32_t k = 0; k < cost->job->n_kinds; k++) {
        reading of[STW_N_ACTS] = {{0}};
        if (cost->job->kinds[k].home != 0) continue;
        STW_TRY(read(b, k, STW_ACT_KEEP, &of[STW_ACT_KEEP], err)); /* what steps are read with */
        for (uint32_t a = 0; a < cost->n_acts; a++)
            if (!of[cost->acts[a].act].has)
                STW_TRY(read(b, k, cost->acts[a].act, &of[cost->acts[a].act], err));
        bool done = choice < cost->n_acts;
        if (done) STW_TRY(add_lines(b, k, choice, &done, err));
        if (!done) STW_TRY(add_blocks(b, k, of, err));
        STW_TRY(add_left(b, k, of, err));
    }
out:
    return status;
}

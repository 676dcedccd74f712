/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of seconds of forward and backward, and the seconds of every load method. What programs of
 * different places and policies have in common is constant; what they differ by belongs to the
 * place's units or the policy's blocks. */
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "plan/program/shortened.h"
#include "plan/program/staging.h"
#include "planner/rows.h"

/* Lengths of the programs from which a load is read: of a rank's shard and of the model, in load
 * pieces. */
#define SHORT_PIECES 16

/* Seconds that no clock would show. */
static const double LEAST_S = 1e-12;

/* ---- forward and backward ---- */

/* Readings of one program for each place (all activations kept) and of one for each policy. */
typedef struct forward_readings {
    stw_forward_reading *places; /* [n_places] */
    stw_forward_reading acts[STW_N_ACTS];
    bool in_a_row; /* the blocks of every group with a choice follow each other */
} forward_readings;

static bool are_in_a_row(const stw_cost *cost) {
    const stw_model *model = cost->job->model;
    for (uint32_t b = 1; b < model->n_blocks; b++) {
        uint32_t group = model->blocks[b].group;
        if (model->blocks[b].instance == 0 || model->blocks[b - 1].group == group) continue;
        for (uint32_t a = 0; a < cost->n_acts; a++)
            if (cost->acts[a].group == group) return false;
    }
    return true;
}

static stw_status read_forward(stw_build *b, uint32_t place, stw_act act, stw_forward_reading *out,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_program *program = NULL;
    STW_TRY(stw_build_program(b, place, act, &program, err));
    STW_TRY(stw_read_forward(b->cost->job, program, b->pool, out, err));
out:
    return status;
}

static stw_status read_all_forward(stw_build *b, forward_readings *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = b->cost;
    out->places = stw_pool_array(b->pool, cost->n_places, sizeof *out->places);
    if (out->places == NULL) return stw_planner_no_memory(err);
    for (uint32_t p = 0; p < cost->n_places; p++)
        STW_TRY(read_forward(b, p, STW_ACT_KEEP, &out->places[p], err));
    for (int act = 0; act < STW_N_ACTS; act++) {
        bool any = act == STW_ACT_KEEP;
        for (uint32_t a = 0; a < cost->n_acts; a++) any = any || cost->acts[a].act == (stw_act)act;
        if (any) STW_TRY(read_forward(b, 0, (stw_act)act, &out->acts[act], err));
    }
out:
    return status;
}

/* A row is of a stream or of a resource. Copies of the other direction slow a stream of copies
 * down. */
typedef enum forward_row_kind { STREAM, RESOURCE } forward_row_kind;
typedef struct forward_row {
    const char *name;
    forward_row_kind kind;
    int of;
    double slowed;
} forward_row;

static double seconds_of(const stw_pass_work *work, const forward_row *what) {
    if (what->kind == RESOURCE) return work->resource_s[what->of];
    return work->stream_s[what->of] + what->slowed * work->beside_s[what->of];
}

static double edge_of(const stw_forward_reading *reading, int pass, const forward_row *what) {
    const stw_pass_work *work = &reading->pass[pass];
    if (what->kind == RESOURCE) return work->resource_edge_s[what->of];
    return work->stream_edge_s[what->of];
}

/* A coefficient of rounding alone would be the smallest of the integer program by far. */
static double more(double here, double there) {
    double difference = here - there;
    return fabs(difference) > 1e-9 * (fabs(here) + fabs(there)) + LEAST_S ? difference : 0;
}

/* The work of a whole pass and its edges. */
static double pass_seconds(const stw_forward_reading *reading, int pass, const forward_row *what) {
    return seconds_of(&reading->pass[pass], what) + edge_of(reading, pass, what);
}

static stw_status add_forward_row(stw_build *b, const forward_readings *readings, int pass,
                                  const forward_row *what, stw_error *err) {
    stw_cost *cost = b->cost;
    stw_time_row *row = stw_row_seconds(cost, pass ? STW_STRETCH_BACKWARD : STW_STRETCH_FORWARD,
                                        "%s_%s", pass ? "backward" : "forward", what->name);
    if (row == NULL) return stw_planner_no_memory(err);
    double least = pass_seconds(&readings->places[0], pass, what);
    uint32_t blocks = 0;
    for (uint32_t p = 1; p < cost->n_places; p++) {
        double seconds = pass_seconds(&readings->places[p], pass, what);
        if (seconds < least) least = seconds;
    }
    row->constant_s = least;
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++)
            row->unit_s[p * cost->n_rings + r] =
                more(pass_seconds(&readings->places[p], pass, what), least) / cost->n_units;
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (cost->acts[a].act == cost->acts[0].act) blocks += cost->acts[a].blocks;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        const stw_forward_reading *kept = &readings->acts[STW_ACT_KEEP];
        const stw_forward_reading *here = &readings->acts[act->act];
        row->act_s[a] = more(seconds_of(&here->group[pass][act->group], what),
                             seconds_of(&kept->group[pass][act->group], what)) /
                            act->blocks +
                        more(edge_of(here, pass, what), edge_of(kept, pass, what)) / blocks;
    }
    return STW_STATUS_OK;
}

/* What a policy makes a group's blocks ask of a pass's streams more than kept ones do. */
static double asked_more(const forward_readings *readings, int pass, const stw_cost_act *act) {
    const stw_pass_work *here = &readings->acts[act->act].group[pass][act->group];
    const stw_pass_work *kept = &readings->acts[STW_ACT_KEEP].group[pass][act->group];
    double sum = 0;
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (here->stream_s[s] > kept->stream_s[s]) sum += here->stream_s[s] - kept->stream_s[s];
    return sum;
}

/* By how much a pass is longer for a block with option `a`, where all blocks have its policy. */
static double waits_of(const forward_readings *readings, int pass, const stw_cost *cost,
                       uint32_t a) {
    const stw_cost_act *act = &cost->acts[a];
    double all = 0, mine = asked_more(readings, pass, act);
    for (uint32_t o = 0; o < cost->n_acts; o++)
        if (cost->acts[o].act == act->act) all += asked_more(readings, pass, &cost->acts[o]);
    double longer = more(readings->acts[act->act].pass[pass].whole_s,
                         readings->acts[STW_ACT_KEEP].pass[pass].whole_s);
    return all > 0 && longer > 0 ? longer * mine / all / act->blocks : 0;
}

/* The share of a group's blocks that another one of the group follows; the last one of a group that
 * is in a row counts, too. */
static double followed(const stw_cost *cost, uint32_t group) {
    const stw_model *model = cost->job->model;
    uint32_t blocks = 0, alone = 0;
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        if (model->blocks[b].group != group) continue;
        blocks++;
        alone += b + 1 < model->n_blocks && model->blocks[b + 1].group != group;
    }
    if (alone <= 1) return 1;
    return blocks > 0 ? 1 - (double)alone / blocks : 0;
}

/* Where all blocks are offloaded, each waits for the stash or the fetch of its neighbour. Beside
 * other blocks, whose memory is the room for it (stw_block_held_to), a copy runs while these
 * compute: an offloaded block costs what it does where all are, less the others' computations.
 * Where groups take turns there is little such room: forward has kept blocks'; backward has no row.
 * @param compute the row of the pass's computations */
static stw_status add_waits(stw_build *b, const forward_readings *readings, int pass,
                            uint32_t compute, stw_error *err) {
    stw_cost *cost = b->cost;
    const stw_forward_reading *kept = &readings->acts[STW_ACT_KEEP];
    stw_time_row *row = stw_row_seconds(cost, pass ? STW_STRETCH_BACKWARD : STW_STRETCH_FORWARD,
                                        "%s_waits", pass ? "backward" : "forward");
    if (row == NULL) return stw_planner_no_memory(err);
    row->constant_s = kept->pass[pass].whole_s;
    memcpy(row->unit_s, cost->time_rows[compute].unit_s,
           (size_t)cost->n_places * cost->n_rings * sizeof *row->unit_s);
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        const stw_forward_reading *here = &readings->acts[act->act];
        row->act_s[a] = waits_of(readings, pass, cost, a);
        double beside = act->act == STW_ACT_KEEP        ? 1
                        : act->act == STW_ACT_RECOMPUTE ? followed(cost, act->group)
                                                        : 0;
        row->act_s[a] -=
            beside * here->group[pass][act->group].stream_s[STW_STREAM_COMPUTE] / act->blocks;
    }
    return STW_STATUS_OK;
}

/* The row of a pass's computations once more, with what blocks are waited for: NULL when memory is
 * out. */
static stw_time_row *copy_compute(stw_cost *cost, int pass, uint32_t compute, const char *name,
                                  uint32_t group) {
    stw_time_row *row = stw_row_seconds(cost, pass ? STW_STRETCH_BACKWARD : STW_STRETCH_FORWARD,
                                        "%s_%s%u", pass ? "backward" : "forward", name, group);
    if (row == NULL) return NULL;
    const stw_time_row *from = &cost->time_rows[compute];
    row->constant_s = from->constant_s;
    memcpy(row->unit_s, from->unit_s, (size_t)cost->n_places * cost->n_rings * sizeof *row->unit_s);
    memcpy(row->act_s, from->act_s, cost->n_acts * sizeof *row->act_s);
    return row;
}

/* The activations of an offloaded block are on the GPU beside the next block's alone where that is
 * of another group, and where fewer than STW_LAST_BLOCKS blocks are kept (stw_block_held_to): what
 * a copy takes longer than that block computes is waited for. In backward a second forward of the
 * next block hides some of it.
 * @param compute the row of the pass's computations */
static stw_status add_alone(stw_build *b, const forward_readings *readings, int pass,
                            uint32_t compute, stw_error *err) {
    stw_cost *cost = b->cost;
    for (uint32_t keep = 2; keep < cost->n_acts; keep++) {
        const stw_cost_act *act = &cost->acts[keep];
        const uint32_t offload = keep - 2, recompute = keep - 1;
        if (act->act != STW_ACT_KEEP || cost->acts[offload].group != act->group ||
            cost->acts[offload].act != STW_ACT_OFFLOAD)
            continue;
        const double wait = waits_of(readings, pass, cost, offload);
        if (wait <= 0) continue;
        stw_time_row *row = copy_compute(cost, pass, compute, "alone", act->group);
        if (row == NULL) return stw_planner_no_memory(err);
        row->unless = keep;
        row->act_s[offload] += wait;
        row->act_s[recompute] -= fmin(wait, row->act_s[recompute]);
    }
    return STW_STATUS_OK;
}

static stw_status add_alternating(stw_build *b, const forward_readings *readings, uint32_t compute,
                                  stw_error *err) {
    stw_cost *cost = b->cost;
    stw_time_row *row = copy_compute(cost, 0, compute, "alternating", 0);
    if (row == NULL) return stw_planner_no_memory(err);
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (cost->acts[a].act == STW_ACT_OFFLOAD)
            row->act_s[a] +=
                waits_of(readings, 0, cost, a) * (1 - followed(cost, cost->acts[a].group));
    return STW_STATUS_OK;
}

/* ---- what no order of operations can go below ---- */

/* What a stream or resource does in forward and backward together, and what copies of the other
 * direction slow it down by. Of these so many seconds may lie beside its start-ups. */
static double both_passes_s(const stw_pass_work *const work[2], const forward_row *what) {
    double seconds = 0, beside = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (what->kind == RESOURCE) {
            seconds += work[pass]->resource_s[what->of];
            continue;
        }
        const int other = (int)stw_stream_opposite((stw_stream)what->of);
        seconds += work[pass]->stream_s[what->of];
        beside += work[pass]->stream_s[other] - work[pass]->startup_s[other] -
                  work[pass]->startup_s[what->of];
    }
    return seconds + what->slowed * beside;
}

/* Before the first operation of both passes, and after the last one. */
static double idle_of(const stw_forward_reading *reading, const forward_row *what) {
    const stw_pass_work *first = &reading->pass[0], *last = &reading->pass[1];
    const int of = what->of;
    if (what->kind == RESOURCE) {
        if (first->resource_s[of] <= 0 || last->resource_s[of] <= 0) return 0;
        return first->resource_lead_s[of] + last->resource_edge_s[of] - last->resource_lead_s[of];
    }
    if (first->stream_s[of] <= 0 || last->stream_s[of] <= 0) return 0;
    return first->stream_lead_s[of] + last->stream_edge_s[of] - last->stream_lead_s[of];
}

/* Part of a proof row: of a stream or resource in both passes; or of one pass, what it computes, or
 * what it copies of the activations of offloaded blocks. */
typedef enum part_kind { BOTH, COMPUTED, COPIED } part_kind;
typedef struct part {
    part_kind kind;
    int pass;
    const forward_row *what;
} part;

static stw_stream copies_of(int pass) { return pass ? STW_STREAM_H2D : STW_STREAM_D2H; }

static double part_s(const stw_pass_work *const work[2], const part *of) {
    if (of->kind == BOTH) return both_passes_s(work, of->what);
    return work[of->pass]
        ->stream_s[of->kind == COMPUTED ? STW_STREAM_COMPUTE : copies_of(of->pass)];
}

static double part_of_place(const stw_forward_reading *reading, const part *of) {
    const stw_pass_work *const work[2] = {&reading->pass[0], &reading->pass[1]};
    return part_s(work, of);
}

static double part_of_group(const stw_forward_reading *reading, uint32_t group, const part *of) {
    const stw_pass_work *const work[2] = {&reading->group[0][group], &reading->group[1][group]};
    return part_s(work, of);
}

static double part_idle(const stw_forward_reading *reading, const part *of) {
    if (of->kind == BOTH) return idle_of(reading, of->what);
    return reading->pass[of->pass].stream_edge_s[STW_STREAM_COMPUTE];
}

/* Computations of no block. */
static double beside_blocks_s(const stw_cost *cost, const stw_forward_reading *reading, int pass) {
    double seconds = reading->pass[pass].stream_s[STW_STREAM_COMPUTE];
    for (uint32_t g = 0; g < cost->job->model->n_groups; g++)
        seconds -= reading->group[pass][g].stream_s[STW_STREAM_COMPUTE];
    return fmax(seconds, 0) + reading->pass[pass].stream_edge_s[STW_STREAM_COMPUTE];
}

/* What copies of activations in a pass cannot lie beside: computations of no block, the forward of
 * the first block that is offloaded, and the backward of the one that is fetched last. */
static double copies_idle(const stw_cost *cost, const forward_readings *readings, int pass) {
    double block = (double)INFINITY, others = (double)INFINITY;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        if (act->act != STW_ACT_OFFLOAD) continue;
        const stw_pass_work *work = &readings->acts[act->act].group[pass][act->group];
        block = fmin(block, work->stream_s[STW_STREAM_COMPUTE] / act->blocks);
    }
    for (uint32_t p = 0; p < cost->n_places; p++)
        others = fmin(others, beside_blocks_s(cost, &readings->places[p], pass));
    for (uint32_t a = 0; a < cost->n_acts; a++)
        others = fmin(others, beside_blocks_s(cost, &readings->acts[cost->acts[a].act], pass));
    return isfinite(block) ? block + others : 0;
}

static void add_part(const stw_cost *cost, const forward_readings *readings, const part *of,
                     stw_time_row *row) {
    double least = (double)INFINITY, idle = (double)INFINITY;
    for (uint32_t p = 0; p < cost->n_places; p++) {
        least = fmin(least, part_of_place(&readings->places[p], of));
        idle = fmin(idle, part_idle(&readings->places[p], of));
    }
    for (uint32_t a = 0; a < cost->n_acts; a++)
        idle = fmin(idle, part_idle(&readings->acts[cost->acts[a].act], of));
    row->constant_s += of->kind == COPIED ? copies_idle(cost, readings, of->pass) : least + idle;
    for (uint32_t p = 0; of->kind != COPIED && p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++)
            row->unit_s[p * cost->n_rings + r] +=
                more(part_of_place(&readings->places[p], of), least) / cost->n_units;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        row->act_s[a] += more(part_of_group(&readings->acts[act->act], act->group, of),
                              part_of_group(&readings->acts[STW_ACT_KEEP], act->group, of)) /
                         act->blocks;
    }
}

/* Of each pass what it computes or what it copies: the slower of the two. Until the forward of a
 * block that follows it has run, an offloaded block is on the GPU (stw_block_held_to), so that
 * copies of forward end in it, and those of backward begin in it. */
static stw_status add_pass_proofs(stw_build *b, const forward_readings *readings,
                                  uint32_t *computes, stw_error *err) {
    stw_cost *cost = b->cost;
    bool offloads = false;
    for (uint32_t a = 0; a < cost->n_acts; a++)
        offloads = offloads || cost->acts[a].act == STW_ACT_OFFLOAD;
    *computes = cost->n_time_rows;
    for (int i = 0; i < (offloads ? 4 : 1); i++) {
        static const char *const words[] = {"compute", "stash_compute", "compute_fetch",
                                            "stash_fetch"};
        stw_time_row *row = stw_row_seconds(cost, STW_STRETCH_FORWARD, "both_%s", words[i]);
        if (row == NULL) return stw_planner_no_memory(err);
        const part forward = {i & 1 ? COPIED : COMPUTED, 0, NULL};
        const part backward = {i & 2 ? COPIED : COMPUTED, 1, NULL};
        add_part(cost, readings, &forward, row);
        add_part(cost, readings, &backward, row);
    }
    return STW_STATUS_OK;
}

/* Where fewer than STW_LAST_BLOCKS blocks of a group are kept, each copy of another one has the
 * computation of the next block alone beside it: see add_alone. The last block of a group has
 * another neighbour, hence one wait less.
 * @param offload of the group's options, which recompute and keep follow */
static stw_status add_alone_proof(stw_build *b, uint32_t computes, uint32_t offload,
                                  const double *waits, bool backward, stw_error *err) {
    stw_cost *cost = b->cost;
    const uint32_t recompute = offload + 1, keep = offload + 2;
    const double wait = waits[0] + (backward ? waits[1] : 0);
    stw_time_row *row = stw_row_seconds(cost, STW_STRETCH_FORWARD, "both_alone%u%s",
                                        cost->acts[offload].group, backward ? "_backward" : "");
    if (row == NULL) return stw_planner_no_memory(err);
    const stw_time_row *from = &cost->time_rows[computes];
    row->constant_s = from->constant_s - wait;
    memcpy(row->unit_s, from->unit_s, (size_t)cost->n_places * cost->n_rings * sizeof *row->unit_s);
    memcpy(row->act_s, from->act_s, cost->n_acts * sizeof *row->act_s);
    row->unless = keep;
    row->act_s[offload] += wait;
    if (backward) row->act_s[recompute] -= fmin(waits[1], row->act_s[recompute]);
    return STW_STATUS_OK;
}

static stw_status add_alone_proofs(stw_build *b, const forward_readings *readings,
                                   uint32_t computes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = b->cost;
    for (uint32_t a = 0; a + 2 < cost->n_acts; a++) {
        if (cost->acts[a].act != STW_ACT_OFFLOAD || cost->acts[a + 2].act != STW_ACT_KEEP ||
            cost->acts[a].group != cost->acts[a + 2].group)
            continue;
        const double waits[2] = {waits_of(readings, 0, cost, a), waits_of(readings, 1, cost, a)};
        if (waits[0] > 0) STW_TRY(add_alone_proof(b, computes, a, waits, false, err));
        if (waits[1] > 0) STW_TRY(add_alone_proof(b, computes, a, waits, true, err));
    }
out:
    return status;
}

static stw_status add_forward_proof(stw_build *b, const forward_readings *readings,
                                    stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const double slowed = stw_copies_slowed(b->cost->job);
    uint32_t computes;
    STW_TRY(add_pass_proofs(b, readings, &computes, err));
    if (readings->in_a_row) STW_TRY(add_alone_proofs(b, readings, computes, err));
    for (int i = 0; i < STW_N_STREAMS + STW_N_RESOURCES; i++) {
        const bool stream = i < STW_N_STREAMS;
        const int of = stream ? i : i - STW_N_STREAMS;
        const bool copies = stream && stw_stream_opposite((stw_stream)of) != (stw_stream)of;
        const forward_row what = {stream ? stw_stream_name((stw_stream)of)
                                         : stw_resource_name((stw_resource)of),
                                  stream ? STREAM : RESOURCE, of, copies ? slowed : 0};
        if (stream && of == STW_STREAM_COMPUTE) continue;
        const part both = {BOTH, 0, &what};
        stw_time_row *row = stw_row_seconds(b->cost, STW_STRETCH_FORWARD, "both_%s%s", what.name,
                                            stream ? "_stream" : "");
        if (row == NULL) return stw_planner_no_memory(err);
        add_part(b->cost, readings, &both, row);
    }
out:
    return status;
}

stw_status stw_rows_add_forward_seconds(stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const double slowed = stw_copies_slowed(b->cost->job);
    const forward_row rows[] = {{"compute", STREAM, STW_STREAM_COMPUTE, 0},
                                {"comm", STREAM, STW_STREAM_COMM, 0},
                                {"h2d", STREAM, STW_STREAM_H2D, slowed},
                                {"d2h", STREAM, STW_STREAM_D2H, slowed},
                                {"pcie", RESOURCE, STW_RESOURCE_PCIE, 0},
                                {"dma", RESOURCE, STW_RESOURCE_DMA, 0},
                                {"host_memory", RESOURCE, STW_RESOURCE_HOST_MEMORY, 0}};
    forward_readings readings = {.in_a_row = are_in_a_row(b->cost)};
    STW_TRY(read_all_forward(b, &readings, err));
    for (int pass = 0; pass < 2; pass++) {
        uint32_t compute = b->cost->n_time_rows;
        for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++)
            STW_TRY(add_forward_row(b, &readings, pass, &rows[i], err));
        if (pass == 0 || readings.in_a_row) STW_TRY(add_waits(b, &readings, pass, compute, err));
        if (pass == 0 || readings.in_a_row) STW_TRY(add_alone(b, &readings, pass, compute, err));
        if (pass == 0 && !readings.in_a_row) STW_TRY(add_alternating(b, &readings, compute, err));
    }
    const stw_rows_kept kept = stw_proof_begin(b->cost);
    status = add_forward_proof(b, &readings, err);
    stw_proof_end(b->cost, &kept);
out:
    return status;
}

/* ---- load ---- */

typedef struct load_search {
    stw_build *build;
    stw_average_piece piece;
    uint32_t kind; /* of global rank 0, which takes part in every method */
} load_search;

/* A load at some length. */
static stw_status read_load(const load_search *s, uint32_t place, stw_load load, uint64_t params,
                            uint32_t pieces, stw_load_reading *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = s->build->cost;
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    stw_job *job = NULL;
    STW_TRY(stw_job_shortened(cost->job, params, pieces, &s->piece, s->build->pool, &job, err));
    const stw_simple simple = {.job = job,
                               .kind = s->kind,
                               .place = cost->places[place],
                               .act = STW_ACT_KEEP,
                               .load = load,
                               .by_group = cost->by_group,
                               .depth = cost->rings[0].depth,
                               .bucket_bytes = cost->rings[0].bucket_bytes,
                               .phases = 1u << STW_PHASE_LOAD};
    STW_TRY(stw_simple_build(&simple, &layout, &program, err));
    stw_read_load(job, program, out);
out:
    stw_layout_free(layout);
    stw_program_free(program);
    return status;
}

/* By differences: of the rank's shard alone, and of the model alone. */
static stw_status add_load(const load_search *s, uint32_t l, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = s->build->cost;
    const stw_job *job = cost->job;
    stw_load load = cost->loads[l];
    uint64_t params = SHORT_PIECES * (STW_LOAD_PIECE_BYTES / 4);
    stw_load_reading near, longer_shard, longer_model;
    STW_TRY(read_load(s, 0, load, params, SHORT_PIECES, &near, err));
    STW_TRY(read_load(s, 0, load, stw_times(2, params), SHORT_PIECES, &longer_shard, err));
    STW_TRY(read_load(s, 0, load, params, 2 * SHORT_PIECES, &longer_model, err));
    double shards = (double)stw_job_placed_params(job, job->largest) / (double)params;
    double models = (double)s->piece.pieces / SHORT_PIECES;
    double seconds = near.pieces_s + (shards - 1) * (longer_shard.pieces_s - near.pieces_s) +
                     (models - 1) * (longer_model.pieces_s - near.pieces_s);
    cost->load_s[l] = seconds > 0 ? seconds : 0;
out:
    return status;
}

stw_status stw_rows_add_loads(stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = b->cost;
    load_search s = {.build = b};
    while (s.kind + 1 < cost->job->n_kinds && !cost->job->kinds[s.kind].first) s.kind++;
    STW_TRY(stw_average_piece_of(cost->job, &s.piece, err));
    for (uint32_t l = 0; l < cost->n_loads; l++) STW_TRY(add_load(&s, l, err));
    for (uint32_t p = 0; p < cost->n_places; p++) {
        stw_load_reading reading;
        STW_TRY(read_load(&s, p, cost->loads[0], cost->job->unit_params, 1, &reading, err));
        cost->load_unit_s[p] = reading.masters_s;
    }
out:
    return status;
}

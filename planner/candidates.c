/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/candidates.h"

#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "planner/clock.h"
#include "planner/reading.h"

/* Seconds that differ by less than this share of the fastest are the same. */
static const double SAME_SECONDS = 1e-3;

/* Gap of quick programs, and the most time of one. */
static const double QUICK_GAP = 1e-3, QUICK_S = 0.25;

/* Work of an evaluation of the rows, in operations. */
#define EVALUATION_WORK 4

/* ---- plainness ---- */

static uint32_t level_of_place(const stw_place *place) {
    if (place->moments == STW_TIER_NVME) return 3;
    bool gpu = place->params == STW_TIER_GPU && place->grads == STW_TIER_GPU &&
               place->moments == STW_TIER_GPU;
    return gpu ? 0 : 2;
}

static stw_plainness plainness_of(const stw_cost *cost, const stw_choice *choice) {
    static const uint32_t act_levels[STW_N_ACTS] = {
        [STW_ACT_KEEP] = 0, [STW_ACT_RECOMPUTE] = 1, [STW_ACT_OFFLOAD] = 2};
    stw_plainness plain = {0, 0};
    for (uint32_t p = 0; p < cost->n_places; p++) {
        if (choice->units[p] == 0) continue;
        uint32_t level = level_of_place(&cost->places[p]);
        if (level > plain.level) plain.level = level;
        plain.policies++;
    }
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        if (choice->acts[a] == 0) continue;
        uint32_t level = act_levels[cost->acts[a].act];
        if (level > plain.level) plain.level = level;
        plain.policies++;
    }
    return plain;
}

int stw_plainness_compare(const stw_plainness *a, const stw_plainness *b) {
    if (a->level != b->level) return a->level < b->level ? -1 : 1;
    return a->policies < b->policies ? -1 : a->policies > b->policies;
}

/* ---- seconds ---- */

bool stw_candidates_go_on(const stw_candidates *all) {
    return all->work_left > 0 && stw_planner_now_s() < all->end_s;
}

static void count_work(stw_candidates *all, uint64_t work) {
    all->work_left = all->work_left > work ? all->work_left - work : 0;
}

/* Activations do not change the step: the seconds of one with the same state; NaN: none is known.
 */
static double known_step_s(const stw_candidates *all, const stw_choice *choice) {
    if (stw_job_hides_step(all->cost->job)) return NAN; /* it depends on the forward */
    for (uint32_t i = all->n; i-- > 0;) {
        const stw_choice *other = &all->list[i].choice;
        if (other->ring == choice->ring && all->list[i].forward_bytes > 0 &&
            memcmp(other->units, choice->units, all->cost->n_places * sizeof *other->units) == 0)
            return all->list[i].step_s;
    }
    return NAN;
}

/* The most of all kinds of rank that count. */
typedef struct measured {
    uint64_t forward_bytes; /* of the GPU in forward and backward */
    double seconds[STW_N_PHASES];
} measured;

/* @param phases bit stw_phase, to simulate */
static stw_status measure(stw_candidates *all, const stw_choice *choice, uint32_t phases,
                          measured *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job *job = all->cost->job;
    stw_decisions decisions;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_planner_no_memory(err);
    *out = (measured){0};
    STW_TRY(stw_cost_decide(all->cost, choice, pool, &decisions, err));
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        stw_decided here;
        if (!stw_kind_is_timed(job, k)) continue;
        STW_TRY(stw_read_decided(job, &decisions, k, phases, all->simulate, &here, err));
        count_work(all, here.work);
        out->forward_bytes = stw_max_u64(
            out->forward_bytes, here.peaks.phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].total);
        for (int p = 0; p < STW_N_PHASES; p++)
            out->seconds[p] = fmax(out->seconds[p], here.seconds[p]);
    }
out:
    stw_pool_free(pool);
    return status;
}

/* Bytes and seconds of a candidate whose rows are known. */
static stw_status simulate(stw_candidates *all, stw_candidate *candidate, stw_error *err) {
    const stw_cost *cost = all->cost;
    uint32_t phases = 1u << STW_PHASE_FORWARD_BACKWARD;
    measured found;
    candidate->step_s = known_step_s(all, &candidate->choice);
    if (isnan(candidate->step_s)) phases |= 1u << STW_PHASE_OPTIMIZER_STEP;
    stw_status status = measure(all, &candidate->choice, phases, &found, err);
    if (status != STW_STATUS_OK) return status;
    if (isnan(candidate->step_s)) candidate->step_s = found.seconds[STW_PHASE_OPTIMIZER_STEP];
    candidate->forward_bytes = found.forward_bytes;
    candidate->seconds =
        candidate->rows.load_s / STW_LOAD_SPREAD +
        cost->stretch_weight[STW_STRETCH_STEP] * candidate->step_s +
        cost->stretch_weight[STW_STRETCH_FORWARD] * found.seconds[STW_PHASE_FORWARD_BACKWARD];
    return STW_STATUS_OK;
}

stw_status stw_candidates_walk(stw_candidates *all, const stw_choice *choice,
                               uint64_t *forward_bytes, stw_error *err) {
    measured found;
    stw_status status = measure(all, choice, 0, &found, err);
    if (status == STW_STATUS_OK) *forward_bytes = found.forward_bytes;
    return status;
}

/* ---- the list ---- */

static stw_candidate *append(stw_candidates *all, const stw_choice *choice) {
    stw_candidate *list =
        stw_pool_grow(all->pool, all->list, all->n, (size_t)all->n + 1, &all->room, sizeof *list);
    if (list == NULL) return NULL;
    all->list = list;
    stw_candidate *candidate = &list[all->n];
    candidate->choice = stw_choice_new(all->cost, all->pool);
    if (candidate->choice.acts == NULL) return NULL;
    stw_choice_copy(all->cost, &candidate->choice, choice);
    return candidate;
}

/* Rows with bytes to spare do not promise that a choice fits: does its walk? */
static bool walk_fits(stw_candidates *all, const stw_candidate *candidate) {
    for (uint32_t r = 0; r < all->cost->n_byte_rows; r++) {
        const stw_byte_row *row = &all->cost->byte_rows[r];
        if (row->spare_bytes == 0 && row->spare_host_bytes == 0) continue;
        if (candidate->forward_bytes > 0 && candidate->forward_bytes <= row->limit_bytes) continue;
        all->over_row_bytes = stw_cost_forward_bytes(all->cost, &candidate->choice);
        all->over_walk_bytes = candidate->forward_bytes;
        return false;
    }
    return true;
}

void stw_candidates_evaluate(stw_candidates *all, const stw_choice *choice, stw_evaluation *out) {
    stw_cost_evaluate(all->cost, choice, out);
    count_work(all, EVALUATION_WORK);
}

stw_status stw_candidates_add(stw_candidates *all, const stw_choice *choice, uint32_t *index,
                              stw_error *err) {
    stw_evaluation rows;
    if (index != NULL) *index = STW_NO_CANDIDATE;
    for (uint32_t i = 0; i < all->n; i++)
        if (stw_choice_is_same(all->cost, &all->list[i].choice, choice)) {
            if (index != NULL) *index = i;
            return STW_STATUS_OK;
        }
    stw_candidates_evaluate(all, choice, &rows);
    if (!rows.fits || !stw_choice_keeps_bars(all->cost, choice, &all->bars)) return STW_STATUS_OK;
    if (all->n > 0 && !stw_candidates_go_on(all)) return STW_STATUS_OK;
    stw_candidate *candidate = append(all, choice);
    if (candidate == NULL) return stw_planner_no_memory(err);
    candidate->rows = rows;
    candidate->excluded = false;
    candidate->plain = plainness_of(all->cost, choice);
    candidate->seconds = rows.objective_s;
    if (all->simulate != NULL) {
        stw_status status = simulate(all, candidate, err);
        if (status != STW_STATUS_OK) return status;
    }
    if (!walk_fits(all, candidate)) return STW_STATUS_OK;
    if (index != NULL) *index = all->n;
    if (all->n == 0 || candidate->seconds < all->list[all->fastest].seconds) all->fastest = all->n;
    all->n++;
    return STW_STATUS_OK;
}

stw_status stw_candidates_solve(stw_candidates *all, const stw_ilp_options *options,
                                uint32_t *index, stw_ilp_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_ilp_options now = *options;
    now.time_limit_s = fmin(options->time_limit_s, all->end_s - stw_planner_now_s());
    *index = STW_NO_CANDIDATE;
    result->outcome = STW_MILP_LIMIT;
    if (!stw_candidates_go_on(all)) return STW_STATUS_OK;
    if (all->solved.acts == NULL) all->solved = stw_choice_new(all->cost, all->pool);
    if (all->solved.acts == NULL) return stw_planner_no_memory(err);
    STW_TRY(stw_ilp_solve(all->cost, &now, &all->solved, result, err));
    if (stw_milp_has_solution(result->outcome))
        STW_TRY(stw_candidates_add(all, &all->solved, index, err));
out:
    return status;
}

stw_status stw_candidates_solve_quickly(stw_candidates *all, const stw_bars *bars, double most_s,
                                        uint32_t *index, stw_error *err) {
    stw_ilp_result result;
    const stw_ilp_options options = {
        .time_limit_s = QUICK_S, .gap = QUICK_GAP, .quick = true, .bars = *bars, .most_s = most_s};
    return stw_candidates_solve(all, &options, index, &result, err);
}

/* ---- the choice ---- */

static uint64_t ring_bytes(const stw_cost *cost, const stw_choice *choice) {
    if (stw_choice_uses(cost, choice) == 0) return 0;
    const stw_cost_ring *ring = &cost->rings[choice->ring];
    return stw_times(ring->depth, stw_max_u64(ring->bucket_bytes, 1));
}

/* The plainest; of those alike the fastest, and of those as fast the one with the smallest ring. */
static bool preferred(const stw_candidates *all, const stw_candidate *a, const stw_candidate *b) {
    const double step = SAME_SECONDS * all->list[all->fastest].seconds;
    const int plain = stw_plainness_compare(&a->plain, &b->plain);
    if (plain != 0) return plain < 0;
    if (fabs(a->seconds - b->seconds) > step) return a->seconds < b->seconds;
    uint64_t ring_a = ring_bytes(all->cost, &a->choice), ring_b = ring_bytes(all->cost, &b->choice);
    return ring_a != ring_b ? ring_a < ring_b : a->seconds < b->seconds;
}

uint32_t stw_candidates_choose(const stw_candidates *all) {
    double most = all->list[all->fastest].seconds * (1 + STW_PLAIN_SLACK);
    uint32_t best = all->fastest;
    for (uint32_t i = 0; i < all->n; i++)
        if (!all->list[i].excluded && all->list[i].seconds <= most &&
            preferred(all, &all->list[i], &all->list[best]))
            best = i;
    return best;
}

void stw_candidates_exclude(stw_candidates *all, uint32_t index) {
    all->list[index].excluded = true;
    if (all->fastest != index) return;
    all->fastest = 0;
    for (uint32_t i = 1; i < all->n; i++)
        if (!all->list[i].excluded && all->list[i].seconds < all->list[all->fastest].seconds)
            all->fastest = i;
}

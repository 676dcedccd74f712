/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of seconds for an engine whose units all share one place (stw_engine.whole): there are so
 * few choices that they can be simulated. The step knows places and ring options alone, each of
 * which is simulated. Forward and backward, together in the stretch of the forward, know places and
 * how many blocks of each group have which policy: they are simulated along the edges of the space
 * of these counts, and between two counts only where seconds do not lie on a straight line. Rows
 * are planes below all that was simulated, each with the slopes of one edge. So they are lower
 * bounds of the simulation at every choice that was simulated, and lie LOWERED below it for those
 * between. */
#include <math.h>
#include <string.h>

#include "planner/rows.h"

/* Shares of the seconds: what counts as on a straight line; by how much rows lie below what was
 * simulated; what another row has to bring. */
static const double STRAIGHT = 2e-5, LOWERED = 3e-5, WORTH = 2e-5;

#define MOST_ROWS 16u

/* A choice of policies that was simulated. */
typedef struct point {
    uint32_t *acts;                 /* [n_acts] */
    double seconds[STW_MAX_PLACES]; /* with all units in a place */
} point;

/* All counts of one option of a group, the rest of the group with its last option, other groups as
 * in a corner: every group has its last option, or every one its first. */
typedef struct edge {
    uint32_t option, rest, blocks, corner;
    uint32_t *acts; /* [n_acts] of the corner, and room for these two */
} edge;

/* What a row may be made of: its seconds without any blocks, by place, and for each block. */
typedef struct plane {
    double base_s[STW_MAX_PLACES];
    double *slopes; /* [n_acts] */
} plane;

typedef struct surface {
    const stw_build *build;
    const stw_cost *cost;
    stw_choice choice; /* room */
    uint32_t n, n_edges, n_planes;
    size_t point_room, plane_room;
    point *points;
    edge *edges; /* [2 n_acts] room */
    plane *planes;
} surface;

/* ---- what is simulated ---- */

/* The first place whose forward and backward are the same. */
static uint32_t alike(const stw_cost *cost, uint32_t place) {
    uint32_t p = 0;
    while (cost->places[p].params != cost->places[place].params ||
           cost->places[p].grads != cost->places[place].grads)
        p++;
    return p;
}

static stw_status simulate_point(surface *s, point *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = s->cost;
    const stw_job *job = cost->job;
    memcpy(s->choice.acts, out->acts, cost->n_acts * sizeof *out->acts);
    for (uint32_t p = 0; p < cost->n_places; p++) {
        stw_decisions decisions;
        if (alike(cost, p) < p) {
            out->seconds[p] = out->seconds[alike(cost, p)];
            continue;
        }
        memset(s->choice.units, 0, sizeof s->choice.units);
        s->choice.units[p] = cost->n_units;
        STW_TRY(stw_cost_decide(cost, &s->choice, s->build->pool, &decisions, err));
        out->seconds[p] = 0;
        for (uint32_t k = 0; k < job->n_kinds; k++) {
            stw_decided here;
            if (!stw_kind_is_timed(job, k)) continue;
            STW_TRY(stw_read_decided(job, &decisions, k, 1u << STW_PHASE_FORWARD_BACKWARD,
                                     s->build->simulate, &here, err));
            out->seconds[p] = fmax(out->seconds[p], here.seconds[STW_PHASE_FORWARD_BACKWARD]);
        }
    }
out:
    return status;
}

static const point *find_point(const surface *s, const uint32_t *acts) {
    for (uint32_t i = 0; i < s->n; i++)
        if (memcmp(s->points[i].acts, acts, s->cost->n_acts * sizeof *acts) == 0)
            return &s->points[i];
    return NULL;
}

static stw_status add_point(surface *s, const uint32_t *acts, stw_error *err) {
    stw_pool *pool = s->build->pool;
    if (find_point(s, acts) != NULL) return STW_STATUS_OK;
    point *points =
        stw_pool_grow(pool, s->points, s->n, (size_t)s->n + 1, &s->point_room, sizeof *points);
    if (points == NULL) return stw_planner_no_memory(err);
    s->points = points;
    point *p = &points[s->n];
    *p = (point){.acts = stw_pool_array(pool, s->cost->n_acts, sizeof *p->acts)};
    if (p->acts == NULL) return stw_planner_no_memory(err);
    memcpy(p->acts, acts, s->cost->n_acts * sizeof *acts);
    stw_status status = simulate_point(s, p, err);
    if (status == STW_STATUS_OK) s->n++;
    return status;
}

/* ---- edges ---- */

/* NULL: it was not simulated. */
static const point *point_at(const surface *s, const edge *e, uint32_t blocks) {
    e->acts[e->option] = blocks;
    e->acts[e->rest] = e->blocks - blocks;
    return find_point(s, e->acts);
}

static stw_status add_point_at(surface *s, const edge *e, uint32_t blocks, stw_error *err) {
    (void)point_at(s, e, blocks);
    return add_point(s, e->acts, err);
}

/* Does the middle of a part of an edge lie on the line between its ends, for every place? */
static bool is_straight(const surface *s, const edge *e, uint32_t from, uint32_t middle,
                        uint32_t to) {
    const point *a = point_at(s, e, from), *m = point_at(s, e, middle), *b = point_at(s, e, to);
    const double share = (double)(middle - from) / (to - from);
    for (uint32_t p = 0; p < s->cost->n_places; p++) {
        const double line = a->seconds[p] + share * (b->seconds[p] - a->seconds[p]);
        if (fabs(m->seconds[p] - line) > STRAIGHT * line) return false;
    }
    return true;
}

/* Halve what is between two counts while it is not straight; all the way where what is around a
 * block depends on the policies of all others. */
static stw_status refine(surface *s, const edge *e, uint32_t from, uint32_t to, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t middle = from + (to - from) / 2;
    if (middle == from) return STW_STATUS_OK;
    STW_TRY(add_point_at(s, e, middle, err));
    const stw_job *job = s->cost->job;
    const bool mixes = !s->build->rough && job->engine->mixes != NULL && job->engine->mixes(job);
    if (!mixes && is_straight(s, e, from, middle, to)) return STW_STATUS_OK;
    STW_TRY(refine(s, e, from, middle, err));
    STW_TRY(refine(s, e, middle, to, err));
out:
    return status;
}

/* The last option of an option's group. */
static uint32_t last_of(const stw_cost *cost, uint32_t a) {
    while (a + 1 < cost->n_acts && cost->acts[a + 1].group == cost->acts[a].group) a++;
    return a;
}

/* A corner and the edges that begin there. */
static stw_status add_corner(surface *s, uint32_t corner, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = s->cost;
    uint32_t *acts = stw_pool_array(s->build->pool, cost->n_acts, sizeof *acts);
    if (acts == NULL) return stw_planner_no_memory(err);
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const bool first = a == 0 || cost->acts[a - 1].group != cost->acts[a].group;
        if (corner == 0 ? last_of(cost, a) == a : first) acts[a] = cost->acts[a].blocks;
    }
    STW_TRY(add_point(s, acts, err));
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        if (last_of(cost, a) == a) continue;
        edge *e = &s->edges[s->n_edges++];
        *e = (edge){.option = a, .rest = last_of(cost, a), .corner = corner};
        e->blocks = cost->acts[a].blocks;
        e->acts = stw_pool_array(s->build->pool, cost->n_acts, sizeof *acts);
        if (e->acts == NULL) return stw_planner_no_memory(err);
        memcpy(e->acts, acts, cost->n_acts * sizeof *acts);
        for (uint32_t o = 0; o < cost->n_acts; o++)
            if (last_of(cost, o) == e->rest) e->acts[o] = 0;
        STW_TRY(add_point_at(s, e, 0, err));
        STW_TRY(add_point_at(s, e, e->blocks, err));
        STW_TRY(refine(s, e, 0, e->blocks, err));
    }
out:
    return status;
}

/* ---- planes ---- */

static double plane_s(const surface *s, const plane *of, const point *at, uint32_t place) {
    double seconds = of->base_s[place];
    for (uint32_t a = 0; a < s->cost->n_acts; a++) seconds += at->acts[a] * of->slopes[a];
    return seconds;
}

/* As high as it may lie. @param slopes [n_acts] taken over */
static stw_status add_plane(surface *s, double *slopes, stw_error *err) {
    plane *planes = stw_pool_grow(s->build->pool, s->planes, s->n_planes, (size_t)s->n_planes + 1,
                                  &s->plane_room, sizeof *planes);
    if (planes == NULL) return stw_planner_no_memory(err);
    s->planes = planes;
    plane *here = &planes[s->n_planes++];
    *here = (plane){.slopes = slopes};
    for (uint32_t p = 0; p < s->cost->n_places; p++) {
        double least = INFINITY;
        for (uint32_t i = 0; i < s->n; i++)
            least = fmin(least, (1 - LOWERED) * s->points[i].seconds[p] -
                                    plane_s(s, here, &s->points[i], p));
        here->base_s[p] = least;
    }
    return STW_STATUS_OK;
}

/* What a block more takes between two counts; rounding alone is nothing. */
static double slope_of(const surface *s, const edge *e, uint32_t from, uint32_t to, uint32_t p) {
    const double a = point_at(s, e, from)->seconds[p], b = point_at(s, e, to)->seconds[p];
    return fabs(b - a) > 1e-9 * (a + b) ? (b - a) / (to - from) : 0;
}

/* The next corner of the convex hull below an edge's points. */
static uint32_t hull_after(const surface *s, const edge *e, uint32_t from, uint32_t place) {
    uint32_t next = e->blocks;
    for (uint32_t to = e->blocks; to-- > from + 1;)
        if (point_at(s, e, to) != NULL &&
            slope_of(s, e, from, to, place) < slope_of(s, e, from, next, place))
            next = to;
    return next;
}

/* A plane for every part of the hull below an edge: along the other edges of its corner it has
 * their slopes as wholes. */
static stw_status add_planes(surface *s, const edge *e, uint32_t place, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t from = 0, to; from < e->blocks; from = to) {
        to = hull_after(s, e, from, place);
        double *slopes = stw_pool_array(s->build->pool, s->cost->n_acts, sizeof *slopes);
        if (slopes == NULL) return stw_planner_no_memory(err);
        for (uint32_t i = 0; i < s->n_edges; i++) {
            const edge *other = &s->edges[i];
            if (other->corner == e->corner)
                slopes[other->option] = slope_of(s, other, 0, other->blocks, place);
        }
        slopes[e->option] = slope_of(s, e, from, to, place);
        STW_TRY(add_plane(s, slopes, err));
    }
out:
    return status;
}

/* ---- rows ---- */

static stw_status add_row(const surface *s, const plane *of, uint32_t number, stw_error *err) {
    stw_cost *cost = s->build->cost;
    double least = INFINITY;
    stw_time_row *row = stw_row_seconds(cost, STW_STRETCH_FORWARD, "forward_plane%u", number);
    if (row == NULL) return stw_planner_no_memory(err);
    for (uint32_t p = 0; p < cost->n_places; p++) least = fmin(least, of->base_s[p]);
    row->constant_s = least;
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++)
            row->unit_s[p * cost->n_rings + r] = (of->base_s[p] - least) / cost->n_units;
    memcpy(row->act_s, of->slopes, cost->n_acts * sizeof *of->slopes);
    return STW_STATUS_OK;
}

/* How far rows are below what was simulated, where that is most.
 * @param held [n][n_places] seconds by the rows so far @return share of the seconds */
static double worst_gap(const surface *s, const double *held, uint32_t *at, uint32_t *place) {
    double worst = -INFINITY;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t p = 0; p < s->cost->n_places; p++) {
            const double seconds = s->points[i].seconds[p];
            const double gap = (seconds - held[i * s->cost->n_places + p]) / fmax(seconds, 1e-12);
            if (gap <= worst) continue;
            worst = gap;
            *at = i;
            *place = p;
        }
    return worst;
}

/* The plane that is highest where rows are farthest below, one after the other. */
static stw_status add_rows(const surface *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t places = s->cost->n_places;
    double *held = stw_pool_array(s->build->pool, (size_t)s->n * places, sizeof *held);
    if (held == NULL) return stw_planner_no_memory(err);
    for (uint32_t number = 0; number < MOST_ROWS; number++) {
        uint32_t at = 0, place = 0;
        const plane *best = s->planes;
        const double gap = worst_gap(s, held, &at, &place);
        for (uint32_t i = 1; i < s->n_planes; i++)
            if (plane_s(s, &s->planes[i], &s->points[at], place) >
                plane_s(s, best, &s->points[at], place))
                best = &s->planes[i];
        const double seconds = s->points[at].seconds[place];
        const double left = seconds - plane_s(s, best, &s->points[at], place);
        if (number > 0 && gap * seconds - left < WORTH * seconds) break;
        STW_TRY(add_row(s, best, number, err));
        for (uint32_t i = 0; i < s->n; i++)
            for (uint32_t p = 0; p < places; p++)
                held[i * places + p] =
                    fmax(held[i * places + p], plane_s(s, best, &s->points[i], p));
    }
out:
    return status;
}

/* What is computed at least, whatever the policies. */
static stw_status add_compute(stw_build *b, stw_error *err) {
    const stw_cost *cost = b->cost;
    const stw_act act = cost->n_acts > 0 ? cost->acts[last_of(cost, 0)].act : STW_ACT_KEEP;
    const stw_program *program = NULL;
    stw_status status = stw_build_program(b, 0, act, &program, err);
    if (status != STW_STATUS_OK) return status;
    stw_time_row *row = stw_row_seconds(b->cost, STW_STRETCH_FORWARD, "forward_compute");
    if (row == NULL) return stw_planner_no_memory(err);
    row->constant_s = stw_read_compute_s(cost->job, program);
    return STW_STATUS_OK;
}

static stw_status add_forward(stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = b->cost;
    surface s = {.build = b, .cost = cost, .choice = stw_choice_new(cost, b->pool)};
    s.edges = stw_pool_array(b->pool, 2 * (size_t)cost->n_acts, sizeof *s.edges);
    double *level = stw_pool_array(b->pool, cost->n_acts, sizeof *level);
    if (s.choice.acts == NULL || s.edges == NULL || level == NULL)
        return stw_planner_no_memory(err);
    STW_TRY(add_compute(b, err));
    STW_TRY(add_corner(&s, 0, err));
    if (s.n_edges > 1) STW_TRY(add_corner(&s, 1, err));
    STW_TRY(add_plane(&s, level, err));
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t i = 0; i < s.n_edges && alike(cost, p) == p; i++)
            STW_TRY(add_planes(&s, &s.edges[i], p, err));
    STW_TRY(add_rows(&s, err));
out:
    return status;
}

stw_status stw_rows_add_whole(stw_build *b, stw_error *err) {
    const stw_cost *cost = b->cost;
    stw_time_row *row = stw_row_seconds(b->cost, STW_STRETCH_STEP, "step_simulated");
    if (row == NULL) return stw_planner_no_memory(err);
    for (uint32_t i = 0; i < cost->n_places * cost->n_rings; i++)
        row->unit_s[i] = b->step_s[i] / cost->n_units;
    return cost->forward_backward_known ? add_forward(b, err) : STW_STATUS_OK;
}

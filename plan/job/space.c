/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/job/space.h"

#include <stdlib.h>

#include "core/checked.h"

stw_status stw_space_add(stw_space *space, uint32_t tensor, uint64_t tensor_global,
                         uint64_t tensor_first, uint64_t n, stw_error *err) {
    if (n == 0) return STW_STATUS_OK;
    if (space->by_global != NULL)
        return stw_fail(err, STW_STATUS_BUG, "space", "nothing can be added to a spread space");
    const stw_segment *last =
        space->n_segments > 0 ? &space->segments[space->n_segments - 1] : NULL;
    stw_segment next = {tensor, tensor_first, tensor_global + tensor_first, space->n, n};
    if (last != NULL && next.global_first < last->global_first + last->n)
        return stw_fail(err, STW_STATUS_BUG, "space",
                        "element %llu of tensor %u comes before element %llu, which is in the "
                        "space already",
                        (unsigned long long)next.global_first, tensor,
                        (unsigned long long)(last->global_first + last->n - 1));
    stw_segment *list =
        stw_pool_grow(space->pool, space->segments, space->n_segments,
                      (size_t)space->n_segments + 1, &space->capacity, sizeof *list);
    if (list == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "space", "out of memory");
    space->segments = list;
    space->segments[space->n_segments++] = next;
    space->n += n;
    return STW_STATUS_OK;
}

/* ---- spreading ---- */

/* A place on the circle: a multiple of the golden ratio, in 2^-64. */
typedef struct turn {
    uint64_t angle;
    uint32_t at; /* which multiple */
} turn;

static int by_angle(const void *a, const void *b) {
    uint64_t x = ((const turn *)a)->angle, y = ((const turn *)b)->angle;
    return (x > y) - (x < y);
}

/* For each place in the order the stretch that comes there: the first multiples of the golden
 * ratio, ranked by their angles. Any run of them lies the most evenly on the circle. */
static uint32_t *golden_order(stw_pool *pool, uint64_t n) {
    turn *turns = stw_pool_array(pool, n, sizeof *turns);
    uint32_t *order = stw_pool_array(pool, n, sizeof *order);
    if (turns == NULL || order == NULL) return NULL;
    for (uint64_t i = 0; i < n; i++) turns[i] = (turn){i * 11400714819323198485ull, (uint32_t)i};
    qsort(turns, n, sizeof *turns, by_angle);
    for (uint64_t i = 0; i < n; i++) order[turns[i].at] = (uint32_t)i;
    return order;
}

/* Segments of an ascending space, cut where a stretch ends. @param begin [stretches + 1] out, the
 * first segment of each stretch @return how many */
static uint32_t cut_stretches(const stw_space *space, uint64_t step, stw_segment *out,
                              uint32_t *begin) {
    uint32_t n = 0;
    uint64_t stretch = 0;
    begin[0] = 0;
    for (uint32_t i = 0; i < space->n_segments; i++) {
        stw_segment rest = space->segments[i];
        while (rest.n > 0) {
            uint64_t room = (stretch + 1) * step - rest.first;
            if (room == 0) {
                begin[++stretch] = n;
                continue;
            }
            stw_segment part = rest;
            part.n = stw_min_u64(rest.n, room);
            out[n++] = part;
            rest.tensor_first += part.n;
            rest.global_first += part.n;
            rest.first += part.n;
            rest.n -= part.n;
        }
    }
    begin[stretch + 1] = n;
    return n;
}

stw_status stw_space_spread(stw_space *space, uint64_t step, stw_error *err) {
    uint64_t full = step > 0 ? space->n / step : 0, stretches = full + (full * step < space->n);
    uint64_t most = space->n_segments + stretches;
    if (full < 3 || most >= UINT32_MAX || space->by_global != NULL) return STW_STATUS_OK;
    stw_segment *cut = stw_pool_array(space->pool, most, sizeof *cut);
    stw_segment *list = stw_pool_array(space->pool, most, sizeof *list);
    uint32_t *index = stw_pool_array(space->pool, most, sizeof *index);
    uint32_t *begin = stw_pool_array(space->pool, stretches + 1, sizeof *begin);
    uint32_t *order = golden_order(space->pool, full);
    if (cut == NULL || list == NULL || index == NULL || begin == NULL || order == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "space", "out of memory");
    uint32_t n = 0;
    uint64_t first = 0;
    space->n_segments = cut_stretches(space, step, cut, begin);
    for (uint64_t i = 0; i < stretches; i++) {
        uint64_t stretch = i < full ? order[i] : i;
        for (uint32_t c = begin[stretch]; c < begin[stretch + 1]; c++) {
            list[n] = cut[c];
            list[n].first = first;
            first += list[n].n;
            index[c] = n++;
        }
    }
    space->segments = list;
    space->capacity = (size_t)most;
    space->by_global = index;
    return STW_STATUS_OK;
}

/* ---- meets ---- */

uint32_t stw_view_first_segment(stw_view view) {
    uint32_t low = 0, high = view.space->n_segments;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const stw_segment *s = &view.space->segments[middle];
        if (s->first + s->n <= view.first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t stw_view_count(stw_view view, uint32_t segment) {
    if (segment >= view.space->n_segments) return 0;
    const stw_segment *s = &view.space->segments[segment];
    uint64_t first = stw_max_u64(s->first, view.first);
    uint64_t end = stw_min_u64(s->first + s->n, view.first + view.n);
    return first < end ? end - first : 0;
}

/* The part of a segment that a view has, in the model's numbering; false where that is none. */
static bool part_of(stw_view view, const stw_segment *s, uint64_t *global_first,
                    uint64_t *global_end) {
    uint64_t first = stw_max_u64(s->first, view.first);
    uint64_t end = stw_min_u64(s->first + s->n, view.first + view.n);
    if (first >= end) return false;
    *global_first = s->global_first + (first - s->first);
    *global_end = *global_first + (end - first);
    return true;
}

static const stw_segment *in_order(const stw_space *space, uint32_t i) {
    return &space->segments[space->by_global != NULL ? space->by_global[i] : i];
}

static bool ends_by(const stw_space *space, uint32_t i, uint64_t global) {
    const stw_segment *s = in_order(space, i);
    return s->global_first + s->n <= global;
}

/* In the model's order, the first segment that ends beyond a global element. @param i where to
 * begin; it mostly lies near */
static uint32_t seek(const stw_space *space, uint32_t i, uint64_t global) {
    uint32_t low = i, high = i, step = 1;
    if (i > 0 && !ends_by(space, i - 1, global)) {
        low = 0;
    } else {
        while (high < space->n_segments && ends_by(space, high, global)) {
            low = high + 1;
            high = space->n_segments - high > step ? high + step : space->n_segments;
            step *= 2;
        }
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ends_by(space, middle, global))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

stw_meet stw_meet_begin(stw_view a, stw_view b) {
    uint32_t i = stw_view_first_segment(a), j = 0;
    uint64_t first, end;
    if (i < a.space->n_segments && part_of(a, &a.space->segments[i], &first, &end))
        j = seek(b.space, 0, first);
    return (stw_meet){a, b, i, j};
}

/* The next overlap of a's segment. */
static bool next_inside(stw_meet *m, uint64_t a_first, uint64_t a_end, stw_overlap *out) {
    uint64_t b_first, b_end;
    const stw_segment *a = &m->a.space->segments[m->i];
    for (; m->j < m->b.space->n_segments; m->j++) {
        const stw_segment *b = in_order(m->b.space, m->j);
        if (b->global_first >= a_end) return false;
        if (!part_of(m->b, b, &b_first, &b_end)) continue;
        uint64_t first = stw_max_u64(a_first, b_first), end = stw_min_u64(a_end, b_end);
        if (first >= end) continue;
        *out = (stw_overlap){.tensor = a->tensor,
                             .tensor_first = a->tensor_first + (first - a->global_first),
                             .global_first = first,
                             .n = end - first,
                             .a_first = a->first + (first - a->global_first),
                             .b_first = b->first + (first - b->global_first),
                             .a_segment = m->i};
        m->j++;
        return true;
    }
    return false;
}

bool stw_meet_next(stw_meet *m, stw_overlap *out) {
    uint64_t first, end;
    while (m->i < m->a.space->n_segments &&
           part_of(m->a, &m->a.space->segments[m->i], &first, &end)) {
        if (next_inside(m, first, end, out)) return true;
        m->i++;
        if (m->i < m->a.space->n_segments &&
            part_of(m->a, &m->a.space->segments[m->i], &first, &end))
            m->j = seek(m->b.space, m->j, first);
    }
    return false;
}

bool stw_meet_next_run(stw_meet *meet, stw_overlap *out) {
    stw_overlap next;
    if (!stw_meet_next(meet, out)) return false;
    for (stw_meet ahead = *meet; stw_meet_next(&ahead, &next); *meet = ahead) {
        if (next.a_first != out->a_first + out->n || next.b_first != out->b_first + out->n) break;
        out->n += next.n;
    }
    return true;
}

uint64_t stw_meet_count(stw_view a, stw_view b) {
    stw_meet m = stw_meet_begin(a, b);
    stw_overlap overlap;
    uint64_t n = 0;
    while (stw_meet_next(&m, &overlap)) n += overlap.n;
    return n;
}

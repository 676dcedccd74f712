/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/job/space.h"

#include "core/checked.h"

stw_status stw_space_add(stw_space *space, uint32_t tensor, uint64_t tensor_global,
                         uint64_t tensor_first, uint64_t n, stw_error *err) {
    if (n == 0) return STW_STATUS_OK;
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

/* The first segment that ends beyond the beginning of a view. Segments are appended, so `first`
 * ascends with the model's numbering. */
static uint32_t first_segment(stw_view view) {
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

/* The part of segment i of a view, in the model's numbering; false past the view's last one. */
static bool part_of(stw_view view, uint32_t i, uint64_t *global_first, uint64_t *global_end) {
    if (i >= view.space->n_segments) return false;
    const stw_segment *s = &view.space->segments[i];
    uint64_t first = stw_max_u64(s->first, view.first);
    uint64_t end = stw_min_u64(s->first + s->n, view.first + view.n);
    if (first >= end) return false;
    *global_first = s->global_first + (first - s->first);
    *global_end = *global_first + (end - first);
    return true;
}

/* From segment i of a space on, the first one that ends beyond a global element. */
static uint32_t skip_to(const stw_space *space, uint32_t i, uint64_t global) {
    uint32_t step = 1, low = i, high;
    if (i >= space->n_segments) return i;
    while (low + step < space->n_segments && space->segments[low + step].global_first <= global) {
        low += step;
        step *= 2;
    }
    high = low + step < space->n_segments ? low + step : space->n_segments;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const stw_segment *s = &space->segments[middle];
        if (s->global_first + s->n <= global)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

stw_meet stw_meet_begin(stw_view a, stw_view b) {
    return (stw_meet){a, b, first_segment(a), first_segment(b)};
}

bool stw_meet_next(stw_meet *m, stw_overlap *out) {
    uint64_t a_first, a_end, b_first, b_end;
    while (part_of(m->a, m->i, &a_first, &a_end) && part_of(m->b, m->j, &b_first, &b_end)) {
        if (a_end <= b_first) {
            m->i = skip_to(m->a.space, m->i + 1, b_first);
            continue;
        }
        if (b_end <= a_first) {
            m->j = skip_to(m->b.space, m->j + 1, a_first);
            continue;
        }
        const stw_segment *a = &m->a.space->segments[m->i], *b = &m->b.space->segments[m->j];
        uint64_t first = stw_max_u64(a_first, b_first), end = stw_min_u64(a_end, b_end);
        *out = (stw_overlap){.tensor = a->tensor,
                             .tensor_first = a->tensor_first + (first - a->global_first),
                             .global_first = first,
                             .n = end - first,
                             .a_first = a->first + (first - a->global_first),
                             .b_first = b->first + (first - b->global_first),
                             .a_segment = m->i};
        if (a_end <= b_end) m->i++;
        if (b_end <= a_end) m->j++;
        return true;
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

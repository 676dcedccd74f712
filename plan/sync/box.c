/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/sync/box.h"

uint64_t stw_box_volume(const stw_box *box) {
    return box->count[0] * box->count[1] * box->count[2] * box->count[3];
}

bool stw_box_meet(const stw_box *a, const stw_box *b, stw_box *out) {
    stw_box both;
    for (int d = 0; d < STW_BOX_DIMS; d++) {
        uint64_t a_end = a->first[d] + a->count[d], b_end = b->first[d] + b->count[d];
        uint64_t first = a->first[d] > b->first[d] ? a->first[d] : b->first[d];
        uint64_t end = a_end < b_end ? a_end : b_end;
        if (first >= end) return false;
        both.first[d] = first;
        both.count[d] = end - first;
    }
    *out = both;
    return true;
}

int stw_box_compare(const stw_box *a, const stw_box *b) {
    for (int d = 0; d < STW_BOX_DIMS; d++)
        if (a->first[d] != b->first[d]) return a->first[d] < b->first[d] ? -1 : 1;
    for (int d = 0; d < STW_BOX_DIMS; d++)
        if (a->count[d] != b->count[d]) return a->count[d] < b->count[d] ? -1 : 1;
    return 0;
}

bool stw_box_equal(const stw_box *a, const stw_box *b) { return stw_box_compare(a, b) == 0; }

unsigned stw_box_subtract(const stw_box *box, const stw_box *part, stw_box rests[STW_BOX_RESTS]) {
    stw_box left = *box; /* what the dimensions so far have in common with the part */
    unsigned n = 0;
    for (int d = 0; d < STW_BOX_DIMS; d++) {
        uint64_t end = left.first[d] + left.count[d], part_end = part->first[d] + part->count[d];
        if (part->first[d] > left.first[d]) {
            rests[n] = left;
            rests[n++].count[d] = part->first[d] - left.first[d];
        }
        if (part_end < end) {
            rests[n] = left;
            rests[n].first[d] = part_end;
            rests[n++].count[d] = end - part_end;
        }
        left.first[d] = part->first[d];
        left.count[d] = part->count[d];
    }
    return n;
}

/* The rest of a row that was begun, whole rows, the beginning of another: each within `row`, of
 * which the dimensions before d are set. */
static unsigned cut_run(const uint64_t *shape, int d, stw_box row, uint64_t first, uint64_t count,
                        stw_box *boxes) {
    uint64_t inner = 1;
    unsigned n = 0;
    for (int k = d + 1; k < STW_BOX_DIMS; k++) {
        inner *= shape[k];
        row.first[k] = 0;
        row.count[k] = shape[k];
    }
    if (first % inner > 0) {
        const uint64_t rest = inner - first % inner, part = rest < count ? rest : count;
        row.first[d] = first / inner;
        row.count[d] = 1;
        n += cut_run(shape, d + 1, row, first % inner, part, boxes);
        first += part;
        count -= part;
    }
    if (count >= inner) {
        row.first[d] = first / inner;
        row.count[d] = count / inner;
        boxes[n++] = row;
        first += row.count[d] * inner;
        count %= inner;
    }
    if (count > 0) {
        row.first[d] = first / inner;
        row.count[d] = 1;
        n += cut_run(shape, d + 1, row, 0, count, boxes + n);
    }
    return n;
}

unsigned stw_box_of_run(const uint64_t *shape, uint64_t first, uint64_t count,
                        stw_box boxes[STW_BOX_RUNS]) {
    const stw_box none = {{0}, {0}};
    return count > 0 ? cut_run(shape, 0, none, first, count, boxes) : 0;
}

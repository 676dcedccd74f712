/* SPDX-License-Identifier: Apache-2.0 */
/* Operations by stream for the HTML page: what a trace shows of the largest kind of rank, with as
 * many slices as a screen can draw. */
#include <math.h>
#include <stdio.h>

#include "reports/page.h"

typedef struct lane {
    const stw_program *program;
    const stw_page_track *track;
    const stw_movement *movement;
    stw_stream stream;
    double start_s, least_s; /* of the movement; of a slice that stands alone */
    stw_json *json;
} lane;

typedef struct slice {
    double start_s, end_s;
    double busy_s;  /* of the operations in it */
    uint32_t first; /* operation */
    uint32_t n;
} slice;

static uint64_t nanoseconds(double seconds) {
    return (uint64_t)llround(fmin(fmax(seconds, 0), 9e9) * 1e9);
}

/* Five values: start, end, name of the first operation, operations, nanoseconds of them. */
static void put_slice(const lane *l, const slice *s) {
    char name[96];
    if (s->n == 0) return;
    stw_trace_op_name(&l->program->ops[s->first], name, sizeof name);
    stw_json_u64(l->json, NULL, nanoseconds(s->start_s - l->start_s));
    stw_json_u64(l->json, NULL, nanoseconds(s->end_s - l->start_s));
    stw_json_string(l->json, NULL, name);
    stw_json_u64(l->json, NULL, s->n);
    stw_json_u64(l->json, NULL, nanoseconds(s->busy_s));
}

static bool takes_time(const lane *l, uint32_t op) {
    const stw_op *o = &l->program->ops[op];
    return o->stream == l->stream && o->kind != STW_OP_ALLOC && o->kind != STW_OP_FREE &&
           l->track->ops[op].end_s > l->track->ops[op].start_s;
}

static void put_lane(const lane *l) {
    slice s = {0};
    for (uint32_t i = l->movement->first_op; i < l->movement->first_op + l->movement->n_ops; i++) {
        const stw_op_span at = l->track->ops[i];
        if (!takes_time(l, i)) continue;
        const bool near = s.n > 0 && at.start_s - s.end_s < l->least_s;
        const bool small = at.end_s - at.start_s < l->least_s && s.end_s - s.start_s < l->least_s;
        if (!near || !small) {
            put_slice(l, &s);
            s = (slice){at.start_s, at.end_s, 0, i, 0};
        }
        s.end_s = fmax(s.end_s, at.end_s);
        s.busy_s += at.end_s - at.start_s;
        s.n++;
    }
    put_slice(l, &s);
}

static void put_movement(const stw_page_item *item, uint32_t m, double least_share,
                         stw_json *json) {
    const stw_plan *plan = item->plan;
    const stw_page_track *track = &item->tracks[plan->job->largest];
    const stw_program *program = plan->programs[plan->job->largest];
    const stw_movement *movement = &program->movements[m];
    bool used[STW_N_STREAMS] = {false};
    double start_s = INFINITY, end_s = -INFINITY;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        start_s = fmin(start_s, track->ops[i].start_s);
        end_s = fmax(end_s, track->ops[i].end_s);
        lane l = {program, track, movement, program->ops[i].stream, 0, 0, NULL};
        if (takes_time(&l, i)) used[l.stream] = true;
    }
    if (!(end_s > start_s)) return;
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "phase", stw_phase_name(movement->phase));
    stw_json_string(json, "role", movement->role);
    stw_json_double(json, "seconds", end_s - start_s);
    stw_json_begin_object(json, "streams");
    for (unsigned s = 0; s < STW_N_STREAMS; s++) {
        const lane l = {program,       track,   movement,
                        (stw_stream)s, start_s, (end_s - start_s) * least_share,
                        json};
        if (!used[s]) continue;
        stw_json_begin_array(json, stw_stream_name((stw_stream)s));
        put_lane(&l);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
}

void stw_page_streams(const stw_page_item *item, uint32_t slices, stw_json *json) {
    const stw_plan *plan = item->plan;
    stw_json_begin_array(json, "streams");
    if (plan->programs != NULL && item->tracks != NULL) {
        const stw_page_track *track = &item->tracks[plan->job->largest];
        const stw_program *program = plan->programs[plan->job->largest];
        for (uint32_t m = 0; m < program->n_movements; m++)
            if (track->predicted[m]) put_movement(item, m, 1.0 / slices, json);
    }
    stw_json_end(json);
}

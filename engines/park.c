/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/park.h"

#include "core/checked.h"
#include "engines/bytes.h"

void stw_park_add(stw_builder *b, stw_park *park, stw_parcel parcel) {
    if (parcel.bytes == 0 || b->status != STW_STATUS_OK) return;
    stw_parcel *parcels = stw_pool_grow(b->program->pool, park->parcels, park->n,
                                        (size_t)park->n + 1, &park->room, sizeof *parcels);
    if (parcels == NULL) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "park", "out of memory");
        return;
    }
    park->parcels = parcels;
    park->parcels[park->n++] = parcel;
}

/* One page-locked block per tensor of the part of a space that a region holds. */
static uint64_t region_rounding(const stw_builder *b, const stw_region *r) {
    const stw_space *space = &b->job->kinds[b->layout->kind].spaces[r->space];
    const stw_view view = stw_region_view(r, space);
    const uint64_t element = r->params > 0 ? r->bytes / r->params : 0;
    uint64_t bytes = 0;
    for (uint32_t i = stw_view_first_segment(view); i < space->n_segments; i++) {
        const uint64_t n = stw_view_count(view, i);
        if (n == 0) break;
        bytes = stw_plus(bytes, stw_page_lock_rounding_bytes(stw_times(n, element)));
    }
    return bytes;
}

void stw_park_add_regions(stw_builder *b, stw_park *park, stw_parking parking,
                          bool (*which)(const stw_region *region)) {
    for (uint32_t i = 0; i < b->layout->n_regions; i++) {
        const stw_region *r = &b->layout->regions[i];
        if (r->tier != STW_TIER_GPU || !which(r)) continue;
        const bool locks = parking == STW_PARKING_KEPT || parking == STW_PARKING_FRESH;
        stw_park_add(b, park,
                     (stw_parcel){.component = r->component,
                                  .parking = parking,
                                  .offset_bytes = r->offset_bytes,
                                  .bytes = r->bytes,
                                  .rounding_bytes = locks ? region_rounding(b, r) : 0});
    }
}

/* What follows on the compute stream waits for `op`. */
static void wait_for(stw_builder *b, uint32_t op) {
    if (op == STW_OP_NONE) return;
    stw_op idle = stw_op_make(STW_OP_IDLE, STW_STREAM_COMPUTE, STW_OP_NONE);
    idle.component = STW_COMPONENT_STAGE;
    idle.from = idle.to = STW_TIER_GPU;
    idle.after[0] = op;
    (void)stw_append(b, idle);
}

static void pageable(stw_builder *b, const stw_parcel *p, bool alloc) {
    b->from_what = "park: a pageable copy";
    b->pageable = true;
    if (alloc)
        stw_alloc_at(b, p->component, STW_TIER_HOST, STW_OFFSET_EXTERNAL, p->bytes);
    else
        stw_free_at(b, p->component, STW_TIER_HOST, STW_OFFSET_EXTERNAL, p->bytes);
    b->pageable = false;
    b->from_what = NULL;
}

/* A page-locked block that torch's host allocator does not have yet. */
static void lock_copy(stw_builder *b, stw_parcel *p) {
    b->from_what = p->copies == 0
                       ? "park: a page-locked copy, whose block stays"
                       : "park.reuse_copies: a second page-locked copy, whose block stays";
    stw_alloc_at(b, p->component, STW_TIER_HOST, STW_OFFSET_EXTERNAL, p->bytes);
    stw_alloc_at(b, STW_COMPONENT_PAGE_LOCK_ROUNDING, STW_TIER_HOST, STW_OFFSET_EXTERNAL,
                 p->rounding_bytes);
    b->from_what = NULL;
    p->copies++;
}

/* Room for the copy on the host before it is made. */
static void make_room(stw_builder *b, stw_parcel *p) {
    const uint32_t most = p->parking == STW_PARKING_FRESH ? 2 : 1;
    if (p->parking == STW_PARKING_PAGEABLE || p->parking == STW_PARKING_FRESH) pageable(b, p, true);
    if (p->parking == STW_PARKING_KEPT || p->parking == STW_PARKING_FRESH)
        if (p->copies < most) lock_copy(b, p);
}

static uint32_t copy(stw_builder *b, const stw_parcel *p, bool out, uint32_t after) {
    const stw_place_at gpu = {STW_TIER_GPU, p->offset_bytes}, host = {STW_TIER_HOST, 0};
    const uint32_t done =
        stw_copy(b, &(stw_transport){.kind = STW_OP_COPY,
                                     .stream = out ? STW_STREAM_D2H : STW_STREAM_H2D,
                                     .component = p->component,
                                     .unit = STW_OP_NONE,
                                     .from = out ? gpu : host,
                                     .to = out ? host : gpu,
                                     .bytes = p->bytes,
                                     .after = {after, STW_OP_NONE}});
    if (done != STW_OP_NONE)
        b->program->ops[done].pageable =
            p->parking == STW_PARKING_PAGEABLE || (out && p->parking == STW_PARKING_FRESH);
    return done;
}

static bool moves(const stw_parcel *p, uint32_t what) { return (what & 1u << p->component) != 0; }

bool stw_is_parked(const stw_park *park, stw_component component) {
    for (uint32_t i = 0; park != NULL && i < park->n; i++)
        if (park->parcels[i].component == component && park->parcels[i].on_host) return true;
    return false;
}

void stw_park_leave(stw_builder *b, stw_park *park, uint32_t what, uint32_t after) {
    for (uint32_t i = 0; i < park->n; i++) {
        stw_parcel *p = &park->parcels[i];
        if (p->on_host || !moves(p, what)) continue;
        p->on_host = true;
        make_room(b, p);
        if (after == STW_OP_NONE && b->program->n_ops > 0) after = b->program->n_ops - 1;
        if (p->parking != STW_PARKING_DROPPED) wait_for(b, copy(b, p, true, after));
        stw_free_at(b, p->component, STW_TIER_GPU, p->offset_bytes, p->bytes);
        if (p->parking == STW_PARKING_FRESH) pageable(b, p, false);
        if (p->component == STW_COMPONENT_PARAMS && b->status == STW_STATUS_OK)
            b->program->movements[b->program->n_movements - 1].empties_cache = true;
    }
}

void stw_park_return(stw_builder *b, stw_park *park, uint32_t what, bool copies) {
    for (uint32_t i = 0; i < park->n; i++) {
        stw_parcel *p = &park->parcels[i];
        if (!p->on_host || !moves(p, what)) continue;
        p->on_host = false;
        stw_alloc_at(b, p->component, STW_TIER_GPU, p->offset_bytes, p->bytes);
        if (copies && p->parking != STW_PARKING_DROPPED)
            wait_for(b, copy(b, p, false, b->program->n_ops - 1));
        if (p->parking == STW_PARKING_PAGEABLE) pageable(b, p, false);
    }
}

/* Copies since an operation are those of one pass of an iteration's through the movement. */
static void copy_once(stw_builder *b, uint32_t from, stw_phase phase) {
    const uint64_t passes = stw_job_passes(b->job, phase);
    for (uint32_t i = from; i < b->program->n_ops && passes > 1; i++)
        if (stw_op_is(&b->program->ops[i], STW_OP_CLASS_MOVE))
            b->program->ops[i].once_in = (uint32_t)stw_min_u64(passes, UINT32_MAX);
}

/* The movement is one micro batch, and the state comes back before the first one. */
void stw_park_before_forward(stw_builder *b) {
    const uint32_t from = b->program->n_ops;
    uint32_t what = STW_PARKED_PARAMS | STW_PARKED_GRADS;
    if (b->job->run->park.moments_before_forward) what |= STW_PARKED_MOMENTS;
    if (b->park != NULL) stw_park_return(b, b->park, what, true);
    copy_once(b, from, STW_PHASE_FORWARD_BACKWARD);
}

void stw_park_before_step(stw_builder *b, bool first) {
    const bool came = b->job->run->park.moments_before_forward;
    if (b->park == NULL) return;
    stw_park_return(b, b->park, STW_PARKED_PARAMS | STW_PARKED_GRADS, !first);
    stw_park_return(b, b->park, STW_PARKED_MOMENTS, !(first && came));
}

/* After the last step of an iteration; moments that come back for a step leave after each. */
void stw_park_after_step(stw_builder *b, uint32_t after) {
    const uint32_t rest = STW_PARKED_PARAMS | STW_PARKED_GRADS;
    const bool every = !b->job->run->park.moments_before_forward &&
                       stw_job_passes(b->job, STW_PHASE_OPTIMIZER_STEP) > 1;
    if (b->park == NULL || b->status != STW_STATUS_OK) return;
    const uint32_t from = b->program->n_ops;
    if (after == STW_OP_NONE && from > 0) after = from - 1;
    stw_park_leave(b, b->park, every ? rest : rest | STW_PARKED_MOMENTS, after);
    if (b->program->movements[b->program->n_movements - 1].phase == STW_PHASE_OPTIMIZER_STEP)
        copy_once(b, from, STW_PHASE_OPTIMIZER_STEP);
    if (every) stw_park_leave(b, b->park, STW_PARKED_MOMENTS, after);
}

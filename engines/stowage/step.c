/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step of buckets. It streams buckets through rings of slots, updates resident ones
 * in place, reaches into page-locked memory from the GPU where that is asked for, and lets the CPU
 * update its share, all at once. */
#include <string.h>

#include "core/checked.h"
#include "engines/movements.h"
#include "engines/park.h"

static uint64_t slot_base(const stw_step *s, stw_ring_kind ring, uint32_t slot) {
    const stw_ring *r = &s->b->layout->rings[ring];
    return stw_plus(r->offset_bytes, stw_times(slot, r->slot_bytes));
}

/* What passes through the caches while a bucket of a place goes once around its ring: that of the
 * ring, and what the CPU updates elsewhere in that time. */
static uint64_t cpu_ring_bytes(const stw_step *s, const stw_place *place) {
    const stw_decisions *decisions = s->b->decisions;
    const stw_job *job = s->b->job;
    uint32_t depth = decisions->prefetch.depth;
    uint64_t bucket_bytes = decisions->prefetch.bucket_bytes, in_ring = 0, elsewhere = 0;
    uint64_t bytes = stw_cpu_ring_bytes(job, place, depth, bucket_bytes);
    if (bytes == 0) return 0;
    for (uint32_t i = 0; i < decisions->n_state; i++) {
        const stw_state_decision *d = &decisions->state[i];
        if (d->place.update != STW_UPDATE_CPU) continue;
        if (stw_place_uses_ring(job, &d->place, STW_RING_HOST_CPU))
            in_ring += d->units;
        else
            elsewhere += d->units;
    }
    uint64_t params = stw_times(depth, stw_place_bucket_params(job, place, bucket_bytes));
    uint64_t element = stw_job_optimizer_bytes(job) +
                       stw_job_element_bytes(job, STW_COMPONENT_PARAMS) +
                       stw_job_element_bytes(job, STW_COMPONENT_GRADS);
    return stw_plus(bytes, stw_times(stw_times(params, elsewhere) / in_ring, element));
}

static uint32_t update(stw_step *s, uint32_t index, uint32_t after) {
    const stw_bucket *bucket = &s->b->layout->buckets[index];
    const stw_place *place = &s->b->decisions->state[bucket->decision].place;
    bool cpu = place->update == STW_UPDATE_CPU;
    stw_op op = stw_op_make(STW_OP_UPDATE, cpu ? STW_STREAM_CPU : STW_STREAM_COMPUTE, index);
    op.component = STW_COMPONENT_PARAMS;
    op.update = place->update;
    op.from = op.to = stw_place_update_tier(place);
    if (place->update == STW_UPDATE_DIRECT) op.from = place->moments;
    op.params = bucket->params;
    op.ring_bytes = cpu_ring_bytes(s, place);
    op.after[0] = after;
    op.after[1] = s->norm;
    s->updated = stw_append(s->b, op);
    return s->updated;
}

/* Between NVMe and a bucket's host slot, for all components that lie there: in (a read, after
 * `after`) or out. Reads and writes have streams of their own. Returns the last. */
static uint32_t move_disk(stw_step *s, uint32_t index, bool in, uint32_t after) {
    const stw_bucket *bucket = &s->b->layout->buckets[index];
    const stw_place *place = &s->b->decisions->state[bucket->decision].place;
    uint64_t base = slot_base(s, STW_RING_HOST_DISK, bucket->slot);
    uint32_t last = STW_OP_NONE;
    for (int c = 0; c < STW_N_STATE; c++) {
        stw_component component = (stw_component)c;
        uint64_t bytes = stw_times(bucket->params, stw_job_element_bytes(s->b->job, component));
        if (bytes == 0 || stw_place_tier(place, component) != STW_TIER_NVME) continue;
        uint64_t there =
            stw_layout_address(s->b->job, s->b->layout, component, bucket->first_param);
        uint64_t here = base + stw_disk_slot_offset(s->b->job, place, component, bucket->params);
        const stw_place_at disk = {STW_TIER_NVME, there}, slot = {STW_TIER_HOST, here};
        last = stw_copy(s->b, &(stw_transport){.kind = STW_OP_COPY,
                                               .stream = in ? STW_STREAM_DISK : STW_STREAM_DISK_OUT,
                                               .component = component,
                                               .unit = index,
                                               .from = in ? disk : slot,
                                               .to = in ? slot : disk,
                                               .bytes = bytes,
                                               .after = {after, STW_OP_NONE}});
        after = STW_OP_NONE; /* the stream is in order */
    }
    return last;
}

/* Where a moving component of a bucket lies outside its slot: its region, or the disk ring's slot.
 */
static stw_place_at home(const stw_step *s, const stw_bucket *bucket, const stw_place *place,
                         stw_component component) {
    stw_tier tier = stw_place_tier(place, component);
    if (tier != STW_TIER_NVME)
        return (stw_place_at){
            tier, stw_layout_address(s->b->job, s->b->layout, component, bucket->first_param)};
    return (stw_place_at){STW_TIER_HOST,
                          slot_base(s, STW_RING_HOST_DISK, bucket->slot) +
                              stw_disk_slot_offset(s->b->job, place, component, bucket->params)};
}

/* Copies of a bucket between homes and slot; `in`: towards the slot. Returns the last. */
static uint32_t move(stw_step *s, uint32_t index, stw_ring_kind ring, bool in, uint32_t after0,
                     uint32_t after1) {
    const stw_bucket *bucket = &s->b->layout->buckets[index];
    const stw_place *place = &s->b->decisions->state[bucket->decision].place;
    bool cpu = ring == STW_RING_HOST_CPU;
    stw_tier slot_tier = cpu ? STW_TIER_HOST : STW_TIER_GPU;
    /* CPU buckets have streams of their own: a copy that waits for the CPU must not hold up those
     * of streamed buckets, nor they it. */
    stw_stream stream = cpu ? (in ? STW_STREAM_TO_CPU : STW_STREAM_FROM_CPU)
                            : (in ? STW_STREAM_H2D : STW_STREAM_D2H);
    uint64_t base = slot_base(s, ring, bucket->slot);
    uint32_t last = STW_OP_NONE;
    for (int c = 0; c < STW_N_STATE; c++) {
        stw_component component = (stw_component)c;
        bool moves = in ? stw_place_moves_up(s->b->job, place, component)
                        : stw_place_moves_down(s->b->job, place, component);
        uint64_t bytes = stw_times(bucket->params, stw_job_element_bytes(s->b->job, component));
        if (!moves) continue;
        const stw_place_at there = home(s, bucket, place, component);
        const stw_place_at here = {
            slot_tier, base + stw_slot_offset(s->b->job, place, component, bucket->params)};
        last = stw_copy(s->b, &(stw_transport){.kind = STW_OP_COPY,
                                               .stream = stream,
                                               .component = component,
                                               .unit = index,
                                               .from = in ? there : here,
                                               .to = in ? here : there,
                                               .bytes = bytes,
                                               .after = {after0, after1}});
        if (cpu && last != STW_OP_NONE)
            s->b->program->ops[last].ring_bytes = cpu_ring_bytes(s, place);
    }
    return last;
}

static void stream_bucket(stw_step *s, uint32_t index) {
    const stw_bucket *bucket = &s->b->layout->buckets[index];
    const stw_place *place = &s->b->decisions->state[bucket->decision].place;
    uint32_t *slot_free_by = &s->free_by[STW_RING_GPU][bucket->slot];
    uint32_t *disk_free_by = &s->free_by[STW_RING_HOST_DISK][bucket->slot];
    uint32_t read = STW_OP_NONE;
    bool disk = stw_place_disk_element_bytes(s->b->job, place) > 0;
    /* The write of the slot's last bucket goes on while others are read; only the slot waits. */
    if (disk) read = move_disk(s, index, true, *disk_free_by);
    uint32_t up = move(s, index, STW_RING_GPU, true, *slot_free_by, read);
    uint32_t done = update(s, index, up);
    *slot_free_by = move(s, index, STW_RING_GPU, false, done, STW_OP_NONE);
    if (disk) *disk_free_by = move_disk(s, index, false, *slot_free_by);
}

static void cpu_bucket(stw_step *s, uint32_t index) {
    const stw_bucket *bucket = &s->b->layout->buckets[index];
    const stw_place *place = &s->b->decisions->state[bucket->decision].place;
    if (stw_place_slot_element_bytes(s->b->job, place) == 0) {
        (void)update(s, index, STW_OP_NONE);
        return;
    }
    uint32_t *slot_free_by = &s->free_by[STW_RING_HOST_CPU][bucket->slot];
    uint32_t in = move(s, index, STW_RING_HOST_CPU, true, *slot_free_by, STW_OP_NONE);
    uint32_t done = update(s, index, in);
    *slot_free_by = move(s, index, STW_RING_HOST_CPU, false, done, STW_OP_NONE);
}

static uint64_t grads_in(const stw_step *s, stw_tier tier) {
    uint64_t params = 0;
    for (uint32_t i = 0; i < s->b->layout->n_regions; i++) {
        const stw_region *r = &s->b->layout->regions[i];
        if (r->component == STW_COMPONENT_GRADS && r->tier == tier) params += r->params;
    }
    return params;
}

static bool any_on_cpu(const stw_step *s) {
    bool any = false;
    for (uint32_t i = 0; i < s->b->layout->n_regions; i++)
        any = any || s->b->layout->regions[i].update == STW_UPDATE_CPU;
    return any;
}

/* `to` of the sum is where its factor is waited for: the host only for updates that run there. */
static void clip(stw_step *s) {
    stw_op sum = stw_op_make(STW_OP_NORM_SUM, STW_STREAM_COMM, STW_OP_NONE);
    sum.to = any_on_cpu(s) ? STW_TIER_HOST : STW_TIER_GPU;
    int n = 0;
    for (int t = 0; t < STW_TIER_NVME; t++) {
        stw_op op = stw_op_make(
            STW_OP_NORM, t == STW_TIER_GPU ? STW_STREAM_COMPUTE : STW_STREAM_CPU, STW_OP_NONE);
        op.component = STW_COMPONENT_GRADS;
        op.from = op.to = (stw_tier)t;
        op.params = grads_in(s, (stw_tier)t);
        if (op.params > 0) sum.after[n++] = stw_append(s->b, op);
    }
    sum.component = STW_COMPONENT_COMM;
    sum.bytes = sizeof(uint64_t) * 80;
    s->norm = stw_append(s->b, sum);
}

void stw_build_rings(stw_builder *b, bool alloc) {
    for (int r = 0; r < STW_N_RINGS; r++) {
        const stw_ring *ring = &b->layout->rings[r];
        stw_tier tier = r == STW_RING_GPU ? STW_TIER_GPU : STW_TIER_HOST;
        uint64_t bytes = stw_times(ring->slots, ring->slot_bytes);
        if (ring->slots == 0) continue;
        if (alloc)
            stw_alloc_at(b, STW_COMPONENT_STAGE, tier, ring->offset_bytes, bytes);
        else
            stw_free_at(b, STW_COMPONENT_STAGE, tier, ring->offset_bytes, bytes);
    }
}

/* All slots are free. */
static bool init(stw_step *s, stw_builder *b) {
    *s = (stw_step){.b = b, .norm = STW_OP_NONE, .updated = STW_OP_NONE};
    for (int r = 0; r < STW_N_RINGS; r++) {
        uint32_t n = b->layout->rings[r].slots > 0 ? b->layout->rings[r].slots : 1;
        s->free_by[r] = stw_pool_array(b->program->pool, n, sizeof(uint32_t));
        if (s->free_by[r] == NULL) {
            b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
            return false;
        }
        for (uint32_t i = 0; i < n; i++) s->free_by[r][i] = STW_OP_NONE;
    }
    return true;
}

bool stw_step_begin_inside(stw_step *s, stw_builder *b) {
    if (!init(s, b)) return false;
    if (b->job->run->optimizer.clip_norm > 0.0) clip(s);
    return b->status == STW_STATUS_OK;
}

bool stw_step_begin(stw_step *s, stw_builder *b, stw_phase phase, stw_repeat repeat) {
    if (!init(s, b)) return false;
    stw_begin_movement(b, (stw_movement){.phase = phase,
                                         .by_stowage = true,
                                         .executable = stw_run_spec_parks(b->job->run) == NULL,
                                         .repeat = repeat,
                                         .threading = STW_THREADING_SHARED,
                                         .barrier = true});
    /* forward and backward stand before both steps in a program: what they have brought back for
     * the first one has left with it when the later one is walked */
    stw_park_before_step(b, phase == STW_PHASE_OPTIMIZER_STEP && b->job->model->facts_known);
    stw_build_rings(b, true);
    if (b->job->run->optimizer.clip_norm > 0.0) clip(s);
    return b->status == STW_STATUS_OK;
}

void stw_step_buckets(stw_step *s) {
    stw_builder *b = s->b;
    if (b->skipping) return; /* buckets neither take nor leave memory */
    for (uint32_t i = 0; i < b->layout->n_buckets && b->status == STW_STATUS_OK; i++) {
        uint32_t index = b->layout->order[i];
        switch (b->decisions->state[b->layout->buckets[index].decision].place.update) {
        case STW_UPDATE_STREAM:
            stream_bucket(s, index);
            break;
        case STW_UPDATE_CPU:
            cpu_bucket(s, index);
            break;
        default:
            (void)update(s, index, STW_OP_NONE);
            break;
        }
    }
}

/* State leaves when every stream has done its part: the compute stream waits for all others. */
static uint32_t all_done(stw_builder *b) {
    uint32_t last[STW_N_STREAMS], done = STW_OP_NONE;
    if (b->park == NULL || b->park->n == 0 || b->status != STW_STATUS_OK) return done;
    for (int s = 0; s < STW_N_STREAMS; s++) last[s] = STW_OP_NONE;
    for (uint32_t i = b->program->movements[b->program->n_movements - 1].first_op;
         i < b->program->n_ops; i++)
        if (!stw_op_is(&b->program->ops[i], STW_OP_CLASS_MEMORY))
            last[b->program->ops[i].stream] = i;
    for (int s = 0; s < STW_N_STREAMS; s++) {
        if (s == STW_STREAM_COMPUTE || last[s] == STW_OP_NONE) continue;
        stw_op idle = stw_op_make(STW_OP_IDLE, STW_STREAM_COMPUTE, STW_OP_NONE);
        idle.component = STW_COMPONENT_STAGE;
        idle.from = idle.to = STW_TIER_GPU;
        idle.after[0] = last[s];
        done = stw_append(b, idle);
    }
    return done == STW_OP_NONE ? last[STW_STREAM_COMPUTE] : done;
}

void stw_step_end(stw_step *s) {
    const uint32_t done = all_done(s->b);
    stw_build_rings(s->b, false);
    stw_build_commit(s->b);
    stw_park_after_step(s->b, done);
    stw_end_movement(s->b);
}

void stw_build_step(stw_builder *b, stw_phase phase, stw_repeat repeat) {
    stw_step step;
    if (!stw_step_begin(&step, b, phase, repeat)) return;
    stw_step_buckets(&step);
    stw_step_end(&step);
}

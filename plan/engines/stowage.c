/* SPDX-License-Identifier: Apache-2.0 */
/* The stowage engine: fsdp2's partition, forward and backward; load and optimizer step by Stowage.
 * All state is in place from load on. A step streams buckets through rings of slots, updates
 * resident ones in place, reaches into page-locked memory from the GPU where that is asked for, and
 * lets the CPU update its share, all at once. */
#include <string.h>

#include "core/checked.h"
#include "plan/engines/built_in.h"
#include "plan/program/builder.h"

/* ---- placements ---- */

static bool allowed(uint32_t wish, stw_tier tier) {
    return wish == STW_AUTO || wish == (uint32_t)tier;
}

static bool place_allowed(const stw_job *job, const stw_place *p) {
    const stw_run_spec *run = job->run;
    stw_optimizer_implementation how = run->optimizer.implementation;
    if (!allowed(run->placement.params, p->params) || !allowed(run->placement.grads, p->grads) ||
        !allowed(run->placement.moments, p->moments))
        return false;
    if (run->precision.has_master && !allowed(run->placement.master, p->moments)) return false;
    if (p->moments == STW_TIER_NVME && job->cluster->nvme.capacity_bytes == 0) return false;
    if (stw_run_spec_update_share(run, p->update) <= 0) return false;
    if (how == STW_OPTIMIZER_STREAMED) return p->update == STW_UPDATE_STREAM;
    if (how == STW_OPTIMIZER_CPU) return p->update == STW_UPDATE_CPU;
    if (how == STW_OPTIMIZER_DIRECT)
        return p->update == STW_UPDATE_DIRECT || p->update == STW_UPDATE_RESIDENT;
    if (how == STW_OPTIMIZER_FUSED) return p->update != STW_UPDATE_CPU;
    return true;
}

/* In canonical order. Gradients on the host with parameters on the GPU (or the reverse) cost the
 * link more than they free and are left out, as are CPU updates of state on NVMe. */
static const stw_place stowage_places[] = {
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_GPU, STW_UPDATE_RESIDENT},
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_STREAM},
    {STW_TIER_GPU, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_STREAM},
    {STW_TIER_HOST, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_STREAM},
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_DIRECT},
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_CPU},
    {STW_TIER_GPU, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_CPU},
    {STW_TIER_HOST, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_CPU},
    {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_NVME, STW_UPDATE_STREAM},
    {STW_TIER_GPU, STW_TIER_HOST, STW_TIER_NVME, STW_UPDATE_STREAM},
    {STW_TIER_HOST, STW_TIER_HOST, STW_TIER_NVME, STW_UPDATE_STREAM},
};

/* Every quantum needs an engine that has a place: those of fixed shares their own, the rest any
 * whose share is free. */
static bool shares_have_places(const stw_job *job, const stw_place *places, uint32_t n,
                               stw_error *err) {
    uint32_t fixed = 0;
    bool any_free = false;
    for (int u = 0; u < STW_N_UPDATES; u++) {
        uint32_t units = stw_job_update_units(job, (stw_update)u);
        bool has_place = false;
        for (uint32_t i = 0; i < n; i++) has_place = has_place || places[i].update == (stw_update)u;
        if (units == STW_AUTO) {
            any_free = any_free || has_place;
            continue;
        }
        fixed += units;
        if (units == 0 || has_place) continue;
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "update",
                       "update.%s has %u of %u quanta, and no place that placement, "
                       "optimizer.implementation and the cluster's tiers leave it",
                       stw_update_name((stw_update)u), units, job->n_units);
        return false;
    }
    if (fixed == job->n_units || (fixed < job->n_units && any_free)) return true;
    (void)stw_fail(
        err, STW_STATUS_BAD_INPUT, "update",
        "the fixed shares cover %u of %u quanta, and engines whose share is auto have no "
        "place for what is left",
        fixed, job->n_units);
    return false;
}

static uint32_t places(const stw_job *job, stw_place *out, stw_error *err) {
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof stowage_places / sizeof stowage_places[0]; i++)
        if (place_allowed(job, &stowage_places[i])) out[n++] = stowage_places[i];
    if (n == 0)
        (void)stw_fail(
            err, STW_STATUS_BAD_INPUT, "placement",
            "no way to update parameters fits placement, optimizer.implementation, the shares in "
            "update and the cluster's tiers together; leave one of them auto");
    return n > 0 && shares_have_places(job, out, n, err) ? n : 0;
}

static uint64_t window_bytes(const stw_job *job, const stw_place *place, uint32_t depth,
                             uint64_t bucket_bytes) {
    if (!stw_place_uses_ring(job, place, STW_RING_GPU)) return 0;
    return depth * stw_ring_slot_bytes(job, place, STW_RING_GPU, bucket_bytes);
}

/* ---- the step ---- */

typedef struct step {
    stw_builder *b;
    uint32_t norm; /* the op that makes the clip factor, STW_OP_NONE without clipping */
    uint32_t *free_by[STW_N_RINGS]; /* [slots] last op that used a slot; the next waits for it */
} step;

static uint64_t slot_base(const step *s, stw_ring_kind ring, uint32_t slot) {
    const stw_ring *r = &s->b->layout->rings[ring];
    return r->offset_bytes + slot * r->slot_bytes;
}

/* Of the ring that buckets of a place lie in, and of what the CPU updates elsewhere while one
 * passes through it: that wants caches too. */
static uint64_t cpu_ring_bytes(const step *s, const stw_place *place) {
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
    uint64_t params = depth * stw_place_bucket_params(job, place, bucket_bytes);
    uint64_t element = stw_job_optimizer_bytes(job) +
                       stw_job_element_bytes(job, STW_COMPONENT_PARAMS) +
                       stw_job_element_bytes(job, STW_COMPONENT_GRADS);
    return bytes + params * elsewhere / in_ring * element;
}

static uint32_t update(step *s, uint32_t index, uint32_t after) {
    const stw_bucket *bucket = &s->b->layout->buckets[index];
    const stw_place *place = &s->b->decisions->state[bucket->decision].place;
    bool cpu = place->update == STW_UPDATE_CPU;
    stw_op op =
        stw_op_make(STW_OP_UPDATE, STW_WORK_NONE, cpu ? STW_STREAM_CPU : STW_STREAM_COMPUTE, index);
    op.component = STW_COMPONENT_PARAMS;
    op.from = op.to = stw_place_update_tier(place);
    if (place->update == STW_UPDATE_DIRECT) op.from = place->moments;
    op.params = bucket->params;
    op.ring_bytes = cpu_ring_bytes(s, place);
    op.after[0] = after;
    op.after[1] = s->norm;
    return stw_append(s->b, op);
}

/* Between NVMe and a bucket's host slot, for all components that lie there: in (a read, after
 * `after`) or out. Reads and writes have streams of their own. Returns the last. */
static uint32_t move_disk(step *s, uint32_t index, bool in, uint32_t after) {
    const stw_bucket *bucket = &s->b->layout->buckets[index];
    const stw_place *place = &s->b->decisions->state[bucket->decision].place;
    uint64_t base = slot_base(s, STW_RING_HOST_DISK, bucket->slot);
    uint32_t last = STW_OP_NONE;
    for (int c = 0; c < STW_N_STATE; c++) {
        stw_component component = (stw_component)c;
        uint64_t bytes = bucket->params * stw_job_element_bytes(s->b->job, component);
        if (bytes == 0 || stw_place_tier(place, component) != STW_TIER_NVME) continue;
        uint64_t there =
            stw_layout_address(s->b->job, s->b->layout, component, bucket->first_param);
        uint64_t here = base + stw_disk_slot_offset(s->b->job, place, component, bucket->params);
        last = in ? stw_copy(s->b, STW_STREAM_DISK, component, index, STW_TIER_NVME, there,
                             STW_TIER_HOST, here, bytes, after, STW_OP_NONE)
                  : stw_copy(s->b, STW_STREAM_DISK_OUT, component, index, STW_TIER_HOST, here,
                             STW_TIER_NVME, there, bytes, after, STW_OP_NONE);
        after = STW_OP_NONE; /* the stream is in order */
    }
    return last;
}

/* Where a moving component of a bucket lies outside its slot: its region, or the disk ring's slot.
 */
static uint64_t home(const step *s, const stw_bucket *bucket, const stw_place *place,
                     stw_component component, stw_tier *tier) {
    *tier = stw_place_tier(place, component);
    if (*tier != STW_TIER_NVME)
        return stw_layout_address(s->b->job, s->b->layout, component, bucket->first_param);
    *tier = STW_TIER_HOST;
    return slot_base(s, STW_RING_HOST_DISK, bucket->slot) +
           stw_disk_slot_offset(s->b->job, place, component, bucket->params);
}

/* Copies of a bucket between homes and slot; `in`: towards the slot. Returns the last. */
static uint32_t move(step *s, uint32_t index, stw_ring_kind ring, bool in, uint32_t after0,
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
        if (!moves) continue;
        stw_tier tier;
        uint64_t there = home(s, bucket, place, component, &tier);
        uint64_t here = base + stw_slot_offset(s->b->job, place, component, bucket->params);
        uint64_t bytes = bucket->params * stw_job_element_bytes(s->b->job, component);
        last = in ? stw_copy(s->b, stream, component, index, tier, there, slot_tier, here, bytes,
                             after0, after1)
                  : stw_copy(s->b, stream, component, index, slot_tier, here, tier, there, bytes,
                             after0, after1);
        if (cpu && last != STW_OP_NONE)
            s->b->program->ops[last].ring_bytes = cpu_ring_bytes(s, place);
    }
    return last;
}

static void stream_bucket(step *s, uint32_t index) {
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

static void cpu_bucket(step *s, uint32_t index) {
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

static uint64_t grads_in(const step *s, stw_tier tier) {
    uint64_t params = 0;
    for (uint32_t i = 0; i < s->b->layout->n_regions; i++) {
        const stw_region *r = &s->b->layout->regions[i];
        if (r->component == STW_COMPONENT_GRADS && r->tier == tier) params += r->params;
    }
    return params;
}

static bool any_on_cpu(const step *s) {
    bool any = false;
    for (uint32_t i = 0; i < s->b->layout->n_regions; i++)
        any = any || s->b->layout->regions[i].update == STW_UPDATE_CPU;
    return any;
}

/* `to` of the sum is where its factor is waited for: the host only for updates that run there. */
static void clip(step *s) {
    stw_op sum = stw_op_make(STW_OP_COLLECTIVE, STW_WORK_NORM_SUM, STW_STREAM_COMM, STW_OP_NONE);
    sum.to = any_on_cpu(s) ? STW_TIER_HOST : STW_TIER_GPU;
    int n = 0;
    for (int t = 0; t < STW_TIER_NVME; t++) {
        stw_op op =
            stw_op_make(STW_OP_COMPUTE, STW_WORK_NORM,
                        t == STW_TIER_GPU ? STW_STREAM_COMPUTE : STW_STREAM_CPU, STW_OP_NONE);
        op.component = STW_COMPONENT_GRADS;
        op.from = op.to = (stw_tier)t;
        op.params = grads_in(s, (stw_tier)t);
        if (op.params > 0) sum.after[n++] = stw_append(s->b, op);
    }
    sum.component = STW_COMPONENT_COMM;
    sum.bytes = sizeof(uint64_t) * 80;
    s->norm = stw_append(s->b, sum);
}

static void rings(step *s, bool alloc) {
    for (int r = 0; r < STW_N_RINGS; r++) {
        const stw_ring *ring = &s->b->layout->rings[r];
        stw_tier tier = r == STW_RING_GPU ? STW_TIER_GPU : STW_TIER_HOST;
        if (ring->slots == 0) continue;
        if (alloc)
            stw_alloc_at(s->b, STW_COMPONENT_STAGE, tier, ring->offset_bytes,
                         ring->slots * ring->slot_bytes);
        else
            stw_free_at(s->b, STW_COMPONENT_STAGE, tier, ring->offset_bytes,
                        ring->slots * ring->slot_bytes);
    }
}

static void build_step(stw_builder *b, stw_phase phase) {
    step s = {.b = b, .norm = STW_OP_NONE};
    for (int r = 0; r < STW_N_RINGS; r++) {
        uint32_t n = b->decisions->prefetch.depth > 0 ? b->decisions->prefetch.depth : 1;
        s.free_by[r] = stw_pool_array(b->program->pool, n, sizeof(uint32_t));
        if (s.free_by[r] == NULL) {
            b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
            return;
        }
        for (uint32_t i = 0; i < n; i++) s.free_by[r][i] = STW_OP_NONE;
    }
    stw_begin_movement(b, phase, true, true);
    rings(&s, true);
    if (b->job->run->optimizer.clip_norm > 0.0) clip(&s);
    for (uint32_t i = 0; i < b->layout->n_buckets && b->status == STW_STATUS_OK; i++) {
        uint32_t index = b->layout->order[i];
        switch (b->decisions->state[b->layout->buckets[index].decision].place.update) {
        case STW_UPDATE_STREAM:
            stream_bucket(&s, index);
            break;
        case STW_UPDATE_CPU:
            cpu_bucket(&s, index);
            break;
        default:
            (void)update(&s, index, STW_OP_NONE);
            break;
        }
    }
    rings(&s, false);
    stw_end_movement(b);
}

/* What CUDA keeps on the GPU for the host arena, and further copies of state on NVMe. */
static void build_shadows(stw_builder *b) {
    const stw_layout *layout = b->layout;
    stw_alloc_at(b, STW_COMPONENT_CONTEXT, STW_TIER_GPU, STW_OFFSET_EXTERNAL,
                 stw_page_table_bytes(b->job, layout));
    for (uint64_t copy = 1; copy < stw_nvme_copies(b->job); copy++)
        for (uint32_t i = 0; i < layout->n_regions; i++) {
            const stw_region *r = &layout->regions[i];
            if (r->tier == STW_TIER_NVME)
                stw_alloc_at(b, r->component, r->tier,
                             copy * layout->persistent_bytes[STW_TIER_NVME] + r->offset_bytes,
                             r->bytes);
        }
}

static bool every_region(const stw_region *region) {
    (void)region;
    return true;
}

static stw_status build(const stw_job *job, const stw_decisions *decisions,
                        const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_builder b;
    stw_builder_init(&b, job, decisions, layout, program, err);
    bool executable = decisions->load != STW_LOAD_NODE_LEADER || job->cluster->nodes == 1;
    stw_begin_movement(&b, STW_PHASE_LOAD, true, executable);
    stw_build_externals(&b);
    stw_build_regions(&b, true, every_region);
    build_shadows(&b);
    if (job->world > 1)
        stw_alloc_at(&b, STW_COMPONENT_STAGE, STW_TIER_GPU, layout->comm_offset_bytes,
                     STW_COMM_SCRATCH_BYTES);
    stw_build_load(&b);
    stw_end_movement(&b);
    if (job->model->facts_known) stw_build_forward_backward(&b, false);
    build_step(&b, STW_PHASE_FIRST_OPTIMIZER_STEP);
    build_step(&b, STW_PHASE_OPTIMIZER_STEP);
    return stw_builder_finish(&b);
}

static const char *const keys[] = {"fsdp.", "update.", "optimizer.groups", "placement.nvme_copies",
                                   NULL};

const stw_engine stw_engine_stowage = {
    .spec = {.name = "stowage",
             .keys = keys,
             .trains_as = "fsdp2",
             .updates = (1u << STW_N_UPDATES) - 1,
             .executes = true},
    .places = places,
    .build = build,
    .window_bytes = window_bytes,
};

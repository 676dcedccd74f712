/* SPDX-License-Identifier: Apache-2.0 */
/* The state of an optimizer of bound tensors, where it lies: its first values, reading and writing
 * it. State on NVMe passes a slot of the ring, which is empty between steps. */
#include "backend/executor/bound_parts.h"
#include "core/checked.h"

/* Where an element of a region lies. */
static stw_location home(const stw_bound *b, const stw_region *region, uint64_t element) {
    const uint64_t each = stw_job_element_bytes(b->plan->job, region->component);
    const uint64_t skipped = region->tier == STW_TIER_GPU ? b->skipped_bytes : 0;
    return stw_at(region->tier,
                  region->offset_bytes - skipped + stw_times(element - region->first_param, each));
}

/* ---- first values ---- */

static const unsigned char *params_of(const stw_bound *b, uint32_t span, uint64_t at) {
    const uint64_t before = b->parts[span].tensor_first + (at - b->spans[span].first);
    return (const unsigned char *)b->places[b->parts[span].tensor].params +
           stw_times(before, stw_element_bytes(b->types.params));
}

/* Masters of the elements of a span from `at` on. */
static stw_status make_masters(stw_bound *b, uint32_t span, uint64_t at, uint64_t n,
                               stw_location to, stw_error *err) {
    return b->backend->convert_from(b->device, STW_STREAM_COMPUTE,
                                    stw_typed(to.tier, to.offset, STW_ELEMENT_F32, n),
                                    params_of(b, span, at), b->plan->run.precision.params, err);
}

static stw_status masters_in_memory(stw_bound *b, uint32_t span, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_span *s = &b->spans[span];
    for (uint64_t at = s->first, n; at < s->first + s->n; at += n) {
        const stw_region *r = stw_layout_region(b->layout, STW_COMPONENT_MASTER, at);
        if (r == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_BUG, "master", "element %llu has no region",
                             (unsigned long long)at));
        n = stw_min_u64(s->first + s->n - at, r->first_param + r->params - at);
        if (r->tier != STW_TIER_NVME) STW_TRY(make_masters(b, span, at, n, home(b, r, at), err));
    }
out:
    return status;
}

/* The slot of NVMe's ring that calls between steps use; it holds a bucket's state. */
static uint64_t slot_of(const stw_bound *b, uint64_t *bytes) {
    const stw_ring *ring = &b->layout->rings[STW_RING_HOST_DISK];
    *bytes = ring->slot_bytes;
    return ring->offset_bytes;
}

static stw_status masters_on_disk(stw_bound *b, uint32_t bucket, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_bucket_operands *o = &b->operands[bucket];
    const stw_region *r = stw_layout_region(b->layout, STW_COMPONENT_MASTER, o->first);
    uint64_t room = 0;
    const uint64_t slot = slot_of(b, &room);
    if (r == NULL || r->tier != STW_TIER_NVME) return STW_STATUS_OK;
    for (uint32_t i = o->first_span; i < o->first_span + o->n_spans; i++) {
        const stw_span *s = &b->spans[i];
        const uint64_t from = stw_max_u64(s->first, o->first);
        const uint64_t to = stw_min_u64(s->first + s->n, o->first + o->n);
        const stw_location at = stw_at(STW_TIER_HOST, slot + (from - o->first) * sizeof(float));
        STW_TRY(make_masters(b, i, from, to - from, at, err));
    }
    STW_TRY(b->backend->synchronize(b->device, err));
    STW_TRY(
        b->backend->write(b->device, home(b, r, o->first).offset, slot, o->n * sizeof(float), err));
out:
    return status;
}

stw_status stw_bound_first_values(stw_bound *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < b->layout->n_regions; i++) {
        const stw_region *r = &b->layout->regions[i];
        if (r->tier == STW_TIER_NVME) continue; /* its file reads as zeros */
        if (r->component == STW_COMPONENT_EXP_AVG || r->component == STW_COMPONENT_EXP_AVG_SQ)
            STW_TRY(b->backend->zero(b->device, home(b, r, r->first_param), r->bytes, err));
    }
    if (b->types.master == STW_ELEMENT_NONE) goto out;
    for (uint32_t i = 0; i < b->n_spans; i++) STW_TRY(masters_in_memory(b, i, err));
    STW_TRY(b->backend->synchronize(b->device, err));
    for (uint32_t i = 0; i < b->layout->n_buckets; i++) STW_TRY(masters_on_disk(b, i, err));
out:
    return status;
}

/* ---- reading and writing ---- */

static stw_status copy_disk(stw_bound *b, uint64_t at, uint64_t bytes, bool write,
                            unsigned char *memory, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t room = 0;
    const uint64_t slot = slot_of(b, &room);
    for (uint64_t done = 0, n; done < bytes; done += n) {
        n = stw_min_u64(bytes - done, room);
        unsigned char *host = b->backend->host_address(b->device, slot, n);
        if (host == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_BUG, "state", "the slot is outside the host arena"));
        if (write) memcpy(host, memory + done, (size_t)n);
        STW_TRY(write ? b->backend->write(b->device, at + done, slot, n, err)
                      : b->backend->read(b->device, slot, at + done, n, err));
        if (!write) memcpy(memory + done, host, (size_t)n);
    }
out:
    return status;
}

static stw_status copy_run(stw_bound *b, stw_location at, uint64_t bytes, bool write,
                           unsigned char *memory, stw_error *err) {
    if (at.tier == STW_TIER_GPU)
        return write ? b->backend->put(b->device, at, memory, bytes, err)
                     : b->backend->get(b->device, memory, at, bytes, err);
    if (at.tier == STW_TIER_NVME) return copy_disk(b, at.offset, bytes, write, memory, err);
    void *host = b->backend->host_address(b->device, at.offset, bytes);
    if (host == NULL)
        return stw_fail(err, STW_STATUS_BUG, "state",
                        "%llu bytes at %llu are outside the host arena", (unsigned long long)bytes,
                        (unsigned long long)at.offset);
    memcpy(write ? host : memory, write ? memory : host, (size_t)bytes);
    return STW_STATUS_OK;
}

static stw_status check_range(const stw_bound *b, const stw_bound_range *range, stw_error *err) {
    if (range->tensor >= b->n_tensors)
        return stw_fail(err, STW_STATUS_USAGE, "tensor", "found %u, expected one below %u",
                        range->tensor, b->n_tensors);
    if (stw_exec_type(&b->types, range->component) == STW_ELEMENT_NONE ||
        range->component == STW_COMPONENT_PARAMS || range->component == STW_COMPONENT_GRADS)
        return stw_fail(err, STW_STATUS_USAGE, "component",
                        "found \"%s\", which is no state of this plan",
                        stw_component_name(range->component));
    const uint64_t elements = b->places[range->tensor].elements;
    if (range->first > elements || range->n > elements - range->first)
        return stw_fail(err, STW_STATUS_USAGE, b->names[range->tensor],
                        "found elements %llu to %llu, expected some of its %llu",
                        (unsigned long long)range->first,
                        (unsigned long long)(range->first + range->n),
                        (unsigned long long)elements);
    return STW_STATUS_OK;
}

/* Runs of a range's elements in one region. */
typedef stw_status run_fn(void *state, const stw_region *region, uint64_t at, uint64_t skip,
                          uint64_t n, stw_error *err);

static stw_status walk_range(stw_bound *b, const stw_bound_range *range, run_fn *fn, void *state,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t end = range->first + range->n;
    uint64_t done = 0;
    for (uint32_t i = b->places[range->tensor].first_part; i < b->n_spans && done < range->n; i++) {
        const stw_bound_part *part = &b->parts[i];
        if (part->tensor != range->tensor) continue;
        uint64_t from = stw_max_u64(range->first, part->tensor_first);
        const uint64_t to = stw_min_u64(end, part->tensor_first + b->spans[i].n);
        for (uint64_t n; from < to; from += n, done += n) {
            const uint64_t at = b->spans[i].first + (from - part->tensor_first);
            const stw_region *r = stw_layout_region(b->layout, range->component, at);
            if (r == NULL) break;
            n = stw_min_u64(to - from, r->first_param + r->params - at);
            STW_TRY(fn(state, r, at, from - range->first, n, err));
        }
    }
    if (done != range->n)
        status = stw_fail(err, STW_STATUS_USAGE, b->names[range->tensor],
                          "is not trained and has no %s", stw_component_name(range->component));
out:
    return status;
}

typedef struct copier {
    stw_bound *b;
    bool write;
    unsigned char *memory;
    stw_bound_home_fn *fn; /* of stw_bound_locate, and its state */
    void *state;
} copier;

static stw_status copy_part(void *state, const stw_region *region, uint64_t at, uint64_t skip,
                            uint64_t n, stw_error *err) {
    const copier *c = state;
    const uint64_t each = stw_job_element_bytes(c->b->plan->job, region->component);
    return copy_run(c->b, home(c->b, region, at), stw_times(n, each), c->write,
                    c->memory + stw_times(skip, each), err);
}

stw_status stw_bound_copy_state(stw_bound *b, const stw_bound_range *range, bool write,
                                void *memory, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    copier c = {.b = b, .write = write, .memory = memory};
    STW_TRY(check_range(b, range, err));
    STW_TRY(stw_bound_finish(b, NULL, err));
    STW_TRY(walk_range(b, range, copy_part, &c, err));
out:
    return status;
}

/* ---- where it lies ---- */

static uint32_t bucket_at(const stw_layout *layout, uint64_t at) {
    uint32_t low = 0, high = layout->n_buckets;
    while (low + 1 < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (layout->buckets[middle].first_param <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Cut where buckets end. */
static stw_status locate_part(void *state, const stw_region *region, uint64_t at, uint64_t skip,
                              uint64_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const copier *c = state;
    const uint64_t each = stw_job_element_bytes(c->b->plan->job, region->component);
    for (uint64_t done = 0, some = 0; done < n; done += some) {
        const uint32_t bucket = bucket_at(c->b->layout, at + done);
        const stw_bucket *of = &c->b->layout->buckets[bucket];
        const stw_location place = home(c->b, region, at + done);
        some = stw_min_u64(n - done, of->first_param + of->params - (at + done));
        stw_bound_home h = {.tier = place.tier,
                            .offset = place.offset,
                            .skip = skip + done,
                            .n = some,
                            .turn = stw_bound_turn_of(c->b, bucket)};
        if (place.tier == STW_TIER_HOST)
            h.address =
                c->b->backend->host_address(c->b->device, place.offset, stw_times(some, each));
        STW_TRY(c->fn(c->state, &h, err));
    }
out:
    return status;
}

stw_status stw_bound_locate(stw_bound *b, const stw_bound_range *range, stw_bound_home_fn *fn,
                            void *state, stw_error *err) {
    copier c = {.b = b, .fn = fn, .state = state};
    stw_status status = check_range(b, range, err);
    return status == STW_STATUS_OK ? walk_range(b, range, locate_part, &c, err) : status;
}

stw_status stw_bound_read_disk(stw_bound *b, uint64_t offset, void *to, uint64_t bytes,
                               stw_error *err) {
    return stw_nvme_read(b->backend->nvme(b->device), offset, to, bytes, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/megatron/parking.h"

#include "blocks/optimizer.h"
#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/park.h"

static bool is_params(const stw_region *r) { return r->component == STW_COMPONENT_PARAMS; }
static bool is_grads(const stw_region *r) { return r->component == STW_COMPONENT_GRADS; }
static bool is_master(const stw_region *r) { return r->component == STW_COMPONENT_MASTER; }
static bool is_moment(const stw_region *r) {
    return r->component == STW_COMPONENT_EXP_AVG || r->component == STW_COMPONENT_EXP_AVG_SQ;
}

static bool parks(const stw_builder *b, stw_component component) {
    if (b->park == NULL) return false;
    if (component == STW_COMPONENT_PARAMS) return b->job->run->park.params;
    if (component == STW_COMPONENT_GRADS) return b->job->run->park.grads;
    return b->job->run->park.moments;
}

static stw_parking parking_of(const stw_builder *b, stw_component component) {
    if (component == STW_COMPONENT_GRADS) return STW_PARKING_DROPPED;
    return component == STW_COMPONENT_PARAMS && !b->job->run->park.reuse_copies ? STW_PARKING_FRESH
                                                                                : STW_PARKING_KEPT;
}

/* Each chunk of the model has one buffer of dense parameters and one of experts' (bytes beyond
 * those that are allocated on the GPU). */
static uint64_t buffer_rounding(const stw_builder *b, const stw_megatron_state *s) {
    const uint64_t half = stw_job_element_bytes(b->job, STW_COMPONENT_PARAMS);
    const uint32_t chunks = b->job->run->parallel.vpp;
    const uint64_t dense = stw_times(s->params.dense_padded / chunks, half);
    const uint64_t expert = stw_times(s->params.expert_padded / chunks, half);
    return stw_times(chunks, stw_plus(stw_page_lock_rounding_bytes(dense),
                                      stw_page_lock_rounding_bytes(expert)));
}

/* A tensor for every parameter of which the rank holds optimizer state. */
static uint64_t shard_rounding(const stw_builder *b, const stw_megatron_state *s,
                               stw_component component) {
    const uint64_t element = stw_job_element_bytes(b->job, component);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->shard.n; i++)
        if (stw_optimizer_keeps(b->job->run, s->shard.list[i].matrix, component))
            bytes = stw_plus(
                bytes, stw_page_lock_rounding_bytes(stw_times(s->shard.list[i].numel, element)));
    return bytes;
}

/* The parcel of a region; the rounding of all of a component is counted once. */
static void add(stw_builder *b, stw_component component, uint64_t rounding,
                bool (*which)(const stw_region *region)) {
    const uint32_t first = b->park->n;
    if (!parks(b, component)) return;
    stw_park_add_regions(b, b->park, parking_of(b, component), which);
    for (uint32_t i = first; i < b->park->n; i++)
        b->park->parcels[i].rounding_bytes = i == first ? rounding : 0;
}

void stw_megatron_park_padding(stw_builder *b, stw_component component, stw_extent extent) {
    if (!parks(b, component)) return;
    stw_park_add(b, b->park,
                 (stw_parcel){.component = component,
                              .parking = parking_of(b, component),
                              .offset_bytes = extent.offset,
                              .bytes = extent.bytes});
}

void stw_megatron_look_at_parking(stw_builder *b, const stw_megatron_state *s) {
    if (b->park == NULL) return;
    add(b, STW_COMPONENT_PARAMS, buffer_rounding(b, s), is_params);
    add(b, STW_COMPONENT_GRADS, 0, is_grads);
    add(b, STW_COMPONENT_MASTER, shard_rounding(b, s, STW_COMPONENT_MASTER), is_master);
    stw_park_leave(b, b->park, STW_PARKED_PARAMS | STW_PARKED_GRADS | STW_PARKED_MOMENTS,
                   STW_OP_NONE);
}

void stw_megatron_park_moments(stw_builder *b, const stw_megatron_state *s) {
    if (b->park == NULL) return;
    const uint64_t each = shard_rounding(b, s, STW_COMPONENT_EXP_AVG);
    add(b, STW_COMPONENT_EXP_AVG, stw_plus(each, shard_rounding(b, s, STW_COMPONENT_EXP_AVG_SQ)),
        is_moment);
}

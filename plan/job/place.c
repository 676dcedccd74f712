/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/job/place.h"

#include <stdio.h>

#include "core/checked.h"

#define RESIDENT_BUCKET_PARAMS (64ull << 20) /* large, to amortize launches */
#define DIRECT_BUCKET_PARAMS (16ull << 20)   /* long enough to hide launches */
#define CPU_BUCKET_PARAMS (8ull << 20) /* without a ring; amortizes the start of the threads */

uint32_t stw_place_order(const stw_place *place) {
    uint32_t major = place->update == STW_UPDATE_RESIDENT ? 0u
                     : place->update == STW_UPDATE_DIRECT ? 2u
                     : place->update == STW_UPDATE_CPU    ? 3u
                     : place->moments == STW_TIER_NVME    ? 4u
                                                          : 1u;
    const stw_tier tiers[] = {place->moments, place->params, place->grads};
    uint32_t order = major;
    for (size_t i = 0; i < sizeof tiers / sizeof tiers[0]; i++)
        order = order * STW_N_TIERS + (uint32_t)tiers[i];
    return order;
}

void stw_place_format(const stw_place *place, char *out, size_t out_size) {
    snprintf(out, out_size, "params %s, grads %s, moments %s: %s", stw_tier_name(place->params),
             stw_tier_name(place->grads), stw_tier_name(place->moments),
             stw_update_name(place->update));
}

stw_tier stw_place_tier(const stw_place *place, stw_component component) {
    switch (component) {
    case STW_COMPONENT_PARAMS:
        return place->params;
    case STW_COMPONENT_GRADS:
        return place->grads;
    default:
        return place->moments;
    }
}

stw_tier stw_place_update_tier(const stw_place *place) {
    return place->update == STW_UPDATE_CPU ? STW_TIER_HOST : STW_TIER_GPU;
}

static bool present(const stw_job *job, stw_component component) {
    return component < STW_N_STATE && stw_job_element_bytes(job, component) > 0;
}

/* True if the update works on staged copies. Other updates work in place. */
static bool stages(const stw_place *place) {
    return place->update == STW_UPDATE_STREAM || place->update == STW_UPDATE_CPU;
}

bool stw_place_moves_up(const stw_job *job, const stw_place *place, stw_component component) {
    if (!present(job, component)) return false;
    if (!stages(place)) return false;
    /* Parameters with a master copy are only written. */
    if (component == STW_COMPONENT_PARAMS && job->run->precision.has_master) return false;
    return stw_place_tier(place, component) != stw_place_update_tier(place);
}

bool stw_place_moves_down(const stw_job *job, const stw_place *place, stw_component component) {
    if (!present(job, component) || component == STW_COMPONENT_GRADS) return false;
    return stages(place) && stw_place_tier(place, component) != stw_place_update_tier(place);
}

static bool in_slot(const stw_job *job, const stw_place *place, stw_component component) {
    return stw_place_moves_up(job, place, component) || stw_place_moves_down(job, place, component);
}

uint64_t stw_place_slot_element_bytes(const stw_job *job, const stw_place *place) {
    uint64_t bytes = 0;
    for (int c = 0; c < STW_N_STATE; c++)
        if (in_slot(job, place, (stw_component)c))
            bytes += stw_job_element_bytes(job, (stw_component)c);
    return bytes;
}

uint64_t stw_place_disk_element_bytes(const stw_job *job, const stw_place *place) {
    uint64_t bytes = 0;
    for (int c = 0; c < STW_N_STATE; c++)
        if (stw_place_tier(place, (stw_component)c) == STW_TIER_NVME)
            bytes += stw_job_element_bytes(job, (stw_component)c);
    return bytes;
}

uint64_t stw_place_bucket_params(const stw_job *job, const stw_place *place,
                                 uint64_t bucket_bytes) {
    uint64_t element = stw_place_slot_element_bytes(job, place);
    if (element == 0)
        return place->update == STW_UPDATE_CPU      ? CPU_BUCKET_PARAMS
               : place->update == STW_UPDATE_DIRECT ? DIRECT_BUCKET_PARAMS
                                                    : RESIDENT_BUCKET_PARAMS;
    uint64_t params = bucket_bytes / element / STW_BUCKET_STEP * STW_BUCKET_STEP;
    return stw_max_u64(params, STW_BUCKET_STEP);
}

bool stw_place_uses_ring(const stw_job *job, const stw_place *place, stw_ring_kind ring) {
    switch (ring) {
    case STW_RING_GPU:
        return place->update == STW_UPDATE_STREAM;
    case STW_RING_HOST_DISK:
        return stw_place_disk_element_bytes(job, place) > 0;
    default:
        return place->update == STW_UPDATE_CPU && stw_place_slot_element_bytes(job, place) > 0;
    }
}

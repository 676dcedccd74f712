/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/decisions.h"

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

void stw_decision_range(const stw_job *job, const stw_decisions *decisions, uint32_t kind,
                        uint32_t i, uint64_t *first_param, uint64_t *params) {
    uint64_t all = stw_job_placed_params(job, kind), before = 0;
    for (uint32_t d = 0; d < i; d++) before += decisions->state[d].units;
    uint64_t first = stw_min_u64(all, stw_times(before, job->unit_params));
    uint64_t end = stw_plus(first, stw_times(decisions->state[i].units, job->unit_params));
    end = stw_min_u64(all, end);
    *first_param = first;
    *params = end - first;
}

static stw_status check_state(const stw_job *job, const stw_decisions *d, stw_error *err) {
    uint64_t units = 0;
    if (d->n_state > STW_MAX_PLACES)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "decisions",
                        "found %u placements, at most %d fit", d->n_state, STW_MAX_PLACES);
    if (job->engine->whole && d->n_state > 1)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "decisions",
                        "found %u placements, engine %s holds all state in one", d->n_state,
                        job->engine->spec.name);
    for (uint32_t i = 0; i < d->n_state; i++) {
        const stw_place *place = &d->state[i].place;
        char text[96];
        stw_place_format(place, text, sizeof text);
        units += d->state[i].units;
        if (i > 0 && stw_place_order(&d->state[i - 1].place) >= stw_place_order(place))
            return stw_fail(err, STW_STATUS_BAD_INPUT, "decisions",
                            "placement %u (%s) is out of canonical order", i, text);
        bool all_gpu = place->params == STW_TIER_GPU && place->grads == STW_TIER_GPU &&
                       place->moments == STW_TIER_GPU;
        const bool swaps = job->engine->nvme_swaps && place->update == STW_UPDATE_CPU;
        bool sane = (place->params != STW_TIER_NVME || swaps) && place->grads != STW_TIER_NVME;
        if (place->update == STW_UPDATE_RESIDENT) sane = sane && all_gpu;
        if (place->update == STW_UPDATE_STREAM) sane = sane && !all_gpu;
        if (place->update == STW_UPDATE_CPU)
            sane = sane &&
                   (place->moments == STW_TIER_HOST || (place->moments == STW_TIER_NVME && swaps));
        if (place->update == STW_UPDATE_DIRECT)
            sane = sane && place->params == STW_TIER_GPU && place->grads == STW_TIER_GPU &&
                   place->moments == STW_TIER_HOST;
        if (!sane)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "decisions", "no update can execute %s",
                            text);
        if (stw_place_slot_element_bytes(job, place) > 0 && d->state[i].units > 0 &&
            (d->prefetch.depth == 0 ||
             (!d->prefetch.by_group && d->prefetch.bucket_bytes < STW_BUCKET_MIN_BYTES)))
            return stw_fail(
                err, STW_STATUS_BAD_INPUT, "prefetch",
                "found depth %u and buckets of %llu B for %s, expected at least 1 and %llu B",
                d->prefetch.depth, (unsigned long long)d->prefetch.bucket_bytes, text,
                (unsigned long long)STW_BUCKET_MIN_BYTES);
    }
    if (units != job->n_units)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "decisions",
                        "placements cover %llu quanta, the model has %u of %llu parameters",
                        (unsigned long long)units, job->n_units,
                        (unsigned long long)job->unit_params);
    return STW_STATUS_OK;
}

stw_status stw_decisions_check_shares(const stw_job *job, const stw_decisions *d, stw_error *err) {
    for (int u = 0; u < STW_N_UPDATES; u++) {
        uint32_t want = stw_job_update_units(job, (stw_update)u), found = 0;
        if (want == STW_AUTO) continue;
        for (uint32_t i = 0; i < d->n_state; i++)
            if (d->state[i].place.update == (stw_update)u) found += d->state[i].units;
        if (found != want)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "decisions",
                            "found %u of %u quanta updated by %s, expected %u by update.%s", found,
                            job->n_units, stw_update_name((stw_update)u), want,
                            stw_update_name((stw_update)u));
    }
    return STW_STATUS_OK;
}

stw_status stw_decisions_check(const stw_job *job, const stw_decisions *d, stw_error *err) {
    stw_status status = check_state(job, d, err);
    if (status != STW_STATUS_OK) return status;
    for (uint32_t g = 0; g < job->model->n_groups; g++) {
        const stw_block_group *group = &job->model->groups[g];
        if (!group->facts.transformer) continue;
        uint64_t blocks = 0;
        for (uint32_t i = 0; i < d->n_blocks; i++)
            if (d->blocks[i].group == g) blocks += d->blocks[i].count;
        if (blocks != group->count)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "decisions",
                            "activation policies cover %llu blocks of group %s, which has %u",
                            (unsigned long long)blocks, group->name, group->count);
    }
    return STW_STATUS_OK;
}

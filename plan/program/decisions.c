/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/decisions.h"

#include <stdio.h>

#include "core/checked.h"

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

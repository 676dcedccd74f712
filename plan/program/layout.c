/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/layout.h"

#define XXH_INLINE_ALL
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "core/checked.h"
#include "core/text.h"
#include "plan/program/staging.h"

/* ---- slots ---- */

static uint64_t slot_offset(const stw_job *job, const stw_place *place, stw_component component,
                            uint64_t params, bool disk) {
    uint64_t offset = 0;
    for (int c = 0; c < (int)component; c++) {
        stw_component other = (stw_component)c;
        bool inside =
            disk ? stw_place_tier(place, other) == STW_TIER_NVME
                 : stw_place_moves_up(job, place, other) || stw_place_moves_down(job, place, other);
        if (inside)
            offset = stw_plus(offset,
                              stw_round_up_u64(stw_times(params, stw_job_element_bytes(job, other)),
                                               STW_ALIGN_BYTES));
    }
    return offset;
}

uint64_t stw_slot_offset(const stw_job *job, const stw_place *place, stw_component component,
                         uint64_t params) {
    return slot_offset(job, place, component, params, false);
}

uint64_t stw_disk_slot_offset(const stw_job *job, const stw_place *place, stw_component component,
                              uint64_t params) {
    return slot_offset(job, place, component, params, true);
}

/* ---- regions, buckets, rings ---- */

static stw_status add_region(stw_layout *layout, stw_region region, uint64_t element_bytes,
                             stw_error *err) {
    if (region.params == 0) return STW_STATUS_OK;
    stw_region *list =
        stw_pool_grow(layout->pool, layout->regions, layout->n_regions,
                      (size_t)layout->n_regions + 1, &layout->region_room, sizeof *list);
    if (list == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "layout", "out of memory");
    layout->regions = list;
    region.offset_bytes = layout->persistent_bytes[region.tier];
    region.bytes = stw_times(region.params, element_bytes);
    layout->persistent_bytes[region.tier] =
        stw_round_up_u64(stw_plus(region.offset_bytes, region.bytes), STW_ALIGN_BYTES);
    layout->regions[layout->n_regions++] = region;
    return STW_STATUS_OK;
}

stw_status stw_layout_add_region(stw_layout *layout, stw_component component, uint32_t space,
                                 stw_tier tier, uint64_t params, uint64_t element_bytes,
                                 stw_error *err) {
    stw_region region = {.component = component, .space = space, .tier = tier, .params = params};
    return add_region(layout, region, element_bytes, err);
}

/* A space that is cut otherwise than the optimizer's has no part in any one placement: all of it
 * lies where every placement says. */
static stw_status place_whole(const stw_job *job, const stw_decisions *decisions,
                              stw_layout *layout, stw_component component, stw_error *err) {
    stw_tier tier = stw_place_tier(&decisions->state[0].place, component);
    for (uint32_t i = 1; i < decisions->n_state; i++)
        if (stw_place_tier(&decisions->state[i].place, component) != tier)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "decisions",
                            "found %s in %s and in %s; engine %s cuts them otherwise than the "
                            "optimizer's state, so all placements must have them in one tier",
                            stw_component_name(component), stw_tier_name(tier),
                            stw_tier_name(stw_place_tier(&decisions->state[i].place, component)),
                            job->engine->spec.name);
    uint32_t space = (uint32_t)stw_component_space(component);
    stw_region region = {.component = component,
                         .space = space,
                         .tier = tier,
                         .update = decisions->state[0].place.update,
                         .units = job->n_units,
                         .params = job->kinds[layout->kind].spaces[space].n};
    return add_region(layout, region, stw_job_element_bytes(job, component), err);
}

static stw_status place_component(const stw_job *job, const stw_decisions *decisions,
                                  stw_layout *layout, stw_component component, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t unit = 0, space = (uint32_t)stw_component_space(component);
    if (space != STW_SPACE_OPTIMIZER && !job->one_cut)
        return place_whole(job, decisions, layout, component, err);
    for (uint32_t i = 0; i < decisions->n_state; i++) {
        const stw_state_decision *decision = &decisions->state[i];
        stw_region region = {.component = component,
                             .space = space,
                             .tier = stw_place_tier(&decision->place, component),
                             .update = decision->place.update,
                             .decision = i,
                             .first_unit = unit,
                             .units = decision->units};
        unit += decision->units;
        stw_decision_range(job, decisions, layout->kind, i, &region.first_param, &region.params);
        STW_TRY(add_region(layout, region, stw_job_element_bytes(job, component), err));
    }
out:
    return status;
}

static stw_status place_regions(const stw_job *job, const stw_decisions *decisions,
                                stw_layout *layout, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int c = 0; c < STW_N_STATE; c++)
        if (stw_job_element_bytes(job, (stw_component)c) > 0)
            STW_TRY(place_component(job, decisions, layout, (stw_component)c, err));
    if (job->engine->more_regions != NULL) STW_TRY(job->engine->more_regions(job, layout, err));
out:
    return status;
}

uint64_t stw_ring_slot_bytes(const stw_job *job, const stw_place *place, stw_ring_kind ring,
                             uint64_t bucket_bytes) {
    if (ring == STW_RING_HOST_DISK) {
        uint64_t params = stw_place_bucket_params(job, place, bucket_bytes);
        bucket_bytes = stw_disk_slot_offset(job, place, STW_N_STATE, params);
    }
    return stw_round_up_u64(bucket_bytes, STW_ALIGN_BYTES);
}

uint64_t stw_cpu_ring_bytes(const stw_job *job, const stw_place *place, uint32_t depth,
                            uint64_t bucket_bytes) {
    if (!stw_place_uses_ring(job, place, STW_RING_HOST_CPU)) return 0;
    uint64_t params = stw_place_bucket_params(job, place, bucket_bytes);
    return stw_times(depth,
                     stw_plus(stw_ring_slot_bytes(job, place, STW_RING_HOST_CPU, bucket_bytes),
                              stw_times(params, stw_job_optimizer_bytes(job))));
}

/* An engine that prefetches by group updates groups of tensors; its layout has no buckets. */
static stw_status cut_buckets(const stw_job *job, const stw_decisions *decisions,
                              stw_layout *layout, stw_error *err) {
    uint64_t n = 0, first, params;
    if (job->engine->prefetch_by_group) return STW_STATUS_OK;
    for (uint32_t i = 0; i < decisions->n_state; i++) {
        stw_decision_range(job, decisions, layout->kind, i, &first, &params);
        n += stw_div_up_u64(params, stw_place_bucket_params(job, &decisions->state[i].place,
                                                            decisions->prefetch.bucket_bytes));
    }
    if (n < UINT32_MAX) {
        layout->buckets = stw_pool_array(layout->pool, n, sizeof(stw_bucket));
        layout->order = stw_pool_array(layout->pool, n, sizeof(uint32_t));
    }
    if (layout->buckets == NULL || layout->order == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "layout", "no room for %llu buckets",
                        (unsigned long long)n);
    for (uint32_t i = 0; i < decisions->n_state; i++) {
        stw_decision_range(job, decisions, layout->kind, i, &first, &params);
        uint64_t step = stw_place_bucket_params(job, &decisions->state[i].place,
                                                decisions->prefetch.bucket_bytes);
        for (uint64_t done = 0; done < params; done += step)
            layout->buckets[layout->n_buckets++] =
                (stw_bucket){i, 0, first + done, stw_min_u64(step, params - done)};
    }
    return STW_STATUS_OK;
}

/* Does the next forward wait for buckets, one block after the other? Then they are in the order of
 * the model, resident ones first. */
static bool ascends(const stw_job *job, const stw_decisions *decisions) {
    const stw_engine *engine = job->engine;
    const bool gpu = engine->spread && job->spread_params == 0; /* part of a job that may wait */
    if (!gpu && !stw_job_hides_step(job)) return false;
    for (uint32_t d = 0; d < decisions->n_state; d++) {
        const stw_place *place = &decisions->state[d].place;
        if (place->update != STW_UPDATE_RESIDENT && place->update != STW_UPDATE_STREAM)
            return false;
        if (place->moments == STW_TIER_NVME) return false;
    }
    return true;
}

/* Buckets of all places in one order, each place as far along as every other, so that links, GPU
 * and CPU work side by side from the first bucket to the last. Slots are dealt in that order. */
static void order_buckets(const stw_job *job, const stw_decisions *decisions, stw_layout *layout) {
    uint32_t begin[STW_MAX_PLACES + 1] = {0}, done[STW_MAX_PLACES] = {0}, turn[STW_N_RINGS] = {0};
    for (uint32_t i = 0; i < layout->n_buckets; i++) begin[layout->buckets[i].decision + 1]++;
    for (uint32_t d = 0; d < decisions->n_state; d++) begin[d + 1] += begin[d];
    const bool ascending = ascends(job, decisions);
    for (uint32_t i = 0; i < layout->n_buckets; i++) {
        uint32_t next = STW_MAX_PLACES;
        for (uint32_t d = 0; d < decisions->n_state; d++) {
            uint64_t total = begin[d + 1] - begin[d];
            if (done[d] == total) continue;
            if (next == STW_MAX_PLACES ||
                (!ascending &&
                 done[d] * (uint64_t)(begin[next + 1] - begin[next]) < done[next] * total))
                next = d;
        }
        stw_bucket *bucket = &layout->buckets[begin[next] + done[next]];
        layout->order[i] = begin[next] + done[next]++;
        const stw_place *place = &decisions->state[next].place;
        stw_ring_kind ring = place->update == STW_UPDATE_CPU ? STW_RING_HOST_CPU : STW_RING_GPU;
        if (stw_place_slot_element_bytes(job, place) > 0 && layout->rings[ring].slots > 0)
            bucket->slot = turn[ring]++ % layout->rings[ring].slots;
    }
}

static uint64_t largest_slot_bytes(const stw_job *job, const stw_decisions *decisions,
                                   stw_ring_kind ring) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < decisions->n_state; i++) {
        const stw_place *place = &decisions->state[i].place;
        if (decisions->state[i].units == 0 || !stw_place_uses_ring(job, place, ring)) continue;
        most = stw_max_u64(most,
                           stw_ring_slot_bytes(job, place, ring, decisions->prefetch.bucket_bytes));
    }
    return most;
}

static uint32_t ring_slots(const stw_job *job, const stw_decisions *decisions, stw_ring_kind ring,
                           uint64_t *slot_bytes) {
    if (job->engine->ring != NULL) return job->engine->ring(job, decisions, ring, slot_bytes);
    *slot_bytes = largest_slot_bytes(job, decisions, ring);
    return *slot_bytes > 0 ? decisions->prefetch.depth : 0;
}

uint64_t stw_nvme_copies(const stw_job *job) {
    if (!job->engine->nvme_commits) return 1;
    return job->run->placement.nvme_copies == 1 ? 1 : 2; /* whatever an unchecked spec says */
}

uint64_t stw_page_table_bytes(const stw_job *job, const stw_layout *layout) {
    if (job->cluster->gpus == 0 || layout->arena_bytes[STW_TIER_HOST] == 0) return 0;
    return stw_round_up_u64(
        stw_div_up_u64(layout->arena_bytes[STW_TIER_HOST], STW_PAGE_TABLE_SHARE),
        STW_PAGE_TABLE_STEP_BYTES);
}

/* Rings and load staging lie above the regions and share the space: never live at the same time. An
 * optimizer inside a framework's process has its rings for good, and nothing of the load. */
static void place_rings(const stw_job *job, const stw_decisions *decisions, stw_layout *layout) {
    const bool inside = stw_engine_steps_inside(&job->engine->spec);
    uint64_t top[STW_N_TIERS];
    if (job->world > 1) {
        layout->comm_offset_bytes = layout->persistent_bytes[STW_TIER_GPU];
        layout->persistent_bytes[STW_TIER_GPU] += STW_COMM_SCRATCH_BYTES;
    }
    for (int t = 0; t < STW_N_TIERS; t++) top[t] = layout->persistent_bytes[t];
    for (int r = 0; r < STW_N_RINGS && !decisions->prefetch.by_group; r++) {
        stw_tier tier = r == STW_RING_GPU ? STW_TIER_GPU : STW_TIER_HOST;
        stw_ring *ring = &layout->rings[r];
        ring->slots = ring_slots(job, decisions, (stw_ring_kind)r, &ring->slot_bytes);
        if (ring->slots == 0) continue;
        ring->offset_bytes = top[tier];
        top[tier] = stw_plus(top[tier], stw_times(ring->slots, ring->slot_bytes));
        if (inside) layout->persistent_bytes[tier] = stw_round_up_u64(top[tier], STW_ALIGN_BYTES);
    }
    for (int t = 0; t < STW_N_TIERS; t++) layout->arena_bytes[t] = top[t];
    layout->arena_bytes[STW_TIER_NVME] =
        stw_times(layout->arena_bytes[STW_TIER_NVME], stw_nvme_copies(job));
    for (int t = 0; t < STW_TIER_NVME && !inside; t++) {
        uint64_t staged = layout->persistent_bytes[t] +
                          stw_load_staging_bytes(job, decisions, layout->kind, (stw_tier)t);
        layout->arena_bytes[t] = stw_max_u64(layout->arena_bytes[t], staged);
    }
}

/* Neither rings nor load staging are live while weights are synced. */
static stw_status place_sync(const stw_job *job, stw_layout *layout, stw_error *err) {
    uint64_t buffers = 0, weights = 0, *arena = &layout->arena_bytes[STW_TIER_GPU];
    if (job->engine->sync_room == NULL) return STW_STATUS_OK;
    const stw_status status = job->engine->sync_room(job, layout->kind, &buffers, &weights, err);
    layout->rollout_offset_bytes = stw_round_up_u64(
        stw_plus(layout->persistent_bytes[STW_TIER_GPU], buffers), STW_ALIGN_BYTES);
    if (buffers > 0) *arena = stw_max_u64(*arena, stw_plus(layout->rollout_offset_bytes, weights));
    return status;
}

static stw_status hash_layout(const stw_job *job, stw_layout *layout, stw_error *err) {
    stw_text text = STW_TEXT_INIT;
    stw_text_printf(&text, "v%d %s %u", STW_LAYOUT_VERSION, job->model->digest, layout->kind);
    if (job->engine->spread && job->spread_params == 0) stw_text_printf(&text, " in order");
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        stw_text_printf(&text, "|%d %d %d %u %llu %llu %llu %llu", (int)r->component, (int)r->tier,
                        (int)r->update, r->decision, (unsigned long long)r->first_param,
                        (unsigned long long)r->params, (unsigned long long)r->offset_bytes,
                        (unsigned long long)r->bytes);
    }
    for (int r = 0; r < STW_N_RINGS; r++)
        stw_text_printf(&text, "|%u %llu %llu", layout->rings[r].slots,
                        (unsigned long long)layout->rings[r].slot_bytes,
                        (unsigned long long)layout->rings[r].offset_bytes);
    stw_text_printf(&text, "|%u buckets", layout->n_buckets);
    for (int t = 0; t < STW_N_TIERS; t++)
        stw_text_printf(&text, "|%llu", (unsigned long long)layout->arena_bytes[t]);
    stw_status status = stw_text_status(&text, err);
    uint64_t hash = status == STW_STATUS_OK ? XXH3_64bits(text.data, text.length) : 0;
    snprintf(layout->hash, sizeof layout->hash, "%016llx", (unsigned long long)hash);
    stw_text_free(&text);
    return status;
}

stw_status stw_layout_new(const stw_job *job, const stw_decisions *decisions, uint32_t kind,
                          stw_layout **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_layout *layout = NULL;
    stw_pool *pool = stw_pool_new();
    if (pool != NULL) layout = stw_pool_alloc(pool, sizeof *layout);
    if (layout == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "layout", "out of memory");
    }
    layout->pool = pool;
    layout->kind = kind;
    STW_TRY(stw_decisions_check(job, decisions, err));
    STW_TRY(place_regions(job, decisions, layout, err));
    STW_TRY(cut_buckets(job, decisions, layout, err));
    place_rings(job, decisions, layout);
    STW_TRY(place_sync(job, layout, err));
    order_buckets(job, decisions, layout);
    STW_TRY(hash_layout(job, layout, err));
out:
    if (status == STW_STATUS_OK)
        *out = layout;
    else
        stw_layout_free(layout);
    return status;
}

void stw_layout_free(stw_layout *layout) {
    if (layout != NULL) stw_pool_free(layout->pool);
}

const stw_region *stw_layout_region(const stw_layout *layout, stw_component component,
                                    uint64_t param) {
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        if (r->component == component && param >= r->first_param &&
            param - r->first_param < r->params)
            return r;
    }
    return NULL;
}

uint64_t stw_layout_address(const stw_job *job, const stw_layout *layout, stw_component component,
                            uint64_t param) {
    const stw_region *r = stw_layout_region(layout, component, param);
    if (r == NULL) return UINT64_MAX;
    uint64_t inside = stw_times(param - r->first_param, stw_job_element_bytes(job, component));
    return stw_plus(r->offset_bytes, inside);
}

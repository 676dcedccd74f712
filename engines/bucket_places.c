/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/bucket_places.h"

#include <stdio.h>

/* Rounding of decimal shares that should sum to 1. */
static const double SHARE_TOLERANCE = 1e-6;

/* In canonical order. Gradients on the host with parameters on the GPU (or the reverse) cost the
 * link more than they free and are left out, as are CPU updates of state on NVMe. */
static const stw_place all_places[] = {
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
enum { N_PLACES = sizeof all_places / sizeof all_places[0] };

/* Does it leave parameters and gradients where a framework has them, which steps on the GPU? */
static bool is_inside(const stw_place *p) {
    return p->params == STW_TIER_GPU && p->grads == STW_TIER_GPU &&
           (p->update == STW_UPDATE_RESIDENT || p->update == STW_UPDATE_STREAM);
}

/* The updates that optimizer.implementation admits. */
static bool implementation_admits(stw_optimizer_implementation how, stw_update update) {
    switch (how) {
    case STW_OPTIMIZER_STREAMED:
        return update == STW_UPDATE_STREAM;
    case STW_OPTIMIZER_CPU:
        return update == STW_UPDATE_CPU;
    case STW_OPTIMIZER_DIRECT:
        return update == STW_UPDATE_DIRECT || update == STW_UPDATE_RESIDENT;
    case STW_OPTIMIZER_FUSED:
        return update != STW_UPDATE_CPU;
    default:
        return true;
    }
}

static bool wants(uint32_t wish, stw_tier tier) {
    return wish == STW_AUTO || wish == (uint32_t)tier;
}

static bool is_admissible(const stw_job *job, const stw_place *p) {
    const stw_run_spec *run = job->run;
    if (!wants(run->placement.params, p->params) || !wants(run->placement.grads, p->grads) ||
        !wants(run->placement.moments, p->moments))
        return false;
    if (run->precision.has_master && !wants(run->placement.master, p->moments)) return false;
    if (p->moments == STW_TIER_NVME && job->cluster->nvme.capacity_bytes == 0) return false;
    if (stw_run_spec_update_share(run, p->update) <= 0) return false;
    if (run->park.params && p->params != STW_TIER_GPU) return false;
    if (run->park.grads && p->grads != STW_TIER_GPU) return false;
    if (run->park.moments && p->moments != STW_TIER_GPU) return false;
    return implementation_admits(run->optimizer.implementation, p->update);
}

/* Every quantum needs an admissible place: those of a fixed share one of that update, the others
 * one of an update whose share is auto. */
static bool shares_have_places(const stw_job *job, const stw_place *places, uint32_t n,
                               stw_error *err) {
    uint32_t fixed = 0;
    bool any_free = false;
    for (int u = 0; u < STW_N_UPDATES; u++) {
        uint32_t quanta = stw_job_update_units(job, (stw_update)u);
        bool has_place = false;
        for (uint32_t i = 0; i < n; i++) has_place = has_place || places[i].update == (stw_update)u;
        if (quanta == STW_AUTO) {
            any_free = any_free || has_place;
            continue;
        }
        fixed += quanta;
        if (quanta == 0 || has_place) continue;
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "update",
                       "update.%s: no placement of its %u of %u quanta is admissible with "
                       "placement, optimizer.implementation and the cluster's tiers",
                       stw_update_name((stw_update)u), quanta, job->n_units);
        return false;
    }
    if (fixed == job->n_units || (fixed < job->n_units && any_free)) return true;
    (void)stw_fail(err, STW_STATUS_BAD_INPUT, "update",
                   "the fixed shares cover %u of %u quanta, and no update whose share is auto has "
                   "an admissible placement for the rest",
                   fixed, job->n_units);
    return false;
}

uint32_t stw_stowage_places(const stw_job *job, stw_place *places, stw_error *err) {
    const bool inside = stw_engine_steps_inside(&job->engine->spec);
    uint32_t n = 0;
    for (size_t i = 0; i < N_PLACES; i++)
        if ((!inside || is_inside(&all_places[i])) && is_admissible(job, &all_places[i]))
            places[n++] = all_places[i];
    if (n > 0) return shares_have_places(job, places, n, err) ? n : 0;
    const uint32_t moments = job->run->placement.moments, master = job->run->placement.master;
    if (job->cluster->nvme.capacity_bytes == 0 &&
        (moments == STW_TIER_NVME || master == STW_TIER_NVME))
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "placement",
                       "placement.%s: nvme needs node.nvme.capacity > 0",
                       moments == STW_TIER_NVME ? "moments" : "master");
    else
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "placement",
                       "no placement is admissible with placement, optimizer.implementation and "
                       "update as they are; set one of them to auto");
    return 0;
}

/* ---- shares of the updates ---- */

static const char *const share_keys[STW_N_UPDATES] = {[STW_UPDATE_RESIDENT] = "update.resident",
                                                      [STW_UPDATE_STREAM] = "update.stream",
                                                      [STW_UPDATE_DIRECT] = "update.direct",
                                                      [STW_UPDATE_CPU] = "update.cpu"};
static const char *const implementation_words[] = {
    [STW_OPTIMIZER_AUTO] = "auto",       [STW_OPTIMIZER_FUSED] = "fused",
    [STW_OPTIMIZER_FOREACH] = "foreach", [STW_OPTIMIZER_STREAMED] = "streamed",
    [STW_OPTIMIZER_CPU] = "cpu",         [STW_OPTIMIZER_DIRECT] = "direct",
    [STW_OPTIMIZER_STOWAGE] = "stowage"};

/* Refuse a share because of a tier or an implementation. */
static stw_status refuse_share(const stw_run_spec *run, const char *origin, stw_error *err,
                               stw_update update, const char *key, const char *value) {
    char expected[128];
    snprintf(expected, sizeof expected, "auto or 0, because %s is %s", key, value);
    return stw_run_spec_refuse_value(run, origin, err, share_keys[update], expected);
}

/* Does some placement of this update have the component in this tier? */
static bool can_place(stw_update update, stw_component component, uint32_t tier) {
    for (size_t i = 0; i < N_PLACES; i++)
        if (all_places[i].update == update &&
            (uint32_t)stw_place_tier(&all_places[i], component) == tier)
            return true;
    return false;
}

static stw_status check_share(const stw_run_spec *run, stw_update update, const char *origin,
                              stw_error *err) {
    const struct {
        const char *key;
        uint32_t tier;
        stw_component component;
    } placed[] = {{"placement.params", run->placement.params, STW_COMPONENT_PARAMS},
                  {"placement.grads", run->placement.grads, STW_COMPONENT_GRADS},
                  {"placement.master", run->placement.master, STW_COMPONENT_MASTER},
                  {"placement.moments", run->placement.moments, STW_COMPONENT_EXP_AVG}};
    if (!implementation_admits(run->optimizer.implementation, update))
        return refuse_share(run, origin, err, update, "optimizer.implementation",
                            implementation_words[run->optimizer.implementation]);
    for (size_t i = 0; i < sizeof placed / sizeof placed[0]; i++)
        if (placed[i].tier != STW_AUTO && !can_place(update, placed[i].component, placed[i].tier))
            return refuse_share(run, origin, err, update, placed[i].key,
                                stw_tier_name((stw_tier)placed[i].tier));
    return STW_STATUS_OK;
}

stw_status stw_stowage_check_shares(const stw_run_spec *run, const char *origin, stw_error *err) {
    static const char keys[] = "update.resident, update.stream, update.direct, update.cpu";
    double sum = 0;
    bool any_free = false;
    char found[48];
    for (int u = 0; u < STW_N_UPDATES; u++) {
        double share = stw_run_spec_update_share(run, (stw_update)u);
        if (share >= STW_AUTO_NUMBER) {
            any_free = true;
            continue;
        }
        sum += share;
        if (share <= 0) continue;
        stw_status status = check_share(run, (stw_update)u, origin, err);
        if (status != STW_STATUS_OK) return status;
    }
    if (sum <= 1 + SHARE_TOLERANCE && (any_free || sum >= 1 - SHARE_TOLERANCE))
        return STW_STATUS_OK;
    snprintf(found, sizeof found, "a sum of %.9g", sum);
    return stw_run_spec_refuse(origin, err, keys, found,
                               any_free ? "a sum of at most 1"
                                        : "a sum of 1, because no share is auto");
}

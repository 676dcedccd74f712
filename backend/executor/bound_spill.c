/* SPDX-License-Identifier: Apache-2.0 */
/* State that host memory has no room for goes to NVMe: that of the last elements, which are updated
 * last. */
#include "backend/executor/bound.h"
#include "core/checked.h"

/* The placement that is streamed from the host; n_state: none. */
static uint32_t find_streamed(const stw_decisions *d) {
    uint32_t i = 0;
    while (i < d->n_state && (d->state[i].units == 0 || d->state[i].place.moments != STW_TIER_HOST))
        i++;
    return i;
}

/* Keep `units` of it on the host. */
static stw_status derive(stw_plan *plan, const stw_decisions *whole, uint32_t streamed,
                         uint32_t units, stw_bound_sizes *sizes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_decisions *d = &plan->decisions;
    stw_state_decision rest = whole->state[streamed];
    rest.place.moments = STW_TIER_NVME;
    rest.units -= units;
    *d = *whole;
    d->state[streamed].units = units;
    if (units == 0)
        d->state[streamed] = rest;
    else if (rest.units > 0)
        d->state[d->n_state++] = rest;
    STW_TRY(stw_plan_derive(plan, err));
    STW_TRY(stw_bound_measure(plan, sizes, err));
out:
    return status;
}

static stw_status spill(stw_plan *plan, const stw_decisions *whole, uint64_t host_bytes,
                        stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t streamed = find_streamed(whole);
    stw_bound_sizes sizes;
    uint64_t unit_bytes = 0;
    if (streamed + 1 != whole->n_state || whole->n_state == STW_MAX_PLACES)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "plan",
                        "found no state that is streamed from the host, or some on NVMe");
    for (int c = STW_COMPONENT_MASTER; c < STW_N_STATE; c++)
        unit_bytes =
            stw_plus(unit_bytes, stw_times(plan->job->unit_params,
                                           stw_job_element_bytes(plan->job, (stw_component)c)));
    STW_TRY(derive(plan, whole, streamed, 0, &sizes, err));
    if (sizes.host_bytes > host_bytes)
        STW_TRY(stw_fail(err, STW_STATUS_NO_RESOURCES, "host memory",
                         "found %llu bytes, expected at least %llu for the slots of buckets that "
                         "pass from and to NVMe",
                         (unsigned long long)host_bytes, (unsigned long long)sizes.host_bytes));
    uint64_t units = stw_min_u64((host_bytes - sizes.host_bytes) / unit_bytes,
                                 whole->state[streamed].units - 1u);
    for (; units > 0; units--) { /* regions are rounded up */
        STW_TRY(derive(plan, whole, streamed, (uint32_t)units, &sizes, err));
        if (sizes.host_bytes <= host_bytes) break;
    }
    if (units == 0) STW_TRY(derive(plan, whole, streamed, 0, &sizes, err));
    if (sizes.nvme_bytes > plan->cluster.nvme.capacity_bytes)
        STW_TRY(stw_fail(err, STW_STATUS_NO_RESOURCES, "node.nvme.capacity",
                         "found %llu bytes, expected at least %llu for state that host memory has "
                         "no room for",
                         (unsigned long long)plan->cluster.nvme.capacity_bytes,
                         (unsigned long long)sizes.nvme_bytes));
out:
    return status;
}

stw_status stw_bound_spill(stw_plan *plan, uint64_t host_bytes, stw_error *err) {
    const stw_decisions whole = plan->decisions;
    stw_bound_sizes sizes;
    stw_status status = stw_bound_measure(plan, &sizes, err);
    if (status != STW_STATUS_OK || sizes.host_bytes <= host_bytes) return status;
    status = spill(plan, &whole, host_bytes, err);
    if (status == STW_STATUS_OK) return status;
    plan->decisions = whole;
    stw_status again = stw_plan_derive(plan, err); /* what it was; only memory can be short */
    return again == STW_STATUS_OK ? status : again;
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* pread */
#include "backend/executor/resume_kept.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/host/kernels.h"
#include "core/checked.h"

#define PART_BYTES (1u << 20)

bool stw_resume_kept_is(const char *path) {
    stw_kept_list list;
    if (stw_kept_scan(path, &list, NULL) != STW_STATUS_OK) return false;
    const bool any = list.n > 0;
    stw_kept_list_free(&list);
    return any;
}

void stw_resume_kept_close(stw_resume_kept *kept) { stw_kept_list_free(&kept->list); }

/* What lay elsewhere went with the run. */
static stw_status check_regions(const stw_rank_run *run, stw_error *err) {
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *r = &run->layout->regions[i];
        const bool state = r->component == STW_COMPONENT_MASTER ||
                           r->component == STW_COMPONENT_EXP_AVG ||
                           r->component == STW_COMPONENT_EXP_AVG_SQ;
        if (state && r->tier != STW_TIER_NVME && r->params > 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, run->options->resume,
                            "found a plan with %s of %" PRIu64 " elements on %s, which went with "
                            "the run; expected all of it on NVMe, or a checkpoint",
                            stw_component_name(r->component), r->params, stw_tier_name(r->tier));
    }
    if (run->types.master != STW_ELEMENT_NONE) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, run->options->resume,
                    "found a plan without a master, whose parameters went with the run; expected "
                    "precision.master: fp32, or a checkpoint");
}

stw_status stw_resume_kept_open(const stw_rank_run *run, stw_resume_kept *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_kept_check check = {0};
    char why[160] = "";
    int whole = -1;
    STW_TRY(stw_kept_scan(run->options->resume, &out->list, err));
    for (uint32_t i = 0; i < out->list.n; i++) {
        const stw_kept *k = out->list.files[i];
        if (k->problem != NULL || k->header.rank != run->ranks.rank ||
            k->header.world != run->ranks.world ||
            strcmp(k->header.plan, run->plan->layouts[0]->hash) != 0)
            continue;
        out->file = k;
        whole = stw_kept_whole(&out->list, i, why, sizeof why);
    }
    if (out->file == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, run->options->resume,
                         "holds no state of rank %u of %u of this plan (layout %s); NVMe state is "
                         "resumed with the plan and the options (--keep-state) that wrote it",
                         run->ranks.rank, run->ranks.world, run->plan->layouts[0]->hash));
    STW_TRY(check_regions(run, err));
    if (out->file->live)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, out->file->path, "process %" PRId64 " uses it",
                         out->file->header.pid));
    if (whole < 0) STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, out->file->path, "%s", why));
    out->step = out->file->steps[whole];
    STW_TRY(stw_kept_verify(out->file, &out->step, &check, err));
    if (check.damaged > 0)
        status =
            stw_fail(err, STW_STATUS_DISAGREE, out->file->path,
                     "the state of step %" PRIu64 " is damaged: %s", out->step.step, check.first);
out:
    return status;
}

/* ---- loading ---- */

static stw_status read_kept(const stw_resume_kept *kept, uint64_t offset, void *to, uint64_t bytes,
                            stw_error *err) {
    const stw_nvme_header *h = &kept->file->header;
    stw_nvme_places places;
    if (!stw_nvme_places_of(h->bytes, h->n_cuts, h->n_cells, &places) || bytes > h->bytes ||
        offset > h->bytes - bytes)
        return stw_fail(err, STW_STATUS_BAD_INPUT, kept->file->path, "is shorter than the plan's");
    offset += places.copies[kept->step.copy];
    for (uint64_t done = 0; done < bytes;) {
        const ssize_t got = pread(kept->file->file, (unsigned char *)to + done,
                                  (size_t)(bytes - done), (off_t)(offset + done));
        if (got > 0)
            done += (uint64_t)got;
        else if (got == 0 || errno != EINTR)
            return stw_fail_native(err, STW_STATUS_IO, errno, kept->file->path,
                                   "cannot be read at byte %" PRIu64, offset + done);
    }
    return STW_STATUS_OK;
}

static stw_status load_region(const stw_rank_run *run, const stw_resume_kept *kept,
                              const stw_region *r, unsigned char *part, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_nvme *nvme = run->backend->nvme(run->device);
    for (uint64_t done = 0, n = 0; done < r->bytes; done += n) {
        n = stw_min_u64(r->bytes - done, PART_BYTES);
        STW_TRY(read_kept(kept, r->offset_bytes + done, part, n, err));
        STW_TRY(stw_nvme_write(nvme, r->offset_bytes + done, part, n, err));
    }
out:
    return status;
}

/* Parameters that are the masters of a region, as they are stored. */
static stw_status make_params(const stw_rank_run *run, const stw_resume_kept *kept,
                              const stw_region *master, const stw_region *params,
                              unsigned char *part, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t each = stw_element_bytes(run->types.params), most = PART_BYTES / 8;
    unsigned char *rounded = part + PART_BYTES / 2;
    stw_overlap o;
    stw_meet meet = stw_meet_begin(stw_region_view(master, &run->spaces[master->space]),
                                   stw_region_view(params, &run->spaces[params->space]));
    while (stw_meet_next_run(&meet, &o))
        for (uint64_t done = 0, n = 0; done < o.n; done += n) {
            n = stw_min_u64(o.n - done, most);
            const uint64_t from = o.a_first + done - master->first_param,
                           to = o.b_first + done - params->first_param;
            STW_TRY(read_kept(kept, master->offset_bytes + stw_times(from, 4), part, 4 * n, err));
            stw_host_convert(NULL, rounded, run->types.params, part, STW_DTYPE_F32, n);
            STW_TRY(run->backend->put(
                run->device, stw_at(params->tier, params->offset_bytes + stw_times(to, each)),
                rounded, stw_times(n, each), err));
        }
out:
    return status;
}

stw_status stw_resume_kept_load(const stw_rank_run *run, const stw_resume_kept *kept,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unsigned char *part = malloc(PART_BYTES);
    if (part == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "--resume", "out of memory");
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *r = &run->layout->regions[i];
        if (r->tier == STW_TIER_NVME) STW_TRY(load_region(run, kept, r, part, err));
        for (uint32_t p = 0; r->component == STW_COMPONENT_MASTER && p < run->layout->n_regions;
             p++)
            if (run->layout->regions[p].component == STW_COMPONENT_PARAMS)
                STW_TRY(make_params(run, kept, r, &run->layout->regions[p], part, err));
    }
out:
    free(part);
    return status;
}

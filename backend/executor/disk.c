/* SPDX-License-Identifier: Apache-2.0 */
/* State on NVMe: where the transfers of steps begin and end, whose state it is, and when all ranks
 * have committed a step. */
#define _GNU_SOURCE /* getrandom */
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "backend/executor/run.h"
#include "backend/process.h"

/* Ends of what steps read and write, as the program has them. */
static stw_status find_cuts(const stw_program *program, stw_pool *pool, stw_nvme_shape *shape,
                            stw_error *err) {
    uint64_t n = 0, *cuts;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        n += op->kind == STW_OP_NVME_READ || op->kind == STW_OP_NVME_WRITE ? 2 : 0;
    }
    cuts = stw_pool_array(pool, n, sizeof *cuts);
    if (cuts == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if (op->kind != STW_OP_NVME_READ && op->kind != STW_OP_NVME_WRITE) continue;
        uint64_t at = op->kind == STW_OP_NVME_READ ? op->from_offset_bytes : op->offset_bytes;
        cuts[shape->n_cuts++] = at;
        cuts[shape->n_cuts++] = at + op->bytes;
    }
    shape->cuts = cuts;
    return STW_STATUS_OK;
}

stw_status stw_exec_nvme_shape(const stw_layout *layout, const stw_program *program, stw_pool *pool,
                               stw_nvme_shape *out, stw_error *err) {
    if (layout->arena_bytes[STW_TIER_NVME] == 0) return STW_STATUS_OK;
    stw_nvme_part *parts = stw_pool_array(pool, layout->n_regions, sizeof(stw_nvme_part));
    if (parts == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *region = &layout->regions[i];
        if (region->tier != STW_TIER_NVME) continue;
        stw_nvme_part *part = &parts[out->n_parts++];
        snprintf(part->name, sizeof part->name, "%s", stw_component_name(region->component));
        part->first = region->offset_bytes;
        part->bytes = region->bytes;
    }
    out->parts = parts;
    return find_cuts(program, pool, out, err);
}

static uint64_t random_number(void) {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) == (ssize_t)sizeof number) return number;
    return ((uint64_t)time(NULL) << 24) ^ ((uint64_t)getpid() << 40) ^
           (uint64_t)(1e9 * stw_process_now_s());
}

/* Does any rank's state survive its process? The same on all ranks. */
static bool any_keeps_state(const stw_rank_run *run) {
    if (run->config.nvme_copies != 2) return false;
    for (uint32_t k = 0; k < run->job->n_kinds; k++)
        if (run->plan->layouts[k]->arena_bytes[STW_TIER_NVME] > 0) return true;
    return false;
}

/* Does this rank's? */
static bool keeps_state(const stw_rank_run *run) {
    return run->config.nvme_copies == 2 && run->backend->nvme(run->device) != NULL;
}

stw_status stw_exec_own_state(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t mine = random_number();
    if (!any_keeps_state(run)) return status;
    uint64_t *all = calloc(run->ranks.world, sizeof *all);
    if (all == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory");
    STW_TRY(stw_exec_gather(run, &mine, all, sizeof mine, err));
    if (!keeps_state(run)) goto out;
    const stw_nvme_owner owner = {.run = all[0],
                                  .rank = run->ranks.rank,
                                  .world = run->ranks.world,
                                  .local_rank = run->ranks.local_rank,
                                  .local_world = run->ranks.local_world,
                                  .plan = run->plan->layouts[0]->hash};
    STW_TRY(stw_nvme_own(run->backend->nvme(run->device), &owner, err));
out:
    free(all);
    return status;
}

/* Without this a rank that is ahead could overwrite the step before, which is the last one that the
 * others have. */
stw_status stw_exec_agree_state(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (run->step == 0 || !any_keeps_state(run)) return status;
    STW_TRY(stw_comm_barrier(run->comm, err));
    if (keeps_state(run)) STW_TRY(stw_nvme_agree(run->backend->nvme(run->device), run->step, err));
out:
    return status;
}

void stw_exec_end_state(stw_rank_run *run) {
    if (run->device != NULL && !run->failed && keeps_state(run))
        stw_nvme_release(run->backend->nvme(run->device));
}

void stw_exec_bucket_words(const stw_rank_run *run, uint32_t bucket, char *out, size_t out_size) {
    snprintf(out, out_size, "bucket %u", bucket);
    if (bucket >= run->layout->n_buckets) return;
    const stw_bucket *b = &run->layout->buckets[bucket];
    const stw_model *model = run->job->model;
    stw_meet meet =
        stw_meet_begin((stw_view){&run->spaces[STW_SPACE_OPTIMIZER], b->first_param, b->params},
                       stw_space_whole(&run->job->files));
    stw_overlap part;
    uint32_t first = UINT32_MAX, last = 0;
    while (stw_meet_next(&meet, &part)) {
        if (first == UINT32_MAX) first = part.tensor;
        last = part.tensor;
    }
    if (first == last)
        snprintf(out, out_size, "bucket %u (%.100s)", bucket, model->tensors[first].name);
    else if (first != UINT32_MAX)
        snprintf(out, out_size, "bucket %u (%.100s to %.100s)", bucket, model->tensors[first].name,
                 model->tensors[last].name);
}

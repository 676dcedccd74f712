/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/deepspeed/uses.h"

#include "blocks/block_tensors.h"
#include "blocks/calls.h"

/* False: they are not known, or a tensor is in no call or in two. */
static bool find_calls(const stw_job *job, uint32_t block, stw_calls *calls, stw_uses *out) {
    const stw_block *blk = &job->model->blocks[block];
    uint32_t n = 0;
    if (!stw_group_is_known(job, blk->group)) return false;
    stw_calls_of_block(job, block, false, calls);
    for (uint32_t i = 0; i < calls->n; i++) n += stw_call_uses(job, block, &calls->list[i], NULL);
    if (n != blk->n_tensors) return false;
    n = 0;
    for (uint32_t i = 0; i < calls->n; i++) {
        out->first[i] = n;
        n += stw_call_uses(job, block, &calls->list[i], out->tensors + n);
    }
    out->first[calls->n] = n;
    return true;
}

bool stw_uses_find(const stw_job *job, stw_pool *pool, stw_uses *out) {
    const stw_model *model = job->model;
    stw_calls *calls = stw_pool_alloc(pool, sizeof *calls);
    if (calls == NULL) return false;
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        const stw_block *blk = &model->blocks[b];
        stw_uses *u = &out[blk->group];
        if (u->tensors != NULL) continue;
        u->tensors = stw_pool_array(pool, (size_t)blk->n_tensors + 1, sizeof *u->tensors);
        u->first = stw_pool_array(pool, STW_MOST_CALLS + 1, sizeof *u->first);
        if (u->tensors == NULL || u->first == NULL) return false;
        if (find_calls(job, b, calls, u)) continue;
        u->first = NULL;
        for (uint32_t i = 0; i < blk->n_tensors; i++) u->tensors[i] = i;
    }
    return true;
}

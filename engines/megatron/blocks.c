/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/megatron/blocks.h"

#include <string.h>

static bool has_name(const stw_job *job, uint32_t block, const char *name) {
    const char *own = job->model->groups[job->model->blocks[block].group].name;
    return own[0] == name[0] && strcmp(own, name) == 0; /* asked of every block of every pass */
}

bool stw_megatron_is_embedding(const stw_job *job, uint32_t block) {
    return has_name(job, block, "embed");
}

bool stw_megatron_is_head(const stw_job *job, uint32_t block) {
    return has_name(job, block, "head");
}

bool stw_megatron_is_mtp(const stw_job *job, uint32_t block) {
    return has_name(job, block, STW_MEGATRON_MTP_GROUP);
}

bool stw_megatron_is_layer(const stw_job *job, uint32_t block) {
    const stw_block_facts *f = &job->model->groups[job->model->blocks[block].group].facts;
    return f->transformer && !f->vision && !stw_megatron_is_mtp(job, block);
}

uint32_t stw_megatron_layers(const stw_job *job) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < job->model->n_blocks; b++) n += stw_megatron_is_layer(job, b);
    return n;
}

uint32_t stw_megatron_mtp_layers(const stw_job *job) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < job->model->n_blocks; b++) n += stw_megatron_is_mtp(job, b);
    return n;
}

uint32_t stw_megatron_chunk_of(const stw_job *job, uint32_t block) { return job->chunks[block]; }

uint32_t stw_megatron_mtp_chunk(const stw_job *job) {
    for (uint32_t b = 0; b < job->model->n_blocks; b++)
        if (stw_megatron_is_mtp(job, b)) return job->chunks[b];
    return 0;
}

uint32_t stw_megatron_norm_chunk(const stw_job *job) {
    uint32_t chunk = job->run->parallel.pp * job->run->parallel.vpp - 1;
    for (uint32_t b = 0; b < job->model->n_blocks; b++)
        if (has_name(job, b, "norm")) chunk = job->chunks[b];
    return chunk;
}

static bool is_before_layers(const stw_job *job, uint32_t block) {
    return stw_megatron_is_embedding(job, block) || has_name(job, block, "positions");
}

bool stw_megatron_is_copy(const stw_job *job, uint32_t chunk, uint32_t block) {
    const uint32_t last = job->run->parallel.pp * job->run->parallel.vpp - 1;
    if (chunk == 0) return false;
    if (chunk == last && job->model->tied_embeddings && stw_megatron_is_embedding(job, block))
        return true;
    return is_before_layers(job, block) && chunk == stw_megatron_mtp_chunk(job);
}

bool stw_megatron_builds(const stw_job *job, uint32_t chunk, uint32_t block) {
    return job->chunks[block] == chunk || stw_megatron_is_copy(job, chunk, block);
}

bool stw_megatron_holds(const stw_job *job, uint32_t stage, uint32_t block) {
    const stw_parallel *p = &job->run->parallel;
    for (uint32_t chunk = stage; chunk < p->pp * p->vpp; chunk += p->pp)
        if (stw_megatron_builds(job, chunk, block)) return true;
    return false;
}

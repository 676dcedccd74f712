/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* fnmatch */
#include "plan/job/job.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"

/* ---- partition ---- */

/* Rows along which a tensor is cut: a routed expert tensor is cut by ep x etp over experts and rows
 * first, everything else by its first dimension alone. */
static void shard_range(const stw_job *job, const stw_tensor *tensor, uint32_t position,
                        uint64_t *first, uint64_t *count) {
    uint64_t rows = tensor->rank > 0 ? tensor->shape[0] : 1;
    uint64_t row = rows > 0 ? tensor->numel / rows : 0;
    uint64_t base = 0;
    uint32_t parts = job->group, part = position;
    if (tensor->expert && job->expert_cut > 1) {
        uint64_t mine = tensor->numel / job->expert_cut;
        base = mine * (position % job->expert_cut);
        part = position / job->expert_cut;
        parts = job->expert_group;
        rows = stw_div_up_u64(mine, row > 0 ? row : 1);
        if (rows * row !=
            mine) { /* etp cuts inside an expert: go on row by row of the next dimension */
            row = tensor->rank > 1 && tensor->shape[1] > 0 ? row / tensor->shape[1] : 1;
            rows = mine / row;
        }
    }
    uint64_t chunk = stw_div_up_u64(rows, parts);
    uint64_t begin = stw_min_u64(rows, chunk * part), end = stw_min_u64(rows, begin + chunk);
    *first = base + begin * row;
    *count = (end - begin) * row;
}

static stw_status cut_sizes(stw_job *job, stw_error *err) {
    const stw_run_spec *run = job->run;
    const stw_cluster *cluster = job->cluster;
    job->ranks_per_node = cluster->gpus > 0 ? cluster->gpus : 1;
    job->world = cluster->nodes * job->ranks_per_node;
    uint32_t rest = run->parallel.dp_replicate * run->parallel.cp;
    if (run->parallel.dp_shard == STW_AUTO) {
        if (rest == 0 || job->world % rest != 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel",
                            "dp_replicate %u x cp %u does not divide the cluster's %u GPUs",
                            run->parallel.dp_replicate, run->parallel.cp, job->world);
        job->dp_shard = job->world / rest;
    } else {
        job->dp_shard = run->parallel.dp_shard;
    }
    if ((uint64_t)job->dp_shard * rest != job->world)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel",
                        "dp_shard %u x dp_replicate %u x cp %u needs %llu GPUs, the cluster has %u",
                        job->dp_shard, run->parallel.dp_replicate, run->parallel.cp,
                        (unsigned long long)job->dp_shard * rest, job->world);
    job->group = job->dp_shard * run->parallel.cp;
    job->expert_cut = run->parallel.ep * run->parallel.etp;
    if (job->expert_cut == 0 || job->group % job->expert_cut != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.ep",
                        "ep %u x etp %u does not divide the sharding group of %u ranks",
                        run->parallel.ep, run->parallel.etp, job->group);
    job->expert_group = job->group / job->expert_cut;
    if (run->batch.seq_len % run->parallel.cp != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.cp",
                        "cp %u does not divide batch.seq_len %llu", run->parallel.cp,
                        (unsigned long long)run->batch.seq_len);
    uint64_t tokens;
    stw_status status = stw_mul_u64(run->batch.micro_batch, run->batch.seq_len, &tokens,
                                    "tokens of a micro batch", err);
    job->tokens = tokens / run->parallel.cp;
    return status;
}

static stw_status check_experts(const stw_job *job, stw_error *err) {
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        const stw_tensor *tensor = &job->model->tensors[t];
        if (tensor->expert && tensor->numel % job->expert_cut != 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.ep",
                            "ep x etp = %u does not divide the %llu elements of %s",
                            job->expert_cut, (unsigned long long)tensor->numel, tensor->name);
    }
    return STW_STATUS_OK;
}

/* ---- kinds ---- */

static uint64_t shards_fingerprint(const stw_job *job, uint32_t rank) {
    uint64_t hash = 1469598103934665603ull;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        uint64_t first, count;
        shard_range(job, &job->model->tensors[t], rank % job->group, &first, &count);
        hash = (hash ^ count) * 1099511628211ull;
    }
    return hash;
}

static stw_status fill_kind(stw_job *job, stw_rank_kind *kind, uint32_t rank, stw_error *err) {
    kind->block_params = stw_pool_array(job->pool, job->model->n_blocks, sizeof(uint64_t));
    kind->ranks = stw_pool_array(job->pool, job->world, sizeof(uint32_t));
    if (kind->block_params == NULL || kind->ranks == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "kinds of rank", "out of memory");
    kind->first = rank == 0;
    kind->leader = rank % job->ranks_per_node == 0;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        uint64_t first, count;
        shard_range(job, &job->model->tensors[t], rank % job->group, &first, &count);
        kind->block_params[job->model->tensors[t].block] += count;
        kind->params += count;
    }
    return STW_STATUS_OK;
}

static void name_kind(const stw_job *job, stw_rank_kind *kind, uint32_t index) {
    const char *base = kind->first ? "rank0" : kind->leader ? "leader" : "rank";
    uint32_t same = 1;
    for (uint32_t k = 0; k < index; k++)
        if (job->kinds[k].first == kind->first && job->kinds[k].leader == kind->leader) same++;
    if (same == 1)
        snprintf(kind->name, sizeof kind->name, "%s", base);
    else
        snprintf(kind->name, sizeof kind->name, "%s-%u", base, same);
}

static stw_status find_kinds(stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t distinct = job->group;
    uint64_t *prints = stw_pool_array(job->pool, distinct, sizeof(uint64_t));
    uint64_t *kind_prints = NULL;
    size_t capacity = 0, print_capacity = 0;
    if (prints == NULL) goto no_memory;
    for (uint32_t s = 0; s < distinct; s++) prints[s] = shards_fingerprint(job, s);
    for (uint32_t rank = 0; rank < job->world; rank++) {
        uint64_t print = prints[rank % job->group];
        bool first = rank == 0, leader = rank % job->ranks_per_node == 0;
        uint32_t k = 0;
        while (k < job->n_kinds && !(kind_prints[k] == print && job->kinds[k].first == first &&
                                     job->kinds[k].leader == leader))
            k++;
        if (k == job->n_kinds) {
            job->kinds =
                stw_pool_grow(job->pool, job->kinds, k, k + 1, &capacity, sizeof(stw_rank_kind));
            kind_prints =
                stw_pool_grow(job->pool, kind_prints, k, k + 1, &print_capacity, sizeof(uint64_t));
            if (job->kinds == NULL || kind_prints == NULL) goto no_memory;
            kind_prints[k] = print;
            STW_TRY(fill_kind(job, &job->kinds[k], rank, err));
            name_kind(job, &job->kinds[k], k);
            job->n_kinds++;
        }
        job->kinds[k].ranks[job->kinds[k].n_ranks++] = rank;
        if (job->kinds[k].params > job->kinds[job->largest].params) job->largest = k;
    }
out:
    return status;
no_memory:
    return stw_fail(err, STW_STATUS_NO_MEMORY, "kinds of rank", "out of memory");
}

static stw_status find_node_kinds(stw_job *job, stw_error *err) {
    size_t capacity = 0;
    uint32_t *counts = stw_pool_array(job->pool, job->n_kinds, sizeof(uint32_t));
    if (counts == NULL) goto no_memory;
    for (uint32_t node = 0; node < job->cluster->nodes; node++) {
        memset(counts, 0, job->n_kinds * sizeof(uint32_t));
        for (uint32_t i = 0; i < job->ranks_per_node; i++)
            counts[stw_job_kind_of(job, node * job->ranks_per_node + i)]++;
        uint32_t n = 0;
        while (n < job->n_node_kinds &&
               memcmp(job->node_kinds[n].kind_ranks, counts, job->n_kinds * sizeof(uint32_t)) != 0)
            n++;
        if (n == job->n_node_kinds) {
            job->node_kinds = stw_pool_grow(job->pool, job->node_kinds, n, n + 1, &capacity,
                                            sizeof(stw_host_kind));
            if (job->node_kinds == NULL) goto no_memory;
            stw_host_kind *kind = &job->node_kinds[n];
            *kind =
                (stw_host_kind){0, node, stw_pool_array(job->pool, job->n_kinds, sizeof(uint32_t))};
            if (kind->kind_ranks == NULL) goto no_memory;
            memcpy(kind->kind_ranks, counts, job->n_kinds * sizeof(uint32_t));
            job->n_node_kinds++;
        }
        job->node_kinds[n].n_nodes++;
    }
    return STW_STATUS_OK;
no_memory:
    return stw_fail(err, STW_STATUS_NO_MEMORY, "kinds of node", "out of memory");
}

stw_status stw_job_new(const stw_model *model, const stw_cluster *cluster, const stw_run_spec *run,
                       stw_job **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_job *job = NULL;
    stw_pool *pool = stw_pool_new();
    if (pool != NULL) job = stw_pool_alloc(pool, sizeof *job);
    if (job == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "job", "out of memory");
    }
    job->pool = pool;
    job->model = model;
    job->cluster = cluster;
    job->run = run;
    STW_TRY(cut_sizes(job, err));
    STW_TRY(check_experts(job, err));
    STW_TRY(find_kinds(job, err));
    STW_TRY(find_node_kinds(job, err));
    /* Quanta are whole multiples of 1024 elements, so that fp32 regions stay page-aligned. */
    uint64_t most = job->kinds[job->largest].params;
    uint64_t quantum = stw_round_up_u64(stw_div_up_u64(most, STW_MAX_UNITS), 2048);
    job->unit_params = stw_max_u64(quantum, 2048);
    job->n_units = (uint32_t)stw_div_up_u64(most, job->unit_params);
out:
    if (status == STW_STATUS_OK)
        *out = job;
    else
        stw_job_free(job);
    return status;
}

void stw_job_free(stw_job *job) {
    if (job != NULL) stw_pool_free(job->pool);
}

/* ---- questions ---- */

uint32_t stw_job_kind_of(const stw_job *job, uint32_t rank) {
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const stw_rank_kind *kind = &job->kinds[k];
        uint32_t low = 0, high = kind->n_ranks;
        while (low < high) {
            uint32_t mid = low + (high - low) / 2;
            if (kind->ranks[mid] < rank)
                low = mid + 1;
            else
                high = mid;
        }
        if (low < kind->n_ranks && kind->ranks[low] == rank) return k;
    }
    return 0;
}

stw_status stw_job_segments(const stw_job *job, uint32_t rank, stw_pool *pool,
                            stw_segment **segments, uint32_t *n_segments, stw_error *err) {
    stw_segment *list = stw_pool_array(pool, job->model->n_tensors, sizeof *list);
    if (list == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "segments", "out of memory");
    uint32_t n = 0;
    uint64_t flat = 0, global = 0;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        const stw_tensor *tensor = &job->model->tensors[t];
        uint64_t first, count;
        shard_range(job, tensor, rank % job->group, &first, &count);
        if (count > 0) list[n++] = (stw_segment){t, first, flat, global + first, count};
        flat += count;
        global += tensor->numel;
    }
    *segments = list;
    *n_segments = n;
    return STW_STATUS_OK;
}

uint64_t stw_job_element_bytes(const stw_job *job, stw_component component) {
    const stw_run_spec *run = job->run;
    switch (component) {
    case STW_COMPONENT_PARAMS:
        return stw_dtype_bits(run->precision.params) / 8;
    case STW_COMPONENT_GRADS:
        return stw_dtype_bits(run->precision.grads) / 8;
    case STW_COMPONENT_MASTER:
        return run->precision.has_master ? 4 : 0;
    case STW_COMPONENT_EXP_AVG:
        return stw_dtype_bits(run->precision.exp_avg) / 8;
    case STW_COMPONENT_EXP_AVG_SQ:
        return stw_dtype_bits(run->precision.exp_avg_sq) / 8;
    default:
        return 0;
    }
}

uint32_t stw_job_update_units(const stw_job *job, stw_update update) {
    static const stw_update order[] = {STW_UPDATE_RESIDENT, STW_UPDATE_STREAM, STW_UPDATE_DIRECT,
                                       STW_UPDATE_CPU};
    double before = 0;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        double share = stw_run_spec_update_share(job->run, order[i]);
        bool is_free = share >= STW_AUTO_NUMBER;
        if (!is_free && share > 1) share = 1; /* of a spec that was not checked */
        if (order[i] != update) {
            if (!is_free) before += share;
            continue;
        }
        if (is_free) return STW_AUTO;
        double first = before * job->n_units + 0.5, end = (before + share) * job->n_units + 0.5;
        return (uint32_t)end - (uint32_t)first;
    }
    return STW_AUTO;
}

uint32_t stw_job_param_group(const stw_job *job, uint32_t tensor) {
    const stw_tensor *t = &job->model->tensors[tensor];
    for (uint32_t g = 0; g < job->run->optimizer.n_groups; g++) {
        const stw_strings *match = &job->run->optimizer.groups[g].match;
        for (uint32_t i = 0; i < match->n; i++) {
            bool by_shape = strcmp(match->items[i], "1d") == 0;
            if (by_shape ? t->rank == 1 : fnmatch(match->items[i], t->name, 0) == 0) return g + 1;
        }
    }
    return 0;
}

uint64_t stw_job_optimizer_bytes(const stw_job *job) {
    return stw_job_element_bytes(job, STW_COMPONENT_MASTER) +
           stw_job_element_bytes(job, STW_COMPONENT_EXP_AVG) +
           stw_job_element_bytes(job, STW_COMPONENT_EXP_AVG_SQ);
}

uint64_t stw_job_gathered_params(const stw_job *job, uint32_t block) {
    const stw_block *b = &job->model->blocks[block];
    uint64_t params = 0;
    for (uint32_t t = b->first_tensor; t < b->first_tensor + b->n_tensors; t++) {
        const stw_tensor *tensor = &job->model->tensors[t];
        params += tensor->expert ? tensor->numel / job->expert_cut : tensor->numel;
    }
    return params;
}

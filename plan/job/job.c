/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* fnmatch */
#include "plan/job/job.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "plan/job/images.h"
#include "plan/job/trainable.h"

/* ---- sizes ---- */

/* A rank holds whole experts; parallel.etp cuts inside them. */
static stw_status check_experts(const stw_job *job, stw_error *err) {
    const uint32_t ep = job->run->parallel.ep;
    for (uint32_t g = 0; g < job->model->n_groups; g++) {
        uint64_t experts = job->model->groups[g].facts.experts;
        if (experts > 0 && ep > 0 && experts % ep != 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.ep",
                            "ep %u does not divide the %llu experts of %s", ep,
                            (unsigned long long)experts, job->model->groups[g].name);
    }
    return STW_STATUS_OK;
}

/* Ranks that share dense state, where those of tensor parallelism are neighbours. */
static stw_status cut_shards(stw_job *job, stw_error *err) {
    const stw_run_spec *run = job->run;
    const uint32_t tp = stw_job_tp(job);
    const uint64_t rest = stw_times(stw_times(run->parallel.dp_replicate, run->parallel.cp), tp);
    char by_tp[24] = "";
    if (tp > 1) snprintf(by_tp, sizeof by_tp, " x tp %u", tp);
    if (run->parallel.dp_shard == STW_AUTO) {
        if (rest == 0 || job->world % rest != 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel",
                            "dp_replicate %u x cp %u%s does not divide the cluster's %u GPUs",
                            run->parallel.dp_replicate, run->parallel.cp, by_tp, job->world);
        job->dp_shard = (uint32_t)(job->world / rest);
    } else {
        job->dp_shard = run->parallel.dp_shard;
    }
    if (stw_times(job->dp_shard, rest) != job->world)
        return stw_fail(
            err, STW_STATUS_BAD_INPUT, "parallel",
            "dp_shard %u x dp_replicate %u x cp %u%s needs %llu GPUs, the cluster has %u",
            job->dp_shard, run->parallel.dp_replicate, run->parallel.cp, by_tp,
            (unsigned long long)stw_times(job->dp_shard, rest), job->world);
    job->group = job->dp_shard * run->parallel.cp;
    job->expert_cut = run->parallel.ep * run->parallel.etp;
    if (job->expert_cut == 0 || job->group % job->expert_cut != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.ep",
                        "ep %u x etp %u does not divide the sharding group of %u ranks",
                        run->parallel.ep, run->parallel.etp, job->group);
    job->expert_group = job->group / job->expert_cut;
    return STW_STATUS_OK;
}

/* Tokens of the target. */
static stw_status count_decoder(stw_job *job, stw_error *err) {
    const stw_run_spec *run = job->run;
    uint64_t seq_len = run->batch.decoder_seq_len, tokens = 0;
    job->decoder_tokens = job->tokens;
    if (!stw_job_has_encoder(job)) return STW_STATUS_OK;
    if (!job->engine->encoders)
        return stw_fail(
            err, STW_STATUS_NOT_BUILT_IN, "engine",
            "%s: models with an encoder beside the decoder are not implemented with this "
            "engine",
            job->engine->spec.name);
    if (run->parallel.cp > 1)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "parallel.cp",
                        "found %u, expected 1: attention between two sequences is not implemented "
                        "with context parallelism",
                        run->parallel.cp);
    if (seq_len == 0) return STW_STATUS_OK;
    stw_status status = stw_mul_u64(run->batch.micro_batch, seq_len, &tokens,
                                    "tokens of a micro batch's targets", err);
    job->decoder_tokens = tokens;
    return status;
}

/* Packed sequences: a rank has so many tokens, whatever their number. */
static stw_status pack(stw_job *job, stw_error *err) {
    const stw_run_spec *run = job->run;
    const uint64_t tokens = run->batch.max_tokens_per_gpu;
    const uint64_t least = run->batch.seq_len / run->parallel.cp;
    if (tokens == 0) return STW_STATUS_OK;
    if (tokens < least)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.max_tokens_per_gpu",
                        "found %llu, expected at least %llu: a sequence of batch.seq_len over "
                        "parallel.cp ranks",
                        (unsigned long long)tokens, (unsigned long long)least);
    if (run->parallel.sequence_parallel && tokens % run->parallel.tp != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.max_tokens_per_gpu",
                        "found %llu, expected a multiple of parallel.tp, %u",
                        (unsigned long long)tokens, run->parallel.tp);
    if (stw_job_has_encoder(job))
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.max_tokens_per_gpu",
                        "found %llu, expected none: the model has an encoder beside the decoder",
                        (unsigned long long)tokens);
    job->tokens = tokens;
    return STW_STATUS_OK;
}

static stw_status cut_sizes(stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_run_spec *run = job->run;
    const stw_cluster *cluster = job->cluster;
    job->ranks_per_node = cluster->gpus > 0 ? cluster->gpus : 1;
    job->ranks = cluster->nodes * job->ranks_per_node;
    if (job->ranks > STW_MAX_RANKS)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "nodes",
                        "found %u nodes of %u GPUs, expected at most %u GPUs", cluster->nodes,
                        job->ranks_per_node, STW_MAX_RANKS);
    job->n_roles = 1 + run->n_roles;
    STW_TRY(stw_roles_place(run, cluster->nodes, job->pool, &job->roles, err));
    job->world = stw_job_role_ranks(job, 0);
    STW_TRY((job->engine->sizes != NULL ? job->engine->sizes : cut_shards)(job, err));
    STW_TRY(check_experts(job, err));
    if (run->batch.seq_len % run->parallel.cp != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.cp",
                        "cp %u does not divide batch.seq_len %llu", run->parallel.cp,
                        (unsigned long long)run->batch.seq_len);
    uint64_t tokens = 0;
    STW_TRY(stw_mul_u64(run->batch.micro_batch, run->batch.seq_len, &tokens,
                        "tokens of a micro batch", err));
    job->tokens = tokens / run->parallel.cp;
    STW_TRY(pack(job, err));
    status = count_decoder(job, err);
out:
    return status;
}

bool stw_job_has_encoder(const stw_job *job) {
    for (uint32_t g = 0; g < job->model->n_groups; g++)
        if (job->model->groups[g].facts.decoder) return true;
    return false;
}

uint64_t stw_job_group_tokens(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    if (f->vision) return stw_job_patches(job);
    return f->decoder ? job->decoder_tokens : job->tokens;
}

uint64_t stw_job_group_seq_len(const stw_job *job, uint32_t group) {
    if (job->model->groups[group].facts.vision) return stw_job_seen_patches(job);
    if (job->run->batch.max_tokens_per_gpu > 0) return job->run->batch.seq_len;
    return stw_job_group_tokens(job, group) / job->run->batch.micro_batch * job->run->parallel.cp;
}

uint64_t stw_job_log_prob_tokens(const stw_job *job) {
    const stw_run_spec *run = job->run;
    return stw_times(run->batch.log_prob_micro_batch, run->batch.seq_len) / run->parallel.cp;
}

uint64_t stw_job_step_tokens(const stw_job *job) {
    return stw_run_spec_step_tokens(job->run, job->world);
}

uint64_t stw_job_iteration_tokens(const stw_job *job) {
    return stw_times(stw_job_step_tokens(job), stw_run_spec_steps(job->run));
}

uint64_t stw_job_passes(const stw_job *job, stw_phase phase) {
    const stw_run_spec *run = job->run;
    const uint64_t steps = stw_run_spec_steps(run), tokens = stw_job_log_prob_tokens(job);
    const uint64_t ways = stw_max_u64(stw_times(run->parallel.tp, run->parallel.pp), 1);
    if (phase == STW_PHASE_OPTIMIZER_STEP) return steps;
    if (phase == STW_PHASE_FORWARD_BACKWARD) return stw_times(steps, run->batch.grad_accumulation);
    if (phase != STW_PHASE_LOG_PROB || tokens == 0) return 1;
    const uint64_t all = stw_times(stw_job_step_tokens(job), run->batch.mini_batches);
    return stw_div_up_u64(stw_times(all, ways), stw_times(tokens, job->world));
}

/* ---- kinds ---- */

static stw_status make_files(stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t global = 0;
    job->files = (stw_space){.pool = job->pool};
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        STW_TRY(stw_space_add(&job->files, t, global, 0, job->model->tensors[t].numel, err));
        global += job->model->tensors[t].numel;
    }
out:
    return status;
}

/* @param spaces [job->n_spaces], segments in `pool` */
static stw_status make_spaces(const stw_job *job, uint32_t rank, stw_pool *pool, stw_space *spaces,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t id = 0; id < job->n_spaces; id++) {
        if (id > 0 && id < STW_N_STATE_SPACES && job->one_cut)
            spaces[id] = spaces[0];
        else
            STW_TRY(stw_job_space(job, id, rank, pool, &spaces[id], err));
    }
out:
    return status;
}

/* Hash of how many elements of each tensor a rank holds in each space. */
static stw_status fingerprint(const stw_job *job, uint32_t rank, uint64_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t hash = 1469598103934665603ull;
    stw_pool *pool = stw_pool_new();
    stw_space *spaces = pool == NULL ? NULL : stw_pool_array(pool, job->n_spaces, sizeof *spaces);
    if (spaces == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "kinds of rank", "out of memory");
    }
    STW_TRY(make_spaces(job, rank, pool, spaces, err));
    for (uint32_t id = 0; id < job->n_spaces; id++)
        for (uint32_t i = 0; i < spaces[id].n_segments; i++) {
            hash = (hash ^ spaces[id].segments[i].tensor) * 1099511628211ull;
            hash = (hash ^ spaces[id].segments[i].n) * 1099511628211ull;
        }
    *out = hash;
out:
    stw_pool_free(pool);
    return status;
}

static stw_status fill_kind(stw_job *job, stw_rank_kind *kind, uint32_t rank, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    kind->block_params = stw_pool_array(job->pool, job->model->n_blocks, sizeof(uint64_t));
    kind->block_grads = stw_pool_array(job->pool, job->model->n_blocks, sizeof(uint64_t));
    kind->ranks = stw_pool_array(job->pool, job->world, sizeof(uint32_t));
    kind->spaces = stw_pool_array(job->pool, job->n_spaces, sizeof *kind->spaces);
    if (kind->block_params == NULL || kind->block_grads == NULL || kind->ranks == NULL ||
        kind->spaces == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "kinds of rank", "out of memory");
    kind->first = rank == 0;
    kind->leader = rank % job->ranks_per_node == 0;
    kind->stage = job->engine->stage != NULL ? job->engine->stage(job, rank) : 0;
    STW_TRY(make_spaces(job, rank, job->pool, kind->spaces, err));
    const stw_space *params = &kind->spaces[STW_SPACE_PARAMS];
    for (uint32_t i = 0; i < params->n_segments; i++)
        kind->block_params[job->model->tensors[params->segments[i].tensor].block] +=
            params->segments[i].n;
    kind->params = params->n;
    const stw_space *grads = &kind->spaces[STW_SPACE_GRADS];
    for (uint32_t i = 0; i < grads->n_segments; i++)
        kind->block_grads[job->model->tensors[grads->segments[i].tensor].block] +=
            grads->segments[i].n;
out:
    return status;
}

static void name_kind(const stw_job *job, stw_rank_kind *kind, uint32_t index) {
    const char *base = kind->first ? "rank0" : kind->leader ? "leader" : "rank";
    uint32_t same = 1;
    for (uint32_t k = 0; k < index; k++)
        if (job->kinds[k].first == kind->first && job->kinds[k].leader == kind->leader &&
            job->kinds[k].stage == kind->stage)
            same++;
    if (kind->stage > 0)
        snprintf(kind->name, sizeof kind->name, "%s-stage%u", base, kind->stage);
    else if (same == 1)
        snprintf(kind->name, sizeof kind->name, "%s", base);
    else
        snprintf(kind->name, sizeof kind->name, "%s-%u", base, same);
}

/* The kind of a rank with this fingerprint; a new one where there is none yet. */
static stw_status kind_for(stw_job *job, uint64_t **kind_prints, size_t *capacity, uint32_t rank,
                           uint64_t print, uint32_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool first = rank == 0, leader = rank % job->ranks_per_node == 0;
    const uint32_t stage = job->engine->stage != NULL ? job->engine->stage(job, rank) : 0;
    uint32_t k = 0;
    while (k < job->n_kinds && !((*kind_prints)[k] == print && job->kinds[k].first == first &&
                                 job->kinds[k].leader == leader && job->kinds[k].stage == stage))
        k++;
    *out = k;
    if (k < job->n_kinds) return STW_STATUS_OK;
    job->kinds =
        stw_pool_grow(job->pool, job->kinds, k, k + 1, &capacity[0], sizeof(stw_rank_kind));
    *kind_prints = stw_pool_grow(job->pool, *kind_prints, k, k + 1, &capacity[1], sizeof(uint64_t));
    if (job->kinds == NULL || *kind_prints == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "kinds of rank", "out of memory");
    (*kind_prints)[k] = print;
    STW_TRY(fill_kind(job, &job->kinds[k], rank, err));
    name_kind(job, &job->kinds[k], k);
    job->n_kinds++;
out:
    return status;
}

static stw_status find_kinds(stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t *prints = stw_pool_array(job->pool, job->world, sizeof(uint64_t)), *kind_prints = NULL;
    size_t capacity[2] = {0, 0};
    if (prints == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "kinds of rank", "out of memory");
    for (uint32_t rank = 0; rank < job->world; rank++) {
        uint32_t like = job->engine->representative(job, rank), k;
        if (like == rank) STW_TRY(stw_deadline_check("cutting the model", err));
        if (like != rank)
            prints[rank] = prints[like];
        else if (job->engine->parts != NULL)
            prints[rank] = job->engine->parts(job, rank);
        else
            STW_TRY(fingerprint(job, rank, &prints[rank], err));
        STW_TRY(kind_for(job, &kind_prints, capacity, rank, prints[rank], &k, err));
        job->kinds[k].ranks[job->kinds[k].n_ranks++] = rank;
        if (stw_job_placed_params(job, k) > stw_job_placed_params(job, job->largest))
            job->largest = k;
    }
out:
    return status;
}

/* Ranks of a role with nodes of its own are all alike. */
static stw_status add_role_kind(stw_job *job, uint32_t role, size_t *room, stw_error *err) {
    const uint32_t k = job->n_kinds;
    stw_rank_kind *kinds =
        stw_pool_grow(job->pool, job->kinds, k, (size_t)k + 1, room, sizeof *kinds);
    if (kinds == NULL) goto no_memory;
    job->kinds = kinds;
    stw_rank_kind *kind = &kinds[k];
    memset(kind, 0, sizeof *kind);
    kind->home = role;
    kind->n_ranks = stw_job_role_ranks(job, role);
    kind->ranks = stw_pool_array(job->pool, kind->n_ranks, sizeof(uint32_t));
    kind->spaces = stw_pool_array(job->pool, job->n_spaces, sizeof *kind->spaces);
    kind->block_params = stw_pool_array(job->pool, job->model->n_blocks, sizeof(uint64_t));
    kind->block_grads = stw_pool_array(job->pool, job->model->n_blocks, sizeof(uint64_t));
    if (kind->ranks == NULL || kind->spaces == NULL || kind->block_params == NULL ||
        kind->block_grads == NULL)
        goto no_memory;
    for (uint32_t i = 0; i < kind->n_ranks; i++)
        kind->ranks[i] = job->roles[role].first_node * job->ranks_per_node + i;
    for (uint32_t s = 0; s < job->n_spaces; s++) kind->spaces[s].pool = job->pool;
    snprintf(kind->name, sizeof kind->name, "%s", job->roles[role].name);
    job->n_kinds++;
    return STW_STATUS_OK;
no_memory:
    return stw_fail(err, STW_STATUS_NO_MEMORY, "kinds of rank", "out of memory");
}

static stw_status add_role_kinds(stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    size_t room = job->n_kinds;
    for (uint32_t r = 1; r < job->n_roles; r++)
        if (stw_role_is_alone(job->roles, r)) STW_TRY(add_role_kind(job, r, &room, err));
out:
    return status;
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

/* Blocks whose params and grads never leave the GPU wait for no copy of theirs. Their state is in
 * the model's order then, and a step is done with the first tensors first. */
static bool stays_on_gpu(const stw_run_spec *run) {
    return run->placement.params == STW_TIER_GPU && run->placement.grads == STW_TIER_GPU;
}

/* Quanta are whole multiples of 1024 elements, so that fp32 regions stay page-aligned. */
static stw_status cut_units(stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t most = stw_job_placed_params(job, job->largest);
    uint64_t quantum = stw_round_up_u64(stw_div_up_u64(most, STW_MAX_UNITS), 2048);
    job->unit_params = stw_max_u64(quantum, 2048);
    job->n_units = (uint32_t)stw_div_up_u64(most, job->unit_params);
    if (!job->engine->spread || stays_on_gpu(job->run)) return STW_STATUS_OK;
    job->spread_params =
        stw_max_u64(job->unit_params / STW_SPREADS_PER_UNIT, STW_SPREAD_MIN_PARAMS);
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        stw_space *spaces = job->kinds[k].spaces;
        if (job->kinds[k].home != 0) continue;
        STW_TRY(stw_space_spread(&spaces[0], job->spread_params, err));
        for (uint32_t id = 1; id < STW_N_STATE_SPACES; id++) spaces[id] = spaces[0];
    }
out:
    return status;
}

/* A share of the updates that is too small for one unit of placement would be 0. */
static stw_status check_shares(const stw_job *job, stw_error *err) {
    for (int u = 0; u < STW_N_UPDATES; u++) {
        double share = stw_run_spec_update_share(job->run, (stw_update)u);
        if (!(share > 0) || share >= STW_AUTO_NUMBER ||
            stw_job_update_units(job, (stw_update)u) > 0)
            continue;
        const double unit = 1.0 / job->n_units, digit = pow(10, floor(log10(unit)) - 1);
        return stw_fail(err, STW_STATUS_BAD_INPUT, NULL,
                        "update.%s: found %g, expected 0 or at least %.2g: state is placed in "
                        "units of %llu parameters",
                        stw_update_name((stw_update)u), share, ceil(unit / digit) * digit,
                        (unsigned long long)job->unit_params);
    }
    return STW_STATUS_OK;
}

static stw_status choose_trained(stw_job *job, const stw_model *model, stw_error *err) {
    stw_trainable trainable = {.model = model};
    stw_status status = STW_STATUS_OK;
    if (job->engine->trains != NULL)
        status = job->engine->trains(model, job->run, job->pool, &model, err);
    if (status == STW_STATUS_OK)
        status = stw_trainable_new(model, job->run, job->engine, job->pool, &trainable, err);
    job->model = trainable.model;
    job->frozen = trainable.frozen;
    job->one_cut = job->engine->one_cut && job->frozen == NULL;
    return status;
}

/* What all ranks of a node have, over what the model has. */
static void count_copies(stw_job *job) {
    const uint32_t ranks = job->world < job->ranks_per_node ? job->world : job->ranks_per_node;
    uint64_t most = 0;
    for (uint32_t k = 0; k < job->n_kinds; k++)
        most = stw_max_u64(most, job->kinds[k].spaces[STW_SPACE_PARAMS].n);
    const double copies = (double)most * ranks / (double)stw_max_u64(job->files.n, 1);
    job->node_copies = copies > 1 ? copies : 1;
}

stw_status stw_job_new(const stw_model *model, const stw_cluster *cluster, const stw_run_spec *run,
                       const stw_engine *engine, stw_job **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_job *job = NULL;
    stw_pool *pool = stw_pool_new();
    if (pool != NULL) job = stw_pool_alloc(pool, sizeof *job);
    if (job == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "job", "out of memory");
    }
    job->pool = pool;
    job->once = stw_pool_array(pool, STW_N_ONCE, sizeof *job->once);
    if (job->once == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "job", "out of memory");
    }
    for (int i = 0; i < STW_N_ONCE; i++) {
        job->once[i].job = job;
        pthread_mutex_init(&job->once[i].mutex, NULL);
    }
    job->cluster = cluster;
    job->run = run;
    job->engine = engine;
    job->n_spaces = STW_N_STATE_SPACES + engine->n_more_spaces;
    STW_TRY(choose_trained(job, model, err));
    STW_TRY(cut_sizes(job, err));
    STW_TRY(stw_job_check_images(job, err));
    STW_TRY(make_files(job, err));
    STW_TRY(find_kinds(job, err));
    STW_TRY(add_role_kinds(job, err));
    STW_TRY(find_node_kinds(job, err));
    count_copies(job);
    STW_TRY(cut_units(job, err));
    STW_TRY(check_shares(job, err));
    for (uint32_t r = 1; r < job->n_roles; r++)
        STW_TRY(job->roles[r].engine->make(job, r, &job->roles[r].figures, err));
out:
    if (status == STW_STATUS_OK)
        *out = job;
    else
        stw_job_free(job);
    return status;
}

void stw_job_free(stw_job *job) {
    if (job == NULL) return;
    for (uint32_t r = 1; job->roles != NULL && r < job->n_roles; r++)
        stw_job_free(job->roles[r].own);
    for (int i = 0; i < STW_N_ONCE; i++) {
        pthread_mutex_destroy(&job->once[i].mutex);
        stw_pool_free(job->once[i].pool);
    }
    stw_pool_free(job->pool);
}

stw_status stw_job_once_get(const stw_job *job, stw_once which, stw_once_fn *make, const void **out,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_job_once *once = &job->once[which];
    stw_pool *pool = NULL;
    *out = NULL;
    pthread_mutex_lock(&once->mutex);
    if (once->value == NULL) {
        pool = stw_pool_new();
        if (pool == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "job", "out of memory"));
        STW_TRY(make(once->job, pool, &once->value, err));
        once->pool = pool;
        pool = NULL;
    }
    *out = once->value;
out:
    pthread_mutex_unlock(&once->mutex);
    stw_pool_free(pool);
    return status;
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

uint32_t stw_job_role_ranks(const stw_job *job, uint32_t role) {
    return job->roles[role].n_nodes * job->ranks_per_node;
}

stw_status stw_job_space(const stw_job *job, uint32_t id, uint32_t rank, stw_pool *pool,
                         stw_space *out, stw_error *err) {
    *out = (stw_space){.pool = pool};
    bool spread = id < STW_N_STATE_SPACES && job->spread_params > 0;
    if (id < STW_N_STATE_SPACES && job->one_cut) id = STW_SPACE_PARAMS;
    stw_status status = job->engine->cut(job, id, rank, out, err);
    if (status != STW_STATUS_OK || !spread) return status;
    return stw_space_spread(out, job->spread_params, err);
}

stw_space_id stw_component_space(stw_component component) {
    return component == STW_COMPONENT_PARAMS  ? STW_SPACE_PARAMS
           : component == STW_COMPONENT_GRADS ? STW_SPACE_GRADS
                                              : STW_SPACE_OPTIMIZER;
}

uint64_t stw_job_tensor_first(const stw_job *job, uint32_t tensor) {
    uint32_t low = 0, high = job->files.n_segments;
    while (low < high) { /* tensors without elements have no segment */
        uint32_t middle = low + (high - low) / 2;
        if (job->files.segments[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low < job->files.n_segments ? job->files.segments[low].first : job->files.n;
}

bool stw_job_counts(const stw_job *job, uint32_t id, uint32_t rank) {
    return job->engine->counts(job, id, rank);
}

uint64_t stw_job_placed_params(const stw_job *job, uint32_t kind) {
    return job->kinds[kind].spaces[STW_SPACE_OPTIMIZER].n;
}

/* Ranks of tensor parallelism are neighbours. Those of a sharding group, of cp and of ep lie tp
 * apart; ranks with the same experts expert_cut times that, replicas of a shard a whole group. */
void stw_job_group_size(const stw_job *job, stw_rank_group group, uint32_t *ranks,
                        uint32_t *on_node) {
    const uint32_t tp = job->engine != NULL ? stw_job_tp(job) : 1;
    uint32_t shard = job->group > 0 ? job->group : 1, stride = tp;
    if (job->engine != NULL && job->engine->group_size != NULL && group != STW_RANK_GROUP_WORLD &&
        group != STW_RANK_GROUP_NODE && group != STW_RANK_GROUP_SYNC) {
        job->engine->group_size(job, group, ranks, on_node);
        return;
    }
    switch (group) {
    case STW_RANK_GROUP_WORLD:
        stride = 1;
        *ranks = job->world;
        break;
    case STW_RANK_GROUP_NODE:
        stride = 1;
        *ranks = job->world < job->ranks_per_node ? job->world : job->ranks_per_node;
        break;
    case STW_RANK_GROUP_SHARD:
        *ranks = shard;
        break;
    case STW_RANK_GROUP_SYNC: /* nobody shares a node with the sender */
        *ranks = 2;
        *on_node = 1;
        return;
    case STW_RANK_GROUP_REPLICATE:
        stride = shard * tp;
        *ranks = job->world / stride;
        break;
    case STW_RANK_GROUP_TP:
        stride = 1;
        *ranks = tp;
        break;
    case STW_RANK_GROUP_CP:
        *ranks = job->run->parallel.cp;
        break;
    case STW_RANK_GROUP_EP:
        *ranks = job->run->parallel.ep;
        break;
    case STW_RANK_GROUP_EXPERT_DP:
        *ranks = shard / (job->expert_cut > 0 ? job->expert_cut : 1);
        stride = tp * (job->expert_cut > 0 ? job->expert_cut : 1);
        break;
    default:
        *ranks = 1;
        break;
    }
    *on_node = job->ranks_per_node / stride;
    if (*on_node < 1) *on_node = 1;
    if (*on_node > *ranks) *on_node = *ranks;
}

const char *stw_rank_group_name(stw_rank_group group) {
    static const char *const names[] = {
#define X(name, text) text,
        STW_RANK_GROUP_TABLE(X)
#undef X
    };
    return (unsigned)group < STW_N_RANK_GROUPS ? names[group] : "?";
}

bool stw_job_may_hide_step(const stw_job *job) {
    const stw_run_spec *run = job->run;
    for (uint32_t i = 0; i < run->n_roles; i++)
        if (run->roles[i].kind == STW_ROLE_ROLLOUT) return false; /* it takes the parameters */
    return stw_engine_steps_inside(&job->engine->spec) && job->model->facts_known &&
           run->batch.log_prob_micro_batch == 0;
}

bool stw_job_hides_step(const stw_job *job) {
    return job->run->optimizer.overlap && stw_job_may_hide_step(job);
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

uint64_t stw_job_part(const stw_job *job, uint32_t tensor) {
    const stw_tensor *t = &job->model->tensors[tensor];
    if (t->expert) return t->numel / job->expert_cut;
    return stw_job_tp(job) > 1 ? job->engine->part(job, tensor) : t->numel;
}

uint32_t stw_job_replicas(const stw_job *job) {
    uint32_t ranks, on_node;
    stw_job_group_size(job, STW_RANK_GROUP_REPLICATE, &ranks, &on_node);
    return ranks;
}

static uint64_t gathered(const stw_job *job, uint32_t block, bool grads) {
    const stw_block *b = &job->model->blocks[block];
    uint64_t params = 0;
    for (uint32_t t = b->first_tensor; t < b->first_tensor + b->n_tensors; t++) {
        if (grads && !stw_job_trains(job, t)) continue;
        params += stw_job_part(job, t);
    }
    return params;
}

uint64_t stw_job_gathered_params(const stw_job *job, uint32_t block) {
    return gathered(job, block, false);
}

uint64_t stw_job_gathered_grads(const stw_job *job, uint32_t block) {
    return gathered(job, block, true);
}

static uint64_t experts_apart(const stw_job *job, uint32_t block, bool grads) {
    const stw_block *b = &job->model->blocks[block];
    uint64_t params = 0;
    for (uint32_t t = b->first_tensor; t < b->first_tensor + b->n_tensors; t++)
        if (job->model->tensors[t].expert && job->expert_cut > 1 &&
            (!grads || stw_job_trains(job, t)))
            params += job->model->tensors[t].numel / job->expert_cut;
    return params;
}

uint64_t stw_job_gathered_experts(const stw_job *job, uint32_t block) {
    return experts_apart(job, block, false);
}

uint64_t stw_job_gathered_expert_grads(const stw_job *job, uint32_t block) {
    return experts_apart(job, block, true);
}

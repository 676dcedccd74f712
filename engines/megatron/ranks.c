/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/megatron/ranks.h"

#include "core/checked.h"
#include "engines/megatron/fp8.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/stages.h"
#include "engines/megatron/vision.h"

stw_megatron_ways stw_megatron_ways_of(const stw_job *job) {
    const stw_parallel *p = &job->run->parallel;
    return (stw_megatron_ways){.tp = p->tp,
                               .cp = p->cp,
                               .dp = job->dp_shard,
                               .pp = p->pp,
                               .vpp = p->vpp,
                               .ep = p->ep,
                               .etp = p->etp,
                               .expert_dp = job->expert_group};
}

/* ---- sizes ---- */

static stw_status check_model(const stw_job *job, stw_error *err) {
    const stw_parallel *p = &job->run->parallel;
    const stw_model *model = job->model;
    if (!model->facts_known) {
        if (p->tp == 1 && p->pp == 1) return STW_STATUS_OK;
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.tp",
                        "tp %u x pp %u cut a list of tensors of which nothing else is known; "
                        "expected a config.json as model, or tp and pp 1",
                        p->tp, p->pp);
    }
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const stw_block_facts *f = &model->groups[g].facts;
        if (f->vision && !stw_megatron_knows_vision(job))
            return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "engine",
                            "megatron: the vision tower of %s (%s) is not implemented; use "
                            "engine: fsdp2",
                            model->model_type, model->groups[g].name);
        if (f->linear_v_heads > 0 &&
            (f->linear_k_heads % (p->tp * p->cp) != 0 || f->linear_v_heads % (p->tp * p->cp) != 0))
            return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.tp",
                            "tp %u x cp %u does not divide the %llu key heads and %llu value heads "
                            "of linear attention",
                            p->tp, p->cp, (unsigned long long)f->linear_k_heads,
                            (unsigned long long)f->linear_v_heads);
        if (job->run->trainable.lora_rank > 0 && (f->linear_v_heads > 0 || f->decoder))
            return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "trainable.lora",
                            "not implemented with engine megatron for %s: adapters of softmax "
                            "attention, MLPs and experts alone; use engine: fsdp2",
                            model->model_type);
        if (f->decoder && stw_megatron_settings_of(job->run).fp8 != 0)
            return stw_run_spec_refuse_value(job->run, NULL, err, "megatron.fp8",
                                             "none: 8-bit products of models with an encoder are "
                                             "not planned");
        if (f->decoder && p->pp > 1) /* pretrain_t5.py, model_provider */
            return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.pp",
                            "found %u, expected 1: Megatron-LM trains models with an encoder "
                            "without pipeline stages",
                            p->pp);
        if (!f->transformer || (f->vision && !stw_megatron_cuts_vision(job))) continue;
        if (f->q_heads % p->tp != 0 || f->kv_heads % p->tp != 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.tp",
                            "tp %u does not divide the %llu query heads and %llu key heads", p->tp,
                            (unsigned long long)f->q_heads, (unsigned long long)f->kv_heads);
    }
    return STW_STATUS_OK;
}

/* Modules to recompute that the model lacks would change nothing. */
static stw_status check_modules(const stw_job *job, bool experts, bool shared, bool latent,
                                stw_error *err) {
    stw_megatron_modules m = stw_megatron_modules_of(job->run);
    const char *expected = NULL;
    if (job->run->recompute.granularity != 2 || !job->model->facts_known) return STW_STATUS_OK;
    if (m.moe && !experts) expected = "no moe: the model has no experts";
    if (m.moe_act && !experts) expected = "no moe_act: the model has no experts";
    if (m.shared_experts && !shared) expected = "no shared_experts: the model has none";
    if (m.mla_up_proj && !latent) expected = "no mla_up_proj: the model has no latent attention";
    if (expected == NULL) return STW_STATUS_OK;
    return stw_run_spec_refuse_value(job->run, NULL, err, "recompute.modules", expected);
}

static stw_status check_experts(const stw_job *job, stw_error *err) {
    bool shared = false, experts = false, latent = false;
    for (uint32_t g = 0; g < job->model->n_groups; g++) {
        const stw_block_facts *f = &job->model->groups[g].facts;
        experts = experts || f->experts > 0;
        shared = shared || f->shared_ffn > 0;
        latent = latent || f->kv_rank > 0;
    }
    if (stw_megatron_settings_of(job->run).shared_expert_overlap && !shared)
        return stw_run_spec_refuse_value(job->run, NULL, err, "megatron.shared_expert_overlap",
                                         "false: the model has no shared experts");
    /* moe_layer.py, MoELayer.forward: ValueError in training */
    if (experts && job->run->parallel.tp > 1 && !job->run->parallel.sequence_parallel)
        return stw_run_spec_refuse_value(job->run, NULL, err, "parallel.sequence_parallel",
                                         "true (--sequence-parallel), or parallel.tp: 1: Megatron "
                                         "does not train experts with tp above 1 without it");
    return check_modules(job, experts, shared, latent, err);
}

uint64_t stw_megatron_group_of_micro_batches(const stw_job *job) {
    uint64_t group = stw_megatron_settings_of(job->run).microbatch_group;
    return group > 0 ? group : job->run->parallel.pp;
}

/* Each instance of the distributed optimizer has neighbours of the data-parallel ranks
 * (parallel_state.py, intra_partial_data_parallel_group and that of experts). */
static stw_status cut_instances(stw_job *job, stw_error *err) {
    const uint32_t n = stw_megatron_settings_of(job->run).optimizer_instances;
    if (job->group % n != 0 || job->expert_group % n != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "megatron.optimizer_instances",
                        "%u instances do not divide %u data-parallel ranks, %u of experts", n,
                        job->group, job->expert_group);
    job->group /= n;
    job->expert_group /= n;
    return STW_STATUS_OK;
}

/* parallel_state.py, initialize_model_parallel: both decompositions of the world have the same
 * stages. */
stw_status stw_megatron_sizes(stw_job *job, stw_error *err) {
    const stw_run_spec *run = job->run;
    const stw_parallel *p = &run->parallel;
    uint64_t model_ways = stw_times(stw_times(p->tp, p->cp), p->pp);
    uint64_t expert_ways = stw_times(stw_times(p->ep, p->etp), p->pp);
    const stw_status can = stw_megatron_check_fp8_gpu(job, err);
    if (can != STW_STATUS_OK) return can;
    if (model_ways == 0 || job->world % model_ways != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel",
                        "tp %u x cp %u x pp %u does not divide the cluster's %u GPUs", p->tp, p->cp,
                        p->pp, job->world);
    job->dp_shard = (uint32_t)(job->world / model_ways);
    if (p->dp_shard != STW_AUTO && p->dp_shard != job->dp_shard)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.dp_shard",
                        "tp %u x cp %u x pp %u leaves %u of %u GPUs for data parallelism, found %u",
                        p->tp, p->cp, p->pp, job->dp_shard, job->world, p->dp_shard);
    if (expert_ways == 0 || job->world % expert_ways != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.ep",
                        "ep %u x etp %u x pp %u does not divide the cluster's %u GPUs", p->ep,
                        p->etp, p->pp, job->world);
    job->group = job->dp_shard * p->cp;
    job->expert_cut = p->ep * p->etp;
    job->expert_group = (uint32_t)(job->world / expert_ways);
    if (p->vpp > 1 && p->pp == 1)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.vpp",
                        "found %u chunks of a stage, expected 1 with parallel.pp 1", p->vpp);
    const uint64_t batches = run->batch.grad_accumulation;
    const uint64_t group = stw_megatron_group_of_micro_batches(job), rest = batches % group;
    if (p->vpp > 1 && (group < p->pp || group > batches || (rest > 0 && rest < p->pp)))
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.grad_accumulation",
                        "an interleaved schedule needs groups of at least pp (%u) micro batches, "
                        "found %llu in groups of %llu",
                        p->pp, (unsigned long long)batches, (unsigned long long)group);
    if (run->batch.seq_len % stw_times(p->cp, p->sequence_parallel ? p->tp : 1) != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.seq_len",
                        "cp %u and tp %u do not divide %llu tokens", p->cp, p->tp,
                        (unsigned long long)run->batch.seq_len);
    if (run->batch.decoder_seq_len % (p->sequence_parallel ? p->tp : 1) != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.decoder_seq_len",
                        "tp %u does not divide %llu tokens", p->tp,
                        (unsigned long long)run->batch.decoder_seq_len);
    stw_status status = cut_instances(job, err);
    if (status == STW_STATUS_OK) status = check_experts(job, err);
    if (status == STW_STATUS_OK) status = check_model(job, err);
    return status == STW_STATUS_OK ? stw_megatron_place_blocks(job, err) : status;
}

/* Neighbours in tp are neighbours in the world; stages lie furthest apart. */
void stw_megatron_group_size(const stw_job *job, stw_rank_group group, uint32_t *ranks,
                             uint32_t *on_node) {
    const stw_megatron_ways w = stw_megatron_ways_of(job);
    uint32_t n = 1, stride = 1;
    switch (group) {
    case STW_RANK_GROUP_TP:
        n = w.tp;
        break;
    case STW_RANK_GROUP_CP:
        n = w.cp;
        stride = w.tp;
        break;
    case STW_RANK_GROUP_SHARD:
        n = job->group;
        stride = w.tp;
        break;
    case STW_RANK_GROUP_REPLICATE: /* ranks of different instances with the same shard */
        n = w.dp * w.cp / (job->group > 0 ? job->group : 1);
        stride = w.tp * job->group;
        break;
    case STW_RANK_GROUP_DP:
        n = w.dp * w.cp;
        stride = w.tp;
        break;
    case STW_RANK_GROUP_ETP:
        n = w.etp;
        break;
    case STW_RANK_GROUP_EP:
        n = w.ep;
        stride = w.etp;
        break;
    case STW_RANK_GROUP_EXPERT_DP:
        n = w.expert_dp;
        stride = w.ep * w.etp;
        break;
    case STW_RANK_GROUP_EMBEDDING: /* on one node only if all stages are */
        n = w.pp > 1 ? 2 : 1;
        stride = job->world > job->ranks_per_node ? job->world : 1;
        break;
    case STW_RANK_GROUP_PP:
        n = w.pp;
        stride = job->world / w.pp;
        break;
    default:
        break;
    }
    *ranks = n;
    *on_node = stride > job->ranks_per_node ? 1 : job->ranks_per_node / stride;
    if (*on_node > n) *on_node = n;
}

uint32_t stw_megatron_stage(const stw_job *job, uint32_t rank) {
    return rank / (job->world / job->run->parallel.pp);
}

/* Ranks of a stage hold different parts of equal size. */
uint32_t stw_megatron_representative(const stw_job *job, uint32_t rank) {
    uint32_t each = job->world / job->run->parallel.pp;
    return rank / each * each;
}

/* ---- schedules ---- */

uint64_t stw_megatron_in_flight(const stw_job *job, uint32_t stage) {
    const stw_parallel *p = &job->run->parallel;
    uint64_t micro_batches = job->run->batch.grad_accumulation;
    if (p->pp == 1) return 1;
    if (p->vpp == 1) return stw_min_u64(p->pp - stage, micro_batches);
    uint64_t warm_up = stw_plus(stw_times(p->pp - stage - 1, 2),
                                stw_times(p->vpp - 1, stw_megatron_group_of_micro_batches(job)));
    return stw_min_u64(warm_up + 1, stw_times(micro_batches, p->vpp));
}

uint64_t stw_megatron_row_tokens(const stw_job *job) {
    const stw_parallel *p = &job->run->parallel;
    return p->sequence_parallel ? job->tokens / p->tp : job->tokens;
}

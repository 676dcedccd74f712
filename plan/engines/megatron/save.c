/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core at d98e8a6):
 * - dist_checkpointing/strategies/filesystem_async.py, preload_tensors: before anything is written
 *   all tensors of the rank go to the host by to("cpu", non_blocking=True), of which torch makes
 *   page-locked ones; a synchronous save does so, too (dist_checkpointing/strategies/base.py,
 *   execute_sync). What is on the host is written from there.
 * - dist_checkpointing/strategies/fully_parallel.py: what data-parallel ranks have alike is written
 *   by one of them, in equal shares.
 * - optimizer/distrib_optimizer.py, sharded_state_dict: main parameters and moments are tensors of
 *   the rank's ranges. */
#include "plan/engines/megatron/save.h"

#include "core/checked.h"
#include "plan/engines/bytes.h"
#include "plan/engines/megatron/megatron.h"

/* Ranks that have the same parameters. */
static uint64_t alike(const stw_job *job, bool expert) {
    uint32_t ranks, on_node;
    stw_job_group_size(job, expert ? STW_RANK_GROUP_EXPERT_DP : STW_RANK_GROUP_DP, &ranks,
                       &on_node);
    return stw_max_u64(ranks, 1);
}

/* Elements of a list that this rank writes, and what page-locking them adds. */
typedef struct share {
    uint64_t elements, rounding_bytes;
} share;

static share share_of(const stw_job *job, const stw_megatron_params *list, uint64_t element,
                      bool shared) {
    uint64_t elements[2] = {0, 0}, rounding[2] = {0, 0};
    for (uint32_t i = 0; i < list->n; i++) {
        const stw_megatron_param *p = &list->list[i];
        elements[p->expert] = stw_plus(elements[p->expert], p->numel);
        rounding[p->expert] = stw_plus(rounding[p->expert],
                                       stw_page_lock_rounding_bytes(stw_times(p->numel, element)));
    }
    share out = {0, 0};
    for (int e = 0; e < 2; e++) {
        const uint64_t ranks = shared ? alike(job, e == 1) : 1;
        out.elements += elements[e] / ranks;
        out.rounding_bytes += rounding[e] / ranks;
    }
    return out;
}

static void add(const stw_builder *b, stw_save *save, stw_component component, stw_tier tier,
                share part) {
    const uint64_t bytes = stw_times(part.elements, stw_job_element_bytes(b->job, component));
    stw_save_add(save, component, tier, bytes);
    if (tier != STW_TIER_GPU) return;
    save->staged_bytes = stw_plus(save->staged_bytes, bytes);
    save->rounding_bytes = stw_plus(save->rounding_bytes, part.rounding_bytes);
}

/* Page-locked copies of Megatron-FSDP's shards (training/checkpointing.py, ckpt_format
 * fsdp_dtensor: torch.distributed.checkpoint, whose writer keeps all copies until its file is
 * complete: see fsdp2/save.c): parameters and state that are on the GPU. */
static void stage_shards(const stw_builder *b, const stw_megatron_state *s, stw_save *save) {
    const stw_job *job = b->job;
    save->all_first = false;
    save->files = 1;
    save->rounding_bytes = 0;
    for (uint32_t part = 0; part < save->n; part++) {
        const stw_component c = save->parts[part].component;
        const bool params = c == STW_COMPONENT_PARAMS;
        const stw_megatron_params *list = params ? &s->params : &s->shard;
        if (save->parts[part].tier != STW_TIER_GPU || save->parts[part].bytes == 0) continue;
        for (uint32_t i = 0; i < list->n; i++) {
            const uint64_t bytes = stw_times(list->list[i].numel, stw_job_element_bytes(job, c)) /
                                   (params ? alike(job, list->list[i].expert) : 1);
            save->rounding_bytes =
                stw_plus(save->rounding_bytes, stw_page_lock_rounding_bytes(bytes));
        }
    }
}

stw_save stw_megatron_save(const stw_builder *b, const stw_megatron_state *s) {
    static const stw_component state[] = {STW_COMPONENT_MASTER, STW_COMPONENT_EXP_AVG,
                                          STW_COMPONENT_EXP_AVG_SQ};
    const stw_job *job = b->job;
    const stw_run_spec *run = job->run;
    const uint64_t half = stw_job_element_bytes(job, STW_COMPONENT_PARAMS);
    const bool sharded = stw_megatron_settings_of(run).distributed_optimizer;
    stw_save save = {.all_first = true, .files = 2}; /* thread_count of its writer */
    if (!stw_saves(job) || b->status != STW_STATUS_OK) return save;
    if (run->checkpoint.model)
        add(b, &save, STW_COMPONENT_PARAMS, STW_TIER_GPU, share_of(job, &s->params, half, true));
    for (int i = 0; i < 3 && run->checkpoint.optimizer; i++) {
        const uint64_t element = stw_job_element_bytes(job, state[i]);
        share all = share_of(job, &s->shard, element, !sharded), host = all;
        const double part =
            s->share > 0 ? (double)s->offloaded / (double)s->share : 0; /* updated on the host */
        if (element == 0) continue;
        host.elements = run->park.moments ? all.elements : stw_scaled(all.elements, part);
        host.rounding_bytes = 0;
        all.elements -= stw_min_u64(host.elements, all.elements);
        all.rounding_bytes = run->park.moments ? 0 : stw_scaled(all.rounding_bytes, 1 - part);
        add(b, &save, state[i], STW_TIER_GPU, all);
        add(b, &save, state[i], STW_TIER_HOST, host);
    }
    if (stw_megatron_is_fsdp(run)) stage_shards(b, s, &save);
    return save;
}

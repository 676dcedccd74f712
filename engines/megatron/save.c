/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core at d98e8a6):
 * - dist_checkpointing/strategies/filesystem_async.py, preload_tensors: before anything is written
 *   all tensors of the rank go to the host by to("cpu", non_blocking=True), of which torch makes
 *   page-locked ones; a synchronous save does so, too (dist_checkpointing/strategies/base.py,
 *   execute_sync). What is on the host is written from there.
 * - dist_checkpointing/strategies/fully_parallel.py: what data-parallel ranks have alike is written
 *   by one of them, in equal shares.
 * - optimizer/distrib_optimizer.py, sharded_state_dict: main parameters and moments are tensors of
 *   the rank's ranges.
 * - dist_checkpointing/validation.py, determine_global_metadata: shards of all ranks are gathered
 *   for validation; strategies/fully_parallel.py gathers them within data-parallel ranks, too;
 *   strategies/state_dict_saver.py: plans are gathered, then results, and success is broadcast.
 * - distributed/fsdp/src/megatron_fsdp/uneven_dtensor.py at 071d9e8,
 *   preprocess_state_dict_for_uneven_dtensor: all_gather_object of the shape of every DTensor in
 *   the state dict, over each mesh dimension that cuts it. */
#include "engines/megatron/save.h"

#include <inttypes.h>
#include <stdio.h>

#include "blocks/optimizer.h"
#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/megatron/megatron.h"

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

static share share_of(const stw_job *job, const stw_megatron_params *list, stw_component component,
                      bool shared) {
    const uint64_t element = stw_job_element_bytes(job, component);
    uint64_t elements[2] = {0, 0}, rounding[2] = {0, 0};
    for (uint32_t i = 0; i < list->n; i++) {
        const stw_megatron_param *p = &list->list[i];
        if (!stw_optimizer_keeps(job->run, p->matrix, component)) continue;
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

/* DTensors of the state dict of a rank: parameters, and each state of each. Of experts it has its
 * own ones. */
static uint32_t uneven_tensors(const stw_job *job) {
    const stw_run_spec *run = job->run;
    uint64_t tensors = 0, states = run->checkpoint.model ? 1 : 0;
    static const stw_component state[] = {STW_COMPONENT_MASTER, STW_COMPONENT_EXP_AVG,
                                          STW_COMPONENT_EXP_AVG_SQ};
    for (int i = 0; i < 3 && run->checkpoint.optimizer; i++)
        states += stw_job_element_bytes(job, state[i]) > 0;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) tensors += stw_job_part(job, t) > 0;
    return (uint32_t)stw_min_u64(stw_times(tensors, states), UINT32_MAX);
}

/* Megatron-FSDP: shapes of all uneven shards, then torch.distributed.checkpoint (fsdp2/save.c).
 * torch_dist: shards are gathered for validation and by data-parallel ranks, plans gathered;
 * results are gathered, and success is broadcast. */
static void agree(const stw_job *job, stw_save *save) {
    if (stw_megatron_is_fsdp(job->run)) {
        save->before[0] = (stw_agreement){STW_RANK_GROUP_DP, uneven_tensors(job)};
        save->before[1] = save->after = (stw_agreement){STW_RANK_GROUP_WORLD, 2};
        return;
    }
    save->before[0] = (stw_agreement){STW_RANK_GROUP_DP, 1};
    save->before[1] = save->after = (stw_agreement){STW_RANK_GROUP_WORLD, 2};
}

stw_save stw_megatron_save(const stw_builder *b, const stw_megatron_state *s) {
    static const stw_component state[] = {STW_COMPONENT_MASTER, STW_COMPONENT_EXP_AVG,
                                          STW_COMPONENT_EXP_AVG_SQ};
    const stw_job *job = b->job;
    const stw_run_spec *run = job->run;
    const bool sharded = stw_megatron_settings_of(run).distributed_optimizer;
    stw_save save = {.all_first = true, .files = 2}; /* thread_count of its writer */
    if (!stw_saves(job) || b->status != STW_STATUS_OK) return save;
    if (run->checkpoint.model)
        add(b, &save, STW_COMPONENT_PARAMS, STW_TIER_GPU,
            share_of(job, &s->params, STW_COMPONENT_PARAMS, true));
    for (int i = 0; i < 3 && run->checkpoint.optimizer; i++) {
        const uint64_t element = stw_job_element_bytes(job, state[i]);
        share all = share_of(job, &s->shard, state[i], !sharded), host = all;
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
    agree(job, &save);
    return save;
}

void stw_megatron_save_metadata(const stw_job *job, char *out, size_t out_size) {
    snprintf(out, out_size, "%s",
             stw_megatron_is_fsdp(job->run)
                 ? "format fsdp_dtensor: one for the shape of each uneven shard of parameters and "
                   "states, then those of torch.distributed.checkpoint"
                 : "format torch_dist: shards are gathered for validation and by data-parallel "
                   "ranks, plans and results gathered, success broadcast");
}

/* Tensors of whose state a rank holds elements: of the rank with the fewest, and the most. */
static void count_states(const stw_job *job, uint32_t *least, uint32_t *most) {
    *least = UINT32_MAX;
    *most = 0;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const stw_space *space = &job->kinds[k].spaces[STW_SPACE_OPTIMIZER];
        uint32_t n = 0;
        if (job->kinds[k].home != 0) continue;
        for (uint32_t i = 0; i < space->n_segments; i++)
            n += i == 0 || space->segments[i].tensor != space->segments[i - 1].tensor;
        if (n < *least) *least = n;
        if (n > *most) *most = n;
    }
}

/* The report: https://github.com/NVIDIA/Megatron-LM/issues/4910. */
static void describe_hang(const stw_job *job, char *out, size_t out_size) {
    uint32_t least, most;
    count_states(job, &least, &most);
    snprintf(out, out_size,
             "Saving the optimizer is known to hang with megatron.fsdp and "
             "megatron.optimizer_cpu_offload (Megatron-LM issue 4910): ranks that hold different "
             "sets of states issue different sequences of collectives. Here a rank has states of "
             "%u to %u of %u tensors. checkpoint.contents: [model] works, and so does no offload",
             least, most, job->model->n_tensors);
}

void stw_megatron_known_failure(const stw_job *job, char *out, size_t out_size) {
    const stw_run_spec *run = job->run;
    const stw_megatron_settings set = stw_megatron_settings_of(run);
    if (!stw_saves(job) || !run->checkpoint.optimizer) return;
    if (stw_megatron_is_fsdp(run) && set.optimizer_cpu_offload)
        describe_hang(job, out, out_size);
    else if (run->checkpoint.async && run->park.moments)
        snprintf(out, out_size,
                 "Megatron-LM refuses --async-save with optimizer state that waits on the host "
                 "(pull request 6244, chunked-optimizer-state-offload): its writer may still read "
                 "the buffers that the next step fills. checkpoint.async: false works");
}

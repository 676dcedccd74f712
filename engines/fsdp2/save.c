/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (torch v2.11):
 * - distributed/checkpoint/state_dict_saver.py: save() writes shards as they lie; async_save()
 *   first copies the whole state dict into pageable memory (DefaultStager without pinning), those
 *   tensors too that are on the CPU.
 * - distributed/checkpoint/filesystem.py: _OverlappingCpuLoader copies what is on the GPU by
 *   to("cpu", non_blocking=True), of which torch makes page-locked tensors; _write_files_from_queue
 *   keeps each in tensor_dict until the file is complete, also where only a safetensors file needs
 *   that. So the copies of all that a rank writes are there together.
 * - distributed/checkpoint/_dedup_save_plans.py: of replicas of a shard one writes it; planner.py
 *   gives each the same share.
 * - distributed/checkpoint/state_dict.py with full_state_dict and cpu_offload: every tensor is
 *   gathered on the GPU, rank 0 keeps a pageable copy of each. verl/utils/checkpoint/
 *   fsdp_checkpoint_manager.py saves Hugging Face files so; save_pretrained of
 *   transformers 5 cuts them at 50 GB (max_shard_size).
 * - distributed/checkpoint/state_dict_saver.py with utils.py, _DistWrapper: reduce_scatter("plan")
 *   gathers local plans on rank 0 and scatters what it makes of them, all_reduce("write") gathers
 *   results and broadcasts the metadata. */
#include "engines/fsdp2/save.h"

#include <stdio.h>

#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/fsdp_keys.h"
#include "engines/weight_sync.h"

/* State of Stowage's optimizer, of which a state dict has copies in pageable memory
 * (python/stowage/torch): it lies in an arena, by buckets. */
static void add_inside(const stw_builder *b, stw_component component, stw_save *save) {
    const uint64_t element = stw_job_element_bytes(b->job, component);
    const uint64_t replicas = stw_max_u64(stw_job_replicas(b->job), 1);
    uint64_t bytes[STW_N_TIERS] = {0};
    for (uint32_t i = 0; i < b->decisions->n_state; i++) {
        const stw_tier tier = stw_place_tier(&b->decisions->state[i].place, component);
        uint64_t first, params;
        stw_decision_range(b->job, b->decisions, b->layout->kind, i, &first, &params);
        bytes[tier] = stw_plus(bytes[tier], stw_times(params, element));
    }
    for (int t = 0; t < STW_N_TIERS; t++) {
        stw_save_add(save, component, (stw_tier)t, bytes[t] / replicas);
        save->copied_bytes = stw_plus(save->copied_bytes, bytes[t]);
    }
}

stw_save stw_fsdp2_save(const stw_builder *b, const stw_place *place) {
    static const stw_component state[] = {STW_COMPONENT_PARAMS, STW_COMPONENT_MASTER,
                                          STW_COMPONENT_EXP_AVG, STW_COMPONENT_EXP_AVG_SQ};
    const stw_job *job = b->job;
    const stw_run_spec *run = job->run;
    const stw_space *spaces = job->kinds[b->layout->kind].spaces;
    const uint64_t replicas = stw_max_u64(stw_job_replicas(job), 1);
    stw_save save = {
        .pageable = run->checkpoint.async, .all_first = run->checkpoint.async, .files = 1};
    uint64_t all = 0, locked = 0;
    if (!stw_saves(job)) return save;
    for (int i = 0; i < 4; i++) {
        const bool params = state[i] == STW_COMPONENT_PARAMS;
        if (params ? !run->checkpoint.model : !run->checkpoint.optimizer) continue;
        if (!params && stw_engine_steps_inside(&job->engine->spec)) {
            add_inside(b, state[i], &save);
            continue;
        }
        const uint64_t bytes = stw_times(spaces[stw_component_space(state[i])].n,
                                         stw_job_element_bytes(job, state[i]));
        const bool parked = !params && run->park.moments;
        const stw_tier tier = parked ? STW_TIER_HOST : stw_place_tier(place, state[i]);
        stw_save_add(&save, state[i], tier, bytes / replicas);
        all = stw_plus(all, bytes);
        if (tier != STW_TIER_GPU) continue;
        const uint64_t rounding = stw_state_rounding_bytes(job, b->layout->kind, state[i]);
        locked = stw_plus(locked, bytes / replicas);
        save.rounding_bytes = stw_plus(save.rounding_bytes, rounding / replicas);
    }
    if (run->checkpoint.format == STW_CHECKPOINT_HF) {
        stw_save_whole(job, &save);
    } else if (run->checkpoint.async) {
        save.staged_bytes = stw_plus(all, save.copied_bytes);
    } else {
        save.staged_bytes = locked;
    }
    if (save.pageable) save.rounding_bytes = 0;
    if (!save.gathers) /* plans gathered and scattered, results gathered, metadata broadcast */
        save.before[0] = save.after = (stw_agreement){STW_RANK_GROUP_WORLD, 2};
    return save;
}

void stw_fsdp2_save_metadata(const stw_job *job, char *out, size_t out_size) {
    const char *text = "";
    if (job->run->checkpoint.format == STW_CHECKPOINT_HF)
        text = "every rank takes part in one all-gather of each tensor";
    else if (!stw_run_spec_saves_own(job->run))
        text = "torch.distributed.checkpoint gathers and scatters plans, and gathers and "
               "broadcasts results";
    snprintf(out, out_size, "%s", text);
}

/* Full tensors of a model on the host: torch/distributed/checkpoint/state_dict.py cannot hand them
 * over as CPUOffloadPolicy leaves them. */
void stw_fsdp2_known_failure(const stw_job *job, char *out, size_t out_size) {
    const bool syncs = stw_synced_role(job) != NULL;
    const bool saves = stw_saves(job) && job->run->checkpoint.format == STW_CHECKPOINT_HF;
    if (!stw_fsdp_settings_of(job->run).offload_policy || (!syncs && !saves)) return;
    snprintf(
        out, out_size,
        "%s is known to fail with fsdp.offload_policy (verl issue 5995: \"Attempted to set the "
        "storage of a tensor on device cpu to a storage on different device\"): full weights "
        "are made of shards on the host. park.params and park.moments: host instead of the "
        "policy avoid it",
        syncs ? "The weight sync" : "A checkpoint in format hf");
}

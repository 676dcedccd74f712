/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (deepspeed/runtime at 007cca6):
 * - engine.py, save_checkpoint: a barrier, two all-reduces of the tag's hash
 *   (_checkpoint_tag_validation), files, a barrier. _save_checkpoint: rank 0 writes the 16-bit
 *   weights of stages 1 and 2; in stage 3 every rank writes a file of empty placeholders.
 *   _save_zero_checkpoint: every rank writes its partitions of master weights and moments. With
 *   offload_optimizer to NVMe the files of the swap folder are copied (copytree).
 * - torch/serialization.py at v2.11, _save: a storage on the GPU is copied to the host, written and
 *   dropped before the next one. Tensors of a flat buffer share its storage.
 * - engine.py, _zero3_consolidated_16bit_state_dict: weights are gathered module by module, and
 *   rank 0 keeps them. Format hf stands for it (stage3_gather_16bit_weights_on_model_save). */
#include "engines/deepspeed/save.h"

#include <stdio.h>

#include "core/checked.h"

/* The largest storage of a rank's that lies on the GPU. */
static uint64_t largest_storage(const stw_zero *z, bool first) {
    const uint64_t master = stw_job_element_bytes(z->job, STW_COMPONENT_MASTER);
    uint64_t state = 0, weights = 0;
    for (uint32_t g = 0; g < STW_ZERO_GROUPS && z->set.zero_stage < 3; g++) {
        state = stw_max_u64(state, z->group_placed[g]);
        weights = stw_max_u64(weights, z->group_trained[g]);
    }
    for (uint32_t s = 0; s < z->on_gpu && z->set.zero_stage == 3; s++)
        state = stw_max_u64(state, z->sub_groups[s]);
    if (z->set.zero_stage < 3 && z->set.offload_optimizer) state = 0;
    return stw_max_u64(stw_times(state, master), first ? stw_times(weights, z->element) : 0);
}

static void add_state(const stw_zero *z, stw_save *save) {
    static const stw_component state[] = {STW_COMPONENT_MASTER, STW_COMPONENT_EXP_AVG,
                                          STW_COMPONENT_EXP_AVG_SQ};
    const bool offloads = z->set.offload_optimizer != STW_OFFLOAD_NONE;
    const bool swaps = z->set.offload_optimizer == STW_OFFLOAD_NVME;
    const uint64_t on_gpu = offloads ? z->on_gpu_params : z->placed;
    const uint64_t on_nvme = swaps ? stw_min_u64(z->swapped_params, z->placed - on_gpu) : 0;
    for (int i = 0; i < 3; i++) {
        const uint64_t element = stw_job_element_bytes(z->job, state[i]);
        stw_save_add(save, state[i], STW_TIER_GPU, stw_times(on_gpu, element));
        stw_save_add(save, state[i], STW_TIER_HOST,
                     stw_times(z->placed - on_gpu - on_nvme, element));
        stw_save_add(save, state[i], STW_TIER_NVME, stw_times(on_nvme, element));
    }
}

stw_save stw_zero_save(const stw_zero *z) {
    const stw_job *job = z->job;
    const bool first = job->kinds[z->b->layout->kind].first;
    stw_save save = {.pageable = true, .files = first || z->set.zero_stage == 3 ? 2 : 1};
    if (!stw_saves(job) || z->b->status != STW_STATUS_OK) return save;
    if (job->run->checkpoint.format == STW_CHECKPOINT_HF) {
        stw_save_whole(job, &save);
        return save;
    }
    if (first && z->set.zero_stage < 3 && job->run->checkpoint.model) {
        stw_save_add(&save, STW_COMPONENT_PARAMS, STW_TIER_GPU,
                     stw_times(job->model->params, z->element));
        save.parts[0].alone = true;
    }
    add_state(z, &save);
    save.staged_bytes = largest_storage(z, first);
    save.before[0] = (stw_agreement){STW_RANK_GROUP_WORLD, 3};
    save.after = (stw_agreement){STW_RANK_GROUP_WORLD, 1};
    return save;
}

stw_status stw_zero_check_save(const stw_run_spec *run, const char *origin, stw_error *err) {
    if (run->checkpoint.every == 0) return STW_STATUS_OK;
    if (run->checkpoint.async)
        return stw_run_spec_refuse(origin, err, "checkpoint.async", "true",
                                   "false: other checkpoint engines of DeepSpeed than torch's are "
                                   "not planned");
    if (run->checkpoint.format != STW_CHECKPOINT_HF && !run->checkpoint.optimizer)
        return stw_run_spec_refuse(origin, err, "checkpoint.contents", "[model]",
                                   "optimizer, too, or checkpoint.format: hf");
    return STW_STATUS_OK;
}

void stw_zero_save_metadata(const stw_job *job, char *out, size_t out_size) {
    snprintf(out, out_size, "%s",
             job->run->checkpoint.format == STW_CHECKPOINT_HF
                 ? "every rank takes part in one all-gather of each tensor"
                 : "two barriers, and two all-reduces that compare the tag");
}

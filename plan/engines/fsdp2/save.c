/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (torch v2.11):
 * - distributed/checkpoint/state_dict_saver.py: save() writes shards as they lie; async_save()
 *   first copies the whole state dict into pageable memory (DefaultStager without pinning), those
 *   tensors too that are on the CPU.
 * - distributed/checkpoint/_dedup_save_plans.py: of replicas of a shard one writes it; planner.py
 *   gives each the same share.
 * - distributed/checkpoint/state_dict.py with full_state_dict and cpu_offload: every tensor is
 *   gathered on the GPU, rank 0 keeps a pageable copy of each. verl/utils/checkpoint/
 *   fsdp_checkpoint_manager.py saves Hugging Face files so; save_pretrained of
 *   transformers 5 cuts them at 50 GB (max_shard_size). */
#include "plan/engines/fsdp2/save.h"

#include "core/checked.h"

#define SHARD_BYTES 50000000000ull

static uint32_t add_sizes(const stw_space *space, uint64_t element, uint64_t *sizes, uint32_t n) {
    for (uint32_t i = 0; i < space->n_segments && element > 0; i++)
        sizes[n++] = stw_times(space->segments[i].n, element);
    return n;
}

/* Page-locked bytes of a synchronous save: of shards that are on the GPU. */
static uint64_t locked_bytes(const stw_builder *b, const stw_save *save) {
    const stw_space *spaces = b->job->kinds[b->layout->kind].spaces;
    const uint32_t most =
        spaces[STW_SPACE_PARAMS].n_segments + 3 * spaces[STW_SPACE_OPTIMIZER].n_segments;
    uint64_t *sizes = stw_pool_array(b->program->pool, (size_t)most + 1, sizeof *sizes);
    uint32_t n = 0;
    for (uint32_t i = 0; i < save->n && sizes != NULL; i++) {
        const stw_component c = save->parts[i].component;
        if (save->parts[i].tier == STW_TIER_GPU)
            n = add_sizes(&spaces[stw_component_space(c)], stw_job_element_bytes(b->job, c), sizes,
                          n);
    }
    if (sizes == NULL) return 0;
    stw_sort_sizes(sizes, n);
    return stw_dcp_locked_bytes(sizes, n);
}

stw_save stw_fsdp2_save(const stw_builder *b, const stw_place *place) {
    static const stw_component state[] = {STW_COMPONENT_PARAMS, STW_COMPONENT_MASTER,
                                          STW_COMPONENT_EXP_AVG, STW_COMPONENT_EXP_AVG_SQ};
    const stw_job *job = b->job;
    const stw_run_spec *run = job->run;
    const stw_space *spaces = job->kinds[b->layout->kind].spaces;
    const uint64_t replicas = stw_max_u64(job->world / stw_max_u64(job->group, 1), 1);
    stw_save save = {
        .pageable = run->checkpoint.async, .all_first = run->checkpoint.async, .files = 1};
    uint64_t all = 0;
    if (!stw_saves(job)) return save;
    for (int i = 0; i < 4; i++) {
        const bool params = state[i] == STW_COMPONENT_PARAMS;
        if (params ? !run->checkpoint.model : !run->checkpoint.optimizer) continue;
        const uint64_t bytes = stw_times(spaces[stw_component_space(state[i])].n,
                                         stw_job_element_bytes(job, state[i]));
        const bool parked = !params && run->park.moments;
        const stw_tier tier = parked ? STW_TIER_HOST : stw_place_tier(place, state[i]);
        stw_save_add(&save, state[i], tier, bytes / replicas);
        all = stw_plus(all, bytes);
    }
    if (run->checkpoint.format == STW_CHECKPOINT_HF) {
        save.gathers = save.pageable = true;
        save.file_bytes = save.staged_bytes =
            stw_times(job->files.n, stw_job_element_bytes(job, STW_COMPONENT_PARAMS));
        save.files = (uint32_t)stw_div_up_u64(save.file_bytes, SHARD_BYTES);
    } else if (run->checkpoint.async) {
        save.staged_bytes = all;
    } else {
        save.staged_bytes = locked_bytes(b, &save);
    }
    return save;
}

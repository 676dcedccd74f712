/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/job/images.h"

#include <string.h>

#include "core/checked.h"

bool stw_model_has_vision(const stw_model *model) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.vision) return true;
    return false;
}

uint64_t stw_model_merged_patches(const stw_model *model) {
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        const stw_block_group *group = &model->groups[model->blocks[tensor->block].group];
        const uint64_t width = group->facts.hidden;
        if (group->facts.vision && width > 0 && tensor->rank == 2 &&
            strcmp(group->name, "vision_merger") == 0)
            return tensor->shape[1] % width == 0 ? tensor->shape[1] / width : 0;
    }
    return 0;
}

/* Towers that take images of any size embed patches of two frames: [width, channels, 2, patch,
 * patch]. */
uint64_t stw_model_token_pixels(const stw_model *model) {
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        if (!model->groups[model->blocks[tensor->block].group].facts.vision || tensor->rank != 5)
            continue;
        return stw_times(stw_times(tensor->shape[3], tensor->shape[4]),
                         stw_model_merged_patches(model));
    }
    return 0;
}

uint64_t stw_job_seen_patches(const stw_job *job) {
    if (job->run->batch.image_tokens == 0) return 0; /* it is asked for every block */
    return stw_times(job->run->batch.image_tokens, stw_model_merged_patches(job->model));
}

uint64_t stw_job_patches(const stw_job *job) {
    const stw_run_spec *run = job->run;
    if (run->batch.image_tokens == 0 || run->batch.seq_len == 0) return 0;
    const uint64_t tokens = stw_times(job->tokens, run->parallel.cp);
    return stw_times(stw_div_up_u64(tokens, run->batch.seq_len), stw_job_seen_patches(job));
}

stw_status stw_job_check_images(const stw_job *job, stw_error *err) {
    const uint64_t tokens = job->run->batch.image_tokens;
    if (tokens == 0) return STW_STATUS_OK;
    if (!stw_model_has_vision(job->model))
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.image_tokens",
                        "found %llu, expected 0: the model has no vision tower",
                        (unsigned long long)tokens);
    if (stw_model_merged_patches(job->model) == 0)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "batch.image_tokens",
                        "found %llu, expected 0: how many patches of the vision tower of %s make a "
                        "token is not known",
                        (unsigned long long)tokens, job->model->name);
    if (job->run->batch.seq_len > 0 && tokens > job->run->batch.seq_len)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "batch.image_tokens",
                        "found %llu, expected at most batch.seq_len, %llu",
                        (unsigned long long)tokens, (unsigned long long)job->run->batch.seq_len);
    if (job->run->trainable.lora_rank == 0 || job->frozen == NULL) return STW_STATUS_OK;
    for (uint32_t t = 0; t < job->model->n_tensors; t++)
        if (stw_job_trains(job, t) &&
            job->model->groups[job->model->blocks[job->model->tensors[t].block].group].facts.vision)
            return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "batch.image_tokens",
                            "found %llu, expected 0 with adapters in the vision tower",
                            (unsigned long long)tokens);
    return STW_STATUS_OK;
}

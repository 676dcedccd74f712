/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_config.py, __post_init__: full recomputation needs a method and a number of layers.
 * transformer_block.py, _checkpointed_forward: uniform recomputes all layers, so many at once;
 * block recomputes the first ones of every chunk, one by one. */
#include "engines/megatron/recompute.h"

#include <stdio.h>

#include "core/checked.h"
#include "engines/megatron/megatron.h"

/* Layers of all chunks, and how many of them are recomputed. @return one kind of layers alone, of
 * which every chunk has as many? */
static bool count_layers(const stw_job *job, const stw_decisions *decisions, uint64_t *layers,
                         uint64_t *recomputed) {
    const stw_megatron_settings set = stw_megatron_settings_of(job->run);
    const uint64_t chunks = stw_times(job->run->parallel.pp, job->run->parallel.vpp);
    uint32_t kinds = 0;
    *layers = *recomputed = 0;
    for (uint32_t g = 0; g < job->model->n_groups; g++) {
        const stw_block_group *group = &job->model->groups[g];
        if (!group->facts.transformer || group->facts.vision) continue;
        kinds++;
        *layers += group->count;
        for (uint32_t i = 0; i < decisions->n_blocks; i++)
            if (decisions->blocks[i].group == g && decisions->blocks[i].act == STW_ACT_RECOMPUTE)
                *recomputed += decisions->blocks[i].count;
    }
    return kinds == 1 && *layers % chunks == 0 && set.pipeline_layout == NULL &&
           set.first_stage_layers + set.last_stage_layers + set.mtp_num_layers == 0 &&
           !set.account_for_embedding && !set.account_for_loss;
}

stw_megatron_recompute stw_megatron_recompute_of(const stw_job *job,
                                                 const stw_decisions *decisions) {
    const stw_run_spec *run = job->run;
    const uint64_t chunks = stw_times(run->parallel.pp, run->parallel.vpp);
    uint64_t layers, recomputed;
    const bool alike = count_layers(job, decisions, &layers, &recomputed);
    if (recomputed == 0) return (stw_megatron_recompute){NULL, 0, false};
    if (run->recompute.method != 0)
        return (stw_megatron_recompute){run->recompute.method == 1 ? "uniform" : "block",
                                        run->recompute.num_layers, true};
    if (recomputed >= layers) return (stw_megatron_recompute){"uniform", 1, true};
    if (!alike) return (stw_megatron_recompute){NULL, 0, true};
    return (stw_megatron_recompute){"block", stw_ratio_up(recomputed, layers / chunks, layers),
                                    true};
}

void stw_megatron_acts_note(const stw_job *job, const stw_decisions *decisions, char *out,
                            size_t out_size) {
    const stw_megatron_recompute is = stw_megatron_recompute_of(job, decisions);
    out[0] = '\0';
    if (is.method != NULL)
        snprintf(out, out_size,
                 "--recompute-granularity full --recompute-method %s --recompute-num-layers %llu",
                 is.method, (unsigned long long)is.num_layers);
    else if (is.any)
        snprintf(out, out_size,
                 "no arguments recompute just these layers; plan with --set "
                 "recompute.granularity=full --set recompute.method=block and "
                 "recompute.num_layers of every chunk");
}

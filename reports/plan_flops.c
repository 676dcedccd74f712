/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/plan_flops.h"

#include <math.h>

#include "engines/bytes.h"

double stw_plan_model_flops(const stw_plan *plan) {
    const stw_job *job = plan->job;
    const stw_model *model = job->model;
    const double head = 2.0 * (double)job->tokens * (double)model->vocab * (double)model->hidden;
    double flops = (1.0 + stw_head_backward_share(job)) * head;
    if (!model->facts_known || job->tokens == 0) return 0.0;
    for (uint32_t b = 0; b < model->n_blocks; b++)
        flops += stw_block_forward_flops(job, b) + stw_block_backward_flops(job, b);
    return flops / (double)job->tokens * stw_plan_iteration_tokens(plan);
}

double stw_plan_mfu(const stw_plan *plan) {
    const stw_cluster *c = &plan->cluster;
    const double seconds = stw_plan_iteration_s(plan), flops = stw_plan_model_flops(plan);
    const double peak = stw_cluster_has_gpus(c) ? c->gpu.bf16_flops * plan->job->world : 0.0;
    return seconds > 0 && flops > 0 && peak > 0 ? flops / seconds / peak : (double)NAN;
}

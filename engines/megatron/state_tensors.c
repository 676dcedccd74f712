/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/megatron/state_tensors.h"

#include "blocks/optimizer.h"
#include "core/checked.h"
#include "engines/megatron/layer_wise.h"
#include "engines/megatron/megatron.h"
#include "plan/program/tensors.h"

static uint64_t element(const stw_builder *b, stw_component component) {
    return stw_job_element_bytes(b->job, component);
}

static bool are_known(const stw_builder *b, const stw_megatron_state *s) {
    const stw_run_spec *run = b->job->run;
    const double fraction = stw_megatron_settings_of(run).optimizer_offload_fraction;
    return s->traced && !run->park.params && !run->park.grads && !run->park.moments &&
           (!(fraction > 0) || !(fraction < 1));
}

/* Parameters lie in flat buffers with the distributed optimizer. Muon alone has them one by one,
 * unless matrices are dealt to ranks. */
static bool maps_params(const stw_job *job) {
    return stw_megatron_settings_of(job->run).distributed_optimizer &&
           (!stw_optimizer_divides(job->run) || stw_megatron_deals(job));
}

/* The buffers of a model chunk, dense parameters' or experts'. Parameters that the distributed
 * optimizer maps into one go one after the other, from the last one on
 * (distributed/param_and_grad_buffer.py, _ParamAndGradBuffer). */
static void make_buffers(stw_builder *b, const stw_megatron_state *s, uint32_t chunk, bool expert,
                         uint32_t params) {
    const bool maps = maps_params(b->job);
    const uint64_t n = stw_megatron_part_of_chunk(&s->params, chunk, expert);
    if (maps) (void)stw_tensor_take(b, 0, stw_times(n, element(b, STW_COMPONENT_PARAMS)));
    (void)stw_tensor_take(b, 0, stw_times(n, element(b, STW_COMPONENT_GRADS)));
    for (uint32_t i = s->params.n; maps && i-- > 0;)
        if (s->params.list[i].expert == expert && s->params.list[i].chunk == chunk)
            stw_tensor_drop(b, params + i);
}

/* optimizer/distrib_optimizer.py, _build_model_and_main_param_groups: clone().float(), from the
 * last parameter on; optimizer.py, Float16OptimizerWithFloat16Params: from the first one on. */
static void make_main_params(stw_builder *b, const stw_megatron_state *s, uint32_t turn) {
    const bool stays =
        !stw_megatron_offloads(b->job) || !stw_megatron_settings_of(b->job->run).precision_aware;
    const uint64_t p = element(b, STW_COMPONENT_PARAMS);
    const uint64_t main = stays ? element(b, STW_COMPONENT_MASTER) : 0;
    for (uint32_t n = 0; n < s->shard.n && main > 0; n++) {
        const stw_megatron_param *param =
            &s->shard.list[maps_params(b->job) ? n : s->shard.n - 1 - n];
        if (stw_megatron_turn(b->job, param) != turn) continue;
        const uint32_t clone = stw_tensor_take(b, 0, stw_times(param->numel, p));
        (void)stw_tensor_take(b, 0, stw_times(param->numel, main));
        stw_tensor_drop(b, clone);
    }
}

/* The first HybridDeviceOptimizer copies parameters in fp32 that it does not offload
 * (hybrid_optimizer.py, _get_sub_optimizer_param_groups). @return the first number */
static uint32_t copy_params(stw_builder *b, const stw_megatron_state *s) {
    if (!stw_megatron_is_hybrid(b->job) || stw_megatron_offloads(b->job)) return STW_NO_TENSOR;
    const bool expert = s->params.expert > s->params.dense;
    const uint32_t first = stw_tensor_numbers(b, s->params.n);
    for (uint32_t i = 0; i < s->params.n; i++)
        if (s->params.list[i].expert == expert)
            stw_tensor_take_as(b, first + i, 0, stw_times(4, s->params.list[i].numel));
    return first;
}

void stw_megatron_load_tensors(stw_builder *b, const stw_megatron_state *s, uint32_t first_op) {
    if (!are_known(b, s)) return;
    stw_tensors_instead(b, first_op);
    const uint32_t params = stw_tensor_numbers(b, s->params.n);
    for (uint32_t i = 0; i < s->params.n; i++)
        stw_tensor_take_as(b, params + i, 0,
                           stw_times(s->params.list[i].numel, element(b, STW_COMPONENT_PARAMS)));
    for (uint32_t chunk = 0; chunk < b->job->run->parallel.vpp; chunk++)
        for (int e = 0; e < 2; e++) make_buffers(b, s, chunk, e == 1, params);
    const uint32_t copies = copy_params(b, s);
    for (uint32_t turn = 0; turn < STW_MEGATRON_TURNS; turn++) make_main_params(b, s, turn);
    for (uint32_t i = 0; i < s->params.n && copies != STW_NO_TENSOR; i++)
        stw_tensor_drop(b, copies + i);
}

static void take_moments(stw_builder *b, const stw_megatron_param *p) {
    (void)stw_tensor_take(b, 0, stw_times(p->numel, element(b, STW_COMPONENT_EXP_AVG)));
    if (stw_optimizer_keeps(b->job->run, p->matrix, STW_COMPONENT_EXP_AVG_SQ))
        (void)stw_tensor_take(b, 0, stw_times(p->numel, element(b, STW_COMPONENT_EXP_AVG_SQ)));
}

void stw_megatron_moment_tensors(stw_builder *b, const stw_megatron_state *s, uint32_t first_op) {
    if (!are_known(b, s)) return;
    stw_tensors_instead(b, first_op);
    for (uint32_t i = 0; i < s->shard.n && s->matrices == 0; i++)
        take_moments(b, &s->shard.list[i]);
}

void stw_megatron_moments_of(stw_builder *b, const stw_megatron_state *s, bool matrix,
                             bool expert) {
    for (uint32_t i = s->shard.n; are_known(b, s) && i-- > 0;) {
        const stw_megatron_param *p = &s->shard.list[i];
        if (p->matrix == matrix && (!matrix || p->expert == expert)) take_moments(b, p);
    }
}

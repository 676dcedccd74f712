/* SPDX-License-Identifier: Apache-2.0 */
/* A reference model is made without DDP: its parameters in 16 bits, no flat buffers, no gradients,
 * no optimizer. On the host it waits tensor by tensor in page-locked memory, by to("cpu",
 * non_blocking=True) (verl/utils/megatron_utils.py, offload_megatron_model_to_cpu, "for ref
 * module"), and it comes back whole for its forward (workers/megatron_workers.py,
 * compute_ref_log_prob). It is read rank by rank, so that the host holds no whole model.
 *
 * The forward runs without autograd. A block counts with all that its backward would keep, which is
 * an upper bound, and is gone when the next one runs. Micro batches follow each other; the last
 * stage makes logits and their cross entropy as in training. */
#include "engines/megatron/reference.h"

#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/megatron/acts.h"
#include "engines/megatron/blocks.h"
#include "engines/megatron/fp8.h"
#include "engines/megatron/params.h"
#include "engines/movements.h"
#include "engines/park.h"

static void take(stw_builder *b, stw_component component, uint64_t bytes) {
    stw_alloc_at(b, component, STW_TIER_GPU, STW_OFFSET_EXTERNAL, bytes);
}

static void drop(stw_builder *b, stw_component component, uint64_t bytes) {
    stw_free_at(b, component, STW_TIER_GPU, STW_OFFSET_EXTERNAL, bytes);
}

/* The parameters of a rank as what is parked. */
static stw_parcel parcel_of(const stw_job *job, const stw_megatron_params *params) {
    const uint64_t element = stw_job_element_bytes(job, STW_COMPONENT_PARAMS);
    stw_parcel out = {.component = STW_COMPONENT_PARAMS,
                      .parking = STW_PARKING_KEPT,
                      .offset_bytes = STW_OFFSET_EXTERNAL,
                      .bytes = stw_times(stw_plus(params->dense, params->expert), element)};
    for (uint32_t i = 0; i < params->n; i++)
        out.rounding_bytes =
            stw_plus(out.rounding_bytes,
                     stw_page_lock_rounding_bytes(stw_times(params->list[i].numel, element)));
    return out;
}

/* At the widest moment of a forward through the layers of a stage. */
static uint64_t layers_bytes(const stw_job *job, uint32_t stage) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < job->model->n_blocks; i++) {
        if (!stw_megatron_is_layer(job, i) || !stw_megatron_holds(job, stage, i)) continue;
        const stw_megatron_layer layer =
            stw_megatron_layer_of(job, job->model->blocks[i].group, stw_megatron_is_fp8(job, i));
        most = stw_max_u64(most, stw_plus(layer.whole, layer.forward));
    }
    return most;
}

static void forward(stw_builder *b, uint32_t stage) {
    const stw_job *job = b->job;
    const uint32_t stages = job->run->parallel.pp;
    const uint64_t hidden = stw_megatron_hidden_bytes(job);
    const uint64_t around = stw_plus(stw_megatron_buffer_bytes(job),
                                     stw_times(hidden, stages > 1 ? 2 : 1)); /* in and out */
    take(b, STW_COMPONENT_STAGE, around);
    const uint64_t layers = layers_bytes(job, stage);
    take(b, STW_COMPONENT_ACTIVATIONS, layers);
    drop(b, STW_COMPONENT_ACTIVATIONS, layers);
    if (stage + 1 == stages) {
        const stw_megatron_loss loss = stw_megatron_loss_of(job);
        const uint64_t bytes = STW_SUM(loss.kept, loss.logits, loss.forward);
        take(b, STW_COMPONENT_LOGITS, bytes);
        drop(b, STW_COMPONENT_LOGITS, bytes);
    }
    drop(b, STW_COMPONENT_STAGE, around);
}

stw_status stw_megatron_build_untrained(const stw_job *job, bool on_host, stw_program *program,
                                        stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t stage = job->kinds[program->kind].stage;
    stw_park park = {.n = 0};
    stw_megatron_params params;
    stw_builder b;
    stw_builder_init(&b, job, NULL, NULL, program, err);
    STW_TRY(stw_megatron_params_of(job, stage, program->pool, &params, err));
    const stw_parcel parcel = parcel_of(job, &params);
    if (on_host) stw_park_add(&b, &park, parcel);
    stw_begin_movement(&b, (stw_movement){.phase = STW_PHASE_LOAD, .repeat = STW_REPEAT_ONCE});
    stw_build_externals(&b);
    take(&b, STW_COMPONENT_PARAMS, parcel.bytes);
    stw_park_leave(&b, &park, STW_PARKED_PARAMS, STW_OP_NONE);
    stw_end_movement(&b);
    stw_begin_movement(
        &b, (stw_movement){.phase = STW_PHASE_LOG_PROB, .repeat = STW_REPEAT_EVERY_ITERATION});
    stw_park_return(&b, &park, STW_PARKED_PARAMS, true);
    forward(&b, stage);
    stw_park_leave(&b, &park, STW_PARKED_PARAMS, STW_OP_NONE);
    stw_end_movement(&b);
    status = stw_builder_finish(&b);
out:
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP2's shard group of one rank gathers and scatters nothing, and its replicas are summed.
 * - Parameters, gradients and moments have the dtype of the weights (torch/optim/adam.py,
 *   zeros_like). Weights in 16 bits: accelerate's autocast (accelerator.py, prepare_model) casts
 *   nothing.
 * - Trained weights in fp32: autocast keeps a copy of each in 16 bits until forward and backward
 *   are over (aten/src/ATen/autocast_mode.cpp, cached_cast), as unsharded parameters that are not
 *   resharded. Gradients and moments are in fp32. Adapters alone are small: their weights are
 *   planned in 16 bits, the rest in fp32.
 * - DistributedDataParallel holds buckets as large as all trained gradients besides
 *   (torch/nn/parallel/distributed.py, gradient_as_bucket_view=False). Those of adapters are not
 *   counted, and the assumption says so. */
#include "planner/frameworks/import/torch.h"

#define ALL_ON_SEVERAL                                                                             \
    "DistributedDataParallel with all parameters: not implemented: its buckets are as large as "   \
    "the gradients; use deepspeed with ZeRO-2"

static void set_dtypes(stw_reading *r, const stw_plain_torch *t) {
    static const char *const trained[] = {"precision.grads", "precision.exp_avg",
                                          "precision.exp_avg_sq"};
    const char *dtype = t->trainer->dtype;
    stw_reading_set(r, "precision.params", t->wide && !t->lora ? "fp32" : dtype);
    for (size_t i = 0; i < 3; i++) stw_reading_set(r, trained[i], t->wide ? "fp32" : dtype);
    stw_reading_set(r, "precision.compute", dtype);
    if (t->wide && !t->lora) stw_reading_set(r, "fsdp.reshard_after_forward", "false");
}

#define SHARDS_OF_1 "as FSDP2 with shards of 1"
#define BUCKETS(bytes) ", without its buckets: " bytes " more bytes of each element of adapters"

static void say(stw_reading *r, const stw_plain_torch *t) {
    const char *several = t->wide ? "DistributedDataParallel: " SHARDS_OF_1 BUCKETS("4")
                                  : "DistributedDataParallel: " SHARDS_OF_1 BUCKETS("2");
    const char *either = "torch on one GPU, DistributedDataParallel on several: " SHARDS_OF_1
                         ", without its buckets";
    const bool one = t->gpus == 1 || !t->lora;
    stw_reading_assume(r, t->off, "none",
                       one           ? "torch on one GPU: " SHARDS_OF_1
                       : t->gpus > 0 ? several
                                     : either);
    if (!t->lora) return;
    stw_reading_assume(r, "dtype of adapters", t->trainer->dtype,
                       t->wide ? "they are in fp32, as their gradients and moments are planned: 2 "
                                 "more bytes of each element"
                               : "peft makes them in fp32: 8 more bytes of each element");
}

void stw_torch_read(stw_reading *r, const stw_plain_torch *t) {
    const stw_trainer_arguments *trainer = t->trainer;
    if (t->gpus > 1 && !t->lora)
        stw_reading_fail(
            r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path, "%s", ALL_ON_SEVERAL));
    if (!t->lora) r->out->one_gpu = ALL_ON_SEVERAL;
    r->out->replicated = true;
    stw_reading_set(r, "engine", "fsdp2");
    set_dtypes(r, t);
    stw_reading_set_count(r, "parallel.dp_shard", 1);
    if (t->gpus > 0) stw_reading_set_count(r, "parallel.dp_replicate", t->gpus);
    if (t->gpus != 1 && t->lora)
        stw_reading_set(r, "precision.reduce", t->wide ? "fp32" : trainer->dtype);
    stw_reading_set(r, "load.method", "all_ranks");
    stw_reading_set(r, "optimizer.implementation", t->fused ? "fused" : "foreach");
    stw_reading_set(r, "batch.micro_batch", trainer->micro_batch);
    stw_reading_set(r, "batch.grad_accumulation", trainer->accumulation);
    stw_reading_set(r, "optimizer.clip_norm", trainer->clip_norm);
    say(r, t);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-LM with local layers (transformer-impl local): parameters and gradients in flat buffers,
 * optimizer state whole or in ranges over data-parallel ranks (distributed optimizer), on the GPU
 * or partly on the host (HybridDeviceOptimizer). Stowage predicts it and executes none of it. */
#include "engines/megatron/megatron.h"
#include "engines/bytes.h"

#include <stdio.h>

#include "core/checked.h"
#include "engines/built_in.h"
#include "engines/cpu_step.h"
#include "engines/megatron/deepep.h"
#include "engines/megatron/fp8.h"
#include "engines/megatron/lora.h"
#include "engines/megatron/mtp.h"
#include "engines/megatron/offload.h"
#include "engines/megatron/params.h"
#include "engines/megatron/pass.h"
#include "engines/megatron/recompute.h"
#include "engines/megatron/reference.h"
#include "engines/megatron/save.h"
#include "engines/megatron/state.h"
#include "engines/megatron/sync.h"
#include "engines/park.h"

static const stw_place resident = {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_GPU, STW_UPDATE_RESIDENT};
static const stw_place offloaded = {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_CPU};

static stw_status check(const stw_run_spec *run, const char *origin, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_megatron_check(run, origin, err));
    STW_TRY(stw_megatron_check_fp8(run, origin, err));
    STW_TRY(stw_megatron_check_offload(run, origin, err));
    STW_TRY(stw_megatron_check_deepep(run, origin, err));
    STW_TRY(stw_megatron_check_lora(run, origin, err));
out:
    return status;
}

static bool wants(uint32_t wish, stw_tier tier) {
    return wish == STW_AUTO || wish == (uint32_t)tier;
}

static uint32_t places(const stw_job *job, stw_place *out, stw_error *err) {
    const stw_run_spec *run = job->run;
    const stw_place *place = stw_megatron_offloads(job) ? &offloaded : &resident;
    if (wants(run->placement.params, place->params) && wants(run->placement.grads, place->grads) &&
        wants(run->placement.moments, place->moments) &&
        wants(run->placement.master, place->moments)) {
        out[0] = *place;
        return 1;
    }
    (void)stw_fail(err, STW_STATUS_BAD_INPUT, "placement",
                   "Megatron-LM cannot execute this placement: params and grads stay on the GPU, "
                   "master and moments too unless megatron.optimizer_offload_fraction is above 0");
    return 0;
}

static stw_status build(const stw_job *job, const stw_decisions *decisions,
                        const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_builder b;
    stw_megatron_state state;
    stw_park park = {.n = 0};
    stw_builder_init(&b, job, decisions, layout, program, err);
    b.park = &park;
    stw_extent *left = stw_pool_array(program->pool, job->model->n_blocks, sizeof *left);
    if (left == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "program", "out of memory");
    stw_megatron_look_at_state(&b, &state);
    stw_megatron_look_at_offload(&b, &state);
    stw_megatron_build_load(&b, &state);
    stw_megatron_build_step(&b, &state, true, NULL);
    if (job->model->facts_known) stw_megatron_build_pass(&b, &state, left);
    stw_megatron_build_step(&b, &state, false, left);
    stw_megatron_build_sync(&b);
    const stw_save save = stw_megatron_save(&b, &state);
    stw_build_checkpoint(&b, &save);
    return stw_builder_finish(&b);
}

static const char *const keys[] = {"megatron.",
                                   "batch.decoder_seq_len",
                                   "moe.dispatcher",
                                   "moe.capacity_factor",
                                   "parallel.tp",
                                   "parallel.pp",
                                   "parallel.vpp",
                                   "parallel.sequence_parallel",
                                   "optimizer.kind",
                                   "optimizer.clip_norm",
                                   "recompute.method",
                                   "recompute.num_layers",
                                   "recompute.modules",
                                   "park.params",
                                   "park.grads",
                                   "park.moments",
                                   "park.moments_back",
                                   "park.reuse_copies",
                                   "park.backups",
                                   "trainable.lora.rank",
                                   "trainable.lora.targets",
                                   "checkpoint.",
                                   "weight_sync.",
                                   NULL};
static const stw_engine_refusal refuses[] = {{"optimizer.implementation", "streamed"},
                                             {"optimizer.implementation", "stowage"},
                                             {"checkpoint.format", "hf"},
                                             {"checkpoint.format", "dcp"},
                                             {"checkpoint.format", "stowage"},
                                             {"optimizer.implementation", "loop"},
                                             {"optimizer.implementation", "direct"},
                                             {"optimizer.implementation", "cpu"},
                                             {"placement.params", "host"},
                                             {"placement.params", "nvme"},
                                             {"placement.grads", "host"},
                                             {"placement.grads", "nvme"},
                                             {"placement.master", "nvme"},
                                             {"placement.moments", "nvme"},
                                             {"placement.activations", "offload"},
                                             {"load.method", "all_ranks_gpu"},
                                             {NULL, NULL}};
/* --bf16 (megatron/training/arguments.py) */
static const stw_engine_default defaults[] = {
    {"precision.params", "bf16"}, {"precision.master", "fp32"}, {NULL, NULL}};
/* --fp16: gradients are not accumulated in fp32 unless a flag says so */
static const stw_engine_default fp16[] = {
    {"precision.params", "fp16"}, {"precision.compute", "fp16"}, {"precision.grads", "fp16"},
    {"precision.reduce", "fp16"}, {"precision.master", "fp32"},  {NULL, NULL}};
static const stw_engine_fix fixes[] = {
    {"recompute.granularity", "full", "keeps only the input of every block", NULL},
    {"megatron.optimizer_offload_fraction", "1", "keeps master and moments on the host", NULL},
    {NULL, NULL, NULL, NULL}};

/* Flags of megatron/training/arguments.py. --optimizer-offload-fraction is 1 there once
 * --optimizer-cpu-offload is given: the planner takes another one only then. */
#define OFFLOADED "megatron.optimizer_cpu_offload=true"
/* Of every four blocks one input is kept: room for state on the GPU. */
#define FEW_INPUTS " recompute.granularity=full recompute.method=uniform recompute.num_layers=4"
static const stw_engine_turn turns[] = {
    {"recompute.granularity=selective recompute.modules=[core_attn]", NULL, NULL, NULL},
    {"recompute.granularity=selective recompute.modules=[mlp]", NULL, NULL, NULL},
    {"recompute.granularity=selective recompute.modules=[layernorm]", NULL, NULL, NULL},
    {"recompute.granularity=selective recompute.modules=[mlp,layernorm]", NULL, NULL, NULL},
    {"recompute.granularity=selective recompute.modules=[moe]", NULL, NULL, NULL},
    {"recompute.granularity=selective recompute.modules=[moe_act]", NULL, NULL, NULL},
    {"recompute.granularity=selective recompute.modules=[moe_act,layernorm]", NULL, NULL, NULL},
    {"megatron.optimizer_offload_fraction=0.05", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.1", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.2", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.3", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.4", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.5", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.6", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.7", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.8", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.9", OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.05" FEW_INPUTS, OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.1" FEW_INPUTS, OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.2" FEW_INPUTS, OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.3" FEW_INPUTS, OFFLOADED, "1", NULL},
    {"megatron.optimizer_offload_fraction=0.4" FEW_INPUTS, OFFLOADED, "1", NULL},
    {"megatron.overlap_grad_reduce=true megatron.overlap_param_gather=true", NULL, NULL, NULL},
    {"megatron.overlap_grad_reduce=true", NULL, NULL, NULL},
    {"megatron.overlap_d2h_h2d=true", OFFLOADED, NULL, NULL},
    {"moe.dispatcher=allgather", NULL, NULL, NULL},
    {"moe.dispatcher=deepep", NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL}};

/* GPU: tests/measured/megatron.csv (a tied head on a last stage); of TransformerEngine the worst
 * row of megatron_golden.csv whose attention backend its flags tell. Reserved: q17_dp2_hdo1.0 of
 * megatron.csv; of TransformerEngine, whose tensors have no known order, what l8b_cp4_32k_full had
 * without one. Host: no run was measured; that of parked state of torch's processes
 * (tests/measured/fsdp2_host.csv). */
static stw_margins margins(const stw_job *job) {
    const bool te = stw_megatron_settings_of(job->run).transformer_impl == 1;
    return (stw_margins){.gpu = te ? 0.154 : 0.017, .reserved = te ? 0.193 : 0.072, .host = 0.063};
}

/* megatron/core/models/gpt/gpt_layer_specs.py, get_gpt_layer_local_spec: DotProductAttention, which
 * keeps scores whatever --attention-backend says. */
static void lacks(const stw_job *job, char *out, size_t out_size) {
    if (!job->model->facts_known || job->run->attention == STW_ATTENTION_EAGER ||
        stw_megatron_settings_of(job->run).transformer_impl == 1)
        return;
    snprintf(out, out_size,
             "local layers of Megatron-LM have no flash attention, which is planned here: they "
             "keep scores (attention: eager); --set "
             "megatron.transformer_impl=transformer_engine plans layers with flash attention");
}

/* Its own checkpoints (megatron/core/dist_checkpointing/serialization.py, load). */
static stw_load usual_load(const stw_run_spec *run) {
    (void)run;
    return STW_LOAD_SHARDED_READ;
}

const stw_engine stw_engine_megatron = {
    .spec = {.name = "megatron",
             .section = &stw_megatron_section,
             .keys = keys,
             .refuses = refuses,
             .defaults = defaults,
             .fp16 = fp16,
             .updates = 1u << STW_UPDATE_RESIDENT | 1u << STW_UPDATE_CPU,
             .check = check},
    .save_metadata = stw_megatron_save_metadata,
    .known_failure = stw_megatron_known_failure,
    .lacks = lacks,
    .usual_load = usual_load,
    .load_note = "Megatron-LM reads its own checkpoints rank by rank; plan whole-model loading "
                 "with --set load.method=all_ranks.",
    .assumed_optimizer = "fused",
    .acts_note = stw_megatron_acts_note,
    .encoders = true,
    .margins = margins,
    .fixes = fixes,
    .turns = turns,
    .layouts = &stw_megatron_layouts,
    .trains = stw_megatron_trains,
    .adapted = stw_megatron_adapted,
    .sizes = stw_megatron_sizes,
    .group_size = stw_megatron_group_size,
    .stage = stw_megatron_stage,
    .batch_bytes = stw_batch_bytes,
    .n_more_spaces = 1,
    .representative = stw_megatron_representative,
    .cut = stw_megatron_cut,
    .counts = stw_megatron_counts,
    .places = places,
    .acts = 1u << STW_ACT_KEEP | 1u << STW_ACT_RECOMPUTE,
    .whole = true,
    .prefetch_by_group = true,
    .cpu_step = stw_megatron_cpu_step,
    .cpu_advice = stw_cpu_thread_advice,
    .cpu_rate = stw_megatron_cpu_rate,
    .more_regions = stw_megatron_regions,
    .build = build,
    .build_untrained = stw_megatron_build_untrained,
};

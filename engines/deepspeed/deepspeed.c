/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's ZeRO stages 1 to 3, with the optimizer or all state on the host or, of stage 3, on
 * NVMe (ZeRO-Infinity), of a model of transformers. Stowage predicts it and executes none of it. */
#include "core/checked.h"
#include "engines/built_in.h"
#include "engines/bytes.h"
#include "engines/cpu_step.h"
#include "engines/decoder.h"
#include "engines/deepspeed/parts.h"
#include "engines/deepspeed/save.h"
#include "engines/deepspeed/swap.h"
#include "engines/layouts.h"
#include "engines/weight_sync.h"

static bool wants(uint32_t wish, stw_tier tier) {
    return wish == STW_AUTO || wish == (uint32_t)tier;
}

/* Rates have no effect on a plan; groups have one where they cut buffers. */
static bool has_one_group(const stw_job *job) {
    uint32_t only = STW_ZERO_FROZEN;
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        if (!stw_job_trains(job, t)) continue;
        const uint32_t group = stw_job_param_group(job, t);
        if (only != STW_ZERO_FROZEN && group != only) return false;
        only = group;
    }
    return true;
}

static uint32_t places(const stw_job *job, stw_place *out, stw_error *err) {
    const stw_deepspeed_settings set = stw_deepspeed_settings_of(job->run);
    static const stw_tier tiers[] = {[STW_OFFLOAD_NONE] = STW_TIER_GPU,
                                     [STW_OFFLOAD_CPU] = STW_TIER_HOST,
                                     [STW_OFFLOAD_NVME] = STW_TIER_NVME};
    const stw_place place = {
        tiers[set.offload_param], set.offload_optimizer ? STW_TIER_HOST : STW_TIER_GPU,
        tiers[set.offload_optimizer], set.offload_optimizer ? STW_UPDATE_CPU : STW_UPDATE_RESIDENT};
    const struct {
        const char *key;
        uint32_t wish;
        stw_tier tier;
    } wishes[] = {{"placement.params", job->run->placement.params, place.params},
                  {"placement.grads", job->run->placement.grads, place.grads},
                  {"placement.master", job->run->placement.master, place.moments},
                  {"placement.moments", job->run->placement.moments, place.moments}};
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++)
        if (!wants(wishes[i].wish, wishes[i].tier)) {
            (void)stw_fail(err, STW_STATUS_BAD_INPUT, wishes[i].key,
                           "found %s, expected auto or %s: deepspeed.offload_optimizer and "
                           "deepspeed.offload_param say where state lies",
                           stw_tier_name((stw_tier)wishes[i].wish), stw_tier_name(wishes[i].tier));
            return 0;
        }
    if (job->cluster->nvme.capacity_bytes == 0 && stw_place_disk_element_bytes(job, &place) > 0) {
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "placement",
                       "deepspeed.%s: nvme needs node.nvme.capacity > 0",
                       place.params == STW_TIER_NVME ? "offload_param" : "offload_optimizer");
        return 0;
    }
    if (job->world > 1 && job->run->precision.reduce != job->run->precision.params) {
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "precision.reduce",
                       "found fp32, expected the dtype of precision.params, in which DeepSpeed "
                       "reduces gradients (communication_data_type)");
        return 0;
    }
    if (job->run->optimizer.n_groups > 0 && has_one_group(job)) {
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "optimizer.groups",
                       "found one group that has all trained tensors, expected several: rates "
                       "alone change no plan of engine deepspeed");
        return 0;
    }
    *out = place;
    return 1;
}

static stw_status build(const stw_job *job, const stw_decisions *decisions,
                        const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_builder b;
    stw_zero z;
    stw_builder_init(&b, job, decisions, layout, program, err);
    if (!stw_zero_init(&z, &b) || !stw_swap_init(&z)) return stw_builder_finish(&b);
    const stw_save save = stw_zero_save(&z);
    stw_zero_build_load(&z);
    stw_zero_build_step(&z, true);
    if (job->model->facts_known) stw_zero_build_forward_backward(&z);
    stw_zero_build_step(&z, false);
    const stw_sync_source source = stw_sync_of_chunks(job);
    stw_build_weight_sync(&b, &source);
    stw_build_checkpoint(&b, &save);
    return stw_builder_finish(&b);
}

static const char *const keys[] = {
    "deepspeed.",       "weight_sync.",        "optimizer.clip_norm",
    "optimizer.groups", "trainable.lora.rank", "trainable.lora.targets",
    "trainable.freeze", "checkpoint.",         NULL};
static const stw_engine_refusal refuses[] = {{"recompute.granularity", "selective"},
                                             {"optimizer.implementation", "loop"},
                                             {"optimizer.implementation", "streamed"},
                                             {"optimizer.implementation", "direct"},
                                             {"optimizer.implementation", "stowage"},
                                             {"placement.grads", "nvme"},
                                             {"placement.activations", "offload"},
                                             {"checkpoint.format", "dcp"},
                                             {"checkpoint.format", "torch_dist"},
                                             {"checkpoint.format", "stowage"},
                                             {NULL, NULL}};
/* bf16 with ZeRO: runtime/engine.py, get_data_types and communication_data_type. */
static const stw_engine_default defaults[] = {{"precision.params", "bf16"},
                                              {"precision.grads", "bf16"},
                                              {"precision.reduce", "bf16"},
                                              {"precision.master", "fp32"},
                                              {NULL, NULL}};
static const stw_engine_default fp16[] = {
    {"precision.params", "fp16"}, {"precision.compute", "fp16"}, {"precision.grads", "fp16"},
    {"precision.reduce", "fp16"}, {"precision.master", "fp32"},  {NULL, NULL}};
static const stw_engine_fix fixes[] = {
    {"deepspeed.zero_stage", "3", "cuts parameters and gradients over ranks", NULL},
    {"deepspeed.offload_optimizer", "cpu", "keeps master weights and moments on the host", NULL},
    {"deepspeed.offload_param", "cpu", "keeps parameters, master weights and moments on the host",
     "deepspeed.zero_stage=3 deepspeed.offload_optimizer=cpu"},
    {"deepspeed.pin_memory", "false", "page-locks no host buffers", NULL},
    {"deepspeed.offload_optimizer", "nvme", "keeps master weights and moments on NVMe",
     "deepspeed.zero_stage=3"},
    {"deepspeed.offload_param", "nvme", "keeps parameters, master weights and moments on NVMe",
     "deepspeed.zero_stage=3 deepspeed.offload_optimizer=nvme"},
    {"deepspeed.sub_group_size", "1e8", "cuts the buffers that sub-groups pass through", NULL},
    {NULL, NULL, NULL, NULL}};
/* Keys of runtime/zero/config.py (DeepSpeedZeroConfig). A share of sub-groups (Twin-Flow) needs
 * several of them on a rank: small ones give finer shares, and take more of the GPU. */
#define ON_HOST "deepspeed.offload_optimizer=cpu"
static const stw_engine_turn turns[] = {
    {"deepspeed.max_live_parameters=3e9 deepspeed.max_reuse_distance=3e9", NULL, NULL, NULL},
    {"deepspeed.overlap_comm=true", NULL, NULL, NULL},
    {"deepspeed.zero_stage=2", NULL, NULL, NULL},
    {"deepspeed.zero_stage=1", NULL, NULL, NULL},
    {"deepspeed.ratio=0.1", ON_HOST, NULL, NULL},
    {"deepspeed.ratio=0.3", ON_HOST, NULL, NULL},
    {"deepspeed.ratio=0.6", ON_HOST, NULL, NULL},
    {"deepspeed.ratio=0.1 deepspeed.sub_group_size=1e8", ON_HOST, NULL, NULL},
    {"deepspeed.ratio=0.3 deepspeed.sub_group_size=1e8", ON_HOST, NULL, NULL},
    {"deepspeed.ratio=0.6 deepspeed.sub_group_size=1e8", ON_HOST, NULL, NULL},
    {"deepspeed.ratio=0.9 deepspeed.sub_group_size=1e8", ON_HOST, NULL, NULL},
    {NULL, NULL, NULL, NULL}};
static const uint32_t depths[] = {1, 0};

/* tests/measured/deepspeed.csv: z3offp_q4_ac_8k on the GPU, z3off_q17_ac_4k of what is reserved;
 * hosts held less than predicted. */
static stw_margins margins(const stw_job *job) {
    return stw_decoder_margins(job, (stw_margins){.gpu = 0.003, .reserved = 0.040});
}

/* Stages that the offload allows (keys.c, check_offload). */
static bool admits(const stw_layout_case *c, const uint64_t *value) {
    const stw_deepspeed_settings s = stw_deepspeed_settings_of(c->run);
    const bool cut = s.offload_param != 0 || s.offload_optimizer == STW_OFFLOAD_NVME;
    return stw_layout_divides(c, value) && (!cut || value[STW_SEARCH_OWN_3] == 3);
}

static const stw_layout_rules layouts = {
    .searches = 1u << STW_SEARCH_MICRO_BATCH | 1u << STW_SEARCH_ACCUMULATION |
                1u << STW_SEARCH_FUSED_LOSS | 1u << STW_SEARCH_OWN_3,
    .own = {NULL, NULL, "deepspeed.zero_stage"},
    .admits = admits};

/* transformers (5.17, modeling_utils.py, from_pretrained; integrations/deepspeed.py): with stage 3
 * the model is made within zero.Init, of which rank 0 reads the files and sends every parameter;
 * other stages have no zero.Init, and every rank makes the whole model on its host. */
static stw_load usual_load(const stw_run_spec *run) {
    return stw_deepspeed_settings_of(run).zero_stage == 3 ? STW_LOAD_RANK0_BROADCAST
                                                          : STW_LOAD_ALL_RANKS;
}

/* integrations/deepspeed.py, _load_state_dict_into_zero3_model: rank 0 reads a mapped file, one
 * parameter after the other. */
static bool loads_by_tensors(const stw_run_spec *run) {
    return stw_deepspeed_settings_of(run).zero_stage == 3;
}

/* The coordinator of stage 3 gathers ahead in the order of all uses, of which recomputation is some
 * (fetch.h). */
static bool mixes(const stw_job *job) {
    const stw_deepspeed_settings s = stw_deepspeed_settings_of(job->run);
    return s.zero_stage == 3 && (job->group > 1 || s.offload_param != STW_OFFLOAD_NONE);
}

static stw_status check(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_status status = stw_deepspeed_check(run, origin, err);
    return status == STW_STATUS_OK ? stw_zero_check_save(run, origin, err) : status;
}

const stw_engine stw_engine_deepspeed = {
    .spec = {.name = "deepspeed",
             .section = &stw_deepspeed_section,
             .keys = keys,
             .refuses = refuses,
             .defaults = defaults,
             .fp16 = fp16,
             .updates = 1u << STW_UPDATE_RESIDENT | 1u << STW_UPDATE_CPU,
             .check = check},
    .save_metadata = stw_zero_save_metadata,
    .assumed_optimizer = "FusedAdam on the GPU, DeepSpeedCPUAdam on the host",
    .margins = margins,
    .cpu_step = stw_zero_cpu_step,
    .cpu_advice = stw_cpu_thread_advice,
    .cpu_rate = stw_zero_cpu_rate,
    .cpu_pass = stw_zero_cpu_pass,
    .fixes = fixes,
    .turns = turns,
    .layouts = &layouts,
    .usual_load = usual_load,
    .loads_by_tensors = loads_by_tensors,
    .load_note =
        "Stage 3 of transformers loads so where HfDeepSpeedConfig is made first (zero.Init). "
        "Without it, and with stages 1 and 2, every rank makes the model on its host: "
        "load.method=all_ranks.",
    .places = places,
    .batch_bytes = stw_batch_bytes,
    .representative = stw_zero_representative,
    .cut = stw_zero_cut,
    .counts = stw_zero_counts,
    .mixes = mixes,
    .whole = true,
    .nvme_swaps = true,
    .prefetch_by_group = true,
    .depths = depths,
    .build = build,
};

/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/deepspeed/keys.h"

#include <stdio.h>

#include "plan/spec/spec_rows.h"

#define AT(member) IN(stw_deepspeed_settings, member)
_Static_assert(sizeof(stw_deepspeed_settings) <= STW_SECTION_BYTES, "the settings fit");

static const stw_spec_word offload_devices[] = {{"none", STW_OFFLOAD_NONE, NULL},
                                                {"cpu", STW_OFFLOAD_CPU, NULL},
                                                {"nvme", STW_OFFLOAD_NVME, NULL},
                                                {NULL, 0, NULL}};
/* No row needs an `instead`: a value that is not the default is refused with any other engine. */
static const stw_spec_row rows[] = {
    {COUNT("deepspeed.zero_stage"), AT(zero_stage), .search = 1u << STW_SEARCH_OWN_3,
     .fallback = "3", .note = "1, 2 or 3", BOUNDS(1, 3)},
    {WORDS("deepspeed.offload_optimizer", offload_devices), AT(offload_optimizer),
     .also = "zero_offload offload_optimizer_device", .fallback = "none",
     .note = "none | cpu: gradients, master weights and moments on the host, CPU Adam | nvme: "
             "these three on NVMe, and 16-bit gradients on the host; stage 3"},
    {WORDS("deepspeed.offload_param", offload_devices), AT(offload_param),
     .also = "offload_param_device", .fallback = "none",
     .note = "none | cpu: the shards too; stage 3 with offload_optimizer | nvme: beyond max_in_cpu "
             "on NVMe"},
    {BOOL("deepspeed.pin_memory"), AT(pin_memory), .fallback = "true",
     .note = "page-lock what is offloaded; moments never are"},
    {RATIO("deepspeed.ratio"), AT(ratio), .fallback = "1", BOUNDS(0, 1),
     .note = "Twin-Flow: the share of sub-groups that an offloaded optimizer updates on the CPU"},
    {COUNT("deepspeed.reduce_bucket"), AT(reduce_bucket), .also = "reduce_bucket_size",
     .fallback = "5e8", .note = "elements", BOUNDS(1, 1e15)},
    {BOOL("deepspeed.overlap_comm"), AT(overlap_comm), .fallback = "false",
     .note = "stages 1 and 2: reduce in backward, with a second bucket"},
    {COUNT("deepspeed.sub_group_size"), AT(sub_group_size), .fallback = "1e9",
     .note = "elements of a step's part; stage 3", BOUNDS(1, 1e15)},
    {COUNT("deepspeed.prefetch_bucket"), AT(prefetch_bucket), .also = "stage3_prefetch_bucket_size",
     .fallback = "5e7", .note = "elements; stage 3"},
    {COUNT("deepspeed.max_live_parameters"), AT(max_live_parameters),
     .also = "stage3_max_live_parameters", .fallback = "1e9", .note = "elements; stage 3"},
    {COUNT("deepspeed.max_reuse_distance"), AT(max_reuse_distance),
     .also = "stage3_max_reuse_distance", .fallback = "1e9", .note = "elements; stage 3"},
    {COUNT("deepspeed.persistence_threshold"), AT(persistence_threshold),
     .also = "stage3_param_persistence_threshold", .fallback = "1e5",
     .note = "elements; smaller tensors stay whole on the GPU; stage 3"},
    {COUNT("deepspeed.optimizer_buffer_count"), AT(optimizer_buffer_count),
     .also = "offload_optimizer_buffer_count", .fallback = "4",
     .note = "with offload_optimizer: nvme: page-locked buffers of the largest sub-group in fp32",
     BOUNDS(1, 1024)},
    {BOOL("deepspeed.pipeline_read"), AT(pipeline_read), .fallback = "false",
     .note = "with offload_optimizer: nvme: read a sub-group while the one before it is updated"},
    {BOOL("deepspeed.pipeline_write"), AT(pipeline_write), .fallback = "false",
     .note = "with offload_optimizer: nvme: write a sub-group while the next one is updated"},
    {COUNT("deepspeed.param_buffer_count"), AT(param_buffer_count),
     .also = "offload_param_buffer_count", .fallback = "5",
     .note = "with offload_param: nvme: page-locked buffers, each for one shard", BOUNDS(1, 65536)},
    {COUNT("deepspeed.param_buffer_size"), AT(param_buffer_size),
     .also = "offload_param_buffer_size", .fallback = "1e8", .note = "elements of each",
     BOUNDS(1, 1e12)},
    {COUNT("deepspeed.max_in_cpu"), AT(max_in_cpu), .fallback = "1e9",
     .note = "with offload_param: nvme: elements of a rank's shards that stay on the host"},
    {BYTES("deepspeed.aio_block_size"), AT(aio_block_bytes), .also = "block_size",
     .fallback = "1 MiB", .note = "with nvme: less than this, or than 1 MiB, is not swapped",
     BOUNDS(1, 1e12)},
    {COUNT("deepspeed.aio_intra_op_parallelism"), AT(aio_intra_op_parallelism),
     .also = "thread_count intra_op_parallelism", .fallback = "1",
     .note = "with nvme: threads of a request; files are multiples of 1 KiB of each",
     BOUNDS(1, 1024)},
};

stw_deepspeed_settings stw_deepspeed_settings_of(const stw_run_spec *run) {
    stw_deepspeed_settings settings;
    stw_run_spec_settings(run, &stw_deepspeed_section, &settings);
    return settings;
}

static stw_status check_offload(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_deepspeed_settings s = stw_deepspeed_settings_of(run);
    if (s.offload_param && s.zero_stage < 3)
        return stw_run_spec_refuse_value(run, origin, err, "deepspeed.offload_param",
                                         "none, or deepspeed.zero_stage: 3");
    if (s.offload_param && !s.offload_optimizer)
        return stw_run_spec_refuse_value(run, origin, err, "deepspeed.offload_param",
                                         "none, or deepspeed.offload_optimizer: cpu or nvme");
    if (s.offload_optimizer == STW_OFFLOAD_NVME && s.zero_stage < 3)
        return stw_run_spec_refuse(origin, err, "deepspeed.offload_optimizer", "nvme",
                                   "cpu: stages 1 and 2 keep the same state on the host with nvme");
    if (s.offload_optimizer == STW_OFFLOAD_NVME && s.ratio < 1)
        return stw_run_spec_refuse_value(run, origin, err, "deepspeed.ratio",
                                         "1, because deepspeed.offload_optimizer is nvme");
    if (!s.pin_memory && !s.offload_optimizer)
        return stw_run_spec_refuse(origin, err, "deepspeed.pin_memory", "false",
                                   "true, because deepspeed.offload_optimizer is none");
    return STW_STATUS_OK;
}

const stw_spec_section stw_deepspeed_section = {.name = "deepspeed",
                                                .rows = rows,
                                                .n_rows = sizeof rows / sizeof rows[0],
                                                .size = sizeof(stw_deepspeed_settings),
                                                .check = check_offload};

/* ---- runs with this engine ---- */

/* Keys that only state on NVMe reads. */
static stw_status check_nvme(const stw_run_spec *run, const char *origin, stw_error *err) {
    stw_run_spec defaults;
    stw_status status = stw_run_spec_init(&defaults, err);
    if (status != STW_STATUS_OK) return status;
    const stw_deepspeed_settings s = stw_deepspeed_settings_of(run);
    const stw_deepspeed_settings d = stw_deepspeed_settings_of(&defaults);
    stw_run_spec_free(&defaults);
    const bool optimizer = s.offload_optimizer == STW_OFFLOAD_NVME;
    const bool param = s.offload_param == STW_OFFLOAD_NVME;
    static const char of_optimizer[] = "the default, or deepspeed.offload_optimizer: nvme";
    static const char of_param[] = "the default, or deepspeed.offload_param: nvme";
    const struct {
        const char *key;
        bool set, reads;
        const char *expected;
    } keys[] = {
        {"deepspeed.optimizer_buffer_count", s.optimizer_buffer_count != d.optimizer_buffer_count,
         optimizer, of_optimizer},
        {"deepspeed.pipeline_read", s.pipeline_read, optimizer, of_optimizer},
        {"deepspeed.pipeline_write", s.pipeline_write, optimizer, of_optimizer},
        {"deepspeed.param_buffer_count", s.param_buffer_count != d.param_buffer_count, param,
         of_param},
        {"deepspeed.param_buffer_size", s.param_buffer_size != d.param_buffer_size, param,
         of_param},
        {"deepspeed.max_in_cpu", s.max_in_cpu != d.max_in_cpu, param, of_param},
        {"deepspeed.aio_block_size", s.aio_block_bytes != d.aio_block_bytes, optimizer || param,
         of_optimizer},
        {"deepspeed.aio_intra_op_parallelism",
         s.aio_intra_op_parallelism != d.aio_intra_op_parallelism, optimizer || param,
         of_optimizer},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].set && !keys[i].reads)
            return stw_run_spec_refuse_value(run, origin, err, keys[i].key, keys[i].expected);
    return STW_STATUS_OK;
}

/* Keys that only one kind of stage reads. */
static stw_status check_stage(const stw_run_spec *run, const char *origin, stw_error *err) {
    stw_run_spec defaults;
    stw_status status = stw_run_spec_init(&defaults, err);
    if (status != STW_STATUS_OK) return status;
    const stw_deepspeed_settings s = stw_deepspeed_settings_of(run);
    const stw_deepspeed_settings d = stw_deepspeed_settings_of(&defaults);
    stw_run_spec_free(&defaults);
    const struct {
        const char *key;
        bool first_stages, set;
    } keys[] = {
        {"deepspeed.overlap_comm", true, s.overlap_comm != d.overlap_comm},
        {"deepspeed.sub_group_size", false, s.sub_group_size != d.sub_group_size},
        {"deepspeed.prefetch_bucket", false, s.prefetch_bucket != d.prefetch_bucket},
        {"deepspeed.max_live_parameters", false, s.max_live_parameters != d.max_live_parameters},
        {"deepspeed.max_reuse_distance", false, s.max_reuse_distance != d.max_reuse_distance},
        {"deepspeed.persistence_threshold", false,
         s.persistence_threshold != d.persistence_threshold},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].set && keys[i].first_stages != (s.zero_stage < 3))
            return stw_run_spec_refuse_value(run, origin, err, keys[i].key,
                                             keys[i].first_stages
                                                 ? "the default, or deepspeed.zero_stage: 1 or 2"
                                                 : "the default, or deepspeed.zero_stage: 3");
    return STW_STATUS_OK;
}

/* DeepSpeed's bf16 and fp16 modes: parameters in 16 bits, an fp32 master copy and fp32 moments;
 * gradients are reduced in the dtype of the parameters (communication_data_type) and collected in
 * it or in fp32 (data_types.grad_accum_dtype). */
static stw_status check_precision(const stw_run_spec *run, const char *origin, stw_error *err) {
    static const char same[] = "the dtype of precision.params, as DeepSpeed's bf16 and fp16 modes "
                               "have it";
    const stw_dtype params = run->precision.params, grads = run->precision.grads;
    if (params != STW_DTYPE_BF16 && params != STW_DTYPE_F16)
        return stw_run_spec_refuse_value(run, origin, err, "precision.params",
                                         "bf16 or fp16, with precision.grads, precision.reduce "
                                         "alike and precision.master: fp32");
    if (run->precision.compute != params)
        return stw_run_spec_refuse_value(run, origin, err, "precision.compute", same);
    if (grads != params && grads != STW_DTYPE_F32)
        return stw_run_spec_refuse_value(run, origin, err, "precision.grads",
                                         "the dtype of precision.params, or fp32");
    if (run->precision.reduce != params && run->precision.reduce != STW_DTYPE_F32)
        return stw_run_spec_refuse_value(run, origin, err, "precision.reduce", same);
    if (!run->precision.has_master)
        return stw_run_spec_refuse(origin, err, "precision.master", "none",
                                   "fp32: DeepSpeed keeps an fp32 copy of its partition");
    if (run->precision.exp_avg != STW_DTYPE_F32)
        return stw_run_spec_refuse_value(run, origin, err, "precision.exp_avg", "fp32");
    if (run->precision.exp_avg_sq != STW_DTYPE_F32)
        return stw_run_spec_refuse_value(run, origin, err, "precision.exp_avg_sq", "fp32");
    return STW_STATUS_OK;
}

static stw_status check_parallel(const stw_run_spec *run, const char *origin, stw_error *err) {
    const struct {
        const char *key;
        uint32_t ways;
    } ways[] = {{"parallel.dp_replicate", run->parallel.dp_replicate},
                {"parallel.cp", run->parallel.cp},
                {"parallel.ep", run->parallel.ep},
                {"parallel.etp", run->parallel.etp}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (ways[i].ways > 1)
            return stw_run_spec_refuse_value(run, origin, err, ways[i].key,
                                             "1, because engine is deepspeed");
    return STW_STATUS_OK;
}

stw_status stw_deepspeed_check(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_deepspeed_settings s = stw_deepspeed_settings_of(run);
    const stw_optimizer_implementation how = run->optimizer.implementation;
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_stage(run, origin, err));
    STW_TRY(check_nvme(run, origin, err));
    STW_TRY(check_precision(run, origin, err));
    STW_TRY(check_parallel(run, origin, err));
    if (s.ratio < 1 && (s.zero_stage < 3 || !s.offload_optimizer))
        return stw_run_spec_refuse_value(run, origin, err, "deepspeed.ratio",
                                         "1, or deepspeed.zero_stage: 3 with "
                                         "deepspeed.offload_optimizer: cpu");
    if (how == STW_OPTIMIZER_CPU && !s.offload_optimizer)
        return stw_run_spec_refuse(origin, err, "optimizer.implementation", "cpu",
                                   "auto, fused or foreach, or deepspeed.offload_optimizer: cpu");
    if ((how == STW_OPTIMIZER_FUSED || how == STW_OPTIMIZER_FOREACH) && s.offload_optimizer)
        return stw_run_spec_refuse(origin, err, "optimizer.implementation",
                                   how == STW_OPTIMIZER_FUSED ? "fused" : "foreach",
                                   s.offload_optimizer == STW_OFFLOAD_NVME
                                       ? "auto or cpu, because deepspeed.offload_optimizer is nvme"
                                       : "auto or cpu, because deepspeed.offload_optimizer is cpu");
out:
    return status;
}

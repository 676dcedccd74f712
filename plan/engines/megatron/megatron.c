/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/megatron/megatron.h"

#include "plan/engines/built_in.h"
#include "plan/spec/spec_rows.h"

#define AT(member) IN(stw_megatron_settings, member)
_Static_assert(sizeof(stw_megatron_settings) <= STW_SECTION_BYTES, "the settings fit");

/* No row needs an `instead`: a value that is not the default is refused with any other engine. */
static const stw_spec_row rows[] = {
    {BOOL("megatron.distributed_optimizer"), AT(distributed_optimizer), .fallback = "true"},
    {BOOL("megatron.fsdp"), AT(fsdp), .fallback = "false"},
    {RATIO("megatron.optimizer_offload_fraction"), AT(optimizer_offload_fraction), .fallback = "0"},
    {BOOL("megatron.overlap_d2h_h2d"), AT(overlap_d2h_h2d), .fallback = "false"},
    {BOOL("megatron.precision_aware"), AT(precision_aware), .fallback = "false"},
    {BOOL("megatron.overlap_grad_reduce"), AT(overlap_grad_reduce), .fallback = "false"},
    {BOOL("megatron.overlap_param_gather"), AT(overlap_param_gather), .fallback = "false"},
    {STRING("megatron.ckpt_format"), AT(ckpt_format), .fallback = "torch_dist"},
};

static stw_status check(const stw_run_spec *run, const char *origin, stw_error *err) {
    if (stw_megatron_settings_of(run).optimizer_offload_fraction <= 1) return STW_STATUS_OK;
    return stw_run_spec_refuse_value(run, origin, err, "megatron.optimizer_offload_fraction",
                                     "0 to 1");
}

static const stw_spec_section section = {.name = "megatron",
                                         .rows = rows,
                                         .n_rows = sizeof rows / sizeof rows[0],
                                         .size = sizeof(stw_megatron_settings),
                                         .check = check};

stw_megatron_settings stw_megatron_settings_of(const stw_run_spec *run) {
    stw_megatron_settings settings;
    stw_run_spec_settings(run, &section, &settings);
    return settings;
}

static const char *const keys[] = {"megatron.", NULL};
const stw_engine stw_engine_megatron = {
    .spec = {.name = "megatron",
             .instead = "engine: stowage or fsdp2",
             .section = &section,
             .keys = keys},
};

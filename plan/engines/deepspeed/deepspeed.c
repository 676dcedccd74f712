/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/deepspeed/deepspeed.h"

#include "plan/engines/built_in.h"
#include "plan/spec/spec_rows.h"

#define AT(member) IN(stw_deepspeed_settings, member)
_Static_assert(sizeof(stw_deepspeed_settings) <= STW_SECTION_BYTES, "the settings fit");

/* No row needs an `instead`: a value that is not the default is refused with any other engine. */
static const stw_spec_row rows[] = {
    {COUNT("deepspeed.zero_stage"), AT(zero_stage), .fallback = "3"},
    {RATIO("deepspeed.ratio"), AT(ratio), .fallback = "1"},
    {COUNT("deepspeed.sub_group_size"), AT(sub_group_size), .fallback = "1e9"},
    {COUNT("deepspeed.prefetch_bucket"), AT(prefetch_bucket), .fallback = "5e7"},
    {COUNT("deepspeed.max_live_parameters"), AT(max_live_parameters), .fallback = "1e9"},
};

static stw_status check(const stw_run_spec *run, const char *origin, stw_error *err) {
    stw_deepspeed_settings settings = stw_deepspeed_settings_of(run);
    if (settings.ratio > 1)
        return stw_run_spec_refuse_value(run, origin, err, "deepspeed.ratio", "0 to 1");
    if (settings.zero_stage > 3)
        return stw_run_spec_refuse_value(run, origin, err, "deepspeed.zero_stage", "0 to 3");
    return STW_STATUS_OK;
}

static const stw_spec_section section = {.name = "deepspeed",
                                         .rows = rows,
                                         .n_rows = sizeof rows / sizeof rows[0],
                                         .size = sizeof(stw_deepspeed_settings),
                                         .check = check};

stw_deepspeed_settings stw_deepspeed_settings_of(const stw_run_spec *run) {
    stw_deepspeed_settings settings;
    stw_run_spec_settings(run, &section, &settings);
    return settings;
}

static const char *const keys[] = {"deepspeed.", NULL};
const stw_engine stw_engine_deepspeed = {
    .spec = {.name = "deepspeed",
             .instead = "engine: stowage or fsdp2",
             .section = &section,
             .keys = keys},
};

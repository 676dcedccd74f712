/* SPDX-License-Identifier: Apache-2.0 */
/* Import of ms-swift's launch scripts: `swift sft` and `swift pt` (swift/arguments/ at 4.0) and
 * `megatron sft` and `megatron pt` (swift/megatron/arguments/megatron_args.py at 4.0). */
#ifndef STW_PLANNER_IMPORT_MS_SWIFT_H
#define STW_PLANNER_IMPORT_MS_SWIFT_H

#include "planner/frameworks/import/reading.h"

/** Flags of `swift`, and those of `megatron` that are not Megatron-LM's own. */
extern const stw_flag_table stw_ms_swift_flags, stw_ms_swift_megatron_flags;
/** Read a script into `out`, whose pool and path are set. */
STW_MUST_USE stw_status stw_ms_swift_import(const char *text, size_t length, stw_import *out,
                                            stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of GPU data sheets, found by the GPU's name (models/clusters/gpus.csv, compiled in).
 * Strings are static. Any thread. */
#ifndef STW_PLAN_GPU_SHEETS_H
#define STW_PLAN_GPU_SHEETS_H

#include "models/model.h"
#include "plan/spec/cluster.h"

typedef struct stw_gpu_sheet {
    const char *name;                       /* as the driver reports it */
    const char *bf16, *fp8, *nvlink, *pcie; /* with units; pcie: the generation; "": none */
    const char *rates, *best_bf16;
    const char *half; /* "fp16": products have no bf16; "": fp16 and bf16 */
} stw_gpu_sheet;

/** The sheet whose name is the longest prefix of `name`; NULL: none. */
const stw_gpu_sheet *stw_gpu_sheet_find(const char *name);
/** True if this GPU has no matrix products of a dtype. False if the name is unknown. */
bool stw_gpu_lacks(const char *name, stw_dtype dtype);
/** True if plans can target this GPU, but no backend of stowage-run executes on it. */
bool stw_gpu_is_target(const char *name);
/** Set the cluster keys that a sheet gives: peaks, rates of work, and the rate of collectives in a
 * node. BAD_INPUT names a cell that is not a number with a unit.
 * @param origin for errors */
STW_MUST_USE stw_status stw_gpu_sheet_apply(const stw_gpu_sheet *sheet, const char *origin,
                                            stw_cluster *cluster, stw_error *err);

#endif

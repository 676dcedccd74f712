/* SPDX-License-Identifier: Apache-2.0 */
/* What data sheets say of GPUs (models/clusters/gpus.csv, compiled in): for programs that meet a
 * GPU by its name. Strings are static. Any thread. */
#ifndef STW_PLAN_GPU_SHEETS_H
#define STW_PLAN_GPU_SHEETS_H

#include "models/model.h"
#include "plan/spec/cluster.h"

typedef struct stw_gpu_sheet {
    const char *name;                       /* as the driver reports it */
    const char *bf16, *fp8, *nvlink, *pcie; /* with units; PCIe: its generation; "": none */
    const char *rates, *best_bf16;
    const char *half; /* "fp16": the only 16-bit type of products; "": fp16 and bf16 */
} stw_gpu_sheet;

/** The sheet whose name is the longest beginning of `name`; NULL: none. */
const stw_gpu_sheet *stw_gpu_sheet_find(const char *name);
/** Has the GPU of this name no products of a type? False where the name is unknown. */
bool stw_gpu_lacks(const char *name, stw_dtype dtype);
/** Can it be planned for and not be run on: no backend of stowage-run is for it? */
bool stw_gpu_is_target(const char *name);
/** Set the keys that follow from a sheet: peaks and rates of work, the rate of
 * collectives in a node.
 * BAD_INPUT names a cell that is no figure. @param origin for errors */
STW_MUST_USE stw_status stw_gpu_sheet_apply(const stw_gpu_sheet *sheet, const char *origin,
                                            stw_cluster *cluster, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/fsdp2/inside.h"

#include "engines/bytes.h"
#include "engines/fsdp2/tensors.h"

static bool is_state(const stw_region *region) {
    return region->component == STW_COMPONENT_MASTER ||
           region->component == STW_COMPONENT_EXP_AVG ||
           region->component == STW_COMPONENT_EXP_AVG_SQ;
}

void stw_fsdp2_open_inside(stw_builder *b) {
    stw_build_regions(b, true, is_state);
    stw_build_rings(b, true);
    stw_alloc_at(b, STW_COMPONENT_CONTEXT, STW_TIER_GPU, STW_OFFSET_EXTERNAL,
                 stw_page_table_bytes(b->job, b->layout));
}

/* torch's own workspace is there as in any other step. */
uint32_t stw_fsdp2_step_inside(stw_builder *b) {
    stw_step step;
    uint32_t from = stw_tensors_begin(b);
    const stw_extent workspace =
        stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_workspace_bytes(b->job));
    stw_torch_workspace(b, from);
    if (!stw_step_begin_inside(&step, b)) return STW_OP_NONE;
    stw_step_buckets(&step);
    from = stw_tensors_begin(b);
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, workspace);
    stw_torch_workspace(b, from);
    return step.updated;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/deepspeed/calls.h"

#include "core/checked.h"

uint32_t stw_zero_call(stw_zero *z, uint64_t calls, uint32_t after) {
    stw_op op = stw_op_make(STW_OP_CALLS, STW_STREAM_CPU, STW_OP_NONE);
    op.params = calls;
    op.after[0] = after;
    return calls > 0 ? stw_append(z->b, op) : after;
}

uint32_t stw_zero_pass(stw_zero *z, stw_tier tier, uint64_t params, uint64_t bytes,
                       uint32_t after) {
    stw_op op = stw_op_make(
        STW_OP_PASS, tier == STW_TIER_HOST ? STW_STREAM_CPU : STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = STW_COMPONENT_GRADS;
    op.from = op.to = tier;
    op.params = params;
    op.bytes = stw_times(params, bytes);
    op.after[0] = after;
    return op.bytes > 0 ? stw_append(z->b, op) : after;
}

uint32_t stw_zero_last(const stw_zero *z, stw_stream stream) {
    const stw_program *program = z->b->program;
    if (z->b->status != STW_STATUS_OK || program->n_movements == 0) return STW_OP_NONE;
    const uint32_t first = program->movements[program->n_movements - 1].first_op;
    for (uint32_t i = program->n_ops; i-- > first;)
        if (program->ops[i].stream == stream) return i;
    return STW_OP_NONE;
}

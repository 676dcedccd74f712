/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/op.h"

static const stw_op_row rows[] = {
#define X(name, text, class, unit, demand, check)                                                  \
    [STW_OP_##name] = {text, STW_OP_CLASS_##class, STW_OP_UNIT_##unit},
    STW_OP_TABLE(X)
#undef X
};

const stw_op_row *stw_op_row_of(stw_op_kind kind) {
    static const stw_op_row unknown = {"?", STW_OP_CLASS_ORDER, STW_OP_UNIT_NOTHING};
    return (unsigned)kind < STW_N_OP_KINDS ? &rows[kind] : &unknown;
}

const char *stw_op_kind_name(stw_op_kind kind) { return stw_op_row_of(kind)->name; }

stw_op stw_op_make(stw_op_kind kind, stw_stream stream, uint32_t unit) {
    return (stw_op){.kind = kind,
                    .stream = stream,
                    .group = stw_op_row_of(kind)->class_ == STW_OP_CLASS_COLLECTIVE
                                 ? STW_RANK_GROUP_WORLD
                                 : STW_RANK_GROUP_NONE,
                    .unit = unit,
                    .after = {STW_OP_NONE, STW_OP_NONE}};
}

/* FNV-1a over words. */
static uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211ull; }

uint64_t stw_op_hash(uint64_t hash, const stw_op *op) {
    hash = mix(hash, (uint64_t)op->kind);
    hash = mix(hash, (uint64_t)op->group);
    hash = mix(hash, op->peer);
    hash = mix(hash, op->unit);
    hash = mix(hash, op->once_in);
    if (op->kind == STW_OP_EXCHANGE) /* its bytes are those of a kind of rank */
        return mix(mix(hash, op->near_bytes), op->far_bytes);
    return mix(hash, op->bytes);
}

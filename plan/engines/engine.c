/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/engine.h"

const stw_engine *stw_engine_find(stw_engine_kind kind) {
    static const stw_engine *const engines[] = {&stw_engine_stowage, &stw_engine_fsdp2};
    for (size_t i = 0; i < sizeof engines / sizeof engines[0]; i++)
        if (engines[i]->kind == kind) return engines[i];
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/engine.h"

const stw_engine *stw_engine_find(uint32_t index) {
    const stw_engine_spec *spec = stw_engine_spec_at(index);
    if (spec == NULL || spec->instead != NULL) return NULL;
    return (const stw_engine *)spec; /* the first member */
}

stw_status stw_engine_register(const stw_engine *engine, stw_error *err) {
    return stw_engine_spec_register(&engine->spec, err);
}

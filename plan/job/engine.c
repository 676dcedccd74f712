/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/job/engine.h"

static const stw_engine *engine_of(const stw_engine_spec *spec) {
    if (spec == NULL || spec->instead != NULL) return NULL;
    return (const stw_engine *)spec; /* the first member */
}

const stw_engine *stw_engine_find(uint32_t index) { return engine_of(stw_engine_spec_at(index)); }

const stw_engine *stw_engine_of(const stw_run_spec *run) {
    return engine_of(stw_run_spec_engine(run));
}

stw_status stw_engine_register(const stw_engine *engine, stw_error *err) {
    return stw_engine_spec_register(&engine->spec, err);
}

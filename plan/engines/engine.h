/* SPDX-License-Identifier: Apache-2.0 */
/* Finding engines. */
#ifndef STW_PLAN_ENGINES_ENGINE_H
#define STW_PLAN_ENGINES_ENGINE_H

#include "plan/job/engine.h"

/** Engine number `index` of plan/spec/registry.h; NULL if it is not built in. */
const stw_engine *stw_engine_find(uint32_t index);
/** That of a run, see stw_run_spec_engine; NULL: it is not implemented. */
const stw_engine *stw_engine_of(const stw_run_spec *run);
/** Add an engine to those that run specs can name; see stw_engine_spec_register. */
STW_MUST_USE stw_status stw_engine_register(const stw_engine *engine, stw_error *err);

#endif

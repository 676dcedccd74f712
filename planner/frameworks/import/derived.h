/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of an import that follow from the model's sizes. */
#ifndef STW_PLANNER_IMPORT_DERIVED_H
#define STW_PLANNER_IMPORT_DERIVED_H

#include "planner/frameworks/import/import.h"

/** Add what import->derived asks for to the settings. NOT_BUILT_IN: it does not fit the model. */
STW_MUST_USE stw_status stw_derived_add(stw_import *import, const stw_model *model, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The model in a plan file: everything that planning, simulating and running require of it. A plan
 * therefore needs no other file. Private to plan/files. */
#ifndef STW_PLAN_MODEL_JSON_H
#define STW_PLAN_MODEL_JSON_H

#include "core/json.h"
#include "core/tree.h"
#include "models/model.h"

/** As the member `key`: facts of groups without their zeros, and one row per tensor
 * [name, dtype, group, instance, routed expert, experts, dimensions...]. */
void stw_model_write_json(const stw_model *model, stw_json *json, const char *key);
/** The model again. Sums, counts and the digest must be those of its tensors: BAD_INPUT names the
 * first that is not. Free with stw_model_free. */
STW_MUST_USE stw_status stw_model_from_node(const stw_tree *tree, const stw_node *node,
                                            stw_model **out, stw_error *err);

#endif

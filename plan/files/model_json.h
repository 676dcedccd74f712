/* SPDX-License-Identifier: Apache-2.0 */
/* The model in a plan file: all facts that planning, simulation and execution need, so that a plan
 * needs no other file. Private to plan/files. */
#ifndef STW_PLAN_MODEL_JSON_H
#define STW_PLAN_MODEL_JSON_H

#include "core/json.h"
#include "core/tree.h"
#include "models/model.h"

/** Write the model as member `key`: the nonzero facts of its groups, and one row per tensor
 * [name, dtype, group, instance, routed expert, experts, dimensions...]. */
void stw_model_write_json(const stw_model *model, stw_json *json, const char *key);
/** Read the model. Sums, counts and the digest must match the tensors: BAD_INPUT names the first
 * one that does not. Free with stw_model_free. */
STW_MUST_USE stw_status stw_model_from_node(const stw_tree *tree, const stw_node *node,
                                            stw_model **out, stw_error *err);

#endif

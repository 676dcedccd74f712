/* SPDX-License-Identifier: Apache-2.0 */
/* What a Python module for torch says of a model: where its layers are, their parts, and groups of
 * its parameters. Names are those of the modules in the reference implementation (models/arch). */
#ifndef STW_PLANNER_EMIT_FSDP2_MODEL_H
#define STW_PLANNER_EMIT_FSDP2_MODEL_H

#include "planner/frameworks/emit/emission.h"

/** A name from a file within a string of Python: it ends neither the string nor a line. */
void stw_emit_python_text(stw_emission *e, const char *name, stw_text *out);
/** layers(model): the list and the index of every layer; of models whose tensors name no lists, the
 * list of modules with most parameters. */
void stw_emit_python_layers(stw_emission *e, stw_text *out);
/** PARTS: the parts of layers that are made again (recompute.modules). */
void stw_emit_python_parts(stw_emission *e, stw_text *out);
/** groups(model): parameters by optimizer.groups, for an optimizer of torch's form. */
void stw_emit_python_groups(stw_emission *e, stw_text *out);

#endif

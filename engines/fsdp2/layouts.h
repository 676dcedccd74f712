/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of ranks that FSDP2 admits. */
#ifndef STW_ENGINES_FSDP2_LAYOUTS_H
#define STW_ENGINES_FSDP2_LAYOUTS_H

#include "engines/layouts.h"

/** Shards and replicas, and tensor parallelism where keys.c accepts it. */
extern const stw_layout_rules stw_fsdp2_layouts;

#endif

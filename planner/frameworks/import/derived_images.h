/* SPDX-License-Identifier: Apache-2.0 */
/* Images of an import: how many tokens they are follows from the model's vision tower. */
#ifndef STW_PLANNER_IMPORT_DERIVED_IMAGES_H
#define STW_PLANNER_IMPORT_DERIVED_IMAGES_H

#include "planner/frameworks/import/reading.h"

/** batch.image_tokens and what of the tower is frozen. A model without a tower: nothing. */
void stw_derived_images(stw_reading *r, const stw_model *model);

#endif

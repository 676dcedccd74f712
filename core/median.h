/* SPDX-License-Identifier: Apache-2.0 */
/* The one median of the project. */
#ifndef STW_CORE_MEDIAN_H
#define STW_CORE_MEDIAN_H

#include <stddef.h>

/** Median of n values, which are sorted in place: the middle one, or the mean of the two in the
 * middle. NaN of none. */
double stw_median(double *values, size_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/median.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b) {
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

double stw_median(double *values, size_t n) {
    if (n == 0) return (double)NAN;
    qsort(values, n, sizeof *values, ascending);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

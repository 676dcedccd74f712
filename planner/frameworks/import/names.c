/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/names.h"

#include <string.h>

bool stw_names_same(const char *a, const char *b) {
    size_t n[2] = {strlen(a), strlen(b)};
    const char *from[2] = {a, b};
    for (size_t i = 0; i < 2; i++) {
        while (n[i] > 1 && from[i][n[i] - 1] == '/') n[i]--;
        for (size_t k = n[i]; k > 0; k--)
            if (from[i][k - 1] == '/' && k < n[i]) {
                from[i] += k, n[i] -= k;
                break;
            }
    }
    return n[0] == n[1] && memcmp(from[0], from[1], n[0]) == 0;
}

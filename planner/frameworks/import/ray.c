/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/ray.h"

#include <stdlib.h>

#include "planner/frameworks/import/launch.h"

#define THRESHOLD "RAY_memory_usage_threshold"
#define REFRESH "RAY_memory_monitor_refresh_ms"

static const double USUAL = 0.95;

void stw_reading_ray(stw_reading *r, const stw_shell *shell) {
    const char *share = shell != NULL ? stw_launch_value(r, shell, THRESHOLD, NULL) : NULL;
    const char *refresh = shell != NULL ? stw_launch_value(r, shell, REFRESH, NULL) : NULL;
    double value = USUAL;
    char *end;
    if (refresh != NULL && strtod(refresh, &end) <= 0 && end != refresh && *end == '\0') {
        stw_reading_line(r, STW_IMPORT_TAKEN, REFRESH, refresh, "Ray kills nothing");
        return;
    }
    if (share != NULL) {
        value = strtod(share, &end);
        const bool known = end != share && *end == '\0' && value >= 0.01 && value <= 1;
        if (!known) value = USUAL;
        stw_reading_line(r, known ? STW_IMPORT_TAKEN : STW_IMPORT_NOT_MODELLED, THRESHOLD, share,
                         known ? "node.host.kill_share"
                               : "no share from 0.01 to 1; planned as 0.95");
    }
    r->out->scheduler = "Ray";
    r->out->kill_share = value;
}

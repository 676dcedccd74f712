/* SPDX-License-Identifier: Apache-2.0 */
/* What Ray does to the processes of a node that it starts. */
#ifndef STW_PLANNER_IMPORT_RAY_H
#define STW_PLANNER_IMPORT_RAY_H

#include "planner/frameworks/import/reading.h"
#include "planner/frameworks/shell/shell.h"

/** Ray kills workers where a node's memory is filled to RAY_memory_usage_threshold (0.95 by
 * default) of the smaller one of its memory and the cgroup's limit, unless
 * RAY_memory_monitor_refresh_ms is 0 (src/ray/common/ray_config_def.h, src/ray/common/
 * memory_monitor.cc at ray 2.49).
 * @param shell the script that starts it; NULL: a file without variables */
void stw_reading_ray(stw_reading *r, const stw_shell *shell);

#endif

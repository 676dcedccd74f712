/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of logs that were written for a terminal. */
#ifndef STW_MEASURED_LOG_LINE_H
#define STW_MEASURED_LOG_LINE_H

#include "core/text.h"

/** Replace `line` by what stands from `at` up to the end of the line or a carriage return, without
 * colours ("ESC [ 36 m"). @return where it ends: `end`, or a character that ends lines */
const char *stw_log_line(const char *at, const char *end, stw_text *line);

#endif

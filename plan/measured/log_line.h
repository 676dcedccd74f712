/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of logs written for a terminal. */
#ifndef STW_MEASURED_LOG_LINE_H
#define STW_MEASURED_LOG_LINE_H

#include "core/text.h"

/** Set `line` to the text from `at` to the end of the line or a carriage return, without colours
 * ("ESC [ 36 m").
 * @return its end: `end`, or the character that ends the line */
const char *stw_log_line(const char *at, const char *end, stw_text *line);

#endif

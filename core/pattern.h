/* SPDX-License-Identifier: Apache-2.0 */
/* Names that match what a user looks for. Pure; any thread may call. */
#ifndef STW_CORE_PATTERN_H
#define STW_CORE_PATTERN_H

#include <stdbool.h>

/** True if a name contains `pattern`, or equals it if it has * or ?; in any case. NULL: any. */
bool stw_name_matches(const char *name, const char *pattern);

#endif

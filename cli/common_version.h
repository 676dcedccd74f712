/* SPDX-License-Identifier: Apache-2.0 */
/* What --version prints of both programs. */
#ifndef STW_CLI_COMMON_VERSION_H
#define STW_CLI_COMMON_VERSION_H

#include <stdbool.h>

#include "core/status.h"

/** Version, identity of the build (core/build.h), licence and what is built in, to stdout.
 * @param solver of the program that has one, else NULL
 * @param as_json stowage.version/1 */
STW_MUST_USE stw_status stw_version_print(const char *program, const char *licence,
                                          const char *solver, bool as_json, stw_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* In place of stdin for jansson's code in libstowage.so, which compares the files that it reads
 * with it (cmake/StwLibrary.cmake). No file equals NULL. */
#include <stddef.h>

extern const void *const stw_no_stdin;
const void *const stw_no_stdin = NULL;

/* SPDX-License-Identifier: Apache-2.0 */
/* Text for a terminal. Names come from files that others wrote: whatever prints them (errors, log
 * messages, cells and lines of reports) escapes them here, so that none moves the cursor, begins a
 * line, changes colours, hides or reorders text. Pure functions; any thread may call. */
#ifndef STW_CORE_PRINTABLE_H
#define STW_CORE_PRINTABLE_H

#include <stddef.h>

/** Bytes of the printable UTF-8 character at `at`; 0 at the end, a control character, a line
 * separator, a control of the order of writing, a character of zero width or a byte that is not
 * UTF-8. */
size_t stw_printable_length(const char *at);
/** Copy a string as one line: \n, \r and \t as such pairs, whatever else is not printable as \xNN.
 * NUL-terminated, cut with "..." where `out_size` is too small.
 * @param out_size 0: only count, `out` may be NULL
 * @return length of the whole line, as snprintf */
size_t stw_printable_copy(const char *string, char *out, size_t out_size);

#endif

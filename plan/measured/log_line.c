/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>

#include "plan/measured/log_line.h"

const char *stw_log_line(const char *at, const char *end, stw_text *line) {
    line->length = 0;
    if (line->data != NULL) line->data[0] = '\0';
    while (at < end && *at != '\n' && *at != '\r') {
        const char *from = at;
        while (at < end && *at != '\n' && *at != '\r' && *at != '\033' && *at != '\0') at++;
        stw_text_append(line, from, (size_t)(at - from));
        if (at < end && *at == '\0') {
            stw_text_append(line, " ", 1);
            at++;
        }
        if (at == end || *at != '\033') continue;
        at++;
        while (at < end && *at != '\n' && *at != '\r' && !isalpha((unsigned char)*at)) at++;
        if (at < end && isalpha((unsigned char)*at)) at++;
    }
    return at;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Edits of a document's text, for tests of what readers refuse. */
#ifndef STW_TESTS_UNIT_EDITED_H
#define STW_TESTS_UNIT_EDITED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A copy of `text` in which the first `from` after `anchor` is `to`. An edit that finds nothing
 * would test nothing: it ends the program. */
static char *edited(const char *text, const char *anchor, const char *from, const char *to) {
    const char *at = strstr(text, anchor);
    if (at != NULL) at = strstr(at, from);
    if (at == NULL) {
        fprintf(stderr, "no %s after %s\n", from, anchor);
        exit(2);
    }
    size_t before = (size_t)(at - text), rest = strlen(at + strlen(from));
    char *copy = malloc(before + strlen(to) + rest + 1);
    if (copy == NULL) exit(2);
    memcpy(copy, text, before);
    strcpy(copy + before, to);
    strcat(copy, at + strlen(from));
    return copy;
}

#endif

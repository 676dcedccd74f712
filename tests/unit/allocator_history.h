/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what torch's allocator was asked for in a measured run (tests/measured: its format). */
#ifndef STW_TESTS_UNIT_ALLOCATOR_HISTORY_H
#define STW_TESTS_UNIT_ALLOCATOR_HISTORY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct history_event {
    char kind;      /* '+', '-', or '=' for the end of a phase */
    uint64_t value; /* bytes, number of a block, or bytes reserved */
    char text[16];  /* stream, or phase */
} history_event;

/* The next one. */
static inline bool history_next(FILE *file, history_event *event) {
    char line[256];
    while (fgets(line, sizeof line, file) != NULL) {
        char *end = NULL;
        if (line[0] == '#') continue;
        event->kind = line[0];
        event->value = strtoull(line + 1, &end, 10);
        event->text[0] = 0;
        (void)sscanf(end, "%15s", event->text);
        return true;
    }
    return false;
}

#endif

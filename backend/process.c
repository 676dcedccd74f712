/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "backend/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double stw_process_now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t stw_process_resident_bytes(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    uint64_t bytes = 0;
    while (file != NULL && bytes == 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "VmRSS:", 6) == 0) bytes = strtoull(line + 6, NULL, 10) * 1024;
    if (file != NULL) fclose(file);
    return bytes;
}

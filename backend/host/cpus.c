/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* sched_getaffinity, sched_setaffinity */
#include "backend/host/cpus.h"

#include <ctype.h>
#include <dirent.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_BYTES 4096 /* of a cpulist: 1024 cores, even when every other one is named */

typedef struct cpu_list {
    bool has[STW_MAX_CPUS];
} cpu_list;

void stw_cpus_allowed(stw_cpus *out) {
    cpu_set_t set;
    out->n = 0;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (unsigned cpu = 0; cpu < STW_MAX_CPUS && cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &set)) out->cpu[out->n++] = (uint16_t)cpu;
    if (out->n == 0) {
        out->cpu[0] = 0;
        out->n = 1;
    }
}

/* "0-3,8,10-11": false where it is anything else. Cores past STW_MAX_CPUS are left out. */
static bool parse_list(const char *text, cpu_list *out) {
    memset(out, 0, sizeof *out);
    while (isdigit((unsigned char)*text)) {
        char *end = NULL;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-') {
            if (!isdigit((unsigned char)end[1])) return false;
            last = strtoul(end + 1, &end, 10);
        }
        if (last < first) return false;
        for (unsigned long cpu = first; cpu <= last && cpu < STW_MAX_CPUS; cpu++)
            out->has[cpu] = true;
        text = end;
        if (*text != ',') break;
        text++;
        if (!isdigit((unsigned char)*text)) return false;
    }
    return *text == '\0' || *text == '\n';
}

/* A file of one cpulist; false where there is none or it says something else. */
static bool read_list(const char *path, cpu_list *out) {
    char text[LIST_BYTES];
    FILE *file = fopen(path, "r");
    if (file == NULL) return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    return n + 1 < sizeof text && parse_list(text, out);
}

void stw_cpus_near_pci(stw_cpus *cpus, const char *bus_id, const char *sysfs) {
    char path[512], name[32];
    size_t length = strlen(bus_id);
    if (length == 0 || length >= sizeof name || strchr(bus_id, '/') != NULL) return;
    for (size_t i = 0; i <= length; i++) name[i] = (char)tolower((unsigned char)bus_id[i]);
    int written = snprintf(path, sizeof path, "%s/bus/pci/devices/%s/local_cpulist",
                           sysfs != NULL ? sysfs : "/sys", name);
    cpu_list near;
    if (written < 0 || (size_t)written >= sizeof path || !read_list(path, &near)) return;
    stw_cpus kept = {.n = 0};
    for (uint32_t i = 0; i < cpus->n; i++)
        if (near.has[cpus->cpu[i]]) kept.cpu[kept.n++] = cpus->cpu[i];
    if (kept.n > 0) *cpus = kept;
}

void stw_cpus_share(stw_cpus *cpus, uint32_t index, uint32_t of) {
    if (of <= 1 || index >= of || cpus->n < of) return;
    uint32_t part = cpus->n / of;
    memmove(cpus->cpu, cpus->cpu + (size_t)index * part, part * sizeof cpus->cpu[0]);
    cpus->n = part;
}

void stw_cpus_keep(const stw_cpus *cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < cpus->n; i++)
        if (cpus->cpu[i] < CPU_SETSIZE) CPU_SET(cpus->cpu[i], &set);
    if (cpus->n > 0) (void)sched_setaffinity(0, sizeof set, &set); /* 0: this thread */
}

uint32_t stw_cpus_numa_nodes(const char *sysfs) {
    char path[512], list[800];
    uint32_t nodes = 0;
    int written =
        snprintf(path, sizeof path, "%s/devices/system/node", sysfs != NULL ? sysfs : "/sys");
    if (written < 0 || (size_t)written >= sizeof path) return 1;
    DIR *folder = opendir(path);
    if (folder == NULL) return 1;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const char *digits = entry->d_name + 4;
        if (strncmp(entry->d_name, "node", 4) != 0 || *digits == '\0' ||
            digits[strspn(digits, "0123456789")] != '\0')
            continue;
        cpu_list cores;
        snprintf(list, sizeof list, "%s/%.32s/cpulist", path, entry->d_name);
        if (!read_list(list, &cores)) continue;
        bool any = false;
        for (unsigned cpu = 0; cpu < STW_MAX_CPUS; cpu++) any = any || cores.has[cpu];
        nodes += any;
    }
    closedir(folder);
    return nodes > 0 ? nodes : 1;
}

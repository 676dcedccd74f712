/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/limits.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/log.h"
#include "core/units.h"

#define PATH_BYTES 4608
#define FOLDER_BYTES 4480
#define MOUNT_BYTES 2304
#define GROUP_BYTES 2048
#define LINE_BYTES 2304
#define CAP_IPC_LOCK_BIT 14 /* linux/capability.h */
/* cgroup v1 says "no limit" with the largest multiple of the page size. */
#define V1_UNLIMITED (1ull << 60)

/* Call `see` on every line of a file until it returns true; false where the file or such a line is
 * missing. */
typedef bool (*line_fn)(char *line, void *arg);
static bool each_line(const char *path, line_fn see, void *arg) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return false;
    char line[LINE_BYTES];
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        found = see(line, arg);
    }
    fclose(file);
    return found;
}

typedef struct key_value {
    const char *key;
    char value[LINE_BYTES];
} key_value;

static bool see_key(char *line, void *arg) {
    key_value *wanted = arg;
    size_t length = strlen(wanted->key);
    if (strncmp(line, wanted->key, length) != 0) return false;
    snprintf(wanted->value, sizeof wanted->value, "%s",
             line + length + strspn(line + length, " \t"));
    return true;
}

/* What follows `key` at the beginning of a line of <root>/<file>. */
static bool find_key(const char *root, const char *file, const char *key, key_value *out) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s%s", root, file);
    out->key = key;
    out->value[0] = '\0';
    return each_line(path, see_key, out);
}

/* "123 kB" */
static uint64_t meminfo_bytes(const char *root, const char *key) {
    key_value found;
    if (!find_key(root, "/proc/meminfo", key, &found)) return 0;
    uint64_t kib = strtoull(found.value, NULL, 10);
    return kib > UINT64_MAX / 1024 ? 0 : kib * 1024;
}

/* ---- control groups ---- */

static bool see_first(char *line, void *arg) {
    snprintf(arg, LINE_BYTES, "%s", line);
    return true;
}

static void tighten_to(stw_limits *out, const char *text, const char *path) {
    if (text[0] < '0' || text[0] > '9') return; /* "max" */
    uint64_t value = strtoull(text, NULL, 10);
    if (value >= V1_UNLIMITED || value >= out->cgroup_bytes) return;
    out->cgroup_bytes = value;
    snprintf(out->cgroup_file, sizeof out->cgroup_file, "%.*s", (int)sizeof out->cgroup_file - 1,
             path);
}

static void tighten_memory(stw_limits *out, const char *path) {
    char text[LINE_BYTES] = "";
    if (each_line(path, see_first, text)) tighten_to(out, text, path);
}

static void tighten_hierarchy(stw_limits *out, const char *path) {
    key_value found = {"hierarchical_memory_limit ", ""};
    if (each_line(path, see_key, &found)) tighten_to(out, found.value, path);
}

/* A quota of CPU time per period, as whole cores, rounded up. */
static void tighten_cores(stw_limits *out, uint64_t quota, uint64_t period) {
    if (quota == 0 || period == 0) return;
    uint64_t cores = stw_div_up_u64(quota, period);
    if (cores < out->cores) out->cores = (uint32_t)cores;
}

typedef enum group_kind { GROUP_V2, GROUP_V1_MEMORY, GROUP_V1_CPU } group_kind;

static uint64_t first_number(const char *folder, const char *file) {
    char path[PATH_BYTES], text[LINE_BYTES] = "";
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (!each_line(path, see_first, text) || text[0] < '0' || text[0] > '9') return 0;
    return strtoull(text, NULL, 10);
}

static void read_group(stw_limits *out, group_kind kind, const char *folder) {
    char path[PATH_BYTES], text[LINE_BYTES] = "";
    switch (kind) {
    case GROUP_V2:
        snprintf(path, sizeof path, "%s/memory.max", folder);
        tighten_memory(out, path);
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (each_line(path, see_first, text) && text[0] >= '0' && text[0] <= '9') {
            char *end = NULL;
            uint64_t quota = strtoull(text, &end, 10);
            tighten_cores(out, quota, strtoull(end, NULL, 10));
        }
        break;
    case GROUP_V1_MEMORY:
        snprintf(path, sizeof path, "%s/memory.limit_in_bytes", folder);
        tighten_memory(out, path);
        /* Groups above a container's own cannot be seen, but their smallest limit is told here. */
        snprintf(path, sizeof path, "%s/memory.stat", folder);
        tighten_hierarchy(out, path);
        break;
    case GROUP_V1_CPU: /* a quota of -1 means none */
        tighten_cores(out, first_number(folder, "cpu.cfs_quota_us"),
                      first_number(folder, "cpu.cfs_period_us"));
        break;
    }
}

typedef struct group_reader {
    const char *root;
    stw_limits *out;
} group_reader;

/* A cgroup and all groups above it, up to the mount. Inside a container the cgroup's path may not
 * exist under the mount; the mount itself is then the container's cgroup, and it is always read. */
static void climb(const group_reader *reader, group_kind kind, const char *below,
                  const char *cgroup) {
    char mount[MOUNT_BYTES], name[GROUP_BYTES], folder[FOLDER_BYTES];
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", reader->root, below);
    snprintf(name, sizeof name, "%s", cgroup);
    for (;;) {
        size_t length = strlen(name);
        while (length > 0 && name[length - 1] == '/') name[--length] = '\0';
        snprintf(folder, sizeof folder, "%s%s", mount, name);
        read_group(reader->out, kind, folder);
        char *slash = strrchr(name, '/');
        if (slash == NULL) break;
        *slash = '\0';
    }
}

/* Is `name` one of a comma-separated list? */
static bool lists(const char *controllers, const char *name) {
    size_t length = strlen(name);
    for (const char *at = controllers; at != NULL; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* "0::/user.slice/job" (version 2) or "7:cpu,cpuacct:/docker/0123" (version 1). */
static bool see_group(char *line, void *arg) {
    const group_reader *reader = arg;
    char *controllers = strchr(line, ':');
    char *cgroup = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (cgroup == NULL) return false;
    *controllers++ = '\0';
    *cgroup++ = '\0';
    if (strcmp(line, "0") == 0 && controllers[0] == '\0') climb(reader, GROUP_V2, "", cgroup);
    if (lists(controllers, "memory")) climb(reader, GROUP_V1_MEMORY, "/memory", cgroup);
    if (lists(controllers, "cpu")) climb(reader, GROUP_V1_CPU, "/cpu", cgroup);
    return false;
}

/* ---- resource limits and cores ---- */

/* The last of "soft hard unit" or "soft hard" after the key; `hard` picks the second number. */
static uint64_t resource_limit(const char *root, const char *key, bool hard) {
    key_value found;
    if (!find_key(root, "/proc/self/limits", key, &found)) return STW_UNLIMITED;
    const char *at = found.value;
    if (hard) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    if (*at < '0' || *at > '9') return STW_UNLIMITED;
    return strtoull(at, NULL, 10);
}

static bool can_lock_any(const char *root) {
    key_value found;
    if (!find_key(root, "/proc/self/status", "CapEff:", &found)) return false;
    return (strtoull(found.value, NULL, 16) >> CAP_IPC_LOCK_BIT & 1u) != 0;
}

/* CPUs in "0-3,8,10-11"; 0 where there are none. */
static uint32_t count_cpus(const char *list) {
    uint64_t count = 0;
    for (const char *at = list; *at >= '0' && *at <= '9';) {
        char *end = NULL;
        uint64_t first = strtoull(at, &end, 10), last = first;
        if (*end == '-') last = strtoull(end + 1, &end, 10);
        if (last >= first) count += last - first + 1;
        at = *end == ',' ? end + 1 : end;
    }
    return count > UINT32_MAX ? UINT32_MAX : (uint32_t)count;
}

static uint32_t allowed_cores(const char *root) {
    key_value found;
    if (!find_key(root, "/proc/self/status", "Cpus_allowed_list:", &found)) return 1;
    uint32_t count = count_cpus(found.value);
    return count < 1 ? 1 : count;
}

/* The first line of <root>/<file>; "" where there is none. */
static void first_line(const char *root, const char *file, char out[LINE_BYTES]) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s%s", root, file);
    out[0] = '\0';
    (void)each_line(path, see_first, out);
}

/* "always [madvise] never": the word in brackets. */
static void read_huge_pages(const char *root, stw_limits *out) {
    char line[LINE_BYTES];
    first_line(root, "/sys/kernel/mm/transparent_hugepage/enabled", line);
    const char *open = strchr(line, '[');
    if (open == NULL) return;
    size_t length = strcspn(open + 1, "]");
    if (length < sizeof out->huge_pages) {
        memcpy(out->huge_pages, open + 1, length);
        out->huge_pages[length] = '\0';
    }
}

stw_status stw_limits_read(const char *root, stw_limits *out, stw_error *err) {
    memset(out, 0, sizeof *out);
    out->cgroup_bytes = STW_UNLIMITED;
    out->memory_bytes = meminfo_bytes(root, "MemTotal:");
    if (out->memory_bytes == 0) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/proc/meminfo", root);
        return stw_fail_native(err, STW_STATUS_IO, errno, path,
                               "expected a line \"MemTotal: <number> kB\", found none");
    }
    out->available_bytes = meminfo_bytes(root, "MemAvailable:");
    out->cores = out->affinity_cores = allowed_cores(root);
    char line[LINE_BYTES];
    first_line(root, "/sys/devices/system/cpu/online", line);
    out->online_cores = count_cpus(line);
    read_huge_pages(root, out);
    group_reader reader = {root, out};
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    (void)each_line(path, see_group, &reader);
    out->page_lock_bytes =
        can_lock_any(root) ? STW_UNLIMITED : resource_limit(root, "Max locked memory", true);
    out->address_space_bytes = resource_limit(root, "Max address space", false);
    return STW_STATUS_OK;
}

uint64_t stw_limits_usable_bytes(const stw_limits *limits) {
    return stw_min_u64(limits->memory_bytes, limits->cgroup_bytes);
}

static stw_status refuse(const char *where, const char *what, uint64_t need_bytes,
                         uint64_t limit_bytes, const char *remedy, stw_error *err) {
    char need[32], limit[32];
    stw_bytes_format(need_bytes, need, sizeof need);
    stw_bytes_format(limit_bytes, limit, sizeof limit);
    return stw_fail(err, STW_STATUS_NO_RESOURCES, where, "%s: %s needed, %s allowed%s", what, need,
                    limit, remedy);
}

stw_status stw_limits_check(const stw_limits *limits, uint64_t host_bytes,
                            uint64_t page_locked_bytes, stw_error *err) {
    if (host_bytes > limits->cgroup_bytes)
        return refuse(limits->cgroup_file, "host memory of all ranks on this node", host_bytes,
                      limits->cgroup_bytes, " by the control group", err);
    if (page_locked_bytes > limits->page_lock_bytes)
        return refuse("RLIMIT_MEMLOCK", "page-locked memory of this process", page_locked_bytes,
                      limits->page_lock_bytes, " (raise the hard limit: ulimit -H -l)", err);
    if (page_locked_bytes > limits->address_space_bytes)
        return refuse("RLIMIT_AS", "address space of this process", page_locked_bytes,
                      limits->address_space_bytes, " (ulimit -v)", err);
    if (host_bytes > limits->memory_bytes) {
        char need[32], have[32];
        stw_bytes_format(host_bytes, need, sizeof need);
        stw_bytes_format(limits->memory_bytes, have, sizeof have);
        stw_log(STW_LOG_WARN, "the ranks of this node take %s of host memory, MemTotal is %s now",
                need, have);
    }
    return STW_STATUS_OK;
}

/* ---- warnings ---- */

static uint32_t warn_of_cores(const stw_limits *limits, const char *omp_num_threads) {
    uint32_t n = 0;
    if (limits->online_cores > limits->affinity_cores) {
        stw_log(STW_LOG_WARN,
                "this process may run on %u of %u cores (its affinity mask): CPU updates and "
                "copies by the CPU are slower than the machine could be",
                limits->affinity_cores, limits->online_cores);
        n++;
    }
    if (limits->cores < limits->affinity_cores) {
        stw_log(STW_LOG_WARN, "the control group's quota of CPU time is that of %u of %u cores",
                limits->cores, limits->affinity_cores);
        n++;
    }
    if (omp_num_threads != NULL && omp_num_threads[0] != '\0') {
        uint64_t threads = strtoull(omp_num_threads, NULL, 10);
        if (threads > 0 && threads < limits->cores) {
            stw_log(STW_LOG_WARN,
                    "OMP_NUM_THREADS=%llu with %u cores (torchrun and Ray set 1): optimizers of "
                    "other programs on the CPU will be slow; Stowage does not use it",
                    (unsigned long long)threads, limits->cores);
            n++;
        }
    }
    return n;
}

static uint32_t warn_of_memory(const stw_limits *limits) {
    char limit[32], memory[32];
    uint32_t n = 0;
    stw_bytes_format(limits->memory_bytes, memory, sizeof memory);
    if (limits->cgroup_bytes < limits->memory_bytes) {
        stw_bytes_format(limits->cgroup_bytes, limit, sizeof limit);
        stw_log(STW_LOG_WARN, "the control group allows %s of %s of memory (%s)", limit, memory,
                limits->cgroup_file);
        n++;
    }
    if (limits->page_lock_bytes < limits->memory_bytes / 2) {
        stw_bytes_format(limits->page_lock_bytes, limit, sizeof limit);
        stw_log(STW_LOG_WARN,
                "RLIMIT_MEMLOCK lets a process page-lock %s of %s of memory: raise it (ulimit -H "
                "-l, or memlock in limits.conf) to keep state in host memory",
                limit, memory);
        n++;
    }
    if (strcmp(limits->huge_pages, "never") == 0) {
        stw_log(STW_LOG_WARN,
                "transparent huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled is "
                "never): page-locking takes several times as long; madvise suffices");
        n++;
    }
    return n;
}

uint32_t stw_limits_warn(const stw_limits *limits, const char *omp_num_threads) {
    return warn_of_cores(limits, omp_num_threads) + warn_of_memory(limits);
}

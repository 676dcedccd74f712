/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/limits.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/file.h"
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

/* The value that is looked for in a file's lines; key NULL: the first line, whatever it is. */
typedef struct wanted {
    const char *key;
    char value[LINE_BYTES];
} wanted;

/* The files of a machine, and the first that this process could not open for a reason of its own:
 * what such a file limits is not known. The buffers lie here, not on the stack of a caller's
 * thread. */
typedef struct source {
    const char *root;
    int code;                /* errno; 0: none */
    char failed[PATH_BYTES]; /* what could not be opened */
    char path[PATH_BYTES];   /* of the file that is opened next */
    wanted found;
    char mount[MOUNT_BYTES], name[GROUP_BYTES], folder[FOLDER_BYTES]; /* of climb */
} source;

static bool is_ours(int code) { return code == EMFILE || code == ENFILE || code == ENOMEM; }

/* Call `see` on every line of the file at from->path until it returns true; false where the file or
 * such a line is missing. */
typedef bool (*line_fn)(char *line, void *arg);
static bool each_line(source *from, line_fn see, void *arg) {
    FILE *file = fopen(from->path, "r");
    if (file == NULL && is_ours(errno) && from->code == 0) {
        from->code = errno;
        memcpy(from->failed, from->path, sizeof from->failed);
    }
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

static bool see_wanted(char *line, void *arg) {
    wanted *w = arg;
    size_t length = w->key != NULL ? strlen(w->key) : 0;
    if (length > 0 && strncmp(line, w->key, length) != 0) return false;
    if (length > 0) length += strspn(line + length, " \t");
    snprintf(w->value, sizeof w->value, "%s", line + length);
    return true;
}

/* What follows `key` at the beginning of a line of <folder><file>; its first line if `key` is NULL.
 * "" where there is none; valid until the next call. */
static const char *read_value(source *from, const char *folder, const char *file, const char *key) {
    snprintf(from->path, sizeof from->path, "%s%s", folder, file);
    from->found.key = key;
    from->found.value[0] = '\0';
    (void)each_line(from, see_wanted, &from->found);
    return from->found.value;
}

static bool is_number(const char *text) { return text[0] >= '0' && text[0] <= '9'; }

/* "123 kB" */
static uint64_t meminfo_bytes(source *from, const char *key) {
    uint64_t kib = strtoull(read_value(from, from->root, "/proc/meminfo", key), NULL, 10);
    return kib > UINT64_MAX / 1024 ? 0 : kib * 1024;
}

/* ---- control groups ---- */

/* By what was read last. */
static void tighten_memory(const source *from, stw_limits *out) {
    const char *text = from->found.value;
    if (!is_number(text)) return; /* "max" */
    uint64_t value = strtoull(text, NULL, 10);
    if (value >= V1_UNLIMITED || value >= out->cgroup_bytes) return;
    out->cgroup_bytes = value;
    snprintf(out->cgroup_file, sizeof out->cgroup_file, "%.*s", (int)sizeof out->cgroup_file - 1,
             from->path);
}

/* A quota of CPU time per period, as whole cores, rounded up. */
static void tighten_cores(stw_limits *out, uint64_t quota, uint64_t period) {
    if (quota == 0 || period == 0) return;
    uint64_t cores = stw_div_up_u64(quota, period);
    if (cores < out->cores) out->cores = (uint32_t)cores;
}

typedef enum group_kind { GROUP_V2, GROUP_V1_MEMORY, GROUP_V1_CPU } group_kind;

static uint64_t first_number(source *from, const char *file) {
    const char *text = read_value(from, from->folder, file, NULL);
    return is_number(text) ? strtoull(text, NULL, 10) : 0;
}

/* The group of from->folder. */
static void read_group(source *from, stw_limits *out, group_kind kind) {
    const char *text;
    uint64_t quota;
    switch (kind) {
    case GROUP_V2:
        (void)read_value(from, from->folder, "/memory.max", NULL);
        tighten_memory(from, out);
        text = read_value(from, from->folder, "/cpu.max", NULL);
        if (is_number(text)) {
            char *end = NULL;
            quota = strtoull(text, &end, 10);
            tighten_cores(out, quota, strtoull(end, NULL, 10));
        }
        break;
    case GROUP_V1_MEMORY:
        (void)read_value(from, from->folder, "/memory.limit_in_bytes", NULL);
        tighten_memory(from, out);
        /* Groups above a container's own cannot be seen, but their smallest limit is told here. */
        (void)read_value(from, from->folder, "/memory.stat", "hierarchical_memory_limit ");
        tighten_memory(from, out);
        break;
    case GROUP_V1_CPU: /* a quota of -1 means none */
        quota = first_number(from, "/cpu.cfs_quota_us");
        tighten_cores(out, quota, first_number(from, "/cpu.cfs_period_us"));
        break;
    }
}

typedef struct group_reader {
    source *from;
    stw_limits *out;
} group_reader;

/* A cgroup and all groups above it, up to the mount. Inside a container the cgroup's path may not
 * exist under the mount; the mount itself is then the container's cgroup, and it is always read. */
static void climb(const group_reader *reader, group_kind kind, const char *below,
                  const char *cgroup) {
    source *from = reader->from;
    char *name = from->name;
    snprintf(from->mount, sizeof from->mount, "%s/sys/fs/cgroup%s", from->root, below);
    snprintf(name, sizeof from->name, "%s", cgroup);
    for (;;) {
        size_t length = strlen(name);
        while (length > 0 && name[length - 1] == '/') name[--length] = '\0';
        snprintf(from->folder, sizeof from->folder, "%s%s", from->mount, name);
        read_group(from, reader->out, kind);
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
static uint64_t resource_limit(source *from, const char *key, bool hard) {
    const char *at = read_value(from, from->root, "/proc/self/limits", key);
    if (hard) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    return is_number(at) ? strtoull(at, NULL, 10) : STW_UNLIMITED;
}

static bool can_lock_any(source *from) {
    const char *capabilities = read_value(from, from->root, "/proc/self/status", "CapEff:");
    return (strtoull(capabilities, NULL, 16) >> CAP_IPC_LOCK_BIT & 1u) != 0;
}

/* CPUs in "0-3,8,10-11"; 0 where there are none. */
static uint32_t count_cpus(const char *list) {
    uint64_t count = 0;
    for (const char *at = list; is_number(at);) {
        char *end = NULL;
        uint64_t first = strtoull(at, &end, 10), last = first;
        if (*end == '-') last = strtoull(end + 1, &end, 10);
        if (last >= first) count += last - first + 1;
        at = *end == ',' ? end + 1 : end;
    }
    return count > UINT32_MAX ? UINT32_MAX : (uint32_t)count;
}

static uint32_t allowed_cores(source *from) {
    uint32_t count =
        count_cpus(read_value(from, from->root, "/proc/self/status", "Cpus_allowed_list:"));
    return count < 1 ? 1 : count;
}

/* "always [madvise] never": the word in brackets. */
static void read_huge_pages(source *from, stw_limits *out) {
    const char *line =
        read_value(from, from->root, "/sys/kernel/mm/transparent_hugepage/enabled", NULL);
    const char *open = strchr(line, '[');
    if (open == NULL) return;
    size_t length = strcspn(open + 1, "]");
    if (length < sizeof out->huge_pages) {
        memcpy(out->huge_pages, open + 1, length);
        out->huge_pages[length] = '\0';
    }
}

static stw_status read_limits(source *from, stw_limits *out, stw_error *err) {
    const char *root = from->root;
    out->cgroup_bytes = STW_UNLIMITED;
    errno = 0;
    out->memory_bytes = meminfo_bytes(from, "MemTotal:");
    if (out->memory_bytes == 0 && from->code == 0)
        return stw_fail_native(err, STW_STATUS_IO, errno, from->path,
                               "expected a line \"MemTotal: <number> kB\", found none");
    out->available_bytes = meminfo_bytes(from, "MemAvailable:");
    out->cores = out->affinity_cores = allowed_cores(from);
    out->online_cores = count_cpus(read_value(from, root, "/sys/devices/system/cpu/online", NULL));
    read_huge_pages(from, out);
    group_reader reader = {from, out};
    snprintf(from->path, sizeof from->path, "%s/proc/self/cgroup", root);
    (void)each_line(from, see_group, &reader);
    out->page_lock_bytes =
        can_lock_any(from) ? STW_UNLIMITED : resource_limit(from, "Max locked memory", true);
    out->address_space_bytes = resource_limit(from, "Max address space", false);
    if (from->code == 0) return STW_STATUS_OK;
    errno = from->code;
    return stw_fail_errno(err, from->failed, "cannot be opened");
}

stw_status stw_limits_read(const char *root, stw_limits *out, stw_error *err) {
    source *from = calloc(1, sizeof *from);
    memset(out, 0, sizeof *out);
    if (from == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "limits", "out of memory for reading them");
    from->root = root;
    stw_status status = read_limits(from, out, err);
    free(from);
    return status;
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of machines that are made of files: control groups of both versions, resource limits,
 * cores; and what is refused. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/limits.h"
#include "core/log.h"
#include "core/units.h"
#include "tests/unit/testing.h"

#define GIB (1ull << 30)

static char root[256];

static void make_parents(char *path) {
    for (char *c = strchr(path + 1, '/'); c != NULL; c = strchr(c + 1, '/')) {
        *c = '\0';
        (void)mkdir(path, 0777);
        *c = '/';
    }
}

/* <root>/<name> with a text; its folders are made. */
static void put(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    make_parents(path);
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    CU_ASSERT_EQUAL(fclose(file), 0);
}

/* A new, empty machine of 64 GiB with an ordinary process on it. */
static void new_machine(void) {
    snprintf(root, sizeof root, "%s/limits-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(root));
    put("proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   1048576 kB\n");
    put("proc/self/status",
        "Name:\tx\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3,8,10-11\n");
    put("proc/self/limits",
        "Limit                     Soft Limit           Hard Limit     Units\n"
        "Max locked memory         8388608              16777216       bytes\n"
        "Max address space         unlimited            unlimited      bytes\n");
}

static void remove_machine(void) {
    char command[400];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CU_ASSERT_EQUAL(system(command), 0);
}

static stw_limits read_limits(void) {
    stw_limits limits;
    memset(&limits, 0, sizeof limits);
    CHECK_OK(stw_limits_read(root, &limits, err));
    return limits;
}

static void reads_without_groups(void) {
    new_machine();
    stw_limits l = read_limits();
    CU_ASSERT_EQUAL(l.memory_bytes, 64 * GIB);
    CU_ASSERT_EQUAL(l.available_bytes, GIB);
    CU_ASSERT_EQUAL(l.cgroup_bytes, STW_UNLIMITED);
    CU_ASSERT_STRING_EQUAL(l.cgroup_file, "");
    CU_ASSERT_EQUAL(l.page_lock_bytes, 16777216); /* a process may raise its own to the hard one */
    CU_ASSERT_EQUAL(l.address_space_bytes, STW_UNLIMITED);
    CU_ASSERT_EQUAL(l.cores, 7);
    CU_ASSERT_EQUAL(l.affinity_cores, 7);
    CU_ASSERT_EQUAL(l.online_cores, 0); /* not said */
    CU_ASSERT_STRING_EQUAL(l.huge_pages, "");
    CU_ASSERT_EQUAL(stw_limits_usable_bytes(&l), 64 * GIB);
    put("sys/devices/system/cpu/online", "0-15,32\n");
    put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    l = read_limits();
    CU_ASSERT_EQUAL(l.online_cores, 17);
    CU_ASSERT_STRING_EQUAL(l.huge_pages, "madvise");
    remove_machine();
}

static void reads_version_2(void) {
    new_machine();
    put("proc/self/cgroup", "0::/user.slice/job/task\n");
    put("sys/fs/cgroup/user.slice/job/task/memory.max", "max\n");
    put("sys/fs/cgroup/user.slice/job/task/cpu.max", "250000 100000\n");
    put("sys/fs/cgroup/user.slice/job/memory.max", "8589934592\n");
    put("sys/fs/cgroup/user.slice/memory.max", "34359738368\n");
    put("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
    stw_limits l = read_limits();
    CU_ASSERT_EQUAL(l.cgroup_bytes, 8 * GIB);
    CU_ASSERT_PTR_NOT_NULL(strstr(l.cgroup_file, "user.slice/job/memory.max"));
    CU_ASSERT_EQUAL(l.cores, 3);
    CU_ASSERT_EQUAL(l.affinity_cores, 7);
    CU_ASSERT_EQUAL(stw_limits_usable_bytes(&l), 8 * GIB);
    put("sys/fs/cgroup/user.slice/job/task/memory.max", "6442450944\n"); /* the innermost */
    CU_ASSERT_EQUAL(read_limits().cgroup_bytes, 6 * GIB);
    put("sys/fs/cgroup/user.slice/memory.max", "3221225472\n"); /* the outermost */
    l = read_limits();
    CU_ASSERT_EQUAL(l.cgroup_bytes, 3 * GIB);
    CU_ASSERT_PTR_NOT_NULL(strstr(l.cgroup_file, "user.slice/memory.max"));
    /* Inside a container the path is that of the host, the mount the container's own group. */
    put("proc/self/cgroup", "0::/../../somewhere/else\n");
    put("sys/fs/cgroup/memory.max", "4294967296\n");
    CU_ASSERT_EQUAL(read_limits().cgroup_bytes, 4 * GIB);
    put("proc/self/cgroup", "0::/\n");
    CU_ASSERT_EQUAL(read_limits().cgroup_bytes, 4 * GIB);
    remove_machine();
}

static void reads_version_1(void) {
    new_machine();
    put("proc/self/cgroup", "12:cpu,cpuacct:/docker/0123\n7:memory:/docker/0123\n0::/\n");
    put("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/cpu/docker/0123/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/docker/0123/cpu.cfs_period_us", "100000\n");
    stw_limits l = read_limits();
    CU_ASSERT_EQUAL(l.cgroup_bytes, STW_UNLIMITED);
    CU_ASSERT_EQUAL(l.cores, 7);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    l = read_limits();
    CU_ASSERT_EQUAL(l.cgroup_bytes, 2 * GIB);
    CU_ASSERT_EQUAL(l.cores, 1);
    /* A limit above what a container sees. */
    put("sys/fs/cgroup/memory/memory.stat",
        "cache 9\nhierarchical_memory_limit 1073741824\nhierarchical_memsw_limit 5\n");
    l = read_limits();
    CU_ASSERT_EQUAL(l.cgroup_bytes, GIB);
    CU_ASSERT_PTR_NOT_NULL(strstr(l.cgroup_file, "memory/memory.stat"));
    remove_machine();
}

static void capability_lifts_the_lock_limit(void) {
    new_machine();
    put("proc/self/status", "CapEff:\t0000000000004000\nCpus_allowed_list:\t5\n");
    stw_limits l = read_limits();
    CU_ASSERT_EQUAL(l.page_lock_bytes, STW_UNLIMITED);
    CU_ASSERT_EQUAL(l.cores, 1);
    remove_machine();
}

static void strange_files_limit_nothing(void) {
    new_machine();
    put("proc/self/cgroup", "nonsense\n0:\n::\n0::\n");
    put("proc/self/limits", "");
    put("proc/self/status", "Cpus_allowed_list:\tnone\n");
    put("sys/fs/cgroup/memory.max", "lots\n");
    put("sys/fs/cgroup/cpu.max", "\n");
    stw_limits l = read_limits();
    CU_ASSERT_EQUAL(l.cgroup_bytes, STW_UNLIMITED);
    CU_ASSERT_EQUAL(l.page_lock_bytes, STW_UNLIMITED);
    CU_ASSERT_EQUAL(l.cores, 1);
    put("proc/meminfo", "MemFree: 12 kB\n");
    CHECK_FAILS(stw_limits_read(root, &l, err), STW_STATUS_IO, "MemTotal");
    remove_machine();
    CHECK_FAILS(stw_limits_read(root, &l, err), STW_STATUS_IO, "meminfo");
}

static void refuses_what_is_forbidden(void) {
    const stw_limits l = {.memory_bytes = 64 * GIB,
                          .cgroup_bytes = 32 * GIB,
                          .page_lock_bytes = 8 * GIB,
                          .address_space_bytes = 16 * GIB,
                          .cores = 1,
                          .cgroup_file = "/sys/fs/cgroup/job/memory.max"};
    CHECK_OK(stw_limits_check(&l, 32 * GIB, 8 * GIB, err));
    CHECK_FAILS(stw_limits_check(&l, 32 * GIB + 1, 0, err), STW_STATUS_NO_RESOURCES,
                "job/memory.max");
    CHECK_FAILS(stw_limits_check(&l, 32 * GIB + 1, 0, err), STW_STATUS_NO_RESOURCES, "32.00 GiB");
    CHECK_FAILS(stw_limits_check(&l, 9 * GIB, 9 * GIB, err), STW_STATUS_NO_RESOURCES, "MEMLOCK");
    stw_limits free = l;
    free.cgroup_bytes = free.page_lock_bytes = STW_UNLIMITED;
    CHECK_FAILS(stw_limits_check(&free, 20 * GIB, 20 * GIB, err), STW_STATUS_NO_RESOURCES,
                "RLIMIT_AS");
    CHECK_OK(stw_limits_check(&free, 65 * GIB, 0, err)); /* MemTotal may grow: a warning */
}

static char warned[4096];

static void keep_warning(stw_log_level level, const char *text, void *user) {
    (void)user;
    if (level != STW_LOG_WARN) return;
    size_t used = strlen(warned);
    snprintf(warned + used, sizeof warned - used, "%s\n", text);
}

static uint32_t warnings(const stw_limits *l, const char *omp_num_threads) {
    warned[0] = '\0';
    stw_log_set(keep_warning, NULL);
    uint32_t n = stw_limits_warn(l, omp_num_threads);
    stw_log_set(NULL, NULL);
    return n;
}

static void traps_are_warned_of(void) {
    const stw_limits good = {.memory_bytes = 64 * GIB,
                             .cgroup_bytes = STW_UNLIMITED,
                             .page_lock_bytes = STW_UNLIMITED,
                             .address_space_bytes = STW_UNLIMITED,
                             .cores = 16,
                             .affinity_cores = 16,
                             .online_cores = 16,
                             .huge_pages = "madvise"};
    CU_ASSERT_EQUAL(warnings(&good, NULL), 0);
    CU_ASSERT_EQUAL(warnings(&good, "16"), 0);
    CU_ASSERT_EQUAL(warnings(&good, ""), 0);
    CU_ASSERT_EQUAL(warnings(&good, "many"), 0);
    CU_ASSERT_STRING_EQUAL(warned, "");
    CU_ASSERT_EQUAL(warnings(&good, "1"), 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(warned, "OMP_NUM_THREADS=1 with 16 cores"));

    stw_limits l = good;
    l.cores = l.affinity_cores = 4;
    CU_ASSERT_EQUAL(warnings(&l, "4"), 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(warned, "4 of 16 cores (its affinity mask)"));
    l.online_cores = 0; /* not said: nothing to warn of */
    CU_ASSERT_EQUAL(warnings(&l, NULL), 0);
    l = good;
    l.cores = 2;
    CU_ASSERT_EQUAL(warnings(&l, NULL), 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(warned, "quota"));
    l = good;
    l.cgroup_bytes = 8 * GIB;
    snprintf(l.cgroup_file, sizeof l.cgroup_file, "/sys/fs/cgroup/job/memory.max");
    CU_ASSERT_EQUAL(warnings(&l, NULL), 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(warned, "8.00 GiB of 64.00 GiB"));
    CU_ASSERT_PTR_NOT_NULL(strstr(warned, "job/memory.max"));
    l = good;
    l.page_lock_bytes = 32 * GIB;
    CU_ASSERT_EQUAL(warnings(&l, NULL), 0);
    l.page_lock_bytes--;
    CU_ASSERT_EQUAL(warnings(&l, NULL), 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(warned, "RLIMIT_MEMLOCK"));
    l = good;
    snprintf(l.huge_pages, sizeof l.huge_pages, "never");
    CU_ASSERT_EQUAL(warnings(&l, NULL), 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(warned, "huge pages"));
    l.cores = 1;
    l.affinity_cores = 3;
    l.cgroup_bytes = l.page_lock_bytes = GIB;
    CU_ASSERT_EQUAL(warnings(&l, "1"), 5); /* one thread is what one core can use */
}

static void reads_this_machine(void) {
    stw_limits l;
    CHECK_OK(stw_limits_read("", &l, err));
    CU_ASSERT_TRUE(l.memory_bytes > 0 && l.cores >= 1);
    CU_ASSERT_TRUE(stw_limits_usable_bytes(&l) <= l.memory_bytes);
}

STW_TEST_MAIN("backend limits", {"without control groups", reads_without_groups},
              {"control groups, version 2", reads_version_2},
              {"control groups, version 1", reads_version_1},
              {"CAP_IPC_LOCK lifts the page-lock limit", capability_lifts_the_lock_limit},
              {"strange files limit nothing", strange_files_limit_nothing},
              {"what is forbidden is refused", refuses_what_is_forbidden},
              {"traps are warned of", traps_are_warned_of}, {"this machine", reads_this_machine})

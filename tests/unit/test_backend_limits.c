/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of machines that are made of files: control groups of both versions, resource limits,
 * cores; and what is refused. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
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

/* Of several lines that say something the first counts, and of a file without keys the first line.
 */
static void the_first_line_counts(void) {
    new_machine();
    put("proc/self/cgroup", "0::/job\n");
    put("sys/fs/cgroup/job/memory.max", "4294967296\n8589934592\n");
    put("sys/fs/cgroup/job/cpu.max", "200000 100000\n100000 100000\n");
    put("proc/meminfo", "MemTotal: 1024 kB\nMemTotal: 2048 kB\nMemAvailable: 512 kB\n"
                        "MemAvailable: 256 kB\n");
    const stw_limits l = read_limits();
    CU_ASSERT_EQUAL(l.cgroup_bytes, 4 * GIB);
    CU_ASSERT_EQUAL(l.cores, 2);
    CU_ASSERT_EQUAL(l.memory_bytes, 1 << 20);
    CU_ASSERT_EQUAL(l.available_bytes, 512 << 10);
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

/* Every number at the edge of what it means. */
static void numbers_at_their_edges(void) {
    static const struct {
        const char *file, *text;
        uint64_t cgroup_bytes;
        uint32_t cores;
    } cases[] = {{"memory.max", "1152921504606846975\n", (1ull << 60) - 1, 7},
                 {"memory.max", "1152921504606846976\n", STW_UNLIMITED, 7},
                 {"memory.max", "0\n", 0, 7},
                 {"memory.max", "", STW_UNLIMITED, 7},
                 {"memory.max", ":1\n", STW_UNLIMITED, 7},
                 {"memory.max", "/1\n", STW_UNLIMITED, 7},
                 {"memory.max", "9\n", 9, 7},
                 {"cpu.max", "200001 100000\n", STW_UNLIMITED, 3},
                 {"cpu.max", "200000 100000\n", STW_UNLIMITED, 2},
                 {"cpu.max", "1 100000\n", STW_UNLIMITED, 1},
                 {"cpu.max", "700000 100000\n", STW_UNLIMITED, 7},
                 {"cpu.max", "900000 100000\n", STW_UNLIMITED, 7},
                 {"cpu.max", "0 100000\n", STW_UNLIMITED, 7},
                 {"cpu.max", "100000\n", STW_UNLIMITED, 7}};
    static const struct {
        const char *list;
        uint32_t n;
    } lists[] = {{"0", 1},  {"3-3", 1},     {"2-1", 0}, {"0-3,8,10-11", 7},
                 {"7,", 1}, {"1-2,9-8", 2}, {"", 0},    {"0-4294967295", UINT32_MAX},
                 {"x", 0},  {"5 6", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        new_machine();
        put("proc/self/cgroup", "0::/job\n");
        snprintf(name, sizeof name, "sys/fs/cgroup/job/%s", cases[i].file);
        put(name, cases[i].text);
        const stw_limits l = read_limits();
        CU_ASSERT_EQUAL(l.cgroup_bytes, cases[i].cgroup_bytes);
        CU_ASSERT_EQUAL(l.cores, cases[i].cores);
        remove_machine();
    }
    new_machine();
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char status[200];
        put("sys/devices/system/cpu/online", lists[i].list);
        snprintf(status, sizeof status, "CapEff:\t0000000000004000\nCpus_allowed_list:\t%s\n",
                 lists[i].list);
        put("proc/self/status", status);
        const stw_limits l = read_limits();
        CU_ASSERT_EQUAL(l.online_cores, lists[i].n);
        CU_ASSERT_EQUAL(l.affinity_cores, (lists[i].n < 1 ? 1 : lists[i].n));
    }
    for (int bit = 13; bit < 16; bit++) { /* CAP_IPC_LOCK is 14 */
        char status[100];
        snprintf(status, sizeof status, "CapEff:\t%016x\nCpus_allowed_list:\t0\n", 1u << bit);
        put("proc/self/status", status);
        CU_ASSERT_EQUAL(read_limits().page_lock_bytes, (bit == 14 ? STW_UNLIMITED : 16777216));
    }
    put("proc/self/limits", "Max locked memory  unlimited 7 bytes\nMax address space 5 6 bytes\n");
    CU_ASSERT_EQUAL(read_limits().page_lock_bytes, 7);
    CU_ASSERT_EQUAL(read_limits().address_space_bytes, 5);
    put("proc/meminfo", "MemTotal: 18014398509481983 kB\nMemAvailable: 18014398509481984 kB\n");
    CU_ASSERT_EQUAL(read_limits().memory_bytes, UINT64_MAX - 1023);
    CU_ASSERT_EQUAL(read_limits().available_bytes, 0);
    put("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
    CU_ASSERT_STRING_EQUAL(read_limits().huge_pages, "always");
    put("sys/kernel/mm/transparent_hugepage/enabled", "[a word that has no room anywhere] never\n");
    CU_ASSERT_STRING_EQUAL(read_limits().huge_pages, "");
    put("sys/kernel/mm/transparent_hugepage/enabled", "never\n");
    CU_ASSERT_STRING_EQUAL(read_limits().huge_pages, "");
    /* Names of controllers are whole words. */
    put("proc/self/cgroup", "3:mycpu,cpuset:/a\n4:memoryx:/a\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "5\n");
    put("proc/self/status", "Cpus_allowed_list:\t0-3\n");
    CU_ASSERT_TRUE(read_limits().cores == 4 && read_limits().cgroup_bytes == STW_UNLIMITED);
    put("proc/self/cgroup", "3:cpuset,cpu:/a\n4:x,memory,y:/a/\n");
    CU_ASSERT_TRUE(read_limits().cores == 1 && read_limits().cgroup_bytes == 5);
    put("proc/self/cgroup", "1:name=systemd:/a\n0:x:/a\n10::/a\n");
    put("sys/fs/cgroup/memory.max", "3\n");
    CU_ASSERT_EQUAL(read_limits().cgroup_bytes, STW_UNLIMITED);
    remove_machine();
}

/* A file that this process may not open limits nothing that is known. */
static void no_descriptor_is_left(void) {
    struct rlimit before, none;
    stw_limits l;
    stw_error error = STW_ERROR_INIT;
    char where[300];
    new_machine();
    CU_ASSERT_EQUAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &none), 0);
    const stw_status status = stw_limits_read(root, &l, &error);
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    CU_ASSERT_TRUE(status != STW_STATUS_OK && status == error.status);
    CU_ASSERT_EQUAL(error.native, EMFILE);
    snprintf(where, sizeof where, "%s/proc/meminfo", root);
    CU_ASSERT_STRING_EQUAL(error.where, where); /* the first */
    CU_ASSERT_PTR_EQUAL(strstr(error.text, "cannot be opened"), error.text);
    remove_machine();
}

static void words_of_refusals_and_warnings(void) {
    stw_limits l = {.memory_bytes = 64 * GIB,
                    .cgroup_bytes = 32 * GIB,
                    .page_lock_bytes = 8 * GIB,
                    .address_space_bytes = 16 * GIB,
                    .cores = 2,
                    .affinity_cores = 3,
                    .online_cores = 4,
                    .cgroup_file = "/job/memory.max",
                    .huge_pages = "never"};
    static const struct {
        uint64_t host, locked;
        const char *where, *text;
    } cases[] = {
        {40 * GIB, 0, "/job/memory.max",
         "host memory of all ranks on this node: 40.00 GiB needed, 32.00 GiB allowed by "
         "the control group"},
        {0, 9 * GIB, "RLIMIT_MEMLOCK",
         "page-locked memory of this process: 9.00 GiB needed, 8.00 GiB allowed (raise "
         "the hard limit: ulimit -H -l)"},
        {0, 20 * GIB, "RLIMIT_AS",
         "address space of this process: 20.00 GiB needed, 16.00 GiB allowed (ulimit -v)"}};
    for (int i = 0; i < 3; i++) {
        stw_error error = STW_ERROR_INIT;
        if (i == 2) l.page_lock_bytes = 20 * GIB;
        CU_ASSERT_EQUAL(stw_limits_check(&l, cases[i].host, cases[i].locked, &error),
                        STW_STATUS_NO_RESOURCES);
        CU_ASSERT_STRING_EQUAL(error.where, cases[i].where);
        CU_ASSERT_STRING_EQUAL(error.text, cases[i].text);
    }
    l.page_lock_bytes = 8 * GIB;
    CHECK_OK(stw_limits_check(&l, 0, 8 * GIB, err));
    l.page_lock_bytes = STW_UNLIMITED;
    CHECK_OK(stw_limits_check(&l, 0, 16 * GIB, err));
    l.page_lock_bytes = 8 * GIB;
    CU_ASSERT_EQUAL(warnings(&l, "1"), 6);
    CU_ASSERT_STRING_EQUAL(
        warned,
        "this process may run on 3 of 4 cores (its affinity mask): CPU updates and copies by the "
        "CPU are slower than the machine could be\n"
        "the control group's quota of CPU time is that of 2 of 3 cores\n"
        "OMP_NUM_THREADS=1 with 2 cores (torchrun and Ray set 1): optimizers of other programs on "
        "the CPU will be slow; Stowage does not use it\n"
        "the control group allows 32.00 GiB of 64.00 GiB of memory (/job/memory.max)\n"
        "RLIMIT_MEMLOCK lets a process page-lock 8.00 GiB of 64.00 GiB of memory: raise it (ulimit "
        "-H -l, or memlock in limits.conf) to keep state in host memory\n"
        "transparent huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled is never): "
        "page-locking takes several times as long; madvise suffices\n");
    l.cgroup_bytes = STW_UNLIMITED;
    warned[0] = '\0';
    stw_log_set(keep_warning, NULL);
    CHECK_OK(stw_limits_check(&l, 64 * GIB, 0, err));
    CU_ASSERT_STRING_EQUAL(warned, "");
    CHECK_OK(stw_limits_check(&l, 65 * GIB, 0, err));
    stw_log_set(NULL, NULL);
    CU_ASSERT_STRING_EQUAL(
        warned,
        "the ranks of this node take 65.00 GiB of host memory, MemTotal is 64.00 GiB now\n");
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
              {"the first line counts", the_first_line_counts},
              {"strange files limit nothing", strange_files_limit_nothing},
              {"what is forbidden is refused", refuses_what_is_forbidden},
              {"traps are warned of", traps_are_warned_of},
              {"numbers at their edges", numbers_at_their_edges},
              {"no descriptor is left", no_descriptor_is_left},
              {"words of refusals and warnings", words_of_refusals_and_warnings},
              {"this machine", reads_this_machine})

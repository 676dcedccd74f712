/* SPDX-License-Identifier: Apache-2.0 */
/* Which cores threads run on: lists as /sys writes them, from folders made here, and threads that
 * stay where they are put. */
#define _GNU_SOURCE /* sched_getcpu */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/host/cpus.h"
#include "backend/host/pool.h"
#include "tests/unit/testing.h"

/* The linker hands these to this test (--wrap): a system that does not say which cores there are,
 * and a list of where threads are put. */
static bool says_no_cores;
int __real_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set) {
    return says_no_cores ? -1 : __real_sched_getaffinity(pid, bytes, set);
}
static char put_on[200];
int __real_pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *set);
int __wrap_pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *set);
int __wrap_pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *set) {
    const size_t used = strlen(put_on);
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, set)) snprintf(put_on + used, sizeof put_on - used, "%u ", i);
    if (CPU_COUNT(set) != 1) strcat(put_on, "several ");
    return __real_pthread_setaffinity_np(thread, bytes, set);
}

/* root/path with all its folders, holding text. */
static void put(const char *root, const char *path, const char *text) {
    char full[1024];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(full, 0777);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    fclose(file);
}

static stw_cpus first_cpus(uint32_t n) {
    stw_cpus c = {.n = n};
    for (uint32_t i = 0; i < n; i++) c.cpu[i] = (uint16_t)i;
    return c;
}

/* The cores out of 0 .. 15 that lie near a device whose local_cpulist says `list`, as text. */
static void check_near(const char *list, const char *expected) {
    char text[128] = "";
    put("sys_list", "bus/pci/devices/0000:0a:00.0/local_cpulist", list);
    stw_cpus cpus = first_cpus(16);
    stw_cpus_near_pci(&cpus, "0000:0A:00.0", "sys_list");
    for (uint32_t i = 0; i < cpus.n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u", i > 0 ? " " : "",
                 cpus.cpu[i]);
    CU_ASSERT_STRING_EQUAL(text, expected);
    if (strcmp(text, expected) != 0)
        fprintf(stderr, "\"%s\" gave %s, not %s\n", list, text, expected);
}

#define ALL "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"

static void lists_are_read(void) {
    check_near("0-3,8,10-11\n", "0 1 2 3 8 10 11");
    check_near("7\n", "7");
    check_near("4-5", "4 5");
    check_near("14-40,1000-2000\n", "14 15");
    check_near("12,2\n", "2 12");
    /* None of ours, or no list at all: all stay. */
    check_near("16-31\n", ALL);
    check_near("\n", ALL);
    check_near("", ALL);
    check_near("3-1\n", ALL);
    check_near("1,\n", ALL);
    check_near("1-\n", ALL);
    check_near("-1\n", ALL);
    check_near("0-3 8\n", ALL);
    check_near("all\n", ALL);
}

static void a_device_that_is_unknown_changes_nothing(void) {
    put("sys_gone", "bus/pci/devices/0000:0a:00.0/local_cpulist", "1\n");
    const char *const ids[] = {"0000:0b:00.0", "", "../0000:0a:00.0",
                               "0000:0a:00.0000000000000000000000000000"};
    for (int i = 0; i < 4; i++) {
        stw_cpus cpus = first_cpus(6);
        stw_cpus_near_pci(&cpus, ids[i], "sys_gone");
        CU_ASSERT_EQUAL(cpus.n, 6);
    }
    stw_cpus cpus = first_cpus(6);
    stw_cpus_near_pci(&cpus, "0000:0a:00.0", "no_such_folder");
    CU_ASSERT_EQUAL(cpus.n, 6);
    stw_cpus_near_pci(&cpus, "0000:0a:00.0", "sys_gone");
    CU_ASSERT_EQUAL(cpus.n, 1);
}

static void nodes_with_cores_count(void) {
    static const char *const left[] = {"node1/cpulist", "node10/cpulist", "node2/cpulist"};
    for (int i = 0; i < 3; i++) { /* by a run before */
        char path[128];
        snprintf(path, sizeof path, "sys_nodes/devices/system/node/%s", left[i]);
        (void)remove(path);
    }
    CU_ASSERT_EQUAL(stw_cpus_numa_nodes("no_such_folder"), 1);
    put("sys_nodes", "devices/system/node/node0/cpulist", "0-1\n");
    put("sys_nodes", "devices/system/node/possible", "0-7\n");
    CU_ASSERT_EQUAL(stw_cpus_numa_nodes("sys_nodes"), 1);
    put("sys_nodes", "devices/system/node/node1/cpulist", "2-3\n");
    put("sys_nodes", "devices/system/node/node10/cpulist", "7,9\n");
    CU_ASSERT_EQUAL(stw_cpus_numa_nodes("sys_nodes"), 3);
    put("sys_nodes", "devices/system/node/node2/cpulist", "\n"); /* memory without cores */
    put("sys_nodes", "devices/system/node/node3/meminfo", "no list\n");
    put("sys_nodes", "devices/system/node/nodes/cpulist", "5\n");
    put("sys_nodes", "devices/system/node/node/cpulist", "5\n");
    CU_ASSERT_EQUAL(stw_cpus_numa_nodes("sys_nodes"), 3);
    CU_ASSERT_TRUE(stw_cpus_numa_nodes(NULL) >= 1);
}

static void ranks_share_fairly(void) {
    stw_cpus cpus = first_cpus(11);
    stw_cpus_share(&cpus, 2, 3);
    CU_ASSERT_EQUAL(cpus.n, 3);
    for (uint32_t i = 0; i < 3; i++) CU_ASSERT_EQUAL(cpus.cpu[i], 6 + i);
    stw_cpus_share(&cpus, 1, 3);
    CU_ASSERT_EQUAL(cpus.n, 1);
    CU_ASSERT_EQUAL(cpus.cpu[0], 7);
    cpus = first_cpus(3);
    stw_cpus_share(&cpus, 1, 4); /* fewer cores than parts */
    CU_ASSERT_EQUAL(cpus.n, 3);
    stw_cpus_share(&cpus, 0, 1);
    CU_ASSERT_EQUAL(cpus.n, 3);
    stw_cpus_share(&cpus, 0, 0);
    CU_ASSERT_EQUAL(cpus.n, 3);
}

static void this_process_has_cores(void) {
    stw_cpus cpus;
    stw_cpus_allowed(&cpus);
    CU_ASSERT_TRUE(cpus.n >= 1);
    CU_ASSERT_EQUAL(cpus.n, stw_threads_cores());
    for (uint32_t i = 1; i < cpus.n; i++) CU_ASSERT_TRUE(cpus.cpu[i - 1] < cpus.cpu[i]);
    stw_cpus one = {.n = 1, .cpu = {cpus.cpu[cpus.n - 1]}}, found;
    stw_cpus_keep(&one);
    stw_cpus_allowed(&found);
    CU_ASSERT_EQUAL(found.n, 1);
    CU_ASSERT_EQUAL(found.cpu[0], one.cpu[0]);
    stw_cpus_keep(&cpus);
    stw_cpus_allowed(&found);
    CU_ASSERT_EQUAL(found.n, cpus.n);
    says_no_cores = true; /* more of them than a set holds */
    found.cpu[0] = 7;
    stw_cpus_allowed(&found);
    CU_ASSERT_EQUAL(found.n, 1);
    CU_ASSERT_EQUAL(found.cpu[0], 0);
    says_no_cores = false;
}

/* Worker i on core i, over and over; the caller on the next one. */
static void threads_are_put_on_cores(void) {
    const stw_cpus three = {.n = 3, .cpu = {500, 2, 501}}, far = {.n = 1, .cpu = {1024}};
    static const char *const expected[] = {"500 ", "500 2 ", "500 2 501 ", "500 2 501 500 ",
                                           "500 2 501 500 2 "};
    stw_cpus before;
    stw_cpus_allowed(&before);
    for (uint32_t n = 1; n <= 5; n++) {
        stw_threads *threads = NULL;
        put_on[0] = '\0';
        CHECK_OK(stw_threads_new_on(n, &three, &threads, err));
        stw_threads_keep_caller(threads);
        CU_ASSERT_STRING_EQUAL(put_on, expected[n - 1]);
        stw_threads_free(threads);
    }
    stw_threads *threads = NULL;
    put_on[0] = '\0';
    CHECK_OK(stw_threads_new_on(2, &far, &threads, err)); /* past what a set holds */
    stw_threads_keep_caller(threads);
    CU_ASSERT_STRING_EQUAL(put_on, "");
    stw_threads_free(threads);
    CHECK_OK(stw_threads_new(2, &threads, err));
    stw_threads_keep_caller(threads);
    CU_ASSERT_STRING_EQUAL(put_on, "");
    stw_threads_free(threads);
    stw_cpus_keep(&before);
}

/* Lists and paths that are too long say nothing. */
static void what_is_too_long_changes_nothing(void) {
    char *list = malloc(5000), *root = malloc(600);
    CU_ASSERT_FATAL(list != NULL && root != NULL);
    for (int length = 4094; length <= 4096; length++) { /* "1,1,...,1" of so many characters */
        for (int i = 0; i < length; i++) list[i] = i % 2 == 0 ? '1' : ',';
        if (length % 2 == 0) list[length - 1] = '\n';
        list[length] = '\0';
        check_near(list, length < 4095 ? "1" : ALL);
    }
    memset(root, 'x', 599);
    root[599] = '\0';
    stw_cpus cpus = first_cpus(6);
    stw_cpus_near_pci(&cpus, "0000:0a:00.0", root);
    CU_ASSERT_EQUAL(cpus.n, 6);
    CU_ASSERT_EQUAL(stw_cpus_numa_nodes(root), 1);
    free(list);
    free(root);
}

/* ---- threads that stay on a core ---- */

static pthread_t caller;
static int wanted;
static uint32_t elsewhere, workers;

static void where(void *arg, uint64_t first, uint64_t count) {
    (void)arg;
    (void)first;
    (void)count;
    usleep(200); /* so that workers get some */
    if (pthread_equal(pthread_self(), caller)) return;
    __atomic_fetch_add(&workers, 1, __ATOMIC_RELAXED);
    if (sched_getcpu() != wanted) __atomic_fetch_add(&elsewhere, 1, __ATOMIC_RELAXED);
}

static void workers_stay_on_their_core(void) {
    stw_cpus allowed;
    stw_cpus_allowed(&allowed);
    caller = pthread_self();
    for (uint32_t i = 0; i < allowed.n && i < 2; i++) {
        stw_cpus one = {.n = 1, .cpu = {allowed.cpu[allowed.n - 1 - i]}};
        stw_threads *threads = NULL;
        wanted = one.cpu[0];
        elsewhere = workers = 0;
        CHECK_OK(stw_threads_new_on(4, &one, &threads, err));
        CU_ASSERT_EQUAL(stw_threads_count(threads), 4);
        /* A worker may have begun before it was put on its core: the first round is not counted. */
        stw_threads_for(threads, 40, 1, where, NULL);
        elsewhere = workers = 0;
        stw_threads_for(threads, 100, 1, where, NULL);
        CU_ASSERT_TRUE(workers > 0);
        CU_ASSERT_EQUAL(elsewhere, 0);
        stw_threads_free(threads);
    }
}

static void a_core_that_is_not_there_is_no_error(void) {
    stw_cpus none = {.n = 2, .cpu = {STW_MAX_CPUS - 1, 65535}}, empty = {.n = 0};
    stw_threads *threads = NULL;
    CHECK_OK(stw_threads_new_on(3, &none, &threads, err));
    CU_ASSERT_EQUAL(stw_threads_count(threads), 3);
    stw_threads_for(threads, 10, 1, where, NULL);
    stw_threads_free(threads);
    CHECK_OK(stw_threads_new_on(2, &empty, &threads, err));
    CU_ASSERT_EQUAL(stw_threads_count(threads), 2);
    stw_threads_free(threads);
    CHECK_OK(stw_threads_new_on(0, NULL, &threads, err));
    CU_ASSERT_EQUAL(stw_threads_count(threads), stw_threads_cores());
    stw_threads_free(threads);
}

STW_TEST_MAIN("backend cpus", {"lists are read", lists_are_read},
              {"an unknown device changes nothing", a_device_that_is_unknown_changes_nothing},
              {"nodes with cores count", nodes_with_cores_count},
              {"ranks share fairly", ranks_share_fairly},
              {"this process has cores", this_process_has_cores},
              {"threads are put on cores", threads_are_put_on_cores},
              {"what is too long changes nothing", what_is_too_long_changes_nothing},
              {"workers stay on their core", workers_stay_on_their_core},
              {"a core that is not there is no error", a_core_that_is_not_there_is_no_error})

/* SPDX-License-Identifier: Apache-2.0 */
/* The count of calls. Reads and writes its log with plain system calls, which are not counted. */
#define _GNU_SOURCE /* syscall */
#include "tests/faults/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const char __executable_start __attribute__((weak));

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static stw_fault_call *calls; /* those that were made */
static bool held;
static bool is_read;                         /* the environment */
static char wanted[64];                      /* "": none fails */
static unsigned long long wanted_n, n_alike; /* n_alike: calls so far that match a "name*" */
static const char *log_path;

/* Not inlined: a debugger can stop here. */
__attribute__((noinline)) static void log_line(const char *line, size_t length) {
    int kept = errno;
    long fd = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd >= 0) {
        (void)syscall(SYS_write, fd, line, length);
        (void)syscall(SYS_close, fd);
    }
    errno = kept;
}

static bool is_my_rank(const char *text) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *mine = getenv(names[i]);
        if (mine != NULL) return strcmp(mine, text) == 0;
    }
    return strcmp(text, "0") == 0;
}

static void read_environment(void) {
    const char *text = getenv("STOWAGE_FAIL"), *colon = text != NULL ? strrchr(text, ':') : NULL;
    log_path = getenv("STOWAGE_FAIL_LOG");
    is_read = true;
    if (colon == NULL || (size_t)(colon - text) >= sizeof wanted) return;
    char *end = NULL;
    wanted_n = strtoull(colon + 1, &end, 10);
    if (*end == '@' && !is_my_rank(end + 1)) return;
    memcpy(wanted, text, (size_t)(colon - text));
}

static bool same_name(const char *a, const char *b) {
    size_t n = strcspn(a, "(");
    return strcspn(b, "(") == n && strncmp(a, b, n) == 0;
}

/* Adds a place, unless another one makes calls of this name. */
static stw_fault_call *first_of(stw_fault_call *call) {
    stw_fault_call *first = calls;
    while (first != NULL && !same_name(first->name, call->name)) first = first->next;
    if (first == NULL) {
        first = call;
        call->next = calls;
        calls = call;
    }
    return call->first = first;
}

/* Is this the call that is to fail? */
static bool is_wanted(const stw_fault_call *call) {
    size_t n = strlen(wanted);
    if (n == 0 || wanted[n - 1] != '*')
        return same_name(call->name, wanted) && call->count == wanted_n;
    return strncmp(call->name, wanted, n - 1) == 0 && ++n_alike == wanted_n;
}

void stw_fault_hold(void) { held = true; }
void stw_fault_begin(void) { held = false; }

bool stw_fault_now(stw_fault_call *call, const void *from) {
    if (held) return false;
    pthread_mutex_lock(&mutex);
    if (!is_read) read_environment();
    stw_fault_call *first = call->first != NULL ? call->first : first_of(call);
    first->count++;
    bool fails = is_wanted(first);
    pthread_mutex_unlock(&mutex);
    if (fails && log_path != NULL) {
        char line[160];
        int n = snprintf(line, sizeof line, "failed %.*s %llu at 0x%" PRIxPTR "\n",
                         (int)strcspn(call->name, "("), call->name, wanted_n,
                         (uintptr_t)from - (uintptr_t)&__executable_start);
        log_line(line, (size_t)n);
    }
    return fails;
}

void stw_fault_set(const char *name, unsigned long long n) {
    pthread_mutex_lock(&mutex);
    if (!is_read) read_environment();
    snprintf(wanted, sizeof wanted, "%s", name != NULL ? name : "");
    wanted_n = n;
    n_alike = 0;
    for (stw_fault_call *c = calls; c != NULL; c = c->next) c->count = 0;
    pthread_mutex_unlock(&mutex);
}

unsigned long long stw_fault_count(const char *prefix) {
    unsigned long long n = 0;
    pthread_mutex_lock(&mutex);
    for (const stw_fault_call *c = calls; c != NULL; c = c->next)
        if (strncmp(c->name, prefix, strlen(prefix)) == 0) n += c->count;
    pthread_mutex_unlock(&mutex);
    return n;
}

__attribute__((destructor)) void stw_fault_tell(void) {
    char text[4096];
    size_t used = 0;
    if (log_path == NULL) return;
    for (const stw_fault_call *c = calls; c != NULL && used < sizeof text - 100; c = c->next)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "count %s %llu\n", c->name, c->count);
    log_line(text, used);
    log_path = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* stowage-nvtx.so: NVTX ranges of a job as marks of `stowage record`. A range whose name is that of
 * a phase begins this phase; where it ends, the phase around it goes on, or none. Loaded into
 * somebody else's process: it needs libc alone, prints nothing and fails silently. */
#define _GNU_SOURCE /* O_CLOEXEC, strdup, clock_gettime */
#include <ctype.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backend/nvtx/abi.h"

enum { MOST_DEPTH = 256, NO_PHASE = -1 };

static const char *const phases[] = {
    "load",           "rollout",     "log_prob",  "forward_backward",
    "optimizer_step", "weight_sync", "checkpoint"};
enum { N_PHASES = sizeof phases / sizeof phases[0] };

/* Ranges are of a thread. Deeper ones are counted, but begin no phase. */
static _Thread_local signed char stack[MOST_DEPTH];
static _Thread_local int depth;

static atomic_int marks = -1; /* descriptor of the file of marks */
static struct stat opened;    /* the file that it was opened for */
static char *marks_path;
static char rank[12];

static void find_rank(void) {
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && rank[0] == '\0'; i++) {
        const char *value = getenv(names[i]);
        size_t n = value != NULL ? strspn(value, "0123456789") : 0;
        if (n > 0 && n < 10 && value[n] == '\0') memcpy(rank, value, n + 1);
    }
}

static bool is_marks(int file) {
    struct stat found;
    return fstat(file, &found) == 0 && found.st_dev == opened.st_dev &&
           found.st_ino == opened.st_ino;
}

/* The program may close descriptors that it does not know. Its next file then has the number: marks
 * would be written into that. @return -1: the file of marks is gone */
static int descriptor(void) {
    int file = marks;
    if (is_marks(file)) return file;
    int again = open(marks_path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (again < 0) return -1;
    if (is_marks(again) && atomic_compare_exchange_strong(&marks, &file, again)) return again;
    (void)close(again);
    return -1;
}

/* One write of a whole line: those of other ranks do not mix with it. */
static void mark(const char *phase) {
    struct timespec now;
    char line[128];
    const int file = descriptor();
    if (file < 0) return;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    int n = snprintf(line, sizeof line, "%lld.%06ld,%s,%s\n", (long long)now.tv_sec,
                     now.tv_nsec / 1000, rank, phase);
    if (n > 0 && (size_t)n < sizeof line && write(file, line, (size_t)n) != n) return;
}

/* "Forward-Backward" is "forward_backward". */
static signed char phase_of(const char *name) {
    for (int p = 0; name != NULL && p < N_PHASES; p++) {
        size_t i = 0;
        for (; name[i] != '\0' && phases[p][i] != '\0'; i++) {
            char c = (char)tolower((unsigned char)name[i]);
            if ((c == '-' || c == ' ' ? '_' : c) != phases[p][i]) break;
        }
        if (name[i] == '\0' && phases[p][i] == '\0') return (signed char)p;
    }
    return NO_PHASE;
}

static int push(const char *name) {
    signed char phase = depth < MOST_DEPTH ? phase_of(name) : NO_PHASE;
    if (depth < MOST_DEPTH) stack[depth] = phase;
    if (phase != NO_PHASE) mark(phases[(int)phase]);
    return depth++;
}

static int push_attributes(const nvtx_attributes *a) {
    bool text = a != NULL && (a->message_type == NVTX_MESSAGE_ASCII ||
                              a->message_type == NVTX_MESSAGE_REGISTERED);
    return push(text ? a->message : NULL);
}

static int push_wide(const void *name) {
    (void)name;
    return push(NULL);
}

static int push_in_domain(void *domain, const nvtx_attributes *a) {
    (void)domain;
    return push_attributes(a);
}

static int pop(void) {
    if (depth == 0) return -1;
    depth--;
    if (depth >= MOST_DEPTH || stack[depth] == NO_PHASE) return depth;
    int around = depth - 1;
    while (around >= 0 && stack[around] == NO_PHASE) around--;
    mark(around >= 0 ? phases[(int)stack[around]] : "end");
    return depth;
}

static int pop_in_domain(void *domain) {
    (void)domain;
    return pop();
}

/* The handle of a string is a copy of it. */
static const char *register_string(void *domain, const char *string) {
    (void)domain;
    return string != NULL ? strdup(string) : NULL;
}

/* Every library of a program that uses NVTX has a table of its own, and calls from any thread. */
static bool open_marks(const char *path) {
    int none = -1;
    if (marks >= 0) return true;
    find_rank();
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0) return false;
    char *copy = strdup(path);
    if (copy == NULL || fstat(file, &opened) != 0) {
        free(copy);
        (void)close(file);
        return false;
    }
    marks_path = copy;
    if (!atomic_compare_exchange_strong(&marks, &none, file)) (void)close(file);
    return true;
}

static void set(nvtx_function **table, unsigned int size, unsigned int id, nvtx_function f) {
    if (id < size && table[id] != NULL) *table[id] = f;
}

/** What NVTX calls when a program first uses it. @return 1; 0: nothing is marked */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(nvtx_get_export get_export);

int InitializeInjectionNvtx2(nvtx_get_export get_export) {
    nvtx_function **core = NULL, **core2 = NULL;
    unsigned int n = 0, n2 = 0;
    const char *path = getenv("STOWAGE_MARKS");
    const nvtx_callbacks *callbacks = get_export(NVTX_EXPORT_CALLBACKS);
    if (path == NULL || callbacks == NULL || callbacks->struct_size < sizeof *callbacks) return 0;
    if (!callbacks->get_table(NVTX_MODULE_CORE, &core, &n)) return 0;
    if (!callbacks->get_table(NVTX_MODULE_CORE2, &core2, &n2)) n2 = 0;
    if (!open_marks(path)) return 0;
    set(core, n, NVTX_CORE_PUSH_EX, (nvtx_function)push_attributes);
    set(core, n, NVTX_CORE_PUSH_A, (nvtx_function)push);
    set(core, n, NVTX_CORE_PUSH_W, (nvtx_function)push_wide);
    set(core, n, NVTX_CORE_POP, (nvtx_function)pop);
    set(core2, n2, NVTX_CORE2_PUSH_EX, (nvtx_function)push_in_domain);
    set(core2, n2, NVTX_CORE2_POP, (nvtx_function)pop_in_domain);
    set(core2, n2, NVTX_CORE2_REGISTER_A, (nvtx_function)register_string);
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "backend/record/tree.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ENVIRONMENT = 1 << 20, PATH_BYTES = 512 };

/* What launchers call the ranks of a process: torchrun, Open MPI, Slurm, MPICH. */
typedef struct launcher {
    const char *rank, *local_rank, *node;
} launcher;
static const launcher launchers[] = {
    {"RANK", "LOCAL_RANK", "GROUP_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", NULL},
    {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"},
    {"PMI_RANK", "MPI_LOCALRANKID", NULL},
};
enum { N_LAUNCHERS = sizeof launchers / sizeof launchers[0] };

static char *read_whole(const char *path, size_t limit, size_t *length) {
    FILE *file = fopen(path, "r");
    char *text = malloc(limit + 1);
    *length = file != NULL && text != NULL ? fread(text, 1, limit, file) : 0;
    if (text != NULL) text[*length] = '\0';
    if (file != NULL) fclose(file);
    return text;
}

/* The value of a variable in "A=1\0B=2\0"; NULL: none. */
static const char *variable(const char *environment, size_t length, const char *name) {
    size_t n = strlen(name);
    for (const char *p = environment; name[0] != '\0' && p < environment + length;
         p += strlen(p) + 1)
        if (strncmp(p, name, n) == 0 && p[n] == '=') return p + n + 1;
    return NULL;
}

static int32_t number(const char *text) {
    char *end = NULL;
    if (text == NULL || !isdigit((unsigned char)text[0])) return -1;
    long value = strtol(text, &end, 10);
    return *end == '\0' && value <= INT32_MAX / 2 ? (int32_t)value : -1;
}

static stw_record_process environment_of(const char *proc, pid_t pid) {
    stw_record_process p = {.rank = -1, .local_rank = -1, .node = -1, .visible = "*"};
    char path[PATH_BYTES];
    size_t length = 0;
    snprintf(path, sizeof path, "%s/%ld/environ", proc, (long)pid);
    char *text = read_whole(path, MAX_ENVIRONMENT, &length);
    if (text == NULL) return p;
    for (int i = 0; i < N_LAUNCHERS && p.rank < 0; i++) {
        p.rank = number(variable(text, length, launchers[i].rank));
        p.local_rank = number(variable(text, length, launchers[i].local_rank));
        if (launchers[i].node != NULL) p.node = number(variable(text, length, launchers[i].node));
        p.by_torchrun = i == 0 && p.rank >= 0 && p.local_rank >= 0;
    }
    const char *visible = variable(text, length, "CUDA_VISIBLE_DEVICES");
    if (visible != NULL) snprintf(p.visible, sizeof p.visible, "%s", visible);
    free(text);
    return p;
}

/* Between fork and exec a process has the environment of its parent, so it is read again each time.
 * A process that writes a title over its environment stays the rank that it was. */
static void read_environment(const char *proc, stw_record_process *p) {
    const stw_record_process now = environment_of(proc, p->pid);
    if (p->rank >= 0 && (now.rank < 0 || (p->by_torchrun && !now.by_torchrun))) return;
    p->rank = now.rank;
    p->local_rank = now.local_rank;
    p->node = now.node;
    p->by_torchrun = now.by_torchrun;
    memcpy(p->visible, now.visible, sizeof p->visible);
}

/* A process by "pid (name) S parent ... start ...": the name may contain anything. */
typedef struct listed {
    pid_t pid, parent;
    unsigned long long start;
} listed;

static listed read_stat(const char *proc, pid_t pid) {
    listed p = {.pid = pid};
    char path[PATH_BYTES];
    size_t length = 0;
    snprintf(path, sizeof path, "%s/%ld/stat", proc, (long)pid);
    char *text = read_whole(path, 1023, &length);
    const char *at = text != NULL ? strrchr(text, ')') : NULL;
    for (int field = 2; at != NULL && field < 22; field++) { /* proc(5): the name is field 2 */
        at = strchr(at + 1, ' ');
        if (at != NULL && field + 1 == 4) p.parent = (pid_t)strtol(at, NULL, 10);
        if (at != NULL && field + 1 == 22) p.start = strtoull(at, NULL, 10);
    }
    free(text);
    return p;
}

static stw_record_process *find(const stw_record_tree *tree, pid_t pid) {
    for (size_t i = 0; i < tree->n; i++)
        if (tree->items[i].pid == pid) return &tree->items[i];
    return NULL;
}

/* All processes and their parents. @return how many; *out is NULL where there is no memory */
static size_t list_all(const char *proc, listed **out) {
    DIR *folder = opendir(proc);
    size_t n = 0, capacity = 0;
    *out = NULL;
    for (struct dirent *e = NULL; folder != NULL && (e = readdir(folder)) != NULL;) {
        int32_t pid = number(e->d_name);
        if (pid <= 0) continue;
        if (n == capacity) {
            listed *grown = realloc(*out, (capacity = 2 * capacity + 256) * sizeof *grown);
            if (grown == NULL) break;
            *out = grown;
        }
        (*out)[n++] = read_stat(proc, (pid_t)pid);
    }
    if (folder != NULL) closedir(folder);
    return n;
}

/* A number that another process had is of a new one. */
static void take(const stw_record_tree *tree, stw_record_process *process, listed p) {
    if (process->start != p.start || process->pid != p.pid)
        *process = (stw_record_process){.pid = p.pid, .start = p.start, .rank = -1};
    process->parent = p.parent;
    process->seen = true;
    read_environment(tree->proc, process);
}

static stw_status add(stw_record_tree *tree, listed p, stw_error *err) {
    if (tree->n == tree->capacity) {
        size_t capacity = 2 * tree->capacity + 64;
        stw_record_process *grown = realloc(tree->items, capacity * sizeof *grown);
        if (grown == NULL)
            return stw_fail(err, STW_STATUS_NO_MEMORY, tree->proc, "out of memory for processes");
        tree->items = grown;
        tree->capacity = capacity;
    }
    stw_record_process *process = &tree->items[tree->n++];
    *process = (stw_record_process){0};
    take(tree, process, p);
    return STW_STATUS_OK;
}

/* A rank is the first process of those with its number: what it starts inherits the variables. A
 * launcher that itself has a rank of an outer launcher gives way to what torchrun started. */
static void mark_ranks(stw_record_tree *tree) {
    bool torchrun = false;
    for (size_t i = 0; i < tree->n; i++) torchrun = torchrun || tree->items[i].by_torchrun;
    for (size_t i = 0; i < tree->n; i++) {
        stw_record_process *p = &tree->items[i];
        const stw_record_process *parent = find(tree, p->parent);
        p->is_rank =
            p->rank >= 0 && p->by_torchrun == torchrun &&
            (parent == NULL || parent->rank != p->rank || parent->by_torchrun != p->by_torchrun);
    }
}

stw_status stw_record_tree_read(stw_record_tree *tree, pid_t root, stw_error *err) {
    listed *all = NULL;
    size_t n = list_all(tree->proc, &all), kept = 0;
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < tree->n; i++) tree->items[i].seen = false;
    for (bool more = true; more && status == STW_STATUS_OK;) { /* children after their parents */
        more = false;
        for (size_t i = 0; i < n && status == STW_STATUS_OK; i++) {
            const stw_record_process *parent = find(tree, all[i].parent);
            stw_record_process *known = find(tree, all[i].pid);
            bool ours = all[i].parent == root || (parent != NULL && parent->seen);
            if (!ours || (known != NULL && known->seen)) continue;
            more = true;
            if (known != NULL)
                take(tree, known, all[i]);
            else
                status = add(tree, all[i], err);
        }
    }
    for (size_t i = 0; i < tree->n; i++)
        if (tree->items[i].seen) tree->items[kept++] = tree->items[i];
    tree->n = kept;
    mark_ranks(tree);
    free(all);
    return status;
}

uint64_t stw_record_tree_measure(stw_record_tree *tree) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t sum = 0;
    for (size_t i = 0; i < tree->n; i++) {
        char path[PATH_BYTES];
        unsigned long long size = 0, resident = 0;
        snprintf(path, sizeof path, "%s/%ld/statm", tree->proc, (long)tree->items[i].pid);
        FILE *file = fopen(path, "r");
        if (file != NULL && fscanf(file, "%llu %llu", &size, &resident) != 2) resident = 0;
        if (file != NULL) fclose(file);
        tree->items[i].resident = resident * page;
        sum += tree->items[i].resident;
    }
    return sum;
}

void stw_record_tree_free(stw_record_tree *tree) {
    free(tree->items);
    tree->items = NULL;
    tree->n = tree->capacity = 0;
}

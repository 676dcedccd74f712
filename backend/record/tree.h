/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that descend from one, read from /proc, and which of them are ranks of a job. One
 * thread at a time. */
#ifndef STW_RECORD_TREE_H
#define STW_RECORD_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/status.h"

typedef struct stw_record_process {
    pid_t pid, parent;
    unsigned long long start; /* when it began, in ticks: tells processes of one number apart */
    bool seen;                /* in the last reading */
    bool is_rank;             /* the process that is the rank, not one that it started */
    int32_t rank;             /* by its environment; -1: none */
    int32_t local_rank;       /* -1: none */
    int32_t node;             /* by its environment; -1: none */
    bool by_torchrun;         /* it has LOCAL_RANK and RANK */
    char visible[256];        /* CUDA_VISIBLE_DEVICES; "*" where it is not set */
    uint64_t resident;        /* bytes, by stw_record_tree_measure; 0: gone */
} stw_record_process;

typedef struct stw_record_tree {
    const char *proc; /* "/proc", or a folder like it */
    size_t n, capacity;
    stw_record_process *items;
} stw_record_tree;

/** Read who descends from `root`, which is not one of them. Environments are read each time: a
 * process has that of its parent until it executes its program. One that had a rank keeps it. */
STW_MUST_USE stw_status stw_record_tree_read(stw_record_tree *tree, pid_t root, stw_error *err);
/** Resident bytes of every process, and of all together. */
uint64_t stw_record_tree_measure(stw_record_tree *tree);
void stw_record_tree_free(stw_record_tree *tree);

#endif

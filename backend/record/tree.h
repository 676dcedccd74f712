/* SPDX-License-Identifier: Apache-2.0 */
/* The descendants of a process, read from /proc, and which of them are ranks of a job. One thread
 * at a time. */
#ifndef STW_RECORD_TREE_H
#define STW_RECORD_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/status.h"

typedef struct stw_record_process {
    pid_t pid, parent;
    unsigned long long start; /* start time in ticks: distinguishes processes with the same id */
    bool seen;                /* found by the last read */
    bool is_rank;             /* the rank's own process, not its child */
    int32_t rank;             /* from its environment; -1: none */
    int32_t local_rank;       /* -1: none */
    int32_t node;             /* from its environment; -1: none */
    bool by_torchrun;         /* its environment has LOCAL_RANK and RANK */
    char visible[256];        /* CUDA_VISIBLE_DEVICES; "*": not set */
    uint64_t resident;        /* bytes, from stw_record_tree_measure; 0: the process has ended */
} stw_record_process;

typedef struct stw_record_tree {
    const char *proc; /* "/proc", or a folder like it */
    size_t n, capacity;
    stw_record_process *items;
} stw_record_tree;

/** Read the descendants of `root`, without `root`. Environments are read each time, because a
 * process has its parent's until it executes its program. A process keeps a rank once it had
 * one. */
STW_MUST_USE stw_status stw_record_tree_read(stw_record_tree *tree, pid_t root, stw_error *err);
/** Measure the resident bytes of every process; returns their sum. */
uint64_t stw_record_tree_measure(stw_record_tree *tree);
void stw_record_tree_free(stw_record_tree *tree);

#endif

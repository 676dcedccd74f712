/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes of a job are ranks, read from a folder that looks like /proc. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/record/tree.h"
#include "tests/unit/testing.h"

static const char proc[] = "proc";

static void write_file(int pid, const char *name, const char *data, size_t length) {
    char path[64];
    (void)mkdir(proc, 0777);
    snprintf(path, sizeof path, "%s/%d", proc, pid);
    (void)mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%d/%s", proc, pid, name);
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL(fwrite(data, 1, length, file), length);
    CU_ASSERT_EQUAL(fclose(file), 0);
}

/* A process with these variables, "A=1 B=2". */
static void process(int pid, int parent, int start, const char *variables) {
    char text[256], environment[256];
    int n = snprintf(text, sizeof text,
                     "%d (a ) name) S %d 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 4096 7\n", pid,
                     parent, start);
    write_file(pid, "stat", text, (size_t)n);
    n = snprintf(environment, sizeof environment, "%s", variables);
    for (int i = 0; i < n; i++)
        if (environment[i] == ' ') environment[i] = '\0';
    write_file(pid, "environ", environment, (size_t)n + 1);
    write_file(pid, "statm", "10 5 0\n", 7);
}

static void end(int pid) {
    static const char *const names[] = {"stat", "environ", "statm", ""};
    char path[64];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%d/%s", proc, pid, names[i]);
        CU_ASSERT_EQUAL(remove(path), 0);
    }
}

/* The process that is this rank; 0: none, -1: several. */
static int rank_process(stw_record_tree *tree, int32_t rank) {
    int found = 0;
    CHECK_OK(stw_record_tree_read(tree, 1, err));
    for (size_t i = 0; i < tree->n; i++)
        if (tree->items[i].is_rank && tree->items[i].rank == rank)
            found = found == 0 ? (int)tree->items[i].pid : -1;
    return found;
}

/* A shell forks, and the child executes a program with another environment: it is a rank although
 * it was seen before, also where a process that it started was taken for the rank meanwhile. */
static void rank_by_exec(void) {
    stw_record_tree tree = {.proc = proc};
    process(100, 1, 50, "HOME=/");
    process(101, 100, 60, "HOME=/");
    CU_ASSERT_EQUAL(rank_process(&tree, 0), 0);
    process(102, 101, 70, "HOME=/ RANK=0");
    CU_ASSERT_EQUAL(rank_process(&tree, 0), 102);
    process(101, 100, 60, "HOME=/ RANK=0");
    CU_ASSERT_EQUAL(rank_process(&tree, 0), 101);
    end(102);
    CU_ASSERT_EQUAL(rank_process(&tree, 0), 101);
    CU_ASSERT_EQUAL(stw_record_tree_measure(&tree), 2 * 5 * (uint64_t)sysconf(_SC_PAGESIZE));
    stw_record_tree_free(&tree);
    end(101);
    end(100);
}

/* torchrun under Slurm: before its children execute, they have the rank of Slurm. */
static void rank_of_outer_launcher(void) {
    stw_record_tree tree = {.proc = proc};
    process(100, 1, 50, "SLURM_PROCID=0 SLURM_LOCALID=0");
    process(101, 100, 60, "SLURM_PROCID=0 SLURM_LOCALID=0");
    CU_ASSERT_EQUAL(rank_process(&tree, 0), 100);
    process(101, 100, 60,
            "SLURM_PROCID=0 SLURM_LOCALID=0 RANK=3 LOCAL_RANK=1 CUDA_VISIBLE_DEVICES=2,5");
    CU_ASSERT_EQUAL(rank_process(&tree, 3), 101);
    CU_ASSERT_EQUAL(rank_process(&tree, 0), 0);
    for (size_t i = 0; i < tree.n; i++)
        if (tree.items[i].pid == 101) CU_ASSERT_STRING_EQUAL(tree.items[i].visible, "2,5");
    stw_record_tree_free(&tree);
    end(101);
    end(100);
}

/* A title that is written over the environment takes no rank away; a new process of the same number
 * has none of the old one. */
static void rank_is_kept(void) {
    stw_record_tree tree = {.proc = proc};
    process(100, 1, 50, "RANK=1 LOCAL_RANK=1 SLURM_PROCID=7");
    CU_ASSERT_EQUAL(rank_process(&tree, 1), 100);
    process(100, 1, 50, "worker: step SLURM_PROCID=7");
    CU_ASSERT_EQUAL(rank_process(&tree, 1), 100);
    process(100, 1, 50, "worker: step");
    CU_ASSERT_EQUAL(rank_process(&tree, 1), 100);
    process(100, 1, 90, "HOME=/");
    CU_ASSERT_EQUAL(rank_process(&tree, 1), 0);
    stw_record_tree_free(&tree);
    end(100);
}

STW_TEST_MAIN("backend record", {"a rank by exec", rank_by_exec},
              {"a rank of an outer launcher", rank_of_outer_launcher},
              {"a rank is kept", rank_is_kept})

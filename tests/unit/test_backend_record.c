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

/* What each launcher says, and what is no number. */
static void what_launchers_say(void) {
    static const struct {
        const char *variables;
        int32_t rank, local_rank, node;
        bool by_torchrun;
        const char *visible;
    } cases[] = {
        {"RANK=5 LOCAL_RANK=1 GROUP_RANK=2", 5, 1, 2, true, "*"},
        {"RANK=5", 5, -1, -1, false, "*"},
        {"RANK=x LOCAL_RANK=1 SLURM_PROCID=7", 7, -1, -1, false, "*"},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=0", 3, 0, -1, false, "*"},
        {"SLURM_PROCID=9 SLURM_LOCALID=4 SLURM_NODEID=1", 9, 4, 1, false, "*"},
        {"PMI_RANK=2 MPI_LOCALRANKID=1", 2, 1, -1, false, "*"},
        {"OMPI_COMM_WORLD_RANK=3 SLURM_PROCID=0 SLURM_LOCALID=0", 3, -1, -1, false, "*"},
        {"XRANK=5 RANKS=6 RAN=7 CUDA_VISIBLE_DEVICES=", -1, -1, -1, false, ""},
        {"RANK=1073741823 CUDA_VISIBLE_DEVICES=GPU-a,3", 1073741823, -1, -1, false, "GPU-a,3"},
        {"RANK=1073741824", -1, -1, -1, false, "*"},
        {"RANK=-1 PMI_RANK=+4", -1, -1, -1, false, "*"},
        {"RANK=3x", -1, -1, -1, false, "*"},
        {"RANK= HOME=/", -1, -1, -1, false, "*"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_record_tree tree = {.proc = proc};
        process(100, 1, 50, cases[i].variables);
        CHECK_OK(stw_record_tree_read(&tree, 1, err));
        CU_ASSERT_EQUAL_FATAL(tree.n, 1);
        const stw_record_process *p = &tree.items[0];
        CU_ASSERT_EQUAL(p->rank, cases[i].rank);
        CU_ASSERT_EQUAL(p->local_rank, cases[i].local_rank);
        CU_ASSERT_EQUAL(p->node, cases[i].node);
        CU_ASSERT_EQUAL(p->by_torchrun, cases[i].by_torchrun);
        CU_ASSERT_STRING_EQUAL(p->visible, cases[i].visible);
        CU_ASSERT_EQUAL(p->is_rank, cases[i].rank >= 0);
        CU_ASSERT_EQUAL(p->parent, 1);
        CU_ASSERT_EQUAL(p->start, 50);
        stw_record_tree_free(&tree);
        CU_ASSERT_TRUE(tree.items == NULL && tree.n == 0 && tree.capacity == 0);
    }
    end(100);
}

/* Who descends from the root, in whatever order /proc lists them; more than fit at first. */
static void only_descendants(void) {
    enum { N = 300 };
    stw_record_tree tree = {.proc = proc};
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < N; i++) /* a chain: each is the child of the next number */
        process(1000 + i, i + 1 < N ? 1001 + i : 7, 50 + i, "");
    process(2000, 8, 1, "RANK=0"); /* somebody else's */
    process(2001, 2000, 1, "RANK=1");
    process(7, 1, 1, ""); /* the root is not one of them */
    write_file(1003, "statm", "broken", 6);
    write_file(1004, "statm", "10 7 0\n", 7);
    (void)mkdir("proc/self", 0777);
    (void)mkdir("proc/0", 0777);
    for (int again = 0; again < 2; again++) {
        CHECK_OK(stw_record_tree_read(&tree, 7, err));
        CU_ASSERT_EQUAL_FATAL(tree.n, N);
        unsigned wrong = 0;
        for (int i = 0; i < N; i++) { /* parents before their children */
            const stw_record_process *p = &tree.items[i];
            wrong += p->pid != 1000 + N - 1 - i || p->rank != -1 || p->is_rank || !p->seen;
            wrong += p->start != (unsigned long long)(50 + N - 1 - i);
        }
        CU_ASSERT_EQUAL(wrong, 0);
        CU_ASSERT_EQUAL(stw_record_tree_measure(&tree), ((N - 2) * 5 + 7) * page);
        CU_ASSERT_EQUAL(tree.items[N - 1].resident, 5 * page);
        CU_ASSERT_EQUAL(tree.items[N - 4].resident, 0);
        CU_ASSERT_EQUAL(tree.items[N - 5].resident, 7 * page);
    }
    end(1150); /* what descends from it is nobody's now, but of an init, which has another number */
    process(1149, 1, 50 + 149, "");
    CHECK_OK(stw_record_tree_read(&tree, 7, err));
    CU_ASSERT_EQUAL(tree.n, 149);
    end(1151); /* its memory is read, and gone */
    CU_ASSERT_EQUAL(stw_record_tree_measure(&tree), 148 * 5 * page);
    stw_record_tree_free(&tree);
    for (int i = 0; i < N; i++)
        if (i != 150 && i != 151) end(1000 + i);
    end(7);
    end(2000);
    end(2001);
    CU_ASSERT_EQUAL(rmdir("proc/self"), 0);
    CU_ASSERT_EQUAL(rmdir("proc/0"), 0);
    stw_record_tree none = {.proc = "no/such/proc"};
    CHECK_OK(stw_record_tree_read(&none, 1, err));
    CU_ASSERT_EQUAL(none.n, 0);
    CU_ASSERT_EQUAL(stw_record_tree_measure(&none), 0);
    stw_record_tree_free(&none);
}

/* Ranks of the same number one below the other: the first of them; of torchrun's before others. */
static void the_first_of_a_number(void) {
    stw_record_tree tree = {.proc = proc};
    process(100, 1, 50, "RANK=0");
    process(101, 100, 60, "RANK=0");
    process(102, 101, 70, "RANK=1");
    process(103, 102, 80, "RANK=0");
    CU_ASSERT_EQUAL(rank_process(&tree, 0), -1); /* 100, and 103, which is not below one of it */
    CU_ASSERT_EQUAL(rank_process(&tree, 1), 102);
    process(103, 102, 80, "RANK=0 LOCAL_RANK=0");
    process(102, 101, 70, "RANK=0");
    CU_ASSERT_EQUAL(rank_process(&tree, 0), 103);
    stw_record_tree_free(&tree);
    for (int pid = 100; pid < 104; pid++) end(pid);
}

STW_TEST_MAIN("backend record", {"a rank by exec", rank_by_exec},
              {"a rank of an outer launcher", rank_of_outer_launcher},
              {"a rank is kept", rank_is_kept}, {"what launchers say", what_launchers_say},
              {"only descendants", only_descendants},
              {"the first of a number", the_first_of_a_number})
